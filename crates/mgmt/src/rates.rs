//! How fast targets are, from what their nodes tell with heartbeats, and how much of their ceilings that is.
//!
//! A drive that gives `c_r` and `c_w` bytes a second to readers and writers alone is busy for `r / c_r + w / c_w` of the time with `r` and `w` of them, and the same
//! holds for operations. The larger of the two is the share of the ceiling that binds, as in the roofline of `bench`.

use std::collections::VecDeque;
use std::time::Duration;
use types::TargetId;
use wire::mgmt::{CeilingShare, TargetRate, TargetWork};

/// What a rate is the mean of: some heartbeats.
const WINDOW: Duration = Duration::from_secs(10);

/// Bytes and transfers a second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Rate {
    read_bytes: f64,
    written_bytes: f64,
    reads: f64,
    writes: f64,
}

/// The rates of one target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates {
    /// With times, nanoseconds; the first is where the window begins.
    samples: VecDeque<(u64, TargetWork)>,
    /// Of all windows the one with the most bytes, and the one with the most transfers.
    most_bytes: Rate,
    most_transfers: Rate,
}

impl Rates {
    /// The target had done so much at this time.
    pub(crate) fn note(&mut self, work: TargetWork, now_ns: u64) {
        // It counts from zero again after a start of its node.
        if self.samples.back().is_some_and(|(_, before)| since(before, &work).is_none()) {
            *self = Rates::default();
        }
        self.samples.push_back((now_ns, work));
        while self.samples.len() > 2 && u128::from(now_ns - self.samples[1].0) >= WINDOW.as_nanos() {
            self.samples.pop_front();
        }
        let Some(rate) = self.mean().filter(|(span, _)| *span >= WINDOW).map(|(_, rate)| rate) else {
            return;
        };
        if rate.read_bytes + rate.written_bytes > self.most_bytes.read_bytes + self.most_bytes.written_bytes {
            self.most_bytes = rate;
        }
        if rate.reads + rate.writes > self.most_transfers.reads + self.most_transfers.writes {
            self.most_transfers = rate;
        }
    }

    /// What health tells of it, by what a ceiling of the target is; nothing where nobody has told anything lately.
    pub(crate) fn told(
        &self,
        target: TargetId,
        now_ns: u64,
        ceiling: impl Fn(&str) -> Option<f64>,
    ) -> Option<TargetRate> {
        let newest = self.samples.back()?.0;
        let (_, rate) =
            self.mean().filter(|_| u128::from(now_ns.saturating_sub(newest)) < WINDOW.as_nanos())?;
        let most = [rate, self.most_bytes, self.most_transfers];
        let most = most.iter().filter_map(|rate| rate.share(&ceiling));
        Some(TargetRate {
            target,
            read_bytes: rate.read_bytes,
            written_bytes: rate.written_bytes,
            reads: rate.reads,
            writes: rate.writes,
            now: rate.share(&ceiling),
            most: most.max_by(|a, b| a.share.total_cmp(&b.share)),
        })
    }

    /// The mean of all samples, and their time.
    fn mean(&self) -> Option<(Duration, Rate)> {
        let ((first_ns, first), (last_ns, last)) = (self.samples.front()?, self.samples.back()?);
        let span = Duration::from_nanos(last_ns.saturating_sub(*first_ns));
        let done = since(first, last).filter(|_| !span.is_zero())?;
        let per_s = |count: u64| count as f64 / span.as_secs_f64();
        let rate = Rate {
            read_bytes: per_s(done.read_bytes),
            written_bytes: per_s(done.written_bytes),
            reads: per_s(done.reads),
            writes: per_s(done.writes),
        };
        Some((span, rate))
    }
}

impl Rate {
    fn share(&self, ceiling: &impl Fn(&str) -> Option<f64>) -> Option<CeilingShare> {
        let bytes = busy([("storage-read", self.read_bytes), ("storage-write", self.written_bytes)], ceiling);
        let transfers =
            busy([("storage-random-read", self.reads), ("storage-random-write", self.writes)], ceiling);
        [bytes, transfers].into_iter().flatten().max_by(|a, b| a.share.total_cmp(&b.share))
    }
}

/// For which part of the time two kinds of load keep a drive busy, under the name of the larger; nothing if a ceiling of one that there is isn't known.
fn busy(loads: [(&str, f64); 2], ceiling: &impl Fn(&str) -> Option<f64>) -> Option<CeilingShare> {
    let mut all = CeilingShare { limit: String::new(), share: 0.0 };
    let mut largest = -1.0;
    for (limit, rate) in loads {
        let share = match ceiling(limit).filter(|most| *most > 0.0) {
            Some(most) => rate / most,
            None if rate == 0.0 => continue,
            None => return None,
        };
        all.share += share;
        if share > largest {
            (largest, all.limit) = (share, limit.to_string());
        }
    }
    (!all.limit.is_empty()).then_some(all)
}

/// What was done between two counts; nothing if they were begun anew.
fn since(before: &TargetWork, after: &TargetWork) -> Option<TargetWork> {
    Some(TargetWork {
        reads: after.reads.checked_sub(before.reads)?,
        read_bytes: after.read_bytes.checked_sub(before.read_bytes)?,
        writes: after.writes.checked_sub(before.writes)?,
        written_bytes: after.written_bytes.checked_sub(before.written_bytes)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MB: u64 = 1_000_000;

    fn wrote(mb: u64) -> TargetWork {
        TargetWork { writes: mb, written_bytes: mb * MB, ..TargetWork::default() }
    }

    fn ceiling(limit: &str) -> Option<f64> {
        match limit {
            "storage-read" => Some(200e6),
            "storage-write" => Some(100e6),
            "storage-random-read" => Some(1000.0),
            _ => None,
        }
    }

    fn told(rates: &Rates, at_s: u64) -> Option<TargetRate> {
        rates.told(TargetId(3), at_s * S, ceiling)
    }

    #[test]
    fn rates_are_means_of_ten_seconds() {
        let mut rates = Rates::default();
        rates.note(wrote(0), 0);
        assert_eq!(told(&rates, 0), None, "one count is no rate");
        // 50 MB/s for 10 seconds, then nothing for as long.
        (1..=5).for_each(|beat| rates.note(wrote(100 * beat), 2 * beat * S));
        let now = told(&rates, 11).unwrap();
        assert_eq!((now.written_bytes, now.writes, now.reads), (50e6, 50.0, 0.0));
        assert_eq!(now.now, Some(CeilingShare { limit: "storage-write".into(), share: 0.5 }));
        (6..=10).for_each(|beat| rates.note(wrote(500), 2 * beat * S));
        let later = told(&rates, 20).unwrap();
        assert_eq!(later.written_bytes, 0.0);
        assert_eq!(later.most, Some(CeilingShare { limit: "storage-write".into(), share: 0.5 }));
        assert_eq!(told(&rates, 31), None, "the node has been silent");
        assert!(rates.samples.len() <= 7, "{}", rates.samples.len());
    }

    #[test]
    fn a_node_that_was_started_anew_counts_from_zero() {
        let mut rates = Rates::default();
        rates.note(wrote(900), 0);
        rates.note(wrote(10), 2 * S);
        assert_eq!(told(&rates, 2), None);
        rates.note(wrote(20), 4 * S);
        assert_eq!(told(&rates, 4).unwrap().written_bytes, 5e6);
    }

    #[test]
    fn what_binds_is_what_keeps_the_drive_busy() {
        let rate = |read_bytes: f64, written_bytes: f64, reads: f64, writes: f64| Rate {
            read_bytes,
            written_bytes,
            reads,
            writes,
        };
        let share = |rate: Rate| rate.share(&ceiling).map(|all| (all.limit, all.share));
        // Half of the time for readers, a quarter for writers.
        assert_eq!(share(rate(100e6, 25e6, 100.0, 0.0)), Some(("storage-read".into(), 0.75)));
        // Small ones: few bytes, many transfers.
        assert_eq!(share(rate(2e6, 0.0, 900.0, 0.0)), Some(("storage-random-read".into(), 0.9)));
        // Nobody has measured random writes: bytes alone tell.
        assert_eq!(share(rate(0.0, 10e6, 0.0, 9e9)), Some(("storage-write".into(), 0.1)));
        assert_eq!(rate(1.0, 1.0, 1.0, 1.0).share(&|_: &str| None), None);
    }
}
