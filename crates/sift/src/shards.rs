//! Shards: the part of each block that a memory node of an erasure-coded group holds.
//!
//! ```text
//!  block of B bytes     | piece 0 | piece 1 | … | piece F, padded with zeros |     each of shard_bytes
//!  node 0 … F           holds piece 0 … F of every block, one block after the other
//!  node F+1 … 2F        holds the first … F-th parity shard of every block, in the same way
//! ```
//!
//! So the shards of consecutive blocks are one range of bytes at each node, which one verb reads or writes.
//!
//! Invariant: the shards of a block at any F+1 nodes, if they are all of one version, give the block back.

use base::{Bytes, BytesMut};

use crate::erasure_code;
use crate::layout::GroupLayout;

/// How the blocks of a group are divided into shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shards {
    /// Data shards of a block: F+1.
    pub data: usize,
    block_bytes: usize,
    shard_bytes: usize,
}

impl Shards {
    /// `None` for a group that is not erasure-coded.
    pub(crate) fn new(layout: &GroupLayout) -> Option<Shards> {
        layout.is_erasure_coded().then(|| Shards {
            data: layout.data_shards as usize,
            block_bytes: layout.block_bytes as usize,
            shard_bytes: layout.shard_bytes() as usize,
        })
    }

    /// The bytes of a block that a data shard holds.
    fn shard_range(&self, slot: usize) -> std::ops::Range<usize> {
        let start = (slot * self.shard_bytes).min(self.block_bytes);
        start..(start + self.shard_bytes).min(self.block_bytes)
    }

    /// The data shards that hold a range of a run of blocks; `from` counts from the start of the run.
    pub(crate) fn slots(&self, from: usize, length: usize) -> std::ops::Range<usize> {
        match from / self.block_bytes == (from + length.max(1) - 1) / self.block_bytes {
            true => {
                let from = from % self.block_bytes;
                from / self.shard_bytes..(from + length.max(1) - 1) / self.shard_bytes + 1
            }
            false => 0..self.data,
        }
    }

    /// A node's shards of a run of blocks.
    pub(crate) fn encode(&self, slot: usize, run: &Bytes) -> Bytes {
        assert!(run.len().is_multiple_of(self.block_bytes), "whole blocks");
        let piece = self.shard_range(slot.min(self.data));
        if slot < self.data && run.len() == self.block_bytes && piece.len() == self.shard_bytes {
            return run.slice(piece);
        }
        let mut shares = BytesMut::zeroed(run.len() / self.block_bytes * self.shard_bytes);
        for (block, share) in run.chunks_exact(self.block_bytes).zip(shares.chunks_exact_mut(self.shard_bytes)) {
            if slot < self.data {
                share[..piece.len()].copy_from_slice(&block[piece.clone()]);
                continue;
            }
            for column in 0..self.data {
                let piece = self.shard_range(column);
                let length = piece.len();
                erasure_code::add_to_parity(self.data, slot - self.data, column, &block[piece], &mut share[..length]);
            }
        }
        shares.freeze()
    }

    /// Decodes a run of blocks from the shards of some nodes: at least the data shards `wanted`, or F+1 shards of any
    /// kind. Data shards that are neither given nor wanted are zeros in the result.
    pub(crate) fn decode(&self, wanted: std::ops::Range<usize>, given: &[(usize, BytesMut)]) -> BytesMut {
        let length = given.first().map_or(0, |(_, share)| share.len());
        assert!(given.iter().all(|(_, share)| share.len() == length), "shares of one run");
        let mut run = BytesMut::zeroed(length / self.shard_bytes * self.block_bytes);
        let lacking = wanted.into_iter().any(|slot| given.iter().all(|(other, _)| *other != slot));
        let restored = if lacking {
            let given: Vec<(usize, &[u8])> = given.iter().map(|(slot, share)| (*slot, &share[..])).collect();
            erasure_code::restore(self.data, &given)
        } else {
            Vec::new()
        };
        let given = given.iter().map(|(slot, share)| (*slot, &share[..]));
        for (slot, shares) in given.chain(restored.iter().map(|(slot, share)| (*slot, &share[..]))) {
            if slot < self.data {
                let piece = self.shard_range(slot);
                let blocks = run.chunks_exact_mut(self.block_bytes);
                for (block, share) in blocks.zip(shares.chunks_exact(self.shard_bytes)) {
                    block[piece.clone()].copy_from_slice(&share[..piece.len()]);
                }
            }
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(data: u32, block_bytes: u64) -> Shards {
        let layout = GroupLayout {
            log_bytes: 4096,
            unlogged_bytes: 0,
            memory_bytes: block_bytes,
            block_bytes,
            data_shards: data,
        };
        Shards::new(&layout).expect("it is coded")
    }

    #[test]
    fn shares_have_the_documented_layout() {
        let shares = shares(3, 64);
        let run: Bytes = (0..128).collect::<Vec<u8>>().into();
        let held: Vec<Bytes> = (0..5).map(|slot| shares.encode(slot, &run)).collect();
        assert_eq!(held[0], [(0..24).collect::<Vec<u8>>(), (64..88).collect()].concat());
        assert_eq!(held[2], [(48..64).collect::<Vec<u8>>(), vec![0; 8], (112..128).collect(), vec![0; 8]].concat());
        assert!((0..48).all(|at| held[3][at] == held[0][at] ^ held[1][at] ^ held[2][at]));
        assert_eq!(held[4][..8], [89, 207, 104, 254, 59, 173, 10, 156]);
    }

    #[test]
    fn runs_come_back_from_any_shares_that_are_enough() {
        for (data, block_bytes) in [(2, 64), (3, 64), (3, 128), (5, 64), (4, 4096)] {
            let shares = shares(data, block_bytes);
            let all = 2 * data as usize - 1;
            for blocks in [1, 3] {
                let bytes = blocks * block_bytes as usize;
                let run: Bytes = (0..bytes).map(|at| (at * 31 + at / 64) as u8).collect::<Vec<u8>>().into();
                let share = |slot| BytesMut::from(&shares.encode(slot, &run)[..]);
                for first in 0..all {
                    let given: Vec<(usize, BytesMut)> =
                        (0..data as usize).map(|step| (first + step) % all).map(|slot| (slot, share(slot))).collect();
                    assert_eq!(shares.decode(0..data as usize, &given), run, "{data} of {block_bytes} from {first}");
                }
                for (from, length) in [(0, 1), (40, 24), (63, 1), (0, 64), (bytes - 1, 1), (0, bytes)] {
                    let wanted = shares.slots(from, length);
                    let given: Vec<(usize, BytesMut)> = wanted.clone().map(|slot| (slot, share(slot))).collect();
                    let part = shares.decode(wanted, &given);
                    assert_eq!(part[from..from + length], run[from..from + length]);
                }
            }
        }
    }
}
