//! Readers that choose a member themselves.

use super::cluster::{Cluster, GROUP, INO, LinkState, with_members, with_others};
use chunkstore::Store;
use net::Handler;
use rt::IoBuf;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{ByteRange, ChunkFileId, Epoch, Errno, GroupId, MemberState, Refusal, SessionId, TargetId};
use wire::{
    AllocateMode, DataPath as Way, GroupContext, GroupRole, SeekTarget, StorageOp, StorageReply,
    StorageRequest,
};

const BLOCK: usize = 4096;

/// Returns the current version of the group.
fn since(cluster: &Cluster) -> u64 {
    cluster.management.group().since.0
}

/// Waits until a member knows all changes that are on all replicas.
async fn settled(cluster: &Cluster, target: u32) {
    for _ in 0..1000 {
        if cluster.read_at(target, since(cluster), 0, 16 * BLOCK).await.is_ok() {
            return;
        }
        rt::sleep(Duration::from_millis(20)).await;
    }
    panic!("target {target} never answers");
}

#[test]
fn a_good_member_answers_where_everything_is_settled() {
    with_members(3, |cluster| async move {
        cluster.enable_resync();
        cluster.write(INO, 3, 0, &[1; 2 * BLOCK]).await;
        settled(&cluster, 2).await;
        for target in 1..=3 {
            settled(&cluster, target).await;
            assert_eq!(cluster.read_at(target, 1, 0, BLOCK).await, Ok(vec![1; BLOCK]));
            let ask = async |op| cluster.ask_one(target, (1, GroupRole::Primary), (3, None), op, None).await;
            assert!(matches!(ask(StorageOp::Stat).await, Ok(StorageReply::Stat { len: 8192, .. })));
            let seek = StorageOp::Seek { from: 0, what: SeekTarget::Hole };
            assert_eq!(ask(seek).await, Ok(StorageReply::Offset(Some(8192))));
        }
        // It executes no changes, and services send their requests to the primary.
        let write = StorageOp::Write { offset: 0, path: Way::Cached, durable: false };
        let data = Some(IoBuf::from_slice(&[9; BLOCK]));
        let refused = cluster.ask_one(2, (1, GroupRole::Primary), (3, None), write, data).await;
        assert_eq!(refused.unwrap_err().errno, Refusal::GroupVersionMismatch);
        let refused = cluster.ask_one(2, (1, GroupRole::Primary), (0, None), StorageOp::Stat, None).await;
        assert_eq!(refused.unwrap_err().errno, Refusal::GroupVersionMismatch);
    });
}

#[test]
fn unsettled_ranges_are_read_from_the_primary() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; BLOCK]).await;
        assert_eq!(cluster.read_at(2, 1, 0, 1).await, Err(Refusal::RedirectToPrimary.into()));
        assert_eq!(cluster.read_at(2, 1, BLOCK as u64, BLOCK).await, Ok(vec![0; BLOCK]));
        let stat = cluster.ask_one(2, (1, GroupRole::Primary), (3, None), StorageOp::Stat, None).await;
        assert_eq!(stat.unwrap_err().errno, Refusal::RedirectToPrimary, "it is about the whole file");
        // The next change reports that the previous one is settled.
        cluster.write(INO, 3, 2 * BLOCK as u64, &[2; BLOCK]).await;
        assert_eq!(cluster.read_at(2, 1, 0, BLOCK).await, Ok(vec![1; BLOCK]));
        assert_eq!(cluster.read_at(2, 1, 0, 2 * BLOCK + 1).await, Err(Refusal::RedirectToPrimary.into()));
        let punch = StorageOp::Allocate { range: ByteRange::at(0, BLOCK as u64), how: AllocateMode::Punch };
        cluster.ask_file(INO, (3, None), punch, None).await.unwrap();
        assert_eq!(cluster.read_at(2, 1, 0, BLOCK).await, Err(Refusal::RedirectToPrimary.into()));
        cluster.ask_file(INO, (3, None), StorageOp::Truncate { len: 10_000 }, None).await.unwrap();
        assert_eq!(
            cluster.read_at(2, 1, 0, 10_000).await.map(|data| data[8191..8193].to_vec()),
            Ok(vec![0, 2])
        );
        assert_eq!(cluster.read_at(2, 1, 10_000, 1).await, Err(Refusal::RedirectToPrimary.into()));
    });
}

#[test]
fn a_member_out_of_sync_serves_no_reads() {
    with_members(3, |cluster| async move {
        cluster.enable_resync();
        cluster.write(INO, 3, 0, &[1; BLOCK]).await;
        settled(&cluster, 3).await;
        cluster.link(3).lease.lock().unwrap().clone().unwrap().end();
        assert_eq!(
            cluster.read_at(3, 1, 0, BLOCK).await,
            Err(Refusal::RedirectToPrimary.into()),
            "it may have been taken out"
        );
        settled(&cluster, 2).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.write(INO, 3, 0, &[2; BLOCK]).await;
        cluster.set_link(2, LinkState::Open);
        assert_eq!(cluster.read_at(2, 1, 0, BLOCK).await, Err(Refusal::GroupVersionMismatch.into()));
        // In each state that it has while it is being resynced.
        while cluster.management.group().is_degraded() {
            let now = since(&cluster);
            let seen = cluster.read_at(2, now, 0, BLOCK).await;
            if now == since(&cluster) && cluster.management.state(2) != MemberState::InSync {
                assert!(
                    matches!(
                        seen,
                        Err(Errno::Refusal(Refusal::RedirectToPrimary | Refusal::GroupVersionMismatch))
                    ),
                    "{seen:?}"
                );
            }
            rt::sleep(Duration::from_millis(5)).await;
        }
        settled(&cluster, 2).await;
        assert_eq!(cluster.read_at(2, since(&cluster), 0, BLOCK).await, Ok(vec![2; BLOCK]));
    });
}

#[test]
fn ended_sessions_and_old_leases_read_nothing_on_any_member() {
    with_members(2, |cluster| async move {
        cluster.enable_resync();
        let ask = async |target, session, epoch, op| {
            let in_group = wire::GroupContext {
                group: super::cluster::GROUP,
                version: types::Epoch(1),
                role: GroupRole::Primary,
            };
            let request = wire::StorageRequest {
                group: Some(in_group),
                epoch,
                ..wire::StorageRequest::new(types::SessionId(session), TargetId(target), INO, op)
            };
            cluster.call(request, Some(IoBuf::from_slice(&[1; BLOCK]))).await.map_err(|error| error.errno)
        };
        let write = StorageOp::Write { offset: 0, path: Way::Cached, durable: false };
        let read = StorageOp::Read { offset: 0, path: Way::Cached };
        ask(1, 3, 7, write).await.unwrap();
        settled(&cluster, 2).await;
        assert_eq!(ask(2, 4, 7, read.clone()).await, Ok(StorageReply::Unit));
        assert_eq!(ask(2, 4, 6, read.clone()).await, Err(Refusal::RevokedLeaseEpoch.into()));
        let fence = StorageOp::Fence { session: types::SessionId(4) };
        let fence = wire::StorageRequest::new(types::SessionId(0), TargetId(2), INO, fence);
        cluster.call(fence, None).await.unwrap();
        assert_eq!(ask(2, 4, 7, read).await, Err(Errno::ESTALE));
    });
}

/// One of three members has a change that another lacks, and it replaces the primary. A client that
/// has read the change there must not read less from the other member afterwards, which doesn't
/// know yet that it was ejected.
#[test]
fn a_new_primary_waits_until_ejected_members_know() {
    with_members(3, |cluster| async move {
        cluster.enable_resync();
        cluster.write(INO, 3, 0, &[1; BLOCK]).await;
        settled(&cluster, 2).await;
        settled(&cluster, 3).await;
        cluster.set_link(3, LinkState::Closed);
        cluster.management.is_unreachable.store(true, Ordering::SeqCst);
        let half = cluster.clone();
        rt::spawn(async move { half.write(INO, 3, 0, &[2; BLOCK]).await });
        cluster
            .until_found("the second one has it", async || cluster.on_disk(2).await[&INO] == [2; BLOCK])
            .await;
        cluster.set_link(1, LinkState::Closed);
        cluster.set_link(3, LinkState::Open);
        cluster.management.without_maps.lock().unwrap().insert(TargetId(3));
        cluster.management.set(1, MemberState::NeedsResync);
        cluster.management.is_unreachable.store(false, Ordering::SeqCst);
        assert_eq!(cluster.management.group().primary(), Some(TargetId(2)));
        let seen = Rc::new(Cell::new(None));
        let (reader, told) = (cluster.clone(), seen.clone());
        rt::spawn(async move { told.set(Some(reader.read(INO, BLOCK).await[0])) });
        for _ in 0..40 {
            assert_eq!(cluster.read_at(3, 1, 0, BLOCK).await, Ok(vec![1; BLOCK]));
            assert_eq!(seen.get(), None, "somebody has read what another one doesn't show yet");
            rt::sleep(Duration::from_millis(20)).await;
        }
        cluster.management.receive_maps(3);
        cluster.until("the new primary answers", || seen.get().is_some()).await;
        assert_eq!(seen.get(), Some(2));
        assert_eq!(cluster.read_at(3, 1, 0, BLOCK).await, Err(Refusal::GroupVersionMismatch.into()));
    });
}

/// What readers of any member have seen of a block that counts up.
#[derive(Default)]
struct Seen {
    /// The larger of the last acknowledged number and the largest that any reader has seen.
    floor: Cell<u8>,
    begun: Cell<u8>,
    is_over: Cell<bool>,
    reads: [Cell<u32>; 4],
}

/// Reads a block from the members in turn, like clients whose map is outdated now and then.
async fn read_around(cluster: Arc<Cluster>, seen: Rc<Seen>, mut turn: u32) {
    while !seen.is_over.get() {
        turn = turn.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        let target = turn / 65_536 % 3 + 1;
        let (floor, version) = (seen.floor.get(), since(&cluster));
        if let Ok(data) = cluster.read_at(target, version, 0, 3 * BLOCK).await {
            let now = data[0];
            assert!(data.iter().all(|byte| *byte == now), "target {target} shows a part of a write");
            assert!(now >= floor, "target {target} shows {now} after {floor} was acknowledged or read");
            assert!(now <= seen.begun.get());
            seen.floor.set(seen.floor.get().max(now));
            seen.reads[target as usize].set(seen.reads[target as usize].get() + 1);
        }
        rt::sleep(Duration::from_micros(u64::from(turn / 1024 % 3000))).await;
    }
}

#[test]
fn readers_of_any_member_never_go_back_in_time() {
    with_members(3, |cluster| async move {
        cluster.enable_resync();
        cluster.links.values().for_each(|link| link.jitter.store(true, Ordering::SeqCst));
        let seen = Rc::<Seen>::default();
        let readers = Rc::new(Cell::new(6));
        for reader in 0..readers.get() {
            let (cluster, seen, readers) = (cluster.clone(), seen.clone(), readers.clone());
            rt::spawn(async move {
                read_around(cluster, seen, reader * 77).await;
                readers.set(readers.get() - 1);
            });
        }
        for number in 1..=120 {
            seen.begun.set(number);
            cluster.write(INO, 3, 0, &[number; 3 * BLOCK]).await;
            seen.floor.set(seen.floor.get().max(number));
            match number % 40 {
                // A secondary leaves and comes back; then the primary is replaced.
                8 => cluster.set_link(cluster.management.group().members[1].0, LinkState::Closed),
                20 => (1..=3).for_each(|target| cluster.set_link(target, LinkState::Open)),
                32 => {
                    cluster.until("all count", || !cluster.management.group().is_degraded()).await;
                    let primary = cluster.management.group().primary().unwrap();
                    cluster.management.set(primary.0, MemberState::NeedsResync);
                }
                // Long enough that members other than the primary know what is settled.
                other if other % 4 == 0 => rt::sleep(Duration::from_millis(400)).await,
                _ => rt::sleep(Duration::from_millis(5)).await,
            }
        }
        seen.is_over.set(true);
        cluster.until("all readers are done", || readers.get() == 0).await;
        let reads: Vec<u32> = seen.reads.iter().map(Cell::get).collect();
        assert!(reads[1..].iter().all(|reads| *reads > 20), "{reads:?}");
        cluster.until_in_sync().await;
    });
}

/// Otherwise any client could fill the disk: a store of a group takes space permanently.
#[test]
fn no_store_is_created_for_a_group_without_membership() {
    with_others(2, 1, |cluster| async move {
        cluster.enable_resync();
        for (target, group) in [(1, GroupId(4242)), (3, GROUP)] {
            for since in [0, 1] {
                let part = GroupRole::Primary;
                let request = StorageRequest {
                    group: Some(GroupContext { group, version: Epoch(since), role: part }),
                    ..StorageRequest::new(
                        SessionId(3),
                        TargetId(target),
                        ChunkFileId(1),
                        StorageOp::SyncTarget,
                    )
                };
                let service = cluster.link(target).service.lock().unwrap().clone().unwrap();
                service.handle(request, None).await.unwrap_err();
                let made = Store::group_dir(&cluster.dir.join(target.to_string()), group);
                assert!(rt::read_dir(&made).await.is_err(), "{} of version {since}", made.display());
            }
        }
        cluster.write(INO, 3, 0, &[1; BLOCK]).await;
        assert!(cluster.has_group(1).await && !cluster.has_group(3).await);
    });
}
