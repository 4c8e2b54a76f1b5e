//! Forced recovery: a group continues from a replica that has missed something.

use super::cluster::{Cluster, INO, LinkState, with_members};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{ChunkFileId, MemberState, TargetId};
use wire::{StorageOp, StorageReply};

const DELETED: ChunkFileId = ChunkFileId(33);
const CUT: ChunkFileId = ChunkFileId(34);
const NEW: ChunkFileId = ChunkFileId(35);

async fn synced(cluster: &Cluster) -> u64 {
    match cluster.ask_file(INO, (3, None), StorageOp::Sync, None).await.unwrap() {
        StorageReply::Done { verifier } => verifier,
        other => panic!("{other:?}"),
    }
}

/// Target 2 misses a change, a deletion, a truncation and a new file; then target 1 is lost.
/// Returns the verifier under which target 1 has acknowledged them.
async fn lose_the_in_sync_member(cluster: &Cluster) -> u64 {
    cluster.write(INO, 3, 0, &[1; 8192]).await;
    cluster.write(DELETED, 3, 0, &[9; 100]).await;
    cluster.write(CUT, 3, 0, &[8; 10_000]).await;
    cluster.set_link(2, LinkState::Closed);
    cluster.management.set_online(2, false);
    cluster.write(INO, 3, 4096, &[2; 4096]).await;
    assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
    cluster.ask_file(DELETED, (3, None), StorageOp::Delete, None).await.unwrap();
    cluster.ask_file(CUT, (3, None), StorageOp::Truncate { len: 10 }, None).await.unwrap();
    cluster.write(NEW, 3, 0, &[3; 100]).await;
    let verifier = synced(cluster).await;
    cluster.management.files.lock().unwrap().extend([(INO, 8192), (CUT, 10), (NEW, 100)]);
    cluster.set_link(1, LinkState::Closed);
    cluster.management.set_online(1, false);
    cluster.set_link(2, LinkState::Open);
    cluster.management.set_online(2, true);
    verifier
}

async fn require_reconciled(cluster: &Cluster, target: u32) {
    let files = cluster.on_disk(target).await;
    assert!(!files.contains_key(&DELETED), "a deleted file has come back");
    assert_eq!(files[&CUT], [8; 10]);
    assert_eq!(files[&INO], [1; 8192], "that is what there is");
}

#[test]
fn files_are_reconciled_before_clients_are_served() {
    with_members(2, |cluster| async move {
        let before = lose_the_in_sync_member(&cluster).await;
        cluster.management.has_metadata.store(false, Ordering::SeqCst);
        cluster.management.recover_group(2);
        cluster.enable_resync();
        let reader = cluster.clone();
        let told = Rc::new(Cell::new(false));
        let is_read = told.clone();
        rt::spawn(async move {
            assert_eq!(reader.read(CUT, 20).await, [[8; 10], [0; 10]].concat());
            is_read.set(true);
        });
        rt::sleep(Duration::from_millis(1500)).await;
        assert!(!told.get(), "what was cut would show");
        assert!(
            cluster.on_disk(2).await.contains_key(&DELETED) && cluster.management.group().revived.is_some()
        );
        cluster.management.has_metadata.store(true, Ordering::SeqCst);
        assert_eq!(cluster.read(INO, 8192).await, [1; 8192]);
        require_reconciled(&cluster, 2).await;
        assert_ne!(synced(&cluster).await, before, "every writer has to learn of it");
        cluster.until("it is read", || told.get()).await;
        cluster.until("management hears of it", || cluster.management.group().revived.is_none()).await;
        // The lost member comes back after all, and is rebuilt.
        cluster.set_link(1, LinkState::Open);
        cluster.management.set_online(1, true);
        cluster.until_in_sync().await;
        require_reconciled(&cluster, 1).await;
        assert!(!cluster.on_disk(1).await.contains_key(&NEW));
        assert_eq!(cluster.management.group().primary(), Some(TargetId(2)));
    });
}

#[test]
fn a_restarted_process_gets_a_new_verifier_in_forced_recovery() {
    with_members(2, |cluster| async move {
        // A resynced member adopts the verifier of the group.
        cluster.management.set(2, MemberState::NeedsResync);
        cluster.enable_resync();
        cluster.until_in_sync().await;
        let before = lose_the_in_sync_member(&cluster).await;
        cluster.stop(2).await;
        cluster.management.recover_group(2);
        cluster.restart(2).await;
        cluster.enable_resync();
        let after = synced(&cluster).await;
        assert_ne!(after, before, "what was synced is gone");
        require_reconciled(&cluster, 2).await;
        cluster.until("management hears of it", || cluster.management.group().revived.is_none()).await;
        assert_eq!(synced(&cluster).await, after, "nothing is lost from then on");
    });
}

#[test]
fn an_interrupted_forced_recovery_begins_again() {
    with_members(2, |cluster| async move {
        let before = lose_the_in_sync_member(&cluster).await;
        cluster.management.has_metadata.store(false, Ordering::SeqCst);
        cluster.management.recover_group(2);
        // The metadata service is admitted, but no client.
        let stat = cluster.ask_file(CUT, (0, None), StorageOp::Stat, None).await.unwrap();
        assert!(matches!(stat, StorageReply::Stat { len: 10_000, .. }), "{stat:?}");
        cluster.stop(2).await;
        cluster.restart(2).await;
        assert!(cluster.on_disk(2).await.contains_key(&DELETED));
        cluster.management.has_metadata.store(true, Ordering::SeqCst);
        cluster.enable_resync();
        assert_ne!(synced(&cluster).await, before);
        require_reconciled(&cluster, 2).await;
    });
}
