//! The simulated disk: files by name, their contents, and the effect of a crash on both.

use super::content::PAGE;
use super::inode::{Edit, Inode};
use super::names::{Names, Node, errno};
use super::rng::{Rng, mix};
use crate::disk::{Fallocate, OpenOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// Reported size of a disk without a limit.
const UNLIMITED_BYTES: u64 = 1 << 50;

/// Faults to inject.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) read_errors_per_million: u32,
    pub(super) capacity_bytes: Option<u64>,
}

/// A disk.
pub(super) struct Disk {
    pub(super) faults: Faults,
    rng: Rng,
    inodes: BTreeMap<u64, Inode>,
    next_ino: u64,
    names: Names,
    /// The number of the last change.
    sequence: u64,
    /// Files that lost a name and may have no other.
    unlinked: BTreeSet<u64>,
    /// Number of power failures.
    crashes: u64,
    /// Digest of all writes.
    written: u64,
}

impl Disk {
    pub(super) fn new(rng: Rng) -> Disk {
        Disk {
            faults: Faults::default(),
            rng,
            inodes: BTreeMap::new(),
            next_ino: 1,
            names: Names::default(),
            sequence: 0,
            unlinked: BTreeSet::new(),
            crashes: 0,
            written: 0,
        }
    }

    /// The number of the last change: what a sync that starts now covers.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(super) fn open(&mut self, path: &Path, options: OpenOptions, now_ns: u64) -> io::Result<u64> {
        let ino = match self.names.get(path) {
            Some(Node::Dir) => return Err(errno(libc::EISDIR)),
            Some(Node::File(_)) if options.create && options.exclusive => return Err(errno(libc::EEXIST)),
            Some(Node::File(ino)) => ino,
            None if options.create => self.create(path, now_ns)?,
            None => return Err(errno(libc::ENOENT)),
        };
        if options.truncate && self.inode(ino)?.visible.len() > 0 {
            self.set_len(ino, 0, now_ns)?;
        }
        self.inode_mut(ino)?.opens += 1;
        Ok(ino)
    }

    /// The file or directory at a path.
    pub(super) fn node(&self, path: &Path) -> io::Result<Node> {
        self.names.get(path).ok_or_else(|| errno(libc::ENOENT))
    }

    fn create(&mut self, path: &Path, now_ns: u64) -> io::Result<u64> {
        let ino = self.next_ino;
        let sequence = self.next_sequence();
        self.names.add(sequence, path, Node::File(ino))?;
        self.next_ino += 1;
        self.inodes.insert(ino, Inode::new(now_ns));
        Ok(ino)
    }

    pub(super) fn close(&mut self, ino: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.opens = inode.opens.saturating_sub(1);
        }
        self.collect();
    }

    /// Closes all files of the host.
    pub(super) fn close_all(&mut self) {
        self.inodes.values_mut().for_each(|inode| inode.opens = 0);
        self.collect();
    }

    pub(super) fn inode(&self, ino: u64) -> io::Result<&Inode> {
        self.inodes.get(&ino).ok_or_else(|| errno(libc::EBADF))
    }

    pub(super) fn inode_mut(&mut self, ino: u64) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or_else(|| errno(libc::EBADF))
    }

    pub(super) fn read(&mut self, ino: u64, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.rng.in_a_million(self.faults.read_errors_per_million) {
            return Err(errno(libc::EIO));
        }
        Ok(self.inode(ino)?.visible.read(offset, into))
    }

    pub(super) fn write(&mut self, ino: u64, offset: u64, data: &[u8], now_ns: u64) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).ok_or_else(|| errno(libc::EFBIG))?;
        self.check_space(ino, &(offset..end))?;
        for value in [ino, offset, u64::from(types::crc32c(data))] {
            mix(&mut self.written, value);
        }
        self.change(ino, Edit::Write { offset, data: data.into() }, now_ns)
    }

    /// Makes the last write of a file durable.
    pub(super) fn sync_last_write(&mut self, ino: u64) -> io::Result<()> {
        self.inode_mut(ino)?.sync_last();
        self.names.sync_file(ino);
        Ok(())
    }

    pub(super) fn set_len(&mut self, ino: u64, len: u64, now_ns: u64) -> io::Result<()> {
        self.change(ino, Edit::SetLen(len), now_ns)
    }

    pub(super) fn allocate(
        &mut self,
        ino: u64,
        how: Fallocate,
        range: std::ops::Range<u64>,
        now_ns: u64,
    ) -> io::Result<()> {
        if range.is_empty() {
            return Err(errno(libc::EINVAL));
        }
        if how != Fallocate::Punch {
            self.check_space(ino, &range)?;
        }
        self.change(ino, Edit::Allocate(how, range), now_ns)
    }

    fn change(&mut self, ino: u64, edit: Edit, now_ns: u64) -> io::Result<()> {
        let sequence = self.next_sequence();
        self.inode_mut(ino)?.change(sequence, edit, now_ns);
        Ok(())
    }

    pub(super) fn sync(&mut self, ino: u64, up_to: u64) -> io::Result<()> {
        self.inode_mut(ino)?.sync(up_to);
        self.names.sync_file(ino);
        Ok(())
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut missing: Vec<&Path> =
            path.ancestors().take_while(|dir| self.names.get(dir).is_none()).collect();
        while let Some(dir) = missing.pop() {
            let sequence = self.next_sequence();
            self.names.add(sequence, dir, Node::Dir)?;
        }
        self.names.directory(path)
    }

    pub(super) fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.names.directory(path)?;
        Ok(self.names.list(path).filter_map(|path| path.file_name()).map(OsString::from).collect())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let sequence = self.next_sequence();
        let replaced = self.names.rename(sequence, from, to)?;
        self.unlinked.extend(replaced);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let sequence = self.next_sequence();
        let ino = self.names.remove(sequence, path)?;
        self.unlinked.insert(ino);
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path, up_to: u64) -> io::Result<()> {
        self.names.directory(path)?;
        self.names.sync_dir(path, up_to);
        self.collect();
        Ok(())
    }

    pub(super) fn sync_all(&mut self, up_to: u64) {
        self.inodes.values_mut().for_each(|inode| inode.sync(up_to));
        self.names.sync_all(up_to);
        self.collect();
    }

    /// Total bytes and free bytes.
    pub(super) fn space(&self) -> (u64, u64) {
        let capacity = self.faults.capacity_bytes.unwrap_or(UNLIMITED_BYTES);
        (capacity, capacity.saturating_sub(self.used()))
    }

    /// Digest of all writes, in their order: files, offsets and bytes.
    pub(super) fn written_digest(&self) -> u64 {
        self.written
    }

    /// Number of power failures.
    pub(super) fn crashes(&self) -> u64 {
        self.crashes
    }

    /// Simulates a power failure.
    pub(super) fn crash(&mut self) {
        self.crashes += 1;
        for inode in self.inodes.values_mut() {
            inode.crash(&mut self.rng);
        }
        self.names.crash(&mut self.rng);
        let reachable = self.names.reachable();
        self.inodes.retain(|ino, _| reachable.contains(ino));
        self.inodes.values_mut().for_each(|inode| inode.opens = 0);
        self.unlinked.clear();
    }

    fn used(&self) -> u64 {
        self.inodes.values().map(|inode| inode.visible.allocated()).sum::<u64>() * PAGE
    }

    fn check_space(&self, ino: u64, range: &std::ops::Range<u64>) -> io::Result<()> {
        let Some(capacity) = self.faults.capacity_bytes else { return Ok(()) };
        let more = self.inode(ino)?.visible.missing(range) * PAGE;
        if self.used() + more > capacity { Err(errno(libc::ENOSPC)) } else { Ok(()) }
    }

    /// Frees files without a name, an open handle or an unsynced name change that could bring them
    /// back.
    fn collect(&mut self) {
        if self.unlinked.is_empty() {
            return;
        }
        let reachable = self.names.reachable();
        let inodes = &mut self.inodes;
        self.unlinked.retain(|ino| {
            if reachable.contains(ino) {
                return true;
            }
            let open = inodes.get(ino).is_some_and(|inode| inode.opens > 0);
            if !open {
                inodes.remove(ino);
            }
            open
        });
    }
}
