//! The messages on a peer's and an orderer's links: Protocol Buffers, in the bodies of `base::rt::net::rpc`.
//!
//! The page `docs/formats/peer-links.md` describes the messages for other implementations.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use base::{Bytes, ErrorKind, TxId};
use ledger::config::check_channel_name;
use ledger::lifecycle::ContractDefinition;
use ledger::wire::{FieldValue, Fields, Span};
use ordered_log::CpuNodeId;
use private_data::SETS_MAX;
use prost::Message as _;
use proto::common::Status;
use replica::load::{NodeAddresses, ReportedNode};
use rules::access::ChannelPolicies;
use rules::definitions::LedgerDefinitions;
use wire::hello::{self, HelloAnswer};
use wire::{Reader, VersionRange};

use crate::endorse::EndorseError;
use crate::order::BroadcastError;
use crate::remote::private_messages::{PrivateBlock, PrivatePull, PrivatePush};
use crate::remote::{CHANNELS_MAX, PROTOCOL_VERSIONS};

/// The number of fields that a message may have whatever its size: a welcome lists all channels, with names of any
/// length. A list that grows to this many entries allocates room for 1,024.
const FIELDS_FREE: usize = CHANNELS_MAX + 16;
const _: () = assert!(FIELDS_FREE <= 1024, "the next allocation would have room for twice as many");
/// The smallest average size in bytes of the fields of a message that has more. A committed transaction takes twice as
/// many.
const FIELD_BYTES_MIN: usize = 32;

/// [`ResultResponse::failure`].
const RESPONSE_FAILURE: u32 = 2;
/// The fields of [`PeerRequest`].
const REQUESTS: RangeInclusive<u32> = 1..=14;
/// The numbers of [`Ask::PrivatePush`] and of [`PrivatePush::sets`].
const PUSHED_SETS: (u32, u32) = (10, 4);
/// The numbers of [`Ask::PrivatePull`] and of [`PrivatePull::wanted`].
const WANTED_SETS: (u32, u32) = (11, 3);

/// Bytes from the other end of a link that are no message, or a message of too many fields.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The bytes are not such a message.
    #[error(transparent)]
    Encoding(#[from] prost::DecodeError),
    /// The message has more fields than its size justifies, so that decoding would multiply its memory.
    #[error("{count} fields in a message of {bytes} bytes, more than any that this software sends")]
    Fields {
        /// The number of fields.
        count: usize,
        /// The size of the message.
        bytes: usize,
    },
    /// The message has more than one request or failure.
    #[error("a message with several requests or failures")]
    Repeated,
}

/// Reads a message from the other end of a link, which may belong to another organisation.
///
/// An entry of a repeated field may have only two bytes, but takes some fifty in memory. So fields are counted first,
/// and a message with too many tiny ones is rejected.
///
/// # Errors
/// See [`Malformed`].
pub fn decode<M: prost::Message + Default>(bytes: Bytes) -> Result<M, Malformed> {
    check_fields(&bytes, FIELDS_FREE)?;
    Ok(M::decode(bytes)?)
}

impl ResultResponse {
    /// As [`decode`], but also counts the texts of the failure. An answer has at most one failure: the library would
    /// merge several, and together they would have more texts than any single one may have.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn read(bytes: Bytes) -> Result<ResultResponse, Malformed> {
        check_fields(&bytes, FIELDS_FREE)?;
        if let Some((_, failure)) = only_field(&bytes, RESPONSE_FAILURE..=RESPONSE_FAILURE)? {
            check_fields(failure, FIELDS_FREE)?;
        }
        Ok(ResultResponse::decode(bytes)?)
    }
}

impl PeerRequest {
    /// As [`decode`], but also counts the private sets that the request sends or asks for: at most [`SETS_MAX`]. A message has at
    /// most one request: the library would merge several, and together they would have more sets than any single one may have.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn read(bytes: Bytes) -> Result<PeerRequest, Malformed> {
        check_fields(&bytes, FIELDS_FREE)?;
        if let Some((number, request)) = only_field(&bytes, REQUESTS)?
            && let Some((_, sets)) = [PUSHED_SETS, WANTED_SETS].into_iter().find(|(asked, _)| *asked == number)
        {
            let count = count_fields(request, |field| field == sets);
            if count > SETS_MAX {
                return Err(Malformed::Fields { count, bytes: request.len() });
            }
        }
        Ok(PeerRequest::decode(bytes)?)
    }
}

fn check_fields(bytes: &[u8], free: usize) -> Result<(), Malformed> {
    let count = count_fields(bytes, |_| true);
    match count > free.max(bytes.len() / FIELD_BYTES_MIN) {
        true => Err(Malformed::Fields { count, bytes: bytes.len() }),
        false => Ok(()),
    }
}

/// The number of a message's fields with these numbers. If the bytes cannot be walked, the library reports the error.
fn count_fields(bytes: &[u8], counts: impl Fn(u32) -> bool) -> usize {
    let Ok(span) = Span::whole(bytes) else { return 0 };
    let mut fields = Fields::new(bytes, span);
    let mut count = 0_usize;
    while let Ok(Some(field)) = fields.next() {
        count = count.saturating_add(usize::from(counts(field.number)));
    }
    count
}

/// The number and the bytes of the field with one of these numbers, of which there may be one in all.
fn only_field(bytes: &[u8], numbers: RangeInclusive<u32>) -> Result<Option<(u32, &[u8])>, Malformed> {
    let Ok(span) = Span::whole(bytes) else { return Ok(None) };
    let mut fields = Fields::new(bytes, span);
    let mut found = None;
    while let Ok(Some(field)) = fields.next() {
        if let (true, FieldValue::Bytes(value)) = (numbers.contains(&field.number), field.value)
            && found.replace((field.number, value.of(bytes))).is_some()
        {
            return Err(Malformed::Repeated);
        }
    }
    Ok(found)
}

/// A request of a caller.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PeerRequest {
    /// The request; `None` if the caller sent none that is known here.
    #[prost(oneof = "Ask", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14")]
    pub ask: Option<Ask>,
}

/// The requests.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Ask {
    /// The first request of a link: which versions and which channels the server has.
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// An encoded `SignedProposal`, to be endorsed.
    #[prost(bytes = "bytes", tag = "2")]
    Process(Bytes),
    /// An encoded `SignedProposal`, to be run for its answer only.
    #[prost(bytes = "bytes", tag = "3")]
    Evaluate(Bytes),
    /// The block of this number, answered with a [`BlockResponse`].
    #[prost(message, tag = "4")]
    Block(BlockAt),
    /// The outcome of a transaction, answered with a [`StatusResponse`].
    #[prost(message, tag = "5")]
    Status(StatusRequest),
    /// A [`CommitNotification`] for each block committed from this number on.
    #[prost(message, tag = "6")]
    Follow(BlockAt),
    /// An envelope to be ordered, answered with a [`ResultResponse`].
    #[prost(message, tag = "7")]
    Broadcast(BroadcastEnvelope),
    /// The commit hash of this block, or of the newest one if that is older.
    #[prost(message, tag = "8")]
    Commit(BlockAt),
    /// The newest configuration and definitions of the channel of this name, answered with a [`ConfigResponse`].
    #[prost(string, tag = "9")]
    Config(String),
    /// Private data of a transaction.
    #[prost(message, tag = "10")]
    PrivatePush(PrivatePush),
    /// A request for private data.
    #[prost(message, tag = "11")]
    PrivatePull(PrivatePull),
    /// A reader's request for the private data of a block.
    #[prost(message, tag = "12")]
    PrivateBlock(PrivateBlock),
    /// What the peer states about itself in the channel of this name, answered with a [`ResultResponse`] that holds an encoded
    /// `discovery.Peer`.
    #[prost(string, tag = "13")]
    Describe(String),
    /// The compute nodes of the peer, answered with a [`NodesResponse`].
    #[prost(message, tag = "14")]
    Nodes(NodesRequest),
}

/// Asks for the compute nodes of a peer.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct NodesRequest {}

/// The compute nodes of a peer; none from a node that is not its primary.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodesResponse {
    /// At most [`NODES_MAX`](replica::NODES_MAX) count.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NodeReport>,
}

/// A compute node and its load.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeReport {
    /// Where it answers the caller; empty if it does not say.
    #[prost(string, tag = "1")]
    pub address: String,
    /// How busy its cores are, in percent.
    #[prost(uint32, tag = "2")]
    pub percent: u32,
    /// What it has accepted and not answered.
    #[prost(uint32, tag = "3")]
    pub queued: u32,
    /// The age of the report in milliseconds.
    #[prost(uint32, tag = "4")]
    pub age_ms: u32,
    /// Whether it is about to leave.
    #[prost(bool, tag = "5")]
    pub is_draining: bool,
}

impl NodesResponse {
    /// Of nodes with the addresses at which they answer the caller; those without one are left out.
    pub fn of(nodes: Vec<ReportedNode>, address: impl Fn(NodeAddresses) -> String) -> NodesResponse {
        let report = |node: ReportedNode| NodeReport {
            percent: node.load.percent.into(),
            queued: node.load.queued.into(),
            age_ms: u32::try_from(node.age.as_millis()).unwrap_or(u32::MAX),
            is_draining: node.is_draining,
            address: address(node.addresses),
        };
        NodesResponse { nodes: nodes.into_iter().map(report).filter(|node| !node.address.is_empty()).collect() }
    }
}

/// The first message of a link.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// The bytes of a [`wire::hello::Hello`]: the versions that the caller speaks. (Field 1 was a version.)
    #[prost(bytes = "bytes", tag = "2")]
    pub hello: Bytes,
}

/// The answer to [`Hello`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    /// The bytes of a [`HelloAnswer`]: the version of the link. (Field 1 was a version.)
    #[prost(bytes = "bytes", tag = "3")]
    pub answer: Bytes,
    /// The server's channels, each with its height; none if the two share no version.
    #[prost(message, repeated, tag = "2")]
    pub channels: Vec<BlockAt>,
}

/// What these links are for.
const PURPOSE: [u8; 8] = *b"HDLRPEER";

impl Hello {
    /// The hello of a caller that speaks these versions.
    pub fn new(versions: VersionRange) -> Hello {
        Hello { hello: Bytes::copy_from_slice(&hello::Hello { purpose: PURPOSE, versions }.encode()) }
    }

    /// The answer of this program, with its channels.
    ///
    /// # Errors
    /// [`wire::Malformed`] if the bytes are not a hello.
    pub fn answer(&self, channels: impl FnOnce() -> Vec<BlockAt>) -> Result<Welcome, wire::Malformed> {
        let hello::Hello { versions, .. } = hello::Hello::read(&mut Reader::new(&self.hello[..]), PURPOSE)?;
        let answer = HelloAnswer::to(PROTOCOL_VERSIONS, versions);
        let channels = if answer.is_refusal() { Vec::new() } else { channels() };
        Ok(Welcome { answer: Bytes::copy_from_slice(&answer.encode()), channels })
    }
}

impl Welcome {
    /// The version of the link.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub fn version(&self) -> Result<u32, String> {
        let answer = HelloAnswer::read(&mut Reader::new(&self.answer[..])).map_err(|error| error.to_string())?;
        answer.chosen_by(PROTOCOL_VERSIONS).map_err(|mismatch| mismatch.to_string())
    }

    /// Checks the names of the channels that the server lists, and that no more than [`CHANNELS_MAX`] are listed, or
    /// known once these are learned.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn check_channels<T>(&self, known: &BTreeMap<String, T>) -> Result<(), String> {
        let listed = self.channels.len();
        let unknown = self.channels.iter().filter(|at| !known.contains_key(&at.channel)).count();
        if listed.max(known.len().saturating_add(unknown)) > CHANNELS_MAX {
            let known = known.len();
            return Err(format!("it lists {listed} channels beside {known} known ones, more than {CHANNELS_MAX}"));
        }
        self.channels.iter().try_for_each(|at| check_channel_name(&at.channel)).map_err(|error| error.to_string())
    }
}

/// A block of a channel, or a channel's height.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BlockAt {
    /// The channel's name.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The block's number, or the channel's height in blocks.
    #[prost(uint64, tag = "2")]
    pub number: u64,
}

/// A transaction of a channel.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusRequest {
    /// The channel's name.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The transaction's id.
    #[prost(string, tag = "2")]
    pub tx_id: String,
}

/// An envelope to be ordered.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BroadcastEnvelope {
    /// The channel's name.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The encoded, signed envelope.
    #[prost(bytes = "bytes", tag = "2")]
    pub envelope: Bytes,
}

/// The answer to [`Ask::Process`], [`Ask::Evaluate`] and [`Ask::Broadcast`]: the encoded result, or the reason why
/// there is none.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResultResponse {
    /// The encoded result; empty if there is a failure, or nothing to return.
    #[prost(bytes = "bytes", tag = "1")]
    pub result: Bytes,
    /// Why there is no result.
    #[prost(message, optional, tag = "2")]
    pub failure: Option<RemoteFailure>,
}

/// The answer to [`Ask::Block`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct BlockResponse {
    /// The encoded block; `None` if it is not committed.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub block: Option<Bytes>,
}

/// The answer to [`Ask::Commit`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitHashResponse {
    /// The block.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Its commit hash; `None` if it has none, or if the block is not among the newest.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub hash: Option<Bytes>,
}

/// The answer to [`Ask::Status`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    /// The outcome; `None` if the transaction is not committed.
    #[prost(message, optional, tag = "1")]
    pub status: Option<TransactionStatus>,
}

/// The outcome of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TransactionStatus {
    /// The validation code: a number of [`ledger::Code`].
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// The number of the transaction's block.
    #[prost(uint64, tag = "2")]
    pub block: u64,
}

/// The answer to [`Ask::Config`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ConfigResponse {
    /// An encoded `ConfigEnvelope`.
    #[prost(bytes = "bytes", tag = "1")]
    pub content: Bytes,
    /// The contracts that the ledger defines.
    #[prost(message, repeated, tag = "2")]
    pub definitions: Vec<DefinitionRows>,
}

/// The definition of a contract on the ledger.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DefinitionRows {
    /// The contract.
    #[prost(string, tag = "1")]
    pub contract: String,
    /// The values of its rows, those of the metadata first and then those of the fields; none if the rows are no definition.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub values: Vec<Bytes>,
}

impl ConfigResponse {
    /// The configuration and the definitions of these policies.
    pub fn of(policies: &ChannelPolicies) -> ConfigResponse {
        let definitions = policies.on_ledger().iter().map(|(contract, definition)| {
            let values = definition.map(ContractDefinition::rows);
            let values = values.map(|(metadata, fields)| [metadata].into_iter().chain(fields).collect());
            DefinitionRows { contract: contract.to_owned(), values: values.unwrap_or_default() }
        });
        ConfigResponse { content: policies.config().content().clone(), definitions: definitions.collect() }
    }

    /// The definitions.
    pub fn definitions(&self) -> LedgerDefinitions {
        let read = |rows: &DefinitionRows| match &rows.values[..] {
            [metadata, fields @ ..] => {
                let fields = std::array::from_fn(|index| fields.get(index));
                ContractDefinition::read(metadata, fields).ok()
            }
            [] => None,
        };
        self.definitions.iter().map(|rows| (rows.contract.clone(), read(rows))).collect()
    }
}

/// A message that a server sends without a request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitNotification {
    /// The channel's name.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The committed block.
    #[prost(uint64, tag = "2")]
    pub number: u64,
    /// The block's transactions that claim an id, in the order of the block.
    #[prost(message, repeated, tag = "3")]
    pub transactions: Vec<CommittedTx>,
    /// Why the channel has stopped; the notice then announces no block.
    #[prost(string, optional, tag = "4")]
    pub failure: Option<String>,
    /// Whether the block has changed the channel's configuration, or the definition of a contract.
    #[prost(bool, tag = "5")]
    pub changes_policies: bool,
    /// The bytes of the [`WrittenRows`](crate::commit::recent_writes::WrittenRows) of the block; empty if the peer does not
    /// note them.
    #[prost(bytes = "bytes", tag = "6")]
    pub written_rows: Bytes,
}

/// A transaction of a committed block.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CommittedTx {
    /// The id that the transaction claims.
    #[prost(string, tag = "1")]
    pub tx_id: String,
    /// The validation code: a number of [`ledger::Code`].
    #[prost(uint32, tag = "2")]
    pub code: u32,
}

/// Why a request failed, in a form from which the caller's end can restore the same error.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RemoteFailure {
    /// The error's number: see the numbers below.
    #[prost(uint32, tag = "1")]
    pub error: u32,
    /// The texts of the error, in the order of its fields.
    #[prost(string, repeated, tag = "2")]
    pub texts: Vec<String>,
    /// The number that belongs to the error, such as milliseconds, a status or a kind; 0 if none does.
    #[prost(uint64, tag = "3")]
    pub number: u64,
}

impl RemoteFailure {
    fn new(error: u32, texts: &[&str]) -> RemoteFailure {
        RemoteFailure { error, texts: texts.iter().map(|text| (*text).to_owned()).collect(), number: 0 }
    }

    fn text(&self, index: usize) -> String {
        self.texts.get(index).cloned().unwrap_or_default()
    }

    /// Encodes an endorser's error.
    pub fn of_endorse(error: &EndorseError) -> RemoteFailure {
        match error {
            EndorseError::Malformed(reason) => RemoteFailure::new(1, &[reason]),
            EndorseError::Invalid(reason) => RemoteFailure::new(2, &[reason]),
            EndorseError::Expired(reason) => RemoteFailure::new(3, &[reason]),
            EndorseError::UnknownChannel(name) => RemoteFailure::new(4, &[name]),
            EndorseError::UnknownChaincode { name, channel } => RemoteFailure::new(5, &[name, channel]),
            EndorseError::Duplicate(tx_id) => RemoteFailure::new(6, &[tx_id.as_str()]),
            EndorseError::Overloaded => RemoteFailure::new(7, &[]),
            EndorseError::TimedOut(limit) => RemoteFailure {
                number: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
                ..RemoteFailure::new(8, &[])
            },
            EndorseError::State { kind, message } => {
                RemoteFailure { number: kind.number().into(), ..RemoteFailure::new(9, &[message]) }
            }
            EndorseError::Stopped => RemoteFailure::new(10, &[]),
            EndorseError::ChannelStopped { channel, cause } => RemoteFailure::new(11, &[channel, cause]),
            EndorseError::NotApproved { contract, sequence, channel } => {
                let number = u64::try_from(*sequence).unwrap_or_default();
                RemoteFailure { number, ..RemoteFailure::new(12, &[contract, channel]) }
            }
            EndorseError::InvalidInvocation(reason) => RemoteFailure::new(13, &[reason]),
            EndorseError::Denied(reason) => RemoteFailure::new(14, &[reason]),
            EndorseError::NotInstalled { contract, channel, package } => {
                RemoteFailure::new(15, &[contract, channel, package])
            }
        }
    }

    /// Restores the endorser's error.
    pub fn into_endorse(self) -> EndorseError {
        match self.error {
            1 => EndorseError::Malformed(self.text(0)),
            2 => EndorseError::Invalid(self.text(0)),
            3 => EndorseError::Expired(self.text(0)),
            4 => EndorseError::UnknownChannel(self.text(0)),
            5 => EndorseError::UnknownChaincode { name: self.text(0), channel: self.text(1) },
            6 => EndorseError::Duplicate(TxId::from(self.text(0))),
            7 => EndorseError::Overloaded,
            8 => EndorseError::TimedOut(Duration::from_millis(self.number)),
            9 => {
                let kind = ErrorKind::of_number(self.number).unwrap_or(ErrorKind::Closed);
                EndorseError::State { kind, message: self.text(0) }
            }
            10 => EndorseError::Stopped,
            11 => EndorseError::ChannelStopped { channel: self.text(0), cause: self.text(1) },
            12 => EndorseError::NotApproved {
                contract: self.text(0),
                sequence: i64::try_from(self.number).unwrap_or(i64::MAX),
                channel: self.text(1),
            },
            13 => EndorseError::InvalidInvocation(self.text(0)),
            14 => EndorseError::Denied(self.text(0)),
            15 => EndorseError::NotInstalled { contract: self.text(0), channel: self.text(1), package: self.text(2) },
            other => EndorseError::State {
                kind: ErrorKind::Closed,
                message: format!("the peer answered with error {other}, which is not known here"),
            },
        }
    }

    /// Encodes an orderer's error.
    pub fn of_broadcast(error: &BroadcastError) -> RemoteFailure {
        match error {
            BroadcastError::Rejected { status, reason } => {
                RemoteFailure { number: u64::from((*status as i32).unsigned_abs()), ..RemoteFailure::new(1, &[reason]) }
            }
            BroadcastError::Overloaded => RemoteFailure::new(2, &[]),
            BroadcastError::Stopped => RemoteFailure::new(3, &[]),
            BroadcastError::Ambiguous => RemoteFailure::new(4, &[]),
            BroadcastError::NotLeading { leader } => {
                // 0 means unknown: CPU nodes are counted from 1.
                RemoteFailure { number: leader.map_or(0, |leader| leader.0), ..RemoteFailure::new(5, &[]) }
            }
        }
    }

    /// Restores the orderer's error. After an unknown error the outcome of the broadcast is unknown.
    pub fn into_broadcast(self) -> BroadcastError {
        match self.error {
            1 => {
                let status = i32::try_from(self.number).ok().and_then(|number| Status::try_from(number).ok());
                BroadcastError::Rejected { status: status.unwrap_or(Status::BadRequest), reason: self.text(0) }
            }
            2 => BroadcastError::Overloaded,
            3 => BroadcastError::Stopped,
            5 => BroadcastError::NotLeading { leader: (self.number > 0).then_some(CpuNodeId(self.number)) },
            _ => BroadcastError::Ambiguous,
        }
    }
}

#[cfg(test)]
mod tests {
    use ordered_log::CpuNodeId;
    use private_data::SETS_MAX;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn other_versions_are_refused_without_channels() {
        let channels = || panic!("a caller of other versions learns no channels");
        let welcome = Hello::new(VersionRange::new(2, 3)).answer(channels).expect("it is a hello");
        assert!(welcome.version().expect_err("they share none").contains("version 1"));
        let theirs = HelloAnswer::refuse(VersionRange::new(2, 3)).encode();
        let welcome = Welcome { answer: Bytes::copy_from_slice(&theirs), channels: Vec::new() };
        assert!(welcome.version().expect_err("they share none").ends_with("upgrade this side, which is older"));
        assert!(Hello::default().answer(Vec::new).is_err() && Welcome::default().version().is_err());
    }

    /// Regression: a gateway learned as many channels as a peer listed, under any names.
    #[test]
    fn a_server_lists_a_bounded_number_of_channels() {
        let welcome = |names: &[String]| Welcome {
            channels: names.iter().map(|name| BlockAt { channel: name.clone(), number: 0 }).collect(),
            ..Welcome::default()
        };
        let names: Vec<String> = (0..=CHANNELS_MAX).map(|number| format!("channel{number}")).collect();
        let known = |names: &[String]| names.iter().map(|name| (name.clone(), ())).collect::<BTreeMap<_, _>>();
        let none = known(&[]);
        assert_eq!(welcome(&names[1..]).check_channels(&none), Ok(()));
        assert!(welcome(&names).check_channels(&none).expect_err("one too many").contains("more than 1000"));
        assert!(welcome(&["a".repeat(250)]).check_channels(&none).is_err());
        // Other channels at each connection.
        assert_eq!(welcome(&names[2..3]).check_channels(&known(&names[1..])), Ok(()));
        assert!(welcome(&names[..1]).check_channels(&known(&names[1..])).is_err());
    }

    #[test]
    fn messages_have_the_documented_bytes() {
        let hello = PeerRequest { ask: Some(Ask::Hello(Hello::new(VersionRange::new(1, 2)))) };
        assert_eq!(hello.encode_to_vec(), *b"\x0a\x12\x12\x10HDLRPEER\x01\0\0\0\x02\0\0\0");
        let welcome = Hello::new(VersionRange::new(1, 2)).answer(Vec::new).expect("it is a hello");
        assert_eq!(welcome.encode_to_vec(), *b"\x1a\x0c\x01\0\0\0\x01\0\0\0\x01\0\0\0");
        assert_eq!(welcome.version(), Ok(1));
        let status = StatusRequest { channel: "ch".into(), tx_id: "ab".into() };
        let request = PeerRequest { ask: Some(Ask::Status(status)) };
        assert_eq!(request.encode_to_vec(), [0x2a, 8, 0x0a, 2, b'c', b'h', 0x12, 2, b'a', b'b']);
        let transactions = vec![CommittedTx { tx_id: "ab".into(), code: 11 }];
        let notice =
            CommitNotification { channel: "ch".into(), number: 7, transactions, ..CommitNotification::default() };
        let golden = [0x0a, 2, b'c', b'h', 0x10, 7, 0x1a, 6, 0x0a, 2, b'a', b'b', 0x10, 11];
        assert_eq!(notice.encode_to_vec(), golden);
    }

    #[test]
    fn errors_come_back_as_they_were() {
        let errors = [
            EndorseError::Malformed("a".into()),
            EndorseError::Invalid("b".into()),
            EndorseError::Expired("c".into()),
            EndorseError::UnknownChannel("d".into()),
            EndorseError::UnknownChaincode { name: "e".into(), channel: "f".into() },
            EndorseError::NotApproved { contract: "e".into(), sequence: 2, channel: "f".into() },
            EndorseError::Duplicate(TxId::from("g")),
            EndorseError::Overloaded,
            EndorseError::TimedOut(Duration::from_millis(8)),
            EndorseError::State { kind: ErrorKind::Corrupt, message: "h".into() },
            EndorseError::Stopped,
            EndorseError::ChannelStopped { channel: "i".into(), cause: "j".into() },
            EndorseError::InvalidInvocation("k".into()),
            EndorseError::NotInstalled { contract: "l".into(), channel: "m".into(), package: "n".into() },
            EndorseError::Denied("l".into()),
        ];
        for error in errors {
            let again = RemoteFailure::of_endorse(&error).into_endorse();
            assert_eq!((again.kind(), again.to_string()), (error.kind(), error.to_string()));
        }
        let rejected = BroadcastError::Rejected { status: Status::Forbidden, reason: "i".into() };
        let elsewhere = BroadcastError::NotLeading { leader: Some(CpuNodeId(2)) };
        let nobody = BroadcastError::NotLeading { leader: None };
        let others = [BroadcastError::Overloaded, BroadcastError::Stopped, BroadcastError::Ambiguous];
        for error in [rejected, elsewhere, nobody].into_iter().chain(others) {
            let again = RemoteFailure::of_broadcast(&error).into_broadcast();
            assert_eq!((again.status(), again.to_string()), (error.status(), error.to_string()));
        }
    }

    /// Regression: a peer of another organisation answered with millions of empty texts, two bytes each on the wire and
    /// 24 in memory, and more while the list grew.
    #[test]
    fn messages_of_nothing_but_tiny_fields_are_refused() {
        let tiny = |tag: u8, count: usize| [tag, 0].repeat(count);
        let framed = |failure: &[u8]| {
            let mut answer = Vec::new();
            ledger::wire::put_bytes(&mut answer, RESPONSE_FAILURE, failure);
            Bytes::from(answer)
        };
        assert!(ResultResponse::read(framed(&tiny(0x12, FIELDS_FREE))).is_ok());
        assert!(matches!(
            ResultResponse::read(framed(&tiny(0x12, 10_000))),
            Err(Malformed::Fields { count: 10_000, .. })
        ));
        assert!(matches!(decode::<CommitNotification>(tiny(0x1a, 10_000).into()), Err(Malformed::Fields { .. })));
        assert!(matches!(decode::<Welcome>(tiny(0x12, 10_000).into()), Err(Malformed::Fields { .. })));
        let transactions = (0..10_000).map(|number| CommittedTx { tx_id: format!("{number:064x}"), code: 0 });
        let notice = CommitNotification { transactions: transactions.collect(), ..CommitNotification::default() };
        assert_eq!(decode(notice.encode_to_vec().into()), Ok(notice));
        // A fuzz search found that many failures of few texts each are merged into one of many.
        let merged = framed(&tiny(0x12, 16)).repeat(256);
        assert_eq!(ResultResponse::read(merged.into()), Err(Malformed::Repeated));
        // Another found the same for requests, and that the sets in one of them were not counted.
        let wanted = |tag: u8, count| {
            [&[tag][..], &{
                let sets = tiny(0x1a, count);
                let mut length = Vec::new();
                prost::encoding::encode_varint(sets.len() as u64, &mut length);
                [length, sets].concat()
            }]
            .concat()
        };
        assert!(PeerRequest::read(wanted(0x5a, SETS_MAX).into()).is_ok());
        // One more set doubles the room for them; a third search found that.
        assert!(matches!(PeerRequest::read(wanted(0x5a, SETS_MAX + 1).into()), Err(Malformed::Fields { .. })));
        assert!(matches!(PeerRequest::read(wanted(0x5a, 1000).into()), Err(Malformed::Fields { count: 1000, .. })));
        assert_eq!(PeerRequest::read(wanted(0x5a, 16).repeat(256).into()), Err(Malformed::Repeated));
        // A contract's answer may look like a message of tiny fields.
        let answer = ResultResponse { result: tiny(0x0a, 10_000).into(), failure: None };
        assert_eq!(ResultResponse::read(answer.encode_to_vec().into()), Ok(answer));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(request) = PeerRequest::decode(&bytes[..]) {
                prop_assert_eq!(PeerRequest::decode(&request.encode_to_vec()[..]), Ok(request));
            }
            let _ = RemoteFailure::decode(&bytes[..]).map(|failure| (failure.clone().into_endorse(), failure.into_broadcast()));
        }
    }
}
