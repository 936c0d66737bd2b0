//! The disaggregated state under faults: random blocks, readers at many heights, fills, splits, lost sections, and
//! primaries that are replaced while they work, most of which adopt the memory of the last one.
//!
//! Checked in every seed:
//! 1. a read or a range at a height returns exactly the state after the blocks below it, or an error that states the
//!    reason;
//! 2. the record that a pointer leads to under a live lease can be trusted, and only the primary changes slots;
//! 3. no verb takes effect after its fence (the simulated provider asserts that), and a fenced primary gets an error
//!    that says so;
//! 4. at any time remote memory is within its budget, every leased byte is accounted for, every record to which slots
//!    and the delta lead is there, and every evicted record is marked invalid;
//! 5. when the faults are over, the state answers for every key, nothing is leaked, and no donor, cache or delta is
//!    above its budget;
//! 6. a follower's snapshot is no older than the newest height that any primary had shown when the snapshot was taken
//!    ([`followers`]);
//! 7. a follower's answer to a work item counts only for that item, and only if the follower had reached the height
//!    that the primary had shown. `offloaded_work.rs` checks which leases the answer needs.
//!
//! `STATE_SEEDS=from..to` runs other seeds; a failure names the seed that repeats it.

mod followers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Donors, rows};
use base::rt::channel::WatchReceiver;
use base::rt::simulation::{Prng, Sim, Simulation, SimulationFailure, SimulationReport};
use base::rt::{self, CancellationToken};
use base::{BlockNumber, Bytes, Epoch, ErrorKind, Version};
use pool::AddressSpace;
use replica::ReplicatedState as _;
use replica::fault::Mutant as ReplicaMutant;
use state::disaggregated::fault::Mutant;
use state::{ApplyWorkers, Disaggregated, DisaggregatedConfig, Durable, Error, Snapshot, UpdateBatch, WorldState};
use storage::tables::{RangeQuery, Row, Savepoint};
use storage::{MemoryStateStore, StateStore};

/// Seeds of every run of the tests.
const SEEDS: u64 = 400;
/// Seeds of which at least one must catch a planted mistake.
const MUTANT_SEEDS: u64 = 1000;
const NAMESPACE: &str = "cc";

/// Fault points that must be hit in some seed.
const FAULT_POINTS: [&str; 53] = [
    "rma.sim.lose_completion",
    "rma.sim.lose_verb",
    "rma.sim.tear",
    "state.adopt.free",
    "state.adopt.read",
    "state.adopt.slow",
    "state.adopt.survey",
    "state.apply.caches",
    "state.apply.link",
    "state.apply.locate",
    "state.apply.mark",
    "state.apply.publish",
    "state.apply.slot",
    "state.apply.write",
    "state.drain.choose",
    "state.drain.directory",
    "state.drain.give_up",
    "state.drain.move",
    "state.drain.persist",
    "state.evict.begin",
    "state.evict.caches",
    "state.evict.mark",
    "state.evict.persist",
    "state.evict.slot",
    "state.evict.superseded",
    "state.fill.begin",
    "state.fill.slot",
    "state.fill.write",
    "state.grow",
    "state.loss",
    "state.migrate.copy",
    "state.migrate.grant",
    "state.migrate.return",
    "state.migrate.switch",
    "state.range.page",
    "state.read.bucket",
    "state.read.learn",
    "state.read.record",
    "state.read.storage",
    "state.followers.ack",
    "state.followers.done",
    "state.followers.fill",
    "state.followers.follow",
    "state.followers.grant",
    "state.followers.granted",
    "state.followers.join",
    "state.followers.leave",
    "state.followers.serve",
    "state.followers.share",
    "state.followers.tell",
    "state.followers.work",
    "state.split.directory",
    "state.verb.ambiguous",
];

/// Events that must have happened, each in at least one of this many seeds.
const HAPPENED: [(&str, u64); 18] = [
    ("heddle_state_evicted_records_total", 2),
    ("heddle_state_evicted_superseded_total", 4),
    ("heddle_state_eviction_persists_total", 4),
    ("heddle_state_fills_total", 2),
    ("heddle_state_follower_blocks_total", 4),
    ("heddle_state_follower_work_items_failed_total", 8),
    ("heddle_state_follower_work_items_total", 4),
    ("heddle_state_followers_fenced_total", 4),
    ("heddle_state_followers_joined_total", 3),
    ("heddle_state_followers_left_total", 8),
    ("heddle_state_keys_mended_total", 8),
    ("heddle_state_reads_without_lease_total", 40),
    ("heddle_state_records_adopted_total", 4),
    ("heddle_state_sections_adopted_total", 4),
    ("heddle_state_sections_drained_total", 10),
    ("heddle_state_sections_migrated_total", 4),
    ("heddle_state_sections_not_adopted_total", 40),
    ("heddle_state_subtables_moved_total", 40),
];

/// The blocks, and the nodes that make them.
struct World {
    donors: Donors,
    store: MemoryStateStore,
    keys: u64,
    value_bytes: u64,
    budget_bytes: u64,
    settings: DisaggregatedConfig,
    ledger: Mutex<Ledger>,
    /// The epoch of the primary from which storage accepts blocks.
    epoch: AtomicU64,
    /// The greatest height that any primary has shown.
    shown: AtomicU64,
    /// The node on which the primary of each epoch runs.
    seats: Mutex<BTreeMap<u64, String>>,
    /// Followers that have not yet read everything at the end.
    readers: AtomicU64,
    reads: AtomicU64,
    /// The primary is to give most of its memory back.
    shrinks: AtomicBool,
    /// After one of this many blocks the primary vacates a memory node, or uses it again.
    vacates_one_in: u64,
}

#[derive(Default)]
struct Ledger {
    blocks: Vec<UpdateBatch>,
    /// The live records after each block.
    after: Vec<Arc<BTreeMap<String, (Bytes, Version)>>>,
    /// The epoch of the primary that made each block. Storage rejects the block from any earlier primary.
    epochs: Vec<u64>,
}

impl World {
    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("nobody panics with it")
    }

    /// The node of the newest primary.
    fn seat(&self) -> String {
        let epoch = self.epoch.load(Ordering::Acquire);
        self.seats.lock().expect("nobody panics with it")[&epoch].clone()
    }

    fn key(&self, rng: &mut Prng) -> String {
        // Half of the accesses go to a few keys.
        let number = if rng.one_in(2) { rng.below(4) } else { rng.below(self.keys) };
        format!("k{number:03}")
    }

    /// Makes a durable block, if this primary may still make one.
    fn make_block(&self, epoch: u64, rng: &mut Prng) -> bool {
        if self.epoch.load(Ordering::Acquire) != epoch {
            return false;
        }
        let mut ledger = self.ledger();
        let number = ledger.blocks.len() as u64;
        let mut batch = UpdateBatch::default();
        let mut after = ledger.after.last().map(|live| BTreeMap::clone(live)).unwrap_or_default();
        let namespace: Arc<str> = NAMESPACE.into();
        let writes = if number == 0 && self.keys > 100 {
            2 * self.keys
        } else if rng.one_in(12) {
            rng.below(self.keys)
        } else {
            rng.below(8)
        };
        for tx in 0..writes as u32 {
            let key = self.key(rng);
            let version = Version { block: number, tx };
            let value = (!rng.one_in(5)).then(|| {
                let mut value = format!("{key}@{version}").into_bytes();
                value.resize(value.len() + rng.below(self.value_bytes) as usize, tx as u8);
                Bytes::from(value)
            });
            batch.put(&namespace, key.as_str().into(), value.clone(), version);
            match value {
                Some(value) => after.insert(key, (value, version)),
                None => after.remove(&key),
            };
        }
        self.store.add_block(rows(&batch));
        ledger.blocks.push(batch);
        ledger.after.push(Arc::new(after));
        ledger.epochs.push(epoch);
        true
    }

    fn expected(&self, height: u64) -> Arc<BTreeMap<String, (Bytes, Version)>> {
        height.checked_sub(1).map_or_else(Arc::default, |last| self.ledger().after[last as usize].clone())
    }

    /// Check 1, for one read or range. False when the snapshot can no longer be used.
    async fn check_one(&self, snapshot: &dyn Snapshot, rng: &mut Prng) -> bool {
        let height = snapshot.height();
        let expected = self.expected(height);
        self.reads.fetch_add(1, Ordering::Relaxed);
        // The first blocks are those that write to an empty namespace.
        if height <= 3 && matches!(snapshot.may_have_rows(NAMESPACE).await, Ok(false)) {
            assert!(expected.is_empty(), "rows at height {height}");
        }
        let outcome = match rng.below(8) {
            0 => {
                let (start, end) = (self.key(rng), self.key(rng));
                let limit = rng.below(12) as usize;
                snapshot.range(NAMESPACE, &start, &end, limit).await.map(|page| {
                    let found: Vec<_> = page
                        .entries
                        .into_iter()
                        .map(|entry| (entry.key.to_string(), (entry.versioned.value, entry.versioned.version)))
                        .collect();
                    let within = expected.iter().filter(|(key, _)| **key >= start && **key < end);
                    let wanted: Vec<_> =
                        within.take(limit).map(|(key, record)| (key.clone(), record.clone())).collect();
                    assert_eq!(found, wanted, "{start}..{end} limit {limit} at height {height}");
                })
            }
            1 | 2 => {
                let keys: Vec<String> = (0..rng.below(6)).map(|_| self.key(rng)).collect();
                let names: Vec<(&str, &str)> = keys.iter().map(|key| (NAMESPACE, key.as_str())).collect();
                snapshot.versions(&names).await.map(|versions| {
                    for (key, version) in keys.iter().zip(versions) {
                        assert_eq!(version, expected.get(key).map(|(_, version)| *version), "{key} at height {height}");
                    }
                })
            }
            _ => {
                let key = self.key(rng);
                snapshot.get(NAMESPACE, &key).await.map(|found| {
                    let found = found.map(|found| (found.value, found.version));
                    assert_eq!(found, expected.get(&key).cloned(), "{key} at height {height}");
                })
            }
        };
        match outcome {
            Ok(()) => true,
            Err(Error::Busy) => true,
            Err(error) => {
                let kinds = [ErrorKind::Retry, ErrorKind::Fenced];
                assert!(kinds.contains(&error.kind()), "at height {height}: {error}");
                false
            }
        }
    }
}

/// A block becomes durable at once, soon, after the state has stopped holding its lock for it, or not at all.
fn become_durable(durable: &Arc<AtomicU64>, number: u64, is_fenced: bool, rng: &mut Prng) -> Durable<'static> {
    let durable = Arc::clone(durable);
    let after = match rng.below(16) {
        0 => rng.duration(&(Duration::ZERO..Duration::from_millis(120))),
        1..=5 => rng.duration(&(Duration::ZERO..Duration::from_millis(3))),
        _ => Duration::ZERO,
    };
    let fails = rng.one_in(20);
    Box::pin(async move {
        rt::sleep(after).await;
        if is_fenced {
            return Err(Error::Fenced);
        }
        if fails {
            return Err(Error::Busy);
        }
        durable.store(number + 1, Ordering::Release);
        Ok(())
    })
}

async fn read(
    world: Arc<World>,
    state: Arc<Disaggregated>,
    durable: Arc<AtomicU64>,
    mut rng: Prng,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let snapshot = state.snapshot();
        let height = snapshot.height();
        assert!(height <= durable.load(Ordering::Acquire), "block {} is seen and not durable", height - 1);
        for _ in 0..rng.below(12) {
            if !world.check_one(&*snapshot, &mut rng).await {
                break;
            }
            if rng.one_in(3) {
                rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(20)))).await;
            }
        }
        drop(snapshot);
        rt::sleep(rng.duration(&(Duration::from_micros(10)..Duration::from_millis(2)))).await;
    }
}

/// The store as one primary reaches it: its changes are rejected once there is a newer primary.
struct ReachableStore {
    world: Arc<World>,
    epoch: u64,
}

impl ReachableStore {
    fn check(&self) -> Result<(), storage::Error> {
        let newest = self.world.epoch.load(Ordering::Acquire);
        match newest == self.epoch {
            true => Ok(()),
            false => Err(storage::Error::Fenced { given: Epoch(self.epoch), newest: Epoch(newest) }),
        }
    }
}

#[async_trait::async_trait]
impl StateStore for ReachableStore {
    async fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, storage::Error> {
        self.world.store.get(namespace, key, through).await
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, storage::Error> {
        self.world.store.get_many(keys, through).await
    }

    async fn versions(
        &self,
        keys: &[(&str, &[u8])],
        through: BlockNumber,
    ) -> Result<Vec<Option<(Version, bool)>>, storage::Error> {
        self.world.store.versions(keys, through).await
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<storage::tables::RangePage, storage::Error> {
        self.world.store.range(query).await
    }

    async fn namespaces(&self) -> Result<Vec<String>, storage::Error> {
        self.world.store.namespaces().await
    }

    fn savepoint(&self) -> Savepoint {
        self.world.store.savepoint()
    }

    fn subscribe_savepoint(&self) -> WatchReceiver<u64> {
        self.world.store.subscribe_savepoint()
    }

    async fn materialize(&self, height: u64) -> Result<Savepoint, storage::Error> {
        self.check()?;
        self.world.store.materialize(height).await
    }

    async fn prune(&self, oldest: BlockNumber) -> Result<(), storage::Error> {
        self.check()?;
        self.world.store.prune(oldest).await
    }

    async fn confirm(&self) -> Result<(), storage::Error> {
        rt::sleep(Duration::from_micros(50)).await;
        self.check()
    }
}

/// A primary: opens the state, applies the existing blocks again, and makes blocks until it is replaced.
async fn run_primary(world: Arc<World>, epoch: u64, mut rng: Prng, stop: CancellationToken) {
    let opened = match rng.one_in(6) {
        true => world.donors.open(epoch, world.budget_bytes).await,
        false => world.donors.adopt(epoch, world.budget_bytes).await,
    };
    let space = match opened {
        Ok(space) => space,
        Err(error) => return assert!(world.epoch.load(Ordering::Acquire) > epoch, "epoch {epoch}: {error}"),
    };
    let store: Arc<dyn StateStore> = Arc::new(ReachableStore { world: Arc::clone(&world), epoch });
    let state = Disaggregated::open(Arc::new(space.clone()), store, world.settings.clone()).await;
    let state = Arc::new(state.expect("the store answers"));
    // Blocks that were reported to this primary as durable.
    let durable = Arc::new(AtomicU64::new(state.height()));
    let mut readers = Vec::new();
    for _ in 0..3 {
        let rng = Prng::new(rng.number());
        readers.push(rt::spawn(read(Arc::clone(&world), Arc::clone(&state), Arc::clone(&durable), rng, stop.clone())));
    }
    readers.push(rt::spawn(followers::offload(Arc::clone(&state), Prng::new(epoch), stop.clone())));
    let _serving = followers::serve(epoch, Arc::clone(&state)).await;
    let mut lingering = 3;
    while !stop.is_cancelled() {
        let height = state.height();
        let made = world.ledger().blocks.len() as u64;
        if height == made {
            state.admit_followers().await;
            world.shown.fetch_max(height, Ordering::AcqRel);
        }
        if height == made && !world.make_block(epoch, &mut rng) {
            // Replaced. It continues for a while as if it did not know.
            lingering -= 1;
            if lingering == 0 {
                break;
            }
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(200)))).await;
            continue;
        }
        let batch = world.ledger().blocks[height as usize].clone();
        let is_fenced = world.ledger().epochs[height as usize] > epoch;
        let applied = match rng.below(3) {
            0 if !is_fenced => {
                durable.store(height + 1, Ordering::Release);
                state.apply(height, batch).await
            }
            _ => state.apply_when(height, batch, become_durable(&durable, height, is_fenced, &mut rng)).await,
        };
        match applied {
            // The block did not become durable. It is given again.
            Err(Error::Busy) => {}
            Ok(()) => drop(world.shown.fetch_max(height + 1, Ordering::AcqRel)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Fenced, "block {height}: {error}");
                assert!(world.epoch.load(Ordering::Acquire) > epoch, "nobody has replaced epoch {epoch}");
                break;
            }
        }
        if (state.wants_persist() || rng.one_in(12))
            && let Err(error) = state.persist().await
        {
            assert_eq!(error.kind(), ErrorKind::Fenced, "the store works: {error}");
            assert!(world.epoch.load(Ordering::Acquire) > epoch, "nobody has replaced epoch {epoch}");
        }
        if world.shrinks.swap(false, Ordering::AcqRel) {
            state.set_budget(world.donors.section_bytes).expect("it is a section");
        } else if rng.one_in(8) {
            let bytes = world.donors.section_bytes * (1 + rng.below(world.budget_bytes / world.donors.section_bytes));
            state.set_budget(bytes).expect("it is a section or more");
        }
        if rng.one_in(world.vacates_one_in) {
            let donor = rng.pick(&world.donors.names).clone();
            space.set_vacated(&donor, rng.one_in(2));
            state.vacate();
        }
        if rng.one_in(4) {
            look_in(&world, &space, &state).await;
        }
        if rng.one_in(3) {
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(30)))).await;
        }
    }
    for reader in readers {
        reader.await.expect("nobody ends a reader");
    }
    if world.epoch.load(Ordering::Acquire) == epoch {
        while state.height() < world.ledger().blocks.len() as u64 {
            let batch = world.ledger().blocks[state.height() as usize].clone();
            durable.store(state.height() + 1, Ordering::Release);
            state.apply(state.height(), batch).await.expect("nothing disturbs it");
        }
        state.admit_followers().await;
        followers::wait_until_all_have_read(&world).await;
        quiesce(&world, &space, &state).await;
    }
}

/// Check 4, during the run. Lost subtables may leave unreachable records until the sweep finds them; nothing else may.
async fn look_in(world: &World, space: &AddressSpace, state: &Disaggregated) {
    let Ok(audit) = state.audit().await else { return };
    assert_eq!((audit.dangling, audit.unmarked), (0, 0), "{audit:?}");
    assert_eq!(audit.leased, audit.free + audit.live + audit.quarantined, "{audit:?}");
    // The state may not have heard of lost sections yet.
    assert!(space.sections().len() as u64 * space.section_bytes() <= world.budget_bytes, "{audit:?}");
}

/// Check 5, when all faults are over.
async fn quiesce(world: &World, space: &AddressSpace, state: &Disaggregated) {
    rt::sleep(Duration::from_secs(3)).await;
    let mut rest = None;
    for _ in 0..20 {
        let audit = state.audit().await.expect("nothing disturbs it");
        if audit.leaked == 0 && audit.leased <= space.budget_bytes() {
            rest = Some(audit);
            break;
        }
        rt::sleep(Duration::from_secs(1)).await;
    }
    let audit = rest.unwrap_or_else(|| panic!("something is leaked, or not given back"));
    assert_eq!((audit.dangling, audit.unmarked), (0, 0), "{audit:?}");
    assert_eq!(audit.leased, audit.free + audit.live + audit.quarantined, "{audit:?}");
    assert_eq!(audit.live, audit.index + audit.records + audit.superseded + audit.untold, "{audit:?}");
    assert!(audit.metadata_cache <= world.settings.metadata_cache_bytes as u64, "{audit:?}");
    assert!(audit.data_cache <= world.settings.data_cache_bytes as u64, "{audit:?}");
    let snapshot = state.snapshot();
    let expected = world.expected(snapshot.height());
    for number in 0..world.keys {
        let key = format!("k{number:03}");
        let found = snapshot.get(NAMESPACE, &key).await.expect("nothing disturbs it");
        let found = found.map(|found| (found.value, found.version));
        assert_eq!(found, expected.get(&key).cloned(), "{key} at the end");
    }
}

/// Injects a fault while primaries are running.
async fn disturb(sim: &Sim, world: &World, rng: &mut Prng) {
    let donor = rng.pick(&world.donors.names).clone();
    let primary = world.seat();
    match rng.below(6) {
        0 => {
            sim.node(&donor).crash();
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(300)))).await;
            sim.node(&donor).restart();
        }
        1 => {
            sim.cut(&primary, &donor);
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(400)))).await;
            sim.heal(&primary, &donor);
        }
        2 => {
            sim.break_links(&primary, &donor);
        }
        3 => {
            let primary = sim.node(&primary);
            primary.pause();
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(150)))).await;
            primary.resume();
        }
        4 => {
            let height = world.ledger().blocks.len() as u64;
            drop(world.store.materialize(rng.below(height + 1)).await);
        }
        _ => world.store.set_delay(rng.duration(&(Duration::ZERO..Duration::from_millis(3)))),
    }
}

async fn scenario(sim: Sim, focus: Focus) {
    let mut rng = sim.rng();
    // In some worlds records move in and out of memory all the time.
    let is_crowded = rng.one_in(3) || focus == Focus::Joins;
    // In some worlds one primary is replaced while it is still applying what the last one left behind.
    let is_restless = rng.one_in(3) || focus != Focus::Everything;
    let section_bytes = 8192 << rng.below(3);
    let migrates = matches!(focus, Focus::Migrations | Focus::Joins);
    let donors = if migrates { 2 } else { 1 } + rng.below(3) as u32;
    let donor_sections = if migrates { 8 } else { 1 } + rng.below(12);
    let donors = Donors::start(&sim, donors, section_bytes, donor_sections * section_bytes).await;
    let cache_bytes = |rng: &mut Prng| [0, 700, 4_000, 100_000][rng.index(4)];
    let (evict_above_percent, evict_to_percent) =
        if is_crowded { (40, 5) } else { [(90, 85), (60, 40), (40, 5)][rng.index(3)] };
    let settings = DisaggregatedConfig {
        // Without a cache and with nothing in the delta, a follower depends on what it finds in memory.
        metadata_cache_bytes: match (focus, is_crowded) {
            (Focus::Joins, _) => 0,
            (_, true) => 4_000,
            (_, false) => cache_bytes(&mut rng),
        },
        data_cache_bytes: cache_bytes(&mut rng),
        delta_bytes_max: [4_000, 1 << 20][rng.index(2)],
        view_lag_blocks_max: [5, 1_000][rng.index(2)],
        savepoint_lag_blocks_max: match focus {
            Focus::Joins => 1,
            _ => 1 + rng.below(if is_restless { 200 } else { 40 }),
        },
        apply_workers: ApplyWorkers { workers_max: [1, 2, 4][rng.index(3)], keys_per_worker: rng.index(3) },
        evict_above_percent,
        evict_to_percent,
    };
    let sections_min = if migrates { 3 } else { 1 };
    let budget_bytes = section_bytes * (sections_min + rng.below(if is_crowded { 3 } else { 16 }));
    let keys = if is_crowded { 40 } else { [6, 40, 700][rng.index(3)] };
    let value_bytes = if is_crowded { 300 } else { [20, 300, 9_000][rng.index(3)] } + 1;
    let world = Arc::new(World {
        donors,
        store: MemoryStateStore::new(),
        keys,
        value_bytes,
        budget_bytes,
        settings,
        ledger: Mutex::default(),
        epoch: AtomicU64::new(1),
        shown: AtomicU64::new(0),
        seats: Mutex::default(),
        readers: AtomicU64::new(0),
        reads: AtomicU64::new(0),
        shrinks: AtomicBool::new(false),
        vacates_one_in: if migrates { 2 } else { 6 },
    });
    for name in FAULT_POINTS {
        let rate = match name {
            _ if name.starts_with("rma") => 0.000_5,
            "state.verb.ambiguous" => 0.000_3,
            "state.grow" | "state.loss" | "state.split.directory" => 0.3,
            "state.adopt.slow" => 0.8,
            "state.apply.mark" if focus == Focus::Replays => 0.4,
            "state.apply.mark" if is_restless => 0.1,
            _ if name.starts_with("state.adopt") => 0.3,
            "state.followers.join" | "state.followers.share" | "state.followers.fill" => 0.2,
            "state.followers.serve" | "state.followers.done" => 0.02,
            "state.followers.leave" if focus == Focus::Joins => 0.03,
            "state.followers.follow" if focus == Focus::Joins => [0.2, 0.7][rng.index(2)],
            "state.followers.leave" => 0.01,
            "state.followers.work" => 0.2,
            "state.drain.choose" => 0.8,
            _ if migrates && name.starts_with("state.migrate") => 0.9,
            _ if name.starts_with("state.drain") || name.starts_with("state.migrate") => 0.4,
            "state.followers.granted" => 0.6,
            "state.read.learn" => 0.3,
            "state.read.record" => 0.05,
            _ if is_crowded && name.starts_with("state.evict") => 0.05,
            _ => 0.01,
        };
        if rng.one_in(2) || (is_crowded && name == "state.read.learn") || focus.needs(name) {
            sim.inject(name, rate);
        }
    }
    let stop = CancellationToken::new();
    let mut primaries = Vec::new();
    let crew = followers::Followers::start(&sim, &world, &mut rng, &stop);
    let mut begin = |epoch: u64, seat: String, rng: &mut Prng| {
        let node = sim.node(&seat);
        world.seats.lock().expect("nobody panics with it").insert(epoch, seat);
        node.set_clock_drift_ppm(rng.below(20_000) as i64 - 10_000);
        world.epoch.store(epoch, Ordering::Release);
        primaries.push(node.spawn(run_primary(Arc::clone(&world), epoch, Prng::new(rng.number()), stop.clone())));
    };
    begin(1, "compute1".to_owned(), &mut rng);
    let mut killed = 0;
    for _ in 0..6 + rng.below(6) {
        rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(150)))).await;
        if rng.one_in(if is_restless { 2 } else { 5 }) || focus == Focus::Replays {
            let epoch = world.epoch.load(Ordering::Acquire) + 1;
            // The old primary is dead, or does not know; the new one runs on another node, or on that of a follower.
            let (last, donor) = (world.seat(), rng.pick(&world.donors.names).clone());
            let is_cut = is_restless && rng.one_in(2);
            if is_cut {
                // It loses a memory node, whose sections its successor finds.
                sim.cut(&last, &donor);
                sim.break_links(&last, &donor);
                rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(100)))).await;
            } else if is_restless && (rng.one_in(2) || focus == Focus::Moves) {
                world.shrinks.store(true, Ordering::Release);
                rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(200)))).await;
            }
            let dies = is_cut || matches!(focus, Focus::Replays | Focus::Migrations);
            if dies || rng.one_in(if is_restless { 4 } else { 2 }) {
                sim.node(&last).crash();
                killed += 1;
            }
            if is_cut {
                sim.heal(&last, &donor);
            }
            let seat = match rng.one_in(2) {
                true => crew.promote(),
                false => None,
            };
            // Often there is nothing to apply again.
            if rng.one_in(if is_restless { 4 } else { 2 }) {
                drop(world.store.materialize(u64::MAX).await);
            }
            begin(epoch, seat.unwrap_or_else(|| format!("compute{epoch}")), &mut rng);
        } else if rng.one_in(3) {
            crew.disturb(&sim, &world, &mut rng).await;
        } else {
            disturb(&sim, &world, &mut rng).await;
        }
    }
    for name in FAULT_POINTS {
        sim.inject(name, 0.0);
    }
    sim.heal_all();
    world.store.set_delay(Duration::ZERO);
    stop.cancel();
    let ended = futures_util::future::join_all(primaries).await.into_iter().filter(Result::is_err).count();
    assert!(ended <= killed, "nobody ends a primary");
    sim.note(format!("{} blocks, {} reads", world.ledger().blocks.len(), world.reads.load(Ordering::Relaxed)));
}

/// What worlds are mostly about: a mistake that shows seldom is looked for where it shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Focus {
    Everything,
    /// Primaries die while they move the index.
    Moves,
    /// Primaries die while they apply blocks again.
    Replays,
    /// Primaries die while sections migrate.
    Migrations,
    /// Followers leave, and join while sections migrate.
    Joins,
}

impl Focus {
    fn of(planted: Planted, seed: u64) -> Focus {
        match planted {
            Planted::NONE => {
                [Focus::Migrations, Focus::Joins].get(seed as usize % 8).copied().unwrap_or(Focus::Everything)
            }
            Planted::State(Mutant::MovedStays) => Focus::Moves,
            Planted::State(Mutant::MarksStay) => Focus::Replays,
            Planted::State(Mutant::CopyHeaded | Mutant::OldHeaded) => Focus::Migrations,
            Planted::State(Mutant::JoinStale | Mutant::AllocatedEarly | Mutant::SwitchUntold) => Focus::Joins,
            Planted::State(Mutant::NumberUncovered) => Focus::Migrations,
            _ => Focus::Everything,
        }
    }

    /// Whether a fault point is always active.
    fn needs(self, name: &str) -> bool {
        match self {
            Focus::Everything => false,
            Focus::Moves => name.starts_with("state.drain"),
            Focus::Replays => name == "state.apply.mark",
            Focus::Migrations => name.starts_with("state.migrate"),
            Focus::Joins => {
                let names = ["state.followers.granted", "state.followers.leave", "state.followers.follow"];
                names.contains(&name) || name == "state.migrate.return"
            }
        }
    }
}

/// A planted mistake of the state, or of the protocol between primary and followers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    State(Mutant),
    Replica(ReplicaMutant),
    /// Below the state: a fault point that is the mistake.
    Fault(&'static str),
}

impl Planted {
    const NONE: Planted = Planted::State(Mutant::None);
}

/// Where the search for a seed that catches a mistake begins: mistakes that show in one of a thousand seeds would take
/// most of the test's time.
fn first_seed(mutant: Planted) -> u64 {
    match mutant {
        Planted::State(Mutant::AllocatedEarly | Mutant::NumberUncovered) => 2_500,
        _ => 0,
    }
}

fn plant(mutant: Planted) {
    match mutant {
        Planted::State(mutant) => state::disaggregated::fault::plant(mutant),
        Planted::Replica(mutant) => replica::fault::plant(mutant),
        Planted::Fault(_) => {}
    }
}

fn run(seed: u64, mutant: Planted) -> Result<SimulationReport<()>, Box<SimulationFailure>> {
    plant(mutant);
    let outcome = Simulation::new(seed).steps_max(20_000_000).run(|sim| async move {
        if let Planted::Fault(name) = mutant {
            sim.inject(name, 1.0);
        }
        scenario(sim, Focus::of(mutant, seed)).await;
    });
    plant(Planted::State(Mutant::None));
    plant(Planted::Replica(ReplicaMutant::None));
    let report = outcome?;
    Ok(report)
}

/// Check 2.
fn suspicious(report: &SimulationReport<()>) -> Option<String> {
    let names = ["heddle_state_records_untrusted_total", "heddle_state_slots_missed_total"];
    let counted = names.into_iter().filter_map(|name| match report.events.get(name) {
        Some(base::event::EventValue::Counter(count)) if *count > 0 => Some(format!("{name} is {count}")),
        _ => None,
    });
    counted.reduce(|one, other| format!("{one}, {other}"))
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var("STATE_SEEDS") else { return 0..SEEDS };
    let (from, to) = asked.split_once("..").expect("STATE_SEEDS is FROM..TO");
    from.parse().expect("FROM is a number")..to.parse().expect("TO is a number")
}

/// Runs seeds on all cores: worlds on different threads are independent. Returns how often each fault point was hit, by
/// thread.
#[allow(clippy::disallowed_methods, reason = "each thread runs simulations of its own")]
fn run_all(seeds: std::ops::Range<u64>) -> Vec<BTreeMap<&'static str, u64>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let mine = seeds.clone().skip(thread).step_by(threads);
                scope.spawn(move || run_some(mine))
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("every seed passes")).collect()
    })
}

fn run_some(seeds: impl Iterator<Item = u64>) -> BTreeMap<&'static str, u64> {
    let mut struck: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in seeds {
        let report =
            run(seed, Planted::NONE).unwrap_or_else(|failure| panic!("STATE_SEEDS={seed}..{}: {failure}", seed + 1));
        if let Some(what) = suspicious(&report) {
            panic!("STATE_SEEDS={seed}..{}: {what}", seed + 1);
        }
        for (name, point) in &report.fault_points {
            *struck.entry(name).or_default() += point.injected;
        }
        for (name, _) in HAPPENED {
            if let Some(base::event::EventValue::Counter(count)) = report.events.get(name) {
                *struck.entry(name).or_default() += u64::from(*count > 0);
            }
        }
    }
    struck
}

#[test]
fn every_height_reads_as_its_blocks_left_it_whatever_fails() {
    let all = seeds();
    let mut struck: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (name, times) in run_all(all.clone()).into_iter().flatten() {
        *struck.entry(name).or_default() += times;
    }
    if all.end - all.start >= SEEDS {
        let missed: Vec<_> =
            FAULT_POINTS.into_iter().filter(|name| struck.get(name).is_none_or(|times| *times == 0)).collect();
        assert!(missed.is_empty(), "never struck: {missed:?}; {struck:?}");
        let seldom = |(name, part): &(&str, u64)| {
            let seeds = struck.get(name).copied().unwrap_or_default();
            seeds < (all.end - all.start) / part
        };
        let seldom: Vec<_> = HAPPENED.into_iter().filter(seldom).collect();
        assert!(seldom.is_empty(), "in too few seeds: {seldom:?}; {struck:?}");
    }
}

#[test]
fn a_seed_leaves_the_same_trace_twice() {
    for seed in 0..8 {
        let digests: Vec<_> = (0..2).map(|_| run(seed, Planted::NONE).expect("the run is whole").digest).collect();
        assert_eq!(digests[0], digests[1], "seed {seed}");
    }
}

#[test]
fn planted_mistakes_are_caught() {
    let mutants = [
        Planted::State(Mutant::LinkEarly),
        Planted::State(Mutant::NoIncarnation),
        Planted::State(Mutant::FillSurvives),
        Planted::State(Mutant::ReuseEarly),
        Planted::State(Mutant::PublishEarly),
        Planted::State(Mutant::PublishUndurable),
        Planted::State(Mutant::KeepUndone),
        Planted::State(Mutant::PartUncached),
        Planted::State(Mutant::NoMark),
        Planted::State(Mutant::EvictUncovered),
        Planted::State(Mutant::LearntOutlivesEviction),
        Planted::State(Mutant::EvictedReusedEarly),
        Planted::Replica(ReplicaMutant::AckEarly),
        Planted::Replica(ReplicaMutant::CountUnacknowledged),
        Planted::Replica(ReplicaMutant::ServePastLease),
        Planted::State(Mutant::EvictUnacknowledged),
        Planted::Replica(ReplicaMutant::GrantUnproven),
        Planted::Replica(ReplicaMutant::ServeEarly),
        Planted::Replica(ReplicaMutant::LeaveServing),
        Planted::State(Mutant::MovedStale),
        Planted::State(Mutant::MarkEarly),
        Planted::State(Mutant::MarksStay),
        Planted::State(Mutant::OpenAtSavepoint),
        Planted::State(Mutant::MembershipKept),
        Planted::State(Mutant::MovedStays),
        Planted::State(Mutant::SurveyBlind),
        Planted::State(Mutant::NumberUncovered),
        Planted::State(Mutant::CopyHeaded),
        Planted::State(Mutant::OldHeaded),
        Planted::State(Mutant::SwitchUntold),
        Planted::State(Mutant::AllocatedEarly),
        Planted::State(Mutant::JoinStale),
        Planted::Fault("pool.migrate.mutant.unnoted"),
    ];
    let mut missed = Vec::new();
    for mutant in mutants {
        let first = first_seed(mutant);
        let caught = (first..first + MUTANT_SEEDS).find_map(|seed| match run(seed, mutant) {
            Err(failure) => Some((seed, failure.to_string())),
            Ok(report) => suspicious(&report).map(|what| (seed, what)),
        });
        match caught {
            Some((seed, how)) => {
                let how = how.lines().next().unwrap_or_default();
                println!("{mutant:?} is caught by seed {seed}: {how}");
            }
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "none of {MUTANT_SEEDS} seeds catches {missed:?}");
}
