//! Slots: the places of groups in storage. Slot *n* is pages 16 *n* to 16 *n* + 15 of the storage tier.

use crate::page::{GROUP_PAGES, PageNumber, PageRange};

/// Slots of a storage tier: as many as page numbers allow.
const SLOTS_MAX: u32 = u32::MAX / GROUP_PAGES;

/// The number of a slot in its storage tier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SlotNumber(u32);

impl SlotNumber {
    /// Where the slot keeps pages of a group.
    pub(super) fn place_of(self, range: PageRange) -> PageRange {
        let first = PageNumber(self.0 * GROUP_PAGES + range.first.0 % GROUP_PAGES);
        PageRange { first, pages: range.pages }
    }
}

/// All slots of a storage tier, with counts of what refers to each: the groups of stores, and changes.
#[derive(Default)]
pub(super) struct Slots {
    references: Vec<u32>,
    free: Vec<SlotNumber>,
}

impl Slots {
    /// A slot that nothing referred to; it has one reference from now on. None if all are in use.
    pub(super) fn take(&mut self) -> Option<SlotNumber> {
        let unused = SlotNumber(self.references.len() as u32);
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if unused.0 < SLOTS_MAX => {
                self.references.push(0);
                unused
            }
            None => return None,
        };
        self.share(slot);
        Some(slot)
    }

    /// Counts one more reference.
    pub(super) fn share(&mut self, slot: SlotNumber) {
        self.references[slot.0 as usize] += 1;
    }

    /// Counts one reference less. Without one the slot is free.
    pub(super) fn release(&mut self, slot: SlotNumber) {
        let references = &mut self.references[slot.0 as usize];
        *references -= 1;
        if *references == 0 {
            self.free.push(slot);
        }
    }

    /// Slots that something refers to.
    pub(super) fn in_use(&self) -> usize {
        self.references.len() - self.free.len()
    }

    /// What is wrong, if the groups refer to these slots, in any order.
    pub(super) fn check(&self, slots: &[SlotNumber]) -> Result<(), String> {
        let mut found = vec![0; self.references.len()];
        slots.iter().for_each(|slot| found[slot.0 as usize] += 1);
        let unused = self.references.iter().filter(|references| **references == 0).count();
        if unused != self.free.len() {
            return Err(format!("{unused} slots are unused and {} are free", self.free.len()));
        }
        // The change in progress may hold one.
        let wrong: u32 = self.references.iter().zip(&found).map(|(counted, found)| counted.abs_diff(*found)).sum();
        if wrong <= 1 { Ok(()) } else { Err(format!("{wrong} references to slots are not counted, or gone")) }
    }
}
