//! Chunk files that somebody is filling or putting right: nobody else touches them.

use crate::chunks::Place;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use types::InodeId;

/// Names that are not used again by this process, because a request to them may still be on its
/// way. Beyond it the smallest is forgotten: by then every request has long timed out.
const MAX_BURNT: usize = 65_536;

/// Claims by place and name.
#[derive(Default)]
pub(crate) struct Claims(Mutex<State>);

/// Whose turn it is to put a target or a group right.
pub(crate) type Turn = Arc<rt::sync::RwLock>;

/// What a chunk file is claimed for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Somebody fills it or puts it right.
    Other,
    /// It is being deleted. `again`: its target was started anew meanwhile, so it may be back.
    Deletion { again: bool },
    /// It is deleted, and that is being forgotten.
    Oblivion,
}

/// What is said to who wants to put a chunk file right after its target was started anew.
pub(crate) enum Tidying<'a> {
    /// It is theirs.
    Free(Claim<'a>),
    /// Whoever has it sees to it: it is being filled, or is deleted once more.
    SeenTo,
    /// Nobody deletes it any more, and the file will be forgotten in a moment: ask again then.
    Soon,
}

#[derive(Default)]
struct State {
    claimed: BTreeMap<(Place, InodeId), Use>,
    /// With the order in which they came.
    burnt: BTreeMap<(Place, InodeId), u64>,
    burns: u64,
    turns: BTreeMap<Place, Turn>,
}

/// A chunk file that is somebody's until this is dropped.
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    file: (Place, InodeId),
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.0.lock().claimed.remove(&self.file);
    }
}

impl State {
    /// Takes what nobody has; whether it was so.
    fn is_taken(&mut self, file: (Place, InodeId), by: Use) -> bool {
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
    /// The chunk file has been deleted, and nobody will do it again if this says so: false when its
    /// target was started anew meanwhile. A start that comes later waits with its questions until
    /// the claim ends.
    pub fn is_deleted(&self) -> bool {
        let mut state = self.claims.0.lock();
        match state.claimed.get_mut(&self.file) {
            Some(by @ Use::Deletion { again: false }) => {
                *by = Use::Oblivion;
                true
            }
            _ => false,
        }
    }

    /// Lets go, and has nobody claim it again.
    pub fn burn(self) {
        let mut state = self.claims.0.lock();
        let order = state.burns;
        state.burns += 1;
        state.burnt.insert(self.file, order);
        if state.burnt.len() > MAX_BURNT {
            let oldest = state.burnt.iter().min_by_key(|(_, order)| **order).map(|(file, _)| *file);
            oldest.and_then(|file| state.burnt.remove(&file));
        }
    }
}

impl Claims {
    /// Claims a chunk file; `None` when it is claimed or burnt.
    pub fn claim(&self, place: Place, name: InodeId) -> Option<Claim<'_>> {
        let (file, mut state) = ((place, name), self.0.lock());
        let is_free = !state.burnt.contains_key(&file) && state.is_taken(file, Use::Other);
        drop(state);
        // Not made before it is known to be free: the end of one frees the file.
        is_free.then(|| Claim { claims: self, file })
    }

    /// Claims a chunk file that is to be deleted; `None` while it is claimed.
    pub fn claim_to_delete(&self, place: Place, name: InodeId) -> Option<Claim<'_>> {
        let file = (place, name);
        let is_free = self.0.lock().is_taken(file, Use::Deletion { again: false });
        is_free.then(|| Claim { claims: self, file })
    }

    /// Claims a chunk file that is to be put right, since its target was started anew and may have
    /// an older state of it.
    pub fn claim_to_tidy(&self, place: Place, name: InodeId) -> Tidying<'_> {
        let (file, mut state) = ((place, name), self.0.lock());
        if state.is_taken(file, Use::Other) {
            drop(state);
            return Tidying::Free(Claim { claims: self, file });
        }
        match state.claimed.get_mut(&file) {
            Some(Use::Deletion { again }) => *again = true,
            Some(Use::Oblivion) => return Tidying::Soon,
            Some(Use::Other) | None => {}
        }
        Tidying::SeenTo
    }

    /// To be taken by who puts a place right.
    pub fn turn_to_tidy(&self, place: Place) -> Turn {
        self.0.lock().turns.entry(place).or_default().clone()
    }

    /// Whether it can't be claimed.
    pub fn is_claimed(&self, place: Place, name: InodeId) -> bool {
        let state = self.0.lock();
        state.claimed.contains_key(&(place, name)) || state.burnt.contains_key(&(place, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{GroupId, TargetId};

    #[test]
    fn what_is_claimed_is_free_again_unless_it_is_burnt() {
        let (claims, place, name) = (Claims::default(), Place::Target(TargetId(1)), InodeId(2));
        let claim = claims.claim(place, name).unwrap();
        assert!(claims.claim(place, name).is_none() && claims.claim_to_delete(place, name).is_none());
        assert!(matches!(claims.claim_to_tidy(place, name), Tidying::SeenTo));
        let elsewhere = Place::Group(GroupId(1));
        assert!(claims.claim(elsewhere, name).is_some());
        drop(claim);
        claims.claim(place, name).unwrap().burn();
        assert!(claims.claim(place, name).is_none() && claims.is_claimed(place, name));
        assert!(claims.claim_to_delete(place, name).is_some(), "it may be deleted");
    }

    #[test]
    fn what_is_being_deleted_when_its_target_starts_anew_is_deleted_again() {
        let (claims, place, name) = (Claims::default(), Place::Target(TargetId(1)), InodeId(2));
        let claim = claims.claim_to_delete(place, name).unwrap();
        assert!(matches!(claims.claim_to_tidy(place, name), Tidying::SeenTo));
        assert!(!claim.is_deleted());
        drop(claim);
        let claim = claims.claim_to_delete(place, name).unwrap();
        assert!(claim.is_deleted());
        assert!(matches!(claims.claim_to_tidy(place, name), Tidying::Soon), "too late for that");
        assert!(claims.claim(place, name).is_none());
        drop(claim);
        assert!(matches!(claims.claim_to_tidy(place, name), Tidying::Free(_)));
    }
}
