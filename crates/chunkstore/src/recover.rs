//! Recovery of checksums where a change may have been interrupted.

use crate::block_sums::sum_of_found;
use crate::chunk_file::{ChunkFile, absent_is_fine};
use crate::error::Result;
use crate::intent::{DirtyRegions, Records, RetainedRecords, ShutdownState, Span, merged};
use crate::paths;
use crate::range_lock::WritePath;
use crate::read::BLOCK;
use crate::store::{IoPath, Store};
use rt::IoBuf;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{BLOCK_SIZE, BlockSum, ByteRange, ChunkFileId};

/// Bytes read at a time.
const SEGMENT_BYTES: u64 = 1 << 20;

/// What recovery has done to open a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// The store was not shut down, or is a replica that may differ from others in dirty regions:
    /// the other members hadn't confirmed the changes.
    pub was_needed: bool,
    /// The intent log was missing, so that all chunk files were examined.
    pub log_was_missing: bool,
    /// Chunk files that were examined.
    pub files: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Blocks whose checksums were outdated.
    pub blocks_changed: u64,
}

impl Store {
    /// Rebuilds all checksums that may be outdated. Returns the records that have to stay active:
    /// until crash reconciliation of these files has finished, another crash has to lead to the
    /// same recovery again.
    ///
    /// The work is bounded: the active entries, [`MAX_SPANS`](crate::intent::MAX_SPANS) spans, and
    /// the retired ones that the log still has. Of each inode of a span it is the first region,
    /// where there is a chunk file.
    pub(crate) async fn recover(&self, shutdown: ShutdownState) -> Result<(RecoveryReport, RetainedRecords)> {
        let mut report = RecoveryReport::default();
        let records = match shutdown {
            ShutdownState::Clean => return Ok((report, RetainedRecords::default())),
            ShutdownState::CleanWithEntries(records) => {
                report.was_needed = true;
                // After a clean shutdown, any block that doesn't match its checksum is damage, in
                // dirty regions as elsewhere.
                let in_spans = self.chunk_files_in(&records.spans, false).await?;
                return Ok((report, RetainedRecords { records, in_spans }));
            }
            ShutdownState::InUse(records) => records,
            ShutdownState::LogLost => {
                report.log_was_missing = true;
                let all =
                    self.list().await?.into_iter().map(|ino| DirtyRegions { ino, first: 0, end: u64::MAX });
                Records { entries: all.collect(), spans: Vec::new() }
            }
        };
        report.was_needed = true;
        self.needs_reconciliation.store(!records.is_empty(), Ordering::Release);
        let in_spans = self.chunk_files_in(&records.spans, true).await?;
        self.created_at_crash.lock().extend(records.spans.iter().map(|span| (span.first, span.end)));
        self.at_crash.add_spans(&records.spans);
        let mut entries = records.entries.clone();
        entries.extend(in_spans.iter().map(|ino| DirtyRegions { ino: *ino, first: 0, end: 1 }));
        for of_one_file in merged(entries).chunk_by(|a, b| a.ino == b.ino) {
            self.recover_one(of_one_file, &mut report).await?;
        }
        // Once for everything: the checksums just written, the data of entries that retire, and the
        // absence of deleted files that a span covers, whose numbers aren't known any more.
        self.sync_filesystem().await?;
        let RecoveryReport { files, bytes, blocks_changed, .. } = report;
        tracing::info!(target_id = %self.target(), files, bytes, blocks_changed, "recovered after a crash");
        if report.log_was_missing {
            // So many entries wouldn't fit into a log, and their content is on disk.
            return Ok((report, RetainedRecords::default()));
        }
        Ok((report, RetainedRecords { records, in_spans }))
    }

    /// Rebuilds the checksums of the dirty regions of one file.
    async fn recover_one(&self, entries: &[DirtyRegions], report: &mut RecoveryReport) -> Result<()> {
        let ino = entries[0].ino;
        self.changing_at_crash.lock().push(ino);
        self.at_crash.add_file(ino);
        let Some(file) = self.find(ino).await? else { return self.remove_orphaned_sums(ino).await };
        report.files += 1;
        for entry in entries {
            let outcome = self.rebuild_sums(&file, entry.bytes()).await?;
            report.bytes += outcome.bytes;
            report.blocks_changed += outcome.blocks_changed;
        }
        self.flush_sums(&file).await
    }

    /// Returns the chunk files that exist among the inodes of spans. After a crash, orphaned
    /// checksums of the others are removed.
    async fn chunk_files_in(&self, spans: &[Span], crashed: bool) -> Result<Vec<ChunkFileId>> {
        let inodes: BTreeSet<ChunkFileId> = spans.iter().flat_map(|span| span.inodes()).collect();
        let mut found = Vec::new();
        for ino in inodes {
            match self.find(ino).await? {
                Some(_) => found.push(ino),
                None if crashed => self.remove_orphaned_sums(ino).await?,
                None => {}
            }
        }
        Ok(found)
    }

    /// Removes orphaned checksums of a file that was being created or deleted: later, they would
    /// mean that another program has removed the chunk file.
    async fn remove_orphaned_sums(&self, ino: ChunkFileId) -> Result<()> {
        let sums = paths::sum_file(&self.dir, ino);
        match self.store_dir.confirm(rt::remove_file(&sums).await) {
            Ok(()) => drop(self.orphaned_sums.lock().insert(ino)),
            gone => absent_is_fine(gone).map_err(|e| self.failed("remove", &sums, e))?,
        }
        Ok(())
    }

    /// Sets the checksums of a range to those of the data, whatever they were. The caller holds the
    /// range, or is the only user.
    async fn rebuild_sums(&self, file: &Arc<ChunkFile>, range: ByteRange) -> Result<RebuildOutcome> {
        let failed = |e| self.failed("read", &file.path, e);
        let mut outcome = RebuildOutcome::default();
        let end = file.cached.stat().await.map_err(failed)?.len;
        let data_end = end.next_multiple_of(BLOCK).min(range.end);
        let mut at = range.start;
        while at < data_end {
            // Up to here there is only a hole.
            let data = file.cached.seek_data(at).await.map_err(failed)?.unwrap_or(data_end) / BLOCK * BLOCK;
            let hole_end = data.clamp(at, data_end);
            self.clear_sums(file, ByteRange::new(at, hole_end)).await?;
            let segment = ByteRange::at(hole_end, SEGMENT_BYTES).intersect(ByteRange::new(0, data_end));
            if segment.is_empty() {
                break;
            }
            let buf = IoBuf::alloc(segment.len() as usize);
            self.fetch(file, segment, &buf, IoPath::Direct).await?;
            outcome.blocks_changed += self.accept_sums(file, segment, &buf).await?;
            outcome.bytes += segment.len();
            at = segment.end;
        }
        if range.end == u64::MAX {
            self.truncate_sums(file, end.div_ceil(BLOCK).max(range.start / BLOCK)).await?;
        } else {
            self.clear_sums(file, ByteRange::new(data_end.max(range.start), range.end)).await?;
        }
        Ok(outcome)
    }

    /// Sets checksums to those of blocks that were read; returns how many have changed.
    async fn accept_sums(&self, file: &Arc<ChunkFile>, blocks: ByteRange, buf: &IoBuf) -> Result<u64> {
        let first = blocks.start / BLOCK;
        let found: Vec<BlockSum> = buf.as_slice().chunks_exact(BLOCK_SIZE).map(sum_of_found).collect();
        let mut known = vec![BlockSum::HOLE; found.len()];
        self.copy_sums(file, first, &mut known).await?;
        let is_stale = |(block, sum): (&[u8], &BlockSum)| !crate::block_sums::matches(block, *sum);
        let stale =
            buf.as_slice().chunks_exact(BLOCK_SIZE).zip(&known).filter(|pair| is_stale(*pair)).count();
        if stale > 0 {
            self.set_sums(file, first, &found).await?;
        }
        Ok(stale as u64)
    }

    /// Accepts blocks that were just read although their checksums don't match, since a failed
    /// change explains it.
    pub(crate) async fn accept_found(
        &self,
        file: &Arc<ChunkFile>,
        blocks: ByteRange,
        buf: &IoBuf,
    ) -> Result<()> {
        self.mark_unsynced(file);
        self.accept_sums(file, blocks, buf).await.map(drop)
    }

    /// After a failed change: sets checksums to match the data. What can't be read now stays
    /// unsettled for later.
    pub(crate) async fn rebuild_held(&self, file: &Arc<ChunkFile>, blocks: ByteRange) {
        match self.rebuild_sums(file, blocks).await {
            Ok(_) => file.mark_sums_valid(blocks),
            Err(e) => {
                tracing::warn!(target_id = %self.target(), inode = %file.ino, "checksums can't be rebuilt after a failed change: {e}")
            }
        }
    }

    /// Sets checksums to match the data where changes failed or were abandoned.
    pub(crate) async fn rebuild_stale_sums(&self, file: &Arc<ChunkFile>) -> Result<()> {
        let Some(unsettled) = file.stale_sums() else { return Ok(()) };
        let _held = file.ranges.acquire(unsettled, WritePath::None).await;
        self.rebuild_sums(file, unsettled).await?;
        file.mark_sums_valid(unsettled);
        Ok(())
    }
}

#[derive(Default)]
struct RebuildOutcome {
    bytes: u64,
    blocks_changed: u64,
}
