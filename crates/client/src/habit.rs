//! When a session asks to have something to itself: once it does the same again and again, and not
//! where others were in the way a moment ago.

/// How often something is done within [`HABIT_NS`] until it is a habit.
pub(crate) const HABIT: u32 = 4;
/// Nanoseconds.
const HABIT_NS: u64 = 1_000_000_000;
/// How long nothing is asked for where others were in the way, at first; each time for twice as
/// long, up to `MAX_REST_NS`. Nanoseconds.
const MIN_REST_NS: u64 = 1_000_000_000;
/// The longest such rest. Nanoseconds.
const MAX_REST_NS: u64 = 64_000_000_000;
/// Who has had something for so long may ask for it again soon when it is lost. Nanoseconds.
const LONG_NS: u64 = 10_000_000_000;

/// How often something was done lately.
#[derive(Default)]
pub(crate) struct Habit {
    done: u32,
    since_ns: u64,
}

impl Habit {
    /// It is done once more; true when it is a habit.
    pub(crate) fn note(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) > HABIT_NS {
            (self.done, self.since_ns) = (0, now_ns);
        }
        self.done += 1;
        self.done >= HABIT
    }
}

/// Until when nothing is asked for.
#[derive(Default)]
pub(crate) struct Rest {
    until_ns: u64,
    length_ns: u64,
}

impl Rest {
    /// Others are in the way.
    pub(crate) fn begin(&mut self) {
        self.length_ns = (2 * self.length_ns).clamp(MIN_REST_NS, MAX_REST_NS);
        self.until_ns = rt::monotonic_ns() + self.length_ns;
    }

    /// What was had since then is lost.
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
