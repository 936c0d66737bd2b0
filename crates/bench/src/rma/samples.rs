//! Batches of a verb and of its floor, in turns.

use std::time::{Duration, Instant};

use super::Options;
use super::target::{Target, failed};
use super::verbs::Case;
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
    let in_verb = |error: rma::Error| failed(case.verb.name(), error);
    let (mut caller, mut floor) = target.sides(case, options.seed).await?;
    let mut measured = Measured { samples: Default::default(), rates: Default::default() };
    let mut waste = Vec::new();
    // The first trial warms up.
    let mut counts = [BATCH_MIN; 2];
    for _ in 0..2 {
        let begin = Instant::now();
        caller.one_by_one(TRIAL, &mut waste).await.map_err(in_verb)?;
        let verb = begin.elapsed();
        let begin = Instant::now();
        floor.one_by_one(TRIAL, &mut waste)?;
        counts = [fitting(options.batch, verb), fitting(options.batch, begin.elapsed())];
        caller.many(case.depth()).await.map_err(in_verb)?;
        floor.many(case.depth())?;
    }
    for round in 0..options.rounds {
        // Who goes first changes, so that neither always has the warmer machine.
        for turn in 0..2 {
            let side = if (round + turn) % 2 == 0 { Side::Verb } else { Side::Floor };
            let (count, samples) = (counts[side as usize], &mut measured.samples[side as usize]);
            // Enough for what is in flight to count.
            let many = count.max(case.depth() * 4);
            let rate = |begin: Instant| many as f64 / begin.elapsed().as_secs_f64();
            let rate = match side {
                Side::Verb => {
                    caller.one_by_one(count, samples).await.map_err(in_verb)?;
                    let begin = Instant::now();
                    caller.many(many).await.map_err(in_verb)?;
                    rate(begin)
                }
                Side::Floor => {
                    floor.one_by_one(count, samples)?;
                    let begin = Instant::now();
                    floor.many(many)?;
                    rate(begin)
                }
            };
            measured.rates[side as usize].push(rate);
        }
    }
    measured.samples.iter_mut().for_each(|samples| samples.sort_unstable());
    measured.rates.iter_mut().for_each(|rates| rates.sort_by(f64::total_cmp));
    Ok(measured)
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
