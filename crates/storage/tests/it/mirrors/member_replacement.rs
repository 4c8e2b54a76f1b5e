//! Other targets replace members.

use super::cluster::{Cluster, GROUP, INO, LinkState, MIB, with_others, with_others_on_disk};
use chunkstore::Store;
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{ByteRange, ChunkFileId, MemberState, TargetId};
use wire::StorageOp;

/// Clients that write until they are stopped.
struct Clients {
    are_done: Rc<Cell<bool>>,
    left: Rc<Cell<u32>>,
    written: Rc<Cell<u64>>,
}

impl Clients {
    fn start(cluster: &Arc<Cluster>, count: u32) -> Clients {
        let clients =
            Clients { are_done: Rc::default(), left: Rc::new(Cell::new(count)), written: Rc::default() };
        for client in 0..u64::from(count) {
            let cluster = cluster.clone();
            let (are_done, left, written) =
                (clients.are_done.clone(), clients.left.clone(), clients.written.clone());
            rt::spawn(async move {
                let mut round = 0;
                while !are_done.get() {
                    round += 1;
                    let offset = (round * 1_234_567 + client * 777_777) % (7 * MIB);
                    let data = vec![(client * 50 + round % 50) as u8; 9000];
                    cluster.write(INO, 3 + client, offset, &data).await;
                    if round % 11 == 3 {
                        let ino = ChunkFileId(100 + round % 5);
                        cluster.write(ino, 3 + client, 0, &data).await;
                        let op = StorageOp::Truncate { len: (round * 99_999) % MIB };
                        cluster.ask_file(ino, (3 + client, None), op, None).await.unwrap();
                    }
                    written.set(written.get() + 1);
                }
                left.set(left.get() - 1);
            });
        }
        clients
    }

    async fn stop(self, cluster: &Cluster) {
        let before = self.written.get();
        cluster.until("writes go on", || self.written.get() > before + 5).await;
        self.are_done.set(true);
        cluster.until("the clients are done", || self.left.get() == 0).await;
    }
}

async fn fill(cluster: &Cluster) {
    for ino in 20..30 {
        cluster.write(ChunkFileId(ino), 3, 0, &vec![ino as u8; MIB as usize + ino as usize]).await;
    }
    cluster.write(ChunkFileId(30), 3, 5 * MIB, &[8; 5000]).await;
}

#[test]
fn a_lost_member_is_rebuilt_elsewhere_during_writes() {
    for members in [2, 3] {
        with_others_on_disk(members, 1, move |cluster| async move {
            cluster.links.values().for_each(|link| link.jitter.store(true, Ordering::SeqCst));
            fill(&cluster).await;
            cluster.set_link(2, LinkState::Closed);
            cluster.management.set_online(2, false);
            let new = members + 1;
            let clients = Clients::start(&cluster, 3);
            cluster.until("it is out", || cluster.management.state(2) != MemberState::InSync).await;
            cluster.management.add_member(new, (2, false));
            cluster.enable_resync();
            cluster.until("all are good", || !cluster.management.group().is_degraded()).await;
            clients.stop(&cluster).await;
            cluster.until_in_sync().await;
            assert!(cluster.management.group().members.contains(&TargetId(new)));
            assert_eq!(cluster.on_disk(new).await[&ChunkFileId(25)].len() as u64, MIB + 25);
            // The lost member comes back after all: its replica is removed, and not used otherwise.
            assert!(cluster.has_group(2).await);
            cluster.set_link(2, LinkState::Open);
            cluster.management.set_online(2, true);
            cluster.until_found("its leftover is removed", async || !cluster.has_group(2).await).await;
            assert!(cluster.has_group(1).await && cluster.has_group(new).await);
            cluster.require_equal().await;
        });
    }
}

#[test]
fn a_left_replica_stays_while_members_are_out_of_sync() {
    with_others_on_disk(2, 1, |cluster| async move {
        fill(&cluster).await;
        cluster.management.edit(|map| map.settings.resync.paused = true);
        cluster.management.add_member(3, (2, false));
        cluster.enable_resync();
        rt::sleep(std::time::Duration::from_secs(15)).await;
        assert!(cluster.has_group(2).await, "there is one good copy beside it");
        cluster.management.edit(|map| map.settings.resync.paused = false);
        cluster.until_in_sync().await;
        cluster.until_found("its leftover is removed", async || !cluster.has_group(2).await).await;
        // It may become a member again, and starts empty.
        cluster.management.add_member(2, (1, false));
        cluster.until_in_sync().await;
        cluster.until_found("the other's leftover is removed", async || !cluster.has_group(1).await).await;
        cluster.require_equal().await;
    });
}

#[test]
fn a_member_leaves_when_another_one_has_everything() {
    // The primary, and a second member.
    for leaving in [1, 2] {
        with_others_on_disk(2, 1, move |cluster| async move {
            cluster.links.values().for_each(|link| link.jitter.store(true, Ordering::SeqCst));
            fill(&cluster).await;
            let clients = Clients::start(&cluster, 4);
            cluster.management.add_member(3, (leaving, true));
            cluster.enable_resync();
            cluster.until("it has left", || cluster.management.group().members.len() == 2).await;
            assert_eq!(cluster.management.group().state_of(TargetId(leaving)), None);
            clients.stop(&cluster).await;
            cluster.until_in_sync().await;
            let states: Vec<MemberState> =
                cluster.management.changes.lock().unwrap().iter().map(|change| change.state).collect();
            assert!(!states.contains(&MemberState::NeedsResync), "there were fewer copies: {states:?}");
            cluster.until_found("its leftover is removed", async || !cluster.has_group(leaving).await).await;
        });
    }
}

#[test]
fn a_primary_that_can_not_leave_yet_continues() {
    with_others(2, 1, |cluster| async move {
        fill(&cluster).await;
        let clients = Clients::start(&cluster, 2);
        cluster.management.refuses_to_leave.store(true, Ordering::SeqCst);
        cluster.management.add_member(3, (1, true));
        cluster.enable_resync();
        let refused = || cluster.management.refusals.load(Ordering::SeqCst);
        cluster.until("it was refused", || refused() > 2).await;
        assert_eq!(cluster.read(ChunkFileId(21), 10).await, [21; 10]);
        clients.stop(&cluster).await;
        cluster.management.refuses_to_leave.store(false, Ordering::SeqCst);
        cluster.until("it has left", || cluster.management.group().members.len() == 2).await;
        cluster.until_in_sync().await;
    });
}

/// The repair of a large file takes longer than any client waits.
#[test]
fn a_leaving_primary_does_not_delay_changes() {
    with_others(2, 1, |cluster| async move {
        fill(&cluster).await;
        cluster.management.refuses_to_leave.store(true, Ordering::SeqCst);
        cluster.management.add_member(3, (1, true));
        cluster.enable_resync();
        let refused = || cluster.management.refusals.load(Ordering::SeqCst);
        cluster.until("it was refused", || refused() > 0).await;
        cluster.set_link(2, LinkState::Late);
        let (mending, is_mended) = (cluster.clone(), Rc::new(Cell::new(false)));
        let told = is_mended.clone();
        rt::spawn(async move {
            let mend = StorageOp::CopyReplica {
                from: TargetId(2),
                to: TargetId(1),
                range: ByteRange::new(0, u64::MAX),
            };
            // It may be abandoned or complete: either is fine.
            let _ = mending.ask_file(ChunkFileId(21), (0, None), mend, None).await;
            told.set(true);
        });
        rt::sleep(Duration::from_millis(300)).await;
        cluster.set_link(2, LinkState::Open);
        let so_far = refused();
        // It asks to leave at every check of the map, which is all the time.
        rt::sleep(Duration::from_millis(1000)).await;
        assert_eq!(refused(), so_far, "it waits for what is under way");
        cluster.write(INO, 3, 0, &[1; 100]).await;
        assert!(!is_mended.get(), "the write has waited for it");
        cluster.link(2).late.set();
        cluster.until("the mending has ended", || is_mended.get()).await;
        cluster.management.refuses_to_leave.store(false, Ordering::SeqCst);
        cluster.until("it has left", || cluster.management.group().members.len() == 2).await;
        cluster.until_in_sync().await;
    });
}

/// Creates a folder that can't be removed by its path, which exceeds the system's limit.
fn make_irremovable(dir: &Path, scratch: &Path) {
    let deep = |begin: &Path| {
        let path = (0..12).fold(begin.to_path_buf(), |path: PathBuf, _| path.join("x".repeat(250)));
        fs::create_dir_all(&path).unwrap();
        path
    };
    let inside = deep(&dir.join("deep"));
    deep(scratch);
    fs::rename(scratch, inside.join("deeper")).unwrap();
}

#[test]
fn a_target_whose_leftover_of_a_group_can_not_be_removed_becomes_a_member_again() {
    with_others_on_disk(2, 1, |cluster| async move {
        fill(&cluster).await;
        let target = cluster.dir.join("2");
        make_irremovable(&Store::group_dir(&target, GROUP), &cluster.dir.join("scratch"));
        let service = cluster.link(2).service.lock().unwrap().clone().unwrap();
        let errors = || service.counters(TargetId(2)).unwrap().io_errors;
        cluster.management.add_member(3, (2, false));
        cluster.enable_resync();
        cluster.until("the removal has failed", || errors() > 0).await;
        assert!(!cluster.has_group(2).await, "it was put aside");
        cluster.management.add_member(2, (1, false));
        cluster.until_in_sync().await;
        assert!(cluster.management.group().members.contains(&TargetId(2)));
    });
}
