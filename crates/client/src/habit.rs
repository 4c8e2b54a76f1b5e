//! Usage heuristic: when a session requests a delegation. It does so after repeated use, and not
//! soon after a conflict with other sessions.

/// Number of uses within [`HABIT_NS`] that count as frequent.
pub(crate) const HABIT: u32 = 4;
/// Window in which uses are counted, in nanoseconds.
const HABIT_NS: u64 = 1_000_000_000;
/// First backoff after a conflict, in nanoseconds. It doubles each time, up to `MAX_REST_NS`.
const MIN_REST_NS: u64 = 1_000_000_000;
/// Longest backoff, in nanoseconds.
const MAX_REST_NS: u64 = 64_000_000_000;
/// A delegation that was held for this long is requested again after the shortest backoff, in
/// nanoseconds.
const LONG_NS: u64 = 10_000_000_000;

/// Frequency of recent uses.
#[derive(Default)]
pub(crate) struct Habit {
    done: u32,
    since_ns: u64,
}

impl Habit {
    /// Counts a use; returns true if uses are frequent.
    pub(crate) fn note(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) > HABIT_NS {
            (self.done, self.since_ns) = (0, now_ns);
        }
        self.done += 1;
        self.done >= HABIT
    }
}

/// Backoff between requests for a delegation.
#[derive(Default)]
pub(crate) struct Rest {
    until_ns: u64,
    length_ns: u64,
}

impl Rest {
    /// Starts a backoff after a conflict.
    pub(crate) fn begin(&mut self) {
        self.length_ns = (2 * self.length_ns).clamp(MIN_REST_NS, MAX_REST_NS);
        self.until_ns = rt::monotonic_ns() + self.length_ns;
    }

    /// Starts a backoff after the loss of a delegation that was held since then.
    pub(crate) fn begin_after(&mut self, since_ns: u64) {
        if rt::monotonic_ns().saturating_sub(since_ns) >= LONG_NS {
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
    fn what_is_done_often_within_a_second_is_a_habit() {
        let mut habit = Habit::default();
        let second = HABIT_NS;
        let times = [5, 6, 7, 8, 9, 11].map(|tenths| 10 * second + tenths * second / 10);
        assert_eq!(times.map(|now_ns| habit.note(now_ns)), [false, false, false, true, true, true]);
        assert!(!habit.note(20 * second));
        let seldom = (21..40).map(|at| habit.note(at * second / 2 * 3));
        assert!(seldom.skip(1).all(|is_one| !is_one));
    }

    #[test]
    fn rests_get_longer_up_to_a_minute() {
        let run = async {
            let mut rest = Rest::default();
            let mut lengths = Vec::new();
            for _ in 0..9 {
                rest.begin();
                lengths.push(rest.length_ns / MIN_REST_NS);
            }
            let since_ns = rt::monotonic_ns();
            assert!(!rest.is_over(since_ns));
            rt::sleep(std::time::Duration::from_secs(65)).await;
            assert!(rest.is_over(rt::monotonic_ns()));
            rest.begin_after(since_ns);
            (lengths, rest.length_ns)
        };
        let (lengths, last) = rt::sim::Machine::new(1).run(run).unwrap();
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(last, MIN_REST_NS, "it was had for long");
    }
}
