//! Reading and changing replicas of chunk files, in this process or over the network.

use crate::data::ReplicaLocation;
use crate::plan::{PIECE_BYTES, ReplicaState};
use std::future::Future;
use std::pin::Pin;
use types::{ByteRange, ChunkFileId, Errno, Result, TargetId};

/// Granularity of damage.
const BLOCK: u64 = types::BLOCK_SIZE as u64;

/// A future with a result.
pub type TargetFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// What happens to an orphaned chunk file, and to data cut off one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discard {
    /// It is moved aside and can be restored.
    MoveAside,
    /// It is deleted permanently.
    Delete,
}

/// The targets of a cluster, local or remote.
pub trait Targets {
    /// Returns the length of a chunk file; 0 if it doesn't exist.
    fn len(&self, location: ReplicaLocation, ino: ChunkFileId) -> TargetFuture<'_, u64>;
    /// Reads a range of a chunk file and verifies it against its checksums; returns a checksum of
    /// the content.
    fn read(&self, location: ReplicaLocation, ino: ChunkFileId, range: ByteRange) -> TargetFuture<'_, u32>;
    /// Lists chunk files from `from` on; returns the start of the next part, if any.
    fn list(
        &self,
        location: ReplicaLocation,
        from: ChunkFileId,
    ) -> TargetFuture<'_, (Vec<ChunkFileId>, Option<ChunkFileId>)>;
    /// Copies a range of a chunk file from `from` to the replica on target `to` of the same group.
    /// Also sets the length where the range reaches the end.
    fn repair(
        &self,
        from: ReplicaLocation,
        to: TargetId,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> TargetFuture<'_, ()>;
    /// Makes holes of those parts of a range that no replica of the group has; returns the lost
    /// ranges.
    fn give_up(
        &self,
        location: ReplicaLocation,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> TargetFuture<'_, Vec<ByteRange>>;
    /// Removes an orphaned chunk file on all replicas.
    fn discard(&self, location: ReplicaLocation, ino: ChunkFileId, how: Discard) -> TargetFuture<'_, ()>;
    /// Waits a moment.
    fn pause(&self) -> TargetFuture<'_, ()>;
}

/// Reads the state of a replica. `needed`: bytes that must exist.
pub(crate) async fn read_replica(
    targets: &dyn Targets,
    location: ReplicaLocation,
    name: ChunkFileId,
    needed: u64,
) -> Result<ReplicaState> {
    let len = targets.len(location, name).await?;
    let mut state = ReplicaState { len, ..ReplicaState::default() };
    if len == 0 {
        return Ok(state);
    }
    // If the file was truncated outside weft, there are still checksums beyond its end.
    let end = len.max(needed);
    let mut at = 0;
    while at < end {
        let piece = ByteRange::new(at, (at + PIECE_BYTES).min(end));
        at = piece.end;
        state.sums.push(sum(targets, location, name, piece).await?);
        if matches!(state.sums.last(), Some(None)) {
            damage(targets, location, name, piece, &mut state.damaged).await?;
        }
    }
    Ok(state)
}

/// Adds the blocks of a piece that can't be read.
async fn damage(
    targets: &dyn Targets,
    location: ReplicaLocation,
    name: ChunkFileId,
    piece: ByteRange,
    damaged: &mut Vec<ByteRange>,
) -> Result<()> {
    let mut at = piece.start;
    while at < piece.end {
        let range = ByteRange::new(at, (at + BLOCK).min(piece.end));
        at = range.end;
        if sum(targets, location, name, range).await?.is_some() {
            continue;
        }
        match damaged.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => damaged.push(range),
        }
    }
    Ok(())
}

/// Returns the checksum of a range; `None` when it can't be read.
async fn sum(
    targets: &dyn Targets,
    location: ReplicaLocation,
    name: ChunkFileId,
    range: ByteRange,
) -> Result<Option<u32>> {
    match targets.read(location, name, range).await {
        Ok(sum) => Ok(Some(sum)),
        Err(error) if error.errno == Errno::EIO => Ok(None),
        Err(error) => Err(error),
    }
}
