//! Log lines for trouble that a human should act on, a few of them.

use chunkstore::{Kind, StoreError};
use rt::Seldom;
use std::time::Duration;
use types::TargetId;

/// The alarm of one target, which says no more than one line in a second.
pub(crate) struct Alarm {
    seldom: Seldom,
}

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm { seldom: Seldom::once_in(Duration::from_secs(1)) }
    }
}

impl Alarm {
    /// Logs an error that a human should know of, unless the target has just logged one.
    pub(crate) fn raise(&self, target: TargetId, error: &StoreError, now_ns: u64) {
        // Damage is logged by the store, once for each place.
        if !matches!(error.kind(), Kind::NoSpace | Kind::Io) {
            return;
        }
        if let Some(suppressed) = self.seldom.admit(now_ns) {
            tracing::error!(target_id = %target, suppressed, "{error}");
        }
    }
}
