//! Checks the entries that nodes append and show, and their leaders, against the guarantees of every engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use base::rt::simulation::Sim;
use base::{Bytes, Term};

use crate::LogStore;

/// Collects reports from the tasks that append entries and from those that watch for entries to show.
pub struct LogChecker {
    sim: Sim,
    state: Mutex<CheckerState>,
}

#[derive(Default)]
struct CheckerState {
    /// Entries that were passed to engines, and their positions.
    given: BTreeMap<Bytes, u64>,
    next: u64,
    leaders: BTreeMap<Term, String>,
    /// The entry shown at each position, by any CPU node at any time.
    shown: BTreeMap<u64, Bytes>,
    /// The height up to which each CPU node has shown entries in this incarnation.
    heights: BTreeMap<String, u64>,
    /// Positions whose appender learned that they are committed.
    acknowledged: BTreeSet<u64>,
    failed: Option<String>,
}

impl LogChecker {
    /// Nothing has been appended yet. Reports of leaders become notes in the trace of the run.
    pub fn new(sim: &Sim) -> LogChecker {
        LogChecker { sim: sim.clone(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, CheckerState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A new entry for a position.
    pub fn entry(&self, position: u64, bytes: usize) -> Bytes {
        let mut state = self.lock();
        state.next += 1;
        let mut entry = format!("entry {} for {position} ", state.next).into_bytes();
        entry.resize(entry.len() + bytes, b'.');
        let entry = Bytes::from(entry);
        state.given.insert(entry.clone(), position);
        entry
    }

    /// A CPU node learned that it is the leader.
    pub fn leads(&self, who: &str, term: Term, next: u64, log_store: &dyn LogStore) {
        self.sim.note(format!("{who} leads in {term} from {next}"));
        let mut state = self.lock();
        let other = state.leaders.insert(term, who.to_owned());
        assert!(other.as_deref().is_none_or(|other| other == who), "one leader: {other:?} and {who} in {term}");
        // Every entry shown so far lies before its first one.
        let shown = state.shown.keys().next_back().map_or(1, |last| last + 1);
        assert!(
            next >= shown || state.leaders.keys().next_back().is_some_and(|last| *last > term),
            "lost: {who} goes on at {next} in {term}, and {shown} entries were shown"
        );
        assert!(log_store.height() >= next, "readable: {who} leads from {next} and has {}", log_store.height());
    }

    /// A CPU node may show an entry.
    pub fn shows(&self, who: &str, position: u64, entry: Option<Bytes>) {
        let entry = entry.unwrap_or_else(|| panic!("readable: {who} is to show {position} and does not have it"));
        let mut state = self.lock();
        match state.shown.get(&position) {
            Some(before) => assert!(*before == entry, "one entry: {who} shows at {position} {entry:?}, not {before:?}"),
            None => {
                let given = state.given.get(&entry).copied();
                assert!(position == 0 || given == Some(position), "made up: {who} shows at {position} {entry:?}");
                state.shown.insert(position, entry);
            }
        }
        let height = state.heights.entry(who.to_owned()).or_default();
        *height = (*height).max(position + 1);
    }

    /// A CPU node starts.
    pub fn starts(&self, who: &str) {
        self.lock().heights.remove(who);
    }

    /// The appender of an entry knows that it is committed.
    pub fn acknowledges(&self, position: u64, entry: &Bytes) {
        let mut state = self.lock();
        let shown = state.shown.get(&position);
        assert!(shown == Some(entry), "one entry: {shown:?} is shown at {position}, where {entry:?} was acknowledged");
        state.acknowledged.insert(position);
    }

    /// Records the first failure of a task that must not panic.
    pub fn fail(&self, why: String) {
        self.lock().failed.get_or_insert(why);
    }

    /// Panics if a failure was recorded ([`LogChecker::fail`]).
    pub fn check_failed(&self) {
        if let Some(why) = self.lock().failed.clone() {
            panic!("{why}");
        }
    }

    /// The number of entries shown so far.
    pub fn height(&self) -> u64 {
        self.lock().shown.keys().next_back().map_or(0, |last| last + 1)
    }

    /// The number of entries whose appender learned that they are committed.
    pub fn acknowledged(&self) -> u64 {
        self.lock().acknowledged.len() as u64
    }

    /// The height of each CPU node in this incarnation.
    pub fn heights(&self) -> BTreeMap<String, u64> {
        self.lock().heights.clone()
    }

    /// The leader of the greatest term.
    pub fn leader(&self) -> Option<String> {
        self.lock().leaders.values().next_back().cloned()
    }

    /// The number of terms in which a node was the leader.
    pub fn terms(&self) -> usize {
        self.lock().leaders.len()
    }

    /// Checks that there is no gap, and that every acknowledged entry is there.
    pub fn check_complete(&self) {
        let state = self.lock();
        for (expected, position) in state.shown.keys().enumerate() {
            assert_eq!(*position, expected as u64, "lost: nothing was ever shown at {expected}");
        }
        let missing = state.acknowledged.iter().find(|position| !state.shown.contains_key(position));
        assert_eq!(missing, None, "lost: an acknowledged entry");
    }
}
