//! Applies a block as one batch.
//!
//! The task that applies the block holds the writer's lock, except for the case in step 3. In each step it posts up to
//! [`IN_FLIGHT_MAX`] verbs before it awaits the first. Of a large block, steps 2 and 3 are divided among several tasks, and
//! so are steps 5 to 7 ([`super::apply_part`]).
//! 1. **Allocate.** Each new version gets a buffer; if no leased section has space, the task leases another one. A
//!    silent donor delays a block at most once, for [`DONOR_TIMEOUT`](super::DONOR_TIMEOUT): until the donor answers,
//!    memory counts as full.
//! 2. **Locate.** Read the group of buckets of every key. The records whose slots have the key's fingerprint are
//!    candidates. The current record of a key is the candidate that the metadata cache knows, or else the candidate
//!    whose head names the key. A new key gets an empty slot; if its group has none, the task splits the subtable and
//!    locates its keys again. A key that gets no slot returns its buffer.
//! 3. **Write.** Write each record whole, with `prev` leading to the previous version. No pointer leads to the new
//!    records yet, so steps 1 to 3 run while the block becomes durable. The following steps run once the block is
//!    durable. If the block is not durable [`LOCK_HELD_MAX`] after the writes, the task frees the buffers, releases the
//!    lock, waits until the block is durable, and starts over.
//! 4. **Delta**: enter the location of each new version. No reader sees the block yet.
//! 5. **Link.** Swap the link word of the previous version from (newest, its incarnation, valid) to (the new record,
//!    the same incarnation, valid).
//! 6. **Swap.** Swap the index slot from its old content to the new record.
//! 7. **Caches**: replace the cached versions by the new ones, and invalidate every token of their keys.
//! 8. Post the marks of the next height ([`super::marks`]), without waiting for them. **Record** the superseded versions
//!    and the tombstones in the writer's lists.
//! 9. **Invalidate** the caches of the followers ([`super::followers`]), and wait for each follower's acknowledgement
//!    or the end of its lease.
//! 10. **Publish**: wait until every lease that an earlier primary can have granted has ended, then raise the height.
//!     From here on snapshots see the block.
//!
//! A block is applied whole even if steps 1 to 6 fail for some of its keys. If the index cannot lead to the new version
//! of a key, the delta itself keeps the value, and the index has no entry for the key. Apply fails if the primary is
//! fenced, or if the block cannot be made durable; a block that is not durable leaves no trace. The delta is bounded:
//! the caller persists when [`crate::WorldState::wants_persist`] says so.
//!
//! * *Memory is full* (which wakes eviction), or a record is too long for a pointer: the slot of the previous version
//!   is swapped to empty.
//! * *A group or a head cannot be read*: its section is abandoned, because the task cannot tell which entry in it has
//!   to be removed. The key is located again, in a new subtable if there is memory for one.
//! * *A head is marked as evicted*, or a key has two records: an earlier primary died while it evicted the record, or lost
//!   a section that is there again. The slot is swapped to empty, and the key is located again.
//! * *A write is ambiguous*: it might land later, in a buffer that has been reused. Therefore its section is abandoned
//!   and returned to the pool, which revokes the section's capability; a verb under a revoked capability never lands.
//!   If a write certainly had no effect because the provider was busy, only its buffer is freed; after any other
//!   failure of a write the section is abandoned.
//! * *A link is ambiguous, or finds another link word*: this is harmless. A read through the slot does not need the
//!   link, and followers that cached the old address are invalidated. The compare-and-swap includes the buffer's
//!   incarnation, so a late verb cannot hit a reused buffer.
//! * *A swap is ambiguous, or finds another content in the slot*: it is unknown where the slot leads, so the subtable's
//!   section is abandoned. Reads find its keys in the delta and in storage until the keys are filled again. A reader
//!   may have seen the new record: its buffer is retired like that of a superseded version.
//!
//! Invariants:
//! * A record is reachable only if its block is durable.
//! * When the height is raised, the slot of every key that the block wrote leads to the new version, or is empty, or
//!   lies in an abandoned section.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{Bytes, BytesMut, rt};

use super::apply_part::{ApplyPart, ApplyParts};
use super::fault::{Mutant, hold_up, mutant};
use super::grow::IN_FLIGHT_MAX;
use super::index::{BucketGroup, GROUP_BYTES, Subtable};
use super::memory::completed;
use super::pending_write::{Groups, NewRecord, PendingWrite, SlotSwap, beside, items};
use super::pointer::{Pointer, UNIT_BYTES};
use super::record::{KeyName, RECORD_BYTES_MAX};
use super::{StateCore, StateWriter, SupersededVersion, Tombstone, record};
use crate::{Durable, Error, UpdateBatch, events};

/// Rounds of locating: one for every bit by which a subtable may have to grow, plus some for failures.
const ROUNDS_MAX: usize = 40;

impl StateCore {
    pub(super) async fn apply(
        shared: &Arc<StateCore>,
        number: u64,
        batch: UpdateBatch,
        mut durable: Option<Durable<'_>>,
    ) -> Result<(), Error> {
        let mut parts = ApplyParts::new(shared, items(batch, shared.seed));
        while !StateCore::apply_once(shared, number, &mut parts, &mut durable).await? {
            if let Some(durable) = durable.take() {
                durable.await?;
            }
            parts.start_over();
        }
        Ok(())
    }

    /// False if the block was not durable in time; then nothing has changed. `durable` is taken once it has completed.
    async fn apply_once(
        shared: &Arc<StateCore>,
        number: u64,
        parts: &mut ApplyParts,
        durable: &mut Option<Durable<'_>>,
    ) -> Result<bool, Error> {
        let height = shared.height.load(Ordering::Acquire);
        if number != height {
            return Err(Error::OutOfOrder { given: number, height });
        }
        let mut guard = shared.writer.lock().await;
        let writer = &mut *guard;
        if shared.is_fenced() {
            return Err(Error::Fenced);
        }
        let mut started = rt::now();
        shared.reclaim(writer);
        shared.watch_free_space(writer);
        let unseen = async {
            shared.allocate(writer, parts).await;
            shared.locate(writer, parts).await;
        };
        match durable {
            None => unseen.await,
            Some(waiting) => {
                let ended = beside(waiting, unseen).await;
                if !matches!(ended, Some(Ok(()))) {
                    parts.undo(writer);
                }
                let Some(ended) = ended else { return Ok(false) };
                *durable = None;
                ended?;
                // The metric measures how long a durable block takes to become visible.
                started = rt::now();
            }
        }
        shared.note_in_delta(parts, number);
        if mutant(Mutant::MarkEarly) {
            shared.post_marks(writer, number + 1);
        }
        shared.publish_slots(writer, parts).await;
        if shared.is_fenced() {
            return Err(Error::Fenced);
        }
        hold_up("state.apply.mark").await;
        // Before the height: a successor opens at a mark, and readers here may see no more than it.
        shared.post_marks(writer, number + 1);
        if mutant(Mutant::PublishEarly) {
            shared.height.store(number + 1, Ordering::Release);
            StateCore::publish(shared, number + 1);
            rt::sleep(Duration::from_millis(1)).await;
            shared.height.store(number, Ordering::Release);
        }
        parts.replace_rest_in_caches();
        shared.retire_replaced(writer, parts, number);
        shared.invalidate_followers(parts, number).await;
        hold_up("state.apply.publish").await;
        shared.earlier_leases.wait().await;
        let before = shared.height.swap(number + 1, Ordering::AcqRel);
        assert_eq!(before, number, "one primary applies blocks in order");
        StateCore::publish(shared, number + 1);
        events::ApplyTime.record_since(started);
        Ok(true)
    }

    /// Steps 2 and 3.
    async fn locate(&self, writer: &mut StateWriter, parts: &mut ApplyParts) {
        parts.run(&writer.space.held(), ApplyPart::look_and_write).await;
        for round in 1.. {
            self.settle(writer, parts).await;
            let held = writer.space.held();
            parts.each().for_each(|part| part.forget_lost_slots(&held));
            if round == ROUNDS_MAX || parts.items().all(|item| item.located) {
                break;
            }
            parts.join();
            parts.run(&held, ApplyPart::look_and_write).await;
        }
        // Items that could not be located within this many rounds stay out of memory. Slots that may lead to their
        // older versions must go.
        for item in parts.items_mut().filter(|item| !item.located) {
            if let Some(subtable) = self.find_subtable(item.hash) {
                self.give_up(writer, subtable.address);
            }
            item.located = true;
        }
        parts.divide();
        let is_due = |item: &PendingWrite| item.slot.is_some() && item.new.is_some() && !item.written;
        if parts.items().any(is_due) && !mutant(Mutant::LinkEarly) {
            parts.run(&writer.space.held(), ApplyPart::write).await;
            self.give_up_lost(writer, parts);
        }
        let held = writer.space.held();
        for item in parts.items_mut() {
            if item.has_lost_slot(&held) {
                item.slot = None;
            }
            if let Some(new) = item.new.take_if(|new| item.slot.is_none() || !held.holds(new.pointer.address()))
                && held.holds(new.pointer.address())
            {
                writer.space.free(new.pointer.address());
            }
        }
    }

    /// Frees the buffers into which nothing was written, and gives up the sections that a step could not use; true if
    /// there were some.
    fn give_up_lost(&self, writer: &mut StateWriter, parts: &mut ApplyParts) -> bool {
        let mut any = false;
        for part in parts.each() {
            for address in part.unwritten.drain(..) {
                if writer.space.holds(address) {
                    writer.space.free(address);
                }
            }
            any |= !part.lost.is_empty();
            part.lost.drain(..).for_each(|address| self.give_up(writer, address));
        }
        any
    }

    /// Does what the parts need of the writer after a round of locating.
    async fn settle(&self, writer: &mut StateWriter, parts: &mut ApplyParts) {
        for part in parts.each() {
            for (subtable, hash, pointer) in std::mem::take(&mut part.void) {
                self.clear_slot(writer, subtable, hash, pointer).await;
            }
        }
        if self.give_up_lost(writer, parts) {
            // Some of what was located may have been in these sections.
            parts.each().for_each(ApplyPart::restart);
            return;
        }
        let (mut split, mut full) = (Vec::new(), Vec::new());
        for part in parts.each() {
            for at in std::mem::take(&mut part.unserved) {
                let item = &mut part.items[at];
                item.located = self.subtable(writer, item.hash).await.is_none();
            }
            for (at, subtable) in std::mem::take(&mut part.crowded) {
                if self.find_subtable(part.items[at].hash) == Some(subtable) {
                    let stays_full = full.contains(&subtable.address) || !self.split(writer, subtable).await;
                    part.items[at].located = stays_full;
                    let list = if stays_full { &mut full } else { &mut split };
                    list.push(subtable.address);
                }
            }
        }
        for part in parts.each() {
            split.iter().for_each(|address| part.forget_subtable(*address));
        }
    }

    /// Reads groups of the index; enters in `lost` the subtables of those that could not be read.
    pub(super) async fn read_groups(&self, wanted: &[(u64, Subtable)], groups: &mut Groups, lost: &mut Vec<u64>) {
        for window in wanted.chunks(IN_FLIGHT_MAX) {
            let post = |(address, _): &(u64, Subtable)| {
                self.memory.read(*address, GROUP_BYTES, BytesMut::with_capacity(GROUP_BYTES))
            };
            let posted: Vec<_> = window.iter().map(post).collect();
            for (verb, (address, subtable)) in posted.into_iter().zip(window) {
                let read = completed(&*self.memory, verb).await;
                match read.as_ref().ok().and_then(|bytes| BucketGroup::new(bytes, subtable)) {
                    Some(group) => drop(groups.insert(*address, (*subtable, Some(group)))),
                    None => {
                        if let Err(error) = &read {
                            self.memory.note_failure(*address, error);
                        }
                        lost.push(subtable.address);
                    }
                }
            }
        }
    }

    /// Step 1.
    async fn allocate(&self, writer: &mut StateWriter, parts: &mut ApplyParts) {
        let bytes_max = RECORD_BYTES_MAX.min(self.memory.section_bytes() as usize);
        for item in parts.items_mut() {
            let name = item.name();
            let value = item.update.value.as_ref();
            let bytes = record::record_bytes(name.namespace.len(), name.key.len(), value.map_or(0, Bytes::len));
            if bytes > bytes_max {
                continue;
            }
            let extent = match writer.space.allocate(bytes, UNIT_BYTES) {
                Some(extent) => extent,
                None if self.grow_space(writer).await => match writer.space.allocate(bytes, UNIT_BYTES) {
                    Some(extent) => extent,
                    None => continue,
                },
                None => {
                    writer.is_short_of(bytes);
                    self.crowded.notify_one();
                    continue;
                }
            };
            let pointer = Pointer::new(extent.address, bytes, writer.space.incarnation());
            item.new = Some(NewRecord { pointer, bytes });
        }
    }

    /// Steps 5 to 7.
    async fn publish_slots(&self, writer: &mut StateWriter, parts: &mut ApplyParts) {
        parts.run(&writer.space.held(), ApplyPart::link_swap_and_cache).await;
        if self.give_up_lost(writer, parts) {
            self.forget_unindexed(writer, parts);
        }
        if mutant(Mutant::LinkEarly) {
            rt::sleep(Duration::from_millis(1)).await;
            parts.run(&writer.space.held(), ApplyPart::write).await;
        }
    }

    /// After a section was given up: the delta keeps the values to which the index does not lead.
    fn forget_unindexed(&self, writer: &mut StateWriter, parts: &mut ApplyParts) {
        let held = writer.space.held();
        let mut delta = self.delta_mut();
        for item in parts.items_mut() {
            let Some(new) = &item.new else { continue };
            let (pointer, is_held) = (new.pointer, held.holds(new.pointer.address()));
            if is_held && item.slot.is_some_and(|(subtable, ..)| held.holds(subtable.address)) {
                continue;
            }
            if is_held {
                writer.retire(pointer);
            }
            item.new = None;
            delta.relocate(item.hash, item.name(), item.delta_version());
            events::VersionsNotInMemory.add(1);
        }
        parts.each().for_each(|part| part.is_cached = false);
    }

    /// Waits for the swaps; returns the slots whose value is not known, to be [given up](Self::give_up).
    pub(super) async fn failed_swaps(&self, posted: Vec<SlotSwap>) -> Vec<u64> {
        let mut failed = Vec::new();
        for SlotSwap { address, before, verb } in posted {
            match completed(&*self.memory, verb).await {
                Ok(found) if found == before => continue,
                Ok(_) => events::SlotsMissed.add(1),
                Err(error) => self.memory.note_failure(address, &error),
            }
            failed.push(address);
        }
        failed
    }

    /// Step 8.
    fn retire_replaced(&self, writer: &mut StateWriter, parts: &ApplyParts, number: u64) {
        if number < self.mends_below {
            let mended = parts.items().filter(|item| item.old.is_some());
            events::KeysMended.add(mended.count() as u64);
        }
        for item in parts.items() {
            if let Some(pointer) = item.old
                && writer.space.holds(pointer.address())
            {
                writer.superseded.push_back(SupersededVersion { pointer, since: number });
            }
            if let Some(new) = &item.new
                && item.update.value.is_none()
            {
                writer.tombstones.push_back(Tombstone {
                    block: number,
                    hash: item.hash,
                    namespace: item.namespace.clone(),
                    key: item.key.clone(),
                    pointer: new.pointer,
                });
            }
        }
    }

    /// Step 4.
    fn note_in_delta(&self, parts: &ApplyParts, number: u64) {
        let spilled = parts.items().filter(|item| item.new.is_none() && item.update.value.is_some());
        events::VersionsNotInMemory.add(spilled.count() as u64);
        let writes = parts.items().map(|item| {
            let name = KeyName { namespace: &item.namespace, key: &item.key };
            (item.hash, name, || (item.namespace.clone(), item.key.clone()), item.delta_version())
        });
        self.empty.note_block(number, parts.items().map(|item| &*item.namespace));
        self.delta_mut().add(number, writes);
    }

    /// Step 9.
    async fn invalidate_followers(&self, parts: &ApplyParts, number: u64) {
        if self.followers.any() {
            self.log_change(|changes| {
                changes.block(number, parts.items().map(|item| (item.name(), item.delta_version())))
            });
            self.followers.notify(|| self.heat.notes_uses()).await;
        }
    }
}
