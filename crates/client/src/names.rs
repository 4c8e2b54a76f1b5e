//! Names, and attributes that have nothing to do with content.

use crate::{Client, entry, unexpected};
use bytes::Bytes;
use types::{Attr, Credentials, FileKind, InodeId, Result, SetAttr};
use wire::{MetaOp, MetaReply, RenameMode};

impl Client {
    /// Finds a name, `.` and `..` too. Success adds one kernel reference to the inode.
    pub async fn lookup(&self, credentials: Credentials, parent: InodeId, name: &[u8]) -> Result<Attr> {
        let _ = credentials;
        let reports = self.inodes.all_reports();
        let reply = self.ask(MetaOp::Lookup { parent, name: Bytes::copy_from_slice(name) }).await?;
        let attr = self.referenced(reply)?;
        self.current(reports, attr).await
    }

    /// Drops kernel references. Any thread may call it; it doesn't wait.
    pub fn forget(&self, ino: InodeId, count: u64) {
        self.inodes.forget(ino, count);
    }

    /// Adds one kernel reference (a directory entry with attributes was handed to the kernel).
    pub fn remember(&self, ino: InodeId) {
        self.inodes.remember(ino);
    }

    /// Attributes as they are now.
    pub async fn getattr(&self, ino: InodeId) -> Result<Attr> {
        loop {
            let reports = self.inodes.reports(ino);
            let attr = self.inodes.overlay(entry(self.ask(MetaOp::Getattr { ino }).await?)?);
            if self.inodes.reports(ino) == reports {
                return Ok(attr);
            }
        }
    }

    /// Changes the size first, then the rest.
    pub async fn setattr(
        &self,
        credentials: Credentials,
        ino: InodeId,
        set: SetAttr,
        size: Option<u64>,
    ) -> Result<Attr> {
        if let Some(size) = size {
            self.truncate(ino, size, set.kill_suid_sgid).await?;
        }
        if size.is_some() && set == (SetAttr { kill_suid_sgid: set.kill_suid_sgid, ..SetAttr::default() }) {
            return self.getattr(ino).await;
        }
        let open = self.inodes.open(ino);
        let reports = self.inodes.all_reports();
        let attr = match &open {
            Some(open) if set.mtime.is_some() => {
                // Alone, so that a report of an earlier write (a close is reported late) can't overwrite the time that is set.
                let _alone = open.gate.write().await;
                let attr = entry(self.change(credentials, MetaOp::Setattr { ino, set }).await?)?;
                open.content.lock().mtime = None;
                attr
            }
            _ => entry(self.change(credentials, MetaOp::Setattr { ino, set }).await?)?,
        };
        if let Some(open) = open {
            open.content.lock().note_mode(attr.mode);
        }
        self.current(reports, self.inodes.overlay(attr)).await
    }

    /// The target of a symlink.
    pub async fn readlink(&self, ino: InodeId) -> Result<Bytes> {
        match self.ask(MetaOp::Readlink { ino }).await? {
            MetaReply::Bytes(target) => Ok(target),
            other => Err(unexpected(other)),
        }
    }

    /// Makes a regular file without opening it, a fifo, a socket or a device node.
    pub async fn mknod(
        &self,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let name = Bytes::copy_from_slice(name);
        let op = MetaOp::Create { parent, name, mode, umask, rdev, exclusive: true };
        self.referenced(self.change(credentials, op).await?)
    }

    /// Makes a directory.
    pub async fn mkdir(
        &self,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<Attr> {
        let op = MetaOp::Mkdir { parent, name: Bytes::copy_from_slice(name), mode, umask };
        self.referenced(self.change(credentials, op).await?)
    }

    /// Makes a symlink.
    pub async fn symlink(
        &self,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr> {
        let (name, target) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(target));
        self.referenced(self.change(credentials, MetaOp::Symlink { parent, name, target }).await?)
    }

    /// Gives an inode another name.
    pub async fn link(
        &self,
        credentials: Credentials,
        ino: InodeId,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Attr> {
        let op = MetaOp::Link { ino, parent, name: Bytes::copy_from_slice(name) };
        let reports = self.inodes.all_reports();
        let reply = self.change(credentials, op).await?;
        self.inodes.linked(ino);
        let attr = self.referenced(reply)?;
        self.current(reports, attr).await
    }

    /// Removes a name of something that is no directory.
    pub async fn unlink(&self, credentials: Credentials, parent: InodeId, name: &[u8]) -> Result<()> {
        let op = MetaOp::Unlink { parent, name: Bytes::copy_from_slice(name) };
        let attr = entry(self.change(credentials, op).await?)?;
        self.note_links(&attr);
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, credentials: Credentials, parent: InodeId, name: &[u8]) -> Result<()> {
        let op = MetaOp::Rmdir { parent, name: Bytes::copy_from_slice(name) };
        let attr = entry(self.change(credentials, op).await?)?;
        self.note_links(&attr);
        Ok(())
    }

    /// Moves, replaces or exchanges.
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
        match self.change(credentials, op).await? {
            MetaReply::Renamed { other, .. } => {
                if let Some(other) = other {
                    self.note_links(&other);
                }
                Ok(())
            }
            other => Err(unexpected(other)),
        }
    }

    /// Counts the reference that the kernel gets with a reply.
    pub(crate) fn referenced(&self, reply: MetaReply) -> Result<Attr> {
        let attr = entry(reply)?;
        self.inodes.remember(attr.ino);
        Ok(self.inodes.overlay(attr))
    }

    /// Attributes that came with another answer, asked for again when a report may have slipped between answer and overlay.
    async fn current(&self, reports: u64, attr: Attr) -> Result<Attr> {
        let stale = attr.kind() == FileKind::Regular && self.inodes.all_reports() != reports;
        if stale { self.getattr(attr.ino).await } else { Ok(attr) }
    }

    fn note_links(&self, attr: &Attr) {
        if attr.nlink == 0 {
            self.inodes.unlinked(attr.ino);
        }
    }
}
