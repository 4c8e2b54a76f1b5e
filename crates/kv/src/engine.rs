//! What an engine does.

use bytes::Bytes;

/// A key with its value.
pub type Pair = (Bytes, Bytes);

/// A key that must hold this value (or be absent) when the batch is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Guard {
    pub key: Vec<u8>,
    pub expected: Option<Bytes>,
}

/// Writes that happen together or not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Conditions.
    pub guards: Vec<Guard>,
    /// Key and new value; `None` deletes. The last write to a key wins.
    pub writes: Vec<(Vec<u8>, Option<Bytes>)>,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Applied.
    Won,
    /// A guard did not hold; nothing was written.
    Lost,
    /// May have been applied; the operation record written with it settles it.
    Unknown,
}

/// An engine's failure.
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
    /// What was read is not what was written.
    #[error("metadata store at {path} is damaged: {cause}")]
    Corrupt { path: String, cause: String },
    /// A store in another process doesn't answer.
    #[error("metadata store at {path} can't be reached: {cause}")]
    Unreachable { path: String, cause: String },
    /// A batch for a store in another process is too large for a message.
    #[error(
        "{bytes} bytes for the metadata store at {path} are too many for one commit, which takes {limit}"
    )]
    TooLarge { path: String, bytes: usize, limit: usize },
}

/// What a store takes of its disk, and what there is, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// In the store.
    pub used: u64,
    /// The disk's.
    pub capacity: u64,
    /// Free on the disk.
    pub free: u64,
    /// What has to be free if the store is to grow.
    pub needed: u64,
}

/// An ordered store. Reads see every applied batch.
pub trait Engine: Send + Sync + 'static {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;
    /// Pairs with `from <= key < to` in order of unsigned bytes, at most `limit`.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError>;
    /// Applies batches in order, each on its own terms, in one engine commit; safe from the death
    /// of the process when it returns. One caller at a time (the batching writer).
    fn apply(&self, batches: &[Batch]) -> Result<Vec<Outcome>, KvError>;
    /// Everything applied before is on disk when this returns.
    fn persist(&self) -> Result<(), KvError>;
    /// Whether the store may grow. When its disk is nearly full, only what frees space or hardly
    /// needs any should still be applied: once a write fails for want of space, nothing more can be
    /// written. Cheap enough to be asked for every write.
    fn has_room(&self) -> bool {
        true
    }
    /// What it takes of its disk; `None` where it has none, or that can't be asked.
    fn space(&self) -> Option<Space> {
        None
    }
    /// The store as it is now, whatever is applied later; for reading only. `None` where the engine
    /// can't do that.
    fn snapshot(&self) -> Option<std::sync::Arc<dyn Engine>> {
        None
    }
    /// Damage that was met. From then on the engine answers nothing but this; whoever serves from
    /// it has to end.
    fn damage(&self) -> Option<KvError> {
        None
    }
    /// Everything that was acknowledged is there, in memory or on disk, as long as this number is
    /// the same. Another one only after a loss. Never 0.
    fn verifier(&self) -> u64 {
        1
    }
    /// Everything is put on disk before the engine is closed in good order: no start loses anything
    /// of it.
    fn settle(&self) -> Result<(), KvError> {
        self.persist()
    }
    /// Where the store is, for messages.
    fn place(&self) -> String {
        "memory".into()
    }
}
