//! The targets of a stopped cluster.

use crate::Subject;
use crate::data::{ReplicaLocation, replica_locations, store_error};
use crate::targets::{Discard, TargetFuture, Targets};
use chunkstore::{IoPath, Kind, MAX_UNITS, Store, StoreError};
use rt::IoBuf;
use types::{ByteRange, ChunkFileId, Errno, Error, MemberState, Result, TargetId};

/// Bytes that are copied at a time.
const PIECE_BYTES: u64 = 1 << 20;

const BLOCK: u64 = types::BLOCK_SIZE as u64;

/// Chunk files that are listed at a time.
const LIST_PAGE: usize = 4096;

/// The opened stores.
pub struct LocalTargets<'a>(pub &'a Subject<'a>);

impl LocalTargets<'_> {
    fn store(&self, location: ReplicaLocation) -> Result<&Store> {
        let found = match location.group {
            Some(group) => self.0.replicas.get(&(location.target, group)),
            None => self.0.stores.get(&location.target),
        };
        found
            .map(|store| &**store)
            .ok_or_else(|| Error::new(Errno::ENODEV, format!("{location} is not here")))
    }

    async fn repair(
        &self,
        from: ReplicaLocation,
        to: TargetId,
        name: ChunkFileId,
        range: ByteRange,
    ) -> Result<()> {
        let (from, to) = (self.store(from)?, self.store(ReplicaLocation { target: to, ..from })?);
        let len = from.stat(name).await.map_err(failed)?.len;
        let old_len = to.stat(name).await.map_err(failed)?.len;
        if old_len > len {
            to.copy_aside(name).await.map_err(failed)?;
        }
        if len == 0 {
            to.truncate(name, 0).await.map_err(failed)?;
            return to.sync(name).await.map_err(failed);
        }
        if old_len == 0 {
            create_expecting(from, to, name, len).await?;
            return copy(from, to, name, ByteRange::new(0, len)).await;
        }
        if old_len != len {
            // Includes its last block, which may be damaged because of the wrong length.
            let last = ByteRange::new((len - 1) / BLOCK * BLOCK, len);
            let buf = IoBuf::alloc(last.len() as usize);
            from.read(name, last.start, &buf, IoPath::Direct).await.map_err(failed)?;
            to.rewrite(name, last, Some(&buf), Some(len)).await.map_err(failed)?;
        }
        copy(from, to, name, range.intersect(ByteRange::new(0, len))).await?;
        if old_len < len {
            copy(from, to, name, ByteRange::new(old_len / BLOCK * BLOCK, len)).await?;
        }
        to.sync(name).await.map_err(failed)
    }

    async fn give_up(
        &self,
        location: ReplicaLocation,
        name: ChunkFileId,
        range: ByteRange,
    ) -> Result<Vec<ByteRange>> {
        let stores = self.all_replicas(location)?;
        let mut is_gone = true;
        for store in &stores {
            let len = store.stat(name).await.map_err(failed)?.len;
            is_gone &= len == 0 || len <= range.start;
        }
        if is_gone {
            for store in stores {
                store.give_up(name, range).await.map_err(failed)?;
            }
            return Ok(vec![range]);
        }
        let mut lost = Vec::new();
        let mut at = range.start / BLOCK * BLOCK;
        while at < range.end {
            let block = ByteRange::at(at, BLOCK);
            at = block.end;
            let mut is_lost = true;
            for store in &stores {
                let read = store.read(name, block.start, &IoBuf::alloc(BLOCK as usize), IoPath::Cached).await;
                is_lost &= read.is_err();
            }
            if !is_lost {
                continue;
            }
            for store in &stores {
                store.give_up(name, block).await.map_err(failed)?;
            }
            lost.push(block);
        }
        Ok(lost)
    }

    /// Returns the stores of all members of a group. Fails unless all members are in sync and here:
    /// the content of others is unknown.
    fn all_replicas(&self, location: ReplicaLocation) -> Result<Vec<&Store>> {
        let Some(id) = location.group else { return Ok(vec![self.store(location)?]) };
        let group = self.0.map.group(id);
        if group.is_none_or(|group| group.is_degraded()) {
            let message = format!("group {id} has members that aren't in sync");
            return Err(Error::new(Errno::EBUSY, message)
                .hint("they may have the lost content: start the cluster, and wait until they are in sync"));
        }
        replica_locations(group)
            .filter(|(_, state)| *state == MemberState::InSync)
            .map(|(location, _)| self.store(location))
            .collect()
    }
}

/// Creates a missing chunk file with checksums only: blocks that aren't copied yet are refused,
/// also if the copy is interrupted.
async fn create_expecting(from: &Store, to: &Store, name: ChunkFileId, len: u64) -> Result<()> {
    let most = MAX_UNITS as u64 * BLOCK;
    for start in (0..len).step_by(most as usize) {
        let part = ByteRange::at(start, most).intersect(ByteRange::new(0, len));
        let survey = from.survey(name, part, BLOCK, false).await.map_err(failed)?;
        if !survey.exists {
            return Err(Error::new(Errno::EIO, format!("chunk file {:016x} is missing", name.0))
                .hint("run the check again"));
        }
        let mut sums = survey.sums;
        sums.resize(part.len().div_ceil(BLOCK) as usize, 0);
        to.expect_sums(name, start / BLOCK, &sums, len).await.map_err(failed)?;
    }
    Ok(())
}

/// Copies whole blocks, or everything up to the end of the file.
async fn copy(from: &Store, to: &Store, name: ChunkFileId, range: ByteRange) -> Result<()> {
    let mut at = range.start / BLOCK * BLOCK;
    while at < range.end {
        let piece = ByteRange::new(at, ((at / PIECE_BYTES + 1) * PIECE_BYTES).min(range.end));
        at = piece.end;
        let data = from.seek(name, piece.start, chunkstore::Seek::Data).await.map_err(failed)?;
        let is_hole = data.is_none_or(|data| data >= piece.end);
        // A hole that the store didn't make is damage.
        if is_hole && from.true_hole_end(name, piece).await.map_err(failed)? >= piece.end {
            to.rewrite(name, piece, None, None).await.map_err(failed)?;
            continue;
        }
        let buf = IoBuf::alloc(piece.len() as usize);
        from.read(name, piece.start, &buf, IoPath::Direct).await.map_err(failed)?;
        to.rewrite(name, piece, Some(&buf), None).await.map_err(failed)?;
    }
    Ok(())
}

/// Removes an orphaned chunk file.
pub(crate) async fn discard(store: &Store, name: ChunkFileId, how: Discard) -> Result<(), StoreError> {
    match how {
        Discard::MoveAside => store.set_aside(name).await,
        Discard::Delete => store.delete(name).await,
    }
}

/// Truncates a chunk file that is longer than its file. The metadata may be older than the file, so
/// a copy of the whole chunk file is moved aside first, unless the caller wants it deleted.
pub(crate) async fn truncate(
    store: &Store,
    name: ChunkFileId,
    len: u64,
    how: Discard,
) -> Result<(), StoreError> {
    if how == Discard::MoveAside {
        store.copy_aside(name).await?;
    }
    store.truncate(name, len).await
}

/// Damage keeps its own error number, whatever other errors occur.
fn failed(error: StoreError) -> Error {
    match error.kind() {
        Kind::Corrupt { .. } | Kind::Io => store_error(error),
        _ => Error::new(Errno::EINVAL, error.message().to_owned()).hint(error.hint().to_owned()),
    }
}

impl Targets for LocalTargets<'_> {
    fn len(&self, location: ReplicaLocation, ino: ChunkFileId) -> TargetFuture<'_, u64> {
        Box::pin(async move { Ok(self.store(location)?.stat(ino).await.map_err(failed)?.len) })
    }

    fn read(&self, location: ReplicaLocation, ino: ChunkFileId, range: ByteRange) -> TargetFuture<'_, u32> {
        Box::pin(async move {
            let buf = IoBuf::alloc(range.len() as usize);
            self.store(location)?.read(ino, range.start, &buf, IoPath::Direct).await.map_err(failed)?;
            Ok(types::crc32c(buf.as_slice()))
        })
    }

    fn list(
        &self,
        location: ReplicaLocation,
        from: ChunkFileId,
    ) -> TargetFuture<'_, (Vec<ChunkFileId>, Option<ChunkFileId>)> {
        Box::pin(async move { self.store(location)?.files(from, LIST_PAGE).await.map_err(failed) })
    }

    fn repair(
        &self,
        from: ReplicaLocation,
        to: TargetId,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> TargetFuture<'_, ()> {
        Box::pin(LocalTargets::repair(self, from, to, ino, range))
    }

    fn give_up(
        &self,
        location: ReplicaLocation,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> TargetFuture<'_, Vec<ByteRange>> {
        Box::pin(LocalTargets::give_up(self, location, ino, range))
    }

    fn discard(&self, location: ReplicaLocation, ino: ChunkFileId, how: Discard) -> TargetFuture<'_, ()> {
        Box::pin(async move { discard(self.store(location)?, ino, how).await.map_err(failed) })
    }

    fn pause(&self) -> TargetFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
