//! Reading a read-write set out of a block.
//!
//! The bytes come from clients and endorsers, and are not trusted. What is decoded are places in the received bytes, so
//! that a transaction costs a few small lists and no copies. An entry of two bytes on the wire becomes up to a hundred in
//! memory before any endorser's signature is looked at, so [`NAMESPACES_MAX`] and [`ENTRIES_MAX`] bound them. Fabric has
//! no such limits; they are part of validation here, the same for all peers.

use base::{Bytes, Version};
use ledger::wire::{Field, Fields, Span, WireError, set_once};

use super::merkle::{DEGREES_ACCEPTED, Summary};
use super::{ENTRIES_MAX, NAMESPACES_MAX};

/// Why bytes are no read-write set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// They are no such message.
    #[error("read-write set: {0}")]
    Wire(#[from] WireError),
    /// Only key-value sets exist.
    #[error("read-write set: data model {0} does not exist")]
    DataModel(u64),
    /// A summary that no scan gives.
    #[error("read-write set: a range summary of degree {0} is not accepted")]
    Degree(u64),
    /// It holds more than any transaction may.
    #[error("read-write set: more than {max} {what}")]
    TooMany { what: &'static str, max: usize },
    /// A range holds both results and a summary.
    #[error("read-write set: a range holds both results and a summary")]
    RangeReads,
}

/// The version that a transaction saw of a key. Numbers are as wide as on the wire, where no ledger's are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadVersion {
    pub block: u64,
    pub transaction: u64,
}

impl PartialEq<Version> for ReadVersion {
    fn eq(&self, version: &Version) -> bool {
        self.block == version.block && self.transaction == u64::from(version.tx)
    }
}

/// One key that was read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    key: Span,
    /// Nothing where the key did not exist.
    pub version: Option<ReadVersion>,
}

/// One key that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    key: Span,
    value: Span,
    /// A write of no bytes is a delete too.
    pub is_delete: bool,
}

/// One range that was scanned.
#[derive(Clone, Debug)]
pub struct Range {
    start: Span,
    end: Span,
    /// Whether the scan reached the end of the range; else `end` is the last key it handed out, and part of it.
    pub exhausted: bool,
    /// What it handed out.
    pub reads: RangeReads,
}

/// What a scan handed out.
#[derive(Clone, Debug)]
pub enum RangeReads {
    /// Each key and version.
    Results(Vec<Read>),
    /// Too many for that.
    Summary(Summary),
}

/// What a transaction did in one namespace.
#[derive(Clone, Debug, Default)]
pub struct Namespace {
    name: Span,
    pub reads: Vec<Read>,
    pub ranges: Vec<Range>,
    pub writes: Vec<Write>,
    /// Keys whose metadata is to be written: Fabric's key-level endorsement, which Heddle does not do.
    pub metadata_writes: u32,
    /// Private collections touched: Heddle has none.
    pub collections: u32,
}

impl Namespace {
    /// Whether it changes anything.
    pub fn writes_anything(&self) -> bool {
        !self.writes.is_empty() || self.needs_more_than_keys()
    }

    /// Whether it does what Heddle's state does not hold.
    pub fn needs_more_than_keys(&self) -> bool {
        self.metadata_writes > 0 || self.collections > 0
    }
}

/// A decoded read-write set. Its texts are places in the received bytes; ask it for them.
#[derive(Clone, Debug, Default)]
pub struct ReadWriteSet {
    source: Bytes,
    pub namespaces: Vec<Namespace>,
}

impl ReadWriteSet {
    /// Decodes a `TxReadWriteSet`.
    ///
    /// # Errors
    /// See [`DecodeError`]. Fields that Fabric does not define are passed over.
    pub fn decode(source: Bytes) -> Result<ReadWriteSet, DecodeError> {
        let (mut namespaces, mut room) = (Vec::new(), Room(ENTRIES_MAX));
        let mut fields = Fields::new(&source, Span::whole(&source)?);
        while let Some(field) = fields.next()? {
            match field.number {
                1 if field.varint()? != 0 => return Err(DecodeError::DataModel(field.varint()?)),
                2 if namespaces.len() == NAMESPACES_MAX => {
                    return Err(DecodeError::TooMany { what: "namespaces", max: NAMESPACES_MAX });
                }
                2 => namespaces.push(namespace(&source, field.span()?, &mut room)?),
                _ => {}
            }
        }
        Ok(ReadWriteSet { source, namespaces })
    }

    /// The name of a namespace of this set.
    pub fn name(&self, namespace: &Namespace) -> &str {
        self.text(namespace.name)
    }

    /// The key of a read of this set.
    pub fn read_key(&self, read: &Read) -> &str {
        self.text(read.key)
    }

    /// The key of a write of this set.
    pub fn write_key(&self, write: &Write) -> &str {
        self.text(write.key)
    }

    /// The new value, a part of the set's bytes; nothing for a delete.
    pub fn write_value(&self, write: &Write) -> Option<Bytes> {
        (!write.is_delete).then(|| self.source.slice_ref(write.value.of(&self.source)))
    }

    /// The first key of a range of this set, and its end.
    pub fn bounds(&self, range: &Range) -> (&str, &str) {
        (self.text(range.start), self.text(range.end))
    }

    /// Whether every key is one that a state can hold: not empty and not longer than [`super::KEY_BYTES_MAX`], in a
    /// namespace whose name is not longer than [`super::NAMESPACE_BYTES_MAX`]. Where nothing but reads are in a namespace,
    /// nothing else looks at its name before the state does.
    pub fn has_sound_keys(&self) -> bool {
        let sound = |span: &Span| !span.is_empty() && span.len() <= super::KEY_BYTES_MAX;
        self.namespaces.iter().all(|namespace| {
            namespace.name.len() <= super::NAMESPACE_BYTES_MAX
                && namespace.reads.iter().all(|read| sound(&read.key))
                && namespace.writes.iter().all(|write| sound(&write.key))
                && namespace.ranges.iter().all(|range| {
                    // A range may start or end at the empty key, which stands for no bound.
                    range.start.len().max(range.end.len()) <= super::KEY_BYTES_MAX
                })
        })
    }

    fn text(&self, span: Span) -> &str {
        span.text(&self.source).expect("texts were checked when they were decoded")
    }
}

/// Shows `visit` what a transaction that was found valid writes, in the order of its bytes: namespace, key, and the place of
/// the value in `source`, nothing for a delete. `set` is the place of its `TxReadWriteSet`. Only writes are looked at.
///
/// # Errors
/// The bytes are no such message as far as they were looked at.
pub fn visit_writes<'a>(
    source: &'a [u8],
    set: Span,
    mut visit: impl FnMut(&'a str, &'a str, Option<Span>),
) -> Result<(), DecodeError> {
    let mut namespaces = Fields::new(source, set);
    while let Some(namespace) = namespaces.next()? {
        if namespace.number != 2 {
            continue;
        }
        let (mut name, mut writes) = ("", Span::default());
        let mut fields = Fields::new(source, namespace.span()?);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => name = field.span()?.text(source)?,
                2 => writes = field.span()?,
                _ => {}
            }
        }
        let mut entries = Fields::new(source, writes);
        while let Some(entry) = entries.next()? {
            if entry.number == 3 {
                let written = write(source, entry.span()?)?;
                visit(name, written.key.text(source)?, (!written.is_delete).then_some(written.value));
            }
        }
    }
    Ok(())
}

/// How many entries may still follow.
struct Room(usize);

impl Room {
    fn take(&mut self) -> Result<(), DecodeError> {
        let too_many = DecodeError::TooMany { what: "reads, writes and ranges", max: ENTRIES_MAX };
        self.0 = self.0.checked_sub(1).ok_or(too_many)?;
        Ok(())
    }
}

/// A span that was checked to be text.
fn text(source: &[u8], field: &Field) -> Result<Span, WireError> {
    let span = field.span()?;
    span.text(source)?;
    Ok(span)
}

fn namespace(source: &Bytes, span: Span, room: &mut Room) -> Result<Namespace, DecodeError> {
    let (mut name, mut set, mut collections) = (None, None, 0);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut name, text(source, &field)?)?,
            2 => set_once(&mut set, field.span()?)?,
            3 => {
                field.span()?;
                collections += 1;
            }
            _ => {}
        }
    }
    let mut namespace = Namespace { name: name.unwrap_or_default(), collections, ..Namespace::default() };
    let Some(set) = set else { return Ok(namespace) };
    let mut fields = Fields::new(source, set);
    while let Some(field) = fields.next()? {
        room.take()?;
        match field.number {
            1 => namespace.reads.push(read(source, field.span()?)?),
            2 => namespace.ranges.push(range(source, field.span()?, room)?),
            3 => namespace.writes.push(write(source, field.span()?)?),
            4 => {
                field.span()?;
                namespace.metadata_writes += 1;
            }
            _ => {}
        }
    }
    Ok(namespace)
}

fn read(source: &[u8], span: Span) -> Result<Read, DecodeError> {
    let (mut key, mut version_at) = (None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut key, text(source, &field)?)?,
            2 => set_once(&mut version_at, field.span()?)?,
            _ => {}
        }
    }
    let version = version_at.map(|span| version(source, span)).transpose()?;
    Ok(Read { key: key.unwrap_or_default(), version })
}

fn version(source: &[u8], span: Span) -> Result<ReadVersion, DecodeError> {
    let (mut block, mut transaction) = (None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut block, field.varint()?)?,
            2 => set_once(&mut transaction, field.varint()?)?,
            _ => {}
        }
    }
    Ok(ReadVersion { block: block.unwrap_or(0), transaction: transaction.unwrap_or(0) })
}

fn write(source: &[u8], span: Span) -> Result<Write, DecodeError> {
    let (mut key, mut is_delete, mut value) = (None, None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut key, text(source, &field)?)?,
            2 => set_once(&mut is_delete, field.varint()? != 0)?,
            3 => set_once(&mut value, field.span()?)?,
            _ => {}
        }
    }
    let value = value.unwrap_or_default();
    Ok(Write { key: key.unwrap_or_default(), value, is_delete: is_delete.unwrap_or(false) || value.is_empty() })
}

fn range(source: &Bytes, span: Span, room: &mut Room) -> Result<Range, DecodeError> {
    let (mut start, mut end, mut exhausted, mut results, mut summary_at) = (None, None, None, None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut start, text(source, &field)?)?,
            2 => set_once(&mut end, text(source, &field)?)?,
            3 => set_once(&mut exhausted, field.varint()? != 0)?,
            4 => set_once(&mut results, field.span()?)?,
            5 => set_once(&mut summary_at, field.span()?)?,
            _ => {}
        }
    }
    let reads = match (results, summary_at) {
        (Some(_), Some(_)) => return Err(DecodeError::RangeReads),
        (None, Some(span)) => RangeReads::Summary(summary(source, span, room)?),
        (results, None) => {
            let mut reads = Vec::new();
            let mut fields = Fields::new(source, results.unwrap_or_default());
            while let Some(field) = fields.next()? {
                if field.number == 1 {
                    room.take()?;
                    reads.push(read(source, field.span()?)?);
                }
            }
            RangeReads::Results(reads)
        }
    };
    Ok(Range {
        start: start.unwrap_or_default(),
        end: end.unwrap_or_default(),
        exhausted: exhausted.unwrap_or(false),
        reads,
    })
}

fn summary(source: &Bytes, span: Span, room: &mut Room) -> Result<Summary, DecodeError> {
    let (mut degree, mut level, mut hashes) = (None, None, Vec::new());
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut degree, field.varint()?)?,
            2 => set_once(&mut level, field.varint()?)?,
            3 => {
                room.take()?;
                hashes.push(field.span()?.slice(source));
            }
            _ => {}
        }
    }
    let degree = degree.unwrap_or(0);
    let accepted = u32::try_from(degree).ok().filter(|degree| DEGREES_ACCEPTED.contains(degree));
    let degree = accepted.ok_or(DecodeError::Degree(degree))?;
    // A level beyond 32 bits is no scan's; as the largest number it equals none either.
    let level = u32::try_from(level.unwrap_or(0)).unwrap_or(u32::MAX);
    Ok(Summary { degree, level, hashes })
}
