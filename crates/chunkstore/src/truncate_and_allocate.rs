//! Truncation, reservation, hole punching and removal.

use crate::block_sums::{PAGE_BYTES, PAGE_SUMS, SUM_BYTES};
use crate::chunk_file::{Change, ChunkFile, absent_is_fine};
use crate::error::Result;
use crate::min_length::At;
use crate::orphans::move_into;
use crate::paths;
use crate::range_lock::WritePath;
use crate::read::{BLOCK, whole_blocks};
use crate::store::{Allocate, MAX_CHUNK_FILE_BYTES, Store};
use rt::Fallocate;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{BlockSum, ByteRange, ChunkFileId};

/// A partially changed block: its start and its checksum afterwards.
type Edge = (u64, BlockSum);

impl Store {
    /// Truncates a chunk file to `len` bytes; a shorter or absent one is left alone.
    pub async fn truncate(&self, ino: ChunkFileId, len: u64) -> Result<()> {
        self.retire_entries_if_full().await?;
        let _in_progress = self.begin_change()?;
        if len == 0 {
            self.incomplete.forget(ino);
        }
        let Some(file) = self.find(ino).await? else {
            // Another program has removed it, and nothing of it is to stay: its checksums go, too.
            return if len == 0 && self.is_missing(ino).await? {
                self.remove_or_set_aside(ino, None).await
            } else {
                Ok(())
            };
        };
        if len >= MAX_CHUNK_FILE_BYTES {
            return Ok(());
        }
        let range = ByteRange::new(len, u64::MAX);
        let blocks = ByteRange::new(len / BLOCK * BLOCK, u64::MAX);
        let _held = file.ranges.acquire(blocks, WritePath::Cached).await;
        let failed = |e| self.failed("truncate", &file.path, e);
        if file.cached.stat().await.map_err(failed)?.len <= len {
            return Ok(());
        }
        let edge = if len > blocks.start {
            let within = (len - blocks.start) as usize..BLOCK as usize;
            Some((blocks.start, self.sum_after_change(&file, blocks.start, within, None).await?))
        } else {
            None
        };
        self.mark_dirty(&file, range).await?;
        let change = Change::begin(&file, blocks);
        self.mark_unsynced(&file);
        file.cached.set_len(len).await.map_err(failed)?;
        file.min_len.fetch_min(len, Ordering::Relaxed);
        self.truncate_sums(&file, len.div_ceil(BLOCK)).await?;
        self.set_edges(&file, edge.into_iter()).await?;
        self.mark_unsynced(&file);
        change.complete();
        Ok(())
    }

    /// Sets the length of a chunk file to that of another replica; creates it if absent.
    ///
    /// # Errors
    /// [`Kind::TooLarge`](crate::Kind::TooLarge).
    pub async fn set_len(&self, ino: ChunkFileId, len: u64) -> Result<()> {
        self.checked_end(ino, len, 0)?;
        self.truncate(ino, len).await?;
        self.extend(ino, len).await
    }

    /// Extends a chunk file to at least `len` bytes, by a hole at its end; creates it if absent.
    ///
    /// # Errors
    /// [`Kind::TooLarge`](crate::Kind::TooLarge).
    pub async fn extend(&self, ino: ChunkFileId, len: u64) -> Result<()> {
        self.checked_end(ino, len, 0)?;
        self.retire_entries_if_full().await?;
        let _in_progress = self.begin_change()?;
        let file = self.find_or_create(ino).await?;
        let failed = |e| self.failed("extend", &file.path, e);
        // The whole file: a concurrent write beyond `len` would be cut off.
        let _held = file.ranges.acquire(ByteRange::new(0, u64::MAX), WritePath::Cached).await;
        let end = file.cached.stat().await.map_err(failed)?.len;
        if end >= len {
            return Ok(());
        }
        // The added part is a hole, and so are its checksums; the rest of the last block has always
        // read as zeros.
        self.mark_dirty(&file, ByteRange::new(end, len)).await?;
        self.mark_unsynced(&file);
        file.cached.set_len(len).await.map_err(failed)?;
        self.mark_unsynced(&file);
        Ok(())
    }

    /// Reserves, frees or zeroes a range; a reservation creates an absent chunk file.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::Kind::NoSpace), except when freeing. Nothing is reserved then,
    /// unless other writers have filled the disk meanwhile.
    pub async fn allocate(&self, ino: ChunkFileId, range: ByteRange, how: Allocate) -> Result<()> {
        self.allocate_at(At { ino, offset: range.start, min_len: 0 }, range.len(), how).await
    }

    /// The same, where the chunk file has a known minimum length.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) when zeroing would turn missing content into a hole,
    /// as for [`Store::write_at`].
    pub async fn allocate_at(&self, at: At, len: u64, how: Allocate) -> Result<()> {
        let At { ino, offset, min_len } = at;
        let range = ByteRange::new(offset, offset.saturating_add(len));
        if range.is_empty() {
            return Ok(());
        }
        if how != Allocate::Punch {
            self.checked_end(ino, range.start, range.len())?;
        }
        self.retire_entries_if_full().await?;
        let _in_progress = self.begin_change()?;
        if how == Allocate::Punch {
            let Some(file) = self.find(ino).await? else { return Ok(()) };
            let range = range.intersect(ByteRange::new(0, MAX_CHUNK_FILE_BYTES));
            if range.is_empty() {
                return Ok(());
            }
            self.make_zero(&file, Fallocate::Punch, range).await?;
            return self.free_beyond_end(&file, range).await;
        }
        // Before a file is created: a refusal leaves nothing behind.
        let claim = self.claim(ino, range).await?;
        let file = match how {
            Allocate::Zero => self.find_with_len(ino, min_len.min(offset)).await?,
            _ => self.find_or_create(ino).await?,
        };
        self.reserve(ino, &file, range, claim).await?;
        match how {
            Allocate::Zero => self.make_zero(&file, Fallocate::Zero, range).await,
            _ => Ok(()),
        }
    }

    /// Frees the reserved space of a punched range beyond the end of the file, where ext4 punches
    /// nothing. Truncating the file at its end frees everything there, so if other space is
    /// reserved beside the range, the range stays reserved, too.
    async fn free_beyond_end(&self, file: &ChunkFile, range: ByteRange) -> Result<()> {
        let _held = file.ranges.acquire(ByteRange::new(0, u64::MAX), WritePath::Cached).await;
        let failed = |e| self.failed("free space of", &file.path, e);
        let len = file.cached.stat().await.map_err(failed)?.len;
        let tail = ByteRange::new(len.div_ceil(BLOCK) * BLOCK, MAX_CHUNK_FILE_BYTES);
        let left = reserved_in(file, tail.intersect(range)).await;
        if left == 0 || left != reserved_in(file, tail).await {
            return Ok(());
        }
        self.mark_unsynced(file);
        file.cached.set_len(len).await.map_err(failed)?;
        self.mark_unsynced(file);
        Ok(())
    }

    /// Removes a chunk file; an absent one is no error.
    pub async fn delete(&self, ino: ChunkFileId) -> Result<()> {
        self.retire_entries_if_full().await?;
        let _in_progress = self.begin_change()?;
        self.remove_or_set_aside(ino, None).await
    }

    /// Removes a chunk file with its checksums, or moves both into a folder.
    pub(crate) async fn remove_or_set_aside(&self, ino: ChunkFileId, aside: Option<&Path>) -> Result<()> {
        // Retains the entry until the file is gone, even if other changes need space in the log.
        let _entry_hold = self.intents.as_ref().map(|log| log.holds().hold());
        if let Some(file) = self.find(ino).await? {
            // A crash may restore the file: the entry then tells recovery to check it. In a group
            // all of it is dirty, because another replica still has all of it. If a crash separates
            // the data from checksums that were set aside, recovery computes all of them: an
            // incomplete file of the same name must not replace those.
            let end = match (self.group, aside) {
                (None, None) => 1,
                _ => file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?.len.max(1),
            };
            self.mark_dirty(&file, ByteRange::new(0, end)).await?;
        }
        let shard = self.cache.shard(ino);
        let _opening = shard.opening.write().await;
        // First, so that no file of another store is removed.
        self.store_dir.check().map_err(|e| self.failed("remove a chunk file from", &self.dir, e))?;
        let open = shard.get(ino);
        if let Some(file) = &open {
            // Requests that have the file open then see an empty one; its checksums must not be
            // created again.
            file.deleted.store(true, Ordering::Release);
            let _write_back = file.write_back.write().await;
        }
        shard.remove(ino);
        let (data, sums) = (paths::chunk_file(&self.dir, ino), paths::sum_file(&self.dir, ino));
        match aside {
            Some(folder) => {
                let moved = self.store_dir.confirm(move_into(folder, &data, &sums, ino).await);
                moved.map_err(|e| self.failed("move aside", &data, e))?;
            }
            None => {
                let gone = |removed| absent_is_fine(self.store_dir.confirm(removed));
                gone(rt::remove_file(&data).await).map_err(|e| self.failed("remove", &data, e))?;
                // Second, since data without checksums would look damaged.
                gone(rt::remove_file(&sums).await).map_err(|e| self.failed("remove", &sums, e))?;
            }
        }
        self.unsynced.lock().insert(ino);
        self.sync_failures.lock().remove(&ino);
        self.incomplete.forget(ino);
        Ok(())
    }

    pub(crate) async fn fallocate(&self, file: &ChunkFile, how: Fallocate, range: ByteRange) -> Result<()> {
        self.mark_unsynced(file);
        let done = file.cached.allocate(how, range.start, range.len()).await;
        self.mark_unsynced(file);
        done.map_err(|e| self.failed("allocate space in", &file.path, e))
    }

    async fn make_zero(&self, file: &Arc<ChunkFile>, how: Fallocate, range: ByteRange) -> Result<()> {
        let blocks = whole_blocks(range);
        let _held = file.ranges.acquire(blocks, WritePath::Cached).await;
        let edges = self.edges_after_zeroing(file, range).await?;
        self.mark_dirty(file, range).await?;
        let change = Change::begin(file, blocks);
        if let Err(e) = self.fallocate(file, how, range).await {
            drop(change);
            self.rebuild_held(file, blocks).await;
            return Err(e);
        }
        let whole = ByteRange::new(range.start.div_ceil(BLOCK) * BLOCK, range.end / BLOCK * BLOCK);
        self.clear_sums(file, whole).await?;
        self.set_edges(file, edges).await?;
        change.complete();
        Ok(())
    }

    /// Returns the checksums of the first and the last block of a range, if it covers them
    /// partially.
    async fn edges_after_zeroing(
        &self,
        file: &Arc<ChunkFile>,
        range: ByteRange,
    ) -> Result<impl Iterator<Item = Edge> + use<>> {
        let mut edges = [None; 2];
        let (first, last) = (range.start / BLOCK * BLOCK, (range.end - 1) / BLOCK * BLOCK);
        for (edge, start) in edges.iter_mut().zip([first, last]) {
            let part = range.intersect(ByteRange::at(start, BLOCK));
            if part.len() < BLOCK {
                let within = (part.start - start) as usize..(part.end - start) as usize;
                *edge = Some((start, self.sum_after_change(file, start, within, None).await?));
            }
        }
        Ok(edges.into_iter().flatten())
    }

    async fn set_edges(&self, file: &Arc<ChunkFile>, edges: impl Iterator<Item = Edge>) -> Result<()> {
        for (start, sum) in edges {
            self.set_sums(file, start / BLOCK, &[sum]).await?;
        }
        Ok(())
    }

    /// Drops the checksums of blocks from `first_block` on, in memory and in the checksum file.
    pub(crate) async fn truncate_sums(&self, file: &Arc<ChunkFile>, first_block: u64) -> Result<()> {
        let _write_back = file.write_back.write().await;
        let failed = |e| self.failed("truncate", file.sum_path(), e);
        if let Some(sums) = file.sum_file().await.map_err(failed)? {
            let len = first_block * SUM_BYTES as u64;
            if sums.stat().await.map_err(failed)?.len > len {
                sums.set_len(len).await.map_err(failed)?;
            }
        }
        file.sums.truncate(first_block);
        Ok(())
    }

    /// Sets the checksums of whole blocks to those of holes. The caller holds the blocks.
    pub(crate) async fn clear_sums(&self, file: &Arc<ChunkFile>, blocks: ByteRange) -> Result<()> {
        let known_pages = self.known_sum_pages(file).await?;
        let (mut at, end) =
            (blocks.start / BLOCK, (blocks.end / BLOCK).min(known_pages.saturating_mul(PAGE_SUMS)));
        while at < end {
            let n = (PAGE_SUMS - at % PAGE_SUMS).min(end - at);
            if n == PAGE_SUMS {
                self.evict_sums_if_full().await;
                file.sums.clear_page(file, at / PAGE_SUMS);
            } else {
                self.set_sums(file, at, &[BlockSum::HOLE; PAGE_SUMS as usize][..n as usize]).await?;
            }
            at += n;
        }
        Ok(())
    }

    /// Number of pages of checksums, in memory or on disk; all blocks beyond are holes.
    pub(crate) async fn known_sum_pages(&self, file: &ChunkFile) -> Result<u64> {
        let failed = |e| self.failed("stat", file.sum_path(), e);
        let stored = match file.sum_file().await.map_err(failed)? {
            Some(sums) => sums.stat().await.map_err(failed)?.len.div_ceil(PAGE_BYTES as u64),
            None => 0,
        };
        Ok(stored.max(file.sums.last_page().map_or(0, |page| page + 1)))
    }
}

/// Returns the bytes of a range that have space; 0 where the local file system does not list
/// extents.
async fn reserved_in(file: &ChunkFile, range: ByteRange) -> u64 {
    let gaps = file.cached.unallocated_ranges(range.start..range.end, 0).await;
    gaps.map_or(0, |gaps| range.len() - gaps.bytes)
}
