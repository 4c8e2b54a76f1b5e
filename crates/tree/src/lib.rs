//! Work on directory trees of millions of files by several threads: removes them
//! ([`remove()`]), measures them ([`UsageScan`]), lists them ([`list()`]), and copies them
//! ([`copy()`]).
//!
//! The work is done by system calls with the rights of the caller, on any file system. On a mount
//! of a parallel file system most of the time of such work is waiting for replies, so several
//! requests in flight make it faster ([`THREADS`]).
//!
//! The crate knows nothing of weft, of command lines, or of terminals.
//!
//! Invariants:
//! - Below the paths that the caller names, no symlink is followed: every directory is opened by
//!   its name relative to the open directory above it. A directory that another process replaces by
//!   a symlink is never entered through that symlink.
//! - The memory in use depends on the depth of the tree, and not on its size. Exceptions are named
//!   where they are made.
//! - A file that can't be processed is reported, and the work continues with the others.

mod copy;
mod list;
mod remove;
mod usage;
mod walk;

pub use copy::{CopyCounts, CopyOptions, copy};
pub use list::{Found, ListOptions, Show, list};
pub use remove::{Refusal, RemoveCounts, RemoveOptions, removal_refusal, remove};
pub use usage::{Usage, UsageLine, UsageOptions, UsageScan};

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Number of threads. Each has one request in flight. More than processors, since a request waits
/// for a server most of the time; few enough that one command leaves room for other applications.
pub const THREADS: usize = 16;

/// What all kinds of work have in common.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// Ends the work early when it becomes true: each thread completes its current system call.
    pub stop: &'a AtomicBool,
    /// Gets every failure, from any thread.
    pub report: &'a (dyn Fn(Failure) + Sync),
}

/// A file or directory that could not be processed.
#[derive(Debug)]
pub struct Failure {
    /// Its path, which begins with a path that the caller named.
    pub path: PathBuf,
    /// What could not be done, as in `can't remove`.
    pub what: &'static str,
    /// Why.
    pub cause: io::Error,
}

/// Lets the process open as many files as its hard limit permits: each level of the tree that a
/// thread works on takes one descriptor.
pub fn raise_open_files_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without more descriptors only very deep trees fail, and the message names them.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
