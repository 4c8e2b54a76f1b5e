//! Detects that a path leads to another file than before.

use super::real::RealPathGuard;
use crate::context::{self, Runtime};
use crate::sim::SimPathGuard;
use std::io;
use std::path::{Path, PathBuf};

/// A path, and the file or directory that it led to when this value was made.
///
/// The file stays open, so no other file gets its device and inode number meanwhile. Used to detect
/// that a file system was unmounted, or that another directory took the same name.
#[derive(Debug)]
pub struct PathGuard {
    path: PathBuf,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Real(RealPathGuard),
    Sim(SimPathGuard),
}

impl PathGuard {
    /// Opens and holds the file or directory at a path.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn new(path: &Path) -> io::Result<PathGuard> {
        let inner = match context::require()? {
            Runtime::Core(_) => Inner::Real(RealPathGuard::new(path)?),
            Runtime::Sim(world) => Inner::Sim(SimPathGuard::new(&world, path)?),
        };
        Ok(PathGuard { path: path.to_path_buf(), inner })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path leads to the same file or directory, on the same file system. One
    /// `stat(2)`, without using the ring.
    ///
    /// # Errors
    /// `ENOENT` if it leads nowhere; `EIO` if the file system has failed, as XFS reports for every
    /// file after a shutdown.
    pub fn leads_to_same_file(&self) -> io::Result<bool> {
        match &self.inner {
            Inner::Real(guard) => guard.leads_to_same_file(&self.path),
            Inner::Sim(guard) => guard.leads_to_same_file(&self.path),
        }
    }
}
