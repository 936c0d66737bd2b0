//! Reads a read-write set of a block.
//!
//! The bytes come from clients and endorsers, and are not trusted.
//!
//! 1. [`ReadWriteSet::decode`] counts the set's entries.
//! 2. It walks over the whole set and checks its format. It keeps the position of each namespace. It also keeps the reads
//!    and writes if they take at most [`KEPT_PER_BYTE`] times the set's bytes; the sets that contracts produce stay below
//!    this bound. Otherwise it keeps none of them: an entry of two bytes would become 32 in memory before any endorser's
//!    signature is checked.
//! 3. Entries that were not kept are read again, one by one, when a caller asks for them: the reads and writes of a set
//!    above the bound, and all ranges, because repeating a scan takes far longer than reading its range again.
//!
//! [`NAMESPACES_MAX`] and [`ENTRIES_MAX`] bound the contents of a set. Fabric has no such limits; here they are part of
//! validation, the same for all peers.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::borrow::Cow;

use base::Bytes;
use identity::hex;

use super::entries::{
    CollectionReadWriteSet, KeyRead, KeyWrite, MetadataWrite, RangeReads, RangeResults, RangeSummary, ReadVersion,
    ScannedRange,
};
use super::merkle::{DEGREES_ACCEPTED, HASH_BYTES, MerkleSummary};
use super::{ENTRIES_MAX, NAMESPACES_MAX};
use crate::wire::{FieldValue, Fields, Span, WireError, bytes_field_len, put_bytes, put_bytes_header, set_once};

/// SHA-256 of no bytes: the hash of an empty value, whose write deletes the key.
const EMPTY_VALUE_HASH: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae, 0x41, 0xe4,
    0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// Why bytes are not a read-write set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not such a message.
    #[error("read-write set: {0}")]
    Wire(#[from] WireError),
    /// Only key-value sets exist.
    #[error("read-write set: data model {0} does not exist")]
    DataModel(u64),
    /// A summary that no scan produces.
    #[error("read-write set: a range summary of degree {0} is not accepted")]
    Degree(u64),
    /// The set holds more than any transaction may.
    #[error("read-write set: more than {max} {what}")]
    TooMany {
        /// The counted things, in the plural.
        what: &'static str,
        /// The largest number of them.
        max: usize,
    },
    /// A range holds both results and a summary.
    #[error("read-write set: a range holds both results and a summary")]
    RangeReads,
}

/// The entries of a transaction in one namespace. [`ReadWriteSet::reads`], [`ReadWriteSet::ranges`] and
/// [`ReadWriteSet::writes`] return them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamespaceReadWriteSet {
    name: Span,
    /// Its `KVRWSet`, whose format was checked.
    entries: Span,
    /// The number of reads and writes of the set that precede those of this namespace.
    reads_before: u32,
    writes_before: u32,
    /// Keys that were read, scanned ranges aside.
    pub reads: u32,
    /// Ranges that were scanned.
    pub ranges: u32,
    /// Keys that are to be written.
    pub writes: u32,
    /// Keys whose metadata is to be written.
    pub metadata_writes: u32,
    /// The whole message of the namespace, which holds its collections.
    message: Span,
    /// Collections that were read or are to be written. Each has an entry for every set of its hashes.
    pub collections: u32,
    /// Hashed keys of collections that are to be written, metadata included.
    pub hashed_writes: u32,
}

const _: () =
    assert!(NAMESPACES_MAX * size_of::<NamespaceReadWriteSet>() <= 64 << 10, "a set takes little whatever is in it");

impl NamespaceReadWriteSet {
    /// Whether it changes anything.
    pub fn writes_anything(&self) -> bool {
        self.writes > 0 || self.metadata_writes > 0 || self.hashed_writes > 0
    }
}

/// The memory that a decoded set may take, for each of its bytes.
pub const KEPT_PER_BYTE: usize = 2;

/// Reads and writes of all namespaces, in the order of their bytes.
#[derive(Clone, Debug, Default)]
struct DecodedEntries {
    reads: Vec<KeyRead>,
    writes: Vec<KeyWrite>,
}

/// A decoded read-write set. Its texts are slices of the received bytes; its methods return them.
#[derive(Clone, Debug, Default)]
pub struct ReadWriteSet {
    source: Bytes,
    /// The set of each namespace, in the order of the bytes.
    pub namespaces: Vec<NamespaceReadWriteSet>,
    /// `None` if they are read again.
    kept: Option<DecodedEntries>,
    /// Whether a state cannot hold one of the keys or names.
    has_unsound_keys: bool,
    may_depend_on_state: bool,
}

/// The format of an entry was checked when its set was decoded.
const CHECKED: &str = "the form was checked when the set was decoded";

impl ReadWriteSet {
    /// Decodes a `TxReadWriteSet`.
    ///
    /// # Errors
    /// See [`DecodeError`]. Fields that Fabric does not define are ignored.
    pub fn decode(source: Bytes) -> Result<ReadWriteSet, DecodeError> {
        let whole = Span::whole(&source)?;
        let counts = EntryCounts::of(&source, whole)?;
        let mut namespaces = Vec::with_capacity(counts.namespaces);
        let kept = counts.fit(source.len()).then(|| DecodedEntries {
            reads: Vec::with_capacity(counts.reads),
            writes: Vec::with_capacity(counts.writes),
        });
        let mut checker = SetChecker::new(&source, kept);
        let mut fields = Fields::new(&source, whole);
        while let Some(field) = fields.next()? {
            match field.number {
                1 if field.varint()? != 0 => return Err(DecodeError::DataModel(field.varint()?)),
                2 => namespaces.push(checker.namespace(field.span()?)?),
                _ => {}
            }
        }
        let SetChecker { kept, has_unsound_keys, may_depend_on_state, .. } = checker;
        Ok(ReadWriteSet { source, namespaces, kept, has_unsound_keys, may_depend_on_state })
    }

    /// The reads in a namespace of this set, in the order of its bytes.
    #[inline]
    pub fn reads(&self, namespace: &NamespaceReadWriteSet) -> impl Iterator<Item = KeyRead> {
        let (kept, again): (&[KeyRead], u32) = match &self.kept {
            Some(kept) => (part(&kept.reads, namespace.reads_before, namespace.reads), 0),
            None => (&[], namespace.reads),
        };
        let places = self.spans(namespace.entries, 1, again);
        kept.iter().copied().chain(places.map(|place| read(&self.source, place).expect(CHECKED)))
    }

    /// The ranges that were scanned in a namespace of this set.
    pub fn ranges(&self, namespace: &NamespaceReadWriteSet) -> impl Iterator<Item = ScannedRange> {
        let places = self.spans(namespace.entries, 2, namespace.ranges);
        places.map(|place| range(&self.source, place).expect(CHECKED))
    }

    /// The writes in a namespace of this set.
    #[inline]
    pub fn writes(&self, namespace: &NamespaceReadWriteSet) -> impl Iterator<Item = KeyWrite> {
        let (kept, again): (&[KeyWrite], u32) = match &self.kept {
            Some(kept) => (part(&kept.writes, namespace.writes_before, namespace.writes), 0),
            None => (&[], namespace.writes),
        };
        let places = self.spans(namespace.entries, 3, again);
        kept.iter().copied().chain(places.map(|place| write(&self.source, place).expect(CHECKED)))
    }

    /// The results of a scan of this set.
    pub fn results(&self, results: &RangeResults) -> impl Iterator<Item = KeyRead> {
        spans(&self.source, results.0, 1).map(|place| read(&self.source, place).expect(CHECKED))
    }

    /// The summary of a scan of this set; `None` if no scan can produce it, because of its number of hashes or their
    /// length.
    pub fn summary(&self, summary: &RangeSummary) -> Option<MerkleSummary> {
        let RangeSummary { place, degree, level, count } = *summary;
        if count > degree || spans(&self.source, place, 3).any(|hash| hash.len() != HASH_BYTES) {
            return None;
        }
        let mut hashes = Vec::with_capacity(count as usize);
        hashes.extend(spans(&self.source, place, 3).map(|hash| hash.slice(&self.source)));
        Some(MerkleSummary { degree, level, hashes })
    }

    /// The positions of the first `count` fields with this number; there are exactly `count` of them.
    #[inline]
    fn spans(&self, of: Span, number: u32, count: u32) -> impl Iterator<Item = Span> {
        // If there is none, the other fields are not walked over.
        spans(&self.source, of, number).take(count as usize)
    }

    /// The name of a namespace of this set.
    #[inline]
    pub fn name(&self, namespace: &NamespaceReadWriteSet) -> &str {
        self.text(namespace.name)
    }

    /// The key of a read of this set.
    #[inline]
    pub fn read_key(&self, read: &KeyRead) -> &str {
        self.text(read.key)
    }

    /// The key of a write of this set.
    #[inline]
    pub fn write_key(&self, write: &KeyWrite) -> &str {
        self.text(write.key)
    }

    /// The new value, a slice of the set's bytes; `None` for a delete.
    #[inline]
    pub fn write_value(&self, write: &KeyWrite) -> Option<Bytes> {
        (!write.is_delete).then(|| self.source.slice_ref(write.value.of(&self.source)))
    }

    /// The first key of a range of this set, and its end.
    pub fn bounds(&self, range: &ScannedRange) -> (&str, &str) {
        (self.text(range.start), self.text(range.end))
    }

    /// The metadata writes in a namespace of this set.
    pub fn metadata_writes(&self, namespace: &NamespaceReadWriteSet) -> impl Iterator<Item = MetadataWrite> {
        let places = self.spans(namespace.entries, 4, namespace.metadata_writes);
        places.map(|place| metadata_write(&self.source, place).expect(CHECKED))
    }

    /// The collections in a namespace of this set.
    pub fn collections(&self, namespace: &NamespaceReadWriteSet) -> impl Iterator<Item = CollectionReadWriteSet> {
        let places = self.spans(namespace.message, 3, namespace.collections);
        places.map(|place| collection(&self.source, place).expect(CHECKED))
    }

    /// The name of a collection of this set.
    pub fn collection_name(&self, collection: &CollectionReadWriteSet) -> &str {
        self.text(collection.name)
    }

    /// The hashed reads in a collection of this set: the hash of each key, and the version that it had.
    pub fn hashed_reads(&self, collection: &CollectionReadWriteSet) -> impl Iterator<Item = KeyRead> {
        spans(&self.source, collection.entries, 1).map(|place| read(&self.source, place).expect(CHECKED))
    }

    /// The hashed writes in a collection of this set: the hash of each key, and of its new value.
    pub fn hashed_writes(&self, collection: &CollectionReadWriteSet) -> impl Iterator<Item = KeyWrite> {
        spans(&self.source, collection.entries, 2).map(|place| hashed_write(&self.source, place).expect(CHECKED))
    }

    /// The metadata writes in a collection of this set, each by the hash of its key.
    pub fn hashed_metadata_writes(&self, collection: &CollectionReadWriteSet) -> impl Iterator<Item = MetadataWrite> {
        spans(&self.source, collection.entries, 3).map(|place| metadata_write(&self.source, place).expect(CHECKED))
    }

    /// The collections that a namespace of this set writes to; the empty one stands for public keys, and comes first.
    pub fn written_collections(&self, namespace: &NamespaceReadWriteSet) -> impl Iterator<Item = &str> {
        let public = (namespace.writes > 0 || namespace.metadata_writes > 0).then_some("");
        let collections = self.collections(namespace).filter(|collection| {
            let mut values = self.hashed_writes(collection);
            values.next().is_some() || self.hashed_metadata_writes(collection).next().is_some()
        });
        public.into_iter().chain(collections.map(|collection| self.text(collection.name)))
    }

    /// The keys that a namespace of this set writes, or whose metadata it writes, each with its collection: public keys first, whose
    /// collection is empty, and then those of the collections, by their hashes in hexadecimal.
    pub fn written_keys(&self, namespace: &NamespaceReadWriteSet) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let values = self.writes(namespace).map(|write| write.key);
        let public = values.chain(self.metadata_writes(namespace).map(|write| write.key));
        let public = public.map(|key| ("", Cow::Borrowed(self.text(key))));
        public.chain(self.collections(namespace).flat_map(move |collection| {
            let values: Vec<Span> = self.hashed_writes(&collection).map(|write| write.key).collect();
            let metadata: Vec<Span> = self.hashed_metadata_writes(&collection).map(|write| write.key).collect();
            let name = self.text(collection.name);
            let keys = values.into_iter().chain(metadata);
            keys.map(move |key| (name, Cow::Owned(hex::encode(key.of(&self.source)))))
        }))
    }

    /// As [`ReadWriteSet::written_keys`], of the keys whose metadata are written.
    pub fn metadata_keys(&self, namespace: &NamespaceReadWriteSet) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let public = self.metadata_writes(namespace).map(|write| ("", Cow::Borrowed(self.text(write.key))));
        public.chain(self.collections(namespace).flat_map(move |collection| {
            let keys: Vec<Span> = self.hashed_metadata_writes(&collection).map(|write| write.key).collect();
            let name = self.text(collection.name);
            keys.into_iter().map(move |key| (name, Cow::Owned(hex::encode(key.of(&self.source)))))
        }))
    }

    /// The key of a metadata write to a public key of this set.
    pub fn metadata_key(&self, write: &MetadataWrite) -> &str {
        self.text(write.key)
    }

    /// The hash of the key of a hashed read of this set.
    pub fn read_hash(&self, read: &KeyRead) -> &[u8] {
        read.key.of(&self.source)
    }

    /// The hash of the key of a hashed write of this set.
    pub fn write_hash(&self, write: &KeyWrite) -> &[u8] {
        write.key.of(&self.source)
    }

    /// The hash of the key of a hashed metadata write of this set.
    pub fn metadata_hash(&self, write: &MetadataWrite) -> &[u8] {
        write.key.of(&self.source)
    }

    /// The new metadata of a key, encoded as Fabric's state holds it: a `KVMetadataWrite` without key. `None` deletes all of it.
    pub fn metadata(&self, write: &MetadataWrite) -> Option<Bytes> {
        let mut encoded = Vec::with_capacity(write.place.len());
        let mut has_entries = false;
        for place in spans(&self.source, write.place, 2) {
            has_entries = true;
            let (name, value) = metadata_entry(&self.source, place).expect(CHECKED);
            let fields = [(1, name), (2, value)].into_iter().filter(|(_, field)| !field.is_empty());
            let length = fields.clone().map(|(number, field)| bytes_field_len(number, field.len())).sum();
            put_bytes_header(&mut encoded, 2, length);
            fields.for_each(|(number, field)| put_bytes(&mut encoded, number, field.of(&self.source)));
        }
        has_entries.then(|| encoded.into())
    }

    /// Whether the set writes metadata, or may write a public key twice: what it changes then depends on the state before it.
    pub fn may_depend_on_state(&self) -> bool {
        self.may_depend_on_state
    }

    /// Whether the set writes public values only, each once.
    pub fn has_plain_writes_only(&self) -> bool {
        !self.may_depend_on_state && self.namespaces.iter().all(|namespace| namespace.hashed_writes == 0)
    }

    /// Whether a state can hold every key: not longer than [`super::KEY_BYTES_MAX`], in a namespace and
    /// a collection whose names are together not longer than [`super::NAMESPACE_BYTES_MAX`]. If a namespace contains only reads, no other check sees
    /// its name before the state does.
    pub fn has_valid_keys(&self) -> bool {
        !self.has_unsound_keys
    }

    /// The same set without kept entries.
    #[cfg(test)]
    pub(super) fn read_again(&self) -> Option<ReadWriteSet> {
        self.kept.is_some().then(|| ReadWriteSet { kept: None, ..self.clone() })
    }

    #[inline]
    fn text(&self, span: Span) -> &str {
        span.text(&self.source).expect(CHECKED)
    }
}

/// A write of a transaction that was found valid.
#[derive(Clone, Copy, Debug)]
pub struct VisitedWrite<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The collection; empty for a public key.
    pub collection: &'a str,
    /// The key; in a collection its hash.
    pub key: &'a [u8],
    /// The position of the value in the source, in a collection of the value's hash; `None` for a delete.
    pub value: Option<Span>,
}

/// Calls `visit` with each write of a transaction that was found valid, in the order of its bytes. `set` is the position of its
/// `TxReadWriteSet`. Only writes are read, and of them not those of metadata.
///
/// # Errors
/// The bytes are not such a message, as far as they were read.
pub fn visit_writes<'a>(
    source: &'a [u8],
    set: Span,
    mut visit: impl FnMut(VisitedWrite<'a>),
) -> Result<(), DecodeError> {
    let mut namespaces = Fields::new(source, set);
    while let Some(namespace) = namespaces.next()? {
        if namespace.number != 2 {
            continue;
        }
        let (mut name, mut writes, mut has_collections) = ("", Span::default(), false);
        let message = namespace.span()?;
        let mut fields = Fields::new(source, message);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => name = field.span()?.text(source)?,
                2 => writes = field.span()?,
                3 => has_collections = true,
                _ => {}
            }
        }
        let mut entries = Fields::new(source, writes);
        while let Some(entry) = entries.next()? {
            if entry.number == 3 {
                let write = write(source, entry.span()?)?;
                let (key, value) = (write.key.text(source)?.as_bytes(), (!write.is_delete).then_some(write.value));
                visit(VisitedWrite { namespace: name, collection: "", key, value });
            }
        }
        if !has_collections {
            continue;
        }
        let mut fields = Fields::new(source, message);
        while let Some(field) = fields.next()? {
            if field.number != 3 {
                continue;
            }
            let CollectionReadWriteSet { name: collection, entries } = collection(source, field.span()?)?;
            let collection = collection.text(source)?;
            let mut entries = Fields::new(source, entries);
            while let Some(entry) = entries.next()? {
                if entry.number == 2 {
                    let write = hashed_write(source, entry.span()?)?;
                    let (key, value) = (write.key.of(source), (!write.is_delete).then_some(write.value));
                    visit(VisitedWrite { namespace: name, collection, key, value });
                }
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

/// The number of entries in a set, before its format is checked.
#[derive(Clone, Copy, Debug, Default)]
struct EntryCounts {
    namespaces: usize,
    reads: usize,
    writes: usize,
}

impl EntryCounts {
    fn of(source: &[u8], set: Span) -> Result<EntryCounts, DecodeError> {
        let mut counts = EntryCounts::default();
        let mut fields = Fields::new(source, set);
        while let Some(field) = fields.next()? {
            let (2, FieldValue::Bytes(namespace)) = (field.number, field.value) else { continue };
            if counts.namespaces == NAMESPACES_MAX {
                return Err(DecodeError::TooMany { what: "namespaces", max: NAMESPACES_MAX });
            }
            counts.namespaces = counts.namespaces.saturating_add(1);
            // The check of the format reports the same errors, with their reasons.
            let mut inner = Fields::new(source, namespace);
            while let Ok(Some(field)) = inner.next() {
                if let (2, FieldValue::Bytes(entries)) = (field.number, field.value) {
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

    /// Whether the kept entries of a set of this many bytes are in proportion to the bytes.
    fn fit(&self, set_bytes: usize) -> bool {
        let namespaces = self.namespaces.saturating_mul(size_of::<NamespaceReadWriteSet>());
        let reads = self.reads.saturating_mul(size_of::<KeyRead>());
        let writes = self.writes.saturating_mul(size_of::<KeyWrite>());
        namespaces.saturating_add(reads).saturating_add(writes) <= set_bytes.saturating_mul(KEPT_PER_BYTE)
    }
}

/// The positions of the fields with this number in a message whose format was checked.
#[inline]
fn spans(source: &[u8], message: Span, number: u32) -> impl Iterator<Item = Span> {
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

/// Walks over a set and checks its format.
struct SetChecker<'a> {
    source: &'a [u8],
    /// The number of entries that may still follow.
    room: usize,
    /// How many reads and writes came before.
    reads: u32,
    writes: u32,
    /// Where they are kept, with capacity for all.
    kept: Option<DecodedEntries>,
    has_unsound_keys: bool,
    may_depend_on_state: bool,
}

impl SetChecker<'_> {
    fn new(source: &[u8], kept: Option<DecodedEntries>) -> SetChecker<'_> {
        let (has_unsound_keys, may_depend_on_state) = (false, false);
        SetChecker { source, room: ENTRIES_MAX, reads: 0, writes: 0, kept, has_unsound_keys, may_depend_on_state }
    }

    fn take(&mut self) -> Result<(), DecodeError> {
        let too_many = DecodeError::TooMany { what: "reads, writes and ranges", max: ENTRIES_MAX };
        self.room = self.room.checked_sub(1).ok_or(too_many)?;
        Ok(())
    }

    /// A key or the bound of a range: it must be text, and should be one that a state can hold. The empty key is one; as a bound
    /// it means none.
    fn key(&mut self, key: Span) -> Result<(), WireError> {
        self.has_unsound_keys |= key.len() > super::KEY_BYTES_MAX;
        key.text(self.source).map(|_| ())
    }

    /// The hash of a key. A state holds it in hexadecimal.
    fn hash(&mut self, hash: Span) {
        self.has_unsound_keys |= hash.len() > super::KEY_BYTES_MAX / 2;
    }

    fn namespace(&mut self, span: Span) -> Result<NamespaceReadWriteSet, DecodeError> {
        let (mut name, mut entries, mut collections, mut hashed_writes) = (None, None, 0_u32, 0_u32);
        let mut collection_bytes_max = 0;
        let mut fields = Fields::new(self.source, span);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => set_once(&mut name, field.span()?)?,
                2 => set_once(&mut entries, field.span()?)?,
                3 => {
                    let collection = collection(self.source, field.span()?)?;
                    collection.name.text(self.source)?;
                    collection_bytes_max = collection.name.len().max(collection_bytes_max);
                    collections = collections.saturating_add(1);
                    hashed_writes = hashed_writes.saturating_add(self.collection(&collection)?);
                }
                _ => {}
            }
        }
        let name = name.unwrap_or_default();
        name.text(self.source)?;
        self.has_unsound_keys |= name.len().saturating_add(collection_bytes_max) > super::NAMESPACE_BYTES_MAX;
        let entries = entries.unwrap_or_default();
        let (reads_before, writes_before) = (self.reads, self.writes);
        let mut namespace = NamespaceReadWriteSet {
            name,
            entries,
            reads_before,
            writes_before,
            message: span,
            collections,
            hashed_writes,
            ..NamespaceReadWriteSet::default()
        };
        let mut last_written: Option<Span> = None;
        let mut fields = Fields::new(self.source, entries);
        while let Some(field) = fields.next()? {
            self.take()?;
            // No count exceeds the remaining number, which has fewer bits.
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
                    let is_sorted = last_written.is_none_or(|last| last.of(self.source) < write.key.of(self.source));
                    self.may_depend_on_state |= !is_sorted;
                    last_written = Some(write.key);
                    if let Some(kept) = &mut self.kept {
                        kept.writes.push(write);
                    }
                    &mut namespace.writes
                }
                4 => {
                    let write = self.metadata_write(field.span()?)?;
                    self.key(write.key)?;
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

    fn metadata_write(&mut self, span: Span) -> Result<MetadataWrite, DecodeError> {
        self.may_depend_on_state = true;
        let write = metadata_write(self.source, span)?;
        let mut fields = Fields::new(self.source, span);
        while let Some(field) = fields.next()? {
            if field.number == 2 {
                self.take()?;
                metadata_entry(self.source, field.span()?)?.0.text(self.source)?;
            }
        }
        Ok(write)
    }

    /// Returns the number of writes.
    fn collection(&mut self, collection: &CollectionReadWriteSet) -> Result<u32, DecodeError> {
        let mut writes = 0_u32;
        let mut fields = Fields::new(self.source, collection.entries);
        while let Some(field) = fields.next()? {
            self.take()?;
            match field.number {
                1 => self.hash(read(self.source, field.span()?)?.key),
                2 => {
                    let write = hashed_write(self.source, field.span()?)?;
                    self.hash(write.key);
                    writes = writes.saturating_add(1);
                }
                3 => {
                    let write = self.metadata_write(field.span()?)?;
                    self.hash(write.key);
                    writes = writes.saturating_add(1);
                }
                _ => {}
            }
        }
        Ok(writes)
    }

    fn range(&mut self, span: Span) -> Result<(), DecodeError> {
        let range = range(self.source, span)?;
        self.key(range.start)?;
        self.key(range.end)?;
        match range.reads {
            RangeReads::Results(results) => {
                let mut fields = Fields::new(self.source, results.0);
                while let Some(field) = fields.next()? {
                    if field.number == 1 {
                        self.take()?;
                        // A scan does not return a key that no state can hold; repeating the scan finds that out.
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

fn read(source: &[u8], span: Span) -> Result<KeyRead, DecodeError> {
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
    Ok(KeyRead { key: key.unwrap_or_default(), version })
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

fn write(source: &[u8], span: Span) -> Result<KeyWrite, DecodeError> {
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
    Ok(KeyWrite { key: key.unwrap_or_default(), value, is_delete: is_delete.unwrap_or(false) || value.is_empty() })
}

/// As [`write`], with the hashes of key and value. As in Fabric, a write of an empty value deletes; a purge says so itself.
fn hashed_write(source: &[u8], span: Span) -> Result<KeyWrite, DecodeError> {
    let (mut key, mut is_delete, mut value, mut is_purge) = (None, None, None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut key, field.span()?)?,
            2 => set_once(&mut is_delete, field.varint()? != 0)?,
            3 => set_once(&mut value, field.span()?)?,
            4 => set_once(&mut is_purge, field.varint()? != 0)?,
            _ => {}
        }
    }
    let value = value.unwrap_or_default();
    let has_no_value = value.is_empty() || value.of(source) == EMPTY_VALUE_HASH;
    Ok(KeyWrite { key: key.unwrap_or_default(), value, is_delete: is_delete.unwrap_or(false) || has_no_value })
}

fn metadata_write(source: &[u8], place: Span) -> Result<MetadataWrite, DecodeError> {
    let mut key = None;
    let mut fields = Fields::new(source, place);
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            set_once(&mut key, field.span()?)?;
        }
    }
    Ok(MetadataWrite { key: key.unwrap_or_default(), place })
}

/// Name and value of an entry of metadata.
fn metadata_entry(source: &[u8], place: Span) -> Result<(Span, Span), DecodeError> {
    let (mut name, mut value) = (None, None);
    let mut fields = Fields::new(source, place);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut name, field.span()?)?,
            2 => set_once(&mut value, field.span()?)?,
            _ => {}
        }
    }
    Ok((name.unwrap_or_default(), value.unwrap_or_default()))
}

fn collection(source: &[u8], place: Span) -> Result<CollectionReadWriteSet, DecodeError> {
    let (mut name, mut entries) = (None, None);
    let mut fields = Fields::new(source, place);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut name, field.span()?)?,
            2 => set_once(&mut entries, field.span()?)?,
            _ => {}
        }
    }
    Ok(CollectionReadWriteSet { name: name.unwrap_or_default(), entries: entries.unwrap_or_default() })
}

fn range(source: &[u8], span: Span) -> Result<ScannedRange, DecodeError> {
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
    Ok(ScannedRange {
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
    // No scan has a level beyond 32 bits; as the largest number it equals none either.
    let level = u32::try_from(level.unwrap_or(0)).unwrap_or(u32::MAX);
    Ok(RangeSummary { place, degree, level, count })
}
