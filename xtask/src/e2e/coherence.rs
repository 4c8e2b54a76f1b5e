//! What programs on several mounts see has one order that explains it: histories, recorded under
//! load and judged.

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

/// Seconds of load of the short and of the long form.
const SECONDS: (u64, u64) = (3, 60);

/// Seconds that a call may take when the load is over, before it counts as one that never returns.
const GRACE_SECONDS: u64 = 90;

/// Calls that a load makes at least, however long that takes: with fewer, too little happens at
/// once to show anything.
pub const MIN_CALLS: u64 = 1500;

/// How long the load may take beyond all that to look at everything again and to write its history.
const END_DEADLINE: Duration = Duration::from_secs(60);

/// How long a mount may take to make some hundred calls when others were in its way: longer than a
/// session may be silent, and than a machine may be busy.
const CALLS_DEADLINE: Duration = Duration::from_secs(120);

/// A load that runs in a process of its own.
pub struct Load {
    child: Child,
    out: PathBuf,
    seconds: u64,
}

/// What a load is to do.
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// Threads on each mount.
    pub threads: u32,
    /// How long, at least: it goes on until [`Load::finish`] is called.
    pub seconds: u64,
    /// Seed of what is done.
    pub seed: u64,
    /// Which ways of opening files go together.
    pub mix: Mix,
}

impl Load {
    /// Starts a load on a folder as several mounts show it; the history goes to a folder outside of
    /// them.
    pub fn start(folders: &[PathBuf], outside: &Path, plan: LoadPlan) -> TestResult<Load> {
        let out = outside.join(format!("history-{}.jsonl", plan.seed));
        let mut command = Command::new(process::this_program());
        command.args(["history", "load", "--until-told"]).arg("--out").arg(&out);
        for folder in folders {
            command.arg("--mount").arg(folder);
        }
        command.args(["--mix", plan.mix.to_possible_value().expect("none is hidden").get_name()]);
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
        cleanup::hold(Resource::Process(child.id() as i32));
        Ok(Load { child, out, seconds: plan.seconds })
    }

    /// How many calls of a mount are on record so far that ended without an error.
    pub fn calls_of(&self, client: u32) -> TestResult<usize> {
        let is_counted = |record: &Record| record.client == client && record.returned_ns.is_some();
        Ok(history::read(&self.out)?.iter().filter(|record| is_counted(record)).count())
    }

    /// Waits until a mount has made so many calls more.
    pub fn wait_for_calls(&self, client: u32, more: usize) -> TestResult {
        let enough = self.calls_of(client)? + more;
        let end = Instant::now() + CALLS_DEADLINE;
        while self.calls_of(client)? < enough {
            ensure!(Instant::now() < end, "mount {client} doesn't go on: {} calls", self.calls_of(client)?);
            // The whole record is read each time.
            thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Tells it to end, waits for that, and judges what it has written.
    pub fn finish(mut self, limits: Limits) -> TestResult<(Outcome, Report)> {
        drop(self.child.stdin.take());
        // The grace is granted twice: to reach the least number of calls, and to the last calls.
        let deadline = Duration::from_secs(self.seconds + 2 * GRACE_SECONDS) + END_DEADLINE;
        let Some(status) = process::wait(&mut self.child, deadline).at("the load")? else {
            return Err(format!("the load goes on after {} s", deadline.as_secs()).into());
        };
        let mut said = String::new();
        let mut stdout = self.child.stdout.take().expect("standard output was asked to be a pipe");
        stdout.read_to_string(&mut said).at("the load's answer")?;
        let outcome = Outcome::parse(&said)
            .ok_or_else(|| Failure::Failed(format!("the load ended with {status} and said {said:?}")))?;
        let report = judge(&history::read(&self.out)?, limits);
        Ok((outcome, report))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(process::wait(&mut self.child, Duration::from_secs(10)));
        cleanup::released(&Resource::Process(self.child.id() as i32));
    }
}

/// The report must be clean, and must be one of something.
pub fn ensure_coherent(report: &Report) -> TestResult {
    ensure!(report.is_linearizable(), "{report}");
    ensure!(report.concurrent >= 100, "too little happened at once to show anything: {report}");
    Ok(())
}

/// The mount twice, as if it were two: the kernel's caches and the parallel ways through one
/// client.
fn history_of_one_mount(stage: &Stage) -> TestResult {
    let seconds = if stage.full { SECONDS.1 } else { SECONDS.0 };
    let (dir, outside) = (stage.folder("history")?, stage.scratch("history")?);
    let plan = LoadPlan { threads: 3, seconds, seed: u64::from(std::process::id()), mix: Mix::ByEpoch };
    // Reads of most local file systems may catch a write half done.
    let forgive_torn_reads = matches!(stage.subject, Subject::Directory(_));
    let limits = Limits { forgive_torn_reads, one_mount: true, ..Limits::default() };
    let (outcome, report) = Load::start(&[dir.clone(), dir], &outside, plan)?.finish(limits)?;
    ensure_eq!(
        (outcome.errors.len(), outcome.stuck),
        (0, 0),
        "errors and stuck calls of {plan:?}: {outcome:?}"
    );
    ensure_coherent(&report)
}
