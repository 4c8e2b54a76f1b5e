//! Asynchronous changes on their way to the metadata service: what an application knows to be done
//! before the service has done it ([`super::async_change`]).
//!
//! # Guarantees
//!
//! - *No session sees the state before.* When other sessions want to see what is changed, the
//!   service recalls the lease that permitted the change. The client gives it back when its changes
//!   are executed. Requests of this session that could see the state before wait as well
//!   ([`AsyncChanges::wait_before`]), or the change is overlaid on their answers
//!   ([`AsyncChanges::overlay`]).
//! - *Changes of one inode or name are executed in their order*: each waits for earlier ones.
//! - *After a restart or a change of owner, the metadata service executes them before it serves
//!   other sessions*: registration reports them.
//! - *A change is executed once.* It is reported with the session slot and sequence id of its
//!   request.
//! - *A change that fails is reported* by the next such call on the directory or file, or by its
//!   fsync, and in the log. The death of this process loses only changes that haven't arrived.

use crate::session::lease_holder::{Concerned, PossibleName};
use bytes::Bytes;
use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use types::{Attr, Errno, Error, InodeId, Result, SetAttr, SetTime};
use wire::{AsyncChange, MetaOp, SlotSequence};

/// Maximum number of changes in flight: few enough for one message to a service.
const MAX_CHANGES: usize = 256;
/// Inodes whose failures are remembered until they are reported.
const MAX_FAILURES: usize = 1024;

/// A change in flight.
pub(crate) struct PendingChange {
    number: u64,
    pub(super) change: AsyncChange,
    /// The inodes that are changed, removed, renamed or replaced.
    pub(super) inodes: Vec<InodeId>,
    /// The name that it adds, for name-prefix delegations.
    pub(super) possible_name: Option<PossibleName>,
    finished: Event,
}

impl PendingChange {
    /// Whether it removes, adds or replaces a name.
    fn has_name(&self, dir: InodeId, name: &Bytes) -> bool {
        match &self.change.op {
            MetaOp::Unlink { parent, name: removed, .. } => *parent == dir && removed == name,
            MetaOp::Rename { parent, name: old, new_name, .. } => {
                *parent == dir && (old == name || new_name == name)
            }
            _ => false,
        }
    }

    /// Whether it changes an inode, or the names in a directory.
    fn is_about(&self, ino: InodeId) -> bool {
        self.inodes.contains(&ino) || self.change.op.spec().home == Some(ino)
    }

    fn sets_owner(&self) -> bool {
        matches!(&self.change.op, MetaOp::Setattr { set, .. } if set.uid.is_some())
    }

    /// Whether a later change must be executed after this one.
    fn precedes(&self, later: &PendingChange) -> bool {
        self.inodes.iter().any(|ino| later.inodes.contains(ino))
            || match &later.change.op {
                MetaOp::Unlink { parent, name, .. } => self.has_name(*parent, name),
                MetaOp::Rename { parent, name, new_name, .. } => {
                    self.has_name(*parent, name) || self.has_name(*parent, new_name)
                }
                _ => false,
            }
    }

    /// Whether a request that isn't an asynchronous change could miss this one, or must come after
    /// it.
    fn concerns(&self, op: &MetaOp) -> bool {
        match op {
            // The service checks the owner of a file in a directory with the sticky bit.
            MetaOp::Unlink { parent, name, .. } => self.has_name(*parent, name) || self.sets_owner(),
            MetaOp::Lookup { parent, name }
            | MetaOp::Create { parent, name, .. }
            | MetaOp::Mkdir { parent, name, .. }
            | MetaOp::Symlink { parent, name, .. } => self.has_name(*parent, name),
            MetaOp::CommitCreate { file } => self.has_name(file.parent, &file.name),
            // The request may remove or replace a directory of which the client knows only the
            // name, or give an inode another name.
            MetaOp::Rmdir { .. } | MetaOp::Rename { .. } | MetaOp::Link { .. } | MetaOp::Sync => true,
            MetaOp::Reclaim { ino, others } => {
                self.inodes.contains(ino) || others.iter().any(|other| self.inodes.contains(other))
            }
            // Sending a change may include these.
            MetaOp::PreallocateInodes { .. } | MetaOp::SupplyGroups { .. } | MetaOp::Release { .. } => false,
            MetaOp::Readdir { dir: ino, .. }
            | MetaOp::Getattr { ino }
            | MetaOp::Setattr { ino, .. }
            | MetaOp::Describe { ino } => self.is_about(*ino),
            other => {
                let spec = other.spec();
                // It may change who may change names in a directory.
                spec.attributes_of.is_some_and(|ino| self.is_about(ino))
                    || spec.home.is_some_and(|ino| self.inodes.contains(&ino))
            }
        }
    }
}

/// All asynchronous changes of a session.
#[derive(Default)]
pub(crate) struct AsyncChanges {
    /// In their order.
    pending: Mutex<BTreeMap<u64, Arc<PendingChange>>>,
    count: AtomicUsize,
    next: AtomicU64,
    /// Failures that no application has learned of, by directory or file.
    failures: Mutex<BTreeMap<InodeId, Error>>,
    has_failed: AtomicUsize,
}

impl AsyncChanges {
    /// Whether nothing is in flight.
    fn is_idle(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn select(&self, wanted: impl Fn(&PendingChange) -> bool) -> Vec<Arc<PendingChange>> {
        if self.is_idle() {
            return Vec::new();
        }
        self.pending.lock().values().filter(|pending| wanted(pending)).cloned().collect()
    }

    async fn wait_for(&self, wanted: impl Fn(&PendingChange) -> bool) {
        for pending in self.select(wanted) {
            pending.finished.wait().await;
        }
    }

    /// Whether an inode or names of a directory are being changed.
    pub(crate) fn has_pending_about(&self, ino: InodeId) -> bool {
        !self.is_idle() && self.pending.lock().values().any(|pending| pending.is_about(ino))
    }

    /// Waits until the changes of an inode, or of names in a directory, are executed.
    pub(crate) async fn wait_about(&self, ino: InodeId) {
        self.wait_for(|pending| pending.is_about(ino)).await;
    }

    /// Waits until all changes are executed.
    pub(crate) async fn wait_for_all(&self) {
        self.wait_for(|_| true).await;
    }

    /// Whether a request with this number is that of a change in flight.
    pub(crate) fn is_own(&self, slot_sequence: Option<SlotSequence>) -> bool {
        let is_it = |pending: &Arc<PendingChange>| Some(pending.change.slot_sequence) == slot_sequence;
        !self.is_idle() && slot_sequence.is_some() && self.pending.lock().values().any(is_it)
    }

    /// Waits for the changes that a request could miss or must come after, before the request is
    /// sent. A change itself waits for earlier ones.
    pub(crate) async fn wait_before(&self, op: &MetaOp, slot_sequence: Option<SlotSequence>) {
        if self.is_idle() {
            return;
        }
        let concerned: Vec<_> = {
            let pending = self.pending.lock();
            let own = pending.values().find(|own| Some(own.change.slot_sequence) == slot_sequence);
            let must_precede = |earlier: &PendingChange| match own {
                Some(own) => earlier.number < own.number && earlier.precedes(own),
                None => earlier.concerns(op),
            };
            pending.values().filter(|earlier| must_precede(earlier)).cloned().collect()
        };
        for pending in concerned {
            pending.finished.wait().await;
        }
    }

    /// The changes of the inodes that `concerned` selects, in their order, for a service that must
    /// execute them before it serves other sessions. The client also sends each of them itself.
    pub(crate) fn pending_in(&self, concerned: Concerned<'_>) -> Vec<AsyncChange> {
        let pending = self.select(|pending| pending.change.op.spec().home.is_some_and(concerned));
        pending.iter().map(|pending| pending.change.clone()).collect()
    }

    /// Overlays changes of attributes in flight on attributes from the service.
    pub(crate) fn overlay(&self, attr: Attr) -> Attr {
        if self.is_idle() {
            return attr;
        }
        let pending = self.pending.lock();
        pending.values().fold(attr, |attr, pending| match &pending.change.op {
            MetaOp::Setattr { ino, set } if *ino == attr.ino => with_attributes(attr, set),
            _ => attr,
        })
    }

    /// Reports that changes have failed, once. `about`: a directory, if names were changed, or a
    /// file.
    ///
    /// # Errors
    /// The cause of the first one.
    pub(crate) fn report_failure(&self, about: InodeId) -> Result<()> {
        if self.has_failed.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut failures = self.failures.lock();
        let failure = failures.remove(&about);
        self.has_failed.store(failures.len(), Ordering::Release);
        failure.map_or(Ok(()), Err)
    }

    /// `EIO`, whatever the cause: an error of the session's end would have the operation that
    /// reports it repeated in the successor session.
    pub(super) fn note_failure(&self, pending: &PendingChange, cause: &Error) {
        let Some(about) = pending.change.op.spec().home else { return };
        let (what, hint) = match &pending.change.op {
            MetaOp::Unlink { name, .. } => (
                format!("the removal of {:?} in directory {about}", String::from_utf8_lossy(name)),
                "list the directory, and remove the file again",
            ),
            MetaOp::Rename { name, new_name, .. } => (
                format!(
                    "the renaming of {:?} to {:?} in directory {about}",
                    String::from_utf8_lossy(name),
                    String::from_utf8_lossy(new_name)
                ),
                "list the directory, and rename the file again",
            ),
            _ => (format!("a change of attributes of inode {about}"), "set the attributes again"),
        };
        tracing::error!(hint, "an asynchronous change failed: {what}: {cause}");
        let error = Error::new(Errno::EIO, format!("{what} failed: {}", cause.message)).hint(hint);
        let mut failures = self.failures.lock();
        if failures.len() < MAX_FAILURES {
            failures.entry(about).or_insert(error);
        }
        self.has_failed.store(failures.len(), Ordering::Release);
    }

    /// Whether the ended session has lost changes of a file of which no application has learned.
    /// Until the successor session knows of them, that is those in flight.
    pub(crate) fn has_lost(&self, ino: InodeId) -> bool {
        self.has_pending_about(ino) || self.report_failure(ino).is_err()
    }

    /// Passes what no application has learned of to the session that replaces an ended one. Files
    /// that are still open in the ended session report it as well.
    pub(crate) fn hand_over(&self, next: &AsyncChanges) {
        let ended = Error::from(Errno::ESTALE);
        for pending in self.select(|_| true) {
            self.note_failure(&pending, &ended);
        }
        let mut failures = next.failures.lock();
        failures.extend(self.failures.lock().iter().map(|(about, error)| (*about, error.clone())));
        next.has_failed.store(failures.len(), Ordering::Release);
    }

    /// Adds a change; `None` if there are too many.
    pub(super) fn add(
        &self,
        change: AsyncChange,
        inodes: Vec<InodeId>,
        possible_name: Option<PossibleName>,
    ) -> Option<Arc<PendingChange>> {
        let mut pending = self.pending.lock();
        if pending.len() >= MAX_CHANGES {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let added = Arc::new(PendingChange { number, change, inodes, possible_name, finished: Event::new() });
        pending.insert(number, added.clone());
        self.count.store(pending.len(), Ordering::Release);
        Some(added)
    }

    /// Removes a change that is executed, has failed, or is withdrawn.
    pub(super) fn finish(&self, change: &PendingChange) {
        {
            let mut pending = self.pending.lock();
            pending.remove(&change.number);
            self.count.store(pending.len(), Ordering::Release);
        }
        change.finished.set();
    }
}

/// Sets attributes as the service does for a file without extended attributes and special bits.
/// The times are those of the change.
pub(super) fn with_attributes(attr: Attr, set: &SetAttr) -> Attr {
    let time = |set: Option<SetTime>, was| match set {
        Some(SetTime::At(time)) => time,
        Some(SetTime::Now) | None => was,
    };
    Attr {
        mode: set.mode.map_or(attr.mode, |bits| attr.mode & types::mode::S_IFMT | bits),
        uid: set.uid.unwrap_or(attr.uid),
        gid: set.gid.unwrap_or(attr.gid),
        atime: time(set.atime, attr.atime),
        mtime: time(set.mtime, attr.mtime),
        ctime: set.ctime.map_or(attr.ctime, |ctime| ctime.max(attr.ctime)),
        ..attr
    }
}
