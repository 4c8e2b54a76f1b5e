//! What was done is on disk.
//!
//! All targets are asked to put everything on disk, side by side. One that is gone must not hinder that if what it had is elsewhere, too: for data in
//! mirrored groups it is enough that all members that count as good have it on disk, and one that doesn't answer loses that rank when its groups
//! are asked for something that all of them have to do.

use crate::Client;
use crate::data::Keeper;
use crate::epoch::Under;
use net::ToGroup;
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::{
    ClusterMap, Credentials, GroupId, InodeId, Layout, MemberState, PartitionId, Result, TargetId,
    TargetState,
};
use wire::{MetaOp, StorageOp, StorageRequest};

/// How long a target of mirrored groups may take before it is asked through them whether it is there: a disk is slow to put much on it, and the
/// question costs little.
const PATIENCE_WITH_MEMBERS: Duration = Duration::from_secs(3);

/// Rest before a target is asked again that its groups count on, but that hasn't answered.
const REST: Duration = Duration::from_millis(200);

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
        let end_ns = rt::monotonic_ns() + self.patience.get().as_nanos() as u64;
        loop {
            let map = self.current_map();
            let relying = relying_on(&map, target);
            if relying.is_empty() {
                return Ok(());
            }
            let state = map.target(target).map(|target| target.state);
            let answer = match state {
                Some(TargetState::Online) => self.sync_member(target).await,
                _ => None,
            };
            match answer {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) if self.is_over() || rt::monotonic_ns() >= end_ns => return Err(error),
                _ => {}
            }
            let probes = relying.into_iter().map(|group| self.probe(group));
            rt::join_all(probes.collect()).await.into_iter().collect::<Result<()>>()?;
            rt::sleep(REST).await;
        }
    }

    /// `None` when it hasn't answered for a while.
    async fn sync_member(&self, target: TargetId) -> Option<Result<()>> {
        let request = StorageRequest::new(self.session, target, InodeId::ROOT, StorageOp::SyncTarget);
        let given_up = Box::pin(rt::sleep(PATIENCE_WITH_MEMBERS));
        let answer = self.storage.call_unless(given_up, request, None).await;
        answer.map(|answer| answer.map(drop))
    }

    /// Asks a group for something that changes nothing and that all its members have to do: those that don't are out of it then.
    async fn probe(&self, group: GroupId) -> Result<()> {
        let request = StorageRequest::new(self.session, TargetId(0), InodeId::ROOT, StorageOp::Sync);
        let to = ToGroup { map: &self.map, group, patience: self.patience.get() };
        self.storage.call_group(to, request, None).await.map(drop)
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
