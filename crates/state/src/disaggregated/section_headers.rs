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
    pub(super) in_flight: Option<(u32, rma::Completion<()>)>,
    /// Whether the last mark that was posted was not 0.
    pub(super) is_marked: bool,
}

impl DonorMark {
    /// `landed`: the membership that needs no mark.
    fn new(base: u64, landed: u32) -> DonorMark {
        DonorMark { base, landed, in_flight: None, is_marked: false }
    }
}

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
        self.donors.entry(donor).or_insert(DonorMark::new(section.address, landed));
    }

    /// Makes a section the one that has the mark of its memory node.
    pub(super) fn set_marked(&mut self, base: u64) {
        let Some(section) = self.sections.get(&base) else { return };
        self.donors.insert(section.donor, DonorMark::new(base, 0));
    }

    /// Removes a section that was given up.
    pub(super) fn forget(&mut self, base: u64) {
        let Some(section) = self.sections.remove(&base) else { return };
        if !mutant(Mutant::MembershipKept) {
            self.membership = draw_membership();
        }
        if self.donors.get(&section.donor).is_some_and(|mark| mark.base == base) {
            self.donors.remove(&section.donor);
            let next = self.sections.iter().find(|(_, other)| other.donor == section.donor);
            if let Some((base, _)) = next {
                self.donors.insert(section.donor, DonorMark::new(*base, 0));
            }
        }
    }

    /// Whether the newest membership is recorded at every memory node.
    pub(super) fn are_recorded(&self) -> bool {
        self.donors.values().all(|mark| mark.landed == self.membership)
    }

    /// Looks for the marks that have landed.
    pub(super) fn collect(&mut self, memory: &dyn Memory) {
        for mark in self.donors.values_mut() {
            let Some((membership, verb)) = &mut mark.in_flight else { continue };
            let membership = *membership;
            match verb.now_or_never() {
                None => continue,
                Some(Ok(())) => mark.landed = membership,
                Some(Err(error)) => memory.note_failure(mark.base, &error),
            }
            mark.in_flight = None;
        }
    }

    /// Posts the marks of a height.
    pub(super) fn post(&mut self, memory: &dyn Memory, height: u64) {
        self.collect(memory);
        let membership = self.membership();
        let next = u64::from(memory.next_number());
        for mark in self.donors.values_mut().filter(|mark| mark.in_flight.is_none()) {
            let is_settled = memory.is_settled(self.sections[&mark.base].id) || mutant(Mutant::MembershipKept);
            let content = (is_settled && height <= Mark::HEIGHT_MAX).then_some(Mark { height, membership });
            let bytes = header::encode_mark(content, next);
            // A mark of 0 is posted again until the memory node has confirmed every return.
            mark.is_marked = content.is_some();
            mark.in_flight = Some((membership, memory.write(mark.base + MARK_OFFSET, &[bytes])));
        }
        memory.flush();
        self.collect(memory);
    }
}
