//! Skewed choice of keys: Zipf's law over a fixed number of items.

use crate::random::Random;

/// Draws items `0..count`, item `i` with a probability proportional to `1 / (i + 1)^theta`.
///
/// Uses Gray et al., "Quickly generating billion-record synthetic databases" (SIGMOD 1994), as YCSB does; `theta` is
/// below 1. Zero is the uniform distribution.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: u64,
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// # Panics
    /// Unless `count > 0` and `0 <= theta < 1`.
    pub fn new(count: u64, theta: f64) -> Zipf {
        assert!(count > 0 && (0.0..1.0).contains(&theta), "zipf over {count} items with theta {theta}");
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let total = zeta(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - theta)) / (1.0 - zeta(2.min(count)) / total);
        Zipf { count, theta, zeta: total, alpha: 1.0 / (1.0 - theta), eta }
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        if self.theta == 0.0 {
            return random.below(self.count);
        }
        let uniform = random.unit();
        let scaled = uniform * self.zeta;
        if scaled < 1.0 || self.count == 1 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let item = (self.count as f64 * (self.eta * uniform - self.eta + 1.0).powf(self.alpha)) as u64;
        item.min(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_law() {
        for theta in [0.0, 0.5, 0.99] {
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
            let share: f64 = (501..=1_000).map(|i| f64::from(i).powf(-theta)).sum::<f64>() / total;
            let ratio = f64::from(tail) / (f64::from(draws) * share);
            assert!((0.9..1.1).contains(&ratio), "theta {theta}: the tail has {ratio} of its share");
        }
    }
}
