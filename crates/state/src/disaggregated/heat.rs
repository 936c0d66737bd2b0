//! Which records were read lately, for the clock of [eviction](super::evict): one bit for every [`GRANULE_BYTES`] of memory.
//!
//! 1. While memory has much room nobody asks what was read, and nothing is noted: the bit would be one more cache line for
//!    every cold read. The writer says when that changes ([`Heat::note_uses`]), well before anything is evicted.
//! 2. From then on whoever fetches a record from remote memory, or writes one there, sets the bit of its address.
//! 3. The hand of the clock takes the bit away as it passes, and passes over whatever had it.
//! 4. When the budget is raised there are to be more bits ([`Heat::enlarge`]). They begin anew, as if nothing had been read;
//!    the earlier ones stay in memory and are not looked at again, since a reader may be at them.
//!
//! Nothing depends on it but what is evicted first. So bits are set and taken without order, two buffers may share one, and
//! addresses that lie further apart than the budget share theirs: memory is given anew at other addresses for as long as
//! there are others. A bit that is set already is only looked at, so that a hot record costs its readers no cache line.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes of memory for each bit. Shorter records share theirs with neighbours, so that the bits of a memory of some hundred
/// megabytes stay in a processor's own cache.
const GRANULE_BYTES: u64 = 256;
/// Bits at least, and at most: those of 512 GiB, which take 256 MiB here.
const BITS_MIN: u64 = 1 << 12;
const BITS_MAX: u64 = 1 << 31;
/// Sizes that there may be, each twice the one before.
const SIZES: usize = (BITS_MAX.ilog2() - BITS_MIN.ilog2()) as usize + 1;

type Words = Box<[AtomicU64]>;

/// See [the module](self).
pub struct Heat {
    /// By size; those that were never wanted are not there.
    words: [OnceLock<Words>; SIZES],
    /// Which of them is in use; it is there.
    size: AtomicUsize,
    notes_uses: AtomicBool,
}

impl Heat {
    /// For so many bytes of memory.
    pub fn new(bytes: u64) -> Heat {
        let heat = Heat {
            words: [const { OnceLock::new() }; SIZES],
            size: AtomicUsize::new(0),
            notes_uses: AtomicBool::new(false),
        };
        heat.use_size(size(bytes));
        heat
    }

    /// From now on for so many bytes of memory, if there were fewer bits than that.
    pub fn enlarge(&self, bytes: u64) {
        if size(bytes) > self.size.load(Ordering::Acquire) {
            self.use_size(size(bytes));
        }
    }

    fn use_size(&self, size: usize) {
        self.words[size].get_or_init(|| (0..(BITS_MIN << size) / 64).map(|_| AtomicU64::new(0)).collect());
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// Whether uses are noted from now on.
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

    /// The record at this address was used.
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

    /// Whether it was used since this was last asked.
    pub fn take(&self, address: u64) -> bool {
        let (word, bit) = self.bit(address);
        word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

/// The size that has a bit for each granule of so many bytes, or the greatest.
fn size(bytes: u64) -> usize {
    let bits = (bytes / GRANULE_BYTES).clamp(BITS_MIN, BITS_MAX).next_power_of_two();
    (bits.ilog2() - BITS_MIN.ilog2()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_seen_once_and_at_its_own_address() {
        let heat = Heat::new(1 << 20);
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
        let (heat, mib) = (Heat::new(1 << 20), 1 << 20);
        heat.note_uses(true);
        heat.touch(0);
        assert!(heat.take(mib), "they share one");
        heat.enlarge(4 * mib);
        heat.touch(0);
        assert!(!heat.take(mib) && !heat.take(3 * mib));
        assert!(heat.take(0));
        // A lower budget takes none away: sections above it are there for a while.
        heat.enlarge(mib);
        heat.touch(0);
        assert!(!heat.take(mib) && heat.take(0));
        assert_eq!(size(u64::MAX), SIZES - 1, "as many as there may be");
    }
}
