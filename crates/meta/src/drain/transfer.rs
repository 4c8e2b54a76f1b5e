//! Copying a chunk file between locations while it changes.

use crate::data::chunks::{ChunkFiles, ChunkLocation, EpochedChunkFile};
use crate::limits::COPIES_AT_ONCE;
use rt::IoBuf;
use std::cell::Cell;
use types::{BLOCK_SIZE, ChunkFileId, Errno, Error, Refusal, Result, Timestamp};
use wire::{DIRTY_REGION_BYTES, DataPath, SeekTarget, StorageOp, StorageReply};

/// Transfers of at least this many bytes bypass the page caches of both sides: they are unlikely to
/// be read soon.
const DIRECT_FROM: u64 = 64 * 1024;

/// A chunk file at a location.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub location: ChunkLocation,
    pub name: ChunkFileId,
}

/// Attributes of a chunk file.
struct ChunkStat {
    len: u64,
    mtime: Timestamp,
}

/// A copy under way.
pub(crate) struct Transfer<'a> {
    chunks: &'a ChunkFiles,
    source: Endpoint,
    destination: Endpoint,
    /// Identifies the copy at both storage services.
    token: u64,
    /// Lease epoch of all requests to the new chunk file: if this service loses the file meanwhile,
    /// its next owner has a later one.
    epoch: u64,
    /// The current round of dirty tracking at the source.
    round: Cell<u64>,
    /// Offset from which changes of the previous round are still to be copied.
    remaining_from: Cell<Option<u64>>,
    /// Whether this service may continue: the next owner of the partition deletes an unfinished
    /// copy.
    may_continue: &'a dyn Fn() -> bool,
    /// Called with the number of bytes that have been copied.
    copied: &'a dyn Fn(u64),
}

impl<'a> Transfer<'a> {
    pub fn new(
        (chunks, epoch): (&'a ChunkFiles, u64),
        source: Endpoint,
        destination: Endpoint,
        (may_continue, copied): (&'a dyn Fn() -> bool, &'a dyn Fn(u64)),
    ) -> Transfer<'a> {
        let (token, round, remaining_from) = (rt::random_u64(), Cell::new(0), Cell::new(None));
        Transfer { chunks, source, destination, token, epoch, round, remaining_from, may_continue, copied }
    }

    /// Starts dirty tracking at both services: at the source for changes, at the destination to
    /// detect a restart.
    pub async fn begin(&self) -> Result<()> {
        for end in [self.source, self.destination] {
            self.request(end, StorageOp::TrackDirty { token: self.token, round: 0 }).await?;
        }
        // A remnant of an earlier move that was given up.
        self.request(self.destination, StorageOp::Delete).await.map(drop)
    }

    /// Copies all data that exists now.
    pub async fn copy_all(&self) -> Result<()> {
        let mut from = 0;
        while let Some(start) = self.seek(from, SeekTarget::Data).await? {
            let end = self.seek(start, SeekTarget::Hole).await?.filter(|end| *end > start);
            let Some(end) = end else { return Ok(()) };
            let mut parts = Vec::new();
            let mut at = start;
            while at < end {
                let next = ((at / DIRTY_REGION_BYTES + 1) * DIRTY_REGION_BYTES).min(end);
                parts.push((at, next));
                at = next;
                if parts.len() == COPIES_AT_ONCE || at == end {
                    self.copy_parts(&mut parts).await?;
                }
            }
            from = end;
        }
        Ok(())
    }

    /// Copies the regions that have changed since the last round; returns how many there were. If
    /// there are more than `limit`, the rest is left for the next call.
    pub async fn copy_changes(&self, limit: u64) -> Result<u64> {
        let before = self.copy_recorded_changes(limit).await?;
        if self.remaining_from.get().is_some() {
            return Ok(before);
        }
        let (token, round) = (self.token, self.round.get() + 1);
        self.request(self.source, StorageOp::TrackDirty { token, round }).await?;
        self.round.set(round);
        self.remaining_from.set(Some(0));
        Ok(before + self.copy_recorded_changes(limit.saturating_sub(before)).await?)
    }

    /// Copies the changes that the source recorded in the previous round and that aren't copied
    /// yet; a result above `limit` means that there are more.
    async fn copy_recorded_changes(&self, limit: u64) -> Result<u64> {
        let Some(mut from) = self.remaining_from.get() else { return Ok(0) };
        let ChunkStat { len, .. } = self.stat(self.source).await?;
        if self.stat(self.destination).await?.len > len {
            // Truncated content must not exist when the file grows again: between its old and its
            // new end there may be a hole, which dirty tracking doesn't record.
            self.request(self.destination, StorageOp::Truncate { len }).await?;
        }
        let (mut count, mut parts) = (0, Vec::new());
        // There is nothing to copy beyond its end: a later extension is recorded.
        while from < len
            && let Some(start) = self.next_change(self.round.get(), from).await?
            && start < len
        {
            count += 1;
            if count > limit {
                self.copy_parts(&mut parts).await?;
                self.remaining_from.set(Some(start));
                return Ok(count);
            }
            from = start + DIRTY_REGION_BYTES;
            parts.push((start, from.min(len)));
            if parts.len() == COPIES_AT_ONCE {
                self.copy_parts(&mut parts).await?;
            }
        }
        self.copy_parts(&mut parts).await?;
        self.remaining_from.set(None);
        Ok(count)
    }

    /// Syncs the copied data.
    pub async fn sync(&self) -> Result<()> {
        self.request(self.destination, StorageOp::Sync).await.map(drop)
    }

    /// Gives the copy the length and modification time of the source, and syncs it. Verifies that
    /// one process served all reads and one process took all writes, so that nothing was lost. The
    /// source must not change any more, and is known to have at least `min_len` bytes.
    ///
    /// # Errors
    /// `EIO`, too, if it has less: the missing part would become a hole of the copy.
    pub async fn finish(&self, min_len: u64) -> Result<()> {
        let ChunkStat { len, mtime } = self.stat(self.source).await?;
        if len < min_len {
            return Err(truncated_source_error(self.source, len, min_len));
        }
        // A source that restarted since its changes were copied may have less now than the copy,
        // which is correct.
        let (token, round) = (self.token, self.round.get());
        self.request(self.source, StorageOp::NextDirty { token, round, from: u64::MAX }).await?;
        let copied = self.stat(self.destination).await?.len;
        if copied > len {
            self.request(self.destination, StorageOp::Truncate { len }).await?;
        } else if copied < len {
            // A hole at the end: writes zeros into the last block.
            let start = (len - 1) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
            self.copy_part(start, len).await?;
        }
        if len > 0 {
            self.request(self.destination, StorageOp::SetTime { time: mtime }).await?;
        }
        self.sync().await?;
        self.request(self.destination, StorageOp::NextDirty { token: self.token, round: 0, from: u64::MAX })
            .await?;
        if self.stat(self.destination).await?.len != len {
            let Endpoint { location, name } = self.destination;
            let message = format!("the new chunk file {:016x} in {location} has the wrong length", name.0);
            return Err(
                Error::new(Errno::EIO, message).hint("no action is needed: the service retries by itself")
            );
        }
        Ok(())
    }

    /// Ends dirty tracking. Failures don't matter: unused tracking state is replaced.
    pub async fn stop_tracking(&self) {
        for end in [self.source, self.destination] {
            let _ = self.request(end, StorageOp::EndDirtyTracking { token: self.token }).await;
        }
    }

    async fn copy_parts(&self, parts: &mut Vec<(u64, u64)>) -> Result<()> {
        let copies = parts.drain(..).map(|(start, end)| self.copy_part(start, end));
        rt::join_all(copies.collect()).await.into_iter().collect()
    }

    async fn copy_part(&self, start: u64, end: u64) -> Result<()> {
        let len = (end - start) as usize;
        let whole = len.next_multiple_of(BLOCK_SIZE);
        let buf = IoBuf::alloc(whole);
        let path = if end - start >= DIRECT_FROM { DataPath::Direct } else { DataPath::Cached };
        self.send(self.source, StorageOp::Read { offset: start, path }, Some(buf.clone())).await?;
        if !(self.may_continue)() {
            return Err(Error::new(
                Refusal::PartitionNotServed,
                "another metadata service owns the file now",
            ));
        }
        let write = StorageOp::Write { offset: start, path, durable: false };
        self.send(self.destination, write, Some(buf.slice(0..len))).await?;
        (self.copied)(len as u64);
        Ok(())
    }

    async fn seek(&self, from: u64, what: SeekTarget) -> Result<Option<u64>> {
        offset(self.request(self.source, StorageOp::Seek { from, what }).await?)
    }

    async fn next_change(&self, round: u64, from: u64) -> Result<Option<u64>> {
        offset(self.request(self.source, StorageOp::NextDirty { token: self.token, round, from }).await?)
    }

    async fn stat(&self, end: Endpoint) -> Result<ChunkStat> {
        match self.request(end, StorageOp::Stat).await? {
            StorageReply::Stat { len, mtime, .. } => Ok(ChunkStat { len, mtime }),
            other => Err(unexpected_reply(&other)),
        }
    }

    async fn request(&self, end: Endpoint, op: StorageOp) -> Result<StorageReply> {
        self.send(end, op, None).await
    }

    async fn send(&self, end: Endpoint, op: StorageOp, payload: Option<IoBuf>) -> Result<StorageReply> {
        // The source is only read.
        let epoch = if end == self.destination { self.epoch } else { 0 };
        self.chunks.send(end.location, EpochedChunkFile { name: end.name, epoch }, op, payload).await
    }
}

/// The error for a source that is shorter than its known length.
pub(super) fn truncated_source_error(Endpoint { location, name }: Endpoint, len: u64, min_len: u64) -> Error {
    let message =
        format!("chunk file {:016x} in {location} has {len} bytes and had at least {min_len}", name.0);
    Error::new(Errno::EIO, message)
        .hint("weft fsck shows the file name: restore the chunk file, or restore the file from a backup")
}

fn offset(reply: StorageReply) -> Result<Option<u64>> {
    match reply {
        StorageReply::Offset(offset) => Ok(offset),
        other => Err(unexpected_reply(&other)),
    }
}

fn unexpected_reply(reply: &StorageReply) -> Error {
    Error::new(Errno::EPROTO, format!("a target sent an unexpected reply type: {reply:?}"))
}
