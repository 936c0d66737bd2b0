//! The `shm` provider: regions are memory that the processes of one machine share, and a one-sided verb is a copy or an
//! atomic instruction in the caller. The host's process takes no part in it.
//!
//! An address is `local:NAME` for a host within this process, or the path of a Unix socket. Both kinds of address use
//! the same mechanisms, described below; a socket only passes file descriptors, after authentication, and reports when
//! the other end has gone.
//!
//! 1. A region is a memfd whose size is sealed ([`memory`]). The host maps it, and passes it to every process that
//!    proves that it holds a capability for the region.
//! 2. A verb sets a mark, which shows that the verb is in flight. Then it checks that its grant is in force, copies
//!    ([`copy`]), and clears the mark ([`connection`], [`segment`]). Generations lie in memory that only the host can
//!    write ([`view`]).
//! 3. A revocation raises the grant's generation, waits for marks, and kills a process that does not clear its mark
//!    ([`hazards`], [`host`]).
//! 4. Messages and notices go through one ring per direction ([`ring`], [`segment`]).
//!
//! Invariants:
//! * The protocol is safe against processes that are paused or killed at any instruction, but not against malice: a
//!   process that has mapped a region can write it. The processes that share a region are one trust domain. A
//!   capability is valid only for its holder's name. The host enforces this until the holder's process has mapped the
//!   region; from then on the process itself compares the names. Data read from shared memory is checked nevertheless,
//!   so that a broken process breaks only itself.
//! * Verbs and notices of one endpoint take effect in the order of posting; a message that waits for space in its ring
//!   may be overtaken by later verbs.
//! * A caller may notice the loss of its host late. A verb that it posts before then may take effect in memory that no
//!   host owns any more.

mod config;
mod connection;
mod connection_end;
mod copy;
mod departure;
#[doc(hidden)]
pub mod fuzz;
mod hazards;
mod host;
mod local;
mod memory;
mod message;
mod provider;
mod remote;
mod ring;
mod segment;
mod socket;
mod view;
mod waiting;

pub use config::ShmConfig;
pub use provider::ShmProvider;

#[cfg(test)]
mod models;

#[cfg(test)]
mod tests;
