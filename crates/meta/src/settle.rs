//! What dead clients left: files without a name that nobody uses any more, and files whose chunks may differ from what their
//! inodes say.

use crate::executor::Pass;
use crate::limits::BACKGROUND_BATCH;
use crate::service::MetaService;
use crate::sessions::{Session, SessionKind};
use crate::view::store_error;
use namespace::{Chunks, OrphanInode, Unsettled, keys};
use std::sync::Arc;
use types::{Credentials, InodeId, PartitionId, Result, SessionId, TargetId};
use wire::{MetaOp, MetaRequest, StorageOp};

/// What the end of sessions made necessary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Files without a name that were deleted.
    pub reclaimed: usize,
    /// Files whose size and times were read from their chunks.
    pub settled: usize,
    /// Files that could not be settled because a target did not answer. They keep their note, and the size on record.
    pub unsettled: usize,
}

impl MetaService {
    /// Ends all sessions of an earlier run but those of other processes, which may come back. To be called before the first request, when the storage services answer.
    pub async fn recover(&self) -> Result<Recovery> {
        let recovery = match self.grace.is_on() {
            // Those that may come back go on where they were, and files without a name may be open there.
            true => self.settle_left(&self.owned(), |session| !self.grace.is_expected(session)).await?,
            false => self.end_sessions(&self.owned(), |_| true).await?,
        };
        // Chunks that the earlier run was still deleting.
        self.doomed.set();
        Ok(recovery)
    }

    /// Settles the files that sessions were writing which are over.
    pub(crate) async fn settle_left(
        &self,
        partitions: &[PartitionId],
        is_over: impl Fn(SessionId) -> bool,
    ) -> Result<Recovery> {
        let mut recovery = Recovery::default();
        for &partition in partitions {
            self.settle_files(partition, &is_over, &mut recovery).await?;
        }
        Ok(recovery)
    }

    /// Makes a target agree with the metadata. A crash of the machine may have kept chunks while the metadata that explains
    /// them was lost, or have lost a cut: so of the `files` that the target says were changing then, the chunk files
    /// that belong to no file are deleted, and those that reach beyond the end of theirs are cut, all of it on disk
    /// when this returns. Else a file that is made or grows later would show old bytes.
    ///
    /// To be called after [`MetaService::recover`] and before the first request. Asked again while it still runs, it begins anew when that has
    /// ended: whoever is answered lets clients in, and what an older copy of the question still cuts then would be theirs.
    pub async fn tidy(&self, target: TargetId, files: &[InodeId]) -> Result<()> {
        let turn = self.claims.turn_to_tidy(target);
        let _turn = turn.write().await;
        if !files.is_empty() {
            // A power cut now must not bring back a file whose chunks are deleted here.
            self.executors.store.sync().await.map_err(|error| store_error(&error))?;
        }
        for &name in files.iter().filter(|ino| self.has_partition(ino.partition())) {
            // What a move fills is no file's yet, and the move notices that the target was started anew.
            let Some(_claim) = self.claims.claim_to_tidy(target, name) else { continue };
            let ino = name.of_chunk_file();
            let known = self.read(ino.partition(), |view| namespace::chunks(view, ino)).await?;
            let owned = match known {
                Chunks::Unsettled => continue,
                Chunks::None => None,
                Chunks::Settled { layout, size } => {
                    let stripe = self.chunks.stripe_on(&layout, target, Some(name.slot()))?;
                    stripe.map(|stripe| layout::local_len(&layout, stripe, size))
                }
            };
            // An absent chunk file is left alone by both.
            let change = owned.map_or(StorageOp::Delete, |len| StorageOp::Truncate { len });
            self.chunks.on(target, name, change).await?;
        }
        if !files.is_empty() {
            self.chunks.on(target, InodeId::ROOT, StorageOp::SyncTarget).await?;
        }
        Ok(())
    }

    /// Ends a session: gives up its locks, reclaims the files without a name that it held, and settles those that it
    /// wrote to.
    pub async fn end_session(&self, session: SessionId) -> Result<Recovery> {
        let known = self.sessions.find(session);
        known.iter().for_each(|session| _ = session.end());
        let recovery = self.wind_up(session).await?;
        if known.is_some_and(|session| session.is_remote()) {
            self.keep_session(session, None).await?;
        }
        self.sessions.remove(session);
        self.session_gone(session);
        Ok(recovery)
    }

    /// Gives up and settles what a session has. Its leases go last: until its files are settled, nobody else may know their size.
    pub(crate) async fn wind_up(&self, session: SessionId) -> Result<Recovery> {
        self.locks.release_session(session);
        let recovery = self.end_sessions(&self.owned(), |other| other == session).await;
        self.leases.end_session(session);
        let recovery = recovery?;
        self.forget_replies(session).await?;
        Ok(recovery)
    }

    async fn end_sessions(
        &self,
        partitions: &[PartitionId],
        ends: impl Fn(SessionId) -> bool,
    ) -> Result<Recovery> {
        let mut recovery = Recovery::default();
        for &partition in partitions {
            self.reclaim_orphans(partition, &ends, &mut recovery).await?;
            self.settle_files(partition, &ends, &mut recovery).await?;
        }
        if recovery != Recovery::default() {
            tracing::info!(?recovery, "settled what sessions left");
        }
        Ok(recovery)
    }

    /// Settles the files that a session was writing.
    pub(crate) async fn settle_session(&self, session: SessionId) -> Result<()> {
        let mut recovery = Recovery::default();
        for partition in self.owned() {
            self.settle_files(partition, &|other| other == session, &mut recovery).await?;
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
        ends: &impl Fn(SessionId) -> bool,
        recovery: &mut Recovery,
    ) -> Result<()> {
        let mut after = InodeId(0);
        loop {
            let page: Vec<OrphanInode> = self
                .read(partition, |view| namespace::orphans(view, partition, after, BACKGROUND_BATCH))
                .await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.ino;
            for orphan in page.into_iter().filter(|orphan| ends(orphan.session)) {
                self.run_as(orphan.session, MetaOp::Reclaim { ino: orphan.ino }).await?;
                recovery.reclaimed += 1;
            }
        }
    }

    pub(crate) async fn settle_files(
        &self,
        partition: PartitionId,
        ends: &impl Fn(SessionId) -> bool,
        recovery: &mut Recovery,
    ) -> Result<()> {
        let mut after = InodeId(0);
        loop {
            let page: Vec<Unsettled> = self
                .read(partition, |view| namespace::unsettled(view, partition, after, BACKGROUND_BATCH))
                .await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.record.ino;
            for file in page.into_iter().filter(|file| ends(file.record.session)) {
                let ino = file.record.ino;
                match self.settle(&file).await {
                    Ok(()) => recovery.settled += 1,
                    Err(error) => {
                        tracing::warn!(ino = ino.0, %error, "a file could not be settled: its size may be wrong");
                        recovery.unsettled += 1;
                    }
                }
            }
        }
    }

    /// Makes inode and chunks of a file agree, and takes the note away that they may not.
    async fn settle(&self, file: &Unsettled) -> Result<()> {
        let ino = file.record.ino;
        let mut report = EndOfWrite { size: file.attr.size, blocks: file.attr.blocks, mtime: None };
        match &file.layout {
            // An unfinished move to chunks: the inline content is still the file.
            Some(layout) if file.inline => self.chunks.delete(ino, layout).await?,
            Some(layout) => {
                if let Some(size) = file.record.truncate_to {
                    self.chunks.truncate(ino, layout, size).await?;
                }
                let chunks = self.chunks.measure(ino, layout).await?;
                report.size = report.size.max(layout::file_end(layout, &chunks.lens));
                report.blocks = chunks.blocks;
                report.mtime = Some(file.attr.mtime.max(chunks.mtime));
            }
            None => {}
        }
        let session = file.record.session;
        self.run_as(session, report.into_op(ino)).await?;
        self.run_as(session, MetaOp::TruncateDone { ino }).await
    }

    /// Carries out a command in the name of a session that is not there any more.
    pub(crate) async fn run_as(&self, session: SessionId, op: MetaOp) -> Result<()> {
        let request = MetaRequest { session, sequence: 0, credentials: Credentials::default(), op };
        let nobody = Arc::new(Session::new(session, SessionKind::Local));
        self.execute(Pass::Background, &request, &nobody).await.map(|_| ())
    }

    async fn forget_replies(&self, session: SessionId) -> Result<()> {
        let range = keys::operations_of(session);
        let stored = self.executors.store.scan(&range.from, &range.to, usize::MAX).await;
        let stored = stored.map_err(|error| crate::view::store_error(&error))?;
        let writes: namespace::Writes = stored.into_iter().map(|(key, _)| (key.to_vec(), None)).collect();
        self.commit_as_member(Vec::new(), writes).await.map(|_| ())
    }
}

struct EndOfWrite {
    size: u64,
    blocks: u64,
    mtime: Option<types::Timestamp>,
}

impl EndOfWrite {
    fn into_op(self, ino: InodeId) -> MetaOp {
        let EndOfWrite { size, blocks, mtime } = self;
        MetaOp::EndWrite { ino, size, blocks, mtime, done: true, kill_suid_sgid: false }
    }
}
