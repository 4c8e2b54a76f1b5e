//! Resync of a member of a mirrored group: sends it what may differ, piece by piece, while each
//! piece is locked against changes.

use crate::group::member_resync::{MemberResync, ResyncWork, merged};
use crate::group::range_locks::{LockMode, WHOLE_FILE};
use chunkstore::{IoPath, Kind, Seek};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use types::{BLOCK_SIZE, ByteRange, ChunkFileId, Errno, Error, Result};
use wire::{AllocateMode, DataPath, StorageOp, StorageReply};

/// Data sent at a time, bytes. Writes to the piece wait that long.
const PIECE_BYTES: u64 = 1 << 20;

/// Pieces of a file in flight at a time, so that the disks of both sides and the network work
/// concurrently.
const PIECES_AT_ONCE: usize = 4;

/// Files that are sent at a time: each takes some round trips, and small files consist of nearly
/// nothing else.
const FILES_SENT_AT_ONCE: usize = 4;

/// Files that are checked for existence here at a time.
const FILES_AT_ONCE: usize = 64;

/// The resync of a member, which has a replica of everything.
pub(super) struct ReplicaResync<'a> {
    pub(super) resync: &'a MemberResync<'a>,
}

/// The position up to which a file has been given to the senders.
struct SendPosition {
    at: Cell<u64>,
    /// Held by the sender that looks for the next piece.
    lock: rt::sync::RwLock,
}

impl ReplicaResync<'_> {
    /// Makes the files of the work the same on the member as here: their existence, their length,
    /// and the content of the ranges.
    pub(super) async fn send_work(&self, work: ResyncWork) -> Result<()> {
        let mut here = Vec::new();
        for some in work.into_iter().collect::<Vec<_>>().chunks(FILES_AT_ONCE) {
            here.extend(self.remove_absent(some).await?);
        }
        self.send_files(here).await
    }

    /// Removes from the member the files that don't exist here, and returns the others. After a
    /// crash the intent log names many files that never existed.
    async fn remove_absent(&self, some: &[(ChunkFileId, Vec<ByteRange>)]) -> Result<ResyncWork> {
        let mut here = ResyncWork::new();
        let mut deletions = Vec::new();
        for (ino, ranges) in some {
            if self.is_here(*ino).await? {
                here.insert(*ino, ranges.clone());
            } else {
                deletions.push(self.send_file(*ino, ranges.clone()));
            }
        }
        rt::join_all(deletions).await.into_iter().collect::<Result<()>>()?;
        Ok(here)
    }

    /// Whether the chunk file exists here. An open file counts even if another program has unlinked
    /// it: its content can still be read.
    pub(super) async fn is_here(&self, ino: ChunkFileId) -> Result<bool> {
        if self.resync.replica.store.is_open(ino) {
            return Ok(true);
        }
        self.resync
            .replica
            .store
            .has_chunk_file(ino)
            .await
            .map_err(|error| self.resync.replica.failed(&error))
    }

    /// Fails if an absent chunk file was removed by another program and has only now been closed:
    /// the next attempt begins by restoring it.
    async fn require_deleted(&self, ino: ChunkFileId) -> Result<()> {
        match self
            .resync
            .replica
            .store
            .is_missing(ino)
            .await
            .map_err(|error| self.resync.replica.failed(&error))?
        {
            false => Ok(()),
            true => {
                let message = format!(
                    "target {}: the chunk file of inode {ino} is missing",
                    self.resync.replica.target
                );
                Err(Error::new(Errno::EAGAIN, message).hint("the member is resynced again automatically"))
            }
        }
    }

    /// Sends files, some at a time. Begins no more after a failure.
    async fn send_files(&self, files: Vec<(ChunkFileId, Vec<ByteRange>)>) -> Result<()> {
        let left = RefCell::new(files.into_iter());
        let next = || left.borrow_mut().next();
        let senders = (0..FILES_SENT_AT_ONCE).map(|_| async {
            while let Some((ino, ranges)) = next() {
                if let Err(error) = self.send_file(ino, ranges).await {
                    left.borrow_mut().by_ref().for_each(drop);
                    return Err(error);
                }
            }
            Ok(())
        });
        rt::join_all(senders.collect()).await.into_iter().collect()
    }

    /// Resyncs one file: its existence, its length, and the content of the ranges.
    async fn send_file(&self, ino: ChunkFileId, ranges: Vec<ByteRange>) -> Result<()> {
        let replica = self.resync.replica;
        let turn = self.resync.wait_for_turn().await?;
        self.restore_length(ino).await?;
        let (is_there, repeated) = {
            let _held = replica.ranges.acquire(ino, WHOLE_FILE, LockMode::Exclusive).await;
            match self.is_here(ino).await? {
                true => {
                    let len = self.resync.len(ino).await?;
                    let missing = self.missing_tail(ino, len, &ranges).await?;
                    (true, missing.into_iter().chain(self.set_len(ino, len).await?).collect())
                }
                false => {
                    self.require_deleted(ino).await?;
                    self.resync.call_member(ino, StorageOp::Delete, None).await?;
                    (false, Vec::new())
                }
            }
        };
        self.resync.yield_to_clients(turn).await;
        if is_there {
            for range in merged(repeated.into_iter().chain(ranges).collect()) {
                self.send_range(ino, range).await?;
            }
            self.set_time(ino).await?;
        }
        self.resync.progress.file_done(0);
        Ok(())
    }

    /// Gives the member's replica the modification time of this one: the member may have to report
    /// it one day.
    async fn set_time(&self, ino: ChunkFileId) -> Result<()> {
        let _held = self.resync.replica.ranges.acquire(ino, WHOLE_FILE, LockMode::Exclusive).await;
        let stat =
            self.resync.replica.store.stat(ino).await.map_err(|error| self.resync.replica.failed(&error))?;
        match stat.len {
            0 => Ok(()),
            _ => self.resync.call_member(ino, StorageOp::SetTime { time: stat.mtime }, None).await.map(drop),
        }
    }

    /// Returns what the member's replica lacks beyond its end, of a file of `len` bytes, unless the
    /// ranges cover the whole file. The intent log doesn't record that another program removed or
    /// truncated a chunk file there, with its checksums: what lies between its end and the ranges
    /// would become a hole.
    async fn missing_tail(
        &self,
        ino: ChunkFileId,
        len: u64,
        ranges: &[ByteRange],
    ) -> Result<Option<ByteRange>> {
        let whole = ByteRange::new(0, len);
        let is_all = |range: &ByteRange| range.intersect(whole) == whole;
        if len == 0 || merged(ranges.to_vec()).iter().any(is_all) {
            return Ok(None);
        }
        let StorageReply::Stat { len: has, .. } = self.resync.call_member(ino, StorageOp::Stat, None).await?
        else {
            return Ok(None);
        };
        let start = has / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
        Ok((has < len).then(|| ByteRange::new(start, len)))
    }

    /// Sets the length of the member's replica. If the block in which it ends is damaged there,
    /// that block is cut off and must be sent.
    async fn set_len(&self, ino: ChunkFileId, len: u64) -> Result<Option<ByteRange>> {
        let truncate = |len| self.resync.call_member(ino, StorageOp::Truncate { len }, None);
        match truncate(len).await {
            Ok(_) => return Ok(None),
            Err(error) if error.errno == Errno::EIO => {}
            Err(error) => return Err(error),
        }
        let block = ByteRange::new(len / BLOCK_SIZE as u64 * BLOCK_SIZE as u64, len);
        if let Err(error) = truncate(block.start).await {
            if error.errno != Errno::EIO {
                return Err(error);
            }
            // Another program has removed it there: everything must be sent.
            self.resync.call_member(ino, StorageOp::Delete, None).await?;
            truncate(len).await?;
            return Ok(Some(ByteRange::new(0, len)));
        }
        truncate(len).await?;
        Ok(Some(block))
    }

    /// Sends a range of a file, some pieces at a time.
    async fn send_range(&self, ino: ChunkFileId, range: ByteRange) -> Result<()> {
        let position = SendPosition { at: Cell::new(range.start), lock: rt::sync::RwLock::new() };
        let senders = (0..PIECES_AT_ONCE).map(|_| async {
            let sent = self.send_pieces(ino, range.end, &position).await;
            if sent.is_err() {
                // The other senders begin nothing more.
                position.at.set(u64::MAX);
            }
            sent
        });
        rt::join_all(senders.collect()).await.into_iter().collect()
    }

    /// Sends pieces, one after the other, that no other sender has taken.
    async fn send_pieces(&self, ino: ChunkFileId, end: u64, position: &SendPosition) -> Result<()> {
        // A sender that finds nothing left here needs no turn.
        while position.at.get() < end {
            let turn = self.resync.wait_for_turn().await?;
            let Some(piece) = self.next_piece(ino, end, position).await? else { return Ok(()) };
            self.send_piece(ino, piece).await?;
            self.resync.yield_to_clients(turn).await;
        }
        Ok(())
    }

    /// Returns the next piece of a file that contains data; `None` at its end.
    async fn next_piece(
        &self,
        ino: ChunkFileId,
        end: u64,
        position: &SendPosition,
    ) -> Result<Option<ByteRange>> {
        let _exclusive = position.lock.write().await;
        let end = end.min(self.resync.len(ino).await?);
        if position.at.get() >= end {
            return Ok(None);
        }
        let start = self.punch_hole(ino, ByteRange::new(position.at.get(), end)).await?;
        // Aligned to pieces, so that all but the first are whole.
        let next = ((start / PIECE_BYTES + 1) * PIECE_BYTES).min(end);
        if position.at.get() != u64::MAX {
            position.at.set(next.max(start));
        }
        Ok((start < end).then(|| ByteRange::new(start, next)))
    }

    /// Punches a hole in the member's replica where a range begins with a hole here, whatever its
    /// length; returns its end.
    async fn punch_hole(&self, ino: ChunkFileId, range: ByteRange) -> Result<u64> {
        let block = BLOCK_SIZE as u64;
        // In whole blocks, so that the member's content doesn't matter; at the end of a file up to
        // the end of its last block.
        let limit = range.end.next_multiple_of(block);
        let data = async |from| {
            let found = self.resync.replica.store.seek(ino, from, Seek::Data).await;
            let found = found.map_err(|error| self.resync.replica.failed(&error))?;
            Ok::<u64, Error>(found.unwrap_or(u64::MAX).min(limit))
        };
        let end = |data: u64| data / block * block;
        let seen = end(data(range.start).await?);
        if seen < range.start + PIECE_BYTES && seen < range.end {
            return Ok(range.start);
        }
        let hole = ByteRange::new(range.start, seen);
        let _held = self.resync.replica.ranges.acquire(ino, hole, LockMode::Shared).await;
        let true_end = self.true_hole_end(ino, hole).await?;
        if end(data(range.start).await?) < hole.end || true_end < hole.end.min(hole.start + PIECE_BYTES) {
            return Ok(range.start);
        }
        let hole = ByteRange::new(hole.start, true_end);
        self.resync
            .call_member(ino, StorageOp::Allocate { range: hole, how: AllocateMode::Punch }, None)
            .await?;
        self.resync.progress.moved(0, hole.len(), rt::monotonic_ns());
        Ok(hole.end)
    }

    /// Sends a piece while it is locked against changes.
    async fn send_piece(&self, ino: ChunkFileId, piece: ByteRange) -> Result<()> {
        let replica = self.resync.replica;
        let _held = replica.ranges.acquire(ino, piece, LockMode::Shared).await;
        let now = piece.intersect(ByteRange::new(0, self.resync.len(ino).await?));
        let mut moved = 0;
        if !now.is_empty() {
            let buf = IoBuf::alloc(now.len() as usize);
            match replica.store.read(ino, now.start, &buf, IoPath::Direct).await {
                Ok(()) => moved = self.send(ino, now, &buf).await?,
                Err(error) if matches!(error.kind(), Kind::Corrupt { .. } | Kind::Io) => {
                    self.salvage(ino, now, replica.failed(&error)).await?;
                    moved = now.len();
                }
                Err(error) => return Err(replica.failed(&error)),
            }
        }
        self.resync.sent.set(self.resync.sent.get() + moved);
        // Comparing the member's content costs the disks as much as sending it.
        self.resync.resync_rate.record_sent(now.len());
        self.resync.progress.moved(moved, piece.len(), rt::monotonic_ns());
        Ok(())
    }

    /// Writes to the member.
    pub(super) async fn write(&self, ino: ChunkFileId, offset: u64, data: IoBuf) -> Result<()> {
        let op = StorageOp::Write { offset, path: DataPath::Direct, durable: false };
        self.resync.call_member(ino, op, Some(data)).await.map(drop)
    }

    /// Sends the parts of a range that the member lacks; returns the number of bytes.
    async fn send(&self, ino: ChunkFileId, range: ByteRange, data: &IoBuf) -> Result<u64> {
        let missing = self.differing_blocks(ino, range, data).await;
        let writes = missing.iter().map(|part| {
            let at = |offset: u64| (offset - range.start) as usize;
            self.write(ino, part.start, data.slice(at(part.start)..at(part.end)))
        });
        rt::join_all(writes.collect()).await.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(missing.iter().map(|part| part.len()).sum())
    }
}
