//! Looking for damage.

use crate::chunk_file::ChunkFile;
use crate::error::{Kind, Result};
use crate::place::CHUNKS;
use crate::read::BLOCK;
use crate::store::{IoPath, Store};
use crate::sums::PAGE_SUMS;
use rt::IoBuf;
use std::io;
use std::path::Path;
use std::sync::Arc;
use types::{BLOCK_SIZE, BlockSum, ByteRange, InodeId};

/// Bytes examined at a time.
const SEGMENT_BYTES: u64 = 1 << 20;
/// Damaged ranges after which an examination gives up: the file is lost anyway.
const MAX_DAMAGED_RANGES: usize = 10_000;

impl Store {
    /// The inodes of all chunk files, in order.
    pub async fn list(&self) -> Result<Vec<InodeId>> {
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
        match rt::read_dir(dir).await {
            Ok(names) => Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect()),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(Vec::new())
            }
            Err(e) => Err(self.failed("list", dir, e)),
        }
    }

    /// Compares a whole chunk file with its checksums: the damaged ranges, in order, whole blocks; none for an absent file.
    ///
    /// # Errors
    /// Only what keeps it from looking; damage is no error here.
    pub async fn verify(&self, ino: InodeId) -> Result<Vec<ByteRange>> {
        let mut damaged: Vec<ByteRange> = Vec::new();
        let Some(file) = self.find(ino).await? else { return Ok(damaged) };
        let failed = |e| self.failed("stat", &file.path, e);
        let len = file.cached.stat().await.map_err(failed)?.len.next_multiple_of(BLOCK);
        let end = len.max(self.known_sum_pages(&file).await? * PAGE_SUMS * BLOCK);
        let mut at = 0;
        while at < end && damaged.len() < MAX_DAMAGED_RANGES {
            let segment = ByteRange::at(at, SEGMENT_BYTES).intersect(ByteRange::new(0, end));
            at = segment.end;
            // In a hole there is nothing to read; checksums there mean that something was lost.
            let is_hole = file
                .cached
                .seek_data(segment.start)
                .await
                .map_err(failed)?
                .is_none_or(|data| data >= segment.end);
            if is_hole && !self.has_sums(&file, segment).await? {
                continue;
            }
            self.verify_segment(&file, segment, &mut damaged).await?;
        }
        Ok(damaged)
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
            let Kind::Corrupt { range, .. } = e.kind() else { return Err(e) };
            match damaged.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => damaged.push(range),
            }
            rest.start = range.end;
        }
        Ok(())
    }

    async fn has_sums(&self, file: &Arc<ChunkFile>, blocks: ByteRange) -> Result<bool> {
        let mut sums = [BlockSum::HOLE; SEGMENT_BYTES as usize / BLOCK_SIZE];
        let sums = &mut sums[..(blocks.len() / BLOCK) as usize];
        self.copy_sums(file, blocks.start / BLOCK, sums).await?;
        Ok(sums.iter().any(|sum| *sum != BlockSum::HOLE))
    }
}
