//! The headers of a primary's sections as it has written them, and the marks that it has posted ([`super::marks`]).

use std::collections::BTreeMap;

use base::rt;
use futures_util::future::FutureExt as _;

use super::fault::{Mutant, mutant};
use super::header::{self, MARK_OFFSET, Mark};
use super::memory::{Memory, MemoryError, Section, completed};

/// The headers of the sections, as this primary has written them.
#[derive(Default)]
pub(super) struct SectionHeaders {
    /// By the first byte of the section.
    pub(super) sections: BTreeMap<u64, ListedSection>,
    pub(super) donors: BTreeMap<u32, DonorMark>,
    /// Drawn at random; 0 until it is needed.
    pub(super) membership: u32,
}

pub(super) struct ListedSection {
    pub(super) id: u32,
    pub(super) donor: u32,
    /// The addresses of its subtables.
    pub(super) catalogue: Box<[u64]>,
}

/// The mark of one memory node.
pub(super) struct DonorMark {
    /// The section that has it.
    pub(super) base: u64,
    /// The membership of the last mark that landed.
    pub(super) landed: u32,
    /// A successor that finds this memory node gives out no number below this one.
    covers: u64,
    pub(super) in_flight: Option<PostedMark>,
    /// Whether the last mark that was posted was not 0.
    pub(super) is_marked: bool,
}

/// A mark that was posted and has not landed.
pub(super) struct PostedMark {
    membership: u32,
    next: u64,
    verb: rma::Completion<()>,
}

impl DonorMark {
    /// The first mark of a memory node. Without a mark its sections are not adopted, so nothing is missing yet.
    fn first(base: u64, membership: u32) -> DonorMark {
        DonorMark { base, landed: membership, covers: u64::MAX, in_flight: None, is_marked: false }
    }

    /// A mark that takes the place of another one.
    fn following(base: u64) -> DonorMark {
        DonorMark { base, landed: 0, covers: 0, in_flight: None, is_marked: false }
    }

    /// Waits until the posted mark has landed, if there is one. False if it did not. When the future is dropped, the mark
    /// stays in flight.
    pub(super) async fn land(&mut self, memory: &dyn Memory) -> bool {
        let Some(PostedMark { membership, next, verb }) = &mut self.in_flight else { return true };
        let (membership, next) = (*membership, *next);
        memory.flush();
        let outcome = verb.await;
        self.in_flight = None;
        match outcome {
            Ok(()) => {
                (self.landed, self.covers) = (membership, next);
                true
            }
            Err(error) => {
                memory.note_failure(self.base, &error);
                false
            }
        }
    }
}

/// How many sections may be leased before the next mark has landed.
const NUMBERS_AHEAD: u64 = 8;

fn draw_membership() -> u32 {
    1 + rt::random_below(Mark::MEMBERSHIP_MASK) as u32
}

/// Writes the header of a section that is about to be used.
pub(super) async fn write_header(memory: &dyn Memory, section: &Section, seed: u64) -> Result<(), MemoryError> {
    if header::header_bytes(section.bytes) == 0 {
        return Ok(());
    }
    let written = completed(memory, memory.write(section.address, &[header::encode(seed, section.address)])).await;
    if let Err(error) = written {
        memory.note_failure(section.address, &error);
        if let Err(error) = memory.release(section.id).await {
            tracing::debug!(%error, section = section.id, "a section without a header is returned in the background");
        }
        return Err(MemoryError::Failed(format!("the header of a section could not be written: {error}")));
    }
    Ok(())
}

impl SectionHeaders {
    /// The membership of the marks to come.
    fn membership(&mut self) -> u32 {
        if self.membership == 0 {
            self.membership = draw_membership();
        }
        self.membership
    }

    /// Enters a section and the entries of its catalogue.
    pub(super) fn enter(&mut self, section: &Section, donor: u32, listed: &[(usize, u64)]) {
        let entries = header::catalogue_entries(section.bytes);
        if entries == 0 {
            return;
        }
        let mut catalogue = vec![0; entries].into_boxed_slice();
        for (entry, subtable) in listed {
            catalogue[*entry] = *subtable;
        }
        self.sections.insert(section.address, ListedSection { id: section.id, donor, catalogue });
        let landed = self.membership();
        self.donors.entry(donor).or_insert(DonorMark::first(section.address, landed));
    }

    /// Makes a section the one that has the mark of its memory node.
    pub(super) fn set_marked(&mut self, base: u64) {
        let Some(section) = self.sections.get(&base) else { return };
        self.donors.insert(section.donor, DonorMark::following(base));
    }

    /// Removes a section that was given up.
    pub(super) fn forget(&mut self, base: u64) {
        if self.sections.remove(&base).is_none() {
            return;
        }
        if !mutant(Mutant::MembershipKept) {
            self.renew_membership();
        }
        self.unmark(base);
    }

    /// Changes the membership of the marks to come.
    pub(super) fn renew_membership(&mut self) {
        self.membership = draw_membership();
    }

    /// Notes that a section has moved to another memory node.
    pub(super) fn relocate(&mut self, base: u64, donor: u32) {
        let Some(ListedSection { id, catalogue, .. }) = self.sections.remove(&base) else { return };
        self.unmark(base);
        self.renew_membership();
        self.sections.insert(base, ListedSection { id, donor, catalogue });
        let landed = self.membership;
        self.donors.entry(donor).or_insert(DonorMark::first(base, landed));
    }

    /// Has another section take over the mark of a memory node, if this one has it.
    fn unmark(&mut self, base: u64) {
        let marked = self.donors.iter().find(|(_, mark)| mark.base == base).map(|(donor, _)| *donor);
        let Some(donor) = marked else { return };
        self.donors.remove(&donor);
        let next = self.sections.iter().find(|(_, other)| other.donor == donor);
        if let Some((base, _)) = next {
            self.donors.insert(donor, DonorMark::following(*base));
        }
    }

    /// Whether the newest membership is recorded at every memory node.
    pub(super) fn are_recorded(&self) -> bool {
        self.donors.values().all(|mark| mark.landed == self.membership)
    }

    /// Whether a successor, whichever memory nodes it finds, gives no other section this number.
    pub(super) fn cover(&self, number: u32) -> bool {
        let is_covered = self.donors.values().all(|mark| mark.covers > u64::from(number));
        // To cover a number is to post marks, which would hide the other mistake.
        is_covered || mutant(Mutant::NumberUncovered) || mutant(Mutant::MarksStay)
    }

    /// Looks for the marks that have landed.
    pub(super) fn collect(&mut self, memory: &dyn Memory) {
        for mark in self.donors.values_mut() {
            let Some(PostedMark { membership, next, verb }) = &mut mark.in_flight else { continue };
            let (membership, next) = (*membership, *next);
            match verb.now_or_never() {
                None => continue,
                Some(Ok(())) => (mark.landed, mark.covers) = (membership, next),
                Some(Err(error)) => memory.note_failure(mark.base, &error),
            }
            mark.in_flight = None;
        }
    }

    /// Posts the marks of a height.
    pub(super) fn post(&mut self, memory: &dyn Memory, height: u64) {
        self.collect(memory);
        let membership = self.membership();
        let ahead = if mutant(Mutant::NumberUncovered) { 0 } else { NUMBERS_AHEAD };
        let next = u64::from(memory.next_number()) + ahead;
        for mark in self.donors.values_mut().filter(|mark| mark.in_flight.is_none()) {
            let is_settled = memory.is_settled(self.sections[&mark.base].id) || mutant(Mutant::MembershipKept);
            let content = (is_settled && height <= Mark::HEIGHT_MAX).then_some(Mark { height, membership });
            let bytes = header::encode_mark(content, next);
            // A mark of 0 is posted again until the memory node has confirmed every return.
            mark.is_marked = content.is_some();
            mark.covers = mark.covers.min(next);
            let verb = memory.write(mark.base + MARK_OFFSET, &[bytes]);
            mark.in_flight = Some(PostedMark { membership, next, verb });
        }
        memory.flush();
        self.collect(memory);
    }
}
