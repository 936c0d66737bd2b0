//! The writes of a block that one worker carries out.
//!
//! The writer divides a block's writes among *parts* ([`ApplyParts`]). In each step of [`super::apply`] that only posts
//! verbs and looks into caches, each part runs as a separate task; between two such steps the writer has all parts. A
//! part changes nothing that belongs to the writer. It lists what only the writer can do, and the writer does it after
//! the step.
//!
//! Two keys of one group of the index may want the same vacant slot. So the first round of locating, which is that of
//! nearly all keys, has all keys of a group in the same part, and further rounds have a single part. The other steps
//! treat each key by itself, so any division serves them. If the index is deep enough, the lowest bits of the hash choose
//! the part. They also choose the shard of the caches, so no two tasks contend for a shard.

use std::sync::Arc;

use base::{Bytes, BytesMut, Set, rt};

use super::cache::{CachedValue, CachedVersion, VersionKind, buffer_pool};
use super::fault::{Mutant, hold_up, mutant};
use super::grow::IN_FLIGHT_MAX;
use super::index::{BucketGroup, GROUP_BYTES, KeyHash, RESERVED, Subtable};
use super::memory::{completed, had_no_effect};
use super::pending_write::{Groups, NewRecord, PendingWrite, SlotSwap};
use super::pointer::Pointer;
use super::record::{self, LinkWord, RecordContent};
use super::space::HeldSections;
use super::{StateCore, StateWriter};
use crate::events;

/// The parts of a block.
pub(super) struct ApplyParts {
    parts: Vec<ApplyPart>,
    workers: usize,
}

/// A part of a block.
pub(super) struct ApplyPart {
    core: Arc<StateCore>,
    /// The leased sections before the step that runs.
    held: HeldSections,
    pub(super) items: Vec<PendingWrite>,
    /// The groups of the index as the part's writes leave them.
    groups: Groups,
    /// Items whose keys no subtable serves.
    pub(super) unserved: Vec<usize>,
    /// Items that found no vacant slot, with the subtables that serve them.
    pub(super) crowded: Vec<(usize, Subtable)>,
    /// Slots to be emptied: the subtable, the key's hash, and where the slot leads.
    pub(super) void: Vec<(Subtable, KeyHash, Pointer)>,
    /// Addresses in sections that have to be given up.
    pub(super) lost: Vec<u64>,
    /// Allocated buffers into which nothing was written, nor ever will be.
    pub(super) unwritten: Vec<u64>,
    /// The caches have the new versions.
    pub(super) is_cached: bool,
}

impl ApplyParts {
    /// Divides the writes of a block by the groups of the index to which their keys belong.
    pub(super) fn new(core: &Arc<StateCore>, items: Vec<PendingWrite>) -> ApplyParts {
        let workers = core.settings.apply_workers.of_block(items.len());
        let mut parts = ApplyParts { parts: vec![ApplyPart::new(core, items)], workers };
        parts.divide_by_group();
        parts
    }

    /// All parts, for the writer.
    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut ApplyPart> {
        self.parts.iter_mut()
    }

    /// All writes.
    pub(super) fn items(&self) -> impl Iterator<Item = &PendingWrite> {
        self.parts.iter().flat_map(|part| &part.items)
    }

    /// All writes, to be changed.
    pub(super) fn items_mut(&mut self) -> impl Iterator<Item = &mut PendingWrite> {
        self.parts.iter_mut().flat_map(|part| &mut part.items)
    }

    /// Runs a step of each part, in one task for each part if there are several. Dropping the future stops the tasks.
    pub(super) async fn run<F>(&mut self, held: &HeldSections, step: impl Fn(ApplyPart) -> F)
    where
        F: Future<Output = ApplyPart> + Send + 'static,
    {
        let mut steps: Vec<_> =
            self.parts.drain(..).map(|part| step(ApplyPart { held: held.clone(), ..part })).collect();
        if steps.len() == 1 {
            self.parts.push(steps.remove(0).await);
            return;
        }
        let tasks: Vec<_> = steps.into_iter().map(|step| rt::spawn(step).abort_on_drop()).collect();
        for task in tasks {
            match task.await {
                Ok(part) => self.parts.push(part),
                // Only the end of the runtime stops the task, and it ends this one, too.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Step 7, for the parts that have not done it.
    pub(super) fn replace_rest_in_caches(&mut self) {
        let is_due = |part: &&mut ApplyPart| !part.is_cached && !mutant(Mutant::PartUncached);
        self.parts.iter_mut().filter(is_due).for_each(ApplyPart::replace_in_caches);
    }

    /// Makes one part of all, for locating: it knows the slots that any of them has reserved.
    pub(super) fn join(&mut self) {
        let mut parts = self.parts.drain(..);
        let mut all = parts.next().expect("there is at least one part");
        for part in parts {
            all.items.extend(part.items);
            all.groups.extend(part.groups);
        }
        self.parts.push(all);
    }

    /// Divides the writes evenly; the groups are not needed any more.
    pub(super) fn divide(&mut self) {
        let [all] = &mut self.parts[..] else { return };
        if self.workers == 1 {
            return;
        }
        all.groups = Groups::default();
        let (workers, core) = (self.workers, all.core.clone());
        let mut rest = std::mem::take(&mut all.items);
        self.parts.clear();
        for left in (1..=workers).rev() {
            let behind = rest.split_off(rest.len().div_ceil(left));
            self.parts.push(ApplyPart::new(&core, std::mem::replace(&mut rest, behind)));
        }
    }

    fn divide_by_group(&mut self) {
        if self.workers == 1 {
            return;
        }
        let all = self.parts.pop().expect("there is one part");
        let room = all.items.len() / self.workers + all.items.len() / 8;
        self.parts.extend((0..self.workers).map(|_| ApplyPart::new(&all.core, Vec::with_capacity(room))));
        for item in all.items {
            let part = match all.core.find_subtable(item.hash) {
                // All its keys have these bits in common.
                Some(subtable) if 1 << subtable.depth >= self.workers => item.hash.0 as usize,
                // The bits of an address below the length of a group tell nothing.
                Some(subtable) => subtable.group_address(item.hash.group()) as usize / GROUP_BYTES,
                None => 0,
            };
            self.parts[part % self.workers].items.push(item);
        }
    }

    /// Prepares the parts for another attempt at the block.
    pub(super) fn start_over(&mut self) {
        self.join();
        self.each().for_each(ApplyPart::restart);
        self.divide_by_group();
    }

    /// Frees the buffers of the new versions, to which nothing leads.
    pub(super) fn undo(&mut self, writer: &mut StateWriter) {
        for NewRecord { pointer, .. } in self.items_mut().filter_map(|item| item.new.take()) {
            if writer.space.holds(pointer.address()) && !mutant(Mutant::KeepUndone) {
                writer.space.free(pointer.address());
            }
        }
    }
}

impl ApplyPart {
    fn new(core: &Arc<StateCore>, items: Vec<PendingWrite>) -> ApplyPart {
        ApplyPart {
            core: core.clone(),
            held: HeldSections::default(),
            items,
            groups: Groups::default(),
            unserved: Vec::new(),
            crowded: Vec::new(),
            void: Vec::new(),
            lost: Vec::new(),
            unwritten: Vec::new(),
            is_cached: false,
        }
    }

    /// Forgets where its keys are.
    pub(super) fn restart(&mut self) {
        self.items.iter_mut().for_each(PendingWrite::unlocate);
        self.groups.clear();
        (self.unserved, self.crowded) = (Vec::new(), Vec::new());
    }

    /// Forgets the locations that sections took along which are not leased any more.
    pub(super) fn forget_lost_slots(&mut self, held: &HeldSections) {
        self.items.iter_mut().filter(|item| item.has_lost_slot(held)).for_each(PendingWrite::unlocate);
    }

    /// Forgets what it knows of a subtable that was split, and the slots in it.
    pub(super) fn forget_subtable(&mut self, address: u64) {
        self.groups.retain(|_, (subtable, _)| subtable.address != address);
        let is_in_it =
            |item: &&mut PendingWrite| item.slot.as_ref().is_some_and(|(other, ..)| other.address == address);
        self.items.iter_mut().filter(is_in_it).for_each(PendingWrite::unlocate);
    }

    /// Steps 2 and 3, as far as they do not change the index. If the writer has to change something first, nothing is
    /// written.
    pub(super) async fn look_and_write(mut self) -> ApplyPart {
        hold_up("state.apply.locate").await;
        self.look().await;
        let is_found =
            self.unserved.is_empty() && self.crowded.is_empty() && self.void.is_empty() && self.lost.is_empty();
        if is_found && !mutant(Mutant::LinkEarly) { self.write().await } else { self }
    }

    /// Step 2.
    async fn look(&mut self) {
        let core = self.core.clone();
        let held = &self.held;
        self.groups.retain(|address, (_, group)| group.is_some() && held.holds(*address));
        self.groups.reserve(self.items.len());
        let mut wanted: Vec<(u64, Subtable)> = Vec::with_capacity(self.items.len());
        for (at, item) in self.items.iter_mut().enumerate().filter(|(_, item)| !item.located) {
            item.subtable = core.find_subtable(item.hash);
            let Some(subtable) = item.subtable else {
                self.unserved.push(at);
                continue;
            };
            let address = subtable.group_address(item.hash.group());
            // A copy that was read under another header is out of date.
            if self.groups.get(&address).is_none_or(|(other, _)| *other != subtable) {
                self.groups.insert(address, (subtable, None));
                wanted.push((address, subtable));
            }
        }
        core.read_groups(&wanted, &mut self.groups, &mut self.lost).await;
        self.match_records(&core).await;
        self.reserve();
    }

    /// The group of an item's key, if it was read under the header that the subtable still has.
    fn group_of<'g>(item: &PendingWrite, groups: &'g Groups) -> Option<&'g BucketGroup> {
        let subtable = item.subtable?;
        let (read, group) = groups.get(&subtable.group_address(item.hash.group()))?;
        group.as_ref().filter(|_| *read == subtable)
    }

    /// Finds the version before of every item that is not located.
    async fn match_records(&mut self, core: &StateCore) {
        let held = &self.held;
        let mut heads: Vec<(usize, Pointer)> = Vec::new();
        for (at, item) in self.items.iter_mut().enumerate().filter(|(_, item)| !item.located) {
            (item.old, item.is_read) = (None, false);
            let Some(group) = ApplyPart::group_of(item, &self.groups) else { continue };
            let candidates = || {
                let pointers = group.candidates(item.hash).map(|(_, pointer)| pointer);
                pointers.filter(|pointer| held.holds(pointer.address()))
            };
            match core.caches.newest(item.hash, item.name()) {
                // More than one may be of this key: see below.
                Some((known, has_value)) if candidates().eq([known.pointer]) => {
                    (item.old, item.is_read) = (Some(known.pointer), has_value);
                }
                _ => heads.extend(candidates().map(|pointer| (at, pointer))),
            }
        }
        if heads.is_empty() {
            return;
        }
        let pointers: Vec<Pointer> = heads.iter().map(|(_, pointer)| *pointer).collect();
        for ((at, pointer), head) in heads.iter().zip(core.read_heads(&pointers).await) {
            match head {
                Some(head) if head.is_of(self.items[*at].name()) => match self.items[*at].old {
                    // An index that was adopted may lead to a key twice: a section was lost, the key was filled again, and
                    // the section was still there for a successor.
                    Some(_) => self.empty_slot(*at, *pointer),
                    None => self.items[*at].old = Some(*pointer),
                },
                Some(_) => {}
                None if core.is_marked_evicted(*pointer).await => self.empty_slot(*at, *pointer),
                // The slot may or may not belong to this key, so it must lead nowhere.
                None => self.lost.push(pointer.address()),
            }
        }
    }

    /// Has the writer empty the slot that leads to a record; the item is located again.
    fn empty_slot(&mut self, at: usize, pointer: Pointer) {
        let item = &self.items[at];
        let Some(subtable) = item.subtable else { return };
        self.void.push((subtable, item.hash, pointer));
        self.groups.remove(&subtable.group_address(item.hash.group()));
    }

    /// Gives every item that is not located yet its slot.
    fn reserve(&mut self) {
        let ApplyPart { held, items, groups, crowded, lost, .. } = self;
        for (at, item) in items.iter_mut().enumerate() {
            let Some(subtable) = item.subtable.filter(|_| !item.located) else { continue };
            let group = groups.get_mut(&subtable.group_address(item.hash.group()));
            let Some((read, Some(group))) = group else { continue };
            if *read != subtable {
                continue;
            }
            let place = match item.old {
                Some(old) => group.find(item.hash, item.hash.slot(old)),
                // Deleting a key that memory does not hold needs no slot.
                None if item.update.value.is_none() => {
                    item.located = true;
                    continue;
                }
                None => group.vacant_slot(item.hash, |address| held.holds(address)),
            };
            match place {
                Some(place) => {
                    item.slot = Some((subtable, place, group.slot(place)));
                    item.located = true;
                    group.set(place, RESERVED);
                }
                // Two keys cannot share a record: the bytes that were read contradict each other.
                None if item.old.is_some() => lost.push(subtable.address),
                None => crowded.push((at, subtable)),
            }
        }
    }

    /// Step 3. The checksum of a value is computed right before its verb is posted, so that the value enters the core's
    /// cache only once.
    pub(super) async fn write(mut self) -> ApplyPart {
        hold_up("state.apply.write").await;
        let ApplyPart { core, held, items, unwritten, lost, .. } = &mut self;
        let mut failed = Set::default();
        let mut heads = BytesMut::with_capacity(items.iter().map(|item| record::head_bytes_of(item.name())).sum());
        for window in items.chunks(IN_FLIGHT_MAX) {
            let mut post = |item: &PendingWrite| {
                let NewRecord { pointer, .. } = item.new.as_ref().filter(|_| item.slot.is_some() && !item.written)?;
                if !held.holds(pointer.address()) {
                    return None;
                }
                let crate::Update { value, version } = &item.update;
                let prev = item.old.unwrap_or(Pointer::NULL);
                let content = RecordContent { name: item.name(), version: *version, value: value.as_deref(), prev };
                record::encode_head(&content, pointer.incarnation(), &mut heads);
                let parts = [heads.split().freeze(), value.clone().unwrap_or_default()];
                Some((*pointer, core.memory.write(pointer.address(), &parts)))
            };
            let posted: Vec<_> = window.iter().filter_map(&mut post).collect();
            for (pointer, verb) in posted {
                if let Err(error) = completed(&*core.memory, verb).await {
                    core.memory.note_failure(pointer.address(), &error);
                    failed.insert(pointer.address());
                    let list =
                        if had_no_effect(&error) && core.is_usable(&error) { &mut *unwritten } else { &mut *lost };
                    list.push(pointer.address());
                }
            }
        }
        for item in items.iter_mut() {
            item.written |= item.slot.is_some();
            if item.new.as_ref().is_some_and(|new| failed.contains(&new.pointer.address())) {
                item.new = None;
            }
        }
        self
    }

    /// Step 5.
    async fn link(&self) {
        hold_up("state.apply.link").await;
        for window in self.items.chunks(IN_FLIGHT_MAX) {
            let post = |item: &PendingWrite| {
                let (old, new) = (item.old?, item.new.as_ref()?);
                if !self.held.holds(old.address()) {
                    return None;
                }
                let word = |next| LinkWord { next, incarnation: old.incarnation(), valid: true }.bits();
                let (expected, new) = (word(Pointer::NULL), word(new.pointer));
                Some((old, expected, self.core.memory.compare_swap(old.address(), expected, new)))
            };
            let posted: Vec<_> = window.iter().filter_map(post).collect();
            for (old, expected, verb) in posted {
                match completed(&*self.core.memory, verb).await {
                    Ok(found) if found == expected => {}
                    Ok(_) => events::LinksMissed.add(1),
                    Err(error) => {
                        self.core.memory.note_failure(old.address(), &error);
                        events::LinksMissed.add(1);
                    }
                }
            }
        }
    }

    /// Steps 5 to 7. If the value of a slot is not known, the caches are left to the writer.
    pub(super) async fn link_swap_and_cache(mut self) -> ApplyPart {
        self.link().await;
        hold_up("state.apply.slot").await;
        let ApplyPart { core, held, items, lost, .. } = &mut self;
        items.iter_mut().filter(|item| item.has_lost_slot(held)).for_each(|item| item.slot = None);
        for window in items.chunks(IN_FLIGHT_MAX) {
            let post = |item: &PendingWrite| {
                let (subtable, place, before) = item.slot?;
                let after = item.new.as_ref().map_or(0, |new| item.hash.slot(new.pointer));
                if before == after {
                    return None;
                }
                let address = place.address(subtable.group_address(item.hash.group()));
                Some(SlotSwap { address, before, verb: core.memory.compare_swap(address, before, after) })
            };
            let posted = window.iter().filter_map(post).collect();
            lost.extend(core.failed_swaps(posted).await);
        }
        if lost.is_empty() && !mutant(Mutant::PublishEarly) {
            hold_up("state.apply.caches").await;
            self.replace_in_caches();
        }
        self
    }

    /// Step 7.
    fn replace_in_caches(&mut self) {
        self.is_cached = true;
        for item in &self.items {
            let kind = if item.update.value.is_some() { VersionKind::Live } else { VersionKind::Deleted };
            let version = item.update.version;
            let (known, kept) = match &item.new {
                Some(NewRecord { pointer, bytes, .. }) => {
                    self.core.heat.touch(pointer.address());
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
            self.core.caches.replace(item.hash, item.name(), known, kept);
        }
    }
}
