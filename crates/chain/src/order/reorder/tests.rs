use validation::accesses::{RowRead, RowWrite};

use super::*;

/// Footprints in a small notation: the keys that a transaction reads, `>`, and those that it writes. A digit after a key
/// that is read is the block of its version, 0 if there is none; `-` before a key that is written deletes it. `*` scans
/// or stands for a write anywhere in the namespace. `!` is a barrier.
pub(in crate::order) fn footprints(script: &str) -> Vec<TransactionFootprint> {
    let row = |key: &str| RowHash::of("ns", key);
    let footprint = |word: &str| {
        let Some((reads, writes)) = word.split_once('>') else {
            assert_eq!(word, "!");
            return TransactionFootprint::default();
        };
        let mut accesses = Accesses::default();
        let mut keys = reads.chars().peekable();
        while let Some(key) = keys.next() {
            if key == '*' {
                accesses.scanned.push(row("*"));
                continue;
            }
            let block = keys.next_if(char::is_ascii_digit).map_or(0, |digit| u64::from(digit as u32 - '0' as u32));
            let version = ledger::rwset::ReadVersion { block, transaction: 0 };
            accesses.reads.push(RowRead { row: row(&key.to_string()), version: Some(version) });
        }
        let mut is_delete = false;
        for key in writes.chars() {
            match key {
                '-' => is_delete = true,
                '*' => accesses.written_namespaces.push(row("*")),
                key => accesses
                    .writes
                    .push(RowWrite { row: row(&key.to_string()), is_delete: std::mem::take(&mut is_delete) }),
            }
        }
        TransactionFootprint { id: None, accesses: Some(accesses) }
    };
    script.split_whitespace().map(footprint).collect()
}

fn conflicts(script: &str) -> Option<BlockConflicts> {
    BlockConflicts::of(&known_accesses(&footprints(script)))
}

/// The order of a block in which the transactions at the positions `doomed` are invalid.
fn arranged(script: &str, doomed: &[usize]) -> Vec<u32> {
    let conflicts = conflicts(script).expect("the block has conflicts");
    let doomed: Vec<bool> = (0..conflicts.transactions.len()).map(|position| doomed.contains(&position)).collect();
    conflicts.arrange(&doomed)
}

#[test]
fn readers_go_before_writers() {
    for (script, doomed, expected) in [
        // A reader behind a writer, and a chain of them.
        (">a a>", &[][..], &[1, 0][..]),
        ("a>b b>c c>d", &[], &[2, 1, 0]),
        (">a b>c a>d e>f", &[], &[1, 2, 0, 3]),
        // Each reads what the other one writes: the one that arrived first is valid.
        ("a>b b>a", &[], &[0, 1]),
        // The same key: one is valid, and the others follow in the order of arrival.
        ("a>a a>a a>a", &[], &[0, 1, 2]),
        // The one that spoils the fewest.
        ("a>ab a>a b> b>", &[], &[2, 3, 0, 1]),
        ("a>bc b>a c>a", &[], &[1, 2, 0]),
        // A doomed transaction goes to the end, and neither blocks the others nor spoils them.
        ("a>a a> b>", &[0], &[1, 2, 0]),
        ("a>b b>a", &[0], &[1, 0]),
        // A scan goes before writes in its namespace.
        (">x* *> a>", &[], &[1, 0, 2]),
        // Nothing passes a barrier; what it writes is unknown.
        (">a a> ! >b b>", &[], &[1, 0, 2, 4, 3]),
        // What was written before the barrier dooms readers behind it, which then do not delay writers.
        (">a ! a>b b>", &[], &[0, 1, 3, 2]),
        ("a>a ! a>b b> >a", &[], &[0, 1, 3, 4, 2]),
    ] {
        assert_eq!(arranged(script, doomed), expected, "{script} {doomed:?}");
    }
}

#[test]
fn a_block_in_which_no_transaction_writes_what_another_one_reads_has_no_conflicts() {
    for script in ["", "a>a", "a>a b>b c>c", "a> a> a>", ">a >a", "*> b>", "a>b c>b d>b", "! !"] {
        assert!(conflicts(script).is_none(), "{script}");
    }
    for script in [">a a>", "a>a a>", "*> >b*"] {
        assert!(conflicts(script).is_some(), "{script}");
    }
}

#[test]
fn the_rest_keeps_its_order_when_too_many_cycles_were_looked_at() {
    let conflicts = conflicts("b>a a>b c>d d>c d>e").expect("there are some");
    let alive = [0, 1, 2, 3, 4];
    assert_eq!(Segment::new(&conflicts, &alive).place(&mut 0), [4, 0, 1, 2, 3]);
    // Transaction 1 is spoiled; then there is nothing left for the other cycle.
    assert_eq!(Segment::new(&conflicts, &alive).place(&mut 5), [4, 0, 2, 3]);
}

/// Whatever clients send, a block of the largest size takes bounded work.
#[test]
fn the_work_for_a_large_block_is_bounded() {
    const COUNT: usize = 8192;
    let key = |number: usize| RowHash::of("ns", &number.to_string());
    let block = |accesses: &dyn Fn(usize) -> (Vec<usize>, Vec<usize>)| -> Vec<TransactionFootprint> {
        let footprint = |position: usize| {
            let (reads, writes) = accesses(position);
            let reads = reads.into_iter().map(|read| RowRead { row: key(read), version: None }).collect();
            let writes = writes.into_iter().map(|write| RowWrite { row: key(write), is_delete: false }).collect();
            let accesses = Accesses { reads, writes, ..Accesses::default() };
            TransactionFootprint { id: None, accesses: Some(accesses) }
        };
        (0..COUNT).map(footprint).collect()
    };
    let one_key = block(&|_| (vec![0], vec![0]));
    let pairs = block(&|position| (vec![position], vec![position ^ 1]));
    let ring = block(&|position| (vec![position], vec![(position + 1) % COUNT]));
    let few = block(&|position| (vec![position % 7, position % 11], vec![position % 13, position % 5]));
    for (block, valid) in [(one_key, 1), (pairs, COUNT / 2), (ring, COUNT - 1), (few, 1423)] {
        let conflicts = BlockConflicts::of(&known_accesses(&block)).expect("there are some");
        let alive: Vec<u32> = (0..COUNT as u32).collect();
        let mut cycle_reads = CYCLE_READS_MAX;
        let placed = Segment::new(&conflicts, &alive).place(&mut cycle_reads);
        assert!(cycle_reads > 0, "more than enough for blocks that are not made to use it up");
        let order = conflicts.arrange(&vec![false; COUNT]);
        assert_eq!(order[..placed.len()], placed);
        let doomed = vec![false; COUNT];
        let count = conflicts.valid_in(order, &doomed).iter().filter(|valid| **valid).count();
        assert_eq!(count, valid);
    }
}

#[test]
fn a_transaction_with_too_many_accesses_is_a_barrier() {
    let many = |count: usize| {
        let read = |number: usize| RowRead { row: RowHash::of("ns", &number.to_string()), version: None };
        let accesses = Accesses { reads: (0..count).map(read).collect(), ..Accesses::default() };
        TransactionFootprint { id: None, accesses: Some(accesses) }
    };
    let block = [many(BLOCK_ACCESSES_MAX - 1), many(1), many(1)];
    assert_eq!(known_accesses(&block).iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn bytes_that_are_no_transaction_access_nothing() {
    for bytes in [&b""[..], b"\xff", b"\x0a\x02\x0a\x00"] {
        let footprint = TransactionFootprint::of(&Bytes::copy_from_slice(bytes));
        assert_eq!(footprint, TransactionFootprint { id: None, accesses: Some(Accesses::default()) });
    }
}
