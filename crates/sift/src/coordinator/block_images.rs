//! Full-block images for the log of an erasure-coded group.
//!
//! 1. If the writes of an entry cover whole blocks, they are logged as they are.
//! 2. Otherwise the coordinator locks all blocks that the writes touch, reads the blocks that no single write covers,
//!    and merges the writes into them. Each run of neighbouring blocks becomes one write of the entry.
//! 3. When the entry is appended, it takes over the locks; if it is not appended, they are released.
//!
//! Why the log has whole blocks. A parity shard can be computed only from a whole block. If the log had only the part
//! that a write covers, the next coordinator would have to read the rest from the nodes' shards. But when a coordinator
//! dies while it posts shards, some nodes may have the old version and some the new one, with too few shards of either.
//! From the image of the whole block in the log, every shard can be computed, whatever shards the nodes hold.

use std::ops::Range;

use base::BytesMut;

use super::state::{Holding, covers_whole_blocks};
use crate::coordinator::coordinator_core::{CoordinatorCore, lock};
use crate::entry::MemoryWrite;
use crate::{Error, GroupLayout, entry};

/// Writes of whole blocks, which stay locked for the owner of this value.
pub(super) struct LockedBlocks<'a> {
    pub images: Vec<MemoryWrite>,
    pub locks: Holding,
    runs: Vec<Range<u64>>,
    shared: &'a CoordinatorCore,
}

impl Drop for LockedBlocks<'_> {
    fn drop(&mut self) {
        if self.locks.0 {
            lock(&self.shared.state).unlock_blocks(&self.runs);
        }
    }
}

/// Steps 1 and 2; `None` where the writes can be logged as they are.
pub(super) async fn full_blocks<'a>(
    shared: &'a CoordinatorCore,
    writes: &[MemoryWrite],
) -> Result<Option<LockedBlocks<'a>>, Error> {
    let layout = &shared.group.layout;
    if writes.iter().all(|write| covers_whole_blocks(write, layout.block_bytes)) {
        return Ok(None);
    }
    let memory = layout.unlogged_bytes..layout.address_bytes();
    for MemoryWrite { address, bytes } in writes {
        if *address < memory.start || address.checked_add(bytes.len() as u64).is_none_or(|until| until > memory.end) {
            return Err(Error::Invalid(format!("{} bytes at {address} do not lie within {memory:?}", bytes.len())));
        }
    }
    let runs = runs(writes, layout);
    let bytes: u64 = runs.iter().map(|run| run.end - run.start).sum();
    if bytes > layout.entry_bytes_max() {
        let max = layout.entry_bytes_max();
        return Err(Error::Invalid(format!("writes that touch blocks of {bytes} bytes: an entry takes at most {max}")));
    }
    shared.step(|state| state.lock_blocks(&runs)).await?;
    let mut held = LockedBlocks { images: Vec::new(), locks: Holding(true), runs, shared };
    for run in &held.runs {
        let mut image = BytesMut::zeroed((run.end - run.start) as usize);
        for part in uncovered(run, writes, layout.block_bytes) {
            let old = shared.read_shards(part.start, (part.end - part.start) as usize, true).await?;
            image[(part.start - run.start) as usize..][..old.len()].copy_from_slice(&old);
        }
        for MemoryWrite { address, bytes } in writes.iter().filter(|write| run.contains(&write.address)) {
            image[(address - run.start) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        held.images.push(MemoryWrite { address: run.start, bytes: image.freeze() });
    }
    entry::check(&held.images, layout.entry_bytes_max())?;
    Ok(Some(held))
}

/// The blocks that writes touch, as runs that do not touch each other.
fn runs(writes: &[MemoryWrite], layout: &GroupLayout) -> Vec<Range<u64>> {
    let block = layout.block_bytes;
    let touched = writes.iter().map(|write| {
        let from = write.address / block * block;
        from..(write.address + write.bytes.len() as u64).next_multiple_of(block)
    });
    merged(touched.filter(|range| !range.is_empty()).collect())
}

/// The blocks of a run that no single write covers entirely, as runs.
fn uncovered(run: &Range<u64>, writes: &[MemoryWrite], block: u64) -> Vec<Range<u64>> {
    let covers =
        |write: &MemoryWrite, at: u64| write.address <= at && at + block <= write.address + write.bytes.len() as u64;
    let blocks = (run.start..run.end).step_by(block as usize);
    merged(blocks.filter(|at| !writes.iter().any(|write| covers(write, *at))).map(|at| at..at + block).collect())
}

/// Merges ranges that overlap or are adjacent.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use base::Bytes;

    use super::*;

    const LAYOUT: GroupLayout =
        GroupLayout { log_bytes: 4096, unlogged_bytes: 128, memory_bytes: 1024, block_bytes: 64, data_shards: 2 };

    #[test]
    fn neighbouring_blocks_are_one_run_and_only_what_is_not_covered_is_read() {
        let check = |writes: &[(u64, usize)], expected: &[(u64, u64)], read: &[(u64, u64)]| {
            let pairs = |ranges: Vec<Range<u64>>| -> Vec<(u64, u64)> {
                ranges.into_iter().map(|range| (range.start, range.end)).collect()
            };
            let write = |(address, bytes): &(u64, usize)| MemoryWrite {
                address: *address,
                bytes: Bytes::from(vec![1; *bytes]),
            };
            let writes: Vec<MemoryWrite> = writes.iter().map(write).collect();
            let runs = runs(&writes, &LAYOUT);
            let uncovered: Vec<Range<u64>> = runs.iter().flat_map(|run| uncovered(run, &writes, 64)).collect();
            assert_eq!((pairs(runs), pairs(uncovered)), (expected.to_vec(), read.to_vec()));
        };
        check(&[(130, 4)], &[(128, 192)], &[(128, 192)]);
        check(&[(130, 64)], &[(128, 256)], &[(128, 256)]);
        check(&[(130, 190)], &[(128, 320)], &[(128, 192)]);
        check(&[(500, 2), (130, 4), (192, 64)], &[(128, 256), (448, 512)], &[(128, 192), (448, 512)]);
        check(&[(130, 4), (140, 4)], &[(128, 192)], &[(128, 192)]);
    }
}
