//! Log output: standard error, which a detached process redirects to its log file.
//!
//! A log line never makes the process fail, and the log never takes more than its share of a disk:
//! lines that can't be written are counted ([`sink`]), a log statement that is too frequent is
//! suppressed ([`statement_rate_limit`]), and a log file is rotated while the process runs.

mod location;
mod sink;
mod statement_rate_limit;

pub use self::location::{of_mount, of_service};

use self::sink::Sink;
use self::statement_rate_limit::RateLimits;
use crate::systemd;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;

/// Environment variable with the log filter: a level, or `TARGET=LEVEL` for parts of the program,
/// separated by commas (`info,meta=debug`). If it is missing or invalid, the level is `info`.
const FILTER_VARIABLE: &str = "WEFT_LOG";

/// The log of this process.
static LOG: Mutex<Log> =
    Mutex::new(Log { sink: Sink::stderr(), rate_limits: RateLimits::new(), is_journal: false });

/// Starts logging to standard error.
pub fn init() {
    with_log(|log| log.is_journal = systemd::is_journal(std::io::stderr()));
    let asked = std::env::var(FILTER_VARIABLE).ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer().with_writer(Writers).with_ansi(false).with_target(false);
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
}

/// Redirects the log, and standard error with it, to the end of a file. While the file can't be
/// opened, the process runs without a log and retries.
pub fn redirect(log: &Path) {
    with_log(|state| {
        state.is_journal = false;
        state.sink.redirect(log, make_stderr);
    });
}

/// Redirects the log of the process that serves a state directory to the file of [`of_service`].
pub fn redirect_service(dir: &Path) {
    let log = of_service(dir);
    redirect(&log);
    location::link_from(dir, &log);
}

/// Makes a file standard error: messages of panics and libraries go there.
fn make_stderr(file: &File) {
    // Can't fail with two open descriptors; and there would be no place to report it to.
    let _ = rustix::stdio::dup2_stderr(file);
}

/// Writes the lines of all threads, one at a time.
struct Log {
    sink: Sink,
    rate_limits: RateLimits<Identifier>,
    /// Whether standard error is the journal, which takes the level from a line's first characters.
    is_journal: bool,
}

impl Log {
    /// Writes a line. `source`: the log statement whose rate limit the line counts against, if any.
    fn put(&mut self, source: Option<&Identifier>, level: Level, line: &[u8], now: Instant) {
        if self.is_journal {
            let marked = [systemd::priority(level).as_bytes(), line].concat();
            return self.put_marked(source, &marked, now);
        }
        self.put_marked(source, line, now);
    }

    fn put_marked(&mut self, source: Option<&Identifier>, line: &[u8], now: Instant) {
        for summary in self.rate_limits.due(now) {
            self.sink.put(&summary, now);
        }
        if source.is_none_or(|source| self.rate_limits.admit(source, line, now)) {
            self.sink.put(line, now);
        }
    }
}

fn with_log(work: impl FnOnce(&mut Log)) {
    work(&mut LOG.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Makes a [`Writer`] for each event.
struct Writers;

impl MakeWriter<'_> for Writers {
    type Writer = Writer;

    fn make_writer(&self) -> Writer {
        Writer { source: None, level: Level::INFO }
    }

    fn make_writer_for(&self, event: &Metadata<'_>) -> Writer {
        // Debug lines have no rate limit: an administrator who enables them wants all.
        let is_limited = *event.level() <= Level::INFO;
        Writer { source: is_limited.then(|| event.callsite()), level: *event.level() }
    }
}

/// Writes the line of one event as a whole, and never fails.
struct Writer {
    source: Option<Identifier>,
    level: Level,
}

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        with_log(|log| log.put(self.source.as_ref(), self.level, line, Instant::now()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Set in the process that a test starts, which is itself.
    const CHILD: &str = "WEFT_TEST_LOGS";

    fn child(name: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = format!("logging::tests::{name}");
        command.args([&name, "--exact", "--nocapture"]).env(CHILD, "1").stdout(Stdio::null());
        command
    }

    #[test]
    fn a_process_outlives_a_full_disk_below_its_standard_error() {
        if std::env::var_os(CHILD).is_some() {
            init();
            tracing::error!("a line");
            crate::output::print_to_stderr("a note\n");
            return;
        }
        let full = File::options().write(true).open("/dev/full").unwrap();
        let name = "a_process_outlives_a_full_disk_below_its_standard_error";
        let ended = child(name).stderr(full).status().unwrap();
        assert!(ended.success(), "{ended}");
    }

    #[test]
    fn lines_in_the_journal_begin_with_their_priority() {
        if std::env::var_os(CHILD).is_some() {
            init();
            tracing::error!("a failure");
            tracing::warn!("a warning");
            tracing::info!("a note");
            return;
        }
        // The journal is a socket; a pipe has a device and an inode number as well.
        use std::os::unix::fs::MetadataExt;
        let (mut reader, writer) = std::io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(writer.try_clone().unwrap())).metadata().unwrap();
        let stream = format!("{}:{}", pipe.dev(), pipe.ino());
        let name = "lines_in_the_journal_begin_with_their_priority";
        let mut tests = child(name);
        let ended = tests.env("JOURNAL_STREAM", stream).stderr(writer).status().unwrap();
        drop(tests);
        assert!(ended.success(), "{ended}");
        let mut log = String::new();
        io::Read::read_to_string(&mut reader, &mut log).unwrap();
        let begins: Vec<&str> = log.lines().map(|line| &line[..3]).collect();
        assert_eq!(begins, ["<3>", "<4>", "<6>"], "{log}");
    }

    #[test]
    fn a_flood_of_lines_becomes_a_few_and_a_count() {
        const FLOOD: u64 = 1000;
        if std::env::var_os(CHILD).is_some() {
            init();
            for number in 0..FLOOD {
                tracing::warn!(number, "a connection was refused");
            }
            tracing::warn!("a line of another place");
            return;
        }
        let name = "a_flood_of_lines_becomes_a_few_and_a_count";
        let ended = child(name).stderr(Stdio::piped()).output().unwrap();
        let log = String::from_utf8_lossy(&ended.stderr);
        let written = log.lines().filter(|line| line.contains("a connection was refused")).count() as u64;
        // On a slow machine a part of the burst may be available again meanwhile.
        assert!((1..FLOOD / 2).contains(&written), "{written} lines");
        assert!(log.contains("a line of another place"), "{log}");
    }
}
