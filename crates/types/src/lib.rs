//! Ids, units, errors, checksums and the cluster map: the vocabulary of all other crates.
//!
//! Pure: no I/O, no clock, no threads. This crate knows nothing of requests, files or sockets.

mod attr;
mod checksum;
mod client_name;
mod error;
mod export;
mod finding_codes;
mod flags;
mod hash;
mod id;
mod map;
mod map_handle;
mod pattern;
mod range;
mod refusal;
mod settings;
mod subnet;
mod time;

pub use attr::{Attr, Credentials, FileKind, SetAttr, SetTime, mode, needs_atime_update};
pub use checksum::{
    BLOCK_SIZE, BlockSum, Crc32c, block_crcs, block_sum, checksums_enabled, combine_block_crcs, crc32c,
    set_checksums_enabled,
};
pub use client_name::{MAX_CLIENT_NAME, is_client_name};
pub use error::{Errno, Error, Result};
pub use export::{ClientOrigin, Export, ExportAccess, ExportClients, ExportRule, NOBODY, Squash, export_for};
pub use flags::InodeFlags;
pub use hash::{HashMap, HashSet, ProcessHash, set_hash_keys};
pub use id::{
    ChunkFileId, ChunkIndex, ChunkSlot, Epoch, GroupId, InodeId, NodeId, PartitionId, PoolId, ProjectId,
    SessionId, TargetId,
};
pub use map::{
    CapacityClass, ClusterMap, Group, GroupUsage, MemberState, Node, NodeState, Pool, RevokedClient, Role,
    Target, TargetState, reserved_space,
};
pub use map_handle::{MapHandle, MapSinceEpoch};
pub use pattern::{Chooser, Layout, MAX_INLINE_LIMIT, Scheme, StripePattern};
pub use range::ByteRange;
pub use refusal::Refusal;
pub use settings::{ResyncSettings, ScrubSettings, Settings};
pub use subnet::Subnet;
pub use time::Timestamp;
