//! Recalls and their acknowledgements, and the eviction of sessions that don't acknowledge.

use crate::data::chunks::{ChunkLocation, EpochedChunkFile};
use crate::limits::{
    CUT_OFF_AFTER, END_NOTICE_TIMEOUT, FENCE_RETRY, FENCE_TIMEOUT, IDLE_CHECK, IDLE_TIMEOUT, PAUSE_THRESHOLD,
    RECALL_POLL, RECALL_TIMEOUT, RECALL_WORK_TIMEOUT, RETRY_PAUSE, STOPPING_PAUSE, SWEEP_INTERVAL,
    UNREACHABLE_TIMEOUT, WORKING_REPORT_VALID,
};
use crate::service::MetaService;
use crate::session::grace_period::stored_sessions;
use crate::session::table::{Session, SessionKind, stored_replies};
use crate::store::record::StoredSession;
use crate::store::transaction_view::{not_owner, store_error};
use bytes::Bytes;
use kv::{Batch, Guard, Outcome};
use namespace::leases::{PendingRecall, Requester};
use namespace::{Writes, keys};
use parking_lot::Mutex;
use prost::Message;
use rt::sync::Event;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Error, InodeId, Result, SessionId, TargetId, TargetState};
use wire::{AsyncCreate, MetaOp, MetaReply, MetaRequest, PartitionsRequest, RecallAck, StorageOp};

/// Where a request comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestOrigin {
    InProcess,
    OtherProcess,
}

impl MetaService {
    /// Registers a session. A session of another process is durable when this returns.
    pub async fn register_session(&self, id: SessionId, kind: SessionKind) -> Result<()> {
        self.add_session(id, kind).await?;
        self.session_returned(id);
        Ok(())
    }

    async fn add_session(&self, id: SessionId, kind: SessionKind) -> Result<()> {
        if kind == SessionKind::Local {
            self.drains.note_local_session();
            return self.sessions.register_local(id).map(|_| ());
        }
        self.sessions.check_id(id)?;
        if !self.sessions.is_remote(id) {
            self.store_session(id, Some(StoredSession::ACTIVE)).await?;
            self.executors.store.sync().await.map_err(|error| store_error(&error))?;
        }
        let answers = stored_replies(&*self.executors.store, id).await?;
        self.sessions.register_remote(id, answers).map(|_| ())
    }

    /// Stores or removes the record of a session of another process. The record of an evicted
    /// session stays, whichever service has evicted it.
    pub(crate) async fn store_session(&self, id: SessionId, record: Option<StoredSession>) -> Result<()> {
        let key = keys::session(id).to_vec();
        loop {
            let before = self.executors.store.get(&key).await.map_err(|error| store_error(&error))?;
            let stored = before.clone().map(StoredSession::decode).transpose();
            let stored = stored.map_err(|cause| {
                Error::new(Errno::EIO, format!("the record of session {id} is damaged: {cause}"))
            })?;
            if stored.is_some_and(|stored| stored.is_ended()) {
                if record.is_some_and(|record| record.is_ended()) {
                    return Ok(());
                }
                self.handle_end_elsewhere(id);
                return if record.is_none() { Ok(()) } else { self.sessions.check_id(id) };
            }
            let value: Option<Bytes> = record.map(|record| record.encode_to_vec().into());
            if value == before {
                return Ok(());
            }
            let guards = vec![Guard { key: key.clone(), expected: before }];
            if self.commit_as_owner(guards, vec![(key.clone(), value)]).await? == Outcome::Applied {
                return Ok(());
            }
        }
    }

    /// Commits writes that belong to no partition. The commit is guarded by a partition that this
    /// service owns, if there is one, so that a service that was replaced changes nothing.
    pub(crate) async fn commit_as_owner(&self, guards: Vec<Guard>, writes: Writes) -> Result<Outcome> {
        let ownership = self.all_partitions().find_map(|partition| {
            let executor = self.executors.lock(partition).ok()?;
            executor.is_owned().then(|| (partition, executor.owner.clone()))
        });
        let (partition, ownership) = ownership.unzip();
        let guards = guards.into_iter().chain(ownership.clone()).collect();
        let outcome = self.executors.store.commit(Batch { guards, writes }).await;
        let outcome = outcome.map_err(|error| store_error(&error))?;
        if let (Outcome::GuardFailed, Some(partition), Some(ownership)) = (outcome, partition, ownership) {
            let now = self.executors.store.get(&ownership.key).await.map_err(|error| store_error(&error))?;
            let mut executor = self.executors.lock(partition)?;
            if now != ownership.expected && executor.owner == ownership {
                executor.mark_not_owned();
                if self.peers.is_none() {
                    return Err(not_owner(partition));
                }
            }
        }
        Ok(outcome)
    }

    /// The session of a request. Creates a session of this process that isn't registered.
    ///
    /// # Errors
    /// `ESTALE` for an evicted session, `ENOTCONN` for one that its client has to register.
    pub(crate) fn session_of(&self, id: SessionId, origin: RequestOrigin) -> Result<Arc<Session>> {
        self.sessions.check_id(id)?;
        // A service that shares sessions with others creates none by itself.
        let must_be_registered =
            (self.peers.is_some() || origin == RequestOrigin::OtherProcess) && id != SessionId(0);
        if self.grace.awaits_registration(id) || (must_be_registered && self.sessions.is_unknown(id)) {
            self.grace.note_reclaim_requested(id);
            return Err(not_registered_error(id));
        }
        self.sessions.get(id)
    }

    /// Handles a registration by a client. The session's earlier state is discarded, except for its
    /// open files. A retransmission discards nothing: the session may have got leases since.
    pub(crate) async fn register(
        &self,
        id: SessionId,
        (in_use, creates): (&[InodeId], &[AsyncCreate]),
        holder: Option<u64>,
    ) -> Result<()> {
        let began = self.sessions.next_sequence();
        let _return_guard = self.grace.begin_return(id);
        let _registration_lock = match self.grace.awaits_registration(id) {
            // A retransmission waits for the original: its size recovery could hit files that the
            // session began to write after the original.
            true => Some(self.sessions.registration_lock(id).write().await),
            false => None,
        };
        let is_returning = self.grace.awaits_registration(id);
        let is_retransmission = !is_returning && self.sessions.is_remote(id);
        if is_returning {
            // Sizes of files that it wrote and didn't report are recovered before other sessions
            // may read them, since no lease stops those any more.
            self.recover_session_sizes(id).await?;
        }
        if !is_retransmission {
            self.add_session(id, SessionKind::Remote).await?;
        }
        let session = self.sessions.get(id)?;
        session.note_contact();
        session.holder.store(holder.unwrap_or(0), Ordering::Relaxed);
        let last = session.registered.swap(self.sessions.next_sequence(), Ordering::AcqRel);
        if !is_retransmission && last < began {
            self.leases.end_session(id);
        }
        let requester = session.lease_requester();
        self.mark_opens(requester, self.grace.take_opens(id).iter().chain(in_use));
        if is_returning {
            // A new session has no asynchronous creates. After a retransmission, others already
            // have access.
            self.replay_creates(&session, creates.iter()).await;
        }
        self.session_returned(id);
        Ok(())
    }

    /// Handles a part of a session's list of open files, before the session registers or reclaims
    /// partitions. If no reclaim is expected, since it was done and this is a retransmission, the
    /// files are marked at once.
    ///
    /// # Errors
    /// `ESTALE` for a session that has ended.
    pub(crate) fn reclaim_opens(&self, id: SessionId, inodes: &[InodeId]) -> Result<()> {
        self.sessions.check_id(id)?;
        let known = self.sessions.find(id).filter(|session| session.is_remote());
        match (self.grace.note_opens(id, inodes), known) {
            (Some(left_out), _) => warn_of_unmarked_opens(id, left_out),
            (None, Some(session)) => self.mark_opens(session.lease_requester(), inodes.iter()),
            // A new session has nothing open here.
            (None, None) => {}
        }
        Ok(())
    }

    /// Marks the files that a returning session has open.
    pub(crate) fn mark_opens<'a>(&self, requester: Requester, inodes: impl Iterator<Item = &'a InodeId>) {
        let is_left_out = |ino: &&InodeId| !self.leases.mark_in_use(&self.sessions, requester, **ino);
        warn_of_unmarked_opens(requester.session, inodes.filter(is_left_out).count());
    }

    /// Waits until there are recalls with numbers above `after`, or partitions to reclaim, at most
    /// for [`RECALL_POLL`].
    pub(crate) async fn next_recalls(&self, session: &Session, after: u64) -> Result<MetaReply> {
        if !session.is_remote() {
            return Err(not_registered_error(session.id));
        }
        let next_reply = || {
            let mut partitions = self.grace.partitions_to_reclaim(session.id);
            // The session reclaims a partition that was taken from this service at its new owner.
            partitions.retain(|partition| self.is_owned(*partition));
            match partitions.is_empty() {
                true => MetaReply::Recalls(session.recalls_after(after)),
                false => {
                    self.grace.note_reclaim_requested(session.id);
                    MetaReply::PartitionsTakenOver { partitions }
                }
            }
        };
        match next_reply() {
            MetaReply::Recalls(recalls) if recalls.is_empty() => {}
            reply => return Ok(reply),
        }
        rt::timeout(RECALL_POLL, session.wait_for_recalls()).await;
        session.check()?;
        Ok(next_reply())
    }

    /// Handles recall acknowledgements.
    pub(crate) async fn handle_acknowledgements(
        &self,
        session: &Session,
        acknowledgements: &[RecallAck],
    ) -> MetaReply {
        for answer in acknowledgements {
            let due = PendingRecall {
                key: self.leases.key_of(answer.ino),
                session: session.id,
                number: answer.number,
            };
            self.truncate_before_acknowledgement(due).await;
            self.leases.acknowledged(session.id, *answer);
        }
        MetaReply::Unit
    }

    /// Handles leases and uses that a session has given up without a recall.
    pub(crate) async fn handle_releases(
        &self,
        session: &Session,
        released: &[InodeId],
        seen: u64,
    ) -> MetaReply {
        for &number in released {
            let key = self.leases.key_of(number);
            self.truncate_before_release(key, session.id).await;
            self.leases.release(session.id, key, seen);
        }
        MetaReply::Unit
    }

    /// Waits until recalls are acknowledged. Evicts sessions that don't acknowledge in time.
    pub(crate) async fn wait_for_acknowledgements(&self, due: Vec<PendingRecall>) {
        let mut since_ns = rt::monotonic_ns();
        for due in due {
            while let Some(acknowledged) = self.leases.acknowledgement_event(&due) {
                if self.sessions.find(due.session).is_none() {
                    self.leases.end_session(due.session);
                    break;
                }
                if !self.may_evict() {
                    // The sessions acknowledge to another service already, or to none: this service
                    // must not evict them. The pause lets other tasks run, whatever the caller does
                    // next.
                    rt::sleep(STOPPING_PAUSE).await;
                    return;
                }
                if self.is_own(due.session) {
                    acknowledged.wait().await;
                    continue;
                }
                let timeout = self.remaining_time(&due, since_ns);
                if timeout.is_zero() {
                    self.evict(due.session, self.eviction_reason(&due, since_ns));
                    acknowledged.wait().await;
                } else {
                    let wait_began_ns = rt::monotonic_ns();
                    rt::timeout(timeout, acknowledged.wait()).await;
                    let now_ns = rt::monotonic_ns();
                    if now_ns - wait_began_ns > (timeout + PAUSE_THRESHOLD).as_nanos() as u64 {
                        // This service itself was paused, and messages that arrived meanwhile are
                        // still to be read.
                        self.sessions.note_contact_of_all();
                        since_ns = now_ns;
                    }
                }
            }
        }
    }

    /// How long a session may still take to acknowledge a recall that has been waited for since a
    /// time. A session that has seen the recall and keeps sending could have acknowledged. Another
    /// may be cut off for a while, in both directions or in one: its messages may arrive here, but
    /// none there. Such a session relies on its leases as long as a silent one.
    fn remaining_time(&self, due: &PendingRecall, since_ns: u64) -> Duration {
        let Some(session) = self.sessions.find(due.session) else { return RECALL_TIMEOUT };
        if self.grace.is_returning(due.session) {
            // The session is waiting for this service.
            session.note_contact();
        }
        let (last_contact_ns, now_ns) = (session.last_contact_ns(), rt::monotonic_ns());
        let ack_deadline_ns = since_ns + RECALL_TIMEOUT.as_nanos() as u64;
        let has_seen = session.has_confirmed(due.number);
        let is_in_contact = last_contact_ns > since_ns
            && now_ns.saturating_sub(last_contact_ns) < CUT_OFF_AFTER.as_nanos() as u64;
        let deadline = if has_seen && is_in_contact {
            ack_deadline_ns
        } else {
            let silent_since_ns = if has_seen { last_contact_ns } else { last_contact_ns.min(since_ns) };
            // Not at once, however old its last message is: this service itself may have been
            // paused.
            (silent_since_ns + UNREACHABLE_TIMEOUT.as_nanos() as u64).max(ack_deadline_ns)
        };
        let deadline = deadline.max(self.working_until_ns(&session, due, since_ns));
        // A session whose first message arrives meanwhile gets a shorter deadline.
        let recheck_ns = RECALL_TIMEOUT.as_nanos() as u64 / 5;
        Duration::from_nanos(deadline.saturating_sub(now_ns).min(recheck_ns))
    }

    /// Eviction reason of a session that didn't acknowledge a recall.
    fn eviction_reason(&self, due: &PendingRecall, since_ns: u64) -> String {
        let now_ns = rt::monotonic_ns();
        let ms_since = |ns: u64| now_ns.saturating_sub(ns) / 1_000_000;
        let waited_ms = ms_since(since_ns);
        let Some(session) = self.sessions.find(due.session) else { return "it has ended".into() };
        let contact = format!("its last message arrived {} ms ago", ms_since(session.last_contact_ns()));
        let seen = if session.has_confirmed(due.number) { "has seen" } else { "has not seen" };
        let report = match session.last_working_report_ns(due.number) {
            Some(reported_ns) => format!("it reported {} ms ago that it works on it", ms_since(reported_ns)),
            None => "it never reported that it works on it".into(),
        };
        format!(
            "it did not give up its lease on {} within {waited_ms} ms: {contact}, it {seen} recall {}, {report}",
            due.key, due.number
        )
    }

    /// Until when a session may work on a recall that it reports to work on; 0 if it doesn't report
    /// that.
    fn working_until_ns(&self, session: &Session, due: &PendingRecall, since_ns: u64) -> u64 {
        let Some(reported_ns) = session.last_working_report_ns(due.number) else { return 0 };
        let report_valid_until_ns = reported_ns + WORKING_REPORT_VALID.as_nanos() as u64;
        let map = self.chunks.map.load();
        match map.targets.iter().all(|target| target.state == TargetState::Online) {
            true => report_valid_until_ns.min(since_ns + RECALL_WORK_TIMEOUT.as_nanos() as u64),
            false => report_valid_until_ns,
        }
    }

    /// Whether a session that this service doesn't know ends itself. Either it did so before and
    /// the answer was lost, or the service restarted. It needn't register for that.
    ///
    /// # Errors
    /// `ESTALE` for an evicted session: its last writes may not have been accepted.
    pub(crate) fn is_unmount_of_unknown_session(&self, request: &MetaRequest) -> Result<bool> {
        let id = request.session;
        if !matches!(request.op, MetaOp::EndSession) || id == SessionId(0) {
            return Ok(false);
        }
        self.sessions.check_id(id)?;
        Ok(self.sessions.find(id).is_none())
    }

    /// Ends a session at its own request. Continues when the caller is dropped: a session that has
    /// half ended would block others for ever.
    pub(crate) async fn end_cleanly(&self, id: SessionId) -> Result<()> {
        let Some(myself) = self.self_ref.upgrade() else { return Ok(()) };
        let outcome = Arc::new((Mutex::new(None), Event::new()));
        let task_outcome = outcome.clone();
        rt::spawn(async move {
            let ended = myself.end_session(id).await;
            *task_outcome.0.lock() = Some(ended.map(|_| ()));
            task_outcome.1.set();
        });
        outcome.1.wait().await;
        let ended = outcome.0.lock().take();
        ended.unwrap_or(Ok(()))
    }

    /// Whether this service may evict for silence: not while it stops, nor while management
    /// considers its node dead. It may be cut off itself.
    pub(crate) fn may_evict(&self) -> bool {
        !self.stopping.is_set() && self.require_service().is_ok()
    }

    /// Starts the eviction of a session. Continues when the caller is dropped.
    pub(crate) fn evict(&self, id: SessionId, cause: String) {
        let Some(myself) = self.self_ref.upgrade() else { return };
        let is_first = self.sessions.find(id).is_some_and(|session| session.end());
        if is_first {
            rt::spawn(async move { myself.run_eviction(id, &cause).await });
        }
    }

    pub(crate) async fn run_eviction(self: Arc<Self>, id: SessionId, cause: &str) {
        tracing::warn!(session = id.0, cause, "a session is evicted");
        self.fence(id).await;
        let recorded = loop {
            match self.store_session(id, Some(StoredSession::ended_at(rt::now().secs))).await {
                // Otherwise the session would stay alive at other services, while the targets
                // refuse it.
                Err(error) if self.executors.store.engine().is_none() && !self.stopping.is_set() => {
                    tracing::warn!(session = id.0, %error, "an eviction is not recorded in the metadata store yet");
                    rt::sleep(RETRY_PAUSE).await;
                }
                recorded => break recorded,
            }
        };
        self.notify_peers_of_end(id);
        if let Err(error) = recorded.and(self.clean_up_session(id).await) {
            tracing::error!(session = id.0, %error, "size recovery after an eviction failed: sizes of files that the session wrote may be wrong");
        }
        self.sessions.keep_id_only(id);
    }

    /// Notifies the other services that a session has been evicted.
    fn notify_peers_of_end(&self, session: SessionId) {
        for other in self.peers.iter().flat_map(|peers| peers.others()) {
            rt::spawn(async move {
                // A service that doesn't answer finds it in the store.
                _ = rt::timeout(END_NOTICE_TIMEOUT, other.call(PartitionsRequest::Ended { session }, None))
                    .await;
            });
        }
    }

    /// Handles the eviction of a session by another service. The targets have fenced it.
    pub(crate) fn handle_end_elsewhere(&self, id: SessionId) {
        let known = self.sessions.find(id).filter(|session| session.is_remote());
        if known.is_none() && !self.grace.is_expected(id) {
            self.sessions.keep_id_only(id);
            return;
        }
        let (Some(myself), true) = (self.self_ref.upgrade(), known.is_none_or(|session| session.end()))
        else {
            return;
        };
        rt::spawn(async move {
            if let Err(error) = myself.clean_up_session(id).await {
                tracing::error!(session = id.0, %error, "size recovery after an eviction failed: sizes of files that the session wrote may be wrong");
            }
            myself.sessions.keep_id_only(id);
            myself.session_ended(id);
        });
    }

    /// Checks whether other services have evicted sessions.
    async fn check_ends_elsewhere(&self) -> Result<()> {
        if self.peers.is_some() {
            let (_, ended) = stored_sessions(&*self.executors.store).await?;
            ended
                .into_iter()
                .filter(|id| self.sessions.find(*id).is_some())
                .for_each(|id| self.handle_end_elsewhere(id));
        }
        Ok(())
    }

    /// Makes every target refuse a session. A target that doesn't answer for [`FENCE_TIMEOUT`] is
    /// considered down, and fenced when it is back.
    async fn fence(&self, id: SessionId) {
        let since_ns = rt::monotonic_ns();
        let mut targets: Vec<TargetId> = self.chunks.channels.targets();
        targets.sort_unstable();
        loop {
            targets = self.fence_at(id, targets).await;
            if targets.is_empty() {
                return;
            }
            if rt::monotonic_ns().saturating_sub(since_ns) >= FENCE_TIMEOUT.as_nanos() as u64 {
                tracing::error!(
                    session = id.0,
                    ?targets,
                    "an evicted session is not fenced at these targets: they may still accept its writes"
                );
                self.pending_fences.lock().extend(targets.into_iter().map(|target| (id, target)));
                return;
            }
            rt::sleep(FENCE_RETRY).await;
        }
    }

    /// Fences a session at targets. Returns those that didn't answer.
    async fn fence_at(&self, session: SessionId, targets: Vec<TargetId>) -> Vec<TargetId> {
        let fence = |target| async move {
            let fenced = self
                .chunks
                .at(ChunkLocation::Target(target), EpochedChunkFile::TARGET, StorageOp::Fence { session })
                .await;
            fenced.is_err().then_some(target)
        };
        rt::join_all(targets.into_iter().map(fence).collect()).await.into_iter().flatten().collect()
    }

    /// Fences sessions at targets that were down when the sessions ended.
    async fn retry_fences(&self) {
        let unfenced = std::mem::take(&mut *self.pending_fences.lock());
        for (id, target) in unfenced {
            let unfenced = self.fence_at(id, vec![target]).await;
            self.pending_fences.lock().extend(unfenced.into_iter().map(|target| (id, target)));
        }
    }

    /// Evicts unreachable sessions, until the service stops.
    pub(crate) async fn evict_unreachable_sessions(self: Arc<Self>) {
        let mut next_sweep_ns = rt::monotonic_ns() + SWEEP_INTERVAL.as_nanos() as u64;
        while !self.stopping.is_set() {
            let before_ns = rt::monotonic_ns();
            rt::sleep(IDLE_CHECK).await;
            let now_ns = rt::monotonic_ns();
            if now_ns - before_ns > 2 * IDLE_CHECK.as_nanos() as u64 {
                // This service itself was paused.
                self.sessions.note_contact_of_all();
            }
            if !self.may_evict() {
                // A session that is silent here may be in contact with other services. All get the
                // full time from when management trusts this service again.
                self.sessions.note_contact_of_all();
                continue;
            }
            for id in self.sessions.unreachable_since(now_ns.saturating_sub(IDLE_TIMEOUT.as_nanos() as u64)) {
                self.evict(id, format!("it was unreachable for {IDLE_TIMEOUT:?}"));
            }
            self.retry_fences().await;
            if now_ns >= next_sweep_ns {
                next_sweep_ns = now_ns + SWEEP_INTERVAL.as_nanos() as u64;
                if let Err(error) = self.delete_old_tombstones(rt::now().secs).await {
                    tracing::debug!(%error, "old records of evicted sessions can't be deleted yet");
                }
            }
            if let Err(error) = self.check_ends_elsewhere().await {
                tracing::debug!(%error, "evictions by other metadata services can't be read now");
            }
        }
    }

    /// Evicts sessions at the request of administrators, until the service stops.
    pub(crate) async fn run_requested_evictions(self: Arc<Self>) {
        let (requested, work_available) = &self.evictions;
        while !self.stopping.is_set() {
            rt::timeout(IDLE_CHECK, work_available.wait()).await;
            work_available.clear();
            let sessions = std::mem::take(&mut *requested.lock());
            sessions.into_iter().for_each(|id| self.evict(id, "an administrator evicted it".into()));
        }
    }

    /// Deletes files whose last user has closed them, until the service stops.
    pub(crate) async fn delete_abandoned(self: Arc<Self>) {
        while !self.stopping.is_set() {
            for ino in self.leases.abandoned().await {
                if let Err(error) = self.run_for_session(SessionId(0), MetaOp::Reclaim { ino }).await {
                    tracing::warn!(ino = ino.0, %error, "an orphaned file can't be deleted before the next start");
                }
            }
        }
    }
}

fn not_registered_error(id: SessionId) -> Error {
    Error::new(Errno::ENOTCONN, format!("the metadata service doesn't know session {id}"))
        .hint("the client has to register it")
}

/// Warns of open inodes of a session that could not be marked.
fn warn_of_unmarked_opens(session: SessionId, left_out: usize) {
    if left_out > 0 {
        tracing::warn!(
            session = session.0,
            inodes = left_out,
            hint = "close files in applications on that mount",
            "a session has more open files than the service can track: files that other clients delete are lost to it, too"
        );
    }
}
