//! Every kind of process is killed, stopped and cut off under load, and what the programs on several mounts see stays that of one file system.

use super::super::coherence::{Load, LoadPlan, ensure_coherent};
use super::super::outcome::{At, TestResult, ensure, ensure_eq, skip};
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::faults::Fault;
use super::twice::differences;
use super::{Cluster, Part, Shape};
use crate::history::{Mix, Outcome};
use ::history::Limits;
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "services_killed_under_load", scope: Scope::Own, minutes: 6, run: services_killed },
    TestCase {
        name: "metadata_out_of_order_under_load",
        scope: Scope::Own,
        minutes: 6,
        run: metadata_out_of_order,
    },
    TestCase { name: "client_killed_under_load", scope: Scope::Own, minutes: 5, run: clients_killed },
    TestCase { name: "history_of_four_mounts", scope: Scope::Own, minutes: 6, run: history_of_four_mounts },
];

/// How often each kind of process is killed in the short and in the long form.
const ROUNDS: (u64, u64) = (1, 20);

/// Seeds of the histories in the short and in the long form.
const SEEDS: (u64, u64) = (1, 10);

/// How long a fault lasts: less than the 5 s after which a session that is in somebody's way is ended.
const FAULT: Duration = Duration::from_secs(2);

/// One that lasts longer than management waits before it gives a metadata node's partitions to others (15 s).
const LONG_FAULT: Duration = Duration::from_secs(20);

/// Time between two faults.
const REST: Duration = Duration::from_secs(2);

/// Load after the last fault, seconds.
const AFTER_SECS: u64 = 3;

/// Runs a load on all mounts for as long as `beside` should take, and `beside` with it.
fn under_load(
    stage: &Stage,
    cluster: &mut Cluster,
    name: &str,
    plan: LoadPlan,
    beside: impl FnOnce(&mut Cluster) -> TestResult,
) -> TestResult<Outcome> {
    let folders = cluster.shared_folder(name)?;
    let load = Load::start(&folders, &stage.scratch(&format!("history-{name}"))?, plan)?;
    beside(cluster)?;
    let (outcome, report) = load.finish(Limits::default())?;
    ensure_coherent(&report)?;
    ensure_eq!(outcome.stuck, 0, "calls of {plan:?} that never returned: {outcome:?}");
    Ok(outcome)
}

fn plan(seconds: u64, seed: u64) -> LoadPlan {
    LoadPlan { threads: 2, seconds, seed, mix: Mix::All }
}

/// Each service in turn; no program learns of it.
fn services_killed(stage: &Stage) -> TestResult {
    let (storage, clients, rounds) = if stage.full { (4, 3, ROUNDS.1) } else { (2, 2, ROUNDS.0) };
    let shape = Shape { metadata: 0, storage, clients, timeout: None };
    let mut cluster = Cluster::build(stage, "kills", shape)?;
    for round in 0..rounds {
        // A kind has one process or several; of those another one each time.
        let kinds = [Part::Management, Part::Storage(round as usize % usize::from(storage))];
        for part in kinds {
            let name = format!("round-{round}-{}", cluster.node(part));
            let plan = plan(FAULT.as_secs() * 2 + AFTER_SECS, round + 1);
            let outcome = under_load(stage, &mut cluster, &name, plan, |cluster| {
                thread::sleep(FAULT);
                cluster.strike(part, Fault::Killed)?;
                thread::sleep(FAULT / 2);
                cluster.mend(part, Fault::Killed)
            })?;
            ensure!(
                outcome.errors.is_empty(),
                "errors although {part:?} came back in time, {name}: {:?}\n    {}",
                outcome.errors,
                cluster.log()
            );
            cluster.wait_until_healthy()?;
            cluster.ensure_clean()?;
        }
    }
    cluster.stop()
}

/// A metadata node stands still, or its network lets nothing through one way or both ways, for a moment or until its partitions are others'.
/// No program learns of it.
fn metadata_out_of_order(stage: &Stage) -> TestResult {
    if !stage.full {
        return skip("--full only: it has passed too few times to be relied on in every build");
    }
    let shape = Shape { metadata: 2, storage: 2, clients: 2, timeout: None };
    let mut cluster = Cluster::build(stage, "metadata", shape)?;
    let faults = [Fault::Stopped, Fault::Cut, Fault::Deaf, Fault::Mute];
    let chosen: Vec<(Fault, Duration)> = if stage.full {
        [FAULT, LONG_FAULT].into_iter().flat_map(|time| faults.map(|fault| (fault, time))).collect()
    } else {
        vec![(Fault::Deaf, FAULT), (Fault::Stopped, LONG_FAULT)]
    };
    for (round, (fault, time)) in chosen.into_iter().enumerate() {
        let part = Part::Metadata(round % usize::from(shape.metadata));
        let name = format!("round-{round}");
        let plan = plan((FAULT + time).as_secs() + AFTER_SECS, round as u64 + 1);
        let outcome = under_load(stage, &mut cluster, &name, plan, |cluster| {
            thread::sleep(FAULT);
            cluster.strike(part, fault)?;
            thread::sleep(time);
            cluster.mend(part, fault)
        })?;
        ensure!(
            outcome.errors.is_empty(),
            "errors although {part:?} was {fault:?} for {time:?} only: {:?}\n    {}",
            outcome.errors,
            cluster.log()
        );
        cluster.wait_until_healthy()?;
        cluster.ensure_clean()?;
    }
    cluster.stop()
}

/// A client dies; those on other mounts go on, and so does a new one in its place.
fn clients_killed(stage: &Stage) -> TestResult {
    /// Longer than a session may be silent that is in somebody's way, so that others are seen to go on.
    const LOAD_SECS: u64 = 20;
    let shape = Shape { metadata: 0, storage: 2, clients: 2, timeout: None };
    let mut cluster = Cluster::build(stage, "client-kills", shape)?;
    for round in 0..if stage.full { ROUNDS.1 } else { ROUNDS.0 } {
        let plan = plan(LOAD_SECS, round + 1);
        let name = format!("round-{round}");
        let outcome = under_load(stage, &mut cluster, &name, plan, |cluster| {
            thread::sleep(FAULT);
            cluster.strike(Part::Client(1), Fault::Killed)
        })?;
        ensure!(outcome.calls > 1000, "the other mount didn't go on: {outcome:?}");
        // Only now: meanwhile the load would have worked on the bare folder.
        cluster.mend(Part::Client(1), Fault::Killed)?;
        let folders = [cluster.mount(0).join(&name), cluster.mount(1).join(&name)];
        let different = differences(&folders[0], &folders[1]).at("comparing")?;
        ensure_eq!(different, Vec::<String>::new(), "what a new mount and an old one show");
    }
    cluster.stop()
}

/// What happens to whom in one run; everybody once in the short form, everything to everybody in the long one.
fn misfortunes(full: bool, seed: u64) -> Vec<(Part, Fault)> {
    let parts = [Part::Storage(0), Part::Management, Part::Storage(1), Part::Client(3)];
    let fault = |number: usize| Fault::ALL[number % Fault::ALL.len()];
    let rounds = if full { Fault::ALL.len() } else { 1 };
    let all = (0..rounds).flat_map(|round| {
        parts.iter().enumerate().map(move |(number, part)| (*part, fault(round + number + seed as usize)))
    });
    // A killed client's programs get errors, which is another test's subject.
    let fair = |(part, fault): (Part, Fault)| match (part, fault) {
        (Part::Client(_), Fault::Killed) => (part, Fault::Cut),
        other => other,
    };
    all.map(fair).collect()
}

fn history_of_four_mounts(stage: &Stage) -> TestResult {
    if !stage.full {
        return skip(
            "--full only: an error once reached a program of four mounts, which isn't understood yet",
        );
    }
    let shape = Shape { metadata: 0, storage: 2, clients: 4, timeout: None };
    let mut cluster = Cluster::build(stage, "four", shape)?;
    for seed in 1..=if stage.full { SEEDS.1 } else { SEEDS.0 } {
        let misfortunes = misfortunes(stage.full, seed);
        let seconds = misfortunes.len() as u64 * (FAULT + REST).as_secs() + AFTER_SECS;
        let outcome =
            under_load(stage, &mut cluster, &format!("seed-{seed}"), plan(seconds, seed), |cluster| {
                for (part, fault) in &misfortunes {
                    thread::sleep(REST);
                    cluster.strike(*part, *fault)?;
                    thread::sleep(FAULT);
                    cluster.mend(*part, *fault)?;
                }
                Ok(())
            })?;
        ensure!(
            outcome.errors.is_empty(),
            "errors although all of {misfortunes:?} was put right in time: {:?}\n    {}",
            outcome.errors,
            cluster.log()
        );
        cluster.wait_until_healthy()?;
    }
    cluster.stop()
}
