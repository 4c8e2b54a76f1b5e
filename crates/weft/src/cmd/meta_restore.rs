//! `weft meta restore`: replaces the metadata of a stopped cluster by a backup.

use super::meta_backup::show_progress;
use crate::cli::RestoreArgs;
use crate::node_config::is_node;
use crate::output::{format_age, os_error, print_to_stderr, show};
use crate::progress::Progress;
use backup::{Chain, Reader, Rewrite};
use bytes::Bytes;
use kv::{Embedded, Engine, KvError, at_rest};
use meta::RestoreRewriter;
use mgmt::{StateDir, StatePaths, Superblock, require_vacant};
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use types::{Errno, Error, Result, Timestamp};

#[derive(Serialize)]
struct RestoreResult {
    file: String,
    /// Point in time of the backup's content, in seconds since 1970.
    created_s: i64,
    age_s: i64,
    /// Number of backups that were read: this one, and those that it builds on.
    copies: usize,
    keys: u64,
    bytes: u64,
    /// False after `--check`.
    restored: bool,
    /// Path of the previous metadata.
    before: Option<PathBuf>,
}

/// Restores a backup, or only reads it with `--check`.
pub fn run(args: &RestoreArgs) -> Result<()> {
    let dir = match args.dir.named() {
        // It may be empty.
        Some(dir) => std::path::absolute(dir).map_err(|e| os_error(dir.display(), &e))?,
        None => args.dir.find()?,
    };
    let chain = Chain::find(&args.file)?;
    warn_if_readable_by_others(&args.file);
    let now_s = rt::now().secs;
    let mut outcome = RestoreResult {
        file: chain.path().display().to_string(),
        created_s: chain.header().created_s,
        age_s: now_s.saturating_sub(chain.header().created_s),
        copies: chain.paths().count(),
        keys: 0,
        bytes: 0,
        restored: false,
        before: None,
    };
    if args.check {
        let foot = {
            let _progress = Progress::start("reading the backup");
            chain.verify()?
        };
        (outcome.keys, outcome.bytes) = (foot.keys, foot.bytes);
        return show(args.json, &outcome, || screen(&outcome, &dir, is_node(&dir)));
    }
    let state = open_or_extract(&dir, &chain)?;
    let done = with_progress(|progress| {
        let rewind = RestoreRewriter::new(state.superblock.partitions, chain.header().created_s, now_s);
        let mut records = RestoreTransform { rewind, now_s, current: current(&state.paths) };
        backup::restore(&chain, &state.paths.meta(), &mut records, now_s, progress)
    })?;
    (outcome.keys, outcome.bytes, outcome.before) = (done.keys, done.bytes, done.previous_engine);
    outcome.restored = true;
    show(args.json, &outcome, || screen(&outcome, &dir, is_node(&dir)))
}

/// Opens and locks the cluster's state directory. An empty one is first filled with the files from
/// the backup.
fn open_or_extract(dir: &Path, chain: &Chain) -> Result<StateDir> {
    let paths = StatePaths::new(dir);
    if Superblock::read(&paths.superblock())?.is_none() {
        require_vacant(dir)?;
        // Before anything is created from it.
        chain.verify()?;
        extract_files(dir, chain.path())?;
    }
    let state = StateDir::open(dir)?;
    let (found, wanted) = (&chain.header().cluster, &state.superblock.uuid);
    if found != wanted {
        let error = backup::Error::WrongCluster {
            path: chain.path().to_path_buf(),
            found: found.clone(),
            wanted: wanted.clone(),
        };
        return Err(error.into());
    }
    Ok(state)
}

/// Writes the files from a backup. The superblock comes last: with it the directory is a cluster's
/// state directory.
fn extract_files(dir: &Path, copy: &Path) -> Result<()> {
    let reader = Reader::open(copy)?;
    let superblock = StatePaths::new("").superblock();
    let (last, others): (Vec<_>, Vec<_>) =
        reader.files().iter().partition(|file| Path::new(&file.name) == superblock);
    if last.is_empty() {
        let message =
            format!("{} contains no cluster, and the backup doesn't name its cluster", dir.display());
        return Err(Error::new(Errno::ENOENT, message).hint("name the cluster's state directory with --dir"));
    }
    for file in others.into_iter().chain(last) {
        let name = Path::new(&file.name);
        if !name.components().all(|part| matches!(part, Component::Normal(_))) {
            let message =
                format!("the backup has a file {:?}, which doesn't belong in a state directory", file.name);
            return Err(Error::new(Errno::EINVAL, message));
        }
        write_file(&dir.join(name), file.mode, &file.content)?;
    }
    Ok(())
}

fn write_file(path: &Path, mode: u32, content: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let write = || -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::File::open(folder)?.sync_all()
    };
    write().map_err(|e| os_error(format_args!("can't write {}", path.display()), &e))
}

/// Warns if other users can read the backup. The restore continues: it is the last resort.
fn warn_if_readable_by_others(copy: &Path) {
    let looked = fs::metadata(copy).map(|meta| identity::require_private_file(copy, &meta));
    if let Ok(Err(error)) = looked {
        print_to_stderr(&format!("note: {error}; the backup contains the keys of the cluster\n"));
    }
}

/// Returns the latest records of the cluster map, if the previous store is still readable: nodes,
/// targets and their state don't go back in time.
fn current(paths: &StatePaths) -> Vec<(Vec<u8>, Bytes)> {
    if !at_rest::engine_exists(&paths.meta()) {
        return Vec::new();
    }
    let read = || -> Result<Vec<_>, KvError> {
        let engine = Embedded::open(&paths.meta())?;
        let value = |key: &[u8]| Ok(engine.get(key)?.map(|value| (key.to_vec(), value)));
        mgmt::LIVE_RECORDS.iter().filter_map(|key| value(key).transpose()).collect()
    };
    // An unreadable store is the usual reason for a restore.
    read().unwrap_or_default()
}

/// Rewrites records of the metadata services and of management during a restore.
struct RestoreTransform {
    rewind: RestoreRewriter,
    /// Seconds since 1970.
    now_s: i64,
    /// Records that replace those of the backup.
    current: Vec<(Vec<u8>, Bytes)>,
}

impl Rewrite for RestoreTransform {
    fn record(&mut self, key: &[u8], value: Bytes) -> Result<Option<Bytes>> {
        let current = self.current.iter().find(|(known, _)| known == key).map(|(_, current)| current);
        match mgmt::restored_record(key, current.unwrap_or(&value), self.now_s) {
            Some(rewound) => Ok(Some(rewound?.into())),
            None => self.rewind.record(key, value),
        }
    }

    fn additional_records(&mut self) -> Result<Vec<(Vec<u8>, Bytes)>> {
        self.rewind.additional_records()
    }
}

fn with_progress<T, E>(work: impl FnOnce(&backup::Progress) -> Result<T, E>) -> Result<T, E> {
    let counts = backup::Progress::default();
    let query = |progress: &Progress| {
        show_progress(progress, "restoring", counts.keys.load(Relaxed), counts.bytes.load(Relaxed));
    };
    Progress::start("restoring").during(query, || work(&counts))
}

fn screen(outcome: &RestoreResult, dir: &Path, is_node: bool) -> String {
    let moment = Timestamp::new(outcome.created_s, 0).compact_utc();
    let what = format!("{} keys as they were at {moment}, {} ago", outcome.keys, format_age(outcome.age_s));
    if !outcome.restored {
        return format!("{} can be restored: {what}\n", outcome.file);
    }
    let before = match &outcome.before {
        Some(before) => {
            format!("The previous metadata is in {}; remove it when the cluster works.\n", before.display())
        }
        None => String::new(),
    };
    let dir = dir.display();
    let next = match is_node {
        true => format!(
            "Clients that are mounted continue by themselves: files that are open give EIO, and locks are lost.\n\
             Start the node, then check:  weft serve --dir {dir} --detach && weft fsck --dir {dir}\n"
        ),
        false => format!("Check before you mount:  weft fsck --dir {dir}\n"),
    };
    format!(
        "restored: {what}\n{before}\
         Files that were created, changed or deleted since then don't match the stored data.\n\
         Drains of targets (weft target drain ID) and migrations of files are cancelled.\n\
         {next}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_is_that_of_the_kind_of_cluster() {
        let outcome = RestoreResult {
            file: "/b/f".into(),
            created_s: 0,
            age_s: 60,
            copies: 1,
            keys: 3,
            bytes: 9,
            restored: true,
            before: None,
        };
        let text = |is_node| screen(&outcome, Path::new("/d"), is_node);
        assert!(text(true).contains("Clients that are mounted continue by themselves"), "{}", text(true));
        assert!(text(true).ends_with("weft serve --dir /d --detach && weft fsck --dir /d\n"));
        // The only client of a cluster in one process is stopped with it.
        assert!(!text(false).contains("Clients"), "{}", text(false));
        assert!(text(false).ends_with("Check before you mount:  weft fsck --dir /d\n"));
    }
}
