//! Claims on chunk files that a task is filling or reconciling: no other task touches them.

use crate::data::chunks::ChunkLocation;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use types::ChunkFileId;

/// Names that this process doesn't use again, because a request to them may still be under way.
/// Beyond the limit the oldest is dropped: by then every request has long timed out.
const MAX_RETIRED_NAMES: usize = 65_536;

/// Claims by location and name.
#[derive(Default)]
pub(crate) struct Claims(Mutex<State>);

/// Lock for the crash reconciliation of a target or a group.
pub(crate) type ReconcileLock = Arc<rt::sync::RwLock>;

/// What a chunk file is claimed for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimPurpose {
    /// A task fills or reconciles it.
    FillOrReconcile,
    /// It is being deleted. `again`: its target restarted meanwhile, so it may be back.
    Deletion { must_repeat: bool },
    /// It is deleted, and its doomed record is being deleted.
    Deleted,
}

/// Outcome of a claim for crash reconciliation.
pub(crate) enum ReconcileClaim<'a> {
    /// The caller has the claim.
    Free(Claim<'a>),
    /// The holder of the claim handles it: it fills the chunk file, or repeats the deletion.
    HandledByHolder,
    /// It is deleted, and its record will be deleted in a moment: try again then.
    RetrySoon,
}

#[derive(Default)]
struct State {
    claimed: BTreeMap<(ChunkLocation, ChunkFileId), ClaimPurpose>,
    /// With the order in which they were added.
    retired: BTreeMap<(ChunkLocation, ChunkFileId), u64>,
    retirements: u64,
    reconcile_locks: BTreeMap<ChunkLocation, ReconcileLock>,
}

/// A claim on a chunk file, until this is dropped.
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    file: (ChunkLocation, ChunkFileId),
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.0.lock().claimed.remove(&self.file);
    }
}

impl State {
    /// Takes a free chunk file; returns whether it was free.
    fn try_take(&mut self, file: (ChunkLocation, ChunkFileId), by: ClaimPurpose) -> bool {
        match self.claimed.entry(file) {
            Entry::Vacant(free) => {
                free.insert(by);
                true
            }
            Entry::Occupied(_) => false,
        }
    }
}

impl Claim<'_> {
    /// Notes that the chunk file has been deleted. Returns false if its target restarted meanwhile,
    /// so that the deletion has to be repeated. A later start waits with its reconciliation until
    /// the claim ends.
    pub fn mark_deleted(&self) -> bool {
        let mut state = self.claims.0.lock();
        match state.claimed.get_mut(&self.file) {
            Some(by @ ClaimPurpose::Deletion { must_repeat: false }) => {
                *by = ClaimPurpose::Deleted;
                true
            }
            _ => false,
        }
    }

    /// Releases the claim, and prevents any new one on the chunk file.
    pub fn retire_name(self) {
        let mut state = self.claims.0.lock();
        let order = state.retirements;
        state.retirements += 1;
        state.retired.insert(self.file, order);
        if state.retired.len() > MAX_RETIRED_NAMES {
            let oldest = state.retired.iter().min_by_key(|(_, order)| **order).map(|(file, _)| *file);
            oldest.and_then(|file| state.retired.remove(&file));
        }
    }
}

impl Claims {
    /// Claims a chunk file; `None` if it is claimed or retired.
    pub fn claim(&self, location: ChunkLocation, name: ChunkFileId) -> Option<Claim<'_>> {
        let (file, mut state) = ((location, name), self.0.lock());
        let is_free =
            !state.retired.contains_key(&file) && state.try_take(file, ClaimPurpose::FillOrReconcile);
        drop(state);
        // Not created before the chunk file is known to be free: dropping a claim frees it.
        is_free.then(|| Claim { claims: self, file })
    }

    /// Claims a chunk file for deletion; `None` while it is claimed.
    pub fn claim_to_delete(&self, location: ChunkLocation, name: ChunkFileId) -> Option<Claim<'_>> {
        let file = (location, name);
        let is_free = self.0.lock().try_take(file, ClaimPurpose::Deletion { must_repeat: false });
        is_free.then(|| Claim { claims: self, file })
    }

    /// Claims a chunk file for crash reconciliation, since its target restarted and may have an
    /// older state of it.
    pub fn claim_to_reconcile(&self, location: ChunkLocation, name: ChunkFileId) -> ReconcileClaim<'_> {
        let (file, mut state) = ((location, name), self.0.lock());
        if state.try_take(file, ClaimPurpose::FillOrReconcile) {
            drop(state);
            return ReconcileClaim::Free(Claim { claims: self, file });
        }
        match state.claimed.get_mut(&file) {
            Some(ClaimPurpose::Deletion { must_repeat: again }) => *again = true,
            Some(ClaimPurpose::Deleted) => return ReconcileClaim::RetrySoon,
            Some(ClaimPurpose::FillOrReconcile) | None => {}
        }
        ReconcileClaim::HandledByHolder
    }

    /// The lock for the crash reconciliation of a location.
    pub fn reconcile_lock(&self, location: ChunkLocation) -> ReconcileLock {
        self.0.lock().reconcile_locks.entry(location).or_default().clone()
    }

    /// Whether it can't be claimed.
    pub fn is_claimed(&self, location: ChunkLocation, name: ChunkFileId) -> bool {
        let state = self.0.lock();
        state.claimed.contains_key(&(location, name)) || state.retired.contains_key(&(location, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{GroupId, TargetId};

    #[test]
    fn what_is_claimed_is_free_again_unless_it_is_burnt() {
        let (claims, location, name) =
            (Claims::default(), ChunkLocation::Target(TargetId(1)), ChunkFileId(2));
        let claim = claims.claim(location, name).unwrap();
        assert!(claims.claim(location, name).is_none() && claims.claim_to_delete(location, name).is_none());
        assert!(matches!(claims.claim_to_reconcile(location, name), ReconcileClaim::HandledByHolder));
        let elsewhere = ChunkLocation::Group(GroupId(1));
        assert!(claims.claim(elsewhere, name).is_some());
        drop(claim);
        claims.claim(location, name).unwrap().retire_name();
        assert!(claims.claim(location, name).is_none() && claims.is_claimed(location, name));
        assert!(claims.claim_to_delete(location, name).is_some(), "it may be deleted");
    }

    #[test]
    fn a_deletion_under_way_is_repeated_when_its_target_restarts() {
        let (claims, location, name) =
            (Claims::default(), ChunkLocation::Target(TargetId(1)), ChunkFileId(2));
        let claim = claims.claim_to_delete(location, name).unwrap();
        assert!(matches!(claims.claim_to_reconcile(location, name), ReconcileClaim::HandledByHolder));
        assert!(!claim.mark_deleted());
        drop(claim);
        let claim = claims.claim_to_delete(location, name).unwrap();
        assert!(claim.mark_deleted());
        assert!(
            matches!(claims.claim_to_reconcile(location, name), ReconcileClaim::RetrySoon),
            "too late for that"
        );
        assert!(claims.claim(location, name).is_none());
        drop(claim);
        assert!(matches!(claims.claim_to_reconcile(location, name), ReconcileClaim::Free(_)));
    }
}
