//! Changes of a group whose members are available, fail, and replace each other.

use super::cluster::{Cluster, INO, LinkState, with_members, with_members_on_disk};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{ByteRange, ChunkFileId, Errno, MemberState, Refusal};
use wire::{AllocateMode, DataPath as Way, GroupRole, SeekTarget, SlotSequence, StorageOp, StorageReply};

const WRITE: StorageOp = StorageOp::Write { offset: 0, path: Way::Cached, durable: false };

fn block(byte: u8) -> Option<IoBuf> {
    Some(IoBuf::from_slice(&[byte; 4096]))
}

#[test]
fn answered_changes_are_on_all_replicas() {
    with_members(3, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; 10_000]).await;
        cluster.require_equal().await;
        assert_eq!(cluster.on_disk(2).await[&INO], [1; 10_000]);
        let ask = async |op| cluster.ask_file(INO, (3, None), op, None).await.unwrap();
        ask(StorageOp::Allocate { range: ByteRange::new(0, 4096), how: AllocateMode::Punch }).await;
        ask(StorageOp::Truncate { len: 9000 }).await;
        ask(StorageOp::Sync).await;
        ask(StorageOp::SyncTarget).await;
        cluster.require_equal().await;
        assert_eq!(cluster.on_disk(3).await[&INO], [vec![0; 4096], vec![1; 9000 - 4096]].concat());
        assert_eq!(cluster.read(INO, 9000).await, cluster.on_disk(3).await[&INO]);
        let seek = StorageOp::Seek { from: 0, what: SeekTarget::Data };
        assert_eq!(ask(seek).await, StorageReply::Offset(Some(4096)));
        assert!(matches!(ask(StorageOp::Stat).await, StorageReply::Stat { len: 9000, .. }));
        let StorageReply::SpaceNeeded(room) =
            ask(StorageOp::SpaceNeeded { range: ByteRange::new(0, 8192) }).await
        else {
            panic!("no room is told")
        };
        assert_eq!((room.unallocated, room.gaps), (4096, vec![ByteRange::new(0, 4096)]));
        let others: Vec<(u32, u64)> =
            room.others.iter().map(|other| (other.target.0, other.wanted)).collect();
        assert_eq!(others, [(2, 4096), (3, 4096)], "each gets what is reserved");
        cluster.write(ChunkFileId(12), 3, 0, &[2; 100]).await;
        ask(StorageOp::Delete).await;
        cluster.require_equal().await;
        assert_eq!(cluster.on_disk(2).await.len(), 1);
        // Every member keeps its replica of a file that is set aside.
        cluster.ask_file(ChunkFileId(12), (0, None), StorageOp::SetAside, None).await.unwrap();
        cluster.require_equal().await;
        assert!(cluster.on_disk(1).await.is_empty() && cluster.on_disk(2).await.is_empty());
        assert!(cluster.management.changes.lock().unwrap().is_empty());
    });
}

/// A member that is being resynced gets the reservation, too.
#[test]
fn the_primary_alone_says_what_a_reservation_needs_on_all_that_get_it() {
    with_members(3, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; 4096]).await;
        cluster.management.set(3, MemberState::NeedsResync);
        let needs = async |target| {
            let since = cluster.management.group().since.0;
            let op = StorageOp::SpaceNeeded { range: ByteRange::new(0, 8192) };
            let answer = cluster.ask_one(target, (since, GroupRole::Primary), (3, None), op, None).await;
            let StorageReply::SpaceNeeded(room) = answer.map_err(|error| error.errno)? else {
                panic!("no room is told")
            };
            let others = room.others.iter().map(|other| (other.target.0, other.wanted));
            Ok::<Vec<(u32, u64)>, Errno>(others.collect())
        };
        assert_eq!(needs(1).await, Ok(vec![(2, 4096)]), "one that needs a resync gets nothing yet");
        cluster.management.set(3, MemberState::Resyncing);
        assert_eq!(needs(1).await, Ok(vec![(2, 4096), (3, 4096)]));
        assert_eq!(
            needs(2).await,
            Err(Refusal::GroupVersionMismatch.into()),
            "it knows nothing of the others"
        );
    });
}

#[test]
fn writes_that_overlap_have_one_order_on_all_copies() {
    with_members(3, |cluster| async move {
        cluster.links.values().for_each(|link| link.jitter.store(true, Ordering::SeqCst));
        let left = Rc::new(Cell::new(8));
        for client in 0..8u8 {
            let (cluster, left) = (cluster.clone(), left.clone());
            rt::spawn(async move {
                for round in 0..12u64 {
                    let offset = (round * 37 + u64::from(client) * 11) % 20 * 512;
                    let data = vec![client * 16 + round as u8; 3000 + 300 * usize::from(client)];
                    cluster.write(INO, u64::from(client) + 3, offset, &data).await;
                }
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            rt::sleep(Duration::from_millis(5)).await;
        }
        cluster.require_equal().await;
        assert!(!cluster.management.group().is_degraded());
    });
}

/// The answer to a request, once there is one.
type Answered = Rc<RefCell<Option<Result<StorageReply, Errno>>>>;

/// Begins a write of a block; the result will hold its answer.
fn begin(cluster: &Arc<Cluster>, byte: u8) -> Answered {
    begin_as(cluster, byte, None)
}

fn begin_as(cluster: &Arc<Cluster>, byte: u8, number: Option<SlotSequence>) -> Answered {
    let (cluster, answer) = (cluster.clone(), Rc::new(RefCell::new(None)));
    let told = answer.clone();
    rt::spawn(async move {
        let answer = cluster.ask_file(INO, (3, number), WRITE, block(byte)).await;
        *told.borrow_mut() = Some(answer.map_err(|error| error.errno));
    });
    answer
}

#[test]
fn no_answer_before_a_failed_member_is_ejected() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; 4096]).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.management.is_unreachable.store(true, Ordering::SeqCst);
        let answer = begin(&cluster, 2);
        rt::sleep(Duration::from_millis(300)).await;
        assert!(answer.borrow().is_none(), "the other copy doesn't have it, and counts");
        // Reads wait, too: the other member may be the next primary.
        let read = {
            let (cluster, read) = (cluster.clone(), Rc::new(RefCell::new(None)));
            let told = read.clone();
            rt::spawn(async move {
                let found = cluster.read(INO, 4096).await;
                *told.borrow_mut() = Some(found);
            });
            read
        };
        rt::sleep(Duration::from_millis(100)).await;
        assert!(read.borrow().is_none());
        cluster.management.is_unreachable.store(false, Ordering::SeqCst);
        cluster.until("the write is answered", || answer.borrow().is_some()).await;
        assert!(matches!(*answer.borrow(), Some(Ok(StorageReply::Done { .. }))));
        assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
        cluster.until("the read is answered", || read.borrow().is_some()).await;
        assert_eq!(read.borrow().as_deref(), Some(&[2; 4096][..]));
        assert_eq!(cluster.on_disk(2).await[&INO], [1; 4096]);
    });
}

#[test]
fn a_member_that_hangs_does_not_hold_a_client_for_long() {
    with_members(2, |cluster| async move {
        cluster.set_link(2, LinkState::Silent);
        let answer = begin(&cluster, 2);
        cluster.until("the write is answered", || answer.borrow().is_some()).await;
        assert!(matches!(*answer.borrow(), Some(Ok(StorageReply::Done { .. }))));
        assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
    });
}

/// A sync may take a disk long. But no answer is to be expected from a node that management doesn't
/// reach either.
#[test]
fn a_sync_does_not_wait_for_an_unreachable_member() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; 4096]).await;
        cluster.set_link(2, LinkState::Silent);
        cluster.management.set_online(2, false);
        cluster.ask_file(INO, (3, None), StorageOp::Sync, None).await.unwrap();
        let changes = cluster.management.changes.lock().unwrap();
        assert_eq!((changes.len(), changes[0].state), (1, MemberState::NeedsResync));
        // The time-out of a write, and not the five times longer one of a sync.
        assert!(!changes[0].reason.contains("within 2"), "{}", changes[0].reason);
    });
}

/// An unanswered request isn't sent again under the same version: it could arrive late and
/// overwrite newer content.
#[test]
fn a_late_request_does_not_undo_later_writes() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; 4096]).await;
        cluster.set_link(2, LinkState::Late);
        cluster.management.is_unreachable.store(true, Ordering::SeqCst);
        let answer = begin(&cluster, 2);
        rt::sleep(Duration::from_millis(5500)).await;
        cluster.set_link(2, LinkState::Open);
        rt::sleep(Duration::from_millis(1500)).await;
        assert!(answer.borrow().is_none(), "one is on its way yet");
        cluster.management.is_unreachable.store(false, Ordering::SeqCst);
        cluster.enable_resync();
        cluster.until("the write is answered", || answer.borrow().is_some()).await;
        cluster.write(INO, 3, 0, &[3; 4096]).await;
        cluster.until_in_sync().await;
        cluster.link(2).late.set();
        rt::sleep(Duration::from_millis(300)).await;
        cluster.require_equal().await;
        assert_eq!(cluster.on_disk(2).await[&INO], [3; 4096]);
    });
}

#[test]
fn requests_of_other_versions_are_refused_or_wait() {
    with_members(2, |cluster| async move {
        cluster.management.set(2, MemberState::NeedsResync);
        cluster.management.set(2, MemberState::Resyncing);
        let member = GroupRole::Member { sequence: 1, committed: 0 };
        let now = cluster.management.group().since.0;
        for (target, part, since) in [
            (1, GroupRole::Primary, now - 1),
            (2, member, now - 1),
            (2, GroupRole::Resync, now - 1),
            // It isn't the primary, and the other isn't being resynced.
            (2, GroupRole::Primary, now),
            (1, GroupRole::Resync, now),
        ] {
            let refused = cluster.ask_one(target, (since, part), (3, None), WRITE, block(1)).await;
            assert_eq!(
                refused.unwrap_err().errno,
                Refusal::GroupVersionMismatch,
                "{target} {part:?} {since}"
            );
        }
        let later = {
            let (cluster, map) = (cluster.clone(), cluster.map_of(2));
            rt::spawn(async move {
                rt::sleep(Duration::from_millis(100)).await;
                let mut next = types::ClusterMap::clone(&map.load());
                next.groups[0].since.0 += 1;
                map.store(Arc::new(next));
            });
            cluster.ask_one(2, (now + 1, member), (3, None), WRITE, block(1)).await
        };
        later.unwrap();
        // The late request isn't executed any more.
        let late = cluster.ask_one(2, (now, member), (3, None), WRITE, block(2)).await;
        assert_eq!(late.unwrap_err().errno, Refusal::GroupVersionMismatch);
        assert_eq!(cluster.on_disk(2).await[&INO], [1; 4096]);
    });
}

#[test]
fn a_numbered_write_that_is_repeated_at_the_new_primary_is_done_once() {
    with_members(2, |cluster| async move {
        let number = Some(SlotSequence { slot: 0, sequence: 1 });
        cluster.ask_file(INO, (3, number), WRITE, block(1)).await.unwrap();
        cluster.ask_file(INO, (4, number), WRITE, block(2)).await.unwrap();
        cluster.management.set(1, MemberState::NeedsResync);
        assert_eq!(cluster.management.group().primary().unwrap().0, 2);
        cluster.ask_file(INO, (3, number), WRITE, block(1)).await.unwrap();
        assert_eq!(cluster.read(INO, 4096).await, [2; 4096]);
        let next = Some(SlotSequence { slot: 0, sequence: 2 });
        cluster.ask_file(INO, (3, next), WRITE, block(3)).await.unwrap();
        assert_eq!(cluster.read(INO, 4096).await, [3; 4096]);
    });
}

#[test]
fn a_session_that_was_ended_is_ended_for_all_groups() {
    with_members(2, |cluster| async move {
        let service = cluster.link(1).service.lock().unwrap().clone().unwrap();
        let fence = StorageOp::Fence { session: types::SessionId(3) };
        let fence = wire::StorageRequest::new(types::SessionId(0), types::TargetId(1), INO, fence);
        net::Handler::handle(&*service, fence, None).await.unwrap();
        let late = cluster.ask_file(INO, (3, None), WRITE, block(1)).await;
        assert_eq!(late.unwrap_err().errno, Errno::ESTALE);
        // A member executes what the primary has admitted.
        cluster.management.set(1, MemberState::NeedsResync);
        cluster.management.set(1, MemberState::Resyncing);
        cluster.ask_file(INO, (3, None), WRITE, block(1)).await.unwrap();
        assert_eq!(cluster.on_disk(1).await[&INO], [1; 4096]);
    });
}

#[test]
fn damage_at_the_primary_is_no_damage_to_its_clients() {
    with_members_on_disk(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[5; 8192]).await;
        let mut folders =
            vec![chunkstore::Store::group_dir(&cluster.dir.join("1"), super::cluster::GROUP).join("chunks")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_none() {
                    std::fs::write(path, [6; 8192]).unwrap();
                }
            }
        }
        assert_eq!(cluster.read(INO, 8192).await, [5; 8192]);
        let service = cluster.link(1).service.lock().unwrap().clone().unwrap();
        assert_eq!(service.counters(types::TargetId(1)).unwrap().io_errors, 1);
    });
}

/// What the old primary had begun when it was cut off is on its own disk only.
#[test]
fn a_replaced_primary_is_resynced_from_the_new_one() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; 4096]).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.management.is_unreachable.store(true, Ordering::SeqCst);
        let answer = begin(&cluster, 2);
        cluster
            .until_found("the old primary has it", async || cluster.on_disk(1).await[&INO] == [2; 4096])
            .await;
        cluster.management.set(1, MemberState::NeedsResync);
        cluster.set_link(2, LinkState::Open);
        cluster.set_link(1, LinkState::Closed);
        cluster.management.is_unreachable.store(false, Ordering::SeqCst);
        // The client sends it again, to the new primary.
        cluster.until("the write is answered", || answer.borrow().is_some()).await;
        assert!(matches!(*answer.borrow(), Some(Ok(StorageReply::Done { .. }))));
        cluster.write(INO, 3, 0, &[3; 4096]).await;
        cluster.set_link(1, LinkState::Open);
        cluster.enable_resync();
        cluster.until_in_sync().await;
        assert_eq!(cluster.on_disk(1).await[&INO], [3; 4096]);
        assert_eq!(cluster.management.group().primary().unwrap().0, 2);
    });
}

/// The new primary executed the numbered write that the old one was executing when it was replaced:
/// its outcome holds when the old one is resynced.
#[test]
fn a_numbered_write_that_two_primaries_had_begun_is_done() {
    with_members(2, |cluster| async move {
        cluster.write(INO, 3, 0, &[1; 4096]).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.management.is_unreachable.store(true, Ordering::SeqCst);
        let answer = begin_as(&cluster, 2, Some(SlotSequence { slot: 0, sequence: 1 }));
        cluster
            .until_found("the old primary has it", async || cluster.on_disk(1).await[&INO] == [2; 4096])
            .await;
        cluster.management.set(1, MemberState::NeedsResync);
        cluster.set_link(2, LinkState::Open);
        cluster.management.is_unreachable.store(false, Ordering::SeqCst);
        cluster.until("the write is answered", || answer.borrow().is_some()).await;
        assert!(matches!(*answer.borrow(), Some(Ok(StorageReply::Done { .. }))));
        cluster.enable_resync();
        cluster.until_in_sync().await;
        assert_eq!(cluster.on_disk(1).await[&INO], [2; 4096]);
    });
}

/// A disk without space for the group's folder, for example.
#[test]
fn a_primary_that_can_not_create_its_replica_steps_down() {
    with_members_on_disk(2, |cluster| async move {
        let place = chunkstore::Store::group_dir(&cluster.dir.join("1"), super::cluster::GROUP);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, "no folder").unwrap();
        cluster.write(INO, 3, 0, &[1; 4096]).await;
        assert_eq!(cluster.management.state(1), MemberState::NeedsResync);
        assert_eq!(cluster.on_disk(2).await[&INO], [1; 4096]);
        std::fs::remove_file(&place).unwrap();
        cluster.enable_resync();
        cluster.until_in_sync().await;
    });
}

/// Makes a target unable to create files of the group, like a broken disk.
async fn break_disk(cluster: &Cluster, target: u32) {
    // Gives it some content of the group.
    cluster.write(ChunkFileId(12), 3, 0, &[9; 4096]).await;
    let group = chunkstore::Store::group_dir(&cluster.dir.join(target.to_string()), super::cluster::GROUP);
    std::fs::rename(group.join("chunks"), group.join("was")).unwrap();
    std::fs::write(group.join("chunks"), "no folder").unwrap();
}

#[test]
fn a_primary_whose_disk_fails_steps_down() {
    with_members_on_disk(2, |cluster| async move {
        break_disk(&cluster, 1).await;
        cluster.write(INO, 3, 0, &[1; 4096]).await;
        assert_eq!(cluster.management.state(1), MemberState::NeedsResync);
        assert_eq!(cluster.on_disk(2).await[&INO], [1; 4096]);
    });
}

/// Management doesn't eject the last reachable member: otherwise the primary would ask for it
/// forever, and delay all requests.
#[test]
fn a_primary_whose_disk_fails_stays_when_its_successor_dies() {
    with_members_on_disk(2, |cluster| async move {
        break_disk(&cluster, 1).await;
        cluster.management.is_unreachable.store(true, Ordering::SeqCst);
        let answer = begin(&cluster, 1);
        cluster
            .until_found("the other one has it", async || cluster.on_disk(2).await.contains_key(&INO))
            .await;
        rt::sleep(Duration::from_millis(100)).await;
        cluster.set_link(2, LinkState::Closed);
        cluster.management.set_online(2, false);
        cluster.management.is_unreachable.store(false, Ordering::SeqCst);
        cluster.until("the write is answered", || answer.borrow().is_some()).await;
        assert!(matches!(*answer.borrow(), Some(Err(Errno::EIO))), "{:?}", answer.borrow());
        assert_eq!(cluster.management.state(1), MemberState::InSync);
        assert_eq!(cluster.management.state(2), MemberState::NeedsResync);
    });
}

/// The others know of the failure before the primary gets their answers: no application sees an
/// error of a disk that isn't needed.
#[test]
fn a_failure_at_a_replaced_primary_is_retried_at_the_next_one() {
    with_members_on_disk(2, |cluster| async move {
        break_disk(&cluster, 1).await;
        let before = cluster.map_of(1).load();
        cluster.management.set(1, MemberState::NeedsResync);
        let after = cluster.map_of(1).load();
        cluster.map_of(1).store(before);
        let late = cluster.map_of(1);
        rt::spawn(async move {
            rt::sleep(Duration::from_millis(300)).await;
            late.store(after);
        });
        let answer = cluster.ask_one(1, (1, GroupRole::Primary), (3, None), WRITE, block(1)).await;
        assert_eq!(answer.unwrap_err().errno, Refusal::GroupVersionMismatch);
        cluster.write(INO, 3, 0, &[1; 4096]).await;
        assert_eq!(cluster.on_disk(2).await[&INO], [1; 4096]);
    });
}
