//! Verifiers: they tell clients whether a sync covers what was acknowledged before.

use super::cluster::{Cluster, GROUP, INO, LinkState, Management, with_members};
use chunkstore::Store;
use rt::IoBuf;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use storage::MemberChange;
use types::{MemberState, TargetId};
use wire::{DataPath as Way, GroupRole, StorageOp, StorageReply, StorageRequest};

async fn verifier(cluster: &Cluster, op: StorageOp, payload: Option<IoBuf>) -> u64 {
    match cluster.ask_file(INO, (3, None), op, payload).await.unwrap() {
        StorageReply::Done { verifier } => verifier,
        other => panic!("{other:?} has no verifier"),
    }
}

async fn written(cluster: &Cluster) -> u64 {
    let write = StorageOp::Write { offset: 0, path: Way::Cached, durable: false };
    verifier(cluster, write, Some(IoBuf::from_slice(&[1; 4096]))).await
}

async fn synced(cluster: &Cluster) -> u64 {
    verifier(cluster, StorageOp::Sync, None).await
}

/// The primary dies; what it has acknowledged is in the memory of the other member.
async fn replace_primary(cluster: &Cluster) {
    cluster.set_link(1, LinkState::Closed);
    cluster.management.set_online(1, false);
    cluster.management.set(1, MemberState::NeedsResync);
}

#[test]
fn an_in_sync_successor_keeps_the_verifier() {
    with_members(2, |cluster| async move {
        let acknowledged = written(&cluster).await;
        assert_eq!(synced(&cluster).await, acknowledged);
        replace_primary(&cluster).await;
        assert_eq!(synced(&cluster).await, acknowledged);
    });
}

#[test]
fn a_resynced_member_has_the_same_verifier() {
    with_members(2, |cluster| async move {
        cluster.set_link(2, LinkState::Closed);
        let acknowledged = written(&cluster).await;
        assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
        cluster.set_link(2, LinkState::Open);
        cluster.enable_resync();
        cluster.until_in_sync().await;
        replace_primary(&cluster).await;
        assert_eq!(synced(&cluster).await, acknowledged);
    });
}

/// Makes a target's disk look as after a reboot of the machine.
fn lose_memory(dir: &Path, target: u32) {
    let record = dir.join(format!("{target}/groups/{GROUP}/verifier"));
    let text = fs::read_to_string(&record).unwrap();
    let (verifier, _) = text.split_once("memory = ").unwrap();
    fs::write(&record, format!("{verifier}memory = \"another start\"\n")).unwrap();
}

/// Kills and restarts both members; those in `lose` have lost what wasn't synced. Returns the
/// verifiers of before and after.
fn after_a_death_of_both(lose: &[u32]) -> (u64, u64) {
    let dir = tempfile::tempdir().unwrap();
    let management = Management::new(2);
    management.files.lock().unwrap().insert(INO, 4096);
    let start = || {
        let (path, management) = (dir.path().to_path_buf(), management.clone());
        async move { Cluster::start(&path, management).await }
    };
    let first = start();
    let before = rt::block_on(async move { written(&*first.await).await }).unwrap();
    lose.iter().for_each(|target| lose_memory(dir.path(), *target));
    let second = start();
    let after = rt::block_on(async move {
        let cluster = second.await;
        cluster.enable_resync();
        cluster.until_in_sync().await;
        synced(&cluster).await
    });
    (before, after.unwrap())
}

#[test]
fn after_a_death_of_all_processes_it_is_the_same() {
    let (before, after) = after_a_death_of_both(&[]);
    assert_eq!(before, after);
}

#[test]
fn after_a_power_cut_of_all_it_is_another_one() {
    let (before, after) = after_a_death_of_both(&[1, 2]);
    assert_ne!(before, after);
}

#[test]
fn a_member_that_was_started_again_after_the_last_data_is_sent_all_of_it_again() {
    starts_again_after(|op| matches!(op, StorageOp::SetTime { .. }));
}

/// The sync covers nothing that clients have written since.
#[test]
fn a_member_that_was_started_again_after_the_last_sync_is_sent_all_of_it_again() {
    starts_again_after(|op| matches!(op, StorageOp::SyncTarget));
}

/// A member loses power when a resync has reached a request of a kind: the member has answered the
/// request, and restarts without the file.
fn starts_again_after(is_moment: fn(&StorageOp) -> bool) {
    with_members(2, move |cluster| async move {
        cluster.set_link(2, LinkState::Closed);
        cluster.write(INO, 3, 0, &[1; 20_000]).await;
        cluster.set_link(2, LinkState::Open);
        let has_come = Arc::new(AtomicBool::new(false));
        let (link, come) = (Arc::downgrade(&cluster.links[&TargetId(2)]), has_come.clone());
        // The next requests wait on the link.
        let hold_once = move |asked: &StorageRequest| {
            let is_resync = asked.group.is_some_and(|group| group.role == GroupRole::Resync);
            if is_resync && is_moment(&asked.op) && !come.swap(true, Ordering::SeqCst) {
                *link.upgrade().unwrap().state.lock().unwrap() = LinkState::Late;
            }
        };
        *cluster.link(2).after.lock().unwrap() = Some(Box::new(hold_once));
        cluster.enable_resync();
        cluster.until("the resync has come there", || has_come.load(Ordering::SeqCst)).await;
        cluster.stop(2).await;
        let file = Store::chunk_file_path(&Store::group_dir(&cluster.dir.join("2"), GROUP), INO);
        rt::remove_file(&file).await.unwrap();
        // A chunk file has its checksums beside it once they were written back.
        let _ = rt::remove_file(&file.with_extension("sum")).await;
        cluster.restart(2).await;
        cluster.set_link(2, LinkState::Open);
        cluster.link(2).late.set();
        cluster.until_in_sync().await;
        let changes = cluster.management.changes.lock().unwrap();
        let is_refusal = |change: &MemberChange| {
            change.state == MemberState::NeedsResync && change.reason.contains("restarted during its resync")
        };
        assert_eq!(changes.iter().filter(|change| is_refusal(change)).count(), 1, "{changes:?}");
    });
}
