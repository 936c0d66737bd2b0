//! Chooses keys with skew: by Zipf's law, over a fixed number of items.

use std::sync::Arc;

use crate::random::Random;

/// Draws items `0..count`, item `i` with a probability proportional to `1 / (i + 1)^theta`. Zero is the uniform distribution.
///
/// Below 1 it uses Gray et al., "Quickly generating billion-record synthetic databases" (SIGMOD 1994), as YCSB does. From 1 on
/// that method does not apply, and a table of all items is searched.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: u64,
    law: ZipfLaw,
}

#[derive(Clone, Debug)]
enum ZipfLaw {
    Uniform,
    Gray {
        theta: f64,
        zeta: f64,
        alpha: f64,
        eta: f64,
    },
    /// The probability of an item or of one before it, in order.
    Table(Arc<[f64]>),
}

impl Zipf {
    /// # Panics
    /// Unless `count > 0` and `theta` is a number that is not negative.
    pub fn new(count: u64, theta: f64) -> Zipf {
        assert!(count > 0 && theta >= 0.0 && theta.is_finite(), "zipf over {count} items with theta {theta}");
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let total = zeta(count);
        let law = if theta == 0.0 {
            ZipfLaw::Uniform
        } else if theta < 1.0 {
            let eta = (1.0 - (2.0 / count as f64).powf(1.0 - theta)) / (1.0 - zeta(2.min(count)) / total);
            ZipfLaw::Gray { theta, zeta: total, alpha: 1.0 / (1.0 - theta), eta }
        } else {
            let mut sum = 0.0;
            let sums = (1..=count).map(|i| {
                sum += (i as f64).powf(-theta) / total;
                sum
            });
            ZipfLaw::Table(sums.collect())
        };
        Zipf { count, law }
    }

    /// Draws an item: a number below `count`.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let item = match &self.law {
            ZipfLaw::Uniform => return random.below(self.count),
            ZipfLaw::Gray { theta, zeta, alpha, eta } => {
                let uniform = random.unit();
                let scaled = uniform * zeta;
                if scaled < 1.0 || self.count == 1 {
                    return 0;
                }
                if scaled < 1.0 + 0.5f64.powf(*theta) {
                    return 1;
                }
                (self.count as f64 * (eta * uniform - eta + 1.0).powf(*alpha)) as u64
            }
            ZipfLaw::Table(sums) => {
                let uniform = random.unit();
                sums.partition_point(|sum| *sum <= uniform) as u64
            }
        };
        item.min(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_law() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2] {
            let zipf = Zipf::new(1_000, theta);
            let mut random = Random::new(7);
            let mut counts = vec![0u32; 1_000];
            let draws = 400_000;
            (0..draws).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
            let total: f64 = (1..=1_000).map(|i| f64::from(i).powf(-theta)).sum();
            let expected = f64::from(draws) / total;
            let ratio = f64::from(counts[0]) / expected;
            assert!((0.9..1.1).contains(&ratio), "theta {theta}: the first item has {ratio} of its share");
            let tail: u32 = counts[500..].iter().sum();
            let probability: f64 = (501..=1_000).map(|i| f64::from(i).powf(-theta)).sum::<f64>() / total;
            let ratio = f64::from(tail) / (f64::from(draws) * probability);
            assert!((0.9..1.1).contains(&ratio), "theta {theta}: the tail has {ratio} of its share");
        }
    }
}
