//! The grace period after a start, and after partitions were adopted: sessions reclaim their state.
//!
//! A service that adopts a partition doesn't know which leases were granted and which files are
//! open there. So nothing in the adopted partition is read or changed until each session has
//! dropped its cache and reported its open files, or has been evicted. After a start, sessions
//! report by registering; for partitions of another service, by a `Follow` request.

use crate::data::quarantine::Quarantine;
use crate::data::reported_sizes::ReportedSizes;
use crate::limits::{GRACE_PERIOD, GRACE_POLL, OPENS_PER_SESSION, PAUSE_THRESHOLD};
use crate::partition::executor::{Executors, PartitionState};
use crate::session::eviction::Eviction;
use crate::session::records::StoredSessions;
use crate::session::table::Sessions;
use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{InodeId, PartitionId, Result, SessionId};

/// State of the grace period.
#[derive(Default)]
pub(crate) struct GracePeriod {
    state: Mutex<State>,
    is_on: AtomicBool,
    over: Event,
}

#[derive(Default)]
struct State {
    /// Sessions that may return.
    expected: BTreeMap<SessionId, ExpectedReturn>,
    until_ns: u64,
    /// When the remaining time was last checked.
    checked_ns: u64,
    /// A task is ending the grace period.
    is_ending: bool,
    was_needed: bool,
}

/// What a session has to do before it counts as returned.
#[derive(Default)]
struct ExpectedReturn {
    must_register: bool,
    /// Partitions whose state it has to reclaim.
    to_reclaim: BTreeSet<PartitionId>,
    /// Inodes that it has reported as open, until it registers or reclaims: at most
    /// [`OPENS_PER_SESSION`].
    opens: BTreeSet<InodeId>,
    /// The session has been asked to register or reclaim.
    reclaim_requested: bool,
    /// Its registrations and reclaims under way. Size recovery runs meanwhile, and takes as long as
    /// the storage services need.
    returning: usize,
}

/// A registration or reclaim is under way, until this is dropped.
pub(crate) struct ReturnGuard<'a> {
    grace: &'a GracePeriod,
    session: SessionId,
}

impl Drop for ReturnGuard<'_> {
    fn drop(&mut self) {
        if let Some(expected) = self.grace.state.lock().expected.get_mut(&self.session) {
            expected.returning = expected.returning.saturating_sub(1);
        }
    }
}

impl GracePeriod {
    /// Begins the grace period for these sessions: [`GRACE_PERIOD`] from now on.
    fn begin(
        &self,
        sessions: BTreeSet<SessionId>,
        is_known: impl Fn(SessionId) -> bool,
        to_reclaim: &[PartitionId],
    ) {
        let mut state = self.state.lock();
        for session in sessions {
            let must_register = !is_known(session);
            if must_register || !to_reclaim.is_empty() {
                let expected = state.expected.entry(session).or_default();
                expected.must_register |= must_register;
                expected.to_reclaim.extend(to_reclaim);
                // It has to be asked again for the new partitions.
                expected.reclaim_requested = false;
            }
        }
        if state.expected.is_empty() {
            return;
        }
        let now_ns = rt::monotonic_ns();
        (state.until_ns, state.checked_ns) = (now_ns + GRACE_PERIOD.as_nanos() as u64, now_ns);
        self.over.clear();
        state.was_needed = true;
        self.is_on.store(true, Ordering::Release);
    }

    /// Whether there were sessions that might return.
    pub fn was_needed(&self) -> bool {
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
        self.is_on()
            && self.state.lock().expected.get(&session).is_some_and(|expected| expected.must_register)
    }

    /// The partitions that a session still has to reclaim.
    pub fn partitions_to_reclaim(&self, session: SessionId) -> Vec<PartitionId> {
        if !self.is_on() {
            return Vec::new();
        }
        let state = self.state.lock();
        let to_reclaim = state.expected.get(&session).map(|expected| expected.to_reclaim.iter().copied());
        to_reclaim.into_iter().flatten().collect()
    }

    /// Notes that a session is about to be asked to register or reclaim. The first time, the grace
    /// period starts again, however long it took until the session and the service could
    /// communicate.
    pub fn note_reclaim_requested(&self, session: SessionId) {
        if !self.is_on() {
            return;
        }
        let mut state = self.state.lock();
        let is_first =
            |expected: &mut ExpectedReturn| !std::mem::replace(&mut expected.reclaim_requested, true);
        if !state.is_ending && state.expected.get_mut(&session).is_some_and(is_first) {
            state.until_ns = rt::monotonic_ns() + GRACE_PERIOD.as_nanos() as u64;
        }
    }

    /// Notes that a registration or reclaim has begun. The session isn't late before that ends.
    pub fn begin_return(&self, session: SessionId) -> Option<ReturnGuard<'_>> {
        if !self.is_on() {
            return None;
        }
        let mut state = self.state.lock();
        state.expected.get_mut(&session)?.returning += 1;
        Some(ReturnGuard { grace: self, session })
    }

    /// Records a part of an expected session's open files. Returns how many inodes were left out
    /// because the session has too many; `None` if the session isn't expected.
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

    /// Returns the open files that a session reported before its registration. Those in partitions
    /// that it still has to reclaim are kept for that, too.
    pub fn take_opens(&self, session: SessionId) -> BTreeSet<InodeId> {
        let mut state = self.state.lock();
        let Some(expected) = state.expected.get_mut(&session) else { return BTreeSet::new() };
        let all = std::mem::take(&mut expected.opens);
        if !expected.to_reclaim.is_empty() {
            let is_left = |ino: &&InodeId| expected.to_reclaim.contains(&ino.partition());
            expected.opens = all.iter().filter(is_left).copied().collect();
        }
        all
    }

    /// Returns the reported open files in partitions that a session reclaims now.
    pub fn take_opens_of(&self, session: SessionId, partitions: &[PartitionId]) -> BTreeSet<InodeId> {
        let mut state = self.state.lock();
        let Some(expected) = state.expected.get_mut(&session) else { return BTreeSet::new() };
        let opens = std::mem::take(&mut expected.opens).into_iter();
        let (taken, left) = opens.partition(|ino| partitions.contains(&ino.partition()));
        expected.opens = left;
        taken
    }

    /// Whether a session's registration or reclaim is under way.
    pub fn is_returning(&self, session: SessionId) -> bool {
        self.is_on() && self.state.lock().expected.get(&session).is_some_and(|one| one.returning > 0)
    }

    /// Records a step of a session's return. Returns true if it was the last one that was expected,
    /// and the grace period is over.
    fn complete_step(&self, session: SessionId, done: impl FnOnce(&mut ExpectedReturn)) -> bool {
        if !self.is_on() {
            return false;
        }
        let mut state = self.state.lock();
        if let Some(expected) = state.expected.get_mut(&session) {
            done(expected);
            if !expected.must_register && expected.to_reclaim.is_empty() {
                state.expected.remove(&session);
            }
        }
        let is_over = state.expected.is_empty() && !state.is_ending;
        if is_over {
            self.end();
        }
        is_over
    }

    /// Call it with the state locked, so that it doesn't end a grace period that begins meanwhile.
    fn end(&self) {
        self.is_on.store(false, Ordering::Release);
        self.over.set();
    }

    /// Drops pending reclaims of a partition that another service owns now. Returns true if the
    /// grace period is over by that.
    fn forget_partition(&self, partition: PartitionId) -> bool {
        if !self.is_on() {
            return false;
        }
        let mut state = self.state.lock();
        state.expected.retain(|_, expected| {
            expected.to_reclaim.remove(&partition);
            expected.must_register || !expected.to_reclaim.is_empty()
        });
        let is_over = state.expected.is_empty() && !state.is_ending;
        if is_over {
            self.end();
        }
        is_over
    }

    /// The remaining time. Call it every [`GRACE_POLL`]: a longer gap means that this service was
    /// paused, and messages that arrived meanwhile are still to be read.
    fn remaining(&self) -> Duration {
        let mut state = self.state.lock();
        let now_ns = rt::monotonic_ns();
        let since = Duration::from_nanos(now_ns.saturating_sub(state.checked_ns));
        state.checked_ns = now_ns;
        if since > GRACE_POLL + PAUSE_THRESHOLD && !state.is_ending {
            state.until_ns = now_ns + GRACE_PERIOD.as_nanos() as u64;
        }
        Duration::from_nanos(state.until_ns.saturating_sub(now_ns))
    }

    /// Restarts the grace period: no session could reach this service.
    fn restart(&self) {
        self.state.lock().until_ns = rt::monotonic_ns() + GRACE_PERIOD.as_nanos() as u64;
    }

    /// The sessions that have not returned in time, for the caller to evict. `None` if another task
    /// does so already, time is left, or all are returning.
    fn take_late_sessions(&self) -> Option<BTreeSet<SessionId>> {
        let mut state = self.state.lock();
        if state.is_ending || rt::monotonic_ns() < state.until_ns {
            return None;
        }
        let absent = state.expected.iter().filter(|(_, expected)| expected.returning == 0);
        let late: BTreeSet<SessionId> = absent.map(|(session, _)| *session).collect();
        state.is_ending = !late.is_empty();
        state.is_ending.then_some(late)
    }

    /// Notes that the late sessions are evicted. Returns true if no other session is expected, and
    /// the grace period is over.
    fn late_sessions_evicted(&self, late: &BTreeSet<SessionId>) -> bool {
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

/// What happens when sessions have returned.
pub(crate) struct SessionReturns {
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub grace: Arc<GracePeriod>,
    pub quarantine: Arc<Quarantine>,
    pub reported_sizes: Arc<ReportedSizes>,
    /// Whether other services share the partitions.
    pub shares_partitions: bool,
}

impl SessionReturns {
    /// Handles the end of a registration.
    pub fn session_returned(&self, id: SessionId) {
        if self.grace.complete_step(id, |expected| expected.must_register = false) {
            self.open_after_grace();
        }
        self.drop_reported_sizes(id);
    }

    /// Handles the end of a session's reclaim of partitions.
    pub fn session_reclaimed(&self, id: SessionId, partitions: &[PartitionId]) {
        if self.grace.complete_step(id, |expected| {
            expected.to_reclaim.retain(|followed| !partitions.contains(followed))
        }) {
            self.open_after_grace();
        }
        self.drop_reported_sizes(id);
    }

    /// Drops pending reclaims of a partition that has moved to another service before all sessions
    /// had reclaimed their state here.
    pub fn drop_pending_reclaims(&self, partition: PartitionId) {
        if self.grace.forget_partition(partition) {
            self.open_after_grace();
        }
    }

    /// Handles the final end of a session.
    pub fn session_ended(&self, id: SessionId) {
        if self.grace.complete_step(id, |expected| *expected = ExpectedReturn::default()) {
            self.open_after_grace();
        }
        self.drop_reported_sizes(id);
    }

    /// Opens the partitions that waited for the end of the grace period.
    pub fn open_after_grace(&self) {
        if self.grace.is_on() {
            // Another grace period has begun.
            return;
        }
        for partition in self.executors.all() {
            let Ok(mut executor) = self.executors.lock(partition) else { continue };
            if executor.state == PartitionState::Reclaiming {
                executor.set_state(PartitionState::Serving);
            }
        }
    }
}

impl Eviction {
    /// Expects all sessions in the store to reclaim their state: those that are unknown here by
    /// registering, all of them by reclaiming these partitions.
    pub async fn expect_sessions(
        self: &Arc<Self>,
        to_reclaim: &[PartitionId],
    ) -> Result<BTreeSet<SessionId>> {
        let StoredSessions { live, ended } = self.records.all().await?;
        ended.into_iter().for_each(|id| self.handle_end_elsewhere(id));
        self.grace.begin(live.clone(), |id| self.sessions.is_remote(id), to_reclaim);
        Ok(live)
    }

    /// Waits until all expected sessions have returned or are evicted.
    pub async fn wait_for_grace(self: &Arc<Self>) {
        while self.grace.is_on() {
            if !self.serving.may_evict() {
                self.grace.restart();
            }
            let remaining = self.grace.remaining();
            if remaining.is_zero() {
                self.end_grace();
            }
            let time = if remaining.is_zero() { GRACE_POLL } else { remaining.min(GRACE_POLL) };
            rt::timeout(time, self.grace.over.wait()).await;
        }
    }

    /// Starts the eviction of the sessions that didn't return.
    fn end_grace(self: &Arc<Self>) {
        let myself = self.clone();
        // No session is late for partitions that were taken from this service meanwhile.
        self.executors
            .all()
            .filter(|p| !self.executors.is_owned(*p))
            .for_each(|p| self.returns.drop_pending_reclaims(p));
        if let Some(late) = self.grace.take_late_sessions() {
            rt::spawn(async move { myself.evict_late(late).await });
        }
    }

    async fn evict_late(self: Arc<Self>, late: BTreeSet<SessionId>) {
        // They stay expected until they are evicted: none may return in between.
        late.iter().for_each(|id| self.sessions.mark_evicted(*id));
        for &id in &late {
            self.clone().run_eviction(id, "it did not reclaim its state within the grace period").await;
        }
        if self.grace.late_sessions_evicted(&late) {
            self.returns.open_after_grace();
        }
    }
}
