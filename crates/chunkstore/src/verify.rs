//! Verification of chunk files.

use crate::block_sums::PAGE_SUMS;
use crate::chunk_file::ChunkFile;
use crate::error::{Kind, Result};
use crate::paths::{self, CHUNKS};
use crate::read::BLOCK;
use crate::store::{IoPath, Store};
use rt::{File, FileStat, IoBuf, OpenOptions};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use types::{BLOCK_SIZE, BlockSum, ByteRange, ChunkFileId};

/// Bytes verified at a time.
const SEGMENT_BYTES: u64 = 1 << 20;
/// Damaged ranges after which a verification gives up: the file is lost anyway.
const MAX_DAMAGED_RANGES: usize = 10_000;

/// Adds a range, merged with the last one if adjacent.
fn join(ranges: &mut Vec<ByteRange>, range: ByteRange) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

impl Store {
    /// Lists the inodes of all chunk files, in order.
    pub async fn list(&self) -> Result<Vec<ChunkFileId>> {
        let mut inodes = Vec::new();
        let root = self.dir.join(CHUNKS);
        for outer in self.names(&root).await? {
            let outer = root.join(outer);
            for inner in self.names(&outer).await? {
                inodes.extend(self.inodes_in(&outer.join(inner)).await?);
            }
        }
        inodes.sort_unstable();
        Ok(inodes)
    }

    pub(crate) async fn names(&self, dir: &Path) -> Result<Vec<String>> {
        match self.store_dir.confirm(rt::read_dir(dir).await) {
            Ok(names) => Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect()),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(Vec::new())
            }
            Err(e) => Err(self.failed("list", dir, e)),
        }
    }

    /// Compares a whole chunk file with its checksums. Returns the damaged ranges, in order, whole
    /// blocks; none for an absent file.
    ///
    /// # Errors
    /// Only what prevents the verification; damage is no error here.
    pub async fn verify(&self, ino: ChunkFileId) -> Result<Vec<ByteRange>> {
        let mut damaged: Vec<ByteRange> = Vec::new();
        let Some(file) = self.find(ino).await? else { return Ok(damaged) };
        let end = self.verify_end(&file).await?;
        self.verify_range(&file, ByteRange::new(0, end), &mut damaged).await?;
        Ok(damaged)
    }

    /// Returns the end of what has to be verified of a file.
    pub(crate) async fn verify_end(&self, file: &Arc<ChunkFile>) -> Result<u64> {
        let len = file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?.len;
        Ok(len.next_multiple_of(BLOCK).max(self.known_sum_pages(file).await? * PAGE_SUMS * BLOCK))
    }

    /// Appends the damaged blocks of a range of whole blocks.
    pub(crate) async fn verify_range(
        &self,
        file: &Arc<ChunkFile>,
        range: ByteRange,
        damaged: &mut Vec<ByteRange>,
    ) -> Result<()> {
        let failed = |e| self.failed("stat", &file.path, e);
        let (mut at, end) = (range.start, range.end);
        while at < end && damaged.len() < MAX_DAMAGED_RANGES {
            let segment = ByteRange::at(at, SEGMENT_BYTES).intersect(ByteRange::new(0, end));
            at = segment.end;
            // A hole needs no read; checksums there show that something was lost.
            let is_hole = file
                .cached
                .seek_data(segment.start)
                .await
                .map_err(failed)?
                .is_none_or(|data| data >= segment.end);
            if is_hole && !self.has_sums(file, segment).await? {
                continue;
            }
            self.verify_segment(file, segment, damaged).await?;
        }
        Ok(())
    }

    async fn verify_segment(
        &self,
        file: &Arc<ChunkFile>,
        segment: ByteRange,
        damaged: &mut Vec<ByteRange>,
    ) -> Result<()> {
        let mut rest = segment;
        while !rest.is_empty() {
            let buf = IoBuf::alloc(rest.len() as usize);
            let Err(e) = self.read_blocks(file, rest, &buf, IoPath::Direct).await else { return Ok(()) };
            match e.kind() {
                Kind::Corrupt { range, .. } => {
                    join(damaged, range);
                    rest.start = range.end;
                }
                Kind::Io => return self.unreadable_blocks(file, rest, damaged).await,
                _ => return Err(e),
            }
        }
        Ok(())
    }

    /// Verifies block by block where the disk fails: appends the blocks that can't be read or don't
    /// match.
    async fn unreadable_blocks(
        &self,
        file: &Arc<ChunkFile>,
        blocks: ByteRange,
        damaged: &mut Vec<ByteRange>,
    ) -> Result<()> {
        let buf = IoBuf::alloc(BLOCK_SIZE);
        for at in (blocks.start..blocks.end).step_by(BLOCK_SIZE) {
            match self.read_blocks(file, ByteRange::at(at, BLOCK), &buf, IoPath::Direct).await {
                Ok(()) => {}
                Err(e) if matches!(e.kind(), Kind::Corrupt { .. } | Kind::Io) => {
                    join(damaged, ByteRange::at(at, BLOCK));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether the checksums are orphaned: another program has removed the chunk file, or the local
    /// file system has lost it.
    pub async fn is_missing(&self, ino: ChunkFileId) -> Result<bool> {
        let shard = self.cache.shard(ino);
        // Held while a chunk file is created or removed.
        let _opening = shard.opening.write().await;
        if shard.get(ino).is_some() {
            return Ok(false);
        }
        self.has_orphaned_sums(ino).await
    }

    /// The same for a chunk file that isn't open. The caller prevents its creation and removal.
    pub(crate) async fn has_orphaned_sums(&self, ino: ChunkFileId) -> Result<bool> {
        // First, since a new file has none.
        let sums = self.len_on_disk(&paths::sum_file(&self.dir, ino)).await?;
        Ok(sums.is_some_and(|len| len > 0)
            && self.len_on_disk(&paths::chunk_file(&self.dir, ino)).await?.is_none())
    }

    /// Lists the chunk files that are missing, and those that are open here but no longer under
    /// their names: see [`Store::is_missing`].
    pub async fn missing(&self) -> Result<Vec<ChunkFileId>> {
        let mut missing = Vec::new();
        let root = self.dir.join(CHUNKS);
        for outer in self.names(&root).await? {
            let outer = root.join(outer);
            for inner in self.names(&outer).await? {
                let folder = outer.join(inner);
                let names: BTreeSet<String> = self.names(&folder).await?.into_iter().collect();
                let sums = names.iter().filter_map(|name| name.strip_suffix(paths::SUM_SUFFIX));
                let alone = sums.filter(|plain| !names.contains(*plain));
                for ino in alone.filter_map(paths::inode_of) {
                    // Includes files that are open here but unlinked.
                    if self.is_missing(ino).await? || self.is_replaced(ino).await? {
                        missing.push(ino);
                    }
                }
            }
        }
        missing.sort_unstable();
        Ok(missing)
    }

    async fn len_on_disk(&self, path: &Path) -> Result<Option<u64>> {
        Ok(self.stat_on_disk(path).await?.map(|stat| stat.len))
    }

    pub(crate) async fn stat_on_disk(&self, path: &Path) -> Result<Option<FileStat>> {
        let read = OpenOptions { read: true, ..OpenOptions::default() };
        match self.store_dir.confirm(File::open(path, read).await) {
            Ok(file) => file.stat().await.map(Some).map_err(|e| self.failed("stat", path, e)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.failed("open", path, e)),
        }
    }

    /// Whether another program has replaced or removed the chunk file that is open here: its
    /// content is lost when it is closed.
    pub async fn is_replaced(&self, ino: ChunkFileId) -> Result<bool> {
        let shard = self.cache.shard(ino);
        let _opening = shard.opening.write().await;
        let Some(file) = shard.get(ino) else { return Ok(false) };
        let open = file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?;
        let named = self.stat_on_disk(&file.path).await?;
        Ok(named.is_none_or(|named| named.inode != open.inode))
    }

    /// Whether a chunk file exists under its name.
    pub async fn has_chunk_file(&self, ino: ChunkFileId) -> Result<bool> {
        Ok(self.stat_on_disk(&paths::chunk_file(&self.dir, ino)).await?.is_some())
    }

    /// Whether a chunk file is open here; one that was just used usually is.
    pub fn is_open(&self, ino: ChunkFileId) -> bool {
        self.cache.get(ino).is_some()
    }

    /// Records that a range is repaired: new damage there is logged again.
    pub fn clear_reported(&self, ino: ChunkFileId, range: ByteRange) {
        let blocks = (ino, range.start / BLOCK)..(ino, range.end.div_ceil(BLOCK));
        let mut reported = self.reported.lock();
        let old: Vec<_> = reported.range(blocks).copied().collect();
        for block in old {
            reported.remove(&block);
        }
    }

    async fn has_sums(&self, file: &Arc<ChunkFile>, blocks: ByteRange) -> Result<bool> {
        let mut sums = [BlockSum::HOLE; SEGMENT_BYTES as usize / BLOCK_SIZE];
        let sums = &mut sums[..(blocks.len() / BLOCK) as usize];
        self.copy_sums(file, blocks.start / BLOCK, sums).await?;
        Ok(sums.iter().any(|sum| *sum != BlockSum::HOLE))
    }
}
