//! Leases: what a client may rely on until the service recalls it.
//!
//! A lease covers one inode: its attributes, extended attributes, content and, of a directory, its
//! entries and the absence of entries. `Permissions` applies to directories only. `Read` and
//! `Permissions` are compatible with each other, `Shared` with `Shared`; every other pair of two
//! sessions conflicts.

use types::InodeId;

/// Strength of a lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LeaseMode {
    /// On a directory: its type, mode, owner, group and access control lists don't change. Entries
    /// are added and removed, and times, size and link count change with them. Messages carry it
    /// apart from the other leases, so that a peer that doesn't know it works without it.
    Permissions,
    /// Nothing changes: everything of the inode may be cached.
    Read,
    /// Several sessions write the file, directly to storage. Nothing may be cached; the chunk files
    /// determine size and mtime.
    Shared,
    /// No other session reads or changes it: everything may be cached, and this session determines
    /// size and mtime.
    Write,
}

/// A lease that an answer grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct LeaseGrant {
    pub ino: InodeId,
    pub mode: LeaseMode,
}

/// A request to a session to give a lease up or reduce it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recall {
    /// Recall number: grows by one with every recall of a session, from 1.
    pub number: u64,
    /// The inode.
    pub ino: InodeId,
    /// Lease that the session may retain.
    pub retain: Option<LeaseMode>,
}

/// The size of a file as the holder of its `Write` lease knows it: all acknowledged writes are
/// within it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct ReportedSize {
    pub ino: InodeId,
    pub size: u64,
}

/// Recall acknowledgement: the session has dropped what it cached beyond the retained lease, and
/// has reported its changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecallAck {
    /// The recall's number.
    pub number: u64,
    /// The inode.
    pub ino: InodeId,
    /// The session has the file open: it must not be reclaimed when its last name is removed, until
    /// [`crate::MetaOp::Release`].
    pub in_use: bool,
}
