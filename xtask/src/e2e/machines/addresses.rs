//! Unreachable nodes, nodes that change their address, and a change of management's address.

use super::super::netns::Node;
use super::super::outcome::{At, Failure, TestResult, ensure};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase};
use super::mirror::read_directly;
use super::{COMMAND_DEADLINE, Cluster, Part, Shape};
use crate::process;
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "blocked_port_is_reported", scope: Scope::Own, minutes: 8, run: blocked_port },
    TestCase { name: "storage_changes_its_address", scope: Scope::Own, minutes: 8, run: storage_moves },
    TestCase { name: "management_changes_its_address", scope: Scope::Own, minutes: 8, run: management_moves },
    TestCase {
        name: "management_restored_at_another_address",
        scope: Scope::Own,
        minutes: 8,
        run: management_restored,
    },
];

/// Longest time until health reports a change: some probes, reports and heartbeats.
const NOTICE_DEADLINE: Duration = Duration::from_secs(90);

/// Longest time until a client continues after a change of address.
const RETURN_DEADLINE: Duration = Duration::from_secs(120);

/// Bytes of a file: more than one chunk, so that both storage nodes store a part.
const FILE_BYTES: usize = 8 << 20;

/// Port on which nodes listen.
const PORT: u16 = 7500;

/// Returns the address that replaces a node's own.
fn other_address(node: &Node) -> String {
    let [a, b, c, d] = node.address.octets();
    format!("{a}.{b}.{c}.{}", d + 100)
}

fn build(stage: &Stage, name: &str) -> TestResult<Cluster> {
    Cluster::build(stage, name, Shape { metadata: 0, storage: 2, clients: 1, timeout: Some(5) })
}

impl Cluster {
    /// Returns management's health findings: each finding's verdict, text and hint in one line.
    fn findings(&self) -> TestResult<Vec<String>> {
        let node = self.node(Part::Management);
        let arguments = self.commands.health(&self.state(Part::Management));
        let said = process::run(node.command(self.commands.weft()).args(&arguments), COMMAND_DEADLINE)?;
        let health: Value = serde_json::from_str(&said.stdout)
            .map_err(|error| format!("weft health: {error}: {}", said.tail()))?;
        let line = |found: &Value| format!("{}: {} ({})", found["verdict"], found["what"], found["hint"]);
        Ok(health["findings"].as_array().into_iter().flatten().map(line).collect())
    }

    /// Waits for a finding that contains all of these parts.
    fn wait_for_finding(&self, parts: &[&str]) -> TestResult<String> {
        let mut last = Ok(Vec::new());
        let mut found = None;
        process::eventually(NOTICE_DEADLINE, || {
            last = self.findings();
            let fits = |finding: &&String| parts.iter().all(|part| finding.contains(part));
            found = last.iter().flatten().find(fits).cloned();
            found.is_some()
        });
        found.ok_or_else(|| format!("no finding with {parts:?}: {last:?}\n    {}", self.log()).into())
    }

    /// Returns the state directory of a node.
    fn state(&self, part: Part) -> PathBuf {
        self.base.join(&self.network.name).join(self.node(part).to_string()).join("state")
    }

    fn cluster_file(&self, client: usize) -> PathBuf {
        self.state(Part::Client(client)).with_file_name("cluster")
    }

    /// Adds another address to a node's network interface.
    fn add_address(&self, part: Part, address: &str) -> TestResult {
        self.change_address(part, "add", address)
    }

    fn remove_address(&self, part: Part, address: &str) -> TestResult {
        // The other addresses remain, even if the removed one was the first of its subnet.
        let mut command = self.node(part).command("sysctl");
        command.args(["-q", "-w", "net.ipv4.conf.all.promote_secondaries=1"]);
        process::run_ok(&mut command, COMMAND_DEADLINE)?;
        self.change_address(part, "del", address)
    }

    fn change_address(&self, part: Part, change: &str, address: &str) -> TestResult {
        let mut command = self.node(part).command("ip");
        command.args(["addr", change, &format!("{address}/16"), "dev", "eth0"]);
        process::run_ok(&mut command, COMMAND_DEADLINE)?;
        Ok(())
    }

    /// Waits until a client reads this content, and writes another file.
    fn wait_until_used(&self, file: &Path, content: &[u8], next: &Path) -> TestResult {
        let mut last = String::new();
        let works = process::eventually(RETURN_DEADLINE, || {
            let done = read_directly(file)
                .and_then(|read| fs::write(next, content).at(next.display()).map(|()| read));
            match done {
                Ok(read) => read == content,
                Err(failure) => {
                    last = format!("{failure:?}");
                    false
                }
            }
        });
        ensure!(works, "the client doesn't go on: {last}\n    {}", self.log());
        Ok(())
    }
}

/// Replaces lines of a file by their prefix, as an administrator does in an editor.
fn edit(path: &Path, lines: &[(&str, String)]) -> TestResult {
    let text = fs::read_to_string(path).at(path.display())?;
    let changed = |line: &str| {
        let found = lines.iter().find(|(key, _)| line.starts_with(&format!("{key} = ")));
        found.map_or(line.to_string(), |(key, value)| format!("{key} = {value}"))
    };
    let text: Vec<String> = text.lines().map(changed).collect();
    fs::write(path, text.join("\n") + "\n").at(path.display())
}

fn list(addresses: &[&str]) -> String {
    format!("{:?}", addresses.iter().map(|address| format!("{address}:{PORT}")).collect::<Vec<_>>())
}

/// Creates a file on both storage nodes. Returns its path and content.
fn first_file(cluster: &Cluster) -> TestResult<(PathBuf, Vec<u8>)> {
    let (path, content) = (cluster.mount(0).join("before"), Rng::new(5).bytes(FILE_BYTES));
    fs::write(&path, &content).at(path.display())?;
    let file = fs::File::open(&path).at(path.display())?;
    file.sync_all().at("fsync")?;
    Ok((path, content))
}

/// A firewall blocks the port of a storage node, which continues to send heartbeats: health reports
/// it, and so do clients.
fn blocked_port(stage: &Stage) -> TestResult {
    let cluster = build(stage, "blocked-port")?;
    let (file, content) = first_file(&cluster)?;
    let storage = cluster.node(Part::Storage(0));
    let name = storage.to_string();
    let block = |of: &str| -> TestResult {
        let rules = format!(
            "add table inet weft_cut; \
             add chain inet weft_cut arriving {{ type filter hook input priority 0; }}; \
             add rule inet weft_cut arriving {of} tcp dport {PORT} drop"
        );
        process::run_ok(storage.command("nft").arg(rules), COMMAND_DEADLINE)?;
        Ok(())
    };
    // Only for management: no client notices anything.
    block(&format!("ip saddr {}", cluster.node(Part::Management).address))?;
    let address = format!("{}:{PORT}", storage.address);
    let reported =
        cluster.wait_for_finding(&["critical", "sends heartbeats, but can't be reached", &name, &address])?;
    ensure!(reported.contains("timed out") && reported.contains("firewall"), "cause and remedy: {reported}");
    cluster.network.restore_links()?;
    cluster.wait_until_healthy()?;
    // Only for the client: management itself detects nothing.
    block(&format!("ip saddr {}", cluster.node(Part::Client(0)).address))?;
    let mount = cluster.mount(0);
    let waits = std::thread::spawn(move || {
        // Each file has a chunk on the unreachable node, so each write waits for its time-out.
        (0..20).for_each(|number| drop(fs::write(mount.join(format!("waits{number}")), vec![1; 4 << 20])));
    });
    let client = cluster.node(Part::Client(0)).address.to_string();
    let reported = cluster.wait_for_finding(&["can't reach node", &name, &client, &address]);
    cluster.network.restore_links()?;
    waits.join().map_err(|_| Failure::Failed("the writer panicked".into()))?;
    reported?;
    cluster.wait_until_used(&file, &content, &cluster.mount(0).join("after"))?;
    cluster.wait_until_healthy()?;
    cluster.stop()
}

/// A storage node's machine changes its address. Health reports it until the node's configuration
/// is updated; then clients continue by themselves.
fn storage_moves(stage: &Stage) -> TestResult {
    let mut cluster = build(stage, "storage-moves")?;
    let (file, content) = first_file(&cluster)?;
    let part = Part::Storage(0);
    let (old, new) = (cluster.node(part).address.to_string(), other_address(cluster.node(part)));
    let config = cluster.state(part).join("node.toml");
    cluster.service(part).terminate()?;
    cluster.add_address(part, &new)?;
    cluster.remove_address(part, &old)?;
    // The node listens on all addresses, but still announces the old one.
    edit(&config, &[("listen", list(&["0.0.0.0"]))])?;
    cluster.restart(part)?;
    cluster.wait_for_finding(&["critical", &old, "its machine has none of its addresses"])?;
    let log = cluster.service(part).log();
    ensure!(log.contains("belongs to this machine, which has") && log.contains(&new), "no warning: {log}");
    let mut status: Vec<OsString> = ["status", "--json", "--dir"].map(OsString::from).into();
    status.push(cluster.state(part).into());
    let said = cluster.run(cluster.node(part), &status)?;
    ensure!(said.contains("\"warnings\"") && said.contains(&new), "weft status: {said}");
    cluster.service(part).terminate()?;
    edit(&config, &[("addresses", list(&[&new]))])?;
    cluster.restart(part)?;
    cluster.wait_until_used(&file, &content, &cluster.mount(0).join("after"))?;
    cluster.wait_until_healthy()?;
    cluster.stop()
}

/// Management gets a second address, which the map publishes, and then loses the first.
fn management_moves(stage: &Stage) -> TestResult {
    let mut cluster = build(stage, "management-moves")?;
    let (file, content) = first_file(&cluster)?;
    let part = Part::Management;
    let (old, new) = (cluster.node(part).address.to_string(), other_address(cluster.node(part)));
    let config = cluster.state(part).join("node.toml");
    cluster.add_address(part, &new)?;
    cluster.service(part).terminate()?;
    edit(&config, &[("listen", list(&["0.0.0.0"])), ("addresses", list(&[&old, &new]))])?;
    cluster.restart(part)?;
    let mut files: Vec<PathBuf> =
        [Part::Storage(0), Part::Storage(1)].map(|part| cluster.state(part).join("node.toml")).into();
    files.extend([cluster.cluster_file(0), cluster.state(part).join("client.toml")]);
    let says = |file: &PathBuf| fs::read_to_string(file).is_ok_and(|text| text.contains(&new));
    let written = process::eventually(NOTICE_DEADLINE, || files.iter().all(says));
    ensure!(written, "some of {files:?} don't have {new}\n    {}", cluster.log());
    cluster.service(part).terminate()?;
    edit(&config, &[("addresses", list(&[&new]))])?;
    cluster.remove_address(part, &old)?;
    cluster.restart(part)?;
    cluster.wait_until_used(&file, &content, &cluster.mount(0).join("after"))?;
    cluster.wait_until_healthy()?;
    // A start finds management without intervention.
    cluster.service(Part::Storage(1)).kill();
    cluster.restart(Part::Storage(1))?;
    cluster.service(Part::Client(0)).terminate()?;
    cluster.restart(Part::Client(0))?;
    cluster.wait_until_used(&file, &content, &cluster.mount(0).join("later"))?;
    cluster.wait_until_healthy()?;
    cluster.stop()
}

/// Management's machine is lost, and restored from a metadata backup on a machine with another
/// address. The files of running nodes and clients are edited.
fn management_restored(stage: &Stage) -> TestResult {
    let mut cluster = build(stage, "management-restored")?;
    let (file, content) = first_file(&cluster)?;
    let part = Part::Management;
    let (old, new) = (cluster.node(part).address.to_string(), other_address(cluster.node(part)));
    let dir = cluster.state(part);
    let place = stage.scratch("copies")?;
    let words = |words: &[&str], last: &Path| -> Vec<OsString> {
        words.iter().map(OsString::from).chain([last.into()]).collect()
    };
    let backup = words(&["meta", "backup", &place.to_string_lossy(), "--json", "--dir"], &dir);
    let made: Value = serde_json::from_str(&cluster.run(cluster.node(part), &backup)?)
        .map_err(|error| format!("weft meta backup: {error}"))?;
    let copy = made["file"].as_str().unwrap_or_default().to_string();
    cluster.service(part).kill();
    fs::rename(&dir, dir.with_extension("lost")).at("rename")?;
    cluster.add_address(part, &new)?;
    cluster.remove_address(part, &old)?;
    cluster.run(cluster.node(part), &words(&["meta", "restore", &copy, "--dir"], &dir))?;
    let (listen, addresses) = (list(&[&new]), list(&[&new]));
    edit(&dir.join("node.toml"), &[("listen", listen), ("addresses", addresses)])?;
    cluster.restart(part)?;
    // The storage nodes can't report yet: they know the lost address only.
    let findings = cluster.findings()?;
    let is_about = |text: &&str| text.contains("has not reported since") || text.contains("is offline");
    let silent = findings.iter().map(String::as_str).filter(is_about).count();
    ensure!(silent >= 2, "health hides that no storage node has reported: {findings:?}");
    for file in [
        cluster.state(Part::Storage(0)).join("node.toml"),
        cluster.state(Part::Storage(1)).join("node.toml"),
        cluster.cluster_file(0),
    ] {
        edit(&file, &[("management", list(&[&new]))])?;
    }
    // The mount was made before the restore.
    cluster.wait_until_used(&file, &content, &cluster.mount(0).join("after"))?;
    cluster.wait_until_healthy()?;
    let (own, line) = (dir.join("node.toml"), format!("management = [\"{new}:{PORT}\""));
    let is_written = || fs::read_to_string(&own).is_ok_and(|text| text.contains(&line));
    ensure!(process::eventually(NOTICE_DEADLINE, is_written), "{} doesn't say {line}", own.display());
    cluster.stop()
}
