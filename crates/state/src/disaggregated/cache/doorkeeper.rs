//! A doorkeeper (TinyLFU): a direct-mapped table of recent key fingerprints. A new fingerprint overwrites the old one
//! in its slot, so old fingerprints disappear. The table takes one key for another once in 2^16 times.

use crate::disaggregated::index::KeyHash;

/// Slots per entry of the cache.
const SLOTS_PER_ENTRY: usize = 2;
const SLOTS_MAX: usize = 1 << 20;

/// See [the module](self).
#[derive(Default)]
pub struct Doorkeeper {
    slots: Box<[u16]>,
}

impl Doorkeeper {
    /// For a cache of this many entries.
    pub fn new(entries: usize) -> Doorkeeper {
        let places = (entries * SLOTS_PER_ENTRY).clamp(1, SLOTS_MAX).next_power_of_two();
        Doorkeeper { slots: vec![0; places].into() }
    }

    /// Whether the key was asked for before, and not too long ago.
    pub fn was_seen(&mut self, hash: KeyHash) -> bool {
        // The table of a default shard has no slots.
        let Some(mask) = self.slots.len().checked_sub(1) else { return true };
        let place = &mut self.slots[(hash.0 >> 6) as usize & mask];
        let fingerprint = (hash.0 >> 46) as u16 | 1;
        std::mem::replace(place, fingerprint) == fingerprint
    }
}
