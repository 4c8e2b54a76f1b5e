//! A cluster on separate nodes as far as the network is concerned: management with metadata,
//! storage nodes and mounts, each in its own network namespace.

mod addresses;
mod async_create;
mod bench_by_clients;
mod bench_client_core;
mod ceilings;
mod clients;
mod commands;
mod disks;
mod evicted;
mod exports;
mod faults;
mod fsck;
mod hang;
mod idmapped;
mod kills;
mod load;
mod lost_target;
mod mapped_database;
mod migrate;
mod mirror;
mod namespaces;
mod power_loss;
mod prefix_delegations;
mod racks;
mod replicas;
mod scrub;
mod tests;
mod two_mounts;
mod unmounted_disk;
mod write_behind;

use super::cleanup::{self, Resource};
use super::disk::Disk;
use super::mounts;
use super::netns::{Network, Node, Plan, Recipe, Role, Service};
use super::outcome::{At, TestResult};
use super::stage::Stage;
use crate::process;
use commands::Commands;
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(super) use addresses::TESTS as ADDRESS_TESTS;
pub(super) use async_create::TESTS as PROMISE_TESTS;
pub(super) use bench_by_clients::TESTS as TOGETHER_TESTS;
pub(super) use bench_client_core::TESTS as THROUGH_TESTS;
pub(super) use ceilings::TESTS as CEILING_TESTS;
pub(super) use clients::TESTS as CLIENT_TESTS;
pub(super) use disks::TESTS as DISK_TESTS;
pub(super) use evicted::TESTS as EVICTION_TESTS;
pub(super) use exports::TESTS as EXPORT_TESTS;
pub(super) use fsck::TESTS as FSCK_TESTS;
pub(super) use hang::TESTS as HANG_TESTS;
pub(super) use idmapped::TESTS as IDMAPPED_TESTS;
pub(super) use kills::TESTS as KILL_TESTS;
pub(super) use lost_target::TESTS as REMOVAL_TESTS;
pub(super) use mapped_database::TESTS as MAPPED_TESTS;
pub(super) use migrate::TESTS as MIGRATE_TESTS;
pub(super) use mirror::TESTS as MIRROR_TESTS;
pub(super) use namespaces::TESTS as NAMESPACE_TESTS;
pub(super) use power_loss::TESTS as POWER_TESTS;
pub(super) use prefix_delegations::TESTS as RANGE_TESTS;
pub(super) use racks::TESTS as RACK_TESTS;
pub(super) use scrub::TESTS as SCRUB_TESTS;
pub(super) use tests::TESTS;
pub(super) use two_mounts::TESTS as TWICE_TESTS;
pub(super) use unmounted_disk::TESTS as UNMOUNT_TESTS;
pub(super) use write_behind::TESTS as BEHIND_TESTS;

/// Longest time until a service serves requests.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// The `statfs` type of a FUSE file system, as printed by `stat`.
const FUSE_MAGIC: &str = "65735546";

/// Deadline of one administrative command.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);

/// Numbers of a cluster's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Metadata nodes in addition to the management node, which also has a metadata service.
    pub metadata: u8,
    /// Storage nodes.
    pub storage: u8,
    /// Mounts.
    pub clients: u8,
    /// `--timeout` of the mounts in seconds, if not the default.
    pub timeout: Option<u64>,
}

/// One process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Management, with a metadata service.
    Management,
    /// A metadata node.
    Metadata(usize),
    /// A storage node.
    Storage(usize),
    /// A mount.
    Client(usize),
}

/// Creates the disk of a storage node.
type MakeDisk<'a> = &'a dyn Fn(&Path) -> TestResult<Disk>;

/// A running cluster; dropping it removes everything.
pub struct Cluster {
    commands: Commands,
    base: PathBuf,
    timeout: Option<u64>,
    /// Additional options of the mounts.
    mount_options: &'static [&'static str],
    // Dropped in this order: mounts, then the services that they need, then the network.
    clients: Vec<Service>,
    storage: Vec<Service>,
    metadata: Vec<Service>,
    management: Option<Service>,
    /// Separate disks of the storage nodes, if any; dropped after the processes that use them.
    disks: Vec<Disk>,
    /// The nodes and their links.
    pub network: Network,
}

impl Cluster {
    /// Creates a cluster of one management node and the given numbers of storage nodes and mounts.
    pub fn start(stage: &Stage, name: &str, storage: u8, clients: u8) -> TestResult<Cluster> {
        Cluster::build(stage, name, Shape { metadata: 0, storage, clients, timeout: None })
    }

    /// Creates a cluster of this shape.
    pub fn build(stage: &Stage, name: &str, shape: Shape) -> TestResult<Cluster> {
        Cluster::build_with(stage, name, shape, None, &[])
    }

    /// The same, with additional mount options.
    pub fn build_mounted(
        stage: &Stage,
        name: &str,
        shape: Shape,
        options: &'static [&'static str],
    ) -> TestResult<Cluster> {
        Cluster::build_with(stage, name, shape, None, options)
    }

    /// The same; `disk` creates the disk of a storage node, mounted at `target` in the given
    /// folder.
    fn build_with(
        stage: &Stage,
        name: &str,
        shape: Shape,
        disk: Option<MakeDisk<'_>>,
        mount_options: &'static [&'static str],
    ) -> TestResult<Cluster> {
        let Shape { metadata, storage, clients, timeout } = shape;
        let commands = Commands::new(stage.binary()?)?;
        let network = Network::new(Plan { management: 1, metadata, storage, clients })?;
        let base = stage.base(name)?;
        let mut cluster = Cluster {
            commands,
            base,
            timeout,
            mount_options,
            clients: Vec::new(),
            storage: Vec::new(),
            metadata: Vec::new(),
            management: None,
            disks: Vec::new(),
            network,
        };
        cluster.start_management()?;
        for index in 0..metadata.into() {
            let service = cluster.start_member(Role::Metadata, index)?;
            cluster.metadata.push(service);
        }
        for index in 0..storage.into() {
            if let Some(disk) = disk {
                let folder = cluster.folder(cluster.network.node(Role::Storage, index))?;
                cluster.disks.push(disk(&folder)?);
            }
            let service = cluster.start_member(Role::Storage, index)?;
            cluster.storage.push(service);
        }
        cluster.wait_until_healthy()?;
        for index in 0..clients.into() {
            cluster.start_client(index)?;
        }
        Ok(cluster)
    }

    fn folder(&self, node: &Node) -> TestResult<PathBuf> {
        self.network.folder(&self.base, node)
    }

    fn recipe(&self, node: &Node, arguments: Vec<OsString>) -> TestResult<Recipe> {
        let log = self.folder(node)?.join("output");
        Ok(Recipe { program: self.commands.weft().to_path_buf(), arguments, log })
    }

    /// Runs a weft command on a node; it must succeed.
    pub fn run(&self, node: &Node, arguments: &[OsString]) -> TestResult<String> {
        let mut command = node.command(self.commands.weft());
        Ok(process::run_ok(command.args(arguments), COMMAND_DEADLINE)?.stdout)
    }

    fn start_management(&mut self) -> TestResult {
        let node = self.network.node(Role::Management, 0);
        let dir = self.folder(node)?.join("state");
        self.run(node, &self.commands.init(&dir, node.address))?;
        let recipe = self.recipe(node, self.commands.serve(&dir))?;
        self.management = Some(Service::start(node, recipe)?);
        self.wait_until_served(&dir, "management")
    }

    /// Joins a node to the cluster and starts it.
    fn start_member(&self, role: Role, index: usize) -> TestResult<Service> {
        let node = self.network.node(role, index);
        let dir = self.folder(node)?.join("state");
        let token = self.ask_management(|management| self.commands.token(management))?;
        self.run(node, &self.commands.join(token.trim(), node, &dir))?;
        if role == Role::Storage {
            let target = self.folder(node)?.join("target");
            self.run(node, &self.commands.add_target(&dir, &target))?;
        }
        let recipe = self.recipe(node, self.commands.serve(&dir))?;
        let service = Service::start(node, recipe)?;
        self.wait_until_served(&dir, &node.to_string())?;
        Ok(service)
    }

    /// Runs a command on the management node; `command` gets that node's folder.
    fn ask_management(&self, command: impl FnOnce(&Path) -> Vec<OsString>) -> TestResult<String> {
        let node = self.network.node(Role::Management, 0);
        self.run(node, &command(&self.folder(node)?.join("state")))
    }

    fn start_client(&mut self, index: usize) -> TestResult {
        let node = self.network.node(Role::Client, index);
        let mount = self.mount(index);
        fs::create_dir_all(&mount).at(mount.display())?;
        let cluster_file = self.write_cluster_file(index, &[])?;
        let arguments = self.commands.mount(&cluster_file, &mount, self.timeout, self.mount_options);
        let recipe = self.recipe(node, arguments)?;
        cleanup::register(Resource::Mount(mount.clone()));
        self.clients.push(Service::start(node, recipe)?);
        self.wait_until_mounted(index)
    }

    /// Adds a client, with additional options of `weft client add`, and writes its cluster file.
    fn write_cluster_file(&self, index: usize, options: &[&str]) -> TestResult<PathBuf> {
        let node = self.network.node(Role::Client, index);
        let path = self.folder(node)?.join("cluster");
        let name = node.to_string();
        let content =
            self.ask_management(|management| self.commands.cluster_file(management, &name, options))?;
        // The file contains a private key, and is rejected if others may read it.
        let mut file = fs::OpenOptions::new();
        let file = file.write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(content.as_bytes())).at(path.display())?;
        Ok(path)
    }

    fn wait_until_mounted(&mut self, index: usize) -> TestResult {
        let mount = self.mount(index);
        let service = &mut self.clients[index];
        // Succeeds only if the client serves requests: the kernel also lists the mount of a killed
        // client. The kernel may cache attributes of the root, but not the file system's state.
        // Between the end of a killed client's mount and the next mount, the bare folder answers,
        // which is on another file system.
        let answers = || {
            let mut asked = Command::new("stat");
            asked.args(["--file-system", "--format=%t"]).arg(&mount);
            process::run_ok(&mut asked, START_DEADLINE).is_ok_and(|said| said.stdout.trim() == FUSE_MAGIC)
        };
        let mounted = process::eventually(START_DEADLINE, || {
            mounts::is_weft(&mount) && answers() || !service.is_running()
        });
        if !mounted || !service.is_running() {
            return Err(format!("client {index} didn't mount:\n    {}", service.last_lines()).into());
        }
        Ok(())
    }

    fn wait_until_served(&self, dir: &Path, what: &str) -> TestResult {
        let up = process::eventually(START_DEADLINE, || self.commands.is_served(dir));
        if up { Ok(()) } else { Err(format!("{what} doesn't serve:\n    {}", self.log()).into()) }
    }

    /// Waits until all nodes have reported to management and health has no findings.
    pub fn wait_until_healthy(&self) -> TestResult {
        let node = self.network.node(Role::Management, 0);
        let arguments = self.commands.health(&self.folder(node)?.join("state"));
        let mut last = None;
        let healthy = process::eventually(START_DEADLINE, || {
            let asked = process::run(node.command(self.commands.weft()).args(&arguments), COMMAND_DEADLINE);
            last.insert(asked).as_ref().is_ok_and(|answer| is_healthy(&answer.stdout))
        });
        if healthy { Ok(()) } else { Err(format!("not healthy: {last:?}\n    {}", self.log()).into()) }
    }

    /// Returns a client's mount point.
    pub fn mount(&self, client: usize) -> PathBuf {
        let node = self.network.node(Role::Client, client);
        self.base.join(&self.network.name).join(node.to_string()).join("mnt")
    }

    /// Creates a folder. Returns its path on all mounts.
    pub fn shared_folder(&self, name: &str) -> TestResult<Vec<PathBuf>> {
        let folders: Vec<PathBuf> =
            (0..self.clients.len()).map(|client| self.mount(client).join(name)).collect();
        fs::create_dir(&folders[0]).at(folders[0].display())?;
        Ok(folders)
    }

    /// Sets the pattern of new files in a mounted folder, with options of `weft entry set-pattern`.
    pub fn set_pattern(&self, folder: &Path, options: &[&str]) -> TestResult {
        let mut command = Command::new(self.commands.weft());
        command.args(["entry", "set-pattern"]).args(options).arg(folder);
        process::run_ok(&mut command, COMMAND_DEADLINE)?;
        Ok(())
    }

    /// Returns the process of a client.
    pub fn client(&self, index: usize) -> &Service {
        &self.clients[index]
    }

    /// Kills a storage node as in a crash.
    pub fn kill_storage(&mut self, index: usize) {
        self.storage[index].kill();
    }

    /// Stops a storage node's process (SIGSTOP).
    pub fn freeze_storage(&self, index: usize) -> TestResult {
        self.storage[index].freeze()
    }

    /// Restarts a storage node that has ended.
    pub fn restart_storage(&mut self, index: usize) -> TestResult {
        self.storage[index].restart(self.network.node(Role::Storage, index))
    }

    /// Returns every process except the mounts.
    pub fn servers(&self) -> Vec<Part> {
        let metadata = (0..self.metadata.len()).map(Part::Metadata);
        let storage = (0..self.storage.len()).map(Part::Storage);
        std::iter::once(Part::Management).chain(metadata).chain(storage).collect()
    }

    /// Returns the node of a process.
    pub fn node(&self, part: Part) -> &Node {
        match part {
            Part::Management => self.network.node(Role::Management, 0),
            Part::Metadata(index) => self.network.node(Role::Metadata, index),
            Part::Storage(index) => self.network.node(Role::Storage, index),
            Part::Client(index) => self.network.node(Role::Client, index),
        }
    }

    /// Returns a process.
    pub fn service(&mut self, part: Part) -> &mut Service {
        match part {
            Part::Management => self.management.as_mut().expect("it runs until the cluster ends"),
            Part::Metadata(index) => &mut self.metadata[index],
            Part::Storage(index) => &mut self.storage[index],
            Part::Client(index) => &mut self.clients[index],
        }
    }

    /// Restarts a process that has ended, and waits until it serves requests. A new client removes
    /// the mount of the killed one.
    pub fn restart(&mut self, part: Part) -> TestResult {
        let role = match part {
            Part::Management => (Role::Management, 0),
            Part::Metadata(index) => (Role::Metadata, index),
            Part::Storage(index) => (Role::Storage, index),
            Part::Client(index) => (Role::Client, index),
        };
        let node = self.network.node(role.0, role.1);
        let dir = self.folder(node)?.join("state");
        let service = match part {
            Part::Management => self.management.as_mut().expect("it runs until the cluster ends"),
            Part::Metadata(index) => &mut self.metadata[index],
            Part::Storage(index) => &mut self.storage[index],
            Part::Client(index) => &mut self.clients[index],
        };
        service.restart(node)?;
        match part {
            Part::Client(index) => self.wait_until_mounted(index),
            _ => self.wait_until_served(&dir, &self.node(part).to_string()),
        }
    }

    /// Returns the ends of all logs, for messages.
    pub fn log(&self) -> String {
        let all = self.management.iter().chain(&self.metadata).chain(&self.storage).chain(&self.clients);
        all.map(Service::last_lines).collect::<Vec<_>>().join("\n    ---\n    ")
    }

    /// Returns a sentence about each client whose mount is gone: applications continue in the empty
    /// folder below it then, which explains all of their failures.
    pub fn unmounted_clients(&self) -> String {
        let gone = (0..self.clients.len()).map(|client| self.mount(client));
        let gone = gone.filter(|mount| mounts::find(mount).is_none());
        gone.map(|mount| format!("{} isn't mounted any more; ", mount.display())).collect()
    }

    /// Stops everything as an administrator does; fails if a process doesn't end cleanly.
    pub fn stop(mut self) -> TestResult {
        for (index, mut client) in std::mem::take(&mut self.clients).into_iter().enumerate() {
            let status = client.terminate()?;
            let mount = self.mount(index);
            if !status.success() || mounts::find(&mount).is_some() {
                let log = client.last_lines();
                return Err(format!("client {index} left a mount or ended with {status}:\n    {log}").into());
            }
            cleanup::unregister(&Resource::Mount(mount));
        }
        let storage = std::mem::take(&mut self.storage).into_iter();
        let metadata = std::mem::take(&mut self.metadata).into_iter();
        for mut service in storage.chain(metadata).chain(self.management.take()) {
            let status = service.terminate()?;
            if !status.success() {
                return Err(format!("a service ended with {status}:\n    {}", service.last_lines()).into());
            }
        }
        Ok(())
    }
}

/// Returns whether the output of `weft health --json` has no findings, except for low disk space on
/// the test machine.
pub fn is_healthy(health: &str) -> bool {
    let findings = serde_json::from_str::<Value>(health).map(|health| health["findings"].clone());
    let about_room =
        |found: &Value| found["what"].as_str().is_some_and(|what| what.contains("is nearly full"));
    findings.is_ok_and(|found| found.as_array().is_some_and(|all| all.iter().all(about_room)))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A killed client leaves its mount, and processes that wait for it continue only when the
        // connection is aborted.
        for index in 0..self.clients.len() {
            let mount = self.mount(index);
            mounts::abort(&mount);
            self.clients[index].kill();
            mounts::force_unmount(&mount);
            cleanup::unregister(&Resource::Mount(mount));
        }
    }
}

#[cfg(test)]
mod health_tests {
    use super::is_healthy;

    #[test]
    fn a_cluster_on_a_full_disk_is_as_healthy_as_it_can_be() {
        let finding = |what: &str| format!(r#"{{"verdict":"warning","what":"{what}","hint":"-"}}"#);
        let (room, node) =
            (finding("target 1 (/t on node 2) is nearly full: 7 MiB free"), finding("node 2 (b) is offline"));
        let said = |findings: &str| format!(r#"{{"verdict":"warning","findings":[{findings}]}}"#);
        assert!(is_healthy(&said("")) && is_healthy(&said(&room)));
        assert!(!is_healthy(&said(&node)) && !is_healthy(&said(&format!("{room},{node}"))));
        assert!(!is_healthy("") && !is_healthy("{}"));
    }
}
