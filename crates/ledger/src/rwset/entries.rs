//! The entries of a decoded read-write set: keys read, keys written, ranges scanned.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Version;

use crate::wire::Span;

/// The version of a key that a transaction saw. The numbers are as wide as on the wire, wider than those of any ledger.
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
}

/// One key whose metadata is to be written; in a collection the key's hash.
#[derive(Clone, Copy, Debug)]
pub struct MetadataWrite {
    pub(super) key: Span,
    pub(super) place: Span,
}

/// The hashes of what was read and is to be written in one collection of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct CollectionReadWriteSet {
    pub(super) name: Span,
    /// Its `HashedRWSet`, whose format was checked.
    pub(super) entries: Span,
}

/// One range that was scanned.
#[derive(Clone, Copy, Debug)]
pub struct ScannedRange {
    pub(super) start: Span,
    pub(super) end: Span,
    /// Whether the scan reached the end of the range; otherwise `end` is the last key that it returned, and part of the
    /// range.
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
    /// How many hashes it has.
    pub(super) count: u32,
}
