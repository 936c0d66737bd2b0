//! Histograms of fixed size. Each value from 1 to 4 has its own bucket; 0 counts as 1. Above 4 there are four buckets
//! of equal width between each power of two and the next. So a quantile is at most a quarter too large.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Event, EventDescription, EventKind, EventValue, FirstUse, Unit, check_name};
use crate::rt;

/// Buckets: values up to 4 exactly, then four for each power of two.
pub(super) const BUCKETS: usize = 252;

/// The bucket of a value: the first whose bound is not below it.
const fn bucket_of(value: u64) -> usize {
    let n = value.saturating_sub(1);
    if n < 4 {
        return n as usize;
    }
    let exponent = 63 - n.leading_zeros() as usize;
    (exponent - 1) * 4 + ((n >> (exponent - 2)) & 3) as usize
}

/// The largest value of a bucket.
const fn bound_of(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64 + 1;
    }
    let exponent = bucket / 4 + 1;
    let quarter = (bucket % 4) as u64 + 1;
    let start = 1u64 << exponent;
    start.saturating_add((start / 4).saturating_mul(quarter))
}

const _: () = assert!(bucket_of(u64::MAX) == BUCKETS - 1 && bucket_of(bound_of(100)) == 100);

/// Recorded values, by bucket.
#[derive(Clone, PartialEq, Eq)]
pub struct Distribution {
    buckets: Box<[u64; BUCKETS]>,
    sum: u64,
}

impl Default for Distribution {
    fn default() -> Self {
        Distribution { buckets: Box::new([0; BUCKETS]), sum: 0 }
    }
}

impl Distribution {
    /// Adds a value.
    pub fn record(&mut self, value: u64) {
        self.buckets[bucket_of(value)] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// How many values were recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Their sum.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Their mean; 0 when there are none.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count()).unwrap_or(0)
    }

    /// The value that a `fraction` (0 to 1) of the values do not exceed, at most a quarter too large; 0 when there
    /// are none.
    pub fn quantile(&self, fraction: f64) -> u64 {
        let rank = (self.count() as f64 * fraction.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= rank {
                return bound_of(bucket);
            }
        }
        0
    }

    /// How many values were at most `bound`, exactly so for powers of two.
    pub(super) fn count_up_to(&self, bound: u64) -> u64 {
        self.buckets[..=bucket_of(bound)].iter().sum()
    }
}

impl fmt::Debug for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (half, most) = (self.quantile(0.5), self.quantile(0.99));
        write!(f, "Distribution(count {}, mean {}, p50 {half}, p99 {most})", self.count(), self.mean())
    }
}

/// A distribution of values. Declared with [`events!`](crate::events).
pub struct Histogram {
    name: &'static str,
    documentation: &'static str,
    unit: Unit,
    first_use: FirstUse,
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Histogram {
    /// For the macro.
    #[doc(hidden)]
    pub const fn new(name: &'static str, documentation: &'static str, unit: Unit) -> Histogram {
        check_name(
            name,
            match unit {
                Unit::Count => "",
                Unit::Bytes => "_bytes",
                Unit::Seconds => "_seconds",
            },
        );
        let buckets = [const { AtomicU64::new(0) }; BUCKETS];
        Histogram { name, documentation, unit, first_use: FirstUse::new(), buckets, sum: AtomicU64::new(0) }
    }

    /// Records a value in the histogram's unit; for a time, in nanoseconds.
    pub fn record(&'static self, value: u64) {
        self.first_use.register_once(self);
        if rt::is_simulation() {
            rt::simulated_events(|events| {
                let empty = || EventValue::Histogram(Distribution::default());
                if let EventValue::Histogram(distribution) = events.entry(self.name).or_insert_with(empty) {
                    distribution.record(value);
                }
            });
            return;
        }
        self.buckets[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Records a time.
    pub fn record_duration(&'static self, duration: Duration) {
        self.record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records the time from `start` until now.
    pub fn record_since(&'static self, start: rt::Instant) {
        self.record_duration(start.elapsed());
    }

    /// The recorded values: those of this simulation when called in one, otherwise those of the process.
    pub fn value(&self) -> Distribution {
        match rt::simulated_events(|events| events.get(self.name).cloned()) {
            Some(Some(EventValue::Histogram(distribution))) => distribution,
            Some(_) => Distribution::default(),
            None => self.process_distribution(),
        }
    }

    fn process_distribution(&self) -> Distribution {
        let mut distribution = Distribution { sum: self.sum.load(Ordering::Relaxed), ..Distribution::default() };
        for (bucket, count) in distribution.buckets.iter_mut().zip(&self.buckets) {
            *bucket = count.load(Ordering::Relaxed);
        }
        distribution
    }
}

impl Event for Histogram {
    fn description(&self) -> EventDescription {
        EventDescription { name: self.name, documentation: self.documentation, kind: EventKind::Histogram(self.unit) }
    }

    fn process_value(&self) -> EventValue {
        EventValue::Histogram(self.process_distribution())
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Histogram({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_value_lies_in_its_bucket(value: u64) {
            let bucket = bucket_of(value);
            prop_assert!(value <= bound_of(bucket));
            prop_assert!(bucket == 0 || value > bound_of(bucket - 1));
        }
    }

    #[test]
    fn quantiles_are_at_most_a_quarter_too_large() {
        let mut distribution = Distribution::default();
        for value in 1..=1000 {
            distribution.record(value);
        }
        for (fraction, exact) in [(0.01, 10), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let quantile = distribution.quantile(fraction);
            assert!(quantile >= exact && quantile <= exact + exact / 4, "{fraction}: {quantile} against {exact}");
        }
        assert_eq!(distribution.count_up_to(256), 256);
        assert_eq!(Distribution::default().quantile(0.5), 0);
    }
}
