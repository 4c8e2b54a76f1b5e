//! Recalls: the session gives leases back. `lease` describes the order of the steps, and why there
//! is no deadlock.

use crate::closing::Blocks;
use crate::fill::Pass;
use crate::inode::{OpenInode, Usage};
use crate::pages::ALL_PAGES;
use crate::services::Service;
use crate::{Client, unexpected};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use types::{ByteRange, Credentials, Errno, Error, HashMap, InodeId, NodeId};
use wire::{LeaseMode, MetaOp, MetaReply, Recall, Yield};

/// Maximum number of inodes whose recalls are handled concurrently; more wait. Each may hold a
/// handful of requests.
const MAX_AT_ONCE: usize = 256;
/// How long the kernel may take to drop an inode's pages before waiting reads bypass the gate.
/// Dropping takes some microseconds, unless it waits for one of these reads.
const FORGET_PATIENCE: Duration = Duration::from_millis(20);
/// How often only new reads bypass the gate, at first; it doubles with each further drop. The
/// kernel doesn't wait for older reads, but may wait for reads that it hasn't sent yet because of
/// them.
const NEWCOMERS: u32 = 5;
/// Pause before a failed step is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// Time after which a step of a recall is logged.
const SLOW: Duration = Duration::from_secs(10);
/// How often a service is informed that a recall is in progress. A recall that takes less isn't
/// mentioned.
const WORD_INTERVAL: Duration = Duration::from_secs(1);
/// How long unused inodes are collected before their leases are released.
const RELEASE_DELAY: Duration = Duration::from_millis(200);
/// Time without an answer after which the service may have forgotten that it has ended the session
/// (it remembers for a week), and data that was held back is too old to be written.
const FORGOTTEN_NS: u64 = 24 * 3600 * 1_000_000_000;
/// Maximum number of inodes in one release.
const RELEASE_BATCH: usize = 4096;

/// The owner of caches that recalls invalidate: a kernel.
pub trait Invalidate: Send + Sync {
    /// Drops all cached state of an inode: attributes, pages, and for a directory its names and
    /// negative entries. When the future completes, none of it is used any more. It may wait for
    /// cached reads of the same inode, and for nothing else of this client.
    ///
    /// It doesn't wait for reads of `except`: pages that hold no data yet, or that may stay. The
    /// ranges are in ascending order and not adjacent. If they cover all pages, only the attributes
    /// are dropped, which waits for nothing.
    fn forget(&self, ino: InodeId, except: Vec<ByteRange>) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// The session has ended, and with it all advisory locks. The successor session gets no request
    /// yet.
    fn lost_locks(&self) {}

    /// Whether reads update access times. Called rarely.
    fn keeps_access_times(&self) -> bool {
        false
    }

    /// Whether user ids may be mapped before requests arrive. If so, only the kernel knows the real
    /// user, and has checked its permissions.
    fn maps_ids(&self) -> bool {
        false
    }

    /// Returns the privileges of a thread that waits for an answer, beyond its ids. `None` if the
    /// thread can't be found, or acts for another user. May read a file in procfs.
    fn standing(&self, credentials: Credentials) -> Option<Standing> {
        let _ = credentials;
        None
    }
}

/// Privileges of a user that the credentials of a request don't contain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Effective capabilities, bits of `CAP_*`: those that are valid in the user namespace of the
    /// mount.
    pub capabilities: u64,
}

/// Queued recalls, and the inodes whose recalls are being handled.
#[derive(Default)]
pub(crate) struct Recalls {
    state: Mutex<Queues>,
}

/// A recall, and the service that waits for the acknowledgement.
struct Due {
    service: Arc<Service>,
    recall: Recall,
    /// Position among all recalls of this client.
    place: u64,
}

#[derive(Default)]
struct Queues {
    /// Inodes with recalls to handle, in order; those being handled have an entry, too.
    by_inode: HashMap<InodeId, VecDeque<Due>>,
    /// Inodes without a worker.
    waiting: VecDeque<InodeId>,
    workers: usize,
    /// Unacknowledged recalls in order of arrival: service, number, and time. A restarted service
    /// begins its numbers again.
    unanswered: BTreeMap<u64, (NodeId, u64, u64)>,
    /// Number of recalls so far.
    came: u64,
}

impl Recalls {
    /// Queues a recall; returns true if a new worker should start.
    fn push(&self, service: Arc<Service>, recall: Recall) -> bool {
        let (mut queues, ino) = (self.state.lock(), recall.ino);
        queues.came += 1;
        let place = queues.came;
        queues.unanswered.insert(place, (service.node, recall.number, rt::monotonic_ns()));
        let due = Due { service, recall, place };
        if let Some(queue) = queues.by_inode.get_mut(&ino) {
            queue.push_back(due);
            return false;
        }
        queues.by_inode.insert(ino, VecDeque::from([due]));
        queues.waiting.push_back(ino);
        let wanted = queues.workers < MAX_AT_ONCE;
        queues.workers += usize::from(wanted);
        wanted
    }

    fn answered(&self, place: u64) {
        self.state.lock().unanswered.remove(&place);
    }

    /// Returns the highest number of a service's unacknowledged recalls, if the oldest of them has
    /// been in progress for [`WORD_INTERVAL`].
    fn in_arrears(&self, node: NodeId) -> Option<u64> {
        let queues = self.state.lock();
        let mut those = queues.unanswered.values().filter(|(from, ..)| *from == node);
        let &(_, first, came_ns) = those.next()?;
        let is_late = rt::monotonic_ns().saturating_sub(came_ns) >= WORD_INTERVAL.as_nanos() as u64;
        is_late.then(|| those.next_back().map_or(first, |(_, number, _)| *number))
    }

    /// Returns the next recall for a worker: another one of the inode that it has `done`, if there
    /// is one.
    fn next(&self, done: Option<InodeId>) -> Option<Due> {
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
    /// Sets the owner of the caches to invalidate. The client keeps a weak reference.
    pub fn set_face(&self, face: Weak<dyn Invalidate>) {
        *self.face.lock() = Some(face);
    }

    pub(crate) fn face(&self) -> Option<Arc<dyn Invalidate>> {
        self.face.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Registers with a service, receives its recalls and handles them, for as long as session and
    /// service live.
    pub(crate) async fn answer_recalls(self: Arc<Self>, service: Arc<Service>) {
        while self.over().is_none() && !service.is_gone() {
            if self.is_still_refused(&service).await {
                rt::sleep(RETRY).await;
                continue;
            }
            let sent_ns = rt::monotonic_ns();
            let heard = if service.is_registered() || !self.services.ways.follow_the_map() {
                let after = service.recalls_seen.load(Ordering::Acquire);
                self.ask_at(&service, MetaOp::NextRecalls { after }).await.map(|answer| answer.reply)
            } else {
                self.register_at(&service).await.map(|()| MetaReply::Recalls(Vec::new()))
            };
            match heard {
                Ok(MetaReply::Recalls(recalls)) => {
                    self.clone().recalled(&service, recalls);
                    self.heard(&service, sent_ns);
                }
                Ok(MetaReply::Adopted { partitions }) => {
                    self.follow(&service, &partitions).await;
                    self.heard(&service, sent_ns);
                }
                Ok(other) => {
                    tracing::error!(error = %unexpected(other), "recalls can't be heard of");
                    rt::sleep(RETRY).await;
                }
                Err(error) => self.unheard(&service, error).await,
            }
        }
    }

    fn recalled(self: Arc<Self>, service: &Arc<Service>, recalls: Vec<Recall>) {
        for recall in recalls {
            if recall.number <= service.recalls_seen.load(Ordering::Acquire) {
                continue;
            }
            self.leases.close(service.node, &recall);
            service.recalls_seen.store(recall.number, Ordering::Release);
            if self.recalls.push(service.clone(), recall) {
                let client = self.clone();
                rt::spawn(async move {
                    let mut done = None;
                    while let Some(due) = client.recalls.next(done) {
                        client.give_up(&due).await;
                        done = Some(due.recall.ino);
                    }
                });
            }
        }
    }

    /// Handles a failed request for recalls.
    async fn unheard(&self, service: &Arc<Service>, error: Error) {
        match error.errno {
            _ if self.over().is_some() || service.is_gone() => {}
            // The session's end, which this client requested, is reported by this request first.
            Errno::ESTALE | Errno::ENOTCONN if self.leaves.load(Ordering::Acquire) => rt::sleep(RETRY).await,
            Errno::ESTALE => self.lose_session(error).await,
            Errno::ENOTCONN if is_forgotten(service) => self.lose_session(error).await,
            Errno::ENOTCONN => {
                tracing::warn!(%error, "a metadata service does not know this session any more; registering again");
                self.register_again(service).await;
            }
            _ => {
                tracing::warn!(node = %service.node, %error, "recalls can't be heard of");
                self.note_trouble(service, &error);
                rt::sleep(RETRY).await;
            }
        }
    }

    async fn give_up(&self, Due { service, recall, place }: &Due) {
        let ino = recall.ino;
        let terms = self.leases.terms(recall);
        // Applications have asynchronously created files: the next session must see them.
        let promised_in = self.ranges.directory_of(ino).unwrap_or(ino);
        told_if_slow((ino, "the delivery of new files"), self.keep_promises_in(promised_in)).await;
        let inode = self.inodes.recalled(ino);
        if let Some(inode) = &inode {
            inode.yielding.fetch_add(1, Ordering::Relaxed);
            inode.fills.close();
        }
        let mut passes = match terms.ends_caching() {
            true => {
                let forgetting = self.uncache(ino, inode.as_deref(), Pass::Once);
                Some(told_if_slow((ino, "the kernel's forgetting"), forgetting).await)
            }
            false => None,
        };
        // The inode may have been opened meanwhile; nothing is loaded then.
        if let Some(inode) = &inode {
            let mut alone = told_if_slow((ino, "its use by programs"), inode.gate.write()).await;
            // Another task may have granted bypasses after the kernel had dropped its pages.
            while passes.is_some_and(|passes| passes != inode.fills.passes()) {
                drop(alone);
                passes = Some(self.uncache(ino, Some(inode), Pass::Once).await);
                alone = inode.gate.write().await;
            }
            told_if_slow((ino, "the report of its size"), self.report_and_unload(inode, terms.kept)).await;
            self.inodes.finished(ino);
        }
        // Checked before the inode's usage: a file whose create completes in between is in use
        // already.
        let is_spared = self.making.may_have(ino);
        let in_use = is_spared || self.inodes.usage(ino) == Usage::Open;
        let answer = Yield { number: recall.number, ino, in_use };
        told_if_slow((ino, "the answer"), self.send_yield(service, answer)).await;
        self.recalls.answered(*place);
        self.ranges.let_go(ino);
        if in_use {
            self.leases.mark(ino);
        }
        self.leases.closed(ino, terms.kept);
        if let Some(inode) = &inode {
            inode.fills.open();
        }
        // A protected inode is released when its create has completed.
        if !is_spared && self.inodes.usage(ino) != Usage::Open {
            self.inodes.let_go(ino);
        }
    }

    /// Has the kernel drop an inode until it surely has; returns the number of bypasses by then.
    pub(crate) async fn uncache(&self, ino: InodeId, inode: Option<&OpenInode>, pass: Pass) -> u64 {
        if let Some(inode) = inode {
            return self.uncache_pages(inode, ALL_PAGES, pass).await;
        }
        if let Some(face) = self.face() {
            face.forget(ino, Vec::new()).await;
        }
        0
    }

    /// Like [`Client::uncache`], for an inode in use and the pages of `range`.
    pub(crate) async fn uncache_pages(&self, inode: &OpenInode, range: ByteRange, pass: Pass) -> u64 {
        let Some(face) = self.face() else { return inode.fills.passes() };
        for turn in 0.. {
            inode.fills.settle(turn).await;
            let look = inode.fills.look();
            let mut forgetting = face.forget(inode.ino, look.spared(range));
            let mut waited = 0;
            while within(FORGET_PATIENCE, forgetting.as_mut()).await.is_none() {
                waited += 1;
                match waited < NEWCOMERS << turn.min(10) {
                    true => inode.fills.let_through(&look, pass),
                    false => inode.fills.let_all_through(pass),
                }
            }
            if inode.fills.passes() == look.passes {
                inode.fills.forgotten(&look, range);
                return look.passes;
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Has the kernel drop the attributes: a change of content has changed more of them than the
    /// kernel expects.
    pub(crate) async fn uncache_attributes(&self, ino: InodeId) {
        if let Some(face) = self.face() {
            face.forget(ino, vec![ByteRange::new(0, u64::MAX)]).await;
        }
    }

    /// Reports to the service what only this session knows. The caller holds the I/O lock
    /// exclusively. Repeats until it succeeds or the session ends, since the service then recovers
    /// the size itself.
    async fn report_and_unload(&self, inode: &OpenInode, kept: Option<LeaseMode>) {
        self.write_back(inode).await;
        loop {
            // Changes that may still be in flight must not arrive after those of other sessions.
            let mut reported = self.leave_spent_epoch(inode).await;
            // Chunks beyond the end are truncated before other sessions get the lease.
            if reported.is_ok() {
                reported = self.finish_cut(inode).await;
            }
            if reported.is_ok() {
                reported = self.end_write_with(inode, kept != Some(LeaseMode::Shared), Blocks::Rough).await;
            }
            match reported {
                Err(error) if error.errno != Errno::ESTALE && self.over().is_none() => {
                    tracing::warn!(ino = %inode.ino, %error, "a lease can't be given up before size and times are reported");
                    rt::sleep(RETRY).await;
                }
                _ => break,
            }
        }
        let mut content = inode.content.lock();
        inode.yielding.fetch_sub(1, Ordering::Relaxed);
        match kept {
            Some(LeaseMode::Permissions) | None => content.unload(),
            Some(mode) => content.lease = mode,
        }
    }

    async fn send_yield(&self, service: &Service, answer: Yield) {
        while self.over().is_none() && !service.is_gone() {
            let sent = self.ask_at(service, MetaOp::Yield { yields: vec![answer] });
            match self.services.unless_moved(answer.ino.partition(), service, sent).await {
                // Another service owns the partition: the recall of this one, which may be dead, is
                // void.
                None | Some(Ok(_)) => return,
                // An unregistered session has nothing to give back.
                Some(Err(error)) if matches!(error.errno, Errno::ESTALE | Errno::ENOTCONN) => return,
                Some(Err(error)) => {
                    tracing::warn!(ino = %answer.ino, %error, "the answer to a recall can't be sent");
                    rt::sleep(RETRY).await;
                }
            }
        }
    }

    /// Informs services that slow recalls are in progress, for as long as the session lives. Dirty
    /// data may have to reach a storage service that doesn't answer, which is no reason to end this
    /// session.
    pub(crate) async fn account_for_recalls(self: Arc<Self>) {
        while self.over().is_none() {
            rt::sleep(WORD_INTERVAL).await;
            for service in self.services.all() {
                let Some(seen) = self.recalls.in_arrears(service.node) else { continue };
                // Concurrently, so that an unreachable service doesn't delay the message to the
                // others.
                let client = self.clone();
                rt::spawn(async move {
                    if let Err(error) = client.ask_at(&service, MetaOp::StillYielding { seen }).await {
                        tracing::debug!(%error, "a service isn't told that recalls are worked on");
                    }
                });
            }
        }
    }

    /// Releases unused leases, for as long as the session lives.
    pub(crate) async fn release_leases(self: Arc<Self>) {
        while self.over().is_none() {
            self.inodes.wait_for_idle().await;
            rt::sleep(RELEASE_DELAY).await;
            let idle: Vec<InodeId> =
                self.inodes.take_idle().into_iter().filter(|&ino| self.lets_go(ino)).collect();
            let mut rest = idle;
            while let Some(&ino) = rest.first() {
                let owner = self.services.ways.owner(ino.partition());
                let same = |ino: &mut InodeId| self.services.ways.owner(ino.partition()) == owner;
                let those: Vec<InodeId> = rest.extract_if(.., same).collect();
                for batch in those.chunks(RELEASE_BATCH) {
                    self.release_batch(batch).await;
                }
            }
        }
    }

    /// Removes the lease of an unused inode from the table; returns true if the service is to be
    /// informed.
    fn lets_go(&self, ino: InodeId) -> bool {
        if self.promises.are_in(self.ranges.directory_of(ino).unwrap_or(ino)) {
            return false;
        }
        // No use that relies on the lease can begin before it is removed.
        let is_gone = self.inodes.with_usage(ino, |usage| match usage {
            Usage::None => {
                (self.leases.mode(ino).is_some() || self.leases.is_marked(ino)) && self.leases.let_go(ino)
            }
            // A shared lease caches nothing for later use, and keeps other sessions from caching.
            Usage::Known => {
                let useless = match self.leases.mode(ino) {
                    Some(mode) => mode == LeaseMode::Shared,
                    None => self.leases.is_marked(ino),
                };
                useless && self.leases.let_go(ino)
            }
            Usage::Open => false,
        });
        if is_gone {
            self.ranges.let_go(ino);
        }
        is_gone
    }

    /// Reports released leases to the service that granted them all.
    async fn release_batch(&self, batch: &[InodeId]) {
        let told = match self.services.executing(batch[0].partition()) {
            Ok(service) => {
                let seen = service.recalls_seen.load(Ordering::Acquire);
                self.ask_at(&service, MetaOp::Release { inodes: batch.to_vec(), seen }).await.map(drop)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            tracing::debug!(%error, "leases that nobody needs stay until they are recalled");
        }
        self.leases.released(batch);
    }
}

/// Whether a service that doesn't know the session may have ended it long ago.
fn is_forgotten(service: &Service) -> bool {
    let heard_ns = service.heard_ns.load(Ordering::Acquire);
    heard_ns > 0 && rt::monotonic_ns().saturating_sub(heard_ns) > FORGOTTEN_NS
}

/// Returns the result of `work`, and logs a warning if it delays a recall: other sessions wait, and
/// the service evicts this session if it takes still longer.
async fn told_if_slow<T>((ino, what): (InodeId, &str), work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Some(done) = within(SLOW, work.as_mut()).await {
        return done;
    }
    tracing::warn!(%ino, "a lease is asked back, and {what} has been taking more than {SLOW:?}");
    work.await
}

/// Returns the result of `work`, or `None` after the time-out; the caller can wait for it again.
pub(crate) async fn within<T>(
    patience: Duration,
    mut work: Pin<&mut (impl Future<Output = T> + ?Sized)>,
) -> Option<T> {
    let mut timeout = pin!(rt::sleep(patience));
    poll_fn(|context| {
        if let Poll::Ready(output) = work.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        timeout.as_mut().poll(context).map(|()| None)
    })
    .await
}
