//! Recently read blocks.
//!
//! A block that is read only once evicts others from the page cache, and reading it through the
//! cache costs more than bypassing it. So a first read bypasses the page cache, and a repeated read
//! goes through it and stays. This is the doorkeeper of TinyLFU (Einziger, Friedman, Manes,
//! "TinyLFU: A Highly Efficient Cache Admission Policy", ACM Transactions on Storage 13(4), 2017,
//! section 3.4.2), as a table of fingerprints in which new ones replace old ones instead of a Bloom
//! filter that is cleared periodically.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use types::ChunkFileId;

/// A bounded memory of blocks. It forgets, and once in some 65,000 times it takes a block for
/// another; both only cost time.
pub(crate) struct RecentReads {
    len: usize,
    /// A fingerprint each, 0 for none. Allocated by the first [`RecentReads::record`].
    slots: OnceLock<Box<[AtomicU16]>>,
}

impl RecentReads {
    /// Remembers up to `blocks` blocks, rounded down to a power of two; takes 2 bytes for each.
    pub(crate) fn new(blocks: usize) -> RecentReads {
        RecentReads { len: 1 << blocks.max(1).ilog2(), slots: OnceLock::new() }
    }

    /// Records that blocks `first..end` of a file are read. Returns whether any of them was known.
    pub(crate) fn record(&self, ino: ChunkFileId, first: u64, end: u64) -> bool {
        let slots =
            self.slots.get_or_init(|| std::iter::repeat_with(AtomicU16::default).take(self.len).collect());
        let mut seen = false;
        for block in first..end {
            let hash = mixed(ino, block);
            let slot = &slots[hash as usize & (self.len - 1)];
            let fingerprint = ((hash >> 48) as u16).max(1);
            // A concurrent read of the same block may take it for new as well.
            if slot.load(Ordering::Relaxed) == fingerprint {
                seen = true;
            } else {
                slot.store(fingerprint, Ordering::Relaxed);
            }
        }
        seen
    }
}

/// A number in which every bit depends on every bit of inode and block: the finalizer of SplitMix64
/// (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014), over both.
fn mixed(ino: ChunkFileId, block: u64) -> u64 {
    let finalized = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    finalized(finalized(ino.0.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_add(block))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: ChunkFileId = ChunkFileId(7);

    #[test]
    fn recorded_blocks_are_known_and_no_others() {
        let seen = RecentReads::new(1 << 16);
        assert!(!seen.record(INO, 5, 6));
        assert!(seen.record(INO, 5, 6));
        assert!(!seen.record(ChunkFileId(8), 5, 6), "another file");
        assert!(!seen.record(INO, 6, 9));
        assert!(seen.record(INO, 0, 6), "one of several");
        assert!(seen.record(INO, 0, 1), "the others were noted as well");
    }

    /// With as many blocks as there is room for, some replace others; hardly any is taken for
    /// another.
    #[test]
    fn most_blocks_within_capacity_are_remembered() {
        let blocks = 1 << 14;
        let seen = RecentReads::new(blocks as usize);
        let mistaken = (0..blocks).filter(|block| seen.record(INO, *block, block + 1)).count();
        assert!(mistaken <= 4, "{mistaken} new blocks taken for old ones");
        let remembered = (0..blocks).filter(|block| seen.record(INO, *block, block + 1)).count();
        assert!(remembered > blocks as usize / 3, "{remembered} of {blocks}");
        let others = (blocks..4 * blocks).filter(|block| seen.record(INO, *block, block + 1)).count();
        assert!(others <= 12, "{others} new blocks taken for old ones");
    }

    #[test]
    fn any_room_will_do() {
        for blocks in [0, 1, 3] {
            let seen = RecentReads::new(blocks);
            seen.record(INO, 0, 10);
            assert!(seen.record(INO, 9, 10));
        }
    }
}
