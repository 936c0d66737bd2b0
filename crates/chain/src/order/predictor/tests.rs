use std::collections::BTreeMap;

use ledger::rwset::ReadVersion;
use proptest::prelude::*;
use validation::accesses::{RowRead, RowWrite};

use super::*;
use crate::order::reorder::tests::footprints;

/// The orders of blocks that a leader cuts one after the other, the first with the number 1.
fn orders(blocks: &[&str]) -> Vec<String> {
    let mut predictor = Predictor::default();
    let order = |(number, script): (u64, &&str)| match predictor.arrange(number, &footprints(script)) {
        None => "as it arrived".to_owned(),
        Some(Arrangement { order, gain }) => format!("{order:?} +{gain}"),
    };
    (1..).zip(blocks).map(order).collect()
}

#[test]
fn a_block_changes_only_where_more_transactions_are_valid() {
    for (blocks, expected) in [
        (&[">a a>"][..], &["[1, 0] +1"][..]),
        // No order is better.
        (&["a>a a>a", "a>b b>a", ">a"], &["as it arrived", "as it arrived", "as it arrived"]),
        // The first transaction has an older version: it does not count.
        (&[">a", "a0>b b> c>"], &["as it arrived", "as it arrived"]),
        // It does not protect its row either, ...
        (&[">a", "a0>b b>a a1>"], &["as it arrived", "[2, 1, 0] +1"]),
        // ... nor is its write remembered.
        (&[">a", "a0>b c>", ">b b0>"], &["as it arrived", "as it arrived", "[1, 0] +1"]),
        // The reader of the current version.
        (&[">a", ">a a1>"], &["as it arrived", "[1, 0] +1"]),
        // A version that is newer than the remembered one is taken for the current one.
        (&[">a", ">a a7>"], &["as it arrived", "[1, 0] +1"]),
        // Versions have the final places: what reads transaction 0 of block 1 has the older version of b.
        (&["c>b b>d b>", ">b b1>"], &["[1, 2, 0] +2", "as it arrived"]),
    ] {
        assert_eq!(orders(blocks), expected, "{blocks:?}");
    }
}

#[test]
fn a_missing_row_that_was_written_is_outdated_and_a_deleted_one_is_not() {
    let missing = |script: &str| {
        let mut block = footprints(script);
        block.iter_mut().flat_map(|transaction| &mut transaction.accesses).for_each(|accesses| {
            accesses.reads.iter_mut().for_each(|read| read.version = None);
        });
        block
    };
    let mut predictor = Predictor::default();
    assert_eq!(predictor.arrange(1, &footprints(">a >-b")), None);
    let outdated = missing("a> b>");
    let outdated =
        outdated.iter().map(|transaction| predictor.is_outdated(transaction.accesses.as_ref().expect("known")));
    assert_eq!(outdated.collect::<Vec<_>>(), [true, false]);
}

#[test]
fn the_second_transaction_of_an_id_stays_behind_the_first() {
    let mut block = footprints("a>b b>a b>");
    let id = Some(RowHash::of("", "id"));
    (block[0].id, block[1].id) = (id, id);
    // Without the repetition, transactions 1 and 2 would both be valid.
    let arrangement = Predictor::default().arrange(1, &block).expect("it has conflicts");
    assert_eq!(arrangement, Arrangement { order: vec![2, 0, 1], gain: 1 });
}

#[test]
fn a_leader_remembers_a_bounded_number_of_rows() {
    let mut predictor = Predictor::default();
    for block in 0..400 {
        let write =
            |number: u64| RowWrite { row: RowHash::of("ns", &(block * 512 + number).to_string()), is_delete: false };
        let accesses = Accesses { writes: (0..512).map(write).collect(), ..Accesses::default() };
        predictor.arrange(block, &[TransactionFootprint { id: None, accesses: Some(accesses) }]);
        assert!(predictor.newer.len() + predictor.older.len() <= ROWS_MAX);
    }
    let reads = |number: u64| {
        let version = Some(ReadVersion { block: 0, transaction: 0 });
        let read = RowRead { row: RowHash::of("ns", &number.to_string()), version };
        predictor.is_outdated(&Accesses { reads: vec![read], ..Accesses::default() })
    };
    assert!(reads(399 * 512) && !reads(512), "the oldest are forgotten");
}

const KEYS: u8 = 5;

/// A transaction of a random block: what it reads, with the age of the version in blocks, and what it writes.
#[derive(Clone, Debug)]
struct RandomTransaction {
    reads: Vec<(u8, u64)>,
    writes: Vec<u8>,
}

prop_compose! {
    fn random_transaction()(
        reads in proptest::collection::btree_map(0..KEYS, prop_oneof![4 => Just(0_u64), 1 => 1..3_u64], 0..3),
        writes in proptest::collection::btree_set(0..KEYS, 0..3),
    ) -> RandomTransaction {
        RandomTransaction { reads: reads.into_iter().collect(), writes: writes.into_iter().collect() }
    }
}

/// A ledger of a few keys whose transactions are all endorsed. Validates one block after the other, as peers do.
#[derive(Clone, Default)]
struct SequentialLedger {
    height: u64,
    /// The versions of each key, the newest last.
    versions: BTreeMap<u8, Vec<ReadVersion>>,
}

impl SequentialLedger {
    fn version(&self, key: u8, age: u64) -> Option<ReadVersion> {
        let versions = self.versions.get(&key)?;
        versions.get(versions.len().checked_sub(1 + age as usize)?).copied()
    }

    fn footprint(&self, transaction: &RandomTransaction) -> TransactionFootprint {
        let row = |key: &u8| RowHash::of("ns", &key.to_string());
        let read = |(key, age): &(u8, u64)| RowRead { row: row(key), version: self.version(*key, *age) };
        let accesses = Accesses {
            reads: transaction.reads.iter().map(read).collect(),
            writes: transaction.writes.iter().map(|key| RowWrite { row: row(key), is_delete: false }).collect(),
            ..Accesses::default()
        };
        TransactionFootprint { id: None, accesses: Some(accesses) }
    }

    /// Commits the next block; returns the number of valid transactions.
    fn commit(&mut self, block: &[(&RandomTransaction, Vec<Option<ReadVersion>>)]) -> usize {
        self.height += 1;
        let mut valid = 0;
        for (position, (transaction, seen)) in (0..).zip(block) {
            let is_current = transaction.reads.iter().zip(seen).all(|((key, _), seen)| self.version(*key, 0) == *seen);
            if is_current {
                valid += 1;
                for key in &transaction.writes {
                    let version = ReadVersion { block: self.height, transaction: position };
                    self.versions.entry(*key).or_default().push(version);
                }
            }
        }
        valid
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 100 } else { 2_000 }))]

    /// If the predictor knows all writes, its predictions are what a peer finds, and no block has fewer valid
    /// transactions than in the order of arrival.
    #[test]
    fn no_fewer_transactions_are_valid_than_in_the_order_of_arrival(
        blocks in proptest::collection::vec(proptest::collection::vec(random_transaction(), 0..12), 1..8),
    ) {
        let (mut ledger, mut predictor) = (SequentialLedger::default(), Predictor::default());
        for block in &blocks {
            let seen = |transaction: &RandomTransaction| {
                transaction.reads.iter().map(|(key, age)| ledger.version(*key, *age)).collect::<Vec<_>>()
            };
            let footprints: Vec<TransactionFootprint> = block.iter().map(|one| ledger.footprint(one)).collect();
            let arrived: Vec<_> = block.iter().map(|one| (one, seen(one))).collect();
            let in_arrival_order = ledger.clone().commit(&arrived);
            let (order, gain) = match predictor.arrange(ledger.height + 1, &footprints) {
                Some(Arrangement { order, gain }) => (order, gain),
                None => ((0..block.len() as u32).collect(), 0),
            };
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq(0..block.len() as u32), "{order:?} is no permutation");
            let arranged: Vec<_> = order.iter().map(|position| arrived[*position as usize].clone()).collect();
            let valid = ledger.commit(&arranged);
            prop_assert_eq!(valid, in_arrival_order + gain);
        }
    }
}

/// A leader at the start of its term knows nothing of older versions. Then some blocks are worse than in the order of
/// arrival, but far more are better.
#[test]
fn more_transactions_are_valid_even_if_nothing_is_known() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut in_arrival_order, mut in_order) = (0, 0);
    for _ in 0..300 {
        let block =
            proptest::collection::vec(random_transaction(), 12).new_tree(&mut runner).expect("a block").current();
        let mut ledger = SequentialLedger::default();
        for _ in 0..3 {
            let writes = (0..KEYS).collect();
            ledger.commit(&[(&RandomTransaction { reads: Vec::new(), writes }, Vec::new())]);
        }
        let seen =
            |one: &RandomTransaction| one.reads.iter().map(|(key, age)| ledger.version(*key, *age)).collect::<Vec<_>>();
        let footprints: Vec<TransactionFootprint> = block.iter().map(|one| ledger.footprint(one)).collect();
        let arrived: Vec<_> = block.iter().map(|one| (one, seen(one))).collect();
        in_arrival_order += ledger.clone().commit(&arrived);
        let arrangement = Predictor::default().arrange(ledger.height + 1, &footprints);
        let arranged: Vec<_> = match arrangement {
            Some(Arrangement { order, .. }) => order.iter().map(|at| arrived[*at as usize].clone()).collect(),
            None => arrived,
        };
        in_order += ledger.commit(&arranged);
    }
    assert!(in_order * 10 > in_arrival_order * 11, "{in_order} valid transactions, and {in_arrival_order}");
}
