//! `protos.Deliver` at a peer and `AtomicBroadcast.Deliver` at an orderer: streams of blocks, on signed requests.
//!
//! 1. Each message of the client is a request ([`super::seek`]). The stream gets its permit when the signature of its
//!    first request is verified ([`PermitPool::acquire_stream`]). If the server refuses a request, it answers with a
//!    status and ends the stream. If the client's window has no space for the status, the call ends at once with a
//!    gRPC status instead.
//! 2. The server sends the blocks in order, then the status 200. After that the client may send another request. If a
//!    request says so, the stream waits for future blocks. The server ends a stream that sends no request for
//!    [`IDLE_MAX`].
//! 3. Before each block the server checks the client's certificate again, and ends the stream with 403 if it has
//!    expired.
//!
//! The server sends a block as it is stored, without decoding or copying it. A stream holds one block at a time, and
//! waits while the client does not read.

use std::sync::Arc;
use std::time::Duration;

use base::rt::channel::WatchReceiver;
use base::rt::{self, CancellationToken};
use bytes::{BufMut as _, Bytes, BytesMut};
use chain::order::orderer_channel::OrdererChannel;
use chain::private_block::TransactionPrivateData;
use chain::view::ChannelView;
use identity::Identity;
use ledger::Block;
use ledger::rwset::PrivateSet;
use ledger::wire::bytes_field_len;
use prost::Message as _;
use prost::encoding::encode_varint;
use proto::common::Status as Answer;
use proto::protos::{BlockAndPrivateData, DeliverResponse, deliver_response};
use proto::rwset::{CollectionPvtReadWriteSet, NsPvtReadWriteSet, TxPvtReadWriteSet};
use rules::access::ChannelPolicies;

use super::caller_identity::principal;
use super::filtered::filtered;
use super::seek::{BlockRange, SeekRequest};
use super::{OrdererServiceCore, PeerServiceCore, stopping_status};
use crate::events::BlocksDelivered;
use crate::grpc::message::{PREFIX_BYTES, frame, put_prefix};
use crate::grpc::permits::{PermitPool, StreamPermit};
use crate::grpc::{Caller, GrpcCode, GrpcStatus, IncomingCall, MessageStream, Responder};

/// How long a stream may stay idle between requests.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The form in which blocks are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DeliverMethod {
    /// Whole.
    Full,
    /// Transaction ids, codes and event names.
    Filtered,
    /// Whole, with the private data that the reader may have and the peer has.
    WithPrivateData,
}

impl DeliverMethod {
    /// The name under which a channel's configuration may set who may read.
    fn resource(self) -> &'static str {
        match self {
            DeliverMethod::Filtered => "event/FilteredBlock",
            DeliverMethod::Full | DeliverMethod::WithPrivateData => "event/Block",
        }
    }
}

/// The policy for reading an orderer's blocks.
const ORDERER_READERS: &str = "/Channel/Readers";

pub(super) async fn serve_peer(state: &Arc<PeerServiceCore>, call: IncomingCall, form: DeliverMethod) {
    let caller = Arc::clone(call.caller());
    call.streaming(async |messages, responder| {
        let find = |channel: &str| match state.channel(channel) {
            Some(channel) => Ok(DeliverSource::Peer(channel)),
            None if state.peer.knows_channels() => Err(Answer::NotFound),
            None => Err(Answer::ServiceUnavailable),
        };
        serve(
            DeliverContext { method: form, stop: &state.stop, permits: &state.places, caller: &caller, find },
            messages,
            responder,
        )
        .await
    })
    .await;
}

pub(super) async fn serve_orderer(state: &Arc<OrdererServiceCore>, call: IncomingCall) {
    let caller = Arc::clone(call.caller());
    call.streaming(async |messages, responder| {
        let find = |channel: &str| state.orderer.channel(channel).map(DeliverSource::Orderer).ok_or(Answer::NotFound);
        let (form, stop, places) = (DeliverMethod::Full, &state.stop, &state.places);
        serve(DeliverContext { method: form, stop, permits: places, caller: &caller, find }, messages, responder).await
    })
    .await;
}

/// The service and caller of a stream.
struct DeliverContext<'a, F> {
    method: DeliverMethod,
    stop: &'a CancellationToken,
    permits: &'a PermitPool,
    caller: &'a Caller,
    find: F,
}

/// The source of a stream's blocks.
enum DeliverSource {
    Peer(Arc<dyn ChannelView>),
    Orderer(Arc<OrdererChannel>),
}

impl DeliverSource {
    fn policies(&self) -> Arc<ChannelPolicies> {
        match self {
            DeliverSource::Peer(channel) => channel.policies(),
            DeliverSource::Orderer(chain) => chain.policies(),
        }
    }

    fn height(&self) -> u64 {
        match self {
            DeliverSource::Peer(channel) => channel.height(),
            DeliverSource::Orderer(chain) => chain.height(),
        }
    }

    fn heights(&self) -> WatchReceiver<u64> {
        match self {
            DeliverSource::Peer(channel) => channel.committed(),
            DeliverSource::Orderer(chain) => chain.deliverable(),
        }
    }

    async fn read(&self, number: u64) -> Result<Option<Bytes>, chain::Error> {
        match self {
            DeliverSource::Peer(channel) => channel.read_block(number).await,
            DeliverSource::Orderer(chain) => chain.block(number),
        }
    }

    fn may_read(&self, identity: &Arc<Identity>, form: DeliverMethod) -> bool {
        match self {
            DeliverSource::Peer(channel) => channel.policies().may_use(form.resource(), identity),
            DeliverSource::Orderer(chain) => {
                let policy = chain.policies().config().policy(ORDERER_READERS);
                policy.evaluate_identities(std::slice::from_ref(identity)).is_ok()
            }
        }
    }

    async fn stopped(&self) {
        match self {
            DeliverSource::Peer(channel) => channel.stopped().await,
            // An orderer's streams end with its port.
            DeliverSource::Orderer(_) => std::future::pending().await,
        }
    }
}

async fn serve(
    port: DeliverContext<'_, impl Fn(&str) -> Result<DeliverSource, Answer>>,
    messages: &mut MessageStream,
    responder: &mut Responder,
) -> GrpcStatus {
    let mut place = None;
    loop {
        let next = tokio::time::timeout(IDLE_MAX, messages.next());
        let envelope = match port.stop.run_until_cancelled(next).await {
            None => return stopping_status(),
            Some(Err(_)) => {
                return GrpcStatus::new(GrpcCode::Unavailable, "there was no request for a while; open another stream");
            }
            Some(Ok(Ok(Some(envelope)))) => envelope,
            Some(Ok(Ok(None))) => return GrpcStatus::ok(),
            Some(Ok(Err(status))) => return status,
        };
        let answer = match admit(&port, envelope, &mut place) {
            Ok(admitted) => {
                messages.release();
                answer(&port, admitted, responder).await
            }
            Err(refused) => Err(refused),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(StreamEnd::Gone) => return GrpcStatus::ok(),
            Err(StreamEnd::Stopping) => return stopping_status(),
            Err(StreamEnd::Exhausted(status)) => return status,
            // A refused stream holds no permit, so it does not wait for a window either.
            Err(StreamEnd::Refused(answer)) => {
                return if responder.send_now(framed(answer)) { GrpcStatus::ok() } else { status_of(answer) };
            }
        };
        if responder.send(framed(answer)).await.is_err() || answer != Answer::Success {
            return GrpcStatus::ok();
        }
    }
}

fn framed(answer: Answer) -> Bytes {
    frame(&DeliverResponse { r#type: Some(deliver_response::Type::Status(answer as i32)) })
}

/// The gRPC status for an answer that cannot be sent itself.
fn status_of(answer: Answer) -> GrpcStatus {
    let code = match answer {
        Answer::BadRequest => GrpcCode::InvalidArgument,
        Answer::NotFound => GrpcCode::NotFound,
        Answer::ServiceUnavailable => GrpcCode::Unavailable,
        _ => GrpcCode::PermissionDenied,
    };
    GrpcStatus::new(code, format!("the request was refused: {}", answer.as_str_name()))
}

/// Why a stream ends, other than by the answer to an admitted request.
enum StreamEnd {
    Gone,
    Stopping,
    Exhausted(GrpcStatus),
    Refused(Answer),
}

/// A request that passed all checks.
struct AdmittedSeek {
    source: DeliverSource,
    identity: Arc<Identity>,
    /// The request itself, by which the peer knows who asks for private data.
    request: Bytes,
    range: BlockRange,
}

/// Checks one request. The first one that a member has signed takes the stream's permit.
fn admit(
    port: &DeliverContext<'_, impl Fn(&str) -> Result<DeliverSource, Answer>>,
    envelope: Bytes,
    place: &mut Option<StreamPermit>,
) -> Result<AdmittedSeek, StreamEnd> {
    let checked = (|| {
        let now = rt::wall_now();
        let seek = SeekRequest::parse(envelope.clone(), now)?;
        let source = (port.find)(&seek.channel)?;
        let policies = source.policies();
        let identity = seek.signer(&policies)?;
        policies.check_served(&identity, now).map_err(|_| Answer::Forbidden)?;
        if !source.may_read(&identity, port.method) {
            return Err(Answer::Forbidden);
        }
        Ok((seek, source, identity))
    })();
    let (seek, source, identity) = checked.map_err(StreamEnd::Refused)?;
    if place.is_none() {
        let principal = principal(&identity);
        port.caller.authenticate(|| principal.clone());
        *place = Some(port.permits.acquire_stream(&principal).map_err(StreamEnd::Exhausted)?);
    }
    let range = seek.range(source.height()).map_err(StreamEnd::Refused)?;
    Ok(AdmittedSeek { source, identity, request: envelope, range })
}

/// Serves one request; the answer is the status that ends it.
async fn answer(
    port: &DeliverContext<'_, impl Fn(&str) -> Result<DeliverSource, Answer>>,
    admitted: AdmittedSeek,
    responder: &mut Responder,
) -> Result<Answer, StreamEnd> {
    let (form, stop) = (port.method, port.stop);
    let AdmittedSeek { source, identity, request, range: BlockRange { mut next, last, waits, headers_only } } =
        admitted;
    let mut heights = source.heights();
    let mut checked_under = source.policies();
    loop {
        if next >= source.height() && !waits {
            return Ok(Answer::NotFound);
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Err(StreamEnd::Stopping),
            () = checked_under.denied(&identity) => return Ok(Answer::Forbidden),
            above = heights.wait_for(|height| *height > next) => {
                if above.is_err() {
                    return Ok(Answer::ServiceUnavailable);
                }
            }
            () = source.stopped() => return Ok(Answer::ServiceUnavailable),
            () = responder.gone() => return Err(StreamEnd::Gone),
        }
        let policies = source.policies();
        if !Arc::ptr_eq(&policies, &checked_under) {
            // A new configuration may have revoked the reader, or closed the channel to it.
            if policies.identify(identity.serialized()).is_err() || !source.may_read(&identity, form) {
                return Ok(Answer::Forbidden);
            }
            checked_under = policies;
        }
        if checked_under.check_served(&identity, rt::wall_now()).is_err() {
            return Ok(Answer::Forbidden);
        }
        if send_block(&source, next, responder, form, headers_only, &request).await? == SendOutcome::Missing {
            return Ok(Answer::InternalServerError);
        }
        BlocksDelivered.add(1);
        if next >= last {
            return Ok(Answer::Success);
        }
        next += 1;
    }
}

#[derive(PartialEq, Eq)]
enum SendOutcome {
    Whole,
    Missing,
}

async fn send_block(
    source: &DeliverSource,
    number: u64,
    responder: &mut Responder,
    form: DeliverMethod,
    headers_only: bool,
    request: &Bytes,
) -> Result<SendOutcome, StreamEnd> {
    let missing = |error: Option<chain::Error>| {
        tracing::error!(block = number, error = error.map(|error| error.to_string()), "a block cannot be delivered");
        SendOutcome::Missing
    };
    if form == DeliverMethod::Filtered
        && let DeliverSource::Peer(channel) = source
    {
        let block = match channel.committed_block(number).await {
            Ok(Some(block)) => block,
            Ok(None) => return Ok(missing(None)),
            Err(error) => return Ok(missing(Some(error))),
        };
        let filtered = filtered(&block, channel.policies().channel().as_str());
        let response = DeliverResponse { r#type: Some(deliver_response::Type::FilteredBlock(filtered)) };
        return responder.send(frame(&response)).await.map(|()| SendOutcome::Whole).map_err(|_| StreamEnd::Gone);
    }
    let mut bytes = match source.read(number).await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(missing(None)),
        Err(error) => return Ok(missing(Some(error))),
    };
    if headers_only {
        bytes = match Block::parse(&bytes) {
            Ok(block) => {
                let [header, _, metadata] = block.parts();
                [header, metadata].concat().into()
            }
            Err(error) => return Ok(missing(Some(error.into()))),
        };
    }
    let mut private = Bytes::new();
    if form == DeliverMethod::WithPrivateData
        && let DeliverSource::Peer(channel) = source
    {
        private = match channel.private_data(number, request).await {
            Ok(found) => private_map(found),
            Err(error) => return Ok(missing(Some(error))),
        };
    }
    // The fields around the block, then the block itself, then its private data.
    responder.send(response_prefix(form, bytes.len(), private.len())).await.map_err(|_| StreamEnd::Gone)?;
    responder.send(bytes).await.map_err(|_| StreamEnd::Gone)?;
    if !private.is_empty() {
        responder.send(private).await.map_err(|_| StreamEnd::Gone)?;
    }
    Ok(SendOutcome::Whole)
}

/// The field `private_data_map` of a `BlockAndPrivateData`.
fn private_map(found: Vec<TransactionPrivateData>) -> Bytes {
    let sets = found.into_iter().map(|TransactionPrivateData { position, sets }| {
        let mut namespaces: Vec<NsPvtReadWriteSet> = Vec::new();
        for PrivateSet { namespace, collection, writes } in sets {
            let set = CollectionPvtReadWriteSet { collection_name: collection, rwset: writes };
            match namespaces.last_mut().filter(|last| last.namespace == namespace) {
                Some(last) => last.collection_pvt_rwset.push(set),
                None => namespaces.push(NsPvtReadWriteSet { namespace, collection_pvt_rwset: vec![set] }),
            }
        }
        (u64::from(position), TxPvtReadWriteSet { ns_pvt_rwset: namespaces, ..TxPvtReadWriteSet::default() })
    });
    let map = BlockAndPrivateData { block: None, private_data_map: sets.collect() };
    map.encode_to_vec().into()
}

/// The encoding of a `DeliverResponse` with its prefix, up to the bytes of the block in it, which those of the private data follow.
fn response_prefix(form: DeliverMethod, block_bytes: usize, private_bytes: usize) -> Bytes {
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + 16);
    let key = |out: &mut BytesMut, number: u8, length: usize| {
        out.put_u8(number << 3 | 2);
        encode_varint(length as u64, out);
    };
    let field = bytes_field_len(1, block_bytes);
    if form == DeliverMethod::WithPrivateData {
        let field = field + private_bytes;
        put_prefix(&mut out, bytes_field_len(4, field));
        key(&mut out, 4, field);
        key(&mut out, 1, block_bytes);
    } else {
        put_prefix(&mut out, field);
        key(&mut out, 2, block_bytes);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_and_a_block_are_a_response() {
        for size in [0usize, 1, 127, 128, 20_000] {
            let block = proto::common::Block {
                data: Some(proto::common::BlockData { data: vec![Bytes::from(vec![7; size])] }),
                ..Default::default()
            };
            let bytes = block.encode_to_vec();
            let full = DeliverResponse { r#type: Some(deliver_response::Type::Block(block.clone())) };
            assert_eq!([&response_prefix(DeliverMethod::Full, bytes.len(), 0)[..], &bytes].concat(), frame(&full));
            for sets in [0, 1, 3] {
                let set = |number: usize| PrivateSet {
                    namespace: format!("contract{}", number / 2),
                    collection: format!("collection{number}"),
                    writes: Bytes::from(vec![9; size]),
                };
                let found = TransactionPrivateData { position: 5, sets: (0..sets).map(set).collect() };
                let map = private_map(if sets == 0 { Vec::new() } else { vec![found] });
                let sent = [&response_prefix(DeliverMethod::WithPrivateData, bytes.len(), map.len())[..], &bytes, &map];
                let mut private = BlockAndPrivateData::decode(map.clone()).expect("it was just encoded");
                assert_eq!(private.private_data_map.len(), usize::from(sets > 0));
                private.block = Some(block.clone());
                let private = DeliverResponse { r#type: Some(deliver_response::Type::BlockAndPrivateData(private)) };
                assert_eq!(sent.concat(), frame(&private));
            }
        }
    }
}
