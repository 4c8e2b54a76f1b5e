//! Checksums of a chunk file's blocks in memory.
//!
//! Pages mirror the checksum file: page `n` is its bytes `n * 4096 ..`, little-endian numbers of
//! four bytes. Pages are loaded on demand and written back lazily; all pages of a store share one
//! budget.
//!
//! Invariant: a page that isn't in memory is up to date on disk. So a page is evicted only when it
//! is clean, and never while it is being written.

use crate::chunk_file::ChunkFile;
use parking_lot::Mutex;
use rt::IoBuf;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use types::{BLOCK_SIZE, BlockSum, block_sum};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Bytes of one stored checksum.
pub(crate) const SUM_BYTES: usize = 4;
/// Checksums of a page, which cover 4 MiB of data.
pub(crate) const PAGE_SUMS: u64 = (PAGE_BYTES / SUM_BYTES) as u64;
/// Pages that one search for an eviction candidate checks.
const EVICTION_PROBES: usize = 64;

static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];
static CRC_OF_ZEROS: LazyLock<u32> = LazyLock::new(|| types::crc32c(&ZEROS));

/// Whether `block` matches `sum`.
pub(crate) fn matches(block: &[u8], sum: BlockSum) -> bool {
    compare(block, sum, &mut None)
}

/// The same; also appends the block's CRC32C to `known`, or makes that `None` if a block has none.
fn compare(block: &[u8], sum: BlockSum, known: &mut Option<Vec<u32>>) -> bool {
    let found = match sum {
        BlockSum::HOLE if block == ZEROS => *CRC_OF_ZEROS,
        BlockSum::HOLE => return false,
        BlockSum::UNCHECKED => {
            *known = None;
            return true;
        }
        sum => match types::crc32c(block) {
            found if BlockSum::of(found) == sum => found,
            _ => return false,
        },
    };
    known.iter_mut().for_each(|known| known.push(found));
    true
}

/// Returns the CRC32C of a block with this checksum; `None` where the checksum doesn't determine
/// it.
pub(crate) fn known_crc(sum: BlockSum) -> Option<u32> {
    match sum {
        BlockSum::HOLE => Some(*CRC_OF_ZEROS),
        BlockSum::UNCHECKED => None,
        // Another value may be mapped to it.
        sum if sum == BlockSum::of(0) || sum == BlockSum::of(1) => None,
        sum => Some(sum.0),
    }
}

/// Returns the checksum to store for a block that is written as a whole.
pub(crate) fn sum_of_written(block: &[u8]) -> BlockSum {
    if types::checksums_enabled() { block_sum(block) } else { BlockSum::UNCHECKED }
}

/// Returns the checksum to store for a block whose content is known but whose history isn't: zeros
/// count as a hole, and lost blocks stay lost.
pub(crate) fn sum_of_found(block: &[u8]) -> BlockSum {
    match block == ZEROS {
        true => BlockSum::HOLE,
        false if crate::lost_blocks::is_mark(block) => crate::lost_blocks::sum_of_mark(block),
        false => block_sum(block),
    }
}

/// The page is not in memory; load it and try again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Missing(pub u64);

struct Page {
    sums: Box<[BlockSum; PAGE_SUMS as usize]>,
    dirty: bool,
    writing: bool,
    used: bool,
}

impl Page {
    fn new() -> Page {
        Page {
            sums: Box::new([BlockSum::HOLE; PAGE_SUMS as usize]),
            dirty: false,
            writing: false,
            used: true,
        }
    }
}

#[derive(Default)]
struct Pages {
    by_number: BTreeMap<u64, Page>,
    /// Counts events that may invalidate a page that is being read from disk: evictions and
    /// truncations.
    invalidations: u64,
}

/// The pages of one chunk file.
pub(crate) struct SumCache {
    pages: Mutex<Pages>,
    budget: Arc<SumBudget>,
}

impl SumCache {
    pub(crate) fn new(budget: Arc<SumBudget>) -> SumCache {
        SumCache { pages: Mutex::new(Pages::default()), budget }
    }

    /// Returns the index of the first block of `data` that doesn't match, and of the next one after
    /// it that does. Appends the CRC32C of each matching block to `known`; makes that `None` if a
    /// block has none.
    pub(crate) fn first_mismatch(
        &self,
        first_block: u64,
        data: &[u8],
        known: &mut Option<Vec<u32>>,
    ) -> Result<Option<(u64, u64)>, Missing> {
        /// Checksums copied out under one lock; checksums of data are computed outside of it.
        const BATCH: usize = 64;
        let mut bad: Option<(u64, u64)> = None;
        for (i, part) in data.chunks(BATCH * BLOCK_SIZE).enumerate() {
            let mut sums = [BlockSum::HOLE; BATCH];
            let start = first_block + (i * BATCH) as u64;
            let blocks = part.chunks(BLOCK_SIZE);
            self.copy(start, &mut sums[..blocks.len()])?;
            for (j, (block, sum)) in blocks.zip(sums).enumerate() {
                let number = start + j as u64;
                match (compare(block, sum, known), bad) {
                    (true, None) => {}
                    (false, None) => bad = Some((number, number + 1)),
                    (false, Some((from, _))) => bad = Some((from, number + 1)),
                    (true, Some(_)) => return Ok(bad),
                }
            }
        }
        Ok(bad)
    }

    /// Copies checksums of consecutive blocks.
    pub(crate) fn copy(&self, first_block: u64, out: &mut [BlockSum]) -> Result<(), Missing> {
        let mut pages = self.pages.lock();
        let mut done = 0;
        while done < out.len() {
            let (number, at) = locate(first_block + done as u64);
            let page = pages.by_number.get_mut(&number).ok_or(Missing(number))?;
            page.used = true;
            let n = (out.len() - done).min(PAGE_SUMS as usize - at);
            out[done..done + n].copy_from_slice(&page.sums[at..at + n]);
            done += n;
        }
        Ok(())
    }

    /// Sets checksums of consecutive blocks, all or none.
    pub(crate) fn set(&self, first_block: u64, sums: &[BlockSum]) -> Result<(), Missing> {
        let Some(last) = (first_block + sums.len() as u64).checked_sub(1) else { return Ok(()) };
        let mut pages = self.pages.lock();
        let touched = locate(first_block).0..=locate(last).0;
        if let Some(number) = touched.into_iter().find(|n| !pages.by_number.contains_key(n)) {
            return Err(Missing(number));
        }
        let mut done = 0;
        while done < sums.len() {
            let (number, at) = locate(first_block + done as u64);
            let page = pages.by_number.get_mut(&number).ok_or(Missing(number))?;
            let n = (sums.len() - done).min(PAGE_SUMS as usize - at);
            page.sums[at..at + n].copy_from_slice(&sums[done..done + n]);
            page.dirty = true;
            page.used = true;
            done += n;
        }
        Ok(())
    }

    /// Must be called before a page is loaded, for [`SumCache::insert`].
    pub(crate) fn invalidations(&self) -> u64 {
        self.pages.lock().invalidations
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.pages.lock().by_number.contains_key(&number)
    }

    /// Returns the first page in memory from a number on.
    pub(crate) fn next_page(&self, from: u64) -> Option<u64> {
        self.pages.lock().by_number.range(from..).next().map(|(number, _)| *number)
    }

    /// Returns the highest page in memory.
    pub(crate) fn last_page(&self) -> Option<u64> {
        self.pages.lock().by_number.last_key_value().map(|(number, _)| *number)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.pages.lock().by_number.values().any(|page| page.dirty || page.writing)
    }

    /// Adds a page that was read from disk. False: something changed since `invalidations` was
    /// called; read it again.
    pub(crate) fn insert(
        &self,
        file: &Arc<ChunkFile>,
        number: u64,
        invalidations: u64,
        stored: &[u8],
    ) -> bool {
        let mut pages = self.pages.lock();
        if pages.by_number.contains_key(&number) {
            return true;
        }
        if pages.invalidations != invalidations {
            return false;
        }
        let mut page = Page::new();
        page.sums = stored_sums(stored);
        pages.by_number.insert(number, page);
        self.budget.resident.fetch_add(1, Ordering::Relaxed);
        drop(pages);
        self.budget.enqueue(file, number);
        true
    }

    /// Sets every checksum of a page to that of a hole, whatever is stored.
    pub(crate) fn clear_page(&self, file: &Arc<ChunkFile>, number: u64) {
        let mut pages = self.pages.lock();
        let mut arrived = false;
        let page = pages.by_number.entry(number).or_insert_with(|| {
            arrived = true;
            Page::new()
        });
        page.sums.fill(BlockSum::HOLE);
        page.dirty = true;
        if arrived {
            self.budget.resident.fetch_add(1, Ordering::Relaxed);
            drop(pages);
            self.budget.enqueue(file, number);
        }
    }

    /// Drops all blocks from `first_block` on. The caller has truncated the checksum file and
    /// prevents write-backs.
    pub(crate) fn truncate(&self, first_block: u64) {
        let (number, at) = locate(first_block);
        let mut pages = self.pages.lock();
        pages.invalidations += 1;
        let whole_from = if at == 0 { number } else { number + 1 };
        let gone = pages.by_number.split_off(&whole_from);
        self.budget.release(gone.len());
        if let Some(page) = pages.by_number.get_mut(&number) {
            page.sums[at..].fill(BlockSum::HOLE);
            page.dirty = true;
        }
    }

    /// Returns the next page at or after `from` that has to be written, as bytes.
    pub(crate) fn next_write(&self, from: u64) -> Option<PageWrite<'_>> {
        let mut pages = self.pages.lock();
        let (number, page) = pages.by_number.range_mut(from..).find(|(_, page)| page.dirty)?;
        page.dirty = false;
        page.writing = true;
        let buf = IoBuf::alloc(PAGE_BYTES);
        for (i, sum) in page.sums.iter().enumerate() {
            buf.copy_from(i * SUM_BYTES, &sum.0.to_le_bytes());
        }
        Some(PageWrite { cache: self, number: *number, bytes: buf, done: false })
    }

    /// Evicts a page if that loses nothing.
    fn try_evict(&self, number: u64) -> Eviction {
        let mut pages = self.pages.lock();
        let Some(page) = pages.by_number.get_mut(&number) else { return Eviction::Absent };
        if page.writing || std::mem::take(&mut page.used) {
            return Eviction::InUse;
        }
        if page.dirty {
            return Eviction::Dirty;
        }
        pages.by_number.remove(&number);
        pages.invalidations += 1;
        Eviction::Done
    }
}

impl Drop for SumCache {
    fn drop(&mut self) {
        self.budget.release(self.pages.get_mut().by_number.len());
    }
}

/// Decodes the checksums of a stored page. What is missing at its end belongs to holes.
pub(crate) fn stored_sums(stored: &[u8]) -> Box<[BlockSum; PAGE_SUMS as usize]> {
    let mut sums = Box::new([BlockSum::HOLE; PAGE_SUMS as usize]);
    for (sum, bytes) in sums.iter_mut().zip(stored.as_chunks::<SUM_BYTES>().0) {
        *sum = BlockSum(u32::from_le_bytes(*bytes));
    }
    sums
}

fn locate(block: u64) -> (u64, usize) {
    (block / PAGE_SUMS, (block % PAGE_SUMS) as usize)
}

/// A page that is being written; still dirty when this is dropped before [`PageWrite::done`].
pub(crate) struct PageWrite<'a> {
    cache: &'a SumCache,
    pub(crate) number: u64,
    pub(crate) bytes: IoBuf,
    done: bool,
}

impl PageWrite<'_> {
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for PageWrite<'_> {
    fn drop(&mut self) {
        if let Some(page) = self.cache.pages.lock().by_number.get_mut(&self.number) {
            page.writing = false;
            page.dirty |= !self.done;
        }
    }
}

enum Eviction {
    Done,
    Absent,
    InUse,
    Dirty,
}

/// Result of a search for a page to evict.
pub(crate) enum EvictionResult {
    /// There is room, or none can be made now.
    Enough,
    /// This file's pages have to be written first.
    FlushFirst(Arc<ChunkFile>),
}

/// The memory that all checksum pages of a store share, with a second-chance queue of eviction
/// candidates.
pub(crate) struct SumBudget {
    limit: usize,
    resident: AtomicUsize,
    queue: Mutex<VecDeque<(Weak<ChunkFile>, u64)>>,
}

impl SumBudget {
    pub(crate) fn new(limit_bytes: usize) -> SumBudget {
        let limit = (limit_bytes / PAGE_BYTES).max(1);
        SumBudget { limit, resident: AtomicUsize::new(0), queue: Mutex::new(VecDeque::new()) }
    }

    /// Queues a page for eviction. Called without the lock of any file's pages.
    fn enqueue(&self, file: &Arc<ChunkFile>, number: u64) {
        let mut queue = self.queue.lock();
        queue.push_back((Arc::downgrade(file), number));
        // Pages of closed files leave stale entries behind; this bounds them.
        if queue.len() > 2 * self.limit + EVICTION_PROBES {
            queue.retain(|(file, number)| file.upgrade().is_some_and(|file| file.sums.contains(*number)));
        }
    }

    fn release(&self, pages: usize) {
        self.resident.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Pages in memory.
    #[cfg(test)]
    pub(crate) fn resident(&self) -> usize {
        self.resident.load(Ordering::Relaxed)
    }

    /// Evicts clean pages that weren't used lately until there is room for one more.
    pub(crate) fn evict_pages(&self) -> EvictionResult {
        let mut first_dirty = None;
        for _ in 0..EVICTION_PROBES {
            if self.resident.load(Ordering::Relaxed) < self.limit {
                return EvictionResult::Enough;
            }
            let Some((file, number)) = self.queue.lock().pop_front() else { return EvictionResult::Enough };
            let Some(open) = file.upgrade() else { continue };
            match open.sums.try_evict(number) {
                Eviction::Done => self.release(1),
                Eviction::Absent => {}
                Eviction::InUse => self.queue.lock().push_back((file, number)),
                Eviction::Dirty => {
                    self.queue.lock().push_back((file, number));
                    first_dirty.get_or_insert(open);
                }
            }
        }
        first_dirty.map_or(EvictionResult::Enough, EvictionResult::FlushFirst)
    }
}
