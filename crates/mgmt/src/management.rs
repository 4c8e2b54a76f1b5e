//! The cluster map: where it is kept, and how it is kept true.

use crate::error::{Error, Result};
use crate::space::{Space, space_of};
use crate::target_list::TargetList;
use kv::{Batch, Outcome, Writer};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
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
    /// Loads the map, or makes it when there is none yet: the targets of the list, all in the default pool. A
    /// new map is durable when this returns.
    ///
    /// Targets are measured before this returns.
    ///
    /// # Errors
    /// Map and list must name the same targets.
    pub async fn open(writer: Arc<Writer>, list: &TargetList) -> Result<Management> {
        let stored = writer.engine().get(MAP_KEY)?;
        let Some(stored) = stored else {
            let management = Management::over(writer, ClusterMap::default());
            management.publish(measured(&first_map(list), space_of)).await?;
            management.writer.sync().await?;
            return Ok(management);
        };
        let map = decode(&stored, list)
            .map_err(|cause| Error::CorruptMap { path: list.root().to_path_buf(), cause })?;
        let management = Management::over(writer, map);
        // What is stored may be as old as the last change of a class.
        management.refresh().await?;
        Ok(management)
    }

    fn over(writer: Arc<Writer>, map: ClusterMap) -> Management {
        Management { writer, map: Arc::new(RwLock::new(Arc::new(map))) }
    }

    /// The handle through which the services of this process see the map.
    pub fn map(&self) -> MapHandle {
        self.map.clone()
    }

    /// The map as it is now.
    pub fn current(&self) -> Arc<ClusterMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Measures every target and publishes what changed. A target that changed its state or capacity class
    /// makes a new epoch, which is in the store before anybody sees it.
    pub async fn refresh(&self) -> Result<()> {
        let before = self.current();
        let after = measured(&before, space_of);
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
            let value = encode(&map);
            let batch = Batch { guards: vec![], writes: vec![(MAP_KEY.to_vec(), Some(value.into()))] };
            let outcome = self.writer.commit(batch).await?;
            debug_assert_eq!(outcome, Outcome::Won, "a batch without guards can't lose");
        }
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
        Ok(())
    }
}

/// The map of a new cluster, before anything is measured.
fn first_map(list: &TargetList) -> ClusterMap {
    let target = |(id, path): (TargetId, &Path)| Target {
        id,
        node: THIS_NODE,
        pool: DEFAULT_POOL.0,
        path: path.to_string_lossy().into_owned(),
        state: TargetState::Online,
        capacity: 0,
        free: 0,
        class: CapacityClass::Normal,
    };
    let mut map = ClusterMap {
        epoch: Epoch(1),
        targets: list.targets().map(target).collect(),
        pools: vec![Pool { id: DEFAULT_POOL.0, name: DEFAULT_POOL.1.to_string() }],
        groups: vec![],
    };
    map.groups = layout::single_groups(&map);
    map
}

/// The map with what `measure` says of every target's directory.
///
/// Directories on one local file system share its room: each is given an equal part, so that sums over
/// targets are true. How full a target is, is judged by the file system as a whole. A directory that can't be
/// measured is offline.
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
                tracing::error!(
                    target_id = id,
                    "target {id} ({path}) is offline: its directory can't be read; \
                    check that its disk is there and mounted"
                );
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
                tracing::warn!(
                    target_id = id,
                    "target {id} ({path}) is nearly full: {} MiB free; \
                    new files prefer other targets",
                    new.free >> 20
                );
            }
            (_, CapacityClass::Emergency) => {
                tracing::error!(
                    target_id = id,
                    "target {id} ({path}) is full: {} MiB free; it takes no new files; \
                    delete files, or give its disk more room",
                    new.free >> 20
                );
            }
        }
    }
}

fn encode(map: &ClusterMap) -> Vec<u8> {
    serde_json::to_vec(map).expect("a map has only string keys and finite numbers")
}

/// The map, with the directories that the list says; or why it can't be used.
fn decode(stored: &[u8], list: &TargetList) -> Result<ClusterMap, String> {
    let mut map: ClusterMap = serde_json::from_slice(stored).map_err(|e| e.to_string())?;
    let known = map.targets.iter().map(|t| t.id);
    if !known.eq(list.targets().map(|(id, _)| id)) {
        return Err("it doesn't have the targets of the list of targets".into());
    }
    for (target, (_, path)) in map.targets.iter_mut().zip(list.targets()) {
        target.path = path.to_string_lossy().into_owned();
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::StatePaths;
    use std::path::PathBuf;

    const GIB: u64 = 1 << 30;

    fn list(root: &str) -> TargetList {
        let directories = vec!["targets/t1".into(), "/disk/b".into()];
        TargetList::new(&StatePaths::new(root), directories).unwrap()
    }

    fn two_targets() -> ClusterMap {
        first_map(&list("/state"))
    }

    fn space(capacity: u64, free: u64, device: u64) -> io::Result<Space> {
        Ok(Space { capacity, free, device })
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
        let stored = encode(&two_targets());
        let moved = decode(&stored, &list("/elsewhere")).unwrap();
        assert_eq!(moved.targets[0].path, "/elsewhere/targets/t1");
        assert_eq!(moved.targets[1].path, "/disk/b");
        assert_eq!(decode(&stored, &list("/state")).unwrap(), two_targets());
    }

    #[test]
    fn a_map_that_is_damaged_or_of_other_targets_is_refused() {
        for stored in [&b""[..], b"{}", br#"{"epoch":1,"targets":[],"pools":[],"groups":[]}"#] {
            assert!(decode(stored, &list("/state")).is_err());
        }
        let one = TargetList::new(&StatePaths::new("/state"), vec!["targets/t1".into()]).unwrap();
        assert!(decode(&encode(&two_targets()), &one).is_err());
    }

    /// The outcome of `check` in a new cluster with two targets, on a core.
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
    fn a_target_that_goes_away_is_offline_and_comes_back() {
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
