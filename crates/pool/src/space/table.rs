//! The section table: which donor's region stands behind the high bits of an address.
//!
//! ```text
//!  address:  number << shift | offset
//!  slots[number] ──▶ entry ──▶ { state, capability, link }
//! ```
//!
//! Entries are written once and numbered by [`SectionId`], which is never used again; a slot says which entry its number
//! means now. Looking an address up takes a few loads, no lock and no counting of references: whoever reads an entry that
//! has ended meanwhile sees its state, and a capability that its donor has revoked.
//!
//! Invariants: number 0 is never given, since address 0 is the null pointer; a number is given again only when no fresh
//! one is left, and then the one that ended longest ago.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rma::Capability;

use super::link::Link;
use super::{Section, SectionId, lock};
use crate::ADDRESS_BITS;
use crate::message::{DonorSection, SECTIONS_PER_OWNER_MAX};

/// Sections that a space may be given in its life.
pub const SECTIONS_EVER_MAX: u32 = 1 << 20;
/// Entries that are allocated at once.
const CHUNK: usize = 1024;

/// Where a section is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    Live = 1,
    Released = 2,
    Lost = 3,
}

/// A section.
pub(crate) struct Entry {
    state: AtomicU8,
    pub(crate) capability: Capability,
    pub(crate) link: Arc<Link>,
    /// What the donor calls it.
    pub(crate) section: DonorSection,
    number: u32,
}

impl Entry {
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) == State::Live as u8
    }
}

type Chunk = Box<[OnceLock<Entry>]>;

/// All sections that there ever were.
pub(crate) struct Table {
    shift: u32,
    /// By number: the entry's, 0 for none.
    slots: Box<[AtomicU32]>,
    chunks: Box<[OnceLock<Chunk>]>,
    numbers: Mutex<Numbers>,
}

struct Numbers {
    /// The next entry.
    entry: u32,
    /// The next number that was never given.
    fresh: u32,
    /// Numbers that were, those first that ended first.
    ended: VecDeque<u32>,
}

/// Where a section is to be entered.
pub(crate) struct Position {
    pub(crate) id: SectionId,
    number: u32,
}

impl Table {
    pub(crate) fn new(section_bytes: u64) -> Table {
        assert!(section_bytes.is_power_of_two(), "options are checked");
        let shift = section_bytes.trailing_zeros();
        let slots = SECTIONS_PER_OWNER_MAX.min(1 << (ADDRESS_BITS - shift));
        Table {
            shift,
            slots: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            chunks: (0..(SECTIONS_EVER_MAX as usize).div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            numbers: Mutex::new(Numbers { entry: 1, fresh: 1, ended: VecDeque::new() }),
        }
    }

    /// Where the next section goes; `None` when there is no address left, or there have been too many.
    pub(crate) fn position(&self) -> Option<Position> {
        let mut numbers = lock(&self.numbers);
        if numbers.entry >= SECTIONS_EVER_MAX {
            return None;
        }
        let number = match (numbers.fresh as usize) < self.slots.len() {
            true => {
                numbers.fresh += 1;
                numbers.fresh - 1
            }
            false => numbers.ended.pop_front()?,
        };
        numbers.entry += 1;
        Some(Position { id: SectionId(numbers.entry - 1), number })
    }

    /// Gives up a position where nothing was entered.
    pub(crate) fn give_up(&self, position: &Position) {
        lock(&self.numbers).ended.push_back(position.number);
    }

    /// Enters a section, live.
    pub(crate) fn enter(&self, position: &Position, capability: Capability, link: Arc<Link>, section: DonorSection) {
        let Position { id: SectionId(id), number } = *position;
        let entry = Entry { state: AtomicU8::new(State::Live as u8), capability, link, section, number };
        let chunk = self.chunks[id as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        let fresh = chunk[id as usize % CHUNK].set(entry).is_ok();
        assert!(fresh, "a position is given once");
        self.slots[number as usize].store(id, Ordering::Release);
    }

    /// Ends a section; false when that has happened before.
    pub(crate) fn end(&self, entry: &Entry, state: State) -> bool {
        assert!(state != State::Live, "an end");
        let ended =
            entry.state.compare_exchange(State::Live as u8, state as u8, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if ended {
            lock(&self.numbers).ended.push_back(entry.number);
        }
        ended
    }

    /// The entry of a section.
    #[inline]
    pub(crate) fn get(&self, id: SectionId) -> Option<&Entry> {
        let id = id.0 as usize;
        self.chunks.get(id / CHUNK)?.get()?[id % CHUNK].get()
    }

    /// A section as callers see it.
    pub(crate) fn section(&self, id: SectionId) -> Option<Section> {
        let number = u64::from(self.get(id)?.number);
        Some(Section { id, address: number << self.shift, bytes: 1 << self.shift })
    }

    /// The entry that an address lies in, and the offset in it.
    #[inline]
    pub(crate) fn translate(&self, address: u64) -> Option<(&Entry, u64)> {
        let number = usize::try_from(address >> self.shift).ok()?;
        let id = self.slots.get(number)?.load(Ordering::Acquire);
        if id == 0 {
            return None;
        }
        Some((self.get(SectionId(id))?, address & ((1 << self.shift) - 1)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::task::{Context, Poll};

    use base::{Bytes, BytesMut};
    use rma::{CAPABILITY_BYTES, Completion, Connection, Endpoint, Error, Incoming, NodeId, Profile};

    use super::*;

    /// A connection to nobody.
    struct Nobody;

    impl Connection for Nobody {
        fn node(&self) -> NodeId {
            NodeId(0)
        }
        fn name(&self) -> &str {
            "nobody"
        }
        fn profile(&self) -> Profile {
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
        fn poll_receive(&self, _: &mut Context<'_>) -> Poll<Result<Incoming, Error>> {
            Poll::Ready(Err(Error::Closed))
        }
        fn flush(&self) {}
        fn close(&self) {}
    }

    const SECTION: u64 = 1 << 36;

    fn enter(table: &Table, link: &Arc<Link>) -> Option<Section> {
        let position = table.position()?;
        let capability = Capability::decode(&[0; CAPABILITY_BYTES]).expect("well-formed");
        table.enter(&position, capability, Arc::clone(link), 1);
        table.section(position.id)
    }

    #[test]
    fn an_address_is_given_again_when_all_others_have_been_and_a_section_never() {
        let table = Table::new(SECTION);
        let link = Arc::new(Link::new(Endpoint::new(Arc::new(Nobody)), "nobody".to_owned()));
        let sections: Vec<Section> = (0..3).filter_map(|_| enter(&table, &link)).collect();
        assert_eq!(
            sections.iter().map(|section| section.address).collect::<Vec<_>>(),
            [1, 2, 3].map(|at| at * SECTION)
        );
        let end = |section: &Section| {
            let entry = table.get(section.id).expect("entered");
            assert!(table.end(entry, State::Released) && !table.end(entry, State::Lost), "it ends once");
        };
        end(&sections[1]);
        let (ended, offset) = table.translate(2 * SECTION + 5).expect("it was there");
        assert!(!ended.is_live() && offset == 5);
        let mut more = Vec::new();
        while more.len() < 12 {
            more.push(enter(&table, &link).expect("fresh addresses"));
        }
        assert!(more.iter().all(|section| section.address > 3 * SECTION && section.address < 1 << ADDRESS_BITS));
        // Now the one that ended, and nothing else.
        end(&sections[0]);
        let again = [enter(&table, &link), enter(&table, &link)].map(|section| section.expect("ended ones"));
        assert_eq!(again.map(|section| section.address), [2 * SECTION, SECTION]);
        assert!(enter(&table, &link).is_none(), "all addresses are live");
        assert!(table.translate(2 * SECTION).is_some_and(|(entry, _)| entry.is_live()));
        let ids: BTreeSet<SectionId> = sections.iter().chain(&more).chain(&again).map(|section| section.id).collect();
        assert_eq!(ids.len(), 3 + 12 + 2);
    }

    #[test]
    fn no_address_outside_of_the_table_means_anything() {
        let table = Table::new(4096);
        for address in [0, 4095, 4096, 1 << ADDRESS_BITS, u64::MAX] {
            assert!(table.translate(address).is_none(), "{address}");
        }
        let first = table.position().expect("an empty table");
        assert_eq!((first.id, first.number), (SectionId(1), 1), "number 0 holds the null pointer");
    }
}
