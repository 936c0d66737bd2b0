//! What travels over a peer's and an orderer's links: Protocol Buffers, in the bodies of `base::rt::net::call`.
//!
//! The page `docs/formats/peer-links.md` says the same to other implementations.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::time::Duration;

use base::{Bytes, ErrorKind, TxId};
use consensus::ordered::Processor;
use ledger::wire::{Fields, Span, Value};
use prost::Message as _;
use proto::common::Status;

use crate::endorse::EndorseError;
use crate::order::BroadcastError;

/// Fields that a message may have whatever its size.
const FIELDS_FREE: usize = 256;
/// Bytes of the others, on average. A committed transaction takes twice as many.
const FIELD_BYTES_MIN: usize = 32;

/// [`Answer::failure`].
const ANSWER_FAILURE: u32 = 2;

/// Bytes of the other side of a link that are no message, or one of too many parts.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Malformed {
    #[error(transparent)]
    Encoding(#[from] prost::DecodeError),
    #[error("{count} fields in a message of {bytes} bytes, more than any that this software sends")]
    Fields { count: usize, bytes: usize },
    #[error("an answer with several failures")]
    Failures,
}

/// Reads a message from the other side of a link, which may belong to another organisation.
///
/// Two bytes are enough for an entry of a repeated field, which takes some fifty in memory. So fields are counted first, and a
/// message of nothing but tiny ones is refused.
///
/// # Errors
/// See [`Malformed`].
pub fn decode<M: prost::Message + Default>(bytes: Bytes) -> Result<M, Malformed> {
    check_fields(&bytes)?;
    Ok(M::decode(bytes)?)
}

impl Answer {
    /// As [`decode`], which counts the texts of the failure too. There is one failure at most: the library would merge several, and
    /// their texts would be more than those of any one.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn read(bytes: Bytes) -> Result<Answer, Malformed> {
        check_fields(&bytes)?;
        if let Ok(span) = Span::whole(&bytes) {
            let mut fields = Fields::new(&bytes, span);
            let mut is_found = false;
            while let Ok(Some(field)) = fields.next() {
                if let (ANSWER_FAILURE, Value::Bytes(failure)) = (field.number, field.value) {
                    if std::mem::replace(&mut is_found, true) {
                        return Err(Malformed::Failures);
                    }
                    check_fields(failure.of(&bytes))?;
                }
            }
        }
        Ok(Answer::decode(bytes)?)
    }
}

fn check_fields(bytes: &[u8]) -> Result<(), Malformed> {
    // What is wrong with bytes that cannot be walked, the library says.
    let Ok(span) = Span::whole(bytes) else { return Ok(()) };
    let mut fields = Fields::new(bytes, span);
    let mut count = 0_usize;
    while let Ok(Some(_)) = fields.next() {
        count = count.saturating_add(1);
    }
    match count > FIELDS_FREE.saturating_add(bytes.len() / FIELD_BYTES_MIN) {
        true => Err(Malformed::Fields { count, bytes: bytes.len() }),
        false => Ok(()),
    }
}

/// What a caller asks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    #[prost(oneof = "Ask", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub ask: Option<Ask>,
}

/// The questions.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Ask {
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// An encoded `SignedProposal`, to be endorsed.
    #[prost(bytes = "bytes", tag = "2")]
    Process(Bytes),
    /// An encoded `SignedProposal`, for its answer alone.
    #[prost(bytes = "bytes", tag = "3")]
    Evaluate(Bytes),
    #[prost(message, tag = "4")]
    Block(BlockAt),
    #[prost(message, tag = "5")]
    Status(StatusOf),
    #[prost(message, tag = "6")]
    Follow(BlockAt),
    #[prost(message, tag = "7")]
    Broadcast(Envelope),
    /// The commit hash of this block, or of the newest one where that is older.
    #[prost(message, tag = "8")]
    Commit(BlockAt),
}

/// The first message of a link.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    #[prost(uint32, tag = "1")]
    pub version: u32,
}

/// The answer to [`Hello`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(message, repeated, tag = "2")]
    pub channels: Vec<BlockAt>,
}

/// A block of a channel, or a channel's height.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BlockAt {
    #[prost(string, tag = "1")]
    pub channel: String,
    #[prost(uint64, tag = "2")]
    pub number: u64,
}

/// A transaction of a channel.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusOf {
    #[prost(string, tag = "1")]
    pub channel: String,
    #[prost(string, tag = "2")]
    pub tx_id: String,
}

/// An envelope to be ordered.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Envelope {
    #[prost(string, tag = "1")]
    pub channel: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub envelope: Bytes,
}

/// The answer to [`Ask::Process`], [`Ask::Evaluate`] and [`Ask::Broadcast`]: the encoded result, or why there is none.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Answer {
    #[prost(bytes = "bytes", tag = "1")]
    pub result: Bytes,
    #[prost(message, optional, tag = "2")]
    pub failure: Option<Failure>,
}

/// The answer to [`Ask::Block`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct BlockAnswer {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub block: Option<Bytes>,
}

/// The answer to [`Ask::Commit`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitAnswer {
    /// The block.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Its commit hash; nothing where it has none, or is not one of the newest.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub hash: Option<Bytes>,
}

/// The answer to [`Ask::Status`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Place>,
}

/// What became of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Place {
    #[prost(uint32, tag = "1")]
    pub code: u32,
    #[prost(uint64, tag = "2")]
    pub block: u64,
}

/// What a server says without being asked.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Notice {
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The committed block.
    #[prost(uint64, tag = "2")]
    pub number: u64,
    #[prost(message, repeated, tag = "3")]
    pub transactions: Vec<Committed>,
    /// Why the channel has stopped; no block is noticed then.
    #[prost(string, optional, tag = "4")]
    pub failure: Option<String>,
}

/// A transaction of a committed block.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Committed {
    #[prost(string, tag = "1")]
    pub tx_id: String,
    #[prost(uint32, tag = "2")]
    pub code: u32,
}

/// Why something could not be done, such that the caller's side can raise the same error.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failure {
    /// Which error: see the numbers below.
    #[prost(uint32, tag = "1")]
    pub error: u32,
    #[prost(string, repeated, tag = "2")]
    pub texts: Vec<String>,
    #[prost(uint64, tag = "3")]
    pub number: u64,
}

impl Failure {
    fn new(error: u32, texts: &[&str]) -> Failure {
        Failure { error, texts: texts.iter().map(|text| (*text).to_owned()).collect(), number: 0 }
    }

    fn text(&self, index: usize) -> String {
        self.texts.get(index).cloned().unwrap_or_default()
    }

    /// From an endorser's error.
    pub fn of_endorse(error: &EndorseError) -> Failure {
        match error {
            EndorseError::Malformed(reason) => Failure::new(1, &[reason]),
            EndorseError::Invalid(reason) => Failure::new(2, &[reason]),
            EndorseError::Expired(reason) => Failure::new(3, &[reason]),
            EndorseError::UnknownChannel(name) => Failure::new(4, &[name]),
            EndorseError::UnknownChaincode { name, channel } => Failure::new(5, &[name, channel]),
            EndorseError::Duplicate(tx_id) => Failure::new(6, &[tx_id.as_str()]),
            EndorseError::Overloaded => Failure::new(7, &[]),
            EndorseError::TimedOut(limit) => {
                Failure { number: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), ..Failure::new(8, &[]) }
            }
            EndorseError::State { kind, message } => {
                Failure { number: kind_number(*kind), ..Failure::new(9, &[message]) }
            }
            EndorseError::Stopped => Failure::new(10, &[]),
            EndorseError::ChannelStopped { channel, cause } => Failure::new(11, &[channel, cause]),
        }
    }

    /// The endorser's error again.
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
            9 => EndorseError::State { kind: kind_of(self.number), message: self.text(0) },
            10 => EndorseError::Stopped,
            11 => EndorseError::ChannelStopped { channel: self.text(0), cause: self.text(1) },
            other => EndorseError::State {
                kind: ErrorKind::Closed,
                message: format!("the peer answered with error {other}, which is not known here"),
            },
        }
    }

    /// From an orderer's error.
    pub fn of_broadcast(error: &BroadcastError) -> Failure {
        match error {
            BroadcastError::Rejected { status, reason } => {
                Failure { number: u64::from((*status as i32).unsigned_abs()), ..Failure::new(1, &[reason]) }
            }
            BroadcastError::Overloaded => Failure::new(2, &[]),
            BroadcastError::Stopped => Failure::new(3, &[]),
            BroadcastError::Ambiguous => Failure::new(4, &[]),
            BroadcastError::NotLeading { leader } => {
                // 0 is nobody: processors are counted from 1.
                Failure { number: leader.map_or(0, |leader| leader.0), ..Failure::new(5, &[]) }
            }
        }
    }

    /// The orderer's error again. One that is not known leaves it unknown what happened.
    pub fn into_broadcast(self) -> BroadcastError {
        match self.error {
            1 => {
                let status = i32::try_from(self.number).ok().and_then(|number| Status::try_from(number).ok());
                BroadcastError::Rejected { status: status.unwrap_or(Status::BadRequest), reason: self.text(0) }
            }
            2 => BroadcastError::Overloaded,
            3 => BroadcastError::Stopped,
            5 => BroadcastError::NotLeading { leader: (self.number > 0).then_some(Processor(self.number)) },
            _ => BroadcastError::Ambiguous,
        }
    }
}

const KINDS: [ErrorKind; 6] = [
    ErrorKind::Retry,
    ErrorKind::Fenced,
    ErrorKind::Ambiguous,
    ErrorKind::Rejected,
    ErrorKind::Corrupt,
    ErrorKind::Closed,
];

fn kind_number(kind: ErrorKind) -> u64 {
    KINDS.iter().position(|other| *other == kind).expect("every kind is listed") as u64
}

fn kind_of(number: u64) -> ErrorKind {
    usize::try_from(number).ok().and_then(|index| KINDS.get(index)).copied().unwrap_or(ErrorKind::Closed)
}

#[cfg(test)]
mod tests {
    use consensus::ordered::Processor;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_have_the_documented_bytes() {
        let hello = Request { ask: Some(Ask::Hello(Hello { version: 1 })) };
        assert_eq!(hello.encode_to_vec(), [0x0a, 2, 0x08, 1]);
        let status = StatusOf { channel: "ch".into(), tx_id: "ab".into() };
        let request = Request { ask: Some(Ask::Status(status)) };
        assert_eq!(request.encode_to_vec(), [0x2a, 8, 0x0a, 2, b'c', b'h', 0x12, 2, b'a', b'b']);
        let transactions = vec![Committed { tx_id: "ab".into(), code: 11 }];
        let notice = Notice { channel: "ch".into(), number: 7, transactions, failure: None };
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
            EndorseError::Duplicate(TxId::from("g")),
            EndorseError::Overloaded,
            EndorseError::TimedOut(Duration::from_millis(8)),
            EndorseError::State { kind: ErrorKind::Corrupt, message: "h".into() },
            EndorseError::Stopped,
            EndorseError::ChannelStopped { channel: "i".into(), cause: "j".into() },
        ];
        for error in errors {
            let again = Failure::of_endorse(&error).into_endorse();
            assert_eq!((again.kind(), again.to_string()), (error.kind(), error.to_string()));
        }
        let rejected = BroadcastError::Rejected { status: Status::Forbidden, reason: "i".into() };
        let elsewhere = BroadcastError::NotLeading { leader: Some(Processor(2)) };
        let nobody = BroadcastError::NotLeading { leader: None };
        let others = [BroadcastError::Overloaded, BroadcastError::Stopped, BroadcastError::Ambiguous];
        for error in [rejected, elsewhere, nobody].into_iter().chain(others) {
            let again = Failure::of_broadcast(&error).into_broadcast();
            assert_eq!((again.status(), again.to_string()), (error.status(), error.to_string()));
        }
    }

    /// A peer of another organisation answered with millions of empty texts, two bytes each on the wire and 24 in memory, and more
    /// while the list grew.
    #[test]
    fn messages_of_nothing_but_tiny_fields_are_refused() {
        let tiny = |tag: u8, count: usize| [tag, 0].repeat(count);
        let framed = |failure: &[u8]| {
            let mut answer = Vec::new();
            ledger::wire::put_bytes(&mut answer, ANSWER_FAILURE, failure);
            Bytes::from(answer)
        };
        assert!(Answer::read(framed(&tiny(0x12, FIELDS_FREE))).is_ok());
        assert!(matches!(Answer::read(framed(&tiny(0x12, 10_000))), Err(Malformed::Fields { count: 10_000, .. })));
        assert!(matches!(decode::<Notice>(tiny(0x1a, 10_000).into()), Err(Malformed::Fields { .. })));
        assert!(matches!(decode::<Welcome>(tiny(0x12, 10_000).into()), Err(Malformed::Fields { .. })));
        let transactions = (0..10_000).map(|number| Committed { tx_id: format!("{number:064x}"), code: 0 });
        let notice = Notice { transactions: transactions.collect(), ..Notice::default() };
        assert_eq!(decode(notice.encode_to_vec().into()), Ok(notice));
        // A search found that many failures of few texts each become one of many.
        let merged = framed(&tiny(0x12, 16)).repeat(256);
        assert_eq!(Answer::read(merged.into()), Err(Malformed::Failures));
        // What a contract answers may look like a message of tiny fields.
        let answer = Answer { result: tiny(0x0a, 10_000).into(), failure: None };
        assert_eq!(Answer::read(answer.encode_to_vec().into()), Ok(answer));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(request) = Request::decode(&bytes[..]) {
                prop_assert_eq!(Request::decode(&request.encode_to_vec()[..]), Ok(request));
            }
            let _ = Failure::decode(&bytes[..]).map(|failure| (failure.clone().into_endorse(), failure.into_broadcast()));
        }
    }
}
