//! Advisory locks.

use crate::services::Service;
use crate::{Cancel, Client, unexpected};
use types::{Errno, InodeId, Result};
use wire::{HeldLock, LockKind, LockOwner, LockRange, LockSpace, MetaOp, MetaReply};

/// Locks that one request tells a service of: some 200 KiB.
const LOCKS_PER_REQUEST: usize = 4096;

impl Client {
    /// Takes a lock. Without `wait` a lock in the way is `EAGAIN`; with it, `cancel` ends the wait with `EINTR`.
    #[allow(clippy::too_many_arguments, reason = "the fields of one lock request")]
    pub async fn lock(
        &self,
        ino: InodeId,
        space: LockSpace,
        owner: LockOwner,
        pid: u32,
        kind: LockKind,
        range: LockRange,
        wait: bool,
        cancel: &Cancel,
    ) -> Result<()> {
        let lock = HeldLock { ino, space, owner, pid, kind, range };
        loop {
            let listing = self.held_locks.asking(&lock);
            let asked = self.ask(MetaOp::Lock { ino, space, owner, pid, kind, range, wait });
            match cancel.guard(asked).await {
                // In one process they end together, and nothing is ever told.
                Ok(_) if self.leases.is_alone() || self.held_locks.granted(listing, &lock) => return Ok(()),
                // By a service that has ended since.
                Ok(_) => {}
                Err(error) => {
                    if error.errno == Errno::EINTR {
                        self.take_back(&lock).await;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Gives a range back.
    pub async fn unlock(
        &self,
        ino: InodeId,
        space: LockSpace,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<()> {
        // Before it is sent: a service that was told of the lock was started before, and it is the one that gets this.
        self.held_locks.give_up((ino, space, owner), range);
        self.ask(MetaOp::Unlock { ino, space, owner, range }).await.map(drop)
    }

    /// The first lock in the way, with its holder's process.
    pub async fn test_lock(
        &self,
        ino: InodeId,
        owner: LockOwner,
        kind: LockKind,
        range: LockRange,
    ) -> Result<Option<(LockKind, LockRange, u32)>> {
        match self.ask(MetaOp::TestLock { ino, owner, kind, range }).await?.reply {
            MetaReply::Lock(found) => Ok(found),
            other => Err(unexpected(other)),
        }
    }

    /// A wait was interrupted. The lock may have been granted while its answer was on the way, so what the range was before is asked for.
    /// Before the program goes on: it may want the same range again.
    async fn take_back(&self, lock: &HeldLock) {
        if self.leases.is_alone() {
            // In the same process a wait that is dropped is over.
            return;
        }
        let &HeldLock { ino, space, owner, pid, range, .. } = lock;
        let (kept, free) = self.held_locks.within((ino, space, owner), range);
        for range in free {
            if let Err(error) = self.ask(MetaOp::Unlock { ino, space, owner, range }).await {
                tracing::warn!(%ino, %error, "a lock that was not waited for may stay until the file is closed");
                return;
            }
        }
        for (kind, range) in kept {
            let lock = MetaOp::Lock { ino, space, owner, pid, kind, range, wait: false };
            if let Err(error) = self.ask(lock).await {
                tracing::warn!(%ino, %error, "a lock may be stronger than it was asked for until the file is closed");
            }
        }
    }

    /// Tells a service which locks this session holds on inodes that have come to it: it was started anew, or executes their partitions from now on.
    ///
    /// Errors: the transport's, and `ESTALE` when the session has been ended. Locks that somebody else holds are lost, which is logged.
    pub(crate) async fn reclaim_locks(
        &self,
        service: &Service,
        concerned: impl Fn(InodeId) -> bool,
    ) -> Result<()> {
        let locks = self.held_locks.list().into_iter().filter(|lock| concerned(lock.ino));
        for some in locks.collect::<Vec<_>>().chunks(LOCKS_PER_REQUEST) {
            match self.ask_at(service, MetaOp::ReclaimLocks { locks: some.to_vec() }).await {
                Err(error) if matches!(error.errno, Errno::EAGAIN | Errno::ENOLCK) => {
                    tracing::error!(%error, "advisory locks of programs on this mount are lost");
                }
                told => _ = told?,
            }
        }
        Ok(())
    }
}
