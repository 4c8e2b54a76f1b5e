//! Recovery after clients that died: deletion of orphans that no session uses any more, and size
//! recovery of files whose chunk files may differ from their inodes.

use crate::chunks::{Place, Under};
use crate::drain::{Claim, Tidying};
use crate::executor::Pass;
use crate::hollow::Reach;
use crate::limits::{BACKGROUND_BATCH, OBLIVION_POLL, RECORDS_PER_DELETION, RETRY_TIME};
use crate::rewind::Rewound;
use crate::service::MetaService;
use crate::sessions::{Session, SessionKind};
use crate::view::store_error;
use namespace::{Chunks, OrphanInode, Unsettled, keys};
use net::Deadline;
use std::sync::Arc;
use types::{Credentials, GroupId, InodeId, Layout, PartitionId, Result, SessionId, TargetId};
use wire::mgmt::Touched;
use wire::{MetaOp, MetaRequest, StorageOp, WriteRecord};

/// What the recovery of ended sessions did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Files without a name that were deleted.
    pub reclaimed: usize,
    /// Files whose size and times were read from their chunk files.
    pub settled: usize,
    /// Files whose size could not be recovered because a target did not answer. They keep their
    /// write record, and the recorded size.
    pub unsettled: usize,
}

impl MetaService {
    /// Ends all sessions of an earlier run, except those of other processes that may return. Call
    /// it before the first request, when the storage services answer.
    pub async fn recover(&self) -> Result<Recovery> {
        let recovery = match self.grace.is_on() {
            // Sessions that may return continue, and may have files without a name open.
            true => self.settle_left(&self.owned(), |session| !self.grace.is_expected(session)).await?,
            false => self.end_sessions(&self.owned(), |_| true).await?,
        };
        // Chunk files whose deletion the earlier run had begun.
        self.doomed.set();
        Ok(recovery)
    }

    /// Recovers the sizes of files that ended sessions were writing.
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
    pub async fn tidy(&self, target: TargetId, touched: &Touched) -> Result<()> {
        self.tidy_place(Place::Target(target), touched).await
    }

    /// The same for a mirrored group whose in-sync members have all crashed: reconciles the files
    /// that they report on all of them.
    pub async fn tidy_group(&self, group: GroupId, touched: &Touched) -> Result<()> {
        self.tidy_place(Place::Group(group), touched).await
    }

    async fn tidy_place(&self, place: Place, touched: &Touched) -> Result<()> {
        let turn = self.claims.turn_to_tidy(place);
        let _turn = turn.write().await;
        if touched.is_empty() {
            return Ok(());
        }
        // A power loss now must not bring back a file whose chunk files are deleted here.
        self.executors.store.sync().await.map_err(|error| store_error(&error))?;
        let rewound = self.rewound().await?;
        for &name in touched.files.iter().filter(|ino| self.has_partition(ino.partition())) {
            let Some(_claim) = self.claim_to_tidy(place, name).await else { continue };
            let ino = name.of_chunk_file();
            let known = self.read(ino.partition(), |view| namespace::chunks(view, ino)).await?;
            let owned = match known {
                // A chunk file that a migration left behind after its deletion: no writer of the
                // file uses it.
                Chunks::Unsettled { layout: Some(layout) }
                    if rewound == Rewound::default()
                        && self.chunks.stripe_in(&layout, name.slot(), place)?.is_none() =>
                {
                    None
                }
                Chunks::Unsettled { .. } => {
                    self.look_when_settled(place, name);
                    continue;
                }
                // The file was created after the backup that the store was restored from: a restore
                // of a later backup may still need it.
                Chunks::None if rewound.leaves_out(ino) => continue,
                Chunks::None => None,
                // The same holds for content that it had beyond its size in the backup.
                Chunks::Settled { changed, .. } if rewound.is_of_before(ino, changed) => continue,
                Chunks::Settled { layout, size, blocks, known, .. } => {
                    self.claimed(place, name, &layout, (size, blocks, &known))?
                }
            };
            if owned.is_none() {
                // Deletions and migrations since the start must be on disk, too.
                self.executors.store.sync().await.map_err(|error| store_error(&error))?;
            }
            // Both operations ignore an absent chunk file.
            let change =
                owned.map_or(StorageOp::Delete, |claimed| StorageOp::Truncate { len: claimed.local_len });
            // If this service is replaced meanwhile, the target refuses this operation once other
            // services use the file.
            let epoch = if owned.is_some() { self.leases.epoch(ino) } else { self.leases.next_epoch(ino) };
            let file = Under { ino: name, epoch };
            self.chunks.at(place, file, change).await?;
            if let Some(claimed) = owned.filter(|claimed| claimed.local_len > 0) {
                self.account_for_loss(place, file, claimed, Reach::Closed).await?;
            }
        }
        for range in &touched.new {
            self.look_for_new(place, *range, &rewound).await?;
        }
        self.chunks.at(place, Under::TARGET, StorageOp::SyncTarget).await.map(drop)
    }

    /// `None` if another task handles the chunk file. A migration fills a chunk file that belongs
    /// to no file yet, and notices that the target, or the group's primary, restarted. A deletion
    /// under way is repeated.
    async fn claim_to_tidy(&self, place: Place, name: InodeId) -> Option<Claim<'_>> {
        loop {
            match self.claims.claim_to_tidy(place, name) {
                Tidying::Free(claim) => return Some(claim),
                Tidying::SeenTo => return None,
                Tidying::Soon => rt::sleep(OBLIVION_POLL).await,
            }
        }
    }

    pub(crate) async fn rewound(&self) -> Result<Rewound> {
        let stored = self.executors.store.get(Rewound::KEY).await.map_err(|error| store_error(&error))?;
        stored.map_or(Ok(Rewound::default()), |value| namespace::record::decode(Rewound::KEY, value))
    }

    /// Ends a session: releases its locks, deletes its files without a name, and recovers the sizes
    /// of those that it was writing.
    pub async fn end_session(&self, session: SessionId) -> Result<Recovery> {
        let known = self.sessions.find(session);
        known.iter().for_each(|session| _ = session.end());
        let recovery = self.wind_up(session).await?;
        // A session from before this service started may be in the store, too.
        if known.is_none_or(|session| session.is_remote()) {
            self.keep_session(session, None).await?;
        }
        self.sessions.remove(session);
        self.session_gone(session);
        Ok(recovery)
    }

    /// Releases the session's state and recovers its files. Its leases end last: until the sizes
    /// are recovered, or the files are in quarantine, no other session may read their size.
    pub(crate) async fn wind_up(&self, session: SessionId) -> Result<Recovery> {
        self.locks.release_session(session);
        let mut recovery = Recovery::default();
        for partition in self.owned() {
            while let Err(error) = self.end_in(partition, &|other| other == session, &mut recovery).await {
                // The new owner of a partition recovers its files. A remote store may come back,
                // but not a local one that failed.
                if self.stopping.is_set() || !self.is_owned(partition) {
                    break;
                }
                if self.executors.store.engine().is_some() {
                    self.end_leases(session);
                    return Err(error);
                }
                tracing::warn!(session = session.0, %error, "what an ended session left is not settled yet");
                rt::sleep(RETRY_TIME).await;
            }
        }
        tell_of(recovery);
        self.end_leases(session);
        self.cuts.forget_session(session);
        self.forget_replies(session).await?;
        Ok(recovery)
    }

    fn end_leases(&self, session: SessionId) {
        self.sessions.find(session).iter().for_each(|session| session.wind_up());
        self.leases.end_session(session);
    }

    async fn end_sessions(
        &self,
        partitions: &[PartitionId],
        ends: impl Fn(SessionId) -> bool,
    ) -> Result<Recovery> {
        let mut recovery = Recovery::default();
        for &partition in partitions {
            self.end_in(partition, &ends, &mut recovery).await?;
        }
        tell_of(recovery);
        Ok(recovery)
    }

    async fn end_in(
        &self,
        partition: PartitionId,
        ends: &impl Fn(SessionId) -> bool,
        recovery: &mut Recovery,
    ) -> Result<()> {
        self.reclaim_orphans(partition, ends, recovery).await?;
        self.settle_files(partition, ends, recovery).await
    }

    /// Recovers the sizes of files that a session was writing which has registered again. In
    /// partitions that it has yet to reclaim, it still relies on leases of another service, and
    /// reports sizes with the reclaim.
    pub(crate) async fn settle_session(&self, session: SessionId) -> Result<()> {
        let mut recovery = Recovery::default();
        let follows = self.grace.awaits_following(session);
        for partition in self.owned().into_iter().filter(|partition| !follows.contains(partition)) {
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
                let WriteRecord { ino, session, .. } = file.record;
                match self.settle_note(ino, session).await {
                    Ok(()) => recovery.settled += 1,
                    Err(error) => {
                        tracing::warn!(ino = ino.0, %error, "a file could not be settled: nobody gets at it until it can");
                        recovery.unsettled += 1;
                    }
                }
            }
        }
    }

    /// Recovers a file that a session was writing. If that isn't possible now, puts the file into
    /// quarantine.
    pub(crate) async fn settle_note(&self, ino: InodeId, session: SessionId) -> Result<()> {
        let _turn = self.shut.turn(ino).write().await;
        let settled = match self.note_on(ino, session).await {
            Ok(Some((file, known_size))) => self.settle(&file, known_size).await,
            // Another task was first.
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match settled {
            Ok(()) => self.is_settled(ino, session),
            Err(_) => self.keep_shut(ino, session)?,
        }
        settled
    }

    /// A session's write record of a file, and the size that the session reported. If other
    /// sessions have records as well, it did not know the size.
    async fn note_on(&self, ino: InodeId, session: SessionId) -> Result<Option<(Unsettled, Option<u64>)>> {
        let before = InodeId(ino.0.wrapping_sub(1));
        let mut notes =
            self.read(ino.partition(), |view| namespace::unsettled(view, ino.partition(), before, 1)).await?;
        notes.retain(|file| file.record.ino == ino);
        let known_size = self.sizes.of(ino, session).filter(|_| notes.len() == 1);
        Ok(notes.into_iter().find(|file| file.record.session == session).map(|file| (file, known_size)))
    }

    /// Makes the inode and chunk files of a file agree, and removes the write record.
    async fn settle(&self, file: &Unsettled, known_size: Option<u64>) -> Result<()> {
        let ino = file.record.ino;
        // The new epoch makes targets refuse requests of the session that are still unanswered.
        let under = Under { ino, epoch: self.leases.new_epoch(ino) };
        let (size, blocks) = (file.attr.size, file.attr.blocks);
        let mut report = EndOfWrite { size, blocks, lens: Vec::new(), mtime: None };
        match &file.layout {
            // An unfinished move to chunks: the inline content is still valid.
            Some(layout) if file.inline => {
                self.chunks.change_durably(under, layout, |_| StorageOp::Delete).await?;
            }
            Some(layout) => {
                if let Some(size) = file.record.truncate_to {
                    self.cut_chunks(under, layout, size).await?;
                }
                let mut chunks = self.chunks.measure(under, layout).await?;
                // Content beyond it is from in-flight writes, which the session repeats (`sizes`).
                let known_size = known_size.map(|size| size.max(file.attr.size));
                if let Some(size) = known_size.filter(|size| layout::file_end(layout, &chunks.lens) > *size) {
                    self.cut_chunks(under, layout, size).await?;
                    chunks = self.chunks.measure(under, layout).await?;
                }
                report.size = report.size.max(layout::file_end(layout, &chunks.lens));
                // After a restore all chunk files may be gone, and the loss of content that was on
                // disk before a crash is damage. Such a file must not look as if it had a hole
                // there: the file check relies on the block count.
                let is_gone = chunks.is_lost || (chunks.blocks == 0 && self.rewound().await?.restored_s > 0);
                report.blocks = if is_gone { file.attr.blocks } else { chunks.blocks };
                report.mtime = Some(file.attr.mtime.max(chunks.mtime));
                report.lens = chunks.lens;
            }
            None => {}
        }
        let session = file.record.session;
        // The lease of the quarantine must not conflict.
        let holder = self.shut.keeper_of(ino);
        let holder = holder.unwrap_or_else(|| Arc::new(Session::new(session, SessionKind::Local)));
        self.run_by(&holder, session, report.into_op(ino)).await?;
        self.run_by(&holder, session, MetaOp::TruncateDone { ino }).await
    }

    async fn cut_chunks(&self, under: Under, layout: &Layout, size: u64) -> Result<()> {
        let cut = |stripe| StorageOp::Truncate { len: layout::local_len(layout, stripe, size) };
        self.chunks.change_durably(under, layout, cut).await
    }

    /// Executes a command in the name of a session that doesn't exist any more.
    pub(crate) async fn run_as(&self, session: SessionId, op: MetaOp) -> Result<()> {
        let nobody = Arc::new(Session::new(session, SessionKind::Local));
        self.run_by(&nobody, session, op).await
    }

    /// The same, with the leases of another session.
    async fn run_by(&self, holder: &Arc<Session>, session: SessionId, op: MetaOp) -> Result<()> {
        let request =
            MetaRequest { session, number: None, credentials: Credentials::default(), privileged: false, op };
        self.execute(Pass::Background, &request, holder, Deadline::NEVER).await.map(|_| ())
    }

    async fn forget_replies(&self, session: SessionId) -> Result<()> {
        let range = keys::operations_of(session);
        let stored = self.executors.store.scan(&range.from, &range.to, usize::MAX).await;
        let stored = stored.map_err(|error| crate::view::store_error(&error))?;
        for some in stored.chunks(RECORDS_PER_DELETION) {
            let writes = some.iter().map(|(key, _)| (key.to_vec(), None)).collect();
            self.commit_as_member(Vec::new(), writes).await?;
        }
        Ok(())
    }
}

fn tell_of(recovery: Recovery) {
    if recovery != Recovery::default() {
        tracing::info!(?recovery, "settled what sessions left");
    }
}

struct EndOfWrite {
    size: u64,
    blocks: u64,
    lens: Vec<u64>,
    mtime: Option<types::Timestamp>,
}

impl EndOfWrite {
    fn into_op(self, ino: InodeId) -> MetaOp {
        let EndOfWrite { size, blocks, lens, mtime } = self;
        MetaOp::EndWrite { ino, size, blocks, lens, mtime, done: true, kill_suid_sgid: false }
    }
}
