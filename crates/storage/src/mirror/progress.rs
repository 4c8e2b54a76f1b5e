//! How far members are that are brought in step.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use types::{GroupId, TargetId};
use wire::mgmt::ResyncProgress;

const NS_PER_S: u64 = 1_000_000_000;

/// All that runs now.
#[derive(Default)]
pub(super) struct Progress(Mutex<BTreeMap<(GroupId, TargetId), Entry>>);

struct Entry {
    began_ns: u64,
    seen: ResyncProgress,
}

/// One of them; gone when it is dropped.
pub(super) struct Tracked<'a> {
    progress: &'a Progress,
    key: (GroupId, TargetId),
}

impl Progress {
    pub(super) fn begin(&self, group: GroupId, target: TargetId, now_ns: u64) -> Tracked<'_> {
        let seen = ResyncProgress { group, target, ..ResyncProgress::default() };
        self.0.lock().insert((group, target), Entry { began_ns: now_ns, seen });
        Tracked { progress: self, key: (group, target) }
    }

    pub(super) fn all(&self) -> Vec<ResyncProgress> {
        self.0.lock().values().map(|entry| entry.seen.clone()).collect()
    }
}

impl Tracked<'_> {
    fn update(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.progress.0.lock().get_mut(&self.key) {
            change(entry);
        }
    }

    /// What there is to do has been counted.
    pub(super) fn counted(&self, files: u64, bytes: u64) {
        self.update(|entry| {
            entry.seen.files_left = Some(files);
            entry.seen.bytes_left = Some(bytes);
        });
    }

    /// So much was sent, which stands for so much of what was left.
    pub(super) fn moved(&self, sent: u64, done: u64, now_ns: u64) {
        self.update(|entry| {
            entry.seen.bytes_moved += sent;
            entry.seen.bytes_left = entry.seen.bytes_left.map(|left| left.saturating_sub(done));
            let ns = now_ns.saturating_sub(entry.began_ns).max(1);
            entry.seen.rate =
                (u128::from(entry.seen.bytes_moved) * u128::from(NS_PER_S) / u128::from(ns)) as u64;
        });
    }

    /// A file is in step; `left` bytes of it were counted and not done, since it was shorter.
    pub(super) fn file_done(&self, left: u64) {
        self.update(|entry| {
            entry.seen.files_left = entry.seen.files_left.map(|files| files.saturating_sub(1));
            entry.seen.bytes_left = entry.seen.bytes_left.map(|bytes| bytes.saturating_sub(left));
        });
    }
}

impl Drop for Tracked<'_> {
    fn drop(&mut self) {
        self.progress.0.lock().remove(&self.key);
    }
}
