//! The state of both peer forms against a history in plain maps: every snapshot must see exactly its block boundary.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::{Donors, Draw, History, check, disaggregated, next_block, rows};
use base::rt;
use base::rt::simulation::Simulation;
use base::{Bytes, Version};
use state::{
    ApplyWorkers, DisaggregatedConfig, Monolithic, MonolithicConfig, RANGE_BYTES_SOFT_MAX, RangePage, Snapshot,
    UpdateBatch, WorldState,
};
use storage::MemoryStateStore;
use storage::tables::{FjallConfig, FjallEngine, ModelEngine, Tables, TablesEngine};

/// A form of the state: how it is opened, and how a block is made durable for it.
#[async_trait::async_trait]
trait StateUnderTest: Send + Sync {
    async fn open(&mut self) -> Box<dyn WorldState>;
    fn store(&mut self, number: u64, batch: &UpdateBatch);
}

struct MonolithicUnderTest {
    tables: Arc<dyn Tables>,
    settings: MonolithicConfig,
}

#[async_trait::async_trait]
impl StateUnderTest for MonolithicUnderTest {
    async fn open(&mut self) -> Box<dyn WorldState> {
        Box::new(Monolithic::open(self.tables.clone(), self.settings.clone()))
    }

    fn store(&mut self, _number: u64, _batch: &UpdateBatch) {}
}

struct DisaggregatedUnderTest {
    donors: Donors,
    store: MemoryStateStore,
    settings: DisaggregatedConfig,
    budget_bytes: u64,
    epoch: u64,
    stored: u64,
}

/// Gives a test access to the concrete state behind the trait object.
#[derive(Clone)]
struct Handle(Arc<state::Disaggregated>);

#[async_trait::async_trait]
impl WorldState for Handle {
    fn height(&self) -> u64 {
        self.0.height()
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.0.snapshot()
    }

    async fn apply(&self, number: u64, batch: UpdateBatch) -> Result<(), state::Error> {
        self.0.apply(number, batch).await?;
        let audit = self.0.audit().await?;
        assert_eq!(audit.leased, audit.free + audit.live + audit.quarantined, "{audit:?}");
        assert_eq!((audit.leaked, audit.dangling, audit.unmarked), (0, 0, 0), "{audit:?}");
        Ok(())
    }

    async fn persist(&self) -> Result<u64, state::Error> {
        self.0.persist().await
    }

    fn savepoint(&self) -> u64 {
        self.0.savepoint()
    }

    async fn digest(&self) -> Result<[u8; 32], state::Error> {
        self.0.digest().await
    }
}

#[async_trait::async_trait]
impl StateUnderTest for DisaggregatedUnderTest {
    async fn open(&mut self) -> Box<dyn WorldState> {
        self.epoch += 1;
        let space = self.donors.open(self.epoch, self.budget_bytes).await.expect("the donors are there");
        Box::new(Handle(Arc::new(disaggregated(space, &self.store, self.settings.clone()).await)))
    }

    fn store(&mut self, number: u64, batch: &UpdateBatch) {
        if number == self.stored {
            self.store.add_block(rows(batch));
            self.stored += 1;
        }
    }
}

/// Runs the scenario on a state in a simulated pool; returns its digest and the counters.
fn in_pool(seed: u64, cache_bytes: usize, budget_bytes: u64) -> ([u8; 32], BTreeMap<&'static str, u64>) {
    let report = Simulation::new(seed).run(move |sim| async move {
        let donors = Donors::start(&sim, 2, 8 << 10, 1 << 20).await;
        let settings = DisaggregatedConfig {
            metadata_cache_bytes: cache_bytes,
            data_cache_bytes: cache_bytes,
            apply_workers: ApplyWorkers { workers_max: 4, keys_per_worker: 1 },
            ..DisaggregatedConfig::default()
        };
        let store = MemoryStateStore::new();
        let form = DisaggregatedUnderTest { donors, store, settings, budget_bytes, epoch: 0, stored: 0 };
        follow(form, seed).await
    });
    let report = report.expect("the run is whole");
    let counted = |name: &str| match report.events.get(name) {
        Some(base::event::EventValue::Counter(count)) => *count,
        // A counter that was never incremented is not listed.
        _ => 0,
    };
    assert_eq!(
        counted("heddle_state_records_untrusted_total"),
        0,
        "seed {seed}: what pointers lead to is to be trusted"
    );
    assert_eq!(counted("heddle_state_slots_missed_total"), 0, "seed {seed}: nobody else changes slots");
    let names = [
        "heddle_state_versions_not_in_memory_total",
        "heddle_state_fills_total",
        "heddle_state_evicted_records_total",
        "heddle_state_evicted_superseded_total",
    ];
    let counts = names.into_iter().map(|name| (name, counted(name))).collect();
    (report.value, counts)
}

#[test]
fn every_snapshot_in_a_pool_sees_its_own_block_boundary() {
    let mut total: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..12 {
        let monolithic = with_model(move |tables| follow(in_tables(tables, 2_000), seed));
        for (cache_bytes, budget_bytes) in [(600, 8 << 10), (600, 1 << 20), (1 << 20, 1 << 20)] {
            let (digest, counts) = in_pool(seed, cache_bytes, budget_bytes);
            assert_eq!(digest, monolithic, "seed {seed}: both forms hold the same");
            counts.into_iter().for_each(|(name, count)| *total.entry(name).or_default() += count);
        }
    }
    assert!(total.values().all(|count| *count > 0), "{total:?}");
}

fn in_tables(tables: Arc<dyn Tables>, cache_bytes: usize) -> MonolithicUnderTest {
    MonolithicUnderTest { tables, settings: MonolithicConfig { cache_bytes, ..MonolithicConfig::default() } }
}

async fn follow(mut form: impl StateUnderTest, seed: u64) -> [u8; 32] {
    let mut state = form.open().await;
    let mut draw = Draw(seed);
    let mut history = History::new();
    let mut batches = Vec::new();
    let mut held: Vec<Arc<dyn Snapshot>> = vec![state.snapshot()];
    for number in 0..60 {
        let batch = next_block(&mut draw, number, &mut history);
        batches.push(batch.clone());
        form.store(number, &batch);
        state.apply(number, batch).await.expect("blocks come in order");
        held.push(state.snapshot());
        match draw.below(8) {
            0 => drop(state.persist().await.expect("the tables take a savepoint")),
            1 => held.drain(..held.len() / 2).for_each(drop),
            2 => {
                // A restart loses all blocks after the savepoint; replay restores them.
                held.clear();
                drop(state);
                state = form.open().await;
                for number in state.height()..=number {
                    let batch = batches[number as usize].clone();
                    state.apply(number, batch).await.expect("replay is in order");
                }
            }
            _ => {}
        }
        for snapshot in &held {
            check(snapshot.as_ref(), &history, seed).await;
        }
    }
    let before = state.digest().await.expect("the newest view is admitted");
    state.persist().await.expect("the tables take a savepoint");
    let after = state.digest().await.expect("the newest view is admitted");
    assert_eq!(before, after, "seed {seed}: persisting does not change what the state is");
    after
}

#[test]
fn every_snapshot_of_the_model_tables_sees_its_own_block_boundary() {
    for seed in 0..40 {
        let small = with_model(move |tables| follow(in_tables(tables, 600), seed));
        let large = with_model(move |tables| follow(in_tables(tables, 1 << 20), seed));
        assert_eq!(small, large, "seed {seed}: the cache changes nothing");
    }
}

fn with_model<F, R>(body: F) -> [u8; 32]
where
    F: FnOnce(Arc<dyn Tables>) -> R,
    R: Future<Output = [u8; 32]>,
{
    let folder = tempfile::tempdir().expect("a temporary folder");
    base::rt::production::run(async {
        let directory = base::rt::disk::Directory::open(folder.path()).await.expect("the folder exists");
        let engine = ModelEngine::open(directory).await.expect("an empty model opens");
        body(engine.tables("channel").await.expect("a table set opens")).await
    })
}

#[test]
fn every_snapshot_of_fjall_tables_sees_its_own_block_boundary() {
    for seed in 0..6 {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let digest = base::rt::production::run(async {
            let engine = FjallEngine::open(folder.path(), FjallConfig::default()).await.expect("an empty folder opens");
            follow(in_tables(engine.tables("channel").await.expect("a table set opens"), 2_000), seed).await
        });
        assert_eq!(
            digest,
            with_model(move |tables| follow(in_tables(tables, 2_000), seed)),
            "seed {seed}: engines agree"
        );
    }
}

#[test]
fn a_view_too_far_behind_is_refused_rather_than_wrong() {
    with_model(|tables| async move {
        let settings = MonolithicConfig { view_lag_blocks_max: 4, ..MonolithicConfig::default() };
        let state = Monolithic::open(tables, settings);
        let mut history = History::new();
        let mut draw = Draw(1);
        let batch = next_block(&mut draw, 0, &mut history);
        state.apply(0, batch).await.expect("in order");
        let old = state.snapshot();
        for number in 1..8 {
            state.apply(number, next_block(&mut draw, number, &mut history)).await.expect("in order");
        }
        state.persist().await.expect("the tables take a savepoint");
        let refused = old.get("basic", "k00").await.expect_err("the view is seven blocks behind");
        assert_eq!(refused.kind(), base::ErrorKind::Retry);
        check(state.snapshot().as_ref(), &history, 1).await;
        [0; 32]
    });
}

/// The story: apply persisted by itself once too much was unpersisted, so a full disk ended the channel there, while
/// every other write waited for disk space.
#[test]
fn a_crowded_delta_asks_to_be_persisted_and_is_not_kept_crowded_by_an_old_view() {
    with_model(|tables| async move {
        let settings = MonolithicConfig { delta_bytes_max: 30_000, ..MonolithicConfig::default() };
        let state = Monolithic::open(tables, settings);
        let block = |number: u64| {
            let mut batch = UpdateBatch::default();
            let value = Some(Bytes::from(vec![number as u8; 1_000]));
            batch.put(&"basic".into(), "k".into(), value, Version::new(number, 0));
            batch
        };
        state.apply(0, block(0)).await.expect("in order");
        let old = state.snapshot();
        let mut number = 1;
        while !state.wants_persist() {
            state.apply(number, block(number)).await.expect("in order");
            number += 1;
        }
        assert_eq!(number, 27, "a version is charged for its value and a little more");
        for number in number..=40 {
            state.apply(number, block(number)).await.expect("a crowded state can still be told of a block");
        }
        assert_eq!(state.savepoint(), 0, "nothing is persisted that the caller did not ask for");
        state.persist().await.expect("the tables take a savepoint");
        assert!(!state.wants_persist());
        let refused = old.get("basic", "k").await.expect_err("it would keep all versions since in memory");
        assert_eq!(refused.kind(), base::ErrorKind::Retry);
        let newest = state.snapshot().get("basic", "k").await.expect("it is admitted").expect("it was written");
        assert_eq!(newest.version, Version::new(40, 0));
        [0; 32]
    });
}

/// The story: each of many queries held a page of a hundred values of 20 MiB at once.
#[test]
fn a_page_of_a_range_ends_by_bytes_and_one_of_versions_does_not() {
    with_model(|tables| async move {
        let state = Monolithic::open(tables, MonolithicConfig::default());
        let mut batch = UpdateBatch::default();
        let value = Bytes::from(vec![7; RANGE_BYTES_SOFT_MAX / 3]);
        for number in 0..10 {
            batch.put(&"basic".into(), format!("k{number}").into(), Some(value.clone()), Version::new(0, number));
        }
        state.apply(0, batch).await.expect("in order");
        for persisted in [false, true] {
            let view = state.snapshot();
            let page = view.range("basic", "", "", 100).await.expect("the view is admitted");
            assert_eq!((page.entries.len(), page.more), (3, true), "persisted: {persisted}");
            let page = view.range("basic", "k7", "", 100).await.expect("the view is admitted");
            assert_eq!((page.entries.len(), page.more), (3, false), "persisted: {persisted}");
            let page = view.range_versions("basic", "", "", 100).await.expect("the view is admitted");
            assert_eq!((page.entries.len(), page.more), (10, false), "persisted: {persisted}");
            let page = view.range("basic", "", "", 0).await.expect("the view is admitted");
            assert_eq!(page, RangePage::default(), "who asks for nothing gets nothing to go on from");
            state.persist().await.expect("the tables take a savepoint");
        }
        [0; 32]
    });
}

/// The longest keys that a transaction may use. They differ in their last byte only.
const LONG_KEY_BYTES: usize = 64_000;

/// Writes, replaces and deletes long keys, and reads them one by one and in ranges.
async fn holds_long_keys(mut form: impl StateUnderTest) -> [u8; 32] {
    let mut state = form.open().await;
    let key = |last: char| format!("{}{last}", "k".repeat(LONG_KEY_BYTES - 1));
    let zeros = "\0".repeat(LONG_KEY_BYTES / 2);
    let version = |block, tx| Version::new(block, tx);
    let mut blocks = [UpdateBatch::default(), UpdateBatch::default()];
    let mut put = |block: usize, key: &str, value: Option<&'static str>, tx| {
        blocks[block].put(
            &"basic".into(),
            key.into(),
            value.map(|value| Bytes::from_static(value.as_bytes())),
            version(block as u64, tx),
        );
    };
    for (tx, last) in ('a'..='e').enumerate() {
        put(0, &key(last), Some("old"), tx as u32);
    }
    put(0, &zeros, Some("zeros"), 5);
    put(0, &key('a')[1..], Some("shorter"), 6);
    put(1, &key('b'), Some("new"), 0);
    put(1, &key('c'), None, 1);
    for (number, batch) in blocks.into_iter().enumerate() {
        form.store(number as u64, &batch);
        state.apply(number as u64, batch).await.expect("in order");
    }
    for reopened in [false, true] {
        if reopened {
            state.persist().await.expect("the tables take a savepoint");
            drop(state);
            state = form.open().await;
        }
        let view = state.snapshot();
        let expected =
            [('a', Some(version(0, 0))), ('b', Some(version(1, 0))), ('c', None), ('d', Some(version(0, 3)))];
        for (last, expected) in expected {
            let found = view.get("basic", &key(last)).await.expect("the view is admitted");
            assert_eq!(found.map(|found| found.version), expected, "{last}, reopened: {reopened}");
            assert_eq!(view.version("basic", &key(last)).await.expect("the view is admitted"), expected);
        }
        let found = view.get("basic", &zeros).await.expect("the view is admitted").expect("it was written");
        assert_eq!(found.value, "zeros");
        // In pages of two entries, each from behind the last entry of the page before.
        let (mut start, mut got) = (key('a'), String::new());
        loop {
            let page = view.range("basic", &start, &key('e'), 2).await.expect("the view is admitted");
            got.extend(page.entries.iter().map(|entry| entry.key.chars().next_back().expect("it is long")));
            match page.entries.last() {
                Some(last) if page.more => start = format!("{}\0", last.key),
                _ => break,
            }
        }
        assert_eq!(got, "abd", "reopened: {reopened}");
        let all = view.range("basic", "", "", 100).await.expect("the view is admitted");
        let values: Vec<&[u8]> = all.entries.iter().map(|entry| &entry.versioned.value[..]).collect();
        assert_eq!(values, [&b"zeros"[..], b"shorter", b"old", b"new", b"old", b"old"], "reopened: {reopened}");
    }
    state.digest().await.expect("the state answers")
}

#[test]
fn both_forms_hold_the_longest_keys() {
    let digest = with_model(|tables| holds_long_keys(in_tables(tables, 1 << 20)));
    // With and without memory for the records.
    for section_bytes in [8 << 10, 1 << 20] {
        let report = Simulation::new(1).run(move |sim| async move {
            let donors = Donors::start(&sim, 2, section_bytes, 4 << 20).await;
            let settings = DisaggregatedConfig::default();
            let (store, budget_bytes) = (MemoryStateStore::new(), 4 << 20);
            holds_long_keys(DisaggregatedUnderTest { donors, store, settings, budget_bytes, epoch: 0, stored: 0 }).await
        });
        assert_eq!(report.expect("the run is whole").value, digest, "sections of {section_bytes} bytes");
    }
}

/// Applies values that are slices of one block: afterwards nothing may hold the block.
async fn keeps_no_block(state: &dyn WorldState) {
    let block = Bytes::from(vec![7; 100_000]);
    let mut batch = UpdateBatch::default();
    for (number, at) in (0..).zip((0..block.len()).step_by(2_000)) {
        let value = block.slice(at..at + 500);
        batch.put(&"basic".into(), format!("k{number}").into(), Some(value), Version::new(0, number));
    }
    state.apply(0, batch).await.expect("in order");
    assert!(block.is_unique(), "a value of 500 bytes would keep 100,000");
    let read = state.snapshot().get("basic", "k49").await.expect("the view is admitted").expect("it was written");
    assert_eq!(read.value, block.slice(..500));
}

#[test]
fn no_form_holds_on_to_the_block_that_a_value_came_in() {
    with_model(|tables| async move {
        keeps_no_block(&Monolithic::open(tables, MonolithicConfig::default())).await;
        [0; 32]
    });
    for (budget_bytes, spills) in [(256 << 10, false), (16 << 10, true)] {
        let report = Simulation::new(1).run(move |sim| async move {
            let donors = Donors::start(&sim, 1, 8 << 10, 1 << 20).await;
            let space = donors.open(1, budget_bytes).await.expect("the donor is there");
            let store = MemoryStateStore::new();
            keeps_no_block(&disaggregated(space, &store, DisaggregatedConfig::default()).await).await;
        });
        let report = report.expect("the run is whole");
        let spilled = report.events.get("heddle_state_versions_not_in_memory_total");
        let none = spilled.is_none_or(|spilled| *spilled == base::event::EventValue::Counter(0));
        assert_eq!(none, !spills, "with {budget_bytes} bytes: {spilled:?}");
    }
}

#[test]
fn a_block_out_of_order_is_refused() {
    with_model(|tables| async move {
        let state = Monolithic::open(tables, MonolithicConfig::default());
        let refused = state.apply(1, UpdateBatch::default()).await.expect_err("block 0 comes first");
        assert_eq!(refused.kind(), base::ErrorKind::Rejected);
        [0; 32]
    });
}

#[test]
fn a_budget_below_one_section_is_refused_and_says_what_to_give() {
    let report = Simulation::new(1).run(|sim| async move {
        let donors = Donors::start(&sim, 1, 8 << 10, 1 << 20).await;
        let space = donors.open(1, 64 << 10).await.expect("the donor is there");
        let store = MemoryStateStore::new();
        let state = disaggregated(space.clone(), &store, DisaggregatedConfig::default()).await;
        let refused = state.set_budget(8191).expect_err("it is less than a section");
        assert_eq!(refused.kind(), base::ErrorKind::Rejected);
        assert!(refused.to_string().contains("at least 8192"), "{refused}");
        assert_eq!(space.budget_bytes(), 64 << 10, "nothing was changed");
        state.set_budget(8192).expect("it is a section");
        assert_eq!(space.budget_bytes(), 8192);
    });
    report.expect("the run is whole");
}

/// The story: memory was full, and the pool had said so. For up to a second a raised budget then had no effect.
#[test]
fn a_raised_budget_is_used_at_once() {
    let report = Simulation::new(1).run(|sim| async move {
        let donors = Donors::start(&sim, 1, 64 << 10, 1 << 20).await;
        let space = donors.open(1, 64 << 10).await.expect("the donor is there");
        let store = MemoryStateStore::new();
        let state = disaggregated(space, &store, DisaggregatedConfig::default()).await;
        let grow = async |blocks: std::ops::Range<u64>| {
            for number in blocks {
                let mut batch = UpdateBatch::default();
                for tx in 0..8 {
                    let key = format!("k{number}-{tx}");
                    batch.put(&"basic".into(), key.into(), Some(vec![7; 1500].into()), Version::new(number, tx));
                }
                store.add_block(rows(&batch));
                state.apply(number, batch).await.expect("in order");
            }
        };
        grow(0..20).await;
        assert_eq!(state.usage().await.leased, 64 << 10, "it has all that it may have, and has asked for more");
        let raised = rt::now();
        state.set_budget(1 << 20).expect("it is more than a section");
        grow(20..40).await;
        assert!(state.usage().await.leased > 64 << 10, "it goes on without what it may have now");
        assert!(raised.elapsed() < std::time::Duration::from_secs(1), "{:?}", raised.elapsed());
    });
    report.expect("the run is whole");
}
