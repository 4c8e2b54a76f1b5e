//! Measures what the hardware delivers without the file system. The caller chooses the location and
//! uses the results.

pub mod cpu;
pub mod drive;
pub mod network;

use crate::results::Limit;

/// The highest rate of one limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BestRate {
    /// The limit.
    pub limit: Limit,
    /// Bytes or operations per second.
    pub rate: f64,
    /// Streams, transfers in flight or threads with that rate.
    pub streams: u32,
}

/// Returns a rate per second from a count and nanoseconds.
fn per_second(done: u64, nanoseconds: u64) -> f64 {
    done as f64 * 1e9 / nanoseconds.max(1) as f64
}
