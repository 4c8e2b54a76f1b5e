//! Group commit in front of an engine in another process.
//!
//! One apply is in flight at a time; batches that are enqueued meanwhile are sent with the next
//! one. A task of the core that enqueues first carries it out, so that no waiter has to stay for
//! it. An apply that isn't answered is repeated with the same number until it is: the other side
//! detects the repetition.
//!
//! Invariants:
//! - Batches are applied in the order of [`RemoteWriter::enqueue`]; a later apply isn't sent before
//!   the outcome of the earlier one is known.
//! - A batch gets one outcome, whatever happens to connections and to the cores that wait.
//! - Nothing blocks a thread.

mod store;

use crate::writer::Ticket;
use crate::{Batch, KvError, Outcome, Pair, WriterStats};
use bytes::Bytes;
use parking_lot::Mutex;
use rt::sync::{Event, RwLock};
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

/// Most batches in one apply.
const MAX_APPLY_BATCHES: usize = 1024;

/// Bytes of keys, values and guards in one apply: with their overhead they fit into the body of a
/// message.
const MAX_APPLY_BYTES: usize = 640 << 10;

/// Encoding overhead of a key or a value in a message, in bytes, estimated generously.
const ITEM_OVERHEAD: usize = 16;

/// Batches in the queue beyond which [`RemoteWriter::admit`] waits.
const MAX_QUEUED_BATCHES: usize = 16_384;

/// First backoff before an apply is repeated that the other side couldn't carry out; it doubles up
/// to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
/// Longest backoff: a store that works again is noticed within it.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// Time for which a request to an unreachable store is repeated: the default time-out of clients.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A future that stays on its core.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// An engine in another process.
pub trait RemoteEngine: Send + Sync + 'static {
    /// Returns the values of keys, in their order.
    fn get<'a>(&'a self, keys: &'a [Vec<u8>]) -> LocalFuture<'a, Result<Vec<Option<Bytes>>, KvError>>;
    /// Returns pairs with `from <= key < to` in order of unsigned bytes, at most `limit`.
    fn scan<'a>(
        &'a self,
        from: &'a [u8],
        to: &'a [u8],
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<Pair>, KvError>>;
    /// Applies batches in order, each atomically. One caller at a time, with ascending numbers from
    /// 1.
    ///
    /// After an error the caller repeats the same number with the same batches. They are not
    /// applied twice then, or only without effect. An outcome that can't be determined any more is
    /// [`Outcome::Uncertain`].
    fn apply<'a>(
        &'a self,
        number: u64,
        batches: &'a [Batch],
    ) -> LocalFuture<'a, Result<Vec<Outcome>, KvError>>;
    /// Syncs everything that was applied before to disk.
    fn persist(&self) -> LocalFuture<'_, Result<(), KvError>>;
    /// Returns the last known verifier of the engine ([`crate::Engine::verifier`]); 0 if it isn't
    /// known.
    fn verifier(&self) -> u64;
    /// Returns whether the store may grow, as far as this process knows.
    fn has_room(&self) -> bool;
    /// Returns the location of the store, for messages.
    fn location(&self) -> String;
}

/// Group commit over an engine in another process. Its calls require a runtime.
pub struct RemoteWriter {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Arc<dyn RemoteEngine>,
    queue: Mutex<Queue>,
    /// The queue has room for more batches.
    has_room: Event,
    stopped: Event,
    /// Held by the caller that syncs.
    persisting: RwLock,
    /// Number of syncs begun, and number of the last sync that succeeded.
    syncs_begun: AtomicU64,
    last_sync_ended: AtomicU64,
    /// Number of answered applies, and how many of them are on disk.
    applied: AtomicU64,
    persisted: AtomicU64,
    batches: AtomicU64,
    persists: AtomicU64,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<(Ticket, Batch)>,
    /// Number of the last batch that was enqueued.
    enqueued: u64,
    /// The last apply sent, until its outcome is known.
    in_flight: Option<Arc<Apply>>,
    applies: u64,
    /// A task processes the queue.
    has_leader: bool,
    /// Error that ended all writing.
    end: Option<KvError>,
}

/// Batches that are sent together.
struct Apply {
    number: u64,
    tickets: Vec<Ticket>,
    batches: Vec<Batch>,
}

impl RemoteWriter {
    /// Creates a writer, which must be the only user of this engine handle.
    pub fn new(engine: Arc<dyn RemoteEngine>) -> RemoteWriter {
        let room = Event::new();
        room.set();
        let shared = Arc::new(Shared {
            engine,
            queue: Mutex::default(),
            has_room: room,
            stopped: Event::new(),
            persisting: RwLock::new(),
            syncs_begun: AtomicU64::new(0),
            last_sync_ended: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            persisted: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            persists: AtomicU64::new(0),
        });
        RemoteWriter { shared }
    }

    /// Returns the values of keys, in their order.
    pub async fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, KvError> {
        self.retry_unreachable(async || self.shared.engine.get(keys).await).await
    }

    /// See [`RemoteEngine::scan`].
    pub async fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        if from >= to {
            return Ok(Vec::new());
        }
        self.retry_unreachable(async || self.shared.engine.scan(from, to, limit).await).await
    }

    /// Repeats a request for a while when the store is unreachable.
    async fn retry_unreachable<T>(
        &self,
        request: impl AsyncFn() -> Result<T, KvError>,
    ) -> Result<T, KvError> {
        let began_ns = rt::monotonic_ns();
        loop {
            let answer = request().await;
            let is_final = !matches!(answer, Err(KvError::Unreachable { .. }))
                || self.shared.stopped.is_set()
                || rt::monotonic_ns() - began_ns >= UNREACHABLE_TIMEOUT.as_nanos() as u64;
            if is_final {
                return answer;
            }
            rt::timeout(MAX_BACKOFF, self.shared.stopped.wait()).await;
        }
    }

    /// Waits until there is room for another batch.
    pub async fn admit(&self) {
        while !self.shared.has_room.is_set() {
            self.shared.has_room.wait().await;
        }
    }

    /// Appends the batch to the order of commits and has it committed. Doesn't block: a caller with
    /// many batches first waits for [`RemoteWriter::admit`].
    pub fn enqueue(&self, batch: Batch) -> Ticket {
        let mut queue = self.shared.queue.lock();
        queue.enqueued += 1;
        let ticket = Ticket::pending(queue.enqueued);
        let refused = match &queue.end {
            Some(error) => Some(error.clone()),
            None => check_size(&batch, &self.shared.engine.location()).err(),
        };
        if let Some(error) = refused {
            ticket.complete(Err(error));
            return ticket;
        }
        queue.batches.push_back((ticket.clone(), batch));
        if queue.batches.len() >= MAX_QUEUED_BATCHES {
            self.shared.has_room.clear();
        }
        self.shared.ensure_leader(&mut queue);
        ticket
    }

    /// Waits until the ticket's batch is committed. Any number of callers may wait for one ticket.
    pub async fn wait(&self, ticket: &Ticket) -> Result<Outcome, KvError> {
        poll_fn(|context| {
            if ticket.result().is_none() {
                ticket.register(context.waker());
            }
            match ticket.result() {
                Some(result) => Poll::Ready(result),
                None => {
                    // The core of the leader may have ended.
                    self.shared.ensure_leader(&mut self.shared.queue.lock());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Waits until everything that was enqueued before is committed and on disk. That includes
    /// everything that other writers have committed before, since this writer's batches may depend
    /// on it. Concurrent callers share one sync.
    pub async fn sync(&self) -> Result<(), KvError> {
        let last = self.shared.queue.lock().last();
        if let Some(ticket) = last {
            self.wait(&ticket).await?;
        }
        let shared = &self.shared;
        let before = shared.syncs_begun.load(SeqCst);
        let _lock = shared.persisting.write().await;
        // A sync that began after this call.
        if shared.last_sync_ended.load(SeqCst) > before {
            return Ok(());
        }
        let sync_number = shared.syncs_begun.fetch_add(1, SeqCst) + 1;
        let target = shared.applied.load(SeqCst);
        self.retry_unreachable(async || shared.engine.persist().await).await?;
        shared.persists.fetch_add(1, Relaxed);
        shared.persisted.fetch_max(target, SeqCst);
        shared.last_sync_ended.store(sync_number, SeqCst);
        Ok(())
    }

    /// Returns true when something is not on disk yet.
    pub fn is_dirty(&self) -> bool {
        self.shared.queue.lock().last().is_some()
            || self.shared.persisted.load(SeqCst) < self.shared.applied.load(SeqCst)
    }

    /// Returns whether the store may grow, as far as this process knows.
    pub fn has_room(&self) -> bool {
        self.shared.engine.has_room()
    }

    /// See [`RemoteEngine::verifier`].
    pub fn verifier(&self) -> u64 {
        self.shared.engine.verifier()
    }

    /// Returns the location of the store, for messages.
    pub fn location(&self) -> String {
        self.shared.engine.location()
    }

    /// Returns counts since the start.
    pub fn stats(&self) -> WriterStats {
        WriterStats {
            batches: self.shared.batches.load(Relaxed),
            commits: self.shared.applied.load(SeqCst),
            persists: self.shared.persists.load(Relaxed),
        }
    }

    /// Stops writing. Batches in flight fail: they may be committed or not.
    pub fn stop(&self) {
        let cause = "the writing process is shutting down".into();
        let error = KvError::Io { path: self.location(), cause };
        let mut queue = self.shared.queue.lock();
        queue.end = Some(error.clone());
        let in_flight = queue.in_flight.take();
        for ticket in in_flight.iter().flat_map(|apply| &apply.tickets) {
            ticket.complete(Err(error.clone()));
        }
        for (ticket, _) in queue.batches.drain(..) {
            ticket.complete(Err(error.clone()));
        }
        drop(queue);
        self.shared.has_room.set();
        self.shared.stopped.set();
    }
}

impl Drop for RemoteWriter {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Queue {
    /// Returns the last unsettled batch.
    fn last(&self) -> Option<Ticket> {
        let in_flight = self.in_flight.as_ref().and_then(|apply| apply.tickets.last());
        self.batches.back().map(|(ticket, _)| ticket).or(in_flight).cloned()
    }

    /// Returns what to send next: the apply that had no answer, otherwise queued batches.
    fn next(&mut self) -> Option<Arc<Apply>> {
        if self.in_flight.is_none() && !self.batches.is_empty() {
            let mut bytes = 0;
            let fits = |(_, batch): &&(Ticket, Batch)| {
                bytes += size(batch);
                bytes <= MAX_APPLY_BYTES
            };
            let count = self.batches.iter().take(MAX_APPLY_BATCHES).take_while(fits).count();
            let (tickets, batches) = self.batches.drain(..count).unzip();
            self.applies += 1;
            self.in_flight = Some(Arc::new(Apply { number: self.applies, tickets, batches }));
        }
        self.in_flight.clone()
    }
}

impl Shared {
    /// Ensures that a task processes the queue.
    fn ensure_leader(self: &Arc<Self>, queue: &mut Queue) {
        let is_needed = queue.in_flight.is_some() || !queue.batches.is_empty();
        if is_needed && !queue.has_leader {
            queue.has_leader = true;
            let leader = Leader { shared: self.clone(), is_done: Cell::new(false) };
            rt::spawn(async move { leader.run().await });
        }
    }

    async fn apply_until_answered(&self, apply: &Apply) -> Option<Vec<Outcome>> {
        let mut backoff = FIRST_BACKOFF;
        loop {
            match self.engine.apply(apply.number, &apply.batches).await {
                Ok(outcomes) => return Some(outcomes),
                Err(error) if backoff == FIRST_BACKOFF => {
                    tracing::error!(%error, "a commit failed; it is retried until it succeeds");
                }
                Err(error) => tracing::debug!(%error, "a commit still fails"),
            }
            rt::timeout(backoff, self.stopped.wait()).await;
            if self.stopped.is_set() {
                return None;
            }
            backoff = MAX_BACKOFF.min(2 * backoff);
        }
    }

    fn complete(&self, apply: &Apply, outcomes: &[Outcome]) {
        {
            let mut queue = self.queue.lock();
            if queue.in_flight.is_none() {
                // The writer was stopped meanwhile.
                return;
            }
            queue.in_flight = None;
            self.batches.fetch_add(apply.batches.len() as u64, Relaxed);
            self.applied.fetch_add(1, SeqCst);
        }
        for (index, ticket) in apply.tickets.iter().enumerate() {
            // An answer that is too short leaves the outcome of the other batches uncertain.
            ticket.complete(Ok(outcomes.get(index).copied().unwrap_or(Outcome::Uncertain)));
        }
    }
}

/// The task that processes the queue. If its core ends first, another task replaces it.
struct Leader {
    shared: Arc<Shared>,
    /// The queue was empty.
    is_done: Cell<bool>,
}

impl Leader {
    async fn run(self) {
        let shared = &self.shared;
        loop {
            let apply = {
                let mut queue = shared.queue.lock();
                let next = queue.next();
                if queue.batches.len() < MAX_QUEUED_BATCHES {
                    shared.has_room.set();
                }
                match next {
                    Some(apply) => apply,
                    None => {
                        queue.has_leader = false;
                        self.is_done.set(true);
                        return;
                    }
                }
            };
            match shared.apply_until_answered(&apply).await {
                Some(outcomes) => shared.complete(&apply, &outcomes),
                None => return,
            }
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.is_done.get() {
            return;
        }
        let waiting = {
            let mut queue = self.shared.queue.lock();
            queue.has_leader = false;
            let in_flight = queue.in_flight.iter().flat_map(|apply| apply.tickets.iter().cloned());
            let queued = queue.batches.iter().map(|(ticket, _)| ticket.clone());
            in_flight.chain(queued).collect::<Vec<Ticket>>()
        };
        // A woken waiter finds no leader and starts one.
        waiting.iter().for_each(Ticket::wake);
    }
}

fn size(batch: &Batch) -> usize {
    let guards = batch.guards.iter().map(|guard| (guard.key.len(), guard.expected.as_ref()));
    let writes = batch.writes.iter().map(|(key, value)| (key.len(), value.as_ref()));
    let item = |(key, value): (usize, Option<&Bytes>)| key + value.map_or(0, Bytes::len) + 2 * ITEM_OVERHEAD;
    ITEM_OVERHEAD + guards.chain(writes).map(item).sum::<usize>()
}

fn check_size(batch: &Batch, location: &str) -> Result<(), KvError> {
    match size(batch) {
        bytes if bytes > MAX_APPLY_BYTES => {
            Err(KvError::TooLarge { path: location.into(), bytes, limit: MAX_APPLY_BYTES })
        }
        _ => Ok(()),
    }
}
