//! Recognises streams: faults that walk upwards through the pages of a region.
//!
//! 1. A fault that continues no stream begins one, in the place of the stream that was idle for longest.
//! 2. A fault that continues a stream doubles its window, up to a maximum, and asks for that many pages behind the pages
//!    that were asked for before.
//! 3. In the middle of a large window one page, the *trigger*, is left out. The program faults on it while the second
//!    half is still ahead, so the next window is fetched while the program works on this one. Without it the program
//!    would wait once a window: a page that is there causes no fault, and user space sees no other sign of use.
//!
//! A stream walks upwards by one page; strides and backward walks are fetched page by page.

use crate::page::{PageNumber, PageRange};

/// Streams that are followed at the same time in one region.
pub const STREAMS_MAX: usize = 16;
/// Pages of the largest window: 1 MiB.
pub const WINDOW_PAGES_MAX: u32 = 256;
/// Pages of the smallest window that has a trigger.
const TRIGGERED_PAGES_MIN: u32 = 8;

#[derive(Clone, Copy)]
struct Stream {
    /// The page that was left out, or `next` if none was.
    trigger: u32,
    /// The page behind all that were asked for.
    next: u32,
    window: u32,
    /// The first page of the last window, for the count of hits.
    window_start: u32,
    used_at: u64,
}

/// The streams of one region.
#[derive(Clone)]
pub struct StreamTable {
    streams: Vec<Stream>,
    window_max: u32,
    clock: u64,
}

/// The pages to fetch ahead of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadAhead {
    /// All of them, the trigger included.
    pub range: PageRange,
    /// A page among them that is not fetched.
    pub trigger: Option<PageNumber>,
    /// Pages of earlier windows that the stream has reached since its last fault.
    pub passed: PageRange,
}

impl StreamTable {
    /// Without streams; windows have at most `window_max` pages, and at most [`WINDOW_PAGES_MAX`].
    pub fn new(window_max: u32) -> StreamTable {
        StreamTable { streams: Vec::new(), window_max: window_max.min(WINDOW_PAGES_MAX), clock: 0 }
    }

    /// Notes a fault. Returns the pages to fetch besides it, if it continues a stream; they may lie behind the region's
    /// last page.
    pub fn note_fault(&mut self, page: PageNumber) -> Option<ReadAhead> {
        self.clock += 1;
        let (clock, window_max) = (self.clock, self.window_max);
        let continues = |stream: &&mut Stream| (stream.window_start..=stream.next).contains(&page.0);
        let Some(stream) = self.streams.iter_mut().find(continues) else {
            let next = page.0 + 1;
            let stream = Stream { trigger: next, next, window: 0, window_start: next, used_at: clock };
            if self.streams.len() < STREAMS_MAX {
                self.streams.push(stream);
            } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used_at) {
                *oldest = stream;
            }
            return None;
        };
        let passed = PageRange { first: PageNumber(stream.window_start), pages: page.0 + 1 - stream.window_start };
        // A fault before the trigger: the window was not fetched whole, for want of room.
        let is_short = page.0 < stream.trigger;
        let window = if is_short { stream.window } else { (stream.window * 2).clamp(2, window_max.max(2)) };
        let first = if is_short { page.0 + 1 } else { stream.next.max(page.0 + 1) };
        let trigger = (window >= TRIGGERED_PAGES_MIN).then_some(first + window / 2);
        *stream = Stream {
            trigger: trigger.unwrap_or(first + window),
            next: first + window,
            window,
            window_start: page.0 + 1,
            used_at: clock,
        };
        let range = PageRange { first: PageNumber(first), pages: window };
        Some(ReadAhead { range, trigger: trigger.map(PageNumber), passed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_doubles_its_window_and_faults_once_a_window() {
        let mut streams = StreamTable::new(64);
        let mut resident = vec![false; 4096];
        let (mut faults, mut fetched) = (0, 0);
        for page in 0..4096_u32 {
            if resident[page as usize] {
                continue;
            }
            faults += 1;
            resident[page as usize] = true;
            let Some(ahead) = streams.note_fault(PageNumber(page)) else { continue };
            assert!(ahead.range.pages <= 64);
            for page in ahead.range.iter().filter(|page| Some(*page) != ahead.trigger && page.0 < 4096) {
                assert!(!std::mem::replace(&mut resident[page.index()], true), "page {} is fetched twice", page.0);
                fetched += 1;
            }
        }
        assert!((64..=80).contains(&faults), "{faults} faults");
        assert_eq!(faults + fetched, 4096);
    }

    #[test]
    fn a_window_that_was_not_fetched_whole_is_asked_for_again() {
        let mut streams = StreamTable::new(64);
        let ahead = [0, 1, 4].map(|page| streams.note_fault(PageNumber(page)).map(|ahead| ahead.range));
        assert_eq!(ahead[2], Some(PageRange { first: PageNumber(5), pages: 4 }));
        let again = streams.note_fault(PageNumber(6)).map(|ahead| ahead.range);
        assert_eq!(again, Some(PageRange { first: PageNumber(7), pages: 4 }));
    }

    #[test]
    fn random_faults_fetch_hardly_anything_ahead() {
        let mut streams = StreamTable::new(64);
        let mut number = 1_u64;
        let ahead = (0..10_000).filter(|_| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            streams.note_fault(PageNumber((number >> 40) as u32)).is_some()
        });
        assert!(ahead.count() < 10);
    }

    #[test]
    fn several_streams_are_followed_at_the_same_time() {
        let mut streams = StreamTable::new(64);
        for step in 0..4 {
            for stream in 0..STREAMS_MAX as u32 {
                let page = PageNumber(stream * 100_000 + [0, 1, 4, 9][step]);
                assert_eq!(streams.note_fault(page).is_some(), step > 0, "step {step} of stream {stream}");
            }
        }
    }
}
