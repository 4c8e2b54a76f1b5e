//! The lease of the mover.

use super::busy;
use crate::executor::{Change, Pass, Ran, Stop};
use crate::limits::LEASE_TRIES;
use crate::service::MetaService;
use crate::sessions::Session;
use crate::view::{View, not_owner};
use namespace::leases::Wish;
use net::LocalFuture;
use std::sync::Arc;
use types::{InodeId, Result, SessionId};
use wire::LeaseMode;

/// Nobody else relies on anything of an inode until this is dropped, and nothing of it is told or
/// changed.
pub(crate) struct Alone<'a> {
    service: &'a MetaService,
    mover: Arc<Session>,
    ino: InodeId,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // Recalls of those who wait: the release answers them.
        self.mover.recalls_after(u64::MAX);
        self.service.leases.release(self.mover.id, self.ino, u64::MAX);
    }
}

/// The mount in this process, which works without leases: nothing can be recalled from it, so it
/// makes way when it is asked.
pub trait LocalMount: Send + Sync {
    /// Carries `work` out while nothing of the mount uses the content of a file, and everything
    /// that it knew of it has been told. Nothing of it has been done where this fails.
    fn while_aside<'a>(&'a self, ino: InodeId, work: LocalFuture<'a, ()>) -> LocalFuture<'a, Result<()>>;
}

impl MetaService {
    /// Lets files be moved that the mount in this process uses. Only the first call counts.
    pub fn set_local_mount(&self, mount: Arc<dyn LocalMount>) {
        let _ = self.drains.local_mount.set(mount);
    }

    /// Carries out what needs a file alone, [`MetaService::hold_alone`] included: where a mount in
    /// this process makes way for it, in that time. The mount comes first, since it tells what it
    /// knows as any other session does, which waits for the mover's lease.
    pub(crate) async fn without_local_mount<T>(
        &self,
        ino: InodeId,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(mount) = self.drains.local_mount.get() else { return work.await };
        let mut outcome = Err(busy(ino));
        mount.while_aside(ino, Box::pin(async { outcome = work.await })).await?;
        outcome
    }

    /// Takes everything back that sessions have of an inode, and keeps it.
    pub(crate) async fn hold_alone<'a>(&'a self, mover: &Arc<Session>, ino: InodeId) -> Result<Alone<'a>> {
        for _ in 0..LEASE_TRIES {
            if self.stopping.is_set() || self.shut.keeper_of(ino).is_some() {
                break;
            }
            let command = |_: &View<'_>| {
                let mut due = Vec::new();
                let wish = (ino, Wish::Alone);
                let mode = self.leases.acquire(&self.sessions, mover.asker(), wish, &mut due);
                match due.is_empty() {
                    true => Ok(Change { answer: mode == Some(LeaseMode::Write), writes: Vec::new() }),
                    false => Err(Stop::Leases(due)),
                }
            };
            match self.executors.transact(Pass::Background, &[ino.partition()], command, |_, _| ()).await? {
                Ran::Answered(true) => return Ok(Alone { service: self, mover: mover.clone(), ino }),
                Ran::Answered(false) => break,
                Ran::Leases(due) => self.wait_for_answers(due).await,
                Ran::Across(_) => return Err(not_owner(ino.partition())),
            }
        }
        Err(busy(ino))
    }

    /// Whether a session is this service's own, which gives its leases back by itself and is never
    /// ended for them.
    pub(crate) fn is_own(&self, id: SessionId) -> bool {
        self.sessions.find(id).is_some_and(|session| !session.is_remote())
    }
}
