//! Self-verifying content: bytes derived from a few numbers, so that a reader can verify them.

/// A small, fast random number generator; a seed gives the same sequence on every machine
/// (SplitMix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator with a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(length);
        bytes
    }
}

/// Content of a file: a header that identifies it, and bytes derived from the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Id of the file.
    pub id: u64,
    /// Version of the file's content.
    pub version: u64,
    /// Total bytes; at least [`Content::HEADER`].
    pub length: u64,
}

impl Content {
    /// Bytes of the header.
    pub const HEADER: u64 = 24;

    /// Returns all bytes.
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            [self.id, self.version, self.length].iter().flat_map(|number| number.to_le_bytes()).collect();
        let seed = self.id.wrapping_mul(0x1_0000_0001) ^ self.version.rotate_left(32) ^ self.length;
        bytes.extend(Rng::new(seed).bytes((self.length - Content::HEADER) as usize));
        bytes
    }

    /// Identifies the content of these bytes; `None` if they are invalid or damaged.
    pub fn recognise(bytes: &[u8]) -> Option<Content> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let content = Content { id: number(0)?, version: number(8)?, length: number(16)? };
        let plausible = content.length == bytes.len() as u64 && content.length >= Content::HEADER;
        (plausible && content.bytes() == bytes).then_some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_recognises_itself_and_nothing_else() {
        let content = Content { id: 7, version: 3, length: 1000 };
        let mut bytes = content.bytes();
        assert_eq!(Content::recognise(&bytes), Some(content));
        assert_eq!(Content::recognise(&bytes[..999]), None);
        bytes[500] ^= 1;
        assert_eq!(Content::recognise(&bytes), None);
        assert_eq!(Content::recognise(b""), None);
    }

    #[test]
    fn the_sequence_is_fixed() {
        // Reference values of SplitMix64 for seed 0.
        let mut rng = Rng::new(0);
        assert_eq!([rng.next(), rng.next()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }
}
