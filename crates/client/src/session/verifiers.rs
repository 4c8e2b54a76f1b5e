//! Detects whether storage services still have what they acknowledged when it is synced.
//!
//! A write is in the memory of a storage service until it is synced. If all machines that have it
//! lose power, it is lost, and a later sync finds nothing to do. The verifier in each answer to a
//! change or a sync shows whether that happened since another answer
//! ([`wire::StorageReply::Done`]). This module counts the losses that the session has detected. A
//! file with unsynced changes remembers the count before the first of them. A sync of it fails if a
//! loss has occurred since at a location of its chunks. Changes that were synced before aren't
//! concerned.
//!
//! An answer with an old verifier may arrive after one with the new verifier. It counts as a loss,
//! too, and so does the next one: the count may be too high, never too low.
//!
//! The metadata store has its own verifier, which metadata services report. One that was seen
//! before is no loss: it comes from a service that has not used the store since, and has nothing
//! there to lose.

use crate::file::chunk_files::striping::ChunkLocation;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::{GroupId, HashMap};

/// Verifiers of the metadata store that are remembered: one for each power loss while the session
/// lives.
const MAX_METADATA_VERIFIERS: usize = 16;

/// Verifiers by chunk location, for locations where this session has changed data.
#[derive(Default)]
pub(crate) struct Verifiers {
    locations: RwLock<HashMap<ChunkLocation, LocationVerifier>>,
    metadata: Mutex<MetadataVerifiers>,
    /// Number of losses at all locations, which serves as this module's clock.
    losses: AtomicU64,
    /// The last loss that a sync of everything has reported.
    reported: AtomicU64,
}

/// Verifiers of the metadata store.
#[derive(Default)]
struct MetadataVerifiers {
    /// The last one is current.
    verifiers: Vec<u64>,
    /// Value of `losses` at its last loss.
    lost_at: u64,
    /// The last loss that a sync of a directory has reported.
    reported: u64,
}

struct LocationVerifier {
    verifier: u64,
    /// Value of `losses` at its last loss.
    lost_at: u64,
    /// Changed since the last sync of everything.
    is_changed: AtomicBool,
}

impl Verifiers {
    /// Records the verifier of an answer to a change or a sync.
    pub(crate) fn record(&self, location: ChunkLocation, verifier: u64, is_change: bool) {
        {
            let locations = self.locations.read();
            if let Some(entry) = locations.get(&location).filter(|heard| heard.verifier == verifier) {
                if is_change && !entry.is_changed.load(Ordering::Relaxed) {
                    entry.is_changed.store(true, Ordering::Release);
                }
                return;
            }
        }
        let mut locations = self.locations.write();
        let first = || LocationVerifier { verifier, lost_at: 0, is_changed: AtomicBool::new(false) };
        let entry = locations.entry(location).or_insert_with(first);
        if is_change {
            entry.is_changed.store(true, Ordering::Release);
        }
        if entry.verifier != verifier {
            entry.verifier = verifier;
            entry.lost_at = self.losses.fetch_add(1, Ordering::AcqRel) + 1;
            tracing::warn!(
                ?location,
                "storage has restarted and lost unsynced writes: the next sync of the affected files fails"
            );
        }
    }

    /// Records the metadata store's verifier from an answer; 0: the answer has none.
    pub(crate) fn record_metadata(&self, verifier: u64) {
        if verifier == 0 {
            return;
        }
        let mut metadata = self.metadata.lock();
        if metadata.verifiers.contains(&verifier) {
            return;
        }
        let is_first = metadata.verifiers.is_empty();
        if metadata.verifiers.len() == MAX_METADATA_VERIFIERS {
            metadata.verifiers.remove(0);
        }
        metadata.verifiers.push(verifier);
        if !is_first {
            metadata.lost_at = self.losses.fetch_add(1, Ordering::AcqRel) + 1;
            tracing::warn!(
                "the metadata store has restarted and lost unsynced changes: the next sync of the affected files fails"
            );
        }
    }

    /// Whether the metadata store has had a loss after the count was `since`.
    pub(crate) fn has_lost_metadata(&self, since: u64) -> bool {
        self.metadata.lock().lost_at > since
    }

    /// Whether the metadata store has had a loss that no sync of a directory has reported. Returns
    /// true once.
    pub(crate) fn take_metadata_loss(&self) -> bool {
        let mut metadata = self.metadata.lock();
        let is_unreported = metadata.reported < metadata.lost_at;
        metadata.reported = metadata.lost_at;
        is_unreported
    }

    /// Number of losses so far.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Whether a location has had a loss after the count was `since`.
    pub(crate) fn has_lost(&self, location: ChunkLocation, since: u64) -> bool {
        self.locations.read().get(&location).is_some_and(|entry| entry.lost_at > since)
    }

    /// Returns the mirrored groups that were changed since the last call.
    pub(crate) fn take_changed_groups(&self) -> Vec<GroupId> {
        let locations = self.locations.read();
        let is_changed = |entry: &LocationVerifier| entry.is_changed.swap(false, Ordering::AcqRel);
        let groups = locations.iter().filter_map(|(location, entry)| match location {
            ChunkLocation::Group(group) if is_changed(entry) => Some(*group),
            _ => None,
        });
        groups.collect()
    }

    /// Marks groups as changed again after a failed sync.
    pub(crate) fn mark_changed(&self, groups: &[GroupId]) {
        let locations = self.locations.read();
        for entry in groups.iter().filter_map(|group| locations.get(&ChunkLocation::Group(*group))) {
            entry.is_changed.store(true, Ordering::Release);
        }
    }

    /// Whether there was a loss that no sync of everything has reported. Returns true once.
    pub(crate) fn take_loss(&self) -> bool {
        let losses = self.losses();
        self.reported.swap(losses, Ordering::AcqRel) < losses
    }
}

/// Changes of a file that may not be on disk.
#[derive(Clone, Copy, Default)]
pub(crate) struct Unsynced {
    /// Number of changes so far, and of those that a sync is known to cover.
    changes: u64,
    synced: u64,
    /// Changes in flight.
    in_flight: u32,
    /// Number of losses before the first unsynced change; `None`: unknown.
    since: Option<u64>,
    /// How often a sync has found a loss.
    found: u64,
}

impl Unsynced {
    /// State of a file with unsynced changes from an earlier use.
    pub(crate) fn after(since: Option<u64>) -> Unsynced {
        Unsynced { changes: u64::from(since.is_some()), since, ..Unsynced::default() }
    }

    /// Returns the state for the file's next use.
    pub(crate) fn unsynced_since(&self) -> Option<u64> {
        self.since.filter(|_| self.synced < self.changes)
    }

    /// Records that an earlier use of the file may have left unsynced changes.
    pub(crate) fn assume_unsynced(&mut self) {
        if self.is_all_synced() {
            self.since = None;
        }
        self.changes += 1;
    }

    /// Records that a change is being sent. `losses` is the current number of losses.
    pub(crate) fn begin(&mut self, losses: u64) {
        if self.since.is_none() || self.is_all_synced() {
            self.since = Some(losses);
        }
        self.in_flight += 1;
    }

    /// Records that it was answered or abandoned. `is_durable`: it is on disk if it was executed.
    pub(crate) fn end(&mut self, is_durable: bool) {
        self.in_flight -= 1;
        self.changes += u64::from(!is_durable);
    }

    /// Records a complete change that was sent at this number of losses.
    pub(crate) fn made(&mut self, losses: u64) {
        self.begin(losses);
        self.end(false);
    }

    /// Returns the number of changes that a sync that begins now covers; `None` if there is nothing
    /// to sync.
    pub(crate) fn unsynced_changes(&self) -> Option<u64> {
        (self.synced < self.changes).then_some(self.changes)
    }

    /// Whether nothing is unsynced, and nothing in flight.
    pub(crate) fn is_all_synced(&self) -> bool {
        self.synced == self.changes && self.in_flight == 0
    }

    /// Records that a sync has covered this many changes.
    pub(crate) fn synced(&mut self, changes: u64) {
        self.synced = self.synced.max(changes);
    }

    /// Number of losses before the first unsynced change.
    pub(crate) fn since(&self) -> Option<u64> {
        self.since
    }

    /// Records a loss, which callers report. Later changes aren't affected.
    pub(crate) fn record_loss(&mut self, losses: u64) {
        self.since = Some(losses);
        self.found += 1;
    }

    /// How often a sync has found a loss.
    pub(crate) fn loss_count(&self) -> u64 {
        self.found
    }
}

#[cfg(test)]
mod tests;
