//! Whether what storage services have acknowledged is still there when it is synced.
//!
//! A write is in the memory of a storage service until it is synced. When all machines that have it
//! lose their power, it is gone, and a sync afterwards finds nothing to do. Each answer to a change
//! or a sync says by its verifier whether that happened since another one
//! ([`wire::StorageReply::Done`]). Here the losses are counted that this session has heard of: a
//! file with changes that aren't synced remembers how many there were before the first of them, and
//! a sync of it fails if one has come since where the file has chunks. What was changed and synced
//! before isn't concerned.
//!
//! An answer under an old verifier may come after one under the new one. It counts as a loss, too,
//! and the next one again: too many, and never too few.
//!
//! The metadata store has a verifier of its own, which metadata services tell. One that was heard
//! before is no news: a service that has not asked the store since tells it, and has nothing there
//! that it could have lost.

use crate::data::Keeper;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::{GroupId, HashMap};

/// Verifiers of the metadata store that are remembered: one for each loss of its power while the
/// session lives.
const MAX_OF_NAMES: usize = 16;

/// What was heard of each keeper of chunk files that this session has changed something of.
#[derive(Default)]
pub(crate) struct Verifiers {
    keepers: RwLock<HashMap<Keeper, Heard>>,
    names: Mutex<OfNames>,
    /// Losses of all keepers together, which is the time of this module.
    losses: AtomicU64,
    /// The last loss of which somebody who syncs everything has been told.
    told: AtomicU64,
}

/// What was heard of the metadata store.
#[derive(Default)]
struct OfNames {
    /// The last one is in force.
    verifiers: Vec<u64>,
    /// The time of its last loss.
    lost_at: u64,
    /// The last loss of which somebody who synced a directory has been told.
    told: u64,
}

struct Heard {
    verifier: u64,
    /// The time of its last loss.
    lost_at: u64,
    /// Changed since everything was synced.
    is_changed: AtomicBool,
}

impl Verifiers {
    /// An answer to a change or a sync.
    pub(crate) fn heard(&self, keeper: Keeper, verifier: u64, is_change: bool) {
        {
            let keepers = self.keepers.read();
            if let Some(heard) = keepers.get(&keeper).filter(|heard| heard.verifier == verifier) {
                if is_change && !heard.is_changed.load(Ordering::Relaxed) {
                    heard.is_changed.store(true, Ordering::Release);
                }
                return;
            }
        }
        let mut keepers = self.keepers.write();
        let first = || Heard { verifier, lost_at: 0, is_changed: AtomicBool::new(false) };
        let heard = keepers.entry(keeper).or_insert_with(first);
        if is_change {
            heard.is_changed.store(true, Ordering::Release);
        }
        if heard.verifier != verifier {
            heard.verifier = verifier;
            heard.lost_at = self.losses.fetch_add(1, Ordering::AcqRel) + 1;
            tracing::warn!(
                ?keeper,
                "storage was started anew without what had been written to it and not synced: the next sync of such files fails"
            );
        }
    }

    /// An answer of a metadata service that tells of its store; 0: it tells nothing.
    pub(crate) fn heard_of_names(&self, verifier: u64) {
        if verifier == 0 {
            return;
        }
        let mut names = self.names.lock();
        if names.verifiers.contains(&verifier) {
            return;
        }
        let is_first = names.verifiers.is_empty();
        if names.verifiers.len() == MAX_OF_NAMES {
            names.verifiers.remove(0);
        }
        names.verifiers.push(verifier);
        if !is_first {
            names.lost_at = self.losses.fetch_add(1, Ordering::AcqRel) + 1;
            tracing::warn!(
                "the metadata store was started anew without what had been told to it and not synced: the next sync of such files fails"
            );
        }
    }

    /// Whether the metadata store has lost something after so many losses.
    pub(crate) fn has_lost_names(&self, since: u64) -> bool {
        self.names.lock().lost_at > since
    }

    /// Whether the metadata store has lost something of which nobody who syncs a directory has been
    /// told. Told once.
    pub(crate) fn take_loss_of_names(&self) -> bool {
        let mut names = self.names.lock();
        let is_news = names.told < names.lost_at;
        names.told = names.lost_at;
        is_news
    }

    /// Losses so far.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Whether a keeper has lost something after so many losses.
    pub(crate) fn has_lost(&self, keeper: Keeper, since: u64) -> bool {
        self.keepers.read().get(&keeper).is_some_and(|heard| heard.lost_at > since)
    }

    /// The mirrored groups that were changed since this was asked last.
    pub(crate) fn take_changed_groups(&self) -> Vec<GroupId> {
        let keepers = self.keepers.read();
        let is_changed = |heard: &Heard| heard.is_changed.swap(false, Ordering::AcqRel);
        let groups = keepers.iter().filter_map(|(keeper, heard)| match keeper {
            Keeper::Mirror(group) if is_changed(heard) => Some(*group),
            _ => None,
        });
        groups.collect()
    }

    /// They couldn't be synced: they count as changed.
    pub(crate) fn are_changed(&self, groups: &[GroupId]) {
        let keepers = self.keepers.read();
        for heard in groups.iter().filter_map(|group| keepers.get(&Keeper::Mirror(*group))) {
            heard.is_changed.store(true, Ordering::Release);
        }
    }

    /// Whether there was a loss that nobody who syncs everything has been told of. Told once.
    pub(crate) fn take_loss(&self) -> bool {
        let losses = self.losses();
        self.told.swap(losses, Ordering::AcqRel) < losses
    }
}

/// What is known of changes of a file and the disk.
#[derive(Clone, Copy, Default)]
pub(crate) struct Unsynced {
    /// Changes so far, and how many of them a sync is known to cover.
    changes: u64,
    synced: u64,
    /// Changes that haven't been answered.
    under_way: u32,
    /// Losses before the first change that isn't synced; `None`: nothing is known.
    since: Option<u64>,
    /// How often a sync has found something lost.
    found: u64,
}

impl Unsynced {
    /// Of a file that was used before: what is left of that.
    pub(crate) fn after(since: Option<u64>) -> Unsynced {
        Unsynced { changes: u64::from(since.is_some()), since, ..Unsynced::default() }
    }

    /// What its next use has to know.
    pub(crate) fn left(&self) -> Option<u64> {
        self.since.filter(|_| self.synced < self.changes)
    }

    /// There may be something that isn't synced, of an earlier use of the file.
    pub(crate) fn doubt(&mut self) {
        if self.is_all_synced() {
            self.since = None;
        }
        self.changes += 1;
    }

    /// A change is sent, after so many losses.
    pub(crate) fn begin(&mut self, losses: u64) {
        if self.since.is_none() || self.is_all_synced() {
            self.since = Some(losses);
        }
        self.under_way += 1;
    }

    /// It was answered, or given up. `is_durable`: it is on disk if it was done.
    pub(crate) fn end(&mut self, is_durable: bool) {
        self.under_way -= 1;
        self.changes += u64::from(!is_durable);
    }

    /// A change was made that was sent after so many losses.
    pub(crate) fn made(&mut self, losses: u64) {
        self.begin(losses);
        self.end(false);
    }

    /// The changes that a sync that begins now covers; `None` when nothing is to be synced.
    pub(crate) fn unsynced_changes(&self) -> Option<u64> {
        (self.synced < self.changes).then_some(self.changes)
    }

    /// Nothing is to be synced, and nothing is on its way.
    pub(crate) fn is_all_synced(&self) -> bool {
        self.synced == self.changes && self.under_way == 0
    }

    /// A sync has covered so many changes.
    pub(crate) fn synced(&mut self, changes: u64) {
        self.synced = self.synced.max(changes);
    }

    /// Losses before the first change that isn't synced.
    pub(crate) fn since(&self) -> Option<u64> {
        self.since
    }

    /// Something was lost, and whoever asks is told. What is changed from now on isn't concerned.
    pub(crate) fn found_loss(&mut self, losses: u64) {
        self.since = Some(losses);
        self.found += 1;
    }

    /// How often a sync has found something lost.
    pub(crate) fn found(&self) -> u64 {
        self.found
    }
}

#[cfg(test)]
mod tests;
