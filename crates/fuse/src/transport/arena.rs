//! Memory for the buffers of a core's lanes.

use crate::sys;
use rt::IoBuf;
use std::io;

/// Equal pieces of one mapping. Memory is taken page by page as requests need it, so that a mount
/// that moves no bulk data stays small. The addresses stay mapped for as long as the process lives,
/// since the kernel may still hold them when a mount ends; the memory behind them goes back when
/// the arena is dropped.
pub(crate) struct Arena {
    memory: IoBuf,
    piece: usize,
}

impl Arena {
    /// `count` pieces of `piece` bytes.
    pub(crate) fn new(piece: usize, count: usize) -> io::Result<Arena> {
        Ok(Arena { memory: sys::map_forever(piece * count)?, piece })
    }

    /// How many pieces there are.
    pub(crate) fn count(&self) -> usize {
        self.memory.len() / self.piece
    }

    /// One piece.
    pub(crate) fn piece(&self, index: usize) -> IoBuf {
        self.memory.slice(index * self.piece..(index + 1) * self.piece)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        sys::discard(&self.memory);
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
