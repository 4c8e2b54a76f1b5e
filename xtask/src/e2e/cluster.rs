//! A cluster of several processes: management, storage nodes and clients, which communicate over
//! the loopback network.

use super::cleanup::{self, Resource};
use super::machines::is_healthy;
use super::mounts;
use super::outcome::{At, Failure, TestResult, ensure, ensure_eq, expect_errno};
use super::rig::{COMMAND_DEADLINE, last_lines};
use super::stage::Stage;
use super::{Rng, Scope, TestCase};
use crate::process::{self, Finished};
use crate::sys;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "cluster_of_processes", scope: Scope::Own, minutes: 5, run: two_nodes_two_mounts },
    TestCase { name: "cluster_survives_a_killed_node", scope: Scope::Own, minutes: 5, run: killed_node },
    TestCase { name: "cluster_of_metadata_nodes", scope: Scope::Own, minutes: 8, run: metadata_nodes },
    TestCase { name: "cluster_drains_a_target", scope: Scope::Own, minutes: 8, run: drained_target },
    TestCase { name: "cluster_refusals", scope: Scope::Own, minutes: 5, run: refusals },
    TestCase { name: "killed_mount_leaves_no_sockets", scope: Scope::Own, minutes: 3, run: killed_mount },
    TestCase { name: "cluster_of_all_roles", scope: Scope::Own, minutes: 8, run: all_roles },
];

/// Longest time until a node serves, and until a mount is mounted.
const START_DEADLINE: Duration = Duration::from_secs(90);

/// Longest time of a clean stop.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Longest time until the cluster detects a node's change of state.
pub(super) const NOTICE_DEADLINE: Duration = Duration::from_secs(60);

/// A cluster below a base folder; dropping it removes everything.
pub(super) struct ClusterRig {
    weft: PathBuf,
    pub(super) base: PathBuf,
    transport: &'static str,
    protection: &'static str,
    nodes: Vec<(String, Child)>,
    mounts: Vec<(PathBuf, Child)>,
}

impl ClusterRig {
    /// Creates a cluster with management and metadata on a running node `m`.
    pub(super) fn start(stage: &Stage, name: &str, protection: &'static str) -> TestResult<ClusterRig> {
        ClusterRig::start_as(stage, name, protection, &["--roles", "mgmt,meta"])
    }

    /// The same with other options for the first node.
    fn start_as(
        stage: &Stage,
        name: &str,
        protection: &'static str,
        options: &[&str],
    ) -> TestResult<ClusterRig> {
        ClusterRig::start_below(stage, stage.base(name)?, protection, options)
    }

    /// The same below a folder that may contain files already.
    pub(super) fn start_below(
        stage: &Stage,
        base: PathBuf,
        protection: &'static str,
        options: &[&str],
    ) -> TestResult<ClusterRig> {
        let mut rig = ClusterRig {
            weft: stage.binary()?.to_path_buf(),
            base,
            transport: stage.transport()?.name(),
            protection,
            nodes: vec![],
            mounts: vec![],
        };
        let listen = free_address()?;
        let dir = rig.text(&rig.dir("m"));
        let line = ["cluster", "init", "--name", "test", "--dir", &dir, "--listen", &listen];
        rig.ok(&[&line[..], &["--protection", protection], options].concat())?;
        rig.serve("m")?;
        Ok(rig)
    }

    /// Adds and starts a storage node with one target.
    pub(super) fn add_node(&mut self, name: &str) -> TestResult {
        self.join(name, "storage")?;
        self.add_target(name)
    }

    fn add_target(&self, name: &str) -> TestResult {
        let (dir, target) =
            (self.text(&self.dir(name)), self.text(&self.base.join(format!("target-{name}"))));
        self.ok(&["target", "add", &target, "--dir", &dir]).map(drop)
    }

    /// Adds and starts a node.
    pub(super) fn join(&mut self, name: &str, roles: &str) -> TestResult {
        let token = self.ok(&["cluster", "token", "--dir", &self.text(&self.dir("m"))])?.stdout;
        let token_file = self.base.join("token");
        fs::write(&token_file, token).at("token")?;
        let (dir, listen) = (self.text(&self.dir(name)), free_address()?);
        let file = self.text(&token_file);
        let line = ["node", "join", &file, "--dir", &dir, "--listen", &listen, "--name", name];
        self.ok(&[&line[..], &["--roles", roles, "--protection", self.protection]].concat())?;
        self.serve(name)
    }

    /// Waits until the metadata services execute these numbers of partitions, by node.
    fn wait_for_partitions(&self, counts: &[usize]) -> TestResult {
        let dir = self.text(&self.dir("m"));
        let mut last = serde_json::Value::Null;
        let reached = process::eventually(NOTICE_DEADLINE, || {
            last = self.json(&["meta", "list", "--dir", &dir]).unwrap_or_default();
            let executed = |meta: &serde_json::Value| meta["executed"].as_array().map_or(0, Vec::len);
            last.as_array().is_some_and(|metas| metas.iter().map(executed).eq(counts.iter().copied()))
        });
        ensure!(reached, "the services should execute {counts:?} partitions: {last}");
        Ok(())
    }

    /// Starts a node in the background and waits until it serves.
    pub(super) fn serve(&mut self, name: &str) -> TestResult {
        let mut command = Command::new(&self.weft);
        command.args(["serve", "--dir"]).arg(self.dir(name));
        let mut child = self.spawn(command, name)?;
        let socket = self.dir(name).join("control.sock");
        let dir = self.text(&self.dir(name));
        let serves = process::eventually(START_DEADLINE, || {
            let ended = !matches!(child.try_wait(), Ok(None));
            ended
                || socket.exists()
                    && self.weft(&["status", "--dir", &dir]).is_ok_and(|done| done.status.success())
        });
        let ended = !matches!(child.try_wait(), Ok(None));
        self.nodes.push((name.to_string(), child));
        ensure!(serves && !ended, "node {name} doesn't serve:\n    {}", last_lines(&self.log(name)));
        Ok(())
    }

    /// Mounts at `base/NAME`.
    pub(super) fn mount(&mut self, name: &str) -> TestResult<PathBuf> {
        let path = self.base.join(name);
        fs::create_dir_all(&path).at(path.display())?;
        let mut command = Command::new(&self.weft);
        command.arg("mount").arg(self.dir("m").join("client.toml")).arg(&path);
        command.args(["--foreground", "--transport", self.transport]);
        cleanup::register(Resource::Mount(path.clone()));
        let mut child = self.spawn(command, name)?;
        let mounted = process::eventually(START_DEADLINE, || {
            mounts::is_weft(&path) || !matches!(child.try_wait(), Ok(None))
        });
        let ended = !matches!(child.try_wait(), Ok(None));
        self.mounts.push((path.clone(), child));
        ensure!(mounted && !ended, "no mount at {}:\n    {}", path.display(), last_lines(&self.log(name)));
        Ok(path)
    }

    fn spawn(&self, mut command: Command, name: &str) -> TestResult<Child> {
        let log = self.base.join(format!("{name}.out"));
        let output = File::options().create(true).append(true).open(&log).at(log.display())?;
        let errors = output.try_clone().at(log.display())?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().at(name)?;
        cleanup::register(Resource::Process(child.id() as i32));
        Ok(child)
    }

    /// Kills a node as in a crash.
    pub(super) fn kill(&mut self, name: &str) {
        if let Some(at) = self.nodes.iter().position(|(other, _)| other == name) {
            let (_, mut child) = self.nodes.remove(at);
            drop(child.kill());
            drop(child.wait());
            cleanup::unregister(&Resource::Process(child.id() as i32));
        }
    }

    /// Unmounts cleanly.
    pub(super) fn unmount(&mut self, path: &Path) -> TestResult {
        let unmounted = self.ok(&["umount", &self.text(path)])?;
        let Some(at) = self.mounts.iter().position(|(other, _)| other == path) else { return Ok(()) };
        let (_, mut child) = self.mounts.remove(at);
        // The services may stop from now on.
        let has_ended = child.try_wait().at("the client")?.is_some();
        let status = process::wait(&mut child, STOP_DEADLINE).at("waiting for a client")?;
        cleanup::unregister(&Resource::Process(child.id() as i32));
        cleanup::unregister(&Resource::Mount(path.to_path_buf()));
        ensure!(
            has_ended,
            "weft umount has returned before the session had ended: {:?}",
            unmounted.stderr.trim()
        );
        ensure!(
            status.is_some_and(|status| status.success()),
            "the client of {} ended with {status:?}:\n    {}",
            path.display(),
            last_lines(&path.file_name().map_or_else(String::new, |name| self.log(&name.to_string_lossy())))
        );
        Ok(())
    }

    /// Stops a node cleanly.
    pub(super) fn stop(&mut self, name: &str) -> TestResult {
        self.ok(&["down", "--dir", &self.text(&self.dir(name))])?;
        let Some(at) = self.nodes.iter().position(|(other, _)| other == name) else { return Ok(()) };
        let (_, mut child) = self.nodes.remove(at);
        let status = process::wait(&mut child, STOP_DEADLINE).at("waiting for a node")?;
        cleanup::unregister(&Resource::Process(child.id() as i32));
        ensure!(
            status.is_some_and(|status| status.success()),
            "node {name} ended with {status:?}:\n    {}",
            last_lines(&self.log(name))
        );
        Ok(())
    }

    /// Restarts a node that has ended by itself, as systemd does.
    pub(super) fn serve_if_ended(&mut self, name: &str) -> TestResult {
        if self.forget_if_ended(name) { self.serve(name) } else { Ok(()) }
    }

    /// Waits until a node has ended by itself.
    pub(super) fn wait_for_end(&mut self, name: &str) -> TestResult {
        let ended = process::eventually(STOP_DEADLINE, || self.forget_if_ended(name));
        ensure!(ended, "node {name} keeps running:\n    {}", last_lines(&self.log(name)));
        Ok(())
    }

    fn forget_if_ended(&mut self, name: &str) -> bool {
        let has_ended =
            |(other, child): &mut (String, Child)| other == name && !matches!(child.try_wait(), Ok(None));
        let Some(at) = self.nodes.iter_mut().position(has_ended) else { return false };
        let (_, child) = self.nodes.remove(at);
        cleanup::unregister(&Resource::Process(child.id() as i32));
        true
    }

    /// Waits until a node has a state.
    pub(super) fn wait_for_node(&self, name: &str, state: &str) -> TestResult {
        let dir = self.text(&self.dir("m"));
        let mut seen = String::new();
        let reached = process::eventually(NOTICE_DEADLINE, || {
            let node = self.json(&["node", "show", name, "--dir", &dir]);
            seen = node.map_or_else(|e| format!("{e:?}"), |node| node["state"].to_string());
            seen == format!("{state:?}")
        });
        ensure!(reached, "node {name} is {seen} and not {state}:\n    {}", last_lines(&self.log("m")));
        Ok(())
    }

    pub(super) fn dir(&self, name: &str) -> PathBuf {
        self.base.join(format!("node-{name}"))
    }

    pub(super) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.base.join(format!("{name}.out"))).unwrap_or_default()
    }

    pub(super) fn text(&self, path: &Path) -> String {
        path.to_string_lossy().into_owned()
    }

    fn weft(&self, arguments: &[&str]) -> TestResult<Finished> {
        Ok(process::run(Command::new(&self.weft).args(arguments), COMMAND_DEADLINE)?)
    }

    pub(super) fn ok(&self, arguments: &[&str]) -> TestResult<Finished> {
        Ok(process::run_ok(Command::new(&self.weft).args(arguments), COMMAND_DEADLINE)?)
    }

    pub(super) fn json(&self, arguments: &[&str]) -> TestResult<serde_json::Value> {
        let done = self.ok(&[arguments, &["--json"]].concat())?;
        serde_json::from_str(&done.stdout)
            .map_err(|error| Failure::Failed(format!("weft {}: no JSON: {error}", arguments.join(" "))))
    }

    /// Runs a command that must be refused, with a hint.
    pub(super) fn refused(&self, arguments: &[&str], cause: &str) -> TestResult {
        let done = self.weft(arguments)?;
        ensure!(
            !done.status.success() && done.stderr.contains(cause) && done.stderr.contains("hint:"),
            "weft {} should be refused with {cause:?}: {}",
            arguments.join(" "),
            done.tail()
        );
        Ok(())
    }
}

impl Drop for ClusterRig {
    fn drop(&mut self) {
        for (path, mut child) in self.mounts.drain(..) {
            mounts::abort(&path);
            drop(child.kill());
            mounts::force_unmount(&path);
            drop(child.wait());
            cleanup::unregister(&Resource::Process(child.id() as i32));
            cleanup::unregister(&Resource::Mount(path));
        }
        for (_, mut child) in self.nodes.drain(..) {
            drop(child.kill());
            drop(child.wait());
            cleanup::unregister(&Resource::Process(child.id() as i32));
        }
    }
}

/// Returns an unused address.
fn free_address() -> TestResult<String> {
    let listener = TcpListener::bind("127.0.0.1:0").at("a free port")?;
    Ok(listener.local_addr().at("a free port")?.to_string())
}

/// Writes files of sizes around the limits: inline, one chunk, several chunks on both targets.
pub(super) fn write_files(dir: &Path, seed: u64) -> TestResult {
    for size in [0usize, 5, 4096, 4097, 1 << 20, 5 << 20] {
        let path = dir.join(format!("{seed}-{size}"));
        fs::write(&path, Rng::new(seed + size as u64).bytes(size)).at(path.display())?;
    }
    Ok(())
}

pub(super) fn check_files(dir: &Path, seed: u64) -> TestResult {
    for size in [0usize, 5, 4096, 4097, 1 << 20, 5 << 20] {
        let path = dir.join(format!("{seed}-{size}"));
        let found = fs::read(&path).at(path.display())?;
        ensure!(found == Rng::new(seed + size as u64).bytes(size), "content of {} differs", path.display());
    }
    Ok(())
}

/// Checks the connections to the nodes that a mount reports: each node has at least one, and all
/// use this transport.
fn ensure_transports(rig: &ClusterRig, mount: &Path, transport: &str) -> TestResult {
    let peers = rig.json(&["net", "show", &rig.text(mount)])?;
    let all = peers.as_array().cloned().unwrap_or_default();
    let nodes: Vec<_> = all
        .iter()
        .filter(|peer| peer["name"].as_str().is_some_and(|name| name.starts_with("node ")))
        .collect();
    ensure_eq!(nodes.len(), 3, "nodes that the mount at {} is connected to: {peers}", mount.display());
    for node in nodes {
        let links = node["links"].as_array().cloned().unwrap_or_default();
        let ways: Vec<_> = links.iter().filter_map(|link| link["connected"].as_str()).collect();
        ensure!(
            !ways.is_empty() && ways.iter().all(|way| way.contains(transport)),
            "not by {transport}: {node}"
        );
    }
    Ok(())
}

fn two_nodes_two_mounts(stage: &Stage) -> TestResult {
    let mut rig = ClusterRig::start(stage, "cluster-two", "tls")?;
    rig.add_node("a")?;
    let first = rig.mount("mnt1")?;
    // The second node comes after the client: the client finds it without a new mount.
    rig.add_node("b")?;
    let second = rig.mount("mnt2")?;
    fs::create_dir(first.join("one")).at("mkdir")?;
    write_files(&first.join("one"), 1)?;
    check_files(&second.join("one"), 1)?;
    fs::create_dir(second.join("two")).at("mkdir")?;
    write_files(&second.join("two"), 2)?;
    check_files(&first.join("two"), 2)?;
    ensure_transports(&rig, &first, "(shared memory)")?;

    let dir = rig.text(&rig.dir("m"));
    let nodes = rig.json(&["node", "list", "--dir", &dir])?;
    ensure_eq!(nodes.as_array().map(Vec::len), Some(3), "nodes");
    let health = rig.weft(&["health", "--json", "--dir", &dir])?;
    ensure!(is_healthy(&health.stdout), "not healthy: {}", health.stdout);
    // Any node answers.
    let elsewhere = rig.text(&rig.dir("b"));
    let targets = rig.json(&["target", "list", "--dir", &elsewhere])?;
    let used = |target: &serde_json::Value| target["state"].as_str() == Some("online");
    ensure!(
        targets.as_array().is_some_and(|list| list.len() == 2 && list.iter().all(used)),
        "targets: {targets}"
    );
    rig.json(&["net", "show", "--dir", &dir])?;
    rig.json(&["session", "list", "--dir", &dir])?;

    by_mount_helper(&rig, &first)?;
    changes_clear_file_capabilities(&first, &second)?;
    rig.unmount(&first)?;
    rig.unmount(&second)?;
    ["b", "a", "m"].iter().try_for_each(|name| rig.stop(name))?;
    ["m", "a", "b"].iter().try_for_each(|name| rig.serve(name))?;
    let again = rig.mount("mnt1")?;
    check_files(&again.join("one"), 1)?;
    check_files(&again.join("two"), 2)?;
    rig.unmount(&again)
}

/// A file with file capabilities loses them when an unprivileged user changes it.
fn changes_clear_file_capabilities(first: &Path, second: &Path) -> TestResult {
    const OTHER_USER: u32 = 65534;
    const CAPABILITY: &str = "security.capability";
    // Revision 2, effective: CAP_NET_RAW (linux/capability.h).
    const NET_RAW: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    let value: Vec<u8> = NET_RAW.iter().flat_map(|word| word.to_le_bytes()).collect();
    let path = first.join("program");
    let set = || sys::set_xattr(&path, CAPABILITY, &value, 0).at(CAPABILITY);
    let ensure_taken = |change: &str| -> TestResult {
        for mount in [first, second] {
            let left = sys::get_xattr(&mount.join("program"), CAPABILITY);
            expect_errno(left, libc::ENODATA, format!("capabilities after `{change}`"))?;
        }
        Ok(())
    };
    let changes = ["echo more >> program", "truncate -s 2 program", "fallocate --length 100 program"];
    for length in [100, 1 << 20] {
        for change in changes {
            fs::write(&path, vec![b'x'; length]).at("program")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).at("chmod")?;
            set()?;
            ensure_eq!(
                sys::get_xattr(&second.join("program"), CAPABILITY).at(CAPABILITY)?,
                value,
                "capabilities on another mount"
            );
            let mut shell = Command::new("sh");
            shell.args(["-c", change]).current_dir(first).uid(OTHER_USER).gid(OTHER_USER);
            process::run_ok(&mut shell, START_DEADLINE)?;
            ensure_taken(change)?;
        }
        // Also through a file that was opened and written earlier.
        let file = File::options().write(true).open(&path).at("program")?;
        file.write_all_at(b"before", 0).at("write")?;
        set()?;
        file.write_all_at(b"after", 0).at("write")?;
        ensure_taken("a write through a file that was open")?;
    }
    Ok(())
}

/// Mounts a client's line in fstab as mount(8) does.
fn by_mount_helper(rig: &ClusterRig, other: &Path) -> TestResult {
    let (file, path) = (rig.text(&rig.dir("m").join("client.toml")), rig.base.join("fstab"));
    fs::create_dir(&path).at("fstab")?;
    let refused = rig.weft(&["mount-helper", &file, &rig.text(&path), "-o", "backups=3"])?;
    ensure!(!refused.status.success() && refused.stderr.contains("backups"), "{}", refused.tail());
    cleanup::register(Resource::Mount(path.clone()));
    rig.ok(&["mount-helper", &file, &rig.text(&path), "-o", "ro,_netdev,timeout=30"])?;
    check_files(&path.join("one"), 1)?;
    ensure!(fs::write(path.join("new"), "x").is_err(), "a mount that is to be read-only takes a file");
    ensure!(!other.join("new").exists(), "it is there");
    // The mount of the line in fstab exists already.
    let table = rig.base.join("fstab.txt");
    fs::write(&table, format!("{file} {} fuse.weft ro,_netdev 0 0\n", path.display())).at("the table")?;
    let all =
        process::run_ok(Command::new("mount").arg("-T").arg(&table).args(["-a", "-v"]), COMMAND_DEADLINE)?;
    ensure!(all.stdout.contains("already mounted"), "mount -a says: {}", all.stdout);
    rig.ok(&["umount", &rig.text(&path)])?;
    cleanup::unregister(&Resource::Mount(path));
    Ok(())
}

/// Returns the control sockets of a mount, private and public.
fn sockets_of(mount: &str) -> Vec<PathBuf> {
    let below = |folder| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_of_mount = |path: &PathBuf| path.to_string_lossy().ends_with(&format!("-{mount}.sock"));
    ["/run/weft", "/run/weft-public"].into_iter().flat_map(below).filter(is_of_mount).collect()
}

fn killed_mount(stage: &Stage) -> TestResult {
    let mut rig = ClusterRig::start(stage, "killed-mount", "plain")?;
    rig.add_node("a")?;
    let name = format!("killed{}", std::process::id());
    let path = rig.mount(&name)?;
    let opened = process::eventually(START_DEADLINE, || sockets_of(&name).len() == 2);
    ensure!(opened, "the sockets of the mount are {:?}", sockets_of(&name));
    let (_, mut child) = rig.mounts.pop().ok_or_else(|| "no mount".to_string())?;
    drop(child.kill());
    drop(child.wait());
    cleanup::unregister(&Resource::Process(child.id() as i32));
    let removed = process::eventually(NOTICE_DEADLINE, || sockets_of(&name).is_empty());
    ensure!(removed, "the killed mount has left {:?}", sockets_of(&name));
    mounts::force_unmount(&path);
    cleanup::unregister(&Resource::Mount(path));
    Ok(())
}

fn killed_node(stage: &Stage) -> TestResult {
    let mut rig = ClusterRig::start(stage, "cluster-killed", "plain")?;
    rig.add_node("a")?;
    rig.add_node("b")?;
    let mount = rig.mount("mnt1")?;
    write_files(&mount, 1)?;
    rig.kill("b");
    rig.wait_for_node("b", "probably-offline")?;
    rig.serve("b")?;
    rig.wait_for_node("b", "online")?;
    check_files(&mount, 1)?;
    write_files(&mount, 2)?;

    // Management is killed and restarted; the nodes register again, the client continues.
    rig.kill("m");
    rig.serve("m")?;
    rig.wait_for_node("a", "online")?;
    check_files(&mount, 2)?;
    write_files(&mount, 3)?;
    rig.unmount(&mount)?;
    let again = rig.mount("mnt2")?;
    (1..=3).try_for_each(|seed| check_files(&again, seed))
}

/// Creates directories whose inodes are spread over all metadata services, and moves files between
/// them.
fn shuffle(from: &Path, to: &Path, round: usize) -> TestResult {
    for i in 0..24 {
        let (old, new) = (from.join(format!("dir{i}")), to.join(format!("dir{}", (i + 7) % 24)));
        let name = format!("{round}-{i}");
        fs::write(old.join(&name), &name).at("write")?;
        fs::rename(old.join(&name), new.join(format!("moved-{name}"))).at("rename to another directory")?;
        fs::hard_link(new.join(format!("moved-{name}")), old.join(format!("link-{name}"))).at("link")?;
        fs::create_dir_all(old.join("sub").join(&name)).at("mkdir")?;
        fs::rename(old.join("sub").join(&name), new.join(format!("sub-{name}")))
            .at("rename of a directory")?;
        fs::remove_dir(new.join(format!("sub-{name}"))).at("rmdir")?;
    }
    Ok(())
}

fn check_shuffled(at: &Path, round: usize) -> TestResult {
    for i in 0..24 {
        let name = format!("{round}-{i}");
        let moved = at.join(format!("dir{}", (i + 7) % 24)).join(format!("moved-{name}"));
        let link = at.join(format!("dir{i}")).join(format!("link-{name}"));
        for path in [moved, link] {
            let found = fs::read_to_string(&path).at(path.display())?;
            ensure_eq!(found, name, "content of {}", path.display());
        }
    }
    Ok(())
}

fn metadata_nodes(stage: &Stage) -> TestResult {
    let mut rig = ClusterRig::start(stage, "cluster-metas", "tls")?;
    rig.add_node("a")?;
    let first = rig.mount("mnt1")?;
    (0..24).try_for_each(|i| fs::create_dir(first.join(format!("dir{i}"))).at("mkdir"))?;
    shuffle(&first, &first, 1)?;

    // Half of the partitions move to a new node while a client is mounted.
    rig.join("b", "meta")?;
    rig.wait_for_partitions(&[32, 32])?;
    let second = rig.mount("mnt2")?;
    check_shuffled(&second, 1)?;
    shuffle(&second, &second, 2)?;
    check_shuffled(&first, 2)?;
    shuffle(&first, &first, 3)?;
    check_shuffled(&second, 3)?;

    // It crashes, and the other node takes over; applications wait and continue.
    rig.kill("b");
    shuffle(&first, &first, 4)?;
    check_shuffled(&second, 4)?;
    rig.wait_for_partitions(&[64, 0])?;

    // It restarts, and management and the store crash.
    rig.serve("b")?;
    rig.wait_for_partitions(&[32, 32])?;
    shuffle(&second, &second, 5)?;
    rig.kill("m");
    rig.serve("m")?;
    (1..=5).try_for_each(|round| check_shuffled(&first, round))?;
    shuffle(&first, &first, 6)?;
    check_shuffled(&second, 6)?;

    // Also by a clean stop.
    rig.stop("b")?;
    rig.wait_for_partitions(&[64, 0])?;
    check_shuffled(&second, 6)?;
    rig.unmount(&second)?;
    rig.unmount(&first)
}

/// A target is drained under load and removed, and then its node is; all data is then on the other
/// nodes.
fn drained_target(stage: &Stage) -> TestResult {
    let mut rig = ClusterRig::start(stage, "cluster-drain", "plain")?;
    ["a", "b", "c"].iter().try_for_each(|name| rig.add_node(name))?;
    let (first, second) = (rig.mount("mnt1")?, rig.mount("mnt2")?);
    write_files(&first, 1)?;
    let path = first.join("in-use");
    fs::write(&path, Rng::new(9).bytes(64 << 20)).at("a large file")?;
    let dir = rig.text(&rig.dir("m"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let expected = std::thread::scope(|scope| -> TestResult<Vec<u8>> {
        let writer = scope.spawn(|| rewrite(&path, &stop));
        let drained = rig.ok(&["target", "drain", "1", "--wait", "--dir", &dir]);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let expected = writer.join().map_err(|_| Failure::Failed("the writer panicked".into()))?;
        drained.and(expected)
    })?;
    let progress = rig.json(&["target", "drain", "1", "--dir", &dir])?;
    ensure_eq!(progress["empty"].as_bool(), Some(true), "of {progress}");
    rig.ok(&["target", "remove", "1", "--dir", &dir])?;
    rig.stop("a")?;
    ensure!(
        fs::read(second.join("in-use")).at("in-use")? == expected,
        "the file that was written has changed"
    );
    check_files(&second, 1)?;
    write_files(&second, 2)?;
    check_files(&first, 2)?;
    rig.ok(&["node", "remove", "a", "--dir", &dir])?;
    rig.unmount(&first)?;
    rig.unmount(&second)
}

/// Overwrites a file until it is stopped, at least once completely. Returns its final content.
fn rewrite(path: &Path, stop: &std::sync::atomic::AtomicBool) -> TestResult<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    const BLOCK: usize = 24 << 10;
    let mut expected = Rng::new(9).bytes(64 << 20);
    let file = File::options().write(true).open(path).at("in-use")?;
    let mut random = Rng::new(10);
    for round in 0_u64.. {
        let at = (round as usize * 7_919 * BLOCK) % (expected.len() - BLOCK);
        let block = random.bytes(BLOCK);
        file.write_all_at(&block, at as u64).at("in-use")?;
        expected[at..at + BLOCK].copy_from_slice(&block);
        if round > 3000 && stop.load(std::sync::atomic::Ordering::Relaxed) {
            break;
        }
    }
    file.sync_all().at("in-use")?;
    Ok(expected)
}

fn refusals(stage: &Stage) -> TestResult {
    let mut rig = ClusterRig::start(stage, "cluster-refusals", "plain")?;
    rig.add_node("a")?;
    let (m, a) = (rig.text(&rig.dir("m")), rig.text(&rig.dir("a")));
    let fresh = rig.text(&rig.base.join("fresh"));
    rig.refused(&["cluster", "init", "--name", "x", "--dir", &m], "already")?;
    rig.refused(&["node", "join", "weft-join-nonsense", "--dir", &fresh], "token")?;
    let token = rig.ok(&["cluster", "token", "--dir", &m])?.stdout;
    let token = token.trim();
    rig.refused(
        &["node", "join", token, "--dir", &fresh, "--roles", "mgmt,storage", "--protection", "plain"],
        "roles \"mgmt,storage\"",
    )?;
    rig.refused(&["node", "join", token, "--dir", &a, "--protection", "plain"], "already")?;
    // Encryption is refused, since the cluster doesn't use it.
    rig.refused(&["node", "join", token, "--dir", &fresh], "--protection is the cluster's")?;
    ensure!(!Path::new(&fresh).exists(), "a join that was refused has left {fresh}");
    rig.refused(&["up", "--dir", &a, "--mount", &rig.text(&rig.base)], "")?;
    rig.refused(&["target", "set", "1", "--drain", "on", "--dir", &m], "last of pool")?;
    rig.refused(&["target", "remove", "1", "--dir", &m], "new files")?;
    rig.refused(&["node", "remove", "a", "--dir", &m], "targets")?;
    rig.refused(&["node", "show", "nobody", "--dir", &m], "nobody")?;
    rig.refused(&["session", "evict", "12345", "--dir", &m], "12345")?;
    // A copy of a node's directory.
    let copy = rig.base.join("node-copy");
    process::run_ok(Command::new("cp").arg("-a").arg(&a).arg(&copy), COMMAND_DEADLINE)?;
    for leftover in ["lock", "control.sock", "weft.pid"] {
        drop(fs::remove_file(copy.join(leftover)));
    }
    let listen = free_address()?;
    let config = fs::read_to_string(copy.join("node.toml")).at("node.toml")?;
    let lines: Vec<String> = config
        .lines()
        .map(|line| match line.split_once(" = ") {
            Some((key @ ("listen" | "addresses"), _)) => format!("{key} = [\"{listen}\"]"),
            _ => line.to_string(),
        })
        .take_while(|line| line != "[[target]]")
        .collect();
    fs::write(copy.join("node.toml"), lines.join("\n")).at("node.toml")?;
    rig.refused(&["serve", "--dir", &rig.text(&copy)], "already running")
}

/// The first node with the defaults of `weft cluster init`: all roles, and its own disks. It is
/// restarted while applications run.
fn all_roles(stage: &Stage) -> TestResult {
    let mut rig = ClusterRig::start_as(stage, "cluster-roles", "tls", &[])?;
    rig.add_target("m")?;
    rig.add_node("a")?;
    let m = rig.text(&rig.dir("m"));
    let mount = rig.mount("mnt")?;
    let mirrored = mount.join("mirrored");
    fs::create_dir(&mirrored).at("mkdir")?;
    rig.ok(&["entry", "set-pattern", &rig.text(&mirrored), "--scheme", "mirror:2"])?;
    for seed in 1..=4 {
        let (single, copied) = (mount.clone(), mirrored.clone());
        let program = thread::spawn(move || -> TestResult {
            sys::unshare_files().at("the program's files")?;
            for dir in [single, copied] {
                write_files(&dir, seed)?;
                (1..=seed).try_for_each(|seed| check_files(&dir, seed))?;
            }
            Ok(())
        });
        match seed % 2 {
            0 => rig.kill("m"),
            _ => rig.stop("m")?,
        }
        rig.serve("m")?;
        program.join().map_err(|_| "the program has panicked".to_string())??;
        let mut health = String::new();
        let healthy = process::eventually(NOTICE_DEADLINE, || {
            health = rig
                .weft(&["health", "--json", "--dir", &m])
                .map_or_else(|e| format!("{e:?}"), |done| done.stdout);
            is_healthy(&health)
        });
        ensure!(healthy, "after {seed} starts: {health}\n    {}", last_lines(&rig.log("m")));
    }
    for name in ["m", "a"] {
        rig.stop(name)?;
    }
    // The name space can be checked only where it is stored.
    for arguments in [&["fsck", "--dir", &m][..], &["fsck", "--repair", "--dir", &m]] {
        let names = rig.json(arguments)?;
        ensure!(names["verdict"] == "clean" && names["files"] == 48 && names["chunk_files"] == 0, "{names}");
    }
    rig.refused(&["fsck", "--dir", &rig.text(&rig.dir("a"))], "the node is not running")?;
    for name in ["m", "a"] {
        rig.serve(name)?;
    }
    for dir in [&mount, &mirrored] {
        (1..=4).try_for_each(|seed| check_files(dir, seed))?;
    }
    // State that crash reconciliation repairs isn't reported as damage.
    write_files(&mirrored, 5)?;
    for name in ["m", "a"] {
        rig.kill(name);
    }
    for name in ["m", "a"] {
        rig.serve(name)?;
    }
    rig.ok(&["fsck", "--dir", &m])?;
    check_files(&mirrored, 5)?;
    rig.unmount(&mount)
}
