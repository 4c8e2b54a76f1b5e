//! One machine of a simulated world.

use super::disk::Disk;
use crate::local::Locals;
use crate::timer::Timers;

/// Time of day of a correct clock when the world begins: 2025-06-15T15:06:40Z, in nanoseconds since
/// 1970.
const SIMULATED_EPOCH_NS: u64 = 1_750_000_000 * 1_000_000_000;
/// Denominator of a clock's rate.
const MILLION: u64 = 1_000_000;

/// A host's clocks relative to the world's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// The monotonic clock showed `shown_ns` when the world's showed `since_ns`.
    since_ns: u64,
    shown_ns: u64,
    /// Initial value of the monotonic clock.
    zero_ns: u64,
    /// How much faster than the world's clock it runs, in millionths; may be negative.
    drift_ppm: i32,
    /// How far the time of day is ahead; may be negative.
    ahead_ns: i64,
}

impl Clock {
    /// Makes a correct clock; the monotonic one begins at `zero_ns`.
    pub(super) fn new(world_ns: u64, zero_ns: u64) -> Clock {
        Clock { since_ns: world_ns, shown_ns: zero_ns + world_ns, zero_ns, drift_ppm: 0, ahead_ns: 0 }
    }

    pub(super) fn set(&mut self, world_ns: u64, ahead_ns: i64, drift_ppm: i32) {
        self.shown_ns = self.monotonic_ns(world_ns);
        self.since_ns = world_ns;
        self.drift_ppm = drift_ppm.clamp(-(MILLION as i32) / 2, MILLION as i32);
        self.ahead_ns = ahead_ns;
    }

    fn rate(&self) -> u64 {
        MILLION.saturating_add_signed(self.drift_ppm.into())
    }

    /// The monotonic clock's value.
    pub(super) fn monotonic_ns(&self, world_ns: u64) -> u64 {
        let passed = world_ns.saturating_sub(self.since_ns) as u128 * self.rate() as u128 / MILLION as u128;
        self.shown_ns + passed as u64
    }

    /// The world's time at which the monotonic clock shows a value, or now if it has passed.
    /// `u64::MAX` is never.
    pub(super) fn world_ns(&self, monotonic_ns: u64) -> u64 {
        let to_pass = monotonic_ns.saturating_sub(self.shown_ns) as u128 * MILLION as u128;
        let passed = to_pass.div_ceil(self.rate() as u128);
        u64::try_from(passed).map_or(u64::MAX, |passed| self.since_ns.saturating_add(passed))
    }

    /// The host's time of day, in nanoseconds since 1970.
    pub(super) fn time_of_day_ns(&self, world_ns: u64) -> u64 {
        let since_start = self.monotonic_ns(world_ns) - self.zero_ns;
        (SIMULATED_EPOCH_NS + since_start).saturating_add_signed(self.ahead_ns)
    }
}

/// A machine.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) disk: Disk,
    pub(super) clock: Clock,
    pub(super) timers: Timers,
    pub(super) locals: Locals,
    /// False while its processes are stopped.
    pub(super) is_running: bool,
    /// Tasks that become ready when the host is resumed.
    pub(super) stopped_tasks: Vec<u64>,
}

impl Host {
    pub(super) fn new(name: &str, disk: Disk, clock: Clock) -> Host {
        Host {
            name: name.to_owned(),
            disk,
            clock,
            timers: Timers::default(),
            locals: Locals::default(),
            is_running: true,
            stopped_tasks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_a_time_when_it_was_predicted() {
        for drift in [-500_000, -3, 0, 1, 7, 999, 1_000_000] {
            let mut clock = Clock::new(17, 1_000);
            clock.set(1_000_003, -5, drift);
            for deadline in (0..20_000_000).step_by(777_777) {
                let at = clock.world_ns(deadline).max(1_000_003);
                assert!(clock.monotonic_ns(at) >= deadline, "drift {drift}, deadline {deadline}");
                assert!(at == 1_000_003 || clock.monotonic_ns(at - 1) < deadline);
            }
        }
    }

    #[test]
    fn setting_a_clock_moves_the_time_of_day_alone() {
        let mut clock = Clock::new(0, 55);
        let before = (clock.monotonic_ns(1_000), clock.time_of_day_ns(1_000));
        clock.set(1_000, -400, 0);
        assert_eq!(clock.monotonic_ns(1_000), before.0);
        assert_eq!(clock.time_of_day_ns(1_000), before.1 - 400);
    }
}
