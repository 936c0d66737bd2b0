//! Reading memory: from one live node (step 3 at the head of [`crate::coordinator`]), or from each.

use std::ops::Range;

use base::BytesMut;
use rma::Completion;

use super::{Phase, State, Step};
use crate::Error;
use crate::link::Held;
use crate::shares::Shares;

/// Reads of shares that together have a range of a coded group's memory.
pub(in crate::coordinator) struct Fetch {
    /// By slot.
    pub reads: Vec<(Held, Completion<BytesMut>)>,
    /// The data shares that the range lies in.
    wanted: Range<usize>,
    /// Where the range begins, from the first block's beginning.
    from: usize,
    length: usize,
    shares: Shares,
}

impl Fetch {
    /// The range, out of what was read of each slot.
    pub(in crate::coordinator) fn decode(&self, given: &[(usize, BytesMut)]) -> BytesMut {
        let mut run = self.shares.decode(self.wanted.clone(), given);
        run.truncate(self.from + self.length);
        run.split_off(self.from)
    }
}

impl State {
    /// Posts a read to a live node.
    pub(in crate::coordinator) fn read(
        &mut self,
        address: u64,
        length: usize,
    ) -> Result<Step<(Held, Completion<BytesMut>)>, Error> {
        self.check_lease()?;
        self.check_range(address, length as u64, 0..self.layout.address_bytes())?;
        if self.is_locked(self.blocks(address, length as u64)) {
            return Ok(Step::Blocked);
        }
        let count = self.members.len();
        self.next_read = (self.next_read + 1) % count;
        let slots = (0..count).map(|step| (self.next_read + step) % count);
        let live = slots.filter(|slot| self.members[*slot].phase == Phase::Live);
        // The one that is least behind.
        let best = live.min_by_key(|slot| self.members[*slot].posted.len() / 8 + self.members[*slot].slow as usize);
        let Some(held) = best.and_then(|slot| self.members[slot].held.clone()) else { return Ok(Step::Blocked) };
        let read = held.read(self.layout.memory_at(address), length);
        held.link.endpoint.flush();
        Ok(Step::Done((held, read)))
    }

    /// Posts reads of a range of a coded group's memory, whose blocks the caller may hold.
    pub(in crate::coordinator) fn fetch(
        &mut self,
        address: u64,
        length: usize,
        is_held: bool,
    ) -> Result<Step<Fetch>, Error> {
        self.check_lease()?;
        self.check_range(address, length as u64, self.layout.direct_bytes..self.layout.address_bytes())?;
        if !is_held && self.is_locked(self.blocks(address, length as u64)) {
            return Ok(Step::Blocked);
        }
        Ok(self.post_fetch(address, length).map_or(Step::Blocked, Step::Done))
    }

    /// Reads the data shares that have the range, where those nodes are among the F+1 that are least behind and fail least;
    /// else whatever shares those F+1 have. All are posted at once, behind the same writes: they are of one version.
    pub(super) fn post_fetch(&self, address: u64, length: usize) -> Option<Fetch> {
        assert!(length > 0, "something is read");
        let shares = self.shares.expect("blocks of a group that is not coded are read from one node");
        let blocks = self.blocks(address, length as u64);
        let start = blocks.start as u64 * self.layout.block_bytes;
        let from = (address - start) as usize;
        let wanted = shares.slots(from, length);
        let live = self.members.iter().filter(|member| member.phase == Phase::Live);
        let mut best: Vec<(usize, &Held)> = live
            .filter_map(|member| {
                let held = member.held.as_ref()?;
                let is_parity = usize::from(held.link.slot >= shares.data);
                Some((member.posted.len() / 8 + member.slow as usize + is_parity, held))
            })
            .collect();
        best.sort_by_key(|(cost, held)| (*cost, held.link.slot));
        let mut best: Vec<&Held> = best.into_iter().take(shares.data).map(|(_, held)| held).collect();
        if best.len() < shares.data {
            return None;
        }
        if wanted.clone().all(|slot| best.iter().any(|held| held.link.slot == slot)) {
            best.retain(|held| wanted.contains(&held.link.slot));
        }
        let (at, bytes) = (self.layout.share_at(start), blocks.len() * self.layout.share_bytes() as usize);
        let reads = best.iter().map(|held| ((*held).clone(), held.read(at, bytes))).collect();
        best.iter().for_each(|held| held.link.endpoint.flush());
        Some(Fetch { reads, wanted, from, length, shares })
    }

    /// Posts a read of the direct area, or of a group that is not coded, to every live node.
    pub(in crate::coordinator) fn read_each(
        &mut self,
        address: u64,
        length: usize,
    ) -> Result<Step<Vec<Completion<BytesMut>>>, Error> {
        self.check_lease()?;
        let plain = if self.layout.is_coded() { self.layout.direct_bytes } else { self.layout.address_bytes() };
        self.check_range(address, length as u64, 0..plain)?;
        if self.is_locked(self.blocks(address, length as u64)) {
            return Ok(Step::Blocked);
        }
        let live = self.members.iter().filter(|member| member.phase == Phase::Live);
        let held: Vec<&Held> = live.filter_map(|member| member.held.as_ref()).collect();
        let reads = held.iter().map(|held| held.read(self.layout.memory_at(address), length)).collect();
        held.iter().for_each(|held| held.link.endpoint.flush());
        Ok(Step::Done(reads))
    }
}
