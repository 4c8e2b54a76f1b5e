//! Groups of several targets: their members, and the admission of requests, as
//! docs/concepts/replication.md describes. All of it is the same for all redundancy schemes with a
//! primary; what the members do with an admitted request is up to the group's scheme (`scheme`).
//!
//! Each target has a separate store for each group, a *replica*. The primary receives changes,
//! orders them and sends them to the other members. When a member fails a change or doesn't answer,
//! management ejects it, and later the primary resyncs it.
//!
//! Invariants:
//! - a change is answered when all members that management counts as in sync have it;
//! - overlapping changes have one order on all replicas, and no reader sees what isn't on all of
//!   them;
//! - nothing is executed under a version of the group once something has begun under a newer one;
//! - the intent log lists all regions in which replicas may differ.

mod admission;
pub(crate) mod change;
mod client_activity;
pub(crate) mod detached;
mod file_list;
mod forced_recovery;
mod member;
pub(crate) mod member_calls;
pub(crate) mod member_resync;
pub(crate) mod membership;
pub(crate) mod range_locks;
pub(crate) mod read;
mod reconciliation;
mod removed_members;
mod repair_requests;
pub(crate) mod replica;
pub(crate) mod resync_progress;
pub(crate) mod resync_rate;
mod resync_scheduler;
pub(crate) mod sequences;
mod space;
mod unsettled_changes;
pub(crate) mod version_fence;

pub(crate) use replica::Replica;
pub(crate) use resync_scheduler::run_resyncs;

use crate::counters::TargetCounters;
use crate::dirty_tracking::DirtyTrackers;
use crate::scheme::{self, RedundancyScheme};
use crate::serving_lease::ServingLease;
use crate::session_fences::Fences;
use chunkstore::{IfAbsent, Store};
use client_activity::ClientActivity;
use net::LocalFuture;
use parking_lot::{Mutex, RwLock};
use resync_progress::Progress;
use routing::StorageChannels;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use types::{
    ChunkFileId, ClusterMap, Epoch, Errno, Error, Group, GroupId, MapHandle, MemberState, Result, TargetId,
};
use wire::mgmt::ReconcileFiles;
use wire::{GroupContext, GroupRole, StorageRequest};

/// How long a request waits for the map if it has a newer version of its group than this process
/// knows: management distributes maps within a moment. Less than the time-out of members, so that a
/// process that only receives the map late isn't taken for dead.
const MAP_TIMEOUT: Duration = Duration::from_secs(3);

/// A change of a member's state, as the primary of its group reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberChange {
    /// The group.
    pub group: GroupId,
    /// The version of the group that the primary knows.
    pub version: Epoch,
    /// The member.
    pub target: TargetId,
    /// Its new state.
    pub state: MemberState,
    /// Explanation for administrators.
    pub reason: String,
    /// The report is about the primary itself, which has nothing under way and begins nothing more.
    pub is_orderly: bool,
}

/// The functions of management that mirrored groups need.
pub trait GroupManagement: Send + Sync {
    /// Reports that a member has changed. When it returns, all processes that may serve know the
    /// change. The map of this process is then at least the one with the change, or has another
    /// version of the group if that had changed before.
    fn set_member(&self, change: MemberChange) -> LocalFuture<'_, Result<Arc<ClusterMap>>>;

    /// Requests crash reconciliation of these files in a group whose in-sync members have all
    /// crashed: the metadata service enforces its state on them. When it returns, the result is on
    /// disk.
    fn reconcile_group(&self, group: GroupId, touched: ReconcileFiles) -> LocalFuture<'_, Result<()>>;
}

/// What a service needs to have members of mirrored groups.
pub struct GroupPeers {
    /// The current map of this process.
    pub map: MapHandle,
    /// Channels to other members.
    pub members: Arc<StorageChannels>,
    /// Management, which decides which members count as in sync.
    pub management: Arc<dyn GroupManagement>,
}

/// The members of groups that a service has, each with its replica.
pub(crate) struct GroupService {
    pub(crate) peers: GroupPeers,
    pub(crate) lease: Arc<ServingLease>,
    pub(crate) fences: Arc<Fences>,
    entries: RwLock<BTreeMap<(TargetId, GroupId), Arc<ReplicaEntry>>>,
    /// Groups that a start has found on targets; each is open unless opening it has failed.
    found_groups: Mutex<BTreeMap<TargetId, Vec<GroupId>>>,
    pub(crate) progress: Progress,
    /// The dirty tracking of the service.
    pub(crate) dirty_trackers: Arc<DirtyTrackers>,
    /// Whether clients have sent requests to this node lately.
    pub(crate) client_activity: ClientActivity,
    /// Held by the resync task that sends data while clients have requests, and for the clients'
    /// share of the time afterwards.
    pub(crate) resync_turn: rt::sync::RwLock,
    /// Members that are being resynced.
    resyncing: Mutex<BTreeSet<(GroupId, TargetId)>>,
    /// Files under repair because a request has met damage.
    pub(crate) repairing: Mutex<BTreeSet<(GroupId, ChunkFileId)>>,
}

/// The table entry of one replica.
#[derive(Default)]
struct ReplicaEntry {
    /// Held by the task that opens it.
    open_lock: rt::sync::RwLock,
    replica: OnceLock<Arc<Replica>>,
}

/// A group in one cluster map.
pub(crate) struct GroupView {
    pub(crate) map: Arc<ClusterMap>,
    group: GroupId,
}

impl GroupView {
    pub(crate) fn has_other_primary(&self, replica: &Replica) -> Result<bool> {
        Ok(self.group()?.primary() != Some(replica.target))
    }

    pub(crate) fn group(&self) -> Result<&Group> {
        self.map.group(self.group).ok_or_else(|| {
            Error::new(Errno::ENXIO, format!("there is no group {} in the cluster map", self.group))
                .hint("weft group list shows the groups")
        })
    }

    /// Returns the implementation of the group's redundancy scheme.
    ///
    /// # Errors
    /// `ENXIO` if the group doesn't exist, `EINVAL` if it has no primary.
    pub(crate) fn scheme(&self) -> Result<&'static dyn RedundancyScheme> {
        scheme::of(self.group()?.scheme).ok_or_else(|| {
            Error::new(Errno::EINVAL, format!("group {} is a single target without a primary", self.group))
                .hint("install the same version of weft on all machines")
        })
    }
}

impl GroupService {
    pub(crate) fn new(
        peers: GroupPeers,
        lease: Arc<ServingLease>,
        fences: Arc<Fences>,
        dirty_trackers: Arc<DirtyTrackers>,
    ) -> GroupService {
        GroupService {
            peers,
            lease,
            fences,
            entries: RwLock::default(),
            found_groups: Mutex::default(),
            progress: Progress::default(),
            dirty_trackers,
            client_activity: ClientActivity::default(),
            resync_turn: rt::sync::RwLock::new(),
            resyncing: Mutex::default(),
            repairing: Mutex::default(),
        }
    }

    /// Returns the current map.
    pub(crate) fn map(&self) -> Arc<ClusterMap> {
        self.peers.map.load()
    }

    pub(crate) fn view(&self, group: GroupId) -> GroupView {
        GroupView { map: self.map(), group }
    }

    /// Returns the current version of a group; zero for an unknown one.
    pub(crate) fn since(&self, group: GroupId) -> Epoch {
        self.map().group(group).map_or(Epoch(0), |group| group.since)
    }

    /// Returns the group of a request, once this process knows the request's version of it.
    ///
    /// # Errors
    /// `GroupVersionMismatch` if the request has another version.
    pub(crate) async fn view_at_version(&self, context: &GroupContext) -> Result<GroupView> {
        let end_ns = rt::monotonic_ns().saturating_add(MAP_TIMEOUT.as_nanos() as u64);
        loop {
            let view = self.view(context.group);
            let since = view.map.group(context.group).map_or(Epoch(0), |group| group.since);
            if since == context.version {
                view.group()?;
                return Ok(view);
            }
            let left_ns = end_ns.saturating_sub(rt::monotonic_ns());
            if since > context.version || left_ns == 0 {
                return Err(version_fence::version_mismatch(context.group));
            }
            self.wait_for_map_after(view.map.epoch, left_ns).await;
        }
    }

    /// Waits until the current map has another epoch than `seen`, for `left_ns` at most.
    pub(crate) async fn wait_for_map_after(&self, seen: Epoch, left_ns: u64) {
        rt::timeout(Duration::from_nanos(left_ns), self.peers.map.changed_since(seen)).await;
    }

    /// Refuses a request to a group of which the target has no replica, before one is created:
    /// otherwise any client could fill the disk.
    ///
    /// # Errors
    /// `GroupVersionMismatch` if the request has another version of the group, `ENXIO` if the group
    /// doesn't exist.
    pub(crate) async fn require_member(&self, target: TargetId, context: &GroupContext) -> Result<()> {
        let key = (target, context.group);
        if self.entries.read().get(&key).is_some_and(|slot| slot.replica.get().is_some()) {
            return Ok(());
        }
        let view = self.view_at_version(context).await?;
        match view.group()?.members.contains(&target) {
            true => Ok(()),
            false => Err(version_fence::version_mismatch(context.group)),
        }
    }

    /// Returns the replica of a group on a target; opens or creates it if necessary.
    ///
    /// # Errors
    /// As [`Store::open_group`].
    pub(crate) async fn replica(
        &self,
        target: &Arc<Store>,
        counters: &Arc<TargetCounters>,
        group: GroupId,
        if_absent: IfAbsent,
    ) -> Result<Arc<Replica>> {
        if let Some(replica) = self.entry((target.target(), group)).replica.get() {
            return Ok(replica.clone());
        }
        // Rare, and large: kept out of the future of every request.
        Box::pin(self.open_exclusively(target, counters, (group, if_absent))).await
    }

    async fn open_exclusively(
        &self,
        target: &Arc<Store>,
        counters: &Arc<TargetCounters>,
        (group, if_absent): (GroupId, IfAbsent),
    ) -> Result<Arc<Replica>> {
        let key = (target.target(), group);
        loop {
            let slot = self.entry(key);
            let _exclusive = slot.open_lock.write().await;
            // The replica may have been removed meanwhile, together with its entry.
            if Arc::ptr_eq(&slot, &self.entry(key)) {
                return self.open(target, counters, (group, if_absent), &slot).await;
            }
        }
    }

    fn entry(&self, key: (TargetId, GroupId)) -> Arc<ReplicaEntry> {
        let known = self.entries.read().get(&key).cloned();
        known.unwrap_or_else(|| self.entries.write().entry(key).or_default().clone())
    }

    /// Opens a replica whose entry is locked, unless it is open already.
    async fn open(
        &self,
        target: &Arc<Store>,
        counters: &Arc<TargetCounters>,
        (group, if_absent): (GroupId, IfAbsent),
        slot: &ReplicaEntry,
    ) -> Result<Arc<Replica>> {
        if let Some(replica) = slot.replica.get() {
            return Ok(replica.clone());
        }
        let key = (target.target(), group);
        let opened =
            Store::open_group(target, group, if_absent).await.map_err(|e| counters.failed(target, &e))?;
        let Some((store, report)) = opened else {
            return Err(Error::new(
                Errno::EIO,
                format!("target {}: the replica of group {group} can't be created", key.0),
            ));
        };
        tracing::debug!(target_id = %key.0, %group, ?report, "replica opened");
        rt::spawn(run_background(store.clone()));
        let is_fenced = |session| self.fences.is_fenced(session);
        let leftovers = report.was_needed.then(|| ReconcileFiles {
            files: store.take_changing_at_crash(),
            new: store.take_created_at_crash(),
        });
        let replica = Arc::new(Replica::new(group, store, leftovers, counters.clone(), is_fenced));
        Ok(slot.replica.get_or_init(|| replica).clone())
    }

    /// Records the groups that were found on a target; all that can be opened are open.
    pub(crate) fn record_found(&self, target: TargetId, groups: Vec<GroupId>) {
        self.found_groups.lock().insert(target, groups);
    }

    /// Whether the target's replicas of all groups in which it counts as in sync are open, and none
    /// of them waits for crash recovery.
    pub(crate) fn is_reconciled_on(&self, map: &ClusterMap, target: TargetId) -> bool {
        let is_good =
            |group: &Group| group.scheme.has_primary() && group.state_of(target) == Some(MemberState::InSync);
        let mut good = map.groups.iter().filter(|group| is_good(group)).peekable();
        if good.peek().is_none() {
            return true;
        }
        let found = self.found_groups.lock().get(&target).cloned();
        let (Some(found), slots) = (found, self.entries.read()) else { return false };
        good.all(|group| match slots.get(&(target, group.id)).and_then(|slot| slot.replica.get()) {
            Some(replica) => !replica.is_unclean(),
            // It didn't exist at the start, and no request has needed it since.
            None => !found.contains(&group.id),
        })
    }

    /// Returns the open replicas.
    pub(crate) fn open_replicas(&self) -> Vec<Arc<Replica>> {
        self.entries.read().values().filter_map(|slot| slot.replica.get().cloned()).collect()
    }

    /// Returns the progress of the resyncs that run from here.
    pub(crate) fn progress(&self) -> Vec<wire::mgmt::ResyncProgress> {
        self.progress.all()
    }

    /// Waits until the node's lease from management is valid.
    pub(crate) async fn wait_for_lease(&self, target: TargetId) -> Result<()> {
        if self.lease.is_valid(rt::monotonic_ns()) { Ok(()) } else { self.lease.wait(target).await }
    }
}

async fn run_background(store: Arc<Store>) {
    store.background().await;
}

/// Whether a request is one that the primary sends to members.
pub(crate) fn is_from_primary(request: &StorageRequest) -> bool {
    request.group.is_some_and(|group| group.role != GroupRole::Primary)
}
