//! The verifier: shows whether commits that were not synced still exist.
//!
//! A commit is acknowledged when the kernel has it. If the machine loses power before it is on
//! disk, it is lost, and a later sync succeeds, since nothing is left to sync. So the engine has a
//! verifier, as chunk stores have (RFC 1813, section 3.3.21): as long as it is the same, everything
//! acknowledged exists. It survives the process, whose commits the kernel keeps, and an orderly
//! shutdown, after which everything is on disk. Otherwise it doesn't survive a loss of the
//! machine's memory.
//!
//! Invariants:
//! - The marker that everything is on disk is removed from disk before a commit that isn't synced.
//! - A record that can't be read or written, or an unknown state, leads to another verifier, never
//!   to the same one.

use crate::KvError;
use parking_lot::Mutex;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// File with the verifier and the id of the memory for which it is valid.
const RECORD: &str = "verifier";

/// Marker that everything acknowledged is on disk.
const SYNCED_MARKER: &str = "settled";

/// The verifier of an open engine.
pub(crate) struct Verifier {
    path: PathBuf,
    number: u64,
    /// The marker exists. Locked while it is created or removed.
    is_marked: Mutex<bool>,
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) struct VerifierRecord {
    number: u64,
    memory: String,
}

impl Verifier {
    /// Opens the verifier of an engine that no other process has open.
    pub fn open(path: &Path) -> Verifier {
        let memory = rt::unsynced_data_verifier_of_machine(path).ok();
        let is_marked = path.join(SYNCED_MARKER).exists();
        let found = read(path);
        let is_valid = |found: &&VerifierRecord| is_marked || memory.as_ref() == Some(&found.memory);
        let valid = found.as_ref().filter(is_valid).map(|found| found.number);
        let number = valid.unwrap_or_else(|| rt::random_u64().max(1));
        if found.is_some() && valid.is_none() {
            tracing::warn!(
                store = %path.display(),
                "the last unsynced commits may be lost: the machine or the disk was restarted"
            );
        }
        let must_write = found.is_none_or(|found| valid.is_none() || Some(&found.memory) != memory.as_ref());
        // Without a record the next start gets another verifier, which may report a loss that
        // didn't happen, but never hides one.
        if let (true, Some(memory)) = (must_write, memory)
            && let Err(error) = write(path, &VerifierRecord { number, memory })
        {
            tracing::warn!(store = %path.display(), %error, "can't record the state of memory: the next start counts as a loss");
        }
        Verifier { path: path.to_path_buf(), number, is_marked: Mutex::new(is_marked) }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Removes the marker before a commit that isn't synced at once.
    pub fn clear_synced_mark(&self) -> Result<(), KvError> {
        let mut is_marked = self.is_marked.lock();
        if *is_marked {
            let marker = self.path.join(SYNCED_MARKER);
            let removed = match fs::remove_file(&marker) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => sync_directory(&self.path),
            };
            removed.map_err(|error| KvError::Io {
                path: marker.display().to_string(),
                cause: error.to_string(),
            })?;
            *is_marked = false;
        }
        Ok(())
    }

    /// Sets the marker: everything is on disk, and nothing was committed since the sync.
    pub fn set_synced_mark(&self) {
        let mut is_marked = self.is_marked.lock();
        if *is_marked {
            return;
        }
        let marked = fs::File::create(self.path.join(SYNCED_MARKER))
            .and_then(|file| file.sync_all())
            .and_then(|()| sync_directory(&self.path));
        if let Err(error) = marked {
            tracing::warn!(store = %self.path.display(), %error, "can't record that everything is on disk: the next start of the machine may count as a loss");
        }
        // The marker may exist even after an error: the next commit removes it.
        *is_marked = true;
    }
}

/// Returns `None` for an invalid record.
fn read(path: &Path) -> Option<VerifierRecord> {
    parse(&fs::read_to_string(path.join(RECORD)).ok()?)
}

pub(crate) fn parse(text: &str) -> Option<VerifierRecord> {
    let (number, memory) = text.trim_end().split_once(' ')?;
    Some(VerifierRecord {
        number: u64::from_str_radix(number, 16).ok().filter(|number| *number > 0)?,
        memory: memory.into(),
    })
}

fn write(path: &Path, record: &VerifierRecord) -> io::Result<()> {
    let draft = path.join(format!("{RECORD}.new"));
    let mut file = fs::File::create(&draft)?;
    file.write_all(render(record).as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path.join(RECORD))?;
    sync_directory(path)
}

pub(crate) fn render(record: &VerifierRecord) -> String {
    format!("{:016x} {}\n", record.number, record.memory)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests;
