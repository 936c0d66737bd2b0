//! Re-admission of a memory node (step 5 at the head of [`crate::coordinator`]).

use std::ops::Range;

use base::{Bytes, BytesMut};
use rma::Completion;

use super::persistence::PersistTracker;
use super::{CoordinatorState, MemberState, NodePhase, PENDING_VERBS_MAX, ShardRead, StepOutcome, WakeList};
use crate::Error;
use crate::entry::{EntryKind, padded};
use crate::layout::{CopyHeader, GroupLayout, LogCursor};
use crate::link::FencedNode;
use crate::scan::LocatedEntry;

/// Bytes of the largest region, the unit of copying to a joining node.
const REGION_BYTES_MAX: u64 = 64 << 10;
/// Number of regions of a small memory.
const REGIONS: u64 = 64;
/// Entries go to a joining node in runs. A run has at most this fraction of the log, or [`RUN_BYTES_MIN`] if that is
/// more.
const RUN_PART: u64 = 256;
const RUN_BYTES_MIN: u64 = 64 << 10;
// Two consecutive runs together exceed the limit of one run, which bounds the number of runs.
const _: () = assert!(2 * RUN_PART as usize + 2 < PENDING_VERBS_MAX / 2, "there is room for all at once");

/// Reads of a region, from nodes that have it.
pub(in crate::coordinator) struct RegionCopy {
    pub replicated: Option<(FencedNode, Completion<BytesMut>)>,
    pub erasure_coded: Option<ShardRead>,
}

/// A region as it was read: the part that every node holds in full, and whole blocks of the erasure-coded part.
pub(in crate::coordinator) struct CopiedRegion {
    pub replicated: Option<Bytes>,
    pub erasure_coded: Option<Bytes>,
}

/// Bytes of a region of a layout.
pub(in crate::coordinator) fn region_bytes(layout: &GroupLayout) -> u64 {
    // Powers of two, so that a region consists of whole blocks.
    let small = (layout.address_bytes() / REGIONS).next_power_of_two();
    small.min(REGION_BYTES_MAX).max(layout.block_bytes)
}

impl CoordinatorState {
    /// The regions, the least written ones first.
    pub(in crate::coordinator) fn regions(&self) -> Vec<usize> {
        let mut regions: Vec<usize> = (0..self.write_counts.len()).collect();
        regions.sort_by_key(|region| self.write_counts[*region]);
        regions
    }

    /// Makes a node joining: from here on it gets new entries. Returns the index of the last entry, and the position of
    /// the last applied one.
    pub(in crate::coordinator) fn join(&mut self, held: &FencedNode, sequence: u64) -> Result<(u64, LogCursor), Error> {
        self.check_open()?;
        let slot = held.link.slot;
        assert!(self.members[slot].phase == NodePhase::Lost, "a node has one keeper");
        let (copied, touched) = (vec![false; self.write_counts.len()], vec![false; self.write_counts.len()]);
        let (journal, held) = (PersistTracker::new(held), Some(held.clone()));
        self.members[slot] = MemberState {
            phase: NodePhase::Joining,
            node: held,
            persist_tracker: journal,
            sequence,
            copied,
            touched,
            ..MemberState::lost()
        };
        for (offset, parts) in self.records_in_runs() {
            let at = self.layout.log_at(offset);
            if let Err(error) = self.members[slot].post(at, &parts, self.ticket, None) {
                self.lose_slot(slot, &error);
                break;
            }
        }
        Ok((self.last.index, self.applied))
    }

    /// The appended entries that the log still needs, with their offsets. Short entries that are adjacent form one
    /// write, since a node may not have as many outstanding verbs as a log has entries.
    fn records_in_runs(&self) -> Vec<(u64, Vec<Bytes>)> {
        let run_bytes = (self.layout.log_bytes / RUN_PART).max(RUN_BYTES_MIN) as usize;
        let watermark = self.watermark().index;
        let records = self.retained.iter().filter(|kept| kept.after.index > watermark);
        let mut runs: Vec<(u64, Vec<Bytes>)> = Vec::new();
        let mut run = BytesMut::new();
        let mut run_at = 0;
        for (offset, parts) in records.filter_map(|kept| kept.raw.as_ref()) {
            let bytes = padded(parts.iter().map(|part| part.len() as u64).sum()) as usize;
            if !run.is_empty() && (run_at + run.len() as u64 != *offset || run.len() + bytes > run_bytes) {
                runs.push((run_at, vec![run.split().freeze()]));
            }
            if bytes > run_bytes {
                runs.push((*offset, parts.clone()));
                continue;
            }
            if run.is_empty() {
                run_at = *offset;
            }
            let end = run.len() + bytes;
            parts.iter().for_each(|part| run.extend_from_slice(part));
            run.resize(end, 0);
        }
        if !run.is_empty() {
            runs.push((run_at, vec![run.freeze()]));
        }
        runs
    }

    /// A live node whose log can be read, and the header that decides which of its entries count.
    pub(in crate::coordinator) fn log_source(&self) -> Option<(FencedNode, CopyHeader)> {
        let source = self.live().min_by_key(|member| member.posted.len() + member.slow as usize)?;
        Some((source.node.clone()?, self.header(0, LogCursor::default())))
    }

    /// Keeps the unchanged regions of a node: `entries` are those after the position `before`, which its header covers.
    /// If they lead to the position that was applied when the node joined, then these entries and the writes applied
    /// since name every region of the logged memory that was written; the other regions are up to date. Returns false
    /// if they do not.
    pub(in crate::coordinator) fn mark_unchanged(
        &mut self,
        held: &FencedNode,
        before: LogCursor,
        joined_at: LogCursor,
        entries: &[LocatedEntry],
    ) -> Result<bool, Error> {
        let region = region_bytes(&self.layout);
        let mut changed = self.joining(held)?.touched.clone();
        if before != joined_at && entries.iter().all(|placed| placed.after != joined_at) {
            return Ok(false);
        }
        // The log does not record unlogged writes.
        changed[..self.layout.unlogged_bytes.div_ceil(region) as usize].fill(true);
        let writes = entries.iter().filter(|placed| placed.entry.kind == EntryKind::Writes);
        for write in writes.flat_map(|placed| &placed.entry.writes) {
            let until = write.address.saturating_add(write.bytes.len() as u64).div_ceil(region) as usize;
            let Some(written) = changed.get_mut((write.address / region) as usize..until) else { return Ok(false) };
            written.fill(true);
        }
        self.joining(held)?.copied = changed.into_iter().map(|changed| !changed).collect();
        Ok(true)
    }

    /// Whether a joining node already has a region.
    pub(in crate::coordinator) fn has_region(&mut self, held: &FencedNode, region: usize) -> Result<bool, Error> {
        Ok(self.joining(held)?.copied[region])
    }

    fn joining(&mut self, held: &FencedNode) -> Result<&mut MemberState, Error> {
        self.check_open()?;
        let member = &mut self.members[held.link.slot];
        match member.phase == NodePhase::Joining && member.is_node(held) {
            true => Ok(member),
            false => Err(Error::NoAnswer { address: String::new(), reason: "the node was lost again".to_owned() }),
        }
    }

    /// The part of a region that every node holds in full, and the part of which it holds shards.
    fn replicated_and_coded(&self, region: usize) -> (Range<u64>, Range<u64>) {
        let bytes = region_bytes(&self.layout);
        let from = region as u64 * bytes;
        let until = (from + bytes).min(self.layout.address_bytes());
        let plain = if self.layout.is_erasure_coded() { self.layout.unlogged_bytes } else { until };
        (from..until.min(plain.max(from)), from.max(plain.min(until))..until)
    }

    /// Starts to copy a region: posts its reads, and blocks writes to it.
    pub(in crate::coordinator) fn start_copy(
        &mut self,
        held: &FencedNode,
        region: usize,
    ) -> Result<StepOutcome<RegionCopy>, Error> {
        self.joining(held)?;
        let (plain, coded) = self.replicated_and_coded(region);
        let blocks = self.blocks(plain.start, coded.end - plain.start);
        if self.is_locked(blocks.clone())
            || self.is_behind()
            || self.members[held.link.slot].posted.len() >= PENDING_VERBS_MAX / 4
        {
            return Ok(StepOutcome::Blocked);
        }
        let source = self.live().filter(|member| member.node.is_some());
        let source = source.min_by_key(|member| member.posted.len() + member.slow as usize);
        let Some(source) = source.and_then(|member| member.node.clone()) else { return Ok(StepOutcome::Blocked) };
        let mut copying = RegionCopy { replicated: None, erasure_coded: None };
        if !coded.is_empty() {
            copying.erasure_coded = self.post_shard_reads(coded.start, (coded.end - coded.start) as usize);
            if copying.erasure_coded.is_none() {
                return Ok(StepOutcome::Blocked);
            }
        }
        if !plain.is_empty() {
            let read = source.read(self.layout.memory_at(plain.start), (plain.end - plain.start) as usize);
            source.link.endpoint.flush();
            copying.replicated = Some((source, read));
        }
        self.joining(held)?.copying = blocks;
        Ok(StepOutcome::Done(copying))
    }

    /// Posts a region that was read, in an erasure-coded group the node's shards of it; from here on the node gets the
    /// writes to the region. `None` if it could not be read.
    pub(in crate::coordinator) fn finish_copy(
        &mut self,
        held: &FencedNode,
        region: usize,
        copied: Option<CopiedRegion>,
    ) -> Result<(), Error> {
        let (sequence, slot, layout) = (self.ticket, held.link.slot, self.layout);
        let (shares, (plain, coded)) = (self.shards, self.replicated_and_coded(region));
        let member = self.joining(held)?;
        member.copying = 0..0;
        if let Some(copied) = copied {
            member.copied[region] = true;
            let mut posted = Ok(());
            let bytes =
                [&copied.replicated, &copied.erasure_coded].into_iter().flatten().map(Bytes::len).sum::<usize>();
            if let Some(bytes) = copied.replicated {
                posted = member.post(layout.memory_at(plain.start), &[bytes], sequence, None);
            }
            if let (Ok(()), Some(shares), Some(run)) = (&posted, shares, &copied.erasure_coded) {
                posted = member.post(layout.shard_at(coded.start), &[shares.encode(slot, run)], sequence, None);
            }
            if let Err(error) = posted {
                self.lose_slot(slot, &error);
            }
            self.copied_bytes += bytes as u64;
        }
        self.flush();
        self.wake_blocked();
        self.joining(held).map(drop)
    }

    /// Posts the header of a complete node; returns the ticket that the node must acknowledge.
    pub(in crate::coordinator) fn complete_join(
        &mut self,
        held: &FencedNode,
        from: u64,
    ) -> Result<StepOutcome<u64>, Error> {
        self.joining(held)?;
        if self.applied.index < from {
            return Ok(StepOutcome::Blocked);
        }
        // In an erasure-coded group a live node may need any entry after its header's position, from whichever node's
        // log the next takeover reads; the joining node lacks the entries from before it joined.
        let needed = from.min(self.watermark().index);
        if self.shards.is_some() && self.live().any(|member| member.applied < needed) {
            self.post_headers();
            return Ok(StepOutcome::Blocked);
        }
        assert!(self.members[held.link.slot].copied.iter().all(|copied| *copied), "all regions are copied");
        self.ticket += 1;
        let watermark = self.watermark();
        self.post_header(held.link.slot, watermark, self.ticket);
        self.flush();
        self.joining(held)?;
        Ok(StepOutcome::Done(self.ticket))
    }

    /// Whether a joining node has acknowledged a ticket.
    pub(in crate::coordinator) fn has_acked(
        &mut self,
        held: &FencedNode,
        sequence: u64,
    ) -> Result<StepOutcome<()>, Error> {
        let member = self.joining(held)?;
        Ok(if member.acked >= sequence { StepOutcome::Done(()) } else { StepOutcome::Blocked })
    }

    /// Admits the node: from here on it counts, also for writes that wait for a majority.
    pub(in crate::coordinator) fn admit(&mut self, held: &FencedNode) -> Result<WakeList, Error> {
        let member = self.joining(held)?;
        member.phase = NodePhase::Live;
        member.has_vote = true;
        (member.copied, member.touched) = (Vec::new(), Vec::new());
        self.publish_lease();
        self.note_changed();
        Ok(self.handle_progress())
    }

    pub(in crate::coordinator) fn lacks_vote(&self, held: &FencedNode) -> bool {
        let member = &self.members[held.link.slot];
        member.phase == NodePhase::Live && member.is_node(held) && !member.has_vote
    }

    pub(in crate::coordinator) fn note_vote(&mut self, held: &FencedNode) {
        let member = &mut self.members[held.link.slot];
        if member.is_node(held) {
            member.has_vote = true;
        }
    }

    pub(in crate::coordinator) fn abort_join(&mut self, held: &FencedNode) {
        let member = &mut self.members[held.link.slot];
        if member.phase == NodePhase::Joining && member.is_node(held) {
            *member = MemberState::lost();
            self.wake_blocked();
        }
    }

    /// The live nodes except one.
    pub(in crate::coordinator) fn others(&self, slot: usize) -> Vec<FencedNode> {
        let live = self.live().filter_map(|member| member.node.clone());
        live.filter(|held| held.link.slot != slot).collect()
    }
}
