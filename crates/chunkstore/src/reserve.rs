//! The reserve of free space on the target's disk.
//!
//! By default targets share their disk with the metadata store, which has to write even to remove a
//! file. If chunk files took the last block, no file could be deleted any more.
//!
//! Many writes share one check of the free space: a check grants bytes that may be written before
//! the next one. The grant shrinks as the disk fills, since other targets on it get their grants
//! from the same space.

use crate::error::{Kind, Result, StoreError};
use crate::store::{Space, Store};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{ByteRange, ChunkFileId, reserved_space};

/// The most bytes that one check grants.
const MAX_GRANT_BYTES: u64 = 16 << 20;
/// The part of the remaining space that one check grants: a sixteenth, so that as many targets as
/// that may share a disk.
const GRANT_DIVISOR: u64 = 16;
/// How long to wait before a refusal: file systems free the space of removed files in the
/// background, a moment later.
pub(crate) const RECHECK_DELAY: Duration = Duration::from_millis(20);
/// Unit of [`rt::FileStat::blocks`], bytes.
pub(crate) const STAT_BLOCK_BYTES: u64 = 512;

/// Bytes that may be written before the next check of the disk. Initially none.
#[derive(Default)]
pub(crate) struct SpaceGrant {
    granted: AtomicU64,
}

impl SpaceGrant {
    /// Takes `bytes` of the grant, if that much is left.
    fn take(&self, bytes: u64) -> bool {
        let left = |granted: u64| granted.checked_sub(bytes);
        self.granted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }

    /// Takes `bytes` of the disk's space, and grants a part of the rest.
    fn take_from(&self, space: Space, bytes: u64) -> bool {
        let rest = space.free.saturating_sub(reserved_space(space.capacity)).checked_sub(bytes);
        let grant = rest.map_or(0, |rest| (rest / GRANT_DIVISOR).min(MAX_GRANT_BYTES));
        self.granted.store(grant, Ordering::Relaxed);
        rest.is_some()
    }
}

impl Store {
    /// Refuses a change that needs space while the disk has only the reserve. Ranges with allocated
    /// space may always be overwritten.
    pub(crate) async fn ensure_space(&self, ino: ChunkFileId, range: ByteRange) -> Result<()> {
        let bytes = range.len();
        if self.space_grant.take(bytes) {
            return Ok(());
        }
        // Rare, and large: kept out of the future of every request.
        Box::pin(self.check_space(ino, range)).await
    }

    async fn check_space(&self, ino: ChunkFileId, range: ByteRange) -> Result<()> {
        let bytes = range.len();
        if self.space_grant.take_from(self.unclaimed_space().await?, bytes) {
            return Ok(());
        }
        if self.is_allocated(ino, range).await? {
            return Ok(());
        }
        rt::sleep(RECHECK_DELAY).await;
        let space = self.unclaimed_space().await?;
        match self.space_grant.take_from(space, bytes) {
            true => Ok(()),
            false => Err(self.no_space(space, bytes)),
        }
    }

    /// Whether the range certainly has its space: it holds data without a hole, or the whole file
    /// is allocated.
    pub(crate) async fn is_allocated(&self, ino: ChunkFileId, range: ByteRange) -> Result<bool> {
        let Some(file) = self.find(ino).await? else { return Ok(false) };
        let failed = |e| self.failed("stat", &file.path, e);
        let stat = file.cached.stat().await.map_err(failed)?;
        // This also counts blocks beyond the file's end, so a hole of at most that size may be
        // overlooked.
        if stat.blocks.saturating_mul(STAT_BLOCK_BYTES) >= stat.len.max(range.end) {
            return Ok(true);
        }
        let failed = |e| self.failed("seek in", &file.path, e);
        Ok(range.end <= stat.len && file.cached.seek_hole(range.start).await.map_err(failed)? >= range.end)
    }

    pub(crate) fn no_space(&self, space: Space, bytes: u64) -> StoreError {
        StoreError::new(
            Kind::NoSpace,
            format!(
                "target {}: no space for {bytes} bytes in {}: {} bytes of its disk are free, and {} of them are reserved for metadata and checksums",
                self.target(),
                self.dir.display(),
                space.free,
                reserved_space(space.capacity),
            ),
            "delete files, or add a target on another disk",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const RESERVE: u64 = 512 << 20;

    #[test]
    fn a_grant_is_used_up_and_never_reaches_into_the_reserve() {
        let room = SpaceGrant::default();
        assert!(!room.take(1), "nothing is granted before the first look");
        let free = |free| Space { capacity: 8 * GIB, free };
        assert!(room.take_from(free(4 * GIB), 1 << 20));
        assert!(room.take(MAX_GRANT_BYTES));
        assert!(!room.take(1));
        // After the requested 40 bytes, 160 are left beside the reserve.
        assert!(room.take_from(free(RESERVE + 200), 40));
        assert!(!room.take(11));
        assert!(room.take(10));
        assert!(!room.take_from(free(RESERVE + 39), 40));
        assert!(!room.take_from(free(0), 1));
        assert!(!room.take(1), "a refusal grants nothing");
    }
}
