//! Reading a read-write set out of a block.
//!
//! The bytes come from clients and endorsers, and are not trusted.
//!
//! 1. [`ReadWriteSet::decode`] counts what the set holds.
//! 2. It walks over all of the set and checks its form. It keeps the place of each namespace. It keeps reads and writes as
//!    well where they take at most [`KEPT_PER_BYTE`] times the set's bytes, as those of contracts do. An entry of two bytes
//!    would become 32 in memory, before any endorser's signature is looked at: of such a set nothing is kept.
//! 3. What was not kept is read again, one by one, where somebody asks for it: ranges, which are scanned for far longer than
//!    they are read, and the entries of sets of tiny ones.
//!
//! [`NAMESPACES_MAX`] and [`ENTRIES_MAX`] bound what a set may hold. Fabric has no such limits; they are part of validation
//! here, the same for all peers.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, Version};
use ledger::wire::{Fields, Span, Value, WireError, set_once};

use super::merkle::{DEGREES_ACCEPTED, HASH_BYTES, Summary};
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
#[derive(Clone, Copy, Debug)]
pub struct Range {
    start: Span,
    end: Span,
    /// Whether the scan reached the end of the range; else `end` is the last key it handed out, and part of it.
    pub exhausted: bool,
    /// What it handed out.
    pub reads: RangeReads,
}

/// What a scan handed out.
#[derive(Clone, Copy, Debug)]
pub enum RangeReads {
    /// Each key and version; see [`ReadWriteSet::results`].
    Results(RangeResults),
    /// Too many for that; see [`ReadWriteSet::summary`].
    Summary(RangeSummary),
}

/// The place of the results of a scan.
#[derive(Clone, Copy, Debug)]
pub struct RangeResults(Span);

/// The place of the summary of a scan.
#[derive(Clone, Copy, Debug)]
pub struct RangeSummary {
    place: Span,
    /// One of [`DEGREES_ACCEPTED`].
    degree: u32,
    level: u32,
    /// How many hashes it has.
    count: u32,
}

/// What a transaction did in one namespace. [`ReadWriteSet::reads`], [`ReadWriteSet::ranges`] and [`ReadWriteSet::writes`]
/// give the entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Namespace {
    name: Span,
    /// Its `KVRWSet`, whose form was checked.
    entries: Span,
    /// How many reads and writes of the set stand before those of this namespace.
    reads_before: u32,
    writes_before: u32,
    /// Keys that were read, scanned ranges aside.
    pub reads: u32,
    /// Ranges that were scanned.
    pub ranges: u32,
    /// Keys that are to be written.
    pub writes: u32,
    /// Keys whose metadata is to be written: Fabric's key-level endorsement, which Heddle does not do.
    pub metadata_writes: u32,
    /// Private collections touched: Heddle has none.
    pub collections: u32,
}

const _: () = assert!(NAMESPACES_MAX * size_of::<Namespace>() <= 48 << 10, "a set takes little whatever is in it");

impl Namespace {
    /// Whether it changes anything.
    pub fn writes_anything(&self) -> bool {
        self.writes > 0 || self.needs_more_than_keys()
    }

    /// Whether it does what Heddle's state does not hold.
    pub fn needs_more_than_keys(&self) -> bool {
        self.metadata_writes > 0 || self.collections > 0
    }
}

/// What a decoded set may take of memory, for each of its bytes.
pub const KEPT_PER_BYTE: usize = 2;

/// Reads and writes of all namespaces, in the order of their bytes.
#[derive(Clone, Debug, Default)]
struct Entries {
    reads: Vec<Read>,
    writes: Vec<Write>,
}

/// A decoded read-write set. Its texts are places in the received bytes; ask it for them.
#[derive(Clone, Debug, Default)]
pub struct ReadWriteSet {
    source: Bytes,
    pub namespaces: Vec<Namespace>,
    /// Nothing where they are read again.
    kept: Option<Entries>,
    /// Whether a key or a name is none that a state can hold.
    has_unsound_keys: bool,
}

/// The form of an entry was checked when its set was decoded.
const CHECKED: &str = "the form was checked when the set was decoded";

impl ReadWriteSet {
    /// Decodes a `TxReadWriteSet`.
    ///
    /// # Errors
    /// See [`DecodeError`]. Fields that Fabric does not define are passed over.
    pub fn decode(source: Bytes) -> Result<ReadWriteSet, DecodeError> {
        let whole = Span::whole(&source)?;
        let counts = Counts::of(&source, whole)?;
        let mut namespaces = Vec::with_capacity(counts.namespaces);
        let kept = counts
            .fit(source.len())
            .then(|| Entries { reads: Vec::with_capacity(counts.reads), writes: Vec::with_capacity(counts.writes) });
        let mut checker = Checker::new(&source, kept);
        let mut fields = Fields::new(&source, whole);
        while let Some(field) = fields.next()? {
            match field.number {
                1 if field.varint()? != 0 => return Err(DecodeError::DataModel(field.varint()?)),
                2 => namespaces.push(checker.namespace(field.span()?)?),
                _ => {}
            }
        }
        let Checker { kept, has_unsound_keys, .. } = checker;
        Ok(ReadWriteSet { source, namespaces, kept, has_unsound_keys })
    }

    /// What was read in a namespace of this set, in the order of its bytes.
    #[inline]
    pub fn reads(&self, namespace: &Namespace) -> impl Iterator<Item = Read> {
        let (kept, again): (&[Read], u32) = match &self.kept {
            Some(kept) => (part(&kept.reads, namespace.reads_before, namespace.reads), 0),
            None => (&[], namespace.reads),
        };
        let places = self.places(namespace.entries, 1, again);
        kept.iter().copied().chain(places.map(|place| read(&self.source, place).expect(CHECKED)))
    }

    /// The ranges that were scanned in a namespace of this set.
    pub fn ranges(&self, namespace: &Namespace) -> impl Iterator<Item = Range> {
        let places = self.places(namespace.entries, 2, namespace.ranges);
        places.map(|place| range(&self.source, place).expect(CHECKED))
    }

    /// What is to be written in a namespace of this set.
    #[inline]
    pub fn writes(&self, namespace: &Namespace) -> impl Iterator<Item = Write> {
        let (kept, again): (&[Write], u32) = match &self.kept {
            Some(kept) => (part(&kept.writes, namespace.writes_before, namespace.writes), 0),
            None => (&[], namespace.writes),
        };
        let places = self.places(namespace.entries, 3, again);
        kept.iter().copied().chain(places.map(|place| write(&self.source, place).expect(CHECKED)))
    }

    /// What a scan of this set handed out.
    pub fn results(&self, results: &RangeResults) -> impl Iterator<Item = Read> {
        places(&self.source, results.0, 1).map(|place| read(&self.source, place).expect(CHECKED))
    }

    /// The summary of a scan of this set; nothing where it is one that no scan comes to, by its number of hashes or by
    /// their length.
    pub fn summary(&self, summary: &RangeSummary) -> Option<Summary> {
        let RangeSummary { place, degree, level, count } = *summary;
        if count > degree || places(&self.source, place, 3).any(|hash| hash.len() != HASH_BYTES) {
            return None;
        }
        let mut hashes = Vec::with_capacity(count as usize);
        hashes.extend(places(&self.source, place, 3).map(|hash| hash.slice(&self.source)));
        Some(Summary { degree, level, hashes })
    }

    /// The places of the first `count` fields with this number, which are as many as there are.
    #[inline]
    fn places(&self, of: Span, number: u32, count: u32) -> impl Iterator<Item = Span> {
        // Where there is none, nobody walks over the others.
        places(&self.source, of, number).take(count as usize)
    }

    /// The name of a namespace of this set.
    #[inline]
    pub fn name(&self, namespace: &Namespace) -> &str {
        self.text(namespace.name)
    }

    /// The key of a read of this set.
    #[inline]
    pub fn read_key(&self, read: &Read) -> &str {
        self.text(read.key)
    }

    /// The key of a write of this set.
    #[inline]
    pub fn write_key(&self, write: &Write) -> &str {
        self.text(write.key)
    }

    /// The new value, a part of the set's bytes; nothing for a delete.
    #[inline]
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
        !self.has_unsound_keys
    }

    /// The same set, of which nothing is kept.
    #[cfg(test)]
    pub(super) fn read_again(&self) -> Option<ReadWriteSet> {
        self.kept.is_some().then(|| ReadWriteSet { kept: None, ..self.clone() })
    }

    #[inline]
    fn text(&self, span: Span) -> &str {
        span.text(&self.source).expect(CHECKED)
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

/// The entries of one namespace among those of its set.
#[inline]
fn part<T>(entries: &[T], before: u32, count: u32) -> &[T] {
    let start = before as usize;
    let end = start.saturating_add(count as usize);
    entries.get(start..end).expect("each entry that was counted was kept")
}

/// What a set holds, before its form is checked.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    namespaces: usize,
    reads: usize,
    writes: usize,
}

impl Counts {
    fn of(source: &[u8], set: Span) -> Result<Counts, DecodeError> {
        let mut counts = Counts::default();
        let mut fields = Fields::new(source, set);
        while let Some(field) = fields.next()? {
            let (2, Value::Bytes(namespace)) = (field.number, field.value) else { continue };
            if counts.namespaces == NAMESPACES_MAX {
                return Err(DecodeError::TooMany { what: "namespaces", max: NAMESPACES_MAX });
            }
            counts.namespaces = counts.namespaces.saturating_add(1);
            // The check of the form reports the same errors, with their reasons.
            let mut inner = Fields::new(source, namespace);
            while let Ok(Some(field)) = inner.next() {
                if let (2, Value::Bytes(entries)) = (field.number, field.value) {
                    counts.add(source, entries);
                }
            }
        }
        Ok(counts)
    }

    fn add(&mut self, source: &[u8], entries: Span) {
        let mut fields = Fields::new(source, entries);
        while let Ok(Some(field)) = fields.next() {
            match field.number {
                1 => self.reads = self.reads.saturating_add(1),
                3 => self.writes = self.writes.saturating_add(1),
                _ => {}
            }
        }
    }

    /// Whether what is kept of a set of this many bytes, entries included, is in proportion to them.
    fn fit(&self, set_bytes: usize) -> bool {
        let namespaces = self.namespaces.saturating_mul(size_of::<Namespace>());
        let reads = self.reads.saturating_mul(size_of::<Read>());
        let writes = self.writes.saturating_mul(size_of::<Write>());
        namespaces.saturating_add(reads).saturating_add(writes) <= set_bytes.saturating_mul(KEPT_PER_BYTE)
    }
}

/// The places of the fields with this number in a message whose form was checked.
#[inline]
fn places(source: &[u8], message: Span, number: u32) -> impl Iterator<Item = Span> {
    let mut fields = Fields::new(source, message);
    std::iter::from_fn(move || {
        loop {
            let field = fields.next().expect(CHECKED)?;
            if field.number == number {
                return Some(field.span().expect(CHECKED));
            }
        }
    })
}

/// Walks over a set and checks its form.
struct Checker<'a> {
    source: &'a [u8],
    /// How many entries may still follow.
    room: usize,
    /// How many reads and writes came before.
    reads: u32,
    writes: u32,
    /// Where they are kept, with room for all.
    kept: Option<Entries>,
    has_unsound_keys: bool,
}

impl Checker<'_> {
    fn new(source: &[u8], kept: Option<Entries>) -> Checker<'_> {
        Checker { source, room: ENTRIES_MAX, reads: 0, writes: 0, kept, has_unsound_keys: false }
    }

    fn take(&mut self) -> Result<(), DecodeError> {
        let too_many = DecodeError::TooMany { what: "reads, writes and ranges", max: ENTRIES_MAX };
        self.room = self.room.checked_sub(1).ok_or(too_many)?;
        Ok(())
    }

    /// A key: it has to be text, and ought to be one that a state can hold.
    fn key(&mut self, key: Span) -> Result<(), WireError> {
        self.has_unsound_keys |= key.is_empty() || key.len() > super::KEY_BYTES_MAX;
        key.text(self.source).map(|_| ())
    }

    /// A range may start or end at the empty key, which stands for no bound.
    fn bound(&mut self, bound: Span) -> Result<(), WireError> {
        self.has_unsound_keys |= bound.len() > super::KEY_BYTES_MAX;
        bound.text(self.source).map(|_| ())
    }

    fn namespace(&mut self, span: Span) -> Result<Namespace, DecodeError> {
        let (mut name, mut entries, mut collections) = (None, None, 0_u32);
        let mut fields = Fields::new(self.source, span);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => set_once(&mut name, field.span()?)?,
                2 => set_once(&mut entries, field.span()?)?,
                3 => {
                    field.span()?;
                    collections = collections.saturating_add(1);
                }
                _ => {}
            }
        }
        let name = name.unwrap_or_default();
        name.text(self.source)?;
        self.has_unsound_keys |= name.len() > super::NAMESPACE_BYTES_MAX;
        let entries = entries.unwrap_or_default();
        let (reads_before, writes_before) = (self.reads, self.writes);
        let mut namespace =
            Namespace { name, entries, reads_before, writes_before, collections, ..Namespace::default() };
        let mut fields = Fields::new(self.source, entries);
        while let Some(field) = fields.next()? {
            self.take()?;
            // No count exceeds the room, which has fewer bits.
            let count = match field.number {
                1 => {
                    let read = read(self.source, field.span()?)?;
                    self.key(read.key)?;
                    if let Some(kept) = &mut self.kept {
                        kept.reads.push(read);
                    }
                    &mut namespace.reads
                }
                2 => {
                    self.range(field.span()?)?;
                    &mut namespace.ranges
                }
                3 => {
                    let write = write(self.source, field.span()?)?;
                    self.key(write.key)?;
                    if let Some(kept) = &mut self.kept {
                        kept.writes.push(write);
                    }
                    &mut namespace.writes
                }
                4 => {
                    field.span()?;
                    &mut namespace.metadata_writes
                }
                _ => continue,
            };
            *count = count.saturating_add(1);
        }
        self.reads = self.reads.saturating_add(namespace.reads);
        self.writes = self.writes.saturating_add(namespace.writes);
        Ok(namespace)
    }

    fn range(&mut self, span: Span) -> Result<(), DecodeError> {
        let range = range(self.source, span)?;
        self.bound(range.start)?;
        self.bound(range.end)?;
        match range.reads {
            RangeReads::Results(results) => {
                let mut fields = Fields::new(self.source, results.0);
                while let Some(field) = fields.next()? {
                    if field.number == 1 {
                        self.take()?;
                        // A key that no state holds is no result of a scan, which the scan finds out.
                        read(self.source, field.span()?)?.key.text(self.source)?;
                    }
                }
            }
            RangeReads::Summary(summary) => {
                for _ in 0..summary.count {
                    self.take()?;
                }
            }
        }
        Ok(())
    }
}

fn read(source: &[u8], span: Span) -> Result<Read, DecodeError> {
    let (mut key, mut version_at) = (None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut key, field.span()?)?,
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
            1 => set_once(&mut key, field.span()?)?,
            2 => set_once(&mut is_delete, field.varint()? != 0)?,
            3 => set_once(&mut value, field.span()?)?,
            _ => {}
        }
    }
    let value = value.unwrap_or_default();
    Ok(Write { key: key.unwrap_or_default(), value, is_delete: is_delete.unwrap_or(false) || value.is_empty() })
}

fn range(source: &[u8], span: Span) -> Result<Range, DecodeError> {
    let (mut start, mut end, mut exhausted, mut results, mut summary_at) = (None, None, None, None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut start, field.span()?)?,
            2 => set_once(&mut end, field.span()?)?,
            3 => set_once(&mut exhausted, field.varint()? != 0)?,
            4 => set_once(&mut results, field.span()?)?,
            5 => set_once(&mut summary_at, field.span()?)?,
            _ => {}
        }
    }
    let reads = match (results, summary_at) {
        (Some(_), Some(_)) => return Err(DecodeError::RangeReads),
        (None, Some(span)) => RangeReads::Summary(summary(source, span)?),
        (results, None) => RangeReads::Results(RangeResults(results.unwrap_or_default())),
    };
    Ok(Range {
        start: start.unwrap_or_default(),
        end: end.unwrap_or_default(),
        exhausted: exhausted.unwrap_or(false),
        reads,
    })
}

fn summary(source: &[u8], place: Span) -> Result<RangeSummary, DecodeError> {
    let (mut degree, mut level, mut count) = (None, None, 0_u32);
    let mut fields = Fields::new(source, place);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut degree, field.varint()?)?,
            2 => set_once(&mut level, field.varint()?)?,
            3 => {
                field.span()?;
                count = count.saturating_add(1);
            }
            _ => {}
        }
    }
    let degree = degree.unwrap_or(0);
    let accepted = u32::try_from(degree).ok().filter(|degree| DEGREES_ACCEPTED.contains(degree));
    let degree = accepted.ok_or(DecodeError::Degree(degree))?;
    // A level beyond 32 bits is no scan's; as the largest number it equals none either.
    let level = u32::try_from(level.unwrap_or(0)).unwrap_or(u32::MAX);
    Ok(RangeSummary { place, degree, level, count })
}
