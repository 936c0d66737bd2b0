//! A queue of frames in shared memory, with one side that sends and one that receives.
//!
//! A frame is its length and its kind, eight bytes in all, and its bytes, filled up to eight. It may wrap around the end. The receiver
//! copies a frame before it looks at it, since the sender may change the memory at any time.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use bare::memory::bare_memory_copy;
use base::Bytes;

/// Bytes of a ring's data: a power of two.
pub(crate) const RING_BYTES: usize = 16 << 20;
/// Bytes of the longest frame: a sixteenth of the ring.
pub const FRAME_BYTES_MAX: usize = RING_BYTES / 16;

const HEAD_BYTES: usize = 8;
/// An empty ring is used from its beginning again once so much of it was used, so that its memory stays in the processor's caches.
const WARM_BYTES: usize = 256 << 10;
/// The kind of a frame without bytes, behind which the ring goes on at its beginning.
const SKIP: u32 = u32::MAX;

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

/// A ring of the area, whose memory stays mapped.
pub(crate) struct Ring {
    positions: *const Positions,
    data: *mut u8,
}

// SAFETY: the memory is shared with another process anyway; what this process does there is under its side's lock.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// # Safety
    /// Both lie in mappings of the right size that stay, and this process is the only user of its end.
    pub(crate) unsafe fn new(positions: *const Positions, data: *mut u8) -> Ring {
        Ring { positions, data }
    }

    fn positions(&self) -> &Positions {
        // SAFETY: as `new` was promised; any bytes are valid positions.
        unsafe { &*self.positions }
    }

    /// Whether a frame waits.
    pub(crate) fn has_frame(&self) -> bool {
        let positions = self.positions();
        positions.sent.0.load(Ordering::SeqCst) != positions.received.0.load(Ordering::Relaxed)
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
        for (kind, parts) in frames {
            let (start, bytes) = (at, body_bytes(parts));
            assert!(bytes <= FRAME_BYTES_MAX, "a message is shorter than a sixteenth of the ring");
            at = self.write(at, &(bytes as u64 | u64::from(*kind) << 32).to_le_bytes());
            for part in *parts {
                at = self.write(at, part);
            }
            at = start.wrapping_add(frame_bytes(bytes) as u64);
        }
        positions.sent.0.store(at, Ordering::SeqCst);
        true
    }

    /// Takes the next frame.
    ///
    /// # Errors
    /// The sender wrote impossible numbers.
    pub(crate) fn pop(&self) -> Result<Option<Frame>, RingError> {
        let positions = self.positions();
        let mut received = positions.received.0.load(Ordering::Relaxed);
        let mut waiting = positions.sent.0.load(Ordering::Acquire).wrapping_sub(received);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > RING_BYTES as u64 || (waiting as usize) < HEAD_BYTES {
            return Err(RingError);
        }
        let mut head = self.head(received);
        if head == u64::from(SKIP) << 32 {
            let skipped = (RING_BYTES - received as usize % RING_BYTES) as u64;
            // Never at the end: another frame is behind it.
            if waiting < skipped + HEAD_BYTES as u64 {
                return Err(RingError);
            }
            received = received.wrapping_add(skipped);
            waiting -= skipped;
            head = self.head(received);
        }
        let at = received.wrapping_add(HEAD_BYTES as u64);
        let (bytes, kind) = ((head & 0xffff_ffff) as usize, (head >> 32) as u32);
        let frame = frame_bytes(bytes);
        if bytes > FRAME_BYTES_MAX || frame > waiting as usize {
            return Err(RingError);
        }
        let mut copy = vec![0; bytes];
        self.read(at, &mut copy);
        positions.received.0.store(received.wrapping_add(frame as u64), Ordering::Release);
        Ok(Some(Frame { kind, bytes: copy.into() }))
    }

    /// In an empty ring: goes on at the beginning, if enough of it was used. Returns where. The receiver sees the frame that says so
    /// together with the next one.
    fn skip_cold(&self, sent: u64) -> u64 {
        let offset = sent as usize % RING_BYTES;
        if offset < WARM_BYTES {
            return sent;
        }
        self.write(sent, &(u64::from(SKIP) << 32).to_le_bytes());
        sent.wrapping_add((RING_BYTES - offset) as u64)
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

    fn head(&self, at: u64) -> u64 {
        let mut head = [0; HEAD_BYTES];
        self.read(at, &mut head);
        u64::from_le_bytes(head)
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

/// Bytes of a frame with so many bytes.
fn frame_bytes(body: usize) -> usize {
    HEAD_BYTES.saturating_add(body.next_multiple_of(HEAD_BYTES))
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
        let zero = || Position(AtomicU64::new(0));
        let positions = Box::new(Positions { sent: zero(), received: zero() });
        let data = Box::leak(vec![0; RING_BYTES].into_boxed_slice());
        // SAFETY: both live until the end of the test.
        (unsafe { Ring::new(&raw const *positions, data.as_mut_ptr()) }, positions)
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
            assert!(ring.push(&[(1, &[&first]), (2, &[&second, b"end"])]));
            let frames = [(); 2].map(|()| ring.pop().expect("well-formed").expect("both are there"));
            assert_eq!((frames[0].kind, &frames[0].bytes[..]), (1, &first[..]));
            assert_eq!((frames[1].kind, frames[1].bytes.len()), (2, 3003));
            assert!(ring.pop() == Ok(None) && !ring.has_frame());
            assert!(positions.sent.0.load(Ordering::Relaxed) as usize % RING_BYTES < WARM_BYTES + 9000);
        }
        ring.write(positions.sent.0.load(Ordering::Relaxed), &(u64::from(SKIP) << 32).to_le_bytes());
        positions.sent.0.fetch_add(8, Ordering::Relaxed);
        assert_eq!(ring.pop(), Err(RingError), "nothing behind the skipped bytes");
    }

    #[test]
    fn impossible_numbers_are_errors() {
        let (ring, positions) = ring();
        assert!(ring.push(&[(1, &[b"frame"])]));
        positions.sent.0.store(3, Ordering::Relaxed);
        assert_eq!(ring.pop(), Err(RingError), "a frame without a head");
        positions.sent.0.store(RING_BYTES as u64 + 1, Ordering::Relaxed);
        assert_eq!(ring.pop(), Err(RingError), "more than the ring holds");
        positions.sent.0.store(16, Ordering::Relaxed);
        ring.write(0, &(FRAME_BYTES_MAX as u64 + 1).to_le_bytes());
        assert_eq!(ring.pop(), Err(RingError), "a frame that is too long");
        ring.write(0, &9_u64.to_le_bytes());
        assert_eq!(ring.pop(), Err(RingError), "a frame behind what was sent");
    }
}
