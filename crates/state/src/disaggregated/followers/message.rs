//! The messages between a primary and its followers (docs/formats/followers.md).
//!
//! A message of a link starts with a byte for its kind; numbers are little-endian. An update of the primary is a
//! sequence of changes, each of which starts with a byte for its kind.
//!
//! Invariant: any bytes decode into a message or an error; nothing is allocated for a length that is only claimed.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use base::{Bytes, BytesMut, Version};
use wire::hello::{Hello, HelloAnswer};
use wire::{Malformed, Reader, VersionRange, Writer};

use super::super::delta::{DeltaVersion, ValueLocation};
use super::super::evict::EvictionCandidate;
use super::super::index::{KeyHash, Subtable};
use super::super::memory::Section;
use super::super::pointer::Pointer;
use super::super::record::KeyName;

/// The versions that this program speaks. The newest is raised with every change of the messages or of their meaning.
pub const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(2);
const PURPOSE: [u8; 8] = *b"HDLRFOLL";
/// Candidates in one question at most.
pub const CANDIDATES_MAX: usize = 1024;

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
        /// How busy the follower's cores are, in percent; [`NO_WORK`](super::work::NO_WORK) if it takes no work.
        load: u8,
    },
    /// Which of the candidates are in use, in the order asked.
    InUse {
        /// The number of the question.
        number: u64,
        /// One answer for each candidate; at most [`CANDIDATES_MAX`].
        in_use: Vec<bool>,
    },
    /// The follower read a key from storage, and asks the primary to bring its record back to memory.
    Fill {
        /// The namespace of the key.
        namespace: Arc<str>,
        /// The key.
        key: Arc<str>,
    },
    /// A version is in no memory that the follower can read: storage has to materialise it.
    Persist {
        /// Storage has to materialise the blocks below this height.
        height: u64,
    },
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
        /// The seed of the primary's key hashes.
        seed: u64,
        /// Blocks below this number are in storage; those from it on follow as changes.
        base: u64,
        /// Storage has the blocks below this height as rows.
        savepoint: u64,
        /// `prev` of versions of blocks below this height must not be followed.
        forgotten: u64,
        /// The budget of remote memory in bytes.
        budget_bytes: u64,
    },
    /// Answers a join of other versions; the link ends.
    OtherVersions(HelloAnswer),
    /// A part of the state that the follower has missed; not acknowledged.
    CatchUp {
        /// Encoded changes, which [`StateChange::next`] reads.
        changes: Bytes,
    },
    /// The latest changes.
    Update {
        /// The number of the update.
        sequence: u64,
        /// The newest `asked` of the follower for which the primary granted a lease; 0 for none.
        granted: u64,
        /// The follower must not read views below this height.
        oldest: u64,
        /// Whether the follower is to note which records it uses, because eviction is near.
        notes_uses: bool,
        /// Encoded changes, which [`StateChange::next`] reads.
        changes: Bytes,
    },
    /// Asks which of these records are in use.
    InUseQuery {
        /// The number of the question, which the answer repeats.
        number: u64,
        /// The records; at most [`CANDIDATES_MAX`].
        candidates: Vec<EvictionCandidate>,
    },
    /// A work item.
    Work {
        /// The number of the work item, which the answer repeats.
        number: u64,
        /// The height that the follower must have reached before it starts.
        height: u64,
        /// The work, at most [`WORK_ITEM_BYTES_MAX`](super::work::WORK_ITEM_BYTES_MAX) bytes.
        item: Bytes,
    },
}

/// A change made by the primary.
#[derive(Clone, Debug)]
pub enum StateChange {
    /// The follower may read a section.
    Section {
        /// The section.
        section: Section,
        /// The location that [`ReadOnlyMemory::enter`](super::super::memory::ReadOnlyMemory::enter) takes.
        read_grant: Bytes,
    },
    /// Everything in a section is void.
    SectionGone {
        /// The first address of the section.
        base: u64,
    },
    /// A subtable serves the hashes of its suffix.
    Subtable(Subtable),
    /// No record of the key is at this pointer any more.
    Detached {
        /// The namespace of the key.
        namespace: Arc<str>,
        /// The key.
        key: Arc<str>,
        /// Where the record was.
        pointer: Pointer,
    },
    /// No record of the key is at this pointer any more; the version that was there is still the newest.
    Evicted {
        /// The namespace of the key.
        namespace: Arc<str>,
        /// The key.
        key: Arc<str>,
        /// Where the record was.
        pointer: Pointer,
    },
    /// `prev` of versions of blocks below a height must not be followed.
    Forgotten {
        /// That height.
        height: u64,
    },
    /// Storage has the blocks below a height as rows.
    SavepointAdvanced {
        /// That height.
        height: u64,
    },
    /// The primary has applied a block to remote memory.
    Block {
        /// The number of the block.
        number: u64,
        /// Its writes.
        writes: BlockWrites,
    },
}

/// The writes of a block, still encoded as received.
#[derive(Clone, Debug)]
pub struct BlockWrites {
    count: u32,
    /// Checked to be well-formed.
    encoded: Bytes,
}

/// One write of a block.
#[derive(Clone, Debug)]
pub struct BlockWrite<'a> {
    /// Namespace and key.
    pub name: KeyName<'a>,
    /// The transaction that made the write.
    pub version: Version,
    /// Where the value is.
    pub location: WriteLocation<'a>,
}

/// As [`ValueLocation`], with the value still in the received bytes.
#[derive(Clone, Copy, Debug)]
pub enum WriteLocation<'a> {
    /// Nowhere: the key was deleted.
    Deleted,
    /// In remote memory: the pointer, and the bytes of the record.
    Remote(Pointer, u32),
    /// Here.
    Inline(&'a [u8]),
    /// In storage, once the savepoint covers it.
    Storage,
}

impl BlockWrites {
    /// The writes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = BlockWrite<'_>> {
        let mut rest = Reader::new(&self.encoded[..]);
        (0..self.count)
            .map(move |_| BlockWrite::next(&mut rest).expect("the form was checked when the change was read"))
    }
}

impl<'a> BlockWrite<'a> {
    fn next(reader: &mut Reader<&'a [u8]>) -> Result<BlockWrite<'a>, Malformed> {
        let name = KeyName { namespace: reader.str(usize::MAX)?, key: reader.str(usize::MAX)? };
        let version = Version { block: reader.u64()?, tx: reader.u32()? };
        let location = match reader.u8()? {
            location::DELETED => WriteLocation::Deleted,
            location::REMOTE => WriteLocation::Remote(Pointer::from_bits(reader.u64()?), reader.u32()?),
            location::INLINE => WriteLocation::Inline(reader.long(usize::MAX)?),
            location::STORAGE => WriteLocation::Storage,
            _ => return Err(reader.malformed("unknown location of a value")),
        };
        Ok(BlockWrite { name, version, location })
    }
}

mod kind {
    pub const JOIN: u8 = 0x01;
    pub const ACK: u8 = 0x02;
    pub const IN_USE: u8 = 0x03;
    pub const FILL: u8 = 0x04;
    pub const PERSIST: u8 = 0x05;
    pub const DONE: u8 = 0x06;
    pub const WELCOME: u8 = 0x81;
    pub const CATCH_UP: u8 = 0x82;
    pub const UPDATE: u8 = 0x83;
    pub const IN_USE_QUERY: u8 = 0x84;
    pub const WORK: u8 = 0x85;
}

mod change {
    pub const SECTION: u8 = 1;
    pub const SECTION_GONE: u8 = 2;
    pub const SUBTABLE: u8 = 3;
    pub const DETACHED: u8 = 4;
    pub const EVICTED: u8 = 5;
    pub const FORGOTTEN: u8 = 6;
    pub const SAVEPOINT_ADVANCED: u8 = 7;
    pub const BLOCK: u8 = 8;
}

mod location {
    pub const DELETED: u8 = 0;
    pub const REMOTE: u8 = 1;
    pub const INLINE: u8 = 2;
    pub const STORAGE: u8 = 3;
}

impl ToPrimary {
    /// The bytes of the message, as docs/formats/followers.md draws them.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        match self {
            ToPrimary::Join { versions } => {
                writer.u8(kind::JOIN).put(&Hello { purpose: PURPOSE, versions: *versions }.encode())
            }
            ToPrimary::Ack { sequence, asked, floor, load } => {
                writer.u8(kind::ACK).u64s([*sequence, *asked, *floor]).u8(*load)
            }
            ToPrimary::InUse { number, in_use } => {
                writer.u8(kind::IN_USE).u64(*number);
                in_use.iter().fold(&mut writer, |writer, one| writer.flag(*one))
            }
            ToPrimary::Fill { namespace, key } => writer.u8(kind::FILL).text(namespace).text(key),
            ToPrimary::Persist { height } => writer.u8(kind::PERSIST).u64(*height),
            ToPrimary::Done { number, height, answer } => writer.u8(kind::DONE).u64(*number).u64(*height).put(answer),
        };
        writer.done()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not exactly one message of a follower.
    pub fn decode(bytes: Bytes) -> Result<ToPrimary, Malformed> {
        let mut reader = Reader::new(bytes);
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
                ToPrimary::Ack { sequence, asked, floor, load: reader.u8()? }
            }
            kind::IN_USE => {
                let number = reader.u64()?;
                let bits = reader.rest();
                if bits.len() > CANDIDATES_MAX || bits.iter().any(|bit| *bit > 1) {
                    return Err(reader.malformed("an answer about records in use is too long, or has invalid flags"));
                }
                ToPrimary::InUse { number, in_use: bits.iter().map(|bit| *bit == 1).collect() }
            }
            kind::FILL => {
                let (namespace, key) = name(&mut reader)?;
                ToPrimary::Fill { namespace, key }
            }
            kind::PERSIST => ToPrimary::Persist { height: reader.u64()? },
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
    /// The bytes of the message, as docs/formats/followers.md draws them.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        match self {
            ToFollower::Welcome { hello, seed, base, savepoint, forgotten, budget_bytes } => {
                let numbers = [*seed, *base, *savepoint, *forgotten, *budget_bytes];
                writer.u8(kind::WELCOME).put(&hello.encode()).u64s(numbers)
            }
            ToFollower::OtherVersions(hello) => writer.u8(kind::WELCOME).put(&hello.encode()),
            ToFollower::CatchUp { changes } => writer.u8(kind::CATCH_UP).put(changes),
            ToFollower::Update { sequence, granted, oldest, notes_uses, changes } => {
                writer.reserve(changes.len().saturating_add(26)).u8(kind::UPDATE);
                writer.u64s([*sequence, *granted, *oldest]).flag(*notes_uses).put(changes)
            }
            ToFollower::InUseQuery { number, candidates } => {
                writer.u8(kind::IN_USE_QUERY).u64(*number);
                writer.u64s(candidates.iter().flat_map(|candidate| [candidate.pointer.bits(), candidate.hash.0]))
            }
            ToFollower::Work { number, height, item } => {
                writer.reserve(item.len().saturating_add(17));
                writer.u8(kind::WORK).u64(*number).u64(*height).put(item)
            }
        };
        writer.done()
    }

    /// Reads a message. The changes of a message are not read yet: [`StateChange::next`] does that.
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
                let welcome = ToFollower::Welcome {
                    hello,
                    seed: reader.u64()?,
                    base: reader.u64()?,
                    savepoint: reader.u64()?,
                    forgotten: reader.u64()?,
                    budget_bytes: reader.u64()?,
                };
                reader.end()?;
                Ok(welcome)
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
                let candidate = |_| {
                    Ok(EvictionCandidate { pointer: Pointer::from_bits(reader.u64()?), hash: KeyHash(reader.u64()?) })
                };
                let candidates = (0..count).map(candidate).collect::<Result<_, Malformed>>()?;
                Ok(ToFollower::InUseQuery { number, candidates })
            }
            kind::WORK => Ok(ToFollower::Work { number: reader.u64()?, height: reader.u64()?, item: reader.rest() }),
            _ => Err(reader.malformed("unknown kind of message")),
        }
    }
}

/// Appends changes in their encoding.
pub struct ChangeLog<'a>(pub &'a mut BytesMut);

impl ChangeLog<'_> {
    fn change(&mut self, kind: u8) -> Writer<&mut BytesMut> {
        let mut writer = Writer::onto(&mut *self.0);
        writer.u8(kind);
        writer
    }

    /// Appends [`StateChange::Section`]; `place` is the location that
    /// [`Memory::grant_read`](super::super::memory::Memory::grant_read) returned.
    pub fn section(&mut self, section: &Section, place: &[u8]) {
        self.change(change::SECTION).u32(section.id).u64(section.address).u64(section.bytes).long(place);
    }

    /// Appends [`StateChange::SectionGone`].
    pub fn section_gone(&mut self, base: u64) {
        self.change(change::SECTION_GONE).u64(base);
    }

    /// Appends [`StateChange::Subtable`].
    pub fn subtable(&mut self, subtable: &Subtable) {
        self.change(change::SUBTABLE).u64(subtable.address).u64(subtable.header());
    }

    /// Appends [`StateChange::Detached`].
    pub fn detached(&mut self, name: KeyName<'_>, pointer: Pointer) {
        self.change(change::DETACHED).text(name.namespace).text(name.key).u64(pointer.bits());
    }

    /// Appends [`StateChange::Evicted`].
    pub fn evicted(&mut self, name: KeyName<'_>, pointer: Pointer) {
        self.change(change::EVICTED).text(name.namespace).text(name.key).u64(pointer.bits());
    }

    /// Appends [`StateChange::Forgotten`].
    pub fn forgotten(&mut self, height: u64) {
        self.change(change::FORGOTTEN).u64(height);
    }

    /// Appends [`StateChange::SavepointAdvanced`].
    pub fn savepoint_advanced(&mut self, height: u64) {
        self.change(change::SAVEPOINT_ADVANCED).u64(height);
    }

    /// Appends [`StateChange::Block`]. The writes come in ascending order of namespace and key, and all are of block
    /// `number`.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn block<'w>(&mut self, number: u64, writes: impl Iterator<Item = (KeyName<'w>, DeltaVersion)>) {
        self.change(change::BLOCK).u64(number);
        let count_at = self.0.len();
        let mut writer = Writer::onto(&mut *self.0);
        writer.u32(0);
        let mut count = 0u32;
        for (name, DeltaVersion { version, location }) in writes {
            count += 1;
            writer.text(name.namespace).text(name.key).u64(version.block).u32(version.tx);
            match location {
                ValueLocation::Deleted => writer.u8(location::DELETED),
                ValueLocation::Remote(pointer, bytes) => writer.u8(location::REMOTE).u64(pointer.bits()).u32(bytes),
                ValueLocation::Inline(value) => writer.u8(location::INLINE).long(&value),
                ValueLocation::Storage => writer.u8(location::STORAGE),
            };
        }
        self.0[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
    }
}

impl StateChange {
    /// The next of several changes; `None` after the last.
    pub fn next(changes: &mut Bytes) -> Result<Option<StateChange>, Malformed> {
        if changes.is_empty() {
            return Ok(None);
        }
        let mut reader = Reader::new(std::mem::take(changes));
        let change = match reader.u8()? {
            change::SECTION => {
                let section = Section { id: reader.u32()?, address: reader.u64()?, bytes: reader.u64()? };
                StateChange::Section { section, read_grant: reader.long(usize::MAX)? }
            }
            change::SECTION_GONE => StateChange::SectionGone { base: reader.u64()? },
            change::SUBTABLE => {
                let (address, header) = (reader.u64()?, reader.u64()?);
                StateChange::Subtable(
                    Subtable::of_header(address, header)
                        .ok_or_else(|| reader.malformed("invalid header of a subtable"))?,
                )
            }
            change::DETACHED => {
                let (namespace, key) = name(&mut reader)?;
                StateChange::Detached { namespace, key, pointer: Pointer::from_bits(reader.u64()?) }
            }
            change::EVICTED => {
                let (namespace, key) = name(&mut reader)?;
                StateChange::Evicted { namespace, key, pointer: Pointer::from_bits(reader.u64()?) }
            }
            change::FORGOTTEN => StateChange::Forgotten { height: reader.u64()? },
            change::SAVEPOINT_ADVANCED => StateChange::SavepointAdvanced { height: reader.u64()? },
            change::BLOCK => {
                let number = reader.u64()?;
                let count = reader.u32()?;
                let encoded = reader.span(|ahead| {
                    let mut last = None;
                    for _ in 0..count {
                        let BlockWrite { name: KeyName { namespace, key }, version, .. } = BlockWrite::next(ahead)?;
                        if last.is_some_and(|last| last >= (namespace, key)) {
                            return Err(ahead.malformed("names out of order"));
                        }
                        if version.block != number {
                            return Err(ahead.malformed("a write of another block"));
                        }
                        last = Some((namespace, key));
                    }
                    Ok(())
                })?;
                StateChange::Block { number, writes: BlockWrites { count, encoded } }
            }
            _ => return Err(reader.malformed("unknown kind of change")),
        };
        *changes = reader.rest();
        Ok(Some(change))
    }
}

fn name(reader: &mut Reader<Bytes>) -> Result<(Arc<str>, Arc<str>), Malformed> {
    Ok((reader.text(usize::MAX)?.into(), reader.text(usize::MAX)?.into()))
}
