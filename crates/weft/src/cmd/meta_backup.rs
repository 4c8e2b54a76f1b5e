//! `weft meta backup`: a backup of the metadata, made by the process that owns the store, or by
//! this one if no process does.

use crate::assembly::{Backups, DEFAULT_RETAINED_BACKUPS, open_engine};
use crate::cli::BackupArgs;
use crate::control::{BackupProgress, BackupResult, Control, Request};
use crate::output::{os_error, show};
use crate::size::format_size;
use kv::{Durability, Writer};
use mgmt::StateDir;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use types::Result;

/// Longest time for a backup: it reads all metadata.
const TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Interval of progress updates.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

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
    let (done, is_done) = channel::<()>();
    let asked = dir.to_path_buf();
    let poll_progress = move || {
        while let Err(RecvTimeoutError::Timeout) = is_done.recv_timeout(PROGRESS_INTERVAL) {
            if let Ok(progress) = Control::ask::<BackupProgress>(&asked, Request::BackupProgress) {
                show_progress(progress.keys, progress.bytes);
            }
        }
    };
    let progress_thread = std::io::stderr().is_terminal().then(|| std::thread::spawn(poll_progress));
    let made = control.exchange_with_timeout(Request::Backup { place, changes_only }, TIMEOUT);
    drop(done);
    if let Some(progress_thread) = progress_thread {
        // The thread returns nothing.
        let _ = progress_thread.join();
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    made
}

fn make(dir: &Path, place: Option<&Path>, changes_only: bool) -> Result<BackupResult> {
    let state = StateDir::open(dir)?;
    let engine = Arc::new(open_engine(&state.paths, &state.superblock)?);
    let store = Arc::new(Writer::new(engine, Durability::Process));
    Backups::new(store, &state.superblock, &state.paths, DEFAULT_RETAINED_BACKUPS).make(place, changes_only)
}

/// Shows progress on the terminal.
pub fn show_progress(keys: u64, bytes: u64) {
    let _ = write!(std::io::stderr(), "\r\x1b[K{keys} keys, {}", format_size(bytes));
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
