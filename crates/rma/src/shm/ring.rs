//! A ring of bytes between one producer and one consumer in shared memory.
//!
//! 1. The producer writes behind the tail and publishes the tail; the consumer reads behind the head and publishes the
//!    head. Both count bytes since the beginning, so that `tail - head` bytes are in the ring.
//! 2. A consumer that finds nothing says that it is asleep, and looks once more; a producer that has published looks
//!    whether the consumer is asleep, and then must ring ([`Producer::must_ring`]). A sequentially consistent fence lies
//!    between the two steps of either, so that one of them sees the other.
//! 3. A producer without room does the same with its own flag ([`Producer::wait`], [`Consumer::must_ring`]). The consumer
//!    looks at it once for every quarter of the ring that it has read, not at every record: whoever waits wants at most three
//!    quarters, so that at least a quarter is in the ring and yet to be read.
//! 4. A producer that finds the ring empty may begin again at its start ([`Producer::begin_again`]) before a longer record: a
//!    message at a time then goes through the same few lines, which the nearest cache still has, and not round all of them.
//!
//! The two flags are only ever exchanged, never stored: both sides write them, and exchanges have one order.
//!
//! Invariants: each side believes its own index only; the other's is hostile and checked at every reading, so that a
//! wrong one is [`Corrupt`] and never an access outside of the ring. Records begin at multiples of a word.

use std::sync::atomic::Ordering;

use base::BytesMut;

use super::marks::Word;
use crate::WORD_BYTES;

/// Bytes of one ring; a power of two.
pub(super) const RING_BYTES: usize = 256 << 10;

/// From so many bytes on, what follows a record's header begins at a cache line, so that copies cross none.
const ALIGNED_BYTES_MIN: usize = 512;
const LINE_BYTES: u64 = 64;

const _: () = assert!(RING_BYTES.is_multiple_of(LINE_BYTES as usize));

/// A record of so many bytes may go to the start of an empty ring, if that is so far behind its producer.
const BEGIN_AGAIN_BYTES: (usize, usize) = (4 << 10, 16 << 10);

/// Bytes that are left unused between a header that ends at `position` and the record's bytes.
fn gap(position: u64, length: usize) -> usize {
    if length < ALIGNED_BYTES_MIN { 0 } else { (position.wrapping_neg() % LINE_BYTES) as usize }
}

/// The other side's index is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Corrupt;

/// The words that both sides use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Index {
    /// Bytes that the producer has written.
    Tail = 0,
    /// Bytes that the consumer has read.
    Head = 1,
    /// 1 when the consumer must be rung.
    Asleep = 2,
    /// 1 when the producer must be rung.
    Waiting = 3,
}

/// Where a ring lies.
pub(super) trait Place {
    type Word: Word;
    /// A power of two, and a multiple of [`WORD_BYTES`].
    fn bytes(&self) -> usize;
    fn index(&self, index: Index) -> &Self::Word;
    /// The word at a position within the ring.
    fn load(&self, at: usize) -> u64;
    fn store(&self, at: usize, word: u64);
    /// Copies to and from a range that does not wrap.
    fn write(&self, at: usize, bytes: &[u8]);
    fn read(&self, at: usize, length: usize, into: &mut BytesMut);
}

/// `length` and what fills its last word.
pub(super) fn padded(length: usize) -> usize {
    length.next_multiple_of(WORD_BYTES)
}

/// The writing side.
pub(super) struct Producer<P> {
    place: P,
    /// Written, published or not.
    tail: u64,
    /// The consumer's, as last read.
    head: u64,
}

impl<P: Place> Producer<P> {
    pub(super) fn new(place: P) -> Producer<P> {
        Producer { place, tail: 0, head: 0 }
    }

    /// Bytes that can be written now: exact when less than `wanted`.
    pub(super) fn room(&mut self, wanted: usize) -> Result<usize, Corrupt> {
        let size = self.place.bytes() as u64;
        let mut used = self.tail - self.head;
        if size - used < wanted as u64 {
            let head = self.place.index(Index::Head).load(Ordering::Acquire);
            // The consumer is at or behind the tail and never goes back.
            if head < self.head || head > self.tail || !head.is_multiple_of(WORD_BYTES as u64) {
                return Err(Corrupt);
            }
            self.head = head;
            used = self.tail - head;
        }
        Ok((size - used) as usize)
    }

    /// Writes a word; there must be room.
    pub(super) fn word(&mut self, word: u64) {
        self.place.store(self.tail as usize & (self.place.bytes() - 1), word);
        self.tail += WORD_BYTES as u64;
    }

    /// What [`Producer::skip`] is to leave unused behind the header of a record of so many bytes, which is written next.
    pub(super) fn gap(&self, length: usize) -> usize {
        gap(self.tail + WORD_BYTES as u64, length)
    }

    /// Goes to the start of the ring, if that is empty and a record of so many bytes is better there: behind a word of its own,
    /// by which the consumer knows.
    pub(super) fn begin_again(&mut self, length: usize, word: u64) -> Result<(), Corrupt> {
        let size = self.place.bytes();
        let at = self.tail as usize & (size - 1);
        let (least, behind) = BEGIN_AGAIN_BYTES;
        // As long as the consumer has not followed, what is passed over has no room.
        if length < least || at < behind.max(length + 2 * LINE_BYTES as usize) || self.room(size)? < size {
            return Ok(());
        }
        self.word(word);
        self.tail = self.tail.next_multiple_of(size as u64);
        Ok(())
    }

    /// Leaves bytes unused; there must be room.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.tail += bytes as u64;
    }

    /// Writes bytes; there must be room.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let at = self.tail as usize & (self.place.bytes() - 1);
        let (first, second) = bytes.split_at(bytes.len().min(self.place.bytes() - at));
        self.place.write(at, first);
        self.place.write(0, second);
        self.tail += bytes.len() as u64;
    }

    /// Ends a record: fills its last word and shows everything to the consumer.
    pub(super) fn publish(&mut self) {
        self.tail = self.tail.next_multiple_of(WORD_BYTES as u64);
        assert!(self.tail - self.head <= self.place.bytes() as u64, "there was room");
        self.place.index(Index::Tail).store(self.tail, Ordering::Release);
    }

    /// Whether the consumer sleeps and must be rung; call it after publishing.
    pub(super) fn must_ring(&self) -> bool {
        P::Word::fence(Ordering::SeqCst);
        let asleep = self.place.index(Index::Asleep);
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0
    }

    /// Asks to be rung when there is room. False when there are `wanted` bytes by now, at most three quarters of the ring.
    pub(super) fn wait(&mut self, wanted: usize) -> Result<bool, Corrupt> {
        assert!(wanted <= self.place.bytes() / 4 * 3, "with less in the ring the consumer does not look");
        let waiting = self.place.index(Index::Waiting);
        waiting.swap(1, Ordering::AcqRel);
        P::Word::fence(Ordering::SeqCst);
        if self.room(wanted)? < wanted {
            return Ok(true);
        }
        self.place.index(Index::Waiting).swap(0, Ordering::AcqRel);
        Ok(false)
    }
}

/// The reading side.
pub(super) struct Consumer<P> {
    place: P,
    /// Read, published or not.
    head: u64,
    /// The producer's, as last read.
    tail: u64,
    /// What the head was when the producer was last looked after.
    looked: u64,
}

impl<P: Place> Consumer<P> {
    pub(super) fn new(place: P) -> Consumer<P> {
        Consumer { place, head: 0, tail: 0, looked: 0 }
    }

    /// Bytes that can be read now.
    pub(super) fn available(&mut self) -> Result<usize, Corrupt> {
        if self.tail == self.head {
            let tail = self.place.index(Index::Tail).load(Ordering::Acquire);
            let ahead = tail.wrapping_sub(self.head);
            if ahead > self.place.bytes() as u64 || !tail.is_multiple_of(WORD_BYTES as u64) {
                return Err(Corrupt);
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

    /// What [`Consumer::skip`] is to pass over between the header that was read last and the record's bytes.
    pub(super) fn gap(&self, length: usize) -> usize {
        gap(self.head, length)
    }

    /// Follows the producer to the start of the ring.
    pub(super) fn begin_again(&mut self) -> Result<(), Corrupt> {
        let start = self.head.next_multiple_of(self.place.bytes() as u64);
        if start > self.tail {
            return Err(Corrupt);
        }
        self.head = start;
        Ok(())
    }

    /// Passes over bytes, which must be available.
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

    /// Ends a record: gives its room back.
    pub(super) fn publish(&mut self) {
        self.head = self.head.next_multiple_of(WORD_BYTES as u64);
        assert!(self.head <= self.tail, "only what was available is read");
        self.place.index(Index::Head).store(self.head, Ordering::Release);
    }

    /// Whether the producer waits for room, has some by now, and must be rung; call it after publishing.
    pub(super) fn must_ring(&mut self) -> bool {
        if self.head - self.looked < self.place.bytes() as u64 / 4 {
            return false;
        }
        self.looked = self.head;
        P::Word::fence(Ordering::SeqCst);
        let waiting = self.place.index(Index::Waiting);
        waiting.load(Ordering::Relaxed) != 0 && waiting.swap(0, Ordering::AcqRel) != 0
    }

    /// Asks to be rung when something is there. False when something is there by now.
    pub(super) fn sleep(&mut self) -> Result<bool, Corrupt> {
        self.place.index(Index::Asleep).swap(1, Ordering::AcqRel);
        P::Word::fence(Ordering::SeqCst);
        if self.available()? == 0 {
            return Ok(true);
        }
        self.place.index(Index::Asleep).swap(0, Ordering::AcqRel);
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
    struct Plain(Arc<Memory>);

    impl Plain {
        fn new() -> Plain {
            let indices = [0; 4].map(AtomicU64::new);
            Plain(Arc::new(Memory { indices, bytes: Mutex::new(vec![0; SIZE]) }))
        }
    }

    impl Place for Plain {
        type Word = AtomicU64;

        fn bytes(&self) -> usize {
            SIZE
        }

        fn index(&self, index: Index) -> &AtomicU64 {
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

    fn take(consumer: &mut Consumer<Plain>) -> BytesMut {
        let mut header = consumer.word();
        if header == AGAIN {
            consumer.begin_again().expect("the producer went there");
            header = consumer.word();
        }
        let mut bytes = BytesMut::new();
        consumer.read(header as usize, &mut bytes);
        consumer.publish();
        bytes
    }

    #[test]
    fn records_come_out_as_they_went_in_wherever_the_ring_begins_again() {
        let place = Plain::new();
        let (mut producer, mut consumer) = (Producer::new(place.clone()), Consumer::new(place));
        let (mut sent, mut begun) = (std::collections::VecDeque::new(), 0);
        let mut random = 7u64;
        for step in 0..50_000u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let length = (random >> 40) as usize % (if step % 3 == 0 { 64 } else { 24 << 10 });
            let before = producer.tail;
            producer.begin_again(length, AGAIN).expect("the consumer's index is possible");
            begun += u32::from(producer.tail > before);
            let wanted = WORD_BYTES + padded(length);
            if producer.room(wanted).expect("the consumer's index is possible") >= wanted {
                let record = vec![step as u8; length];
                producer.word(length as u64);
                producer.write(&record);
                producer.publish();
                sent.push_back(record);
            }
            // One at a time for a while, then several.
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
        let place = Plain::new();
        let (mut producer, mut consumer) = (Producer::new(place.clone()), Consumer::new(place));
        let (mut random, mut waits, mut rings) = (11u64, 0, 0);
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let length = (random >> 40) as usize % (SIZE / 4 * 3 - WORD_BYTES);
            let wanted = WORD_BYTES + padded(length);
            while producer.room(wanted).expect("the consumer's index is possible") < wanted {
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
            // Some are read while there is room, so that what was looked at last is anywhere.
            if random >> 33 & 3 == 0 && consumer.available().expect("the producer's index is possible") > 0 {
                take(&mut consumer);
                assert!(!consumer.must_ring(), "nobody waits");
            }
        }
        assert!(waits > 1_000 && rings == waits, "{waits} {rings}");
    }

    #[test]
    fn a_start_beyond_what_was_published_is_not_followed() {
        let place = Plain::new();
        let (mut producer, mut consumer) = (Producer::new(place.clone()), Consumer::new(place));
        producer.word(AGAIN);
        producer.publish();
        assert!(consumer.available() == Ok(WORD_BYTES) && consumer.word() == AGAIN);
        assert_eq!(consumer.begin_again(), Err(Corrupt));
    }
}
