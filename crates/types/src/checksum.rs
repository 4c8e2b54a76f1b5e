//! Checksums of data blocks.

use std::sync::atomic::{AtomicBool, Ordering};

/// The unit of checksumming and of direct I/O, in bytes.
pub const BLOCK_SIZE: usize = 4096;

/// Checksum of one block as it is stored: CRC32C, with 0 reserved for "a hole: every byte is zero"
/// and 1 for "no checksum".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BlockSum(pub u32);

impl BlockSum {
    /// A block that was never written, or that was punched out.
    pub const HOLE: BlockSum = BlockSum(0);
    /// A block that was written while checksums were switched off: its content is accepted without
    /// a check.
    pub const UNCHECKED: BlockSum = BlockSum(1);

    /// The checksum of a block with this CRC32C, never [`BlockSum::HOLE`] or
    /// [`BlockSum::UNCHECKED`]: CRCs that collide with them are stored as `u32::MAX` and
    /// `u32::MAX - 1`.
    pub fn of(sum: u32) -> BlockSum {
        match sum {
            0 => BlockSum(u32::MAX),
            1 => BlockSum(u32::MAX - 1),
            sum => BlockSum(sum),
        }
    }
}

/// Whether checksums are off in this process: see [`set_checksums_enabled`].
static CHECKSUMS_DISABLED: AtomicBool = AtomicBool::new(false);

/// Whether checksums are computed when data is written and sent, and verified when it is read.
pub fn checksums_enabled() -> bool {
    !CHECKSUMS_DISABLED.load(Ordering::Relaxed)
}

/// Switches checksums of data off or on in this process, as the cluster's settings say. Off is only
/// for measuring what checksums cost. Blocks that are written meanwhile stay without checksums.
/// Returns true if this changed the setting.
pub fn set_checksums_enabled(on: bool) -> bool {
    CHECKSUMS_DISABLED.swap(!on, Ordering::Relaxed) == on
}

/// CRC32C (Castagnoli, RFC 3720 section 12.1).
pub fn crc32c(bytes: &[u8]) -> u32 {
    if prefers_crc_fast() {
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
    } else {
        // Takes half the time for blocks of 4 KiB.
        ::crc32c::crc32c(bytes)
    }
}

/// Whether the processor has the instructions that the faster implementation needs.
fn prefers_crc_fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// CRC32C of each block of `data`, which consists of whole blocks.
pub fn block_crcs(data: &[u8]) -> Vec<u32> {
    debug_assert!(data.len().is_multiple_of(BLOCK_SIZE));
    data.chunks(BLOCK_SIZE).map(crc32c).collect()
}

/// CRC32C of consecutive blocks, computed from the CRC32C of each. The CRC of `a` followed by `b`
/// is the CRC of `a`, advanced over as many zeros as `b` has bytes, xor the CRC of `b`; both start
/// from the same initial value (Adler, `crc32_combine` of zlib).
pub fn combine_block_crcs(sums: &[u32]) -> u32 {
    sums.iter().fold(0, |sum, block| advance_over_zero_block(sum) ^ block)
}

/// Advances a CRC over a block of zeros: a linear map of its 32 bits, looked up by bytes.
fn advance_over_zero_block(sum: u32) -> u32 {
    let bytes = sum.to_le_bytes();
    (0..4).fold(0, |map, at| map ^ ZERO_BLOCK_TABLES[at][bytes[at] as usize])
}

static ZERO_BLOCK_TABLES: [[u32; 256]; 4] = zero_block_tables();

const fn zero_block_tables() -> [[u32; 256]; 4] {
    /// The polynomial, with its bits in reverse order.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    // The map of one zero bit; each squaring doubles the number of bits.
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
            squared[bit] = apply_linear_map(&map, map[bit]);
            bit += 1;
        }
        map = squared;
        bits *= 2;
    }
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 4 * 256 {
        tables[byte / 256][byte % 256] = apply_linear_map(&map, ((byte % 256) as u32) << (8 * (byte / 256)));
        byte += 1;
    }
    tables
}

/// Applies a linear map of 32 bits, given by the images of the single bits.
const fn apply_linear_map(map: &[u32; 32], of: u32) -> u32 {
    let (mut image, mut bit) = (0, 0);
    while bit < 32 {
        if of >> bit & 1 == 1 {
            image ^= map[bit];
        }
        bit += 1;
    }
    image
}

/// CRC32C of data that arrives in pieces.
#[derive(Clone)]
pub struct Crc32c(crc_fast::Digest);

impl Default for Crc32c {
    fn default() -> Crc32c {
        Crc32c(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc32c {
    /// Adds the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// Returns the CRC of all pieces.
    pub fn finish(self) -> u32 {
        self.0.finalize() as u32
    }
}

/// Checksum of a block. The caller pads a short last block with zeros.
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
    fn both_crc_implementations_agree() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| ((n * n) >> 3) as u8).collect();
        for range in [0..0, 0..1, 3..300, 1..4097, 5..10_000] {
            let fast = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[range.clone()]) as u32;
            assert_eq!(::crc32c::crc32c(&bytes[range]), fast);
        }
    }

    #[test]
    fn block_crcs_combine_to_the_crc_of_all() {
        let data: Vec<u8> =
            (0..5 * BLOCK_SIZE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for blocks in 0..=5 {
            let data = &data[..blocks * BLOCK_SIZE];
            assert_eq!(combine_block_crcs(&block_crcs(data)), crc32c(data), "{blocks} blocks");
        }
        assert_eq!(combine_block_crcs(&block_crcs(&[0; 3 * BLOCK_SIZE])), crc32c(&[0; 3 * BLOCK_SIZE]));
    }

    #[test]
    fn zeros_are_not_a_hole() {
        assert_ne!(block_sum(&[0; BLOCK_SIZE]), BlockSum::HOLE);
    }
}
