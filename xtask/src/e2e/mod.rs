//! The end-to-end suite: a real, mounted weft under real programs, crashes and faults.
//!
//! Every test is a named function in one of the modules' `TESTS` tables. Tests of scope
//! [`Scope::Mounted`] share one running file system per transport; those of scope [`Scope::Own`]
//! start their own. Each has a deadline, after which the kernel's connection is aborted, so that a
//! hung mount fails only its test. Several processes run tests concurrently ([`jobs`] distributes
//! them, [`worker`] runs them), each in its own network namespace. `--on DIR` runs the tests that
//! need only POSIX on any directory: a failure there is a bug in the test.

mod backups;
pub mod cleanup;
mod cluster;
mod coherence;
mod content;
mod crash;
mod data;
mod directories;
pub mod disk;
mod documents;
mod faults;
mod flags;
mod jobs;
mod lifecycle;
mod links;
mod load;
mod locks;
mod machines;
mod metadata;
mod migrations;
mod mounts;
mod netns;
mod outcome;
mod programs;
mod refusals;
mod rig;
mod stage;
mod suites;
mod target_ownership;
mod tools;
mod trees;
mod worker;

pub use content::{Content, Rng};
pub use machines::{Cluster, Part};
pub use netns::Traffic;
pub use outcome::{Failure, TestResult};
pub use stage::{Stage, Subject};

use crate::summary::Summary;
use crate::timing::Timing;
use crate::{build, interrupt, sys};
use rig::Transport;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of `cargo xtask e2e`.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Run only tests whose name contains one of these.
    names: Vec<String>,
    /// List the tests without running them.
    #[arg(long)]
    list: bool,
    /// Run on an ordinary directory instead of weft.
    #[arg(long, value_name = "DIR")]
    on: Option<PathBuf>,
    /// Test this binary instead of building one.
    #[arg(long, value_name = "PATH")]
    weft: Option<PathBuf>,
    /// Test only this transport.
    #[arg(long)]
    transport: Option<TransportName>,
    /// File system below the targets.
    #[arg(long, default_value = "temp")]
    base: BaseKind,
    /// Repeat a failed test once, alone, and count it as passed if it passes then; it is named at
    /// the end.
    #[arg(long)]
    again: bool,
    /// Number of concurrent tests.
    #[arg(long, value_name = "COUNT", default_value_t = SIDE_BY_SIDE, value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
    /// Run only the tests of exactly these names in this process, and write the results to this
    /// file.
    #[arg(long, value_name = "FILE", hide = true)]
    worker: Option<PathBuf>,
    #[command(flatten)]
    form: Form,
}

/// Length of the tests, and the rounds to run.
#[derive(clap::Args, Clone, Debug)]
pub struct Form {
    /// The long form: more rounds, more seeds, full sizes.
    #[arg(long)]
    pub full: bool,
    /// First round or seed of tests that have many.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub from: u64,
    /// Number of rounds or seeds to run.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: Option<u64>,
    /// Folder for the services' logs and the histories of failed tests.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

impl Default for Form {
    fn default() -> Form {
        Form { full: false, from: 1, rounds: None, keep: None }
    }
}

/// The file system below the targets.
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
    /// Returns options for all tests in their short or long form.
    pub fn everything(form: Form) -> Options {
        Options {
            names: Vec::new(),
            list: false,
            on: None,
            weft: None,
            transport: None,
            base: BaseKind::default(),
            again: true,
            jobs: SIDE_BY_SIDE,
            worker: None,
            form,
        }
    }

    fn selects(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    fn selected(&self) -> Vec<&'static TestCase> {
        all().filter(|test| self.selects(test.name)).collect()
    }
}

/// Number of concurrent tests on two cores: most of them mostly wait.
const SIDE_BY_SIDE: u8 = 4;

/// The environment that a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// A folder on a mounted file system; the test runs on every transport.
    Mounted,
    /// Starts one or several wefts itself; the test runs once.
    Own,
}

/// One test.
struct TestCase {
    name: &'static str,
    scope: Scope,
    /// Deadline of the short form in minutes; the long form has ten times as much.
    minutes: u64,
    run: fn(&Stage) -> TestResult,
}

impl TestCase {
    fn deadline(&self, is_full: bool) -> Duration {
        Duration::from_secs(60 * self.minutes * if is_full { 10 } else { 1 })
    }
}

const TABLES: &[&[TestCase]] = &[
    links::TESTS,
    metadata::TESTS,
    flags::TESTS,
    data::TESTS,
    locks::TESTS,
    directories::TESTS,
    trees::TESTS,
    programs::TESTS,
    suites::TESTS,
    lifecycle::TESTS,
    migrations::TESTS,
    refusals::TESTS,
    load::TESTS,
    backups::TESTS,
    faults::TESTS,
    crash::TESTS,
    coherence::TESTS,
    netns::TESTS,
    cluster::TESTS,
    target_ownership::TESTS,
    machines::TESTS,
    machines::HANG_TESTS,
    machines::KILL_TESTS,
    machines::FSCK_TESTS,
    machines::TWICE_TESTS,
    machines::EVICTION_TESTS,
    machines::CLIENT_TESTS,
    machines::EXPORT_TESTS,
    machines::MIGRATE_TESTS,
    machines::MIRROR_TESTS,
    machines::NAMESPACE_TESTS,
    machines::RACK_TESTS,
    machines::CEILING_TESTS,
    machines::TOGETHER_TESTS,
    machines::THROUGH_TESTS,
    machines::REMOVAL_TESTS,
    machines::SCRUB_TESTS,
    machines::DISK_TESTS,
    machines::UNMOUNT_TESTS,
    machines::POWER_TESTS,
    machines::PROMISE_TESTS,
    machines::BEHIND_TESTS,
    machines::MAPPED_TESTS,
    machines::IDMAPPED_TESTS,
    machines::RANGE_TESTS,
    machines::ADDRESS_TESTS,
    documents::TESTS,
];

/// Returns all tests.
fn all() -> impl Iterator<Item = &'static TestCase> {
    TABLES.iter().flat_map(|table| *table)
}

/// Runs the suite and prints the totals last.
pub fn run(options: &Options) -> Result<(), String> {
    if options.list {
        all().for_each(|test| println!("{}", test.name));
        return Ok(());
    }
    if let Some(results) = &options.worker {
        return worker::run(options, results);
    }
    if options.on.is_none() {
        interrupt::watch(|| {})?;
    }
    let (summary, timing) = run_suite(options)?;
    println!("{timing}");
    summary.print();
    match summary {
        Summary { failed: 0, passed: 0, skipped: 0, .. } => {
            Err("no test has such a name; see cargo xtask e2e --list".to_string())
        }
        Summary { failed: 0, .. } => Ok(()),
        Summary { failed, .. } => Err(format!("{failed} tests failed")),
    }
}

/// Runs the suite, for a caller that adds other totals.
pub fn run_suite(options: &Options) -> Result<(Summary, Timing), String> {
    let tests = options.selected();
    if let Some(path) = &options.on {
        let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
        return Ok((worker::run_here(Subject::Directory(path), &tests, options)?, Timing::default()));
    }
    if let Err(reason) = obstacle() {
        println!("e2e: {} tests skipped: {reason}", tests.len());
        return Ok((Summary { skipped: tests.len() as u64, ..Summary::default() }, Timing::default()));
    }
    let binary = match &options.weft {
        Some(path) => path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?,
        None => build::weft(false)?,
    };
    jobs::run(&binary, &tests, options)
}

/// Minimum memory for concurrent tests of whole clusters, in bytes.
const MEMORY_BYTES: u64 = 3 << 30;

/// Returns an error with the reason if weft can't be mounted and tested here.
fn obstacle() -> Result<(), String> {
    if !sys::is_root() {
        return Err("mounting needs root; hint: run it with sudo".to_string());
    }
    if !Path::new("/dev/fuse").exists() {
        let hint = "modprobe fuse, or run the container with --device /dev/fuse";
        return Err(format!("there is no /dev/fuse; hint: {hint}"));
    }
    // In a separate thread, which nothing else uses.
    let left = std::thread::spawn(sys::unshare_network).join().expect("the call doesn't panic");
    left.map_err(|error| {
        format!("no network namespace can be made: {error}; hint: a container needs --privileged")
    })?;
    let free = sys::available_memory().map_err(|error| format!("/proc/meminfo: {error}"))?;
    if free < MEMORY_BYTES {
        return Err(format!("{} MiB of memory are available, {} are needed", free >> 20, MEMORY_BYTES >> 20));
    }
    Ok(())
}

/// Returns the transports to test, in order; tests that start their own weft use the first.
fn transports(options: &Options) -> Vec<Transport> {
    match options.transport {
        None => vec![Transport::Uring, Transport::Dev],
        Some(TransportName::Uring) => vec![Transport::Uring],
        Some(TransportName::Dev) => vec![Transport::Dev],
    }
}

/// Returns whether a weft is mounted at this path.
pub fn is_mounted(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| mounts::is_weft(&path))
}
