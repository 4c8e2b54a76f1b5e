//! One target's replica of one mirrored group.

use super::holds::Holds;
use super::ranges::Ranges;
use super::revive::Revival;
use super::sequences::Sequences;
use super::tidy::Leftovers;
use super::turns::Turns;
use crate::epochs::Epochs;
use crate::once::Once;
use crate::tally::Tally;
use chunkstore::{Store, StoreError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::{Epoch, Error, Group, GroupId, MemberState, SessionId, TargetId};
use wire::mgmt::Touched;

/// A replica: a store with the state that its service has for it. As the primary it orders changes,
/// as a member it executes them.
pub(crate) struct Replica {
    pub(crate) group: GroupId,
    pub(crate) target: TargetId,
    pub(crate) store: Arc<Store>,
    /// The duplicate request cache.
    pub(crate) once: Once,
    /// The lease epochs of requests to the primary.
    pub(crate) epochs: Epochs,
    pub(crate) ranges: Ranges,
    pub(crate) turns: Turns,
    pub(crate) sequences: Sequences,
    pub(crate) holds: Holds,
    /// Held shared by each change that this replica executes as the primary; held exclusively to
    /// hand over the role.
    pub(crate) gate: rt::sync::RwLock,
    /// Held by the task that asks management to change the group.
    pub(crate) deciding: rt::sync::RwLock,
    /// The target's counters.
    pub(super) tally: Arc<Tally>,
    standing: Mutex<Standing>,
    /// Set after a crash, or after a shutdown while other members might have missed something.
    /// Cleared once this replica was resynced, or the others were resynced from it.
    is_unclean: AtomicBool,
    /// Files that need crash reconciliation before clients are admitted, if the group continues
    /// from this replica.
    pub(super) leftovers: Leftovers,
    /// What to do if the group continues from this replica although it has missed something.
    pub(super) revival: Revival,
    /// Whether clients have been admitted.
    is_open: AtomicBool,
    /// The newest version in which it has asked, as the primary, to be ejected; 0: none.
    left_in: AtomicU64,
}

/// The state of the group, as far as this replica knows it.
#[derive(Default)]
struct Standing {
    since: Epoch,
    /// This replica has missed something.
    is_out: bool,
    /// Members that count as in sync; `None` before the first map.
    good: Option<Vec<TargetId>>,
    /// The last version in which one of them was ejected, and the last version that all processes
    /// know, according to management.
    lost_in: Epoch,
    known_in: Epoch,
}

impl Standing {
    fn turn_to(&mut self, group: &Group) {
        let is_good = |target: &TargetId| group.state_of(*target) == Some(MemberState::Good);
        let loses_one = match &self.good {
            Some(good) => !good.iter().all(is_good),
            None => group.is_degraded(),
        };
        if loses_one {
            self.lost_in = group.since;
        }
        self.since = group.since;
        self.good = Some(group.with_states().map(|(target, _)| target).filter(is_good).collect());
    }
}

impl Replica {
    /// `crashed`: the files that were changing when the former process ended without a shutdown, if
    /// it did.
    pub(crate) fn new(
        group: GroupId,
        store: Arc<Store>,
        crashed: Option<Touched>,
        tally: Arc<Tally>,
        is_fenced: impl Fn(SessionId) -> bool,
    ) -> Replica {
        Replica {
            group,
            target: store.target(),
            once: Once::of(&store, is_fenced),
            epochs: Epochs::default(),
            ranges: Ranges::default(),
            turns: Turns::default(),
            sequences: Sequences::default(),
            holds: Holds::default(),
            gate: rt::sync::RwLock::new(),
            deciding: rt::sync::RwLock::new(),
            tally,
            standing: Mutex::default(),
            is_unclean: AtomicBool::new(crashed.is_some()),
            leftovers: Leftovers::new(crashed.unwrap_or_default()),
            revival: Revival::default(),
            is_open: AtomicBool::new(false),
            left_in: AtomicU64::new(0),
            store,
        }
    }

    /// Updates the state of the group. Every request does so before it begins.
    pub(crate) fn follow(&self, group: &Group) {
        let mut standing = self.standing.lock();
        if group.since < standing.since {
            return;
        }
        let state = group.state_of(self.target).unwrap_or(MemberState::Bad);
        let is_out = state != MemberState::Good;
        if is_out && !standing.is_out {
            // The primary reports the executed changes when it resyncs this replica; until then no
            // client is served here.
            self.once.forget_all();
            self.store.leave_verifier();
        }
        if is_out {
            self.is_unclean.store(false, Ordering::Release);
            self.forget_leftovers();
        }
        self.revival.follow(group, self.target);
        let is_degraded = group.is_degraded();
        // After another crash, the intent log must lead to the same result again.
        if is_degraded || !(self.is_unclean() || self.leftovers.are_there()) {
            self.store.keep_all_notes(is_degraded);
        }
        standing.is_out = is_out;
        if group.since > standing.since || standing.good.is_none() {
            standing.turn_to(group);
        }
    }

    /// Whether an ejected member may not know of its ejection yet: clients may still read from it.
    pub(crate) fn has_doubtful(&self) -> bool {
        let standing = self.standing.lock();
        standing.lost_in > standing.known_in
    }

    /// Records that all members ejected up to this version know it, or can't serve any more.
    pub(crate) fn is_known_to_all(&self, since: Epoch) {
        let mut standing = self.standing.lock();
        standing.known_in = standing.known_in.max(since);
    }

    /// Whether this replica may differ from others because of a crash of the former process, and
    /// hasn't been reconciled with them.
    pub(crate) fn is_unclean(&self) -> bool {
        self.is_unclean.load(Ordering::Acquire)
    }

    /// Records that all others will be resynced from the dirty regions that the crash has left.
    pub(crate) fn is_seen_to(&self) {
        self.is_unclean.store(false, Ordering::Release);
    }

    /// Drops the leftovers: crash reconciliation has finished, or isn't needed.
    pub(super) fn forget_leftovers(&self) {
        self.leftovers.forget();
        self.store.crash_is_seen_to();
    }

    /// Records that this member is about to ask to be ejected as the primary of this version.
    pub(crate) fn leave(&self, since: Epoch) {
        self.left_in.fetch_max(since.0, Ordering::AcqRel);
    }

    /// Records that it remains the primary of this version: it wasn't ejected.
    pub(crate) fn stay(&self, since: Epoch) {
        let stays = |left: u64| (left <= since.0).then_some(0);
        // Otherwise it has asked in a later version.
        let _ = self.left_in.fetch_update(Ordering::AcqRel, Ordering::Acquire, stays);
    }

    /// Whether it has asked to be ejected, in this version or a later one.
    pub(crate) fn has_left(&self, since: Epoch) -> bool {
        self.left_in.load(Ordering::Acquire) >= since.0
    }

    /// Admits clients. From the first call on, changes that were begun before a crash can be
    /// repeated for some seconds.
    pub(crate) fn open_to_clients(&self) {
        if !self.is_open.swap(true, Ordering::AcqRel) {
            self.once.open();
        }
    }

    pub(crate) fn failed(&self, error: &StoreError) -> Error {
        self.tally.failed(&self.store, error)
    }
}
