//! The limits of a read-write set. A transaction whose read-write set exceeds one is invalid.

use crate::namespace::NAMESPACE_SUFFIX_BYTES;

/// The longest key that a transaction may read or write, in bytes as [`key_bytes`] counts them: the state's tables take no longer
/// ones.
pub const KEY_BYTES_MAX: usize = 64_000;

/// The longest names of a namespace that a transaction may read or write in and of a collection in it, in bytes of both together.
pub const NAMESPACE_BYTES_MAX: usize = storage::tables::NAMESPACE_BYTES_MAX - NAMESPACE_SUFFIX_BYTES;
/// Namespaces that one read-write set may hold.
pub const NAMESPACES_MAX: usize = 1024;
/// The largest number of reads, writes, ranges and results of ranges in one read-write set. Endorsers stop well below:
/// see `chain::endorse::simulate::ENTRIES_MAX`.
pub const ENTRIES_MAX: usize = 1 << 21;

// A scan continues after a key with a bound that is one zero byte longer.
const _: () = assert!(KEY_BYTES_MAX + 2 <= storage::tables::KEY_BYTES_MAX);

/// The bytes of a key, a zero byte counted twice, as the state's tables store it.
pub fn key_bytes(key: &[u8]) -> usize {
    storage::tables::key_bytes(key)
}

/// Whether a key is within [`KEY_BYTES_MAX`].
#[inline]
pub fn is_key_within_limit(key: &[u8]) -> bool {
    key.len() <= KEY_BYTES_MAX / 2 || key_bytes(key) <= KEY_BYTES_MAX
}
