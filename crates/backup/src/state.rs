//! A sum over everything that a store holds.

/// CRC32C over keys and values in ascending order of keys, each with its length (4 bytes,
/// little-endian) before it; and how much it was.
#[derive(Clone, Default)]
pub struct StateSum {
    sum: types::Crc32c,
    keys: u64,
    bytes: u64,
}

impl StateSum {
    /// The next key.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        for part in [key, value] {
            self.sum.update(&(part.len() as u32).to_le_bytes());
            self.sum.update(part);
        }
        self.keys += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }

    /// Keys so far.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Bytes of keys and values so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The sum so far.
    pub fn sum(&self) -> u32 {
        self.sum.clone().finish()
    }
}
