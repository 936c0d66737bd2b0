//! What happens, held against what every engine promises.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use base::Bytes;
use base::rt::simulation::Sim;
use consensus::Term;
use consensus::ordered::Journal;

/// Told by whoever appends and by whoever watches what may be shown.
pub struct Truth {
    sim: Sim,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Entries that were given to engines, and the position.
    given: BTreeMap<Bytes, u64>,
    next: u64,
    leaders: BTreeMap<Term, String>,
    /// What was shown at each position, by anybody, ever.
    shown: BTreeMap<u64, Bytes>,
    /// What each processor has shown in this life.
    heights: BTreeMap<String, u64>,
    /// What whoever appended it was told is safe.
    acknowledged: BTreeSet<u64>,
    failed: Option<String>,
}

impl Truth {
    pub fn new(sim: &Sim) -> Truth {
        Truth { sim: sim.clone(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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

    /// A processor was told that it leads.
    pub fn leads(&self, who: &str, term: Term, next: u64, journal: &dyn Journal) {
        self.sim.note(format!("{who} leads in {term} from {next}"));
        let mut state = self.lock();
        let other = state.leaders.insert(term, who.to_owned());
        assert!(other.as_deref().is_none_or(|other| other == who), "one leader: {other:?} and {who} in {term}");
        // What was shown anywhere by now is behind it.
        let shown = state.shown.keys().next_back().map_or(1, |last| last + 1);
        assert!(
            next >= shown || state.leaders.keys().next_back().is_some_and(|last| *last > term),
            "lost: {who} goes on at {next} in {term}, and {shown} entries were shown"
        );
        assert!(journal.height() >= next, "readable: {who} leads from {next} and has {}", journal.height());
    }

    /// A processor may show an entry.
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

    /// A processor starts.
    pub fn starts(&self, who: &str) {
        self.lock().heights.remove(who);
    }

    /// Whoever appended an entry knows that it is safe.
    pub fn acknowledges(&self, position: u64, entry: &Bytes) {
        let mut state = self.lock();
        let shown = state.shown.get(&position);
        assert!(shown == Some(entry), "one entry: {shown:?} is shown at {position}, where {entry:?} was acknowledged");
        state.acknowledged.insert(position);
    }

    pub fn fail(&self, why: String) {
        self.lock().failed.get_or_insert(why);
    }

    pub fn check_failed(&self) {
        if let Some(why) = self.lock().failed.clone() {
            panic!("{why}");
        }
    }

    /// How many entries were ever shown.
    pub fn height(&self) -> u64 {
        self.lock().shown.keys().next_back().map_or(0, |last| last + 1)
    }

    /// How many whoever appended them was told of.
    pub fn acknowledged(&self) -> u64 {
        self.lock().acknowledged.len() as u64
    }

    /// How much each processor shows in this life.
    pub fn heights(&self) -> BTreeMap<String, u64> {
        self.lock().heights.clone()
    }

    /// Whoever leads in the greatest term.
    pub fn leader(&self) -> Option<String> {
        self.lock().leaders.values().next_back().cloned()
    }

    pub fn terms(&self) -> usize {
        self.lock().leaders.len()
    }

    /// No gap, and nothing acknowledged that is not there.
    pub fn check_whole(&self) {
        let state = self.lock();
        for (expected, position) in state.shown.keys().enumerate() {
            assert_eq!(*position, expected as u64, "lost: nothing was ever shown at {expected}");
        }
        let missing = state.acknowledged.iter().find(|position| !state.shown.contains_key(position));
        assert_eq!(missing, None, "lost: an acknowledged entry");
    }
}
