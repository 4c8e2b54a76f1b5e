//! Histories of applications on several mounts, recorded under load, must be linearizable.

use super::cleanup::{self, Resource};
use super::outcome::{At, Failure, TestResult, ensure, ensure_eq};
use super::stage::{Stage, Subject};
use super::{Scope, TestCase};
use crate::history::{self, Mix, Outcome};
use crate::process;
use ::history::{Limits, Record, Report, judge};
use clap::ValueEnum;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub(super) const TESTS: &[TestCase] = &[TestCase {
    name: "history_of_one_mount",
    scope: Scope::Mounted,
    minutes: 3,
    run: history_of_one_mount,
}];

/// Duration of the load in seconds, in the short and the long form.
const SECONDS: (u64, u64) = (3, 60);

/// Seconds granted to calls in flight at the end of the load; after that a call counts as one that
/// never returns.
const GRACE_SECONDS: u64 = 90;

/// Minimum number of calls of a load, however long they take: with fewer, too little concurrency
/// occurs.
pub const MIN_CALLS: u64 = 1500;

/// Calls for which one read of a log may find zeros at first; see `Worker::read_log`. A busy machine
/// has had one in 80,000.
const CALLS_PER_ZERO_READ: u64 = 20_000;

/// Additional time for reading everything again and writing the history.
const END_DEADLINE: Duration = Duration::from_secs(60);

/// Longest time in which a mount makes some hundred calls despite conflicts with others: longer
/// than a session's time-out on a busy machine.
const CALLS_DEADLINE: Duration = Duration::from_secs(120);

/// A load in a separate process.
pub struct Load {
    child: Child,
    out: PathBuf,
    seconds: u64,
}

/// Parameters of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// Threads per mount.
    pub threads: u32,
    /// Minimum duration in seconds; the load continues until [`Load::finish`] is called.
    pub seconds: u64,
    /// Seed of the operations.
    pub seed: u64,
    /// Which ways of opening files are combined.
    pub mix: Mix,
    /// Whether sessions end during the load.
    pub sessions_end: bool,
}

impl Load {
    /// Starts a load on a folder visible through several mounts; the history is written to a folder
    /// outside of them.
    pub fn start(folders: &[PathBuf], outside: &Path, plan: LoadPlan) -> TestResult<Load> {
        let out = outside.join(format!("history-{}.jsonl", plan.seed));
        let mut command = Command::new(process::this_program());
        command.args(["history", "load", "--until-told"]).arg("--out").arg(&out);
        for folder in folders {
            command.arg("--mount").arg(folder);
        }
        command.args(["--mix", plan.mix.to_possible_value().expect("none is hidden").get_name()]);
        if plan.sessions_end {
            command.arg("--sync-names");
        }
        for (option, value) in [
            ("--threads", u64::from(plan.threads)),
            ("--seconds", plan.seconds),
            ("--calls", MIN_CALLS),
            ("--seed", plan.seed),
            ("--grace", GRACE_SECONDS),
        ] {
            command.args([option, &value.to_string()]);
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let child = child.at("the load")?;
        cleanup::register(Resource::Process(child.id() as i32));
        Ok(Load { child, out, seconds: plan.seconds })
    }

    /// Returns the number of calls of a mount recorded so far that succeeded.
    pub fn calls_of(&self, client: u32) -> TestResult<usize> {
        let is_counted = |record: &Record| record.client == client && record.returned_ns.is_some();
        Ok(history::read(&self.out)?.iter().filter(|record| is_counted(record)).count())
    }

    /// Waits until a mount has made `more` further calls.
    pub fn wait_for_calls(&self, client: u32, more: usize) -> TestResult {
        let enough = self.calls_of(client)? + more;
        let end = Instant::now() + CALLS_DEADLINE;
        while self.calls_of(client)? < enough {
            ensure!(
                Instant::now() < end,
                "mount {client} makes no progress: {} calls",
                self.calls_of(client)?
            );
            // Each check reads the whole record.
            thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Stops the load, waits for its end, and checks its history.
    pub fn finish(mut self, limits: Limits) -> TestResult<(Outcome, Report)> {
        drop(self.child.stdin.take());
        // The grace period applies twice: to reach the minimum number of calls, and to the last
        // calls.
        let deadline = Duration::from_secs(self.seconds + 2 * GRACE_SECONDS) + END_DEADLINE;
        let Some(status) = process::wait(&mut self.child, deadline).at("the load")? else {
            return Err(format!("the load is still running after {} s", deadline.as_secs()).into());
        };
        let mut said = String::new();
        let mut stdout = self.child.stdout.take().expect("standard output was asked to be a pipe");
        stdout.read_to_string(&mut said).at("the load's answer")?;
        let outcome = Outcome::parse(&said)
            .ok_or_else(|| Failure::Failed(format!("the load ended with {status} and said {said:?}")))?;
        let report = judge(&history::read(&self.out)?, limits);
        let max_zero_reads = 1 + outcome.calls / CALLS_PER_ZERO_READ;
        ensure!(
            outcome.zero_reads <= max_zero_reads,
            "more than {max_zero_reads} reads of a log found zeros at first: {outcome:?}"
        );
        Ok((outcome, report))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(process::wait(&mut self.child, Duration::from_secs(10)));
        cleanup::unregister(&Resource::Process(self.child.id() as i32));
    }
}

/// Checks that the history is coherent and not trivial.
pub fn ensure_coherent(report: &Report) -> TestResult {
    ensure!(report.is_linearizable(), "{report}");
    ensure!(report.concurrent >= 100, "too little concurrency: {report}");
    Ok(())
}

/// Uses one mount as if it were two: tests the kernel's caches and concurrent paths through one
/// client.
fn history_of_one_mount(stage: &Stage) -> TestResult {
    let seconds = if stage.full { SECONDS.1 } else { SECONDS.0 };
    let (dir, outside) = (stage.folder("history")?, stage.scratch("history")?);
    let plan = LoadPlan {
        threads: 3,
        seconds,
        seed: u64::from(std::process::id()),
        mix: Mix::ByEpoch,
        sessions_end: false,
    };
    // On most local file systems, a read may see a write half done.
    let forgive_torn_reads = matches!(stage.subject, Subject::Directory(_));
    let limits = Limits { tolerate_torn_reads: forgive_torn_reads, is_one_mount: true, ..Limits::default() };
    let (outcome, report) = Load::start(&[dir.clone(), dir], &outside, plan)?.finish(limits)?;
    ensure_eq!(
        (outcome.errors.len(), outcome.stuck),
        (0, 0),
        "errors and stuck calls of {plan:?}: {outcome:?}"
    );
    ensure_coherent(&report)
}
