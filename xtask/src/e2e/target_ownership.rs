//! Exclusive ownership of targets: one process at a time serves a target, and none does if its disk
//! is missing or it was removed.

use super::cluster::{ClusterRig, NOTICE_DEADLINE, check_files, write_files};
use super::outcome::{At, TestResult, ensure, ensure_eq};
use super::rig::{COMMAND_DEADLINE, last_lines};
use super::stage::Stage;
use super::{Scope, TestCase};
use crate::process;
use std::fs;
use std::path::Path;
use std::process::Command;

pub(super) const TESTS: &[TestCase] = &[TestCase {
    name: "cluster_target_of_two_nodes",
    scope: Scope::Own,
    minutes: 5,
    run: target_of_two_nodes,
}];

/// Two processes never open the same target, however the second one is configured. After its node
/// has stopped, another node takes it over on start.
fn target_of_two_nodes(stage: &Stage) -> TestResult {
    let mut rig = ClusterRig::start(stage, "cluster-claims", "plain")?;
    rig.add_node("a")?;
    rig.join("b", "storage")?;
    let (m, a, b) = (rig.text(&rig.dir("m")), rig.text(&rig.dir("a")), rig.text(&rig.dir("b")));
    let (target, copy) = (rig.text(&rig.base.join("target-a")), rig.text(&rig.base.join("target-copy")));
    let owner = |rig: &ClusterRig| -> TestResult<String> {
        Ok(rig.json(&["target", "show", "1", "--dir", &m])?["node"].to_string())
    };
    let mount = rig.mount("mnt")?;
    write_files(&mount, 1)?;
    process::run_ok(Command::new("sync").arg("-f").arg(&mount), COMMAND_DEADLINE)?;
    let (config, before) = (rig.dir("b").join("node.toml"), owner(&rig)?);
    let empty = fs::read_to_string(&config).at("node.toml")?;

    rig.refused(&["target", "add", &target, "--dir", &b], "is served by node")?;
    process::run_ok(Command::new("cp").args(["-a", &target, &copy]), COMMAND_DEADLINE)?;
    rig.refused(&["target", "add", &copy, "--dir", &b], "is served by node")?;
    rig.refused(&["target", "add", &copy, "--dir", &a], "is served already")?;
    rig.stop("b")?;
    rig.refused(&["target", "add", &target, "--dir", &b], "is already served by process")?;
    ensure_eq!(fs::read_to_string(&config).at("node.toml")?, empty, "what was refused has changed node.toml");

    // Edited by hand, so that only the process itself can refuse it.
    fs::write(&config, format!("{empty}\n[[target]]\npath = {target:?}\npool = \"default\"\n"))
        .at("node.toml")?;
    rig.serve("b")?;
    let log = rig.log("b");
    ensure!(log.contains("is already served by process"), "b doesn't say why:\n    {}", last_lines(&log));
    let status = rig.json(&["status", "--dir", &b])?;
    ensure!(status["unserved"][0]["path"] == *target, "b doesn't report that it isn't served: {status}");
    ensure_eq!(owner(&rig)?, before, "the node of target 1");
    check_files(&mount, 1)?;
    rig.stop("b")?;
    fs::write(&config, &empty).at("node.toml")?;

    // The disk moves when its new node starts.
    rig.serve("b")?;
    rig.stop("a")?;
    rig.wait_for_node("a", "offline")?;
    rig.refused(&["target", "add", &target, "--dir", &b], "belongs to node")?;
    rig.stop("b")?;
    rig.ok(&["target", "add", &target, "--dir", &b])?;
    rig.serve("b")?;
    ensure!(owner(&rig)? != before, "target 1 is still counted as of node {before}");
    let text = fs::read_to_string(&config).at("node.toml")?;
    ensure!(!text.contains("new = true"), "a later start would make an empty target 1:\n{text}");
    check_files(&mount, 1)?;
    write_files(&mount, 2)?;
    // The former owner finds it taken.
    rig.serve("a")?;
    ensure!(owner(&rig)? != before, "target 1 has gone back to node {before}");
    check_files(&mount, 2)?;

    missing_disk(&mut rig)?;
    removed_target(&mut rig, &target, &mount)?;
    rig.unmount(&mount)?;
    // A stopped node can't be checked by itself.
    rig.stop("a")?;
    rig.refused(&["fsck", "--dir", &a], "the node is not running")
}

/// An empty directory listed in `node.toml` of node `b`, as after a restore on another machine,
/// doesn't become a target.
fn missing_disk(rig: &mut ClusterRig) -> TestResult {
    let (m, b) = (rig.text(&rig.dir("m")), rig.text(&rig.dir("b")));
    let (config, empty) = (rig.dir("b").join("node.toml"), rig.base.join("target-missing"));
    let (before, known) =
        (fs::read_to_string(&config).at("node.toml")?, rig.json(&["target", "list", "--dir", &m])?);
    let count = |targets: &serde_json::Value| targets.as_array().map(Vec::len);
    fs::create_dir(&empty).at("the directory")?;
    rig.stop("b")?;
    fs::write(&config, format!("{before}\n[[target]]\npath = {empty:?}\npool = \"default\"\n"))
        .at("node.toml")?;
    rig.serve("b")?;
    let status = rig.json(&["status", "--dir", &b])?;
    let cause = status["unserved"][0]["cause"].to_string();
    ensure!(cause.contains("but is empty"), "b doesn't say that the disk is missing: {status}");
    ensure_eq!(count(&rig.json(&["target", "list", "--dir", &m])?), count(&known), "targets");
    ensure!(fs::read_dir(&empty).at("the directory")?.next().is_none(), "a target was made in {empty:?}");
    rig.stop("b")?;
    fs::write(&config, &before).at("node.toml")?;
    rig.serve("b")
}

/// Waits for two more heartbeats of a node.
fn wait_for_heartbeats(rig: &ClusterRig, node: &str) -> TestResult {
    let dir = rig.text(&rig.dir("m"));
    let silent_s = || rig.json(&["node", "show", node, "--dir", &dir]).ok()?["silent_s"].as_u64();
    for _ in 0..2 {
        let is_silent = || silent_s().is_some_and(|silent_s| silent_s > 0);
        ensure!(process::eventually(NOTICE_DEADLINE, is_silent), "{node} sends heartbeats all the time");
        let is_reachable = || silent_s() == Some(0);
        ensure!(process::eventually(NOTICE_DEADLINE, is_reachable), "{node} sends no heartbeats");
    }
    Ok(())
}

/// A removed target doesn't impede its node `b`, neither after a restart of management nor after a
/// restart of the node.
fn removed_target(rig: &mut ClusterRig, target: &str, mount: &Path) -> TestResult {
    let (m, a, b) = (rig.text(&rig.dir("m")), rig.text(&rig.dir("a")), rig.text(&rig.dir("b")));
    let other = rig.text(&rig.base.join("target-b"));
    rig.ok(&["target", "add", &other, "--dir", &b])?;
    rig.ok(&["target", "drain", "1", "--wait", "--dir", &m])?;
    rig.ok(&["target", "remove", "1", "--dir", &m])?;
    let config = rig.dir("b").join("node.toml");
    let is_listed = || fs::read_to_string(&config).is_ok_and(|text| text.contains(target));
    ensure!(process::eventually(NOTICE_DEADLINE, || !is_listed()), "b keeps the removed target in node.toml");
    let text = fs::read_to_string(&config).at("node.toml")?;
    ensure!(text.contains(&*other), "the other target of b is no longer in node.toml:\n{text}");
    for node in ["m", "b"] {
        rig.stop(node)?;
        rig.serve(node)?;
        rig.wait_for_node("b", "online")?;
        check_files(mount, 2)?;
        // The reply to a heartbeat would tell it to end.
        wait_for_heartbeats(rig, "b")?;
        rig.wait_for_node("b", "online")?;
    }
    rig.refused(&["target", "add", target, "--dir", &a], "is not in the cluster")?;

    // When empty, the directory of a target that was just removed can become a new target, on the
    // node that has it open.
    let third = rig.text(&rig.base.join("target-third"));
    let added = rig.json(&["target", "add", &third, "--dir", &a])?["target"].to_string();
    rig.ok(&["target", "drain", &added, "--wait", "--dir", &m])?;
    rig.ok(&["target", "remove", &added, "--dir", &m])?;
    rig.refused(&["target", "add", &third, "--dir", &a], "is not in the cluster")?;
    for entry in fs::read_dir(&third).at("the target")? {
        let path = entry.at("the target")?.path();
        if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.at(path.display())?;
    }
    let again = rig.json(&["target", "add", &third, "--dir", &a])?["target"].to_string();
    ensure!(again != added, "the removed target {added} is there again");
    write_files(mount, 3)?;
    ["b", "a"].iter().try_for_each(|node| rig.stop(node).and_then(|()| rig.serve(node)))?;
    (1..=3).try_for_each(|seed| check_files(mount, seed))
}
