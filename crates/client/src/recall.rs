//! Recalls: a session gives up what it relied on. The order of the steps, and why nobody waits for ever, is told in `lease`.

use crate::file::Blocks;
use crate::inode::{OpenInode, Usage};
use crate::{Client, unexpected};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use types::{Errno, Error, InodeId, Result};
use wire::{LeaseMode, MetaOp, MetaReply, Recall, Yield};

/// Inodes whose recalls are handled at a time; more wait. Each may hold a handful of requests.
const MAX_AT_ONCE: usize = 256;
/// How long the kernel may take to forget an inode before reads that wait are let through: forgetting takes some microseconds, unless it
/// waits for one of them.
const FORGET_PATIENCE: Duration = Duration::from_millis(20);
/// Rest before something is tried again that failed.
const RETRY: Duration = Duration::from_secs(1);
/// How often the service is told that a recall is being worked on; one that takes less isn't spoken of.
const WORD_INTERVAL: Duration = Duration::from_secs(1);
/// How long requests that are under way are waited for before the session is registered again.
const SOON: Duration = Duration::from_millis(500);
/// How long a request waits for the registration of its session, whole seconds. A service that starts is back much sooner.
const REGISTRATION_PATIENCE: Duration = Duration::from_secs(60);
/// How long inodes that are of no use any more are collected before the service is told.
const RELEASE_DELAY: Duration = Duration::from_millis(200);
/// Inodes of one release.
const RELEASE_BATCH: usize = 4096;

/// Who has to be told when what it got is not valid any more: a kernel with its caches.
pub trait Invalidate: Send + Sync {
    /// Forgets everything that was told of an inode as lasting: attributes, pages, and of a directory its names and the absence of names. When
    /// it has ended, nothing of it is used any more. It may wait for reads of the same inode that were told to be kept, and for
    /// nothing else of this client.
    fn forget(&self, ino: InodeId) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// What is known of the user of a process that is waiting for an answer, beyond its ids. It may read a file of the kernel's.
    fn standing(&self, pid: u32) -> Option<Standing> {
        let _ = pid;
        None
    }
}

/// What the credentials of a request don't show of its user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// It may do what its ids don't allow; the kernel has seen that it may do just this.
    pub privileged: bool,
}

/// Recalls that wait and inodes that are worked on.
#[derive(Default)]
pub(crate) struct Recalls {
    state: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    /// Inodes with recalls to handle, in order; those that are worked on have an entry, too.
    by_inode: HashMap<InodeId, VecDeque<Queued>>,
    /// Inodes that nobody works on yet.
    waiting: VecDeque<InodeId>,
    workers: usize,
    /// Recalls that are not answered, in the order in which they came: their numbers, and when that was. Numbers start anew with a service.
    unanswered: BTreeMap<u64, (u64, u64)>,
    /// Recalls so far.
    came: u64,
}

/// A recall, and the how manieth it is for this client.
type Queued = (Recall, u64);

impl Recalls {
    /// Queues a recall; true when a new worker should take up work.
    fn push(&self, recall: Recall) -> bool {
        let mut queues = self.state.lock();
        queues.came += 1;
        let recall: Queued = (recall, queues.came);
        let (Recall { number, ino, .. }, place) = recall;
        queues.unanswered.insert(place, (number, rt::monotonic_ns()));
        if let Some(queue) = queues.by_inode.get_mut(&ino) {
            queue.push_back(recall);
            return false;
        }
        queues.by_inode.insert(ino, VecDeque::from([recall]));
        queues.waiting.push_back(ino);
        let wanted = queues.workers < MAX_AT_ONCE;
        queues.workers += usize::from(wanted);
        wanted
    }

    fn answered(&self, place: u64) {
        self.state.lock().unanswered.remove(&place);
    }

    /// The highest number of those that are not answered, if one of them came long enough ago.
    fn in_arrears(&self) -> Option<u64> {
        let queues = self.state.lock();
        let (_, (_, came_ns)) = queues.unanswered.first_key_value()?;
        let is_late = rt::monotonic_ns().saturating_sub(*came_ns) >= WORD_INTERVAL.as_nanos() as u64;
        queues.unanswered.last_key_value().filter(|_| is_late).map(|(_, (number, _))| *number)
    }

    /// The next recall for a worker, of the inode that it works on if there is one more.
    fn next(&self, done: Option<InodeId>) -> Option<Queued> {
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

    /// Hears of recalls and handles them, for as long as the session lives.
    pub(crate) async fn answer_recalls(self: Arc<Self>) {
        while self.over().is_none() {
            let after = self.recalls_seen.load(Ordering::Acquire);
            let sent_ns = rt::monotonic_ns();
            match self.ask(MetaOp::NextRecalls { after }).await.map(|answer| answer.reply) {
                Ok(MetaReply::Recalls(recalls)) => {
                    self.clone().recalled(recalls);
                    self.heard(sent_ns);
                }
                Ok(other) => {
                    tracing::error!(error = %unexpected(other), "recalls can't be heard of");
                    rt::sleep(RETRY).await;
                }
                Err(error) => self.unheard(error).await,
            }
        }
    }

    fn recalled(self: Arc<Self>, recalls: Vec<Recall>) {
        for recall in recalls {
            if recall.number <= self.recalls_seen.load(Ordering::Acquire) {
                continue;
            }
            self.leases.close(&recall);
            self.recalls_seen.store(recall.number, Ordering::Release);
            if self.recalls.push(recall) {
                let client = self.clone();
                rt::spawn(async move {
                    let mut done = None;
                    while let Some((recall, place)) = client.recalls.next(done) {
                        client.give_up(&recall, place).await;
                        done = Some(recall.ino);
                    }
                });
            }
        }
    }

    /// The question for recalls failed.
    async fn unheard(&self, error: Error) {
        match error.errno {
            _ if self.over().is_some() => {}
            Errno::ESTALE => self.lose_session(error).await,
            Errno::ENOTCONN => {
                tracing::warn!(%error, "the metadata service does not know this session any more; registering again");
                self.register_again().await;
            }
            _ => {
                tracing::warn!(%error, "recalls can't be heard of");
                rt::sleep(RETRY).await;
            }
        }
    }

    async fn give_up(&self, recall: &Recall, place: u64) {
        let ino = recall.ino;
        let terms = self.leases.terms(recall);
        let inode = self.inodes.open(ino);
        if let Some(inode) = &inode {
            inode.recalled_ns.store(rt::monotonic_ns().max(1), Ordering::Relaxed);
            inode.fills.close();
        }
        if terms.ends_caching() {
            self.uncache(ino, inode.as_deref()).await;
        }
        // It may have been opened meanwhile; nothing is loaded then.
        if let Some(inode) = &inode {
            let _alone = inode.gate.write().await;
            self.report_and_unload(inode, terms.kept).await;
        }
        let in_use = self.inodes.usage(ino) == Usage::Open;
        self.send_yield(Yield { number: recall.number, ino, in_use }).await;
        self.recalls.answered(place);
        if in_use {
            self.leases.mark(ino);
        }
        self.leases.closed(ino, terms.kept);
        if let Some(inode) = &inode {
            inode.fills.open();
        }
        if self.inodes.usage(ino) != Usage::Open {
            self.inodes.let_go(ino);
        }
    }

    /// Has the kernel forget, until it surely has; how often reads had been let through by then.
    pub(crate) async fn uncache(&self, ino: InodeId, inode: Option<&OpenInode>) -> u64 {
        let Some(face) = self.face() else { return 0 };
        let Some(inode) = inode else {
            face.forget(ino).await;
            return 0;
        };
        loop {
            let passes = inode.fills.passes();
            let mut forgetting = face.forget(ino);
            while within(FORGET_PATIENCE, forgetting.as_mut()).await.is_none() {
                inode.fills.let_through();
            }
            if inode.fills.passes() == passes {
                return passes;
            }
        }
    }

    /// Tells the service what only this session knows. The gate is held exclusively. It is tried until it succeeds or the session is ended,
    /// since the service then finds out by itself.
    async fn report_and_unload(&self, inode: &OpenInode, kept: Option<LeaseMode>) {
        loop {
            // What is beyond the end goes before others come in.
            let mut reported = self.finish_cut(inode).await;
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
        match kept {
            Some(mode) => content.lease = mode,
            None => content.unload(),
        }
    }

    async fn send_yield(&self, answer: Yield) {
        while self.over().is_none() {
            match self.ask(MetaOp::Yield { yields: vec![answer] }).await {
                Ok(_) => return,
                // Who is not known has nothing to yield.
                Err(error) if matches!(error.errno, Errno::ESTALE | Errno::ENOTCONN) => return,
                Err(error) => {
                    tracing::warn!(ino = %answer.ino, %error, "the answer to a recall can't be sent");
                    rt::sleep(RETRY).await;
                }
            }
        }
    }

    /// Says of recalls that take their time that they are worked on, for as long as the session lives. What is written may have to reach a
    /// storage service that doesn't answer, which is no reason to end this session.
    pub(crate) async fn account_for_recalls(self: Arc<Self>) {
        while self.over().is_none() {
            rt::sleep(WORD_INTERVAL).await;
            let Some(seen) = self.recalls.in_arrears() else { continue };
            if let Err(error) = self.ask(MetaOp::StillYielding { seen }).await {
                tracing::debug!(%error, "the service isn't told that recalls are worked on");
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
            for batch in idle.chunks(RELEASE_BATCH) {
                self.release_batch(batch).await;
            }
        }
    }

    /// Takes an inode out of the table if nobody needs its lease; true when the service is to be told.
    fn lets_go(&self, ino: InodeId) -> bool {
        match self.inodes.usage(ino) {
            Usage::None => {
                (self.leases.mode(ino).is_some() || self.leases.is_marked(ino)) && self.leases.let_go(ino)
            }
            // Under a shared lease nothing is kept that could be of use later, and others can keep nothing because of it.
            Usage::Known => {
                let useless = match self.leases.mode(ino) {
                    Some(mode) => mode == LeaseMode::Shared,
                    None => self.leases.is_marked(ino),
                };
                useless && self.leases.let_go(ino)
            }
            Usage::Open => false,
        }
    }

    async fn release_batch(&self, batch: &[InodeId]) {
        let seen = self.recalls_seen.load(Ordering::Acquire);
        let told = self.ask(MetaOp::Release { inodes: batch.to_vec(), seen }).await;
        if let Err(error) = told {
            tracing::debug!(%error, "leases that nobody needs stay until they are recalled");
        }
        self.leases.released(batch);
    }

    /// Makes the session known to the metadata service. Before that it gets no leases.
    pub async fn register(&self) -> Result<()> {
        self.reclaim_locks().await?;
        let in_use = self.inodes.in_use();
        in_use.iter().for_each(|&ino| self.leases.mark(ino));
        let sent_ns = rt::monotonic_ns();
        self.ask(MetaOp::Register { in_use }).await?;
        self.heard(sent_ns);
        self.registrations.fetch_add(1, Ordering::AcqRel);
        self.registered.set();
        self.registered.clear();
        Ok(())
    }

    /// Waits until the session is known again, or `error` is the answer.
    pub(crate) async fn wait_for_registration(&self, before: u64, error: Error) -> Result<()> {
        for _ in 0..REGISTRATION_PATIENCE.as_secs() {
            let mut registered = pin!(self.registered.wait());
            if self.registrations.load(Ordering::Acquire) != before {
                return Ok(());
            }
            within(RETRY, registered.as_mut()).await;
        }
        Err(error)
    }

    /// The service has been started anew and knows of no lease any more, so none is held. Others can change nothing until this session is
    /// registered again: until then everything is forgotten that was relied on. What was written and not reported is settled by the
    /// service when it registers the session.
    async fn register_again(&self) {
        self.recalls_seen.store(0, Ordering::Release);
        let leased = self.leases.all();
        self.leases.reset();
        let open = self.inodes.open_inodes();
        for inode in &open {
            inode.fills.close();
            inode.content.lock().unload();
        }
        for inode in &open {
            self.uncache(inode.ino, Some(inode)).await;
            // Whoever is inside may be waiting for the registration; what only writes chunks will soon be through.
            if within(SOON, pin!(inode.gate.write())).await.is_none() {
                tracing::debug!(ino = %inode.ino, "a request goes on over a start of the metadata service");
            }
        }
        for ino in leased {
            self.uncache(ino, None).await;
        }
        while self.over().is_none() {
            match self.register().await {
                Ok(()) => break,
                Err(error) if error.errno == Errno::ESTALE => self.lose_session(error).await,
                Err(error) => {
                    tracing::warn!(%error, "registering again failed");
                    rt::sleep(RETRY).await;
                }
            }
        }
        open.iter().for_each(|inode| inode.fills.open());
    }

    /// The service has ended the session: nothing works any more, and nothing waits.
    async fn lose_session(&self, error: Error) {
        tracing::error!(%error, "the cluster has ended this session; every file operation fails from now on");
        self.end(error);
        let leased = self.leases.all();
        self.leases.reset();
        for inode in self.inodes.open_inodes() {
            // What was written and not reported is found by the service: it is in the chunk files.
            inode.content.lock().unload();
            self.uncache(inode.ino, Some(&inode)).await;
        }
        for ino in leased {
            self.uncache(ino, None).await;
        }
    }
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
