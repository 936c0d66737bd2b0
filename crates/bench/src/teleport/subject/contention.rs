//! Two sides that write the same words now and then.
//!
//! One process measures all ways, on the same memory, so that nothing but the way differs from one to the next:
//!
//! 1. Before the first way each side touches all of its data once. A first touch is a fault, which costs more than a hundred operations.
//! 2. Before each way the shared pages go home, and the thread of the caller has started.
//! 3. Both sides begin. A way's time ends when the slower side has done its operations, and what it wrote is at the caller.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use farmem::pushdown::{Coherence, Executor};
use measurement::error::Error;

use super::data::{Data, PAGE_WORDS, Random, SHARED_PAGES, shared_pages};
use super::settings::{Measured, Settings, setting};
use crate::teleport::contention::Way;
use crate::teleport::part;

/// Random numbers are drawn as fractions of this.
const MILLION: u64 = 1_000_000;

/// Measures the ways that the settings list, in their order. A way that is listed several times has the means.
pub(super) fn contention(executor: &Executor, settings: &Settings<'_>) -> Measured {
    let (bytes, operations): (u64, u64) = (setting(settings, "bytes")?, setting(settings, "operations")?);
    let ways: String = setting(settings, "ways")?;
    let shared = shared_pages(SHARED_PAGES);
    let own = Data::new(executor, bytes, false)?;
    let far = Data::new(executor, bytes, true)?;
    let sides = Sides { executor, shared, own: own.words(), far: far.words(), operations };
    sides.touch()?;
    let mut measured: BTreeMap<String, (u32, f64)> = BTreeMap::new();
    for label in ways.split(',') {
        let way = Way::of_label(label).ok_or_else(|| part(&format!("there is no way {label}")))?;
        let Contended { seconds, accesses, messages } = sides.contend(way)?;
        for (what, number) in [("seconds", seconds), ("accesses", accesses as f64), ("messages", messages as f64)] {
            let (times, sum) = measured.entry(way.number(what)).or_default();
            *times += 1;
            *sum += number;
        }
    }
    Ok(measured.into_iter().map(|(name, (times, sum))| (name, sum / f64::from(times))).collect())
}

/// What a way has cost.
struct Contended {
    seconds: f64,
    /// How often a side wrote a shared word.
    accesses: u64,
    messages: u64,
}

/// Both sides' memory.
struct Sides<'a> {
    executor: &'a Executor,
    shared: &'static [AtomicU64],
    /// The caller's data, and that of the function.
    own: &'a [u64],
    far: &'a [u64],
    /// Operations of each side.
    operations: u64,
}

impl Sides<'_> {
    /// Has each side touch all of its data.
    fn touch(&self) -> Result<(), Error> {
        let read = |words: &[u64]| words.iter().step_by(PAGE_WORDS).fold(0, |sum: u64, word| sum.wrapping_add(*word));
        black_box(read(self.own));
        black_box(self.executor.call(|| read(self.far)).map_err(|error| part(&error))?);
        Ok(())
    }

    #[allow(unsafe_code, reason = "only a caller can answer for a closure whose call may fail in the middle")]
    fn contend(&self, way: Way) -> Result<Contended, Error> {
        let Sides { executor, shared, own, far, .. } = *self;
        executor.syncmem(shared).map_err(|error| part(&error))?;
        let messages_before = executor.messages();
        let started = Barrier::new(2);
        let (accesses, seconds) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                started.wait();
                self.read_and_write(own, way.per_million, 1)
            });
            started.wait();
            let begun = Instant::now();
            let pushed = match coherence(way.name) {
                None => self.read_and_write(own, way.per_million, 2),
                Some(coherence) => {
                    let function = || self.read_and_write(far, way.per_million, 2);
                    // SAFETY: both sides use the shared words alone together, no lock and no allocator while the call runs.
                    unsafe { executor.try_call_in(coherence, function) }.map_err(|error| part(&error))?
                }
            };
            let accesses = pushed + other.join().expect("it does not panic");
            Ok::<_, Error>((accesses, begun.elapsed().as_secs_f64()))
        })?;
        Ok(Contended { seconds, accesses, messages: executor.messages() - messages_before })
    }

    /// Reads at random, and writes a shared word now and then; returns how often it wrote one.
    fn read_and_write(&self, words: &[u64], per_million: u64, seed: u64) -> u64 {
        let (mut random, mut sum, mut contended) = (Random(seed), 0_u64, 0);
        for _ in 0..self.operations {
            let number = random.next();
            sum = sum.wrapping_add(words[number as usize % words.len()]);
            if (number >> 8) % MILLION < per_million {
                let word = (number >> 32) as usize % SHARED_PAGES * PAGE_WORDS;
                self.shared[word].store(number, Ordering::Relaxed);
                contended += 1;
            }
        }
        black_box(sum);
        contended
    }
}

/// The mode in which the function of a way is pushed down; `None` if it is not.
fn coherence(way: &str) -> Option<Coherence> {
    match way {
        "coherent" => Some(Coherence::Coherent),
        "weak" => Some(Coherence::Weak),
        "off" => Some(Coherence::Off),
        _ => None,
    }
}
