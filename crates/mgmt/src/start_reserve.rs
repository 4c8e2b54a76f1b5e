//! Space reserve for a start on a full disk.
//!
//! Chunk files leave a part of their disk free, and so does the metadata store; other programs
//! don't. A start writes a little before it serves (a journal of the store, a socket, checksums
//! after a crash), and only a running cluster can remove files. So a file in the state directory
//! reserves some space, which a start on a full disk releases.

use crate::space::space_of;
use crate::state_dir::StatePaths;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use types::reserved_space;

/// Size of the file in bytes: a journal of the metadata store.
const RESERVE_BYTES: u64 = 64 << 20;
/// Largest share of the disk, as a divisor.
const RESERVE_DIVISOR: u64 = 64;
/// The file consists of whole pages.
const PAGE_BYTES: u64 = 4096;
/// Unit of [`MetadataExt::blocks`], bytes.
const STAT_BLOCK_BYTES: u64 = 512;
/// Longest wait for the space of a removed file, which file systems free in the background, and its
/// polling interval.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const RELEASE_POLL: Duration = Duration::from_millis(20);

/// Reserves space for the next start, if the disk has plenty now.
pub fn keep_start_reserve(paths: &StatePaths) {
    if let Err(error) = keep(paths) {
        tracing::warn!(%error, "no space is reserved in {} for a start on a full disk", paths.root().display());
    }
}

fn keep(paths: &StatePaths) -> io::Result<()> {
    let (path, space) = (paths.start_reserve(), space_of(paths.root())?);
    let bytes = reserve_of(space.capacity);
    let has = fs::metadata(&path).map_or(0, |meta| meta.blocks() * STAT_BLOCK_BYTES);
    if has >= bytes || space.free < reserved_space(space.capacity) + bytes {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes).inspect_err(|_| {
        // A part of it is useless.
        let _ = fs::remove_file(&path);
    })?;
    Ok(())
}

/// Releases the reserve, if the disk has less free space than its size.
pub(crate) fn release_on_full_disk(paths: &StatePaths) {
    let path = paths.start_reserve();
    let Ok(space) = space_of(paths.root()) else { return };
    let bytes = reserve_of(space.capacity);
    if space.free >= bytes || fs::remove_file(&path).is_err() {
        return;
    }
    let root = paths.root().display();
    tracing::warn!(
        hint = "delete files",
        "the disk of {root} is full: {} MiB that were reserved for this start are released",
        bytes >> 20
    );
    wait_for(paths.root(), bytes);
}

fn wait_for(root: &Path, bytes: u64) {
    let began = Instant::now();
    while began.elapsed() < RELEASE_TIMEOUT && space_of(root).is_ok_and(|space| space.free < bytes / 2) {
        sleep(RELEASE_POLL);
    }
}

/// Size of the reserve on a disk of `capacity` bytes.
fn reserve_of(capacity: u64) -> u64 {
    RESERVE_BYTES.min(capacity / RESERVE_DIVISOR) / PAGE_BYTES * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_disks_have_a_small_reserve() {
        assert_eq!(reserve_of(1 << 40), RESERVE_BYTES);
        assert_eq!(reserve_of(640 << 20), 10 << 20);
        assert_eq!(reserve_of(0), 0);
    }

    #[test]
    fn the_reserve_is_created_once_and_allocated() {
        let dir = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(dir.path());
        keep(&paths).unwrap();
        let space = space_of(dir.path()).unwrap();
        match fs::metadata(paths.start_reserve()) {
            Ok(meta) => {
                assert!(meta.blocks() * STAT_BLOCK_BYTES >= reserve_of(space.capacity), "{meta:?}");
                keep(&paths).unwrap();
                let again = fs::metadata(paths.start_reserve()).unwrap();
                assert_eq!((again.ino(), again.mtime_nsec()), (meta.ino(), meta.mtime_nsec()));
            }
            Err(_) => assert!(space.free < reserved_space(space.capacity) + RESERVE_BYTES),
        }
        // There is enough space: a start releases nothing.
        let before = paths.start_reserve().exists();
        if space.free >= RESERVE_BYTES {
            release_on_full_disk(&paths);
            assert_eq!(paths.start_reserve().exists(), before);
        }
    }
}
