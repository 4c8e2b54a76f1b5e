//! Making an engine of a copy.

use crate::chain::Chain;
use crate::copy::Progress;
use crate::error::{Error, Result};
use crate::writer::sync_folder;
use bytes::Bytes;
use kv::{Batch, Embedded, Engine};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use types::Timestamp;

/// Bytes of keys and values in a commit of the engine that is being filled.
const BATCH_BYTES: usize = 1 << 20;

/// Ending of a directory that is being filled.
const FILLING: &str = "restoring";

/// What changes in the records when a store goes back in time.
pub trait Rewrite {
    /// What becomes of a record; `None`: it is left out.
    fn record(&mut self, key: &[u8], value: Bytes) -> types::Result<Option<Bytes>>;
    /// What comes in addition, when all records were seen. Keys that there are get another value by
    /// this.
    fn rest(&mut self) -> types::Result<Vec<(Vec<u8>, Bytes)>>;
}

/// What was restored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Keys that the copy held, and bytes of them and their values.
    pub keys: u64,
    /// Bytes of them and their values.
    pub bytes: u64,
    /// Where the engine of before is; `None` when there was none.
    pub before: Option<PathBuf>,
}

/// Puts what a chain holds into the place of the engine at `path`: all of it or, when this fails,
/// nothing. The engine of before stays beside, under another name. The caller sees to it that
/// nobody serves from `path`.
///
/// # Errors
/// Whatever is wrong with the chain, of which all is read before the first change; the engine's,
/// and those of writing.
pub fn restore(
    chain: &Chain,
    path: &Path,
    rewrite: &mut dyn Rewrite,
    now_s: i64,
    progress: &Progress,
) -> Result<Restored> {
    chain.verify()?;
    let mut filling = path.as_os_str().to_owned();
    filling.push(format!(".{FILLING}"));
    let filling = PathBuf::from(filling);
    remove(&filling)?;
    let (keys, bytes) = fill(chain, &filling, rewrite, progress).inspect_err(|_| {
        // What stays is removed by the next attempt.
        let _ = fs::remove_dir_all(&filling);
    })?;
    let before = exchange(&filling, path, now_s)?;
    Ok(Restored { keys, bytes, before })
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
    let rest = rewrite.rest().map_err(Error::Record)?;
    batch.writes.extend(rest.into_iter().map(|(key, value)| (key, Some(value))));
    engine.apply(&[batch])?;
    engine.persist()?;
    Ok((merged.keys(), bytes))
}

/// Gives the new engine the name of the one of before, and that one another name, in one step:
/// there is no moment without an engine.
fn exchange(filling: &Path, path: &Path, now_s: i64) -> Result<Option<PathBuf>> {
    if !path.exists() {
        rename(filling, path, RenameFlags::NOREPLACE)?;
        sync_folder(path)?;
        return Ok(None);
    }
    let before = name_for_before(path, now_s);
    rename(filling, &before, RenameFlags::NOREPLACE)?;
    sync_folder(path)?;
    rename(&before, path, RenameFlags::EXCHANGE)?;
    sync_folder(path)?;
    Ok(Some(before))
}

fn rename(from: &Path, to: &Path, how: RenameFlags) -> Result<()> {
    renameat_with(CWD, from, CWD, to, how).map_err(|error| Error::io("replace", to, error.into()))
}

/// A name that is free.
fn name_for_before(path: &Path, now_s: i64) -> PathBuf {
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
