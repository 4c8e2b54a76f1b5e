//! Recalls: the session gives leases back. `leases` describes the order of the steps, and why there
//! is no deadlock.

use crate::file::close::BlockAccuracy;
use crate::file::inode::{InodeUse, OpenInode};
use crate::kernel::page_fill::Bypass;
use crate::session::services::Service;
use crate::{Client, unexpected};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Error, HashMap, InodeId, NodeId};
use wire::{LeaseMode, MetaOp, MetaReply, Recall, RecallAck};

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
/// How long unused inodes are collected before their leases are released.
const RELEASE_DELAY: Duration = Duration::from_millis(200);
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

impl Client {
    /// Registers with a service, receives its recalls and handles them, for as long as session and
    /// service live.
    pub(crate) async fn receive_recalls(self: Arc<Self>, service: Arc<Service>) {
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
                let client = self.clone();
                rt::spawn(async move {
                    let mut done = None;
                    while let Some(queued) = client.recalls.next(done) {
                        client.handle_recall(&queued).await;
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
        let ino = recall.ino;
        let terms = self.leases.recall_terms(recall);
        // Applications have asynchronously created files: the next session must see them.
        let dir = self.names.lease_key(ino).inode();
        warn_if_slow((ino, "sending asynchronous creates"), self.commit_creates_in(dir)).await;
        let inode = self.inodes.note_recall(ino);
        if let Some(inode) = &inode {
            inode.pending_recalls.fetch_add(1, Ordering::Relaxed);
            inode.page_gate.close();
        }
        let mut bypasses = match terms.ends_caching() {
            true => {
                let invalidation = self.kernel.drop_cached(ino, inode.as_deref(), Bypass::Once);
                Some(warn_if_slow((ino, "dropping the kernel's caches"), invalidation).await)
            }
            false => None,
        };
        // The inode may have been opened meanwhile; nothing is loaded then.
        if let Some(inode) = &inode {
            let mut exclusive =
                warn_if_slow((ino, "waiting for running operations"), inode.io_lock.write()).await;
            // Another task may have granted bypasses after the kernel had dropped its pages.
            while bypasses.is_some_and(|bypasses| bypasses != inode.page_gate.bypass_count()) {
                drop(exclusive);
                bypasses = Some(self.kernel.drop_cached(ino, Some(inode), Bypass::Once).await);
                exclusive = inode.io_lock.write().await;
            }
            warn_if_slow((ino, "reporting its size"), self.report_and_unload(inode, terms.remaining)).await;
            self.inodes.drop_reported(ino);
        }
        // Checked before the inode's usage: a file whose create completes in between is in use
        // already.
        let is_protected = self.names.protect_if_in_flight(ino);
        let in_use = is_protected || self.inodes.inode_use(ino) == InodeUse::Open;
        let ack = RecallAck { number: recall.number, ino, in_use };
        warn_if_slow((ino, "sending the acknowledgement"), self.acknowledge_recall(service, ack)).await;
        self.recalls.acknowledged(*position);
        self.names.end_lease(ino);
        if in_use {
            self.leases.mark_open(ino);
        }
        self.leases.end_recall(ino, terms.remaining);
        if let Some(inode) = &inode {
            inode.page_gate.open();
        }
        // A protected inode is released when its create has completed.
        if !is_protected && self.inodes.inode_use(ino) != InodeUse::Open {
            self.inodes.note_unused(ino);
        }
    }

    /// Reports to the service what only this session knows. The caller holds the I/O lock
    /// exclusively. Repeats until it succeeds or the session ends, since the service then recovers
    /// the size itself.
    async fn report_and_unload(&self, inode: &OpenInode, remaining: Option<LeaseMode>) {
        self.flush_dirty(inode).await;
        loop {
            // Changes that may still be in flight must not arrive after those of other sessions.
            let mut reported = self.renew_tainted_epoch(inode).await;
            // Chunks beyond the end are truncated before other sessions get the lease.
            if reported.is_ok() {
                reported = self.finish_truncate(inode).await;
            }
            if reported.is_ok() {
                reported = self
                    .end_write_with(inode, remaining != Some(LeaseMode::Shared), BlockAccuracy::Estimated)
                    .await;
            }
            match reported {
                Err(error) if error.errno != Errno::ESTALE && self.end_cause().is_none() => {
                    tracing::warn!(ino = %inode.ino, %error, "a lease can't be given back: size and times could not be reported; retrying");
                    rt::sleep(RETRY_PAUSE).await;
                }
                _ => break,
            }
        }
        let mut content = inode.content.lock();
        inode.pending_recalls.fetch_sub(1, Ordering::Relaxed);
        match remaining {
            Some(LeaseMode::Permissions) | None => content.unload(),
            Some(mode) => content.lease = mode,
        }
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
    pub(crate) async fn report_slow_recalls(self: Arc<Self>) {
        while self.end_cause().is_none() {
            rt::sleep(PROGRESS_INTERVAL).await;
            for service in self.services.all() {
                let Some(seen) = self.recalls.slow_recalls(service.node) else { continue };
                // Concurrently, so that an unreachable service doesn't delay the message to the
                // others.
                let client = self.clone();
                rt::spawn(async move {
                    if let Err(error) =
                        client.query_service(&service, MetaOp::RecallsInProgress { seen }).await
                    {
                        tracing::debug!(%error, "a service could not be informed that recalls are in progress");
                    }
                });
            }
        }
    }

    /// Releases unused leases, for as long as the session lives.
    pub(crate) async fn release_leases(self: Arc<Self>) {
        while self.end_cause().is_none() {
            self.inodes.wait_for_idle().await;
            rt::sleep(RELEASE_DELAY).await;
            let idle: Vec<InodeId> =
                self.inodes.take_idle().into_iter().filter(|&ino| self.release_if_unused(ino)).collect();
            let mut rest = idle;
            while let Some(&ino) = rest.first() {
                let owner = self.services.channels.owner(ino.partition());
                let same = |ino: &mut InodeId| self.services.channels.owner(ino.partition()) == owner;
                let of_owner: Vec<InodeId> = rest.extract_if(.., same).collect();
                for batch in of_owner.chunks(RELEASE_BATCH) {
                    self.release_batch(batch).await;
                }
            }
        }
    }

    /// Removes the lease of an unused inode from the table; returns true if the service is to be
    /// informed.
    fn release_if_unused(&self, ino: InodeId) -> bool {
        if self.names.has_pending_in(self.names.lease_key(ino).inode()) {
            return false;
        }
        // No use that relies on the lease can begin before it is removed.
        let is_gone = self.inodes.with_inode_use(ino, |usage| match usage {
            InodeUse::None => {
                (self.leases.mode(ino).is_some() || self.leases.is_marked_open(ino))
                    && self.leases.drop_lease(ino)
            }
            // A shared lease caches nothing for later use, and keeps other sessions from caching.
            InodeUse::Known => {
                let is_unneeded = match self.leases.mode(ino) {
                    Some(mode) => mode == LeaseMode::Shared,
                    None => self.leases.is_marked_open(ino),
                };
                is_unneeded && self.leases.drop_lease(ino)
            }
            InodeUse::Open => false,
        });
        if is_gone {
            self.names.end_lease(ino);
        }
        is_gone
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
async fn warn_if_slow<T>((ino, what): (InodeId, &str), work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Some(done) = rt::timeout(SLOW_AFTER, work.as_mut()).await {
        return done;
    }
    tracing::warn!(%ino, "the recall of a lease is slow: {what} has taken more than {SLOW_AFTER:?}");
    work.await
}
