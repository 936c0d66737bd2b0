//! Applies a block as one batch.
//!
//! Steps, with the writer's lock held from first to last. Each verb of a step is posted before any is awaited.
//! 1. **Locate.** The group of buckets of every key is read. A key's record is the candidate that the metadata cache knows,
//!    or else the one whose head names the key. A key that is new gets an empty place; where there is none the subtable is
//!    split, and its keys are located anew.
//! 2. **Allocate.** Each new version gets a buffer; sections are leased for want of room. A donor that is silent holds a block
//!    up once, for [`DONOR_WAIT_MAX`](super::DONOR_WAIT_MAX): until it has answered, there is no room.
//! 3. **Write.** Records are written whole, with `prev` leading to the version before. Nothing leads to them yet: the steps up
//!    to here are done while the block becomes durable, those that follow once it is. If that takes longer than
//!    [`HELD_MAX`], the lock is not held for it: the buffers are freed, and the block begins anew when it is durable.
//! 4. **Link.** The word of the version before is swapped from (newest, this life, valid) to (the new one, this life, valid).
//! 5. **Swap.** The slot is swapped from what it was to the new record.
//! 6. **Put down** what was superseded, and which records are deletions.
//! 7. **Delta**: where each new version is.
//! 8. **Caches**: the new versions replace what was known, and kill every token of their keys.
//! 9. **Invalidate** what readers know ([`super::readers`]), and wait for each of them or for its lease to end.
//! 10. **Publish**: the height is raised, but not before every lease has ended that an earlier primary can have granted. From
//!     here on snapshots see the block.
//!
//! A block is applied whole whatever happens in steps 1 to 5, or fails because this primary is fenced or because the block
//! cannot be made durable, which leaves no trace of it. A key for which they fail has its new version in the delta itself, which
//! is bounded (its owner persists when [`crate::WorldState::wants_persist`] says so), and its index entry is gone:
//!
//! * *No room*, which wakes eviction, or a record too long for a pointer: the slot of the version before is swapped to empty.
//! * *A group or a head cannot be read*: its section is given up, for nothing could be dropped from it. The key is located
//!   anew, in a new subtable if there is room for one.
//! * *A write is ambiguous*: it may land later, on whoever has the buffer then. Its section is given up: giving back revokes
//!   it, and a revoked verb never lands. A write that had no effect costs its buffer only if the provider was busy; any other
//!   failure says that the section is gone.
//! * *A link is ambiguous, or finds another word*: nothing follows from it. Whoever comes by the slot does not need the link,
//!   whoever has the old address cached is invalidated; and it names the life of the buffer, so that it cannot land on another.
//! * *A swap is ambiguous, or finds another slot*: it is not known where the slot leads, so the subtable's section is given
//!   up. Its keys are found in delta and storage until they are filled again. The new record may have been seen: its buffer
//!   is put aside like a superseded one.
//!
//! Invariants: nothing leads to a record of a block that is not durable; when the height is raised, the slot of every key that
//! the block wrote leads to the new version, or is empty, or lies in a section that was given up.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use base::{Bytes, BytesMut, Map, rt};

use super::cache::{Kept, Kind, Known, spare};
use super::delta::{Place as Where, Written};
use super::fault::{Mutant, hold_up, mutant};
use super::grow::IN_FLIGHT_MAX;
use super::index::{GROUP_BYTES, Group, KeyHash, Place, RESERVED, Subtable};
use super::memory::{completed, had_no_effect};
use super::pointer::{Pointer, UNIT_BYTES};
use super::record::{self, Content, Name, RECORD_BYTES_MAX, Word};
use super::{Shared, Superseded, Tombstone, Writer};
use crate::{Durable, Error, Update, UpdateBatch, events};

/// Rounds of locating: one for every bit by which a subtable may have to grow, and some for what fails.
const ROUNDS_MAX: usize = 40;

/// How long the writer's lock is held for a block to become durable.
const HELD_MAX: Duration = Duration::from_millis(50);

/// Groups of the index as this block knows them, by address. `None` is one that is to be read.
pub(super) type Groups = Map<u64, (Subtable, Option<Group>)>;

/// A write of the block on its way.
struct Item<'a> {
    namespace: &'a Arc<str>,
    key: &'a Arc<str>,
    update: &'a Update,
    hash: KeyHash,
    located: bool,
    /// The subtable that serves the key.
    subtable: Option<Subtable>,
    /// The subtable, the place there, and what stands in it.
    slot: Option<(Subtable, Place, u64)>,
    /// The version before, where remote memory holds it.
    old: Option<Pointer>,
    /// The caches have the value of the version before.
    is_read: bool,
    new: Option<New>,
}

/// The record of a new version.
struct New {
    pointer: Pointer,
    bytes: usize,
}

impl<'a> Item<'a> {
    fn name(&self) -> Name<'a> {
        Name { namespace: self.namespace, key: self.key }
    }

    /// Where the new version is. A value that must be held here is copied: it may be a part of something longer.
    fn written(&self) -> Written {
        let place = match (&self.update.value, &self.new) {
            (None, _) => Where::Deleted,
            (Some(_), Some(new)) => Where::Remote(new.pointer, new.bytes as u32),
            (Some(value), None) => Where::Here(Box::new(Bytes::copy_from_slice(value))),
        };
        Written { version: self.update.version, place }
    }
}

/// The group of an item's key, if it was read under the header that is still the subtable's.
fn group_of<'g>(item: &Item<'_>, groups: &'g Groups) -> Option<&'g Group> {
    let subtable = item.subtable?;
    let (read, group) = groups.get(&subtable.group_address(item.hash.group()))?;
    group.as_ref().filter(|_| *read == subtable)
}

/// The writes of a block, of which nothing is known yet.
fn items(batch: &UpdateBatch, seed: u64) -> Vec<Item<'_>> {
    let mut namespace_hash = None;
    let mut items = Vec::with_capacity(batch.len());
    items.extend(batch.iter().map(|(namespace, key, update)| {
        let (_, hash) = match namespace_hash {
            Some((known, hash)) if Arc::ptr_eq(known, namespace) => (known, hash),
            _ => (namespace, KeyHash::namespace(namespace, seed)),
        };
        namespace_hash = Some((namespace, hash));
        let hash = KeyHash::with_namespace(hash, key);
        let (located, is_read) = (false, false);
        Item { namespace, key, update, hash, located, subtable: None, slot: None, old: None, is_read, new: None }
    }));
    items
}

/// Does the work while the block becomes durable, and waits for that a little longer. `None`: not yet.
async fn beside(durable: &mut Durable<'_>, work: impl Future<Output = ()>) -> Option<Result<(), Error>> {
    let mut ended = None;
    let mut work = pin!(work);
    std::future::poll_fn(|cx| {
        if ended.is_none()
            && let Poll::Ready(outcome) = durable.as_mut().poll(cx)
        {
            ended = Some(outcome);
        }
        work.as_mut().poll(cx)
    })
    .await;
    match ended {
        None if mutant(Mutant::PublishUndurable) => Some(Ok(())),
        None => rt::timeout(HELD_MAX, durable.as_mut()).await.ok(),
        ended => ended,
    }
}

/// Frees what was written and nothing leads to.
fn undo(writer: &mut Writer, items: &mut [Item<'_>]) {
    for New { pointer, .. } in items.iter_mut().filter_map(|item| item.new.take()) {
        if writer.space.holds(pointer.address()) && !mutant(Mutant::KeepUndone) {
            writer.space.free(pointer.address());
        }
    }
}

impl Shared {
    pub(super) async fn apply(
        shared: &Arc<Shared>,
        number: u64,
        batch: &UpdateBatch,
        mut durable: Option<Durable<'_>>,
    ) -> Result<(), Error> {
        while !Shared::apply_once(shared, number, batch, &mut durable).await? {
            if let Some(durable) = durable.take() {
                durable.await?;
            }
        }
        Ok(())
    }

    /// False if the block was not durable in time: then nothing has happened. `durable` is taken once it has ended.
    async fn apply_once(
        shared: &Arc<Shared>,
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
        shared.watch_room(writer);
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
                // What is told is how long a durable block waits to be seen.
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
        shared.put_down(writer, &mut items, number);
        shared.note_in_delta(&items, number);
        if mutant(Mutant::PublishEarly) {
            shared.height.store(number + 1, Ordering::Release);
            Shared::publish(shared, number + 1);
            rt::sleep(Duration::from_millis(1)).await;
            shared.height.store(number, Ordering::Release);
        }
        hold_up("state.apply.caches").await;
        shared.replace_in_caches(&items);
        shared.invalidate_others(&items, number).await;
        hold_up("state.apply.publish").await;
        shared.outlast_leases().await;
        let before = shared.height.swap(number + 1, Ordering::AcqRel);
        assert_eq!(before, number, "one primary applies blocks in order");
        Shared::publish(shared, number + 1);
        events::ApplyTime.record_since(started);
        Ok(true)
    }

    /// Step 1.
    async fn locate(&self, writer: &mut Writer, items: &mut [Item<'_>]) {
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
        // Whatever could not be located after so many rounds stays out of memory. Slots that may lead to older versions go.
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

    pub(super) async fn read_groups(&self, writer: &mut Writer, wanted: &[(u64, Subtable)], groups: &mut Groups) {
        for window in wanted.chunks(IN_FLIGHT_MAX) {
            let post = |(address, _): &(u64, Subtable)| {
                self.memory.read(*address, GROUP_BYTES, BytesMut::with_capacity(GROUP_BYTES))
            };
            let posted: Vec<_> = window.iter().map(post).collect();
            for (verb, (address, subtable)) in posted.into_iter().zip(window) {
                let read = completed(&*self.memory, verb).await;
                match read.as_ref().ok().and_then(|bytes| Group::new(bytes, subtable)) {
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
    async fn match_records(&self, writer: &mut Writer, items: &mut [Item<'_>], groups: &Groups) {
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
                // Whether the slot is this key's cannot be told, so it must lead nowhere.
                None => self.give_up(writer, pointer.address()),
            }
        }
    }

    /// Gives every item that is not located its place; splits one subtable where there is none.
    async fn reserve(&self, writer: &mut Writer, items: &mut [Item<'_>], groups: &mut Groups) {
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
                // A deletion of what memory does not hold needs none.
                None if item.update.value.is_none() => {
                    item.located = true;
                    continue;
                }
                None => group.vacancy(item.hash, |address| writer.space.holds(address)),
            };
            if let Some(place) = place {
                item.slot = Some((subtable, place, group.slot(place)));
                item.located = true;
                group.set(place, RESERVED);
                continue;
            }
            if item.old.is_some() {
                // Two keys cannot share a record; what was read contradicts itself.
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
    async fn allocate(&self, writer: &mut Writer, items: &mut [Item<'_>]) {
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
            item.new = Some(New { pointer, bytes });
        }
    }

    /// Step 3. A value is summed right before its verb is posted: it need be brought to this processor once.
    async fn write(&self, writer: &mut Writer, items: &mut [Item<'_>]) {
        hold_up("state.apply.write").await;
        let mut failed = Vec::new();
        let mut heads = BytesMut::with_capacity(items.iter().map(|item| record::head_bytes_of(item.name())).sum());
        for window in items.chunks(IN_FLIGHT_MAX) {
            let mut post = |item: &Item<'_>| {
                let New { pointer, .. } = item.new.as_ref().filter(|new| writer.space.holds(new.pointer.address()))?;
                let Update { value, version } = item.update;
                let prev = item.old.unwrap_or(Pointer::NULL);
                let content = Content { name: item.name(), version: *version, value: value.as_deref(), prev };
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
        let failed = |new: &New| failed.iter().any(|(pointer, _)| *pointer == new.pointer);
        for item in items.iter_mut() {
            if item.new.as_ref().is_some_and(|new| failed(new) || !writer.space.holds(new.pointer.address())) {
                item.new = None;
            }
        }
    }

    /// Step 4.
    async fn link(&self, writer: &Writer, items: &mut [Item<'_>]) {
        hold_up("state.apply.link").await;
        for window in items.chunks(IN_FLIGHT_MAX) {
            let post = |item: &Item<'_>| {
                let (old, new) = (item.old?, item.new.as_ref()?);
                if !writer.space.holds(old.address()) {
                    return None;
                }
                let word = |next| Word { next, incarnation: old.incarnation(), valid: true }.bits();
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
    async fn swap(&self, writer: &mut Writer, items: &mut [Item<'_>]) {
        hold_up("state.apply.slot").await;
        for item in items.iter_mut() {
            if item.slot.as_ref().is_some_and(|(subtable, ..)| !writer.space.holds(subtable.address)) {
                item.slot = None;
            }
        }
        let mut failed = Vec::new();
        for window in items.chunks(IN_FLIGHT_MAX) {
            let post = |item: &Item<'_>| {
                let (subtable, place, before) = item.slot?;
                let after = item.new.as_ref().map_or(0, |new| item.hash.slot(new.pointer));
                if before == after {
                    return None;
                }
                let address = place.address(subtable.group_address(item.hash.group()));
                Some((address, before, self.memory.compare_swap(address, before, after)))
            };
            let posted: Vec<_> = window.iter().filter_map(post).collect();
            for (address, before, verb) in posted {
                match completed(&*self.memory, verb).await {
                    Ok(found) if found == before => {}
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
                writer.put_aside(new.pointer);
                item.new = None;
            }
        }
    }

    /// Step 6.
    fn put_down(&self, writer: &mut Writer, items: &mut [Item<'_>], number: u64) {
        for item in items.iter_mut() {
            if let Some(pointer) = item.old
                && writer.space.holds(pointer.address())
            {
                writer.superseded.push_back(Superseded { pointer, since: number });
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
    fn note_in_delta(&self, items: &[Item<'_>], number: u64) {
        let spilled = items.iter().filter(|item| item.new.is_none() && item.update.value.is_some());
        events::VersionsNotInMemory.add(spilled.count() as u64);
        let writes = items.iter().map(|item| {
            let name = Name { namespace: item.namespace, key: item.key };
            (item.hash, name, || (item.namespace.clone(), item.key.clone()), item.written())
        });
        self.delta_mut().add(number, writes);
    }

    /// Step 8.
    fn replace_in_caches(&self, items: &[Item<'_>]) {
        for item in items {
            let kind = if item.update.value.is_some() { Kind::Live } else { Kind::Deleted };
            let version = item.update.version;
            let (known, kept) = match &item.new {
                Some(New { pointer, bytes, .. }) => {
                    self.heat.touch(pointer.address());
                    let known = Known { pointer: *pointer, version, kind, bytes: *bytes as u32 };
                    let prev = item.old.unwrap_or(Pointer::NULL);
                    // A copy: what the block gave may be a part of something longer.
                    let value = item.update.value.as_ref().filter(|_| item.is_read).map(|value| &value[..]);
                    let keep = |value| {
                        let (value, bytes) = spare::copy(value, *bytes);
                        Kept { version, value: Some(value), prev, bytes }
                    };
                    (known, value.map(keep))
                }
                None => {
                    let known = Known { pointer: Pointer::NULL, version, kind, bytes: 0 };
                    let kept = item.update.value.as_deref().map(Bytes::copy_from_slice).map(|value| Kept {
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
    async fn invalidate_others(&self, items: &[Item<'_>], number: u64) {
        if self.holders.any() {
            self.holders.log(|changes| changes.block(number, items.iter().map(|item| (item.name(), item.written()))));
            self.tell_readers().await;
        }
    }
}
