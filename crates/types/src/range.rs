//! Half-open ranges of bytes.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes `start..end` of a file, a chunk file or a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl ByteRange {
    /// `start..end`; an inverted range is empty.
    pub const fn new(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end: if end < start { start } else { end } }
    }

    /// `len` bytes from `start`, cut at `u64::MAX`.
    pub const fn at(start: u64, len: u64) -> ByteRange {
        ByteRange { start, end: start.saturating_add(len) }
    }

    /// Number of bytes.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether the range contains no bytes.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The bytes in both ranges; may be empty.
    pub fn intersect(self, other: ByteRange) -> ByteRange {
        ByteRange::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// Whether at least one byte is in both ranges.
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
