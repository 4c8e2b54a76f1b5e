//! `weft migrate`: changes the redundancy or pool of files while they are in use.
//!
//! The metadata service migrates the files. This command finds them, submits several at a time, and
//! shows the progress.

mod file;
mod walk;

use crate::cli::MigrateArgs;
use crate::output::{print, print_error, print_json, print_to_stderr};
use crate::size::format_size;
use file::{File, MigrationRequest, Progress};
use rustix::fs::XattrFlags;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};
use walk::{Found, Walk};

/// Most files submitted at a time: more than a metadata service migrates at once, so that it never
/// waits for this command.
const MAX_SUBMITTED: usize = 16;

/// Shortest and longest pause between polls. The pause grows from the shortest whenever nothing has
/// finished.
const POLL_INTERVALS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(200)];

/// Interval of progress updates on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Most failures that are printed one by one; further ones are only counted.
const MAX_PRINTED_FAILURES: usize = 100;

/// Migrates files.
pub fn run(args: &MigrateArgs) -> Result<()> {
    for path in &args.paths {
        // Paths that don't exist are reported with the other failures.
        if path.exists() {
            walk::check(path)?;
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A second signal ends the command at once.
        let caught = signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        caught.map_err(|e| crate::output::os_error("can't catch signals", &e))?;
    }
    let is_over = || stop.load(Ordering::Relaxed);
    let wish = MigrationRequest { scheme: args.scheme, pool: args.pool.clone() };
    let shown = std::io::stderr().is_terminal();
    let total = walk::count(&args.paths, args.recursive, is_over);
    let mut run = Run { request: wish, total, shown, ..Run::new(args) };
    run.all(is_over);
    run.report(is_over())
}

/// Counts of the work done so far.
#[derive(Default)]
struct Counts {
    moved: u64,
    moved_bytes: u64,
    there: u64,
    there_bytes: u64,
    gone: u64,
    other_names: u64,
    no_files: u64,
    elsewhere: u64,
    directories: u64,
    failed: u64,
    failures: Vec<Value>,
}

struct Run<'a> {
    args: &'a MigrateArgs,
    request: MigrationRequest,
    /// Number and bytes of files, counted beforehand.
    total: (u64, u64),
    shown: bool,
    tally: Counts,
    in_migration: Vec<File>,
    /// Bytes copied of the files in migration.
    partial_bytes: u64,
    began: Instant,
    last_shown: Instant,
}

impl<'a> Run<'a> {
    fn new(args: &'a MigrateArgs) -> Run<'a> {
        let now = Instant::now();
        Run {
            args,
            request: MigrationRequest { scheme: None, pool: None },
            total: (0, 0),
            shown: false,
            tally: Counts::default(),
            in_migration: Vec::new(),
            partial_bytes: 0,
            began: now,
            last_shown: now,
        }
    }

    fn all(&mut self, is_over: impl Fn() -> bool) {
        let args = self.args;
        let mut walk = Walk::new(&args.paths, args.recursive);
        let (mut is_at_end, mut rest) = (false, POLL_INTERVALS[0]);
        while !(is_over() || is_at_end && self.in_migration.is_empty()) {
            while !is_at_end && self.in_migration.len() < MAX_SUBMITTED && !is_over() {
                match walk.next() {
                    Some(found) => self.take(found),
                    None => is_at_end = true,
                }
                self.show_progress();
            }
            rest = if self.poll() { POLL_INTERVALS[0] } else { (rest * 2).min(POLL_INTERVALS[1]) };
            self.show_progress();
            if !self.in_migration.is_empty() {
                std::thread::sleep(rest);
            }
        }
        if self.shown {
            print_to_stderr("\r\x1b[K");
        }
    }

    fn take(&mut self, found: Found) {
        let tally = &mut self.tally;
        match found {
            Found::File { path, bytes } => {
                let file = File::new(path, bytes);
                match file.is_migrated(&self.request) {
                    Ok(true) => {
                        tally.there += 1;
                        tally.there_bytes += bytes;
                    }
                    Ok(false) => self.in_migration.push(file),
                    Err(error) if error.errno == Errno::ENOENT => tally.gone += 1,
                    Err(error) => self.failed(&file.path, &error),
                }
            }
            Found::Directory(path) => {
                tally.directories += 1;
                if self.args.set_pattern
                    && let Err(error) = set_pattern(&path, &self.request)
                {
                    self.failed(&path, &error);
                }
            }
            Found::HardLink => tally.other_names += 1,
            Found::NotRegular => tally.no_files += 1,
            Found::MountPoint => tally.elsewhere += 1,
            Found::Failed { path, error } => self.failed(&path, &error),
        }
    }

    /// Polls the files in migration. Returns whether one has finished.
    fn poll(&mut self) -> bool {
        let before = self.in_migration.len();
        self.partial_bytes = 0;
        for mut file in std::mem::take(&mut self.in_migration) {
            match file.advance(&self.request) {
                Progress::Moving(bytes) => {
                    self.partial_bytes += bytes.min(file.bytes);
                    self.in_migration.push(file);
                }
                Progress::Done => {
                    self.tally.moved += 1;
                    self.tally.moved_bytes += file.bytes;
                }
                Progress::Gone => self.tally.gone += 1,
                Progress::Failed(error) => self.failed(&file.path, &error),
            }
        }
        self.in_migration.len() < before
    }

    fn failed(&mut self, path: &Path, error: &Error) {
        self.tally.failed += 1;
        if self.tally.failures.len() >= MAX_PRINTED_FAILURES {
            return;
        }
        if !self.args.json {
            if self.shown {
                print_to_stderr("\r\x1b[K");
            }
            print_error(error);
        }
        let path = path.to_string_lossy();
        self.tally.failures.push(json!({ "path": path, "error": error.message, "hint": error.hint }));
    }

    /// Updates the progress line on a terminal.
    fn show_progress(&mut self) {
        if !self.shown || self.last_shown.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        self.last_shown = Instant::now();
        let tally = &self.tally;
        let files = tally.moved + tally.there + tally.gone;
        let copied = tally.moved_bytes + self.partial_bytes;
        let rate = copied as f64 / self.began.elapsed().as_secs_f64();
        let left = self.total.1.saturating_sub(tally.there_bytes + copied);
        let estimate = match rate {
            rate if rate < 1.0 || left == 0 => String::new(),
            rate => format!(", about {} s left", (left as f64 / rate).ceil()),
        };
        let held = self.in_migration.iter().find_map(|file| file.hindrance.as_ref());
        let held = held.map_or_else(String::new, |cause| format!("; waits: {cause}"));
        let line = format!(
            "{files} of {} files, {} of {}, {}/s{estimate}{held}",
            self.total.0,
            format_size(tally.there_bytes + copied),
            format_size(self.total.1),
            format_size(rate as u64),
        );
        let mut err = std::io::stderr().lock();
        // A failed write to the terminal doesn't matter.
        let _ =
            write!(err, "\r\x1b[K{}", line.chars().take(150).collect::<String>()).and_then(|()| err.flush());
    }

    fn report(&self, is_interrupted: bool) -> Result<()> {
        let tally = &self.tally;
        match self.args.json {
            true => print_json(&self.to_json(is_interrupted))?,
            false => print(&self.text()),
        }
        if is_interrupted {
            let message = format!(
                "interrupted: the metadata service completes the migration of {} submitted files",
                self.in_migration.len()
            );
            return Err(Error::new(Errno::EINTR, message).hint("the same command continues with the others"));
        }
        if tally.failed > 0 {
            let untold = tally.failed.saturating_sub(MAX_PRINTED_FAILURES as u64);
            let more = if untold > 0 { format!(", of which {untold} aren't shown") } else { String::new() };
            let message = format!("{} could not be migrated{more}", tally.failed);
            return Err(Error::new(Errno::EIO, message)
                .hint("the same command tries them again, and skips the others"));
        }
        Ok(())
    }

    fn to_json(&self, is_interrupted: bool) -> Value {
        let tally = &self.tally;
        json!({
            "scheme": self.request.scheme, "pool": self.request.pool, "seconds": self.began.elapsed().as_secs_f64(),
            "files_moved": tally.moved, "bytes_moved": tally.moved_bytes, "files_there": tally.there,
            "bytes_there": tally.there_bytes, "files_gone": tally.gone, "other_names": tally.other_names,
            "no_files": tally.no_files, "other_file_systems": tally.elsewhere, "directories": tally.directories,
            "failed": tally.failed, "failures": tally.failures, "under_way": self.in_migration.len(),
            "interrupted": is_interrupted,
        })
    }

    fn text(&self) -> String {
        let tally = &self.tally;
        let scheme = self.request.scheme.map(|scheme| format!(" to {scheme}")).unwrap_or_default();
        let pool = self.request.pool.as_ref().map(|pool| format!(" in pool {pool}")).unwrap_or_default();
        let mut text = format!(
            "{} files migrated{scheme}{pool}, {} in {:.1} s; {} matched already\n",
            tally.moved,
            format_size(tally.moved_bytes),
            self.began.elapsed().as_secs_f64(),
            tally.there
        );
        let skipped = [
            (tally.other_names, "other names of the same files"),
            (tally.no_files, "symlinks and special files"),
            (tally.elsewhere, "mount points of other file systems"),
            (tally.gone, "files that were deleted meanwhile"),
        ];
        for (number, what) in skipped.into_iter().filter(|(number, _)| *number > 0) {
            text += &format!("skipped: {number} {what}\n");
        }
        if self.args.set_pattern {
            text += &format!("{} directories give new files the same pattern\n", tally.directories);
        }
        text
    }
}

/// Changes the stripe pattern that a directory gives new files.
fn set_pattern(dir: &Path, wish: &MigrationRequest) -> Result<()> {
    let change = wish.to_json().to_string();
    let set = rustix::fs::setxattr(dir, "weft.pattern", change.as_bytes(), XattrFlags::empty());
    set.map_err(|cause| match Errno(cause.raw_os_error()) {
        Errno::EPERM | Errno::EACCES => {
            Error::new(Errno::EPERM, format!("not permitted to set the pattern of {}", dir.display()))
                .hint("its owner and root may")
        }
        _ => super::entry_info::xattr_error(dir, cause),
    })
}
