//! The section table: maps the high bits of an address to a donor's region.
//!
//! ```text
//!  address:  number << shift | offset
//!  entries[number] ──▶ { state, location: capability, link }
//! ```
//!
//! An entry is written once, and only its state and its location change later; a section's number is its
//! [`SectionId`]. Looking up an address takes a few loads, no lock and no reference counting. If a section ends
//! meanwhile, a reader of its entry either sees the new state, or uses a capability that the donor revokes.
//!
//! A [migration](super::migration) re-points an entry to another donor. A verb that was posted before goes to the old
//! location, whose donor keeps it until all such verbs have ended.
//!
//! An adopted section keeps the number that an earlier epoch gave to it, so that addresses in memory keep their meaning.
//!
//! Invariants: number 0 is never used, since address 0 is the null pointer; no number is used twice, so an address
//! never refers to another section later. A space that has used all numbers must be opened again. It adopts no section
//! whose number is in the upper half, so that enough numbers are left.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use rma::Capability;

use super::link::DonorLink;
use super::{Section, SectionId};
use crate::ADDRESS_BITS;
use crate::message::DonorSection;

/// Sections that a space may get in total; fewer if sections are so long that the addresses are used up first.
pub const SECTIONS_EVER_MAX: u32 = 1 << 20;
/// Migrations of all sections of a space in total.
pub const MIGRATIONS_EVER_MAX: u32 = 1 << 20;
/// Entries that are allocated at once.
const CHUNK: usize = 1024;

/// The state of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SectionState {
    Live = 1,
    Released = 2,
    Lost = 3,
}

/// Where the bytes of a section are.
pub(crate) struct SectionLocation {
    pub(crate) capability: Capability,
    pub(crate) link: Arc<DonorLink>,
    /// The donor's number for it.
    pub(crate) section: DonorSection,
}

/// A section.
pub(crate) struct SectionEntry {
    state: AtomicU8,
    /// Whether a migration notes the section's writes.
    pub(crate) is_copied: AtomicBool,
    /// The number of its location in the table of migrated ones; 0 while it is where it was granted.
    migrated: AtomicU32,
    granted: SectionLocation,
}

impl SectionEntry {
    fn new(granted: SectionLocation) -> SectionEntry {
        SectionEntry {
            state: AtomicU8::new(SectionState::Live as u8),
            is_copied: AtomicBool::new(false),
            migrated: AtomicU32::new(0),
            granted,
        }
    }

    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) == SectionState::Live as u8
    }

    /// Ends the section; false if it has ended before.
    pub(crate) fn end(&self, state: SectionState) -> bool {
        assert!(state != SectionState::Live, "an end");
        self.state.compare_exchange(SectionState::Live as u8, state as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

type Chunk<T> = Box<[OnceLock<T>]>;

/// All sections that the space ever had.
pub(crate) struct SectionTable {
    shift: u32,
    chunks: Box<[OnceLock<Chunk<SectionEntry>>]>,
    /// The locations of sections that were migrated.
    migrated: Box<[OnceLock<Chunk<SectionLocation>>]>,
    /// The number of migrations so far.
    migrations: AtomicU32,
    /// The next number.
    next: AtomicU32,
    /// A number whose request was rejected, to be used next; 0 if there is none.
    spare: AtomicU32,
    /// The number of available section numbers.
    numbers: u32,
}

/// The number of a location that is known, and to which no entry leads yet.
pub(crate) struct EnteredLocation(u32);

/// The number under which a section is to be entered.
pub(crate) struct TablePosition(pub(crate) SectionId);

impl SectionTable {
    pub(crate) fn new(section_bytes: u64) -> SectionTable {
        assert!(section_bytes.is_power_of_two(), "options are checked");
        let shift = section_bytes.trailing_zeros();
        let numbers = SECTIONS_EVER_MAX.min(1 << (ADDRESS_BITS - shift));
        SectionTable {
            shift,
            chunks: (0..(numbers as usize).div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            migrated: (0..MIGRATIONS_EVER_MAX as usize / CHUNK).map(|_| OnceLock::new()).collect(),
            migrations: AtomicU32::new(0),
            next: AtomicU32::new(1),
            spare: AtomicU32::new(0),
            numbers,
        }
    }

    /// The next section's position; `None` when no address or number is left. The position is used up even if no
    /// section is entered there.
    pub(crate) fn position(&self) -> Option<TablePosition> {
        let spare = self.spare.swap(0, Ordering::Relaxed);
        if spare != 0 {
            return Some(TablePosition(SectionId(spare)));
        }
        let next = |number| (number < self.numbers).then_some(number + 1);
        let number = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(TablePosition(SectionId(number)))
    }

    /// Returns a position for which no section was granted.
    pub(crate) fn give_back(&self, position: TablePosition) {
        self.spare.store(position.0.0, Ordering::Relaxed);
    }

    /// The position of a section that has a number from an earlier epoch; `None` if the number is taken, or so high that
    /// the numbers would soon be used up.
    pub(crate) fn adopted_position(&self, number: u32) -> Option<TablePosition> {
        let id = SectionId(number);
        if number == 0 || number >= self.numbers / 2 || self.get(id).is_some() {
            return None;
        }
        self.start_from(number + 1);
        Some(TablePosition(id))
    }

    /// Gives no number below `next` from now on. A number in the upper half is ignored: it comes from damaged memory, and
    /// would use up the others.
    pub(crate) fn start_from(&self, next: u32) {
        if next <= self.numbers / 2 {
            self.next.fetch_max(next, Ordering::Relaxed);
        }
    }

    /// The number after the highest one given.
    pub(crate) fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Enters a section as live.
    pub(crate) fn enter(&self, position: TablePosition, granted: SectionLocation) {
        let TablePosition(SectionId(id)) = position;
        let chunk = self.chunks[id as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        let fresh = chunk[id as usize % CHUNK].set(SectionEntry::new(granted)).is_ok();
        assert!(fresh, "a position is given once");
    }

    /// Where a section is now.
    #[inline]
    pub(crate) fn location<'a>(&'a self, entry: &'a SectionEntry) -> &'a SectionLocation {
        match entry.migrated.load(Ordering::Acquire) {
            0 => &entry.granted,
            number => self.migrated(number),
        }
    }

    #[cold]
    fn migrated(&self, number: u32) -> &SectionLocation {
        let at = number as usize - 1;
        let chunk = self.migrated[at / CHUNK].get().expect("it is entered before an entry leads to it");
        chunk[at % CHUNK].get().expect("it is entered before an entry leads to it")
    }

    /// Makes a location known, for [`SectionTable::repoint`]; `None` if there were too many migrations.
    pub(crate) fn enter_location(&self, location: SectionLocation) -> Option<EnteredLocation> {
        let next = |count| (count < MIGRATIONS_EVER_MAX).then_some(count + 1);
        let at = self.migrations.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()? as usize;
        let chunk = self.migrated[at / CHUNK].get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        let fresh = chunk[at % CHUNK].set(location).is_ok();
        assert!(fresh, "a number is given once");
        Some(EnteredLocation(at as u32 + 1))
    }

    /// Leads all verbs that are posted from now on to another location.
    pub(crate) fn repoint(&self, entry: &SectionEntry, EnteredLocation(number): EnteredLocation) {
        entry.migrated.store(number, Ordering::Release);
    }

    /// The entry of a section.
    #[inline]
    pub(crate) fn get(&self, id: SectionId) -> Option<&SectionEntry> {
        let id = id.0 as usize;
        self.chunks.get(id / CHUNK)?.get()?[id % CHUNK].get()
    }

    /// A section as callers see it.
    pub(crate) fn section(&self, id: SectionId) -> Option<Section> {
        self.get(id)?;
        Some(Section { id, address: u64::from(id.0) << self.shift, bytes: 1 << self.shift })
    }

    /// The location of a section.
    pub(crate) fn locate(&self, id: SectionId) -> Option<&SectionLocation> {
        self.get(id).map(|entry| self.location(entry))
    }

    /// The entry that an address lies in, and the offset in it.
    #[inline]
    pub(crate) fn translate(&self, address: u64) -> Option<(&SectionEntry, u64)> {
        let number = u32::try_from(address >> self.shift).ok()?;
        Some((self.get(SectionId(number))?, address & ((1 << self.shift) - 1)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::task::{Context, Poll};

    use base::{Bytes, BytesMut};
    use rma::{CAPABILITY_BYTES, Completion, Connection, Endpoint, Error, IncomingEvent, NodeId, ProviderProfile};

    use super::*;

    /// A connection without a remote end.
    struct Nobody;

    impl Connection for Nobody {
        fn node(&self) -> NodeId {
            NodeId(0)
        }
        fn name(&self) -> &str {
            "nobody"
        }
        fn profile(&self) -> ProviderProfile {
            rma::sim::WEAKEST
        }
        fn read(&self, _: &Capability, _: u64, _: usize, _: BytesMut) -> Completion<BytesMut> {
            Completion::ready(Err(Error::Closed))
        }
        fn write(&self, _: &Capability, _: u64, _: &[Bytes], _: Option<u32>) -> Completion<()> {
            Completion::ready(Err(Error::Closed))
        }
        fn compare_swap(&self, _: &Capability, _: u64, _: u64, _: u64) -> Completion<u64> {
            Completion::ready(Err(Error::Closed))
        }
        fn fetch_add(&self, _: &Capability, _: u64, _: u64) -> Completion<u64> {
            Completion::ready(Err(Error::Closed))
        }
        fn send(&self, _: &[Bytes]) -> Completion<()> {
            Completion::ready(Err(Error::Closed))
        }
        fn poll_receive(&self, _: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
            Poll::Ready(Err(Error::Closed))
        }
        fn flush(&self) {}
        fn close(&self) {}
    }

    const SECTION: u64 = 1 << 36;

    fn enter(table: &SectionTable, link: &Arc<DonorLink>) -> Option<Section> {
        let position = table.position()?;
        let id = position.0;
        let capability = Capability::decode(&[0; CAPABILITY_BYTES]).expect("well-formed");
        table.enter(position, SectionLocation { capability, link: Arc::clone(link), section: 1 });
        table.section(id)
    }

    /// The story: when all addresses had been used, those of ended sections were used again. The layers above store
    /// addresses and rely on this never happening: what still led into the old section was taken to lead into the new
    /// one.
    #[test]
    fn no_address_is_given_twice() {
        let table = SectionTable::new(SECTION);
        let link = Arc::new(DonorLink::new(Endpoint::new(Arc::new(Nobody)), "nobody".to_owned()));
        let mut addresses = BTreeSet::new();
        while let Some(section) = enter(&table, &link) {
            assert!(section.address > 0 && section.address + section.bytes <= 1 << ADDRESS_BITS);
            assert!(addresses.insert(section.address), "{:#x} is given again", section.address);
            let entry = table.get(section.id).expect("entered");
            assert!(
                entry.is_live() && entry.end(SectionState::Released) && !entry.end(SectionState::Lost),
                "it ends once"
            );
            let (ended, offset) = table.translate(section.address + 5).expect("it was there");
            assert!(!ended.is_live() && offset == 5);
        }
        assert_eq!(addresses.len(), (1 << (ADDRESS_BITS - 36)) - 1, "all but that of the null pointer");
        assert!(table.position().is_none(), "it stays used up");
    }

    #[test]
    fn no_address_outside_of_the_table_means_anything() {
        let table = SectionTable::new(4096);
        for address in [0, 4095, 4096, 1 << ADDRESS_BITS, u64::MAX] {
            assert!(table.translate(address).is_none(), "{address}");
        }
        let first = table.position().expect("an empty table");
        assert_eq!(first.0, SectionId(1), "number 0 holds the null pointer");
    }
}
