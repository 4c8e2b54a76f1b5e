//! Other targets take the place of members.

use crate::cluster::{Cluster, INO, MIB, Road, with_others};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{InodeId, MemberState, TargetId};
use wire::StorageOp;

/// Clients that write until they are told to stop.
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
                        let ino = InodeId(100 + round % 5);
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
        cluster.write(InodeId(ino), 3, 0, &vec![ino as u8; MIB as usize + ino as usize]).await;
    }
    cluster.write(InodeId(30), 3, 5 * MIB, &[8; 5000]).await;
}

#[test]
fn a_lost_member_is_built_anew_elsewhere_while_writes_go_on() {
    for members in [2, 3] {
        with_others(members, 1, move |cluster| async move {
            cluster.links.values().for_each(|link| link.jitter.store(true, Ordering::SeqCst));
            fill(&cluster).await;
            cluster.set_road(2, Road::Closed);
            cluster.management.set_online(2, false);
            let new = members + 1;
            let clients = Clients::start(&cluster, 3);
            cluster.until("it is out", || cluster.management.state(2) != MemberState::Good).await;
            cluster.management.bring(new, (2, false));
            cluster.drive();
            cluster.until("all are good", || !cluster.management.group().is_degraded()).await;
            clients.stop(&cluster).await;
            cluster.in_step().await;
            assert!(cluster.management.group().members.contains(&TargetId(new)));
            assert_eq!(cluster.on_disk(new)[&InodeId(25)].len() as u64, MIB + 25);
            // The lost one comes back after all: what it has is removed, and nothing else is done with it.
            assert!(cluster.has_group(2));
            cluster.set_road(2, Road::Open);
            cluster.management.set_online(2, true);
            cluster.until("its leftover is removed", || !cluster.has_group(2)).await;
            assert!(cluster.has_group(1) && cluster.has_group(new));
            cluster.require_equal();
        });
    }
}

#[test]
fn what_a_target_has_is_kept_while_the_members_have_less() {
    with_others(2, 1, |cluster| async move {
        fill(&cluster).await;
        cluster.management.edit(|map| map.settings.resync.paused = true);
        cluster.management.bring(3, (2, false));
        cluster.drive();
        rt::sleep(std::time::Duration::from_secs(15)).await;
        assert!(cluster.has_group(2), "there is one good copy beside it");
        cluster.management.edit(|map| map.settings.resync.paused = false);
        cluster.in_step().await;
        cluster.until("its leftover is removed", || !cluster.has_group(2)).await;
        // It may come back as a member, and begins with nothing.
        cluster.management.bring(2, (1, false));
        cluster.in_step().await;
        cluster.until("the other's leftover is removed", || !cluster.has_group(1)).await;
        cluster.require_equal();
    });
}

#[test]
fn a_member_leaves_when_another_one_has_everything() {
    // The primary, and a second.
    for leaving in [1, 2] {
        with_others(2, 1, move |cluster| async move {
            cluster.links.values().for_each(|link| link.jitter.store(true, Ordering::SeqCst));
            fill(&cluster).await;
            let clients = Clients::start(&cluster, 4);
            cluster.management.bring(3, (leaving, true));
            cluster.drive();
            cluster.until("it has left", || cluster.management.group().members.len() == 2).await;
            assert_eq!(cluster.management.group().state_of(TargetId(leaving)), None);
            clients.stop(&cluster).await;
            cluster.in_step().await;
            let states: Vec<MemberState> =
                cluster.management.changes.lock().unwrap().iter().map(|change| change.state).collect();
            assert!(!states.contains(&MemberState::NeedsResync), "there were fewer copies: {states:?}");
            cluster.until("its leftover is removed", || !cluster.has_group(leaving)).await;
        });
    }
}

#[test]
fn a_primary_that_can_not_leave_yet_goes_on() {
    with_others(2, 1, |cluster| async move {
        fill(&cluster).await;
        let clients = Clients::start(&cluster, 2);
        cluster.management.refuses_to_leave.store(true, Ordering::SeqCst);
        cluster.management.bring(3, (1, true));
        cluster.drive();
        let refused = || cluster.management.refusals.load(Ordering::SeqCst);
        cluster.until("it was refused", || refused() > 2).await;
        assert_eq!(cluster.read(InodeId(21), 10).await, [21; 10]);
        clients.stop(&cluster).await;
        cluster.management.refuses_to_leave.store(false, Ordering::SeqCst);
        cluster.until("it has left", || cluster.management.group().members.len() == 2).await;
        cluster.in_step().await;
    });
}
