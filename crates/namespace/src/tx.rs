//! One command's view of the state: reads through the [`Reader`], with the command's own writes on
//! top.

use crate::keys;
use crate::record::{self, Entry, Inode};
use crate::{Applied, Env, Failure, ReadError, Reader};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use types::{Errno, Error, InodeId, PartitionId};
use wire::MetaReply;

/// The longest name of an entry, in bytes.
pub const MAX_NAME: usize = 255;
/// The first sequence number that a partition uses: 1 is the root's in partition 0, and is skipped
/// in the others.
pub const FIRST_SEQUENCE: u64 = 2;

/// Result of a step of a command.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        match error {
            ReadError::NeedPartition(partition) => Failure::NeedPartition(partition),
            ReadError::Store(error) => Failure::Refused(error),
            ReadError::NotFetched => Failure::NotFetched,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Refused(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Refused(errno.into())
    }
}

/// The slot of a name in a directory, and its entry.
pub(crate) struct Slot {
    key: Vec<u8>,
    /// `None`: the name doesn't exist.
    pub entry: Option<Entry>,
}

/// A command that is being executed.
pub(crate) struct Tx<'a> {
    pub env: &'a Env<'a>,
    pub reader: &'a dyn Reader,
    /// Ordered, so that the same command on the same state always yields the same writes.
    writes: BTreeMap<Vec<u8>, Option<Bytes>>,
}

impl<'a> Tx<'a> {
    pub fn new(env: &'a Env<'a>, reader: &'a dyn Reader) -> Tx<'a> {
        Tx { env, reader, writes: BTreeMap::new() }
    }

    /// Ends the command.
    pub fn finish(self, reply: MetaReply) -> Applied {
        Applied { reply, writes: self.writes.into_iter().collect() }
    }

    /// The record of a key.
    pub fn get<M: Message + Default>(&self, key: &[u8]) -> Outcome<Option<M>> {
        let value = match self.writes.get(key) {
            Some(written) => written.clone(),
            None => self.reader.get(key)?,
        };
        Ok(value.map(|value| record::decode(key, value)).transpose()?)
    }

    /// Stores a record.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, record: &impl Message) {
        let value = record.encode_to_vec();
        debug_assert!(!value.is_empty(), "engines refuse empty values");
        self.writes.insert(key.into(), Some(value.into()));
    }

    /// Deletes the record of a key.
    pub fn delete(&mut self, key: impl Into<Vec<u8>>) {
        self.writes.insert(key.into(), None);
    }

    /// Key-value pairs of a range. Commands scan before they write there, so none of their own
    /// writes are missing in the result.
    pub fn scan(&self, range: &keys::KeyRange, limit: usize) -> Outcome<Vec<(Bytes, Bytes)>> {
        debug_assert!(
            self.writes.range(range.from.clone()..range.to.clone()).next().is_none(),
            "a scan doesn't see the command's own writes"
        );
        Ok(self.reader.scan(&range.from, &range.to, limit)?)
    }

    /// The inode; `ESTALE` if it doesn't exist.
    pub fn inode(&self, ino: InodeId) -> Outcome<Inode> {
        self.get(&keys::inode(ino))?.ok_or_else(|| Errno::ESTALE.into())
    }

    pub fn put_inode(&mut self, ino: InodeId, inode: &Inode) {
        self.put(keys::inode(ino), inode);
    }

    /// Reads, changes and stores an inode; returns the changed inode.
    pub fn change_inode(&mut self, ino: InodeId, change: impl FnOnce(&mut Inode)) -> Outcome<Inode> {
        let mut inode = self.inode(ino)?;
        change(&mut inode);
        self.put_inode(ino, &inode);
        Ok(inode)
    }

    /// The inode of a directory in which a name is looked up, created or removed; `ENOTDIR` for any
    /// other inode. A deleted one has no names: `ENOENT`, as on a local file system, and not
    /// `ESTALE`.
    pub fn directory(&self, ino: InodeId) -> Outcome<Inode> {
        let inode = self.get::<Inode>(&keys::inode(ino))?.ok_or(Errno::ENOENT)?;
        if inode.is_directory() { Ok(inode) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// A directory that can get entries; `ENOENT` if it was removed.
    pub fn live_directory(&self, ino: InodeId) -> Outcome<Inode> {
        let inode = self.directory(ino)?;
        if inode.nlink > 0 { Ok(inode) } else { Err(Errno::ENOENT.into()) }
    }

    /// The inode of a regular file; `EISDIR` for a directory, `EINVAL` for any other inode.
    pub fn regular(&self, ino: InodeId) -> Outcome<Inode> {
        let inode = self.inode(ino)?;
        if inode.is_regular() {
            Ok(inode)
        } else if inode.is_directory() {
            Err(Errno::EISDIR.into())
        } else {
            Err(Errno::EINVAL.into())
        }
    }

    /// The inode that an entry of `dir` names. A missing one is damage.
    pub fn named_inode(&self, dir: InodeId, entry: &Entry) -> Outcome<Inode> {
        self.get(&keys::inode(entry.id()))?.ok_or_else(|| {
            let message = format!("directory {dir} names inode {}, which does not exist", entry.ino);
            Error::new(Errno::EIO, message).into()
        })
    }

    /// The slot of a name in a directory, with its entry.
    pub fn slot(&self, dir: InodeId, name: &[u8]) -> Outcome<Slot> {
        let key = self.key_of(dir, name);
        let entry = self.get(&key)?;
        Ok(Slot { key, entry })
    }

    /// The key of a name of a directory.
    pub fn key_of(&self, dir: InodeId, name: &[u8]) -> Vec<u8> {
        keys::entry(dir, keys::name_hash(self.env.hash_key, name), name)
    }

    /// Stores the entry of a slot.
    pub fn fill(&mut self, slot: Slot, entry: Entry) {
        self.put(slot.key, &entry);
    }

    /// Removes the entry of a slot.
    pub fn clear(&mut self, slot: Slot) {
        self.delete(slot.key);
    }

    /// Returns an unused inode number, for an inode that the command creates.
    pub fn allocate(&mut self, partition: PartitionId) -> Outcome<InodeId> {
        let ino = self.allocate_range(partition, 1)?;
        self.count_created(ino)?;
        Ok(ino)
    }

    /// Counts an inode that the command creates.
    pub fn count_created(&mut self, ino: InodeId) -> Outcome<()> {
        self.count(ino.partition(), |inodes| inodes + 1)
    }

    /// Counts an inode that the command deletes.
    pub fn count_deleted(&mut self, ino: InodeId) -> Outcome<()> {
        self.count(ino.partition(), |inodes| inodes.saturating_sub(1))
    }

    fn count(&mut self, partition: PartitionId, change: impl FnOnce(u64) -> u64) -> Outcome<()> {
        let counters = self.partition_counters(partition)?;
        if let Some(inodes) = counters.inodes {
            self.put(
                keys::partition_counters(partition),
                &record::PartitionCounters { inodes: Some(change(inodes)), ..counters },
            );
        }
        Ok(())
    }

    /// Reserves consecutive unused inode numbers and returns the first. They may be used later, or
    /// never.
    pub fn allocate_range(&mut self, partition: PartitionId, count: u32) -> Outcome<InodeId> {
        let before = self.partition_counters(partition)?;
        let (sequence, next) = (before.sequence, before.sequence.saturating_add(u64::from(count)));
        if next > 1 << InodeId::SEQUENCE_BITS {
            let message = format!("partition {partition} has used up its inode numbers");
            return Err(Error::new(Errno::ENOSPC, message).into());
        }
        self.put(
            keys::partition_counters(partition),
            &record::PartitionCounters { sequence: next, ..before },
        );
        Ok(InodeId::new(partition, sequence))
    }

    /// Whether a number was assigned to an inode or reserved for a client.
    pub fn is_allocated(&self, ino: InodeId) -> Outcome<bool> {
        let (partition, sequence) = (ino.partition(), ino.sequence());
        let given = FIRST_SEQUENCE..self.partition_counters(partition)?.sequence;
        // Chunk files have ids besides those of inodes.
        Ok(given.contains(&sequence) && ino == InodeId::new(partition, sequence))
    }

    fn partition_counters(&self, partition: PartitionId) -> Outcome<record::PartitionCounters> {
        let counters = self.get::<record::PartitionCounters>(&keys::partition_counters(partition))?;
        Ok(counters.unwrap_or(record::PartitionCounters { sequence: FIRST_SEQUENCE, inodes: Some(0) }))
    }

    /// Records that an inode has lost its last name.
    pub fn put_orphan(&mut self, ino: InodeId) {
        let session = Some(self.env.session.0);
        self.put(keys::orphan(ino), &record::Orphan { session });
    }
}

/// Refuses invalid names. `.` and `..` are left to the operations, which answer them differently.
pub(crate) fn check_name(name: &[u8]) -> Outcome<()> {
    if name.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if name.len() > MAX_NAME {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

/// True for `.` and `..`, which name existing directories and can't be created, moved or removed.
pub(crate) fn is_dot_name(name: &[u8]) -> bool {
    name == b"." || name == b".."
}
