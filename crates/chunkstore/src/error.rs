//! Errors of a target.

use crate::store_dir::Vanished;
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::Path;
use types::{ByteRange, ChunkFileId, TargetId};

/// Result with this crate's error.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// `ENOSPC` as the kernel numbers it.
const ENOSPC: i32 = types::Errno::ENOSPC.number();
/// `EDQUOT`: a quota on the target's own file system.
const EDQUOT: i32 = types::Errno::EDQUOT.number();
/// `EFBIG`: beyond what the local file system can address.
const EFBIG: i32 = types::Errno::EFBIG.number();

/// The kind of an error, which alone determines the caller's reaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The local file system has no free space.
    NoSpace,
    /// The local file system failed a call.
    Io,
    /// Data doesn't match its checksums.
    Corrupt {
        /// The inode of the chunk file.
        ino: ChunkFileId,
        /// Damaged bytes of the chunk file, whole blocks.
        range: ByteRange,
    },
    /// The offset lies beyond the longest chunk file.
    TooLarge,
    /// The directory holds no target.
    NotATarget,
    /// The directory already holds a target, or something else.
    NotEmpty,
    /// The directory holds another cluster's or another target's data.
    WrongIdentity,
    /// A newer weft wrote the target.
    NewerVersion,
    /// The target's superblock or intent log can't be read.
    Damaged,
    /// The store's directory isn't the one that was opened: its file system was unmounted, has
    /// failed, or another one is in its place. The store's content is unknown.
    Vanished,
    /// The store is shut down.
    Closed,
    /// No store executes this operation.
    Unsupported,
}

/// What failed, on which object, and the remedy.
#[derive(Debug)]
pub struct StoreError {
    kind: Kind,
    message: String,
    hint: Cow<'static, str>,
}

impl StoreError {
    pub(crate) fn new(kind: Kind, message: String, hint: impl Into<Cow<'static, str>>) -> StoreError {
        StoreError { kind, message, hint: hint.into() }
    }

    /// A failed call of the local file system.
    pub(crate) fn io(target: TargetId, doing: &str, path: &Path, error: io::Error) -> StoreError {
        if let Some(Vanished(cause)) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
            return StoreError::vanished(target, cause);
        }
        let path = path.display();
        match error.raw_os_error() {
            Some(ENOSPC | EDQUOT) => StoreError::new(
                Kind::NoSpace,
                format!("target {target}: no free space to {doing} {path}"),
                "free space on the target's file system, or add a target to its pool",
            ),
            Some(EFBIG) => StoreError::new(
                Kind::TooLarge,
                format!(
                    "target {target}: the file is too large for the target's file system to {doing} {path}"
                ),
                "stripe the file over more targets",
            ),
            _ => StoreError::new(
                Kind::Io,
                format!("target {target}: can't {doing} {path}: {error}"),
                "look for disk errors in the kernel log of the target's node",
            ),
        }
    }

    pub(crate) fn corrupt(target: TargetId, ino: ChunkFileId, range: ByteRange) -> StoreError {
        StoreError::new(
            Kind::Corrupt { ino, range },
            format!(
                "target {target}: bytes {range} of the chunk file of inode {ino} don't match their checksums"
            ),
            "restore the file from a backup, and check the target's disk",
        )
    }

    /// Orphaned checksums: the chunk file of these checksums doesn't exist.
    pub(crate) fn removed(target: TargetId, ino: ChunkFileId, range: ByteRange) -> StoreError {
        StoreError::new(
            Kind::Corrupt { ino, range },
            format!(
                "target {target}: the chunk file of inode {ino} is missing, although its checksums exist"
            ),
            "weft fsck names the file: restore it from a backup, and find out which program removes files from the target",
        )
    }

    /// The store's path leads to something else.
    #[cold]
    pub(crate) fn vanished(target: TargetId, cause: &str) -> StoreError {
        StoreError::new(
            Kind::Vanished,
            format!("target {target} is offline: {cause}"),
            "findmnt and dmesg on the target's node show the state of its disk; mount it there again; if its file system had failed, restart weft serve on that node",
        )
    }

    /// The metadata knows that the chunk file had at least `known` bytes; it has `len`, or doesn't
    /// exist.
    pub(crate) fn incomplete(
        (target, ino): (TargetId, ChunkFileId),
        path: &Path,
        len: Option<u64>,
        known: u64,
    ) -> StoreError {
        let range = ByteRange::new(len.unwrap_or(0), known);
        let path = path.display();
        let cause = match len {
            Some(len) => format!("has {len} bytes and had at least {known}: {path}"),
            None => format!("is missing and had at least {known} bytes: {path}"),
        };
        StoreError::new(
            Kind::Corrupt { ino, range },
            format!("target {target}: the chunk file of inode {ino} {cause}"),
            "weft fsck names the file: restore it from a backup, and find out which program changes files of the target",
        )
    }

    pub(crate) fn closed(target: TargetId) -> StoreError {
        StoreError::new(
            Kind::Closed,
            format!("target {target} is shut down"),
            "start its storage service again",
        )
    }

    /// A request that its receiver should have answered without a store.
    #[cold]
    pub fn unsupported(target: TargetId, operation: &str) -> StoreError {
        StoreError::new(
            Kind::Unsupported,
            format!("target {target}: its store doesn't execute {operation}"),
            "install the same version of weft on all machines",
        )
    }

    /// The kind of the failure.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Object and cause.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The remedy.
    pub fn hint(&self) -> &str {
        &self.hint
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; hint: {}", self.message, self.hint)
    }
}

impl std::error::Error for StoreError {}
