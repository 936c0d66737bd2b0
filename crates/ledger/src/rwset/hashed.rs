//! Records what a transaction reads and writes in one private collection, and encodes it: as hashes for the transaction, and
//! in plain for the members of the collection.
//!
//! The transaction contains the hashes of keys and values, in the order of the plain keys as in Fabric, and the hash of the
//! private set ([`RecordedCollection::private_set`]), which holds the writes themselves.

use std::collections::BTreeMap;

use base::{Bytes, Version};
use prost::Message;
use proto::kvrwset::{
    HashedRwSet, KvMetadataEntry, KvMetadataWrite, KvMetadataWriteHash, KvReadHash, KvWrite, KvWriteHash, KvrwSet,
};
use proto::rwset::CollectionHashedReadWriteSet;

use crate::hash::sha256;

/// The reads and writes of one transaction in one collection of a namespace.
#[derive(Debug, Default)]
pub struct RecordedCollection {
    reads: BTreeMap<Box<str>, Option<Version>>,
    writes: BTreeMap<Box<str>, RecordedWrite>,
    metadata: BTreeMap<Box<str>, BTreeMap<String, Bytes>>,
}

#[derive(Debug)]
struct RecordedWrite {
    value: Bytes,
    is_purge: bool,
}

impl RecordedCollection {
    /// Records that a key was read. All reads of a transaction see the same version.
    pub fn read(&mut self, key: &str, version: Option<Version>) {
        self.reads.insert(key.into(), version);
    }

    /// Records a write; an empty value deletes the key.
    pub fn write(&mut self, key: &str, value: Bytes) {
        self.writes.insert(key.into(), RecordedWrite { value, is_purge: false });
    }

    /// Records the removal of a key with all its earlier values.
    pub fn purge(&mut self, key: &str) {
        self.writes.insert(key.into(), RecordedWrite { value: Bytes::new(), is_purge: true });
    }

    /// Records a write of a key's metadata.
    pub fn write_metadata(&mut self, key: &str, metadata: BTreeMap<String, Bytes>) {
        self.metadata.insert(key.into(), metadata);
    }

    /// The encoded `CollectionHashedReadWriteSet`.
    pub fn encode(&self, name: &str) -> Vec<u8> {
        let hash = |bytes: &[u8]| Bytes::copy_from_slice(&sha256(bytes));
        let hashed_reads = self.reads.iter().map(|(key, version)| KvReadHash {
            key_hash: hash(key.as_bytes()),
            version: version
                .map(|Version { block, tx }| proto::kvrwset::Version { block_num: block, tx_num: tx.into() }),
        });
        let hashed_writes = self.writes.iter().map(|(key, write)| KvWriteHash {
            key_hash: hash(key.as_bytes()),
            is_delete: write.value.is_empty(),
            value_hash: if write.value.is_empty() { Bytes::new() } else { hash(&write.value) },
            is_purge: write.is_purge,
        });
        let metadata_writes = self
            .metadata
            .iter()
            .map(|(key, metadata)| KvMetadataWriteHash { key_hash: hash(key.as_bytes()), entries: entries(metadata) });
        let hashed = HashedRwSet {
            hashed_reads: hashed_reads.collect(),
            hashed_writes: hashed_writes.collect(),
            metadata_writes: metadata_writes.collect(),
        };
        let set = CollectionHashedReadWriteSet {
            collection_name: name.to_owned(),
            hashed_rwset: hashed.encode_to_vec().into(),
            pvt_rwset_hash: self.private_set().map(|set| hash(&set)).unwrap_or_default(),
        };
        set.encode_to_vec()
    }

    /// The encoded private `KVRWSet`; `None` if the transaction does not write to the collection. It holds the writes, and the
    /// keys whose metadata the transaction writes, but not the metadata themselves.
    pub fn private_set(&self) -> Option<Bytes> {
        if self.writes.is_empty() && self.metadata.is_empty() {
            return None;
        }
        let writes = self.writes.iter().map(|(key, write)| KvWrite {
            key: key.to_string(),
            is_delete: write.value.is_empty(),
            value: write.value.clone(),
        });
        let metadata = self.metadata.keys().map(|key| KvMetadataWrite { key: key.to_string(), entries: Vec::new() });
        let set = KvrwSet { writes: writes.collect(), metadata_writes: metadata.collect(), ..KvrwSet::default() };
        Some(set.encode_to_vec().into())
    }
}

/// Metadata as Fabric writes them, in the order of their names.
pub(super) fn entries(metadata: &BTreeMap<String, Bytes>) -> Vec<KvMetadataEntry> {
    metadata.iter().map(|(name, value)| KvMetadataEntry { name: name.clone(), value: value.clone() }).collect()
}
