//! Removal of names.

use crate::flags;
use crate::keys;
use crate::record::Inode;
use crate::tx::{Outcome, Slot, Tx, check_name, is_dot_name};
use types::{Errno, InodeId};
use wire::MetaReply;

/// Removes a name of an inode that isn't a directory; `ENOENT` if the name is that of another inode
/// than the `expected` one.
pub(crate) fn unlink(
    tx: &mut Tx<'_>,
    (parent, name): (InodeId, &[u8]),
    expected: Option<InodeId>,
) -> Outcome<MetaReply> {
    check_name(name)?;
    let directory = tx.directory(parent)?;
    if is_dot_name(name) {
        return Err(Errno::EISDIR.into());
    }
    let (slot, ino, inode) = find(tx, parent, name)?;
    if expected.is_some_and(|expected| expected != ino) {
        return Err(Errno::ENOENT.into());
    }
    flags::may_remove_name((parent, &directory), (ino, &inode))?;
    if inode.is_directory() {
        return Err(Errno::EISDIR.into());
    }
    store(tx, (parent, directory), slot, (ino, inode))
}

/// Removes an empty directory.
pub(crate) fn rmdir(tx: &mut Tx<'_>, parent: InodeId, name: &[u8]) -> Outcome<MetaReply> {
    check_name(name)?;
    let mut directory = tx.directory(parent)?;
    match name {
        b"." => return Err(Errno::EINVAL.into()),
        b".." => return Err(Errno::ENOTEMPTY.into()),
        _ => {}
    }
    let (slot, ino, inode) = find(tx, parent, name)?;
    flags::may_remove_name((parent, &directory), (ino, &inode))?;
    if !inode.is_directory() {
        return Err(Errno::ENOTDIR.into());
    }
    check_empty(tx, ino)?;
    directory.nlink = directory.nlink.saturating_sub(1);
    store(tx, (parent, directory), slot, (ino, inode))
}

fn find(tx: &Tx<'_>, parent: InodeId, name: &[u8]) -> Outcome<(Slot, InodeId, Inode)> {
    let slot = tx.slot(parent, name)?;
    let entry = slot.entry.ok_or(Errno::ENOENT)?;
    let inode = tx.named_inode(parent, &entry)?;
    Ok((slot, entry.id(), inode))
}

fn store(
    tx: &mut Tx<'_>,
    (parent, mut directory): (InodeId, Inode),
    slot: Slot,
    (ino, inode): (InodeId, Inode),
) -> Outcome<MetaReply> {
    directory.modify(tx.env.now);
    tx.clear(slot);
    tx.put_inode(parent, &directory);
    let inode = drop_name(tx, ino, inode);
    Ok(MetaReply::Entry(inode.attr(ino)))
}

/// Removes one name of an inode; without names it becomes an orphan. A directory has only one name.
pub(super) fn drop_name(tx: &mut Tx<'_>, ino: InodeId, mut inode: Inode) -> Inode {
    inode.nlink = if inode.is_directory() { 0 } else { inode.nlink.saturating_sub(1) };
    inode.touch(tx.env.now);
    if inode.nlink == 0 {
        tx.put_orphan(ino);
    }
    tx.put_inode(ino, &inode);
    inode
}

/// `ENOTEMPTY` for a directory with entries.
pub(super) fn check_empty(tx: &Tx<'_>, dir: InodeId) -> Outcome<()> {
    let entries = tx.scan(&keys::entries_after(dir, 0), 1)?;
    if entries.is_empty() { Ok(()) } else { Err(Errno::ENOTEMPTY.into()) }
}
