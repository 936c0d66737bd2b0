//! A store that is kept in tables of the storage engine, on a disk that all CPU nodes can reach; memory nodes are
//! volatile.
//!
//! In addition to the faults of [`super`], all nodes lose power at once, and the disk loses the bytes that were not
//! synced. Then all memory is lost: the group is reformatted, and the next coordinator rebuilds the store from the
//! tables. Clients see only changes that are already in the tables, so the history across the power failure must be
//! linearizable.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use base::rt::disk::Directory;
use base::rt::simulation::{Sim, Simulation};
use base::rt::{self, CancellationToken};
use base::{BlockNumber, Epoch};
use futures_util::FutureExt as _;
use kv::fault::{Mutant, plant};
use kv::{Error, KvStore, PersistentTables};
use storage::tables::{
    ModelEngine, PruneOutcome, RangePage, RangeQuery, Row, RowBatch, Savepoint, Tables, TablesEngine as _,
};

use super::{Duration, World, course_of, plans};
use crate::history::{bytes_of, key_of, value_of};
use sift::Standby;
use sift::testing::campaign::{Campaign, must_be_caught, tests_of};
use sift::testing::{CPU_NODES, FAULT_POINTS, GROUP, MEMORY_NODES, nodes};

pub const CRASH_POINTS: &[&str] =
    &["consensus.kv.based", "consensus.kv.persisted", "consensus.kv.persisting", "consensus.kv.restoring"];
/// The node that owns the disk.
const DISK: &str = "disk";

/// The tables that are open now.
pub type Open = Arc<Mutex<Option<PersistentTables>>>;

async fn open_named(sim: &Sim, name: &'static str) -> Arc<dyn Tables> {
    let opening = sim.node(DISK).spawn(async move {
        let directory = Directory::open("/tables").await.expect("a directory can be made");
        let engine = ModelEngine::open(directory).await.expect("it opens");
        engine.tables(name).await.expect("no crash damages them")
    });
    opening.await.expect("it does not crash")
}

async fn open(sim: &Sim, tables: &Open) {
    let persistent = PersistentTables { tables: open_named(sim, "kv").await, is_synchronous: true };
    *tables.lock().unwrap_or_else(PoisonError::into_inner) = Some(persistent);
}

async fn power_fails(world: World, until: CancellationToken) {
    let sim = world.sim.clone();
    let mut rng = sim.rng();
    CRASH_POINTS.iter().for_each(|point| sim.inject(point, 0.005));
    ["consensus.kv.based", "consensus.kv.restoring"].iter().for_each(|point| sim.inject(point, 0.2));
    let memory_nodes = &MEMORY_NODES[..nodes(sim.seed())];
    loop {
        let pause = rng.duration(&(Duration::from_millis(300)..Duration::from_millis(900)));
        if until.run_until_cancelled(rt::sleep(pause)).await.is_none() {
            return;
        }
        CPU_NODES.iter().chain(memory_nodes).chain(&[DISK]).for_each(|name| sim.node(name).crash());
        sim.node(DISK).restart();
        open(&sim, &world.tables).await;
        memory_nodes.iter().for_each(|name| sim.node(name).restart());
        loop {
            let formatting = world.clone();
            let formatted = sim.node("operator").spawn(async move { sift::format(&formatting.group()).await });
            match formatted.await.expect("nothing crashes it") {
                Ok(()) | Err(sift::Error::AlreadyFormatted(_)) => break,
                Err(_) => rt::sleep(Duration::from_millis(10)).await,
            }
        }
        CPU_NODES.iter().for_each(|name| sim.node(name).restart());
    }
}

async fn scenario(sim: Sim) -> u64 {
    let tables = Open::default();
    open(&sim, &tables).await;
    course_of(sim, 0, tables, power_fails).await
}

fn campaign() -> Campaign<Mutant> {
    Campaign {
        name: "TABLES",
        program: "kv",
        tests: "kv_simulation::tables::",
        steps_max: 6_000_000,
        scenario: |sim, _| scenario(sim).boxed(),
        plans,
        points: FAULT_POINTS.iter().chain(CRASH_POINTS).copied().collect(),
        enough: 75,
        plant,
        sound: Mutant::None,
        mistakes: &[
            (Mutant::TellUnpersisted, &["linearizable:", "changed:", "report:"]),
            (Mutant::ApplyUnpersisted, &["linearizable:", "changed:", "report:"]),
            (Mutant::EpochOfTerm, &["report:"]),
        ],
    }
}

#[test]
fn seeds_0_to_99() {
    campaign().run(0..100);
}

tests_of!(campaign());

/// Tables at which a batch of an earlier coordinator arrives late.
struct Racing {
    inner: Arc<dyn Tables>,
    /// Writes are held back.
    holds: AtomicBool,
    held: Mutex<Option<RowBatch>>,
    /// The batch arrives after the next read of the savepoint.
    races: AtomicBool,
}

impl Racing {
    fn held(&self) -> MutexGuard<'_, Option<RowBatch>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Tables for Racing {
    fn write(&self, batch: RowBatch) -> Result<(), storage::Error> {
        if self.holds.load(Ordering::Relaxed) {
            *self.held() = Some(batch);
            return Ok(());
        }
        self.inner.write(batch)
    }

    async fn persist(&self) -> Result<Savepoint, storage::Error> {
        if self.holds.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.inner.persist().await
    }

    fn savepoint(&self) -> Savepoint {
        let savepoint = self.inner.savepoint();
        if self.races.swap(false, Ordering::Relaxed) {
            let batch = self.held().take().expect("a batch is held");
            self.inner.write(batch).expect("nobody has fenced it yet");
        }
        savepoint
    }

    fn durable_savepoint(&self) -> Savepoint {
        self.inner.durable_savepoint()
    }

    fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, storage::Error> {
        self.inner.get(namespace, key, through)
    }

    fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, storage::Error> {
        self.inner.range(query)
    }

    fn namespaces(&self) -> Result<Vec<String>, storage::Error> {
        self.inner.namespaces()
    }

    fn prune(&self, oldest: BlockNumber, rows_max: usize) -> Result<PruneOutcome, storage::Error> {
        self.inner.prune(oldest, rows_max)
    }
}

/// A standby at a CPU node takes over, with these tables.
async fn take_over(world: &World, which: usize, tables: Arc<dyn Tables>) -> Result<KvStore, Error> {
    let mut standby = Standby::new(world.group(), which as u64).expect("the group is good");
    let coordinator = standby.take_over().await.expect("a majority is there");
    let persistent = PersistentTables { tables, is_synchronous: true };
    KvStore::take_over_persistent(coordinator, world.sizes, world.options, persistent).await
}

/// The first coordinator ends in the middle of a batch, which reaches the tables while the second coordinator writes
/// its epoch into them.
async fn raced(sim: Sim) -> u64 {
    let world = World::found(&sim, 0, Open::default()).await;
    let racing = Arc::new(Racing {
        inner: open_named(&sim, "kv").await,
        holds: AtomicBool::new(false),
        held: Mutex::default(),
        races: AtomicBool::new(false),
    });
    let (first, tables) = (world.clone(), Arc::clone(&racing));
    drop(sim.node(CPU_NODES[0]).spawn(async move {
        let store = take_over(&first, 0, tables.clone()).await.expect("the tables are blank");
        store.put(key_of(1), bytes_of(1)).await.expect("it serves");
        tables.holds.store(true, Ordering::Relaxed);
        store.put(key_of(2), bytes_of(2)).await.expect_err("the tables never have it");
    }));
    while racing.held().is_none() {
        rt::sleep(Duration::from_millis(1)).await;
    }
    sim.node(CPU_NODES[0]).crash();
    racing.holds.store(false, Ordering::Relaxed);
    racing.races.store(true, Ordering::Relaxed);
    let taken = sim.node(CPU_NODES[1]).spawn(async move {
        let store = take_over(&world, 1, racing).await.expect("report: it tries again");
        for value in 1..3 {
            let found = store.get(&key_of(value)).await.expect("it serves").expect("lost: it was in the tables");
            assert_eq!(value_of(&found.value), value);
        }
        store.put(key_of(3), bytes_of(3)).await.expect("the tables take it");
    });
    taken.await.expect("nothing crashes it");
    3
}

#[test]
fn a_batch_that_comes_between_look_and_fence_does_not_end_the_next_coordinator() {
    must_be_caught("FenceOnce", &["report:"], |seed| {
        plant(Mutant::FenceOnce);
        let outcome = Simulation::new(seed).run(raced);
        plant(Mutant::None);
        outcome
    });
    for seed in 0..20 {
        Simulation::new(seed).run(raced).expect("the second coordinator serves");
    }
}

/// Tables of another group, and of another store, with a group that has no store and with one that has.
async fn strange(sim: Sim) -> u64 {
    let world = World::found(&sim, 0, Open::default()).await;
    let (others, strangers) = (open_named(&sim, "group").await, open_named(&sim, "store").await);
    for (tables, group) in [(&others, GROUP.0 + 1), (&strangers, GROUP.0)] {
        let mut block_hash = [0; 32];
        block_hash[..8].copy_from_slice(&1234_u64.to_le_bytes());
        block_hash[8..16].copy_from_slice(&group.to_le_bytes());
        let savepoint = Savepoint { height: 5, epoch: Epoch(0), block_hash };
        tables.write(RowBatch::new(savepoint)).expect("they are blank");
    }
    let own = open_named(&sim, "kv").await;
    let trying = sim.node(CPU_NODES[0]).spawn(async move {
        let refused =
            |outcome: Result<KvStore, Error>| assert!(matches!(outcome, Err(Error::Invalid(_))), "{outcome:?}");
        refused(take_over(&world, 0, Arc::clone(&others)).await);
        take_over(&world, 0, own).await.expect("blank tables are its own");
        refused(take_over(&world, 0, Arc::clone(&others)).await);
        refused(take_over(&world, 0, Arc::clone(&strangers)).await);
        for tables in [others, strangers] {
            assert_eq!(tables.savepoint().epoch, Epoch(0), "a stranger's tables were fenced");
        }
    });
    trying.await.expect("nothing crashes it");
    0
}

#[test]
fn tables_of_another_group_or_store_are_refused_and_left_as_they_are() {
    Simulation::new(1).run(strange).expect("they are refused");
}
