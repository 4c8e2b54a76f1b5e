//! Looking at copies of chunk files, and changing them, wherever they are.

use crate::data::Seat;
use crate::plan::{Looked, PIECE_BYTES};
use std::future::Future;
use std::pin::Pin;
use types::{ByteRange, Errno, InodeId, Result, TargetId};

/// What is told apart in damage.
const BLOCK: u64 = types::BLOCK_SIZE as u64;

/// What comes later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// What becomes of a chunk file that belongs to nobody, and of what is cut off one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discard {
    /// It is kept aside, and can be put back.
    SetAside,
    /// It is deleted for good.
    Delete,
}

/// The targets of a cluster, wherever they are.
pub trait Targets {
    /// Length of a chunk file; 0 for one that isn't there.
    fn len(&self, seat: Seat, ino: InodeId) -> Later<'_, u64>;
    /// Reads a range of a chunk file, which checks it against its checksums; a sum of what there
    /// is.
    fn read(&self, seat: Seat, ino: InodeId, range: ByteRange) -> Later<'_, u32>;
    /// The chunk files there from one on, and where to go on.
    fn list(&self, seat: Seat, from: InodeId) -> Later<'_, (Vec<InodeId>, Option<InodeId>)>;
    /// Makes the copy of a chunk file on the target `to` of the seat's group what it is at the
    /// seat: in a range, and in its length where the range reaches its end.
    fn mend(&self, from: Seat, to: TargetId, ino: InodeId, range: ByteRange) -> Later<'_, ()>;
    /// Makes holes of what of a range is on no copy of the seat's group; what was lost.
    fn forget(&self, seat: Seat, ino: InodeId, range: ByteRange) -> Later<'_, Vec<ByteRange>>;
    /// Takes a chunk file away that belongs to nobody, on all copies.
    fn discard(&self, seat: Seat, ino: InodeId, how: Discard) -> Later<'_, ()>;
    /// Waits a moment.
    fn rest(&self) -> Later<'_, ()>;
}

/// Looks at a copy. `needed`: bytes that have to be there.
pub(crate) async fn look(targets: &dyn Targets, seat: Seat, name: InodeId, needed: u64) -> Result<Looked> {
    let len = targets.len(seat, name).await?;
    let mut looked = Looked { len, ..Looked::default() };
    if len == 0 {
        return Ok(looked);
    }
    // Beyond its end there are checksums yet when it was cut behind the store's back.
    let end = len.max(needed);
    let mut at = 0;
    while at < end {
        let piece = ByteRange::new(at, (at + PIECE_BYTES).min(end));
        at = piece.end;
        looked.sums.push(sum(targets, seat, name, piece).await?);
        if matches!(looked.sums.last(), Some(None)) {
            damage(targets, seat, name, piece, &mut looked.damaged).await?;
        }
    }
    Ok(looked)
}

/// The blocks of a piece that can't be read.
async fn damage(
    targets: &dyn Targets,
    seat: Seat,
    name: InodeId,
    piece: ByteRange,
    damaged: &mut Vec<ByteRange>,
) -> Result<()> {
    let mut at = piece.start;
    while at < piece.end {
        let range = ByteRange::new(at, (at + BLOCK).min(piece.end));
        at = range.end;
        if sum(targets, seat, name, range).await?.is_some() {
            continue;
        }
        match damaged.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => damaged.push(range),
        }
    }
    Ok(())
}

/// The sum of a range; `None` when it can't be read.
async fn sum(targets: &dyn Targets, seat: Seat, name: InodeId, range: ByteRange) -> Result<Option<u32>> {
    match targets.read(seat, name, range).await {
        Ok(sum) => Ok(Some(sum)),
        Err(error) if error.errno == Errno::EIO => Ok(None),
        Err(error) => Err(error),
    }
}
