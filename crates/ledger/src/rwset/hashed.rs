//! Records what a transaction reads and writes in one private collection, and encodes their hashes.
//!
//! The transaction contains the hashes of keys and values ([`RecordedCollection::encode`]), in the order of the plain
//! keys as in Fabric, and the hash of the private read-write set, which holds the writes themselves. Fabric sends that
//! set to the members of the collection; here it is built only to be hashed.

use std::collections::BTreeMap;

use base::{Bytes, Version};
use prost::Message;
use proto::kvrwset::{HashedRwSet, KvReadHash, KvWrite, KvWriteHash, KvrwSet};
use proto::rwset::CollectionHashedReadWriteSet;

use crate::hash::sha256;

/// The reads and writes of one transaction in one collection of a namespace.
#[derive(Debug, Default)]
pub struct RecordedCollection {
    reads: BTreeMap<Box<str>, Option<Version>>,
    writes: BTreeMap<Box<str>, Bytes>,
}

impl RecordedCollection {
    /// Records that a key was read. All reads of a transaction see the same version.
    pub fn read(&mut self, key: &str, version: Option<Version>) {
        self.reads.insert(key.into(), version);
    }

    /// Records a write; an empty value deletes the key.
    pub fn write(&mut self, key: &str, value: Bytes) {
        self.writes.insert(key.into(), value);
    }

    /// The encoded `CollectionHashedReadWriteSet`.
    pub fn encode(&self, name: &str) -> Vec<u8> {
        let hash = |bytes: &[u8]| Bytes::copy_from_slice(&sha256(bytes));
        let hashed_reads = self.reads.iter().map(|(key, version)| KvReadHash {
            key_hash: hash(key.as_bytes()),
            version: version
                .map(|Version { block, tx }| proto::kvrwset::Version { block_num: block, tx_num: tx.into() }),
        });
        let hashed_writes = self.writes.iter().map(|(key, value)| KvWriteHash {
            key_hash: hash(key.as_bytes()),
            is_delete: value.is_empty(),
            value_hash: if value.is_empty() { Bytes::new() } else { hash(value) },
            is_purge: false,
        });
        let hashed = HashedRwSet {
            hashed_reads: hashed_reads.collect(),
            hashed_writes: hashed_writes.collect(),
            metadata_writes: Vec::new(),
        };
        let private = self.private_set();
        let set = CollectionHashedReadWriteSet {
            collection_name: name.to_owned(),
            hashed_rwset: hashed.encode_to_vec().into(),
            pvt_rwset_hash: if private.is_empty() { Bytes::new() } else { hash(&private) },
        };
        set.encode_to_vec()
    }

    /// The encoded private `KVRWSet`, which holds only writes; empty if there are none.
    fn private_set(&self) -> Vec<u8> {
        let writes = self.writes.iter().map(|(key, value)| KvWrite {
            key: key.to_string(),
            is_delete: value.is_empty(),
            value: value.clone(),
        });
        KvrwSet { writes: writes.collect(), ..KvrwSet::default() }.encode_to_vec()
    }
}
