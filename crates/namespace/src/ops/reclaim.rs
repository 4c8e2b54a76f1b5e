//! Deletion of inodes.

use crate::attributes::MAX_XATTR_NAMES;
use crate::background::MAX_WRITERS;
use crate::keys;
use crate::record::{Inode, Orphan};
use crate::stripe_move::doomed_with;
use crate::tx::{Outcome, Tx};
use types::{Errno, InodeId};
use wire::{MAX_RECLAIMED, MetaReply};

/// Deletes orphans of one partition.
pub(crate) fn reclaim(tx: &mut Tx<'_>, ino: InodeId, others: &[InodeId]) -> Outcome<MetaReply> {
    let is_elsewhere = |other: &InodeId| other.partition() != ino.partition();
    if others.len() >= MAX_RECLAIMED || others.iter().any(is_elsewhere) {
        return Err(Errno::EINVAL.into());
    }
    delete(tx, ino)?;
    for other in others {
        delete(tx, *other)?;
    }
    Ok(MetaReply::Unit)
}

/// Deletes an orphan with all that belongs to it. Its chunk files are recorded as doomed: the
/// metadata service deletes them afterwards. An inode that doesn't exist, or that has a name, is
/// left alone.
fn delete(tx: &mut Tx<'_>, ino: InodeId) -> Outcome<()> {
    let is_orphan = tx.get::<Orphan>(&keys::orphan(ino))?.is_some();
    let inode = match tx.get::<Inode>(&keys::inode(ino))? {
        Some(inode) if is_orphan && inode.nlink == 0 => inode,
        _ => return Ok(()),
    };
    let mut owned = Vec::new();
    if inode.xattr_names > 0 {
        owned.extend(tx.scan(&keys::xattrs_of(ino), MAX_XATTR_NAMES as usize)?);
    }
    if inode.is_regular() {
        owned.extend(tx.scan(&keys::writing_of(ino), MAX_WRITERS)?);
    }
    for (key, _) in owned {
        tx.delete(key.as_ref());
    }
    if inode.inline && inode.size > 0 {
        tx.delete(keys::inline(ino));
    }
    if let Some(layout) = &inode.layout {
        // A stripe that moved may have left a chunk file with the same name.
        let name = ino.first_chunk_file();
        let earlier = tx.get(&keys::doomed(name))?;
        tx.put(keys::doomed(name), &doomed_with(earlier, layout));
    }
    tx.count_deleted(ino)?;
    tx.delete(keys::orphan(ino));
    tx.delete(keys::inode(ino));
    Ok(())
}
