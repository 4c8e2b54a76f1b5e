//! The interface of an engine.

use bytes::Bytes;

/// A key and its value.
pub type Pair = (Bytes, Bytes);

/// A key that must hold this value (or be absent) when the batch is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Guard {
    pub key: Vec<u8>,
    pub expected: Option<Bytes>,
}

/// Writes that are applied atomically.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Conditions for the writes.
    pub guards: Vec<Guard>,
    /// Key and new value; `None` deletes. The last write to a key wins.
    pub writes: Vec<(Vec<u8>, Option<Bytes>)>,
}

/// Outcome of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Applied.
    Applied,
    /// A guard didn't hold; nothing was written.
    GuardFailed,
    /// Uncertain: the batch may have been applied. The operation record written with it shows
    /// whether it was.
    Uncertain,
}

/// Failure of an engine.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KvError {
    /// No space on the engine's device.
    #[error("no space left for the metadata store at {path}")]
    NoSpace { path: String },
    /// The device or the engine failed.
    #[error("metadata store at {path}: {cause}")]
    Io { path: String, cause: String },
    /// Another process has the store open.
    #[error("metadata store at {path} is in use by another process")]
    Locked { path: String },
    /// The content read is not what was written.
    #[error("metadata store at {path} is damaged: {cause}")]
    Corrupt { path: String, cause: String },
    /// A store in another process doesn't answer.
    #[error("metadata store at {path} can't be reached: {cause}")]
    Unreachable { path: String, cause: String },
    /// A batch for a store in another process exceeds the limit of a message.
    #[error("a commit of {bytes} bytes for the metadata store at {path} exceeds the limit of {limit}")]
    TooLarge { path: String, bytes: usize, limit: usize },
    /// The store has no snapshots.
    #[error("the metadata store at {path} can't be read while it is in use: {cause}")]
    NoSnapshot { path: String, cause: String },
}

/// Disk space of a store, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Used by the store.
    pub used: u64,
    /// Capacity of the disk.
    pub capacity: u64,
    /// Free on the disk.
    pub free: u64,
    /// Free space required for the store to grow.
    pub needed: u64,
}

/// An ordered store. Reads see every applied batch.
pub trait Engine: Send + Sync + 'static {
    /// Returns the value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;
    /// Returns pairs with `from <= key < to` in order of unsigned bytes, at most `limit`.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError>;
    /// Applies batches in order, each atomically, in one engine commit. They survive the death of
    /// the process when this returns. One caller at a time (the batching writer).
    fn apply(&self, batches: &[Batch]) -> Result<Vec<Outcome>, KvError>;
    /// Syncs everything that was applied before to disk.
    fn persist(&self) -> Result<(), KvError>;
    /// Returns whether the store may grow. When its disk is nearly full, callers should apply only
    /// batches that free space or need hardly any: after a write fails with a full disk, nothing
    /// more can be written. Cheap enough to be called for every write.
    fn has_room(&self) -> bool {
        true
    }
    /// Returns its disk space; `None` where it has no disk, or the disk can't be queried.
    fn space(&self) -> Option<Space> {
        None
    }
    /// Returns a read-only snapshot of the store. `None` where the engine doesn't support that.
    fn snapshot(&self) -> Option<std::sync::Arc<dyn Engine>> {
        None
    }
    /// Returns damage that the engine has found. From then on the engine returns only this error,
    /// and a service that uses it must end.
    fn damage(&self) -> Option<KvError> {
        None
    }
    /// Returns the verifier: as long as it is the same, everything acknowledged exists, in memory
    /// or on disk. It changes only after a loss, and is never 0.
    fn verifier(&self) -> u64 {
        1
    }
    /// Syncs everything to disk before an orderly close of the engine: no later start loses any of
    /// it.
    fn sync_for_close(&self) -> Result<(), KvError> {
        self.persist()
    }
    /// Returns the location of the store, for messages.
    fn location(&self) -> String {
        "memory".into()
    }
}
