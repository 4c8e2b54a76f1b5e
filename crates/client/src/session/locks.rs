//! Advisory locks.

use crate::session::Session;
use crate::session::lease_holder::Concerned;
use crate::session::recall::RETRY_PAUSE;
use crate::session::services::Service;
use crate::{Cancel, unexpected};
use parking_lot::Mutex;
use rt::sync::Event;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use types::{Errno, HashMap, InodeId, Result};
use wire::{HeldLock, LockFamily, LockKind, LockOwner, LockRange, MetaOp, MetaReply};

/// Maximum number of locks in one reclaim request: some 200 KiB.
const LOCKS_PER_REQUEST: usize = 4096;

/// Releases that are to be repeated, by holder: the service may hold more locks than this session
/// has recorded.
pub(crate) type PendingReleases = Mutex<HashMap<(InodeId, LockFamily, LockOwner), Vec<Arc<Event>>>>;

impl Session {
    /// Takes a lock, as [`crate::Client::lock`] describes. `lost` is set when the lock is lost.
    pub(crate) async fn lock(
        &self,
        lost: Option<&Arc<AtomicBool>>,
        lock: HeldLock,
        wait: bool,
        cancel: &Cancel,
    ) -> Result<()> {
        let HeldLock { ino, family, owner, pid, kind, range } = lock;
        self.wait_for_releases(&lock).await?;
        loop {
            let listing = self.held_locks.begin_request(&lock);
            let request = self.query(MetaOp::Lock { ino, family, owner, pid, kind, range, wait });
            match cancel.guard(request).await {
                // In one process, client and service end together, and there is no lock reclaim.
                Ok(_)
                    if self.leases.is_only_session()
                        || self.held_locks.record_grant(listing, &lock, lost) =>
                {
                    return Ok(());
                }
                // Granted by a service that has ended since.
                Ok(_) => {}
                Err(error) => {
                    match error.errno {
                        Errno::EINTR => self.restore_after_interrupt(&lock).await,
                        // The service may have granted it, or may still grant it.
                        Errno::ETIMEDOUT => self.release_later(lock),
                        _ => {}
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Releases a range.
    pub(crate) async fn unlock(
        &self,
        ino: InodeId,
        family: LockFamily,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<()> {
        // Before the request is sent: a service that got the lock by a reclaim was started before,
        // and gets this request.
        self.held_locks.remove((ino, family, owner), range);
        let released = self.query(MetaOp::Unlock { ino, family, owner, range }).await.map(drop);
        if released.as_ref().is_err_and(|error| error.errno == Errno::ETIMEDOUT) {
            self.release_later(HeldLock { ino, family, owner, pid: 0, kind: LockKind::Shared, range });
        }
        released
    }

    /// Returns the first conflicting lock, with the process id of its holder.
    pub(crate) async fn test_lock(
        &self,
        ino: InodeId,
        owner: LockOwner,
        kind: LockKind,
        range: LockRange,
    ) -> Result<Option<(LockKind, LockRange, u32)>> {
        match self.query(MetaOp::TestLock { ino, owner, kind, range }).await?.reply {
            MetaReply::Lock(found) => Ok(found),
            other => Err(unexpected(other)),
        }
    }

    /// Restores the range after an interrupted wait: the lock may have been granted, and its answer
    /// lost. Completes before the application continues, which may lock the same range again.
    async fn restore_after_interrupt(&self, lock: &HeldLock) {
        if self.leases.is_only_session() {
            // In the same process, a dropped wait has ended.
            return;
        }
        if let Err(error) = self.restore(lock).await {
            tracing::warn!(ino = %lock.ino, %error, "a lock whose wait was interrupted is released later");
            self.release_later(*lock);
        }
    }

    /// Sets a range at the service to what this session has recorded.
    async fn restore(&self, lock: &HeldLock) -> Result<()> {
        let &HeldLock { ino, family, owner, pid, range, .. } = lock;
        let (locks, free) = self.held_locks.locks_within((ino, family, owner), range);
        for range in free {
            self.query(MetaOp::Unlock { ino, family, owner, range }).await?;
        }
        for (kind, range) in locks {
            self.query(MetaOp::Lock { ino, family, owner, pid, kind, range, wait: false }).await?;
        }
        Ok(())
    }

    /// Does that once the service answers again, so that no other owner waits for a lock that its
    /// holder doesn't know of.
    fn release_later(&self, lock: HeldLock) {
        let Some(session) = self.weak_self.upgrade().filter(|_| !self.leases.is_only_session()) else {
            return;
        };
        let (holder, done) = ((lock.ino, lock.family, lock.owner), Arc::new(Event::new()));
        self.pending_releases.lock().entry(holder).or_default().push(done.clone());
        rt::spawn(async move {
            while session.end_cause().is_none() && session.restore(&lock).await.is_err() {
                rt::sleep(RETRY_PAUSE).await;
            }
            let mut pending_by_holder = session.pending_releases.lock();
            if let Some(pending) = pending_by_holder.get_mut(&holder) {
                pending.retain(|other| !Arc::ptr_eq(other, &done));
                if pending.is_empty() {
                    pending_by_holder.remove(&holder);
                }
            }
            done.set();
        });
    }

    /// Waits until the holder's earlier releases are complete: they would also release what it
    /// locks now.
    async fn wait_for_releases(&self, lock: &HeldLock) -> Result<()> {
        let pending = self.pending_releases.lock().get(&(lock.ino, lock.family, lock.owner)).cloned();
        for done in pending.unwrap_or_default() {
            self.request_timeout.bound((lock.ino, "the release of a lock"), done.wait()).await?;
        }
        Ok(())
    }

    /// Reclaims this session's locks at a service that has restarted, or has taken over the
    /// partitions of these inodes.
    ///
    /// Locks that another session holds by now are lost: the open files through which they were
    /// taken fail with `EIO` until they are closed.
    ///
    /// Errors: the transport's, and `ESTALE` when the session has ended.
    pub(super) async fn reclaim_locks(&self, service: &Service, concerned: Concerned<'_>) -> Result<()> {
        let locks = self.held_locks.list().into_iter().filter(|lock| concerned(lock.ino));
        for batch in locks.collect::<Vec<_>>().chunks(LOCKS_PER_REQUEST) {
            match self.query_service(service, MetaOp::ReclaimLocks { locks: batch.to_vec() }).await {
                // The service doesn't know the session any more: all its locks are lost.
                Err(error) if error.errno == Errno::ENOLCK => {
                    batch.iter().for_each(|lock| self.held_locks.handle_lost_lock(lock, &error));
                }
                Err(error) if error.errno == Errno::EAGAIN => {
                    Box::pin(self.reclaim_one_by_one(service, batch)).await?;
                }
                outcome => _ = outcome?,
            }
            // Locks that were released meanwhile may have been so before the service got the
            // reclaim.
            let is_held = |lock: &&HeldLock| {
                self.held_locks.locks_within((lock.ino, lock.family, lock.owner), lock.range).1.is_empty()
            };
            batch.iter().filter(|lock| !is_held(lock)).for_each(|lock| self.release_later(*lock));
        }
        Ok(())
    }

    /// Determines which of some locks are lost.
    async fn reclaim_one_by_one(&self, service: &Service, locks: &[HeldLock]) -> Result<()> {
        for lock in locks {
            match self.query_service(service, MetaOp::ReclaimLocks { locks: vec![*lock] }).await {
                Err(error) if error.errno == Errno::EAGAIN => self.held_locks.handle_lost_lock(lock, &error),
                outcome => _ = outcome?,
            }
        }
        Ok(())
    }
}
