//! Frames: the sections of the address space, cut into pieces of a group's size.

use base::ErrorKind;
use pool::{AddressSpace, Section, SectionId};

use crate::page::{GROUP_PAGES, PAGE_BYTES};
use crate::store::StoreError;

/// Bytes of a frame.
pub(super) const FRAME_BYTES: u64 = GROUP_PAGES as u64 * PAGE_BYTES as u64;

/// The number of a frame in its store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FrameNumber(u32);

struct FrameSection {
    section: Section,
    is_lost: bool,
}

/// All frames of a store.
pub(super) struct Frames {
    sections: Vec<FrameSection>,
    free: Vec<FrameNumber>,
    per_section: u32,
}

impl Frames {
    /// None yet. The caller has checked that a section holds at least one.
    pub(super) fn new(section_bytes: u64) -> Frames {
        let per_section = u32::try_from(section_bytes / FRAME_BYTES).expect("a section has at most 2^36 bytes");
        assert!(per_section > 0, "the caller has checked it");
        Frames { sections: Vec::new(), free: Vec::new(), per_section }
    }

    /// Adds the frames of a section.
    pub(super) fn add(&mut self, section: Section) {
        let first = self.sections.len() as u32 * self.per_section;
        self.sections.push(FrameSection { section, is_lost: false });
        // The first one is taken first, so that groups that are written one after the other lie side by side.
        self.free.extend((first..first + self.per_section).rev().map(FrameNumber));
    }

    /// A free frame.
    pub(super) fn take(&mut self) -> Option<FrameNumber> {
        while let Some(frame) = self.free.pop() {
            if !self.is_lost(frame) {
                return Some(frame);
            }
        }
        None
    }

    /// Takes a frame back that nothing reads or writes.
    pub(super) fn give_back(&mut self, frame: FrameNumber) {
        self.free.push(frame);
    }

    fn of(&self, frame: FrameNumber) -> &FrameSection {
        &self.sections[(frame.0 / self.per_section) as usize]
    }

    /// The first address of a frame in the space.
    pub(super) fn address(&self, frame: FrameNumber) -> u64 {
        self.of(frame).section.address + u64::from(frame.0 % self.per_section) * FRAME_BYTES
    }

    pub(super) fn section(&self, frame: FrameNumber) -> SectionId {
        self.of(frame).section.id
    }

    pub(super) fn is_lost(&self, frame: FrameNumber) -> bool {
        self.of(frame).is_lost
    }

    /// Notes that a section is lost; false if that was known.
    pub(super) fn lose(&mut self, id: SectionId) -> bool {
        let found = self.sections.iter_mut().find(|one| one.section.id == id && !one.is_lost);
        found.map(|one| one.is_lost = true).is_some()
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
