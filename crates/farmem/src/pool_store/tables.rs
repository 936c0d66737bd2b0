//! The groups of all stores, and the frames and slots to which they refer: all that one lock protects.
//!
//! Groups change in [`Tables::change`] alone, which counts their references to frames and slots. Groups of several stores that
//! refer to one frame, or one slot, have the same number, because forks alone make a second reference.

use std::collections::BTreeMap;

use pool::SectionId;

use super::frames::{FRAME_BYTES, FrameNumber, Frames};
use super::groups::{Group, GroupTable};
use super::slots::{SlotNumber, Slots};
use crate::mutant::{Mutant, mutant};
use crate::page::{PageGroup, PageRange};

/// The memory and storage that a store uses, in whole groups of pages. What several stores share counts in each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StoreUsage {
    /// Bytes of the memory pool.
    pub pool_bytes: u64,
    /// Bytes of storage.
    pub storage_bytes: u64,
}

/// A store among those that share an address space. Numbers are not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct StoreId(u64);

/// A group of some store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GroupOf {
    pub(super) store: StoreId,
    pub(super) number: PageGroup,
}

/// See [the module](self).
pub(super) struct Tables {
    stores: BTreeMap<StoreId, GroupTable>,
    next: StoreId,
    pub(super) frames: Frames,
    pub(super) slots: Slots,
}

impl Tables {
    pub(super) fn new(frames: Frames) -> Tables {
        Tables { stores: BTreeMap::new(), next: StoreId(0), frames, slots: Slots::default() }
    }

    /// Adds a store.
    pub(super) fn add(&mut self, table: GroupTable) -> StoreId {
        let id = self.next;
        self.next = StoreId(id.0 + 1);
        self.stores.insert(id, table);
        id
    }

    /// Adds a store whose groups refer to the same frames and slots as those of another.
    pub(super) fn fork(&mut self, id: StoreId) -> StoreId {
        let mut table = self.of(id).clone();
        for (number, group) in table.iter() {
            group.frame.into_iter().for_each(|frame| self.frames.share(frame, number));
            group.slot.into_iter().for_each(|slot| self.slots.share(slot));
        }
        if mutant(Mutant::ForkForgetsLost) {
            table.forget_lost();
        }
        self.add(table)
    }

    /// Removes a store. Frames and slots to which no other store refers become free.
    pub(super) fn remove(&mut self, id: StoreId) {
        let table = self.stores.remove(&id).expect("a store is removed once");
        for (_, group) in table.iter() {
            group.frame.into_iter().for_each(|frame| self.frames.release(frame));
            group.slot.into_iter().for_each(|slot| self.slots.release(slot));
        }
    }

    /// The groups of a store that has not been dropped.
    pub(super) fn of(&self, id: StoreId) -> &GroupTable {
        self.stores.get(&id).expect("it is there until it is dropped")
    }

    fn of_mut(&mut self, id: StoreId) -> &mut GroupTable {
        self.stores.get_mut(&id).expect("it is there until it is dropped")
    }

    /// The group, unless its store was dropped meanwhile.
    fn find(&self, of: GroupOf) -> Option<Group> {
        self.stores.get(&of.store).and_then(|table| table.find(of.number))
    }

    /// Changes a group. It keeps a frame only for valid pages, and a slot only for stored ones.
    pub(super) fn change(&mut self, of: GroupOf, change: impl FnOnce(&mut Group)) {
        let group = self.of_mut(of.store).get_mut(of.number);
        let before = *group;
        change(group);
        group.frame = group.frame.filter(|_| group.valid != 0);
        group.slot = group.slot.filter(|_| group.stored != 0);
        let after = *group;
        if before.frame != after.frame {
            after.frame.into_iter().for_each(|frame| self.frames.share(frame, of.number));
            before.frame.into_iter().for_each(|frame| self.frames.release(frame));
        }
        if before.slot != after.slot {
            after.slot.into_iter().for_each(|slot| self.slots.share(slot));
            before.slot.into_iter().for_each(|slot| self.slots.release(slot));
        }
    }

    /// Forgets pages: there is no newest version of them.
    pub(super) fn forget(&mut self, id: StoreId, range: PageRange) {
        for (number, part) in range.by_group() {
            let others = !part.group_bits();
            self.change(GroupOf { store: id, number }, |group| {
                group.valid &= others;
                group.stored &= others;
                group.lost &= others;
            });
        }
        self.of_mut(id).forget_lost_in_storage(range);
    }

    /// The groups of all stores that match.
    fn groups(&self, number: PageGroup, matches: impl Fn(Group) -> bool) -> impl Iterator<Item = (GroupOf, Group)> {
        let found = self.stores.iter().filter_map(move |(id, table)| Some((*id, table.find(number)?)));
        let found = found.filter(move |(_, group)| matches(*group));
        found.map(move |(store, group)| (GroupOf { store, number }, group))
    }

    /// Changes the groups of all stores that match.
    fn change_groups(&mut self, number: PageGroup, matches: impl Fn(Group) -> bool, change: impl Fn(&mut Group)) {
        let found: Vec<GroupOf> = self.groups(number, matches).map(|(of, _)| of).collect();
        found.into_iter().for_each(|of| self.change(of, &change));
    }

    /// A group with pages that a frame alone holds. If there is none, no group refers to the frame any more.
    pub(super) fn dirty_or_detach(&mut self, frame: FrameNumber) -> Option<(GroupOf, Group)> {
        let number = self.frames.group(frame);
        let has_frame = |group: Group| group.frame == Some(frame);
        let is_dirty = |group: Group| has_frame(group) && group.dirty() != 0 && !mutant(Mutant::DropDirtyFrame);
        let dirty = self.groups(number, is_dirty).next();
        if dirty.is_none() {
            self.change_groups(number, has_frame, |group| group.valid = 0);
        }
        dirty
    }

    /// Whether a group, in any store, has its newest version of some of these pages in a slot.
    pub(super) fn is_slot_needed(&self, slot: SlotNumber, number: PageGroup, pages: u16) -> bool {
        let needs = |group: Group| group.slot == Some(slot) && group.stored & pages != 0;
        !mutant(Mutant::WriteSharedSlot) && self.groups(number, needs).next().is_some()
    }

    /// Notes that a slot holds all pages of a group, those that are valid in this frame included. The same holds for each
    /// group that is equal to it, in whichever store. What was discarded, or lost, meanwhile stays so.
    pub(super) fn move_to_slot(&mut self, of: GroupOf, frame: FrameNumber, slot: SlotNumber) {
        let Some(now) = self.find(of).filter(|group| group.frame == Some(frame)) else { return };
        self.change_groups(
            of.number,
            |group| group == now,
            |group| {
                group.stored |= group.valid;
                group.slot = Some(slot);
            },
        );
    }

    /// Notes the loss of a section: of the pages in it, the dirty ones are lost.
    pub(super) fn lose(&mut self, id: SectionId) {
        for frame in self.frames.lose(id) {
            let number = self.frames.group(frame);
            let found: Vec<_> = self.groups(number, |group| group.frame == Some(frame)).collect();
            for (of, group) in found {
                if group.dirty() != 0 {
                    self.of_mut(of.store).note_lost_in(number, id);
                }
                self.change(of, |group| {
                    group.lost |= group.dirty();
                    group.valid = 0;
                });
            }
        }
    }

    /// Notes that storage has lost pages of a group, which are nowhere else, unless the group needs them no longer.
    pub(super) fn lose_stored(&mut self, of: GroupOf, pages: u16, storage: &str) {
        let Some(lost) = self.find(of).map(|group| group.absent() & pages) else { return };
        self.of_mut(of.store).note_lost_in_storage(of.number.pages(lost), storage);
        self.change(of, |group| {
            group.stored &= !lost;
            group.lost |= lost;
        });
    }

    /// The memory and storage that all stores together use, or what is wrong with the counts.
    pub(super) fn check(&self) -> Result<StoreUsage, String> {
        let (mut frames, mut slots) = (Vec::new(), Vec::new());
        for (id, table) in &self.stores {
            for (number, group) in table.iter() {
                let is_good = group.frame.is_some() == (group.valid != 0)
                    && group.slot.is_some() == (group.stored != 0)
                    && (group.valid | group.stored) & group.lost == 0;
                if !is_good {
                    return Err(format!("group {} of {id:?} contradicts itself: {group:?}", number.0));
                }
                frames.extend(group.frame.map(|frame| (frame, number)));
                slots.extend(group.slot);
            }
        }
        self.frames.check(&frames)?;
        self.slots.check(&slots)?;
        let bytes = |count: usize| count as u64 * FRAME_BYTES;
        Ok(StoreUsage { pool_bytes: bytes(self.frames.in_use()), storage_bytes: bytes(self.slots.in_use()) })
    }
}
