//! Detects that a path leads to another file than before.

use super::real::RealHold;
use crate::context::{self, Runtime};
use crate::sim::SimHold;
use std::io;
use std::path::{Path, PathBuf};

/// A path, and the file or directory that it led to when this value was made.
///
/// The file stays open, so no other file gets its device and inode number meanwhile. Used to detect
/// that a file system was unmounted, or that another directory took the same name.
#[derive(Debug)]
pub struct HeldPath {
    path: PathBuf,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Real(RealHold),
    Sim(SimHold),
}

impl HeldPath {
    /// Opens and holds the file or directory at a path.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn new(path: &Path) -> io::Result<HeldPath> {
        let inner = match context::require()? {
            Runtime::Core(_) => Inner::Real(RealHold::new(path)?),
            Runtime::Sim(world) => Inner::Sim(SimHold::new(&world, path)?),
        };
        Ok(HeldPath { path: path.to_path_buf(), inner })
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
    pub fn is_in_place(&self) -> io::Result<bool> {
        match &self.inner {
            Inner::Real(hold) => hold.is_at(&self.path),
            Inner::Sim(hold) => hold.is_at(&self.path),
        }
    }
}
