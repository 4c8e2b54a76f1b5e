//! Syncs of chunk files and targets.
//!
//! The client asks all targets to sync, concurrently. An unreachable target must not block a sync
//! if its data has other replicas. For data in mirrored groups it is enough that all members that
//! are in sync have it on disk. A member that doesn't answer is ejected when its groups are asked
//! for a sync, which all members must do.

use super::ChunkFiles;
use super::lease_epoch::LeaseContext;
use super::striping::ChunkLocation;
use crate::file::inode::OpenInode;
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::{ChunkFileId, ClusterMap, GroupId, InodeId, Layout, MemberState, Result, TargetId, TargetState};
use wire::{StorageOp, StorageRequest};

/// Time-out for a target of mirrored groups, after which its groups are asked instead. Long enough
/// for a disk to write much, and short compared with the time-out of a client's request.
const MEMBER_SYNC_TIMEOUT: Duration = Duration::from_secs(3);

/// In requests that concern no chunk file.
const NO_CHUNK_FILE: ChunkFileId = InodeId::ROOT.first_chunk_file();

/// Targets with the only replica of data that this session has changed. Grows only: files migrate.
#[derive(Default)]
pub(super) struct UnreplicatedTargets(RwLock<BTreeSet<TargetId>>);

impl ChunkFiles {
    /// Syncs a file at its current location, or where it was when it was changed: the answer shows
    /// what was lost there before it migrated. Former groups that don't exist any more are skipped.
    pub(crate) async fn sync_stripes(&self, inode: &OpenInode, layout: &Arc<Layout>) -> Result<()> {
        let under = LeaseContext::without_lease(inode.ino);
        if inode.content.lock().layout.as_ref() == Some(layout) {
            return self.on_every_stripe(under, layout, |_| StorageOp::Sync).await.map(drop);
        }
        let stripes = layout.groups.iter().enumerate().map(|(stripe, group)| async move {
            let Ok(location) = self.chunk_location(*group) else { return Ok(()) };
            self.send(under, (location, layout.chunk_file(inode.ino, stripe)), StorageOp::Sync, None)
                .await
                .map(drop)
        });
        rt::join_all(stripes.collect()).await.into_iter().collect()
    }

    /// Whether one of a file's chunk locations has had a loss after the count was `since`.
    pub(crate) fn has_lost_any(&self, layout: &Layout, since: u64) -> bool {
        let has_lost = |location| self.session.verifiers.has_lost(location, since);
        layout.groups.iter().any(|group| self.chunk_location(*group).is_ok_and(has_lost))
    }

    /// Records the targets of the groups without replicas of a file that is about to be changed.
    pub(crate) async fn note_unreplicated(&self, layout: &Layout) -> Result<()> {
        for &group in &layout.groups {
            if let ChunkLocation::Target(target) = self.location_when_known(group).await?
                && !self.unreplicated.0.read().contains(&target)
            {
                self.unreplicated.0.write().insert(target);
            }
        }
        Ok(())
    }

    /// Syncs everything on all targets.
    pub(crate) async fn sync_all(&self) -> Result<()> {
        let syncs = self.storage.targets().into_iter().map(|target| self.sync_target(target));
        let outcome: Result<()> = rt::join_all(syncs.collect()).await.into_iter().collect();
        outcome.and(self.sync_changed_groups().await)
    }

    /// Syncs changed groups, after a sync of all targets: members of groups are synced one by one,
    /// and only groups know of losses before that.
    async fn sync_changed_groups(&self) -> Result<()> {
        let groups = self.session.verifiers.take_changed_groups();
        let syncs = groups.iter().map(|group| self.sync_group(*group));
        let outcome: Result<()> = rt::join_all(syncs.collect()).await.into_iter().collect();
        if let Err(error) = outcome {
            // A lost group is reported once: no later sync can succeed.
            let retained: Vec<GroupId> = groups.into_iter().filter(|group| !self.is_lost(*group)).collect();
            self.session.verifiers.mark_changed(&retained);
            return Err(error);
        }
        Ok(())
    }

    async fn sync_target(&self, target: TargetId) -> Result<()> {
        let is_single = self.unreplicated.0.read().contains(&target);
        if is_single || !is_mirror(&self.current_map(), target) {
            let destination = (ChunkLocation::Target(target), NO_CHUNK_FILE);
            return self
                .send(LeaseContext::without_lease(InodeId::ROOT), destination, StorageOp::SyncTarget, None)
                .await
                .map(drop);
        }
        let state = self.current_map().target(target).map(|target| target.state);
        if state == Some(TargetState::Online)
            && let Some(Ok(())) = self.sync_member(target).await
        {
            return Ok(());
        }
        // Either the target has synced when its groups confirm, or they don't count on it any more.
        let groups = groups_counting_on(&self.current_map(), target);
        let synced = groups.into_iter().map(|group| self.sync_group(group));
        rt::join_all(synced.collect()).await.into_iter().collect()
    }

    /// Returns `None` if the target hasn't answered in time.
    async fn sync_member(&self, target: TargetId) -> Option<Result<()>> {
        let request = StorageRequest::new(self.session.id, target, NO_CHUNK_FILE, StorageOp::SyncTarget);
        let deadline = Box::pin(rt::sleep(MEMBER_SYNC_TIMEOUT));
        let answer = self.storage.call_or_abandon(deadline, request, None).await;
        answer.map(|answer| answer.map(drop))
    }

    /// Syncs the data of a group on all members that are in sync.
    async fn sync_group(&self, group: GroupId) -> Result<()> {
        let destination = (ChunkLocation::Group(group), NO_CHUNK_FILE);
        self.send(LeaseContext::without_lease(InodeId::ROOT), destination, StorageOp::SyncTarget, None)
            .await
            .map(drop)
    }

    fn current_map(&self) -> Arc<ClusterMap> {
        self.map.load()
    }
}

/// Whether a target is a member of mirrored groups.
fn is_mirror(map: &ClusterMap, target: TargetId) -> bool {
    map.groups.iter().any(|group| group.scheme.has_primary() && group.members.contains(&target))
}

/// Returns the mirrored groups in which a target is in sync.
fn groups_counting_on(map: &ClusterMap, target: TargetId) -> Vec<GroupId> {
    let is_in_sync = |group: &&types::Group| {
        group.scheme.has_primary() && group.state_of(target) == Some(MemberState::InSync)
    };
    map.groups.iter().filter(is_in_sync).map(|group| group.id).collect()
}
