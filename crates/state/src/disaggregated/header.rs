//! The header of a section: what a later primary must know to adopt it (docs/formats/section-header.md).
//!
//! ```text
//!  0  magic
//!  8  seed of the key hashes
//! 16  the section's address
//! 24  checksum: XXH3 64 of the bytes from 0 to 23
//! 32  mark: height:40 | membership:24, or 0
//! 40  next: a number that is above those of all sections so far
//! 48  0:16
//! 64  catalogue: address of a subtable in this section, or 0, 8 bytes each
//! ```
//!
//! The first 32 bytes are written once, before the section is used. A mark is one word, so that it is never seen in part.
//!
//! Invariant: bytes from remote memory become a header only if magic, address and checksum agree; an entry of the
//! catalogue counts only if it lies in the section behind the header.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, BytesMut};
use twox_hash::XxHash3_64;
use wire::u64_at;

use super::index::{BUCKET_BYTES, SUBTABLE_BYTES};

const MAGIC: u64 = u64::from_le_bytes(*b"HDLSECT1");
const FIXED_BYTES: u64 = 64;
/// Offset of mark and next number, which are written together.
pub const MARK_OFFSET: u64 = 32;
const HEIGHT_BITS: u32 = 40;
/// Sections of fewer bytes have no header, and are never adopted.
const SECTION_BYTES_MIN: u64 = 8192;
/// Subtables that are listed even in a small section.
const CATALOGUE_MIN: u64 = 8;
/// One entry of the catalogue for this many bytes of a section: a fourth of it may be index.
const BYTES_PER_ENTRY: u64 = 4 * 4096;

/// Entries of the catalogue of a section.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn catalogue_entries(section_bytes: u64) -> usize {
    if section_bytes < SECTION_BYTES_MIN {
        return 0;
    }
    ((section_bytes / SUBTABLE_BYTES as u64).min(CATALOGUE_MIN)).max(section_bytes / BYTES_PER_ENTRY) as usize
}

/// Bytes of the header of a section.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn header_bytes(section_bytes: u64) -> u64 {
    match catalogue_entries(section_bytes) as u64 {
        0 => 0,
        entries => (FIXED_BYTES + 8 * entries).next_multiple_of(BUCKET_BYTES as u64),
    }
}

/// The address of an entry of the catalogue.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub const fn entry_address(base: u64, entry: usize) -> u64 {
    base + FIXED_BYTES + 8 * entry as u64
}

/// How far the index of a memory node's sections has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The index has every write of the blocks below this height.
    pub height: u64,
    /// Which sections belong together: changes whenever one is given up. Not 0.
    pub membership: u32,
}

impl Mark {
    /// The highest height that a mark can name.
    pub const HEIGHT_MAX: u64 = (1 << HEIGHT_BITS) - 1;
    /// The bits of a membership.
    pub const MEMBERSHIP_MASK: u64 = (1 << (64 - HEIGHT_BITS)) - 1;

    /// As stored.
    pub fn bits(self) -> u64 {
        assert!(
            self.height <= Mark::HEIGHT_MAX && u64::from(self.membership) <= Mark::MEMBERSHIP_MASK,
            "the caller checks"
        );
        self.height | (u64::from(self.membership) << HEIGHT_BITS)
    }

    /// `None` for a word without a membership.
    pub fn from_bits(bits: u64) -> Option<Mark> {
        let membership = (bits >> HEIGHT_BITS) as u32;
        (membership != 0).then_some(Mark { height: bits & Mark::HEIGHT_MAX, membership })
    }
}

/// A header as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SectionHeader {
    pub seed: u64,
    pub mark: Option<Mark>,
    /// The number that the next section may have.
    pub next: u64,
    /// The entries of the catalogue that are not 0.
    pub catalogue: Vec<(usize, u64)>,
}

/// The bytes of a new section's header, without its catalogue, which is zero as the whole section is.
pub fn encode(seed: u64, address: u64) -> Bytes {
    let mut bytes = BytesMut::with_capacity(FIXED_BYTES as usize);
    for word in [MAGIC, seed, address] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let checksum = XxHash3_64::oneshot(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.freeze()
}

/// The bytes of mark and next number.
pub fn encode_mark(mark: Option<Mark>, next: u64) -> Bytes {
    let mut bytes = BytesMut::with_capacity(16);
    bytes.extend_from_slice(&mark.map_or(0, Mark::bits).to_le_bytes());
    bytes.extend_from_slice(&next.to_le_bytes());
    bytes.freeze()
}

/// Removes mark and next number from the bytes of a header.
pub fn clear_mark(header: &mut [u8]) {
    let mark = MARK_OFFSET as usize;
    if let Some(bytes) = header.get_mut(mark..mark.saturating_add(16)) {
        bytes.fill(0);
    }
}

/// Reads the header of the section at `address`; `None` if there is none.
#[allow(clippy::arithmetic_side_effects, reason = "offsets within the length that was checked")]
pub fn decode(bytes: &[u8], address: u64, section_bytes: u64) -> Option<SectionHeader> {
    let length = header_bytes(section_bytes);
    if length == 0 || bytes.len() as u64 != length {
        return None;
    }
    let fits = u64_at(bytes, 0) == MAGIC
        && u64_at(bytes, 16) == address
        && u64_at(bytes, 24) == XxHash3_64::oneshot(&bytes[..24]);
    if !fits {
        return None;
    }
    let entries = (0..catalogue_entries(section_bytes)).map(|at| (at, u64_at(bytes, FIXED_BYTES as usize + 8 * at)));
    Some(SectionHeader {
        seed: u64_at(bytes, 8),
        mark: Mark::from_bits(u64_at(bytes, MARK_OFFSET as usize)),
        next: u64_at(bytes, 40),
        catalogue: entries.filter(|(_, subtable)| *subtable != 0).collect(),
    })
}

/// Whether a subtable may lie at an address of the section at `base`.
pub fn holds_subtable(base: u64, section_bytes: u64, subtable: u64) -> bool {
    let offset = subtable.wrapping_sub(base);
    let first = header_bytes(section_bytes);
    let last = section_bytes.saturating_sub(SUBTABLE_BYTES as u64);
    subtable.is_multiple_of(BUCKET_BYTES as u64) && (first..=last).contains(&offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_takes_little_and_leaves_a_small_section_its_subtables() {
        assert_eq!((header_bytes(4096), catalogue_entries(4096)), (0, 0));
        assert_eq!(header_bytes(8192), 128, "two subtables fit behind it");
        assert_eq!(header_bytes(16 << 20), 64 + 8 * 1024);
        assert!(holds_subtable(8192, 8192, 8192 + 128) && holds_subtable(8192, 8192, 8192 + 128 + 4032));
        for wrong in [0, 8192, 8192 + 64, 8192 + 130, 8192 + 192 + 4032, 16384, u64::MAX - 63] {
            assert!(!holds_subtable(8192, 8192, wrong), "{wrong}");
        }
    }

    #[test]
    fn headers_have_the_documented_bytes() {
        let mut bytes = encode(0x11, 0x10_0000).to_vec();
        bytes.extend_from_slice(&encode_mark(Some(Mark { height: 9, membership: 0x0A_BCDE }), 5));
        bytes.resize(header_bytes(8192) as usize, 0);
        bytes[72..80].copy_from_slice(&0x10_0080u64.to_le_bytes());
        let golden = "48444c5345435431 1100000000000000 0000100000000000";
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&bytes[..24]), golden.replace(' ', ""));
        assert_eq!(hex(&bytes[32..48]), "0900000000debc0a0500000000000000");
        let header = decode(&bytes, 0x10_0000, 8192).expect("it is one");
        let mark = Some(Mark { height: 9, membership: 0x0A_BCDE });
        assert_eq!(header, SectionHeader { seed: 0x11, mark, next: 5, catalogue: vec![(1, 0x10_0080)] });
        assert_eq!(decode(&bytes, 0x20_0000, 8192), None, "it is of another section");
        assert_eq!(decode(&bytes[1..], 0x10_0000, 8192), None);
        assert_eq!(decode(&[0; 128], 0x10_0000, 8192), None);
    }

    #[test]
    fn any_bytes_are_a_header_or_none() {
        let mut random = 9u64;
        for length in (0..200).chain([128; 2_000]) {
            let mut bytes: Vec<u8> = (0..length)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (random >> 56) as u8
                })
                .collect();
            assert_eq!(decode(&bytes, 8192, 8192), None);
            if length == 128 {
                bytes[..32].copy_from_slice(&encode(3, 8192));
                let header = decode(&bytes, 8192, 8192).expect("the rest is mark and catalogue");
                assert!(header.catalogue.len() <= 2 && header.mark.is_none_or(|mark| mark.membership != 0));
            }
        }
    }
}
