//! Random blocks with public, private and metadata accesses and scans. The graph is compared with its definition, and the
//! parallel check with the sequential one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::rt::simulation::Simulation;
use base::{Bytes, Version};
use ledger::hash::sha256_of;
use ledger::namespace;
use ledger::rwset::{RangeRecorder, ReadWriteSet, ReadWriteSetRecorder};
use proptest::prelude::*;
use state::{RangePage, Snapshot, StateEntry, Versioned};

use super::{Candidate, check_conflicts_in_parallel};
use crate::conflicts::{ConflictOutcome, check_conflicts};
use crate::footprint::{Footprint, visit_written_rows};
use crate::graph::GraphBuilder;
use crate::known_rows::KnownRows;
use crate::view::{BlockStateView, after};

type Rows = BTreeMap<(String, String), Version>;

/// A state in memory. The value of each row is its version as text.
struct Fixed(Rows);

fn versioned(version: Version) -> Versioned {
    Versioned { value: Bytes::from(version.to_string().into_bytes()), version }
}

#[async_trait::async_trait]
impl Snapshot for Fixed {
    fn height(&self) -> u64 {
        2
    }

    async fn get(&self, namespace: &str, key: &str) -> Result<Option<Versioned>, state::Error> {
        Ok(self.version(namespace, key).await?.map(versioned))
    }

    async fn version(&self, namespace: &str, key: &str) -> Result<Option<Version>, state::Error> {
        Ok(self.0.get(&(namespace.to_owned(), key.to_owned())).copied())
    }

    async fn range(&self, name: &str, start: &str, end: &str, limit: usize) -> Result<RangePage, state::Error> {
        let within = self.0.iter().filter(|((namespace, key), _)| {
            namespace == name && key.as_str() >= start && (end.is_empty() || key.as_str() < end)
        });
        let entry = |((_, key), version): (&(String, String), &Version)| StateEntry {
            key: key.as_str().into(),
            versioned: versioned(*version),
        };
        let mut entries: Vec<StateEntry> = within.map(entry).collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(RangePage { entries, more })
    }
}

/// One step of a random transaction, on keys by number, in the public rows or in a collection.
#[derive(Clone, Debug)]
enum Step {
    Read(u8, bool),
    Write(u8, bool),
    Delete(u8, bool),
    SetMetadata(u8, bool),
    RemoveMetadata(u8, bool),
    Purge(u8),
    /// Start, end or none, number of results that are taken.
    Scan(u8, Option<u8>, usize),
}

const KEYS: u8 = 12;
const COLLECTION: &str = "c";

fn step(with_scans: bool) -> impl Strategy<Value = Step> {
    let key = || (0..KEYS, prop_oneof![3 => Just(false), 1 => Just(true)]);
    prop_oneof![
        8 => key().prop_map(|(key, private)| Step::Read(key, private)),
        8 => key().prop_map(|(key, private)| Step::Write(key, private)),
        2 => key().prop_map(|(key, private)| Step::Delete(key, private)),
        1 => key().prop_map(|(key, private)| Step::SetMetadata(key, private)),
        1 => key().prop_map(|(key, private)| Step::RemoveMetadata(key, private)),
        1 => (0..KEYS).prop_map(Step::Purge),
        if with_scans { 3 } else { 0 } => (0..KEYS, proptest::option::of(0..KEYS), 0..6usize)
            .prop_map(|(start, end, count)| Step::Scan(start, end, count)),
    ]
}

/// Transactions of up to six steps, most of which touch only public values.
fn transaction() -> impl Strategy<Value = Vec<Step>> {
    let public = |steps: Vec<Step>| {
        let keeps = |step: &Step| matches!(step, Step::Read(_, false) | Step::Write(_, false) | Step::Delete(_, false));
        steps.into_iter().filter(keeps).collect()
    };
    prop_oneof![
        3 => proptest::collection::vec(step(false), 0..6).prop_map(public),
        1 => proptest::collection::vec(step(true), 0..6),
    ]
}

fn key(number: u8) -> String {
    format!("k{number:02}")
}

/// The row of a key in the state, without its namespace.
fn private_key(number: u8) -> String {
    identity::hex::encode(sha256_of(&[key(number).as_bytes()]))
}

/// The rows that the state has at first: one in two keys, one in four with metadata.
fn state() -> Rows {
    let mut rows = Rows::new();
    for number in (0..KEYS).step_by(2) {
        for (collection, key) in [("", key(number)), (COLLECTION, private_key(number))] {
            let version = Version::new(1, u32::from(number));
            rows.insert((namespace::values_of("n", collection), key.clone()), version);
            if number % 4 == 0 {
                rows.insert((namespace::metadata_of("n", collection), key), version);
            }
        }
    }
    rows
}

/// A transaction that ran on the state, or on one in which its reads had other versions.
fn run(steps: &[Step], is_stale: bool, state: &Rows) -> ReadWriteSet {
    let namespace: Arc<str> = "n".into();
    let version = |collection: &str, key: String| {
        let found = state.get(&(namespace::values_of("n", collection), key)).copied();
        found.map(|version| if is_stale { Version::new(0, version.tx) } else { version })
    };
    let metadata = || BTreeMap::from([("VALIDATION_PARAMETER".to_owned(), Bytes::from_static(b"policy"))]);
    let mut recorder = ReadWriteSetRecorder::new();
    for step in steps {
        match *step {
            Step::Read(number, false) => recorder.read(&namespace, &key(number), version("", key(number))),
            Step::Read(number, true) => {
                let version = version(COLLECTION, private_key(number));
                recorder.private_read(&namespace, COLLECTION, &key(number), version);
            }
            Step::Write(number, false) => recorder.write(&namespace, &key(number), Bytes::from_static(b"new")),
            Step::Write(number, true) => {
                recorder.private_write(&namespace, COLLECTION, &key(number), Bytes::from_static(b"new"));
            }
            Step::Delete(number, false) => recorder.write(&namespace, &key(number), Bytes::new()),
            Step::Delete(number, true) => {
                recorder.private_write(&namespace, COLLECTION, &key(number), Bytes::new());
            }
            Step::SetMetadata(number, false) => recorder.metadata_write(&namespace, &key(number), metadata()),
            Step::RemoveMetadata(number, false) => {
                recorder.metadata_write(&namespace, &key(number), BTreeMap::new());
            }
            Step::SetMetadata(number, true) => {
                recorder.private_metadata_write(&namespace, COLLECTION, &key(number), metadata());
            }
            Step::RemoveMetadata(number, true) => {
                recorder.private_metadata_write(&namespace, COLLECTION, &key(number), BTreeMap::new());
            }
            Step::Purge(number) => recorder.private_purge(&namespace, COLLECTION, &key(number)),
            Step::Scan(start, end, count) => {
                let (start, end) = (key(start), end.map(key).unwrap_or_default());
                let within = (0..KEYS).map(key).filter(|key| *key >= start && (end.is_empty() || *key < end));
                let all: Vec<_> = within.filter_map(|key| Some((key.clone(), version("", key)?))).collect();
                let mut range = RangeRecorder::new(&start, &end);
                all.iter().take(count).for_each(|(key, version)| range.add(key, *version));
                if all.len() <= count {
                    range.exhaust();
                } else if count == 0 {
                    continue;
                }
                recorder.range(&namespace, range);
            }
        }
    }
    ReadWriteSet::decode(recorder.encode()).expect("just encoded")
}

fn candidates(sets: &[ReadWriteSet]) -> Vec<Candidate> {
    // Every other position belongs to a transaction that failed an earlier check.
    let candidate = |(position, set): (u32, &ReadWriteSet)| Candidate {
        position: 2 * position,
        footprint: Footprint::of(set),
        set: set.clone(),
    };
    (0..).zip(sets).map(candidate).collect()
}

fn sequentially(sets: &[ReadWriteSet], view: &BlockStateView) -> ConflictOutcome {
    let candidates: Vec<(u32, &ReadWriteSet)> = (0..).zip(sets).map(|(position, set)| (2 * position, set)).collect();
    let mut known = KnownRows::default();
    let checked = check_conflicts(5, &candidates, view, &mut known);
    base::rt::production::run(checked).expect("the state answers")
}

/// Runs four workers, in an order that the seed chooses.
fn in_parallel(sets: &[ReadWriteSet], view: &BlockStateView, seed: u64, mutant: bool) -> ConflictOutcome {
    let (sets, view) = (sets.to_vec(), view.clone());
    let report = Simulation::new(seed).run(|sim| async move {
        sim.inject("validation.parallel.yield", 0.5);
        sim.inject("validation.parallel.mutant.unordered", if mutant { 1.0 } else { 0.0 });
        // In a simulation hashes have another key than outside, so the candidates are made here.
        let candidates = candidates(&sets);
        let count = candidates.len();
        let (given_back, outcome) =
            check_conflicts_in_parallel(5, candidates, &view, &mut KnownRows::default(), 4).await;
        assert_eq!(given_back.len(), count);
        outcome.expect("the state answers")
    });
    report.expect("the run succeeds").value
}

fn same(one: &ConflictOutcome, other: &ConflictOutcome) -> bool {
    let rows = |outcome: &ConflictOutcome| (outcome.updates.batch.clone(), outcome.updates.is_derived);
    one.codes == other.codes && rows(one) == rows(other)
}

/// What the definition of a conflict says about a transaction.
struct Accesses {
    reads: BTreeSet<(String, String)>,
    writes: BTreeSet<(String, String)>,
    /// Start and end of each range; an empty end means no upper bound.
    scans: Vec<(String, String)>,
}

impl Accesses {
    fn of(set: &ReadWriteSet) -> Accesses {
        let mut accesses = Accesses { reads: BTreeSet::new(), writes: BTreeSet::new(), scans: Vec::new() };
        for namespace in &set.namespaces {
            let name = set.name(namespace);
            let reads = set.reads(namespace).map(|read| (name.to_owned(), set.read_key(&read).to_owned()));
            accesses.reads.extend(reads);
            for collection in set.collections(namespace) {
                let name = namespace::values_of(name, set.collection_name(&collection));
                let reads = set.hashed_reads(&collection);
                let reads = reads.map(|read| (name.clone(), identity::hex::encode(set.read_hash(&read))));
                accesses.reads.extend(reads);
            }
            for range in set.ranges(namespace) {
                let (start, end) = set.bounds(&range);
                let end = if range.exhausted { end.to_owned() } else { after(end) };
                accesses.scans.push((start.to_owned(), end));
            }
        }
        visit_written_rows(set, |namespace, key| {
            accesses.writes.insert((namespace.to_owned(), key.to_owned()));
        });
        accesses
    }

    fn reads_row(&self, row: &(String, String)) -> bool {
        let scans = |(start, end): &(String, String)| row.1 >= *start && (end.is_empty() || row.1 < *end);
        self.reads.contains(row) || (row.0 == "n" && self.scans.iter().any(scans))
    }

    fn conflicts_with(&self, other: &Accesses) -> bool {
        let reads = |one: &Accesses, other: &Accesses| other.writes.iter().any(|row| one.reads_row(row));
        reads(self, other) || reads(other, self) || !self.writes.is_disjoint(&other.writes)
    }
}

/// For each transaction, those from which the pairs of `edges` lead to it.
fn ancestors(count: usize, edges: impl Fn(usize, usize) -> bool) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = Vec::new();
    for to in 0..count {
        let direct: Vec<usize> = (0..to).filter(|from| edges(*from, to)).collect();
        let mut found: BTreeSet<usize> = direct.iter().copied().collect();
        direct.iter().for_each(|from| found.extend(&all[*from]));
        all.push(found);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_graph_is_the_reduction_of_the_order_of_conflicts(
        transactions in proptest::collection::vec(transaction(), 0..20),
    ) {
        let state = state();
        let sets: Vec<ReadWriteSet> = transactions.iter().map(|steps| run(steps, false, &state)).collect();
        let mut builder = GraphBuilder::default();
        sets.iter().for_each(|set| builder.add(&Footprint::of(set), set));
        let graph = builder.finish();
        let accesses: Vec<Accesses> = sets.iter().map(Accesses::of).collect();
        let of_conflicts = ancestors(sets.len(), |from, to| accesses[from].conflicts_with(&accesses[to]));
        let is_edge = |from: usize, to: usize| graph.predecessors(to).contains(&(from as u32));
        let of_graph = ancestors(sets.len(), is_edge);
        prop_assert_eq!(&of_graph, &of_conflicts);
        for to in 0..sets.len() {
            for from in graph.predecessors(to) {
                let others = graph.predecessors(to).iter().filter(|other| *other != from);
                let is_implied = others.clone().any(|other| of_graph[*other as usize].contains(&(*from as usize)));
                prop_assert!(!is_implied, "{} -> {} is implied", from, to);
            }
        }
    }

    #[test]
    fn the_parallel_check_decides_as_the_sequential_one(
        transactions in proptest::collection::vec((transaction(), 0..5u8), 0..40),
        seed in 0..u64::MAX,
    ) {
        let state = state();
        let sets: Vec<ReadWriteSet> =
            transactions.iter().map(|(steps, age)| run(steps, *age == 0, &state)).collect();
        let view = BlockStateView::new(Arc::new(Fixed(state)), Vec::new());
        let (expected, found) = (sequentially(&sets, &view), in_parallel(&sets, &view, seed, false));
        prop_assert_eq!(&expected.codes, &found.codes);
        prop_assert_eq!(&expected.updates.batch, &found.updates.batch);
        prop_assert_eq!(expected.updates.is_derived, found.updates.is_derived);
    }
}

/// Blocks in which each transaction reads the key that the one before wrote, beside others that conflict with nobody.
fn chained() -> Vec<ReadWriteSet> {
    let namespace: Arc<str> = "n".into();
    (0..200_u32)
        .map(|number| {
            let mut recorder = ReadWriteSetRecorder::new();
            let key = if number % 3 == 0 { format!("own{number}") } else { "shared".to_owned() };
            recorder.read(&namespace, &key, None);
            recorder.write(&namespace, &key, Bytes::from_static(b"v"));
            ReadWriteSet::decode(recorder.encode()).expect("just encoded")
        })
        .collect()
}

#[test]
fn workers_on_threads_decide_as_the_sequential_check() {
    let sets = chained();
    let view = BlockStateView::new(Arc::new(Fixed(Rows::new())), Vec::new());
    let expected = sequentially(&sets, &view);
    for _ in 0..50 {
        let found = base::rt::production::run(async {
            let (_, outcome) =
                check_conflicts_in_parallel(5, candidates(&sets), &view, &mut KnownRows::default(), 4).await;
            outcome.expect("the state answers")
        });
        assert!(same(&expected, &found));
    }
}

#[test]
fn workers_that_ignore_the_graph_are_noticed() {
    let sets = chained();
    let view = BlockStateView::new(Arc::new(Fixed(Rows::new())), Vec::new());
    let expected = sequentially(&sets, &view);
    let wrong = (0..20).filter(|seed| !same(&expected, &in_parallel(&sets, &view, *seed, true))).count();
    assert!(wrong > 2, "{wrong} of 20");
}

/// A state that fails.
struct Failing;

#[async_trait::async_trait]
impl Snapshot for Failing {
    fn height(&self) -> u64 {
        2
    }

    async fn get(&self, _: &str, _: &str) -> Result<Option<Versioned>, state::Error> {
        Err(state::Error::Fenced)
    }

    async fn version(&self, _: &str, _: &str) -> Result<Option<Version>, state::Error> {
        Err(state::Error::Fenced)
    }

    async fn range(&self, _: &str, _: &str, _: &str, _: usize) -> Result<RangePage, state::Error> {
        Err(state::Error::Fenced)
    }
}

#[test]
fn the_first_error_ends_all_workers() {
    let sets = chained();
    let view = BlockStateView::new(Arc::new(Failing), Vec::new());
    let report = Simulation::new(1).run(|_sim| async move {
        let candidates = candidates(&sets);
        let (given_back, outcome) =
            check_conflicts_in_parallel(5, candidates, &view, &mut KnownRows::default(), 4).await;
        (given_back.len(), outcome.is_err())
    });
    assert_eq!(report.expect("the run ends").value, (200, true));
}
