//! Checks whether an engine's disk has room for the store to grow.
//!
//! An engine that runs into a full disk writes nothing more, not even batches that would free
//! space. So growth must stop earlier, while enough space is left for journals, tables and
//! compaction of the batches that are still allowed.

use crate::Space;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Bytes that must be free for journals and new tables.
const WORKING_BYTES: u64 = 64 << 20;
/// On small disks a sixteenth of the capacity suffices for that.
const WORKING_DIVISOR: u64 = 16;
/// Bytes that the largest usual compaction writes before it frees its inputs: four tables of 8 MiB
/// and a first level of four times 64 MiB. A smaller store needs no more than its own size.
const COMPACTION_BYTES: u64 = 288 << 20;
/// Applied bytes after which the disk is checked again.
const MEASURE_AFTER_BYTES: u64 = 1 << 20;
/// Time after which the disk is checked again, in nanoseconds: other processes use it too.
const MEASURE_AFTER_NS: u64 = 200_000_000;

/// Space of a disk, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    /// Capacity of the disk.
    pub(crate) capacity: u64,
    /// Free on the disk for ordinary users.
    pub(crate) free: u64,
    /// Bytes of the store's tables.
    pub(crate) tables: u64,
}

impl Measure {
    /// Measures the disk that contains `dir`.
    pub(crate) fn take(dir: &Path, tables: u64) -> io::Result<Measure> {
        let disk = rustix::fs::statvfs(dir)?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        Ok(Measure { capacity: bytes(disk.f_blocks), free: bytes(disk.f_bavail), tables })
    }

    /// Returns the bytes that must be free for the store to grow.
    fn needed(&self) -> u64 {
        let working = WORKING_BYTES.min(self.capacity / WORKING_DIVISOR);
        working + self.tables.min(COMPACTION_BYTES)
    }

    fn has_room(&self) -> bool {
        self.free >= self.needed()
    }
}

impl From<Measure> for Space {
    fn from(measure: Measure) -> Space {
        let Measure { capacity, free, tables } = measure;
        Space { used: tables, capacity, free, needed: measure.needed() }
    }
}

/// Caches the last check for as long as little can have changed.
#[derive(Default)]
pub(crate) struct FreeSpace {
    is_full: AtomicBool,
    /// Time of the next check; zero at first.
    next_measure_ns: AtomicU64,
    applied_since: AtomicU64,
}

impl FreeSpace {
    /// Notes applied bytes.
    pub(crate) fn note_applied(&self, bytes: u64) {
        self.applied_since.fetch_add(bytes, Relaxed);
    }

    /// Returns whether there is room, by the cached result or a new check.
    pub(crate) fn has_room(&self, now_ns: u64, measure: impl FnOnce() -> io::Result<Measure>) -> bool {
        let must_measure = now_ns >= self.next_measure_ns.load(Relaxed)
            || self.applied_since.load(Relaxed) >= MEASURE_AFTER_BYTES;
        if must_measure {
            // First, so that other cores don't check at the same time.
            self.next_measure_ns.store(now_ns.saturating_add(MEASURE_AFTER_NS), Relaxed);
            self.applied_since.store(0, Relaxed);
            // A disk that can't be queried is not known to be full; a write to it will show.
            self.is_full.store(measure().is_ok_and(|measure| !measure.has_room()), Relaxed);
        }
        !self.is_full.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn measure(free: u64) -> io::Result<Measure> {
        Ok(Measure { capacity: 100 * GIB, free, tables: 0 })
    }

    fn not_measured() -> io::Result<Measure> {
        panic!("the disk was looked at again")
    }

    #[test]
    fn the_room_needed_depends_on_the_disk_and_on_the_store() {
        let has_room = |capacity, tables, free| Measure { capacity, free, tables }.has_room();
        assert!(has_room(100 * GIB, 0, WORKING_BYTES));
        assert!(!has_room(100 * GIB, 0, WORKING_BYTES - 1));
        assert!(!has_room(100 * GIB, 1000, WORKING_BYTES + 999));
        assert!(has_room(100 * GIB, 50 * GIB, WORKING_BYTES + COMPACTION_BYTES));
        assert!(has_room(160 << 20, 0, 10 << 20));
    }

    #[test]
    fn a_measurement_is_cached_for_a_time() {
        let room = FreeSpace::default();
        assert!(room.has_room(1000, || measure(GIB)));
        assert!(room.has_room(1000 + MEASURE_AFTER_NS - 1, not_measured));
        assert!(!room.has_room(1000 + MEASURE_AFTER_NS, || measure(0)));
        assert!(!room.has_room(1001 + MEASURE_AFTER_NS, not_measured));
        assert!(room.has_room(1000 + 2 * MEASURE_AFTER_NS, || measure(GIB)));
    }

    #[test]
    fn a_measurement_is_cached_for_some_bytes() {
        let room = FreeSpace::default();
        assert!(room.has_room(0, || measure(GIB)));
        room.note_applied(MEASURE_AFTER_BYTES - 1);
        assert!(room.has_room(1, not_measured));
        room.note_applied(1);
        assert!(!room.has_room(1, || measure(0)));
    }

    #[test]
    fn a_disk_that_cannot_be_queried_is_not_full() {
        assert!(FreeSpace::default().has_room(0, || Err(io::ErrorKind::NotFound.into())));
    }
}
