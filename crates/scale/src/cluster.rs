//! Servers, targets and their groups.

use crate::engine::Hop;
use std::fmt;
use types::{
    CapacityClass, ClusterMap, GroupId, Node, NodeId, NodeState, Pool, PoolId, Scheme, Target, TargetId,
    TargetState,
};

/// Pool of all targets.
pub(crate) const POOL: PoolId = PoolId(1);
/// Capacity of a target: it only has to be the same for all.
const CAPACITY: u64 = 8 << 40;
/// Used bytes of a target: few enough that others have space for the content of lost targets.
const USED: u64 = 1 << 40;
/// Most targets.
const MAX_TARGETS: u64 = 100_000;
/// Most targets with mirrored groups: a table of all pairs counts their common groups.
const MAX_MIRRORED_TARGETS: u64 = 20_000;

/// The hardware of a cluster. Rates are in bytes per second; infinite if a resource is no limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Hardware {
    /// Number of servers.
    pub servers: u32,
    /// Targets per server.
    pub targets: u32,
    /// Number of racks, to which servers are assigned round-robin; 0: racks are unknown.
    pub racks: u32,
    /// Read rate of a target.
    pub target_read: f64,
    /// Write rate of a target.
    pub target_write: f64,
    /// Rate of all links of a server, in each direction.
    pub server_link: f64,
    /// Rate of a server's cores.
    pub server_cores: f64,
    /// Rate of all links of a client, in each direction.
    pub client_link: f64,
    /// Redundancy of files.
    pub scheme: Scheme,
}

/// Why the cluster can't be simulated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimulationError(pub String);

impl fmt::Display for SimulationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kinds of resources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Resource {
    Targets,
    ServerLinks,
    ServerCores,
    ClientLinks,
}

/// A simulated cluster.
#[derive(Clone, Debug)]
pub struct SimulatedCluster {
    /// Hardware of the cluster.
    pub hardware: Hardware,
    /// Cluster map, with the groups that management would create.
    pub map: ClusterMap,
    /// Map when the files were created, before any loss.
    pub(crate) map_at_creation: ClusterMap,
}

impl SimulatedCluster {
    /// Creates the cluster with its groups, even if it needs more than a map can hold
    /// ([`layout::MAX_MIRRORED`]).
    ///
    /// Errors: there are no servers, too many targets, or too few for the scheme.
    pub fn new(hardware: Hardware) -> Result<SimulatedCluster, SimulationError> {
        let targets = u64::from(hardware.servers) * u64::from(hardware.targets);
        if targets == 0 || targets > MAX_TARGETS {
            return Err(SimulationError(format!("{targets} targets: 1 to {MAX_TARGETS} can be simulated")));
        }
        if hardware.scheme.spans_targets() && targets > MAX_MIRRORED_TARGETS {
            let scheme = hardware.scheme;
            return Err(SimulationError(format!(
                "{targets} targets: {scheme} can be simulated on up to {MAX_MIRRORED_TARGETS}"
            )));
        }
        let rack = |server: u32| (hardware.racks > 0).then(|| format!("r{}", server % hardware.racks));
        let nodes = (0..hardware.servers).map(|server| Node {
            id: NodeId(server + 1),
            name: format!("s{}", server + 1),
            addresses: Vec::new(),
            roles: vec![types::Role::Storage],
            state: NodeState::Online,
            version: String::new(),
            rack: rack(server),
        });
        let all = (0..targets as u32).map(|at| Target {
            id: TargetId(at + 1),
            node: NodeId(at / hardware.targets + 1),
            pool: POOL,
            path: String::new(),
            state: TargetState::Online,
            capacity: CAPACITY,
            free: CAPACITY - USED,
            class: CapacityClass::Normal,
            drain: false,
            used: Some(USED),
        });
        let pools = vec![Pool { id: POOL, name: "default".into(), spare: 0 }];
        let mut map =
            ClusterMap { nodes: nodes.collect(), targets: all.collect(), pools, ..Default::default() };
        map.groups = match hardware.scheme.spans_targets() {
            false => layout::single_groups(&map),
            true => {
                let (scheme, first) = (hardware.scheme, GroupId(layout::FIRST_MIRRORED));
                // Beyond the limit of a map, as few groups as possible: each target is in one, as
                // in the largest cluster that a map can describe.
                let few = targets as usize / scheme.members() + scheme.members();
                let made = layout::mirrored_groups(&map, POOL, scheme, first).or_else(|why| match why {
                    layout::Shortage::Groups => {
                        layout::mirrored_groups_within(few, &map, POOL, scheme, first)
                    }
                    layout::Shortage::Targets(_) => Err(why),
                });
                made.map_err(|_| SimulationError(format!("{scheme} needs more than {targets} targets")))?
            }
        };
        Ok(SimulatedCluster { hardware, map_at_creation: map.clone(), map })
    }

    /// Returns the server of a target, counted from 0.
    pub(crate) fn server(&self, target: TargetId) -> usize {
        ((target.0 - 1) / self.hardware.targets) as usize
    }

    fn servers(&self) -> usize {
        self.hardware.servers as usize
    }

    /// Returns the number of stations: targets, then for each server its outgoing link, its
    /// incoming link and its cores, then for each client its outgoing and incoming link.
    pub(crate) fn stations(&self, clients: usize) -> usize {
        self.map.targets.len() + 3 * self.servers() + 2 * clients
    }

    /// Returns the resource that a station belongs to.
    pub(crate) fn resource(&self, station: usize) -> Resource {
        let servers = self.map.targets.len() + 3 * self.servers();
        match station {
            at if at < self.map.targets.len() => Resource::Targets,
            at if at >= servers => Resource::ClientLinks,
            at if (at - self.map.targets.len()) % 3 == 2 => Resource::ServerCores,
            _ => Resource::ServerLinks,
        }
    }

    pub(crate) fn drive(&self, target: TargetId, bytes: u64, rate: f64) -> Hop {
        Hop { station: target.0 as usize - 1, seconds: bytes as f64 / rate, connection: None }
    }

    fn of_server(&self, server: usize, which: usize, bytes: u64, rate: f64) -> Hop {
        let station = self.map.targets.len() + 3 * server + which;
        Hop { station, seconds: bytes as f64 / rate, connection: None }
    }

    /// `connection`: number of the connection to the next hop.
    pub(crate) fn server_sends(&self, server: usize, bytes: u64, connection: u32) -> Hop {
        Hop { connection: Some(connection), ..self.of_server(server, 0, bytes, self.hardware.server_link) }
    }

    pub(crate) fn server_receives(&self, server: usize, bytes: u64) -> Hop {
        self.of_server(server, 1, bytes, self.hardware.server_link)
    }

    pub(crate) fn cores(&self, server: usize, bytes: u64) -> Hop {
        self.of_server(server, 2, bytes, self.hardware.server_cores)
    }

    fn of_client(&self, client: usize, which: usize, bytes: u64) -> Hop {
        let first = self.map.targets.len() + 3 * self.servers();
        let seconds = bytes as f64 / self.hardware.client_link;
        Hop { station: first + 2 * client + which, seconds, connection: None }
    }

    pub(crate) fn client_sends(&self, client: usize, bytes: u64, connection: u32) -> Hop {
        Hop { connection: Some(connection), ..self.of_client(client, 0, bytes) }
    }

    pub(crate) fn client_receives(&self, client: usize, bytes: u64) -> Hop {
        self.of_client(client, 1, bytes)
    }

    /// Returns the hops of bytes from one server to a target of another, which stores them.
    pub(crate) fn copy_hops(&self, from: usize, to: TargetId, bytes: u64, connection: u32) -> Vec<Hop> {
        let server = self.server(to);
        let mut hops = Vec::with_capacity(4);
        if server != from {
            hops.extend([self.server_sends(from, bytes, connection), self.server_receives(server, bytes)]);
        }
        hops.extend([self.cores(server, bytes), self.drive(to, bytes, self.hardware.target_write)]);
        hops
    }

    /// Returns the same cluster without a server: its targets are offline, and their groups are
    /// degraded or unusable.
    pub fn without(&self, server: u32) -> SimulatedCluster {
        let mut cluster = self.clone();
        let gone = |target: TargetId| cluster.server(target) == server as usize;
        let lost: Vec<TargetId> = cluster.map.targets.iter().map(|t| t.id).filter(|id| gone(*id)).collect();
        for target in cluster.map.targets.iter_mut().filter(|target| lost.contains(&target.id)) {
            target.state = TargetState::Offline;
        }
        for group in cluster.map.groups.iter_mut().filter(|group| group.scheme.spans_targets()) {
            if group.members.iter().any(|id| lost.contains(id)) {
                let state = |id: &TargetId| match lost.contains(id) {
                    true => types::MemberState::NeedsResync,
                    false => types::MemberState::InSync,
                };
                group.states = group.members.iter().map(state).collect();
            }
        }
        cluster
    }
}
