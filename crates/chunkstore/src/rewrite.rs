//! Repair of a damaged replica: each block is right or refused at every moment, also after a crash
//! in the middle.
//!
//! The right checksums reach the disk first, then the content. The intent log gets no entry: after
//! a crash, recovery would compute the checksums of dirty regions from the data, which would
//! validate the damage. Whatever part of the repair is on disk when power fails, a block either
//! matches its checksum or is refused as before.

use crate::block_sums::{SUM_BYTES, sum_of_written};
use crate::chunk_file::{ChunkFile, absent_is_fine};
use crate::error::Result;
use crate::paths;
use crate::range_lock::WritePath;
use crate::read::{BLOCK, whole_blocks};
use crate::store::Store;
use rt::{Fallocate, File, IoBuf, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{BLOCK_SIZE, BlockSum, ByteRange, ChunkFileId};

/// Stored instead of an unknown checksum, because [`BlockSum::UNCHECKED`] would accept any content:
/// the block is refused until it is rewritten.
const UNKNOWN_SUM: BlockSum = BlockSum(0x5a5a_5a5a);

impl Store {
    /// Replaces the whole blocks of a range by `data`, whatever they were: from the range's start
    /// on, zeros after it. `None`: zeros where the chunk file reaches. With `len`, also sets the
    /// length of the chunk file. On disk when it returns.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) when there is no chunk file. After any error a block
    /// is right, or refused as damaged.
    pub async fn rewrite(
        &self,
        ino: ChunkFileId,
        range: ByteRange,
        data: Option<&IoBuf>,
        len: Option<u64>,
    ) -> Result<()> {
        let given = data.map_or(0, |data| data.len() as u64);
        self.checked_end(ino, range.start, range.len().max(given))?;
        let blocks = whole_blocks(ByteRange::new(range.start, range.end.max(range.start + given)));
        self.ensure_space(ino, blocks).await?;
        self.retire_entries_if_full().await?;
        let _in_progress = self.begin_change()?;
        let Some(file) = self.find(ino).await? else { return Err(self.report_removed(ino, blocks)) };
        let held = ByteRange::new(blocks.start, if len.is_some() { u64::MAX } else { blocks.end });
        let _held = file.ranges.acquire(held, WritePath::Cached).await;
        let padded = padded_blocks(range.start - blocks.start, blocks.len(), data);
        let sums: Vec<BlockSum> = padded.as_slice().chunks_exact(BLOCK_SIZE).map(sum_or_hole).collect();
        self.set_sums(&file, blocks.start / BLOCK, &sums).await?;
        self.flush_sums(&file).await?;
        self.sync_sums(&file).await?;
        self.write_blocks(&file, blocks, &padded, data.map(|_| range.start + given)).await?;
        if let Some(len) = len {
            self.set_final_len(&file, len).await?;
        }
        self.mark_unsynced(&file);
        self.sync_file(&file).await?;
        self.flush_sums(&file).await?;
        self.sync_sums(&file).await?;
        self.clear_reported(ino, blocks);
        Ok(())
    }

    /// Writes whole blocks, up to the end of the data or as far as there is old content to
    /// overwrite.
    async fn write_blocks(
        &self,
        file: &ChunkFile,
        blocks: ByteRange,
        padded: &IoBuf,
        end: Option<u64>,
    ) -> Result<()> {
        let Some(end) = end else { return self.fallocate(file, Fallocate::Punch, blocks).await };
        let failed = |e| self.failed("write", &file.path, e);
        let found = file.cached.stat().await.map_err(failed)?.len;
        let end = end.max(found.min(blocks.end));
        self.mark_unsynced(file);
        let data = padded.slice(0..(end - blocks.start) as usize);
        file.cached.write_at(data, blocks.start).await.map_err(failed)?;
        Ok(())
    }

    /// Sets the length. The caller holds everything from the last block of `len` bytes on, which is
    /// right.
    async fn set_final_len(&self, file: &Arc<ChunkFile>, len: u64) -> Result<()> {
        let failed = |e| self.failed("set the length of", &file.path, e);
        let found = file.cached.stat().await.map_err(failed)?.len;
        if found > len {
            // After a crash, the checksums of the truncated part must go, too. The last block is
            // right by now.
            self.mark_dirty(file, ByteRange::new(len, u64::MAX)).await?;
        }
        self.mark_unsynced(file);
        if found != len {
            file.cached.set_len(len).await.map_err(failed)?;
        }
        self.truncate_sums(file, len.div_ceil(BLOCK)).await
    }

    /// Creates a chunk file of `len` bytes in place of a missing or wrong one. First come its
    /// checksums, in parts from block `first` on, in order. The last part creates an empty file,
    /// whose content is refused until [`Store::rewrite`] has written it. Until then, too, existing
    /// content is right or refused. On disk when the last part returns.
    ///
    /// # Errors
    /// When the disk fails. Existing content is refused then, or as before.
    pub async fn expect_sums(&self, ino: ChunkFileId, first: u64, sums: &[u32], len: u64) -> Result<()> {
        self.checked_end(ino, len, 0)?;
        let _in_progress = self.begin_change()?;
        let shard = self.cache.shard(ino);
        let _opening = shard.opening.write().await;
        if let Some(file) = shard.get(ino) {
            // Another program may have removed it, and its cached checksums aren't valid any more.
            file.deleted.store(true, Ordering::Release);
            drop(file.write_back.write().await);
            shard.remove(ino);
        }
        let path = paths::sum_file(&self.dir, ino);
        let is_last = first + sums.len() as u64 >= len.div_ceil(BLOCK);
        let written = async {
            self.store_dir.check()?;
            self.store_dir.confirm(write_sums(&path, first, sums, is_last.then_some(len)).await)
        };
        written.await.map_err(|e| self.failed("write", &path, e))?;
        if is_last { self.create_unwritten(ino, len).await } else { Ok(()) }
    }

    /// Creates a chunk file of `len` bytes, all of them a hole, beside checksums that are on disk.
    /// The caller holds the shard's `opening`.
    async fn create_unwritten(&self, ino: ChunkFileId, len: u64) -> Result<()> {
        let path = paths::chunk_file(&self.dir, ino);
        let created = async {
            let folder = paths::folder(&self.dir, ino);
            // The checksums first: with them a missing chunk file is recognized.
            rt::sync_dir(&folder).await?;
            absent_is_fine(self.store_dir.confirm(rt::remove_file(&path).await))?;
            let file = ChunkFile::create(&self.store_dir, ino, &self.budget).await?;
            file.cached.set_len(len).await?;
            file.cached.sync_data().await?;
            rt::sync_dir(&folder).await
        };
        created.await.map_err(|e| self.failed("make", &path, e))?;
        self.orphaned_sums.lock().remove(&ino);
        self.sync_failures.lock().remove(&ino);
        self.clear_reported(ino, ByteRange::new(0, len));
        Ok(())
    }
}

/// Returns the new content of whole blocks: zeros except for the data, which begins at `from`.
fn padded_blocks(from: u64, len: u64, data: Option<&IoBuf>) -> IoBuf {
    let padded = IoBuf::alloc(len as usize);
    padded.zero(0..len as usize);
    if let Some(data) = data {
        padded.copy_from(from as usize, data.as_slice());
    }
    padded
}

/// Zeros count as a hole, which other replicas may have there.
fn sum_or_hole(block: &[u8]) -> BlockSum {
    if block.iter().all(|byte| *byte == 0) { BlockSum::HOLE } else { sum_of_written(block) }
}

/// Writes stored checksums from a block on; with the last ones of a file of `len` bytes, truncates
/// the rest and syncs all of them.
async fn write_sums(path: &Path, first: u64, sums: &[u32], len: Option<u64>) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    rt::create_dir_all(folder).await?;
    let options = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
    let file = File::open(path, options).await?;
    let stored_sum = |sum: &u32| if *sum == BlockSum::UNCHECKED.0 { UNKNOWN_SUM.0 } else { *sum };
    let bytes: Vec<u8> = sums.iter().flat_map(|sum| stored_sum(sum).to_le_bytes()).collect();
    if !bytes.is_empty() {
        file.write_at(IoBuf::from_slice(&bytes), first * SUM_BYTES as u64).await?;
    }
    let Some(len) = len else { return Ok(()) };
    file.set_len(len.div_ceil(BLOCK) * SUM_BYTES as u64).await?;
    file.sync_data().await
}
