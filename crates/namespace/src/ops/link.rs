//! Additional names of an inode.

use crate::flags;
use crate::keys;
use crate::record::{Entry, Inode};
use crate::tx::{Outcome, Tx, check_name, is_dot_name};
use types::{Errno, InodeId};
use wire::MetaReply;

/// The most names that an inode can have.
const MAX_LINKS: u32 = 1 << 31;

/// Adds a name of an inode.
pub(crate) fn link(tx: &mut Tx<'_>, ino: InodeId, parent: InodeId, name: &[u8]) -> Outcome<MetaReply> {
    check_name(name)?;
    let mut directory = tx.live_directory(parent)?;
    let slot = tx.slot(parent, name)?;
    if is_dot_name(name) || slot.entry.is_some() {
        return Err(Errno::EEXIST.into());
    }
    flags::may_add_name((parent, &directory))?;
    let mut inode = tx.get::<Inode>(&keys::inode(ino))?.ok_or(Errno::ENOENT)?;
    flags::may_change((ino, &inode))?;
    if inode.is_directory() {
        return Err(Errno::EPERM.into());
    }
    if inode.nlink == 0 {
        // Only an inode that never had a name can get its first one; a removed one stays removed.
        if !inode.tmpfile {
            return Err(Errno::ENOENT.into());
        }
        inode.tmpfile = false;
        tx.delete(keys::orphan(ino));
    }
    flags::may_enter((parent, &directory), (ino, &inode))?;
    if inode.nlink >= MAX_LINKS {
        return Err(Errno::EMLINK.into());
    }
    inode.nlink += 1;
    inode.touch(tx.env.now);
    directory.modify(tx.env.now);
    tx.put_inode(ino, &inode);
    tx.fill(slot, Entry::new(ino, inode.mode));
    tx.put_inode(parent, &directory);
    Ok(MetaReply::Entry(inode.attr(ino)))
}
