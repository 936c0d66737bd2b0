//! Appending to the log, unlogged writes, and the locks of blocks (steps 1 and 2 at the head of
//! [`crate::coordinator`]).

use std::iter;
use std::ops::Range;

use base::{Bytes, BytesMut};
use rma::TRANSFER_BYTES_MAX;

use super::{
    APPLY_BATCH_BYTES, AppendedEntry, CoordinatorState, EntryWrites, HEADS_BYTES, MemberState, NodePhase,
    RetainedEntry, StepOutcome, UnappliedEntry, region_bytes,
};
use crate::Error;
use crate::entry::{EntryKind, MemoryWrite, encode_head, entry_bytes, padded};
use crate::layout::LogCursor;

/// Whether the blocks of an entry are already locked for the caller; false once the entry is appended.
pub(in crate::coordinator) struct Holding(pub bool);

/// Whether a write covers whole blocks.
pub(crate) fn covers_whole_blocks(write: &MemoryWrite, block_bytes: u64) -> bool {
    write.address.is_multiple_of(block_bytes) && (write.bytes.len() as u64).is_multiple_of(block_bytes)
}

impl CoordinatorState {
    pub(super) fn blocks(&self, address: u64, bytes: u64) -> Range<usize> {
        let block = self.layout.block_bytes;
        (address / block) as usize..(address + bytes).div_ceil(block) as usize
    }

    /// Checks that one verb may move the range: if a node rejected the verb, the node would be considered failed.
    pub(super) fn check_range(&self, address: u64, bytes: u64, within: Range<u64>) -> Result<(), Error> {
        if bytes > TRANSFER_BYTES_MAX as u64 {
            return Err(Error::Invalid(format!(
                "{bytes} bytes: at most {TRANSFER_BYTES_MAX} are read or written at once"
            )));
        }
        match address.checked_add(bytes) {
            Some(until) if address >= within.start && until <= within.end => Ok(()),
            _ => Err(Error::Invalid(format!("bytes {address} to {address} + {bytes} do not lie within {within:?}"))),
        }
    }

    pub(super) fn is_locked(&self, mut blocks: Range<usize>) -> bool {
        blocks.any(|block| self.locked[block / 64] & (1 << (block % 64)) != 0)
    }

    fn is_copying(&self, blocks: &Range<usize>) -> bool {
        self.members.iter().any(|member| blocks.start < member.copying.end && member.copying.start < blocks.end)
    }

    /// Posts to every node that takes part and that `takes` selects.
    fn post_all(&mut self, at: u64, parts: &[Bytes], sequence: u64, takes: impl Fn(&MemberState) -> bool) {
        for slot in 0..self.members.len() {
            let member = &mut self.members[slot];
            if member.phase != NodePhase::Lost
                && takes(member)
                && let Err(error) = member.post(at, parts, sequence, None)
            {
                self.lose_slot(slot, &error);
            }
        }
    }

    /// Appends an entry.
    pub(in crate::coordinator) fn append(
        &mut self,
        writes: &EntryWrites,
        kind: EntryKind,
        holds: &mut Holding,
    ) -> Result<StepOutcome<AppendedEntry>, Error> {
        self.check_open()?;
        if self.is_behind() {
            return Ok(StepOutcome::Blocked);
        }
        let slice = writes.as_slice();
        if kind == EntryKind::Writes {
            for write in slice {
                let bytes = write.bytes.len() as u64;
                self.check_range(write.address, bytes, self.layout.unlogged_bytes..self.layout.address_bytes())?;
            }
            let conflicts = |write: &MemoryWrite| {
                let blocks = self.blocks(write.address, write.bytes.len() as u64);
                self.is_copying(&blocks) || self.is_locked(blocks)
            };
            if !holds.0 && slice.iter().any(conflicts) {
                return Ok(StepOutcome::Blocked);
            }
            let is_whole = |write: &MemoryWrite| covers_whole_blocks(write, self.layout.block_bytes);
            assert!(self.shards.is_none() || slice.iter().all(is_whole), "a coded group logs whole blocks");
        }
        let length = padded(entry_bytes(slice));
        let (log, position) = (self.layout.log_bytes, self.last.position);
        let (offset, skipped) = if position + length <= log { (position, 0) } else { (0, log - position) };
        if self.used_bytes + skipped + length > log {
            return Ok(StepOutcome::Blocked);
        }
        // From here on nothing can fail.
        for write in slice.iter().filter(|_| kind == EntryKind::Writes) {
            for block in self.blocks(write.address, write.bytes.len() as u64) {
                self.locked[block / 64] |= 1 << (block % 64);
            }
        }
        // From here on applying the entry unlocks them.
        holds.0 = false;
        if self.head_buffer.capacity() < 512 {
            self.head_buffer = BytesMut::with_capacity(HEADS_BYTES);
        }
        let index = self.last.index + 1;
        let chain = encode_head(index, self.term, self.last.chain, kind, slice, &mut self.head_buffer);
        let head = self.head_buffer.split().freeze();
        let (two, more);
        let parts: &[Bytes] = match slice {
            [write] => {
                two = [head, write.bytes.clone()];
                &two
            }
            writes => {
                let bytes = writes.iter().map(|write| write.bytes.clone());
                more = iter::once(head).chain(bytes).collect::<Vec<Bytes>>();
                &more
            }
        };
        self.last = LogCursor { index, position: offset + length, chain };
        self.used_bytes += skipped + length;
        self.ticket += 1;
        let sequence = self.ticket;
        self.post_all(self.layout.log_at(offset), parts, sequence, |_| true);
        self.flush();
        if kind == EntryKind::Record {
            self.records.push_back(index);
        }
        let raw = (!self.records.is_empty()).then(|| (offset, parts.to_vec()));
        self.retained.push_back(RetainedEntry { after: self.last, bytes: skipped + length, raw });
        self.unapplied.push_back(UnappliedEntry {
            sequence,
            after: self.last,
            bytes: length,
            kind,
            writes: writes.clone_shared(),
        });
        self.unapplied_bytes += length;
        self.commit();
        if self.unapplied.len() >= self.apply_batch || self.unapplied_bytes >= APPLY_BATCH_BYTES {
            self.apply();
        }
        if self.used_bytes > log / 2 {
            self.apply();
            self.post_headers();
            self.reclaim();
        }
        Ok(StepOutcome::Done(AppendedEntry { sequence, index, committed: self.committed >= sequence }))
    }

    /// Writes to the unlogged region.
    pub(in crate::coordinator) fn write_unlogged(
        &mut self,
        address: u64,
        bytes: &Bytes,
    ) -> Result<StepOutcome<u64>, Error> {
        self.check_open()?;
        self.check_range(address, bytes.len() as u64, 0..self.layout.unlogged_bytes)?;
        let blocks = self.blocks(address, bytes.len() as u64);
        if self.is_copying(&blocks) || self.is_behind() {
            return Ok(StepOutcome::Blocked);
        }
        self.ticket += 1;
        self.post_memory(address, bytes, self.ticket);
        self.flush();
        self.commit();
        Ok(StepOutcome::Done(self.ticket))
    }

    /// Locks blocks for a caller that reads them before it appends.
    pub(in crate::coordinator) fn lock_blocks(&mut self, runs: &[Range<u64>]) -> Result<StepOutcome<()>, Error> {
        self.check_open()?;
        let blocks = |run: &Range<u64>| self.blocks(run.start, run.end - run.start);
        if runs.iter().map(blocks).any(|blocks| self.is_copying(&blocks) || self.is_locked(blocks)) {
            return Ok(StepOutcome::Blocked);
        }
        for run in runs {
            for block in self.blocks(run.start, run.end - run.start) {
                self.locked[block / 64] |= 1 << (block % 64);
            }
        }
        Ok(StepOutcome::Done(()))
    }

    /// Unlocks them if nothing was appended.
    pub(in crate::coordinator) fn unlock_blocks(&mut self, runs: &[Range<u64>]) {
        for run in runs {
            for block in self.blocks(run.start, run.end - run.start) {
                self.locked[block / 64] &= !(1 << (block % 64));
            }
        }
        self.wake_blocked();
    }

    /// Posts bytes, or each node's shards of an erasure-coded group's blocks, to live nodes, and to joining nodes that
    /// already have a copy of the region.
    pub(super) fn post_memory(&mut self, address: u64, bytes: &Bytes, sequence: u64) {
        let region = region_bytes(&self.layout);
        let regions = (address / region) as usize..(address + bytes.len() as u64).div_ceil(region) as usize;
        regions.clone().for_each(|region| self.write_counts[region] = self.write_counts[region].saturating_add(1));
        for member in self.members.iter_mut().filter(|member| member.phase == NodePhase::Joining) {
            regions.clone().for_each(|region| member.touched[region] = true);
        }
        let takes = |member: &MemberState| {
            member.phase == NodePhase::Live
                || member.phase == NodePhase::Joining && regions.clone().any(|region| member.copied[region])
        };
        let Some(shares) = self.shards.filter(|_| address >= self.layout.unlogged_bytes) else {
            let at = self.layout.memory_at(address);
            return self.post_all(at, std::slice::from_ref(bytes), sequence, takes);
        };
        let at = self.layout.shard_at(address);
        for slot in 0..self.members.len() {
            let member = &mut self.members[slot];
            if takes(member)
                && let Err(error) = member.post(at, &[shares.encode(slot, bytes)], sequence, None)
            {
                self.lose_slot(slot, &error);
            }
        }
    }

    pub(in crate::coordinator) fn trim(&mut self, index: u64) {
        while self.records.front().is_some_and(|record| *record <= index) {
            self.records.pop_front();
        }
        self.post_headers();
        self.reclaim();
        self.wake_blocked();
    }
}
