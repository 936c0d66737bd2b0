//! The primary's end of a reader's link, and the heartbeat.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use base::rt::channel::bounded;
use base::rt::net::{Link, LinkReceiver};
use base::rt::{self, Stop};
use base::{BlockNumber, Bytes, BytesMut, Map, Set};
use futures_util::future::join_all;

use super::super::cache::Token;
use super::super::fault::{Mutant, hold_up, mutant};
use super::super::index::KeyHash;
use super::super::lease::{HolderId, LEASE};
use super::super::memory::Section;
use super::super::record::Name;
use super::super::{DONOR_WAIT_MAX, Shared, View};
use super::holders::UPDATES_MAX;
use super::message::{Changes, ToPrimary, ToReader, VERSION};
use super::{HEARTBEAT, JOIN_MAX};
use crate::{Error, events};

/// Bytes of one part of what a reader has missed.
const PART_BYTES: usize = 1 << 20;

impl Shared {
    /// Steps 1 to 9 with one reader, until its link ends.
    pub(in super::super) async fn serve_reader(shared: &Arc<Shared>, link: Link) -> Result<(), Error> {
        let proven: Option<Arc<str>> = link.peer().map(Arc::from);
        let (sender, mut receiver) = link.split();
        let Ok(Ok(join)) = rt::timeout(JOIN_MAX, receiver.receive()).await else { return Ok(()) };
        match ToPrimary::decode(join) {
            Ok(ToPrimary::Join { version }) if version == VERSION => {}
            other => {
                tracing::warn!(?other, "not a reader of this version; run the same release on all compute nodes");
                let (seed, base, settled, forgotten, budget_bytes) = (0, 0, 0, 0, 0);
                let welcome = ToReader::Welcome { version: VERSION, seed, base, settled, forgotten, budget_bytes };
                // It has the version.
                let _ = sender.send(welcome.encode()).await;
                return Ok(());
            }
        }
        let holder = shared.holders.number();
        let name = proven.unwrap_or_else(|| format!("reader {}", holder.0).into());
        let (updates, mut waiting) = bounded::<Bytes>(UPDATES_MAX);
        let gone = Stop::new();
        // From here on sections may be shared with it.
        let _leaving = Leaving { shared, holder };
        let missed = match rt::timeout(JOIN_MAX, shared.admit(holder, name, updates, &gone)).await {
            Ok(missed) => missed?,
            Err(rt::Elapsed) => return Err(Error::Busy),
        };
        let ended = gone.clone();
        let sending = rt::spawn(async move {
            for message in missed {
                if sender.send(message).await.is_err() {
                    return ended.stop();
                }
            }
            while let Some(message) = waiting.recv().await {
                if sender.send(message).await.is_err() {
                    break;
                }
            }
            ended.stop();
        })
        .abort_on_drop();
        gone.or_stopped(Shared::listen_to(shared, holder, &mut receiver)).await;
        drop(sending);
        Ok(())
    }

    /// Steps 1 and 2: everything that the reader has missed, as messages. It is one of the holders on return.
    async fn admit(
        &self,
        holder: HolderId,
        name: Arc<str>,
        updates: rt::channel::Sender<Bytes>,
        gone: &Stop,
    ) -> Result<Vec<Bytes>, Error> {
        self.admits_readers.stopped().await;
        if let Err(error) = self.materialize(self.height.load(Ordering::Acquire)).await {
            tracing::debug!(%error, "a reader joins with a longer delta");
        }
        hold_up("state.readers.join").await;
        // Most of the sections without the lock.
        let known: Set<u32> = self.writer.lock().await.sections.values().copied().collect();
        let mut places = self.places(known.iter().copied(), holder, JOIN_MAX / 2).await;
        let writer = self.writer.lock().await;
        if self.is_fenced() {
            return Err(Error::Fenced);
        }
        let mut parts = Parts::default();
        let leased_since = writer.sections.values().copied().filter(|id| !known.contains(id));
        places.extend(self.places(leased_since, holder, DONOR_WAIT_MAX).await);
        for (base, id) in &writer.sections {
            let section = Section { id: *id, address: *base, bytes: self.memory.section_bytes() };
            match places.get(id) {
                Some(place) => parts.add(|changes| changes.section(&section, place)),
                None => tracing::debug!(section = id, "a reader goes without a section"),
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
        let welcome = ToReader::Welcome {
            version: VERSION,
            seed: self.seed,
            base,
            settled: self.settled.load(Ordering::Acquire),
            forgotten: self.forgotten.load(Ordering::Acquire),
            budget_bytes: self.memory.budget_bytes(),
        };
        // With the lock held, so that it misses nothing and is told nothing twice.
        if !self.holders.add(holder, name, updates, height, gone.clone()) {
            return Err(Error::Busy);
        }
        drop(writer);
        events::ReadersJoined.add(1);
        let mut messages = vec![welcome.encode()];
        messages.extend(parts.into_messages());
        Ok(messages)
    }

    /// Has sections shared with a reader, all at once: where each is that was shared in time.
    async fn places(
        &self,
        sections: impl Iterator<Item = u32>,
        holder: HolderId,
        patience: Duration,
    ) -> Map<u32, Bytes> {
        let shares = sections.map(async |id| {
            let shared = rt::timeout(patience, self.memory.share(id, holder)).await;
            Some((id, shared.ok()?.ok()?))
        });
        join_all(shares).await.into_iter().flatten().collect()
    }

    async fn listen_to(shared: &Arc<Shared>, holder: HolderId, receiver: &mut LinkReceiver) {
        while let Ok(message) = receiver.receive().await {
            match ToPrimary::decode(message) {
                Ok(ToPrimary::Ack { sequence, asked, floor, load }) => {
                    shared.holders.acked(holder, sequence, asked, floor, load);
                }
                Ok(ToPrimary::Done { number, height, answer }) => {
                    shared.holders.piece_done(holder, number, height, answer);
                }
                Ok(ToPrimary::InUse { number, in_use }) => shared.holders.answered(holder, number, in_use),
                Ok(ToPrimary::Fill { namespace, key }) => {
                    let Some(permit) = shared.wishes.try_acquire() else { continue };
                    // There is none once this state is at its end.
                    let view = shared.current.read().unwrap_or_else(PoisonError::into_inner).clone();
                    let Some(view) = view else { return };
                    drop(rt::spawn(async move {
                        let _permit = permit;
                        let name = Name { namespace: &namespace, key: &key };
                        if let Err(error) = view.bring_back(name).await {
                            tracing::debug!(%error, "a reader's key stays in storage");
                        }
                    }));
                }
                Ok(ToPrimary::Persist { height }) => {
                    let Some(permit) = shared.wishes.try_acquire() else { continue };
                    let shared = Arc::clone(shared);
                    drop(rt::spawn(async move {
                        let _permit = permit;
                        let height = height.min(shared.height.load(Ordering::Acquire));
                        if let Err(error) = shared.materialize(height).await {
                            tracing::debug!(%error, "rows that a reader needs are not made yet");
                        }
                    }));
                }
                Ok(ToPrimary::Join { .. }) | Err(_) => {
                    tracing::warn!(?holder, "a reader says what it must not");
                    return;
                }
            }
        }
    }

    /// The heartbeat.
    pub(in super::super) async fn keep_readers(&self) {
        loop {
            if !self.holders.any() {
                self.holders.joined.notified().await;
            }
            rt::sleep(HEARTBEAT).await;
            if self.is_fenced() {
                return self.holders.remove_all();
            }
            let mut asked = self.holders.asked();
            if !asked.is_empty() && !mutant(Mutant::GrantUnproven) {
                // Whoever asks now asks next time: what storage confirms is later than what was asked before.
                match rt::timeout(LEASE, self.store.confirm()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) if error.kind() == base::ErrorKind::Fenced => {
                        self.fenced.store(true, Ordering::Relaxed);
                        return self.holders.remove_all();
                    }
                    outcome => {
                        tracing::debug!(?outcome, "no leases for readers for now");
                        asked.clear();
                    }
                }
            }
            hold_up("state.readers.grant").await;
            self.holders.flush(&asked, self.heat.notes_uses());
        }
    }

    /// Step 6 of applying a block: sends what was logged, and waits until every reader has it in force.
    pub(in super::super) async fn tell_readers(&self) {
        hold_up("state.readers.tell").await;
        let sequence = self.holders.flush(&[], self.heat.notes_uses());
        self.holders.told(sequence).await;
    }
}

impl View {
    /// Step 9, for a key that a reader has read from storage.
    async fn bring_back(self: &Arc<View>, name: Name<'_>) -> Result<(), Error> {
        let shared = &self.shared;
        let hash: KeyHash = self.hash(name);
        let token: Token = shared.caches.token(hash);
        let seen = shared.delta().see(hash, name, self.height);
        let is_newest = !seen.newer && shared.height.load(Ordering::Acquire) == self.height;
        let Some(through) = self.height.checked_sub(1).filter(|_| seen.newest.is_none() && is_newest) else {
            return Ok(());
        };
        let row = shared.store.get(name.namespace, name.key.as_bytes(), BlockNumber(through)).await?;
        if let Some(kept) = row.map(|row| super::super::read::kept_of(row.version, row.value))
            && kept.value.is_some()
        {
            Shared::fill(shared, hash, name, token, kept);
        }
        Ok(())
    }
}

/// Takes the reader out when its link ends, and has its capabilities revoked.
struct Leaving<'a> {
    shared: &'a Arc<Shared>,
    holder: HolderId,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.shared.holders.remove(self.holder);
        let (memory, holder) = (Arc::clone(&self.shared.memory), self.holder);
        if rt::is_running() {
            drop(rt::spawn(async move {
                if let Err(error) = memory.unshare(holder).await {
                    // They end with their sections, or with this primary.
                    tracing::debug!(%error, "a reader's capabilities are not revoked yet");
                }
            }));
        }
    }
}

/// Changes in messages of some length.
#[derive(Default)]
struct Parts {
    full: Vec<Bytes>,
    last: BytesMut,
}

impl Parts {
    fn add(&mut self, log: impl FnOnce(&mut Changes<'_>)) {
        log(&mut Changes(&mut self.last));
        if self.last.len() >= PART_BYTES {
            self.full.push(self.last.split().freeze());
        }
    }

    fn into_messages(self) -> impl Iterator<Item = Bytes> {
        self.full.into_iter().chain([self.last.freeze()]).map(|changes| ToReader::Part { changes }.encode())
    }
}
