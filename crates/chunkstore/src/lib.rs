//! Chunk files on a target: I/O, checksums, intent log, scrub.
//!
//! A target is a directory on XFS or ext4. A chunk file is an ordinary sparse file, named by inode;
//! every 4 KiB block of it has a CRC32C in a second file beside it. Allocation, journalling and
//! recovery of files are the local file system's job; this crate ensures that data read is data
//! written.
//!
//! It isn't a file system: no names, no sizes of files, no striping, no replication. It doesn't
//! know its callers. It can tell in which regions a replica of a mirrored group may differ from the
//! others; its callers make them equal.
//!
//! ```text
//! DIR/target.toml               superblock: the identity of the target
//! DIR/intent.0, intent.1        dirty regions: regions that may be changing
//! DIR/recent                    duplicate request cache
//! DIR/fences                    ended sessions
//! DIR/verifier                  verifier of unsynced content
//! DIR/chunks/hh/hh/<inode>      a chunk file
//! DIR/chunks/hh/hh/<inode>.sum  its checksums
//! DIR/orphans/<inode>           an orphaned chunk file that was set aside, or a copy from before
//!                               a repair truncated it, with its checksums
//! DIR/groups/<group>/           the same layout: the separate store of a mirrored group
//! ```
//!
//! Invariants:
//! - whatever a read returns has been checked against its checksums;
//! - before a region of a chunk file changes, an entry for it in the intent log is on disk; the
//!   entry is removed only when data and checksums of the region are on disk. So after a crash,
//!   checksums outside of dirty regions are right, and those inside are rebuilt from the data. One
//!   entry may stand for the first regions of many new files. A repair of damage
//!   ([`Store::rewrite`]) makes no entry: the right checksums come first;
//! - a change of blocks holds their range, from before the entry until the checksums in memory are
//!   right again;
//! - operations that need space are refused while the disk has only a reserve; operations that free
//!   space never are;
//! - "file not found" only counts if it comes from the directory that was opened: see `store_dir`;
//! - a failing chunk file fails requests for that file, not for others.
//!
//! Lock order: maintenance, a cache shard's `opening`, a range, the log's writer, a file's
//! `write_back`.

#![warn(missing_docs)]

mod background_sync;
mod block_sums;
mod cache;
mod chunk_file;
mod copied_times;
mod dirty_ranges;
mod discard_lost;
mod error;
mod fixed_records;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod identity;
mod intent;
mod lost_blocks;
mod min_length;
mod orphans;
mod paths;
mod range_lock;
mod read;
mod recent_reads;
mod recover;
mod reservations;
mod reserve;
mod rewrite;
mod seek;
mod statistics;
mod store;
mod store_dir;
mod survey;
mod truncate_and_allocate;
mod unsynced;
mod verifier;
mod verify;
mod write;

pub use error::{Kind, Result, StoreError};
pub use fixed_records::{ROW_BYTES, Row, Rows};
pub use group::{DEFAULT_GROUP_LOG_BYTES, IfAbsent};
pub use identity::{FORMAT_VERSION, Identity};
pub use intent::EntryHold;
pub use min_length::At;
pub use orphans::Orphan;
pub use recover::RecoveryReport;
pub use reservations::SpaceNeed;
pub use statistics::{Counter, Statistics};
pub use store::{
    Allocate, ChunkStat, DEFAULT_MAX_OPEN_FILES, DEFAULT_RECENT_READS, DEFAULT_SUM_CACHE_BYTES, IoPath,
    Options, Seek, Space, Store,
};
pub use survey::{MAX_UNITS, Survey};
pub use write::Durability;
