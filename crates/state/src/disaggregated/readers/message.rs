//! What a primary and its readers say to each other (docs/formats/readers.md).
//!
//! A message of a link begins with a byte for its kind; numbers are little-endian. An update of the primary carries changes,
//! one behind the other, each of which begins with a byte for its kind.
//!
//! Invariant: whatever arrives decodes into a message or an error; nothing is allocated for lengths that are only claimed.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use base::bytes::{Buf as _, BufMut as _};
use base::{Bytes, BytesMut, Version};

use super::super::delta::{Place, Written};
use super::super::evict::Candidate;
use super::super::index::{KeyHash, Subtable};
use super::super::memory::Section;
use super::super::pointer::Pointer;
use super::super::record::Name;

/// Raised with every change of the messages or of what they mean.
pub const VERSION: u32 = 2;
/// Candidates that are asked about at once.
pub const CANDIDATES_MAX: usize = 1024;

/// Bytes that are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a message of readers: {0}")]
pub struct Malformed(&'static str);

/// What a reader says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToPrimary {
    /// First of all.
    Join { version: u32 },
    /// Everything up to this update is in force here. `asked` is the reader's time, from which on it asks for a lease; views
    /// below `floor` are not read any more. `load` is how busy the reader's processors are, in percent.
    Ack { sequence: u64, asked: u64, floor: u64, load: u8 },
    /// Which of the candidates are in use, in the order asked.
    InUse { number: u64, in_use: Vec<bool> },
    /// This key was read from storage.
    Fill { namespace: Arc<str>, key: Arc<str> },
    /// A version below this height is in no memory that the reader can read: storage has to make rows.
    Persist { height: u64 },
    /// What became of a piece of work, which was begun at this height; nothing where the reader has not done it.
    Done { number: u64, height: u64, answer: Bytes },
}

/// What the primary says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToReader {
    /// Answers a join. Blocks below `base` are in storage; those from there on follow as changes.
    Welcome { version: u32, seed: u64, base: u64, settled: u64, forgotten: u64, budget_bytes: u64 },
    /// A part of what the reader has missed; not acknowledged.
    Part { changes: Bytes },
    /// What has changed. `granted` is the newest time of the reader's for which a lease was granted, 0 for none; views below
    /// `oldest` are not to be read.
    Update { sequence: u64, granted: u64, oldest: u64, notes_uses: bool, changes: Bytes },
    /// Which of these are in use?
    Ask { number: u64, candidates: Vec<Candidate> },
    /// A piece of work, for whoever has followed to this height.
    Work { number: u64, height: u64, piece: Bytes },
}

/// A change of the primary's.
#[derive(Clone, Debug)]
pub enum Change {
    /// The reader may read a section.
    Section { section: Section, place: Bytes },
    /// Whatever is in a section is void.
    Gone { base: u64 },
    /// A subtable serves the hashes of its suffix.
    Subtable(Subtable),
    /// No record of the key is at this pointer any more.
    Detached { namespace: Arc<str>, key: Arc<str>, pointer: Pointer },
    /// The same; the version that was there is still the newest.
    Evicted { namespace: Arc<str>, key: Arc<str>, pointer: Pointer },
    /// Versions of blocks below this height are not left by `prev`.
    Forgotten { height: u64 },
    /// Storage has the blocks below this height as rows.
    Settled { height: u64 },
    /// A block.
    Block { number: u64, writes: Writes },
}

/// The writes of a block, in the bytes in which they came.
#[derive(Clone, Debug)]
pub struct Writes {
    count: u32,
    /// Their form was checked.
    encoded: Bytes,
}

/// One write of a block.
#[derive(Clone, Debug)]
pub struct Write<'a> {
    pub name: Name<'a>,
    pub version: Version,
    pub place: WritePlace<'a>,
}

/// As [`Place`], with the value where it came.
#[derive(Clone, Copy, Debug)]
pub enum WritePlace<'a> {
    Deleted,
    Remote(Pointer, u32),
    Here(&'a [u8]),
    Storage,
}

impl Writes {
    /// The writes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Write<'_>> {
        let mut rest = &self.encoded[..];
        (0..self.count).map(move |_| Write::next(&mut rest).expect("the form was checked when the change was read"))
    }
}

impl<'a> Write<'a> {
    fn next(rest: &mut &'a [u8]) -> Result<Write<'a>, Malformed> {
        let name = Name { namespace: text(rest)?, key: text(rest)? };
        let version = Version { block: u64::from_le_bytes(array(rest)?), tx: u32::from_le_bytes(array(rest)?) };
        let place = match array(rest)? {
            [place::DELETED] => WritePlace::Deleted,
            [place::REMOTE] => {
                let pointer = Pointer::from_bits(u64::from_le_bytes(array(rest)?));
                WritePlace::Remote(pointer, u32::from_le_bytes(array(rest)?))
            }
            [place::HERE] => {
                let length = u32::from_le_bytes(array(rest)?) as usize;
                WritePlace::Here(split(rest, length)?)
            }
            [place::STORAGE] => WritePlace::Storage,
            _ => return Err(Malformed("an unknown place")),
        };
        Ok(Write { name, version, place })
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
    pub const PART: u8 = 0x82;
    pub const UPDATE: u8 = 0x83;
    pub const ASK: u8 = 0x84;
    pub const WORK: u8 = 0x85;
}

mod change {
    pub const SECTION: u8 = 1;
    pub const GONE: u8 = 2;
    pub const SUBTABLE: u8 = 3;
    pub const DETACHED: u8 = 4;
    pub const EVICTED: u8 = 5;
    pub const FORGOTTEN: u8 = 6;
    pub const SETTLED: u8 = 7;
    pub const BLOCK: u8 = 8;
}

mod place {
    pub const DELETED: u8 = 0;
    pub const REMOTE: u8 = 1;
    pub const HERE: u8 = 2;
    pub const STORAGE: u8 = 3;
}

impl ToPrimary {
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
                put_name(&mut bytes, Name { namespace, key });
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
                    return Err(Malformed("an answer about records that is none"));
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
            _ => return Err(Malformed("an unknown kind")),
        };
        reader.end()?;
        Ok(message)
    }
}

impl ToReader {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        match self {
            ToReader::Welcome { version, seed, base, settled, forgotten, budget_bytes } => {
                bytes.put_u8(kind::WELCOME);
                bytes.put_u32_le(*version);
                let numbers = [seed, base, settled, forgotten, budget_bytes];
                numbers.into_iter().for_each(|number| bytes.put_u64_le(*number));
            }
            ToReader::Part { changes } => {
                bytes.put_u8(kind::PART);
                bytes.put_slice(changes);
            }
            ToReader::Update { sequence, granted, oldest, notes_uses, changes } => {
                bytes.reserve(26 + changes.len());
                bytes.put_u8(kind::UPDATE);
                [sequence, granted, oldest].into_iter().for_each(|number| bytes.put_u64_le(*number));
                bytes.put_u8(u8::from(*notes_uses));
                bytes.put_slice(changes);
            }
            ToReader::Ask { number, candidates } => {
                bytes.put_u8(kind::ASK);
                bytes.put_u64_le(*number);
                for Candidate { pointer, hash } in candidates {
                    bytes.put_u64_le(pointer.bits());
                    bytes.put_u64_le(hash.0);
                }
            }
            ToReader::Work { number, height, piece } => {
                bytes.reserve(17 + piece.len());
                bytes.put_u8(kind::WORK);
                [number, height].into_iter().for_each(|number| bytes.put_u64_le(*number));
                bytes.put_slice(piece);
            }
        }
        bytes.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<ToReader, Malformed> {
        let mut reader = Reader(bytes);
        match reader.u8()? {
            kind::WELCOME => {
                let version = reader.u32()?;
                if version != VERSION {
                    // What follows is that version's.
                    let numbers = (0, 0, 0, 0, 0);
                    let (seed, base, settled, forgotten, budget_bytes) = numbers;
                    return Ok(ToReader::Welcome { version, seed, base, settled, forgotten, budget_bytes });
                }
                let welcome = ToReader::Welcome {
                    version,
                    seed: reader.u64()?,
                    base: reader.u64()?,
                    settled: reader.u64()?,
                    forgotten: reader.u64()?,
                    budget_bytes: reader.u64()?,
                };
                reader.end()?;
                Ok(welcome)
            }
            kind::PART => Ok(ToReader::Part { changes: reader.0 }),
            kind::UPDATE => Ok(ToReader::Update {
                sequence: reader.u64()?,
                granted: reader.u64()?,
                oldest: reader.u64()?,
                notes_uses: reader.flag()?,
                changes: reader.0,
            }),
            kind::ASK => {
                let number = reader.u64()?;
                if !reader.0.len().is_multiple_of(16) || reader.0.len() / 16 > CANDIDATES_MAX {
                    return Err(Malformed("a question of another length"));
                }
                let count = reader.0.len() / 16;
                let candidate =
                    |_| Ok(Candidate { pointer: Pointer::from_bits(reader.u64()?), hash: KeyHash(reader.u64()?) });
                let candidates = (0..count).map(candidate).collect::<Result<_, Malformed>>()?;
                Ok(ToReader::Ask { number, candidates })
            }
            kind::WORK => Ok(ToReader::Work { number: reader.u64()?, height: reader.u64()?, piece: reader.0 }),
            _ => Err(Malformed("an unknown kind")),
        }
    }
}

/// Changes as they are logged.
pub struct Changes<'a>(pub &'a mut BytesMut);

impl Changes<'_> {
    pub fn section(&mut self, section: &Section, place: &[u8]) {
        self.0.put_u8(change::SECTION);
        self.0.put_u32_le(section.id);
        self.0.put_u64_le(section.address);
        self.0.put_u64_le(section.bytes);
        put_bytes(self.0, place);
    }

    pub fn gone(&mut self, base: u64) {
        self.0.put_u8(change::GONE);
        self.0.put_u64_le(base);
    }

    pub fn subtable(&mut self, subtable: &Subtable) {
        self.0.put_u8(change::SUBTABLE);
        self.0.put_u64_le(subtable.address);
        self.0.put_u64_le(subtable.header());
    }

    pub fn detached(&mut self, name: Name<'_>, pointer: Pointer) {
        self.0.put_u8(change::DETACHED);
        put_name(self.0, name);
        self.0.put_u64_le(pointer.bits());
    }

    pub fn evicted(&mut self, name: Name<'_>, pointer: Pointer) {
        self.0.put_u8(change::EVICTED);
        put_name(self.0, name);
        self.0.put_u64_le(pointer.bits());
    }

    pub fn forgotten(&mut self, height: u64) {
        self.0.put_u8(change::FORGOTTEN);
        self.0.put_u64_le(height);
    }

    pub fn settled(&mut self, height: u64) {
        self.0.put_u8(change::SETTLED);
        self.0.put_u64_le(height);
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn block<'w>(&mut self, number: u64, writes: impl Iterator<Item = (Name<'w>, Written)>) {
        self.0.put_u8(change::BLOCK);
        self.0.put_u64_le(number);
        let count_at = self.0.len();
        self.0.put_u32_le(0);
        let mut count = 0u32;
        for (name, Written { version, place }) in writes {
            count += 1;
            put_name(self.0, name);
            self.0.put_u64_le(version.block);
            self.0.put_u32_le(version.tx);
            match place {
                Place::Deleted => self.0.put_u8(place::DELETED),
                Place::Remote(pointer, bytes) => {
                    self.0.put_u8(place::REMOTE);
                    self.0.put_u64_le(pointer.bits());
                    self.0.put_u32_le(bytes);
                }
                Place::Here(value) => {
                    self.0.put_u8(place::HERE);
                    put_bytes(self.0, &value);
                }
                Place::Storage => self.0.put_u8(place::STORAGE),
            }
        }
        self.0[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
    }
}

impl Change {
    /// The next of several changes; `None` behind the last.
    pub fn next(changes: &mut Bytes) -> Result<Option<Change>, Malformed> {
        if changes.is_empty() {
            return Ok(None);
        }
        let mut reader = Reader(std::mem::take(changes));
        let change = match reader.u8()? {
            change::SECTION => {
                let section = Section { id: reader.u32()?, address: reader.u64()?, bytes: reader.u64()? };
                Change::Section { section, place: reader.bytes()? }
            }
            change::GONE => Change::Gone { base: reader.u64()? },
            change::SUBTABLE => {
                let (address, header) = (reader.u64()?, reader.u64()?);
                Change::Subtable(Subtable::of_header(address, header).ok_or(Malformed("no header of a subtable"))?)
            }
            change::DETACHED => {
                let (namespace, key) = reader.name()?;
                Change::Detached { namespace, key, pointer: Pointer::from_bits(reader.u64()?) }
            }
            change::EVICTED => {
                let (namespace, key) = reader.name()?;
                Change::Evicted { namespace, key, pointer: Pointer::from_bits(reader.u64()?) }
            }
            change::FORGOTTEN => Change::Forgotten { height: reader.u64()? },
            change::SETTLED => Change::Settled { height: reader.u64()? },
            change::BLOCK => {
                let number = reader.u64()?;
                let count = reader.u32()?;
                let (mut rest, mut last) = (&reader.0[..], None);
                for _ in 0..count {
                    let Write { name: Name { namespace, key }, version, .. } = Write::next(&mut rest)?;
                    if last.is_some_and(|last| last >= (namespace, key)) {
                        return Err(Malformed("names out of order"));
                    }
                    if version.block != number {
                        return Err(Malformed("a write of another block"));
                    }
                    last = Some((namespace, key));
                }
                let bytes = reader.0.len().saturating_sub(rest.len());
                Change::Block { number, writes: Writes { count, encoded: reader.take(bytes)? } }
            }
            _ => return Err(Malformed("an unknown change")),
        };
        *changes = reader.0;
        Ok(Some(change))
    }
}

fn put_bytes(into: &mut BytesMut, bytes: &[u8]) {
    into.put_u32_le(u32::try_from(bytes.len()).expect("a value is within the limits of storage"));
    into.put_slice(bytes);
}

fn put_name(into: &mut BytesMut, Name { namespace, key }: Name<'_>) {
    for text in [namespace, key] {
        into.put_u16_le(u16::try_from(text.len()).expect("names are within the limits of storage"));
        into.put_slice(text.as_bytes());
    }
}

/// What is left of a message.
struct Reader(Bytes);

const SHORT: Malformed = Malformed("it is too short");
const NO_TEXT: Malformed = Malformed("a name that is no text");

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
            _ => Err(Malformed("a flag that is neither set nor clear")),
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
