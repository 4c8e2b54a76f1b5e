//! Progress of running resyncs.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use types::{GroupId, TargetId};
use wire::mgmt::ResyncProgress;

const NS_PER_S: u64 = 1_000_000_000;

/// All resyncs that run now.
#[derive(Default)]
pub(crate) struct Progress(Mutex<BTreeMap<(GroupId, TargetId), Entry>>);

/// Window of the current rate, nanoseconds: long enough to be steady, short enough to follow a
/// change.
const RATE_WINDOW_NS: u64 = 10 * NS_PER_S;

struct Entry {
    /// Two points in time, each with the bytes sent until then; the rate counts from the older one.
    marks: [(u64, u64); 2],
    progress: ResyncProgress,
}

impl Entry {
    fn rate(&mut self, now_ns: u64) -> u64 {
        if now_ns.saturating_sub(self.marks[1].0) >= RATE_WINDOW_NS {
            self.marks = [self.marks[1], (now_ns, self.progress.bytes_moved)];
        }
        let (from_ns, from) = self.marks[0];
        let ns = now_ns.saturating_sub(from_ns).max(1);
        (u128::from(self.progress.bytes_moved - from) * u128::from(NS_PER_S) / u128::from(ns)) as u64
    }
}

/// One resync; its entry is removed when this is dropped.
pub(crate) struct ProgressGuard<'a> {
    progress: &'a Progress,
    key: (GroupId, TargetId),
}

impl Progress {
    pub(crate) fn begin(&self, group: GroupId, target: TargetId, now_ns: u64) -> ProgressGuard<'_> {
        let seen = ResyncProgress { group, target, ..ResyncProgress::default() };
        self.0.lock().insert((group, target), Entry { marks: [(now_ns, 0); 2], progress: seen });
        ProgressGuard { progress: self, key: (group, target) }
    }

    pub(crate) fn all(&self) -> Vec<ResyncProgress> {
        self.0.lock().values().map(|entry| entry.progress.clone()).collect()
    }
}

impl ProgressGuard<'_> {
    fn update(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.progress.0.lock().get_mut(&self.key) {
            change(entry);
        }
    }

    /// Records the total work.
    pub(crate) fn counted(&self, files: u64, bytes: u64) {
        self.update(|entry| {
            entry.progress.files_left = Some(files);
            entry.progress.bytes_left = Some(bytes);
        });
    }

    /// Records `sent` bytes, which complete `done` bytes of the remaining work.
    pub(crate) fn moved(&self, sent: u64, done: u64, now_ns: u64) {
        self.update(|entry| {
            entry.progress.bytes_moved += sent;
            entry.progress.bytes_left = entry.progress.bytes_left.map(|left| left.saturating_sub(done));
            entry.progress.rate = entry.rate(now_ns);
        });
    }

    /// Records why the resync doesn't progress, if so.
    pub(crate) fn set_hindrance(&self, why: Option<&str>) {
        self.update(|entry| entry.progress.hindrance = why.map(str::to_string));
    }

    /// Returns the remaining bytes, if known.
    pub(crate) fn bytes_left(&self) -> Option<u64> {
        self.progress.0.lock().get(&self.key)?.progress.bytes_left
    }

    /// Records that a file is in sync; `left` bytes were counted but not needed, because the file
    /// was shorter.
    pub(crate) fn file_done(&self, left: u64) {
        self.update(|entry| {
            entry.progress.files_left = entry.progress.files_left.map(|files| files.saturating_sub(1));
            entry.progress.bytes_left = entry.progress.bytes_left.map(|bytes| bytes.saturating_sub(left));
        });
    }
}

impl Drop for ProgressGuard<'_> {
    fn drop(&mut self) {
        self.progress.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_covers_a_recent_window() {
        let progress = Progress::default();
        let tracked = progress.begin(GroupId(1), TargetId(2), 0);
        tracked.counted(1, 1 << 40);
        let rate = || progress.all()[0].rate;
        for s in 1..=30 {
            tracked.moved(1000, 1000, s * NS_PER_S);
        }
        assert_eq!(rate(), 1000);
        for s in 31..=60 {
            tracked.moved(5000, 5000, s * NS_PER_S);
        }
        assert_eq!(rate(), 5000, "what was before doesn't count any more");
        assert_eq!(tracked.bytes_left(), Some((1 << 40) - 180_000));
    }
}
