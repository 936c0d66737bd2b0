//! Read-write sets: what a transaction read and wants to write, in Fabric's bytes.
//!
//! 1. While a contract runs, a [`Recorder`] notes reads with the version each key had, writes, and scanned ranges.
//! 2. [`Recorder::encode`] gives Fabric's `TxReadWriteSet`: namespaces sorted, within each the reads, ranges and writes,
//!    keys sorted, each key once. Endorsers that saw the same versions produce the same bytes.
//! 3. A validating peer reads those bytes with [`ReadWriteSet::decode`], which keeps places in them and copies nothing.
//!
//! Rules, all Fabric's:
//! * A key that did not exist is read without a version. A write of no bytes is a delete.
//! * A transaction never reads its own writes, so a key is read at one version however often it is read.
//! * A scanned range keeps its first key, the end that was asked for if the scan reached it, else the last key that was
//!   handed out, and every key and version that was handed out; of equal ranges the first stays.
//! * More than [`merkle::DEGREE`] results of one range are kept as a summary: a tree over groups of 51, see [`merkle`].
//!
//! Invariant: for what [`Recorder::encode`] gave, decoding and encoding again gives the same bytes. Bytes from outside
//! that Fabric would encode differently decode as well (and an error where they are no such message); hashes are always
//! over received bytes.
//!
//! Conflicts are found in [`crate::validate`].

/// The longest key that a transaction may read or write, in bytes: the state's tables take no longer ones.
pub const KEY_BYTES_MAX: usize = 16_384;

/// The longest name of a namespace that a transaction may read or write in, in bytes.
pub const NAMESPACE_BYTES_MAX: usize = storage::tables::NAMESPACE_BYTES_MAX;
/// Namespaces that one read-write set may hold.
pub const NAMESPACES_MAX: usize = 1024;
/// Reads, writes, ranges and what ranges handed out, that one read-write set may hold in all. Endorsers stop well below:
/// see [`crate::endorse::simulate::ENTRIES_MAX`].
pub const ENTRIES_MAX: usize = 1 << 21;

const _: () = assert!(KEY_BYTES_MAX < storage::tables::KEY_BYTES_MAX);

mod decode;
mod encode;
pub mod merkle;
mod record;
#[cfg(test)]
mod tests;

pub use decode::{
    DecodeError, Namespace, Range, RangeReads, RangeResults, RangeSummary, Read, ReadVersion, ReadWriteSet, Write,
    visit_writes,
};
pub use record::{RangeRecorder, Recorder};
