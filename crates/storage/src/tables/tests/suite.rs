//! Tests of the behaviour that both engines share.

use base::ErrorKind;
use base::rt::production;
use base::rt::simulation::Simulation;

use super::*;
use crate::Error;

/// Runs each case on both engines: the model in a simulation, fjall on a scratch directory.
macro_rules! on_both_engines {
    ($($name:ident),+ $(,)?) => {
        mod on_model {
            use super::*;
            $(
                #[test]
                fn $name() {
                    Simulation::new(1).check(|_| super::$name(Engine::model())).expect("the run succeeds");
                }
            )+
        }
        mod on_fjall {
            use super::*;
            $(
                #[test]
                fn $name() {
                    let scratch = tempfile::tempdir().expect("a scratch directory");
                    production::run(super::$name(Engine::fjall(scratch.path().join("engine"))));
                }
            )+
        }
    };
}

on_both_engines! {
    newest_row_at_or_below_a_block_is_read,
    rows_and_savepoint_survive_closing_after_persist,
    ranges_are_in_byte_order_with_one_live_row_a_key,
    namespaces_are_apart,
    savepoint_never_goes_back_and_older_epochs_are_fenced,
    batch_of_rows_beyond_the_savepoint_is_refused,
    ranges_go_across_long_keys,
    rows_written_late_and_twice_change_only_what_they_say,
    reads_beyond_the_savepoint_read_at_it,
    reads_below_the_oldest_admitted_block_are_refused,
    values_of_all_sizes_are_read_back,
    channels_are_apart,
    empty_keys_and_values_are_rows,
    many_keys_are_read_in_the_order_asked,
    random_histories_match_the_oracle,
}

async fn newest_row_at_or_below_a_block_is_read(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    assert_eq!(tables.savepoint(), Savepoint::default());
    assert_eq!(show(&*tables, "a", 9), "-");
    write_block(&*tables, 0, "a=1 b=1 a=2");
    write_block(&*tables, 1, "c=1");
    write_block(&*tables, 2, "a! b=2");
    write_block(&*tables, 3, "a=3");
    let expected = [("a", ["0:2=2", "0:2=2", "2:0!", "3:0=3"]), ("b", ["0:1=1", "0:1=1", "2:1=2", "2:1=2"])];
    for _ in 0..2 {
        for (key, rows) in expected {
            for (through, row) in rows.into_iter().enumerate() {
                assert_eq!(show(&*tables, key, through as u64), row, "{key} through {through}");
            }
        }
    }
    assert_eq!(show(&*tables, "c", 0), "-");
    assert_eq!(show(&*tables, "absent", 3), "-");
}

async fn rows_and_savepoint_survive_closing_after_persist(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    write_block(&*tables, 0, "a=1 b=1");
    write_block(&*tables, 1, "a!");
    assert_eq!(tables.durable_savepoint(), Savepoint::default());
    assert_eq!(tables.persist().await.expect("the disk is well"), savepoint(2));
    assert_eq!((tables.savepoint(), tables.durable_savepoint()), (savepoint(2), savepoint(2)));
    drop(tables);
    engine.close();
    let tables = engine.tables("channel").await;
    assert_eq!((tables.savepoint(), tables.durable_savepoint()), (savepoint(2), savepoint(2)));
    assert_eq!((show(&*tables, "a", 1), show(&*tables, "b", 1)), ("1:0!".into(), "0:1=1".into()));
    write_block(&*tables, 2, "a=4");
    assert_eq!((tables.savepoint(), tables.durable_savepoint()), (savepoint(3), savepoint(2)));
    assert_eq!(show(&*tables, "a", 2), "2:0=4");
}

async fn ranges_are_in_byte_order_with_one_live_row_a_key(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    // Composite keys as Fabric makes them, and keys that are prefixes of one another.
    write_block(&*tables, 0, "a=1 a\0=2 a\0\0=3 a\0b=4 aa=5 b=6 \u{10ffff}=7 \0k\0x\0=8 \0k\0y\0=9");
    write_block(&*tables, 1, "aa! b=66 c=7");
    write_block(&*tables, 2, "aa=55 b!");
    for page in [1, 2, 100] {
        let range = |start, end, through| show_range(&*tables, start, end, through, page);
        assert_eq!(range("a", "c", 0), "a=1 a\0=2 a\0\0=3 a\0b=4 aa=5 b=6");
        assert_eq!(range("a", "c", 1), "a=1 a\0=2 a\0\0=3 a\0b=4 b=66");
        assert_eq!(range("a", "c", 2), "a=1 a\0=2 a\0\0=3 a\0b=4 aa=55");
        assert_eq!(range("a\0", "a\0b", 2), "a\0=2 a\0\0=3");
        assert_eq!(range("\0k\0", "\0k\u{10ffff}", 2), "\0k\0x\0=8 \0k\0y\0=9");
        assert_eq!(range("b", "", 2), "c=7 \u{10ffff}=7");
        assert_eq!(range("b", "b", 2), "");
        assert_eq!(range("c", "b", 2), "");
        assert_eq!(range("", "a", 2), "\0k\0x\0=8 \0k\0y\0=9");
    }
    let none = tables
        .range(RangeQuery { namespace: "n", start: b"a", end: b"", through: BlockNumber(2), limit: 0 })
        .expect("the range is readable");
    assert_eq!((none.entries.len(), none.next.as_deref()), (0, Some(&b"a"[..])));
}

async fn namespaces_are_apart(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    assert!(tables.namespaces().expect("the tables are readable").is_empty());
    let mut batch = RowBatch::new(savepoint(1));
    for (index, namespace) in ["n", "n\0", "", "na", "m"].into_iter().enumerate() {
        let value = Some(Bytes::copy_from_slice(namespace.as_bytes()));
        batch.put(namespace, b"k", Version::new(0, index as u32), value).expect("the row is within the limits");
        batch.put(namespace, b"only\0", Version::new(0, index as u32), None).expect("the row is within the limits");
    }
    tables.write(batch).expect("the batch follows");
    assert_eq!(tables.namespaces().expect("the tables are readable"), ["", "m", "n", "n\0", "na"]);
    for namespace in ["n", "n\0", "", "na", "m"] {
        let page = tables
            .range(RangeQuery { namespace, start: b"", end: b"", through: BlockNumber(0), limit: 10 })
            .expect("the range is readable");
        let found: Vec<_> = page.entries.iter().map(|entry| (&entry.key[..], &entry.value[..])).collect();
        assert_eq!(found, [(&b"k"[..], namespace.as_bytes())]);
    }
}

async fn savepoint_never_goes_back_and_older_epochs_are_fenced(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    let at = |height, epoch| RowBatch::new(Savepoint { height, epoch: Epoch(epoch), block_hash: [0; 32] });
    tables.write(at(5, 2)).expect("any first savepoint is taken");
    tables.write(at(5, 2)).expect("the same savepoint may be written again");
    let error = tables.write(at(4, 2)).expect_err("a savepoint does not go back");
    assert_eq!(error.kind(), ErrorKind::Rejected);
    let error = tables.write(at(6, 1)).expect_err("a newer epoch has written");
    assert!(matches!(error, Error::Fenced { given: Epoch(1), newest: Epoch(2) }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    tables.persist().await.expect("the disk is well");
    drop(tables);
    engine.close();
    let tables = engine.tables("channel").await;
    assert_eq!(tables.write(at(6, 1)).expect_err("the epoch is durable").kind(), ErrorKind::Fenced);
    tables.write(at(6, 3)).expect("a newer epoch takes over");
}

async fn batch_of_rows_beyond_the_savepoint_is_refused(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    let mut batch = RowBatch::new(savepoint(1));
    let error = batch.put("n", b"k", Version::new(1, 0), None).expect_err("block 1 is not covered by height 1");
    assert_eq!(error.kind(), ErrorKind::Rejected);
    // A zero byte counts twice, because it is escaped. The longest key fits the engine beside the longest namespace.
    let longest = "\0".repeat(NAMESPACE_BYTES_MAX);
    let keys = [vec![b'k'; KEY_BYTES_MAX], vec![0; KEY_BYTES_MAX / 2]];
    for key in &keys {
        let long = [&key[..], b"k"].concat();
        let error = batch.put("n", &long, Version::new(0, 0), None).expect_err("the key is too long");
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
        batch.put(&longest, key, Version::new(0, 0), Some(Bytes::from_static(b"v"))).expect("it is within the limits");
    }
    tables.write(batch).expect("the batch follows");
    for key in &keys {
        let row = tables.get(&longest, key, BlockNumber(0)).expect("the row is readable");
        assert_eq!(row.and_then(|row| row.value), Some(Bytes::from_static(b"v")));
    }
}

/// Keys that differ in their last byte only, more of them than a page of a range may have bytes.
async fn ranges_go_across_long_keys(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    let mut batch = RowBatch::new(savepoint(1));
    let key = |number: u8| [&[b'k'; KEY_BYTES_MAX - 2][..], &[b'0', number]].concat();
    let count = u8::try_from(SCAN_BYTES_SOFT_MAX / KEY_BYTES_MAX + 10).expect("few keys fill a page");
    for number in (1..=count).rev() {
        batch.put("n", &key(number), Version::new(0, 0), Some(Bytes::from(vec![number]))).expect("within the limits");
    }
    batch.put("n", &key(1)[1..], Version::new(0, 0), Some(Bytes::from_static(b"shorter"))).expect("within the limits");
    batch.put("n", b"l", Version::new(0, 0), Some(Bytes::from_static(b"behind"))).expect("within the limits");
    tables.write(batch).expect("the batch follows");
    let (mut start, end, mut got, mut pages) = (key(2), key(count), Vec::new(), 0);
    loop {
        let query = RangeQuery { namespace: "n", start: &start, end: &end, through: BlockNumber(0), limit: 1000 };
        let page = tables.range(query).expect("the rows are readable");
        let bytes: usize = page.entries.iter().map(|entry| entry.key.len()).sum();
        assert!(bytes < SCAN_BYTES_SOFT_MAX + KEY_BYTES_MAX, "{bytes}");
        got.extend(page.entries.into_iter().map(|entry| entry.value[0]));
        pages += 1;
        match page.next {
            Some(next) => start = next.to_vec(),
            None => break,
        }
    }
    assert_eq!((got, pages), ((2..count).collect::<Vec<u8>>(), 2));
}

async fn rows_written_late_and_twice_change_only_what_they_say(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    write_block(&*tables, 0, "other=0");
    write_block(&*tables, 5, "a=5");
    assert_eq!(show(&*tables, "a", 5), "5:0=5");
    // An older version arrives after a newer one, as eviction may write it; and the newer one once more.
    let mut batch = RowBatch::new(savepoint(6));
    batch.put("n", b"a", Version::new(3, 1), Some(Bytes::from_static(b"3"))).expect("within the limits");
    batch.put("n", b"late", Version::new(2, 0), Some(Bytes::from_static(b"2"))).expect("within the limits");
    batch.put("n", b"a", Version::new(5, 0), Some(Bytes::from_static(b"5"))).expect("within the limits");
    tables.write(batch).expect("the batch follows");
    for _ in 0..2 {
        assert_eq!(show(&*tables, "a", 5), "5:0=5");
        assert_eq!(show(&*tables, "a", 4), "3:1=3");
        assert_eq!(show(&*tables, "a", 2), "-");
        assert_eq!(show(&*tables, "late", 5), "2:0=2");
    }
    assert_eq!(show_range(&*tables, "", "", 5, 10), "a=5 late=2 other=0");
    assert_eq!(show_range(&*tables, "", "", 4, 10), "a=3 late=2 other=0");
}

async fn reads_beyond_the_savepoint_read_at_it(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    write_block(&*tables, 0, "a=1");
    assert_eq!(show(&*tables, "a", u64::MAX), "0:0=1");
    assert_eq!(show_range(&*tables, "", "", u64::MAX, 10), "a=1");
}

async fn reads_below_the_oldest_admitted_block_are_refused(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    for block in 0..6 {
        write_block(&*tables, block, "a=1");
    }
    tables.prune(BlockNumber(3), 0).expect("the disk is well");
    let error = tables.get("n", b"a", BlockNumber(2)).expect_err("block 2 may have been pruned");
    assert!(matches!(error, Error::TooOld { through: BlockNumber(2), oldest: BlockNumber(3) }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(tables.version("n", b"a", BlockNumber(2)).is_err());
    assert!(
        tables.range(RangeQuery { namespace: "n", start: b"a", end: b"", through: BlockNumber(2), limit: 1 }).is_err()
    );
    assert_eq!(show(&*tables, "a", 3), "3:0=1");
    // The bound never goes back, nor beyond the written savepoint.
    tables.prune(BlockNumber(1), 0).expect("the disk is well");
    assert!(tables.get("n", b"a", BlockNumber(2)).is_err());
    tables.prune(BlockNumber(100), 0).expect("the disk is well");
    assert_eq!(show(&*tables, "a", 5), "5:0=1");
    tables.persist().await.expect("the disk is well");
    drop(tables);
    engine.close();
    let tables = engine.tables("channel").await;
    assert!(tables.get("n", b"a", BlockNumber(4)).is_err(), "what was pruned before is not known");
    assert_eq!(show(&*tables, "a", 5), "5:0=1");
}

async fn values_of_all_sizes_are_read_back(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    let sizes = [0usize, 1, 20, 199, 200, 201, 4096, 100_000, 3_000_000];
    let value = |size: usize| Bytes::from((0..size).map(|at| (at * 7 + size) as u8).collect::<Vec<u8>>());
    for round in 0..2 {
        let mut batch = RowBatch::new(savepoint(round + 1));
        for size in sizes {
            let version = Version::new(round, size as u32);
            batch.put("n", &size.to_be_bytes(), version, Some(value(size))).expect("within the limits");
        }
        tables.write(batch).expect("the batch follows");
        for size in sizes {
            let row = tables.get("n", &size.to_be_bytes(), BlockNumber(round)).expect("the row is readable");
            assert_eq!(row.and_then(|row| row.value), Some(value(size)), "{size}");
        }
    }
    tables.persist().await.expect("the disk is well");
    drop(tables);
    engine.close();
    let tables = engine.tables("channel").await;
    let page = tables
        .range(RangeQuery { namespace: "n", start: b"", end: b"", through: BlockNumber(1), limit: 100 })
        .expect("the range is readable");
    assert_eq!(page.entries.iter().map(|entry| entry.value.clone()).collect::<Vec<_>>(), sizes.map(value));
}

async fn channels_are_apart(mut engine: Engine) {
    let one = engine.tables("one").await;
    let other = engine.tables("other").await;
    write_block(&*one, 0, "a=1");
    write_block(&*engine.tables("one").await, 1, "b=1");
    assert_eq!((one.savepoint(), other.savepoint()), (savepoint(2), Savepoint::default()));
    assert_eq!((show(&*one, "b", 1), show(&*other, "a", 1)), ("1:0=1".into(), "-".into()));
    other.prune(BlockNumber(5), 10).expect("the disk is well");
    assert_eq!(show(&*one, "a", 0), "0:0=1");
    one.persist().await.expect("the disk is well");
    drop((one, other));
    engine.close();
    assert_eq!(engine.tables("other").await.savepoint(), Savepoint::default());
    assert_eq!(engine.tables("one").await.savepoint(), savepoint(2));
}

async fn empty_keys_and_values_are_rows(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    write_block(&*tables, 0, "=1 a=");
    write_block(&*tables, 1, "b=1");
    assert_eq!((show(&*tables, "", 1), show(&*tables, "a", 1)), ("0:0=1".into(), "0:1=".into()));
    assert_eq!(show_range(&*tables, "", "", 1, 1), "=1 a= b=1");
}

async fn many_keys_are_read_in_the_order_asked(mut engine: Engine) {
    let tables = engine.tables("channel").await;
    write_block(&*tables, 0, "a=1 b=2 c!");
    let rows = tables.get_many("n", &[b"c", b"x", b"a", b"a"], BlockNumber(0)).expect("the rows are readable");
    let versions: Vec<_> =
        rows.iter().map(|row| row.as_ref().map(|row| (row.version.tx, row.value.is_some()))).collect();
    assert_eq!(versions, [Some((2, false)), None, Some((0, true)), Some((0, true))]);
}

async fn random_histories_match_the_oracle(engine: Engine) {
    super::random::run(engine, 5, 400).await;
}
