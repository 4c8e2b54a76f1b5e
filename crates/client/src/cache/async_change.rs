//! Asynchronous changes: what is answered at once, since the client knows that the service will do
//! it.
//!
//! A session with a directory delegation knows the files of the directory ([`super::known_files`]),
//! and no other session can look. If it also knows that the user may change names there, removing a
//! file, or renaming it within the directory, is answered at once. The same holds for permissions,
//! owner and times of a file that this session has created, as long as it has the lease on the file
//! and nothing else has changed its attributes.
//!
//! The client sends the change to the service in the same moment. An application that changes many
//! files doesn't wait for each of them, and changes that are sent together share a commit. What
//! applies until the service has executed a change is described in [`super::pending_changes`].

use crate::cache::Delegations;
use crate::cache::pending_changes::{PendingChange, with_attributes};
use crate::kernel::page_fill::Bypass;
use crate::metadata::attributes::CachedAttr;
use crate::session::lease_holder::LocalFuture;
use crate::session::leases::RequestStamp;
use crate::session::slots::SlotInUse;
use crate::{Client, entry, unexpected};
use bytes::Bytes;
use std::sync::Arc;
use types::{Attr, Credentials, Errno, InodeFlags, InodeId, Result, SetAttr, SetTime, mode};
use wire::{AsyncChange, LeaseMode, MetaOp, MetaReply, RenameMode};

/// Executes asynchronous changes.
pub(crate) trait ExecuteChange: Send + Sync {
    /// Sends a change to the service, and finishes it with the outcome.
    fn execute_change<'a>(&'a self, change: &'a PendingChange, slot: SlotInUse) -> LocalFuture<'a, ()>;
}

impl Delegations {
    fn may_change_async(&self) -> bool {
        !self.creates_synchronously && !self.names.async_creates.is_idle() && !self.session.has_ended()
    }

    /// Whether the create of this file isn't finished.
    fn is_pending_create(&self, ino: InodeId) -> bool {
        self.inodes.open(ino).is_some_and(|open| open.async_create().is_some())
    }

    /// Begins a change of these inodes. `is_permitted` tells whether what permitted the change still
    /// holds. Returns false without a change if it doesn't, or if too many changes are in flight.
    fn begin_change(
        self: &Arc<Self>,
        credentials: Credentials,
        op: MetaOp,
        inodes: Vec<InodeId>,
        is_permitted: impl FnOnce() -> bool,
    ) -> bool {
        let Some(executor) = self.executor.upgrade() else { return false };
        let slot = self.session.begin_change();
        let change = AsyncChange { credentials, slot_sequence: slot.slot_sequence, op };
        let possible_name = match &change.op {
            // Also for a name-prefix delegation that begins meanwhile.
            MetaOp::Rename { parent, new_name, .. } => {
                Some(self.names.prefixes.record_possible(*parent, new_name))
            }
            _ => None,
        };
        let Some(pending) = self.names.changes.add(change, inodes, possible_name) else {
            slot.complete(&Ok(()));
            return false;
        };
        // A recall marks the lease as closing before it searches for changes. If it has found this
        // one, it waits for a change that is sent all the same.
        if !is_permitted() {
            self.names.record_change_outcome(&pending, &Ok(()));
            self.names.changes.finish(&pending);
            slot.complete(&Ok(()));
            return false;
        }
        rt::spawn(async move { executor.execute_change(&pending, slot).await });
        true
    }

    /// Removes a file asynchronously; returns false if that isn't possible.
    pub(crate) fn remove_async(
        self: &Arc<Self>,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
    ) -> bool {
        if !self.may_change_async() {
            return false;
        }
        let leases = &self.session.leases;
        let Some(stamp) = self.names.async_creates.permits_changes(leases, parent, credentials) else {
            return false;
        };
        let Some(ino) = self.names.files.take(leases, parent, name) else { return false };
        if self.is_pending_create(ino) {
            return false;
        }
        let op = MetaOp::Unlink { parent, name: Bytes::copy_from_slice(name), ino: Some(ino) };
        self.begin_name_change(credentials, (parent, stamp), op, vec![ino])
    }

    /// Begins a change of names in a directory, of which the delegation was held at `stamp`.
    fn begin_name_change(
        self: &Arc<Self>,
        credentials: Credentials,
        (dir, stamp): (InodeId, RequestStamp),
        op: MetaOp,
        inodes: Vec<InodeId>,
    ) -> bool {
        let has_lease = || self.session.leases.lease_covering(stamp, dir) == Some(LeaseMode::Write);
        // Link counts and ctimes change.
        inodes.iter().for_each(|ino| self.inodes.forget_created_attr(*ino));
        self.begin_change(credentials, op, inodes, has_lease)
    }

    /// Renames a file within its directory asynchronously; returns false if that isn't possible.
    pub(crate) fn rename_async(
        self: &Arc<Self>,
        credentials: Credentials,
        parent: InodeId,
        (name, new_name): (&[u8], &[u8]),
    ) -> bool {
        if !self.may_change_async() || name == new_name || matches!(new_name, b"." | b"..") {
            return false;
        }
        let leases = &self.session.leases;
        let Some(stamp) = self.names.async_creates.permits_changes(leases, parent, credentials) else {
            return false;
        };
        if self.names.prefixes.absent_since(leases, parent, new_name).is_some() {
            return false;
        }
        let Some(ino) = self.names.files.take(leases, parent, name) else { return false };
        let replaced = self.names.files.take(leases, parent, new_name);
        let is_free = replaced.is_some()
            || self.names.async_creates.take_free(leases, parent, new_name)
            || self.names.complete.absent_since(leases, parent, new_name).is_some();
        let inodes: Vec<InodeId> = [Some(ino), replaced].into_iter().flatten().collect();
        if !is_free || inodes.iter().any(|ino| self.is_pending_create(*ino)) {
            return false;
        }
        let [name, new_name] = [name, new_name].map(Bytes::copy_from_slice);
        self.names.complete.record_name(leases, parent, &new_name);
        let op = MetaOp::Rename { parent, name, new_parent: parent, new_name, mode: RenameMode::Replace };
        self.begin_name_change(credentials, (parent, stamp), op, inodes)
    }

    /// Sets attributes of a file that this session has created, asynchronously, and returns all of
    /// them; `None` if that isn't possible.
    pub(crate) fn set_async(
        self: &Arc<Self>,
        credentials: Credentials,
        ino: InodeId,
        set: &SetAttr,
    ) -> Option<CachedAttr> {
        if !self.may_change_async() {
            return None;
        }
        let leases = &self.session.leases;
        let (stamp, known) = self.inodes.created_attr(ino)?;
        let has_lease = || leases.lease_covering(stamp, ino) == Some(LeaseMode::Write);
        let has_unreported_state =
            || self.inodes.open(ino).is_some_and(|open| open.content.lock().has_unreported_state());
        if !is_surely_permitted(&known, credentials, set)
            || self.is_pending_create(ino)
            || has_unreported_state()
            || !has_lease()
        {
            return None;
        }
        let set = at_once(set);
        if set.atime.is_some() {
            self.inodes.accesses.forget(ino);
        }
        let attr = with_attributes(self.inodes.overlay(known), &set);
        let op = MetaOp::Setattr { ino, set };
        let is_permitted = || has_lease() && self.inodes.replace_created_attr(ino, attr);
        if !self.begin_change(credentials, op, vec![ino], is_permitted) {
            return None;
        }
        if let Some(open) = self.inodes.open(ino) {
            open.note_attributes_set(&attr);
        }
        Some(CachedAttr { attr, cacheable: true, name_cacheable: true })
    }
}

/// Whether the service surely sets these attributes, and in the way that [`with_attributes`] does.
/// The owner of a file sets ordinary permissions and times, and only root gives a file away.
fn is_surely_permitted(attr: &Attr, who: Credentials, set: &SetAttr) -> bool {
    const SPECIAL: u32 = mode::PERMISSIONS & !0o777;
    let is_plain = set.mode.is_none_or(|bits| bits & !0o777 == 0)
        && attr.mode & SPECIAL == 0
        && attr.has_no_xattrs
        && attr.nlink == 1
        && !attr.flags.intersects(InodeFlags::READ_ONLY_FLAGS)
        && (set.ctime, set.flags, set.project) == (None, None, None);
    let keeps_owner = set.uid.is_none_or(|uid| uid == attr.uid) && set.gid.is_none_or(|gid| gid == attr.gid);
    is_plain && (who.uid == 0 || who.uid == attr.uid && keeps_owner)
}

/// Attributes to set, with the present time where the application wants that.
fn at_once(set: &SetAttr) -> SetAttr {
    let now = rt::now();
    let resolve = |time| match time {
        SetTime::Now => SetTime::At(now),
        at => at,
    };
    SetAttr { atime: set.atime.map(resolve), mtime: set.mtime.map(resolve), ctime: Some(now), ..*set }
}

impl ExecuteChange for Client {
    fn execute_change<'a>(&'a self, pending: &'a PendingChange, slot: SlotInUse) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            let outcome = self.send_change(pending, slot).await;
            self.names.record_change_outcome(pending, &outcome);
            let spec = pending.change.op.spec();
            let about = spec.home.filter(|_| outcome.is_err());
            if let Err(error) = &outcome {
                self.names.changes.note_failure(pending, error);
                // What the client has derived from the change is wrong.
                pending.inodes.iter().for_each(|ino| self.inodes.forget_created_attr(*ino));
                about.into_iter().for_each(|dir| self.names.async_creates.end_delegation(dir));
            }
            // Before the change vanishes from the overlay.
            pending.inodes.iter().for_each(|ino| self.inodes.note_report(*ino));
            if spec.attributes_of.is_none() {
                self.inodes.note_directory_change();
            }
            self.names.changes.finish(pending);
            // Not earlier: the kernel may be waiting for a page, and the read of that page for this
            // change.
            if let Some(about) = about {
                let open = self.inodes.open(about);
                self.kernel.drop_cached(about, open.as_deref(), Bypass::Once).await;
            }
        })
    }
}

impl Client {
    async fn send_change(&self, pending: &PendingChange, slot: SlotInUse) -> Result<()> {
        let AsyncChange { credentials, ref op, .. } = pending.change;
        let answer = self.session.change_in(slot, credentials, op.clone()).await;
        match (op, answer) {
            (MetaOp::Setattr { ino, set }, Ok(answer)) => {
                self.note_attributes_set(*ino, set, &entry(answer.reply)?).await;
                Ok(())
            }
            // The file has been removed since, and its inode with it.
            (MetaOp::Setattr { ino, .. }, Err(error))
                if error.errno == Errno::ESTALE && !self.session.has_ended() =>
            {
                self.inodes.forget_created_attr(*ino);
                Ok(())
            }
            // Whatever removed it, the application knows no different.
            (MetaOp::Unlink { .. }, Err(error)) if error.errno == Errno::ENOENT => {
                pending.inodes.iter().for_each(|ino| self.inodes.unlinked(*ino));
                Ok(())
            }
            (MetaOp::Unlink { .. }, Ok(answer)) => {
                entry(answer.reply).map(|attr| self.inodes.note_links(&attr))
            }
            (MetaOp::Rename { .. }, Ok(answer)) => match answer.reply {
                MetaReply::Renamed { other, .. } => {
                    other.iter().for_each(|other| self.inodes.note_links(other));
                    Ok(())
                }
                other => Err(unexpected(other)),
            },
            (_, Ok(_)) => Ok(()),
            (_, Err(error)) => Err(error),
        }
    }

    /// Drops what applications have seen of a file's attributes if the service has others. It
    /// doesn't accept the time of a change if the clocks of client and service differ.
    async fn note_attributes_set(&self, ino: InodeId, set: &SetAttr, attr: &Attr) {
        if set.ctime != Some(attr.ctime) {
            self.inodes.forget_created_attr(ino);
            self.kernel.drop_cached_attributes(ino).await;
        }
    }
}
