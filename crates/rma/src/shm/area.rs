//! The memory that the two ends of one connection share: the caller's marks and a ring for either direction.
//!
//! ```text
//! 0        header: magic "HDLSHMCA", version:u32, mark slots:u32, ring bytes:u64, zeros
//! 4096     mark slots, each in a cache line of its own
//! 12288    indices of the ring from caller to host: tail, head, asleep, waiting, each in a cache line of its own
//! 12544    indices of the ring from host to caller
//! 16384    the ring from caller to host
//! 278528   the ring from host to caller
//! ```

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use base::BytesMut;

use super::marks;
use super::memory::{self, Access, Mapping};
use super::ring::{Index, Place, RING_BYTES};
use crate::{Error, GrantId, RegionId};

/// Mark slots of one connection: threads of the caller that can be within a verb at once.
pub(super) const MARK_SLOTS: usize = 128;
/// What keeps two threads off each other's cache lines.
const LINE_BYTES: usize = 64;
const MARKS_AT: usize = 4096;
const INDICES_AT: usize = MARKS_AT + MARK_SLOTS * LINE_BYTES;
const INDICES_BYTES: usize = 4 * LINE_BYTES;
const RINGS_AT: usize = 16384;
/// Bytes of the whole.
pub(super) const AREA_BYTES: u64 = (RINGS_AT + 2 * RING_BYTES) as u64;
const _: () = assert!(INDICES_AT + 2 * INDICES_BYTES <= RINGS_AT);
const _: () = assert!(AREA_BYTES.is_multiple_of(memory::PAGE_BYTES));
const _: () = assert!(RING_BYTES.is_power_of_two());

/// "HDLSHMCA".
const MAGIC: u64 = u64::from_le_bytes(*b"HDLSHMCA");
/// Of this layout and of the messages on the socket.
pub(super) const VERSION: u32 = 1;

thread_local! {
    /// The slot at which this thread begins to look for a free one, and the number of its next mark.
    static MINE: Cell<(u32, u16)> = const { Cell::new((u32::MAX, 0)) };
}
static THREADS: AtomicU32 = AtomicU32::new(0);

/// Where this thread looks for a slot, and a number for its mark.
#[inline]
fn mine() -> (usize, u16) {
    MINE.with(|mine| {
        let (mut start, sequence) = mine.get();
        if start == u32::MAX {
            start = THREADS.fetch_add(1, Ordering::Relaxed) % MARK_SLOTS as u32;
        }
        mine.set((start, sequence.wrapping_add(1)));
        (start as usize, sequence)
    })
}

/// One connection's shared memory.
pub(super) struct Area {
    memory: Mapping,
}

impl Area {
    /// Makes one; gives its memfd, too.
    pub(super) fn create() -> Result<(Area, OwnedFd), Error> {
        let fd = memory::create("heddle-connection", AREA_BYTES, false)?;
        memory::seal_finally(&fd)?;
        let memory = Mapping::new(&fd, AREA_BYTES, Access::Write, false)?;
        for (at, word) in header().into_iter().enumerate() {
            memory.word(at * 8).store(word, Ordering::Relaxed);
        }
        Ok((Area { memory }, fd))
    }

    /// Maps one that the host has made.
    pub(super) fn open(fd: impl AsFd) -> Result<Area, Error> {
        let memory = Mapping::new(fd, AREA_BYTES, Access::Write, false)?;
        for (at, word) in header().into_iter().enumerate() {
            if memory.word(at * 8).load(Ordering::Relaxed) != word {
                return Err(Error::Malformed("a connection's memory of another layout"));
            }
        }
        Ok(Area { memory })
    }

    /// A mark slot.
    #[inline]
    pub(super) fn slot(&self, slot: usize) -> &AtomicU64 {
        self.memory.word(MARKS_AT + (slot % MARK_SLOTS) * LINE_BYTES)
    }

    /// Marks a verb in flight until the guard is dropped; `None` when every slot is taken.
    #[inline]
    pub(super) fn enter(&self, region: RegionId, grant: GrantId) -> Option<InFlight<'_>> {
        let (start, sequence) = mine();
        let mark = marks::mark(region.0, grant.0, sequence);
        for at in start..start + MARK_SLOTS {
            let slot = self.slot(at);
            if marks::enter(slot, mark) {
                return Some(InFlight(slot));
            }
        }
        None
    }

    /// Marks that stand for verbs in flight now, with their slots.
    pub(super) fn marks(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        (0..MARK_SLOTS).map(|slot| (slot, marks::seen(self.slot(slot)))).filter(|(_, mark)| *mark != marks::FREE)
    }
}

fn header() -> [u64; 3] {
    [MAGIC, u64::from(VERSION) | (MARK_SLOTS as u64) << 32, RING_BYTES as u64]
}

/// A verb's mark.
pub(super) struct InFlight<'a>(&'a AtomicU64);

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        marks::leave(self.0);
    }
}

/// Which way a ring goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// From the caller to the host.
    ToHost = 0,
    /// From the host to the caller.
    ToCaller = 1,
}

impl Direction {
    pub(super) fn reversed(self) -> Direction {
        match self {
            Direction::ToHost => Direction::ToCaller,
            Direction::ToCaller => Direction::ToHost,
        }
    }
}

/// One ring of an area.
pub(super) struct AreaRing {
    area: Arc<Area>,
    direction: Direction,
}

impl AreaRing {
    pub(super) fn new(area: &Arc<Area>, direction: Direction) -> AreaRing {
        AreaRing { area: Arc::clone(area), direction }
    }

    fn at(&self, position: usize) -> usize {
        RINGS_AT + self.direction as usize * RING_BYTES + position
    }
}

impl Place for AreaRing {
    type Word = AtomicU64;

    fn bytes(&self) -> usize {
        RING_BYTES
    }

    fn index(&self, index: Index) -> &AtomicU64 {
        self.area.memory.word(INDICES_AT + self.direction as usize * INDICES_BYTES + index as usize * LINE_BYTES)
    }

    fn load(&self, at: usize) -> u64 {
        self.area.memory.word(self.at(at)).load(Ordering::Relaxed)
    }

    fn store(&self, at: usize, word: u64) {
        self.area.memory.word(self.at(at)).store(word, Ordering::Relaxed);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= RING_BYTES, "within the ring");
        self.area.memory.write(self.at(at), bytes);
    }

    fn read(&self, at: usize, length: usize, into: &mut BytesMut) {
        assert!(at + length <= RING_BYTES, "within the ring");
        self.area.memory.read(self.at(at), length, into);
    }
}
