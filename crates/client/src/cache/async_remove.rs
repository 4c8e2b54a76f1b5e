//! Asynchronous removals: files of which an application knows that they are removed before the
//! metadata service has removed them.
//!
//! A session with a directory delegation knows the files of the directory ([`super::known_files`]),
//! and no other session can look. If it also knows that the user may remove names there, the
//! removal of a file is answered at once, and the client sends it to the service in the same
//! moment. An application that empties a directory doesn't wait for each file, and removals that
//! are sent together share a commit.
//!
//! # Guarantees
//!
//! - *No session sees the file again.* When other sessions want to know names of the directory, the
//!   service recalls its lease. The client gives it back when its removals there are executed.
//!   Requests of this session that could see the file wait as well ([`AsyncRemovals::wait_before`]).
//!   A session that has the removed file open may see its old link count until then.
//! - *After a restart or a change of owner, the metadata service executes them before it serves
//!   other sessions*: registration reports them.
//! - *A removal is executed once.* It names the inode, so that it can't remove another file that
//!   has got the name since.
//! - *A removal that fails is reported* by the next removal in the directory, or by its fsync, and
//!   in the log. The death of this process loses only removals that haven't arrived.

use crate::cache::Delegations;
use crate::session::lease_holder::{Concerned, LocalFuture};
use crate::{Client, entry};
use bytes::Bytes;
use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::{Credentials, Errno, Error, InodeId, Result};
use wire::{AsyncRemoval, LeaseMode, MetaOp};

/// Maximum number of removals in flight: few enough for one message to a service.
const MAX_REMOVALS: usize = 256;
/// Directories whose failures are remembered until they are reported.
const MAX_FAILURES: usize = 1024;

/// A removal in flight.
pub(crate) struct PendingRemoval {
    removal: AsyncRemoval,
    finished: Event,
}

/// All asynchronous removals of a session.
#[derive(Default)]
pub(crate) struct AsyncRemovals {
    /// By the inode that is removed.
    pending: Mutex<BTreeMap<InodeId, Arc<PendingRemoval>>>,
    count: AtomicUsize,
    /// Failures that no application has learned of, by directory.
    failures: Mutex<BTreeMap<InodeId, Error>>,
    has_failed: AtomicUsize,
}

/// Executes asynchronous removals.
pub(crate) trait Remove: Send + Sync {
    /// Sends a removal to the service, and finishes it with the outcome.
    fn remove<'a>(&'a self, removal: &'a PendingRemoval) -> LocalFuture<'a, ()>;
}

impl AsyncRemovals {
    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn select(&self, wanted: impl Fn(&AsyncRemoval) -> bool) -> Vec<Arc<PendingRemoval>> {
        if self.is_idle() {
            return Vec::new();
        }
        self.pending.lock().values().filter(|pending| wanted(&pending.removal)).cloned().collect()
    }

    async fn wait_for(&self, wanted: impl Fn(&AsyncRemoval) -> bool) {
        for pending in self.select(wanted) {
            pending.finished.wait().await;
        }
    }

    /// Whether files of a directory are being removed.
    pub(crate) fn has_pending_in(&self, dir: InodeId) -> bool {
        !self.is_idle() && self.pending.lock().values().any(|pending| pending.removal.parent == dir)
    }

    /// Waits until the removals of an inode, or in a directory, are executed.
    pub(crate) async fn wait_about(&self, ino: InodeId) {
        self.wait_for(|removal| removal.parent == ino || removal.ino == ino).await;
    }

    /// Waits until the removal of a name is executed.
    pub(crate) async fn wait_for_name(&self, dir: InodeId, name: &[u8]) {
        self.wait_for(|removal| removal.parent == dir && removal.name == name).await;
    }

    /// Waits until all removals are executed.
    pub(crate) async fn wait_for_all(&self) {
        self.wait_for(|_| true).await;
    }

    /// Waits for the removals that a request could miss, before the request is sent.
    pub(crate) async fn wait_before(&self, op: &MetaOp) {
        if self.is_idle() {
            return;
        }
        match op {
            MetaOp::Lookup { parent, name }
            | MetaOp::Create { parent, name, .. }
            | MetaOp::Mkdir { parent, name, .. }
            | MetaOp::Symlink { parent, name, .. } => self.wait_for_name(*parent, name).await,
            MetaOp::CommitCreate { file } => self.wait_for_name(file.parent, &file.name).await,
            // The request may remove or replace a directory of which the client knows only the
            // name, or give an inode another name.
            MetaOp::Rmdir { .. } | MetaOp::Rename { .. } | MetaOp::Link { .. } | MetaOp::Sync => {
                self.wait_for_all().await;
            }
            MetaOp::Readdir { dir: ino, .. }
            | MetaOp::Getattr { ino }
            | MetaOp::Setattr { ino, .. }
            | MetaOp::Describe { ino } => self.wait_about(*ino).await,
            // A removal itself waits before it is registered ([`Client::unlink`]). Others depend
            // neither on the name nor on the link count.
            _ => {}
        }
    }

    /// The removals in the directories that `concerned` selects, for a service that must execute
    /// them before it serves other sessions. The client also sends each of them itself.
    pub(crate) fn pending_in(&self, concerned: Concerned<'_>) -> Vec<AsyncRemoval> {
        let pending = self.select(|removal| concerned(removal.parent));
        pending.iter().map(|pending| pending.removal.clone()).collect()
    }

    /// Reports that removals in a directory have failed, once.
    ///
    /// # Errors
    /// The cause of the first one.
    pub(crate) fn report_failure(&self, dir: InodeId) -> Result<()> {
        if self.has_failed.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut failures = self.failures.lock();
        let failure = failures.remove(&dir);
        self.has_failed.store(failures.len(), Ordering::Release);
        failure.map_or(Ok(()), Err)
    }

    /// `EIO`, whatever the cause: an error of the session's end would have the operation that
    /// reports it repeated in the successor session.
    fn note_failure(&self, removal: &AsyncRemoval, cause: &Error) {
        let AsyncRemoval { parent, ref name, ino, .. } = *removal;
        let name = String::from_utf8_lossy(name).into_owned();
        tracing::error!(
            %ino,
            directory = %parent,
            name,
            hint = "remove it again",
            "an asynchronous removal failed, and the file may still be there: {cause}"
        );
        let message = format!("the removal of {name:?} in directory {parent} failed: {}", cause.message);
        let error = Error::new(Errno::EIO, message).hint("list the directory, and remove the file again");
        let mut failures = self.failures.lock();
        if failures.len() < MAX_FAILURES {
            failures.entry(parent).or_insert(error);
        }
        self.has_failed.store(failures.len(), Ordering::Release);
    }

    /// Passes what no application has learned of to the session that replaces an ended one.
    pub(crate) fn hand_over(&self, next: &AsyncRemovals) {
        let ended = Error::from(Errno::ESTALE);
        for pending in self.select(|_| true) {
            self.note_failure(&pending.removal, &ended);
        }
        let mut failures = next.failures.lock();
        failures.append(&mut self.failures.lock());
        next.has_failed.store(failures.len(), Ordering::Release);
    }

    /// Adds a removal; `None` if there are too many.
    fn add(&self, removal: AsyncRemoval) -> Option<Arc<PendingRemoval>> {
        let mut pending = self.pending.lock();
        if pending.len() >= MAX_REMOVALS {
            return None;
        }
        let ino = removal.ino;
        let added = Arc::new(PendingRemoval { removal, finished: Event::new() });
        pending.insert(ino, added.clone());
        self.count.store(pending.len(), Ordering::Release);
        Some(added)
    }

    fn finish(&self, removal: &PendingRemoval) {
        {
            let mut pending = self.pending.lock();
            pending.remove(&removal.removal.ino);
            self.count.store(pending.len(), Ordering::Release);
        }
        removal.finished.set();
    }
}

impl Delegations {
    /// Removes a file asynchronously; returns false if that isn't possible.
    pub(crate) fn remove_async(
        self: &Arc<Self>,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
    ) -> bool {
        if self.creates_synchronously || self.names.async_creates.is_idle() || self.session.has_ended() {
            return false;
        }
        let leases = &self.session.leases;
        let Some(stamp) = self.names.async_creates.removal_stamp(leases, parent, credentials) else {
            return false;
        };
        let Some(ino) = self.names.files.take(leases, parent, name) else { return false };
        if self.inodes.open(ino).is_some_and(|open| open.async_create().is_some()) {
            return false;
        }
        let (Some(remover), name) = (self.remover.upgrade(), Bytes::copy_from_slice(name)) else {
            return false;
        };
        let removal = AsyncRemoval { credentials, parent, name, ino };
        let Some(pending) = self.names.removals.add(removal) else { return false };
        // A recall marks the lease as closing before it searches for removals. If it has found this
        // one, it waits for a removal that is sent all the same.
        if leases.lease_covering(stamp, parent) != Some(LeaseMode::Write) {
            self.names.removals.finish(&pending);
            return false;
        }
        rt::spawn(async move { remover.remove(&pending).await });
        true
    }
}

impl Remove for Client {
    fn remove<'a>(&'a self, removal: &'a PendingRemoval) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            let AsyncRemoval { credentials, parent, ref name, ino } = removal.removal;
            let op = MetaOp::Unlink { parent, name: name.clone(), ino: Some(ino) };
            match self.session.change_as(credentials, op).await {
                Ok(answer) => _ = entry(answer.reply).map(|attr| self.inodes.note_links(&attr)),
                // Executed when the session returned to a service.
                Err(error) if error.errno == Errno::ENOENT => self.inodes.unlinked(ino),
                Err(error) => {
                    self.names.removals.note_failure(&removal.removal, &error);
                    self.kernel.drop_cached(parent, None, crate::kernel::page_fill::Bypass::Once).await;
                }
            }
            self.names.removals.finish(removal);
        })
    }
}
