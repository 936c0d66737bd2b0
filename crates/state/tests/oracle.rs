//! The monolithic state against a history kept in plain maps: every snapshot must see exactly its block boundary.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Bytes, Version};
use state::{Monolithic, RANGE_BYTES_SOFT_MAX, RangePage, Settings, Snapshot, UpdateBatch, WorldState};
use storage::tables::{FjallEngine, FjallOptions, ModelEngine, Tables, TablesEngine};

const NAMESPACES: [&str; 2] = ["basic", "smallbank"];
const KEYS: u64 = 24;

/// The live records after each block.
type History = Vec<BTreeMap<(String, String), (Bytes, Version)>>;

struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn next_block(draw: &mut Draw, number: u64, history: &mut History) -> UpdateBatch {
    let mut batch = UpdateBatch::default();
    let mut after = history.last().cloned().unwrap_or_default();
    for tx in 0..draw.below(6) as u32 {
        let namespace: Arc<str> = NAMESPACES[draw.below(2) as usize].into();
        let key = format!("k{:02}", draw.below(KEYS));
        let version = Version { block: number, tx };
        let value =
            (draw.below(4) > 0).then(|| Bytes::from(format!("{key}@{version}").repeat(draw.below(40) as usize)));
        batch.put(&namespace, key.as_str().into(), value.clone(), version);
        match value {
            Some(value) => after.insert((namespace.to_string(), key), (value, version)),
            None => after.remove(&(namespace.to_string(), key)),
        };
    }
    history.push(after);
    batch
}

async fn check(snapshot: &dyn Snapshot, history: &History, seed: u64) {
    let height = snapshot.height();
    let empty = BTreeMap::new();
    let expected = height.checked_sub(1).map_or(&empty, |last| &history[last as usize]);
    for namespace in NAMESPACES {
        for number in 0..KEYS {
            let key = format!("k{number:02}");
            let found = snapshot.get(namespace, &key).await.expect("the view is admitted");
            let found = found.map(|record| (record.value, record.version));
            let wanted = expected.get(&(namespace.to_owned(), key.clone())).cloned();
            assert_eq!(found, wanted, "seed {seed}: {namespace}/{key} at height {height}");
        }
        for (start, end, limit) in
            [("", "", 100), ("k05", "k15", 100), ("k05", "", 3), ("", "k20", 1), ("k09", "k09", 5)]
        {
            let page = snapshot.range(namespace, start, end, limit).await.expect("the view is admitted");
            let more = page.more;
            let found: Vec<_> = page
                .entries
                .into_iter()
                .map(|entry| (entry.key.to_string(), entry.versioned.value, entry.versioned.version))
                .collect();
            let within = expected.iter().filter(|((other, key), _)| {
                other == namespace && key.as_str() >= start && (end.is_empty() || key.as_str() < end)
            });
            let mut wanted: Vec<_> =
                within.map(|((_, key), (value, version))| (key.clone(), value.clone(), *version)).collect();
            assert_eq!(more, wanted.len() > limit, "seed {seed}: {namespace}[{start}..{end}] limit {limit}");
            wanted.truncate(limit);
            let versions = snapshot.range_versions(namespace, start, end, limit).await.expect("the view is admitted");
            assert_eq!(versions.more, more, "seed {seed}: {namespace}[{start}..{end}] limit {limit}");
            let versions = versions.entries.into_iter().map(|(key, version)| (key.to_string(), version));
            let known = wanted.iter().map(|(key, _, version)| (key.clone(), *version));
            assert!(versions.eq(known), "seed {seed}: {namespace}[{start}..{end}] limit {limit} at height {height}");
            assert_eq!(found, wanted, "seed {seed}: {namespace}[{start}..{end}] limit {limit} at height {height}");
        }
    }
}

async fn follow(tables: Arc<dyn Tables>, seed: u64, cache_bytes: usize) -> [u8; 32] {
    let settings = Settings { cache_bytes, ..Settings::default() };
    let mut state = Monolithic::open(tables.clone(), settings.clone());
    let mut draw = Draw(seed);
    let mut history = History::new();
    let mut batches = Vec::new();
    let mut held: Vec<Arc<dyn Snapshot>> = vec![state.snapshot()];
    for number in 0..60 {
        let batch = next_block(&mut draw, number, &mut history);
        batches.push(batch.clone());
        state.apply(number, batch).await.expect("blocks come in order");
        held.push(state.snapshot());
        match draw.below(8) {
            0 => drop(state.persist().await.expect("the tables take a savepoint")),
            1 => held.drain(..held.len() / 2).for_each(drop),
            2 => {
                // A restart forgets what no savepoint covers; replay brings it back.
                held.clear();
                state = Monolithic::open(tables.clone(), settings.clone());
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
        let small = with_model(move |tables| follow(tables, seed, 600));
        let large = with_model(move |tables| follow(tables, seed, 1 << 20));
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
            let engine =
                FjallEngine::open(folder.path(), FjallOptions::default()).await.expect("an empty folder opens");
            follow(engine.tables("channel").await.expect("a table set opens"), seed, 2_000).await
        });
        assert_eq!(digest, with_model(move |tables| follow(tables, seed, 2_000)), "seed {seed}: engines agree");
    }
}

#[test]
fn a_view_too_far_behind_is_refused_rather_than_wrong() {
    with_model(|tables| async move {
        let settings = Settings { view_lag_blocks_max: 4, ..Settings::default() };
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

/// Apply persisted by itself once too much waited, so that a full disk ended the channel there, while every other write
/// waited for room.
#[test]
fn a_crowded_delta_asks_to_be_persisted_and_is_not_kept_crowded_by_an_old_view() {
    with_model(|tables| async move {
        let settings = Settings { delta_bytes_max: 30_000, ..Settings::default() };
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

/// A page of a hundred values of 20 MiB was held at once, by each of many queries.
#[test]
fn a_page_of_a_range_ends_by_bytes_and_one_of_versions_does_not() {
    with_model(|tables| async move {
        let state = Monolithic::open(tables, Settings::default());
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

#[test]
fn a_block_out_of_order_is_refused() {
    with_model(|tables| async move {
        let state = Monolithic::open(tables, Settings::default());
        let refused = state.apply(1, UpdateBatch::default()).await.expect_err("block 0 comes first");
        assert_eq!(refused.kind(), base::ErrorKind::Rejected);
        [0; 32]
    });
}
