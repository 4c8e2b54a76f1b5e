//! `weft meta backup`: a backup of the metadata, made by the process that owns the store, or by
//! this one if no process does.

use crate::assembly::{Backups, DEFAULT_RETAINED_BACKUPS, open_engine};
use crate::cli::BackupArgs;
use crate::control::{BackupProgress, BackupResult, Control, Request};
use crate::output::{os_error, show};
use crate::progress::{Done, Progress};
use crate::size::format_size;
use kv::{Durability, Writer};
use mgmt::StateDir;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use types::Result;

/// Longest time for a backup: it reads all metadata.
const TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Title of the progress.
const WHAT: &str = "backing up";

/// Makes a backup.
pub fn run(args: &BackupArgs) -> Result<()> {
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(|e| os_error(path.display(), &e));
    let dir = args.query.dir.directory()?;
    let place = args.place.as_ref().map(absolute).transpose()?;
    let made = match Control::connect(&dir)? {
        Some(control) => ask(control, &dir, place, args.incremental)?,
        None => make(&dir, place.as_deref(), args.incremental)?,
    };
    show(args.query.json, &made, || screen(&made))
}

fn ask(mut control: Control, dir: &Path, place: Option<PathBuf>, changes_only: bool) -> Result<BackupResult> {
    let query = |progress: &Progress| {
        if let Ok(BackupProgress { keys, bytes, .. }) = Control::ask(dir, Request::BackupProgress) {
            show_progress(progress, WHAT, keys, bytes);
        }
    };
    let backup = || control.exchange_with_timeout(Request::Backup { place, changes_only }, TIMEOUT);
    Progress::start(WHAT).during(query, backup)
}

fn make(dir: &Path, place: Option<&Path>, changes_only: bool) -> Result<BackupResult> {
    let state = StateDir::open(dir)?;
    let engine = Arc::new(open_engine(&state.paths, &state.superblock)?);
    let store = Arc::new(Writer::new(engine, Durability::Process));
    let backups = Backups::new(store, &state.superblock, &state.paths, DEFAULT_RETAINED_BACKUPS);
    let query = |progress: &Progress| {
        let BackupProgress { keys, bytes, .. } = backups.progress();
        show_progress(progress, WHAT, keys, bytes);
    };
    Progress::start(WHAT).during(query, || backups.make(place, changes_only))
}

/// Shows how much of a backup was written or read.
pub fn show_progress(progress: &Progress, what: &str, keys: u64, bytes: u64) {
    progress.update(format!("{what}: {keys} keys"), Done::Bytes(bytes, None));
}

fn screen(made: &BackupResult) -> String {
    let size = format_size(made.bytes);
    match &made.base {
        None => format!("{}: all {} keys, {size}\n", made.file, made.keys),
        Some(base) => format!(
            "{}: {} of {} keys changed, {} removed, {size}\n  builds on {base}\n",
            made.file, made.written, made.keys, made.removed
        ),
    }
}
