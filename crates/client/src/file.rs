//! Open files: what a descriptor does between open and close.

use crate::inode::{Content, OpenInode};
use crate::{Client, entry, file_info};
use bytes::Bytes;
use rt::IoBuf;
use std::sync::Arc;
use types::{Attr, ByteRange, Credentials, Errno, InodeId, Layout, Result, SetAttr, mode};
use wire::{FileInfo, MetaOp, MetaReply, Path, StorageOp};

/// Transfers of at least this many bytes go past the storage server's page cache: they are as fast from the device, and the kernel
/// that asked keeps its own copy.
const DIRECT_FROM: usize = 64 * 1024;

/// An open file.
pub struct Handle {
    pub(crate) inode: Arc<OpenInode>,
}

impl Handle {
    /// The inode that is open.
    pub fn ino(&self) -> InodeId {
        self.inode.ino
    }
}

/// How a write is meant.
#[derive(Clone, Copy, Default, Debug)]
pub struct WriteHow {
    /// Past every cache (`O_DIRECT`).
    pub direct: bool,
    /// On disk before the call returns (`O_SYNC`, `O_DSYNC`).
    pub durable: bool,
    /// Clear setuid and setgid.
    pub kill_suid_sgid: bool,
}

/// What is known of a file because it is new.
#[derive(Clone, Copy)]
pub(crate) struct Fresh {
    inline_limit: u32,
    bare: bool,
}

impl Fresh {
    fn of(reply: &MetaReply) -> Option<Fresh> {
        match *reply {
            MetaReply::Created { inline_limit, bare, .. } => Some(Fresh { inline_limit, bare }),
            _ => None,
        }
    }
}

/// What a write has to do first.
enum Prepared {
    /// Bytes go to these groups.
    Chunks(Arc<Layout>),
    /// The file's shape must change under the exclusive gate.
    Reshape,
}

impl Client {
    /// Opens an inode. `flags` are those of `open(2)`; truncation is the caller's.
    pub async fn open(&self, credentials: Credentials, ino: InodeId, flags: u32) -> Result<Arc<Handle>> {
        let _ = (credentials, flags);
        Ok(Arc::new(Handle { inode: self.inodes.acquire(ino) }))
    }

    /// Makes a regular file, or finds the one that another client made first, and opens it.
    pub async fn create(
        &self,
        credentials: Credentials,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<(Attr, Arc<Handle>)> {
        const O_EXCL: u32 = 0o200;
        let (name, exclusive) = (Bytes::copy_from_slice(name), flags & O_EXCL != 0);
        let op = MetaOp::Create { parent, name, mode, umask, rdev: 0, exclusive };
        let reply = self.change(credentials, op).await?;
        let fresh = Fresh::of(&reply);
        let attr = entry(reply)?;
        let (inode, alone) = self.inodes.remember_and_acquire(attr.ino);
        if let Some(fresh) = fresh.filter(|_| alone) {
            inode.content.lock().begin(&attr, fresh);
        }
        Ok((self.inodes.overlay(attr), Arc::new(Handle { inode })))
    }

    /// Makes a regular file without a name and opens it.
    pub async fn tmpfile(
        &self,
        credentials: Credentials,
        parent: InodeId,
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<(Attr, Arc<Handle>)> {
        let _ = flags;
        let attr = entry(self.change(credentials, MetaOp::Tmpfile { parent, mode, umask }).await?)?;
        self.inodes.remember(attr.ino);
        let inode = self.inodes.acquire(attr.ino);
        self.inodes.unlinked(attr.ino);
        Ok((attr, Arc::new(Handle { inode })))
    }

    /// Fills `buf` from `offset`; returns how many of its bytes are before the end of the file.
    pub async fn read(&self, handle: &Arc<Handle>, offset: u64, buf: IoBuf, direct: bool) -> Result<usize> {
        let inode = &handle.inode;
        let _shared = inode.gate.read().await;
        self.load(inode).await?;
        let (len, layout) = {
            let content = inode.content.lock();
            let len = content.size.saturating_sub(offset).min(buf.len() as u64) as usize;
            if let Some(inline) = &content.inline {
                copy_inline(inline, offset, &buf, len);
                return Ok(len);
            }
            (len, content.layout.clone())
        };
        let Some(layout) = layout else {
            buf.zero(0..len);
            return Ok(len);
        };
        // Whole blocks keep the direct path open for the last, partial block of a file.
        let whole = len.next_multiple_of(types::BLOCK_SIZE).min(buf.len());
        let path = self.path_of(direct, whole);
        self.read_chunks(inode.ino, &layout, offset, buf.slice(0..whole), path).await?;
        Ok(len)
    }

    /// Writes all of `buf` at `offset`.
    pub async fn write(&self, handle: &Arc<Handle>, offset: u64, buf: IoBuf, how: WriteHow) -> Result<usize> {
        let (inode, len) = (&handle.inode, buf.len());
        if len == 0 {
            return Ok(0);
        }
        if !self.write_through(inode, offset, &buf, how).await? {
            self.write_reshaping(inode, offset, &buf, how).await?;
        }
        if how.durable {
            self.report_progress(inode, false).await?;
            self.ask(MetaOp::Sync).await?;
        }
        Ok(len)
    }

    /// The everyday write: the file is in chunks and this session may change them. False when it isn't so yet.
    async fn write_through(
        &self,
        inode: &OpenInode,
        offset: u64,
        buf: &IoBuf,
        how: WriteHow,
    ) -> Result<bool> {
        let _shared = inode.gate.read().await;
        let prepared = prepare(&inode.content.lock());
        let Prepared::Chunks(layout) = prepared else { return Ok(false) };
        self.write_and_note(inode, &layout, offset, buf, how).await?;
        Ok(true)
    }

    async fn write_and_note(
        &self,
        inode: &OpenInode,
        layout: &Layout,
        offset: u64,
        buf: &IoBuf,
        how: WriteHow,
    ) -> Result<()> {
        let path = self.path_of(how.direct, buf.len());
        let written = self.write_chunks(inode.ino, layout, offset, buf.clone(), path, how.durable).await;
        let kill = {
            let mut content = inode.content.lock();
            if let Err(error) = written {
                // Some targets may have taken their part.
                content.cut_pending |= offset + buf.len() as u64 > content.size;
                return Err(error);
            }
            content.size = content.size.max(offset + buf.len() as u64);
            content.mtime = Some(rt::now());
            content.unreported = true;
            content.changes += u64::from(!how.durable);
            // The kernel asks for it with every write of an unprivileged program; mostly there is nothing to clear.
            how.kill_suid_sgid && std::mem::take(&mut content.privileged)
        };
        if kill {
            let set = SetAttr { kill_suid_sgid: true, ..SetAttr::default() };
            self.report(MetaOp::Setattr { ino: inode.ino, set }).await?;
        }
        Ok(())
    }

    /// The first write, or one to an inline file.
    async fn write_reshaping(
        &self,
        inode: &OpenInode,
        offset: u64,
        buf: &IoBuf,
        how: WriteHow,
    ) -> Result<()> {
        let _alone = inode.gate.write().await;
        self.load(inode).await?;
        let end = offset + buf.len() as u64;
        let fits_inline = {
            let content = inode.content.lock();
            content.stays_inline(end)
        };
        if fits_inline {
            match self.write_inline(inode, offset, buf, how.kill_suid_sgid).await {
                // A move to chunks that somebody began and didn't end has to be ended first.
                Err(error) if error.errno == Errno::ERANGE => {}
                done => return done,
            }
        }
        let layout = self.make_chunked(inode).await?;
        self.write_and_note(inode, &layout, offset, buf, how).await
    }

    async fn write_inline(
        &self,
        inode: &OpenInode,
        offset: u64,
        buf: &IoBuf,
        kill_suid_sgid: bool,
    ) -> Result<()> {
        let data = Bytes::copy_from_slice(buf.as_slice());
        let op = MetaOp::WriteInline { ino: inode.ino, offset, data: data.clone(), kill_suid_sgid };
        let attr = entry(self.report(op).await?)?;
        let mut content = inode.content.lock();
        let old = content.inline.take().unwrap_or_default();
        content.inline = Some(laid_over(old, offset as usize, data));
        content.size = attr.size;
        Ok(())
    }

    fn path_of(&self, direct: bool, len: usize) -> Path {
        if len >= DIRECT_FROM || (direct && !self.server_cache) { Path::Direct } else { Path::Cached }
    }

    /// One descriptor is closed. Nothing is held back here, so there is nothing to report.
    pub async fn flush(&self, handle: &Arc<Handle>) -> Result<()> {
        let _ = handle;
        Ok(())
    }

    /// The last descriptor is gone.
    pub async fn release(&self, handle: Arc<Handle>) {
        self.end_use(&handle.inode).await;
    }

    /// Ends one use of an inode; the last one reports what was written.
    pub(crate) async fn end_use(&self, inode: &Arc<OpenInode>) {
        let unfinished = inode.content.lock().is_unfinished();
        // Held until the use has ended: of two uses that end at once, one must see that it is the last.
        let _alone = if unfinished { Some(inode.gate.write().await) } else { None };
        if unfinished
            && self.inodes.is_last_use(inode.ino)
            && let Err(error) = self.end_write(inode, true).await
        {
            tracing::warn!(ino = %inode.ino, %error, "size and times are settled from the chunks at the next start");
        }
        self.inodes.release(inode.ino);
    }

    /// Data, size and name of the file are on disk when this returns.
    pub async fn fsync(&self, handle: &Arc<Handle>, data_only: bool) -> Result<()> {
        let _ = data_only;
        let inode = &handle.inode;
        self.load(inode).await?;
        let (layout, changes) = {
            let content = inode.content.lock();
            (content.layout.clone().filter(|_| content.synced < content.changes), content.changes)
        };
        if let Some(layout) = layout {
            self.on_every_stripe(inode.ino, &layout, |_| StorageOp::Sync).await?;
            // Only now, so that whoever syncs at the same time waits for the disk as well.
            let mut content = inode.content.lock();
            content.synced = content.synced.max(changes);
        }
        self.report_progress(inode, false).await?;
        self.ask(MetaOp::Sync).await.map(drop)
    }

    /// Tells the metadata service size and mtime if it doesn't know them.
    pub(crate) async fn report_progress(&self, inode: &OpenInode, done: bool) -> Result<()> {
        let needed = {
            let content = inode.content.lock();
            content.unreported || (done && content.is_unfinished())
        };
        if !needed {
            return Ok(());
        }
        let _alone = inode.gate.write().await;
        self.end_write(inode, done).await
    }

    /// The same under the exclusive gate.
    pub(crate) async fn end_write(&self, inode: &OpenInode, done: bool) -> Result<()> {
        if done {
            self.finish_cut(inode).await?;
        }
        let (size, mtime, layout) = {
            let content = inode.content.lock();
            if !content.writing || !(content.unreported || done) {
                return Ok(());
            }
            (content.size, content.mtime, content.layout.clone())
        };
        let blocks = match layout {
            Some(layout) => self.allocated(inode.ino, &layout).await?,
            None => 0,
        };
        let op = MetaOp::EndWrite { ino: inode.ino, size, blocks, mtime, done, kill_suid_sgid: false };
        self.report(op).await?;
        self.inodes.reported(inode.ino);
        let mut content = inode.content.lock();
        content.unreported = false;
        content.mtime = None;
        content.writing = !done;
        Ok(())
    }

    /// Asks the metadata service for what reads and writes need, once.
    pub(crate) async fn load(&self, inode: &OpenInode) -> Result<()> {
        if inode.content.lock().loaded {
            return Ok(());
        }
        let info = file_info(self.ask(MetaOp::Open { ino: inode.ino, wish: None }).await?)?;
        let mut content = inode.content.lock();
        if !content.loaded {
            content.take(info);
            // An earlier use of the file, or an earlier client, may have left chunks that aren't on disk.
            content.changes += u64::from(content.layout.is_some());
        }
        Ok(())
    }
}

impl Content {
    /// True when a change up to `end` can be made in the inline content. A file that has a layout already is on its way to chunks.
    pub(crate) fn stays_inline(&self, end: u64) -> bool {
        self.inline.is_some() && self.layout.is_none() && end <= self.inline_limit as u64
    }

    /// Notes what a write has to know of the mode.
    pub(crate) fn note_mode(&mut self, bits: u32) {
        self.privileged = bits & (mode::S_ISUID | mode::S_ISGID) != 0;
    }

    /// Starts with a file that was made just now and that nobody else has seen yet, without asking for what is known.
    fn begin(&mut self, attr: &Attr, fresh: Fresh) {
        let inline = (fresh.inline_limit > 0).then(Bytes::new);
        self.take(FileInfo { attr: *attr, layout: None, inline, inline_limit: fresh.inline_limit });
        self.bare = fresh.bare;
    }

    /// Takes over what the metadata service knows.
    pub(crate) fn take(&mut self, info: FileInfo) {
        self.loaded = true;
        self.size = info.attr.size;
        self.layout = info.layout.map(Arc::new);
        self.inline = info.inline;
        self.inline_limit = info.inline_limit;
        self.note_mode(info.attr.mode);
    }
}

fn prepare(content: &Content) -> Prepared {
    match (&content.layout, &content.inline) {
        (Some(layout), None) if content.writing && !content.cut_pending => Prepared::Chunks(layout.clone()),
        _ => Prepared::Reshape,
    }
}

/// Inline content after a write at `offset`, with zeros in any gap.
fn laid_over(old: Bytes, offset: usize, data: Bytes) -> Bytes {
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

/// Fills the first `len` bytes of `buf` from inline content at `offset`, with zeros behind its end.
fn copy_inline(inline: &[u8], offset: u64, buf: &IoBuf, len: usize) {
    let range = ByteRange::at(offset, len as u64).intersect(ByteRange::new(0, inline.len() as u64));
    let present = range.len() as usize;
    if present > 0 {
        buf.copy_from(0, &inline[range.start as usize..range.end as usize]);
    }
    buf.zero(present..len);
}
