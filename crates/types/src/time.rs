//! Points in time.

use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970-01-01T00:00:00Z, as seconds and a fraction; negative before 1970, exact past 2038.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds, rounded towards minus infinity.
    pub secs: i64,
    /// `0..1_000_000_000`.
    pub nanos: u32,
}

impl Timestamp {
    /// A timestamp from its parts.
    pub const fn new(secs: i64, nanos: u32) -> Timestamp {
        Timestamp { secs, nanos }
    }

    /// Nanoseconds since 1970; saturates beyond the years 1677 to 2262.
    pub fn as_nanos(self) -> i64 {
        self.secs.saturating_mul(1_000_000_000).saturating_add(self.nanos as i64)
    }

    /// The inverse of [`Timestamp::as_nanos`].
    pub fn from_nanos(nanos: i64) -> Timestamp {
        Timestamp { secs: nanos.div_euclid(1_000_000_000), nanos: nanos.rem_euclid(1_000_000_000) as u32 }
    }
}
