//! Attributes.

use crate::ops::async_create::recent_or_now;
use crate::record::{Inode, Time};
use crate::tx::{Outcome, Tx};
use crate::{flags, permissions};
use types::{InodeId, SetAttr, SetTime, Timestamp};
use wire::MetaReply;

/// The attributes of an inode.
pub(crate) fn getattr(tx: &Tx<'_>, ino: InodeId) -> Outcome<MetaReply> {
    Ok(MetaReply::Attr(tx.inode(ino)?.attr(ino)))
}

/// Changes attributes. A change of owner drops setuid and setgid of all inodes but directories, for
/// every caller, as in Linux (chown(2)), unless the same request sets the mode.
pub(crate) fn setattr(tx: &mut Tx<'_>, ino: InodeId, set: &SetAttr) -> Outcome<MetaReply> {
    let mut inode = tx.inode(ino)?;
    let before = inode.attr(ino).ctime;
    // A client whose clock is behind must not turn it back.
    let ctime = set.ctime.map(|at| recent_or_now(Some(at), tx.env.now).max(before));
    set_attributes(tx, ino, &mut inode, &SetAttr { ctime, ..*set })?;
    tx.put_inode(ino, &inode);
    Ok(MetaReply::Attr(inode.attr(ino)))
}

/// Changes attributes of an inode, which the caller stores.
pub(super) fn set_attributes(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode, set: &SetAttr) -> Outcome<()> {
    flags::may_set((ino, inode), set)?;
    flags::set(inode, set)?;
    let now = tx.env.now;
    let changes_owner = set.uid.is_some() || set.gid.is_some();
    if let Some(uid) = set.uid {
        inode.uid = uid;
    }
    if let Some(gid) = set.gid {
        inode.gid = gid;
    }
    match set.mode {
        Some(mode) => permissions::chmod(tx, ino, inode, mode)?,
        None if changes_owner && !inode.is_directory() => inode.kill_suid_sgid(),
        None => {}
    }
    if set.kill_suid_sgid {
        inode.kill_suid_sgid();
    }
    if let Some(atime) = set.atime {
        inode.atime = Some(resolve(atime, now));
    }
    if let Some(mtime) = set.mtime {
        inode.mtime = Some(resolve(mtime, now));
    }
    inode.touch(set.ctime.unwrap_or(now));
    Ok(())
}

fn resolve(time: SetTime, now: Timestamp) -> Time {
    match time {
        SetTime::Now => now.into(),
        SetTime::At(time) => time.into(),
    }
}
