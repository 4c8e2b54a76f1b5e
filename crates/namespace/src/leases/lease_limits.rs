//! Room for new leases: which old ones are recalled when there are many.
//!
//! A client that walks a huge tree keeps caching: its oldest leases make room for new ones. The
//! service sees the use of a lease only when the client requests it again. So the order is that of
//! the grants, and a lease that was requested again since, or that allows writing, is skipped once.
//!
//! [`ROOM_RECALLS`], [`EXAMINED`] and [`VICTIMS`] bound the work for one grant.

use super::{Holder, LeaseKey, LeaseTable, RecallState, Send};
use std::collections::VecDeque;
use std::ops::Bound;
use types::SessionId;
use wire::LeaseMode;

/// Recalls that one new lease may send: two, so that the number of leases falls while new ones
/// arrive.
const ROOM_RECALLS: usize = 2;

/// Leases that are examined to find one that can be recalled. The eighth of a limit between the
/// start of recalls and the end of offers suffices to examine all others twice.
const EXAMINED: usize = 16;

/// Sessions that are examined to find one with more than its share.
const VICTIMS: usize = 8;

/// Entries of the age list beyond twice the number of leases, before invalid ones are dropped.
const SLACK: usize = 32;

/// Leases and marks of a session.
#[derive(Default)]
pub(super) struct SessionLeases {
    /// Leases and marks.
    pub holders: usize,
    /// Those of them that are recalled to make room.
    pub being_recalled: usize,
    /// Leases, oldest first. An entry is invalid if the lease has another sequence number now.
    ages: VecDeque<AgeEntry>,
}

#[derive(Clone, Copy)]
struct AgeEntry {
    key: LeaseKey,
    age_number: u32,
}

impl SessionLeases {
    fn not_recalled(&self) -> usize {
        self.holders - self.being_recalled
    }

    /// Entries of the age list.
    #[cfg(test)]
    pub fn noted(&self) -> usize {
        self.ages.len()
    }
}

impl Holder {
    /// Whether the lease may be recalled to make room. A `Shared` lease is useful only while a file
    /// is open, and the client releases it by itself.
    fn is_recallable(&self) -> bool {
        let has_recallable_mode =
            matches!(self.mode, Some(LeaseMode::Read | LeaseMode::Permissions | LeaseMode::Write));
        has_recallable_mode && self.recall.is_none()
    }
}

/// From this count on, old leases are recalled.
fn recall_threshold(limit: usize) -> usize {
    limit - limit / 4
}

/// From this count on, leases are granted on request only: the rest is for files that are opened.
fn offer_threshold(limit: usize) -> usize {
    limit - limit / 8
}

impl LeaseTable {
    pub(super) fn has_room(&self, session: SessionId) -> bool {
        self.total < self.limits.total && self.count(session) < self.limits.per_session
    }

    pub(super) fn has_room_for_offers(&self, session: SessionId) -> bool {
        self.total < offer_threshold(self.limits.total)
            && self.count(session) < offer_threshold(self.limits.per_session)
    }

    fn count(&self, session: SessionId) -> usize {
        self.by_session.get(&session).map_or(0, |own| own.holders)
    }

    /// Sets other limits, for leases that are granted from now on.
    pub fn set_limits(&mut self, limits: super::Limits) {
        self.limits = limits;
    }

    /// Recalls old leases if there are many: those of the session that just got one, if it has too
    /// many; those of a session with more than its share, if there are too many in total. Such a
    /// lease ends as soon as its recall is acknowledged.
    pub fn make_room(&mut self, session: SessionId, send: Send<'_>) {
        for _ in 0..ROOM_RECALLS {
            let own = self.by_session.get(&session).map_or(0, SessionLeases::not_recalled);
            let victim = if own > recall_threshold(self.limits.per_session) {
                Some(session)
            } else if self.total - self.recalled_for_room > recall_threshold(self.limits.total) {
                self.victim(session)
            } else {
                None
            };
            let Some(victim) = victim else { return };
            self.recall_oldest(victim, send);
        }
    }

    /// The session whose leases are recalled: the requester if it has its share, else the next one
    /// in turn that does. So the working sets of small sessions survive the tree walk of a large
    /// one.
    fn victim(&mut self, requester: SessionId) -> Option<SessionId> {
        let share = (self.total - self.recalled_for_room) / self.by_session.len().max(1);
        let has_share = |own: &SessionLeases| own.not_recalled() >= share.max(1) && !own.ages.is_empty();
        if self.by_session.get(&requester).is_some_and(has_share) {
            return Some(requester);
        }
        for _ in 0..VICTIMS {
            let mut after = self.by_session.range((Bound::Excluded(self.last_victim), Bound::Unbounded));
            let (&session, own) = after.next().or_else(|| self.by_session.first_key_value())?;
            self.last_victim = session;
            if has_share(own) {
                return Some(session);
            }
        }
        None
    }

    fn recall_oldest(&mut self, session: SessionId, send: Send<'_>) {
        let Some(own) = self.by_session.get_mut(&session) else { return };
        for _ in 0..EXAMINED {
            let Some(oldest) = own.ages.pop_front() else { return };
            let holder = self.entries.get_mut(&oldest.key).and_then(|entry| entry.holder(session));
            let Some(holder) = holder.filter(|holder| holder.age_number == oldest.age_number) else {
                continue;
            };
            if !holder.is_recallable() {
                // It gets a new number with its next use.
                holder.age_number = 0;
            } else if holder.second_chances > 0 {
                holder.second_chances -= 1;
                own.ages.push_back(oldest);
            } else {
                let number = send(session, oldest.key, None);
                let pending = RecallState { number, retain: None, blocks_command: false, to_make_room: true };
                (holder.recall, holder.age_number) = (Some(pending), 0);
                own.being_recalled += 1;
                self.recalled_for_room += 1;
                return;
            }
        }
    }

    /// Notes that a recall to make room was acknowledged.
    pub(super) fn recall_for_room_completed(&mut self, session: SessionId) {
        self.recalled_for_room -= 1;
        if let Some(own) = self.by_session.get_mut(&session) {
            own.being_recalled -= 1;
        }
    }

    /// Notes that a lease was granted, or requested again.
    pub(super) fn note_use(&mut self, session: SessionId, key: LeaseKey) {
        let holder = self.entries.get_mut(&key).and_then(|entry| entry.holder(session));
        let Some(holder) = holder.filter(|holder| holder.is_recallable()) else { return };
        if holder.age_number != 0 {
            holder.second_chances = 1;
            return;
        }
        self.last_age_number = self.last_age_number.wrapping_add(1).max(1);
        holder.age_number = self.last_age_number;
        holder.second_chances = u8::from(holder.mode == Some(LeaseMode::Write));
        let Some(own) = self.by_session.get_mut(&session) else { return };
        own.ages.push_back(AgeEntry { key, age_number: self.last_age_number });
        if own.ages.len() > 2 * own.holders + SLACK {
            own.ages.retain(|aged| {
                let holder = self.entries.get(&aged.key).and_then(|entry| entry.find(session));
                holder.is_some_and(|holder| holder.age_number == aged.age_number)
            });
        }
    }
}
