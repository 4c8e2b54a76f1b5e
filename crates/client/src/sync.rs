//! What was done is on disk.
//!
//! All targets are asked to put everything on disk, side by side. One that is gone must not hinder that if what it had is elsewhere, too: for data in
//! mirrored groups it is enough that all members that count as good have it on disk, and one that doesn't answer loses that rank when its groups
//! are asked for something that all of them have to do.

use crate::Client;
use crate::data::Keeper;
use crate::epoch::Under;
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::{
    ClusterMap, Credentials, GroupId, InodeId, Layout, MemberState, PartitionId, Result, TargetId,
    TargetState,
};
use wire::{MetaOp, StorageOp, StorageRequest};

/// How long a target of mirrored groups may take before they are asked instead: long enough for a disk to put much on it, and short beside a
/// client's patience.
const PATIENCE_WITH_MEMBERS: Duration = Duration::from_secs(3);

/// Targets that are the only ones to have what this session has changed. Never fewer than there are: files move away.
#[derive(Default)]
pub(crate) struct Singles(RwLock<BTreeSet<TargetId>>);

impl Client {
    /// Notes where the only copy of a file is that is about to be changed.
    pub(crate) fn note_singles(&self, layout: &Layout) -> Result<()> {
        for &group in &layout.groups {
            if let Keeper::Target(target) = self.keeper(group)?
                && !self.singles.0.read().contains(&target)
            {
                self.singles.0.write().insert(target);
            }
        }
        Ok(())
    }

    /// Everything that returned before is on disk when this returns.
    pub async fn syncfs(&self) -> Result<()> {
        let asked = self.storage.targets().into_iter().map(|target| self.sync_target(target));
        let outcome: Result<()> = rt::join_all(asked.collect()).await.into_iter().collect();
        let outcome = outcome.and(self.report_all(false).await);
        outcome.and(self.sync_all_names().await)
    }

    async fn sync_target(&self, target: TargetId) -> Result<()> {
        let is_single = self.singles.0.read().contains(&target);
        if is_single || !is_mirror(&self.current_map(), target) {
            let place = (Keeper::Target(target), InodeId::ROOT);
            return self
                .store(Under::no_lease(InodeId::ROOT), place, StorageOp::SyncTarget, None)
                .await
                .map(drop);
        }
        let state = self.current_map().target(target).map(|target| target.state);
        if state == Some(TargetState::Online)
            && let Some(Ok(())) = self.sync_member(target).await
        {
            return Ok(());
        }
        // Either it has done that when its groups say so, or they don't rely on it any more.
        let relying = relying_on(&self.current_map(), target);
        let synced = relying.into_iter().map(|group| self.sync_group(group));
        rt::join_all(synced.collect()).await.into_iter().collect()
    }

    /// `None` when it hasn't answered for a while.
    async fn sync_member(&self, target: TargetId) -> Option<Result<()>> {
        let request = StorageRequest::new(self.session, target, InodeId::ROOT, StorageOp::SyncTarget);
        let given_up = Box::pin(rt::sleep(PATIENCE_WITH_MEMBERS));
        let answer = self.storage.call_unless(given_up, request, None).await;
        answer.map(|answer| answer.map(drop))
    }

    /// Has all good members put on disk what the group has.
    async fn sync_group(&self, group: GroupId) -> Result<()> {
        let place = (Keeper::Mirror(group), InodeId::ROOT);
        self.store(Under::no_lease(InodeId::ROOT), place, StorageOp::SyncTarget, None).await.map(drop)
    }

    fn current_map(&self) -> Arc<ClusterMap> {
        self.map.read().expect("nobody panics while holding the map").clone()
    }

    /// Everything that the service of a partition has answered is on disk when this returns.
    pub(crate) async fn sync_names(&self, partition: PartitionId) -> Result<()> {
        self.send_for(partition, 0, Credentials::default(), MetaOp::Sync).await.map(drop)
    }

    /// The same of all services.
    pub(crate) async fn sync_all_names(&self) -> Result<()> {
        let owners = self.services.ways.owners().into_iter();
        let synced = rt::join_all(owners.map(|(partition, _)| self.sync_names(partition)).collect()).await;
        synced.into_iter().collect()
    }
}

/// Whether a target is a member of mirrored groups.
fn is_mirror(map: &ClusterMap, target: TargetId) -> bool {
    map.groups.iter().any(|group| group.scheme.is_mirrored() && group.members.contains(&target))
}

/// The mirrored groups that count on what a target has.
fn relying_on(map: &ClusterMap, target: TargetId) -> Vec<GroupId> {
    let is_good = |group: &&types::Group| {
        group.scheme.is_mirrored() && group.state_of(target) == Some(MemberState::Good)
    };
    map.groups.iter().filter(is_good).map(|group| group.id).collect()
}
