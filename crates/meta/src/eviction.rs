//! Recalls and their answers, and the end of sessions that don't answer.

use crate::limits::{FENCE_RETRY, FENCE_TIME, IDLE_CHECK, IDLE_TIME, RECALL_POLL, SILENCE_TIME, YIELD_TIME};
use crate::record::StoredSession;
use crate::service::MetaService;
use crate::sessions::{Session, SessionKind};
use crate::view::store_error;
use namespace::keys;
use namespace::leases::Due;
use parking_lot::Mutex;
use prost::Message;
use rt::sync::Event;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use types::{Errno, Error, InodeId, PartitionId, Result, SessionId, TargetId};
use wire::{MetaOp, MetaReply, Recall, StorageOp, Yield};

impl MetaService {
    /// Makes a session known. One of another process is known durably when this returns.
    pub async fn register_session(&self, id: SessionId, kind: SessionKind) -> Result<()> {
        self.make_known(id, kind).await?;
        self.grace.returned(id);
        Ok(())
    }

    async fn make_known(&self, id: SessionId, kind: SessionKind) -> Result<()> {
        if kind == SessionKind::Local {
            self.drains.note_local_mount();
            return self.sessions.register_local(id).map(|_| ());
        }
        self.sessions.check_id(id)?;
        if !self.sessions.is_remote(id) {
            self.keep_session(id, Some(StoredSession::LIVING)).await?;
            self.executors.writer.sync().await.map_err(|error| store_error(&error))?;
        }
        self.sessions.register_remote(id, &**self.executors.writer.engine()).map(|_| ())
    }

    /// Stores the record of a session of another process.
    pub(crate) async fn keep_session(&self, id: SessionId, record: Option<StoredSession>) -> Result<()> {
        let value = record.map(|record| record.encode_to_vec().into());
        // In the name of the first partition, so that a service that was replaced changes nothing.
        self.executors.write(PartitionId(0), vec![(keys::session(id).to_vec(), value)]).await
    }

    /// The session of a request, made known by it if nobody registered it.
    ///
    /// # Errors
    /// `ESTALE` for one that was evicted, `ENOTCONN` for one from before a start.
    pub(crate) fn session_of(&self, id: SessionId) -> Result<Arc<Session>> {
        if self.grace.is_expected(id) && self.sessions.is_unknown(id) {
            return Err(is_not_registered(id));
        }
        self.sessions.get(id)
    }

    /// As a session asks for it itself. What it had before is gone, but for what it has open.
    pub(crate) async fn register(&self, id: SessionId, in_use: &[InodeId]) -> Result<()> {
        if self.grace.is_expected(id) {
            // What it wrote and hadn't reported is settled before others may ask for it, who are not stopped by a lease any more.
            self.settle_session(id).await?;
        }
        self.make_known(id, SessionKind::Remote).await?;
        let session = self.sessions.get(id)?;
        self.leases.end_session(id);
        let asker = session.asker();
        in_use.iter().for_each(|&ino| _ = self.leases.mark_in_use(asker, ino));
        self.grace.returned(id);
        Ok(())
    }

    /// Waits until there are recalls with numbers above `after`, or for [`RECALL_POLL`].
    pub(crate) async fn next_recalls(&self, session: &Session, after: u64) -> Result<Vec<Recall>> {
        if !session.is_remote() {
            return Err(is_not_registered(session.id));
        }
        let recalls = session.recalls_after(after);
        if !recalls.is_empty() {
            return Ok(recalls);
        }
        within(RECALL_POLL, session.wait_for_recalls()).await;
        session.check()?;
        Ok(session.recalls_after(after))
    }

    /// Takes the answers to recalls.
    pub(crate) fn take_yields(&self, session: &Session, yields: &[Yield]) -> MetaReply {
        yields.iter().for_each(|answer| self.leases.yielded(session.id, answer));
        MetaReply::Unit
    }

    /// Takes leases and uses back that a session has given up by itself.
    pub(crate) fn take_releases(&self, session: &Session, inodes: &[InodeId], seen: u64) -> MetaReply {
        inodes.iter().for_each(|&ino| self.leases.release(session.id, ino, seen));
        MetaReply::Unit
    }

    /// Waits until recalls are answered. Sessions that don't answer in time are evicted.
    pub(crate) async fn wait_for_answers(&self, due: Vec<Due>) {
        let since_ns = rt::monotonic_ns();
        for due in due {
            while let Some(answered) = self.leases.answer_of(&due) {
                if self.sessions.find(due.session).is_none() {
                    self.leases.end_session(due.session);
                    break;
                }
                if self.stopping.is_set() {
                    // The sessions answer to another service already, or to nobody: they aren't ended for this one.
                    return;
                }
                if self.is_own(due.session) {
                    answered.wait().await;
                    continue;
                }
                let patience = self.patience(due.session, since_ns);
                if patience.is_zero() {
                    self.evict(due.session);
                    answered.wait().await;
                } else {
                    within(patience, answered.wait()).await;
                }
            }
        }
    }

    /// How long a session may still take to answer a recall that has been waited for since a time. One that was heard of since then could have
    /// answered; another may be cut off for a while.
    fn patience(&self, id: SessionId, since_ns: u64) -> Duration {
        let Some(session) = self.sessions.find(id) else { return YIELD_TIME };
        let (heard_ns, now_ns) = (session.heard_ns(), rt::monotonic_ns());
        let answer_ns = since_ns + YIELD_TIME.as_nanos() as u64;
        // Not at once, however long ago it was heard of: it may be this service that stood still.
        let silence_ns = (heard_ns + SILENCE_TIME.as_nanos() as u64).max(answer_ns);
        let deadline = if heard_ns > since_ns { answer_ns } else { silence_ns };
        // A session that is heard of for the first time meanwhile gets a shorter deadline.
        let next_look = YIELD_TIME.as_nanos() as u64 / 5;
        Duration::from_nanos(deadline.saturating_sub(now_ns).min(next_look))
    }

    /// Ends a session as it asks for it. Goes on when the caller is dropped: a session that is half ended would be in the way for ever.
    pub(crate) async fn end_in_good_order(&self, id: SessionId) -> Result<()> {
        let Some(myself) = self.myself.upgrade() else { return Ok(()) };
        let outcome = Arc::new((Mutex::new(None), Event::new()));
        let told = outcome.clone();
        rt::spawn(async move {
            let ended = myself.end_session(id).await;
            *told.0.lock() = Some(ended.map(|_| ()));
            told.1.set();
        });
        outcome.1.wait().await;
        let ended = outcome.0.lock().take();
        ended.unwrap_or(Ok(()))
    }

    /// Begins to end a session against its will. Goes on when the caller is dropped.
    pub(crate) fn evict(&self, id: SessionId) {
        let Some(myself) = self.myself.upgrade() else { return };
        let is_first = self.sessions.find(id).is_some_and(|session| session.end());
        if is_first {
            rt::spawn(async move { myself.carry_out_eviction(id).await });
        }
    }

    pub(crate) async fn carry_out_eviction(self: Arc<Self>, id: SessionId) {
        tracing::warn!(
            session = id.0,
            "a session is ended: it was not heard of, or didn't give up a lease in time"
        );
        self.fence(id).await;
        let noted = self.keep_session(id, Some(StoredSession::ENDED)).await;
        if let Err(error) = noted.and(self.wind_up(id).await) {
            tracing::error!(session = id.0, %error, "an ended session could not be settled: sizes of files that it wrote may be wrong");
        }
        self.sessions.bury(id);
    }

    /// Makes every target refuse a session. One that doesn't answer for [`FENCE_TIME`] is taken for dead, and told when it is back.
    async fn fence(&self, id: SessionId) {
        let since_ns = rt::monotonic_ns();
        let mut targets: Vec<TargetId> = self.chunks.channels.targets();
        targets.sort_unstable();
        loop {
            targets = self.fence_at(id, targets).await;
            if targets.is_empty() {
                return;
            }
            if rt::monotonic_ns().saturating_sub(since_ns) >= FENCE_TIME.as_nanos() as u64 {
                tracing::error!(
                    session = id.0,
                    ?targets,
                    "targets don't know of the end of a session, and may still take its writes"
                );
                self.owed_fences.lock().extend(targets.into_iter().map(|target| (id, target)));
                return;
            }
            rt::sleep(FENCE_RETRY).await;
        }
    }

    /// Returns the targets that didn't answer.
    async fn fence_at(&self, session: SessionId, targets: Vec<TargetId>) -> Vec<TargetId> {
        let fence = |target| async move {
            let fenced = self.chunks.on(target, InodeId::ROOT, StorageOp::Fence { session }).await;
            fenced.is_err().then_some(target)
        };
        rt::join_all(targets.into_iter().map(fence).collect()).await.into_iter().flatten().collect()
    }

    /// Tells targets that are back of sessions that ended meanwhile.
    async fn pay_fences(&self) {
        let owed = std::mem::take(&mut *self.owed_fences.lock());
        for (id, target) in owed {
            let left = self.fence_at(id, vec![target]).await;
            self.owed_fences.lock().extend(left.into_iter().map(|target| (id, target)));
        }
    }

    /// Ends sessions that are not heard of any more, as long as the service runs.
    pub(crate) async fn end_silent_sessions(self: Arc<Self>) {
        while !self.stopping.is_set() {
            let before_ns = rt::monotonic_ns();
            rt::sleep(IDLE_CHECK).await;
            let now_ns = rt::monotonic_ns();
            if now_ns - before_ns > 2 * IDLE_CHECK.as_nanos() as u64 {
                // It is this service that stood still.
                self.sessions.hear_all();
            }
            for id in self.sessions.silent_since(now_ns.saturating_sub(IDLE_TIME.as_nanos() as u64)) {
                self.evict(id);
            }
            self.pay_fences().await;
        }
    }

    /// Deletes what had to wait until nobody uses it any more, as long as the service runs.
    pub(crate) async fn reclaim_abandoned(self: Arc<Self>) {
        while !self.stopping.is_set() {
            for ino in self.leases.abandoned().await {
                if let Err(error) = self.run_as(SessionId(0), MetaOp::Reclaim { ino }).await {
                    tracing::warn!(ino = ino.0, %error, "a file without a name stays until the next start");
                }
            }
        }
    }
}

fn is_not_registered(id: SessionId) -> Error {
    Error::new(Errno::ENOTCONN, format!("the metadata service doesn't know session {id}"))
        .hint("the client has to register it")
}

/// What a future gives within a time.
pub(crate) async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut sleep = pin!(rt::sleep(time));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}
