//! Rate limit for log lines, so that they don't fill the disk.

use parking_lot::Mutex;
use std::time::Duration;

/// Admits one line per interval, and counts the suppressed ones.
#[derive(Debug)]
pub struct LogRateLimit {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    last_ns: Option<u64>,
    suppressed: u64,
}

impl LogRateLimit {
    /// Admits one line in `interval`.
    pub const fn one_per(interval: Duration) -> LogRateLimit {
        LogRateLimit { interval, state: Mutex::new(State { last_ns: None, suppressed: 0 }) }
    }

    /// `None` if the line is suppressed; otherwise the number of lines suppressed since the last.
    /// `now_ns`: of [`crate::monotonic_ns`].
    pub fn admit(&self, now_ns: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let is_suppressed =
            state.last_ns.is_some_and(|last| now_ns.saturating_sub(last) < self.interval.as_nanos() as u64);
        if is_suppressed {
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
        let seldom = LogRateLimit::one_per(Duration::from_secs(1));
        let second = 1_000_000_000;
        assert_eq!(seldom.admit(5), Some(0));
        assert_eq!(seldom.admit(6), None);
        assert_eq!(seldom.admit(second), None);
        assert_eq!(seldom.admit(second + 5), Some(2));
        assert_eq!(seldom.admit(2 * second), None);
    }
}
