//! `--dir`: the cluster of a command.

use crate::discovery::Place;
use clap::Args;
use std::path::{Path, PathBuf};
use types::Result;

/// The cluster of a command that asks a running process.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub struct PlaceOption {
    /// State directory, path on a mount, or cluster file [default: see weft help dir]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl PlaceOption {
    /// Names a place, as `--dir` does.
    pub fn at(path: impl Into<PathBuf>) -> PlaceOption {
        PlaceOption { dir: Some(path.into()) }
    }

    /// Finds the cluster.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn find(&self) -> Result<Place> {
        Place::find(self.dir.as_deref())
    }

    /// Finds the state directory of a node, or of `weft up`.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn directory(&self) -> Result<PathBuf> {
        Place::find_directory(self.dir.as_deref())
    }
}

/// The state directory of a command that works on it.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub struct DirOption {
    /// State directory [default: see weft help dir]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl DirOption {
    /// Names a directory, as `--dir` does.
    pub fn at(path: impl Into<PathBuf>) -> DirOption {
        DirOption { dir: Some(path.into()) }
    }

    /// Finds the state directory.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn find(&self) -> Result<PathBuf> {
        Place::find_directory(self.dir.as_deref())
    }

    /// Returns what was named on the command line.
    pub fn named(&self) -> Option<&Path> {
        self.dir.as_deref()
    }
}
