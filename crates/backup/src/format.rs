//! The bytes of a copy, version 1.
//!
//! A file is eight bytes of magic (`WEFTCOPY`) and then blocks until its end. A block is
//!
//! | bytes | what |
//! |---|---|
//! | 4 | kind: `HEAD`, `FILE`, `KEYS`, `FOOT` |
//! | 4 | length of the body, little-endian |
//! | n | body |
//! | 4 | CRC32C of the block's number (8 bytes, from 0), kind, length and body, little-endian |
//!
//! The first block is a [`Head`] (JSON); then come files that belong to the copy ([`Attached`]:
//! length of the JSON that describes it, 4 bytes; that JSON; the content), then keys in ascending
//! order, and at last a [`Foot`] (JSON), after which the file ends. A block of keys is a row of
//! records:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | 1: the key has this value; 2: the key is gone (in incremental copies) |
//! | 2 | length of the key, little-endian |
//! | 4 | length of the value, little-endian; 0 of a key that is gone |
//! | n, m | key, value |

use serde::{Deserialize, Serialize};

/// The format that is written, and the newest that is read.
pub const FORMAT: u64 = 1;

/// How a copy's name ends.
pub const SUFFIX: &str = ".weftcopy";

pub(crate) const MAGIC: &[u8; 8] = b"WEFTCOPY";

/// Bytes of records after which a block ends.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// The largest body that is read: far above the largest record (the map of a cluster), and small
/// enough to hold in memory.
pub(crate) const MAX_BODY_BYTES: usize = 256 << 20;

/// Kind and length before a body, and the sum after it.
pub(crate) const BEFORE_BYTES: usize = 8;

pub(crate) const HEAD: [u8; 4] = *b"HEAD";
pub(crate) const FILE: [u8; 4] = *b"FILE";
pub(crate) const KEYS: [u8; 4] = *b"KEYS";
pub(crate) const FOOT: [u8; 4] = *b"FOOT";

pub(crate) const PUT: u8 = 1;
pub(crate) const GONE: u8 = 2;

/// What a copy is of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Head {
    /// [`FORMAT`].
    pub format: u64,
    /// Random: which copy this is.
    pub id: String,
    /// The copy that this one builds on; none for a full one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// How many copies this one builds on.
    #[serde(default)]
    pub depth: u32,
    /// The cluster's UUID.
    pub cluster: String,
    /// Its name.
    pub name: String,
    /// Number of partitions of its inode space.
    pub partitions: u16,
    /// The moment, seconds since 1970.
    pub created_s: i64,
    /// The weft that made it.
    pub version: String,
}

/// A small file of the state directory that belongs to the copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// Its place below the state directory.
    pub name: String,
    /// Its permissions.
    pub mode: u32,
    /// What is in it.
    pub content: Vec<u8>,
}

/// What is said of it before its content.
#[derive(Serialize, Deserialize)]
pub(crate) struct AttachedHead {
    pub name: String,
    pub mode: u32,
}

/// What a copy must have held, when it was read to its end.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Foot {
    /// Blocks before this one.
    pub blocks: u64,
    /// Files that belong to it.
    pub files: u64,
    /// Records with a value.
    pub puts: u64,
    /// Records of keys that are gone.
    pub gone: u64,
    /// Keys that the store had at the moment, be they in this copy or in those that it builds on.
    pub keys: u64,
    /// Bytes of those keys and their values.
    pub bytes: u64,
    /// [`crate::StateSum`] over them.
    pub sum: u32,
}

/// What a block's sum is over.
pub(crate) fn block_sum(number: u64, kind: [u8; 4], body: &[u8]) -> u32 {
    let mut hasher = types::Crc32c::default();
    hasher.update(&number.to_le_bytes());
    hasher.update(&kind);
    hasher.update(&(body.len() as u32).to_le_bytes());
    hasher.update(body);
    hasher.finish()
}
