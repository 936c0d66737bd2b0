//! Measures the processor time of storage, and compares it with floors: copying and checksumming the same bytes.
//!
//! `cargo run --release -p heddle-storage --example storage_costs [-- rows]`, where `rows` is the number of 100-byte
//! rows (200,000 by default; a tenth of it for 10 KB rows). Times are microseconds of processor time, unless they say
//! "elapsed" (wall-clock time). Appends, syncs and puts "with flushing and merging" count the whole process, including
//! the engine's merging threads. All other times count the calling thread alone. The times depend on the machine; their
//! ratio to the floors in the first table does not.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::{self, production};
use base::{BlockNumber, Bytes, Epoch, TxId, Version};
use storage::GroupSync;
use storage::blocks::{BlockStore, BlockStoreConfig, NO_PREVIOUS, NewBlock};
use storage::tables::{FjallConfig, FjallEngine, RangeQuery, RowBatch, Savepoint, Tables, TablesEngine};

const ROWS_PER_BLOCK: u64 = 500;
const BLOCKS_PER_PERSIST: u64 = 16;

fn main() {
    let rows = std::env::args().nth(1).and_then(|rows| rows.parse().ok()).unwrap_or(200_000);
    let scratch = tempfile::tempdir().expect("a scratch directory");
    floors();
    production::run(async {
        blocks(&scratch.path().join("blocks")).await;
        for (label, value_bytes, rows, separate) in [
            ("100 B", 100, rows, Some(2048)),
            ("10 KB, kept apart", 10_000, rows / 10, Some(2048)),
            ("10 KB, in the tree", 10_000, rows / 10, None),
        ] {
            let path = scratch.path().join(label);
            tables(label, &path, value_bytes, rows, separate).await;
            std::fs::remove_dir_all(&path).expect("the scratch directory is ours");
        }
    });
}

/// Processor time of all living threads of the process.
fn process_nanos() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has /proc");
    tasks.filter_map(|task| nanos_of(&task.ok()?.path())).sum()
}

fn thread_nanos() -> u64 {
    nanos_of(Path::new("/proc/thread-self")).expect("Linux has /proc")
}

fn nanos_of(task: &Path) -> Option<u64> {
    std::fs::read_to_string(task.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
}

/// Prints the microseconds that each of `count` operations took since `start`.
fn report(what: &str, count: u64, start: u64, now: u64) {
    println!("  {what:<44} {:>9.3} µs", (now - start) as f64 / 1000.0 / count as f64);
}

fn floors() {
    println!("floors");
    for bytes in [100usize, 10_000, 1_000_000] {
        let count = (200_000_000 / bytes as u64).min(1_000_000);
        let source = vec![7u8; bytes];
        let mut target = vec![0u8; bytes];
        let start = thread_nanos();
        for _ in 0..count {
            black_box(&mut target).copy_from_slice(black_box(&source));
        }
        report(&format!("copy {bytes} B"), count, start, thread_nanos());
        let start = thread_nanos();
        for _ in 0..count {
            black_box(twox_hash::XxHash3_64::oneshot(black_box(&source)));
        }
        report(&format!("checksum (XXH3) {bytes} B"), count, start, thread_nanos());
    }
}

fn hash_of(number: u64) -> [u8; 32] {
    let mut hash = NO_PREVIOUS;
    hash[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    hash
}

fn transaction(number: u64) -> TxId {
    TxId::from(format!("{:064x}", u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834)))
}

async fn blocks(path: &Path) {
    const TRANSACTIONS: u64 = 500;
    const BLOCKS: u64 = 100;
    println!("blocks of {TRANSACTIONS} transactions of 3,500 B");
    let directory = Directory::open(path).await.expect("the directory opens");
    let (store, _) = BlockStore::open(directory.clone(), GroupSync::new(), BlockStoreConfig::default())
        .await
        .expect("the store opens");
    let payload = Bytes::from(vec![5u8; TRANSACTIONS as usize * 3_500]);
    let ids: Vec<Vec<(TxId, u8)>> = (0..BLOCKS)
        .map(|block| (0..TRANSACTIONS).map(|index| (transaction(block * TRANSACTIONS + index), 0)).collect())
        .collect();
    let (mut append, mut sync, mut sync_wall) = (0, 0, 0);
    for number in 0..BLOCKS {
        let start = process_nanos();
        let block = NewBlock {
            number: BlockNumber(number),
            header_hash: hash_of(number + 1),
            previous_hash: hash_of(number),
            epoch: Epoch(0),
            parts: std::slice::from_ref(&payload),
            transactions: &ids[number as usize],
        };
        store.append(block).await.expect("the block follows");
        let appended = process_nanos();
        let wall = rt::now();
        store.sync().await.expect("the disk is well");
        append += appended - start;
        sync += process_nanos() - appended;
        sync_wall += wall.elapsed().as_nanos() as u64;
    }
    report("append, a block", BLOCKS, 0, append);
    report("append, a transaction", BLOCKS * TRANSACTIONS, 0, append);
    report("sync, a block", BLOCKS, 0, sync);
    report("sync, a block, elapsed", BLOCKS, 0, sync_wall);
    let start = thread_nanos();
    for number in 0..BLOCKS {
        black_box(store.read(BlockNumber(number)).expect("the block is readable"));
    }
    report("read, a block", BLOCKS, start, thread_nanos());
    let absent: Vec<TxId> = (0..100_000).map(|number| transaction(u64::MAX / 2 + number)).collect();
    let start = thread_nanos();
    for id in &absent {
        assert!(black_box(store.find_transaction(id).expect("the index is readable")).is_none());
    }
    report("find an absent transaction", absent.len() as u64, start, thread_nanos());
    let start = thread_nanos();
    for number in 0..1_000 {
        let id = transaction(number * 37 % (BLOCKS * TRANSACTIONS));
        assert!(store.find_transaction(&id).expect("the index is readable").is_some());
    }
    report("find a committed transaction", 1_000, start, thread_nanos());
    let memory = store.index_memory_bytes() as f64 / (BLOCKS * TRANSACTIONS) as f64;
    println!("  {:<44} {memory:>9.3} B", "index memory, a transaction");
    drop(store);
    let wall = rt::now();
    let (store, report) =
        BlockStore::open(directory, GroupSync::new(), BlockStoreConfig::default()).await.expect("the store opens");
    println!("  {:<44} {:>9.3} ms", format!("open, {} segments", report.segments), wall.elapsed().as_secs_f64() * 1e3);
    assert_eq!(store.height(), BLOCKS);
}

fn key_of(number: u64) -> Vec<u8> {
    format!("account{number:012}").into_bytes()
}

/// A number below `bound`, by a fixed sequence.
fn draw(state: &mut u64, bound: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % bound
}

async fn wait_until_idle(engine_path: &Path) {
    // Merging is finished when the directory stops changing.
    let mut last = 0;
    for _ in 0..100 {
        rt::sleep(Duration::from_millis(300)).await;
        let now = process_nanos();
        if now - last < 3_000_000 && engine_path.exists() {
            return;
        }
        last = now;
    }
}

/// Writes `count` rows in blocks, beginning with block `first`; persists now and then. Returns the next block.
async fn write(tables: &Arc<dyn Tables>, first: u64, count: u64, mut row: impl FnMut(u64) -> (Vec<u8>, Bytes)) -> u64 {
    let mut block = first;
    let mut written = 0;
    while written < count {
        let savepoint = Savepoint { height: block + 1, ..Savepoint::default() };
        let mut batch = RowBatch::new(savepoint);
        for index in 0..ROWS_PER_BLOCK.min(count - written) {
            let (key, value) = row(written + index);
            let version = Version::new(block, index as u32);
            batch.put("smallbank", &key, version, Some(value)).expect("the row is within the limits");
        }
        written += batch.len() as u64;
        tables.write(batch).expect("the batch follows");
        tables.prune(BlockNumber(block.saturating_sub(64)), 0).expect("the bound is raised");
        block += 1;
        if block.is_multiple_of(BLOCKS_PER_PERSIST) {
            tables.persist().await.expect("the disk is well");
        }
    }
    tables.persist().await.expect("the disk is well");
    block
}

async fn tables(label: &str, path: &Path, value_bytes: usize, rows: u64, separate: Option<u32>) {
    println!("tables, {rows} rows of {label}");
    let options = FjallConfig { separate_value_bytes: separate, ..FjallConfig::default() };
    let engine = FjallEngine::open(path, options.clone()).await.expect("the engine opens");
    let opened = engine.tables("channel").await.expect("the tables open");
    let value = |seed: u64| {
        let mut value = vec![seed as u8; value_bytes];
        value[..8].copy_from_slice(&seed.to_le_bytes());
        Bytes::from(value)
    };
    let mut state = 88_172_645_463_325_252;
    for (what, random) in [("put, new keys", false), ("put, random keys", true)] {
        let next = opened.savepoint().height;
        let (start, caller) = (process_nanos(), thread_nanos());
        write(&opened, next, rows, |index| {
            let number = if random { draw(&mut state, rows) } else { index.wrapping_mul(7_919) % rows };
            (key_of(number), value(index))
        })
        .await;
        report(&format!("{what}, caller"), rows, caller, thread_nanos());
        wait_until_idle(path).await;
        report(&format!("{what}, with flushing and merging"), rows, start, process_nanos());
    }
    drop((opened, engine));
    for (what, hint_bytes) in [("with hints", 64 << 20), ("without hints", 0)] {
        let options = FjallConfig { hint_bytes, ..options.clone() };
        let engine = FjallEngine::open(path, options).await.expect("the engine opens");
        let tables = engine.tables("channel").await.expect("the tables open");
        let through = BlockNumber(tables.savepoint().height - 1);
        wait_until_idle(path).await;
        let reads = 100_000.min(rows * 2);
        for pass in ["first pass", "again"] {
            let mut state = 5;
            let start = thread_nanos();
            for _ in 0..reads {
                let key = key_of(draw(&mut state, rows));
                black_box(tables.get("smallbank", &key, through).expect("the row is readable"));
            }
            report(&format!("get, {what}, {pass}"), reads, start, thread_nanos());
        }
        for pass in ["first pass", "again"] {
            let start = thread_nanos();
            for number in 0..reads {
                let mut key = key_of(number % rows);
                key.push(b'x');
                black_box(tables.version("smallbank", &key, through).expect("absence is no error"));
            }
            report(&format!("version of an absent key, {what}, {pass}"), reads, start, thread_nanos());
        }
        let start = thread_nanos();
        for round in 0..100 {
            let from = key_of(round * rows / 100);
            let page = tables
                .range(RangeQuery { namespace: "smallbank", start: &from, end: b"", through, limit: 100 })
                .expect("the range is readable");
            black_box(page);
        }
        report("range, an entry of 100", 10_000, start, thread_nanos());
    }
}
