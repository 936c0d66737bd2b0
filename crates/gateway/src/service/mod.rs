//! Fabric's services, on top of `chain`.
//!
//! 1. [`PeerPort`]: what an organisation's port offers: `gateway.Gateway`, `protos.Deliver`, `protos.Endorser`.
//! 2. [`OrdererPort`]: what an orderer's port offers: `orderer.AtomicBroadcast`.
//! 3. Both answer `grpc.health.v1.Health`.
//!
//! Every call whose message is there takes a place among a bounded number; who finds none, or has the share of one
//! connection, is answered `RESOURCE_EXHAUSTED`. Work that occupies a processor for long, which is running contracts, goes into a task of its
//! own, so that a connection's other calls are not kept waiting; all else is answered in the connection's task.

mod admission;
mod assemble;
mod balance;
mod broadcast;
mod commit_status;
mod deliver;
mod endorse;
mod endorser;
mod evaluate;
mod events;
mod health;
mod intake;
mod layout;
mod proposal;
mod seek;
mod submit;

use std::future::Future;
use std::sync::Arc;

use base::rt::{Stop, Task};
use base::{ErrorKind, MspId};
use chain::endorse::{Endorse, EndorseError};
use chain::order::{Broadcast, Orderer};
use chain::view::{ChannelView, PeerView};
use proto::gateway::ErrorDetail;

use crate::events::{CallsFailed, CallsRefused};
use crate::rpc::connection::Service;
use crate::rpc::{Call, Code, Status};
use admission::{Admission, Kind};
use deliver::Form;
use layout::Plans;

pub use admission::Limits;
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
    admission: Admission,
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
    admission: Admission,
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

impl PeerPort {
    /// A port of this peer.
    pub fn new(options: PeerPortOptions) -> PeerPort {
        PeerPort(Arc::new(PeerState {
            peer: options.peer,
            local: options.local,
            others: options.others,
            orderers: options.orderers,
            admission: Admission::new(&options.limits),
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
        OrdererPort(Arc::new(OrdererState { orderer, admission: Admission::new(limits), intake, stop }))
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

    async fn call(&self, method: PeerMethod, call: Call) {
        let state = &self.0;
        let kind = match method {
            PeerMethod::ChaincodeEvents
            | PeerMethod::Deliver
            | PeerMethod::DeliverFiltered
            | PeerMethod::DeliverWithPrivateData => Kind::Stream,
            PeerMethod::HealthWatch => Kind::Watch,
            _ => Kind::Call,
        };
        let Some(_place) = state.admission.enter(kind, &call.held) else { return refuse(call) };
        // Streams are few and live long: their state is kept apart from the much smaller state of calls with one answer.
        match method {
            PeerMethod::Evaluate => call.unary(|message| counted(evaluate::evaluate(state, message))).await,
            PeerMethod::Endorse => call.unary(|message| counted(endorse::endorse(state, message))).await,
            PeerMethod::Submit => call.unary(|message| counted(submit::submit(state, message))).await,
            PeerMethod::CommitStatus => {
                call.unary(|message| counted(commit_status::commit_status(state, message))).await
            }
            PeerMethod::ProcessProposal => call.unary(|message| endorser::process(state, message)).await,
            PeerMethod::HealthCheck => call.unary(health::check).await,
            PeerMethod::ChaincodeEvents => Box::pin(events::serve(state, call)).await,
            PeerMethod::Deliver => Box::pin(deliver::serve_peer(state, call, Form::Full)).await,
            PeerMethod::DeliverFiltered => Box::pin(deliver::serve_peer(state, call, Form::Filtered)).await,
            PeerMethod::DeliverWithPrivateData => {
                Box::pin(deliver::serve_peer(state, call, Form::WithPrivateData)).await
            }
            PeerMethod::HealthWatch => Box::pin(health::watch(call, &state.stop)).await,
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

    async fn call(&self, method: OrdererMethod, call: Call) {
        let state = &self.0;
        let kind = match method {
            OrdererMethod::Broadcast | OrdererMethod::Deliver => Kind::Stream,
            OrdererMethod::HealthWatch => Kind::Watch,
            OrdererMethod::HealthCheck => Kind::Call,
        };
        let Some(_place) = state.admission.enter(kind, &call.held) else { return refuse(call) };
        match method {
            OrdererMethod::Broadcast => Box::pin(broadcast::serve(state, call)).await,
            OrdererMethod::Deliver => Box::pin(deliver::serve_orderer(state, call)).await,
            OrdererMethod::HealthCheck => call.unary(health::check).await,
            OrdererMethod::HealthWatch => Box::pin(health::watch(call, &state.stop)).await,
        }
    }
}

fn refuse(call: Call) {
    CallsRefused.add(1);
    call.refuse(&Status::new(
        Code::ResourceExhausted,
        "the server works on as many calls as it may; retry after a pause that grows",
    ));
}

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

    /// A channel that takes new transactions. One that has stopped still shows what it has and takes nothing new.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`, `UNAVAILABLE`.
    fn live_channel(&self, channel: &str) -> Result<Arc<dyn ChannelView>, Status> {
        self.intake.check()?;
        let Some(found) = self.channel(channel) else {
            return Err(Status::new(Code::FailedPrecondition, format!("channel {channel} is not known here")));
        };
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
