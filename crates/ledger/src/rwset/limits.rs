//! The limits of a read-write set. A transaction whose read-write set exceeds one is invalid.

use crate::namespace::NAMESPACE_SUFFIX_BYTES;

/// The longest key that a transaction may read or write, in bytes: the state's tables take no longer ones.
pub const KEY_BYTES_MAX: usize = 16_384;

/// The longest names of a namespace that a transaction may read or write in and of a collection in it, in bytes of both together.
pub const NAMESPACE_BYTES_MAX: usize = storage::tables::NAMESPACE_BYTES_MAX - NAMESPACE_SUFFIX_BYTES;
/// Namespaces that one read-write set may hold.
pub const NAMESPACES_MAX: usize = 1024;
/// The largest number of reads, writes, ranges and results of ranges in one read-write set. Endorsers stop well below:
/// see `chain::endorse::simulate::ENTRIES_MAX`.
pub const ENTRIES_MAX: usize = 1 << 21;

const _: () = assert!(KEY_BYTES_MAX < storage::tables::KEY_BYTES_MAX);
