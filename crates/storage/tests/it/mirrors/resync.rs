//! Members that have missed something come back.

use super::cluster::{Cluster, INO, LinkState, MIB, Management, with_members};
use rt::IoBuf;
use rt::sim::Machine;
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::targets;
use types::{ByteRange, ChunkFileId, MemberState};
use wire::{AllocateMode, DataPath as Way, GroupRole, SlotSequence, StorageOp, StorageRequest};

#[test]
fn after_an_outage_only_what_changed_is_sent() {
    with_members(2, |cluster| async move {
        for ino in 20..28 {
            cluster.write(ChunkFileId(ino), 3, 0, &vec![ino as u8; 2 * MIB as usize]).await;
        }
        cluster.ask_file(INO, (3, None), StorageOp::SyncTarget, None).await.unwrap();
        cluster.enable_resync();
        // Dirty regions of settled changes are dropped when nothing has changed there for some
        // seconds; how many depends on the machine.
        for _ in 0..8 {
            rt::sleep(Duration::from_secs(11)).await;
            cluster.set_link(2, LinkState::Closed);
            cluster.management.set_online(2, false);
            cluster.write(ChunkFileId(23), 3, MIB / 2, &[99; 10_000]).await;
            rt::sleep(Duration::from_millis(600)).await;
            assert_eq!(cluster.management.state(2), MemberState::NeedsResync, "nobody is there");
            cluster.link(2).resynced.store(0, Ordering::SeqCst);
            cluster.set_link(2, LinkState::Open);
            cluster.management.set_online(2, true);
            cluster.until_in_sync().await;
            let sent = cluster.link(2).resynced.load(Ordering::SeqCst);
            assert!(sent >= 10_000, "{sent} bytes can't be what was missed");
            if sent <= 2 * MIB {
                return;
            }
        }
        panic!("all of 16 MiB is sent where 10,000 bytes were missed");
    });
}

/// Applications see the mtime of a chunk file as that of the file, whichever member is the primary
/// then.
#[test]
fn resync_preserves_mtime() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; 20_000]).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.write(INO, 3, 5000, &[2; 100]).await;
        cluster.write(ChunkFileId(30), 3, 0, &[3; 100]).await;
        rt::sleep(Duration::from_millis(50)).await;
        cluster.set_link(2, LinkState::Open);
        cluster.enable_resync();
        cluster.until_in_sync().await;
        for ino in [INO, ChunkFileId(30)] {
            assert_eq!(cluster.mtime(2, ino).await, cluster.mtime(1, ino).await);
        }
    });
}

/// Random changes of a large file, and small new files: blocks that are equal on both aren't sent.
#[test]
fn after_an_outage_less_than_twice_of_what_changed_is_sent() {
    for (size, count) in [(4096, 64), (64 << 10, 16), (1 << 20, 4)] {
        with_members(2, move |cluster| async move {
            cluster.write(INO, 3, 0, &vec![1; 32 * MIB as usize]).await;
            cluster.set_link(2, LinkState::Closed);
            let mut at = 7u64;
            for number in 0..count {
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let offset = (at >> 33) % (32 * MIB - size as u64) / 4096 * 4096;
                cluster.write(INO, 3, offset, &vec![number as u8 + 2; size]).await;
            }
            let changed = {
                let (here, there) = (cluster.on_disk(1).await, cluster.on_disk(2).await);
                let pairs = here[&INO].chunks(4096).zip(there[&INO].chunks(4096));
                pairs.filter(|(one, two)| one != two).count() as u64 * 4096
            };
            for small in 0..16 {
                cluster.write(ChunkFileId(100 + small), 3, 0, &vec![9; 10_000]).await;
            }
            let changed = changed + 16 * 10_000;
            cluster.link(2).resynced.store(0, Ordering::SeqCst);
            cluster.set_link(2, LinkState::Open);
            cluster.enable_resync();
            cluster.until_in_sync().await;
            let sent = cluster.link(2).resynced.load(Ordering::SeqCst);
            println!("{count} changes of {size} bytes: {changed} bytes changed, {sent} sent");
            assert!(sent >= changed && sent < 2 * changed, "{sent} bytes sent where {changed} were changed");
        });
    }
}

#[test]
fn truncated_deleted_punched_and_new_files_are_resynced() {
    with_members(3, |cluster| async move {
        for ino in 20..26 {
            cluster.write(ChunkFileId(ino), 3, 0, &vec![ino as u8; MIB as usize]).await;
        }
        cluster.set_link(2, LinkState::Closed);
        let ask = async |ino, op| cluster.ask_file(ChunkFileId(ino), (3, None), op, None).await.unwrap();
        ask(20, StorageOp::Delete).await;
        ask(21, StorageOp::Truncate { len: 5000 }).await;
        ask(22, StorageOp::Truncate { len: 0 }).await;
        cluster.write(ChunkFileId(22), 3, 3 * MIB, &[7; 100]).await;
        ask(23, StorageOp::Allocate { range: ByteRange::new(8192, MIB), how: AllocateMode::Punch }).await;
        cluster.write(ChunkFileId(30), 3, 5 * MIB + 17, &[8; 5000]).await;
        ask(24, StorageOp::Delete).await;
        cluster.write(ChunkFileId(24), 3, 0, &[9; 10]).await;
        cluster.set_link(2, LinkState::Open);
        cluster.enable_resync();
        cluster.until_in_sync().await;
        assert_eq!(cluster.on_disk(2).await[&ChunkFileId(21)].len(), 5000);
    });
}

#[test]
fn writes_continue_during_a_resync() {
    with_members(2, |cluster| async move {
        cluster.links.values().for_each(|link| link.jitter.store(true, Ordering::SeqCst));
        cluster.write(INO, 3, 0, &vec![1; 4 * MIB as usize]).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.write(INO, 3, 0, &vec![2; 6 * MIB as usize]).await;
        cluster.set_link(2, LinkState::Open);
        cluster.enable_resync();
        let left = Rc::new(Cell::new(4));
        for client in 0..4u64 {
            let (cluster, left) = (cluster.clone(), left.clone());
            rt::spawn(async move {
                let mut round = 0;
                while round < 20 || cluster.management.group().is_degraded() {
                    round += 1;
                    let offset = (round * 1_234_567 + client * 777_777) % (7 * MIB);
                    let data = vec![(client * 50 + round % 50) as u8; 9000];
                    cluster.write(INO, 3 + client, offset, &data).await;
                    if round % 7 == 3 && client == 0 {
                        let op = StorageOp::Truncate { len: (round * 999_999) % (6 * MIB) };
                        cluster.ask_file(INO, (3, None), op, None).await.unwrap();
                    }
                }
                left.set(left.get() - 1);
            });
        }
        cluster.until("the clients are done", || left.get() == 0).await;
        cluster.until_in_sync().await;
        let back = cluster.management.changes.lock().unwrap();
        let states: Vec<MemberState> = back.iter().map(|change| change.state).collect();
        assert_eq!(states, [MemberState::NeedsResync, MemberState::Resyncing, MemberState::InSync]);
    });
}

#[test]
fn a_rate_that_is_changed_and_a_pause_hold_for_a_resync_that_runs() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &vec![1; 24 * MIB as usize]).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.write(INO, 3, 0, &vec![2; 24 * MIB as usize]).await;
        cluster.set_link(2, LinkState::Open);
        // So slowly that it would never end.
        cluster.management.edit(|map| map.settings.resync.rate = Some(1000));
        cluster.enable_resync();
        let sent = || cluster.link(2).resynced.load(Ordering::SeqCst);
        cluster.until("it has begun", || sent() > 0).await;
        rt::sleep(Duration::from_secs(1)).await;
        let before = sent();
        assert!(before < 24 * MIB && cluster.management.state(2) == MemberState::Resyncing);
        cluster.management.edit(|map| {
            (map.settings.resync.paused, map.settings.resync.rate) = (true, Some(1 << 30));
        });
        rt::sleep(Duration::from_secs(1)).await;
        assert_eq!(sent(), before, "it is paused");
        let resyncs = || cluster.link(1).service.lock().unwrap().as_ref().unwrap().resyncs();
        assert!(resyncs()[0].hindrance.as_ref().is_some_and(|why| why.contains("paused")), "{:?}", resyncs());
        cluster.write(INO, 3, 12 * MIB, &[3; 5000]).await;
        cluster.management.edit(|map| map.settings.resync.paused = false);
        cluster.until_in_sync().await;
        assert_eq!(cluster.on_disk(2).await[&INO][12 * MIB as usize], 3);
    });
}

#[test]
fn a_deadline_overrides_the_rate() {
    with_members(2, |cluster| async move {
        cluster.set_link(2, LinkState::Closed);
        cluster.write(INO, 3, 0, &vec![2; 24 * MIB as usize]).await;
        cluster.set_link(2, LinkState::Open);
        cluster.management.edit(|map| {
            (map.settings.resync.rate, map.settings.resync.within_s) = (Some(1000), Some(3));
        });
        cluster.enable_resync();
        cluster.until_in_sync().await;
    });
}

#[test]
fn a_member_that_fails_during_its_resync_begins_again() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &vec![1; 2 * MIB as usize]).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.write(INO, 3, 0, &vec![2; 3 * MIB as usize]).await;
        cluster.enable_resync();
        cluster.until("it was tried", || cluster.management.changes.lock().unwrap().len() >= 3).await;
        assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
        cluster.write(INO, 3, MIB, &[3; 5000]).await;
        cluster.set_link(2, LinkState::Open);
        cluster.until_in_sync().await;
    });
}

/// Otherwise a power failure right afterwards takes what an fsync has covered on the other
/// replicas.
#[test]
fn a_member_is_in_sync_once_everything_is_on_its_disk() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; 20_000]).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.write(INO, 3, 0, &[2; 20_000]).await;
        cluster.set_link(2, LinkState::Open);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let note = move |request: &StorageRequest| {
            if request.group.is_some_and(|group| group.role == GroupRole::Resync) {
                seen.lock().unwrap().push(request.op.clone());
            }
        };
        *cluster.link(2).after.lock().unwrap() = Some(Box::new(note));
        cluster.enable_resync();
        cluster.until_in_sync().await;
        let asked = asked.lock().unwrap();
        let counts = asked.iter().position(|op| matches!(op, StorageOp::AdoptVerifier { .. })).unwrap();
        let sent = asked[..counts].iter().rposition(|op| matches!(op, StorageOp::Write { .. })).unwrap();
        assert!(asked[sent..counts].contains(&StorageOp::SyncTarget), "{asked:?}");
    });
}

#[test]
fn a_bad_member_gets_everything_and_keeps_nothing_else() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &vec![1; 2 * MIB as usize]).await;
        cluster.write(ChunkFileId(40), 3, 0, &[4; 100]).await;
        cluster.management.set(1, MemberState::NeedsResync);
        cluster.ask_file(ChunkFileId(40), (3, None), StorageOp::Delete, None).await.unwrap();
        cluster.write(ChunkFileId(41), 3, 0, &[5; 100]).await;
        cluster.management.set(1, MemberState::NeedsRebuild);
        cluster.enable_resync();
        cluster.until_in_sync().await;
        assert!(cluster.link(1).resynced.load(Ordering::SeqCst) >= 2 * MIB);
        assert_eq!(cluster.on_disk(1).await.len(), 2);
    });
}

#[test]
fn resync_transfers_sequence_ids() {
    with_members(2, |cluster| async move {
        let write = StorageOp::Write { offset: 0, path: Way::Cached, durable: false };
        let block = |byte| Some(IoBuf::from_slice(&[byte; 4096]));
        let number = Some(SlotSequence { slot: 0, sequence: 1 });
        cluster.set_link(2, LinkState::Closed);
        cluster.ask_file(INO, (3, number), write.clone(), block(1)).await.unwrap();
        cluster.ask_file(INO, (4, number), write.clone(), block(2)).await.unwrap();
        cluster.set_link(2, LinkState::Open);
        cluster.enable_resync();
        cluster.until_in_sync().await;
        // The first client hasn't got the answer, and the primary is gone.
        cluster.set_link(1, LinkState::Closed);
        cluster.management.set_online(1, false);
        cluster.management.set(1, MemberState::NeedsResync);
        cluster.ask_file(INO, (3, number), write, block(1)).await.unwrap();
        assert_eq!(cluster.read(INO, 4096).await, [2; 4096]);
    });
}

/// Both processes die; a change that was begun and not answered may be on one of them.
#[test]
fn after_a_crash_of_all_the_copies_are_equal_again() {
    let (mut machine, management) = (Machine::new(1), Management::new(2));
    let (targets, told) = (Path::new(targets::SIMULATED_DIR), management.clone());
    let run = async move {
        let cluster = Cluster::start(targets, told).await;
        cluster.write(INO, 3, 0, &[1; 8192]).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.management.is_unreachable.store(true, Ordering::SeqCst);
        let half = cluster.clone();
        rt::spawn(async move { half.write(INO, 3, 4096, &[2; 10_000]).await });
        cluster.until_found("one has it", async || cluster.on_disk(1).await[&INO].len() > 8192).await;
        assert_eq!(cluster.on_disk(2).await[&INO].len(), 8192);
    };
    machine.run(run).unwrap();
    machine.kill();
    let run = async move {
        management.is_unreachable.store(false, Ordering::SeqCst);
        management.files.lock().unwrap().insert(INO, 18_192);
        // Management hadn't reached the second one when the first came back, so both count as in
        // sync.
        let cluster = Cluster::start(targets, management).await;
        cluster.enable_resync();
        let found = cluster.read(INO, 8192).await;
        cluster.until_in_sync().await;
        assert_eq!(cluster.on_disk(2).await[&INO][..8192], found);
        let changes = cluster.management.changes.lock().unwrap();
        assert_eq!(
            changes.first().map(|change| (change.target.0, change.state)),
            Some((2, MemberState::NeedsResync))
        );
    };
    machine.run(run).unwrap();
}
