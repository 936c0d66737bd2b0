//! Dispatches each call to the method that its path names.

use std::future::Future;
use std::sync::Arc;

use base::rt::CancellationToken;
use chain::order::Orderer;

use super::deliver::DeliverMethod;
use super::discovery::PeerDirectory;
use super::intake::TransactionIntake;
use super::layout::EndorsementPlanCache;
use super::method::{OrdererMethod, PeerMethod};
use super::service_core::{OrdererServiceCore, PeerServiceConfig, PeerServiceCore};
use crate::events::CallsFailed;
use crate::grpc::connection::GrpcService;
use crate::grpc::permits::{CallLimits, PermitKind, PermitPool};
use crate::grpc::{GrpcStatus, IncomingCall};

/// An organisation's port. Clones share it.
#[derive(Clone)]
pub struct PeerService(Arc<PeerServiceCore>);

/// An orderer's port. Clones share it.
#[derive(Clone)]
pub struct OrdererService(Arc<OrdererServiceCore>);

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
            directory: PeerDirectory::default(),
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
            "/discovery.Discovery/Discover" => PeerMethod::Discover,
            super::health::CHECK => PeerMethod::HealthCheck,
            super::health::WATCH => PeerMethod::HealthWatch,
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
            PeerMethod::ChaincodeEvents => return Box::pin(super::events::serve(state, call)).await,
            PeerMethod::Deliver => return Box::pin(super::deliver::serve_peer(state, call, DeliverMethod::Full)).await,
            PeerMethod::DeliverFiltered => {
                return Box::pin(super::deliver::serve_peer(state, call, DeliverMethod::Filtered)).await;
            }
            PeerMethod::DeliverWithPrivateData => {
                return Box::pin(super::deliver::serve_peer(state, call, DeliverMethod::WithPrivateData)).await;
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
            PeerMethod::Evaluate => {
                call.unary(|message| counted(super::evaluate::evaluate(state, caller, message))).await
            }
            PeerMethod::Endorse => call.unary(|message| counted(super::endorse::endorse(state, caller, message))).await,
            PeerMethod::Submit => call.unary(|message| counted(super::submit::submit(state, caller, message))).await,
            PeerMethod::CommitStatus => {
                call.unary(|message| counted(super::commit_status::commit_status(state, caller, message))).await
            }
            PeerMethod::ProcessProposal => call.unary(|message| super::endorser::process(state, caller, message)).await,
            PeerMethod::Discover => {
                call.unary(|message| counted(super::discovery::discover(state, caller, message))).await
            }
            PeerMethod::HealthCheck => call.unary(super::health::check).await,
            PeerMethod::HealthWatch => Box::pin(super::health::watch(call, &state.stop)).await,
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
            super::health::CHECK => OrdererMethod::HealthCheck,
            super::health::WATCH => OrdererMethod::HealthWatch,
            _ => return None,
        })
    }

    fn message_bytes_max(&self, method: OrdererMethod) -> usize {
        if method == OrdererMethod::Broadcast { usize::MAX } else { REQUEST_BYTES_MAX }
    }

    async fn call(&self, method: OrdererMethod, call: IncomingCall) {
        let state = &self.0;
        let kind = match method {
            OrdererMethod::Broadcast => return Box::pin(super::broadcast::serve(state, call)).await,
            OrdererMethod::Deliver => return Box::pin(super::deliver::serve_orderer(state, call)).await,
            OrdererMethod::HealthWatch => PermitKind::Watch,
            OrdererMethod::HealthCheck => PermitKind::Call,
        };
        let _place = match state.places.acquire(kind, call.caller()) {
            Ok(place) => place,
            Err(status) => return call.reject(&status),
        };
        match kind {
            PermitKind::Watch => Box::pin(super::health::watch(call, &state.stop)).await,
            _ => call.unary(super::health::check).await,
        }
    }
}

/// Bound on requests that carry no payload of their own: signed requests for statuses, events and blocks, and for the
/// port's health. The creator's certificate is most of each.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 10;

pub(super) async fn counted<T>(work: impl Future<Output = Result<T, GrpcStatus>>) -> Result<T, GrpcStatus> {
    let result = work.await;
    if result.is_err() {
        CallsFailed.add(1);
    }
    result
}

#[cfg(test)]
mod tests;
