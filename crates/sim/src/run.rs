//! One run: rounds of random operations, each followed by an interruption, recovery and comparison.

use crate::cluster::{Cluster, ClusterState};
use crate::command::{PrintOnPanic, Replay, Simulation};
use crate::driver::{Driver, FoundNode, OperationResult};
use crate::model::Outcome;
use crate::operation::{Operation, Rng};
use crate::oracle::{Interruption, Oracle};
use fsck::{Finding, Kind};
use kv::Memory;
use rt::sim::Machine;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use types::{Result, SessionId};

/// Number of operations that a violation lists.
const SHOWN_OPERATIONS: usize = 20;
/// Number of file system check findings that a violation lists.
const SHOWN_FINDINGS: usize = 5;
/// Approximate number of scheduler steps per operation; interruptions are spread over this many
/// steps per operation.
const STEPS_PER_OPERATION: u64 = 40;
/// Approximate number of scheduler steps of a start.
const STEPS_PER_START: u64 = 2_000;

/// Parameters of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// Number of interruptions; one more round ends with a clean shutdown.
    pub rounds: u32,
    /// Maximum number of operations per round.
    pub operations: u64,
    /// Whether targets keep an intent log. Without it runs fail, which proves that the checks work.
    pub intent_log: bool,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions { rounds: 8, operations: 150, intent_log: true }
    }
}

/// Summary of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Operations that returned.
    pub operations: u64,
    /// Crashes of the process.
    pub kills: u64,
    /// Power failures.
    pub power_cuts: u64,
    /// A digest of all decisions and writes; identical runs have the same digest.
    pub fingerprint: u64,
}

/// A violation of the guarantees.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Seed of the run.
    pub seed: u64,
    /// Parameters of the run.
    pub options: RunOptions,
    /// Round number, from 0.
    pub round: u32,
    /// Number of steps that the scheduler had executed.
    pub step: u64,
    /// What was violated.
    pub cause: String,
    /// The last operations with their results.
    pub operations: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, round {}, step {}: {}", self.seed, self.round, self.step, self.cause)?;
        writeln!(f, "last operations:")?;
        for operation in &self.operations {
            writeln!(f, "  {operation}")?;
        }
        write!(f, "to replay: {}", replay(self.seed, self.options))
    }
}

fn replay(seed: u64, options: RunOptions) -> Replay {
    Replay { seed, simulation: Simulation::Machine(options) }
}

/// State shared by the run and the tasks that it starts on the machine.
struct Shared {
    oracle: Oracle,
    /// The application's file handles; a process crash drops them.
    driver: Option<Driver>,
    cluster: Option<Cluster>,
    trace: VecDeque<String>,
    operations: u64,
}

struct Run {
    options: RunOptions,
    rng: Rng,
    machine: Machine,
    cluster_state: ClusterState,
    shared: Rc<RefCell<Shared>>,
    round: u32,
    summary: Summary,
    /// The interruption since the last comparison; a power failure takes precedence over a process
    /// crash.
    interruption: Option<Interruption>,
}

/// Runs one seed.
///
/// # Errors
/// Returns the first violation.
pub fn run_seed(seed: u64, options: RunOptions) -> Result<Summary, Box<Violation>> {
    let _shown = PrintOnPanic(replay(seed, options));
    let mut run = Run {
        options,
        rng: Rng(seed ^ 0x5eed),
        machine: Machine::new(seed),
        cluster_state: ClusterState { engine: Arc::new(Memory::new()), intent_log: options.intent_log },
        shared: Rc::new(RefCell::new(Shared {
            oracle: Oracle::new(seed),
            driver: None,
            cluster: None,
            trace: VecDeque::new(),
            operations: 0,
        })),
        round: 0,
        summary: Summary::default(),
        interruption: None,
    };
    run.all().map_err(|cause| {
        let operations = run.shared.borrow().trace.iter().cloned().collect();
        Box::new(Violation { seed, options, round: run.round, step: run.machine.steps(), cause, operations })
    })
}

impl Run {
    fn all(&mut self) -> Result<Summary, String> {
        let cluster_state = self.cluster_state.clone();
        self.run_to_completion(async move {
            cluster_state.format().await.map_err(|error| format!("format: {error}"))
        })?;
        // Ends the background tasks and handles that formatting started.
        self.machine.kill();
        for round in 0..self.options.rounds {
            self.round = round;
            let how = if self.rng.below(2) == 0 { Interruption::Kill } else { Interruption::PowerCut };
            let interrupt_after = self.random_start_interruption();
            if self.start(interrupt_after)? {
                self.run_operations()?;
            }
            self.interrupt(how);
        }
        self.round = self.options.rounds;
        self.finish()?;
        self.summary.operations = self.shared.borrow().operations;
        self.summary.fingerprint = self.machine.fingerprint();
        Ok(self.summary)
    }

    /// Returns the number of steps after which the start is interrupted: in one round of five.
    fn random_start_interruption(&mut self) -> Option<u64> {
        (self.rng.below(5) == 0).then(|| self.rng.below(STEPS_PER_START))
    }

    /// Runs a future to completion.
    fn run_to_completion<T: 'static>(
        &mut self,
        future: impl Future<Output = Result<T, String>> + 'static,
    ) -> Result<T, String> {
        self.machine.run(future).map_err(|deadlock| deadlock.to_string())?
    }

    /// Starts a process and compares the tree that it finds with the guarantees. Returns false if
    /// the start was interrupted after the given number of steps.
    fn start(&mut self, interrupt_after: Option<u64>) -> Result<bool, String> {
        let (cluster_state, shared) = (self.cluster_state.clone(), self.shared.clone());
        let session = SessionId(2 + self.round as u64);
        let program = start(cluster_state, session, shared.clone(), self.summary.power_cuts > 0);
        let steps = interrupt_after.unwrap_or(u64::MAX);
        let ended = self.machine.run_until(program, steps).map_err(|deadlock| deadlock.to_string())?;
        let Some(found) = ended else { return Ok(false) };
        let found = found?;
        if let Some(how) = self.interruption.take() {
            shared.borrow_mut().oracle.check_recovered(how, &found)?;
            note(&shared, format!("restarted after {how:?}"));
        }
        Ok(true)
    }

    /// Runs operations until a number of steps chosen by the seed, or until all are done.
    fn run_operations(&mut self) -> Result<(), String> {
        let operations = 1 + self.rng.below(self.options.operations);
        let steps = 1 + self.rng.below(operations * STEPS_PER_OPERATION);
        let program = run_operations(self.shared.clone(), operations);
        match self.machine.run_until(program, steps) {
            Ok(None) => Ok(()),
            Ok(Some(result)) => result,
            Err(deadlock) => Err(deadlock.to_string()),
        }
    }

    fn interrupt(&mut self, how: Interruption) {
        {
            let mut shared = self.shared.borrow_mut();
            shared.driver = None;
            shared.cluster = None;
        }
        match how {
            Interruption::Kill => {
                self.machine.kill();
                self.cluster_state.engine.kill();
                self.summary.kills += 1;
            }
            Interruption::PowerCut => {
                self.machine.crash();
                let keep = self.rng.below(self.cluster_state.engine.unsynced() as u64 + 1);
                self.cluster_state.engine.crash(keep as usize);
                self.summary.power_cuts += 1;
            }
        }
        note(&self.shared, format!("{how:?} at step {}", self.machine.steps()));
        if self.interruption != Some(Interruption::PowerCut) {
            self.interruption = Some(how);
        }
    }

    /// Runs a round that ends with a clean shutdown. After it, the tree must equal the model.
    fn finish(&mut self) -> Result<(), String> {
        self.start(None)?;
        let program = run_operations(self.shared.clone(), self.options.operations);
        self.run_to_completion(program)?;
        let cluster = {
            let mut shared = self.shared.borrow_mut();
            shared.driver = None;
            shared.cluster.take().expect("the process was started and not interrupted")
        };
        self.run_to_completion(
            async move { cluster.stop().await.map_err(|error| format!("shutdown: {error}")) },
        )?;
        // After a clean shutdown, a power failure must not lose anything.
        self.machine.crash();
        self.cluster_state.engine.crash(0);
        self.round += 1;
        self.shared.borrow_mut().oracle.drop_history();
        self.interruption = Some(Interruption::PowerCut);
        self.start(None).map(drop)
    }
}

/// The task that starts a process: it opens and recovers everything, runs the file system check,
/// and reads the whole tree.
async fn start(
    cluster_state: ClusterState,
    session: SessionId,
    shared: Rc<RefCell<Shared>>,
    had_power_cut: bool,
) -> Result<BTreeMap<String, FoundNode>, String> {
    let cluster = cluster_state.start(session).await.map_err(|error| format!("restart: {error}"))?;
    let report = cluster.check().await.map_err(|error| format!("file system check: {error}"))?;
    judge(&report.findings, had_power_cut)?;
    cluster.start_background();
    let driver = Driver::new(cluster.client.clone());
    let found =
        driver.read_tree().await.map_err(|error| format!("reading the tree after a restart: {error:?}"))?;
    let mut shared = shared.borrow_mut();
    shared.cluster = Some(cluster);
    shared.driver = Some(driver);
    Ok(found)
}

/// Rejects findings of the file system check. The exception: a power failure may destroy chunk
/// files that were not synced. The comparison of content shows whether it destroyed more.
fn judge(findings: &[Finding], had_power_cut: bool) -> Result<(), String> {
    let is_expected_loss = |finding: &&Finding| had_power_cut && finding.kind == Kind::MissingChunkFile;
    let wrong: Vec<&Finding> = findings.iter().filter(|finding| !is_expected_loss(finding)).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let shown = wrong.iter().take(SHOWN_FINDINGS);
    let lines: Vec<String> =
        shown.map(|finding| format!("{:?} {}: {}", finding.kind, finding.object, finding.cause)).collect();
    Err(format!("the file system check after a restart has {} findings: {}", wrong.len(), lines.join("; ")))
}

/// The task that runs operations and compares each result with the model.
async fn run_operations(shared: Rc<RefCell<Shared>>, operations: u64) -> Result<(), String> {
    // Moved out of the shared state, since it is used across awaits. It belongs to the process, so
    // it may be dropped with this task.
    let mut driver = shared.borrow_mut().driver.take().expect("the process was started");
    for _ in 0..operations {
        let (operation, expected) = {
            let mut shared = shared.borrow_mut();
            let operation = shared.oracle.begin();
            let expected = shared.oracle.expected();
            (operation, expected)
        };
        note(&shared, format!("{operation} ..."));
        let seen = driver.run(&operation).await;
        finish_operation(&shared, &operation, &expected, &seen)?;
    }
    shared.borrow_mut().driver = Some(driver);
    Ok(())
}

fn finish_operation(
    shared: &Rc<RefCell<Shared>>,
    operation: &Operation,
    expected: &Outcome<OperationResult>,
    seen: &Outcome<OperationResult>,
) -> Result<(), String> {
    let mut shared = shared.borrow_mut();
    shared.trace.pop_back();
    shared.push(format!("{operation} = {}", brief(seen)));
    if seen != expected {
        let difference = first_difference(expected, seen);
        return Err(format!("{operation} returned {}, not {}{difference}", brief(seen), brief(expected)));
    }
    shared.oracle.acknowledge();
    shared.operations += 1;
    Ok(())
}

impl Shared {
    fn push(&mut self, line: String) {
        if self.trace.len() == SHOWN_OPERATIONS {
            self.trace.pop_front();
        }
        self.trace.push_back(line);
    }
}

fn note(shared: &Rc<RefCell<Shared>>, line: String) {
    shared.borrow_mut().push(line);
}

/// Describes a result without its bytes.
fn brief(outcome: &Outcome<OperationResult>) -> String {
    match outcome {
        Ok(OperationResult::Bytes(bytes)) => format!("{} bytes", bytes.len()),
        Ok(other) => format!("{other:?}"),
        Err(errno) => format!("{errno:?}"),
    }
}

fn first_difference(expected: &Outcome<OperationResult>, seen: &Outcome<OperationResult>) -> String {
    let (Ok(OperationResult::Bytes(expected)), Ok(OperationResult::Bytes(seen))) = (expected, seen) else {
        return String::new();
    };
    match expected.iter().zip(seen).position(|(a, b)| a != b) {
        Some(at) => format!("; byte {at} is {}, not {}", seen[at], expected[at]),
        None => String::new(),
    }
}
