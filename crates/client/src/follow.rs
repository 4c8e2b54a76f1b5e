//! Registration with metadata services: at the start, after a restart of a service, and when
//! partitions move between services.
//!
//! In all three cases the service has no record of this session's leases on the inodes concerned.
//! It grants nothing to other sessions until this session has reported that it relies on no lease
//! any more (or has ended). So the client first drops everything, in its own cache and the
//! kernel's, and then registers, with a list of its open inodes. The service then recovers what was
//! written and not reported.
//!
//! The new owner reports that a partition has moved ([`wire::MetaReply::Adopted`]), not the map:
//! only the service knows which sessions it waits for, and a partition may have moved away and back
//! between two maps. The client doesn't ask the old owner: it has released the partition, or is
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

/// Maximum number of open inodes in one request: some 40 KiB, beside the asynchronous creates.
const OPENS_PER_REQUEST: usize = 4096;

/// How long the client waits for running requests before the session registers again.
const SOON: Duration = Duration::from_millis(500);
/// How long the kernel may take to drop a file before that. It takes milliseconds, unless it waits
/// for a page; see [`SOON`] and [`LANDING_TIME`] for the rest of the time that sessions have to
/// register again.
const PAGE_TIME: Duration = Duration::from_secs(1);
/// How long, after that, the client waits for in-flight changes of chunk files: a change that
/// arrives after the service has granted leases to other sessions could overwrite their changes.
/// Together with [`SOON`] well below the time that sessions have to register again. A target that
/// doesn't answer for that long is down as a rule.
const LANDING_TIME: Duration = Duration::from_secs(5);
/// How long the kernel may take, after that, to drop all inodes that aren't open. It takes
/// microseconds each, unless all notifying threads wait for pages.
const REST_TIME: Duration = Duration::from_secs(2);
/// Inodes that the kernel drops concurrently.
const AT_ONCE: usize = 64;

/// What the kernel hasn't dropped in time.
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
    /// Registers the session with the cluster. Before that it gets no leases. Background tasks
    /// register it with services that aren't needed to find the root directory.
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
        // A service that doesn't know the session yet gets its locks when it takes partitions over.
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

    /// Handles the restart of a service, which has lost the record of all leases, so that none of
    /// them is held any more. Other sessions can change nothing until this session is registered
    /// again; until then, everything that depends on these leases is dropped.
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

    /// Handles the move of partitions to a service from another one, which granted the leases that
    /// are held there.
    pub(crate) async fn follow(&self, service: &Service, partitions: &[PartitionId]) {
        tracing::info!(node = %service.node, partitions = partitions.len(), "following partitions to another metadata service");
        let ended = self.leases.end_those_in(partitions);
        let concerned = |ino: InodeId| partitions.contains(&ino.partition());
        let (closed, late) = self.forget_ended(ended, concerned).await;
        match self.tell_follow(service, partitions, concerned).await {
            Ok(()) => {}
            Err(error) if error.errno == Errno::ESTALE => self.lose_session(error).await,
            // The service asks again.
            Err(error) => {
                tracing::warn!(node = %service.node, %error, "following partitions failed");
                rt::sleep(RETRY).await;
            }
        }
        self.end_forgetting(closed, late);
        self.look_again();
    }

    /// Reports the session's state in partitions that a service has taken over.
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

    /// Reports the inodes of open files to a service. Returns the last of them, for the request by
    /// which the session registers or follows a partition.
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

    /// Drops what was valid under leases that have ended, in this client's cache and the kernel's.
    /// Reads for the kernel's page cache are then blocked until the caller opens their gates. Also
    /// returns what the kernel hasn't dropped in time: the kernel waits for a page that a read is
    /// filling, and the read may be waiting for the registration. If the session waited for that in
    /// turn, the cluster would evict it for not registering.
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
            // Answers in flight may contain a size from before this drop.
            self.inodes.reported(inode.ino);
            let mut content = inode.content.lock();
            content.note_last_size();
            left.push(inode.take_kept(&mut content));
            content.unload();
        }
        let forgetting = open.iter().zip(left).map(|(inode, left)| async move {
            // Before other sessions get leases.
            if let Some(left) = left {
                self.write_left(inode, left).await;
            }
            let forgotten = within(PAGE_TIME, pin!(self.uncache(inode.ino, Some(inode), Pass::Once))).await;
            // A task that holds the lock may be waiting for the registration; one that only writes
            // chunks will soon release it.
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

    /// Has the kernel drop inodes that are not open; returns those that it hasn't dropped in time.
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

    /// Admits reads for the kernel's page cache again, once the kernel has dropped what it couldn't
    /// before: the reads that it waited for now get their answers. Runs as a separate task: a page
    /// may have to come from a storage service that doesn't answer, and meanwhile the session must
    /// handle recalls.
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

    /// Ends the session, as the cluster has: every request fails and every wait ends.
    pub(crate) async fn lose_session(&self, error: Error) {
        if self.end(error) {
            self.forget_everything().await;
        }
    }

    /// Drops everything that the ended session cached, in this client and the kernel. The kernel
    /// tries to write dirty pages of mappings meanwhile, and loses them, since the session's files
    /// refuse writes.
    pub(crate) async fn forget_everything(&self) {
        let mut inodes = self.leases.end_all();
        let open = self.inodes.open_inodes();
        // The service recovers written and unreported sizes from the chunk files.
        open.iter().for_each(|inode| inode.content.lock().unload());
        inodes.extend(open.iter().map(|inode| inode.ino));
        inodes.sort_unstable();
        inodes.dedup();
        self.forget_inodes(&inodes, None).await;
        self.forgotten.set();
    }

    /// Waits until the cluster has ended the session and neither the client nor the kernel caches
    /// anything of it; returns why it has ended.
    pub(crate) async fn lost(&self) -> Error {
        self.forgotten.wait().await;
        self.over().unwrap_or_else(|| Errno::ESTALE.into())
    }
}
