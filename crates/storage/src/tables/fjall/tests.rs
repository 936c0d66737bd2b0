#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

use std::fs;

use base::rt::production;
use base::rt::simulation::Prng;
use base::{BlockNumber, Bytes, Epoch, Version};

use super::hints::{HintLookup, NewestRow, NewestRowHints};
use super::journal::{truncate_torn_tail, whole_bytes};
use super::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::tables::{ReadableFrom, Tables, TablesEngine};
use crate::tables::{Row, RowBatch, Savepoint};
use crate::{Error, events};

const KEYS: u64 = 40;

fn savepoint(height: u64) -> Savepoint {
    Savepoint { height, epoch: Epoch(0), block_hash: [height as u8; 32] }
}

/// Block `block` writes every third key, some of them with values that span pages of the journal.
fn batch(block: u64) -> RowBatch {
    let mut batch = RowBatch::new(savepoint(block + 1));
    for key in (0..KEYS).filter(|key| key % 3 == block % 3) {
        let version = Version::new(block, key as u32);
        batch.put("n", format!("k{key}").as_bytes(), version, Some(value(key, block))).expect("within the limits");
    }
    batch
}

fn value(key: u64, block: u64) -> Bytes {
    let length = [10, 100, 3_000, 20_000][(key % 4) as usize];
    Bytes::from(vec![(1 + key + block) as u8; length])
}

fn check_rows(tables: &dyn Tables) -> u64 {
    let height = tables.savepoint().height;
    for key in 0..KEYS {
        let row = tables.get("n", format!("k{key}").as_bytes(), BlockNumber(u64::MAX)).expect("the row is readable");
        let newest = (0..height).rev().find(|block| block % 3 == key % 3);
        let expected =
            newest.map(|block| Row { version: Version::new(block, key as u32), value: Some(value(key, block)) });
        assert_eq!(row, expected, "k{key} at height {height}");
    }
    height
}

async fn open(path: &Path) -> (Arc<FjallEngine>, Arc<dyn Tables>) {
    let engine = FjallEngine::open(path, FjallConfig::default()).await.expect("the engine opens");
    let tables = engine.tables("channel").await.expect("the tables open");
    (engine, tables)
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the copy is writable");
    for entry in fs::read_dir(from).expect("the directory is readable") {
        let entry = entry.expect("the directory is readable");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("the type is known").is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).expect("the copy is writable");
        }
    }
}

fn journal_of(path: &Path) -> PathBuf {
    let names = fs::read_dir(path).expect("the directory is readable");
    let mut journals: Vec<PathBuf> = names
        .map(|entry| entry.expect("the directory is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"))
        .collect();
    assert_eq!(journals.len(), 1, "little was written, so there is one journal");
    journals.pop().expect("there is one")
}

#[test]
fn drop_without_persist_keeps_rows_and_savepoint_together() {
    production::run(async {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("engine");
        let mut height = 0;
        for round in 0..6 {
            let (engine, tables) = open(&path).await;
            let found = check_rows(&*tables);
            assert!(found >= height);
            height = found;
            for block in height..height + 5 {
                tables.write(batch(block)).expect("the batch follows");
                if block == height + 2 && round % 2 == 0 {
                    tables.persist().await.expect("the disk is well");
                }
            }
            height = tables.durable_savepoint().height;
            drop((engine, tables));
        }
        assert!(height > 10);
    });
}

/// The pages of a journal reach the disk in any order. A loss of power kept a later page of the unsynced tail and lost an
/// earlier one within a large value. The engine then refused to open, with a checksum mismatch, although all synced data
/// was intact.
#[test]
fn journal_torn_anywhere_in_its_unsynced_tail_opens_at_a_savepoint() {
    production::run(async {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("engine");
        let (_engine, tables) = open(&path).await;
        for block in 0..6 {
            tables.write(batch(block)).expect("the batch follows");
        }
        tables.persist().await.expect("the disk is well");
        let synced = whole_bytes(&fs::read(journal_of(&path)).expect("the journal is readable"));
        for block in 6..12 {
            tables.write(batch(block)).expect("the batch follows");
        }
        let written = fs::read(journal_of(&path)).expect("the journal is readable");
        let end = written.iter().rposition(|byte| *byte != 0).expect("batches were written") + 1;
        let batches = whole_bytes(&written);
        assert!(synced < batches && batches <= end, "the reader follows what the engine writes");
        let (mut heights, mut cuts) = (std::collections::BTreeSet::new(), 0);
        for seed in 0..40 {
            let mut rng = Prng::new(seed);
            let copy = scratch.path().join(format!("copy{seed}"));
            copy_tree(&path, &copy);
            let mut torn = written.clone();
            let page = [512, 4096][rng.index(2)];
            let rarity = [6, 60, 600][rng.index(3)];
            for start in (0..end).step_by(page).filter(|start| start + page > synced) {
                if rng.one_in(rarity) {
                    let stop = (start + page).min(torn.len());
                    torn[start.max(synced)..stop].fill(0);
                }
            }
            if rng.one_in(4) {
                torn.truncate(synced + rng.index(end - synced));
            }
            fs::write(journal_of(&copy), &torn).expect("the copy is writable");
            let before = events::TornTailsTruncated.value();
            let (_engine, tables) = open(&copy).await;
            cuts += usize::from(events::TornTailsTruncated.value() > before);
            let height = check_rows(&*tables);
            assert!(height >= 6, "what was persisted is there");
            heights.insert(height);
            // The tables continue from there.
            tables.write(batch(height)).expect("the batch follows");
            tables.persist().await.expect("the disk is well");
            assert_eq!(check_rows(&*tables), height + 1);
        }
        assert!(heights.len() > 3, "{heights:?}");
        assert!(cuts > 0, "some of the tails were ones that the engine does not tolerate");
    });
}

#[test]
fn whole_journal_is_not_cut() {
    production::run(async {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("engine");
        for compression in [false, true] {
            let path = path.join(compression.to_string());
            let options = FjallConfig { compression, ..FjallConfig::default() };
            let engine = FjallEngine::open(&path, options).await.expect("the engine opens");
            let tables = engine.tables("channel").await.expect("the tables open");
            for block in 0..10 {
                tables.write(batch(block)).expect("the batch follows");
            }
            tables.persist().await.expect("the disk is well");
            assert_eq!(truncate_torn_tail(&path).expect("the journal is readable"), None);
            let bytes = fs::read(journal_of(&path)).expect("the journal is readable");
            assert!(whole_bytes(&bytes) > 10_000);
            for cut in [1, 5, 12, 100] {
                let whole = whole_bytes(&bytes);
                assert!(whole_bytes(&bytes[..whole - cut]) < whole - cut, "the last batch is not whole");
            }
        }
    });
}

#[test]
fn one_directory_is_opened_once() {
    production::run(async {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let (_engine, _tables) = open(scratch.path()).await;
        let error = FjallEngine::open(scratch.path(), FjallConfig::default()).await.expect_err("it is open");
        assert!(matches!(error, Error::Locked { .. }), "{error}");
    });
}

#[test]
fn merges_drop_superseded_versions_and_keep_what_is_read() {
    production::run(async {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let options = FjallConfig { memtable_bytes: 32 << 10, ..FjallConfig::default() };
        let engine = FjallEngine::open(scratch.path(), options).await.expect("the engine opens");
        let tables = engine.tables("channel").await.expect("the tables open");
        let before = events::RowsPruned.value();
        let blocks = 1500;
        for block in 0..blocks {
            let mut batch = RowBatch::new(savepoint(block + 1));
            for key in 0..20u64 {
                let value = Bytes::from(format!("{block}-{key}-{}", "v".repeat(50)));
                batch.put("n", &key.to_be_bytes(), Version::new(block, 0), Some(value)).expect("within the limits");
            }
            tables.write(batch).expect("the batch follows");
            tables.prune(BlockNumber(block.saturating_sub(10)), 0).expect("the bound is raised");
        }
        // The engine merges in the background, and on a busy machine late.
        for _ in 0..1200 {
            if events::RowsPruned.value() - before > 10_000 {
                break;
            }
            base::rt::sleep(std::time::Duration::from_millis(50)).await;
        }
        let dropped = events::RowsPruned.value() - before;
        assert!(dropped > 10_000, "{dropped} of {} rows were dropped", blocks * 20);
        for through in [blocks - 5, blocks - 1] {
            for key in 0..20u64 {
                let row = tables.get("n", &key.to_be_bytes(), BlockNumber(through)).expect("the row is readable");
                assert_eq!(row.expect("the row is there").version, Version::new(through, 0));
            }
        }
    });
}

/// With one worker thread the engine deadlocked here: more than 1,000 batches met a full memtable while the worker merged,
/// the queue of requests was full, and the worker waited for space in it.
#[test]
fn thousands_of_small_batches_do_not_lock_the_engine_up() {
    production::run(async {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let options = FjallConfig { memtable_bytes: 32 << 10, worker_threads: 1, ..FjallConfig::default() };
        let engine = FjallEngine::open(scratch.path(), options).await.expect("the engine opens");
        let tables = engine.tables("channel").await.expect("the tables open");
        let writing = base::rt::blocking(move || {
            for block in 0..20_000u64 {
                let mut batch = RowBatch::new(savepoint(block + 1));
                let value = Some(Bytes::from_static(&[7; 100]));
                batch.put("n", &block.to_be_bytes(), Version::new(block, 0), value).expect("within the limits");
                tables.write(batch).expect("the batch follows");
            }
        });
        base::rt::timeout(std::time::Duration::from_secs(120), writing).await.expect("the engine goes on");
    });
}

/// A removal whose caller went away could run again later, and removed what others had written since.
#[test]
fn a_handle_whose_rows_were_removed_removes_and_writes_nothing_more() {
    production::run(async {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let engine = FjallEngine::open(scratch.path(), FjallConfig::default()).await.expect("the engine opens");
        let old = engine.open_tables("channel", ReadableFrom::Savepoint).expect("the tables open");
        // More rows than are removed together.
        let mut many = RowBatch::new(savepoint(1));
        for key in 0..10_000_u64 {
            let value = Some(Bytes::from_static(b"old"));
            many.put("n", &key.to_be_bytes(), Version::new(0, 0), value).expect("within the limits");
        }
        old.write(many).expect("the batch follows");
        engine.clear("channel").await.expect("they are removed");
        let new = engine.tables("channel").await.expect("the tables open");
        assert_eq!(new.savepoint(), Savepoint::default());
        new.write(batch(0)).expect("the batch follows");
        old.clear().expect("there is nothing left to do");
        assert!(old.write(batch(0)).is_err(), "others have the tables now");
        for key in [0_u64, 4_095, 4_096, 9_999] {
            let found = new.get("n", &key.to_be_bytes(), BlockNumber(0)).expect("it can be read");
            assert!(found.is_none(), "row {key} was removed");
        }
        let kept = new.get("n", b"k0", BlockNumber(0)).expect("it can be read").expect("it was written afterwards");
        assert_eq!(kept.value, Some(value(0, 0)));
    });
}

fn row(block: u64) -> NewestRow {
    NewestRow::Row { version: Version::new(block, 0), live: true }
}

fn look(hints: &NewestRowHints, key: &[u8]) -> Option<NewestRow> {
    match hints.lookup(key) {
        HintLookup::Found(newest) => Some(newest),
        HintLookup::Miss(_) => None,
    }
}

#[test]
fn hints_follow_the_newest_write_and_no_late_one() {
    let hints = production::run(async { NewestRowHints::new(1 << 20) });
    let write = |block, is_newest| hints.wrote(b"k", Version::new(block, 0), true, is_newest);
    assert_eq!(look(&hints, b"k"), None);
    write(3, false);
    assert_eq!(look(&hints, b"k"), None, "a late row of an unknown key may not be its newest");
    write(5, true);
    assert_eq!(look(&hints, b"k"), Some(row(5)));
    write(4, false);
    assert_eq!(look(&hints, b"k"), Some(row(5)));
    write(6, true);
    assert_eq!(look(&hints, b"k"), Some(row(6)));
    hints.forget(b"k");
    assert_eq!(look(&hints, b"k"), None);
}

#[test]
fn search_that_a_write_overtook_enters_nothing() {
    let hints = production::run(async { NewestRowHints::new(1 << 20) });
    let HintLookup::Miss(ticket) = hints.lookup(b"k") else { panic!("nothing was entered") };
    hints.wrote(b"k", Version::new(7, 0), true, true);
    hints.found(ticket, row(3));
    assert_eq!(look(&hints, b"k"), Some(row(7)));
    let HintLookup::Miss(ticket) = hints.lookup(b"other") else { panic!("nothing was entered") };
    hints.found(ticket, NewestRow::Absent);
    assert_eq!(look(&hints, b"other"), Some(NewestRow::Absent));
    hints.wrote(b"other", Version::new(2, 0), true, false);
    assert_eq!(look(&hints, b"other"), Some(row(2)), "the first row of an absent key is its newest");
}

#[test]
fn hints_keep_to_their_memory_and_may_be_switched_off() {
    let (hints, off) = production::run(async { (NewestRowHints::new(100 << 10), NewestRowHints::new(0)) });
    for key in 0..100_000u64 {
        hints.wrote(&key.to_le_bytes(), Version::new(key, 0), true, true);
        off.wrote(&key.to_le_bytes(), Version::new(key, 0), true, true);
    }
    let known = (0..100_000u64).filter(|key| look(&hints, &key.to_le_bytes()).is_some()).count();
    assert!((1_000..2_600).contains(&known), "{known}");
    for key in 0..100_000u64 {
        assert!(look(&hints, &key.to_le_bytes()).is_none_or(|newest| newest == row(key)));
    }
    assert_eq!(look(&off, &5u64.to_le_bytes()), None);
}
