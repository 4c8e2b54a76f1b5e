//! Leases: what a client may rely on until it is asked to give it up.
//!
//! A lease is on one inode: its attributes, extended attributes, content and, of a directory, its
//! names and the absence of names. `Permissions` is of directories alone. `Read` and `Permissions`
//! go with each other, `Shared` with `Shared`; every other pair of two sessions conflicts.

use types::InodeId;

/// Strength of a lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LeaseMode {
    /// Of a directory: what it is, mode, owner, group and access control lists don't change
    /// meanwhile. Names come and go, and times, size and the number of links change with them. It
    /// travels beside the other leases, so that a peer that doesn't know it does without.
    Permissions,
    /// Nothing changes meanwhile: everything of the inode may be cached.
    Read,
    /// Several sessions write the file, straight to storage. Nothing may be cached; size and mtime
    /// are what the chunk files say.
    Shared,
    /// Nobody else reads or changes it: everything may be cached, and size and mtime are this
    /// session's to know.
    Write,
}

/// A lease that comes with an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Grant {
    pub ino: InodeId,
    pub mode: LeaseMode,
}

/// A session is to give a lease up, or a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recall {
    /// Grows by one with every recall of a session, from 1.
    pub number: u64,
    /// The inode.
    pub ino: InodeId,
    /// What may be kept.
    pub keep: Option<LeaseMode>,
}

/// The size of a file as the holder of its `Write` lease knows it: all that applications have been
/// told of lies within.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct KnownSize {
    pub ino: InodeId,
    pub size: u64,
}

/// The answer to a recall: what is cached beyond what may be kept is gone, what was owned is
/// reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Yield {
    /// The recall's number.
    pub number: u64,
    /// The inode.
    pub ino: InodeId,
    /// A file of it is open here: it must not be reclaimed when its last name goes, until
    /// [`crate::MetaOp::Release`] says so.
    pub in_use: bool,
}
