//! What the store knows of each group of pages, and the clock that decides which group gives up its frame.

use std::collections::BTreeMap;

use pool::SectionId;

use super::frames::{FrameNumber, Frames};
use crate::page::{PageGroup, PageNumber, PageRange};

/// One group. The sets have a bit for each page.
#[derive(Clone, Copy, Default)]
pub(super) struct Group {
    pub(super) frame: Option<FrameNumber>,
    /// Pages that the frame holds.
    pub(super) valid: u16,
    /// Valid pages that storage does not have in this version.
    pub(super) dirty: u16,
    /// Pages of which storage has a version; the newest one, unless the page is dirty or lost.
    pub(super) stored: u16,
    /// Pages whose newest version is lost.
    pub(super) lost: u16,
    /// Reads and writes of the frame in flight, and writes that wait for others.
    pub(super) users: u16,
    pub(super) is_used: bool,
    /// The frame is being given up: new reads wait.
    pub(super) is_leaving: bool,
    /// A write to the frame is in flight, or has failed and might take effect later.
    pub(super) is_tainted: bool,
    /// The group is one of [`GroupTable::emptied`].
    is_emptied: bool,
}

/// The groups of a region and the frames of its store.
pub(super) struct GroupTable {
    groups: Vec<Group>,
    pub(super) frames: Frames,
    hand: u32,
    /// Lost sections, each with the groups that lost pages, in order.
    lost_in: Vec<(SectionId, Vec<PageGroup>)>,
    /// Pages that storage has lost, with its name.
    lost_in_storage: BTreeMap<PageNumber, String>,
    /// Groups that had no valid page in their frame when the last one was forgotten.
    emptied: Vec<PageGroup>,
}

impl GroupTable {
    pub(super) fn new(groups: u32, frames: Frames) -> GroupTable {
        GroupTable {
            groups: vec![Group::default(); groups as usize],
            frames,
            hand: 0,
            lost_in: Vec::new(),
            lost_in_storage: BTreeMap::new(),
            emptied: Vec::new(),
        }
    }

    pub(super) fn get(&self, group: PageGroup) -> &Group {
        &self.groups[group.0 as usize]
    }

    pub(super) fn get_mut(&mut self, group: PageGroup) -> &mut Group {
        &mut self.groups[group.0 as usize]
    }

    /// Whether memory or storage has the newest version of a page.
    pub(super) fn holds(&self, page: PageNumber) -> bool {
        let group = self.get(PageGroup::of(page));
        let bit = 1 << (page.0 % crate::page::GROUP_PAGES);
        (group.valid | group.stored) & !group.lost & bit != 0
    }

    /// Forgets pages: there is no newest version of them.
    pub(super) fn forget(&mut self, range: PageRange) {
        for (number, part) in range.by_group() {
            let (group, bits) = (self.get_mut(number), !part.group_bits());
            group.valid &= bits;
            group.dirty &= bits;
            group.stored &= bits;
            group.lost &= bits;
            if group.frame.is_some() && group.valid == 0 && !std::mem::replace(&mut group.is_emptied, true) {
                self.emptied.push(number);
            }
        }
        if !self.lost_in_storage.is_empty() {
            self.lost_in_storage.retain(|page, _| !(range.first.0..range.end()).contains(&page.0));
        }
    }

    /// A frame without valid pages, taken away from the group that has it. Only while nothing else changes.
    pub(super) fn reclaim_frame(&mut self) -> Option<FrameNumber> {
        let mut kept = Vec::new();
        let mut found = None;
        while found.is_none()
            && let Some(number) = self.emptied.pop()
        {
            let group = self.get_mut(number);
            if group.users > 0 || group.is_leaving {
                kept.push(number);
                continue;
            }
            group.is_emptied = false;
            if group.frame.is_some() && group.valid == 0 {
                self.give_up_frame(number);
                found = self.frames.take();
            }
        }
        self.emptied.append(&mut kept);
        found
    }

    /// Notes that storage has lost pages, which are nowhere else.
    pub(super) fn lose_stored(&mut self, range: PageRange, storage: &str) {
        let group = self.get_mut(PageGroup::of(range.first));
        group.stored &= !range.group_bits();
        group.lost |= range.group_bits();
        self.lost_in_storage.extend(range.iter().map(|page| (page, storage.to_owned())));
    }

    /// The storage that has lost a page.
    pub(super) fn storage_that_lost(&self, page: PageNumber) -> Option<String> {
        self.lost_in_storage.get(&page).cloned()
    }

    /// The next group that gives up its frame, if one can. It is leaving from now on.
    pub(super) fn next_victim(&mut self) -> Option<PageGroup> {
        let count = self.groups.len() as u32;
        for _ in 0..2 * u64::from(count) {
            let number = PageGroup(self.hand);
            self.hand = (self.hand + 1) % count;
            let group = self.get_mut(number);
            let may_leave = group.frame.is_some() && group.users == 0 && !group.is_leaving;
            if may_leave && !std::mem::take(&mut group.is_used) {
                group.is_leaving = true;
                return Some(number);
            }
        }
        None
    }

    /// Takes the frame away from a group; it is free if it can be written again.
    pub(super) fn give_up_frame(&mut self, number: PageGroup) {
        let group = self.get_mut(number);
        let (frame, is_tainted) = (group.frame.take(), group.is_tainted);
        (group.valid, group.dirty, group.is_leaving, group.is_tainted) = (0, 0, false, false);
        if let Some(frame) = frame
            && !is_tainted
        {
            self.frames.give_back(frame);
        }
    }

    /// Notes the loss of a section: of the pages in it, the dirty ones are lost.
    pub(super) fn lose(&mut self, id: SectionId) {
        if !self.frames.lose(id) {
            return;
        }
        let mut lost = Vec::new();
        for number in (0..self.groups.len() as u32).map(PageGroup) {
            let in_section = |frame| self.frames.section(frame) == id;
            if !self.get(number).frame.is_some_and(in_section) {
                continue;
            }
            let group = self.get_mut(number);
            if group.dirty != 0 {
                lost.push(number);
            }
            group.lost |= group.dirty;
            (group.frame, group.valid, group.dirty, group.is_tainted) = (None, 0, 0, false);
        }
        self.lost_in.push((id, lost));
    }

    /// The section that a group's lost pages were in.
    pub(super) fn lost_in(&self, group: PageGroup) -> Option<SectionId> {
        let found = self.lost_in.iter().rev().find(|(_, groups)| groups.binary_search(&group).is_ok());
        found.map(|(id, _)| *id)
    }
}
