//! Appending to the log, writing without it, and the locks of blocks (steps 1 and 2 at the head of
//! [`crate::coordinator`]).

use std::iter;
use std::ops::Range;

use base::{Bytes, BytesMut};
use rma::TRANSFER_BYTES_MAX;

use super::{
    APPLY_BATCH_BYTES, HEADS_BYTES, Kept, Member, Phase, Posting, State, Step, Unapplied, Writes, region_bytes,
};
use crate::Error;
use crate::entry::{Kind, Write, encode_head, entry_bytes, padded};
use crate::layout::Cursor;

/// Whether the blocks of what is appended are locked for the caller already; not any more once it is appended.
pub(in crate::coordinator) struct Holding(pub bool);

/// Whether a write covers whole blocks.
pub(crate) fn is_whole(write: &Write, block_bytes: u64) -> bool {
    write.address.is_multiple_of(block_bytes) && (write.bytes.len() as u64).is_multiple_of(block_bytes)
}

impl State {
    pub(super) fn blocks(&self, address: u64, bytes: u64) -> Range<usize> {
        let block = self.layout.block_bytes;
        (address / block) as usize..(address + bytes).div_ceil(block) as usize
    }

    /// Whether one verb may move what lies there: one that a node refuses would be taken for the failure of that node.
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

    /// Posts to every node that takes part, those only that `takes` says; flushes.
    fn post_all(&mut self, at: u64, parts: &[Bytes], ticket: u64, takes: impl Fn(&Member) -> bool) {
        for slot in 0..self.members.len() {
            let member = &mut self.members[slot];
            if member.phase != Phase::Lost
                && takes(member)
                && let Err(error) = member.post(at, parts, ticket, None)
            {
                self.lose_slot(slot, &error);
            }
        }
    }

    /// Appends an entry.
    pub(in crate::coordinator) fn append(
        &mut self,
        writes: &Writes,
        kind: Kind,
        holds: &mut Holding,
    ) -> Result<Step<Posting>, Error> {
        self.check_open()?;
        if self.is_behind() {
            return Ok(Step::Blocked);
        }
        let slice = writes.as_slice();
        if kind == Kind::Writes {
            for write in slice {
                let bytes = write.bytes.len() as u64;
                self.check_range(write.address, bytes, self.layout.direct_bytes..self.layout.address_bytes())?;
            }
            let conflicts = |write: &Write| {
                let blocks = self.blocks(write.address, write.bytes.len() as u64);
                self.is_copying(&blocks) || self.is_locked(blocks)
            };
            if !holds.0 && slice.iter().any(conflicts) {
                return Ok(Step::Blocked);
            }
            let is_whole = |write: &Write| is_whole(write, self.layout.block_bytes);
            assert!(self.shares.is_none() || slice.iter().all(is_whole), "a coded group logs whole blocks");
        }
        let length = padded(entry_bytes(slice));
        let (log, position) = (self.layout.log_bytes, self.last.position);
        let (offset, skipped) = if position + length <= log { (position, 0) } else { (0, log - position) };
        if self.used_bytes + skipped + length > log {
            return Ok(Step::Blocked);
        }
        // Nothing has failed so far, and nothing will.
        for write in slice.iter().filter(|_| kind == Kind::Writes) {
            for block in self.blocks(write.address, write.bytes.len() as u64) {
                self.locked[block / 64] |= 1 << (block % 64);
            }
        }
        // From here on applying the entry unlocks them.
        holds.0 = false;
        if self.heads.capacity() < 512 {
            self.heads = BytesMut::with_capacity(HEADS_BYTES);
        }
        let index = self.last.index + 1;
        let chain = encode_head(index, self.term, self.last.chain, kind, slice, &mut self.heads);
        let head = self.heads.split().freeze();
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
        self.last = Cursor { index, position: offset + length, chain };
        self.used_bytes += skipped + length;
        self.ticket += 1;
        let ticket = self.ticket;
        self.post_all(self.layout.log_at(offset), parts, ticket, |_| true);
        self.flush();
        if kind == Kind::Record {
            self.records.push_back(index);
        }
        let raw = (!self.records.is_empty()).then(|| (offset, parts.to_vec()));
        self.kept.push_back(Kept { after: self.last, bytes: skipped + length, raw });
        self.unapplied.push_back(Unapplied { ticket, after: self.last, bytes: length, kind, writes: writes.share() });
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
        Ok(Step::Done(Posting { ticket, index, committed: self.committed >= ticket }))
    }

    /// Writes without the log.
    pub(in crate::coordinator) fn write_direct(&mut self, address: u64, bytes: &Bytes) -> Result<Step<u64>, Error> {
        self.check_open()?;
        self.check_range(address, bytes.len() as u64, 0..self.layout.direct_bytes)?;
        let blocks = self.blocks(address, bytes.len() as u64);
        if self.is_copying(&blocks) || self.is_behind() {
            return Ok(Step::Blocked);
        }
        self.ticket += 1;
        self.post_memory(address, bytes, self.ticket);
        self.flush();
        self.commit();
        Ok(Step::Done(self.ticket))
    }

    /// Locks blocks for a caller who reads them before it appends.
    pub(in crate::coordinator) fn hold(&mut self, runs: &[Range<u64>]) -> Result<Step<()>, Error> {
        self.check_open()?;
        let blocks = |run: &Range<u64>| self.blocks(run.start, run.end - run.start);
        if runs.iter().map(blocks).any(|blocks| self.is_copying(&blocks) || self.is_locked(blocks)) {
            return Ok(Step::Blocked);
        }
        for run in runs {
            for block in self.blocks(run.start, run.end - run.start) {
                self.locked[block / 64] |= 1 << (block % 64);
            }
        }
        Ok(Step::Done(()))
    }

    /// Unlocks them where nothing was appended.
    pub(in crate::coordinator) fn let_go(&mut self, runs: &[Range<u64>]) {
        for run in runs {
            for block in self.blocks(run.start, run.end - run.start) {
                self.locked[block / 64] &= !(1 << (block % 64));
            }
        }
        self.wake_blocked();
    }

    /// Posts bytes, or of a coded group's blocks each node's shares, to live nodes, and to those that have a copy of the
    /// region already.
    pub(super) fn post_memory(&mut self, address: u64, bytes: &Bytes, ticket: u64) {
        let region = region_bytes(&self.layout);
        let regions = (address / region) as usize..(address + bytes.len() as u64).div_ceil(region) as usize;
        regions.clone().for_each(|region| self.heat[region] = self.heat[region].saturating_add(1));
        for member in self.members.iter_mut().filter(|member| member.phase == Phase::Joining) {
            regions.clone().for_each(|region| member.touched[region] = true);
        }
        let takes = |member: &Member| {
            member.phase == Phase::Live
                || member.phase == Phase::Joining && regions.clone().any(|region| member.copied[region])
        };
        let Some(shares) = self.shares.filter(|_| address >= self.layout.direct_bytes) else {
            let at = self.layout.memory_at(address);
            return self.post_all(at, std::slice::from_ref(bytes), ticket, takes);
        };
        let at = self.layout.share_at(address);
        for slot in 0..self.members.len() {
            let member = &mut self.members[slot];
            if takes(member)
                && let Err(error) = member.post(at, &[shares.encode(slot, bytes)], ticket, None)
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
