//! Syncs: `fsync`, `syncfs`, and syncs of directories.
//!
//! The client asks all targets to sync, concurrently. An unreachable target must not block a sync
//! if its data has other replicas. For data in mirrored groups it is enough that all members that
//! are in sync have it on disk. A member that doesn't answer is ejected when its groups are asked
//! for a sync, which all members must do.

use crate::file::access::LeaseNeed;
use crate::file::inode::OpenInode;
use crate::file::lease_epoch::LeaseContext;
use crate::file::striping::ChunkLocation;
use crate::session::privileges::RequestUser;
use crate::{Client, Handle};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{
    ChunkFileId, ClusterMap, Errno, Error, GroupId, InodeId, Layout, MemberState, PartitionId, Result,
    TargetId, TargetState,
};
use wire::{LeaseMode, MetaOp, StorageOp, StorageRequest};

/// In requests that concern no chunk file.
const NO_CHUNK_FILE: ChunkFileId = InodeId::ROOT.first_chunk_file();

/// Time-out for a target of mirrored groups, after which its groups are asked instead. Long enough
/// for a disk to write much, and short compared with the time-out of a client's request.
const MEMBER_SYNC_TIMEOUT: Duration = Duration::from_secs(3);

/// Targets with the only replica of data that this session has changed. Grows only: files migrate.
#[derive(Default)]
pub(crate) struct UnreplicatedTargets(RwLock<BTreeSet<TargetId>>);

impl Handle {
    /// Reports a loss of data that was written before, once.
    ///
    /// # Errors
    /// `EIO` then.
    pub(crate) fn report_loss(&self) -> Result<()> {
        let found = self.inode.content.lock().loss_count();
        match self.losses_reported.swap(found, Ordering::AcqRel) < found {
            true => Err(lost(&format!("inode {}", self.ino()))),
            false => Ok(()),
        }
    }
}

fn lost(what: &str) -> Error {
    let message =
        format!("{what}: unsynced writes were lost in a power failure of storage or of the metadata store");
    Error::new(Errno::EIO, message).hint("repeat all writes since the last successful sync")
}

/// A change of a file's size, layout or inline content that is in flight to the metadata service,
/// until this is dropped. An unanswered one may have been executed.
pub(crate) struct UnsyncedChange(Arc<OpenInode>);

impl Drop for UnsyncedChange {
    fn drop(&mut self) {
        self.0.content.lock().unsynced_metadata.end(false);
    }
}

impl Client {
    /// Syncs data, size and name of the file.
    ///
    /// # Errors
    /// `EIO`, once for each handle, if a power loss of storage services or of the metadata store
    /// has taken something that was written before. The cause, once for each handle, if a delayed
    /// write could not be stored.
    pub async fn fsync(&self, handle: &Arc<Handle>, data_only: bool) -> Result<()> {
        let _ = data_only;
        let inode = &handle.inode;
        let (layouts, changes) = {
            // Holds the lock, so that a recall can't unload the layout before it is read.
            let _shared = self.lock_shared(inode, LeaseNeed::Read).await?;
            let mut content = inode.content.lock();
            if content.lease == LeaseMode::Shared {
                // Other sessions write as well, and the sync covers their writes, too.
                content.unsynced.assume_unsynced();
            }
            let others =
                content.unsynced_layouts.iter().filter(|other| Some(*other) != content.layout.as_ref());
            let layouts: Vec<_> = content.layout.iter().chain(others).cloned().collect();
            (layouts, content.unsynced.unsynced_changes())
        };
        if let (false, Some(changes)) = (layouts.is_empty(), changes) {
            let synced = layouts.iter().map(|layout| self.sync_stripes(inode, layout)).collect();
            rt::join_all(synced).await.into_iter().collect::<Result<()>>()?;
            let mut content = inode.content.lock();
            // Under the lock that a change takes when it begins, which may count as the first
            // unsynced one.
            let has_lost = |since| layouts.iter().any(|layout| self.has_lost_any(layout, since));
            if content.unsynced.since().is_some_and(has_lost) {
                content.unsynced.record_loss(self.session.verifiers.losses());
            }
            // Only now, so that concurrent syncs wait for the disk as well.
            content.synced(changes);
        }
        // Even after a loss: the remaining data is made durable.
        self.sync_inode(inode).await?;
        handle.report_flush_failure()?;
        handle.report_loss()
    }

    /// Syncs size, layout and inline content of a file. Records a loss of these, which the answer
    /// to the sync shows.
    pub(crate) async fn sync_inode(&self, inode: &OpenInode) -> Result<()> {
        self.report_progress(inode, false).await?;
        let changes = inode.content.lock().unsynced_metadata.unsynced_changes();
        self.sync_metadata(inode.ino.partition()).await?;
        let Some(changes) = changes else { return Ok(()) };
        // Under the lock that a change takes when it begins, which may count as the first unsynced
        // one.
        let unsynced = &mut inode.content.lock().unsynced_metadata;
        if unsynced.since().is_some_and(|since| self.session.verifiers.has_lost_metadata(since)) {
            unsynced.record_loss(self.session.verifiers.losses());
        }
        unsynced.synced(changes);
        Ok(())
    }

    /// Records a change that a sync of the file must cover.
    pub(crate) fn note_change(&self, op: &MetaOp) -> Option<UnsyncedChange> {
        let ino = match *op {
            MetaOp::WriteInline { ino, .. }
            | MetaOp::BeginWrite { ino }
            | MetaOp::DropInline { ino, .. }
            | MetaOp::EndWrite { ino, .. }
            | MetaOp::Truncate { ino, .. } => ino,
            _ => return None,
        };
        let inode = self.inodes.open(ino)?;
        inode.content.lock().unsynced_metadata.begin(self.session.verifiers.losses());
        Some(UnsyncedChange(inode))
    }

    /// Syncs a file at its current location, or where it was when it was changed: the answer shows
    /// what was lost there before it migrated. Former groups that don't exist any more are skipped.
    async fn sync_stripes(&self, inode: &OpenInode, layout: &Arc<Layout>) -> Result<()> {
        let under = LeaseContext::without_lease(inode.ino);
        if inode.content.lock().layout.as_ref() == Some(layout) {
            return self.on_every_stripe(under, layout, |_| StorageOp::Sync).await.map(drop);
        }
        let stripes = layout.groups.iter().enumerate().map(|(stripe, group)| async move {
            let Ok(location) = self.chunk_location(*group) else { return Ok(()) };
            self.send_storage(under, (location, layout.chunk_file(inode.ino, stripe)), StorageOp::Sync, None)
                .await
                .map(drop)
        });
        rt::join_all(stripes.collect()).await.into_iter().collect()
    }

    /// Whether one of a file's chunk locations has had a loss after the count was `since`.
    fn has_lost_any(&self, layout: &Layout, since: u64) -> bool {
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

    /// Syncs everything whose call had returned before.
    pub async fn syncfs(&self) -> Result<()> {
        self.flush_all().await?;
        let syncs = self.storage.targets().into_iter().map(|target| self.sync_target(target));
        let outcome: Result<()> = rt::join_all(syncs.collect()).await.into_iter().collect();
        let outcome = outcome.and(self.sync_changed_groups().await);
        let outcome = outcome.and(self.report_all(false).await);
        outcome.and(self.sync_all_metadata().await)?;
        if self.session.verifiers.take_loss() { Err(lost("file system")) } else { Ok(()) }
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
                .send_storage(
                    LeaseContext::without_lease(InodeId::ROOT),
                    destination,
                    StorageOp::SyncTarget,
                    None,
                )
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
        self.send_storage(
            LeaseContext::without_lease(InodeId::ROOT),
            destination,
            StorageOp::SyncTarget,
            None,
        )
        .await
        .map(drop)
    }

    fn current_map(&self) -> Arc<ClusterMap> {
        self.map.load()
    }

    /// Syncs everything that the owner of a partition has answered.
    pub(crate) async fn sync_metadata(&self, partition: PartitionId) -> Result<()> {
        self.session.send_for(partition, None, RequestUser::default(), MetaOp::Sync).await.map(drop)
    }

    /// Syncs creates, removals and renames.
    ///
    /// # Errors
    /// `EIO`, once, if the metadata store has lost power, and possibly some of these.
    pub async fn fsyncdir(&self, ino: InodeId) -> Result<()> {
        self.sync_metadata(ino.partition()).await?;
        if self.session.verifiers.take_metadata_loss() {
            Err(lost(&format!("directory {ino}")))
        } else {
            Ok(())
        }
    }

    /// Like `sync_metadata`, for all partitions.
    pub(crate) async fn sync_all_metadata(&self) -> Result<()> {
        let owners = self.session.owners().into_iter();
        let synced = rt::join_all(owners.map(|(partition, _)| self.sync_metadata(partition)).collect()).await;
        synced.into_iter().collect()
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
