//! Which transactions are in no block, as far as that is known without asking.
//!
//! A Bloom filter of the ids of all blocks: what it does not hold is in no block. It holds what the node's table of
//! fingerprints knows of an id, its shard and tag, 40 bits.
//!
//! 1. Whoever appends enters the ids of its blocks from the beginning.
//! 2. The ids of older blocks are [learnt](Absence::enter) from the node, shard by shard. Until all are, nothing is said.
//! 3. Beyond [`IDS_MAX`] ids nothing is said any more, and the memory is given back.
//!
//! An id costs 2 bytes: lines of 512 bits, of which it sets one in each word of its line. The filter grows by chunks, each
//! of twice as many ids as the one before, and a question looks at one line of each. Of absent ids about one in a thousand
//! of each chunk is taken for a possible one; the node is then asked, as it is for each id that is in a block.
//!
//! Invariant: what was entered is never said to be absent.

use base::TxId;

use crate::blocks::{fingerprint, shard_and_tag};

/// Ids that are known at most: 128 MiB.
pub const IDS_MAX: usize = 1 << 26;
/// Ids of the first chunk.
const CHUNK_IDS_MIN: usize = 1 << 14;
const LINE_IDS: usize = 32;

type Line = [u64; 8];

/// See [the module](self).
#[derive(Default)]
pub struct Absence {
    phase: Phase,
    chunks: Vec<Chunk>,
    ids: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Learning,
    Known,
    GivenUp,
}

struct Chunk {
    lines: Box<[Line]>,
    room: usize,
}

impl Absence {
    /// Enters an id; an empty one is none.
    pub fn enter_id(&mut self, id: &TxId) {
        if !id.is_empty() {
            self.enter(shard_and_tag(fingerprint(id.as_str().as_bytes())));
        }
    }

    /// Enters what the node's table knows of an id.
    pub fn enter(&mut self, id: (u8, u32)) {
        if self.phase == Phase::GivenUp {
            return;
        }
        if self.ids == IDS_MAX {
            return self.give_up();
        }
        self.ids += 1;
        if self.chunks.last().is_none_or(|chunk| chunk.room == 0) {
            let ids = CHUNK_IDS_MIN << self.chunks.len();
            self.chunks.push(Chunk { lines: vec![[0; 8]; ids / LINE_IDS].into(), room: ids });
        }
        let chunk = self.chunks.last_mut().expect("there is one with room");
        chunk.room -= 1;
        let (line, bits) = chunk.place(id);
        let words = chunk.lines[line].iter_mut().zip(bits);
        words.for_each(|(word, bit)| *word |= bit);
    }

    /// Whether ids of older blocks are still to be entered.
    pub fn is_learning(&self) -> bool {
        self.phase == Phase::Learning
    }

    /// All ids of older blocks were entered.
    pub fn learnt(&mut self) {
        if self.phase == Phase::Learning {
            self.phase = Phase::Known;
        }
    }

    /// Nothing is to be said any more.
    pub fn give_up(&mut self) {
        self.phase = Phase::GivenUp;
        self.chunks = Vec::new();
    }

    /// Whether an id is certainly in no block. The empty one is in none.
    pub fn is_absent(&self, id: &TxId) -> bool {
        if self.phase != Phase::Known {
            return false;
        }
        let id = match id.is_empty() {
            true => return true,
            false => shard_and_tag(fingerprint(id.as_str().as_bytes())),
        };
        !self.chunks.iter().any(|chunk| {
            let (line, bits) = chunk.place(id);
            chunk.lines[line].iter().zip(bits).all(|(word, bit)| word & bit != 0)
        })
    }
}

impl Chunk {
    /// The line of an id and its bit in each word of it.
    fn place(&self, (shard, tag): (u8, u32)) -> (usize, Line) {
        // Fingerprints are spread evenly; their bits have to be spread over line and words only.
        let hash = (u64::from(shard) << 32 | u64::from(tag)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let line = (u128::from(hash ^ (hash >> 29)) * self.lines.len() as u128) >> 64;
        let bits = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (line as usize, std::array::from_fn(|word| 1 << (bits >> (8 * word) & 63)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> TxId {
        TxId::from(format!("id {number}"))
    }

    #[test]
    fn what_was_entered_is_never_absent_and_little_else_is_possible() {
        let mut absence = Absence::default();
        let ids = 5 * CHUNK_IDS_MIN;
        (0..ids).for_each(|number| absence.enter_id(&id(number)));
        assert!(!absence.is_absent(&id(ids)), "older ids are not known yet");
        absence.learnt();
        assert!((0..ids).all(|number| !absence.is_absent(&id(number))));
        assert!(absence.is_absent(&TxId::from("")));
        let possible = (ids..2 * ids).filter(|number| !absence.is_absent(&id(*number))).count();
        assert!(possible * 100 < ids, "{possible} of {ids} absent ids may be present");
        let bytes: usize = absence.chunks.iter().map(|chunk| chunk.lines.len() * size_of::<Line>()).sum();
        assert!(bytes <= 2 * 7 * CHUNK_IDS_MIN, "{bytes} bytes for {ids} ids");
    }

    #[test]
    fn who_has_given_up_says_nothing_and_holds_nothing() {
        let mut absence = Absence::default();
        absence.enter_id(&id(1));
        absence.give_up();
        absence.learnt();
        absence.enter_id(&id(2));
        assert!(!absence.is_absent(&id(3)) && !absence.is_learning() && absence.chunks.is_empty());
    }
}
