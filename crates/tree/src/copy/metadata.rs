//! Attributes that `cp -a` keeps.

use crate::walk::attributes_of;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Statx, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat,
    fchmod, fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr, futimens, openat, utimensat,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The attribute with the ACL that a directory gives new files.
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";
/// Largest list of names, and largest value, that the kernel passes (`XATTR_LIST_MAX`,
/// `XATTR_SIZE_MAX`).
const MAX_XATTR_BYTES: usize = 64 << 10;

/// Gives an open file the attributes of another one. A change of owner clears setuid and
/// capabilities, a mode may forbid extended attributes, and all of these change times: so they come
/// in this order. `inherits_acl`: the directory gives new files an ACL.
pub fn keep(
    found: &Statx,
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    inherits_acl: bool,
) -> Result<(), Errno> {
    own(fchown(to, Some(Uid::from_raw(found.stx_uid)), Some(Gid::from_raw(found.stx_gid))))?;
    if inherits_acl {
        for name in [c"system.posix_acl_access", DEFAULT_ACL] {
            match fremovexattr(to, name) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => (),
                Err(cause) => return Err(cause),
            }
        }
    }
    keep_xattrs(from, to)?;
    fchmod(to, Mode::from_raw_mode(u32::from(found.stx_mode) & 0o7777))?;
    futimens(to, &times(found))
}

/// Whether a directory gives new files an ACL.
pub fn gives_acl(dir: BorrowedFd<'_>) -> bool {
    fgetxattr(dir, DEFAULT_ACL, &mut [0; MAX_XATTR_BYTES][..]).is_ok()
}

/// Gives a symlink or a special file owner, mode and times of another one.
pub fn keep_of_name(found: &Statx, at: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let (user, group) = (Uid::from_raw(found.stx_uid), Gid::from_raw(found.stx_gid));
    own(chownat(at, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW))?;
    if !FileType::from_raw_mode(found.stx_mode.into()).is_symlink() {
        // By descriptor, so that a symlink that replaced it isn't followed.
        let file = openat(at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if FileType::from_raw_mode(attributes_of(file.as_fd())?.stx_mode.into()).is_symlink() {
            return Err(Errno::STALE);
        }
        let mode = Mode::from_raw_mode(u32::from(found.stx_mode) & 0o7777);
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
    }
    utimensat(at, name, &times(found), AtFlags::SYMLINK_NOFOLLOW)
}

/// Only root can give files away. As with `cp -a`, others own their copies.
fn own(changed: Result<(), Errno>) -> Result<(), Errno> {
    match changed {
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => Ok(()),
        changed => changed,
    }
}

fn times(found: &Statx) -> Timestamps {
    let time = |seconds, nanoseconds: u32| Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps {
        last_access: time(found.stx_atime.tv_sec, found.stx_atime.tv_nsec),
        last_modification: time(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
    }
}

/// Copies extended attributes, of which ACLs are some. As with `cp -a`, it is no failure if the
/// file system or the rights of the caller don't permit one of them.
fn keep_xattrs(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut names = vec![0; MAX_XATTR_BYTES];
    let length = match flistxattr(from, &mut names[..]) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
        length => length?,
    };
    if length == 0 {
        return Ok(());
    }
    let mut value = vec![0; MAX_XATTR_BYTES];
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let kept = fgetxattr(from, name, &mut value[..])
            .and_then(|length| fsetxattr(to, name, &value[..length], XattrFlags::empty()));
        match kept {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => (),
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}
