//! `AtomicBroadcast.Broadcast`: envelopes in, one status each back, in order. A refusal ends the stream, as in Fabric.
//!
//! A stream begins with one of the few places for those that have proved nothing, and has a place of its signer's
//! organisation once an envelope of it was ordered. Without an envelope for [`IDLE_MAX`] it is ended.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chain::order::Broadcast as _;
use identity::Identity;
use ledger::Transaction;
use proto::common::Status as Answer;
use proto::orderer::BroadcastResponse;

use super::proof::principal;
use super::{OrdererState, stopping};
use crate::rpc::message::frame;
use crate::rpc::places::{Kind, Place, StreamPlace};
use crate::rpc::{Call, Code, Status};

/// How long a stream may stay without an envelope, after one was ordered.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// What a stream holds.
enum Held {
    /// Until an envelope was ordered, which says that somebody who may write has signed it.
    Unproven {
        _place: Place,
    },
    Proven {
        _place: StreamPlace,
    },
}

pub(super) async fn serve(state: &Arc<OrdererState>, call: Call) {
    let caller = Arc::clone(call.caller());
    let mut held = match state.places.enter(Kind::Unproven, &caller) {
        Ok(_place) => Held::Unproven { _place },
        Err(status) => return call.refuse(&status),
    };
    call.streaming(async |messages, responder| {
        loop {
            let next = tokio::time::timeout(IDLE_MAX, messages.next());
            let envelope = match state.stop.or_stopped(next).await {
                None => return stopping(),
                Some(Err(_)) => {
                    return Status::new(Code::Unavailable, "there was no envelope for a while; open another stream");
                }
                Some(Ok(Ok(Some(envelope)))) => envelope,
                Some(Ok(Ok(None))) => return Status::ok(),
                Some(Ok(Err(status))) => return status,
            };
            let (status, info, creator) = order(state, envelope, matches!(held, Held::Unproven { .. })).await;
            messages.release();
            let answer = frame(&BroadcastResponse { status: status as i32, info });
            if status != Answer::Success {
                return if responder.send_now(answer) { Status::ok() } else { refused(status) };
            }
            if let Some(creator) = creator {
                let principal = principal(&creator);
                caller.authenticate(|| principal.clone());
                held = match state.places.enter_stream(&principal) {
                    Ok(_place) => Held::Proven { _place },
                    Err(status) => {
                        // The envelope was ordered, which its sender is to hear if possible.
                        responder.send_now(answer);
                        return status;
                    }
                };
            }
            if responder.send(answer).await.is_err() {
                return Status::ok();
            }
        }
    })
    .await;
}

/// What gRPC says where the answer itself cannot be sent.
fn refused(answer: Answer) -> Status {
    let code = if answer == Answer::ServiceUnavailable { Code::Unavailable } else { Code::InvalidArgument };
    Status::new(code, format!("the envelope was refused: {}", answer.as_str_name()))
}

/// Orders an envelope. Who signed it is answered where that is asked for and it was ordered.
async fn order(
    state: &OrdererState,
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
            let creator = creator.zip(state.orderer.chain(&channel));
            let creator = creator.and_then(|(creator, chain)| chain.rules().identify(&creator).ok());
            (Answer::Success, String::new(), creator)
        }
        Err(error) => (error.status(), error.to_string(), None),
    }
}
