//! Search for data and holes.
//!
//! A block whose checksum is that of data is no hole, even if the local file system has nothing
//! there: its content was lost, and a reader that took it for zeros would make that final. So what
//! is reported as a hole reads as zeros, and a read of what is reported as data meets the damage.

use crate::block_sums::{PAGE_BYTES, PAGE_SUMS};
use crate::chunk_file::ChunkFile;
use crate::error::Result;
use crate::min_length::At;
use crate::read::BLOCK;
use crate::store::{Seek, Store};
use crate::survey::SUM_OF_ZEROS;
use std::sync::Arc;
use types::{BlockSum, ByteRange, ChunkFileId};

/// Whether the checksum is that of data, so that a block of zeros doesn't match.
fn is_data_sum(sum: &BlockSum) -> bool {
    *sum != BlockSum::HOLE && *sum != BlockSum::UNCHECKED && *sum != *SUM_OF_ZEROS
}

impl Store {
    /// Returns the first data or hole at or after `from`. The end is a hole; `None` when there is
    /// no more data.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) for a chunk file that another program has removed.
    pub async fn seek(&self, ino: ChunkFileId, from: u64, what: Seek) -> Result<Option<u64>> {
        self.seek_at(At { ino, offset: from, min_len: 0 }, what).await
    }

    /// The same, where the chunk file has a known minimum length.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt), too, when it is absent or shorter, and `at` is
    /// below that length: missing content must not be taken for a hole.
    pub async fn seek_at(&self, at: At, what: Seek) -> Result<Option<u64>> {
        let At { ino, offset: from, min_len } = at;
        let Some(file) = self.find(ino).await? else {
            if Box::pin(self.is_missing(ino)).await? {
                return Err(self.report_removed(ino, ByteRange::new(0, u64::MAX)));
            }
            if from < min_len {
                self.require_explained_absence(ino, min_len)?;
            }
            return Ok((what == Seek::Hole).then_some(from));
        };
        if from < min_len {
            self.require_len(&file, min_len).await?;
        }
        match what {
            Seek::Data => self.seek_data(&file, from).await,
            Seek::Hole => self.seek_hole(&file, from).await.map(Some),
        }
    }

    /// Fails for a chunk file that another program has truncated: its checksums show that it was
    /// longer.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) with the first missing block. Doesn't check the
    /// block in which the file ends now.
    pub async fn require_not_truncated(&self, ino: ChunkFileId) -> Result<()> {
        let Some(file) = self.find(ino).await? else { return Ok(()) };
        let len = file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?.len;
        match self.first_lost(&file, len.div_ceil(BLOCK), u64::MAX / BLOCK).await? {
            Some(block) => Err(self.report_corrupt(ino, ByteRange::at(block * BLOCK, BLOCK))),
            None => Ok(()),
        }
    }

    async fn seek_data(&self, file: &Arc<ChunkFile>, from: u64) -> Result<Option<u64>> {
        let data = self.local_data(file, from).await?;
        let first = self.first_in_hole(file, from).await?;
        let end = data.map_or(u64::MAX, |at| at) / BLOCK;
        Ok(match self.first_lost(file, first / BLOCK, end).await? {
            // Including the rest of a block before it.
            Some(block) if block * BLOCK <= first => Some(from),
            Some(block) => Some(block * BLOCK),
            None => data,
        })
    }

    async fn seek_hole(&self, file: &Arc<ChunkFile>, from: u64) -> Result<u64> {
        let failed = |e| self.failed("seek in", &file.path, e);
        let len = file.cached.stat().await.map_err(failed)?.len;
        let mut at = from;
        loop {
            // Everything beyond the end is a hole, for which the local file system returns an
            // error.
            let hole = if at >= len { at } else { file.cached.seek_hole(at).await.map_err(failed)? };
            let first = self.first_in_hole(file, hole).await?;
            let lost_until = self.lost_until(file, first).await?;
            if lost_until == first {
                return Ok(hole);
            }
            at = lost_until;
        }
    }

    /// Returns the first data at or after an offset as the local file system reports it.
    async fn local_data(&self, file: &ChunkFile, from: u64) -> Result<Option<u64>> {
        file.cached.seek_data(from).await.map_err(|e| self.failed("seek in", &file.path, e))
    }

    /// Returns the first block from an offset on, but skips one that begins with data before the
    /// offset: a read of that one verifies it.
    async fn first_in_hole(&self, file: &ChunkFile, at: u64) -> Result<u64> {
        let start = at / BLOCK * BLOCK;
        let begins_with_data =
            at > start && self.local_data(file, start).await?.is_some_and(|data| data < at);
        Ok(if begins_with_data { start.saturating_add(BLOCK) } else { start })
    }

    /// Returns the first block in a range of blocks, all in a hole, that has a checksum of data.
    async fn first_lost(&self, file: &Arc<ChunkFile>, first: u64, end: u64) -> Result<Option<u64>> {
        let mut at = first;
        while at < end
            && let Some(page) = self.next_sum_page(file, at / PAGE_SUMS).await?
        {
            at = at.max(page * PAGE_SUMS);
            let until = ((page + 1) * PAGE_SUMS).min(end);
            let mut sums = [BlockSum::HOLE; PAGE_SUMS as usize];
            let sums = &mut sums[..until.saturating_sub(at) as usize];
            self.copy_sums(file, at, sums).await?;
            if let Some(index) = sums.iter().position(is_data_sum) {
                return Ok(Some(at + index as u64));
            }
            at = until;
        }
        Ok(None)
    }

    /// Returns the end of the run of blocks from `first` on that have checksums of data although
    /// they are in a hole; `first` if there are none.
    async fn lost_until(&self, file: &Arc<ChunkFile>, first: u64) -> Result<u64> {
        let end = self.local_data(file, first).await?.unwrap_or(u64::MAX) / BLOCK;
        let mut at = first / BLOCK;
        while at < end && self.next_sum_page(file, at / PAGE_SUMS).await? == Some(at / PAGE_SUMS) {
            let until = ((at / PAGE_SUMS + 1) * PAGE_SUMS).min(end);
            let mut sums = [BlockSum::HOLE; PAGE_SUMS as usize];
            let sums = &mut sums[..(until - at) as usize];
            self.copy_sums(file, at, sums).await?;
            if let Some(index) = sums.iter().position(|sum| !is_data_sum(sum)) {
                return Ok((at + index as u64) * BLOCK);
            }
            at = until;
        }
        Ok(at * BLOCK)
    }

    /// Returns the first page of checksums from a number on that is in memory or on disk: all
    /// others are of holes, and are neither read nor cached.
    async fn next_sum_page(&self, file: &ChunkFile, from: u64) -> Result<Option<u64>> {
        // First, since an evicted page is on disk by then.
        let loaded = file.sums.next_page(from);
        if loaded == Some(from) {
            return Ok(loaded);
        }
        let failed = |e| self.failed("seek in", file.sum_path(), e);
        let stored = match file.sum_file().await.map_err(failed)? {
            Some(sums) => sums.seek_data(from * PAGE_BYTES as u64).await.map_err(failed)?,
            None => None,
        };
        Ok(stored.map(|at| at / PAGE_BYTES as u64).into_iter().chain(loaded).min())
    }
}
