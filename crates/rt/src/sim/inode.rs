//! One file on the simulated disk: the content that programs see, the content that survives a
//! crash, and the changes between the two.

use super::content::Content;
use super::rng::Rng;
use crate::disk::Fallocate;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Range;
use std::rc::Rc;

/// A sector is written atomically.
const SECTOR: u64 = 512;
/// Unsynced changes of one file. Above this the oldest are written to disk, as by the kernel's
/// writeback.
const MAX_UNSYNCED_CHANGES: usize = 1024;

/// A change of a file's content.
#[derive(Clone)]
pub(super) enum Edit {
    Write { offset: u64, data: Rc<[u8]> },
    SetLen(u64),
    Allocate(Fallocate, Range<u64>),
}

impl Edit {
    fn apply(&self, content: &mut Content) {
        match self {
            Edit::Write { offset, data } => content.write(*offset, data),
            Edit::SetLen(len) => content.set_len(*len),
            Edit::Allocate(how, range) => content.allocate(*how, range),
        }
    }

    /// The bytes of a write; `None` for other changes.
    fn written(&self) -> Option<Range<u64>> {
        match self {
            Edit::Write { offset, data } => Some(*offset..*offset + data.len() as u64),
            Edit::SetLen(_) | Edit::Allocate(..) => None,
        }
    }

    /// Applies the part of an unsynced change that survives a crash.
    fn apply_after_crash(&self, content: &mut Content, rng: &mut Rng) {
        match (rng.below(4), self) {
            (0, _) => {}
            (1, Edit::Write { offset, data }) => {
                let part = torn(*offset, data.len() as u64, rng);
                let bytes = &data[(part.start - offset) as usize..(part.end - offset) as usize];
                if !bytes.is_empty() {
                    content.write(part.start, bytes);
                }
            }
            _ => self.apply(content),
        }
    }
}

/// The part of a write that reached the disk: the sectors before or after a random cut. Nothing of
/// a write within one sector.
fn torn(offset: u64, len: u64, rng: &mut Rng) -> Range<u64> {
    let end = offset + len;
    let boundaries = offset / SECTOR + 1..end.div_ceil(SECTOR);
    if boundaries.is_empty() {
        return offset..offset;
    }
    let cut = rng.between(boundaries.start, boundaries.end - 1) * SECTOR;
    if rng.coin() { offset..cut } else { cut..end }
}

/// A file.
#[derive(Default)]
pub(super) struct Inode {
    pub(super) visible: Content,
    durable: Content,
    /// Changes with their sequence numbers, oldest first: applied to `durable` they result in
    /// `visible`.
    unsynced: Vec<(u64, Edit)>,
    pub(super) mtime_ns: u64,
    pub(super) ctime_ns: u64,
    /// Durable at once: code that relies on them syncs the file.
    pub(super) attributes: BTreeMap<CString, Vec<u8>>,
    pub(super) opens: usize,
}

impl Inode {
    /// An empty file.
    pub(super) fn new(now_ns: u64) -> Inode {
        Inode { mtime_ns: now_ns, ctime_ns: now_ns, ..Inode::default() }
    }

    pub(super) fn change(&mut self, sequence: u64, edit: Edit, now_ns: u64) {
        edit.apply(&mut self.visible);
        (self.mtime_ns, self.ctime_ns) = (now_ns, now_ns);
        self.unsynced.push((sequence, edit));
        if self.unsynced.len() > MAX_UNSYNCED_CHANGES {
            let (_, oldest) = self.unsynced.remove(0);
            oldest.apply(&mut self.durable);
        }
    }

    /// Makes the changes up to a sequence number durable.
    pub(super) fn sync(&mut self, up_to: u64) {
        let count = self.unsynced.partition_point(|(sequence, _)| *sequence <= up_to);
        for (_, edit) in self.unsynced.drain(..count) {
            edit.apply(&mut self.durable);
        }
        if self.unsynced.is_empty() {
            // They are equal already; this shares the pages again.
            self.durable = self.visible.clone();
        }
    }

    /// Makes the latest change, a write, durable. Earlier changes are made durable with it only if
    /// they touch its bytes, since they must not overwrite it after a crash.
    pub(super) fn sync_last(&mut self) {
        let Some((sequence, last)) = self.unsynced.last().cloned() else { return };
        let range = last.written();
        let before = &self.unsynced[..self.unsynced.len() - 1];
        let depends = before.iter().any(|(_, edit)| match (edit.written(), &range) {
            (Some(other), Some(range)) => other.start < range.end && range.start < other.end,
            _ => true,
        });
        if depends {
            self.sync(sequence);
        } else {
            self.unsynced.pop();
            last.apply(&mut self.durable);
        }
    }

    /// Simulates a power failure.
    pub(super) fn crash(&mut self, rng: &mut Rng) {
        for (_, edit) in std::mem::take(&mut self.unsynced) {
            edit.apply_after_crash(&mut self.durable, rng);
        }
        self.visible = self.durable.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_write_breaks_at_a_sector() {
        let mut rng = Rng::new(1);
        let (mut heads, mut tails) = (0, 0);
        for _ in 0..200 {
            let part = torn(100, 2000, &mut rng);
            assert!(!part.is_empty() && part != (100..2100));
            if part.start == 100 {
                assert_eq!(part.end % SECTOR, 0);
                heads += 1;
            } else {
                assert_eq!((part.start % SECTOR, part.end), (0, 2100));
                tails += 1;
            }
        }
        assert!(heads > 0 && tails > 0);
        assert!(torn(512, 512, &mut rng).is_empty());
        assert!(torn(513, 100, &mut rng).is_empty());
    }

    #[test]
    fn old_changes_reach_the_disk_by_themselves() {
        let mut inode = Inode::default();
        for sequence in 0..2 * MAX_UNSYNCED_CHANGES as u64 {
            inode.change(sequence, Edit::Write { offset: sequence, data: Rc::from([1u8]) }, 0);
        }
        assert_eq!(inode.unsynced.len(), MAX_UNSYNCED_CHANGES);
        assert_eq!(inode.durable.len(), MAX_UNSYNCED_CHANGES as u64);
    }
}
