//! Recalls and their answers, and the end of sessions that don't answer.

use crate::chunks::{Place, Under};
use crate::grace::stored_sessions;
use crate::limits::{
    FENCE_RETRY, FENCE_TIME, IDLE_CHECK, IDLE_TIME, RECALL_POLL, RETRY_TIME, SILENCE_TIME, STANDSTILL,
    STOPPING_REST, SWEEP_INTERVAL, TALK_TIME, TELL_TIME, YIELD_TIME, YIELDING_TIME, YIELDING_WORD,
};
use crate::record::StoredSession;
use crate::service::MetaService;
use crate::sessions::{Session, SessionKind, stored_answers};
use crate::view::{not_owner, store_error};
use bytes::Bytes;
use kv::{Batch, Guard, Outcome};
use namespace::leases::{Asker, Due};
use namespace::{Writes, keys};
use parking_lot::Mutex;
use prost::Message;
use rt::sync::Event;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;
use types::{Errno, Error, InodeId, Result, SessionId, TargetId, TargetState};
use wire::{MetaOp, MetaReply, MetaRequest, PartitionsRequest, Promise, StorageOp, Yield};

/// Where a request comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asks {
    InProcess,
    FromElsewhere,
}

impl MetaService {
    /// Makes a session known. One of another process is known durably when this returns.
    pub async fn register_session(&self, id: SessionId, kind: SessionKind) -> Result<()> {
        self.make_known(id, kind).await?;
        self.session_returned(id);
        Ok(())
    }

    async fn make_known(&self, id: SessionId, kind: SessionKind) -> Result<()> {
        if kind == SessionKind::Local {
            self.drains.note_local_session();
            return self.sessions.register_local(id).map(|_| ());
        }
        self.sessions.check_id(id)?;
        if !self.sessions.is_remote(id) {
            self.keep_session(id, Some(StoredSession::LIVING)).await?;
            self.executors.store.sync().await.map_err(|error| store_error(&error))?;
        }
        let answers = stored_answers(&self.executors.store, id).await?;
        self.sessions.register_remote(id, answers).map(|_| ())
    }

    /// Stores the record of a session of another process, or removes it. One that was ended against
    /// its will stays so, whichever service has ended it.
    pub(crate) async fn keep_session(&self, id: SessionId, record: Option<StoredSession>) -> Result<()> {
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
                self.has_ended(id);
                return if record.is_none() { Ok(()) } else { self.sessions.check_id(id) };
            }
            let value: Option<Bytes> = record.map(|record| record.encode_to_vec().into());
            if value == before {
                return Ok(());
            }
            let guards = vec![Guard { key: key.clone(), expected: before }];
            if self.commit_as_member(guards, vec![(key.clone(), value)]).await? == Outcome::Won {
                return Ok(());
            }
        }
    }

    /// Commits what belongs to no partition. In the name of one that is owned, if there is any, so
    /// that a service that was replaced changes nothing.
    pub(crate) async fn commit_as_member(&self, guards: Vec<Guard>, writes: Writes) -> Result<Outcome> {
        let badge = self.all_partitions().find_map(|partition| {
            let executor = self.executors.lock(partition).ok()?;
            executor.is_owned().then(|| (partition, executor.owner.clone()))
        });
        let (partition, badge) = badge.unzip();
        let guards = guards.into_iter().chain(badge.clone()).collect();
        let outcome = self.executors.store.commit(Batch { guards, writes }).await;
        let outcome = outcome.map_err(|error| store_error(&error))?;
        if let (Outcome::Lost, Some(partition), Some(badge)) = (outcome, partition, badge) {
            let now = self.executors.store.get(&badge.key).await.map_err(|error| store_error(&error))?;
            let mut executor = self.executors.lock(partition)?;
            if now != badge.expected && executor.owner == badge {
                executor.leave();
                if self.neighbours.is_none() {
                    return Err(not_owner(partition));
                }
            }
        }
        Ok(outcome)
    }

    /// The session of a request. One of this process is made known by it if nobody registered it.
    ///
    /// # Errors
    /// `ESTALE` for one that was evicted, `ENOTCONN` for one that another process has to register.
    pub(crate) fn session_of(&self, id: SessionId, asker: Asks) -> Result<Arc<Session>> {
        self.sessions.check_id(id)?;
        // One that shares its sessions with other services makes none known by itself.
        let registers = (self.neighbours.is_some() || asker == Asks::FromElsewhere) && id != SessionId(0);
        if self.grace.awaits_registration(id) || (registers && self.sessions.is_unknown(id)) {
            self.grace.told(id);
            return Err(is_not_registered(id));
        }
        self.sessions.get(id)
    }

    /// As a session asks for it itself. What it had before is gone, but for what it has open. A
    /// copy of the request that comes later takes nothing away: the session may have been granted
    /// leases since.
    pub(crate) async fn register(
        &self,
        id: SessionId,
        (in_use, promised): (&[InodeId], &[Promise]),
        holder: Option<u64>,
    ) -> Result<()> {
        let began = self.sessions.next_moment();
        let _arriving = self.grace.arrives(id);
        let _turn = match self.grace.awaits_registration(id) {
            // Of two copies one waits: what it settles could be what the session has begun after
            // the other.
            true => Some(self.sessions.turn_to_register(id).write().await),
            false => None,
        };
        let is_back = self.grace.awaits_registration(id);
        let is_copy = !is_back && self.sessions.is_remote(id);
        if is_back {
            // What it wrote and hadn't reported is settled before others may ask for it, who are
            // not stopped by a lease any more.
            self.settle_session(id).await?;
        }
        if !is_copy {
            self.make_known(id, SessionKind::Remote).await?;
        }
        let session = self.sessions.get(id)?;
        session.hear();
        session.holder.store(holder.unwrap_or(0), Ordering::Relaxed);
        let last = session.registered.swap(self.sessions.next_moment(), Ordering::AcqRel);
        if !is_copy && last < began {
            self.leases.end_session(id);
        }
        let asker = session.asker();
        self.mark_opens(asker, self.grace.opens_to_register(id).iter().chain(in_use));
        if is_back {
            // Who is new has promised nothing, and after a copy of the request the others have been
            // let in.
            self.keep_promises(&session, promised.iter()).await;
        }
        self.session_returned(id);
        Ok(())
    }

    /// A session says a part of what it has open, before it registers or follows partitions. One
    /// that isn't expected to do so, since it has done it already and repeats itself, has it noted
    /// at once.
    ///
    /// # Errors
    /// `ESTALE` for a session that was ended.
    pub(crate) fn reclaim_opens(&self, id: SessionId, inodes: &[InodeId]) -> Result<()> {
        self.sessions.check_id(id)?;
        let known = self.sessions.find(id).filter(|session| session.is_remote());
        match (self.grace.note_opens(id, inodes), known) {
            (Some(left_out), _) => warn_of_opens(id, left_out),
            (None, Some(session)) => self.mark_opens(session.asker(), inodes.iter()),
            // One that is new here has opened nothing here.
            (None, None) => {}
        }
        Ok(())
    }

    /// Notes what a session has open, as it says when it comes back.
    pub(crate) fn mark_opens<'a>(&self, asker: Asker, inodes: impl Iterator<Item = &'a InodeId>) {
        let is_left_out = |ino: &&InodeId| !self.leases.mark_in_use(&self.sessions, asker, **ino);
        warn_of_opens(asker.session, inodes.filter(is_left_out).count());
    }

    /// Waits until there are recalls with numbers above `after`, or partitions to follow, or for
    /// [`RECALL_POLL`].
    pub(crate) async fn next_recalls(&self, session: &Session, after: u64) -> Result<MetaReply> {
        if !session.is_remote() {
            return Err(is_not_registered(session.id));
        }
        let news = || {
            let mut partitions = self.grace.awaits_following(session.id);
            // One that was taken from this service is to be followed elsewhere.
            partitions.retain(|partition| self.is_owned(*partition));
            match partitions.is_empty() {
                true => MetaReply::Recalls(session.recalls_after(after)),
                false => {
                    self.grace.told(session.id);
                    MetaReply::Adopted { partitions }
                }
            }
        };
        match news() {
            MetaReply::Recalls(recalls) if recalls.is_empty() => {}
            news => return Ok(news),
        }
        within(RECALL_POLL, session.wait_for_recalls()).await;
        session.check()?;
        Ok(news())
    }

    /// Takes the answers to recalls.
    pub(crate) async fn take_yields(&self, session: &Session, yields: &[Yield]) -> MetaReply {
        for answer in yields {
            let Yield { ino, number, .. } = *answer;
            self.cut_before_yield(Due { ino, session: session.id, number }).await;
            self.leases.yielded(session.id, answer);
        }
        MetaReply::Unit
    }

    /// Takes leases and uses back that a session has given up by itself.
    pub(crate) async fn take_releases(&self, session: &Session, inodes: &[InodeId], seen: u64) -> MetaReply {
        for &ino in inodes {
            self.cut_before_release(ino, session.id).await;
            self.leases.release(session.id, ino, seen);
        }
        MetaReply::Unit
    }

    /// Waits until recalls are answered. Sessions that don't answer in time are evicted.
    pub(crate) async fn wait_for_answers(&self, due: Vec<Due>) {
        let mut since_ns = rt::monotonic_ns();
        for due in due {
            while let Some(answered) = self.leases.answer_of(&due) {
                if self.sessions.find(due.session).is_none() {
                    self.leases.end_session(due.session);
                    break;
                }
                if !self.may_end_sessions() {
                    // The sessions answer to another service already, or to nobody: they aren't
                    // ended for this one. Others run meanwhile, whatever the caller makes of that.
                    rt::sleep(STOPPING_REST).await;
                    return;
                }
                if self.is_own(due.session) {
                    answered.wait().await;
                    continue;
                }
                let patience = self.patience(&due, since_ns);
                if patience.is_zero() {
                    self.evict(due.session, self.fault(&due, since_ns));
                    answered.wait().await;
                } else {
                    let looked_ns = rt::monotonic_ns();
                    within(patience, answered.wait()).await;
                    let now_ns = rt::monotonic_ns();
                    if now_ns - looked_ns > (patience + STANDSTILL).as_nanos() as u64 {
                        // It is this service that stood still, and what was said to it meanwhile is
                        // still to be heard.
                        self.sessions.hear_all();
                        since_ns = now_ns;
                    }
                }
            }
        }
    }

    /// How long a session may still take to answer a recall that has been waited for since a time.
    /// One that has seen it and goes on talking could have answered. Another may be cut off for a
    /// while, both ways or in one: what it says may arrive here, and nothing there. Such a one
    /// relies on its leases for as long as one that is silent, too.
    fn patience(&self, due: &Due, since_ns: u64) -> Duration {
        let Some(session) = self.sessions.find(due.session) else { return YIELD_TIME };
        if self.grace.is_arriving(due.session) {
            // It is this service that it waits for.
            session.hear();
        }
        let (heard_ns, now_ns) = (session.heard_ns(), rt::monotonic_ns());
        let answer_ns = since_ns + YIELD_TIME.as_nanos() as u64;
        let has_seen = session.has_seen(due.number);
        let talks = heard_ns > since_ns && now_ns.saturating_sub(heard_ns) < TALK_TIME.as_nanos() as u64;
        let deadline = if has_seen && talks {
            answer_ns
        } else {
            let silent_ns = if has_seen { heard_ns } else { heard_ns.min(since_ns) };
            // Not at once, however long ago it was heard of: it may be this service that stood
            // still.
            (silent_ns + SILENCE_TIME.as_nanos() as u64).max(answer_ns)
        };
        let deadline = deadline.max(self.yielding_until_ns(&session, due, since_ns));
        // A session that is heard of for the first time meanwhile gets a shorter deadline.
        let next_look = YIELD_TIME.as_nanos() as u64 / 5;
        Duration::from_nanos(deadline.saturating_sub(now_ns).min(next_look))
    }

    /// What a session is reproached with that is ended for a recall.
    fn fault(&self, due: &Due, since_ns: u64) -> String {
        let now_ns = rt::monotonic_ns();
        let ms_since = |ns: u64| now_ns.saturating_sub(ns) / 1_000_000;
        let waited_ms = ms_since(since_ns);
        let Some(session) = self.sessions.find(due.session) else { return "it is gone".into() };
        let heard = format!("it was last heard of {} ms ago", ms_since(session.heard_ns()));
        let seen = if session.has_seen(due.number) { "has seen" } else { "hasn't heard of" };
        let word = match session.yielding_since_ns(due.number) {
            Some(word_ns) => format!("said {} ms ago that it works on it", ms_since(word_ns)),
            None => "never said that it works on it".into(),
        };
        format!(
            "it didn't give up its lease on inode {} within {waited_ms} ms: {heard}, {seen} recall {}, {word}",
            due.ino, due.number
        )
    }

    /// Until when a session may work on a recall that it says it works on; 0 when it doesn't say
    /// so.
    fn yielding_until_ns(&self, session: &Session, due: &Due, since_ns: u64) -> u64 {
        let Some(word_ns) = session.yielding_since_ns(due.number) else { return 0 };
        let word_holds_ns = word_ns + YIELDING_WORD.as_nanos() as u64;
        let map = self.chunks.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        match map.targets.iter().all(|target| target.state == TargetState::Online) {
            true => word_holds_ns.min(since_ns + YIELDING_TIME.as_nanos() as u64),
            false => word_holds_ns,
        }
    }

    /// Whether a session ends itself that this service doesn't know: since it did so before and the
    /// answer was lost, or since the service was started anew. It needn't register for that.
    ///
    /// # Errors
    /// `ESTALE` for one that was evicted: what it wrote last may not be what it thinks.
    pub(crate) fn is_farewell_of_unknown(&self, request: &MetaRequest) -> Result<bool> {
        let id = request.session;
        if !matches!(request.op, MetaOp::EndSession) || id == SessionId(0) {
            return Ok(false);
        }
        self.sessions.check_id(id)?;
        Ok(self.sessions.find(id).is_none())
    }

    /// Ends a session as it asks for it. Goes on when the caller is dropped: a session that is half
    /// ended would be in the way for ever.
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

    /// Whether silence means anything: not to a service that stops, nor to one on which management
    /// doesn't count. It may be cut off itself.
    pub(crate) fn may_end_sessions(&self) -> bool {
        !self.stopping.is_set() && self.require_service().is_ok()
    }

    /// Begins to end a session against its will. Goes on when the caller is dropped.
    pub(crate) fn evict(&self, id: SessionId, cause: String) {
        let Some(myself) = self.myself.upgrade() else { return };
        let is_first = self.sessions.find(id).is_some_and(|session| session.end());
        if is_first {
            rt::spawn(async move { myself.carry_out_eviction(id, &cause).await });
        }
    }

    pub(crate) async fn carry_out_eviction(self: Arc<Self>, id: SessionId, cause: &str) {
        tracing::warn!(session = id.0, cause, "a session is ended");
        self.fence(id).await;
        let noted = loop {
            match self.keep_session(id, Some(StoredSession::ended_at(rt::now().secs))).await {
                // Else it lived on at other services, and the targets refuse it.
                Err(error) if self.executors.store.engine().is_none() && !self.stopping.is_set() => {
                    tracing::warn!(session = id.0, %error, "the end of a session is not on record yet");
                    rt::sleep(RETRY_TIME).await;
                }
                noted => break noted,
            }
        };
        self.tell_of_end(id);
        if let Err(error) = noted.and(self.wind_up(id).await) {
            tracing::error!(session = id.0, %error, "an ended session could not be settled: sizes of files that it wrote may be wrong");
        }
        self.sessions.bury(id);
    }

    /// Tells the other services that a session has been ended.
    fn tell_of_end(&self, session: SessionId) {
        for other in self.neighbours.iter().flat_map(|neighbours| neighbours.others()) {
            rt::spawn(async move {
                // One that doesn't answer finds it in the store.
                _ = within(TELL_TIME, other.call(PartitionsRequest::Ended { session }, None)).await;
            });
        }
    }

    /// Another service has ended a session, and the targets know.
    pub(crate) fn has_ended(&self, id: SessionId) {
        let known = self.sessions.find(id).filter(|session| session.is_remote());
        if known.is_none() && !self.grace.is_expected(id) {
            self.sessions.bury(id);
            return;
        }
        let (Some(myself), true) = (self.myself.upgrade(), known.is_none_or(|session| session.end())) else {
            return;
        };
        rt::spawn(async move {
            if let Err(error) = myself.wind_up(id).await {
                tracing::error!(session = id.0, %error, "an ended session could not be settled: sizes of files that it wrote may be wrong");
            }
            myself.sessions.bury(id);
            myself.session_gone(id);
        });
    }

    /// Looks whether other services have ended sessions.
    async fn note_ended_elsewhere(&self) -> Result<()> {
        if self.neighbours.is_some() {
            let (_, ended) = stored_sessions(&self.executors.store).await?;
            ended
                .into_iter()
                .filter(|id| self.sessions.find(*id).is_some())
                .for_each(|id| self.has_ended(id));
        }
        Ok(())
    }

    /// Makes every target refuse a session. One that doesn't answer for [`FENCE_TIME`] is taken for
    /// dead, and told when it is back.
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
            let fenced =
                self.chunks.at(Place::Target(target), Under::TARGET, StorageOp::Fence { session }).await;
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
        let mut next_sweep_ns = rt::monotonic_ns() + SWEEP_INTERVAL.as_nanos() as u64;
        while !self.stopping.is_set() {
            let before_ns = rt::monotonic_ns();
            rt::sleep(IDLE_CHECK).await;
            let now_ns = rt::monotonic_ns();
            if now_ns - before_ns > 2 * IDLE_CHECK.as_nanos() as u64 {
                // It is this service that stood still.
                self.sessions.hear_all();
            }
            if !self.may_end_sessions() {
                // Whoever is silent here may be well with the others. All have their time from when
                // this service counts again.
                self.sessions.hear_all();
                continue;
            }
            for id in self.sessions.silent_since(now_ns.saturating_sub(IDLE_TIME.as_nanos() as u64)) {
                self.evict(id, format!("it was not heard of for {IDLE_TIME:?}"));
            }
            self.pay_fences().await;
            if now_ns >= next_sweep_ns {
                next_sweep_ns = now_ns + SWEEP_INTERVAL.as_nanos() as u64;
                if let Err(error) = self.forget_old_sessions(rt::now().secs).await {
                    tracing::debug!(%error, "records of ended sessions are kept for now");
                }
            }
            if let Err(error) = self.note_ended_elsewhere().await {
                tracing::debug!(%error, "whether other services have ended sessions is not known for now");
            }
        }
    }

    /// Ends sessions as administrators ask for it, as long as the service runs.
    pub(crate) async fn evict_as_asked(self: Arc<Self>) {
        let (asked, some) = &self.evictions;
        while !self.stopping.is_set() {
            within(IDLE_CHECK, some.wait()).await;
            some.clear();
            let asked = std::mem::take(&mut *asked.lock());
            asked.into_iter().for_each(|id| self.evict(id, "an administrator asked for it".into()));
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

/// Warns of inodes that a session has open and that could not be noted.
fn warn_of_opens(session: SessionId, left_out: usize) {
    if left_out > 0 {
        tracing::warn!(
            session = session.0,
            inodes = left_out,
            hint = "let programs on that mount close files",
            "a session has more files open than can be noted: a file that others delete is gone for it, too"
        );
    }
}
