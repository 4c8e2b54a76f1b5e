//! Session slots and sequence ids of changes that must be executed only once:
//! [`wire::SlotSequence`].

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Result};
use wire::SlotSequence;

/// After this time a slot is used again although its last change was never answered: no request is
/// in flight for that long, or executed later.
pub(crate) const SLOT_REUSE_AFTER: Duration = Duration::from_secs(3600);

/// The free slots of a session. A session has as many slots as it had concurrent changes, plus
/// those of the last hour without an answer.
#[derive(Default)]
pub(crate) struct SlotTable {
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    /// With the last sequence id of each. The most recently used slot is taken first, so that few
    /// slots are in use.
    free: Vec<SlotSequence>,
    /// Slots whose last change was not answered, with the time of that (nanoseconds of the
    /// monotonic clock), oldest first.
    unanswered: VecDeque<(u64, SlotSequence)>,
    /// The first slot that was never used.
    fresh: u32,
}

/// A slot in use. Dropped without [`SlotInUse::complete`], its change counts as unanswered.
pub(crate) struct SlotInUse {
    table: Arc<SlotTable>,
    pub(crate) slot_sequence: SlotSequence,
    is_answered: bool,
}

impl SlotTable {
    /// Takes a slot for a change.
    pub(crate) fn next(self: &Arc<Self>) -> SlotInUse {
        let last = self.slots.lock().next(rt::monotonic_ns());
        SlotInUse {
            table: self.clone(),
            slot_sequence: SlotSequence { sequence: last.sequence + 1, ..last },
            is_answered: false,
        }
    }
}

impl Slots {
    /// Returns a free slot with its last sequence id.
    fn next(&mut self, now_ns: u64) -> SlotSequence {
        if let Some(last) = self.free.pop() {
            return last;
        }
        let reused_after_ns = SLOT_REUSE_AFTER.as_nanos() as u64;
        let is_over = |since_ns: u64| now_ns.saturating_sub(since_ns) > reused_after_ns;
        if let Some(&(since_ns, last)) = self.unanswered.front()
            && is_over(since_ns)
        {
            self.unanswered.pop_front();
            return last;
        }
        self.fresh += 1;
        SlotSequence { slot: self.fresh - 1, sequence: 0 }
    }
}

impl SlotInUse {
    /// Records the outcome of the change. Its slot becomes free, unless the request may still be in
    /// flight, or its result isn't on disk yet.
    pub(crate) fn complete<T>(mut self, outcome: &Result<T>) {
        self.is_answered = !is_uncertain(outcome);
    }
}

/// Whether an outcome is uncertain: the request may still be executed, or its result may not be on
/// disk yet.
pub(crate) fn is_uncertain<T>(outcome: &Result<T>) -> bool {
    let may_be_executed =
        |errno| matches!(errno, Errno::ETIMEDOUT | Errno::EIO | Errno::ECANCELED | Errno::ENOTCONN);
    outcome.as_ref().err().is_some_and(|error| may_be_executed(error.errno))
}

impl Drop for SlotInUse {
    fn drop(&mut self) {
        // Sequence ids of a slot must grow; this slot is retired, and the next one begins at 1.
        if self.slot_sequence.sequence == u32::MAX {
            return;
        }
        let mut slots = self.table.slots.lock();
        match self.is_answered {
            true => slots.free.push(self.slot_sequence),
            false => slots.unanswered.push_back((rt::monotonic_ns(), self.slot_sequence)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_request_at_a_time() {
        let table = Arc::new(SlotTable::default());
        let [a, b] = [table.next(), table.next()];
        assert_eq!([a.slot_sequence, b.slot_sequence].map(|n| (n.slot, n.sequence)), [(0, 1), (1, 1)]);
        b.complete(&Ok(()));
        let c = table.next();
        assert_eq!((c.slot_sequence.slot, c.slot_sequence.sequence), (1, 2));
        assert_eq!(table.next().slot_sequence.slot, 2, "the first lane's number was never answered");
    }

    #[test]
    fn an_unanswered_slot_is_not_reused_for_an_hour() {
        let table = Arc::new(SlotTable::default());
        table.next().complete::<()>(&Err(Errno::ETIMEDOUT.into()));
        drop(table.next());
        let refused = table.next();
        assert_eq!(refused.slot_sequence.slot, 2);
        refused.complete::<()>(&Err(Errno::EEXIST.into()));
        let next = table.next();
        assert_eq!(next.slot_sequence, SlotSequence { slot: 2, sequence: 2 });
        let mut slots = table.slots.lock();
        let later_ns = rt::monotonic_ns() + 2 * SLOT_REUSE_AFTER.as_nanos() as u64;
        let later = [(); 3].map(|()| slots.next(later_ns));
        assert_eq!(later.map(|last| (last.slot, last.sequence)), [(0, 1), (1, 1), (3, 0)]);
    }
}
