//! Numbers of writes that must not be done twice: [`wire::Number`].

use parking_lot::Mutex;
use wire::Number;

/// The lanes of a session that aren't in use. As many as there were numbered writes at a time.
#[derive(Default)]
pub(crate) struct Numbers {
    lanes: Mutex<Lanes>,
}

#[derive(Default)]
struct Lanes {
    /// With the last number of each. The one that was used last comes first, so that few are in use.
    free: Vec<Number>,
    /// The first lane that was never used.
    fresh: u32,
}

/// A number in use. A lane whose number was not answered is not used again.
pub(crate) struct Numbered<'a> {
    numbers: &'a Numbers,
    pub(crate) number: Number,
}

impl Numbers {
    /// The number of another write.
    pub(crate) fn next(&self) -> Numbered<'_> {
        let mut lanes = self.lanes.lock();
        let last = lanes.free.pop().unwrap_or_else(|| {
            lanes.fresh += 1;
            Number { lane: lanes.fresh - 1, sequence: 0 }
        });
        Numbered { numbers: self, number: Number { sequence: last.sequence + 1, ..last } }
    }
}

impl Numbered<'_> {
    /// The write was answered: its lane is free.
    pub(crate) fn answered(self) {
        // Numbers of a lane must grow; the next lane begins anew.
        if self.number.sequence < u32::MAX {
            self.numbers.lanes.lock().free.push(self.number);
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
        b.answered();
        let c = numbers.next();
        assert_eq!((c.number.lane, c.number.sequence), (1, 2));
        assert_eq!(numbers.next().number.lane, 2, "the first lane's number was never answered");
    }
}
