//! Reading.
//!
//! A read takes no lock: it reads blocks, then compares them with their checksums. A concurrent
//! write can make the comparison fail. So a mismatch only counts if it persists with the range
//! held, when no write can be running there.

use crate::block_sums::{PAGE_SUMS, known_crc};
use crate::chunk_file::ChunkFile;
use crate::error::{Result, StoreError};
use crate::min_length::At;
use crate::range_lock::WritePath;
use crate::store::{IoPath, Store};
use rt::IoBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{BLOCK_SIZE, BlockSum, ByteRange, ChunkFileId};

/// Damaged blocks that are remembered as logged.
const MAX_REPORTED_BLOCKS: usize = 4096;

/// Number of uncached reads of a chunk file that go through the page cache before further ones
/// bypass it: small files have few reads.
const CACHED_READS_BEFORE_BYPASS: u32 = 16;

/// Bytes of data that a page of checksums covers.
const PAGE_DATA_BYTES: u64 = PAGE_SUMS * BLOCK;

/// Length of a block, for offset arithmetic.
pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;

/// The whole blocks that a range touches, as bytes.
pub(crate) fn whole_blocks(range: ByteRange) -> ByteRange {
    ByteRange::new(range.start / BLOCK * BLOCK, range.end.div_ceil(BLOCK).saturating_mul(BLOCK))
}

impl Store {
    /// Fills `buf` from `offset`; holes and everything beyond the end read as zeros.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) when data doesn't match its checksums; the content
    /// of `buf` is undefined then.
    pub async fn read(&self, ino: ChunkFileId, offset: u64, buf: &IoBuf, path: IoPath) -> Result<()> {
        self.read_at(At { ino, offset, min_len: 0 }, buf, path).await
    }

    /// The same, where the chunk file has a known minimum length.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt), too, when the read begins below that length and the
    /// chunk file is absent, or ends before both that length and the end of the read.
    pub async fn read_at(&self, at: At, buf: &IoBuf, path: IoPath) -> Result<()> {
        let At { ino, offset, min_len } = at;
        self.statistics.reads.add(1);
        self.statistics.read_bytes.add(buf.len() as u64);
        if buf.is_empty() {
            return Ok(());
        }
        let end = self.checked_end(ino, offset, buf.len() as u64)?;
        let range = ByteRange::new(offset, end);
        let Some(file) = self.find(ino).await? else {
            if Box::pin(self.is_missing(ino)).await? {
                return Err(self.report_removed(ino, whole_blocks(range)));
            }
            if offset < min_len {
                self.require_explained_absence(ino, min_len)?;
            }
            buf.zero(0..buf.len());
            return Ok(());
        };
        self.read_file(&file, range, buf, path).await?;
        let needed = if offset < min_len { min_len.min(end) } else { 0 };
        if needed > file.min_len.load(Ordering::Relaxed) {
            return Box::pin(self.require_len(&file, needed)).await;
        }
        Ok(())
    }

    async fn read_file(
        &self,
        file: &Arc<ChunkFile>,
        range: ByteRange,
        buf: &IoBuf,
        path: IoPath,
    ) -> Result<()> {
        if !types::checksums_enabled() {
            return self.fetch_unaligned(file, range.start, buf, path).await;
        }
        let blocks = whole_blocks(range);
        if blocks == range {
            let path = self.io_path_of(file, blocks, path);
            return self.read_blocks(file, blocks, buf, path).await;
        }
        Box::pin(self.read_within(file, range, buf)).await
    }

    /// Returns the I/O path of a read of whole blocks: a first read of blocks that aren't in memory
    /// bypasses the page cache.
    fn io_path_of(&self, file: &ChunkFile, blocks: ByteRange, asked: IoPath) -> IoPath {
        let is_known = || self.recent_reads.record(file.ino, blocks.start / BLOCK, blocks.end / BLOCK);
        if asked == IoPath::Direct || is_known() || file.cached.may_be_cached(blocks.start, blocks.len()) {
            return asked;
        }
        // A second descriptor has to pay off.
        if file.misses.fetch_add(1, Ordering::Relaxed) < CACHED_READS_BEFORE_BYPASS {
            asked
        } else {
            IoPath::Direct
        }
    }

    /// Checksums cover whole blocks, so this reads whole blocks and copies the requested part.
    async fn read_within(&self, file: &Arc<ChunkFile>, range: ByteRange, buf: &IoBuf) -> Result<()> {
        let blocks = whole_blocks(range);
        let scratch = IoBuf::alloc(blocks.len() as usize);
        self.read_blocks(file, blocks, &scratch, IoPath::Cached).await?;
        let from = (range.start - blocks.start) as usize;
        buf.copy_from(0, &scratch.as_slice()[from..from + buf.len()]);
        Ok(())
    }

    /// Reads without verifying checksums.
    async fn fetch_unaligned(&self, file: &ChunkFile, offset: u64, buf: &IoBuf, path: IoPath) -> Result<()> {
        let range = ByteRange::at(offset, buf.len() as u64);
        let path = if whole_blocks(range) == range { path } else { IoPath::Cached };
        self.fetch(file, range, buf, path).await
    }

    /// Reads and verifies whole blocks.
    pub(crate) async fn read_blocks(
        &self,
        file: &Arc<ChunkFile>,
        blocks: ByteRange,
        buf: &IoBuf,
        path: IoPath,
    ) -> Result<()> {
        self.fetch(file, blocks, buf, path).await?;
        if buf.defers_verification() && self.attach_stored_sums(file, blocks, buf).await? {
            return Ok(());
        }
        if self.first_mismatch(file, blocks, buf).await?.is_none() {
            return Ok(());
        }
        // Rare, and large: kept out of the future of every request.
        Box::pin(self.read_locked(file, blocks, buf, path)).await
    }

    /// Attaches the stored checksums of the blocks to the buffer, for a receiver that verifies
    /// them. False if some blocks have none.
    async fn attach_stored_sums(
        &self,
        file: &Arc<ChunkFile>,
        blocks: ByteRange,
        buf: &IoBuf,
    ) -> Result<bool> {
        let mut sums = vec![BlockSum::HOLE; (blocks.len() / BLOCK) as usize];
        self.copy_sums(file, blocks.start / BLOCK, &mut sums).await?;
        let stored: Option<Vec<u32>> = sums.into_iter().map(known_crc).collect();
        let is_known = stored.is_some();
        stored.into_iter().for_each(|stored| buf.note_stored_checksums(stored));
        Ok(is_known)
    }

    /// The same with the range held, so that no write runs there.
    async fn read_locked(
        &self,
        file: &Arc<ChunkFile>,
        blocks: ByteRange,
        buf: &IoBuf,
        path: IoPath,
    ) -> Result<()> {
        self.statistics.read_retries.add(1);
        let _held = file.ranges.acquire(blocks, WritePath::None).await;
        self.fetch(file, blocks, buf, path).await?;
        self.check_held(file, blocks, buf).await
    }

    /// Verifies blocks that were read with their range held.
    pub(crate) async fn check_held(
        &self,
        file: &Arc<ChunkFile>,
        blocks: ByteRange,
        buf: &IoBuf,
    ) -> Result<()> {
        let Some(bad) = self.first_mismatch(file, blocks, buf).await? else { return Ok(()) };
        if file.deleted.load(Ordering::Acquire) {
            // Its checksums were deleted with it.
            buf.zero(0..buf.len());
            return Ok(());
        }
        if file.stale_sums().is_some_and(|unsettled| unsettled.overlaps(blocks)) {
            // A change that failed half-way explains it; the data counts.
            self.accept_found(file, blocks, buf).await?;
            let Some(bad) = self.first_mismatch(file, blocks, buf).await? else { return Ok(()) };
            return Err(self.report_corrupt(file.ino, bad));
        }
        Err(self.report_corrupt(file.ino, bad))
    }

    /// Reads whole blocks without verifying them; zeros beyond the end.
    pub(crate) async fn fetch(
        &self,
        file: &ChunkFile,
        blocks: ByteRange,
        buf: &IoBuf,
        path: IoPath,
    ) -> Result<()> {
        let failed = |e| self.failed("read", &file.path, e);
        let direct = if path == IoPath::Direct && buf.is_aligned() {
            file.direct().await.map_err(failed)?
        } else {
            None
        };
        if direct.is_some() {
            self.statistics.direct_reads.add(1);
        }
        let got = direct.unwrap_or(&file.cached).read_at(buf.clone(), blocks.start).await.map_err(failed)?;
        if got < buf.len() {
            // The file may have become shorter: requests that rely on its length check it again.
            file.min_len.fetch_min(blocks.start + got as u64, Ordering::Relaxed);
            buf.zero(got..buf.len());
        }
        Ok(())
    }

    /// Returns the first run of blocks that don't match their checksums; it may continue in the
    /// next page of checksums. If there is none, the buffer knows its checksums from now on, for
    /// the sender.
    pub(crate) async fn first_mismatch(
        &self,
        file: &Arc<ChunkFile>,
        blocks: ByteRange,
        buf: &IoBuf,
    ) -> Result<Option<ByteRange>> {
        let mut known = Some(Vec::with_capacity((blocks.len() / BLOCK) as usize));
        let mut at = blocks.start;
        while at < blocks.end {
            // A page at a time, so that any budget for checksums is sufficient.
            let end = (at / PAGE_DATA_BYTES + 1).saturating_mul(PAGE_DATA_BYTES).min(blocks.end);
            let data = &buf.as_slice()[(at - blocks.start) as usize..(end - blocks.start) as usize];
            match file.sums.first_mismatch(at / BLOCK, data, &mut known) {
                Ok(None) => at = end,
                Ok(Some((from, to))) => return Ok(Some(ByteRange::new(from * BLOCK, to * BLOCK))),
                Err(missing) => {
                    // This part is compared again.
                    known.iter_mut().for_each(|known| known.truncate(((at - blocks.start) / BLOCK) as usize));
                    self.load_sums(file, missing).await?;
                }
            }
        }
        known.into_iter().for_each(|known| buf.note_checksums(known));
        Ok(None)
    }

    /// Returns an error for damage, and logs it once.
    pub(crate) fn report_corrupt(&self, ino: ChunkFileId, range: ByteRange) -> StoreError {
        self.report(ino, range, StoreError::corrupt(self.target(), ino, range))
    }

    /// The same for a chunk file that another program has removed.
    #[cold]
    pub(crate) fn report_removed(&self, ino: ChunkFileId, range: ByteRange) -> StoreError {
        self.report(ino, range, StoreError::removed(self.target(), ino, range))
    }

    pub(crate) fn report(&self, ino: ChunkFileId, range: ByteRange, error: StoreError) -> StoreError {
        let mut reported = self.reported.lock();
        if reported.len() < MAX_REPORTED_BLOCKS && reported.insert((ino, range.start / BLOCK)) {
            self.statistics.corrupt_ranges.add(1);
            tracing::error!(target_id = %self.target(), inode = %ino, %range, "{error}");
        }
        error
    }
}
