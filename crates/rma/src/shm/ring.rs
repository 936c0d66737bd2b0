//! A ring of bytes between one producer and one consumer in shared memory.
//!
//! 1. The producer writes at the tail and publishes the new tail; the consumer reads at the head and publishes the new
//!    head. Tail and head count bytes since the beginning, so that `tail - head` bytes are in the ring.
//! 2. A consumer that finds no bytes sets its sleep flag, and then checks the ring once more. A producer that has
//!    published bytes checks the sleep flag; if the flag is set, the producer must ring the consumer's doorbell
//!    ([`RingProducer::must_ring`]). A sequentially consistent memory fence lies between the two steps of each end, so
//!    that at least one end sees the first step of the other.
//! 3. A producer that finds no space likewise sets a flag of its own and checks the ring once more
//!    ([`RingProducer::wait`], [`RingConsumer::must_ring`]). The consumer checks that flag once for every quarter of
//!    the ring that it has read, not at every record. This suffices: a waiting producer wants at most three quarters of
//!    the ring, so at least a quarter is still to be read.
//! 4. A producer that finds the ring empty may go back to the beginning of the ring for a record of some kilobytes
//!    ([`RingProducer::wrap`]). So longer messages that are sent one at a time do not go round the whole ring, but
//!    reuse cache lines that are still in the nearest cache.
//!
//! Both ends write the two flags. Therefore a flag is set and cleared only by atomic exchanges, which have one order,
//! and never by a plain store.
//!
//! Invariants: each end trusts only its own index. The other end's index is hostile and is checked at every read: a
//! wrong index is [`CorruptRing`], and never an access outside the ring. Records start at multiples of a word.

use std::sync::atomic::Ordering;

use base::BytesMut;

use super::hazards::Word;
use crate::WORD_BYTES;

/// Bytes of one ring; a power of two.
pub(super) const RING_BYTES: usize = 256 << 10;

/// From this many bytes on, a record's bytes start at a cache line, so that copies cross none.
const ALIGNED_BYTES_MIN: usize = 512;
const LINE_BYTES: u64 = 64;

const _: () = assert!(RING_BYTES.is_multiple_of(LINE_BYTES as usize));

/// A record of at least the first number of bytes may go to the start of an empty ring, if the producer is at least the second
/// number of bytes behind that start.
const WRAP_BYTES: (usize, usize) = (4 << 10, 16 << 10);

/// Bytes left unused between a header that ends at `position` and the record's bytes.
fn gap(position: u64, length: usize) -> usize {
    if length < ALIGNED_BYTES_MIN { 0 } else { (position.wrapping_neg() % LINE_BYTES) as usize }
}

/// The other end's index is impossible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CorruptRing;

/// The words that both ends use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RingIndex {
    /// Bytes that the producer has written.
    Tail = 0,
    /// Bytes that the consumer has read.
    Head = 1,
    /// 1 when the consumer must be rung.
    Asleep = 2,
    /// 1 when the producer must be rung.
    Waiting = 3,
}

/// The memory in which a ring lies.
pub(super) trait RingMemory {
    type Word: Word;
    /// A power of two, and a multiple of [`WORD_BYTES`].
    fn bytes(&self) -> usize;
    fn index(&self, index: RingIndex) -> &Self::Word;
    /// The word at a position within the ring.
    fn load(&self, at: usize) -> u64;
    fn store(&self, at: usize, word: u64);
    /// Copies to and from a range that does not wrap.
    fn write(&self, at: usize, bytes: &[u8]);
    fn read(&self, at: usize, length: usize, into: &mut BytesMut);
}

/// `length`, rounded up to whole words.
pub(super) fn padded(length: usize) -> usize {
    length.next_multiple_of(WORD_BYTES)
}

/// The writing end.
pub(super) struct RingProducer<P> {
    place: P,
    /// Bytes written, published or not.
    tail: u64,
    /// The consumer's index, as last read.
    head: u64,
}

impl<P: RingMemory> RingProducer<P> {
    pub(super) fn new(place: P) -> RingProducer<P> {
        RingProducer { place, tail: 0, head: 0 }
    }

    /// Bytes that can be written now: exact if less than `wanted`.
    pub(super) fn free_bytes(&mut self, wanted: usize) -> Result<usize, CorruptRing> {
        let size = self.place.bytes() as u64;
        let mut used = self.tail - self.head;
        if size - used < wanted as u64 {
            let head = self.place.index(RingIndex::Head).load(Ordering::Acquire);
            // The consumer is at or behind the tail and never goes back.
            if head < self.head || head > self.tail || !head.is_multiple_of(WORD_BYTES as u64) {
                return Err(CorruptRing);
            }
            self.head = head;
            used = self.tail - head;
        }
        Ok((size - used) as usize)
    }

    /// Writes a word; the ring must have space.
    pub(super) fn word(&mut self, word: u64) {
        self.place.store(self.tail as usize & (self.place.bytes() - 1), word);
        self.tail += WORD_BYTES as u64;
    }

    /// The bytes that [`RingProducer::skip`] must leave unused behind the header of the next record, which has `length` bytes.
    pub(super) fn gap(&self, length: usize) -> usize {
        gap(self.tail + WORD_BYTES as u64, length)
    }

    /// Continues at the start of the ring, if the ring is empty and a record of `length` bytes is better placed there. Writes
    /// `word` first, which tells the consumer to follow.
    pub(super) fn wrap(&mut self, length: usize, word: u64) -> Result<(), CorruptRing> {
        let size = self.place.bytes();
        let at = self.tail as usize & (size - 1);
        let (least, behind) = WRAP_BYTES;
        // Until the consumer has followed, the skipped bytes count as used.
        if length < least || at < behind.max(length + 2 * LINE_BYTES as usize) || self.free_bytes(size)? < size {
            return Ok(());
        }
        self.word(word);
        self.tail = self.tail.next_multiple_of(size as u64);
        Ok(())
    }

    /// Leaves bytes unused; the ring must have space.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.tail += bytes as u64;
    }

    /// Writes bytes; the ring must have space.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let at = self.tail as usize & (self.place.bytes() - 1);
        let (first, second) = bytes.split_at(bytes.len().min(self.place.bytes() - at));
        self.place.write(at, first);
        self.place.write(0, second);
        self.tail += bytes.len() as u64;
    }

    /// Ends a record: pads its last word and publishes all bytes to the consumer.
    pub(super) fn publish(&mut self) {
        self.tail = self.tail.next_multiple_of(WORD_BYTES as u64);
        assert!(self.tail - self.head <= self.place.bytes() as u64, "there was room");
        self.place.index(RingIndex::Tail).store(self.tail, Ordering::Release);
    }

    /// Whether the consumer sleeps and must be woken; call this after publishing.
    pub(super) fn must_ring(&self) -> bool {
        P::Word::fence(Ordering::SeqCst);
        let asleep = self.place.index(RingIndex::Asleep);
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0
    }

    /// Requests a wake-up when there is space. False when the ring already has `wanted` free bytes, at most three quarters of
    /// it.
    pub(super) fn wait(&mut self, wanted: usize) -> Result<bool, CorruptRing> {
        assert!(wanted <= self.place.bytes() / 4 * 3, "with less in the ring the consumer does not look");
        let waiting = self.place.index(RingIndex::Waiting);
        waiting.swap(1, Ordering::AcqRel);
        P::Word::fence(Ordering::SeqCst);
        if self.free_bytes(wanted)? < wanted {
            return Ok(true);
        }
        self.place.index(RingIndex::Waiting).swap(0, Ordering::AcqRel);
        Ok(false)
    }
}

/// The reading end.
pub(super) struct RingConsumer<P> {
    place: P,
    /// Bytes read, published or not.
    head: u64,
    /// The producer's index, as last read.
    tail: u64,
    /// The head when the producer's flag was last checked.
    looked: u64,
}

impl<P: RingMemory> RingConsumer<P> {
    pub(super) fn new(place: P) -> RingConsumer<P> {
        RingConsumer { place, head: 0, tail: 0, looked: 0 }
    }

    /// Bytes that can be read now.
    pub(super) fn available(&mut self) -> Result<usize, CorruptRing> {
        if self.tail == self.head {
            let tail = self.place.index(RingIndex::Tail).load(Ordering::Acquire);
            let ahead = tail.wrapping_sub(self.head);
            if ahead > self.place.bytes() as u64 || !tail.is_multiple_of(WORD_BYTES as u64) {
                return Err(CorruptRing);
            }
            self.tail = tail;
        }
        Ok((self.tail - self.head) as usize)
    }

    /// Reads a word, which must be available.
    pub(super) fn word(&mut self) -> u64 {
        let word = self.place.load(self.head as usize & (self.place.bytes() - 1));
        self.head += WORD_BYTES as u64;
        word
    }

    /// The bytes that [`RingConsumer::skip`] must pass over between the last header and the record's bytes.
    pub(super) fn gap(&self, length: usize) -> usize {
        gap(self.head, length)
    }

    /// Follows the producer to the start of the ring.
    pub(super) fn wrap(&mut self) -> Result<(), CorruptRing> {
        let start = self.head.next_multiple_of(self.place.bytes() as u64);
        if start > self.tail {
            return Err(CorruptRing);
        }
        self.head = start;
        Ok(())
    }

    /// Skips bytes, which must be available.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.head += bytes as u64;
    }

    /// Appends bytes, which must be available.
    pub(super) fn read(&mut self, length: usize, into: &mut BytesMut) {
        let at = self.head as usize & (self.place.bytes() - 1);
        let first = length.min(self.place.bytes() - at);
        self.place.read(at, first, into);
        self.place.read(0, length - first, into);
        self.head += length as u64;
    }

    /// Ends a record: frees its space.
    pub(super) fn publish(&mut self) {
        self.head = self.head.next_multiple_of(WORD_BYTES as u64);
        assert!(self.head <= self.tail, "only what was available is read");
        self.place.index(RingIndex::Head).store(self.head, Ordering::Release);
    }

    /// Whether the producer waits for space, has some by now, and must be woken; call this after publishing.
    pub(super) fn must_ring(&mut self) -> bool {
        if self.head - self.looked < self.place.bytes() as u64 / 4 {
            return false;
        }
        self.looked = self.head;
        P::Word::fence(Ordering::SeqCst);
        let waiting = self.place.index(RingIndex::Waiting);
        waiting.load(Ordering::Relaxed) != 0 && waiting.swap(0, Ordering::AcqRel) != 0
    }

    /// Requests a wake-up when data arrives. False when data is already there.
    pub(super) fn sleep(&mut self) -> Result<bool, CorruptRing> {
        self.place.index(RingIndex::Asleep).swap(1, Ordering::AcqRel);
        P::Word::fence(Ordering::SeqCst);
        if self.available()? == 0 {
            return Ok(true);
        }
        self.place.index(RingIndex::Asleep).swap(0, Ordering::AcqRel);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::{Arc, Mutex};

    use super::*;

    const SIZE: usize = 64 << 10;
    const AGAIN: u64 = u64::MAX;

    struct Memory {
        indices: [AtomicU64; 4],
        bytes: Mutex<Vec<u8>>,
    }

    #[derive(Clone)]
    struct TestRing(Arc<Memory>);

    impl TestRing {
        fn new() -> TestRing {
            let indices = [0; 4].map(AtomicU64::new);
            TestRing(Arc::new(Memory { indices, bytes: Mutex::new(vec![0; SIZE]) }))
        }
    }

    impl RingMemory for TestRing {
        type Word = AtomicU64;

        fn bytes(&self) -> usize {
            SIZE
        }

        fn index(&self, index: RingIndex) -> &AtomicU64 {
            &self.0.indices[index as usize]
        }

        fn load(&self, at: usize) -> u64 {
            let bytes = self.0.bytes.lock().expect("nobody panics");
            u64::from_le_bytes(bytes[at..at + WORD_BYTES].try_into().expect("a word"))
        }

        fn store(&self, at: usize, word: u64) {
            self.0.bytes.lock().expect("nobody panics")[at..at + WORD_BYTES].copy_from_slice(&word.to_le_bytes());
        }

        fn write(&self, at: usize, bytes: &[u8]) {
            self.0.bytes.lock().expect("nobody panics")[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn read(&self, at: usize, length: usize, into: &mut BytesMut) {
            into.extend_from_slice(&self.0.bytes.lock().expect("nobody panics")[at..at + length]);
        }
    }

    fn take(consumer: &mut RingConsumer<TestRing>) -> BytesMut {
        let mut header = consumer.word();
        if header == AGAIN {
            consumer.wrap().expect("the producer went there");
            header = consumer.word();
        }
        let mut bytes = BytesMut::new();
        consumer.read(header as usize, &mut bytes);
        consumer.publish();
        bytes
    }

    #[test]
    fn records_come_out_as_they_went_in_wherever_the_ring_begins_again() {
        let place = TestRing::new();
        let (mut producer, mut consumer) = (RingProducer::new(place.clone()), RingConsumer::new(place));
        let (mut sent, mut begun) = (std::collections::VecDeque::new(), 0);
        let mut random = 7u64;
        for step in 0..50_000u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let length = (random >> 40) as usize % (if step % 3 == 0 { 64 } else { 24 << 10 });
            let before = producer.tail;
            producer.wrap(length, AGAIN).expect("the consumer's index is possible");
            begun += u32::from(producer.tail > before);
            let wanted = WORD_BYTES + padded(length);
            if producer.free_bytes(wanted).expect("the consumer's index is possible") >= wanted {
                let record = vec![step as u8; length];
                producer.word(length as u64);
                producer.write(&record);
                producer.publish();
                sent.push_back(record);
            }
            // For a while one record at a time, then several.
            let leave = if step / 1_000 % 2 == 0 { 0 } else { (random >> 33) as usize % 4 };
            while sent.len() > leave && consumer.available().expect("the producer's index is possible") > 0 {
                let record = sent.pop_front().expect("it was sent");
                assert!(take(&mut consumer)[..] == record[..], "step {step}");
            }
        }
        assert!(begun > 1_000, "{begun}");
    }

    #[test]
    fn a_producer_without_room_is_rung_before_the_ring_is_empty() {
        let place = TestRing::new();
        let (mut producer, mut consumer) = (RingProducer::new(place.clone()), RingConsumer::new(place));
        let (mut random, mut waits, mut rings) = (11u64, 0, 0);
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let length = (random >> 40) as usize % (SIZE / 4 * 3 - WORD_BYTES);
            let wanted = WORD_BYTES + padded(length);
            while producer.free_bytes(wanted).expect("the consumer's index is possible") < wanted {
                assert_eq!(producer.wait(wanted), Ok(true), "nobody reads meanwhile");
                waits += 1;
                let mut rung = false;
                while !rung {
                    assert_ne!(consumer.available(), Ok(0), "everything was read, and the producer still waits");
                    take(&mut consumer);
                    rung = consumer.must_ring();
                }
                rings += 1;
            }
            producer.word(length as u64);
            producer.write(&vec![7; length]);
            producer.publish();
            // Some are read while there is space, so that the last check may be at any position.
            if random >> 33 & 3 == 0 && consumer.available().expect("the producer's index is possible") > 0 {
                take(&mut consumer);
                assert!(!consumer.must_ring(), "nobody waits");
            }
        }
        assert!(waits > 1_000 && rings == waits, "{waits} {rings}");
    }

    #[test]
    fn a_start_beyond_what_was_published_is_not_followed() {
        let place = TestRing::new();
        let (mut producer, mut consumer) = (RingProducer::new(place.clone()), RingConsumer::new(place));
        producer.word(AGAIN);
        producer.publish();
        assert!(consumer.available() == Ok(WORD_BYTES) && consumer.word() == AGAIN);
        assert_eq!(consumer.wrap(), Err(CorruptRing));
    }
}
