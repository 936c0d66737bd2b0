//! Counts the outcomes of the transactions of one measurement.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::histogram::Histogram;
use crate::outcome::{CommittedTransaction, REJECTED_BY_CONTRACT, RejectedTransaction, STAGES, TransactionStage};

/// The code of a valid transaction.
pub const VALID: i32 = 0;

/// Rejections of one kind.
#[derive(Clone, Debug)]
pub struct RejectionCount {
    /// How many there were.
    pub count: u64,
    /// The message of the first one.
    pub example: String,
}

/// Transactions that ended within one second of the measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecondCounts {
    /// In a block and valid.
    pub valid: u64,
    /// In a block and invalid.
    pub invalid: u64,
    /// In no block.
    pub rejected: u64,
}

/// Counts and latencies of the transactions that ended in a measurement.
#[derive(Clone, Default)]
pub struct Tally {
    /// How many were committed with each validation code.
    pub codes: BTreeMap<i32, u64>,
    /// How many were rejected, by stage and status.
    pub rejections: BTreeMap<(TransactionStage, &'static str), RejectionCount>,
    /// From the first byte of the proposal to the knowledge of the commit, valid transactions only.
    pub latency: Histogram,
    /// The same by stage, in the order of [`STAGES`].
    pub stages: [Histogram; STAGES.len()],
    /// Second by second.
    pub seconds: Vec<SecondCounts>,
    blocks: Option<(u64, u64)>,
}

/// Seconds that are counted separately; later ones count with the last.
const SECONDS_MAX: usize = 24 * 60 * 60;

impl Tally {
    /// Counts one transaction that took `latency` and ended `at` after the measurement started.
    pub fn record(
        &mut self,
        at: Duration,
        latency: Duration,
        outcome: Result<CommittedTransaction, RejectedTransaction>,
    ) {
        let second = usize::try_from(at.as_secs()).unwrap_or(usize::MAX).min(SECONDS_MAX - 1);
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, SecondCounts::default());
        }
        let second = &mut self.seconds[second];
        match outcome {
            Ok(committed) => {
                *self.codes.entry(committed.code).or_default() += 1;
                let (low, high) = self.blocks.unwrap_or((committed.block, committed.block));
                self.blocks = Some((low.min(committed.block), high.max(committed.block)));
                if committed.code == VALID {
                    second.valid += 1;
                    self.latency.record(latency);
                    for (histogram, stage) in self.stages.iter_mut().zip(committed.stages) {
                        histogram.record(stage);
                    }
                } else {
                    second.invalid += 1;
                }
            }
            Err(refused) => {
                second.rejected += 1;
                let kind = (refused.stage, refused.status);
                let refusals =
                    self.rejections.entry(kind).or_insert(RejectionCount { count: 0, example: refused.message });
                refusals.count += 1;
            }
        }
    }

    /// Valid transactions.
    pub fn valid(&self) -> u64 {
        self.codes.get(&VALID).copied().unwrap_or(0)
    }

    /// Transactions in blocks, valid or not.
    pub fn committed(&self) -> u64 {
        self.codes.values().sum()
    }

    /// Transactions that the network rejected or lost, without those that the contract rejected.
    pub fn errors(&self) -> u64 {
        let own = self.rejections.iter().filter(|((_, status), _)| *status != REJECTED_BY_CONTRACT);
        own.map(|(_, refusals)| refusals.count).sum()
    }

    /// Transactions that the contract rejected.
    pub fn rejected_by_contract(&self) -> u64 {
        let theirs = self.rejections.iter().filter(|((_, status), _)| *status == REJECTED_BY_CONTRACT);
        theirs.map(|(_, refusals)| refusals.count).sum()
    }

    /// The most blocks that the transactions can have been in.
    pub fn blocks(&self) -> u64 {
        self.blocks.map_or(0, |(low, high)| high - low + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(code: i32, block: u64) -> Result<CommittedTransaction, RejectedTransaction> {
        Ok(CommittedTransaction { code, block, stages: [1, 2, 3].map(Duration::from_millis) })
    }

    fn refused(stage: TransactionStage, status: &'static str) -> Result<CommittedTransaction, RejectedTransaction> {
        Err(RejectedTransaction { stage, status, message: format!("{status} at {}", stage.name()) })
    }

    #[test]
    fn outcomes_are_counted_by_code_and_status_and_second() {
        let mut tally = Tally::default();
        let (second, latency) = (Duration::from_secs, Duration::from_millis(6));
        tally.record(second(0), latency, committed(VALID, 7));
        tally.record(second(2), latency, committed(VALID, 9));
        tally.record(second(2), latency, committed(11, 8));
        tally.record(second(2), latency, refused(TransactionStage::Endorse, REJECTED_BY_CONTRACT));
        tally.record(second(1), latency, refused(TransactionStage::Submit, "UNAVAILABLE"));
        tally.record(second(1), latency, refused(TransactionStage::Submit, "UNAVAILABLE"));
        assert_eq!((tally.valid(), tally.committed(), tally.blocks()), (2, 3, 3));
        assert_eq!((tally.errors(), tally.rejected_by_contract()), (2, 1));
        assert_eq!(tally.latency.count(), 2);
        assert_eq!(tally.stages[2].max_us(), 3_000);
        assert_eq!(tally.rejections[&(TransactionStage::Submit, "UNAVAILABLE")].example, "UNAVAILABLE at submit");
        assert_eq!(
            tally.seconds,
            [
                SecondCounts { valid: 1, invalid: 0, rejected: 0 },
                SecondCounts { valid: 0, invalid: 0, rejected: 2 },
                SecondCounts { valid: 1, invalid: 1, rejected: 1 },
            ]
        );
    }
}
