//! An engine in memory that simulates crashes of an engine on disk.

use crate::merge::Merge;
use crate::{Batch, Engine, KvError, Outcome, Pair};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};

/// The path in errors.
const PATH: &str = "memory";

/// Commits that may wait for [`Engine::persist`]; beyond it the oldest becomes durable, as a kernel
/// writes back old pages.
const MAX_UNSYNCED_COMMITS: usize = 65_536;

type Map = BTreeMap<Bytes, Bytes>;
type Writes = Vec<(Bytes, Option<Bytes>)>;

/// An engine in memory for tests and simulation. It has no threads and takes no time.
#[derive(Default)]
pub struct Memory {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// State that readers see.
    current: Map,
    /// State that certainly survives a crash of the machine.
    durable: Map,
    /// Commits between the two.
    unsynced: VecDeque<Writes>,
    /// Commits so far, except lost ones.
    applied: u64,
    /// Crashes of the machine so far.
    crashes: u64,
    /// Error that the next write or persist returns.
    failure: Option<KvError>,
}

impl Memory {
    /// Creates an empty store.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Returns the number of commits that a crash could lose.
    pub fn unsynced(&self) -> usize {
        self.state.lock().unsynced.len()
    }

    /// Returns the number of commits so far, except those that a crash has lost.
    pub fn applied(&self) -> u64 {
        self.state.lock().applied
    }

    /// Simulates a crash of the machine: persisted commits stay, and of the later commits the first
    /// `keep`.
    pub fn crash(&self, keep: usize) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.applied -= state.unsynced.len().saturating_sub(keep) as u64;
        state.unsynced.truncate(keep);
        for writes in state.unsynced.drain(..) {
            apply_writes(&mut state.durable, writes);
        }
        state.current = state.durable.clone();
        state.failure = None;
        state.crashes += 1;
    }

    /// Simulates the death of the process: the kernel has every applied commit, so all stay.
    pub fn kill(&self) {
        self.state.lock().failure = None;
    }

    /// Makes every write and persist fail with this error, until [`Memory::crash`] or
    /// [`Memory::kill`].
    pub fn fail_with(&self, error: KvError) {
        self.state.lock().failure = Some(error);
    }

    /// Returns the error of a full device, for [`Memory::fail_with`].
    pub fn no_space() -> KvError {
        KvError::NoSpace { path: PATH.into() }
    }
}

impl Engine for Memory {
    fn verifier(&self) -> u64 {
        1 + self.state.lock().crashes
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        Ok(self.state.lock().current.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let state = self.state.lock();
        let range =
            state.current.range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Excluded(to)));
        Ok(range.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn apply(&self, batches: &[Batch]) -> Result<Vec<Outcome>, KvError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        let (merge, outcomes) = Merge::decide(batches, |key| Ok(state.current.get(key).cloned()))?;
        let owned = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        let writes: Writes = merge.writes().iter().map(|(k, v)| (owned(k), v.map(owned))).collect();
        apply_writes(&mut state.current, writes.clone());
        state.unsynced.push_back(writes);
        state.applied += 1;
        if state.unsynced.len() > MAX_UNSYNCED_COMMITS
            && let Some(oldest) = state.unsynced.pop_front()
        {
            apply_writes(&mut state.durable, oldest);
        }
        Ok(outcomes)
    }

    fn persist(&self) -> Result<(), KvError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        for writes in state.unsynced.drain(..) {
            apply_writes(&mut state.durable, writes);
        }
        Ok(())
    }
}

fn apply_writes(map: &mut Map, writes: Writes) {
    for (key, value) in writes {
        match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
    }
}
