//! What lies on disk, looked at before the engine is opened: fjall sums most of it, and doesn't
//! look at all sums.
//!
//! | what | its sum | who looks at it |
//! |---|---|---|
//! | block of a table | in its header | fjall, whenever it is read from disk |
//! | table as a whole | in the list of tables | this module ([`Depth`]) |
//! | list of tables (`v7`) | in `current` | this module |
//! | batch in a journal | at its end | fjall; but a flipped byte between two sums looks to it like the torn end of a journal, and it cuts what follows |
//!
//! So this module tells a torn end from a flipped byte ([`journal`]), and a torn end from a lost
//! one ([`required`]). What is refused here is named by its file.

pub(crate) mod journal;
pub(crate) mod required;
pub(crate) mod tables;

use crate::KvError;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// What a directory of the engine begins with: written last when it is made.
const VERSION_FILE: &str = "version";

/// What that file says: `FJL`, and the version of the format.
const VERSION: &[u8] = b"FJL\x03";

/// Where the trees are; each is a directory with a number.
const TREES: &str = "keyspaces";

/// fjall's own tree: the names and settings of the others.
const OWN_TREE: &str = "0";

/// The tree that holds everything. It has a higher number where a process died while it made the
/// tree: fjall uses no number twice.
const TREE: &str = "1";

/// Says that damage was met while the engine was in use: the next start reads everything.
const SUSPICION: &str = "damaged";

/// How much of the tables is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// All of them.
    Everything,
    /// Those of a tree that have no more bytes than this together; of a larger one none, and each
    /// block is checked when it is read.
    UpTo(u64),
}

/// What an examination has found in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Examined {
    /// Bytes of tables that were read.
    pub table_bytes: u64,
    /// Bytes of batches in journals.
    pub journal_bytes: u64,
    /// Journals whose torn end was cut.
    pub cut: usize,
}

/// Whether there is an engine in a directory.
pub fn is_there(path: &Path) -> bool {
    path.join(VERSION_FILE).exists()
}

/// Looks at everything in the engine's directory that fjall doesn't look at by itself. Nobody may
/// have it open. The only change is that the torn end of a journal is cut: what a power cut left of
/// batches that were not promised to be on disk yet.
///
/// # Errors
/// [`KvError::Corrupt`] with the file that isn't what was written.
pub fn examine(path: &Path, depth: Depth) -> Result<Examined, KvError> {
    let mut examined = Examined::default();
    let version = read(&path.join(VERSION_FILE))?;
    if version != VERSION {
        return Err(corrupt(&path.join(VERSION_FILE), "it doesn't say which format this is"));
    }
    let trees = path.join(TREES);
    let (mut unfinished, mut has_tree) = (Vec::new(), false);
    for name in names(&trees)? {
        let tree = trees.join(&name);
        if !tree.is_dir() {
            continue;
        }
        match tables::examine(&tree, depth, &mut examined)? {
            true => has_tree |= name != Path::new(OWN_TREE),
            false => unfinished.push(tree),
        }
    }
    journal::examine(path, &mut examined)?;
    if !has_tree {
        unfinished.push(trees.join(TREE));
    }
    let holds_something = examined.journal_bytes > 0 || required::is_known_to_hold_something(path);
    match unfinished.first() {
        // fjall would take it for one that was being made when its process died, and remove it.
        Some(tree) if holds_something => Err(tables::without_list(tree)),
        _ => Ok(examined),
    }
}

/// Notes that damage was met, so that the next start looks at everything. What can't be noted is
/// met again.
pub fn suspect(path: &Path, error: &KvError) {
    let _ = fs::write(path.join(SUSPICION), format!("{error}\n"));
}

/// Whether damage was noted.
pub fn is_suspect(path: &Path) -> bool {
    path.join(SUSPICION).exists()
}

/// Everything was looked at, and is in order.
pub fn acquit(path: &Path) -> Result<(), KvError> {
    match fs::remove_file(path.join(SUSPICION)) {
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
