//! Rates of targets from their nodes' heartbeats, and their share of the ceilings.
//!
//! A drive with ceilings of `c_r` bytes a second for reads alone and `c_w` for writes alone is busy
//! for `r / c_r + w / c_w` of the time at rates `r` and `w`; the same holds for operations. The
//! larger of the two is the utilisation of the limiting resource, as in the roofline of `bench`.
//! Targets on one drive share it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use types::TargetId;
use wire::mgmt::{CeilingShare, IoCounters, TargetRate};

/// Averaging window of a rate: some heartbeats.
const WINDOW: Duration = Duration::from_secs(10);

/// Bytes and transfers a second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Rate {
    read_bytes: f64,
    written_bytes: f64,
    reads: f64,
    writes: f64,
}

/// I/O counters of a target, as reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportedCounters {
    pub(crate) target: TargetId,
    /// Its file system, where known: see [`crate::Space::device`].
    pub(crate) device: Option<u64>,
    pub(crate) work: IoCounters,
}

/// The shared resource of targets: a file system, or the unknown drive of one target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Drive {
    Device(u64),
    Unknown(TargetId),
}

/// The rates of all targets, and of their drives.
#[derive(Debug, Default)]
pub(crate) struct TargetRates {
    targets: BTreeMap<TargetId, (Drive, RateWindow)>,
    /// With the sum of the counters of each drive's targets since their first report.
    drives: BTreeMap<Drive, (IoCounters, RateWindow)>,
}

impl TargetRates {
    /// Records the counters of targets at this time.
    pub(crate) fn note(&mut self, reports: impl IntoIterator<Item = ReportedCounters>, now_ns: u64) {
        let mut changed = Vec::new();
        for ReportedCounters { target, device, work } in reports {
            let drive = device.map_or(Drive::Unknown(target), Drive::Device);
            let (before, rates) = self.targets.entry(target).or_insert((drive, RateWindow::default()));
            let delta = rates.samples.back().and_then(|(_, before)| counters_since(before, &work));
            *before = drive;
            rates.note(work, now_ns);
            let (all, _) = self.drives.entry(drive).or_default();
            *all = sum(all, &delta.unwrap_or_default());
            changed.push(drive);
        }
        changed.sort_unstable();
        changed.dedup();
        for drive in changed {
            let (all, rates) = self.drives.entry(drive).or_default();
            rates.note(*all, now_ns);
        }
    }

    /// The file system of a target.
    pub(crate) fn device(&self, target: TargetId) -> Option<u64> {
        match self.targets.get(&target)?.0 {
            Drive::Device(device) => Some(device),
            Drive::Unknown(_) => None,
        }
    }

    /// Rates of these targets for the health report, with the ceilings of each. For a drive the
    /// highest measured ceiling of its targets counts: each was measured alone.
    pub(crate) fn rates_of(
        &self,
        targets: &[TargetId],
        now_ns: u64,
        ceiling: impl Fn(TargetId, &str) -> Option<f64>,
    ) -> Vec<TargetRate> {
        let mut on: BTreeMap<Drive, Vec<TargetId>> = BTreeMap::new();
        for target in targets {
            if let Some((drive, _)) = self.targets.get(target) {
                on.entry(*drive).or_default().push(*target);
            }
        }
        let target_rate = |target: &TargetId| {
            let (drive, rates) = self.targets.get(target)?;
            let Rate { read_bytes, written_bytes, reads, writes } = rates.now(now_ns)?;
            let sharers = &on[drive];
            let best = |limit: &str| {
                sharers.iter().filter_map(|sharer| ceiling(*sharer, limit)).max_by(f64::total_cmp)
            };
            let has_recent_samples = |other: &TargetId| {
                self.targets.get(other).is_some_and(|(_, rates)| rates.now(now_ns).is_some())
            };
            let others = sharers.iter().copied().filter(|other| other != target && has_recent_samples(other));
            let (_, of_drive) = self.drives.get(drive)?;
            Some(TargetRate {
                target: *target,
                read_bytes,
                written_bytes,
                reads,
                writes,
                one_drive_with: others.collect(),
                now: of_drive.now(now_ns).and_then(|rate| rate.share(&best)),
                most: of_drive.peak(&best),
            })
        };
        targets.iter().filter_map(target_rate).collect()
    }
}

/// The rates of one target, or one drive.
#[derive(Clone, Debug, Default)]
struct RateWindow {
    /// With times in nanoseconds; the first one is the start of the window.
    samples: VecDeque<(u64, IoCounters)>,
    /// The window with the most bytes, and the one with the most transfers.
    peak_bytes: Rate,
    peak_transfers: Rate,
}

impl RateWindow {
    /// Records the counters at this time.
    fn note(&mut self, work: IoCounters, now_ns: u64) {
        // The counters restart from zero with its node.
        if self.samples.back().is_some_and(|(_, before)| counters_since(before, &work).is_none()) {
            *self = RateWindow::default();
        }
        self.samples.push_back((now_ns, work));
        while self.samples.len() > 2 && u128::from(now_ns - self.samples[1].0) >= WINDOW.as_nanos() {
            self.samples.pop_front();
        }
        let Some(rate) = self.mean().filter(|(span, _)| *span >= WINDOW).map(|(_, rate)| rate) else {
            return;
        };
        if rate.read_bytes + rate.written_bytes > self.peak_bytes.read_bytes + self.peak_bytes.written_bytes {
            self.peak_bytes = rate;
        }
        if rate.reads + rate.writes > self.peak_transfers.reads + self.peak_transfers.writes {
            self.peak_transfers = rate;
        }
    }

    /// The mean of the recent samples; `None` without a recent report.
    fn now(&self, now_ns: u64) -> Option<Rate> {
        let newest = self.samples.back()?.0;
        let is_new = u128::from(now_ns.saturating_sub(newest)) < WINDOW.as_nanos();
        self.mean().filter(|_| is_new).map(|(_, rate)| rate)
    }

    /// The highest utilisation of all windows.
    fn peak(&self, ceiling: &impl Fn(&str) -> Option<f64>) -> Option<CeilingShare> {
        let now = self.mean().map(|(_, rate)| rate);
        let all = [now, Some(self.peak_bytes), Some(self.peak_transfers)].into_iter().flatten();
        all.filter_map(|rate| rate.share(ceiling)).max_by(|a, b| a.share.total_cmp(&b.share))
    }

    /// The mean of all samples, and their time span.
    fn mean(&self) -> Option<(Duration, Rate)> {
        let ((first_ns, first), (last_ns, last)) = (self.samples.front()?, self.samples.back()?);
        let span = Duration::from_nanos(last_ns.saturating_sub(*first_ns));
        let delta = counters_since(first, last).filter(|_| !span.is_zero())?;
        let per_s = |count: u64| count as f64 / span.as_secs_f64();
        let rate = Rate {
            read_bytes: per_s(delta.read_bytes),
            written_bytes: per_s(delta.written_bytes),
            reads: per_s(delta.reads),
            writes: per_s(delta.writes),
        };
        Some((span, rate))
    }
}

impl Rate {
    fn share(&self, ceiling: &impl Fn(&str) -> Option<f64>) -> Option<CeilingShare> {
        let bytes =
            utilisation([("storage-read", self.read_bytes), ("storage-write", self.written_bytes)], ceiling);
        let transfers = utilisation(
            [("storage-random-read", self.reads), ("storage-random-write", self.writes)],
            ceiling,
        );
        [bytes, transfers].into_iter().flatten().max_by(|a, b| a.share.total_cmp(&b.share))
    }
}

/// The share of time for which two kinds of load keep a drive busy, with the limit of the larger
/// one; `None` if a needed ceiling is unknown.
fn utilisation(loads: [(&str, f64); 2], ceiling: &impl Fn(&str) -> Option<f64>) -> Option<CeilingShare> {
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

fn sum(one: &IoCounters, other: &IoCounters) -> IoCounters {
    IoCounters {
        reads: one.reads + other.reads,
        read_bytes: one.read_bytes + other.read_bytes,
        writes: one.writes + other.writes,
        written_bytes: one.written_bytes + other.written_bytes,
    }
}

/// The difference of two counters; `None` if they were restarted.
fn counters_since(before: &IoCounters, after: &IoCounters) -> Option<IoCounters> {
    Some(IoCounters {
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

    fn wrote(mb: u64) -> IoCounters {
        IoCounters { writes: mb, written_bytes: mb * MB, ..IoCounters::default() }
    }

    fn ceiling(limit: &str) -> Option<f64> {
        match limit {
            "storage-read" => Some(200e6),
            "storage-write" => Some(100e6),
            "storage-random-read" => Some(1000.0),
            _ => None,
        }
    }

    fn of(target: u32, device: Option<u64>, work: IoCounters) -> ReportedCounters {
        ReportedCounters { target: TargetId(target), device, work }
    }

    fn rate_of(rates: &TargetRates, at_s: u64) -> Option<TargetRate> {
        rates.rates_of(&[TargetId(3)], at_s * S, |_, limit| ceiling(limit)).pop()
    }

    fn written(share: f64) -> Option<CeilingShare> {
        Some(CeilingShare { limit: "storage-write".into(), share })
    }

    #[test]
    fn rates_are_means_of_ten_seconds() {
        let mut rates = TargetRates::default();
        let mut note = |mb, at_s| rates.note([of(3, None, wrote(mb))], at_s * S);
        note(0, 0);
        // 50 MB/s for 10 seconds, then nothing for as long.
        (1..=5).for_each(|beat| note(100 * beat, 2 * beat));
        let mut rates_then = TargetRates::default();
        rates_then.note([of(3, None, wrote(0))], 0);
        assert_eq!(rate_of(&rates_then, 0), None, "one count is no rate");
        let now = rate_of(&rates, 11).unwrap();
        assert_eq!((now.written_bytes, now.writes, now.reads), (50e6, 50.0, 0.0));
        assert_eq!((now.now, now.one_drive_with), (written(0.5), vec![]));
        (6..=10).for_each(|beat| rates.note([of(3, None, wrote(500))], 2 * beat * S));
        let later = rate_of(&rates, 20).unwrap();
        assert_eq!(later.written_bytes, 0.0);
        assert_eq!(later.most, written(0.5));
        assert_eq!(rate_of(&rates, 31), None, "the node has been silent");
        let kept = rates.targets[&TargetId(3)].1.samples.len();
        assert!(kept <= 7, "{kept}");
    }

    #[test]
    fn counters_restart_with_the_node() {
        let mut rates = TargetRates::default();
        let mut note = |mb, at_s| rates.note([of(3, Some(8), wrote(mb))], at_s * S);
        note(900, 0);
        note(10, 2);
        note(20, 4);
        assert_eq!(rate_of(&rates, 4).unwrap().written_bytes, 5e6);
        // Its drive's total survives, but without what happened unseen.
        assert_eq!(rates.drives[&Drive::Device(8)].0, wrote(10));
    }

    #[test]
    fn targets_of_one_drive_share_its_utilisation() {
        let mut rates = TargetRates::default();
        for beat in 0..=5 {
            // Two nodes of one machine, with alternate heartbeats, and a target on another drive.
            rates.note([of(1, Some(8), wrote(60 * beat)), of(4, Some(9), wrote(20 * beat))], 2 * beat * S);
            rates.note([of(2, Some(8), wrote(100 * beat))], 2 * beat * S + 1);
        }
        // Only the second target's ceilings are known: they apply to the drive.
        let ceiling = |target, limit: &str| ceiling(limit).filter(|_| target == TargetId(2));
        let rates_now = rates.rates_of(&[1, 2, 4].map(TargetId), 11 * S, ceiling);
        let others: Vec<_> = rates_now.iter().map(|rate| rate.one_drive_with.clone()).collect();
        assert_eq!(others, [vec![TargetId(2)], vec![TargetId(1)], vec![]]);
        let shares: Vec<_> = rates_now.iter().map(|rate| rate.now.as_ref().map(|of| of.share)).collect();
        assert!(shares[0].is_some_and(|share| (0.79..0.81).contains(&share)), "{shares:?}");
        assert_eq!((shares[1], shares[2]), (shares[0], None));
        assert_eq!(rates_now[0].written_bytes, 30e6);
        assert_eq!(rates.device(TargetId(4)), Some(9));
        // The first target's node becomes unreachable: the rate of the other one omits it.
        rates.note([of(2, Some(8), wrote(900))], 20 * S);
        let rates_now = rates.rates_of(&[1, 2].map(TargetId), 25 * S, ceiling);
        assert_eq!(
            (rates_now.len(), &rates_now[0].target, &rates_now[0].one_drive_with),
            (1, &TargetId(2), &vec![])
        );
    }

    #[test]
    fn the_busier_ceiling_is_the_limit() {
        let rate = |read_bytes: f64, written_bytes: f64, reads: f64, writes: f64| Rate {
            read_bytes,
            written_bytes,
            reads,
            writes,
        };
        let share = |rate: Rate| rate.share(&ceiling).map(|all| (all.limit, all.share));
        // Reads take half of the time, writes a quarter.
        assert_eq!(share(rate(100e6, 25e6, 100.0, 0.0)), Some(("storage-read".into(), 0.75)));
        // Small transfers: few bytes, many operations.
        assert_eq!(share(rate(2e6, 0.0, 900.0, 0.0)), Some(("storage-random-read".into(), 0.9)));
        // Without a ceiling of random writes only bytes count.
        assert_eq!(share(rate(0.0, 10e6, 0.0, 9e9)), Some(("storage-write".into(), 0.1)));
        assert_eq!(rate(1.0, 1.0, 1.0, 1.0).share(&|_: &str| None), None);
    }
}
