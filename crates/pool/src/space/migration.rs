//! Migration: a live section moves to another donor while its owner goes on reading and writing.
//!
//! The bytes are copied before the section's entry is re-pointed (*pre-copy*):
//! 1. [`AddressSpace::migrate`] requests memory for a *copy* from another donor, under the section's own number. From
//!    then on the space notes which pages of the section are written. At first all pages have to be copied.
//! 2. The owner calls [`SectionMigration::copy_some`] until few pages are left. During a call, no write to the section
//!    may be in flight. Between calls there may be any.
//! 3. [`SectionMigration::grant_read`] gets read grants of the copy for followers.
//! 4. [`SectionMigration::complete`] copies the pages that are left, and writes the *head* of the copy.
//!    [`SectionMigration::finish`] re-points the entry: verbs that are posted from now on go to the copy. The owner then
//!    overwrites the head at the old location with zeros ([`OldLocation::erase_head`]).
//! 5. Verbs that were posted before may still read at the old location, which does not change any more. When there
//!    can be none, the owner returns it ([`OldLocation::release`]).
//!
//! The head is the first bytes of the section, as many as the owner says. The owner's next epoch finds both locations if
//! this process dies meanwhile, and adopts one of them ([`AddressSpace::adopt_headed`]). From the head it knows which one is
//! complete: the head of the copy is zero before step 4, and that of the old location is zero after it.
//!
//! Invariants:
//! * When the entry is re-pointed, the copy has the bytes of the section.
//! * A migration that does not finish leaves the section where it is, and returns the copy.
//! * At most one section migrates at a time. Its copy is not part of the space's budget.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::ErrorKind;
use base::bytes::{Bytes, BytesMut};
use rma::{Capability, Rights};

use super::config::RESPONSE_TIMEOUT;
use super::copied_pages::CopiedPages;
use super::link::DonorLink;
use super::space_core::SpaceCore;
use super::table::{SectionEntry, SectionLocation};
use super::{AddressSpace, ReadGrant, SectionId};
use crate::Error;
use crate::events::SectionsMigrated;
use crate::lock::lock;
use crate::message::{DonorSection, Request, Response};

/// The most bytes in flight when a migration finishes.
const FINISH_BYTES: u64 = 1 << 20;

/// A section on its way to another donor. Dropping it ends the migration, and returns the copy in the background.
pub struct SectionMigration {
    space: AddressSpace,
    id: SectionId,
    base: u64,
    /// `None` once the entry leads to the copy.
    copy: Option<SectionLocation>,
    head_bytes: usize,
}

/// The location that a section had before it migrated. Dropping it returns it in the background.
pub struct OldLocation {
    core: Arc<SpaceCore>,
    link: Arc<DonorLink>,
    capability: Capability,
    head_bytes: usize,
    /// `None` once it is being returned.
    section: Option<DonorSection>,
}

impl AddressSpace {
    /// Begins to migrate a section to the donor that has the most free memory, of those that are not being vacated and do
    /// not have the section. `head_bytes`: the length of the head that [`SectionMigration::complete`] will be given.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if every such donor says that it has no memory; [`Error::NoDonor`] if there is none, or one did
    /// not answer: it may have memory later. [`Error::UnknownSection`]; [`Error::Invalid`] while another section migrates.
    pub async fn migrate(&self, id: SectionId, head_bytes: u64) -> Result<SectionMigration, Error> {
        let shared = &self.shared;
        shared.check_open()?;
        let section = shared.table.section(id).ok_or(Error::UnknownSection(id.0))?;
        let entry = shared.live_entry(id)?;
        let (mut full, mut silent) = (Vec::new(), Vec::new());
        let here = Arc::clone(&shared.table.location(entry).link);
        let others = shared.links_by_free_memory().await;
        for link in others.into_iter().filter(|link| link.address != here.address && link.is_answering()) {
            match shared.request_copy(&link, id).await {
                Ok(location) => {
                    let migration = SectionMigration {
                        space: self.clone(),
                        id,
                        base: section.address,
                        copy: Some(location),
                        head_bytes: head_bytes as usize,
                    };
                    let pages = CopiedPages::new(id, section.address, section.bytes, head_bytes);
                    {
                        let mut copied = lock(&shared.copied);
                        if copied.is_some() {
                            return Err(Error::Invalid("another section of this address space migrates".to_owned()));
                        }
                        *copied = Some(pages);
                    }
                    entry.is_copied.store(true, Ordering::Release);
                    return Ok(migration);
                }
                Err(error) if error.kind() == ErrorKind::Retry => full.push(error.to_string()),
                Err(error) => silent.push(error.to_string()),
            }
            shared.check_open()?;
        }
        match (full.is_empty(), silent.is_empty()) {
            (false, true) => Err(Error::Exhausted(full.join("; "))),
            (true, true) => Err(Error::NoDonor("no other memory node answers".to_owned())),
            (_, false) => Err(Error::NoDonor(silent.join("; "))),
        }
    }
}

impl SpaceCore {
    fn live_entry(&self, id: SectionId) -> Result<&SectionEntry, Error> {
        self.table.get(id).filter(|entry| entry.is_live()).ok_or(Error::UnknownSection(id.0))
    }

    /// Notes a write to a section that migrates.
    #[cold]
    pub(super) fn note_write(&self, address: u64, length: u64) {
        if base::rt::fault_point("pool.migrate.mutant.unnoted") {
            return;
        }
        if let Some(copied) = &mut *lock(&self.copied)
            && let Some(offset) = address.checked_sub(copied.base).filter(|offset| *offset < self.section_bytes)
        {
            copied.note(offset, length);
        }
    }

    /// Requests memory for a copy of a section.
    async fn request_copy(&self, link: &Arc<DonorLink>, id: SectionId) -> Result<SectionLocation, Error> {
        let mut turn = link.turn(RESPONSE_TIMEOUT).await?;
        let request = Request::Grant { bytes: self.section_bytes, number: id.0 };
        match turn.ask(request, RESPONSE_TIMEOUT).await? {
            // No await between the answer and the entry: a sweep, which waits for the turn, finds the copy known.
            Response::Granted { section, bytes, capability, .. } => {
                if bytes != self.section_bytes || capability.rights != Rights::ALL || link.knows(section) {
                    link.ended.cancel();
                    return Err(Error::Malformed("a grant does not fit the request, or repeats a section"));
                }
                match link.add_copy(section) {
                    true => Ok(SectionLocation { capability, link: Arc::clone(link), section }),
                    false => Err(lost(link)),
                }
            }
            reply => Err(self.unexpected(link, &reply)),
        }
    }

    /// Returns a location in the background.
    fn abandon(&self, link: &DonorLink, section: DonorSection) {
        link.note_returning(section);
        link.remove(section);
        link.leave_unswept();
    }
}

fn lost(link: &DonorLink) -> Error {
    Error::NoAnswer { address: link.address.clone(), reason: "the connection was lost".to_owned() }
}

impl SectionMigration {
    fn copy(&self) -> &SectionLocation {
        self.copy.as_ref().expect("it is there until the migration finishes")
    }

    /// The donor to which the section moves.
    pub fn donor(&self) -> &str {
        &self.copy().link.address
    }

    /// Copies at most `bytes_max` bytes of the pages that have to be copied, but one page at least; returns the bytes
    /// that are left. No write to the section may be in flight.
    ///
    /// # Errors
    /// If a verb fails. The migration has then failed.
    pub async fn copy_some(&self, bytes_max: u64) -> Result<u64, Error> {
        let core = &*self.space.shared;
        let ranges = lock(&core.copied).as_mut().map(|copied| copied.take(bytes_max)).unwrap_or_default();
        let copy = self.copy();
        let failed = |error| Error::Rma { doing: format!("copying section {} to {}", self.id.0, self.donor()), error };
        let reads: Vec<_> = ranges
            .iter()
            .map(|(offset, length)| {
                let into = BytesMut::with_capacity(*length as usize);
                self.space.read(self.base + offset, *length as usize, into)
            })
            .collect();
        self.space.flush();
        let mut writes = Vec::with_capacity(reads.len());
        for (read, (offset, _)) in reads.into_iter().zip(&ranges) {
            let bytes = read.await.map_err(failed)?.freeze();
            writes.push(copy.link.endpoint.write(&copy.capability, *offset, &[bytes]));
        }
        copy.link.endpoint.flush();
        for write in writes {
            write.await.map_err(failed)?;
        }
        Ok(lock(&core.copied).as_ref().map_or(0, CopiedPages::bytes_left))
    }

    /// Gets a read grant of the copy for a follower, as [`AddressSpace::grant_read`]. It may be used once the migration has
    /// finished.
    ///
    /// # Errors
    /// As [`AddressSpace::grant_read`].
    pub async fn grant_read(&self, follower: u64) -> Result<ReadGrant, Error> {
        self.space.shared.grant_read(self.id, self.copy(), follower).await
    }

    /// Copies what is left, and writes the head. No write to the section may be in flight, from now until
    /// [`SectionMigration::finish`] has returned.
    ///
    /// # Errors
    /// If a verb fails. The copy may have its head, so the donor counts as [unsettled](AddressSpace::is_settled) until it has
    /// confirmed the return.
    pub async fn complete(&self, head: Bytes) -> Result<(), Error> {
        assert_eq!(head.len(), self.head_bytes, "the length was given when the migration began");
        while self.copy_some(FINISH_BYTES).await? > 0 {}
        if head.is_empty() {
            return Ok(());
        }
        let copy = self.copy();
        let written = copy.link.endpoint.write(&copy.capability, 0, &[head]);
        copy.link.endpoint.flush();
        written.await.map_err(|error| Error::Rma { doing: format!("completing section {}", self.id.0), error })
    }

    /// Re-points the section to its copy, which is complete.
    ///
    /// # Errors
    /// If the section was lost or released meanwhile. It is then where it was, and the donor of the copy is unsettled as
    /// after [`SectionMigration::complete`].
    pub fn finish(mut self) -> Result<OldLocation, Error> {
        let space = self.space.clone();
        let core = &*space.shared;
        let entry = core.live_entry(self.id)?;
        let old = core.table.location(entry);
        let (link, section) = (Arc::clone(&self.copy().link), self.copy().section);
        if !link.set_entry(section, None, Some(self.id)) {
            return Err(lost(&link));
        }
        if !old.link.set_entry(old.section, Some(self.id), None) {
            link.set_entry(section, Some(self.id), None);
            return Err(Error::UnknownSection(self.id.0));
        }
        let location = SectionLocation { capability: self.copy().capability, link: Arc::clone(&link), section };
        let Some(entered) = core.table.enter_location(location) else {
            old.link.set_entry(old.section, None, Some(self.id));
            link.set_entry(section, Some(self.id), None);
            return Err(Error::Invalid("the address space has had too many migrations; open it again".to_owned()));
        };
        core.table.repoint(entry, entered);
        let before = OldLocation {
            core: Arc::clone(&space.shared),
            link: Arc::clone(&old.link),
            capability: old.capability,
            head_bytes: self.head_bytes,
            section: Some(old.section),
        };
        if !entry.is_live() {
            // The task that ended it may have seen the old location only: the copy is returned when `self` is dropped.
            return Err(Error::UnknownSection(self.id.0));
        }
        self.copy = None;
        SectionsMigrated.add(1);
        Ok(before)
    }
}

impl Drop for SectionMigration {
    fn drop(&mut self) {
        let core = &self.space.shared;
        let mut copied = lock(&core.copied);
        if copied.as_ref().is_some_and(|copied| copied.id == self.id) {
            *copied = None;
            if let Some(entry) = core.table.get(self.id) {
                entry.is_copied.store(false, Ordering::Release);
            }
        }
        if let Some(copy) = self.copy.take() {
            core.abandon(&copy.link, copy.section);
        }
    }
}

impl OldLocation {
    /// Overwrites the head with zeros. Until that has succeeded, the donor counts as
    /// [unsettled](AddressSpace::is_settled): the owner's next epoch might take this location for the section.
    ///
    /// # Errors
    /// If the verb fails: the donor stays unsettled until the location has been returned.
    pub async fn erase_head(&self) -> Result<(), Error> {
        let Some(section) = self.section.filter(|_| self.head_bytes > 0) else { return Ok(()) };
        self.link.note_returning(section);
        let zeros = Bytes::from(vec![0; self.head_bytes]);
        let erased = self.link.endpoint.write(&self.capability, 0, &[zeros]);
        self.link.endpoint.flush();
        erased.await.map_err(|error| Error::Rma { doing: "erasing the head of an old location".to_owned(), error })?;
        self.link.note_returned(section);
        Ok(())
    }

    /// Returns it to its donor. When the future is dropped, it is returned in the background.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] and [`Error::Unconfirmed`]: it is returned in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        match self.section.take() {
            Some(section) => self.core.return_section(&self.link, section).await,
            None => Ok(()),
        }
    }
}

impl Drop for OldLocation {
    fn drop(&mut self) {
        if let Some(section) = self.section.take() {
            self.core.abandon(&self.link, section);
        }
    }
}
