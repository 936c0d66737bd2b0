//! What a store knows of each group of its pages.

use std::collections::BTreeMap;

use pool::SectionId;

use super::frames::FrameNumber;
use super::slots::SlotNumber;
use crate::page::{GROUP_PAGES, PageGroup, PageNumber, PageRange};

/// One group. The sets have a bit for each page; no page is lost and in another set as well.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Group {
    /// There is one if, and only if, pages are valid.
    pub(super) frame: Option<FrameNumber>,
    /// There is one if, and only if, pages are stored.
    pub(super) slot: Option<SlotNumber>,
    /// Pages whose newest version the frame holds.
    pub(super) valid: u16,
    /// Pages whose newest version the slot holds.
    pub(super) stored: u16,
    /// Pages whose newest version is lost.
    pub(super) lost: u16,
}

impl Group {
    /// Pages whose newest version the frame alone holds.
    pub(super) fn dirty(&self) -> u16 {
        self.valid & !self.stored
    }

    /// Pages whose newest version the slot alone holds.
    pub(super) fn absent(&self) -> u16 {
        self.stored & !self.valid
    }
}

/// The groups of a region. A fork of the store begins with a copy.
#[derive(Clone)]
pub(super) struct GroupTable {
    groups: Vec<Group>,
    /// The lost section in which a group's lost pages were.
    lost_in: BTreeMap<PageGroup, SectionId>,
    /// Pages that storage has lost, with its name.
    lost_in_storage: BTreeMap<PageNumber, String>,
}

impl GroupTable {
    pub(super) fn new(pages: u32) -> GroupTable {
        let groups = vec![Group::default(); pages.div_ceil(GROUP_PAGES) as usize];
        GroupTable { groups, lost_in: BTreeMap::new(), lost_in_storage: BTreeMap::new() }
    }

    pub(super) fn get(&self, number: PageGroup) -> Group {
        self.groups[number.0 as usize]
    }

    pub(super) fn get_mut(&mut self, number: PageGroup) -> &mut Group {
        &mut self.groups[number.0 as usize]
    }

    /// The group of this number, if the region is as large.
    pub(super) fn find(&self, number: PageGroup) -> Option<Group> {
        self.groups.get(number.0 as usize).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PageGroup, Group)> {
        (0..).map(PageGroup).zip(self.groups.iter().copied())
    }

    /// Whether memory or storage has the newest version of a page.
    pub(super) fn holds(&self, page: PageNumber) -> bool {
        let group = self.get(PageGroup::of(page));
        (group.valid | group.stored) & 1 << (page.0 % GROUP_PAGES) != 0
    }

    /// Has no page lost any more: a mistake that tests plant.
    pub(super) fn forget_lost(&mut self) {
        self.groups.iter_mut().for_each(|group| group.lost = 0);
    }

    /// Names the section in which a group lost pages.
    pub(super) fn note_lost_in(&mut self, number: PageGroup, id: SectionId) {
        self.lost_in.insert(number, id);
    }

    /// Names the storage that lost pages.
    pub(super) fn note_lost_in_storage(&mut self, pages: impl Iterator<Item = PageNumber>, storage: &str) {
        self.lost_in_storage.extend(pages.map(|page| (page, storage.to_owned())));
    }

    /// Forgets which storage lost pages of a range.
    pub(super) fn forget_lost_in_storage(&mut self, range: PageRange) {
        if !self.lost_in_storage.is_empty() {
            self.lost_in_storage.retain(|page, _| !(range.first.0..range.end()).contains(&page.0));
        }
    }

    /// The section that a group's lost pages were in.
    pub(super) fn lost_in(&self, number: PageGroup) -> Option<SectionId> {
        self.lost_in.get(&number).copied()
    }

    /// The storage that has lost a page.
    pub(super) fn storage_that_lost(&self, page: PageNumber) -> Option<String> {
        self.lost_in_storage.get(&page).cloned()
    }
}
