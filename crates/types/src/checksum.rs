//! Checksums of data blocks.

use std::sync::atomic::{AtomicBool, Ordering};

/// The unit of checksumming and of direct I/O, in bytes.
pub const BLOCK_SIZE: usize = 4096;

/// Checksum of one block as it is stored: CRC32C, with 0 reserved for "a hole: every byte is zero" and 1 for "it has none".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BlockSum(pub u32);

impl BlockSum {
    /// A block that was never written, or that was punched out.
    pub const HOLE: BlockSum = BlockSum(0);
    /// A block that was written while checksums were switched off: whatever it holds is taken for what was written.
    pub const UNCHECKED: BlockSum = BlockSum(1);
}

/// Whether data is summed and checked in this process: see [`switch_checksums`].
static CHECKSUMS_ARE_OFF: AtomicBool = AtomicBool::new(false);

/// Whether data is summed where it is written and sent, and checked where it is read.
pub fn checksums_are_on() -> bool {
    !CHECKSUMS_ARE_OFF.load(Ordering::Relaxed)
}

/// Switches the checksums of data off in this process, or on again, as the cluster's settings say: only for measuring what they cost. What is written
/// meanwhile has none afterwards, either. True: they were otherwise before.
pub fn switch_checksums(on: bool) -> bool {
    CHECKSUMS_ARE_OFF.swap(!on, Ordering::Relaxed) == on
}

/// CRC32C (Castagnoli, RFC 3720 section 12.1).
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC32C of bytes that come in pieces.
#[derive(Clone)]
pub struct Crc32c(crc_fast::Digest);

impl Default for Crc32c {
    fn default() -> Crc32c {
        Crc32c(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc32c {
    /// The next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The sum of all pieces.
    pub fn finish(self) -> u32 {
        self.0.finalize() as u32
    }
}

/// CRC32C of a block, never [`BlockSum::HOLE`] or [`BlockSum::UNCHECKED`]: the values that collide with them are stored as `u32::MAX` and the one before.
/// A short last block is summed as if padded with zeros by the caller.
pub fn block_sum(block: &[u8]) -> BlockSum {
    debug_assert_eq!(block.len(), BLOCK_SIZE);
    match crc32c(block) {
        0 => BlockSum(u32::MAX),
        1 => BlockSum(u32::MAX - 1),
        sum => BlockSum(sum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_vector() {
        // RFC 3720 B.4: CRC32C of "123456789" is e3069283.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut pieces = Crc32c::default();
        [&b"1234"[..], b"", b"56789"].iter().for_each(|piece| pieces.update(piece));
        assert_eq!(pieces.finish(), 0xe306_9283);
    }

    #[test]
    fn zeros_are_not_a_hole() {
        assert_ne!(block_sum(&[0; BLOCK_SIZE]), BlockSum::HOLE);
    }
}
