//! A computing and a reading thread, one of which may be pushed down.

use std::hint::black_box;
use std::time::Instant;

use farmem::pushdown::Executor;
use measurement::error::Error;

use super::data::{CACHE_DIVISOR, Data, PAGE_WORDS, Random};
use super::settings::{Measured, Settings, named, setting};
use crate::teleport::part;

/// Steps of computing that take about as long as a random access beyond the processor's caches.
const STEPS_PER_READ: u64 = 60;
/// The way without pushdown makes one read in 100, and its time counts a hundredfold.
const NONE_DIVISOR: u64 = 100;

/// A computing and a reading thread.
pub(super) fn ablation(executor: &Executor, settings: &Settings<'_>) -> Measured {
    let (bytes, way): (u64, String) = (setting(settings, "bytes")?, setting(settings, "way")?);
    let data = Data::new(executor, bytes, way != "local")?;
    let words = data.words();
    let pages = words.len() / PAGE_WORDS;
    let reads = pages as u64 * 4 / 5;
    // The thread fills the cache: the other one computes, and uses no memory.
    let cached = (pages as u64 / CACHE_DIVISOR).max(1);
    let read_cached = || read_at_random(words, cached, 7);
    black_box((read_cached(), read_cached()));
    let steps = reads * STEPS_PER_READ;
    let fails = |error| part(&error);
    let start = Instant::now();
    let mut scale = 1.0;
    match way.as_str() {
        "process" => {
            data.evict()?;
            executor.syncmem_everything().map_err(fails)?;
            black_box(executor.call(|| (read_at_random(words, reads, 1), compute(steps))).map_err(fails)?);
        }
        _ => std::thread::scope(|scope| {
            let computing = scope.spawn(|| black_box(compute(steps)));
            match way.as_str() {
                "local" => _ = black_box(read_at_random(words, reads, 1)),
                "none" => {
                    scale = NONE_DIVISOR as f64;
                    black_box(read_at_random(words, reads / NONE_DIVISOR, 1));
                }
                _ => {
                    if way == "thread" {
                        data.evict()?;
                    }
                    black_box(executor.call(|| read_at_random(words, reads, 1)).map_err(fails)?);
                }
            }
            let _ = computing.join();
            Ok::<_, Error>(())
        })?,
    }
    if way != "none" {
        black_box(read_cached());
    }
    Ok(named([("seconds", start.elapsed().as_secs_f64() * scale)]))
}

fn read_at_random(words: &[u64], reads: u64, seed: u64) -> u64 {
    let mut random = Random(seed);
    (0..reads).fold(0, |sum: u64, _| sum.wrapping_add(words[random.next() as usize % words.len()]))
}

fn compute(steps: u64) -> u64 {
    let mut random = Random(steps);
    (0..steps).fold(0, |sum: u64, _| sum ^ random.next())
}
