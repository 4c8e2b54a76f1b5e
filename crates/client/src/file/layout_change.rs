//! Changes of a file's size and layout, which run exclusively: truncate, fallocate, the conversion
//! from inline data to chunks. Also seeks for holes, and copies.

use crate::file::Files;
use crate::file::access::{LeaseNeed, is_lease_over};
use crate::file::chunk_files::lease_epoch::LeaseContext;
use crate::file::chunk_files::striping::{Allocated, ChunkWrite, Chunked};
use crate::file::content::phase::Event;
use crate::file::handle::Handle;
use crate::file::inode::OpenInode;
use crate::{ReadOptions, WriteOptions, entry, file_info};
use bytes::Bytes;
use rt::IoBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{ByteRange, Errno, Error, InodeId, Layout, Result};
use wire::{AllocateMode, DataPath, LeaseMode, MetaOp, SeekTarget, StorageOp, StorageReply};

const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;
const UNSHARE_RANGE: u32 = 0x40;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Maximum number of bytes that one `copy_file_range` call copies: the caller sees progress and can
/// be interrupted.
const COPY_LIMIT: u64 = 64 * 1024 * 1024;
/// Size of the buffer between the two files, in bytes.
const COPY_BUFFER: usize = 1024 * 1024;

impl Files {
    /// Sets the size of a file.
    pub(crate) async fn truncate(&self, ino: InodeId, size: u64, kill_suid_sgid: bool) -> Result<()> {
        let inode = self.inodes.acquire(ino);
        let truncate = async || {
            let _exclusive = self.lock_exclusive(&inode, |_| LeaseNeed::Exclusive).await?;
            self.truncate_exclusive(&inode, size, kill_suid_sgid).await
        };
        let result = self.while_lease_lasts(truncate).await;
        // The next read is the first one after a change.
        inode.atime_quiet_until_ns.store(0, Ordering::Relaxed);
        self.end_use(&inode).await;
        result
    }

    async fn truncate_exclusive(&self, inode: &OpenInode, size: u64, kill_suid_sgid: bool) -> Result<()> {
        self.ensure_no_part_lost(inode)?;
        self.finish_truncate(inode).await?;
        let generation = inode.content.lock().generation;
        // The service compares with the size on record, so that must be current.
        self.end_write(inode, false).await?;
        let old_size = {
            let content = inode.content.lock();
            content.check_generation(inode.ino, generation)?;
            content.size
        };
        let truncated =
            self.change_as_client(MetaOp::Truncate { ino: inode.ino, size, kill_suid_sgid }).await;
        inode.content.lock().note_outcome(inode.ino, generation, &truncated);
        let reply = truncated?;
        {
            let mut content = inode.content.lock();
            // The size is set, once. If the lease has ended since, other sessions may have extended
            // the file, and the service truncates the chunks: when it recovers the file, or when
            // this session releases the file without further use.
            if content.check_generation(inode.ino, generation).is_err() {
                return Ok(());
            }
            content.load_info(file_info(reply)?);
            content.on(Event::TimeSet);
            let in_chunks = content.layout.is_some() && content.inline.is_none();
            if in_chunks && size < old_size {
                content.on(Event::ChunksExceedSize);
            }
        }
        match self.cut_chunks(inode, true).await {
            Err(error) if is_lease_over(&error) => Ok(()),
            done => done,
        }
    }

    /// Refuses to change a file of which a part is lost, before any of the change is on record.
    ///
    /// # Errors
    /// `EIO`.
    fn ensure_no_part_lost(&self, inode: &OpenInode) -> Result<()> {
        let in_chunks = {
            let content = inode.content.lock();
            content.layout.clone().filter(|_| content.inline.is_none())
        };
        in_chunks.map_or(Ok(()), |layout| self.chunk_files.ensure_none_is_lost(&layout))
    }

    /// Truncates chunks that may reach beyond the end of the file. The caller holds the I/O lock
    /// exclusively.
    pub(crate) async fn finish_truncate(&self, inode: &OpenInode) -> Result<()> {
        self.cut_chunks(inode, false).await
    }

    /// Like [`Files::finish_truncate`]. If `is_change_now`, this is the change of the file that
    /// sets its mtime.
    async fn cut_chunks(&self, inode: &OpenInode, is_change_now: bool) -> Result<()> {
        if !inode.content.lock().phase.is_truncation_pending() {
            return Ok(());
        }
        // An in-flight change must not restore truncated data.
        self.chunk_files.renew_tainted_epoch(inode).await?;
        self.reload_uncertain(inode).await?;
        let (pending, size, layout, under) = {
            let content = inode.content.lock();
            (
                content.phase.is_truncation_pending(),
                content.size,
                content.layout.clone(),
                content.under(inode.ino),
            )
        };
        let Some(layout) = layout.filter(|_| pending) else { return Ok(()) };
        let generation = under.generation;
        let cut = |stripe| StorageOp::Truncate { len: layout::local_len(&layout, stripe, size) };
        {
            let _in_flight = inode.in_flight.begin(ByteRange::new(0, u64::MAX)).await;
            inode.content.lock().check_generation(inode.ino, generation)?;
            let cut = pin!(self.chunk_files.on_present_stripes(under, &layout, cut));
            self.chunk_files.change_under_lease(inode, generation, false, cut).await?;
        }
        // Other sessions may have extended the file meanwhile, without knowledge of this
        // truncation: the service has recovered the file.
        inode.content.lock().check_generation(inode.ino, generation)?;
        // The truncation of the chunks is later than the time that the service has recorded for the
        // change. A session that reads the attributes of a file that is open for writing elsewhere
        // takes later times on the targets for unreported writes.
        let mtime = is_change_now.then(rt::now);
        // Before the truncation counts as done: size recovery measures the chunk files of a session
        // that dies between the two. Otherwise the blocks of the longer file would hide holes.
        let (ino, Allocated { blocks, lens }) =
            (inode.ino, self.chunk_files.allocated(inode.ino, &layout, u64::MAX).await?);
        let report = MetaOp::EndWrite { ino, size, blocks, lens, mtime, done: false, kill_suid_sgid: false };
        self.change_as_client(report).await?;
        self.change_as_client(MetaOp::TruncateDone { ino: inode.ino }).await?;
        let mut content = inode.content.lock();
        content.check_generation(inode.ino, generation)?;
        content.on(Event::ChunksTruncated);
        Ok(())
    }

    /// Makes sure that the file is in chunks and that this session may change them. The caller
    /// holds the I/O lock exclusively, and the content hasn't been unloaded since this generation.
    pub(crate) async fn make_chunked(&self, inode: &OpenInode, generation: u64) -> Result<Arc<Layout>> {
        self.finish_truncate(inode).await?;
        let begun_before = {
            let content = inode.content.lock();
            content.check_generation(inode.ino, generation)?;
            if let (Some(layout), None, true) =
                (&content.layout, &content.inline, content.is_recorded_writer())
            {
                return Ok(layout.clone());
            }
            content.layout.is_some() && content.inline.is_some()
        };
        self.ensure_no_part_lost(inode)?;
        let info = file_info(self.change_as_client(MetaOp::BeginWrite { ino: inode.ino }).await?)?;
        let layout = Arc::new(info.layout.ok_or_else(|| {
            Error::new(Errno::EIO, format!("the metadata service returned no layout for inode {}", inode.ino))
        })?);
        self.chunk_files.note_unreplicated(&layout).await?;
        let under = {
            let mut content = inode.content.lock();
            content.check_generation(inode.ino, generation)?;
            content.layout = Some(layout.clone());
            content.on(Event::WriteBegun);
            content.epoch = content.epoch.max(info.epoch);
            content.under(inode.ino)
        };
        if let Some(inline) = info.inline {
            if begun_before {
                // Data of an earlier, failed conversion must not appear in holes of the current
                // content.
                let _in_flight = inode.in_flight.begin(ByteRange::new(0, u64::MAX)).await;
                inode.content.lock().check_generation(inode.ino, generation)?;
                let cut = pin!(
                    self.chunk_files.on_every_stripe(under, &layout, |_| StorageOp::Truncate { len: 0 })
                );
                self.chunk_files.change_under_lease(inode, generation, false, cut).await?;
            }
            self.convert_inline(inode, under, &layout, (&inline, info.attr.size)).await?;
        }
        let mut content = inode.content.lock();
        content.check_generation(inode.ino, generation)?;
        content.inline = None;
        Ok(layout)
    }

    /// Copies inline content to the chunks, and only then drops the inline copy.
    async fn convert_inline(
        &self,
        inode: &OpenInode,
        under: LeaseContext,
        layout: &Layout,
        (inline, size): (&Bytes, u64),
    ) -> Result<()> {
        if !inline.is_empty() {
            let buf = IoBuf::alloc(inline.len());
            buf.copy_from(0, inline);
            // Durable, because the inline copy may be gone from disk before the next sync of the
            // chunks.
            let how = ChunkWrite { path: DataPath::Cached, durable: true, lease: LeaseMode::Write };
            let _in_flight = inode.in_flight.begin(ByteRange::new(0, u64::MAX)).await;
            inode.content.lock().check_generation(inode.ino, under.generation)?;
            let writing = pin!(self.chunk_files.write_chunks(under, Chunked::unknown(layout), 0, buf, how));
            self.chunk_files.change_under_lease(inode, under.generation, true, writing).await?;
        }
        let attr = entry(
            self.change_as_client(MetaOp::DropInline { ino: inode.ino, size, mtime: rt::now() }).await?,
        )?;
        let mut content = inode.content.lock();
        content.check_generation(inode.ino, under.generation)?;
        content.size = attr.size;
        Ok(())
    }

    /// Reserves, frees or zeroes a range. `mode` contains the flags of `fallocate(2)`.
    pub(crate) async fn fallocate(&self, handle: &Arc<Handle>, mode: u32, range: ByteRange) -> Result<()> {
        let how = match mode & !KEEP_SIZE {
            0 | UNSHARE_RANGE => AllocateMode::Reserve,
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => AllocateMode::Punch,
            ZERO_RANGE => AllocateMode::Zero,
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        handle.ensure_append_only(how == AllocateMode::Reserve)?;
        self.while_lease_lasts(async || self.allocate(&handle.inode, mode, how, range).await).await
    }

    async fn allocate(
        &self,
        inode: &OpenInode,
        mode: u32,
        how: AllocateMode,
        range: ByteRange,
    ) -> Result<()> {
        let _exclusive = self.lock_exclusive(inode, |_| LeaseNeed::Exclusive).await?;
        let (size, fits_inline, generation) = {
            let content = inode.content.lock();
            (content.size, content.stays_inline(range.end), content.generation)
        };
        let done = match fits_inline {
            true => self.zero_inline(inode, generation, how, range.intersect(ByteRange::new(0, size))).await,
            false => Err(Errno::ERANGE.into()),
        };
        match done {
            // The file isn't inline, or its conversion to chunks has begun.
            Err(error) if error.errno == Errno::ERANGE => {
                // Zeroing extends a chunk file. If the file must keep its size, the part beyond its
                // end is reserved instead.
                let keeps = mode & KEEP_SIZE != 0 && how == AllocateMode::Zero;
                let inside = if keeps { range.intersect(ByteRange::new(0, size)) } else { range };
                self.allocate_chunks(inode, how, inside).await?;
                if keeps {
                    self.allocate_chunks(
                        inode,
                        AllocateMode::Reserve,
                        ByteRange::new(size.max(range.start), range.end),
                    )
                    .await?;
                }
            }
            done => done?,
        }
        if mode & KEEP_SIZE == 0 && range.end > size {
            self.truncate_exclusive(inode, range.end, false).await?;
        }
        Ok(())
    }

    async fn zero_inline(
        &self,
        inode: &OpenInode,
        generation: u64,
        how: AllocateMode,
        range: ByteRange,
    ) -> Result<()> {
        if how == AllocateMode::Reserve || range.is_empty() {
            return Ok(());
        }
        let data = Bytes::from(vec![0; range.len() as usize]);
        let op = MetaOp::WriteInline {
            ino: inode.ino,
            offset: range.start,
            data,
            kill_suid_sgid: false,
            at_end: false,
        };
        let zeroed = self.change_as_client(op).await;
        inode.content.lock().note_outcome(inode.ino, generation, &zeroed);
        zeroed?;
        // The current inline content is loaded again.
        let info = file_info(
            self.session.query(MetaOp::Open { ino: inode.ino, requested_lease: None }).await?.reply,
        )?;
        let mut content = inode.content.lock();
        content.check_generation(inode.ino, generation)?;
        content.load_info(info);
        Ok(())
    }

    async fn allocate_chunks(&self, inode: &OpenInode, how: AllocateMode, range: ByteRange) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let generation = inode.content.lock().generation;
        let layout = self.make_chunked(inode, generation).await?;
        let op = |stripe| StorageOp::Allocate { range: layout::local_range(&layout, stripe, range), how };
        let done = {
            let _in_flight = inode.in_flight.begin(ByteRange::new(0, u64::MAX)).await;
            let (under, known) = {
                let mut content = inode.content.lock();
                content.check_generation(inode.ino, generation)?;
                content.has_only_written_chunks = false;
                (content.under(inode.ino), content.length_bounds.clone())
            };
            let chunked = Chunked::new(&layout, &known);
            let changing = pin!(async {
                match how {
                    AllocateMode::Punch => self.chunk_files.on_every_known_stripe(under, chunked, op).await,
                    _ => self.chunk_files.on_every_stripe_with_space(under, chunked, range, op).await,
                }
            });
            self.chunk_files.change_under_lease(inode, generation, false, changing).await
        };
        let mut content = inode.content.lock();
        content.check_generation(inode.ino, generation)?;
        if let Err(error) = done {
            if how == AllocateMode::Zero && range.end > content.size {
                content.on(Event::ChunksExceedSize);
            }
            return Err(error);
        }
        // Also for reservations: the targets' local file systems count them as a change of the
        // chunks.
        content.on(Event::Changed { at: rt::now() });
        Ok(())
    }

    /// Finds data or a hole at or after `offset`. `whence` is `SEEK_DATA` or `SEEK_HOLE`.
    pub(crate) async fn lseek(&self, handle: &Arc<Handle>, offset: u64, whence: u32) -> Result<u64> {
        let what = match whence {
            SEEK_DATA => SeekTarget::Data,
            SEEK_HOLE => SeekTarget::Hole,
            _ => return Err(Errno::EINVAL.into()),
        };
        self.while_lease_lasts(async || self.seek(&handle.inode, offset, what).await).await
    }

    async fn seek(&self, inode: &OpenInode, offset: u64, what: SeekTarget) -> Result<u64> {
        let _shared = self.lock_shared(inode, LeaseNeed::Read).await?;
        let generation = self.find_end(inode, u64::MAX).await?;
        let (under, size, inline, layout, known) = {
            let content = inode.content.lock();
            content.check_generation(inode.ino, generation)?;
            let inline = content.inline.as_ref().map(|inline| inline.len() as u64);
            let (layout, known) = (content.layout.clone(), content.length_bounds.clone());
            (content.under(inode.ino), content.size, inline, layout, known)
        };
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        let found = match (inline, layout) {
            (None, Some(layout)) => {
                let rest = ByteRange::new(offset, size);
                self.seek_chunks(under, Chunked::new(&layout, &known), rest, what).await?
            }
            (data_end, _) => seek_prefix(data_end.unwrap_or(0), offset, what),
        };
        match what {
            SeekTarget::Hole => Ok(found.unwrap_or(size).min(size)),
            SeekTarget::Data => found.filter(|&at| at < size).ok_or_else(|| Errno::ENXIO.into()),
        }
    }

    /// Returns the first position over all stripes; each is searched from its first byte in `rest`.
    async fn seek_chunks(
        &self,
        under: LeaseContext,
        chunked: Chunked<'_>,
        rest: ByteRange,
        what: SeekTarget,
    ) -> Result<Option<u64>> {
        let layout = chunked.layout;
        let local = |stripe| layout::local_range(layout, stripe, rest);
        let op = |stripe| StorageOp::Seek { from: local(stripe).start, what };
        let replies = self.chunk_files.on_every_known_stripe(under, chunked, op).await?;
        let found = replies.into_iter().enumerate().filter_map(|(stripe, reply)| match reply {
            StorageReply::Offset(Some(at)) if !local(stripe).is_empty() => {
                Some(layout::file_offset(layout, stripe, at).max(rest.start))
            }
            _ => None,
        });
        Ok(found.min())
    }

    /// Copies bytes between two files, or within one; returns the number of bytes.
    pub(crate) async fn copy_file_range(
        &self,
        (from, from_offset): (&Arc<Handle>, u64),
        (to, to_offset): (&Arc<Handle>, u64),
        len: u64,
    ) -> Result<u64> {
        let wanted = len.min(COPY_LIMIT);
        let buf = IoBuf::alloc(COPY_BUFFER.min(wanted.next_multiple_of(types::BLOCK_SIZE as u64) as usize));
        let mut copied = 0;
        while copied < wanted {
            let part = buf.slice(0..(wanted - copied).min(buf.len() as u64) as usize);
            let moved = async {
                let got = self.read(from, from_offset + copied, part, ReadOptions::default()).await?;
                self.write(to, to_offset + copied, buf.slice(0..got), WriteOptions::default()).await
            };
            match moved.await {
                Ok(0) => break,
                Ok(moved) => copied += moved as u64,
                // Earlier parts count: only success tells the kernel that its cached pages are
                // outdated.
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(copied)
    }
}

/// Searches content that has data in `0..data_end` and a hole after it.
fn seek_prefix(data_end: u64, offset: u64, what: SeekTarget) -> Option<u64> {
    match what {
        SeekTarget::Data => (offset < data_end).then_some(offset),
        SeekTarget::Hole => Some(offset.max(data_end)),
    }
}
