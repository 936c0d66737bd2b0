//! Batches of a verb and of its floor, in turns.

use std::time::{Duration, Instant};

use super::Options;
use super::target::{Target, failed};
use super::verbs::{Caller, Case};
use crate::error::Error;

/// Verbs of one batch.
const BATCH_MAX: usize = 20_000;
const BATCH_MIN: usize = 4;
/// Verbs by which the length of a batch is found.
const TRIAL: usize = 16;

/// What a verb is compared with. It blocks the calling thread, which has nothing else to do.
pub trait Floor {
    /// Does `count` one after the other, and notes how many nanoseconds each took.
    ///
    /// # Errors
    /// A socket fails.
    fn one_by_one(&mut self, count: usize, samples: &mut Vec<u32>) -> Result<(), Error>;

    /// Does `count` as fast as they can be done.
    ///
    /// # Errors
    /// A socket fails.
    fn many(&mut self, count: usize) -> Result<(), Error>;
}

/// Which of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Verb,
    Floor,
}

/// What was measured of both.
pub struct Measured {
    /// Nanoseconds of each, sorted.
    samples: [Vec<u32>; 2],
    /// How many a second, in each round, sorted.
    rates: [Vec<f64>; 2],
}

impl Measured {
    /// The time that this share of them needed at most.
    pub fn quantile_ns(&self, side: Side, quantile: f64) -> f64 {
        let samples = &self.samples[side as usize];
        let rank = (samples.len() as f64 * quantile).ceil() as usize;
        f64::from(samples[rank.clamp(1, samples.len()) - 1])
    }

    /// How many a second: the median of the rounds.
    pub fn rate(&self, side: Side) -> f64 {
        let rates = &self.rates[side as usize];
        rates[rates.len() / 2]
    }
}

/// How many fit into a batch.
fn fitting(batch: Duration, trial: Duration) -> usize {
    let each = trial.as_secs_f64() / TRIAL as f64;
    ((batch.as_secs_f64() / each) as usize).clamp(BATCH_MIN, BATCH_MAX)
}

/// Measures a case.
///
/// # Errors
/// A verb or a socket fails.
pub async fn measure(options: &Options, target: &mut Target, case: &Case) -> Result<Measured, Error> {
    let mut measured = Measured { samples: Default::default(), rates: Default::default() };
    let each = target.rounds_each().clamp(1, options.rounds.max(1));
    for first in (0..options.rounds).step_by(each) {
        if first > 0 {
            target.renew().await?;
        }
        let (caller, floor) = target.sides(case, options.seed).await?;
        let mut sides = Sides { caller, floor, case, counts: [BATCH_MIN; 2] };
        sides.warm_up(options.batch).await?;
        for round in first..options.rounds.min(first + each) {
            // Who goes first changes, so that neither always has the warmer machine.
            for turn in 0..2 {
                let side = if (round + turn) % 2 == 0 { Side::Verb } else { Side::Floor };
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
struct Sides<'a> {
    caller: Caller<'a>,
    floor: Box<dyn Floor + 'a>,
    case: &'a Case,
    /// Of each in a batch.
    counts: [usize; 2],
}

impl Sides<'_> {
    /// Finds how many take as long as a batch is to take. The first trial warms up.
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

    /// One after the other, then as many at once as may be; gives how many of those there were a second.
    async fn batch(&mut self, side: Side, samples: &mut Vec<u32>) -> Result<f64, Error> {
        let case = self.case;
        let in_verb = |error: rma::Error| failed(case.verb.name(), error);
        let count = self.counts[side as usize];
        // Enough for what is in flight to count.
        let many = count.max(case.depth() * 4);
        let begin = match side {
            Side::Verb => {
                self.caller.one_by_one(count, samples).await.map_err(in_verb)?;
                let begin = Instant::now();
                self.caller.many(many).await.map_err(in_verb)?;
                begin
            }
            Side::Floor => {
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
        let measured = Measured { samples: [(1..=1000).collect(), vec![7]], rates: [vec![1.0, 2.0, 9.0], vec![4.0]] };
        assert_eq!(
            [0.5, 0.99, 0.999, 1.0].map(|at| measured.quantile_ns(Side::Verb, at)),
            [500.0, 990.0, 999.0, 1000.0]
        );
        assert_eq!((measured.quantile_ns(Side::Floor, 0.5), measured.rate(Side::Verb)), (7.0, 2.0));
    }
}
