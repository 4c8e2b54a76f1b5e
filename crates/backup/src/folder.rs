//! Copies in a folder: their names, which there are, and which of them may go.

use crate::error::{Error, Result};
use crate::format::{Head, SUFFIX};
use crate::reader::Reader;
use crate::writer::DRAFT;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use types::Timestamp;

/// A file that has the name of a copy.
#[derive(Debug)]
pub struct Entry {
    /// Where it is.
    pub path: PathBuf,
    /// How long it is, bytes.
    pub bytes: u64,
    /// What it is of, or why it can't be used.
    pub head: Result<Head>,
}

/// The name of a copy made at a time: names sort as times do. `id` keeps two of one second apart.
pub fn file_name(created_s: i64, id: &str, is_full: bool) -> String {
    let kind = if is_full { "full" } else { "changes" };
    let short = &id[..id.len().min(6)];
    format!("meta-{}-{short}-{kind}{SUFFIX}", Timestamp::new(created_s, 0).compact_utc())
}

/// All copies in a folder, the newest last; what can't be read comes first. Only their beginnings are looked at. None where there is no folder.
pub fn list(folder: &Path) -> Result<Vec<Entry>> {
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
            entries.push(Entry { head: Reader::head_of(&path), path, bytes });
        }
    }
    let moment = |entry: &Entry| entry.head.as_ref().ok().map(|head| (head.created_s, head.depth));
    entries.sort_by(|a, b| (moment(a), &a.path).cmp(&(moment(b), &b.path)));
    Ok(entries)
}

/// Removes copies of a cluster until no more than the newest `kept` are left, and those that they build on; and what was never completed, so that nobody
/// may be writing there. Returns what was removed. Copies that can't be read stay: somebody may want to look at them.
pub fn prune(folder: &Path, cluster: &str, kept: usize) -> Result<Vec<PathBuf>> {
    remove_drafts(folder)?;
    let entries = list(folder)?;
    let own = |entry: &&Entry| entry.head.as_ref().is_ok_and(|head| head.cluster == cluster);
    let own: Vec<(&Path, &Head)> = entries
        .iter()
        .filter(own)
        .filter_map(|entry| entry.head.as_ref().ok().map(|head| (entry.path.as_path(), head)))
        .collect();
    let mut needed = BTreeSet::new();
    // From the newest to the oldest, so that whoever needs a copy was seen before it.
    for (newer, (_, head)) in own.iter().rev().enumerate() {
        if newer < kept || needed.contains(&head.id) {
            needed.insert(head.id.clone());
            needed.extend(head.base.clone());
        }
    }
    let mut removed = Vec::new();
    // The newest first: a copy without its base is of no use, a base without it is.
    for (path, head) in own.iter().rev() {
        if !needed.contains(&head.id) {
            fs::remove_file(path).map_err(|error| Error::io("remove", path, error))?;
            removed.push(path.to_path_buf());
        }
    }
    Ok(removed)
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
