//! How fast a member is sent what it has missed: what the cluster's settings say at that moment holds, also for one that runs.

use std::cell::Cell;
use types::ResyncSettings;

/// What one member is sent unless the settings say otherwise, bytes a second: a part of what a disk and a network of today do, so that who uses them goes on.
const DEFAULT_RATE: u64 = 256 << 20;

const NS_PER_S: u64 = 1_000_000_000;

/// What was sent and isn't paid with time yet. Nothing is saved up while there is nothing to send.
pub(super) struct Pace {
    began_ns: u64,
    paid_ns: Cell<u64>,
    debt: Cell<u64>,
}

impl Pace {
    pub(super) fn new(now_ns: u64) -> Pace {
        Pace { began_ns: now_ns, paid_ns: Cell::new(now_ns), debt: Cell::new(0) }
    }

    /// So much was sent.
    pub(super) fn sent(&self, bytes: u64) {
        self.debt.set(self.debt.get().saturating_add(bytes));
    }

    /// Bytes a second by the settings; `left`: what there is to send yet, as far as that is known.
    pub(super) fn rate(&self, settings: &ResyncSettings, left: Option<u64>, now_ns: u64) -> u64 {
        let rate = settings.rate.unwrap_or(DEFAULT_RATE).max(1);
        let (Some(within_s), Some(left)) = (settings.within_s, left) else { return rate };
        let end_ns = self.began_ns.saturating_add(within_s.saturating_mul(NS_PER_S));
        let rest_ns = end_ns.saturating_sub(now_ns);
        if rest_ns == 0 {
            // Who is late already does what the disks can.
            return u64::MAX;
        }
        let due = u128::from(left) + u128::from(self.debt.get());
        rate.max(u64::try_from(due * u128::from(NS_PER_S) / u128::from(rest_ns)).unwrap_or(u64::MAX))
    }

    /// How long nothing may be sent at this rate, nanoseconds.
    pub(super) fn rest_ns(&self, rate: u64, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.paid_ns.replace(now_ns));
        let paid = u128::from(passed_ns) * u128::from(rate) / u128::from(NS_PER_S);
        let debt = self.debt.get().saturating_sub(u64::try_from(paid).unwrap_or(u64::MAX));
        self.debt.set(debt);
        (u128::from(debt) * u128::from(NS_PER_S)).div_ceil(u128::from(rate.max(1))) as u64
    }

    /// The time that has passed until now pays for nothing.
    pub(super) fn pass(&self, now_ns: u64) {
        self.paid_ns.set(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_rate_holds_from_the_moment_it_is_set() {
        let pace = Pace::new(0);
        pace.sent(10 * MIB);
        assert_eq!(pace.rest_ns(MIB, 0), 10 * NS_PER_S);
        assert_eq!(pace.rest_ns(MIB, 4 * NS_PER_S), 6 * NS_PER_S);
        assert_eq!(pace.rest_ns(6 * MIB, 4 * NS_PER_S), NS_PER_S, "it was raised");
        assert_eq!(pace.rest_ns(6 * MIB, 100 * NS_PER_S), 0);
        pace.sent(6 * MIB);
        assert_eq!(pace.rest_ns(6 * MIB, 100 * NS_PER_S), NS_PER_S, "nothing was saved up");
        pace.pass(200 * NS_PER_S);
        assert_eq!(pace.rest_ns(6 * MIB, 200 * NS_PER_S), NS_PER_S, "a pause pays for nothing");
    }

    #[test]
    fn what_must_be_done_in_time_goes_faster() {
        let pace = Pace::new(0);
        let settings = |rate, within_s| ResyncSettings { rate, within_s, ..ResyncSettings::default() };
        assert_eq!(pace.rate(&settings(None, None), Some(u64::MAX), 0), DEFAULT_RATE);
        assert_eq!(pace.rate(&settings(Some(MIB), None), Some(100 * MIB), 0), MIB);
        let hurried = settings(Some(MIB), Some(10));
        assert_eq!(pace.rate(&hurried, Some(100 * MIB), 0), 10 * MIB);
        assert_eq!(pace.rate(&hurried, Some(90 * MIB), 5 * NS_PER_S), 18 * MIB, "what it lost it makes good");
        assert_eq!(pace.rate(&hurried, Some(5 * MIB), 0), MIB, "never slower than the rate");
        assert_eq!(pace.rate(&hurried, Some(7 * MIB), 60 * NS_PER_S), u64::MAX, "it is late");
        assert_eq!(pace.rate(&hurried, None, 0), MIB, "it is counted yet");
        pace.sent(50 * MIB);
        assert_eq!(pace.rate(&hurried, Some(50 * MIB), 0), 10 * MIB, "what was sent is waited for as well");
    }
}
