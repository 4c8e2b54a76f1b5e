//! Access times of files, as with the mount option `relatime`.
//!
//! Linux leaves them to a FUSE file system. A read updates the access time if it is the first one
//! since the last change, or since a day. A mount with `noatime`, a read-only mount, and a read
//! with `O_NOATIME` update none. This client's attributes have the new time at once. The metadata
//! service gets it some seconds later, together with those of other files: no read costs a request.
//! Until then other clients see the old time, as they do while they cache attributes of the file
//! under a lease. Unreported times are lost with this process.

use crate::file::Files;
use crate::file::inode::OpenInode;
use crate::session::privileges::RequestUser;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use types::{HashMap, InodeId, PartitionId, Timestamp};
use wire::{AccessTime, MetaOp};

/// Pause between two reports.
const REPORT_PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of files in one request.
const MAX_REPORTED: usize = 1000;
/// Maximum number of files with unreported accesses. Accesses of further files are ignored.
const MAX_UNREPORTED: usize = 65_536;
/// How long reads of a file are ignored after a check of its times, in nanoseconds.
const QUIET_NS: u64 = 3600 * 1_000_000_000;
/// The same on a mount without access times, and how long that setting is cached: a mount may be
/// changed. To check the mount costs a read of the kernel's mount table.
const DISABLED_NS: u64 = 1_000_000_000;

/// Files that were read, and when.
#[derive(Default)]
pub(crate) struct Accesses {
    log: Mutex<AccessLog>,
    count: AtomicUsize,
    has_unreported: rt::sync::Event,
    /// Whether the mount keeps access times, and until when that is cached, on the monotonic clock.
    mount_setting: Mutex<Option<(bool, u64)>>,
}

#[derive(Default)]
struct AccessLog {
    unreported: HashMap<InodeId, Timestamp>,
    /// The last report. Attributes that were requested before it may still arrive.
    reported: HashMap<InodeId, Timestamp>,
}

impl Accesses {
    /// Whether the mount keeps access times, by its answer within the last second.
    fn keeps(&self, now_ns: u64, read_mount_setting: impl FnOnce() -> bool) -> bool {
        let known = *self.mount_setting.lock();
        if let Some((keeps, until_ns)) = known
            && now_ns < until_ns
        {
            return keeps;
        }
        let keeps = read_mount_setting();
        *self.mount_setting.lock() = Some((keeps, now_ns + DISABLED_NS));
        keeps
    }

    fn note(&self, ino: InodeId, at: Timestamp) {
        self.change(|log| {
            if log.unreported.len() < MAX_UNREPORTED {
                log.unreported.insert(ino, at);
            }
        });
        self.has_unreported.set();
    }

    /// Returns the access time of a file for which the service has `known`.
    pub(crate) fn latest(&self, ino: InodeId, known: Timestamp) -> Timestamp {
        if self.count.load(Ordering::Acquire) == 0 {
            return known;
        }
        let log = self.log.lock();
        let read = log.unreported.get(&ino).or_else(|| log.reported.get(&ino));
        read.map_or(known, |read| known.max(*read))
    }

    /// Drops earlier reads of a file whose access time is set.
    pub(crate) fn forget(&self, ino: InodeId) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.change(|log| {
                log.unreported.remove(&ino);
                log.reported.remove(&ino);
            });
        }
    }

    /// Takes the unreported accesses; they count as reported from now on.
    fn take(&self) -> Vec<AccessTime> {
        self.change(|log| {
            log.reported = std::mem::take(&mut log.unreported);
            log.reported.iter().map(|(&ino, &at)| AccessTime { ino, at }).collect()
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut AccessLog) -> T) -> T {
        let mut log = self.log.lock();
        let result = change(&mut log);
        self.count.store(log.unreported.len() + log.reported.len(), Ordering::Release);
        result
    }

    /// Wakes the task that waits for accesses to report.
    pub(crate) fn wake(&self) {
        self.has_unreported.set();
    }
}

impl Files {
    /// Records that an application has read from a file.
    pub(crate) fn note_read(&self, inode: &OpenInode) {
        let now_ns = rt::monotonic_ns();
        if now_ns >= inode.atime_quiet_until_ns.load(Ordering::Relaxed) {
            self.note_first_read(inode, now_ns);
        }
    }

    #[cold]
    fn note_first_read(&self, inode: &OpenInode, now_ns: u64) {
        let read_mount_setting =
            || self.kernel.invalidator().is_some_and(|invalidator| invalidator.updates_atime());
        let keeps = self.inodes.accesses.keeps(now_ns, read_mount_setting);
        let quiet_ns = if keeps { QUIET_NS } else { DISABLED_NS };
        inode.atime_quiet_until_ns.store(now_ns + quiet_ns, Ordering::Relaxed);
        if !keeps {
            return;
        }
        // The service's time may be older than an unreported one.
        let known = self.inodes.accesses.latest(inode.ino, inode.content.lock().atime);
        let now = rt::now();
        if inode.content.lock().update_atime(known, now) {
            self.inodes.accesses.note(inode.ino, now);
        }
    }

    /// Reports accesses for as long as the session lives.
    pub(crate) async fn report_accesses(self: Arc<Self>) {
        let accesses = &self.inodes.accesses;
        loop {
            accesses.has_unreported.wait().await;
            if self.session.has_ended() {
                return;
            }
            rt::sleep(REPORT_PAUSE).await;
            accesses.has_unreported.clear();
            self.report_accesses_now().await;
            if accesses.count.load(Ordering::Acquire) > 0 {
                accesses.has_unreported.set();
            }
        }
    }

    pub(crate) async fn report_accesses_now(&self) {
        let mut parts: BTreeMap<PartitionId, Vec<AccessTime>> = BTreeMap::new();
        for access in self.inodes.accesses.take() {
            parts.entry(access.ino.partition()).or_default().push(access);
        }
        for (partition, accesses) in parts {
            for batch in accesses.chunks(MAX_REPORTED) {
                let op = MetaOp::NoteAccess { accesses: batch.to_vec() };
                if let Err(error) = self.session.send_for(partition, None, RequestUser::default(), op).await {
                    tracing::debug!(%partition, files = batch.len(), %error, "access times could not be reported, and are lost");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_atime_setting_is_checked_once_a_second() {
        let (accesses, asked) = (Accesses::default(), Cell::new(0));
        let keeps = |now_ns, keeps| {
            let read_mount_setting = || {
                asked.set(asked.get() + 1);
                keeps
            };
            accesses.keeps(now_ns, read_mount_setting)
        };
        assert!(keeps(5, true) && keeps(6, false) && keeps(4 + DISABLED_NS, false));
        assert_eq!(asked.get(), 1);
        assert!(!keeps(5 + DISABLED_NS, false), "a remount");
        assert_eq!(asked.get(), 2);
    }
}
