//! Whether what was written and not synced is still there.
//!
//! A write is acknowledged when it is in the memory of the machine, and a sync puts on disk what is
//! in memory then. If the power has failed in between, the sync has nothing to do and succeeds, and
//! whoever relies on it has lost what was written. So each answer to a change or a sync has a
//! number, the *verifier*, as in NFS (RFC 1813, section 3.3.21): two answers with the same one mean
//! that nothing of what the first acknowledged had gone at the second.
//!
//! A store keeps its verifier when only its process dies, since the kernel keeps what it has
//! written, and after a shutdown, when everything was on disk. Otherwise, if the machine was
//! started or the file system mounted anew, it has another one. The copies of a mirrored group have
//! one together: what one of them has in memory isn't lost. Who missed something has none of its
//! own, until it is brought in step and told that of the others.

use crate::error::{Result, StoreError};
use crate::place::VERIFIER;
use crate::store::Store;
use rt::{File, IoBuf, OpenOptions};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use types::TargetId;

/// The verifier of a group's copies that nothing was written to yet: the same on all of them,
/// without their having spoken.
const FIRST: u64 = 1;
/// Longest record, bytes.
const MAX_BYTES: usize = 4096;

/// What is on disk: the verifier, and the memory for which it holds.
#[derive(Serialize, Deserialize, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    verifier: u64,
    memory: String,
}

/// The verifier of an open store.
pub(crate) struct Verifier {
    target: TargetId,
    path: PathBuf,
    memory: String,
    current: AtomicU64,
    /// That of the process before.
    past: u64,
    /// Held while the record is written.
    writing: rt::sync::RwLock,
}

impl Verifier {
    /// That of a store that is being opened. `was_shut_down`: everything in it is on disk.
    pub(crate) async fn open(
        target: TargetId,
        dir: &Path,
        is_group: bool,
        was_shut_down: bool,
    ) -> Result<Verifier> {
        let memory =
            rt::memory_of(dir).await.map_err(|e| StoreError::io(target, "look up the mount of", dir, e))?;
        let path = dir.join(VERIFIER);
        let found = read(target, &path).await?;
        let kept = found
            .as_ref()
            .filter(|found| was_shut_down || found.memory == memory)
            .map(|found| found.verifier);
        let current = kept.unwrap_or_else(|| if found.is_none() && is_group { FIRST } else { fresh() });
        let past = found.as_ref().map_or(current, |found| found.verifier);
        if past != current {
            tracing::warn!(target_id = %target, path = %dir.display(), "what was written and not synced may be lost: the machine or the disk was started anew");
        }
        let record = Record { verifier: current, memory };
        let is_news = found.as_ref() != Some(&record);
        let verifier = Verifier {
            target,
            path,
            memory: record.memory,
            current: AtomicU64::new(current),
            past,
            writing: rt::sync::RwLock::new(),
        };
        // Before anything is acknowledged under it.
        if is_news {
            verifier.write(current).await?;
        }
        Ok(verifier)
    }

    async fn write(&self, verifier: u64) -> Result<()> {
        let _alone = self.writing.write().await;
        let record = Record { verifier, memory: self.memory.clone() };
        let text = render(&record);
        let draft = self.path.with_extension("new");
        let write = async {
            let options = OpenOptions { write: true, create: true, truncate: true, ..OpenOptions::default() };
            let file = File::open(&draft, options).await?;
            file.write_at(IoBuf::from_slice(text.as_bytes()), 0).await?;
            file.sync_data().await?;
            rt::rename(&draft, &self.path).await?;
            rt::sync_dir(self.path.parent().unwrap_or(Path::new("."))).await
        };
        write.await.map_err(|e| StoreError::io(self.target, "write", &self.path, e))
    }
}

/// One that no store has had, but for a chance of 1 in 10^19.
fn fresh() -> u64 {
    rt::random_u64().max(FIRST + 1)
}

/// The record; one that can't be understood says nothing.
async fn read(target: TargetId, path: &Path) -> Result<Option<Record>> {
    let failed = |e| StoreError::io(target, "read", path, e);
    let file = match File::open(path, OpenOptions { read: true, ..OpenOptions::default() }).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let buf = IoBuf::alloc(MAX_BYTES);
    let len = file.read_at(buf.clone(), 0).await.map_err(failed)?;
    let text = String::from_utf8_lossy(&buf.as_slice()[..len]).into_owned();
    let unknown = || Record { verifier: fresh(), memory: String::new() };
    Ok(Some(parse(&text).unwrap_or_else(unknown)))
}

/// What a record's text says, if it can be understood.
pub(crate) fn parse(text: &str) -> Option<Record> {
    toml::from_str(text).ok()
}

pub(crate) fn render(record: &Record) -> String {
    toml::to_string(record).expect("a number and a string always serialize")
}

impl Store {
    /// What is acknowledged now is there, on disk or in memory, as long as this number is the same.
    pub fn verifier(&self) -> u64 {
        self.verifier.current.load(Ordering::Acquire)
    }

    /// The number that the process before had, under which what it did may have been lost.
    pub fn past_verifier(&self) -> u64 {
        self.verifier.past
    }

    /// This copy of a group has missed something: what others acknowledge isn't all here.
    pub fn leave_verifier(&self) {
        self.verifier.current.store(fresh(), Ordering::Release);
    }

    /// This copy of a group has been brought in step by one that has everything acknowledged under
    /// this number.
    ///
    /// # Errors
    /// When the disk fails; the number is that of before then.
    pub async fn adopt_verifier(&self, verifier: u64) -> Result<()> {
        // It says that everything is here.
        self.prove_home().await?;
        self.verifier.write(verifier).await?;
        self.check_home()?;
        self.verifier.current.store(verifier, Ordering::Release);
        Ok(())
    }
}
