//! The last inventory: which chunk files the metadata names, but a target doesn't have. Stored
//! beside the map in the metadata store, so that a restart doesn't forget what is missing.

use crate::management::Management;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use types::{Result, ScrubSettings, TargetId};
use wire::mgmt::ScrubProgress;

/// Its key in the metadata store, among the global keys.
pub(crate) const INVENTORY_KEY: &[u8] = b"\xff\xffinventory";

/// Default interval between the starts of two inventories, in seconds: that of scrubs.
const DEFAULT_INTERVAL_S: u64 = 30 * 24 * 3600;

/// An inventory as it is stored.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InventoryRecord {
    /// Number of the last requested scrub for which it was taken ([`ScrubSettings::asked`]).
    pub asked: u64,
    /// Its start, Unix seconds; zero: none was completed yet.
    pub began_s: i64,
    /// Missing or too short chunk files by target.
    pub missing: BTreeMap<TargetId, u64>,
}

impl InventoryRecord {
    /// Whether one should be taken now: when a scrub is requested, at each interval of scrubs, and
    /// once in a new cluster. Not while scrubs are stopped.
    pub fn is_due(&self, settings: &ScrubSettings, now_s: i64) -> bool {
        let every_s = settings.every_s.unwrap_or(DEFAULT_INTERVAL_S);
        let passed_s = u64::try_from(now_s.saturating_sub(self.began_s)).unwrap_or_default();
        !settings.stopped && (settings.asked > self.asked || (every_s > 0 && passed_s >= every_s))
    }
}

/// State of the inventory.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// The last complete one.
    record: InventoryRecord,
    /// Whether this process takes inventories.
    is_in_use: bool,
    is_running: bool,
    /// Why it doesn't progress.
    hindrance: Option<String>,
}

impl Inventory {
    /// Loads the stored one; none if it can't be read: then it is taken again.
    pub(crate) fn stored(value: Option<&[u8]>) -> Inventory {
        let record = value.and_then(|value| serde_json::from_slice(value).ok()).unwrap_or_default();
        Inventory { record, ..Inventory::default() }
    }

    /// Adds the inventory to the progress of the targets' scrubs: a scrub has ended when the
    /// inventory for it has, and a chunk file that both miss counts once.
    fn add_to(&self, scrubs: &mut Vec<ScrubProgress>) {
        for &target in self.record.missing.keys() {
            if !scrubs.iter().any(|progress| progress.target == target) {
                scrubs.push(ScrubProgress { target, asked: self.record.asked, ..ScrubProgress::default() });
            }
        }
        scrubs.sort_by_key(|progress| progress.target);
        for progress in scrubs {
            let missing = self.record.missing.get(&progress.target).copied().unwrap_or_default();
            progress.missing = progress.missing.max(missing);
            if self.is_in_use {
                progress.is_running |= self.is_running;
                progress.asked = progress.asked.min(self.record.asked);
                progress.hindrance = progress.hindrance.take().or_else(|| self.hindrance.clone());
            }
        }
    }
}

impl Management {
    fn inventory(&self) -> MutexGuard<'_, Inventory> {
        self.inventory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last complete inventory.
    pub fn last_inventory(&self) -> InventoryRecord {
        self.inventory().record.clone()
    }

    /// Records that this process takes inventories, whether one is running, and why it doesn't
    /// progress.
    pub fn note_inventory_state(&self, is_running: bool, hindrance: Option<String>) {
        let mut inventory = self.inventory();
        (inventory.is_in_use, inventory.is_running, inventory.hindrance) = (true, is_running, hindrance);
    }

    /// Stores a complete inventory, durably when this returns.
    ///
    /// # Errors
    /// A metadata store that can't be written.
    pub async fn note_inventory(&self, record: InventoryRecord) -> Result<()> {
        let stored = serde_json::to_vec(&record).expect("an inventory has numbers as keys");
        self.inventory().record = record;
        let writes = vec![(INVENTORY_KEY.to_vec(), Some(stored.into()))];
        self.store.put(writes).await.map_err(crate::Error::from)?;
        Ok(self.sync().await?)
    }

    /// Scrub progress by target, with what the inventory found.
    pub(crate) fn scrubs(&self) -> Vec<ScrubProgress> {
        let mut scrubs = self.liveness().scrubs();
        let inventory = self.inventory();
        let map = self.current();
        inventory.add_to(&mut scrubs);
        scrubs.retain(|progress| map.target(progress.target).is_some());
        scrubs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inventory_is_due_once_by_schedule_and_on_request() {
        let every = |every_s| ScrubSettings { every_s, ..ScrubSettings::default() };
        let taken = InventoryRecord { asked: 2, began_s: 1000, ..InventoryRecord::default() };
        assert!(InventoryRecord::default().is_due(&every(None), 1_700_000_000), "none was taken yet");
        assert!(!taken.is_due(&every(Some(100)), 1099));
        assert!(taken.is_due(&every(Some(100)), 1100));
        assert!(!taken.is_due(&every(Some(0)), i64::MAX), "only on request");
        let asked = ScrubSettings { asked: 3, every_s: Some(0), ..ScrubSettings::default() };
        assert!(taken.is_due(&asked, 1001));
        assert!(!taken.is_due(&ScrubSettings { stopped: true, ..asked }, 1001));
        assert!(!taken.is_due(&every(Some(100)), 0), "the clock was set back");
    }

    #[test]
    fn a_missing_chunk_file_counts_once_and_a_scrub_ends_with_the_inventory() {
        let scrub = |target, missing| ScrubProgress {
            target: TargetId(target),
            asked: 2,
            missing,
            ..ScrubProgress::default()
        };
        let missing = BTreeMap::from([(TargetId(1), 1), (TargetId(2), 3), (TargetId(9), 1)]);
        let record = InventoryRecord { asked: 1, began_s: 5, missing };
        let mut inventory = Inventory { record, ..Inventory::default() };
        let with = |inventory: &Inventory| {
            let mut scrubs = vec![scrub(1, 2), scrub(2, 0), scrub(3, 0)];
            inventory.add_to(&mut scrubs);
            scrubs
        };
        let counts: Vec<(u32, u64)> = with(&inventory).iter().map(|p| (p.target.0, p.missing)).collect();
        assert_eq!(counts, [(1, 2), (2, 3), (3, 0), (9, 1)]);
        assert!(with(&inventory)[..3].iter().all(|p| !p.is_running && p.asked == 2));
        (inventory.is_in_use, inventory.is_running) = (true, true);
        assert!(with(&inventory).iter().all(|p| p.is_running && p.asked == 1));
    }

    #[test]
    fn a_record_that_can_not_be_read_is_taken_again() {
        let record = InventoryRecord { asked: 4, began_s: 9, missing: BTreeMap::from([(TargetId(3), 7)]) };
        let stored = serde_json::to_vec(&record).unwrap();
        assert_eq!(Inventory::stored(Some(&stored)).record, record);
        for value in [None, Some(&b"{"[..])] {
            assert_eq!(Inventory::stored(value).record, InventoryRecord::default());
        }
    }
}
