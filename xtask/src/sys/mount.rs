//! Mounting and unmounting.

use super::{c_name, c_path, check};
use std::io;
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
