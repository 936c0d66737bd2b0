//! Requests for sections, their adoption and return, and read grants.

use std::cmp::Reverse;
use std::sync::Arc;

use base::bytes::BytesMut;
use base::{ErrorKind, rt};
use rma::Capability;

use crate::Error;
use crate::events::{GrowTime, SectionsAdopted, SectionsGrown};
use crate::lock::lock;
use crate::message::{DonorSection, Rejection, Request, Response};
use crate::space::address_space::AddressSpace;
use crate::space::config::{CAPACITY_AGE_MAX, CAPACITY_TIMEOUT, RESPONSE_TIMEOUT};
use crate::space::donor_session::Adoption;
use crate::space::link::{DonorLink, RequestTurn};
use crate::space::read_grant::ReadGrant;
use crate::space::section::{Section, SectionId};
use crate::space::space_core::SpaceCore;
use crate::space::table::{SectionLocation, SectionState};

/// Sections.
impl AddressSpace {
    /// Adds one section, filled with zeros, from the donor with the most free memory.
    ///
    /// When the future is dropped, the section may have been added, and is then in [`AddressSpace::sections`];
    /// otherwise a section that was requested is returned in the background.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when the space's budget or every donor is exhausted, [`Error::NoDonor`] when none answers,
    /// [`Error::Fenced`], [`Error::Closed`].
    pub async fn grow(&self) -> Result<Section, Error> {
        let shared = &self.shared;
        let start = rt::now();
        shared.check_open()?;
        let reserved = BudgetReservation::new(shared)?;
        let links = shared.links_by_free_memory().await;
        let mut full = Vec::new();
        let mut silent = Vec::new();
        for link in links {
            match shared.grow_from(&link).await {
                Ok(section) => {
                    reserved.disarm();
                    SectionsGrown.add(1);
                    GrowTime.record_since(start);
                    return Ok(section);
                }
                Err(error) if error.kind() == ErrorKind::Retry => full.push(error.to_string()),
                Err(error) => silent.push(error.to_string()),
            }
            shared.check_open()?;
        }
        if full.is_empty() {
            let donors = shared.present().map(|place| place.donor.address.as_str()).collect::<Vec<_>>().join(", ");
            let why = if silent.is_empty() { donors } else { silent.join("; ") };
            return Err(Error::NoDonor(why));
        }
        let full = full.join("; ");
        Err(Error::Exhausted(format!("{full}; release sections, add a memory node, or raise a memory node's budget")))
    }

    /// Returns a section. Verbs to its addresses fail from the call on; on return none of them takes effect any more.
    /// When the future is dropped, the section is returned in the background.
    ///
    /// # Errors
    /// [`Error::UnknownSection`]; [`Error::NoAnswer`] and [`Error::Unconfirmed`] when the donor has not confirmed: the
    /// section no longer belongs to the space, and is returned in the background.
    pub async fn release(&self, id: SectionId) -> Result<(), Error> {
        let shared = &self.shared;
        let entry = shared.table.get(id).ok_or(Error::UnknownSection(id.0))?;
        if !entry.end(SectionState::Released) {
            return Err(Error::UnknownSection(id.0));
        }
        let SectionLocation { link, section, .. } = shared.table.location(entry);
        shared.forget(&[id]);
        shared.return_section(link, *section).await
    }

    /// Gets a read grant of a section for a follower, another compute node of this owner, which
    /// [enters](crate::ReadOnlySpace::enter) the result. A repeated call returns the same grant.
    ///
    /// # Errors
    /// [`Error::UnknownSection`]; [`Error::NoAnswer`]; the donor's rejection.
    pub async fn grant_read(&self, id: SectionId, follower: u64) -> Result<ReadGrant, Error> {
        let shared = &self.shared;
        let entry = shared.table.get(id).filter(|entry| entry.is_live()).ok_or(Error::UnknownSection(id.0))?;
        shared.grant_read(id, shared.table.location(entry), follower).await
    }

    /// Revokes all capabilities of a follower at the donors that are connected: on return no verb of the follower ever
    /// takes effect there. Capabilities at a lost donor have ended with its sections.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] and [`Error::Unconfirmed`] if a donor has not confirmed: ask again.
    pub async fn revoke_reads(&self, follower: u64) -> Result<(), Error> {
        let mut outcome = Ok(());
        for link in self.shared.links() {
            let revoked = async {
                let mut turn = link.turn(RESPONSE_TIMEOUT).await?;
                match turn.ask(Request::RevokeReads { follower }, RESPONSE_TIMEOUT).await? {
                    Response::ReadsRevoked { .. } => Ok(()),
                    Response::Rejected { rejection: Rejection::Unconfirmed, .. } => {
                        Err(Error::Unconfirmed(link.address.clone()))
                    }
                    reply => Err(self.shared.unexpected(&link, &reply)),
                }
            };
            let revoked = revoked.await;
            outcome = outcome.and(revoked);
        }
        outcome
    }
}

impl SpaceCore {
    /// The donors that may grant sections, in the order in which they are asked: the one with the most free memory first,
    /// those that do not answer last.
    pub(super) async fn links_by_free_memory(&self) -> Vec<Arc<DonorLink>> {
        let mut links: Vec<Arc<DonorLink>> =
            self.present().filter(|donor| !donor.is_vacated()).filter_map(|donor| lock(&donor.link).clone()).collect();
        if links.len() > 1 {
            for link in links.iter().filter(|link| link.is_answering() && link.free_age() > CAPACITY_AGE_MAX) {
                if let Ok(mut turn) = link.turn(CAPACITY_TIMEOUT).await {
                    // The answer's report of free memory is noted when it arrives.
                    let _ = turn.ask(Request::Capacity, CAPACITY_TIMEOUT).await;
                }
            }
        }
        links.sort_by_key(|link| (!link.is_answering(), Reverse(link.free_bytes())));
        links
    }

    /// Gets a read grant of a section at a location.
    pub(super) async fn grant_read(
        &self,
        id: SectionId,
        location: &SectionLocation,
        follower: u64,
    ) -> Result<ReadGrant, Error> {
        let SectionLocation { link, section: at_donor, .. } = location;
        let mut turn = link.turn(RESPONSE_TIMEOUT).await?;
        match turn.ask(Request::GrantRead { section: *at_donor, follower }, RESPONSE_TIMEOUT).await? {
            Response::ReadGranted { section, capability, .. } if section == *at_donor => {
                let section = self.table.section(id).ok_or(Error::UnknownSection(id.0))?;
                Ok(ReadGrant { section, donor: link.address.clone(), capability })
            }
            Response::Rejected { rejection: Rejection::UnknownSection, .. } => Err(Error::UnknownSection(id.0)),
            reply => Err(self.unexpected(link, &reply)),
        }
    }

    /// Returns to a donor what no entry leads to any more. When the future is dropped, it is returned in the background.
    pub(super) async fn return_section(&self, link: &DonorLink, section: DonorSection) -> Result<(), Error> {
        let unswept = SweepOnDrop(Some(link));
        link.note_returning(section);
        link.remove(section);
        let mut turn = link.turn(RESPONSE_TIMEOUT).await?;
        match turn.ask(Request::Release { section }, RESPONSE_TIMEOUT).await? {
            // A sweep may have released it first.
            Response::Released { .. } | Response::Rejected { rejection: Rejection::UnknownSection, .. } => {
                link.note_returned(section);
                unswept.keep();
                Ok(())
            }
            Response::Rejected { rejection: Rejection::Unconfirmed, .. } => {
                Err(Error::Unconfirmed(link.address.clone()))
            }
            reply => Err(self.unexpected(link, &reply)),
        }
    }

    /// Adopts a section that the donor lists, and enters it under the number that it had. False if it cannot be adopted:
    /// then it is to be returned.
    pub(super) async fn adopt_from(
        &self,
        link: &Arc<DonorLink>,
        turn: &mut RequestTurn<'_>,
        section: DonorSection,
        adoption: Adoption,
    ) -> Result<bool, Error> {
        match turn.ask(Request::Adopt { section }, RESPONSE_TIMEOUT).await? {
            Response::Adopted { section: given, bytes, number, capability, .. } if given == section => {
                if adoption == Adoption::Headed && !has_head(link, &capability).await? {
                    return Ok(false);
                }
                let Some(position) = self.table.adopted_position(number) else { return Ok(false) };
                // Only now: no section may get the number again, since adopted memory may lead to it.
                let Ok(reserved) = BudgetReservation::new(self) else { return Ok(false) };
                let adopted = self.enter(link, turn, position, section, bytes, capability)?;
                reserved.disarm();
                lock(&self.adopted).push(adopted.id);
                SectionsAdopted.add(1);
                Ok(true)
            }
            Response::Rejected { rejection: Rejection::UnknownSection | Rejection::TooMany, .. } => Ok(false),
            reply => Err(self.unexpected(link, &reply)),
        }
    }
}

/// Whether a section does not begin with zeros.
async fn has_head(link: &DonorLink, capability: &Capability) -> Result<bool, Error> {
    const BYTES: usize = 8;
    let read = link.endpoint.read(capability, 0, BYTES, BytesMut::with_capacity(BYTES));
    link.endpoint.flush();
    let no_answer = |reason: String| Error::NoAnswer { address: link.address.clone(), reason };
    match rt::timeout(RESPONSE_TIMEOUT, read).await {
        Ok(Ok(head)) => Ok(head.iter().any(|byte| *byte != 0)),
        Ok(Err(error)) => Err(no_answer(format!("a section cannot be read: {error}"))),
        Err(rt::Elapsed) => Err(no_answer(format!("no answer within {} s", RESPONSE_TIMEOUT.as_secs()))),
    }
}

/// Budget for one section, returned unless `keep` is called.
struct BudgetReservation<'a>(Option<&'a SpaceCore>);

impl<'a> BudgetReservation<'a> {
    fn new(shared: &'a SpaceCore) -> Result<BudgetReservation<'a>, Error> {
        let mut room = lock(&shared.budget);
        let taken_bytes = room.taken_bytes + shared.section_bytes;
        if taken_bytes > room.budget_bytes {
            let (taken, budget) = (room.taken_bytes, room.budget_bytes);
            return Err(Error::Exhausted(format!(
                "{taken} of this owner's {budget} bytes are in use; release sections or raise the budget"
            )));
        }
        room.taken_bytes = taken_bytes;
        Ok(BudgetReservation(Some(shared)))
    }

    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for BudgetReservation<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            lock(&shared.budget).taken_bytes -= shared.section_bytes;
        }
    }
}

/// Marks a link as unswept on drop, unless `keep` is called.
struct SweepOnDrop<'a>(Option<&'a DonorLink>);

impl SweepOnDrop<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for SweepOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            link.leave_unswept();
        }
    }
}
