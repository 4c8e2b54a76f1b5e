//! What the session knows of names: one place for lookups, and one for what invalidates them.
//!
//! Six tables have a part of it, each under its own lease and with its own proof:
//! - [`CompleteDirectories`]: directories whose every name this session has added;
//! - [`PrefixDelegations`]: name prefixes that belong to this session;
//! - [`AsyncCreates`]: names that the service has reported as free, under a directory delegation,
//!   and files that the service has yet to get;
//! - [`DirectoryAttributes`]: attributes of directories that this session has changed;
//! - [`KnownFiles`]: names of files that have no other name;
//! - [`AsyncChanges`]: changes that the service has yet to execute.
//!
//! Every request passes [`RequestObserver::prepare_request`] and
//! [`RequestObserver::record_request`] before it is sent, and [`RequestObserver::record_answer`]
//! afterwards. The end of a lease reaches [`Names::end_lease`]. All of
//! them compare request stamps with the [`Leases`] as well, so that a lease that ends invalidates
//! what was known under it at once.

use crate::cache::async_create::AsyncCreates;
use crate::cache::complete_directories::CompleteDirectories;
use crate::cache::creates_in_flight::{CreateInFlight, CreatesInFlight};
use crate::cache::directory_attributes::DirectoryAttributes;
use crate::cache::known_files::KnownFiles;
use crate::cache::pending_changes::{AsyncChanges, PendingChange};
use crate::cache::prefix_delegation::PrefixDelegations;
use crate::session::lease_holder::{PossibleName, RequestObserver};
use crate::session::leases::{Answer, Leases, RequestStamp};
use std::sync::Arc;
use types::{Attr, InodeId, Result};
use wire::{MetaOp, MetaResponse};

/// What the session knows of names.
#[derive(Default)]
pub(crate) struct Names {
    pub(super) complete: CompleteDirectories,
    pub(super) prefixes: PrefixDelegations,
    pub(crate) async_creates: Arc<AsyncCreates>,
    pub(super) creates: CreatesInFlight,
    pub(super) files: KnownFiles,
    pub(crate) changes: Arc<AsyncChanges>,
    directories: DirectoryAttributes,
}

/// What a lease is on. Metadata services number both alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeaseKey {
    /// An inode.
    Inode(InodeId),
    /// The names of a directory with a prefix.
    NamePrefix {
        /// The directory.
        directory: InodeId,
    },
}

impl LeaseKey {
    /// The inode, or the directory of the names.
    pub(crate) fn inode(self) -> InodeId {
        match self {
            LeaseKey::Inode(inode) => inode,
            LeaseKey::NamePrefix { directory } => directory,
        }
    }
}

impl Names {
    /// Returns the stamp since which the directory has surely had no such name; `None` if it may
    /// have one.
    pub(crate) fn absent_since(&self, leases: &Leases, dir: InodeId, name: &[u8]) -> Option<RequestStamp> {
        let absent_since = self.complete.absent_since(leases, dir, name);
        absent_since.or_else(|| self.prefixes.absent_since(leases, dir, name))
    }

    /// Records that the service has reported a name as free, which stays true under the lease.
    pub(crate) fn note_free(&self, leases: &Leases, dir: InodeId, name: &[u8]) {
        self.async_creates.note_free(leases, dir, name);
    }

    /// Returns the current attributes of a directory, and the stamp for their lease.
    pub(crate) fn attributes(&self, leases: &Leases, dir: InodeId) -> Option<(RequestStamp, Attr)> {
        self.directories.get(leases, dir)
    }

    /// Returns attributes of a directory of which mode, owner and group are current, and the others
    /// may not be.
    pub(crate) fn permissions(&self, leases: &Leases, dir: InodeId) -> Option<Attr> {
        match self.directories.permissions(leases, dir) {
            Some(attr) => Some(attr),
            // The times don't include pending asynchronous creates.
            None if self.has_pending_in(dir) => Some(self.attributes(leases, dir)?.1),
            None => None,
        }
    }

    /// Whether a directory has asynchronous creates or changes that aren't finished.
    pub(crate) fn has_pending_in(&self, dir: InodeId) -> bool {
        self.async_creates.has_pending_in(dir) || self.changes.has_pending_about(dir)
    }

    /// Records the outcome of an asynchronous change.
    pub(super) fn record_change_outcome(&self, change: &PendingChange, outcome: &Result<()>) {
        if let Some(possible_name) = &change.possible_name {
            self.prefixes.record_outcome(possible_name, outcome);
        }
    }

    /// Waits until all asynchronous creates and changes in a directory, or of a file, are finished.
    pub(crate) async fn finish_about(&self, ino: InodeId) {
        self.async_creates.commit_in(ino).await;
        self.changes.wait_about(ino).await;
    }

    /// Begins a create in a directory. `release` gets the inodes that counted as open because of
    /// it, when it ends.
    pub(crate) fn begin_create<F: Fn(InodeId)>(&self, parent: InodeId, release: F) -> CreateInFlight<'_, F> {
        self.creates.begin(parent, release)
    }

    /// Whether an inode may be a file whose create is in flight. If so, it counts as open until
    /// these creates have ended.
    pub(crate) fn protect_if_in_flight(&self, ino: InodeId) -> bool {
        self.creates.protect_if_in_flight(ino)
    }

    /// Returns what a lease is on, by the number that the service gave it.
    pub(crate) fn lease_key(&self, number: InodeId) -> LeaseKey {
        match self.prefixes.directory_of(number) {
            Some(directory) => LeaseKey::NamePrefix { directory },
            None => LeaseKey::Inode(number),
        }
    }

    /// Records that the lease with this number is no longer held.
    pub(crate) fn end_lease(&self, number: InodeId) {
        self.prefixes.forget_lease(number);
    }
}

impl RequestObserver for Names {
    fn prepare_request(&self, op: &MetaOp) -> bool {
        if self.async_creates.is_idle() {
            return false;
        }
        self.async_creates.prepare_request(op);
        true
    }

    fn record_possible(&self, op: &MetaOp) -> Option<PossibleName> {
        self.prefixes.prepare_request(op)
    }

    fn record_outcome(&self, possible_name: &PossibleName, outcome: &Result<Answer>) {
        self.prefixes.record_outcome(possible_name, outcome);
    }

    fn record_request(&self, leases: &Leases, op: &MetaOp) {
        self.files.prepare_request(leases, op);
        self.complete.record_request(leases, op);
    }

    fn record_answer(
        &self,
        leases: &Leases,
        stamp: RequestStamp,
        op: &MetaOp,
        answer: &Result<MetaResponse>,
    ) {
        if let Ok(response) = answer {
            self.complete.process_answer(leases, stamp, op, response);
            if !leases.is_only_session() {
                self.files.record_answer(stamp, op, response);
            }
        }
        self.directories.process_outcome(leases, stamp, op, answer);
    }

    fn drop_uncertain(&self, leases: &Leases, op: &MetaOp) {
        self.directories.drop_uncertain(leases, op);
    }

    fn end_lease(&self, number: InodeId) {
        Names::end_lease(self, number);
    }
}
