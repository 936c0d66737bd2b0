//! Predicts which transactions of a block will be valid, and puts the block into the order in which most of them are.
//!
//! A leader does not know which transactions are endorsed, so it never drops one. It predicts:
//! 1. It remembers, for the rows that were written in its last blocks, the version of the last write that it predicted to
//!    be valid ([`ROWS_MAX`] rows, the oldest are forgotten). At the start of its term it knows of none.
//! 2. A transaction is a suspect if it read an older version of such a row, or found a row missing that was written, or
//!    if the block has an earlier transaction with the same id.
//! 3. The rest of the block is arranged by [`super::reorder`]. If this makes no more transactions valid than the order of arrival,
//!    the block keeps that order.
//! 4. The writes of the transactions that are valid by the prediction are remembered, with the versions that the final
//!    order gives them.
//!
//! Wrong predictions cost only order. They do not last: when a transaction that was taken for a suspect is valid after all,
//! later readers of its writes read a newer version than the remembered one, and are no suspects.

use base::{Map, Set};
use validation::accesses::Accesses;
use validation::footprint::RowHash;

use super::reorder::{BlockConflicts, TransactionFootprint, known_accesses};

/// The most rows that a leader remembers.
pub const ROWS_MAX: usize = 1 << 16;

/// A write that is predicted to be valid.
#[derive(Clone, Copy, Debug)]
struct PredictedWrite {
    block: u64,
    transaction: u64,
    is_delete: bool,
}

/// Arranges the blocks of one term of a leader.
#[derive(Debug, Default)]
pub struct Predictor {
    /// The rows that were written last, up to half of [`ROWS_MAX`].
    newer: Map<RowHash, PredictedWrite>,
    /// Those that were written before; a row may stand in both.
    older: Map<RowHash, PredictedWrite>,
}

/// The order of a block, and what is predicted for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// For each place in the block, the position in the order of arrival.
    pub order: Vec<u32>,
    /// How many more transactions are valid than in the order of arrival.
    pub gain: usize,
}

impl Predictor {
    /// Arranges the next block of the term. `None` if it keeps the order of arrival.
    pub fn arrange(&mut self, block: u64, transactions: &[TransactionFootprint]) -> Option<Arrangement> {
        let known = known_accesses(transactions);
        let mut ids = Set::default();
        let doomed: Vec<bool> = transactions
            .iter()
            .zip(&known)
            .map(|(transaction, accesses)| {
                let is_repeated = transaction.id.is_some_and(|id| !ids.insert(id));
                is_repeated || accesses.is_some_and(|accesses| self.is_outdated(accesses))
            })
            .collect();
        let arrival = 0..transactions.len() as u32;
        let Some(conflicts) = BlockConflicts::of(&known) else {
            let valid: Vec<bool> = doomed.iter().map(|doomed| !doomed).collect();
            self.remember(block, arrival, &known, &valid);
            return None;
        };
        let count = |valid: &[bool]| valid.iter().filter(|valid| **valid).count();
        let valid = conflicts.valid_in(arrival.clone(), &doomed);
        let valid_count = count(&valid);
        if valid_count < doomed.iter().filter(|doomed| !**doomed).count() {
            let order = conflicts.arrange(&doomed);
            assert_permutation(&order, transactions.len());
            let arranged = conflicts.valid_in(order.iter().copied(), &doomed);
            if count(&arranged) > valid_count {
                self.remember(block, order.iter().copied(), &known, &arranged);
                return Some(Arrangement { order, gain: count(&arranged) - valid_count });
            }
        }
        self.remember(block, arrival, &known, &valid);
        None
    }

    /// Whether a transaction read something that a predicted write has replaced.
    fn is_outdated(&self, accesses: &Accesses) -> bool {
        accesses.reads.iter().any(|read| {
            let Some(last) = self.newer.get(&read.row).or_else(|| self.older.get(&read.row)) else { return false };
            match read.version {
                Some(version) => (version.block, version.transaction) < (last.block, last.transaction),
                None => !last.is_delete,
            }
        })
    }

    fn remember(&mut self, block: u64, order: impl Iterator<Item = u32>, known: &[Option<&Accesses>], valid: &[bool]) {
        for (transaction, position) in (0..).zip(order) {
            let Some(accesses) = known[position as usize].filter(|_| valid[position as usize]) else { continue };
            for write in &accesses.writes {
                if self.newer.len() >= ROWS_MAX / 2 {
                    self.older = std::mem::take(&mut self.newer);
                }
                self.newer.insert(write.row, PredictedWrite { block, transaction, is_delete: write.is_delete });
            }
        }
    }
}

fn assert_permutation(order: &[u32], count: usize) {
    let mut seen = vec![false; count];
    assert_eq!(order.len(), count, "each transaction of the block has one place");
    for position in order {
        assert!(!std::mem::replace(&mut seen[*position as usize], true), "no transaction has two places");
    }
}

#[cfg(test)]
mod tests;
