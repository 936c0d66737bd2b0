//! Tests of read-write sets: Fabric's bytes, hostile bytes, and the rule of summaries.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Block;
use crate::hash::{Hash, sha256};
use base::{Bytes, Version};
use proptest::prelude::*;
use prost::Message;
use proto::kvrwset::{KvRead, KvWrite, KvrwSet, QueryReads, RangeQueryInfo, range_query_info::ReadsInfo};
use proto::rwset::{NsReadWriteSet, TxReadWriteSet};

use super::merkle::{DEGREE, MerkleSummary, RangeSummarizer, SummarizerOutcome};
use super::*;

fn wire_version(version: Version) -> proto::kvrwset::Version {
    proto::kvrwset::Version { block_num: version.block, tx_num: u64::from(version.tx) }
}

fn golden(name: &str) -> Block {
    let path = format!("{}/../proto/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    Block::parse(&Bytes::from(std::fs::read(path).expect("golden blocks are in the tree"))).expect("Fabric wrote it")
}

/// The read-write sets of a block that Fabric wrote.
fn golden_sets(name: &str) -> Vec<Bytes> {
    let block = golden(name);
    let sets: Vec<Bytes> = block
        .envelopes()
        .map(|envelope| {
            let transaction = crate::Transaction::parse(&envelope).expect("Fabric wrote it");
            let action = transaction.action().expect("it has an action");
            action.outcome(transaction.header()).expect("it has an outcome").results()
        })
        .collect();
    assert!(!sets.is_empty());
    sets
}

/// Records the entries of a decoded set and encodes them.
fn encode_again(set: &ReadWriteSet) -> Bytes {
    let mut recorder = ReadWriteSetRecorder::new();
    for namespace in &set.namespaces {
        let name: Arc<str> = set.name(namespace).into();
        for read in set.reads(namespace) {
            let version = read.version.map(|seen| Version::new(seen.block, seen.transaction as u32));
            recorder.read(&name, set.read_key(&read), version);
        }
        for range in set.ranges(namespace) {
            let (start, end) = set.bounds(&range);
            let mut recorded = RangeRecorder::new(start, end);
            let RangeReads::Results(results) = &range.reads else { panic!("golden ranges are short") };
            for read in set.results(results) {
                let seen = read.version.expect("a scanned key exists");
                recorded.add(set.read_key(&read), Version::new(seen.block, seen.transaction as u32));
            }
            if range.exhausted {
                recorded.exhaust();
            }
            recorder.range(&name, recorded);
        }
        for write in set.writes(namespace) {
            let value = set.write_value(&write).unwrap_or_default();
            recorder.write(&name, set.write_key(&write), value);
        }
    }
    recorder.encode()
}

#[test]
fn sets_that_fabric_wrote_encode_to_the_same_bytes() {
    for block in ["b8.block", "b9.block"] {
        for bytes in golden_sets(block) {
            let set = ReadWriteSet::decode(bytes.clone()).expect("Fabric wrote it");
            assert!(set.namespaces.iter().any(|namespace| namespace.writes > 0), "{block}");
            assert!(set.namespaces.iter().any(|namespace| namespace.reads > 0), "{block}");
            assert_eq!(encode_again(&set), bytes, "{block}");
            let again = set.read_again().expect("entries of Fabric's contracts are kept");
            assert_eq!(encode_again(&again), bytes, "{block}");
        }
    }
}

#[test]
fn reads_and_writes_are_sorted_each_key_once_the_last_write_counts() {
    let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
    let mut recorder = ReadWriteSetRecorder::new();
    recorder.write(&b, "z", Bytes::from_static(b"1"));
    recorder.read(&a, "y", None);
    recorder.read(&a, "x", Some(Version::new(3, 0)));
    recorder.read(&a, "y", None);
    recorder.write(&a, "k", Bytes::from_static(b"old"));
    recorder.write(&a, "j", Bytes::new());
    recorder.write(&a, "k", Bytes::from_static(b"new"));
    let kv = |set: KvrwSet| Bytes::from(set.encode_to_vec());
    let read = |key: &str, version: Option<Version>| KvRead { key: key.into(), version: version.map(wire_version) };
    let expected = TxReadWriteSet {
        data_model: 0,
        ns_rwset: vec![
            NsReadWriteSet {
                namespace: "a".into(),
                rwset: kv(KvrwSet {
                    reads: vec![read("x", Some(Version::new(3, 0))), read("y", None)],
                    writes: vec![
                        KvWrite { key: "j".into(), is_delete: true, value: Bytes::new() },
                        KvWrite { key: "k".into(), is_delete: false, value: Bytes::from_static(b"new") },
                    ],
                    ..KvrwSet::default()
                }),
                ..NsReadWriteSet::default()
            },
            NsReadWriteSet {
                namespace: "b".into(),
                rwset: kv(KvrwSet {
                    writes: vec![KvWrite { key: "z".into(), is_delete: false, value: Bytes::from_static(b"1") }],
                    ..KvrwSet::default()
                }),
                ..NsReadWriteSet::default()
            },
        ],
    };
    assert_eq!(recorder.encode()[..], expected.encode_to_vec()[..]);
}

#[test]
fn a_range_keeps_the_end_it_reached() {
    // (number of results returned, whether the scan ended) -> (end key, exhausted)
    for (results, ended, expected) in [
        (vec!["b", "c"], true, Some(("z", true))),
        (vec!["b", "c"], false, Some(("c", false))),
        (vec![], true, Some(("z", true))),
        (vec![], false, None),
    ] {
        let mut range = RangeRecorder::new("a", "z");
        for key in &results {
            range.add(key, Version::new(1, 2));
        }
        if ended {
            range.exhaust();
        }
        let mut recorder = ReadWriteSetRecorder::new();
        recorder.range(&"n".into(), range);
        let set = TxReadWriteSet::decode(recorder.encode()).expect("just encoded");
        let found: Vec<RangeQueryInfo> = set
            .ns_rwset
            .iter()
            .flat_map(|n| KvrwSet::decode(n.rwset.clone()).expect("just encoded").range_queries_info)
            .collect();
        let Some((end, exhausted)) = expected else {
            assert!(found.is_empty(), "a scan that handed nothing out and did not end is no read");
            continue;
        };
        let reads: Vec<KvRead> = results
            .iter()
            .map(|key| KvRead { key: (*key).into(), version: Some(wire_version(Version::new(1, 2))) })
            .collect();
        let reads_info = (!reads.is_empty()).then_some(ReadsInfo::RawReads(QueryReads { kv_reads: reads }));
        let info = RangeQueryInfo { start_key: "a".into(), end_key: end.into(), itr_exhausted: exhausted, reads_info };
        assert_eq!(found, [info], "{results:?} {ended}");
    }
}

/// The rule of summaries in its plain form: whole levels at a time, without the incremental bookkeeping.
fn summary_by_levels(results: &[(String, Version)], degree: usize) -> Option<(u32, Vec<Hash>)> {
    if results.len() <= degree {
        return None;
    }
    let group = degree + 1;
    let mut level: u32 = 1;
    let mut nodes: Vec<Hash> = results
        .chunks(group)
        .map(|chunk| {
            let reads =
                chunk.iter().map(|(key, version)| KvRead { key: key.clone(), version: Some(wire_version(*version)) });
            sha256(&QueryReads { kv_reads: reads.collect() }.encode_to_vec())
        })
        .collect();
    // A level is combined in groups of degree + 1. An incomplete last group is combined too, once there is a level above,
    // and a group of one moves up unchanged.
    while nodes.len() > degree {
        nodes = nodes
            .chunks(group)
            .map(|chunk| if chunk.len() == 1 { chunk[0] } else { sha256(&chunk.concat()) })
            .collect();
        level += 1;
    }
    Some((level, nodes))
}

fn results(count: usize) -> Vec<(String, Version)> {
    (0..count).map(|i| (format!("key{i:06}"), Version::new(i as u64 / 7, i as u32 % 7))).collect()
}

fn summarize(results: &[(String, Version)], degree: u32) -> SummarizerOutcome {
    let mut summarizer = RangeSummarizer::new(degree);
    for (key, version) in results {
        summarizer.add(key, *version);
    }
    summarizer.finish()
}

#[test]
fn long_ranges_are_summarised_by_groups_of_51() {
    for count in [0, 1, 50, 51, 52, 102, 103, 2550, 2600, 2601, 2602, 2652, 2653, 5000, 5202, 5203] {
        let results = results(count);
        match (summarize(&results, DEGREE), summary_by_levels(&results, DEGREE as usize)) {
            (SummarizerOutcome::Results(_), None) => assert!(count <= 50),
            (SummarizerOutcome::Summary(summary), Some((level, hashes))) => {
                let hashes: Vec<Bytes> = hashes.iter().map(|hash| Bytes::copy_from_slice(hash)).collect();
                assert_eq!(summary, MerkleSummary { degree: DEGREE, level, hashes }, "{count} results");
            }
            (outcome, expected) => panic!("{count} results: {outcome:?} where {expected:?} was expected"),
        }
    }
}

#[test]
fn a_summary_survives_its_encoding_and_knows_its_prefixes() {
    let results = results(3000);
    let mut range = RangeRecorder::new("key", "");
    for (key, version) in &results {
        range.add(key, *version);
    }
    range.exhaust();
    let mut recorder = ReadWriteSetRecorder::new();
    recorder.range(&"n".into(), range);
    let set = ReadWriteSet::decode(recorder.encode()).expect("just encoded");
    let range = set.ranges(&set.namespaces[0]).next().expect("one range was recorded");
    let RangeReads::Summary(summary) = &range.reads else { panic!("3000 results are many") };
    let summary = &set.summary(summary).expect("a scan made it");
    assert_eq!(SummarizerOutcome::Summary(summary.clone()), summarize(&results, DEGREE));

    let mut same = RangeSummarizer::new(DEGREE);
    for (key, version) in &results {
        same.add(key, *version);
        assert!(same.may_become(summary));
    }
    // One changed version shows as soon as its group is combined at the summary's level, long before the end.
    let mut other = RangeSummarizer::new(DEGREE);
    let seen = results.iter().enumerate().take_while(|(i, (key, version))| {
        let version = if *i == 5 { Version::new(version.block, version.tx + 1) } else { *version };
        other.add(key, version);
        other.may_become(summary)
    });
    assert!(seen.count() < 2700);
}

#[test]
fn what_is_no_set_is_refused_by_name() {
    let namespace = |kv: Vec<u8>| {
        let ns = NsReadWriteSet { namespace: "n".into(), rwset: kv.into(), ..NsReadWriteSet::default() };
        Bytes::from(TxReadWriteSet { data_model: 0, ns_rwset: vec![ns] }.encode_to_vec())
    };
    let summary = |degree: u32| {
        let summary = proto::kvrwset::QueryReadsMerkleSummary {
            max_degree: degree,
            max_level: 1,
            max_level_hashes: vec![Bytes::from_static(b"x")],
        };
        let info = RangeQueryInfo { reads_info: Some(ReadsInfo::ReadsMerkleHashes(summary)), ..Default::default() };
        KvrwSet { range_queries_info: vec![info], ..KvrwSet::default() }.encode_to_vec()
    };
    let refused = |bytes: Bytes| ReadWriteSet::decode(bytes).expect_err("it is no set");
    assert_eq!(refused(Bytes::from_static(&[8, 1])), DecodeError::DataModel(1));
    assert_eq!(refused(namespace(summary(1))), DecodeError::Degree(1));
    assert_eq!(refused(namespace(summary(5000))), DecodeError::Degree(5000));
    assert!(matches!(refused(namespace(vec![10, 9])), DecodeError::Wire(_)), "a read that reaches beyond its set");
    assert!(matches!(refused(namespace(vec![10, 3, 10, 1, 0xff])), DecodeError::Wire(_)), "a key that is not text");
    assert!(ReadWriteSet::decode(Bytes::new()).expect("nothing was read or written").namespaces.is_empty());
}

/// Regression: a client made up a read-write set of 150,000 empty namespaces, two bytes each. Peers decoded all of them
/// into 44 times the memory and compared each with all others, for minutes, before they checked any endorsement.
#[test]
fn more_namespaces_or_entries_than_any_transaction_has_are_refused() {
    let namespaces = |count: usize| ReadWriteSet::decode([0x12, 0].repeat(count).into());
    assert_eq!(namespaces(NAMESPACES_MAX).expect("as many as allowed").namespaces.len(), NAMESPACES_MAX);
    assert!(matches!(namespaces(150_000), Err(DecodeError::TooMany { what: "namespaces", .. })));

    // In each of two namespaces: empty reads, writes or ranges.
    for key in [0x0a, 0x12, 0x1a] {
        let entries = |count: usize| {
            let mut set = Vec::new();
            for count in [count / 2, count - count / 2] {
                let mut inner = Vec::new();
                crate::wire::put_bytes(&mut inner, 2, &[key, 0].repeat(count));
                crate::wire::put_bytes(&mut set, 2, &inner);
            }
            ReadWriteSet::decode(set.into())
        };
        assert!(entries(ENTRIES_MAX).is_ok());
        assert!(matches!(entries(ENTRIES_MAX + 1), Err(DecodeError::TooMany { .. })));
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = ReadWriteSet::decode(bytes.into());
    }

    /// Bytes that are close to real ones reach deeper code than random ones.
    #[test]
    fn damaged_sets_decode_or_are_refused(at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut bytes = golden_sets("b8.block").remove(0).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(set) = ReadWriteSet::decode(bytes.into()) {
            for namespace in &set.namespaces {
                let _ = set.name(namespace);
                for write in set.writes(namespace) {
                    let _ = (set.write_key(&write), set.write_value(&write));
                }
            }
        }
    }

    #[test]
    fn recorded_sets_are_those_of_the_protobuf_library(
        reads in proptest::collection::btree_map("[a-c]{0,3}", proptest::option::of((any::<u64>(), any::<u32>())), 0..8),
        writes in proptest::collection::btree_map("[a-c]{0,3}", proptest::collection::vec(any::<u8>(), 0..200), 0..8),
    ) {
        let name: Arc<str> = "n".into();
        let mut recorder = ReadWriteSetRecorder::new();
        // In an order other than the sorted one.
        for (key, version) in reads.iter().rev() {
            recorder.read(&name, key, version.map(|(block, tx)| Version::new(block, tx)));
        }
        for (key, value) in writes.iter().rev() {
            recorder.write(&name, key, value.clone().into());
        }
        let set = KvrwSet {
            reads: reads.iter().map(|(key, version)| KvRead {
                key: key.clone(),
                version: version.map(|(block, tx)| wire_version(Version::new(block, tx))),
            }).collect(),
            writes: writes.iter().map(|(key, value)| KvWrite {
                key: key.clone(),
                is_delete: value.is_empty(),
                value: value.clone().into(),
            }).collect(),
            ..KvrwSet::default()
        };
        let ns_rwset = if reads.is_empty() && writes.is_empty() {
            vec![]
        } else {
            vec![NsReadWriteSet { namespace: "n".into(), rwset: set.encode_to_vec().into(), ..Default::default() }]
        };
        let expected = TxReadWriteSet { data_model: 0, ns_rwset }.encode_to_vec();
        let encoded = recorder.encode();
        prop_assert_eq!(&encoded[..], &expected[..]);
        let decoded = ReadWriteSet::decode(encoded.clone()).expect("just encoded");
        prop_assert_eq!(encode_again(&decoded), encoded.clone());
        if let Some(again) = decoded.read_again() {
            prop_assert_eq!(encode_again(&again), encoded);
        }
        let found: BTreeMap<String, Vec<u8>> = decoded.namespaces.iter().flat_map(|namespace| {
            decoded.writes(namespace).map(|write| {
                (decoded.write_key(&write).to_owned(), decoded.write_value(&write).unwrap_or_default().to_vec())
            })
        }).collect();
        prop_assert_eq!(found, writes);
    }
}

/// The state copies the values that it keeps, so that a value of ten bytes does not keep its whole block in memory.
#[test]
fn a_value_is_a_part_of_the_bytes_of_its_set() {
    for source in golden_sets("b8.block") {
        let within = source.as_ptr_range();
        let set = ReadWriteSet::decode(source.clone()).expect("Fabric encoded it");
        for write in set.namespaces.iter().flat_map(|namespace| set.writes(namespace)) {
            let value = set.write_value(&write).expect("it is no delete");
            assert!(!value.is_empty() && within.contains(&value.as_ptr()));
        }
    }
}
