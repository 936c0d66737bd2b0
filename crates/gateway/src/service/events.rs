//! `Gateway.ChaincodeEvents`: the events of one contract's valid transactions, a block at a time.
//!
//! A stream holds the events of one block at a time. While the client does not read, the stream waits, and later
//! continues where it stopped.

use std::sync::Arc;

use base::TxId;
use bytes::Bytes;
use chain::commit::recent::CommittedBlock;
use chain::view::ChannelView;
use identity::Identity;
use proto::gateway::{ChaincodeEventsRequest, ChaincodeEventsResponse, SignedChaincodeEventsRequest};
use proto::orderer::seek_position;
use proto::protos::ChaincodeEvent;

use super::caller_identity::principal;
use super::commit_status::{Signature, authorized};
use super::{PeerServiceCore, channel_status, stopping_status};
use crate::grpc::message::{decode, frame};
use crate::grpc::{GrpcCode, GrpcStatus, IncomingCall, Responder};

/// The name under which a channel's configuration may set who may listen.
const RESOURCE: &str = "gateway/ChaincodeEvents";

pub(super) async fn serve(state: &Arc<PeerServiceCore>, call: IncomingCall) {
    let caller = Arc::clone(call.caller());
    call.streaming(async |messages, responder| {
        let prepared = async {
            let message = messages.only().await?;
            let (signed, request) = read(message)?;
            let signature =
                Signature { identity: &request.identity, signed: &signed.request, signature: &signed.signature };
            let (channel, identity) = authorized(state, &request.channel_id, &signature, RESOURCE)?;
            let principal = principal(&identity);
            caller.authenticate(|| principal.clone());
            let place = state.places.acquire_stream(&principal)?;
            Ok((prepare(channel, request).await?, identity, place))
        };
        match prepared.await {
            Ok((mut stream, identity, _place)) => {
                messages.release();
                stream.run(state, &identity, responder).await
            }
            Err(status) => status,
        }
    })
    .await;
}

/// A request, with the bytes that were signed.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(super) fn read(message: Bytes) -> Result<(SignedChaincodeEventsRequest, ChaincodeEventsRequest), GrpcStatus> {
    let signed: SignedChaincodeEventsRequest = decode(message)?;
    let request = decode(signed.request.clone())?;
    Ok((signed, request))
}

struct EventStream {
    channel: Arc<dyn ChannelView>,
    contract: String,
    /// The next block to examine.
    next: u64,
    /// In the first block, transactions up to this one are left out.
    after: Option<TxId>,
}

async fn prepare(channel: Arc<dyn ChannelView>, request: ChaincodeEventsRequest) -> Result<EventStream, GrpcStatus> {
    if !request.after_transaction_id.is_empty() {
        let after = TxId::new(request.after_transaction_id);
        if let Some(status) = channel.tx_status(&after).await.map_err(|error| channel_status(&error))? {
            let next = status.block;
            return Ok(EventStream { channel, contract: request.chaincode_id, next, after: Some(after) });
        }
    }
    let next = match request.start_position.and_then(|position| position.r#type) {
        None | Some(seek_position::Type::NextCommit(_)) => channel.height(),
        Some(seek_position::Type::Specified(specified)) => specified.number,
        Some(_) => {
            return Err(GrpcStatus::invalid_argument("events start at the next commit or at a block that is named"));
        }
    };
    Ok(EventStream { channel, contract: request.chaincode_id, next, after: None })
}

impl EventStream {
    async fn run(&mut self, state: &PeerServiceCore, listener: &Identity, responder: &mut Responder) -> GrpcStatus {
        let channel = Arc::clone(&self.channel);
        if responder.start().is_err() {
            return GrpcStatus::ok();
        }
        let denied = |reason: String| GrpcStatus::new(GrpcCode::PermissionDenied, reason);
        let mut committed = self.channel.committed();
        let mut checked_under = channel.policies();
        loop {
            let next = self.next;
            tokio::select! {
                biased;
                () = state.stop.cancelled() => return stopping_status(),
                () = checked_under.denied(listener) => return denied(identity::Error::Denied.to_string()),
                above = committed.wait_for(|height| *height > next) => {
                    if above.is_err() {
                        return stopping_status();
                    }
                }
                () = self.channel.stopped() => {
                    return GrpcStatus::new(GrpcCode::Unavailable, "the channel has stopped at this peer");
                }
                () = responder.gone() => return GrpcStatus::ok(),
            }
            let policies = channel.policies();
            if !Arc::ptr_eq(&policies, &checked_under) {
                // A new configuration may have revoked the listener, or closed the channel to it.
                let may_listen =
                    policies.identify(listener.serialized()).map(|known| policies.may_use(RESOURCE, &known));
                if !may_listen.unwrap_or(false) {
                    return denied(format!("the channel's configuration no longer lets the caller use {RESOURCE}"));
                }
                checked_under = policies;
            }
            let block = match self.channel.committed_block(self.next).await {
                Ok(Some(block)) => block,
                Ok(None) => return GrpcStatus::new(GrpcCode::DataLoss, format!("block {} is not there", self.next)),
                Err(error) => return channel_status(&error),
            };
            self.next += 1;
            let events = self.events(&block);
            if events.is_empty() {
                continue;
            }
            let response = ChaincodeEventsResponse { events, block_number: block.number() };
            if responder.send(frame(&response)).await.is_err() {
                return GrpcStatus::ok();
            }
        }
    }

    fn events(&mut self, block: &CommittedBlock) -> Vec<ChaincodeEvent> {
        let mut skipping = self.after.take();
        let mut events = Vec::new();
        for transaction in block.transactions() {
            if let (Some(after), Some(tx_id)) = (&skipping, &transaction.tx_id) {
                if tx_id == after {
                    skipping = None;
                }
                continue;
            }
            if !transaction.code.is_valid() {
                continue;
            }
            if let Some(event) = transaction.event()
                && event.chaincode == self.contract
            {
                events.push(ChaincodeEvent {
                    chaincode_id: event.chaincode.to_owned(),
                    tx_id: event.tx_id.to_owned(),
                    event_name: event.name.to_owned(),
                    payload: event.payload.clone(),
                });
            }
        }
        events
    }
}
