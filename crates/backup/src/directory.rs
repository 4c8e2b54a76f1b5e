//! Backups in a directory: names, listing and pruning.

use crate::error::{Error, Result};
use crate::format::{Header, SUFFIX};
use crate::reader::Reader;
use crate::writer::DRAFT;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use types::Timestamp;

/// A file with the name of a backup.
#[derive(Debug)]
pub struct BackupFile {
    /// Its path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its header, or why it can't be used.
    pub header: Result<Header>,
}

/// Returns the name of a backup made at a time: names sort by time. `id` distinguishes two backups
/// of one second.
pub fn file_name(created_s: i64, id: &str, is_full: bool) -> String {
    let kind = if is_full { "full" } else { "changes" };
    let short = &id[..id.len().min(6)];
    format!("meta-{}-{short}-{kind}{SUFFIX}", Timestamp::new(created_s, 0).compact_utc())
}

/// Lists all backups in a directory, the newest last and unreadable ones first. Reads only their
/// headers. Returns none if the directory doesn't exist.
pub fn list(folder: &Path) -> Result<Vec<BackupFile>> {
    let failed = |error| Error::io("list", folder, error);
    let found = match fs::read_dir(folder) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut entries = Vec::new();
    for entry in found {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_string_lossy().ends_with(SUFFIX) {
            let path = entry.path();
            let bytes = entry.metadata().map_err(failed)?.len();
            entries.push(BackupFile { header: Reader::read_header(&path), path, bytes });
        }
    }
    let sort_key = |entry: &BackupFile| entry.header.as_ref().ok().map(|head| (head.created_s, head.depth));
    entries.sort_by(|a, b| (sort_key(a), &a.path).cmp(&(sort_key(b), &b.path)));
    Ok(entries)
}

/// Returns the backups of a cluster, the newest first. Those made after `latest_s`, in seconds
/// since 1970, come last: the clock was wrong then, so their age is unknown.
pub fn newest_first(entries: Vec<BackupFile>, cluster: &str, latest_s: i64) -> Vec<(PathBuf, Header)> {
    let own =
        |entry: BackupFile| entry.header.ok().filter(|head| head.cluster == cluster).map(|h| (entry.path, h));
    let mut own: Vec<(PathBuf, Header)> = entries.into_iter().filter_map(own).collect();
    own.reverse();
    own.sort_by_key(|(_, head)| head.created_s > latest_s);
    own
}

/// Removes backups of a cluster except the newest `retained` and their bases, and removes drafts,
/// so no other process may be writing there. Those made after `latest_s` count as the oldest.
/// Returns the removed ones. Backups that can't be read stay: an administrator may want to inspect
/// them.
pub fn prune(folder: &Path, cluster: &str, retained: usize, latest_s: i64) -> Result<Vec<PathBuf>> {
    remove_drafts(folder)?;
    let own = newest_first(list(folder)?, cluster, latest_s);
    let bases: BTreeMap<&str, &str> =
        own.iter().filter_map(|(_, head)| Some((&*head.id, head.base.as_deref()?))).collect();
    let mut needed = BTreeSet::new();
    for (_, head) in own.iter().take(retained) {
        let mut next = Some(&*head.id);
        // Until all further bases are needed already.
        while let Some(id) = next.filter(|id| needed.insert(*id)) {
            next = bases.get(id).copied();
        }
    }
    let mut removed: Vec<&(PathBuf, Header)> =
        own.iter().filter(|(_, head)| !needed.contains(&*head.id)).collect();
    // The deepest first: a backup without its base is useless, a base alone is not.
    removed.sort_by_key(|(_, head)| std::cmp::Reverse(head.depth));
    for (path, _) in &removed {
        fs::remove_file(path).map_err(|error| Error::io("remove", path, error))?;
    }
    Ok(removed.into_iter().map(|(path, _)| path.clone()).collect())
}

fn remove_drafts(folder: &Path) -> Result<()> {
    let Ok(found) = fs::read_dir(folder) else { return Ok(()) };
    for entry in found.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.contains(SUFFIX) && name.ends_with(DRAFT) {
            fs::remove_file(entry.path()).map_err(|error| Error::io("remove", &entry.path(), error))?;
        }
    }
    Ok(())
}
