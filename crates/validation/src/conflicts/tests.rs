//! Tests of the conflict check: a table in a short notation, and random blocks, compared with a naive oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{Bytes, Version};
use proptest::prelude::*;
use prost::Message as _;
use proto::kvrwset::range_query_info::ReadsInfo;
use proto::kvrwset::{KvrwSet, QueryReadsMerkleSummary, RangeQueryInfo};
use proto::rwset::{NsReadWriteSet, TxReadWriteSet};
use state::{RangePage, Snapshot, StateEntry, UpdateBatch, Versioned};

use crate::conflicts::check_conflicts;
use crate::known_rows::KnownRows;
use crate::view::BlockStateView;
use ledger::Code;
use ledger::rwset::merkle::{DEGREE, RangeSummarizer, SummarizerOutcome};
use ledger::rwset::{RangeRecorder, ReadWriteSet, ReadWriteSetRecorder};

type Keys = BTreeMap<String, Version>;

/// A state of one namespace, in memory.
struct Fixed {
    height: u64,
    keys: Keys,
}

#[async_trait::async_trait]
impl Snapshot for Fixed {
    fn height(&self) -> u64 {
        self.height
    }

    async fn get(&self, namespace: &str, key: &str) -> Result<Option<Versioned>, state::Error> {
        let version = self.version(namespace, key).await?;
        Ok(version.map(|version| Versioned { value: Bytes::from_static(b"v"), version }))
    }

    async fn version(&self, namespace: &str, key: &str) -> Result<Option<Version>, state::Error> {
        Ok(self.keys.get(key).copied().filter(|_| namespace == "n"))
    }

    async fn range(&self, name: &str, start: &str, end: &str, limit: usize) -> Result<RangePage, state::Error> {
        assert!(end.is_empty() || start < end, "an empty range is nobody's question");
        let found = if name == "n" { scan(&self.keys, start, end) } else { Vec::new() };
        let more = found.len() > limit;
        let entry = |(key, version): (String, Version)| StateEntry {
            key: key.into(),
            versioned: Versioned { value: Bytes::from_static(b"v"), version },
        };
        Ok(RangePage { entries: found.into_iter().take(limit).map(entry).collect(), more })
    }
}

/// The keys of `start..end` and their versions; an empty `end` means no upper bound.
fn scan(keys: &Keys, start: &str, end: &str) -> Vec<(String, Version)> {
    let within = keys.iter().filter(|(key, _)| key.as_str() >= start && (end.is_empty() || key.as_str() < end));
    within.map(|(key, version)| (key.clone(), *version)).collect()
}

fn resolve_now(block: u64, sets: &[ReadWriteSet], view: &BlockStateView) -> (Vec<Code>, UpdateBatch) {
    let candidates: Vec<(u32, &ReadWriteSet)> =
        sets.iter().enumerate().map(|(position, set)| (position as u32, set)).collect();
    let mut known = KnownRows::default();
    let checked = check_conflicts(block, &candidates, view, &mut known);
    let checked = base::rt::production::run(checked).expect("the state answers");
    (checked.codes, checked.updates.batch)
}

fn version(text: &str) -> Version {
    let (block, tx) = text.split_once(':').expect("block:transaction");
    Version::new(block.parse().expect("a number"), tx.parse().expect("a number"))
}

/// `a@1:0` is a key at a version, `a@-` a key that does not exist.
fn key_at(word: &str) -> (&str, Option<Version>) {
    let (key, at) = word.split_once('@').expect("key@version");
    (key, (at != "-").then(|| version(at)))
}

/// Reads a transaction: `r a@1:0` reads, `w a` writes, `d a` deletes, `scan a..z a@1:0` is a scan that reached its end,
/// `part a..z a@1:0` a scan that stopped after its last key. Parts are separated by `,`.
fn transaction(text: &str) -> ReadWriteSet {
    let namespace: Arc<str> = "n".into();
    let mut recorder = ReadWriteSetRecorder::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let words: Vec<&str> = part.split_whitespace().collect();
        match words[..] {
            ["r", word] => {
                let (key, version) = key_at(word);
                recorder.read(&namespace, key, version);
            }
            ["w", key] => recorder.write(&namespace, key, Bytes::from_static(b"new")),
            ["d", key] => recorder.write(&namespace, key, Bytes::new()),
            ["scan" | "part", bounds, ref results @ ..] => {
                let (start, end) = bounds.split_once("..").expect("start..end");
                let mut range = RangeRecorder::new(start, end);
                for result in results {
                    let (key, version) = key_at(result);
                    range.add(key, version.expect("a scanned key exists"));
                }
                if words[0] == "scan" {
                    range.exhaust();
                }
                recorder.range(&namespace, range);
            }
            _ => panic!("{part:?} is none of the notation"),
        }
    }
    ReadWriteSet::decode(recorder.encode()).expect("just encoded")
}

#[test]
fn readers_of_what_has_changed_are_invalid() {
    // The state is a, b and d, written by block 1. Each transaction is followed by its code.
    let table: &[&[(&str, u8)]] = &[
        &[("r a@1:0, w a", 0)],
        &[("r a@0:0, w a", 11)],
        &[("r a@-, w a", 11)],
        &[("r c@-, w c", 0)],
        &[("r c@1:0, w c", 11)],
        // A write by an earlier valid transaction conflicts, even a blind one or a delete of a missing key.
        &[("r a@1:0, w a", 0), ("r a@1:0, w a", 11), ("r b@1:1, w b", 0)],
        &[("w a", 0), ("r a@1:0", 11)],
        &[("d c", 0), ("r c@-", 11)],
        &[("w a", 0), ("w a", 0), ("d a", 0)],
        // An invalid transaction writes nothing.
        &[("r a@0:0, w b", 11), ("r b@1:1", 0)],
        // A transaction may write what it read.
        &[("r a@1:0, w a, d b", 0), ("r b@1:1", 11)],
        // Ranges: a new key, a deleted key and a changed key are phantoms; a key outside the range is not.
        &[("scan a..c a@1:0 b@1:1", 0)],
        &[("scan a..c a@1:0", 12)],
        &[("scan a..c a@1:0 b@1:1 bb@1:1", 12)],
        &[("scan a..c a@1:0 b@1:2", 12)],
        &[("w bb", 0), ("scan a..c a@1:0 b@1:1", 12)],
        &[("d b", 0), ("scan a..c a@1:0 b@1:1", 12)],
        &[("d bb", 0), ("scan a..c a@1:0 b@1:1", 0)],
        &[("w c", 0), ("scan a..c a@1:0 b@1:1", 0)],
        &[("w d", 0), ("scan a..c a@1:0 b@1:1", 0), ("scan d.. d@1:2", 12)],
        &[("scan e.. ", 0), ("scan c..d", 0), ("w c", 0), ("scan c..d", 12)],
        // A scan that stopped early covers the keys that it returned, its last key included, and nothing after it.
        &[("part a.. a@1:0 b@1:1", 0)],
        &[("w c", 0), ("part a.. a@1:0 b@1:1", 0)],
        &[("w aa", 0), ("part a.. a@1:0 b@1:1", 12)],
        &[("w b", 0), ("part a.. a@1:0 b@1:1", 12)],
        // A range that ends before it starts is empty.
        &[("scan c..a", 0), ("scan c..c", 0)],
        // Reads come before ranges.
        &[("r a@0:0, scan a..c", 11)],
    ];
    let keys: Keys = [("a", "1:0"), ("b", "1:1"), ("d", "1:2")].map(|(key, at)| (key.to_owned(), version(at))).into();
    for block in table {
        let view = BlockStateView::new(Arc::new(Fixed { height: 2, keys: keys.clone() }), vec![]);
        let sets: Vec<ReadWriteSet> = block.iter().map(|(text, _)| transaction(text)).collect();
        let expected: Vec<Code> = block.iter().map(|(_, code)| Code(*code)).collect();
        assert_eq!(resolve_now(2, &sets, &view).0, expected, "{block:?}");
    }
}

#[test]
fn the_last_valid_write_of_a_key_has_its_transactions_version() {
    let view = BlockStateView::new(Arc::new(Fixed { height: 2, keys: Keys::new() }), vec![]);
    let sets = ["w a, w b", "r a@-, w b", "d a", "w c"].map(transaction);
    let (codes, batch) = resolve_now(2, &sets, &view);
    assert_eq!(codes, [0, 11, 0, 0].map(Code));
    let writes: Vec<(&str, bool, Version)> =
        batch.iter().map(|(_, key, update)| (key.as_ref(), update.value.is_some(), update.version)).collect();
    let at = |tx| Version::new(2, tx);
    assert_eq!(writes, [("a", false, at(2)), ("b", true, at(0)), ("c", true, at(3))]);
}

/// One step of a random transaction, on keys by number.
#[derive(Clone, Debug)]
enum Step {
    Read(u8),
    Write(u8),
    Delete(u8),
    /// Start key, end key or none, number of results that are taken.
    Scan(u8, Option<u8>, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..130u8).prop_map(Step::Read),
        3 => (0..130u8).prop_map(Step::Write),
        1 => (0..130u8).prop_map(Step::Delete),
        2 => (0..130u8, proptest::option::of(0..130u8), prop_oneof![0..5usize, 40..140usize])
            .prop_map(|(start, end, count)| Step::Scan(start, end, count)),
    ]
}

fn key(number: u8) -> String {
    format!("k{number:03}")
}

/// Writes and deletes of one block.
fn changes(changes: &[(u8, bool)], block: u64) -> UpdateBatch {
    let namespace: Arc<str> = "n".into();
    let mut batch = UpdateBatch::default();
    for (position, (number, is_write)) in changes.iter().enumerate() {
        let value = is_write.then(|| Bytes::from_static(b"v"));
        batch.put(&namespace, key(*number).into(), value, Version::new(block, position as u32));
    }
    batch
}

fn apply(keys: &mut Keys, batch: &UpdateBatch) {
    for (_, key, update) in batch.iter() {
        match update.value {
            Some(_) => keys.insert(key.to_string(), update.version),
            None => keys.remove(&**key),
        };
    }
}

/// Start, end, whether the end belongs to the range, results.
type RanScan = (String, String, bool, Vec<(String, Version)>);

/// A transaction that ran against some state: what it recorded, and the same in the oracle's form.
#[derive(Default)]
struct Ran {
    reads: Vec<(String, Option<Version>)>,
    scans: Vec<RanScan>,
    writes: BTreeMap<String, bool>,
}

fn run(steps: &[Step], seen: &Keys) -> (ReadWriteSet, Ran) {
    let namespace: Arc<str> = "n".into();
    let (mut recorder, mut ran) = (ReadWriteSetRecorder::new(), Ran::default());
    for step in steps {
        match step {
            Step::Read(number) => {
                let version = seen.get(&key(*number)).copied();
                recorder.read(&namespace, &key(*number), version);
                ran.reads.push((key(*number), version));
            }
            Step::Write(number) => {
                recorder.write(&namespace, &key(*number), Bytes::from_static(b"new"));
                ran.writes.insert(key(*number), true);
            }
            Step::Delete(number) => {
                recorder.write(&namespace, &key(*number), Bytes::new());
                ran.writes.insert(key(*number), false);
            }
            Step::Scan(start, end, count) => {
                let (start, end) = (key(*start), end.map(key).unwrap_or_default());
                let all = scan(seen, &start, &end);
                let taken: Vec<_> = all.iter().take(*count).cloned().collect();
                let is_exhausted = all.len() <= *count;
                let mut range = RangeRecorder::new(&start, &end);
                for (key, version) in &taken {
                    range.add(key, *version);
                }
                if is_exhausted {
                    range.exhaust();
                } else if taken.is_empty() {
                    continue;
                }
                recorder.range(&namespace, range);
                let end = if is_exhausted { end } else { taken.last().expect("not empty").0.clone() };
                ran.scans.push((start, end, !is_exhausted, taken));
            }
        }
    }
    (ReadWriteSet::decode(recorder.encode()).expect("just encoded"), ran)
}

/// A summary may have any number of hashes of any length, since the endorser chooses them.
#[test]
fn a_summary_that_no_scan_comes_to_is_a_phantom() {
    let keys: Keys = (0..60).map(|number| (format!("k{number:02}"), Version::new(1, number))).collect();
    let mut summarizer = RangeSummarizer::new(DEGREE);
    keys.iter().for_each(|(key, version)| summarizer.add(key, *version));
    let SummarizerOutcome::Summary(right) = summarizer.finish() else { panic!("60 results are many") };
    let judged = |max_level_hashes: Vec<Bytes>| {
        let summary = QueryReadsMerkleSummary { max_degree: DEGREE, max_level: right.level, max_level_hashes };
        let range = RangeQueryInfo {
            start_key: "k".into(),
            end_key: "l".into(),
            itr_exhausted: true,
            reads_info: Some(ReadsInfo::ReadsMerkleHashes(summary)),
        };
        let entries = KvrwSet { range_queries_info: vec![range], ..KvrwSet::default() };
        let namespace = NsReadWriteSet {
            namespace: "n".into(),
            rwset: entries.encode_to_vec().into(),
            ..NsReadWriteSet::default()
        };
        let set = TxReadWriteSet { data_model: 0, ns_rwset: vec![namespace] };
        let set = ReadWriteSet::decode(set.encode_to_vec().into()).expect("it is a read-write set");
        let view = BlockStateView::new(Arc::new(Fixed { height: 2, keys: keys.clone() }), Vec::new());
        resolve_now(2, &[set], &view).0[0]
    };
    let [first, second] = &right.hashes[..] else { panic!("60 results are two groups") };
    assert_eq!(judged(right.hashes.clone()), Code::VALID);
    let other = Bytes::from_static(&[7; 32]);
    let longer = Bytes::from([&second[..], b"x"].concat());
    let wrong = [
        vec![],
        vec![first.clone()],
        vec![first.clone(), second.clone(), other.clone()],
        vec![other; 5000],
        vec![first.slice(1..), second.clone()],
        vec![first.clone(), longer],
    ];
    for hashes in wrong {
        let count = hashes.len();
        assert_eq!(judged(hashes), Code::PHANTOM_READ_CONFLICT, "{count} hashes");
    }
}

/// The sequential rule, without batches, views or summaries.
fn oracle(block: u64, mut keys: Keys, transactions: &[Ran]) -> (Vec<Code>, Keys) {
    let mut written = BTreeSet::new();
    let mut codes = Vec::new();
    for (position, ran) in transactions.iter().enumerate() {
        let stale = ran.reads.iter().any(|(key, seen)| written.contains(key) || keys.get(key) != seen.as_ref());
        let phantom = ran.scans.iter().any(|(start, end, is_inclusive, results)| {
            let now: Vec<_> = keys
                .iter()
                .filter(|(key, _)| *key >= start)
                .filter(|(key, _)| if *is_inclusive { *key <= end } else { end.is_empty() || *key < end })
                .map(|(key, version)| (key.clone(), *version))
                .collect();
            now != *results
        });
        let code = if stale {
            Code::MVCC_READ_CONFLICT
        } else if phantom {
            Code::PHANTOM_READ_CONFLICT
        } else {
            for (key, is_write) in &ran.writes {
                written.insert(key.clone());
                if *is_write {
                    keys.insert(key.clone(), Version::new(block, position as u32));
                } else {
                    keys.remove(key);
                }
            }
            Code::VALID
        };
        codes.push(code);
    }
    (codes, keys)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Transactions ran against states of up to three blocks ago; two of those blocks are validated and not applied
    /// yet.
    #[test]
    fn parallel_shortcuts_decide_as_the_sequential_rule_does(
        old in proptest::collection::btree_set(0..130u8, 0..130),
        blocks in proptest::collection::vec(proptest::collection::vec((0..130u8, any::<bool>()), 0..12), 3),
        transactions in proptest::collection::vec((0..4usize, proptest::collection::vec(step(), 0..6)), 0..14),
    ) {
        let mut states: Vec<Keys> = vec![
            old.iter().map(|number| (key(*number), Version::new(1, u32::from(*number)))).collect(),
        ];
        let mut batches = Vec::new();
        for (index, block) in blocks.iter().enumerate() {
            let batch = changes(block, 2 + index as u64);
            let mut keys = states[index].clone();
            apply(&mut keys, &batch);
            states.push(keys);
            batches.push(Arc::new(batch));
        }
        let (sets, ran): (Vec<_>, Vec<_>) = transactions.iter().map(|(age, steps)| run(steps, &states[3 - age])).unzip();
        let snapshot = Fixed { height: 3, keys: states[1].clone() };
        let view = BlockStateView::new(Arc::new(snapshot), batches[1..].to_vec());
        let (codes, batch) = resolve_now(5, &sets, &view);
        let (expected, after) = oracle(5, states[3].clone(), &ran);
        prop_assert_eq!(codes, expected);
        let mut keys = states[3].clone();
        apply(&mut keys, &batch);
        prop_assert_eq!(keys, after);
    }
}
