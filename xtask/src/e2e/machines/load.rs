//! A load on all mounts of a cluster, something beside it, and the judgement on what programs saw.

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

/// Deadline of one program: longer than it may be kept waiting for a missing node, several times.
const DEADLINE: Duration = Duration::from_secs(600);

/// A load of some threads on each mount.
pub fn plan(threads: u32, seconds: u64, seed: u64) -> LoadPlan {
    LoadPlan { threads, seconds, seed, mix: Mix::All }
}

/// Runs a load on all mounts, in a new folder of this name, and `beside` with it; it goes on until
/// both have ended. What was seen must have one order that explains it, and every call must have
/// ended.
pub fn under_load(
    stage: &Stage,
    cluster: &mut Cluster,
    name: &str,
    plan: LoadPlan,
    beside: impl FnOnce(&mut Cluster) -> TestResult,
) -> TestResult<Outcome> {
    under_watched_load(stage, cluster, name, plan, |cluster, _| beside(cluster))
}

/// The same for who wants to know how far the load is.
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
        Failure::Failed(message) => Failure::Failed(format!("{name}: {message}\n    {}", cluster.log())),
        skipped => skipped,
    })
}

/// Does a piece of work again and again, as long as something befalls the cluster beside it; how
/// often it was done. The pieces are numbered.
pub fn work_beside(
    cluster: &mut Cluster,
    mut work: impl FnMut(u64) -> TestResult + Send,
    befall: impl FnOnce(&mut Cluster) -> TestResult,
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
        let befallen = befall(cluster);
        is_over.store(true, SeqCst);
        let worked = working.join().map_err(|_| Failure::Failed("the work's thread panicked".into()))?;
        befallen.and(worked)
    });
    outcome.map_err(|failure| match failure {
        Failure::Failed(message) => Failure::Failed(format!("{message}\n    {}", cluster.log())),
        skipped => skipped,
    })
}

/// fsx in one of two folders that show the same files, once for each piece of work.
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

/// No program was told of anything.
pub fn ensure_no_errors(outcome: &Outcome, when: &str, cluster: &Cluster) -> TestResult {
    let Outcome { errors, first_errors, .. } = outcome;
    if errors.is_empty() {
        return Ok(());
    }
    let told = first_errors.join("\n    ");
    Err(Failure::Failed(format!("errors {when}: {errors:?}\n    {told}\n    {}", cluster.log())))
}
