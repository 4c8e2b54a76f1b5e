//! Log lines for trouble that a human should act on, a few of them.

use chunkstore::{Kind, StoreError};
use parking_lot::Mutex;
use std::time::Duration;
use types::TargetId;

/// A target says no more than one line in this time.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// The alarm of one target.
#[derive(Default)]
pub(crate) struct Alarm {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_ns: Option<u64>,
    suppressed: u64,
}

impl Alarm {
    /// Logs an error that a human should know of, unless the target has just logged one.
    pub(crate) fn raise(&self, target: TargetId, error: &StoreError, now_ns: u64) {
        // Damage is logged by the store, once for each place.
        if !matches!(error.kind(), Kind::NoSpace | Kind::Io) {
            return;
        }
        if let Some(suppressed) = self.admit(now_ns) {
            tracing::error!(target_id = %target, suppressed, "{error}");
        }
    }

    /// `None` while quiet; else how many were kept quiet since the last.
    fn admit(&self, now_ns: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let is_quiet =
            state.last_ns.is_some_and(|last| now_ns.saturating_sub(last) < QUIET_TIME.as_nanos() as u64);
        if is_quiet {
            state.suppressed += 1;
            return None;
        }
        state.last_ns = Some(now_ns);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second() {
        let alarm = Alarm::default();
        let second = 1_000_000_000;
        assert_eq!(alarm.admit(5), Some(0));
        assert_eq!(alarm.admit(6), None);
        assert_eq!(alarm.admit(second), None);
        assert_eq!(alarm.admit(second + 5), Some(2));
        assert_eq!(alarm.admit(2 * second), None);
    }
}
