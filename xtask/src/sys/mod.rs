//! Safe wrappers of Linux system calls that the standard library doesn't offer.
//!
//! The only module of `xtask` with `unsafe`.
#![allow(unsafe_code)]

mod aio;
mod file;
mod mount;
mod process;
mod trace;

pub use aio::Aio;
pub use file::*;
pub use mount::*;
pub use process::*;
pub use trace::trace;

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Converts a path to a C string; a NUL inside is `EINVAL`.
fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Converts a name (of an attribute, a file system) to a C string.
fn c_name(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Converts a return value of -1 to an error from `errno`.
fn check(result: libc::c_int) -> io::Result<()> {
    check_size(result as isize).map(drop)
}

/// The same for calls that return a size.
fn check_size(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
