//! Draining: when the budget of remote memory is lowered during operation, sections go back to the pool one by one.
//!
//! Eviction works towards the same budget, so it has already freed enough memory when draining starts. Steps for a
//! section:
//! 1. **Choose** the section with the fewest live bytes, and close it: nothing more is allocated there.
//! 2. **Move** its subtables to other sections, [`BATCH_SUBTABLES`] each time the writer's lock is held: write a copy
//!    under another incarnation, point the directory to the copy, and retire the old subtable. A reader that has learnt
//!    the address of the old subtable may use it until its lease ends. The slots there are at least as new as the start
//!    of that read, so the read is correct at the reader's height.
//! 3. **Persist**: storage materialises everything applied so far, so that a later read of a version in the section
//!    finds it in storage without waiting. The task holds no lock meanwhile.
//! 4. **Abandon** the section, as if it were lost ([`StateCore::give_up`]), and return it to the pool. Reads find
//!    nothing in it any more; a later read of one of its records finds the record in storage, and a fill brings it into
//!    another section.
//!
//! If there is no space for a subtable, its entries are lost with the section; the sweep finds the records that only
//! these entries led to. If storage fails, the section stays closed, and the next drain chooses it again. If the budget
//! has been raised meanwhile and allows the section, it is opened again instead.

pub(super) use std::sync::atomic::Ordering;

use base::{BytesMut, Map, rt};

use super::fault::{Mutant, hold_up, mutant, pause};
use super::index::{BucketGroup, GROUP_BYTES, GROUPS, SUBTABLE_BYTES, Subtable};
use super::memory::completed;
use super::pointer::Pointer;
use super::{StateCore, StateWriter};
use crate::{Error, events};

/// Subtables that are moved under one hold of the writer's lock.
const BATCH_SUBTABLES: usize = 16;

impl StateCore {
    /// Bytes of sections that the budget allows.
    pub(super) fn allowed(&self) -> u64 {
        let budget = self.memory.budget_bytes();
        budget - budget % self.memory.section_bytes()
    }

    /// Returns one section to the pool, if more are leased than the budget allows; true if so.
    pub(super) async fn drain(&self) -> Result<bool, Error> {
        let base = {
            let mut writer = self.writer.lock().await;
            if writer.space.has_unsurveyed() {
                return Ok(false);
            }
            if writer.space.accounts().leased <= self.allowed() {
                writer.space.open_all();
                return Ok(false);
            }
            // A simulation moves the index more often.
            let fullest = rt::fault_point("state.drain.choose");
            let Some(base) = writer.space.emptiest(fullest) else { return Ok(false) };
            writer.space.close(base);
            base
        };
        self.empty(base).await?;
        Ok(true)
    }

    /// Steps 2 to 4, for a section that is closed.
    pub(super) async fn empty(&self, base: u64) -> Result<(), Error> {
        loop {
            let early = self.read_early(base).await;
            hold_up("state.drain.move").await;
            let mut writer = self.writer.lock().await;
            if self.is_fenced() {
                return Err(Error::Fenced);
            }
            if !self.move_subtables(&mut writer, base, &early).await {
                break;
            }
        }
        hold_up("state.drain.persist").await;
        self.materialize(self.height.load(Ordering::Acquire)).await?;
        hold_up("state.drain.give_up").await;
        let mut writer = self.writer.lock().await;
        self.give_up(&mut writer, base);
        writer.usage.sections_drained += 1;
        events::SectionsDrained.add(1);
        Ok(())
    }

    /// Step 2: moves some subtables; false when none is left, or one could not be moved.
    async fn move_subtables(&self, writer: &mut StateWriter, base: u64, early: &Map<u64, BytesMut>) -> bool {
        let some = self.some_within(base);
        for subtable in &some {
            if !self.move_subtable(writer, *subtable, early.get(&subtable.address)).await {
                return false;
            }
        }
        !some.is_empty()
    }

    fn some_within(&self, base: u64) -> Vec<Subtable> {
        let within = self.directory.subtables().filter(|subtable| self.base(subtable.address) == base);
        within.take(BATCH_SUBTABLES).collect()
    }

    async fn read_subtable(&self, address: u64) -> Option<BytesMut> {
        let verb = self.memory.read(address, SUBTABLE_BYTES, BytesMut::with_capacity(SUBTABLE_BYTES));
        completed(&*self.memory, verb).await.ok()
    }

    /// Empty, except under the mutant: then the subtables, by address, as read before the writer's lock was taken.
    async fn read_early(&self, base: u64) -> Map<u64, BytesMut> {
        let mut early = Map::default();
        if mutant(Mutant::MovedStale) {
            for subtable in self.some_within(base) {
                early.extend(self.read_subtable(subtable.address).await.map(|bytes| (subtable.address, bytes)));
            }
            pause().await;
        }
        early
    }

    async fn move_subtable(&self, writer: &mut StateWriter, old: Subtable, early: Option<&BytesMut>) -> bool {
        let read = match early {
            Some(early) => Some(early.clone()),
            None => self.read_subtable(old.address).await,
        };
        let groups: Option<Vec<BucketGroup>> =
            read.and_then(|bytes| bytes.chunks(GROUP_BYTES).map(|bytes| BucketGroup::new(bytes, &old)).collect());
        let Some(mut groups) = groups.filter(|groups| groups.len() == GROUPS) else {
            self.give_up(writer, old.address);
            return false;
        };
        let Some(new) = self.new_subtable(writer, old.depth, old.suffix).await else { return false };
        let mut bytes = BytesMut::with_capacity(SUBTABLE_BYTES);
        for group in &mut groups {
            group.set_header(&new);
            group.encode(&mut bytes);
        }
        if self.write_new(writer, new.address, bytes.freeze()).await.is_none() {
            return false;
        }
        self.list_subtable(writer, new.address).await;
        if !mutant(Mutant::MovedStays) && !self.unlist_subtable(writer, old.address).await {
            return false;
        }
        hold_up("state.drain.directory").await;
        self.directory.set(new);
        self.log_change(|changes| changes.subtable(&new));
        writer.retire(Pointer::new(old.address, SUBTABLE_BYTES, old.incarnation));
        events::SubtablesMoved.add(1);
        true
    }
}
