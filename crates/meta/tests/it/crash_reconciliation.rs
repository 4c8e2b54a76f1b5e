//! Crash reconciliation of a target whose process restarted: before clients get access, and not
//! afterwards.

use crate::support;
use crate::support::world::{ROOT, SECOND, Started, World, simulated};
use crate::support::{CHUNK_MTIME, Client};
use meta::SessionKind;
use std::sync::Arc;
use types::{ChunkFileId, ChunkSlot, InodeId, SessionId, TargetId};
use wire::mgmt::ReconcileFiles;
use wire::{MetaOp, MetaReply};

const MIB: u64 = 1 << 20;

/// The node asks again when the answer takes too long, and opens the target when it gets one.
#[test]
fn a_repeated_reconciliation_starts_after_the_first_one() {
    simulated(|world| async move {
        let (target, nobodys) = (TargetId(1), ChunkFileId(1000));
        world.chunks.lens.lock().insert((target, nobodys), 100);
        let held = Arc::new(rt::sync::Event::new());
        *world.chunks.held.lock() = Some(held.clone());
        let reconcile = || {
            let meta = world.meta.clone();
            Started::new(async move { meta.reconcile_target(target, &ReconcileFiles::of([nobodys])).await })
        };
        let first = reconcile();
        rt::sleep(5 * SECOND).await;
        let again = reconcile();
        rt::sleep(SECOND).await;
        assert!(!first.is_done() && !again.is_done());
        held.set();
        again.wait().await.unwrap();
        assert!(first.is_done());
        assert!(world.chunks.lens.lock().is_empty());
    });
}

/// Files may be deleted while others are checked: a power loss of the store at that moment brings
/// them back.
#[test]
fn metadata_is_synced_before_chunk_files_are_deleted() {
    simulated(|world| async move {
        let target = TargetId(1);
        let nobodys = [ChunkFileId(1000), ChunkFileId(1001)];
        world.chunks.lens.lock().extend(nobodys.map(|ino| ((target, ino), 100)));
        let [first, second] = [0, 1].map(|_| Arc::new(rt::sync::Event::new()));
        *world.chunks.held.lock() = Some(first.clone());
        let meta = world.meta.clone();
        let reconciled =
            Started::new(async move { meta.reconcile_target(target, &ReconcileFiles::of(nobodys)).await });
        // Between two periodic syncs of the store, every half second.
        rt::sleep(SECOND / 4).await;
        *world.chunks.held.lock() = Some(second.clone());
        world.client(5).await.create(ROOT, "meanwhile").await.unwrap();
        assert_ne!(world.memory.unsynced(), 0);
        first.set();
        rt::sleep(SECOND / 100).await;
        assert_eq!(world.chunks.lens.lock().keys().copied().collect::<Vec<_>>(), [(target, nobodys[1])]);
        assert_eq!(world.memory.unsynced(), 0, "the second is being deleted");
        second.set();
        reconciled.wait().await.unwrap();
    });
}

/// A power loss undoes the deletion of one chunk file, while that of the file's next one waits for
/// a target that doesn't answer.
#[test]
fn a_restored_chunk_file_of_a_deleted_file_is_deleted_again() {
    simulated(|world| async move {
        world.meta.register_session(SessionId(5), SessionKind::Local).await.unwrap();
        let client = client_of(&world, 5);
        let (ino, targets) = whole(&client, &world, "file").await;
        let slow = Arc::new(rt::sync::Event::new());
        world.chunks.slow.lock().push((targets[1], slow.clone()));
        client.unlink(ROOT, "file").await.unwrap();
        client.call(MetaOp::Reclaim { ino, others: Vec::new() }).await.unwrap();
        rt::sleep(SECOND).await;
        assert_eq!(
            world.chunks.lens.lock().keys().copied().collect::<Vec<_>>(),
            [(targets[1], ino.first_chunk_file())]
        );
        world.chunks.lens.lock().insert((targets[0], ino.first_chunk_file()), MIB);
        world.meta.reconcile_target(targets[0], &ReconcileFiles::of([ino.first_chunk_file()])).await.unwrap();
        slow.set();
        rt::sleep(SECOND).await;
        assert!(world.chunks.lens.lock().is_empty(), "{:?}", world.chunks.lens.lock());
    });
}

/// A chunk file that a move left behind, and whose deletion a power loss has undone, is deleted
/// again, also while the file is written at its new location.
#[test]
fn a_restored_chunk_file_of_a_move_is_deleted_again_during_writes() {
    simulated(|world| async move {
        world.meta.register_session(SessionId(5), SessionKind::Local).await.unwrap();
        let client = client_of(&world, 5);
        let (ino, targets) = whole(&client, &world, "moved").await;
        client.call(MetaOp::BeginWrite { ino }).await.unwrap();
        // A slot that the layout doesn't have.
        let left = ino.chunk_file(ChunkSlot(1));
        world.chunks.lens.lock().insert((targets[0], left), MIB);
        world
            .meta
            .reconcile_target(targets[0], &ReconcileFiles::of([left, ino.first_chunk_file()]))
            .await
            .unwrap();
        let there: Vec<_> = world.chunks.lens.lock().keys().copied().collect();
        assert_eq!(there.len(), 3, "{there:?}");
        assert!(there.iter().all(|(_, name)| *name == ino.first_chunk_file()), "{there:?}");
    });
}

/// After a restore it is unknown whether chunk files that the backup doesn't know are still needed:
/// the file check reports them, and the start deletes nothing.
#[test]
fn a_restored_store_keeps_chunk_files_of_later_files() {
    simulated(|world| async move {
        let client = world.client(5).await;
        let known = client.create(ROOT, "known").await.unwrap().ino;
        // Created after the backup, in the partition of the file before it.
        let later = ChunkFileId(known.0 + 1);
        let rewound = world.restored().await;
        let target = TargetId(1);
        rewound.chunks.lens.lock().insert((target, later), 100);
        rewound.meta.reconcile_target(target, &ReconcileFiles::of([later])).await.unwrap();
        assert!(rewound.chunks.lens.lock().contains_key(&(target, later)));
        // A client from before the restore needs a new session.
        assert_eq!(client_of(&rewound, 5).create(ROOT, "x").await.unwrap_err().errno, types::Errno::ESTALE);
        let new = rewound.client(6).await.create(ROOT, "new").await.unwrap().ino;
        assert!(new.partition() == known.partition() && new.sequence() > known.sequence() + (1 << 30));
        // Remnants of later crashes are reconciled as usual.
        let lost = ChunkFileId(new.0 + 1);
        rewound.chunks.lens.lock().insert((target, lost), 100);
        rewound.meta.reconcile_target(target, &ReconcileFiles::of([lost, later])).await.unwrap();
        assert_eq!(rewound.chunks.lens.lock().keys().map(|key| key.1).collect::<Vec<_>>(), [later]);
    });
}

/// A file had moved off a target when the store was restored to a state before that: no record
/// shows where its content is, and the target is still draining.
#[test]
fn a_restored_store_moves_nothing_over_unknown_chunk_files() {
    simulated(|world| async move {
        world.meta.register_session(SessionId(5), SessionKind::Local).await.unwrap();
        let client = client_of(&world, 5);
        let (ino, targets) = whole(&client, &world, "moved").await;
        let all_there_is =
            [(targets[1], ino.chunk_file(ChunkSlot(1))), (targets[2], ino.chunk_file(ChunkSlot(1)))];
        world.chunks.lens.lock().remove(&(targets[0], ino.first_chunk_file()));
        world.chunks.lens.lock().extend(all_there_is.map(|place| (place, MIB)));
        let mut map = types::ClusterMap::clone(&world.map.load());
        map.targets.iter_mut().for_each(|target| target.drain = target.id == targets[0]);
        world.map.store(Arc::new(map));
        let rewound = world.restored().await;
        rt::sleep(60 * SECOND).await;
        // The file isn't considered empty: it is known to have content there, which is missing.
        assert_eq!(rewound.meta.file_on(targets[0]).await.unwrap(), Some(ino));
        let lens = rewound.chunks.lens.lock().clone();
        assert!(all_there_is.iter().all(|place| lens.get(place) == Some(&MIB)), "{lens:?}");
        rewound.meta.stop();
    });
}

fn end(ino: InodeId, blocks: u64) -> MetaOp {
    let mtime = Some(CHUNK_MTIME);
    let lens = vec![MIB; 3];
    MetaOp::EndWrite { ino, size: 3 * MIB, blocks, lens, mtime, done: true, kill_suid_sgid: false }
}

/// A file of three chunks, complete by its writer's report.
async fn whole(client: &Client, world: &World, name: &str) -> (InodeId, Vec<TargetId>) {
    let ino = client.create(ROOT, name).await.unwrap().ino;
    let MetaReply::File(file) = client.call(MetaOp::BeginWrite { ino }).await.unwrap() else { panic!() };
    let targets: Vec<_> = file.layout.unwrap().groups.iter().map(|group| TargetId(group.0)).collect();
    client.call(MetaOp::DropInline { ino, size: 3 * MIB, mtime: CHUNK_MTIME }).await.unwrap();
    world.chunks.lens.lock().extend(targets.iter().map(|target| ((*target, ino.first_chunk_file()), MIB)));
    client.call(end(ino, 3 * MIB / 512)).await.unwrap();
    (ino, targets)
}

/// Unsynced content is lost in a power loss: the file keeps its size, and doesn't count as complete
/// any more. A file that had been on disk does, so that the file check reports the loss.
#[test]
fn a_file_with_lost_unsynced_chunks_does_not_count_as_complete() {
    simulated(|world| async move {
        // A session without leases, which would have to be recalled.
        world.meta.register_session(SessionId(5), SessionKind::Local).await.unwrap();
        let client = client_of(&world, 5);
        let (cut, targets) = whole(&client, &world, "cut").await;
        let (damaged, damaged_on) = whole(&client, &world, "damaged").await;
        let (untouched, _) = whole(&client, &world, "untouched").await;
        world.chunks.lens.lock().remove(&(targets[1], cut.first_chunk_file()));
        world.chunks.lens.lock().remove(&(damaged_on[1], damaged.first_chunk_file()));
        world.chunks.lost.lock().push((damaged_on[1], damaged.first_chunk_file()));
        for id in 1..=support::TARGETS {
            world
                .meta
                .reconcile_target(
                    TargetId(id),
                    &ReconcileFiles::of([cut, damaged, untouched].map(InodeId::first_chunk_file)),
                )
                .await
                .unwrap();
        }
        // Missing content reads as zeros: clients know how long its chunk files were.
        let lens = world.chunks.lens.lock().clone();
        assert_eq!(lens.get(&(targets[1], cut.first_chunk_file())), Some(&MIB));
        assert_eq!(lens.get(&(damaged_on[1], damaged.first_chunk_file())), None, "that is damage");
        rt::sleep(SECOND).await;
        let after = client.getattr(cut).await.unwrap();
        assert_eq!((after.size, after.blocks, after.mtime), (3 * MIB, 2 * MIB / 512, CHUNK_MTIME));
        for ino in [damaged, untouched] {
            assert_eq!(client.getattr(ino).await.unwrap().blocks, 3 * MIB / 512);
        }
    });
}

/// For new files, a target reports only the regions where they were being created: it doesn't know
/// those that were never synced.
#[test]
fn new_chunk_files_that_were_never_synced_are_detected() {
    simulated(|world| async move {
        world.meta.register_session(SessionId(5), SessionKind::Local).await.unwrap();
        let client = client_of(&world, 5);
        let (gone, targets) = whole(&client, &world, "gone").await;
        let (untouched, _) = whole(&client, &world, "untouched").await;
        let (written, written_on) = whole(&client, &world, "written").await;
        client.call(MetaOp::BeginWrite { ino: written }).await.unwrap();
        world.chunks.lens.lock().remove(&(targets[0], gone.first_chunk_file()));
        world.chunks.lens.lock().remove(&(written_on[1], written.first_chunk_file()));
        let new: Vec<_> = [gone, untouched, written]
            .into_iter()
            .map(|ino| (ino.first_chunk_file(), ChunkFileId(ino.0 + 1024)))
            .collect();
        for id in 1..=support::TARGETS {
            let touched = ReconcileFiles { files: Vec::new(), new: new.clone() };
            world.meta.reconcile_target(TargetId(id), &touched).await.unwrap();
        }
        let len = |target, ino| world.chunks.lens.lock().get(&(target, ino)).copied();
        assert_eq!(len(targets[0], gone.first_chunk_file()), Some(MIB), "before clients are let in");
        assert_eq!(len(written_on[1], written.first_chunk_file()), None, "its writer may know better");
        rt::sleep(SECOND).await;
        let after = client.getattr(gone).await.unwrap();
        assert_eq!((after.size, after.blocks), (3 * MIB, 2 * MIB / 512));
        assert_eq!(client.getattr(untouched).await.unwrap().blocks, 3 * MIB / 512);
        client.call(end(written, 3 * MIB / 512)).await.unwrap();
        rt::sleep(10 * SECOND).await;
        assert_eq!(client.getattr(written).await.unwrap().blocks, 2 * MIB / 512, "when it is done");
        assert_eq!(len(written_on[1], written.first_chunk_file()), Some(MIB));
    });
}

/// The client that truncated a file survives and writes it, and a power loss has undone the
/// truncation: the old content must not be readable when the file grows later.
#[test]
fn content_restored_beyond_the_end_is_cut_when_the_writer_is_done() {
    simulated(|world| async move {
        world.meta.register_session(SessionId(5), SessionKind::Local).await.unwrap();
        let client = client_of(&world, 5);
        let (ino, targets) = whole(&client, &world, "cut").await;
        client.call(MetaOp::BeginWrite { ino }).await.unwrap();
        world.chunks.lens.lock().insert((targets[1], ino.first_chunk_file()), 2 * MIB);
        world.meta.reconcile_target(targets[1], &ReconcileFiles::of([ino.first_chunk_file()])).await.unwrap();
        rt::sleep(3 * SECOND).await;
        let len = || world.chunks.lens.lock()[&(targets[1], ino.first_chunk_file())];
        assert_eq!(len(), 2 * MIB, "its writer alone knows where it ends");
        client.call(end(ino, 3 * MIB / 512)).await.unwrap();
        rt::sleep(10 * SECOND).await;
        assert_eq!(len(), MIB);
        assert_eq!(client.getattr(ino).await.unwrap().size, 3 * MIB);
    });
}

/// Its writer survives, and got the allocation of a chunk file before a power loss took that.
#[test]
fn a_file_written_during_a_crash_is_checked_afterwards() {
    simulated(|world| async move {
        world.meta.register_session(SessionId(5), SessionKind::Local).await.unwrap();
        let client = client_of(&world, 5);
        let (ino, targets) = whole(&client, &world, "written").await;
        client.call(MetaOp::BeginWrite { ino }).await.unwrap();
        world.chunks.lens.lock().remove(&(targets[2], ino.first_chunk_file()));
        world.meta.reconcile_target(targets[2], &ReconcileFiles::of([ino.first_chunk_file()])).await.unwrap();
        rt::sleep(3 * SECOND).await;
        client.call(end(ino, 3 * MIB / 512)).await.unwrap();
        rt::sleep(10 * SECOND).await;
        let after = client.getattr(ino).await.unwrap();
        assert_eq!((after.size, after.blocks), (3 * MIB, 2 * MIB / 512));
    });
}

fn client_of(world: &World, session: u64) -> Client {
    Client::new(&world.meta, session)
}
