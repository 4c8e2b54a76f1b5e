//! Names, and attributes that don't concern content.

use crate::file::access::LeaseNeed;
use crate::file::lease_epoch::LeaseContext;
use crate::kernel::estale::ESTALE_WINDOW;
use crate::session::leases::{Answer, RequestStamp};
use crate::{Client, entry, unexpected};
use bytes::Bytes;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{Attr, Credentials, Errno, FileKind, InodeId, Result, SetAttr};
use wire::{MetaOp, MetaReply, RenameMode};

/// How often a lookup is repeated because the inode that it found is gone: other sessions may
/// replace the name that fast.
const MAX_LOOKUPS: u32 = 16;

/// Attributes, and whether they may be cached. Uncacheable ones were valid at some time between
/// request and answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedAttr {
    /// The attributes.
    pub attr: Attr,
    /// The attributes may be cached until an [`crate::Invalidate`] call.
    pub cacheable: bool,
    /// The directory entry by which the inode was found or created may be cached likewise.
    pub name_cacheable: bool,
}

impl Deref for CachedAttr {
    type Target = Attr;

    fn deref(&self) -> &Attr {
        &self.attr
    }
}

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
                    let known = self.referenced(parent, answer)?;
                    match self.current(reports, known).await {
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
        let Some(client) = self.weak_self.upgrade() else { return Ok(true) };
        if known.kind() != FileKind::Regular || !self.recent_estale.has(credentials.pid, rt::monotonic_ns) {
            return Ok(true);
        }
        let inode = self.inodes.acquire(known.ino);
        let held = self.ensure_lease(&inode, LeaseNeed::Read).await;
        match held {
            Ok(()) => {
                rt::spawn(async move {
                    rt::sleep(ESTALE_WINDOW).await;
                    client.end_use(&inode).await;
                });
                Ok(true)
            }
            Err(error) => {
                self.end_use(&inode).await;
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

    /// Adds one kernel reference (the caller passed a directory entry with attributes to the
    /// kernel).
    pub fn remember(&self, attr: &Attr) {
        self.inodes.remember(attr);
    }

    /// Returns the current attributes.
    pub async fn getattr(&self, ino: InodeId) -> Result<CachedAttr> {
        if self.names.has_pending_in(ino) {
            Box::pin(self.commit_creates_in(ino)).await;
        }
        if let Some((stamp, attr)) = self.names.attributes(&self.session.leases, ino) {
            return Ok(self.known(stamp, ino, attr));
        }
        loop {
            let reports = self.inodes.reports(ino);
            let answer = self.session.query(MetaOp::Getattr { ino }).await?;
            let attr = self.inodes.overlay(entry(answer.reply)?);
            self.note_flags(answer.stamp, &attr);
            self.inodes.note_directory(&attr);
            if self.inodes.reports(ino) != reports {
                continue;
            }
            let is_cacheable = self.session.leases.is_cacheable(answer.stamp, ino);
            let known = CachedAttr { cacheable: is_cacheable, name_cacheable: is_cacheable, attr };
            if known.cacheable || attr.kind() != FileKind::Regular {
                return Box::pin(self.with_blocks(known)).await;
            }
            let attr = self.while_lease_lasts(async || self.with_chunks(attr).await).await?;
            if self.inodes.reports(ino) == reports {
                return Ok(CachedAttr { attr, ..known });
            }
        }
    }

    /// Returns the attributes of a directory of which only mode, owner and group are known to be
    /// current. The others are those of this session's last change of the directory. The caller
    /// must use only mode, owner and group.
    pub fn permissions(&self, ino: InodeId) -> Option<CachedAttr> {
        let attr = self.names.permissions(&self.session.leases, ino)?;
        Some(CachedAttr { attr, cacheable: false, name_cacheable: false })
    }

    /// Adds the allocated blocks to the attributes of a file that no other session is writing.
    async fn with_blocks(&self, known: CachedAttr) -> Result<CachedAttr> {
        let Some(layout) = self.inodes.unreported_chunks(known.ino) else { return Ok(known) };
        let blocks = self.allocated_estimate(known.ino, &layout, known.size).await?.blocks;
        Ok(CachedAttr { attr: Attr { blocks, ..known.attr }, ..known })
    }

    /// Merges the sizes and times of the chunk files into the attributes of a file that others may
    /// be writing.
    async fn with_chunks(&self, attr: Attr) -> Result<Attr> {
        let open = self.inodes.open(attr.ino).and_then(|open| {
            let content = open.content.lock();
            let known = || (content.under(attr.ino), content.layout.clone(), content.inline.is_some());
            content.phase.is_loaded().then(known)
        });
        let (attr, under, layout, inline) = match open {
            Some((under, layout, inline)) => (attr, under, layout, inline),
            None => {
                let info = match self.open_info_once(attr.ino).await {
                    // With squashed users, not every user may open every file. The service's
                    // attributes are returned as they are.
                    Err(error) if error.errno == Errno::EACCES => return Ok(attr),
                    info => info?,
                };
                let under = LeaseContext { epoch: info.epoch, ..LeaseContext::without_lease(attr.ino) };
                (self.inodes.overlay(info.attr), under, info.layout.map(Arc::new), info.inline.is_some())
            }
        };
        let Some(layout) = layout.filter(|_| !inline) else { return Ok(attr) };
        let measured = self.measure(under, &layout).await?;
        let mut attr = Attr { size: attr.size.max(measured.end), blocks: measured.blocks, ..attr };
        // An mtime that was set explicitly is newer than every earlier write, and its ctime proves
        // that.
        if measured.mtime > attr.ctime {
            (attr.mtime, attr.ctime) = (measured.mtime, measured.mtime);
        }
        Ok(attr)
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
            self.check_truncate(credentials, ino).await?;
            // The kernel doesn't expect that a truncating open changes the mode.
            let may_clear = set.kill_suid_sgid
                && self.inodes.open(ino).is_some_and(|open| open.content.lock().may_have_suid_sgid());
            self.truncate(ino, size, set.kill_suid_sgid).await?;
            if may_clear {
                self.kernel.drop_cached_attributes(ino).await;
            }
        }
        if size.is_some() && set == (SetAttr { kill_suid_sgid: set.kill_suid_sgid, ..SetAttr::default() }) {
            return self.getattr(ino).await;
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
                let _exclusive = self.lock_exclusive(open, |_| LeaseNeed::Exclusive).await?;
                let answer = self.session.change_as(credentials, MetaOp::Setattr { ino, set }).await?;
                open.content.lock().mtime = None;
                answer
            }
            _ => self.session.change_as(credentials, MetaOp::Setattr { ino, set }).await?,
        };
        let attr = entry(answer.reply)?;
        if let Some(open) = open {
            let mut content = open.content.lock();
            content.note_mode(attr.mode);
            content.note_times(&attr);
            open.atime_quiet_until_ns.store(0, Ordering::Relaxed);
        }
        self.current(reports, self.known(answer.stamp, ino, self.inodes.overlay(attr))).await
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
        self.referenced(parent, self.session.change_as(credentials, op).await?)
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
        let made = self.referenced(parent, self.session.change_as(credentials, op).await?)?;
        self.count_prefix_create(credentials, parent, name);
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
        self.referenced(
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
        let known = self.referenced(parent, answer)?;
        self.current(reports, known).await
    }

    /// Removes an entry that isn't a directory.
    pub async fn unlink(&self, credentials: Credentials, parent: InodeId, name: &[u8]) -> Result<()> {
        let op = MetaOp::Unlink { parent, name: Bytes::copy_from_slice(name) };
        let attr = entry(self.session.change_as(credentials, op).await?.reply)?;
        self.note_links(&attr);
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, credentials: Credentials, parent: InodeId, name: &[u8]) -> Result<()> {
        let op = MetaOp::Rmdir { parent, name: Bytes::copy_from_slice(name) };
        let attr = entry(self.session.change_as(credentials, op).await?.reply)?;
        self.note_links(&attr);
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
        let (name, new_name) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(new_name));
        let op = MetaOp::Rename { parent, name, new_parent, new_name, mode };
        match self.session.change_as(credentials, op).await?.reply {
            MetaReply::Renamed { other, .. } => {
                if let Some(other) = other {
                    self.note_links(&other);
                }
                Ok(())
            }
            other => Err(unexpected(other)),
        }
    }

    /// Counts the kernel reference that a reply adds.
    fn referenced(&self, parent: InodeId, answer: Answer) -> Result<CachedAttr> {
        let attr = entry(answer.reply)?;
        self.inodes.remember(&attr);
        Ok(self.known(answer.stamp, parent, self.inodes.overlay(attr)))
    }

    /// Adds to attributes whether they may be cached now. Those of a file with unreported block
    /// counts may not.
    pub(crate) fn known(&self, stamp: RequestStamp, parent: InodeId, attr: Attr) -> CachedAttr {
        let is_whole = self.inodes.unreported_chunks(attr.ino).is_none();
        self.note_flags(stamp, &attr);
        self.inodes.note_directory(&attr);
        CachedAttr {
            attr,
            name_cacheable: self.session.leases.is_cacheable(stamp, parent),
            cacheable: is_whole && self.session.leases.is_cacheable(stamp, attr.ino),
        }
    }

    /// Returns the attributes of another answer, or current ones if a report may have intervened
    /// between that answer and the overlay.
    async fn current(&self, reports: u64, known: CachedAttr) -> Result<CachedAttr> {
        let stale = known.kind() == FileKind::Regular && self.inodes.all_reports() != reports;
        if !stale {
            return Ok(known);
        }
        let now = self.getattr(known.ino).await?;
        Ok(CachedAttr { name_cacheable: known.name_cacheable, ..now })
    }

    fn note_links(&self, attr: &Attr) {
        if attr.nlink == 0 {
            self.inodes.unlinked(attr.ino);
        }
    }
}
