//! The batching writer: group commit in front of an engine.
//!
//! There is no committing thread in the common case. A caller that waits for a batch and finds no
//! leader becomes the leader. It applies everything that is queued in one engine commit and wakes
//! the other callers. So a lone writer pays no hand-over, and while one commit runs, the next one
//! fills. Where a commit must reach the disk ([`Durability::Disk`]) and threads are allowed, a
//! thread leads, because no core may block for milliseconds.
//!
//! Invariants:
//! - Batches are applied in the order of [`Writer::enqueue`].
//! - There is at most one leader, and the queue's lock is not held while the engine works.
//! - A queued batch whose waiter went away is applied when a caller waits for it or for a later
//!   one.

mod store;
mod syncer;
mod ticket;

pub use ticket::{Commit, Ticket};

use crate::{Batch, Engine, KvError, Outcome};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::task::Waker;
use syncer::Syncer;

/// Most batches in one engine commit.
const MAX_COMMIT_BATCHES: usize = 1024;

/// Bytes of keys and values after which an engine commit takes no further batch.
const MAX_COMMIT_BYTES: usize = 4 << 20;

/// Most batches in the queue; a caller with more waits or leads.
const MAX_QUEUED_BATCHES: usize = 16_384;

/// Time that a core watches another one commit before it does something else, in nanoseconds. A
/// commit takes some microseconds; a wake-up on another core takes several times that.
const LEADER_SPIN_NS: u64 = 30_000;

/// Most checks in that time: a simulated clock stands still meanwhile.
const LEADER_SPIN_CHECKS: usize = 4096;

/// Engine commits that a leader makes for others after its own batch is committed.
const EXTRA_ROUNDS: usize = 4;

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When it survives the death of the process.
    Process,
    /// When it survives the death of the machine.
    Disk,
}

/// Where blocking calls of the engine run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// On the writer's own thread, started when it is first needed.
    Thread,
    /// In the caller: a simulation has no threads.
    Inline,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Batches that were applied or lost.
    pub batches: u64,
    /// Engine commits that carried them.
    pub commits: u64,
    /// Syncs of the engine.
    pub persists: u64,
}

/// Group commit over an engine. All cores share it through clones of its `Arc`.
pub struct Writer {
    shared: Arc<Shared>,
    syncer: Syncer,
}

/// State that the writer and its thread share.
struct Shared {
    engine: Arc<dyn Engine>,
    durability: Durability,
    queue: Mutex<Queue>,
    /// The queue has room again.
    has_space: Condvar,
    /// Number of applied engine commits, and how many of them are on disk.
    applied: AtomicU64,
    persisted: AtomicU64,
    batches: AtomicU64,
    persists: AtomicU64,
    /// Held during a sync, until a failure is known to all callers.
    persisting: Mutex<()>,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<(Ticket, Batch)>,
    /// Number of the last batch that was enqueued.
    enqueued: u64,
    has_leader: bool,
    /// The error that ended all writing.
    poison: Option<KvError>,
}

impl Writer {
    /// Creates the only writer of `engine`. Blocking calls run on a thread.
    pub fn new(engine: Arc<dyn Engine>, durability: Durability) -> Writer {
        Writer::with_blocking(engine, durability, Blocking::Thread)
    }

    /// Like [`Writer::new`], with a choice where blocking calls run.
    pub fn with_blocking(engine: Arc<dyn Engine>, durability: Durability, blocking: Blocking) -> Writer {
        let shared = Arc::new(Shared {
            engine,
            durability,
            queue: Mutex::default(),
            has_space: Condvar::new(),
            applied: AtomicU64::new(0),
            persisted: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            persists: AtomicU64::new(0),
            persisting: Mutex::default(),
        });
        Writer { syncer: Syncer::new(shared.clone(), blocking), shared }
    }

    /// Returns the engine, for reading.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.shared.engine
    }

    /// Returns the error that ended all writing, if there was one.
    pub fn failure(&self) -> Option<KvError> {
        self.shared.queue.lock().poison.clone()
    }

    /// Enqueues a batch and waits until it is committed.
    ///
    /// Errors: the engine's, and from then on the same for every later commit.
    pub async fn commit(&self, batch: Batch) -> Result<Outcome, KvError> {
        let ticket = self.enqueue(batch);
        self.wait(&ticket).await
    }

    /// Appends the batch to the order of commits. It is committed when a caller waits for its
    /// ticket.
    ///
    /// Blocks for the duration of an engine commit when the queue is full.
    pub fn enqueue(&self, batch: Batch) -> Ticket {
        let mut queue = self.shared.queue.lock();
        while queue.batches.len() >= MAX_QUEUED_BATCHES && queue.poison.is_none() {
            queue = self.make_room(queue);
        }
        queue.enqueued += 1;
        let ticket = Ticket::pending(queue.enqueued);
        match &queue.poison {
            Some(error) => ticket.complete(Err(error.clone())),
            None => queue.batches.push_back((ticket.clone(), batch)),
        }
        ticket
    }

    /// Waits until the ticket's batch is committed. Any number of callers may wait for one ticket.
    pub fn wait<'a>(&'a self, ticket: &'a Ticket) -> Commit<'a> {
        Commit::new(self, ticket)
    }

    /// Waits until everything that was enqueued before is committed and on disk. Concurrent callers
    /// share one sync, and there is none when nothing was committed since the last.
    pub async fn sync(&self) -> Result<(), KvError> {
        let last = {
            let queue = self.shared.queue.lock();
            if let Some(error) = &queue.poison {
                return Err(error.clone());
            }
            queue.batches.back().map(|(ticket, _)| ticket.clone())
        };
        if let Some(ticket) = last {
            self.wait(&ticket).await?;
        }
        let target = self.shared.applied.load(SeqCst);
        if self.shared.persisted.load(SeqCst) >= target {
            return Ok(());
        }
        self.syncer.wait_synced(target).await
    }

    /// Returns true when something is not on disk yet.
    pub fn is_dirty(&self) -> bool {
        !self.shared.queue.lock().batches.is_empty()
            || self.shared.persisted.load(SeqCst) < self.shared.applied.load(SeqCst)
    }

    /// Returns counts since the start.
    pub fn stats(&self) -> WriterStats {
        WriterStats {
            batches: self.shared.batches.load(Relaxed),
            commits: self.shared.applied.load(SeqCst),
            persists: self.shared.persists.load(Relaxed),
        }
    }

    /// One step of waiting for `ticket`: leads if there is no leader, otherwise registers a waker.
    /// Returns true when the ticket is settled.
    fn drive(&self, ticket: &Ticket, waker: &Waker) -> bool {
        let mut queue = self.shared.queue.lock();
        if queue.has_leader && self.shared.durability == Durability::Process {
            drop(queue);
            if spin_until_complete(ticket) {
                return true;
            }
            queue = self.shared.queue.lock();
        }
        if queue.has_leader || ticket.is_complete() {
            ticket.register(waker);
            return ticket.is_complete();
        }
        if self.shared.durability == Durability::Disk && self.syncer.has_thread() {
            ticket.register(waker);
            drop(queue);
            self.syncer.request_commit();
            return ticket.is_complete();
        }
        self.shared.lead(queue, ticket);
        true
    }

    fn make_room<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        if self.shared.durability == Durability::Disk && self.syncer.has_thread() {
            self.syncer.request_commit();
        } else if !queue.has_leader {
            queue.has_leader = true;
            queue = self.shared.commit_round(queue);
            queue.has_leader = false;
            return queue;
        }
        self.shared.has_space.wait(&mut queue);
        queue
    }

    /// Wakes all waiters when one goes away that may have been woken to lead.
    fn wake_all_waiters(&self) {
        let queue = self.shared.queue.lock();
        if !queue.has_leader {
            for (ticket, _) in &queue.batches {
                ticket.wake();
            }
        }
    }
}

impl Shared {
    /// Commits until `own` is settled and a few rounds more, then leaves the queue to its first
    /// waiter.
    fn lead<'a>(&'a self, mut queue: MutexGuard<'a, Queue>, own: &Ticket) {
        queue.has_leader = true;
        let mut extra = EXTRA_ROUNDS;
        while !queue.batches.is_empty() && extra > 0 {
            queue = self.commit_round(queue);
            if own.is_complete() {
                extra -= 1;
            }
        }
        queue.has_leader = false;
        // The woken waiter finds no leader and becomes the leader. Batches without a waiter stay
        // queued until one arrives.
        if let Some((ticket, _)) = queue.batches.iter().find(|(ticket, _)| ticket.has_waiters()) {
            ticket.wake();
        }
    }

    /// Makes one engine commit of queued batches, without the queue's lock.
    fn commit_round<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let (tickets, batches) = take_commit(&mut queue.batches);
        let result = match &queue.poison {
            Some(error) => Err(error.clone()),
            None => MutexGuard::unlocked(&mut queue, || self.commit(&batches)),
        };
        self.has_space.notify_all();
        match result {
            Ok(outcomes) => {
                MutexGuard::unlocked(&mut queue, || {
                    tickets.iter().zip(outcomes).for_each(|(ticket, outcome)| ticket.complete(Ok(outcome)));
                });
            }
            Err(error) => {
                self.poison_locked(&mut queue, &error);
                tickets.iter().for_each(|ticket| ticket.complete(Err(error.clone())));
            }
        }
        queue
    }

    fn commit(&self, batches: &[Batch]) -> Result<Vec<Outcome>, KvError> {
        let outcomes = self.engine.apply(batches)?;
        self.batches.fetch_add(batches.len() as u64, Relaxed);
        let applied = self.applied.fetch_add(1, SeqCst) + 1;
        if self.durability == Durability::Disk {
            self.persist(applied)?;
        }
        Ok(outcomes)
    }

    /// Syncs what was applied; at least the first `applied` commits must have been. After a failure
    /// it never syncs again: the kernel reports a failed write once, and then considers the pages
    /// clean.
    fn persist(&self, applied: u64) -> Result<(), KvError> {
        let _lock = self.persisting.lock();
        if let Some(error) = &self.queue.lock().poison {
            return Err(error.clone());
        }
        self.engine.persist().inspect_err(|error| self.poison(error))?;
        self.persists.fetch_add(1, Relaxed);
        self.persisted.fetch_max(applied, SeqCst);
        Ok(())
    }

    /// Fails everything that is queued, and everything to come.
    fn poison(&self, error: &KvError) {
        self.poison_locked(&mut self.queue.lock(), error);
    }

    fn poison_locked(&self, queue: &mut Queue, error: &KvError) {
        if queue.poison.is_none() {
            tracing::error!(%error, "the metadata store accepts no writes until it is reopened");
            queue.poison = Some(error.clone());
        }
        for (ticket, _) in queue.batches.drain(..) {
            ticket.complete(Err(error.clone()));
        }
        self.has_space.notify_all();
    }
}

/// Polls a ticket for a moment; returns true when it was settled.
fn spin_until_complete(ticket: &Ticket) -> bool {
    let end = rt::monotonic_ns() + LEADER_SPIN_NS;
    for _ in 0..LEADER_SPIN_CHECKS {
        if ticket.is_complete() || rt::monotonic_ns() >= end {
            break;
        }
        std::hint::spin_loop();
    }
    ticket.is_complete()
}

/// Takes as many batches off the queue as one engine commit may carry, and at least one.
fn take_commit(queue: &mut VecDeque<(Ticket, Batch)>) -> (Vec<Ticket>, Vec<Batch>) {
    let mut bytes = 0;
    let mut count = 0;
    for (_, batch) in queue.iter().take(MAX_COMMIT_BATCHES) {
        bytes += batch.writes.iter().map(|(k, v)| k.len() + v.as_ref().map_or(0, Bytes::len)).sum::<usize>();
        if count > 0 && bytes > MAX_COMMIT_BYTES {
            break;
        }
        count += 1;
    }
    queue.drain(..count).unzip()
}
