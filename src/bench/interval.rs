//! Repeated measurements: their middle, how sure it is, and whether two of them differ.

use std::fmt;

use serde::Serialize;

/// Where the mean of a repeated measurement lies with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// What two repeated measurements say of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Difference {
    /// The first lies above the second by more than the noise.
    #[serde(rename = "faster")]
    Faster,
    /// The first lies below the second by more than the noise.
    #[serde(rename = "slower")]
    Slower,
    /// Their intervals overlap.
    #[serde(rename = "no difference")]
    None,
    /// There are too few rounds to tell.
    #[serde(rename = "unknown")]
    Unknown,
}

/// Quantile 0.975 of Student's t distribution with 1, 2, … degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

impl Interval {
    /// The interval of the mean of these measurements; `None` of fewer than two.
    ///
    /// ```
    /// use brigade::bench::{Difference, Interval};
    ///
    /// let old = Interval::of(&[100.0, 101.0, 99.0, 100.0]);
    /// let new = Interval::of(&[101.0, 103.0, 98.0, 100.0]);
    /// assert_eq!(Interval::compare(new, old), Difference::None);
    /// let much_better = Interval::of(&[150.0, 151.0, 149.0, 150.0]);
    /// assert_eq!(Interval::compare(much_better, old), Difference::Faster);
    /// assert_eq!(Interval::compare(Interval::of(&[7.0]), old), Difference::Unknown);
    /// ```
    pub fn of(values: &[f64]) -> Option<Self> {
        let n = values.len();
        if n < 2 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let t = STUDENT.get(n - 2).copied().unwrap_or(1.96);
        let half = t * (variance / n as f64).sqrt();
        Some(Self { low: mean - half, high: mean + half })
    }

    /// Compares two rates.
    pub fn compare(first: Option<Self>, second: Option<Self>) -> Difference {
        match (first, second) {
            (Some(a), Some(b)) if a.low > b.high => Difference::Faster,
            (Some(a), Some(b)) if a.high < b.low => Difference::Slower,
            (Some(_), Some(_)) => Difference::None,
            _ => Difference::Unknown,
        }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:.2}, {:.2}]", self.low, self.high)
    }
}

/// The middle value; the mean of the two middle ones of an even number; NaN of none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => f64::midpoint(values[(n - 1) / 2], values[n / 2]),
    }
}

/// Percentiles of latencies, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half of the items took no longer.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1,000.
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    /// All of them.
    pub max: f64,
}

impl Percentiles {
    /// Of latencies in nanoseconds, by nearest rank; zeros of none. Sorts them.
    ///
    /// ```
    /// use brigade::bench::Percentiles;
    ///
    /// let mut nanos: Vec<u64> = (1..=1000).rev().map(|ms| ms * 1_000_000).collect();
    /// let p = Percentiles::of(&mut nanos);
    /// assert_eq!((p.p50, p.p99, p.p99_9, p.max), (500e3, 990e3, 999e3, 1000e3));
    /// ```
    pub fn of(nanos: &mut [u64]) -> Self {
        nanos.sort_unstable();
        let rank = |per_mille: usize| {
            let place = (nanos.len() * per_mille).div_ceil(1000).saturating_sub(1);
            nanos.get(place).map_or(0.0, |n| *n as f64 / 1e3)
        };
        Self {
            p50: rank(500),
            p90: rank(900),
            p95: rank(950),
            p99: rank(990),
            p99_9: rank(999),
            max: rank(1000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_narrow_with_more_measurements() {
        let few = Interval::of(&[9.0, 10.0, 11.0]).unwrap();
        // 10 ± 4.303 × 1 / √3.
        assert!((few.low - (10.0 - 2.484)).abs() < 1e-3 && (few.high - 12.484).abs() < 1e-3);
        let many: Vec<f64> = (0..60).map(|n| 9.0 + f64::from(n % 3)).collect();
        let many = Interval::of(&many).unwrap();
        assert!(many.high - many.low < 0.5 && many.low < 10.0 && many.high > 10.0);
        assert_eq!(Interval::of(&[1.0]), None);
    }

    #[test]
    fn medians_and_percentiles_of_few() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0]) - 2.5).abs() < 1e-12);
        assert!(median(&[]).is_nan());
        assert_eq!(Percentiles::of(&mut []), Percentiles::default());
        let one = Percentiles::of(&mut [5_000]);
        assert_eq!((one.p50, one.max), (5.0, 5.0));
    }
}
