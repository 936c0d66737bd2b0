//! Frames: the sections of the address space, cut into pieces of a group's size.
//!
//! A frame is counted twice: by the groups that refer to it, one of each store that *shares* it, and by the operations that *use*
//! it. It is free when both counts are zero, unless it is tainted or lost. The clock that chooses the frame to give up passes
//! over all of them.

use base::ErrorKind;
use pool::{AddressSpace, Section, SectionId};

use crate::mutant::{Mutant, mutant};
use crate::page::{GROUP_PAGES, PAGE_BYTES, PageGroup};
use crate::store::StoreError;

/// Bytes of a frame.
pub(super) const FRAME_BYTES: u64 = GROUP_PAGES as u64 * PAGE_BYTES as u64;

/// The number of a frame in its address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FrameNumber(u32);

struct FrameSection {
    section: Section,
    is_lost: bool,
}

/// What is known of one frame.
#[derive(Clone, Copy)]
struct Frame {
    /// The group whose frame it is, in each of the stores that share it.
    group: PageGroup,
    /// Stores whose group refers to it.
    sharers: u32,
    /// Reads and writes in flight, and changes that need the frame to stay.
    users: u32,
    /// It was used since the clock last passed.
    is_used: bool,
    /// A write to it is in flight, or has failed and might take effect later.
    is_tainted: bool,
}

/// All frames of an address space.
pub(super) struct Frames {
    sections: Vec<FrameSection>,
    frames: Vec<Frame>,
    free: Vec<FrameNumber>,
    per_section: u32,
    hand: usize,
}

impl Frames {
    /// None yet. The caller has checked that a section holds at least one.
    pub(super) fn new(section_bytes: u64) -> Frames {
        let per_section = u32::try_from(section_bytes / FRAME_BYTES).expect("a section has at most 2^36 bytes");
        assert!(per_section > 0, "the caller has checked it");
        Frames { sections: Vec::new(), frames: Vec::new(), free: Vec::new(), per_section, hand: 0 }
    }

    /// Adds the frames of a section.
    pub(super) fn add(&mut self, section: Section) {
        let first = self.frames.len() as u32;
        self.sections.push(FrameSection { section, is_lost: false });
        let frame = Frame { group: PageGroup(0), sharers: 0, users: 0, is_used: false, is_tainted: false };
        self.frames.resize(self.frames.len() + self.per_section as usize, frame);
        // The first one is taken first, so that groups that are written one after the other lie side by side.
        self.free.extend((first..first + self.per_section).rev().map(FrameNumber));
    }

    /// A free frame. It has one user from now on.
    pub(super) fn take(&mut self) -> Option<FrameNumber> {
        while let Some(frame) = self.free.pop() {
            if !self.is_lost(frame) {
                self.begin_use(frame);
                return Some(frame);
            }
        }
        None
    }

    pub(super) fn begin_use(&mut self, frame: FrameNumber) {
        self.get_mut(frame).users += 1;
    }

    pub(super) fn end_use(&mut self, frame: FrameNumber) {
        self.get_mut(frame).users -= 1;
        self.free_if_unused(frame);
    }

    /// Counts one more store whose group of this number refers to the frame.
    pub(super) fn share(&mut self, frame: FrameNumber, group: PageGroup) {
        let state = self.get_mut(frame);
        state.group = group;
        state.sharers += 1;
    }

    /// Counts one store less.
    pub(super) fn release(&mut self, frame: FrameNumber) {
        let state = self.get_mut(frame);
        state.sharers = if mutant(Mutant::FreeSharedFrame) { 0 } else { state.sharers - 1 };
        self.free_if_unused(frame);
    }

    fn free_if_unused(&mut self, frame: FrameNumber) {
        let is_lost = self.is_lost(frame);
        let state = self.get_mut(frame);
        if state.sharers == 0 && state.users == 0 && !state.is_tainted && !is_lost {
            state.is_used = false;
            self.free.push(frame);
        }
    }

    /// Whether the one store that refers to the frame may write to it.
    pub(super) fn may_be_written(&self, frame: FrameNumber) -> bool {
        let state = self.get(frame);
        !state.is_tainted && (state.sharers == 1 || mutant(Mutant::WriteSharedFrame))
    }

    /// Notes that a write to the frame begins.
    pub(super) fn taint(&mut self, frame: FrameNumber) {
        self.get_mut(frame).is_tainted = true;
    }

    /// Notes that the write to the frame was acknowledged.
    pub(super) fn clear_taint(&mut self, frame: FrameNumber) {
        self.get_mut(frame).is_tainted = false;
    }

    /// Has the clock pass the frame once.
    pub(super) fn mark_used(&mut self, frame: FrameNumber) {
        self.get_mut(frame).is_used = true;
    }

    /// The next frame to be given up, if one can be: it has one user from now on.
    pub(super) fn next_victim(&mut self) -> Option<FrameNumber> {
        for _ in 0..2 * self.frames.len() {
            let frame = FrameNumber(self.hand as u32);
            self.hand = (self.hand + 1) % self.frames.len();
            let state = self.get_mut(frame);
            if state.sharers > 0 && state.users == 0 && !std::mem::take(&mut state.is_used) {
                self.begin_use(frame);
                return Some(frame);
            }
        }
        None
    }

    /// The number of the groups that refer to a frame.
    pub(super) fn group(&self, frame: FrameNumber) -> PageGroup {
        self.get(frame).group
    }

    fn get(&self, frame: FrameNumber) -> &Frame {
        &self.frames[frame.0 as usize]
    }

    fn get_mut(&mut self, frame: FrameNumber) -> &mut Frame {
        &mut self.frames[frame.0 as usize]
    }

    fn section_of(&self, frame: FrameNumber) -> &FrameSection {
        &self.sections[(frame.0 / self.per_section) as usize]
    }

    /// The first address of a frame in the space.
    pub(super) fn address(&self, frame: FrameNumber) -> u64 {
        self.section_of(frame).section.address + u64::from(frame.0 % self.per_section) * FRAME_BYTES
    }

    pub(super) fn section(&self, frame: FrameNumber) -> SectionId {
        self.section_of(frame).section.id
    }

    pub(super) fn is_lost(&self, frame: FrameNumber) -> bool {
        self.section_of(frame).is_lost
    }

    /// Notes that a section is lost. Returns those of its frames to which groups refer; none if the loss was known.
    pub(super) fn lose(&mut self, id: SectionId) -> Vec<FrameNumber> {
        let Some(index) = self.sections.iter().position(|one| one.section.id == id && !one.is_lost) else {
            return Vec::new();
        };
        self.sections[index].is_lost = true;
        let first = index as u32 * self.per_section;
        let frames = (first..first + self.per_section).map(FrameNumber);
        frames.filter(|frame| self.get(*frame).sharers > 0).collect()
    }

    /// Frames that groups refer to, or that operations use.
    pub(super) fn in_use(&self) -> usize {
        self.frames.iter().filter(|frame| frame.sharers > 0 || frame.users > 0).count()
    }

    /// What is wrong, if the groups refer to the frames as `references` says, in any order.
    pub(super) fn check(&self, references: &[(FrameNumber, PageGroup)]) -> Result<(), String> {
        let (mut sharers, mut times_free) = (vec![0; self.frames.len()], vec![0; self.frames.len()]);
        for (frame, group) in references {
            sharers[frame.0 as usize] += 1;
            if self.group(*frame) != *group {
                return Err(format!("groups {} and {} share {frame:?}", group.0, self.group(*frame).0));
            }
        }
        self.free.iter().for_each(|frame| times_free[frame.0 as usize] += 1);
        for (index, state) in self.frames.iter().enumerate() {
            let frame = FrameNumber(index as u32);
            if state.sharers != sharers[index] {
                return Err(format!("{frame:?} counts {} sharers and has {}", state.sharers, sharers[index]));
            }
            let is_unused = state.sharers == 0 && state.users == 0 && !state.is_tainted;
            // A lost frame may still be among the free ones.
            if !self.is_lost(frame) && times_free[index] != u32::from(is_unused) {
                return Err(format!("{frame:?} is free {} times", times_free[index]));
            }
        }
        Ok(())
    }
}

/// What a failed request for a section means for a write.
pub(super) fn grow_error(error: &pool::Error) -> StoreError {
    match error.kind() {
        ErrorKind::Retry => StoreError::Full(error.to_string()),
        _ => StoreError::Unavailable(error.to_string()),
    }
}

/// Whether a verb failed because its section is gone for good.
pub(super) fn is_lost(error: &rma::Error) -> bool {
    matches!(error.kind(), ErrorKind::Closed | ErrorKind::Fenced | ErrorKind::Rejected)
}

/// The donor of a section, for messages.
pub(super) fn donor(space: &AddressSpace, id: SectionId) -> String {
    space.donor_of(id).map_or_else(|| "a memory node".to_owned(), |address| format!("the memory node {address}"))
}
