//! A group under faults: three or five memory nodes, three processors that take over from one another, and clients of
//! whichever of them coordinates.
//!
//! 1. A seed decides sizes, delays, what is asked, and the faults: processors crash, also at the named points of the
//!    protocol; everybody is paused, cut off and drifts; connections break; verbs are lost, torn and delayed. Memory nodes
//!    crash and come back blank, as many at a time as the group is to survive.
//! 2. Meanwhile [`truth`] holds what happens against what must hold: terms, leases, committed entries, the direct area.
//! 3. All is healed. Every client's operation then succeeds soon, and every memory node is taken back. The history of every
//!    key must be that of one register.
//!
//! Every other eight seeds have a coded group, whose blocks hold two keys each.
//!
//! The provider keeps the weakest promises of any. [`lies`] plants mistakes; each must be caught. [`behind`], [`dropped`] and
//! [`returned`] are courses of events that seeds seldom take.

mod behind;
mod dropped;
mod lies;
mod returned;
mod truth;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::rt::simulation::{Bounds, Failure, FaultKind, Plan, Report, Sim, Simulation};
use base::rt::{self, Stop};
use base::{Bytes, BytesMut, ErrorKind};
use consensus::{
    Coordinator, Error, Group, GroupId, GroupMemory, Kind, Layout, MemoryNode, MemoryNodeOptions, Place, Standby,
    Timing, Write,
};
use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use rma::sim::SimFabric;
use rma::{Fabric, HostOptions, NodeId, TOKEN_BYTES, Token};

use lies::{Lie, LyingHost};
use truth::{Truth, value_of};

const GROUP: GroupId = GroupId(7);
const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
const MEMORY_NODES: [&str; 5] = ["m0", "m1", "m2", "m3", "m4"];
const PROCESSORS: [&str; 3] = ["p0", "p1", "p2"];
const BLOCK: usize = 64;
/// The first keys are written in pairs.
const PAIRS: usize = 3;
const KEYS: usize = 14;
const CLIENTS: usize = 5;
/// Records that are kept before the oldest is trimmed.
const RECORDS: usize = 4;
/// How long faults happen.
const TROUBLE: Duration = Duration::from_millis(2500);
/// Within this everything works again.
const CALM_MAX: Duration = Duration::from_secs(20);
/// Operations of a seed.
const OPERATIONS_MIN: u64 = 250;

const CRASH_POINTS: &[&str] = &[
    "consensus.admit.copied",
    "consensus.admit.copying",
    "consensus.admit.kept",
    "consensus.admit.marked",
    "consensus.elect.standing",
    "consensus.elect.won",
    "consensus.takeover.adopted",
    "consensus.takeover.adopting",
    "consensus.takeover.fenced",
    "consensus.takeover.repaired",
    "consensus.takeover.replayed",
    "consensus.takeover.replaying",
];

/// Where processors crash too, but no hundred seeds come by; [`behind`] does.
const RARE_CRASH_POINT: &str = "consensus.takeover.copied";

/// Every other named place where a fault is injected.
const FAULT_POINTS: &[&str] = &[
    "consensus.node.answer_lost",
    "consensus.node.request_lost",
    "consensus.node.unconfirmed",
    "rma.sim.delay_revocation",
    "rma.sim.delay_verb",
    "rma.sim.lose_completion",
    "rma.sim.lose_verb",
    "rma.sim.tear",
];

/// What one seed is about.
#[derive(Clone)]
struct World {
    sim: Sim,
    fabric: SimFabric,
    truth: Arc<Truth>,
    memory_nodes: usize,
    layout: Layout,
    lie: Option<Lie>,
}

fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(10),
        lease: Duration::from_millis(40),
        election_timeout: Duration::from_millis(50),
        attempt_max: Duration::from_millis(40),
        answer_max: Duration::from_millis(100),
        grace: Duration::from_millis(2),
        reconnect: Duration::from_millis(20),
        copy_bytes_per_second: Timing::UNLIMITED,
    }
}

impl World {
    fn group(&self, fabric: Arc<dyn Fabric>) -> Group {
        let nodes = MEMORY_NODES[..self.memory_nodes].iter();
        let place = |address: &&str| Place { address: (*address).to_owned(), name: "orderer".into(), token: TOKEN };
        let mut timing = timing();
        if self.sim.seed().is_multiple_of(3) {
            timing.copy_bytes_per_second = 100_000;
        }
        Group { id: GROUP, layout: self.layout, nodes: nodes.map(place).collect(), fabric, timing }
    }

    /// Where a key lies.
    fn address(&self, key: usize) -> u64 {
        self.layout.direct_bytes + (key * BLOCK) as u64
    }

    /// A memory node's boot: it knows nothing of its past.
    fn start_memory_node(&self, which: usize) {
        let world = self.clone();
        let address = MEMORY_NODES[which];
        self.sim.node(address).start(move || {
            let world = world.clone();
            async move {
                let options = HostOptions { node: NodeId(which as u32), tokens: Arc::new(|_| Some(TOKEN)) };
                let inner = loop {
                    match world.fabric.host(address, options.clone()).await {
                        Ok(host) => break host,
                        Err(_) => rt::sleep(Duration::from_millis(5)).await,
                    }
                };
                let host = Arc::new(LyingHost { inner, lie: world.lie });
                let groups = vec![GroupMemory { id: GROUP, layout: world.layout }];
                let options = MemoryNodeOptions { host, groups, stop: Stop::new() };
                let _node = MemoryNode::start(options).await.expect("there is memory");
                std::future::pending::<()>().await;
            }
        });
    }

    /// A processor: stands by, coordinates, stands by again.
    async fn process(self, which: usize) {
        let name = PROCESSORS[which];
        let fabric = lies::fabric(self.fabric.clone(), self.lie, &self.layout);
        let mut group = self.group(fabric);
        if self.lie == Some(Lie::LongLease) && which == 0 {
            group.timing.lease *= 20;
            group.timing.answer_max *= 20;
        }
        let mut standby = Standby::new(group, which as u64).expect("the group is good");
        loop {
            standby.watch().await;
            let outcome = match standby.elect().await {
                Ok(elected) => {
                    self.truth.elected(elected.term(), name);
                    elected.recover().await
                }
                Err(error) => Err(error),
            };
            match outcome {
                Ok(coordinator) => self.serve(coordinator).await,
                Err(error @ (Error::MemoryLost { .. } | Error::Corrupt(_))) => {
                    self.truth.fail(format!("report: {name}: {error}"));
                    return;
                }
                Err(_) => standby.back_off().await,
            }
        }
    }

    async fn serve(&self, coordinator: Coordinator) {
        self.truth.serves(&coordinator);
        let mut tasks = FuturesUnordered::new();
        for client in 0..CLIENTS {
            let (world, coordinator) = (self.clone(), coordinator.clone());
            let task = rt::spawn(async move {
                // What ends a client ends the coordinator too.
                let _ended = match client {
                    0 => world.use_direct(&coordinator).await,
                    1 => world.record(&coordinator).await,
                    _ => world.client(&coordinator).await,
                };
            });
            tasks.push(task.abort_on_drop());
        }
        let (world, watched) = (self.clone(), coordinator.clone());
        let watching = rt::spawn(async move {
            while watched.is_serving() {
                world.truth.is_serving(watched.term());
                rt::sleep(Duration::from_micros(700)).await;
            }
        });
        tasks.push(watching.abort_on_drop());
        // What a check in one of them says is heard at once.
        let hearing = async {
            while tasks.next().await.is_some() {}
            std::future::pending::<()>().await;
        };
        select(pin!(coordinator.ended()), pin!(hearing)).await;
    }

    /// Reads and writes keys until the coordinator ends.
    async fn client(&self, coordinator: &Coordinator) -> Result<(), Error> {
        loop {
            match rt::random_below(10) {
                0..4 => self.read(coordinator, rt::random_below(KEYS as u64) as usize).await,
                4..6 => self.read_pair(coordinator, rt::random_below(PAIRS as u64) as usize).await,
                6 => self.write(coordinator, 2 * rt::random_below(PAIRS as u64) as usize).await,
                _ => {
                    let key = 2 * PAIRS + rt::random_below((KEYS - 2 * PAIRS) as u64) as usize;
                    self.write(coordinator, key).await
                }
            }?;
            rt::sleep(Duration::from_micros(rt::random_below(8000))).await;
        }
    }

    async fn read(&self, coordinator: &Coordinator, key: usize) -> Result<(), Error> {
        let from = self.truth.now();
        let bytes = coordinator.read(self.address(key), BLOCK).await?;
        self.truth.read(key, value_of(&bytes), from);
        Ok(())
    }

    async fn read_pair(&self, coordinator: &Coordinator, pair: usize) -> Result<(), Error> {
        let from = self.truth.now();
        let bytes = coordinator.read(self.address(2 * pair), 2 * BLOCK).await?;
        let value = value_of(&bytes);
        self.truth.read(2 * pair, value, from);
        self.truth.read(2 * pair + 1, value, from);
        Ok(())
    }

    /// Writes a key; one of the first, which come in pairs, with its other half.
    async fn write(&self, coordinator: &Coordinator, key: usize) -> Result<(), Error> {
        let keys = if key < 2 * PAIRS { vec![key / 2 * 2 + 1, key / 2 * 2] } else { vec![key] };
        let begun = self.truth.begin_write(&keys);
        let bytes = Bytes::from(begun.0.to_le_bytes().repeat(BLOCK / 8));
        let writes: Vec<Write> =
            keys.iter().map(|key| Write { address: self.address(*key), bytes: bytes.clone() }).collect();
        let outcome = match &writes[..] {
            [only] => coordinator.write(only.address, only.bytes.clone()).await,
            _ => coordinator.transact(writes.clone()).await,
        };
        match outcome {
            Ok(index) => self.truth.wrote(begun, index, &writes),
            Err(error) => {
                if error.kind() != ErrorKind::Ambiguous {
                    self.truth.refused(begun);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// The one user of the direct area: makes it whole, then writes it.
    async fn use_direct(&self, coordinator: &Coordinator) -> Result<(), Error> {
        let value = |copy: &BytesMut| u64::from_le_bytes(copy[..8].try_into().expect("eight bytes"));
        let mut newest = loop {
            match coordinator.read_each(0, 8).await {
                Ok(copies) => {
                    let copies: Vec<u64> = copies.iter().map(value).collect();
                    self.truth.read_direct(&copies);
                    break copies.into_iter().max().unwrap_or_default();
                }
                Err(Error::NoMajority { .. }) => rt::sleep(Duration::from_millis(5)).await,
                Err(error) => return Err(error),
            }
        };
        loop {
            coordinator.write_direct(0, Bytes::copy_from_slice(&newest.to_le_bytes())).await?;
            self.truth.wrote_direct(newest);
            coordinator.direct_is_whole();
            rt::sleep(Duration::from_micros(500 + rt::random_below(8000))).await;
            newest = self.truth.next_direct();
        }
    }

    /// Appends records, and trims all but the last.
    async fn record(&self, coordinator: &Coordinator) -> Result<(), Error> {
        let found = coordinator.recovered().iter().filter(|entry| entry.kind == Kind::Record);
        let mut records: VecDeque<u64> = found.map(|entry| entry.index).collect();
        loop {
            rt::sleep(Duration::from_micros(rt::random_below(30_000))).await;
            if records.len() >= RECORDS {
                let index = records.pop_front().expect("there are several");
                self.truth.trims(index);
                coordinator.trim(index);
            }
            let value = self.truth.next_record();
            let mut appending = pin!(coordinator.append_record(Bytes::from(value.to_le_bytes().repeat(BLOCK / 8))));
            let patience = pin!(rt::sleep(Duration::from_millis(10)));
            let index = match select(&mut appending, patience).await {
                Either::Left((outcome, _)) => outcome?,
                Either::Right(_) => {
                    // The log may be full of what is between the records.
                    let index = records.drain(..).next_back().unwrap_or_default();
                    self.truth.trims(index);
                    coordinator.trim(index);
                    appending.await?
                }
            };
            self.truth.recorded(value, index);
            records.push_back(index);
        }
    }

    /// Loses the memory of nodes, never of more at a time than the group survives.
    async fn lose_memory(self, until: Stop) {
        let mut chance = self.sim.chance();
        while !until.is_stopped() {
            rt::sleep(chance.duration(&(Duration::from_millis(100)..Duration::from_millis(900)))).await;
            let whole = |coordinator: &Coordinator| coordinator.status().live == self.memory_nodes;
            if until.is_stopped() || !self.truth.current().is_some_and(|coordinator| whole(&coordinator)) {
                continue;
            }
            let count = 1 + chance.index(self.memory_nodes / 2);
            let first = chance.index(self.memory_nodes);
            for step in 0..count {
                // Of a coded group, a node that is lost to the coordinator alone has only old shares.
                let spare = self.truth.current().map_or(0, |coordinator| coordinator.status().spare);
                if step > 0 && self.layout.is_coded() && spare == 0 {
                    break;
                }
                let node = self.sim.node(MEMORY_NODES[(first + step) % self.memory_nodes]);
                node.crash();
                rt::sleep(chance.duration(&(Duration::ZERO..Duration::from_millis(100)))).await;
                node.restart();
            }
            // Until a coordinator has noticed.
            rt::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Starts processors again that have crashed.
    async fn revive(self, until: Stop) {
        while !until.is_stopped() {
            rt::sleep(Duration::from_millis(60)).await;
            for name in PROCESSORS {
                self.sim.node(name).restart();
            }
        }
    }
}

fn nodes(seed: u64) -> usize {
    if seed % 4 == 3 { 5 } else { 3 }
}

/// Every second eight seeds have a coded group.
fn is_coded(seed: u64) -> bool {
    seed / 8 % 2 == 1
}

/// Faults of everybody, and crashes of processors.
fn plans(seed: u64) -> [Plan; 2] {
    let memory_nodes = MEMORY_NODES[..nodes(seed)].iter();
    let everybody = memory_nodes.chain(&PROCESSORS).map(|node| (*node).to_owned()).collect();
    let kinds = vec![
        FaultKind::Pause,
        FaultKind::Pause,
        FaultKind::Cut,
        FaultKind::Cut,
        FaultKind::Cut,
        FaultKind::Break,
        FaultKind::Break,
        FaultKind::Drift,
        FaultKind::Drift,
    ];
    let within = Duration::from_millis(300)..TROUBLE;
    let lasting = Duration::from_millis(5)..Duration::from_millis(400);
    let trouble =
        Bounds { nodes: everybody, kinds, faults: 10, within: within.clone(), lasting: lasting.clone(), down_max: 2 };
    let processors = PROCESSORS.map(str::to_owned).to_vec();
    let crashes = Bounds { nodes: processors, kinds: vec![FaultKind::Crash], faults: 2, within, lasting, down_max: 2 };
    [Plan::random(seed, &trouble), Plan::random(seed ^ 1 << 40, &crashes)]
}

async fn scenario(sim: Sim, lie: Option<Lie>) -> u64 {
    let seed = sim.seed();
    let truth = Arc::new(Truth::new(&sim));
    let log_bytes = [4096, 8192][(seed / 2 % 2) as usize];
    // Coded blocks hold two keys each, so that a write has to see to the other.
    let layout = match is_coded(seed) {
        true => Layout {
            log_bytes,
            direct_bytes: 128,
            memory_bytes: 64 * 32,
            block_bytes: 128,
            data_shares: nodes(seed) as u32 / 2 + 1,
        },
        false => Layout { log_bytes, direct_bytes: 64, memory_bytes: 64 * 31, block_bytes: 64, data_shares: 1 },
    };
    let fabric = SimFabric::new(&sim);
    let world = World { sim: sim.clone(), fabric, truth: Arc::clone(&truth), memory_nodes: nodes(seed), layout, lie };
    for which in 0..world.memory_nodes {
        world.start_memory_node(which);
    }
    rt::sleep(Duration::from_millis(20)).await;
    let formatting = world.clone();
    let formatted = sim.node("operator").spawn(async move {
        let group = formatting.group(Arc::new(formatting.fabric.clone()));
        consensus::format(&group).await
    });
    formatted.await.expect("nothing crashes it").expect("all nodes answer");
    for (which, name) in PROCESSORS.into_iter().enumerate() {
        let world = world.clone();
        sim.node(name).start(move || world.clone().process(which));
    }
    let calm = Stop::new();
    rt::sleep(Duration::from_millis(200)).await;
    let losing = rt::spawn(world.clone().lose_memory(calm.clone()));
    let reviving = rt::spawn(world.clone().revive(calm.clone()));
    if !seed.is_multiple_of(4) {
        // In some seeds, faults of nodes and links alone.
        for point in FAULT_POINTS {
            sim.inject(point, 0.01);
        }
        // An election whose compare-swaps are lost is rare; for the mistake about them it is made common.
        let elections = lie == Some(Lie::AmbiguousIsWon);
        sim.inject("rma.sim.lose_verb", if elections { 0.06 } else { 0.001 });
        sim.inject("rma.sim.lose_completion", 0.001);
        sim.inject("rma.sim.delay_verb", 0.002);
        for point in CRASH_POINTS {
            sim.inject(point, 0.05);
        }
        sim.inject(RARE_CRASH_POINT, 0.05);
        sim.inject("consensus.admit.copying", 0.002);
    }
    let [trouble, crashes] = plans(seed);
    let (other, crashing) = (sim.clone(), crashes);
    let crashing = rt::spawn(async move { other.run_plan(&crashing).await });
    sim.run_plan(&trouble).await;
    crashing.await.expect("the driver does not crash");
    for point in FAULT_POINTS.iter().chain(CRASH_POINTS).chain([&RARE_CRASH_POINT]) {
        sim.inject(point, 0.0);
    }
    sim.heal_all();
    calm.stop();
    losing.await.expect("the driver does not crash");
    reviving.await.expect("the driver does not crash");
    for name in PROCESSORS {
        sim.node(name).restart();
    }
    truth.check_failed();
    comes_to_rest(&world).await;
    truth.check_failed();
    truth.check_linearizable(KEYS);
    truth.operations()
}

/// Somebody coordinates, everything works, and every memory node is whole again.
async fn comes_to_rest(world: &World) {
    let start = rt::now();
    let truth = &world.truth;
    let mut terms = 0;
    loop {
        let is_whole = truth.current().is_some_and(|coordinator| coordinator.status().live == world.memory_nodes);
        if is_whole && truth.operations() >= OPERATIONS_MIN && terms == truth.terms() {
            break;
        }
        truth.check_failed();
        terms = truth.terms();
        let status = truth.current().map(|coordinator| coordinator.status());
        assert!(start.elapsed() < CALM_MAX, "progress: after {CALM_MAX:?} of calm: {status:?}");
        rt::sleep(Duration::from_millis(100)).await;
    }
    let before = truth.operations();
    while truth.operations() == before {
        rt::sleep(Duration::from_millis(50)).await;
        assert!(start.elapsed() < CALM_MAX, "progress: nothing is read or written any more");
    }
}

fn simulation(seed: u64) -> Simulation {
    Simulation::new(seed).steps_max(3_000_000).trace_lines_max(60)
}

type Outcome = Result<Report<u64>, Box<Failure>>;

fn run(seed: u64, lie: Option<Lie>) -> Outcome {
    simulation(seed).run(|sim| scenario(sim, lie))
}

/// Runs seeds; each must succeed, and all together must have come by every fault point.
fn campaign(seeds: Range<u64>) {
    let mut injected: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut operations, mut faults) = (0, 0);
    for seed in seeds.clone() {
        let report = match run(seed, None) {
            Ok(report) => report,
            Err(failure) => panic!(
                "seed {seed}: {failure}\nfault plan: {}\n{}\nrepeat with: CONSENSUS_SEED={seed} cargo test --release -p \
                 heddle-consensus --test simulation one_seed",
                plans(seed)[0],
                plans(seed)[1]
            ),
        };
        operations += report.value;
        faults += plans(seed).iter().map(|plan| plan.steps.len()).sum::<usize>();
        for (point, counts) in report.fault_points {
            *injected.entry(point).or_default() += counts.injected;
        }
    }
    println!("seeds {seeds:?}: {operations} operations, {faults} faults, injected {injected:?}");
    if seeds.end - seeds.start >= 150 {
        for point in FAULT_POINTS.iter().chain(CRASH_POINTS) {
            assert!(injected.get(point).is_some_and(|count| *count > 0), "no seed injected {point}");
        }
    }
}

#[test]
fn seeds_0_to_149() {
    campaign(0..150);
}

#[test]
fn seeds_150_to_299() {
    campaign(150..300);
}

/// `CONSENSUS_SEEDS=0..5000 cargo test --release -p heddle-consensus --test simulation chosen_seeds`
#[test]
fn chosen_seeds() {
    let Ok(seeds) = std::env::var("CONSENSUS_SEEDS") else { return };
    let bounds = seeds.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let (from, to) = bounds.expect("CONSENSUS_SEEDS is a range, such as 0..5000");
    campaign(from..to);
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..8 {
        simulation(seed).check(|sim| scenario(sim, None)).expect("both runs succeed and are the same");
    }
}

#[test]
fn every_planted_mistake_is_caught() {
    for lie in Lie::ALL {
        let caught = (0..200).find_map(|seed| run(seed, Some(lie)).err().map(|failure| (seed, failure)));
        let (seed, failure) = caught.unwrap_or_else(|| panic!("no seed catches {lie:?}"));
        let reason = failure.reason.to_string();
        println!("{lie:?}: seed {seed}: {reason}");
        let as_meant = lie.caught_by().iter().any(|check| reason.contains(&format!("panicked: {check}")));
        assert!(as_meant, "{lie:?} is caught, but by something else: {reason}");
    }
}

/// `CONSENSUS_SEED=17 cargo test --release -p heddle-consensus --test simulation one_seed` repeats a seed.
#[test]
fn one_seed() {
    let Some(seed) = std::env::var("CONSENSUS_SEED").ok().and_then(|seed| seed.parse().ok()) else { return };
    let [trouble, crashes] = plans(seed);
    println!("fault plan: {trouble}\n{crashes}");
    let lie = std::env::var("CONSENSUS_LIE").ok();
    let lie = lie.and_then(|name| Lie::ALL.into_iter().find(|lie| format!("{lie:?}") == name));
    run(seed, lie).expect("the seed succeeds");
}
