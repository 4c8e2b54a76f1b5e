//! Permission checks.
//!
//! [`permit`] checks what a command itself needs of its caller: to change the names of a directory,
//! or to change attributes. It follows Linux (`fs/namei.c`, `fs/attr.c`, `fs/xattr.c`,
//! `fs/posix_acl.c`). It leaves other checks to the client's kernel, which asks the service only
//! once for what it may cache under a lease. These are path lookup, reading names and attributes,
//! and opening a file that the kernel knows. An open file may be read, written and truncated
//! whatever its mode says by then. If an application opens a file to create it and the file
//! existed, the kernel takes it for new: for such a file the client asks.
//!
//! A client's kernel doesn't know the ids to which the service squashes its users. For such users,
//! [`permit_anonymous`] checks everything.

use crate::attributes::{self, CAPABILITY};
use crate::keys;
use crate::permissions::{self, ACCESS_ACL};
use crate::record::{Inode, Writing};
use crate::tx::{Outcome, Tx};
use crate::{Env, Failure, Reader};
use bytes::Bytes;
use types::{Credentials, Errno, InodeFlags, InodeId, SetAttr, SetTime, mode};
use wire::{LeaseMode, MetaOp, RenameMode};

const READ: u16 = 4;
const WRITE: u16 = 2;
const SEARCH: u16 = 1;
/// In [`MetaOp::MayOpen`]: the owner always may.
const OWNER_ALWAYS: u32 = 8;

/// The user on whose behalf a command runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller<'a> {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups, as far as they are known.
    pub groups: &'a [u32],
    /// The client's kernel vouches for rights that don't depend on ids (capabilities of a process).
    pub privileged: bool,
}

impl<'a> Caller<'a> {
    /// A caller with these ids and no known groups or privileges.
    pub fn of(credentials: Credentials) -> Caller<'a> {
        Caller { uid: credentials.uid, gid: credentials.gid, groups: &[], privileged: false }
    }

    fn bypasses_checks(&self) -> bool {
        self.uid == 0 || self.privileged
    }

    fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// Checks whether the caller may execute the command.
///
/// # Errors
/// `EACCES` and `EPERM`, as in Linux. Commands that [`crate::apply`] refuses anyway may pass.
pub fn permit(env: &Env<'_>, reader: &dyn Reader, caller: &Caller<'_>, op: &MetaOp) -> Result<(), Failure> {
    if caller.bypasses_checks() {
        return Ok(());
    }
    let check = Check { tx: Tx::new(env, reader), caller };
    match op {
        MetaOp::Create { parent, name, mode, rdev, .. } => {
            check.check_create(*parent, name)?;
            check.check_device(*mode, *rdev)
        }
        MetaOp::Mkdir { parent, name, .. }
        | MetaOp::Symlink { parent, name, .. }
        | MetaOp::Link { parent, name, .. } => check.check_create(*parent, name),
        MetaOp::CommitCreate { file } => {
            check.check_create(file.parent, &file.name)?;
            check.set_own(file.parent, &file.set)
        }
        MetaOp::Tmpfile { parent, .. } | MetaOp::PreallocateInodes { dir: parent, .. } => {
            check.check_change_names(*parent).map(drop)
        }
        MetaOp::Unlink { parent, name, .. } | MetaOp::Rmdir { parent, name } => {
            check.check_remove(*parent, name).map(drop)
        }
        MetaOp::Rename { parent, name, new_parent, new_name, mode } => {
            check.rename((*parent, name), (*new_parent, new_name), *mode)
        }
        MetaOp::Setattr { ino, set } => check.setattr(*ino, set),
        // The kernel does that on behalf of a process that writes, truncates or reserves space.
        MetaOp::RemoveXattr { ino, name } if name == CAPABILITY => check.check_use_open(*ino, WRITE),
        MetaOp::SetXattr { ino, name, .. } | MetaOp::RemoveXattr { ino, name } => check.set_xattr(*ino, name),
        MetaOp::SetPattern { dir: ino, .. } | MetaOp::Migrate { ino, .. } => {
            check.require_owner(&check.tx.inode(*ino)?)
        }
        MetaOp::MayOpen { ino, wanted } => check.open(*ino, *wanted),
        _ => Ok(()),
    }
}

/// The same for a user whom the client's kernel knows by other ids: also checks lookups, reads and
/// opens.
///
/// # Errors
/// As [`permit`]; `ENODATA` for attributes that only root sees.
pub fn permit_anonymous(
    env: &Env<'_>,
    reader: &dyn Reader,
    caller: &Caller<'_>,
    op: &MetaOp,
) -> Result<(), Failure> {
    if caller.bypasses_checks() {
        return Ok(());
    }
    let check = Check { tx: Tx::new(env, reader), caller };
    match op {
        MetaOp::Lookup { parent, .. } => {
            let directory = check.tx.directory(*parent)?;
            check.require(*parent, &directory, SEARCH)
        }
        MetaOp::Readdir { dir, attributes, .. } => {
            let directory = check.tx.directory(*dir)?;
            check.require(*dir, &directory, if *attributes { READ | SEARCH } else { READ })
        }
        MetaOp::GetXattr { ino, name } if name.starts_with(b"user.") => {
            let inode = check.tx.inode(*ino)?;
            check.require(*ino, &inode, READ)
        }
        MetaOp::GetXattr { name, .. } if name.starts_with(b"trusted.") => Err(Errno::ENODATA.into()),
        MetaOp::Reopen { ino, .. } => {
            check.check_use_open(*ino, READ).or_else(|_| check.check_use_open(*ino, WRITE))
        }
        MetaOp::Open { ino, requested_lease: wish } => match wish {
            Some(LeaseMode::Write) => check.check_use_open(*ino, WRITE),
            // Executing it includes reading it.
            _ => check.check_use_open(*ino, READ).or_else(|_| check.check_use_open(*ino, SEARCH)),
        },
        MetaOp::BeginWrite { ino }
        | MetaOp::WriteInline { ino, .. }
        | MetaOp::DropInline { ino, .. }
        | MetaOp::Truncate { ino, .. } => check.check_use_open(*ino, WRITE),
        // A session may report a change that it has begun.
        MetaOp::EndWrite { ino, .. } if is_being_changed(env, reader, *ino)? => Ok(()),
        MetaOp::EndWrite { ino, .. } => check.check_use_open(*ino, WRITE),
        op => permit(env, reader, caller, op),
    }
}

/// Whether the caller may write to a file that it has open; its owner always may, whatever the mode
/// says by now.
///
/// # Errors
/// Those of reading the inode.
pub fn may_write(
    env: &Env<'_>,
    reader: &dyn Reader,
    caller: &Caller<'_>,
    ino: InodeId,
) -> Result<bool, Failure> {
    let check = Check { tx: Tx::new(env, reader), caller };
    match check.check_use_open(ino, WRITE) {
        _ if caller.bypasses_checks() => Ok(true),
        Ok(()) => Ok(true),
        Err(Failure::Refused(error)) if error.errno == Errno::EACCES => Ok(false),
        Err(other) => Err(other),
    }
}

/// Whether the session has recorded that it changes the file ([`MetaOp::BeginWrite`],
/// [`MetaOp::Truncate`]).
///
/// # Errors
/// Those of reading the record.
pub fn is_being_changed(env: &Env<'_>, reader: &dyn Reader, ino: InodeId) -> Result<bool, Failure> {
    let tx = Tx::new(env, reader);
    Ok(tx.get::<Writing>(&keys::writing(ino, env.session))?.is_some())
}

struct Check<'a> {
    tx: Tx<'a>,
    caller: &'a Caller<'a>,
}

impl Check<'_> {
    /// Returns the directory, if the caller may change its names.
    fn check_change_names(&self, dir: InodeId) -> Outcome<Inode> {
        let directory = self.tx.directory(dir)?;
        self.require(dir, &directory, WRITE | SEARCH)?;
        Ok(directory)
    }

    /// Checks the creation of an entry. If the name exists, the command itself refuses it, or
    /// answers with it.
    fn check_create(&self, dir: InodeId, name: &[u8]) -> Outcome<()> {
        let directory = self.tx.directory(dir)?;
        self.require(dir, &directory, SEARCH)?;
        match self.tx.slot(dir, name)?.entry {
            Some(_) => Ok(()),
            None => self.require(dir, &directory, WRITE),
        }
    }

    /// Only root may create device nodes; the one of 0:0 is no device (overlay file systems mark
    /// removed names by it).
    fn check_device(&self, bits: u32, rdev: u32) -> Outcome<()> {
        match bits & mode::S_IFMT {
            mode::S_IFBLK => Err(Errno::EPERM.into()),
            mode::S_IFCHR if rdev != 0 => Err(Errno::EPERM.into()),
            _ => Ok(()),
        }
    }

    /// Checks the removal of a name; returns the inode that it names.
    fn check_remove(&self, dir: InodeId, name: &[u8]) -> Outcome<Option<(InodeId, Inode)>> {
        let directory = self.tx.directory(dir)?;
        self.require(dir, &directory, SEARCH)?;
        let Some(entry) = self.tx.slot(dir, name)?.entry else { return Ok(None) };
        self.require(dir, &directory, WRITE)?;
        let named = self.tx.named_inode(dir, &entry)?;
        let is_sticky = directory.mode & mode::S_ISVTX != 0;
        if is_sticky && named.uid != self.caller.uid && directory.uid != self.caller.uid {
            return Err(Errno::EPERM.into());
        }
        Ok(Some((entry.id(), named)))
    }

    fn rename(&self, from: (InodeId, &Bytes), to: (InodeId, &Bytes), how: RenameMode) -> Outcome<()> {
        let moved = self.check_remove(from.0, from.1)?;
        let other = self.check_remove(to.0, to.1)?;
        if other.is_none() {
            self.check_change_names(to.0)?;
        }
        if from.0 == to.0 {
            return Ok(());
        }
        // A directory stores its `..`, so moving it changes it.
        let changes_parent = [moved, other.filter(|_| how == RenameMode::Exchange)];
        for (ino, inode) in changes_parent.into_iter().flatten().filter(|(_, inode)| inode.is_directory()) {
            self.require(ino, &inode, WRITE)?;
        }
        Ok(())
    }

    /// Checks changes of a file that the caller creates in a directory.
    fn set_own(&self, dir: InodeId, set: &SetAttr) -> Outcome<()> {
        if *set == SetAttr::default() {
            return Ok(());
        }
        let directory = self.tx.inode(dir)?;
        let gid = if directory.mode & mode::S_ISGID != 0 { directory.gid } else { self.caller.gid };
        self.set((dir, &Inode { uid: self.caller.uid, gid, ..directory }), set)
    }

    fn setattr(&self, ino: InodeId, set: &SetAttr) -> Outcome<()> {
        self.set((ino, &self.tx.inode(ino)?), set)
    }

    fn set(&self, (ino, inode): (InodeId, &Inode), set: &SetAttr) -> Outcome<()> {
        let is_owner = inode.uid == self.caller.uid;
        if !is_owner && (set.flags.is_some() || set.project.is_some()) {
            return Err(Errno::EPERM.into());
        }
        let restricts = |flags: InodeFlags| flags.intersection(InodeFlags::READ_ONLY_FLAGS);
        if set.flags.is_some_and(|flags| restricts(flags) != restricts(inode.flags())) {
            // `CAP_LINUX_IMMUTABLE`
            return Err(Errno::EPERM.into());
        }
        if set.uid.is_some_and(|uid| !(is_owner && uid == inode.uid)) {
            return Err(Errno::EPERM.into());
        }
        if set.gid.is_some_and(|gid| !(is_owner && (gid == inode.gid || self.caller.is_in(gid)))) {
            return Err(Errno::EPERM.into());
        }
        let given = [set.atime, set.mtime].into_iter().flatten().any(|time| time != SetTime::Now)
            || set.ctime.is_some();
        if !is_owner && (set.mode.is_some() || given) {
            return Err(Errno::EPERM.into());
        }
        if !is_owner && (set.atime.is_some() || set.mtime.is_some()) {
            self.require(ino, inode, WRITE)?;
        }
        Ok(())
    }

    fn set_xattr(&self, ino: InodeId, name: &[u8]) -> Outcome<()> {
        let inode = self.tx.inode(ino)?;
        if name.starts_with(b"system.") {
            return self.require_owner(&inode);
        }
        if !name.starts_with(b"user.") {
            return Err(Errno::EPERM.into());
        }
        // Usually every user may write to a directory with the sticky bit.
        if inode.is_directory() && inode.mode & mode::S_ISVTX != 0 {
            self.require_owner(&inode)?;
        }
        self.require(ino, &inode, WRITE)
    }

    /// Checks the use of an open file. Its owner always may, as with NFS servers: it may have been
    /// opened before the mode was changed.
    fn check_use_open(&self, ino: InodeId, wanted: u16) -> Outcome<()> {
        let inode = self.tx.inode(ino)?;
        if inode.uid == self.caller.uid { Ok(()) } else { self.require(ino, &inode, wanted) }
    }

    fn open(&self, ino: InodeId, wanted: u32) -> Outcome<()> {
        let inode = self.tx.inode(ino)?;
        if wanted & OWNER_ALWAYS != 0 && inode.uid == self.caller.uid {
            return Ok(());
        }
        self.require(ino, &inode, wanted as u16 & (READ | WRITE | SEARCH))
    }

    fn require_owner(&self, inode: &Inode) -> Outcome<()> {
        if inode.uid == self.caller.uid { Ok(()) } else { Err(Errno::EPERM.into()) }
    }

    /// `EACCES` unless the inode's mode, or its access control list, grants the caller all of
    /// `wanted`.
    fn require(&self, ino: InodeId, inode: &Inode, wanted: u16) -> Outcome<()> {
        debug_assert_eq!(wanted & !(READ | WRITE | SEARCH), 0);
        let of = |shift: u32| (inode.mode >> shift) as u16 & 7;
        let granted = if inode.uid == self.caller.uid {
            of(6)
        } else if inode.access_acl {
            let value = attributes::load(&self.tx, ino, inode, ACCESS_ACL)?.unwrap_or_default();
            let is_in = |group| self.caller.is_in(group);
            let acl = permissions::parse_stored(ino, &value)?;
            return if acl.grants(self.caller.uid, inode.gid, is_in, wanted) {
                Ok(())
            } else {
                Err(Errno::EACCES.into())
            };
        } else if self.caller.is_in(inode.gid) {
            of(3)
        } else {
            of(0)
        };
        if granted & wanted == wanted { Ok(()) } else { Err(Errno::EACCES.into()) }
    }
}
