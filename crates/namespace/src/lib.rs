//! The metadata state machine.
//!
//! [`apply`] takes one command and the state it can read, and says the reply and the key-value writes that make it true.
//! Pure: no I/O, no clock, no randomness, no threads; time, seeds and the cluster map come in with [`Env`].

use bytes::Bytes;
use types::{ClusterMap, Error, PartitionId, SessionId, Timestamp};
use wire::{MetaOp, MetaReply};

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The key belongs to a partition that the caller doesn't hold; take it as well and apply again.
    NeedPartition(PartitionId),
    /// The store failed.
    Store(Error),
}

/// The state that a command reads: what the store holds with every earlier write of this executor laid over it.
pub trait Reader {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError>;
    /// Pairs with `from <= key < to` in order of unsigned bytes, at most `limit`. All in one partition.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, ReadError>;
}

/// What a command may depend on besides the state.
pub struct Env<'a> {
    /// The clock.
    pub now: Timestamp,
    /// Who asks.
    pub session: SessionId,
    /// Effective ids of the caller.
    pub credentials: types::Credentials,
    /// Key of the name hash, fixed when the file system is made.
    pub hash_key: (u64, u64),
    /// Number of partitions, fixed when the file system is made.
    pub partitions: u16,
    /// A random number, for choosers.
    pub seed: u64,
    /// Pools, groups and free space, for choosers.
    pub map: &'a ClusterMap,
}

/// A command's outcome.
#[derive(Debug)]
pub struct Applied {
    /// What the caller is told, after the writes are committed.
    pub reply: MetaReply,
    /// Key and new value; `None` deletes. Empty for a command that only reads.
    pub writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Why a command was not carried out.
#[derive(Debug)]
pub enum Failure {
    /// Refused; nothing changes.
    Refused(Error),
    /// Needs this partition too; nothing changes.
    NeedPartition(PartitionId),
}

/// Carries out one command on the state that `reader` shows.
pub fn apply(_env: &Env<'_>, _reader: &dyn Reader, _op: &MetaOp) -> Result<Applied, Failure> {
    Err(Failure::Refused(types::Errno::ENOSYS.into()))
}
