//! Two sides that write different bytes of the same pages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use farmem::pushdown::{Coherence, Executor};

use super::data::{PAGE_WORDS, Random, SHARED_PAGES, shared_pages};
use super::settings::{Measured, Settings, named, setting};
use crate::teleport::part;

/// Writes of each side.
const FALSE_SHARING_WRITES: u64 = 2_000_000;

#[allow(unsafe_code, reason = "only a caller can answer for a closure whose call may fail in the middle")]
pub(super) fn false_sharing(executor: &Executor, settings: &Settings<'_>) -> Measured {
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
    Ok(named([("seconds", seconds)]))
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
