//! Usage heuristic: when a session requests a delegation. It does so after repeated use, and not
//! soon after a conflict with other sessions.

/// Number of uses within [`FREQUENCY_WINDOW_NS`] that count as frequent.
pub(crate) const FREQUENT_USES: u32 = 4;
/// Window in which uses are counted, in nanoseconds.
const FREQUENCY_WINDOW_NS: u64 = 1_000_000_000;
/// First backoff after a conflict, in nanoseconds. It doubles each time, up to `MAX_BACKOFF_NS`.
const MIN_BACKOFF_NS: u64 = 1_000_000_000;
/// Longest backoff, in nanoseconds.
const MAX_BACKOFF_NS: u64 = 64_000_000_000;
/// A delegation that was held for this long is requested again after the shortest backoff, in
/// nanoseconds.
const LONG_HELD_NS: u64 = 10_000_000_000;

/// Frequency of recent uses.
#[derive(Default)]
pub(crate) struct UseFrequency {
    uses: u32,
    since_ns: u64,
}

impl UseFrequency {
    /// Counts a use; returns true if uses are frequent.
    pub(crate) fn note(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) > FREQUENCY_WINDOW_NS {
            (self.uses, self.since_ns) = (0, now_ns);
        }
        self.uses += 1;
        self.uses >= FREQUENT_USES
    }
}

/// Backoff between requests for a delegation.
#[derive(Default)]
pub(crate) struct Backoff {
    until_ns: u64,
    length_ns: u64,
}

impl Backoff {
    /// Starts a backoff after a conflict.
    pub(crate) fn begin(&mut self) {
        self.length_ns = (2 * self.length_ns).clamp(MIN_BACKOFF_NS, MAX_BACKOFF_NS);
        self.until_ns = rt::monotonic_ns() + self.length_ns;
    }

    /// Starts a backoff after the loss of a delegation that was held since then.
    pub(crate) fn begin_after(&mut self, since_ns: u64) {
        if rt::monotonic_ns().saturating_sub(since_ns) >= LONG_HELD_NS {
            self.length_ns = 0;
        }
        self.begin();
    }

    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_frequent_after_four_within_a_second() {
        let mut frequency = UseFrequency::default();
        let second = FREQUENCY_WINDOW_NS;
        let times = [5, 6, 7, 8, 9, 11].map(|tenths| 10 * second + tenths * second / 10);
        assert_eq!(times.map(|now_ns| frequency.note(now_ns)), [false, false, false, true, true, true]);
        assert!(!frequency.note(20 * second));
        let seldom = (21..40).map(|at| frequency.note(at * second / 2 * 3));
        assert!(seldom.skip(1).all(|is_one| !is_one));
    }

    #[test]
    fn backoff_grows_to_about_a_minute() {
        let run = async {
            let mut backoff = Backoff::default();
            let mut lengths = Vec::new();
            for _ in 0..9 {
                backoff.begin();
                lengths.push(backoff.length_ns / MIN_BACKOFF_NS);
            }
            let since_ns = rt::monotonic_ns();
            assert!(!backoff.is_over(since_ns));
            rt::sleep(std::time::Duration::from_secs(65)).await;
            assert!(backoff.is_over(rt::monotonic_ns()));
            backoff.begin_after(since_ns);
            (lengths, backoff.length_ns)
        };
        let (lengths, last) = rt::sim::Machine::new(1).run(run).unwrap();
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(last, MIN_BACKOFF_NS, "it was had for long");
    }
}
