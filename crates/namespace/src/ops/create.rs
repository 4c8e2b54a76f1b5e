//! Creation of inodes.

use crate::flags;
use crate::keys;
use crate::permissions::{self, Inherited};
use crate::record::{Entry, Inode, Pattern};
use crate::tx::{Outcome, Slot, Tx, check_name, is_dot_name};
use bytes::Bytes;
use types::{Errno, FileKind, InodeId, StripePattern, mode};
use wire::MetaReply;

/// The longest target of a symlink, in bytes (Linux `PATH_MAX` less the terminating zero).
const MAX_SYMLINK_TARGET: usize = 4095;

/// Attributes of a new file.
pub(crate) struct NewFile {
    /// Type and permissions, as `st_mode`; without a type, a regular file.
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
    /// An existing name is an error.
    pub exclusive: bool,
}

/// A directory about to get a new entry.
pub(super) struct NewEntry {
    pub dir: InodeId,
    pub directory: Inode,
    pub slot: Slot,
}

impl NewEntry {
    /// Reads the directory and the slot for a valid new name.
    pub fn open(tx: &Tx<'_>, dir: InodeId, name: &[u8]) -> Outcome<NewEntry> {
        check_name(name)?;
        let directory = tx.live_directory(dir)?;
        if is_dot_name(name) {
            return Err(Errno::EEXIST.into());
        }
        let slot = tx.slot(dir, name)?;
        Ok(NewEntry { dir, directory, slot })
    }

    /// As [`NewEntry::open`], for a name that must not exist.
    fn open_free(tx: &Tx<'_>, dir: InodeId, name: &[u8]) -> Outcome<NewEntry> {
        let site = NewEntry::open(tx, dir, name)?;
        if site.slot.entry.is_some() {
            return Err(Errno::EEXIST.into());
        }
        flags::may_add_name((dir, &site.directory))?;
        Ok(site)
    }

    /// Stores the new inode, its entry and the directory, and returns the answer.
    pub fn finish(mut self, tx: &mut Tx<'_>, ino: InodeId, inode: &Inode) -> MetaReply {
        self.directory.modify(tx.env.now);
        tx.put_inode(ino, inode);
        tx.fill(self.slot, Entry::new(ino, inode.mode));
        tx.put_inode(self.dir, &self.directory);
        created_reply(ino, inode)
    }
}

/// Creates a regular file, fifo, socket or device node.
pub(crate) fn create(tx: &mut Tx<'_>, parent: InodeId, name: &[u8], new: NewFile) -> Outcome<MetaReply> {
    let file_type = file_type(new.mode)?;
    let site = NewEntry::open(tx, parent, name)?;
    if let Some(entry) = site.slot.entry {
        if new.exclusive {
            return Err(Errno::EEXIST.into());
        }
        let inode = tx.named_inode(parent, &entry)?;
        return Ok(MetaReply::Entry(inode.attr(entry.id())));
    }
    flags::may_add_name((parent, &site.directory))?;
    let ino = tx.allocate(parent.partition())?;
    let mut inode = named_file(tx, &site, ino, (file_type | new.mode & mode::PERMISSIONS, new.umask))?;
    inode.rdev = new.rdev;
    Ok(site.finish(tx, ino, &inode))
}

/// A new file with this number that gets the name of a site, and inherits attributes there.
/// `asked`: the type and permissions of its mode, and the umask.
pub(super) fn named_file(
    tx: &mut Tx<'_>,
    site: &NewEntry,
    ino: InodeId,
    (requested_mode, umask): (u32, u32),
) -> Outcome<Inode> {
    let inherited = permissions::inherit(tx, site.dir, &site.directory, requested_mode, umask)?;
    let mut inode = file(tx, &site.directory, requested_mode & mode::S_IFMT, &inherited);
    inode.nlink = 1;
    permissions::adopt(tx, ino, &mut inode, inherited)?;
    Ok(inode)
}

/// Creates a directory, in a partition chosen by hash.
pub(crate) fn mkdir(
    tx: &mut Tx<'_>,
    parent: InodeId,
    name: &[u8],
    requested_mode: u32,
    umask: u32,
) -> Outcome<MetaReply> {
    let mut site = NewEntry::open_free(tx, parent, name)?;
    let inherited = permissions::inherit(tx, parent, &site.directory, requested_mode, umask)?;
    let partition = keys::directory_partition(tx.env.hash_key, tx.env.partitions, parent, name);
    let ino = tx.allocate(partition)?;
    let mut inode = new_inode(tx, &site.directory, mode::S_IFDIR | inherited.permissions);
    inode.mode |= site.directory.mode & mode::S_ISGID;
    inode.nlink = 2;
    inode.parent = parent.0;
    inode.pattern = Some(pattern_for_children(&site.directory));
    permissions::adopt(tx, ino, &mut inode, inherited)?;
    site.directory.nlink += 1;
    Ok(site.finish(tx, ino, &inode))
}

/// Creates a symlink.
pub(crate) fn symlink(tx: &mut Tx<'_>, parent: InodeId, name: &[u8], target: &Bytes) -> Outcome<MetaReply> {
    if target.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if target.len() > MAX_SYMLINK_TARGET {
        return Err(Errno::ENAMETOOLONG.into());
    }
    let site = NewEntry::open_free(tx, parent, name)?;
    let ino = tx.allocate(parent.partition())?;
    let mut inode = new_inode(tx, &site.directory, mode::S_IFLNK | 0o777);
    inode.nlink = 1;
    inode.target = target.clone();
    Ok(site.finish(tx, ino, &inode))
}

/// Creates a whiteout for a name in a directory, and returns its entry. A whiteout is a character
/// device 0:0 without permissions, as the kernel's file systems create it.
pub(super) fn whiteout(tx: &mut Tx<'_>, dir: InodeId) -> Outcome<Entry> {
    let directory = tx.directory(dir)?;
    let ino = tx.allocate(dir.partition())?;
    let mut inode = new_inode(tx, &directory, mode::S_IFCHR);
    inode.nlink = 1;
    tx.put_inode(ino, &inode);
    Ok(Entry::new(ino, inode.mode))
}

/// Creates a regular file without a name. The directory doesn't change.
pub(crate) fn tmpfile(
    tx: &mut Tx<'_>,
    parent: InodeId,
    requested_mode: u32,
    umask: u32,
) -> Outcome<MetaReply> {
    let directory = tx.live_directory(parent)?;
    flags::may_add_name((parent, &directory))?;
    let inherited = permissions::inherit(tx, parent, &directory, requested_mode, umask)?;
    let ino = tx.allocate(parent.partition())?;
    let mut inode = file(tx, &directory, mode::S_IFREG, &inherited);
    inode.tmpfile = true;
    permissions::adopt(tx, ino, &mut inode, inherited)?;
    tx.put_inode(ino, &inode);
    tx.put_orphan(ino);
    Ok(created_reply(ino, &inode))
}

/// The answer that describes a new inode.
fn created_reply(ino: InodeId, inode: &Inode) -> MetaReply {
    let attr = inode.attr(ino);
    if !inode.is_regular() {
        return MetaReply::Entry(attr);
    }
    let inline_limit = inode.pattern.map_or(0, |pattern| pattern.inline_limit);
    MetaReply::Created { attr, inline_limit, has_no_xattrs: inode.xattr_names == 0, begun: None }
}

/// The type bits of a mode that [`create`] supports.
fn file_type(requested_mode: u32) -> Outcome<u32> {
    if requested_mode & mode::S_IFMT == 0 {
        return Ok(mode::S_IFREG);
    }
    match FileKind::from_mode(requested_mode) {
        None | Some(FileKind::Directory | FileKind::Symlink) => Err(Errno::EINVAL.into()),
        Some(kind) => Ok(kind.mode_bits()),
    }
}

/// A new inode for [`create`] or [`tmpfile`], without names.
fn file(tx: &Tx<'_>, directory: &Inode, file_type: u32, inherited: &Inherited) -> Inode {
    let mut inode = new_inode(tx, directory, file_type | inherited.permissions);
    if inode.is_regular() {
        let pattern = pattern_for_children(directory);
        inode.inline = pattern.inline_limit > 0;
        inode.pattern = Some(pattern);
    }
    inode
}

/// Common attributes of all new inodes: times, the owner by System V and BSD group rules, and the
/// project.
fn new_inode(tx: &Tx<'_>, directory: &Inode, mode: u32) -> Inode {
    let now = Some(tx.env.now.into());
    let gid = if directory.mode & mode::S_ISGID != 0 { directory.gid } else { tx.env.credentials.gid };
    let mut inode = Inode {
        mode,
        uid: tx.env.credentials.uid,
        gid,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        ..Inode::default()
    };
    flags::inherit(directory, &mut inode);
    inode
}

pub(super) fn pattern_for_children(directory: &Inode) -> Pattern {
    directory.pattern.unwrap_or_else(|| (&StripePattern::default()).into())
}
