//! The simulated storage: processes that the peers share, and the copies that their primaries keep up there.

use std::collections::BTreeMap;
use std::time::Duration;

use base::rt::simulation::Prng;
use manager::{Action, ManagerSettings, Outcome, PoolView, StorageCopy, StorageNodeView, StorageView};

/// The copies that each primary keeps.
pub const WANTED: usize = 2;
const PROCESSES: usize = 4;
/// How long a process takes until it is ready, and a copy until it is complete.
const STARTING: Duration = Duration::from_millis(700);
const BUILDING: Duration = Duration::from_secs(1);
/// The silence after which a primary leaves a copy out.
const LOST_AFTER: Duration = Duration::from_millis(400);
/// A decision may be recorded this much later than it was made, when a disk has failed in between.
const DELAY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
struct SimulatedProcess {
    runs: bool,
    /// An operator has had it started.
    is_kept: bool,
    ready_at: Duration,
    frozen_until: Duration,
    answered: Duration,
}

impl SimulatedProcess {
    fn answers(&self, now: Duration) -> bool {
        self.runs && self.ready_at <= now && self.frozen_until <= now
    }
}

/// A peer's copies: when each is complete.
#[derive(Clone, Debug, Default)]
struct SimulatedCopies {
    copies: BTreeMap<String, Duration>,
    /// Its primary answers nobody until then, and changes nothing.
    silent_until: Duration,
    /// It is so busy that it answers a manager every other second only.
    is_busy: bool,
    /// The copies that a manager was last told of.
    reported: Option<BTreeMap<String, StorageCopy>>,
    /// The process that is tried next.
    turn: usize,
    /// Since when a manager has been shown that it lacks a copy.
    lacks_since: Option<Duration>,
    /// Since when its primary has not been heard.
    silent_since: Option<Duration>,
    /// When that had last been so for long enough.
    may_start_at: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct SimulatedStorage {
    processes: BTreeMap<String, SimulatedProcess>,
    peers: BTreeMap<String, SimulatedCopies>,
    /// When a manager was last shown that nobody needs a process.
    may_stop_at: BTreeMap<String, Duration>,
    pub started: u64,
    pub stopped: u64,
}

impl SimulatedStorage {
    pub fn new<'a>(peers: impl Iterator<Item = &'a String>) -> SimulatedStorage {
        let zero = Duration::ZERO;
        let process =
            SimulatedProcess { runs: true, is_kept: false, ready_at: zero, frozen_until: zero, answered: zero };
        let names = (1..=PROCESSES).map(|number| format!("storage-{number}"));
        let peers = peers.map(|name| (name.clone(), SimulatedCopies::default())).collect();
        SimulatedStorage {
            processes: names.map(|name| (name, process.clone())).collect(),
            peers,
            may_stop_at: BTreeMap::new(),
            started: 0,
            stopped: 0,
        }
    }

    /// Primaries leave out what is silent, and build what they lack.
    pub fn advance(&mut self, now: Duration) {
        let names: Vec<String> = self.processes.keys().cloned().collect();
        let processes = &mut self.processes;
        for process in processes.values_mut().filter(|process| process.answers(now)) {
            process.answered = now;
        }
        for peer in self.peers.values_mut().filter(|peer| peer.silent_until <= now) {
            let is_lost = |name: &String| now - processes[name].answered >= LOST_AFTER;
            peer.copies.retain(|name, complete_at| *complete_at <= now || !is_lost(name));
            let is_whole = |at: &Duration| *at <= now;
            let left = |peer: &SimulatedCopies| peer.copies.values().filter(|at| is_whole(at)).count();
            for name in &names {
                // The last complete copy is waited for.
                if peer.copies.get(name).is_some_and(is_whole) && is_lost(name) && left(peer) > 1 {
                    peer.copies.remove(name);
                }
            }
            if left(peer) < WANTED && peer.copies.values().all(is_whole) {
                let free: Vec<&String> = names.iter().filter(|name| !peer.copies.contains_key(*name)).collect();
                peer.turn += 1;
                let tried = free[peer.turn % free.len()];
                if processes[tried].answers(now) {
                    peer.copies.insert(tried.clone(), now + BUILDING);
                }
            }
        }
    }

    /// Faults of processes and primaries.
    pub fn disturb(&mut self, now: Duration, rng: &mut Prng) {
        let (drawn, long) = (rng.number(), Duration::from_millis(rng.number() % 9000));
        let index = (drawn >> 32) as usize;
        let process = self.processes.values_mut().nth(index % PROCESSES).expect("it is there");
        match drawn % 300 {
            0..4 => process.frozen_until = now + long,
            4..7 if process.runs => (process.ready_at, process.frozen_until) = (now + STARTING, Duration::ZERO),
            // An operator has it run for a while.
            9 => process.is_kept = true,
            10..14 => process.is_kept = false,
            14..16 => {
                let count = self.peers.len();
                let peer = self.peers.values_mut().nth(index % count).expect("it is there");
                peer.is_busy = !peer.is_busy;
            }
            7..9 => {
                let count = self.peers.len();
                let peer = self.peers.values_mut().nth(index % count).expect("it is there");
                peer.silent_until = now + long;
            }
            _ => {}
        }
    }

    /// Faults end; at most one process never answers again, and primaries that are busy stay so.
    pub fn calm(&mut self, rng: &mut Prng) {
        let lost = rng.number() as usize % (2 * PROCESSES);
        for (index, process) in self.processes.values_mut().enumerate() {
            process.frozen_until = if index == lost { Duration::MAX } else { Duration::ZERO };
            process.is_kept = false;
        }
    }

    /// What a manager is shown of a peer. If its primary does not answer, that is nothing, or what it said before.
    pub fn view(&mut self, peer: &str, now: Duration, can_hear: bool) -> Option<StorageView> {
        let known = self.peers.get_mut(peer).expect("it is simulated");
        let is_late = known.is_busy && now.as_secs().is_multiple_of(2);
        let heard = can_hear && known.silent_until <= now && !is_late;
        // A manager that has just started knows nothing.
        if !heard && !is_late && known.turn.is_multiple_of(2) {
            return None;
        }
        if heard {
            let state = |at: &Duration| if *at > now { StorageCopy::Building } else { StorageCopy::Complete };
            known.reported = Some(known.copies.iter().map(|(name, at)| (name.clone(), state(at))).collect());
        }
        let copies = known.reported.as_ref()?;
        let nodes = self.processes.iter().map(|(name, process)| {
            let copy = copies.get(name).copied().unwrap_or(StorageCopy::None);
            StorageNodeView { name: name.clone(), runs: process.runs, is_kept: process.is_kept, copy }
        });
        Some(StorageView { heard, wanted: WANTED, nodes: nodes.collect() })
    }

    /// A manager has been shown this.
    pub fn shown(&mut self, view: &PoolView, now: Duration, settings: &ManagerSettings) {
        let with = |storage: &StorageView, copy| storage.nodes.iter().filter(|node| node.copy == copy).count();
        let lacks = |storage: &StorageView| {
            with(storage, StorageCopy::Complete) < WANTED && with(storage, StorageCopy::Building) == 0
        };
        let mut is_calm = true;
        for (name, peer) in view {
            let known = self.peers.get_mut(name).expect("it is simulated");
            let lacking = peer.storage.as_ref().is_some_and(lacks);
            known.lacks_since = lacking.then(|| known.lacks_since.unwrap_or(now));
            let silent = peer.storage.as_ref().is_some_and(|storage| !storage.heard);
            known.silent_since = silent.then(|| known.silent_since.unwrap_or(now));
            let is_long = |since: Option<Duration>, long| since.is_some_and(|since| now - since >= long);
            let storage = &settings.storage;
            if is_long(known.lacks_since, storage.lost_for) || is_long(known.silent_since, storage.silent_for) {
                known.may_start_at = Some(now);
            }
            let is_whole = |storage: &StorageView| storage.heard && with(storage, StorageCopy::Complete) >= WANTED;
            is_calm &= peer.storage.as_ref().is_some_and(is_whole);
        }
        for name in self.processes.keys().filter(|_| is_calm) {
            let mut nodes = view.values().filter_map(|peer| peer.storage.as_ref()).flat_map(|storage| &storage.nodes);
            if nodes.all(|node| node.name != *name || (node.copy == StorageCopy::None && !node.is_kept)) {
                self.may_stop_at.insert(name.clone(), now);
            }
        }
    }

    /// What is wrong with a decision.
    pub fn check(&self, peer: &str, action: &Action, now: Duration) -> Option<String> {
        let is_recent = |at: Option<&Duration>| at.is_some_and(|at| now - *at <= DELAY);
        match action {
            Action::StartStorage { node } if !is_recent(self.peers[peer].may_start_at.as_ref()) => {
                Some(format!("{node} is started although {peer} has not lacked a copy for long"))
            }
            Action::StopStorage { node } if !is_recent(self.may_stop_at.get(node)) => {
                Some(format!("{node} is stopped, and a peer may need it"))
            }
            _ => None,
        }
    }

    pub fn start(&mut self, node: &str, now: Duration) -> Outcome {
        let process = self.processes.get_mut(node).expect("it is simulated");
        if !std::mem::replace(&mut process.runs, true) {
            (process.ready_at, process.frozen_until) = (now + STARTING, Duration::ZERO);
            self.started += 1;
        }
        if process.answers(now) { Outcome::Done } else { Outcome::Pending }
    }

    pub fn stop(&mut self, node: &str) -> Outcome {
        // The decision may be old.
        if self.peers.values().any(|peer| peer.copies.contains_key(node)) || self.processes[node].is_kept {
            return Outcome::Rejected(format!("{node} is needed"));
        }
        let process = self.processes.get_mut(node).expect("it is simulated");
        self.stopped += u64::from(std::mem::replace(&mut process.runs, false));
        Outcome::Done
    }

    /// What is not as it should be in the end.
    pub fn check_end(&self, now: Duration) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, peer) in &self.peers {
            let whole = peer.copies.iter().filter(|(name, at)| **at <= now && self.processes[*name].answers(now));
            if whole.count() < WANTED {
                wrong.push(format!("{name} has the copies {:?}, of processes {:?}", peer.copies, self.processes));
            }
        }
        for (name, process) in self.processes.iter().filter(|(_, process)| process.runs) {
            if self.peers.values().all(|peer| !peer.copies.contains_key(name)) {
                wrong.push(format!("{name} runs, and has no copy: {process:?}"));
            }
        }
        wrong
    }
}
