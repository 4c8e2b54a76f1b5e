//! Names in a directory that one session has to itself, while others use the directory, too: those that begin alike.
//!
//! Clients that fill one directory together mostly make names of their own there (`rank3.00017`). Who has all of those that begin with `rank3.` knows which
//! of them there are, and needn't ask.
//!
//! The lease on such a range is `Write` on an inode number that no file has, of the directory's partition: recalls, yields, limits and ends of sessions are those of all
//! leases. What belongs to a directory is noted here, and forgotten when the lease is found gone.
//!
//! Invariants; what grants is done while the directory's partition is held:
//! - Ranges of two sessions in one directory have no name in common.
//! - While a session has a range, no other one holds more than `Permissions` on the directory: else it would go on to know names that aren't any more.

use crate::leases::Leases;
use crate::limits::{RANGES, RANGES_PER_DIRECTORY, RANGES_PER_SESSION};
use crate::sessions::Sessions;
use bytes::Bytes;
use namespace::leases::{Access, Asker, Due};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use types::{InodeId, PartitionId, SessionId};

/// Names that a command is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Names<'a> {
    One(&'a [u8]),
    /// All that begin so.
    With(&'a [u8]),
}

impl Names<'_> {
    /// Every name.
    pub const ALL: Names<'static> = Names::With(b"");

    /// Whether one of them may begin with this.
    fn meets(self, prefix: &[u8]) -> bool {
        match self {
            Names::One(name) => name.starts_with(prefix),
            Names::With(beginning) => beginning.starts_with(prefix) || prefix.starts_with(beginning),
        }
    }
}

struct Range {
    prefix: Bytes,
    session: SessionId,
    /// The number on which the lease is.
    lease: InodeId,
}

/// The ranges of all directories.
#[derive(Default)]
pub(crate) struct Ranges {
    directories: Mutex<BTreeMap<InodeId, Vec<Range>>>,
    /// Ranges in all of them. While it is 0, nobody has names in any.
    count: AtomicUsize,
}

impl Ranges {
    fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Those of other sessions in a directory that have some of these names.
    fn of_others(&self, session: SessionId, dir: InodeId, names: Names<'_>) -> Vec<(SessionId, InodeId)> {
        if self.is_empty() {
            return Vec::new();
        }
        let directories = self.directories.lock();
        let there = directories.get(&dir).into_iter().flatten();
        let those = there.filter(|range| range.session != session && names.meets(&range.prefix));
        those.map(|range| (range.session, range.lease)).collect()
    }

    fn retain(&self, mut stays: impl FnMut(InodeId, &Range) -> bool) {
        if self.is_empty() {
            return;
        }
        let mut directories = self.directories.lock();
        directories.retain(|dir, ranges| {
            ranges.retain(|range| stays(*dir, range));
            !ranges.is_empty()
        });
        self.count.store(directories.values().map(Vec::len).sum(), Relaxed);
    }

    /// Forgets those of a partition that is another service's now.
    pub fn forget_partition(&self, partition: PartitionId) {
        self.retain(|dir, _| dir.partition() != partition);
    }

    /// What stands for these names of a session, if they are noted already, else `fresh`, which then is noted. `None` where others have some of them, or there are too many.
    fn find_or_note(
        &self,
        session: SessionId,
        (dir, prefix): (InodeId, &Bytes),
        fresh: InodeId,
    ) -> Option<InodeId> {
        let mut directories = self.directories.lock();
        let ranges = directories.entry(dir).or_default();
        let own = |range: &&Range| range.session == session;
        let names = Names::With(prefix);
        let known = ranges.iter().find(|range| own(range) && range.prefix == *prefix);
        if let Some(range) = known {
            return Some(range.lease);
        }
        let is_taken = ranges.iter().any(|range| range.session != session && names.meets(&range.prefix));
        let is_full = ranges.len() >= RANGES_PER_DIRECTORY
            || ranges.iter().filter(own).count() >= RANGES_PER_SESSION
            || self.count.load(Relaxed) >= RANGES;
        if is_taken || is_full {
            if ranges.is_empty() {
                directories.remove(&dir);
            }
            return None;
        }
        ranges.push(Range { prefix: prefix.clone(), session, lease: fresh });
        self.count.fetch_add(1, Relaxed);
        Some(fresh)
    }
}

impl Leases {
    fn holds(&self, session: SessionId, range: InodeId) -> bool {
        self.is_written_by(session, range)
    }

    /// Whether other sessions have names of a directory to themselves.
    pub fn has_ranges_of_others(&self, session: SessionId, dir: InodeId) -> bool {
        let of_others = self.ranges.of_others(session, dir, Names::ALL);
        of_others.into_iter().any(|(other, range)| self.holds(other, range))
    }

    /// Recalls the ranges of others in which some of these names are.
    pub fn make_way_in_ranges(
        &self,
        sessions: &Sessions,
        asker: Asker,
        (dir, names): (InodeId, Names<'_>),
        due: &mut Vec<Due>,
    ) {
        for (_, range) in self.ranges.of_others(asker.session, dir, names) {
            self.make_way_on(sessions, asker, (range, Access::Change), due);
        }
    }

    /// Gives a session the names of a directory that begin with a prefix; returns the number on which it has a lease then, `fresh` or the one of before. What others know of
    /// all names of the directory is recalled, and what has to be waited for is added to `due`: then nothing is granted, and the wish is to be repeated.
    pub fn take_range(
        &self,
        sessions: &Sessions,
        asker: Asker,
        (dir, prefix): (InodeId, &Bytes),
        fresh: InodeId,
        due: &mut Vec<Due>,
    ) -> Option<InodeId> {
        if self.is_written_elsewhere(asker.session, dir) {
            return None;
        }
        let is_crowded = self.ranges.count.load(Relaxed) >= RANGES / 2;
        self.ranges.retain(|at, range| (at != dir && !is_crowded) || self.holds(range.session, range.lease));
        let before = due.len();
        self.make_way_for_names(sessions, asker, dir, due);
        if due.len() > before {
            return None;
        }
        let range = self.ranges.find_or_note(asker.session, (dir, prefix), fresh)?;
        self.take_alone(sessions, asker, range, due).map(|_| range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeId = InodeId(9);

    #[test]
    fn names_meet_where_some_name_is_both() {
        let meets = |names: Names<'_>| names.meets(b"rank3.");
        assert!(meets(Names::One(b"rank3.17")) && meets(Names::One(b"rank3.")));
        assert!(!meets(Names::One(b"rank3")) && !meets(Names::One(b"rank31.17")));
        assert!(meets(Names::With(b"rank")) && meets(Names::With(b"rank3.x")) && meets(Names::ALL));
        assert!(!meets(Names::With(b"rank4")));
    }

    #[test]
    fn no_two_sessions_have_a_name_in_common_and_there_are_not_too_many() {
        let ranges = Ranges::default();
        let note = |session, prefix: &str, fresh| {
            let prefix = Bytes::copy_from_slice(prefix.as_bytes());
            ranges.find_or_note(SessionId(session), (DIR, &prefix), InodeId(fresh))
        };
        assert_eq!(note(1, "a.", 100), Some(InodeId(100)));
        assert_eq!(note(1, "a.", 101), Some(InodeId(100)), "it has that already");
        for overlapping in ["a.", "a", "a.b"] {
            assert_eq!(note(2, overlapping, 102), None);
        }
        assert_eq!(note(2, "b.", 103), Some(InodeId(103)));
        assert_eq!(note(1, "a.b", 104), Some(InodeId(104)), "its own may overlap");
        let of_others = |names| ranges.of_others(SessionId(2), DIR, names);
        assert_eq!(of_others(Names::One(b"a.c")), [(SessionId(1), InodeId(100))]);
        assert_eq!(of_others(Names::One(b"b.c")), []);
        assert_eq!(of_others(Names::ALL).len(), 2);
        let own: Vec<_> =
            (0..2 * RANGES_PER_SESSION as u64).filter_map(|n| note(3, &format!("c{n}."), 200 + n)).collect();
        assert_eq!(own.len(), RANGES_PER_SESSION);
        let many = (4..200).filter_map(|session| note(session, &format!("d{session}."), 1000 + session));
        assert!(many.count() < RANGES_PER_DIRECTORY);
        ranges.forget_partition(DIR.partition());
        assert!(ranges.is_empty() && of_others(Names::ALL).is_empty());
    }
}
