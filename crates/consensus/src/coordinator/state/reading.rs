//! Reading memory: from one live node (step 3 at the head of [`crate::coordinator`]), or from each.

use base::BytesMut;
use rma::Completion;

use super::{Phase, State, Step};
use crate::Error;
use crate::link::Held;

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

    /// Posts a read to every live node.
    pub(in crate::coordinator) fn read_each(
        &mut self,
        address: u64,
        length: usize,
    ) -> Result<Step<Vec<Completion<BytesMut>>>, Error> {
        self.check_lease()?;
        self.check_range(address, length as u64, 0..self.layout.address_bytes())?;
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
