//! Models of the marks and the rings for loom, which tries every order of steps and every value that a load may return.
//!
//! Each claim has a counterpart with one fence removed, in which loom must find the failure. Without the counterpart, a model
//! could pass for a reason other than the fence.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::BytesMut;
use loom::sync::Notify;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::hazards::{self, FREE, Word, enter, generation, is_over, leave, raise, seen};
use super::ring::{RingConsumer, RingIndex, RingMemory, RingProducer};

super::hazards::word!(loom::sync::atomic);

/// Runs a model to its end, with at most three preemptions in one run where a bound is given.
fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

/// Whether loom finds a failure.
fn fails(model: impl Fn() + Send + Sync + 'static) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(None, model))).is_err()
}

/// A slot, a generation, and a word of the region.
struct Fence {
    slot: AtomicU64,
    generation: AtomicU64,
    word: AtomicU64,
}

const IN_FORCE: u64 = 1;
const REVOKED: u64 = 2;
const OLD: u64 = 1;
const NEW: u64 = 2;

impl Fence {
    fn new() -> Arc<Fence> {
        let (slot, generation, word) = (AtomicU64::new(FREE), AtomicU64::new(IN_FORCE), AtomicU64::new(0));
        Arc::new(Fence { slot, generation, word })
    }

    /// A verb that writes, under the generation that was in force at first.
    fn verb(&self, sequence: u16, enter: impl Fn(&AtomicU64, u64) -> bool) {
        if !enter(&self.slot, hazards::hazard(0, 0, sequence)) {
            return;
        }
        if generation(&self.generation) == IN_FORCE {
            self.word.store(OLD, Ordering::Relaxed);
        }
        leave(&self.slot);
    }

    /// A revocation, then a write by the owner.
    fn revoke(&self) {
        raise(&self.generation, REVOKED);
        let mark = seen(&self.slot);
        while hazards::is_under(mark, 0, 0) && !is_over(&self.slot, mark) {
            thread::yield_now();
        }
        self.word.store(NEW, Ordering::Relaxed);
    }
}

/// Two verbs of one thread against a revocation.
fn revocation(enter: impl Fn(&AtomicU64, u64) -> bool + Send + Sync + Clone + 'static) -> impl Fn() {
    move || {
        let fence = Fence::new();
        let caller = {
            let (fence, enter) = (Arc::clone(&fence), enter.clone());
            thread::spawn(move || {
                fence.verb(0, &enter);
                fence.verb(1, &enter);
            })
        };
        fence.revoke();
        caller.join().expect("the caller does not panic");
        assert_eq!(fence.word.load(Ordering::Relaxed), NEW, "a verb landed after its fence");
    }
}

/// As [`enter`], without the fence.
fn enter_unfenced(slot: &AtomicU64, mark: u64) -> bool {
    slot.compare_exchange(FREE, mark, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

#[test]
fn no_verb_lands_after_its_fence() {
    check(None, revocation(enter::<AtomicU64>));
    assert!(fails(revocation(enter_unfenced)), "the model does not see a missing fence");
}

#[test]
fn no_verb_of_two_threads_in_one_slot_lands_after_its_fence() {
    check(Some(3), || {
        let fence = Fence::new();
        let callers = [0, 1].map(|sequence| {
            let fence = Arc::clone(&fence);
            thread::spawn(move || fence.verb(sequence, enter))
        });
        fence.revoke();
        callers.into_iter().for_each(|caller| caller.join().expect("the caller does not panic"));
        assert_eq!(fence.word.load(Ordering::Relaxed), NEW, "a verb landed after its fence");
    });
}

/// A verb against the unmapping of its region.
fn unmapping(enter: impl Fn(&AtomicU64, u64) -> bool + Send + Sync + Clone + 'static) -> impl Fn() {
    move || {
        let slot = Arc::new(AtomicU64::new(FREE));
        let (in_table, mapped) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(1)));
        let caller = {
            let (slot, in_table, mapped) = (Arc::clone(&slot), Arc::clone(&in_table), Arc::clone(&mapped));
            let enter = enter.clone();
            thread::spawn(move || {
                assert!(enter(&slot, hazards::hazard(0, 0, 0)), "the slot is free");
                if in_table.load(Ordering::Acquire) == 1 {
                    assert_eq!(mapped.load(Ordering::Relaxed), 1, "a region was unmapped under a verb");
                }
                leave(&*slot);
            })
        };
        in_table.store(0, Ordering::Release);
        AtomicU64::fence(Ordering::SeqCst);
        if seen(&*slot) == FREE {
            mapped.store(0, Ordering::Relaxed);
        }
        caller.join().expect("no region was unmapped under a verb");
    }
}

#[test]
fn no_region_is_unmapped_under_a_verb() {
    check(None, unmapping(enter::<AtomicU64>));
    assert!(fails(unmapping(enter_unfenced)), "the model does not see a missing fence");
}

/// A ring of four words.
struct Small {
    indices: [AtomicU64; 4],
    words: [AtomicU64; 4],
    /// Whether an end that goes to sleep checks once more behind a fence.
    fenced: bool,
}

#[derive(Clone)]
struct Handle(Arc<Small>);

impl RingMemory for Handle {
    type Word = AtomicU64;

    fn bytes(&self) -> usize {
        32
    }

    fn index(&self, index: RingIndex) -> &AtomicU64 {
        &self.0.indices[index as usize]
    }

    fn load(&self, at: usize) -> u64 {
        self.0.words[at / 8].load(Ordering::Relaxed)
    }

    fn store(&self, at: usize, word: u64) {
        self.0.words[at / 8].store(word, Ordering::Relaxed);
    }

    fn write(&self, _: usize, _: &[u8]) {
        panic!("the model moves words");
    }

    fn read(&self, _: usize, _: usize, _: &mut BytesMut) {
        panic!("the model moves words");
    }
}

/// Records of two words through a ring with space for two; either end sleeps until its bell is rung.
fn ring(records: u64, fenced: bool) -> impl Fn() {
    move || {
        let new = || [0; 4].map(AtomicU64::new);
        let place = Handle(Arc::new(Small { indices: new(), words: new(), fenced }));
        let (for_consumer, for_producer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let producer = {
            let (place, for_consumer, for_producer) =
                (place.clone(), Arc::clone(&for_consumer), Arc::clone(&for_producer));
            thread::spawn(move || {
                let mut producer = RingProducer::new(place);
                for record in 0..records {
                    while producer.free_bytes(16).expect("the consumer's index is possible") < 16 {
                        if producer.wait(16).expect("the consumer's index is possible") {
                            for_producer.wait();
                        }
                    }
                    producer.word(record);
                    producer.word(!record);
                    producer.publish();
                    if producer.must_ring() {
                        for_consumer.notify();
                    }
                }
            })
        };
        let mut consumer = RingConsumer::new(place.clone());
        for record in 0..records {
            while consumer.available().expect("the producer's index is possible") == 0 {
                let asleep = if place.0.fenced {
                    consumer.sleep().expect("the producer's index is possible")
                } else {
                    // The same as `sleep`, without its fence.
                    place.index(RingIndex::Asleep).swap(1, Ordering::AcqRel);
                    consumer.available().expect("the producer's index is possible") == 0
                };
                if asleep {
                    for_consumer.wait();
                }
            }
            assert_eq!(consumer.word(), record);
            assert_eq!(consumer.word(), !record);
            consumer.publish();
            if consumer.must_ring() {
                for_producer.notify();
            }
        }
        producer.join().expect("the producer does not panic");
    }
}

#[test]
fn rings_lose_neither_records_nor_bells() {
    check(None, ring(1, true));
    check(None, ring(2, true));
    check(Some(3), ring(3, true));
    assert!(fails(ring(1, false)), "the model does not see a missing fence");
}
