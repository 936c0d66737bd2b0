//! The memory that the two ends of one connection share: the caller's marks and one ring for each direction.
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
use wire::VersionRange;

use super::hazards;
use super::memory::{self, Mapping, MappingAccess};
use super::ring::{RING_BYTES, RingIndex, RingMemory};
use crate::{Error, GrantId, RegionId};

/// Mark slots of one connection: the number of the caller's threads that can be within a verb at once.
pub(super) const HAZARD_SLOTS: usize = 128;
/// Keeps two threads off each other's cache lines.
const LINE_BYTES: usize = 64;
const HAZARDS_AT: usize = 4096;
const INDICES_AT: usize = HAZARDS_AT + HAZARD_SLOTS * LINE_BYTES;
const INDICES_BYTES: usize = 4 * LINE_BYTES;
const RINGS_AT: usize = 16384;
/// Size of the whole segment.
pub(super) const SEGMENT_BYTES: u64 = (RINGS_AT + 2 * RING_BYTES) as u64;
const _: () = assert!(INDICES_AT + 2 * INDICES_BYTES <= RINGS_AT);
const _: () = assert!(SEGMENT_BYTES.is_multiple_of(memory::PAGE_BYTES));
const _: () = assert!(RING_BYTES.is_power_of_two());

/// "HDLSHMCA".
const MAGIC: u64 = u64::from_le_bytes(*b"HDLSHMCA");
/// The version of this layout.
const FORMAT_VERSION: u32 = 2;
/// The versions of the messages on the socket that this program speaks. Each implies a version of this layout.
pub(super) const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(FORMAT_VERSION);

thread_local! {
    /// The slot at which this thread starts to search for a free one, and the number of its next mark.
    static THREAD_SLOT: Cell<(u32, u16)> = const { Cell::new((u32::MAX, 0)) };
}
static THREADS: AtomicU32 = AtomicU32::new(0);

/// The slot at which this thread starts to search, and a number for its mark.
#[inline]
fn thread_slot() -> (usize, u16) {
    THREAD_SLOT.with(|mine| {
        let (mut start, sequence) = mine.get();
        if start == u32::MAX {
            start = THREADS.fetch_add(1, Ordering::Relaxed) % HAZARD_SLOTS as u32;
        }
        mine.set((start, sequence.wrapping_add(1)));
        (start as usize, sequence)
    })
}

/// One connection's shared memory.
pub(super) struct ConnectionSegment {
    memory: Mapping,
}

impl ConnectionSegment {
    /// Creates the segment; also returns its memfd.
    pub(super) fn create() -> Result<(ConnectionSegment, OwnedFd), Error> {
        let fd = memory::create("heddle-connection", SEGMENT_BYTES)?;
        memory::seal_finally(&fd)?;
        let memory = Mapping::new(&fd, SEGMENT_BYTES, MappingAccess::Write, false)?;
        for (at, word) in header().into_iter().enumerate() {
            memory.word(at * 8).store(word, Ordering::Relaxed);
        }
        Ok((ConnectionSegment { memory }, fd))
    }

    /// Maps a segment that the host has created.
    pub(super) fn open(fd: impl AsFd) -> Result<ConnectionSegment, Error> {
        let memory = Mapping::new(fd, SEGMENT_BYTES, MappingAccess::Write, false)?;
        for (at, word) in header().into_iter().enumerate() {
            if memory.word(at * 8).load(Ordering::Relaxed) != word {
                return Err(Error::Malformed("a connection's memory of another layout"));
            }
        }
        Ok(ConnectionSegment { memory })
    }

    /// A mark slot.
    #[inline]
    pub(super) fn slot(&self, slot: usize) -> &AtomicU64 {
        self.memory.word(HAZARDS_AT + (slot % HAZARD_SLOTS) * LINE_BYTES)
    }

    /// Sets a mark for a verb in flight until the guard is dropped; `None` when no slot is free.
    #[inline]
    pub(super) fn enter(&self, region: RegionId, grant: GrantId) -> Option<InFlight<'_>> {
        let (start, sequence) = thread_slot();
        let mark = hazards::hazard(region.0, grant.0, sequence);
        for at in start..start + HAZARD_SLOTS {
            let slot = self.slot(at);
            if hazards::enter(slot, mark) {
                return Some(InFlight(slot));
            }
        }
        None
    }

    /// The marks of verbs in flight now, with their slots.
    pub(super) fn hazards(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        (0..HAZARD_SLOTS).map(|slot| (slot, hazards::seen(self.slot(slot)))).filter(|(_, mark)| *mark != hazards::FREE)
    }
}

fn header() -> [u64; 3] {
    [MAGIC, u64::from(FORMAT_VERSION) | (HAZARD_SLOTS as u64) << 32, RING_BYTES as u64]
}

/// A verb's mark.
pub(super) struct InFlight<'a>(&'a AtomicU64);

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        hazards::leave(self.0);
    }
}

/// The direction of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RingDirection {
    /// From the caller to the host.
    ToHost = 0,
    /// From the host to the caller.
    ToCaller = 1,
}

impl RingDirection {
    pub(super) fn reversed(self) -> RingDirection {
        match self {
            RingDirection::ToHost => RingDirection::ToCaller,
            RingDirection::ToCaller => RingDirection::ToHost,
        }
    }
}

/// One ring of a connection's segment.
pub(super) struct SegmentRing {
    segment: Arc<ConnectionSegment>,
    direction: RingDirection,
}

impl SegmentRing {
    pub(super) fn new(area: &Arc<ConnectionSegment>, direction: RingDirection) -> SegmentRing {
        SegmentRing { segment: Arc::clone(area), direction }
    }

    fn at(&self, position: usize) -> usize {
        RINGS_AT + self.direction as usize * RING_BYTES + position
    }
}

impl RingMemory for SegmentRing {
    type Word = AtomicU64;

    fn bytes(&self) -> usize {
        RING_BYTES
    }

    fn index(&self, index: RingIndex) -> &AtomicU64 {
        self.segment.memory.word(INDICES_AT + self.direction as usize * INDICES_BYTES + index as usize * LINE_BYTES)
    }

    fn load(&self, at: usize) -> u64 {
        self.segment.memory.word(self.at(at)).load(Ordering::Relaxed)
    }

    fn store(&self, at: usize, word: u64) {
        self.segment.memory.word(self.at(at)).store(word, Ordering::Relaxed);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= RING_BYTES, "within the ring");
        self.segment.memory.write(self.at(at), bytes);
    }

    fn read(&self, at: usize, length: usize, into: &mut BytesMut) {
        assert!(at + length <= RING_BYTES, "within the ring");
        self.segment.memory.read(self.at(at), length, into);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use base::Bytes;

    use super::super::connection_end::ConnectionEnd;
    use super::*;

    fn words(area: &ConnectionSegment, at: usize, count: usize) -> Vec<u64> {
        (0..count).map(|word| area.memory.word(at + word * 8).load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn areas_have_the_documented_layout() {
        let (area, fd) = ConnectionSegment::create().expect("there is memory");
        let area = Arc::new(area);
        assert_eq!(SEGMENT_BYTES, 540_672);
        let header = [u64::from_le_bytes(*b"HDLSHMCA"), 2 | 128 << 32, 262_144, 0];
        assert_eq!(words(&area, 0, 4), header);
        let mark = area.enter(RegionId(0x0102_0304), GrantId(0x0506)).expect("a slot is free");
        let put: Vec<_> = (0..128).map(|slot| words(&area, 4096 + slot * 64, 1)[0]).filter(|word| *word != 0).collect();
        assert_eq!(put.len(), 1);
        assert_eq!((put[0] >> 16, put[0] & 1), (0x0102_0304_0506, 1));
        drop(mark);
        assert_eq!(area.hazards().count(), 0);
        let (caller, host) = ConnectionEnd::pair(&area);
        assert_eq!(caller.send(&[Bytes::from_static(b"hello "), Bytes::from_static(b"you")]).now().ok(), Some(Ok(())));
        assert_eq!(caller.notify(7, RegionId(8), 9, 10).now().ok(), Some(Ok(())));
        assert_eq!(host.send(&[]).now().ok(), Some(Ok(())));
        let message = [1 << 32 | 9, u64::from_le_bytes(*b"hello yo"), u64::from(b'u')];
        assert_eq!(words(&area, 16_384, 3), message);
        assert_eq!(words(&area, 16_384 + 24, 4), [4 << 32 | 24, 8 << 32 | 7, 9, 10]);
        assert_eq!(words(&area, 278_528, 2), [1 << 32, 0]);
        let indices = |at: usize| (0..4).map(|index| words(&area, at + index * 64, 1)[0]).collect::<Vec<_>>();
        assert_eq!((indices(12_288), indices(12_544)), (vec![56, 0, 0, 0], vec![8, 0, 0, 0]));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            assert!(host.poll_receive(&mut cx).is_ready());
        }
        assert!(host.poll_receive(&mut cx).is_pending());
        assert_eq!(indices(12_288), [56, 56, 1, 0]);
        let again = ConnectionSegment::open(&fd).expect("the layout is the same");
        assert_eq!(words(&again, 0, 4), header);
        area.memory.word(8).store(3 | 128 << 32, Ordering::Relaxed);
        assert!(ConnectionSegment::open(&fd).is_err());
    }

    /// Values that a broken process could write: words of the ring to the host, and its tail.
    #[test]
    fn impossible_rings_end_the_connection() {
        let start = |total: u64| vec![2 << 32 | 8, total];
        let broken: Vec<(Vec<u64>, u64)> = vec![
            (vec![1 << 32], 4),
            (vec![1 << 32], 262_144 + 8),
            (vec![1 << 32], u64::MAX - 7),
            (vec![1 << 32 | 1], 8),
            (vec![1 << 32 | 0xFFFF_FFFF], 262_144),
            (vec![0], 8),
            (vec![5 << 32], 8),
            (vec![1 << 40], 8),
            (vec![3 << 32 | 8, 0], 16),
            (start(65_536), 16),
            (start((128 << 20) + 1), 16),
            (start(u64::MAX), 16),
            ([start(100_000), vec![1 << 32]].concat(), 24),
            ([start(100_000), vec![3 << 32]].concat(), 24),
            ([start(100_000), start(100_000)].concat(), 32),
            (vec![4 << 32 | 16, 0, 0, 0], 32),
        ];
        for (ring, tail) in broken {
            let (area, _fd) = ConnectionSegment::create().expect("there is memory");
            let area = Arc::new(area);
            let (caller, host) = ConnectionEnd::pair(&area);
            for (at, word) in ring.iter().enumerate() {
                area.memory.word(RINGS_AT + at * 8).store(*word, Ordering::Relaxed);
            }
            area.memory.word(INDICES_AT).store(tail, Ordering::Relaxed);
            let received = host.poll_receive(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(received, std::task::Poll::Ready(Err(Error::Closed))), "{ring:x?} {tail}: {received:?}");
            assert!(host.is_closed() && caller.is_closed());
        }
        // A head that never existed.
        for head in [1 << 40, u64::MAX - 7, 1] {
            let (area, _fd) = ConnectionSegment::create().expect("there is memory");
            let area = Arc::new(area);
            let (caller, _host) = ConnectionEnd::pair(&area);
            area.memory.word(INDICES_AT + LINE_BYTES).store(head, Ordering::Relaxed);
            let mut last = Ok(());
            for _ in 0..8 {
                let Ok(sent) = caller.send(&[Bytes::from(vec![0; 60_000])]).now() else { panic!("it waits") };
                last = sent;
            }
            // The producer does not read the head before the ring seems full.
            assert_eq!((last, caller.is_closed()), (Err(Error::Closed), true), "{head}");
        }
    }
}
