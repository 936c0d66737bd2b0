//! The keys that a transaction reads and may write, as hashes.
//!
//! The dependency graph of a block needs to know only which keys its transactions share. So a footprint has one 64-bit
//! hash for each access, and the one task that builds the [graph](crate::graph) compares no keys by name, except with
//! ranges. Footprints are computed where transactions are verified, on all cores.
//!
//! A key is named as the world state names it: a private key by the hash of its name, in the namespace of its
//! collection; the metadata of a key in a namespace apart. Two keys with one hash count as the same key; see
//! [`crate::graph`] for why that does no harm. The hash has a key that clients do not know.

use std::hash::{BuildHasher as _, Hasher};

use base::collections::Hashing;
use ledger::namespace;
use ledger::rwset::ReadWriteSet;

/// The hash of a row of the world state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowHash(u64);

impl RowHash {
    /// The hash of one row.
    pub fn of(namespace: &str, key: &str) -> RowHash {
        NamespaceHasher::new(namespace).row(key)
    }
}

/// Hashes rows of one namespace.
pub(crate) struct NamespaceHasher(<Hashing as std::hash::BuildHasher>::Hasher);

impl NamespaceHasher {
    pub(crate) fn new(namespace: &str) -> NamespaceHasher {
        let mut hasher = Hashing::default().build_hasher();
        hasher.write(namespace.as_bytes());
        NamespaceHasher(hasher)
    }

    /// Stands for all rows of the namespace.
    pub(crate) fn whole(&self) -> RowHash {
        let mut hasher = self.0.clone();
        hasher.write_u8(0);
        RowHash(hasher.finish())
    }

    pub(crate) fn row(&self, key: &str) -> RowHash {
        let mut hasher = self.0.clone();
        hasher.write(key.as_bytes());
        RowHash(hasher.finish())
    }
}

/// Calls `visit` with each row that a transaction may write: its namespace and its key in the world state.
pub(crate) fn visit_written_rows(set: &ReadWriteSet, mut visit: impl FnMut(&str, &str)) {
    if set.has_plain_writes_only() {
        for namespace in set.namespaces.iter().filter(|namespace| namespace.writes > 0) {
            let contract = set.name(namespace);
            set.writes(namespace).for_each(|write| visit(contract, set.write_key(&write)));
            // A delete also removes the metadata of its key.
            let mut deletes = set.writes(namespace).filter(|write| set.write_value(write).is_none()).peekable();
            if deletes.peek().is_some() {
                let metadata = namespace::metadata_of(contract, "");
                deletes.for_each(|write| visit(&metadata, set.write_key(&write)));
            }
        }
        return;
    }
    for namespace in &set.namespaces {
        let contract = set.name(namespace);
        let mut of_collection: Option<(&str, String, String)> = None;
        for (collection, key) in set.written_keys(namespace) {
            if of_collection.as_ref().is_none_or(|(known, ..)| *known != collection) {
                let (values, metadata) =
                    (namespace::values_of(contract, collection), namespace::metadata_of(contract, collection));
                of_collection = Some((collection, values, metadata));
            }
            let (_, values, metadata) = of_collection.as_ref().expect("just set");
            visit(values, &key);
            visit(metadata, &key);
        }
    }
}

/// The keys that one transaction reads and may write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Reads, then writes.
    rows: Vec<RowHash>,
    reads: usize,
    has_scans: bool,
}

impl Footprint {
    /// The footprint of a read-write set.
    pub fn of(set: &ReadWriteSet) -> Footprint {
        let accesses = set.namespaces.iter().map(|namespace| (namespace.reads + namespace.writes) as usize).sum();
        let mut rows = Vec::with_capacity(accesses);
        let mut has_scans = false;
        for namespace in &set.namespaces {
            let contract = set.name(namespace);
            has_scans |= namespace.ranges > 0;
            let hasher = NamespaceHasher::new(contract);
            rows.extend(set.reads(namespace).map(|read| hasher.row(set.read_key(&read))));
            for collection in set.collections(namespace) {
                let values = namespace::values_of(contract, set.collection_name(&collection));
                let hasher = NamespaceHasher::new(&values);
                let reads = set.hashed_reads(&collection);
                rows.extend(reads.map(|read| hasher.row(&identity::hex::encode(set.read_hash(&read)))));
            }
        }
        let reads = rows.len();
        let mut of_namespace: Option<(String, NamespaceHasher)> = None;
        visit_written_rows(set, |namespace, key| {
            if of_namespace.as_ref().is_none_or(|(known, _)| known != namespace) {
                of_namespace = Some((namespace.to_owned(), NamespaceHasher::new(namespace)));
            }
            let (_, hasher) = of_namespace.as_ref().expect("just set");
            rows.push(hasher.row(key));
        });
        Footprint { rows, reads, has_scans }
    }

    /// The keys that it reads: in each namespace first the public ones, then those of collections.
    pub fn reads(&self) -> &[RowHash] {
        &self.rows[..self.reads]
    }

    /// The keys whose values or metadata it may write.
    pub fn writes(&self) -> &[RowHash] {
        &self.rows[self.reads..]
    }

    /// The number of keys that it reads and may write; a key that it reads and writes counts twice.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it neither reads nor writes a key.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether it scans ranges, whose keys are not in the footprint.
    pub fn has_scans(&self) -> bool {
        self.has_scans
    }
}
