//! Rate of a resync: the current settings of the cluster apply, also to a resync that is running.

use std::cell::Cell;
use types::ResyncSettings;

/// Default limit for one member while clients have requests, bytes per second: a part of what a
/// current disk and network deliver, so that applications can proceed. No limit while clients are
/// idle.
const DEFAULT_BUSY_RATE: u64 = 256 << 20;

/// Share of the time, as a divisor, in which a node may send resync data while clients have
/// requests, for all members together. Slow work on a busy machine slows down by itself, so that
/// clients keep four fifths of the time. A rate in the settings, or a deadline that requires more,
/// takes precedence.
const BUSY_TIME_DIVISOR: u64 = 5;

/// The longest pause for clients: a disk that stalled once doesn't delay everything.
const MAX_YIELD_NS: u64 = 2 * NS_PER_S;

const NS_PER_S: u64 = 1_000_000_000;

/// Token bucket of sent bytes that time hasn't paid for yet. Idle time accumulates no credit.
pub(crate) struct ResyncRate {
    began_ns: u64,
    refilled_ns: Cell<u64>,
    debt: Cell<u64>,
}

/// The current limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RateLimit {
    /// Bytes per second.
    pub(crate) rate: u64,
    /// Whether clients get most of the time.
    pub(crate) yields_to_clients: bool,
}

/// Returns until when clients go first after a transfer from `from_ns` to `to_ns`.
pub(crate) fn yield_until_ns(from_ns: u64, to_ns: u64) -> u64 {
    let yield_ns = to_ns.saturating_sub(from_ns).saturating_mul(BUSY_TIME_DIVISOR - 1).min(MAX_YIELD_NS);
    to_ns.saturating_add(yield_ns)
}

impl ResyncRate {
    pub(crate) fn new(now_ns: u64) -> ResyncRate {
        ResyncRate { began_ns: now_ns, refilled_ns: Cell::new(now_ns), debt: Cell::new(0) }
    }

    /// Records sent bytes.
    pub(crate) fn record_sent(&self, bytes: u64) {
        self.debt.set(self.debt.get().saturating_add(bytes));
    }

    /// Returns what the settings allow. `left`: remaining bytes, if known; `has_client_requests`:
    /// whether clients have requests.
    pub(crate) fn allowed(
        &self,
        settings: &ResyncSettings,
        left: Option<u64>,
        has_client_requests: bool,
        now_ns: u64,
    ) -> RateLimit {
        let rate = match settings.rate {
            Some(rate) => rate.max(1),
            None if has_client_requests => DEFAULT_BUSY_RATE,
            None => return RateLimit { rate: u64::MAX, yields_to_clients: false },
        };
        let (Some(within_s), Some(left)) = (settings.within_s, left) else {
            return RateLimit { rate, yields_to_clients: settings.rate.is_none() };
        };
        let end_ns = self.began_ns.saturating_add(within_s.saturating_mul(NS_PER_S));
        let remaining_ns = end_ns.saturating_sub(now_ns);
        if remaining_ns == 0 {
            // After the deadline, it runs as fast as the disks allow.
            return RateLimit { rate: u64::MAX, yields_to_clients: false };
        }
        let due = u128::from(left) + u128::from(self.debt.get());
        let due = u64::try_from(due * u128::from(NS_PER_S) / u128::from(remaining_ns)).unwrap_or(u64::MAX);
        RateLimit { rate: rate.max(due), yields_to_clients: settings.rate.is_none() && due <= rate }
    }

    /// Returns how long nothing may be sent at this rate, nanoseconds.
    pub(crate) fn pause_ns(&self, rate: u64, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.refilled_ns.replace(now_ns));
        let paid = u128::from(passed_ns) * u128::from(rate) / u128::from(NS_PER_S);
        let debt = self.debt.get().saturating_sub(u64::try_from(paid).unwrap_or(u64::MAX));
        self.debt.set(debt);
        (u128::from(debt) * u128::from(NS_PER_S)).div_ceil(u128::from(rate.max(1))) as u64
    }

    /// Discards the credit for the time until now.
    pub(crate) fn skip(&self, now_ns: u64) {
        self.refilled_ns.set(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_rate_holds_from_the_moment_it_is_set() {
        let limiter = ResyncRate::new(0);
        limiter.record_sent(10 * MIB);
        assert_eq!(limiter.pause_ns(MIB, 0), 10 * NS_PER_S);
        assert_eq!(limiter.pause_ns(MIB, 4 * NS_PER_S), 6 * NS_PER_S);
        assert_eq!(limiter.pause_ns(6 * MIB, 4 * NS_PER_S), NS_PER_S, "it was raised");
        assert_eq!(limiter.pause_ns(6 * MIB, 100 * NS_PER_S), 0);
        limiter.record_sent(6 * MIB);
        assert_eq!(limiter.pause_ns(6 * MIB, 100 * NS_PER_S), NS_PER_S, "nothing was saved up");
        limiter.skip(200 * NS_PER_S);
        assert_eq!(limiter.pause_ns(6 * MIB, 200 * NS_PER_S), NS_PER_S, "a pause pays for nothing");
    }

    #[test]
    fn clients_get_four_fifths_of_the_time_by_default() {
        assert_eq!(yield_until_ns(1000, 1100), 1500);
        assert_eq!(yield_until_ns(0, 3 * NS_PER_S), 3 * NS_PER_S + MAX_YIELD_NS);
        let limiter = ResyncRate::new(0);
        let settings = ResyncSettings::default();
        let (free, slow) = (
            RateLimit { rate: u64::MAX, yields_to_clients: false },
            RateLimit { rate: DEFAULT_BUSY_RATE, yields_to_clients: true },
        );
        assert_eq!(limiter.allowed(&settings, Some(MIB), false, 0), free, "nobody asks for anything");
        assert_eq!(limiter.allowed(&settings, Some(MIB), true, 0), slow);
        let set = ResyncSettings { rate: Some(MIB), ..settings.clone() };
        for has_client_requests in [false, true] {
            let allowed = limiter.allowed(&set, Some(MIB), has_client_requests, 0);
            assert_eq!(allowed, RateLimit { rate: MIB, yields_to_clients: false });
        }
        let hurried = ResyncSettings { within_s: Some(10), ..settings };
        assert_eq!(limiter.allowed(&hurried, Some(10 * DEFAULT_BUSY_RATE), true, 0), slow);
        let late = limiter.allowed(&hurried, Some(20 * DEFAULT_BUSY_RATE), true, 0);
        assert_eq!(
            late,
            RateLimit { rate: 2 * DEFAULT_BUSY_RATE, yields_to_clients: false },
            "it has to be done in time"
        );
    }

    #[test]
    fn a_deadline_raises_the_rate() {
        let limiter = ResyncRate::new(0);
        let hurried = ResyncSettings { rate: Some(MIB), within_s: Some(10), ..ResyncSettings::default() };
        let rate = |left, now_ns| limiter.allowed(&hurried, left, true, now_ns).rate;
        assert_eq!(rate(Some(100 * MIB), 0), 10 * MIB);
        assert_eq!(rate(Some(90 * MIB), 5 * NS_PER_S), 18 * MIB, "what it lost it makes good");
        assert_eq!(rate(Some(5 * MIB), 0), MIB, "never slower than the rate");
        assert_eq!(rate(Some(7 * MIB), 60 * NS_PER_S), u64::MAX, "it is late");
        assert_eq!(rate(None, 0), MIB, "it is counted yet");
        limiter.record_sent(50 * MIB);
        assert_eq!(rate(Some(50 * MIB), 0), 10 * MIB, "what was sent is waited for as well");
    }
}
