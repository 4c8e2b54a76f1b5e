//! Damaged access control lists, keys and records: each is refused, or stays the same when it is
//! stored again.

use bytes::Bytes;
use namespace::{fuzzing, keys, record};
use prost::Message;
use types::{InodeId, PartitionId, SessionId, StripePattern};

/// Random changes of each image.
const ROUNDS: usize = 2000;

#[test]
fn damaged_access_control_lists_are_refused() {
    mutate::confined(|| {
        let entry = |tag: u16, permissions: u16, id: u32| {
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let plain = |tag, permissions| entry(tag, permissions, u32::MAX);
        let short = [vec![2, 0, 0, 0], plain(1, 6), plain(4, 4), plain(32, 0)].concat();
        let names = [entry(2, 7, 1000), entry(2, 5, 7), plain(4, 4), entry(8, 5, 100), plain(16, 7)].concat();
        let long = [vec![2, 0, 0, 0], plain(1, 6), names, plain(32, 0)].concat();
        for image in [short, long] {
            assert!(namespace::acl::parse(&image).is_ok());
            mutate::damage(&image, ROUNDS, fuzzing::acl);
        }
    });
}

#[test]
fn damaged_keys_are_none() {
    mutate::confined(|| {
        let ino = InodeId::new(PartitionId(3), 77);
        let images = [
            keys::inode(ino).to_vec(),
            keys::entry(ino, 99, b"name"),
            keys::xattr(ino, b"user.name"),
            keys::writing(ino, SessionId(9)),
            keys::operation(SessionId(9), 5),
        ];
        for image in images {
            mutate::damage(&image, ROUNDS / 4, fuzzing::key);
        }
    });
}

fn inode() -> record::Inode {
    let time = |secs| Some(record::Time { secs, nanos: 7 });
    record::Inode {
        mode: 0o100644,
        nlink: 2,
        uid: 3,
        gid: 4,
        size: 6 << 20,
        blocks: 12288,
        mtime: time(-9),
        ctime: time(10),
        pattern: Some((&StripePattern::default()).into()),
        layout: Some(layout()),
        xattr_names: 19,
        known_lens: vec![2 << 20, 0, 4097],
        ..record::Inode::default()
    }
}

fn layout() -> record::Layout {
    record::Layout { chunk_size: 1 << 20, pool: 1, scheme: 2, groups: vec![1, 300, 7], slots: vec![0, 1] }
}

#[test]
fn damaged_records_are_refused() {
    mutate::confined(|| {
        let directory =
            record::Inode { mode: 0o40755, parent: 1, target: Bytes::from_static(b"to"), ..inode() };
        let images = [
            inode().encode_to_vec(),
            directory.encode_to_vec(),
            layout().encode_to_vec(),
            record::Pattern::from(&StripePattern::default()).encode_to_vec(),
            record::Entry { ino: 300, kind: 0o40000 }.encode_to_vec(),
            record::Xattr { value: Some(Bytes::from_static(b"value")) }.encode_to_vec(),
            record::Writing { writing: true, truncate_to: Some(4096) }.encode_to_vec(),
            record::Migrating { pool: 2, scheme: Some(3) }.encode_to_vec(),
        ];
        for image in images {
            mutate::damage(&image, ROUNDS, fuzzing::record);
        }
    });
}
