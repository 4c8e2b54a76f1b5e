//! Restoring an engine from a backup.

use crate::chain::Chain;
use crate::create::Progress;
use crate::error::{Error, Result};
use crate::writer::sync_parent_directory;
use bytes::Bytes;
use kv::{Batch, Embedded, Engine};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use types::Timestamp;

/// Bytes of keys and values in a commit to the new engine.
const BATCH_BYTES: usize = 1 << 20;

/// Suffix of a directory that is being filled.
const NEW_ENGINE_SUFFIX: &str = "restoring";

/// Changes to the records when a store is rolled back.
pub trait Rewrite {
    /// Returns the new value of a record; `None` omits it.
    fn record(&mut self, key: &[u8], value: Bytes) -> types::Result<Option<Bytes>>;
    /// Returns additional records after all others. They overwrite existing keys.
    fn additional_records(&mut self) -> types::Result<Vec<(Vec<u8>, Bytes)>>;
}

/// Result of a restore.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Keys in the backup.
    pub keys: u64,
    /// Bytes of them and their values.
    pub bytes: u64,
    /// Path of the previous engine; `None` when there was none.
    pub previous_engine: Option<PathBuf>,
}

/// Replaces the engine at `path` with the content of a chain: completely, or not at all if this
/// fails. The previous engine stays beside it, under another name. The caller ensures that no
/// process serves from `path`.
///
/// # Errors
/// Any fault of the chain, which is read completely before the first change; those of the engine
/// and of writing.
pub fn restore(
    chain: &Chain,
    path: &Path,
    rewrite: &mut dyn Rewrite,
    now_s: i64,
    progress: &Progress,
) -> Result<Restored> {
    chain.verify()?;
    let mut new_engine = path.as_os_str().to_owned();
    new_engine.push(format!(".{NEW_ENGINE_SUFFIX}"));
    let new_engine = PathBuf::from(new_engine);
    remove(&new_engine)?;
    let (keys, bytes) = fill(chain, &new_engine, rewrite, progress).inspect_err(|_| {
        // The next attempt removes what stays.
        let _ = fs::remove_dir_all(&new_engine);
    })?;
    let previous = swap_engines(&new_engine, path, now_s)?;
    Ok(Restored { keys, bytes, previous_engine: previous })
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, error)),
        _ => Ok(()),
    }
}

fn fill(chain: &Chain, path: &Path, rewrite: &mut dyn Rewrite, progress: &Progress) -> Result<(u64, u64)> {
    let engine = Embedded::open(path)?;
    let mut merged = chain.merge()?;
    let mut batch = Batch::default();
    let (mut waiting, mut bytes) = (0, 0);
    while let Some((key, value)) = merged.next_pair()? {
        bytes += (key.len() + value.len()) as u64;
        if let Some(value) = rewrite.record(&key, value).map_err(Error::Record)? {
            waiting += key.len() + value.len();
            batch.writes.push((key.to_vec(), Some(value)));
        }
        if waiting >= BATCH_BYTES {
            engine.apply(&[std::mem::take(&mut batch)])?;
            waiting = 0;
            progress.keys.store(merged.keys(), Relaxed);
            progress.bytes.store(bytes, Relaxed);
        }
    }
    let rest = rewrite.additional_records().map_err(Error::Record)?;
    batch.writes.extend(rest.into_iter().map(|(key, value)| (key, Some(value))));
    engine.apply(&[batch])?;
    engine.persist()?;
    Ok((merged.keys(), bytes))
}

/// Swaps the names of the new and the previous engine in one step: at no moment is there no engine.
fn swap_engines(new_engine: &Path, path: &Path, now_s: i64) -> Result<Option<PathBuf>> {
    if !path.exists() {
        rename(new_engine, path, RenameFlags::NOREPLACE)?;
        sync_parent_directory(path)?;
        return Ok(None);
    }
    let previous = unused_previous_name(path, now_s);
    rename(new_engine, &previous, RenameFlags::NOREPLACE)?;
    sync_parent_directory(path)?;
    rename(&previous, path, RenameFlags::EXCHANGE)?;
    sync_parent_directory(path)?;
    Ok(Some(previous))
}

fn rename(from: &Path, to: &Path, how: RenameFlags) -> Result<()> {
    renameat_with(CWD, from, CWD, to, how).map_err(|error| Error::io("replace", to, error.into()))
}

/// Returns an unused name.
fn unused_previous_name(path: &Path, now_s: i64) -> PathBuf {
    let named = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".before-{}", Timestamp::new(now_s, 0).compact_utc()));
        if number > 1 {
            name.push(format!("-{number}"));
        }
        PathBuf::from(name)
    };
    let mut number = 1;
    while named(number).exists() {
        number += 1;
    }
    named(number)
}
