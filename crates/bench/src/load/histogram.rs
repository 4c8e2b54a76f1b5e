//! Latency histogram, in buckets whose width is a 64th of their values.

use crate::results::Latency;
use serde::{Deserialize, Serialize};

/// Buckets per power of two.
const PARTS: u64 = 64;
/// Enough for all 64-bit values.
const BUCKETS: usize = (PARTS as usize) * 60;

/// Counts of latencies, in nanoseconds; a quantile is at most a 64th above the exact one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(from = "Sparse", into = "Sparse")]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_ns: u128,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; BUCKETS], count: 0, sum_ns: 0, max_ns: 0 }
    }
}

/// Serialized form: non-empty buckets with their numbers.
#[derive(Serialize, Deserialize)]
struct Sparse {
    counts: Vec<(usize, u64)>,
    sum_ns: u128,
    max_ns: u64,
}

impl From<Histogram> for Sparse {
    fn from(histogram: Histogram) -> Sparse {
        let Histogram { counts, sum_ns, max_ns, .. } = histogram;
        let counts = counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect();
        Sparse { counts, sum_ns, max_ns }
    }
}

impl From<Sparse> for Histogram {
    fn from(Sparse { counts, sum_ns, max_ns }: Sparse) -> Histogram {
        let mut histogram = Histogram { sum_ns, max_ns, ..Histogram::default() };
        for (bucket, count) in counts.into_iter().filter(|(bucket, _)| *bucket < BUCKETS) {
            histogram.counts[bucket] += count;
            histogram.count += count;
        }
        histogram
    }
}

fn bucket(ns: u64) -> usize {
    let power = u64::from(ns.max(1).ilog2());
    if power < 6 {
        return ns as usize;
    }
    ((power - 5) * PARTS + ((ns >> (power - 6)) - PARTS)) as usize
}

/// Returns the largest value of a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket;
    }
    let shift = bucket / PARTS - 1;
    (((bucket % PARTS + PARTS) << shift) - 1) + (1 << shift)
}

impl Histogram {
    /// Counts an operation.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the histogram of another thread.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns the latency that this share of the operations (0 to 1) didn't exceed, in
    /// nanoseconds; 0 without operations.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_ns(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// Returns the summary for results; `None` if nothing was counted.
    pub fn latency(&self) -> Option<Latency> {
        let us = |ns: u64| ns as f64 / 1000.0;
        let mean_ns = (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)?;
        Some(Latency {
            mean_us: mean_ns / 1000.0,
            p50_us: us(self.quantile_ns(0.5)),
            p95_us: us(self.quantile_ns(0.95)),
            p99_us: us(self.quantile_ns(0.99)),
            p999_us: us(self.quantile_ns(0.999)),
            max_us: us(self.max_ns),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted(mut all in prop::collection::vec((0u32..64, any::<u64>()), 1..300), share in 0.0f64..=1.0) {
            let mut parts = [Histogram::default(), Histogram::default()];
            let mut exact: Vec<u64> = all.drain(..).map(|(shift, ns)| ns >> shift).collect();
            for (index, ns) in exact.iter().enumerate() {
                parts[index % 2].record(*ns);
            }
            let [mut merged, other] = parts;
            merged.merge(&other);
            exact.sort_unstable();
            let rank = ((exact.len() as f64 * share).ceil() as usize).clamp(1, exact.len());
            let (is, told) = (exact[rank - 1], merged.quantile_ns(share));
            prop_assert!(told >= is && u128::from(told) <= u128::from(is) + u128::from(is) / 64 + 1, "{is} told as {told}");
            prop_assert_eq!(merged.quantile_ns(1.0), *exact.last().unwrap());
        }
    }
}
