//! Extended attributes: stored ones, and virtual ones by which tools access the file system through
//! any mount.

use crate::file::access::LeaseNeed;
use crate::metadata::describe::parse_change;
use crate::{Client, unexpected};
use bytes::Bytes;
use types::{Credentials, Errno, Error, InodeId, Result};
use wire::{MetaOp, MetaReply, PatternChange, XattrMode};

/// Readable: a description of the inode as JSON. Not listed.
const ENTRY: &[u8] = b"weft.entry";
/// File capabilities, which a write removes.
const CAPABILITY: &[u8] = b"security.capability";
/// Writable by a file's owner: the scheme and pool that the file is to migrate to, as JSON. Not
/// listed.
const MIGRATE: &[u8] = b"weft.migrate";
/// Readable: the progress of the migration, as JSON. Not listed.
const MIGRATION: &[u8] = b"weft.migration";
/// Writable by a directory's owner: changes of its stripe pattern, as JSON. Not listed.
const PATTERN: &[u8] = b"weft.pattern";

impl Client {
    /// Returns the value of an attribute.
    pub async fn getxattr(&self, credentials: Credentials, ino: InodeId, name: &[u8]) -> Result<Bytes> {
        if name == ENTRY {
            return self.descriptions.describe(ino).await;
        }
        if name == MIGRATION {
            return self.descriptions.migration_of(ino).await;
        }
        // ls(1) and cp(1) request several of each file, and the kernel `CAPABILITY` before the first
        // write to any file.
        if self.files.has_no_xattrs(ino) || (name == CAPABILITY && self.inodes.has_no_xattrs(ino)) {
            return Err(Errno::ENODATA.into());
        }
        match self
            .session
            .query_as(credentials, MetaOp::GetXattr { ino, name: Bytes::copy_from_slice(name) })
            .await?
            .reply
        {
            MetaReply::Bytes(value) => Ok(value),
            other => Err(unexpected(other)),
        }
    }

    /// Sets an attribute.
    pub async fn setxattr(
        &self,
        credentials: Credentials,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_sgid: bool,
    ) -> Result<()> {
        if name == PATTERN {
            return self.set_pattern(credentials, ino, value).await;
        }
        if name == MIGRATE {
            return self.migrate(credentials, ino, value).await;
        }
        if name == ENTRY || name == MIGRATION {
            return Err(Error::new(Errno::EPERM, "weft.entry and weft.migration can only be read"));
        }
        let open = self.inodes.open(ino);
        if let Some(open) = &open {
            open.content.lock().has_no_xattrs = false;
        }
        // The service removes file capabilities when a session begins to write: the next write must
        // begin again.
        let _exclusive = match &open {
            Some(open) if name == CAPABILITY => {
                let guard = self.files.lock_exclusive(open, |_| LeaseNeed::Exclusive).await?;
                self.files.end_write(open, true).await?;
                Some(guard)
            }
            _ => None,
        };
        let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
        let set =
            self.session.change_as(credentials, MetaOp::SetXattr { ino, name, value, mode, kill_sgid }).await;
        // Also after a failure, which may be that of the answer.
        self.inodes.note_flags(ino, self.session.leases.stamp_request(), None);
        set.map(drop)
    }

    /// Returns the names of all stored attributes.
    pub async fn listxattr(&self, ino: InodeId) -> Result<Vec<Bytes>> {
        if self.files.has_no_xattrs(ino) {
            return Ok(Vec::new());
        }
        match self.session.query(MetaOp::ListXattr { ino }).await?.reply {
            MetaReply::Names(names) => Ok(names),
            other => Err(unexpected(other)),
        }
    }

    /// Removes an attribute.
    pub async fn removexattr(&self, credentials: Credentials, ino: InodeId, name: &[u8]) -> Result<()> {
        let name = Bytes::copy_from_slice(name);
        self.session.change_as(credentials, MetaOp::RemoveXattr { ino, name }).await.map(drop)
    }

    /// Changes a directory's stripe pattern, as its owner or root.
    async fn set_pattern(&self, credentials: Credentials, dir: InodeId, json: &[u8]) -> Result<()> {
        let attr = self.getattr(dir).await?;
        if credentials.uid != 0 && credentials.uid != attr.uid {
            return Err(Error::new(
                Errno::EPERM,
                format!("only the owner of directory {dir} may set its pattern"),
            ));
        }
        let change = parse_change(json)?;
        self.session.change_as(credentials, MetaOp::SetPattern { dir, change }).await.map(drop)
    }

    /// Requests the migration of a file to groups of another scheme or pool, as its owner or root.
    async fn migrate(&self, credentials: Credentials, ino: InodeId, json: &[u8]) -> Result<()> {
        let PatternChange { pool, scheme, .. } = parse_change(json)?;
        self.session.change_as(credentials, MetaOp::Migrate { ino, pool, scheme }).await.map(drop)
    }
}
