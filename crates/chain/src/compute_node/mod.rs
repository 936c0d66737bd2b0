//! A peer of several compute nodes: one of them commits, the others follow it. [`replica`] decides which one is the
//! primary; this module says what the node does in each role ([`roles`]), and answers proposals from it.

mod followed;
mod roles;
mod running;
mod setup;

pub use followed::FollowedChannel;
pub use running::{ActivePrimary, ComputeNode};
pub use setup::{ComputeNodeSetup, PeerMemory};
