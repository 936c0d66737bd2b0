//! `protos.Deliver` at a peer and `AtomicBroadcast.Deliver` at an orderer: blocks, on signed request.
//!
//! 1. Each message of the client is a request ([`super::seek`]). A refusal is answered with a status, and ends the stream;
//!    where the client's window has no room for it, the call ends with a status of gRPC at once. A stream has a place once
//!    a request's signature was verified ([`Places::enter_stream`]).
//! 2. Blocks follow in order, waiting for those to come where the request says so, then the status 200, then the next
//!    request.
//!    A stream without a request for [`IDLE_MAX`] is ended.
//! 3. Before each block the session is looked at: a certificate that has expired ends it with 403.
//!
//! A block is sent as it is stored, without being decoded or copied. The stream holds one block; a client that does not
//! read stops it.

use std::sync::Arc;
use std::time::Duration;

use base::rt::channel::WatchReceiver;
use base::rt::{self, Stop};
use bytes::{BufMut as _, Bytes, BytesMut};
use chain::access::Rules;
use chain::commit::recent::CommittedBlock;
use chain::order::chain::Chain;
use chain::view::ChannelView;
use identity::Identity;
use ledger::Block;
use ledger::wire::bytes_field_len;
use prost::encoding::encode_varint;
use proto::common::{HeaderType, Status as Answer};
use proto::protos::filtered_transaction::Data;
use proto::protos::{
    ChaincodeEvent, DeliverResponse, FilteredBlock, FilteredChaincodeAction, FilteredTransaction,
    FilteredTransactionActions, deliver_response,
};

use super::proof::principal;
use super::seek::{Range, Seek};
use super::{OrdererState, PeerState, stopping};
use crate::events::BlocksDelivered;
use crate::rpc::message::{PREFIX_BYTES, frame, put_prefix};
use crate::rpc::places::{Places, StreamPlace};
use crate::rpc::{Call, Caller, Code, Messages, Responder, Status};

/// How long a stream may stay without a request, after one was served.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How blocks are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Whole.
    Full,
    /// Transaction ids, codes and event names.
    Filtered,
    /// Whole, with the private data that there is, which is none.
    WithPrivateData,
}

impl Form {
    /// The name under which a channel's configuration may set who reads.
    fn resource(self) -> &'static str {
        match self {
            Form::Filtered => "event/FilteredBlock",
            Form::Full | Form::WithPrivateData => "event/Block",
        }
    }
}

/// Who may read the blocks of an orderer.
const ORDERER_READERS: &str = "/Channel/Readers";

pub(super) async fn serve_peer(state: &Arc<PeerState>, call: Call, form: Form) {
    let caller = Arc::clone(call.caller());
    call.streaming(async |messages, responder| {
        let find = |channel: &str| match state.channel(channel) {
            Some(channel) => Ok(Source::Peer(channel)),
            None if state.peer.knows_channels() => Err(Answer::NotFound),
            None => Err(Answer::ServiceUnavailable),
        };
        serve(Port { form, stop: &state.stop, places: &state.places, caller: &caller, find }, messages, responder).await
    })
    .await;
}

pub(super) async fn serve_orderer(state: &Arc<OrdererState>, call: Call) {
    let caller = Arc::clone(call.caller());
    call.streaming(async |messages, responder| {
        let find = |channel: &str| state.orderer.chain(channel).map(Source::Orderer).ok_or(Answer::NotFound);
        let (form, stop, places) = (Form::Full, &state.stop, &state.places);
        serve(Port { form, stop, places, caller: &caller, find }, messages, responder).await
    })
    .await;
}

/// Where a stream was opened, and by whom.
struct Port<'a, F> {
    form: Form,
    stop: &'a Stop,
    places: &'a Places,
    caller: &'a Caller,
    find: F,
}

/// Where blocks come from.
enum Source {
    Peer(Arc<dyn ChannelView>),
    Orderer(Arc<Chain>),
}

impl Source {
    fn rules(&self) -> &Arc<Rules> {
        match self {
            Source::Peer(channel) => channel.rules(),
            Source::Orderer(chain) => chain.rules(),
        }
    }

    fn height(&self) -> u64 {
        match self {
            Source::Peer(channel) => channel.height(),
            Source::Orderer(chain) => chain.height(),
        }
    }

    fn heights(&self) -> WatchReceiver<u64> {
        match self {
            Source::Peer(channel) => channel.committed(),
            Source::Orderer(chain) => chain.durable(),
        }
    }

    async fn read(&self, number: u64) -> Result<Option<Bytes>, chain::Error> {
        match self {
            Source::Peer(channel) => channel.read_block(number).await,
            Source::Orderer(chain) => chain.block(number),
        }
    }

    fn may_read(&self, identity: &Arc<Identity>, form: Form) -> bool {
        match self {
            Source::Peer(channel) => channel.rules().may_use(form.resource(), identity),
            Source::Orderer(chain) => {
                let policy = chain.rules().config().policy(ORDERER_READERS);
                policy.evaluate_identities(std::slice::from_ref(identity)).is_ok()
            }
        }
    }

    async fn stopped(&self) {
        match self {
            Source::Peer(channel) => channel.stopped().await,
            // Its streams end with the port.
            Source::Orderer(_) => std::future::pending().await,
        }
    }
}

async fn serve(
    port: Port<'_, impl Fn(&str) -> Result<Source, Answer>>,
    messages: &mut Messages,
    responder: &mut Responder,
) -> Status {
    let mut place = None;
    loop {
        let next = tokio::time::timeout(IDLE_MAX, messages.next());
        let envelope = match port.stop.or_stopped(next).await {
            None => return stopping(),
            Some(Err(_)) => {
                return Status::new(Code::Unavailable, "there was no request for a while; open another stream");
            }
            Some(Ok(Ok(Some(envelope)))) => envelope,
            Some(Ok(Ok(None))) => return Status::ok(),
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
            Err(Ended::Gone) => return Status::ok(),
            Err(Ended::Stopping) => return stopping(),
            Err(Ended::Exhausted(status)) => return status,
            // A stream that is refused holds nothing, so it does not wait for a window either.
            Err(Ended::Refused(answer)) => {
                return if responder.send_now(framed(answer)) { Status::ok() } else { status_of(answer) };
            }
        };
        if responder.send(framed(answer)).await.is_err() || answer != Answer::Success {
            return Status::ok();
        }
    }
}

fn framed(answer: Answer) -> Bytes {
    frame(&DeliverResponse { r#type: Some(deliver_response::Type::Status(answer as i32)) })
}

/// What gRPC says where the answer itself cannot be sent.
fn status_of(answer: Answer) -> Status {
    let code = match answer {
        Answer::BadRequest => Code::InvalidArgument,
        Answer::NotFound => Code::NotFound,
        Answer::ServiceUnavailable => Code::Unavailable,
        _ => Code::PermissionDenied,
    };
    Status::new(code, format!("the request was refused: {}", answer.as_str_name()))
}

/// Why a stream ends, other than by the answer to a request that was served.
enum Ended {
    Gone,
    Stopping,
    Exhausted(Status),
    Refused(Answer),
}

/// A request that is served.
struct Admitted {
    source: Source,
    identity: Arc<Identity>,
    range: Range,
}

/// Checks one request. The first that is signed by a member takes the stream's place.
fn admit(
    port: &Port<'_, impl Fn(&str) -> Result<Source, Answer>>,
    envelope: Bytes,
    place: &mut Option<StreamPlace>,
) -> Result<Admitted, Ended> {
    let checked = (|| {
        let now = rt::wall_now();
        let seek = Seek::parse(envelope, now)?;
        let source = (port.find)(&seek.channel)?;
        let identity = seek.signer(source.rules())?;
        source.rules().check_served(&identity, now).map_err(|_| Answer::Forbidden)?;
        if !source.may_read(&identity, port.form) {
            return Err(Answer::Forbidden);
        }
        Ok((seek, source, identity))
    })();
    let (seek, source, identity) = checked.map_err(Ended::Refused)?;
    if place.is_none() {
        let principal = principal(&identity);
        port.caller.authenticate(|| principal.clone());
        *place = Some(port.places.enter_stream(&principal).map_err(Ended::Exhausted)?);
    }
    let range = seek.range(source.height()).map_err(Ended::Refused)?;
    Ok(Admitted { source, identity, range })
}

/// Serves one request; the answer is the status that ends it.
async fn answer(
    port: &Port<'_, impl Fn(&str) -> Result<Source, Answer>>,
    admitted: Admitted,
    responder: &mut Responder,
) -> Result<Answer, Ended> {
    let (form, stop) = (port.form, port.stop);
    let Admitted { source, identity, range: Range { mut next, last, waits, headers_only } } = admitted;
    let mut heights = source.heights();
    loop {
        if next >= source.height() && !waits {
            return Ok(Answer::NotFound);
        }
        tokio::select! {
            biased;
            () = stop.stopped() => return Err(Ended::Stopping),
            () = source.rules().denied(&identity) => return Ok(Answer::Forbidden),
            above = heights.wait_for(|height| *height > next) => {
                if above.is_err() {
                    return Ok(Answer::ServiceUnavailable);
                }
            }
            () = source.stopped() => return Ok(Answer::ServiceUnavailable),
            () = responder.gone() => return Err(Ended::Gone),
        }
        if source.rules().check_served(&identity, rt::wall_now()).is_err() {
            return Ok(Answer::Forbidden);
        }
        if send_block(&source, next, responder, form, headers_only).await? == Sent::Missing {
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
enum Sent {
    Whole,
    Missing,
}

async fn send_block(
    source: &Source,
    number: u64,
    responder: &mut Responder,
    form: Form,
    headers_only: bool,
) -> Result<Sent, Ended> {
    let missing = |error: Option<chain::Error>| {
        tracing::error!(block = number, error = error.map(|error| error.to_string()), "a block cannot be delivered");
        Sent::Missing
    };
    if form == Form::Filtered
        && let Source::Peer(channel) = source
    {
        let block = match channel.committed_block(number).await {
            Ok(Some(block)) => block,
            Ok(None) => return Ok(missing(None)),
            Err(error) => return Ok(missing(Some(error))),
        };
        let filtered = filtered(&block, channel.rules().channel().as_str());
        let response = DeliverResponse { r#type: Some(deliver_response::Type::FilteredBlock(filtered)) };
        return responder.send(frame(&response)).await.map(|()| Sent::Whole).map_err(|_| Ended::Gone);
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
    // The fields around the block, then the block itself.
    responder.send(heading(form, bytes.len())).await.map_err(|_| Ended::Gone)?;
    responder.send(bytes).await.map_err(|_| Ended::Gone)?;
    Ok(Sent::Whole)
}

/// All of a `DeliverResponse` with its prefix, up to the bytes of the block in it.
fn heading(form: Form, block_bytes: usize) -> Bytes {
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + 16);
    let key = |out: &mut BytesMut, number: u8, length: usize| {
        out.put_u8(number << 3 | 2);
        encode_varint(length as u64, out);
    };
    let field = bytes_field_len(1, block_bytes);
    if form == Form::WithPrivateData {
        put_prefix(&mut out, bytes_field_len(1, field));
        key(&mut out, 4, field);
        key(&mut out, 1, block_bytes);
    } else {
        put_prefix(&mut out, field);
        key(&mut out, 2, block_bytes);
    }
    out.freeze()
}

/// A block without its contents. Events are named even of invalid transactions, as in Fabric; their payload is left out.
fn filtered(block: &CommittedBlock, channel: &str) -> FilteredBlock {
    let transactions = block.transactions().iter().map(|transaction| {
        let event = transaction.event().map(|event| FilteredChaincodeAction {
            chaincode_event: Some(ChaincodeEvent {
                chaincode_id: event.chaincode.to_owned(),
                tx_id: event.tx_id.to_owned(),
                event_name: event.name.to_owned(),
                payload: Bytes::new(),
            }),
        });
        let is_endorser_transaction = transaction.kind == HeaderType::EndorserTransaction as i32;
        let actions = FilteredTransactionActions { chaincode_actions: event.into_iter().collect() };
        FilteredTransaction {
            txid: transaction.tx_id.as_ref().map(ToString::to_string).unwrap_or_default(),
            r#type: transaction.kind,
            tx_validation_code: i32::from(transaction.code.0),
            data: is_endorser_transaction.then_some(Data::TransactionActions(actions)),
        }
    });
    FilteredBlock {
        channel_id: channel.to_owned(),
        number: block.number(),
        filtered_transactions: transactions.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use proto::protos::BlockAndPrivateData;

    #[test]
    fn a_heading_and_a_block_are_a_response() {
        for size in [0usize, 1, 127, 128, 20_000] {
            let block = proto::common::Block {
                data: Some(proto::common::BlockData { data: vec![Bytes::from(vec![7; size])] }),
                ..Default::default()
            };
            let bytes = block.encode_to_vec();
            let full = DeliverResponse { r#type: Some(deliver_response::Type::Block(block.clone())) };
            assert_eq!([&heading(Form::Full, bytes.len())[..], &bytes].concat(), frame(&full));
            let private = BlockAndPrivateData { block: Some(block), ..Default::default() };
            let private = DeliverResponse { r#type: Some(deliver_response::Type::BlockAndPrivateData(private)) };
            assert_eq!([&heading(Form::WithPrivateData, bytes.len())[..], &bytes].concat(), frame(&private));
        }
    }
}
