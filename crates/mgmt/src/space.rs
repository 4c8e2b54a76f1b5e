//! How much room a directory's file system has.

use std::io;
use std::path::Path;

/// Room on one local file system, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// In all that ordinary users can have: what is used and what is free, without the file system's own
    /// reserve.
    pub capacity: u64,
    /// Free to ordinary users.
    pub free: u64,
    /// Which file system it is, so that directories that share one are not counted twice.
    pub device: u64,
    /// What the files of the target take that looks, where that is known.
    pub own: Option<u64>,
}

/// Measures the file system that holds `path`.
pub fn space_of(path: &Path) -> io::Result<Space> {
    let vfs = rustix::fs::statvfs(path)?;
    let device = rustix::fs::stat(path)?.st_dev;
    let used = vfs.f_blocks.saturating_sub(vfs.f_bfree);
    let bytes = |blocks: u64| blocks.saturating_mul(vfs.f_frsize);
    Ok(Space {
        capacity: bytes(used.saturating_add(vfs.f_bavail)),
        free: bytes(vfs.f_bavail),
        device,
        own: None,
    })
}
