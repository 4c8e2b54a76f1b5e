//! Repair of replicas at the request of a file system check, and content that is given up.

use super::cluster::{Cluster, GROUP, INO, LinkState, MIB, with_members_on_disk};
use super::damage::while_stopped;
use chunkstore::Store;
use std::fs::{File, FileTimes, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use types::{ByteRange, ChunkFileId, Errno, MemberState, Result, TargetId};
use wire::{GroupRole, StorageOp, StorageReply};

fn chunk_file(cluster: &Cluster, target: u32) -> File {
    let store = Store::group_dir(&cluster.dir.join(target.to_string()), GROUP);
    OpenOptions::new().write(true).open(Store::chunk_file_path(&store, INO)).unwrap()
}

async fn repair_from(cluster: &Cluster, from: u32, to: u32, end: u64) -> Result<StorageReply> {
    let range = ByteRange::new(0, end);
    let op = StorageOp::CopyReplica { from: TargetId(from), to: TargetId(to), range };
    cluster.ask_file(INO, (0, None), op, None).await
}

async fn give_up(cluster: &Cluster, end: u64) -> Vec<(ChunkFileId, ByteRange)> {
    let op = StorageOp::DiscardLost { range: ByteRange::new(0, end) };
    match cluster.ask_file(INO, (0, None), op, None).await.unwrap() {
        StorageReply::Regions { regions, next: None } => regions,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_replica_is_repaired_from_another() {
    with_members_on_disk(2, |cluster| async move {
        let data: Vec<u8> = (0..2 * MIB as usize + 5000).map(|at| (at / 700) as u8 | 1).collect();
        cluster.write(INO, 3, 0, &data).await;
        let end = data.len() as u64;
        for (from, to) in [(1, 2), (2, 1)] {
            let file = chunk_file(&cluster, to);
            file.write_all_at(b"damage", 9000).unwrap();
            file.write_all_at(b"damage", end - 10).unwrap();
            repair_from(&cluster, from, to, end).await.unwrap();
            cluster.require_equal().await;
            file.set_len(MIB + 77).unwrap();
            repair_from(&cluster, from, to, end).await.unwrap();
            cluster.require_equal().await;
            file.set_len(end + 9000).unwrap();
            repair_from(&cluster, from, to, end).await.unwrap();
            cluster.require_equal().await;
            assert!(cluster.read(INO, data.len()).await == data);
        }
        assert!(!cluster.management.group().is_degraded());
    });
}

/// No application has changed the file: it keeps its modification time.
#[test]
fn repair_preserves_mtime() {
    with_members_on_disk(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; 20_000]).await;
        let age =
            || [1, 2].map(|target| chunk_file(&cluster, target).metadata().unwrap().modified().unwrap());
        let before = age();
        rt::sleep(Duration::from_millis(50)).await;
        let old = FileTimes::new().set_modified(before[1]);
        for target in [1, 2] {
            let file = chunk_file(&cluster, target);
            file.write_all_at(b"damage", 9000).unwrap();
            file.set_times(old).unwrap();
            repair_from(&cluster, 3 - target, target, 20_000).await.unwrap();
            cluster.require_equal().await;
            assert!(age().iter().all(|time| *time <= before[0].max(before[1])), "mended by a check");
            chunk_file(&cluster, target).write_all_at(b"damage", 9000).unwrap();
            chunk_file(&cluster, target).set_times(old).unwrap();
            let heal = StorageOp::Repair { range: ByteRange::new(0, 20_000) };
            cluster.ask_file(INO, (0, None), heal, None).await.unwrap();
            cluster.require_equal().await;
            assert!(age().iter().all(|time| *time <= before[0].max(before[1])), "healed");
        }
        assert!(!cluster.management.group().is_degraded());
    });
}

#[test]
fn a_missing_replica_is_restored_with_its_holes() {
    with_members_on_disk(2, |cluster| async move {
        cluster.write(INO, 3, 5 * MIB, &[7; 3000]).await;
        let delete = (1, GroupRole::Member { sequence: 0, committed: 0 });
        cluster.ask_one(2, delete, (0, None), StorageOp::Delete, None).await.unwrap();
        assert!(cluster.on_disk(2).await.is_empty());
        repair_from(&cluster, 1, 2, 5 * MIB + 3000).await.unwrap();
        cluster.require_equal().await;
        use std::os::unix::fs::MetadataExt;
        let blocks = chunk_file(&cluster, 2).metadata().unwrap().blocks();
        assert!(blocks * 512 < MIB, "{blocks} blocks of what is a hole nearly everywhere");
    });
}

/// Its checksums still exist.
#[test]
fn a_removed_replica_is_restored() {
    with_members_on_disk(2, |cluster| async move {
        let data: Vec<u8> = (0..2 * MIB as usize + 5000).map(|at| (at / 700) as u8 | 1).collect();
        cluster.write(INO, 3, 0, &data).await;
        for (from, to) in [(1, 2), (2, 1)] {
            while_stopped(&cluster, |dir| {
                let store = Store::group_dir(&dir.join(to.to_string()), GROUP);
                std::fs::remove_file(Store::chunk_file_path(&store, INO)).unwrap();
            })
            .await;
            repair_from(&cluster, from, to, data.len() as u64).await.unwrap();
            cluster.require_equal().await;
            assert!(cluster.read(INO, data.len()).await == data);
        }
        assert!(!cluster.management.group().is_degraded());
    });
}

#[test]
fn a_member_that_can_not_be_repaired_is_ejected() {
    with_members_on_disk(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[7; 10_000]).await;
        // Damage at the source isn't copied, and no member is ejected.
        chunk_file(&cluster, 1).write_all_at(b"damage", 5000).unwrap();
        assert_eq!(repair_from(&cluster, 1, 2, 10_000).await.unwrap_err().errno, Errno::EIO);
        assert!(!cluster.management.group().is_degraded());
        assert_eq!(repair_from(&cluster, 1, 1, 10_000).await.unwrap_err().errno, Errno::EINVAL);
        let as_client =
            StorageOp::CopyReplica { from: TargetId(2), to: TargetId(1), range: ByteRange::new(0, 4096) };
        let refused = cluster.ask_file(INO, (3, None), as_client, None).await.unwrap_err();
        assert_eq!(refused.errno, Errno::EOPNOTSUPP);
        cluster.set_link(2, LinkState::Closed);
        repair_from(&cluster, 1, 2, 4096).await.unwrap_err();
        assert!(!cluster.management.group().is_degraded(), "it could not be looked at: nothing was begun");
        cluster.set_link(2, LinkState::Open);
        repair_from(&cluster, 2, 1, 10_000).await.unwrap();
        cluster.require_equal().await;
    });
}

/// A check surveys one replica after the other, and repairs later: applications append meanwhile.
#[test]
fn repair_keeps_data_appended_since_the_check() {
    with_members_on_disk(2, |cluster| async move {
        let mut data: Vec<u8> = (0..5000).map(|at| (at / 700) as u8 | 1).collect();
        cluster.write(INO, 3, 0, &data).await;
        cluster.write(INO, 3, 5000, &[9; 1000]).await;
        data.extend([9; 1000]);
        for (from, to) in [(1, 2), (2, 1)] {
            chunk_file(&cluster, to).write_all_at(b"damage", 4500).unwrap();
            repair_from(&cluster, from, to, 5000).await.unwrap();
            cluster.require_equal().await;
            assert_eq!(cluster.on_disk(to).await[&INO], data);
        }
        assert!(!cluster.management.group().is_degraded());
    });
}

#[test]
fn only_content_without_a_replica_is_given_up() {
    with_members_on_disk(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[7; 20_000]).await;
        chunk_file(&cluster, 1).write_all_at(b"damage", 5000).unwrap();
        chunk_file(&cluster, 2).write_all_at(b"damage", 9000).unwrap();
        assert!(give_up(&cluster, 20_000).await.is_empty(), "each has what the other one hasn't");
        chunk_file(&cluster, 1).write_all_at(b"damage", 9001).unwrap();
        assert_eq!(give_up(&cluster, 20_000).await, [(INO, ByteRange::new(8192, 12_288))]);
        repair_from(&cluster, 2, 1, 20_000).await.unwrap();
        cluster.require_equal().await;
        let expected = [vec![7; 8192], vec![0; 4096], vec![7; 20_000 - 12_288]].concat();
        assert!(cluster.read(INO, 20_000).await == expected);
        // While a member is out of sync, its content is unknown.
        cluster.management.set(2, MemberState::NeedsResync);
        let op = StorageOp::DiscardLost { range: ByteRange::new(0, 4096) };
        assert_eq!(cluster.ask_file(INO, (0, None), op, None).await.unwrap_err().errno, Errno::EBUSY);
    });
}
