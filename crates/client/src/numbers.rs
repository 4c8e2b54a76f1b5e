//! Numbers of changes that must not be made twice: [`wire::Number`].

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;
use types::{Errno, Result};
use wire::Number;

/// After this time a lane is used again although its last change was never answered: no request is
/// under way for so long, nor will it be done.
pub(crate) const REUSED_AFTER: Duration = Duration::from_secs(3600);

/// The lanes of a session that aren't in use. As many as there were numbered changes at a time, and
/// those of the last hour that nobody answered.
#[derive(Default)]
pub(crate) struct Numbers {
    lanes: Mutex<Lanes>,
}

#[derive(Default)]
struct Lanes {
    /// With the last number of each. The one that was used last comes first, so that few are in
    /// use.
    free: Vec<Number>,
    /// Those whose last change was not answered, since when (nanoseconds of the monotonic clock),
    /// oldest first.
    unanswered: VecDeque<(u64, Number)>,
    /// The first lane that was never used.
    fresh: u32,
}

/// A number in use. Dropped without [`Numbered::ended`], its change counts as not answered.
pub(crate) struct Numbered<'a> {
    numbers: &'a Numbers,
    pub(crate) number: Number,
    is_answered: bool,
}

impl Numbers {
    /// The number of another change.
    pub(crate) fn next(&self) -> Numbered<'_> {
        let last = self.lanes.lock().next(rt::monotonic_ns());
        Numbered { numbers: self, number: Number { sequence: last.sequence + 1, ..last }, is_answered: false }
    }
}

impl Lanes {
    /// The last number of a lane that may be used.
    fn next(&mut self, now_ns: u64) -> Number {
        if let Some(last) = self.free.pop() {
            return last;
        }
        let reused_after_ns = REUSED_AFTER.as_nanos() as u64;
        let is_over = |since_ns: u64| now_ns.saturating_sub(since_ns) > reused_after_ns;
        if let Some(&(since_ns, last)) = self.unanswered.front()
            && is_over(since_ns)
        {
            self.unanswered.pop_front();
            return last;
        }
        self.fresh += 1;
        Number { lane: self.fresh - 1, sequence: 0 }
    }
}

impl Numbered<'_> {
    /// This is what came of the change. Its lane is free, unless the request may still be on its
    /// way, or what it did on its way to the disk.
    pub(crate) fn ended<T>(mut self, outcome: &Result<T>) {
        self.is_answered = !is_in_doubt(outcome);
    }
}

/// Whether a request may still be carried out, or what it did still be on its way to the disk.
pub(crate) fn is_in_doubt<T>(outcome: &Result<T>) -> bool {
    let in_doubt =
        |errno| matches!(errno, Errno::ETIMEDOUT | Errno::EIO | Errno::ECANCELED | Errno::ENOTCONN);
    outcome.as_ref().err().is_some_and(|error| in_doubt(error.errno))
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        // Numbers of a lane must grow; the next lane begins anew.
        if self.number.sequence == u32::MAX {
            return;
        }
        let mut lanes = self.numbers.lanes.lock();
        match self.is_answered {
            true => lanes.free.push(self.number),
            false => lanes.unanswered.push_back((rt::monotonic_ns(), self.number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_has_one_number_in_use() {
        let numbers = Numbers::default();
        let [a, b] = [numbers.next(), numbers.next()];
        assert_eq!([a.number, b.number].map(|n| (n.lane, n.sequence)), [(0, 1), (1, 1)]);
        b.ended(&Ok(()));
        let c = numbers.next();
        assert_eq!((c.number.lane, c.number.sequence), (1, 2));
        assert_eq!(numbers.next().number.lane, 2, "the first lane's number was never answered");
    }

    #[test]
    fn a_lane_whose_change_may_still_be_made_is_not_used_for_an_hour() {
        let numbers = Numbers::default();
        numbers.next().ended::<()>(&Err(Errno::ETIMEDOUT.into()));
        drop(numbers.next());
        let refused = numbers.next();
        assert_eq!(refused.number.lane, 2);
        refused.ended::<()>(&Err(Errno::EEXIST.into()));
        let next = numbers.next();
        assert_eq!(next.number, Number { lane: 2, sequence: 2 });
        let mut lanes = numbers.lanes.lock();
        let later_ns = rt::monotonic_ns() + 2 * REUSED_AFTER.as_nanos() as u64;
        let later = [(); 3].map(|()| lanes.next(later_ns));
        assert_eq!(later.map(|last| (last.lane, last.sequence)), [(0, 1), (1, 1), (3, 0)]);
    }
}
