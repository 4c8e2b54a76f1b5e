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
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Registry, reload};
use types::{Errno, Error, Result};

/// Environment variable with the log filter: a level, or `TARGET=LEVEL` for parts of the program,
/// separated by commas (`info,meta=debug`). If it is missing or invalid, the level is `info`.
const FILTER_VARIABLE: &str = "WEFT_LOG";

/// The log of this process.
static LOG: Mutex<Log> =
    Mutex::new(Log { sink: Sink::stderr(), rate_limits: RateLimits::new(), is_journal: false });

/// The filter of this process, once [`init`] has run.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Starts logging to standard error.
pub fn init() {
    with_log(|log| log.is_journal = systemd::is_journal(std::io::stderr()));
    let asked = std::env::var(FILTER_VARIABLE).ok().and_then(|text| parse_filter(&text).ok());
    let filter = asked.unwrap_or_default().with_default_if_missing(LevelFilter::INFO);
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(Writers).with_ansi(false).with_target(false);
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    // It is set once: a second subscriber would have panicked.
    let _ = FILTER.set(handle);
}

/// Parses a filter: a level, or `TARGET=LEVEL` for parts of the program, separated by commas.
///
/// # Errors
/// `EINVAL` for an unknown level.
pub fn parse_filter(text: &str) -> Result<Filter> {
    let mut filter = Filter::default();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (target, level) =
            part.split_once('=').map_or((None, part), |(target, level)| (Some(target), level));
        let level: LevelFilter = level.parse().map_err(|_| {
            Error::new(Errno::EINVAL, format!("{level:?} is not a log level"))
                .hint("the levels are off, error, warn, info, debug and trace")
        })?;
        match target {
            Some(target) => filter.targets.push((target.to_string(), level)),
            None => filter.default = Some(level),
        }
    }
    Ok(filter)
}

/// A parsed log filter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Level of what no target names.
    default: Option<LevelFilter>,
    targets: Vec<(String, LevelFilter)>,
}

impl Filter {
    fn with_default_if_missing(self, level: LevelFilter) -> Targets {
        Targets::new().with_default(self.default.unwrap_or(level)).with_targets(self.targets)
    }
}

/// Replaces the filter of this process by `text`, if there is one. Without a level for the rest,
/// the rest keeps its level. Returns the filter in force.
///
/// # Errors
/// `EINVAL` for an unknown level; `EOPNOTSUPP` if this process doesn't log.
pub fn change_filter(text: Option<&str>) -> Result<String> {
    let handle = FILTER.get().ok_or_else(|| Error::new(Errno::EOPNOTSUPP, "this process has no log"))?;
    let failed = |e: reload::Error| Error::new(Errno::EIO, format!("the log filter can't be changed: {e}"));
    if let Some(text) = text {
        let filter = parse_filter(text)?;
        let rest = handle.with_current(|known| known.default_level()).map_err(failed)?;
        let filter = filter.with_default_if_missing(rest.unwrap_or(LevelFilter::INFO));
        handle.reload(filter).map_err(failed)?;
        tracing::info!("the log filter is {text:?} now");
    }
    handle.with_current(Targets::to_string).map_err(failed)
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
    fn a_filter_is_parsed_and_changed_while_the_process_runs() {
        let filter = parse_filter("warn, meta=debug").unwrap().with_default_if_missing(LevelFilter::INFO);
        assert_eq!(filter.default_level(), Some(LevelFilter::WARN));
        assert!(filter.would_enable("meta", &Level::DEBUG) && !filter.would_enable("net", &Level::INFO));
        assert_eq!(parse_filter("meta=loud").unwrap_err().errno, Errno::EINVAL);
        if std::env::var_os(CHILD).is_some() {
            init();
            tracing::debug!("before");
            change_filter(Some("weft=debug")).unwrap();
            tracing::debug!("between");
            change_filter(Some("off")).unwrap();
            tracing::error!("after");
            return;
        }
        let name = "a_filter_is_parsed_and_changed_while_the_process_runs";
        let ended = child(name).stderr(Stdio::piped()).output().unwrap();
        let log = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && log.contains("between"), "{log}");
        assert!(!log.contains("before") && !log.contains("after"), "{log}");
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
