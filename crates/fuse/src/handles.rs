//! Table of open files by file handle (the number that the kernel uses).

use parking_lot::RwLock;
use std::sync::Arc;
use types::Errno;

/// Independent parts of the table. A core opens files in its own part, so that cores don't contend
/// for one lock.
const SHARDS: usize = 64;
const SHARD_BITS: u32 = SHARDS.trailing_zeros();
/// Bits of the index within a shard.
const SLOT_BITS: u32 = 26;
/// Open files per shard; beyond it opens fail with `ENFILE`. Far above any real limit of processes;
/// it bounds the memory.
const MAX_FILES_PER_SHARD: usize = 1 << 20;
const _: () = assert!(MAX_FILES_PER_SHARD <= 1 << SLOT_BITS && SHARD_BITS + SLOT_BITS == 32);

/// The table of open files.
///
/// A handle consists of shard, index and generation. So the handle of a closed file never refers to
/// another file, until an index has been reused four billion times.
pub struct Handles<T> {
    shards: Vec<RwLock<Shard<T>>>,
}

struct Shard<T> {
    slots: Vec<HandleSlot<T>>,
    free: Vec<u32>,
}

struct HandleSlot<T> {
    generation: u32,
    file: Option<Arc<T>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Handles<T> {
        let empty = || RwLock::new(Shard { slots: Vec::new(), free: Vec::new() });
        Handles { shards: (0..SHARDS).map(|_| empty()).collect() }
    }
}

impl<T> Handles<T> {
    /// Inserts a file and returns its handle; `core` selects the shard. `ENFILE` when the shard is
    /// full.
    pub fn insert(&self, core: usize, file: Arc<T>) -> Result<u64, Errno> {
        let shard_index = core % SHARDS;
        let mut shard = self.shards[shard_index].write();
        let slot_index = match shard.free.pop() {
            Some(index) => index as usize,
            None if shard.slots.len() < MAX_FILES_PER_SHARD => {
                shard.slots.push(HandleSlot { generation: 0, file: None });
                shard.slots.len() - 1
            }
            None => return Err(Errno::Number(libc::ENFILE)),
        };
        let slot = &mut shard.slots[slot_index];
        slot.file = Some(file);
        let generation = u64::from(slot.generation);
        Ok(generation << (SHARD_BITS + SLOT_BITS) | (slot_index as u64) << SHARD_BITS | shard_index as u64)
    }

    /// Returns the open file with this handle; `EBADF` if there is none.
    pub fn get(&self, fh: u64) -> Result<Arc<T>, Errno> {
        let at = HandleParts::of(fh);
        let shard = self.shards[at.shard].read();
        let slot = shard.slots.get(at.slot).filter(|p| p.generation == at.generation).ok_or(Errno::EBADF)?;
        slot.file.clone().ok_or(Errno::EBADF)
    }

    /// Removes a file from the table.
    pub fn remove(&self, fh: u64) -> Result<Arc<T>, Errno> {
        let at = HandleParts::of(fh);
        let mut shard = self.shards[at.shard].write();
        let slot =
            shard.slots.get_mut(at.slot).filter(|p| p.generation == at.generation).ok_or(Errno::EBADF)?;
        let file = slot.file.take().ok_or(Errno::EBADF)?;
        slot.generation = slot.generation.wrapping_add(1);
        shard.free.push(at.slot as u32);
        Ok(file)
    }

    /// Removes all files: the connection ended before the kernel released them.
    pub fn drain(&self) -> Vec<Arc<T>> {
        let mut files = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.write();
            files.extend(shard.slots.iter_mut().filter_map(|slot| slot.file.take()));
            (shard.slots, shard.free) = Default::default();
        }
        files
    }
}

/// A handle split into its parts.
struct HandleParts {
    shard: usize,
    slot: usize,
    generation: u32,
}

impl HandleParts {
    fn of(fh: u64) -> HandleParts {
        HandleParts {
            shard: fh as usize % SHARDS,
            slot: (fh as u32 >> SHARD_BITS) as usize,
            generation: (fh >> (SHARD_BITS + SLOT_BITS)) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_closed_files_are_never_valid_again() {
        let handles = Handles::default();
        let first = handles.insert(3, Arc::new("a")).unwrap();
        assert_eq!(*handles.get(first).unwrap(), "a");
        assert_eq!(*handles.remove(first).unwrap(), "a");
        let second = handles.insert(3, Arc::new("b")).unwrap();
        assert_ne!(first, second);
        assert_eq!(handles.get(first).unwrap_err(), Errno::EBADF);
        assert_eq!(handles.remove(first).unwrap_err(), Errno::EBADF);
        assert_eq!(*handles.get(second).unwrap(), "b");
    }

    #[test]
    fn made_up_numbers_are_refused() {
        let handles = Handles::default();
        handles.insert(0, Arc::new(())).unwrap();
        for fh in [1, 1 << 6, 1 << 32, u64::MAX, u64::from(u32::MAX)] {
            assert_eq!(handles.get(fh).unwrap_err(), Errno::EBADF);
        }
    }

    #[test]
    fn cores_share_no_number_and_a_drain_finds_all() {
        let handles = Handles::default();
        let mut numbers: Vec<u64> = (0..200).map(|n| handles.insert(n % 7, Arc::new(n)).unwrap()).collect();
        for (n, fh) in numbers.iter().enumerate() {
            assert_eq!(*handles.get(*fh).unwrap(), n);
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 200);
        assert_eq!(handles.drain().len(), 200);
        assert_eq!(handles.get(numbers[0]).unwrap_err(), Errno::EBADF);
    }
}
