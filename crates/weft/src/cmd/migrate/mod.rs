//! `weft migrate`: changes the redundancy or pool of files while they are in use.
//!
//! The metadata service migrates the files. This command finds them, submits several at a time, and
//! shows the progress.

mod file;
mod walk;

use crate::cli::MigrateArgs;
use crate::output::{error_lines, print, print_json};
use crate::progress::{Done, Progress};
use crate::size::format_size;
use file::{File, FileProgress, MigrationRequest};
use rustix::fs::XattrFlags;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
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
    let request = MigrationRequest { scheme: args.scheme, pool: args.pool.clone() };
    // A signal ends the migration in order.
    let progress = Progress::start_stoppable("counting files");
    let total = walk::count(&args.paths, args.recursive, is_over);
    let mut run = Run { request, total, ..Run::new(args, progress) };
    run.migrate_all(is_over);
    run.report(is_over())
}

/// Counts of the work done so far.
#[derive(Default)]
struct Counts {
    moved: u64,
    moved_bytes: u64,
    already_migrated: u64,
    already_migrated_bytes: u64,
    deleted: u64,
    hard_links: u64,
    not_regular: u64,
    mount_points: u64,
    directories: u64,
    failed: u64,
    failures: Vec<Value>,
}

struct Run<'a> {
    args: &'a MigrateArgs,
    request: MigrationRequest,
    /// Number and bytes of files, counted beforehand.
    total: (u64, u64),
    progress: Progress,
    counts: Counts,
    in_migration: Vec<File>,
    /// Bytes copied of the files in migration.
    partial_bytes: u64,
    began: Instant,
}

impl<'a> Run<'a> {
    fn new(args: &'a MigrateArgs, progress: Progress) -> Run<'a> {
        Run {
            args,
            request: MigrationRequest { scheme: None, pool: None },
            total: (0, 0),
            progress,
            counts: Counts::default(),
            in_migration: Vec::new(),
            partial_bytes: 0,
            began: Instant::now(),
        }
    }

    fn migrate_all(&mut self, is_over: impl Fn() -> bool) {
        let args = self.args;
        let mut walk = Walk::new(&args.paths, args.recursive);
        let (mut is_at_end, mut rest) = (false, POLL_INTERVALS[0]);
        while !(is_over() || is_at_end && self.in_migration.is_empty()) {
            while !is_at_end && self.in_migration.len() < MAX_SUBMITTED && !is_over() {
                match walk.next() {
                    Some(found) => self.process_entry(found),
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
        self.progress.end();
    }

    fn process_entry(&mut self, found: Found) {
        let counts = &mut self.counts;
        match found {
            Found::File { path, bytes } => {
                let file = File::new(path, bytes);
                match file.is_migrated(&self.request) {
                    Ok(true) => {
                        counts.already_migrated += 1;
                        counts.already_migrated_bytes += bytes;
                    }
                    Ok(false) => self.in_migration.push(file),
                    Err(error) if error.errno == Errno::ENOENT => counts.deleted += 1,
                    Err(error) => self.failed(&file.path, &error),
                }
            }
            Found::Directory(path) => {
                counts.directories += 1;
                if self.args.set_pattern
                    && let Err(error) = set_pattern(&path, &self.request)
                {
                    self.failed(&path, &error);
                }
            }
            Found::HardLink => counts.hard_links += 1,
            Found::NotRegular => counts.not_regular += 1,
            Found::MountPoint => counts.mount_points += 1,
            Found::Failed { path, error } => self.failed(&path, &error),
        }
    }

    /// Polls the files in migration. Returns whether one has finished.
    fn poll(&mut self) -> bool {
        let before = self.in_migration.len();
        self.partial_bytes = 0;
        for mut file in std::mem::take(&mut self.in_migration) {
            match file.advance(&self.request) {
                FileProgress::Moving(bytes) => {
                    self.partial_bytes += bytes.min(file.bytes);
                    self.in_migration.push(file);
                }
                FileProgress::Done => {
                    self.counts.moved += 1;
                    self.counts.moved_bytes += file.bytes;
                }
                FileProgress::Deleted => self.counts.deleted += 1,
                FileProgress::Failed(error) => self.failed(&file.path, &error),
            }
        }
        self.in_migration.len() < before
    }

    fn failed(&mut self, path: &Path, error: &Error) {
        self.counts.failed += 1;
        if self.counts.failures.len() >= MAX_PRINTED_FAILURES {
            return;
        }
        if !self.args.json {
            self.progress.note(&error_lines(error));
        }
        let path = path.to_string_lossy();
        self.counts.failures.push(json!({ "path": path, "error": error.message, "hint": error.hint }));
    }

    fn show_progress(&self) {
        if !self.progress.is_shown() {
            return;
        }
        let counts = &self.counts;
        let files = counts.moved + counts.already_migrated + counts.deleted;
        let done = counts.already_migrated_bytes + counts.moved_bytes + self.partial_bytes;
        let hindrance = self.in_migration.iter().find_map(|file| file.hindrance.as_ref());
        let hindrance = hindrance.map_or_else(String::new, |cause| format!("; waits: {cause}"));
        let what = format!("{files} of {} files{hindrance}", self.total.0);
        self.progress.update(what, Done::Bytes(done, Some(self.total.1)));
    }

    fn report(&self, is_interrupted: bool) -> Result<()> {
        let counts = &self.counts;
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
        if counts.failed > 0 {
            let unlisted = counts.failed.saturating_sub(MAX_PRINTED_FAILURES as u64);
            let more =
                if unlisted > 0 { format!(", of which {unlisted} aren't shown") } else { String::new() };
            let message = format!("{} could not be migrated{more}", counts.failed);
            return Err(Error::new(Errno::EIO, message)
                .hint("the same command tries them again, and skips the others"));
        }
        Ok(())
    }

    fn to_json(&self, is_interrupted: bool) -> Value {
        let counts = &self.counts;
        json!({
            "scheme": self.request.scheme, "pool": self.request.pool, "seconds": self.began.elapsed().as_secs_f64(),
            "files_moved": counts.moved, "bytes_moved": counts.moved_bytes, "files_there": counts.already_migrated,
            "bytes_there": counts.already_migrated_bytes, "files_gone": counts.deleted, "other_names": counts.hard_links,
            "no_files": counts.not_regular, "other_file_systems": counts.mount_points, "directories": counts.directories,
            "failed": counts.failed, "failures": counts.failures, "under_way": self.in_migration.len(),
            "interrupted": is_interrupted,
        })
    }

    fn text(&self) -> String {
        let counts = &self.counts;
        let scheme = self.request.scheme.map(|scheme| format!(" to {scheme}")).unwrap_or_default();
        let pool = self.request.pool.as_ref().map(|pool| format!(" in pool {pool}")).unwrap_or_default();
        let mut text = format!(
            "{} files migrated{scheme}{pool}, {} in {:.1} s; {} matched already\n",
            counts.moved,
            format_size(counts.moved_bytes),
            self.began.elapsed().as_secs_f64(),
            counts.already_migrated
        );
        let skipped = [
            (counts.hard_links, "other names of the same files"),
            (counts.not_regular, "symlinks and special files"),
            (counts.mount_points, "mount points of other file systems"),
            (counts.deleted, "files that were deleted meanwhile"),
        ];
        for (number, what) in skipped.into_iter().filter(|(number, _)| *number > 0) {
            text += &format!("skipped: {number} {what}\n");
        }
        if self.args.set_pattern {
            text += &format!("{} directories give new files the same pattern\n", counts.directories);
        }
        text
    }
}

/// Changes the stripe pattern that a directory gives new files.
fn set_pattern(dir: &Path, request: &MigrationRequest) -> Result<()> {
    let change = request.to_json().to_string();
    let set = rustix::fs::setxattr(dir, "weft.pattern", change.as_bytes(), XattrFlags::empty());
    set.map_err(|cause| match Errno::Number(cause.raw_os_error()) {
        Errno::EPERM | Errno::EACCES => {
            Error::new(Errno::EPERM, format!("not permitted to set the pattern of {}", dir.display()))
                .hint("its owner and root may")
        }
        _ => super::entry_info::xattr_error(dir, cause),
    })
}
