//! The state's part of the protocol between the compute nodes of one peer. The steps are those of
//! [`replica::followers`].
//!
//! A *follower* serves snapshots of the same state from the same remote memory, with one-sided reads, and has its own
//! caches and delta. It runs the same code as the primary ([`super::read`], [`super::range`], [`super::cache`]) but
//! learns of changes over one link to the primary. FlexChain (section 4.2) invalidates the caches of other compute
//! nodes record by record; here the primary sends one message per follower and block (docs/adr, several compute nodes).
//!
//! * [`admit`]: what the primary's state gives a follower that joins (steps 1 and 2), and its requests (step 9).
//! * [`follow`]: how a follower's state applies updates (steps 3 and 5), and what it answers (step 7).
//! * [`changes`]: the encoding of both.
//!
//! [`replica`] decides which node is the primary, which nodes follow it and hold leases, and which follower does which
//! work. The writer logs its changes in the [`replica::FollowerTable`], and retires buffers as step 8 says.

mod admit;
pub mod changes;
mod follow;
mod role;
#[cfg(test)]
mod tests;

pub use follow::{Follower, FollowerEnvironment};
pub use role::ComputeRole;
