//! Applies a block as one batch.
//!
//! The task that applies the block holds the writer's lock, except for the case in step 3. In each step it posts up to
//! [`IN_FLIGHT_MAX`] verbs before it awaits the first.
//! 1. **Locate.** Read the group of buckets of every key. The records whose slots have the key's fingerprint are
//!    candidates. The current record of a key is the candidate that the metadata cache knows, or else the candidate
//!    whose head names the key. A new key gets an empty slot; if its group has none, the task splits the subtable and
//!    locates its keys again.
//! 2. **Allocate.** Each new version gets a buffer; if no leased section has space, the task leases another one. A
//!    silent donor delays a block at most once, for [`DONOR_TIMEOUT`](super::DONOR_TIMEOUT): until the donor answers,
//!    memory counts as full.
//! 3. **Write.** Write each record whole, with `prev` leading to the previous version. No pointer leads to the new
//!    records yet, so steps 1 to 3 run while the block becomes durable. The following steps run once the block is
//!    durable. If the block is not durable [`LOCK_HELD_MAX`] after the writes, the task frees the buffers, releases the
//!    lock, waits until the block is durable, and starts over.
//! 4. **Link.** Swap the link word of the previous version from (newest, its incarnation, valid) to (the new record,
//!    the same incarnation, valid).
//! 5. **Swap.** Swap the index slot from its old content to the new record.
//! 6. **Record** the superseded versions and the tombstones in the writer's lists.
//! 7. **Delta**: enter the location of each new version.
//! 8. **Caches**: replace the cached versions by the new ones, and invalidate every token of their keys.
//! 9. **Invalidate** the caches of the followers ([`super::followers`]), and wait for each follower's acknowledgement
//!    or the end of its lease.
//! 10. **Publish**: wait until every lease that an earlier primary can have granted has ended, then raise the height.
//!     From here on snapshots see the block.
//!
//! A block is applied whole even if steps 1 to 5 fail for some of its keys. If the index cannot lead to the new version
//! of a key, the delta itself keeps the value, and the index has no entry for the key. Apply fails if the primary is
//! fenced, or if the block cannot be made durable; a block that is not durable leaves no trace. The delta is bounded:
//! the caller persists when [`crate::WorldState::wants_persist`] says so.
//!
//! * *Memory is full* (which wakes eviction), or a record is too long for a pointer: the slot of the previous version
//!   is swapped to empty.
//! * *A group or a head cannot be read*: its section is abandoned, because the task cannot tell which entry in it has
//!   to be removed. The key is located again, in a new subtable if there is memory for one.
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

use super::cache::{CachedValue, CachedVersion, VersionKind, buffer_pool};
use super::fault::{Mutant, hold_up, mutant};
use super::grow::IN_FLIGHT_MAX;
use super::index::{BucketGroup, GROUP_BYTES, RESERVED, Subtable};
use super::memory::{completed, had_no_effect};
use super::pending_write::{Groups, NewRecord, PendingWrite, SlotSwap, beside, group_of, items, undo};
use super::pointer::{Pointer, UNIT_BYTES};
use super::record::{KeyName, LinkWord, RECORD_BYTES_MAX, RecordContent};
use super::{StateCore, StateWriter, SupersededVersion, Tombstone, record};
use crate::{Durable, Error, Update, UpdateBatch, events};

/// Rounds of locating: one for every bit by which a subtable may have to grow, plus some for failures.
const ROUNDS_MAX: usize = 40;

impl StateCore {
    pub(super) async fn apply(
        shared: &Arc<StateCore>,
        number: u64,
        batch: &UpdateBatch,
        mut durable: Option<Durable<'_>>,
    ) -> Result<(), Error> {
        while !StateCore::apply_once(shared, number, batch, &mut durable).await? {
            if let Some(durable) = durable.take() {
                durable.await?;
            }
        }
        Ok(())
    }

    /// False if the block was not durable in time; then nothing has changed. `durable` is taken once it has completed.
    async fn apply_once(
        shared: &Arc<StateCore>,
        number: u64,
        batch: &UpdateBatch,
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
        let mut items = items(batch, shared.seed);
        let unseen = async {
            shared.locate(writer, &mut items).await;
            shared.allocate(writer, &mut items).await;
            if !mutant(Mutant::LinkEarly) {
                shared.write(writer, &mut items).await;
            }
        };
        match durable {
            None => unseen.await,
            Some(waiting) => {
                let ended = beside(waiting, unseen).await;
                if !matches!(ended, Some(Ok(()))) {
                    undo(writer, &mut items);
                }
                let Some(ended) = ended else { return Ok(false) };
                *durable = None;
                ended?;
                // The metric measures how long a durable block takes to become visible.
                started = rt::now();
            }
        }
        shared.link(writer, &mut items).await;
        shared.swap(writer, &mut items).await;
        if mutant(Mutant::LinkEarly) {
            rt::sleep(Duration::from_millis(1)).await;
            shared.write(writer, &mut items).await;
        }
        if shared.is_fenced() {
            return Err(Error::Fenced);
        }
        shared.retire_replaced(writer, &mut items, number);
        shared.note_in_delta(&items, number);
        if mutant(Mutant::PublishEarly) {
            shared.height.store(number + 1, Ordering::Release);
            StateCore::publish(shared, number + 1);
            rt::sleep(Duration::from_millis(1)).await;
            shared.height.store(number, Ordering::Release);
        }
        hold_up("state.apply.caches").await;
        shared.replace_in_caches(&items);
        shared.invalidate_followers(&items, number).await;
        hold_up("state.apply.publish").await;
        shared.earlier_leases.wait().await;
        let before = shared.height.swap(number + 1, Ordering::AcqRel);
        assert_eq!(before, number, "one primary applies blocks in order");
        StateCore::publish(shared, number + 1);
        events::ApplyTime.record_since(started);
        Ok(true)
    }

    /// Step 1.
    async fn locate(&self, writer: &mut StateWriter, items: &mut [PendingWrite<'_>]) {
        let mut groups = Groups::default();
        groups.reserve(items.len());
        for _ in 0..ROUNDS_MAX {
            hold_up("state.apply.locate").await;
            for item in items.iter_mut() {
                if item.slot.as_ref().is_some_and(|(subtable, ..)| !writer.space.holds(subtable.address)) {
                    (item.located, item.slot) = (false, None);
                }
            }
            if items.iter().all(|item| item.located) {
                return;
            }
            groups.retain(|address, (_, group)| group.is_some() && writer.space.holds(*address));
            let mut wanted: Vec<(u64, Subtable)> = Vec::with_capacity(items.len());
            for item in items.iter_mut().filter(|item| !item.located) {
                item.subtable = match self.find_subtable(item.hash) {
                    Some(subtable) => Some(subtable),
                    None => self.subtable(writer, item.hash).await,
                };
                let Some(subtable) = item.subtable else {
                    item.located = true;
                    continue;
                };
                let address = subtable.group_address(item.hash.group());
                // A copy that was read under another header is out of date.
                if groups.get(&address).is_none_or(|(other, _)| *other != subtable) {
                    groups.insert(address, (subtable, None));
                    wanted.push((address, subtable));
                }
            }
            self.read_groups(writer, &wanted, &mut groups).await;
            self.match_records(writer, items, &groups).await;
            self.reserve(writer, items, &mut groups).await;
        }
        // Items that could not be located within this many rounds stay out of memory. Slots that may lead to their
        // older versions must go.
        for item in items.iter_mut().filter(|item| !item.located) {
            if let Some(subtable) = self.find_subtable(item.hash) {
                self.give_up(writer, subtable.address);
            }
            item.located = true;
        }
        for item in items.iter_mut() {
            if item.slot.as_ref().is_some_and(|(subtable, ..)| !writer.space.holds(subtable.address)) {
                item.slot = None;
            }
        }
    }

    pub(super) async fn read_groups(&self, writer: &mut StateWriter, wanted: &[(u64, Subtable)], groups: &mut Groups) {
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
                        self.give_up(writer, subtable.address);
                    }
                }
            }
        }
    }

    /// Finds the version before of every item that is not located.
    async fn match_records(&self, writer: &mut StateWriter, items: &mut [PendingWrite<'_>], groups: &Groups) {
        let mut heads: Vec<(usize, Pointer)> = Vec::new();
        for (at, item) in items.iter_mut().enumerate().filter(|(_, item)| !item.located) {
            (item.old, item.is_read) = (None, false);
            let Some(group) = group_of(item, groups) else { continue };
            let space = &writer.space;
            let candidates = || {
                let pointers = group.candidates(item.hash).map(|(_, pointer)| pointer);
                pointers.filter(|pointer| space.holds(pointer.address()))
            };
            match self.caches.newest(item.hash, item.name()) {
                Some((known, has_value)) if candidates().any(|pointer| pointer == known.pointer) => {
                    (item.old, item.is_read) = (Some(known.pointer), has_value);
                }
                _ => heads.extend(candidates().map(|pointer| (at, pointer))),
            }
        }
        if heads.is_empty() {
            return;
        }
        let pointers: Vec<Pointer> = heads.iter().map(|(_, pointer)| *pointer).collect();
        for ((at, pointer), head) in heads.iter().zip(self.read_heads(&pointers).await) {
            match head {
                Some(head) if head.is_of(items[*at].name()) => items[*at].old = Some(*pointer),
                Some(_) => {}
                // The slot may or may not belong to this key, so it must lead nowhere.
                None => self.give_up(writer, pointer.address()),
            }
        }
    }

    /// Gives every item that is not located yet its slot; if a group has no empty slot, splits its subtable.
    async fn reserve(&self, writer: &mut StateWriter, items: &mut [PendingWrite<'_>], groups: &mut Groups) {
        for at in 0..items.len() {
            let item = &mut items[at];
            let Some(subtable) = item.subtable.filter(|_| !item.located) else { continue };
            let group = groups.get_mut(&subtable.group_address(item.hash.group()));
            let Some((read, Some(group))) = group else { continue };
            if *read != subtable || item.old.is_some_and(|old| !writer.space.holds(old.address())) {
                continue;
            }
            let place = match item.old {
                Some(old) => group.find(item.hash, item.hash.slot(old)),
                // Deleting a key that memory does not hold needs no slot.
                None if item.update.value.is_none() => {
                    item.located = true;
                    continue;
                }
                None => group.vacant_slot(item.hash, |address| writer.space.holds(address)),
            };
            if let Some(place) = place {
                item.slot = Some((subtable, place, group.slot(place)));
                item.located = true;
                group.set(place, RESERVED);
                continue;
            }
            if item.old.is_some() {
                // Two keys cannot share a record: the bytes that were read contradict each other.
                self.give_up(writer, subtable.address);
                return;
            }
            let located = !self.split(writer, subtable).await;
            items[at].located = located;
            for item in items.iter_mut() {
                if item.slot.as_ref().is_some_and(|(other, ..)| other.address == subtable.address) {
                    (item.located, item.slot) = (false, None);
                }
            }
            let first = subtable.address;
            groups.retain(|_, (other, _)| other.address != first);
            if !located {
                return;
            }
        }
    }

    /// Step 2.
    async fn allocate(&self, writer: &mut StateWriter, items: &mut [PendingWrite<'_>]) {
        let bytes_max = RECORD_BYTES_MAX.min(self.memory.section_bytes() as usize);
        for item in items.iter_mut().filter(|item| item.slot.is_some()) {
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

    /// Step 3. The checksum of a value is computed right before its verb is posted, so that the value enters the core's
    /// cache only once.
    async fn write(&self, writer: &mut StateWriter, items: &mut [PendingWrite<'_>]) {
        hold_up("state.apply.write").await;
        let mut failed = Vec::new();
        let mut heads = BytesMut::with_capacity(items.iter().map(|item| record::head_bytes_of(item.name())).sum());
        for window in items.chunks(IN_FLIGHT_MAX) {
            let mut post = |item: &PendingWrite<'_>| {
                let NewRecord { pointer, .. } =
                    item.new.as_ref().filter(|new| writer.space.holds(new.pointer.address()))?;
                let Update { value, version } = item.update;
                let prev = item.old.unwrap_or(Pointer::NULL);
                let content = RecordContent { name: item.name(), version: *version, value: value.as_deref(), prev };
                record::encode_head(&content, pointer.incarnation(), &mut heads);
                let parts = [heads.split().freeze(), value.clone().unwrap_or_default()];
                Some((*pointer, self.memory.write(pointer.address(), &parts)))
            };
            let posted: Vec<_> = window.iter().filter_map(&mut post).collect();
            for (pointer, verb) in posted {
                if let Err(error) = completed(&*self.memory, verb).await {
                    self.memory.note_failure(pointer.address(), &error);
                    failed.push((pointer, had_no_effect(&error) && self.is_usable(&error)));
                }
            }
        }
        for (pointer, give_back) in &failed {
            match give_back {
                true if writer.space.holds(pointer.address()) => writer.space.free(pointer.address()),
                true => {}
                false => self.give_up(writer, pointer.address()),
            }
        }
        let failed = |new: &NewRecord| failed.iter().any(|(pointer, _)| *pointer == new.pointer);
        for item in items.iter_mut() {
            if item.new.as_ref().is_some_and(|new| failed(new) || !writer.space.holds(new.pointer.address())) {
                item.new = None;
            }
        }
    }

    /// Step 4.
    async fn link(&self, writer: &StateWriter, items: &mut [PendingWrite<'_>]) {
        hold_up("state.apply.link").await;
        for window in items.chunks(IN_FLIGHT_MAX) {
            let post = |item: &PendingWrite<'_>| {
                let (old, new) = (item.old?, item.new.as_ref()?);
                if !writer.space.holds(old.address()) {
                    return None;
                }
                let word = |next| LinkWord { next, incarnation: old.incarnation(), valid: true }.bits();
                let (expected, new) = (word(Pointer::NULL), word(new.pointer));
                Some((old, expected, self.memory.compare_swap(old.address(), expected, new)))
            };
            let posted: Vec<_> = window.iter().filter_map(post).collect();
            for (old, expected, verb) in posted {
                match completed(&*self.memory, verb).await {
                    Ok(found) if found == expected => {}
                    Ok(_) => events::LinksMissed.add(1),
                    Err(error) => {
                        self.memory.note_failure(old.address(), &error);
                        events::LinksMissed.add(1);
                    }
                }
            }
        }
    }

    /// Step 5.
    async fn swap(&self, writer: &mut StateWriter, items: &mut [PendingWrite<'_>]) {
        hold_up("state.apply.slot").await;
        for item in items.iter_mut() {
            if item.slot.as_ref().is_some_and(|(subtable, ..)| !writer.space.holds(subtable.address)) {
                item.slot = None;
            }
        }
        let mut failed = Vec::new();
        for window in items.chunks(IN_FLIGHT_MAX) {
            let post = |item: &PendingWrite<'_>| {
                let (subtable, place, before) = item.slot?;
                let after = item.new.as_ref().map_or(0, |new| item.hash.slot(new.pointer));
                if before == after {
                    return None;
                }
                let address = place.address(subtable.group_address(item.hash.group()));
                Some(SlotSwap { address, before, verb: self.memory.compare_swap(address, before, after) })
            };
            let posted = window.iter().filter_map(post).collect();
            failed.extend(self.failed_swaps(posted).await);
        }
        for address in failed {
            self.give_up(writer, address);
        }
        for item in items.iter_mut() {
            let Some(new) = &item.new else { continue };
            let indexed = item.slot.is_some_and(|(subtable, ..)| writer.space.holds(subtable.address));
            if !writer.space.holds(new.pointer.address()) {
                item.new = None;
            } else if !indexed {
                writer.retire(new.pointer);
                item.new = None;
            }
        }
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

    /// Step 6.
    fn retire_replaced(&self, writer: &mut StateWriter, items: &mut [PendingWrite<'_>], number: u64) {
        for item in items.iter_mut() {
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

    /// Step 7.
    fn note_in_delta(&self, items: &[PendingWrite<'_>], number: u64) {
        let spilled = items.iter().filter(|item| item.new.is_none() && item.update.value.is_some());
        events::VersionsNotInMemory.add(spilled.count() as u64);
        let writes = items.iter().map(|item| {
            let name = KeyName { namespace: item.namespace, key: item.key };
            (item.hash, name, || (item.namespace.clone(), item.key.clone()), item.delta_version())
        });
        self.empty.note_block(number, items.iter().map(|item| &**item.namespace));
        self.delta_mut().add(number, writes);
    }

    /// Step 8.
    fn replace_in_caches(&self, items: &[PendingWrite<'_>]) {
        for item in items {
            let kind = if item.update.value.is_some() { VersionKind::Live } else { VersionKind::Deleted };
            let version = item.update.version;
            let (known, kept) = match &item.new {
                Some(NewRecord { pointer, bytes, .. }) => {
                    self.heat.touch(pointer.address());
                    let known = CachedVersion { pointer: *pointer, version, kind, bytes: *bytes as u32 };
                    let prev = item.old.unwrap_or(Pointer::NULL);
                    // A copy: the value may be a slice of the block's longer buffer.
                    let value = item.update.value.as_ref().filter(|_| item.is_read).map(|value| &value[..]);
                    let keep = |value| {
                        let (value, bytes) = buffer_pool::copy(value, *bytes);
                        CachedValue { version, value: Some(value), prev, bytes }
                    };
                    (known, value.map(keep))
                }
                None => {
                    let known = CachedVersion { pointer: Pointer::NULL, version, kind, bytes: 0 };
                    let kept = item.update.value.as_deref().map(Bytes::copy_from_slice).map(|value| CachedValue {
                        version,
                        bytes: value.len(),
                        value: Some(value),
                        prev: Pointer::NULL,
                    });
                    (known, kept)
                }
            };
            self.caches.replace(item.hash, item.name(), known, kept);
        }
    }

    /// Step 9.
    async fn invalidate_followers(&self, items: &[PendingWrite<'_>], number: u64) {
        if self.followers.any() {
            self.log_change(|changes| {
                changes.block(number, items.iter().map(|item| (item.name(), item.delta_version())))
            });
            self.followers.notify(|| self.heat.notes_uses()).await;
        }
    }
}
