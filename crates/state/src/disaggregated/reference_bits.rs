//! Reference bits for the clock of [eviction](super::evict): one bit for every [`GRANULE_BYTES`] of memory states
//! whether a record there was used recently.
//!
//! 1. While memory has plenty of free space, no uses are noted, because each cold read would touch one more cache line
//!    for its bit. The writer turns noting on ([`ReferenceBits::note_uses`]) well before anything is evicted.
//! 2. From then on every read of a record from remote memory, and every write of one, sets the bit of its address.
//! 3. The hand of the clock clears each bit that it passes, and skips the records whose bit was set.
//! 4. When the budget is raised, more bits are needed ([`ReferenceBits::enlarge`]). The new bits start cleared, as if
//!    no record had been used. The old bits stay allocated but are not used again, since a reader may be accessing
//!    them.
//!
//! The bits only decide what is evicted first. Therefore they are set and cleared without memory ordering, and several
//! addresses may share a bit: two neighbouring buffers, or addresses that lie further apart than the budget (each new
//! section has new addresses). A bit that is already set is only read, so readers of a hot record do not contend for
//! the cache line of its bit.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes of memory for each bit. Shorter records share a bit with their neighbours, so that the bits of some hundred
/// megabytes of memory stay in a core's own cache.
const GRANULE_BYTES: u64 = 256;
/// The fewest and the most bits: the latter cover 512 GiB and take 256 MiB here.
const BITS_MIN: u64 = 1 << 12;
const BITS_MAX: u64 = 1 << 31;
/// Number of sizes, each twice the one before.
const SIZES: usize = (BITS_MAX.ilog2() - BITS_MIN.ilog2()) as usize + 1;

type Words = Box<[AtomicU64]>;

/// See [the module](self).
pub struct ReferenceBits {
    /// By size; a size that was never needed is not allocated.
    words: [OnceLock<Words>; SIZES],
    /// The size in use, which is allocated.
    size: AtomicUsize,
    notes_uses: AtomicBool,
}

impl ReferenceBits {
    /// Bits for this many bytes of memory.
    pub fn new(bytes: u64) -> ReferenceBits {
        let heat = ReferenceBits {
            words: [const { OnceLock::new() }; SIZES],
            size: AtomicUsize::new(0),
            notes_uses: AtomicBool::new(false),
        };
        heat.use_size(size(bytes));
        heat
    }

    /// Provides bits for this many bytes of memory from now on, if there were fewer.
    pub fn enlarge(&self, bytes: u64) {
        if size(bytes) > self.size.load(Ordering::Acquire) {
            self.use_size(size(bytes));
        }
    }

    fn use_size(&self, size: usize) {
        self.words[size].get_or_init(|| (0..(BITS_MIN << size) / 64).map(|_| AtomicU64::new(0)).collect());
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// Turns the noting of uses on or off.
    pub fn note_uses(&self, notes_uses: bool) {
        if self.notes_uses.load(Ordering::Relaxed) != notes_uses {
            self.notes_uses.store(notes_uses, Ordering::Relaxed);
        }
    }

    /// Whether uses are noted.
    pub fn notes_uses(&self) -> bool {
        self.notes_uses.load(Ordering::Relaxed)
    }

    #[inline]
    fn bit(&self, address: u64) -> (&AtomicU64, u64) {
        let words = self.words[self.size.load(Ordering::Acquire)].get().expect("the size in use was made");
        let granule = address / GRANULE_BYTES;
        // There are a power of two words.
        let at = (granule / 64) as usize & (words.len() - 1);
        (&words[at], 1 << (granule % 64))
    }

    /// Notes that the record at this address was used.
    #[inline]
    pub fn touch(&self, address: u64) {
        if !self.notes_uses.load(Ordering::Relaxed) {
            return;
        }
        let (word, bit) = self.bit(address);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether the record was used since the last call.
    pub fn take(&self, address: u64) -> bool {
        let (word, bit) = self.bit(address);
        word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

/// The size that has a bit for each granule of `bytes` bytes, or the largest.
fn size(bytes: u64) -> usize {
    let bits = (bytes / GRANULE_BYTES).clamp(BITS_MIN, BITS_MAX).next_power_of_two();
    (bits.ilog2() - BITS_MIN.ilog2()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_seen_once_and_at_its_own_address() {
        let heat = ReferenceBits::new(1 << 20);
        heat.touch(0x1_0040);
        assert!(!heat.take(0x1_0040), "nobody asks yet");
        heat.note_uses(true);
        heat.touch(0x1_0100);
        heat.touch(0x1_01f0);
        assert!(!heat.take(0x1_0000) && !heat.take(0x1_0200), "neighbours were not used");
        assert!(heat.take(0x1_0140), "one use or two");
        assert!(!heat.take(0x1_0140));
        heat.touch(u64::MAX);
        assert!(heat.take(u64::MAX), "any address has a bit");
    }

    #[test]
    fn a_larger_memory_has_bits_of_its_own() {
        let (heat, mib) = (ReferenceBits::new(1 << 20), 1 << 20);
        heat.note_uses(true);
        heat.touch(0);
        assert!(heat.take(mib), "they share one");
        heat.enlarge(4 * mib);
        heat.touch(0);
        assert!(!heat.take(mib) && !heat.take(3 * mib));
        assert!(heat.take(0));
        // A lower budget removes no bits: sections above it stay for a while.
        heat.enlarge(mib);
        heat.touch(0);
        assert!(!heat.take(mib) && heat.take(0));
        assert_eq!(size(u64::MAX), SIZES - 1, "as many as there may be");
    }
}
