//! Open files: the operations of a descriptor between open and close.

use crate::cache::pending_create::FirstWrite;
use crate::entry;
use crate::file::Files;
use crate::file::access::LeaseNeed;
use crate::file::chunk_files::lease_epoch::LeaseContext;
use crate::file::chunk_files::striping::{ChunkWrite, Chunked};
use crate::file::content::phase::Event;
use crate::file::content::{Content, LengthBounds};
use crate::file::inode::OpenInode;
use crate::file::size_recovery::LateWrite;
use crate::kernel::page_cache::{FillBarrier, Place};
use crate::kernel::page_fill::{Admission, Bypass};
use bytes::Bytes;
use rt::IoBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::{ByteRange, Credentials, Errno, InodeId, Layout, Result, SetAttr};
use wire::{LeaseMode, MetaOp};

/// Mask of the access mode in the flags of `open(2)`.
pub(super) const O_ACCMODE: u32 = 0o3;

/// An open file.
pub struct Handle {
    pub(crate) inode: Arc<OpenInode>,
    /// Opened for writing.
    writable: bool,
    /// Counted among the inode's writers.
    is_writer: AtomicBool,
    /// Opened read-only, under a lease that permits caching of content.
    may_cache: AtomicBool,
    /// The file was append-only when it was opened, and still is.
    pub(crate) append_only: AtomicBool,
    /// Number of losses that this handle has reported.
    pub(crate) losses_reported: AtomicU64,
    /// Number of failed delayed writes that this handle has reported.
    pub(crate) failures_reported: AtomicU64,
}

/// How the kernel may cache the content of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// Content read with [`ReadOptions::cached`] may be cached until an [`crate::Invalidate`] call.
    Cached,
    /// Every read and write is passed to the client.
    Direct,
}

impl Handle {
    pub(crate) fn new(inode: Arc<OpenInode>, flags: u32) -> Arc<Handle> {
        let writable = flags & O_ACCMODE != 0;
        if writable {
            inode.writers.fetch_add(1, Ordering::Relaxed);
        }
        let (losses, failures) = {
            let content = inode.content.lock();
            (content.loss_count(), content.flush_failures.count())
        };
        Arc::new(Handle {
            inode,
            writable,
            is_writer: AtomicBool::new(writable),
            may_cache: AtomicBool::new(false),
            append_only: AtomicBool::new(false),
            losses_reported: AtomicU64::new(losses),
            failures_reported: AtomicU64::new(failures),
        })
    }

    /// Marks the handle as no longer writing. The report of the file's last use runs concurrently
    /// with later opens of the file.
    pub(crate) fn end_writing(&self) {
        if self.is_writer.swap(false, Ordering::Relaxed) {
            self.inode.writers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether it was opened for writing.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// The inode of the open file.
    pub fn ino(&self) -> InodeId {
        self.inode.ino
    }

    /// Permits caching of content if `may`, for a read-only handle of a file that no session is
    /// changing. Otherwise a kernel may return zeros: it looks up a page, and reads the file's size
    /// afterwards. If the file has grown meanwhile, the kernel takes the rest of the old page for
    /// zeros, even if the page has been dropped by then.
    fn permit_caching(&self, may: bool) {
        if may && !self.writable && !self.inode.is_recently_changed() {
            self.may_cache.store(true, Ordering::Relaxed);
        }
    }

    /// How its content may be cached while other sessions exist.
    pub fn caching(&self) -> Caching {
        if self.may_cache.load(Ordering::Relaxed) { Caching::Cached } else { Caching::Direct }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end_writing();
    }
}

/// Options of a read.
#[derive(Clone, Copy, Default, Debug)]
pub struct ReadOptions {
    /// Bypasses every cache (`O_DIRECT`).
    pub direct: bool,
    /// The kernel caches the result until it is told to drop it.
    pub cached: bool,
    /// Doesn't update the access time (`O_NOATIME`).
    pub no_atime: bool,
}

/// Options of a write.
#[derive(Clone, Copy, Default, Debug)]
pub struct WriteOptions {
    /// Bypasses every cache (`O_DIRECT`).
    pub direct: bool,
    /// On disk before the call returns (`O_SYNC`, `O_DSYNC`).
    pub durable: bool,
    /// Clears setuid and setgid.
    pub kill_suid_sgid: bool,
    /// At the current end of the file (`O_APPEND`); the offset is ignored.
    pub append: bool,
    /// Through a descriptor with `O_APPEND`, also if the kernel gives the offset.
    pub o_append: bool,
    /// Write-back from the kernel's page cache: no page is outdated by it.
    pub written_back: bool,
}

/// A write to execute.
struct PendingWrite<'a> {
    offset: u64,
    buf: &'a IoBuf,
    how: WriteOptions,
    /// Where it was written under a lease that had ended by then, so that the client doesn't know
    /// whether the file extends to there.
    answered_late: Option<LateWriteSite>,
}

impl PendingWrite<'_> {
    fn range_at(&self, offset: u64) -> ByteRange {
        ByteRange::at(offset, self.buf.len() as u64)
    }
}

struct LateWriteSite {
    offset: u64,
    layout: Layout,
}

/// State of the file for which a write was prepared.
#[derive(Clone, Copy)]
struct PreparedState {
    under: LeaseContext,
    lease: LeaseMode,
    size: u64,
}

impl PreparedState {
    fn of(ino: InodeId, content: &Content) -> PreparedState {
        PreparedState { under: content.under(ino), lease: content.lease, size: content.size }
    }
}

/// The first step of a write.
enum Prepared {
    /// Write to these groups.
    Chunks(Arc<Layout>, LengthBounds),
    /// Change the layout first, under the exclusive I/O lock.
    ChangeLayout,
}

impl Files {
    pub(super) async fn ensure_open_lease(&self, handle: &Handle, flags: u32) -> Result<()> {
        if !self.session.leases.is_only_session() {
            let need = if handle.writable { LeaseNeed::Read } else { LeaseNeed::Cache };
            self.ensure_lease(&handle.inode, need).await?;
            if need == LeaseNeed::Cache {
                handle.inode.wait_for_writer_release().await;
            }
            handle.permit_caching(need == LeaseNeed::Cache);
        }
        self.check_write_flags(handle, flags).await
    }

    /// Makes sure that the service knows that a new file is open, or one that was found and opened
    /// with these flags.
    pub(super) async fn ensure_created_lease(&self, handle: &Handle, found_with: Option<u32>) -> Result<()> {
        let mut held = self.ensure_lease(&handle.inode, LeaseNeed::Read).await;
        if let (Ok(()), Some(flags)) = (&held, found_with) {
            held = Box::pin(self.check_write_flags(handle, flags)).await;
        }
        if let Err(error) = held {
            self.end_use(&handle.inode).await;
            self.inodes.forget(handle.ino(), 1);
            return Err(error);
        }
        let stamp = self.session.leases.stamp_request();
        handle.permit_caching(self.session.leases.is_cacheable(stamp, handle.ino()));
        Ok(())
    }

    /// Fills `buf` from `offset`; returns how many of its bytes lie before the end of the file.
    pub(crate) async fn read(
        &self,
        handle: &Arc<Handle>,
        offset: u64,
        buf: IoBuf,
        how: ReadOptions,
    ) -> Result<usize> {
        let read = async || self.read_now(&handle.inode, offset, buf.clone(), how).await;
        let len = self.while_lease_lasts(read).await?;
        if len > 0 && !how.no_atime {
            self.note_read(&handle.inode);
        }
        Ok(len)
    }

    async fn read_now(&self, inode: &OpenInode, offset: u64, buf: IoBuf, how: ReadOptions) -> Result<usize> {
        let _noted = how.cached.then(|| inode.page_gate.count_read());
        if !how.cached || self.session.leases.is_only_session() {
            let _shared = self.lock_shared(inode, LeaseNeed::Read).await?;
            return self.read_loaded(inode, offset, buf, how).await;
        }
        self.read_cached(inode, offset, buf, how).await
    }

    /// Reads content that the kernel will cache.
    async fn read_cached(
        &self,
        inode: &OpenInode,
        offset: u64,
        buf: IoBuf,
        how: ReadOptions,
    ) -> Result<usize> {
        let range = ByteRange::at(offset, buf.len() as u64);
        loop {
            let entry = inode.page_gate.enter(range);
            let admission = self
                .session
                .request_timeout
                .bound((inode.ino, "a write or the recall of its lease"), entry)
                .await?;
            let entering = self.lock_shared(inode, LeaseNeed::Cache);
            let guard = match admission {
                Admission::Open => inode.page_gate.unless_closed(entering).await,
                Admission::Bypassed(Bypass::UnderLease) => inode.page_gate.unless_bypassed(entering).await,
                Admission::Bypassed(Bypass::Once) => {
                    return Box::pin(self.read_during_recall(inode, offset, buf, how)).await;
                }
            };
            let Some(guard) = guard else {
                if admission == Admission::Open {
                    continue;
                }
                return Box::pin(self.read_during_recall(inode, offset, buf, how)).await;
            };
            let _shared = guard?;
            // A recall that closed the gate after this read had passed it waits for the I/O lock,
            // or tells the kernel afterwards.
            if admission != Admission::Open || inode.page_gate.is_open() {
                return self.read_loaded(inode, offset, buf, how).await;
            }
        }
    }

    /// Reads content that the kernel will have to drop at once. The lease hasn't been given back
    /// yet, so loaded content is still valid. If none is loaded, one answer of the service is used
    /// for this read alone.
    async fn read_during_recall(
        &self,
        inode: &OpenInode,
        offset: u64,
        buf: IoBuf,
        how: ReadOptions,
    ) -> Result<usize> {
        self.session.wait_while_suspended(inode.ino).await?;
        let _shared = self.lock_io_shared(inode).await?;
        if inode.content.lock().is_certain() {
            return self.read_loaded(inode, offset, buf, how).await;
        }
        let mut content = Content::default();
        content.load_info(self.open_info_once(inode.ino).await?);
        self.read_content(ReadState::of(inode.ino, &content), offset, buf, how).await
    }

    async fn read_loaded(
        &self,
        inode: &OpenInode,
        offset: u64,
        buf: IoBuf,
        how: ReadOptions,
    ) -> Result<usize> {
        let generation = self.find_end(inode, offset.saturating_add(buf.len() as u64)).await?;
        let view = {
            let content = inode.content.lock();
            content.check_generation(inode.ino, generation)?;
            ReadState::of(inode.ino, &content)
        };
        self.read_content(view, offset, buf, how).await
    }

    async fn read_content(
        &self,
        view: ReadState,
        offset: u64,
        buf: IoBuf,
        how: ReadOptions,
    ) -> Result<usize> {
        let len = view.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        if let Some(inline) = &view.inline {
            copy_inline(inline, offset, &buf, len);
            return Ok(len);
        }
        let Some(layout) = view.layout else {
            buf.zero(0..len);
            return Ok(len);
        };
        // Whole blocks permit the direct path for the last, partial block of a file.
        let whole = len.next_multiple_of(types::BLOCK_SIZE).min(buf.len());
        let path = self.chunk_files.path_of(how.direct, whole);
        let chunked = Chunked::new(&layout, &view.length_bounds);
        self.chunk_files.read_chunks(view.under, chunked, offset, buf.slice(0..whole), path).await?;
        Ok(len)
    }

    /// Writes all of `buf` at `offset`; returns its length.
    pub(crate) async fn write(
        &self,
        handle: &Arc<Handle>,
        offset: u64,
        buf: IoBuf,
        how: WriteOptions,
    ) -> Result<usize> {
        let (inode, len) = (&handle.inode, buf.len());
        if len == 0 {
            return Ok(0);
        }
        handle.ensure_append_only(how.append || how.o_append)?;
        // The next read is the first one after a change.
        inode.atime_quiet_until_ns.store(0, Ordering::Relaxed);
        let at = (!how.append).then_some(offset);
        let create = inode.async_create().filter(|_| !how.durable && !how.written_back);
        if create.as_ref().is_some_and(|create| create.write(at, &buf)) {
            return Ok(len);
        }
        let range = ByteRange::at(offset, len as u64);
        let place = if how.append { Place::End } else { Place::At(range) };
        let mut fill_barrier = if how.written_back || self.session.leases.is_only_session() {
            None
        } else {
            Some(self.kernel.block_page_fills(inode, place).await)
        };
        let mut is_done = match create {
            Some(create) => {
                let first = FirstWrite { buf: buf.clone(), direct: how.direct };
                Box::pin(async move { create.commit_with(at, first).await }).await?
            }
            None => false,
        };
        if !is_done && self.write_behind.is_some() {
            is_done = Box::pin(self.delay_write(handle, offset, &buf, how)).await?;
        }
        let kill =
            !is_done && self.write_under_a_lease(inode, offset, &buf, how, fill_barrier.as_mut()).await?;
        if kill {
            Box::pin(self.kill_suid_sgid(inode)).await?;
        }
        if !how.written_back {
            self.kernel.drop_refilled_pages(inode, fill_barrier).await;
        }
        if how.direct && self.session.leases.is_only_session() {
            self.kernel.drop_refilled_range(inode, range).await;
        }
        if how.durable {
            Box::pin(self.sync_inode(inode)).await?;
            handle.report_loss()?;
        }
        Ok(len)
    }

    /// Clears setuid and setgid if they are set. The caller must not hold the I/O lock: this may
    /// have to wait until other sessions give up their leases, and they for ours.
    async fn kill_suid_sgid(&self, inode: &OpenInode) -> Result<()> {
        let set = SetAttr { kill_suid_sgid: true, ..SetAttr::default() };
        self.change_as_client(MetaOp::Setattr { ino: inode.ino, set }).await?;
        self.kernel.drop_cached_attributes(inode.ino).await;
        Ok(())
    }

    /// Clears setuid and setgid after a change by `who`, for operations for which the kernel
    /// doesn't decide that: for every user except root.
    pub(crate) async fn clear_suid_sgid(&self, handle: &Handle, who: Credentials) -> Result<()> {
        let clears = who.uid != 0 && std::mem::take(&mut handle.inode.content.lock().has_suid_sgid);
        if clears { self.kill_suid_sgid(&handle.inode).await } else { Ok(()) }
    }

    /// Writes, and repeats the write if its lease has ended with the service that granted it.
    async fn write_under_a_lease(
        &self,
        inode: &OpenInode,
        offset: u64,
        buf: &IoBuf,
        how: WriteOptions,
        mut fill_barrier: Option<&mut FillBarrier<'_>>,
    ) -> Result<bool> {
        let mut write = PendingWrite { offset, buf, how, answered_late: None };
        loop {
            let written =
                self.while_lease_lasts(async || match self.write_chunked(inode, &mut write).await? {
                    Some(kill) => Ok(Some(kill)),
                    None => {
                        Box::pin(self.write_with_layout_change(inode, &mut write, fill_barrier.as_deref()))
                            .await
                    }
                });
            if let Some(kill) = written.await? {
                return Ok(kill);
            }
            // Reads have filled pages since the kernel dropped them.
            let bypasses = self.kernel.drop_cached(inode.ino, Some(inode), Bypass::UnderLease).await;
            fill_barrier.iter_mut().for_each(|fill_barrier| fill_barrier.bypasses = bypasses);
        }
    }

    /// The common write: the file is in chunks and this session may change them. Returns `None` if
    /// the file must be prepared first; else whether setuid and setgid are to be cleared.
    async fn write_chunked(&self, inode: &OpenInode, write: &mut PendingWrite<'_>) -> Result<Option<bool>> {
        let _shared = self.lock_io_shared(inode).await?;
        let (prepared, start) = {
            let content = inode.content.lock();
            (prepare(&content, write), PreparedState::of(inode.ino, &content))
        };
        let Prepared::Chunks(layout, length_bounds) = prepared else { return Ok(None) };
        self.write_and_note(inode, Chunked::new(&layout, &length_bounds), start, write.offset, write)
            .await
            .map(Some)
    }

    async fn write_and_note(
        &self,
        inode: &OpenInode,
        chunked: Chunked<'_>,
        start: PreparedState,
        offset: u64,
        write: &mut PendingWrite<'_>,
    ) -> Result<bool> {
        let (range, how) = (write.range_at(offset), write.how);
        let path = self.chunk_files.path_of(how.direct, write.buf.len());
        // The lease may get stronger meanwhile, but not weaker: a recall waits for the I/O lock.
        let chunks = ChunkWrite { path, durable: how.durable, lease: start.lease };
        let written = {
            let _in_flight = self
                .session
                .request_timeout
                .bound((inode.ino, "another write to the same range"), inode.in_flight.begin(range))
                .await?;
            // The wait for overlapping writes may have outlasted the lease.
            inode.content.lock().check_generation(inode.ino, start.under.generation)?;
            let writing =
                pin!(self.chunk_files.write_chunks(start.under, chunked, offset, write.buf.clone(), chunks));
            self.chunk_files.change_under_lease(inode, start.under.generation, how.durable, writing).await
        };
        let mut content = inode.content.lock();
        let generation_check = content.check_generation(inode.ino, start.under.generation);
        if let Err(error) = written {
            // Some targets may have stored their part. Under a shared lease it can't be told apart
            // from what other sessions write, and stays.
            let is_exclusive = content.lease == LeaseMode::Write;
            if generation_check.is_ok() && is_exclusive && range.end > content.size {
                content.on(Event::ChunksExceedSize);
            }
            return Err(error);
        }
        if let Err(ended) = generation_check {
            return match content.late_write(start.under.generation, range.end) {
                // The mode was unloaded with the lease.
                LateWrite::Included => Ok(how.kill_suid_sgid),
                LateWrite::Unknown if !how.append => {
                    write.answered_late = Some(LateWriteSite { offset, layout: chunked.layout.clone() });
                    Err(ended)
                }
                LateWrite::Unknown | LateWrite::Truncated => Err(ended),
            };
        }
        content.size = content.size.max(range.end);
        content.last_write_end = Some(range.end);
        content.on(Event::Changed { at: rt::now() });
        // The kernel requests this with every write of an unprivileged application; mostly there is
        // nothing to clear.
        Ok(how.kill_suid_sgid && std::mem::take(&mut content.has_suid_sgid))
    }

    /// Executes the first write, a write to an inline file, an append, or one whose lease had ended
    /// when it was answered. Returns `None`, without a write, if the kernel may have cached pages
    /// again.
    async fn write_with_layout_change(
        &self,
        inode: &OpenInode,
        write: &mut PendingWrite<'_>,
        fill_barrier: Option<&FillBarrier<'_>>,
    ) -> Result<Option<bool>> {
        let how = write.how;
        let changes_size = how.append || write.answered_late.is_some();
        let need = |content: &Content| {
            let in_chunks = content.is_in_chunks() && !content.phase.is_truncation_pending();
            if in_chunks && !changes_size { LeaseNeed::Change } else { LeaseNeed::Exclusive }
        };
        let _exclusive = match how.written_back {
            true => self.lock_for_write_back(inode, need).await?,
            false => self.lock_exclusive(inode, need).await?,
        };
        if fill_barrier.is_some_and(FillBarrier::was_bypassed) {
            return Ok(None);
        }
        let start = {
            let content = inode.content.lock();
            if !content.phase.is_loaded() {
                // Unloaded between the check and the lock.
                content.check_generation(inode.ino, content.generation)?;
            }
            PreparedState::of(inode.ino, &content)
        };
        if let Some(late_site) = write.answered_late.take()
            && is_included(inode, start, &late_site, write)
        {
            let clears = how.kill_suid_sgid && std::mem::take(&mut inode.content.lock().has_suid_sgid);
            return Ok(Some(clears));
        }
        let offset = if how.append { start.size } else { write.offset };
        let fits_inline = inode.content.lock().stays_inline(write.range_at(offset).end);
        if fits_inline {
            match self.write_inline(inode, start, offset, write).await {
                // An unfinished conversion to chunks must be completed first.
                Err(error) if error.errno == Errno::ERANGE => {}
                done => return done.map(Some),
            }
        }
        let layout = self.make_chunked(inode, start.under.generation).await?;
        let (under, length_bounds) = {
            let content = inode.content.lock();
            (content.under(inode.ino), content.length_bounds.clone())
        };
        let start =
            PreparedState { under: LeaseContext { generation: start.under.generation, ..under }, ..start };
        self.write_and_note(inode, Chunked::new(&layout, &length_bounds), start, offset, write)
            .await
            .map(Some)
    }

    /// Returns whether the write has cleared mode bits, of which the kernel doesn't know yet.
    async fn write_inline(
        &self,
        inode: &OpenInode,
        start: PreparedState,
        offset: u64,
        write: &PendingWrite<'_>,
    ) -> Result<bool> {
        let WriteOptions { kill_suid_sgid, append: at_end, .. } = write.how;
        let (ino, data) = (inode.ino, Bytes::copy_from_slice(write.buf.as_slice()));
        // Another service than the one that granted the lease may execute it, and other sessions
        // may have appended before.
        let op = MetaOp::WriteInline { ino, offset, data: data.clone(), kill_suid_sgid, at_end };
        let written = self.change_as_client(op).await;
        let mut content = inode.content.lock();
        content.note_outcome(ino, start.under.generation, &written);
        let attr = entry(written?)?;
        let clears = kill_suid_sgid && std::mem::take(&mut content.has_suid_sgid);
        if content.check_generation(ino, start.under.generation).is_err() {
            // The write is done, and the content loaded since includes it, or will be loaded.
            return Ok(clears);
        }
        let old = content.inline.take().unwrap_or_default();
        content.inline = Some(overlaid(old, offset as usize, data));
        content.size = attr.size;
        content.note_times(&attr);
        Ok(clears)
    }
}

/// The state of a file that a read needs.
struct ReadState {
    under: LeaseContext,
    size: u64,
    inline: Option<Bytes>,
    layout: Option<Arc<Layout>>,
    length_bounds: LengthBounds,
}

impl ReadState {
    fn of(ino: InodeId, content: &Content) -> ReadState {
        let (inline, layout) = (content.inline.clone(), content.layout.clone());
        let length_bounds = content.length_bounds.clone();
        ReadState { under: content.under(ino), size: content.size, inline, layout, length_bounds }
    }
}

fn prepare(content: &Content, write: &PendingWrite<'_>) -> Prepared {
    let ready = content.phase.is_loaded()
        && content.lease != LeaseMode::Read
        && content.is_recorded_writer()
        && !content.phase.is_truncation_pending()
        && !content.is_tainted()
        && !write.how.append
        && write.answered_late.is_none();
    match (&content.layout, &content.inline) {
        (Some(layout), None) if ready => Prepared::Chunks(layout.clone(), content.length_bounds.clone()),
        _ => Prepared::ChangeLayout,
    }
}

/// Whether a write under a shared lease that storage answered after the lease had ended is part of
/// the current file. If so it must not be repeated, since other sessions may have read it and
/// overwritten it.
fn is_included(
    inode: &OpenInode,
    now: PreparedState,
    late_site: &LateWriteSite,
    write: &PendingWrite<'_>,
) -> bool {
    let content = inode.content.lock();
    let is_same_place = content.inline.is_none() && content.layout.as_deref() == Some(&late_site.layout);
    is_same_place && write.range_at(late_site.offset).end <= now.size
}

/// Returns inline content after a write at `offset`, with zeros in any gap.
fn overlaid(old: Bytes, offset: usize, data: Bytes) -> Bytes {
    let end = offset + data.len();
    if offset == 0 && end >= old.len() {
        return data;
    }
    let mut bytes = old.to_vec();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(&data);
    bytes.into()
}

/// Fills the first `len` bytes of `buf` from inline content at `offset`, with zeros beyond its end.
fn copy_inline(inline: &[u8], offset: u64, buf: &IoBuf, len: usize) {
    let range = ByteRange::at(offset, len as u64).intersect(ByteRange::new(0, inline.len() as u64));
    let present = range.len() as usize;
    if present > 0 {
        buf.copy_from(0, &inline[range.start as usize..range.end as usize]);
    }
    buf.zero(present..len);
}
