//! What the client knows of inodes that its kernel doesn't: the flags (chattr(1)), which the client
//! enforces since the service doesn't see these operations, and whether there are extended
//! attributes, so that it needn't ask for one that doesn't exist.
//!
//! The metadata service refuses changes of names, attributes and sizes. The client checks whether a
//! file may be opened for writing, when it is opened: a file that was open before a flag was set
//! stays writable, as with XFS.

use crate::file::Files;
use crate::session::leases::RequestStamp;
use crate::{Handle, entry};
use std::sync::atomic::Ordering;
use types::{Attr, Errno, Error, InodeFlags, InodeId, Result};
use wire::MetaOp;

const O_APPEND: u32 = 0o2000;

/// Flags of an inode from an answer, and whether it has no extended attributes.
#[derive(Clone, Copy)]
pub(crate) struct KnownFlags {
    stamp: RequestStamp,
    /// `None`: they have changed, and earlier answers are outdated.
    known: Option<(InodeFlags, bool)>,
}

impl KnownFlags {
    /// Merges the flags of an answer; those of the latest request win.
    pub(crate) fn newer(
        known: Option<KnownFlags>,
        stamp: RequestStamp,
        attr: Option<&Attr>,
    ) -> Option<KnownFlags> {
        match known {
            Some(known) if known.stamp.is_after(stamp) => Some(known),
            _ => Some(KnownFlags { stamp, known: attr.map(|attr| (attr.flags, attr.has_no_xattrs)) }),
        }
    }
}

impl Files {
    /// Refuses a file that was opened for writing against its flags, and restricts an append-only
    /// handle.
    ///
    /// # Errors
    /// `EPERM`, and the errors of the request for the flags.
    pub(crate) async fn check_write_flags(&self, handle: &Handle, open_flags: u32) -> Result<()> {
        if !handle.is_writable() {
            return Ok(());
        }
        let flags = match self.flags_under_lease(handle.ino()) {
            Some(flags) => flags,
            None => Box::pin(self.query_flags(handle.ino())).await?,
        };
        handle.apply_flags(flags, open_flags)
    }

    /// Returns the flags if a lease has covered them since: no other session has changed them.
    fn flags_under_lease(&self, ino: InodeId) -> Option<InodeFlags> {
        let known = self.inodes.flags(ino)?;
        self.session.leases.lease_covering(known.stamp, ino)?;
        known.known.map(|(flags, _)| flags)
    }

    /// Whether an inode surely has no extended attributes: an answer said so, and a lease has covered
    /// it since.
    pub(crate) fn has_no_xattrs(&self, ino: InodeId) -> bool {
        self.inodes.flags(ino).is_some_and(|flags| {
            flags.known.is_some_and(|(_, has_no_xattrs)| has_no_xattrs)
                && self.session.leases.is_cacheable(flags.stamp, ino)
        })
    }

    async fn query_flags(&self, ino: InodeId) -> Result<InodeFlags> {
        let answer = self.session.query(MetaOp::Getattr { ino }).await?;
        let (stamp, attr) = (answer.stamp, entry(answer.reply)?);
        self.inodes.note_flags(attr.ino, stamp, Some(&attr));
        Ok(attr.flags)
    }
}

impl Handle {
    /// Refuses an open for writing that the file's flags forbid.
    fn apply_flags(&self, flags: InodeFlags, open_flags: u32) -> Result<()> {
        let ino = self.ino();
        if flags.intersects(InodeFlags::IMMUTABLE) {
            let message = format!("inode {ino} is immutable and can't be opened for writing");
            return Err(Error::new(Errno::EPERM, message).hint("chattr -i"));
        }
        if flags.intersects(InodeFlags::APPEND) {
            if open_flags & O_APPEND == 0 {
                let message =
                    format!("inode {ino} is append-only and can't be opened for writing without O_APPEND");
                return Err(Error::new(Errno::EPERM, message).hint("chattr -a"));
            }
            self.append_only.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Refuses an operation that doesn't only append, on an append-only handle. It was opened with
    /// `O_APPEND`, which fcntl(2) can clear; a mapping doesn't append at all.
    pub(crate) fn ensure_append_only(&self, appends: bool) -> Result<()> {
        if appends || !self.append_only.load(Ordering::Relaxed) {
            return Ok(());
        }
        let message = format!("inode {} is append-only: existing content can't be changed", self.ino());
        Err(Error::new(Errno::EPERM, message).hint("write with O_APPEND"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::leases::Leases;
    use types::Timestamp;

    /// Answers arrive in any order.
    #[test]
    fn flags_of_an_older_answer_are_ignored() {
        let leases = Leases::new(false);
        let stamp = [leases.stamp_request(), leases.stamp_request(), leases.stamp_request()];
        let changed = KnownFlags::newer(None, stamp[1], None);
        let answered = Attr {
            ino: InodeId(2),
            mode: types::mode::S_IFREG | 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
            flags: InodeFlags::NODUMP,
            project: types::ProjectId(0),
            has_no_xattrs: true,
        };
        let told = |stamp| {
            let known = KnownFlags::newer(changed, stamp, Some(&answered));
            known.and_then(|known| known.known)
        };
        assert_eq!(told(stamp[0]), None, "it is of before the change");
        assert_eq!(told(stamp[2]), Some((InodeFlags::NODUMP, true)));
    }
}
