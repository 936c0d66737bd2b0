//! The state that all methods of a peer or an orderer share: channels, endorsers, permits.

use std::future::Future;
use std::sync::Arc;

use base::rt::{CancellationToken, Task};
use base::{ErrorKind, MspId};
use chain::endorse::{Endorse, EndorseError};
use chain::order::{Broadcast, Orderer};
use chain::view::{ChannelView, PeerView};
use proto::gateway::ErrorDetail;

use super::discovery::PeerDirectory;
use super::intake::TransactionIntake;
use super::layout::EndorsementPlanCache;
use crate::grpc::permits::{CallLimits, PermitPool};
use crate::grpc::{GrpcCode, GrpcStatus};

/// An endorser of one organisation.
#[derive(Clone)]
pub struct Endorser {
    /// The organisation.
    pub msp_id: MspId,
    /// Its address, for error details.
    pub address: Arc<str>,
    /// Runs proposals.
    pub endorse: Arc<dyn Endorse>,
}

/// An orderer.
#[derive(Clone)]
pub struct OrdererEndpoint {
    /// The organisation.
    pub msp_id: MspId,
    /// Its address, for error details.
    pub address: Arc<str>,
    /// Host and port at which clients reach it, if the port is chosen at each start, so that the channel's configuration cannot name
    /// it. Discovery then names this port for the host.
    pub reached_at: Option<Arc<str>>,
    /// Takes envelopes.
    pub broadcast: Arc<dyn Broadcast>,
}

/// What an organisation's port is built from.
pub struct PeerServiceConfig {
    /// The organisation's own peer, local or remote.
    pub peer: Arc<dyn PeerView>,
    /// The same peer as an endorser.
    pub local: Endorser,
    /// The endorsers of other organisations, one each.
    pub others: Vec<Endorser>,
    /// The orderers that take envelopes; tried in turn.
    pub orderers: Vec<OrdererEndpoint>,
    /// Bounds.
    pub limits: CallLimits,
    /// Whether new transactions are accepted.
    pub intake: TransactionIntake,
    /// Ends streams.
    pub stop: CancellationToken,
}

pub(crate) struct PeerServiceCore {
    pub(super) peer: Arc<dyn PeerView>,
    pub(super) local: Endorser,
    pub(super) others: Vec<Endorser>,
    pub(super) orderers: Vec<OrdererEndpoint>,
    pub(super) places: PermitPool,
    pub(super) intake: TransactionIntake,
    pub(super) plans: EndorsementPlanCache,
    /// What the peers state about themselves.
    pub(super) directory: PeerDirectory,
    pub(super) stop: CancellationToken,
    /// Spreads endorsements over equal layouts.
    pub(super) turn: std::sync::atomic::AtomicUsize,
}

pub(crate) struct OrdererServiceCore {
    pub(super) orderer: Arc<Orderer>,
    pub(super) places: PermitPool,
    pub(super) intake: TransactionIntake,
    pub(super) stop: CancellationToken,
}

/// Runs work that occupies a processor in a separate task; dropping the future drops the work.
pub(super) async fn run_in_task<T: Send + 'static>(
    work: impl Future<Output = Result<T, GrpcStatus>> + Send + 'static,
) -> Result<T, GrpcStatus> {
    let task: Task<_> = base::rt::spawn(work);
    task.abort_on_drop().await.unwrap_or_else(|_| Err(stopping_status()))
}

pub(super) fn stopping_status() -> GrpcStatus {
    GrpcStatus::new(GrpcCode::Unavailable, "the server is stopping")
}

impl PeerServiceCore {
    pub(super) fn channel(&self, channel: &str) -> Option<Arc<dyn ChannelView>> {
        self.peer.channel(channel)
    }

    /// A channel that the peer has joined.
    ///
    /// # Errors
    /// The given code; `UNAVAILABLE` while the peer's channels are not known yet, so that the client may try again.
    pub(super) fn known_channel(&self, channel: &str, unknown: GrpcCode) -> Result<Arc<dyn ChannelView>, GrpcStatus> {
        self.channel(channel).ok_or_else(|| {
            if self.peer.knows_channels() {
                GrpcStatus::new(unknown, format!("channel {channel} is not known here"))
            } else {
                GrpcStatus::new(
                    GrpcCode::Unavailable,
                    "the peer is starting, and its channels are not known yet; retry later",
                )
            }
        })
    }

    /// A channel that accepts new transactions. A channel that has stopped can still be read and accepts none.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`, `UNAVAILABLE`.
    pub(super) fn live_channel(&self, channel: &str) -> Result<Arc<dyn ChannelView>, GrpcStatus> {
        self.intake.check()?;
        let found = self.known_channel(channel, GrpcCode::FailedPrecondition)?;
        match found.failure() {
            None => Ok(found),
            Some(error) => {
                let (channel, cause) = (channel.to_owned(), error.to_string());
                Err(GrpcStatus::new(GrpcCode::Unavailable, EndorseError::ChannelStopped { channel, cause }.to_string()))
            }
        }
    }
}

impl Endorser {
    pub(super) fn detail(&self, message: impl Into<String>) -> ErrorDetail {
        ErrorDetail { address: self.address.to_string(), msp_id: self.msp_id.to_string(), message: message.into() }
    }
}

/// The status of a call that a channel could not serve, for a reason that is not the caller's.
pub(super) fn channel_status(error: &chain::Error) -> GrpcStatus {
    let code = match error.kind() {
        ErrorKind::Retry if matches!(error, chain::Error::TooManyWaiters(_)) => GrpcCode::ResourceExhausted,
        ErrorKind::Retry | ErrorKind::Closed | ErrorKind::Fenced | ErrorKind::Ambiguous => GrpcCode::Unavailable,
        ErrorKind::Rejected => GrpcCode::FailedPrecondition,
        ErrorKind::Corrupt => GrpcCode::DataLoss,
    };
    GrpcStatus::new(code, error.to_string())
}
