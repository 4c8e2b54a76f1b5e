//! Recalls: the session gives leases back. `leases` describes the order of the steps, and why there
//! is no deadlock.

use crate::session::Session;
use crate::session::lease_holder::GivenBack;
use crate::session::services::Service;
use crate::unexpected;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Error, HashMap, InodeId, NodeId};
use wire::{MetaOp, MetaReply, Recall, RecallAck};

/// Maximum number of inodes whose recalls are handled concurrently; more wait. Each may hold a
/// handful of requests.
const MAX_CONCURRENT_RECALLS: usize = 256;
/// Pause before a failed step is tried again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a step of a recall is logged.
const SLOW_AFTER: Duration = Duration::from_secs(10);
/// How often a service is informed that a recall is in progress. A recall that takes less isn't
/// mentioned.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Time without an answer after which the service may have forgotten that it has ended the session
/// (it remembers for a week), and data that was held back is too old to be written.
const SESSION_FORGOTTEN_NS: u64 = 24 * 3600 * 1_000_000_000;
/// Maximum number of inodes in one release.
const RELEASE_BATCH: usize = 4096;

/// Queued recalls, and the inodes whose recalls are being handled.
#[derive(Default)]
pub(crate) struct Recalls {
    state: Mutex<RecallQueues>,
}

/// A recall, and the service that waits for the acknowledgement.
struct QueuedRecall {
    service: Arc<Service>,
    recall: Recall,
    /// Position among all recalls of this client.
    position: u64,
}

#[derive(Default)]
struct RecallQueues {
    /// Inodes with recalls to handle, in order; those being handled have an entry, too.
    by_inode: HashMap<InodeId, VecDeque<QueuedRecall>>,
    /// Inodes without a worker.
    waiting: VecDeque<InodeId>,
    workers: usize,
    /// Unacknowledged recalls in order of arrival: service, number, and time. A restarted service
    /// begins its numbers again.
    unacknowledged: BTreeMap<u64, (NodeId, u64, u64)>,
    /// Number of recalls so far.
    received: u64,
}

impl Recalls {
    /// Queues a recall; returns true if a new worker should start.
    fn push(&self, service: Arc<Service>, recall: Recall) -> bool {
        let (mut queues, ino) = (self.state.lock(), recall.ino);
        queues.received += 1;
        let position = queues.received;
        queues.unacknowledged.insert(position, (service.node, recall.number, rt::monotonic_ns()));
        let queued = QueuedRecall { service, recall, position };
        if let Some(queue) = queues.by_inode.get_mut(&ino) {
            queue.push_back(queued);
            return false;
        }
        queues.by_inode.insert(ino, VecDeque::from([queued]));
        queues.waiting.push_back(ino);
        let wanted = queues.workers < MAX_CONCURRENT_RECALLS;
        queues.workers += usize::from(wanted);
        wanted
    }

    fn acknowledged(&self, position: u64) {
        self.state.lock().unacknowledged.remove(&position);
    }

    /// Returns the highest number of a service's unacknowledged recalls, if the oldest of them has
    /// been in progress for [`PROGRESS_INTERVAL`].
    fn slow_recalls(&self, node: NodeId) -> Option<u64> {
        let queues = self.state.lock();
        let mut of_service = queues.unacknowledged.values().filter(|(from, ..)| *from == node);
        let &(_, first, received_ns) = of_service.next()?;
        let is_late = rt::monotonic_ns().saturating_sub(received_ns) >= PROGRESS_INTERVAL.as_nanos() as u64;
        is_late.then(|| of_service.next_back().map_or(first, |(_, number, _)| *number))
    }

    /// Returns the next recall for a worker: another one of the inode that it has `done`, if there
    /// is one.
    fn next(&self, done: Option<InodeId>) -> Option<QueuedRecall> {
        let mut queues = self.state.lock();
        if let Some(ino) = done {
            if let Some(recall) = queues.by_inode.get_mut(&ino).and_then(VecDeque::pop_front) {
                return Some(recall);
            }
            queues.by_inode.remove(&ino);
        }
        let Some(ino) = queues.waiting.pop_front() else {
            queues.workers -= 1;
            return None;
        };
        queues.by_inode.get_mut(&ino).and_then(VecDeque::pop_front)
    }
}

impl Session {
    /// Registers with a service, receives its recalls and handles them, for as long as session and
    /// service live.
    pub(super) async fn receive_recalls(self: Arc<Self>, service: Arc<Service>) {
        while self.end_cause().is_none() && !service.is_gone() {
            if self.recheck_refusal(&service).await {
                rt::sleep(RETRY_PAUSE).await;
                continue;
            }
            let sent_ns = rt::monotonic_ns();
            let reply = if service.is_registered() || !self.services.channels.follows_map() {
                let after = service.recalls_seen.load(Ordering::Acquire);
                self.query_service(&service, MetaOp::NextRecalls { after }).await.map(|answer| answer.reply)
            } else {
                self.register_at(&service).await.map(|()| MetaReply::Recalls(Vec::new()))
            };
            match reply {
                Ok(MetaReply::Recalls(recalls)) => {
                    self.clone().queue_recalls(&service, recalls);
                    self.note_answer(&service, sent_ns);
                }
                Ok(MetaReply::PartitionsTakenOver { partitions }) => {
                    self.follow_partitions(&service, &partitions).await;
                    self.note_answer(&service, sent_ns);
                }
                Ok(other) => {
                    tracing::error!(error = %unexpected(other), "recalls can't be received");
                    rt::sleep(RETRY_PAUSE).await;
                }
                Err(error) => self.handle_recall_error(&service, error).await,
            }
        }
    }

    fn queue_recalls(self: Arc<Self>, service: &Arc<Service>, recalls: Vec<Recall>) {
        for recall in recalls {
            if recall.number <= service.recalls_seen.load(Ordering::Acquire) {
                continue;
            }
            self.leases.begin_recall(service.node, &recall);
            service.recalls_seen.store(recall.number, Ordering::Release);
            if self.recalls.push(service.clone(), recall) {
                let session = self.clone();
                rt::spawn(async move {
                    let mut done = None;
                    while let Some(queued) = session.recalls.next(done) {
                        session.handle_recall(&queued).await;
                        done = Some(queued.recall.ino);
                    }
                });
            }
        }
    }

    /// Handles a failed request for recalls.
    async fn handle_recall_error(&self, service: &Arc<Service>, error: Error) {
        match error.errno {
            _ if self.end_cause().is_some() || service.is_gone() => {}
            // The session's end, which this client requested, is reported by this request first.
            Errno::ESTALE | Errno::ENOTCONN if self.is_shutting_down.load(Ordering::Acquire) => {
                rt::sleep(RETRY_PAUSE).await
            }
            Errno::ESTALE => self.end_session(error).await,
            Errno::ENOTCONN if may_have_forgotten_session(service) => self.end_session(error).await,
            Errno::ENOTCONN => {
                tracing::warn!(%error, "a metadata service doesn't know this session any more; registering it again");
                self.register_again(service).await;
            }
            _ => {
                tracing::warn!(node = %service.node, %error, "recalls can't be received");
                self.note_failure(service, &error);
                rt::sleep(RETRY_PAUSE).await;
            }
        }
    }

    async fn handle_recall(&self, QueuedRecall { service, recall, position }: &QueuedRecall) {
        let Some(holder) = self.holder.upgrade() else { return };
        let ino = recall.ino;
        let terms = self.leases.recall_terms(recall);
        let GivenBack { in_use, resume } = holder.give_back(ino, terms).await;
        let ack = RecallAck { number: recall.number, ino, in_use };
        warn_if_slow((ino, "sending the acknowledgement"), self.acknowledge_recall(service, ack)).await;
        self.recalls.acknowledged(*position);
        self.observer.end_lease(ino);
        if in_use {
            self.leases.mark_open(ino);
        }
        self.leases.end_recall(ino, terms.remaining);
        resume();
    }

    async fn acknowledge_recall(&self, service: &Service, ack: RecallAck) {
        while self.end_cause().is_none() && !service.is_gone() {
            let sent = self.query_service(service, MetaOp::AckRecalls { acks: vec![ack] });
            match self.services.unless_moved(ack.ino.partition(), service, sent).await {
                // Another service owns the partition: the recall of this one, which may be dead, is
                // void.
                None | Some(Ok(_)) => return,
                // An unregistered session has nothing to give back.
                Some(Err(error)) if matches!(error.errno, Errno::ESTALE | Errno::ENOTCONN) => return,
                Some(Err(error)) => {
                    tracing::warn!(ino = %ack.ino, %error, "the acknowledgement of a recall could not be sent; retrying");
                    rt::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Informs services that slow recalls are in progress, for as long as the session lives. Dirty
    /// data may have to reach a storage service that doesn't answer, which is no reason to end this
    /// session.
    pub(super) async fn report_slow_recalls(self: Arc<Self>) {
        while self.end_cause().is_none() {
            rt::sleep(PROGRESS_INTERVAL).await;
            for service in self.services.all() {
                let Some(seen) = self.recalls.slow_recalls(service.node) else { continue };
                // Concurrently, so that an unreachable service doesn't delay the message to the
                // others.
                let session = self.clone();
                rt::spawn(async move {
                    if let Err(error) =
                        session.query_service(&service, MetaOp::RecallsInProgress { seen }).await
                    {
                        tracing::debug!(%error, "a service could not be informed that recalls are in progress");
                    }
                });
            }
        }
    }

    /// Reports released leases to the services that granted them.
    pub(crate) async fn release(&self, mut released: Vec<InodeId>) {
        while let Some(&ino) = released.first() {
            let owner = self.services.channels.owner(ino.partition());
            let same = |ino: &mut InodeId| self.services.channels.owner(ino.partition()) == owner;
            let of_owner: Vec<InodeId> = released.extract_if(.., same).collect();
            for batch in of_owner.chunks(RELEASE_BATCH) {
                self.release_batch(batch).await;
            }
        }
    }

    /// Reports released leases to the service that granted them all.
    async fn release_batch(&self, batch: &[InodeId]) {
        let released = match self.services.owner_of(batch[0].partition()) {
            Ok(service) => {
                let seen = service.recalls_seen.load(Ordering::Acquire);
                self.query_service(&service, MetaOp::Release { inodes: batch.to_vec(), seen }).await.map(drop)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            tracing::debug!(%error, "unused leases could not be released, and stay until they are recalled");
        }
        self.leases.end_release(batch);
    }
}

/// Whether a service that doesn't know the session may have ended it long ago.
fn may_have_forgotten_session(service: &Service) -> bool {
    let answered_ns = service.answered_ns.load(Ordering::Acquire);
    answered_ns > 0 && rt::monotonic_ns().saturating_sub(answered_ns) > SESSION_FORGOTTEN_NS
}

/// Returns the result of `work`, and logs a warning if it delays a recall: other sessions wait, and
/// the service evicts this session if it takes still longer.
pub(crate) async fn warn_if_slow<T>((ino, what): (InodeId, &str), work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Some(done) = rt::timeout(SLOW_AFTER, work.as_mut()).await {
        return done;
    }
    tracing::warn!(%ino, "the recall of a lease is slow: {what} has taken more than {SLOW_AFTER:?}");
    work.await
}
