//! Which pages a function of a thread has needed so far, to ask for them before it does.
//!
//! A page that a function needs costs it a fault and a round trip; pages that are asked for together cost far less each. Most calls of
//! a function need some pages every time: its part of the stack, the thread block, the allocator's state, what its argument names.
//! Which pages those are is learnt in runs that ask for nothing ahead: the first two, and one now and then. What a function needed in
//! the last two of these it is expected to need again. So a page is never asked for in vain for long, whatever the function does.

use std::collections::BTreeMap;

use page_coherence::{Access, PageNumber};

/// One run of this number is for learning.
const LEARN_EVERY: u64 = 32;
/// Functions of threads that are remembered. If there are more, all are forgotten.
const FUNCTIONS_MAX: usize = 256;
/// Pages of a function that are remembered.
const PAGES_MAX: usize = 32;

/// A function and the thread block of the thread that calls it: its stack and its variables are its own.
pub type Runner = (u64, u64);

/// What is known of functions.
#[derive(Default)]
pub struct History {
    functions: BTreeMap<Runner, Function>,
}

#[derive(Default)]
struct Function {
    runs: u64,
    is_learning: bool,
    /// What it has needed in the run that is for learning, and in the one before that.
    needed: BTreeMap<PageNumber, Access>,
    needed_before: BTreeMap<PageNumber, Access>,
    expected: Vec<(PageNumber, Access)>,
}

impl History {
    /// A run of a function begins; the pages that it is expected to need, and how.
    pub fn begin(&mut self, function: Runner) -> Vec<(PageNumber, Access)> {
        if self.functions.len() == FUNCTIONS_MAX && !self.functions.contains_key(&function) {
            self.functions.clear();
        }
        let known = self.functions.entry(function).or_default();
        if known.is_learning {
            let before = std::mem::take(&mut known.needed_before);
            let both = known.needed.iter().filter_map(|(page, access)| {
                let access_before = before.get(page)?;
                Some((*page, *access.max(access_before)))
            });
            known.expected = both.collect();
            known.needed_before = std::mem::take(&mut known.needed);
        }
        known.is_learning = known.runs < 2 || known.runs.is_multiple_of(LEARN_EVERY);
        known.runs += 1;
        if known.is_learning { Vec::new() } else { known.expected.clone() }
    }

    /// A run of a function needed a page that was not there.
    pub fn note(&mut self, function: Runner, page: PageNumber, access: Access) {
        let Some(known) = self.functions.get_mut(&function).filter(|known| known.is_learning) else { return };
        if known.needed.len() < PAGES_MAX || known.needed.contains_key(&page) {
            let noted = known.needed.entry(page).or_insert(access);
            *noted = access.max(*noted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTION: Runner = (0x40_0000, 0x7f00_0000_0740);

    /// Runs a function that needs these pages; those that were asked for ahead do not fault.
    fn run(history: &mut History, needed: &[u64]) -> Vec<u64> {
        let expected: Vec<u64> = history.begin(FUNCTION).into_iter().map(|(page, _)| page.0).collect();
        for page in needed.iter().filter(|page| !expected.contains(page)) {
            history.note(FUNCTION, PageNumber(*page), Access::Write);
        }
        expected
    }

    #[test]
    fn pages_that_each_run_needs_are_expected_and_others_are_not() {
        let mut history = History::default();
        for n in 0..200 {
            let expected = run(&mut history, &[7, 100 + n, 9]);
            let is_learning = n < 2 || n % LEARN_EVERY == 0;
            assert_eq!(expected, if is_learning { vec![] } else { vec![7, 9] }, "run {n}");
        }
    }

    #[test]
    fn a_page_that_is_needed_no_more_is_expected_no_more() {
        let mut history = History::default();
        for _ in 0..10 {
            run(&mut history, &[7, 9]);
        }
        let runs = (0..2 * LEARN_EVERY).map(|_| run(&mut history, &[9])).skip(LEARN_EVERY as usize);
        assert!(runs.filter(|expected| !expected.is_empty()).all(|expected| expected == [9]));
    }

    #[test]
    fn a_page_that_is_read_and_then_written_is_asked_for_to_write() {
        let mut history = History::default();
        for _ in 0..2 {
            assert!(history.begin(FUNCTION).is_empty());
            history.note(FUNCTION, PageNumber(3), Access::Read);
            history.note(FUNCTION, PageNumber(3), Access::Write);
            history.note(FUNCTION, PageNumber(4), Access::Read);
        }
        assert_eq!(history.begin(FUNCTION), [(PageNumber(3), Access::Write), (PageNumber(4), Access::Read)]);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut history = History::default();
        for function in (0..3 * FUNCTIONS_MAX as u64).map(|thread| (0x40_0000, thread)) {
            history.begin(function);
            (0..100).for_each(|page| history.note(function, PageNumber(page), Access::Read));
            assert!(history.functions.len() <= FUNCTIONS_MAX);
        }
        assert!(history.functions.values().all(|known| known.needed.len() == PAGES_MAX));
    }
}
