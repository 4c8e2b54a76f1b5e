//! A process's membership in its cluster: registration, heartbeats and the serving lease.

use crate::MgmtChannel;
use crate::current_map::{CurrentMap, MapListener, unexpected_reply};
use crate::storage_role::target_work;
use chunkstore::Store;
use identity::{CapabilityKeys, CapabilityRing};
use mgmt::limits::HEARTBEAT_INTERVAL;
use net::LocalFuture;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use storage::{ServingLease, StorageService};
use types::{ClusterMap, Epoch, Errno, Error, MapHandle, NodeId, Result, Role, TargetId};
use wire::mgmt::{Heartbeat, Register, Secret, TargetReport, TargetSpace};
use wire::{MgmtReply, MgmtRequest};

/// Interval of checks whether management waits for a report of this node: a change that needs
/// several reports then takes a second or two.
const MAP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What a node announces about itself.
#[derive(Clone)]
pub struct MembershipOptions {
    /// UUID of the cluster.
    pub cluster: String,
    /// Id of the node.
    pub node: NodeId,
    /// Addresses at which other processes reach it.
    pub addresses: Vec<String>,
    /// All roles of the node.
    pub roles: Vec<Role>,
    /// Version of the program.
    pub version: String,
}

/// The machine that a node runs on, real or simulated.
pub trait Machine: Send + Sync {
    /// Returns the space of a target's disk in bytes; `None` if it can't be determined.
    fn target_space<'a>(&'a self, store: &'a Store) -> LocalFuture<'a, Option<TargetSpace>>;

    /// Returns whether the machine has none of the addresses that the node announces.
    fn has_foreign_addresses(&self) -> bool;

    /// Forgets the directories of targets that an administrator has removed from the cluster.
    fn forget_targets(&self, directories: &[PathBuf]);

    /// Ends the process: management refuses to go on with it. The node's lease has ended.
    fn stop(&self, error: Error);
}

/// The membership of a process that serves as a node.
pub struct Membership {
    options: MembershipOptions,
    /// Random number that identifies the process.
    instance: u64,
    /// Channel to management, in this process or on another node.
    pub management: MgmtChannel,
    /// The storage service, without targets at first. A node without the storage role has one, too.
    pub service: Arc<StorageService>,
    /// The node's lease from management.
    pub lease: Arc<ServingLease>,
    /// Capability keys from management.
    pub ring: Arc<CapabilityRing>,
    /// The map that this node uses. If management is in the same process, other components read
    /// management's own map, which is never older.
    pub map: Arc<CurrentMap>,
    /// Whether this process has registered with management.
    has_registered: AtomicBool,
    machine: Arc<dyn Machine>,
}

impl Membership {
    /// Creates the membership of a process that hasn't registered yet. Maps from management are
    /// installed in the handle. `ring` receives the capability keys.
    pub fn new(
        options: MembershipOptions,
        management: MgmtChannel,
        (map, listener): (MapHandle, Arc<dyn MapListener>),
        ring: Arc<CapabilityRing>,
        machine: Arc<dyn Machine>,
    ) -> Membership {
        // A node without the storage role has nothing to fence, but sends heartbeats all the same.
        let lease = Arc::new(ServingLease::not_granted());
        let service = Arc::new(StorageService::under_lease(lease.clone()));
        service.require_capabilities(ring.clone());
        let map = CurrentMap::new(map, listener, Some(service.clone()));
        Membership {
            options,
            instance: rt::secret_u64(),
            management,
            service,
            lease,
            ring,
            map,
            has_registered: AtomicBool::new(false),
            machine,
        }
    }

    /// Returns the id of the node.
    pub fn node(&self) -> NodeId {
        self.options.node
    }

    /// Registers this process and its targets with management.
    ///
    /// # Errors
    /// Management doesn't answer, or refuses the process; the node has no lease then.
    pub async fn register(&self) -> Result<()> {
        // Management knows which replicas here are affected by a crash until they are reconciled. A
        // management that was restarted meanwhile must learn that again.
        let again =
            self.has_registered.load(Ordering::Relaxed) && self.service.is_reconciled(&self.map.current());
        if !again {
            // After the answer, management assumes that this node serves under no map older than
            // the one in it.
            self.lease.end();
        }
        let sent_ns = rt::monotonic_ns();
        let register = MgmtRequest::Register(Register {
            cluster: self.options.cluster.clone(),
            node: self.options.node,
            instance: self.instance,
            addresses: self.options.addresses.clone(),
            roles: self.options.roles.clone(),
            version: self.options.version.clone(),
            clock_s: rt::now().secs,
            targets: self.target_reports().await,
            again,
            is_elsewhere: self.machine.has_foreign_addresses(),
        });
        match self.management.call(register, None).await? {
            MgmtReply::Registered(registered) => {
                self.has_registered.store(true, Ordering::Relaxed);
                self.ring.set_cluster_time(registered.time_s, rt::monotonic_ns());
                self.apply_answer(sent_ns, registered.lease_ms, Some(registered.map), &registered.keys)
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Applies management's answer. The map comes first: under a lease that came with a map, no
    /// request may use an older one.
    fn apply_answer(
        &self,
        sent_ns: u64,
        lease_ms: u64,
        map: Option<Arc<ClusterMap>>,
        keys: &Secret,
    ) -> Result<()> {
        if let Some(map) = map {
            self.map.install(map);
        }
        let taken = self.install_keys(keys);
        self.lease.renew(sent_ns, rt::monotonic_ns(), Duration::from_millis(lease_ms));
        taken
    }

    fn install_keys(&self, keys: &Secret) -> Result<()> {
        let parsed = CapabilityKeys::parse(&keys.0).map_err(|cause| {
            Error::new(Errno::EPROTO, format!("management's capability keys are invalid: {cause}"))
                .hint("install the same version of weft on all machines")
        })?;
        self.ring.set(parsed);
        Ok(())
    }

    async fn target_reports(&self) -> Vec<TargetReport> {
        let mut reports = Vec::new();
        for store in self.service.stores() {
            let target = store.target();
            // If the path doesn't lead to the target that was opened, the target is offline, and
            // the space of whatever is there doesn't count.
            let space = match self.service.is_available(target) {
                true => self.machine.target_space(store).await,
                false => None,
            };
            reports.push(TargetReport {
                target,
                cluster: self.options.cluster.clone(),
                path: store.dir().to_string_lossy().into_owned(),
                space,
                work: Some(target_work(store)),
            });
        }
        reports
    }

    /// Follows the map and sends heartbeats from now on, on the calling core. The process has
    /// registered.
    pub fn spawn_background(self: &Arc<Self>) {
        rt::spawn(self.map.clone().follow(self.management.clone()));
        rt::spawn(self.clone().send_heartbeats());
    }

    /// Sends heartbeats for ever. Without answers the lease expires, and the service refuses
    /// changes until there is one again.
    async fn send_heartbeats(self: Arc<Self>) {
        let (mut is_disconnected, mut epoch) = (false, self.map.epoch());
        let mut known = self.own_targets(&self.map.current());
        loop {
            self.wait_for_next_heartbeat(epoch).await;
            epoch = self.map.epoch();
            let outcome = self.heartbeat().await;
            known = self.forget_removed_targets(known);
            match outcome {
                Ok(()) if is_disconnected => tracing::info!("management answers again"),
                Ok(()) => {}
                Err(error) if matches!(error.errno, Errno::ENODEV | Errno::ESTALE | Errno::EEXIST) => {
                    self.lease.end();
                    tracing::error!(hint = &*error.hint, "this node must stop: {}", error.message);
                    self.machine.stop(error);
                    return;
                }
                Err(error) if !is_disconnected => tracing::warn!(%error, "management doesn't answer"),
                Err(_) => {}
            }
            is_disconnected = !self.lease.is_valid(rt::monotonic_ns());
        }
    }

    /// Returns a map's epoch, and the local targets that the map contains.
    fn own_targets(&self, map: &ClusterMap) -> (Epoch, BTreeSet<TargetId>) {
        let targets = self.service.stores().map(|store| store.target());
        (map.epoch, targets.filter(|id| map.target(*id).is_some()).collect())
    }

    /// Forgets targets that an earlier map had and the current one hasn't. Targets that a restored
    /// map lacks stay: their data may be wanted. Returns the epoch and targets of the current map.
    fn forget_removed_targets(
        &self,
        (epoch, known): (Epoch, BTreeSet<TargetId>),
    ) -> (Epoch, BTreeSet<TargetId>) {
        let now = self.own_targets(&self.map.current());
        if now.1.is_superset(&known) || mgmt::was_restored_between(epoch, now.0) {
            return now;
        }
        let is_removed =
            |store: &&Arc<Store>| known.contains(&store.target()) && !now.1.contains(&store.target());
        let mut removed: Vec<PathBuf> =
            self.service.stores().filter(is_removed).map(|store| store.dir().to_path_buf()).collect();
        // The directory may have become another target meanwhile.
        for store in self.service.stores().filter(|store| !is_removed(store)) {
            removed.retain(|dir| dir != store.dir());
        }
        self.machine.forget_targets(&removed);
        now
    }

    /// Waits for the next heartbeat. It is sent earlier if management waits for this node's
    /// confirmation that a local target isn't in sync in a group: each step of moving a member
    /// needs one.
    async fn wait_for_next_heartbeat(&self, sent_epoch: Epoch) {
        let began_ns = rt::monotonic_ns();
        while rt::monotonic_ns() - began_ns < HEARTBEAT_INTERVAL.as_nanos() as u64 {
            rt::sleep(MAP_POLL_INTERVAL).await;
            if self.map.epoch() > sent_epoch && self.has_member_out_of_sync() {
                return;
            }
        }
    }

    /// Returns whether a local target is a group member that isn't in sync.
    fn has_member_out_of_sync(&self) -> bool {
        let map = self.map.current();
        self.service.stores().any(|store| {
            let state_here = |group: &types::Group| group.state_of(store.target());
            map.groups.iter().filter_map(state_here).any(|state| state != types::MemberState::InSync)
        })
    }

    /// Sends one heartbeat. Registers again if management was restarted.
    ///
    /// # Errors
    /// Management doesn't answer, or refuses the process.
    pub async fn heartbeat(&self) -> Result<()> {
        let sent_ns = rt::monotonic_ns();
        let heartbeat = MgmtRequest::Heartbeat(Heartbeat {
            node: self.options.node,
            instance: self.instance,
            epoch: self.map.epoch(),
            clock_s: rt::now().secs,
            targets: self.target_reports().await,
            resyncs: self.service.resyncs(),
            scrubs: self.service.scrubs(),
        });
        match self.management.call(heartbeat, None).await {
            Ok(MgmtReply::Alive(alive)) => {
                self.ring.set_cluster_time(alive.time_s, rt::monotonic_ns());
                self.apply_answer(sent_ns, alive.lease_ms, alive.map, &alive.keys)
            }
            Ok(other) => Err(unexpected_reply(&other)),
            // Management was restarted.
            Err(error) if error.errno == Errno::ENOTCONN => self.register().await,
            Err(error) => Err(error),
        }
    }

    /// Signs off from management, which also notices missing heartbeats.
    pub(crate) async fn sign_off(&self) {
        let sign_off = MgmtRequest::Goodbye { node: self.options.node, instance: self.instance };
        let _ = rt::timeout(HEARTBEAT_INTERVAL, self.management.call(sign_off, None)).await;
    }
}

#[cfg(test)]
mod tests;
