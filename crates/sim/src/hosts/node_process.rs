//! A process in a cluster with management: it joins, and becomes a node, which [`node`] runs.

use super::fixed_targets::FixedTargets;
use super::process::{HostsCluster, SKEWED_CAPABILITY_VALIDITY_S, Service, new_identity, peer_with};
use chunkstore::Store;
use identity::CapabilityRing;
use net::{Channel, ClientIdentity, LocalFuture};
use node::{
    CurrentMap, Machine, Membership, MembershipOptions, MgmtChannel, NoListener, fetch_map, unexpected_reply,
};
use routing::{MetaChannels, StorageChannels, WhenOffline};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use types::{Errno, Error, InodeId, MapHandle, Node, Result, Role};
use wire::mgmt::{Join, TargetSpace};
use wire::{MgmtReply, MgmtRequest};

/// Longest time that a request to management is repeated: shorter than a serving lease.
const MANAGEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time that a client's request to a metadata service is repeated. A partition that has
/// moved may be closed for 15 s, and a command that needs several attempts has another 15 s. A
/// request to a mirrored group may wait as long for a new primary.
pub(super) const METADATA_TIMEOUT: Duration = Duration::from_secs(40);
/// Pause before a failed request to management is repeated.
pub(super) const RETRY: Duration = Duration::from_millis(500);
/// Version of all processes, in each run.
pub(super) const VERSION: &str = "0.0.0";

/// The simulated machine of a node.
struct SimulatedMachine {
    service: Service,
    /// Services whose processes must restart.
    services_to_restart: Arc<Mutex<BTreeSet<Service>>>,
}

impl Machine for SimulatedMachine {
    fn target_space<'a>(&'a self, store: &'a Store) -> LocalFuture<'a, Option<TargetSpace>> {
        Box::pin(async move {
            let space = store.space().await.ok()?;
            // Each target has its own file system.
            let device = u64::from(store.target().0);
            Some(TargetSpace { capacity: space.capacity, free: space.free, device, own: None })
        })
    }

    fn has_foreign_addresses(&self) -> bool {
        false
    }

    /// A start finds its target without a list, and no target is removed.
    fn forget_targets(&self, _directories: &[PathBuf]) {}

    /// The run restarts the process, as a supervisor does.
    fn stop(&self, _error: Error) {
        self.services_to_restart.lock().unwrap_or_else(PoisonError::into_inner).insert(self.service);
    }
}

impl HostsCluster {
    pub(super) fn management(&self, identity: &ClientIdentity) -> Option<MgmtChannel> {
        let management_state = self.management_state.as_ref()?;
        let peer = peer_with("management".into(), management_state.ip, identity, MANAGEMENT_TIMEOUT);
        Some(match self.scheme.has_primary() {
            true => Channel::remote(peer),
            false => Channel::in_process(Arc::new(FixedTargets(Channel::remote(peer)))),
        })
    }

    /// Joins if necessary. The process isn't registered yet.
    pub(super) async fn join_cluster(
        &self,
        identity: &ClientIdentity,
        (name, ip): (&str, Ipv4Addr),
        service: Service,
    ) -> Arc<Membership> {
        loop {
            match self.try_join_cluster(identity, (name, ip), service).await {
                Ok(membership) => return Arc::new(membership),
                Err(_) => rt::sleep(RETRY).await,
            }
        }
    }

    async fn try_join_cluster(
        &self,
        identity: &ClientIdentity,
        (name, ip): (&str, Ipv4Addr),
        service: Service,
    ) -> Result<Membership> {
        let management = self.management(identity).ok_or(Errno::ENODEV)?;
        let role = match service {
            Service::Storage(_) => Role::Storage,
            Service::Metadata(_) => Role::Meta,
        };
        let addresses = vec![format!("{ip}:7000")];
        let map = fetch_map(&management).await?;
        let node = match map.nodes.iter().find(|node| node.name == name) {
            Some(node) => node.id,
            None => {
                let join = Join {
                    secret: String::new(),
                    name: name.into(),
                    roles: vec![role],
                    addresses: addresses.clone(),
                    csr: String::new(),
                    version: VERSION.into(),
                    rack: self.rack_at(ip),
                    clock_s: rt::now().secs,
                };
                match management.call(MgmtRequest::Join(join), None).await? {
                    MgmtReply::Joined(joined) => joined.node,
                    other => return Err(unexpected_reply(&other)),
                }
            }
        };
        let cluster = new_identity("").cluster;
        let options =
            MembershipOptions { cluster, node, addresses, roles: vec![role], version: VERSION.into() };
        let ring = Arc::new(CapabilityRing::new(SKEWED_CAPABILITY_VALIDITY_S));
        let machine = SimulatedMachine { service, services_to_restart: self.services_to_restart.clone() };
        let map = MapHandle::new(map);
        Ok(Membership::new(options, management, (map, Arc::new(NoListener)), ring, Arc::new(machine)))
    }

    /// Returns a client's channels to the metadata services, and the map that they follow.
    pub(super) async fn mapped(&self, identity: &ClientIdentity) -> Result<(MetaChannels, MapHandle)> {
        let management = self.management(identity).ok_or(Errno::ENODEV)?;
        let mut map = fetch_map(&management).await?;
        while map.owner(InodeId::ROOT.partition()).is_none() {
            rt::sleep(RETRY).await;
            map = fetch_map(&management).await?;
        }
        let map = MapHandle::new(map);
        rt::spawn(CurrentMap::new(map.clone(), Arc::new(NoListener), None).follow(management));
        let identity = identity.clone();
        let connect = move |node: &Node| {
            Channel::remote(peer_with(node.name.clone(), address_of(node), &identity, METADATA_TIMEOUT))
        };
        Ok((MetaChannels::mapped(map.clone(), Box::new(connect)), map))
    }

    /// Returns channels to the storage hosts in the map.
    pub(super) fn storage_by_map(
        &self,
        identity: &ClientIdentity,
        map: &MapHandle,
        when_offline: WhenOffline,
    ) -> StorageChannels {
        let identity = identity.clone();
        let connect = move |node: &Node| storage_channel(node, &identity);
        StorageChannels::mapped(map.clone(), when_offline, Box::new(connect))
    }
}

/// Returns the channel to a node's storage service.
pub(super) fn storage_channel(node: &Node, identity: &ClientIdentity) -> routing::StorageChannel {
    Channel::remote(peer_with(node.name.clone(), address_of(node), identity, METADATA_TIMEOUT))
}

/// Registers for the first time, with unlimited retries, and sends heartbeats from then on.
pub(super) async fn register_and_follow(membership: &Arc<Membership>) {
    while membership.register().await.is_err() {
        rt::sleep(RETRY).await;
    }
    membership.spawn_background();
}

pub(super) fn address_of(node: &Node) -> Ipv4Addr {
    let ip = node.addresses.iter().find_map(|address| address.rsplit_once(':')?.0.parse().ok());
    ip.unwrap_or(Ipv4Addr::UNSPECIFIED)
}
