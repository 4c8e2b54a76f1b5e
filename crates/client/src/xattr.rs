//! Extended attributes: stored ones, and those by which tools talk to the file system through any
//! mount.

use crate::access::Need;
use crate::{Client, unexpected};
use bytes::Bytes;
use types::{Credentials, Errno, Error, InodeId, Result};
use wire::{MetaOp, MetaReply, XattrMode};

/// Read: a description of the inode as JSON. Not listed.
const ENTRY: &[u8] = b"weft.entry";
/// File capabilities, which a write takes away.
const CAPABILITY: &[u8] = b"security.capability";
/// Written, on a file, by its owner: the scheme and pool that it is to move to, as JSON. Not
/// listed.
const MIGRATE: &[u8] = b"weft.migrate";
/// Read: how far that is, as JSON. Not listed.
const MIGRATION: &[u8] = b"weft.migration";
/// Written, on a directory, by its owner: changes of its stripe pattern as JSON. Not listed.
const PATTERN: &[u8] = b"weft.pattern";

impl Client {
    /// The value of an attribute.
    pub async fn getxattr(&self, credentials: Credentials, ino: InodeId, name: &[u8]) -> Result<Bytes> {
        if name == ENTRY {
            return self.describe(ino).await;
        }
        if name == MIGRATION {
            return self.migration_of(ino).await;
        }
        // The kernel asks for it before the first write to any file.
        if name == CAPABILITY && self.is_bare(ino) {
            return Err(Errno::ENODATA.into());
        }
        match self
            .ask_for(credentials, MetaOp::GetXattr { ino, name: Bytes::copy_from_slice(name) })
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
            open.content.lock().bare = false;
        }
        // The service takes them away when a session begins to write: a write after this is to
        // begin anew.
        let _alone = match &open {
            Some(open) if name == CAPABILITY => {
                let alone = self.enter_alone(open, |_| Need::Alone).await?;
                self.end_write(open, true).await?;
                Some(alone)
            }
            _ => None,
        };
        let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
        self.change(credentials, MetaOp::SetXattr { ino, name, value, mode, kill_sgid }).await.map(drop)
    }

    fn is_bare(&self, ino: InodeId) -> bool {
        self.inodes.open(ino).is_some_and(|open| open.content.lock().bare)
    }

    /// Names of all stored attributes.
    pub async fn listxattr(&self, ino: InodeId) -> Result<Vec<Bytes>> {
        match self.ask(MetaOp::ListXattr { ino }).await?.reply {
            MetaReply::Names(names) => Ok(names),
            other => Err(unexpected(other)),
        }
    }

    /// Removes an attribute.
    pub async fn removexattr(&self, credentials: Credentials, ino: InodeId, name: &[u8]) -> Result<()> {
        let name = Bytes::copy_from_slice(name);
        self.change(credentials, MetaOp::RemoveXattr { ino, name }).await.map(drop)
    }
}
