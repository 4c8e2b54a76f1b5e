//! Commands for whole trees of files. The `tree` crate does the work, with the rights of the
//! caller; this module shows progress and failures, and catches signals.

pub mod cp;
pub mod du;
mod expression;
pub mod find;
mod ls;
mod output;
pub mod rm;

use self::output::Output;
use crate::output::{error_lines, os_error};
use crate::progress::{Done, Progress};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tree::{Failure, Job};
use types::{Errno, Error, Result};

/// Most failures in a JSON document; further ones are only counted.
const MAX_LISTED_FAILURES: usize = 100;

/// A command under way.
struct Run {
    stop: Arc<AtomicBool>,
    progress: Progress,
    is_json: bool,
    failures: Mutex<Failures>,
    began: Instant,
}

#[derive(Default)]
struct Failures {
    number: u64,
    listed: Vec<Value>,
}

impl Run {
    /// Begins. SIGINT and SIGTERM stop the work in order, and a second one ends the process.
    fn start(what: &str, is_json: bool) -> Result<Run> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
                .map_err(|e| os_error("can't catch signals", &e))?;
        }
        tree::raise_open_files_limit();
        let progress = Progress::start_stoppable(what);
        Ok(Run { stop, progress, is_json, failures: Mutex::default(), began: Instant::now() })
    }

    /// Reports failures of this run.
    fn reporter(&self) -> impl Fn(Failure) + Sync {
        |failure| self.report(&failure)
    }

    fn job<'a>(&'a self, report: &'a (dyn Fn(Failure) + Sync)) -> Job<'a> {
        Job { stop: &self.stop, report }
    }

    /// Works, and shows meanwhile how many things are `done`.
    fn work(&self, what: &str, done: impl Fn() -> u64 + Sync, work: impl FnOnce()) {
        self.progress.during(|progress| progress.update(what, Done::Things(done(), None)), work);
        self.progress.end();
    }

    fn report(&self, failure: &Failure) {
        let path = shown(&failure.path);
        let error = os_error(format_args!("{} {path}", failure.what), &failure.cause);
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.number += 1;
        if !self.is_json {
            self.progress.note(&error_lines(&error));
        } else if failures.listed.len() < MAX_LISTED_FAILURES {
            failures.listed.push(json!({ "path": path, "error": error.message }));
        }
    }

    fn is_interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Adds to a document what all commands have in common.
    fn document(&self, mut value: Value) -> Value {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        value["failed"] = json!(failures.number);
        value["failures"] = json!(failures.listed);
        value["interrupted"] = json!(self.is_interrupted());
        value["seconds"] = json!(self.began.elapsed().as_secs_f64());
        value
    }

    /// The error at the end, if the work is incomplete. `done`: what has been done.
    fn outcome(&self, verb: &str, done: &str, remedy: &str) -> Result<()> {
        let failed = self.failures.lock().unwrap_or_else(PoisonError::into_inner).number;
        if self.is_interrupted() {
            return Err(Error::new(Errno::EINTR, format!("interrupted: {done}")).hint(remedy.to_string()));
        }
        if failed > 0 {
            let message = format!("{} could not be {verb}; {done}", count(failed, "object"));
            return Err(Error::new(Errno::EIO, message).hint(remedy.to_string()));
        }
        Ok(())
    }
}

/// Formats a number of things: `1 file`, `2 files`, `2 directories`.
fn count(number: u64, thing: &str) -> String {
    match (number, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {thing}s"),
    }
}

/// Formats a path on one line, and without loss: bytes that aren't printable are escaped.
fn shown(path: &Path) -> String {
    match path.to_str() {
        Some(text) if !text.chars().any(char::is_control) => text.to_string(),
        _ => path.as_os_str().as_bytes().escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn paths_are_shown_on_one_line() {
        let path = |bytes: &'static [u8]| shown(Path::new(OsStr::from_bytes(bytes)));
        assert_eq!(path("a/ü b".as_bytes()), "a/ü b");
        assert_eq!(path(b"a\nb"), "a\\nb");
        assert_eq!(path(b"a\xffb"), "a\\xffb");
    }

    #[test]
    fn things_are_counted() {
        assert_eq!(count(1, "directory"), "1 directory");
        assert_eq!(count(0, "directory"), "0 directories");
        assert_eq!(count(2, "file"), "2 files");
    }
}
