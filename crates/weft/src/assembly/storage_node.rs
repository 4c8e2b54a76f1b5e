//! The storage role of a node: its targets, and their registration with management.

use super::locality;
use super::peers::Peers;
use super::stores::{create_target, open_target};
use super::target_usage::{TargetUsages, target_directories};
use crate::control::UnservedTarget;
use crate::node_config::{TargetConfig, mark_targets_created, remove_targets};
use crate::numa;
use ::node::{Machine, Membership, MembershipOptions, MgmtChannel, fetch_map, store_error, unexpected_reply};
use chunkstore::{Identity, Store};
use identity::{CAPABILITY_VALIDITY_S, CapabilityRing};
use mgmt::space_of;
use net::LocalFuture;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use storage::StorageService;
use types::{ClusterMap, Errno, Error, MapHandle, NodeId, Result, Role, TargetId};
use wire::mgmt::TargetSpace;
use wire::{MgmtReply, MgmtRequest};

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

/// The machine of a node: its disks, and its configuration file.
struct NodeMachine {
    /// Directory of the node's own configuration file.
    dir: PathBuf,
    /// Addresses that the node announces.
    addresses: Vec<String>,
    usages: Arc<TargetUsages>,
    /// Receives the error if management refuses to go on with this process.
    fatal_error: Sender<Error>,
}

impl Machine for NodeMachine {
    fn target_space<'a>(&'a self, store: &'a Store) -> LocalFuture<'a, Option<TargetSpace>> {
        Box::pin(async move {
            let space = space_of(store.dir()).ok()?;
            let own = self.usages.upper_bound(store.target(), space);
            Some(TargetSpace { capacity: space.capacity, free: space.free, device: space.device, own })
        })
    }

    fn has_foreign_addresses(&self) -> bool {
        locality::addresses_if_unannounced(&self.addresses).is_some()
    }

    fn forget_targets(&self, removed: &[PathBuf]) {
        match remove_targets(&self.dir, removed) {
            Ok(()) => tracing::info!(?removed, "removed targets were deleted from node.toml"),
            Err(error) => {
                let hint = "delete their paths from node.toml yourself";
                tracing::warn!(?removed, hint, "removed targets are still in node.toml: {}", error.message);
            }
        }
    }

    fn stop(&self, error: Error) {
        // The channel has no receiver if the process is shutting down already.
        let _ = self.fatal_error.send(error);
    }
}

/// The targets of a node, and its membership in the cluster.
pub struct StorageNode {
    options: StorageOptions,
    /// The node's state with management, and the service that requests of connections reach.
    pub membership: Arc<Membership>,
    /// Directories that an administrator wants to make targets, with the channels for the outcomes.
    requested_targets: Mutex<Vec<(TargetConfig, SyncSender<Result<TargetId>>)>>,
    has_requested_targets: Event,
    /// Directories whose targets could not be opened, and why.
    unserved: Mutex<BTreeMap<PathBuf, Error>>,
    usages: Arc<TargetUsages>,
}

impl StorageNode {
    /// Creates a node without targets yet. Maps from management are installed in the handle.
    pub fn new(
        options: StorageOptions,
        management: MgmtChannel,
        (map, peers): (MapHandle, Arc<Peers>),
        fatal_error: Sender<Error>,
    ) -> Arc<StorageNode> {
        let usages = Arc::new(TargetUsages::default());
        let machine = NodeMachine {
            dir: options.dir.clone(),
            addresses: options.addresses.clone(),
            usages: usages.clone(),
            fatal_error,
        };
        let membership = Membership::new(
            MembershipOptions {
                cluster: options.cluster.clone(),
                node: options.node,
                addresses: options.addresses.clone(),
                roles: options.roles.clone(),
                version: env!("CARGO_PKG_VERSION").into(),
            },
            management,
            (map, peers),
            Arc::new(CapabilityRing::new(CAPABILITY_VALIDITY_S)),
            Arc::new(machine),
        );
        Arc::new(StorageNode {
            options,
            membership: Arc::new(membership),
            requested_targets: Mutex::default(),
            has_requested_targets: Event::new(),
            unserved: Mutex::default(),
            usages,
        })
    }

    /// Returns the service that requests of connections reach.
    pub fn service(&self) -> &Arc<StorageService> {
        &self.membership.service
    }

    /// Opens all targets, and registers with management. Returns when clients may use them, except
    /// for targets with pending crash reconciliation.
    pub async fn open(&self) -> Result<()> {
        if !self.options.roles.contains(&Role::Storage) {
            self.service().set_targets_complete();
            return self.membership.register().await;
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
        self.service().set_targets_complete();
        self.membership.register().await
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
                mgmt::require_known(&self.membership.map.current(), identity.target, &path)?;
                identity
            }
            None if target.new => self.create_target(target, &path).await?,
            None => return Err(missing_target_error(target)),
        };
        let count = self.options.targets.len().max(self.service().stores().count() + 1);
        let store = open_target(&target.path, &identity, count).await?;
        self.service().add(store)?;
        Ok(identity.target)
    }

    async fn create_target(&self, target: &TargetConfig, path: &str) -> Result<Identity> {
        mgmt::require_target_or_vacant(&target.path)?;
        let map = fetch_map(&self.membership.management).await?;
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
        let id = match self.membership.management.call(add, None).await? {
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

    /// Starts the background work on the calling core.
    pub fn spawn_background(self: &Arc<Self>) {
        self.membership.spawn_background();
        rt::spawn(self.clone().add_requested_targets());
        self.usages.clone().measure_periodically(target_directories(Arc::downgrade(self.service())));
        self.membership.spawn_storage();
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
        let map = self.membership.map.current();
        for store in self.service().stores().filter(|store| store.dir() == target.path) {
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
        let store = self.service().stores().find(|store| store.target() == id).cloned();
        if let Some(store) = store {
            if let Err(error) = self.service().open_groups(id).await {
                // Requests to such a group get the error.
                tracing::error!(
                    hint = &*error.hint,
                    "the replicas of mirrored groups on target {id} can't be opened: {}",
                    error.message
                );
            }
            rt::spawn(self.membership.clone().reconcile_and_open(store));
        }
        // The heartbeat reports the target to management.
        self.membership.heartbeat().await?;
        Ok(id)
    }

    /// Returns the number of requests that a target has received.
    pub fn requests(&self, target: TargetId) -> u64 {
        self.service().counters(target).map_or(0, |counters| counters.requests)
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
    use std::sync::mpsc::channel;
    use tempfile::TempDir;

    #[test]
    fn a_removed_target_leaves_the_nodes_file() {
        let (dir, target) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let (fatal_error, _) = channel();
        let machine = NodeMachine {
            dir: dir.path().to_path_buf(),
            addresses: vec![],
            usages: Arc::default(),
            fatal_error,
        };
        let (file, path) = (dir.path().join("node.toml"), target.path());
        std::fs::write(&file, format!("[[target]]\npath = {path:?}\npool = \"default\"\n")).unwrap();
        let is_listed = || std::fs::read_to_string(&file).unwrap().contains(path.to_str().unwrap());
        machine.forget_targets(&[PathBuf::from("/another")]);
        assert!(is_listed());
        machine.forget_targets(&[path.to_path_buf()]);
        assert!(!is_listed());
    }
}
