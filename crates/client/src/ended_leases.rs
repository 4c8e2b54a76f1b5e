//! What the client gives up when leases end: by a recall, by their release, by their expiry, with
//! the service that granted them, or with the session. `session::leases` describes the order of the
//! steps of a recall, and why there is no deadlock.

use crate::Client;
use crate::file::inode::{InodeUse, OpenInode};
use crate::kernel::invalidation::KernelCaches;
use crate::kernel::page_fill::Bypass;
use crate::session::lease_expiry::CHECK_INTERVAL;
use crate::session::lease_holder::{Concerned, GivenBack, LeaseHolder, LocalFuture, Resume};
use crate::session::leases::RecallTerms;
use crate::session::recall::warn_if_slow;
use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{HashSet, InodeId};
use wire::{AsyncChange, AsyncCreate, LeaseMode, MetaOp, ReportedSize, SlotSequence};

/// How long unused inodes are collected before their leases are released.
const RELEASE_DELAY: Duration = Duration::from_millis(200);

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
/// How long one inode may delay others: a page that waits for the service keeps its inode from
/// being dropped, and there may be many such.
const SLOW_AFTER: Duration = Duration::from_millis(20);
/// How long the client waits for these in the end, all together. Then it skips them, since no
/// application can read those pages.
const SLOW_DROPS_TIMEOUT: Duration = Duration::from_millis(500);

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

impl LeaseHolder for Client {
    fn finish_before<'a>(
        &'a self,
        op: &'a MetaOp,
        slot_sequence: Option<SlotSequence>,
    ) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            // An asynchronous change depends on no pending create.
            let is_async = self.names.changes.is_own(slot_sequence);
            if !is_async {
                self.names.async_creates.commit_before(op, &self.inodes).await;
            }
            self.names.changes.wait_before(op, slot_sequence).await;
            if !is_async {
                self.inodes.forget_created_attrs(op);
            }
        })
    }

    fn give_back(&self, ino: InodeId, terms: RecallTerms) -> LocalFuture<'_, GivenBack> {
        Box::pin(async move {
            // Applications have asynchronously created files: the next session must see them.
            let dir = self.names.lease_key(ino).inode();
            warn_if_slow((ino, "finishing asynchronous changes"), self.names.finish_about(dir)).await;
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
                warn_if_slow(
                    (ino, "reporting its size"),
                    self.files.report_and_unload(inode, terms.remaining),
                )
                .await;
                self.inodes.drop_reported(ino);
            }
            // Checked before the inode's usage: a file whose create completes in between is in use
            // already.
            let is_protected = self.names.protect_if_in_flight(ino);
            let in_use = is_protected || self.inodes.inode_use(ino) == InodeUse::Open;
            let inodes = self.inodes.clone();
            let resume = Box::new(move || {
                if let Some(inode) = &inode {
                    inode.page_gate.open();
                }
                // A protected inode is released when its create has completed.
                if !is_protected && inodes.inode_use(ino) != InodeUse::Open {
                    inodes.note_unused(ino);
                }
            });
            GivenBack { in_use, resume }
        })
    }

    fn drop_ended_leases<'a>(
        &'a self,
        ended: Vec<InodeId>,
        concerned: Concerned<'a>,
    ) -> LocalFuture<'a, Resume> {
        Box::pin(self.drop_under_ended_leases(ended, concerned))
    }

    /// The kernel tries to write dirty pages of mappings meanwhile, and loses them, since the
    /// session's files refuse writes.
    fn drop_everything(&self, leased: Vec<InodeId>) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            let mut inodes = leased;
            let open = self.inodes.open_inodes();
            // The service recovers written and unreported sizes from the chunk files.
            open.iter().for_each(|inode| inode.content.lock().unload());
            inodes.extend(open.iter().map(|inode| inode.ino));
            inodes.sort_unstable();
            inodes.dedup();
            self.drop_inodes(&inodes, None).await;
        })
    }

    fn wake(&self) {
        self.inodes.wake();
    }

    fn inodes_in_use(&self) -> Vec<InodeId> {
        self.inodes.in_use()
    }

    fn take_sizes_to_report(&self) -> Vec<ReportedSize> {
        self.inodes.take_sizes_to_report()
    }

    fn pending_changes(&self, concerned: Concerned<'_>) -> Vec<AsyncChange> {
        self.names.changes.pending_in(concerned)
    }

    fn seal_creates(&self, concerned: Concerned<'_>) -> Vec<AsyncCreate> {
        self.names.async_creates.seal_in(concerned)
    }
}

impl Client {
    /// Releases unused leases, for as long as the session lives.
    pub(crate) async fn release_leases(self: Arc<Self>) {
        while self.session.end_cause().is_none() {
            self.inodes.wait_for_idle().await;
            rt::sleep(RELEASE_DELAY).await;
            let idle = self.inodes.take_idle().into_iter().filter(|&ino| self.release_if_unused(ino));
            self.session.release(idle.collect()).await;
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
                (self.session.leases.mode(ino).is_some() || self.session.leases.is_marked_open(ino))
                    && self.session.leases.drop_lease(ino)
            }
            // A shared lease caches nothing for later use, and keeps other sessions from caching.
            InodeUse::Known => {
                let is_unneeded = match self.session.leases.mode(ino) {
                    Some(mode) => mode == LeaseMode::Shared,
                    None => self.session.leases.is_marked_open(ino),
                };
                is_unneeded && self.session.leases.drop_lease(ino)
            }
            InodeUse::Open => false,
        });
        if is_gone {
            self.names.end_lease(ino);
        }
        is_gone
    }

    /// Suspends leases that expire, and drops what is cached under them, for as long as the session
    /// lives.
    pub(crate) async fn watch_lease_expiry(self: Arc<Self>) {
        while self.session.end_cause().is_none() {
            rt::sleep(CHECK_INTERVAL).await;
            let open = || self.inodes.open_inodes().iter().map(|inode| inode.ino).collect();
            let inodes = self.session.suspend_expired(open);
            let was_overdue = self.session.leases.is_check_overdue();
            self.session.leases.note_expiry_check();
            if was_overdue {
                self.session.wake_suspended();
            }
            self.drop_inodes(&inodes, Some(SLOW_DROPS_TIMEOUT)).await;
        }
    }

    /// Has the kernel drop inodes. A slow one delays no other; with a `limit`, slow ones are waited
    /// for that long in total.
    async fn drop_inodes(&self, inodes: &[InodeId], limit: Option<Duration>) {
        let forget = async |ino| {
            let inode = self.inodes.open(ino);
            self.kernel.drop_cached(ino, inode.as_deref(), Bypass::Once).await;
        };
        let (next, slow) = (RefCell::new(inodes.iter()), RefCell::new(Vec::new()));
        let drop_next = async || {
            loop {
                let Some(&ino) = next.borrow_mut().next() else { return };
                let mut invalidation = Box::pin(forget(ino));
                if rt::timeout(SLOW_AFTER, invalidation.as_mut()).await.is_none() {
                    slow.borrow_mut().push(invalidation);
                }
            }
        };
        rt::join_all((0..MAX_CONCURRENT_DROPS.min(inodes.len())).map(|_| drop_next()).collect()).await;
        let slow = pin!(rt::join_all(slow.take()));
        match limit {
            Some(limit) => _ = rt::timeout(limit, slow).await,
            None => _ = slow.await,
        }
    }

    /// Drops what was valid under leases that have ended, in this client's cache and the kernel's.
    /// Reads for the kernel's page cache are then blocked until the caller opens their gates. Also
    /// returns what the kernel hasn't dropped in time: the kernel waits for a page that a read is
    /// filling, and the read may be waiting for the registration. If the session waited for that in
    /// turn, the cluster would evict it for not registering.
    async fn drop_under_ended_leases(&self, ended: Vec<InodeId>, concerned: Concerned<'_>) -> Resume {
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
                self.files.flush_extent(inode, flushing).await;
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
        let (kernel, late) = (self.kernel.clone(), NotDropped { open: late, closed });
        Box::new(move || reopen_gates(kernel, open, late))
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
}

/// Admits reads for the kernel's page cache again, once the kernel has dropped what it couldn't
/// before: the reads that it waited for now get their answers. Runs as a separate task: a page
/// may have to come from a storage service that doesn't answer, and meanwhile the session must
/// handle recalls.
fn reopen_gates(kernel: Arc<KernelCaches>, closed: Vec<Arc<OpenInode>>, late: NotDropped) {
    if late.is_empty() {
        closed.iter().for_each(|inode| inode.page_gate.open());
        return;
    }
    rt::spawn(async move {
        for batch in late.closed.chunks(MAX_CONCURRENT_DROPS) {
            rt::join_all(batch.iter().map(|&ino| kernel.drop_cached(ino, None, Bypass::Once)).collect())
                .await;
        }
        let invalidations =
            late.open.iter().map(|inode| kernel.drop_cached(inode.ino, Some(inode), Bypass::Once)).collect();
        rt::join_all(invalidations).await;
        closed.iter().for_each(|inode| inode.page_gate.open());
    });
}
