//! Several mounts of one cluster behave as one file system, also while parts of the cluster fail.

use super::super::outcome::{At, TestResult, ensure_eq};
use super::super::stage::Stage;
use super::super::{Scope, TestCase, suites};
use super::load::{ensure_no_errors, plan, under_load, under_watched_load};
use super::{Cluster, Role};
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "history_of_two_mounts", scope: Scope::Own, minutes: 5, run: history_of_two_mounts },
    TestCase { name: "fio_across_mounts", scope: Scope::Own, minutes: 5, run: fio_across_mounts },
    TestCase { name: "storage_killed_under_load", scope: Scope::Own, minutes: 5, run: storage_killed },
    TestCase { name: "client_cut_from_storage", scope: Scope::Own, minutes: 5, run: client_cut },
    TestCase { name: "frozen_client_is_fenced", scope: Scope::Own, minutes: 5, run: frozen_client },
];

/// Duration of the load on a healthy cluster in seconds.
const SECONDS: u64 = 15;

/// Duration of the load around one fault in seconds.
const FAULT_SECONDS: u64 = 6;

/// Seeds in the short and the long form.
const SEEDS: (u64, u64) = (1, 10);

/// Threads per mount.
const THREADS: u32 = 3;

/// Duration of a fault: less than the 5 s after which a connection is probed, and the 60 s after
/// which a call fails.
const FAULT: Duration = Duration::from_secs(2);

fn history_of_two_mounts(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "history", 2, 2)?;
    for seed in stage.rounds(SEEDS) {
        let plan = plan(THREADS, SECONDS, seed);
        let outcome = under_load(stage, &mut cluster, &format!("seed-{seed}"), plan, |_| Ok(()))?;
        ensure_no_errors(&outcome, "on a healthy cluster", &cluster)?;
    }
    cluster.stop()
}

/// One mount writes, another one reads.
fn fio_across_mounts(stage: &Stage) -> TestResult {
    let cluster = Cluster::start(stage, "fio", 2, 2)?;
    let folders: Vec<PathBuf> = cluster.shared_folder("fio")?;
    suites::fio_write_and_verify(stage, &folders[0], &folders[1])?;
    cluster.stop()
}

fn storage_killed(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "storage-killed", 2, 2)?;
    for seed in stage.rounds(SEEDS) {
        let storage = seed as usize % 2;
        let plan = plan(THREADS, FAULT_SECONDS, seed);
        let outcome = under_load(stage, &mut cluster, &format!("seed-{seed}"), plan, |cluster| {
            thread::sleep(FAULT);
            cluster.kill_storage(storage);
            thread::sleep(FAULT / 2);
            cluster.restart_storage(storage)
        })?;
        ensure_no_errors(&outcome, "although the storage node came back in time", &cluster)?;
        cluster.wait_until_healthy()?;
    }
    cluster.stop()
}

fn client_cut(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "client-cut", 2, 2)?;
    for seed in stage.rounds(SEEDS) {
        let plan = plan(THREADS, FAULT_SECONDS, seed);
        let outcome = under_load(stage, &mut cluster, &format!("seed-{seed}"), plan, |cluster| {
            thread::sleep(FAULT / 2);
            let network = &cluster.network;
            let (client, storage) = (network.node(Role::Client, 0), network.node(Role::Storage, 1));
            network.cut(client, storage)?;
            thread::sleep(FAULT);
            network.restore_links()
        })?;
        ensure_no_errors(&outcome, "although the network was healed in time", &cluster)?;
    }
    cluster.stop()
}

/// A client that is stopped beyond the expiry of its leases is evicted; when it continues, it must
/// not write delayed data.
fn frozen_client(stage: &Stage) -> TestResult {
    /// Calls of the other client while this one is stopped: enough that it needs what this one
    /// holds.
    const CALLS: usize = 500;
    for seed in stage.rounds(SEEDS) {
        let mut cluster = Cluster::start(stage, "frozen", 2, 2)?;
        let plan = plan(THREADS, FAULT_SECONDS, seed);
        let session = cluster.session(0)?["session"].as_u64();
        under_watched_load(stage, &mut cluster, "frozen", plan, |cluster, load| {
            thread::sleep(FAULT);
            cluster.client(0).freeze()?;
            cluster.wait_until_ended(session)?;
            load.wait_for_calls(1, CALLS)?;
            cluster.client(0).thaw()
        })?;
        // It also continues, with another session.
        cluster.wait_until_replaced(0, 0)?;
        fs::write(cluster.mount(0).join("thawed"), "content").at("a write of the client that was frozen")?;
        let seen = fs::read_to_string(cluster.mount(1).join("thawed")).at("thawed")?;
        ensure_eq!(seen, "content", "what the other client sees of it");
        cluster.stop()?;
    }
    Ok(())
}
