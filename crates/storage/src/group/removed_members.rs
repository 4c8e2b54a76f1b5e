//! Members that leave their group, and the removal of their replicas.

use super::replica::Replica;
use super::{GroupService, MemberChange};
use crate::counters::TargetCounters;
use chunkstore::Store;
use std::sync::Arc;
use std::time::Duration;
use types::{ClusterMap, Epoch, GroupId, MemberState, TargetId};

/// Pause before the next request to management.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long a leaving primary waits for changes under way: all other requests wait behind it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause before it tries again, in which other requests proceed: a long change may be the repair of
/// a large file.
const BUSY_PAUSE: Duration = Duration::from_secs(5);

/// Releases a member that the group doesn't need any more, unless that is under way.
pub(crate) fn release_member(
    groups: &Arc<GroupService>,
    replica: &Arc<Replica>,
    since: Epoch,
    leaving: TargetId,
) {
    let key = (replica.group, leaving);
    if !groups.resyncing.lock().insert(key) {
        return;
    }
    let (groups, replica) = (groups.clone(), replica.clone());
    rt::spawn(async move {
        if leaving == replica.target {
            groups.step_down_to_leave(&replica, since).await;
        } else {
            let reason = "another target has replaced it";
            groups.report_member(&replica, since, leaving, MemberState::NeedsRebuild, reason).await;
        }
        groups.resyncing.lock().remove(&key);
    });
}

impl GroupService {
    /// Steps down as the primary. All changes have ended by then, so the replicas are equal and the
    /// next primary can continue at once. From the request to management until its decision is
    /// known, this member changes and reads nothing.
    async fn step_down_to_leave(&self, replica: &Replica, since: Epoch) {
        let Some(_exclusive) = rt::timeout(DRAIN_TIMEOUT, replica.role_lock.write()).await else {
            tracing::debug!(group = %replica.group, "a leaving primary waits for changes in progress");
            return rt::sleep(BUSY_PAUSE).await;
        };
        let is_wanted = |group: &types::Group| {
            group.since == since && group.removable_member() == Some(replica.target) && !group.is_degraded()
        };
        let Ok(view) = self.primary_view(replica) else { return };
        if !view.group().is_ok_and(is_wanted) {
            return;
        }
        replica.announce_step_down(since);
        let change = MemberChange {
            group: replica.group,
            version: since,
            target: replica.target,
            state: MemberState::NeedsRebuild,
            reason: "another target has replaced it".into(),
            is_orderly: true,
        };
        while self.since(replica.group) == since {
            match self.peers.management.set_member(change.clone()).await {
                Ok(map) if map.group(replica.group).is_some_and(|group| group.since == since) => {
                    replica.cancel_step_down(since);
                    return;
                }
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(group = %replica.group, %error, "management hasn't confirmed that a primary leaves");
                    rt::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Removes a target's replica of a group that it isn't a member of.
    async fn remove_replica(&self, store: &Arc<Store>, group: GroupId) -> chunkstore::Result<()> {
        let key = (store.target(), group);
        let slot = self.entry(key);
        let _exclusive = slot.open_lock.write().await;
        // It may have become a member again meanwhile.
        if !is_obsolete(&self.map(), group, key.0) {
            return Ok(());
        }
        let removed = async {
            if let Some(replica) = slot.replica.get() {
                replica.store.close().await?;
            }
            store.remove_group(group).await
        }
        .await;
        // Even after a failure: a closed store can't serve, and the target may become a member
        // again one day.
        self.entries.write().remove(&key);
        removed?;
        tracing::info!(target_id = %key.0, %group, "the replica of a group that a target has left was removed");
        Ok(())
    }
}

/// Removes a target's replicas of groups that it isn't a member of, where the members have
/// everything.
pub(crate) async fn remove_obsolete_replicas(
    groups: &GroupService,
    map: &ClusterMap,
    store: &Arc<Store>,
    counters: &TargetCounters,
) {
    let swept = async {
        store.finish_group_removals().await?;
        for group in store.groups().await? {
            if is_obsolete(map, group, store.target()) {
                groups.remove_replica(store, group).await?;
            }
        }
        chunkstore::Result::Ok(())
    };
    if let Err(error) = swept.await {
        counters.failed(store, &error);
    }
}

/// Whether a target's replica of a group isn't needed: the target is no member and the members have
/// everything, or the content of the group was given up.
fn is_obsolete(map: &ClusterMap, group: GroupId, target: TargetId) -> bool {
    map.group(group).is_some_and(|group| {
        let is_replaced = !group.members.contains(&target)
            && !group.is_degraded()
            && group.members.len() >= group.scheme.members();
        is_replaced || group.is_lost()
    })
}
