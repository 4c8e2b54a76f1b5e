//! The file format of a backup, version 1.
//!
//! A file is eight bytes of magic (`WEFTCOPY`), followed by blocks until its end. A block is
//!
//! | bytes | what |
//! |---|---|
//! | 4 | kind: `HEAD`, `FILE`, `KEYS`, `FOOT` |
//! | 4 | length of the body, little-endian |
//! | n | body |
//! | 4 | CRC32C of the block's number (8 bytes, from 0), kind, length and body, little-endian |
//!
//! The first block is a [`Header`] (JSON). Attached files follow ([`Attached`]: length of the JSON
//! that describes it, 4 bytes; that JSON; the content), then keys in ascending order, and last a
//! [`Footer`] (JSON), which ends the file. A block of keys is a sequence of records:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | 1: the key has this value; 2: the key is deleted (in incremental backups) |
//! | 2 | length of the key, little-endian |
//! | 4 | length of the value, little-endian; 0 for a deleted key |
//! | n, m | key, value |

use serde::{Deserialize, Serialize};

/// The format that is written, and the newest that can be read.
pub const FORMAT: u64 = 1;

/// Suffix of a backup's name.
pub const SUFFIX: &str = ".weftcopy";

pub(crate) const MAGIC: &[u8; 8] = b"WEFTCOPY";

/// Bytes of records after which a block ends.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// The largest body that is read, in bytes: far above the largest record (the cluster map), and
/// small enough to hold in memory.
pub(crate) const MAX_BODY_BYTES: usize = 256 << 20;

/// Bytes of kind and length before a body.
pub(crate) const BLOCK_HEADER_BYTES: usize = 8;

pub(crate) const HEAD: [u8; 4] = *b"HEAD";
pub(crate) const FILE: [u8; 4] = *b"FILE";
pub(crate) const KEYS: [u8; 4] = *b"KEYS";
pub(crate) const FOOT: [u8; 4] = *b"FOOT";

pub(crate) const PUT: u8 = 1;
pub(crate) const DELETED: u8 = 2;

/// Header of a backup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u64,
    /// Random id of this backup.
    pub id: String,
    /// Id of the base; `None` for a full backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Number of bases in its chain.
    #[serde(default)]
    pub depth: u32,
    /// The cluster's UUID.
    pub cluster: String,
    /// Its name.
    pub name: String,
    /// Number of partitions of its inode space.
    pub partitions: u16,
    /// Time of the snapshot, in seconds since 1970.
    pub created_s: i64,
    /// Version of weft that made it.
    pub version: String,
}

/// A small file of the state directory that is attached to a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// Its path below the state directory.
    pub name: String,
    /// Its permissions.
    pub mode: u32,
    /// Its content.
    pub content: Vec<u8>,
}

/// Description before its content.
#[derive(Serialize, Deserialize)]
pub(crate) struct AttachedHead {
    pub name: String,
    pub mode: u32,
}

/// Footer: what a backup must have contained when it was read to its end.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Footer {
    /// Blocks before this one.
    pub blocks: u64,
    /// Attached files.
    pub files: u64,
    /// Records with a value.
    pub puts: u64,
    /// Records of deleted keys.
    pub gone: u64,
    /// Keys of the store at that time, whether they are in this backup or in its bases.
    pub keys: u64,
    /// Bytes of those keys and their values.
    pub bytes: u64,
    /// [`crate::StateChecksum`] over them.
    pub sum: u32,
}

/// Returns the checksum of a block.
pub(crate) fn block_checksum(number: u64, kind: [u8; 4], body: &[u8]) -> u32 {
    let mut hasher = types::Crc32c::default();
    hasher.update(&number.to_le_bytes());
    hasher.update(&kind);
    hasher.update(&(body.len() as u32).to_le_bytes());
    hasher.update(body);
    hasher.finish()
}
