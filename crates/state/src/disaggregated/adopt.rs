//! Adoption: a new primary takes over the sections, the index and the records that the last one left.
//!
//! The address space was opened under a new epoch: every memory node that it reached has revoked all older capabilities,
//! so nobody changes the memory any more. It may be in any state that a primary can be in when it dies. Steps:
//! 1. **Read** the header of every adopted section ([`super::header`]). A section without a valid header is returned.
//! 2. **Choose.** The memory node with the highest mark decides on seed and membership. Sections of memory nodes whose marks
//!    have another membership, or whose headers have another seed, are returned: an earlier primary was without them for a
//!    while. So are those of memory nodes whose mark is more than [`LAG_BLOCKS_MAX`] below the highest.
//! 3. The state **opens at the lowest mark** that is left, or at storage's savepoint if that is lower. If that is more
//!    than [`LAG_BLOCKS_MAX`] blocks below the savepoint, nothing is adopted.
//! 4. Read the first word of every listed subtable. Of several subtables for one hash the deepest is kept. The others,
//!    and entries that lead to no subtable, are removed from the catalogues.
//! 5. **Lower the marks** to the opening height under a new membership, and wait until they have landed
//!    ([`super::marks`]).
//! 6. The caller applies the blocks from the opening height on again. That mends every key that these blocks wrote. Until
//!    then readers find the records of these blocks too new, and read storage.
//! 7. In the background, the **survey** reads the subtables, [`SURVEY_SUBTABLES`] at each time that it holds the writer's
//!    lock. Every slot that leads into an adopted section is a claim; a subtable with invalid buckets is dropped. When it
//!    has read all subtables, it waits until every lease under which a reader may know another buffer has ended. Then
//!    the allocator learns which buffers are in use: the claimed ones and the superseded versions that views may still
//!    need. All other bytes are free.
//!
//! No follower joins before all subtables have been read, so that followers learn of every record that becomes
//! unreachable later. Until the survey has ended, nothing is allocated in adopted sections, nothing is evicted and no section is drained. A
//! buffer that is retired meanwhile is noted: if the survey may have claimed it already, it is retired when the
//! survey has ended.
//!
//! Everything that is read here may be damaged. A wrong header, mark or subtable costs the memory that it describes; a
//! record that cannot be trusted is found by its readers, as always.
//!
//! Invariants:
//! * When the state opens, every block below its height is in the index: the slot of every key that these blocks wrote
//!   leads to the newest version below the height, or to one of a later block, or to none.
//! * Marks are never above the height that the index has reached: not while blocks are applied again either.
//! * `prev` of an adopted record is never followed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use base::rt::{self, Instant};
use base::{BytesMut, Map, Set};
use futures_util::future::join_all;
use replica::lease::REUSE_AFTER;

use super::fault::{Mutant, hold_up, mutant};
use super::grow::IN_FLIGHT_MAX;
use super::header::{self, Mark, SectionHeader};
use super::index::{BucketGroup, DEPTH_MAX, GROUP_BYTES, GROUPS, KeyHash, SUBTABLE_BYTES, Subtable};
use super::memory::{Memory, Section, completed};
use super::pointer::{ADDRESS_BYTES_MAX, Pointer};
use super::space::Extent;
use super::{DONOR_TIMEOUT, StateCore, StateWriter};
use crate::events;

/// How many blocks the marks of memory that is adopted may lie apart, and below the savepoint.
const LAG_BLOCKS_MAX: u64 = 64;
/// Subtables that the survey reads under one hold of the writer's lock.
const SURVEY_SUBTABLES: usize = 64;
/// A directory has at most this many times as many entries as there are subtables; more mean damage.
const DIRECTORY_SLACK: usize = 64;

/// What a new primary takes over.
pub(super) struct Adoption {
    pub(super) seed: u64,
    /// The height at which the state opens.
    pub(super) height: u64,
    /// A height above that of every block that may be in the index.
    pub(super) above: u64,
    sections: Vec<AdoptedSection>,
    subtables: Vec<Subtable>,
    /// Entries of catalogues to be removed: the section and the entry.
    void_entries: Vec<(u64, usize)>,
}

struct AdoptedSection {
    section: Section,
    donor: u32,
    header: SectionHeader,
}

/// Steps 1 to 4; `None` if there is nothing to adopt.
pub(super) async fn find(memory: &dyn Memory, savepoint: u64) -> Option<Adoption> {
    let found = memory.take_adopted();
    if found.is_empty() {
        return None;
    }
    hold_up("state.adopt.read").await;
    let (mut sections, mut rejected) = read_headers(memory, found).await;
    let height = choose(&mut sections, &mut rejected, savepoint);
    events::SectionsNotAdopted.add(rejected.len() as u64);
    // A memory node that has not confirmed all returns gets no mark.
    let releases = rejected.into_iter().map(|id| memory.release(id));
    if rt::timeout(DONOR_TIMEOUT, join_all(releases)).await.is_err() {
        tracing::debug!("sections that were not adopted are returned in the background");
    }
    let (height, above) = height?;
    let seed = sections.first()?.header.seed;
    let (subtables, void_entries) = read_subtables(memory, &sections).await;
    events::SectionsAdopted.add(sections.len() as u64);
    events::SubtablesAdopted.add(subtables.len() as u64);
    tracing::info!(
        sections = sections.len(),
        subtables = subtables.len(),
        height,
        savepoint,
        "the memory of the last primary is adopted"
    );
    Some(Adoption { seed, height, above, sections, subtables, void_entries })
}

/// Reads ranges of memory, some at a time; `None` where a verb failed.
async fn read_all(memory: &dyn Memory, ranges: &[(u64, usize)]) -> Vec<Option<BytesMut>> {
    let mut found = Vec::with_capacity(ranges.len());
    for window in ranges.chunks(IN_FLIGHT_MAX) {
        let post = |(address, length): &(u64, usize)| memory.read(*address, *length, BytesMut::with_capacity(*length));
        let posted: Vec<_> = window.iter().map(post).collect();
        for (verb, (address, _)) in posted.into_iter().zip(window) {
            let read = completed(memory, verb).await;
            found.push(read.inspect_err(|error| memory.note_failure(*address, error)).ok());
        }
    }
    found
}

/// Step 1: the sections with valid headers, and the numbers of the others.
async fn read_headers(memory: &dyn Memory, found: Vec<Section>) -> (Vec<AdoptedSection>, Vec<u32>) {
    let (mut sections, mut rejected) = (Vec::new(), Vec::new());
    let ranges: Vec<(u64, usize)> =
        found.iter().map(|section| (section.address, header::header_bytes(section.bytes) as usize)).collect();
    for (section, bytes) in found.into_iter().zip(read_all(memory, &ranges).await) {
        let decoded = bytes.and_then(|bytes| header::decode(&bytes, section.address, section.bytes));
        match decoded.filter(|_| section.address.saturating_add(section.bytes) <= ADDRESS_BYTES_MAX) {
            Some(header) => {
                memory.start_from(u32::try_from(header.next).unwrap_or(u32::MAX));
                let donor = memory.donor_of(section.id);
                sections.push(AdoptedSection { section, donor, header });
            }
            None => rejected.push(section.id),
        }
    }
    (sections, rejected)
}

/// Steps 2 and 3: removes the sections that do not belong to the newest ones. Returns the height at which the state
/// opens, and one above that of every block that may be in the index.
fn choose(sections: &mut Vec<AdoptedSection>, rejected: &mut Vec<u32>, savepoint: u64) -> Option<(u64, u64)> {
    // If several sections of a memory node have a mark, one was left by an earlier primary; the lowest is safe.
    let mut marks: BTreeMap<u32, (Mark, u64)> = BTreeMap::new();
    for AdoptedSection { donor, header, .. } in sections.iter() {
        let Some(mark) = header.mark else { continue };
        let kept = marks.entry(*donor).or_insert((mark, header.seed));
        if mark.height < kept.0.height {
            *kept = (mark, header.seed);
        }
    }
    let size = |donor: u32| sections.iter().filter(|section| section.donor == donor).count();
    let newest = marks.iter().max_by_key(|(donor, (mark, _))| (mark.height, size(**donor))).map(|(_, chosen)| *chosen);
    let newest = newest.filter(|(mark, _)| mark.height.saturating_add(LAG_BLOCKS_MAX) >= savepoint);
    let is_near = |mark: &Mark, newest: &Mark| {
        mutant(Mutant::MembershipKept)
            || (mark.membership == newest.membership && mark.height.saturating_add(LAG_BLOCKS_MAX) >= newest.height)
    };
    let belongs = |section: &AdoptedSection| {
        newest
            .as_ref()
            .zip(marks.get(&section.donor))
            .is_some_and(|((newest, seed), (mark, _))| section.header.seed == *seed && is_near(mark, newest))
    };
    rejected.extend(sections.iter().filter(|section| !belongs(section)).map(|section| section.section.id));
    sections.retain(belongs);
    let left = sections.iter().filter_map(|section| marks.get(&section.donor)).map(|(mark, _)| mark.height);
    let lowest = match mutant(Mutant::MembershipKept) {
        true => left.max()?,
        false => left.min()?,
    };
    let height = if mutant(Mutant::OpenAtSavepoint) { savepoint } else { lowest.min(savepoint) };
    // Blocks after the newest mark may have been applied while the mark was in flight.
    newest.map(|(mark, _)| (height, mark.height.saturating_add(LAG_BLOCKS_MAX)))
}

/// Step 4: the subtables to use, and the entries of catalogues to remove.
async fn read_subtables(memory: &dyn Memory, sections: &[AdoptedSection]) -> (Vec<Subtable>, Vec<(u64, usize)>) {
    let mut void = Vec::new();
    let mut listed = Vec::new();
    for AdoptedSection { section, header, .. } in sections {
        for (entry, address) in &header.catalogue {
            match header::holds_subtable(section.address, section.bytes, *address) {
                true => listed.push((section.address, *entry, *address)),
                false => void.push((section.address, *entry)),
            }
        }
    }
    let ranges: Vec<(u64, usize)> = listed.iter().map(|(.., address)| (*address, 8)).collect();
    let depth_max = (listed.len() * DIRECTORY_SLACK).checked_ilog2().map_or(0, |log| log.min(DEPTH_MAX));
    let mut found = Vec::new();
    for ((base, entry, address), bytes) in listed.into_iter().zip(read_all(memory, &ranges).await) {
        let subtable = bytes.and_then(|bytes| Subtable::of_header(address, wire::u64_at(&bytes, 0)));
        match subtable.filter(|subtable| subtable.depth <= depth_max) {
            Some(subtable) => found.push((subtable, base, entry)),
            None => void.push((base, entry)),
        }
    }
    found.sort_by_key(|(subtable, ..)| std::cmp::Reverse((subtable.depth, subtable.suffix)));
    let mut subtables: Vec<Subtable> = Vec::with_capacity(found.len());
    // The suffixes, with their depths, of which a part is served already.
    let mut served: Set<(u32, u64)> = Set::default();
    let mut addresses: Set<u64> = Set::default();
    for (subtable, base, entry) in found {
        let is_new = !served.contains(&(subtable.depth, subtable.suffix));
        if !is_new || !addresses.insert(subtable.address) {
            void.push((base, entry));
            continue;
        }
        for depth in (0..=subtable.depth).rev() {
            if !served.insert((depth, KeyHash(subtable.suffix).suffix(depth))) {
                break;
            }
        }
        subtables.push(subtable);
    }
    (subtables, void)
}

impl StateCore {
    /// Enters what was adopted, and step 5.
    pub(super) async fn install_adopted(&self, adoption: Adoption) {
        let Adoption { height, above, sections, subtables, void_entries, .. } = adoption;
        self.forgotten.store(above, Ordering::Release);
        let mut guard = self.writer.lock().await;
        let writer = &mut *guard;
        let mut marked: Map<u32, u64> = Map::default();
        for AdoptedSection { section, donor, header } in &sections {
            writer.space.add_unsurveyed(section.address, section.bytes, header::header_bytes(section.bytes));
            writer.sections.insert(section.address, section.id);
            writer.headers.enter(section, *donor, &header.catalogue);
            if header.mark.is_some() && marked.insert(*donor, section.address).is_none() {
                writer.headers.set_marked(section.address);
            }
        }
        // A mark that an earlier primary left in another section would outlive the new ones.
        for AdoptedSection { section, donor, header } in &sections {
            let is_stale = header.mark.is_some() && marked.get(donor) != Some(&section.address);
            if is_stale && !self.erase_mark(section.address).await {
                self.give_up(writer, section.address);
            }
        }
        for (base, entry) in void_entries {
            if !self.erase_entry(writer, base, entry).await {
                self.give_up(writer, base);
            }
        }
        if !mutant(Mutant::MarksStay) {
            self.lower_marks(writer, height).await;
        }
        // The deepest come last, so that no shallower one covers them.
        for subtable in subtables.into_iter().rev().filter(|subtable| writer.space.holds(subtable.address)) {
            self.directory.set(subtable);
        }
        self.watch_free_space(writer);
    }

    async fn erase_mark(&self, base: u64) -> bool {
        let verb = self.memory.write(base + header::MARK_OFFSET, &[header::encode_mark(None, 0)]);
        completed(&*self.memory, verb).await.inspect_err(|error| self.memory.note_failure(base, error)).is_ok()
    }

    /// Step 7.
    pub(super) async fn survey(&self) {
        let started = rt::now();
        let mut claims: Vec<Extent> = Vec::new();
        let mut scanned: Set<u64> = Set::default();
        if !self.writer.lock().await.space.has_unsurveyed() {
            return self.surveyed.cancel();
        }
        loop {
            // Splits and moves add subtables meanwhile.
            let suffixes: Vec<u64> = {
                let unread = self.directory.subtables().filter(|one| !scanned.contains(&one.address));
                unread.map(|one| one.suffix).collect()
            };
            if suffixes.is_empty() {
                break;
            }
            // A simulation surveys little at a time, so that more happens meanwhile.
            let is_slow = mutant(Mutant::SurveyBlind) || rt::fault_point("state.adopt.slow");
            let batch = if is_slow { 1 } else { SURVEY_SUBTABLES };
            for some in suffixes.chunks(batch) {
                hold_up("state.adopt.survey").await;
                let mut guard = self.writer.lock().await;
                if self.is_fenced() {
                    return;
                }
                self.survey_some(&mut guard, some, &mut scanned, &mut claims).await;
                if mutant(Mutant::SurveyBlind) {
                    break;
                }
            }
            if mutant(Mutant::SurveyBlind) {
                break;
            }
        }
        self.surveyed.cancel();
        let early = std::mem::take(&mut self.writer.lock().await.retired_unsurveyed);
        hold_up("state.adopt.free").await;
        rt::sleep(REUSE_AFTER).await;
        let mut guard = self.writer.lock().await;
        if !self.is_fenced() {
            self.end_survey(&mut guard, claims, &early, started);
        }
    }

    /// Reads the subtables that serve these suffixes.
    async fn survey_some(
        &self,
        writer: &mut StateWriter,
        suffixes: &[u64],
        scanned: &mut Set<u64>,
        claims: &mut Vec<Extent>,
    ) {
        let subtables: Vec<Subtable> = suffixes
            .iter()
            .filter_map(|suffix| self.find_subtable(KeyHash(*suffix)))
            .filter(|subtable| scanned.insert(subtable.address))
            .collect();
        let ranges: Vec<(u64, usize)> = subtables.iter().map(|one| (one.address, SUBTABLE_BYTES)).collect();
        for (subtable, bytes) in subtables.iter().zip(read_all(&*self.memory, &ranges).await) {
            if !writer.space.holds(subtable.address) {
                continue;
            }
            let Some(bytes) = bytes else {
                self.give_up(writer, subtable.address);
                continue;
            };
            let groups: Option<Vec<BucketGroup>> =
                bytes.chunks(GROUP_BYTES).map(|bytes| BucketGroup::new(bytes, subtable)).collect();
            let Some(groups) = groups.filter(|groups| groups.len() == GROUPS) else {
                self.drop_subtable(writer, *subtable).await;
                continue;
            };
            for (_, pointer) in groups.iter().flat_map(BucketGroup::entries) {
                if writer.space.is_unsurveyed(pointer.address()) {
                    claims.push(claim(pointer));
                }
            }
        }
    }

    /// Drops a subtable whose buckets are damaged.
    async fn drop_subtable(&self, writer: &mut StateWriter, subtable: Subtable) {
        events::SubtablesDropped.add(1);
        self.directory.forget(|one| one.address == subtable.address);
        writer.orphans = true;
        self.unlist_subtable(writer, subtable.address).await;
    }

    /// Tells the allocator which buffers are in use.
    fn end_survey(&self, writer: &mut StateWriter, mut claims: Vec<Extent>, early: &[Pointer], started: Instant) {
        let retired: Set<u64> = early.iter().map(|pointer| pointer.address()).collect();
        claims.retain(|claim| !retired.contains(&claim.address));
        let late = std::mem::take(&mut writer.retired_unsurveyed);
        let in_use = late.iter().copied();
        let in_use = in_use.chain(writer.superseded.iter().map(|superseded| superseded.pointer));
        let in_use = in_use.chain(writer.unacknowledged.iter().map(|(_, pointer)| *pointer));
        // What only caches and delta still lead to is an orphan, which the sweep finds.
        let mut known = self.delta().newest_in_memory();
        known.extend(self.caches.pointers());
        let known = known.into_iter().filter(|pointer| !retired.contains(&pointer.address()));
        let in_use = in_use.chain(known);
        claims.extend(in_use.filter(|pointer| writer.space.is_unsurveyed(pointer.address())).map(claim));
        let subtables: BTreeMap<u64, u64> = {
            let adopted = self.directory.subtables().filter(|one| writer.space.is_unsurveyed(one.address));
            adopted.map(|one| (one.address, one.address + SUBTABLE_BYTES as u64)).collect()
        };
        // A slot that leads into a subtable is damaged.
        let is_within = |address: u64| subtables.range(..=address).next_back().is_some_and(|(_, end)| address < *end);
        claims.retain(|claim| !is_within(claim.address));
        events::RecordsAdopted.add(claims.len() as u64);
        claims.extend(subtables.iter().map(|(address, end)| Extent { address: *address, bytes: end - address }));
        claims.sort_unstable();
        claims.dedup_by_key(|claim| claim.address);
        writer.space.survey(&claims);
        for pointer in late {
            writer.retire_now(pointer);
        }
        events::SurveyTime.record_since(started);
        let accounts = writer.space.accounts();
        tracing::info!(free = accounts.free, live = accounts.live, "the free space of adopted memory is known");
        self.watch_free_space(writer);
        self.wanted.notify_one();
    }
}

fn claim(pointer: Pointer) -> Extent {
    Extent { address: pointer.address(), bytes: pointer.class().bytes() as u64 }
}
