//! The store over an engine in this process.

use super::Writer;
use crate::{
    Batch, Engine, KvError, LocalFuture, Outcome, Pair, Readable, Space, Store, Ticket, WriterStats,
};
use bytes::Bytes;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

impl Readable for Writer {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Bytes>, KvError>> {
        Box::pin(async move { self.shared.engine.get(key) })
    }

    fn scan<'a>(
        &'a self,
        from: &'a [u8],
        to: &'a [u8],
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<Pair>, KvError>> {
        Box::pin(async move { self.shared.engine.scan(from, to, limit) })
    }
}

impl Store for Writer {
    fn engine(&self) -> Option<&Arc<dyn Engine>> {
        Some(&self.shared.engine)
    }

    fn get_many<'a>(&'a self, keys: &'a [Vec<u8>]) -> LocalFuture<'a, Result<Vec<Option<Bytes>>, KvError>> {
        Box::pin(async move { keys.iter().map(|key| self.shared.engine.get(key)).collect() })
    }

    fn snapshot(&self) -> LocalFuture<'_, Result<Arc<dyn Readable>, KvError>> {
        Box::pin(async move {
            match self.shared.engine.snapshot() {
                Some(engine) => Ok(Arc::new(EngineSnapshot(engine)) as Arc<dyn Readable>),
                None => Err(KvError::NoSnapshot {
                    path: self.shared.engine.location(),
                    cause: "its engine has no snapshots".into(),
                }),
            }
        })
    }

    fn admit(&self) -> LocalFuture<'_, ()> {
        // Has no size, so nothing is allocated for each command.
        Box::pin(poll_fn(|_| Poll::Ready(())))
    }

    fn enqueue(&self, batch: Batch) -> Ticket {
        Writer::enqueue(self, batch)
    }

    fn wait<'a>(&'a self, ticket: &'a Ticket) -> LocalFuture<'a, Result<Outcome, KvError>> {
        Box::pin(Writer::wait(self, ticket))
    }

    fn sync(&self) -> LocalFuture<'_, Result<(), KvError>> {
        Box::pin(Writer::sync(self))
    }

    fn is_dirty(&self) -> bool {
        Writer::is_dirty(self)
    }

    fn has_room(&self) -> bool {
        self.shared.engine.has_room()
    }

    fn space(&self) -> Option<Space> {
        self.shared.engine.space()
    }

    fn verifier(&self) -> u64 {
        self.shared.engine.verifier()
    }

    fn location(&self) -> String {
        self.shared.engine.location()
    }

    fn stats(&self) -> WriterStats {
        Writer::stats(self)
    }
}

/// A snapshot of an engine in this process.
struct EngineSnapshot(Arc<dyn Engine>);

impl Readable for EngineSnapshot {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Bytes>, KvError>> {
        Box::pin(async move { self.0.get(key) })
    }

    fn scan<'a>(
        &'a self,
        from: &'a [u8],
        to: &'a [u8],
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<Pair>, KvError>> {
        Box::pin(async move { self.0.scan(from, to, limit) })
    }
}
