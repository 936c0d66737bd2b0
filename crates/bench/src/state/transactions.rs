//! The reads and writes of transactions, without a contract: YCSB and SmallBank reduced to their keys.
//!
//! A YCSB transaction reads a record and, with a given probability, writes it. A SmallBank transaction is one of the five
//! modifying kinds, chosen with equal probability, or reads a customer's balance (FlexChain, section 6.1). It touches the same
//! accounts as the contract does. The values that it writes are arbitrary, which makes no difference to the state.

use std::sync::Arc;

use super::setup;
use measurement::random::Random;

/// A load on the state alone.
#[derive(Clone, Debug)]
pub enum TransactionMix {
    /// Records of some size.
    Ycsb { records: usize, value_bytes: usize, updates_percent: u64 },
    /// Customers with a checking and a savings account each.
    SmallBank { customers: usize, value_bytes: usize, writes_percent: u64 },
}

/// The keys, by number, that one transaction reads, and those that it writes.
#[derive(Default, Debug)]
pub struct DrawnTransaction {
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
}

impl TransactionMix {
    /// All keys.
    pub fn keys(&self) -> Vec<Arc<str>> {
        match self {
            TransactionMix::Ycsb { records, .. } => setup::keys(*records),
            TransactionMix::SmallBank { customers, .. } => {
                let accounts = |kind: &'static str| (0..*customers).map(move |number| format!("{kind}{number:09}"));
                accounts("checking").chain(accounts("savings")).map(Arc::from).collect()
            }
        }
    }

    /// Bytes of each value.
    pub fn value_bytes(&self) -> usize {
        match self {
            TransactionMix::Ycsb { value_bytes, .. } | TransactionMix::SmallBank { value_bytes, .. } => *value_bytes,
        }
    }

    /// Bytes of all values.
    pub fn data_bytes(&self) -> u64 {
        let keys = match self {
            TransactionMix::Ycsb { records, .. } => *records,
            TransactionMix::SmallBank { customers, .. } => 2 * *customers,
        };
        keys as u64 * self.value_bytes() as u64
    }

    /// Bytes of the values that this many transactions write, on average.
    pub fn bytes_written(&self, transactions: usize) -> u64 {
        let (writes_tenths, percent) = match self {
            TransactionMix::Ycsb { updates_percent, .. } => (10, *updates_percent),
            // Of the five kinds that modify, three write one account, one writes two and one three.
            TransactionMix::SmallBank { writes_percent, .. } => (16, *writes_percent),
        };
        transactions as u64 * self.value_bytes() as u64 * writes_tenths * percent / 1000
    }

    /// Draws the next transaction.
    pub fn draw(&self, random: &mut Random, into: &mut DrawnTransaction) {
        let DrawnTransaction { reads, writes } = into;
        reads.clear();
        writes.clear();
        match self {
            TransactionMix::Ycsb { records, updates_percent, .. } => {
                let key = random.below(*records as u64) as usize;
                reads.push(key);
                if random.percent(*updates_percent) {
                    writes.push(key);
                }
            }
            TransactionMix::SmallBank { customers, writes_percent, .. } => {
                let customer = random.below(*customers as u64) as usize;
                let other = (customer + 1 + random.below(*customers as u64 - 1) as usize) % *customers;
                let (checking, savings) = (customer, *customers + customer);
                if !random.percent(*writes_percent) {
                    reads.extend([checking, savings]);
                    return;
                }
                match random.below(5) {
                    0 => (reads.push(savings), writes.push(savings)),
                    1 => (reads.push(checking), writes.push(checking)),
                    2 => (reads.extend([checking, other]), writes.extend([checking, other])),
                    3 => (reads.extend([checking, savings]), writes.push(checking)),
                    _ => (reads.extend([checking, savings, other]), writes.extend([checking, savings, other])),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_write_what_they_have_read_in_the_given_proportion() {
        let random = &mut Random::new(3);
        let ycsb = TransactionMix::Ycsb { records: 100, value_bytes: 8, updates_percent: 5 };
        for (load, percent) in [
            (ycsb, 5),
            (TransactionMix::SmallBank { customers: 100, value_bytes: 8, writes_percent: 50 }, 50),
            (TransactionMix::SmallBank { customers: 2, value_bytes: 8, writes_percent: 95 }, 95),
        ] {
            let keys = load.keys();
            assert_eq!(load.data_bytes(), keys.len() as u64 * 8);
            let mut transaction = DrawnTransaction::default();
            let (mut writing, mut written) = (0, 0);
            for _ in 0..10_000 {
                load.draw(random, &mut transaction);
                let DrawnTransaction { reads, writes } = &transaction;
                assert!(!reads.is_empty() && reads.iter().all(|key| *key < keys.len()));
                assert!(writes.iter().all(|key| reads.contains(key)));
                let distinct: std::collections::BTreeSet<_> = writes.iter().collect();
                assert_eq!(distinct.len(), writes.len(), "two customers of one transaction are different");
                writing += u64::from(!writes.is_empty());
                written += writes.len() as u64 * 8;
            }
            let expected = load.bytes_written(10_000);
            assert!(
                written.abs_diff(expected) * 8 < expected,
                "{load:?}: {written} bytes, and {expected} are expected"
            );
            assert!(writing.abs_diff(percent * 100) < 300, "{load:?}: {writing} of 10,000 write");
        }
    }
}
