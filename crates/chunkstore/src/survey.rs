//! Surveys of chunk files: enough to compare a replica with another one, and to tell which of them
//! another program has modified.

use crate::block_sums::PAGE_SUMS;
use crate::chunk_file::ChunkFile;
use crate::error::{Kind, Result};
use crate::read::BLOCK;
use crate::store::{IoPath, Store};
use rt::IoBuf;
use std::sync::{Arc, LazyLock};
use types::{BLOCK_SIZE, BlockSum, ByteRange, ChunkFileId, Timestamp, block_sum, crc32c};

/// Units of one survey: a message of moderate size, and checksums of 16 MiB where a unit is a
/// block.
pub const MAX_UNITS: usize = 4096;

/// Blocks read at a time where there are no checksums.
const READ_BLOCKS: usize = 256;

/// The checksum of a written block of zeros; it counts as a hole, which other replicas may have
/// there.
pub(crate) static SUM_OF_ZEROS: LazyLock<BlockSum> = LazyLock::new(|| block_sum(&[0; BLOCK_SIZE]));

/// A survey of a chunk file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// A chunk file exists, and it is the one that is open here, if one is.
    pub exists: bool,
    /// Bytes.
    pub len: u64,
    /// End of the last block that has a checksum of data: beyond the length, something was cut off.
    pub sum_end: u64,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of anything except by [`Store::set_time`]; no other program can set it.
    pub ctime: Timestamp,
    /// A sum of the checksums of each unit of the range; 0 for one of zeros only, as are all after
    /// the last. For units of one block it is the block's checksum.
    pub sums: Vec<u32>,
    /// Blocks of the range that don't match their checksums or can't be read, if reading was
    /// requested.
    pub damaged: Vec<ByteRange>,
}

impl Store {
    /// Surveys a range, which is limited to whole blocks and [`MAX_UNITS`] units. The survey of an
    /// absent chunk file is empty.
    ///
    /// # Errors
    /// Only what prevents the survey; damage is no error here.
    pub async fn survey(&self, ino: ChunkFileId, range: ByteRange, unit: u64, read: bool) -> Result<Survey> {
        let Some(file) = self.find(ino).await? else { return Ok(Survey::default()) };
        if self.is_replaced(ino).await? {
            return Ok(Survey::default());
        }
        let unit = unit.clamp(BLOCK, 1 << 40) / BLOCK * BLOCK;
        let start = range.start / BLOCK * BLOCK;
        let most = unit.saturating_mul(MAX_UNITS as u64);
        let end = range.end.min(start.saturating_add(most)).min(self.verify_end(&file).await?);
        let range = ByteRange::new(start, end.next_multiple_of(BLOCK));
        let stat = file.cached.stat().await.map_err(|e| self.failed("stat", &file.path, e))?;
        let mut survey = Survey {
            exists: true,
            len: stat.len,
            sum_end: self.sum_end(&file).await?,
            mtime: stat.mtime,
            ctime: self.effective_ctime(&file, &stat).await?,
            sums: self.sums_of_units(&file, range, unit).await?,
            damaged: Vec::new(),
        };
        if read {
            self.verify_range(&file, range, &mut survey.damaged).await?;
        }
        Ok(survey)
    }

    async fn sums_of_units(&self, file: &Arc<ChunkFile>, range: ByteRange, unit: u64) -> Result<Vec<u32>> {
        let mut sums = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let part = ByteRange::at(at, unit).intersect(range);
            at = part.end;
            let mut blocks = vec![BlockSum::HOLE; (part.len() / BLOCK) as usize];
            self.copy_sums(file, part.start / BLOCK, &mut blocks).await?;
            self.sum_unchecked(file, part.start, &mut blocks).await?;
            blocks.iter_mut().filter(|sum| **sum == *SUM_OF_ZEROS).for_each(|sum| *sum = BlockSum::HOLE);
            sums.push(digest(&blocks));
        }
        let used = sums.iter().rposition(|sum| *sum != 0).map_or(0, |last| last + 1);
        sums.truncate(used);
        Ok(sums)
    }

    /// Computes the checksums of blocks that were written without, from their current content, so
    /// that replicas can be compared. One that can't be read stays without.
    async fn sum_unchecked(&self, file: &Arc<ChunkFile>, start: u64, sums: &mut [BlockSum]) -> Result<()> {
        for (index, some) in sums.chunks_mut(READ_BLOCKS).enumerate() {
            if !some.contains(&BlockSum::UNCHECKED) {
                continue;
            }
            let range =
                ByteRange::at(start + (index * READ_BLOCKS) as u64 * BLOCK, some.len() as u64 * BLOCK);
            let buf = IoBuf::alloc(range.len() as usize);
            match self.fetch(file, range, &buf, IoPath::Direct).await {
                Ok(()) => {}
                Err(e) if e.kind() == Kind::Io => continue,
                Err(e) => return Err(e),
            }
            let found = buf.as_slice().chunks_exact(BLOCK_SIZE);
            for (sum, block) in some.iter_mut().zip(found).filter(|(sum, _)| **sum == BlockSum::UNCHECKED) {
                *sum = block_sum(block);
            }
        }
        Ok(())
    }

    /// Returns the end of the last block with a checksum of data.
    pub(crate) async fn sum_end(&self, file: &Arc<ChunkFile>) -> Result<u64> {
        let mut sums = [BlockSum::HOLE; PAGE_SUMS as usize];
        for page in (0..self.known_sum_pages(file).await?).rev() {
            self.copy_sums(file, page * PAGE_SUMS, &mut sums).await?;
            if let Some(last) = sums.iter().rposition(|sum| *sum != BlockSum::HOLE) {
                return Ok((page * PAGE_SUMS + last as u64 + 1) * BLOCK);
            }
        }
        Ok(0)
    }
}

/// Returns the checksum of a single block; of several blocks a sum that doesn't depend on trailing
/// holes.
fn digest(blocks: &[BlockSum]) -> u32 {
    let used = blocks.iter().rposition(|sum| *sum != BlockSum::HOLE).map_or(0, |last| last + 1);
    match &blocks[..used] {
        [] => 0,
        [one] if blocks.len() == 1 => one.0,
        several => {
            let bytes: Vec<u8> = several.iter().flat_map(|sum| sum.0.to_le_bytes()).collect();
            crc32c(&bytes).max(1)
        }
    }
}
