//! Dirty tracking: records which regions of a chunk file change while it is copied elsewhere.
//!
//! A change is recorded when it ends, however it ends. A copier that begins a new round and reads
//! the list of the previous round misses only changes that still run, and those appear in the next
//! round.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use types::{ByteRange, ChunkFileId, Errno, Error, GroupId, HashMap, Result, TargetId};
use wire::{DIRTY_REGION_BYTES, StorageOp, StorageReply, StorageRequest};

/// Trackers of a process. Each takes some KiB as a rule and 4 MiB at most. Beyond this number, the
/// least recently used one ends.
const MAX_TRACKERS: usize = 256;

/// Regions that a list holds individually. Beyond that, everything from the lowest of them on
/// counts as changed.
const MAX_REGIONS: usize = 65_536;

/// A chunk file: of a target alone, or of its replica of a mirrored group.
type File = (TargetId, Option<GroupId>, ChunkFileId);

fn file_of(request: &StorageRequest) -> File {
    (request.target, request.group.map(|asked| asked.group), request.ino)
}

/// The trackers of all targets.
#[derive(Default)]
pub(crate) struct DirtyTrackers {
    /// Number of entries in the table, so that a change takes the lock only if there are any.
    count: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    files: HashMap<File, DirtyTracker>,
    uses: u64,
}

struct DirtyTracker {
    token: u64,
    round: u64,
    /// Regions that changed in the previous round.
    previous: RegionSet,
    /// Regions that change in the current round.
    current: RegionSet,
    last_use: u64,
}

/// A set of regions, by number.
struct RegionSet {
    single: BTreeSet<u64>,
    /// All regions from this number on.
    all_from: u64,
}

impl Default for RegionSet {
    fn default() -> RegionSet {
        RegionSet { single: BTreeSet::new(), all_from: u64::MAX }
    }
}

impl RegionSet {
    fn add(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start / DIRTY_REGION_BYTES, (range.end - 1) / DIRTY_REGION_BYTES);
        if last - first >= MAX_REGIONS as u64 {
            self.all_from = self.all_from.min(first);
        } else {
            self.single.extend(first..=last);
        }
        if self.single.len() > MAX_REGIONS
            && let Some(&least) = self.single.first()
        {
            self.all_from = self.all_from.min(least);
        }
        let all_from = self.all_from;
        self.single.split_off(&all_from);
    }

    /// Returns the first byte of the first region at or after `from`.
    fn next(&self, from: u64) -> Option<u64> {
        let region = from.div_ceil(DIRTY_REGION_BYTES);
        let single = self.single.range(region..).next().copied();
        let open_end = (self.all_from < u64::MAX).then(|| self.all_from.max(region));
        let found = single.into_iter().chain(open_end).min()?;
        found.checked_mul(DIRTY_REGION_BYTES)
    }
}

/// Records a change when it is dropped.
pub(crate) struct DirtyGuard<'a> {
    dirty_trackers: &'a DirtyTrackers,
    file: File,
    range: ByteRange,
}

impl Drop for DirtyGuard<'_> {
    fn drop(&mut self) {
        // A copier registers its tracker before it reads. So a change that ended before this check
        // is visible to that read.
        fence(Ordering::SeqCst);
        if self.dirty_trackers.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(tracker) = self.dirty_trackers.table.lock().files.get_mut(&self.file) {
            tracker.current.add(self.range);
        }
    }
}

impl DirtyTrackers {
    /// Returns a guard for the execution of a request, which records the range that the request
    /// changes; `None` if it changes nothing.
    pub(crate) fn track(&self, request: &StorageRequest, payload: usize) -> Option<DirtyGuard<'_>> {
        let range = request.op.changed_content(payload as u64)?;
        Some(DirtyGuard { dirty_trackers: self, file: file_of(request), range })
    }

    /// Answers dirty-tracking requests; `None` for others.
    pub(crate) fn answer(&self, request: &StorageRequest) -> Option<Result<StorageReply>> {
        let file = file_of(request);
        match request.op {
            StorageOp::TrackDirty { token, round } => {
                Some(self.begin_round(file, token, round).map(|()| StorageReply::Unit))
            }
            StorageOp::NextDirty { token, round, from } => {
                Some(self.changed(file, (token, round), from).map(StorageReply::Offset))
            }
            StorageOp::EndDirtyTracking { token } => {
                self.end(file, token);
                Some(Ok(StorageReply::Unit))
            }
            _ => None,
        }
    }

    fn begin_round(&self, file: File, token: u64, round: u64) -> Result<()> {
        let mut table = self.table.lock();
        let now = table.tick();
        if let Some(tracker) = table.files.get_mut(&file).filter(|watch| watch.token == token) {
            tracker.last_use = now;
            // A retransmission changes nothing.
            if round == tracker.round + 1 {
                tracker.round = round;
                tracker.previous = std::mem::take(&mut tracker.current);
            }
            return if round == tracker.round { Ok(()) } else { Err(not_tracked(file)) };
        }
        if round > 0 {
            return Err(not_tracked(file));
        }
        table.evict_oldest();
        let new = DirtyTracker {
            token,
            round,
            previous: RegionSet::default(),
            current: RegionSet::default(),
            last_use: now,
        };
        table.files.insert(file, new);
        self.count.store(table.files.len(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn changed(&self, file: File, (token, round): (u64, u64), from: u64) -> Result<Option<u64>> {
        let mut table = self.table.lock();
        let now = table.tick();
        let found =
            table.files.get_mut(&file).filter(|tracker| (tracker.token, tracker.round) == (token, round));
        let tracker = found.ok_or_else(|| not_tracked(file))?;
        tracker.last_use = now;
        Ok(tracker.previous.next(from))
    }

    /// Ends all trackers of a replica that isn't the primary of its group: the new primary records
    /// the changes.
    pub(crate) fn end_for_replica(&self, target: TargetId, group: GroupId) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut table = self.table.lock();
        table.files.retain(|file, _| (file.0, file.1) != (target, Some(group)));
        self.count.store(table.files.len(), Ordering::SeqCst);
    }

    fn end(&self, file: File, token: u64) {
        let mut table = self.table.lock();
        if table.files.get(&file).is_some_and(|tracker| tracker.token == token) {
            table.files.remove(&file);
            self.count.store(table.files.len(), Ordering::SeqCst);
        }
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    fn evict_oldest(&mut self) {
        if self.files.len() < MAX_TRACKERS {
            return;
        }
        let oldest = self.files.iter().min_by_key(|(_, tracker)| tracker.last_use).map(|(file, _)| *file);
        oldest.and_then(|file| self.files.remove(&file));
    }
}

fn not_tracked((target, _, ino): File) -> Error {
    Error::new(Errno::ESTALE, format!("chunk file {:016x} on target {target} is not tracked any more", ino.0))
        .hint("begin again: any part of it may have changed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::SessionId;
    use wire::DataPath;

    const TARGET: TargetId = TargetId(1);
    const INO: ChunkFileId = ChunkFileId(5);
    const FILE: File = (TARGET, None, INO);

    fn request(op: StorageOp) -> StorageRequest {
        StorageRequest::new(SessionId(0), TARGET, INO, op)
    }

    fn write(trackers: &DirtyTrackers, region: u64) {
        let op = StorageOp::Write {
            offset: region * DIRTY_REGION_BYTES + 1,
            path: DataPath::Cached,
            durable: false,
        };
        drop(trackers.track(&request(op), 10));
    }

    fn changed(trackers: &DirtyTrackers, round: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(at) = trackers.changed(FILE, (7, round), from).unwrap() {
            found.push(at / DIRTY_REGION_BYTES);
            from = at + 1;
            if found.len() == 5 {
                break;
            }
        }
        found
    }

    #[test]
    fn every_round_lists_the_changes_of_the_previous_one_repeatedly() {
        let trackers = DirtyTrackers::default();
        write(&trackers, 1);
        trackers.begin_round(FILE, 7, 0).unwrap();
        write(&trackers, 3);
        write(&trackers, 2);
        trackers.begin_round(FILE, 7, 1).unwrap();
        write(&trackers, 9);
        trackers.begin_round(FILE, 7, 1).unwrap();
        assert_eq!(changed(&trackers, 1), [2, 3]);
        assert_eq!(changed(&trackers, 1), [2, 3]);
        trackers.begin_round(FILE, 7, 2).unwrap();
        assert_eq!(changed(&trackers, 2), [9]);
        trackers.begin_round(FILE, 7, 3).unwrap();
        assert!(changed(&trackers, 3).is_empty());
    }

    #[test]
    fn a_change_that_began_before_the_tracker_is_recorded_at_its_end() {
        let trackers = DirtyTrackers::default();
        let op = StorageOp::Write { offset: 0, path: DataPath::Cached, durable: false };
        let asked = request(op);
        let running = trackers.track(&asked, 1);
        trackers.begin_round(FILE, 7, 0).unwrap();
        drop(running);
        trackers.begin_round(FILE, 7, 1).unwrap();
        assert_eq!(changed(&trackers, 1), [0]);
    }

    #[test]
    fn a_truncation_changes_everything_beyond_it() {
        let trackers = DirtyTrackers::default();
        trackers.begin_round(FILE, 7, 0).unwrap();
        write(&trackers, 1);
        drop(trackers.track(&request(StorageOp::Truncate { len: 4 * DIRTY_REGION_BYTES }), 0));
        trackers.begin_round(FILE, 7, 1).unwrap();
        assert_eq!(changed(&trackers, 1), [1, 4, 5, 6, 7]);
    }

    #[test]
    fn a_stale_token_is_refused() {
        let trackers = DirtyTrackers::default();
        let refused = |trackers: &DirtyTrackers, token, round| {
            trackers.begin_round(FILE, token, round).unwrap_err().errno == Errno::ESTALE
        };
        assert!(refused(&trackers, 7, 1), "the process has restarted");
        trackers.begin_round(FILE, 7, 0).unwrap();
        assert!(refused(&trackers, 8, 1), "another's");
        assert!(refused(&trackers, 7, 2), "a round was left out");
        assert!(trackers.changed(FILE, (7, 1), 0).is_err());
        trackers.end(FILE, 8);
        assert!(trackers.changed(FILE, (7, 0), 0).is_ok());
        trackers.end(FILE, 7);
        assert!(trackers.changed(FILE, (7, 0), 0).is_err());
    }

    #[test]
    fn trackers_and_lists_are_bounded() {
        let trackers = DirtyTrackers::default();
        for ino in 0..MAX_TRACKERS as u64 + 5 {
            trackers.begin_round((TARGET, None, ChunkFileId(ino)), 7, 0).unwrap();
        }
        assert_eq!(trackers.table.lock().files.len(), MAX_TRACKERS);
        let mut regions = RegionSet::default();
        for region in 0..2 * MAX_REGIONS as u64 + 10 {
            regions.add(ByteRange::at((region * 2 + 3) * DIRTY_REGION_BYTES, 1));
        }
        assert!(regions.single.len() <= MAX_REGIONS);
        assert_eq!(regions.next(0), Some(3 * DIRTY_REGION_BYTES));
        assert_eq!(
            regions.next(4 * DIRTY_REGION_BYTES),
            Some(4 * DIRTY_REGION_BYTES),
            "more than it was, never less"
        );
    }

    #[test]
    fn a_replica_has_its_own_tracker_until_it_is_no_longer_primary() {
        let trackers = DirtyTrackers::default();
        let group = GroupId(7);
        let replica = (TARGET, Some(group), INO);
        trackers.begin_round(FILE, 7, 0).unwrap();
        trackers.begin_round(replica, 7, 0).unwrap();
        let asked = wire::GroupContext { group, version: types::Epoch(1), role: wire::GroupRole::Primary };
        let write = StorageOp::Write { offset: 0, path: DataPath::Cached, durable: false };
        drop(trackers.track(&StorageRequest { group: Some(asked), ..request(write) }, 10));
        for file in [FILE, replica] {
            trackers.begin_round(file, 7, 1).unwrap();
        }
        assert_eq!(trackers.changed(FILE, (7, 1), 0).unwrap(), None);
        assert_eq!(trackers.changed(replica, (7, 1), 0).unwrap(), Some(0));
        trackers.end_for_replica(TARGET, GroupId(8));
        trackers.begin_round(replica, 7, 2).unwrap();
        trackers.end_for_replica(TARGET, group);
        assert_eq!(trackers.begin_round(replica, 7, 3).unwrap_err().errno, Errno::ESTALE);
        trackers.begin_round(FILE, 7, 2).unwrap();
    }
}
