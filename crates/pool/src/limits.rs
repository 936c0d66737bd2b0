//! The sizes of sections, and other limits that both ends of a pool keep.

use crate::error::Error;

/// Bytes of a section unless configured otherwise.
pub const SECTION_BYTES_DEFAULT: u64 = 16 << 20;
/// Bytes of the smallest section: one page of the processors and network adapters.
pub const SECTION_BYTES_MIN: u64 = 4096;
/// Bytes of the largest section.
pub const SECTION_BYTES_MAX: u64 = 1 << 36;
/// Addresses of a space are below two to the power of this: 8 TiB.
pub const ADDRESS_BITS: u32 = 43;
/// Bytes of an owner's name.
pub const OWNER_BYTES_MAX: usize = 64;

/// Whether sections may have this size.
pub(crate) fn check_section_bytes(bytes: u64) -> Result<(), Error> {
    if bytes.is_power_of_two() && (SECTION_BYTES_MIN..=SECTION_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "a section of {bytes} bytes: choose a power of two between {SECTION_BYTES_MIN} and {SECTION_BYTES_MAX}, \
         the same at every memory node and owner of a pool"
    )))
}
