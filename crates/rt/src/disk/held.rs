//! Whether a path still leads where it led.

use super::real::RealHold;
use crate::context::{self, Runtime};
use crate::sim::SimHold;
use std::io;
use std::path::{Path, PathBuf};

/// A path, and what it led to when it was held: a file or a directory.
///
/// That stays open, so no other file gets its device and inode number meanwhile. Used to notice
/// that a file system was unmounted, or that another directory was put under the same name.
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
    /// Holds what a path leads to.
    ///
    /// # Errors
    /// `ENOENT` where that is nothing.
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
    /// `stat(2)`, without a trip through the ring.
    ///
    /// # Errors
    /// `ENOENT` where it leads nowhere; `EIO` where the file system has failed, as XFS says of
    /// everything once it has shut down.
    pub fn is_in_place(&self) -> io::Result<bool> {
        match &self.inner {
            Inner::Real(hold) => hold.is_at(&self.path),
            Inner::Sim(hold) => hold.is_at(&self.path),
        }
    }
}
