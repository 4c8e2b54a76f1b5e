//! A store whose engine is in this process or in another one.

use crate::{Batch, Engine, KvError, Outcome, Pair, RemoteWriter, Ticket, Writer, WriterStats};
use bytes::Bytes;
use std::sync::Arc;

/// A store with the group commit in front of it. Reads from an engine in this process don't wait: a
/// caller uses [`Store::engine`] directly. Reads from a remote engine wait.
#[derive(Clone)]
pub enum Store {
    /// The engine is in this process.
    Local(Arc<Writer>),
    /// The engine is in another process.
    Remote(Arc<RemoteWriter>),
}

impl From<Arc<Writer>> for Store {
    fn from(writer: Arc<Writer>) -> Store {
        Store::Local(writer)
    }
}

impl From<Arc<RemoteWriter>> for Store {
    fn from(writer: Arc<RemoteWriter>) -> Store {
        Store::Remote(writer)
    }
}

impl Store {
    /// Returns the engine, if it is in this process.
    pub fn engine(&self) -> Option<&Arc<dyn Engine>> {
        match self {
            Store::Local(writer) => Some(writer.engine()),
            Store::Remote(_) => None,
        }
    }

    /// Returns the value of a key.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        match self {
            Store::Local(writer) => writer.engine().get(key),
            Store::Remote(writer) => Ok(writer.get(&[key.to_vec()]).await?.pop().flatten()),
        }
    }

    /// Returns the values of keys, in their order.
    pub async fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, KvError> {
        match self {
            Store::Local(writer) => keys.iter().map(|key| writer.engine().get(key)).collect(),
            Store::Remote(writer) => writer.get(keys).await,
        }
    }

    /// Returns pairs with `from <= key < to` in order of unsigned bytes, at most `limit`. Each pair
    /// was current at some moment of the call, not all at the same moment.
    pub async fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        match self {
            Store::Local(writer) => writer.engine().scan(from, to, limit),
            Store::Remote(writer) => writer.scan(from, to, limit).await,
        }
    }

    /// Waits until there is room for another batch. With an engine in this process it doesn't wait:
    /// a caller with too many batches becomes the leader.
    pub async fn admit(&self) {
        if let Store::Remote(writer) = self {
            writer.admit().await;
        }
    }

    /// Appends the batch to the order of commits.
    pub fn enqueue(&self, batch: Batch) -> Ticket {
        match self {
            Store::Local(writer) => writer.enqueue(batch),
            Store::Remote(writer) => writer.enqueue(batch),
        }
    }

    /// Waits until the ticket's batch is committed.
    pub async fn wait(&self, ticket: &Ticket) -> Result<Outcome, KvError> {
        match self {
            Store::Local(writer) => writer.wait(ticket).await,
            Store::Remote(writer) => writer.wait(ticket).await,
        }
    }

    /// Enqueues a batch and waits until it is committed.
    pub async fn commit(&self, batch: Batch) -> Result<Outcome, KvError> {
        let ticket = self.enqueue(batch);
        self.wait(&ticket).await
    }

    /// Waits until everything that was enqueued before is committed and on disk.
    pub async fn sync(&self) -> Result<(), KvError> {
        match self {
            Store::Local(writer) => writer.sync().await,
            Store::Remote(writer) => writer.sync().await,
        }
    }

    /// Returns true when something is not on disk yet.
    pub fn is_dirty(&self) -> bool {
        match self {
            Store::Local(writer) => writer.is_dirty(),
            Store::Remote(writer) => writer.is_dirty(),
        }
    }

    /// Returns whether the store may grow, as far as this process knows.
    pub fn has_room(&self) -> bool {
        match self {
            Store::Local(writer) => writer.engine().has_room(),
            Store::Remote(writer) => writer.has_room(),
        }
    }

    /// Returns the verifier: as long as it is the same, everything committed exists, in memory or
    /// on disk. 0 if it isn't known.
    pub fn verifier(&self) -> u64 {
        match self {
            Store::Local(writer) => writer.engine().verifier(),
            Store::Remote(writer) => writer.verifier(),
        }
    }

    /// Returns the location of the store, for messages.
    pub fn location(&self) -> String {
        match self {
            Store::Local(writer) => writer.engine().location(),
            Store::Remote(writer) => writer.location(),
        }
    }

    /// Returns counts since the start.
    pub fn stats(&self) -> WriterStats {
        match self {
            Store::Local(writer) => writer.stats(),
            Store::Remote(writer) => writer.stats(),
        }
    }
}
