//! The nodes, their addresses and their links.

use super::super::outcome::{At, Failure, TestResult, skip};
use super::super::tools;
use super::leftovers;
use super::namespace::Namespace;
use crate::sys;
use std::fmt;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

/// Role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Management.
    Management,
    /// Metadata.
    Metadata,
    /// Storage.
    Storage,
    /// A mount.
    Client,
}

impl Role {
    const ALL: [Role; 4] = [Role::Management, Role::Metadata, Role::Storage, Role::Client];

    /// Returns the third octet of its nodes' addresses.
    fn subnet(self) -> u8 {
        1 + self as u8
    }

    fn name(self) -> &'static str {
        ["mgmt", "meta", "storage", "client"][self as usize]
    }
}

/// Number of nodes per role; at most 250 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Management nodes.
    pub management: u8,
    /// Metadata nodes.
    pub metadata: u8,
    /// Storage nodes.
    pub storage: u8,
    /// Nodes with a mount.
    pub clients: u8,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { management: 1, metadata: 2, storage: 4, clients: 3 }
    }
}

impl Plan {
    fn count(&self, role: Role) -> u8 {
        [self.management, self.metadata, self.storage, self.clients][role as usize]
    }
}

/// One node.
pub struct Node {
    /// Its role.
    pub role: Role,
    /// Its index within the role, from 0.
    pub index: usize,
    /// Its address.
    pub address: Ipv4Addr,
    pub(super) namespace: Namespace,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.role.name(), self.index + 1)
    }
}

impl Node {
    /// Returns a command that runs a program on this node: in its network, with the shared mount
    /// namespace.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.namespace.command(program)
    }

    /// Calls a function in this node's network; sockets that it creates stay there.
    pub fn inside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> TestResult<T> {
        let network = File::open(self.namespace.path()).at(self)?;
        // A separate thread, since a thread that has changed its network can't be reused.
        let outcome = thread::scope(|scope| {
            scope.spawn(|| sys::enter_network_namespace(&network).map(|()| call())).join()
        });
        outcome.map_err(|_| Failure::Failed(format!("a call in {self}'s network panicked")))?.at(self)
    }

    /// Returns the name of this node's port on the bridge.
    pub(super) fn port(&self) -> String {
        self.to_string()
    }
}

/// A running network; dropping it removes everything in it.
pub struct Network {
    /// Unique on this machine. The nodes' folders are below a folder of this name, so that mounts
    /// of a killed run are recognised.
    pub name: String,
    nodes: Vec<Node>,
    pub(super) switch: Namespace,
}

/// Number of networks created by this process.
static SERIAL: AtomicU64 = AtomicU64::new(0);

impl Network {
    /// Removes the leftovers of dead runs, creates the nodes and connects them. Skips the test if
    /// that isn't possible.
    pub fn new(plan: Plan) -> TestResult<Network> {
        if !sys::is_root() {
            return skip("network namespaces need root");
        }
        for program in ["ip", "nft", "nsenter"] {
            tools::find(program)?;
        }
        leftovers::remove()?;
        let name = leftovers::run_name(SERIAL.fetch_add(1, Relaxed));
        let switch = Namespace::new(format!("{name}-switch"))?;
        switch.ip(&["link", "add", "bridge", "type", "bridge"])?;
        switch.ip(&["link", "set", "bridge", "up"])?;
        let mut network = Network { name, nodes: Vec::new(), switch };
        for role in Role::ALL {
            for index in 0..plan.count(role) {
                let node = network.add(role, index)?;
                network.nodes.push(node);
            }
        }
        Ok(network)
    }

    fn add(&self, role: Role, index: u8) -> TestResult<Node> {
        let address = Ipv4Addr::new(10, 77, role.subnet(), index + 1);
        let own_name = format!("{}-{}", role.name(), index + 1);
        let namespace = Namespace::new(format!("{}-{own_name}", self.name))?;
        let port = own_name.as_str();
        let wire = ["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace.name()];
        self.switch.ip(&wire)?;
        self.switch.ip(&["link", "set", port, "master", "bridge", "up"])?;
        namespace.ip(&["addr", "add", &format!("{address}/16"), "dev", "eth0"])?;
        namespace.ip(&["link", "set", "eth0", "up"])?;
        Ok(Node { role, index: index.into(), address, namespace })
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns a node by its index from 0.
    pub fn node(&self, role: Role, index: usize) -> &Node {
        let found = self.nodes.iter().find(|node| node.role == role && node.index == index);
        found.expect("the test's own plan has the nodes that it asks for")
    }

    /// Creates a folder for a node's files below `base`.
    pub fn folder(&self, base: &std::path::Path, node: &Node) -> TestResult<PathBuf> {
        let path = base.join(&self.name).join(node.to_string());
        std::fs::create_dir_all(&path).at(path.display())?;
        Ok(path)
    }
}
