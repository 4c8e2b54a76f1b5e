//! Advisory locks: the table of `namespace`, and the futures that wait for them.

use crate::session::registration::Registration;
use namespace::locks::{Holder, LockOutcome, LockRequest, LockTable, OnConflict, WaitId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use types::{Errno, Error, InodeId, PartitionId, Result, SessionId};
use wire::{HeldLock, LockKind, LockRange};

/// All advisory locks of the service. A restart discards them; sessions that return reclaim them.
#[derive(Default)]
pub(crate) struct Locks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    table: LockTable,
    /// Waits whose futures have not noticed their end; bounded by the table.
    waits: BTreeMap<WaitId, Wait>,
}

enum Wait {
    Waiting(Option<Waker>),
    Granted,
    Cancelled,
}

impl Locks {
    /// Acquires a lock, and waits for it if requested. Dropping the future ends the wait.
    ///
    /// Errors: `EAGAIN`, `EDEADLK`, `ENOLCK`, `EINVAL`; `ECANCELED` when the session ends.
    pub async fn lock(&self, request: LockRequest, on_conflict: OnConflict) -> Result<()> {
        let wait = {
            let mut state = self.state.lock();
            let outcome = state.table.lock(&request, on_conflict);
            state.end(outcome.granted, || Wait::Granted);
            match outcome.outcome {
                LockOutcome::Granted => return Ok(()),
                LockOutcome::WouldBlock => return Err(Errno::EAGAIN.into()),
                LockOutcome::Deadlock => return Err(Errno::EDEADLK.into()),
                LockOutcome::Refused(errno) => return Err(errno.into()),
                LockOutcome::Waiting(wait) => {
                    state.waits.insert(wait, Wait::Waiting(None));
                    wait
                }
            }
        };
        LockWait { locks: self, wait, request }.await
    }

    /// Reclaims locks of a session; returns how many of them failed.
    fn reclaim(&self, session: SessionId, locks: &[HeldLock]) -> usize {
        let mut state = self.state.lock();
        let mut lost = 0;
        for &HeldLock { ino, family, owner, pid, kind, range } in locks {
            let request = LockRequest { ino, holder: Holder { session, family, owner }, pid, kind, range };
            let outcome = state.table.lock(&request, OnConflict::Refuse);
            state.end(outcome.granted, || Wait::Granted);
            lost += usize::from(outcome.outcome != LockOutcome::Granted);
        }
        lost
    }

    /// Releases the holder's locks on a range.
    pub fn unlock(&self, ino: InodeId, holder: Holder, range: LockRange) -> Result<()> {
        let mut state = self.state.lock();
        let granted = state.table.unlock(ino, holder, range)?;
        state.end(granted, || Wait::Granted);
        Ok(())
    }

    /// The first conflicting lock.
    pub fn test(&self, request: &LockRequest) -> Option<(LockKind, LockRange, u32)> {
        self.state.lock().table.test(request)
    }

    /// Releases all locks of a session, and ends its waits.
    pub fn release_session(&self, session: SessionId) {
        let mut state = self.state.lock();
        let released = state.table.release_session(session);
        state.end(released.granted, || Wait::Granted);
        state.end(released.cancelled, || Wait::Cancelled);
    }
}

impl Locks {
    /// Discards the locks of a partition that another service owns now, and cancels their waits.
    pub fn forget_partition(&self, partition: PartitionId) {
        let mut state = self.state.lock();
        let cancelled = state.table.forget_partition(partition);
        state.end(cancelled, || Wait::Cancelled);
    }
}

impl Registration {
    /// Reclaims the locks that a session held before a start.
    ///
    /// # Errors
    /// `ENOLCK` for a session without a record, `ESTALE` for an evicted one; `EAGAIN` if other
    /// sessions hold conflicting locks.
    pub async fn reclaim_locks(&self, id: SessionId, locks: &[HeldLock]) -> Result<()> {
        self.sessions.check_id(id)?;
        if !self.grace.is_expected(id) {
            if !self.sessions.is_remote(id) {
                return self.check_session_record(id).await;
            }
            // The session has registered already and retransmits the request, since the answer was
            // lost. Other returning sessions take precedence.
            self.eviction.wait_for_grace().await;
        }
        match self.locks.reclaim(id, locks) {
            0 => Ok(()),
            lost => {
                let message = format!("{lost} locks of session {id} conflict with locks of other sessions");
                Err(Error::new(Errno::EAGAIN, message))
            }
        }
    }

    /// Handles lock reclaim of a session that this service doesn't know. A session with a record is
    /// notified when partitions are adopted, as after the death of all services, and reclaims its
    /// locks there then: no other session gets access before.
    async fn check_session_record(&self, id: SessionId) -> Result<()> {
        if self.records.find(id).await?.is_some_and(|record| !record.is_ended()) {
            return Ok(());
        }
        let message = format!("session {id} is unknown: its locks are lost");
        Err(Error::new(Errno::ENOLCK, message).hint("close the files that were locked, and lock them again"))
    }
}

impl State {
    /// Ends waits. Wakers only queue their task, so they may be called under the mutex.
    fn end(&mut self, waits: Vec<WaitId>, how: impl Fn() -> Wait) {
        for wait in waits {
            if let Some(Wait::Waiting(Some(waker))) = self.waits.insert(wait, how()) {
                waker.wake();
            }
        }
    }
}

struct LockWait<'a> {
    locks: &'a Locks,
    wait: WaitId,
    request: LockRequest,
}

impl Future for LockWait<'_> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut state = self.locks.state.lock();
        match state.waits.get_mut(&self.wait) {
            Some(Wait::Waiting(waker)) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Some(Wait::Granted) => {
                state.waits.remove(&self.wait);
                Poll::Ready(Ok(()))
            }
            Some(Wait::Cancelled) | None => {
                state.waits.remove(&self.wait);
                Poll::Ready(Err(Errno::ECANCELED.into()))
            }
        }
    }
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        match state.waits.remove(&self.wait) {
            Some(Wait::Waiting(_)) => {
                state.table.cancel(self.wait);
            }
            // Granted, but the future was dropped. At the limit of locks the range can't be
            // released, and ends with its session.
            Some(Wait::Granted) => {
                let LockRequest { ino, holder, range, .. } = self.request;
                let granted = state.table.unlock(ino, holder, range).unwrap_or_default();
                state.end(granted, || Wait::Granted);
            }
            Some(Wait::Cancelled) | None => {}
        }
    }
}
