//! `AtomicBroadcast.Broadcast`: a client sends a stream of envelopes to the orderer, and gets one status for each, in
//! order. A refusal ends the stream, as in Fabric.
//!
//! A stream begins with one of the few permits for unproven streams. Once the orderer has accepted an envelope of the
//! stream, the stream exchanges this permit for one of the signer's organisation. The server ends a stream that sends
//! no envelope for [`IDLE_MAX`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chain::order::Broadcast as _;
use identity::Identity;
use ledger::Transaction;
use proto::common::Status as Answer;
use proto::orderer::BroadcastResponse;

use super::caller_identity::principal;
use super::{OrdererServiceCore, stopping_status};
use crate::grpc::message::frame;
use crate::grpc::permits::{CallPermit, PermitKind, StreamPermit};
use crate::grpc::{GrpcCode, GrpcStatus, IncomingCall};

/// How long a stream may stay idle between envelopes.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The permit that a stream holds.
enum HeldPermit {
    /// Until an envelope was ordered; the orderer's acceptance proves that an authorised writer has signed it.
    Unproven {
        _place: CallPermit,
    },
    Proven {
        _place: StreamPermit,
    },
}

pub(super) async fn serve(state: &Arc<OrdererServiceCore>, call: IncomingCall) {
    let caller = Arc::clone(call.caller());
    let mut held = match state.places.acquire(PermitKind::Unproven, &caller) {
        Ok(_place) => HeldPermit::Unproven { _place },
        Err(status) => return call.reject(&status),
    };
    call.streaming(async |messages, responder| {
        loop {
            let next = tokio::time::timeout(IDLE_MAX, messages.next());
            let envelope = match state.stop.run_until_cancelled(next).await {
                None => return stopping_status(),
                Some(Err(_)) => {
                    return GrpcStatus::new(
                        GrpcCode::Unavailable,
                        "there was no envelope for a while; open another stream",
                    );
                }
                Some(Ok(Ok(Some(envelope)))) => envelope,
                Some(Ok(Ok(None))) => return GrpcStatus::ok(),
                Some(Ok(Err(status))) => return status,
            };
            let (status, info, creator) = order(state, envelope, matches!(held, HeldPermit::Unproven { .. })).await;
            messages.release();
            let answer = frame(&BroadcastResponse { status: status as i32, info });
            if status != Answer::Success {
                return if responder.send_now(answer) { GrpcStatus::ok() } else { rejected_status(status) };
            }
            if let Some(creator) = creator {
                let principal = principal(&creator);
                caller.authenticate(|| principal.clone());
                held = match state.places.acquire_stream(&principal) {
                    Ok(_place) => HeldPermit::Proven { _place },
                    Err(status) => {
                        // The envelope was ordered; its sender should learn that if possible.
                        responder.send_now(answer);
                        return status;
                    }
                };
            }
            if responder.send(answer).await.is_err() {
                return GrpcStatus::ok();
            }
        }
    })
    .await;
}

/// The gRPC status for an answer that cannot be sent itself.
fn rejected_status(answer: Answer) -> GrpcStatus {
    let code = if answer == Answer::ServiceUnavailable { GrpcCode::Unavailable } else { GrpcCode::InvalidArgument };
    GrpcStatus::new(code, format!("the envelope was refused: {}", answer.as_str_name()))
}

/// Orders an envelope. Also returns the signer, if that is asked for and the envelope was ordered.
async fn order(
    state: &OrdererServiceCore,
    envelope: Bytes,
    is_creator_wanted: bool,
) -> (Answer, String, Option<Arc<Identity>>) {
    let (channel, creator) = match Transaction::decode(&envelope) {
        Ok(transaction) => {
            let creator = is_creator_wanted.then(|| transaction.header().creator());
            (transaction.header().channel().to_owned(), creator)
        }
        Err(invalid) => return (Answer::BadRequest, invalid.reason.to_owned(), None),
    };
    if let Some(problem) = state.intake.problem() {
        return (Answer::ServiceUnavailable, problem, None);
    }
    match state.orderer.broadcast(&channel, envelope).await {
        Ok(()) => {
            let creator = creator.zip(state.orderer.channel(&channel));
            let creator = creator.and_then(|(creator, chain)| chain.policies().identify(&creator).ok());
            (Answer::Success, String::new(), creator)
        }
        Err(error) => (error.status(), error.to_string(), None),
    }
}
