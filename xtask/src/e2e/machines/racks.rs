//! Mirrored files on nodes in racks: groups created before racks were configured are moved apart,
//! and then a whole rack may fail.

use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase};
use super::faults::Fault;
use super::load::{ensure_no_errors, plan, under_load};
use super::mirror::{ensure_in_sync, read_directly};
use super::{COMMAND_DEADLINE, Cluster, Part, Shape};
use crate::process;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] =
    &[TestCase { name: "mirrored_rack_lost", scope: Scope::Own, minutes: 8, run: rack_lost }];

/// Racks of the storage nodes, in order.
const RACKS: [&str; 4] = ["r1", "r1", "r2", "r2"];
/// Size of a file: several chunks.
const FILE_BYTES: usize = 3 << 20;
/// Number of files: enough that every group has some.
const FILES: usize = 24;
/// Time that a rack is down: long enough that other members become primaries.
const GONE: Duration = Duration::from_secs(20);
/// Longest time to move members apart: more than enough for one call per group.
const REBALANCE_DEADLINE: Duration = Duration::from_secs(180);
/// Pause after a call.
const CALL_INTERVAL: Duration = Duration::from_millis(500);
/// Time of load before a rack fails and after it is back, in seconds.
const AROUND_SECS: u64 = 3;

fn storage_in(rack: &str) -> Vec<usize> {
    (0..RACKS.len()).filter(|index| RACKS[*index] == rack).collect()
}

fn rack_lost(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 0, storage: RACKS.len() as u8, clients: 2, timeout: None };
    let mut cluster = Cluster::build(stage, "rack", shape)?;
    cluster.mirror_everything(2)?;
    let files = Files { folders: cluster.shared_folder("files")? };
    for file in 0..FILES {
        files.write(0, file, 0)?;
    }
    move_apart(&cluster)?;
    ensure_in_sync(&cluster, "after members were moved apart")?;
    for (round, rack) in ["r1", "r2"].into_iter().enumerate() {
        lose(stage, &mut cluster, &files, rack, round)?;
    }
    cluster.stop()
}

/// Sets the racks of the nodes, and rebalances the groups.
fn move_apart(cluster: &Cluster) -> TestResult {
    ensure!(!spread_over_racks(cluster)?, "groups must not span racks yet");
    for (index, rack) in RACKS.iter().enumerate() {
        let node = cluster.node(Part::Storage(index));
        cluster.ask_management(|management| cluster.commands.set_rack(management, node, rack))?;
    }
    let output = health(cluster)?;
    ensure!(
        output.contains("have several members in one rack"),
        "health doesn't report members in one rack: {output}"
    );
    ensure!(output.contains("weft group rebalance"), "health has no hint: {output}");
    let before = lost_with(cluster, "rack:r1")? + lost_with(cluster, "rack:r2")?;
    ensure!(before > 0, "no file is in one rack only, although groups didn't know of racks");
    rebalance(cluster)?;
    cluster.wait_until_in_sync()?;
    for rack in ["rack:r1", "rack:r2"] {
        ensure_eq!(lost_with(cluster, rack)?, 0, "bytes that would be lost with {rack}");
    }
    Ok(())
}

/// Moves members until all groups span two racks. This takes several calls if targets are as full
/// as the test machine's disk: each call plans with the current free space, and until a target's
/// own usage is known, its disk's whole usage is attributed to it.
fn rebalance(cluster: &Cluster) -> TestResult {
    let mut told = Vec::new();
    let apart = process::eventually(REBALANCE_DEADLINE, || {
        let called = cluster.ask_management(|management| cluster.commands.rebalance(management));
        told.push(called.map(|moves| moves.trim().to_string()));
        thread::sleep(CALL_INTERVAL);
        cluster.wait_until_moved().is_ok() && spread_over_racks(cluster).is_ok_and(|spread| spread)
    });
    ensure!(
        apart,
        "members of a group are in one rack still after {} calls; rebalance said last {:?}, health {}",
        told.len(),
        told.last(),
        health(cluster)?
    );
    println!("members were moved apart in {} calls", told.len());
    Ok(())
}

/// A rack fails under load and returns; meanwhile all data is readable and writable.
fn lose(stage: &Stage, cluster: &mut Cluster, files: &Files, rack: &str, round: usize) -> TestResult {
    let nodes: Vec<Part> = storage_in(rack).into_iter().map(Part::Storage).collect();
    let version = round as u64 + 1;
    let load = plan(2, GONE.as_secs() + 2 * AROUND_SECS, version);
    let outcome = under_load(stage, cluster, &format!("without-{rack}"), load, |cluster| {
        thread::sleep(Duration::from_secs(AROUND_SECS));
        nodes.iter().try_for_each(|part| cluster.inject(*part, Fault::Killed))?;
        thread::sleep(GONE);
        for file in 0..FILES {
            files.ensure_is(1, file, version - 1)?;
            files.write(1, file, version)?;
        }
        ensure_eq!(
            cluster.degraded_groups()?,
            cluster.members_of_groups()?.len(),
            "groups that miss a member"
        );
        nodes.iter().try_for_each(|part| cluster.repair(*part, Fault::Killed))
    })?;
    ensure_no_errors(&outcome, &format!("although only rack {rack} was gone"), cluster)?;
    ensure_in_sync(cluster, &format!("after rack {rack} is back"))?;
    for file in 0..FILES {
        files.ensure_is(0, file, version)?;
    }
    Ok(())
}

/// Files with content derived from their number and version.
struct Files {
    folders: Vec<PathBuf>,
}

impl Files {
    fn path(&self, mount: usize, file: usize) -> PathBuf {
        self.folders[mount].join(file.to_string())
    }

    fn content(file: usize, version: u64) -> Vec<u8> {
        Rng::new(1 + file as u64 + 1000 * version).bytes(FILE_BYTES)
    }

    fn write(&self, mount: usize, file: usize, version: u64) -> TestResult {
        let path = self.path(mount, file);
        let open = File::options().create(true).truncate(false).write(true).open(&path).at(path.display())?;
        open.write_all_at(&Files::content(file, version), 0).and_then(|()| open.sync_all()).at(path.display())
    }

    fn ensure_is(&self, mount: usize, file: usize, version: u64) -> TestResult {
        let path = self.path(mount, file);
        let seen = read_directly(&path)?;
        ensure!(
            seen == Files::content(file, version),
            "file {file} isn't what was written as version {version}"
        );
        Ok(())
    }
}

/// Returns whether no group has all its members in one rack, by the numbers of the nodes' targets.
fn spread_over_racks(cluster: &Cluster) -> TestResult<bool> {
    let mut first = Vec::new();
    for index in storage_in("r1") {
        first.push(cluster.target_of(index)?.0);
    }
    let in_first = |members: &Vec<u64>| members.iter().filter(|id| first.contains(id)).count();
    Ok(cluster.members_of_groups()?.iter().all(|members| in_first(members) == 1 && members.len() == 2))
}

/// Returns management's report of the cluster's health, whatever the verdict.
fn health(cluster: &Cluster) -> TestResult<String> {
    let node = cluster.node(Part::Management);
    let arguments = cluster.commands.health(&cluster.folder(node)?.join("state"));
    Ok(process::run(node.command(cluster.commands.weft()).args(&arguments), COMMAND_DEADLINE)?.stdout)
}

/// Returns the bytes that would be lost with a domain.
fn lost_with(cluster: &Cluster, domain: &str) -> TestResult<u64> {
    let output = cluster.ask_management(|management| cluster.commands.exposure_of(management, domain))?;
    let output: Value = serde_json::from_str(&output).map_err(|e| format!("weft health --exposure: {e}"))?;
    let lost = output["exposed"][0]["lost"]["bytes"].as_u64();
    Ok(lost.ok_or_else(|| format!("the loss with {domain} isn't reported: {output}"))?)
}
