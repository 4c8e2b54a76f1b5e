//! One target's replica of one mirrored group.

use super::forced_recovery::ForcedRecovery;
use super::range_locks::RangeLocks;
use super::reconciliation::UnreconciledFiles;
use super::sequences::Sequences;
use super::unsettled_changes::UnsettledChanges;
use super::version_fence::VersionFence;
use crate::counters::TargetCounters;
use crate::drc::DuplicateRequestCache;
use crate::lease_epochs::LeaseEpochs;
use chunkstore::{Store, StoreError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::{Epoch, Error, Group, GroupId, MemberState, SessionId, TargetId};
use wire::mgmt::ReconcileFiles;

/// A replica: a store with the state that its service has for it. As the primary it orders changes,
/// as a member it executes them.
pub(crate) struct Replica {
    pub(crate) group: GroupId,
    pub(crate) target: TargetId,
    pub(crate) store: Arc<Store>,
    /// The duplicate request cache.
    pub(crate) drc: DuplicateRequestCache,
    /// The lease epochs of requests to the primary.
    pub(crate) epochs: LeaseEpochs,
    pub(crate) ranges: RangeLocks,
    pub(crate) version_fence: VersionFence,
    pub(crate) sequences: Sequences,
    pub(crate) unsettled: UnsettledChanges,
    /// Held shared by each change that this replica executes as the primary; held exclusively to
    /// hand over the role.
    pub(crate) role_lock: rt::sync::RwLock,
    /// Held by the task that asks management to change the group.
    pub(crate) report_lock: rt::sync::RwLock,
    /// The target's counters.
    pub(crate) counters: Arc<TargetCounters>,
    group_state: Mutex<GroupState>,
    /// Set after a crash, or after a shutdown while other members might have missed something.
    /// Cleared once this replica was resynced, or the others were resynced from it.
    is_unclean: AtomicBool,
    /// Files that need crash reconciliation before clients are admitted, if the group continues
    /// from this replica.
    pub(crate) unreconciled: UnreconciledFiles,
    /// What to do if the group continues from this replica although it has missed something.
    pub(crate) forced_recovery: ForcedRecovery,
    /// Whether clients have been admitted.
    is_open: AtomicBool,
    /// The newest version in which it has asked, as the primary, to be ejected; 0: none.
    step_down_version: AtomicU64,
}

/// The state of the group, as far as this replica knows it.
#[derive(Default)]
struct GroupState {
    since: Epoch,
    /// This replica has missed something.
    is_out_of_sync: bool,
    /// Members that count as in sync; `None` before the first map.
    in_sync: Option<Vec<TargetId>>,
    /// The last version in which one of them was ejected, and the last version that all processes
    /// know, according to management.
    ejected_in: Epoch,
    confirmed_in: Epoch,
}

impl GroupState {
    fn update(&mut self, group: &Group) {
        let is_good = |target: &TargetId| group.state_of(*target) == Some(MemberState::InSync);
        let loses_one = match &self.in_sync {
            Some(good) => !good.iter().all(is_good),
            None => group.is_degraded(),
        };
        if loses_one {
            self.ejected_in = group.since;
        }
        self.since = group.since;
        self.in_sync = Some(group.members_with_states().map(|(target, _)| target).filter(is_good).collect());
    }
}

impl Replica {
    /// `crashed`: the files that were changing when the former process ended without a shutdown, if
    /// it did.
    pub(crate) fn new(
        group: GroupId,
        store: Arc<Store>,
        crashed: Option<ReconcileFiles>,
        counters: Arc<TargetCounters>,
        is_fenced: impl Fn(SessionId) -> bool,
    ) -> Replica {
        Replica {
            group,
            target: store.target(),
            drc: DuplicateRequestCache::load(&store, is_fenced),
            epochs: LeaseEpochs::default(),
            ranges: RangeLocks::default(),
            version_fence: VersionFence::default(),
            sequences: Sequences::default(),
            unsettled: UnsettledChanges::default(),
            role_lock: rt::sync::RwLock::new(),
            report_lock: rt::sync::RwLock::new(),
            counters,
            group_state: Mutex::default(),
            is_unclean: AtomicBool::new(crashed.is_some()),
            unreconciled: UnreconciledFiles::new(crashed.unwrap_or_default()),
            forced_recovery: ForcedRecovery::default(),
            is_open: AtomicBool::new(false),
            step_down_version: AtomicU64::new(0),
            store,
        }
    }

    /// Updates the state of the group. Every request does so before it begins.
    pub(crate) fn update_group(&self, group: &Group) {
        let mut group_state = self.group_state.lock();
        if group.since < group_state.since {
            return;
        }
        let state = group.state_of(self.target).unwrap_or(MemberState::NeedsRebuild);
        let is_out = state != MemberState::InSync;
        if is_out && !group_state.is_out_of_sync {
            // The primary reports the executed changes when it resyncs this replica; until then no
            // client is served here.
            self.drc.clear();
            self.store.drop_verifier();
        }
        if is_out {
            self.is_unclean.store(false, Ordering::Release);
            self.drop_unreconciled();
        }
        self.forced_recovery.update_group(group, self.target);
        let is_degraded = group.is_degraded();
        // After another crash, the intent log must lead to the same result again.
        if is_degraded || !(self.is_unclean() || self.unreconciled.is_pending()) {
            self.store.retain_all_entries(is_degraded);
        }
        group_state.is_out_of_sync = is_out;
        if group.since > group_state.since || group_state.in_sync.is_none() {
            group_state.update(group);
        }
    }

    /// Whether an ejected member may not know of its ejection yet: clients may still read from it.
    pub(crate) fn has_unconfirmed_ejection(&self) -> bool {
        let group_state = self.group_state.lock();
        group_state.ejected_in > group_state.confirmed_in
    }

    /// Records that all members ejected up to this version know it, or can't serve any more.
    pub(crate) fn confirm_ejections(&self, since: Epoch) {
        let mut group_state = self.group_state.lock();
        group_state.confirmed_in = group_state.confirmed_in.max(since);
    }

    /// Whether this replica may differ from others because of a crash of the former process, and
    /// hasn't been reconciled with them.
    pub(crate) fn is_unclean(&self) -> bool {
        self.is_unclean.load(Ordering::Acquire)
    }

    /// Records that all others will be resynced from the dirty regions that the crash has left.
    pub(crate) fn mark_clean(&self) {
        self.is_unclean.store(false, Ordering::Release);
    }

    /// Drops the leftovers: crash reconciliation has finished, or isn't needed.
    pub(crate) fn drop_unreconciled(&self) {
        self.unreconciled.clear();
        self.store.mark_reconciled();
    }

    /// Records that this member is about to ask to be ejected as the primary of this version.
    pub(crate) fn announce_step_down(&self, since: Epoch) {
        self.step_down_version.fetch_max(since.0, Ordering::AcqRel);
    }

    /// Records that it remains the primary of this version: it wasn't ejected.
    pub(crate) fn cancel_step_down(&self, since: Epoch) {
        let stays = |left: u64| (left <= since.0).then_some(0);
        // Otherwise it has asked in a later version.
        let _ = self.step_down_version.fetch_update(Ordering::AcqRel, Ordering::Acquire, stays);
    }

    /// Whether it has asked to be ejected, in this version or a later one.
    pub(crate) fn is_stepping_down(&self, since: Epoch) -> bool {
        self.step_down_version.load(Ordering::Acquire) >= since.0
    }

    /// Admits clients. From the first call on, changes that were begun before a crash can be
    /// repeated for some seconds.
    pub(crate) fn open_to_clients(&self) {
        if !self.is_open.swap(true, Ordering::AcqRel) {
            self.drc.set_open();
        }
    }

    pub(crate) fn failed(&self, error: &StoreError) -> Error {
        self.counters.failed(&self.store, error)
    }
}
