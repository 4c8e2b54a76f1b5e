//! Recovery after clients that died: deletion of orphans that no session uses any more, and size
//! recovery of files whose chunk files may differ from their inodes.

use crate::data::chunks::{ChunkLocation, EpochedChunkFile, EpochedFile};
use crate::data::lost_data::ClientAccess;
use crate::drain::{Claim, ReconcileClaim};
use crate::limits::{BACKGROUND_BATCH, DELETION_COMMIT_POLL, RECORDS_PER_DELETION, RETRY_PAUSE};
use crate::partition::executor::CommandOrigin;
use crate::service::MetaService;
use crate::session::table::{Session, SessionKind};
use crate::store::restore_records::RestoreRecord;
use crate::store::transaction_view::store_error;
use namespace::{Chunks, OrphanInode, UnrecoveredFile, keys};
use net::Deadline;
use std::sync::Arc;
use types::{ChunkFileId, Credentials, GroupId, InodeId, Layout, PartitionId, Result, SessionId, TargetId};
use wire::mgmt::ReconcileFiles;
use wire::{MetaOp, MetaRequest, StorageOp, WriteRecord};

/// What the recovery of ended sessions did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Files without a name that were deleted.
    pub reclaimed: usize,
    /// Files whose size and times were read from their chunk files.
    pub sizes_recovered: usize,
    /// Files whose size could not be recovered because a target did not answer. They keep their
    /// write record, and the recorded size.
    pub sizes_pending: usize,
}

impl MetaService {
    /// Ends all sessions of an earlier run, except those of other processes that may return. Call
    /// it before the first request, when the storage services answer.
    pub async fn recover(&self) -> Result<Recovery> {
        let recovery = match self.grace.is_on() {
            // Sessions that may return continue, and may have files without a name open.
            true => {
                self.recover_sizes_of_ended(&self.owned(), |session| !self.grace.is_expected(session)).await?
            }
            false => self.end_sessions(&self.owned(), |_| true).await?,
        };
        // Chunk files whose deletion the earlier run had begun.
        self.reap_needed.set();
        Ok(recovery)
    }

    /// Recovers the sizes of files that ended sessions were writing.
    pub(crate) async fn recover_sizes_of_ended(
        &self,
        partitions: &[PartitionId],
        is_ended: impl Fn(SessionId) -> bool,
    ) -> Result<Recovery> {
        let mut recovery = Recovery::default();
        for &partition in partitions {
            self.recover_sizes(partition, &is_ended, &mut recovery).await?;
        }
        Ok(recovery)
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
        self.reconcile_location(ChunkLocation::Target(target), touched).await
    }

    /// The same for a mirrored group whose in-sync members have all crashed: reconciles the files
    /// that they report on all of them.
    pub async fn reconcile_group(&self, group: GroupId, touched: &ReconcileFiles) -> Result<()> {
        self.reconcile_location(ChunkLocation::Group(group), touched).await
    }

    async fn reconcile_location(&self, location: ChunkLocation, touched: &ReconcileFiles) -> Result<()> {
        let lock = self.claims.reconcile_lock(location);
        let _guard = lock.write().await;
        if touched.is_empty() {
            return Ok(());
        }
        // A power loss now must not bring back a file whose chunk files are deleted here.
        self.executors.store.sync().await.map_err(|error| store_error(&error))?;
        let restore_record = self.restore_record().await?;
        for &name in touched.files.iter().filter(|ino| self.has_partition(ino.partition())) {
            let Some(_claim) = self.claim_to_reconcile(location, name).await else { continue };
            let ino = name.owner();
            let chunks = self.read(ino.partition(), |view| namespace::chunks(view, ino)).await?;
            let recorded = match chunks {
                // A chunk file that a migration left behind after its deletion: no writer of the
                // file uses it.
                Chunks::Changing { layout: Some(layout) }
                    if restore_record == RestoreRecord::default()
                        && self.chunks.stripe_in(&layout, name.slot(), location)?.is_none() =>
                {
                    None
                }
                Chunks::Changing { .. } => {
                    self.check_when_written(location, name);
                    continue;
                }
                // The file was created after the backup that the store was restored from: a restore
                // of a later backup may still need it.
                Chunks::None if restore_record.is_skipped(ino) => continue,
                Chunks::None => None,
                // The same holds for content that it had beyond its size in the backup.
                Chunks::Stable { changed, .. } if restore_record.existed_at_backup(ino, changed) => continue,
                Chunks::Stable { layout, size, blocks, length_bounds: known, .. } => {
                    self.recorded_chunk(location, name, &layout, (size, blocks, &known))?
                }
            };
            if recorded.is_none() {
                // Deletions and migrations since the start must be on disk, too.
                self.executors.store.sync().await.map_err(|error| store_error(&error))?;
            }
            // Both operations ignore an absent chunk file.
            let change = recorded
                .map_or(StorageOp::Delete, |recorded| StorageOp::Truncate { len: recorded.local_len });
            // If this service is replaced meanwhile, the target refuses this operation once other
            // services use the file.
            let epoch = if recorded.is_some() { self.leases.epoch(ino) } else { self.leases.next_epoch(ino) };
            let file = EpochedChunkFile { name, epoch };
            self.chunks.at(location, file, change).await?;
            if let Some(recorded) = recorded.filter(|claimed| claimed.local_len > 0) {
                self.record_loss(location, file, recorded, ClientAccess::Closed).await?;
            }
        }
        for range in &touched.new {
            self.check_new_chunk_files(location, *range, &restore_record).await?;
        }
        self.chunks.at(location, EpochedChunkFile::TARGET, StorageOp::SyncTarget).await.map(drop)
    }

    /// `None` if another task handles the chunk file. A migration fills a chunk file that belongs
    /// to no file yet, and notices that the target, or the group's primary, restarted. A deletion
    /// under way is repeated.
    async fn claim_to_reconcile(&self, location: ChunkLocation, name: ChunkFileId) -> Option<Claim<'_>> {
        loop {
            match self.claims.claim_to_reconcile(location, name) {
                ReconcileClaim::Free(claim) => return Some(claim),
                ReconcileClaim::HandledByHolder => return None,
                ReconcileClaim::RetrySoon => rt::sleep(DELETION_COMMIT_POLL).await,
            }
        }
    }

    pub(crate) async fn restore_record(&self) -> Result<RestoreRecord> {
        let stored =
            self.executors.store.get(RestoreRecord::KEY).await.map_err(|error| store_error(&error))?;
        stored.map_or(Ok(RestoreRecord::default()), |value| {
            namespace::record::decode(RestoreRecord::KEY, value)
        })
    }

    /// Ends a session: releases its locks, deletes its files without a name, and recovers the sizes
    /// of those that it was writing.
    pub async fn end_session(&self, session: SessionId) -> Result<Recovery> {
        let known = self.sessions.find(session);
        known.iter().for_each(|session| _ = session.end());
        let recovery = self.clean_up_session(session).await?;
        // A session from before this service started may be in the store, too.
        if known.is_none_or(|session| session.is_remote()) {
            self.store_session(session, None).await?;
        }
        self.sessions.remove(session);
        self.session_ended(session);
        Ok(recovery)
    }

    /// Releases the session's state and recovers its files. Its leases end last: until the sizes
    /// are recovered, or the files are in quarantine, no other session may read their size.
    pub(crate) async fn clean_up_session(&self, session: SessionId) -> Result<Recovery> {
        self.locks.release_session(session);
        let mut recovery = Recovery::default();
        for partition in self.owned() {
            while let Err(error) =
                self.end_sessions_in(partition, &|other| other == session, &mut recovery).await
            {
                // The new owner of a partition recovers its files. A remote store may come back,
                // but not a local one that failed.
                if self.stopping.is_set() || !self.is_owned(partition) {
                    break;
                }
                if self.executors.store.engine().is_some() {
                    self.end_leases(session);
                    return Err(error);
                }
                tracing::warn!(session = session.0, %error, "size recovery of an ended session's files has not completed yet");
                rt::sleep(RETRY_PAUSE).await;
            }
        }
        log_recovery(recovery);
        self.end_leases(session);
        self.truncations.forget_session(session);
        self.delete_replies(session).await?;
        Ok(recovery)
    }

    fn end_leases(&self, session: SessionId) {
        self.sessions.find(session).iter().for_each(|session| session.complete_end());
        self.leases.end_session(session);
    }

    async fn end_sessions(
        &self,
        partitions: &[PartitionId],
        is_ended: impl Fn(SessionId) -> bool,
    ) -> Result<Recovery> {
        let mut recovery = Recovery::default();
        for &partition in partitions {
            self.end_sessions_in(partition, &is_ended, &mut recovery).await?;
        }
        log_recovery(recovery);
        Ok(recovery)
    }

    async fn end_sessions_in(
        &self,
        partition: PartitionId,
        is_ended: &impl Fn(SessionId) -> bool,
        recovery: &mut Recovery,
    ) -> Result<()> {
        self.reclaim_orphans(partition, is_ended, recovery).await?;
        self.recover_sizes(partition, is_ended, recovery).await
    }

    /// Recovers the sizes of files that a session was writing which has registered again. In
    /// partitions that it has yet to reclaim, it still relies on leases of another service, and
    /// reports sizes with the reclaim.
    pub(crate) async fn recover_session_sizes(&self, session: SessionId) -> Result<()> {
        let mut recovery = Recovery::default();
        let to_reclaim = self.grace.partitions_to_reclaim(session);
        for partition in self.owned().into_iter().filter(|partition| !to_reclaim.contains(partition)) {
            self.recover_sizes(partition, &|other| other == session, &mut recovery).await?;
        }
        Ok(())
    }

    pub(crate) async fn reclaim_all_orphans(
        &self,
        partitions: &[PartitionId],
        of: impl Fn(SessionId) -> bool,
    ) -> Result<()> {
        let mut recovery = Recovery::default();
        for &partition in partitions {
            self.reclaim_orphans(partition, &of, &mut recovery).await?;
        }
        Ok(())
    }

    async fn reclaim_orphans(
        &self,
        partition: PartitionId,
        is_ended: &impl Fn(SessionId) -> bool,
        recovery: &mut Recovery,
    ) -> Result<()> {
        let mut after = InodeId(0);
        loop {
            let page: Vec<OrphanInode> = self
                .read(partition, |view| namespace::orphans(view, partition, after, BACKGROUND_BATCH))
                .await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.ino;
            for orphan in page.into_iter().filter(|orphan| is_ended(orphan.session)) {
                self.run_for_session(orphan.session, MetaOp::Reclaim { ino: orphan.ino }).await?;
                recovery.reclaimed += 1;
            }
        }
    }

    pub(crate) async fn recover_sizes(
        &self,
        partition: PartitionId,
        is_ended: &impl Fn(SessionId) -> bool,
        recovery: &mut Recovery,
    ) -> Result<()> {
        let mut after = InodeId(0);
        loop {
            let page: Vec<UnrecoveredFile> = self
                .read(partition, |view| {
                    namespace::unrecovered_files(view, partition, after, BACKGROUND_BATCH)
                })
                .await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.record.ino;
            for file in page.into_iter().filter(|file| is_ended(file.record.session)) {
                let WriteRecord { ino, session, .. } = file.record;
                match self.recover_file_size(ino, session).await {
                    Ok(()) => recovery.sizes_recovered += 1,
                    Err(error) => {
                        tracing::warn!(ino = ino.0, %error, "the size of a file could not be recovered: the file is in quarantine until it can");
                        recovery.sizes_pending += 1;
                    }
                }
            }
        }
    }

    /// Recovers a file that a session was writing. If that isn't possible now, puts the file into
    /// quarantine.
    pub(crate) async fn recover_file_size(&self, ino: InodeId, session: SessionId) -> Result<()> {
        let _guard = self.quarantine.recovery_lock(ino).write().await;
        let outcome = match self.write_record_of(ino, session).await {
            Ok(Some((file, known_size))) => self.recover_size(&file, known_size).await,
            // Another task was first.
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => self.end_quarantine(ino, session),
            Err(_) => self.quarantine_file(ino, session)?,
        }
        outcome
    }

    /// A session's write record of a file, and the size that the session reported. If other
    /// sessions have records as well, it did not know the size.
    async fn write_record_of(
        &self,
        ino: InodeId,
        session: SessionId,
    ) -> Result<Option<(UnrecoveredFile, Option<u64>)>> {
        let before = InodeId(ino.0.wrapping_sub(1));
        let mut records = self
            .read(ino.partition(), |view| namespace::unrecovered_files(view, ino.partition(), before, 1))
            .await?;
        records.retain(|file| file.record.ino == ino);
        let known_size = self.reported_sizes.of(ino, session).filter(|_| records.len() == 1);
        Ok(records.into_iter().find(|file| file.record.session == session).map(|file| (file, known_size)))
    }

    /// Makes the inode and chunk files of a file agree, and removes the write record.
    async fn recover_size(&self, file: &UnrecoveredFile, known_size: Option<u64>) -> Result<()> {
        let ino = file.record.ino;
        // The new epoch makes targets refuse requests of the session that are still unanswered.
        let epoched_file = EpochedFile { ino, epoch: self.leases.new_epoch(ino) };
        let (size, blocks) = (file.attr.size, file.attr.blocks);
        let mut report = WriteReport { size, blocks, lens: Vec::new(), mtime: None };
        match &file.layout {
            // An unfinished move to chunks: the inline content is still valid.
            Some(layout) if file.inline => {
                self.chunks.change_durably(epoched_file, layout, |_| StorageOp::Delete).await?;
            }
            Some(layout) => {
                if let Some(size) = file.record.truncate_to {
                    self.cut_chunks(epoched_file, layout, size).await?;
                }
                let mut chunks = self.chunks.measure(epoched_file, layout).await?;
                // Content beyond it is from in-flight writes, which the session repeats (`sizes`).
                let known_size = known_size.map(|size| size.max(file.attr.size));
                if let Some(size) = known_size.filter(|size| layout::file_end(layout, &chunks.lens) > *size) {
                    self.cut_chunks(epoched_file, layout, size).await?;
                    chunks = self.chunks.measure(epoched_file, layout).await?;
                }
                report.size = report.size.max(layout::file_end(layout, &chunks.lens));
                // After a restore all chunk files may be gone, and the loss of content that was on
                // disk before a crash is damage. Such a file must not look as if it had a hole
                // there: the file check relies on the block count.
                let is_gone =
                    chunks.is_lost || (chunks.blocks == 0 && self.restore_record().await?.restored_s > 0);
                report.blocks = if is_gone { file.attr.blocks } else { chunks.blocks };
                report.mtime = Some(file.attr.mtime.max(chunks.mtime));
                report.lens = chunks.lens;
            }
            None => {}
        }
        let session = file.record.session;
        // The lease of the quarantine must not conflict.
        let holder = self.quarantine.holder_of(ino);
        let holder = holder.unwrap_or_else(|| Arc::new(Session::new(session, SessionKind::Local)));
        self.run_with_leases_of(&holder, session, report.into_op(ino)).await?;
        self.run_with_leases_of(&holder, session, MetaOp::TruncateDone { ino }).await
    }

    async fn cut_chunks(&self, epoched_file: EpochedFile, layout: &Layout, size: u64) -> Result<()> {
        let cut = |stripe| StorageOp::Truncate { len: layout::local_len(layout, stripe, size) };
        self.chunks.change_durably(epoched_file, layout, cut).await
    }

    /// Executes a command in the name of a session that doesn't exist any more.
    pub(crate) async fn run_for_session(&self, session: SessionId, op: MetaOp) -> Result<()> {
        let ended_session = Arc::new(Session::new(session, SessionKind::Local));
        self.run_with_leases_of(&ended_session, session, op).await
    }

    /// The same, with the leases of another session.
    async fn run_with_leases_of(&self, holder: &Arc<Session>, session: SessionId, op: MetaOp) -> Result<()> {
        let request = MetaRequest {
            session,
            slot_sequence: None,
            credentials: Credentials::default(),
            privileged: false,
            op,
        };
        self.execute(CommandOrigin::Background, &request, holder, Deadline::NEVER).await.map(|_| ())
    }

    async fn delete_replies(&self, session: SessionId) -> Result<()> {
        let range = keys::operations_of(session);
        let stored = self.executors.store.scan(&range.from, &range.to, usize::MAX).await;
        let stored = stored.map_err(|error| crate::store::transaction_view::store_error(&error))?;
        for some in stored.chunks(RECORDS_PER_DELETION) {
            let writes = some.iter().map(|(key, _)| (key.to_vec(), None)).collect();
            self.commit_as_owner(Vec::new(), writes).await?;
        }
        Ok(())
    }
}

fn log_recovery(recovery: Recovery) {
    if recovery != Recovery::default() {
        tracing::info!(?recovery, "recovered files of ended sessions");
    }
}

struct WriteReport {
    size: u64,
    blocks: u64,
    lens: Vec<u64>,
    mtime: Option<types::Timestamp>,
}

impl WriteReport {
    fn into_op(self, ino: InodeId) -> MetaOp {
        let WriteReport { size, blocks, lens, mtime } = self;
        MetaOp::EndWrite { ino, size, blocks, lens, mtime, done: true, kill_suid_sgid: false }
    }
}
