//! Tests that the local and the in-memory state store give the same rows for the same blocks.

use std::sync::Arc;

use base::rt::disk::Directory;
use base::rt::net::GatherList;
use base::rt::simulation::Simulation;
use base::{BlockNumber, Bytes, Epoch, TxId, Version};

use super::memory::BlockRow;
use super::*;

use crate::Error;
use crate::blocks::NO_PREVIOUS;
use crate::blocks::{BlockStore, BlockStoreConfig, NewBlock};
use crate::tables::{ModelEngine, TablesEngine};
use crate::tables::{RangeQuery, Row, RowBatch, Savepoint};
use crate::{GroupSync, tables::Tables};

/// Reads blocks of a test: lines `namespace key value`, or `namespace key` for a deletion; each line is a transaction.
pub(crate) struct Lines;

pub(crate) fn rows(number: u64, text: &str) -> Vec<BlockRow> {
    let line = |(tx, line): (usize, &str)| {
        let mut words = line.split(' ').map(str::to_owned);
        let (namespace, key) = (words.next()?, words.next()?.into_bytes());
        Some((namespace, key, Version::new(number, tx as u32), words.next().map(Bytes::from)))
    };
    text.lines().enumerate().filter_map(line).collect()
}

impl Materializer for Lines {
    fn materialize(&self, number: BlockNumber, block: &GatherList, batch: &mut RowBatch) -> Result<(), Error> {
        let block = block.clone().concat();
        let text = std::str::from_utf8(&block);
        let text = text.map_err(|error| Error::Unreadable { block: number, reason: error.to_string() })?;
        for (namespace, key, version, value) in rows(number.get(), text) {
            batch.put(&namespace, &key, version, value)?;
        }
        Ok(())
    }
}

const BLOCKS: [&str; 5] = ["", "cc a 1\ncc b 1\ndd a 9", "cc a 2", "cc b\ncc c 3", "cc a\ncc d 4"];

fn hash(number: u64) -> [u8; 32] {
    [number as u8 + 1; 32]
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

async fn stores(tables: &str) -> (BlockStore, Arc<dyn Tables>) {
    let directory = Directory::open("/blocks").await.expect("the directory opens");
    let options = BlockStoreConfig::default();
    let (blocks, _) = BlockStore::open(directory, GroupSync::new(), options).await.expect("the store opens");
    let directory = Directory::open("/tables").await.expect("the directory opens");
    let engine = ModelEngine::open(directory).await.expect("the engine opens");
    (blocks, engine.tables(tables).await.expect("the tables open"))
}

async fn seen(store: &dyn StateStore, through: u64) -> Vec<String> {
    let mut seen = Vec::new();
    for name in store.namespaces().await.expect("names are readable") {
        let page = store
            .range(RangeQuery { namespace: &name, start: b"", end: b"", through: BlockNumber(through), limit: 100 })
            .await
            .expect("rows are readable");
        assert_eq!(page.next, None);
        for entry in page.entries {
            let row = store.get(&name, &entry.key, BlockNumber(through)).await.expect("rows are readable");
            assert_eq!(row, Some(Row { version: entry.version, value: Some(entry.value.clone()) }));
            let versions = store.versions(&[(&name, &entry.key)], BlockNumber(through)).await;
            assert_eq!(versions.expect("rows are readable"), [Some((entry.version, true))]);
            let [key, value] = [entry.key, entry.value].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            seen.push(format!("{name} {key} {value}"));
        }
    }
    seen
}

#[test]
fn rows_made_from_blocks_are_those_of_the_blocks_through_which_one_reads() {
    let run = Simulation::new(1).run(|_| async {
        let (blocks, tables) = stores("one").await;
        let local = LocalStateStore::open(Arc::new(blocks.clone()), tables, Arc::new(Lines)).await.expect("it opens");
        let memory = MemoryStateStore::new();
        for (number, text) in BLOCKS.into_iter().enumerate() {
            append(&blocks, number as u64, text).await;
            memory.add_block(rows(number as u64, text));
        }
        assert_eq!(local.materialize(5).await.expect("nothing is durable").height, 0);
        blocks.sync().await.expect("the disk works");
        let stores: [&dyn StateStore; 2] = [&local, &memory];
        for store in stores {
            let mut savepoints = store.subscribe_savepoint();
            assert_eq!(store.materialize(3).await.expect("it works").height, 3);
            assert_eq!(*savepoints.borrow_and_update(), 3);
            assert_eq!(seen(store, 9).await, ["cc a 2", "cc b 1", "dd a 9"]);
            assert_eq!(seen(store, 1).await, ["cc a 1", "cc b 1", "dd a 9"]);
            assert_eq!(store.materialize(9).await.expect("it works").height, 5);
            assert_eq!(seen(store, 4).await, ["cc c 3", "cc d 4", "dd a 9"]);
            assert_eq!(seen(store, 2).await, ["cc a 2", "cc b 1", "dd a 9"]);
            let rows = store.get_many(&[("cc", b"a"), ("no", b"a")], BlockNumber(4)).await.expect("it works");
            assert_eq!(rows, [Some(Row { version: Version::new(4, 0), value: None }), None]);
            store.prune(BlockNumber(3)).await.expect("it works");
            assert!(matches!(store.get("cc", b"a", BlockNumber(2)).await, Err(Error::TooOld { .. })));
            assert_eq!(seen(store, 3).await, ["cc a 2", "cc c 3", "dd a 9"]);
        }
        let savepoint = local.savepoint();
        assert_eq!((savepoint.height, savepoint.block_hash), (5, hash(4)));
    });
    run.expect("the run is whole");
}

/// The outcome for readers at or above the declared oldest block does not depend on which blocks were prepared when they
/// became durable, on when materialising was asked for, or on when the oldest block was declared.
#[test]
fn rows_that_were_prepared_are_those_that_are_read_back() {
    for seed in 0..40 {
        let run = Simulation::new(seed).run(|sim| async move {
            let mut rng = sim.rng();
            let (blocks, tables) = stores("one").await;
            let local =
                LocalStateStore::open(Arc::new(blocks.clone()), tables, Arc::new(Lines)).await.expect("it opens");
            let memory = MemoryStateStore::new();
            let mut oldest = 0;
            for (number, text) in BLOCKS.into_iter().enumerate() {
                let block = BlockNumber(number as u64);
                if rng.one_in(4) {
                    // Above the savepoint, above the block and above its rows.
                    oldest = block.get();
                    local.prune(block).await.expect("it works");
                }
                append(&blocks, block.get(), text).await;
                memory.add_block(rows(block.get(), text));
                blocks.sync().await.expect("the disk works");
                let asked_first = rng.one_in(4);
                if asked_first {
                    local.materialize(block.get() + 1).await.expect("it works");
                }
                if !rng.one_in(4) {
                    local.prepare(block, hash(block.get()), &Bytes::from_static(text.as_bytes()).into());
                }
                if rng.one_in(3) {
                    let savepoint = local.materialize(local.prepared_height()).await.expect("it works");
                    assert_eq!(savepoint.block_hash, hash(savepoint.height - 1));
                }
            }
            let height = BLOCKS.len() as u64;
            for store in [&local as &dyn StateStore, &memory] {
                assert_eq!(store.materialize(height).await.expect("it works").height, height);
            }
            assert_eq!(local.savepoint().block_hash, hash(height - 1));
            for through in oldest..height {
                assert_eq!(seen(&local, through).await, seen(&memory, through).await, "through block {through}");
            }
            local.prune(BlockNumber(oldest)).await.expect("it works");
            for through in 0..oldest {
                let refused = local.get("cc", b"a", BlockNumber(through)).await;
                assert!(matches!(refused, Err(Error::TooOld { .. })), "through block {through}");
            }
        });
        run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Versions that a newer one supersedes before any reader may see them are never written.
#[test]
fn rows_that_nobody_will_see_are_left_out() {
    let run = Simulation::new(5).run(|_| async {
        let (blocks, tables) = stores("one").await;
        for (number, text) in BLOCKS.into_iter().enumerate() {
            append(&blocks, number as u64, text).await;
        }
        blocks.sync().await.expect("the disk works");
        let local = LocalStateStore::open(Arc::new(blocks), tables, Arc::new(Lines)).await.expect("it opens");
        local.prune(BlockNumber(3)).await.expect("it works");
        local.materialize(BLOCKS.len() as u64).await.expect("it works");
        assert_eq!(
            local.written.load(std::sync::atomic::Ordering::Relaxed),
            6,
            "a and b of cc were written once too often"
        );
        assert_eq!(seen(&local, 3).await, ["cc a 2", "cc c 3", "dd a 9"]);
        assert_eq!(seen(&local, 4).await, ["cc c 3", "cc d 4", "dd a 9"]);
    });
    run.expect("the run is whole");
}

#[test]
fn tables_of_other_blocks_are_named_as_such() {
    let run = Simulation::new(2).run(|_| async {
        let (blocks, tables) = stores("one").await;
        append(&blocks, 0, "").await;
        append(&blocks, 1, "cc a 1").await;
        blocks.sync().await.expect("the disk works");
        let blocks = Arc::new(blocks);
        let local = LocalStateStore::open(blocks.clone(), tables.clone(), Arc::new(Lines)).await.expect("it opens");
        local.materialize(2).await.expect("it works");
        LocalStateStore::open(blocks.clone(), tables.clone(), Arc::new(Lines)).await.expect("they belong together");
        for (height, block_hash, names) in [(2, hash(7), "another block 1"), (3, hash(2), "hold 3 blocks")] {
            let savepoint = Savepoint { height, epoch: Epoch(0), block_hash };
            let error = check_savepoint(&*blocks, &savepoint).await.expect_err("they do not belong together");
            assert!(error.to_string().contains(names), "{error}");
            assert_eq!(error.kind(), base::ErrorKind::Corrupt);
        }
    });
    run.expect("the run is whole");
}

#[test]
fn a_block_that_cannot_be_read_is_named_and_moves_nothing() {
    let run = Simulation::new(3).run(|_| async {
        let (blocks, tables) = stores("one").await;
        let block = NewBlock {
            number: BlockNumber(0),
            header_hash: hash(0),
            previous_hash: NO_PREVIOUS,
            epoch: Epoch(0),
            parts: &[Bytes::from_static(&[0xff])],
            transactions: &[],
        };
        blocks.append(block).await.expect("the block follows");
        blocks.sync().await.expect("the disk works");
        let local = LocalStateStore::open(Arc::new(blocks), tables, Arc::new(Lines)).await.expect("it opens");
        let error = local.materialize(1).await.expect_err("the block is unreadable");
        assert!(matches!(error, Error::Unreadable { block: BlockNumber(0), .. }), "{error}");
        assert_eq!(local.savepoint().height, 0);
    });
    run.expect("the run is whole");
}
