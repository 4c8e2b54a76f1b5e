//! Runs tests sequentially in this process, each with its deadline, and reports the results.

use super::outcome::{Failure, TestResult};
use super::stage::{Stage, Subject};
use super::{Options, Scope, TestCase, all, cleanup, transports};
use crate::summary::Summary;
use crate::{process, sys};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that a test may continue after the file system under it was aborted.
const ABORT_GRACE: Duration = Duration::from_secs(60);

/// Deadline of a call of `ip`.
const IP_DEADLINE: Duration = Duration::from_secs(60);

/// Maximum length of a failure's message, in characters: enough to identify the failure, but not a
/// whole listing.
const MAX_MESSAGE_CHARS: usize = 3000;

/// Outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The test passed.
    Passed,
    /// The test can't run here, with the reason.
    Skipped(String),
    /// The test failed, with the message.
    Failed(String),
}

/// The result of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestReport {
    /// Name of the test.
    pub name: String,
    /// The tested transport.
    pub subject: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Duration of the test.
    pub took: Duration,
}

impl TestReport {
    /// Formats the result as a line of the file in which a worker reports.
    fn to_json(&self) -> Value {
        let (word, message) = match &self.outcome {
            Outcome::Passed => ("passed", ""),
            Outcome::Skipped(reason) => ("skipped", &**reason),
            Outcome::Failed(message) => ("failed", &**message),
        };
        json!({"name": self.name, "subject": self.subject, "outcome": word, "message": message,
               "milliseconds": self.took.as_millis() as u64})
    }

    /// Parses such a line; `None` if it is invalid.
    pub fn from_json(line: &str) -> Option<TestReport> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |field: &str| value[field].as_str().map(str::to_string);
        let message = text("message")?;
        let outcome = match value["outcome"].as_str()? {
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped(message),
            _ => Outcome::Failed(message),
        };
        let took = Duration::from_millis(value["milliseconds"].as_u64()?);
        Some(TestReport { name: text("name")?, subject: text("subject")?, outcome, took })
    }

    /// Prints the result in one line.
    pub fn print(&self) {
        let (word, message) = match &self.outcome {
            Outcome::Passed => ("ok", String::new()),
            Outcome::Skipped(reason) => ("skipped", format!(": {reason}")),
            Outcome::Failed(message) => {
                ("FAILED", format!(": {}", message.chars().take(MAX_MESSAGE_CHARS).collect::<String>()))
            }
        };
        println!("e2e {} [{}] {word} ({:.1} s){message}", self.name, self.subject, self.took.as_secs_f64());
    }

    /// Adds the result to the totals.
    pub fn count(&self, summary: &mut Summary) {
        match &self.outcome {
            Outcome::Passed => summary.passed += 1,
            Outcome::Skipped(_) => summary.skipped += 1,
            Outcome::Failed(message) => {
                summary.fail(&format!("e2e {} [{}]", self.name, self.subject), message)
            }
        }
    }
}

/// Runs the tests of exactly the names in `options` as a worker process: in its own network
/// namespace, so that its ports are free, and with a complete cleanup at its end.
pub fn run(options: &Options, results: &Path) -> Result<(), String> {
    sys::unshare_network().map_err(|error| format!("cannot make a network namespace: {error}"))?;
    process::run_ok(Command::new("ip").args(["link", "set", "lo", "up"]), IP_DEADLINE)?;
    let binary = options.weft.clone().ok_or("a worker needs a binary")?;
    let [transport] = transports(options)[..] else { return Err("a worker tests one transport".to_string()) };
    let tests: Vec<&TestCase> =
        all().filter(|test| options.names.iter().any(|name| name == test.name)).collect();
    let mut file = File::options()
        .append(true)
        .open(results)
        .map_err(|error| format!("{}: {error}", results.display()))?;
    let mut written = Ok(());
    run_all(Subject::Weft { binary, transport }, &tests, options, |verdict| {
        verdict.print();
        written = written.as_ref().map_err(Clone::clone).and_then(|()| {
            writeln!(file, "{}", verdict.to_json()).map_err(|error| format!("{}: {error}", results.display()))
        });
    })?;
    written
}

/// Runs tests in this process and counts their results.
pub fn run_here(subject: Subject, tests: &[&'static TestCase], options: &Options) -> Result<Summary, String> {
    let mut summary = Summary::default();
    run_all(subject, tests, options, |verdict| {
        verdict.print();
        verdict.count(&mut summary);
    })?;
    Ok(summary)
}

/// Runs tests sequentially on one stage, then checks the file system that they leave.
fn run_all(
    subject: Subject,
    tests: &[&'static TestCase],
    options: &Options,
    mut report: impl FnMut(TestReport),
) -> Result<(), String> {
    cleanup::on_interrupt()?;
    let name = subject.name().to_string();
    let mut add = |test: &str, start: Instant, result: TestResult| {
        let outcome = match result {
            Ok(()) => Outcome::Passed,
            Err(Failure::Skipped(reason)) => Outcome::Skipped(reason),
            Err(Failure::Failed(message)) => Outcome::Failed(message),
        };
        report(TestReport { name: test.to_string(), subject: name.clone(), outcome, took: start.elapsed() });
    };
    match Stage::new(subject, options.base, options.form.clone()) {
        Err(failure) => tests.iter().for_each(|test| add(test.name, Instant::now(), Err(failure.clone()))),
        Ok(stage) => {
            let stage = Arc::new(stage);
            for test in tests {
                let start = Instant::now();
                add(test.name, start, attempt(&stage, test));
            }
            let start = Instant::now();
            let closed = if stage.binary().is_ok() { catch_panic(|| stage.close()) } else { Ok(()) };
            // This isn't a separate test if nothing was mounted.
            if stage.binary().is_ok() && !matches!(closed, Err(Failure::Skipped(_))) {
                add("clean_after_all", start, closed);
            }
        }
    }
    cleanup::release_all();
    Ok(())
}

/// Runs one test, and preserves evidence of a failure.
fn attempt(stage: &Arc<Stage>, test: &'static TestCase) -> TestResult {
    let result = match (test.scope, stage.binary()) {
        (Scope::Own, Err(failure)) => Err(failure),
        _ => run_test(stage, test),
    };
    let result = result.map_err(|failure| with_evidence(stage, test, failure));
    stage.remove_test_folders();
    result
}

/// Preserves evidence of a failure, if requested.
fn with_evidence(stage: &Stage, test: &TestCase, failure: Failure) -> Failure {
    match failure {
        Failure::Failed(message) => match stage.save_evidence(test.name) {
            Ok(()) => Failure::Failed(message),
            Err(other) => Failure::Failed(format!("{message}\n    cannot save its logs: {other:?}")),
        },
        skipped => skipped,
    }
}

/// Runs one test in a separate thread and enforces its deadline.
fn run_test(stage: &Arc<Stage>, test: &'static TestCase) -> TestResult {
    let deadline = test.deadline(stage.full);
    let on = Arc::clone(stage);
    let thread = thread::spawn(move || catch_panic(|| (test.run)(&on)));
    if finished_within(&thread, deadline) {
        return thread.join().unwrap_or_else(|_| Err(Failure::Failed("panicked".to_string())));
    }
    // After this, all callers that wait for the file system get an error, including the test's
    // thread.
    cleanup::abort_mounts();
    let ended = finished_within(&thread, ABORT_GRACE);
    stage.kill_shared();
    let rest = if ended { "" } else { ", even after its mount was aborted" };
    Err(Failure::Failed(format!("did not end within {} s{rest}", deadline.as_secs())))
}

fn finished_within<T>(thread: &thread::JoinHandle<T>, deadline: Duration) -> bool {
    process::eventually(deadline, || thread.is_finished())
}

/// Converts a panic to a failure.
fn catch_panic(run: impl FnOnce() -> TestResult) -> TestResult {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
        Err(Failure::Failed(format!("panicked: {}", text.unwrap_or("for no stated reason"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_way_to_another_process() {
        for outcome in
            [Outcome::Passed, Outcome::Skipped("no \"disk\"".into()), Outcome::Failed("a\nb".into())]
        {
            let verdict = TestReport {
                name: "fsx".into(),
                subject: "uring".into(),
                outcome,
                took: Duration::from_millis(1500),
            };
            let line = verdict.to_json().to_string();
            assert!(!line.contains('\n'));
            assert_eq!(TestReport::from_json(&line), Some(verdict));
        }
        assert_eq!(TestReport::from_json("e2e fsx [uring] ok"), None);
    }
}
