//! The storage role of a node: its targets, and their registration with management.

use super::current_map::{CurrentMap, fetch_map, unexpected_reply};
use super::locality;
use super::peers::{MgmtChannel, Peers};
use super::stores::{create_target, open_target, store_error, target_work};
use super::target_usage::{TargetUsages, target_directories};
use crate::control::UnservedTarget;
use crate::node_config::{TargetConfig, mark_targets_created, remove_targets};
use crate::numa;
use chunkstore::{Identity, Store};
use identity::{CAPABILITY_VALIDITY_S, CapabilityKeys, CapabilityRing};
use mgmt::limits::HEARTBEAT_INTERVAL;
use mgmt::{Space, space_of};
use rt::sync::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use storage::{ServingLease, StorageService};
use types::{ClusterMap, Epoch, Errno, Error, MapHandle, NodeId, Result, Role, TargetId};
use wire::mgmt::{Heartbeat, ReconcileFiles, Register, Secret, TargetReport, TargetSpace};
use wire::{MgmtReply, MgmtRequest};

/// Pause before a request is sent again that management refused for now.
const RETRY: Duration = Duration::from_secs(1);

/// Interval of checks whether management waits for a report of this node: a change that needs
/// several reports then takes a second or two.
const MAP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Configuration of a storage node.
#[derive(Clone)]
pub struct StorageOptions {
    /// UUID of the cluster.
    pub cluster: String,
    /// Id of the node.
    pub node: NodeId,
    /// Addresses at which other processes reach it.
    pub addresses: Vec<String>,
    /// All roles of the node.
    pub roles: Vec<Role>,
    /// Directory of the node's own configuration file.
    pub dir: PathBuf,
    /// Directories of targets, existing and new.
    pub targets: Vec<TargetConfig>,
    /// NUMA zone that this process is bound to.
    pub numa: Option<u32>,
}

/// The targets of a node, and its state with management.
pub struct StorageNode {
    options: StorageOptions,
    /// Random number that identifies the process.
    instance: u64,
    management: MgmtChannel,
    /// The service that requests of connections reach.
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
    /// Directories that an administrator wants to make targets, with the channels for the outcomes.
    requested_targets: Mutex<Vec<(TargetConfig, SyncSender<Result<TargetId>>)>>,
    has_requested_targets: Event,
    /// Directories whose targets could not be opened, and why.
    unserved: Mutex<BTreeMap<PathBuf, Error>>,
    usages: Arc<TargetUsages>,
    /// Receives the error if management refuses to go on with this process.
    fatal_error: Sender<Error>,
}

impl StorageNode {
    /// Creates a node without targets yet. Maps from management are installed in the handle.
    pub fn new(
        options: StorageOptions,
        management: MgmtChannel,
        (map, peers): (MapHandle, Arc<Peers>),
        fatal_error: Sender<Error>,
    ) -> Arc<StorageNode> {
        // A node without the storage role has nothing to fence, but sends heartbeats all the same.
        let lease = Arc::new(ServingLease::not_granted());
        let ring = Arc::new(CapabilityRing::new(CAPABILITY_VALIDITY_S));
        let service = Arc::new(StorageService::under_lease(lease.clone()));
        service.require_capabilities(ring.clone());
        let map = CurrentMap::new(map, peers, Some(service.clone()));
        Arc::new(StorageNode {
            options,
            instance: rt::secret_u64(),
            management,
            service,
            lease,
            ring,
            map,
            has_registered: AtomicBool::new(false),
            requested_targets: Mutex::default(),
            has_requested_targets: Event::new(),
            unserved: Mutex::default(),
            usages: Arc::default(),
            fatal_error,
        })
    }

    /// Opens all targets, and registers with management. Returns when clients may use them, except
    /// for targets with pending crash reconciliation.
    pub async fn open(&self) -> Result<()> {
        if !self.options.roles.contains(&Role::Storage) {
            self.service.set_targets_complete();
            return self.register().await;
        }
        let mut made = Vec::new();
        for target in &self.options.targets {
            match self.open_configured_target(target).await {
                Ok(_) if target.new => made.push(target.path.clone()),
                Ok(_) => {}
                // The other targets are served.
                Err(error) => {
                    tracing::error!(hint = &*error.hint, "a target is not served: {}", error.message);
                    self.lock_unserved().insert(target.path.clone(), error);
                }
            }
        }
        if !made.is_empty() {
            mark_targets_created(&self.options.dir, &made)?;
        }
        self.service.set_targets_complete();
        self.register().await
    }

    fn lock_unserved(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Error>> {
        self.unserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the directories that should be served but aren't.
    pub fn unserved(&self) -> Vec<UnservedTarget> {
        let to_unserved = |(path, error): (&PathBuf, &Error)| UnservedTarget {
            path: path.display().to_string(),
            cause: error.message.to_string(),
            hint: error.hint.to_string(),
        };
        self.lock_unserved().iter().map(to_unserved).collect()
    }

    /// Opens a target; creates it if an administrator has just added it. Otherwise an empty
    /// directory means that a disk isn't mounted, or that the node's directory was restored on
    /// another machine.
    async fn open_configured_target(&self, target: &TargetConfig) -> Result<TargetId> {
        numa::require_same_zone(self.options.numa, target)?;
        let path = target.path.to_string_lossy().into_owned();
        let identity = match Store::identify(&target.path).await.map_err(store_error)? {
            Some(identity) => {
                self.require_same_cluster(&target.path, &identity)?;
                mgmt::require_known(&self.map.current(), identity.target, &path)?;
                identity
            }
            None if target.new => self.create_target(target, &path).await?,
            None => return Err(missing_target_error(target)),
        };
        let count = self.options.targets.len().max(self.service.stores().count() + 1);
        let store = open_target(&target.path, &identity, count).await?;
        self.service.add(store)?;
        Ok(identity.target)
    }

    async fn create_target(&self, target: &TargetConfig, path: &str) -> Result<Identity> {
        mgmt::require_target_or_vacant(&target.path)?;
        let map = fetch_map(&self.management).await?;
        let known = map.targets.iter().find(|t| t.node == self.options.node && t.path == path);
        if let Some(known) = known.filter(|t| t.capacity > 0) {
            let message = format!("{path} should contain target {}, but is empty", known.id);
            return Err(Error::new(Errno::ENOENT, message)
                .hint(format!(
                    "mount its disk, and weft target add {path} serves it again; if its data is lost for good, remove the target"
                )));
        }
        let add =
            MgmtRequest::AddTarget { node: self.options.node, path: path.into(), pool: target.pool.clone() };
        let id = match self.management.call(add, None).await? {
            MgmtReply::Added { target } => target,
            other => return Err(unexpected_reply(&other)),
        };
        let identity = Identity { cluster: self.options.cluster.clone(), target: id };
        create_target(&target.path, &identity).await?;
        tracing::info!(target_id = id.0, "target {id} was made in {path}");
        Ok(identity)
    }

    fn require_same_cluster(&self, path: &Path, identity: &Identity) -> Result<()> {
        if identity.cluster == self.options.cluster {
            return Ok(());
        }
        let message =
            format!("{} contains target {} of cluster {}", path.display(), identity.target, identity.cluster);
        Err(Error::new(Errno::EINVAL, message).hint("name an empty directory, or remove it from node.toml"))
    }

    /// Refuses a target that belongs to another node by the map. A target changes its node only
    /// when a process registers with it: then management treats that process's replicas of mirrored
    /// groups as possibly left by a crash.
    fn require_own_target(&self, map: &ClusterMap, target: TargetId, path: &Path) -> Result<()> {
        let shown = path.display();
        mgmt::require_claimable(map, self.options.node, target, &shown.to_string())?;
        match map.target(target).and_then(|known| map.node(known.node)) {
            Some(owner) if owner.id != self.options.node => {
                let message =
                    format!("target {target} ({shown}) belongs to node {} ({})", owner.id, owner.name);
                Err(Error::new(Errno::EBUSY, message)
                    .hint("a disk moves when its new node starts: stop this node, add the target to it, start it again"))
            }
            _ => Ok(()),
        }
    }

    /// Registers this process and its targets with management.
    async fn register(&self) -> Result<()> {
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
            version: env!("CARGO_PKG_VERSION").into(),
            clock_s: rt::now().secs,
            targets: self.reports(),
            again,
            is_elsewhere: locality::addresses_if_unannounced(&self.options.addresses).is_some(),
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

    fn reports(&self) -> Vec<TargetReport> {
        let report = |store: &Arc<Store>| {
            let target = store.target();
            let space = |s: Space| {
                let own = self.usages.upper_bound(target, s);
                TargetSpace { capacity: s.capacity, free: s.free, device: s.device, own }
            };
            TargetReport {
                target,
                cluster: self.options.cluster.clone(),
                path: store.dir().to_string_lossy().into_owned(),
                // If the path doesn't lead to the target that was opened, the target is offline,
                // and the space of whatever is there doesn't count.
                space: self
                    .service
                    .is_available(target)
                    .then(|| space_of(store.dir()).ok().map(space))
                    .flatten(),
                work: Some(target_work(store)),
            }
        };
        self.service.stores().map(report).collect()
    }

    /// Starts the background work on the calling core.
    pub fn spawn_background(self: &Arc<Self>) {
        rt::spawn(self.clone().send_heartbeats());
        rt::spawn(self.clone().add_requested_targets());
        self.usages.clone().measure_periodically(target_directories(Arc::downgrade(&self.service)));
        rt::spawn(StorageService::run_target_checks(self.service.clone()));
        rt::spawn(StorageService::run_group_resyncs(self.service.clone()));
        rt::spawn(StorageService::run_scrubs(self.service.clone(), self.map.handle()));
        for store in self.service.stores() {
            rt::spawn(self.clone().reconcile_and_open(store.clone()));
        }
    }

    /// Has the metadata service reconcile a target after a crash, and then opens the target to
    /// clients.
    async fn reconcile_and_open(self: Arc<Self>, store: Arc<Store>) {
        let target = store.target();
        let left =
            ReconcileFiles { files: store.take_changing_at_crash(), new: store.take_created_at_crash() };
        for touched in left.split() {
            let tidy = MgmtRequest::Tidy { target, touched };
            while let Err(error) = self.management.call(tidy.clone(), None).await {
                tracing::warn!(target_id = target.0, %error, "target {target} is not reconciled yet");
                rt::sleep(RETRY).await;
            }
        }
        store.mark_reconciled();
        self.service.open_to_clients(target);
        tracing::info!(target_id = target.0, tidied = left.files.len(), "target {target} is served");
        // Only now: notes of changes at the time of the crash must not be retired before they have
        // been acted upon.
        store.background().await;
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
            known = self.drop_removed_targets(known);
            match outcome {
                Ok(()) if is_disconnected => tracing::info!("management answers again"),
                Ok(()) => {}
                Err(error) if matches!(error.errno, Errno::ENODEV | Errno::ESTALE | Errno::EEXIST) => {
                    self.lease.end();
                    tracing::error!(hint = &*error.hint, "this node must stop: {}", error.message);
                    // The channel has no receiver if the process is shutting down already.
                    let _ = self.fatal_error.send(error);
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

    /// Removes targets from the node's file that an earlier map had and the current one hasn't.
    /// Targets that a restored map lacks stay: their data may be wanted. Returns the epoch and
    /// targets of the current map.
    fn drop_removed_targets(
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
        match remove_targets(&self.options.dir, &removed) {
            Ok(()) => tracing::info!(?removed, "removed targets were deleted from node.toml"),
            Err(error) => {
                let hint = "delete their paths from node.toml yourself";
                tracing::warn!(?removed, hint, "removed targets are still in node.toml: {}", error.message);
            }
        }
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

    async fn heartbeat(&self) -> Result<()> {
        let sent_ns = rt::monotonic_ns();
        let heartbeat = MgmtRequest::Heartbeat(Heartbeat {
            node: self.options.node,
            instance: self.instance,
            epoch: self.map.epoch(),
            clock_s: rt::now().secs,
            targets: self.reports(),
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

    /// Makes a directory a target while the node serves. Blocks the calling thread, which must not
    /// be a core of this process.
    pub fn add_target(&self, target: TargetConfig) -> Result<TargetId> {
        let (result_sender, result_receiver) = std::sync::mpsc::sync_channel(1);
        self.requested_targets.lock().unwrap_or_else(PoisonError::into_inner).push((target, result_sender));
        self.has_requested_targets.set();
        let ended = |_| Error::new(Errno::ECANCELED, "the node is stopping").hint("try again when it runs");
        result_receiver.recv().map_err(ended)?
    }

    async fn add_requested_targets(self: Arc<Self>) {
        loop {
            self.has_requested_targets.wait().await;
            self.has_requested_targets.clear();
            let wanted =
                std::mem::take(&mut *self.requested_targets.lock().unwrap_or_else(PoisonError::into_inner));
            for (target, result_sender) in wanted {
                let outcome = self.clone().add_and_open(&target).await;
                // The caller may have closed its connection.
                let _ = result_sender.send(outcome);
            }
        }
    }

    async fn add_and_open(self: Arc<Self>, target: &TargetConfig) -> Result<TargetId> {
        let map = self.map.current();
        for store in self.service.stores().filter(|store| store.dir() == target.path) {
            if map.target(store.target()).is_some() {
                // A target that was only unmounted is served again by itself; one that failed needs
                // a restart.
                store.check_dir().map_err(store_error)?;
                return Ok(store.target());
            }
            // The target was removed from the cluster, so its directory is free again.
            if let Err(error) = store.close().await {
                tracing::warn!(%error, "the store of the former target {} could not be closed", store.target());
            }
        }
        if let Some(identity) = Store::identify(&target.path).await.map_err(store_error)? {
            // Before the target is opened, which may change it.
            self.require_same_cluster(&target.path, &identity)?;
            self.require_own_target(&map, identity.target, &target.path)?;
        }
        let id = self.open_configured_target(target).await?;
        self.lock_unserved().remove(&target.path);
        let store = self.service.stores().find(|store| store.target() == id).cloned();
        if let Some(store) = store {
            if let Err(error) = self.service.open_groups(id).await {
                // Requests to such a group get the error.
                tracing::error!(
                    hint = &*error.hint,
                    "the replicas of mirrored groups on target {id} can't be opened: {}",
                    error.message
                );
            }
            rt::spawn(self.clone().reconcile_and_open(store));
        }
        // The heartbeat reports the target to management.
        self.heartbeat().await?;
        Ok(id)
    }

    /// Closes the stores and signs off from management. Tries everything, and returns the first
    /// failure.
    pub async fn close(&self) -> Result<()> {
        let mut outcome = self.service.close_groups().await;
        for store in self.service.stores() {
            outcome = outcome.and(store.close().await.map_err(store_error));
        }
        let sign_off = MgmtRequest::Goodbye { node: self.options.node, instance: self.instance };
        // Management also notices the missing heartbeats.
        let _ = rt::timeout(HEARTBEAT_INTERVAL, self.management.call(sign_off, None)).await;
        outcome
    }

    /// Returns the number of requests that a target has received.
    pub fn requests(&self, target: TargetId) -> u64 {
        self.service.counters(target).map_or(0, |counters| counters.requests)
    }
}

fn missing_target_error(target: &TargetConfig) -> Error {
    let path = target.path.display();
    Error::new(Errno::ENOENT, format!("{path} should contain a target, but is empty")).hint(format!(
        "mount its disk, and start the node again; weft target add {path} creates an empty target there"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembly::{LocalIdentity, ManagementAddresses, MembershipAuthority};
    use crate::node_config::{NodeConfig, Protection};
    use identity::Authority;
    use kv::{Durability, Memory, Writer};
    use mgmt::{FIRST_NODE, FirstNode, Management, StatePaths, Superblock};
    use net::{Channel, Networks, SameHost, Security};
    use std::future::Future;
    use std::pin::pin;
    use std::sync::OnceLock;
    use std::task::{Context, Wake, Waker};
    use tempfile::TempDir;

    const ADDRESS: &str = "127.0.0.1:7000";

    /// Management, and a node as if in another process, which doesn't follow the map.
    struct Cluster {
        _dir: TempDir,
        management: Arc<Management>,
        node: Arc<StorageNode>,
        handle: MapHandle,
    }

    async fn cluster() -> Result<Cluster> {
        let dir = TempDir::new().unwrap();
        let (paths, superblock) = (StatePaths::new(dir.path()), Superblock::random("test"));
        Authority::create(&superblock.uuid, &superblock.name, rt::now().secs)?.store(&paths.authority())?;
        let (roles, addresses) = (vec![Role::Mgmt, Role::Meta], vec![ADDRESS.to_string()]);
        let config = NodeConfig {
            cluster: superblock.uuid.clone(),
            node: FIRST_NODE,
            name: "m".into(),
            rack: None,
            roles: roles.clone(),
            listen: vec![],
            management: addresses.clone(),
            addresses: addresses.clone(),
            networks: vec![],
            protection: Protection::Plain,
            threads: None,
            numa: None,
            api: vec![],
            api_names: vec![],
            durability: crate::cli::Durability::Relaxed,
            targets: vec![],
            backups: None,
        };
        let gate = MembershipAuthority::load(&paths, &superblock, &config)?;
        let version = env!("CARGO_PKG_VERSION").to_string();
        let first = FirstNode {
            name: "m".into(),
            addresses: addresses.clone(),
            roles: roles.clone(),
            version,
            rack: None,
        };
        let writer = Arc::new(Writer::new(Arc::new(Memory::new()), Durability::Process));
        let management = Management::open_cluster(writer, &superblock, &first, paths.root()).await?;
        management.set_authority(Arc::new(gate));
        let management = Arc::new(management);
        let local_identity = LocalIdentity {
            cluster: superblock.uuid.clone(),
            name: "m".into(),
            security: Security::Plain,
            networks: Networks::parse(&[])?,
            same_host: SameHost::OverTcp,
        };
        let peers = Peers::new(local_identity, ManagementAddresses::fixed(&addresses), RETRY)?;
        let options = StorageOptions {
            cluster: superblock.uuid,
            node: FIRST_NODE,
            addresses,
            roles,
            dir: paths.root().to_path_buf(),
            targets: vec![],
            numa: None,
        };
        let handle = MapHandle::default();
        let way = Channel::in_process(management.clone());
        let (fatal_error, _) = std::sync::mpsc::channel();
        let node = StorageNode::new(options, way, (handle.clone(), peers), fatal_error);
        Ok(Cluster { _dir: dir, management, node, handle })
    }

    impl Cluster {
        /// Changes the map; the node gets it with its next heartbeat.
        async fn rename(&self, name: &str) {
            let rename = MgmtRequest::RenameNode { node: FIRST_NODE, name: name.into() };
            self.node.management.call(rename, None).await.unwrap();
            assert!(self.node.map.epoch() < self.management.current().epoch);
        }
    }

    #[test]
    fn the_map_of_a_heartbeat_is_installed_when_it_returns() {
        let run = async {
            let cluster = cluster().await.unwrap();
            cluster.node.register().await.unwrap();
            assert_eq!(cluster.node.map.epoch(), cluster.management.current().epoch);
            cluster.rename("other").await;
            cluster.node.heartbeat().await.unwrap();
            assert_eq!(cluster.node.map.epoch(), cluster.management.current().epoch);
            // An older map that arrives late changes nothing.
            cluster.node.map.install(Arc::new(ClusterMap::default()));
            assert_eq!(cluster.handle.load().nodes[0].name, "other");
        };
        rt::block_on(run).unwrap();
    }

    /// Management, and what a node reported when it registered.
    struct RecordingManagement {
        management: Arc<Management>,
        lease: Arc<ServingLease>,
        /// For each registration: whether it was by the same process again, and whether its lease
        /// was valid at that moment.
        registrations: Mutex<Vec<(bool, bool)>>,
    }

    impl net::Handler<MgmtRequest, MgmtReply> for RecordingManagement {
        fn handle(
            &self,
            request: MgmtRequest,
            _: Option<rt::IoBuf>,
        ) -> net::LocalFuture<'_, Result<MgmtReply>> {
            Box::pin(async move {
                let request = match request {
                    MgmtRequest::Register(register) => {
                        self.registrations
                            .lock()
                            .unwrap()
                            .push((register.again, self.lease.is_valid(rt::monotonic_ns())));
                        // Management doesn't know these targets.
                        MgmtRequest::Register(Register { targets: vec![], ..register })
                    }
                    other => other,
                };
                self.management.handle(request, None).await
            })
        }
    }

    #[test]
    fn a_process_with_unreconciled_replicas_registers_as_a_new_one() {
        let run = async {
            let cluster = cluster().await.unwrap();
            let lease = cluster.node.lease.clone();
            let registry = Arc::new(RecordingManagement {
                management: cluster.management.clone(),
                lease: lease.clone(),
                registrations: Mutex::default(),
            });
            let node = StorageNode {
                management: Channel::in_process(registry.clone()),
                ..without_arc(cluster.node)
            };
            let register = async || {
                node.register().await.unwrap();
                assert!(lease.is_valid(rt::monotonic_ns()));
                registry.registrations.lock().unwrap().pop()
            };
            assert_eq!(register().await, Some((false, false)));
            assert_eq!(register().await, Some((true, true)));
            let dir = TempDir::new().unwrap();
            let identity = Identity { cluster: node.options.cluster.clone(), target: TargetId(3) };
            create_target(dir.path(), &identity).await.unwrap();
            let store = open_target(dir.path(), &identity, 1).await.unwrap();
            let single = types::Group::single(types::GroupId(7), types::PoolId(1), TargetId(3));
            let mut map = ClusterMap::clone(&node.map.current());
            // Newer than any map of management.
            map.epoch.0 += 100;
            map.groups = vec![types::Group { scheme: types::Scheme::Mirror(2), ..single }];
            node.map.install(Arc::new(map));
            node.service.serve_groups(crate::assembly::group_links::of_one_process(
                cluster.handle.clone(),
                [].into_iter(),
                &Channel::in_process(node.service.clone()),
                Channel::in_process(cluster.management.clone()),
            ));
            node.service.add(store).unwrap();
            // The target's replicas of the group haven't been opened yet.
            assert_eq!(register().await, Some((false, false)));
            node.service.open_groups(TargetId(3)).await.unwrap();
            assert_eq!(register().await, Some((true, true)));
        };
        rt::block_on(run).unwrap();
    }

    /// Returns the node without its `Arc`, of which there is no other reference.
    fn without_arc(node: Arc<StorageNode>) -> StorageNode {
        Arc::into_inner(node).unwrap()
    }

    #[test]
    fn a_node_uses_the_time_of_the_cluster() {
        let run = async {
            let cluster = cluster().await.unwrap();
            let ring = &cluster.node.ring;
            let off_s = || ring.cluster_time_s(rt::monotonic_ns()).abs_diff(rt::now().secs as u64);
            ring.set_cluster_time(0, rt::monotonic_ns());
            cluster.node.register().await.unwrap();
            assert!(off_s() < 60, "{} s off after it has registered", off_s());
            ring.set_cluster_time(0, rt::monotonic_ns());
            cluster.node.heartbeat().await.unwrap();
            assert!(off_s() < 60, "{} s off after a heartbeat", off_s());
        };
        rt::block_on(run).unwrap();
    }

    #[test]
    fn a_removed_target_leaves_the_nodes_file_and_one_that_a_restored_map_lacks_stays() {
        const LATER: u64 = 1 << 31;
        let run = async {
            let (cluster, dir) = (cluster().await.unwrap(), TempDir::new().unwrap());
            let node = &cluster.node;
            let identity = Identity { cluster: node.options.cluster.clone(), target: TargetId(3) };
            create_target(dir.path(), &identity).await.unwrap();
            node.service.add(open_target(dir.path(), &identity, 1).await.unwrap()).unwrap();
            let (file, path) = (node.options.dir.join("node.toml"), dir.path());
            std::fs::write(&file, format!("[[target]]\npath = {path:?}\npool = \"default\"\n")).unwrap();
            let is_listed = || std::fs::read_to_string(&file).unwrap().contains(path.to_str().unwrap());
            // The former map had the target, and the current one hasn't.
            let miss = |before: u64, now: u64| {
                let map = ClusterMap { epoch: Epoch(now), ..ClusterMap::default() };
                node.map.install(Arc::new(map));
                assert_eq!(node.map.epoch(), Epoch(now));
                node.drop_removed_targets((Epoch(before), BTreeSet::from([TargetId(3)])));
            };
            miss(7, LATER);
            assert!(is_listed(), "its data may be wanted");
            miss(LATER, LATER + 1);
            assert!(!is_listed());
        };
        rt::block_on(run).unwrap();
    }

    /// Records whether the lease is valid when the map has just changed: the heartbeat continues later.
    struct LeaseAtChange(Arc<StorageNode>, OnceLock<bool>);

    impl Wake for LeaseAtChange {
        fn wake(self: Arc<Self>) {
            let _ = self.1.set(self.0.lease.is_valid(rt::monotonic_ns()));
        }
    }

    #[test]
    fn a_lease_counts_after_the_map_that_came_with_it() {
        let cluster = rt::block_on(async {
            let cluster = cluster().await.unwrap();
            cluster.node.register().await.unwrap();
            cluster.rename("other").await;
            cluster
        });
        let cluster = cluster.unwrap();
        cluster.node.lease.end();
        let at_change = Arc::new(LeaseAtChange(cluster.node.clone(), OnceLock::new()));
        let waker = Waker::from(at_change.clone());
        let mut change = pin!(cluster.handle.changed_since(cluster.handle.epoch()));
        assert!(change.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let node = cluster.node.clone();
        rt::block_on(async move { node.heartbeat().await }).unwrap().unwrap();
        assert_eq!(at_change.1.get(), Some(&false), "the lease holds, and the map of before is in force");
        assert!(cluster.node.lease.is_valid(rt::monotonic_ns()));
        assert_eq!(cluster.node.map.epoch(), cluster.management.current().epoch);
    }
}
