//! Becoming known to metadata services: at the beginning, when one was started anew, and when
//! partitions move from one to another.
//!
//! In all three cases the service knows of no lease of this session on the inodes in question, and
//! lets nobody else in until the session has said that it relies on none any more (or is ended). So
//! everything is forgotten first, here and in the kernel, and then the service is told, along with
//! the inodes that are open. What was written and not reported is settled by the service when it is
//! told.
//!
//! That a partition has moved is told by its new service ([`wire::MetaReply::Adopted`]), not by the
//! map: only the service knows whom it waits for, and a partition may have gone away and come back
//! between two maps. The old service is not asked any more: it has given the partition up, or it is
//! dead, and can't have granted anything since.

use crate::Client;
use crate::fill::Pass;
use crate::inode::OpenInode;
use crate::recall::{RETRY, within};
use crate::services::Service;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Error, HashSet, InodeId, PartitionId, Result};
use wire::MetaOp;

/// Open inodes that one request tells a service of: some 40 KiB, beside the promised files.
const OPENS_PER_REQUEST: usize = 4096;

/// How long requests that are under way are waited for before the session is registered again.
const SOON: Duration = Duration::from_millis(500);
/// How long the kernel may take to forget a file before that. Milliseconds, unless it waits for a
/// page; see [`SOON`] and [`LANDING_TIME`] for the rest of the time that sessions have to come
/// back.
const PAGE_TIME: Duration = Duration::from_secs(1);
/// How long, after that, changes are waited for that are on their way to chunk files: what lands
/// when the service has let others in could come over what they do. With [`SOON`] well below the
/// time that sessions have to come back. A target that doesn't answer for so long is down as a
/// rule.
const LANDING_TIME: Duration = Duration::from_secs(5);
/// How long the kernel may take, after that, to forget inodes that aren't open, all of them.
/// Microseconds each, unless everybody who tells it waits for pages.
const REST_TIME: Duration = Duration::from_secs(2);
/// Inodes that the kernel forgets side by side.
const AT_ONCE: usize = 64;

/// What the kernel hasn't forgotten in time.
struct Late {
    open: Vec<Arc<OpenInode>>,
    closed: Vec<InodeId>,
}

impl Late {
    fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_empty()
    }
}

impl Client {
    /// Makes the session known to the cluster. Before that it gets no leases. Services that are not
    /// needed to find the root directory are told by the background work.
    pub async fn register(&self) -> Result<()> {
        let service = self.services.executing(InodeId::ROOT.partition()).map_err(|_| {
            Error::new(Errno::ENODEV, "no node of the cluster has a metadata service")
                .hint("weft node list shows what the nodes do")
        })?;
        loop {
            match self.register_at(&service).await {
                Err(error) if error.errno == Errno::EAGAIN => rt::sleep(RETRY).await,
                registered => return registered,
            }
        }
    }

    pub(crate) async fn register_at(&self, service: &Service) -> Result<()> {
        let told = self.reclaim_sizes(service).await?;
        // Who doesn't know the session yet hears of locks when partitions have come to it.
        if service.is_registered() {
            self.reclaim_locks(service, |ino| self.services.executes(service, ino)).await?;
        }
        let in_use = self.reclaim_opens(service, |ino| self.services.executes(service, ino)).await?;
        let sent_ns = rt::monotonic_ns();
        let promised = self.sealed_promises(|dir| self.services.executes(service, dir));
        self.ask_at(service, MetaOp::Register { in_use, promised, told }).await?;
        self.heard(service, sent_ns);
        service.note_registration();
        Ok(())
    }

    /// A service has been started anew and knows of no lease any more, so none of it is held.
    /// Others can change nothing until this session is registered again: until then everything is
    /// forgotten that was relied on.
    pub(crate) async fn register_again(&self, service: &Service) {
        service.recalls_seen.store(0, Ordering::Release);
        let ended = self.leases.end_those_of(service.node);
        let concerned = |ino: InodeId| self.services.executes(service, ino);
        let (closed, late) = self.forget_ended(ended, concerned).await;
        while self.over().is_none() && !service.is_gone() {
            match self.register_at(service).await {
                Ok(()) => break,
                Err(error) if error.errno == Errno::ESTALE => self.lose_session(error).await,
                Err(error) => {
                    tracing::warn!(%error, "registering again failed");
                    self.note_trouble(service, &error);
                    rt::sleep(RETRY).await;
                }
            }
        }
        self.end_forgetting(closed, late);
        self.look_again();
    }

    /// Partitions have come to a service from another one, which granted the leases that are held
    /// there.
    pub(crate) async fn follow(&self, service: &Service, partitions: &[PartitionId]) {
        tracing::info!(node = %service.node, partitions = partitions.len(), "following partitions to another metadata service");
        let ended = self.leases.end_those_in(partitions);
        let concerned = |ino: InodeId| partitions.contains(&ino.partition());
        let (closed, late) = self.forget_ended(ended, concerned).await;
        match self.tell_follow(service, partitions, concerned).await {
            Ok(()) => {}
            Err(error) if error.errno == Errno::ESTALE => self.lose_session(error).await,
            // It says again what it wants to be told.
            Err(error) => {
                tracing::warn!(node = %service.node, %error, "following partitions failed");
                rt::sleep(RETRY).await;
            }
        }
        self.end_forgetting(closed, late);
        self.look_again();
    }

    /// Tells a service what the session has in partitions that have come to it.
    async fn tell_follow(
        &self,
        service: &Service,
        partitions: &[PartitionId],
        concerned: impl Fn(InodeId) -> bool,
    ) -> Result<()> {
        let told = self.reclaim_sizes(service).await?;
        self.reclaim_locks(service, &concerned).await?;
        let in_use = self.reclaim_opens(service, &concerned).await?;
        let promised = self.sealed_promises(&concerned);
        let follow = MetaOp::Follow { partitions: partitions.to_vec(), in_use, promised, told };
        self.ask_at(service, follow).await.map(drop)
    }

    /// Tells a service of which inodes the session has files open. Returns the last of them, for
    /// the request by which the session registers or follows.
    async fn reclaim_opens(
        &self,
        service: &Service,
        concerned: impl Fn(InodeId) -> bool,
    ) -> Result<Vec<InodeId>> {
        let in_use = self.inodes.in_use().into_iter().filter(|&ino| concerned(ino));
        let mut in_use: Vec<InodeId> = in_use.collect();
        in_use.iter().for_each(|&ino| self.leases.mark(ino));
        while in_use.len() > OPENS_PER_REQUEST {
            let inodes = in_use.split_off(in_use.len() - OPENS_PER_REQUEST);
            self.ask_at(service, MetaOp::ReclaimOpens { inodes }).await?;
        }
        Ok(in_use)
    }

    /// Forgets what was true under leases that have ended, here and in the kernel. Reads for the
    /// kernel's page cache are held back then, until the caller opens their doors. Also gives those
    /// that the kernel hasn't forgotten in time: it waits for a page that a read is filling, and
    /// the read may be waiting for the registration. If the session waited for it in turn, it would
    /// be ended for not coming back.
    async fn forget_ended(
        &self,
        ended: Vec<InodeId>,
        concerned: impl Fn(InodeId) -> bool,
    ) -> (Vec<Arc<OpenInode>>, Late) {
        let ended: HashSet<InodeId> = ended.into_iter().collect();
        let open = self.inodes.open_inodes().into_iter();
        let open: Vec<_> = open.filter(|inode| concerned(inode.ino) || ended.contains(&inode.ino)).collect();
        let mut left = Vec::with_capacity(open.len());
        for inode in &open {
            inode.fills.close();
            // Answers that are on their way may tell a size from before what is now forgotten.
            self.inodes.reported(inode.ino);
            let mut content = inode.content.lock();
            content.note_last_size();
            left.push(inode.take_kept(&mut content));
            content.unload();
        }
        let forgetting = open.iter().zip(left).map(|(inode, left)| async move {
            // Before anybody is let in.
            if let Some(left) = left {
                self.write_left(inode, left).await;
            }
            let forgotten = within(PAGE_TIME, pin!(self.uncache(inode.ino, Some(inode), Pass::Once))).await;
            // Whoever is inside may be waiting for the registration; what only writes chunks will
            // soon be through.
            if within(SOON, pin!(inode.gate.write())).await.is_none() {
                tracing::debug!(ino = %inode.ino, "a request goes on over a change of the metadata service");
                within(LANDING_TIME, pin!(inode.landing.all_landed())).await;
            }
            forgotten.is_none().then(|| Arc::clone(inode))
        });
        let late = rt::join_all(forgetting.collect()).await.into_iter().flatten().collect();
        let rest = ended.iter().copied().filter(|&ino| self.inodes.open(ino).is_none()).collect();
        let closed = self.forget_rest(rest).await;
        (open, Late { open: late, closed })
    }

    /// Has the kernel forget inodes that are not open; gives those that it hasn't forgotten in
    /// time.
    async fn forget_rest(&self, rest: Vec<InodeId>) -> Vec<InodeId> {
        let until_ns = rt::monotonic_ns() + REST_TIME.as_nanos() as u64;
        let mut late = Vec::new();
        for some in rest.chunks(AT_ONCE) {
            let left = Duration::from_nanos(until_ns.saturating_sub(rt::monotonic_ns()));
            let forgetting = some.iter().map(|&ino| async move {
                let forgotten = within(left, pin!(self.uncache(ino, None, Pass::Once))).await;
                forgotten.is_none().then_some(ino)
            });
            late.extend(rt::join_all(forgetting.collect()).await.into_iter().flatten());
        }
        if !late.is_empty() {
            tracing::warn!(
                inodes = late.len(),
                "the kernel waits for pages, and forgets inodes when it has them"
            );
        }
        late
    }

    /// Lets reads for the kernel's page cache in again, when the kernel has forgotten what it
    /// couldn't before: now the reads get their answers that it waited for. Nobody waits for that
    /// here: a page may have to come from a storage service that doesn't answer, and meanwhile the
    /// session has to hear of recalls.
    fn end_forgetting(&self, closed: Vec<Arc<OpenInode>>, late: Late) {
        let Some(client) = self.myself.upgrade().filter(|_| !late.is_empty()) else {
            closed.iter().for_each(|inode| inode.fills.open());
            return;
        };
        rt::spawn(async move {
            for some in late.closed.chunks(AT_ONCE) {
                rt::join_all(some.iter().map(|&ino| client.uncache(ino, None, Pass::Once)).collect()).await;
            }
            let forgetting =
                late.open.iter().map(|inode| client.uncache(inode.ino, Some(inode), Pass::Once)).collect();
            rt::join_all(forgetting).await;
            closed.iter().for_each(|inode| inode.fills.open());
        });
    }

    /// The cluster has ended the session: nothing works any more, and nothing waits.
    pub(crate) async fn lose_session(&self, error: Error) {
        if self.end(error) {
            self.forget_everything().await;
        }
    }

    /// The session is over: nothing that was relied on counts any more, here or in the kernel. What
    /// the kernel has yet to write of mapped pages it tries to write meanwhile, and loses, since
    /// the session's files take nothing any more.
    pub(crate) async fn forget_everything(&self) {
        let mut inodes = self.leases.end_all();
        let open = self.inodes.open_inodes();
        // What was written and not reported is found by the service: it is in the chunk files.
        open.iter().for_each(|inode| inode.content.lock().unload());
        inodes.extend(open.iter().map(|inode| inode.ino));
        inodes.sort_unstable();
        inodes.dedup();
        self.forget_inodes(&inodes, None).await;
        self.forgotten.set();
    }

    /// Waits until the cluster has ended the session and nothing of it is left here or in the
    /// kernel; tells why it has.
    pub(crate) async fn lost(&self) -> Error {
        self.forgotten.wait().await;
        self.over().unwrap_or_else(|| Errno::ESTALE.into())
    }
}
