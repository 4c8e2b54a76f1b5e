//! Lookups.

use crate::tx::{Outcome, Tx, check_name};
use types::{Errno, InodeId, mode};
use wire::MetaReply;

/// Looks up a name in a directory.
pub(crate) fn lookup(tx: &Tx<'_>, parent: InodeId, name: &[u8]) -> Outcome<MetaReply> {
    check_name(name)?;
    let ino = match name {
        // The kernel looks up `.` of any inode, not just of directories, when it decodes a file
        // handle.
        b"." => parent,
        b".." => tx.directory(parent)?.parent_id(),
        _ => return lookup_entry(tx, parent, name),
    };
    let inode = tx.inode(ino)?;
    Ok(MetaReply::Entry(inode.attr(ino)))
}

fn lookup_entry(tx: &Tx<'_>, parent: InodeId, name: &[u8]) -> Outcome<MetaReply> {
    // The directory itself is read only on a miss, to distinguish "no such name" from "no such
    // directory": a hit takes two reads.
    let Some(entry) = tx.slot(parent, name)?.entry else {
        tx.directory(parent)?;
        return Err(Errno::ENOENT.into());
    };
    let inode = tx.named_inode(parent, &entry)?;
    Ok(MetaReply::Entry(inode.attr(entry.id())))
}

/// Looks up a name in a directory without reading the inode.
pub(crate) fn find(tx: &Tx<'_>, parent: InodeId, name: &[u8]) -> Outcome<(InodeId, u32)> {
    check_name(name)?;
    if name == b".." {
        return Ok((tx.directory(parent)?.parent_id(), mode::S_IFDIR));
    }
    let entry = tx.slot(parent, name)?.entry.ok_or(Errno::ENOENT)?;
    Ok((entry.id(), entry.kind))
}

/// The target of a symlink.
pub(crate) fn readlink(tx: &Tx<'_>, ino: InodeId) -> Outcome<MetaReply> {
    let inode = tx.inode(ino)?;
    if inode.mode & mode::S_IFMT != mode::S_IFLNK {
        return Err(Errno::EINVAL.into());
    }
    Ok(MetaReply::Bytes(inode.target))
}
