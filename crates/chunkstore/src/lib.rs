//! Chunk files on a target: I/O, checksums, intent log, scrub.
//!
//! A target is a directory on XFS or ext4. A chunk file is an ordinary sparse file, named by inode;
//! every 4 KiB block of it has a CRC32C in a second file beside it. Allocation, journalling and
//! recovery of files are the local file system's job; this crate's is that data read is data
//! written.
//!
//! It isn't a file system: no names, no sizes of files, no striping, no copies. It doesn't know who
//! asks. Of what a mirrored group has here it can say in which places it may differ from other
//! copies; making them equal is for others.
//!
//! ```text
//! DIR/target.toml               whose data this is
//! DIR/intent.0, intent.1        regions that may be changing
//! DIR/recent                    changes that must not be done again
//! DIR/fences                    sessions that were ended
//! DIR/verifier                  which unsynced content counts as being there
//! DIR/chunks/hh/hh/<inode>      a chunk file
//! DIR/chunks/hh/hh/<inode>.sum  its checksums
//! DIR/orphans/<inode>           a chunk file of no file that was moved aside, or one as it was before
//!                               a repair cut it, and its checksums
//! DIR/groups/<group>/           the same for what the target has of a mirrored group: a store of its own
//! ```
//!
//! Invariants:
//! - whatever a read returns has been checked against its checksums;
//! - before a region of a chunk file changes, a note of that is on disk; a note goes only when data
//!   and checksums of the region are on disk. So after a crash, checksums outside of noted regions
//!   are right, and those inside are rebuilt from the data. One note may stand for the first
//!   regions of many new files. Without a note is done what makes damage right
//!   ([`Store::rewrite`]): the right checksums come first;
//! - who changes blocks holds their range, from before the note until the checksums in memory are
//!   right again;
//! - what needs space is refused while the disk has none but a reserve; what frees space never is;
//! - "there is no such file" is believed only of the directory that was opened: see `home`;
//! - a failing chunk file fails requests for that file, not for others.
//!
//! The order in which locks are taken: maintenance, a cache shard's `opening`, a range, the log's
//! writer, a file's `write_back`.

#![warn(missing_docs)]

mod cache;
mod chunk_file;
mod claims;
mod differences;
mod error;
mod forget;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod home;
mod identity;
mod intent;
mod known;
mod lost;
mod maintain;
mod orphans;
mod place;
mod range_lock;
mod read;
mod recover;
mod reshape;
mod rewrite;
mod room;
mod rows;
mod scrub;
mod seek;
mod seen;
mod statistics;
mod store;
mod sums;
mod survey;
mod times;
mod unsynced;
mod verifier;
mod write;

pub use claims::RoomFor;
pub use error::{Kind, Result, StoreError};
pub use group::{DEFAULT_GROUP_LOG_BYTES, IfAbsent};
pub use identity::{FORMAT_VERSION, Identity};
pub use intent::NoteHold;
pub use known::At;
pub use orphans::Orphan;
pub use recover::RecoveryReport;
pub use rows::{ROW_BYTES, Row, Rows};
pub use statistics::{Counter, Statistics};
pub use store::{
    Allocate, ChunkStat, DEFAULT_MAX_OPEN_FILES, DEFAULT_SEEN_BLOCKS, DEFAULT_SUM_CACHE_BYTES, IoPath,
    Options, Seek, Space, Store,
};
pub use survey::{MAX_UNITS, Survey};
pub use write::Durability;
