//! The measured processes: each runs one way of one figure, and prints its numbers, a name and a value a line.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farmem::pushdown::{CallTimes, Coherence, Executor, FarMemory, PushdownOptions};
use measurement::error::Error;
use measurement::interval::median;

use super::part;

const PAGE_WORDS: usize = farmem::PAGE_BYTES / 8;
/// Calls that are not counted, and those that are.
const CALLS_BEFORE: usize = 200;
const CALLS: usize = 2_000;
const CALLS_ASLEEP: usize = 300;
const CALLS_TOUCH: usize = 5;
/// After such a pause both sides sleep.
const PAUSE: Duration = Duration::from_millis(2);
/// The function that touches pages writes one page in 64.
const TOUCH_EVERY: usize = 64;
/// The process caches one part in 50 of its far data: 2 %.
const CACHE_DIVISOR: u64 = 50;
/// Steps of computing that take about as long as a random access beyond the processor's caches.
const STEPS_PER_READ: u64 = 60;
/// The way without pushdown makes one read in 100, and its time counts a hundredfold.
const NONE_DIVISOR: u64 = 100;
/// Pages that both sides write, and writes of each.
const SHARED_PAGES: usize = 16;
const FALSE_SHARING_WRITES: u64 = 2_000_000;
/// Operations of each side under contention.
const OPERATIONS: u64 = 2_000_000;
/// Pages over which faults are measured.
const FAULT_PAGES: usize = 2_000;

thread_local! {
    static CALLED: Cell<u64> = const { Cell::new(0) };
}

/// Runs the part that is the first argument, with the settings `name=value` of the others.
///
/// # Errors
/// An argument is wrong, or functions cannot be pushed down.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let executor = Executor::open(&PushdownOptions::default()).map_err(|error| part(&error))?;
    let (name, settings) = arguments.split_first().ok_or_else(|| part(&"no part is named"))?;
    let settings: Settings = settings.iter().filter_map(|setting| setting.split_once('=')).collect();
    let numbers = match name.as_str() {
        "calls" => calls(&executor, &settings),
        "ablation" => ablation(&executor, &settings),
        "false-sharing" => false_sharing(&executor, &settings),
        "contention" => contention(&executor, &settings),
        "faults" => faults(&executor),
        _ => Err(part(&format!("there is no part {name}"))),
    }?;
    for (name, value) in numbers {
        println!("{name} {value}");
    }
    Ok(())
}

type Settings<'a> = BTreeMap<&'a str, &'a str>;
type Measured = Result<Vec<(&'static str, f64)>, Error>;

fn setting<T: std::str::FromStr>(settings: &Settings<'_>, name: &str) -> Result<T, Error> {
    let value = settings.get(name).and_then(|value| value.parse().ok());
    value.ok_or_else(|| part(&format!("{name} is missing, or not what it should be")))
}

/// Times of calls, by their parts.
fn calls(executor: &Executor, settings: &Settings<'_>) -> Measured {
    let (resident, is_dirty): (usize, bool) = (setting(settings, "resident")?, setting(settings, "dirty")?);
    let (is_asleep, is_eager): (bool, bool) = (setting(settings, "asleep")?, setting(settings, "eager")?);
    let function: String = setting(settings, "function")?;
    let mut memory = match function.as_str() {
        // The process may have all of it, and can give all of it up.
        "touch" => Data::Far(executor.far_memory(resident as u64, resident as u64).map_err(|error| part(&error))?),
        _ => Data::Own(vec![1; resident / 8]),
    };
    if !is_dirty {
        executor.syncmem(memory.words()).map_err(|error| part(&error))?;
    }
    let (before, count) = match function.as_str() {
        "touch" => (1, CALLS_TOUCH),
        _ if is_asleep => (10, CALLS_ASLEEP),
        _ => (CALLS_BEFORE, CALLS),
    };
    let mut measured = Vec::new();
    for _ in 0..before + count {
        if is_asleep {
            std::thread::sleep(PAUSE);
        }
        if function == "touch" {
            touch(memory.words_mut(), PAGE_WORDS);
        }
        let start = Instant::now();
        if is_eager {
            memory.evict()?;
        }
        let called = Instant::now();
        let outcome = match function.as_str() {
            "empty" => call_empty(executor),
            "typical" => typical(executor),
            _ => {
                let words = memory.words_mut();
                executor.call(|| touch(words, PAGE_WORDS * TOUCH_EVERY))
            }
        };
        outcome.map_err(|error| part(&error))?;
        let returned = Instant::now();
        if is_eager {
            black_box(memory.words().iter().step_by(PAGE_WORDS).sum::<u64>());
        }
        let times = executor.last_times().ok_or_else(|| part(&"the library knows no times of the call"))?;
        measured.push((start.elapsed(), called - start, returned.elapsed(), times));
    }
    let counted = &measured[before..];
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    let of = |time: fn(&CallTimes) -> Duration| median(counted.iter().map(|(_, _, _, times)| us(time(times))));
    Ok(vec![
        ("total", median(counted.iter().map(|(total, ..)| us(*total)))),
        ("pre_sync", median(counted.iter().map(|(_, pre_sync, _, times)| us(*pre_sync + times.before)))),
        ("request", of(|times| times.request)),
        ("set_up", of(|times| times.set_up)),
        ("run", of(|times| times.run)),
        ("online_sync", of(|times| times.online_sync)),
        ("response", of(|times| times.response)),
        ("post_sync", median(counted.iter().map(|(_, _, post_sync, times)| us(*post_sync + times.after)))),
    ])
}

extern "C" fn empty(_: *mut c_void) {}

/// A call that moves no page.
#[allow(unsafe_code, reason = "only a caller can answer for a function whose call may fail in the middle")]
fn call_empty(executor: &Executor) -> Result<(), farmem::pushdown::PushdownError> {
    // SAFETY: the function does nothing.
    unsafe { executor.try_call_function(empty, std::ptr::null_mut()) }
}

/// A variable of the caller's stack, a thread-local one, the allocator and formatted output.
fn typical(executor: &Executor) -> Result<(), farmem::pushdown::PushdownError> {
    let mut number = 0_u64;
    let text = executor.call(|| {
        number += 1;
        CALLED.set(CALLED.get() + 1);
        format!("{number} of {}", CALLED.get())
    })?;
    black_box((number, text));
    Ok(())
}

fn touch(memory: &mut [u64], step: usize) {
    memory.iter_mut().step_by(step).for_each(|word| *word += 1);
}

/// A fast generator of numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 20
    }
}

fn read_at_random(words: &[u64], reads: u64, seed: u64) -> u64 {
    let mut random = Random(seed);
    (0..reads).fold(0, |sum: u64, _| sum.wrapping_add(words[random.next() as usize % words.len()]))
}

fn compute(steps: u64) -> u64 {
    let mut random = Random(steps);
    (0..steps).fold(0, |sum: u64, _| sum ^ random.next())
}

/// The data of a way: far memory, or the process's own.
enum Data {
    Own(Vec<u64>),
    Far(FarMemory),
}

impl Data {
    /// Filled.
    fn new(executor: &Executor, bytes: u64, is_far: bool) -> Result<Data, Error> {
        let words = bytes as usize / 8;
        let mut data = match is_far {
            false => Data::Own(vec![0; words]),
            true => Data::Far(executor.far_memory(bytes, bytes / CACHE_DIVISOR).map_err(|error| part(&error))?),
        };
        data.words_mut().iter_mut().enumerate().step_by(PAGE_WORDS).for_each(|(index, word)| *word = index as u64);
        Ok(data)
    }

    fn words(&self) -> &[u64] {
        match self {
            Data::Own(words) => words,
            Data::Far(far) => far.words(),
        }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        match self {
            Data::Own(words) => words,
            Data::Far(far) => far.words_mut(),
        }
    }

    /// Sends what the process has of far memory home, and drops it.
    fn evict(&self) -> Result<(), Error> {
        match self {
            Data::Own(_) => Ok(()),
            Data::Far(far) => far.evict().map_err(|error| part(&error)),
        }
    }
}

fn ablation(executor: &Executor, settings: &Settings<'_>) -> Measured {
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
    Ok(vec![("seconds", start.elapsed().as_secs_f64() * scale)])
}

/// Writes bytes of shared pages, one half of each page.
fn write_half(pages: &[AtomicU64], is_upper: bool) {
    let mut random = Random(1 + u64::from(is_upper));
    for _ in 0..FALSE_SHARING_WRITES {
        let number = random.next() as usize;
        let word = number % (PAGE_WORDS / 2) + if is_upper { PAGE_WORDS / 2 } else { 0 };
        let at = &pages[number / PAGE_WORDS % SHARED_PAGES * PAGE_WORDS + word];
        at.store(at.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Pages of their own.
fn shared_pages(pages: usize) -> &'static [AtomicU64] {
    let words: Vec<AtomicU64> = (0..(pages + 1) * PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    let words = words.leak();
    let skipped = words.as_ptr().align_offset(farmem::PAGE_BYTES);
    &words[skipped..][..pages * PAGE_WORDS]
}

#[allow(unsafe_code, reason = "only a caller can answer for a closure whose call may fail in the middle")]
fn false_sharing(executor: &Executor, settings: &Settings<'_>) -> Measured {
    let way: String = setting(settings, "way")?;
    let pages = shared_pages(SHARED_PAGES);
    let coherence = if way == "syncmem" { Coherence::Off } else { Coherence::Coherent };
    executor.syncmem(pages).map_err(|error| part(&error))?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            write_half(pages, false);
            if way == "syncmem" { executor.syncmem(pages) } else { Ok(()) }
        });
        // SAFETY: both sides write different words, use nothing else together, and no lock or allocator while the call runs.
        unsafe { executor.try_call_in(coherence, || write_half(pages, true)) }.map_err(|error| part(&error))?;
        writing.join().expect("it does not panic").map_err(|error| part(&error))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let sum: u64 = pages.iter().map(|word| word.load(Ordering::Relaxed)).sum();
    if sum != 2 * FALSE_SHARING_WRITES {
        return Err(part(&format!("writes are lost: {sum} of {}", 2 * FALSE_SHARING_WRITES)));
    }
    Ok(vec![("seconds", seconds)])
}

/// Reads at random, and writes a shared word now and then; how often it did.
fn contend(words: &[u64], shared: &[AtomicU64], rate: u64, seed: u64) -> u64 {
    let (mut random, mut sum, mut contended) = (Random(seed), 0_u64, 0);
    for _ in 0..OPERATIONS {
        let number = random.next();
        sum = sum.wrapping_add(words[number as usize % words.len()]);
        if (number >> 8) % 1_000_000 < rate {
            let word = (number >> 32) as usize % SHARED_PAGES * PAGE_WORDS;
            shared[word].store(number, Ordering::Relaxed);
            contended += 1;
        }
    }
    black_box(sum);
    contended
}

#[allow(unsafe_code, reason = "only a caller can answer for a closure whose call may fail in the middle")]
fn contention(executor: &Executor, settings: &Settings<'_>) -> Measured {
    let (bytes, rate): (u64, u64) = (setting(settings, "bytes")?, setting(settings, "rate")?);
    let way: String = setting(settings, "way")?;
    let shared = shared_pages(SHARED_PAGES);
    let own = Data::new(executor, bytes, false)?;
    let data = Data::new(executor, bytes, way != "local")?;
    let coherence = match way.as_str() {
        "weak" => Coherence::Weak,
        "off" => Coherence::Off,
        _ => Coherence::Coherent,
    };
    executor.syncmem(shared).map_err(|error| part(&error))?;
    let messages_before = executor.messages();
    let start = Instant::now();
    let contended = std::thread::scope(|scope| {
        let other = scope.spawn(|| contend(own.words(), shared, rate, 1));
        let pushed = match way.as_str() {
            "local" => Ok(contend(data.words(), shared, rate, 2)),
            // SAFETY: both sides use the shared words alone together, no lock and no allocator while the call runs.
            _ => unsafe { executor.try_call_in(coherence, || contend(data.words(), shared, rate, 2)) },
        };
        Ok::<_, Error>(pushed.map_err(|error| part(&error))? + other.join().expect("it does not panic"))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let messages = (executor.messages() - messages_before) as f64;
    Ok(vec![("seconds", seconds), ("contended", contended as f64), ("messages", messages)])
}

/// One fault of each side, and one message.
fn faults(executor: &Executor) -> Measured {
    let pages = shared_pages(FAULT_PAGES);
    // Not in order, so that nothing is asked ahead.
    let touch_scattered = || {
        let start = Instant::now();
        for index in 0..FAULT_PAGES {
            pages[index * 1_237 % FAULT_PAGES * PAGE_WORDS].fetch_add(1, Ordering::Relaxed);
        }
        start.elapsed().as_nanos() as f64 / 1e3 / FAULT_PAGES as f64
    };
    touch_scattered();
    let (mut at_executor, mut at_caller, mut requests) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CALLS_BEFORE {
        call_empty(executor).map_err(|error| part(&error))?;
        let times = executor.last_times().ok_or_else(|| part(&"the library knows no times of the call"))?;
        requests.push(times.request.as_nanos() as f64 / 1e3);
    }
    for _ in 0..CALLS_TOUCH {
        at_executor.push(executor.call(touch_scattered).map_err(|error| part(&error))?);
        at_caller.push(touch_scattered());
    }
    Ok(vec![
        ("executor_us", median(at_executor)),
        ("caller_us", median(at_caller)),
        ("message_us", median(requests)),
        ("raw_us", executor.link_latency().as_nanos() as f64 / 1e3),
    ])
}
