//! A hash table of slab positions: one word per cell, so that a look-up touches one cache line of it.
//!
//! A cell holds the highest 36 bits of a hash and a position plus one; 0 is an empty cell. Collisions are resolved by
//! linear probing. A removal shifts later cells of the run back into the hole, so there are no tombstones. The hash
//! bits in a cell give its home position, so neither removal nor growth has to read the slab.

const SLOT_BITS: u32 = 28;
const HASH_BITS: u32 = 64 - SLOT_BITS;
const CELLS_MIN: usize = 8;

/// Bytes of the table for each entry: cells are between 3/8 and 3/4 full, unless there are few.
pub const CELL_BYTES: usize = 22;
/// Number of positions that a table can hold.
pub const SLOTS_MAX: usize = (1 << SLOT_BITS) - 2;

/// See [the module](self).
#[derive(Default)]
pub struct SlotTable {
    cells: Vec<u64>,
    count: usize,
}

impl SlotTable {
    #[inline]
    fn home(&self, hash_bits: u64) -> usize {
        // The number of cells is a power of two.
        (hash_bits >> (HASH_BITS - self.cells.len().trailing_zeros())) as usize
    }

    /// The position with this hash for which `is_it` holds.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let mask = self.cells.len() - 1;
        let mut at = self.home(hash >> SLOT_BITS);
        loop {
            let cell = self.cells[at & mask];
            if cell == 0 {
                return None;
            }
            if cell >> SLOT_BITS == hash >> SLOT_BITS && is_it(slot_in(cell)) {
                return Some(slot_in(cell));
            }
            at += 1;
        }
    }

    /// Adds a position that is not in the table.
    pub fn insert(&mut self, hash: u64, place: u32) {
        assert!((place as usize) < SLOTS_MAX, "the byte budget keeps the places below 2^28");
        if (self.count + 1) * 4 > self.cells.len() * 3 {
            let cells = (self.cells.len() * 2).max(CELLS_MIN);
            let before = std::mem::replace(&mut self.cells, vec![0; cells]);
            before.into_iter().filter(|cell| *cell != 0).for_each(|cell| self.put(cell));
        }
        self.put(hash >> SLOT_BITS << SLOT_BITS | (u64::from(place) + 1));
        self.count += 1;
    }

    fn put(&mut self, cell: u64) {
        let mask = self.cells.len() - 1;
        let mut at = self.home(cell >> SLOT_BITS);
        while self.cells[at & mask] != 0 {
            at += 1;
        }
        self.cells[at & mask] = cell;
    }

    /// Removes a position that is in the table.
    pub fn remove(&mut self, hash: u64, place: u32) {
        let wanted = hash >> SLOT_BITS << SLOT_BITS | (u64::from(place) + 1);
        let mask = self.cells.len() - 1;
        let mut hole = self.home(hash >> SLOT_BITS) & mask;
        while self.cells[hole] != wanted {
            assert!(self.cells[hole] != 0, "only places that are there are taken out");
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let cell = self.cells[at];
            if cell == 0 {
                break;
            }
            // A cell may move up to the hole unless the hole lies before the cell's home.
            let home = self.home(cell >> SLOT_BITS) & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = 0;
        self.count -= 1;
    }
}

#[inline]
fn slot_in(cell: u64) -> u32 {
    (cell & ((1 << SLOT_BITS) - 1)) as u32 - 1
}

#[cfg(test)]
mod tests {
    use base::Map;

    use super::*;

    #[test]
    fn places_follow_a_map_through_random_operations() {
        let mut places = SlotTable::default();
        let mut model: Map<u64, u32> = Map::default();
        let mut random = 5u64;
        for step in 0..200_000u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Few homes, so that cells lie far from theirs and around the end.
            let number = (random >> 33) % 700;
            let hash = (number % 40) << 62 | (number % 7) << 40 | number << 29;
            let of = |place: u32, model: &Map<u64, u32>| model.get(&number) == Some(&place);
            match model.get(&number).copied() {
                Some(place) if random >> 63 == 0 => {
                    places.remove(hash, place);
                    model.remove(&number);
                }
                Some(place) => assert_eq!(places.find(hash, |found| of(found, &model)), Some(place)),
                None => {
                    assert_eq!(places.find(hash, |found| of(found, &model)), None);
                    places.insert(hash, step);
                    model.insert(number, step);
                }
            }
            assert_eq!(places.count, model.len());
        }
    }
}
