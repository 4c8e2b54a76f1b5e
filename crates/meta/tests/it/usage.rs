//! Inode counts, which survive crashes.

use crate::support::world::{ROOT, World, simulated};
use crate::support::{Client, PARTITIONS};
use kv::{Batch, Engine};
use namespace::keys;
use namespace::record::{PartitionCounters, decode};
use prost::Message;
use types::{InodeId, PartitionId, SetAttr, SetTime, Timestamp};
use wire::{AccessTime, MetaOp, MetaReply, MetadataUsage};

async fn usage(client: &Client) -> MetadataUsage {
    match client.call(MetaOp::Usage).await.unwrap() {
        MetaReply::Usage(usage) => usage,
        other => panic!("{other:?}"),
    }
}

/// Resets the records to those of an earlier version.
fn forget_counts(world: &World) {
    let mut writes = Vec::new();
    for partition in (0..PARTITIONS).map(PartitionId) {
        let key = keys::partition_counters(partition);
        if let Some(value) = world.memory.get(&key).unwrap() {
            let next = PartitionCounters { inodes: None, ..decode(&key, value).unwrap() };
            writes.push((key.to_vec(), Some(next.encode_to_vec().into())));
        }
    }
    world.memory.apply(&[Batch { writes, ..Batch::default() }]).unwrap();
}

#[test]
fn inodes_are_counted_when_they_are_made_and_deleted() {
    simulated(|world| async move {
        let client = world.client(1).await;
        assert_eq!(usage(&client).await, MetadataUsage { inodes: 1, store: None });
        for dir in 0..10 {
            let dir = client.mkdir(ROOT, &format!("d{dir}")).await.unwrap().ino;
            for file in 0..10 {
                client.create(dir, &format!("f{file}")).await.unwrap();
            }
        }
        assert_eq!(usage(&client).await.inodes, 111);
        let dir = client.find(ROOT, "d3").await.unwrap();
        for file in 0..5 {
            let ino = client.unlink(dir, &format!("f{file}")).await.unwrap().ino;
            assert_eq!(usage(&client).await.inodes, 111 - file, "an orphan takes its room");
            client.call(MetaOp::Reclaim { ino, others: Vec::new() }).await.unwrap();
        }
        assert_eq!(usage(&client).await.inodes, 106);
        let world = world.restart().await;
        let client = world.client(2).await;
        assert_eq!(usage(&client).await.inodes, 106);
        world.meta.stop();
        forget_counts(&world);
        let world = world.restart().await;
        let client = world.client(3).await;
        client.create(dir, "new").await.unwrap();
        for _ in 0..2 {
            assert_eq!(usage(&client).await.inodes, 107);
        }
        client.create(dir, "newer").await.unwrap();
        assert_eq!(usage(&client).await.inodes, 108);
        world.meta.stop();
    });
}

#[test]
fn an_access_is_noted_once_and_changes_nothing_else() {
    simulated(|world| async move {
        let client = world.client(1).await;
        let other = world.client(2).await;
        let made = other.create(ROOT, "f").await.unwrap();
        let ino = made.ino;
        let read = async |ino, at| {
            client.call(MetaOp::NoteAccess { accesses: vec![AccessTime { ino, at }] }).await.unwrap();
        };
        let after = |seconds: i64| Timestamp::new(made.ctime.secs + seconds, 0);
        // Its lease isn't recalled: it acknowledges nothing.
        other.grants(MetaOp::Open { ino, requested_lease: Some(wire::LeaseMode::Write) }).await;
        rt::sleep(std::time::Duration::from_secs(8)).await;
        read(ino, Timestamp::new(made.ctime.secs - 1, 0)).await;
        assert_eq!(other.getattr(ino).await.unwrap(), made, "a read before the last change");
        read(ino, after(5)).await;
        let read_first = types::Attr { atime: after(5), ..made };
        assert_eq!(other.getattr(ino).await.unwrap(), read_first);
        read(ino, after(7)).await;
        assert_eq!(other.getattr(ino).await.unwrap(), read_first, "once is enough");
        let set = SetAttr { atime: Some(SetTime::At(Timestamp::new(7, 0))), ..SetAttr::default() };
        let set = other.call(MetaOp::Setattr { ino, set }).await.unwrap();
        let MetaReply::Attr(set) = set else { panic!("{set:?}") };
        read(ino, after(7)).await;
        assert_eq!(other.getattr(ino).await.unwrap(), set, "what was set later stands");
        rt::sleep(std::time::Duration::from_secs(5)).await;
        // A clock that is ahead.
        read(ino, Timestamp::new(i64::MAX, 0)).await;
        let now = other.getattr(ino).await.unwrap();
        assert!(now.atime > set.ctime && now.atime <= rt::now());
        assert_eq!(types::Attr { atime: set.atime, ..now }, set);
        read(InodeId(999), after(7)).await;
    });
}
