//! Consensus on passive memory nodes: a replicated memory with a log, whose coordinator is elected through the memory
//! itself. It follows Sift (Kazhamiaka et al., CoNEXT 2019, sections 3 and 5.1), and adds a fence.
//!
//! ```text
//!   processors                       memory nodes, 2F+1 of them, passive
//!   Standby ── heartbeats, term ───▶ administrative region   everybody may read, write and compare-swap
//!      │ elected
//!   Coordinator ── log, memory ────▶ replicated region       only the newest coordinator has a capability
//! ```
//!
//! 1. A [`MemoryNode`] keeps the regions of its groups on an [`rma::Host`]. It answers two kinds of request, a hello and a
//!    fence, and has no part in anything else.
//! 2. [`format()`] makes a new group, once.
//! 3. A [`Standby`] watches heartbeats; when they cease it stands for election ([`standby`]).
//! 4. Whoever is elected fences the memory nodes, reads and repairs their logs, and brings their memory up to date
//!    ([`takeover`]).
//! 5. The [`Coordinator`] then serves reads, logged writes, transactions and direct writes, keeps the heartbeat going, and
//!    takes memory nodes back that were lost ([`coordinator`]).
//! 6. Groups may share their backups: a [`BackupPool`] watches many of them with few processors ([`backups`]).
//! 7. On top of it stands a key-value store ([`kv`]).
//!
//! [`ordered`] is what an engine of consensus looks like to whoever orders something with it.
//!
//! Invariants (the simulation in `tests/consensus/simulation` checks them under faults):
//! * A term has at most one coordinator. At most one coordinator serves at a time.
//! * What was committed is never lost or changed, whatever F memory nodes lose.
//! * When a fence has been answered, no verb of an earlier coordinator takes effect in that node's replicated region.
//! * A node's logged memory holds committed writes alone.
//! * Of a coded group, what F+1 live nodes hold of a block is one version of it.
//! * Where so many nodes are gone that a majority of whole copies cannot be had, nothing is served and nothing guessed.
//!
//! Why this is safe is written where it is done: at the heads of [`standby`], [`takeover`] and [`coordinator`]. What
//! bytes mean is left to the layers above.

pub mod backups;
mod code;
pub mod coordinator;
mod disk;
pub mod entry;
mod error;
pub mod fault;
mod format;
#[doc(hidden)]
pub mod fuzz;
pub mod group;
mod guard;
pub mod kv;
mod layout;
mod link;
pub mod memory_node;
mod message;
pub mod ordered;
mod owned;
mod quorum;
pub mod raft;
mod scan;
mod shares;
pub mod standby;
pub mod takeover;

use std::fmt;

pub use backups::{BackupPool, PoolOptions, PoolStatus, Watched};
pub use coordinator::{Coordinator, Posted, Status};
pub use entry::{Entry, Kind, WRITES_MAX, Write};
pub use error::Error;
pub use format::{format, is_used};
pub use group::{Group, Place, Timing};
pub use layout::{FORMAT_VERSION, LOG_BYTES_MAX, LOG_UNIT_BYTES, Layout};
pub use memory_node::{GroupMemory, MemoryNode, MemoryNodeOptions};
pub use message::PROTOCOL_VERSION;
pub use standby::Standby;
pub use takeover::{Elected, Unopened};

/// The time of one coordinator. Terms only grow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Term(pub u64);

/// Terms of an era, in bits: see [`Term::next_era`].
const ERA_BITS: u32 = 32;

impl Term {
    /// Its era: groups are made anew in the next one.
    pub fn era(self) -> u64 {
        self.0 >> ERA_BITS
    }

    /// The first term of the next era. Whoever makes a group anew goes on there, since terms may have been used that nobody tells
    /// it of: elections count on by one, and have no more than 2^32 of them before that.
    pub(crate) fn next_era(self) -> Result<Term, Error> {
        let era = self.era() + 1;
        match era >> (u64::BITS - ERA_BITS) {
            0 => Ok(Term(era << ERA_BITS)),
            _ => Err(Error::Corrupt("a term at the end of all terms")),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.era() {
            0 => write!(f, "{}", self.0),
            era => write!(f, "{era}.{}", self.0 & ((1 << ERA_BITS) - 1)),
        }
    }
}

/// The number of a group, which its operator chooses; never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u64);
