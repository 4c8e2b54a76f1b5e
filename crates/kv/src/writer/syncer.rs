//! Syncs to disk: on one thread for all callers, or in the caller where there are no threads.

use super::{Blocking, Shared};
use crate::KvError;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

pub(super) struct Syncer {
    shared: Arc<Shared>,
    blocking: Blocking,
    sync_queue: Arc<SyncQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State shared between callers and the thread.
#[derive(Default)]
struct SyncQueue {
    requests: Mutex<PendingRequests>,
    changed: Condvar,
}

#[derive(Default)]
struct PendingRequests {
    /// A caller waits for a batch that only the thread commits.
    commit: bool,
    /// Callers of sync by number; one for each that waits.
    syncs: BTreeMap<u64, Waker>,
    next: u64,
    stop: bool,
}

impl Syncer {
    pub(super) fn new(shared: Arc<Shared>, blocking: Blocking) -> Syncer {
        Syncer { shared, blocking, sync_queue: Arc::default(), thread: Mutex::default() }
    }

    pub(super) fn has_thread(&self) -> bool {
        self.blocking == Blocking::Thread
    }

    /// Makes the thread commit what is queued.
    pub(super) fn request_commit(&self) {
        self.sync_queue.requests.lock().commit = true;
        self.wake_thread();
    }

    /// Waits until the first `target` engine commits are on disk.
    pub(super) async fn wait_synced(&self, target: u64) -> Result<(), KvError> {
        match self.blocking {
            Blocking::Thread => SyncWait { syncer: self, target, number: None }.await,
            Blocking::Inline => self.shared.persist(target),
        }
    }

    fn wake_thread(&self) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (shared, sync_queue) = (self.shared.clone(), self.sync_queue.clone());
            let started = std::thread::Builder::new()
                .name("weft-kv-sync".into())
                .spawn(move || serve(&shared, &sync_queue));
            match started {
                Ok(handle) => *thread = Some(handle),
                Err(error) => {
                    let cause = format!("can't start the sync thread: {error}");
                    self.shared.poison(&KvError::Io { path: "writer".into(), cause });
                    wake_all(&mut self.sync_queue.requests.lock());
                }
            }
        }
        self.sync_queue.changed.notify_one();
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.sync_queue.requests.lock().stop = true;
        self.sync_queue.changed.notify_one();
        // Joined, so that the engine is closed when its last owner drops it. A panic of the thread
        // was reported already.
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

/// The thread's main loop: commits and syncs until it is stopped.
fn serve(shared: &Shared, sync_queue: &SyncQueue) {
    loop {
        let (commit, waiters) = {
            let mut requests = sync_queue.requests.lock();
            while !requests.commit && requests.syncs.is_empty() && !requests.stop {
                sync_queue.changed.wait(&mut requests);
            }
            if requests.stop {
                return;
            }
            (std::mem::take(&mut requests.commit), std::mem::take(&mut requests.syncs))
        };
        if commit {
            let mut queue = shared.queue.lock();
            queue.has_leader = true;
            while !queue.batches.is_empty() {
                queue = shared.commit_round(queue);
            }
            queue.has_leader = false;
        }
        if !waiters.is_empty() {
            let applied = shared.applied.load(SeqCst);
            if applied > shared.persisted.load(SeqCst) {
                // Waiting callers learn of a failure from the poison.
                let _ = shared.persist(applied);
            }
            waiters.into_values().for_each(Waker::wake);
        }
    }
}

fn wake_all(requests: &mut PendingRequests) {
    std::mem::take(&mut requests.syncs).into_values().for_each(Waker::wake);
}

struct SyncWait<'a> {
    syncer: &'a Syncer,
    target: u64,
    number: Option<u64>,
}

impl Future for SyncWait<'_> {
    type Output = Result<(), KvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let syncer = self.syncer;
        if let Some(error) = &syncer.shared.queue.lock().poison {
            return Poll::Ready(Err(error.clone()));
        }
        if syncer.shared.persisted.load(SeqCst) >= self.target {
            return Poll::Ready(Ok(()));
        }
        let mut requests = syncer.sync_queue.requests.lock();
        let number = self.number.unwrap_or(requests.next);
        requests.next = requests.next.max(number + 1);
        requests.syncs.insert(number, context.waker().clone());
        drop(requests);
        self.number = Some(number);
        syncer.wake_thread();
        Poll::Pending
    }
}

impl Drop for SyncWait<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.syncer.sync_queue.requests.lock().syncs.remove(&number);
        }
    }
}
