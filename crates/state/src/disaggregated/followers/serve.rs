//! The primary's end of a follower's link, and the primary's heartbeat.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use base::rt::channel::bounded;
use base::rt::net::{Link, LinkReceiver};
use base::rt::{self, CancellationToken};
use base::{BlockNumber, Bytes, BytesMut, Map, Set};
use futures_util::future::join_all;
use wire::hello::HelloAnswer;

use super::super::cache::FillToken;
use super::super::fault::{Mutant, hold_up, mutant};
use super::super::index::KeyHash;
use super::super::lease::{FollowerId, LEASE};
use super::super::memory::Section;
use super::super::record::KeyName;
use super::super::{DONOR_TIMEOUT, StateCore, StateView};
use super::follower_table::UPDATES_MAX;
use super::message::{ChangeLog, PROTOCOL_VERSIONS, ToFollower, ToPrimary};
use super::{HEARTBEAT, JOIN_TIMEOUT};
use crate::{Error, events};

/// Bytes of one message of the state that a joining follower has missed.
const CHANGE_BATCH_BYTES: usize = 1 << 20;

impl StateCore {
    /// Steps 1 to 9 with one follower, until its link ends.
    pub(in super::super) async fn serve_follower(shared: &Arc<StateCore>, link: Link) -> Result<(), Error> {
        let proven: Option<Arc<str>> = link.peer().map(Arc::from);
        let (sender, mut receiver) = link.split();
        let Ok(Ok(join)) = rt::timeout(JOIN_TIMEOUT, receiver.receive()).await else { return Ok(()) };
        let versions = match ToPrimary::decode(join) {
            Ok(ToPrimary::Join { versions }) if PROTOCOL_VERSIONS.choose(versions).is_ok() => versions,
            other => {
                tracing::warn!(?other, ours = %PROTOCOL_VERSIONS, "not a follower of these versions; upgrade the older compute node");
                let refusal = ToFollower::OtherVersions(HelloAnswer::refuse(PROTOCOL_VERSIONS));
                let _ = sender.send(refusal.encode()).await;
                return Ok(());
            }
        };
        let hello = HelloAnswer::to(PROTOCOL_VERSIONS, versions);
        let holder = shared.followers.number();
        let name = proven.unwrap_or_else(|| format!("reader {}", holder.0).into());
        let (updates, mut waiting) = bounded::<Bytes>(UPDATES_MAX);
        let gone = CancellationToken::new();
        // From here on the follower may hold read grants.
        let _leaving = LeaveGuard { shared, holder };
        let missed = match rt::timeout(JOIN_TIMEOUT, shared.admit(holder, hello, name, updates, &gone)).await {
            Ok(missed) => missed?,
            Err(rt::Elapsed) => return Err(Error::Busy),
        };
        let ended = gone.clone();
        let sending = rt::spawn(async move {
            for message in missed {
                if sender.send(message).await.is_err() {
                    return ended.cancel();
                }
            }
            while let Some(message) = waiting.recv().await {
                if sender.send(message).await.is_err() {
                    break;
                }
            }
            ended.cancel();
        })
        .abort_on_drop();
        gone.run_until_cancelled(StateCore::listen_to(shared, holder, &mut receiver)).await;
        drop(sending);
        Ok(())
    }

    /// Steps 1 and 2: everything that the follower has missed, as messages. On return it is a member of `holders`.
    async fn admit(
        &self,
        follower: FollowerId,
        hello: HelloAnswer,
        name: Arc<str>,
        updates: rt::channel::Sender<Bytes>,
        gone: &CancellationToken,
    ) -> Result<Vec<Bytes>, Error> {
        self.admits_followers.cancelled().await;
        if let Err(error) = self.materialize(self.height.load(Ordering::Acquire)).await {
            tracing::debug!(%error, "a follower joins with a longer delta");
        }
        hold_up("state.followers.join").await;
        // Most of the sections without the lock.
        let known: Set<u32> = self.writer.lock().await.sections.values().copied().collect();
        let mut places = self.grant_reads(known.iter().copied(), follower, JOIN_TIMEOUT / 2).await;
        let writer = self.writer.lock().await;
        if self.is_fenced() {
            return Err(Error::Fenced);
        }
        let mut parts = ChangeBatches::default();
        let leased_since = writer.sections.values().copied().filter(|id| !known.contains(id));
        places.extend(self.grant_reads(leased_since, follower, DONOR_TIMEOUT).await);
        for (base, id) in &writer.sections {
            let section = Section { id: *id, address: *base, bytes: self.memory.section_bytes() };
            match places.get(id) {
                Some(place) => parts.add(|changes| changes.section(&section, place)),
                None => tracing::debug!(section = id, "a follower goes without a section"),
            }
        }
        for subtable in self.directory.subtables() {
            parts.add(|changes| changes.subtable(&subtable));
        }
        let height = self.height.load(Ordering::Acquire);
        let base = {
            let delta = self.delta();
            for (number, writes) in delta.writes_by_block() {
                let writes = writes.into_iter().map(|(name, written)| (name, written.clone()));
                parts.add(|changes| changes.block(number, writes));
            }
            delta.first_block().unwrap_or(height)
        };
        let welcome = ToFollower::Welcome {
            hello,
            seed: self.seed,
            base,
            savepoint: self.savepoint.load(Ordering::Acquire),
            forgotten: self.forgotten.load(Ordering::Acquire),
            budget_bytes: self.memory.budget_bytes(),
        };
        // With the lock held, so that the follower misses no change and gets none twice.
        if !self.followers.add(follower, name, updates, height, gone.clone()) {
            return Err(Error::Busy);
        }
        drop(writer);
        events::FollowersJoined.add(1);
        let mut messages = vec![welcome.encode()];
        messages.extend(parts.into_messages());
        Ok(messages)
    }

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

    async fn listen_to(shared: &Arc<StateCore>, follower: FollowerId, receiver: &mut LinkReceiver) {
        while let Ok(message) = receiver.receive().await {
            match ToPrimary::decode(message) {
                Ok(ToPrimary::Ack { sequence, asked, floor, load }) => {
                    shared.followers.acknowledge(follower, sequence, asked, floor, load);
                }
                Ok(ToPrimary::Done { number, height, answer }) => {
                    shared.followers.work_done(follower, number, height, answer);
                }
                Ok(ToPrimary::InUse { number, in_use }) => shared.followers.in_use_answered(follower, number, in_use),
                Ok(ToPrimary::Fill { namespace, key }) => {
                    let Some(permit) = shared.fill_permits.try_acquire() else { continue };
                    // There is no view once this state is shutting down.
                    let view = shared.current.read().unwrap_or_else(PoisonError::into_inner).clone();
                    let Some(view) = view else { return };
                    drop(rt::spawn(async move {
                        let _permit = permit;
                        let name = KeyName { namespace: &namespace, key: &key };
                        if let Err(error) = view.refill(name).await {
                            tracing::debug!(%error, "a key that a follower read stays in storage");
                        }
                    }));
                }
                Ok(ToPrimary::Persist { height }) => {
                    let Some(permit) = shared.fill_permits.try_acquire() else { continue };
                    let shared = Arc::clone(shared);
                    drop(rt::spawn(async move {
                        let _permit = permit;
                        let height = height.min(shared.height.load(Ordering::Acquire));
                        if let Err(error) = shared.materialize(height).await {
                            tracing::debug!(%error, "rows that a follower needs are not materialised yet");
                        }
                    }));
                }
                Ok(ToPrimary::Join { .. }) | Err(_) => {
                    tracing::warn!(?follower, "a follower sent an invalid message; its link is closed");
                    return;
                }
            }
        }
    }

    /// The heartbeat.
    pub(in super::super) async fn send_heartbeats(&self) {
        loop {
            if !self.followers.any() {
                self.followers.joined.notified().await;
            }
            rt::sleep(HEARTBEAT).await;
            if self.is_fenced() {
                return self.followers.remove_all();
            }
            let mut asked = self.followers.lease_requests();
            if !asked.is_empty() && !mutant(Mutant::GrantUnproven) {
                // A follower that asks from here on is served next time: storage's confirmation must be later than the
                // request.
                match rt::timeout(LEASE, self.store.confirm()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) if error.kind() == base::ErrorKind::Fenced => {
                        self.fenced.store(true, Ordering::Relaxed);
                        return self.followers.remove_all();
                    }
                    outcome => {
                        tracing::debug!(?outcome, "followers get no leases for now");
                        asked.clear();
                    }
                }
            }
            hold_up("state.followers.grant").await;
            self.followers.flush(&asked, self.heat.notes_uses());
        }
    }

    /// Step 6, when a block is applied: sends the logged changes, and waits until every follower has applied them.
    pub(in super::super) async fn notify_followers(&self) {
        hold_up("state.followers.tell").await;
        let sequence = self.followers.flush(&[], self.heat.notes_uses());
        self.followers.wait_acknowledged(sequence).await;
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

/// Removes the follower when its link ends, and has its capabilities revoked.
struct LeaveGuard<'a> {
    shared: &'a Arc<StateCore>,
    holder: FollowerId,
}

impl Drop for LeaveGuard<'_> {
    fn drop(&mut self) {
        self.shared.followers.remove(self.holder);
        let (memory, holder) = (Arc::clone(&self.shared.memory), self.holder);
        if rt::is_running() {
            drop(rt::spawn(async move {
                if let Err(error) = memory.revoke_reads(holder).await {
                    // They end with their sections, or with this primary.
                    tracing::debug!(%error, "a follower's capabilities are not revoked yet");
                }
            }));
        }
    }
}

/// Changes, split into messages of about [`CHANGE_BATCH_BYTES`].
#[derive(Default)]
struct ChangeBatches {
    full: Vec<Bytes>,
    last: BytesMut,
}

impl ChangeBatches {
    fn add(&mut self, log: impl FnOnce(&mut ChangeLog<'_>)) {
        log(&mut ChangeLog(&mut self.last));
        if self.last.len() >= CHANGE_BATCH_BYTES {
            self.full.push(self.last.split().freeze());
        }
    }

    fn into_messages(self) -> impl Iterator<Item = Bytes> {
        self.full.into_iter().chain([self.last.freeze()]).map(|changes| ToFollower::CatchUp { changes }.encode())
    }
}
