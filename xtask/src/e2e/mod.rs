//! The end-to-end suite: a real weft, mounted, under real programs, crashes and faults.
//!
//! Every test is a named function in one of the modules' `TESTS` tables. Tests of scope [`Scope::Mounted`] share one
//! running file system for each transport; those of scope [`Scope::Own`] start their own. Each has a deadline,
//! after which the kernel's connection is aborted, so that a hung mount fails its test and nothing more.
//! `--on DIR` runs the tests that need only POSIX on any directory: what fails there is the test's fault.

mod backups;
pub mod cleanup;
mod cluster;
mod coherence;
mod content;
mod crash;
mod data;
mod directories;
pub mod disk;
mod faults;
mod lifecycle;
mod links;
mod load;
mod locks;
mod machines;
mod metadata;
mod mounts;
mod moves;
mod netns;
mod outcome;
mod programs;
mod refusals;
mod rig;
mod stage;
mod suites;
mod tools;

pub use content::{Content, Rng};
pub use machines::{Cluster, Part};
pub use netns::Carried;
pub use outcome::{Failure, TestResult};
pub use stage::{Stage, Subject};

use crate::build;
use crate::summary::Summary;
use rig::Transport;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a test may go on after the file system under it was aborted.
const ABORT_GRACE: Duration = Duration::from_secs(60);

/// How much of a failure's message is shown: enough to see what, not all of a long listing.
const MAX_MESSAGE_CHARS: usize = 3000;

/// Options of `cargo xtask e2e`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Options {
    /// Run only tests whose name contains one of these.
    names: Vec<String>,
    /// List the tests and run nothing.
    #[arg(long)]
    list: bool,
    /// Run on an ordinary directory instead of a weft.
    #[arg(long, value_name = "DIR")]
    on: Option<PathBuf>,
    /// Test this binary instead of building one.
    #[arg(long, value_name = "PATH")]
    weft: Option<PathBuf>,
    /// Test only this transport.
    #[arg(long)]
    transport: Option<TransportName>,
    /// What the targets stand on.
    #[arg(long, default_value = "temp")]
    base: BaseKind,
    /// Run a test that fails once more, and count it as passed if it passes then; it is named at the end.
    #[arg(long)]
    again: bool,
    #[command(flatten)]
    form: Form,
}

/// How long tests are, and which part of them runs.
#[derive(clap::Args, Clone, Debug)]
pub struct Form {
    /// The long form: more rounds, more seeds, full sizes.
    #[arg(long)]
    pub full: bool,
    /// Begin tests of many rounds or seeds with this one.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub from: u64,
    /// Run so many rounds or seeds of them.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: Option<u64>,
    /// Keep the services' logs and the histories of tests that fail in this folder.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

impl Default for Form {
    fn default() -> Form {
        Form { full: false, from: 1, rounds: None, keep: None }
    }
}

/// What targets stand on.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BaseKind {
    /// The folder for temporary files.
    #[default]
    Temp,
    /// An XFS on a loop device over a file in the folder for temporary files.
    Xfs,
}

/// A transport on the command line.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum TransportName {
    Uring,
    Dev,
}

impl Options {
    /// All tests in their short or long form.
    pub fn everything(form: Form) -> Options {
        Options { form, again: true, ..Options::default() }
    }

    fn selects(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }
}

/// What a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// A folder on a mounted file system; run on every transport.
    Mounted,
    /// Starts a weft of its own, or several; run once.
    Own,
}

/// One test.
struct TestCase {
    name: &'static str,
    scope: Scope,
    /// Deadline of the short form, minutes; the long form has ten times as long.
    minutes: u64,
    run: fn(&Stage) -> TestResult,
}

const TABLES: &[&[TestCase]] = &[
    links::TESTS,
    metadata::TESTS,
    data::TESTS,
    locks::TESTS,
    directories::TESTS,
    programs::TESTS,
    suites::TESTS,
    lifecycle::TESTS,
    moves::TESTS,
    refusals::TESTS,
    load::TESTS,
    backups::TESTS,
    faults::TESTS,
    crash::TESTS,
    coherence::TESTS,
    netns::TESTS,
    cluster::TESTS,
    machines::TESTS,
    machines::HANG_TESTS,
    machines::KILL_TESTS,
    machines::FSCK_TESTS,
    machines::TWICE_TESTS,
    machines::EVICTION_TESTS,
    machines::EXPORT_TESTS,
    machines::MIGRATE_TESTS,
    machines::MIRROR_TESTS,
    machines::RACK_TESTS,
    machines::CEILING_TESTS,
    machines::TOGETHER_TESTS,
    machines::THROUGH_TESTS,
    machines::SCRUB_TESTS,
    machines::DISK_TESTS,
    machines::POWER_TESTS,
    machines::PROMISE_TESTS,
    machines::BEHIND_TESTS,
    machines::RANGE_TESTS,
];

/// Runs the suite and prints the totals last.
pub fn run(options: &Options) -> Result<(), String> {
    if options.list {
        TABLES.iter().flat_map(|table| *table).for_each(|test| println!("{}", test.name));
        return Ok(());
    }
    let summary = run_suite(options)?;
    summary.print();
    match summary {
        Summary { failed: 0, passed: 0, .. } => Err("no test passed; see cargo xtask e2e --list".to_string()),
        Summary { failed: 0, .. } => Ok(()),
        Summary { failed, .. } => Err(format!("{failed} tests failed")),
    }
}

/// Runs the suite, for a caller that has totals of its own to add.
pub fn run_suite(options: &Options) -> Result<Summary, String> {
    let subjects = subjects(options)?;
    cleanup::on_interrupt()?;
    let mut summary = Summary::default();
    for (place, subject) in subjects.into_iter().enumerate() {
        summary += run_on(subject, place == 0, options);
    }
    cleanup::release_all();
    Ok(summary)
}

/// What to test, in order.
fn subjects(options: &Options) -> Result<Vec<Subject>, String> {
    if let Some(path) = &options.on {
        let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
        return Ok(vec![Subject::Directory(path)]);
    }
    let binary = match &options.weft {
        Some(path) => path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?,
        None => build::weft(false)?,
    };
    let transports = match options.transport {
        None => vec![Transport::Uring, Transport::Dev],
        Some(TransportName::Uring) => vec![Transport::Uring],
        Some(TransportName::Dev) => vec![Transport::Dev],
    };
    Ok(transports.into_iter().map(|transport| Subject::Weft { binary: binary.clone(), transport }).collect())
}

/// Runs all selected tests on one subject; those with a weft of their own only on the first.
fn run_on(subject: Subject, first: bool, options: &Options) -> Summary {
    let mut report = Report { subject: subject.name().to_string(), summary: Summary::default() };
    let stage = match Stage::new(subject, options.base, options.form.clone()) {
        Ok(stage) => Arc::new(stage),
        Err(failure) => {
            report.add("stage", Duration::ZERO, Err(failure));
            return report.summary;
        }
    };
    for test in TABLES.iter().flat_map(|table| *table) {
        if options.selects(test.name) && (first || test.scope == Scope::Mounted) {
            report.run(&stage, test, options.again);
        }
    }
    if stage.binary().is_ok() {
        let start = Instant::now();
        let result = guarded(|| stage.close());
        // Not a test of its own where nothing was mounted.
        if !matches!(result, Err(Failure::Skipped(_))) {
            report.add("clean_after_all", start.elapsed(), result);
        }
    }
    report.summary
}

/// Runs one test, and keeps what explains its failure.
fn attempt(stage: &Arc<Stage>, test: &'static TestCase) -> TestResult {
    let result = match (test.scope, stage.binary()) {
        (Scope::Own, Err(failure)) => Err(failure),
        _ => run_test(stage, test),
    };
    let result = result.map_err(|failure| kept(stage, test, failure));
    stage.tidy();
    result
}

/// Whether a test compares data or histories: one wrong answer of a file system is one too many, however rarely it comes.
fn is_final(test: &TestCase) -> bool {
    let parts = ["history", "under_load", "fsx", "fio", "sqlite", "migrate", "mends", "mended"];
    parts.iter().any(|part| test.name.contains(part))
}

/// Keeps what explains a failure, if that was asked for.
fn kept(stage: &Stage, test: &TestCase, failure: Failure) -> Failure {
    match failure {
        Failure::Failed(message) => match stage.keep(test.name) {
            Ok(()) => Failure::Failed(message),
            Err(other) => Failure::Failed(format!("{message}\n    its logs can't be kept: {other:?}")),
        },
        skipped => skipped,
    }
}

/// Runs one test in a thread of its own and sees to its deadline.
fn run_test(stage: &Arc<Stage>, test: &'static TestCase) -> TestResult {
    let deadline = Duration::from_secs(60 * test.minutes * if stage.full { 10 } else { 1 });
    let on = Arc::clone(stage);
    let thread = thread::spawn(move || guarded(|| (test.run)(&on)));
    if finished_within(&thread, deadline) {
        return thread.join().unwrap_or_else(|_| Err(Failure::Failed("panicked".to_string())));
    }
    // Now everybody who waits for the file system gets an error, the test's thread too.
    cleanup::abort_mounts();
    let ended = finished_within(&thread, ABORT_GRACE);
    stage.abandon();
    let rest = if ended { "" } else { ", not even after its mount was aborted" };
    Err(Failure::Failed(format!("no end within {} s{rest}", deadline.as_secs())))
}

fn finished_within<T>(thread: &thread::JoinHandle<T>, deadline: Duration) -> bool {
    crate::process::eventually(deadline, || thread.is_finished())
}

/// Turns a panic into a failure.
fn guarded(run: impl FnOnce() -> TestResult) -> TestResult {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
        Err(Failure::Failed(format!("panicked: {}", text.unwrap_or("for no stated reason"))))
    })
}

/// Prints results as they come and counts them.
struct Report {
    subject: String,
    summary: Summary,
}

impl Report {
    /// Runs a test; once more if it fails and that is granted, for what fails by chance on a machine that stood still. It is named then.
    fn run(&mut self, stage: &Arc<Stage>, test: &'static TestCase, again: bool) {
        let start = Instant::now();
        let result = attempt(stage, test);
        let Err(Failure::Failed(message)) = &result else {
            return self.add(test.name, start.elapsed(), result);
        };
        if !again || is_final(test) || !self.summary.grants_again() {
            return self.add(test.name, start.elapsed(), result);
        }
        self.tell(test.name, "FAILED, runs again", start.elapsed(), message);
        let start = Instant::now();
        match attempt(stage, test) {
            Ok(()) => {
                self.tell(test.name, "ok when run again", start.elapsed(), "");
                self.summary.pass_again(&format!("e2e {} [{}]", test.name, self.subject), message);
            }
            result => self.add(test.name, start.elapsed(), result),
        }
    }

    fn tell(&self, name: &str, word: &str, took: Duration, message: &str) {
        let message: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
        let colon = if message.is_empty() { "" } else { ": " };
        println!("e2e {name} [{}] {word} ({:.1} s){colon}{message}", self.subject, took.as_secs_f64());
    }

    fn add(&mut self, name: &str, took: Duration, result: TestResult) {
        let (word, message) = match &result {
            Ok(()) => ("ok", ""),
            Err(Failure::Skipped(reason)) => ("skipped", &**reason),
            Err(Failure::Failed(message)) => ("FAILED", &**message),
        };
        self.tell(name, word, took, message);
        match result {
            Ok(()) => self.summary.passed += 1,
            Err(Failure::Skipped(_)) => self.summary.skipped += 1,
            Err(Failure::Failed(message)) => {
                self.summary.fail(&format!("e2e {name} [{}]", self.subject), &message)
            }
        }
    }
}

/// Whether a weft is mounted at this path.
pub fn is_mounted(path: &std::path::Path) -> bool {
    path.canonicalize().is_ok_and(|path| mounts::is_weft(&path))
}
