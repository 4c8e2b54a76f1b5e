//! The time in which sessions of before may come back, after a start and after partitions were
//! adopted.
//!
//! A service that adopts a partition knows nothing of the leases that were granted there, and of
//! what is open. Until each session that may have something there has dropped what it cached and
//! said so, or is ended for good, nothing is read or changed in what was adopted. After a start it
//! says so by registering, of partitions that were another service's by following them.

use crate::eviction::within;
use crate::limits::{GRACE_LOOK, GRACE_TIME, OPENS_PER_SESSION, STANDSTILL};
use crate::record::StoredSession;
use crate::service::MetaService;
use crate::view::store_error;
use kv::Store;
use namespace::{Key, decode_key, keys};
use parking_lot::Mutex;
use prost::Message;
use rt::sync::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{Errno, Error, InodeId, PartitionId, Result, SessionId};

/// What is known of sessions from before.
#[derive(Default)]
pub(crate) struct Grace {
    state: Mutex<State>,
    is_on: AtomicBool,
    over: Event,
}

#[derive(Default)]
struct State {
    /// Sessions that may come back.
    expected: BTreeMap<SessionId, Expected>,
    until_ns: u64,
    /// When it was last looked how much time there is left.
    looked_ns: u64,
    /// Somebody sees to its end.
    is_ending: bool,
    was_needed: bool,
}

/// What a session has to do before it counts as back.
#[derive(Default)]
struct Expected {
    registers: bool,
    /// Partitions that it has to follow.
    follows: BTreeSet<PartitionId>,
    /// Inodes that it has said it has open, until it registers or follows: [`OPENS_PER_SESSION`] at
    /// most.
    opens: BTreeSet<InodeId>,
    /// It has been told what it has to do.
    is_told: bool,
    /// Requests of it under way by which it comes back. What it left is settled meanwhile, which
    /// takes as long as storage services need.
    arriving: usize,
}

/// A session is coming back, until this is dropped.
pub(crate) struct Arriving<'a> {
    grace: &'a Grace,
    session: SessionId,
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        if let Some(expected) = self.grace.state.lock().expected.get_mut(&self.session) {
            expected.arriving = expected.arriving.saturating_sub(1);
        }
    }
}

impl Grace {
    /// These sessions may come back, from now on for [`GRACE_TIME`].
    fn begin(
        &self,
        sessions: BTreeSet<SessionId>,
        is_known: impl Fn(SessionId) -> bool,
        follow: &[PartitionId],
    ) {
        let mut state = self.state.lock();
        for session in sessions {
            let registers = !is_known(session);
            if registers || !follow.is_empty() {
                let expected = state.expected.entry(session).or_default();
                expected.registers |= registers;
                expected.follows.extend(follow);
                // Of something new it has yet to hear.
                expected.is_told = false;
            }
        }
        if state.expected.is_empty() {
            return;
        }
        let now_ns = rt::monotonic_ns();
        (state.until_ns, state.looked_ns) = (now_ns + GRACE_TIME.as_nanos() as u64, now_ns);
        self.over.clear();
        state.was_needed = true;
        self.is_on.store(true, Ordering::Release);
    }

    /// Whether there were sessions that might come back.
    fn was_needed(&self) -> bool {
        self.state.lock().was_needed
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub fn is_expected(&self, session: SessionId) -> bool {
        self.is_on() && self.state.lock().expected.contains_key(&session)
    }

    /// Whether a session has to register.
    pub fn awaits_registration(&self, session: SessionId) -> bool {
        self.is_on() && self.state.lock().expected.get(&session).is_some_and(|expected| expected.registers)
    }

    /// The partitions that a session has yet to follow.
    pub fn awaits_following(&self, session: SessionId) -> Vec<PartitionId> {
        if !self.is_on() {
            return Vec::new();
        }
        let state = self.state.lock();
        let follows = state.expected.get(&session).map(|expected| expected.follows.iter().copied());
        follows.into_iter().flatten().collect()
    }

    /// A session is about to be told what it has to do. One that lives has its time from then on,
    /// however long it took until the two heard of each other; it is given once.
    pub fn told(&self, session: SessionId) {
        if !self.is_on() {
            return;
        }
        let mut state = self.state.lock();
        let is_first = |expected: &mut Expected| !std::mem::replace(&mut expected.is_told, true);
        if !state.is_ending && state.expected.get_mut(&session).is_some_and(is_first) {
            state.until_ns = rt::monotonic_ns() + GRACE_TIME.as_nanos() as u64;
        }
    }

    /// A session does what is expected of it. It isn't late before that has ended.
    pub fn arrives(&self, session: SessionId) -> Option<Arriving<'_>> {
        if !self.is_on() {
            return None;
        }
        let mut state = self.state.lock();
        state.expected.get_mut(&session)?.arriving += 1;
        Some(Arriving { grace: self, session })
    }

    /// Notes a part of what a session that is expected has open, and tells how many inodes are left
    /// out since the session has too many; `None` when it isn't expected.
    pub fn note_opens(&self, session: SessionId, inodes: &[InodeId]) -> Option<usize> {
        if !self.is_on() {
            return None;
        }
        let mut state = self.state.lock();
        let expected = state.expected.get_mut(&session)?;
        let room = OPENS_PER_SESSION.saturating_sub(expected.opens.len());
        expected.opens.extend(inodes.iter().take(room));
        Some(inodes.len().saturating_sub(room))
    }

    /// What a session that registers now has said before that it has open. Of partitions that it
    /// has yet to follow it is kept for that.
    pub fn opens_to_register(&self, session: SessionId) -> BTreeSet<InodeId> {
        let mut state = self.state.lock();
        let Some(expected) = state.expected.get_mut(&session) else { return BTreeSet::new() };
        let all = std::mem::take(&mut expected.opens);
        if !expected.follows.is_empty() {
            let is_left = |ino: &&InodeId| expected.follows.contains(&ino.partition());
            expected.opens = all.iter().filter(is_left).copied().collect();
        }
        all
    }

    /// The same of partitions that a session follows now.
    pub fn opens_to_follow(&self, session: SessionId, partitions: &[PartitionId]) -> BTreeSet<InodeId> {
        let mut state = self.state.lock();
        let Some(expected) = state.expected.get_mut(&session) else { return BTreeSet::new() };
        let opens = std::mem::take(&mut expected.opens).into_iter();
        let (taken, left) = opens.partition(|ino| partitions.contains(&ino.partition()));
        expected.opens = left;
        taken
    }

    /// Whether a session is coming back at this moment.
    pub fn is_arriving(&self, session: SessionId) -> bool {
        self.is_on() && self.state.lock().expected.get(&session).is_some_and(|one| one.arriving > 0)
    }

    /// A session has done something of what is expected of it; true if it was the last one, and the
    /// grace is over.
    fn note(&self, session: SessionId, done: impl FnOnce(&mut Expected)) -> bool {
        if !self.is_on() {
            return false;
        }
        let mut state = self.state.lock();
        if let Some(expected) = state.expected.get_mut(&session) {
            done(expected);
            if !expected.registers && expected.follows.is_empty() {
                state.expected.remove(&session);
            }
        }
        let is_over = state.expected.is_empty() && !state.is_ending;
        if is_over {
            self.end();
        }
        is_over
    }

    /// To be called with the state held, so that a grace that begins meanwhile isn't ended.
    fn end(&self) {
        self.is_on.store(false, Ordering::Release);
        self.over.set();
    }

    /// Nobody has to follow a partition any more that has gone on to another service; true if the
    /// grace is over by that.
    fn forget_partition(&self, partition: PartitionId) -> bool {
        if !self.is_on() {
            return false;
        }
        let mut state = self.state.lock();
        state.expected.retain(|_, expected| {
            expected.follows.remove(&partition);
            expected.registers || !expected.follows.is_empty()
        });
        let is_over = state.expected.is_empty() && !state.is_ending;
        if is_over {
            self.end();
        }
        is_over
    }

    /// The time that sessions still have. To be asked every [`GRACE_LOOK`]: when it wasn't, this
    /// service stood still, and what was said to it meanwhile is still to be heard.
    fn remaining(&self) -> Duration {
        let mut state = self.state.lock();
        let now_ns = rt::monotonic_ns();
        let since = Duration::from_nanos(now_ns.saturating_sub(state.looked_ns));
        state.looked_ns = now_ns;
        if since > GRACE_LOOK + STANDSTILL && !state.is_ending {
            state.until_ns = now_ns + GRACE_TIME.as_nanos() as u64;
        }
        Duration::from_nanos(state.until_ns.saturating_sub(now_ns))
    }

    /// Nobody could come back: the time begins anew.
    fn begin_anew(&self) {
        self.state.lock().until_ns = rt::monotonic_ns() + GRACE_TIME.as_nanos() as u64;
    }

    /// The sessions that have not come back in time, for who ends them. `None` when somebody does
    /// already, there is time left, or all are coming.
    fn late(&self) -> Option<BTreeSet<SessionId>> {
        let mut state = self.state.lock();
        if state.is_ending || rt::monotonic_ns() < state.until_ns {
            return None;
        }
        let absent = state.expected.iter().filter(|(_, expected)| expected.arriving == 0);
        let late: BTreeSet<SessionId> = absent.map(|(session, _)| *session).collect();
        state.is_ending = !late.is_empty();
        state.is_ending.then_some(late)
    }

    /// They are ended; true if nobody else is expected, and the grace is over.
    fn ended(&self, late: &BTreeSet<SessionId>) -> bool {
        let mut state = self.state.lock();
        state.is_ending = false;
        state.expected.retain(|session, _| !late.contains(session));
        let is_over = state.expected.is_empty();
        if is_over {
            self.end();
        }
        is_over
    }
}

impl MetaService {
    /// Expects all sessions of which the store knows to say what they have open: those that are not
    /// known here by registering, all of them by following these partitions.
    pub(crate) async fn expect_sessions(&self, follow: &[PartitionId]) -> Result<BTreeSet<SessionId>> {
        let (living, ended) = stored_sessions(&self.executors.store).await?;
        ended.into_iter().for_each(|id| self.has_ended(id));
        self.grace.begin(living.clone(), |id| self.sessions.is_remote(id), follow);
        Ok(living)
    }

    /// A session has registered.
    pub(crate) fn session_returned(&self, id: SessionId) {
        if self.grace.note(id, |expected| expected.registers = false) {
            self.open_closed();
        }
        self.drop_sizes(id);
    }

    /// A session has followed partitions.
    pub(crate) fn session_followed(&self, id: SessionId, partitions: &[PartitionId]) {
        if self.grace.note(id, |expected| expected.follows.retain(|followed| !partitions.contains(followed)))
        {
            self.open_closed();
        }
        self.drop_sizes(id);
    }

    /// A partition has gone on to another service, before all sessions had followed to this one.
    pub(crate) fn forget_follows(&self, partition: PartitionId) {
        if self.grace.forget_partition(partition) {
            self.open_closed();
        }
    }

    /// A session is gone for good.
    pub(crate) fn session_gone(&self, id: SessionId) {
        if self.grace.note(id, |expected| *expected = Expected::default()) {
            self.open_closed();
        }
        self.drop_sizes(id);
    }

    /// Waits until all sessions of before are back or ended.
    pub(crate) async fn wait_for_grace(&self) {
        while self.grace.is_on() {
            if !self.may_end_sessions() {
                self.grace.begin_anew();
            }
            let remaining = self.grace.remaining();
            if remaining.is_zero() {
                self.end_grace();
            }
            let time = if remaining.is_zero() { GRACE_LOOK } else { remaining.min(GRACE_LOOK) };
            within(time, self.grace.over.wait()).await;
        }
    }

    /// Begins to end the sessions that didn't come back.
    fn end_grace(&self) {
        let Some(myself) = self.myself.upgrade() else { return };
        // Of partitions that were taken from this service meanwhile nobody is late.
        self.all_partitions().filter(|p| !self.is_owned(*p)).for_each(|p| self.forget_follows(p));
        if let Some(late) = self.grace.late() {
            rt::spawn(async move { myself.carry_out_end_of_grace(late).await });
        }
    }

    async fn carry_out_end_of_grace(self: Arc<Self>, late: BTreeSet<SessionId>) {
        // Still expected until they are ended: none comes back in between.
        late.iter().for_each(|id| self.sessions.refuse(*id));
        for &id in &late {
            self.clone()
                .carry_out_eviction(id, "it didn't come back after a start or a move of partitions")
                .await;
        }
        if self.grace.ended(&late) {
            self.open_closed();
        }
    }

    /// Sees to what had to wait for the end of the grace of a start.
    pub(crate) async fn tidy_after_grace(self: Arc<Self>) {
        if self.neighbours.is_some() || !self.grace.was_needed() {
            return;
        }
        self.wait_for_grace().await;
        self.reclaim_unknown(&self.owned()).await;
    }

    /// Deletes what sessions had open without a name that didn't come back.
    pub(crate) async fn reclaim_unknown(&self, partitions: &[PartitionId]) {
        let is_unknown = |session| self.sessions.find(session).is_none();
        if let Err(error) = self.reclaim_all_orphans(partitions, is_unknown).await {
            tracing::warn!(%error, "files without a name stay until the next start");
        }
    }
}

/// Sessions of other processes of which the store knows: those that may come back, and those that
/// were ended for good.
pub(crate) async fn stored_sessions(store: &Store) -> Result<(BTreeSet<SessionId>, BTreeSet<SessionId>)> {
    let range = keys::all_sessions();
    let (mut living, mut ended) = (BTreeSet::new(), BTreeSet::new());
    let stored = store.scan(&range.from, &range.to, usize::MAX).await;
    for (key, value) in stored.map_err(|error| store_error(&error))? {
        let Some(Key::Session(id)) = decode_key(&key) else { continue };
        let record = StoredSession::decode(value).map_err(|cause| {
            Error::new(Errno::EIO, format!("the record of session {id} is damaged: {cause}"))
        })?;
        let list = if record.is_ended() { &mut ended } else { &mut living };
        list.insert(id);
    }
    Ok((living, ended))
}
