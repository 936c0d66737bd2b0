//! The confidence interval of a mean, and the median.
//!
//! The mean of ratios is the geometric one, so that a halving and a doubling weigh the same; that of differences is the
//! arithmetic one. The interval follows Student's t-distribution, because few pairs are measured.

use crate::figure::RatioBound;

/// The mean of what was measured, and its 95 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConfidenceInterval {
    /// The mean.
    pub mean: f64,
    /// The interval's lower and upper end; `None` for a single measurement.
    pub ends: Option<(f64, f64)>,
}

impl ConfidenceInterval {
    /// The interval of ratios that were measured independently.
    ///
    /// # Panics
    /// If there is none.
    pub fn of_ratios(ratios: &[f64]) -> ConfidenceInterval {
        let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let ConfidenceInterval { mean, ends } = ConfidenceInterval::of_differences(&logarithms);
        ConfidenceInterval { mean: mean.exp(), ends: ends.map(|(low, high)| (low.exp(), high.exp())) }
    }

    /// The interval of differences that were measured independently.
    ///
    /// # Panics
    /// If there is none.
    pub fn of_differences(differences: &[f64]) -> ConfidenceInterval {
        assert!(!differences.is_empty(), "somebody measured at least once");
        let count = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / count;
        let ends = (differences.len() > 1).then(|| {
            let squares: f64 = differences.iter().map(|difference| (difference - mean).powi(2)).sum();
            let half = student_95(count - 1.0) * (squares / (count - 1.0) / count).sqrt();
            (mean - half, mean + half)
        });
        ConfidenceInterval { mean, ends }
    }

    /// Whether the measurement is compatible with a bound.
    ///
    /// A bound that forbids a loss holds unless the interval lies wholly beyond it: the burden of proof is on the loss. A bound
    /// that demands a gain must be met by the mean: the burden of proof is on the gain. A single ratio must itself meet either.
    pub fn keeps(&self, bound: RatioBound) -> bool {
        if bound.asks_for_gain() {
            return bound.is_kept_by(self.mean);
        }
        let (low, high) = self.ends.unwrap_or((self.mean, self.mean));
        bound.is_kept_by(low) || bound.is_kept_by(high)
    }
}

/// The median: of an even number of values, the upper one of the two in the middle. 0 if there are no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The 97.5th percentile of Student's distribution with this many degrees of freedom: exact for one and two, else Fisher's
/// expansion around the normal distribution, which is off by 0.1 % at most.
fn student_95(freedom: f64) -> f64 {
    if freedom < 2.0 {
        return 12.706;
    }
    if freedom < 3.0 {
        return 4.303;
    }
    let z: f64 = 1.959_964;
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
        (79.0 * z.powi(9) + 776.0 * z.powi(7) + 1_482.0 * z.powi(5) - 1_920.0 * z.powi(3) - 945.0 * z) / 92_160.0,
    ];
    terms.iter().rev().fold(0.0, |sum, term| (sum + term) / freedom) + z
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_s_percentiles_are_those_of_the_tables() {
        for (freedom, percentile) in
            [(1.0, 12.706), (2.0, 4.303), (3.0, 3.182), (5.0, 2.571), (19.0, 2.093), (98.0, 1.984)]
        {
            let found = student_95(freedom);
            assert!((found / percentile - 1.0).abs() < 1.5e-3, "{freedom}: {found}, not {percentile}");
        }
    }

    #[test]
    fn a_half_and_a_double_are_one_on_average() {
        let ConfidenceInterval { mean, ends } = ConfidenceInterval::of_ratios(&[0.5, 2.0]);
        assert!((mean - 1.0).abs() < 1e-12);
        let (low, high) = ends.expect("two ratios have an interval");
        assert!((low * high - 1.0).abs() < 1e-9 && low < 0.5, "{low} {high}");
    }

    #[test]
    fn differences_have_an_arithmetic_mean() {
        let ConfidenceInterval { mean, ends } = ConfidenceInterval::of_differences(&[-10.0, 30.0]);
        assert!((mean - 10.0).abs() < 1e-12);
        let (low, high) = ends.expect("two differences have an interval");
        assert!((low + high - 20.0).abs() < 1e-9 && (high - mean - 12.706 * 20.0).abs() < 1e-6, "{low} {high}");
        assert!(ConfidenceInterval::of_differences(&[50.0]).keeps(RatioBound::AtMost(120.0)));
    }

    #[test]
    fn a_bound_on_a_loss_is_missed_only_when_the_whole_interval_is_beyond_it() {
        let bound = RatioBound::AtLeast(0.98);
        assert!(ConfidenceInterval::of_ratios(&[0.9, 1.0, 0.95, 1.02]).keeps(bound));
        assert!(!ConfidenceInterval::of_ratios(&[0.95, 0.951, 0.949, 0.95]).keeps(bound));
        assert!(ConfidenceInterval::of_ratios(&[0.99]).keeps(bound));
        assert!(!ConfidenceInterval::of_ratios(&[0.97]).keeps(bound));
        assert!(ConfidenceInterval::of_ratios(&[1.0, 1.2, 1.1]).keeps(RatioBound::AtMost(1.05)));
    }

    /// A mean gain of 1.45 once counted as one of 1.6, because the upper end of its wide interval was above that.
    #[test]
    fn a_bound_on_a_gain_is_missed_by_a_mean_beyond_it_however_wide_the_interval() {
        let (noisy, steady) =
            (ConfidenceInterval::of_ratios(&[1.1, 1.9, 1.4, 1.5]), ConfidenceInterval::of_ratios(&[1.61, 1.63, 1.62]));
        let gain = RatioBound::AtLeast(1.6);
        assert!(noisy.ends.is_some_and(|(_, high)| high > 1.6) && noisy.mean < 1.6, "{noisy:?}");
        assert!(!noisy.keeps(gain));
        assert!(steady.keeps(gain));
        let less = RatioBound::AtMost(0.7);
        assert!(!ConfidenceInterval::of_ratios(&[0.5, 1.0, 0.8]).keeps(less));
        assert!(ConfidenceInterval::of_ratios(&[0.5, 0.9, 0.6]).keeps(less), "the mean keeps it");
    }
}
