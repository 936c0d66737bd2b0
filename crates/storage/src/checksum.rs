//! The checksum of this crate's formats.

/// The checksum of every format of this crate: XXH3, 64 bits, seed 0.
///
/// It was chosen over CRC32C because it guards records of up to hundreds of megabytes, for which 32 bits are too few, and
/// because the engine behind the tables already uses it; both run at memory speed. It detects accidents, not forgeries: the
/// hash chain and the signatures of the blocks detect those.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}
