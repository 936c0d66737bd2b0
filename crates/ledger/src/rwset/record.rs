//! Records the reads and writes of a transaction, and encodes them canonically.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::wire::{bytes_field_len, put_bytes, put_bytes_header};
use base::{Bytes, Version};
use prost::Message;
use proto::kvrwset::KvMetadataWrite;

use super::encode::{
    number_field_len, pair, put_number, put_read, put_text, put_write, read_len, text_field_len, write_len,
};
use super::hashed::{RecordedCollection, entries};
use super::merkle::{DEGREE, MerkleSummary, RangeSummarizer, SummarizerOutcome};

/// The private writes of a transaction to one collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateSet {
    /// The contract.
    pub namespace: String,
    /// Its collection.
    pub collection: String,
    /// The encoded `KVRWSet`. Its SHA-256 stands in the transaction.
    pub writes: Bytes,
}

/// The reads and writes of one transaction, in every namespace that it touches.
#[derive(Debug, Default)]
pub struct ReadWriteSetRecorder {
    namespaces: BTreeMap<Arc<str>, RecordedNamespace>,
    entries: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
struct RecordedNamespace {
    reads: Vec<(Box<str>, Option<Version>)>,
    writes: Vec<(Box<str>, Bytes)>,
    ranges: Vec<RecordedRange>,
    metadata: BTreeMap<Box<str>, BTreeMap<String, Bytes>>,
    collections: BTreeMap<Box<str>, RecordedCollection>,
}

#[derive(Debug)]
struct RecordedRange {
    start: String,
    end: String,
    exhausted: bool,
    outcome: SummarizerOutcome,
}

impl ReadWriteSetRecorder {
    /// An empty recorder.
    pub fn new() -> ReadWriteSetRecorder {
        ReadWriteSetRecorder::default()
    }

    /// Records that `key` was read, and its version if it existed.
    pub fn read(&mut self, namespace: &Arc<str>, key: &str, version: Option<Version>) {
        self.count(key.len());
        self.namespace(namespace).reads.push((key.into(), version));
    }

    /// Records a write; the last write of a key counts. An empty value deletes the key.
    pub fn write(&mut self, namespace: &Arc<str>, key: &str, value: Bytes) {
        self.count(key.len() + value.len());
        self.namespace(namespace).writes.push((key.into(), value));
    }

    /// Records a write of a key's metadata, which replaces all entries; the last one counts.
    pub fn metadata_write(&mut self, namespace: &Arc<str>, key: &str, metadata: BTreeMap<String, Bytes>) {
        self.count(key.len() + metadata_len(&metadata));
        self.namespace(namespace).metadata.insert(key.into(), metadata);
    }

    /// Records that the private `key` was read, or its hash, and its version if it existed.
    pub fn private_read(&mut self, namespace: &Arc<str>, collection: &str, key: &str, version: Option<Version>) {
        self.count(key.len());
        self.collection(namespace, collection).read(key, version);
    }

    /// Records a private write; the last write of a key counts. An empty value deletes the key.
    pub fn private_write(&mut self, namespace: &Arc<str>, collection: &str, key: &str, value: Bytes) {
        self.count(key.len() + value.len());
        self.collection(namespace, collection).write(key, value);
    }

    /// Records the removal of a private key with all its earlier values.
    pub fn private_purge(&mut self, namespace: &Arc<str>, collection: &str, key: &str) {
        self.count(key.len());
        self.collection(namespace, collection).purge(key);
    }

    /// Records a write of a private key's metadata, which replaces all entries; the last one counts.
    pub fn private_metadata_write(
        &mut self,
        namespace: &Arc<str>,
        collection: &str,
        key: &str,
        metadata: BTreeMap<String, Bytes>,
    ) {
        self.count(key.len() + metadata_len(&metadata));
        self.collection(namespace, collection).write_metadata(key, metadata);
    }

    /// The private writes, in the order of namespaces and collections.
    pub fn private_sets(&self) -> Vec<PrivateSet> {
        let collections = self.namespaces.iter().flat_map(|(namespace, recorded)| {
            recorded.collections.iter().map(move |(collection, recorded)| (namespace, collection, recorded))
        });
        let sets = collections.filter_map(|(namespace, collection, recorded)| {
            let writes = recorded.private_set()?;
            Some(PrivateSet { namespace: namespace.to_string(), collection: collection.to_string(), writes })
        });
        sets.collect()
    }

    /// Records a finished scan. A scan that returned nothing and did not reach its end is not recorded.
    pub fn range(&mut self, namespace: &Arc<str>, range: RangeRecorder) {
        let Some(range) = range.finish() else { return };
        self.count(range.start.len() + range.end.len());
        let ranges = &mut self.namespace(namespace).ranges;
        let same = |other: &RecordedRange| {
            other.start == range.start && other.end == range.end && other.exhausted == range.exhausted
        };
        if !ranges.iter().any(same) {
            ranges.push(range);
        }
    }

    /// Counts an unfinished scan, so that limits apply to it.
    pub fn note_query(&mut self) {
        self.count(0);
    }

    /// The number of recorded reads, writes and ranges, repetitions included.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// The number of recorded bytes of keys and values, repetitions included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn count(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes;
    }

    fn namespace(&mut self, name: &Arc<str>) -> &mut RecordedNamespace {
        if !self.namespaces.contains_key(name) {
            self.namespaces.insert(name.clone(), RecordedNamespace::default());
        }
        self.namespaces.get_mut(name).expect("the namespace was just ensured")
    }

    fn collection(&mut self, namespace: &Arc<str>, name: &str) -> &mut RecordedCollection {
        self.namespace(namespace).collections.entry(name.into()).or_default()
    }

    /// The encoded `TxReadWriteSet`. It holds private keys and values by their hashes only.
    pub fn encode(mut self) -> Bytes {
        let mut encoded = Vec::with_capacity(self.bytes + 24 * self.entries + 64);
        for (name, recorded) in &mut self.namespaces {
            recorded.normalise();
            let length = recorded.encoded_len();
            let collections: Vec<Vec<u8>> =
                recorded.collections.iter().map(|(name, collection)| collection.encode(name)).collect();
            let collections_length: usize =
                collections.iter().map(|collection| bytes_field_len(3, collection.len())).sum();
            let namespace_length = text_field_len(1, name.len()) + text_field_len(2, length) + collections_length;
            put_bytes_header(&mut encoded, 2, namespace_length);
            put_text(&mut encoded, 1, name);
            if length > 0 {
                put_bytes_header(&mut encoded, 2, length);
                let before = encoded.len();
                recorded.put(&mut encoded);
                assert_eq!(encoded.len() - before, length, "the announced length is the written one");
            }
            collections.iter().for_each(|collection| put_bytes(&mut encoded, 3, collection));
        }
        encoded.into()
    }
}

impl RecordedNamespace {
    /// Sorts by key; keeps one of repeated reads, and the last of repeated writes.
    fn normalise(&mut self) {
        self.reads.sort_by(|a, b| a.0.cmp(&b.0));
        self.reads.dedup_by(|later, earlier| later.0 == earlier.0);
        // A stable sort, so that the writes of one key stay in their order.
        self.writes.sort_by(|a, b| a.0.cmp(&b.0));
        self.writes.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(&mut later.1, &mut earlier.1);
            }
            same
        });
    }

    fn encoded_len(&self) -> usize {
        let reads: usize =
            self.reads.iter().map(|(key, version)| bytes_field_len(1, read_len(key, version.map(pair)))).sum();
        let ranges: usize = self.ranges.iter().map(|range| bytes_field_len(2, range.encoded_len())).sum();
        let writes: usize = self.writes.iter().map(|(key, value)| bytes_field_len(3, write_len(key, value))).sum();
        let metadata: usize = self
            .metadata
            .iter()
            .map(|(key, entries)| bytes_field_len(4, metadata_write(key, entries).encoded_len()))
            .sum();
        reads + ranges + writes + metadata
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        for (key, version) in &self.reads {
            put_read(bytes, 1, key, version.map(pair));
        }
        for range in &self.ranges {
            put_bytes_header(bytes, 2, range.encoded_len());
            range.put(bytes);
        }
        for (key, value) in &self.writes {
            put_write(bytes, 3, key, value);
        }
        for (key, metadata) in &self.metadata {
            put_bytes(bytes, 4, &metadata_write(key, metadata).encode_to_vec());
        }
    }
}

fn metadata_write(key: &str, metadata: &BTreeMap<String, Bytes>) -> KvMetadataWrite {
    KvMetadataWrite { key: key.to_owned(), entries: entries(metadata) }
}

fn metadata_len(metadata: &BTreeMap<String, Bytes>) -> usize {
    metadata.iter().map(|(name, value)| name.len() + value.len()).sum()
}

impl RecordedRange {
    fn encoded_len(&self) -> usize {
        let results = match &self.outcome {
            SummarizerOutcome::Results(results) => text_field_len(4, results.len()),
            SummarizerOutcome::Summary(summary) => bytes_field_len(5, summary_len(summary)),
        };
        text_field_len(1, self.start.len())
            + text_field_len(2, self.end.len())
            + number_field_len(u64::from(self.exhausted))
            + results
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        put_text(bytes, 1, &self.start);
        put_text(bytes, 2, &self.end);
        put_number(bytes, 3, u64::from(self.exhausted));
        match &self.outcome {
            SummarizerOutcome::Results(results) if results.is_empty() => {}
            SummarizerOutcome::Results(results) => put_bytes(bytes, 4, results),
            SummarizerOutcome::Summary(summary) => {
                put_bytes_header(bytes, 5, summary_len(summary));
                put_number(bytes, 1, u64::from(summary.degree));
                put_number(bytes, 2, u64::from(summary.level));
                for hash in &summary.hashes {
                    put_bytes(bytes, 3, hash);
                }
            }
        }
    }
}

fn summary_len(summary: &MerkleSummary) -> usize {
    number_field_len(u64::from(summary.degree))
        + number_field_len(u64::from(summary.level))
        + summary.hashes.iter().map(|hash| bytes_field_len(3, hash.len())).sum::<usize>()
}

/// Records one scan while its results are returned.
#[derive(Clone, Debug)]
pub struct RangeRecorder {
    start: String,
    requested_end: String,
    last: Option<String>,
    exhausted: bool,
    summarizer: RangeSummarizer,
}

impl RangeRecorder {
    /// A scan from `start` to `end`, exclusive; an empty `end` means no upper bound.
    pub fn new(start: &str, end: &str) -> RangeRecorder {
        RangeRecorder {
            start: start.to_owned(),
            requested_end: end.to_owned(),
            last: None,
            exhausted: false,
            summarizer: RangeSummarizer::new(DEGREE),
        }
    }

    /// Records a result that is returned. Results come in the order of keys.
    pub fn add(&mut self, key: &str, version: Version) {
        self.summarizer.add(key, version);
        let last = self.last.get_or_insert_with(String::new);
        last.clear();
        last.push_str(key);
    }

    /// Records that the scan reached the end of its range.
    pub fn exhaust(&mut self) {
        self.exhausted = true;
    }

    /// Records that the scan ended at its last result, even if the range has no more.
    pub fn stop(&mut self) {
        self.exhausted = false;
    }

    fn finish(self) -> Option<RecordedRange> {
        let end = if self.exhausted { self.requested_end } else { self.last? };
        Some(RecordedRange { start: self.start, end, exhausted: self.exhausted, outcome: self.summarizer.finish() })
    }
}
