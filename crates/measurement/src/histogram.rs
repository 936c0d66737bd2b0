//! A compact histogram of durations. It divides the range into octaves (factors of two), and each octave into equal
//! steps.
//!
//! Values are microseconds. Below [`STEPS`] each value has its own bucket. Above, every octave has `STEPS / 2` buckets,
//! so a quantile is at most 1/64 too high. Memory is fixed, recording is a shift and an addition, and two histograms
//! are merged by adding their counts.

use std::time::Duration;

const STEP_BITS: u32 = 7;
/// Values below this are exact.
pub const STEPS: u64 = 1 << STEP_BITS;
/// Longer durations (above about 19 hours) count as this.
const MICROS_MAX: u64 = (1 << 36) - 1;
const BUCKETS: usize = index_of(MICROS_MAX) + 1;

/// How often each duration occurred.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum_us: u64,
    max_us: u64,
}

const fn index_of(micros: u64) -> usize {
    if micros < STEPS {
        return micros as usize;
    }
    let octave = 63 - micros.leading_zeros();
    let shift = octave - (STEP_BITS - 1);
    // The top STEP_BITS bits of the value, whose first is one, follow the buckets of all smaller octaves.
    ((shift as u64) * (STEPS / 2) + (micros >> shift)) as usize
}

/// The smallest value of bucket `index`.
const fn lower_bound(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let shift = index / (STEPS / 2) - 1;
    (index - shift * (STEPS / 2)) << shift
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; BUCKETS].into_boxed_slice(), count: 0, sum_us: 0, max_us: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(MICROS_MAX).min(MICROS_MAX);
        self.counts[index_of(micros)] += 1;
        self.count += 1;
        self.sum_us += micros;
        self.max_us = self.max_us.max(micros);
    }

    /// Adds all that another histogram counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.count += other.count;
        self.sum_us += other.sum_us;
        self.max_us = self.max_us.max(other.max_us);
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean in microseconds; zero when nothing was counted.
    pub fn mean_us(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_us as f64 / self.count as f64 }
    }

    /// The longest duration in microseconds, exact.
    pub fn max_us(&self) -> u64 {
        self.max_us
    }

    /// The duration in microseconds that a share of `quantile` (0 to 1) of all durations does not exceed: the upper end
    /// of its bucket, never more than the longest duration. Zero when nothing was counted.
    pub fn quantile_us(&self, quantile: f64) -> u64 {
        let wanted = ((self.count as f64 * quantile).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (lower_bound(index + 1) - 1).min(self.max_us);
            }
        }
        self.max_us
    }

    /// The buckets that hold anything, as (smallest value, first value beyond, count).
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(index, count)| (lower_bound(index), lower_bound(index + 1), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_are_narrow() {
        let mut random = Random::new(11);
        for round in 0..200_000u64 {
            let micros = if round < 1_000 { round } else { random.draw() >> (28 + random.below(36)) };
            let index = index_of(micros);
            let (low, high) = (lower_bound(index), lower_bound(index + 1));
            assert!((low..high).contains(&micros), "{micros} is not within {low}..{high}");
            assert!((high - low - 1) * (STEPS / 2) <= micros, "the bucket {low}..{high} is too wide");
        }
        assert_eq!(index_of(MICROS_MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let mut random = Random::new(3);
        let mut histogram = Histogram::default();
        let mut values: Vec<u64> = (0..20_000).map(|_| 1 + (random.below(1_000) * random.below(5_000))).collect();
        values.iter().for_each(|value| histogram.record(Duration::from_micros(*value)));
        values.sort_unstable();
        for quantile in [0.0, 0.01, 0.5, 0.95, 0.99, 1.0] {
            let rank = ((values.len() as f64 * quantile).ceil() as usize).max(1) - 1;
            let (exact, told) = (values[rank] as f64, histogram.quantile_us(quantile) as f64);
            assert!(told >= exact && told <= exact * (1.0 + 1.0 / 64.0), "{quantile}: {told} for {exact}");
        }
        assert_eq!(histogram.max_us(), values[values.len() - 1]);
        let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
        assert!((histogram.mean_us() - mean).abs() < 1e-6);
    }

    #[test]
    fn merging_counts_as_if_recorded_together() {
        let (mut left, mut right, mut both) = (Histogram::default(), Histogram::default(), Histogram::default());
        for micros in 0..1_000u64 {
            let one = if micros % 3 == 0 { &mut left } else { &mut right };
            one.record(Duration::from_micros(micros * micros));
            both.record(Duration::from_micros(micros * micros));
        }
        left.merge(&right);
        assert_eq!(left.buckets().collect::<Vec<_>>(), both.buckets().collect::<Vec<_>>());
        assert_eq!((left.count(), left.max_us()), (both.count(), both.max_us()));
    }

    #[test]
    fn an_empty_histogram_has_zero_quantiles() {
        let histogram = Histogram::default();
        assert_eq!((histogram.quantile_us(0.5), histogram.max_us()), (0, 0));
        assert!(histogram.mean_us().abs() < f64::EPSILON);
    }

    #[test]
    fn absurdly_long_durations_are_counted_as_the_longest() {
        let mut histogram = Histogram::default();
        histogram.record(Duration::MAX);
        assert_eq!(histogram.quantile_us(0.5), MICROS_MAX);
    }
}
