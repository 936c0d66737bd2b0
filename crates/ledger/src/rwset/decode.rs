//! Decodes the read-write set of a transaction.
//!
//! The bytes come from clients and endorsers and are not trusted.
//!
//! 1. [`ReadWriteSet::decode`] counts the set's entries.
//! 2. It walks over the whole set and checks its format. It keeps the position of each namespace. It also keeps the
//!    reads and writes if they take at most [`KEPT_PER_BYTE`](super::count::KEPT_PER_BYTE) times the set's bytes; the
//!    sets that contracts produce stay below this bound. Otherwise it keeps none of them: an entry of two bytes would
//!    become 32 in memory before any endorser's signature is checked.
//! 3. Entries that were not kept are read again, one by one, when a caller asks for them: the reads and writes of a set
//!    above the bound, and in every set the ranges, metadata writes and collections. Repeating a scan takes far longer
//!    than reading its range again, and most sets have no metadata writes or collections.
//!
//! [`NAMESPACES_MAX`] and [`ENTRIES_MAX`] bound the contents of a set. Fabric has no such limits; here they are part of
//! validation, the same for all peers.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::borrow::Cow;

use base::Bytes;
use identity::hex;

use super::ENTRIES_MAX;
use super::count::EntryCounts;
use super::entries::{
    CollectionReadWriteSet, KeyRead, KeyWrite, MetadataWrite, NamespaceReadWriteSet, RangeReads, RangeResults,
    RangeSummary, ScannedRange,
};
use super::error::DecodeError;
use super::fields::{collection, hashed_write, metadata_entry, metadata_write, range, read, write};
use super::merkle::{HASH_BYTES, MerkleSummary};
use crate::wire::{Fields, Span, WireError, bytes_field_len, put_bytes, put_bytes_header, set_once};

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
    /// `None` if they are decoded again at each use.
    kept: Option<DecodedEntries>,
    /// Whether there is a key or a name that no state can hold.
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
        // With a count of 0, the iterator does not walk over the other fields.
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

    /// The SHA-256 of the private writes to a collection of this set, as the transaction states it; empty if there are none.
    pub fn private_hash(&self, collection: &CollectionReadWriteSet) -> &[u8] {
        collection.private_hash.of(&self.source)
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

    /// The collections that a namespace of this set writes to. The empty name stands for public keys and comes first.
    pub fn written_collections(&self, namespace: &NamespaceReadWriteSet) -> impl Iterator<Item = &str> {
        let public = (namespace.writes > 0 || namespace.metadata_writes > 0).then_some("");
        let collections = self.collections(namespace).filter(|collection| {
            let mut values = self.hashed_writes(collection);
            values.next().is_some() || self.hashed_metadata_writes(collection).next().is_some()
        });
        public.into_iter().chain(collections.map(|collection| self.text(collection.name)))
    }

    /// The keys of a namespace whose value or metadata this set writes, each with its collection. Public keys come
    /// first, with an empty collection; then the keys of collections, as their hashes in hexadecimal.
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

    /// As [`ReadWriteSet::written_keys`], but only the keys whose metadata this set writes.
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

    /// The new metadata of a key, encoded as in Fabric's state: a `KVMetadataWrite` without the key. `None` deletes the
    /// metadata.
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

    /// Whether the set writes metadata, or may write a public key twice. Its changes then depend on the state before
    /// it.
    pub fn may_depend_on_state(&self) -> bool {
        self.may_depend_on_state
    }

    /// Whether the set writes only public values, and each key once.
    pub fn has_plain_writes_only(&self) -> bool {
        !self.may_depend_on_state && self.namespaces.iter().all(|namespace| namespace.hashed_writes == 0)
    }

    /// Whether a state can hold every key of the set: each collection has a name, no key is longer than
    /// [`super::KEY_BYTES_MAX`], and the names of a namespace and its collection together are not longer than
    /// [`super::NAMESPACE_BYTES_MAX`]. The names of namespaces that are only read are checked nowhere else before they
    /// reach the state.
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

/// The entries of one namespace among those of its set.
#[inline]
fn part<T>(entries: &[T], before: u32, count: u32) -> &[T] {
    let start = before as usize;
    let end = start.saturating_add(count as usize);
    entries.get(start..end).expect("each entry that was counted was kept")
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
    /// The number of reads and writes in the namespaces before.
    reads: u32,
    writes: u32,
    /// The kept reads and writes, with capacity for all of the set.
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

    /// Checks a key or the bound of a range. It must be text; one that no state can hold is noted. The empty key is
    /// sound, and as a bound it means no bound.
    fn key(&mut self, key: Span) -> Result<(), WireError> {
        self.has_unsound_keys |= !super::is_key_within_limit(key.of(self.source));
        key.text(self.source).map(|_| ())
    }

    /// Checks the hash of a key, which the state holds in hexadecimal.
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
                    // Fabric would take the hashes of a collection without a name for public keys.
                    self.has_unsound_keys |= collection.name.is_empty();
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
            // No count overflows: `take` bounds the sum of all counts by `ENTRIES_MAX`.
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
                        // The length of the key is not checked: no state holds a key that is too long, so the repeated
                        // scan differs.
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
