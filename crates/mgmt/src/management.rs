//! The cluster map: where it is kept, and how it is kept true.

use crate::error::{Error, Result};
use crate::space::{Space, space_of};
use kv::{Batch, Outcome, Writer};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use types::{
    CapacityClass, ClusterMap, Epoch, MapHandle, NodeId, Pool, PoolId, Target, TargetId, TargetState,
};

/// Where the map is in the metadata store: above all partitions, among the global keys.
const MAP_KEY: &[u8] = b"\xff\xffmap";

/// The pool that every cluster starts with.
pub const DEFAULT_POOL: (PoolId, &str) = (PoolId(1), "default");

/// The node that serves everything in a cluster of one process.
const THIS_NODE: NodeId = NodeId(1);

/// How often targets are measured: `df` and the choosers are at most this far behind.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// Keeps the cluster map: in the metadata store, and in the handle that the services of this process share.
pub struct Management {
    root: PathBuf,
    writer: Arc<Writer>,
    map: MapHandle,
}

/// What a pool holds, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct PoolUsage {
    pub id: PoolId,
    pub name: String,
    pub targets: usize,
    pub groups: usize,
    pub capacity: u64,
    pub free: u64,
}

impl Management {
    /// Loads the map of the cluster whose state directory is `root`; `None` before targets were registered.
    pub fn load(root: &Path, writer: Arc<Writer>) -> Result<Option<Management>> {
        let Some(stored) = writer.engine().get(MAP_KEY)? else { return Ok(None) };
        let map = decode(root, &stored)?;
        Ok(Some(Management::over(root, writer, map)))
    }

    /// Registers the first targets, numbered from 1 in the order given, in the default pool; the map is durable when this returns.
    /// Their directories must be formatted already: a map never names a directory that isn't a target.
    pub async fn register(root: &Path, writer: Arc<Writer>, targets: &[PathBuf]) -> Result<Management> {
        let map = first_map(root, targets)?;
        let management = Management::over(root, writer, ClusterMap::default());
        management.publish(measured(&map, |path| space_of(path))).await?;
        management.writer.sync().await?;
        Ok(management)
    }

    fn over(root: &Path, writer: Arc<Writer>, map: ClusterMap) -> Management {
        Management { root: root.to_path_buf(), writer, map: Arc::new(RwLock::new(Arc::new(map))) }
    }

    /// The handle through which the services of this process see the map.
    pub fn map(&self) -> MapHandle {
        self.map.clone()
    }

    /// The map as it is now.
    pub fn current(&self) -> Arc<ClusterMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses wishes that differ from the targets the cluster has: their number, or their directories.
    pub fn require_targets(&self, count: Option<usize>, directories: &[PathBuf]) -> Result<()> {
        let map = self.current();
        let path = || self.root.clone();
        if let Some(asked) = count.filter(|asked| *asked != map.targets.len()) {
            return Err(Error::TargetCount { path: path(), have: map.targets.len(), asked });
        }
        let known: BTreeSet<&Path> = map.targets.iter().map(|t| Path::new(&t.path)).collect();
        match directories.iter().find(|d| !known.contains(d.as_path())) {
            Some(target) => Err(Error::UnknownTarget { path: path(), target: target.clone() }),
            None => Ok(()),
        }
    }

    /// Measures every target and publishes what changed. A target that changed its state or capacity class makes a
    /// new epoch, which is in the store before anybody sees it.
    pub async fn refresh(&self) -> Result<()> {
        let before = self.current();
        let after = measured(&before, |path| space_of(path));
        log_changes(&before, &after);
        self.publish(after).await
    }

    /// Refreshes for ever. A failure is logged; the last map that was stored stays in force.
    pub async fn background(self: Arc<Management>) {
        loop {
            rt::sleep(REFRESH_INTERVAL).await;
            if let Err(e) = self.refresh().await {
                tracing::error!(hint = e.hint(), "cluster map not updated: {e}");
            }
        }
    }

    /// What every pool holds, by id.
    pub fn pools(&self) -> Vec<PoolUsage> {
        let map = self.current();
        let usage = |pool: &Pool| {
            let members = || map.targets.iter().filter(|t| t.pool == pool.id);
            PoolUsage {
                id: pool.id,
                name: pool.name.clone(),
                targets: members().count(),
                groups: map.groups.iter().filter(|g| g.pool == pool.id).count(),
                capacity: members().map(|t| t.capacity).sum(),
                free: members().map(|t| t.free).sum(),
            }
        };
        map.pools.iter().map(usage).collect()
    }

    async fn publish(&self, map: ClusterMap) -> Result<()> {
        let before = self.current();
        if map == *before {
            return Ok(());
        }
        if map.epoch != before.epoch {
            let value = encode(&self.root, &map);
            let batch = Batch { guards: vec![], writes: vec![(MAP_KEY.to_vec(), Some(value))] };
            let outcome = self.writer.commit(batch).await?;
            debug_assert_eq!(outcome, Outcome::Won, "a batch without guards can't lose");
        }
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
        Ok(())
    }
}

/// The map of a new cluster, before anything is measured.
fn first_map(root: &Path, targets: &[PathBuf]) -> Result<ClusterMap> {
    let mut seen = BTreeSet::new();
    if let Some(target) = targets.iter().find(|t| !seen.insert(*t)) {
        return Err(Error::DuplicateTarget { target: target.clone() });
    }
    let target = |(at, path): (usize, &PathBuf)| Target {
        id: TargetId(at as u32 + 1),
        node: THIS_NODE,
        pool: DEFAULT_POOL.0,
        path: root.join(path).to_string_lossy().into_owned(),
        state: TargetState::Online,
        capacity: 0,
        free: 0,
        class: CapacityClass::Normal,
    };
    let mut map = ClusterMap {
        epoch: Epoch(0),
        targets: targets.iter().enumerate().map(target).collect(),
        pools: vec![Pool { id: DEFAULT_POOL.0, name: DEFAULT_POOL.1.to_string() }],
        groups: vec![],
    };
    map.groups = layout::single_groups(&map);
    map.epoch = Epoch(1);
    Ok(map)
}

/// The map with what `measure` says of every target's directory.
///
/// Directories on one local file system share its room: each is given an equal part, so that sums over targets are true. How
/// full a target is, is judged by the file system as a whole. A directory that can't be measured is offline.
fn measured(map: &ClusterMap, measure: impl Fn(&Path) -> io::Result<Space>) -> ClusterMap {
    let spaces: Vec<Option<Space>> = map.targets.iter().map(|t| measure(Path::new(&t.path)).ok()).collect();
    let mut sharers: BTreeMap<u64, u64> = BTreeMap::new();
    for space in spaces.iter().flatten() {
        *sharers.entry(space.device).or_default() += 1;
    }
    let mut after = map.clone();
    for (target, space) in after.targets.iter_mut().zip(spaces) {
        match space {
            Some(space) => {
                let share = sharers[&space.device];
                target.state = TargetState::Online;
                target.capacity = space.capacity / share;
                target.free = space.free / share;
                target.class = layout::classify(space.capacity, space.free);
            }
            None => target.state = TargetState::Offline,
        }
    }
    if placement(map) != placement(&after) {
        after.epoch = Epoch(map.epoch.0 + 1);
    }
    after
}

/// What choosers see of the targets besides bytes; a change of it is a new epoch.
fn placement(map: &ClusterMap) -> Vec<(TargetState, CapacityClass)> {
    map.targets.iter().map(|t| (t.state, t.class)).collect()
}

fn log_changes(before: &ClusterMap, after: &ClusterMap) {
    for (old, new) in before.targets.iter().zip(&after.targets) {
        let (id, path) = (new.id.0, &new.path);
        match (old.state, new.state) {
            (TargetState::Online, TargetState::Offline) => {
                tracing::error!(target_id = id, "target {id} ({path}) is offline: its directory can't be read; \
                    check that its disk is there and mounted");
            }
            (TargetState::Offline, TargetState::Online) => {
                tracing::info!(target_id = id, "target {id} ({path}) is online again");
            }
            _ => {}
        }
        match (old.class, new.class) {
            (a, b) if a == b => {}
            (_, CapacityClass::Normal) => {
                tracing::info!(target_id = id, "target {id} ({path}) has enough room again");
            }
            (_, CapacityClass::Low) => {
                tracing::warn!(target_id = id, "target {id} ({path}) is nearly full: {} MiB free; \
                    new files prefer other targets", new.free >> 20);
            }
            (_, CapacityClass::Emergency) => {
                tracing::error!(target_id = id, "target {id} ({path}) is full: {} MiB free; it takes no new files; \
                    delete files, or give its disk more room", new.free >> 20);
            }
        }
    }
}

/// The stored form: JSON, with directories below the state directory named relative to it, so that it may be moved.
fn encode(root: &Path, map: &ClusterMap) -> Vec<u8> {
    let mut stored = map.clone();
    for target in &mut stored.targets {
        if let Ok(below) = Path::new(&target.path).strip_prefix(root) {
            target.path = below.to_string_lossy().into_owned();
        }
    }
    serde_json::to_vec(&stored).expect("a map has only string keys and finite numbers")
}

fn decode(root: &Path, stored: &[u8]) -> Result<ClusterMap> {
    let damaged = |cause: String| Error::CorruptMap { path: root.to_path_buf(), cause };
    let mut map: ClusterMap = serde_json::from_slice(stored).map_err(|e| damaged(e.to_string()))?;
    if map.targets.is_empty() || !map.targets.is_sorted_by_key(|t| t.id) {
        return Err(damaged("its targets are missing or out of order".into()));
    }
    for target in &mut map.targets {
        target.path = root.join(&target.path).to_string_lossy().into_owned();
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn two_targets() -> ClusterMap {
        first_map(Path::new("/state"), &["/state/targets/t1".into(), "/disk/b".into()]).unwrap()
    }

    fn space(capacity: u64, free: u64, device: u64) -> io::Result<Space> {
        Ok(Space { capacity, free, device })
    }

    #[test]
    fn a_new_cluster_has_one_group_for_each_target() {
        let map = two_targets();
        assert_eq!(map.epoch, Epoch(1));
        assert_eq!(map.targets.iter().map(|t| t.id.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(map.groups.iter().map(|g| g.members.clone()).collect::<Vec<_>>(), [
            vec![TargetId(1)],
            vec![TargetId(2)]
        ]);
        assert_eq!(map.pool_named("default").unwrap().id, PoolId(1));
    }

    #[test]
    fn a_directory_is_one_target_only() {
        let twice = [PathBuf::from("/a"), PathBuf::from("/a")];
        assert!(matches!(first_map(Path::new("/s"), &twice), Err(Error::DuplicateTarget { .. })));
    }

    #[test]
    fn targets_on_one_file_system_share_its_room() {
        let map = measured(&two_targets(), |_| space(100 * GIB, 60 * GIB, 5));
        assert_eq!(map.targets.iter().map(|t| t.capacity).sum::<u64>(), 100 * GIB);
        assert_eq!(map.targets.iter().map(|t| t.free).sum::<u64>(), 60 * GIB);
        let map = measured(&two_targets(), |p| space(100 * GIB, 60 * GIB, p.starts_with("/state") as u64));
        assert_eq!(map.targets[0].capacity, 100 * GIB);
    }

    #[test]
    fn the_epoch_moves_with_class_and_state_but_not_with_bytes() {
        let first = measured(&two_targets(), |_| space(100 * GIB, 60 * GIB, 5));
        let fuller = measured(&first, |_| space(100 * GIB, 50 * GIB, 5));
        assert_ne!(fuller, first);
        assert_eq!(fuller.epoch, first.epoch);
        let full = measured(&fuller, |_| space(100 * GIB, 0, 5));
        assert_eq!(full.epoch.0, first.epoch.0 + 1);
        assert_eq!(full.targets[0].class, CapacityClass::Emergency);
        let gone = measured(&full, |_| Err(io::ErrorKind::NotFound.into()));
        assert_eq!(gone.epoch.0, full.epoch.0 + 1);
        assert_eq!(gone.targets[0].state, TargetState::Offline);
        assert_eq!(gone.targets[0].capacity, full.targets[0].capacity);
    }

    #[test]
    fn a_stored_map_follows_its_directory() {
        let stored = encode(Path::new("/state"), &two_targets());
        let moved = decode(Path::new("/elsewhere"), &stored).unwrap();
        assert_eq!(moved.targets[0].path, "/elsewhere/targets/t1");
        assert_eq!(moved.targets[1].path, "/disk/b");
        assert_eq!(decode(Path::new("/state"), &stored).unwrap(), two_targets());
    }

    #[test]
    fn a_damaged_map_is_refused() {
        for stored in [&b""[..], b"{}", br#"{"epoch":1,"targets":[],"pools":[],"groups":[]}"#] {
            assert!(matches!(decode(Path::new("/s"), stored), Err(Error::CorruptMap { .. })));
        }
    }
}
