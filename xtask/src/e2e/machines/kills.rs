//! Every kind of process is killed, stopped and cut off under load, and the history of applications
//! on several mounts stays linearizable.

use super::super::outcome::{At, TestResult, ensure_eq, skip};
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::faults::Fault;
use super::load::{ensure_no_errors, plan, under_load, under_watched_load};
use super::two_mounts::differences;
use super::{Cluster, Part, Shape};
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "services_killed_under_load", scope: Scope::Own, minutes: 6, run: services_killed },
    TestCase {
        name: "metadata_out_of_order_under_load",
        scope: Scope::Own,
        minutes: 6,
        run: metadata_faults,
    },
    TestCase { name: "client_killed_under_load", scope: Scope::Own, minutes: 5, run: clients_killed },
    TestCase {
        name: "history_of_two_mounts_under_faults",
        scope: Scope::Own,
        minutes: 6,
        run: history_of_two_mounts,
    },
    TestCase { name: "history_of_four_mounts", scope: Scope::Own, minutes: 6, run: history_of_four_mounts },
];

/// Kills per kind of process in the short and the long form.
const ROUNDS: (u64, u64) = (1, 20);

/// Rounds of faults of metadata nodes in the short and the long form: there are four faults, each
/// short and long, and two nodes.
const METADATA_ROUNDS: (u64, u64) = (2, 16);

/// Seeds of the histories in the short and the long form.
const SEEDS: (u64, u64) = (1, 10);

/// Duration of a fault: less than the 5 s after which a session in the way of another client is
/// ended.
const FAULT: Duration = Duration::from_secs(2);

/// Duration of a long fault: more than the 15 s after which management reassigns a metadata node's
/// partitions.
const LONG_FAULT: Duration = Duration::from_secs(20);

/// Time between two faults.
const REST: Duration = Duration::from_secs(2);

/// Time of load after the last fault, in seconds.
const AFTER_SECS: u64 = 3;

/// Threads per mount.
const THREADS: u32 = 2;

/// Each kind of service in turn; no application gets an error, and the file system check finds
/// nothing.
fn services_killed(stage: &Stage) -> TestResult {
    let shape = if stage.full {
        Shape { metadata: 2, storage: 4, clients: 3, timeout: None }
    } else {
        Shape { metadata: 1, storage: 2, clients: 2, timeout: None }
    };
    let mut cluster = Cluster::build(stage, "kills", shape)?;
    for round in stage.rounds(ROUNDS) {
        // If there are several processes of a kind, each round uses another one.
        let number = round as usize;
        let kinds = [
            Part::Management,
            Part::Metadata(number % usize::from(shape.metadata)),
            Part::Storage(number % usize::from(shape.storage)),
        ];
        for part in kinds {
            killed_once(stage, &mut cluster, part, round)?;
        }
    }
    cluster.stop()
}

/// A process is killed under load and restarted: no application gets an error, and the file system
/// check finds nothing.
pub(super) fn killed_once(stage: &Stage, cluster: &mut Cluster, part: Part, round: u64) -> TestResult {
    let name = format!("round-{round}-{}", cluster.node(part));
    let plan = plan(THREADS, FAULT.as_secs() * 2 + AFTER_SECS, round);
    let outcome = under_load(stage, cluster, &name, plan, |cluster| {
        thread::sleep(FAULT);
        cluster.inject(part, Fault::Killed)?;
        thread::sleep(FAULT / 2);
        cluster.repair(part, Fault::Killed)
    })?;
    ensure_no_errors(&outcome, &format!("although {part:?} came back in time, {name}"), cluster)?;
    cluster.wait_until_healthy()?;
    cluster.ensure_clean()
}

/// A metadata node is stopped, or its network drops packets in one or both directions, for a short
/// time or until its partitions are reassigned. No application gets an error.
fn metadata_faults(stage: &Stage) -> TestResult {
    if !stage.full {
        return skip("only with --full: not yet reliable enough for every build");
    }
    let shape = Shape { metadata: 2, storage: 2, clients: 2, timeout: None };
    let mut cluster = Cluster::build(stage, "metadata", shape)?;
    let faults = [Fault::Stopped, Fault::Cut, Fault::NoReceive, Fault::NoSend];
    for round in stage.rounds(METADATA_ROUNDS) {
        // Every fault for a short and for a long time; the first two rounds are one of each.
        let fault = faults[(round / 2) as usize % faults.len()];
        let time = if round % 2 == 1 { FAULT } else { LONG_FAULT };
        let part = Part::Metadata((round / 8 + round) as usize % usize::from(shape.metadata));
        let name = format!("round-{round}");
        let plan = plan(THREADS, (FAULT + time).as_secs() + AFTER_SECS, round);
        let outcome = under_load(stage, &mut cluster, &name, plan, |cluster| {
            thread::sleep(FAULT);
            cluster.inject(part, fault)?;
            thread::sleep(time);
            cluster.repair(part, fault)
        })?;
        let when = format!("although {part:?} was {fault:?} for {time:?} only, {name}");
        ensure_no_errors(&outcome, &when, &cluster)?;
        cluster.wait_until_healthy()?;
        cluster.ensure_clean()?;
    }
    cluster.stop()
}

/// A client is killed; other mounts continue, and so does its replacement.
fn clients_killed(stage: &Stage) -> TestResult {
    /// Calls of the other mount after the kill: enough that it needs what the dead client holds.
    const CALLS: usize = 500;
    let shape = Shape { metadata: 0, storage: 2, clients: 2, timeout: None };
    let mut cluster = Cluster::build(stage, "client-kills", shape)?;
    for round in stage.rounds(ROUNDS) {
        let plan = plan(THREADS, AFTER_SECS, round);
        let name = format!("round-{round}");
        let session = cluster.session(1)?["session"].as_u64();
        under_watched_load(stage, &mut cluster, &name, plan, |cluster, load| {
            thread::sleep(FAULT);
            cluster.inject(Part::Client(1), Fault::Killed)?;
            cluster.wait_until_ended(session)?;
            load.wait_for_calls(0, CALLS)
        })?;
        // Only now: before the end of the load, threads of this mount would have used the bare
        // folder.
        cluster.repair(Part::Client(1), Fault::Killed)?;
        let folders = [cluster.mount(0).join(&name), cluster.mount(1).join(&name)];
        let different = differences(&folders[0], &folders[1]).at("comparing")?;
        ensure_eq!(different, Vec::<String>::new(), "what a new mount and an old one show");
        cluster.ensure_clean()?;
    }
    cluster.stop()
}

/// Returns the faults of one run; each process once in the short form, all faults for all processes
/// in the long one.
fn fault_sequence(parts: &[Part], full: bool, seed: u64) -> Vec<(Part, Fault)> {
    let fault = |number: usize| Fault::ALL[number % Fault::ALL.len()];
    let rounds = if full { Fault::ALL.len() } else { 1 };
    let all = (0..rounds).flat_map(|round| {
        parts.iter().enumerate().map(move |(number, part)| (*part, fault(round + number + seed as usize)))
    });
    // Applications of a killed client get errors, which another test covers.
    let without_client_kills = |(part, fault): (Part, Fault)| match (part, fault) {
        (Part::Client(_), Fault::Killed) => (part, Fault::Cut),
        other => other,
    };
    all.map(without_client_kills).collect()
}

fn history_of_two_mounts(stage: &Stage) -> TestResult {
    if !stage.full {
        return skip("only with --full: not yet reliable enough for every build");
    }
    let shape = Shape { metadata: 1, storage: 2, clients: 2, timeout: None };
    let parts = [Part::Client(1), Part::Storage(0), Part::Metadata(0), Part::Management, Part::Storage(1)];
    history_under_faults(stage, "two", shape, &parts)
}

fn history_of_four_mounts(stage: &Stage) -> TestResult {
    if !stage.full {
        return skip("--full only: each round takes a minute and a half");
    }
    let shape = Shape { metadata: 0, storage: 2, clients: 4, timeout: None };
    let parts = [Part::Storage(0), Part::Management, Part::Storage(1), Part::Client(3)];
    history_under_faults(stage, "four", shape, &parts)
}

/// Applies one fault after the other to a cluster, each repaired before an application may get an
/// error.
fn history_under_faults(stage: &Stage, name: &str, shape: Shape, parts: &[Part]) -> TestResult {
    let mut cluster = Cluster::build(stage, name, shape)?;
    for seed in stage.rounds(SEEDS) {
        let faults = fault_sequence(parts, stage.full, seed);
        let seconds = faults.len() as u64 * (FAULT + REST).as_secs() + AFTER_SECS;
        let plan = plan(THREADS, seconds, seed);
        let outcome = under_load(stage, &mut cluster, &format!("seed-{seed}"), plan, |cluster| {
            for (part, fault) in &faults {
                thread::sleep(REST);
                cluster.inject(*part, *fault)?;
                thread::sleep(FAULT);
                cluster.repair(*part, *fault)?;
            }
            Ok(())
        })?;
        let when = format!("although all of {faults:?} was repaired in time, seed {seed}");
        ensure_no_errors(&outcome, &when, &cluster)?;
        cluster.wait_until_healthy()?;
        cluster.ensure_clean()?;
    }
    cluster.stop()
}
