//! Resync scheduler: checks the map periodically, for the groups whose primaries are here.

use super::replica::Replica;
use super::{GroupService, member_resync, removed_members};
use crate::counters::TargetCounters;
use chunkstore::{IfAbsent, Store};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::{ClusterMap, Epoch, Group, GroupId, MemberState, TargetId, TargetState};
use wire::{GroupContext, GroupRole, StorageOp};

/// How often the map is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How often targets are searched for replicas of groups that they have left.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Members that a node resyncs at a time: each takes its share of disk and network.
const MAX_RESYNCS: usize = 2;

/// Backoff after a failed attempt at a member; doubled with every further failure, up to
/// [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_secs(1);

/// The longest backoff: an administrator who has removed the cause waits no longer.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Failed attempts, by member: when the next may begin, and the current backoff.
type Backoffs = Mutex<BTreeMap<(GroupId, TargetId), (u64, Duration)>>;

/// A target that is served here.
pub(crate) type ServedTarget = (Arc<Store>, Arc<TargetCounters>);

/// Resyncs the groups whose primaries are served here, until `targets` reports that the service is
/// gone.
pub(crate) async fn run_resyncs(groups: Arc<GroupService>, targets: impl Fn() -> Option<Vec<ServedTarget>>) {
    let backoffs = Arc::new(Backoffs::default());
    let mut swept_ns = rt::monotonic_ns();
    loop {
        rt::sleep(CHECK_INTERVAL).await;
        let Some(targets) = targets() else { return };
        let map = groups.map();
        for replica in groups.open_replicas() {
            if let Some(group) = map.group(replica.group) {
                replica.update_group(group);
                groups.drop_retained_entries(&replica, group).await;
            }
        }
        if !groups.lease.is_valid(rt::monotonic_ns()) {
            continue;
        }
        if rt::monotonic_ns() - swept_ns >= SWEEP_INTERVAL.as_nanos() as u64 {
            for (store, counters) in &targets {
                removed_members::remove_obsolete_replicas(&groups, &map, store, counters).await;
            }
            swept_ns = rt::monotonic_ns();
        }
        for group in map.groups.iter().filter(|group| group.since > Epoch(0)) {
            // A primary that management considers offline doesn't act, whatever its node sees.
            let is_available =
                |id: &TargetId| map.target(*id).is_some_and(|t| t.state != TargetState::Offline);
            let primary = group.primary().filter(is_available);
            let here = targets.iter().find(|(store, _)| Some(store.target()) == primary);
            if let Some((store, counters)) = here {
                handle_group(&groups, &backoffs, &map, group, (store, counters)).await;
            }
        }
    }
}

/// Handles one group whose primary is here.
async fn handle_group(
    groups: &Arc<GroupService>,
    backoffs: &Arc<Backoffs>,
    map: &ClusterMap,
    group: &Group,
    (store, counters): (&Arc<Store>, &Arc<TargetCounters>),
) {
    let is_known = groups.entries.read().contains_key(&(store.target(), group.id));
    if !is_known && !group.is_degraded() && group.leaving.is_none() {
        return;
    }
    let Ok(replica) = groups.replica(store, counters, group.id, IfAbsent::Create).await else { return };
    if replica.is_unclean() && groups.eject_others(&replica).await.is_err() {
        return;
    }
    if group.revived == Some(replica.target) {
        // Others are resynced afterwards, so that they get nothing that the metadata doesn't know.
        return groups.start_forced_recovery(&replica);
    }
    if replica.unreconciled.is_pending() {
        // Others are resynced afterwards: otherwise their dirty regions would be dropped, and after
        // another crash no record would tell what to check.
        return groups.start_reconciliation(&replica);
    }
    groups.clone().send_settled(&replica, group);
    let removable = group.removable_member();
    let is_online = |id: TargetId| map.target(id).is_some_and(|target| target.state == TargetState::Online);
    // Management doesn't count unreachable replicas.
    let may_leave = |leaving: &TargetId| {
        let mut others = group.members.iter().filter(|id| *id != leaving);
        group.state_of(*leaving) == Some(MemberState::InSync) && others.all(|id| is_online(*id))
    };
    if let Some(leaving) = removable.filter(may_leave) {
        removed_members::release_member(groups, &replica, group.since, leaving);
    }
    if map.settings.resync.paused {
        return;
    }
    for (member, state) in group.members_with_states().filter(|(member, _)| removable != Some(*member)) {
        if state != MemberState::InSync && is_online(member) {
            start_resync(groups, backoffs, &replica, member);
        }
    }
}

/// Begins to resync a member, unless that or too many other resyncs are running.
fn start_resync(
    groups: &Arc<GroupService>,
    backoffs: &Arc<Backoffs>,
    replica: &Arc<Replica>,
    member: TargetId,
) {
    let key = (replica.group, member);
    let now_ns = rt::monotonic_ns();
    if backoffs.lock().get(&key).is_some_and(|(from_ns, _)| now_ns < *from_ns) {
        return;
    }
    {
        let mut resyncing = groups.resyncing.lock();
        if resyncing.len() >= MAX_RESYNCS || !resyncing.insert(key) {
            return;
        }
    }
    let (groups, backoffs, replica) = (groups.clone(), backoffs.clone(), replica.clone());
    rt::spawn(async move {
        match member_resync::run(&groups, &replica, member).await {
            Ok(()) => {
                backoffs.lock().remove(&key);
            }
            Err(error) => {
                tracing::warn!(group = %key.0, target_id = %member, %error, "a member is not in sync yet");
                let mut backoffs = backoffs.lock();
                let backoff =
                    backoffs.get(&key).map_or(MIN_BACKOFF, |(_, rest)| (*rest * 2).min(MAX_BACKOFF));
                backoffs.insert(key, (rt::monotonic_ns() + backoff.as_nanos() as u64, backoff));
            }
        }
        groups.resyncing.lock().remove(&key);
    });
}

impl GroupService {
    /// Tells members which changes are on all replicas, if no other request has done so since.
    fn send_settled(self: Arc<Self>, replica: &Arc<Replica>, group: &Group) {
        if !replica.sequences.has_unsent(group.since) {
            return;
        }
        let settled = replica.sequences.settled(group.since);
        let part = GroupRole::Member { sequence: 0, committed: settled };
        let in_group = GroupContext { group: group.id, version: group.since, role: part };
        let others = group.members_with_states().filter(|(target, _)| *target != replica.target);
        for (member, _) in others.filter(|(_, state)| state.receives_writes()) {
            let groups = self.clone();
            rt::spawn(async move {
                let asked = (types::ChunkFileId(0), StorageOp::Committed);
                // A member that misses this learns it from the next one; until then it retains some
                // dirty regions longer.
                let _ = groups.call_member(member, asked, in_group, None).await;
            });
        }
    }

    /// Drops what was retained while members were out of sync, once all replicas are equal again.
    async fn drop_retained_entries(&self, replica: &Replica, group: &Group) {
        if group.is_degraded() || replica.is_unclean() || replica.unreconciled.is_pending() {
            return;
        }
        if group.primary() == Some(replica.target) {
            replica.unsettled.clear();
        }
        if replica.store.has_overflowed()
            && let Err(error) = replica.store.clear_overflow().await
        {
            replica.failed(&error);
        }
    }
}
