//! A ring of the newest blocks of a channel.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The newest blocks of a channel, in whatever form the owner keeps them, by number.
///
/// The ring holds consecutive numbers, at most [`RecentBlocks::new`]'s number of blocks and of bytes. The newest block is
/// always kept, however large it is.
#[derive(Debug)]
pub struct RecentBlocks<T> {
    blocks_max: usize,
    bytes_max: usize,
    ring: Mutex<Ring<T>>,
}

#[derive(Debug)]
struct Ring<T> {
    /// The number of the first block.
    first: u64,
    /// Each block with its size in bytes.
    blocks: VecDeque<(T, usize)>,
    bytes: usize,
}

impl<T: Clone> RecentBlocks<T> {
    /// An empty ring for at most this many blocks, of together at most this many bytes.
    pub fn new(blocks_max: usize, bytes_max: usize) -> RecentBlocks<T> {
        RecentBlocks { blocks_max, bytes_max, ring: Mutex::new(Ring::starting_at(0)) }
    }

    /// Adds the block that follows the newest one.
    ///
    /// # Panics
    /// If the block does not follow the newest one.
    pub fn push(&self, number: u64, block: T, bytes: usize) {
        let mut ring = self.lock();
        if ring.blocks.is_empty() {
            ring.first = number;
        }
        assert_eq!(ring.next(), number, "blocks are added in order");
        self.add(&mut ring, block, bytes);
    }

    /// Adds a block that may arrive in any order: a block that follows the newest is added, a later block restarts the
    /// ring, and an earlier block is ignored.
    pub fn offer(&self, number: u64, block: T, bytes: usize) {
        let mut ring = self.lock();
        if !ring.blocks.is_empty() && number < ring.next() {
            return;
        }
        if ring.blocks.is_empty() || number != ring.next() {
            *ring = Ring::starting_at(number);
        }
        self.add(&mut ring, block, bytes);
    }

    /// A block that is still in the ring.
    pub fn get(&self, number: u64) -> Option<T> {
        let ring = self.lock();
        let index = usize::try_from(number.checked_sub(ring.first)?).ok()?;
        ring.blocks.get(index).map(|(block, _)| block.clone())
    }

    /// Forgets all blocks; the next one may have any number.
    pub fn clear(&self) {
        *self.lock() = Ring::starting_at(0);
    }

    fn add(&self, ring: &mut Ring<T>, block: T, bytes: usize) {
        ring.bytes += bytes;
        ring.blocks.push_back((block, bytes));
        while ring.blocks.len() > 1 && (ring.blocks.len() > self.blocks_max || ring.bytes > self.bytes_max) {
            let (_, oldest) = ring.blocks.pop_front().expect("the ring holds more than one block");
            ring.bytes -= oldest;
            ring.first += 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring<T>> {
        // Nothing between two changes of a ring panics.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Ring<T> {
    fn starting_at(first: u64) -> Ring<T> {
        Ring { first, blocks: VecDeque::new(), bytes: 0 }
    }

    fn next(&self) -> u64 {
        self.first + self.blocks.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(ring: &RecentBlocks<u64>) -> Vec<u64> {
        (0..100).filter_map(|number| ring.get(number)).collect()
    }

    #[test]
    fn the_ring_keeps_the_newest_within_its_bounds() {
        let ring = RecentBlocks::new(3, 100);
        for number in 5..9 {
            ring.push(number, number, 10);
        }
        assert_eq!(numbers(&ring), [6, 7, 8], "at most three blocks");
        ring.push(9, 9, 85);
        assert_eq!(numbers(&ring), [8, 9], "at most 100 bytes");
        ring.push(10, 10, 1000);
        assert_eq!(numbers(&ring), [10], "the newest is kept, whatever its size");
        ring.clear();
        ring.push(2, 2, 1);
        assert_eq!(numbers(&ring), [2]);
    }

    #[test]
    fn offered_blocks_never_leave_a_gap() {
        let ring = RecentBlocks::new(8, 100);
        for (number, expected) in [(4, &[4][..]), (5, &[4, 5]), (4, &[4, 5]), (7, &[7]), (6, &[7]), (8, &[7, 8])] {
            ring.offer(number, number, 1);
            assert_eq!(numbers(&ring), expected, "after {number}");
        }
    }
}
