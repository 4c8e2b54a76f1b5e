//! Checks files on disk before the engine is opened: fjall stores checksums for most of them but
//! doesn't verify all.
//!
//! | what | its checksum | who verifies it |
//! |---|---|---|
//! | block of a table | in its header | fjall, whenever it is read from disk |
//! | table as a whole | in the list of tables | this module ([`VerifyDepth`]) |
//! | list of tables (`v7`) | in `current` | this module |
//! | batch in a journal | at its end | fjall; but it takes a flipped byte between two checksums for the torn end of a journal, and truncates what follows |
//!
//! So this module distinguishes a torn end from a flipped byte ([`journal`]), and a torn end from a
//! lost one ([`sync_records`]). An error names the file that is refused.

pub(crate) mod journal;
pub(crate) mod sync_records;
pub(crate) mod tables;

use crate::KvError;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Marker of an engine's directory: written last when the engine is created.
const VERSION_FILE: &str = "version";

/// Content of that file: `FJL` and the version of the format.
const VERSION: &[u8] = b"FJL\x03";

/// Directory of the trees; each is a directory with a number.
const TREES: &str = "keyspaces";

/// fjall's own tree: names and settings of the others.
const OWN_TREE: &str = "0";

/// The tree that holds all data. It has a higher number where a process died while it created the
/// tree: fjall never reuses a number.
const TREE: &str = "1";

/// Marks that damage was found while the engine was in use: the next start reads everything.
const DAMAGE_MARKER: &str = "damaged";

/// How many of the tables are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerifyDepth {
    /// All of them.
    Everything,
    /// All tables of a tree that has at most this many bytes in total. For a larger tree none: each
    /// block is checked when it is read.
    UpTo(u64),
}

/// What an examination has read without finding damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VerifyReport {
    /// Bytes of tables that were read.
    pub table_bytes: u64,
    /// Bytes of batches in journals.
    pub journal_bytes: u64,
    /// Journals whose torn end was truncated.
    pub torn_journals: usize,
}

/// Returns whether a directory contains an engine.
pub fn engine_exists(path: &Path) -> bool {
    path.join(VERSION_FILE).exists()
}

/// Checks everything in the engine's directory that fjall doesn't check itself. No process may have
/// it open. The only change is that the torn end of a journal is truncated: batches that were not
/// synced before a power failure.
///
/// # Errors
/// [`KvError::Corrupt`] with the file that isn't what was written.
pub fn verify(path: &Path, depth: VerifyDepth) -> Result<VerifyReport, KvError> {
    let mut report = VerifyReport::default();
    let version = read(&path.join(VERSION_FILE))?;
    if version != VERSION {
        return Err(corrupt(&path.join(VERSION_FILE), "it names no known format"));
    }
    let trees = path.join(TREES);
    let (mut unfinished, mut has_tree) = (Vec::new(), false);
    for name in names(&trees)? {
        let tree = trees.join(&name);
        if !tree.is_dir() {
            continue;
        }
        match tables::examine(&tree, depth, &mut report)? {
            true => has_tree |= name != Path::new(OWN_TREE),
            false => unfinished.push(tree),
        }
    }
    journal::examine(path, &mut report)?;
    if !has_tree {
        unfinished.push(trees.join(TREE));
    }
    let has_data = report.journal_bytes > 0 || sync_records::has_data_record(path);
    match unfinished.first() {
        // fjall would take it for an unfinished tree and remove it.
        Some(tree) if has_data => Err(tables::missing_list_error(tree)),
        _ => Ok(report),
    }
}

/// Records that damage was found, so that the next start checks everything. If that fails, the
/// damage will be found again.
pub fn record_damage_marker(path: &Path, error: &KvError) {
    let _ = fs::write(path.join(DAMAGE_MARKER), format!("{error}\n"));
}

/// Returns whether damage is recorded.
pub fn has_damage_marker(path: &Path) -> bool {
    path.join(DAMAGE_MARKER).exists()
}

/// Removes the record of damage: everything was checked and is intact.
pub fn clear_damage_marker(path: &Path) -> Result<(), KvError> {
    match fs::remove_file(path.join(DAMAGE_MARKER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path, &error)),
        _ => Ok(()),
    }
}

fn corrupt(path: &Path, cause: impl Into<String>) -> KvError {
    KvError::Corrupt { path: path.display().to_string(), cause: cause.into() }
}

fn failed(path: &Path, error: &io::Error) -> KvError {
    match error.kind() {
        io::ErrorKind::NotFound => corrupt(path, "it is missing"),
        _ => KvError::Io { path: path.display().to_string(), cause: error.to_string() },
    }
}

fn read(path: &Path) -> Result<Vec<u8>, KvError> {
    fs::read(path).map_err(|error| failed(path, &error))
}

fn open(path: &Path) -> Result<File, KvError> {
    File::open(path).map_err(|error| failed(path, &error))
}

fn names(path: &Path) -> Result<Vec<PathBuf>, KvError> {
    let listed = fs::read_dir(path).and_then(|entries| {
        entries
            .map(|entry| entry.map(|entry| PathBuf::from(entry.file_name())))
            .collect::<io::Result<Vec<_>>>()
    });
    let mut names = listed.map_err(|error| failed(path, &error))?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests;
