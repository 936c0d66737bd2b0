//! Fabric's services, on top of `chain`.
//!
//! 1. [`PeerPort`]: what an organisation's port offers: `gateway.Gateway`, `protos.Deliver`, `protos.Endorser`.
//! 2. [`OrdererPort`]: what an orderer's port offers: `orderer.AtomicBroadcast`.
//! 3. Both answer `grpc.health.v1.Health`.
//!
//! Every call whose message is there takes a place among a bounded number, and a stream does so once it has proved who
//! opened it ([`crate::rpc::places`]); who finds none is answered `RESOURCE_EXHAUSTED`. A call whose signature was verified
//! makes its connection a member's ([`crate::rpc::Caller::authenticate`]). Work that occupies a processor for long, which is running contracts, goes into a task of its
//! own, so that a connection's other calls are not kept waiting; all else is answered in the connection's task.

mod assemble;
mod balance;
mod broadcast;
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
mod proof;
mod proposal;
mod seek;
mod submit;

use std::future::Future;
use std::sync::Arc;

use base::rt::{Stop, Task};
use base::{ErrorKind, MspId};
use bytes::Bytes;
use chain::endorse::{Endorse, EndorseError};
use chain::order::{Broadcast, Orderer};
use chain::view::{ChannelView, PeerView};
use ledger::Transaction;
use proto::gateway::ErrorDetail;

use crate::events::CallsFailed;
use crate::rpc::connection::Service;
use crate::rpc::places::{Kind, Places};
use crate::rpc::{Call, Code, Status};
use deliver::Form;
use layout::Plans;
use proposal::ProposalRequest;
use seek::Seek;
use submit::Submission;

pub use crate::rpc::places::Limits;
pub use balance::Balanced;
pub use intake::Intake;

/// Somebody who endorses, for one organisation.
#[derive(Clone)]
pub struct Endorser {
    /// The organisation.
    pub msp_id: MspId,
    /// Where it is, for error details.
    pub address: Arc<str>,
    /// What runs proposals.
    pub endorse: Arc<dyn Endorse>,
}

/// Somebody who orders.
#[derive(Clone)]
pub struct OrderingNode {
    /// The organisation.
    pub msp_id: MspId,
    /// Where it is, for error details.
    pub address: Arc<str>,
    /// What takes envelopes.
    pub broadcast: Arc<dyn Broadcast>,
}

/// What an organisation's port is made of.
pub struct PeerPortOptions {
    /// The organisation's own peer, wherever it runs.
    pub peer: Arc<dyn PeerView>,
    /// The same peer as an endorser.
    pub local: Endorser,
    /// The endorsers of other organisations, one each.
    pub others: Vec<Endorser>,
    /// Whom to send envelopes to; tried in turn.
    pub orderers: Vec<OrderingNode>,
    /// Bounds.
    pub limits: Limits,
    /// Whether new transactions are taken.
    pub intake: Intake,
    /// Ends streams.
    pub stop: Stop,
}

/// An organisation's port. Clones share it.
#[derive(Clone)]
pub struct PeerPort(Arc<PeerState>);

pub(crate) struct PeerState {
    peer: Arc<dyn PeerView>,
    local: Endorser,
    others: Vec<Endorser>,
    orderers: Vec<OrderingNode>,
    places: Places,
    intake: Intake,
    plans: Plans,
    stop: Stop,
    /// Spreads endorsements over equal layouts.
    turn: std::sync::atomic::AtomicUsize,
}

/// An orderer's port. Clones share it.
#[derive(Clone)]
pub struct OrdererPort(Arc<OrdererState>);

pub(crate) struct OrdererState {
    orderer: Arc<Orderer>,
    places: Places,
    intake: Intake,
    stop: Stop,
}

/// A method of [`PeerPort`].
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

/// A method of [`OrdererPort`].
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
    /// What the call would be refused with, as far as it has a status of gRPC.
    pub fn read(self, message: Bytes) -> Result<(), Status> {
        match self {
            PeerMethod::Evaluate | PeerMethod::Endorse => ProposalRequest::read(&message).map(drop),
            PeerMethod::Submit => Submission::read(&message).map(drop),
            PeerMethod::CommitStatus => commit_status::read(message).map(drop),
            PeerMethod::ChaincodeEvents => events::read(message).map(drop),
            // The endorser reads it.
            PeerMethod::ProcessProposal => Ok(()),
            PeerMethod::Deliver | PeerMethod::DeliverFiltered | PeerMethod::DeliverWithPrivateData => {
                Seek::read(message)
            }
            PeerMethod::HealthCheck | PeerMethod::HealthWatch => health::read(message).map(drop),
        }
    }
}

impl OrdererMethod {
    /// As [`PeerMethod::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(self, message: Bytes) -> Result<(), Status> {
        match self {
            OrdererMethod::Broadcast => Transaction::decode(&message)
                .map(drop)
                .map_err(|invalid| Status::invalid_argument(invalid.reason.to_owned())),
            OrdererMethod::Deliver => Seek::read(message),
            OrdererMethod::HealthCheck | OrdererMethod::HealthWatch => health::read(message).map(drop),
        }
    }
}

impl PeerPort {
    /// A port of this peer.
    pub fn new(options: PeerPortOptions) -> PeerPort {
        PeerPort(Arc::new(PeerState {
            peer: options.peer,
            local: options.local,
            others: options.others,
            orderers: options.orderers,
            places: Places::new(&options.limits),
            intake: options.intake,
            plans: Plans::default(),
            stop: options.stop,
            turn: std::sync::atomic::AtomicUsize::new(0),
        }))
    }
}

impl OrdererPort {
    /// A port of this orderer.
    pub fn new(orderer: Arc<Orderer>, limits: &Limits, intake: Intake, stop: Stop) -> OrdererPort {
        OrdererPort(Arc::new(OrdererState { orderer, places: Places::new(limits), intake, stop }))
    }
}

impl Service for PeerPort {
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

    async fn call(&self, method: PeerMethod, call: Call) {
        let state = &self.0;
        // Streams are few and live long: their state is kept apart from the much smaller state of calls with one answer.
        let kind = match method {
            PeerMethod::ChaincodeEvents => return Box::pin(events::serve(state, call)).await,
            PeerMethod::Deliver => return Box::pin(deliver::serve_peer(state, call, Form::Full)).await,
            PeerMethod::DeliverFiltered => return Box::pin(deliver::serve_peer(state, call, Form::Filtered)).await,
            PeerMethod::DeliverWithPrivateData => {
                return Box::pin(deliver::serve_peer(state, call, Form::WithPrivateData)).await;
            }
            PeerMethod::HealthWatch => Kind::Watch,
            _ => Kind::Call,
        };
        let _place = match state.places.enter(kind, call.caller()) {
            Ok(place) => place,
            Err(status) => return call.refuse(&status),
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

impl Service for OrdererPort {
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

    async fn call(&self, method: OrdererMethod, call: Call) {
        let state = &self.0;
        let kind = match method {
            OrdererMethod::Broadcast => return Box::pin(broadcast::serve(state, call)).await,
            OrdererMethod::Deliver => return Box::pin(deliver::serve_orderer(state, call)).await,
            OrdererMethod::HealthWatch => Kind::Watch,
            OrdererMethod::HealthCheck => Kind::Call,
        };
        let _place = match state.places.enter(kind, call.caller()) {
            Ok(place) => place,
            Err(status) => return call.refuse(&status),
        };
        match kind {
            Kind::Watch => Box::pin(health::watch(call, &state.stop)).await,
            _ => call.unary(health::check).await,
        }
    }
}

/// Requests that ask for something and bring nothing: signed requests for statuses, events and blocks, and for the
/// port's health. The creator's certificate is most of each.
const REQUEST_BYTES_MAX: usize = 64 << 10;

async fn counted<T>(work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let result = work.await;
    if result.is_err() {
        CallsFailed.add(1);
    }
    result
}

/// Runs work that occupies a processor in a task of its own; dropping the future drops the work.
async fn in_a_task<T: Send + 'static>(
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let task: Task<_> = base::rt::spawn(work);
    task.abort_on_drop().await.unwrap_or_else(|_| Err(stopping()))
}

fn stopping() -> Status {
    Status::new(Code::Unavailable, "the server is stopping")
}

impl PeerState {
    fn channel(&self, channel: &str) -> Option<Arc<dyn ChannelView>> {
        self.peer.channel(channel)
    }

    /// A channel that the peer has joined.
    ///
    /// # Errors
    /// The code given; `UNAVAILABLE` while the peer's channels are not known yet, which a client may try again.
    fn known_channel(&self, channel: &str, unknown: Code) -> Result<Arc<dyn ChannelView>, Status> {
        self.channel(channel).ok_or_else(|| {
            if self.peer.knows_channels() {
                Status::new(unknown, format!("channel {channel} is not known here"))
            } else {
                Status::new(Code::Unavailable, "the peer is starting, and its channels are not known yet; retry later")
            }
        })
    }

    /// A channel that takes new transactions. One that has stopped still shows what it has and takes nothing new.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`, `UNAVAILABLE`.
    fn live_channel(&self, channel: &str) -> Result<Arc<dyn ChannelView>, Status> {
        self.intake.check()?;
        let found = self.known_channel(channel, Code::FailedPrecondition)?;
        match found.failure() {
            None => Ok(found),
            Some(error) => {
                let (channel, cause) = (channel.to_owned(), error.to_string());
                Err(Status::new(Code::Unavailable, EndorseError::ChannelStopped { channel, cause }.to_string()))
            }
        }
    }
}

impl Endorser {
    fn detail(&self, message: impl Into<String>) -> ErrorDetail {
        ErrorDetail { address: self.address.to_string(), msp_id: self.msp_id.to_string(), message: message.into() }
    }
}

/// The status of a call that a channel could not serve for a reason that is not the caller's.
fn of_channel(error: &chain::Error) -> Status {
    let code = match error.kind() {
        ErrorKind::Retry if matches!(error, chain::Error::TooManyWaiters(_)) => Code::ResourceExhausted,
        ErrorKind::Retry | ErrorKind::Closed | ErrorKind::Fenced | ErrorKind::Ambiguous => Code::Unavailable,
        ErrorKind::Rejected => Code::FailedPrecondition,
        ErrorKind::Corrupt => Code::DataLoss,
    };
    Status::new(code, error.to_string())
}

#[cfg(test)]
mod tests;
