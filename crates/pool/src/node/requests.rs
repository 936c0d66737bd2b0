//! The requests that owners make of a memory node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base::rt::sync::MutexGuard;
use base::rt::{self, Instant};
use base::{Epoch, FenceToken};
use rma::{Capability, Endpoint, Rights};

use super::owner::{ConnectionGuard, GrantedSection, Owner, OwnerPresence, OwnerSession, OwnerState};
use super::{CONNECTIONS_PER_OWNER_MAX, MemoryNodeCore, OWNERS_MAX, READ_GRANTS_MAX};
use crate::events::{
    GrantsRejected, OwnersConnected, RequestsFenced, RevocationsUnconfirmed, SectionsFenced, SectionsGranted,
    SectionsHandedOver, SectionsReclaimed, SectionsReleased,
};
use crate::lock::lock;
use crate::message::{DonorSection, NOTIFICATION, Rejection, Response, SECTIONS_PER_OWNER_MAX};

fn rejected(refusal: Rejection, detail: u64, text: impl Into<String>) -> Response {
    Response::Rejected { rejection: refusal, detail, text: text.into() }
}

/// The rejection of a request under an older epoch.
fn fenced(newest: Epoch) -> Response {
    RequestsFenced.add(1);
    rejected(Rejection::Fenced, newest.get(), "another process has taken over this owner's memory")
}

impl MemoryNodeCore {
    /// The owner of a name, with one more connection; `None` when there are too many.
    pub(super) fn admit(&self, name: &str) -> Option<ConnectionGuard> {
        let mut owners = lock(&self.owners);
        if !owners.contains_key(name) {
            if owners.len() >= OWNERS_MAX {
                let idle = |owner: &&Arc<Owner>| {
                    owner.is_abandoned() && owner.state.try_lock().is_some_and(|state| state.sections.is_empty())
                };
                let idle = owners.values().find(idle)?.name.clone();
                owners.remove(&idle);
            }
            let presence = OwnerPresence { connections: 0, since: rt::now() };
            let owner = Owner { name: name.to_owned(), presence: Mutex::new(presence), state: Default::default() };
            owners.insert(name.to_owned(), Arc::new(owner));
        }
        let owner = Arc::clone(owners.get(name)?);
        let mut presence = lock(&owner.presence);
        if presence.connections >= CONNECTIONS_PER_OWNER_MAX {
            return None;
        }
        presence.connections += 1;
        if presence.connections == 1 {
            OwnersConnected.add(1);
        }
        drop(presence);
        Some(ConnectionGuard(owner))
    }

    /// Takes an owner's memory over; see step 2 in the module head of [`super`].
    pub(super) async fn fence(
        &self,
        owner: &Owner,
        connection: u64,
        endpoint: &Endpoint,
        epoch: Epoch,
        nonce: u64,
        keep: bool,
    ) -> Response {
        let mut state = owner.state.lock().await;
        let token = FenceToken { term: epoch, nonce };
        if let Some(session) = &state.session
            && session.token.admit(&token).is_err()
        {
            return fenced(session.token.term);
        }
        // Before anything else, so that the earlier process gets no more sections.
        let session = OwnerSession { token, connection, endpoint: endpoint.clone() };
        if let Some(before) = state.session.replace(session)
            && before.connection != connection
        {
            if before.token.term < epoch {
                // A courtesy: a process that misses this notice learns of the fence when it connects again.
                drop(before.endpoint.send(&[fenced(epoch).encode(NOTIFICATION)]));
                before.endpoint.flush();
            }
            before.endpoint.close();
        }
        let older: Vec<DonorSection> =
            state.sections.iter().filter(|(_, held)| held.epoch < epoch).map(|(section, _)| *section).collect();
        let mut revoked = 0;
        let mut confirmed = true;
        for section in older {
            let fenced = match keep && state.sections.get(&section).is_some_and(GrantedSection::may_be_adopted) {
                true => self.revoke_section(&mut state, section).await,
                false => self.reclaim_section(&mut state, section).await,
            };
            if fenced {
                revoked += 1;
            } else {
                confirmed = false;
            }
        }
        SectionsFenced.add(u64::from(revoked));
        if !confirmed {
            return rejected(Rejection::Unconfirmed, 0, "the fence of an older epoch is not confirmed; fence again");
        }
        let is_fenced = |held: &GrantedSection| held.epoch >= epoch || (keep && held.is_unheld());
        assert!(state.sections.values().all(is_fenced), "after a fence no older epoch has a capability");
        Response::Fenced { free_bytes: self.free_bytes(), revoked }
    }

    /// The owner's state, if this connection is the current one.
    async fn session_state<'a>(
        &self,
        owner: &'a Owner,
        connection: u64,
    ) -> Result<MutexGuard<'a, OwnerState>, Response> {
        let state = owner.state.lock().await;
        match &state.session {
            Some(session) if session.connection == connection => Ok(state),
            Some(_) => {
                Err(rejected(Rejection::Superseded, 0, "a newer connection of this owner has replaced this one"))
            }
            None => Err(rejected(Rejection::Malformed, 0, "the owner must fence before any other request")),
        }
    }

    /// Grants a section.
    pub(super) async fn grant(&self, owner: &Owner, connection: u64, bytes: u64, number: u32) -> Response {
        let mut state = match self.session_state(owner, connection).await {
            Ok(state) => state,
            Err(refusal) => return refusal,
        };
        let epoch =
            state.session.as_ref().map(|session| session.token.term).expect("this connection is the current one");
        if bytes != self.section_bytes {
            let text = format!("sections of this memory node have {} bytes, not {bytes}", self.section_bytes);
            return rejected(Rejection::SectionSize, self.section_bytes, text);
        }
        if state.sections.len() >= SECTIONS_PER_OWNER_MAX {
            return rejected(Rejection::TooMany, 0, format!("an owner has at most {SECTIONS_PER_OWNER_MAX} sections"));
        }
        self.reclaim_unconfirmed(&mut state).await;
        let section = match self.reserve(bytes) {
            Some(section) => section,
            None => {
                self.reclaim(bytes).await;
                let Some(section) = self.reserve(bytes) else {
                    GrantsRejected.add(1);
                    let free = self.free_bytes();
                    let text = format!("{free} of {} bytes are free", self.budget_bytes);
                    return rejected(Rejection::Exhausted, free, text);
                };
                section
            }
        };
        // Entered before it is registered: whatever fails from here on, the section is in the table.
        let (region, capability, returning, read_grants) = (None, None, false, BTreeMap::new());
        state
            .sections
            .insert(section, GrantedSection { epoch, region, bytes, number, capability, returning, read_grants });
        let registered = match rt::fault_point("pool.grant.register") {
            true => Err(rma::Error::Exhausted("a fault was injected".to_owned())),
            false => self.host.register(&owner.name, bytes).await,
        };
        let granted = registered.and_then(|region| {
            state.sections.get_mut(&section).expect("it was inserted").region = Some(region);
            self.host.grant(region, Rights::ALL, &owner.name)
        });
        match granted {
            Ok(capability) => {
                state.sections.get_mut(&section).expect("it was inserted").capability = Some(capability);
                SectionsGranted.add(1);
                Response::Granted { free_bytes: self.free_bytes(), section, bytes, capability }
            }
            Err(error) => {
                self.reclaim_section(&mut state, section).await;
                GrantsRejected.add(1);
                rejected(Rejection::Exhausted, self.free_bytes(), error.to_string())
            }
        }
    }

    /// Gives the owner a capability of a section that an older epoch held and that the fence kept.
    pub(super) async fn adopt(&self, owner: &Owner, connection: u64, section: DonorSection) -> Response {
        let mut state = match self.session_state(owner, connection).await {
            Ok(state) => state,
            Err(refusal) => return refusal,
        };
        let epoch =
            state.session.as_ref().map(|session| session.token.term).expect("this connection is the current one");
        let unknown =
            || rejected(Rejection::UnknownSection, section, "no older epoch of this owner had such a section");
        let Some(held) = state.sections.get_mut(&section) else { return unknown() };
        if held.epoch >= epoch || !held.is_unheld() {
            return unknown();
        }
        let Some(region) = held.region else { return unknown() };
        match self.host.grant(region, Rights::ALL, &owner.name) {
            Ok(capability) => {
                (held.epoch, held.capability) = (epoch, Some(capability));
                let (bytes, number) = (held.bytes, held.number);
                SectionsHandedOver.add(1);
                Response::Adopted { free_bytes: self.free_bytes(), section, bytes, number, capability }
            }
            Err(error) => rejected(Rejection::TooMany, 0, error.to_string()),
        }
    }

    /// Takes a section back.
    pub(super) async fn release(&self, owner: &Owner, connection: u64, section: DonorSection) -> Response {
        let mut state = match self.session_state(owner, connection).await {
            Ok(state) => state,
            Err(refusal) => return refusal,
        };
        if !state.sections.contains_key(&section) {
            return rejected(Rejection::UnknownSection, section, "this owner has no such section");
        }
        if !self.reclaim_section(&mut state, section).await {
            return rejected(Rejection::Unconfirmed, section, "the revocation is not confirmed; ask again");
        }
        SectionsReleased.add(1);
        Response::Released { free_bytes: self.free_bytes() }
    }

    /// Gives a follower a read grant of a section. A repeated request returns the same capability.
    pub(super) async fn grant_read(
        &self,
        owner: &Owner,
        connection: u64,
        section: DonorSection,
        follower: u64,
    ) -> Response {
        let mut state = match self.session_state(owner, connection).await {
            Ok(state) => state,
            Err(refusal) => return refusal,
        };
        let unknown = || rejected(Rejection::UnknownSection, section, "this owner has no such section");
        let Some(held) = state.sections.get_mut(&section).filter(|held| !held.returning) else { return unknown() };
        let Some(region) = held.region else { return unknown() };
        let shared = |capability| Response::ReadGranted { free_bytes: self.free_bytes(), section, capability };
        if let Some(capability) = held.read_grants.get(&follower) {
            return shared(*capability);
        }
        if held.read_grants.len() >= READ_GRANTS_MAX {
            return rejected(Rejection::TooMany, 0, format!("a section has at most {READ_GRANTS_MAX} readers"));
        }
        match self.host.grant(region, Rights::READ, &owner.name) {
            Ok(capability) => {
                held.read_grants.insert(follower, capability);
                shared(capability)
            }
            Err(error) => rejected(Rejection::TooMany, 0, error.to_string()),
        }
    }

    /// Revokes a follower's capabilities; once this is answered, no verb of that follower ever takes effect.
    pub(super) async fn revoke_reads(&self, owner: &Owner, connection: u64, follower: u64) -> Response {
        let mut state = match self.session_state(owner, connection).await {
            Ok(state) => state,
            Err(refusal) => return refusal,
        };
        let mut revoked = 0;
        for held in state.sections.values_mut() {
            let Some(capability) = held.read_grants.get(&follower) else { continue };
            match self.host.revoke(capability).await {
                Ok(()) | Err(rma::Error::Unknown) => {
                    held.read_grants.remove(&follower);
                    revoked += 1;
                }
                Err(error) => {
                    RevocationsUnconfirmed.add(1);
                    tracing::warn!(%error, follower, "a follower's capability is not revoked; the owner must ask again");
                    return rejected(Rejection::Unconfirmed, 0, "the revocation is not confirmed; ask again");
                }
            }
        }
        Response::ReadsRevoked { free_bytes: self.free_bytes(), revoked }
    }

    /// The sections of the owner.
    pub(super) async fn list(&self, owner: &Owner, connection: u64) -> Response {
        match self.session_state(owner, connection).await {
            Ok(state) => Response::Listed {
                free_bytes: self.free_bytes(),
                sections: state.sections.iter().map(|(section, held)| (*section, held.bytes)).collect(),
            },
            Err(refusal) => refusal,
        }
    }

    /// Revokes every capability of a section, whose content stays; false if that could not be confirmed.
    async fn revoke_section(&self, state: &mut OwnerState, section: DonorSection) -> bool {
        let held = state.sections.get_mut(&section).expect("callers found it in the table");
        let given: Vec<Capability> = held.capability.iter().chain(held.read_grants.values()).copied().collect();
        for capability in given {
            let outcome = match rt::fault_point("pool.revoke.unconfirmed") {
                true => Err(rma::Error::Ambiguous("a fault was injected")),
                false => self.host.revoke(&capability).await,
            };
            match outcome {
                // `Unknown`: revoked earlier, by a call whose outcome was not confirmed.
                Ok(()) | Err(rma::Error::Unknown) => {}
                Err(error) => {
                    RevocationsUnconfirmed.add(1);
                    tracing::warn!(%error, section, "the capabilities of a section are not revoked yet; it is retried");
                    return false;
                }
            }
        }
        held.capability = None;
        held.read_grants.clear();
        true
    }

    /// Revokes a section and frees its memory; false if that could not be confirmed: then the section stays in the
    /// table.
    async fn reclaim_section(&self, state: &mut OwnerState, section: DonorSection) -> bool {
        let held = state.sections.get(&section).expect("callers found it in the table");
        if let Some(region) = held.region {
            let outcome = match rt::fault_point("pool.revoke.unconfirmed") {
                true => Err(rma::Error::Ambiguous("a fault was injected")),
                false => self.host.deregister(region).await,
            };
            match outcome {
                // `Unknown`: deregistered earlier, by a call whose outcome was not confirmed.
                Ok(()) | Err(rma::Error::Unknown) => {}
                Err(error) => {
                    RevocationsUnconfirmed.add(1);
                    state.sections.get_mut(&section).expect("it is there").returning = true;
                    tracing::warn!(%error, section, "a section could not be reclaimed; it is retried");
                    return false;
                }
            }
        }
        let held = state.sections.remove(&section).expect("it was there");
        self.unreserve(held.bytes);
        true
    }

    /// Retries the returns that could not be confirmed before.
    async fn reclaim_unconfirmed(&self, state: &mut OwnerState) {
        let leaving = state.sections.iter().filter(|(_, held)| held.returning).map(|(section, _)| *section);
        for section in leaving.collect::<Vec<_>>() {
            self.reclaim_section(state, section).await;
        }
    }

    /// Reclaims memory until enough is free: first the sections whose return could not be confirmed, then those of
    /// abandoned owners, longest absent first.
    async fn reclaim(&self, bytes: u64) {
        let mut owners: Vec<(Option<Instant>, Arc<Owner>)> = {
            let owners = lock(&self.owners);
            owners.values().map(|owner| (owner.absent_since(), Arc::clone(owner))).collect()
        };
        owners.sort_by_key(|(since, _)| (since.is_some(), *since));
        for (_, owner) in owners {
            if self.free_bytes() >= bytes {
                return;
            }
            // An owner whose lock is held is active. And the caller holds its own owner's lock, so waiting could
            // deadlock.
            let Some(mut state) = owner.state.try_lock() else { continue };
            self.reclaim_unconfirmed(&mut state).await;
            let sections: Vec<DonorSection> = state.sections.keys().copied().collect();
            for section in sections {
                if self.free_bytes() >= bytes || !owner.is_abandoned() {
                    break;
                }
                if self.reclaim_section(&mut state, section).await {
                    SectionsReclaimed.add(1);
                }
            }
        }
    }
}
