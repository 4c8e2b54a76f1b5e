//! The disk of a member vanishes while its node keeps serving: `umount -l` leaves the empty
//! directory below the mount point at its path.

use super::cluster::{Cluster, GROUP, INO, MIB, with_members_on_disk, with_others_on_disk};
use chunkstore::Store;
use std::fs;
use std::path::{Path, PathBuf};
use types::{ChunkFileId, MemberState, TargetId};
use wire::{GroupRole, StorageOp, StorageRequest};

fn places(dir: &Path, target: u32) -> [PathBuf; 2] {
    ["", "-away"].map(|suffix| dir.join(format!("{target}{suffix}")))
}

fn unmount(dir: &Path, target: u32) {
    let [here, away] = places(dir, target);
    fs::rename(&here, away).unwrap();
    fs::create_dir(here).unwrap();
}

/// Mounts it again; nothing may have been written to the mount point meanwhile.
async fn mount(cluster: &Cluster, target: u32) {
    let [here, away] = places(&cluster.dir, target);
    fs::remove_dir(&here).unwrap();
    fs::rename(away, here).unwrap();
    assert!(is_proven(cluster, target).await);
}

/// Runs a node's check of its target.
async fn is_proven(cluster: &Cluster, target: u32) -> bool {
    let service = cluster.link(target).service.lock().unwrap().clone().unwrap();
    service.check_target(TargetId(target)).await;
    service.is_available(TargetId(target))
}

/// A node that was just started has no open files.
async fn restart(cluster: &Cluster, target: u32) {
    // The members learn that all replicas are equal; otherwise the start would resync the others.
    let part = GroupRole::Member { sequence: 0, committed: u64::MAX };
    let since = cluster.management.group().since.0;
    cluster.ask_one(target, (since, part), (0, None), StorageOp::Committed, None).await.unwrap();
    cluster.stop(target).await;
    cluster.restart(target).await;
}

async fn fill(cluster: &Cluster) {
    for ino in 20..28 {
        cluster.write(ChunkFileId(ino), 3, 0, &vec![ino as u8; MIB as usize + ino as usize]).await;
    }
}

#[test]
fn a_member_whose_disk_is_gone_is_no_source_for_the_one_that_takes_its_place() {
    // After the first request to the member.
    source_goes(|_| true);
}

#[test]
fn what_was_sent_from_a_disk_that_has_gone_meanwhile_does_not_count() {
    // After the member was told that it has everything.
    source_goes(|op| matches!(op, StorageOp::AdoptVerifier { .. }));
}

/// The disk of the resync source vanishes after an answer of a kind.
fn source_goes(is_moment: fn(&StorageOp) -> bool) {
    with_others_on_disk(2, 1, move |cluster| async move {
        fill(&cluster).await;
        restart(&cluster, 1).await;
        let (dir, mut is_gone) = (cluster.dir.clone(), false);
        let unmount_once = move |asked: &StorageRequest| {
            let is_resync = asked.group.is_some_and(|group| group.role == GroupRole::Resync);
            if !is_gone && is_resync && is_moment(&asked.op) {
                is_gone = true;
                unmount(&dir, 1);
            }
        };
        *cluster.link(3).after.lock().unwrap() = Some(Box::new(unmount_once));
        cluster.management.add_member(3, (1, true));
        cluster.enable_resync();
        let has_failed = || {
            let changes = cluster.management.changes.lock().unwrap();
            let is_it = |change: &storage::MemberChange| {
                change.target == TargetId(3)
                    && change.state == MemberState::NeedsRebuild
                    && change.reason.contains("target 1 is offline")
            };
            changes.iter().any(is_it)
        };
        cluster.until("the attempt has failed", has_failed).await;
        let group = cluster.management.group();
        assert_eq!(group.members.len(), 3, "somebody has left: {group:?}");
        assert_eq!(cluster.management.state(3), MemberState::NeedsRebuild);
        mount(&cluster, 1).await;
        cluster.until("another one has its place", || cluster.management.group().members.len() == 2).await;
        cluster.until_in_sync().await;
        assert_eq!(cluster.on_disk(3).await.len(), 8);
    });
}

#[test]
fn a_target_that_is_offline_in_the_map_is_no_source() {
    with_others_on_disk(2, 1, |cluster| async move {
        fill(&cluster).await;
        cluster.management.set_online(1, false);
        cluster.management.add_member(3, (1, true));
        cluster.enable_resync();
        // Long enough for several checks of the map.
        rt::sleep(std::time::Duration::from_secs(2)).await;
        let changes = cluster.management.changes.lock().unwrap().clone();
        assert!(changes.iter().all(|change| change.target != TargetId(3)), "{changes:?}");
        cluster.management.set_online(1, true);
        cluster.until("another one has its place", || cluster.management.group().members.len() == 2).await;
        cluster.until_in_sync().await;
    });
}

/// It isn't resynced, and doesn't count among the replicas that a leaving member leaves behind.
#[test]
fn a_member_that_is_offline_in_the_map_is_no_replica() {
    with_others_on_disk(2, 1, |cluster| async move {
        fill(&cluster).await;
        cluster.management.set_online(3, false);
        cluster.management.add_member(3, (1, true));
        cluster.enable_resync();
        // Long enough for several checks of the map.
        rt::sleep(std::time::Duration::from_secs(1)).await;
        let changes = cluster.management.changes.lock().unwrap().clone();
        assert!(changes.iter().all(|change| change.target != TargetId(3)), "{changes:?}");
        cluster.management.set_online(2, false);
        cluster.management.set_online(3, true);
        let is_copied = || cluster.management.state(3) == MemberState::InSync;
        cluster.until("the member that comes has everything", is_copied).await;
        rt::sleep(std::time::Duration::from_secs(1)).await;
        let group = cluster.management.group();
        assert_eq!(group.members.len(), 3, "one has left while another can't be reached: {group:?}");
        cluster.management.set_online(2, true);
        cluster.until("another one has its place", || cluster.management.group().members.len() == 2).await;
        cluster.until_in_sync().await;
    });
}

#[test]
fn a_primary_whose_disk_is_gone_lets_others_answer_and_steps_down() {
    with_members_on_disk(2, |cluster| async move {
        let data = vec![7; 3 * MIB as usize + 5];
        cluster.write(INO, 3, 0, &data).await;
        restart(&cluster, 1).await;
        unmount(&cluster.dir, 1);
        assert_eq!(cluster.read(INO, data.len()).await, data, "the other one has it");
        cluster.write(INO, 3, MIB, &[9; 100]).await;
        cluster.write(ChunkFileId(40), 3, 0, &[1; 100]).await;
        assert_eq!(cluster.management.state(1), MemberState::NeedsResync);
        assert_eq!(cluster.read(ChunkFileId(40), 100).await, [1; 100]);
        mount(&cluster, 1).await;
        cluster.enable_resync();
        cluster.until_in_sync().await;
    });
}

#[test]
fn a_member_whose_disk_is_gone_is_ejected_by_the_next_change() {
    with_members_on_disk(2, |cluster| async move {
        fill(&cluster).await;
        unmount(&cluster.dir, 2);
        cluster.write(ChunkFileId(40), 3, 0, &[1; 100]).await;
        assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
        // Its open files don't change there any more, either.
        cluster.write(ChunkFileId(20), 3, 0, &[9; 100]).await;
        mount(&cluster, 2).await;
        cluster.enable_resync();
        cluster.until_in_sync().await;
    });
}

/// Its files are open there, so that a change of them needs no lookup.
#[test]
fn a_member_that_is_offline_takes_no_change_of_what_it_has_open() {
    with_members_on_disk(2, |cluster| async move {
        fill(&cluster).await;
        unmount(&cluster.dir, 2);
        assert!(!is_proven(&cluster, 2).await);
        cluster.write(ChunkFileId(20), 3, 0, &[9; 100]).await;
        assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
        mount(&cluster, 2).await;
        cluster.enable_resync();
        cluster.until_in_sync().await;
    });
}

#[test]
fn a_member_that_has_lost_its_copy_gets_all_of_it_again() {
    with_members_on_disk(2, |cluster| async move {
        fill(&cluster).await;
        cluster.stop(2).await;
        fs::remove_dir_all(Store::group_dir(&cluster.dir.join("2"), GROUP)).unwrap();
        cluster.write(INO, 3, 0, &[5; 100]).await;
        assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
        cluster.restart(2).await;
        cluster.enable_resync();
        cluster.until_in_sync().await;
        assert_eq!(cluster.on_disk(2).await.len(), 9);
    });
}

#[test]
fn a_primary_that_has_lost_its_replica_steps_down_and_removes_nothing_elsewhere() {
    with_members_on_disk(2, |cluster| async move {
        fill(&cluster).await;
        restart(&cluster, 1).await;
        cluster.stop(1).await;
        fs::remove_dir_all(Store::group_dir(&cluster.dir.join("1"), GROUP)).unwrap();
        cluster.restart(1).await;
        assert_eq!(cluster.read(ChunkFileId(20), 100).await, [20; 100]);
        cluster.write(INO, 3, 0, &[5; 100]).await;
        assert_eq!(cluster.management.state(1), MemberState::NeedsResync);
        cluster.enable_resync();
        cluster.until_in_sync().await;
        assert_eq!((cluster.on_disk(1).await.len(), cluster.on_disk(2).await.len()), (9, 9));
    });
}

#[test]
fn the_only_member_in_sync_that_has_lost_its_copy_is_no_source() {
    with_members_on_disk(2, |cluster| async move {
        fill(&cluster).await;
        cluster.stop(2).await;
        cluster.write(INO, 3, 0, &[5; 100]).await;
        cluster.stop(1).await;
        fs::remove_dir_all(Store::group_dir(&cluster.dir.join("1"), GROUP)).unwrap();
        cluster.restart(1).await;
        cluster.restart(2).await;
        cluster.enable_resync();
        // Long enough for several checks of the map.
        rt::sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
        assert_eq!(cluster.on_disk(2).await.len(), 8, "what the other one has is taken away");
    });
}
