//! What a primary writes into the headers of its sections ([`super::header`]) for its successor.
//!
//! 1. Each section has a header before it is used, and lists the subtables that lie in it: a subtable is listed after it
//!    was written and before the directory leads to it, and no longer listed while it is rewritten or once it was moved.
//! 2. One section of each memory node has a *mark*. After the slots of a block were swapped, the primary posts the marks
//!    of the next height, and does not wait for them. A memory node whose mark is still in flight is left out: a mark that
//!    is too low makes a successor apply more blocks again, and nothing else.
//! 3. When a section is given up, the *membership* changes, and with it every later mark. A memory node that has not confirmed
//!    a section's return gets no mark but 0: a successor might find that section there.
//! 4. Each mark comes with a number that is above those of all sections so far, and some more. A section is used only if
//!    the marks that have landed cover its number ([`StateCore::cover_number`]). Otherwise a successor that finds only some memory nodes might
//!    give the number, and so the addresses, to another section.
//! 5. No buffer is reused until the marks with the newest membership have landed ([`StateCore::are_marks_recorded`]). Otherwise a
//!    successor that adopted an abandoned section might find slots that lead to other records.
//!
//! Invariant: if a mark names a height, every write of the blocks below it is in the index.

use std::sync::atomic::Ordering;

use base::rt;

use super::header;
use super::memory::completed;
use super::{StateCore, StateWriter};

impl StateCore {
    /// Step 2: every block below `height` is in the index.
    pub(super) fn post_marks(&self, writer: &mut StateWriter, height: u64) {
        writer.headers.post(&*self.memory, height);
    }

    /// Whether every memory node has confirmed all returns, so that it has a mark.
    pub(super) fn are_settled(&self, writer: &StateWriter) -> bool {
        writer.headers.donors.values().all(|mark| mark.is_marked)
    }

    /// Whether buffers may be reused (step 5).
    pub(super) fn are_marks_recorded(&self, writer: &mut StateWriter) -> bool {
        writer.headers.collect(&*self.memory);
        writer.headers.are_recorded()
    }

    /// Step 4: has the marks cover the number of a section that is about to be used. False if a memory node does not take its
    /// mark in time.
    pub(super) async fn cover_number(&self, writer: &mut StateWriter, number: u32) -> bool {
        writer.headers.collect(&*self.memory);
        // A mark in flight may have been posted before the number was given.
        for _ in 0..2 {
            if writer.headers.cover(number) {
                return true;
            }
            self.post_marks(writer, self.height.load(Ordering::Acquire));
            for mark in writer.headers.donors.values_mut() {
                let _ = rt::timeout(super::DONOR_TIMEOUT, mark.land(&*self.memory)).await;
            }
        }
        writer.headers.cover(number)
    }

    /// Writes the marks of the height at which an adopted state opens, and waits for them: applying blocks again may put
    /// older versions over newer ones. Memory that does not take its mark is given up.
    pub(super) async fn lower_marks(&self, writer: &mut StateWriter, height: u64) {
        self.post_marks(writer, height);
        for donor in writer.headers.donors.keys().copied().collect::<Vec<_>>() {
            let mark = writer.headers.donors.get_mut(&donor).expect("no donor leaves meanwhile");
            let is_timely = rt::timeout(super::DONOR_TIMEOUT, mark.land(&*self.memory)).await.unwrap_or(false);
            let landed = is_timely && mark.landed == writer.headers.membership;
            if !landed {
                let of_donor = writer.headers.sections.iter().filter(|(_, section)| section.donor == donor);
                for base in of_donor.map(|(base, _)| *base).collect::<Vec<_>>() {
                    self.give_up(writer, base);
                }
            }
        }
    }

    /// Lists a subtable in the catalogue of its section. If that fails, or the catalogue is full, a later primary goes
    /// without the subtable.
    pub(super) async fn list_subtable(&self, writer: &mut StateWriter, address: u64) {
        let base = self.base(address);
        let Some(section) = writer.headers.sections.get_mut(&base) else { return };
        let Some(entry) = section.catalogue.iter().position(|listed| *listed == 0) else { return };
        section.catalogue[entry] = address;
        self.write_entry(writer, base, entry, address).await;
    }

    /// Removes a subtable from the catalogue of its section; false if that failed: then the section was given up.
    pub(super) async fn unlist_subtable(&self, writer: &mut StateWriter, address: u64) -> bool {
        let base = self.base(address);
        let Some(section) = writer.headers.sections.get_mut(&base) else { return true };
        let Some(entry) = section.catalogue.iter().position(|listed| *listed == address) else { return true };
        section.catalogue[entry] = 0;
        let written = self.write_entry(writer, base, entry, 0).await;
        if !written {
            self.give_up(writer, base);
        }
        written
    }

    /// Removes an entry that a dead primary left; false if that failed.
    pub(super) async fn erase_entry(&self, writer: &mut StateWriter, base: u64, entry: usize) -> bool {
        if let Some(section) = writer.headers.sections.get_mut(&base) {
            section.catalogue[entry] = 0;
        }
        !writer.space.holds(base) || self.write_entry(writer, base, entry, 0).await
    }

    async fn write_entry(&self, writer: &StateWriter, base: u64, entry: usize, subtable: u64) -> bool {
        if !writer.space.holds(base) {
            return false;
        }
        let bytes = base::Bytes::copy_from_slice(&subtable.to_le_bytes());
        let address = header::entry_address(base, entry);
        match completed(&*self.memory, self.memory.write(address, &[bytes])).await {
            Ok(()) => true,
            Err(error) => {
                self.memory.note_failure(address, &error);
                false
            }
        }
    }
}
