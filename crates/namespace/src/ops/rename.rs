//! Renames.

use super::create;
use super::unlink::{check_empty, drop_name};
use crate::flags::{self, Numbered};
use crate::record::{Entry, Inode};
use crate::tx::{Outcome, Slot, Tx, check_name, is_dot_name};
use types::{Errno, Error, InodeId};
use wire::{MetaReply, RenameMode};

/// The longest path upward from a directory: a longer one is a loop, which is damage.
const MAX_DEPTH: usize = 1 << 20;

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct EntryRef<'a> {
    pub dir: InodeId,
    pub name: &'a [u8],
}

/// One of the two sides of a rename: a place and its inode.
struct Side {
    dir: InodeId,
    slot: Slot,
    ino: InodeId,
    inode: Inode,
}

impl Side {
    fn entry(&self) -> Entry {
        Entry::new(self.ino, self.inode.mode)
    }

    fn numbered(&self) -> Numbered<'_> {
        (self.ino, &self.inode)
    }

    /// Link count that the inode adds to its directory, as a subdirectory.
    fn links(&self) -> i32 {
        self.inode.is_directory() as i32
    }
}

/// Moves a name, replaces the target name, or exchanges the two; a whiteout may stay behind.
pub(crate) fn rename(
    tx: &mut Tx<'_>,
    from: EntryRef<'_>,
    to: EntryRef<'_>,
    mode: RenameMode,
) -> Outcome<MetaReply> {
    check_name(from.name)?;
    check_name(to.name)?;
    let directories = (tx.directory(from.dir)?, tx.live_directory(to.dir)?);
    let dirs = ((from.dir, &directories.0), (to.dir, &directories.1));
    if is_dot_name(from.name) || is_dot_name(to.name) {
        return Err(Errno::EBUSY.into());
    }
    let slot = tx.slot(from.dir, from.name)?;
    let entry = slot.entry.ok_or(Errno::ENOENT)?;
    let target = tx.slot(to.dir, to.name)?;
    match (mode, target.entry) {
        (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST.into()),
        (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
        _ => {}
    }
    let inode = tx.named_inode(from.dir, &entry)?;
    let source = Side { dir: from.dir, slot, ino: entry.id(), inode };
    check_not_below(tx, &source, to.dir)?;

    let Some(replaced) = target.entry else {
        check_flags(dirs, &source, None, mode)?;
        return move_to_free(tx, source, to.dir, target, mode);
    };
    if replaced.id() == source.ino {
        // Two names of one inode: POSIX requires that both stay.
        return Ok(MetaReply::Renamed { moved: source.inode.attr(source.ino), other: None });
    }
    let inode = tx.named_inode(to.dir, &replaced)?;
    let target = Side { dir: to.dir, slot: target, ino: replaced.id(), inode };
    check_flags(dirs, &source, Some(&target), mode)?;
    match mode {
        RenameMode::Exchange => exchange(tx, source, target),
        RenameMode::Replace | RenameMode::NoReplace | RenameMode::Whiteout => {
            replace(tx, source, target, mode)
        }
    }
}

/// Checks the flags of the directories, of the moved inode and of the replaced one.
fn check_flags(
    (from, to): (Numbered<'_>, Numbered<'_>),
    source: &Side,
    target: Option<&Side>,
    mode: RenameMode,
) -> Outcome<()> {
    flags::may_remove_name(from, source.numbered())?;
    match target {
        Some(target) => flags::may_remove_name(to, target.numbered())?,
        None => flags::may_add_name(to)?,
    }
    if from.0 == to.0 {
        return Ok(());
    }
    flags::may_enter(to, source.numbered())?;
    match target.filter(|_| mode == RenameMode::Exchange) {
        Some(target) => flags::may_enter(from, target.numbered()),
        None => Ok(()),
    }
}

fn move_to_free(
    tx: &mut Tx<'_>,
    source: Side,
    to: InodeId,
    slot: Slot,
    mode: RenameMode,
) -> Outcome<MetaReply> {
    let (from, links) = (source.dir, source.links());
    tx.fill(slot, source.entry());
    vacate(tx, from, source.slot, mode)?;
    let moved = store_moved(tx, source.ino, source.inode, to);
    store_directories(tx, (from, -links), (to, links))?;
    Ok(MetaReply::Renamed { moved, other: None })
}

/// Removes the name from its old place in directory `dir`, or leaves a whiteout there.
fn vacate(tx: &mut Tx<'_>, dir: InodeId, slot: Slot, mode: RenameMode) -> Outcome<()> {
    if mode == RenameMode::Whiteout {
        let whiteout = create::whiteout(tx, dir)?;
        tx.fill(slot, whiteout);
    } else {
        tx.clear(slot);
    }
    Ok(())
}

fn replace(tx: &mut Tx<'_>, source: Side, target: Side, mode: RenameMode) -> Outcome<MetaReply> {
    match (source.inode.is_directory(), target.inode.is_directory()) {
        (true, false) => return Err(Errno::ENOTDIR.into()),
        (false, true) => return Err(Errno::EISDIR.into()),
        (true, true) => check_empty(tx, target.ino)?,
        (false, false) => {}
    }
    let (from, to) = (source.dir, target.dir);
    let (from_links, to_links) = (-source.links(), source.links() - target.links());
    tx.fill(target.slot, source.entry());
    vacate(tx, from, source.slot, mode)?;
    let moved = store_moved(tx, source.ino, source.inode, to);
    let replaced = drop_name(tx, target.ino, target.inode);
    store_directories(tx, (from, from_links), (to, to_links))?;
    Ok(MetaReply::Renamed { moved, other: Some(replaced.attr(target.ino)) })
}

fn exchange(tx: &mut Tx<'_>, source: Side, target: Side) -> Outcome<MetaReply> {
    check_not_below(tx, &target, source.dir)?;
    let (from, to) = (source.dir, target.dir);
    let links = source.links() - target.links();
    let (source_entry, target_entry) = (source.entry(), target.entry());
    tx.fill(source.slot, target_entry);
    tx.fill(target.slot, source_entry);
    let moved = store_moved(tx, source.ino, source.inode, to);
    let other = store_moved(tx, target.ino, target.inode, from);
    store_directories(tx, (from, -links), (to, links))?;
    Ok(MetaReply::Renamed { moved, other: Some(other) })
}

/// Stores an inode whose name is now in directory `to`.
fn store_moved(tx: &mut Tx<'_>, ino: InodeId, mut inode: Inode, to: InodeId) -> types::Attr {
    inode.touch(tx.env.now);
    if inode.is_directory() {
        inode.parent = to.0;
    }
    tx.put_inode(ino, &inode);
    inode.attr(ino)
}

/// Stores the directories that lost and got an entry, with their new link counts.
fn store_directories(tx: &mut Tx<'_>, from: (InodeId, i32), to: (InodeId, i32)) -> Outcome<()> {
    let now = tx.env.now;
    let mut update = |dir: InodeId, links: i32| {
        tx.change_inode(dir, |directory| {
            directory.nlink = directory.nlink.saturating_add_signed(links);
            directory.modify(now);
        })
    };
    if from.0 == to.0 {
        update(to.0, from.1 + to.1)?;
    } else {
        update(from.0, from.1)?;
        update(to.0, to.1)?;
    }
    Ok(())
}

/// `EINVAL` if a directory would move into itself or below itself.
fn check_not_below(tx: &Tx<'_>, moving: &Side, new_parent: InodeId) -> Outcome<()> {
    if !moving.inode.is_directory() || moving.dir == new_parent {
        return Ok(());
    }
    let mut ancestor = new_parent;
    for _ in 0..MAX_DEPTH {
        if ancestor == moving.ino {
            return Err(Errno::EINVAL.into());
        }
        if ancestor == InodeId::ROOT {
            return Ok(());
        }
        ancestor = tx.directory(ancestor)?.parent_id();
    }
    let message = format!("the path upward from directory {new_parent} doesn't end at the root");
    Err(Error::new(Errno::EIO, message).into())
}
