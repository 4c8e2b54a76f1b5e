//! A store as its user has it: with its engine in this process, or elsewhere.

use crate::{Batch, Engine, KvError, Outcome, Pair, RemoteWriter, Ticket, Writer, WriterStats};
use bytes::Bytes;
use std::sync::Arc;

/// A store and the group commit in front of it. Reads of an engine in this process need no waiting:
/// who has [`Store::engine`] asks it directly. Those of an engine elsewhere do.
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
    /// The engine, where it is in this process.
    pub fn engine(&self) -> Option<&Arc<dyn Engine>> {
        match self {
            Store::Local(writer) => Some(writer.engine()),
            Store::Remote(_) => None,
        }
    }

    /// The value of a key.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        match self {
            Store::Local(writer) => writer.engine().get(key),
            Store::Remote(writer) => Ok(writer.get(&[key.to_vec()]).await?.pop().flatten()),
        }
    }

    /// The values of keys, in their order.
    pub async fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, KvError> {
        match self {
            Store::Local(writer) => keys.iter().map(|key| writer.engine().get(key)).collect(),
            Store::Remote(writer) => writer.get(keys).await,
        }
    }

    /// Pairs with `from <= key < to` in order of unsigned bytes, at most `limit`. Each pair is as
    /// the store has it at some moment of the call, not all at the same.
    pub async fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        match self {
            Store::Local(writer) => writer.engine().scan(from, to, limit),
            Store::Remote(writer) => writer.scan(from, to, limit).await,
        }
    }

    /// Waits until there is room for another batch. An engine in this process needs none: who
    /// brings too many leads.
    pub async fn admit(&self) {
        if let Store::Remote(writer) = self {
            writer.admit().await;
        }
    }

    /// Gives the batch its place in the order of commits.
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

    /// Everything that was enqueued before is committed and on disk when this returns.
    pub async fn sync(&self) -> Result<(), KvError> {
        match self {
            Store::Local(writer) => writer.sync().await,
            Store::Remote(writer) => writer.sync().await,
        }
    }

    /// True when there is something that is not on disk yet.
    pub fn is_dirty(&self) -> bool {
        match self {
            Store::Local(writer) => writer.is_dirty(),
            Store::Remote(writer) => writer.is_dirty(),
        }
    }

    /// Whether the store may grow, as far as is known here.
    pub fn has_room(&self) -> bool {
        match self {
            Store::Local(writer) => writer.engine().has_room(),
            Store::Remote(writer) => writer.has_room(),
        }
    }

    /// Everything that was committed is there, in memory or on disk, as long as this number is the
    /// same; 0 where it isn't known.
    pub fn verifier(&self) -> u64 {
        match self {
            Store::Local(writer) => writer.engine().verifier(),
            Store::Remote(writer) => writer.verifier(),
        }
    }

    /// Where the store is, for messages.
    pub fn place(&self) -> String {
        match self {
            Store::Local(writer) => writer.engine().place(),
            Store::Remote(writer) => writer.place(),
        }
    }

    /// Counts since the start.
    pub fn stats(&self) -> WriterStats {
        match self {
            Store::Local(writer) => writer.stats(),
            Store::Remote(writer) => writer.stats(),
        }
    }
}
