//! Durations, counted in buckets.
//!
//! Buckets are linear within each power of two: below 64 ns one a nanosecond, above that 64 for each
//! doubling. So a bucket is never wider than 1/64 of what it holds, recording is one atomic addition,
//! and two histograms are merged by adding their buckets.

use serde::{Deserialize, Serialize};

use crate::sync::{Ordering, Tally};

/// Linear buckets in each power of two, as a power of two.
const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;
/// Durations from 2^42 ns (73 minutes) on are counted as the longest below that.
const TOP_BITS: u32 = 42;
const BUCKETS: usize = ((TOP_BITS - SUB_BITS + 1) as usize) << SUB_BITS;

fn bucket_of(ns: u64) -> usize {
    let ns = ns.min((1 << TOP_BITS) - 1);
    if ns < SUB {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    ((u64::from(shift) << SUB_BITS) + (ns >> shift)) as usize
}

/// The longest duration that falls into a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let bucket = bucket.min(BUCKETS - 1) as u64;
    if bucket < SUB {
        return bucket;
    }
    let shift = (bucket >> SUB_BITS) - 1;
    let lower = (SUB + (bucket & (SUB - 1))) << shift;
    lower + (1 << shift) - 1
}

/// Where durations are counted while the pipeline runs: by one thread at a time (the one that holds
/// the lock of the credits), read by any without a lock.
pub(crate) struct Recorder {
    counts: Box<[Tally]>,
    sum_ns: Tally,
    max_ns: Tally,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| Tally::new(0)).collect(),
            sum_ns: Tally::new(0),
            max_ns: Tally::new(0),
        }
    }

    pub(crate) fn record(&self, ns: u64) {
        let add = |figure: &Tally, more: u64| {
            let sum = figure.load(Ordering::Relaxed).wrapping_add(more);
            figure.store(sum, Ordering::Relaxed);
        };
        add(&self.counts[bucket_of(ns)], 1);
        add(&self.sum_ns, ns);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> Histogram {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let filled = counts.enumerate().filter(|(_, count)| *count > 0);
        Histogram {
            buckets: filled.map(|(bucket, count)| (bucket as u32, count)).collect(),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
            max_ns: self.max_ns.load(Ordering::Relaxed),
        }
    }
}

/// A distribution of durations in nanoseconds. Quantiles are at most 1/64 (1.6 %) too high and never
/// too low, for durations up to 73 minutes; the longest duration and the sum are exact.
///
/// ```
/// use brigade_actors::Histogram;
///
/// let mut histogram = Histogram::default();
/// for us in 1..=1000 {
///     histogram.record(us * 1000);
/// }
/// let p = histogram.percentiles();
/// assert!((500_000..=508_000).contains(&p.p50_ns));
/// assert!((990_000..=1_000_000).contains(&p.p99_ns));
/// assert_eq!((p.count, p.max_ns), (1000, 1_000_000));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The buckets that hold something, in rising order, and how many durations each holds.
    buckets: Vec<(u32, u64)>,
    sum_ns: u64,
    max_ns: u64,
}

/// The quantiles that reports give, in nanoseconds; all 0 where nothing was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Percentiles {
    /// Durations recorded.
    pub count: u64,
    /// Their mean.
    pub mean_ns: u64,
    /// Half of them are not longer than this.
    pub p50_ns: u64,
    /// 90 % of them are not longer than this.
    pub p90_ns: u64,
    /// 95 % of them are not longer than this.
    pub p95_ns: u64,
    /// 99 % of them are not longer than this.
    pub p99_ns: u64,
    /// 99.9 % of them are not longer than this.
    pub p99_9_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, ns: u64) {
        let bucket = bucket_of(ns) as u32;
        match self.buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
            Ok(place) => self.buckets[place].1 = self.buckets[place].1.saturating_add(1),
            Err(place) => self.buckets.insert(place, (bucket, 1)),
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Durations counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// The sum of the durations.
    #[must_use]
    pub const fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The longest duration; 0 where there is none.
    #[must_use]
    pub const fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The mean duration; 0 where there is none.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count()).unwrap_or(0)
    }

    /// The duration that the share `quantile` (0 to 1) of all durations does not exceed.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> u64 {
        let count = self.count();
        let rank = (quantile.clamp(0.0, 1.0) * count as f64).ceil().max(1.0) as u64;
        let mut seen = 0_u64;
        for (bucket, count) in &self.buckets {
            seen = seen.saturating_add(*count);
            if seen >= rank {
                return upper_ns(*bucket as usize).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The quantiles that reports give.
    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        Percentiles {
            count: self.count(),
            mean_ns: self.mean_ns(),
            p50_ns: self.quantile(0.5),
            p90_ns: self.quantile(0.9),
            p95_ns: self.quantile(0.95),
            p99_ns: self.quantile(0.99),
            p99_9_ns: self.quantile(0.999),
            max_ns: self.max_ns,
        }
    }

    /// How many durations are at most `ns`; exact where `ns` + 1 is a power of two.
    #[must_use]
    pub fn count_up_to(&self, ns: u64) -> u64 {
        let within = self.buckets.iter().filter(|(bucket, _)| upper_ns(*bucket as usize) <= ns);
        within.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Adds what another histogram counted.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.buckets {
            match self.buckets.binary_search_by_key(bucket, |(bucket, _)| *bucket) {
                Ok(place) => self.buckets[place].1 = self.buckets[place].1.saturating_add(*count),
                Err(place) => self.buckets.insert(place, (*bucket, *count)),
            }
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// What was counted since `earlier`, a snapshot of the same counts. The longest duration is then
    /// as exact as a quantile.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |bucket: u32| {
            let place = earlier.buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket);
            place.map_or(0, |place| earlier.buckets[place].1)
        };
        let more =
            self.buckets.iter().map(|(bucket, n)| (*bucket, n.saturating_sub(before(*bucket))));
        let buckets: Vec<(u32, u64)> = more.filter(|(_, count)| *count > 0).collect();
        let longest = buckets.last().map_or(0, |(bucket, _)| upper_ns(*bucket as usize));
        Self {
            buckets,
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            max_ns: longest.min(self.max_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            let upper = upper_ns(bucket);
            assert_eq!((bucket_of(next), bucket_of(upper)), (bucket, bucket));
            assert!(upper - next <= next / 64, "bucket {bucket}: {next} to {upper}");
            next = upper + 1;
        }
        assert_eq!(next, 1 << TOP_BITS);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_durations_within_the_stated_error() {
        let mut state = 7_u64;
        let mut durations: Vec<u64> = (0..20_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                1 << (state >> 59) | (state >> 40) & 0xfff
            })
            .collect();
        let recorder = Recorder::new();
        durations.iter().for_each(|ns| recorder.record(*ns));
        let histogram = recorder.snapshot();
        durations.sort_unstable();
        for quantile in [0.0, 0.001, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0] {
            let rank = (quantile * durations.len() as f64).ceil().max(1.0) as usize;
            let exact = durations[rank - 1];
            let got = histogram.quantile(quantile);
            assert!(exact <= got && got <= exact + exact / 64, "{quantile}: {got} for {exact}");
        }
        assert_eq!(histogram.quantile(1.0), *durations.last().unwrap());
        assert_eq!(histogram.sum_ns(), durations.iter().sum::<u64>());
        assert_eq!(histogram.count(), 20_000);
        for bits in [0, 5, 9, 20, 31] {
            let limit = (1 << bits) - 1;
            let exact = durations.iter().filter(|ns| **ns <= limit).count();
            assert_eq!(histogram.count_up_to(limit), exact as u64);
        }
    }

    #[test]
    fn parts_merge_to_the_whole_and_differences_undo_it() {
        let (mut first, mut second, mut whole) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for ns in 0..5000 {
            let part = if ns % 3 == 0 { &mut first } else { &mut second };
            part.record(ns * ns);
            whole.record(ns * ns);
        }
        let mut merged = first.clone();
        merged.merge(&second);
        assert_eq!(merged, whole);
        let rest = whole.since(&first);
        assert_eq!(rest.buckets, second.buckets);
        assert_eq!(rest.sum_ns, second.sum_ns);
        assert!(rest.max_ns >= second.max_ns && rest.max_ns <= second.max_ns / 64 * 65);
        assert_eq!(whole.since(&whole), Histogram::default());
    }

    #[test]
    fn nothing_and_nonsense_have_quantiles_too() {
        assert_eq!(Histogram::default().percentiles(), Percentiles::default());
        // A file can say anything.
        let buckets = vec![(u32::MAX, u64::MAX), (3, u64::MAX), (3, 1)];
        let mut odd = Histogram { buckets, sum_ns: u64::MAX, max_ns: 9 };
        odd.merge(&odd.clone());
        odd.record(u64::MAX);
        assert!(odd.quantile(f64::NAN) <= odd.percentiles().max_ns);
        assert!(odd.since(&Histogram::default()).count() > 0);
    }
}
