//! Giving up unreadable content.

use crate::chunk_file::ChunkFile;
use crate::error::{Kind, Result};
use crate::range_lock::WritePath;
use crate::read::{BLOCK, whole_blocks};
use crate::store::{IoPath, Store};
use rt::{Fallocate, IoBuf};
use std::sync::Arc;
use types::{BLOCK_SIZE, ByteRange, ChunkFileId};

impl Store {
    /// Turns the unreadable blocks of a range into holes: they read as zeros afterwards, and
    /// everything else stays as it is. Returns what was lost, in order. A chunk file that is
    /// absent, empty, or ends before the range becomes a hole up to the end of the range: the whole
    /// range was lost then. Damage that its checksums show between its end and the range stays.
    ///
    /// Each block is checked with its range held, so that content that was overwritten meanwhile is
    /// safe. Nothing is removed or truncated.
    pub async fn give_up(&self, ino: ChunkFileId, range: ByteRange) -> Result<Vec<ByteRange>> {
        self.checked_end(ino, range.start, range.len())?;
        self.retire_entries_if_full().await?;
        let file = self.find_or_recreate(ino).await?;
        if self.make_hole(&file, range).await? {
            self.incomplete.forget(ino);
            self.flush_sums(&file).await?;
            self.sync_file(&file).await?;
            self.sync_sums(&file).await?;
            return Ok(vec![range]);
        }
        let mut lost: Vec<ByteRange> = Vec::new();
        let blocks = whole_blocks(range);
        let mut at = blocks.start;
        while at < blocks.end {
            let block = ByteRange::at(at, BLOCK);
            at = block.end;
            if !self.give_up_block(&file, block).await? {
                continue;
            }
            match lost.last_mut() {
                Some(last) if last.end == block.start => last.end = block.end,
                _ => lost.push(block),
            }
        }
        if !lost.is_empty() {
            self.flush_sums(&file).await?;
            self.sync_file(&file).await?;
            self.sync_sums(&file).await?;
        }
        Ok(lost)
    }

    /// Returns the chunk file. If another program has removed it, it is created again beside its
    /// checksums, which distinguish new content from lost content.
    async fn find_or_recreate(&self, ino: ChunkFileId) -> Result<Arc<ChunkFile>> {
        let _in_progress = self.begin_change()?;
        if self.find(ino).await?.is_none() && self.is_missing(ino).await? {
            self.recreate(ino).await?;
        }
        self.find_or_create(ino).await
    }

    /// Turns an empty chunk file, or one that ends before a range, into a hole up to the end of the
    /// range. False: it has bytes there.
    async fn make_hole(&self, file: &Arc<ChunkFile>, range: ByteRange) -> Result<bool> {
        let _in_progress = self.begin_change()?;
        // The whole file, so that no write runs anywhere in it meanwhile.
        let _held = file.ranges.acquire(ByteRange::new(0, u64::MAX), WritePath::Cached).await;
        let failed = |e| self.failed("extend", &file.path, e);
        let len = file.cached.stat().await.map_err(failed)?.len;
        if len > 0 && len > range.start {
            return Ok(false);
        }
        self.mark_dirty(file, range).await?;
        // The block in which it ends has always had zeros beyond its end. Checksums before the
        // range stay: the content that they describe isn't given up, and must not read as zeros.
        let first = range.start.max(len.next_multiple_of(BLOCK));
        self.clear_sums(file, whole_blocks(ByteRange::new(first, range.end))).await?;
        self.mark_unsynced(file);
        file.cached.set_len(range.end).await.map_err(failed)?;
        self.mark_unsynced(file);
        Ok(true)
    }

    /// True: it was unreadable, and is a hole now.
    async fn give_up_block(&self, file: &Arc<ChunkFile>, block: ByteRange) -> Result<bool> {
        let _in_progress = self.begin_change()?;
        let _held = file.ranges.acquire(block, WritePath::Cached).await;
        let buf = IoBuf::alloc(BLOCK_SIZE);
        let read = match self.fetch(file, block, &buf, IoPath::Cached).await {
            Ok(()) => self.check_held(file, block, &buf).await,
            failed => failed,
        };
        match read {
            Ok(()) => return Ok(false),
            Err(e) if matches!(e.kind(), Kind::Corrupt { .. } | Kind::Io) => {}
            Err(e) => return Err(e),
        }
        // Without an entry: recovery after a crash would compute checksums from the data, which
        // would validate the damage. Whatever part of this is on disk when power fails, the block
        // still doesn't match, or is the intended hole.
        self.fallocate(file, Fallocate::Punch, block).await?;
        self.clear_sums(file, block).await?;
        Ok(true)
    }
}
