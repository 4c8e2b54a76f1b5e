//! Measures what drives, networks and processors deliver without the file system.
//!
//! A storage service measures its own hardware with this crate, and benchmarks compare their
//! results with the rates. The caller chooses the location and uses the results. Knows nothing of
//! services, of benchmarks and of their reports.
//!
//! Invariant: a measurement leaves nothing behind, however it ends.

#![warn(missing_docs)]

pub mod cpu;
pub mod drive;
pub mod network;

use serde::{Deserialize, Serialize};

/// A resource that can bind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Sequential writes of targets, bytes per second.
    StorageWrite,
    /// Sequential reads of targets, bytes per second.
    StorageRead,
    /// Random 4 KiB writes of targets, operations per second.
    StorageRandomWrite,
    /// Random 4 KiB reads of targets, operations per second.
    StorageRandomRead,
    /// A pair of nodes, all streams together, bytes per second.
    Network,
    /// Round trips between a pair of nodes, one after the other, operations per second.
    RoundTrips,
    /// Copies in memory, all cores together, bytes per second.
    MemoryCopy,
    /// Checksums, all cores together, bytes per second.
    Checksum,
    /// Encoding of Reed-Solomon 8+2 stripes, all cores together, bytes of content per second. No
    /// data is stored that way yet.
    Encoding,
    /// Processors of the load-generating machine, including servers on it: their utilisation shows
    /// what they would allow. Never measured separately.
    Processors,
    /// Calls of a mount that does nothing else, all cores together, operations per second.
    FuseCalls,
}

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

/// Returns the median of sorted values, which is the mean of the two middle ones for an even count;
/// `None` without values.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// Returns a rate per second from a count and nanoseconds.
fn per_second(done: u64, nanoseconds: u64) -> f64 {
    done as f64 * 1e9 / nanoseconds.max(1) as f64
}
