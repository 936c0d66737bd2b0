//! The order in which spans of pages give up memory: second chance over spans.
//!
//! The processor notes which pages are accessed, but shows it to the kernel alone. User space sees faults: a page that is
//! resident can be in use for hours without one. So the order rests on two signs of use that faults give:
//! * A *span* of consecutive pages into which a page was filled since the clock last looked at it goes round once more.
//!   Without repeated use that is first in, first out; a stream gives up what lies furthest behind it.
//! * A *page* that comes back within as many evictions as the budget has pages was evicted too early. The page is marked
//!   as hot, and survives the next pass ([`table`](super)).
//!
//! Spans, not pages, because the kernel's price for taking pages away is a price for each call: with a second thread running,
//! a page costs 11 to 13 µs by itself and below 1 µs in a range of 64 KiB (ADR 52).

use std::collections::VecDeque;

/// The number of a span in its region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpanNumber(pub u32);

#[derive(Clone, Copy, Default)]
struct Span {
    resident: u32,
    /// A page was filled since the clock looked at it.
    is_fresh: bool,
    is_queued: bool,
}

/// The spans of a region that have resident pages.
#[derive(Clone)]
pub struct SpanQueue {
    spans: Vec<Span>,
    queue: VecDeque<SpanNumber>,
}

impl SpanQueue {
    /// An empty queue for a region of `spans` spans.
    pub fn new(spans: u32) -> SpanQueue {
        SpanQueue { spans: vec![Span::default(); spans as usize], queue: VecDeque::new() }
    }

    /// A page of the span is resident now.
    pub fn add(&mut self, number: SpanNumber) {
        let span = &mut self.spans[number.0 as usize];
        span.resident += 1;
        span.is_fresh = true;
        if !span.is_queued {
            span.is_queued = true;
            self.queue.push_back(number);
        }
    }

    /// A resident page of the span is resident no more.
    pub fn remove(&mut self, number: SpanNumber) {
        let span = &mut self.spans[number.0 as usize];
        span.resident = span.resident.checked_sub(1).expect("a page is removed once for each time it was added");
    }

    /// The next span that gives up pages; it goes to the end of the queue. Each span with resident pages comes up within
    /// twice as many calls as the queue is long.
    pub fn next_span(&mut self) -> Option<SpanNumber> {
        // In the first round every span may be fresh; in the second none is.
        for _ in 0..=2 * self.queue.len() {
            let number = self.queue.pop_front()?;
            let span = &mut self.spans[number.0 as usize];
            if span.resident == 0 {
                span.is_queued = false;
                continue;
            }
            self.queue.push_back(number);
            if !std::mem::take(&mut span.is_fresh) {
                return Some(number);
            }
        }
        None
    }

    /// Spans that are queued.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_that_was_filled_since_goes_round_once_more() {
        let mut queue = SpanQueue::new(4);
        assert_eq!(queue.next_span(), None);
        (0..3).for_each(|span| queue.add(SpanNumber(span)));
        assert_eq!(queue.next_span(), Some(SpanNumber(0)), "all are fresh, so the oldest is first");
        queue.add(SpanNumber(1));
        assert_eq!(queue.next_span(), Some(SpanNumber(2)), "1 was filled since");
        queue.remove(SpanNumber(0));
        assert_eq!(queue.next_span(), Some(SpanNumber(1)), "0 has no page any more");
        assert_eq!(queue.queued(), 2);
    }
}
