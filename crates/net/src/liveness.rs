//! Silence on a connection.

use std::time::Duration;

/// What silence on a connection leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Liveness {
    /// After so long without a byte a sign of life is asked for.
    pub ask_after: Duration,
    /// After so long without a byte the connection is ended. Longer than `ask_after` by what an
    /// answer may take.
    pub give_up_after: Duration,
}
