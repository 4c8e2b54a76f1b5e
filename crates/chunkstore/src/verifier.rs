//! The verifier: tells whether unsynced content still exists.
//!
//! A write is acknowledged when it is in the memory of the machine, and a sync writes to disk what
//! is in memory then. If power failed in between, the sync has nothing to do and succeeds, although
//! the written content is lost. So each answer to a change or a sync carries a number, the
//! *verifier*, as in NFS (RFC 1813, section 3.3.21). If two answers have the same one, nothing that
//! the first acknowledged was lost by the second.
//!
//! A store keeps its verifier when only its process dies, since the kernel retains what it has
//! written, and after a shutdown, when everything was on disk. If the machine was rebooted or the
//! file system remounted, it gets another one. The replicas of a mirrored group share one: what one
//! of them has in memory isn't lost. A replica that missed something has no valid one until a
//! resync gives it that of the others.

use crate::error::{Result, StoreError};
use crate::paths::VERIFIER;
use crate::store::Store;
use rt::{File, IoBuf, OpenOptions};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use types::TargetId;

/// The verifier of a group's replicas without any content: the same on all of them, without
/// communication.
const FIRST: u64 = 1;
/// Longest record, bytes.
const MAX_BYTES: usize = 4096;

/// The record on disk: the verifier, and the memory for which it is valid.
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
    /// The verifier of the former process.
    past: u64,
    /// Held while the record is written.
    writing: rt::sync::RwLock,
}

impl Verifier {
    /// Loads the verifier of a store that is being opened. `was_shut_down`: everything in it is on
    /// disk.
    pub(crate) async fn open(
        target: TargetId,
        dir: &Path,
        is_group: bool,
        was_shut_down: bool,
    ) -> Result<Verifier> {
        let memory = rt::unsynced_data_verifier(dir)
            .await
            .map_err(|e| StoreError::io(target, "look up the mount of", dir, e))?;
        let path = dir.join(VERIFIER);
        let found = read(target, &path).await?;
        let stored = found
            .as_ref()
            .filter(|found| was_shut_down || found.memory == memory)
            .map(|found| found.verifier);
        let current =
            stored.unwrap_or_else(|| if found.is_none() && is_group { FIRST } else { random_verifier() });
        let past = found.as_ref().map_or(current, |found| found.verifier);
        if past != current {
            tracing::warn!(target_id = %target, path = %dir.display(), "unsynced writes may be lost: the machine restarted, or the disk was mounted again");
        }
        let record = Record { verifier: current, memory };
        let has_changed = found.as_ref() != Some(&record);
        let verifier = Verifier {
            target,
            path,
            memory: record.memory,
            current: AtomicU64::new(current),
            past,
            writing: rt::sync::RwLock::new(),
        };
        // Before anything is acknowledged under it.
        if has_changed {
            verifier.write(current).await?;
        }
        Ok(verifier)
    }

    async fn write(&self, verifier: u64) -> Result<()> {
        let _exclusive = self.writing.write().await;
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

/// Returns a verifier that no store has had, except with a probability of 1 in 10^19.
fn random_verifier() -> u64 {
    rt::random_u64().max(FIRST + 1)
}

/// Reads the record; an invalid one gives an unknown verifier.
async fn read(target: TargetId, path: &Path) -> Result<Option<Record>> {
    let failed = |e| StoreError::io(target, "read", path, e);
    let file = match File::open(path, OpenOptions { read: true, ..OpenOptions::default() }).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let buf = IoBuf::alloc(MAX_BYTES);
    let len = file.read_at(buf.clone(), 0).await.map_err(failed)?;
    let text = String::from_utf8_lossy(&buf.as_slice()[..len]).into_owned();
    let unknown = || Record { verifier: random_verifier(), memory: String::new() };
    Ok(Some(parse(&text).unwrap_or_else(unknown)))
}

/// Parses a record; `None` if it is invalid.
pub(crate) fn parse(text: &str) -> Option<Record> {
    toml::from_str(text).ok()
}

pub(crate) fn render(record: &Record) -> String {
    toml::to_string(record).expect("a number and a string always serialize")
}

impl Store {
    /// While this number stays the same, everything acknowledged still exists, on disk or in
    /// memory.
    pub fn verifier(&self) -> u64 {
        self.verifier.current.load(Ordering::Acquire)
    }

    /// The verifier of the former process, whose unsynced changes may have been lost.
    pub fn past_verifier(&self) -> u64 {
        self.verifier.past
    }

    /// Drops the verifier of the group: this replica has missed something that others acknowledge.
    pub fn drop_verifier(&self) {
        self.verifier.current.store(random_verifier(), Ordering::Release);
    }

    /// Takes the verifier of the group, after a resync from a member that has everything
    /// acknowledged under it.
    ///
    /// # Errors
    /// When the disk fails; then the old verifier stays.
    pub async fn adopt_verifier(&self, verifier: u64) -> Result<()> {
        // The verifier asserts that everything is here.
        self.verify_dir().await?;
        self.verifier.write(verifier).await?;
        self.check_dir()?;
        self.verifier.current.store(verifier, Ordering::Release);
        Ok(())
    }
}
