//! Advisory locks.

use crate::{Cancel, Client, unexpected};
use types::{InodeId, Result};
use wire::{LockKind, LockOwner, LockRange, LockSpace, MetaOp, MetaReply};

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
        let asked = self.ask(MetaOp::Lock { ino, space, owner, pid, kind, range, wait });
        cancel.guard(asked).await.map(drop)
    }

    /// Gives a range back.
    pub async fn unlock(
        &self,
        ino: InodeId,
        space: LockSpace,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<()> {
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
}
