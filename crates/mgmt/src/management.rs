//! The cluster map: its storage, changes and publication.

use crate::authority::MembershipAuthority;
use crate::ceilings::{CEILINGS_KEY, Ceilings};
use crate::error::{Error, Result};
use crate::inventory::{INVENTORY_KEY, Inventory};
use crate::limits::REFRESH_INTERVAL;
use crate::liveness::Liveness;
use crate::lost_groups::LostGroups;
use crate::map_changes::{ManagementIdentity, NextNumbers, Roster};
use crate::member_states;
use crate::members::MemberTracker;
use crate::partition_assignment::{assign, log_moves};
use crate::rates::ReportedCounters;
use crate::reachability::{DueProbe, ProbeOutcome, Reachability};
use crate::space::{Space, space_of};
use crate::superblock::Superblock;
use crate::target_list::TargetList;
use crate::target_measurement::{TargetMeasurement, log_changes, measured, next_epoch};
use kv::{Readable, Store};
use net::LocalFuture;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use types::{
    CapacityClass, ClusterMap, Epoch, GroupId, GroupUsage, InodeId, MapHandle, Node, NodeId, NodeState,
    PartitionId, Pool, PoolId, Role, SessionId, Target, TargetId, TargetState,
};
use wire::mgmt::{
    BackupsInfo, DrainProgress, MetaInfo, PoolInfo, ReconcileFiles, SessionInfo, StoreInfo, TargetSpace,
};

/// The map's key in the metadata store: above all partitions, among the global keys.
pub(crate) const MAP_KEY: &[u8] = b"\xff\xffmap";

/// Key of the next numbers.
pub(crate) const NUMBERS_KEY: &[u8] = b"\xff\xffnumbers";

/// Initial pool of every cluster.
pub const DEFAULT_POOL: (PoolId, &str) = (PoolId(1), "default");

/// The node that creates a cluster, and that serves everything in a cluster of one process.
pub const FIRST_NODE: NodeId = NodeId(1);

/// Owner of the cluster map: stores it in the metadata store, and publishes it in the handle that
/// the services of this process share.
pub struct Management {
    pub(crate) store: Arc<dyn Store>,
    map: MapHandle,
    numbers: Mutex<NextNumbers>,
    /// Held by the one change in progress.
    change_lock: rt::sync::RwLock,
    /// Set and cleared with every new epoch.
    pub(crate) changed: rt::sync::Event,
    pub(crate) liveness: Mutex<Liveness>,
    reachability: Mutex<Reachability>,
    /// Time of day at the start of this process, in seconds, and its monotonic clock then.
    started: (i64, u64),
    /// Volatile state of members of mirrored groups.
    pub(crate) members: Mutex<MemberTracker>,
    /// Volatile state of lost groups.
    pub(crate) lost: Mutex<LostGroups>,
    /// Set and cleared with every heartbeat.
    pub(crate) heartbeat_received: rt::sync::Event,
    scope: Scope,
    pub(crate) authority: OnceLock<Arc<dyn MembershipAuthority>>,
    pub(crate) metadata: OnceLock<Arc<dyn Metadata>>,
    pub(crate) backups: OnceLock<BackupsSource>,
    pub(crate) store_info: OnceLock<StoreInfoSource>,
    own_usage: OnceLock<OwnUsage>,
    target_check: OnceLock<TargetCheck>,
    pub(crate) ceilings: Mutex<Ceilings>,
    pub(crate) inventory: Mutex<Inventory>,
}

/// Returns the disk space in a target's own files, in bytes, where known; for targets of this
/// process.
pub type OwnUsage = Arc<dyn Fn(TargetId, Space) -> Option<u64> + Send + Sync>;

/// Returns whether the directory of a target of this process is still the one that was opened.
pub type TargetCheck = Arc<dyn Fn(TargetId) -> bool + Send + Sync>;

/// Returns the state of the daily metadata backups.
pub type BackupsSource = Arc<dyn Fn() -> BackupsInfo + Send + Sync>;

/// Returns the disk usage of the metadata, where known.
pub type StoreInfoSource = Arc<dyn Fn() -> Option<StoreInfo> + Send + Sync>;

/// What this management manages.
enum Scope {
    /// The targets of its own process, which it measures itself.
    Process,
    /// Nodes, which report their targets.
    Cluster { superblock: Superblock, host: ManagementIdentity },
}

/// Requests of management to the metadata service.
pub trait Metadata: Send + Sync {
    /// Crash reconciliation of a target with the metadata of these files.
    fn reconcile(&self, target: TargetId, touched: ReconcileFiles) -> LocalFuture<'_, types::Result<()>>;
    /// The same for a mirrored group.
    fn reconcile_group(&self, group: GroupId, touched: ReconcileFiles) -> LocalFuture<'_, types::Result<()>>;
    /// A file with data on the target, if any.
    fn find_file_on(&self, target: TargetId) -> LocalFuture<'_, types::Result<Option<InodeId>>>;
    /// Usage of these groups by the metadata. Reads every inode in its current committed state.
    fn usage(&self, groups: BTreeSet<GroupId>) -> LocalFuture<'_, types::Result<GroupUsage>>;
    /// An inode that refers to the pool, if any: a directory with it in its pattern, or a file that
    /// is to be moved there.
    fn find_pool_reference(&self, pool: PoolId) -> LocalFuture<'_, types::Result<Option<InodeId>>>;
    /// Progress of draining targets, from the reachable services.
    fn drains(&self) -> LocalFuture<'_, Vec<(TargetId, DrainProgress)>>;
    /// Sessions of clients, from the reachable services.
    fn sessions(&self) -> LocalFuture<'_, types::Result<Vec<SessionInfo>>>;
    /// The partitions whose requests a node's service answers now.
    fn executed<'a>(&'a self, node: &'a Node) -> LocalFuture<'a, types::Result<Vec<PartitionId>>>;
    /// Evicts a session.
    fn evict(&self, session: SessionId) -> LocalFuture<'_, types::Result<()>>;
}

/// The node that management itself runs on.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct FirstNode {
    pub name: String,
    pub addresses: Vec<String>,
    pub roles: Vec<Role>,
    pub version: String,
    pub rack: Option<String>,
}

impl Management {
    /// Loads the map of a cluster of one process, or creates it: the targets of the list, all in
    /// the default pool. A new map is durable when this returns.
    ///
    /// Targets are measured before this returns.
    ///
    /// # Errors
    /// Map and list must name the same targets.
    pub async fn open(store: Arc<dyn Store>, list: &TargetList) -> Result<Management> {
        let stored = stored_map(&*store, list.root()).await?;
        let Some(mut map) = stored else {
            return Management::create(store, first_map(list), Scope::Process).await;
        };
        apply_target_list(&mut map, list).map_err(|cause| corrupt(list.root(), cause))?;
        let management = Management::from_map(store, map, Scope::Process).await?;
        // The stored free space may be as old as the last change of a capacity class.
        management
            .change(|roster| {
                member_states::handle_full_restart(&mut roster.map);
                Ok::<_, Error>(())
            })
            .await?;
        Ok(management)
    }

    /// Loads the map of a cluster of nodes, or creates it: this node alone, without targets. A new
    /// map is durable when this returns.
    pub async fn open_cluster(
        store: Arc<dyn Store>,
        superblock: &Superblock,
        first: &FirstNode,
        root: &Path,
    ) -> Result<Management> {
        let host = ManagementIdentity { uuid: superblock.uuid.clone(), version: first.version.clone() };
        let scope = Scope::Cluster { superblock: superblock.clone(), host };
        match stored_map(&*store, root).await? {
            Some(map) if map.nodes.is_empty() => {
                Err(corrupt(root, "it belongs to a cluster of one process".into()))
            }
            Some(map) => Management::from_map(store, map, scope).await,
            None => Management::create(store, first_cluster_map(first), scope).await,
        }
    }

    async fn create(store: Arc<dyn Store>, map: ClusterMap, scope: Scope) -> Result<Management> {
        let numbers = NextNumbers::above(&map);
        let management = Management::from_map(store, ClusterMap::default(), scope).await?;
        let map = management.evaluated(&map);
        management.publish(Roster { map: ClusterMap { epoch: Epoch(1), ..map }, numbers }).await?;
        management.store.sync().await?;
        Ok(management)
    }

    async fn from_map(store: Arc<dyn Store>, map: ClusterMap, scope: Scope) -> Result<Management> {
        let numbers = store.get(NUMBERS_KEY).await?;
        let numbers = numbers.and_then(|stored| serde_json::from_slice(&stored).ok());
        let ceilings = Ceilings::stored(store.get(CEILINGS_KEY).await?.as_deref());
        let inventory = Inventory::stored(store.get(INVENTORY_KEY).await?.as_deref());
        Ok(Management {
            numbers: Mutex::new(numbers.unwrap_or_else(|| NextNumbers::above(&map))),
            map: MapHandle::new(map),
            store,
            change_lock: rt::sync::RwLock::new(),
            changed: rt::sync::Event::new(),
            liveness: Mutex::new(Liveness::new(rt::monotonic_ns())),
            reachability: Mutex::default(),
            started: (rt::now().secs, rt::monotonic_ns()),
            members: Mutex::default(),
            lost: Mutex::default(),
            heartbeat_received: rt::sync::Event::new(),
            scope,
            authority: OnceLock::new(),
            metadata: OnceLock::new(),
            backups: OnceLock::new(),
            store_info: OnceLock::new(),
            own_usage: OnceLock::new(),
            target_check: OnceLock::new(),
            ceilings: Mutex::new(ceilings),
            inventory: Mutex::new(inventory),
        })
    }

    /// The cluster's time, Unix seconds. It follows the monotonic clock: setting this machine's
    /// time of day doesn't change it before the next start.
    pub(crate) fn cluster_time_s(&self) -> i64 {
        let (began_s, began_ns) = self.started;
        began_s.saturating_add_unsigned((rt::monotonic_ns() - began_ns) / 1_000_000_000)
    }

    /// Sets the authority that issues tokens and admits nodes. Only the first call counts.
    pub fn set_authority(&self, authority: Arc<dyn MembershipAuthority>) {
        let _ = self.authority.set(authority);
    }

    /// Sets the connection to the metadata service. Only the first call counts.
    pub fn set_metadata(&self, metadata: Arc<dyn Metadata>) {
        let _ = self.metadata.set(metadata);
    }

    /// Sets the source of the state of metadata backups. Only the first call counts.
    pub fn set_backups(&self, backups: BackupsSource) {
        let _ = self.backups.set(backups);
    }

    /// Sets the source of the metadata's disk usage. Only the first call counts.
    pub fn set_store_info(&self, source: StoreInfoSource) {
        let _ = self.store_info.set(source);
    }

    /// The handle by which the services of this process read the map.
    pub fn map(&self) -> MapHandle {
        self.map.clone()
    }

    /// The current map.
    pub fn current(&self) -> Arc<ClusterMap> {
        self.map.load()
    }

    /// The cluster's constants and management's host; `None` in a cluster of one process.
    pub(crate) fn cluster(&self) -> Option<(&Superblock, &ManagementIdentity)> {
        match &self.scope {
            Scope::Process => None,
            Scope::Cluster { superblock, host } => Some((superblock, host)),
        }
    }

    /// Records the scrub progress of this process's targets, in a cluster without nodes.
    pub fn note_own_scrubs(&self, scrubs: Vec<wire::mgmt::ScrubProgress>) {
        self.liveness().note_own_scrubs(scrubs);
    }

    /// Records the I/O counters of this process's targets, in a cluster without nodes.
    pub fn note_own_io(
        &self,
        counters: impl IntoIterator<Item = (TargetId, PathBuf, wire::mgmt::IoCounters)>,
    ) {
        let reported = counters.into_iter().map(|(target, path, work)| {
            let device = space_of(&path).ok().map(|space| space.device);
            ReportedCounters { target, device, work }
        });
        self.liveness().note_io_counters(reported, rt::monotonic_ns());
    }

    /// Sets the source of the space in the files of this process's targets, in a cluster without
    /// nodes. Only the first call counts.
    pub fn set_own_usage(&self, source: OwnUsage) {
        let _ = self.own_usage.set(source);
    }

    /// Sets the check that this process's targets are the directories that were opened, in a
    /// cluster without nodes: a measurable directory may be another one by now. Only the first call
    /// counts.
    pub fn set_target_check(&self, check: TargetCheck) {
        let _ = self.target_check.set(check);
    }

    pub(crate) fn liveness(&self) -> MutexGuard<'_, Liveness> {
        self.liveness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reachability(&self) -> MutexGuard<'_, Reachability> {
        self.reachability.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Addresses of nodes to be probed now; call [`Management::note_probe`] for each.
    pub fn due_probes(&self) -> Vec<DueProbe> {
        let (map, liveness) = (self.current(), self.liveness());
        self.reachability().due(&map, &liveness, rt::monotonic_ns())
    }

    /// Records the outcome of a probe.
    pub fn note_probe(&self, probe: &DueProbe, outcome: ProbeOutcome) {
        let DueProbe { node, address, .. } = probe;
        let failure = match &outcome {
            ProbeOutcome::Failed(cause) => Some(cause.clone()),
            ProbeOutcome::Reached | ProbeOutcome::NotUsed => None,
        };
        if !self.reachability().note(probe, outcome, rt::monotonic_ns()) {
            return;
        }
        match failure {
            Some(cause) => tracing::warn!(
                node = node.0,
                hint = "weft health shows whether the node is reachable at all",
                "node {node} can't be reached at {address}: {cause}"
            ),
            None => tracing::info!(node = node.0, "node {node} can be reached at {address} again"),
        }
    }

    /// Re-evaluates every node and target, and publishes changes. A change of anything but byte
    /// counts makes a new epoch, which is in the store before it is visible.
    pub async fn refresh(&self) -> Result<()> {
        self.change(|_| Ok(())).await
    }

    /// Refreshes forever. A failure is logged; the last stored map stays in force.
    pub async fn background(self: Arc<Management>) {
        loop {
            rt::sleep(REFRESH_INTERVAL).await;
            if let Err(e) = self.refresh().await {
                tracing::error!(hint = e.hint(), "cluster map not updated: {e}");
            }
            self.start_counting_lost();
        }
    }

    /// Nodes with targets that have not registered since this process started.
    pub fn missing_nodes(&self) -> Vec<NodeId> {
        let (map, liveness) = (self.current(), self.liveness());
        let mut nodes: Vec<NodeId> = map.targets.iter().map(|target| target.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|node| liveness.process(*node).is_none());
        nodes
    }

    /// Every metadata node with its assigned partitions, by id.
    pub(crate) fn metas(&self) -> Vec<MetaInfo> {
        let map = self.current();
        let all = self.cluster().map_or(0, |(superblock, _)| superblock.partitions);
        let owned = |node: NodeId| {
            let is_owner = |p: &PartitionId| map.owner(*p).is_some_and(|owner| owner.id == node);
            (0..all).map(PartitionId).filter(is_owner).collect()
        };
        let metas = map.nodes.iter().filter(|node| node.roles.contains(&Role::Meta));
        metas.map(|node| MetaInfo { node: node.clone(), assigned: owned(node.id), executed: None }).collect()
    }

    /// Usage of every pool, by id.
    pub fn pools(&self) -> Vec<PoolInfo> {
        let map = self.current();
        let info = |pool: &Pool| {
            let members = || map.targets.iter().filter(|t| t.pool == pool.id);
            PoolInfo {
                id: pool.id,
                name: pool.name.clone(),
                targets: members().count(),
                groups: map.groups.iter().filter(|g| g.pool == pool.id).count(),
                capacity: members().map(|t| t.capacity).sum(),
                free: members().map(|t| t.free).sum(),
                spare: pool.spare,
            }
        };
        map.pools.iter().map(info).collect()
    }

    /// Makes one change of the map, re-evaluates nodes and targets, and publishes the result.
    /// Changes are serialized; a refused one changes nothing.
    pub(crate) async fn change<T, E: From<Error>>(
        &self,
        edit: impl FnOnce(&mut Roster) -> Result<T, E>,
    ) -> Result<T, E> {
        let _change_guard = self.change_lock.write().await;
        let before = self.current();
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut roster = Roster { map: ClusterMap::clone(&before), numbers };
        let answer = edit(&mut roster)?;
        roster.map = self.evaluated(&roster.map);
        roster.add_first_served_targets(&before);
        self.replace_members(&before, &mut roster.map);
        member_states::assign_group_versions(&before, &mut roster.map);
        next_epoch(&before, &mut roster.map);
        log_changes(&before, &roster.map);
        member_states::log_members(&before, &roster.map);
        log_moves(&before, &roster.map);
        self.publish(roster).await?;
        Ok(answer)
    }

    /// The map with the current state of its nodes and targets.
    fn evaluated(&self, map: &ClusterMap) -> ClusterMap {
        let Some((superblock, _)) = self.cluster() else {
            let own_usage = |id, space| self.own_usage.get().and_then(|own| own(id, space));
            let is_same_directory = |id| self.target_check.get().is_none_or(|is_proven| is_proven(id));
            let mut map = measured(map, |target| match space_of(Path::new(&target.path)) {
                Ok(space) if is_same_directory(target.id) => {
                    TargetMeasurement::Space(Space { own: own_usage(target.id, space), ..space })
                }
                _ => TargetMeasurement::Unmeasurable,
            });
            let presence = self.reachability_snapshot(&map);
            member_states::eject_missing(&mut map, &presence);
            return map;
        };
        let (liveness, now_ns) = (self.liveness(), rt::monotonic_ns());
        let mut map = map.clone();
        for node in &mut map.nodes {
            node.state = liveness.state(node.id, node.state, now_ns);
        }
        if let Some(authority) = self.authority.get() {
            // The authority's record is authoritative, also after a restore of an older metadata
            // backup.
            map.revoked = authority.revoked(rt::now().secs);
        }
        assign(&mut map, superblock.partitions);
        let presence = liveness.reachability_snapshot(&map, now_ns);
        member_states::eject_missing(&mut map, &presence);
        member_states::replace_unreachable_primaries(&mut map, &presence);
        self.members().eject_restarted(&mut map, &presence);
        measured(&map, |target| match liveness.space(target.node, target.id) {
            None => TargetMeasurement::Unknown,
            Some(None) => TargetMeasurement::Unmeasurable,
            Some(Some(space)) => {
                let TargetSpace { capacity, free, device, own } = space;
                TargetMeasurement::Space(Space { capacity, free, device, own })
            }
        })
    }

    async fn publish(&self, roster: Roster) -> Result<()> {
        let before = self.current();
        let Roster { map, numbers } = roster;
        if map == *before {
            return Ok(());
        }
        let is_new_epoch = map.epoch != before.epoch;
        if is_new_epoch {
            let numbers = serde_json::to_vec(&numbers).expect("numbers have string keys only");
            let writes = vec![
                (MAP_KEY.to_vec(), Some(encode(&map).into())),
                (NUMBERS_KEY.to_vec(), Some(numbers.into())),
            ];
            self.store.put(writes).await?;
            // Actions under a version of the map must not be lost with it, and no number must be
            // reused.
            self.store.sync().await?;
            self.members().follow(&before, &map);
        }
        *self.numbers.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
        self.map.store(Arc::new(map));
        if is_new_epoch {
            self.changed.set();
            self.changed.clear();
        }
        Ok(())
    }

    /// Makes everything published durable: assigned numbers and issued certificates stay recorded.
    pub(crate) async fn sync(&self) -> Result<()> {
        Ok(self.store.sync().await?)
    }
}

/// The map of a new cluster of one process, before measurements.
fn first_map(list: &TargetList) -> ClusterMap {
    let target = |(id, path): (TargetId, &Path)| Target {
        id,
        node: FIRST_NODE,
        pool: DEFAULT_POOL.0,
        path: path.to_string_lossy().into_owned(),
        state: TargetState::Online,
        capacity: 0,
        free: 0,
        class: CapacityClass::Normal,
        drain: false,
        used: None,
    };
    let mut map = ClusterMap { targets: list.targets().map(target).collect(), ..empty_map() };
    map.groups = layout::single_groups(&map);
    map
}

/// The map of a new cluster of nodes.
fn first_cluster_map(first: &FirstNode) -> ClusterMap {
    let node = Node {
        id: FIRST_NODE,
        name: first.name.clone(),
        addresses: first.addresses.clone(),
        roles: first.roles.clone(),
        state: NodeState::Online,
        version: first.version.clone(),
        rack: first.rack.clone(),
    };
    ClusterMap { nodes: vec![node], ..empty_map() }
}

fn empty_map() -> ClusterMap {
    let pool = Pool { id: DEFAULT_POOL.0, name: DEFAULT_POOL.1.to_string(), spare: 0 };
    ClusterMap { epoch: Epoch(1), pools: vec![pool], ..ClusterMap::default() }
}

fn encode(map: &ClusterMap) -> Vec<u8> {
    serde_json::to_vec(map).expect("a map has only string keys and finite numbers")
}

async fn stored_map(store: &dyn Readable, root: &Path) -> Result<Option<ClusterMap>> {
    let Some(stored) = store.get(MAP_KEY).await? else { return Ok(None) };
    serde_json::from_slice(&stored).map(Some).map_err(|e| corrupt(root, e.to_string()))
}

fn corrupt(root: &Path, cause: String) -> Error {
    Error::CorruptMap { path: root.to_path_buf(), cause }
}

/// Sets the directories of the map's targets from the list; an error says why the map can't be
/// used.
fn apply_target_list(map: &mut ClusterMap, list: &TargetList) -> Result<(), String> {
    let known = map.targets.iter().map(|t| t.id);
    if !known.eq(list.targets().map(|(id, _)| id)) {
        return Err("its targets differ from the list of targets".into());
    }
    for (target, (_, path)) in map.targets.iter_mut().zip(list.targets()) {
        target.path = path.to_string_lossy().into_owned();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::StatePaths;
    use kv::Writer;
    use std::path::PathBuf;

    fn list(root: &str) -> TargetList {
        let directories = vec!["targets/t1".into(), "/disk/b".into()];
        TargetList::new(&StatePaths::new(root), directories).unwrap()
    }

    fn two_targets() -> ClusterMap {
        first_map(&list("/state"))
    }

    #[test]
    fn a_new_cluster_has_one_group_for_each_target() {
        let map = two_targets();
        assert_eq!(map.epoch, Epoch(1));
        assert_eq!(map.targets.iter().map(|t| t.id.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(
            map.groups.iter().map(|g| g.members.clone()).collect::<Vec<_>>(),
            [vec![TargetId(1)], vec![TargetId(2)]]
        );
        assert_eq!(map.pool_named("default").unwrap().id, PoolId(1));
    }

    /// Decodes a stored map as at a start.
    fn decoded(stored: &[u8], list: &TargetList) -> Result<ClusterMap, String> {
        let mut map: ClusterMap = serde_json::from_slice(stored).map_err(|e| e.to_string())?;
        apply_target_list(&mut map, list).map(|()| map)
    }

    #[test]
    fn a_stored_map_follows_its_directory() {
        let stored = encode(&two_targets());
        let moved = decoded(&stored, &list("/elsewhere")).unwrap();
        assert_eq!(moved.targets[0].path, "/elsewhere/targets/t1");
        assert_eq!(moved.targets[1].path, "/disk/b");
        assert_eq!(decoded(&stored, &list("/state")).unwrap(), two_targets());
    }

    /// In the format of the first version.
    #[test]
    fn a_map_from_before_there_were_nodes_opens() {
        let stored = br#"{"epoch":3,"targets":[{"id":1,"node":1,"pool":1,"path":"/state/targets/t1","state":"online","capacity":100,"free":60,"class":"normal"},{"id":2,"node":1,"pool":1,"path":"/disk/b","state":"offline","capacity":7,"free":1,"class":"low"}],"pools":[{"id":1,"name":"default"}],"groups":[{"id":1,"pool":1,"scheme":"single","members":[1]},{"id":2,"pool":1,"scheme":"single","members":[2]}]}"#;
        let map = decoded(stored, &list("/state")).unwrap();
        assert!(map.nodes.is_empty() && !map.targets[0].drain);
        assert_eq!((map.epoch, map.targets[1].class), (Epoch(3), CapacityClass::Low));
        assert_eq!(map.groups, two_targets().groups);
        assert_eq!(
            NextNumbers::above(&map),
            NextNumbers { next_node: 1, next_target: 3, next_pool: 2, next_group: layout::FIRST_MIRRORED }
        );
    }

    #[test]
    fn a_map_that_is_damaged_or_of_other_targets_is_refused() {
        for stored in [&b""[..], b"{}", br#"{"epoch":1,"targets":[],"pools":[],"groups":[]}"#] {
            assert!(decoded(stored, &list("/state")).is_err());
        }
        let one = TargetList::new(&StatePaths::new("/state"), vec!["targets/t1".into()]).unwrap();
        assert!(decoded(&encode(&two_targets()), &one).is_err());
    }

    /// Runs `check` in a new cluster with two targets, on a core.
    fn in_cluster<F: Future<Output = ()> + 'static>(
        check: impl FnOnce(TargetList, Arc<Writer>, Management) -> F + 'static,
    ) {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().to_path_buf();
        let run = async move {
            let directories: Vec<PathBuf> = [1, 2].map(|n| root.join(format!("t{n}"))).to_vec();
            directories.iter().for_each(|d| std::fs::create_dir(d).unwrap());
            let list = TargetList::new(&StatePaths::new(&root), directories).unwrap();
            let writer = Arc::new(Writer::new(Arc::new(kv::Memory::new()), kv::Durability::Process));
            let management = Management::open(writer.clone(), &list).await.unwrap();
            check(list, writer, management).await;
        };
        rt::block_on(run).unwrap();
    }

    #[test]
    fn the_map_is_the_same_after_a_restart() {
        in_cluster(async |list, writer, first| {
            let second = Management::open(writer, &list).await.unwrap();
            let lasting =
                |m: &Management| (m.current().epoch, m.current().pools.clone(), m.current().groups.clone());
            assert_eq!(lasting(&second), lasting(&first));
            let pool = &second.pools()[0];
            assert_eq!((&*pool.name, pool.targets, pool.groups), ("default", 2, 2));
            assert!(pool.capacity > 0);
        });
    }

    #[test]
    fn mirrored_groups_of_one_process_start_with_one_member_in_sync() {
        use types::MemberState::{InSync, NeedsRebuild, NeedsResync};
        in_cluster(async |list, writer, management| {
            let scheme = types::Scheme::Mirror(2);
            management.make_groups("default", scheme).await.unwrap();
            let group = management.current().groups.last().unwrap().clone();
            assert_eq!((group.scheme, group.members.len(), group.is_degraded()), (scheme, 2, false));
            let states = |management: &Management, id| -> Vec<_> {
                management.current().group(id).unwrap().members_with_states().collect()
            };
            // Changes in progress when the process died may be on one of them only.
            let other = management.current().groups[2].clone();
            assert_ne!(other.id, group.id);
            let again = Management::open(writer, &list).await.unwrap();
            assert_eq!(
                states(&again, other.id),
                [(other.members[0], InSync), (other.members[1], NeedsResync)]
            );
            assert_eq!(again.current().group(other.id).unwrap().since, again.current().epoch);
            // One of its disks may be gone: a directory in its place isn't a replica.
            let (first, second) = (group.members[0], group.members[1]);
            std::fs::remove_dir(list.root().join(format!("t{first}"))).unwrap();
            management.refresh().await.unwrap();
            assert_eq!(states(&management, group.id), [(second, InSync), (first, NeedsResync)]);
            let since = management.current().group(group.id).unwrap().since;
            let report = crate::member_states::MemberReport {
                group: group.id,
                since,
                target: first,
                state: NeedsRebuild,
                orderly: false,
            };
            management.set_member(None, report, "its disk is broken").await.unwrap();
            assert_eq!(states(&management, group.id), [(second, InSync), (first, NeedsRebuild)]);
            // A directory other than the opened one is no better.
            management.set_target_check(Arc::new(move |target| target != second));
            management.refresh().await.unwrap();
            assert_eq!(
                states(&management, group.id),
                [(second, InSync), (first, NeedsRebuild)],
                "the last one stays"
            );
            assert_eq!(management.current().target(second).unwrap().state, TargetState::Offline);
        });
    }

    #[test]
    fn the_map_of_the_largest_cluster_fits_into_a_frame() {
        use crate::limits::{MAX_NODES, MAX_TARGETS};
        let number = 1_000_000;
        let node = |id: u32| Node {
            id: NodeId(number + id),
            name: format!("storage-node-{id}"),
            addresses: vec!["10.100.200.1:7500".into()],
            roles: vec![Role::Storage],
            state: NodeState::ProbablyOffline,
            version: "0.10.0".into(),
            rack: Some(format!("hall-b-rack-{id}")),
        };
        let target = |id: u32| Target {
            id: TargetId(number + id),
            node: NodeId(number + id % MAX_NODES as u32),
            pool: PoolId(100),
            path: format!("/srv/weft/target{id}"),
            state: TargetState::ProbablyOffline,
            capacity: 30 << 40,
            free: 29 << 40,
            class: CapacityClass::Emergency,
            drain: false,
            used: None,
        };
        let degraded = |id: u32| types::Group {
            scheme: types::Scheme::Mirror(3),
            members: vec![TargetId(number); 3],
            states: vec![types::MemberState::NeedsResync; 3],
            since: Epoch(number.into()),
            ..types::Group::single(types::GroupId(number + id), PoolId(100), TargetId(1))
        };
        let mut map = ClusterMap {
            epoch: Epoch(number.into()),
            nodes: (0..MAX_NODES as u32).map(node).collect(),
            targets: (0..MAX_TARGETS as u32).map(target).collect(),
            pools: vec![Pool { id: PoolId(100), name: "default".into(), spare: 0 }],
            partitions: vec![NodeId(number); 64],
            ..ClusterMap::default()
        };
        map.groups = layout::single_groups(&map);
        let groups = map.groups.clone();
        map.groups.extend((0..layout::MAX_MIRRORED as u32).map(degraded));
        let len = encode(&map).len();
        assert!(len <= wire::frame::MAX_BODY_BYTES as usize, "{len} bytes; {} of mirrored groups", {
            len - encode(&ClusterMap { groups, ..map }).len()
        });
    }

    #[test]
    fn a_target_without_disk_is_offline_until_it_returns() {
        in_cluster(async |list, writer, management| {
            let (here, gone) = (list.root().join("t2"), list.root().join("away"));
            let state = || management.current().targets[1].state;
            let before = management.current().epoch;
            std::fs::rename(&here, &gone).unwrap();
            management.refresh().await.unwrap();
            assert_eq!(state(), TargetState::Offline);
            assert_eq!(management.current().epoch.0, before.0 + 1);
            let stored = Management::open(writer, &list).await.unwrap();
            assert_eq!(stored.current().epoch, management.current().epoch);
            std::fs::rename(&gone, &here).unwrap();
            management.refresh().await.unwrap();
            assert_eq!(state(), TargetState::Online);
        });
    }
}
