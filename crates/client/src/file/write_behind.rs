//! Write-behind: small sequential writes are delayed and sent together.
//!
//! A mount with write-behind answers a write before the storage services have it, if the write
//! continues where the last one ended. The session must hold the file's `Write` lease, so that no
//! other session sees the file. Each file has at most one dirty extent. Every other operation on
//! the content waits until the extent is *flushed*.
//!
//! # Why no session misses a delayed write
//!
//! - Delaying a write and flushing the extent need the file's I/O lock exclusively. A task that
//!   takes the I/O lock for anything else has the extent flushed first ([`Files::lock_io_shared`],
//!   [`Files::lock_io_exclusive`]). That includes reads, changes of size and layout, reports of
//!   the size, and recalls before they are acknowledged.
//! - A metadata service that restarts, or takes a partition over, grants nothing to other sessions
//!   until this session has reported that it relies on no lease any more. The session reports that
//!   when its dirty extents are with the storage services ([`FlushingExtent`]).
//! - A session that the cluster has ended loses its dirty extents. Storage services refuse its
//!   requests, and its files fail from then on.
//!
//! # What may be lost
//!
//! Dirty extents are lost with this process. They are at most [`MAX_AGE`] old then, and `fsync` and
//! `close` return when there is none. When a flush fails, each descriptor that is open for writing
//! reports that once, by the next write, sync or close.

use crate::file::Files;
use crate::file::access::is_lease_over;
use crate::file::chunk_files::lease_epoch::LeaseContext;
use crate::file::chunk_files::striping::{ChunkWrite, Chunked};
use crate::file::content::phase::Event;
use crate::file::content::{Content, LengthBounds};
use crate::file::in_flight::InFlightWrite;
use crate::file::inode::OpenInode;
use crate::{Handle, WriteOptions};
use parking_lot::Mutex;
use rt::IoBuf;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use types::{ByteRange, Errno, Error, InodeId, Layout, Result};
use wire::LeaseMode;

/// Longest time that a write is delayed. Then the flush begins by itself.
const MAX_AGE: Duration = Duration::from_secs(1);
/// How often the age of dirty extents is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Write-behind boundary: a dirty extent ends at a multiple of this, so that flushes send whole
/// blocks. Bytes.
const FLUSH_BOUNDARY: u64 = 512 * 1024;
/// Writes of at least this size gain nothing from a delay. Bytes.
const MAX_WRITE: usize = 64 * 1024;
/// Buffer sizes for a dirty extent: for a few small writes, or the maximum. Bytes.
const SMALL_BUFFER: usize = 64 * 1024;
const LARGE_BUFFER: usize = 1024 * 1024;
/// Buffer memory for all dirty extents. Bytes.
const MAX_ALL_BYTES: usize = 256 * 1024 * 1024;

/// The dirty extents of a session.
#[derive(Default)]
pub(crate) struct WriteBehind {
    /// Memory of their buffers, in bytes.
    bytes: Arc<AtomicUsize>,
    /// Files that may have a dirty extent.
    files: Mutex<BTreeSet<InodeId>>,
}

/// A memory reservation, until it is dropped.
struct BufferMemory {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for BufferMemory {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl WriteBehind {
    fn reserve(&self, bytes: usize) -> Option<BufferMemory> {
        let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        let memory = BufferMemory { all: self.bytes.clone(), bytes };
        (before + bytes <= MAX_ALL_BYTES).then_some(memory)
    }
}

/// The dirty extent of a file.
pub(crate) struct DirtyExtent {
    start: u64,
    len: usize,
    /// Size of the file without it.
    size: u64,
    buf: IoBuf,
    since_ns: u64,
    _memory: BufferMemory,
}

impl DirtyExtent {
    fn begin(all: &WriteBehind, start: u64, size: u64, bytes: usize) -> Option<DirtyExtent> {
        let capacity = if bytes <= SMALL_BUFFER / 2 { SMALL_BUFFER } else { LARGE_BUFFER };
        let memory = all.reserve(capacity)?;
        let since_ns = rt::monotonic_ns();
        Some(DirtyExtent { start, len: 0, size, buf: IoBuf::alloc(capacity), since_ns, _memory: memory })
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    fn range(&self) -> ByteRange {
        ByteRange::at(self.start, self.len as u64)
    }

    /// Appends data; returns false if there is no memory for it.
    fn push(&mut self, all: &WriteBehind, data: &[u8]) -> bool {
        if self.len + data.len() > self.buf.len() {
            let Some(memory) = all.reserve(LARGE_BUFFER) else { return false };
            let larger = IoBuf::alloc(LARGE_BUFFER);
            larger.copy_from(0, &self.buf.as_slice()[..self.len]);
            (self.buf, self._memory) = (larger, memory);
        }
        self.buf.copy_from(self.len, data);
        self.len += data.len();
        true
    }

    /// The last boundary that the extent reaches or crosses.
    fn flush_boundary(&self) -> Option<u64> {
        let boundary = self.end() / FLUSH_BOUNDARY * FLUSH_BOUNDARY;
        (boundary > self.start).then_some(boundary)
    }
}

/// An extent that is being flushed, under the lease under which it was written.
pub(crate) struct FlushingExtent<'a> {
    under: LeaseContext,
    layout: Arc<Layout>,
    length_bounds: LengthBounds,
    extent: DirtyExtent,
    _in_flight: InFlightWrite<'a>,
}

/// Failed flushes.
#[derive(Clone, Default)]
pub(crate) struct FlushFailures {
    count: u64,
    last: Option<Error>,
}

impl FlushFailures {
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    fn note(&mut self, error: Error) {
        self.count += 1;
        self.last = Some(error);
    }

    /// Records that delayed writes were dropped because the lease has ended.
    pub(crate) fn note_dropped(&mut self) {
        self.note(Error::new(Errno::EIO, "the lease under which it was written has ended"));
    }
}

impl Handle {
    /// Reports a failed flush, once per handle.
    ///
    /// # Errors
    /// The cause of the failure.
    pub(crate) fn report_flush_failure(&self) -> Result<()> {
        let failures = {
            let content = self.inode.content.lock();
            if content.flush_failures.count == self.failures_reported.load(Ordering::Acquire) {
                return Ok(());
            }
            content.flush_failures.clone()
        };
        let reported = self.failures_reported.swap(failures.count, Ordering::AcqRel);
        let Some(cause) = failures.last.filter(|_| reported < failures.count) else { return Ok(()) };
        let errno = if is_lease_over(&cause) { Errno::EIO } else { cause.errno };
        let message = format!("inode {}: a delayed write could not be stored: {}", self.ino(), cause.message);
        Err(Error::new(errno, message).hint("repeat all writes since the last successful sync"))
    }
}

impl Content {
    /// Whether a write may be delayed.
    fn may_delay(&self, offset: u64, how: WriteOptions) -> bool {
        let is_plain = !how.durable && !how.direct && !how.written_back;
        let is_next = self.last_write_end == Some(if how.append { self.size } else { offset });
        let is_own = self.is_certain() && self.lease == LeaseMode::Write && self.is_recorded_writer();
        let clears = how.kill_suid_sgid && self.has_suid_sgid;
        let is_whole = !self.phase.is_truncation_pending() && !self.is_tainted() && !clears;
        is_plain && is_next && is_own && is_whole && self.inline.is_none() && self.layout.is_some()
    }

    /// Delays a write; returns false if that isn't possible.
    fn delay(&mut self, all: &WriteBehind, offset: u64, buf: &IoBuf, how: WriteOptions) -> bool {
        if !self.may_delay(offset, how) {
            return false;
        }
        let start = if how.append { self.size } else { offset };
        let Some(mut extent) =
            self.dirty.take().or_else(|| DirtyExtent::begin(all, start, self.size, buf.len()))
        else {
            return false;
        };
        let is_delayed = extent.push(all, buf.as_slice());
        let end = extent.end();
        self.dirty = Some(extent);
        if is_delayed {
            self.last_write_end = Some(end);
            self.size = self.size.max(end);
            self.on(Event::Changed { at: rt::now() });
        }
        is_delayed
    }

    /// Handles a failed flush: the extent is lost, and with it delayed writes that follow it.
    fn drop_failed_extent(&mut self, ino: InodeId, generation: u64, extent: &DirtyExtent, error: Error) {
        self.flush_failures.note(error);
        if self.check_generation(ino, generation).is_err() {
            if extent.end() > extent.size {
                self.lower_last_size(generation, extent.size);
            }
            return;
        }
        (self.dirty, self.last_write_end) = (None, None);
        // As if it had never been written; some targets may have stored their part.
        if extent.end() > extent.size {
            self.size = extent.size;
            self.on(Event::ChunksExceedSize);
        }
    }

    /// Takes the extent up to the last boundary that it has reached; the rest remains.
    fn take_to_boundary(&mut self, all: &WriteBehind) -> Option<DirtyExtent> {
        let extent = self.dirty.as_ref()?;
        let boundary = extent.flush_boundary()?;
        let len = (boundary - extent.start) as usize;
        let rest = match extent.len - len {
            0 => None,
            more => {
                // Without memory for the rest, all of it is taken.
                let size = extent.size.max(boundary);
                let Some(mut rest) = DirtyExtent::begin(all, boundary, size, more) else {
                    return self.dirty.take();
                };
                rest.push(all, &extent.buf.as_slice()[len..extent.len]);
                Some(rest)
            }
        };
        let full = std::mem::replace(&mut self.dirty, rest);
        full.map(|extent| DirtyExtent { len, ..extent })
    }
}

impl OpenInode {
    /// Takes the dirty extent, to flush it.
    pub(crate) fn take_dirty(&self, content: &mut Content) -> Option<FlushingExtent<'_>> {
        let extent = content.dirty.take();
        extent.and_then(|extent| self.begin_flush(content, extent))
    }

    fn begin_flush(&self, content: &mut Content, extent: DirtyExtent) -> Option<FlushingExtent<'_>> {
        let Some(layout) = content.layout.clone() else {
            content.flush_failures.note_dropped();
            return None;
        };
        // Even if the content is unloaded before the flush begins.
        content.note_layout();
        // Other changes of the file had ended when the extent was written, and begin after it is
        // flushed.
        let _in_flight = self.in_flight.begin_delayed(extent.range());
        let (under, length_bounds) = (content.under(self.ino), content.length_bounds.clone());
        Some(FlushingExtent { under, layout, length_bounds, extent, _in_flight })
    }
}

impl Files {
    /// Delays a write; returns false if it must be executed at once.
    ///
    /// # Errors
    /// The error of an earlier flush.
    pub(crate) async fn delay_write(
        &self,
        handle: &Handle,
        offset: u64,
        buf: &IoBuf,
        how: WriteOptions,
    ) -> Result<bool> {
        let inode = &handle.inode;
        let Some(all) = self.write_behind.as_ref().filter(|_| buf.len() < MAX_WRITE) else {
            return Ok(false);
        };
        if !inode.content.lock().may_delay(offset, how) {
            return handle.report_flush_failure().map(|()| false);
        }
        self.session.wait_while_suspended(inode.ino).await?;
        let _exclusive = self.lock_io_exclusive_dirty(inode).await?;
        handle.report_flush_failure()?;
        let (is_first, flushing) = {
            let mut content = inode.content.lock();
            let is_first = content.dirty.is_none();
            if !content.delay(all, offset, buf, how) {
                return Ok(false);
            }
            let full = content.take_to_boundary(all);
            (is_first, full.and_then(|extent| inode.begin_flush(&mut content, extent)))
        };
        if is_first {
            all.files.lock().insert(inode.ino);
        }
        if let Some(flushing) = flushing {
            self.flush_extent(inode, flushing).await;
            handle.report_flush_failure()?;
        }
        Ok(true)
    }

    /// Flushes a file's dirty extent. The caller holds the I/O lock exclusively.
    pub(crate) async fn flush_dirty(&self, inode: &OpenInode) {
        let flushing = inode.take_dirty(&mut inode.content.lock());
        if let Some(flushing) = flushing {
            Box::pin(self.flush_extent(inode, flushing)).await;
        }
    }

    /// Flushes an extent under the lease under which it was written. It never uses a later lease,
    /// since other sessions may have written the same bytes meanwhile.
    ///
    /// Ends soon after the lease has ended.
    pub(crate) async fn flush_extent(&self, inode: &OpenInode, flushing: FlushingExtent<'_>) {
        let FlushingExtent { under, layout, length_bounds, extent, _in_flight } = flushing;
        let (path, range) = (self.chunk_files.path_of(false, extent.len), extent.range());
        let how = ChunkWrite { path, durable: false, lease: LeaseMode::Write };
        let chunked = Chunked::new(&layout, &length_bounds);
        let writing = pin!(self.chunk_files.write_chunks(
            under,
            chunked,
            extent.start,
            extent.buf.slice(0..extent.len),
            how
        ));
        if let Err(error) = self.chunk_files.change_under_lease(inode, under.generation, false, writing).await
        {
            tracing::warn!(ino = %inode.ino, ?range, %error, "a delayed write could not be stored");
            inode.content.lock().drop_failed_extent(inode.ino, under.generation, &extent, error);
        }
    }

    /// Flushes the dirty extents of all files.
    ///
    /// # Errors
    /// The error of a failed flush; its descriptors report it, too.
    pub(crate) async fn flush_all(&self) -> Result<()> {
        let Some(all) = &self.write_behind else { return Ok(()) };
        let files: Vec<InodeId> = all.files.lock().iter().copied().collect();
        let written = files.into_iter().filter_map(|ino| self.inodes.open(ino)).map(|inode| async move {
            let before = inode.content.lock().flush_failures.count;
            drop(self.lock_io_exclusive(&inode).await?);
            let failures = inode.content.lock().flush_failures.clone();
            failures.last.filter(|_| failures.count > before).map_or(Ok(()), Err)
        });
        rt::join_all(written.collect()).await.into_iter().collect()
    }

    /// Flushes extents that are old enough, for as long as the session lives.
    pub(crate) async fn flush_aged(self: Arc<Self>) {
        while let (Some(all), None) = (&self.write_behind, self.session.end_cause()) {
            rt::sleep(CHECK_INTERVAL).await;
            for ino in self.aged_files(all) {
                let files = self.clone();
                rt::spawn(async move {
                    let Some(inode) = files.inodes.open(ino) else { return };
                    // On a time-out the task that holds the file's I/O lock flushes it.
                    _ = files.lock_io_exclusive(&inode).await;
                });
            }
        }
    }

    /// Returns the files with extents that are old enough. Files without a dirty extent are removed
    /// from the list.
    fn aged_files(&self, all: &WriteBehind) -> Vec<InodeId> {
        let (mut due, now_ns) = (Vec::new(), rt::monotonic_ns());
        let limit_ns = (MAX_AGE - CHECK_INTERVAL).as_nanos() as u64;
        all.files.lock().retain(|&ino| {
            let Some(inode) = self.inodes.open(ino) else { return false };
            let since_ns = inode.content.lock().dirty.as_ref().map(|extent| extent.since_ns);
            if since_ns.is_some_and(|since| now_ns.saturating_sub(since) >= limit_ns) {
                due.push(ino);
            }
            since_ns.is_some()
        });
        due
    }
}
