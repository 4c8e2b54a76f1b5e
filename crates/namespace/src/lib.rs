//! The metadata state machine.
//!
//! [`apply`] takes one command and the state that it can read. It returns the reply and the
//! key-value writes that make it true. Pure: no I/O, no clock, no randomness, no threads; time,
//! seeds and the cluster map come in with [`Env`]. It never accesses chunk files, and it doesn't
//! depend on the storage engine.
//!
//! Invariants of every state between two commands:
//! - An entry names an inode that exists; the entry's type bits are those of the inode's mode.
//! - An inode's link count is the number of entries that name it; a directory's is 2 plus its
//!   subdirectories, or 0 once it is removed.
//! - A directory has exactly one entry, in the directory that its `parent` names; the root's parent
//!   is the root.
//! - An inode has an orphan record exactly when its link count is 0. A removed directory has no
//!   entries and gets none.
//! - Inline content is never longer than the file's size, and only a file with its inline flag set
//!   has some.
//! - An inode number is never used twice.
//!
//! A command reads a key of a partition before it writes to that partition. So a caller that
//! answers reads with [`ReadError::NeedPartition`] also controls which partitions are written.
//!
//! ```
//! use namespace::{Env, Reader, ReadError, apply, format};
//! use std::collections::BTreeMap;
//!
//! struct State(BTreeMap<Vec<u8>, bytes::Bytes>);
//! impl Reader for State {
//!     fn get(&self, key: &[u8]) -> Result<Option<bytes::Bytes>, ReadError> {
//!         Ok(self.0.get(key).cloned())
//!     }
//!     fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(bytes::Bytes, bytes::Bytes)>, ReadError> {
//!         let range = self.0.range(from.to_vec()..to.to_vec()).take(limit);
//!         Ok(range.map(|(key, value)| (key.clone().into(), value.clone())).collect())
//!     }
//! }
//!
//! let env = Env {
//!     now: types::Timestamp::new(1, 0),
//!     session: types::SessionId(1),
//!     credentials: types::Credentials::default(),
//!     hash_key: (1, 2),
//!     partitions: 64,
//!     seed: 3,
//!     map: &types::ClusterMap::default(),
//! };
//! let state = State(format(&env, &types::StripePattern::default()).into_iter().filter_map(|(key, value)| Some((key, value?))).collect());
//! let applied = apply(&env, &state, &wire::MetaOp::Getattr { ino: types::InodeId::ROOT });
//! assert!(matches!(applied.unwrap().reply, wire::MetaReply::Attr(attr) if attr.nlink == 2));
//! ```

mod access;
mod access_times;
pub mod acl;
mod attributes;
mod background;
mod flags;
#[doc(hidden)]
pub mod fuzzing;
pub mod keys;
pub mod leases;
pub mod locks;
mod migrate;
mod ops;
mod permissions;
pub mod record;
mod stripe_move;
mod tx;

pub use access::{Caller, is_being_changed, may_write, permit, permit_anonymous};
pub use access_times::access_time_writes;
pub use attributes::{MAX_XATTR_NAME, MAX_XATTR_NAMES, MAX_XATTR_VALUE, MAX_XATTR_VALUES};
pub use background::{
    Chunks, OrphanInode, UnrecoveredFile, children, chunks, doomed, dooms_chunk_files, inodes, orphans,
    unrecovered_files,
};
pub use keys::{Key, decode_key, partition_of_key};
pub use migrate::{
    FilePlacement, Goal, begin_migration, file_placement, finish_migration, forget_migration, migrating,
};
pub use ops::pattern::missing_groups;
pub use stripe_move::{
    MoveStep, StripeMove, begin_move, doomed_chunk_file, doomed_in, doomed_layout, finish_move,
    forget_doomed, layout_of,
};
pub use tx::{FIRST_SEQUENCE, MAX_NAME};

use bytes::Bytes;
use types::{ClusterMap, Error, InodeId, PartitionId, SessionId, StripePattern, Timestamp, mode};
use wire::{MetaOp, MetaReply};

/// Keys and new values; `None` deletes.
pub type Writes = Vec<(Vec<u8>, Option<Bytes>)>;

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The key belongs to a partition that the caller hasn't locked; lock it as well and apply
    /// again.
    NeedPartition(PartitionId),
    /// The store failed.
    Store(Error),
    /// The key has to be fetched from a remote store first, as the reader has noted; apply again
    /// then.
    NotFetched,
}

/// The state that a command reads: the store, with all earlier writes of this executor on top.
pub trait Reader {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError>;
    /// Pairs with `from <= key < to` in order of unsigned bytes, at most `limit`. All in one
    /// partition.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, ReadError>;
    /// Announces that all of these keys are about to be read: a reader of a remote store can fetch
    /// them at once.
    fn expect(&self, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<(), ReadError> {
        let _ = keys;
        Ok(())
    }
}

/// Inputs of a command besides the state.
pub struct Env<'a> {
    /// The current time.
    pub now: Timestamp,
    /// The session that sent the command.
    pub session: SessionId,
    /// Effective ids of the caller.
    pub credentials: types::Credentials,
    /// Key of the name hash, fixed when the file system is made.
    pub hash_key: (u64, u64),
    /// Number of partitions, fixed when the file system is made.
    pub partitions: u16,
    /// A random number, for placement choosers.
    pub seed: u64,
    /// Pools, groups and free space, for placement choosers.
    pub map: &'a ClusterMap,
}

/// A command's outcome.
#[derive(Debug)]
pub struct Applied {
    /// The answer to the caller, sent after the writes are committed.
    pub reply: MetaReply,
    /// In order of keys, each key once. Empty for a command that only reads.
    pub writes: Writes,
}

/// Why a command was not executed.
#[derive(Debug)]
pub enum Failure {
    /// Refused; nothing changes.
    Refused(Error),
    /// Needs this partition too; nothing changes.
    NeedPartition(PartitionId),
    /// As [`ReadError::NotFetched`]; nothing changes.
    NotFetched,
}

/// Executes one command on the state that `reader` shows.
///
/// Locks, leases, sessions and `Sync` are not part of this state: they are refused with `ENOSYS`.
pub fn apply(env: &Env<'_>, reader: &dyn Reader, op: &MetaOp) -> Result<Applied, Failure> {
    ops::apply(tx::Tx::new(env, reader), op)
}

/// Looks up a name without reading its inode: returns the number and the type bits of its mode.
/// Reads the directory's partition only.
pub fn find(
    env: &Env<'_>,
    reader: &dyn Reader,
    parent: InodeId,
    name: &[u8],
) -> Result<(InodeId, u32), Failure> {
    ops::find(&tx::Tx::new(env, reader), parent, name)
}

/// A partition that the command certainly reads: the best one to start with.
pub fn home_partition(op: &MetaOp) -> PartitionId {
    ops::subject(op).partition()
}

/// The writes that create an empty file system: its root directory, with this pattern.
pub fn format(env: &Env<'_>, pattern: &StripePattern) -> Writes {
    let now = Some(env.now.into());
    let root = record::Inode {
        mode: mode::S_IFDIR | 0o755,
        nlink: 2,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        parent: InodeId::ROOT.0,
        pattern: Some(pattern.into()),
        ..record::Inode::default()
    };
    vec![(keys::inode(InodeId::ROOT).to_vec(), Some(prost::Message::encode_to_vec(&root).into()))]
}
