//! Backups that groups share, under faults: five groups on three memory nodes, and two pools with one and two CPU
//! nodes. Three of the groups also have a CPU node of their own.
//!
//! 1. A seed decides the faults: CPU nodes and pools crash, also at the named points of a takeover; all nodes are
//!    paused, are cut off and have drifting clocks; connections break; verbs are lost and delayed.
//! 2. A group's coordinator increments a word of the group. The value that it reads must be the last acknowledged
//!    value, or a value whose write was started after that acknowledgement: any other value reveals two coordinators at
//!    once, or a takeover that lost a write. No pool coordinates more groups than it has CPU nodes.
//! 3. All faults are healed, and both pools get more CPU nodes. Soon every group has a coordinator, no group waits, and
//!    every CPU node that does not coordinate is free.
//!
//! Planted mistakes must be caught.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rt::simulation::{FaultKind, FaultPlan, FaultPlanLimits, Sim, Simulation};
use base::rt::{self, CancellationToken};
use base::{Bytes, ErrorKind};
use futures_util::FutureExt as _;
use rma::sim::SimProvider;
use rma::{HostConfig, NodeId, Provider as _};
use sift::backups::{GroupState, ServeGroup};
use sift::fault::{Mutant, plant};
use sift::{
    BackupPool, BackupPoolConfig, BackupPoolStatus, Coordinator, Error, GroupId, GroupLayout, GroupMemory,
    LogMemoryNode, LogMemoryNodeConfig, SiftGroup, SiftTimeouts, Standby, WatchedGroup,
};

use sift::testing::campaign::{Campaign, endure, plans_of, tests_of};
use sift::testing::{CALM_MAX, FAULT_POINTS, MEMORY_NODES, TOKEN, addresses, timing};

const GROUPS: u64 = 5;
/// The CPU nodes of the first groups.
const OWN: [&str; 3] = ["own1", "own2", "own3"];
/// Pools, and the number of CPU nodes of each.
const POOLS: [(&str, usize); 2] = [("pool1", 1), ("pool2", 2)];
const LAYOUT: GroupLayout =
    GroupLayout { log_bytes: 4096, unlogged_bytes: 0, memory_bytes: 4096, block_bytes: 64, data_shards: 1 };
/// How long faults happen.
const TROUBLE: Duration = Duration::from_millis(2500);
/// Time before a crashed CPU node starts again.
const REVIVE: Duration = Duration::from_millis(700);

const CRASH_POINTS: &[&str] = &["consensus.elect.won", "consensus.takeover.fenced", "consensus.takeover.replayed"];

/// The checks of one group.
#[derive(Default)]
struct Truth {
    begun: AtomicU64,
    acked: AtomicU64,
    takeovers: AtomicU64,
}

#[derive(Clone)]
struct World {
    sim: Sim,
    provider: SimProvider,
    groups: Arc<Vec<Truth>>,
    serving: Arc<Vec<AtomicUsize>>,
    pools: Arc<Mutex<BTreeMap<usize, Arc<BackupPool>>>>,
    /// CPU nodes that each pool got later.
    provisioned: Arc<AtomicUsize>,
    failed: Arc<Mutex<Option<String>>>,
}

/// On drop, counts one coordinator less at a pool, however it ended.
struct Leaves(Arc<Vec<AtomicUsize>>, usize);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0[self.1].fetch_sub(1, Ordering::Relaxed);
    }
}

impl World {
    fn new(sim: &Sim) -> World {
        World {
            sim: sim.clone(),
            provider: SimProvider::new(sim),
            groups: Arc::new((0..GROUPS).map(|_| Truth::default()).collect()),
            serving: Arc::new(POOLS.iter().map(|_| AtomicUsize::new(0)).collect()),
            pools: Arc::default(),
            provisioned: Arc::default(),
            failed: Arc::default(),
        }
    }

    fn group(&self, which: usize) -> SiftGroup {
        let (id, nodes) = (GroupId(1 + which as u64), addresses(3, "backup"));
        // As rare as in production, compared with heartbeats.
        let timing = SiftTimeouts { reconnect: Duration::from_millis(200), ..timing() };
        SiftGroup { id, layout: LAYOUT, nodes, provider: Arc::new(self.provider.clone()), timing }
    }

    async fn start(&self) {
        for (which, address) in MEMORY_NODES[..3].iter().enumerate() {
            let provider = self.provider.clone();
            self.sim.node(address).start(move || {
                let provider = provider.clone();
                async move {
                    let options = HostConfig { node: NodeId(which as u32), tokens: Arc::new(|_| Some(TOKEN)) };
                    let host = provider.host(address, options).await.expect("nobody else is there");
                    let groups = (1..=GROUPS).map(|id| GroupMemory { id: GroupId(id), layout: LAYOUT }).collect();
                    let node =
                        LogMemoryNode::start(LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() })
                            .await;
                    let _node = node.expect("there is memory");
                    std::future::pending::<()>().await;
                }
            });
        }
        rt::sleep(Duration::from_millis(20)).await;
        let world = self.clone();
        let formatted = self.sim.node("operator").spawn(async move {
            for which in 0..GROUPS as usize {
                sift::format(&world.group(which)).await.expect("all nodes answer");
            }
        });
        formatted.await.expect("nothing crashes it");
    }

    fn start_own(&self, which: usize) {
        let world = self.clone();
        self.sim.node(OWN[which]).start(move || world.clone().stand_by(which));
    }

    async fn stand_by(self, which: usize) {
        let mut standby = Standby::new(self.group(which), which as u64).expect("the group is good");
        loop {
            match standby.take_over().await {
                Ok(coordinator) => drop(self.count_up(which, &coordinator).await),
                Err(error) => return self.fail(format!("report: {}: {error}", OWN[which])),
            }
        }
    }

    fn start_pool(&self, pool: usize) {
        let world = self.clone();
        let (name, processors) = POOLS[pool];
        self.sim.node(name).start(move || {
            let world = world.clone();
            async move {
                let watched = (0..GROUPS as usize).map(|which| world.watched(pool, which)).collect();
                let options = BackupPoolConfig { number: 100 + pool as u64, cpu_nodes: processors };
                let started = Arc::new(BackupPool::start(watched, options).expect("good groups"));
                world.pools.lock().unwrap_or_else(PoisonError::into_inner).insert(pool, started);
                std::future::pending::<()>().await;
            }
        });
    }

    fn watched(&self, pool: usize, which: usize) -> WatchedGroup {
        let world = self.clone();
        let serve: ServeGroup = Arc::new(move |coordinator| {
            let world = world.clone();
            async move {
                let before = world.serving[pool].fetch_add(1, Ordering::Relaxed);
                let _leaves = Leaves(Arc::clone(&world.serving), pool);
                let (name, processors) = POOLS[pool];
                let more = world.provisioned.load(Ordering::Relaxed);
                if before >= processors + more {
                    world.fail(format!("bound: {name} coordinates {} groups with {processors} processors", before + 1));
                }
                world.count_up(which, &coordinator).await.into()
            }
            .boxed()
        });
        WatchedGroup { group: self.group(which), serve }
    }

    fn fail(&self, reason: String) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }

    fn check_failed(&self) {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(reason) = failed {
            panic!("{reason}");
        }
    }

    /// Increments the first word of a group until its coordinator ends.
    async fn count_up(&self, which: usize, coordinator: &Coordinator) -> Error {
        self.groups[which].takeovers.fetch_add(1, Ordering::Relaxed);
        loop {
            let error = match self.count(which, coordinator).await {
                Ok(()) => continue,
                Err(error) => error,
            };
            if coordinator.is_serving() && error.kind() == ErrorKind::Retry {
                continue;
            }
            return coordinator.ended().await;
        }
    }

    async fn count(&self, which: usize, coordinator: &Coordinator) -> Result<(), Error> {
        let truth = &self.groups[which];
        let least = truth.acked.load(Ordering::Relaxed);
        let bytes = coordinator.read(0, 8).await?;
        let found = u64::from_le_bytes(bytes[..].try_into().expect("eight bytes were read"));
        let most = truth.begun.load(Ordering::Relaxed);
        if !(least..=most).contains(&found) {
            self.fail(format!("linearizable: group {which} has {found}, {least} was acknowledged, {most} begun"));
        }
        let next = truth.begun.fetch_add(1, Ordering::Relaxed) + 1;
        coordinator.write(0, Bytes::copy_from_slice(&next.to_le_bytes())).await?;
        truth.acked.fetch_max(next, Ordering::Relaxed);
        rt::sleep(Duration::from_micros(500 + rt::random_below(8000))).await;
        Ok(())
    }

    fn acked(&self) -> Vec<u64> {
        self.groups.iter().map(|truth| truth.acked.load(Ordering::Relaxed)).collect()
    }

    /// Every group has a coordinator, and every CPU node that is not needed is free.
    async fn comes_to_rest(&self) {
        // Let the nodes that crashed last restart first.
        rt::sleep(Duration::from_millis(50)).await;
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A pool may coordinate groups that have a CPU node of their own, and have none left for groups that have not.
        self.provisioned.store(GROUPS as usize, Ordering::Relaxed);
        pools.values().for_each(|pool| pool.provision(GROUPS as usize).expect("it is not many"));
        let (start, before) = (rt::now(), self.acked());
        let within = |what: &dyn Fn() -> String| assert!(start.elapsed() < CALM_MAX, "{}", what());
        while self.acked().iter().zip(&before).any(|(now, before)| now < &(before + 20)) {
            self.check_failed();
            within(&|| format!("progress: groups counted {before:?}, after {CALM_MAX:?} of calm {:?}", self.acked()));
            rt::sleep(Duration::from_millis(50)).await;
        }
        loop {
            let all: Vec<BackupPoolStatus> = pools.values().map(|pool| pool.status()).collect();
            if all.iter().all(|status| status.waiting() == 0 && status.free + coordinated(status) == status.processors)
            {
                break;
            }
            within(&|| format!("returned: after {CALM_MAX:?} of calm: {all:?}"));
            rt::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn coordinated(status: &BackupPoolStatus) -> usize {
    status.groups.iter().filter(|(_, state)| matches!(state, GroupState::Coordinated { .. })).count()
}

/// Faults of all nodes, and crashes of coordinators.
fn plans(seed: u64) -> [FaultPlan; 2] {
    let processors: Vec<&str> = everybody().collect();
    let bounds = FaultPlanLimits {
        nodes: MEMORY_NODES[..3].iter().chain(&processors).map(|name| (*name).to_owned()).collect(),
        kinds: vec![FaultKind::Pause, FaultKind::Cut, FaultKind::Cut, FaultKind::Break, FaultKind::Drift],
        faults: 10,
        within: Duration::from_millis(300)..TROUBLE,
        lasting: Duration::from_millis(5)..Duration::from_millis(800),
        down_max: 3,
    };
    plans_of(seed, bounds, &processors, 8)
}

fn everybody() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().chain(POOLS.map(|(name, _)| name))
}

async fn scenario(sim: Sim) -> u64 {
    let world = World::new(&sim);
    world.start().await;
    (0..OWN.len()).for_each(|which| world.start_own(which));
    (0..POOLS.len()).for_each(|pool| world.start_pool(pool));
    rt::sleep(Duration::from_millis(200)).await;
    if !sim.seed().is_multiple_of(4) {
        FAULT_POINTS.iter().for_each(|point| sim.inject(point, 0.005));
        sim.inject("rma.sim.lose_verb", 0.001);
        sim.inject("rma.sim.lose_completion", 0.001);
        CRASH_POINTS.iter().for_each(|point| sim.inject(point, 0.05));
    }
    let names: Vec<&str> = everybody().collect();
    endure(&sim, plans(sim.seed()), &names, REVIVE, FAULT_POINTS.iter().chain(CRASH_POINTS)).await;
    world.check_failed();
    world.comes_to_rest().await;
    world.check_failed();
    world.acked().iter().sum()
}

fn campaign() -> Campaign<Mutant> {
    Campaign {
        name: "BACKUPS",
        program: "sift",
        tests: "backups::",
        steps_max: 6_000_000,
        scenario: |sim, _| scenario(sim).boxed(),
        plans,
        points: FAULT_POINTS.iter().chain(CRASH_POINTS).copied().filter(|point| *point != "rma.sim.tear").collect(),
        enough: 100,
        plant,
        sound: Mutant::None,
        mistakes: &[(Mutant::TakeOverUnprovisioned, &["bound:"]), (Mutant::KeepProcessor, &["returned:", "progress:"])],
    }
}

#[test]
fn seeds_0_to_99() {
    campaign().run(0..100);
}

tests_of!(campaign());

/// Waits until a pool's status fulfils a condition; fails after a while.
async fn until(pool: &BackupPool, what: &str, is_so: impl Fn(&BackupPoolStatus) -> bool) {
    let start = rt::now();
    while !is_so(&pool.status()) {
        assert!(start.elapsed() < Duration::from_secs(5), "{what}: {:?}", pool.status());
        rt::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn groups_wait_for_all_to_see_until_processors_are_provisioned() {
    let outcome = Simulation::new(1).run(|sim| async move {
        let world = World::new(&sim);
        world.start().await;
        let (watching, other) = (world.clone(), sim.clone());
        let watching = sim.node("pool").spawn(async move {
            let (world, sim) = (watching, other);
            let serve = |which: usize| -> ServeGroup {
                let world = world.clone();
                Arc::new(move |coordinator| {
                    let world = world.clone();
                    async move { world.count_up(which, &coordinator).await.into() }.boxed()
                })
            };
            let watched = (0..3).map(|which| WatchedGroup { group: world.group(which), serve: serve(which) }).collect();
            let pool = BackupPool::start(watched, BackupPoolConfig { number: 1, cpu_nodes: 1 }).expect("good groups");
            until(&pool, "one of three", |status| coordinated(status) == 1 && status.waiting() == 2).await;
            pool.provision(1).expect("it is not many");
            until(&pool, "two of three", |status| coordinated(status) == 2 && status.waiting() == 1).await;
            // Another CPU node takes over the waiting group.
            let waits = |(_, state): &(GroupId, GroupState)| matches!(state, GroupState::Waiting { .. });
            let which = pool.status().groups.iter().position(waits).expect("one waits");
            world.start_own(which);
            until(&pool, "none waits", |status| status.waiting() == 0 && coordinated(status) == 2).await;
            // A group that lost its coordinator waits again, and gets a CPU node at once if one is free.
            pool.provision(1).expect("it is not many");
            sim.node(OWN[which]).crash();
            until(&pool, "three of three", |status| coordinated(status) == 3 && status.free == 0).await;
            assert!(pool.provision(usize::MAX).is_err());
            pool.stop().await;
        });
        watching.await.expect("it does not crash");
        world.check_failed();
        0
    });
    outcome.expect("all is as it should be");
}

#[test]
fn a_group_is_watched_by_about_one_read_a_heartbeat() {
    let reads = |watches: bool| {
        let run = move |sim: Sim| async move {
            let world = World::new(&sim);
            world.start().await;
            (0..OWN.len()).for_each(|which| world.start_own(which));
            rt::sleep(Duration::from_millis(500)).await;
            let watching = world.clone();
            let _watching = sim.node("pool").spawn(async move {
                let watched: Vec<WatchedGroup> = (0..OWN.len()).map(|which| watching.watched(0, which)).collect();
                let watched = if watches { watched } else { Vec::new() };
                let _pool =
                    BackupPool::start(watched, BackupPoolConfig { number: 1, cpu_nodes: 1 }).expect("good groups");
                std::future::pending::<()>().await;
            });
            let taken: Vec<u64> = world.groups.iter().map(|truth| truth.takeovers.load(Ordering::Relaxed)).collect();
            rt::sleep(Duration::from_secs(2)).await;
            let now: Vec<u64> = world.groups.iter().map(|truth| truth.takeovers.load(Ordering::Relaxed)).collect();
            assert_eq!(taken, now, "nobody is deposed who is alive");
            // The events of clients, one per operation, are not of interest.
            world.provider.counts().reads - world.acked().iter().sum::<u64>()
        };
        Simulation::new(3).run(run).expect("nothing fails").value
    };
    let (without, with) = (reads(false), reads(true));
    let heartbeats = 2000 / timing().heartbeat.as_millis() as u64;
    let each = (with - without) as f64 / (heartbeats * OWN.len() as u64) as f64;
    println!("{each:.2} reads a heartbeat and group");
    assert!((1.0..1.5).contains(&each), "{each} reads a heartbeat and group");
}
