//! The exclusive lease of the migrator.

use super::Drains;
use super::stripe_move::busy_error;
use crate::data::quarantine::Quarantine;
use crate::lease::recalls::RecallWaits;
use crate::lease::table::Leases;
use crate::limits::LEASE_TRIES;
use crate::partition::executor::{Abort, CommandOrigin, CommandOutput, Executors, TransactOutcome};
use crate::partition::serving::Serving;
use crate::session::table::{Session, Sessions};
use crate::store::transaction_view::{View, not_owner};
use namespace::leases::LeaseRequest;
use net::{Deadline, LocalFuture};
use std::sync::Arc;
use types::{InodeId, Result};
use wire::LeaseMode;

/// Exclusive access to an inode: until this is dropped, no session has a lease on it, and none can
/// read or change it.
pub(crate) struct ExclusiveLease<'a> {
    leases: &'a Leases,
    migrator: Arc<Session>,
    ino: InodeId,
}

impl Drop for ExclusiveLease<'_> {
    fn drop(&mut self) {
        // Recalls from waiting sessions: the release acknowledges them.
        self.migrator.recalls_after(u64::MAX);
        self.leases.release(self.migrator.id, self.ino.into(), u64::MAX);
    }
}

/// The mount in this process. It works without leases, so nothing can be recalled from it; it stops
/// using a file when it is asked.
pub trait LocalMount: Send + Sync {
    /// Runs `work` while the mount doesn't use the content of a file and has reported everything
    /// that it knew of it. If this fails, no part of `work` has run.
    fn while_suspended<'a>(&'a self, ino: InodeId, work: LocalFuture<'a, ()>) -> LocalFuture<'a, Result<()>>;
}

/// Grants the service itself exclusive access to inodes.
pub(crate) struct ExclusiveAccess {
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub leases: Arc<Leases>,
    pub recalls: Arc<RecallWaits>,
    pub quarantine: Arc<Quarantine>,
    pub drains: Arc<Drains>,
    pub serving: Arc<Serving>,
}

impl ExclusiveAccess {
    /// Runs `work`, including its [`ExclusiveAccess::acquire_exclusive_lease`], while a mount in
    /// this process doesn't use the file. The mount stops first, since it reports its state like
    /// any other session, and that would wait for the migrator's lease.
    pub async fn with_local_mount_suspended<T>(
        &self,
        ino: InodeId,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(mount) = self.drains.local_mount.get() else { return work.await };
        let mut outcome = Err(busy_error(ino));
        mount.while_suspended(ino, Box::pin(async { outcome = work.await })).await?;
        outcome
    }

    /// Recalls all leases on an inode, and acquires the exclusive one.
    pub async fn acquire_exclusive_lease<'a>(
        &'a self,
        migrator: &Arc<Session>,
        ino: InodeId,
    ) -> Result<ExclusiveLease<'a>> {
        for _ in 0..LEASE_TRIES {
            if self.serving.is_stopping() || self.quarantine.holder_of(ino).is_some() {
                break;
            }
            let command = |_: &View<'_>| {
                let mut due = Vec::new();
                let wish = (ino, LeaseRequest::Exclusive);
                let mode = self.leases.acquire(&self.sessions, migrator.lease_requester(), wish, &mut due);
                match due.is_empty() {
                    true => Ok(CommandOutput { answer: mode == Some(LeaseMode::Write), writes: Vec::new() }),
                    false => Err(Abort::Leases(due)),
                }
            };
            match self
                .executors
                .transact(
                    (CommandOrigin::Background, &Deadline::NEVER),
                    &[ino.partition()],
                    command,
                    |_, _| (),
                )
                .await?
            {
                TransactOutcome::Answered(true) => {
                    return Ok(ExclusiveLease { leases: &self.leases, migrator: migrator.clone(), ino });
                }
                TransactOutcome::Answered(false) => break,
                TransactOutcome::Leases(due) => self.recalls.wait_for_acknowledgements(due).await,
                TransactOutcome::CrossPartition(_) => return Err(not_owner(ino.partition())),
            }
        }
        Err(busy_error(ino))
    }
}
