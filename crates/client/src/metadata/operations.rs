//! Operations on names and attributes, as the front ends call them.

use crate::file::access::LeaseNeed;
use crate::file::content::phase::Event;
use crate::kernel::estale::ESTALE_WINDOW;
use crate::metadata::readdir::Listing;
use crate::session::leases::{Answer, RequestStamp};
use crate::{CachedAttr, Client, StatFs, entry, unexpected};
use bytes::Bytes;
use types::{Attr, Credentials, Errno, FileKind, InodeId, Result, SetAttr};
use wire::{MetaOp, MetaReply, RenameMode};

/// How often a lookup is repeated because the inode that it found is gone: other sessions may
/// replace the name that fast.
const MAX_LOOKUPS: u32 = 16;

/// Result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The name exists. Attributes of a file that others are writing may be outdated;
    /// [`Client::getattr`] returns current ones.
    Known(CachedAttr),
    /// The name doesn't exist.
    Absent {
        /// Its absence may be cached until an [`crate::Invalidate`] call.
        cacheable: bool,
    },
}

impl Client {
    /// Looks up a name, including `.` and `..`. Success adds one kernel reference to the inode.
    pub async fn lookup(&self, credentials: Credentials, parent: InodeId, name: &[u8]) -> Result<CachedAttr> {
        match self.find(credentials, parent, name).await? {
            Found::Known(known) => Ok(known),
            Found::Absent { .. } => Err(Errno::ENOENT.into()),
        }
    }

    /// Like [`Client::lookup`], but reports the absence of a name as a result.
    pub async fn find(&self, credentials: Credentials, parent: InodeId, name: &[u8]) -> Result<Found> {
        if let Some(stamp) = self.names.absent_since(&self.session.leases, parent, name) {
            return Ok(Found::Absent { cacheable: self.session.leases.is_cacheable(stamp, parent) });
        }
        for attempt in 0.. {
            let (reports, stamp) = (self.inodes.all_reports(), self.session.leases.stamp_request());
            match self
                .session
                .query_as(credentials, MetaOp::Lookup { parent, name: Bytes::copy_from_slice(name) })
                .await
            {
                Ok(Answer { reply: MetaReply::Redirect { ino, .. }, stamp: asked }) => {
                    let last = attempt >= MAX_LOOKUPS;
                    if let Some(known) = self.get_remote_inode(asked, parent, ino, last).await?
                        && self.hold_found(credentials, &known, last).await?
                    {
                        return Ok(Found::Known(known));
                    }
                }
                Ok(answer) => {
                    let last = attempt >= MAX_LOOKUPS;
                    let known = self.attributes.referenced(parent, answer)?;
                    match self.attributes.current(reports, known).await {
                        Ok(known) if self.hold_found(credentials, &known, last).await? => {
                            return Ok(Found::Known(known));
                        }
                        Ok(_) => {}
                        Err(error) => self.drop_found(known.ino, error, last)?,
                    }
                }
                Err(error) if error.errno == Errno::ENOENT => {
                    if self.session.leases.is_cacheable(stamp, parent) {
                        self.names.note_free(&self.session.leases, parent, name);
                    }
                    return Ok(Found::Absent { cacheable: self.session.leases.is_cacheable(stamp, parent) });
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Gets the attributes of an inode from the owner of its partition, which isn't that of the
    /// name. `None` if the inode is gone: the name has been removed or replaced by now. On the
    /// `last` attempt a removed inode counts as an answer.
    async fn get_remote_inode(
        &self,
        stamp: RequestStamp,
        parent: InodeId,
        ino: InodeId,
        last: bool,
    ) -> Result<Option<CachedAttr>> {
        match self.getattr(ino).await {
            Ok(known) if known.nlink > 0 || last => {
                self.inodes.remember(&known.attr);
                Ok(Some(CachedAttr {
                    name_cacheable: self.session.leases.is_cacheable(stamp, parent),
                    ..known
                }))
            }
            Ok(_) => Ok(None),
            // The inode doesn't exist (any more). The end of the session has the same error.
            Err(error) if error.errno == Errno::ESTALE && !last && !self.session.has_ended() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The error for an application that uses an inode which is gone.
    ///
    /// `ENOENT` for a directory, as a local file system reports in a removed directory:
    /// applications that empty a tree together continue. `ESTALE` for anything else: the kernel
    /// then looks the name up again, which may be another file by now. The client keeps the file
    /// that this second lookup finds until the kernel has opened it.
    pub fn errno_for_missing(&self, credentials: Credentials, ino: InodeId) -> Errno {
        if self.session.end_cause().is_none() && self.inodes.directory(ino).is_some() {
            return Errno::ENOENT;
        }
        self.errno_for_replaced(credentials)
    }

    /// The error for an application when an entry of an existing directory has been replaced:
    /// `ESTALE`, upon which the kernel looks the name up again.
    pub fn errno_for_replaced(&self, credentials: Credentials) -> Errno {
        self.note_estale(credentials);
        Errno::ESTALE
    }

    /// Returns the attributes of a removed directory that the kernel still knows, since an
    /// application has it open or as its working directory. They are the last ones that this
    /// session received, with a link count of 0, and may not be cached. `None` for anything else.
    pub fn removed_directory(&self, ino: InodeId) -> Option<CachedAttr> {
        if self.session.has_ended() {
            return None;
        }
        let attr = Attr { nlink: 0, ..self.inodes.directory(ino)? };
        Some(CachedAttr { attr, cacheable: false, name_cacheable: false })
    }

    /// Records that an application got `ESTALE`.
    fn note_estale(&self, credentials: Credentials) {
        if !self.session.leases.is_only_session() {
            self.recent_estale.note(credentials.pid, rt::monotonic_ns());
        }
    }

    /// Keeps the found file in use for a moment, if the application's last attempt failed because
    /// the file was gone. Returns false if this one is gone too; the kernel's reference is then
    /// dropped.
    async fn hold_found(&self, credentials: Credentials, known: &CachedAttr, last: bool) -> Result<bool> {
        if known.kind() != FileKind::Regular || !self.recent_estale.has(credentials.pid, rt::monotonic_ns) {
            return Ok(true);
        }
        let inode = self.inodes.acquire(known.ino);
        let held = self.files.ensure_lease(&inode, LeaseNeed::Read).await;
        match held {
            Ok(()) => {
                let files = self.files.clone();
                rt::spawn(async move {
                    rt::sleep(ESTALE_WINDOW).await;
                    files.end_use(&inode).await;
                });
                Ok(true)
            }
            Err(error) => {
                self.files.end_use(&inode).await;
                self.drop_found(known.ino, error, last).map(|()| false)
            }
        }
    }

    /// Drops the kernel's reference to an inode that was found but can't be returned. Returns the
    /// error, unless the inode is gone and the name may be looked up again.
    fn drop_found(&self, ino: InodeId, error: types::Error, last: bool) -> Result<()> {
        self.inodes.forget(ino, 1);
        if error.errno == Errno::ESTALE && !last && !self.session.has_ended() { Ok(()) } else { Err(error) }
    }

    /// Drops kernel references. Callable from any thread; doesn't wait.
    pub fn forget(&self, ino: InodeId, count: u64) {
        self.inodes.forget(ino, count);
    }

    /// Adds one kernel reference.
    pub fn remember(&self, attr: &Attr) {
        self.inodes.remember(attr);
    }

    /// Adds one kernel reference: the caller passed an entry of a listing with attributes to the
    /// kernel.
    pub fn remember_listed(&self, attr: &Attr, listing: &Listing) {
        self.inodes.remember(attr);
        if let Some((session, stamp)) = listing.requested
            && session == self.session.id
        {
            self.inodes.note_flags(attr.ino, stamp, Some(attr));
        }
    }

    /// Returns the current attributes.
    pub async fn getattr(&self, ino: InodeId) -> Result<CachedAttr> {
        self.attributes.getattr(ino).await
    }

    /// Returns the attributes of a directory of which only mode, owner and group are known to be
    /// current. The others are those of this session's last change of the directory. The caller
    /// must use only mode, owner and group.
    pub fn permissions(&self, ino: InodeId) -> Option<CachedAttr> {
        self.attributes.permissions(ino)
    }

    /// Returns about `limit` entries after `cookie` (0 for the start). With `attributes`, the
    /// caller calls [`Client::remember`] for every entry whose attributes it passes to the kernel.
    pub async fn readdir(&self, dir: InodeId, cookie: u64, limit: u32, attributes: bool) -> Result<Listing> {
        self.readdir_for(Credentials::default(), dir, cookie, limit, attributes).await
    }

    /// Like [`Client::readdir`], on behalf of a user.
    pub async fn readdir_for(
        &self,
        credentials: Credentials,
        dir: InodeId,
        cookie: u64,
        limit: u32,
        attributes: bool,
    ) -> Result<Listing> {
        // The kernel asks for another page until it gets an empty one.
        if let Some((stamp, last)) = self.inodes.listing_end(dir)
            && last == cookie
            && self.session.leases.is_cacheable(stamp, dir)
        {
            return Ok(Listing::behind_end(dir));
        }
        let reports = self.inodes.all_reports();
        let op = MetaOp::Readdir { dir, cookie, limit, attributes, prefix: Bytes::new() };
        let answer = self.session.query_as(credentials, op).await?;
        Listing::of(answer, dir, attributes, reports, (&self.inodes, &self.names, &self.session))
    }

    /// Returns the space of all targets together, as management last measured it: management knows
    /// which targets share a disk. Also returns the number of inodes, as the metadata services
    /// count them, and an estimate of how many more their store can hold.
    pub async fn statfs(&self) -> Result<StatFs> {
        self.space.statfs().await
    }

    /// Sets attributes: the size first, then the others.
    pub async fn setattr(
        &self,
        credentials: Credentials,
        ino: InodeId,
        set: SetAttr,
        size: Option<u64>,
    ) -> Result<CachedAttr> {
        if let Some(size) = size {
            self.access_checks.check_truncate(credentials, ino).await?;
            // The kernel doesn't expect that a truncating open changes the mode.
            let may_clear = set.kill_suid_sgid
                && self.inodes.open(ino).is_some_and(|open| open.content.lock().may_have_suid_sgid());
            self.files.truncate(ino, size, set.kill_suid_sgid).await?;
            if may_clear {
                self.kernel.drop_cached_attributes(ino).await;
            }
        }
        if size.is_some() && set == (SetAttr { kill_suid_sgid: set.kill_suid_sgid, ..SetAttr::default() }) {
            return self.getattr(ino).await;
        }
        if let Some(known) = self.attributes.set_of_pending_create(credentials, ino, &set) {
            return Ok(known);
        }
        self.names.changes.report_failure(ino)?;
        if let Some(known) = self.delegations.set_async(credentials, ino, &set) {
            return Ok(known);
        }
        let open = self.inodes.open(ino);
        let reports = self.inodes.all_reports();
        if set.atime.is_some() {
            self.inodes.accesses.forget(ino);
        }
        let answer = match &open {
            Some(open) if set.mtime.is_some() && open.content.lock().has_unreported_state() => {
                // Exclusive, so that the delayed report of an earlier write can't overwrite the
                // time that is being set.
                let _exclusive = self.files.lock_exclusive(open, |_| LeaseNeed::Exclusive).await?;
                let answer = self.session.change_as(credentials, MetaOp::Setattr { ino, set }).await?;
                open.content.lock().on(Event::TimeSet);
                answer
            }
            _ => self.session.change_as(credentials, MetaOp::Setattr { ino, set }).await?,
        };
        let attr = entry(answer.reply)?;
        if let Some(open) = open {
            open.note_attributes_set(&attr);
        }
        self.attributes
            .current(reports, self.attributes.known(answer.stamp, ino, self.inodes.overlay(attr)))
            .await
    }

    /// Returns the target of a symlink.
    pub async fn readlink(&self, ino: InodeId) -> Result<Bytes> {
        match self.session.query(MetaOp::Readlink { ino }).await?.reply {
            MetaReply::Bytes(target) => Ok(target),
            other => Err(unexpected(other)),
        }
    }

    /// Creates a regular file without opening it, a FIFO, a socket or a device node.
    pub async fn mknod(
        &self,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<CachedAttr> {
        let name = Bytes::copy_from_slice(name);
        let op = MetaOp::Create { parent, name, mode, umask, rdev, exclusive: true, requested_lease: None };
        self.attributes.referenced(parent, self.session.change_as(credentials, op).await?)
    }

    /// Creates a directory.
    pub async fn mkdir(
        &self,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<CachedAttr> {
        let op = MetaOp::Mkdir { parent, name: Bytes::copy_from_slice(name), mode, umask };
        let made = self.attributes.referenced(parent, self.session.change_as(credentials, op).await?)?;
        self.delegations.count_prefix_create(credentials, parent, name);
        Ok(made)
    }

    /// Creates a symlink.
    pub async fn symlink(
        &self,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<CachedAttr> {
        let (name, target) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(target));
        self.attributes.referenced(
            parent,
            self.session.change_as(credentials, MetaOp::Symlink { parent, name, target }).await?,
        )
    }

    /// Creates a hard link.
    pub async fn link(
        &self,
        credentials: Credentials,
        ino: InodeId,
        parent: InodeId,
        name: &[u8],
    ) -> Result<CachedAttr> {
        let op = MetaOp::Link { ino, parent, name: Bytes::copy_from_slice(name) };
        let reports = self.inodes.all_reports();
        let answer = self.session.change_as(credentials, op).await?;
        self.inodes.linked(ino);
        let known = self.attributes.referenced(parent, answer)?;
        self.attributes.current(reports, known).await
    }

    /// Removes an entry that isn't a directory.
    ///
    /// # Errors
    /// Also the cause of an earlier asynchronous change's failure in this directory, once: then this
    /// one hasn't been tried.
    pub async fn unlink(&self, credentials: Credentials, parent: InodeId, name: &[u8]) -> Result<()> {
        self.names.changes.report_failure(parent)?;
        if self.delegations.remove_async(credentials, parent, name) {
            return Ok(());
        }
        let op = MetaOp::Unlink { parent, name: Bytes::copy_from_slice(name), ino: None };
        let attr = entry(self.session.change_as(credentials, op).await?.reply)?;
        self.inodes.note_links(&attr);
        self.delegations.count_sync_removal(credentials, parent);
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, credentials: Credentials, parent: InodeId, name: &[u8]) -> Result<()> {
        let op = MetaOp::Rmdir { parent, name: Bytes::copy_from_slice(name) };
        let attr = entry(self.session.change_as(credentials, op).await?.reply)?;
        self.inodes.note_links(&attr);
        Ok(())
    }

    /// Renames an entry: moves, replaces or exchanges.
    pub async fn rename(
        &self,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.names.changes.report_failure(parent)?;
        if (mode, parent) == (RenameMode::Replace, new_parent)
            && self.delegations.rename_async(credentials, parent, (name, new_name))
        {
            return Ok(());
        }
        let (name, new_name) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(new_name));
        let op = MetaOp::Rename { parent, name, new_parent, new_name, mode };
        match self.session.change_as(credentials, op).await?.reply {
            MetaReply::Renamed { other, .. } => {
                if let Some(other) = other {
                    self.inodes.note_links(&other);
                }
                Ok(())
            }
            other => Err(unexpected(other)),
        }
    }
}
