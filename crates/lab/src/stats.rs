//! The statistics of the reports: quantiles, intervals of confidence, shares.
//!
//! Few and small on purpose. All intervals are at 95 %. Nothing here drops a value: what failed is
//! counted by the caller and shown beside.

use serde::Deserialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Two-sided confidence of every interval.
const CONFIDENCE: f64 = 0.95;

/// Standard normal quantile of [`CONFIDENCE`], two-sided.
const Z: f64 = 1.959_963_984_540_054;

/// Resamples of a bootstrap: enough for a steady second digit of a percentile interval.
const RESAMPLES: usize = 2_000;

/// A figure with its interval of confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// Lower and upper end; both are the figure where one value says nothing of spread.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Values it comes from.
    pub count: usize,
}

/// Figure that stands for several runs.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Centre {
    /// The median, with a percentile bootstrap interval. Robust, the default.
    #[default]
    Median,
    /// The mean, with Student's t interval.
    Mean,
}

/// The figure for several runs, `None` without any.
pub fn estimate(values: &[f64], centre: Centre) -> Option<Estimate> {
    match centre {
        Centre::Median => bootstrap_median(values),
        Centre::Mean => mean_with_t(values),
    }
}

/// Quantile `q` (0 to 1) of sorted values, linear between ranks (type 7 of Hyndman and Fan, the
/// default of R and NumPy); `None` without values.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = q.clamp(0.0, 1.0) * last as f64;
    let below = position.floor() as usize;
    let (low, high) = (sorted[below], sorted[(below + 1).min(last)]);
    Some(low + (high - low) * (position - below as f64))
}

/// The values in ascending order.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Median, `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(&sorted(values), 0.5)
}

/// Arithmetic mean, `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn bootstrap_median(values: &[f64]) -> Option<Estimate> {
    let value = median(values)?;
    let count = values.len();
    // The same values give the same interval, whenever the report is made.
    let mut random = fastrand::Rng::with_seed(count as u64);
    let mut resample = vec![0.0; count];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            resample.fill_with(|| values[random.usize(..count)]);
            median(&resample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let (low, high) = (quantile(&medians, tail)?, quantile(&medians, 1.0 - tail)?);
    Some(Estimate { value, low, high, count })
}

fn mean_with_t(values: &[f64]) -> Option<Estimate> {
    let value = mean(values)?;
    let count = values.len();
    let student = (count > 1).then(|| StudentsT::new(0.0, 1.0, (count - 1) as f64).ok()).flatten();
    let half = student.map_or(0.0, |student| {
        let squares: f64 = values.iter().map(|one| (one - value).powi(2)).sum();
        let error = (squares / (count - 1) as f64 / count as f64).sqrt();
        student.inverse_cdf(f64::midpoint(1.0, CONFIDENCE)) * error
    });
    Some(Estimate { value, low: value - half, high: value + half, count })
}

/// Share of `hits` in `trials` with Wilson's interval, which holds near 0 and 1 too; `None` without
/// trials.
pub fn share(hits: u64, trials: u64) -> Option<Estimate> {
    if trials == 0 {
        return None;
    }
    let (n, p) = (trials as f64, hits as f64 / trials as f64);
    let shrink = 1.0 + Z * Z / n;
    let middle = (p + Z * Z / (2.0 * n)) / shrink;
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt() / shrink;
    let (low, high) = ((middle - half).max(0.0), (middle + half).min(1.0));
    Some(Estimate { value: p, low, high, count: trials as usize })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-4, "{a} is not {b}");
    }

    #[test]
    fn quantiles_are_those_of_r() {
        // quantile(c(1, 2, 4, 8), c(0, .25, .5, .95, 1))
        let values = [1.0, 2.0, 4.0, 8.0];
        for (q, expected) in [(0.0, 1.0), (0.25, 1.75), (0.5, 3.0), (0.95, 7.4), (1.0, 8.0)] {
            close(quantile(&values, q).unwrap(), expected);
        }
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
    }

    #[test]
    fn the_mean_has_students_interval() {
        // t.test(c(4.1, 5.2, 3.9, 4.8, 5.0)): 4.6, 95 % from 3.892145 to 5.307855
        let e = estimate(&[4.1, 5.2, 3.9, 4.8, 5.0], Centre::Mean).unwrap();
        close(e.value, 4.6);
        close(e.low, 3.892_14);
        close(e.high, 5.307_86);
        let single = estimate(&[3.0], Centre::Mean).unwrap();
        assert_eq!((single.low, single.high), (3.0, 3.0));
    }

    #[test]
    fn the_medians_interval_covers_the_truth_about_as_often_as_it_says() {
        let mut random = fastrand::Rng::with_seed(1);
        let covered = (0..200).filter(|_| {
            let values: Vec<f64> = (0..30).map(|_| random.f64()).collect();
            let e = estimate(&values, Centre::Median).unwrap();
            e.low <= 0.5 && 0.5 <= e.high
        });
        let covered = covered.count();
        assert!((180..=199).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn shares_hold_at_the_edges() {
        // binom::binom.wilson(0, 10) and (15, 50)
        let none = share(0, 10).unwrap();
        close(none.low, 0.0);
        close(none.high, 0.277_53);
        let some = share(15, 50).unwrap();
        close(some.low, 0.191_03);
        close(some.high, 0.437_5);
        assert_eq!(share(0, 0), None);
    }
}
