//! Eviction: keeps remote memory below its budget by removing cold records ahead of need, in the background.
//!
//! The algorithm is that of FlexChain, section 4.3, with the steps in another order; docs/adr (eviction) gives the
//! reasons. A separate task is woken when more than
//! [`evict_above_percent`](super::DisaggregatedConfig::evict_above_percent) of the available memory is in use (live and
//! quarantined), or when an allocation failed for want of space. A *pass* then retires buffers until, once they are
//! free, no more than [`evict_to_percent`](super::DisaggregatedConfig::evict_to_percent) will be in use:
//! 1. Retire superseded versions that the savepoint covers; only views that lag behind could ask for them. From then on
//!    no read follows a `prev` link that may lead to such a version ([`StateCore::forgotten`]).
//! 2. The hand of a clock passes over the live buffers in the order of addresses. It skips buffers that were used since
//!    its last visit ([`super::reference_bits`]). The next buffers that the hand does not skip, up to
//!    [`BATCH_RECORDS`], form a *batch*. The task takes the writer's lock and reads their heads. A candidate is the
//!    newest version of its key and is covered by the savepoint, so storage has it as a row. A covered tombstone is
//!    one that a dead primary left: others are removed when the savepoint covers them.
//! 3. Every compute node of the peer reports which of the candidates it has in use ([`StateCore::in_use`]). These stay.
//! 4. **Locate.** Read the groups of buckets. Skip a record if no slot leads to it.
//! 5. **Mark.** Swap the record's link word from (newest, its incarnation, valid) to (newest, the same incarnation,
//!    invalid).
//! 6. **Drop.** Swap the slot from the record to empty.
//! 7. **Invalidate.** The primary's caches keep the version, drop the pointer to the record, and invalidate every token
//!    of the key. The followers' caches ([`super::followers`]) do the same with their next update.
//! 8. **Retire.** When the followers have acknowledged that update, the buffer stays in quarantine until every lease
//!    under which its address may be known has ended. Then it is free.
//! 9. If too little was evicted in a round of the hand, and the round found records that the savepoint does not cover,
//!    ask storage to materialise everything applied so far. The task holds no lock meanwhile.
//!
//! If every record is in use, some records in use must go. Therefore the last of [`ROUNDS_MAX`] rounds ignores whether
//! a record is in use. After a pass the task waits until the buffers that it retired are free, and only then checks
//! again.
//!
//! A reader of an evicted key finds an empty slot or a record marked invalid. It reads the delta and storage instead,
//! and brings the record back to memory ([`super::fill`]). Reads never wait for a batch. A block waits for at most one
//! batch: for its verbs and for the time that step 3 allows compute nodes for their answers (5 ms). It never waits for
//! storage.
//!
//! Failures:
//! * *A head or a group cannot be read*: the record stays, or its section is abandoned as in [`super::apply`].
//! * *A mark is ambiguous*: the record is dropped all the same. If the mark lands late, it has no effect on a reused
//!   buffer, because it names the incarnation. If a mark certainly had no effect, or found another link word, the
//!   record stays in memory.
//! * *A drop is ambiguous or finds another slot*: the subtable's section is abandoned, and the buffer retired.
//!
//! Invariants:
//! * The row of a version is durable in storage before the version's record is marked, so eviction never removes the
//!   only copy. A later read never finds an older version instead: rows are keyed by version, and materialising a block
//!   later replaces no row.
//! * If the delta locates a version in memory, the version is there: only versions that the delta has dropped are
//!   evicted.
//! * As long as an evicted record is in quarantine, its link word says that the record is invalid.

use base::rt::Instant;
use base::{Map, Set, rt};
use replica::followers::message::Candidate;
use replica::lease::REUSE_AFTER;

use super::eviction_candidate::EvictionCandidate;
use super::fault::{Mutant, hold_up, mutant};
use super::grow::OwnedHead;
use super::index::{KeyHash, SlotIndex, Subtable};
use super::memory::{completed, had_no_effect};
use super::pointer::Pointer;
use super::record::LinkWord;
use super::space::{Extent, SpaceAccounts};
use super::{StateCore, StateWriter};
use crate::disaggregated::limits::RETRY_PAUSE;
use crate::disaggregated::pending_write::{Groups, SlotSwap};
use crate::{Error, events};

pub(super) use std::sync::atomic::Ordering;

/// Uses are noted from this many percent below `evict_to_percent` on.
const NOTE_BEFORE_PERCENT: u8 = 5;
/// Records whose heads are read, and that are evicted, under one hold of the writer's lock.
pub const BATCH_RECORDS: usize = 64;
/// Buffers that the hand passes over under one hold of the writer's lock.
const BATCH_BUFFERS: usize = 1024;
/// Superseded versions that are retired under one hold of the writer's lock.
const BATCH_SUPERSEDED: usize = 4096;
/// Most rounds of a pass: the rest of a round begun earlier, one that clears the reference bits, one that evicts unused
/// records, and one that evicts any record.
const ROUNDS_MAX: u32 = 4;
/// If an allocation failed although enough bytes are free, records are evicted for it only if it is no longer than this
/// fraction of a section; then this fraction of the memory in use is evicted, so that free extents merge.
const SCATTERED_PART: u64 = 16;

/// A record that is being evicted.
struct EvictionVictim {
    candidate: EvictionCandidate,
    head: OwnedHead,
    bytes: u64,
    subtable: Subtable,
    slot: SlotIndex,
    is_marked_evicted: bool,
}

/// The result of one batch.
#[derive(Default)]
struct EvictionBatch {
    bytes: u64,
    /// The hand reached the end of memory.
    is_round: bool,
    /// The batch contained a version that the savepoint does not cover.
    uncovered: bool,
}

impl StateCore {
    /// The eviction task.
    pub(super) async fn run_eviction(&self) {
        loop {
            self.crowded.notified().await;
            match self.free_memory().await {
                Ok(true) => {
                    if self.followers.any() {
                        self.followers.notify(|| self.heat.notes_uses()).await;
                        self.writer.lock().await.retire_acknowledged();
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

    async fn free_memory(&self) -> Result<bool, Error> {
        if self.writer.lock().await.space.has_unsurveyed() {
            // The survey wakes this task again.
            return Ok(false);
        }
        let evicted = self.evict().await?;
        Ok(self.drain().await? || evicted)
    }

    /// Bytes of memory available: the budget, or the leased sections if the pool has no more.
    fn capacity(&self, writer: &StateWriter) -> u64 {
        let leased = writer.space.accounts().leased;
        let allowed = self.allowed();
        match self.is_exhausted(writer) {
            true => leased.min(allowed),
            false => allowed,
        }
    }

    fn is_exhausted(&self, writer: &StateWriter) -> bool {
        writer.exhausted.is_some_and(|exhausted| exhausted.holds(self.memory.budget_bytes()))
    }

    /// Wakes the eviction task when memory is crowded, and turns on the noting of uses when it soon may be.
    pub(super) fn watch_free_space(&self, writer: &StateWriter) {
        let SpaceAccounts { leased, live, quarantined, .. } = writer.space.accounts();
        let part = |percent: u8| self.capacity(writer) / 100 * u64::from(percent);
        let used = live + quarantined;
        self.heat.note_uses(used > part(self.settings.evict_to_percent.saturating_sub(NOTE_BEFORE_PERCENT)));
        if writer.short > 0 || leased > self.allowed() || used > part(self.settings.evict_above_percent) {
            self.crowded.notify_one();
        }
    }

    /// How many bytes to evict. Leasing another section comes first, if the pool has one.
    async fn excess(&self, writer: &mut StateWriter) -> u64 {
        let short = std::mem::take(&mut writer.short);
        let above = |shared: &StateCore, writer: &StateWriter| {
            let SpaceAccounts { live, quarantined, .. } = writer.space.accounts();
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

    /// One pass; returns whether there was anything to do.
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
            let settled = self.savepoint.load(Ordering::Acquire);
            for _ in 0..BATCH_SUPERSEDED {
                let Some(superseded) = writer.superseded.front() else { return Ok(evicted) };
                let (pointer, since) = (superseded.pointer, superseded.since);
                if since >= settled || evicted >= excess {
                    return Ok(evicted);
                }
                // Log the change for the followers first, then retire: the lease of a follower that has not
                // acknowledged it is older.
                self.forgotten.fetch_max(since + 1, Ordering::AcqRel);
                self.log_change(|changes| changes.forgotten(since + 1));
                writer.superseded.pop_front();
                let extent = writer.space.extent(pointer.address());
                evicted += extent.map_or(0, |extent| extent.bytes);
                writer.retire(pointer);
                events::SupersededEvicted.add(1);
            }
        }
    }

    /// Steps 2 to 8 for the next few buffers.
    async fn evict_batch(&self, wanted: u64, whatever: bool) -> Result<EvictionBatch, Error> {
        hold_up("state.evict.begin").await;
        let mut guard = self.writer.lock().await;
        let writer = &mut *guard;
        if self.is_fenced() {
            return Err(Error::Fenced);
        }
        let mut batch = EvictionBatch::default();
        let extents = self.pass_over(writer, wanted, whatever, &mut batch);
        let candidates = self.candidates(writer, &extents, &mut batch).await;
        let in_use = match whatever {
            true => vec![false; candidates.len()],
            false => {
                let asked: Vec<EvictionCandidate> = candidates.iter().map(|(candidate, ..)| *candidate).collect();
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
            match (mutant(Mutant::EvictedReusedEarly), mutant(Mutant::EvictUnacknowledged)) {
                (true, _) => writer.space.free(pointer.address()),
                (_, true) => writer.retire_now(pointer),
                _ => writer.retire(pointer),
            }
            if victim.is_marked_evicted {
                writer.evicted.push_back((put_aside, pointer));
            }
            writer.usage.evicted_records += 1;
            events::RecordsEvicted.add(1);
        }
        writer.usage.evicted_bytes += batch.bytes;
        events::BytesEvicted.add(batch.bytes);
        Ok(batch)
    }

    /// Step 2: moves the hand; returns the unused buffers that it passed.
    fn pass_over(
        &self,
        writer: &mut StateWriter,
        wanted: u64,
        whatever: bool,
        batch: &mut EvictionBatch,
    ) -> Vec<Extent> {
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
        writer: &StateWriter,
        extents: &[Extent],
        batch: &mut EvictionBatch,
    ) -> Vec<(EvictionCandidate, OwnedHead, u64)> {
        let settled = match mutant(Mutant::EvictUncovered) {
            true => u64::MAX,
            false => self.savepoint.load(Ordering::Acquire),
        };
        let heads = self.read_heads_at(extents).await;
        let mut candidates = Vec::with_capacity(heads.len());
        for (extent, head) in extents.iter().zip(heads) {
            // A subtable, or the remains of a superseded or evicted version.
            let Some((pointer, head)) = head else { continue };
            if !writer.space.holds(extent.address) || !head.is_newest() {
                continue;
            }
            if head.version().block >= settled {
                batch.uncovered |= !head.is_deletion();
                continue;
            }
            let Some(name) = head.name() else { continue };
            let hash = KeyHash::new(name, self.seed);
            candidates.push((EvictionCandidate { pointer, hash }, head, extent.bytes));
        }
        candidates
    }

    /// Step 3: which records some compute node of the peer has in use, besides those whose reference bits the hand has
    /// seen. Followers are asked in parallel; one that does not answer counts as using nothing.
    async fn in_use(&self, candidates: &[EvictionCandidate]) -> Vec<bool> {
        let asked: Vec<Candidate> = candidates.iter().map(|candidate| (*candidate).into()).collect();
        let mut in_use = self.followers.in_use(&asked).await;
        for (in_use, candidate) in in_use.iter_mut().zip(candidates) {
            *in_use |= self.caches.has(candidate.hash, candidate.pointer);
        }
        in_use
    }

    /// Step 4.
    async fn find(
        &self,
        writer: &mut StateWriter,
        cold: Vec<(EvictionCandidate, OwnedHead, u64)>,
    ) -> Vec<EvictionVictim> {
        let mut groups = Groups::default();
        let mut wanted: Map<u64, Subtable> = Map::default();
        for (candidate, ..) in &cold {
            if let Some(subtable) = self.find_subtable(candidate.hash) {
                wanted.insert(subtable.group_address(candidate.hash.group()), subtable);
            }
        }
        let mut wanted: Vec<(u64, Subtable)> = wanted.into_iter().collect();
        wanted.sort_unstable_by_key(|(address, _)| *address);
        let mut lost = Vec::new();
        self.read_groups(&wanted, &mut groups, &mut lost).await;
        lost.into_iter().for_each(|address| self.give_up(writer, address));
        let victims = cold.into_iter().filter_map(|(candidate, head, bytes)| {
            let EvictionCandidate { pointer, hash } = candidate;
            let subtable = self.find_subtable(hash)?;
            let (read, group) = groups.get(&subtable.group_address(hash.group()))?;
            let group = group.as_ref().filter(|_| *read == subtable && writer.space.holds(pointer.address()))?;
            let place = group.find(hash, hash.slot(pointer))?;
            Some(EvictionVictim { candidate, head, bytes, subtable, slot: place, is_marked_evicted: false })
        });
        victims.collect()
    }

    /// Step 5.
    async fn mark(&self, writer: &StateWriter, victims: &mut Vec<EvictionVictim>) {
        hold_up("state.evict.mark").await;
        if mutant(Mutant::NoMark) {
            victims.iter_mut().for_each(|victim| victim.is_marked_evicted = true);
            return;
        }
        let posted: Vec<_> = victims
            .iter()
            .map(|victim| {
                let pointer = victim.candidate.pointer;
                let word = |valid| LinkWord { next: Pointer::NULL, incarnation: pointer.incarnation(), valid }.bits();
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
                Ok(found) if found == expected => victim.is_marked_evicted = true,
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

    /// Step 6. Whatever the outcome, no slot leads to the victims any more.
    async fn drop_from_index(&self, writer: &mut StateWriter, victims: &mut [EvictionVictim]) {
        hold_up("state.evict.slot").await;
        let posted = victims
            .iter()
            .filter(|victim| writer.space.holds(victim.subtable.address))
            .map(|victim| {
                let EvictionCandidate { pointer, hash } = victim.candidate;
                let address = victim.slot.address(victim.subtable.group_address(hash.group()));
                let before = hash.slot(pointer);
                SlotSwap { address, before, verb: self.memory.compare_swap(address, before, 0) }
            })
            .collect();
        for address in self.failed_swaps(posted).await {
            self.give_up(writer, address);
        }
    }

    /// Step 7.
    async fn invalidate(&self, victims: &[EvictionVictim]) {
        hold_up("state.evict.caches").await;
        for victim in victims {
            let name = victim.head.name().expect("it had one when it was chosen");
            self.caches.evict(victim.candidate.hash, name, victim.candidate.pointer);
            if !mutant(Mutant::EvictUnacknowledged) {
                self.log_change(|changes| changes.evicted(name, victim.candidate.pointer));
            }
        }
    }
}

impl StateWriter {
    /// Drops the evicted records whose quarantine is over.
    pub(super) fn forget_evicted(&mut self, now: Instant) {
        while self.evicted.front().is_some_and(|(put_aside, _)| *put_aside + REUSE_AFTER <= now) {
            self.evicted.pop_front();
        }
    }
}
