//! File content: bytes derived from a seed, a file and an offset. Each byte can be verified, and
//! the content is incompressible.

/// The content of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    base: u64,
}

/// A difference between the content read and the content written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mismatch {
    /// Number of wrong bytes.
    pub bytes: u64,
    /// Offset of the first one.
    pub offset: u64,
    pub expected: u8,
    pub found: u8,
}

/// Block size at which stamps make content unique where whole records aren't filled.
const STAMP_BLOCK: usize = 4096;

impl Content {
    /// Returns the content of the file with this number.
    pub fn new(seed: u64, file: u64) -> Content {
        Content { base: mix(mix(seed) ^ file.wrapping_mul(0xd6e8_feb8_6659_fd93)) }
    }

    fn word(self, index: u64) -> [u8; 8] {
        mix(self.base.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
    }

    /// Fills a buffer with the content at an offset.
    pub fn fill(self, buffer: &mut [u8], offset: u64) {
        let skipped = (offset % 8) as usize;
        let head = if skipped == 0 { 0 } else { (8 - skipped).min(buffer.len()) };
        let (first, rest) = buffer.split_at_mut(head);
        if head > 0 {
            first.copy_from_slice(&self.word(offset / 8)[skipped..skipped + head]);
        }
        let mut index = (offset + head as u64) / 8;
        let mut words = rest.chunks_exact_mut(8);
        for place in &mut words {
            place.copy_from_slice(&self.word(index));
            index += 1;
        }
        let last = words.into_remainder();
        let length = last.len();
        last.copy_from_slice(&self.word(index)[..length]);
    }

    /// Makes the blocks of a buffer differ from those at other offsets: much cheaper than filling
    /// it.
    pub fn stamp(self, buffer: &mut [u8], offset: u64) {
        for (index, block) in buffer.chunks_mut(STAMP_BLOCK).enumerate() {
            if let Some(place) = block.first_chunk_mut::<8>() {
                *place = self.word(offset.wrapping_add((index * STAMP_BLOCK) as u64));
            }
        }
    }

    /// Returns how `found` differs from the content at this offset. `scratch` is as long as
    /// `found`.
    pub fn check(self, found: &[u8], offset: u64, scratch: &mut [u8]) -> Option<Mismatch> {
        let expected = &mut scratch[..found.len()];
        self.fill(expected, offset);
        if found == expected {
            return None;
        }
        let mut wrong =
            found.iter().zip(expected.iter()).enumerate().filter(|(_, (found, expected))| found != expected);
        let (index, (&one, &other)) = wrong.next()?;
        Some(Mismatch {
            bytes: 1 + wrong.count() as u64,
            offset: offset + index as u64,
            expected: other,
            found: one,
        })
    }
}

/// A mixing step that spreads each bit over the others (the finalizer of SplitMix64 with one
/// multiplication fewer).
fn mix(mut value: u64) -> u64 {
    value ^= value >> 32;
    value = value.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value ^ (value >> 29)
}

/// Returns the position of a record in a random permutation of `count` records. It uses a Feistel
/// network of four rounds on the smallest square of a power of two that contains them, with cycle
/// walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains").
pub(super) fn permuted(index: u64, count: u64, key: u64) -> u64 {
    let half = (64 - count.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1u64 << half) - 1;
    let mut at = index;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..4u64 {
            (left, right) = (right, left ^ (mix(mix(right ^ key).wrapping_add(round)) & mask));
        }
        at = left << half | right;
        if at < count {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_part_equals_the_whole_at_its_offset(from in 0usize..3000, length in 0usize..500, seed: u64, at in 0u64..1 << 50) {
            let content = Content::new(seed, 3);
            let mut whole = vec![0; 4000];
            content.fill(&mut whole, at);
            let mut part = vec![0; length];
            content.fill(&mut part, at + from as u64);
            prop_assert_eq!(&part[..], &whole[from..from + length]);
        }

        #[test]
        fn each_record_is_visited_once(count in 1u64..3000, key: u64) {
            let mut places: Vec<u64> = (0..count).map(|index| permuted(index, count, key)).collect();
            places.sort_unstable();
            prop_assert_eq!(places, (0..count).collect::<Vec<_>>());
        }

        #[test]
        fn a_wrong_byte_is_found(place in 0usize..1000, by in 1u8.., offset in 0u64..100_000) {
            let (content, mut scratch) = (Content::new(7, 1), vec![0; 1000]);
            let mut bytes = vec![0; 1000];
            content.fill(&mut bytes, offset);
            prop_assert_eq!(content.check(&bytes, offset, &mut scratch), None);
            let expected = bytes[place];
            bytes[place] ^= by;
            let wrong = Mismatch { bytes: 1, offset: offset + place as u64, expected, found: bytes[place] };
            prop_assert_eq!(content.check(&bytes, offset, &mut scratch), Some(wrong));
        }
    }
}
