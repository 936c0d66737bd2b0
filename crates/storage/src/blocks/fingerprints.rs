//! A compact table from the 64-bit fingerprint of an id to block numbers, made for look-ups of ids that are usually
//! absent.
//!
//! Validation asks once for each transaction whether its id was committed before, and the answer is nearly always no.
//! For an absent id the table gives this answer from memory, in about one cache line. For a present id it names the
//! blocks that may hold the id, and the caller looks there.
//!
//! 1. A fingerprint's high byte chooses one of 256 shards; its next 32 bits are the tag.
//! 2. A slot has 8 bytes: the tag and the low 32 bits of the block number. Collisions are resolved by linear probing
//!    that starts at `tag * slots / 2^32`. This position needs only the tag, for any number of slots, so a shard can
//!    grow by a quarter at a time. An entry costs 10 to 13 bytes.
//! 3. An absent id looks present if another id of its shard has the same tag. The probability is about (entries in its
//!    shard) / 2^32: one in a hundred thousand at 10 million entries.
//!
//! Entries are never removed. The same id may be entered several times, with the same block or with different ones.

/// Hash of an id, whose bits the table consumes.
pub fn fingerprint(id: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(id)
}

/// Shards of a table.
pub const SHARDS: usize = 256;
const SLOTS_MIN: usize = 16;
const EMPTY: u64 = u64::MAX;

/// See the module.
pub struct FingerprintTable {
    shards: Vec<FingerprintShard>,
}

#[derive(Clone, Default)]
struct FingerprintShard {
    slots: Vec<u64>,
    used: usize,
}

impl FingerprintTable {
    pub fn new() -> FingerprintTable {
        FingerprintTable { shards: vec![FingerprintShard::default(); SHARDS] }
    }

    /// Enters a fingerprint with the number of a block.
    pub fn insert(&mut self, fingerprint: u64, block: u64) {
        self.shards[shard_of(fingerprint)].insert(slot_of(tag_of(fingerprint), block));
    }

    /// Numbers of blocks below `height` that may hold an id with this fingerprint, ascending and without repeats.
    pub fn candidates(&self, fingerprint: u64, height: u64) -> Vec<u64> {
        let mut blocks = Vec::new();
        for low in self.shards[shard_of(fingerprint)].with_tag(tag_of(fingerprint)) {
            // A slot keeps only the low half of the number. In a chain of more than 2^32 blocks, each slot names more than
            // one block.
            blocks.extend((0..).map(|high: u64| high << 32 | u64::from(low)).take_while(|block| *block < height));
        }
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    /// The tags of the entries of a shard, in no order.
    pub fn tags(&self, shard: u8) -> impl Iterator<Item = u32> + '_ {
        self.shards[usize::from(shard)].slots.iter().filter(|slot| **slot != EMPTY).map(|slot| (slot >> 32) as u32)
    }

    /// Memory taken by the slots.
    pub fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.slots.len() * 8).sum()
    }
}

/// What a table stores of an id: its shard and its tag there.
pub fn shard_and_tag(fingerprint: u64) -> (u8, u32) {
    (shard_of(fingerprint) as u8, tag_of(fingerprint))
}

fn shard_of(fingerprint: u64) -> usize {
    (fingerprint >> 56) as usize
}

/// The 32 bits below those that choose the shard. The highest value is folded into its neighbour, so that no used slot
/// looks empty.
fn tag_of(fingerprint: u64) -> u32 {
    ((fingerprint >> 24) as u32).min(u32::MAX - 1)
}

fn slot_of(tag: u32, block: u64) -> u64 {
    u64::from(tag) << 32 | (block & u64::from(u32::MAX))
}

fn home(tag: u32, slots: usize) -> usize {
    ((u64::from(tag) * slots as u64) >> 32) as usize
}

impl FingerprintShard {
    fn insert(&mut self, slot: u64) {
        // At most four fifths full: beyond that, probes get long.
        if (self.used + 1) * 5 > self.slots.len() * 4 {
            self.grow();
        }
        self.put_slot(slot);
        self.used += 1;
    }

    fn grow(&mut self) {
        let slots = (self.slots.len() + self.slots.len() / 4).max(SLOTS_MIN);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slots]);
        for slot in old.into_iter().filter(|slot| *slot != EMPTY) {
            self.put_slot(slot);
        }
    }

    fn put_slot(&mut self, slot: u64) {
        let mut at = home((slot >> 32) as u32, self.slots.len());
        while self.slots[at] != EMPTY {
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
        self.slots[at] = slot;
    }

    fn with_tag(&self, tag: u32) -> impl Iterator<Item = u32> + '_ {
        let start = if self.slots.is_empty() { 0 } else { home(tag, self.slots.len()) };
        let (before, after) = self.slots.split_at(start);
        after
            .iter()
            .chain(before)
            .take_while(|slot| **slot != EMPTY)
            .filter(move |slot| (**slot >> 32) as u32 == tag)
            .map(|slot| *slot as u32)
    }
}
