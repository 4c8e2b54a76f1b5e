//! The intent log: which regions of which chunk files may differ from their checksums after a crash.
//!
//! Before a region of a chunk file is first changed, a note is made durable here; it goes when data and checksums of the region are on
//! disk. After a crash only noted regions are examined. Concurrent notes share one write.

mod format;
mod notes;

use crate::error::{Kind, Result, StoreError};
use crate::place::INTENT_FILES;
use crate::statistics::Statistics;
use format::{Header, NOTES_PER_BLOCK, decode_notes, encode_notes};
use notes::NoteTable;
use parking_lot::Mutex;
use rt::{File, IoBuf, OpenOptions};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use types::{BLOCK_SIZE, ByteRange, Errno, InodeId, TargetId};

pub(crate) use format::{LogState, Note};

/// What a note speaks of: this many bytes of a chunk file, aligned.
pub(crate) const REGION_BYTES: u64 = 1 << 20;
/// Length of each log file. Holds some 345,000 notes, many times [`IntentLog::note_limit`] of them.
pub(crate) const DEFAULT_LOG_BYTES: u64 = 8 << 20;
/// Smallest useful log: a header and a few blocks of records.
const MIN_LOG_BYTES: u64 = 16 * BLOCK_SIZE as u64;
/// Unit of zeroing and of reading a log, bytes.
const BULK_BYTES: usize = 1 << 20;
/// The share of a log's notes that may be in force, so that a rewritten log has room to go on.
const NOTE_SHARE: u64 = 4;
/// Retired notes that stay in the log while others are in force: a recovery examines their regions for nothing, some GiB at most.
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
    /// In use, with these notes.
    InUse(Vec<Note>),
    /// The log is gone: anything may be out of date.
    Unknown,
}

struct Tail {
    /// Index of the file in use.
    current: usize,
    sequence: u64,
    /// Where the next record block goes.
    next_block: u64,
    /// Notes in the file, those that have retired included.
    recorded: usize,
}

#[derive(Default)]
struct Pending {
    notes: Vec<Note>,
    /// Number of the batch that `notes` will be written in.
    batch: u64,
    /// All batches before this one are durable.
    durable_before: u64,
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
    /// Number of the maintenance pass, the log's clock.
    pass: AtomicU64,
}

fn paths(dir: &Path) -> [PathBuf; 2] {
    INTENT_FILES.map(|name| dir.join(name))
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
    /// Writes an empty log. Every block is written once, so that later writes change no metadata of the local file system.
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

    /// Reads the log and says how the store was left; `None` when a part of it is missing. Changes nothing on disk.
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
            pass: AtomicU64::new(0),
        };
        let past = match header.state {
            LogState::Clean => Past::Clean,
            LogState::InUse => Past::InUse(log.read_notes(current, header.sequence).await?),
        };
        Ok(Some(Found { log, past }))
    }

    /// All notes of the file in use, up to the first block that isn't one: the last write may have been torn, and nobody relied on it.
    async fn read_notes(&self, current: usize, sequence: u64) -> Result<Vec<Note>> {
        let mut notes = Vec::new();
        let buf = IoBuf::alloc(BULK_BYTES);
        let mut index = 1;
        while index < self.blocks {
            let count = (self.blocks - index).min((BULK_BYTES / BLOCK_SIZE) as u64) as usize;
            let part = buf.slice(0..count * BLOCK_SIZE);
            let read = self.files[current].read_at(part.clone(), index * BLOCK_SIZE as u64).await;
            let n = read.map_err(|e| StoreError::io(self.target, "read", &self.paths[current], e))?;
            for block in part.as_slice()[..n].chunks_exact(BLOCK_SIZE) {
                match decode_notes(sequence, index, block) {
                    Some(found) => notes.extend(found),
                    None => return Ok(merged(notes)),
                }
                index += 1;
            }
            if n < count * BLOCK_SIZE {
                break;
            }
        }
        Ok(merged(notes))
    }

    /// Begins a new log without notes, in use or clean. Nothing may be noted at the same time.
    pub(crate) async fn begin(&self, state: LogState) -> Result<()> {
        let _writer = self.writer.write().await;
        self.switch(&[], state).await
    }

    /// Begins a new log in use with the notes that were left: what recovery has brought in step is not on disk yet.
    pub(crate) async fn resume(&self, notes: &[Note]) -> Result<()> {
        let _writer = self.writer.write().await;
        self.switch(notes, LogState::InUse).await?;
        self.table.activate(notes, self.pass.load(Ordering::Relaxed));
        Ok(())
    }

    /// Rewrites the log when most of what a recovery would find in it has retired.
    pub(crate) async fn tidy(&self, statistics: &Statistics) -> Result<()> {
        let _writer = self.writer.write().await;
        let notes = merged(self.table.all());
        let retired = self.tail.lock().recorded.saturating_sub(notes.len());
        if retired == 0 || (!notes.is_empty() && retired < TIDY_RETIRED_NOTES + notes.len()) {
            return Ok(());
        }
        statistics.intent_compactions.add(1);
        self.switch(&notes, LogState::InUse).await
    }

    /// How many notes may be in force before older ones have to retire.
    pub(crate) fn note_limit(&self) -> usize {
        ((self.blocks - 1) * NOTES_PER_BLOCK as u64 / NOTE_SHARE) as usize
    }

    /// Notes in force.
    pub(crate) fn note_count(&self) -> usize {
        self.table.len()
    }

    /// Returns when a range is noted durably. The caller holds the range and keeps holding it until its change is done.
    pub(crate) async fn note(&self, ino: InodeId, range: ByteRange, statistics: &Statistics) -> Result<()> {
        let wanted = regions_of(range);
        let Some(note) = self.table.lacking(ino, wanted, self.pass.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        let batch = {
            let mut pending = self.pending.lock();
            pending.notes.push(note);
            pending.batch
        };
        let _writer = self.writer.write().await;
        if batch < self.pending.lock().durable_before {
            return Ok(());
        }
        self.commit(statistics).await
    }

    /// Makes all pending notes durable; the caller is the writer. What a failed or abandoned attempt leaves stays pending.
    async fn commit(&self, statistics: &Statistics) -> Result<()> {
        let notes = {
            let mut pending = self.pending.lock();
            pending.batch += 1;
            pending.notes.clone()
        };
        let needed = notes.len().div_ceil(NOTES_PER_BLOCK) as u64;
        let full = self.tail.lock().next_block + needed > self.blocks;
        if full {
            let mut all = self.table.all();
            all.extend(&notes);
            self.switch(&merged(all), LogState::InUse).await?;
            statistics.intent_compactions.add(1);
        } else {
            let (current, sequence, at) = {
                let mut tail = self.tail.lock();
                // A failed or abandoned write leaves a gap, which would end the log for its reader: the next notes then begin a new one.
                let at = std::mem::replace(&mut tail.next_block, self.blocks);
                (tail.current, tail.sequence, at)
            };
            self.write_notes(current, sequence, at, &notes).await?;
            let mut tail = self.tail.lock();
            tail.next_block = at + needed;
            tail.recorded += notes.len();
        }
        statistics.intent_writes.add(1);
        statistics.intents.add(notes.len() as u64);
        self.table.activate(&notes, self.pass.load(Ordering::Relaxed));
        let mut pending = self.pending.lock();
        pending.notes.drain(..notes.len());
        pending.durable_before = pending.batch;
        Ok(())
    }

    /// Writes notes to the other file and makes that one count.
    async fn switch(&self, notes: &[Note], state: LogState) -> Result<()> {
        let (other, sequence) = {
            let tail = self.tail.lock();
            (1 - tail.current, tail.sequence + 1)
        };
        let needed = notes.len().div_ceil(NOTES_PER_BLOCK) as u64;
        if needed + 1 > self.blocks {
            return Err(StoreError::new(
                Kind::NoSpace,
                format!("target {}: the intent log is full", self.target),
                "the target's disk doesn't keep up with writes to so many files; look for disk errors in the kernel log",
            ));
        }
        // An earlier attempt may have failed with its header on disk all the same; from here on that must not count.
        self.tail.lock().next_block = self.blocks;
        self.write_durably(other, block_buf(&[0; BLOCK_SIZE]), 0).await?;
        if needed > 0 {
            self.write_notes(other, sequence, 1, notes).await?;
        }
        self.write_durably(other, block_buf(&Header { sequence, state }.encode()), 0).await?;
        *self.tail.lock() = Tail { current: other, sequence, next_block: 1 + needed, recorded: notes.len() };
        Ok(())
    }

    async fn write_notes(&self, file: usize, sequence: u64, at: u64, notes: &[Note]) -> Result<()> {
        let blocks = notes.chunks(NOTES_PER_BLOCK);
        let buf = IoBuf::alloc(blocks.len() * BLOCK_SIZE);
        for (i, part) in blocks.enumerate() {
            buf.copy_from(i * BLOCK_SIZE, &encode_notes(sequence, at + i as u64, part));
        }
        self.write_durably(file, buf, at).await
    }

    async fn write_durably(&self, file: usize, buf: IoBuf, block: u64) -> Result<()> {
        let written = self.files[file].write_at_durable(buf, block * BLOCK_SIZE as u64).await;
        written.map(|_| ()).map_err(|e| StoreError::io(self.target, "write", &self.paths[file], e))
    }

    /// Starts a maintenance pass: notes that were idle for `idle_passes` whole passes begin to retire.
    pub(crate) fn begin_retiring(&self, idle_passes: u64) -> BTreeMap<InodeId, Vec<Note>> {
        let pass = self.pass.fetch_add(1, Ordering::Relaxed) + 1;
        self.table.begin_retiring(pass.saturating_sub(idle_passes))
    }

    /// See [`NoteTable::retire`].
    pub(crate) fn retire(&self, ino: InodeId) {
        self.table.retire(ino);
    }

    /// See [`NoteTable::reactivate`].
    pub(crate) fn reactivate(&self, ino: InodeId) {
        self.table.reactivate(ino, self.pass.load(Ordering::Relaxed));
    }
}

/// The same regions in as few notes as possible, in order.
fn merged(mut notes: Vec<Note>) -> Vec<Note> {
    notes.sort_unstable();
    let mut merged: Vec<Note> = Vec::with_capacity(notes.len());
    for note in notes {
        match merged.last_mut() {
            Some(last) if last.ino == note.ino && note.first <= last.end => last.end = last.end.max(note.end),
            _ => merged.push(note),
        }
    }
    merged
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
