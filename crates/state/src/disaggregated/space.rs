//! The allocator of one address space: which bytes of the leased sections are in use, and when they become free again.
//!
//! The allocator lives on the primary; none of its state is in remote memory. Sections are leased one at a time
//! ([`SpaceAllocator::add`]) and hold many records each, so that requests to the control plane are rare. A buffer
//! passes through these states:
//!
//! 1. free, coalesced with its free neighbours, ordered by length (best fit) and by address;
//! 2. live, from [`SpaceAllocator::allocate`] on: a bit in the section's bitmap marks its first unit, and the
//!    allocator stores nothing else about it;
//! 3. quarantined, from the moment when nothing leads to it any more until every lease under which its address may be
//!    known has ended;
//! 4. free again; its next use has another incarnation.
//!
//! Two shortcuts keep most blocks out of the trees of free extents. First, a freed buffer is *parked* by its length
//! for the next buffer of that length, and is coalesced with its neighbours only when an allocation fits nowhere else.
//! Second, a long extent, once chosen, becomes the *open run*, from which buffers are cut one after the other.
//!
//! The header of a section ([`super::header`]) belongs to no buffer. It counts as live.
//!
//! An adopted section is *unsurveyed* at first: it is live as a whole, no buffer in it is known, and nothing is allocated
//! there. [`SpaceAllocator::survey`] ends that, given the buffers that are in use.
//!
//! Invariant: leased = free + live + quarantined, to the byte; parked buffers and the open run are free. When a
//! section is abandoned, everything in it leaves these accounts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use base::Map;
use base::rt::Instant;

use super::pointer::{Incarnation, UNIT_BYTES};
use replica::lease::REUSE_AFTER;

/// An extent becomes the open run if at least this many buffers of the requested length can be cut from it.
const RUN_BUFFERS_MIN: u64 = 8;

/// A buffer of remote memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Extent {
    pub address: u64,
    pub bytes: u64,
}

/// The sections that were leased at some moment.
#[derive(Clone, Default)]
pub struct HeldSections {
    /// The first byte of each, and the byte after its last one, in order.
    extents: Arc<[(u64, u64)]>,
}

impl HeldSections {
    /// Whether an address lies in one of them.
    pub fn holds(&self, address: u64) -> bool {
        let after = self.extents.partition_point(|(base, _)| *base <= address);
        after.checked_sub(1).is_some_and(|at| address < self.extents[at].1)
    }
}

/// How the leased bytes are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceAccounts {
    pub leased: u64,
    pub free: u64,
    pub live: u64,
    pub quarantined: u64,
}

struct SectionAllocator {
    base: u64,
    bytes: u64,
    /// One bit per unit: the starts of buffers that are not free, and of parked ones.
    starts: Box<[u64]>,
    /// One bit per unit: the starts of parked buffers.
    parked: Box<[u64]>,
    /// Free extents: first unit and number of units.
    free: BTreeMap<u64, u64>,
    /// Nothing is allocated here.
    is_closed: bool,
    /// It migrates: it stays closed, and is not drained.
    is_migrating: bool,
    /// Bytes of the header.
    header_bytes: u64,
    /// It is not known which buffers are in use.
    is_unsurveyed: bool,
}

#[derive(Clone, Copy)]
struct OpenRun {
    base: u64,
    start: u64,
    end: u64,
}

/// See [the module](self).
pub struct SpaceAllocator {
    /// By their first byte.
    sections: BTreeMap<u64, SectionAllocator>,
    held: HeldSections,
    /// Free extents of all sections by length: bytes, address.
    by_length: BTreeSet<(u64, u64)>,
    /// The addresses of parked buffers by their length.
    parked: Map<u64, Vec<u64>>,
    /// The open run: the base of its section, its start and its end.
    open: Option<OpenRun>,
    quarantine: VecDeque<(Instant, Extent)>,
    accounts: SpaceAccounts,
    /// Sections that are unsurveyed.
    unsurveyed: usize,
    incarnation: Incarnation,
    /// When the incarnation last changed.
    changed: Option<Instant>,
}

impl Default for SpaceAllocator {
    fn default() -> Self {
        SpaceAllocator {
            sections: BTreeMap::new(),
            held: HeldSections::default(),
            by_length: BTreeSet::new(),
            parked: Map::default(),
            open: None,
            quarantine: VecDeque::new(),
            accounts: SpaceAccounts::default(),
            unsurveyed: 0,
            incarnation: Incarnation::new(1),
            changed: None,
        }
    }
}

impl SectionAllocator {
    fn bit(&self, address: u64) -> (usize, u64) {
        let unit = (address - self.base) / UNIT_BYTES;
        ((unit / 64) as usize, 1 << (unit % 64))
    }

    /// Whether a buffer starts here that is neither free nor parked.
    fn is_start(&self, address: u64) -> bool {
        let (at, bit) = self.bit(address);
        self.starts[at] & !self.parked[at] & bit != 0
    }

    fn set_parked(&mut self, address: u64, parked: bool) {
        let (at, bit) = self.bit(address);
        assert!(self.starts[at] & bit != 0 && (self.parked[at] & bit != 0) != parked, "buffers are parked once");
        self.parked[at] ^= bit;
    }

    fn set_start(&mut self, address: u64, start: bool) {
        let (at, bit) = self.bit(address);
        assert_eq!(self.starts[at] & bit != 0, !start, "buffers are allocated and freed in turns");
        self.starts[at] ^= bit;
    }

    /// The first start at or after `address`, or the section's end.
    fn next_start(&self, address: u64) -> u64 {
        if address >= self.base + self.bytes {
            return self.base + self.bytes;
        }
        let (first, bit) = self.bit(address);
        let mut word = self.starts[first] & !(bit - 1);
        let mut at = first;
        while word == 0 {
            at += 1;
            match self.starts.get(at) {
                Some(next) => word = *next,
                None => return self.base + self.bytes,
            }
        }
        self.base + (at as u64 * 64 + u64::from(word.trailing_zeros())) * UNIT_BYTES
    }

    /// The end of the buffer that starts at `address`: the next buffer, free or not.
    fn end(&self, address: u64, open: Option<OpenRun>) -> u64 {
        let end = self.next_start(address + UNIT_BYTES);
        let end = open.filter(|run| (address..end).contains(&run.start)).map_or(end, |run| run.start);
        self.free.range(address..end).next().map_or(end, |(free, _)| *free)
    }
}

impl SpaceAllocator {
    /// Adds a leased section that is free behind its header.
    pub fn add(&mut self, base: u64, bytes: u64, header_bytes: u64) {
        self.insert(base, bytes, header_bytes, false);
        self.accounts.free += bytes - header_bytes;
        self.accounts.live += header_bytes;
        if bytes > header_bytes {
            self.put_free(base, base + header_bytes, bytes - header_bytes);
        }
    }

    /// Adds an adopted section, whose buffers are not known yet.
    pub fn add_unsurveyed(&mut self, base: u64, bytes: u64, header_bytes: u64) {
        self.insert(base, bytes, header_bytes, true);
        self.accounts.live += bytes;
        self.unsurveyed += 1;
    }

    fn insert(&mut self, base: u64, bytes: u64, header_bytes: u64, is_unsurveyed: bool) {
        assert!(
            base > 0 && base.is_multiple_of(UNIT_BYTES) && bytes.is_multiple_of(64 * UNIT_BYTES),
            "sections are aligned"
        );
        assert!(header_bytes <= bytes && header_bytes.is_multiple_of(UNIT_BYTES), "a header ends within its section");
        let words = (bytes / UNIT_BYTES / 64) as usize;
        let section = SectionAllocator {
            base,
            bytes,
            starts: vec![0; words].into(),
            parked: vec![0; words].into(),
            free: BTreeMap::new(),
            is_closed: false,
            is_migrating: false,
            header_bytes,
            is_unsurveyed,
        };
        let other = self.sections.insert(base, section);
        assert!(other.is_none(), "a section is leased once");
        self.note_sections();
        self.accounts.leased += bytes;
    }

    /// Whether the section of an address is unsurveyed.
    pub fn is_unsurveyed(&self, address: u64) -> bool {
        let section = self.sections.range(..=address).next_back();
        section.is_some_and(|(base, section)| section.is_unsurveyed && address < base + section.bytes)
    }

    /// Whether any section is unsurveyed.
    pub fn has_unsurveyed(&self) -> bool {
        self.unsurveyed > 0
    }

    /// Ends the survey: in every unsurveyed section these buffers are live, and all other bytes are free. The buffers are
    /// in the order of addresses, with a length that may be too long: a buffer ends where the next one starts. Buffers
    /// that do not fit a section are left out.
    pub fn survey(&mut self, buffers: &[Extent]) {
        let bases: Vec<u64> =
            self.sections.iter().filter(|(_, section)| section.is_unsurveyed).map(|(base, _)| *base).collect();
        for base in bases {
            let section = self.section(base);
            section.is_unsurveyed = false;
            self.unsurveyed -= 1;
            let section = self.section(base);
            let (mut at, end) = (base + section.header_bytes, base + section.bytes);
            let first = buffers.partition_point(|buffer| buffer.address < at);
            let within = &buffers[first..];
            let within = &within[..within.partition_point(|buffer| buffer.address < end)];
            let mut free = Vec::new();
            for (number, buffer) in within.iter().enumerate() {
                if !buffer.address.is_multiple_of(UNIT_BYTES) || buffer.address < at || buffer.bytes < UNIT_BYTES {
                    continue;
                }
                if buffer.address > at {
                    free.push((at, buffer.address - at));
                }
                let next = within[number + 1..].iter().find(|next| next.address > buffer.address);
                let limit = next.map_or(end, |next| next.address.next_multiple_of(UNIT_BYTES).min(end));
                section.set_start(buffer.address, true);
                at = (buffer.address + buffer.bytes.next_multiple_of(UNIT_BYTES)).min(limit);
            }
            if at < end {
                free.push((at, end - at));
            }
            for (address, bytes) in free {
                self.accounts.live -= bytes;
                self.accounts.free += bytes;
                self.put_free(base, address, bytes);
            }
        }
    }

    /// Drops a section and everything in it; false if there is none.
    pub fn remove(&mut self, base: u64) -> bool {
        let Some(section) = self.sections.remove(&base) else { return false };
        self.note_sections();
        let within = |address: u64| address >= base && address < base + section.bytes;
        self.unsurveyed -= usize::from(section.is_unsurveyed);
        for (address, bytes) in &section.free {
            self.by_length.remove(&(*bytes, *address));
            self.accounts.free -= bytes;
        }
        if let Some(run) = self.open.take_if(|run| run.base == base) {
            self.accounts.free -= run.end - run.start;
        }
        for (bytes, addresses) in &mut self.parked {
            let before = addresses.len();
            addresses.retain(|address| !within(*address));
            self.accounts.free -= bytes * (before - addresses.len()) as u64;
        }
        let quarantined = &mut self.accounts.quarantined;
        self.quarantine.retain(|(_, extent)| {
            let gone = within(extent.address);
            *quarantined -= if gone { extent.bytes } else { 0 };
            !gone
        });
        self.accounts.leased -= section.bytes;
        let SpaceAccounts { leased, free, quarantined, .. } = self.accounts;
        self.accounts.live = leased - free - quarantined;
        true
    }

    /// The section with the fewest bytes in use, or, with `fullest`, with the most; a closed section precedes all
    /// others.
    pub fn emptiest(&mut self, fullest: bool) -> Option<u64> {
        self.coalesce();
        let in_use = |section: &SectionAllocator| {
            let free = section.free.values().sum::<u64>();
            if fullest { free } else { section.bytes - free }
        };
        let sections = self.sections.values().filter(|section| !section.is_migrating);
        let sections = sections.map(|section| (!section.is_closed, in_use(section), section.base));
        sections.min().map(|(.., base)| base)
    }

    /// Allocates nothing in a section from now on.
    pub fn close(&mut self, base: u64) {
        self.coalesce();
        let Some(section) = self.sections.get_mut(&base).filter(|section| !section.is_closed) else { return };
        section.is_closed = true;
        for (address, bytes) in &section.free {
            self.by_length.remove(&(*bytes, *address));
        }
    }

    /// Allows allocation in all sections again that do not migrate.
    pub fn open_all(&mut self) {
        for base in self.sections.keys().copied().collect::<Vec<_>>() {
            self.open(base);
        }
    }

    fn open(&mut self, base: u64) {
        let is_openable = |section: &&mut SectionAllocator| section.is_closed && !section.is_migrating;
        let Some(section) = self.sections.get_mut(&base).filter(is_openable) else { return };
        section.is_closed = false;
        self.by_length.extend(section.free.iter().map(|(address, bytes)| (*bytes, *address)));
    }

    /// Closes a section that migrates. It stays closed until [`SpaceAllocator::end_migration`].
    pub fn begin_migration(&mut self, base: u64) {
        self.close(base);
        if let Some(section) = self.sections.get_mut(&base) {
            section.is_migrating = true;
        }
    }

    /// Allows allocation in a section again that has migrated, unless it was given up.
    pub fn end_migration(&mut self, base: u64) {
        if let Some(section) = self.sections.get_mut(&base) {
            section.is_migrating = false;
        }
        self.open(base);
    }

    /// A buffer of at least `bytes` bytes, rounded up to units, aligned to `align`; `None` when no free extent is long
    /// enough.
    pub fn allocate(&mut self, bytes: usize, align: u64) -> Option<Extent> {
        let bytes = (bytes as u64).next_multiple_of(UNIT_BYTES);
        let extent = match align <= UNIT_BYTES {
            true => self.allocate_parked(bytes).or_else(|| self.allocate_open(bytes)),
            false => None,
        };
        let extent = match extent.or_else(|| self.allocate_fitting(bytes, align)) {
            Some(extent) => extent,
            None if self.coalesce() => self.allocate_fitting(bytes, align)?,
            None => return None,
        };
        self.accounts.free -= bytes;
        self.accounts.live += bytes;
        Some(extent)
    }

    fn allocate_parked(&mut self, bytes: u64) -> Option<Extent> {
        let address = self.parked.get_mut(&bytes)?.pop()?;
        let base = self.base(address);
        self.section(base).set_parked(address, false);
        Some(Extent { address, bytes })
    }

    fn allocate_open(&mut self, bytes: u64) -> Option<Extent> {
        let run = self.open.as_mut().filter(|run| run.end - run.start >= bytes)?;
        let (base, address) = (run.base, run.start);
        run.start += bytes;
        if run.start == run.end {
            self.open = None;
        }
        self.section(base).set_start(address, true);
        Some(Extent { address, bytes })
    }

    /// By best fit.
    fn allocate_fitting(&mut self, bytes: u64, align: u64) -> Option<Extent> {
        // An extent of this length fits wherever it starts; a shorter one may fit by luck, which is not searched for.
        let enough = bytes + align.max(UNIT_BYTES) - UNIT_BYTES;
        let (length, first) = self.by_length.range((enough, 0)..).next().copied()?;
        let address = first.next_multiple_of(align.max(UNIT_BYTES));
        let base = self.base(first);
        self.take_free(base, first, length);
        if align <= UNIT_BYTES && length >= bytes * RUN_BUFFERS_MIN {
            self.close_run();
            self.open = Some(OpenRun { base, start: first, end: first + length });
            return self.allocate_open(bytes);
        }
        if address > first {
            self.put_free(base, first, address - first);
        }
        if address + bytes < first + length {
            self.put_free(base, address + bytes, first + length - address - bytes);
        }
        self.section(base).set_start(address, true);
        Some(Extent { address, bytes })
    }

    /// Joins the parked buffers and the open run with adjacent free extents; false if there were none.
    pub fn coalesce(&mut self) -> bool {
        let mut any = self.close_run();
        for (bytes, addresses) in std::mem::take(&mut self.parked) {
            for address in addresses {
                let base = self.base(address);
                let section = self.section(base);
                section.set_parked(address, false);
                section.set_start(address, false);
                self.join(base, Extent { address, bytes });
                any = true;
            }
        }
        any
    }

    fn close_run(&mut self) -> bool {
        let Some(OpenRun { base, start, end }) = self.open.take() else { return false };
        self.join(base, Extent { address: start, bytes: end - start });
        true
    }

    /// The incarnation of buffers that are allocated now.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The live or quarantined buffer that starts at an address, if one does.
    pub fn extent(&self, address: u64) -> Option<Extent> {
        let section = self.sections.range(..=address).next_back()?.1;
        let is_start =
            address < section.base + section.bytes && address.is_multiple_of(UNIT_BYTES) && section.is_start(address);
        is_start.then(|| Extent { address, bytes: section.end(address, self.open) - address })
    }

    /// Whether an address lies in a leased section.
    pub fn holds(&self, address: u64) -> bool {
        self.held.holds(address)
    }

    /// The leased sections as they are now.
    pub fn held(&self) -> HeldSections {
        self.held.clone()
    }

    fn note_sections(&mut self) {
        let extents = self.sections.values().map(|section| (section.base, section.base + section.bytes));
        self.held = HeldSections { extents: extents.collect() };
    }

    /// Puts a live buffer to which nothing leads any more into quarantine until `until`, which is no earlier than that
    /// of the buffers before it.
    pub fn quarantine(&mut self, address: u64, until: Instant) {
        let extent = self.extent(address).expect("only live buffers are put aside");
        self.accounts.live -= extent.bytes;
        self.accounts.quarantined += extent.bytes;
        self.quarantine.push_back((until, extent));
    }

    /// Frees a live buffer to which nothing ever led and into which nothing is being written.
    pub fn free(&mut self, address: u64) {
        let extent = self.extent(address).expect("only live buffers are freed");
        self.accounts.live -= extent.bytes;
        self.accounts.free += extent.bytes;
        self.release(extent);
    }

    /// Frees the buffers whose quarantine is over; returns their bytes.
    pub fn drain(&mut self, now: Instant) -> u64 {
        let mut freed = 0;
        while let Some((until, extent)) = self.quarantine.front().copied()
            && until <= now
        {
            self.quarantine.pop_front();
            freed += extent.bytes;
            self.release(extent);
        }
        if freed > 0 {
            self.accounts.quarantined -= freed;
            self.accounts.free += freed;
            // A buffer of this incarnation was retired no earlier than the incarnation started, and is freed at least
            // `REUSE_AFTER` after that: so its next use has another incarnation. Changing the incarnation no more often
            // than that delays the repetition of numbers as long as possible.
            if self.changed.is_none_or(|changed| now.since(changed) >= REUSE_AFTER) {
                self.incarnation = self.incarnation.next();
                self.changed = Some(now);
            }
        }
        freed
    }

    pub fn accounts(&self) -> SpaceAccounts {
        let SpaceAccounts { leased, free, live, quarantined } = self.accounts;
        assert_eq!(leased, free + live + quarantined, "every leased byte is in one state");
        self.accounts
    }

    /// Every buffer that is live or quarantined, by address.
    pub fn buffers(&self) -> impl Iterator<Item = Extent> + '_ {
        self.buffers_from(0)
    }

    /// The buffers of [`SpaceAllocator::buffers`] that start at or after an address.
    pub fn buffers_from(&self, address: u64) -> impl Iterator<Item = Extent> + '_ {
        let first = self.sections.range(..=address).next_back().map_or(0, |(base, _)| *base);
        let address = address.next_multiple_of(UNIT_BYTES);
        self.sections.range(first..).map(|(_, section)| section).flat_map(move |section| {
            let end = section.base + section.bytes;
            let mut at = section.next_start(address.max(section.base));
            let all = std::iter::from_fn(move || {
                let extent = (at < end).then(|| Extent { address: at, bytes: section.end(at, self.open) - at })?;
                at = section.next_start(at + UNIT_BYTES);
                Some(extent)
            });
            all.filter(|extent| section.is_start(extent.address))
        })
    }

    /// Every buffer that is quarantined.
    pub fn quarantined(&self) -> impl Iterator<Item = Extent> + '_ {
        self.quarantine.iter().map(|(_, extent)| *extent)
    }

    fn base(&self, address: u64) -> u64 {
        *self.sections.range(..=address).next_back().expect("free extents lie in sections").0
    }

    fn section(&mut self, base: u64) -> &mut SectionAllocator {
        self.sections.get_mut(&base).expect("the section is leased")
    }

    /// Makes a buffer free, for the next one of its length.
    fn release(&mut self, extent: Extent) {
        let base = self.base(extent.address);
        if self.section(base).is_closed {
            self.section(base).set_start(extent.address, false);
            return self.join(base, extent);
        }
        self.section(base).set_parked(extent.address, true);
        self.parked.entry(extent.bytes).or_default().push(extent.address);
    }

    /// Makes an extent free, together with its free neighbours.
    fn join(&mut self, base: u64, extent: Extent) {
        let section = self.section(base);
        let before = section.free.range(..extent.address).next_back().map(|(address, bytes)| (*address, *bytes));
        let end = extent.address + extent.bytes;
        let behind = section.free.get(&end).map(|bytes| (end, *bytes));
        let Extent { mut address, mut bytes } = extent;
        if let Some((first, length)) = before
            && first + length == address
        {
            self.take_free(base, first, length);
            (address, bytes) = (first, bytes + length);
        }
        if let Some((first, length)) = behind {
            self.take_free(base, first, length);
            bytes += length;
        }
        self.put_free(base, address, bytes);
    }

    fn take_free(&mut self, base: u64, address: u64, bytes: u64) {
        let section = self.section(base);
        let (in_section, is_closed) = (section.free.remove(&address), section.is_closed);
        let by_length = is_closed || self.by_length.remove(&(bytes, address));
        assert!(in_section == Some(bytes) && by_length, "both orders know the same extents");
    }

    fn put_free(&mut self, base: u64, address: u64, bytes: u64) {
        let section = self.section(base);
        section.free.insert(address, bytes);
        if !section.is_closed {
            self.by_length.insert((bytes, address));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::rt;

    use super::*;

    const SECTION: u64 = 1 << 16;

    #[test]
    fn every_byte_is_in_one_state_through_random_operations() {
        rt::production::run(async {
            let now = rt::now();
            let mut space = SpaceAllocator::default();
            space.add(SECTION, SECTION, 0);
            space.add(3 * SECTION, SECTION, 0);
            let mut live: Vec<Extent> = Vec::new();
            let mut random = 7u64;
            for step in 0..20_000u64 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let draw = random >> 33;
                match draw % 5 {
                    0 | 1 => {
                        let (bytes, align) =
                            ((draw / 5) as usize % 3_000 + 1, if draw.is_multiple_of(7) { 64 } else { 16 });
                        if let Some(extent) = space.allocate(bytes, align) {
                            assert!(extent.bytes >= bytes as u64 && extent.address.is_multiple_of(align));
                            assert_eq!(space.extent(extent.address), Some(extent));
                            let apart = |one: &Extent| {
                                one.address + one.bytes <= extent.address
                                    || extent.address + extent.bytes <= one.address
                            };
                            assert!(live.iter().all(apart), "buffers do not overlap");
                            live.push(extent);
                        }
                    }
                    2 | 3 if !live.is_empty() => {
                        let extent = live.swap_remove((draw / 5) as usize % live.len());
                        match draw % 2 {
                            0 => space.free(extent.address),
                            _ => space.quarantine(extent.address, now + Duration::from_millis(step)),
                        }
                    }
                    _ => drop(space.drain(now + Duration::from_millis(step.saturating_sub(20)))),
                }
                let accounts = space.accounts();
                assert_eq!(accounts.live, live.iter().map(|extent| extent.bytes).sum::<u64>());
                if step % 100 == 0 {
                    let all: u64 = space.buffers().map(|extent| extent.bytes).sum();
                    assert_eq!(all, accounts.live + accounts.quarantined);
                }
            }
            live.iter().for_each(|extent| space.free(extent.address));
            space.drain(now + Duration::from_secs(100));
            space.coalesce();
            assert_eq!(space.by_length.len(), 2, "free neighbours are one extent");
            assert_eq!(
                space.accounts(),
                SpaceAccounts { leased: 2 * SECTION, free: 2 * SECTION, ..SpaceAccounts::default() }
            );
        });
    }

    #[test]
    fn sections_that_were_held_are_known_as_they_were() {
        rt::production::run(async {
            let mut space = SpaceAllocator::default();
            assert!(!space.held().holds(0) && !space.held().holds(SECTION));
            space.add(3 * SECTION, SECTION, 0);
            space.add(SECTION, SECTION, 0);
            let before = space.held();
            space.remove(SECTION);
            let in_section = |held: &HeldSections| {
                [0, SECTION, 2 * SECTION - 1, 2 * SECTION, 4 * SECTION - 1, 4 * SECTION].map(|at| held.holds(at))
            };
            assert_eq!(in_section(&before), [false, true, true, false, true, false]);
            assert_eq!(in_section(&space.held()), [false, false, false, false, true, false]);
            assert!(space.holds(3 * SECTION) && !space.holds(SECTION));
        });
    }

    #[test]
    fn nothing_is_allocated_in_a_section_that_is_closed() {
        rt::production::run(async {
            let mut space = SpaceAllocator::default();
            space.add(SECTION, SECTION, 0);
            space.add(3 * SECTION, SECTION, 0);
            let buffers: Vec<Extent> = (0..100).map(|_| space.allocate(1_000, 16).expect("there is room")).collect();
            let of = |base: u64| move |extent: &&Extent| (base..base + SECTION).contains(&extent.address);
            let (first, second) = (buffers.iter().filter(of(SECTION)).count(), buffers.len());
            let emptiest = if first < second - first { SECTION } else { 3 * SECTION };
            assert_eq!(space.emptiest(false), Some(emptiest));
            assert_eq!(space.emptiest(true), Some(4 * SECTION - emptiest));
            space.close(SECTION);
            assert_eq!(space.emptiest(false), Some(SECTION), "it is to be finished first");
            buffers.iter().filter(of(SECTION)).for_each(|extent| space.free(extent.address));
            while let Some(extent) = space.allocate(1_000, 16) {
                assert!(of(3 * SECTION)(&&extent));
            }
            assert_eq!(space.accounts().leased, 2 * SECTION);
            space.open_all();
            assert!(space.allocate(SECTION as usize, 16).is_some_and(|extent| of(SECTION)(&&extent)), "it is whole");
        });
    }

    #[test]
    fn a_section_that_is_given_up_takes_its_buffers_along() {
        rt::production::run(async {
            let mut space = SpaceAllocator::default();
            space.add(SECTION, SECTION, 0);
            let one = space.allocate(1_000, 16).expect("there is room");
            let other = space.allocate(1_000, 16).expect("there is room");
            space.quarantine(one.address, rt::now());
            assert!(space.remove(SECTION) && !space.remove(SECTION));
            assert_eq!(space.accounts(), SpaceAccounts::default());
            assert_eq!((space.extent(other.address), space.allocate(1, 16)), (None, None));
            assert_eq!(space.drain(rt::now()), 0);
        });
    }

    #[test]
    fn a_survey_leaves_what_is_in_use_and_frees_the_rest() {
        rt::production::run(async {
            let mut space = SpaceAllocator::default();
            space.add_unsurveyed(SECTION, SECTION, 128);
            assert!(
                space.is_unsurveyed(SECTION + 5_000) && space.holds(SECTION) && space.extent(SECTION + 128).is_none()
            );
            assert_eq!((space.allocate(16, 16), space.accounts().live), (None, SECTION));
            let buffer = |offset: u64, bytes| Extent { address: SECTION + offset, bytes };
            // The second is longer than the room before the third; the others lie in the header, off the units, within
            // another section, and at the end.
            let claims = [
                buffer(64, 64),
                buffer(128, 100),
                buffer(512, 1_000),
                buffer(1_024, 64),
                buffer(2_001, 64),
                buffer(SECTION - 16, 4_096),
                buffer(SECTION + 64, 64),
            ];
            space.survey(&claims);
            let found: Vec<Extent> = space.buffers().collect();
            let wanted = [buffer(128, 112), buffer(512, 512), buffer(1_024, 64), buffer(SECTION - 16, 16)];
            assert_eq!(found, wanted);
            let live = 128 + wanted.iter().map(|buffer| buffer.bytes).sum::<u64>();
            let accounts = SpaceAccounts { leased: SECTION, free: SECTION - live, live, quarantined: 0 };
            assert_eq!(space.accounts(), accounts);
            wanted.iter().for_each(|buffer| space.free(buffer.address));
            assert!(space.allocate((SECTION - 128) as usize, 16).is_some(), "all behind the header is one extent");
            assert!(space.remove(SECTION));
            assert_eq!(space.accounts(), SpaceAccounts::default());
        });
    }
}
