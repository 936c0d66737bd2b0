//! Alternates batches of a verb and of its floor.

use std::time::{Duration, Instant};

use super::RmaConfig;
use super::floor::FloorOperation;
use super::provider::failed;
use super::target::RmaTarget;
use super::verbs::{VerbCaller, VerbCase};
use measurement::error::Error;

/// Verbs of one batch.
const BATCH_MAX: usize = 20_000;
const BATCH_MIN: usize = 4;
/// Verbs of the trial that determines the length of a batch.
const TRIAL: usize = 16;

/// The verb or its floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeasuredSide {
    Verb,
    Floor,
}

/// The measurements of both.
pub struct PairedSamples {
    /// Nanoseconds of each, sorted.
    samples: [Vec<u32>; 2],
    /// Operations a second in each round, sorted.
    rates: [Vec<f64>; 2],
}

impl PairedSamples {
    /// The time that this fraction of them needed at most.
    pub fn quantile_ns(&self, side: MeasuredSide, quantile: f64) -> f64 {
        let samples = &self.samples[side as usize];
        let rank = (samples.len() as f64 * quantile).ceil() as usize;
        f64::from(samples[rank.clamp(1, samples.len()) - 1])
    }

    /// Operations a second: the median of the rounds.
    pub fn rate(&self, side: MeasuredSide) -> f64 {
        let rates = &self.rates[side as usize];
        rates[rates.len() / 2]
    }
}

/// The number of operations that fit into a batch.
fn fitting(batch: Duration, trial: Duration) -> usize {
    let each = trial.as_secs_f64() / TRIAL as f64;
    ((batch.as_secs_f64() / each) as usize).clamp(BATCH_MIN, BATCH_MAX)
}

/// Measures a case.
///
/// # Errors
/// A verb or a socket fails.
pub async fn measure(options: &RmaConfig, target: &mut RmaTarget, case: &VerbCase) -> Result<PairedSamples, Error> {
    let mut measured = PairedSamples { samples: Default::default(), rates: Default::default() };
    let each = target.rounds_each().clamp(1, options.rounds.max(1));
    for first in (0..options.rounds).step_by(each) {
        if first > 0 {
            target.reconnect().await?;
        }
        let (caller, floor) = target.pair(case, options.seed).await?;
        let mut sides = PairedRun { caller, floor, case, counts: [BATCH_MIN; 2] };
        sides.warm_up(options.batch).await?;
        for round in first..options.rounds.min(first + each) {
            // The first side changes, so that neither always has the warmer machine.
            for turn in 0..2 {
                let side = if (round + turn) % 2 == 0 { MeasuredSide::Verb } else { MeasuredSide::Floor };
                let rate = sides.batch(side, &mut measured.samples[side as usize]).await?;
                measured.rates[side as usize].push(rate);
            }
        }
    }
    measured.samples.iter_mut().for_each(|samples| samples.sort_unstable());
    measured.rates.iter_mut().for_each(|rates| rates.sort_by(f64::total_cmp));
    Ok(measured)
}

/// A verb, and its floor.
struct PairedRun<'a> {
    caller: VerbCaller<'a>,
    floor: Box<dyn FloorOperation + 'a>,
    case: &'a VerbCase,
    /// Operations of each in a batch.
    counts: [usize; 2],
}

impl PairedRun<'_> {
    /// Finds the number of operations that fill a batch. The first trial warms up.
    async fn warm_up(&mut self, batch: Duration) -> Result<(), Error> {
        let case = self.case;
        let in_verb = |error: rma::Error| failed(case.verb.name(), error);
        let mut waste = Vec::new();
        for _ in 0..2 {
            let begin = Instant::now();
            self.caller.one_by_one(TRIAL, &mut waste).await.map_err(in_verb)?;
            let verb = begin.elapsed();
            let begin = Instant::now();
            self.floor.one_by_one(TRIAL, &mut waste)?;
            self.counts = [fitting(batch, verb), fitting(batch, begin.elapsed())];
            self.caller.many(case.depth()).await.map_err(in_verb)?;
            self.floor.many(case.depth())?;
        }
        Ok(())
    }

    /// Runs a batch one after the other, then with as many in flight as allowed; returns the rate of the latter.
    async fn batch(&mut self, side: MeasuredSide, samples: &mut Vec<u32>) -> Result<f64, Error> {
        let case = self.case;
        let in_verb = |error: rma::Error| failed(case.verb.name(), error);
        let count = self.counts[side as usize];
        // Enough that the operations in flight matter.
        let many = count.max(case.depth() * 4);
        let begin = match side {
            MeasuredSide::Verb => {
                self.caller.one_by_one(count, samples).await.map_err(in_verb)?;
                let begin = Instant::now();
                self.caller.many(many).await.map_err(in_verb)?;
                begin
            }
            MeasuredSide::Floor => {
                self.floor.one_by_one(count, samples)?;
                let begin = Instant::now();
                self.floor.many(many)?;
                begin
            }
        };
        Ok(many as f64 / begin.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_rates_are_those_of_the_sorted_values() {
        let measured =
            PairedSamples { samples: [(1..=1000).collect(), vec![7]], rates: [vec![1.0, 2.0, 9.0], vec![4.0]] };
        assert_eq!(
            [0.5, 0.99, 0.999, 1.0].map(|at| measured.quantile_ns(MeasuredSide::Verb, at)),
            [500.0, 990.0, 999.0, 1000.0]
        );
        assert_eq!((measured.quantile_ns(MeasuredSide::Floor, 0.5), measured.rate(MeasuredSide::Verb)), (7.0, 2.0));
    }
}
