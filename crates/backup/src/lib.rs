//! Backups of the metadata store in files: written while the store is in use, and verified
//! completely before they are restored.
//!
//! A **backup** is the store at one moment. A *full* one contains every key; an *incremental* one
//! contains the changes since another backup, its *base*. A backup with its base, and the base of
//! that, down to a full one is a [`Chain`]; merging it yields every key in order.
//!
//! The format ([`format`]) consists of blocks, each with its number and a CRC32C, and a footer with
//! counts and a checksum over all keys and values at that moment. A file that was truncated,
//! changed, or combined from two is refused, and so is a chain that doesn't yield the keys that its
//! last backup counted.
//!
//! Knows no inode: the caller decides what changes in records when the store is rolled back
//! ([`restore`]).
//!
//! Invariants:
//! - A file gets its name when it is complete and on disk, so every file with such a name is a
//!   complete backup.
//! - Nothing is restored from a chain that was not verified to its end, nor over an engine that is
//!   in use; the previous engine is kept.
//! - Backups are readable for their owner only (mode 0600): they contain all users' names and small
//!   files, and the keys of the cluster.

mod chain;
mod create;
mod directory;
mod error;
pub mod format;
#[doc(hidden)]
pub mod fuzzing;
mod reader;
mod restore;
mod state_checksum;
mod writer;

pub use chain::{Chain, Merged};
pub use create::{Plan, Progress, create};
pub use directory::{BackupFile, file_name, list, newest_first, prune};
pub use error::{Error, Result};
pub use format::{Attached, Footer, Header, SUFFIX};
pub use reader::{Reader, verify};
pub use restore::{Restored, Rewrite, restore};
pub use state_checksum::StateChecksum;
