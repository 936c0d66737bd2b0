//! The messages between a primary and its followers (docs/formats/followers.md).
//!
//! The first byte of a message is its kind; numbers are little-endian. Four fields are opaque here, because only the
//! replicated state interprets them: the basis of a join, the changes of an update, the candidates of a query, and a
//! follower's requests.
//!
//! Invariant: any bytes decode into a message or an error. The decoder checks each claimed length against the bytes of
//! the message before it allocates memory.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;
use base::rt::net::GatherList;
use wire::hello::{Hello, HelloAnswer};
use wire::{Malformed, Reader, VersionRange, Writer};

use crate::load::{LoadReport, NodeAddresses};

/// The versions that this program speaks. The newest is raised with every change of the messages or of their meaning.
/// Followers of version 2 report no queue, do not announce themselves, and get no work: their work items were smaller.
pub const PROTOCOL_VERSIONS: VersionRange = VersionRange::new(2, 3);
/// The first version in which a follower announces itself, reports its queue, and says that it leaves.
pub const ANNOUNCED_SINCE: u32 = 3;
/// The first version whose followers take the work items of this program.
pub const WORK_VERSION_MIN: u32 = 3;
/// Bytes of one text that a follower announces.
const ANNOUNCED_BYTES_MAX: usize = 512;
const PURPOSE: [u8; 8] = *b"HDLRFOLL";
/// Candidates in one question at most.
pub const CANDIDATES_MAX: usize = 1024;

/// A record that the primary may evict, as the replicated state names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate(pub [u64; 2]);

/// What a follower says about itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Announcement {
    /// Where it answers.
    pub addresses: NodeAddresses,
    /// The name of the processors whose load it reports ([`NodeLoad::processors`](crate::load::NodeLoad::processors)).
    pub processors: String,
    /// Whether it is about to leave: it finishes what it has, and is to get nothing new.
    pub is_draining: bool,
}

/// Messages of a follower.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToPrimary {
    /// The first message.
    Join {
        /// The follower's [`PROTOCOL_VERSIONS`].
        versions: VersionRange,
    },
    /// The follower has applied everything up to an update, and asks for a lease.
    Ack {
        /// The number of that update.
        sequence: u64,
        /// The time from which on the follower asks for a lease, in nanoseconds of its clock.
        asked: u64,
        /// The lowest height that the follower still reads.
        floor: u64,
        /// How busy the follower's cores are, in percent; [`NO_WORK`](crate::followers::work::NO_WORK) if it takes no work.
        load: u8,
        /// What the follower has accepted and not answered; `None` before [`ANNOUNCED_SINCE`].
        queued: Option<u16>,
    },
    /// What the follower says about itself: after its welcome, and when it changes.
    Announce(Announcement),
    /// The follower has ended its session: it answers nothing any more, whatever lease it holds.
    Leave,
    /// Which of the candidates are in use, in the order asked.
    InUse {
        /// The number of the question.
        number: u64,
        /// One answer for each candidate; at most [`CANDIDATES_MAX`].
        in_use: Vec<bool>,
    },
    /// A request of the follower's state to the primary's, whole: its first byte is a kind of [`request`].
    Request(Bytes),
    /// The answer to a work item.
    Done {
        /// The number of the work item.
        number: u64,
        /// The follower's height when it started the work.
        height: u64,
        /// The result; empty if the follower has not done the work.
        answer: Bytes,
    },
}

/// Messages of the primary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToFollower {
    /// Answers a join.
    Welcome {
        /// The version that the primary has chosen, and its [`PROTOCOL_VERSIONS`].
        hello: HelloAnswer,
        /// What the follower's state starts from.
        basis: Bytes,
    },
    /// Answers a join of other versions; the link ends.
    OtherVersions(HelloAnswer),
    /// A part of the state that the follower has missed; not acknowledged.
    CatchUp {
        /// Encoded changes of the state.
        changes: Bytes,
    },
    /// The latest changes.
    Update {
        /// The number of the update.
        sequence: u64,
        /// The time of the follower's clock from which it counts the newest lease that the primary granted: when it asked, or up to
        /// a lease earlier if the lease is shorter. 0 for none.
        granted: u64,
        /// The follower must not read views below this height.
        oldest: u64,
        /// Whether the follower is to note which records it uses, because eviction is near.
        notes_uses: bool,
        /// Encoded changes of the state.
        changes: Bytes,
    },
    /// Asks which of these records are in use.
    InUseQuery {
        /// The number of the question, which the answer repeats.
        number: u64,
        /// The records; at most [`CANDIDATES_MAX`].
        candidates: Vec<Candidate>,
    },
    /// A work item.
    Work {
        /// The number of the work item, which the answer repeats.
        number: u64,
        /// The height that the follower must have reached before it starts.
        height: u64,
        /// The work, at most [`WORK_ITEM_BYTES_MAX`](crate::followers::work::WORK_ITEM_BYTES_MAX) bytes.
        item: Bytes,
    },
}

/// The kinds of messages that belong to the replicated state.
pub mod request {
    /// The follower asks the primary to bring the record of a key back to memory.
    pub const FILL: u8 = 0x04;
    /// The follower asks the primary to have storage materialise blocks.
    pub const PERSIST: u8 = 0x05;
}

mod kind {
    pub const JOIN: u8 = 0x01;
    pub const ACK: u8 = 0x02;
    pub const IN_USE: u8 = 0x03;
    pub const DONE: u8 = 0x06;
    pub const ANNOUNCE: u8 = 0x07;
    pub const LEAVE: u8 = 0x08;
    pub const WELCOME: u8 = 0x81;
    pub const CATCH_UP: u8 = 0x82;
    pub const UPDATE: u8 = 0x83;
    pub const IN_USE_QUERY: u8 = 0x84;
    pub const WORK: u8 = 0x85;
}

impl ToPrimary {
    /// The acknowledgement of an update on a link of this version.
    pub fn ack(version: u32, sequence: u64, asked: u64, floor: u64, load: LoadReport) -> ToPrimary {
        let queued = (version >= ANNOUNCED_SINCE).then_some(load.queued);
        ToPrimary::Ack { sequence, asked, floor, load: load.percent, queued }
    }

    /// The bytes of the message, as docs/formats/followers.md draws them.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        match self {
            ToPrimary::Join { versions } => {
                writer.u8(kind::JOIN).put(&Hello { purpose: PURPOSE, versions: *versions }.encode())
            }
            ToPrimary::Ack { sequence, asked, floor, load, queued } => {
                writer.u8(kind::ACK).u64s([*sequence, *asked, *floor]).u8(*load);
                queued.iter().fold(&mut writer, |writer, queued| writer.u16(*queued))
            }
            ToPrimary::Announce(Announcement { addresses, processors, is_draining }) => {
                writer.u8(kind::ANNOUNCE).flag(*is_draining);
                writer.text(&addresses.own).text(&addresses.others).text(processors)
            }
            ToPrimary::Leave => writer.u8(kind::LEAVE),
            ToPrimary::InUse { number, in_use } => {
                writer.u8(kind::IN_USE).u64(*number);
                in_use.iter().fold(&mut writer, |writer, one| writer.flag(*one))
            }
            ToPrimary::Request(request) => return request.clone(),
            ToPrimary::Done { number, height, answer } => writer.u8(kind::DONE).u64(*number).u64(*height).put(answer),
        };
        writer.done()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not exactly one message of a follower.
    pub fn decode(bytes: Bytes) -> Result<ToPrimary, Malformed> {
        let mut reader = Reader::new(bytes.clone());
        let message = match reader.u8()? {
            kind::JOIN => {
                let Hello { versions, .. } = Hello::read(&mut reader, PURPOSE)?;
                if PROTOCOL_VERSIONS.choose(versions).is_err() {
                    // The rest is in the format of those versions.
                    reader.rest();
                }
                ToPrimary::Join { versions }
            }
            kind::ACK => {
                let (sequence, asked, floor) = (reader.u64()?, reader.u64()?, reader.u64()?);
                let load = reader.u8()?;
                let queued = if reader.is_empty() { None } else { Some(reader.u16()?) };
                ToPrimary::Ack { sequence, asked, floor, load, queued }
            }
            kind::IN_USE => {
                let number = reader.u64()?;
                let bits = reader.rest();
                if bits.len() > CANDIDATES_MAX || bits.iter().any(|bit| *bit > 1) {
                    return Err(reader.malformed("an answer about records in use is too long, or has invalid flags"));
                }
                ToPrimary::InUse { number, in_use: bits.iter().map(|bit| *bit == 1).collect() }
            }
            kind::ANNOUNCE => {
                let is_draining = reader.flag()?;
                let mut text = || reader.text(ANNOUNCED_BYTES_MAX);
                let (own, others, processors) = (text()?, text()?, text()?);
                let addresses = NodeAddresses { own, others };
                ToPrimary::Announce(Announcement { addresses, processors, is_draining })
            }
            kind::LEAVE => ToPrimary::Leave,
            request::FILL | request::PERSIST => return Ok(ToPrimary::Request(bytes)),
            kind::DONE => {
                let (number, height) = (reader.u64()?, reader.u64()?);
                ToPrimary::Done { number, height, answer: reader.rest() }
            }
            _ => return Err(reader.malformed("unknown kind of message")),
        };
        reader.end()?;
        Ok(message)
    }
}

impl ToFollower {
    /// An update as it is sent: its changes are shared with the updates of other followers.
    pub fn update(sequence: u64, granted: u64, oldest: u64, notes_uses: bool, changes: Bytes) -> GatherList {
        let mut writer = Writer::new();
        let head = writer.u8(kind::UPDATE).u64s([sequence, granted, oldest]).flag(notes_uses).done();
        vec![head, changes].into()
    }

    /// The bytes of the message, as docs/formats/followers.md draws them.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        match self {
            ToFollower::Welcome { hello, basis } => writer.u8(kind::WELCOME).put(&hello.encode()).put(basis),
            ToFollower::OtherVersions(hello) => writer.u8(kind::WELCOME).put(&hello.encode()),
            ToFollower::CatchUp { changes } => writer.u8(kind::CATCH_UP).put(changes),
            ToFollower::Update { sequence, granted, oldest, notes_uses, changes } => {
                let update = ToFollower::update(*sequence, *granted, *oldest, *notes_uses, changes.clone());
                return update.concat();
            }
            ToFollower::InUseQuery { number, candidates } => {
                writer.u8(kind::IN_USE_QUERY).u64(*number);
                writer.u64s(candidates.iter().flat_map(|Candidate(words)| *words))
            }
            ToFollower::Work { number, height, item } => {
                writer.reserve(item.len().saturating_add(17));
                writer.u8(kind::WORK).u64(*number).u64(*height).put(item)
            }
        };
        writer.done()
    }

    /// Reads a message. The basis and the changes of a message are not read yet: the state does that.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not exactly one message of a primary.
    pub fn decode(bytes: Bytes) -> Result<ToFollower, Malformed> {
        let mut reader = Reader::new(bytes);
        match reader.u8()? {
            kind::WELCOME => {
                let hello = HelloAnswer::read(&mut reader)?;
                if hello.chosen_by(PROTOCOL_VERSIONS).is_err() {
                    return Ok(ToFollower::OtherVersions(hello));
                }
                Ok(ToFollower::Welcome { hello, basis: reader.rest() })
            }
            kind::CATCH_UP => Ok(ToFollower::CatchUp { changes: reader.rest() }),
            kind::UPDATE => Ok(ToFollower::Update {
                sequence: reader.u64()?,
                granted: reader.u64()?,
                oldest: reader.u64()?,
                notes_uses: reader.flag()?,
                changes: reader.rest(),
            }),
            kind::IN_USE_QUERY => {
                let number = reader.u64()?;
                let count = reader.left() / 16;
                if !reader.left().is_multiple_of(16) || count > CANDIDATES_MAX {
                    return Err(reader.malformed("a question about records in use has a wrong length"));
                }
                let candidate = |_| Ok(Candidate([reader.u64()?, reader.u64()?]));
                let candidates = (0..count).map(candidate).collect::<Result<_, Malformed>>()?;
                Ok(ToFollower::InUseQuery { number, candidates })
            }
            kind::WORK => Ok(ToFollower::Work { number: reader.u64()?, height: reader.u64()?, item: reader.rest() }),
            _ => Err(reader.malformed("unknown kind of message")),
        }
    }
}
