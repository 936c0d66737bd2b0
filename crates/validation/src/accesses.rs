//! The rows that a transaction reads and writes, as hashes, with the versions that it read.
//!
//! As a [footprint](crate::footprint) this names rows by hashes with a key that clients do not know. It also says which
//! version of each row the transaction read and which rows it deletes, so that an orderer can predict which
//! transactions of a block are valid. Ranges count by their namespace: a scan reads the namespace, and each write of a
//! public key writes it.

use identity::hex;
use ledger::namespace;
use ledger::rwset::{ReadVersion, ReadWriteSet};

use crate::footprint::{NamespaceHasher, RowHash};

/// A row that a transaction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRead {
    /// The row.
    pub row: RowHash,
    /// The version that it had; `None` if it did not exist.
    pub version: Option<ReadVersion>,
}

/// A row that a transaction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowWrite {
    /// The row.
    pub row: RowHash,
    /// Whether the row is deleted.
    pub is_delete: bool,
}

/// The rows that one transaction reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// The rows that it reads; the set may name one several times.
    pub reads: Vec<RowRead>,
    /// The rows that it writes.
    pub writes: Vec<RowWrite>,
    /// The namespaces in which it scans ranges.
    pub scanned: Vec<RowHash>,
    /// The namespaces in which it writes public keys.
    pub written_namespaces: Vec<RowHash>,
}

impl Accesses {
    /// The accesses of a read-write set. `None` if there are more than `count_max`, or if the set writes metadata: then
    /// the transaction can make a later one of its block invalid that reads nothing which it writes.
    pub fn of(set: &ReadWriteSet, count_max: usize) -> Option<Accesses> {
        let mut accesses = Accesses::default();
        if set.may_depend_on_state() || set.namespaces.len() > count_max {
            return None;
        }
        let mut left = count_max;
        let mut take = || {
            left = left.checked_sub(1)?;
            Some(())
        };
        for namespace in &set.namespaces {
            let contract = set.name(namespace);
            let hasher = NamespaceHasher::new(contract);
            if namespace.ranges > 0 {
                take()?;
                accesses.scanned.push(hasher.whole());
            }
            if namespace.writes > 0 {
                take()?;
                accesses.written_namespaces.push(hasher.whole());
            }
            for read in set.reads(namespace) {
                take()?;
                accesses.reads.push(RowRead { row: hasher.row(set.read_key(&read)), version: read.version });
            }
            for write in set.writes(namespace) {
                take()?;
                let is_delete = set.write_value(&write).is_none();
                accesses.writes.push(RowWrite { row: hasher.row(set.write_key(&write)), is_delete });
            }
            for collection in set.collections(namespace) {
                take()?;
                let values = namespace::values_of(contract, set.collection_name(&collection));
                let hasher = NamespaceHasher::new(&values);
                for read in set.hashed_reads(&collection) {
                    take()?;
                    let row = hasher.row(&hex::encode(set.read_hash(&read)));
                    accesses.reads.push(RowRead { row, version: read.version });
                }
                for write in set.hashed_writes(&collection) {
                    take()?;
                    let row = hasher.row(&hex::encode(set.write_hash(&write)));
                    accesses.writes.push(RowWrite { row, is_delete: write.is_delete });
                }
            }
        }
        Some(accesses)
    }

    /// The number of accesses.
    pub fn len(&self) -> usize {
        self.reads.len() + self.writes.len() + self.scanned.len() + self.written_namespaces.len()
    }

    /// Whether it accesses nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base::{Bytes, Version};
    use ledger::rwset::{RangeRecorder, ReadWriteSetRecorder};

    use super::*;

    fn set(record: impl FnOnce(&mut ReadWriteSetRecorder)) -> ReadWriteSet {
        let mut recorder = ReadWriteSetRecorder::new();
        record(&mut recorder);
        ReadWriteSet::decode(recorder.encode()).expect("just encoded")
    }

    #[test]
    fn rows_have_the_hashes_of_footprints_and_the_versions_that_were_read() {
        let set = set(|recorder| {
            recorder.read(&"bank".into(), "ann", Some(Version::new(7, 2)));
            recorder.read(&"bank".into(), "bob", None);
            recorder.write(&"bank".into(), "ann", Bytes::from_static(b"1"));
            recorder.write(&"bank".into(), "bob", Bytes::new());
            recorder.private_read(&"bank".into(), "secret", "cem", Some(Version::new(3, 1)));
            recorder.private_write(&"bank".into(), "secret", "cem", Bytes::from_static(b"2"));
            recorder.range(&"shop".into(), {
                let mut range = RangeRecorder::new("a", "b");
                range.exhaust();
                range
            });
        });
        let accesses = Accesses::of(&set, 100).expect("there are fewer");
        let footprint = crate::footprint::Footprint::of(&set);
        let reads: Vec<RowHash> = accesses.reads.iter().map(|read| read.row).collect();
        assert_eq!(reads, footprint.reads());
        assert!(accesses.writes.iter().all(|write| footprint.writes().contains(&write.row)));
        let versions: Vec<_> =
            accesses.reads.iter().map(|read| read.version.map(|at| (at.block, at.transaction))).collect();
        assert_eq!(versions, [Some((7, 2)), None, Some((3, 1))]);
        let deletes: Vec<bool> = accesses.writes.iter().map(|write| write.is_delete).collect();
        assert_eq!(deletes, [false, true, false]);
        assert_eq!((accesses.scanned.len(), accesses.written_namespaces.len()), (1, 1));
        assert_ne!(accesses.scanned, accesses.written_namespaces);
        // One collection more than there are rows and namespaces.
        assert_eq!(Accesses::of(&set, accesses.len()), None);
        assert_eq!(Accesses::of(&set, accesses.len() + 1).as_ref(), Some(&accesses));
    }

    #[test]
    fn a_set_that_writes_metadata_has_none() {
        let metadata = BTreeMap::from([("policy".to_owned(), Bytes::from_static(b"p"))]);
        let public = set(|recorder| recorder.metadata_write(&"bank".into(), "ann", metadata.clone()));
        let private =
            set(|recorder| recorder.private_metadata_write(&"bank".into(), "secret", "ann", metadata.clone()));
        assert_eq!((Accesses::of(&public, 100), Accesses::of(&private, 100)), (None, None));
    }
}
