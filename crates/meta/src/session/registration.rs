//! Registration of sessions, and what they reclaim when they return.

use crate::data::size_recovery::SizeRecovery;
use crate::drain::Drains;
use crate::lease::table::Leases;
use crate::limits::RECALL_POLL;
use crate::partition::executor::Executors;
use crate::service::command::Commands;
use crate::session::async_changes::Unsent;
use crate::session::eviction::Eviction;
use crate::session::grace_period::{GracePeriod, SessionReturns};
use crate::session::locks::Locks;
use crate::session::records::SessionRecords;
use crate::session::table::{Session, SessionKind, Sessions};
use crate::store::record::StoredSession;
use crate::store::transaction_view::store_error;
use namespace::leases::Requester;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{Errno, Error, InodeId, Result, SessionId};
use wire::MetaReply;

/// Where a request comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestOrigin {
    InProcess,
    OtherProcess,
}

/// Registers sessions, and takes over what returning ones report.
pub(crate) struct Registration {
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub records: Arc<SessionRecords>,
    pub locks: Arc<Locks>,
    pub leases: Arc<Leases>,
    pub grace: Arc<GracePeriod>,
    pub returns: Arc<SessionReturns>,
    pub eviction: Arc<Eviction>,
    pub sizes: Arc<SizeRecovery>,
    pub commands: Arc<Commands>,
    pub drains: Arc<Drains>,
    /// Whether other services share the partitions.
    pub shares_partitions: bool,
}

impl Registration {
    /// Registers a session. A session of another process is durable when this returns.
    pub async fn register_session(&self, id: SessionId, kind: SessionKind) -> Result<()> {
        self.add_session(id, kind).await?;
        self.returns.session_returned(id);
        Ok(())
    }

    async fn add_session(&self, id: SessionId, kind: SessionKind) -> Result<()> {
        if kind == SessionKind::Local {
            self.drains.note_local_session();
            return self.sessions.register_local(id).map(|_| ());
        }
        self.sessions.check_id(id)?;
        if !self.sessions.is_remote(id) {
            self.eviction.store_session(id, Some(StoredSession::ACTIVE)).await?;
            self.executors.store.sync().await.map_err(|error| store_error(&error))?;
        }
        let answers = self.records.replies(id).await?;
        self.sessions.register_remote(id, answers).map(|_| ())
    }

    /// The session of a request. Creates a session of this process that isn't registered.
    ///
    /// # Errors
    /// `ESTALE` for an evicted session, `ENOTCONN` for one that its client has to register.
    pub fn session_of(&self, id: SessionId, origin: RequestOrigin) -> Result<Arc<Session>> {
        self.sessions.check_id(id)?;
        // A service that shares sessions with others creates none by itself.
        let must_be_registered =
            (self.shares_partitions || origin == RequestOrigin::OtherProcess) && id != SessionId(0);
        if self.grace.awaits_registration(id) || (must_be_registered && self.sessions.is_unknown(id)) {
            self.grace.note_reclaim_requested(id);
            return Err(not_registered_error(id));
        }
        self.sessions.get(id)
    }

    /// Handles a registration by a client. The session's earlier state is discarded, except for its
    /// open files. A retransmission discards nothing: the session may have got leases since.
    pub async fn register(
        &self,
        id: SessionId,
        (in_use, unsent): (&[InodeId], Unsent<'_>),
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
            self.sizes.recover_session_sizes(id).await?;
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
            // A new session has no asynchronous changes. After a retransmission, others already
            // have access.
            self.replay_unsent(&session, unsent, |_| true).await;
        }
        self.returns.session_returned(id);
        Ok(())
    }

    /// Handles a part of a session's list of open files, before the session registers or reclaims
    /// partitions. If no reclaim is expected, since it was done and this is a retransmission, the
    /// files are marked at once.
    ///
    /// # Errors
    /// `ESTALE` for a session that has ended.
    pub fn reclaim_opens(&self, id: SessionId, inodes: &[InodeId]) -> Result<()> {
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
    pub fn mark_opens<'a>(&self, requester: Requester, inodes: impl Iterator<Item = &'a InodeId>) {
        let is_left_out = |ino: &&InodeId| !self.leases.mark_in_use(&self.sessions, requester, **ino);
        warn_of_unmarked_opens(requester.session, inodes.filter(is_left_out).count());
    }

    /// Waits until there are recalls with numbers above `after`, or partitions to reclaim, at most
    /// for [`RECALL_POLL`].
    pub async fn next_recalls(&self, session: &Session, after: u64) -> Result<MetaReply> {
        if !session.is_remote() {
            return Err(not_registered_error(session.id));
        }
        let next_reply = || {
            let mut partitions = self.grace.partitions_to_reclaim(session.id);
            // The session reclaims a partition that was taken from this service at its new owner.
            partitions.retain(|partition| self.executors.is_owned(*partition));
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
