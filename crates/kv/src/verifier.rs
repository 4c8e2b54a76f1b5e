//! Whether what was committed and not put on disk is still there.
//!
//! A commit is acknowledged when the kernel has it. When the machine loses its power before it is
//! on disk, it is gone, and a sync afterwards succeeds, since there is nothing to do. So the engine
//! has a number, as chunk stores have (RFC 1813, section 3.3.21): as long as it is the same,
//! everything that was acknowledged is there. It outlives the process, whose commits the kernel
//! keeps, and a shutdown, after which everything is on disk; it doesn't outlive the machine's
//! memory else.
//!
//! Invariants:
//! - The marker that everything is on disk is gone from the disk before anything is committed that
//!   isn't.
//! - What can't be read, written or told makes another number, and never keeps one.

use crate::KvError;
use parking_lot::Mutex;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The number, and the memory for which it holds.
const RECORD: &str = "verifier";

/// Says that everything that was acknowledged is on disk.
const SETTLED: &str = "settled";

/// The verifier of an open engine.
pub(crate) struct Verifier {
    path: PathBuf,
    number: u64,
    /// The marker is there. Held while it comes or goes.
    is_settled: Mutex<bool>,
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Record {
    number: u64,
    memory: String,
}

impl Verifier {
    /// That of an engine that is being opened. Nobody else has it open.
    pub fn open(path: &Path) -> Verifier {
        let memory = rt::memory_of_machine(path).ok();
        let is_settled = path.join(SETTLED).exists();
        let found = read(path);
        let is_kept = |found: &&Record| is_settled || memory.as_ref() == Some(&found.memory);
        let kept = found.as_ref().filter(is_kept).map(|found| found.number);
        let number = kept.unwrap_or_else(|| rt::random_u64().max(1));
        if found.is_some() && kept.is_none() {
            tracing::warn!(
                store = %path.display(),
                "what was committed last and not synced may be lost: the machine or the disk was started anew"
            );
        }
        let is_news = found.is_none_or(|found| kept.is_none() || Some(&found.memory) != memory.as_ref());
        // Without a record the next start has another number, which says too much, and never too
        // little.
        if let (true, Some(memory)) = (is_news, memory)
            && let Err(error) = write(path, &Record { number, memory })
        {
            tracing::warn!(store = %path.display(), %error, "can't note what is in memory: the next start counts as a loss");
        }
        Verifier { path: path.to_path_buf(), number, is_settled: Mutex::new(is_settled) }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Something is about to be committed that isn't on disk at once.
    pub fn unsettle(&self) -> Result<(), KvError> {
        let mut is_settled = self.is_settled.lock();
        if *is_settled {
            let marker = self.path.join(SETTLED);
            let removed = match fs::remove_file(&marker) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => sync_folder(&self.path),
            };
            removed.map_err(|error| KvError::Io {
                path: marker.display().to_string(),
                cause: error.to_string(),
            })?;
            *is_settled = false;
        }
        Ok(())
    }

    /// Everything is on disk, and nothing was committed since that was made so.
    pub fn settle(&self) {
        let mut is_settled = self.is_settled.lock();
        if *is_settled {
            return;
        }
        let marked = fs::File::create(self.path.join(SETTLED))
            .and_then(|file| file.sync_all())
            .and_then(|()| sync_folder(&self.path));
        if let Err(error) = marked {
            tracing::warn!(store = %self.path.display(), %error, "can't note that everything is on disk: the next start of the machine may count as a loss");
        }
        // It may be there even so: who commits next removes it.
        *is_settled = true;
    }
}

/// A record that can't be understood says nothing.
fn read(path: &Path) -> Option<Record> {
    parse(&fs::read_to_string(path.join(RECORD)).ok()?)
}

pub(crate) fn parse(text: &str) -> Option<Record> {
    let (number, memory) = text.trim_end().split_once(' ')?;
    Some(Record {
        number: u64::from_str_radix(number, 16).ok().filter(|number| *number > 0)?,
        memory: memory.into(),
    })
}

fn write(path: &Path, record: &Record) -> io::Result<()> {
    let draft = path.join(format!("{RECORD}.new"));
    let mut file = fs::File::create(&draft)?;
    file.write_all(render(record).as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path.join(RECORD))?;
    sync_folder(path)
}

pub(crate) fn render(record: &Record) -> String {
    format!("{:016x} {}\n", record.number, record.memory)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests;
