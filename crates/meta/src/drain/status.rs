//! Progress of draining targets.

use super::LocalMount;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use types::{Errno, Error, InodeId, Result, TargetId};
use wire::mgmt::DrainProgress;

/// Time constant of the rate's moving average, in seconds.
const RATE_WINDOW_S: f64 = 30.0;

/// A draining target, as an administrator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DrainStatus {
    /// The target.
    pub target: TargetId,
    /// Files that still have data there; `None` while they are counted.
    pub files_left: Option<u64>,
    /// Bytes of these files there.
    pub bytes_left: u64,
    /// Files that have been moved since this service started.
    pub files_moved: u64,
    /// Bytes of these files.
    pub bytes_moved: u64,
    /// Recent bytes a second.
    pub rate: u64,
    /// No file has data there.
    pub is_empty: bool,
    /// The last reason why a file stays for now, if there is one.
    pub hindrance: Option<String>,
}

/// All draining targets.
#[derive(Default)]
pub(crate) struct Drains {
    targets: Mutex<BTreeMap<TargetId, Drain>>,
    /// There is a session without leases, so a recall can't take files from it.
    local_session: AtomicBool,
    /// The mount that stops using a file on request instead.
    pub local_mount: OnceLock<Arc<dyn LocalMount>>,
}

#[derive(Default)]
struct Drain {
    counted_files: u64,
    counted_bytes: u64,
    files_left: Option<u64>,
    bytes_left: u64,
    files_moved: u64,
    bytes_moved: u64,
    /// Bytes a second, and when that was last calculated.
    rate: f64,
    rated_ns: u64,
    is_empty: bool,
    hindrance: Option<String>,
    /// When the target has to be checked again.
    due_ns: u64,
}

impl Drains {
    /// Status of all draining targets, by id.
    pub fn list(&self) -> Vec<DrainStatus> {
        let status = |(&target, drain): (&TargetId, &Drain)| DrainStatus {
            target,
            files_left: drain.files_left,
            bytes_left: drain.bytes_left,
            files_moved: drain.files_moved,
            bytes_moved: drain.bytes_moved,
            rate: drain.rate as u64,
            is_empty: drain.is_empty,
            hindrance: drain.hindrance.clone(),
        };
        self.targets.lock().iter().map(status).collect()
    }

    /// Progress of draining targets, as management shows it.
    pub fn progress(&self) -> Vec<(TargetId, DrainProgress)> {
        let progress = |drain: DrainStatus| {
            let remaining_s = match drain.rate {
                _ if drain.is_empty => Some(0),
                0 => None,
                rate => Some(drain.bytes_left.div_ceil(rate)),
            };
            let progress = DrainProgress {
                empty: drain.is_empty,
                files_left: drain.files_left,
                bytes_left: drain.bytes_left,
                files_moved: drain.files_moved,
                bytes_moved: drain.bytes_moved,
                rate: drain.rate,
                remaining_s,
                hindrance: drain.hindrance,
                groups_left: 0,
                stuck: None,
            };
            (drain.target, progress)
        };
        self.list().into_iter().map(progress).collect()
    }

    /// Notes that a mount in this process has a session, which gets no leases.
    pub fn note_local_session(&self) {
        self.local_session.store(true, Ordering::Relaxed);
    }

    /// Checks that all users of a file can be stopped.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if a mount in this process can't stop using files.
    pub fn check_local_mount(&self) -> Result<()> {
        if !self.local_session.load(Ordering::Relaxed) || self.local_mount.get().is_some() {
            return Ok(());
        }
        let message = "the file system is mounted in the process of its metadata service, without leases";
        Err(Error::new(Errno::EOPNOTSUPP, message).hint(
            "copy the files instead (cp, then mv over the old one): new files are placed on other targets",
        ))
    }

    /// Drops targets that aren't draining any more, and adds new ones.
    pub fn set_draining(&self, draining: &[TargetId]) {
        let mut all = self.targets.lock();
        all.retain(|target, _| draining.contains(target));
        draining.iter().for_each(|&target| _ = all.entry(target).or_default());
    }

    /// Whether one of them has to be checked.
    pub fn need_check(&self, draining: &[TargetId]) -> bool {
        let (all, now_ns) = (self.targets.lock(), rt::monotonic_ns());
        draining.iter().any(|target| all.get(target).is_some_and(|drain| drain.due_ns <= now_ns))
    }

    /// Discards all counts of what is left.
    pub fn restart_round(&self) {
        for drain in self.targets.lock().values_mut() {
            (drain.is_empty, drain.files_left, drain.due_ns) = (false, None, 0);
        }
    }

    fn on(&self, target: TargetId, change: impl FnOnce(&mut Drain)) {
        if let Some(drain) = self.targets.lock().get_mut(&target) {
            change(drain);
        }
    }

    pub fn begin_count(&self, draining: &[TargetId]) {
        for &target in draining {
            self.on(target, |drain| (drain.counted_files, drain.counted_bytes) = (0, 0));
        }
    }

    pub fn counted(&self, target: TargetId, bytes: u64) {
        self.on(target, |drain| {
            drain.counted_files += 1;
            drain.counted_bytes += bytes;
        });
    }

    pub fn begin_moves(&self, draining: &[TargetId]) {
        for &target in draining {
            self.on(target, |drain| {
                drain.files_left = Some(drain.counted_files);
                drain.bytes_left = drain.counted_bytes;
                drain.hindrance = None;
                drain.rated_ns = rt::monotonic_ns();
            });
        }
    }

    pub fn moved(&self, target: TargetId, bytes: u64) {
        self.on(target, |drain| {
            drain.files_left = drain.files_left.map(|left| left.saturating_sub(1));
            drain.bytes_left = drain.bytes_left.saturating_sub(bytes);
            drain.files_moved += 1;
            drain.bytes_moved += bytes;
            let now_ns = rt::monotonic_ns();
            let elapsed_s = now_ns.saturating_sub(drain.rated_ns).max(1_000_000) as f64 / 1e9;
            drain.rated_ns = now_ns;
            let weight = 1.0 - (-elapsed_s / RATE_WINDOW_S).exp();
            drain.rate += weight * (bytes as f64 / elapsed_s - drain.rate);
        });
    }

    pub fn record_failure(&self, target: TargetId, ino: InodeId, error: &Error) {
        self.on(target, |drain| drain.hindrance = Some(format!("inode {ino} can't be moved now: {error}")));
    }

    pub fn record_error(&self, draining: &[TargetId], error: &Error) {
        for &target in draining {
            self.on(target, |drain| drain.hindrance = Some(error.to_string()));
        }
    }

    /// Ends a pass over all files; `pause` is the pause before the next one.
    pub fn end_pass(&self, target: TargetId, is_empty: bool, pause: Duration) {
        self.on(target, |drain| {
            drain.is_empty = is_empty;
            drain.due_ns = rt::monotonic_ns() + pause.as_nanos() as u64;
            if is_empty {
                (drain.files_left, drain.bytes_left, drain.hindrance) = (Some(0), 0, None);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Errno;

    #[test]
    fn a_drain_is_counted_moves_and_ends() {
        let (drains, target) = (Drains::default(), TargetId(3));
        let only = |drains: &Drains| drains.list().remove(0);
        drains.set_draining(&[target]);
        assert!(drains.need_check(&[target]) && only(&drains).files_left.is_none());
        drains.begin_count(&[target]);
        [10, 20, 30].into_iter().for_each(|bytes| drains.counted(target, bytes));
        drains.begin_moves(&[target]);
        drains.moved(target, 20);
        drains.record_failure(target, InodeId(4), &Errno::EBUSY.into());
        let status = only(&drains);
        assert_eq!((status.files_left, status.bytes_left, status.files_moved), (Some(2), 40, 1));
        assert!(status.hindrance.unwrap().contains('4'));
        drains.end_pass(target, true, Duration::from_secs(1000));
        assert!(only(&drains).is_empty && only(&drains).hindrance.is_none() && !drains.need_check(&[target]));
        drains.restart_round();
        assert!(!only(&drains).is_empty && drains.need_check(&[target]));
        assert_eq!((only(&drains).files_left, only(&drains).files_moved), (None, 1));
        drains.set_draining(&[]);
        assert!(drains.list().is_empty());
    }
}
