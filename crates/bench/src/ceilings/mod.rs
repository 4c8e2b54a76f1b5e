//! What the hardware gives without the file system. Who calls it says where, and what is done with
//! the figures.

pub mod cpu;
pub mod drive;
pub mod network;

use crate::results::Limit;

/// The best that was reached of one limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Best {
    /// Of what.
    pub limit: Limit,
    /// Bytes or operations a second.
    pub rate: f64,
    /// Streams, transfers under way or threads that gave it.
    pub streams: u32,
}

/// What was done in some nanoseconds, a second.
fn per_second(done: u64, nanoseconds: u64) -> f64 {
    done as f64 * 1e9 / nanoseconds.max(1) as f64
}
