//! The end of sessions, by themselves or by eviction: sessions that don't acknowledge recalls, are
//! unreachable, don't return in time, or that an administrator evicts.

use crate::data::size_recovery::Recovery;
use crate::limits::{END_NOTICE_TIMEOUT, IDLE_CHECK, IDLE_TIMEOUT, RETRY_PAUSE, SWEEP_INTERVAL};
use crate::partition::executor::Executors;
use crate::partition::peers::PeerServices;
use crate::partition::serving::Serving;
use crate::session::cleanup::SessionCleanup;
use crate::session::fencing::Fencing;
use crate::session::grace_period::{GracePeriod, SessionReturns};
use crate::session::records::{SessionRecords, SessionWrite};
use crate::session::table::{SessionKind, Sessions};
use crate::store::record::StoredSession;
use parking_lot::Mutex;
use rt::sync::Event;
use std::sync::Arc;
use types::{Errno, Error, Result, SessionId};
use wire::PartitionsRequest;

/// Ends sessions.
pub(crate) struct Eviction {
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub records: Arc<SessionRecords>,
    pub fencing: Fencing,
    pub cleanup: SessionCleanup,
    pub grace: Arc<GracePeriod>,
    pub returns: Arc<SessionReturns>,
    /// The other services that share the partitions; `None` if this service owns all of them.
    pub peers: Option<Arc<PeerServices>>,
    pub serving: Arc<Serving>,
    /// Sessions that an administrator evicts. One entry for each command.
    pub requested: (Mutex<Vec<SessionId>>, Event),
}

impl Eviction {
    /// Stores or removes the record of a session of another process. The record of an evicted
    /// session stays, whichever service has evicted it.
    pub async fn store_session(self: &Arc<Self>, id: SessionId, record: Option<StoredSession>) -> Result<()> {
        match self.records.store(id, record).await? {
            SessionWrite::Stored => Ok(()),
            SessionWrite::EndedElsewhere => {
                self.handle_end_elsewhere(id);
                if record.is_none() { Ok(()) } else { self.sessions.check_id(id) }
            }
        }
    }

    /// Ends a session: releases its locks, deletes its files without a name, and recovers the sizes
    /// of those that it was writing.
    pub async fn end_session(self: &Arc<Self>, session: SessionId) -> Result<Recovery> {
        let known = self.sessions.find(session);
        known.iter().for_each(|session| _ = session.end());
        let recovery = self.cleanup.clean_up_session(session).await?;
        // A session from before this service started may be in the store, too.
        if known.is_none_or(|session| session.is_remote()) {
            self.store_session(session, None).await?;
        }
        self.sessions.remove(session);
        self.returns.session_ended(session);
        Ok(recovery)
    }

    /// Ends a session at its own request. Continues when the caller is dropped: a session that has
    /// half ended would block others for ever.
    pub async fn end_cleanly(self: &Arc<Self>, id: SessionId) -> Result<()> {
        let myself = self.clone();
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

    /// Starts the eviction of a session. Continues when the caller is dropped.
    pub fn evict(self: &Arc<Self>, id: SessionId, cause: String) {
        let myself = self.clone();
        let is_first = self.sessions.find(id).is_some_and(|session| session.end());
        if is_first {
            rt::spawn(async move { myself.run_eviction(id, &cause).await });
        }
    }

    pub async fn run_eviction(self: Arc<Self>, id: SessionId, cause: &str) {
        tracing::warn!(session = id.0, cause, "a session is evicted");
        self.fencing.fence(id).await;
        let recorded = loop {
            match self.store_session(id, Some(StoredSession::ended_at(rt::now().secs))).await {
                // Otherwise the session would stay alive at other services, while the targets
                // refuse it.
                Err(error) if self.executors.store.engine().is_none() && !self.serving.is_stopping() => {
                    tracing::warn!(session = id.0, %error, "an eviction is not recorded in the metadata store yet");
                    rt::sleep(RETRY_PAUSE).await;
                }
                recorded => break recorded,
            }
        };
        self.notify_peers_of_end(id);
        if let Err(error) = recorded.and(self.cleanup.clean_up_session(id).await) {
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
    pub fn handle_end_elsewhere(self: &Arc<Self>, id: SessionId) {
        let known = self.sessions.find(id).filter(|session| session.is_remote());
        if known.is_none() && !self.grace.is_expected(id) {
            self.sessions.keep_id_only(id);
            return;
        }
        if known.is_some_and(|session| !session.end()) {
            return;
        }
        let myself = self.clone();
        rt::spawn(async move {
            if let Err(error) = myself.cleanup.clean_up_session(id).await {
                tracing::error!(session = id.0, %error, "size recovery after an eviction failed: sizes of files that the session wrote may be wrong");
            }
            myself.sessions.keep_id_only(id);
            myself.returns.session_ended(id);
        });
    }

    /// Checks whether other services have evicted sessions.
    async fn check_ends_elsewhere(self: &Arc<Self>) -> Result<()> {
        if self.peers.is_some() {
            let stored = self.records.all().await?;
            stored
                .ended
                .into_iter()
                .filter(|id| self.sessions.find(*id).is_some())
                .for_each(|id| self.handle_end_elsewhere(id));
        }
        Ok(())
    }

    /// Evicts unreachable sessions, until the service stops.
    pub async fn evict_unreachable_sessions(self: Arc<Self>) {
        let mut next_sweep_ns = rt::monotonic_ns() + SWEEP_INTERVAL.as_nanos() as u64;
        while !self.serving.is_stopping() {
            let before_ns = rt::monotonic_ns();
            rt::sleep(IDLE_CHECK).await;
            let now_ns = rt::monotonic_ns();
            if now_ns - before_ns > 2 * IDLE_CHECK.as_nanos() as u64 {
                // This service itself was paused.
                self.sessions.note_contact_of_all();
            }
            if !self.serving.may_evict() {
                // A session that is silent here may be in contact with other services. All get the
                // full time from when management trusts this service again.
                self.sessions.note_contact_of_all();
                continue;
            }
            for id in self.sessions.unreachable_since(now_ns.saturating_sub(IDLE_TIMEOUT.as_nanos() as u64)) {
                self.evict(id, format!("it was unreachable for {IDLE_TIMEOUT:?}"));
            }
            self.fencing.retry().await;
            if now_ns >= next_sweep_ns {
                next_sweep_ns = now_ns + SWEEP_INTERVAL.as_nanos() as u64;
                if let Err(error) = self.records.delete_old(&self.sessions, rt::now().secs).await {
                    tracing::debug!(%error, "old records of evicted sessions can't be deleted yet");
                }
            }
            if let Err(error) = self.check_ends_elsewhere().await {
                tracing::debug!(%error, "evictions by other metadata services can't be read now");
            }
        }
    }

    /// Evicts sessions at the request of administrators, until the service stops.
    pub async fn run_requested_evictions(self: Arc<Self>) {
        let (requested, work_available) = &self.requested;
        while !self.serving.is_stopping() {
            rt::timeout(IDLE_CHECK, work_available.wait()).await;
            work_available.clear();
            let sessions = std::mem::take(&mut *requested.lock());
            sessions.into_iter().for_each(|id| self.evict(id, "an administrator evicted it".into()));
        }
    }

    /// Requests the eviction of a session. A background task does it: the caller may be on a core
    /// that ends after the request.
    pub fn request(&self, id: SessionId) -> Result<()> {
        match self.sessions.find(id).map(|session| session.kind) {
            Some(SessionKind::Remote) => {
                self.requested.0.lock().push(id);
                self.requested.1.set();
                Ok(())
            }
            Some(SessionKind::Local) => {
                Err(Error::new(Errno::EINVAL, format!("session {id} belongs to the service's own process"))
                    .hint("weft session list shows which can be evicted"))
            }
            None => Err(Error::new(Errno::ENOENT, format!("there is no session {id}"))
                .hint("weft session list shows all")),
        }
    }
}
