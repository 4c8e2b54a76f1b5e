//! A load on all mounts of a cluster, concurrent work, and the check of the recorded history.

use super::super::coherence::{Load, LoadPlan, ensure_coherent};
use super::super::outcome::{Failure, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::suites;
use super::Cluster;
use crate::history::{Mix, Outcome};
use crate::process;
use ::history::Limits;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// Deadline of one program: more than several waits for a missing node.
const DEADLINE: Duration = Duration::from_secs(600);

/// Returns a load with this number of threads per mount.
pub fn plan(threads: u32, seconds: u64, seed: u64) -> LoadPlan {
    LoadPlan { threads, seconds, seed, mix: Mix::All, sessions_end: false }
}

/// Runs a load on all mounts in a new folder, and `beside` concurrently, until both have ended. The
/// history must be linearizable, and every call must have ended.
pub fn under_load(
    stage: &Stage,
    cluster: &mut Cluster,
    name: &str,
    plan: LoadPlan,
    beside: impl FnOnce(&mut Cluster) -> TestResult,
) -> TestResult<Outcome> {
    under_watched_load(stage, cluster, name, plan, |cluster, _| beside(cluster))
}

/// The same, for a caller that monitors the load's progress.
pub fn under_watched_load(
    stage: &Stage,
    cluster: &mut Cluster,
    name: &str,
    plan: LoadPlan,
    beside: impl FnOnce(&mut Cluster, &Load) -> TestResult,
) -> TestResult<Outcome> {
    let run = || {
        let folders = cluster.shared_folder(name)?;
        let load = Load::start(&folders, &stage.scratch(&format!("history-{name}"))?, plan)?;
        beside(cluster, &load)?;
        let (outcome, report) = load.finish(Limits::default())?;
        ensure_coherent(&report)?;
        ensure_eq!(outcome.stuck, 0, "calls of {plan:?} that never returned: {outcome:?}");
        Ok(outcome)
    };
    run().map_err(|failure| match failure {
        Failure::Failed(message) => {
            let unmounted = cluster.unmounted_clients();
            Failure::Failed(format!("{name}: {unmounted}{message}\n    {}", cluster.log()))
        }
        skipped => skipped,
    })
}

/// Repeats a piece of work while faults are applied to the cluster concurrently. Returns the number
/// of repetitions. The pieces are numbered.
pub fn work_under_faults(
    cluster: &mut Cluster,
    mut work: impl FnMut(u64) -> TestResult + Send,
    inject_faults: impl FnOnce(&mut Cluster) -> TestResult,
) -> TestResult<u64> {
    let is_over = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let working = scope.spawn(|| {
            for piece in 1.. {
                work(piece)?;
                if is_over.load(SeqCst) {
                    return Ok(piece);
                }
            }
            Ok(0)
        });
        let faults = inject_faults(cluster);
        is_over.store(true, SeqCst);
        let worked = working.join().map_err(|_| Failure::Failed("the work's thread panicked".into()))?;
        faults.and(worked)
    });
    outcome.map_err(|failure| match failure {
        Failure::Failed(message) => Failure::Failed(format!("{message}\n    {}", cluster.log())),
        skipped => skipped,
    })
}

/// Runs fsx in one of two folders that show the same files, once per piece of work.
pub fn fsx_pieces(
    stage: &Stage,
    folders: &[PathBuf],
    round: u64,
    operations: u32,
) -> impl FnMut(u64) -> TestResult + Send {
    move |piece| {
        let seed = suites::FSX_SEEDS[(round + piece) as usize % suites::FSX_SEEDS.len()];
        let file = folders[piece as usize % folders.len()].join(format!("file-{piece}"));
        let done = process::run_ok(&mut suites::fsx_command(stage, &file, seed, operations)?, DEADLINE)?;
        let said = format!("{}{}", done.stdout, done.stderr);
        ensure!(said.contains("A-OK"), "fsx doesn't say that all is well: {}", done.tail());
        Ok(())
    }
}

/// Checks that no application got an error.
pub fn ensure_no_errors(outcome: &Outcome, when: &str, cluster: &Cluster) -> TestResult {
    let Outcome { errors, first_errors, .. } = outcome;
    if errors.is_empty() {
        return Ok(());
    }
    let told = first_errors.join("\n    ");
    Err(Failure::Failed(format!("errors {when}: {errors:?}\n    {told}\n    {}", cluster.log())))
}
