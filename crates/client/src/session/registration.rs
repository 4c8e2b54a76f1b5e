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
use crate::file::inode::OpenInode;
use crate::kernel::page_fill::Bypass;
use crate::session::recall::RETRY_PAUSE;
use crate::session::services::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Error, HashSet, InodeId, PartitionId, Result};
use wire::MetaOp;

/// Maximum number of open inodes in one request: some 40 KiB, beside the asynchronous creates.
const OPENS_PER_REQUEST: usize = 4096;

/// How long the client waits for running requests before the session registers again.
const RUNNING_REQUESTS_WAIT: Duration = Duration::from_millis(500);
/// How long the kernel may take to drop a file before that. It takes milliseconds, unless it waits
/// for a page; see [`RUNNING_REQUESTS_WAIT`] and [`IN_FLIGHT_WAIT`] for the rest of the time that
/// sessions have to register again.
const PAGE_DROP_WAIT: Duration = Duration::from_secs(1);
/// How long, after that, the client waits for in-flight changes of chunk files: a change that
/// arrives after the service has granted leases to other sessions could overwrite their changes.
/// Together with [`RUNNING_REQUESTS_WAIT`] well below the time that sessions have to register
/// again. A target that doesn't answer for that long is down as a rule.
const IN_FLIGHT_WAIT: Duration = Duration::from_secs(5);
/// How long the kernel may take, after that, to drop all inodes that aren't open. It takes
/// microseconds each, unless all notifying threads wait for pages.
const OTHER_INODES_WAIT: Duration = Duration::from_secs(2);
/// Inodes that the kernel drops concurrently.
const MAX_CONCURRENT_DROPS: usize = 64;

/// What the kernel hasn't dropped in time.
struct NotDropped {
    open: Vec<Arc<OpenInode>>,
    closed: Vec<InodeId>,
}

impl NotDropped {
    fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_empty()
    }
}

impl Client {
    /// Registers the session with the cluster. Before that it gets no leases. Background tasks
    /// register it with services that aren't needed to find the root directory.
    pub async fn register(&self) -> Result<()> {
        let service = self.services.owner_of(InodeId::ROOT.partition()).map_err(|_| {
            Error::new(Errno::ENODEV, "no node of the cluster runs a metadata service")
                .hint("weft node list shows the services of each node")
        })?;
        loop {
            match self.register_at(&service).await {
                Err(error) if error.errno == Errno::EAGAIN => rt::sleep(RETRY_PAUSE).await,
                registered => return registered,
            }
        }
    }

    pub(crate) async fn register_at(&self, service: &Service) -> Result<()> {
        let reporting_process = self.reclaim_sizes(service).await?;
        // A service that doesn't know the session yet gets its locks when it takes partitions over.
        if service.is_registered() {
            self.reclaim_locks(service, |ino| self.services.owns(service, ino)).await?;
        }
        let in_use = self.reclaim_opens(service, |ino| self.services.owns(service, ino)).await?;
        let sent_ns = rt::monotonic_ns();
        let pending_creates = self.seal_creates(|dir| self.services.owns(service, dir));
        self.query_service(service, MetaOp::Register { in_use, pending_creates, reporting_process }).await?;
        self.note_answer(service, sent_ns);
        service.note_registration();
        Ok(())
    }

    /// Handles the restart of a service, which has lost the record of all leases, so that none of
    /// them is held any more. Other sessions can change nothing until this session is registered
    /// again; until then, everything that depends on these leases is dropped.
    pub(crate) async fn register_again(&self, service: &Service) {
        service.recalls_seen.store(0, Ordering::Release);
        let ended = self.leases.end_leases_of(service.node);
        let concerned = |ino: InodeId| self.services.owns(service, ino);
        let (closed, late) = self.drop_ended_leases(ended, concerned).await;
        while self.end_cause().is_none() && !service.is_gone() {
            match self.register_at(service).await {
                Ok(()) => break,
                Err(error) if error.errno == Errno::ESTALE => self.end_session(error).await,
                Err(error) => {
                    tracing::warn!(%error, "registering the session again failed");
                    self.note_failure(service, &error);
                    rt::sleep(RETRY_PAUSE).await;
                }
            }
        }
        self.reopen_gates(closed, late);
        self.wake_suspended();
    }

    /// Handles the move of partitions to a service from another one, which granted the leases that
    /// are held there.
    pub(crate) async fn follow_partitions(&self, service: &Service, partitions: &[PartitionId]) {
        tracing::info!(node = %service.node, partitions = partitions.len(), "following partitions that moved to another metadata service");
        let ended = self.leases.end_leases_in(partitions);
        let concerned = |ino: InodeId| partitions.contains(&ino.partition());
        let (closed, late) = self.drop_ended_leases(ended, concerned).await;
        match self.report_moved_partitions(service, partitions, concerned).await {
            Ok(()) => {}
            Err(error) if error.errno == Errno::ESTALE => self.end_session(error).await,
            // The service asks again.
            Err(error) => {
                tracing::warn!(node = %service.node, %error, "following partitions to another metadata service failed");
                rt::sleep(RETRY_PAUSE).await;
            }
        }
        self.reopen_gates(closed, late);
        self.wake_suspended();
    }

    /// Reports the session's state in partitions that a service has taken over.
    async fn report_moved_partitions(
        &self,
        service: &Service,
        partitions: &[PartitionId],
        concerned: impl Fn(InodeId) -> bool,
    ) -> Result<()> {
        let reporting_process = self.reclaim_sizes(service).await?;
        self.reclaim_locks(service, &concerned).await?;
        let in_use = self.reclaim_opens(service, &concerned).await?;
        let pending_creates = self.seal_creates(&concerned);
        let follow =
            MetaOp::Follow { partitions: partitions.to_vec(), in_use, pending_creates, reporting_process };
        self.query_service(service, follow).await.map(drop)
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
        in_use.iter().for_each(|&ino| self.leases.mark_open(ino));
        while in_use.len() > OPENS_PER_REQUEST {
            let inodes = in_use.split_off(in_use.len() - OPENS_PER_REQUEST);
            self.query_service(service, MetaOp::ReclaimOpens { inodes }).await?;
        }
        Ok(in_use)
    }

    /// Drops what was valid under leases that have ended, in this client's cache and the kernel's.
    /// Reads for the kernel's page cache are then blocked until the caller opens their gates. Also
    /// returns what the kernel hasn't dropped in time: the kernel waits for a page that a read is
    /// filling, and the read may be waiting for the registration. If the session waited for that in
    /// turn, the cluster would evict it for not registering.
    async fn drop_ended_leases(
        &self,
        ended: Vec<InodeId>,
        concerned: impl Fn(InodeId) -> bool,
    ) -> (Vec<Arc<OpenInode>>, NotDropped) {
        let ended: HashSet<InodeId> = ended.into_iter().collect();
        let open = self.inodes.open_inodes().into_iter();
        let open: Vec<_> = open.filter(|inode| concerned(inode.ino) || ended.contains(&inode.ino)).collect();
        let mut flushing = Vec::with_capacity(open.len());
        for inode in &open {
            inode.page_gate.close();
            // Answers in flight may contain a size from before this drop.
            self.inodes.note_report(inode.ino);
            let mut content = inode.content.lock();
            content.note_last_size();
            flushing.push(inode.take_dirty(&mut content));
            content.unload();
        }
        let invalidations = open.iter().zip(flushing).map(|(inode, flushing)| async move {
            // Before other sessions get leases.
            if let Some(flushing) = flushing {
                self.flush_extent(inode, flushing).await;
            }
            let invalidated =
                rt::timeout(PAGE_DROP_WAIT, self.kernel.drop_cached(inode.ino, Some(inode), Bypass::Once))
                    .await;
            // A task that holds the lock may be waiting for the registration; one that only writes
            // chunks will soon release it.
            if rt::timeout(RUNNING_REQUESTS_WAIT, inode.io_lock.write()).await.is_none() {
                tracing::debug!(ino = %inode.ino, "a request is still running during a change of the metadata service");
                rt::timeout(IN_FLIGHT_WAIT, inode.in_flight.wait_for_all()).await;
            }
            invalidated.is_none().then(|| Arc::clone(inode))
        });
        let late = rt::join_all(invalidations.collect()).await.into_iter().flatten().collect();
        let closed = ended.iter().copied().filter(|&ino| self.inodes.open(ino).is_none()).collect();
        let closed = self.drop_closed_inodes(closed).await;
        (open, NotDropped { open: late, closed })
    }

    /// Has the kernel drop inodes that are not open; returns those that it hasn't dropped in time.
    async fn drop_closed_inodes(&self, closed: Vec<InodeId>) -> Vec<InodeId> {
        let until_ns = rt::monotonic_ns() + OTHER_INODES_WAIT.as_nanos() as u64;
        let mut late = Vec::new();
        for batch in closed.chunks(MAX_CONCURRENT_DROPS) {
            let remaining_time = Duration::from_nanos(until_ns.saturating_sub(rt::monotonic_ns()));
            let invalidations = batch.iter().map(|&ino| async move {
                let invalidated =
                    rt::timeout(remaining_time, self.kernel.drop_cached(ino, None, Bypass::Once)).await;
                invalidated.is_none().then_some(ino)
            });
            late.extend(rt::join_all(invalidations.collect()).await.into_iter().flatten());
        }
        if !late.is_empty() {
            tracing::warn!(
                inodes = late.len(),
                "the kernel waits for pages, and drops its cached inodes once it has them"
            );
        }
        late
    }

    /// Admits reads for the kernel's page cache again, once the kernel has dropped what it couldn't
    /// before: the reads that it waited for now get their answers. Runs as a separate task: a page
    /// may have to come from a storage service that doesn't answer, and meanwhile the session must
    /// handle recalls.
    fn reopen_gates(&self, closed: Vec<Arc<OpenInode>>, late: NotDropped) {
        let Some(client) = self.weak_self.upgrade().filter(|_| !late.is_empty()) else {
            closed.iter().for_each(|inode| inode.page_gate.open());
            return;
        };
        rt::spawn(async move {
            for batch in late.closed.chunks(MAX_CONCURRENT_DROPS) {
                rt::join_all(
                    batch.iter().map(|&ino| client.kernel.drop_cached(ino, None, Bypass::Once)).collect(),
                )
                .await;
            }
            let invalidations = late
                .open
                .iter()
                .map(|inode| client.kernel.drop_cached(inode.ino, Some(inode), Bypass::Once))
                .collect();
            rt::join_all(invalidations).await;
            closed.iter().for_each(|inode| inode.page_gate.open());
        });
    }

    /// Ends the session, as the cluster has: every request fails and every wait ends.
    pub(crate) async fn end_session(&self, error: Error) {
        if self.end(error) {
            self.drop_everything().await;
        }
    }

    /// Drops everything that the ended session cached, in this client and the kernel. The kernel
    /// tries to write dirty pages of mappings meanwhile, and loses them, since the session's files
    /// refuse writes.
    pub(crate) async fn drop_everything(&self) {
        let mut inodes = self.leases.end_all();
        let open = self.inodes.open_inodes();
        // The service recovers written and unreported sizes from the chunk files.
        open.iter().for_each(|inode| inode.content.lock().unload());
        inodes.extend(open.iter().map(|inode| inode.ino));
        inodes.sort_unstable();
        inodes.dedup();
        self.drop_inodes(&inodes, None).await;
        self.caches_dropped.set();
    }

    /// Waits until the cluster has ended the session and neither the client nor the kernel caches
    /// anything of it; returns why it has ended.
    pub(crate) async fn wait_for_end(&self) -> Error {
        self.caches_dropped.wait().await;
        self.end_cause().unwrap_or_else(|| Errno::ESTALE.into())
    }
}
