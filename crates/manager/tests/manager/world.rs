//! A simulated pool: peers with compute nodes and memory, a disk with the record, and checkers of everything that happens.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::rt::simulation::Prng;
use manager::{
    Action, DueIntent, Intent, ManagerError, ManagerRecord, ManagerSettings, MemoryView, NodeOrigin, NodeView, Outcome,
    PeerRecord, PeerView, Pool, PoolView, RecordStore,
};

use crate::stored::SimulatedStorage;

/// The quota with which a process starts.
pub const QUOTA_AT_START: u32 = 50;
/// Nodes of a peer's plan.
const PLANNED: usize = 2;
/// How long a launched process takes until it is ready.
const STARTING: Duration = Duration::from_millis(700);

/// Short pauses, so that a minute has many decisions.
pub fn settings() -> ManagerSettings {
    let (ms, s) = (Duration::from_millis, Duration::from_secs);
    let mut settings = ManagerSettings::default();
    settings.limits.nodes_max = 5;
    settings.limits.memory_max_bytes = 2 << 30;
    settings.memory.step_bytes = 64 << 20;
    (settings.compute.cold_for, settings.compute.down_pause) = (s(1), s(3));
    (settings.memory.period, settings.memory.pause, settings.memory.pause_max) = (s(1), s(4), s(8));
    (settings.storage.lost_for, settings.storage.silent_for, settings.storage.idle_for) = (s(2), s(3), s(4));
    (settings.silent_max, settings.launch_max, settings.drain_max) = (s(3), s(5), s(3));
    settings.retry_pause = ms(200);
    settings.check().expect("they have room");
    settings
}

/// A process of a compute node.
#[derive(Clone, Debug)]
pub struct SimulatedNode {
    pub origin: NodeOrigin,
    pub quota: u32,
    pub ready_at: Duration,
    pub frozen_until: Duration,
    /// Its last words: when, how busy, what waits.
    said: Option<(Duration, u32, u32)>,
    pub lies: bool,
    draining_until: Option<Duration>,
}

/// A peer as it really is.
#[derive(Clone, Debug)]
pub struct SimulatedPeer {
    pub nodes: BTreeMap<String, SimulatedNode>,
    pub has_quotas: bool,
    /// Processor time that its clients ask for, in percent of one processor.
    pub demand: u64,
    pub budget: u64,
    /// What its clients read, again and again; and reads each second.
    pub working_set: u64,
    pub reads: u64,
    /// Misses each second that no memory avoids.
    pub compulsory: u64,
    misses: f64,
    leased: u64,
}

impl SimulatedPeer {
    fn capacity(&self, now: Duration) -> u64 {
        let running = self.nodes.values().filter(|node| node.ready_at <= now && node.frozen_until <= now);
        running.map(|node| if self.has_quotas { u64::from(node.quota) } else { 100 }).sum()
    }

    /// How busy its nodes are, in percent.
    pub fn busy(&self, now: Duration) -> u64 {
        (self.demand * 100).checked_div(self.capacity(now)).unwrap_or(100)
    }

    /// Misses each second with a budget.
    fn misses_with(&self, budget: u64) -> u64 {
        let missing = self.working_set.saturating_sub(budget) as f64 / self.working_set as f64;
        (self.reads as f64 * missing) as u64 + self.compulsory
    }

    /// What its misses cost, in microseconds each second.
    pub fn cost(&self, settings: &ManagerSettings) -> u64 {
        self.misses_with(self.budget) * settings.memory.miss_us
    }

    pub fn used(&self) -> u64 {
        if self.compulsory > 0 { self.budget } else { self.budget.min(self.working_set) }
    }
}

/// How likely faults are, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub action: u64,
    pub disk: u64,
    pub report: u64,
    /// The manager hears nobody until then.
    pub cut_off_until: Duration,
}

pub struct World {
    pub settings: ManagerSettings,
    pub rng: Prng,
    pub now: Duration,
    pub peers: BTreeMap<String, SimulatedPeer>,
    pub storage: SimulatedStorage,
    pub disk: ManagerRecord,
    pub faults: Faults,
    /// Actions that are still on their way, with their intents' numbers.
    late: Vec<(Duration, String, Intent)>,
    /// The newest action that was executed on each node.
    newest: BTreeMap<String, u64>,
    /// The ages in the last view of the manager that acts, by node.
    ages: BTreeMap<String, Option<Duration>>,
    /// Whether a record could not be stored: what it announces next was decided before.
    is_delayed: bool,
    /// When the manager was last shown that a node is silent.
    silent: BTreeMap<String, Duration>,
    /// The last step of each peer, and the last step up: when, whether up.
    pub steps: BTreeMap<String, Vec<(Duration, bool)>>,
    /// When memory grew, what misses cost, and whether more memory than it had saves anything.
    pub growths: BTreeMap<String, Vec<(Duration, u64, bool)>>,
    next_seen: u64,
    pub executed: u64,
    /// Steps of the manager at which it may crash, so far; and the one at which it does.
    pub step: u64,
    pub crash_at: Option<u64>,
    pub violations: Vec<String>,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = Prng::new(seed);
        let mut peers = BTreeMap::new();
        for name in ["org1", "org2"] {
            let node = SimulatedNode::new(NodeOrigin::Planned, Duration::ZERO);
            let names = (1..=PLANNED).map(|number| node_name(name, number));
            let nodes = names.map(|name| (name, node.clone())).collect();
            let mut peer = SimulatedPeer {
                nodes,
                has_quotas: !rng.number().is_multiple_of(4),
                demand: 0,
                budget: 256 << 20,
                working_set: 1,
                reads: 0,
                compulsory: 0,
                misses: 0.0,
                leased: 0,
            };
            peer.draw_load(&mut rng);
            peers.insert(name.to_owned(), peer);
        }
        World {
            settings: settings(),
            rng,
            now: Duration::ZERO,
            storage: SimulatedStorage::new(peers.keys()),
            peers,
            disk: ManagerRecord::default(),
            faults: Faults::default(),
            late: Vec::new(),
            newest: BTreeMap::new(),
            ages: BTreeMap::new(),
            is_delayed: false,
            silent: BTreeMap::new(),
            steps: BTreeMap::new(),
            growths: BTreeMap::new(),
            next_seen: 0,
            executed: 0,
            step: 0,
            crash_at: None,
            violations: Vec::new(),
        }
    }

    pub fn chance(&mut self, thousandths: u64) -> bool {
        self.rng.number() % 1000 < thousandths
    }

    /// The record is lost: numbers start again.
    pub fn forget(&mut self) {
        (self.next_seen, self.newest) = (0, BTreeMap::new());
        self.late.clear();
    }

    fn wrong(&mut self, what: String) {
        let at = self.now.as_millis();
        self.violations.push(format!("at {at} ms: {what}"));
    }

    /// Time passes.
    pub fn advance(&mut self, by: Duration) {
        self.now += by;
        let now = self.now;
        let due: Vec<_> = self.late.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, peer, intent) in due {
            self.apply(&peer, &intent, false);
        }
        for peer in self.peers.values_mut() {
            let (busy, misses) = (peer.busy(now), peer.misses_with(peer.budget));
            peer.leased = peer.leased.max(peer.used()).min(peer.budget);
            peer.misses += misses as f64 * by.as_secs_f64();
            let queued = if busy > 100 { 20 } else { 0 };
            for node in peer.nodes.values_mut() {
                if node.ready_at > now || node.frozen_until > now || self.rng.number() % 1000 < self.faults.report {
                    continue;
                }
                let lie = |rng: &mut Prng, below: u64| (rng.number() % below) as u32;
                node.said = match node.lies {
                    true => Some((now, lie(&mut self.rng, 300), lie(&mut self.rng, 100_000))),
                    false => Some((now, busy.min(100) as u32, queued)),
                };
            }
            peer.nodes.retain(|_, node| node.draining_until.is_none_or(|end| end > now || node.frozen_until > now));
        }
        self.storage.advance(now);
        for (name, peer) in &self.peers {
            if peer.nodes.len() > self.settings.limits.nodes_max {
                let what = format!("{name} has {} nodes", peer.nodes.len());
                self.violations.push(format!("at {} ms: {what}", now.as_millis()));
            }
        }
    }

    /// Reads what a record announces that was not there before.
    fn check_decisions(&mut self, record: &ManagerRecord) {
        let from = std::mem::replace(&mut self.next_seen, record.next_intent);
        for (peer, after) in &record.peers {
            for intent in after.open.iter().filter(|open| open.number >= from) {
                let before = self.disk.peers.get(peer).cloned().unwrap_or_default();
                self.check_decision(peer, &before, after, &intent.action);
            }
        }
    }

    fn check_decision(&mut self, name: &str, before: &PeerRecord, after: &PeerRecord, action: &Action) {
        let limits = self.settings.limits;
        let peer = self.peers[name].clone();
        let is_up = match action {
            Action::Launch { .. } => {
                let fresh = |name: &String| self.ages.get(name).copied().flatten() <= Some(self.settings.fresh_for);
                let heard = |name: &String| self.ages.get(name).copied().flatten().is_some() && fresh(name);
                let smaller =
                    peer.nodes.iter().find(|(name, node)| heard(name) && node.quota < limits.quota_max_percent);
                if let Some((node, _)) = smaller.filter(|_| peer.has_quotas && !self.is_delayed) {
                    self.wrong(format!("{name} launches a node while {node} has less than it may"));
                }
                true
            }
            Action::SetQuota { node, percent } => {
                // A quota that the record has already is repaired.
                let known = after.nodes.get(node).and_then(|node| node.quota_percent);
                let Some(quota) = peer.nodes.get(node).map(|node| node.quota) else { return };
                if known == Some(*percent) || quota == *percent {
                    return;
                }
                *percent > quota
            }
            Action::Drain { node } => {
                let is_given_up = before.nodes.get(node).is_none_or(|node| node.draining)
                    || before.open.iter().any(|open| open.action == Action::Launch { node: node.clone() })
                    // The record that says so may have been stored a little later.
                    || self.silent.get(node).is_some_and(|at| self.now - *at <= Duration::from_secs(1));
                if peer.nodes.get(node).is_some_and(|node| node.origin != NodeOrigin::Managed) {
                    self.wrong(format!("{node} is drained, and no manager launched it"));
                }
                if is_given_up {
                    return;
                }
                false
            }
            Action::SetMemory { bytes } => {
                if *bytes > peer.budget {
                    self.growths.entry(name.to_owned()).or_default().push((
                        self.now,
                        peer.cost(&self.settings),
                        peer.budget < peer.working_set,
                    ));
                }
                return;
            }
            Action::StartStorage { .. } | Action::StopStorage { .. } => {
                if let Some(wrong) = self.storage.check(name, action, self.now) {
                    self.wrong(wrong);
                }
                return;
            }
        };
        let steps = self.steps.entry(name.to_owned()).or_default();
        let last = steps.last().copied();
        steps.push((self.now, is_up));
        let compute = &self.settings.compute;
        let pause = if is_up { compute.up_pause } else { compute.down_pause };
        if let Some((at, was_up)) = last
            && self.now - at < pause
        {
            let ms = (self.now - at).as_millis();
            self.wrong(format!("{name} goes {} {ms} ms after it went {}", direction(is_up), direction(was_up)));
        }
    }

    /// An action takes effect. Returns what its caller would be told.
    fn apply(&mut self, name: &str, intent: &Intent, force: bool) -> Outcome {
        let now = self.now;
        let limits = self.settings.limits;
        let peer = self.peers.get_mut(name).expect("the manager knows no others");
        if let Action::SetMemory { bytes } = intent.action {
            peer.budget = bytes;
            if !(limits.memory_min_bytes..=limits.memory_max_bytes).contains(&bytes) {
                self.wrong(format!("{name} has {bytes} bytes"));
            }
            return Outcome::Done;
        }
        let (Action::SetQuota { node, .. }
        | Action::Launch { node }
        | Action::Drain { node }
        | Action::StartStorage { node }
        | Action::StopStorage { node }) = &intent.action
        else {
            unreachable!("that was the other one")
        };
        let newest = self.newest.entry(node.clone()).or_default();
        if *newest > intent.number {
            return Outcome::Rejected("a later action was executed".to_owned());
        }
        *newest = intent.number;
        match &intent.action {
            Action::SetQuota { percent, .. } => {
                let Some(found) = peer.nodes.get_mut(node) else { return Outcome::Rejected("no process".to_owned()) };
                found.quota = *percent;
                if !(limits.quota_min_percent..=limits.quota_max_percent).contains(percent) {
                    self.wrong(format!("{node} has a quota of {percent} %"));
                }
                Outcome::Done
            }
            Action::StartStorage { .. } => self.storage.start(node, now),
            Action::StopStorage { .. } => self.storage.stop(node),
            Action::Launch { .. } => {
                let starting = || SimulatedNode::new(NodeOrigin::Managed, now + STARTING);
                let found = peer.nodes.entry(node.clone()).or_insert_with(starting);
                if found.ready_at <= now { Outcome::Done } else { Outcome::Pending }
            }
            _ => {
                let Some(found) = peer.nodes.get_mut(node) else { return Outcome::Done };
                found.draining_until.get_or_insert(now + STARTING / 2);
                if force {
                    peer.nodes.remove(node);
                    return Outcome::Done;
                }
                Outcome::Pending
            }
        }
    }
}

fn direction(is_up: bool) -> &'static str {
    if is_up { "up" } else { "down" }
}

fn node_name(peer: &str, number: usize) -> String {
    if number == 1 { format!("compute-{peer}") } else { format!("compute-{peer}-{number}") }
}

impl SimulatedNode {
    fn new(origin: NodeOrigin, ready_at: Duration) -> SimulatedNode {
        let quota = QUOTA_AT_START;
        let zero = Duration::ZERO;
        SimulatedNode { origin, quota, ready_at, frozen_until: zero, said: None, lies: false, draining_until: None }
    }

    /// The process ends, and its supervisor starts it again.
    pub fn restart(&mut self, now: Duration) {
        (self.quota, self.ready_at, self.frozen_until) = (QUOTA_AT_START, now + STARTING, Duration::ZERO);
    }
}

impl SimulatedPeer {
    pub fn draw_load(&mut self, rng: &mut Prng) {
        self.demand = [5, 30, 60, 90, 150, 220, 350, 600][(rng.number() % 8) as usize];
        self.working_set = (64 << 20) << (rng.number() % 7);
        self.reads = [10, 100, 1000, 20_000][(rng.number() % 4) as usize];
        self.compulsory = [0, 0, 0, 100][(rng.number() % 4) as usize];
    }
}

/// A manager's process: while it lives, what it does takes effect.
#[derive(Clone)]
pub struct Process {
    pub world: Rc<RefCell<World>>,
    pub alive: Rc<Cell<bool>>,
    incarnation: Rc<Cell<u64>>,
}

impl Process {
    pub fn new(world: &Rc<RefCell<World>>) -> Process {
        Process { world: Rc::clone(world), alive: Rc::new(Cell::new(true)), incarnation: Rc::default() }
    }

    /// A step of the manager, at which it may crash.
    fn lives(&self) -> bool {
        let mut world = self.world.borrow_mut();
        world.step += 1;
        if world.crash_at == Some(world.step) {
            self.alive.set(false);
        }
        self.alive.get()
    }
}

fn dead() -> ManagerError {
    ManagerError::Storage("disk".to_owned(), std::io::ErrorKind::Other.into())
}

impl RecordStore for Process {
    fn load(&mut self) -> Result<ManagerRecord, ManagerError> {
        // As through a file.
        Ok(ManagerRecord::decode(&self.world.borrow().disk.encode()).expect("it is whole"))
    }

    fn store(&mut self, record: &ManagerRecord) -> Result<(), ManagerError> {
        if !self.lives() {
            return Err(dead());
        }
        self.check(record.incarnation)?;
        let mut world = self.world.borrow_mut();
        let disk = world.faults.disk;
        if world.chance(disk) {
            world.is_delayed = true;
            return Err(dead());
        }
        self.incarnation.set(record.incarnation);
        if record.incarnation >= world.disk.incarnation {
            world.check_decisions(record);
            world.is_delayed = false;
            world.disk = record.clone();
        }
        drop(world);
        if self.lives() { Ok(()) } else { Err(dead()) }
    }

    fn check(&mut self, incarnation: u64) -> Result<(), ManagerError> {
        if !self.alive.get() {
            return Err(dead());
        }
        match self.world.borrow().disk.incarnation > incarnation && !fence_is_off() {
            true => Err(ManagerError::Fenced("disk".to_owned())),
            false => Ok(()),
        }
    }
}

/// The store is the test's own, so the mistake is made here too.
fn fence_is_off() -> bool {
    base::rt::fault::is_planted("manager.IgnoreFence")
}

impl Pool for Process {
    fn observe(&mut self) -> PoolView {
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        let (now, cut_off) = (world.now, world.faults.cut_off_until);
        let mut view = PoolView::new();
        let mut ages = BTreeMap::new();
        for (name, peer) in &world.peers {
            let nodes: Vec<NodeView> =
                peer.nodes.iter().map(|(name, node)| node.view(name, peer, now, cut_off)).collect();
            ages.extend(nodes.iter().map(|node| (node.name.clone(), node.heard)));
            let memory = MemoryView {
                budget_bytes: peer.budget,
                leased_bytes: peer.leased,
                used_bytes: peer.used(),
                available_bytes: 8 << 30,
                misses: peer.misses as u64,
            };
            let free = (2..=64).map(|number| node_name(name, number)).find(|name| !peer.nodes.contains_key(name));
            let memory = (cut_off <= now).then_some(memory);
            let storage = world.storage.view(name, now, cut_off <= now);
            let has_quotas = peer.has_quotas;
            view.insert(name.clone(), PeerView { nodes, memory, storage, free_name: free, has_quotas });
        }
        let silent_max = world.settings.silent_max;
        let silent = ages.iter().filter(|(_, age)| age.is_none_or(|age| age >= silent_max));
        let silent: Vec<String> = silent.map(|(name, _)| name.clone()).collect();
        world.silent.extend(silent.into_iter().map(|name| (name, now)));
        world.ages = ages;
        let settings = world.settings;
        world.storage.shown(&view, now, &settings);
        view
    }

    fn execute(&mut self, due: &DueIntent) -> Outcome {
        if !self.lives() {
            return Outcome::Ambiguous("it is dead".to_owned());
        }
        let mut world = self.world.borrow_mut();
        world.executed += 1;
        let recorded = world.disk.peers.get(&due.peer).is_some_and(|peer| peer.open.contains(&due.intent));
        let newest = world.disk.incarnation;
        if self.incarnation.get() < newest {
            world.wrong(format!("a manager that was fenced executes: {}", due.intent.action));
        } else if !recorded {
            world.wrong(format!("no durable record announces: {}", due.intent.action));
        }
        let lost = || Outcome::Ambiguous("no answer".to_owned());
        let action = world.faults.action;
        let outcome = if !world.chance(action) {
            world.apply(&due.peer, &due.intent, due.force)
        } else {
            let at = world.now + Duration::from_millis(world.rng.number() % 6000);
            match world.rng.number() % 5 {
                0 => lost(),
                1 => Outcome::Rejected("a whim".to_owned()),
                2 => {
                    world.apply(&due.peer, &due.intent, due.force);
                    lost()
                }
                3 => {
                    world.late.push((at, due.peer.clone(), due.intent.clone()));
                    lost()
                }
                _ => {
                    world.late.push((at, due.peer.clone(), due.intent.clone()));
                    world.apply(&due.peer, &due.intent, due.force)
                }
            }
        };
        drop(world);
        if self.lives() { outcome } else { Outcome::Ambiguous("it is dead".to_owned()) }
    }
}

impl SimulatedNode {
    fn view(&self, name: &str, peer: &SimulatedPeer, now: Duration, cut_off: Duration) -> NodeView {
        let (at, busy_percent, queued) = self.said.unwrap_or_default();
        let age = self.said.map(|_| now - at);
        // A manager that is cut off has what was said before.
        let heard = if cut_off > now { age.map(|age| age + Duration::from_secs(10)) } else { age };
        let quota_percent = peer.has_quotas.then_some(self.quota);
        let role = String::new();
        NodeView { name: name.to_owned(), origin: self.origin, heard, role, busy_percent, queued, quota_percent }
    }
}
