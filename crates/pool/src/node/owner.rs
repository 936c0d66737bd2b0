//! One owner at a memory node: its epoch, its connection and its sections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base::Epoch;
use base::rt::sync::MutexGuard;
use base::rt::{self, Instant};
use rma::{Capability, Endpoint, RegionId, Rights};

use super::{ABANDONED_AFTER, CONNECTIONS_PER_OWNER_MAX, OWNERS_MAX, READERS_MAX, Shared, lock};
use crate::events::{
    GrantsRefused, OwnersConnected, RequestsFenced, RevocationsUnconfirmed, SectionsFenced, SectionsGranted,
    SectionsReclaimed, SectionsReleased,
};
use crate::message::{DonorSection, NOTICE, Refusal, Reply, SECTIONS_PER_OWNER_MAX};

/// An owner, from its first connection on.
pub(super) struct Owner {
    name: String,
    presence: Mutex<Presence>,
    /// Held while one of its requests runs.
    state: rt::sync::Mutex<State>,
}

struct Presence {
    connections: usize,
    /// Since when there are none.
    since: Instant,
}

#[derive(Default)]
struct State {
    reign: Option<Reign>,
    sections: BTreeMap<DonorSection, Held>,
}

/// Who may ask now.
struct Reign {
    epoch: Epoch,
    holder: u64,
    connection: u64,
    endpoint: Endpoint,
}

/// A section that was given, or whose return is not confirmed.
struct Held {
    epoch: Epoch,
    /// `None` while it is not registered.
    region: Option<RegionId>,
    bytes: u64,
    /// Its return could not be confirmed; nobody may use it any more.
    leaving: bool,
    /// What readers may read it with.
    shares: BTreeMap<u64, Capability>,
}

/// A connection of an owner, for as long as it lives.
pub(super) struct Present(pub(super) Arc<Owner>);

impl Drop for Present {
    fn drop(&mut self) {
        let mut presence = lock(&self.0.presence);
        presence.connections -= 1;
        if presence.connections == 0 {
            presence.since = rt::now();
            OwnersConnected.add(-1);
        }
    }
}

impl Owner {
    /// Since when nobody has been connected.
    fn absent_since(&self) -> Option<Instant> {
        let presence = lock(&self.presence);
        (presence.connections == 0).then_some(presence.since)
    }

    fn is_abandoned(&self) -> bool {
        self.absent_since().is_some_and(|since| since.elapsed() >= ABANDONED_AFTER)
    }
}

fn refused(refusal: Refusal, detail: u64, text: impl Into<String>) -> Reply {
    Reply::Refused { refusal, detail, text: text.into() }
}

/// The refusal that ends a reign.
fn fenced(newest: Epoch) -> Reply {
    RequestsFenced.add(1);
    refused(Refusal::Fenced, newest.get(), "a newer holder has this owner's memory")
}

impl Shared {
    /// The owner of a name, with one connection more; `None` when there are too many.
    pub(super) fn admit(&self, name: &str) -> Option<Present> {
        let mut owners = lock(&self.owners);
        if !owners.contains_key(name) {
            if owners.len() >= OWNERS_MAX {
                let idle = |owner: &&Arc<Owner>| {
                    owner.is_abandoned() && owner.state.try_lock().is_some_and(|state| state.sections.is_empty())
                };
                let idle = owners.values().find(idle)?.name.clone();
                owners.remove(&idle);
            }
            let presence = Presence { connections: 0, since: rt::now() };
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
        Some(Present(owner))
    }

    /// Takes an owner's memory over; see step 2 at the head of [`super`].
    pub(super) async fn fence(
        &self,
        owner: &Owner,
        connection: u64,
        endpoint: &Endpoint,
        epoch: Epoch,
        holder: u64,
    ) -> Reply {
        let mut state = owner.state.lock().await;
        if let Some(reign) = &state.reign
            && (epoch < reign.epoch || (epoch == reign.epoch && holder != reign.holder))
        {
            return fenced(reign.epoch);
        }
        // First of all, so that nothing more is given to whoever reigned before.
        let reign = Reign { epoch, holder, connection, endpoint: endpoint.clone() };
        if let Some(before) = state.reign.replace(reign)
            && before.connection != connection
        {
            if before.epoch < epoch {
                // A courtesy; who does not get it learns of the fence when it connects again.
                drop(before.endpoint.send(&[fenced(epoch).encode(NOTICE)]));
                before.endpoint.flush();
            }
            before.endpoint.close();
        }
        let older: Vec<DonorSection> =
            state.sections.iter().filter(|(_, held)| held.epoch < epoch).map(|(section, _)| *section).collect();
        let mut revoked = 0;
        let mut confirmed = true;
        for section in older {
            if self.take_back(&mut state, section).await {
                revoked += 1;
            } else {
                confirmed = false;
            }
        }
        SectionsFenced.add(u64::from(revoked));
        if !confirmed {
            return refused(Refusal::Unconfirmed, 0, "the fence of an older epoch is not confirmed");
        }
        assert!(state.sections.values().all(|held| held.epoch >= epoch), "a fence leaves nothing to older epochs");
        Reply::Fenced { free_bytes: self.free_bytes(), revoked }
    }

    /// The owner's state, if this connection may ask.
    async fn reigning<'a>(&self, owner: &'a Owner, connection: u64) -> Result<MutexGuard<'a, State>, Reply> {
        let state = owner.state.lock().await;
        match &state.reign {
            Some(reign) if reign.connection == connection => Ok(state),
            Some(_) => Err(refused(Refusal::Superseded, 0, "another connection has taken over")),
            None => Err(refused(Refusal::Malformed, 0, "fence first")),
        }
    }

    /// Gives a section.
    pub(super) async fn grant(&self, owner: &Owner, connection: u64, bytes: u64) -> Reply {
        let mut state = match self.reigning(owner, connection).await {
            Ok(state) => state,
            Err(refusal) => return refusal,
        };
        let epoch = state.reign.as_ref().map(|reign| reign.epoch).expect("this connection reigns");
        if bytes != self.section_bytes {
            let text = format!("sections of this memory node have {} bytes, not {bytes}", self.section_bytes);
            return refused(Refusal::SectionSize, self.section_bytes, text);
        }
        if state.sections.len() >= SECTIONS_PER_OWNER_MAX {
            return refused(Refusal::TooMany, 0, format!("an owner has at most {SECTIONS_PER_OWNER_MAX} sections"));
        }
        self.take_back_leaving(&mut state).await;
        let section = match self.reserve(bytes) {
            Some(section) => section,
            None => {
                self.reclaim(bytes).await;
                let Some(section) = self.reserve(bytes) else {
                    GrantsRefused.add(1);
                    let free = self.free_bytes();
                    let text = format!("{free} of {} bytes are free", self.budget_bytes);
                    return refused(Refusal::Exhausted, free, text);
                };
                section
            }
        };
        // Known before it is registered: whatever happens from here on, it is in the table.
        state.sections.insert(section, Held { epoch, region: None, bytes, leaving: false, shares: BTreeMap::new() });
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
                SectionsGranted.add(1);
                Reply::Granted { free_bytes: self.free_bytes(), section, bytes, capability }
            }
            Err(error) => {
                self.take_back(&mut state, section).await;
                GrantsRefused.add(1);
                refused(Refusal::Exhausted, self.free_bytes(), error.to_string())
            }
        }
    }

    /// Takes a section back.
    pub(super) async fn release(&self, owner: &Owner, connection: u64, section: DonorSection) -> Reply {
        let mut state = match self.reigning(owner, connection).await {
            Ok(state) => state,
            Err(refusal) => return refusal,
        };
        if !state.sections.contains_key(&section) {
            return refused(Refusal::UnknownSection, section, "no such section");
        }
        if !self.take_back(&mut state, section).await {
            return refused(Refusal::Unconfirmed, section, "the revocation is not confirmed");
        }
        SectionsReleased.add(1);
        Reply::Released { free_bytes: self.free_bytes() }
    }

    /// Lets a reader read a section. Asked again, it gives the same capability.
    pub(super) async fn share(&self, owner: &Owner, connection: u64, section: DonorSection, reader: u64) -> Reply {
        let mut state = match self.reigning(owner, connection).await {
            Ok(state) => state,
            Err(refusal) => return refusal,
        };
        let unknown = || refused(Refusal::UnknownSection, section, "no such section");
        let Some(held) = state.sections.get_mut(&section).filter(|held| !held.leaving) else { return unknown() };
        let Some(region) = held.region else { return unknown() };
        let shared = |capability| Reply::Shared { free_bytes: self.free_bytes(), section, capability };
        if let Some(capability) = held.shares.get(&reader) {
            return shared(*capability);
        }
        if held.shares.len() >= READERS_MAX {
            return refused(Refusal::TooMany, 0, format!("a section has at most {READERS_MAX} readers"));
        }
        match self.host.grant(region, Rights::READ, &owner.name) {
            Ok(capability) => {
                held.shares.insert(reader, capability);
                shared(capability)
            }
            Err(error) => refused(Refusal::TooMany, 0, error.to_string()),
        }
    }

    /// Revokes what a reader was given; on the answer no verb of its takes effect, ever.
    pub(super) async fn unshare(&self, owner: &Owner, connection: u64, reader: u64) -> Reply {
        let mut state = match self.reigning(owner, connection).await {
            Ok(state) => state,
            Err(refusal) => return refusal,
        };
        let mut revoked = 0;
        for held in state.sections.values_mut() {
            let Some(capability) = held.shares.get(&reader) else { continue };
            match self.host.revoke(capability).await {
                Ok(()) | Err(rma::Error::Unknown) => {
                    held.shares.remove(&reader);
                    revoked += 1;
                }
                Err(error) => {
                    RevocationsUnconfirmed.add(1);
                    tracing::warn!(%error, reader, "a reader's capability could not be revoked; ask again");
                    return refused(Refusal::Unconfirmed, 0, "the revocation is not confirmed");
                }
            }
        }
        Reply::Unshared { free_bytes: self.free_bytes(), revoked }
    }

    /// What the owner has.
    pub(super) async fn list(&self, owner: &Owner, connection: u64) -> Reply {
        match self.reigning(owner, connection).await {
            Ok(state) => Reply::Listed {
                free_bytes: self.free_bytes(),
                sections: state.sections.iter().map(|(section, held)| (*section, held.bytes)).collect(),
            },
            Err(refusal) => refusal,
        }
    }

    /// Revokes a section and takes its memory back; false when that could not be confirmed, and the section stays.
    async fn take_back(&self, state: &mut State, section: DonorSection) -> bool {
        let held = state.sections.get(&section).expect("callers found it in the table");
        if let Some(region) = held.region {
            let outcome = match rt::fault_point("pool.revoke.unconfirmed") {
                true => Err(rma::Error::Ambiguous("a fault was injected")),
                false => self.host.deregister(region).await,
            };
            match outcome {
                // Deregistered before, by a call whose outcome was not confirmed.
                Ok(()) | Err(rma::Error::Unknown) => {}
                Err(error) => {
                    RevocationsUnconfirmed.add(1);
                    state.sections.get_mut(&section).expect("it is there").leaving = true;
                    tracing::warn!(%error, section, "a section could not be taken back; it is tried again");
                    return false;
                }
            }
        }
        let held = state.sections.remove(&section).expect("it was there");
        self.give_back(held.bytes);
        true
    }

    /// Tries again what could not be confirmed before.
    async fn take_back_leaving(&self, state: &mut State) {
        let leaving = state.sections.iter().filter(|(_, held)| held.leaving).map(|(section, _)| *section);
        for section in leaving.collect::<Vec<_>>() {
            self.take_back(state, section).await;
        }
    }

    /// Takes memory back until there is room: first what could not be confirmed before, then from abandoned owners, from
    /// those first that went first.
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
            // Whoever holds the lock is not away; and the caller holds its own, so that waiting could be for ever.
            let Some(mut state) = owner.state.try_lock() else { continue };
            self.take_back_leaving(&mut state).await;
            let sections: Vec<DonorSection> = state.sections.keys().copied().collect();
            for section in sections {
                if self.free_bytes() >= bytes || !owner.is_abandoned() {
                    break;
                }
                if self.take_back(&mut state, section).await {
                    SectionsReclaimed.add(1);
                }
            }
        }
    }
}
