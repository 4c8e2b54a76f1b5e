//! The intent log: which regions of which chunk files may differ from their checksums after a
//! crash.
//!
//! Before a region of a chunk file is first changed, a note is made durable here; it goes when data
//! and checksums of the region are on disk. After a crash only noted regions are examined.
//! Concurrent notes share one write.
//!
//! So that not every new file costs a durable write, the note of the first of many is a span: it
//! stands for the first region of all files that come next in the partition. A recovery looks for
//! each of them; [`MAX_SPANS`] bounds how many that are.

mod format;
mod holds;
mod notes;
mod spans;

use crate::error::{Kind, Result, StoreError};
use crate::place::INTENT_FILES;
use crate::statistics::Statistics;
use format::{Block, NOTES_PER_BLOCK};
use holds::Holds;
use notes::NoteTable;
use parking_lot::Mutex;
use rt::{File, IoBuf, OpenOptions};
use spans::SPAN_INODES;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{BLOCK_SIZE, ByteRange, Errno, InodeId, TargetId};

pub(crate) use format::{Header, LogState, Note, Records, Span, merged, seal};
pub use holds::NoteHold;
pub(crate) use spans::MAX_SPANS;

/// What a note speaks of: this many bytes of a chunk file, aligned.
pub(crate) const REGION_BYTES: u64 = 1 << 20;
/// Length of each log file. Holds some 345,000 notes, many times [`IntentLog::note_limit`] of them.
pub(crate) const DEFAULT_LOG_BYTES: u64 = 8 << 20;
/// Smallest useful log: a header and a few blocks of records.
const MIN_LOG_BYTES: u64 = 16 * BLOCK_SIZE as u64;
/// What is noted of a chunk file before it is made.
const NEW_FILE: Range<u64> = 0..1;
/// Unit of zeroing and of reading a log, bytes.
const BULK_BYTES: usize = 1 << 20;
/// The share of a log's notes that may be in force, so that a rewritten log has room to go on.
const NOTE_SHARE: u64 = 4;
/// Retired notes that stay in the log while others are in force: a recovery examines their regions
/// for nothing, some GiB at most. A span counts as one for each of its inodes.
const TIDY_RETIRED_NOTES: usize = 4096;

impl Note {
    pub(crate) fn bytes(&self) -> ByteRange {
        ByteRange::new(self.first.saturating_mul(REGION_BYTES), self.end.saturating_mul(REGION_BYTES))
    }
}

/// The regions that a range of bytes touches.
fn regions_of(range: ByteRange) -> Range<u64> {
    let end = if range.end == u64::MAX { u64::MAX } else { range.end.div_ceil(REGION_BYTES) };
    range.start / REGION_BYTES..end
}

/// What was found on disk.
pub(crate) struct Found {
    pub(crate) log: IntentLog,
    pub(crate) past: Past,
}

/// How the store was left.
pub(crate) enum Past {
    /// By a shutdown that finished.
    Clean,
    /// By one that finished, with records of what other copies may not have.
    Settled(Records),
    /// In use, with these records.
    InUse(Records),
    /// The log is gone: anything may be out of date.
    Unknown,
}

/// What a recovery leaves in force.
#[derive(Default)]
pub(crate) struct Inherited {
    pub(crate) records: Records,
    /// The chunk files that were found in the spans.
    pub(crate) in_spans: Vec<InodeId>,
}

struct Tail {
    /// Index of the file in use.
    current: usize,
    sequence: u64,
    /// Where the next record block goes.
    next_block: u64,
    /// What is in the file, retired or not, see [`weight`].
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
    fn has_span_of(&self, ino: InodeId) -> bool {
        self.records.spans.iter().any(|span| span.contains(ino))
    }
}

/// The log of one store.
pub(crate) struct IntentLog {
    target: TargetId,
    paths: [PathBuf; 2],
    files: [File; 2],
    blocks: u64,
    table: NoteTable,
    /// Held by whoever writes to the log.
    writer: rt::sync::RwLock,
    tail: Mutex<Tail>,
    pending: Mutex<Pending>,
    /// The log's clock, too.
    holds: Arc<Holds>,
}

fn paths(dir: &Path) -> [PathBuf; 2] {
    INTENT_FILES.map(|name| dir.join(name))
}

/// Chunk files that a recovery has to look at because of records, about.
fn weight(records: &Records) -> usize {
    records.notes.len() + records.spans.len() * SPAN_INODES as usize
}

fn block_buf(block: &[u8]) -> IoBuf {
    let buf = IoBuf::alloc(block.len());
    buf.copy_from(0, block);
    buf
}

/// Opens past the page cache where the local file system can.
async fn open_file(path: &Path, options: OpenOptions) -> io::Result<File> {
    match File::open(path, OpenOptions { direct: true, ..options }).await {
        Err(e) if e.raw_os_error() == Some(Errno::EINVAL.0) => File::open(path, options).await,
        opened => opened,
    }
}

impl IntentLog {
    /// Writes an empty log. Every block is written once, so that later writes change no metadata of
    /// the local file system.
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

    /// Makes a log where a part of it is missing.
    pub(crate) async fn replace(target: TargetId, dir: &Path, bytes: u64) -> Result<IntentLog> {
        IntentLog::format(target, dir, bytes).await?;
        Ok(IntentLog::open(target, dir).await?.ok_or_else(|| damaged(target, dir))?.log)
    }

    /// Reads the log and says how the store was left; `None` when a part of it is missing. Changes
    /// nothing on disk.
    pub(crate) async fn open(target: TargetId, dir: &Path) -> Result<Option<Found>> {
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
            table: NoteTable::default(),
            writer: rt::sync::RwLock::new(),
            tail: Mutex::new(tail),
            pending: Mutex::default(),
            holds: Arc::default(),
        };
        let past = match header.state {
            LogState::Clean => Past::Clean,
            LogState::Settled => Past::Settled(log.read_records(current, header.sequence).await?),
            LogState::InUse => Past::InUse(log.read_records(current, header.sequence).await?),
        };
        Ok(Some(Found { log, past }))
    }

    /// All records of the file in use, up to the first block that isn't one: the last write may
    /// have been torn, and nobody relied on it.
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

    /// Notes that nothing has to be put right at the next start. Nothing may be noted at the same
    /// time, nor later.
    pub(crate) async fn leave(&self) -> Result<()> {
        let _writer = self.writer.write().await;
        if self.has_settled() {
            self.table.spans().clear();
            return self.switch(&Records::default(), LogState::Clean).await;
        }
        self.switch(&self.table.all().merged(), LogState::Settled).await
    }

    /// Begins a new log in use with what was left.
    pub(crate) async fn resume(&self, inherited: &Inherited) -> Result<()> {
        let _writer = self.writer.write().await;
        let Inherited { records, in_spans } = inherited;
        self.switch(records, LogState::InUse).await?;
        let pass = self.holds.pass();
        self.table.activate(&records.notes, pass);
        self.table.spans().inherit(&records.spans, pass);
        for ino in in_spans {
            let lacking = self.table.lacking(*ino, NEW_FILE, pass);
            debug_assert_eq!(lacking, None, "the span covers it");
        }
        records
            .notes
            .iter()
            .map(|note| note.ino)
            .chain(in_spans.iter().copied())
            .for_each(|ino| self.see(ino));
        Ok(())
    }

    /// Rewrites the log when most of what a recovery would find in it has retired.
    pub(crate) async fn tidy(&self, statistics: &Statistics) -> Result<()> {
        let _writer = self.writer.write().await;
        self.table.spans().drop_unused();
        let kept = self.table.all().merged();
        let retired = self.tail.lock().recorded.saturating_sub(weight(&kept));
        if retired == 0 || (!kept.is_empty() && retired < TIDY_RETIRED_NOTES + kept.len()) {
            return Ok(());
        }
        statistics.intent_compactions.add(1);
        self.switch(&kept, LogState::InUse).await
    }

    /// How many notes may take room in the log before older ones have to retire.
    pub(crate) fn note_limit(&self) -> usize {
        ((self.blocks - 1) * NOTES_PER_BLOCK as u64 / NOTE_SHARE) as usize
    }

    /// Notes that take room in the log.
    pub(crate) fn logged_count(&self) -> usize {
        self.table.logged()
    }

    /// Notes in force, those that a span stands for included.
    pub(crate) fn note_count(&self) -> usize {
        self.table.len()
    }

    /// Spans in force.
    pub(crate) fn span_count(&self) -> usize {
        self.table.spans().len()
    }

    /// What keeps notes from retiring.
    pub(crate) fn holds(&self) -> &Arc<Holds> {
        &self.holds
    }

    /// Whether nothing is noted that anybody has to know at the next start.
    fn has_settled(&self) -> bool {
        self.table.len() == 0 && !(self.holds.keeps_everything() && self.table.spans().has_inherited())
    }

    /// What is noted of files from `from` on, by file and region: of whole files, as many as have
    /// about `max` notes, and where to go on. Of a span that an earlier life of the store has left,
    /// all inodes are named: which files were in it and are gone nobody knows.
    pub(crate) fn noted(&self, from: InodeId, max: usize) -> (Vec<Note>, Option<InodeId>) {
        let mut notes = self.table.noted(from);
        notes.extend(self.table.spans().inherited_from(from, max));
        let mut notes = merged(notes);
        let Some(cut) = notes.get(max.max(1)).map(|note| note.ino) else { return (notes, None) };
        // The file at the cut goes into the next answer, unless it is alone in this one.
        let first = notes[0].ino;
        let end = if cut == first { InodeId(first.0.saturating_add(1)) } else { cut };
        let kept = notes.partition_point(|note| note.ino < end);
        let is_last = kept == notes.len();
        notes.truncate(kept);
        (notes, (!is_last).then_some(end))
    }

    /// Takes note of an inode that has a chunk file.
    pub(crate) fn see(&self, ino: InodeId) {
        self.table.spans().see(ino);
    }

    /// As [`IntentLog::note`] for region 0 of a chunk file that doesn't exist yet, and for those
    /// that come next if it can be.
    pub(crate) async fn note_new(&self, ino: InodeId, statistics: &Statistics) -> Result<()> {
        if self.awaits_span(ino) {
            let _writer = self.writer.write().await;
            if self.pending.lock().has_span_of(ino) {
                Box::pin(self.commit(statistics)).await?;
            }
        }
        // Relies on the span, or on a note of its own where there is none, or none any more.
        self.note_regions(ino, NEW_FILE, statistics).await
    }

    /// Whether a span that covers a new inode is about to be written. Proposes one if it may.
    fn awaits_span(&self, ino: InodeId) -> bool {
        // Held all the time: a span is in force before it stops being pending, so that one of the
        // two shows.
        let mut pending = self.pending.lock();
        if pending.has_span_of(ino) {
            return true;
        }
        let proposed = self.table.spans().propose(ino, pending.records.spans.len());
        pending.records.spans.extend(proposed);
        proposed.is_some()
    }

    /// Returns when a range is noted durably. The caller holds the range and keeps holding it until
    /// its change is done.
    pub(crate) async fn note(&self, ino: InodeId, range: ByteRange, statistics: &Statistics) -> Result<()> {
        self.note_regions(ino, regions_of(range), statistics).await
    }

    async fn note_regions(&self, ino: InodeId, wanted: Range<u64>, statistics: &Statistics) -> Result<()> {
        let Some(note) = self.table.lacking(ino, wanted, self.holds.pass()) else {
            return Ok(());
        };
        let batch = {
            let mut pending = self.pending.lock();
            pending.records.notes.push(note);
            pending.batch
        };
        let _writer = self.writer.write().await;
        if batch < self.pending.lock().durable_before {
            return Ok(());
        }
        // Rare, and large: kept out of the future of every request.
        Box::pin(self.commit(statistics)).await
    }

    /// Makes everything pending durable; the caller is the writer. What a failed or abandoned
    /// attempt leaves stays pending.
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
        self.table.activate(&records.notes, pass);
        self.table.spans().activate(&records.spans, pass);
        let mut pending = self.pending.lock();
        pending.records.notes.drain(..records.notes.len());
        pending.records.spans.drain(..records.spans.len());
        pending.durable_before = pending.batch;
        Ok(())
    }

    /// Writes records behind the last ones; there is room for them.
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
        tail.recorded += weight(records);
        Ok(())
    }

    /// Writes records to the other file and makes that one count.
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
        // An earlier attempt may have failed with its header on disk all the same; from here on
        // that must not count.
        self.tail.lock().next_block = self.blocks;
        self.write_durably(other, block_buf(&[0; BLOCK_SIZE]), 0).await?;
        if needed > 0 {
            self.write_records(other, sequence, 1, records).await?;
        }
        self.write_durably(other, block_buf(&Header { sequence, state }.encode()), 0).await?;
        *self.tail.lock() =
            Tail { current: other, sequence, next_block: 1 + needed, recorded: weight(records) };
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

    /// Starts a maintenance pass: notes that were idle for `idle_passes` whole passes and that
    /// nobody holds begin to retire, and spans close.
    pub(crate) fn begin_retiring(&self, idle_passes: u64) -> BTreeMap<InodeId, Vec<Note>> {
        let (pass, before) = self.holds.next_pass(idle_passes);
        // Inherited ones are kept by being open: nobody holds them for files that are gone.
        if !self.holds.keeps_everything() {
            self.table.spans().close(pass, idle_passes);
        }
        self.table.begin_retiring(before)
    }

    /// See [`NoteTable::retire`].
    pub(crate) fn retire(&self, ino: InodeId) {
        self.table.retire(ino);
    }

    /// See [`NoteTable::reactivate`].
    pub(crate) fn reactivate(&self, ino: InodeId) {
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
