//! Time-outs of silent connections.

use std::time::Duration;

/// When a silent connection is probed, and when it is ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Liveness {
    /// A ping is sent after this long without a byte.
    pub ping_after: Duration,
    /// The connection is ended after this long without a byte. Exceeds `ping_after` by the time
    /// that an answer may take.
    pub dead_after: Duration,
}
