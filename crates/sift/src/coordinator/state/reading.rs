//! Reading memory: from one live node (step 3 at the head of [`crate::coordinator`]), or from each.

use std::ops::Range;

use base::BytesMut;
use rma::Completion;

use super::{CoordinatorState, NodePhase, StepOutcome};
use crate::Error;
use crate::link::FencedNode;
use crate::shards::Shards;

/// Reads of the shards that together contain a range of an erasure-coded group's memory.
pub(in crate::coordinator) struct ShardRead {
    /// By slot.
    pub reads: Vec<(FencedNode, Completion<BytesMut>)>,
    /// The data shards that the range lies in.
    wanted: Range<usize>,
    /// The start of the range, counted from the start of the first block.
    from: usize,
    length: usize,
    shards: Shards,
}

impl ShardRead {
    /// Decodes the range from the bytes that were read from each slot.
    pub(in crate::coordinator) fn decode(&self, given: &[(usize, BytesMut)]) -> BytesMut {
        let mut run = self.shards.decode(self.wanted.clone(), given);
        run.truncate(self.from + self.length);
        run.split_off(self.from)
    }
}

impl CoordinatorState {
    /// Posts a read to a live node.
    pub(in crate::coordinator) fn read(
        &mut self,
        address: u64,
        length: usize,
    ) -> Result<StepOutcome<(FencedNode, Completion<BytesMut>)>, Error> {
        self.check_lease()?;
        self.check_range(address, length as u64, 0..self.layout.address_bytes())?;
        if self.is_locked(self.blocks(address, length as u64)) {
            return Ok(StepOutcome::Blocked);
        }
        let count = self.members.len();
        self.next_read = (self.next_read + 1) % count;
        let slots = (0..count).map(|step| (self.next_read + step) % count);
        let live = slots.filter(|slot| self.members[*slot].phase == NodePhase::Live);
        // The node that is least behind.
        let best = live.min_by_key(|slot| self.members[*slot].posted.len() / 8 + self.members[*slot].slow as usize);
        let Some(held) = best.and_then(|slot| self.members[slot].node.clone()) else { return Ok(StepOutcome::Blocked) };
        let read = held.read(self.layout.memory_at(address), length);
        held.link.endpoint.flush();
        Ok(StepOutcome::Done((held, read)))
    }

    /// Posts reads of a range of an erasure-coded group's memory, whose blocks the caller may hold.
    pub(in crate::coordinator) fn read_shards(
        &mut self,
        address: u64,
        length: usize,
        is_held: bool,
    ) -> Result<StepOutcome<ShardRead>, Error> {
        self.check_lease()?;
        self.check_range(address, length as u64, self.layout.unlogged_bytes..self.layout.address_bytes())?;
        if !is_held && self.is_locked(self.blocks(address, length as u64)) {
            return Ok(StepOutcome::Blocked);
        }
        Ok(self.post_shard_reads(address, length).map_or(StepOutcome::Blocked, StepOutcome::Done))
    }

    /// Reads the data shards that contain the range, if their nodes are among the F+1 that are least behind and least
    /// slow; otherwise the shards that those F+1 nodes have. All reads are posted together, after the same writes, so
    /// the shards are of one version.
    pub(super) fn post_shard_reads(&self, address: u64, length: usize) -> Option<ShardRead> {
        assert!(length > 0, "something is read");
        let shares = self.shards.expect("blocks of a group that is not coded are read from one node");
        let blocks = self.blocks(address, length as u64);
        let start = blocks.start as u64 * self.layout.block_bytes;
        let from = (address - start) as usize;
        let wanted = shares.slots(from, length);
        let live = self.members.iter().filter(|member| member.phase == NodePhase::Live);
        let mut best: Vec<(usize, &FencedNode)> = live
            .filter_map(|member| {
                let held = member.node.as_ref()?;
                let is_parity = usize::from(held.link.slot >= shares.data);
                Some((member.posted.len() / 8 + member.slow as usize + is_parity, held))
            })
            .collect();
        best.sort_by_key(|(cost, held)| (*cost, held.link.slot));
        let mut best: Vec<&FencedNode> = best.into_iter().take(shares.data).map(|(_, held)| held).collect();
        if best.len() < shares.data {
            return None;
        }
        if wanted.clone().all(|slot| best.iter().any(|held| held.link.slot == slot)) {
            best.retain(|held| wanted.contains(&held.link.slot));
        }
        let (at, bytes) = (self.layout.shard_at(start), blocks.len() * self.layout.shard_bytes() as usize);
        let reads = best.iter().map(|held| ((*held).clone(), held.read(at, bytes))).collect();
        best.iter().for_each(|held| held.link.endpoint.flush());
        Some(ShardRead { reads, wanted, from, length, shards: shares })
    }

    /// Posts a read of the unlogged region, or of a group that is not erasure-coded, to every live node.
    pub(in crate::coordinator) fn read_each(
        &mut self,
        address: u64,
        length: usize,
    ) -> Result<StepOutcome<Vec<Completion<BytesMut>>>, Error> {
        self.check_lease()?;
        let plain =
            if self.layout.is_erasure_coded() { self.layout.unlogged_bytes } else { self.layout.address_bytes() };
        self.check_range(address, length as u64, 0..plain)?;
        if self.is_locked(self.blocks(address, length as u64)) {
            return Ok(StepOutcome::Blocked);
        }
        let live = self.members.iter().filter(|member| member.phase == NodePhase::Live);
        let held: Vec<&FencedNode> = live.filter_map(|member| member.node.as_ref()).collect();
        let reads = held.iter().map(|held| held.read(self.layout.memory_at(address), length)).collect();
        held.iter().for_each(|held| held.link.endpoint.flush());
        Ok(StepOutcome::Done(reads))
    }
}
