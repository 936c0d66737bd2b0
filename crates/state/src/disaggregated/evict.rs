//! Eviction: keeps remote memory below its budget by taking cold records out, ahead of need, in the background.
//!
//! FlexChain's section 4.3 with another order of things, for which docs/adr (eviction) gives the reasons. A task of its own is
//! woken when more than [`evict_above_percent`](super::DisaggregatedSettings::evict_above_percent) of the memory that may be
//! had is in use (live and quarantined), or when something found no room. A *pass* then goes on until no more than
//! [`evict_to_percent`](super::DisaggregatedSettings::evict_to_percent) will be:
//! 1. Versions that newer ones superseded, that the savepoint covers, and that only views lagging behind could ask for, go
//!    first: they are put aside. [`Shared::forgotten`] tells readers which `prev`s they may not follow any more.
//! 2. The hand of a clock goes over the live buffers in the order of addresses. What was used since it last came by
//!    ([`super::heat`]), it passes over. Of a few others at a time ([`BATCH_RECORDS`]), one *batch*, it takes the writer's lock and
//!    reads the heads. Candidates are newest versions that the savepoint covers: storage has them as rows.
//! 3. Every compute node of the peer says which of the candidates it has in use ([`Shared::in_use`]); those stay.
//! 4. **Locate.** The groups of buckets are read. A record to which its slot does not lead is none of ours.
//! 5. **Mark.** The record's word is swapped from (newest, this life, valid) to (newest, this life, given up).
//! 6. **Drop.** The slot is swapped from the record to empty.
//! 7. **Invalidate.** The caches keep the version, lose the pointer, and kill every token of the key; so do the readers'
//!    ([`super::readers`]), with their next update.
//! 8. **Put aside.** When the readers have acknowledged that, the buffer waits until every lease that could hold its address
//!    has ended, and is free.
//! 9. When a round found too little that the savepoint covers, storage is asked to make rows of everything applied so far.
//!    No lock is held meanwhile.
//!
//! The last of [`ROUNDS_MAX`] rounds takes what is in use as well: a memory in which everything is hot has no better choice.
//! After a pass the task waits until what it put aside is free, and only then looks again.
//!
//! A reader of an evicted key finds nothing in memory, or a record that was given up, goes to delta and storage, and brings
//! the record back ([`super::fill`]). Readers never wait for a batch. A block waits for one batch at most, that is for its verbs
//! and for what step 3 allows compute nodes to say what they have in use (5 ms), and never for storage.
//!
//! What may fail: *a head or a group cannot be read*: the record stays, or its section is given up as everywhere. *A mark
//! is ambiguous*: the record is dropped all the same, since a mark that lands late names the life of the buffer; one that
//! certainly had no effect, or finds another word, leaves the record where it is. *A drop is ambiguous or finds another
//! slot*: the subtable's section is given up, and the buffer put aside.
//!
//! Invariants:
//! * What is evicted is in storage, durably, before its record is marked; so no version ever is in memory alone, and none
//!   comes back older: rows are keyed by version, and making a block's rows later replaces nothing.
//! * A version of which the delta says that memory has it is there: only what the delta has forgotten is evicted.
//! * A record that was evicted, while it is put aside, says so.

use std::sync::atomic::Ordering;

use base::rt::{self, Instant};
use base::{Map, Set};

use super::apply::Groups;
use super::fault::{Mutant, hold_up, mutant};
use super::grow::OwnHead;
use super::index::{KeyHash, Place, Subtable};
use super::keeper::RETRY_PAUSE;
use super::lease::REUSE_AFTER;
use super::memory::{completed, had_no_effect};
use super::pointer::Pointer;
use super::record::Word;
use super::space::{Accounts, Extent};
use super::{Shared, Writer};
use crate::{Error, events};

/// Uses are noted from when memory is so much less full than eviction leaves it.
const NOTE_BEFORE_PERCENT: u8 = 5;
/// Records whose heads are read, and that are evicted, under one hold of the writer's lock.
pub const BATCH_RECORDS: usize = 64;
/// Buffers that the hand passes over under one hold of the writer's lock.
const BATCH_BUFFERS: usize = 1024;
/// Superseded versions that are put aside under one hold of the writer's lock.
const BATCH_SUPERSEDED: usize = 4096;
/// How often a pass goes round: the rest of a round begun before, one that takes the bits away, one that evicts, and one
/// that takes what there is.
const ROUNDS_MAX: u32 = 4;
/// What found no room, though there should be some, has others evicted for it only if it is no longer than this part of a
/// section, and then this part of what is in use: free extents grow together.
const SCATTERED_PART: u64 = 16;

/// A record that may be evicted, as compute nodes are asked about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// What a compute node that uses it has cached.
    pub pointer: Pointer,
    /// Which shard of its caches to look into.
    pub hash: KeyHash,
}

/// A record on its way out.
struct Victim {
    candidate: Candidate,
    head: OwnHead,
    bytes: u64,
    subtable: Subtable,
    place: Place,
    is_marked: bool,
}

/// What came of one batch.
#[derive(Default)]
struct Batch {
    bytes: u64,
    /// The hand came to the end of memory.
    is_round: bool,
    /// There was something that the savepoint does not cover.
    uncovered: bool,
}

impl Shared {
    /// The task.
    pub(super) async fn keep_evicting(&self) {
        loop {
            self.crowded.notified().await;
            match self.make_room().await {
                Ok(true) => {
                    if self.holders.any() {
                        self.tell_readers().await;
                        self.writer.lock().await.put_aside_what_is_told();
                    }
                    rt::sleep(REUSE_AFTER).await;
                }
                Ok(false) => {}
                Err(Error::Fenced) => return,
                Err(error) => {
                    tracing::debug!(%error, "memory stays crowded for now");
                    rt::sleep(RETRY_PAUSE).await;
                }
            }
            if self.is_fenced() {
                return;
            }
        }
    }

    async fn make_room(&self) -> Result<bool, Error> {
        let evicted = self.evict().await?;
        Ok(self.drain().await? || evicted)
    }

    /// Bytes of memory that may be had: what the budget allows, or what there is when the pool has no more.
    fn capacity(&self, writer: &Writer) -> u64 {
        let leased = writer.space.accounts().leased;
        let allowed = self.allowed();
        match self.is_exhausted(writer) {
            true => leased.min(allowed),
            false => allowed,
        }
    }

    fn is_exhausted(&self, writer: &Writer) -> bool {
        writer.exhausted.is_some_and(|exhausted| exhausted.holds(self.memory.budget_bytes()))
    }

    /// Wakes the task when memory is crowded, and has uses noted when it soon may be.
    pub(super) fn watch_room(&self, writer: &Writer) {
        let Accounts { leased, live, quarantined, .. } = writer.space.accounts();
        let part = |percent: u8| self.capacity(writer) / 100 * u64::from(percent);
        let used = live + quarantined;
        self.heat.note_uses(used > part(self.settings.evict_to_percent.saturating_sub(NOTE_BEFORE_PERCENT)));
        if writer.short > 0 || leased > self.allowed() || used > part(self.settings.evict_above_percent) {
            self.crowded.notify_one();
        }
    }

    /// How many bytes are to be evicted. A further section is preferred to that, if there is one to be had.
    async fn excess(&self, writer: &mut Writer) -> u64 {
        let short = std::mem::take(&mut writer.short);
        let above = |shared: &Shared, writer: &Writer| {
            let Accounts { live, quarantined, .. } = writer.space.accounts();
            let capacity = shared.capacity(writer);
            let percent = |percent: u8| capacity / 100 * u64::from(percent);
            let used = live + quarantined;
            let to = percent(shared.settings.evict_to_percent);
            (used, if used > percent(shared.settings.evict_above_percent) { used.saturating_sub(to) } else { 0 })
        };
        let (_, excess) = above(self, writer);
        let may_grow = writer.space.accounts().leased < self.allowed();
        if (short > 0 || (excess > 0 && self.is_exhausted(writer))) && may_grow && self.grow_space(writer).await {
            return 0;
        }
        match above(self, writer) {
            (used, 0) if short > 0 && short <= self.memory.section_bytes() / SCATTERED_PART => used / SCATTERED_PART,
            (_, excess) => excess,
        }
    }

    /// One pass; whether there was anything to do.
    async fn evict(&self) -> Result<bool, Error> {
        let started = rt::now();
        let excess = {
            let mut writer = self.writer.lock().await;
            self.reclaim(&mut writer);
            self.excess(&mut writer).await
        };
        if excess == 0 {
            return Ok(false);
        }
        let mut evicted = self.evict_superseded(excess).await?;
        let (mut round, mut uncovered) = (0, false);
        while evicted < excess && round < ROUNDS_MAX {
            let batch = self.evict_batch(excess - evicted, round + 1 == ROUNDS_MAX).await?;
            evicted += batch.bytes;
            uncovered |= batch.uncovered;
            if batch.is_round {
                round += 1;
                if evicted < excess && std::mem::take(&mut uncovered) && round > 1 {
                    hold_up("state.evict.persist").await;
                    events::EvictionsPersisting.add(1);
                    self.materialize(self.height.load(Ordering::Acquire)).await?;
                }
            }
        }
        events::EvictionPasses.add(1);
        events::EvictionTime.record_since(started);
        Ok(true)
    }

    /// Step 1.
    async fn evict_superseded(&self, excess: u64) -> Result<u64, Error> {
        let mut evicted = 0;
        loop {
            hold_up("state.evict.superseded").await;
            let mut writer = self.writer.lock().await;
            if self.is_fenced() {
                return Err(Error::Fenced);
            }
            let settled = self.settled.load(Ordering::Acquire);
            for _ in 0..BATCH_SUPERSEDED {
                let Some(superseded) = writer.superseded.front() else { return Ok(evicted) };
                let (pointer, since) = (superseded.pointer, superseded.since);
                if since >= settled || evicted >= excess {
                    return Ok(evicted);
                }
                // First readers are told, then it is put aside: whoever has not been told has a lease older than that.
                self.forgotten.fetch_max(since + 1, Ordering::AcqRel);
                self.holders.log(|changes| changes.forgotten(since + 1));
                writer.superseded.pop_front();
                let extent = writer.space.extent(pointer.address());
                evicted += extent.map_or(0, |extent| extent.bytes);
                writer.put_aside(pointer);
                events::SupersededEvicted.add(1);
            }
        }
    }

    /// Steps 2 to 8 for the next few buffers.
    async fn evict_batch(&self, wanted: u64, whatever: bool) -> Result<Batch, Error> {
        hold_up("state.evict.begin").await;
        let mut guard = self.writer.lock().await;
        let writer = &mut *guard;
        if self.is_fenced() {
            return Err(Error::Fenced);
        }
        let mut batch = Batch::default();
        let extents = self.pass_over(writer, wanted, whatever, &mut batch);
        let candidates = self.candidates(writer, &extents, &mut batch).await;
        let in_use = match whatever {
            true => vec![false; candidates.len()],
            false => {
                let asked: Vec<Candidate> = candidates.iter().map(|(candidate, ..)| *candidate).collect();
                self.in_use(&asked).await
            }
        };
        events::EvictionsSpared.add(in_use.iter().filter(|in_use| **in_use).count() as u64);
        let cold = candidates.into_iter().zip(in_use).filter(|(_, in_use)| !in_use).map(|(candidate, _)| candidate);
        let mut victims = self.find(writer, cold.collect()).await;
        self.mark(writer, &mut victims).await;
        self.drop_from_index(writer, &mut victims).await;
        self.invalidate(&victims).await;
        let put_aside = rt::now();
        for victim in &victims {
            let pointer = victim.candidate.pointer;
            if writer.space.extent(pointer.address()).is_none() {
                continue;
            }
            batch.bytes += victim.bytes;
            match (mutant(Mutant::EvictedReusedEarly), mutant(Mutant::EvictUntold)) {
                (true, _) => writer.space.free(pointer.address()),
                (_, true) => writer.put_aside_told(pointer),
                _ => writer.put_aside(pointer),
            }
            if victim.is_marked {
                writer.evicted.push_back((put_aside, pointer));
            }
            writer.usage.evicted_records += 1;
            events::RecordsEvicted.add(1);
        }
        writer.usage.evicted_bytes += batch.bytes;
        events::BytesEvicted.add(batch.bytes);
        Ok(batch)
    }

    /// Step 2: moves the hand; gives the buffers before it that were not used.
    fn pass_over(&self, writer: &mut Writer, wanted: u64, whatever: bool, batch: &mut Batch) -> Vec<Extent> {
        let mut cold = Vec::with_capacity(BATCH_RECORDS);
        let (mut bytes, mut spared, mut hand) = (0, 0, 0);
        for extent in writer.space.buffers_from(writer.hand).take(BATCH_BUFFERS) {
            hand = extent.address + 1;
            match self.heat.take(extent.address) && !whatever {
                true => spared += 1,
                false => {
                    bytes += extent.bytes;
                    cold.push(extent);
                }
            }
            if cold.len() == BATCH_RECORDS || bytes >= wanted {
                break;
            }
        }
        batch.is_round = hand == 0 || writer.space.buffers_from(hand).next().is_none();
        writer.hand = if batch.is_round { 0 } else { hand };
        events::EvictionsSpared.add(spared);
        cold
    }

    /// Step 2: the newest versions among these buffers that storage has.
    async fn candidates(
        &self,
        writer: &Writer,
        extents: &[Extent],
        batch: &mut Batch,
    ) -> Vec<(Candidate, OwnHead, u64)> {
        let settled = match mutant(Mutant::EvictUncovered) {
            true => u64::MAX,
            false => self.settled.load(Ordering::Acquire),
        };
        let heads = self.read_heads_at(extents).await;
        let mut candidates = Vec::with_capacity(heads.len());
        for (extent, head) in extents.iter().zip(heads) {
            // A subtable, or what a superseded or an evicted version has left.
            let Some((pointer, head)) = head else { continue };
            if !writer.space.holds(extent.address) || !head.is_newest() || head.is_deletion() {
                continue;
            }
            if head.version().block >= settled {
                batch.uncovered = true;
                continue;
            }
            let Some(name) = head.name() else { continue };
            let hash = KeyHash::new(name, self.seed);
            candidates.push((Candidate { pointer, hash }, head, extent.bytes));
        }
        candidates
    }

    /// Step 3: which records some compute node of the peer has in use, besides those whose bits the hand has seen. Readers are
    /// asked all at once, and one that does not answer has nothing in use.
    async fn in_use(&self, candidates: &[Candidate]) -> Vec<bool> {
        let mut in_use = self.holders.in_use(candidates).await;
        for (in_use, candidate) in in_use.iter_mut().zip(candidates) {
            *in_use |= self.caches.has(candidate.hash, candidate.pointer);
        }
        in_use
    }

    /// Step 4.
    async fn find(&self, writer: &mut Writer, cold: Vec<(Candidate, OwnHead, u64)>) -> Vec<Victim> {
        let mut groups = Groups::default();
        let mut wanted: Map<u64, Subtable> = Map::default();
        for (candidate, ..) in &cold {
            if let Some(subtable) = self.find_subtable(candidate.hash) {
                wanted.insert(subtable.group_address(candidate.hash.group()), subtable);
            }
        }
        let mut wanted: Vec<(u64, Subtable)> = wanted.into_iter().collect();
        wanted.sort_unstable_by_key(|(address, _)| *address);
        self.read_groups(writer, &wanted, &mut groups).await;
        let victims = cold.into_iter().filter_map(|(candidate, head, bytes)| {
            let Candidate { pointer, hash } = candidate;
            let subtable = self.find_subtable(hash)?;
            let (read, group) = groups.get(&subtable.group_address(hash.group()))?;
            let group = group.as_ref().filter(|_| *read == subtable && writer.space.holds(pointer.address()))?;
            let place = group.find(hash, hash.slot(pointer))?;
            Some(Victim { candidate, head, bytes, subtable, place, is_marked: false })
        });
        victims.collect()
    }

    /// Step 5.
    async fn mark(&self, writer: &Writer, victims: &mut Vec<Victim>) {
        hold_up("state.evict.mark").await;
        if mutant(Mutant::NoMark) {
            victims.iter_mut().for_each(|victim| victim.is_marked = true);
            return;
        }
        let posted: Vec<_> = victims
            .iter()
            .map(|victim| {
                let pointer = victim.candidate.pointer;
                let word = |valid| Word { next: Pointer::NULL, incarnation: pointer.incarnation(), valid }.bits();
                let verb = writer
                    .space
                    .holds(pointer.address())
                    .then(|| self.memory.compare_swap(pointer.address(), word(true), word(false)));
                (word(true), verb)
            })
            .collect();
        let mut stay: Set<Pointer> = Set::default();
        for (victim, (expected, verb)) in victims.iter_mut().zip(posted) {
            let pointer = victim.candidate.pointer;
            let Some(verb) = verb else {
                stay.insert(pointer);
                continue;
            };
            match completed(&*self.memory, verb).await {
                Ok(found) if found == expected => victim.is_marked = true,
                Ok(_) => drop(stay.insert(pointer)),
                Err(error) => {
                    self.memory.note_failure(pointer.address(), &error);
                    if had_no_effect(&error) {
                        stay.insert(pointer);
                    }
                }
            }
        }
        victims.retain(|victim| !stay.contains(&victim.candidate.pointer));
    }

    /// Step 6. Whatever comes of it, no slot leads to the victims any more.
    async fn drop_from_index(&self, writer: &mut Writer, victims: &mut [Victim]) {
        hold_up("state.evict.slot").await;
        let posted: Vec<_> = victims
            .iter()
            .filter(|victim| writer.space.holds(victim.subtable.address))
            .map(|victim| {
                let Candidate { pointer, hash } = victim.candidate;
                let address = victim.place.address(victim.subtable.group_address(hash.group()));
                let slot = hash.slot(pointer);
                (address, slot, self.memory.compare_swap(address, slot, 0))
            })
            .collect();
        let mut failed = Vec::new();
        for (address, slot, verb) in posted {
            match completed(&*self.memory, verb).await {
                Ok(found) if found == slot => {}
                Ok(_) => {
                    events::SlotsMissed.add(1);
                    failed.push(address);
                }
                Err(error) => {
                    self.memory.note_failure(address, &error);
                    failed.push(address);
                }
            }
        }
        for address in failed {
            self.give_up(writer, address);
        }
    }

    /// Step 7.
    async fn invalidate(&self, victims: &[Victim]) {
        hold_up("state.evict.caches").await;
        for victim in victims {
            let name = victim.head.name().expect("it had one when it was chosen");
            self.caches.evict(victim.candidate.hash, name, victim.candidate.pointer);
            if !mutant(Mutant::EvictUntold) {
                self.holders.log(|changes| changes.evicted(name, victim.candidate.pointer));
            }
        }
    }
}

impl Writer {
    /// Forgets which records were evicted and are free by now.
    pub(super) fn forget_evicted(&mut self, now: Instant) {
        while self.evicted.front().is_some_and(|(put_aside, _)| *put_aside + REUSE_AFTER <= now) {
            self.evicted.pop_front();
        }
    }
}
