//! Chooses keys with skew: by Zipf's law, over a fixed number of items.

use crate::random::Random;

/// Draws items `0..count`, item `i` with a probability proportional to `1 / (i + 1)^theta`. Zero is the uniform distribution.
///
/// Below 1 it uses Gray et al., "Quickly generating billion-record synthetic databases" (SIGMOD 1994), as YCSB does. From 1 on
/// that method does not apply: Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete
/// distributions" (TOMACS 1996). Either draws in constant time and memory, whatever the number of items.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: u64,
    law: ZipfLaw,
}

#[derive(Clone, Debug)]
enum ZipfLaw {
    Uniform,
    Gray { theta: f64, zeta: f64, alpha: f64, eta: f64 },
    Inversion(Inversion),
}

impl Zipf {
    /// # Panics
    /// Unless `count > 0` and `theta` is a number that is not negative.
    pub fn new(count: u64, theta: f64) -> Zipf {
        assert!(count > 0 && theta >= 0.0 && theta.is_finite(), "zipf over {count} items with theta {theta}");
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let law = if theta == 0.0 {
            ZipfLaw::Uniform
        } else if theta < 1.0 {
            let total = zeta(count);
            let eta = (1.0 - (2.0 / count as f64).powf(1.0 - theta)) / (1.0 - zeta(2.min(count)) / total);
            ZipfLaw::Gray { theta, zeta: total, alpha: 1.0 / (1.0 - theta), eta }
        } else {
            ZipfLaw::Inversion(Inversion::new(count, theta))
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
            ZipfLaw::Inversion(inversion) => inversion.draw(self.count, random) - 1,
        };
        item.min(self.count - 1)
    }
}

/// Rejection-inversion, for numbers from 1 on. The hat is the law's density `h`, taken between the halves: a number `k` gets what lies
/// from `k - 1/2` to `k + 1/2`, of which the part beyond `h(k)` is rejected.
#[derive(Clone, Debug)]
struct Inversion {
    theta: f64,
    /// The integral of the hat from 1 to its two ends.
    ends: [f64; 2],
    /// Numbers at most this far above the drawn point are accepted without a look at the hat.
    sure: f64,
}

impl Inversion {
    fn new(count: u64, theta: f64) -> Inversion {
        let mut inversion = Inversion { theta, ends: [0.0; 2], sure: 0.0 };
        inversion.ends = [inversion.integral(1.5) - 1.0, inversion.integral(count as f64 + 0.5)];
        inversion.sure = 2.0 - inversion.inverse(inversion.integral(2.5) - inversion.density(2.0));
        inversion
    }

    fn density(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// The integral of the density from 1 to `x`: `(x^(1 - theta) - 1) / (1 - theta)`, and `ln x` where theta is 1.
    fn integral(&self, x: f64) -> f64 {
        let logarithm = x.ln();
        let t = (1.0 - self.theta) * logarithm;
        // Near 0 the quotient loses its digits.
        if t.abs() > 1e-8 { t.exp_m1() / t * logarithm } else { (1.0 + t / 2.0) * logarithm }
    }

    fn inverse(&self, integral: f64) -> f64 {
        // Rounding must not lead below the integral's least value.
        let t = (integral * (1.0 - self.theta)).max(-1.0);
        if t.abs() > 1e-8 { (t.ln_1p() / t * integral).exp() } else { ((1.0 - t / 2.0) * integral).exp() }
    }

    fn draw(&self, count: u64, random: &mut Random) -> u64 {
        let [low, high] = self.ends;
        loop {
            // From the top, so that an end that rounds off falls on the rarest number.
            let point = high + random.unit() * (low - high);
            let x = self.inverse(point);
            let number = x.round().clamp(1.0, count as f64);
            if number - x <= self.sure || point >= self.integral(number + 0.5) - self.density(number) {
                return number as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_law() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2, 2.0] {
            let zipf = Zipf::new(1_000, theta);
            let mut random = Random::new(7);
            let mut counts = vec![0u32; 1_000];
            let draws = 400_000;
            (0..draws).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
            let total: f64 = (1..=1_000).map(|i| f64::from(i).powf(-theta)).sum();
            let expected = f64::from(draws) / total;
            let ratio = f64::from(counts[0]) / expected;
            assert!((0.9..1.1).contains(&ratio), "theta {theta}: the first item has {ratio} of its share");
            for (first, last) in [(2, 10), (11, 500), (501, 1_000)] {
                let drawn: u32 = counts[first - 1..last].iter().sum();
                let probability: f64 = (first..=last).map(|i| (i as f64).powf(-theta)).sum::<f64>() / total;
                let expected = f64::from(draws) * probability;
                // Gray's method is an approximation; the rest is chance, of five deviations at most.
                let off = (f64::from(drawn) - expected).abs();
                assert!(off < 0.1 * expected + 5.0 * expected.sqrt(), "theta {theta}: {drawn} for {expected}");
            }
        }
    }

    #[test]
    fn every_item_of_a_few_is_drawn_and_no_other() {
        for theta in [0.5, 1.0, 2.0, 4.0] {
            for count in [1, 2, 3] {
                let (zipf, mut random) = (Zipf::new(count, theta), Random::new(3));
                let drawn: std::collections::BTreeSet<u64> = (0..10_000).map(|_| zipf.draw(&mut random)).collect();
                assert_eq!(drawn, (0..count).collect(), "theta {theta}");
            }
        }
    }
}
