//! Groups: which memory nodes, which sizes, which times.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rma::{Fabric, Token};

use crate::{Error, GroupId, Layout};

/// Memory nodes of a group.
pub const NODES_MAX: usize = 9;
/// How much faster or slower than true time a processor's monotonic clock may go, in millionths.
pub const DRIFT_PPM_MAX: u64 = 10_000;

/// Where a memory node is, and what proves to it who we are.
#[derive(Clone, Debug)]
pub struct Place {
    /// The address of its host.
    pub address: String,
    /// Our name there.
    pub name: String,
    /// The secret that the node shares with that name.
    pub token: Token,
}

/// How long things take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Between two heartbeats of a coordinator, and between two looks of a standby.
    pub heartbeat: Duration,
    /// How long a coordinator may serve after a heartbeat that a majority has taken.
    pub lease: Duration,
    /// How long a standby waits for a heartbeat before it stands for election. Longer than the lease is of use: then a
    /// coordinator that lost its majority has stopped by itself.
    pub election_timeout: Duration,
    /// How long one attempt at an election may take.
    pub attempt_max: Duration,
    /// How long a memory node may take to connect, or to answer a message; how long a takeover waits for verbs; and how long
    /// a coordinator waits for the heartbeats of a node before it takes it for lost.
    pub answer_max: Duration,
    /// How long a takeover waits for slower nodes once a majority has answered.
    pub grace: Duration,
    /// Before a memory node that was lost is tried again.
    pub reconnect: Duration,
    /// Bytes per second that are copied to a memory node that comes back; [`Timing::UNLIMITED`] for as many as can be.
    pub copy_bytes_per_second: u64,
}

impl Timing {
    /// A rate without limit.
    pub const UNLIMITED: u64 = u64::MAX;

    /// Of machines with much else to do, as orderers have: a dead coordinator's place is taken within a second or so.
    pub fn of_busy_machines() -> Timing {
        Timing {
            heartbeat: Duration::from_millis(20),
            lease: Duration::from_millis(400),
            election_timeout: Duration::from_millis(500),
            attempt_max: Duration::from_millis(300),
            answer_max: Duration::from_secs(1),
            grace: Duration::from_millis(20),
            reconnect: Duration::from_millis(200),
            copy_bytes_per_second: Timing::UNLIMITED,
        }
    }

    /// What a new coordinator waits, on its clock, until the lease of any earlier one has run out on theirs.
    pub fn lease_over(&self) -> Duration {
        // The old clock may be slow, so that the lease lasts longer in true time; ours may be fast, so that we wait less.
        let nanos = self.lease.as_nanos() as u64;
        let (slow, fast) = (1_000_000 - DRIFT_PPM_MAX, 1_000_000 + DRIFT_PPM_MAX);
        Duration::from_nanos((u128::from(nanos) * u128::from(fast)).div_ceil(u128::from(slow)) as u64)
    }
}

impl Default for Timing {
    /// Of one rack: a dead coordinator is noticed in about 21 ms.
    fn default() -> Timing {
        Timing {
            heartbeat: Duration::from_millis(5),
            lease: Duration::from_millis(18),
            election_timeout: Duration::from_millis(20),
            attempt_max: Duration::from_millis(50),
            answer_max: Duration::from_millis(500),
            grace: Duration::from_millis(5),
            reconnect: Duration::from_millis(100),
            copy_bytes_per_second: Timing::UNLIMITED,
        }
    }
}

/// A consensus group, as its processors know it.
#[derive(Clone)]
pub struct Group {
    /// Its number.
    pub id: GroupId,
    /// Its sizes.
    pub layout: Layout,
    /// Its memory nodes: an odd number, in the same order everywhere.
    pub nodes: Vec<Place>,
    /// How they are reached.
    pub fabric: Arc<dyn Fabric>,
    /// How long things take; the lease is the same everywhere.
    pub timing: Timing,
}

impl Group {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<(), Error> {
        self.layout.check()?;
        let invalid = |what: String| Err(Error::Invalid(what));
        if self.id.0 == 0 {
            return invalid("group 0: numbers begin with 1".to_owned());
        }
        let count = self.nodes.len();
        if count.is_multiple_of(2) || count > NODES_MAX {
            return invalid(format!(
                "{count} memory nodes: a group that survives F losses has 2F+1, at most {NODES_MAX}"
            ));
        }
        if self.layout.is_coded() && self.layout.data_shares as usize != self.majority() {
            return invalid(format!(
                "{} data shares: a coded group of {count} memory nodes has {}",
                self.layout.data_shares,
                self.majority()
            ));
        }
        let addresses: BTreeSet<&str> = self.nodes.iter().map(|place| place.address.as_str()).collect();
        if addresses.len() < count {
            return invalid("a memory node is named twice in a group".to_owned());
        }
        if self.timing.heartbeat >= self.timing.lease {
            return invalid("a lease that is no longer than the time between heartbeats".to_owned());
        }
        Ok(())
    }

    /// Memory nodes that are more than half: F+1.
    pub fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({:?}, {} nodes)", self.id, self.nodes.len())
    }
}
