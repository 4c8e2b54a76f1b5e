//! The memory that a client shares with a server on its machine, divided into pieces.
//!
//! The pieces belong to the connection, not to the callers. A late server writes into a piece that
//! stays reserved until the call is answered or the connection ends. It never writes into a buffer
//! that its caller has reused.

use rt::{IoBuf, SharedMemory};
use std::cell::RefCell;
use std::rc::Rc;
use wire::frame::SHARED_PAGE_BYTES;

/// The shared memory of one connection.
pub(crate) struct Arena {
    memory: SharedMemory,
    free: RefCell<FreePages>,
}

/// A piece of the arena; freed when dropped.
pub(crate) struct Piece {
    arena: Rc<Arena>,
    first: u32,
    pages: u32,
}

impl Arena {
    pub(crate) fn new(memory: SharedMemory) -> Rc<Arena> {
        let pages = (memory.len() / SHARED_PAGE_BYTES) as u32;
        Rc::new(Arena { memory, free: RefCell::new(FreePages::new(pages)) })
    }

    /// Allocates a piece for `bytes` bytes; `None` when no free run is long enough.
    pub(crate) fn take(self: &Rc<Self>, bytes: usize) -> Option<Piece> {
        let pages = u32::try_from(bytes.div_ceil(SHARED_PAGE_BYTES)).ok()?;
        let first = self.free.borrow_mut().take(pages)?;
        Some(Piece { arena: self.clone(), first, pages })
    }
}

impl Piece {
    /// The piece's place as frame headers encode it: its first page plus one.
    pub(crate) fn place(&self) -> u32 {
        self.first + 1
    }

    pub(crate) fn copy_in(&self, data: &IoBuf) {
        assert!(data.len() <= self.pages as usize * SHARED_PAGE_BYTES);
        self.arena.memory.copy_in(self.first as usize * SHARED_PAGE_BYTES, data);
    }

    pub(crate) fn copy_out(&self, into: &IoBuf) {
        assert!(into.len() <= self.pages as usize * SHARED_PAGE_BYTES);
        self.arena.memory.copy_out(self.first as usize * SHARED_PAGE_BYTES, into);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.arena.free.borrow_mut().release(self.first, self.pages);
    }
}

/// Runs of free pages, by their first page; no two are adjacent. The requests in flight bound their
/// number. Low pages are allocated first, so that pages that were never needed are never touched.
struct FreePages {
    runs: Vec<(u32, u32)>,
}

impl FreePages {
    fn new(pages: u32) -> FreePages {
        FreePages { runs: vec![(0, pages)] }
    }

    fn take(&mut self, pages: u32) -> Option<u32> {
        let index = self.runs.iter().position(|(_, free)| *free >= pages)?;
        let (first, free) = self.runs[index];
        match free == pages {
            true => drop(self.runs.remove(index)),
            false => self.runs[index] = (first + pages, free - pages),
        }
        Some(first)
    }

    fn release(&mut self, first: u32, pages: u32) {
        let index = self.runs.partition_point(|(other, _)| *other < first);
        self.runs.insert(index, (first, pages));
        if let Some((next, free)) =
            self.runs.get(index + 1).copied().filter(|(next, _)| *next == first + pages)
        {
            debug_assert!(next > first);
            self.runs[index].1 += free;
            self.runs.remove(index + 1);
        }
        if let Some((before, free)) = index.checked_sub(1).map(|index| self.runs[index])
            && before + free == first
        {
            self.runs[index - 1].1 += self.runs[index].1;
            self.runs.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_never_overlap_and_are_all_freed(steps in prop::collection::vec((any::<bool>(), 1u32..9), 1..200)) {
            let mut free = FreePages::new(64);
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for (give, pages) in steps {
                if give && !taken.is_empty() {
                    let (first, pages) = taken.swap_remove(pages as usize % taken.len());
                    free.release(first, pages);
                } else if let Some(first) = free.take(pages) {
                    prop_assert!(first + pages <= 64);
                    let apart = |(other, its): &(u32, u32)| *other >= first + pages || other + its <= first;
                    prop_assert!(taken.iter().all(apart), "{first} {pages} {taken:?}");
                    taken.push((first, pages));
                }
                let used: u32 = taken.iter().map(|(_, pages)| pages).sum();
                prop_assert_eq!(free.runs.iter().map(|(_, pages)| pages).sum::<u32>(), 64 - used);
            }
            taken.into_iter().for_each(|(first, pages)| free.release(first, pages));
            prop_assert_eq!(free.runs, [(0, 64)]);
        }
    }

    #[test]
    fn an_oversized_piece_is_not_allocated() {
        let arena = Arena::new(SharedMemory::create(4 * SHARED_PAGE_BYTES).unwrap().0);
        assert!(arena.take(4 * SHARED_PAGE_BYTES + 1).is_none() && arena.take(usize::MAX).is_none());
        let piece = arena.take(3 * SHARED_PAGE_BYTES - 5).unwrap();
        assert_eq!(piece.place(), 1);
        assert!(arena.take(SHARED_PAGE_BYTES + 1).is_none());
        piece.copy_in(&IoBuf::from_slice(b"abc"));
        let seen = IoBuf::alloc(3);
        piece.copy_out(&seen);
        assert_eq!(seen.as_slice(), b"abc");
        drop(piece);
        assert_eq!(arena.take(4 * SHARED_PAGE_BYTES).unwrap().place(), 1);
    }
}
