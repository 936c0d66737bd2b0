//! A queue of frames in shared memory, with one side that sends and one that receives.
//!
//! A frame is its length and its kind, four bytes each, when it may be seen, and its bytes, filled up to a multiple of eight. It may
//! wrap around the end. The receiver copies a frame before it looks at it, since the sender may change the memory at any time.
//!
//! For measurements a ring can be as slow as a link between two hosts ([`Shape`]): the sender says when a frame would have arrived.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use bare::memory::bare_memory_copy;
use base::Bytes;

/// Bytes of a ring's data: a power of two.
pub(crate) const RING_BYTES: usize = 16 << 20;
/// Bytes of the longest frame: a sixteenth of the ring.
pub const FRAME_BYTES_MAX: usize = RING_BYTES / 16;

const HEAD_BYTES: usize = 16;
/// Frames begin at multiples of this.
const ALIGNMENT: usize = 8;
/// An empty ring is used from its beginning again once this much of it was used, so that its memory stays in the processor's caches.
const WARM_BYTES: usize = 256 << 10;
/// The kind of no message.
pub const NO_KIND: u32 = u32::MAX;
/// The length and the kind of a frame without bytes, behind which the ring goes on at its beginning.
const SKIP_HEAD: u64 = (NO_KIND as u64) << 32;

/// Bytes of a run in a list of pages, at most.
const RUN_BYTES_MAX: usize = 13;

const _: () =
    assert!(FRAME_BYTES_MAX > page_coherence::RUNS_MAX * RUN_BYTES_MAX + 64, "the longest list of pages fits");

/// The positions of both sides. They only grow; a position modulo the ring's size is an offset.
#[repr(C, align(128))]
pub(crate) struct Positions {
    sent: Position,
    received: Position,
}

#[repr(C, align(128))]
struct Position(AtomicU64);

/// Where the two positions lie in [`Positions`].
pub(crate) const SENT: usize = std::mem::offset_of!(Positions, sent);
pub(crate) const RECEIVED: usize = std::mem::offset_of!(Positions, received);

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// What it is.
    pub kind: u32,
    /// Its bytes.
    pub bytes: Bytes,
}

/// The other side broke the rules of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingError;

/// A link between two hosts, in cycles of the processors' common clock. All zero is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// How long a frame takes from its last byte sent to its last byte received.
    pub latency_cycles: u64,
    /// How long it takes to send a mebibyte.
    pub mebibyte_cycles: u64,
}

impl Shape {
    fn is_none(self) -> bool {
        self == Shape::default()
    }
}

/// The clock that both sides have in common.
#[inline]
pub fn cycles() -> u64 {
    // SAFETY: every processor of this architecture has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// A ring of the area, whose memory stays mapped.
pub(crate) struct Ring {
    positions: *const Positions,
    data: *mut u8,
    shape: Shape,
    /// At the sender: when the link has sent all that was sent before.
    free_at: AtomicU64,
}

// SAFETY: the memory is shared with another process anyway; what this process does there is under its side's lock.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// A frame that has arrived: where its bytes begin, its kind, and how many bytes it has.
struct Found {
    at: u64,
    kind: u32,
    bytes: usize,
}

impl Ring {
    /// # Safety
    /// Both lie in mappings of the right size that stay, and this process is the only user of its end.
    pub(crate) unsafe fn new(positions: *const Positions, data: *mut u8, shape: Shape) -> Ring {
        Ring { positions, data, shape, free_at: AtomicU64::new(0) }
    }

    fn positions(&self) -> &Positions {
        // SAFETY: as `new` was promised; any bytes are valid positions.
        unsafe { &*self.positions }
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        let positions = self.positions();
        positions.sent.0.load(Ordering::SeqCst) == positions.received.0.load(Ordering::Relaxed)
    }

    /// Whether a frame has arrived.
    pub(crate) fn has_frame(&self) -> bool {
        !self.is_empty()
            && (self.shape.is_none() || self.has_arrived(self.positions().received.0.load(Ordering::Relaxed)))
    }

    /// Whether the frame at a position would have arrived over the link.
    fn has_arrived(&self, received: u64) -> bool {
        let (head, at) = self.head(received);
        let at = if head == SKIP_HEAD { self.head(behind_skipped(received)).1 } else { at };
        // A clock that differs by more than an hour's cycles is none of ours.
        at.saturating_sub(cycles()).wrapping_sub(1) >= 1 << 43
    }

    /// When frames arrive that are sent now and have this many bytes in all.
    fn arrival(&self, bytes: usize) -> u64 {
        if self.shape.is_none() {
            return 0;
        }
        let begins = cycles().max(self.free_at.load(Ordering::Relaxed));
        let sent = begins.saturating_add((bytes as u64).saturating_mul(self.shape.mebibyte_cycles) >> 20);
        self.free_at.store(sent, Ordering::Relaxed);
        sent.saturating_add(self.shape.latency_cycles)
    }

    /// Appends frames, each with the bytes of its parts, one behind the other. The receiver sees all of them at once. Returns whether there
    /// was room.
    pub(crate) fn push(&self, frames: &[(u32, &[&[u8]])]) -> bool {
        let positions = self.positions();
        let sent = positions.sent.0.load(Ordering::Relaxed);
        let used = sent.wrapping_sub(positions.received.0.load(Ordering::Acquire));
        let needed: usize = frames.iter().map(|(_, parts)| frame_bytes(body_bytes(parts))).sum();
        let mut at = if used == 0 && needed <= WARM_BYTES { self.skip_cold(sent) } else { sent };
        if used > RING_BYTES as u64 || RING_BYTES - used as usize <= needed {
            return false;
        }
        let arrival = self.arrival(needed).to_le_bytes();
        for (kind, parts) in frames {
            let (start, bytes) = (at, body_bytes(parts));
            assert!(bytes <= FRAME_BYTES_MAX, "a message is shorter than a sixteenth of the ring");
            at = self.write(at, &(bytes as u64 | u64::from(*kind) << 32).to_le_bytes());
            at = self.write(at, &arrival);
            for part in *parts {
                at = self.write(at, part);
            }
            at = start.wrapping_add(frame_bytes(bytes) as u64);
        }
        positions.sent.0.store(at, Ordering::SeqCst);
        true
    }

    /// Takes the next frame that has arrived.
    ///
    /// # Errors
    /// The sender wrote impossible numbers.
    pub(crate) fn pop(&self) -> Result<Option<Frame>, RingError> {
        let Some(Found { at, kind, bytes }) = self.find()? else { return Ok(None) };
        let mut copy = vec![0; bytes];
        self.read(at, &mut copy);
        let behind = at.wrapping_sub(HEAD_BYTES as u64).wrapping_add(frame_bytes(bytes) as u64);
        self.positions().received.0.store(behind, Ordering::Release);
        Ok(Some(Frame { kind, bytes: copy.into() }))
    }

    /// The kind of the next frame that has arrived, and its first byte, which may be missing. `None` also if the sender wrote impossible
    /// numbers.
    pub(crate) fn peek(&self) -> Option<(u32, Option<u8>)> {
        let Found { at, kind, bytes } = self.find().ok()??;
        let mut first = [0];
        self.read(at, &mut first);
        Some((kind, (bytes > 0).then_some(first[0])))
    }

    /// Finds the next frame that has arrived.
    fn find(&self) -> Result<Option<Found>, RingError> {
        let positions = self.positions();
        let mut received = positions.received.0.load(Ordering::Relaxed);
        let mut waiting = positions.sent.0.load(Ordering::Acquire).wrapping_sub(received);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > RING_BYTES as u64 || (waiting as usize) < HEAD_BYTES {
            return Err(RingError);
        }
        if !self.shape.is_none() && !self.has_arrived(received) {
            return Ok(None);
        }
        let mut head = self.head(received).0;
        if head == SKIP_HEAD {
            let behind = behind_skipped(received);
            let skipped = behind.wrapping_sub(received);
            // Never at the end: another frame is behind it.
            if waiting < skipped + HEAD_BYTES as u64 {
                return Err(RingError);
            }
            (received, waiting) = (behind, waiting - skipped);
            head = self.head(received).0;
        }
        let at = received.wrapping_add(HEAD_BYTES as u64);
        let (bytes, kind) = ((head & 0xffff_ffff) as usize, (head >> 32) as u32);
        if bytes > FRAME_BYTES_MAX || frame_bytes(bytes) > waiting as usize {
            return Err(RingError);
        }
        Ok(Some(Found { at, kind, bytes }))
    }

    /// In an empty ring: goes on at the beginning, if enough of it was used. Returns where. The receiver sees the frame that says so
    /// together with the next one.
    fn skip_cold(&self, sent: u64) -> u64 {
        let offset = sent as usize % RING_BYTES;
        if offset < WARM_BYTES {
            return sent;
        }
        self.write(sent, &SKIP_HEAD.to_le_bytes());
        behind_skipped(sent)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> u64 {
        let (offset, first) = part(at, bytes.len());
        // SAFETY: both parts lie in the ring, and the other side does not read there before the position says so.
        unsafe {
            bare_memory_copy(self.data.add(offset), bytes.as_ptr(), first);
            bare_memory_copy(self.data, bytes.as_ptr().add(first), bytes.len() - first);
        }
        at.wrapping_add(bytes.len() as u64)
    }

    /// Length and kind of the frame at a position, and when it arrives.
    fn head(&self, at: u64) -> (u64, u64) {
        let (mut head, mut arrival) = ([0; 8], [0; 8]);
        let next = self.read(at, &mut head);
        self.read(next, &mut arrival);
        (u64::from_le_bytes(head), u64::from_le_bytes(arrival))
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> u64 {
        let (offset, first) = part(at, bytes.len());
        // SAFETY: both parts lie in the ring; what the other side may write there meanwhile is copied as bytes.
        unsafe {
            bare_memory_copy(bytes.as_mut_ptr(), self.data.add(offset), first);
            bare_memory_copy(bytes.as_mut_ptr().add(first), self.data, bytes.len() - first);
        }
        at.wrapping_add(bytes.len() as u64)
    }
}

fn body_bytes(parts: &[&[u8]]) -> usize {
    parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()))
}

/// Bytes that a frame takes in the ring.
fn frame_bytes(body: usize) -> usize {
    HEAD_BYTES.saturating_add(body.next_multiple_of(ALIGNMENT))
}

/// The beginning of the ring that follows a position.
fn behind_skipped(at: u64) -> u64 {
    at.wrapping_add((RING_BYTES - at as usize % RING_BYTES) as u64)
}

/// Where bytes at a position begin, and how many of them lie before the end of the ring.
fn part(at: u64, bytes: usize) -> (usize, usize) {
    let offset = at as usize % RING_BYTES;
    (offset, bytes.min(RING_BYTES - offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (Ring, Box<Positions>) {
        shaped_ring(Shape::default())
    }

    fn shaped_ring(shape: Shape) -> (Ring, Box<Positions>) {
        let zero = || Position(AtomicU64::new(0));
        let positions = Box::new(Positions { sent: zero(), received: zero() });
        let data = Box::leak(vec![0; RING_BYTES].into_boxed_slice());
        // SAFETY: both live until the end of the test.
        (unsafe { Ring::new(&raw const *positions, data.as_mut_ptr(), shape) }, positions)
    }

    #[test]
    fn frames_arrive_in_order_around_the_end_and_a_full_ring_refuses() {
        let (ring, _positions) = ring();
        let mut next = 0_u32;
        for n in 0..3000_u32 {
            let bytes = vec![n as u8; n as usize * 37 % 90_000];
            while !ring.push(&[(n, &[&bytes[..bytes.len() / 3], &bytes[bytes.len() / 3..]])]) {
                let frame = ring.pop().expect("well-formed").expect("a full ring has frames");
                assert_eq!((frame.kind, frame.bytes.len()), (next, next as usize * 37 % 90_000));
                assert!(frame.bytes.iter().all(|byte| *byte == next as u8));
                next += 1;
            }
        }
        while let Some(frame) = ring.pop().expect("well-formed") {
            assert_eq!(frame.kind, next);
            next += 1;
        }
        assert_eq!(next, 3000);
        assert!(!ring.has_frame());
    }

    #[test]
    fn an_empty_ring_goes_on_at_its_beginning_and_several_frames_arrive_at_once() {
        let (ring, positions) = ring();
        let (first, second) = (vec![1; 5000], vec![2; 3000]);
        for _ in 0..10_000 {
            assert_eq!(ring.peek(), None);
            assert!(ring.push(&[(1, &[&first]), (2, &[&second, b"end"]), (3, &[])]));
            assert_eq!(ring.peek(), Some((1, Some(1))));
            let frames = [(); 2].map(|()| ring.pop().expect("well-formed").expect("both are there"));
            assert_eq!((frames[0].kind, &frames[0].bytes[..]), (1, &first[..]));
            assert_eq!((frames[1].kind, frames[1].bytes.len()), (2, 3003));
            assert_eq!(ring.peek(), Some((3, None)));
            assert!(ring.pop().expect("well-formed").is_some_and(|frame| frame.bytes.is_empty()));
            assert!(ring.pop() == Ok(None) && !ring.has_frame());
            assert!(positions.sent.0.load(Ordering::Relaxed) as usize % RING_BYTES < WARM_BYTES + 9000);
        }
        ring.write(positions.sent.0.load(Ordering::Relaxed), &SKIP_HEAD.to_le_bytes());
        positions.sent.0.fetch_add(16, Ordering::Relaxed);
        assert_eq!(ring.pop(), Err(RingError), "nothing behind the skipped bytes");
    }

    #[test]
    fn frames_take_the_time_of_the_link() {
        let latency_cycles = 100_000_000;
        let (ring, _positions) = shaped_ring(Shape { latency_cycles, mebibyte_cycles: 1 << 30 });
        let begun = cycles();
        // 1,024 cycles a byte.
        assert!(ring.push(&[(1, &[&[1; 100_000]])]) && ring.push(&[(2, &[&[2; 100_000]])]));
        let mut arrivals = Vec::new();
        while arrivals.len() < 2 {
            assert!(!ring.is_empty());
            if ring.has_frame() {
                let frame = ring.pop().expect("well-formed").expect("it has arrived");
                arrivals.push((frame.kind, cycles() - begun));
            } else if let Some(frame) = ring.pop().expect("well-formed") {
                // It has arrived in between.
                arrivals.push((frame.kind, cycles() - begun));
            }
        }
        assert!(arrivals[0].0 == 1 && arrivals[0].1 >= latency_cycles + 102_400_000, "{arrivals:?}");
        assert!(arrivals[1].0 == 2 && arrivals[1].1 >= latency_cycles + 204_800_000, "{arrivals:?}");
    }

    #[test]
    fn impossible_numbers_are_errors() {
        let (ring, positions) = ring();
        assert!(ring.push(&[(1, &[b"frame"])]));
        positions.sent.0.store(3, Ordering::Relaxed);
        assert_eq!(ring.pop(), Err(RingError), "a frame without a head");
        positions.sent.0.store(RING_BYTES as u64 + 1, Ordering::Relaxed);
        assert_eq!(ring.pop(), Err(RingError), "more than the ring holds");
        positions.sent.0.store(24, Ordering::Relaxed);
        ring.write(0, &(FRAME_BYTES_MAX as u64 + 1).to_le_bytes());
        assert_eq!(ring.pop(), Err(RingError), "a frame that is too long");
        ring.write(0, &9_u64.to_le_bytes());
        assert_eq!(ring.pop(), Err(RingError), "a frame behind what was sent");
    }
}
