//! Access to a file's content: its I/O lock, a sufficient lease, and loaded content.

use crate::file::Files;
use crate::file::content::Content;
use crate::file::inode::OpenInode;
use crate::file_info;
use rt::sync::{ReadGuard, WriteGuard};
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Error, InodeId, Refusal, Result};
use wire::{FileInfo, LeaseMode, MetaOp};

/// Pause before an operation whose lease has ended is restarted: the session is registering again.
const LEASE_PAUSE: Duration = Duration::from_millis(20);
/// First pause before the client asks again for a lease that was not granted; it doubles up to
/// `MAX_PAUSE`.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause between two requests for a lease.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// What an operation needs from a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeaseNeed {
    /// To read the current content.
    Read,
    /// To return content that the kernel will cache.
    Cache,
    /// To change content in place.
    Change,
    /// To change size or layout, or to know the exact end of the file.
    Exclusive,
}

impl LeaseNeed {
    pub(crate) fn is_met_by(self, lease: LeaseMode) -> bool {
        match self {
            LeaseNeed::Read => true,
            LeaseNeed::Cache => lease != LeaseMode::Shared,
            LeaseNeed::Change => lease != LeaseMode::Read,
            LeaseNeed::Exclusive => lease == LeaseMode::Write,
        }
    }
}

impl Files {
    /// Takes the I/O lock shared, with content loaded under a lease that meets `need`.
    pub(crate) async fn lock_shared<'a>(
        &self,
        inode: &'a OpenInode,
        need: LeaseNeed,
    ) -> Result<ReadGuard<'a>> {
        for attempt in 0.. {
            self.session.wait_while_suspended(inode.ino).await?;
            let guard = self.lock_io_shared(inode).await?;
            let (is_ready, is_tainted) = {
                let content = inode.content.lock();
                (content.is_ready(|_| need), content.is_tainted())
            };
            // Rare cases are boxed, to keep the futures of requests small.
            if is_ready && (!is_tainted || Box::pin(self.chunk_files.try_renew_tainted_epoch(inode)).await?) {
                return Ok(guard);
            }
            drop(guard);
            Box::pin(self.request_lease(inode, need, attempt)).await?;
        }
        unreachable!("the loop ends by returning")
    }

    /// Takes the I/O lock exclusively, with content loaded under a lease that meets `need`. `need`
    /// gets the loaded content, or default content if none is loaded.
    pub(crate) async fn lock_exclusive<'a>(
        &self,
        inode: &'a OpenInode,
        need: impl Fn(&Content) -> LeaseNeed,
    ) -> Result<WriteGuard<'a>> {
        for attempt in 0.. {
            match self.try_lock_exclusive(inode, &need).await? {
                Ok(guard) => return Ok(guard),
                Err(needed) => Box::pin(self.request_lease(inode, needed, attempt)).await?,
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Like [`Files::lock_exclusive`], for the kernel's write-back of mapped pages. It doesn't
    /// wait for the end of a recall: the recall waits until the kernel has dropped the pages, and
    /// the kernel waits until they are written.
    pub(crate) async fn lock_for_write_back<'a>(
        &self,
        inode: &'a OpenInode,
        need: impl Fn(&Content) -> LeaseNeed,
    ) -> Result<WriteGuard<'a>> {
        let until_ns =
            rt::monotonic_ns().saturating_add(self.session.request_timeout.get().as_nanos() as u64);
        for attempt in 0.. {
            let needed = match self.try_lock_exclusive(inode, &need).await? {
                Ok(guard) => return Ok(guard),
                Err(needed) => needed,
            };
            match self
                .session
                .leases
                .unless_recalled(inode.ino, Box::pin(self.request_lease(inode, needed, attempt)))
                .await
            {
                Some(acquired) => acquired?,
                None if Box::pin(self.load_during_recall(inode)).await? => {}
                // The recall has already unloaded the content, or hasn't begun and will wait for
                // this page: the write must not wait for its end.
                None if rt::monotonic_ns() < until_ns => rt::sleep(MIN_PAUSE).await,
                None => Box::pin(self.request_lease(inode, needed, attempt)).await?,
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Takes the I/O lock exclusively if the loaded content suffices; otherwise returns the need.
    async fn try_lock_exclusive<'a>(
        &self,
        inode: &'a OpenInode,
        need: &impl Fn(&Content) -> LeaseNeed,
    ) -> Result<std::result::Result<WriteGuard<'a>, LeaseNeed>> {
        self.session.wait_while_suspended(inode.ino).await?;
        let guard = self.lock_io_exclusive(inode).await?;
        let (is_ready, is_tainted) = {
            let content = inode.content.lock();
            (content.is_ready(need), content.is_tainted())
        };
        if is_ready && (!is_tainted || Box::pin(self.chunk_files.try_renew_tainted_epoch(inode)).await?) {
            return Ok(Ok(guard));
        }
        let content = inode.content.lock();
        Ok(Err(if content.phase.is_loaded() { need(&content) } else { need(&Content::default()) }))
    }

    /// Loads the service's answer while a recall is in progress, or raises the loaded content's
    /// lease, until the recall unloads it. So the kernel can write back the pages that the recall
    /// waits for. Returns false if that isn't possible or has been done already.
    ///
    /// Chunks are written as if the file were shared. The service records that this session changes
    /// them, and recalls leases that others may hold by now. It migrates no chunk file before this
    /// session reports the end. The service itself changes inline content.
    async fn load_during_recall(&self, inode: &OpenInode) -> Result<bool> {
        let is_known = inode.content.lock().is_certain();
        let info = if is_known { None } else { Some(self.open_info_once(inode.ino).await?) };
        let mut content = inode.content.lock();
        // Checked under this lock, under which the recall unloads. Content that it has unloaded
        // stays unloaded.
        if inode.pending_recalls.load(Ordering::Relaxed) == 0 {
            return Ok(false);
        }
        match info {
            Some(info) if !content.is_certain() => {
                content.load_info(info);
                if content.layout.is_some() {
                    content.unsynced.assume_unsynced();
                }
            }
            None if content.is_certain() && content.lease == LeaseMode::Read => {}
            _ => return Ok(false),
        }
        content.lease = if content.inline.is_some() { LeaseMode::Write } else { LeaseMode::Shared };
        content.has_only_written_chunks = false;
        Ok(true)
    }

    /// Takes a file's I/O lock shared, without a dirty extent (see `file::write_behind`).
    pub(crate) async fn lock_io_shared<'a>(&self, inode: &'a OpenInode) -> Result<ReadGuard<'a>> {
        loop {
            inode.wait_for_commit().await?;
            let guard = self
                .session
                .request_timeout
                .bound((inode.ino, "a change of its size or layout"), inode.io_lock.read())
                .await?;
            if self.write_behind.is_none() || inode.content.lock().dirty.is_none() {
                return Ok(guard);
            }
            drop(guard);
            drop(Box::pin(self.lock_io_exclusive(inode)).await?);
        }
    }

    /// Takes a file's I/O lock exclusively, without a dirty extent.
    pub(crate) async fn lock_io_exclusive<'a>(&self, inode: &'a OpenInode) -> Result<WriteGuard<'a>> {
        let guard = self.lock_io_exclusive_dirty(inode).await?;
        if self.write_behind.is_some() {
            self.flush_dirty(inode).await;
        }
        Ok(guard)
    }

    /// Takes a file's I/O lock exclusively, and leaves a dirty extent as it is.
    pub(crate) async fn lock_io_exclusive_dirty<'a>(&self, inode: &'a OpenInode) -> Result<WriteGuard<'a>> {
        inode.wait_for_commit().await?;
        self.session
            .request_timeout
            .bound((inode.ino, "operations on its content"), inode.io_lock.write())
            .await
    }

    /// Runs `attempt`, and repeats it if its lease has ended with the service that granted it.
    pub(crate) async fn while_lease_lasts<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let until_ns =
            rt::monotonic_ns().saturating_add(self.session.request_timeout.get().as_nanos() as u64);
        loop {
            match attempt().await {
                Err(error) if is_lease_over(&error) && rt::monotonic_ns() < until_ns => {
                    rt::sleep(LEASE_PAUSE).await;
                }
                // Applications don't know this error.
                Err(error) if is_lease_over(&error) => {
                    let message = "its lease ended repeatedly because the service that granted it restarted or was replaced";
                    return Err(Error::new(Errno::ETIMEDOUT, message).hint("repeat the operation"));
                }
                done => return done,
            }
        }
    }

    /// Makes sure that the service knows, by a lease, that this session uses the inode.
    pub(crate) async fn ensure_lease(&self, inode: &OpenInode, need: LeaseNeed) -> Result<()> {
        for attempt in 0.. {
            let stamp = self.session.leases.stamp_request();
            if self.session.leases.lease_covering(stamp, inode.ino).is_some_and(|mode| need.is_met_by(mode)) {
                return Ok(());
            }
            Box::pin(self.request_lease(inode, need, attempt)).await?;
        }
        unreachable!("the loop ends by returning")
    }

    /// Requests a lease and the content under it once. The caller must not hold an I/O lock: the
    /// answer may have to wait for a recall from this very session.
    async fn request_lease(&self, inode: &OpenInode, need: LeaseNeed, attempt: u32) -> Result<()> {
        self.session
            .request_timeout
            .bound((inode.ino, "the recall of its lease"), self.session.leases.wait_for_recall_end(inode.ino))
            .await?;
        let requested_lease =
            if self.session.leases.is_only_session() { None } else { Some(inode.lease_to_request(need)) };
        let generation = inode.content.lock().generation;
        let answer = self.session.query(MetaOp::Open { ino: inode.ino, requested_lease }).await?;
        let info = file_info(answer.reply)?;
        inode.note_changes(&info.attr);
        inode.atime_quiet_until_ns.store(0, Ordering::Relaxed);
        self.inodes.note_flags(info.attr.ino, answer.stamp, Some(&info.attr));
        let granted = {
            // The lease is checked under this lock, under which a recall unloads the content.
            let mut content = inode.content.lock();
            // Without leases, the generation shows whether an answer is outdated.
            let is_current = !self.session.leases.is_only_session() || content.generation == generation;
            let lease = self.session.leases.lease_covering(answer.stamp, inode.ino).filter(|_| is_current);
            lease.inspect(|&mode| content.load(info, mode)).is_some()
        };
        // After an insufficient grant the client asks for more without a pause. With one, other
        // sessions would take the weaker lease meanwhile, and the client would never get the
        // stronger one.
        if !granted {
            self.session.leases.mark_open(inode.ino);
            rt::sleep(MIN_PAUSE.saturating_mul(1 << attempt.min(10)).min(MAX_PAUSE)).await;
        }
        Ok(())
    }

    /// Returns the service's current information on a file, for one use.
    pub(crate) async fn open_info_once(&self, ino: InodeId) -> Result<FileInfo> {
        let mut info =
            file_info(self.session.query(MetaOp::Open { ino, requested_lease: None }).await?.reply)?;
        // Without a lease, the file may be truncated before its chunk files are read: a missing
        // part is no damage then.
        info.length_bounds.clear();
        self.session.leases.mark_open(ino);
        if self.inodes.open(ino).is_none() {
            self.inodes.note_unused(ino);
        }
        Ok(info)
    }

    /// Finds the current end of a file that others may also write, if the known size is less than
    /// `end`. The caller holds the I/O lock. Returns the generation for which the size is valid.
    ///
    /// # Errors
    /// `EndedLease`: the content was unloaded. A size without the rest would make the file read as
    /// zeros.
    pub(crate) async fn find_end(&self, inode: &OpenInode, end: u64) -> Result<u64> {
        let (layout, under) = {
            let content = inode.content.lock();
            content.check_generation(inode.ino, content.generation)?;
            let may_be_longer =
                content.lease == LeaseMode::Shared && content.inline.is_none() && end > content.size;
            (content.layout.clone().filter(|_| may_be_longer), content.under(inode.ino))
        };
        if let Some(layout) = layout {
            let measured = Box::pin(self.chunk_files.measure(under, &layout)).await?;
            let mut content = inode.content.lock();
            content.check_generation(inode.ino, under.generation)?;
            content.size = content.size.max(measured.end);
        }
        Ok(under.generation)
    }
}

impl OpenInode {
    /// Waits until an asynchronous create of the file is committed.
    ///
    /// # Errors
    /// Why the service has refused the file.
    pub(crate) async fn wait_for_commit(&self) -> Result<()> {
        match self.async_create() {
            // Boxed, since it is rare.
            Some(create) => Box::pin(async move { create.commit().await }).await,
            None => Ok(()),
        }
    }

    /// The lease that a request for `need` asks for.
    fn lease_to_request(&self, need: LeaseNeed) -> LeaseMode {
        let shared = {
            let content = self.content.lock();
            content.phase.is_loaded() && content.lease == LeaseMode::Shared
        };
        let contended = self.is_contended();
        let writers = self.writers.load(Ordering::Relaxed) > 0;
        match need {
            LeaseNeed::Change | LeaseNeed::Exclusive => LeaseMode::Write,
            // If this session shares the file already, a request for `Write` gets the exclusive
            // lease.
            LeaseNeed::Cache if writers || shared => LeaseMode::Write,
            LeaseNeed::Cache => LeaseMode::Read,
            LeaseNeed::Read if writers => LeaseMode::Write,
            LeaseNeed::Read if contended => LeaseMode::Shared,
            LeaseNeed::Read => LeaseMode::Read,
        }
    }
}

/// Whether an operation must start again under a new lease: its lease has ended, or no capability
/// of that lease is accepted.
pub(crate) fn is_lease_over(error: &Error) -> bool {
    matches!(error.errno, Errno::Refusal(Refusal::EndedLease | Refusal::ExpiredCapability))
}

pub(crate) fn ended_lease(ino: InodeId) -> Error {
    Error::new(
        Refusal::EndedLease,
        format!("the lease on inode {ino} has ended with the service that granted it"),
    )
    .hint("repeat the operation")
}
