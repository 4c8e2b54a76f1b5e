//! Mounting and unmounting.

use super::{c_name, c_path, check, check_size};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// `mount(2)`.
pub fn mount(source: &str, target: &Path, kind: &str, flags: u64) -> io::Result<()> {
    let (source, target, kind) = (c_name(source)?, c_path(target)?, c_name(kind)?);
    // SAFETY: the strings are NUL-terminated and live; these file systems take no data argument.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) })
}

/// `umount2(2)` with `MNT_*` flags.
pub fn unmount(target: &Path, flags: i32) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: the string is NUL-terminated and live for the length of the call.
    check(unsafe { libc::umount2(target.as_ptr(), flags) })
}

/// Mounts the directory `source` at `target` with ids mapped as in a user namespace
/// (`mount_setattr(2)`).
pub fn mount_idmapped(source: &Path, target: &Path, namespace: &File) -> io::Result<()> {
    let (source, target) = (c_path(source)?, c_path(target)?);
    let flags = libc::c_long::from(libc::OPEN_TREE_CLONE) | libc::c_long::from(libc::O_CLOEXEC);
    // SAFETY: the string is NUL-terminated and live; the call returns a new descriptor.
    let tree = unsafe {
        let tree = libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, source.as_ptr(), flags);
        OwnedFd::from_raw_fd(check_size(tree as isize)? as libc::c_int)
    };
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: namespace.as_raw_fd() as u64,
    };
    // SAFETY: the descriptors, the strings and the struct, whose size is passed, are live for the
    // calls.
    unsafe {
        let mapped = libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        );
        check_size(mapped as isize)?;
        let moved = libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        );
        check_size(moved as isize).map(drop)
    }
}
