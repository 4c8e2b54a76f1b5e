//! The asynchronous interface of a metadata store, wherever its engine is.

use crate::{Batch, Engine, KvError, LocalFuture, Outcome, Pair, Space, Ticket, WriterStats};
use bytes::Bytes;
use std::sync::Arc;

/// Attempts to commit writes without guards while the outcome is uncertain.
const MAX_PUT_ATTEMPTS: usize = 8;

/// The reads of a store and of a snapshot.
pub trait Readable: Send + Sync + 'static {
    /// Returns the value of a key.
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Bytes>, KvError>>;
    /// Returns pairs with `from <= key < to` in order of unsigned bytes, at most `limit`.
    ///
    /// A store may change meanwhile: each pair was current at some moment of the call, not all at
    /// the same moment. A snapshot doesn't change. [`Pages`](crate::Pages) reads a long range.
    fn scan<'a>(
        &'a self,
        from: &'a [u8],
        to: &'a [u8],
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<Pair>, KvError>>;
}

/// A store with the group commit in front of it. Its engine is in this process
/// ([`Writer`](crate::Writer)) or in another one ([`RemoteWriter`](crate::RemoteWriter)).
pub trait Store: Readable {
    /// Returns the engine, if it is in this process: reads from it don't wait.
    fn engine(&self) -> Option<&Arc<dyn Engine>> {
        None
    }

    /// Returns the values of keys, in their order.
    fn get_many<'a>(&'a self, keys: &'a [Vec<u8>]) -> LocalFuture<'a, Result<Vec<Option<Bytes>>, KvError>>;

    /// Returns a read-only snapshot of everything that is committed.
    ///
    /// # Errors
    /// [`KvError::NoSnapshot`] where the store doesn't support that.
    fn snapshot(&self) -> LocalFuture<'_, Result<Arc<dyn Readable>, KvError>>;

    /// Waits until there is room for another batch. With an engine in this process it doesn't wait:
    /// a caller with too many batches becomes the leader.
    fn admit(&self) -> LocalFuture<'_, ()>;

    /// Appends the batch to the order of commits.
    fn enqueue(&self, batch: Batch) -> Ticket;

    /// Waits until the ticket's batch is committed. Any number of callers may wait for one ticket.
    fn wait<'a>(&'a self, ticket: &'a Ticket) -> LocalFuture<'a, Result<Outcome, KvError>>;

    /// Enqueues a batch and waits until it is committed.
    fn commit(&self, batch: Batch) -> LocalFuture<'_, Result<Outcome, KvError>> {
        Box::pin(async move {
            let ticket = self.enqueue(batch);
            self.wait(&ticket).await
        })
    }

    /// Commits writes without guards, in one batch. Where the outcome is uncertain, it commits them
    /// again: the caller must be the only writer of these keys, so that this changes nothing.
    ///
    /// # Errors
    /// Those of the engine; an outcome that is still uncertain after several attempts.
    fn put<'a>(&'a self, writes: Vec<(Vec<u8>, Option<Bytes>)>) -> LocalFuture<'a, Result<(), KvError>> {
        Box::pin(async move {
            for _ in 0..MAX_PUT_ATTEMPTS {
                let batch = Batch { guards: vec![], writes: writes.clone() };
                if self.commit(batch).await? == Outcome::Applied {
                    return Ok(());
                }
            }
            let cause = format!("the outcome of a commit is uncertain after {MAX_PUT_ATTEMPTS} attempts");
            Err(KvError::Unreachable { path: self.location(), cause })
        })
    }

    /// Waits until everything that was enqueued before is committed and on disk.
    fn sync(&self) -> LocalFuture<'_, Result<(), KvError>>;

    /// Returns true when something is not on disk yet.
    fn is_dirty(&self) -> bool;

    /// Returns whether the store may grow, as far as this process knows.
    fn has_room(&self) -> bool;

    /// Returns its disk space; `None` where this process doesn't know it.
    fn space(&self) -> Option<Space> {
        None
    }

    /// Returns the verifier: as long as it is the same, everything committed exists, in memory or
    /// on disk. 0 if it isn't known.
    fn verifier(&self) -> u64;

    /// Returns the location of the store, for messages.
    fn location(&self) -> String;

    /// Returns counts since the start.
    fn stats(&self) -> WriterStats;
}
