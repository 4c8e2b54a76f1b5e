//! Recalls: a session gives up what it relied on. The order of the steps, and why nobody waits for
//! ever, is told in `lease`.

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

/// Inodes whose recalls are handled at a time; more wait. Each may hold a handful of requests.
const MAX_AT_ONCE: usize = 256;
/// How long the kernel may take to forget an inode before reads that wait are let through:
/// forgetting takes some microseconds, unless it waits for one of them.
const FORGET_PATIENCE: Duration = Duration::from_millis(20);
/// How often only those are let through who have come since the kernel was told, at first; it
/// doubles each time the kernel has to forget once more. It doesn't wait for others, but may be
/// waiting for reads that it hasn't handed out because of them.
const NEWCOMERS: u32 = 5;
/// Rest before something is tried again that failed.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// What a step of a recall may take before it is logged.
const SLOW: Duration = Duration::from_secs(10);
/// How often a service is told that a recall is being worked on; one that takes less isn't spoken
/// of.
const WORD_INTERVAL: Duration = Duration::from_secs(1);
/// How long inodes that are of no use any more are collected before the service is told.
const RELEASE_DELAY: Duration = Duration::from_millis(200);
/// Silence after which the service may have forgotten that it has ended the session (it remembers
/// for a week), and whatever is held back is too old to be written.
const FORGOTTEN_NS: u64 = 24 * 3600 * 1_000_000_000;
/// Inodes of one release.
const RELEASE_BATCH: usize = 4096;

/// Who has to be told when what it got is not valid any more: a kernel with its caches.
pub trait Invalidate: Send + Sync {
    /// Forgets everything that was told of an inode as lasting: attributes, pages, and of a
    /// directory its names and the absence of names. When it has ended, nothing of it is used any
    /// more. It may wait for reads of the same inode that were told to be kept, and for nothing
    /// else of this client.
    ///
    /// It doesn't wait for reads of `except`, pages in which nothing is yet, or that may stay: in
    /// ascending order and apart from each other. With all of them there it is the attributes alone
    /// that are forgotten, which waits for nothing.
    fn forget(&self, ino: InodeId, except: Vec<ByteRange>) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// The session has ended, and no advisory lock is held any more. Nothing is asked of the next
    /// session yet.
    fn lost_locks(&self) {}

    /// Whether reads are to show in the access times of files. Asked seldom.
    fn keeps_access_times(&self) -> bool {
        false
    }

    /// Whether ids of users may be mapped before requests come. Then the kernel alone knows who
    /// asks, and has checked what it passes on.
    fn maps_ids(&self) -> bool {
        false
    }

    /// What is known of the user of a thread that is waiting for an answer, beyond its ids. `None`
    /// when the thread can't be seen, or acts for another user. It may read a file of the kernel's.
    fn standing(&self, credentials: Credentials) -> Option<Standing> {
        let _ = credentials;
        None
    }
}

/// What the credentials of a request don't show of its user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Its effective capabilities, bits of `CAP_*`: those that count in the user namespace of the
    /// mount.
    pub capabilities: u64,
}

/// Recalls that wait and inodes that are worked on.
#[derive(Default)]
pub(crate) struct Recalls {
    state: Mutex<Queues>,
}

/// A recall, and the service that waits for the answer.
struct Due {
    service: Arc<Service>,
    recall: Recall,
    /// The how manieth it is for this client.
    place: u64,
}

#[derive(Default)]
struct Queues {
    /// Inodes with recalls to handle, in order; those that are worked on have an entry, too.
    by_inode: HashMap<InodeId, VecDeque<Due>>,
    /// Inodes that nobody works on yet.
    waiting: VecDeque<InodeId>,
    workers: usize,
    /// Recalls that are not answered, in the order in which they came: from whom, their numbers,
    /// and when that was. Numbers start anew with a service.
    unanswered: BTreeMap<u64, (NodeId, u64, u64)>,
    /// Recalls so far.
    came: u64,
}

impl Recalls {
    /// Queues a recall; true when a new worker should take up work.
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

    /// The highest number of those of a service that are not answered, if one of them came long
    /// enough ago.
    fn in_arrears(&self, node: NodeId) -> Option<u64> {
        let queues = self.state.lock();
        let mut those = queues.unanswered.values().filter(|(from, ..)| *from == node);
        let &(_, first, came_ns) = those.next()?;
        let is_late = rt::monotonic_ns().saturating_sub(came_ns) >= WORD_INTERVAL.as_nanos() as u64;
        is_late.then(|| those.next_back().map_or(first, |(_, number, _)| *number))
    }

    /// The next recall for a worker, of the inode that it works on if there is one more.
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
    /// Says who is to be told of invalid caches. It is referred to weakly.
    pub fn set_face(&self, face: Weak<dyn Invalidate>) {
        *self.face.lock() = Some(face);
    }

    pub(crate) fn face(&self) -> Option<Arc<dyn Invalidate>> {
        self.face.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Registers with a service, hears of its recalls and handles them, for as long as session and
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

    /// The question for recalls failed.
    async fn unheard(&self, service: &Arc<Service>, error: Error) {
        match error.errno {
            _ if self.over().is_some() || service.is_gone() => {}
            // The end that was asked for is told here first.
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
        // Programs have what is promised: whoever comes next has to see it.
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
        // It may have been opened meanwhile; nothing is loaded then.
        if let Some(inode) = &inode {
            let mut alone = told_if_slow((ino, "its use by programs"), inode.gate.write()).await;
            // Somebody else may have let reads through when the kernel had forgotten already.
            while passes.is_some_and(|passes| passes != inode.fills.passes()) {
                drop(alone);
                passes = Some(self.uncache(ino, Some(inode), Pass::Once).await);
                alone = inode.gate.write().await;
            }
            told_if_slow((ino, "the report of its size"), self.report_and_unload(inode, terms.kept)).await;
            self.inodes.finished(ino);
        }
        // Said before it is looked whether the inode is open: what is made in between is so
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
        // What is spared is let go when it is known what was made.
        if !is_spared && self.inodes.usage(ino) != Usage::Open {
            self.inodes.let_go(ino);
        }
    }

    /// Has the kernel forget, until it surely has; how often reads had been let through by then.
    pub(crate) async fn uncache(&self, ino: InodeId, inode: Option<&OpenInode>, pass: Pass) -> u64 {
        if let Some(inode) = inode {
            return self.uncache_pages(inode, ALL_PAGES, pass).await;
        }
        if let Some(face) = self.face() {
            face.forget(ino, Vec::new()).await;
        }
        0
    }

    /// The same of an inode in use, and of the pages of these bytes.
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

    /// Has the kernel forget the attributes: a change of content has changed more of them than it
    /// expects.
    pub(crate) async fn uncache_attributes(&self, ino: InodeId) {
        if let Some(face) = self.face() {
            face.forget(ino, vec![ByteRange::new(0, u64::MAX)]).await;
        }
    }

    /// Tells the service what only this session knows. The gate is held exclusively. It is tried
    /// until it succeeds or the session is ended, since the service then finds out by itself.
    async fn report_and_unload(&self, inode: &OpenInode, kept: Option<LeaseMode>) {
        self.write_back(inode).await;
        loop {
            // What may still be on its way is not to come after what others do.
            let mut reported = self.leave_spent_epoch(inode).await;
            // What is beyond the end goes before others come in.
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
                // Another service executes the partition: what this one, which may be dead, waited
                // for means nothing any more.
                None | Some(Ok(_)) => return,
                // Who is not known has nothing to yield.
                Some(Err(error)) if matches!(error.errno, Errno::ESTALE | Errno::ENOTCONN) => return,
                Some(Err(error)) => {
                    tracing::warn!(ino = %answer.ino, %error, "the answer to a recall can't be sent");
                    rt::sleep(RETRY).await;
                }
            }
        }
    }

    /// Says of recalls that take their time that they are worked on, for as long as the session
    /// lives. What is written may have to reach a storage service that doesn't answer, which is no
    /// reason to end this session.
    pub(crate) async fn account_for_recalls(self: Arc<Self>) {
        while self.over().is_none() {
            rt::sleep(WORD_INTERVAL).await;
            for service in self.services.all() {
                let Some(seen) = self.recalls.in_arrears(service.node) else { continue };
                // Beside the others: one that doesn't answer must not keep them from hearing of it.
                let client = self.clone();
                rt::spawn(async move {
                    if let Err(error) = client.ask_at(&service, MetaOp::StillYielding { seen }).await {
                        tracing::debug!(%error, "a service isn't told that recalls are worked on");
                    }
                });
            }
        }
    }

    /// Lets leases go that nobody needs, for as long as the session lives.
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

    /// Takes an inode out of the table if nobody needs its lease; true when the service is to be
    /// told.
    fn lets_go(&self, ino: InodeId) -> bool {
        if self.promises.are_in(self.ranges.directory_of(ino).unwrap_or(ino)) {
            return false;
        }
        // Nobody begins to use it, and relies on the lease, before that is gone.
        let is_gone = self.inodes.with_usage(ino, |usage| match usage {
            Usage::None => {
                (self.leases.mode(ino).is_some() || self.leases.is_marked(ino)) && self.leases.let_go(ino)
            }
            // Under a shared lease nothing is kept that could be of use later, and others can keep
            // nothing because of it.
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

    /// Tells the service of leases that were let go, all of them its own.
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

/// What a future comes to. It is logged when a recall takes long because of it: others wait, and
/// the session ends if it takes longer still.
async fn told_if_slow<T>((ino, what): (InodeId, &str), work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Some(done) = within(SLOW, work.as_mut()).await {
        return done;
    }
    tracing::warn!(%ino, "a lease is asked back, and {what} has been taking more than {SLOW:?}");
    work.await
}

/// What a future comes to, if that doesn't take too long; it can be waited for again.
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
