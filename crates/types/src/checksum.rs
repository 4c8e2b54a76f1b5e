//! Checksums of data blocks.

use std::sync::atomic::{AtomicBool, Ordering};

/// The unit of checksumming and of direct I/O, in bytes.
pub const BLOCK_SIZE: usize = 4096;

/// Checksum of one block as it is stored: CRC32C, with 0 reserved for "a hole: every byte is zero"
/// and 1 for "it has none".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BlockSum(pub u32);

impl BlockSum {
    /// A block that was never written, or that was punched out.
    pub const HOLE: BlockSum = BlockSum(0);
    /// A block that was written while checksums were switched off: whatever it holds is taken for
    /// what was written.
    pub const UNCHECKED: BlockSum = BlockSum(1);

    /// That of a block with this CRC32C, never [`BlockSum::HOLE`] or [`BlockSum::UNCHECKED`]: the
    /// values that collide with them are stored as `u32::MAX` and the one before.
    pub fn of(sum: u32) -> BlockSum {
        match sum {
            0 => BlockSum(u32::MAX),
            1 => BlockSum(u32::MAX - 1),
            sum => BlockSum(sum),
        }
    }
}

/// Whether data is summed and checked in this process: see [`switch_checksums`].
static CHECKSUMS_ARE_OFF: AtomicBool = AtomicBool::new(false);

/// Whether data is summed where it is written and sent, and checked where it is read.
pub fn checksums_are_on() -> bool {
    !CHECKSUMS_ARE_OFF.load(Ordering::Relaxed)
}

/// Switches the checksums of data off in this process, or on again, as the cluster's settings say:
/// only for measuring what they cost. What is written meanwhile has none afterwards, either. True:
/// they were otherwise before.
pub fn switch_checksums(on: bool) -> bool {
    CHECKSUMS_ARE_OFF.swap(!on, Ordering::Relaxed) == on
}

/// CRC32C (Castagnoli, RFC 3720 section 12.1).
pub fn crc32c(bytes: &[u8]) -> u32 {
    if multiplies_widely() {
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
    } else {
        // Blocks of 4 KiB take it half the time.
        ::crc32c::crc32c(bytes)
    }
}

/// Whether the processor has what the faster of the two ways is made for.
fn multiplies_widely() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// CRC32C of each block of `data`, which is whole blocks.
pub fn sums_of_blocks(data: &[u8]) -> Vec<u32> {
    debug_assert!(data.len().is_multiple_of(BLOCK_SIZE));
    data.chunks(BLOCK_SIZE).map(crc32c).collect()
}

/// CRC32C of blocks one after the other, of each of which it is known. That of `a` followed by `b`
/// is that of `a`, put through as many zeros as `b` has bytes, plus that of `b`, where both begin
/// and end alike (Adler, `crc32_combine` of zlib).
pub fn sum_of_sums(sums: &[u32]) -> u32 {
    sums.iter().fold(0, |sum, block| past_a_block(sum) ^ block)
}

/// What becomes of a sum by a block of zeros: a linear map of its 32 bits, by bytes.
fn past_a_block(sum: u32) -> u32 {
    let bytes = sum.to_le_bytes();
    (0..4).fold(0, |map, at| map ^ PAST_A_BLOCK[at][bytes[at] as usize])
}

static PAST_A_BLOCK: [[u32; 256]; 4] = past_a_block_by_bytes();

const fn past_a_block_by_bytes() -> [[u32; 256]; 4] {
    /// The polynomial, its bits in reverse order.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    // A zero bit; each squaring doubles their number.
    let mut map = [0; 32];
    map[0] = POLYNOMIAL;
    let mut bit = 1;
    while bit < 32 {
        map[bit] = 1 << (bit - 1);
        bit += 1;
    }
    let mut bits = 1;
    while bits < 8 * BLOCK_SIZE {
        let mut squared = [0; 32];
        let mut bit = 0;
        while bit < 32 {
            squared[bit] = mapped(&map, map[bit]);
            bit += 1;
        }
        map = squared;
        bits *= 2;
    }
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 4 * 256 {
        tables[byte / 256][byte % 256] = mapped(&map, ((byte % 256) as u32) << (8 * (byte / 256)));
        byte += 1;
    }
    tables
}

/// A linear map of 32 bits, of which the images of single bits are known.
const fn mapped(map: &[u32; 32], of: u32) -> u32 {
    let (mut image, mut bit) = (0, 0);
    while bit < 32 {
        if of >> bit & 1 == 1 {
            image ^= map[bit];
        }
        bit += 1;
    }
    image
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

/// Checksum of a block. A short last block is summed as if padded with zeros by the caller.
pub fn block_sum(block: &[u8]) -> BlockSum {
    debug_assert_eq!(block.len(), BLOCK_SIZE);
    BlockSum::of(crc32c(block))
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
    fn both_ways_sum_alike() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| ((n * n) >> 3) as u8).collect();
        for range in [0..0, 0..1, 3..300, 1..4097, 5..10_000] {
            let fast = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[range.clone()]) as u32;
            assert_eq!(::crc32c::crc32c(&bytes[range]), fast);
        }
    }

    #[test]
    fn sums_of_blocks_make_the_sum_of_all() {
        let data: Vec<u8> =
            (0..5 * BLOCK_SIZE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for blocks in 0..=5 {
            let data = &data[..blocks * BLOCK_SIZE];
            assert_eq!(sum_of_sums(&sums_of_blocks(data)), crc32c(data), "{blocks} blocks");
        }
        assert_eq!(sum_of_sums(&sums_of_blocks(&[0; 3 * BLOCK_SIZE])), crc32c(&[0; 3 * BLOCK_SIZE]));
    }

    #[test]
    fn zeros_are_not_a_hole() {
        assert_ne!(block_sum(&[0; BLOCK_SIZE]), BlockSum::HOLE);
    }
}
