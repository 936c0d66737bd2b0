//! What calls cost, by their parts.

use std::cell::Cell;
use std::ffi::c_void;
use std::hint::black_box;
use std::time::{Duration, Instant};

use farmem::pushdown::{CallTimes, Executor, PushdownError};
use measurement::interval::median;

use super::data::{Data, PAGE_WORDS};
use super::settings::{Measured, Settings, named, setting};
use crate::teleport::part;

/// For how long calls and messages that follow at once are not counted: the scheduler takes some milliseconds to give two threads that
/// never sleep a processor each. On one processor a message takes a switch of threads, which is longer than the link.
pub(super) const WARM_UP: Duration = Duration::from_millis(300);
/// Calls that are not counted, and those that are.
const CALLS_BEFORE: usize = 200;
const CALLS: usize = 2_000;
const CALLS_ASLEEP: usize = 300;
pub(super) const CALLS_TOUCH: usize = 5;
/// After such a pause both sides sleep.
const PAUSE: Duration = Duration::from_millis(2);
/// The function that touches pages writes one page in 64.
const TOUCH_EVERY: usize = 64;

thread_local! {
    static CALLED: Cell<u64> = const { Cell::new(0) };
}

/// Times of calls, by their parts.
pub(super) fn calls(executor: &Executor, settings: &Settings<'_>) -> Measured {
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
    let begun = Instant::now();
    while !is_asleep && function != "touch" && begun.elapsed() < WARM_UP {
        call_empty(executor).map_err(|error| part(&error))?;
    }
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
    Ok(named([
        ("total", median(counted.iter().map(|(total, ..)| us(*total)))),
        ("pre_sync", median(counted.iter().map(|(_, pre_sync, _, times)| us(*pre_sync + times.before)))),
        ("request", of(|times| times.request)),
        ("set_up", of(|times| times.set_up)),
        ("run", of(|times| times.run)),
        ("online_sync", of(|times| times.online_sync)),
        ("response", of(|times| times.response)),
        ("post_sync", median(counted.iter().map(|(_, _, post_sync, times)| us(*post_sync + times.after)))),
    ]))
}

extern "C" fn empty(_: *mut c_void) {}

/// A call that moves no page.
#[allow(unsafe_code, reason = "only a caller can answer for a function whose call may fail in the middle")]
pub(super) fn call_empty(executor: &Executor) -> Result<(), PushdownError> {
    // SAFETY: the function does nothing.
    unsafe { executor.try_call_function(empty, std::ptr::null_mut()) }
}

/// A variable of the caller's stack, a thread-local one, the allocator and formatted output.
fn typical(executor: &Executor) -> Result<(), PushdownError> {
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
