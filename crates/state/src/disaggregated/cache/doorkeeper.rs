//! Which keys were asked for lately: a table of fingerprints, each in the one place that its hash says, where the last one
//! that came stands. It forgets by being overwritten, and takes one key for another once in 2^16 times.

use crate::disaggregated::index::KeyHash;

/// Places for each entry of the cache.
const PLACES_PER_ENTRY: usize = 2;
const PLACES_MAX: usize = 1 << 20;

/// See [the module](self).
#[derive(Default)]
pub struct Doorkeeper {
    places: Box<[u16]>,
}

impl Doorkeeper {
    /// Beside a cache of so many entries.
    pub fn new(entries: usize) -> Doorkeeper {
        let places = (entries * PLACES_PER_ENTRY).clamp(1, PLACES_MAX).next_power_of_two();
        Doorkeeper { places: vec![0; places].into() }
    }

    /// Whether the key was asked for before, and not too long ago.
    pub fn saw(&mut self, hash: KeyHash) -> bool {
        // No place for hashes of shards that were never made.
        let Some(mask) = self.places.len().checked_sub(1) else { return true };
        let place = &mut self.places[(hash.0 >> 4) as usize & mask];
        let fingerprint = (hash.0 >> 46) as u16 | 1;
        std::mem::replace(place, fingerprint) == fingerprint
    }
}
