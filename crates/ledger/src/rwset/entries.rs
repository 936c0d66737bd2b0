//! The entries of a decoded read-write set: keys read, keys written, metadata written, ranges scanned, and collections.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Version;

use super::NAMESPACES_MAX;
use crate::wire::Span;

/// The version of a key that a transaction saw. The numbers are as wide as on the wire, which is wider than a ledger's
/// own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadVersion {
    /// The block that wrote the version.
    pub block: u64,
    /// The position of the writing transaction in that block.
    pub transaction: u64,
}

impl PartialEq<Version> for ReadVersion {
    fn eq(&self, version: &Version) -> bool {
        self.block == version.block && self.transaction == u64::from(version.tx)
    }
}

/// One key that was read.
#[derive(Clone, Copy, Debug)]
pub struct KeyRead {
    pub(super) key: Span,
    /// `None` if the key did not exist.
    pub version: Option<ReadVersion>,
}

/// One key that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct KeyWrite {
    pub(super) key: Span,
    pub(super) value: Span,
    /// A write of an empty value is a delete too.
    pub is_delete: bool,
    /// Whether the write of a private key also removes the key's earlier values.
    pub is_purge: bool,
}

/// One key whose metadata is to be written; in a collection, the hash of the key.
#[derive(Clone, Copy, Debug)]
pub struct MetadataWrite {
    pub(super) key: Span,
    pub(super) place: Span,
}

/// The hashed reads and writes in one collection of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct CollectionReadWriteSet {
    pub(super) name: Span,
    /// Its `HashedRWSet`, whose format was checked.
    pub(super) entries: Span,
    /// The hash of the private writes; empty if there are none.
    pub(super) private_hash: Span,
}

/// One range that was scanned.
#[derive(Clone, Copy, Debug)]
pub struct ScannedRange {
    pub(super) start: Span,
    pub(super) end: Span,
    /// Whether the scan reached the end of the range. If not, `end` is the last key that it returned, and the range
    /// includes it.
    pub exhausted: bool,
    /// The results that it returned.
    pub reads: RangeReads,
}

/// The results of a scan.
#[derive(Clone, Copy, Debug)]
pub enum RangeReads {
    /// Each key and version; see [`results`](super::ReadWriteSet::results).
    Results(RangeResults),
    /// Too many results for a list; see [`summary`](super::ReadWriteSet::summary).
    Summary(RangeSummary),
}

/// The position of the results of a scan.
#[derive(Clone, Copy, Debug)]
pub struct RangeResults(pub(super) Span);

/// The position of the summary of a scan.
#[derive(Clone, Copy, Debug)]
pub struct RangeSummary {
    pub(super) place: Span,
    /// One of [`DEGREES_ACCEPTED`].
    pub(super) degree: u32,
    pub(super) level: u32,
    /// The number of its hashes.
    pub(super) count: u32,
}

/// The entries of a transaction in one namespace. [`super::ReadWriteSet::reads`], [`super::ReadWriteSet::ranges`] and
/// [`super::ReadWriteSet::writes`] return them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamespaceReadWriteSet {
    pub(super) name: Span,
    /// Its `KVRWSet`, whose format was checked.
    pub(super) entries: Span,
    /// The number of reads and writes of the set that precede those of this namespace.
    pub(super) reads_before: u32,
    pub(super) writes_before: u32,
    /// Keys that were read, scanned ranges aside.
    pub reads: u32,
    /// Ranges that were scanned.
    pub ranges: u32,
    /// Keys that are to be written.
    pub writes: u32,
    /// Keys whose metadata is to be written.
    pub metadata_writes: u32,
    /// The whole message of the namespace, which holds its collections.
    pub(super) message: Span,
    /// The number of `CollectionHashedReadWriteSet` messages; several may name the same collection.
    pub collections: u32,
    /// The number of hashed writes in all collections, writes of metadata included.
    pub hashed_writes: u32,
}

const _: () =
    assert!(NAMESPACES_MAX * size_of::<NamespaceReadWriteSet>() <= 64 << 10, "a set takes little whatever is in it");

impl NamespaceReadWriteSet {
    /// Whether the transaction writes anything in the namespace.
    pub fn writes_anything(&self) -> bool {
        self.writes > 0 || self.metadata_writes > 0 || self.hashed_writes > 0
    }
}
