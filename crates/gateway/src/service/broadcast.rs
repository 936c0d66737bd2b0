//! `AtomicBroadcast.Broadcast`: envelopes in, one status each back, in order. A refusal ends the stream, as in Fabric.

use std::sync::Arc;

use bytes::Bytes;
use chain::order::Broadcast as _;
use ledger::Transaction;
use proto::common::Status as Answer;
use proto::orderer::BroadcastResponse;

use super::{OrdererState, stopping};
use crate::rpc::message::frame;
use crate::rpc::{Call, Status};

pub(super) async fn serve(state: &Arc<OrdererState>, call: Call) {
    call.streaming(async |messages, responder| {
        loop {
            let envelope = match state.stop.or_stopped(messages.next()).await {
                None => return stopping(),
                Some(Ok(Some(envelope))) => envelope,
                Some(Ok(None)) => return Status::ok(),
                Some(Err(status)) => return status,
            };
            let (status, info) = order(state, envelope).await;
            let answer = BroadcastResponse { status: status as i32, info };
            if responder.send(frame(&answer)).await.is_err() || status != Answer::Success {
                return Status::ok();
            }
        }
    })
    .await;
}

async fn order(state: &OrdererState, envelope: Bytes) -> (Answer, String) {
    let channel = match Transaction::decode(&envelope) {
        Ok(transaction) => transaction.header().channel().to_owned(),
        Err(invalid) => return (Answer::BadRequest, invalid.reason.to_owned()),
    };
    if let Some(problem) = state.intake.problem() {
        return (Answer::ServiceUnavailable, problem);
    }
    match state.orderer.broadcast(&channel, envelope).await {
        Ok(()) => (Answer::Success, String::new()),
        Err(error) => (error.status(), error.to_string()),
    }
}
