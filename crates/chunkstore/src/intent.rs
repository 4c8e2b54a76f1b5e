//! The intent log: which regions of which chunk files may not match their checksums after a crash.
//!
//! Before the first change of a region of a chunk file, an entry is written durably here. The entry
//! is removed when data and checksums of the region are on disk. After a crash, recovery examines
//! only these dirty regions. Concurrent entries share one write.
//!
//! To save a durable write per new file, the entry for the first of many is a span: it stands for
//! the first region of all files that come next in the partition. Recovery looks for each of them;
//! [`MAX_SPANS`] bounds their number.

mod entries;
mod format;
mod holds;
mod spans;

use crate::error::{Kind, Result, StoreError};
use crate::paths::INTENT_FILES;
use crate::statistics::Statistics;
use entries::EntryTable;
use format::{Block, ENTRIES_PER_BLOCK};
use holds::Holds;
use parking_lot::Mutex;
use rt::{File, IoBuf, OpenOptions};
use spans::SPAN_INODES;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{BLOCK_SIZE, ByteRange, ChunkFileId, Errno, TargetId};

pub(crate) use format::{DirtyRegions, Header, LogState, Records, Span, merged, seal};
pub use holds::EntryHold;
pub(crate) use spans::MAX_SPANS;

/// Size of a region, bytes, aligned in the chunk file.
pub(crate) const REGION_BYTES: u64 = 1 << 20;
/// Length of each log file. Holds some 345,000 entries, many times [`IntentLog::entry_limit`].
pub(crate) const DEFAULT_LOG_BYTES: u64 = 8 << 20;
/// Smallest useful log: a header and a few blocks of records.
const MIN_LOG_BYTES: u64 = 16 * BLOCK_SIZE as u64;
/// The region that is marked dirty before a chunk file is created.
const NEW_FILE: Range<u64> = 0..1;
/// Unit of zeroing and of reading a log, bytes.
const BULK_BYTES: usize = 1 << 20;
/// The share of a log's capacity that active entries may take, as a divisor, so that a rewritten
/// log has space for more.
const ENTRY_SHARE: u64 = 4;
/// Retired entries that may stay in the log while others are active: recovery examines their
/// regions needlessly, some GiB at most. A span counts as one for each of its inodes.
const COMPACT_RETIRED_ENTRIES: usize = 4096;

impl DirtyRegions {
    pub(crate) fn bytes(&self) -> ByteRange {
        ByteRange::new(self.first.saturating_mul(REGION_BYTES), self.end.saturating_mul(REGION_BYTES))
    }
}

/// The regions that a range of bytes touches.
fn regions_of(range: ByteRange) -> Range<u64> {
    let end = if range.end == u64::MAX { u64::MAX } else { range.end.div_ceil(REGION_BYTES) };
    range.start / REGION_BYTES..end
}

/// The log found on disk.
pub(crate) struct OpenedLog {
    pub(crate) log: IntentLog,
    pub(crate) shutdown: ShutdownState,
}

/// How the store was left.
pub(crate) enum ShutdownState {
    /// By a finished shutdown.
    Clean,
    /// By a finished shutdown, with records of regions in which other replicas may differ.
    CleanWithEntries(Records),
    /// In use, with these records.
    InUse(Records),
    /// The log is lost: any checksum may be outdated.
    LogLost,
}

/// Records that stay active after a recovery.
#[derive(Default)]
pub(crate) struct RetainedRecords {
    pub(crate) records: Records,
    /// The chunk files that were found in the spans.
    pub(crate) in_spans: Vec<ChunkFileId>,
}

struct Tail {
    /// Index of the file in use.
    current: usize,
    sequence: u64,
    /// Where the next record block goes.
    next_block: u64,
    /// Records in the file, retired or not, see [`recovery_cost`].
    recorded: usize,
}

#[derive(Default)]
struct Pending {
    records: Records,
    /// Number of the batch that `records` will be written in.
    batch: u64,
    /// All batches before this one are durable.
    durable_before: u64,
}

impl Pending {
    fn has_span_of(&self, ino: ChunkFileId) -> bool {
        self.records.spans.iter().any(|span| span.contains(ino))
    }
}

/// The log of one store.
pub(crate) struct IntentLog {
    target: TargetId,
    paths: [PathBuf; 2],
    files: [File; 2],
    blocks: u64,
    table: EntryTable,
    /// Held by the task that writes to the log.
    writer: rt::sync::RwLock,
    tail: Mutex<Tail>,
    pending: Mutex<Pending>,
    /// Also the log's clock.
    holds: Arc<Holds>,
}

fn paths(dir: &Path) -> [PathBuf; 2] {
    INTENT_FILES.map(|name| dir.join(name))
}

/// Approximate number of chunk files that recovery has to examine because of records.
fn recovery_cost(records: &Records) -> usize {
    records.entries.len() + records.spans.len() * SPAN_INODES as usize
}

fn block_buf(block: &[u8]) -> IoBuf {
    let buf = IoBuf::alloc(block.len());
    buf.copy_from(0, block);
    buf
}

/// Opens past the page cache where the local file system supports it.
async fn open_file(path: &Path, options: OpenOptions) -> io::Result<File> {
    match File::open(path, OpenOptions { direct: true, ..options }).await {
        Err(e) if e.raw_os_error() == Some(Errno::EINVAL.number()) => File::open(path, options).await,
        opened => opened,
    }
}

impl IntentLog {
    /// Writes an empty log. Writes every block once, so that later writes change no metadata of the
    /// local file system.
    pub(crate) async fn format(target: TargetId, dir: &Path, bytes: u64) -> Result<()> {
        let bytes = bytes.max(MIN_LOG_BYTES).next_multiple_of(BLOCK_SIZE as u64);
        for (i, path) in paths(dir).iter().enumerate() {
            let write = async {
                let options = OpenOptions {
                    read: true,
                    write: true,
                    create: true,
                    truncate: true,
                    ..Default::default()
                };
                let file = open_file(path, options).await?;
                let zeros = IoBuf::alloc(BULK_BYTES);
                zeros.zero(0..BULK_BYTES);
                let mut at = 0;
                while at < bytes {
                    let part = zeros.slice(0..BULK_BYTES.min((bytes - at) as usize));
                    at += file.write_at(part, at).await? as u64;
                }
                let header = Header { sequence: i as u64 + 1, state: LogState::Clean };
                file.write_at(block_buf(&header.encode()), 0).await?;
                file.sync_data().await
            };
            write.await.map_err(|e| StoreError::io(target, "write", path, e))?;
        }
        Ok(())
    }

    /// Creates a log where a part of it is missing.
    pub(crate) async fn replace(target: TargetId, dir: &Path, bytes: u64) -> Result<IntentLog> {
        IntentLog::format(target, dir, bytes).await?;
        Ok(IntentLog::open(target, dir).await?.ok_or_else(|| damaged(target, dir))?.log)
    }

    /// Reads the log and returns how the store was left; `None` when a part of it is missing.
    /// Changes nothing on disk.
    pub(crate) async fn open(target: TargetId, dir: &Path) -> Result<Option<OpenedLog>> {
        let paths = paths(dir);
        let options = OpenOptions { read: true, write: true, ..Default::default() };
        let mut files = Vec::new();
        for path in &paths {
            match open_file(path, options).await {
                Ok(file) => files.push(file),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(StoreError::io(target, "open", path, e)),
            }
        }
        let files: [File; 2] = files.try_into().unwrap_or_else(|_| unreachable!("there are two paths"));
        let mut headers = [None; 2];
        let mut blocks = u64::MAX;
        for ((file, path), header) in files.iter().zip(&paths).zip(&mut headers) {
            let failed = |e| StoreError::io(target, "read", path, e);
            let buf = IoBuf::alloc(BLOCK_SIZE);
            let n = file.read_at(buf.clone(), 0).await.map_err(failed)?;
            *header = Header::decode(&buf.as_slice()[..n]);
            blocks = blocks.min(file.stat().await.map_err(failed)?.len / BLOCK_SIZE as u64);
        }
        let newest = (0..2).filter(|i| headers[*i].is_some()).max_by_key(|i| headers[*i].map(|h| h.sequence));
        let (Some(current), true) = (newest, blocks * BLOCK_SIZE as u64 >= MIN_LOG_BYTES) else {
            return Err(damaged(target, dir));
        };
        let header = headers[current].expect("only files with a header were considered");
        let tail = Tail { current, sequence: header.sequence, next_block: 1, recorded: 0 };
        let log = IntentLog {
            target,
            paths,
            files,
            blocks,
            table: EntryTable::default(),
            writer: rt::sync::RwLock::new(),
            tail: Mutex::new(tail),
            pending: Mutex::default(),
            holds: Arc::default(),
        };
        let past = match header.state {
            LogState::Clean => ShutdownState::Clean,
            LogState::CleanWithEntries => {
                ShutdownState::CleanWithEntries(log.read_records(current, header.sequence).await?)
            }
            LogState::InUse => ShutdownState::InUse(log.read_records(current, header.sequence).await?),
        };
        Ok(Some(OpenedLog { log, shutdown: past }))
    }

    /// Returns all records of the file in use, up to the first invalid block: the last write may
    /// have been torn, and no change relied on it.
    async fn read_records(&self, current: usize, sequence: u64) -> Result<Records> {
        let mut records = Records::default();
        let buf = IoBuf::alloc(BULK_BYTES);
        let mut index = 1;
        while index < self.blocks {
            let count = (self.blocks - index).min((BULK_BYTES / BLOCK_SIZE) as u64) as usize;
            let part = buf.slice(0..count * BLOCK_SIZE);
            let read = self.files[current].read_at(part.clone(), index * BLOCK_SIZE as u64).await;
            let n = read.map_err(|e| StoreError::io(self.target, "read", &self.paths[current], e))?;
            for block in part.as_slice()[..n].chunks_exact(BLOCK_SIZE) {
                if !records.decode(sequence, index, block) {
                    return Ok(records.merged());
                }
                index += 1;
            }
            if n < count * BLOCK_SIZE {
                break;
            }
        }
        Ok(records.merged())
    }

    /// Records a shutdown: no recovery is needed at the next start. No entries may be made at the
    /// same time or later.
    pub(crate) async fn record_shutdown(&self) -> Result<()> {
        let _writer = self.writer.write().await;
        if self.is_drained() {
            self.table.spans().clear();
            return self.switch(&Records::default(), LogState::Clean).await;
        }
        self.switch(&self.table.all().merged(), LogState::CleanWithEntries).await
    }

    /// Begins a new log in use with the records that were left.
    pub(crate) async fn resume(&self, inherited: &RetainedRecords) -> Result<()> {
        let _writer = self.writer.write().await;
        let RetainedRecords { records, in_spans } = inherited;
        self.switch(records, LogState::InUse).await?;
        let pass = self.holds.pass();
        self.table.activate(&records.entries, pass);
        self.table.spans().inherit(&records.spans, pass);
        for ino in in_spans {
            let missing = self.table.missing_entry(*ino, NEW_FILE, pass);
            debug_assert_eq!(missing, None, "the span covers it");
        }
        records
            .entries
            .iter()
            .map(|entry| entry.ino)
            .chain(in_spans.iter().copied())
            .for_each(|ino| self.observe(ino));
        Ok(())
    }

    /// Rewrites the log when most records that a recovery would find in it have retired.
    pub(crate) async fn compact(&self, statistics: &Statistics) -> Result<()> {
        let _writer = self.writer.write().await;
        self.table.spans().drop_unused();
        let retained = self.table.all().merged();
        let retired = self.tail.lock().recorded.saturating_sub(recovery_cost(&retained));
        if retired == 0 || (!retained.is_empty() && retired < COMPACT_RETIRED_ENTRIES + retained.len()) {
            return Ok(());
        }
        statistics.intent_compactions.add(1);
        self.switch(&retained, LogState::InUse).await
    }

    /// Limit of entries in the log; beyond it older ones have to retire.
    pub(crate) fn entry_limit(&self) -> usize {
        ((self.blocks - 1) * ENTRIES_PER_BLOCK as u64 / ENTRY_SHARE) as usize
    }

    /// Number of entries with a record of their own in the log.
    pub(crate) fn logged_count(&self) -> usize {
        self.table.logged()
    }

    /// Number of active entries, including those that a span stands for.
    pub(crate) fn entry_count(&self) -> usize {
        self.table.len()
    }

    /// Number of active spans.
    pub(crate) fn span_count(&self) -> usize {
        self.table.spans().len()
    }

    /// The holds that keep entries from retiring.
    pub(crate) fn holds(&self) -> &Arc<Holds> {
        &self.holds
    }

    /// Whether no dirty region matters at the next start.
    fn is_drained(&self) -> bool {
        self.table.len() == 0 && !(self.holds.retains_all() && self.table.spans().has_inherited())
    }

    /// Returns the dirty regions of files from `from` on, by file and region: of whole files with
    /// about `max` entries together, and where to continue. Of an inherited span, it returns all
    /// inodes: which of its files existed and are deleted is unknown.
    pub(crate) fn dirty_regions(
        &self,
        from: ChunkFileId,
        max: usize,
    ) -> (Vec<DirtyRegions>, Option<ChunkFileId>) {
        let mut entries = self.table.entries_from(from);
        entries.extend(self.table.spans().inherited_from(from, max));
        let mut entries = merged(entries);
        let Some(cut) = entries.get(max.max(1)).map(|entry| entry.ino) else { return (entries, None) };
        // The file at the limit goes into the next answer, unless it is alone in this one.
        let first = entries[0].ino;
        let end = if cut == first { ChunkFileId(first.0.saturating_add(1)) } else { cut };
        let kept = entries.partition_point(|entry| entry.ino < end);
        let is_last = kept == entries.len();
        entries.truncate(kept);
        (entries, (!is_last).then_some(end))
    }

    /// Records an inode that has a chunk file.
    pub(crate) fn observe(&self, ino: ChunkFileId) {
        self.table.spans().observe(ino);
    }

    /// As [`IntentLog::mark_dirty`] for region 0 of a chunk file that doesn't exist yet, and for
    /// those of the next ones if possible.
    pub(crate) async fn mark_new_file(&self, ino: ChunkFileId, statistics: &Statistics) -> Result<()> {
        if self.awaits_span(ino) {
            let _writer = self.writer.write().await;
            if self.pending.lock().has_span_of(ino) {
                Box::pin(self.commit(statistics)).await?;
            }
        }
        // Relies on the span, or on an entry of its own where no span is open, or none any more.
        self.mark_regions(ino, NEW_FILE, statistics).await
    }

    /// Whether a span that covers a new inode is about to be written. Proposes one if allowed.
    fn awaits_span(&self, ino: ChunkFileId) -> bool {
        // Held all the time: a span becomes active before it stops being pending, so that one of
        // the two is always visible.
        let mut pending = self.pending.lock();
        if pending.has_span_of(ino) {
            return true;
        }
        let proposed = self.table.spans().propose(ino, pending.records.spans.len());
        pending.records.spans.extend(proposed);
        proposed.is_some()
    }

    /// Returns when a range has a durable entry. The caller holds the range until its change has
    /// ended.
    pub(crate) async fn mark_dirty(
        &self,
        ino: ChunkFileId,
        range: ByteRange,
        statistics: &Statistics,
    ) -> Result<()> {
        self.mark_regions(ino, regions_of(range), statistics).await
    }

    async fn mark_regions(
        &self,
        ino: ChunkFileId,
        wanted: Range<u64>,
        statistics: &Statistics,
    ) -> Result<()> {
        let Some(entry) = self.table.missing_entry(ino, wanted, self.holds.pass()) else {
            return Ok(());
        };
        let batch = {
            let mut pending = self.pending.lock();
            pending.records.entries.push(entry);
            pending.batch
        };
        let _writer = self.writer.write().await;
        if batch < self.pending.lock().durable_before {
            return Ok(());
        }
        // Rare, and large: kept out of the future of every request.
        Box::pin(self.commit(statistics)).await
    }

    /// Makes everything pending durable; the caller is the writer. After a failed or abandoned
    /// attempt, the records stay pending.
    async fn commit(&self, statistics: &Statistics) -> Result<()> {
        let records = {
            let mut pending = self.pending.lock();
            pending.batch += 1;
            pending.records.clone()
        };
        let full = self.tail.lock().next_block + records.blocks() > self.blocks;
        if full {
            let mut all = self.table.all();
            all.extend(&records);
            self.switch(&all.merged(), LogState::InUse).await?;
            statistics.intent_compactions.add(1);
        } else {
            self.append(&records).await?;
        }
        statistics.intent_writes.add(1);
        statistics.intents.add(records.len() as u64);
        let pass = self.holds.pass();
        self.table.activate(&records.entries, pass);
        self.table.spans().activate(&records.spans, pass);
        let mut pending = self.pending.lock();
        pending.records.entries.drain(..records.entries.len());
        pending.records.spans.drain(..records.spans.len());
        pending.durable_before = pending.batch;
        Ok(())
    }

    /// Appends records, for which there is space.
    async fn append(&self, records: &Records) -> Result<()> {
        let (current, sequence, at) = {
            let mut tail = self.tail.lock();
            // A failed or abandoned write leaves a gap, which would end the log for its reader: the
            // next records then begin a new one.
            let at = std::mem::replace(&mut tail.next_block, self.blocks);
            (tail.current, tail.sequence, at)
        };
        self.write_records(current, sequence, at, records).await?;
        let mut tail = self.tail.lock();
        tail.next_block = at + records.blocks();
        tail.recorded += recovery_cost(records);
        Ok(())
    }

    /// Writes records to the other file and makes that one current.
    async fn switch(&self, records: &Records, state: LogState) -> Result<()> {
        let (other, sequence) = {
            let tail = self.tail.lock();
            (1 - tail.current, tail.sequence + 1)
        };
        let needed = records.blocks();
        if needed + 1 > self.blocks {
            return Err(StoreError::new(
                Kind::NoSpace,
                format!("target {}: the intent log is full", self.target),
                "the target's disk doesn't keep up with writes to so many files; look for disk errors in the kernel log",
            ));
        }
        // An earlier attempt may have failed with its header on disk all the same, which must not
        // count from here on.
        self.tail.lock().next_block = self.blocks;
        self.write_durably(other, block_buf(&[0; BLOCK_SIZE]), 0).await?;
        if needed > 0 {
            self.write_records(other, sequence, 1, records).await?;
        }
        self.write_durably(other, block_buf(&Header { sequence, state }.encode()), 0).await?;
        *self.tail.lock() =
            Tail { current: other, sequence, next_block: 1 + needed, recorded: recovery_cost(records) };
        Ok(())
    }

    async fn write_records(&self, file: usize, sequence: u64, at: u64, records: &Records) -> Result<()> {
        let blocks: Vec<Block> = records.encode(sequence, at);
        let buf = IoBuf::alloc(blocks.len() * BLOCK_SIZE);
        for (i, block) in blocks.iter().enumerate() {
            buf.copy_from(i * BLOCK_SIZE, block);
        }
        self.write_durably(file, buf, at).await
    }

    async fn write_durably(&self, file: usize, buf: IoBuf, block: u64) -> Result<()> {
        let written = self.files[file].write_at_durable(buf, block * BLOCK_SIZE as u64).await;
        written.map(|_| ()).map_err(|e| StoreError::io(self.target, "write", &self.paths[file], e))
    }

    /// Starts a maintenance pass: entries that were idle for `idle_passes` whole passes and that no
    /// hold retains begin to retire, and spans close.
    pub(crate) fn begin_retiring(&self, idle_passes: u64) -> BTreeMap<ChunkFileId, Vec<DirtyRegions>> {
        let (pass, before) = self.holds.next_pass(idle_passes);
        // Inherited ones stay because they are open: for files that are gone there are no holds.
        if !self.holds.retains_all() {
            self.table.spans().close(pass, idle_passes);
        }
        self.table.begin_retiring(before)
    }

    /// See [`EntryTable::retire`].
    pub(crate) fn retire(&self, ino: ChunkFileId) {
        self.table.retire(ino);
    }

    /// See [`EntryTable::reactivate`].
    pub(crate) fn reactivate(&self, ino: ChunkFileId) {
        self.table.reactivate(ino, self.holds.pass());
    }
}

fn damaged(target: TargetId, dir: &Path) -> StoreError {
    let [first, second] = INTENT_FILES;
    StoreError::new(
        Kind::Damaged,
        format!("target {target}: the intent log in {} is damaged", dir.display()),
        format!(
            "check the disk, then remove {first} and {second}: all checksums are rebuilt at the next start"
        ),
    )
}

#[cfg(test)]
mod tests;
