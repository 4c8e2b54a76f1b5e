//! Files that this session is making, before it knows that it has made them.
//!
//! Another session may see and remove a file before the answer to the request that made it is here.
//! Then the lease that the answer brings is recalled from a session that doesn't know of the file
//! yet. If it said that the file isn't open here, the file would be deleted under the program that
//! made it, whose kernel would, being told `ESTALE`, make it a second time. So while files are
//! being made, whatever is recalled of their partition may be one of them, and counts as open until
//! they are known.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use types::{InodeId, PartitionId};

/// What is being made.
#[derive(Default)]
pub(crate) struct Making {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    begun: u64,
    active: BTreeSet<(u64, PartitionId)>,
    /// Inodes that count as open, and the last file that was being made then.
    spared: Vec<(u64, InodeId)>,
}

/// A file that is being made, until this is dropped: then it is known, or there is none.
pub(crate) struct Made<'a, F: Fn(InodeId)> {
    making: &'a Making,
    number: u64,
    partition: PartitionId,
    /// Gets those that counted as open for its sake, when nothing else can be said of them any
    /// more.
    settled: F,
}

impl<F: Fn(InodeId)> Drop for Made<'_, F> {
    fn drop(&mut self) {
        self.making.end(self.number, self.partition).into_iter().for_each(&self.settled);
    }
}

impl Making {
    /// A file is about to be made in a folder; it is in the folder's partition.
    pub(crate) fn begin<F: Fn(InodeId)>(&self, parent: InodeId, settled: F) -> Made<'_, F> {
        let partition = parent.partition();
        let mut state = self.state.lock();
        state.begun += 1;
        let number = state.begun;
        state.active.insert((number, partition));
        Made { making: self, number, partition, settled }
    }

    fn end(&self, number: u64, partition: PartitionId) -> Vec<InodeId> {
        let mut state = self.state.lock();
        state.active.remove(&(number, partition));
        let State { active, spared, .. } = &mut *state;
        if spared.is_empty() {
            return Vec::new();
        }
        let is_settled = |&mut (last, ino): &mut (u64, InodeId)| {
            !active.iter().any(|&(number, partition)| number <= last && partition == ino.partition())
        };
        spared.extract_if(.., is_settled).map(|(_, ino)| ino).collect()
    }

    /// Whether an inode may be one of those that are being made. It then counts as open until those
    /// are known.
    pub(crate) fn may_have(&self, ino: InodeId) -> bool {
        let mut state = self.state.lock();
        let may_have = state.active.iter().any(|&(_, partition)| partition == ino.partition());
        if may_have {
            let last = state.begun;
            state.spared.push((last, ino));
        }
        may_have
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
    fn what_is_recalled_while_files_are_made_counts_as_open_until_all_of_them_are_known() {
        let (making, settled) = (Making::default(), RefCell::new(Vec::new()));
        let begin = |folder| making.begin(folder, |ino| settled.borrow_mut().push(ino));
        let ended = |made| {
            drop(made);
            settled.take()
        };
        let (folder, other) = (inode(3, 1), inode(4, 1));
        assert!(!making.may_have(inode(3, 7)));
        let [a, b] = [begin(folder), begin(folder)];
        assert!(making.may_have(inode(3, 7)) && !making.may_have(inode(4, 7)));
        let c = begin(folder);
        let d = begin(other);
        assert_eq!(ended(b), []);
        assert_eq!(ended(a), [inode(3, 7)], "the later one has nothing to do with it");
        assert!(making.may_have(inode(3, 8)) && making.may_have(inode(4, 8)));
        assert_eq!(ended(c), [inode(3, 8)]);
        assert_eq!(ended(d), [inode(4, 8)]);
        assert!(!making.may_have(inode(3, 9)));
    }
}
