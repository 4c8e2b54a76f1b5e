//! Chunk files that somebody is filling or putting right: nobody else touches them.

use crate::chunks::Place;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::InodeId;

/// Names that are not used again by this process, because a request to them may still be on its way. Beyond it the smallest is forgotten: by
/// then every request has long timed out.
const MAX_BURNT: usize = 65_536;

/// Claims by place and name.
#[derive(Default)]
pub(crate) struct Claims(Mutex<State>);

/// Whose turn it is to put a target or a group right.
pub(crate) type Turn = Arc<rt::sync::RwLock>;

#[derive(Default)]
struct State {
    claimed: BTreeSet<(Place, InodeId)>,
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

impl Claim<'_> {
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
        let is_free = !state.burnt.contains_key(&file) && state.claimed.insert(file);
        drop(state);
        // Not made before it is known to be free: the end of one frees the file.
        is_free.then(|| Claim { claims: self, file })
    }

    /// Claims a chunk file that is to be put right or deleted; `None` while it is claimed.
    pub fn claim_to_tidy(&self, place: Place, name: InodeId) -> Option<Claim<'_>> {
        let file = (place, name);
        let is_free = self.0.lock().claimed.insert(file);
        is_free.then(|| Claim { claims: self, file })
    }

    /// To be taken by who puts a place right.
    pub fn turn_to_tidy(&self, place: Place) -> Turn {
        self.0.lock().turns.entry(place).or_default().clone()
    }

    /// Whether it can't be claimed.
    pub fn is_claimed(&self, place: Place, name: InodeId) -> bool {
        let state = self.0.lock();
        state.claimed.contains(&(place, name)) || state.burnt.contains_key(&(place, name))
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
        assert!(claims.claim(place, name).is_none() && claims.claim_to_tidy(place, name).is_none());
        let elsewhere = Place::Group(GroupId(1));
        assert!(claims.claim(elsewhere, name).is_some());
        drop(claim);
        claims.claim(place, name).unwrap().burn();
        assert!(claims.claim(place, name).is_none() && claims.is_claimed(place, name));
        assert!(claims.claim_to_tidy(place, name).is_some(), "it may be deleted");
    }
}
