//! Copies in a folder: their names, which there are, and which of them may go.

use crate::error::{Error, Result};
use crate::format::{Head, SUFFIX};
use crate::reader::Reader;
use crate::writer::DRAFT;
use std::collections::{BTreeMap, BTreeSet};
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

/// All copies in a folder, the newest last; what can't be read comes first. Only their beginnings
/// are looked at. None where there is no folder.
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

/// The copies of a cluster, the newest first. Those of later than `latest_s`, seconds since 1970,
/// come last: a clock was wrong when they were made, so that nothing tells how new they are.
pub fn newest_first(entries: Vec<Entry>, cluster: &str, latest_s: i64) -> Vec<(PathBuf, Head)> {
    let own = |entry: Entry| entry.head.ok().filter(|head| head.cluster == cluster).map(|h| (entry.path, h));
    let mut own: Vec<(PathBuf, Head)> = entries.into_iter().filter_map(own).collect();
    own.reverse();
    own.sort_by_key(|(_, head)| head.created_s > latest_s);
    own
}

/// Removes copies of a cluster until no more than the newest `kept` are left, and those that they
/// build on; and what was never completed, so that nobody may be writing there. Those of later than
/// `latest_s` count as the oldest. Returns what was removed. Copies that can't be read stay:
/// somebody may want to look at them.
pub fn prune(folder: &Path, cluster: &str, kept: usize, latest_s: i64) -> Result<Vec<PathBuf>> {
    remove_drafts(folder)?;
    let own = newest_first(list(folder)?, cluster, latest_s);
    let bases: BTreeMap<&str, &str> =
        own.iter().filter_map(|(_, head)| Some((&*head.id, head.base.as_deref()?))).collect();
    let mut needed = BTreeSet::new();
    for (_, head) in own.iter().take(kept) {
        let mut next = Some(&*head.id);
        // Up to one from which on all are needed already.
        while let Some(id) = next.filter(|id| needed.insert(*id)) {
            next = bases.get(id).copied();
        }
    }
    let mut gone: Vec<&(PathBuf, Head)> =
        own.iter().filter(|(_, head)| !needed.contains(&*head.id)).collect();
    // What builds on the most first: a copy without its base is of no use, a base without it is.
    gone.sort_by_key(|(_, head)| std::cmp::Reverse(head.depth));
    for (path, _) in &gone {
        fs::remove_file(path).map_err(|error| Error::io("remove", path, error))?;
    }
    Ok(gone.into_iter().map(|(path, _)| path.clone()).collect())
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
