//! The parts of the messages of [`replica::followers::message`] that only the state interprets
//! (docs/formats/followers.md): the basis of a join, a follower's requests, and the changes of an update.
//!
//! An update is a sequence of changes, each of which starts with a byte for its kind; numbers are little-endian.
//!
//! Invariant: any bytes decode into a value or an error. The decoder checks each claimed length against the bytes of
//! the message before it allocates memory.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use base::{Bytes, BytesMut, Version};
use replica::followers::message::{Candidate, request};
use wire::{Malformed, Reader, Writer};

use super::super::delta::{DeltaVersion, ValueLocation};
use super::super::index::{KeyHash, Subtable};
use super::super::memory::Section;
use super::super::pointer::Pointer;
use super::super::record::KeyName;
use crate::disaggregated::eviction_candidate::EvictionCandidate;

/// What a follower's state starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JoinBasis {
    /// The seed of the primary's key hashes.
    pub seed: u64,
    /// Blocks below this number are in storage; those from it on follow as changes.
    pub base: u64,
    /// Storage has the blocks below this height as rows.
    pub savepoint: u64,
    /// `prev` of versions of blocks below this height must not be followed.
    pub forgotten: u64,
    /// The budget of remote memory in bytes.
    pub budget_bytes: u64,
}

impl JoinBasis {
    /// The bytes of the basis.
    pub fn encode(&self) -> Bytes {
        let JoinBasis { seed, base, savepoint, forgotten, budget_bytes } = self;
        Writer::new().u64s([*seed, *base, *savepoint, *forgotten, *budget_bytes]).done()
    }

    /// Reads a basis.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not exactly one basis.
    pub fn decode(bytes: Bytes) -> Result<JoinBasis, Malformed> {
        let mut reader = Reader::new(bytes);
        let basis = JoinBasis {
            seed: reader.u64()?,
            base: reader.u64()?,
            savepoint: reader.u64()?,
            forgotten: reader.u64()?,
            budget_bytes: reader.u64()?,
        };
        reader.end()?;
        Ok(basis)
    }
}

/// What a follower's state asks of the primary's. Nothing depends on an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FollowerRequest {
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
}

impl FollowerRequest {
    /// The bytes of the request, as docs/formats/followers.md draws them.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        match self {
            FollowerRequest::Fill { namespace, key } => writer.u8(request::FILL).text(namespace).text(key),
            FollowerRequest::Persist { height } => writer.u8(request::PERSIST).u64(*height),
        };
        writer.done()
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not exactly one request.
    pub fn decode(bytes: Bytes) -> Result<FollowerRequest, Malformed> {
        let mut reader = Reader::new(bytes);
        let request = match reader.u8()? {
            request::FILL => {
                let (namespace, key) = name(&mut reader)?;
                FollowerRequest::Fill { namespace, key }
            }
            request::PERSIST => FollowerRequest::Persist { height: reader.u64()? },
            _ => return Err(reader.malformed("unknown kind of request")),
        };
        reader.end()?;
        Ok(request)
    }
}

impl From<EvictionCandidate> for Candidate {
    fn from(EvictionCandidate { pointer, hash }: EvictionCandidate) -> Candidate {
        Candidate([pointer.bits(), hash.0])
    }
}

impl From<Candidate> for EvictionCandidate {
    fn from(Candidate([pointer, hash]): Candidate) -> EvictionCandidate {
        EvictionCandidate { pointer: Pointer::from_bits(pointer), hash: KeyHash(hash) }
    }
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
