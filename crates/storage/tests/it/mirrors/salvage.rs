//! Damage on the primary where a member has missed something: the member is resynced all the same,
//! and no client reads wrong content.

use super::cluster::{Cluster, GROUP, INO, LinkState, MIB, with_members, with_members_on_disk};
use super::damage::while_stopped;
use chunkstore::Store;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{ByteRange, Errno, MemberState};
use wire::{AllocateMode, RepairResult, StorageOp, StorageReply};

const BLOCK: usize = 4096;

fn chunk_file(cluster: &Cluster, target: u32) -> PathBuf {
    Store::chunk_file_path(&Store::group_dir(&cluster.dir.join(target.to_string()), GROUP), INO)
}

fn damage(cluster: &Cluster, target: u32, at: usize) {
    let file = File::options().write(true).open(chunk_file(cluster, target)).unwrap();
    file.write_all_at(b"damage", at as u64).unwrap();
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 700) as u8 | 1).collect()
}

/// When the primary's replica is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum While {
    Served,
    ShutDown,
}

/// Writes what the second member misses, and damages the primary's replica meanwhile.
async fn without_second(cluster: &Cluster, offset: usize, data: &[u8], harmed: While, harm: impl FnOnce()) {
    cluster.set_link(2, LinkState::Closed);
    cluster.write(INO, 3, offset as u64, data).await;
    assert_ne!(cluster.management.state(2), MemberState::InSync);
    if harmed == While::ShutDown {
        cluster.stop(1).await;
        harm();
        cluster.restart(1).await;
    } else {
        harm();
    }
    cluster.set_link(2, LinkState::Open);
    cluster.enable_resync();
    cluster.until("the group is in step", || !cluster.management.group().is_degraded()).await;
}

async fn heal(cluster: &Cluster) -> RepairResult {
    let op = StorageOp::Repair { range: ByteRange::new(0, u64::MAX) };
    match cluster.ask_file(INO, (0, None), op, None).await.unwrap() {
        StorageReply::Repaired(healed) => healed,
        other => panic!("{other:?}"),
    }
}

/// Reads a block from a member.
async fn block_of(cluster: &Cluster, target: u32, block: usize) -> Result<Vec<u8>, Errno> {
    let since = cluster.management.group().since.0;
    let part = wire::GroupRole::Member { sequence: 0, committed: 0 };
    let buf = rt::IoBuf::alloc(BLOCK);
    let op = StorageOp::Read { offset: (block * BLOCK) as u64, path: wire::DataPath::Cached };
    let asked = cluster.ask_one(target, (since, part), (0, None), op, Some(buf.clone())).await;
    asked.map(|_| buf.as_slice().to_vec()).map_err(|error| error.errno)
}

#[test]
fn the_member_keeps_its_blocks_and_lost_ones_are_refused_everywhere() {
    some_is_kept_and_some_refused(While::Served);
}

/// The regions are dirty for the member as well: they don't come from a crash.
#[test]
fn damage_during_a_shutdown_of_the_primary_is_handled_the_same_way() {
    some_is_kept_and_some_refused(While::ShutDown);
}

fn some_is_kept_and_some_refused(harmed: While) {
    with_members_on_disk(2, move |cluster| async move {
        let mut data = content(MIB as usize + 777);
        cluster.write(INO, 3, 0, &data).await;
        let newer = vec![200; 2 * BLOCK];
        data[4 * BLOCK..6 * BLOCK].copy_from_slice(&newer);
        without_second(&cluster, 4 * BLOCK, &newer, harmed, || {
            damage(&cluster, 1, 5 * BLOCK + 9);
            damage(&cluster, 1, 9 * BLOCK);
        })
        .await;
        // One was changed while the member was away, and no other member has it; the member has had
        // the other one all the time.
        let is_lost = ByteRange::new(5 * BLOCK as u64, 6 * BLOCK as u64);
        for target in [1, 2] {
            assert_eq!(block_of(&cluster, target, 5).await, Err(Errno::EIO), "member {target}");
            assert_eq!(block_of(&cluster, target, 4).await.as_deref(), Ok(&newer[..BLOCK]));
        }
        let mended = || {
            fs::read(chunk_file(&cluster, 1)).unwrap()[9 * BLOCK..10 * BLOCK] == data[9 * BLOCK..10 * BLOCK]
        };
        cluster.until("the primary has it back", mended).await;
        let read = |end: usize| {
            let (cluster, buf) = (cluster.clone(), rt::IoBuf::alloc(end));
            async move {
                let op = StorageOp::Read { offset: 0, path: wire::DataPath::Cached };
                let asked = cluster.ask_file(INO, (3, None), op, Some(buf.clone())).await;
                asked.map(|_| buf.as_slice().to_vec()).map_err(|error| error.errno)
            }
        };
        assert_eq!(read(data.len()).await, Err(Errno::EIO));
        assert_eq!(read(5 * BLOCK).await.as_deref(), Ok(&data[..5 * BLOCK]));
        assert_eq!(heal(&cluster).await, RepairResult { damaged: 1, repaired: 0, unclear: 0 });
        // It can be given up, like other lost content.
        let op = StorageOp::DiscardLost { range: ByteRange::new(0, data.len() as u64) };
        let given_up = cluster.ask_file(INO, (0, None), op, None).await.unwrap();
        assert_eq!(given_up, StorageReply::Regions { regions: vec![(INO, is_lost)], next: None });
        data[5 * BLOCK..6 * BLOCK].fill(0);
        assert_eq!(cluster.read(INO, data.len()).await, data);
        cluster.require_equal().await;
    });
}

#[test]
fn another_good_member_has_what_is_damaged_here() {
    with_members_on_disk(3, |cluster| async move {
        let mut data = content(3 * MIB as usize + 777);
        cluster.write(INO, 3, 0, &data).await;
        let newer = vec![201; 2 * MIB as usize];
        data[BLOCK..][..newer.len()].copy_from_slice(&newer);
        without_second(&cluster, BLOCK, &newer, While::Served, || {
            damage(&cluster, 1, 5 * BLOCK + 9);
            damage(&cluster, 1, MIB as usize + 20);
            damage(&cluster, 3, MIB as usize + BLOCK);
        })
        .await;
        assert_eq!(cluster.read(INO, data.len()).await, data);
        heal(&cluster).await;
        cluster.require_equal().await;
        assert_eq!(cluster.on_disk(2).await[&INO], data);
    });
}

/// It had no request since it died, so it counts as in sync; whether it has the file that is
/// missing here is unknown.
#[test]
fn a_member_comes_in_step_while_a_third_one_that_counts_is_dead() {
    with_members(3, |cluster| async move {
        cluster.write(INO, 3, 0, &content(100_000)).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.ask_file(INO, (3, None), StorageOp::Delete, None).await.unwrap();
        assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
        cluster.set_link(3, LinkState::Closed);
        cluster.set_link(2, LinkState::Open);
        cluster.enable_resync();
        rt::sleep(std::time::Duration::from_secs(1)).await;
        assert_ne!(
            cluster.management.state(2),
            MemberState::InSync,
            "it is reachable, and may have the file"
        );
        cluster.management.set_online(3, false);
        cluster.until("it is in sync", || cluster.management.state(2) == MemberState::InSync).await;
        assert_eq!(cluster.management.state(3), MemberState::NeedsResync);
        assert!(!cluster.on_disk(2).await.contains_key(&INO));
        cluster.set_link(3, LinkState::Open);
        cluster.management.set_online(3, true);
        cluster.until_in_sync().await;
    });
}

/// A member is rebuilt while the primary's chunk file is too short.
async fn shortened(cluster: Arc<Cluster>, shorten: impl FnOnce(&Path)) {
    let data = content(MIB as usize + 777);
    cluster.write(INO, 3, 0, &data).await;
    while_stopped(&cluster, |_| shorten(&chunk_file(&cluster, 1))).await;
    cluster.management.set(2, MemberState::NeedsRebuild);
    cluster.enable_resync();
    cluster.until("the group is in step", || !cluster.management.group().is_degraded()).await;
    assert!(cluster.on_disk(2).await[&INO] == data, "what the member had is still there");
    let is_back = async || cluster.on_disk(1).await.get(&INO).is_some_and(|found| *found == data);
    cluster.until_found("the primary has it back", is_back).await;
    assert_eq!(cluster.read(INO, data.len()).await, data);
}

#[test]
fn a_chunk_file_that_was_cut_does_not_cut_the_other_copy() {
    with_members_on_disk(2, |cluster| {
        shortened(cluster, |path| File::options().write(true).open(path).unwrap().set_len(50_000).unwrap())
    });
}

#[test]
fn a_chunk_file_that_was_removed_does_not_remove_the_other_copy() {
    with_members_on_disk(2, |cluster| shortened(cluster, |path| fs::remove_file(path).unwrap()));
}

/// The same of the only in-sync replica, where the other one may have missed something.
async fn shortened_alone(cluster: Arc<Cluster>, harmed: While, shorten: impl FnOnce(&Path)) {
    let data = content(100_000);
    cluster.write(INO, 3, 0, &data).await;
    without_second(&cluster, 10, &data[10..20], harmed, || shorten(&chunk_file(&cluster, 1))).await;
    assert!(cluster.on_disk(2).await[&INO] == data, "what the member had is still there");
    let is_back = async || cluster.on_disk(1).await.get(&INO).is_some_and(|found| *found == data);
    cluster.until_found("the primary has it back", is_back).await;
    assert_eq!(cluster.read(INO, data.len()).await, data);
}

#[test]
fn the_only_copy_that_counts_was_cut_while_it_was_shut_down() {
    with_members_on_disk(2, |cluster| {
        let cut = |path: &Path| File::options().write(true).open(path).unwrap().set_len(50_000).unwrap();
        shortened_alone(cluster, While::ShutDown, cut)
    });
}

#[test]
fn the_only_copy_that_counts_was_removed_while_it_was_shut_down() {
    with_members_on_disk(2, |cluster| {
        shortened_alone(cluster, While::ShutDown, |path| fs::remove_file(path).unwrap())
    });
}

/// An open file still exists until it is closed.
#[test]
fn the_only_copy_that_counts_was_removed_while_it_was_open() {
    with_members_on_disk(2, |cluster| {
        shortened_alone(cluster, While::Served, |path| fs::remove_file(path).unwrap())
    });
}

#[test]
fn a_hole_made_by_another_program_is_damage() {
    with_members_on_disk(2, |cluster| async move {
        let data = content(4 * MIB as usize);
        cluster.write(INO, 3, 0, &data).await;
        let newer = vec![203; 3 * MIB as usize];
        without_second(&cluster, 0, &newer, While::Served, || {
            let path = chunk_file(&cluster, 1);
            let punch = std::process::Command::new("fallocate")
                .args(["--punch-hole", "--offset", "0", "--length", "2097152"])
                .arg(path)
                .status();
            assert!(punch.unwrap().success());
        })
        .await;
        assert_eq!(
            block_of(&cluster, 2, 3).await,
            Err(Errno::EIO),
            "it isn't zeros, and what it was before isn't it, either"
        );
        assert_eq!(block_of(&cluster, 2, 2 * MIB as usize / BLOCK).await, Ok(vec![203; BLOCK]));
    });
}

#[test]
fn damage_on_the_member_does_not_prevent_truncation_or_punching() {
    with_members_on_disk(2, |cluster| async move {
        let data = content(3 * MIB as usize + 777);
        cluster.write(INO, 3, 0, &data).await;
        cluster.set_link(2, LinkState::Closed);
        let ask = async |op| cluster.ask_file(INO, (3, None), op, None).await.unwrap();
        ask(StorageOp::Truncate { len: 3 * MIB - 1000 }).await;
        ask(StorageOp::Allocate {
            range: ByteRange::new(BLOCK as u64, 3 * MIB - 1000),
            how: AllocateMode::Punch,
        })
        .await;
        damage(&cluster, 2, 3 * MIB as usize - 500);
        damage(&cluster, 2, 3 * MIB as usize - 1500);
        cluster.set_link(2, LinkState::Open);
        cluster.enable_resync();
        cluster.until_in_sync().await;
        assert_eq!(block_of(&cluster, 2, 3 * MIB as usize / BLOCK - 1).await, Ok(vec![0; BLOCK]));
    });
}
