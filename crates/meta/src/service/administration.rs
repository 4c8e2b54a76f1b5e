//! Requests of management on behalf of an administrator.

use crate::data::chunks::ChunkLocation;
use crate::drain::DrainStatus;
use crate::service::MetaService;
use crate::session::status;
use crate::session::status::SessionStatus;
use types::{GroupId, InodeId, PartitionId, PoolId, Result, SessionId, TargetId};
use wire::mgmt::{DrainProgress, ReconcileFiles};

impl MetaService {
    /// Returns a file whose layout includes the target, if there is one. Reads every inode: minutes
    /// for a hundred million of them.
    pub async fn file_on(&self, target: TargetId) -> Result<Option<InodeId>> {
        for partition in self.executors.all() {
            if let Some(ino) = self.references.file_on_in(target, partition).await? {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }

    /// The same for one partition.
    ///
    /// # Errors
    /// `PartitionNotServed` if another service owns the partition.
    pub async fn file_on_in(&self, target: TargetId, partition: PartitionId) -> Result<Option<InodeId>> {
        self.references.file_on_in(target, partition).await
    }

    /// Returns an inode whose pattern names the pool, for itself or for its new files, if there is
    /// one. Reads every inode, as [`MetaService::file_on`].
    pub async fn inode_naming_pool(&self, pool: PoolId) -> Result<Option<InodeId>> {
        for partition in self.executors.all() {
            if let Some(ino) = self.references.inode_naming_pool_in(pool, partition).await? {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }

    /// The same for one partition.
    ///
    /// # Errors
    /// `PartitionNotServed` if another service owns the partition.
    pub async fn inode_naming_pool_in(
        &self,
        pool: PoolId,
        partition: PartitionId,
    ) -> Result<Option<InodeId>> {
        self.references.inode_naming_pool_in(pool, partition).await
    }

    /// Progress of draining targets, by id.
    pub fn drains(&self) -> Vec<DrainStatus> {
        self.drains.list()
    }

    /// Progress of draining targets, as management shows it, for files of the partitions that this
    /// service executes.
    pub fn drain_progress(&self) -> Vec<(TargetId, DrainProgress)> {
        self.drains.progress()
    }

    /// All sessions, as management shows them.
    pub fn session_infos(&self) -> Vec<wire::mgmt::SessionInfo> {
        self.session_list().into_iter().map(status::session_info).collect()
    }

    /// All sessions, by id.
    pub fn session_list(&self) -> Vec<SessionStatus> {
        status::list(&self.sessions, &self.leases)
    }

    /// Runs crash reconciliation of a target. A crash of the machine may have preserved chunk files
    /// whose metadata was lost, or may have undone a truncation. So this checks the files that were
    /// changing then, as the target reports. It deletes chunk files without a file, and cuts those
    /// that are longer than their file says. All that is on disk when it returns. Otherwise a file
    /// that is created or grows later would show old bytes.
    ///
    /// Call it after [`MetaService::recover`] and before the first request. If it is called while
    /// it still runs, it starts again after that: the caller lets clients in after the answer, so
    /// an older run must not cut their data.
    ///
    /// It skips chunk files of mirrored groups: their primaries resync them.
    pub async fn reconcile_target(&self, target: TargetId, touched: &ReconcileFiles) -> Result<()> {
        self.reconciliation.reconcile(ChunkLocation::Target(target), touched).await
    }

    /// The same for a mirrored group whose in-sync members have all crashed: reconciles the files
    /// that they report on all of them.
    pub async fn reconcile_group(&self, group: GroupId, touched: &ReconcileFiles) -> Result<()> {
        self.reconciliation.reconcile(ChunkLocation::Group(group), touched).await
    }

    /// Requests the eviction of a session. A background task does it: the caller may be on a core
    /// that ends after the request.
    pub fn evict_session(&self, id: SessionId) -> Result<()> {
        self.eviction.request(id)
    }
}
