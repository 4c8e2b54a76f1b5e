//! Rate-limited log lines for trouble that an administrator should act on.

use chunkstore::{Kind, StoreError};
use rt::LogRateLimit;
use std::time::Duration;
use types::TargetId;

/// The alarm of one target, which logs at most one line per second.
pub(crate) struct Alarm {
    rate_limit: LogRateLimit,
}

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm { rate_limit: LogRateLimit::one_per(Duration::from_secs(1)) }
    }
}

impl Alarm {
    /// Logs an error that an administrator should know of, unless the target has just logged one.
    pub(crate) fn raise(&self, target: TargetId, error: &StoreError, now_ns: u64) {
        // The store logs damage itself, once for each place.
        if !matches!(error.kind(), Kind::NoSpace | Kind::Io) {
            return;
        }
        if let Some(suppressed) = self.rate_limit.admit(now_ns) {
            tracing::error!(target_id = %target, suppressed, "{error}");
        }
    }
}
