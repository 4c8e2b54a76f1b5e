//! Safe faces of the Linux calls that the standard library doesn't offer.
//!
//! The only place in `xtask` with `unsafe`; everything above it is ordinary Rust.
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

/// A path as the kernel wants it; a NUL inside is `EINVAL`.
fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// A name (of an attribute, a file system) as the kernel wants it.
fn c_name(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Turns the -1 convention into a `Result`.
fn check(result: libc::c_int) -> io::Result<()> {
    check_size(result as isize).map(drop)
}

/// The same for calls that return a size.
fn check_size(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
