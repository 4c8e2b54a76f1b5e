//! Copying a chunk file from place to place while it changes.

use crate::chunks::{Chunks, Place, Under};
use crate::limits::COPIES_AT_ONCE;
use rt::IoBuf;
use std::cell::Cell;
use types::{BLOCK_SIZE, Errno, Error, InodeId, Result, Timestamp};
use wire::{Path, Seek, StorageOp, StorageReply, WATCHED_REGION};

/// Transfers of at least this many bytes go past the page caches of both sides: nobody is about to
/// read them.
const DIRECT_FROM: u64 = 64 * 1024;

/// A chunk file in a place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub place: Place,
    pub name: InodeId,
}

/// What a chunk file looks like.
struct Found {
    len: u64,
    mtime: Timestamp,
}

/// One copy that is being made.
pub(crate) struct Transfer<'a> {
    chunks: &'a Chunks,
    source: End,
    into: End,
    /// By which both storage services know it.
    token: u64,
    /// Of everything that is done to the copy: whoever has the file next, if this service loses it
    /// meanwhile, has a later one.
    epoch: u64,
    /// The round of the source's watch.
    round: Cell<u64>,
    /// From where on what changed in the round before is still to be copied.
    left: Cell<Option<u64>>,
    /// Whether it is still this service's to make: another one deletes what it finds half made.
    goes_on: &'a dyn Fn() -> bool,
    /// Is told how many bytes have been copied.
    copied: &'a dyn Fn(u64),
}

impl<'a> Transfer<'a> {
    pub fn new(
        (chunks, epoch): (&'a Chunks, u64),
        source: End,
        into: End,
        (goes_on, copied): (&'a dyn Fn() -> bool, &'a dyn Fn(u64)),
    ) -> Transfer<'a> {
        let (token, round, left) = (rt::random_u64(), Cell::new(0), Cell::new(None));
        Transfer { chunks, source, into, token, epoch, round, left, goes_on, copied }
    }

    /// Has both services watch: the source for what changes, the other so that its death is
    /// noticed.
    pub async fn begin(&self) -> Result<()> {
        for end in [self.source, self.into] {
            self.ask(end, StorageOp::Watch { token: self.token, round: 0 }).await?;
        }
        // What a move left that was given up.
        self.ask(self.into, StorageOp::Delete).await.map(drop)
    }

    /// Copies all data that there is now.
    pub async fn copy_all(&self) -> Result<()> {
        let mut from = 0;
        while let Some(start) = self.seek(from, Seek::Data).await? {
            let end = self.seek(start, Seek::Hole).await?.filter(|end| *end > start);
            let Some(end) = end else { return Ok(()) };
            let mut parts = Vec::new();
            let mut at = start;
            while at < end {
                let next = ((at / WATCHED_REGION + 1) * WATCHED_REGION).min(end);
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

    /// Copies the regions that have changed since the last round; how many there were. When there
    /// are more than `limit`, some of them are left for the next call.
    pub async fn copy_changes(&self, limit: u64) -> Result<u64> {
        let before = self.copy_noted(limit).await?;
        if self.left.get().is_some() {
            return Ok(before);
        }
        let (token, round) = (self.token, self.round.get() + 1);
        self.ask(self.source, StorageOp::Watch { token, round }).await?;
        self.round.set(round);
        self.left.set(Some(0));
        Ok(before + self.copy_noted(limit.saturating_sub(before)).await?)
    }

    /// Copies what the source has noted in the round before, as far as that has not been done; one
    /// more than `limit` tells that there is more.
    async fn copy_noted(&self, limit: u64) -> Result<u64> {
        let Some(mut from) = self.left.get() else { return Ok(0) };
        let Found { len, .. } = self.stat(self.source).await?;
        if self.stat(self.into).await?.len > len {
            // What was cut off must not be there when the file grows again: between its old and its
            // new end that may be a hole, which no note tells of.
            self.ask(self.into, StorageOp::Truncate { len }).await?;
        }
        let (mut count, mut parts) = (0, Vec::new());
        // Beyond its end there is nothing to copy: what makes it longer later is noted.
        while from < len
            && let Some(start) = self.next_change(self.round.get(), from).await?
            && start < len
        {
            count += 1;
            if count > limit {
                self.copy_parts(&mut parts).await?;
                self.left.set(Some(start));
                return Ok(count);
            }
            from = start + WATCHED_REGION;
            parts.push((start, from.min(len)));
            if parts.len() == COPIES_AT_ONCE {
                self.copy_parts(&mut parts).await?;
            }
        }
        self.copy_parts(&mut parts).await?;
        self.left.set(None);
        Ok(count)
    }

    /// What was copied is on disk when this returns.
    pub async fn sync(&self) -> Result<()> {
        self.ask(self.into, StorageOp::Sync).await.map(drop)
    }

    /// Gives the copy the length of the source and the time of its last change, puts it on disk,
    /// and makes sure that everything was read from one and the same process and sent to one and
    /// the same, which so has all of it. Nothing may change the source any more, which is known to
    /// have at least `known` bytes.
    ///
    /// # Errors
    /// `EIO`, too, when it has less: what is missing would be a hole of the copy.
    pub async fn finish(&self, known: u64) -> Result<()> {
        let Found { len, mtime } = self.stat(self.source).await?;
        if len < known {
            return Err(lacking(self.source, len, known));
        }
        // A source that was started anew since its changes were copied may have less now than the
        // copy, which is right.
        let (token, round) = (self.token, self.round.get());
        self.ask(self.source, StorageOp::Changed { token, round, from: u64::MAX }).await?;
        let copied = self.stat(self.into).await?.len;
        if copied > len {
            self.ask(self.into, StorageOp::Truncate { len }).await?;
        } else if copied < len {
            // A hole at its end: of its last block zeros are written.
            let start = (len - 1) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
            self.copy_part(start, len).await?;
        }
        if len > 0 {
            self.ask(self.into, StorageOp::SetTime { time: mtime }).await?;
        }
        self.sync().await?;
        self.ask(self.into, StorageOp::Changed { token: self.token, round: 0, from: u64::MAX }).await?;
        if self.stat(self.into).await?.len != len {
            let End { place, name } = self.into;
            let message = format!("the copy {:016x} in {place} isn't as long as it should be", name.0);
            return Err(Error::new(Errno::EIO, message).hint("it is tried again by itself"));
        }
        Ok(())
    }

    /// Ends the watches. Failures don't matter: a watch that nobody asks makes room for others.
    pub async fn forget(&self) {
        for end in [self.source, self.into] {
            let _ = self.ask(end, StorageOp::Unwatch { token: self.token }).await;
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
        let path = if end - start >= DIRECT_FROM { Path::Direct } else { Path::Cached };
        self.send(self.source, StorageOp::Read { offset: start, path }, Some(buf.clone())).await?;
        if !(self.goes_on)() {
            return Err(Error::new(Errno::EREMOTE, "the file is another metadata service's now"));
        }
        let write = StorageOp::Write { offset: start, path, durable: false };
        self.send(self.into, write, Some(buf.slice(0..len))).await?;
        (self.copied)(len as u64);
        Ok(())
    }

    async fn seek(&self, from: u64, what: Seek) -> Result<Option<u64>> {
        offset(self.ask(self.source, StorageOp::Seek { from, what }).await?)
    }

    async fn next_change(&self, round: u64, from: u64) -> Result<Option<u64>> {
        offset(self.ask(self.source, StorageOp::Changed { token: self.token, round, from }).await?)
    }

    async fn stat(&self, end: End) -> Result<Found> {
        match self.ask(end, StorageOp::Stat).await? {
            StorageReply::Stat { len, mtime, .. } => Ok(Found { len, mtime }),
            other => Err(out_of_turn(&other)),
        }
    }

    async fn ask(&self, end: End, op: StorageOp) -> Result<StorageReply> {
        self.send(end, op, None).await
    }

    async fn send(&self, end: End, op: StorageOp, payload: Option<IoBuf>) -> Result<StorageReply> {
        // The source is only read.
        let epoch = if end == self.into { self.epoch } else { 0 };
        self.chunks.send(end.place, Under { ino: end.name, epoch }, op, payload).await
    }
}

/// The refusal of a source that ends before what was written to it.
pub(super) fn lacking(End { place, name }: End, len: u64, known: u64) -> Error {
    let message = format!("chunk file {:016x} in {place} has {len} bytes and had at least {known}", name.0);
    Error::new(Errno::EIO, message)
        .hint("weft fsck names the file: put the chunk file back, or restore the file from a backup")
}

fn offset(reply: StorageReply) -> Result<Option<u64>> {
    match reply {
        StorageReply::Offset(offset) => Ok(offset),
        other => Err(out_of_turn(&other)),
    }
}

fn out_of_turn(reply: &StorageReply) -> Error {
    Error::new(Errno::EPROTO, format!("a target answered out of turn: {reply:?}"))
}
