//! Advisory locks.

use types::InodeId;

/// Strength of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum LockKind {
    Shared,
    Exclusive,
}

/// Family of a lock; locks of different families never conflict.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum LockFamily {
    /// `fcntl`: byte ranges, owned by a process.
    Posix,
    /// `flock`: whole file, owned by an open file.
    Flock,
}

/// Owner of a lock: the kernel's owner token within a session; the session is the request's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct LockOwner(pub u64);

/// Bytes `start..=last`; `last == u64::MAX` means to the end of the file, even if it moves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub struct LockRange {
    pub start: u64,
    pub last: u64,
}

/// A lock that a session holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub struct HeldLock {
    pub ino: InodeId,
    pub family: LockFamily,
    pub owner: LockOwner,
    /// The process that took the lock, which `F_GETLK` reports.
    pub pid: u32,
    pub kind: LockKind,
    pub range: LockRange,
}
