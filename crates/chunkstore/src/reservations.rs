//! Reservations of space (`fallocate(2)`): none takes the disk's reserve.
//!
//! One reservation may ask for all space of a disk, and targets often share a disk. So a
//! reservation claims its bytes before it allocates any, and all stores of the process count the
//! claimed bytes of their disk that aren't allocated yet. A reservation allocates in pieces and
//! checks the disk before each: another process may write there, too.

use crate::chunk_file::ChunkFile;
use crate::error::Result;
use crate::read::whole_blocks;
use crate::reserve::RECHECK_DELAY;
use crate::store::{Space, Store};
use parking_lot::Mutex;
use rt::Fallocate;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, reserved_space};

/// Bytes that are reserved at a time. Bounds, for each process, what other processes on the same
/// disk can overlook.
const PIECE_BYTES: u64 = 64 << 20;

/// The space that a range needs, and the space of its disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceNeed {
    /// Id of the disk, among all of this machine.
    pub disk: u64,
    /// Bytes that chunk files may still take on it.
    pub free: u64,
    /// Bytes of the range that have no space yet.
    pub needed: u64,
    /// The first parts of the range without space.
    pub gaps: Vec<ByteRange>,
}

/// Claimed bytes of this process that aren't allocated yet, by disk.
#[derive(Default)]
struct Claims(Mutex<BTreeMap<u64, u64>>);

impl Claims {
    fn on(&self, disk: u64) -> u64 {
        self.0.lock().get(&disk).copied().unwrap_or(0)
    }
}

/// The claim of one reservation; its rest is released when this is dropped.
pub(crate) struct Claim {
    all: Arc<Claims>,
    disk: u64,
    left: u64,
}

impl Claim {
    fn none_on(disk: u64) -> Claim {
        Claim { all: rt::process_wide::<Claims>(), disk, left: 0 }
    }

    /// Claims bytes of `space` beside the reserve and other claims. `before`: claims before the
    /// disk was checked. Bytes that were allocated meanwhile are missing in one of both numbers,
    /// hence the maximum.
    fn take(&mut self, space: Space, before: u64, bytes: u64) -> bool {
        let mut by_disk = self.all.0.lock();
        let claimed = by_disk.entry(self.disk).or_default();
        let is_available = usable(space).saturating_sub(before.max(*claimed)) >= bytes;
        if is_available {
            *claimed += bytes;
            self.left += bytes;
        }
        is_available
    }

    fn consume(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        let mut by_disk = self.all.0.lock();
        let claimed = by_disk.entry(self.disk).or_default();
        *claimed = claimed.saturating_sub(bytes);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.consume(self.left);
    }
}

/// Bytes of a disk that chunk files may take.
fn usable(space: Space) -> u64 {
    space.free.saturating_sub(reserved_space(space.capacity))
}

impl Store {
    /// Returns the space that a range needs, with the first `most` parts that have none.
    pub async fn space_needed(&self, ino: ChunkFileId, range: ByteRange, most: usize) -> Result<SpaceNeed> {
        self.checked_end(ino, range.start, range.len())?;
        let (needed, gaps) = self.gaps(ino, range, most).await?;
        Ok(SpaceNeed { disk: self.disk()?, free: usable(self.unclaimed_space().await?), needed, gaps })
    }

    /// Returns the space of the disk without what reservations have claimed.
    pub(crate) async fn unclaimed_space(&self) -> Result<Space> {
        let claimed = rt::process_wide::<Claims>().on(self.disk()?);
        let space = self.space().await?;
        Ok(Space { free: space.free.saturating_sub(claimed), ..space })
    }

    /// Claims what a range needs.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::Kind::NoSpace): nothing is claimed or allocated then.
    pub(crate) async fn claim(&self, ino: ChunkFileId, range: ByteRange) -> Result<Claim> {
        let mut claim = Claim::none_on(self.disk()?);
        let (needed, _) = self.gaps(ino, range, 0).await?;
        if needed == 0 || self.try_claim(&mut claim, needed).await?.is_none() {
            return Ok(claim);
        }
        rt::sleep(RECHECK_DELAY).await;
        match self.try_claim(&mut claim, needed).await? {
            None => Ok(claim),
            Some(space) => Err(self.no_space(space, needed)),
        }
    }

    /// Returns the space if it was insufficient; `None` when the claim succeeded.
    async fn try_claim(&self, claim: &mut Claim, bytes: u64) -> Result<Option<Space>> {
        let before = claim.all.on(claim.disk);
        let space = self.space().await?;
        Ok((!claim.take(space, before, bytes)).then_some(space))
    }

    /// Allocates the space of a range, out of its claim.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::Kind::NoSpace) when other writers have filled the disk meanwhile:
    /// some of the range may have its space then.
    pub(crate) async fn reserve(
        &self,
        ino: ChunkFileId,
        file: &ChunkFile,
        range: ByteRange,
        mut claim: Claim,
    ) -> Result<()> {
        let mut start = range.start;
        while start < range.end {
            let piece = ByteRange::at(start, PIECE_BYTES).intersect(range);
            start = piece.end;
            let (needed, _) = self.gaps(ino, piece, 0).await?;
            if needed == 0 {
                continue;
            }
            let space = self.space().await?;
            if usable(space) < needed {
                return Err(self.no_space(space, needed));
            }
            self.fallocate(file, Fallocate::Reserve, piece).await?;
            claim.consume(needed);
        }
        Ok(())
    }

    /// Returns the bytes of a range's blocks without space, and the first `most` parts of it; no
    /// parts where the local file system does not list extents.
    async fn gaps(&self, ino: ChunkFileId, range: ByteRange, most: usize) -> Result<(u64, Vec<ByteRange>)> {
        if range.is_empty() {
            return Ok((0, Vec::new()));
        }
        let range = whole_blocks(range);
        let Some(file) = self.find(ino).await? else { return Ok((range.len(), vec![range])) };
        match file.cached.unallocated_ranges(range.start..range.end, most).await {
            Ok(gaps) => {
                let first = gaps.first.iter().map(|gap| ByteRange::new(gap.start, gap.end));
                Ok((gaps.bytes, first.collect()))
            }
            Err(_) if self.is_allocated(ino, range).await? => Ok((0, Vec::new())),
            Err(_) => Ok((range.len(), Vec::new())),
        }
    }

    fn disk(&self) -> Result<u64> {
        rt::file_system_id(&self.dir).map_err(|e| self.failed("stat", &self.dir, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const RESERVE: u64 = 512 << 20;

    #[test]
    fn claims_on_one_disk_add_up_until_they_end() {
        // A disk that no other test uses.
        let on = |disk| Claim::none_on(disk);
        let space = Space { capacity: 6 * GIB, free: 4 * GIB + RESERVE };
        let (mut first, mut second, mut elsewhere) = (on(u64::MAX), on(u64::MAX), on(u64::MAX - 1));
        assert!(first.take(space, 0, 3 * GIB));
        assert!(!second.take(space, 0, GIB + 1));
        assert!(elsewhere.take(space, 0, 4 * GIB));
        assert!(second.take(space, 0, GIB));
        drop(second);
        let mut third = on(u64::MAX);
        assert!(!third.take(space, 4 * GIB, 1), "what was claimed before the check counts");
        first.consume(2 * GIB);
        let after = Space { free: space.free - 2 * GIB, ..space };
        assert!(third.take(after, 0, GIB));
        assert!(!third.take(after, 0, 1));
        drop((first, third));
        assert!(on(u64::MAX).take(space, 0, 4 * GIB), "nothing is left of claims that have ended");
    }
}
