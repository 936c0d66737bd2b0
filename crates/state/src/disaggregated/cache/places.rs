//! A hash table of places in a slab: one word a cell, so that a look-up touches one cache line of it.
//!
//! A cell holds the highest 36 bits of a hash and a place plus one; 0 is an empty cell. Cells that collide lie behind one
//! another; taking one out moves up those behind it. The bits that are kept say where each cell wants to be, so that neither
//! that nor growth looks at the slab.

const PLACE_BITS: u32 = 28;
const HASH_BITS: u32 = 64 - PLACE_BITS;
const CELLS_MIN: usize = 8;

/// Bytes of the table for each entry: cells are between 3/8 and 3/4 full, unless there are few.
pub const CELL_BYTES: usize = 22;
/// Places that a table can tell apart.
pub const PLACES_MAX: usize = (1 << PLACE_BITS) - 2;

/// See [the module](self).
#[derive(Default)]
pub struct Places {
    cells: Vec<u64>,
    count: usize,
}

impl Places {
    #[inline]
    fn home(&self, hash_bits: u64) -> usize {
        // There are a power of two cells.
        (hash_bits >> (HASH_BITS - self.cells.len().trailing_zeros())) as usize
    }

    /// The place with this hash of which `is_it` holds.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let mask = self.cells.len() - 1;
        let mut at = self.home(hash >> PLACE_BITS);
        loop {
            let cell = self.cells[at & mask];
            if cell == 0 {
                return None;
            }
            if cell >> PLACE_BITS == hash >> PLACE_BITS && is_it(place(cell)) {
                return Some(place(cell));
            }
            at += 1;
        }
    }

    /// Adds a place that is not there.
    pub fn insert(&mut self, hash: u64, place: u32) {
        assert!((place as usize) < PLACES_MAX, "the byte budget keeps the places below 2^28");
        if (self.count + 1) * 4 > self.cells.len() * 3 {
            let cells = (self.cells.len() * 2).max(CELLS_MIN);
            let before = std::mem::replace(&mut self.cells, vec![0; cells]);
            before.into_iter().filter(|cell| *cell != 0).for_each(|cell| self.put(cell));
        }
        self.put(hash >> PLACE_BITS << PLACE_BITS | (u64::from(place) + 1));
        self.count += 1;
    }

    fn put(&mut self, cell: u64) {
        let mask = self.cells.len() - 1;
        let mut at = self.home(cell >> PLACE_BITS);
        while self.cells[at & mask] != 0 {
            at += 1;
        }
        self.cells[at & mask] = cell;
    }

    /// Takes out a place that is there.
    pub fn remove(&mut self, hash: u64, place: u32) {
        let wanted = hash >> PLACE_BITS << PLACE_BITS | (u64::from(place) + 1);
        let mask = self.cells.len() - 1;
        let mut hole = self.home(hash >> PLACE_BITS) & mask;
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
            // A cell may move up to the hole unless that lies before where it wants to be.
            let home = self.home(cell >> PLACE_BITS) & mask;
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
fn place(cell: u64) -> u32 {
    (cell & ((1 << PLACE_BITS) - 1)) as u32 - 1
}

#[cfg(test)]
mod tests {
    use base::Map;

    use super::*;

    #[test]
    fn places_follow_a_map_through_random_operations() {
        let mut places = Places::default();
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
