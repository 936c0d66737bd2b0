//! The messages between the processes of a store and their parent.

use std::collections::VecDeque;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sift::SiftTimeouts;

use crate::sift::systems::KvGeometry;
use measurement::error::Error;

/// The role of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProcessRole {
    /// A memory node, with its number.
    Memory(u32),
    /// A CPU node, with its number.
    CpuNode(u64),
    /// A node of Raft, with its number.
    Raft(u64),
}

/// Times of a group, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupTimeouts {
    /// Between heartbeats, and between checks of them.
    pub heartbeat_ms: u64,
    /// How long a coordinator may serve after a heartbeat.
    pub lease_ms: u64,
    /// How long a CPU node waits for a heartbeat; randomly prolonged by up to a half.
    pub election_ms: u64,
    /// Bytes a second that are copied to a returning memory node.
    pub copy_bytes_per_second: u64,
}

impl GroupTimeouts {
    /// For busy machines, and a CPU node that no other replaces: it need not wait for another's heartbeat;
    /// before it serves, it only waits for the lease of a possible predecessor.
    pub fn relaxed() -> GroupTimeouts {
        GroupTimeouts {
            heartbeat_ms: 5,
            lease_ms: 5000,
            election_ms: 100,
            copy_bytes_per_second: SiftTimeouts::UNLIMITED,
        }
    }

    pub(super) fn timing(self) -> SiftTimeouts {
        let ms = Duration::from_millis;
        SiftTimeouts {
            heartbeat: ms(self.heartbeat_ms),
            lease: ms(self.lease_ms),
            election_timeout: ms(self.election_ms),
            copy_bytes_per_second: self.copy_bytes_per_second,
            answer_max: Duration::from_secs(5),
            ..SiftTimeouts::default()
        }
    }
}

/// The configuration of a process.
#[derive(Serialize, Deserialize)]
pub(super) struct ProcessConfig {
    pub role: ProcessRole,
    pub shape: KvGeometry,
    pub times: GroupTimeouts,
    pub addresses: Vec<String>,
    pub token: [u8; rma::TOKEN_BYTES],
    pub clients: u64,
    pub theta: f64,
    pub seed: u64,
}

/// A task of a process.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum ProcessTask {
    /// Put all keys once; answered by [`ProcessMessage::Done`].
    Fill,
    /// Load the store with this many puts of a hundred operations for this many seconds; answered by [`ProcessMessage::Rate`].
    Run {
        /// Puts of a hundred operations; the others are gets.
        puts_of_100: u64,
        /// How long.
        seconds: f64,
    },
    /// Load the store this way from now on, and report the operations.
    Load {
        /// Puts of a hundred operations; the others are gets.
        puts_of_100: u64,
    },
    /// Stop freeing space in the group's log, and put until that and the store's log are full; answered by [`ProcessMessage::Full`].
    FillLog,
}

/// A report of a process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ProcessMessage {
    /// It has started.
    Ready,
    /// It noticed that there is no coordinator.
    Detected {
        /// When, as [`now_ns`] counts.
        at_ns: u64,
    },
    /// It was elected.
    Elected {
        /// When, as [`now_ns`] counts.
        at_ns: u64,
    },
    /// It has taken over the memory.
    TakenOver {
        /// When, as [`now_ns`] counts.
        at_ns: u64,
    },
    /// It serves, or leads; it found this many entries in the store's log.
    Serves {
        /// When, as [`now_ns`] counts.
        at_ns: u64,
        /// Entries that it found in the store's log.
        recovered: u64,
    },
    /// It does not serve any more.
    Ended {
        /// The error's text.
        reason: String,
    },
    /// Operations of its clients since they started, and the number of live memory nodes.
    Count {
        /// When, as [`now_ns`] counts.
        at_ns: u64,
        /// Gets that were completed.
        reads: u64,
        /// Puts that were completed.
        writes: u64,
        /// Live memory nodes.
        live: u64,
    },
    /// It has completed its task.
    Done,
    /// Operations a second, and the process's time for each in microseconds.
    Rate {
        /// Operations a second.
        ops_per_second: f64,
        /// Processor time of each operation in microseconds.
        cpu_us: f64,
    },
    /// Bytes in use of its log, and of the group's.
    Full {
        /// Bytes in use of the store's log.
        used_bytes: u64,
        /// Bytes in use of the group's log.
        group_used_bytes: u64,
    },
    /// It cannot continue.
    Failed {
        /// The error's text.
        reason: String,
    },
}

/// The machine's monotonic clock, which all processes share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// Operations that the clients of a process had completed at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationCount {
    /// The moment, as [`now_ns`] counts.
    pub at_ns: u64,
    /// Gets since the process started.
    pub reads: u64,
    /// Puts since the process started.
    pub writes: u64,
    /// Memory nodes that were live.
    pub live: u64,
}

/// The steps by which a child started to serve; times of the machine's clock.
#[derive(Clone, Copy, Default)]
pub struct TakeoverTimes {
    /// When it noticed that there is no coordinator.
    pub detected_ns: Option<u64>,
    /// When it was elected.
    pub elected_ns: Option<u64>,
    /// When it had taken over the memory.
    pub taken_over_ns: Option<u64>,
    /// When it began to serve.
    pub serves_ns: u64,
    /// Entries that it found in the store's log.
    pub recovered: u64,
}

/// The reports of a child.
#[derive(Default)]
pub struct ReceivedMessages {
    pub(super) is_ready: bool,
    /// The steps of the takeover that is under way, or was last.
    takeover: TakeoverTimes,
    /// The takeover after which it serves, while it does.
    pub serves: Option<TakeoverTimes>,
    /// How often its store ended while the process ran.
    pub ended: u64,
    /// All counts, in the order in which they arrived.
    pub counts: Vec<OperationCount>,
    pub(super) answers: VecDeque<ProcessMessage>,
    failed: Option<String>,
    pub(super) is_gone: bool,
}

impl ReceivedMessages {
    /// Checks that it can continue.
    ///
    /// # Errors
    /// It reports that it cannot, or has ended.
    pub fn check(&self) -> Result<(), Error> {
        match &self.failed {
            Some(reason) => Err(failed(reason)),
            None if self.is_gone => Err(failed("it has ended")),
            None => Ok(()),
        }
    }

    pub(super) fn receive(&mut self, said: ProcessMessage) {
        match said {
            ProcessMessage::Ready => self.is_ready = true,
            ProcessMessage::Detected { at_ns } => self.takeover.detected_ns = Some(at_ns),
            ProcessMessage::Elected { at_ns } => self.takeover.elected_ns = Some(at_ns),
            ProcessMessage::TakenOver { at_ns } => self.takeover.taken_over_ns = Some(at_ns),
            ProcessMessage::Serves { at_ns, recovered } => {
                self.serves = Some(TakeoverTimes { serves_ns: at_ns, recovered, ..self.takeover });
            }
            ProcessMessage::Ended { .. } => (self.serves, self.ended) = (None, self.ended + 1),
            ProcessMessage::Count { at_ns, reads, writes, live } => {
                self.counts.push(OperationCount { at_ns, reads, writes, live })
            }
            ProcessMessage::Failed { reason } => self.failed = Some(reason),
            answer @ (ProcessMessage::Done | ProcessMessage::Rate { .. } | ProcessMessage::Full { .. }) => {
                self.answers.push_back(answer)
            }
        }
    }
}

pub(super) fn failed(error: impl ToString) -> Error {
    Error::Part { what: "a store's process", reason: error.to_string() }
}
