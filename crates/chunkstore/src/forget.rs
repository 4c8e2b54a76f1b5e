//! Giving up what can't be read any more.

use crate::chunk_file::ChunkFile;
use crate::error::{Kind, Result};
use crate::range_lock::Passage;
use crate::read::{BLOCK, whole_blocks};
use crate::store::{IoPath, Store};
use rt::{Fallocate, IoBuf};
use std::sync::Arc;
use types::{BLOCK_SIZE, ByteRange, InodeId};

impl Store {
    /// Makes holes of the blocks of a range that can't be read: they read as zeros afterwards, and everything else stays as it is. What was lost, in
    /// order. One that isn't there, or has nothing in it, is made, as a hole up to the end of the range: all of the range was lost then.
    ///
    /// Each block is looked at while nobody changes it, so that what was written over meanwhile is safe.
    pub async fn forget(&self, ino: InodeId, range: ByteRange) -> Result<Vec<ByteRange>> {
        self.end_of(ino, range.start, range.len())?;
        let Some(file) = self.find(ino).await? else {
            // What is left of one that somebody else has removed.
            self.delete(ino).await?;
            self.set_len(ino, range.end).await?;
            return Ok(vec![range]);
        };
        let is_empty = file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?.len == 0;
        let mut lost: Vec<ByteRange> = Vec::new();
        let blocks = whole_blocks(range);
        let mut at = blocks.start;
        while at < blocks.end {
            let block = ByteRange::at(at, BLOCK);
            at = block.end;
            if !self.forget_block(&file, block).await? {
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
        if is_empty {
            self.set_len(ino, range.end).await?;
            return Ok(vec![range]);
        }
        Ok(lost)
    }

    /// True: it could not be read, and is a hole now.
    async fn forget_block(&self, file: &Arc<ChunkFile>, block: ByteRange) -> Result<bool> {
        let _in_progress = self.begin_change()?;
        let _held = file.ranges.acquire(block, Passage::Cached).await;
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
        // Without a note: after a crash that makes checksums of what is there, and the damage would look right. Whatever of this is on disk when the
        // power goes, the block still doesn't match, or is the hole that it is to be.
        self.fallocate(file, Fallocate::Punch, block).await?;
        self.clear_sums(file, block).await?;
        Ok(true)
    }
}
