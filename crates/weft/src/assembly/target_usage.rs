//! Disk usage of the targets themselves.
//!
//! On a disk with other users, the used space says little about a target: the root disk of a laptop
//! is half full before weft stores a byte there. So a thread adds up the files of each target from
//! time to time. That reads every inode of the target, so a long pause follows. In between, the
//! usage of the whole disk bounds how much the target can have grown.

use mgmt::Space;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};
use storage::StorageService;
use types::TargetId;

/// Files per batch.
const BATCH_FILES: u64 = 128;
/// Pause after each batch: a disk whose inodes aren't cached serves other users most of the time,
/// and a million files take some minutes.
const BATCH_PAUSE: Duration = Duration::from_millis(10);
/// Interval of checks whether a target is due.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Shortest pause after a target was added up.
const MIN_PAUSE: Duration = Duration::from_secs(600);
/// Shortest pause as a multiple of the time that adding up took.
const PAUSE_FACTOR: u32 = 10;
/// Unit of `st_blocks` in `stat(2)`, in bytes.
const STAT_BLOCK_BYTES: u64 = 512;

/// Known usage of the targets of a process.
#[derive(Default)]
pub struct TargetUsages(Mutex<BTreeMap<TargetId, Usage>>);

#[derive(Clone, Copy)]
struct Usage {
    /// Bytes of the target's files when they were added up.
    bytes: u64,
    /// Used bytes of the whole disk when that began.
    disk_used: u64,
    /// When the target is added up again.
    due: Instant,
}

impl TargetUsages {
    /// Returns an upper bound of the target's current usage in bytes, given the space of its disk;
    /// `None` until its files have been added up.
    pub fn upper_bound(&self, target: TargetId, space: Space) -> Option<u64> {
        let known = self.all().get(&target).copied()?;
        let used = space.capacity.saturating_sub(space.free);
        Some(known.bytes.saturating_add(used.saturating_sub(known.disk_used)).min(used))
    }

    /// Adds up the files of all targets again and again, as long as `targets` returns some. Uses a
    /// separate thread, because reading an inode blocks on the disk.
    pub fn measure_periodically(
        self: Arc<Self>,
        targets: impl Fn() -> Option<Vec<(TargetId, PathBuf)>> + Send + 'static,
    ) {
        let work = move || {
            while let Some(targets) = targets() {
                for (target, dir) in targets {
                    if self.all().get(&target).is_none_or(|known| Instant::now() >= known.due) {
                        self.measure(target, &dir);
                    }
                }
                thread::sleep(LOOK_INTERVAL);
            }
        };
        if let Err(error) = thread::Builder::new().name("weft-usage".into()).spawn(work) {
            tracing::warn!(%error, "the disk usage of targets is unknown: all used space counts as theirs");
        }
    }

    fn measure(&self, target: TargetId, dir: &Path) {
        let begun = Instant::now();
        let measured = mgmt::space_of(dir).and_then(|space| Ok((bytes_below(dir)?, space)));
        let due = Instant::now() + MIN_PAUSE.max(begun.elapsed() * PAUSE_FACTOR);
        match measured {
            Ok((bytes, space)) => {
                let of_disk = space.capacity.saturating_sub(space.free);
                self.all().insert(target, Usage { bytes, disk_used: of_disk, due });
            }
            Err(error) => {
                tracing::debug!(target_id = target.0, %error, "the disk usage of target {target} is unknown")
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<TargetId, Usage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a function that lists the directories of a service's targets, as long as the service
/// exists.
pub fn target_directories(service: Weak<StorageService>) -> impl Fn() -> Option<Vec<(TargetId, PathBuf)>> {
    move || {
        let service = service.upgrade()?;
        let available = service.stores().filter(|store| store.check_dir().is_ok());
        Some(available.map(|store| (store.target(), store.dir().to_path_buf())).collect())
    }
}

/// Returns the bytes on disk of all files below a directory. Files that disappear meanwhile don't
/// count.
fn bytes_below(dir: &Path) -> io::Result<u64> {
    let (mut bytes, mut entries_read) = (0, 0);
    let mut left = vec![dir.to_path_buf()];
    while let Some(dir) = left.pop() {
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && entries_read > 0 => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            entries_read += 1;
            if entries_read % BATCH_FILES == 0 {
                thread::sleep(BATCH_PAUSE);
            }
            match entry.metadata() {
                Ok(found) if found.is_dir() => left.push(entry.path()),
                Ok(found) => bytes += found.blocks() * STAT_BLOCK_BYTES,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_target_count_and_others_on_its_disk_do_not() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("t1");
        fs::create_dir_all(dir.join("groups/100001/chunks")).unwrap();
        fs::write(home.path().join("other"), vec![1; 9 << 20]).unwrap();
        fs::write(dir.join("own"), vec![1; 1 << 20]).unwrap();
        fs::write(dir.join("groups/100001/chunks/7"), vec![1; 2 << 20]).unwrap();
        let usages = TargetUsages::default();
        let space = |used: u64| Space { capacity: 100 << 20, free: (100 << 20) - used, device: 1, own: None };
        assert_eq!(usages.upper_bound(TargetId(1), space(40 << 20)), None, "nothing is known yet");
        usages.measure(TargetId(1), &dir);
        let mut all = usages.all();
        let known = all.get_mut(&TargetId(1)).unwrap();
        assert!((3 << 20..4 << 20).contains(&known.bytes), "{} bytes", known.bytes);
        (known.bytes, known.disk_used) = (3 << 20, 40 << 20);
        drop(all);
        for (used, own) in [(40, 3), (45, 8), (30, 3), (2, 2)] {
            assert_eq!(
                usages.upper_bound(TargetId(1), space(used << 20)),
                Some(own << 20),
                "{used} MiB are used"
            );
        }
    }
}
