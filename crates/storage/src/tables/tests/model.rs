//! Crash tests of the in-memory model engine (`ModelEngine`): after a crash the rows are those of the savepoint, and every
//! persisted batch is there.

use std::sync::Mutex;
use std::time::Duration;

use base::rt;
use base::rt::simulation::{Prng, SimNode, Simulation};

use super::*;
use crate::lock;

const KEYS: u64 = 30;

/// Savepoints that may be found after a crash: from the durable one to the last written.
#[derive(Default)]
struct Known {
    durable: u64,
    written: u64,
    lives_that_lost: usize,
}

/// The version of a key after a number of blocks: block `b` writes the keys congruent to `b` modulo 3.
fn expected(key: u64, height: u64) -> String {
    match (0..height).rev().find(|block| block % 3 == key % 3) {
        None => "-".into(),
        Some(block) if (block + key).is_multiple_of(5) => format!("{block}:{key}!"),
        Some(block) => format!("{block}:{key}={block}"),
    }
}

fn batch(block: u64) -> RowBatch {
    let mut batch = RowBatch::new(savepoint(block + 1));
    for key in (0..KEYS).filter(|key| key % 3 == block % 3) {
        let value = (!(block + key).is_multiple_of(5)).then(|| Bytes::from(block.to_string()));
        let version = Version::new(block, key as u32);
        batch.put("n", format!("k{key}").as_bytes(), version, value).expect("the row is within the limits");
    }
    batch
}

async fn live(known: Arc<Mutex<Known>>, seed: u64) {
    let mut engine = Engine::model();
    let tables = engine.tables("channel").await;
    let height = tables.savepoint().height;
    {
        let mut known = lock(&known);
        assert!((known.durable..=known.written).contains(&height), "{height}, {}..{}", known.durable, known.written);
        known.lives_that_lost += usize::from(height < known.written);
        (known.durable, known.written) = (height, height);
    }
    for key in 0..KEYS {
        let shown = show(&*tables, &format!("k{key}"), height);
        // A deletion may have been pruned.
        let expected = expected(key, height);
        assert!(shown == expected || (shown == "-" && expected.ends_with('!')), "k{key}: {shown}, not {expected}");
    }
    let mut rng = Prng::new(seed);
    let mut block = height;
    loop {
        match rng.below(12) {
            0..6 => {
                lock(&known).written = block + 1;
                tables.write(batch(block)).expect("the batch follows");
                block += 1;
            }
            6..8 => {
                let durable = tables.persist().await.expect("the disk is well");
                assert!(durable.height >= block);
                lock(&known).durable = durable.height;
            }
            8 => drop(rt::spawn({
                let (tables, known) = (tables.clone(), known.clone());
                async move {
                    let durable = tables.persist().await.expect("the disk is well");
                    let mut known = lock(&known);
                    known.durable = known.durable.max(durable.height);
                }
            })),
            9 => drop(tables.prune(BlockNumber(block.saturating_sub(3)), 10).expect("the disk is well")),
            _ => rt::sleep(Duration::from_millis(rng.below(3))).await,
        }
        rt::yield_now().await;
    }
}

async fn run_incarnations(node: &SimNode, seed: u64) -> Known {
    let known = Arc::new(Mutex::new(Known::default()));
    let mut rng = Prng::new(seed);
    for life in 0..8 {
        let task = node.spawn(live(known.clone(), seed * 8 + life));
        let ended = rt::timeout(Duration::from_micros(1 + rng.below(60_000)), task).await;
        assert!(ended.is_err(), "a life ends by its crash");
        node.crash();
    }
    std::mem::take(&mut lock(&known))
}

#[test]
fn crashes_leave_rows_and_savepoint_together_and_keep_what_was_persisted() {
    let (mut blocks, mut lives_that_lost) = (0, 0);
    for seed in 0..60 {
        let report = Simulation::new(seed)
            .run(move |sim| async move { run_incarnations(&sim.node("peer"), seed).await })
            .expect("the run succeeds");
        blocks += report.value.durable;
        lives_that_lost += report.value.lives_that_lost;
    }
    assert!(blocks > 1_000 && lives_that_lost > 30, "{blocks} {lives_that_lost}");
}

#[test]
fn log_is_rewritten_and_stays_short() {
    Simulation::new(9)
        .check(|_| async {
            let mut engine = Engine::model();
            let tables = engine.tables("channel").await;
            for block in 0..60 {
                let mut batch = RowBatch::new(savepoint(block + 1));
                let value = Bytes::from(vec![block as u8; 100_000]);
                batch.put("n", b"k", Version::new(block, 0), Some(value)).expect("the row is within the limits");
                tables.write(batch).expect("the batch follows");
                tables.prune(BlockNumber(block), 100).expect("the disk is well");
                tables.persist().await.expect("the disk is well");
            }
            let directory = Directory::open("/tables/channel").await.expect("the directory opens");
            let logs = directory.list().expect("the directory is readable");
            assert_eq!(logs.len(), 1, "{logs:?}");
            let log = directory.open_file(&logs[0], false).expect("the log is there");
            let length = log.len().expect("its length is readable");
            assert!(length < 3_000_000, "6 MB were written, and {length} bytes of log are left");
            drop(tables);
            engine.close();
            let tables = engine.tables("channel").await;
            let row = tables.get("n", b"k", BlockNumber(59)).expect("the row is readable").expect("the row is there");
            assert_eq!(row.version, Version::new(59, 0));
        })
        .expect("the run succeeds");
}

#[test]
fn full_disk_refuses_to_persist_and_persists_later() {
    Simulation::new(2)
        .check(|sim| async move {
            let node = sim.node("peer");
            let disk = node.disk();
            let run = node.spawn(async move {
                let mut engine = Engine::model();
                let tables = engine.tables("channel").await;
                write_block(&*tables, 0, "a=1");
                disk.fill();
                let error = tables.persist().await.expect_err("the disk is full");
                assert_eq!(error.kind(), base::ErrorKind::Retry, "{error}");
                write_block(&*tables, 1, "b=1");
                disk.set_capacity(None);
                assert_eq!(tables.persist().await.expect("there is room now"), savepoint(2));
                drop(tables);
                engine.close();
                let tables = engine.tables("channel").await;
                assert_eq!(show_range(&*tables, "", "", 1, 10), "a=1 b=1");
            });
            run.await.expect("the node does not crash");
        })
        .expect("the run succeeds");
}
