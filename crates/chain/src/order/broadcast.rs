//! An orderer's interface to its clients: the `Broadcast` service, its errors, and its settings.

use std::time::Duration;

use async_trait::async_trait;
use base::{Bytes, ErrorKind};
use ordered_log::CpuNodeId;
use proto::common::Status;

/// Accepts envelopes for channels.
#[async_trait]
pub trait Broadcast: Send + Sync {
    /// Submits an envelope to be ordered. On return the envelope is acknowledged; see [`AcknowledgeMode`] for what that
    /// means.
    ///
    /// If the future is dropped, the envelope may or may not have been accepted.
    ///
    /// # Errors
    /// See [`BroadcastError`].
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError>;
}

/// Why an envelope was not accepted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BroadcastError {
    /// The envelope is rejected. It would be rejected again, unless the status is `SERVICE_UNAVAILABLE`.
    #[error("{reason} ({})", status.as_str_name())]
    Rejected {
        /// Fabric's status: `BAD_REQUEST`, `FORBIDDEN` or `NOT_FOUND`; `SERVICE_UNAVAILABLE` while this orderer or the channel
        /// accepts no transactions.
        status: Status,
        /// The reason.
        reason: String,
    },
    /// The queue is full.
    #[error("the orderer's queue is full; back off and retry")]
    Overloaded,
    /// Another orderer is the leader. The envelope is in no block.
    #[error("this orderer is not the leader{}; retry at the leader or at another orderer", leader_text(*leader))]
    NotLeading {
        /// The leader, if it is known.
        leader: Option<CpuNodeId>,
    },
    /// The orderer has stopped.
    #[error("the orderer has stopped")]
    Stopped,
    /// The orderer stopped or lost leadership after the envelope was queued; the envelope may be in a block.
    #[error("the orderer stopped before the envelope's block was durable; the envelope may be in a block")]
    Ambiguous,
}

pub(super) fn leader_text(leader: Option<CpuNodeId>) -> String {
    leader.map(|leader| format!(", orderer {leader} is")).unwrap_or_default()
}

impl BroadcastError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            BroadcastError::Rejected { status: Status::ServiceUnavailable, .. } => ErrorKind::Retry,
            BroadcastError::Rejected { .. } => ErrorKind::Rejected,
            BroadcastError::Overloaded | BroadcastError::NotLeading { .. } => ErrorKind::Retry,
            BroadcastError::Stopped => ErrorKind::Closed,
            BroadcastError::Ambiguous => ErrorKind::Ambiguous,
        }
    }

    /// The status that Fabric's `BroadcastResponse` carries.
    pub fn status(&self) -> Status {
        match self {
            BroadcastError::Rejected { status, .. } => *status,
            _ => Status::ServiceUnavailable,
        }
    }
}

/// When an envelope is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcknowledgeMode {
    /// Once the envelope is queued, as in Fabric.
    #[default]
    Queued,
    /// Once the envelope's block is durable.
    Durable,
}

/// The largest number of bytes of envelopes in a block, whatever the configuration allows. Clients of Fabric accept
/// messages of 100 MiB, and a peer stores ids and codes with the block; the ids are at worst as long as the envelopes.
pub const BLOCK_BYTES_MAX: u32 = 96 << 20;

const _: () = assert!(4 * BLOCK_BYTES_MAX as u64 <= storage::blocks::RECORD_BYTES_MAX);

/// When a block is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CuttingMode {
    /// As soon as no block is in flight, and at the latest at a limit of the channel; see [`pacer`](crate::order::pacer).
    #[default]
    Idle,
    /// At a limit of the channel, as in Fabric.
    Limits,
}

/// The settings of an orderer.
#[derive(Clone, Debug)]
pub struct BroadcastConfig {
    /// Envelopes that may wait in a channel's queue.
    pub queue_messages_max: usize,
    /// Bytes of envelopes that may wait in a channel's queue; the largest envelope must fit.
    pub queue_bytes_max: u32,
    /// How long a caller waits for space in the queue before it is rejected; with zero it is rejected at once.
    pub queue_wait_max: Duration,
    /// When an envelope is acknowledged.
    pub acknowledge: AcknowledgeMode,
    /// When a block is cut.
    pub cutting: CuttingMode,
    /// Whether a leader changes the order of a block's transactions so that more of them are valid; see
    /// [`reorder`](crate::order::reorder).
    pub reorder: bool,
    /// Links that may be served at the same time at each address, divided between the organisations.
    pub connections_max: usize,
}

impl Default for BroadcastConfig {
    fn default() -> Self {
        BroadcastConfig {
            queue_messages_max: 4096,
            queue_bytes_max: 256 << 20,
            queue_wait_max: Duration::from_secs(2),
            acknowledge: AcknowledgeMode::Queued,
            cutting: CuttingMode::Idle,
            reorder: false,
            connections_max: 256,
        }
    }
}
