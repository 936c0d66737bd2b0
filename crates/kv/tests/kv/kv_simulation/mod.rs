//! A key-value store under faults: three or five memory nodes, three CPU nodes that take the store over from one
//! another, and clients of the current coordinator.
//!
//! 1. A seed decides sizes, delays, requests and faults: CPU nodes crash, also at the named points of the protocols;
//!    all nodes are paused, are cut off and have drifting clocks; connections break; verbs are lost, torn and delayed.
//!    Memory nodes crash and come back blank, never more at a time than the group must survive.
//! 2. Meanwhile the versions that clients and watchers see are checked against one another: [`history`].
//! 3. All faults are healed. Every client's operation then succeeds soon, every memory node is re-admitted, every entry
//!    is applied, and exactly as many blocks are in use as the keys need. The history of every key must be
//!    linearizable.
//!
//! [`opening`] has two coordinators at a time. [`durable`] has persistent memory nodes, and cuts the power of all nodes
//! at once. [`tables`] has volatile memory nodes, and keeps the store in tables.
//!
//! Each of the planted mistakes ([`kv::fault`]) must be caught.

mod durable;
mod opening;
mod tables;

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rt::simulation::{FaultKind, FaultPlan, Sim};
use base::rt::{self, CancellationToken};
use base::{Bytes, ErrorKind};
use futures_util::future::select;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use kv::fault::{Mutant, plant};
use kv::{Error, KvConfig, KvStore, StoreGeometry};
use rma::Provider;
use rma::sim::SimProvider;

use crate::history::{Asked, History, Outcome, bytes_of, expected_of, key_of, value_of};
use sift::testing::campaign::{Campaign, tests_of};
use sift::testing::{self, CALM_MAX, CPU_NODES, FAULT_POINTS, GROUP, nodes, timing};
use sift::{GroupLayout, RecoveredCoordinator, SiftGroup, Standby};

const KEYS: u64 = 12;
const CLIENTS: usize = 6;
/// Operations of a seed.
const OPERATIONS_MIN: u64 = 300;
/// The group's log.
const GROUP_LOG_BYTES: u64 = 8192;

const CRASH_POINTS: &[&str] = &[
    "consensus.kv.applied",
    "consensus.kv.applying",
    "consensus.kv.committed",
    "consensus.kv.posted",
    "consensus.kv.read",
    "consensus.kv.sealed",
    "consensus.kv.writing_back",
    "consensus.kv.written_back",
];

/// Points that every run reaches again and again.
const OFTEN: &[&str] =
    &["consensus.kv.applied", "consensus.kv.applying", "consensus.kv.committed", "consensus.kv.posted"];

/// The world of one seed.
#[derive(Clone)]
struct World {
    sim: Sim,
    provider: SimProvider,
    history: Arc<History>,
    current: Arc<Mutex<Option<KvStore>>>,
    memory_nodes: usize,
    /// This many of the memory nodes, from the first, are persistent.
    persistent: usize,
    /// The tables in which the store is kept, if it is.
    tables: tables::Open,
    sizes: StoreGeometry,
    options: KvConfig,
}

impl World {
    /// Starts memory nodes, the first `persistent` of them persistent, and formats a group on them.
    async fn found(sim: &Sim, persistent: usize, tables: tables::Open) -> World {
        let seed = sim.seed();
        let history = Arc::new(History::new(sim));
        let log_bytes = [4096, 8192][(seed / 2 % 2) as usize];
        let sizes = StoreGeometry { log_bytes, buckets: 8, blocks: 512, block_bytes: 128 };
        let options = KvConfig { cache_bytes: [0, 1500, 1 << 20][(seed % 3) as usize] };
        let world = World {
            sim: sim.clone(),
            provider: SimProvider::new(sim),
            history,
            current: Arc::default(),
            memory_nodes: nodes(seed),
            persistent,
            tables,
            sizes,
            options,
        };
        for which in 0..world.memory_nodes {
            let is_persistent = which < world.persistent;
            testing::start_memory_node(sim, &world.provider, which, world.layout(), is_persistent, |host| host);
        }
        testing::format(sim, world.group()).await;
        world
    }

    fn group(&self) -> SiftGroup {
        SiftGroup {
            id: GROUP,
            layout: self.layout(),
            nodes: testing::addresses(self.memory_nodes, "kv"),
            provider: Arc::new(self.provider.clone()) as Arc<dyn Provider>,
            timing: timing(),
        }
    }

    fn layout(&self) -> GroupLayout {
        let is_mixed = (1..self.memory_nodes).contains(&self.persistent);
        let data_shares = if is_mixed { 1 } else { testing::data_shares(self.sim.seed()) };
        // The log of an erasure-coded group has whole blocks, where the store writes parts of blocks.
        let log_bytes = if data_shares > 1 { 2 * GROUP_LOG_BYTES } else { GROUP_LOG_BYTES };
        GroupLayout { data_shards: data_shares, ..self.sizes.group_layout(log_bytes).expect("good sizes") }
    }

    fn current(&self) -> Option<KvStore> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        current.filter(|store| store.coordinator().is_serving())
    }

    /// Runs a CPU node: stands by, serves, stands by again.
    async fn process(self, which: usize) {
        let mut standby = Standby::new(self.group(), which as u64).expect("the group is good");
        loop {
            let outcome = match standby.take_over_without_waiting().await {
                Ok(recovered) => self.take_over(recovered).await,
                Err(error) => Err(error.into()),
            };
            match outcome {
                Ok(store) => {
                    let error = self.serve(store).boxed().await;
                    self.check_end(which, &error);
                }
                Err(error) => self.check_end(which, &error),
            }
        }
    }

    async fn take_over(&self, recovered: RecoveredCoordinator) -> Result<KvStore, Error> {
        let persistent = self.tables.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match persistent {
            Some(persistent) => {
                let coordinator = recovered.open().await?;
                let alive = coordinator.clone();
                let taken =
                    KvStore::take_over_persistent(coordinator, self.sizes, self.options, persistent).boxed().await;
                if matches!(taken, Err(Error::Fenced(_))) && alive.is_serving() {
                    self.history.fail("report: the tables refuse a coordinator that serves".to_owned());
                }
                taken
            }
            None => KvStore::take_over_recovered(recovered, self.sizes, self.options).await,
        }
    }

    fn check_end(&self, which: usize, error: &Error) {
        let is_kept = self.tables.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if is_kept && matches!(error, Error::Sift(sift::Error::MemoryLost { .. })) {
            // All memory nodes are blank until the group is reformatted.
            return;
        }
        // The CPU nodes that use the tables lose power together with them.
        if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) || matches!(error, Error::Disk { .. }) {
            self.history.fail(format!("report: {}: {error}", CPU_NODES[which]));
        }
    }

    async fn serve(&self, store: KvStore) -> Error {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(store.clone());
        let mut tasks = FuturesUnordered::new();
        for client in 0..=CLIENTS {
            let (world, store) = (self.clone(), store.clone());
            let task = match client {
                0 => rt::spawn(async move { world.watch(&store).await }),
                _ => rt::spawn(async move { world.ask(&store).await }),
            };
            tasks.push(task.abort_on_drop());
        }
        // A failed check in one of them is noticed at once.
        let hearing = async {
            while tasks.next().await.is_some() {}
            std::future::pending::<()>().await;
        };
        select(pin!(store.ended()), pin!(hearing)).await;
        store.ended().await
    }

    /// An error that ends a client ends the store too.
    async fn ask(&self, store: &KvStore) {
        while self.operate(store).await.is_ok() {}
    }

    /// Watches changes, and starts again where it was too slow.
    async fn watch(&self, store: &KvStore) {
        let mut from = None;
        while let Ok(mut watch) = store.watch(Bytes::new(), from) {
            let mut last = None;
            while let Some(event) = watch.next().await {
                self.history.told(last, event.version, &event.key, event.value.as_deref().map(value_of));
                last = Some(event.version);
                from = Some(watch.next_version());
            }
        }
    }

    async fn operate(&self, store: &KvStore) -> Result<(), Error> {
        let perform = |key: Bytes, asked| async move {
            Ok(match asked {
                Asked::Get => Outcome::got(store.get(&key).await?),
                Asked::Put(value) => Outcome::Done(store.put(key, bytes_of(value)).await?),
                Asked::Delete => Outcome::deleted(store.delete(key).await?),
                Asked::Swap(expected, value) => {
                    let (expected, new) = (expected_of(expected), Some(bytes_of(value)));
                    Outcome::swapped(store.compare_and_set(key, expected, new).await?)
                }
            })
        };
        self.history.operate(KEYS, Error::kind, perform).await
    }

    /// There is a coordinator, everything works, and every memory node is complete again.
    async fn comes_to_rest(&self) {
        let start = rt::now();
        loop {
            let is_whole = self.current().is_some_and(|store| store.coordinator().status().live == self.memory_nodes);
            if is_whole && self.history.operations() >= OPERATIONS_MIN {
                break;
            }
            self.history.check_failed();
            assert!(start.elapsed() < CALM_MAX, "progress: after {CALM_MAX:?} of calm: {}", self.history.operations());
            rt::sleep(Duration::from_millis(100)).await;
        }
        let before = self.history.operations();
        while self.history.operations() == before {
            rt::sleep(Duration::from_millis(50)).await;
            assert!(start.elapsed() < CALM_MAX, "progress: nothing is read or written any more");
        }
    }

    /// Everything is applied, and the blocks in use are those that the keys need.
    async fn check_blocks(&self) {
        let store = self.current().expect("nothing ends it any more");
        let world = self.clone();
        let checked = self.sim.node("operator").spawn(async move {
            loop {
                let before = store.status();
                let mut needed = 0;
                for key in 0..KEYS {
                    let name = key_of(key);
                    if let Some(found) = store.get(&name).await? {
                        needed +=
                            (48 + name.len() + found.value.len()).div_ceil(world.sizes.block_bytes as usize) as u64;
                    }
                }
                let after = store.status();
                if before.last == after.last && after.applied == after.last {
                    let taken = world.sizes.blocks - after.blocks_free;
                    assert!(taken == needed, "blocks: {taken} are taken, the keys need {needed}");
                    return Ok::<(), Error>(());
                }
                rt::sleep(Duration::from_micros(200)).await;
            }
        });
        checked.await.expect("it does not crash").expect("it serves");
    }
}

/// Faults of all nodes, and crashes of CPU nodes.
fn plans(seed: u64) -> [FaultPlan; 2] {
    let kinds = [
        FaultKind::Pause,
        FaultKind::Cut,
        FaultKind::Cut,
        FaultKind::Cut,
        FaultKind::Cut,
        FaultKind::Break,
        FaultKind::Break,
        FaultKind::Drift,
    ];
    testing::plans(seed, &kinds, 3)
}

async fn scenario(sim: Sim) -> u64 {
    course(sim, 0, |_, _| async {}).await
}

/// Runs one seed with `persistent` persistent memory nodes, while `meanwhile` runs during the trouble.
async fn course<F: Future<Output = ()> + Send + 'static>(
    sim: Sim,
    persistent: usize,
    meanwhile: impl FnOnce(Sim, CancellationToken) -> F,
) -> u64 {
    course_of(sim, persistent, tables::Open::default(), |world, stop| meanwhile(world.sim, stop)).await
}

/// As [`course`], with a store that may be kept in tables.
async fn course_of<F: Future<Output = ()> + Send + 'static>(
    sim: Sim,
    persistent: usize,
    tables: tables::Open,
    meanwhile: impl FnOnce(World, CancellationToken) -> F,
) -> u64 {
    let seed = sim.seed();
    let world = World::found(&sim, persistent, tables).await;
    let history = Arc::clone(&world.history);
    for (which, name) in CPU_NODES.into_iter().enumerate() {
        let world = world.clone();
        sim.node(name).start(move || world.clone().process(which));
    }
    let inject = || {
        if seed.is_multiple_of(4) {
            // Faults of nodes and links alone.
            return;
        }
        FAULT_POINTS.iter().for_each(|point| sim.inject(point, 0.01));
        sim.inject("rma.sim.lose_verb", 0.001);
        sim.inject("rma.sim.lose_completion", 0.001);
        sim.inject("rma.sim.delay_verb", 0.002);
        for point in CRASH_POINTS {
            sim.inject(point, if OFTEN.contains(point) { 0.003 } else { 0.08 });
        }
    };
    let serving = world.clone();
    let status = move || serving.current().map(|store| store.coordinator().status());
    let points = FAULT_POINTS.iter().chain(CRASH_POINTS).chain(durable::CRASH_POINTS).chain(tables::CRASH_POINTS);
    let calm = CancellationToken::new();
    let meanwhile = rt::spawn(meanwhile(world.clone(), calm.clone()));
    testing::trouble(&sim, world.layout().is_erasure_coded(), plans(seed), status, inject, points).await;
    calm.cancel();
    meanwhile.await.expect("the driver does not crash");
    history.check_failed();
    world.comes_to_rest().await;
    world.check_blocks().await;
    history.check_failed();
    history.check_linearizable();
    history.operations()
}

fn campaign() -> Campaign<Mutant> {
    Campaign {
        name: "KV",
        program: "kv",
        tests: "kv_simulation::",
        steps_max: 6_000_000,
        scenario: |sim, _| scenario(sim).boxed(),
        plans,
        points: FAULT_POINTS.iter().chain(CRASH_POINTS).copied().collect(),
        enough: 75,
        plant,
        sound: Mutant::None,
        mistakes: &[
            (Mutant::AnswerUncommitted, &["linearizable:", "changed:"]),
            (Mutant::ServeUnwritten, &["linearizable:", "changed:", "report:"]),
            (Mutant::ForgetLog, &["linearizable:", "changed:", "report:"]),
            (Mutant::EvictPending, &["linearizable:"]),
            (Mutant::WalkUnguarded, &["linearizable:", "torn:"]),
            (Mutant::CursorFirst, &["linearizable:", "changed:", "blocks:"]),
            (Mutant::StaleChain, &["linearizable:", "changed:", "blocks:", "torn:", "a block is given"]),
            (Mutant::NoSeal, &["linearizable:", "changed:", "report:"]),
        ],
    }
}

#[test]
fn seeds_0_to_74() {
    campaign().run(0..75);
}

#[test]
fn seeds_75_to_149() {
    campaign().run(75..150);
}

tests_of!(campaign());
