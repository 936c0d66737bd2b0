//! What the state does for its followers at the primary: it lets them join, and serves their requests.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt;
use base::{BlockNumber, Bytes, Map};
use futures_util::future::join_all;
use replica::followers::JOIN_TIMEOUT;
use replica::lease::FollowerId;
use replica::{Admission, ChangeBatches, FollowerTable, MissedState, PrimaryState};
use storage::StateStore;
use wire::Malformed;

use super::super::cache::FillToken;
use super::super::fault::{Mutant, hold_up, mutant};
use super::super::index::KeyHash;
use super::super::memory::Section;
use super::super::record::KeyName;
use super::super::{DONOR_TIMEOUT, StateCore, StateView};
use super::changes::{ChangeLog, FollowerRequest, JoinBasis};
use crate::Error;

#[async_trait]
impl PrimaryState for StateCore {
    fn followers(&self) -> &Arc<FollowerTable> {
        &self.followers
    }

    fn store(&self) -> &dyn StateStore {
        &*self.store
    }

    fn is_fenced(&self) -> bool {
        StateCore::is_fenced(self)
    }

    fn note_fenced(&self) {
        self.fenced.store(true, Ordering::Relaxed);
    }

    fn notes_uses(&self) -> bool {
        self.heat.notes_uses()
    }

    async fn admit(&self, admission: Admission<'_>) -> Result<MissedState, replica::Error> {
        self.earlier_leases.admitted().await;
        if rt::timeout(JOIN_TIMEOUT / 2, self.surveyed.cancelled()).await.is_err() {
            tracing::debug!("a follower joins before the index was surveyed");
        }
        let follower = admission.follower();
        if let Err(error) = self.materialize(self.height.load(Ordering::Acquire)).await {
            tracing::debug!(%error, "a follower joins with a longer delta");
        }
        hold_up("state.followers.join").await;
        // Most of the sections without the lock.
        let known: Map<u32, u32> = {
            let writer = self.writer.lock().await;
            writer.sections.values().map(|id| (*id, self.memory.donor_of(*id))).collect()
        };
        let mut places = self.grant_reads(known.keys().copied(), follower, JOIN_TIMEOUT / 2).await;
        hold_up("state.followers.granted").await;
        let writer = self.writer.lock().await;
        if self.is_fenced() {
            return Err(replica::Error::Fenced);
        }
        let mut changes = ChangeBatches::default();
        // A section may have migrated meanwhile: then the grant is one of its old location.
        let is_here = |id: u32| known.get(&id) == Some(&self.memory.donor_of(id)) || mutant(Mutant::JoinStale);
        places.retain(|id, _| is_here(*id));
        let since = writer.sections.values().copied().filter(|id| !(known.contains_key(id) && is_here(*id)));
        places.extend(self.grant_reads(since, follower, DONOR_TIMEOUT).await);
        for (base, id) in &writer.sections {
            let section = Section { id: *id, address: *base, bytes: self.memory.section_bytes() };
            match places.get(id) {
                Some(place) => changes.add(|bytes| ChangeLog(bytes).section(&section, place)),
                None => tracing::debug!(section = id, "a follower goes without a section"),
            }
        }
        for subtable in self.directory.subtables() {
            changes.add(|bytes| ChangeLog(bytes).subtable(&subtable));
        }
        let height = self.height.load(Ordering::Acquire);
        let base = {
            let delta = self.delta();
            for (number, writes) in delta.writes_by_block() {
                let writes = writes.into_iter().map(|(name, written)| (name, written.clone()));
                changes.add(|bytes| ChangeLog(bytes).block(number, writes));
            }
            delta.first_block().unwrap_or(height)
        };
        let basis = JoinBasis {
            seed: self.seed,
            base,
            savepoint: self.savepoint.load(Ordering::Acquire),
            forgotten: self.forgotten.load(Ordering::Acquire),
            budget_bytes: self.memory.budget_bytes(),
        };
        // With the lock held, so that the follower misses no change and gets none twice.
        admission.enter(height)?;
        drop(writer);
        Ok(MissedState { basis: basis.encode(), changes })
    }

    fn handle_request(self: &Arc<Self>, request: Bytes) -> Result<bool, Malformed> {
        let request = FollowerRequest::decode(request)?;
        let Some(permit) = self.fill_permits.try_acquire() else { return Ok(true) };
        match request {
            FollowerRequest::Fill { namespace, key } => {
                // There is no view once this state is shutting down.
                let view = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
                let Some(view) = view else { return Ok(false) };
                drop(rt::spawn(async move {
                    let _permit = permit;
                    let name = KeyName { namespace: &namespace, key: &key };
                    if let Err(error) = view.refill(name).await {
                        tracing::debug!(%error, "a key that a follower read stays in storage");
                    }
                }));
            }
            FollowerRequest::Persist { height } => {
                let shared = Arc::clone(self);
                drop(rt::spawn(async move {
                    let _permit = permit;
                    let height = height.min(shared.height.load(Ordering::Acquire));
                    if let Err(error) = shared.materialize(height).await {
                        tracing::debug!(%error, "rows that a follower needs are not materialised yet");
                    }
                }));
            }
        }
        Ok(true)
    }

    fn revoke_reads(&self, follower: FollowerId) {
        let memory = Arc::clone(&self.memory);
        drop(rt::spawn(async move {
            if let Err(error) = memory.revoke_reads(follower).await {
                // They end with their sections, or with this primary.
                tracing::debug!(%error, "a follower's capabilities are not revoked yet");
            }
        }));
    }
}

impl StateCore {
    /// Obtains read grants of sections for a follower, all in parallel: returns the location of each that was granted
    /// in time.
    async fn grant_reads(
        &self,
        sections: impl Iterator<Item = u32>,
        holder: FollowerId,
        patience: Duration,
    ) -> Map<u32, Bytes> {
        let shares = sections.map(async |id| {
            let shared = rt::timeout(patience, self.memory.grant_read(id, holder)).await;
            Some((id, shared.ok()?.ok()?))
        });
        join_all(shares).await.into_iter().flatten().collect()
    }
}

impl StateView {
    /// Step 9, for a key that a follower has read from storage.
    async fn refill(self: &Arc<StateView>, name: KeyName<'_>) -> Result<(), Error> {
        let shared = &self.shared;
        let hash: KeyHash = self.hash(name);
        let token: FillToken = shared.caches.token(hash);
        let seen = shared.delta().look_up(hash, name, self.height);
        let is_newest = !seen.newer && shared.height.load(Ordering::Acquire) == self.height;
        let Some(through) = self.height.checked_sub(1).filter(|_| seen.newest.is_none() && is_newest) else {
            return Ok(());
        };
        let row = shared.store.get(name.namespace, name.key.as_bytes(), BlockNumber(through)).await?;
        if let Some(kept) = row.map(|row| super::super::read::cached_value_of(row.version, row.value))
            && kept.value.is_some()
        {
            StateCore::fill(shared, hash, name, token, kept);
        }
        Ok(())
    }
}
