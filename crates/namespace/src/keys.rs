//! The key schema.
//!
//! Every key is `[partition u16][kind u8][id u64]...`, big-endian. So a partition is one contiguous
//! range, and everything of one kind within it is another. The partition of a key is that of its
//! inode.
//!
//! | key | id | then | value |
//! |---|---|---|---|
//! | inode | inode | | [`record::Inode`](crate::record::Inode) |
//! | entry | directory | hash u64, name | [`record::Entry`](crate::record::Entry) |
//! | xattr | inode | name | [`record::Xattr`](crate::record::Xattr) |
//! | inline | inode | | [`record::Inline`](crate::record::Inline) |
//! | orphan | inode | | [`record::Orphan`](crate::record::Orphan): no name is left, but the inode is still in use |
//! | writing | inode | session u64 | [`record::Writing`](crate::record::Writing): its chunk files may differ from the inode |
//! | doomed | inode | | [`record::Layout`](crate::record::Layout): chunk files of this name that belong to no file any more and have to be deleted |
//! | migrating | inode | | [`record::Migrating`](crate::record::Migrating): its chunk files are migrating to groups of another pool or scheme |
//! | partition counters | 0 | | [`record::PartitionCounters`](crate::record::PartitionCounters): the sequence number of the partition's next inode, and the number of inodes |
//!
//! The hash of an entry has 63 bits, so that it is a directory offset that every application can
//! store. Its top 16 bits (of the 63) are the entry's *bucket*: a directory that outgrows one
//! executor is split by ranges of buckets, which are contiguous in this order already.
//!
//! Partition [`GLOBAL`] holds records that belong to no inode: owners of partitions, operations and
//! sessions.

use bytes::Bytes;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use types::{ChunkFileId, InodeId, PartitionId, SessionId};

/// The partition of keys that belong to no inode. It never contains inodes.
pub const GLOBAL: PartitionId = PartitionId(0xFFFF);
/// Directory offsets below this one are reserved: 0 is the start, and a front end may use others
/// for `.` and `..`.
pub const FIRST_COOKIE: u64 = 16;
/// The largest directory offset.
pub const LAST_COOKIE: u64 = u64::MAX >> 1;
/// Length of a key that consists of an id only.
pub const ID_KEY_LEN: usize = 11;

/// A key that consists of an id only.
pub type IdKey = [u8; ID_KEY_LEN];

const INODE: u8 = 1;
const ENTRY: u8 = 2;
const XATTR: u8 = 3;
const INLINE: u8 = 4;
const ORPHAN: u8 = 5;
const WRITING: u8 = 6;
const DOOMED: u8 = 7;
const PARTITION_COUNTERS: u8 = 8;
const MIGRATING: u8 = 9;
const OWNER: u8 = 16;
const OPERATION: u8 = 17;
const SESSION: u8 = 18;

/// A decoded key.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Key {
    Inode(InodeId),
    Entry { dir: InodeId, hash: u64, name: Bytes },
    Xattr { ino: InodeId, name: Bytes },
    Inline(InodeId),
    Orphan(InodeId),
    Writing { ino: InodeId, session: SessionId },
    Doomed(ChunkFileId),
    Migrating(InodeId),
    PartitionCounters(PartitionId),
    Owner(PartitionId),
    Operation { session: SessionId, slot: u64 },
    Session(SessionId),
}

/// A range of keys for a scan: `from <= key < to`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct KeyRange {
    pub from: Vec<u8>,
    pub to: Vec<u8>,
}

/// Offset of an entry in its directory: 63 bits of the SipHash-1-3 of the name, outside the
/// reserved offsets. Keyed, so that users can't create collisions on purpose.
pub fn name_hash(hash_key: (u64, u64), name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(hash_key.0, hash_key.1);
    hasher.write(name);
    (hasher.finish() >> 1).max(FIRST_COOKIE)
}

/// The partition of a new directory: by hash, so that directories spread over metadata services.
pub fn directory_partition(
    hash_key: (u64, u64),
    partitions: u16,
    parent: InodeId,
    name: &[u8],
) -> PartitionId {
    let mut hasher = SipHasher13::new_with_keys(hash_key.0, hash_key.1);
    hasher.write(&parent.0.to_be_bytes());
    hasher.write(name);
    PartitionId((hasher.finish() % partitions.max(1) as u64) as u16)
}

fn id_key(partition: PartitionId, kind: u8, id: u64) -> IdKey {
    let mut key = [0; ID_KEY_LEN];
    key[..2].copy_from_slice(&partition.0.to_be_bytes());
    key[2] = kind;
    key[3..].copy_from_slice(&id.to_be_bytes());
    key
}

fn id_key_then(partition: PartitionId, kind: u8, id: u64, rest: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(ID_KEY_LEN + rest.iter().map(|part| part.len()).sum::<usize>());
    key.extend_from_slice(&id_key(partition, kind, id));
    for part in rest {
        key.extend_from_slice(part);
    }
    key
}

/// Key of an inode.
pub fn inode(ino: InodeId) -> IdKey {
    id_key(ino.partition(), INODE, ino.0)
}

/// Key of an entry, given the hash of its name.
pub fn entry(dir: InodeId, hash: u64, name: &[u8]) -> Vec<u8> {
    id_key_then(dir.partition(), ENTRY, dir.0, &[&hash.to_be_bytes(), name])
}

/// Key of an extended attribute.
pub fn xattr(ino: InodeId, name: &[u8]) -> Vec<u8> {
    id_key_then(ino.partition(), XATTR, ino.0, &[name])
}

/// Key of inline content.
pub fn inline(ino: InodeId) -> IdKey {
    id_key(ino.partition(), INLINE, ino.0)
}

/// Key of the orphan record of an inode without a name.
pub fn orphan(ino: InodeId) -> IdKey {
    id_key(ino.partition(), ORPHAN, ino.0)
}

/// Key of a session's write record of a file.
pub fn writing(ino: InodeId, session: SessionId) -> Vec<u8> {
    id_key_then(ino.partition(), WRITING, ino.0, &[&session.0.to_be_bytes()])
}

/// Key of the doomed record of chunk files that have to be deleted.
pub fn doomed(name: ChunkFileId) -> IdKey {
    id_key(name.partition(), DOOMED, name.0)
}

/// Key of the record that a file is migrating to other groups.
pub fn migrating(ino: InodeId) -> IdKey {
    id_key(ino.partition(), MIGRATING, ino.0)
}

/// Key of the counters of a partition.
pub fn partition_counters(partition: PartitionId) -> IdKey {
    id_key(partition, PARTITION_COUNTERS, 0)
}

/// Key of the owner of a partition; its value belongs to the metadata service.
pub fn owner(partition: PartitionId) -> IdKey {
    id_key(GLOBAL, OWNER, partition.0 as u64)
}

/// Key of the record of the last change in one of a session's slots; its value belongs to the
/// metadata service.
pub fn operation(session: SessionId, slot: u32) -> Vec<u8> {
    id_key_then(GLOBAL, OPERATION, session.0, &[&u64::from(slot).to_be_bytes()])
}

/// Key of the record of a session; its value belongs to the metadata service.
pub fn session(session: SessionId) -> IdKey {
    id_key(GLOBAL, SESSION, session.0)
}

/// All records of owners.
pub fn all_owners() -> KeyRange {
    KeyRange { from: id_key(GLOBAL, OWNER, 0).to_vec(), to: id_key(GLOBAL, OWNER + 1, 0).to_vec() }
}

/// All records of sessions.
pub fn all_sessions() -> KeyRange {
    KeyRange { from: id_key(GLOBAL, SESSION, 0).to_vec(), to: id_key(GLOBAL, SESSION + 1, 0).to_vec() }
}

/// All operation records of a session.
pub fn operations_of(session: SessionId) -> KeyRange {
    range_of_id(GLOBAL, OPERATION, session.0)
}

/// The partition that a key belongs to; [`GLOBAL`] for one that is too short to be a key.
pub fn partition_of_key(key: &[u8]) -> PartitionId {
    key.first_chunk().map_or(GLOBAL, |bytes| PartitionId(u16::from_be_bytes(*bytes)))
}

/// All entries of a directory whose offset is above `cookie`.
pub fn entries_after(dir: InodeId, cookie: u64) -> KeyRange {
    let hash = cookie.min(LAST_COOKIE) + 1;
    KeyRange { from: entry(dir, hash, b""), to: range_of_id(dir.partition(), ENTRY, dir.0).to }
}

/// All entries of a directory with this offset.
pub fn entries_at(dir: InodeId, cookie: u64) -> KeyRange {
    KeyRange { from: entry(dir, cookie, b""), to: entry(dir, cookie + 1, b"") }
}

/// All extended attributes of an inode.
pub fn xattrs_of(ino: InodeId) -> KeyRange {
    range_of_id(ino.partition(), XATTR, ino.0)
}

/// All write records of an inode.
pub fn writing_of(ino: InodeId) -> KeyRange {
    range_of_id(ino.partition(), WRITING, ino.0)
}

/// All inodes of a partition above `after`.
pub fn inodes_after(partition: PartitionId, after: InodeId) -> KeyRange {
    range_after(partition, INODE, after)
}

/// All orphans of a partition above `after`.
pub fn orphans_after(partition: PartitionId, after: InodeId) -> KeyRange {
    range_after(partition, ORPHAN, after)
}

/// All write records of a partition on inodes above `after`.
pub fn writing_after(partition: PartitionId, after: InodeId) -> KeyRange {
    range_after(partition, WRITING, after)
}

/// All doomed files of a partition above `after`.
pub fn doomed_after(partition: PartitionId, after: ChunkFileId) -> KeyRange {
    range_after(partition, DOOMED, InodeId(after.0))
}

/// All files of a partition above `after` that are migrating to other groups.
pub fn migrating_after(partition: PartitionId, after: InodeId) -> KeyRange {
    range_after(partition, MIGRATING, after)
}

/// Every key of a partition.
pub fn all_of(partition: PartitionId) -> KeyRange {
    let from = partition.0.to_be_bytes().to_vec();
    let to = match partition.0.checked_add(1) {
        Some(next) => next.to_be_bytes().to_vec(),
        None => vec![0xFF; 3],
    };
    KeyRange { from, to }
}

fn range_of_id(partition: PartitionId, kind: u8, id: u64) -> KeyRange {
    let to = match id.checked_add(1) {
        Some(next) => id_key(partition, kind, next),
        None => id_key(partition, kind + 1, 0),
    };
    KeyRange { from: id_key(partition, kind, id).to_vec(), to: to.to_vec() }
}

fn range_after(partition: PartitionId, kind: u8, after: InodeId) -> KeyRange {
    KeyRange {
        from: id_key(partition, kind, after.0.saturating_add(1)).to_vec(),
        to: id_key(partition, kind + 1, 0).to_vec(),
    }
}

/// The hash in the key of an entry; `None` for any other key.
pub fn entry_hash(key: &[u8]) -> Option<u64> {
    let (head, rest) = key.split_first_chunk::<ID_KEY_LEN>()?;
    if head[2] == ENTRY { rest.first_chunk().map(|hash| u64::from_be_bytes(*hash)) } else { None }
}

/// The inode whose attributes, names, extended attributes or content a key belongs to; `None` for
/// any other key.
pub fn inode_of_key(key: &[u8]) -> Option<InodeId> {
    let head = key.first_chunk::<ID_KEY_LEN>()?;
    let is_part = matches!(head[2], INODE | ENTRY | XATTR | INLINE | ORPHAN | WRITING);
    is_part.then(|| {
        InodeId(u64::from_be_bytes([head[3], head[4], head[5], head[6], head[7], head[8], head[9], head[10]]))
    })
}

/// Decodes a key; `None` if it doesn't belong to this schema.
pub fn decode_key(key: &[u8]) -> Option<Key> {
    let (head, rest) = key.split_first_chunk::<ID_KEY_LEN>()?;
    let partition = partition_of_key(head);
    let id = u64::from_be_bytes(*head.last_chunk::<8>()?);
    let ino = InodeId(id);
    let kind = head[2];
    let at_home = match kind {
        ..PARTITION_COUNTERS | MIGRATING => ino.partition() == partition,
        PARTITION_COUNTERS => true,
        _ => partition == GLOBAL,
    };
    if !at_home {
        return None;
    }
    match (kind, rest.len()) {
        (INODE, 0) => Some(Key::Inode(ino)),
        (ENTRY, _) => {
            let (hash, name) = rest.split_first_chunk::<8>()?;
            let hash = u64::from_be_bytes(*hash);
            Some(Key::Entry { dir: ino, hash, name: Bytes::copy_from_slice(name) })
        }
        (XATTR, _) => Some(Key::Xattr { ino, name: Bytes::copy_from_slice(rest) }),
        (INLINE, 0) => Some(Key::Inline(ino)),
        (ORPHAN, 0) => Some(Key::Orphan(ino)),
        (WRITING, 8) => {
            Some(Key::Writing { ino, session: SessionId(u64::from_be_bytes(rest.try_into().ok()?)) })
        }
        (DOOMED, 0) => Some(Key::Doomed(ChunkFileId(id))),
        (MIGRATING, 0) => Some(Key::Migrating(ino)),
        (PARTITION_COUNTERS, 0) if id == 0 => Some(Key::PartitionCounters(partition)),
        (OWNER, 0) => Some(Key::Owner(PartitionId(u16::try_from(id).ok()?))),
        (OPERATION, 8) => {
            let slot = u64::from_be_bytes(rest.try_into().ok()?);
            Some(Key::Operation { session: SessionId(id), slot })
        }
        (SESSION, 0) => Some(Key::Session(SessionId(id))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ChunkSlot;

    #[test]
    fn every_key_decodes_to_what_it_was_made_of() {
        let ino = InodeId::new(PartitionId(3), 77);
        let (session, name) = (SessionId(9), Bytes::from_static(b"name"));
        let cases: Vec<(Vec<u8>, Key)> = vec![
            (inode(ino).to_vec(), Key::Inode(ino)),
            (entry(ino, 99, &name), Key::Entry { dir: ino, hash: 99, name: name.clone() }),
            (xattr(ino, &name), Key::Xattr { ino, name: name.clone() }),
            (inline(ino).to_vec(), Key::Inline(ino)),
            (orphan(ino).to_vec(), Key::Orphan(ino)),
            (writing(ino, session), Key::Writing { ino, session }),
            (doomed(ino.chunk_file(ChunkSlot(1))).to_vec(), Key::Doomed(ino.chunk_file(ChunkSlot(1)))),
            (migrating(ino).to_vec(), Key::Migrating(ino)),
            (partition_counters(PartitionId(3)).to_vec(), Key::PartitionCounters(PartitionId(3))),
            (owner(PartitionId(3)).to_vec(), Key::Owner(PartitionId(3))),
            (operation(session, 5), Key::Operation { session, slot: 5 }),
            (super::session(session).to_vec(), Key::Session(session)),
        ];
        for (key, decoded) in cases {
            assert_eq!(decode_key(&key), Some(decoded.clone()), "{key:?}");
            let of_inode = !matches!(
                decoded,
                Key::Doomed(_)
                    | Key::Migrating(_)
                    | Key::PartitionCounters(_)
                    | Key::Owner(_)
                    | Key::Operation { .. }
                    | Key::Session(_)
            );
            assert_eq!(inode_of_key(&key), of_inode.then_some(ino));
            let global = matches!(decoded, Key::Owner(_) | Key::Operation { .. } | Key::Session(_));
            assert_eq!(partition_of_key(&key), if global { GLOBAL } else { PartitionId(3) });
        }
    }

    #[test]
    fn a_foreign_key_is_refused() {
        let ino = InodeId::new(PartitionId(3), 77);
        let mut misplaced = inode(ino);
        misplaced[1] = 4;
        assert_eq!(decode_key(&misplaced), None);
        assert_eq!(decode_key(b""), None);
        assert_eq!(decode_key(&inode(ino)[..10]), None);
        assert_eq!(decode_key(&[inode(ino).as_slice(), b"x"].concat()), None);
        assert_eq!(decode_key(&writing(ino, SessionId(1))[..15]), None);
    }

    #[test]
    fn keys_and_hashes_are_frozen() {
        let ino = InodeId::new(PartitionId(0x0102), 0x0304);
        assert_eq!(inode(ino), [1, 2, 1, 0, 1, 2, 0, 0, 0, 3, 4]);
        assert_eq!(
            entry(ino, 0x1122_3344_5566_7788, b"n"),
            [1, 2, 2, 0, 1, 2, 0, 0, 0, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, b'n']
        );
        assert_eq!(owner(PartitionId(2)), [255, 255, 16, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(session(SessionId(2)), [255, 255, 18, 0, 0, 0, 0, 0, 0, 0, 2]);
        // As computed by an independent implementation of SipHash-1-3.
        assert_eq!(name_hash((1, 2), b"hello"), 8_296_376_634_697_234_083);
        assert_eq!(directory_partition((1, 2), 64, InodeId::ROOT, b"hello"), PartitionId(19));
    }

    #[test]
    fn a_range_after_an_offset_leaves_out_that_offset_and_other_directories() {
        let dir = InodeId::new(PartitionId(0), 5);
        let range = entries_after(dir, 20);
        let inside = |key: Vec<u8>| range.from <= key && key < range.to;
        assert!(!inside(entry(dir, 20, b"\xff\xff")));
        assert!(inside(entry(dir, 21, b"")));
        assert!(inside(entry(dir, LAST_COOKIE, b"\xff")));
        assert!(!inside(entry(InodeId(6), 30, b"a")));
        let past_the_end = entries_after(dir, u64::MAX);
        assert!(past_the_end.from < past_the_end.to);
        assert!(past_the_end.from > entry(dir, LAST_COOKIE, &[0xFF; 255]));
    }

    #[test]
    fn the_range_of_a_partition_holds_its_keys_only() {
        for partition in [PartitionId(0), PartitionId(3), GLOBAL] {
            let range = all_of(partition);
            let counters_key = partition_counters(partition).to_vec();
            assert!(range.from <= counters_key && counters_key < range.to);
        }
        assert!(partition_counters(PartitionId(4)).to_vec() >= all_of(PartitionId(3)).to);
    }
}
