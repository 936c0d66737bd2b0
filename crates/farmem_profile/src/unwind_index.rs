//! Bounds of functions that have no symbols, from the index of the table for unwinding (`.eh_frame_hdr`).
//!
//! Compilers write the table for each function, and `strip` leaves it, since exceptions need it. Its index is an array that
//! is sorted by the functions' addresses (Linux Standard Base, section 10.6.2).
//!
//! ```text
//! offset  bytes
//!  0       1    version, 1
//!  1       1    encoding of the pointer to the table: 0x1b, four bytes
//!  2       1    encoding of the count: 0x03, four bytes without sign
//!  3       1    encoding of the array: 0x3b, four bytes with sign, from the start of the index
//!  4       4    pointer to the table
//!  8       4    count
//! 12     8 × n  address of a function, address of its entry in the table
//! ```

use std::ops::Range;

const HEAD: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const HEAD_BYTES: usize = 12;
const ENTRY_BYTES: usize = 8;

/// The index of one file.
pub(crate) struct UnwindIndex<'a> {
    entries: &'a [[u8; ENTRY_BYTES]],
    address: u64,
}

impl<'a> UnwindIndex<'a> {
    /// An index of these bytes, which are mapped at this address. `None` if they have another form.
    pub(crate) fn new(bytes: &'a [u8], address: u64) -> Option<UnwindIndex<'a>> {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let count = u32::from_le_bytes(head.get(8..)?.try_into().ok()?);
        let (entries, _) = rest.as_chunks::<ENTRY_BYTES>();
        let entries = entries.get(..count as usize)?;
        head.starts_with(&HEAD).then_some(UnwindIndex { entries, address })
    }

    fn start(&self, entry: &[u8; ENTRY_BYTES]) -> u64 {
        let [a, b, c, d, ..] = *entry;
        self.address.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into())
    }

    /// The function at an address: from its start to the next one's. The last one may end anywhere.
    pub(crate) fn function(&self, address: u64) -> Option<Range<u64>> {
        let behind = self.entries.partition_point(|entry| self.start(entry) <= address);
        let start = self.start(self.entries.get(behind.checked_sub(1)?)?);
        let end = self.start(self.entries.get(behind)?);
        (start <= address && address < end).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(starts: &[i32], count: u32) -> Vec<u8> {
        let mut bytes = [&HEAD[..], &[0; 4], &count.to_le_bytes()].concat();
        starts.iter().for_each(|start| bytes.extend([start.to_le_bytes(), [0; 4]].concat()));
        bytes
    }

    #[test]
    fn a_function_ends_where_the_next_one_starts() {
        let bytes = index(&[-0x1000, -0xf00, 0x20], 3);
        let index = UnwindIndex::new(&bytes, 0x4000).expect("the form is right");
        for (address, function) in [
            (0x2fff, None),
            (0x3000, Some(0x3000..0x3100)),
            (0x30ff, Some(0x3000..0x3100)),
            (0x3100, Some(0x3100..0x4020)),
            (0x4020, None),
        ] {
            assert_eq!(index.function(address), function, "{address:x}");
        }
    }

    #[test]
    fn an_index_of_another_form_is_none() {
        assert!(UnwindIndex::new(&index(&[1, 2], 3), 0).is_none(), "entries are missing");
        assert!(UnwindIndex::new(&index(&[], u32::MAX), 0).is_none());
        assert!(UnwindIndex::new(&[], 0).is_none());
        let mut other = index(&[1, 2], 2);
        other[3] = 0x0b;
        assert!(UnwindIndex::new(&other, 0).is_none());
        // Addresses out of order, and at the ends of the address space.
        let wild = index(&[i32::MAX, i32::MIN, 7, i32::MIN], 4);
        let index = UnwindIndex::new(&wild, u64::MAX).expect("the form is right");
        for address in [0, 5, 1 << 31, u64::MAX] {
            let _ = index.function(address);
        }
    }
}
