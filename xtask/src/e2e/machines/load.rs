//! A load on all mounts of a cluster, something beside it, and the judgement on what programs saw.

use super::super::coherence::{Load, LoadPlan, ensure_coherent};
use super::super::outcome::{Failure, TestResult, ensure_eq};
use super::super::stage::Stage;
use super::Cluster;
use crate::history::{Mix, Outcome};
use ::history::Limits;

/// A load of some threads on each mount.
pub fn plan(threads: u32, seconds: u64, seed: u64) -> LoadPlan {
    LoadPlan { threads, seconds, seed, mix: Mix::All }
}

/// Runs a load on all mounts, in a new folder of this name, and `beside` with it. What was seen must have one order that explains it, and
/// every call must have ended.
pub fn under_load(
    stage: &Stage,
    cluster: &mut Cluster,
    name: &str,
    plan: LoadPlan,
    beside: impl FnOnce(&mut Cluster) -> TestResult,
) -> TestResult<Outcome> {
    let run = || {
        let folders = cluster.shared_folder(name)?;
        let load = Load::start(&folders, &stage.scratch(&format!("history-{name}"))?, plan)?;
        beside(cluster)?;
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

/// No program was told of anything.
pub fn ensure_no_errors(outcome: &Outcome, when: &str, cluster: &Cluster) -> TestResult {
    let Outcome { errors, first_errors, .. } = outcome;
    if errors.is_empty() {
        return Ok(());
    }
    let told = first_errors.join("\n    ");
    Err(Failure::Failed(format!("errors {when}: {errors:?}\n    {told}\n    {}", cluster.log())))
}
