//! What one target has of one mirrored group.

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

/// A replica: a store with what its service knows of it. As the primary it orders changes, as a
/// member it does what it is told.
pub(crate) struct Replica {
    pub(crate) group: GroupId,
    pub(crate) target: TargetId,
    pub(crate) store: Arc<Store>,
    /// Changes that must not be done again.
    pub(crate) once: Once,
    /// What was sent under leases that are over, to the primary.
    pub(crate) epochs: Epochs,
    pub(crate) ranges: Ranges,
    pub(crate) turns: Turns,
    pub(crate) sequences: Sequences,
    pub(crate) holds: Holds,
    /// Shared by all changes that it does as the primary; held alone by who lets another member be
    /// the primary.
    pub(crate) gate: rt::sync::RwLock,
    /// Held by who asks management to change the group.
    pub(crate) deciding: rt::sync::RwLock,
    /// The target's counters.
    pub(super) tally: Arc<Tally>,
    standing: Mutex<Standing>,
    /// It was left by a crash, or by a shutdown while others may have missed something; and neither
    /// has it been brought in step since nor have the others been by it.
    is_unclean: AtomicBool,
    /// What the metadata service has to see to before clients are let in, if the group goes on from
    /// here.
    pub(super) leftovers: Leftovers,
    /// What is to be done if its group goes on from here although it had missed something.
    pub(super) revival: Revival,
    /// Whether clients have been let in.
    is_open: AtomicBool,
    /// The newest version in which it has asked to be taken out as the primary; 0: none.
    left_in: AtomicU64,
}

/// How the group stands, as far as this replica has heard.
#[derive(Default)]
struct Standing {
    since: Epoch,
    /// This replica has missed something.
    is_out: bool,
    /// Members that count; `None` before anything has been heard.
    good: Option<Vec<TargetId>>,
    /// The last version in which one of them went, and the last of which management has said that
    /// everybody knows it.
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
    /// `crashed`: what was changing when it was left without a shutdown, if it was.
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

    /// Takes over how the group stands. Every request does so before it begins.
    pub(crate) fn follow(&self, group: &Group) {
        let mut standing = self.standing.lock();
        if group.since < standing.since {
            return;
        }
        let state = group.state_of(self.target).unwrap_or(MemberState::Bad);
        let is_out = state != MemberState::Good;
        if is_out && !standing.is_out {
            // The primary says what was done when it brings this one in step; until then nobody
            // asks here.
            self.once.forget_all();
            self.store.leave_verifier();
        }
        if is_out {
            self.is_unclean.store(false, Ordering::Release);
            self.forget_leftovers();
        }
        self.revival.follow(group, self.target);
        let is_degraded = group.is_degraded();
        // After another crash the notes have to lead to the same again.
        if is_degraded || !(self.is_unclean() || self.leftovers.are_there()) {
            self.store.keep_all_notes(is_degraded);
        }
        standing.is_out = is_out;
        if group.since > standing.since || standing.good.is_none() {
            standing.turn_to(group);
        }
    }

    /// Whether a member that doesn't count any more may not know so: it may be read from by others.
    pub(crate) fn has_doubtful(&self) -> bool {
        let standing = self.standing.lock();
        standing.lost_in > standing.known_in
    }

    /// All who don't count in a version know so, or can't serve any more.
    pub(crate) fn is_known_to_all(&self, since: Epoch) {
        let mut standing = self.standing.lock();
        standing.known_in = standing.known_in.max(since);
    }

    /// Whether this copy may differ from others by what the process before has left, and nobody has
    /// seen to that.
    pub(crate) fn is_unclean(&self) -> bool {
        self.is_unclean.load(Ordering::Acquire)
    }

    /// All others are brought in step from the notes that the crash has left.
    pub(crate) fn is_seen_to(&self) {
        self.is_unclean.store(false, Ordering::Release);
    }

    /// The metadata service has put right what the crash has left, or nobody needs it.
    pub(super) fn forget_leftovers(&self) {
        self.leftovers.forget();
        self.store.crash_is_seen_to();
    }

    /// It is about to ask to be taken out as the primary of this version.
    pub(crate) fn leave(&self, since: Epoch) {
        self.left_in.fetch_max(since.0, Ordering::AcqRel);
    }

    /// It goes on as the primary of this version: nobody has taken it out.
    pub(crate) fn stay(&self, since: Epoch) {
        let stays = |left: u64| (left <= since.0).then_some(0);
        // Otherwise it has asked so in a later one.
        let _ = self.left_in.fetch_update(Ordering::AcqRel, Ordering::Acquire, stays);
    }

    /// Whether it has asked so, in this version or a later one.
    pub(crate) fn has_left(&self, since: Epoch) -> bool {
        self.left_in.load(Ordering::Acquire) >= since.0
    }

    /// Lets clients in; from the first time on, those whose changes were begun before a crash have
    /// some seconds to repeat them.
    pub(crate) fn open_to_clients(&self) {
        if !self.is_open.swap(true, Ordering::AcqRel) {
            self.once.open();
        }
    }

    pub(crate) fn failed(&self, error: &StoreError) -> Error {
        self.tally.failed(&self.store, error)
    }
}
