//! Files that a crash of all members leaves behind, and that the metadata doesn't know any more.

use super::cluster::{Cluster, INO, LinkState, Management};
use rt::IoBuf;
use rt::sim::Machine;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::targets;
use types::{ChunkFileId, MemberState};
use wire::{DataPath as Way, StorageOp, StorageReply};

/// A file whose metadata was lost, and one that was truncated before the crash.
const LOST: ChunkFileId = ChunkFileId(12);
const CUT: ChunkFileId = ChunkFileId(13);

/// A machine with two members, whose processes have written files and died while the intent log
/// listed all of them.
fn crashed() -> (Machine, Arc<Management>) {
    let (mut machine, management) = (Machine::new(1), Management::new(2));
    let told = management.clone();
    let run = async move {
        let cluster = start(told).await;
        for ino in [INO, LOST, CUT] {
            cluster.write(ino, 3, 0, &[ino.0 as u8; 10_000]).await;
        }
    };
    machine.run(run).unwrap();
    machine.kill();
    management.files.lock().unwrap().extend([(INO, 10_000), (CUT, 100)]);
    (machine, management)
}

async fn start(management: Arc<Management>) -> Arc<Cluster> {
    Cluster::start(Path::new(targets::SIMULATED_DIR), management).await
}

/// Begins to read the first bytes of a file as a client.
fn begin_to_read(cluster: &Arc<Cluster>, ino: ChunkFileId) -> Rc<RefCell<Option<Vec<u8>>>> {
    let (cluster, found) = (cluster.clone(), Rc::new(RefCell::new(None)));
    let told = found.clone();
    rt::spawn(async move {
        let data = cluster.read(ino, 200).await;
        *told.borrow_mut() = Some(data);
    });
    found
}

fn lens(files: &BTreeMap<ChunkFileId, Vec<u8>>) -> Vec<(u64, usize)> {
    files.iter().map(|(ino, data)| (ino.0, data.len())).collect()
}

#[test]
fn chunks_without_metadata_are_removed_from_all_replicas_before_clients_are_served() {
    let (mut machine, management) = crashed();
    let run = async move {
        management.has_metadata.store(false, Ordering::SeqCst);
        let cluster = start(management.clone()).await;
        cluster.enable_resync();
        let reads = [begin_to_read(&cluster, LOST), begin_to_read(&cluster, CUT)];
        cluster.until("the group goes on from one copy", || management.state(2) != MemberState::InSync).await;
        rt::sleep(Duration::from_millis(1500)).await;
        assert!(reads.iter().all(|read| read.borrow().is_none()), "what is there may be nobody's");
        assert_eq!(
            management.state(2),
            MemberState::NeedsResync,
            "its notes are needed if there is another crash"
        );
        // The metadata service is admitted, because it reconciles other things first.
        let stat = cluster.ask_file(CUT, (0, None), StorageOp::Stat, None).await.unwrap();
        assert!(matches!(stat, StorageReply::Stat { len: 10_000, .. }), "{stat:?}");
        management.has_metadata.store(true, Ordering::SeqCst);
        cluster.until("clients are let in", || reads.iter().all(|read| read.borrow().is_some())).await;
        assert_eq!(reads[0].borrow().as_deref(), Some(&[0; 200][..]));
        assert_eq!(reads[1].borrow().as_deref(), Some(&[&[CUT.0 as u8; 100][..], &[0; 100]].concat()[..]));
        cluster.until_in_sync().await;
        assert_eq!(lens(&cluster.on_disk(2).await), [(INO.0, 10_000), (CUT.0, 100)]);
    };
    machine.run(run).unwrap();
}

/// Management must know this of a process that has registered before.
#[test]
fn a_target_is_not_reconciled_before_crash_reconciliation_ends() {
    let (mut machine, management) = crashed();
    let run = async move {
        let cluster = start(management.clone()).await;
        let is_settled = |target| {
            let service = cluster.link(target).service.lock().unwrap().clone().unwrap();
            service.is_reconciled(&cluster.map_of(target).load())
        };
        assert!(!is_settled(1) && !is_settled(2), "both may lack something, and count");
        cluster.enable_resync();
        cluster.until("the group goes on from one copy", || management.state(2) != MemberState::InSync).await;
        cluster.until("the first is seen to", || is_settled(1)).await;
        assert!(is_settled(2), "it doesn't count");
        cluster.until_in_sync().await;
        assert!(is_settled(1) && is_settled(2));
    };
    machine.run(run).unwrap();
}

/// No task handles the group yet: the first client request starts the reconciliation.
#[test]
fn the_first_client_request_starts_reconciliation() {
    let (mut machine, management) = crashed();
    let run = async move {
        let cluster = start(management).await;
        assert_eq!(cluster.read(LOST, 200).await, [0; 200]);
        assert_eq!(lens(&cluster.on_disk(1).await), [(INO.0, 10_000), (CUT.0, 100)]);
    };
    machine.run(run).unwrap();
}

/// After a crash in the middle of it, the intent log leads to the same result again.
#[test]
fn unreconciled_files_are_known_after_another_crash() {
    let (mut machine, management) = crashed();
    let told = management.clone();
    let run = async move {
        told.has_metadata.store(false, Ordering::SeqCst);
        let cluster = start(told.clone()).await;
        cluster.enable_resync();
        cluster.until("the group goes on from one copy", || told.state(2) != MemberState::InSync).await;
        // Longer than the intent log retains regions that aren't needed.
        rt::sleep(Duration::from_secs(11)).await;
    };
    machine.run(run).unwrap();
    machine.kill();
    let run = async move {
        management.has_metadata.store(true, Ordering::SeqCst);
        let cluster = start(management).await;
        cluster.enable_resync();
        assert_eq!(cluster.read(LOST, 200).await, [0; 200]);
        cluster.until_in_sync().await;
        assert_eq!(lens(&cluster.on_disk(2).await), [(INO.0, 10_000), (CUT.0, 100)]);
    };
    machine.run(run).unwrap();
}

/// If another replica has everything, it alone decides: the metadata service isn't asked about the
/// one that crashed.
#[test]
fn a_resynced_member_needs_no_reconciliation() {
    let (mut machine, management) = crashed();
    let run = async move {
        // Management reports a restart of the first member, while the second one never stopped.
        management.set(1, MemberState::NeedsResync);
        management.has_metadata.store(false, Ordering::SeqCst);
        management.files.lock().unwrap().insert(LOST, 10_000);
        let cluster = start(management.clone()).await;
        cluster.set_link(1, LinkState::Closed);
        management.has_metadata.store(true, Ordering::SeqCst);
        cluster.enable_resync();
        let write = StorageOp::Write { offset: 0, path: Way::Cached, durable: false };
        let data = Some(IoBuf::from_slice(&[9; 100]));
        cluster.ask_file(INO, (3, None), write, data).await.unwrap();
        management.has_metadata.store(false, Ordering::SeqCst);
        cluster.set_link(1, LinkState::Open);
        cluster.until_in_sync().await;
        assert_eq!(cluster.on_disk(1).await[&INO][..100], [9; 100]);
        assert_eq!(lens(&cluster.on_disk(1).await).len(), 3);
    };
    machine.run(run).unwrap();
}
