//! The messages between a primary and its followers (docs/formats/followers.md).
//!
//! A message of a link starts with a byte for its kind; numbers are little-endian. An update of the primary is a
//! sequence of changes, each of which starts with a byte for its kind.
//!
//! Invariant: any bytes decode into a message or an error; nothing is allocated for a length that is only claimed.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use base::bytes::{Buf as _, BufMut as _};
use base::{Bytes, BytesMut, Version};

use super::super::delta::{DeltaVersion, ValueLocation};
use super::super::evict::EvictionCandidate;
use super::super::index::{KeyHash, Subtable};
use super::super::memory::Section;
use super::super::pointer::Pointer;
use super::super::record::KeyName;

/// Raised with every change of the messages or of their meaning.
pub const VERSION: u32 = 2;
/// Candidates in one question at most.
pub const CANDIDATES_MAX: usize = 1024;

/// Bytes that are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message between primary and follower: {0}")]
pub struct Malformed(&'static str);

/// Messages of a follower.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToPrimary {
    /// The first message.
    Join {
        /// The follower's [`VERSION`].
        version: u32,
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
        /// The primary's [`VERSION`]. If it is not the follower's, the other fields are 0.
        version: u32,
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
        let mut rest = &self.encoded[..];
        (0..self.count)
            .map(move |_| BlockWrite::next(&mut rest).expect("the form was checked when the change was read"))
    }
}

impl<'a> BlockWrite<'a> {
    fn next(rest: &mut &'a [u8]) -> Result<BlockWrite<'a>, Malformed> {
        let name = KeyName { namespace: text(rest)?, key: text(rest)? };
        let version = Version { block: u64::from_le_bytes(array(rest)?), tx: u32::from_le_bytes(array(rest)?) };
        let place = match array(rest)? {
            [location::DELETED] => WriteLocation::Deleted,
            [location::REMOTE] => {
                let pointer = Pointer::from_bits(u64::from_le_bytes(array(rest)?));
                WriteLocation::Remote(pointer, u32::from_le_bytes(array(rest)?))
            }
            [location::INLINE] => {
                let length = u32::from_le_bytes(array(rest)?) as usize;
                WriteLocation::Inline(split(rest, length)?)
            }
            [location::STORAGE] => WriteLocation::Storage,
            _ => return Err(Malformed("unknown location of a value")),
        };
        Ok(BlockWrite { name, version, location: place })
    }
}

fn split<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], Malformed> {
    let (first, others) = rest.split_at_checked(count).ok_or(SHORT)?;
    *rest = others;
    Ok(first)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (first, others) = rest.split_first_chunk::<N>().ok_or(SHORT)?;
    *rest = others;
    Ok(*first)
}

fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    let length = usize::from(u16::from_le_bytes(array(rest)?));
    std::str::from_utf8(split(rest, length)?).map_err(|_| NO_TEXT)
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
        let mut bytes = BytesMut::new();
        match self {
            ToPrimary::Join { version } => {
                bytes.put_u8(kind::JOIN);
                bytes.put_u32_le(*version);
            }
            ToPrimary::Ack { sequence, asked, floor, load } => {
                bytes.put_u8(kind::ACK);
                [sequence, asked, floor].into_iter().for_each(|number| bytes.put_u64_le(*number));
                bytes.put_u8(*load);
            }
            ToPrimary::InUse { number, in_use } => {
                bytes.put_u8(kind::IN_USE);
                bytes.put_u64_le(*number);
                in_use.iter().for_each(|one| bytes.put_u8(u8::from(*one)));
            }
            ToPrimary::Fill { namespace, key } => {
                bytes.put_u8(kind::FILL);
                put_name(&mut bytes, KeyName { namespace, key });
            }
            ToPrimary::Persist { height } => {
                bytes.put_u8(kind::PERSIST);
                bytes.put_u64_le(*height);
            }
            ToPrimary::Done { number, height, answer } => {
                bytes.put_u8(kind::DONE);
                [number, height].into_iter().for_each(|number| bytes.put_u64_le(*number));
                bytes.put_slice(answer);
            }
        }
        bytes.freeze()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not exactly one message of a follower.
    pub fn decode(bytes: Bytes) -> Result<ToPrimary, Malformed> {
        let mut reader = Reader(bytes);
        let message = match reader.u8()? {
            kind::JOIN => ToPrimary::Join { version: reader.u32()? },
            kind::ACK => {
                let (sequence, asked, floor) = (reader.u64()?, reader.u64()?, reader.u64()?);
                ToPrimary::Ack { sequence, asked, floor, load: reader.u8()? }
            }
            kind::IN_USE => {
                let number = reader.u64()?;
                let bits = reader.take(reader.0.len())?;
                if bits.len() > CANDIDATES_MAX || bits.iter().any(|bit| *bit > 1) {
                    return Err(Malformed("an answer about records in use is too long, or has invalid flags"));
                }
                ToPrimary::InUse { number, in_use: bits.iter().map(|bit| *bit == 1).collect() }
            }
            kind::FILL => {
                let (namespace, key) = reader.name()?;
                ToPrimary::Fill { namespace, key }
            }
            kind::PERSIST => ToPrimary::Persist { height: reader.u64()? },
            kind::DONE => {
                let (number, height) = (reader.u64()?, reader.u64()?);
                ToPrimary::Done { number, height, answer: reader.take(reader.0.len())? }
            }
            _ => return Err(Malformed("unknown kind of message")),
        };
        reader.end()?;
        Ok(message)
    }
}

impl ToFollower {
    /// The bytes of the message, as docs/formats/followers.md draws them.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        match self {
            ToFollower::Welcome { version, seed, base, savepoint: settled, forgotten, budget_bytes } => {
                bytes.put_u8(kind::WELCOME);
                bytes.put_u32_le(*version);
                let numbers = [seed, base, settled, forgotten, budget_bytes];
                numbers.into_iter().for_each(|number| bytes.put_u64_le(*number));
            }
            ToFollower::CatchUp { changes } => {
                bytes.put_u8(kind::CATCH_UP);
                bytes.put_slice(changes);
            }
            ToFollower::Update { sequence, granted, oldest, notes_uses, changes } => {
                bytes.reserve(26 + changes.len());
                bytes.put_u8(kind::UPDATE);
                [sequence, granted, oldest].into_iter().for_each(|number| bytes.put_u64_le(*number));
                bytes.put_u8(u8::from(*notes_uses));
                bytes.put_slice(changes);
            }
            ToFollower::InUseQuery { number, candidates } => {
                bytes.put_u8(kind::IN_USE_QUERY);
                bytes.put_u64_le(*number);
                for EvictionCandidate { pointer, hash } in candidates {
                    bytes.put_u64_le(pointer.bits());
                    bytes.put_u64_le(hash.0);
                }
            }
            ToFollower::Work { number, height, item: piece } => {
                bytes.reserve(17 + piece.len());
                bytes.put_u8(kind::WORK);
                [number, height].into_iter().for_each(|number| bytes.put_u64_le(*number));
                bytes.put_slice(piece);
            }
        }
        bytes.freeze()
    }

    /// Reads a message. The changes of a message are not read yet: [`StateChange::next`] does that.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not exactly one message of a primary.
    pub fn decode(bytes: Bytes) -> Result<ToFollower, Malformed> {
        let mut reader = Reader(bytes);
        match reader.u8()? {
            kind::WELCOME => {
                let version = reader.u32()?;
                if version != VERSION {
                    // The rest is in that version's format.
                    let numbers = (0, 0, 0, 0, 0);
                    let (seed, base, settled, forgotten, budget_bytes) = numbers;
                    return Ok(ToFollower::Welcome {
                        version,
                        seed,
                        base,
                        savepoint: settled,
                        forgotten,
                        budget_bytes,
                    });
                }
                let welcome = ToFollower::Welcome {
                    version,
                    seed: reader.u64()?,
                    base: reader.u64()?,
                    savepoint: reader.u64()?,
                    forgotten: reader.u64()?,
                    budget_bytes: reader.u64()?,
                };
                reader.end()?;
                Ok(welcome)
            }
            kind::CATCH_UP => Ok(ToFollower::CatchUp { changes: reader.0 }),
            kind::UPDATE => Ok(ToFollower::Update {
                sequence: reader.u64()?,
                granted: reader.u64()?,
                oldest: reader.u64()?,
                notes_uses: reader.flag()?,
                changes: reader.0,
            }),
            kind::IN_USE_QUERY => {
                let number = reader.u64()?;
                if !reader.0.len().is_multiple_of(16) || reader.0.len() / 16 > CANDIDATES_MAX {
                    return Err(Malformed("a question about records in use has a wrong length"));
                }
                let count = reader.0.len() / 16;
                let candidate = |_| {
                    Ok(EvictionCandidate { pointer: Pointer::from_bits(reader.u64()?), hash: KeyHash(reader.u64()?) })
                };
                let candidates = (0..count).map(candidate).collect::<Result<_, Malformed>>()?;
                Ok(ToFollower::InUseQuery { number, candidates })
            }
            kind::WORK => Ok(ToFollower::Work { number: reader.u64()?, height: reader.u64()?, item: reader.0 }),
            _ => Err(Malformed("unknown kind of message")),
        }
    }
}

/// Appends changes in their encoding.
pub struct ChangeLog<'a>(pub &'a mut BytesMut);

impl ChangeLog<'_> {
    /// Appends [`StateChange::Section`]; `place` is the location that
    /// [`Memory::grant_read`](super::super::memory::Memory::grant_read) returned.
    pub fn section(&mut self, section: &Section, place: &[u8]) {
        self.0.put_u8(change::SECTION);
        self.0.put_u32_le(section.id);
        self.0.put_u64_le(section.address);
        self.0.put_u64_le(section.bytes);
        put_bytes(self.0, place);
    }

    /// Appends [`StateChange::SectionGone`].
    pub fn section_gone(&mut self, base: u64) {
        self.0.put_u8(change::SECTION_GONE);
        self.0.put_u64_le(base);
    }

    /// Appends [`StateChange::Subtable`].
    pub fn subtable(&mut self, subtable: &Subtable) {
        self.0.put_u8(change::SUBTABLE);
        self.0.put_u64_le(subtable.address);
        self.0.put_u64_le(subtable.header());
    }

    /// Appends [`StateChange::Detached`].
    pub fn detached(&mut self, name: KeyName<'_>, pointer: Pointer) {
        self.0.put_u8(change::DETACHED);
        put_name(self.0, name);
        self.0.put_u64_le(pointer.bits());
    }

    /// Appends [`StateChange::Evicted`].
    pub fn evicted(&mut self, name: KeyName<'_>, pointer: Pointer) {
        self.0.put_u8(change::EVICTED);
        put_name(self.0, name);
        self.0.put_u64_le(pointer.bits());
    }

    /// Appends [`StateChange::Forgotten`].
    pub fn forgotten(&mut self, height: u64) {
        self.0.put_u8(change::FORGOTTEN);
        self.0.put_u64_le(height);
    }

    /// Appends [`StateChange::SavepointAdvanced`].
    pub fn savepoint_advanced(&mut self, height: u64) {
        self.0.put_u8(change::SAVEPOINT_ADVANCED);
        self.0.put_u64_le(height);
    }

    /// Appends [`StateChange::Block`]. The writes come in ascending order of namespace and key, and all are of block
    /// `number`.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn block<'w>(&mut self, number: u64, writes: impl Iterator<Item = (KeyName<'w>, DeltaVersion)>) {
        self.0.put_u8(change::BLOCK);
        self.0.put_u64_le(number);
        let count_at = self.0.len();
        self.0.put_u32_le(0);
        let mut count = 0u32;
        for (name, DeltaVersion { version, location: place }) in writes {
            count += 1;
            put_name(self.0, name);
            self.0.put_u64_le(version.block);
            self.0.put_u32_le(version.tx);
            match place {
                ValueLocation::Deleted => self.0.put_u8(location::DELETED),
                ValueLocation::Remote(pointer, bytes) => {
                    self.0.put_u8(location::REMOTE);
                    self.0.put_u64_le(pointer.bits());
                    self.0.put_u32_le(bytes);
                }
                ValueLocation::Inline(value) => {
                    self.0.put_u8(location::INLINE);
                    put_bytes(self.0, &value);
                }
                ValueLocation::Storage => self.0.put_u8(location::STORAGE),
            }
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
        let mut reader = Reader(std::mem::take(changes));
        let change = match reader.u8()? {
            change::SECTION => {
                let section = Section { id: reader.u32()?, address: reader.u64()?, bytes: reader.u64()? };
                StateChange::Section { section, read_grant: reader.bytes()? }
            }
            change::SECTION_GONE => StateChange::SectionGone { base: reader.u64()? },
            change::SUBTABLE => {
                let (address, header) = (reader.u64()?, reader.u64()?);
                StateChange::Subtable(
                    Subtable::of_header(address, header).ok_or(Malformed("invalid header of a subtable"))?,
                )
            }
            change::DETACHED => {
                let (namespace, key) = reader.name()?;
                StateChange::Detached { namespace, key, pointer: Pointer::from_bits(reader.u64()?) }
            }
            change::EVICTED => {
                let (namespace, key) = reader.name()?;
                StateChange::Evicted { namespace, key, pointer: Pointer::from_bits(reader.u64()?) }
            }
            change::FORGOTTEN => StateChange::Forgotten { height: reader.u64()? },
            change::SAVEPOINT_ADVANCED => StateChange::SavepointAdvanced { height: reader.u64()? },
            change::BLOCK => {
                let number = reader.u64()?;
                let count = reader.u32()?;
                let (mut rest, mut last) = (&reader.0[..], None);
                for _ in 0..count {
                    let BlockWrite { name: KeyName { namespace, key }, version, .. } = BlockWrite::next(&mut rest)?;
                    if last.is_some_and(|last| last >= (namespace, key)) {
                        return Err(Malformed("names out of order"));
                    }
                    if version.block != number {
                        return Err(Malformed("a write of another block"));
                    }
                    last = Some((namespace, key));
                }
                let bytes = reader.0.len().saturating_sub(rest.len());
                StateChange::Block { number, writes: BlockWrites { count, encoded: reader.take(bytes)? } }
            }
            _ => return Err(Malformed("unknown kind of change")),
        };
        *changes = reader.0;
        Ok(Some(change))
    }
}

fn put_bytes(into: &mut BytesMut, bytes: &[u8]) {
    into.put_u32_le(u32::try_from(bytes.len()).expect("a value is within the limits of storage"));
    into.put_slice(bytes);
}

fn put_name(into: &mut BytesMut, KeyName { namespace, key }: KeyName<'_>) {
    for text in [namespace, key] {
        into.put_u16_le(u16::try_from(text.len()).expect("names are within the limits of storage"));
        into.put_slice(text.as_bytes());
    }
}

/// The rest of a message.
struct Reader(Bytes);

const SHORT: Malformed = Malformed("it is too short");
const NO_TEXT: Malformed = Malformed("a name is not UTF-8");

impl Reader {
    fn take(&mut self, count: usize) -> Result<Bytes, Malformed> {
        if count > self.0.len() {
            return Err(SHORT);
        }
        Ok(self.0.split_to(count))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.0.try_get_u8().map_err(|_| SHORT)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.0.try_get_u16_le().map_err(|_| SHORT)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.0.try_get_u32_le().map_err(|_| SHORT)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.0.try_get_u64_le().map_err(|_| SHORT)
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }

    fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let count = self.u32()? as usize;
        self.take(count)
    }

    fn text(&mut self) -> Result<Arc<str>, Malformed> {
        let count = usize::from(self.u16()?);
        let bytes = self.take(count)?;
        std::str::from_utf8(&bytes).map(Arc::from).map_err(|_| NO_TEXT)
    }

    fn name(&mut self) -> Result<(Arc<str>, Arc<str>), Malformed> {
        Ok((self.text()?, self.text()?))
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("it is too long")) }
    }
}
