//! Memory for the buffers of a core's workers.

use crate::sys;
use rt::IoBuf;
use std::io;

/// One mapping, divided into pieces of equal size. The system allocates memory page by page as
/// requests touch it, so a mount that moves no bulk data stays small. The addresses stay mapped for
/// the life of the process, since the kernel may still use them when a mount ends. Dropping the
/// arena releases the memory behind them.
pub(crate) struct Arena {
    memory: IoBuf,
    piece: usize,
}

impl Arena {
    /// Maps `count` pieces of `piece` bytes.
    pub(crate) fn new(piece: usize, count: usize) -> io::Result<Arena> {
        Ok(Arena { memory: sys::map_permanently(piece * count)?, piece })
    }

    /// Returns the number of pieces.
    pub(crate) fn count(&self) -> usize {
        self.memory.len() / self.piece
    }

    /// Returns one piece.
    pub(crate) fn piece(&self, index: usize) -> IoBuf {
        self.memory.slice(index * self.piece..(index + 1) * self.piece)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `memory` is the whole mapping, and nothing uses a piece of it any more: the core
        // that it serves drops it, after its last request.
        unsafe { sys::discard(&self.memory) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_apart() {
        let arena = Arena::new(8192, 3).unwrap();
        assert_eq!(arena.count(), 3);
        for index in 0..3 {
            let piece = arena.piece(index);
            assert!(piece.is_aligned());
            assert_eq!(piece.len(), 8192);
            piece.copy_from(0, &[index as u8 + 1; 8192]);
        }
        assert_eq!(arena.piece(0).as_slice()[8191], 1);
        assert_eq!(arena.piece(1).as_slice()[0], 2);
    }
}
