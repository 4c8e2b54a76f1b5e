//! Writing.

use crate::block_sums::{PAGE_SUMS, sum_of_written};
use crate::chunk_file::{Change, ChunkFile};
use crate::error::Result;
use crate::min_length::At;
use crate::range_lock::WritePath;
use crate::read::{BLOCK, whole_blocks};
use crate::store::{IoPath, Store};
use rt::{File, IoBuf};
use std::future::ready;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use types::{BLOCK_SIZE, BlockSum, ByteRange, ChunkFileId, block_sum};

/// When a write reaches the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Before its answer.
    Now,
    /// In the background: within about a second once the chunk file isn't changed any more, within
    /// about five while it is; at once by a sync.
    Later,
}

impl Store {
    /// Writes all of `buf` at `offset`; creates the chunk file if necessary. `buf` must not change
    /// meanwhile.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::Kind::NoSpace): nothing or a part was written.
    /// [`Kind::Corrupt`](crate::Kind::Corrupt): the write covers a part of a block whose rest is
    /// damaged; nothing was written.
    pub async fn write(
        &self,
        ino: ChunkFileId,
        offset: u64,
        buf: &IoBuf,
        path: IoPath,
        durability: Durability,
    ) -> Result<()> {
        self.write_at(At { ino, offset, min_len: 0 }, buf, path, durability, ready(Ok(()))).await
    }

    /// As [`Store::write`], with a future `then` that runs after the bytes are written and before
    /// any reader can see them: readers that find bytes without their checksums wait for the range,
    /// which is held. If it fails, the write has failed.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt), too, when the chunk file ends before its known
    /// length and before the write: the missing part would become a hole.
    pub async fn write_at(
        &self,
        At { ino, offset, min_len }: At,
        buf: &IoBuf,
        path: IoPath,
        durability: Durability,
        then: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        self.statistics.writes.add(1);
        self.statistics.written_bytes.add(buf.len() as u64);
        if buf.is_empty() {
            return Ok(());
        }
        let range = ByteRange::new(offset, self.checked_end(ino, offset, buf.len() as u64)?);
        self.ensure_space(ino, range).await?;
        self.retire_entries_if_full().await?;
        let _in_progress = self.begin_change()?;
        let file = self.find_with_len(ino, min_len.min(offset)).await?;
        let blocks = whole_blocks(range);
        let direct = match path {
            IoPath::Direct if blocks == range && buf.is_aligned() => {
                file.direct().await.map_err(|e| self.failed("open", &file.path, e))?
            }
            _ => None,
        };
        let write_path = if direct.is_some() { WritePath::Direct } else { WritePath::Cached };
        let _held = file.ranges.acquire(blocks, write_path).await;
        let sums = self.sums_after_write(&file, range, buf).await?;
        self.load_sums_of(&file, blocks).await?;
        self.mark_dirty(&file, range).await?;
        if direct.is_some() {
            self.statistics.direct_writes.add(1);
        }
        let change = Change::begin(&file, blocks);
        // From here on bytes may be on disk, whatever happens to the rest.
        self.mark_unsynced(&file);
        let written = write_data(direct.unwrap_or(&file.cached), buf, offset, durability).await;
        let noted = if written.is_ok() { then.await } else { Ok(()) };
        // Again, since a sync may have begun and ended in between.
        self.mark_unsynced(&file);
        if let Err(e) = written {
            drop(change);
            Box::pin(self.rebuild_held(&file, blocks)).await;
            return Err(self.failed("write", &file.path, e));
        }
        if noted.is_err() {
            drop(change);
            Box::pin(self.rebuild_held(&file, blocks)).await;
            return noted;
        }
        self.set_sums(&file, blocks.start / BLOCK, &sums).await?;
        change.complete();
        Ok(())
    }

    /// Returns the checksums of all blocks that a write touches, as they are afterwards.
    async fn sums_after_write(
        &self,
        file: &Arc<ChunkFile>,
        range: ByteRange,
        buf: &IoBuf,
    ) -> Result<Vec<BlockSum>> {
        let blocks = whole_blocks(range);
        if blocks == range && types::checksums_enabled() {
            let known = buf.with_checksums(|sums| sums.iter().copied().map(BlockSum::of).collect());
            if let Some(known) = known {
                return Ok(known);
            }
        }
        let mut sums = Vec::with_capacity((blocks.len() / BLOCK) as usize);
        let mut at = blocks.start;
        while at < blocks.end {
            let part = range.intersect(ByteRange::at(at, BLOCK));
            let from = (part.start - range.start) as usize;
            let data = &buf.as_slice()[from..from + part.len() as usize];
            sums.push(if data.len() == BLOCK_SIZE {
                sum_of_written(data)
            } else {
                let within = (part.start - at) as usize..(part.end - at) as usize;
                Box::pin(self.sum_after_change(file, at, within, Some(data))).await?
            });
            at += BLOCK;
        }
        Ok(sums)
    }

    /// Returns the checksum of the block at `start` after a part of it becomes `data`, or zeros.
    /// The caller holds the block. The old content is verified first: otherwise a new checksum
    /// would validate old damage. A block that couldn't be verified stays without checksum.
    pub(crate) async fn sum_after_change(
        &self,
        file: &Arc<ChunkFile>,
        start: u64,
        within: Range<usize>,
        data: Option<&[u8]>,
    ) -> Result<BlockSum> {
        let block = IoBuf::alloc(BLOCK_SIZE);
        let whole = ByteRange::at(start, BLOCK);
        self.fetch(file, whole, &block, IoPath::Cached).await?;
        if let Err(damage) = self.check_held(file, whole, &block).await {
            let end = file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?.len;
            let stays = within.start > 0 || start + (within.end as u64) < end;
            if data.is_none() || stays {
                return Err(damage);
            }
            // No damaged bytes remain: everything beyond the end is zeros.
            block.zero(0..BLOCK_SIZE);
        }
        let mut known = [BlockSum::HOLE];
        self.copy_sums(file, start / BLOCK, &mut known).await?;
        if known[0] == BlockSum::UNCHECKED {
            return Ok(BlockSum::UNCHECKED);
        }
        match data {
            Some(data) => block.copy_from(within.start, data),
            None => block.zero(within),
        }
        Ok(block_sum(block.as_slice()))
    }

    /// Loads the checksums of some blocks into memory.
    pub(crate) async fn load_sums_of(&self, file: &Arc<ChunkFile>, blocks: ByteRange) -> Result<()> {
        let last = (blocks.end / BLOCK).saturating_sub(1) / PAGE_SUMS;
        for page in blocks.start / BLOCK / PAGE_SUMS..=last {
            if !file.sums.contains(page) {
                self.load_sums(file, crate::block_sums::Missing(page)).await?;
            }
        }
        Ok(())
    }

    /// Copies checksums of consecutive blocks.
    pub(crate) async fn copy_sums(
        &self,
        file: &Arc<ChunkFile>,
        first_block: u64,
        out: &mut [BlockSum],
    ) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            let block = first_block + done as u64;
            let n = (out.len() - done).min((PAGE_SUMS - block % PAGE_SUMS) as usize);
            while let Err(missing) = file.sums.copy(block, &mut out[done..done + n]) {
                self.load_sums(file, missing).await?;
            }
            done += n;
        }
        Ok(())
    }

    /// Sets checksums of blocks that the caller holds.
    pub(crate) async fn set_sums(
        &self,
        file: &Arc<ChunkFile>,
        first_block: u64,
        sums: &[BlockSum],
    ) -> Result<()> {
        // A page at a time, so that a large write doesn't need all its pages in memory at once.
        let mut done = 0;
        while done < sums.len() {
            let block = first_block + done as u64;
            let n = (sums.len() - done).min((PAGE_SUMS - block % PAGE_SUMS) as usize);
            while let Err(missing) = file.sums.set(block, &sums[done..done + n]) {
                self.load_sums(file, missing).await?;
            }
            done += n;
        }
        Ok(())
    }
}

async fn write_data(file: &File, buf: &IoBuf, offset: u64, durability: Durability) -> io::Result<usize> {
    match durability {
        Durability::Now => file.write_at_durable(buf.clone(), offset).await,
        Durability::Later => file.write_at(buf.clone(), offset).await,
    }
}
