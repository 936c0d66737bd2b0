//! Consensus groups: their memory nodes, sizes and times.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rma::{Provider, Token};

pub use crate::quorum::NODES_MAX;
use crate::{Error, GroupId, GroupLayout};

/// The address of a memory node, and our credential for it.
#[derive(Clone, Debug)]
pub struct MemoryNodeAddress {
    /// The address of its host.
    pub address: String,
    /// Our name there.
    pub name: String,
    /// The secret that the node shares with that name.
    pub token: Token,
}

/// Time-outs and intervals of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SiftTimeouts {
    /// Interval between two heartbeats of a coordinator, and between two reads of a standby.
    pub heartbeat: Duration,
    /// How long a coordinator may serve after a heartbeat that reached a majority.
    pub lease: Duration,
    /// How long a standby waits for a heartbeat before it stands for election. Choose it longer than the lease: then a
    /// coordinator that lost its majority has already stopped by itself.
    pub election_timeout: Duration,
    /// How long one attempt at an election may take.
    pub attempt_max: Duration,
    /// How long a memory node may take to connect, or to answer a message; how long a takeover waits for verbs; and how
    /// long a coordinator waits for the heartbeats of a node before it considers the node lost.
    pub answer_max: Duration,
    /// How long a takeover waits for slower nodes once a majority has answered.
    pub grace: Duration,
    /// Interval between attempts to reconnect to a lost memory node.
    pub reconnect: Duration,
    /// Limit on the bytes per second that are copied to a memory node that comes back; [`SiftTimeouts::UNLIMITED`] for no
    /// limit.
    pub copy_bytes_per_second: u64,
}

impl SiftTimeouts {
    /// A rate without limit.
    pub const UNLIMITED: u64 = u64::MAX;

    /// For busy machines, as orderers are: a dead coordinator is replaced within about a second.
    pub fn of_busy_machines() -> SiftTimeouts {
        SiftTimeouts {
            heartbeat: Duration::from_millis(20),
            lease: Duration::from_millis(400),
            election_timeout: Duration::from_millis(500),
            attempt_max: Duration::from_millis(300),
            answer_max: Duration::from_secs(1),
            grace: Duration::from_millis(20),
            reconnect: Duration::from_millis(200),
            copy_bytes_per_second: SiftTimeouts::UNLIMITED,
        }
    }

    /// How long a new coordinator waits, on its own clock, until the lease of any earlier coordinator has run out on
    /// that coordinator's clock.
    pub fn lease_over(&self) -> Duration {
        base::lease::waited(self.lease)
    }
}

impl Default for SiftTimeouts {
    /// For one rack: a dead coordinator is noticed in about 21 ms.
    fn default() -> SiftTimeouts {
        SiftTimeouts {
            heartbeat: Duration::from_millis(5),
            lease: Duration::from_millis(18),
            election_timeout: Duration::from_millis(20),
            attempt_max: Duration::from_millis(50),
            answer_max: Duration::from_millis(500),
            grace: Duration::from_millis(5),
            reconnect: Duration::from_millis(100),
            copy_bytes_per_second: SiftTimeouts::UNLIMITED,
        }
    }
}

/// A consensus group, as its CPU nodes know it.
#[derive(Clone)]
pub struct SiftGroup {
    /// Its number.
    pub id: GroupId,
    /// Its sizes.
    pub layout: GroupLayout,
    /// Its memory nodes: an odd number, in the same order everywhere.
    pub nodes: Vec<MemoryNodeAddress>,
    /// The interconnect that reaches them.
    pub provider: Arc<dyn Provider>,
    /// Time-outs and intervals; the lease is the same everywhere.
    pub timing: SiftTimeouts,
}

impl SiftGroup {
    /// Checks that the group is valid.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<(), Error> {
        self.layout.check()?;
        let invalid = |what: String| Err(Error::Invalid(what));
        if self.id.0 == 0 {
            return invalid("group 0: group numbers start at 1".to_owned());
        }
        let count = self.nodes.len();
        if count.is_multiple_of(2) || count > NODES_MAX {
            return invalid(format!(
                "{count} memory nodes: a group that survives F losses has 2F+1, at most {NODES_MAX}"
            ));
        }
        if self.layout.is_erasure_coded() && self.layout.data_shards as usize != self.majority() {
            return invalid(format!(
                "{} data shards: an erasure-coded group of {count} memory nodes has {}",
                self.layout.data_shards,
                self.majority()
            ));
        }
        let addresses: BTreeSet<&str> = self.nodes.iter().map(|place| place.address.as_str()).collect();
        if addresses.len() < count {
            return invalid("a memory node is named twice in a group".to_owned());
        }
        if self.timing.heartbeat >= self.timing.lease {
            return invalid("the lease must be longer than the interval between heartbeats".to_owned());
        }
        Ok(())
    }

    /// The number of memory nodes in a majority: F+1.
    pub fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }
}

impl fmt::Debug for SiftGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({:?}, {} nodes)", self.id, self.nodes.len())
    }
}
