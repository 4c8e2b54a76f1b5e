//! Requests of the metadata service to mirrored groups.

use super::cluster::{Application, CHUNK, Cluster, GROUPS, RDWR, ROOT, pair, run_lengths, with_cluster};
use super::group::{Behaviour, copy};
use chunkstore::{Durability, IoPath};
use rt::IoBuf;
use std::time::Duration;
use types::{ChunkFileId, GroupId, InodeId, SetAttr, TargetId};
use wire::mgmt::ReconcileFiles;

async fn copies(cluster: &Cluster, name: ChunkFileId) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for group in GROUPS {
        for target in pair(group) {
            if cluster.chunk_files(target.0, group).await.contains(&name) {
                found.push((target.0, group));
            }
        }
    }
    found
}

#[test]
fn a_deleted_file_leaves_no_replica() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("a").await;
        client.fill(&file, 0, 3 * CHUNK, 1).await;
        assert_eq!(copies(&cluster, file.ino().first_chunk_file()).await.len(), 6);
        // Deleted while one member of each of two groups is down: its replicas are deleted by the
        // resync.
        cluster.groups.set_behaviour(1, Behaviour::Hangs);
        cluster.take_out(1);
        let ino = file.ino();
        client.unlink(ROOT, InodeId::ROOT, b"a").await.unwrap();
        client.release(file).await;
        client.forget(ino, 1);
        client.shutdown().await.unwrap();
        rt::sleep(Duration::from_secs(30)).await;
        assert_eq!(copies(&cluster, ino.first_chunk_file()).await, [(1, 11), (1, 13)]);
    });
}

#[test]
fn size_recovery_uses_the_replicas() {
    with_cluster(async |cluster| {
        let (dead, client) = (cluster.client().await, cluster.client().await);
        let file = dead.create_file("a").await;
        dead.fill(&file, 0, 2 * CHUNK + 5, 1).await;
        cluster.groups.set_behaviour(2, Behaviour::Hangs);
        let held = cluster.clone();
        super::cluster::later(3000, move || held.take_out(2));
        cluster.meta().evict_session(types::SessionId(2)).unwrap();
        let same = client.open_named("a", RDWR).await;
        assert_eq!(client.getattr(same.ino()).await.unwrap().size, 2 * CHUNK as u64 + 5);
        assert_eq!(run_lengths(&client.read_all(&same).await), [(1, 2 * CHUNK + 5)]);
    });
}

#[test]
fn a_truncation_truncates_all_replicas() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("a").await;
        client.fill(&file, 0, 3 * CHUNK, 1).await;
        client.setattr(ROOT, file.ino(), SetAttr::default(), Some(10)).await.unwrap();
        for group in GROUPS {
            let lens = pair(group).map(|target| cluster.store(copy(target, GroupId(group))).clone());
            let lens = [
                lens[0].stat(file.ino().first_chunk_file()).await.unwrap().len,
                lens[1].stat(file.ino().first_chunk_file()).await.unwrap().len,
            ];
            assert_eq!(lens[0], lens[1]);
            assert!(lens[0] == 10 || lens[0] == 0, "{lens:?}");
        }
    });
}

#[test]
fn a_drained_target_keeps_its_replicas_and_reports_that() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("a").await;
        client.fill(&file, 0, 3 * CHUNK, 1).await;
        client.shutdown().await.unwrap();
        cluster.change(|map| map.targets[0].drain = true);
        let mut drains = Vec::new();
        for _ in 0..100 {
            rt::sleep(Duration::from_millis(500)).await;
            drains = cluster.meta().drains();
            if drains.iter().any(|drain| drain.hindrance.is_some()) {
                break;
            }
        }
        let drain = drains.first().unwrap();
        assert!(drain.hindrance.as_ref().unwrap().contains("mirrored group"), "{drain:?}");
        assert!(!drain.is_empty && drain.files_left == Some(1) && drain.bytes_left > 0, "{drain:?}");
        assert_eq!(cluster.meta().file_on(TargetId(1)).await.unwrap(), Some(file.ino()));
        assert_eq!(copies(&cluster, file.ino().first_chunk_file()).await.len(), 6);
    });
}

/// Crash reconciliation of a target is separate from that of its groups, where the same names may
/// be in use.
#[test]
fn targets_and_groups_are_reconciled_separately() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("a").await;
        client.fill(&file, 0, 3 * CHUNK, 1).await;
        client.shutdown().await.unwrap();
        let (ino, nobodys) = (file.ino().first_chunk_file(), ChunkFileId(file.ino().0 + 1000));
        let data = IoBuf::from_slice(&[7; 4096]);
        // The target itself has nothing of the file, whatever exists there under its name.
        for name in [ino, nobodys] {
            cluster
                .store(TargetId(1))
                .write(name, 0, &data, IoPath::Cached, Durability::Later)
                .await
                .unwrap();
            for target in pair(11) {
                let store = cluster.store(copy(target, GroupId(11)));
                store.write(name, 3 * CHUNK as u64, &data, IoPath::Cached, Durability::Later).await.unwrap();
            }
        }
        cluster.meta().reconcile_target(TargetId(1), &ReconcileFiles::of([ino, nobodys])).await.unwrap();
        assert!(cluster.store(TargetId(1)).list().await.unwrap().is_empty());
        assert_eq!(copies(&cluster, nobodys).await, [(1, 11), (2, 11)]);
        cluster.meta().reconcile_group(GroupId(11), &ReconcileFiles::of([ino, nobodys])).await.unwrap();
        assert_eq!(copies(&cluster, nobodys).await, []);
        for target in pair(11) {
            let store = cluster.store(copy(target, GroupId(11)));
            assert_eq!(store.stat(ino).await.unwrap().len, CHUNK as u64);
        }
    });
}
