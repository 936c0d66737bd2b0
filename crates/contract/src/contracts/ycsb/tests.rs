use proptest::prelude::*;

use super::*;
use crate::ContractRegistry;
use crate::model::{ModelInvocation, ModelLedger, run};

fn loaded(records: u64) -> ModelLedger {
    let mut ledger = ModelLedger::new(ContractRegistry::native());
    let loaded = ledger.call("ycsb", "load", &["0", &records.to_string(), "100", "7"]).expect("within bounds");
    assert_eq!(loaded, records.to_string());
    ledger
}

#[test]
fn loaded_values_follow_from_the_seed() {
    let mut ledger = loaded(50);
    for number in [0, 1, 49] {
        let value = ledger.call("ycsb", "read", &[record_key(number)]).expect("loaded");
        assert_eq!(value, record_value(7, number, 100));
    }
    assert_eq!(record_value(7, 3, 1_000).len(), 1_000);
    assert_eq!(record_value(7, 3, 100), record_value(7, 3, 1_000)[..100]);
    assert_ne!(record_value(7, 3, 100), record_value(8, 3, 100));
    assert_ne!(record_value(7, 3, 100), record_value(7, 4, 100));
    let missing = ledger.call("ycsb", "read", &[record_key(50)]);
    assert_eq!(missing, Err("there is no record user000000000050".to_owned()));
}

#[test]
fn operations_read_and_write_what_the_benchmark_says() {
    let mut ledger = loaded(3);
    let key = record_key(1);
    let absent = record_key(9);
    // function, key, reads, writes
    let cases = [
        ("read", &key, 1, 0),
        ("update", &key, 0, 1),
        ("update", &absent, 0, 1),
        ("readModifyWrite", &key, 1, 1),
        ("insert", &record_key(10), 1, 1),
    ];
    for (function, key, reads, writes) in cases {
        let args = if function == "read" { vec![key.as_str()] } else { vec![key.as_str(), "value"] };
        let effects = run(ledger.submit(&ModelInvocation::new("ycsb", function, &args))).expect("a healthy state");
        assert!(effects.response.is_endorsable(), "{function}: {}", effects.response.message);
        assert_eq!((effects.reads.len(), effects.writes.len()), (reads, writes), "{function}");
    }
    assert_eq!(ledger.get("ycsb", &absent).expect("updates write blindly"), "value");
}

#[test]
fn a_record_is_derived_from_others() {
    let mut ledger = loaded(4);
    let from = [0, 1, 2].map(record_key).join(",");
    let derived = ModelInvocation::new("ycsb", "derive", &[from.as_str(), "derived", "value"]);
    let effects = run(ledger.submit(&derived)).expect("a healthy state");
    assert_eq!((effects.reads.len(), effects.writes.len()), (3, 1));
    assert_eq!(ledger.get("ycsb", "derived").expect("it was written"), "value");
    let refused = ledger.call("ycsb", "derive", &["user000000000000,absent", "derived", "value"]);
    assert_eq!(refused, Err("there is no record absent".to_owned()));
    let many = vec!["user000000000000"; DERIVED_FROM_MAX + 1].join(",");
    let refused = ledger.call("ycsb", "derive", &[many.as_str(), "derived", "value"]).expect_err("too many");
    assert!(refused.contains("at most 100 keys, not 101"), "{refused}");
}

#[test]
fn values_are_any_bytes() {
    let mut ledger = loaded(1);
    let value: &[u8] = &[0xff, 0x00, 0xc0];
    ledger.call("ycsb", "update", &[b"binary", value]).expect("opaque");
    assert_eq!(ledger.call("ycsb", "read", &["binary"]).expect("just written"), value);
}

#[test]
fn insert_and_modify_check_existence() {
    let mut ledger = loaded(1);
    let refused = ledger.call("ycsb", "insert", &["user000000000000", "x"]);
    assert_eq!(refused, Err("there is a record user000000000000 already".to_owned()));
    let refused = ledger.call("ycsb", "readModifyWrite", &["absent", "x"]);
    assert_eq!(refused, Err("there is no record absent".to_owned()));
}

#[test]
fn scan_reads_no_more_than_it_returns() {
    let mut ledger = loaded(250);
    let scans: [(&str, &str, usize); 4] =
        [("user000000000010", "5", 5), ("", "120", 120), ("user000000000249", "10", 1), ("z", "10", 0)];
    for (start, count, expected) in scans {
        let effects = run(ledger.execute(&ModelInvocation::new("ycsb", "scan", &[start, count]))).expect("healthy");
        let records = decode_scan(effects.response.payload).expect("own encoding");
        assert_eq!(records.len(), expected, "{start}");
        assert!(records.iter().all(|(key, _)| key.as_str() >= start) && records.is_sorted());
        let (_, _, read) = &effects.ranges[0];
        assert!(read.len() <= expected.next_multiple_of(crate::PAGE_ENTRIES_MAX.min(count.parse().expect("a count"))));
    }
    let first = ledger.call("ycsb", "scan", &["user000000000010", "1"]).expect("in range");
    assert_eq!(decode_scan(first), Ok(vec![(record_key(10), record_value(7, 10, 100))]));
}

#[test]
fn bounds_are_enforced() {
    let mut ledger = loaded(1);
    let big = "x".repeat(usize::try_from(VALUE_BYTES_MAX).expect("small") + 1);
    let cases: [(&str, &[&str], &str); 12] = [
        ("scan", &["a", "0"], "must be from 1 to 1000"),
        ("scan", &["a", "1001"], "must be from 1 to 1000"),
        ("scan", &["\0", "1"], "may not start with U+0000"),
        ("load", &["0", "0", "1", "1"], "must be from 1 to 100000"),
        ("load", &["0", "100001", "1", "1"], "must be from 1 to 100000"),
        ("load", &["999999999999", "2", "1", "1"], "must be from 1 to 1,"),
        ("load", &["1000000000000", "1", "1", "1"], "must be from 0 to 999999999999"),
        ("load", &["0", "100000", "1000", "1"], "must be from 1 to 671"),
        ("load", &["0", "1", "0", "1"], "must be from 1 to 1048576"),
        ("update", &["a", ""], "must have 1 to 1048576 bytes, not 0"),
        ("update", &["a", &big], "must have 1 to 1048576 bytes, not 1048577"),
        ("update", &["", "x"], "a key must not be empty"),
    ];
    for (function, args, reason) in cases {
        let message = ledger.call("ycsb", function, args).expect_err(function);
        assert!(message.contains(reason), "{function}: {message}");
    }
}

proptest! {
    #[test]
    fn decoding_a_scan_never_panics(result in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = decode_scan(result.into());
    }

    #[test]
    fn scans_round_trip(records in prop::collection::vec((".{0,9}", prop::collection::vec(any::<u8>(), 0..9)), 0..9)) {
        let mut result = Vec::new();
        for (key, value) in &records {
            encode_bytes(key.as_bytes(), &mut result);
            encode_bytes(value, &mut result);
        }
        let records: Vec<(String, Bytes)> = records.into_iter().map(|(key, value)| (key, value.into())).collect();
        prop_assert_eq!(decode_scan(result.into()), Ok(records));
    }
}
