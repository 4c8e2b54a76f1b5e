//! The client's side of an engine in another process.

use bytes::Bytes;
use kv::{Batch, KvError, LocalFuture, Outcome, Pair, RemoteEngine};
use net::Channel;
use parking_lot::Mutex;
use rt::sync::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use types::{Errno, Error};
use wire::{KvAnswer, KvBatch, KvOutcome, KvReply, KvRequest};

/// Channel to a store.
pub type KvChannel = Channel<KvRequest, KvReply>;

/// Most keys in one request, and their bytes: such a request fits into a message.
const MAX_REQUEST_KEYS: usize = 4096;
const MAX_REQUEST_BYTES: usize = 512 << 10;

/// A store in another process.
pub struct RemoteStore {
    channel: KvChannel,
    location: String,
    /// Random id of this client at the service.
    writer: u64,
    has_room: AtomicBool,
    state: Mutex<State>,
    data_loss: Arc<Event>,
}

#[derive(Default)]
struct State {
    /// The process that answered last, and its engine's verifier.
    server: Option<(u64, u64)>,
    /// The last apply, and the process to which it was sent first.
    applying: (u64, Option<u64>),
}

impl RemoteStore {
    /// Opens a store behind a channel. `location`: its name in messages.
    ///
    /// # Errors
    /// Those of the channel and the service: this calls the service once.
    pub async fn open(channel: KvChannel, location: impl Into<String>) -> Result<Arc<RemoteStore>, KvError> {
        let store = RemoteStore {
            channel,
            location: location.into(),
            writer: rt::random_u64(),
            has_room: AtomicBool::new(true),
            state: Mutex::default(),
            data_loss: Arc::default(),
        };
        store.call(KvRequest::Get { keys: Vec::new() }).await?;
        Ok(Arc::new(store))
    }

    /// Returns the event that is set when the store's machine was restarted and has lost data that
    /// wasn't on disk, from any client: this client may have read some of it. Everything fails from
    /// then on. A client that caches data of the store must start over.
    pub fn data_loss(&self) -> &Arc<Event> {
        &self.data_loss
    }

    async fn call(&self, request: KvRequest) -> Result<KvReply, KvError> {
        self.check()?;
        let reply = self.channel.call(request, None).await.map_err(|error| self.failed(&error))?;
        self.has_room.store(reply.has_space, Relaxed);
        self.record_reply(reply.instance, reply.verifier);
        self.check()?;
        Ok(reply)
    }

    fn record_reply(&self, instance: u64, verifier: u64) {
        let mut state = self.state.lock();
        let before = state.server.replace((instance, verifier));
        if before.is_some_and(|(_, before)| before != verifier) {
            tracing::error!(
                store = self.location,
                "the machine of the metadata store was restarted and has lost the last changes: the caches of this process are invalid"
            );
            self.data_loss.set();
        }
    }

    fn check(&self) -> Result<(), KvError> {
        match self.data_loss.is_set() {
            true => Err(KvError::Io {
                path: self.location.clone(),
                cause: "its machine was restarted and has lost changes".into(),
            }),
            false => Ok(()),
        }
    }

    fn failed(&self, error: &Error) -> KvError {
        let path = self.location.clone();
        match error.errno {
            Errno::ENOSPC => KvError::NoSpace { path },
            Errno::EIO => KvError::Io { path, cause: error.to_string() },
            _ => self.unreachable(error.to_string()),
        }
    }

    fn unreachable(&self, cause: impl Into<String>) -> KvError {
        KvError::Unreachable { path: self.location.clone(), cause: cause.into() }
    }

    fn unexpected(&self) -> KvError {
        self.unreachable("unexpected reply type")
    }

    async fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, KvError> {
        let mut values = Vec::with_capacity(keys.len());
        while values.len() < keys.len() {
            let mut bytes = 0;
            let fits = |key: &&Vec<u8>| {
                bytes += key.len();
                bytes <= MAX_REQUEST_BYTES
            };
            let left = keys[values.len()..].iter().take(MAX_REQUEST_KEYS).take_while(fits);
            let requested: Vec<Bytes> = left.map(|key| Bytes::copy_from_slice(key)).collect();
            let count = requested.len();
            match self.call(KvRequest::Get { keys: requested }).await?.answer {
                KvAnswer::Values(some) if (1..=count).contains(&some.len()) => values.extend(some),
                _ => return Err(self.unexpected()),
            }
        }
        Ok(values)
    }

    async fn scan_all(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        let mut all: Vec<Pair> = Vec::new();
        let mut from = Bytes::copy_from_slice(from);
        let to = Bytes::copy_from_slice(to);
        while all.len() < limit {
            let left = (limit - all.len()) as u64;
            let request = KvRequest::Scan { from: from.clone(), to: to.clone(), limit: left };
            let KvAnswer::Pairs { pairs, more } = self.call(request).await?.answer else {
                return Err(self.unexpected());
            };
            if pairs.len() as u64 > left || (more && pairs.is_empty()) {
                return Err(self.unexpected());
            }
            all.extend(pairs);
            match all.last() {
                // The next possible key.
                Some((last, _)) if more => from = [last, &[0][..]].concat().into(),
                _ => break,
            }
        }
        Ok(all)
    }

    async fn apply_once(&self, number: u64, batches: &[Batch]) -> Result<Vec<Outcome>, KvError> {
        let (first, verifier) = {
            let mut state = self.state.lock();
            if state.applying.0 != number {
                state.applying = (number, state.server.map(|(instance, _)| instance));
            }
            (state.applying.1, state.server.map_or(0, |(_, verifier)| verifier))
        };
        let batches: Vec<KvBatch> = batches.iter().map(to_wire).collect();
        let count = batches.len();
        let request = KvRequest::Apply { writer: self.writer, number, verifier, batches };
        let reply = self.call(request).await?;
        let KvAnswer::Outcomes(outcomes) = reply.answer else { return Err(self.unexpected()) };
        if outcomes.len() != count {
            return Err(self.unexpected());
        }
        // Another process than the first that may have received it.
        let is_repeated = first != Some(reply.instance);
        let to_outcome = |outcome| match outcome {
            KvOutcome::Applied => Outcome::Applied,
            KvOutcome::GuardFailed if !is_repeated => Outcome::GuardFailed,
            KvOutcome::GuardFailed | KvOutcome::Unknown => Outcome::Uncertain,
        };
        Ok(outcomes.into_iter().map(to_outcome).collect())
    }

    async fn persist_all(&self) -> Result<(), KvError> {
        match self.call(KvRequest::Persist).await?.answer {
            KvAnswer::Done => Ok(()),
            _ => Err(self.unexpected()),
        }
    }
}

impl RemoteEngine for RemoteStore {
    fn get<'a>(&'a self, keys: &'a [Vec<u8>]) -> LocalFuture<'a, Result<Vec<Option<Bytes>>, KvError>> {
        Box::pin(self.get_all(keys))
    }

    fn scan<'a>(
        &'a self,
        from: &'a [u8],
        to: &'a [u8],
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<Pair>, KvError>> {
        Box::pin(self.scan_all(from, to, limit))
    }

    fn apply<'a>(
        &'a self,
        number: u64,
        batches: &'a [Batch],
    ) -> LocalFuture<'a, Result<Vec<Outcome>, KvError>> {
        Box::pin(self.apply_once(number, batches))
    }

    fn persist(&self) -> LocalFuture<'_, Result<(), KvError>> {
        Box::pin(self.persist_all())
    }

    fn verifier(&self) -> u64 {
        self.state.lock().server.map_or(0, |(_, verifier)| verifier)
    }

    fn has_room(&self) -> bool {
        self.has_room.load(Relaxed)
    }

    fn location(&self) -> String {
        self.location.clone()
    }
}

fn to_wire(batch: &Batch) -> KvBatch {
    let bytes = |key: &Vec<u8>| Bytes::copy_from_slice(key);
    KvBatch {
        guards: batch.guards.iter().map(|guard| (bytes(&guard.key), guard.expected.clone())).collect(),
        writes: batch.writes.iter().map(|(key, value)| (bytes(key), value.clone())).collect(),
    }
}
