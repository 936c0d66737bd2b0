//! Fabric's services, on top of `chain`.
//!
//! 1. [`PeerService`]: the services of an organisation's port: `gateway.Gateway`, `protos.Deliver`, `protos.Endorser`.
//! 2. [`OrdererService`]: the service of an orderer's port: `orderer.AtomicBroadcast`.
//! 3. Both answer `grpc.health.v1.Health`.
//!
//! Permits bound the calls that a port works on ([`crate::grpc::permits`]). A call takes a permit when its message has
//! arrived, a stream when its signer is verified. Without a free permit the answer is `RESOURCE_EXHAUSTED`. When the
//! signature of a call is verified, its connection counts as authenticated ([`crate::grpc::Caller::authenticate`]).
//!
//! A contract may occupy a processor for long, so it runs in a separate task, and the other calls of the connection do
//! not wait for it. All other work is done in the connection's task.

mod assemble;
mod balance;
mod broadcast;
mod caller_identity;
mod commit_status;
mod deliver;
mod endorse;
mod endorser;
mod evaluate;
mod events;
#[doc(hidden)]
pub mod fuzz;
mod health;
mod intake;
mod layout;
mod proposal;
mod seek;
mod submit;

use std::future::Future;
use std::sync::Arc;

use base::rt::{CancellationToken, Task};
use base::{ErrorKind, MspId};
use bytes::Bytes;
use chain::endorse::{Endorse, EndorseError};
use chain::order::{Broadcast, Orderer};
use chain::view::{ChannelView, PeerView};
use ledger::Transaction;
use proto::gateway::ErrorDetail;

use crate::events::CallsFailed;
use crate::grpc::connection::GrpcService;
use crate::grpc::permits::{PermitKind, PermitPool};
use crate::grpc::{GrpcCode, GrpcStatus, IncomingCall};
use deliver::DeliverMethod;
use layout::EndorsementPlanCache;
use proposal::ProposalRequest;
use seek::SeekRequest;
use submit::Submission;

pub use crate::grpc::permits::CallLimits;
pub use balance::BalancedEndorser;
pub use intake::TransactionIntake;

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

/// An organisation's port. Clones share it.
#[derive(Clone)]
pub struct PeerService(Arc<PeerServiceCore>);

pub(crate) struct PeerServiceCore {
    peer: Arc<dyn PeerView>,
    local: Endorser,
    others: Vec<Endorser>,
    orderers: Vec<OrdererEndpoint>,
    places: PermitPool,
    intake: TransactionIntake,
    plans: EndorsementPlanCache,
    stop: CancellationToken,
    /// Spreads endorsements over equal layouts.
    turn: std::sync::atomic::AtomicUsize,
}

/// An orderer's port. Clones share it.
#[derive(Clone)]
pub struct OrdererService(Arc<OrdererServiceCore>);

pub(crate) struct OrdererServiceCore {
    orderer: Arc<Orderer>,
    places: PermitPool,
    intake: TransactionIntake,
    stop: CancellationToken,
}

/// A method of [`PeerService`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerMethod {
    /// `gateway.Gateway/Evaluate`
    Evaluate,
    /// `gateway.Gateway/Endorse`
    Endorse,
    /// `gateway.Gateway/Submit`
    Submit,
    /// `gateway.Gateway/CommitStatus`
    CommitStatus,
    /// `gateway.Gateway/ChaincodeEvents`
    ChaincodeEvents,
    /// `protos.Endorser/ProcessProposal`
    ProcessProposal,
    /// `protos.Deliver/Deliver`
    Deliver,
    /// `protos.Deliver/DeliverFiltered`
    DeliverFiltered,
    /// `protos.Deliver/DeliverWithPrivateData`
    DeliverWithPrivateData,
    /// `grpc.health.v1.Health/Check`
    HealthCheck,
    /// `grpc.health.v1.Health/Watch`
    HealthWatch,
}

/// A method of [`OrdererService`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrdererMethod {
    /// `orderer.AtomicBroadcast/Broadcast`
    Broadcast,
    /// `orderer.AtomicBroadcast/Deliver`
    Deliver,
    /// `grpc.health.v1.Health/Check`
    HealthCheck,
    /// `grpc.health.v1.Health/Watch`
    HealthWatch,
}

impl PeerMethod {
    /// Reads a request as far as the port does before a signature is checked. For property tests and fuzzers.
    ///
    /// # Errors
    /// The refusal of the call, if it is a gRPC status.
    pub fn read(self, message: Bytes) -> Result<(), GrpcStatus> {
        match self {
            PeerMethod::Evaluate | PeerMethod::Endorse => ProposalRequest::read(&message).map(drop),
            PeerMethod::Submit => Submission::read(&message).map(drop),
            PeerMethod::CommitStatus => commit_status::read(message).map(drop),
            PeerMethod::ChaincodeEvents => events::read(message).map(drop),
            // The endorser reads it.
            PeerMethod::ProcessProposal => Ok(()),
            PeerMethod::Deliver | PeerMethod::DeliverFiltered | PeerMethod::DeliverWithPrivateData => {
                SeekRequest::read(message)
            }
            PeerMethod::HealthCheck | PeerMethod::HealthWatch => health::read(message).map(drop),
        }
    }
}

impl OrdererMethod {
    /// As [`PeerMethod::read`].
    ///
    /// # Errors
    /// As [`PeerMethod::read`].
    pub fn read(self, message: Bytes) -> Result<(), GrpcStatus> {
        match self {
            OrdererMethod::Broadcast => Transaction::decode(&message)
                .map(drop)
                .map_err(|invalid| GrpcStatus::invalid_argument(invalid.reason.to_owned())),
            OrdererMethod::Deliver => SeekRequest::read(message),
            OrdererMethod::HealthCheck | OrdererMethod::HealthWatch => health::read(message).map(drop),
        }
    }
}

impl PeerService {
    /// The port of a peer.
    pub fn new(options: PeerServiceConfig) -> PeerService {
        PeerService(Arc::new(PeerServiceCore {
            peer: options.peer,
            local: options.local,
            others: options.others,
            orderers: options.orderers,
            places: PermitPool::new(&options.limits),
            intake: options.intake,
            plans: EndorsementPlanCache::default(),
            stop: options.stop,
            turn: std::sync::atomic::AtomicUsize::new(0),
        }))
    }
}

impl OrdererService {
    /// The port of an orderer.
    pub fn new(
        orderer: Arc<Orderer>,
        limits: &CallLimits,
        intake: TransactionIntake,
        stop: CancellationToken,
    ) -> OrdererService {
        OrdererService(Arc::new(OrdererServiceCore { orderer, places: PermitPool::new(limits), intake, stop }))
    }
}

impl GrpcService for PeerService {
    type Method = PeerMethod;

    fn method(&self, path: &str) -> Option<PeerMethod> {
        Some(match path {
            "/gateway.Gateway/Evaluate" => PeerMethod::Evaluate,
            "/gateway.Gateway/Endorse" => PeerMethod::Endorse,
            "/gateway.Gateway/Submit" => PeerMethod::Submit,
            "/gateway.Gateway/CommitStatus" => PeerMethod::CommitStatus,
            "/gateway.Gateway/ChaincodeEvents" => PeerMethod::ChaincodeEvents,
            "/protos.Endorser/ProcessProposal" => PeerMethod::ProcessProposal,
            "/protos.Deliver/Deliver" => PeerMethod::Deliver,
            "/protos.Deliver/DeliverFiltered" => PeerMethod::DeliverFiltered,
            "/protos.Deliver/DeliverWithPrivateData" => PeerMethod::DeliverWithPrivateData,
            health::CHECK => PeerMethod::HealthCheck,
            health::WATCH => PeerMethod::HealthWatch,
            _ => return None,
        })
    }

    fn message_bytes_max(&self, method: PeerMethod) -> usize {
        match method {
            PeerMethod::Evaluate | PeerMethod::Endorse | PeerMethod::Submit | PeerMethod::ProcessProposal => usize::MAX,
            _ => REQUEST_BYTES_MAX,
        }
    }

    async fn call(&self, method: PeerMethod, call: IncomingCall) {
        let state = &self.0;
        // Streams are few and live long: their state is kept separate from the much smaller state of calls with one answer.
        let kind = match method {
            PeerMethod::ChaincodeEvents => return Box::pin(events::serve(state, call)).await,
            PeerMethod::Deliver => return Box::pin(deliver::serve_peer(state, call, DeliverMethod::Full)).await,
            PeerMethod::DeliverFiltered => {
                return Box::pin(deliver::serve_peer(state, call, DeliverMethod::Filtered)).await;
            }
            PeerMethod::DeliverWithPrivateData => {
                return Box::pin(deliver::serve_peer(state, call, DeliverMethod::WithPrivateData)).await;
            }
            PeerMethod::HealthWatch => PermitKind::Watch,
            _ => PermitKind::Call,
        };
        let _place = match state.places.acquire(kind, call.caller()) {
            Ok(place) => place,
            Err(status) => return call.reject(&status),
        };
        let caller = Arc::clone(call.caller());
        let caller = &*caller;
        match method {
            PeerMethod::Evaluate => call.unary(|message| counted(evaluate::evaluate(state, caller, message))).await,
            PeerMethod::Endorse => call.unary(|message| counted(endorse::endorse(state, caller, message))).await,
            PeerMethod::Submit => call.unary(|message| counted(submit::submit(state, caller, message))).await,
            PeerMethod::CommitStatus => {
                call.unary(|message| counted(commit_status::commit_status(state, caller, message))).await
            }
            PeerMethod::ProcessProposal => call.unary(|message| endorser::process(state, caller, message)).await,
            PeerMethod::HealthCheck => call.unary(health::check).await,
            PeerMethod::HealthWatch => Box::pin(health::watch(call, &state.stop)).await,
            PeerMethod::ChaincodeEvents
            | PeerMethod::Deliver
            | PeerMethod::DeliverFiltered
            | PeerMethod::DeliverWithPrivateData => unreachable!("streams are served above"),
        }
    }
}

impl GrpcService for OrdererService {
    type Method = OrdererMethod;

    fn method(&self, path: &str) -> Option<OrdererMethod> {
        Some(match path {
            "/orderer.AtomicBroadcast/Broadcast" => OrdererMethod::Broadcast,
            "/orderer.AtomicBroadcast/Deliver" => OrdererMethod::Deliver,
            health::CHECK => OrdererMethod::HealthCheck,
            health::WATCH => OrdererMethod::HealthWatch,
            _ => return None,
        })
    }

    fn message_bytes_max(&self, method: OrdererMethod) -> usize {
        if method == OrdererMethod::Broadcast { usize::MAX } else { REQUEST_BYTES_MAX }
    }

    async fn call(&self, method: OrdererMethod, call: IncomingCall) {
        let state = &self.0;
        let kind = match method {
            OrdererMethod::Broadcast => return Box::pin(broadcast::serve(state, call)).await,
            OrdererMethod::Deliver => return Box::pin(deliver::serve_orderer(state, call)).await,
            OrdererMethod::HealthWatch => PermitKind::Watch,
            OrdererMethod::HealthCheck => PermitKind::Call,
        };
        let _place = match state.places.acquire(kind, call.caller()) {
            Ok(place) => place,
            Err(status) => return call.reject(&status),
        };
        match kind {
            PermitKind::Watch => Box::pin(health::watch(call, &state.stop)).await,
            _ => call.unary(health::check).await,
        }
    }
}

/// Bound on requests that carry no payload of their own: signed requests for statuses, events and blocks, and for the
/// port's health. The creator's certificate is most of each.
const REQUEST_BYTES_MAX: usize = 64 << 10;

async fn counted<T>(work: impl Future<Output = Result<T, GrpcStatus>>) -> Result<T, GrpcStatus> {
    let result = work.await;
    if result.is_err() {
        CallsFailed.add(1);
    }
    result
}

/// Runs work that occupies a processor in a separate task; dropping the future drops the work.
async fn run_in_task<T: Send + 'static>(
    work: impl Future<Output = Result<T, GrpcStatus>> + Send + 'static,
) -> Result<T, GrpcStatus> {
    let task: Task<_> = base::rt::spawn(work);
    task.abort_on_drop().await.unwrap_or_else(|_| Err(stopping_status()))
}

fn stopping_status() -> GrpcStatus {
    GrpcStatus::new(GrpcCode::Unavailable, "the server is stopping")
}

impl PeerServiceCore {
    fn channel(&self, channel: &str) -> Option<Arc<dyn ChannelView>> {
        self.peer.channel(channel)
    }

    /// A channel that the peer has joined.
    ///
    /// # Errors
    /// The given code; `UNAVAILABLE` while the peer's channels are not known yet, so that the client may try again.
    fn known_channel(&self, channel: &str, unknown: GrpcCode) -> Result<Arc<dyn ChannelView>, GrpcStatus> {
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
    fn live_channel(&self, channel: &str) -> Result<Arc<dyn ChannelView>, GrpcStatus> {
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
    fn detail(&self, message: impl Into<String>) -> ErrorDetail {
        ErrorDetail { address: self.address.to_string(), msp_id: self.msp_id.to_string(), message: message.into() }
    }
}

/// The status of a call that a channel could not serve, for a reason that is not the caller's.
fn channel_status(error: &chain::Error) -> GrpcStatus {
    let code = match error.kind() {
        ErrorKind::Retry if matches!(error, chain::Error::TooManyWaiters(_)) => GrpcCode::ResourceExhausted,
        ErrorKind::Retry | ErrorKind::Closed | ErrorKind::Fenced | ErrorKind::Ambiguous => GrpcCode::Unavailable,
        ErrorKind::Rejected => GrpcCode::FailedPrecondition,
        ErrorKind::Corrupt => GrpcCode::DataLoss,
    };
    GrpcStatus::new(code, error.to_string())
}

#[cfg(test)]
mod tests;
