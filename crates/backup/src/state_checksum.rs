//! A checksum over the whole content of a store.

/// CRC32C over keys and values in ascending order of keys, each preceded by its length (4 bytes,
/// little-endian); with counts of keys and bytes.
#[derive(Clone, Default)]
pub struct StateChecksum {
    sum: types::Crc32c,
    keys: u64,
    bytes: u64,
}

impl StateChecksum {
    /// Adds the next key.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        for part in [key, value] {
            self.sum.update(&(part.len() as u32).to_le_bytes());
            self.sum.update(part);
        }
        self.keys += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }

    /// Returns the keys so far.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Returns the bytes of keys and values so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the checksum so far.
    pub fn sum(&self) -> u32 {
        self.sum.clone().finish()
    }
}
