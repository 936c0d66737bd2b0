//! The engines of [`ordered_log`] under its [conformance suite](ordered_log::conformance) and faults.
//!
//! 1. A seed decides the faults: CPU nodes crash, also at the named points of the protocols, and lose the bytes that
//!    their disks had not synced; all nodes are paused, are cut off and have drifting clocks; connections break; memory
//!    nodes come back blank. Now and then all nodes lose power at once.
//! 2. Every CPU node appends while it is the leader, and notes every entry that it may show. A
//!    [`LogChecker`] checks these entries against the guarantees.
//! 3. All faults are healed, and all nodes lose power once more. Every entry that was shown or acknowledged must be
//!    there at every CPU node, and entries appended then must become committed everywhere.
//!
//! A new engine is added as a variant of [`Engine`]. Each planted mistake must be caught.

mod members;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::rt;
use base::rt::simulation::{FaultKind, FaultPlan, Sim, Simulation};
use base::{Bytes, ErrorKind};
use futures_util::FutureExt as _;
use futures_util::future::{Either, join, select};
use ordered_log::conformance::{self, ENTRY_BYTES_MAX, FileLogStore, LogChecker};
use ordered_log::fault::{Mutant, plant};
use ordered_log::raft::RaftLog;
use ordered_log::sift::{CpuNode, SiftConfig, SiftLog};
use ordered_log::solo::SoloLog;
use ordered_log::{CpuNodeId, Error, LogStore, OrderedLog, Term};
use raft::RaftMember;
use rma::sim::SimProvider;
use sift::{CoordinatorStatus, GroupLayout, SiftGroup};

use sift::testing::campaign::{Campaign, must_be_caught, tests_of};
use sift::testing::{self, CALM_MAX, CPU_NODES, FAULT_POINTS, GROUP, MEMORY_NODES, nodes, timing};

/// Entries that a seed must have shown by the end.
const ENTRIES_MIN: u64 = 200;

const CRASH_POINTS: &[&str] = &[
    "consensus.acceptor.adopted",
    "consensus.acceptor.appended",
    "consensus.acceptor.durable",
    "consensus.acceptor.promised",
    "consensus.leadership.adopted",
    "consensus.leadership.aligned",
    "consensus.leadership.started",
    "consensus.leadership.chosen",
    "consensus.leadership.committed",
    "consensus.leadership.fenced",
];
/// Where CPU nodes crash too; a hundred seeds need not reach these points.
const RARE_CRASH_POINTS: &[&str] = &["consensus.acceptor.truncated"];
/// Where a CPU node crashes that reformats the group.
const REFORMAT_CRASH_POINTS: &[&str] = &[
    "consensus.reformat.admitted",
    "consensus.reformat.cleared",
    "consensus.reformat.fenced",
    "consensus.reformat.header",
    "consensus.reformat.promised",
    "consensus.reformat.raised",
];
const SOLO_CRASH_POINTS: &[&str] = &["consensus.solo.appended", "consensus.solo.durable"];

const RAFT_CRASH_POINTS: &[&str] = &[
    "consensus.raft.applying",
    "consensus.raft.installed",
    "consensus.raft.installing",
    "consensus.raft.saved",
    "consensus.raft.saving",
    "consensus.raft.synced",
    "consensus.raft.syncing",
];
/// Points that every run reaches again and again.
const RAFT_OFTEN: &[&str] = &["consensus.raft.applying", "consensus.raft.synced", "consensus.raft.syncing"];
const RAFT_FAULT_POINTS: &[&str] = &["consensus.raft.lose_message"];

/// The engines under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Engine {
    Solo,
    Sift { volatile: bool },
    Raft,
}

impl Engine {
    fn cpu_nodes(self) -> &'static [&'static str] {
        match self {
            Engine::Solo => &CPU_NODES[..1],
            Engine::Sift { .. } | Engine::Raft => &CPU_NODES,
        }
    }

    fn memory_nodes(self, seed: u64) -> usize {
        match self {
            Engine::Solo | Engine::Raft => 0,
            Engine::Sift { .. } => nodes(seed),
        }
    }

    /// Whether shown entries survive when all nodes lose power.
    fn survives_all(self) -> bool {
        self != Engine::Sift { volatile: true }
    }
}

type Opened = (Arc<dyn OrderedLog>, Box<dyn Fn() -> Option<CoordinatorStatus> + Send>);

#[derive(Clone)]
struct World {
    sim: Sim,
    engine: Engine,
    provider: SimProvider,
    checker: Arc<LogChecker>,
    layout: GroupLayout,
    /// The state of the memory nodes, as their coordinator sees it.
    status: Arc<Mutex<Option<CoordinatorStatus>>>,
    /// A CPU node that detects damage has ended for the right reason, and is started again.
    may_end: Arc<AtomicBool>,
}

/// Snapshots are so frequent that a CPU node that was away gets entries from the others' log stores.
fn raft_options(which: usize) -> raft::RaftConfig {
    let member = |which: usize| {
        let address = format!("raft-{}", CPU_NODES[which]);
        RaftMember { id: which as u64 + 1, address, is_learner: false }
    };
    raft::RaftConfig {
        directory: Some("/raft".into()),
        timing: raft::RaftTimeouts { tick: Duration::from_millis(5), heartbeat_ticks: 3, election_ticks: 12 },
        log_bytes: 2000,
        snapshot_after_bytes: 9000,
        segment_bytes: Some(4096),
        ..raft::RaftConfig::new(3, which as u64 + 1, (0..CPU_NODES.len()).map(member).collect())
    }
}

impl World {
    fn first() -> Bytes {
        Bytes::from_static(b"genesis")
    }

    /// Starts every node.
    fn begin(sim: &Sim, engine: Engine, log_bytes: u64) -> World {
        let checker = Arc::new(LogChecker::new(sim));
        let layout = GroupLayout { log_bytes, unlogged_bytes: 0, memory_bytes: 0, block_bytes: 64, data_shards: 1 };
        let (provider, status) = (SimProvider::new(sim), Arc::default());
        let may_end = Arc::default();
        let world = World { sim: sim.clone(), engine, provider, checker, layout, status, may_end };
        for which in 0..engine.memory_nodes(sim.seed()) {
            world.start_memory_node(which);
        }
        for (which, name) in engine.cpu_nodes().iter().enumerate() {
            let world = world.clone();
            sim.node(name).start(move || world.clone().process(which));
        }
        world
    }

    async fn open(&self, which: usize, journal: Arc<dyn LogStore>) -> Result<Opened, Error> {
        match self.engine {
            Engine::Solo => {
                let solo = SoloLog::open(journal, ENTRY_BYTES_MAX as usize).await?;
                Ok((Arc::new(solo), Box::new(|| None)))
            }
            Engine::Sift { volatile } => {
                let provider = Arc::new(self.provider.clone());
                let places = testing::addresses(nodes(self.sim.seed()), "orderer");
                let group = SiftGroup { id: GROUP, layout: self.layout, nodes: places, provider, timing: timing() };
                let neighbour = |which: usize| CpuNode {
                    id: CpuNodeId(which as u64 + 1),
                    address: format!("keeper-{}", CPU_NODES[which]),
                };
                let options = SiftConfig {
                    group,
                    me: CpuNodeId(which as u64 + 1),
                    cpu_nodes: (0..CPU_NODES.len()).map(neighbour).collect(),
                    log_store: journal,
                    volatile,
                    disk_timeout: Duration::from_millis(200),
                };
                let sift = Arc::new(SiftLog::open(options).await?);
                let status = Arc::clone(&sift);
                Ok((sift, Box::new(move || status.status())))
            }
            Engine::Raft => Ok((Arc::new(RaftLog::open(raft_options(which), journal).await?), Box::new(|| None))),
        }
    }

    /// Runs a CPU node: its log store, its engine, the task that appends and the task that watches.
    async fn process(self, which: usize) {
        let name = self.engine.cpu_nodes()[which];
        loop {
            self.checker.starts(name);
            let error = match self.serve(which, name).await {
                Ok(error) | Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Corrupt | ErrorKind::Rejected if !self.may_end.load(Ordering::Relaxed) => {
                    return self.checker.fail(format!("report: {name}: {error}"));
                }
                _ => rt::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn serve(&self, which: usize, name: &str) -> Result<Error, Error> {
        let journal: Arc<dyn LogStore> = Arc::new(FileLogStore::open(&World::first()).await?);
        let (engine, status) = self.open(which, Arc::clone(&journal)).await?;
        let driven = conformance::drive(&self.checker, name, &*engine, &*journal);
        let all = join(driven, self.clone().tell(status));
        match select(pin!(engine.ended()), pin!(all)).await {
            Either::Left((error, _)) => Ok(error),
            Either::Right(_) => unreachable!("they have no end"),
        }
    }

    async fn tell(self, status: Box<dyn Fn() -> Option<CoordinatorStatus> + Send>) {
        let mut told = None;
        loop {
            let now = status();
            if now.is_some() || told.is_some() {
                *self.status.lock().expect("no holder panics") = now;
                told = now;
            }
            rt::sleep(Duration::from_millis(10)).await;
        }
    }

    fn start_memory_node(&self, which: usize) {
        testing::start_memory_node(&self.sim, &self.provider, which, self.layout, false, |host| host);
    }

    /// All nodes except these lose power, and come back.
    async fn lose_power(&self, but: &[&str]) {
        let nodes = MEMORY_NODES[..self.engine.memory_nodes(self.sim.seed())].iter().chain(self.engine.cpu_nodes());
        let names: Vec<&str> = nodes.copied().filter(|name| !but.contains(name)).collect();
        names.iter().for_each(|name| self.sim.node(name).crash());
        rt::sleep(Duration::from_millis(20)).await;
        names.iter().for_each(|name| self.sim.node(name).restart());
    }

    /// Now and then all nodes lose power. One CPU node sleeps through it, or comes back late, perhaps after the next
    /// time. Now and then a memory node sleeps through it too, with everything that it holds.
    async fn lose_power_often(self) {
        let mut rng = self.sim.rng();
        let mut late: Option<&str> = None;
        let mut held: Option<&str> = None;
        let memory_nodes = self.engine.memory_nodes(self.sim.seed());
        for _ in 0..3 {
            rt::sleep(rng.duration(&(Duration::from_millis(200)..Duration::from_millis(700)))).await;
            if rng.below(2) == 0
                && let Some(late) = late.take()
            {
                self.sim.node(late).resume();
                rt::sleep(rng.duration(&(Duration::from_millis(1)..Duration::from_millis(300)))).await;
            }
            if rng.below(2) == 0
                && let Some(held) = held.take()
            {
                self.sim.node(held).resume();
            }
            if memory_nodes > 0 && held.is_none() && rng.below(2) == 0 {
                let name = MEMORY_NODES[rng.index(memory_nodes)];
                self.sim.node(name).pause();
                held = Some(name);
            }
            let name = self.engine.cpu_nodes()[rng.index(self.engine.cpu_nodes().len())];
            let sleeps = rng.below(2) == 0;
            if late.is_none() && sleeps {
                self.sim.node(name).pause();
                late = Some(name);
            }
            let but: Vec<&str> = late.into_iter().chain(held).collect();
            self.lose_power(&but).await;
            if late.is_none() {
                self.sim.node(name).pause();
                late = Some(name);
            }
        }
        rt::sleep(rng.duration(&(Duration::from_millis(1)..Duration::from_millis(500)))).await;
        for name in late.into_iter().chain(held) {
            self.sim.node(name).resume();
        }
    }

    /// There is a leader, and every node shows all entries that were ever shown, and this many more.
    async fn come_to_rest(&self, more: u64) {
        let start = rt::now();
        let goal = self.checker.height() + more;
        loop {
            self.checker.check_failed();
            let heights = self.checker.heights();
            let everybody = heights.len() == self.engine.cpu_nodes().len();
            if everybody && heights.values().all(|height| *height >= goal) {
                return;
            }
            assert!(
                start.elapsed() < CALM_MAX,
                "progress: after {CALM_MAX:?} of calm: {goal} entries are to be shown, and there are {heights:?}"
            );
            rt::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Faults of all nodes, and crashes of CPU nodes.
fn plans(seed: u64) -> [FaultPlan; 2] {
    let kinds = [
        FaultKind::Pause,
        FaultKind::Pause,
        FaultKind::Cut,
        FaultKind::Cut,
        FaultKind::Cut,
        FaultKind::Break,
        FaultKind::Break,
        FaultKind::Drift,
    ];
    testing::plans(seed, &kinds, 3)
}

fn points() -> impl Iterator<Item = &'static &'static str> {
    let crashes = CRASH_POINTS.iter().chain(RARE_CRASH_POINTS).chain(REFORMAT_CRASH_POINTS).chain(SOLO_CRASH_POINTS);
    FAULT_POINTS.iter().chain(crashes).chain(RAFT_FAULT_POINTS).chain(RAFT_CRASH_POINTS)
}

async fn scenario(sim: Sim, engine: Engine, mutant: Mutant) -> u64 {
    plant(mutant);
    let seed = sim.seed();
    let world = World::begin(&sim, engine, [8192, 32768][(seed / 2 % 2) as usize]);
    let checker = Arc::clone(&world.checker);
    let inject = || {
        if seed.is_multiple_of(4) {
            // Faults of nodes and links alone.
            return;
        }
        for point in FAULT_POINTS.iter().chain(RAFT_FAULT_POINTS).chain(RAFT_OFTEN) {
            sim.inject(point, 0.002);
        }
        for point in RAFT_CRASH_POINTS.iter().filter(|point| !RAFT_OFTEN.contains(point)) {
            sim.inject(point, 0.03);
        }
        for point in CRASH_POINTS.iter().chain(RARE_CRASH_POINTS).chain(REFORMAT_CRASH_POINTS).chain(SOLO_CRASH_POINTS)
        {
            sim.inject(point, 0.03);
        }
        for point in ["consensus.acceptor.appended", "consensus.acceptor.durable", "consensus.leadership.committed"] {
            sim.inject(point, 0.002);
        }
    };
    let black = engine.survives_all() && seed % 2 == 1;
    let blackouts = black.then(|| rt::spawn(world.clone().lose_power_often()));
    let current = Arc::clone(&world.status);
    let status = move || if black { None } else { *current.lock().expect("no holder panics") };
    testing::trouble(&sim, false, plans(seed), status, inject, points()).await;
    if let Some(blackouts) = blackouts {
        blackouts.await.expect("the driver does not crash");
    }
    checker.check_failed();
    let shown = checker.height();
    world.come_to_rest(ENTRIES_MIN.saturating_sub(shown).max(20)).await;
    if engine.survives_all() {
        world.lose_power(&[]).await;
        world.come_to_rest(20).await;
    }
    checker.check_failed();
    checker.check_complete();
    assert!(checker.acknowledged() > 0, "progress: nothing was acknowledged");
    sim.note(format!(
        "{} entries, {} acknowledged, {} terms",
        checker.height(),
        checker.acknowledged(),
        checker.terms()
    ));
    checker.height()
}

/// A course of events that seeds seldom take. A leader that reaches memory and no acceptor except its own fills its log
/// store. All nodes lose power, and this one sleeps on. The others reformat the group and continue with fewer entries
/// of their own. All except the sleeper lose power again, and it wakes up: its log store is the longest, and must not
/// count.
async fn overslept(sim: Sim, mutant: Mutant) -> u64 {
    plant(mutant);
    let world = World::begin(&sim, Engine::Sift { volatile: false }, 32768);
    let checker = Arc::clone(&world.checker);
    world.come_to_rest(20).await;
    let leader = checker.leader().expect("somebody leads");
    let leader = CPU_NODES.into_iter().find(|name| *name == leader).expect("it is a processor");
    for other in CPU_NODES.into_iter().filter(|name| *name != leader) {
        sim.cut(leader, other);
    }
    rt::sleep(Duration::from_millis(100)).await;
    world.lose_power(&[]).await;
    sim.node(leader).pause();
    sim.heal_all();
    let before = checker.height();
    let start = rt::now();
    while checker.height() < before + 3 {
        assert!(start.elapsed() < CALM_MAX, "progress: two of three processors do not go on");
        rt::sleep(Duration::from_millis(1)).await;
    }
    world.lose_power(&[leader]).await;
    sim.node(leader).resume();
    world.come_to_rest(20).await;
    checker.check_failed();
    checker.check_complete();
    checker.height()
}

#[test]
fn the_longest_log_does_not_count_when_a_later_term_has_adopted_others() {
    let run = |seed, mutant| Simulation::new(seed).trace_lines_max(60).run(move |sim| overslept(sim, mutant));
    for seed in 0..40 {
        run(seed, Mutant::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    for mutant in [Mutant::LongestJournal, Mutant::ForgetAdoption] {
        must_be_caught(&format!("{mutant:?}"), &["one entry", "lost", "report"], |seed| run(seed, mutant));
    }
}

/// One CPU node is a few entries behind when the disk of another one is replaced by a blank disk, and the third ends.
/// The two remaining log stores are a majority, and end below the last shown entry. All memory nodes are intact.
async fn blank(sim: Sim, mutant: Mutant) -> u64 {
    plant(mutant);
    let world = World::begin(&sim, Engine::Sift { volatile: false }, 8192);
    let checker = Arc::clone(&world.checker);
    world.come_to_rest(20).await;
    let [behind, wiped, whole] = {
        let first = sim.rng().index(CPU_NODES.len());
        [0, 1, 2].map(|at| CPU_NODES[(first + at) % CPU_NODES.len()])
    };
    sim.node(behind).crash();
    let (before, start) = (checker.height(), rt::now());
    while checker.height() < before + 5 {
        assert!(start.elapsed() < CALM_MAX, "progress: two of three processors do not go on");
        rt::sleep(Duration::from_millis(1)).await;
    }
    world.may_end.store(true, Ordering::Relaxed);
    sim.node(wiped).crash();
    sim.node(whole).crash();
    sim.node(wiped).disk().wipe();
    sim.node(wiped).restart();
    sim.node(behind).restart();
    let shown = checker.height();
    rt::sleep(Duration::from_secs(3)).await;
    assert_eq!(checker.height(), shown, "lost: entries were shown by processors that lack earlier ones");
    sim.node(whole).restart();
    world.come_to_rest(20).await;
    checker.check_failed();
    checker.check_complete();
    checker.height()
}

/// An orderer's disk was replaced while another orderer was a block behind and the third had ended. The orderer with
/// the blank disk was elected, and led from block 14 although 75 had been shown, and although all three memory nodes
/// were intact and had received block 74: its record had been trimmed.
#[test]
fn a_blank_journal_does_not_lead_below_what_memory_nodes_know_was_shown() {
    let run = |seed, mutant| Simulation::new(seed).trace_lines_max(60).run(move |sim| blank(sim, mutant));
    for seed in 0..40 {
        run(seed, Mutant::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    must_be_caught("TrimLast", &["lost", "one entry", "readable"], |seed| run(seed, Mutant::TrimLast));
}

/// As [`blank`], for CPU nodes without memory nodes that remember: the others know what one of them has forgotten.
async fn forgotten(sim: Sim, mutant: raft::fault::Mutant) -> u64 {
    raft::fault::plant(mutant);
    let world = World::begin(&sim, Engine::Raft, 8192);
    let checker = Arc::clone(&world.checker);
    world.come_to_rest(20).await;
    let [behind, wiped, whole] = {
        let first = sim.rng().index(CPU_NODES.len());
        [0, 1, 2].map(|at| CPU_NODES[(first + at) % CPU_NODES.len()])
    };
    sim.node(behind).crash();
    let (before, start) = (checker.height(), rt::now());
    while checker.height() < before + 5 {
        assert!(start.elapsed() < CALM_MAX, "progress: two of three processors do not go on");
        rt::sleep(Duration::from_millis(1)).await;
    }
    world.may_end.store(true, Ordering::Relaxed);
    sim.node(wiped).crash();
    sim.node(whole).crash();
    sim.node(wiped).disk().wipe();
    sim.node(wiped).restart();
    sim.node(behind).restart();
    let shown = checker.height();
    rt::sleep(Duration::from_secs(3)).await;
    assert_eq!(checker.height(), shown, "lost: entries were shown by processors that lack earlier ones");
    // The node `behind` and this one are a majority without the wiped node, which stays away.
    sim.node(whole).restart();
    let start = rt::now();
    while checker.height() < shown + 20 {
        assert!(start.elapsed() < CALM_MAX, "progress: a majority that has forgotten nothing does not go on");
        rt::sleep(Duration::from_millis(1)).await;
    }
    checker.check_failed();
    checker.height()
}

/// An orderer's folder was emptied, log and blocks, while another orderer was behind and the third had ended: the two
/// elected the one that was behind, and 51 of 63 blocks that had been shown and acknowledged were lost.
#[test]
fn a_blank_log_has_no_vote_where_another_one_is_known() {
    let run = |seed, mutant| Simulation::new(seed).trace_lines_max(60).run(move |sim| forgotten(sim, mutant));
    for seed in 0..40 {
        run(seed, raft::fault::Mutant::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    must_be_caught("BlankVotes", &["lost", "one entry", "readable", "leads"], |seed| {
        run(seed, raft::fault::Mutant::BlankVotes)
    });
    raft::fault::plant(raft::fault::Mutant::None);
}

/// All memory nodes except one lose their memory, and the CPU node that reformats the group crashes between any two
/// steps of that, again and again. The last memory node holds its copy of the earlier generation: it answers all the
/// time, or sleeps and comes back meanwhile. Or it comes back only when the others serve; then no CPU node crashes.
async fn half_made(sim: Sim, mutant: sift::fault::Mutant) -> u64 {
    sift::fault::plant(mutant);
    let world = World::begin(&sim, Engine::Sift { volatile: false }, 8192);
    let memory_nodes = &MEMORY_NODES[..nodes(sim.seed())];
    let mut rng = sim.rng();
    world.come_to_rest(20).await;
    for _ in 0..3 {
        let held = memory_nodes[rng.index(memory_nodes.len())];
        let sleeps = rng.below(3);
        if sleeps > 0 {
            sim.node(held).pause();
        }
        if sleeps < 2 {
            REFORMAT_CRASH_POINTS.iter().for_each(|point| sim.inject(point, 0.2));
        }
        for lost in memory_nodes.iter().filter(|name| **name != held) {
            sim.node(lost).crash();
            sim.node(lost).restart();
        }
        let wakes = rng.below(10);
        for step in 0..10 {
            if sleeps == 1 && step == wakes {
                sim.node(held).resume();
            }
            rt::sleep(Duration::from_millis(60)).await;
            CPU_NODES.iter().for_each(|name| sim.node(name).restart());
        }
        REFORMAT_CRASH_POINTS.iter().for_each(|point| sim.inject(point, 0.0));
        CPU_NODES.iter().for_each(|name| sim.node(name).restart());
        world.come_to_rest(20).await;
        sim.node(held).resume();
        world.come_to_rest(10).await;
    }
    world.checker.check_failed();
    world.checker.check_complete();
    world.checker.height()
}

/// A group was reformatted one memory node after another. A crash in the middle left one node that was formatted, one
/// that was blank, and one with its old copy: the next takeover found two logs that had nothing in common, and every
/// CPU node ended for good.
#[test]
fn a_group_that_is_half_made_is_made_whatever_its_other_memory_nodes_hold() {
    use sift::fault::Mutant;
    let run = |seed, mutant| Simulation::new(seed).trace_lines_max(60).run(move |sim| half_made(sim, mutant));
    let mut injected: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
    for seed in 0..60 {
        let report = run(seed, Mutant::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        for (point, counts) in report.fault_points {
            *injected.entry(point).or_default() += counts.injected;
        }
    }
    for point in REFORMAT_CRASH_POINTS {
        assert!(injected.get(point).is_some_and(|count| *count > 0), "nobody crashed at {point}: {injected:?}");
    }
    must_be_caught("CountOldCopies", &["report"], |seed| run(seed, Mutant::CountOldCopies));
}

/// An engine, and the mistake planted in it.
type Planted = (Engine, Mutant);

const SOLO: Engine = Engine::Solo;
const SIFT: Engine = Engine::Sift { volatile: false };
const VOLATILE: Engine = Engine::Sift { volatile: true };
const RAFT: Engine = Engine::Raft;

fn campaign(engine: Engine) -> Campaign<Planted> {
    let (name, points) = match engine {
        SOLO => ("SOLO", SOLO_CRASH_POINTS.to_vec()),
        SIFT => ("ORDERED", FAULT_POINTS.iter().chain(CRASH_POINTS).copied().collect()),
        VOLATILE => ("VOLATILE", Vec::new()),
        RAFT => ("ORDERED_RAFT", RAFT_FAULT_POINTS.iter().chain(RAFT_CRASH_POINTS).copied().collect()),
    };
    Campaign {
        name,
        program: "ordered_log",
        tests: "ordered::",
        steps_max: 6_000_000,
        scenario: |sim, (engine, mutant)| scenario(sim, engine, mutant).boxed(),
        plans,
        points,
        enough: 100,
        plant: |(_, mutant)| plant(mutant),
        sound: (engine, Mutant::None),
        mistakes: &[
            ((SIFT, Mutant::OneDisk), &["one entry", "lost", "report", "made up"]),
            ((SIFT, Mutant::AnswerUnsynced), &["one entry", "lost", "report"]),
            ((SIFT, Mutant::OwnDisk), &["one entry", "lost", "report"]),
            ((SIFT, Mutant::ForgetLog), &["one entry", "lost", "report"]),
            ((SOLO, Mutant::ShowUnsynced), &["one entry", "lost", "progress"]),
            ((RAFT, Mutant::SafeUnwritten), &["readable", "lost"]),
            ((RAFT, Mutant::SnapshotAhead), &["one entry", "lost", "report", "progress", "readable"]),
            ((RAFT, Mutant::LeadAtOnce), &["lost", "one entry", "progress", "report"]),
        ],
    }
}

#[test]
fn sift_keeps_the_promises() {
    campaign(SIFT).run(0..100);
}

#[test]
fn volatile_sift_keeps_the_promises_as_long_as_not_all_power_is_lost() {
    campaign(VOLATILE).run(0..40);
}

#[test]
fn solo_keeps_the_promises() {
    campaign(SOLO).run(0..100);
}

#[test]
fn raft_keeps_the_promises() {
    campaign(RAFT).run(0..100);
}

/// The variables of other engines start with `SOLO_`, `VOLATILE_` and `ORDERED_RAFT_`.
#[test]
fn chosen_seeds_of_other_engines() {
    for engine in [SOLO, VOLATILE, RAFT] {
        campaign(engine).run_chosen();
        campaign(engine).run_one();
    }
}

#[test]
fn a_seed_decides_everything_of_other_engines_too() {
    campaign(SOLO).run_twice();
    campaign(RAFT).run_twice();
}

tests_of!(campaign(SIFT));
