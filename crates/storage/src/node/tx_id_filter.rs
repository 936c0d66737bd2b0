//! A filter of transaction ids. It tells a primary that a transaction is in no block, without asking the storage node.
//!
//! It is a Bloom filter of the ids of all blocks: an id that it does not contain is in no block. Of each id it uses the
//! same 40 bits (shard and tag) as the node's fingerprint table, so the node can send the ids of old blocks from that
//! table.
//!
//! 1. The primary inserts the ids of every block that it appends itself.
//! 2. It gets the ids of older blocks from the node, shard by shard, and [enters](TxIdFilter::enter) them. Until it has all
//!    of them, every id counts as possibly present.
//! 3. Beyond [`IDS_MAX`] ids the filter gives up: its memory is freed, and every id counts as possibly present from then on.
//!
//! An id costs 2 bytes. The filter consists of lines of eight 64-bit words, and an id sets one bit in each word of its
//! line. The filter grows in chunks, each with twice the capacity of the one before; a look-up reads one line in each
//! chunk. In each chunk about one absent id in a thousand looks present. For an id that looks present, the primary asks
//! the node.
//!
//! Invariant: an id that was entered never counts as absent.

use base::TxId;

use crate::blocks::{fingerprint, shard_and_tag};

/// Ids that the filter holds at most: 128 MiB.
pub const IDS_MAX: usize = 1 << 26;
/// Ids of the first chunk.
const CHUNK_IDS_MIN: usize = 1 << 14;
const LINE_IDS: usize = 32;

type FilterLine = [u64; 8];

/// See [the module](self).
#[derive(Default)]
pub struct TxIdFilter {
    phase: FilterPhase,
    chunks: Vec<FilterChunk>,
    ids: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FilterPhase {
    #[default]
    Learning,
    Known,
    GivenUp,
}

struct FilterChunk {
    lines: Box<[FilterLine]>,
    capacity: usize,
}

impl TxIdFilter {
    /// Enters an id; an empty one is not an id and is skipped.
    pub fn enter_id(&mut self, id: &TxId) {
        if !id.is_empty() {
            self.enter(shard_and_tag(fingerprint(id.as_str().as_bytes())));
        }
    }

    /// Enters what the node's table of fingerprints knows of an id.
    pub fn enter(&mut self, id: (u8, u32)) {
        if self.phase == FilterPhase::GivenUp {
            return;
        }
        if self.ids == IDS_MAX {
            return self.give_up();
        }
        self.ids += 1;
        if self.chunks.last().is_none_or(|chunk| chunk.capacity == 0) {
            let ids = CHUNK_IDS_MIN << self.chunks.len();
            self.chunks.push(FilterChunk { lines: vec![[0; 8]; ids / LINE_IDS].into(), capacity: ids });
        }
        let chunk = self.chunks.last_mut().expect("there is one with room");
        chunk.capacity -= 1;
        let (line, bits) = chunk.bit_of(id);
        let words = chunk.lines[line].iter_mut().zip(bits);
        words.for_each(|(word, bit)| *word |= bit);
    }

    /// Whether ids of older blocks are still missing.
    pub fn is_learning(&self) -> bool {
        self.phase == FilterPhase::Learning
    }

    /// Notes that the ids of all older blocks were entered.
    pub fn finish_learning(&mut self) {
        if self.phase == FilterPhase::Learning {
            self.phase = FilterPhase::Known;
        }
    }

    /// Stops answering, and frees the memory.
    pub fn give_up(&mut self) {
        self.phase = FilterPhase::GivenUp;
        self.chunks = Vec::new();
    }

    /// Whether an id is certainly in no block. The empty id is in none.
    pub fn is_absent(&self, id: &TxId) -> bool {
        if self.phase != FilterPhase::Known {
            return false;
        }
        let id = match id.is_empty() {
            true => return true,
            false => shard_and_tag(fingerprint(id.as_str().as_bytes())),
        };
        !self.chunks.iter().any(|chunk| {
            let (line, bits) = chunk.bit_of(id);
            chunk.lines[line].iter().zip(bits).all(|(word, bit)| word & bit != 0)
        })
    }
}

impl FilterChunk {
    /// The line of an id, and its bit in each word of the line.
    fn bit_of(&self, (shard, tag): (u8, u32)) -> (usize, FilterLine) {
        // Fingerprints are uniform already; this only spreads their bits over lines and words.
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
        let mut absence = TxIdFilter::default();
        let ids = 5 * CHUNK_IDS_MIN;
        (0..ids).for_each(|number| absence.enter_id(&id(number)));
        assert!(!absence.is_absent(&id(ids)), "older ids are not known yet");
        absence.finish_learning();
        assert!((0..ids).all(|number| !absence.is_absent(&id(number))));
        assert!(absence.is_absent(&TxId::from("")));
        let possible = (ids..2 * ids).filter(|number| !absence.is_absent(&id(*number))).count();
        assert!(possible * 100 < ids, "{possible} of {ids} absent ids may be present");
        let bytes: usize = absence.chunks.iter().map(|chunk| chunk.lines.len() * size_of::<FilterLine>()).sum();
        assert!(bytes <= 2 * 7 * CHUNK_IDS_MIN, "{bytes} bytes for {ids} ids");
    }

    #[test]
    fn who_has_given_up_says_nothing_and_holds_nothing() {
        let mut absence = TxIdFilter::default();
        absence.enter_id(&id(1));
        absence.give_up();
        absence.finish_learning();
        absence.enter_id(&id(2));
        assert!(!absence.is_absent(&id(3)) && !absence.is_learning() && absence.chunks.is_empty());
    }
}
