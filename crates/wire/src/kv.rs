//! Requests to the metadata store, from metadata services in other processes.

use bytes::Bytes;

/// Largest number of batches in one [`KvRequest::Apply`].
pub const MAX_KV_BATCHES: usize = 1024;

/// A request to the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KvRequest {
    /// Reads the values of the first of these keys, as many as fit into an answer: `Values`.
    Get { keys: Vec<Bytes> },
    /// Reads pairs with `from <= key < to` in order of unsigned bytes, at most `limit` and as many
    /// as fit into an answer: `Pairs`.
    Scan { from: Bytes, to: Bytes, limit: u64 },
    /// Applies batches in order, each independently: `Outcomes`. `writer` is a random number of the
    /// service's process; it numbers its applies from 1 by `number`, one at a time. A repeated
    /// apply isn't executed again: it gets the first answer, as long as the store's process lives.
    /// `verifier` is the engine's, as the writer knows it. If it differs, nothing is applied, since
    /// the writer may have read content that is lost; all outcomes are `Unknown`. 0: no check.
    Apply { writer: u64, number: u64, verifier: u64, batches: Vec<KvBatch> },
    /// Makes everything that was applied before durable: `Done`.
    Persist,
}

/// Writes that are applied atomically.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KvBatch {
    /// Keys that must have these values (or be absent).
    pub guards: Vec<(Bytes, Option<Bytes>)>,
    /// Keys and new values; `None` deletes. The last write to a key wins.
    pub writes: Vec<(Bytes, Option<Bytes>)>,
}

/// Outcome of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvOutcome {
    /// Applied.
    Applied,
    /// A guard failed; nothing was written.
    GuardFailed,
    /// May have been applied.
    Unknown,
}

/// An answer, with the store's state that every answer carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvReply {
    /// Random number of the store's process.
    pub instance: u64,
    /// Verifier: while it is unchanged, everything that was applied is in memory or on disk. It
    /// changes only after a loss.
    pub verifier: u64,
    /// Whether the store may grow.
    pub has_space: bool,
    /// The answer to the request.
    pub answer: KvAnswer,
}

/// Answers; [`KvRequest`] names the answer of each request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum KvAnswer {
    Values(Vec<Option<Bytes>>),
    /// `more`: the answer is full, and the next scan must continue after the last pair.
    Pairs {
        pairs: Vec<(Bytes, Bytes)>,
        more: bool,
    },
    Outcomes(Vec<KvOutcome>),
    Done,
}
