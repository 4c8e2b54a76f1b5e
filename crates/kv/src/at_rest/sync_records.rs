//! Records of what must exist when the engine is opened.
//!
//! A truncated, zeroed or missing journal looks like one whose end a crash has torn, and its
//! content would be lost without an error. So two records describe what existed:
//!
//! - `closed` is written when everything is on disk and the engine is about to be closed. It lists
//!   every journal with its length and the sequence number of its last batch, and the checksum of
//!   every tree's list of tables. The next open removes it.
//! - `synced` protects an engine that wasn't closed. It names a journal and a batch in it that is
//!   on disk. It is written after syncs and not synced itself: an older record claims less, and
//!   nothing wrong. So it delays no commit, and the end of a journal behind that batch may still be
//!   torn.
//!
//! fjall removes a journal when all its content is in tables, the oldest one first and never the
//! newest; it may do so until the process ends. So a missing journal was removed regularly only if
//! a newer one exists and the list of tables has changed since the record.

use super::journal::{self, Journal};
use super::{TREES, corrupt, failed, names, read, tables};
use crate::KvError;
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use types::crc32c;
use xxhash_rust::xxh3::xxh3_128;

/// Record of what existed when an engine was closed orderly.
const CLOSED: &str = "closed";

/// Record of a batch that is on disk.
const SYNCED: &str = "synced";

/// Components of a closed engine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct CloseRecord {
    journals: Vec<ClosedJournal>,
    /// Each tree's name with the XXH3-128 of the file that names its list of tables.
    trees: Vec<(String, u128)>,
}

/// A journal at the close.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ClosedJournal {
    number: u64,
    /// Bytes of its batches.
    bytes: u64,
    /// Sequence number of its last batch; `None` for one without batches.
    last: Option<u64>,
}

/// A batch in a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Batch {
    pub(crate) journal: u64,
    pub(crate) number: u64,
}

/// Checks the existing journals against both records.
pub(super) fn check(path: &Path, journals: &[Journal]) -> Result<(), KvError> {
    if let Some(closed) = read_closed(path)? {
        check_closed(path, &closed, journals)?;
    }
    match read_synced(path) {
        Some(batch) => check_synced(path, batch, journals),
        None => Ok(()),
    }
}

fn check_closed(path: &Path, closed: &CloseRecord, journals: &[Journal]) -> Result<(), KvError> {
    let mut is_flushed = false;
    for (tree, sum) in &closed.trees {
        let current = path.join(TREES).join(tree).join(tables::CURRENT);
        is_flushed |= xxh3_128(&read(&current)?) != *sum;
    }
    for closed_journal in &closed.journals {
        let file = journal::file(path, closed_journal.number);
        let Some(found) = journals.iter().find(|journal| journal.number == closed_journal.number) else {
            let has_newer = journals.iter().any(|journal| journal.number > closed_journal.number);
            if is_flushed && has_newer {
                continue;
            }
            return Err(corrupt(&file, "it is missing, but existed when the store was closed"));
        };
        if (found.end as u64) < closed_journal.bytes || found.last_seqno < closed_journal.last {
            let batch = |last: Option<u64>| last.map_or("no batch".into(), |last| format!("batch {last}"));
            let (end, found) = (found.end, batch(found.last_seqno));
            let (bytes, last) = (closed_journal.bytes, batch(closed_journal.last));
            let cause = format!(
                "it has {end} bytes up to {found}; when the store was closed it had {bytes} up to {last}"
            );
            return Err(corrupt(&file, cause));
        }
    }
    Ok(())
}

fn check_synced(path: &Path, batch: Batch, journals: &[Journal]) -> Result<(), KvError> {
    let Batch { journal, number } = batch;
    let file = journal::file(path, journal);
    match journals.iter().find(|found| found.number == journal) {
        Some(found) if found.last_seqno.is_some_and(|last| last >= number) => Ok(()),
        Some(found) => {
            let end = found.end;
            Err(corrupt(
                &file,
                format!("its batches end at byte {end}, before batch {number}, which was synced"),
            ))
        }
        None if journals.iter().any(|found| found.number > journal) => Ok(()),
        None => Err(corrupt(&file, format!("it is missing, with batch {number}, which was synced"))),
    }
}

/// Returns whether a record shows that the engine held data.
pub(super) fn has_data_record(path: &Path) -> bool {
    read_synced(path).is_some()
}

/// Records the components of an engine that is on disk completely, while nothing is committed.
pub(crate) fn write_close_record(path: &Path) -> Result<(), KvError> {
    let mut closed = CloseRecord::default();
    for Journal { number, end, last_seqno: last, .. } in journal::read_all(path)? {
        closed.journals.push(ClosedJournal { number, bytes: end as u64, last });
    }
    for name in names(&path.join(TREES))? {
        let current = path.join(TREES).join(&name).join(tables::CURRENT);
        if let (Some(name), true) = (name.to_str(), current.exists()) {
            closed.trees.push((name.to_owned(), xxh3_128(&read(&current)?)));
        }
    }
    let write = || -> io::Result<()> {
        let draft = path.join(format!("{CLOSED}.new"));
        let mut file = File::create(&draft)?;
        file.write_all(render_closed(&closed).as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path.join(CLOSED))?;
        File::open(path)?.sync_all()
    };
    write().map_err(|error| failed(&path.join(CLOSED), &error))
}

/// Removes the record before the engine is opened: from now on its components may change.
pub(crate) fn remove_close_record(path: &Path) -> Result<(), KvError> {
    let removed = match fs::remove_file(path.join(CLOSED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        removed => removed,
    };
    let on_disk = removed.and_then(|()| File::open(path)?.sync_all());
    on_disk.map_err(|error| failed(&path.join(CLOSED), &error))
}

fn read_closed(path: &Path) -> Result<Option<CloseRecord>, KvError> {
    let file = path.join(CLOSED);
    let bytes = match fs::read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| failed(&file, &error))?,
    };
    let closed = std::str::from_utf8(&bytes).ok().and_then(parse_closed);
    closed.map(Some).ok_or_else(|| corrupt(&file, "it is not what was written"))
}

/// Returns `None` for an invalid record: it is not synced, and a crash may have left any part of
/// it.
fn read_synced(path: &Path) -> Option<Batch> {
    parse_synced(&fs::read_to_string(path.join(SYNCED)).ok()?)
}

pub(crate) fn render_closed(closed: &CloseRecord) -> String {
    let mut text = String::new();
    for ClosedJournal { number, bytes, last } in &closed.journals {
        let last = last.map_or("-".into(), |last| last.to_string());
        text += &format!("journal {number} {bytes} {last}\n");
    }
    for (name, sum) in &closed.trees {
        text += &format!("tree {name} {sum:032x}\n");
    }
    let sum = crc32c(text.as_bytes());
    text + &format!("sum {sum:08x}\n")
}

pub(crate) fn parse_closed(text: &str) -> Option<CloseRecord> {
    let (lines, sum) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let lines = &text[..lines.len() + 1];
    if sum != format!("sum {:08x}", crc32c(lines.as_bytes())) {
        return None;
    }
    let mut closed = CloseRecord::default();
    for line in lines.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["journal", number, bytes, last] => closed.journals.push(ClosedJournal {
                number: number.parse().ok()?,
                bytes: bytes.parse().ok()?,
                last: if last == "-" { None } else { Some(last.parse().ok()?) },
            }),
            ["tree", name, sum] => closed.trees.push((name.into(), u128::from_str_radix(sum, 16).ok()?)),
            _ => return None,
        }
    }
    Some(closed)
}

/// Constant length, so that each record overwrites the previous one.
pub(crate) fn render_synced(batch: Batch) -> String {
    let text = format!("{:020} {:020}", batch.journal, batch.number);
    let sum = crc32c(text.as_bytes());
    format!("{text} {sum:08x}\n")
}

pub(crate) fn parse_synced(text: &str) -> Option<Batch> {
    let (numbers, sum) = text.strip_suffix('\n')?.rsplit_once(' ')?;
    if sum != format!("{:08x}", crc32c(numbers.as_bytes())) {
        return None;
    }
    let (journal, number) = numbers.split_once(' ')?;
    Some(Batch { journal: journal.parse().ok()?, number: number.parse().ok()? })
}

/// Sync state of an open engine, with its record.
pub(crate) struct SyncRecord {
    state: Mutex<State>,
}

struct State {
    /// `None` when the record can't be written.
    file: Option<File>,
    /// The newest journal when the last sync began, and the sequence number that the next batch was
    /// to get some time after that.
    previous_sync: Option<Batch>,
    /// The sequence number in the record.
    recorded: u64,
}

impl SyncRecord {
    /// Creates the state for an engine that is being opened.
    pub(crate) fn open(path: &Path) -> SyncRecord {
        let file = File::options().create(true).truncate(false).write(true).open(path.join(SYNCED));
        let file = file.map_err(|error| warn(path, &error)).ok();
        SyncRecord { state: Mutex::new(State { file, previous_sync: None, recorded: 0 }) }
    }

    /// Notes the end of a sync. When the sync began, `journal` was the newest one, and a batch with
    /// number `committed` or a higher one was committed. `next` is the number that the next batch
    /// will get, read after the journal was determined.
    ///
    /// A batch that got its number between two syncs with the same newest journal is in that
    /// journal: it is recorded.
    pub(crate) fn record_sync(&self, path: &Path, journal: u64, committed: u64, next: u64) {
        let mut state = self.state.lock();
        let is_in_journal =
            state.previous_sync.is_some_and(|seen| seen.journal == journal && seen.number <= committed);
        if is_in_journal && committed > state.recorded {
            state.write(path, Batch { journal, number: committed });
        }
        state.previous_sync = Some(Batch { journal, number: next });
    }
}

impl State {
    fn write(&mut self, path: &Path, batch: Batch) {
        let Some(file) = &self.file else { return };
        match file.write_all_at(render_synced(batch).as_bytes(), 0) {
            Ok(()) => self.recorded = batch.number,
            Err(error) => {
                warn(path, &error);
                self.file = None;
            }
        }
    }
}

fn warn(path: &Path, error: &io::Error) {
    tracing::warn!(
        store = %path.display(), %error,
        "can't record what is on disk: a loss of the end of a journal may go unnoticed"
    );
}

#[cfg(test)]
mod tests;
