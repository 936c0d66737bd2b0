//! What the checkers know of memory: the newest values, and how old a value a side may still read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use page_coherence::CoherenceMode;

use crate::system::{Side, System, WORDS, Word};

/// A discard on its way to the executor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Discarded {
    pub pages: Range<u64>,
    pub zeros: u32,
    /// The newest value of each word there before the discard. The executor reads these, and its writes go here.
    pub before: BTreeMap<Word, u32>,
}

/// What the checkers know.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Truth {
    /// The newest value of each word.
    pub newest: BTreeMap<Word, u32>,
    /// The discards on their way, in order.
    pub discards: VecDeque<Discarded>,
    /// Values that the executor has written to a page whose discard was on its way: nobody reads them once it has arrived. Kept only
    /// where floors are followed.
    pub discarded_values: BTreeSet<u32>,
    /// Of each side and word of the other: the oldest value that it may still read.
    pub floor: BTreeMap<(Side, Word), u32>,
    /// Snapshots on their way to a side: the message after whose delivery they bind, and the values.
    pub releases: Vec<(Side, u64, BTreeMap<Word, u32>)>,
    /// Snapshots that have arrived at the caller, and bind at its next synchronisation point.
    pub arrived: BTreeMap<Word, u32>,
}

impl Truth {
    /// The values that are newest for a side at a page.
    pub fn newest_at(&self, side: Side, page: u64) -> &BTreeMap<Word, u32> {
        match self.discards.iter().find(|discard| side == Side::Executor && discard.pages.contains(&page)) {
            Some(discard) => &discard.before,
            None => &self.newest,
        }
    }

    /// Whether a discard of the page is on its way to the executor.
    pub fn is_discarding(&self, page: u64) -> bool {
        self.discards.iter().any(|discard| discard.pages.contains(&page))
    }

    /// A side has written a word.
    pub fn note_write(&mut self, side: Side, word: Word, value: u32, follows_floors: bool) {
        match self.discards.iter_mut().find(|discard| side == Side::Executor && discard.pages.contains(&word.0)) {
            Some(discard) => {
                discard.before.insert(word, value);
                if follows_floors {
                    self.discarded_values.insert(value);
                }
            }
            None => _ = self.newest.insert(word, value),
        }
    }
}

impl System {
    /// A side has reached a synchronisation point: what it wrote binds the other side once the messages of the step have arrived.
    pub fn release(&mut self, side: Side) {
        if self.follows_floors {
            let (other, is_executor) = match side {
                Side::Caller => (Side::Executor, false),
                Side::Executor => (Side::Caller, true),
            };
            let own = |place: usize| (place >= WORDS / 2) == is_executor;
            let all = self.truth.newest.iter().filter(|((_, place), _)| own(*place) || self.mode == CoherenceMode::Pso);
            let values = all.map(|(word, value)| (*word, *value)).collect();
            // The number of its last message is not known yet: see `mark_releases`.
            self.truth.releases.push((other, u64::MAX, values));
        }
    }

    pub fn mark_releases(&mut self) {
        let sent = self.sent;
        for (side, last, _) in self.truth.releases.iter_mut().filter(|(_, last, _)| *last == u64::MAX) {
            *last = sent[usize::from(*side == Side::Caller)];
        }
        self.bind_releases();
    }

    pub fn bind_releases(&mut self) {
        let arrived = self.arrived;
        let is_here = |release: &mut (Side, u64, _)| release.1 <= arrived[usize::from(release.0 == Side::Caller)];
        let here: Vec<_> = self.truth.releases.extract_if(.., is_here).collect();
        for (side, _, values) in here {
            for (word, value) in values {
                let shares = matches!(self.mode, CoherenceMode::WeakOrdering | CoherenceMode::Off);
                let entry = match side {
                    // The caller's writes are there when they arrive, with shared writes; a reader drops old copies otherwise.
                    Side::Executor if shares => self.truth.floor.entry((side, word)),
                    Side::Executor => continue,
                    Side::Caller => {
                        let known = self.truth.arrived.entry(word).or_default();
                        *known = (*known).max(value);
                        continue;
                    }
                };
                let floor = entry.or_default();
                *floor = (*floor).max(value);
            }
        }
    }

    /// The caller drops its old copies: what has arrived binds it.
    pub fn acquire_at_caller(&mut self) {
        match self.mode {
            CoherenceMode::Pso => self.acquire(Side::Caller),
            CoherenceMode::WeakOrdering | CoherenceMode::Off => {
                for (word, value) in std::mem::take(&mut self.truth.arrived) {
                    let floor = self.truth.floor.entry((Side::Caller, word)).or_default();
                    *floor = (*floor).max(value);
                }
            }
            CoherenceMode::Coherent => {}
        }
    }

    /// All writes bind a side.
    pub fn acquire(&mut self, side: Side) {
        if self.follows_floors {
            for word in self.truth.newest.keys() {
                let newest = self.truth.newest_at(side, word.0).get(word).copied().unwrap_or(0);
                self.truth.floor.insert((side, *word), newest);
            }
        }
    }
}
