//! The store over an engine in another process.

use super::RemoteWriter;
use crate::{Batch, KvError, LocalFuture, Outcome, Pair, Readable, Store, Ticket, WriterStats};
use bytes::Bytes;
use std::sync::Arc;

impl Readable for RemoteWriter {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Bytes>, KvError>> {
        Box::pin(async move { Ok(self.get_many(&[key.to_vec()]).await?.pop().flatten()) })
    }

    fn scan<'a>(
        &'a self,
        from: &'a [u8],
        to: &'a [u8],
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<Pair>, KvError>> {
        Box::pin(RemoteWriter::scan(self, from, to, limit))
    }
}

impl Store for RemoteWriter {
    fn get_many<'a>(&'a self, keys: &'a [Vec<u8>]) -> LocalFuture<'a, Result<Vec<Option<Bytes>>, KvError>> {
        Box::pin(RemoteWriter::get_many(self, keys))
    }

    /// Fails: the protocol between processes has no request for a snapshot.
    fn snapshot(&self) -> LocalFuture<'_, Result<Arc<dyn Readable>, KvError>> {
        Box::pin(async move {
            Err(KvError::NoSnapshot {
                path: RemoteWriter::location(self),
                cause: "its engine is in another process, and the protocol has no snapshots".into(),
            })
        })
    }

    fn admit(&self) -> LocalFuture<'_, ()> {
        Box::pin(RemoteWriter::admit(self))
    }

    fn enqueue(&self, batch: Batch) -> Ticket {
        RemoteWriter::enqueue(self, batch)
    }

    fn wait<'a>(&'a self, ticket: &'a Ticket) -> LocalFuture<'a, Result<Outcome, KvError>> {
        Box::pin(RemoteWriter::wait(self, ticket))
    }

    fn sync(&self) -> LocalFuture<'_, Result<(), KvError>> {
        Box::pin(RemoteWriter::sync(self))
    }

    fn is_dirty(&self) -> bool {
        RemoteWriter::is_dirty(self)
    }

    fn has_room(&self) -> bool {
        RemoteWriter::has_room(self)
    }

    fn verifier(&self) -> u64 {
        RemoteWriter::verifier(self)
    }

    fn location(&self) -> String {
        RemoteWriter::location(self)
    }

    fn stats(&self) -> WriterStats {
        RemoteWriter::stats(self)
    }
}
