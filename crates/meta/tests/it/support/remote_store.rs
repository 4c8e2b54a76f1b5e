//! A store with latency, like one in another process. For simulated machines.

use bytes::Bytes;
use kv::{Batch, Engine, KvError, LocalFuture, Memory, Outcome, Pair, RemoteEngine, RemoteWriter};
use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

#[derive(Default)]
pub struct RemoteStore {
    pub memory: Arc<Memory>,
    /// Answers to reads of keys or ranges that begin with these bytes are delayed, after the read,
    /// until the event is set.
    pub held: Mutex<BTreeMap<Vec<u8>, Arc<Event>>>,
    /// Reads of keys and of ranges.
    pub reads: Mutex<Vec<Vec<u8>>>,
    pub applies: Mutex<Vec<usize>>,
    /// Whether syncs fail.
    pub persist_fails: AtomicBool,
    /// Longest latency of a message.
    pub max_latency: Duration,
}

impl RemoteStore {
    pub fn new(memory: &Arc<Memory>, way: Duration) -> Arc<RemoteStore> {
        Arc::new(RemoteStore { memory: memory.clone(), max_latency: way, ..RemoteStore::default() })
    }

    pub fn writer(self: &Arc<RemoteStore>) -> Arc<RemoteWriter> {
        Arc::new(RemoteWriter::new(self.clone()))
    }

    /// Delays answers that contain a key from now on.
    pub fn hold(&self, key: &[u8]) -> Arc<Event> {
        self.held.lock().entry(key.to_vec()).or_default().clone()
    }

    async fn delay(&self) {
        let longest = self.max_latency.as_nanos() as u64;
        if longest > 0 {
            rt::sleep(Duration::from_nanos(rt::random_u64() % longest)).await;
        }
    }

    async fn wait_if_held(&self, key: &[u8]) {
        let held = self.held.lock().iter().find(|(held, _)| key.starts_with(held)).map(|(_, e)| e.clone());
        if let Some(event) = held {
            event.wait().await;
        }
    }
}

impl RemoteEngine for RemoteStore {
    fn get<'a>(&'a self, keys: &'a [Vec<u8>]) -> LocalFuture<'a, Result<Vec<Option<Bytes>>, KvError>> {
        Box::pin(async move {
            self.delay().await;
            let mut values = Vec::new();
            for key in keys {
                self.reads.lock().push(key.clone());
                values.push(self.memory.get(key)?);
                self.wait_if_held(key).await;
            }
            self.delay().await;
            Ok(values)
        })
    }

    fn scan<'a>(
        &'a self,
        from: &'a [u8],
        to: &'a [u8],
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<Pair>, KvError>> {
        Box::pin(async move {
            self.delay().await;
            self.reads.lock().push(from.to_vec());
            let pairs = self.memory.scan(from, to, limit)?;
            self.wait_if_held(from).await;
            self.delay().await;
            Ok(pairs)
        })
    }

    fn apply<'a>(&'a self, _: u64, batches: &'a [Batch]) -> LocalFuture<'a, Result<Vec<Outcome>, KvError>> {
        Box::pin(async move {
            self.delay().await;
            self.applies.lock().push(batches.len());
            let outcomes = self.memory.apply(batches)?;
            self.delay().await;
            Ok(outcomes)
        })
    }

    fn persist(&self) -> LocalFuture<'_, Result<(), KvError>> {
        Box::pin(async move {
            self.delay().await;
            if self.persist_fails.load(Relaxed) {
                return Err(KvError::Io { path: self.location(), cause: "the disk fails".into() });
            }
            self.memory.persist()
        })
    }

    fn verifier(&self) -> u64 {
        self.memory.verifier()
    }

    fn has_room(&self) -> bool {
        true
    }

    fn location(&self) -> String {
        "far away".into()
    }
}
