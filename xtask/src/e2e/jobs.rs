//! Distributes the tests over concurrent processes, and repeats failed tests alone.

use super::rig::Transport;
use super::tools;
use super::worker::{Outcome, TestReport};
use super::{BaseKind, Options, Scope, TestCase, transports};
use crate::interrupt::{self, CLEANUP_DEADLINE, StopMode};
use crate::summary::Summary;
use crate::timing::Timing;
use crate::{pool, process, sys};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time granted to a process beyond the deadlines of all its tests: it also starts, stops and
/// checks a file system.
const GRACE: Duration = Duration::from_secs(5 * 60);

/// Tests that one process runs sequentially, all on one transport.
struct Job {
    tests: Vec<&'static TestCase>,
    transport: Transport,
}

/// Parameters common to all jobs.
struct Plan<'a> {
    binary: &'a Path,
    options: &'a Options,
}

/// Runs all given tests with this binary.
pub fn run(
    binary: &Path,
    tests: &[&'static TestCase],
    options: &Options,
) -> Result<(Summary, Timing), String> {
    let mut timing = Timing::default();
    let start = Instant::now();
    // Installed first, since the tests' network namespaces don't reach a registry.
    tools::install();
    timing.add("programs that the end-to-end tests use", start.elapsed(), Vec::new());

    let start = Instant::now();
    let plan = Plan { binary, options };
    let (mut summary, mut failed, mut parts) = (Summary::default(), Vec::new(), Vec::new());
    pool::run(
        jobs(tests, options),
        options.jobs.into(),
        |job| (plan.run_job(&job), job),
        |(reports, job)| {
            for report in reports {
                parts.push((format!("{} [{}]", report.name, report.subject), report.took));
                match (&report.outcome, job.tests.iter().find(|test| test.name == report.name)) {
                    (Outcome::Failed(message), Some(test)) if options.again && !is_never_retried(test) => {
                        failed.push((Job { tests: vec![test], ..job }, message.clone()));
                    }
                    _ => report.count(&mut summary),
                }
            }
        },
    );
    for (job, message) in failed {
        plan.retry_job(&job, &message, &mut summary);
    }
    timing.add("end-to-end tests", start.elapsed(), parts);
    Ok((summary, timing))
}

/// Creates one job per transport for all tests of a mounted file system, and one job for every
/// other test. The longest come first.
fn jobs(tests: &[&'static TestCase], options: &Options) -> Vec<Job> {
    let transports = transports(options);
    let (mounted, mut own): (Vec<&'static TestCase>, Vec<_>) =
        tests.iter().copied().partition(|test| test.scope == Scope::Mounted);
    own.sort_by_key(|test: &&TestCase| std::cmp::Reverse(test.minutes));
    let shared = transports.iter().map(|transport| Job { tests: mounted.clone(), transport: *transport });
    let own = own.into_iter().map(|test| Job { tests: vec![test], transport: transports[0] });
    shared.chain(own).filter(|job| !job.tests.is_empty()).collect()
}

/// Returns whether a test compares data or histories. Such a test isn't repeated: a single wrong
/// result of a file system is a failure, however rare.
fn is_never_retried(test: &TestCase) -> bool {
    let parts = ["history", "under_load", "fsx", "fio", "sqlite", "migrate", "repairs", "repaired"];
    parts.iter().any(|part| test.name.contains(part))
}

impl Plan<'_> {
    /// Runs a job in a separate process. Returns the results of its tests.
    fn run_job(&self, job: &Job) -> Vec<TestReport> {
        let start = Instant::now();
        let (mut reports, error) = match self.results_of(job) {
            Ok((reports, error)) => (reports, error),
            Err(error) => (Vec::new(), Some(error)),
        };
        let cause = error.unwrap_or_else(|| "its process ended without a result".to_string());
        for test in &job.tests {
            if !reports.iter().any(|report| report.name == test.name) {
                let (name, subject) = (test.name.to_string(), job.transport.name().to_string());
                let outcome = Outcome::Failed(cause.clone());
                let report = TestReport { name, subject, outcome, took: start.elapsed() };
                report.print();
                reports.push(report);
            }
        }
        reports
    }

    /// Returns the results that a job's process has written, and the failure of the process itself,
    /// if any.
    fn results_of(&self, job: &Job) -> Result<(Vec<TestReport>, Option<String>), String> {
        let file = tempfile::NamedTempFile::new().map_err(|error| format!("no file for results: {error}"))?;
        let full = self.options.form.full;
        let deadline: Duration = job.tests.iter().map(|test| test.deadline(full)).sum();
        let ended = follow(&mut self.command(job, file.path()), deadline + GRACE);
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        Ok((text.lines().filter_map(TestReport::from_json).collect(), ended.err()))
    }

    fn command(&self, job: &Job, results: &Path) -> Command {
        let form = &self.options.form;
        let mut command = Command::new(process::this_program());
        command.arg("e2e").args(job.tests.iter().map(|test| test.name));
        command.arg("--worker").arg(results).arg("--weft").arg(self.binary);
        command.args(["--transport", job.transport.name(), "--from", &form.from.to_string()]);
        command.args(["--base", if self.options.base == BaseKind::Xfs { "xfs" } else { "temp" }]);
        if form.full {
            command.arg("--full");
        }
        if let Some(rounds) = form.rounds {
            command.args(["--rounds", &rounds.to_string()]);
        }
        if let Some(keep) = &form.keep {
            command.arg("--keep").arg(keep);
        }
        command
    }

    /// Repeats a failed test alone: on a stalled machine a test may fail by chance. A test that
    /// then passes is reported as flaky.
    fn retry_job(&self, job: &Job, message: &str, summary: &mut Summary) {
        let name = format!("e2e {} [{}]", job.tests[0].name, job.transport.name());
        if !summary.permits_retry() {
            return summary.fail(&name, message);
        }
        println!("{name} failed; retrying it alone");
        for report in self.run_job(job) {
            match report.outcome {
                Outcome::Passed if report.name == job.tests[0].name => summary.pass_on_retry(&name, message),
                _ => report.count(summary),
            }
        }
    }
}

/// Runs a worker and forwards its output as it arrives. Returns an error with its status unless it
/// succeeded.
fn follow(command: &mut Command, deadline: Duration) -> Result<(), String> {
    let failed = |error| format!("cannot start a process for tests: {error}");
    let (output, input) = std::io::pipe().map_err(failed)?;
    let errors = input.try_clone().map_err(failed)?;
    sys::end_with_parent(command);
    command.stdin(Stdio::null()).stdout(input).stderr(errors);
    let mut child = interrupt::spawn(command, StopMode::Terminate).map_err(failed)?;
    // The command holds ends of the pipe, and the output ends only when all are closed.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let printing = thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).for_each(|line| println!("{line}"));
    });
    let ended = end_of(&mut child, deadline);
    interrupt::ended(&child);
    // Children of a worker that had to be killed may still hold the pipe. Its output until then has
    // been printed.
    if ended.is_ok() {
        drop(printing.join());
    }
    ended
}

fn end_of(child: &mut Child, deadline: Duration) -> Result<(), String> {
    let failed = |error| format!("cannot wait for a process of tests: {error}");
    if let Some(status) = process::wait(child, deadline).map_err(failed)? {
        return if status.success() { Ok(()) } else { Err(format!("its process ended with {status}")) };
    }
    drop(sys::kill(child.id() as i32, libc::SIGTERM));
    if process::wait(child, CLEANUP_DEADLINE).map_err(failed)?.is_none() {
        drop(child.kill());
        drop(child.wait());
    }
    Err(format!("its process did not end within {} s", deadline.as_secs()))
}
