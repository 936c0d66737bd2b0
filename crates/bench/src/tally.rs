//! What happened to the transactions of one measurement.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::histogram::Histogram;
use crate::outcome::{BY_CONTRACT, Committed, Refused, STAGES, Stage};

/// The code of a valid transaction.
pub const VALID: i32 = 0;

/// Refusals of one kind.
#[derive(Clone, Debug)]
pub struct Refusals {
    /// How many there were.
    pub count: u64,
    /// What the first one said.
    pub example: String,
}

/// Transactions that ended within one second of the measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// In a block and valid.
    pub valid: u64,
    /// In a block and invalid.
    pub invalid: u64,
    /// In no block.
    pub refused: u64,
}

/// Counts and latencies of the transactions that ended in a measurement.
#[derive(Clone, Default)]
pub struct Tally {
    /// How many were committed with each validation code.
    pub codes: BTreeMap<i32, u64>,
    /// How many were refused, by stage and status.
    pub refusals: BTreeMap<(Stage, &'static str), Refusals>,
    /// From the first byte of the proposal to the knowledge of the commit, valid transactions only.
    pub latency: Histogram,
    /// The same by stage, in the order of [`STAGES`].
    pub stages: [Histogram; STAGES.len()],
    /// Second by second.
    pub seconds: Vec<Second>,
    blocks: Option<(u64, u64)>,
}

/// Seconds that are told apart; later ones count with the last.
const SECONDS_MAX: usize = 24 * 60 * 60;

impl Tally {
    /// Counts one transaction that took `latency` and ended `at` after the measurement began.
    pub fn record(&mut self, at: Duration, latency: Duration, outcome: Result<Committed, Refused>) {
        let second = usize::try_from(at.as_secs()).unwrap_or(usize::MAX).min(SECONDS_MAX - 1);
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, Second::default());
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
                second.refused += 1;
                let kind = (refused.stage, refused.status);
                let refusals = self.refusals.entry(kind).or_insert(Refusals { count: 0, example: refused.message });
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

    /// Transactions that the network refused or lost, without those that the contract refused.
    pub fn errors(&self) -> u64 {
        let own = self.refusals.iter().filter(|((_, status), _)| *status != BY_CONTRACT);
        own.map(|(_, refusals)| refusals.count).sum()
    }

    /// Transactions that the contract refused.
    pub fn refused_by_contract(&self) -> u64 {
        let theirs = self.refusals.iter().filter(|((_, status), _)| *status == BY_CONTRACT);
        theirs.map(|(_, refusals)| refusals.count).sum()
    }

    /// How many blocks the transactions were in, at most.
    pub fn blocks(&self) -> u64 {
        self.blocks.map_or(0, |(low, high)| high - low + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(code: i32, block: u64) -> Result<Committed, Refused> {
        Ok(Committed { code, block, stages: [1, 2, 3].map(Duration::from_millis) })
    }

    fn refused(stage: Stage, status: &'static str) -> Result<Committed, Refused> {
        Err(Refused { stage, status, message: format!("{status} at {}", stage.name()) })
    }

    #[test]
    fn outcomes_are_counted_by_code_and_status_and_second() {
        let mut tally = Tally::default();
        let (second, latency) = (Duration::from_secs, Duration::from_millis(6));
        tally.record(second(0), latency, committed(VALID, 7));
        tally.record(second(2), latency, committed(VALID, 9));
        tally.record(second(2), latency, committed(11, 8));
        tally.record(second(2), latency, refused(Stage::Endorse, BY_CONTRACT));
        tally.record(second(1), latency, refused(Stage::Submit, "UNAVAILABLE"));
        tally.record(second(1), latency, refused(Stage::Submit, "UNAVAILABLE"));
        assert_eq!((tally.valid(), tally.committed(), tally.blocks()), (2, 3, 3));
        assert_eq!((tally.errors(), tally.refused_by_contract()), (2, 1));
        assert_eq!(tally.latency.count(), 2);
        assert_eq!(tally.stages[2].max_us(), 3_000);
        assert_eq!(tally.refusals[&(Stage::Submit, "UNAVAILABLE")].example, "UNAVAILABLE at submit");
        assert_eq!(
            tally.seconds,
            [
                Second { valid: 1, invalid: 0, refused: 0 },
                Second { valid: 0, invalid: 0, refused: 2 },
                Second { valid: 1, invalid: 1, refused: 1 },
            ]
        );
    }
}
