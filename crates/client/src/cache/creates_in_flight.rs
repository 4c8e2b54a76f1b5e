//! Creates in flight: files whose create hasn't been answered yet.
//!
//! Another session may find and remove a file before the create's answer reaches this client. Then
//! the lease in that answer is recalled from a session that doesn't know of the file yet. If the
//! client acknowledged that the file isn't open here, the service would delete it under the
//! application that created it. The kernel would get `ESTALE` and create the file a second time. So
//! while creates are in flight, every recalled inode of their partition may be such a file. It
//! counts as open until these creates are answered.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use types::{InodeId, PartitionId};

/// The creates in flight of a session.
#[derive(Default)]
pub(crate) struct CreatesInFlight {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    begun: u64,
    active: BTreeSet<(u64, PartitionId)>,
    /// Inodes that count as open, and the last create that was in flight then.
    protected: Vec<(u64, InodeId)>,
}

/// A create in flight, until this is dropped: then the file is known, or doesn't exist.
pub(crate) struct CreateInFlight<'a, F: Fn(InodeId)> {
    creates: &'a CreatesInFlight,
    number: u64,
    partition: PartitionId,
    /// Gets the inodes that counted as open because of it, once no other create concerns them.
    on_protection_end: F,
}

impl<F: Fn(InodeId)> Drop for CreateInFlight<'_, F> {
    fn drop(&mut self) {
        self.creates.end(self.number, self.partition).into_iter().for_each(&self.on_protection_end);
    }
}

impl CreatesInFlight {
    /// Begins a create in a directory; the file will be in the directory's partition.
    pub(crate) fn begin<F: Fn(InodeId)>(&self, parent: InodeId, release: F) -> CreateInFlight<'_, F> {
        let partition = parent.partition();
        let mut state = self.state.lock();
        state.begun += 1;
        let number = state.begun;
        state.active.insert((number, partition));
        CreateInFlight { creates: self, number, partition, on_protection_end: release }
    }

    fn end(&self, number: u64, partition: PartitionId) -> Vec<InodeId> {
        let mut state = self.state.lock();
        state.active.remove(&(number, partition));
        let State { active, protected, .. } = &mut *state;
        if protected.is_empty() {
            return Vec::new();
        }
        let is_releasable = |&mut (last, ino): &mut (u64, InodeId)| {
            !active.iter().any(|&(number, partition)| number <= last && partition == ino.partition())
        };
        protected.extract_if(.., is_releasable).map(|(_, ino)| ino).collect()
    }

    /// Whether an inode may be a file whose create is in flight. If so, it counts as open until
    /// these creates have ended.
    pub(crate) fn protect_if_in_flight(&self, ino: InodeId) -> bool {
        let mut state = self.state.lock();
        let is_in_flight = state.active.iter().any(|&(_, partition)| partition == ino.partition());
        if is_in_flight {
            let last = state.begun;
            state.protected.push((last, ino));
        }
        is_in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn inode(partition: u64, number: u64) -> InodeId {
        let ino = InodeId(partition << 40 | number);
        assert_eq!(ino.partition(), PartitionId(partition as u16));
        ino
    }

    #[test]
    fn inodes_recalled_during_creates_count_as_open_until_these_end() {
        let (creates, settled) = (CreatesInFlight::default(), RefCell::new(Vec::new()));
        let begin = |folder| creates.begin(folder, |ino| settled.borrow_mut().push(ino));
        let ended = |made| {
            drop(made);
            settled.take()
        };
        let (folder, other) = (inode(3, 1), inode(4, 1));
        assert!(!creates.protect_if_in_flight(inode(3, 7)));
        let [a, b] = [begin(folder), begin(folder)];
        assert!(creates.protect_if_in_flight(inode(3, 7)) && !creates.protect_if_in_flight(inode(4, 7)));
        let c = begin(folder);
        let d = begin(other);
        assert_eq!(ended(b), []);
        assert_eq!(ended(a), [inode(3, 7)], "the later one has nothing to do with it");
        assert!(creates.protect_if_in_flight(inode(3, 8)) && creates.protect_if_in_flight(inode(4, 8)));
        assert_eq!(ended(c), [inode(3, 8)]);
        assert_eq!(ended(d), [inode(4, 8)]);
        assert!(!creates.protect_if_in_flight(inode(3, 9)));
    }
}
