//! Requests to the store of metadata, from metadata services in other processes.

use bytes::Bytes;

/// The most batches of one [`KvRequest::Apply`].
pub const MAX_KV_BATCHES: usize = 1024;

/// What is asked of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KvRequest {
    /// The values of the first of these keys, as many as fit into an answer: `Values`.
    Get { keys: Vec<Bytes> },
    /// Pairs with `from <= key < to` in order of unsigned bytes, at most `limit` and as many as fit
    /// into an answer: `Pairs`.
    Scan { from: Bytes, to: Bytes, limit: u64 },
    /// Applies batches in order, each on its own terms: `Outcomes`. `writer` is random, another one
    /// for each start of a service, and counts its applies from 1 by `number`, with one under way
    /// at a time. What comes again is not applied again but answered again, as long as the store's
    /// process lives. `verifier`: the engine's, as the writer knows it. Under another one nothing
    /// is applied, since the writer may have read what has gone, and everything is answered with
    /// `Unknown`; 0: it doesn't matter.
    Apply { writer: u64, number: u64, verifier: u64, batches: Vec<KvBatch> },
    /// Everything applied before is on disk when this answers: `Done`.
    Persist,
}

/// Writes that happen together or not at all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KvBatch {
    /// Keys that must hold these values (or be absent).
    pub guards: Vec<(Bytes, Option<Bytes>)>,
    /// Keys and new values; `None` deletes. The last write to a key wins.
    pub writes: Vec<(Bytes, Option<Bytes>)>,
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvOutcome {
    /// Applied.
    Won,
    /// A guard did not hold; nothing was written.
    Lost,
    /// May have been applied.
    Unknown,
}

/// An answer, and what every answer tells of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvReply {
    /// Random, another one for every process of the store.
    pub instance: u64,
    /// Everything that was applied is there, in memory or on disk, as long as this is the same:
    /// another one only after a loss.
    pub verifier: u64,
    /// Whether the store may grow.
    pub has_room: bool,
    /// What was asked for.
    pub answer: KvAnswer,
}

/// The answers; which one belongs to which request is said there.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum KvAnswer {
    Values(Vec<Option<Bytes>>),
    /// `more`: it ends for want of room, and goes on after the last pair.
    Pairs {
        pairs: Vec<(Bytes, Bytes)>,
        more: bool,
    },
    Outcomes(Vec<KvOutcome>),
    Done,
}
