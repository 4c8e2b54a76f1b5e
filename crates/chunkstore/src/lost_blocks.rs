//! Lost blocks: no replica has their content any more, while the file stays in use. They are
//! refused on every replica, so that no reader takes older content for what was written.
//!
//! A marked block is filled with [`MARK`], and its stored checksum doesn't match that. So it looks
//! like any damaged block: reads refuse it, a scrub and `weft fsck` report it, and a write of the
//! whole block makes it valid. The content matters after a crash, when the checksums of dirty
//! regions are rebuilt from the data: it identifies the mark, which stays.

use crate::chunk_file::ChunkFile;
use crate::error::Result;
use crate::range_lock::WritePath;
use crate::read::{BLOCK, whole_blocks};
use crate::store::Store;
use rt::IoBuf;
use std::sync::Arc;
use types::{BLOCK_SIZE, BlockSum, ByteRange, ChunkFileId, block_sum};

/// The content of a marked block, repeated up to the end of the file: half of it readable text,
/// half of it random, so that no application writes it.
const MARK: [u8; 32] = *b"weft: data lost\n\x29\x7c\xfa\x1a\xcc\x1f\x0f\x0e\x0c\x87\x45\x03\x9b\x13\x2b\xe7";

/// XORed into the checksum of a marked block's content.
const MARK_XOR: u32 = 0x5a5a_5a5a;

/// Bytes marked at a time.
const SEGMENT_BYTES: u64 = 1 << 20;

/// Whether a block has been marked. Can't tell for a last block that ends within the first copy of
/// the mark.
pub(crate) fn is_mark(block: &[u8]) -> bool {
    if !block.starts_with(&MARK) {
        return false;
    }
    let marked = block.iter().zip(MARK.iter().cycle()).take_while(|(byte, mark)| byte == mark).count();
    block[marked..].iter().all(|byte| *byte == 0)
}

/// Returns the checksum that is stored for a marked block: not its own.
pub(crate) fn sum_of_mark(block: &[u8]) -> BlockSum {
    BlockSum(block_sum(block).0 ^ MARK_XOR)
}

impl Store {
    /// Marks the whole blocks of a range as lost, up to the end of the chunk file: they can't be
    /// read until they are rewritten, or given up by [`Store::give_up`].
    pub async fn mark_lost(&self, ino: ChunkFileId, range: ByteRange) -> Result<()> {
        self.checked_end(ino, range.start, range.len())?;
        let _in_progress = self.begin_change()?;
        let Some(file) = self.find(ino).await? else { return Ok(()) };
        let blocks = whole_blocks(range);
        let _held = file.ranges.acquire(blocks, WritePath::Cached).await;
        let len = file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?.len;
        let mut at = blocks.start;
        while at < blocks.end.min(len) {
            let segment = ByteRange::at(at, SEGMENT_BYTES).intersect(blocks);
            self.mark_segment(&file, segment.intersect(ByteRange::new(0, len))).await?;
            at = segment.end;
        }
        // Without an entry, as in [`Store::give_up`]: whatever part of this is on disk when power
        // fails, the blocks don't match.
        self.flush_sums(&file).await?;
        self.sync_file(&file).await?;
        self.sync_sums(&file).await
    }

    /// Marks a segment, which the caller holds. It begins with a block.
    async fn mark_segment(&self, file: &Arc<ChunkFile>, segment: ByteRange) -> Result<()> {
        let data = IoBuf::alloc(segment.len() as usize);
        let mut sums = Vec::new();
        for at in (0..data.len()).step_by(BLOCK_SIZE) {
            let end = data.len().min(at + BLOCK_SIZE);
            let mut block = [0; BLOCK_SIZE];
            block[..end - at].iter_mut().zip(MARK.iter().cycle()).for_each(|(byte, mark)| *byte = *mark);
            data.copy_from(at, &block[..end - at]);
            sums.push(sum_of_mark(&block));
        }
        self.mark_unsynced(file);
        file.cached.write_at(data, segment.start).await.map_err(|e| self.failed("write", &file.path, e))?;
        self.mark_unsynced(file);
        self.set_sums(file, segment.start / BLOCK, &sums).await
    }

    /// Extends a chunk file that another program has removed or truncated to its former length,
    /// where its checksums show that it was longer: the missing part then fails to read, instead of
    /// being taken for holes. `len` is its probable length, which is used if it fits the checksums.
    /// Returns whether anything was done.
    pub async fn restore_length(&self, ino: ChunkFileId, len: u64) -> Result<bool> {
        if self.find(ino).await?.is_none() {
            if !self.is_missing(ino).await? {
                return Ok(false);
            }
            self.recreate(ino).await?;
        }
        let Some(file) = self.find(ino).await? else { return Ok(false) };
        let _in_progress = self.begin_change()?;
        let _held = file.ranges.acquire(ByteRange::new(0, u64::MAX), WritePath::Cached).await;
        let failed = |e| self.failed("extend", &file.path, e);
        let (end, found) = (self.sum_end(&file).await?, file.cached.stat().await.map_err(failed)?.len);
        if end <= found.next_multiple_of(BLOCK) {
            return Ok(false);
        }
        let right = if len.next_multiple_of(BLOCK) == end { len } else { end };
        // Without an entry, since after a crash that would make the hole look right.
        self.mark_unsynced(&file);
        file.cached.set_len(right).await.map_err(failed)?;
        self.mark_unsynced(&file);
        Ok(true)
    }

    /// Creates an empty chunk file beside existing checksums, and leaves those alone.
    pub(crate) async fn recreate(&self, ino: ChunkFileId) -> Result<()> {
        let shard = self.cache.shard(ino);
        let _opening = shard.opening.write().await;
        if shard.get(ino).is_some() {
            return Ok(());
        }
        let path = crate::paths::chunk_file(&self.dir, ino);
        match ChunkFile::create(&self.store_dir, ino, &self.budget).await {
            Ok(_) => Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(self.failed("create", &path, e)),
        }
    }

    /// Returns where an apparent hole in a range ends: where checksums of data show that content
    /// was lost.
    pub async fn true_hole_end(&self, ino: ChunkFileId, range: ByteRange) -> Result<u64> {
        let Some(file) = self.find(ino).await? else { return Ok(range.end) };
        // Beyond there are no checksums.
        let last = self.verify_end(&file).await?;
        let mut at = range.start / BLOCK * BLOCK;
        while at < range.end.min(last) {
            let segment = whole_blocks(ByteRange::at(at, SEGMENT_BYTES).intersect(range));
            let mut damaged = Vec::new();
            self.verify_range(&file, segment, &mut damaged).await?;
            if let Some(first) = damaged.first() {
                return Ok(first.start);
            }
            at = segment.end;
        }
        Ok(range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_known_by_its_content_and_never_matches() {
        let mut block = [0; BLOCK_SIZE];
        block.iter_mut().zip(MARK.iter().cycle()).for_each(|(byte, mark)| *byte = *mark);
        assert!(is_mark(&block) && !crate::block_sums::matches(&block, sum_of_mark(&block)));
        for end in [32, 33, 4000] {
            let mut last = block;
            last[end..].fill(0);
            assert!(is_mark(&last), "a last block of {end} bytes");
        }
        block[77] ^= 1;
        assert!(!is_mark(&block));
        assert!(!is_mark(&[0; BLOCK_SIZE]));
    }
}
