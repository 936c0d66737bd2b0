//! Tests of the index against the blocks from which it is built.

use std::sync::atomic::{AtomicUsize, Ordering};

use base::TxId;
use base::rt::disk::Directory;
use base::rt::net::GatherList;
use base::rt::simulation::Simulation;

use super::*;
use std::sync::Arc;

use base::{BlockNumber, Bytes, Epoch, rt};

use crate::Error;
use crate::GroupSync;
use crate::blocks::{BlockStore, BlockStoreConfig, NO_PREVIOUS, NewBlock};
use crate::state_store::tests::{Lines, rows};
use crate::state_store::{MATERIALIZE_BLOCKS_MAX, Materializer};
use crate::tables::{FjallConfig, FjallEngine, ModelEngine};
use crate::tables::{RowBatch, Savepoint, TablesEngine};

const BLOCKS: [&str; 6] = ["", "cc a 1\ncc b 1\ndd a 9", "cc a 2\ncc a 3", "cc b", "cc a\ncc d 4", "dd a 1"];

fn hash(number: u64) -> [u8; 32] {
    let mut hash = [7; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    hash
}

async fn append(blocks: &BlockStore, number: u64, text: &'static str) {
    let block = NewBlock {
        number: BlockNumber(number),
        header_hash: hash(number),
        previous_hash: number.checked_sub(1).map_or(NO_PREVIOUS, hash),
        epoch: Epoch(0),
        parts: &[Bytes::from_static(text.as_bytes())],
        transactions: &[(TxId::from(format!("tx{number}")), 0)],
    };
    blocks.append(block).await.expect("the block follows");
}

async fn store() -> BlockStore {
    let directory = Directory::open("/blocks").await.expect("the directory opens");
    BlockStore::open(directory, GroupSync::new(), BlockStoreConfig::default()).await.expect("the store opens").0
}

async fn model() -> Arc<dyn TablesEngine> {
    ModelEngine::open(Directory::open("/tables").await.expect("it opens")).await.expect("it opens")
}

fn history(blocks: &BlockStore, engine: Arc<dyn TablesEngine>) -> LocalHistory {
    LocalHistory::new("alpha", Arc::new(blocks.clone()), engine, Arc::new(Lines))
}

/// Which blocks below a height wrote a key, newest first, according to their contents.
fn expected(namespace: &str, key: &str, below: u64) -> Vec<BlockNumber> {
    let wrote = |number: &u64| {
        let written = rows(*number, BLOCKS[*number as usize]);
        written.iter().any(|(of, name, ..)| of == namespace && name == key.as_bytes())
    };
    (0..below).rev().filter(wrote).map(BlockNumber).collect()
}

fn question<'a>(namespace: &'a str, key: &'a str, below: u64, limit: usize) -> HistoryQuery<'a> {
    HistoryQuery { namespace, key: key.as_bytes(), below: BlockNumber(below), limit }
}

async fn check_all(history: &dyn History, height: u64) {
    for (namespace, key) in [("cc", "a"), ("cc", "b"), ("cc", "d"), ("dd", "a"), ("dd", "b"), ("c", "ca")] {
        for below in 0..=height {
            let all = history.blocks_of(question(namespace, key, below, 100)).await.expect("it answers");
            assert_eq!(all, expected(namespace, key, below), "{namespace} {key} below {below}");
            let mut paged = Vec::new();
            let mut from = BlockNumber(below);
            while let [one] = history.blocks_of(question(namespace, key, from.get(), 1)).await.expect("it answers")[..]
            {
                paged.push(one);
                from = one;
            }
            assert_eq!(paged, all, "{namespace} {key} below {below}, one by one");
        }
    }
}

#[test]
fn every_block_that_wrote_a_key_is_found_after_restarts_too() {
    let run = Simulation::new(1).run(|_| async {
        let blocks = store().await;
        for (number, text) in BLOCKS.into_iter().enumerate().take(4) {
            append(&blocks, number as u64, text).await;
        }
        blocks.sync().await.expect("it is durable");
        let engine = model().await;
        check_all(&history(&blocks, engine.clone()), 4).await;
        for (number, text) in BLOCKS.into_iter().enumerate().skip(4) {
            append(&blocks, number as u64, text).await;
        }
        let earlier = history(&blocks, engine.clone());
        let early = earlier.blocks_of(question("cc", "a", 6, 9)).await.expect_err("it is not durable");
        assert_eq!(early.kind(), base::ErrorKind::Retry, "{early}");
        blocks.sync().await.expect("it is durable");
        check_all(&earlier, 6).await;
        // Entries that were not persisted are built again.
        check_all(&history(&blocks, model().await), 6).await;
    });
    run.expect("the run ends");
}

#[test]
fn the_engine_of_production_keeps_the_index_over_restarts() {
    rt::production::run(over_restarts());
}

async fn over_restarts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let directory = Directory::open(folder.path().join("blocks")).await.expect("it opens");
    let blocks = BlockStore::open(directory, GroupSync::new(), BlockStoreConfig::default()).await.expect("it opens").0;
    for (number, text) in BLOCKS.into_iter().enumerate() {
        append(&blocks, number as u64, text).await;
    }
    blocks.sync().await.expect("it is durable");
    for round in 0..2 {
        let tables = folder.path().join("tables");
        let engine = FjallEngine::open(&tables, FjallConfig::default()).await.expect("it opens");
        let index = engine.tables("alpha_history").await.expect("it opens");
        assert_eq!(index.savepoint().height, if round == 0 { 0 } else { 6 });
        check_all(&history(&blocks, engine.clone()), 6).await;
        index.persist().await.expect("it is durable");
    }
}

/// Reads blocks slowly.
struct Slow(AtomicUsize);

impl Materializer for Slow {
    fn materialize(&self, number: BlockNumber, block: &GatherList, batch: &mut RowBatch) -> Result<(), Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Lines.materialize(number, block, batch)
    }
}

#[test]
fn a_question_that_takes_too_long_is_answered_when_it_is_asked_again() {
    let run = Simulation::new(7).run(|simulation| async move {
        let blocks = store().await;
        append(&blocks, 0, "").await;
        // Each page of blocks takes a tenth of a second where the fault point hits.
        let count = MATERIALIZE_BLOCKS_MAX as u64 * 100;
        for number in 1..count {
            append(&blocks, number, if number % 7 == 0 { "cc a 1" } else { "cc b 1" }).await;
        }
        blocks.sync().await.expect("it is durable");
        simulation.inject("storage.history.page", 1.0);
        let reader = Arc::new(Slow(AtomicUsize::new(0)));
        let history = LocalHistory::new("alpha", Arc::new(blocks.clone()), model().await, reader.clone());
        let late = history.blocks_of(question("cc", "a", count, 3)).await.expect_err("it takes longer");
        assert!(late.kind() == base::ErrorKind::Retry && late.to_string().contains("ask again"), "{late}");
        let mut asked = 1;
        let found = loop {
            asked += 1;
            match history.blocks_of(question("cc", "a", count, 3)).await {
                Ok(found) => break found,
                Err(error) => assert_eq!(error.kind(), base::ErrorKind::Retry, "{error}"),
            }
        };
        let newest = (count - 1) / 7 * 7;
        assert_eq!(found, [newest, newest - 7, newest - 14].map(BlockNumber));
        assert!(asked > 2);
        assert_eq!(reader.0.load(Ordering::Relaxed) as u64, count, "no block is read twice");
    });
    run.expect("the run ends");
}

/// The index of an earlier release lacks entries.
#[test]
fn an_index_of_another_version_is_built_again() {
    let run = Simulation::new(3).run(|_| async {
        let blocks = store().await;
        append(&blocks, 0, "").await;
        append(&blocks, 1, "cc a 1").await;
        blocks.sync().await.expect("it is durable");
        let engine = model().await;
        let tables = engine.tables("alpha_history").await.expect("it opens");
        let earlier = Savepoint { height: 2, epoch: Epoch(0), block_hash: hash(1) };
        tables.write(RowBatch::new(earlier)).expect("it is written");
        let found = history(&blocks, engine.clone()).blocks_of(question("cc", "a", 2, 9)).await.expect("it answers");
        assert_eq!(found, [BlockNumber(1)]);
        drop(tables);
        let savepoint = engine.tables("alpha_history").await.expect("it opens").savepoint();
        assert_eq!((savepoint.height, savepoint.epoch), (2, Epoch(1)));
    });
    run.expect("the run ends");
}
