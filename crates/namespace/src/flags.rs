//! Restrictions by flags and projects of inodes, which apply to root as well.
//!
//! They follow Linux (`fs/namei.c`, `fs/attr.c`, `fs/xattr.c`), and XFS for projects
//! (`fs/xfs/xfs_inode.c`). Opens and writes are not checked here: the client refuses them, and a
//! file that was open for writing when it became immutable can still be written.

use crate::record::Inode;
use crate::tx::Outcome;
use types::{Errno, Error, InodeFlags, InodeId, ProjectId, SetAttr, SetTime};

/// An inode and its number.
pub(crate) type Numbered<'a> = (InodeId, &'a Inode);

/// Whether extended attributes, size and stripe pattern may change.
pub(crate) fn may_change((ino, inode): Numbered<'_>) -> Outcome<()> {
    refuse(ino, inode.flags(), InodeFlags::READ_ONLY_FLAGS)
}

/// Whether these attributes may be set. Flags and project may, otherwise no flag could be cleared;
/// and a write drops setuid and setgid.
pub(crate) fn may_set((ino, inode): Numbered<'_>, set: &SetAttr) -> Outcome<()> {
    let is_given = |time: &Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    let is_touched = [set.atime, set.mtime].contains(&Some(SetTime::Now));
    let changes_owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    if changes_owner || is_given(&set.atime) || is_given(&set.mtime) || set.ctime.is_some() {
        return refuse(ino, inode.flags(), InodeFlags::READ_ONLY_FLAGS);
    }
    // With append permission, a user may set the times to now.
    refuse(ino, inode.flags(), if is_touched { InodeFlags::IMMUTABLE } else { InodeFlags::NONE })
}

/// Whether a directory may get a name.
pub(crate) fn may_add_name((dir, directory): Numbered<'_>) -> Outcome<()> {
    refuse(dir, directory.flags(), InodeFlags::IMMUTABLE)
}

/// Whether a directory may lose this name of an inode.
pub(crate) fn may_remove_name((dir, directory): Numbered<'_>, (ino, inode): Numbered<'_>) -> Outcome<()> {
    refuse(dir, directory.flags(), InodeFlags::READ_ONLY_FLAGS)?;
    refuse(ino, inode.flags(), InodeFlags::READ_ONLY_FLAGS)
}

/// Whether an existing inode may be moved or linked into a directory: a directory that passes its
/// project on contains nothing of another project.
pub(crate) fn may_enter((dir, directory): Numbered<'_>, (ino, inode): Numbered<'_>) -> Outcome<()> {
    if !directory.flags().intersects(InodeFlags::PROJECT_INHERIT) || directory.project == inode.project {
        return Ok(());
    }
    let (theirs, its) = (directory.project, inode.project);
    let message = format!(
        "inode {ino} of project {its} can't be moved or linked into directory {dir} of project {theirs}"
    );
    Err(Error::new(Errno::EXDEV, message).hint("copy it, or set its project first: chattr -p").into())
}

/// Sets the flags and project that a new inode inherits from its directory.
pub(crate) fn inherit(directory: &Inode, inode: &mut Inode) {
    let flags = directory.flags();
    inode.flags = inode.kind().map_or(InodeFlags::NONE, |kind| flags.inherited_flags(kind)).0;
    inode.project = flags.inherited_project(ProjectId(directory.project)).0;
}

/// Sets flags and project. Only directories may have inheritance flags.
///
/// # Errors
/// `EOPNOTSUPP` for flags of inodes that can't be opened to set them, as on local file systems.
pub(crate) fn set(inode: &mut Inode, set: &SetAttr) -> Outcome<()> {
    if let Some(project) = set.project {
        inode.project = project.0;
    }
    let Some(flags) = set.flags else { return Ok(()) };
    if !inode.is_directory() && !inode.is_regular() {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let unfit = if inode.is_directory() { InodeFlags::NONE } else { InodeFlags::PROJECT_INHERIT };
    inode.flags = flags.difference(unfit).0;
    Ok(())
}

fn refuse(ino: InodeId, flags: InodeFlags, forbidding: InodeFlags) -> Outcome<()> {
    let found = flags.intersection(forbidding);
    if found == InodeFlags::NONE {
        return Ok(());
    }
    let (what, letter) =
        if found.intersects(InodeFlags::IMMUTABLE) { ("immutable", 'i') } else { ("append-only", 'a') };
    Err(Error::new(Errno::EPERM, format!("inode {ino} is {what}")).hint(format!("chattr -{letter}")).into())
}
