//! Read-write sets: what a transaction read and wants to write, in Fabric's bytes.
//!
//! 1. While a contract runs, a [`ReadWriteSetRecorder`] records writes, scanned ranges, and reads with the version that
//!    each key had.
//! 2. [`ReadWriteSetRecorder::encode`] returns Fabric's `TxReadWriteSet`: the namespaces sorted; in each namespace the
//!    reads, ranges and writes, keys sorted, each key once. Endorsers that saw the same versions produce the same bytes.
//! 3. A validating peer reads those bytes with [`ReadWriteSet::decode`], which keeps positions in them and copies nothing.
//!
//! Rules, all Fabric's:
//! * A read of a key that did not exist has no version. A write of an empty value is a delete.
//! * A transaction never reads its own writes, so all its reads of one key see the same version.
//! * A scanned range is recorded with its first key, its end, and every key and version that was returned. The end is the
//!   requested one if the scan reached it, otherwise the last key that was returned. Of several equal ranges the first is
//!   kept.
//! * More than [`merkle::DEGREE`] results of one range are kept as a summary: a tree over groups of 51, see [`merkle`].
//!
//! Invariant: decoding and re-encoding the output of [`ReadWriteSetRecorder::encode`] gives the same bytes. Received bytes
//! need not be in Fabric's encoding to be decoded, and bytes that are no such message are an error. Hashes are always over
//! received bytes.
//!
//! Left to others: peers find conflicts in `validation`.

mod count;
mod decode;
mod encode;
mod entries;
mod error;
mod fields;
mod hashed;
mod limits;
pub mod merkle;
mod private;
mod record;
#[cfg(test)]
mod tests;
mod visit;

pub use decode::ReadWriteSet;
pub use entries::{
    CollectionReadWriteSet, KeyRead, KeyWrite, MetadataWrite, NamespaceReadWriteSet, RangeReads, RangeResults,
    RangeSummary, ReadVersion, ScannedRange,
};
pub use error::DecodeError;
pub use limits::{ENTRIES_MAX, KEY_BYTES_MAX, NAMESPACE_BYTES_MAX, NAMESPACES_MAX, is_key_within_limit, key_bytes};
pub use private::{PrivateWrite, private_writes, without_keys};
pub use record::{PrivateSet, RangeRecorder, ReadWriteSetRecorder};
pub use visit::{VisitedWrite, visit_writes};
