//! Whole blocks for the log of a coded group.
//!
//! 1. Writes that cover whole blocks are logged as they are.
//! 2. Otherwise the blocks that they touch are locked, those that they do not cover are read, and the writes put over them:
//!    each run of neighbouring blocks is one write of the entry.
//! 3. The locks become those of the entry when it is appended; where that does not happen they are let go.
//!
//! Why: a block of which a part was written can be made only from its other part. That would have to be read from shares, of
//! which some may be of the version before and some of the one after when a coordinator has died over them, neither being
//! enough. From its image in the log every share can be made, whatever stands at the nodes.

use std::ops::Range;

use base::BytesMut;

use super::state::{Holding, is_whole};
use super::{Shared, lock};
use crate::entry::{self, Write};
use crate::{Error, Layout};

/// Writes of whole blocks, which are locked for whoever has this.
pub(super) struct Held<'a> {
    pub images: Vec<Write>,
    pub holding: Holding,
    runs: Vec<Range<u64>>,
    shared: &'a Shared,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.holding.0 {
            lock(&self.shared.state).let_go(&self.runs);
        }
    }
}

/// Steps 1 and 2; `None` where the writes can be logged as they are.
pub(super) async fn of<'a>(shared: &'a Shared, writes: &[Write]) -> Result<Option<Held<'a>>, Error> {
    let layout = &shared.group.layout;
    if writes.iter().all(|write| is_whole(write, layout.block_bytes)) {
        return Ok(None);
    }
    let memory = layout.direct_bytes..layout.address_bytes();
    for Write { address, bytes } in writes {
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
    shared.step(|state| state.hold(&runs)).await?;
    let mut held = Held { images: Vec::new(), holding: Holding(true), runs, shared };
    for run in &held.runs {
        let mut image = BytesMut::zeroed((run.end - run.start) as usize);
        for part in uncovered(run, writes, layout.block_bytes) {
            let old = shared.fetch(part.start, (part.end - part.start) as usize, true).await?;
            image[(part.start - run.start) as usize..][..old.len()].copy_from_slice(&old);
        }
        for Write { address, bytes } in writes.iter().filter(|write| run.contains(&write.address)) {
            image[(address - run.start) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        held.images.push(Write { address: run.start, bytes: image.freeze() });
    }
    entry::check(&held.images, layout.entry_bytes_max())?;
    Ok(Some(held))
}

/// The blocks that writes touch, as runs that do not touch each other.
fn runs(writes: &[Write], layout: &Layout) -> Vec<Range<u64>> {
    let block = layout.block_bytes;
    let touched = writes.iter().map(|write| {
        let from = write.address / block * block;
        from..(write.address + write.bytes.len() as u64).next_multiple_of(block)
    });
    merged(touched.filter(|range| !range.is_empty()).collect())
}

/// The blocks of a run that no write covers as a whole, as runs.
fn uncovered(run: &Range<u64>, writes: &[Write], block: u64) -> Vec<Range<u64>> {
    let covers = |write: &Write, at: u64| write.address <= at && at + block <= write.address + write.bytes.len() as u64;
    let blocks = (run.start..run.end).step_by(block as usize);
    merged(blocks.filter(|at| !writes.iter().any(|write| covers(write, *at))).map(|at| at..at + block).collect())
}

/// Ranges, with those in one that overlap or are neighbours.
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

    const LAYOUT: Layout =
        Layout { log_bytes: 4096, direct_bytes: 128, memory_bytes: 1024, block_bytes: 64, data_shares: 2 };

    #[test]
    fn neighbouring_blocks_are_one_run_and_only_what_is_not_covered_is_read() {
        let check = |writes: &[(u64, usize)], expected: &[(u64, u64)], read: &[(u64, u64)]| {
            let pairs = |ranges: Vec<Range<u64>>| -> Vec<(u64, u64)> {
                ranges.into_iter().map(|range| (range.start, range.end)).collect()
            };
            let write =
                |(address, bytes): &(u64, usize)| Write { address: *address, bytes: Bytes::from(vec![1; *bytes]) };
            let writes: Vec<Write> = writes.iter().map(write).collect();
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
