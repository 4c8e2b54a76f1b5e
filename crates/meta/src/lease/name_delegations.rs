//! Name-prefix delegations: names in a directory that are delegated to one session, while other
//! sessions use the directory, too. These names begin alike.
//!
//! Clients that fill one directory together mostly create names with prefixes of their own
//! (`rank3.00017`). The holder of the prefix `rank3.` knows which of these names exist, and needn't
//! ask.
//!
//! The lease on such a range is a `Write` lease with a key of its own ([`LeaseKey::NamePrefix`]):
//! recalls, acknowledgements, limits and the ends of sessions work as for all leases. In messages
//! its number stands where that of an inode stands for other leases. This module maps directories
//! and numbers to keys, and drops an entry when its lease is gone.
//!
//! Invariants; leases are granted while the executor of the directory's partition is locked:
//! - Ranges of two sessions in one directory have no name in common.
//! - While a session has a range, no other one holds more than `Permissions` on the directory:
//!   otherwise it would cache names that don't exist any more.

use crate::lease::table::Leases;
use crate::limits::{MAX_NAME_DELEGATIONS, NAME_DELEGATIONS_PER_DIRECTORY, NAME_DELEGATIONS_PER_SESSION};
use crate::session::table::Sessions;
use bytes::Bytes;
use namespace::leases::{InodeAccess, LeaseKey, NamePrefixId, PendingRecall, Requester};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use types::{InodeId, PartitionId, SessionId};
use wire::spec::EntryNames;

/// A name-prefix delegation: its holder and its lease.
struct NameDelegation {
    session: SessionId,
    id: NamePrefixId,
}

/// The ranges of a directory by their prefixes. None is a prefix of another one. So at most one is
/// a prefix of a given name: the last one that isn't greater than the name.
type DirectoryDelegations = BTreeMap<Bytes, NameDelegation>;

/// Those that have some of these names.
fn overlapping<'a>(
    ranges: &'a DirectoryDelegations,
    names: EntryNames<'a>,
) -> impl Iterator<Item = &'a NameDelegation> {
    let (EntryNames::One(beginning) | EntryNames::WithPrefix(beginning)) = names;
    let before = (Bound::Unbounded, Bound::Included(beginning));
    let around =
        ranges.range::<[u8], _>(before).next_back().filter(|(prefix, _)| beginning.starts_with(prefix));
    let after = (Bound::Excluded(beginning), Bound::Unbounded);
    let all = matches!(names, EntryNames::WithPrefix(_))
        .then(|| ranges.range::<[u8], _>(after))
        .into_iter()
        .flatten();
    let within = all.take_while(move |(prefix, _)| prefix.starts_with(beginning));
    around.into_iter().chain(within).map(|(_, range)| range)
}

/// The ranges of all directories.
#[derive(Default)]
pub(crate) struct NameDelegations {
    state: Mutex<State>,
    /// Ranges in all directories. While it is 0, no session has a delegation.
    count: AtomicUsize,
}

#[derive(Default)]
struct State {
    directories: BTreeMap<InodeId, DirectoryDelegations>,
    /// The ids of all ranges.
    ids: BTreeSet<NamePrefixId>,
}

impl NameDelegations {
    fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Those of other sessions in a directory that have some of these names.
    fn of_others(&self, session: SessionId, dir: InodeId, names: EntryNames<'_>) -> Vec<NamePrefixId> {
        if self.is_empty() {
            return Vec::new();
        }
        let state = self.state.lock();
        let Some(ranges) = state.directories.get(&dir) else { return Vec::new() };
        let those = overlapping(ranges, names).filter(|range| range.session != session);
        those.map(|range| range.id).collect()
    }

    /// Whether `is_so` holds for a range of another session in a directory.
    fn any_of_others(
        &self,
        session: SessionId,
        dir: InodeId,
        is_so: impl Fn(SessionId, NamePrefixId) -> bool,
    ) -> bool {
        if self.is_empty() {
            return false;
        }
        let state = self.state.lock();
        let mut there = state.directories.get(&dir).into_iter().flat_map(BTreeMap::values);
        there.any(|range| range.session != session && is_so(range.session, range.id))
    }

    fn retain(&self, mut stays: impl FnMut(InodeId, &NameDelegation) -> bool) {
        if self.is_empty() {
            return;
        }
        let State { directories, ids } = &mut *self.state.lock();
        directories.retain(|dir, ranges| {
            ranges.retain(|_, range| {
                let stays = stays(*dir, range);
                if !stays {
                    ids.remove(&range.id);
                }
                stays
            });
            !ranges.is_empty()
        });
        self.count.store(ids.len(), Relaxed);
    }

    /// Drops the ranges of a partition that another service owns now.
    pub fn forget_partition(&self, partition: PartitionId) {
        self.retain(|dir, _| dir.partition() != partition);
    }

    /// The range whose lease has this number in messages.
    pub fn find(&self, number: InodeId) -> Option<NamePrefixId> {
        let id = NamePrefixId::new(number);
        (!self.is_empty() && self.state.lock().ids.contains(&id)).then_some(id)
    }

    /// Grants a session a range: its own if it has it already, else `fresh`, which is registered
    /// for it. `None` if a session has some of these names, or there are too many ranges. `grant`
    /// grants the lease. Until it has, no other task may find the range without a lease and drop
    /// it.
    fn grant<T>(
        &self,
        session: SessionId,
        (dir, prefix): (InodeId, &Bytes),
        fresh: NamePrefixId,
        grant: impl FnOnce(NamePrefixId) -> Option<T>,
    ) -> Option<T> {
        let state = &mut *self.state.lock();
        let id = self.find_or_add(state, session, (dir, prefix), fresh)?;
        grant(id)
    }

    fn find_or_add(
        &self,
        State { directories, ids }: &mut State,
        session: SessionId,
        (dir, prefix): (InodeId, &Bytes),
        fresh: NamePrefixId,
    ) -> Option<NamePrefixId> {
        if let Some(ranges) = directories.get(&dir) {
            if let Some(known) = ranges.get(prefix).filter(|range| range.session == session) {
                return Some(known.id);
            }
            let own = || ranges.values().filter(|range| range.session == session).count();
            if overlapping(ranges, EntryNames::WithPrefix(prefix)).next().is_some()
                || ranges.len() >= NAME_DELEGATIONS_PER_DIRECTORY
                || own() >= NAME_DELEGATIONS_PER_SESSION
            {
                return None;
            }
        }
        if self.count.load(Relaxed) >= MAX_NAME_DELEGATIONS {
            return None;
        }
        directories.entry(dir).or_default().insert(prefix.clone(), NameDelegation { session, id: fresh });
        ids.insert(fresh);
        self.count.store(ids.len(), Relaxed);
        Some(fresh)
    }
}

impl Leases {
    fn holds(&self, session: SessionId, range: NamePrefixId) -> bool {
        self.is_written_by(session, range.into())
    }

    /// Whether other sessions have name-prefix delegations in a directory.
    pub fn others_have_name_delegations(&self, session: SessionId, dir: InodeId) -> bool {
        self.name_delegations.any_of_others(session, dir, |other, range| self.holds(other, range))
    }

    /// Recalls the ranges of other sessions that include some of these names.
    pub fn recall_name_delegations(
        &self,
        sessions: &Sessions,
        requester: Requester,
        (dir, names): (InodeId, EntryNames<'_>),
        due: &mut Vec<PendingRecall>,
    ) {
        for range in self.name_delegations.of_others(requester.session, dir, names) {
            self.recall_conflicting_on(sessions, requester, (range.into(), InodeAccess::Write), due);
        }
    }

    /// Grants a session the names of a directory with a prefix. Returns the key of its
    /// lease: `fresh`, or the earlier one. Recalls what other sessions cache of all names of the
    /// directory, and adds pending recalls to `due`: then nothing is granted, and the caller has to
    /// repeat the request.
    pub fn acquire_name_delegation(
        &self,
        sessions: &Sessions,
        requester: Requester,
        (dir, prefix): (InodeId, &Bytes),
        fresh: NamePrefixId,
        due: &mut Vec<PendingRecall>,
    ) -> Option<LeaseKey> {
        if self.is_written_elsewhere(requester.session, dir) {
            return None;
        }
        let is_crowded = self.name_delegations.count.load(Relaxed) >= MAX_NAME_DELEGATIONS / 2;
        self.name_delegations
            .retain(|at, range| (at != dir && !is_crowded) || self.holds(range.session, range.id));
        let before = due.len();
        self.recall_for_name_change(sessions, requester, dir, due);
        if due.len() > before {
            return None;
        }
        self.name_delegations.grant(requester.session, (dir, prefix), fresh, |range| {
            self.acquire_exclusive(sessions, requester, range.into(), due).map(|_| range.into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    const DIR: InodeId = InodeId(9);

    fn id(number: u64) -> NamePrefixId {
        NamePrefixId::new(InodeId(number))
    }

    fn number(id: NamePrefixId) -> u64 {
        LeaseKey::from(id).number().0
    }

    fn note(ranges: &NameDelegations, session: u64, prefix: &str, fresh: u64) -> Option<u64> {
        let prefix = Bytes::copy_from_slice(prefix.as_bytes());
        let noted = ranges.grant(SessionId(session), (DIR, &prefix), id(fresh), Some);
        noted.map(number)
    }

    #[test]
    fn no_two_ranges_have_a_name_in_common_and_there_are_not_too_many() {
        let ranges = NameDelegations::default();
        assert_eq!(note(&ranges, 1, "a.", 100), Some(100));
        assert_eq!(note(&ranges, 1, "a.", 101), Some(100), "it has that already");
        for overlapping in ["a.", "a", "a.b"] {
            assert_eq!(note(&ranges, 2, overlapping, 102), None);
        }
        assert_eq!(note(&ranges, 1, "a.b", 102), None, "its own are refused as well");
        assert_eq!(note(&ranges, 2, "b.", 103), Some(103));
        assert_eq!(ranges.find(InodeId(103)), Some(id(103)));
        assert_eq!(ranges.find(InodeId(102)), None, "it was refused");
        let own = (0..2 * NAME_DELEGATIONS_PER_SESSION as u64)
            .filter(|n| note(&ranges, 3, &format!("c{n}."), 200 + n).is_some());
        assert_eq!(own.count(), NAME_DELEGATIONS_PER_SESSION);
        let many = 2 * NAME_DELEGATIONS_PER_DIRECTORY as u64;
        let many =
            (4..many).filter(|other| note(&ranges, *other, &format!("d{other}."), 1000 + other).is_some());
        assert_eq!(many.count(), NAME_DELEGATIONS_PER_DIRECTORY - NAME_DELEGATIONS_PER_SESSION - 2);
        ranges.forget_partition(DIR.partition());
        assert_eq!(ranges.find(InodeId(103)), None);
        assert!(ranges.is_empty() && ranges.of_others(SessionId(2), DIR, EntryNames::ALL).is_empty());
    }

    #[test]
    fn no_other_core_drops_a_range_before_its_lease_is_granted() {
        let (ranges, is_held) = (NameDelegations::default(), AtomicBool::new(false));
        let (finished, has_finished) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let drop_unheld = || {
                ranges.retain(|_, _| is_held.load(Relaxed));
                finished.send(()).unwrap();
            };
            ranges.grant(SessionId(1), (DIR, &Bytes::from_static(b"a.")), id(100), |_| {
                scope.spawn(drop_unheld);
                _ = has_finished.recv_timeout(Duration::from_millis(50));
                is_held.store(true, Relaxed);
                Some(())
            });
        });
        assert!(ranges.find(InodeId(100)).is_some(), "other sessions would not recall the lease");
    }

    fn text() -> impl Strategy<Value = String> {
        "[ab]{0,5}"
    }

    proptest! {
        /// Compares the ranges that a command concerns with a check of each range.
        #[test]
        fn names_meet_ranges_as_a_look_at_all_of_them_says(prefixes in vec(text(), 0..12), names in vec(text(), 1..12)) {
            let ranges = NameDelegations::default();
            let mut noted: Vec<(u64, String)> = Vec::new();
            for (at, prefix) in prefixes.into_iter().filter(|prefix| !prefix.is_empty()).enumerate() {
                let overlaps = |other: &String| other.starts_with(&prefix) || prefix.starts_with(other.as_str());
                let expected = !noted.iter().any(|(_, other)| overlaps(other));
                let lease = 100 + at as u64;
                let is_there = noted.iter().any(|(_, other)| *other == prefix);
                if !is_there {
                    prop_assert_eq!(note(&ranges, 1, &prefix, lease).is_some(), expected);
                }
                if expected {
                    noted.push((lease, prefix));
                }
            }
            let met = |names| {
                let mut met: Vec<u64> = ranges.of_others(SessionId(2), DIR, names).into_iter().map(number).collect();
                met.sort_unstable();
                met
            };
            let all = |meets: &dyn Fn(&str) -> bool| -> Vec<u64> {
                noted.iter().filter(|(_, prefix)| meets(prefix)).map(|(lease, _)| *lease).collect()
            };
            for name in &names {
                prop_assert_eq!(met(EntryNames::One(name.as_bytes())), all(&|prefix| name.starts_with(prefix)));
                let overlaps = |prefix: &str| name.starts_with(prefix) || prefix.starts_with(name.as_str());
                prop_assert_eq!(met(EntryNames::WithPrefix(name.as_bytes())), all(&overlaps));
            }
            prop_assert_eq!(ranges.of_others(SessionId(1), DIR, EntryNames::ALL), []);
        }
    }
}
