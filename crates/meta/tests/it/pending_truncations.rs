//! Files that a session has truncated without cutting their chunk files: the answer came too late
//! for it.

use crate::support::world::{
    Call, ROOT, SECOND, Started, World, acknowledge, getattr, open_with_lease, recalls, simulated,
};
use crate::support::{CHUNK_MTIME, Client};
use std::sync::Arc;
use types::{InodeId, SessionId, TargetId};
use wire::LeaseMode::{Shared, Write};
use wire::mgmt::ReconcileFiles;
use wire::{FileInfo, MetaOp, MetaReply};

const WRITTEN: u64 = 8192;
const LEFT: u64 = 100;

fn file(reply: MetaReply) -> FileInfo {
    match reply {
        MetaReply::File(info) => info,
        other => panic!("{other:?}"),
    }
}

/// A file that the session has truncated, and whose chunk file it hasn't cut.
async fn shortened(world: &World, writer: &Client) -> (InodeId, TargetId) {
    let ino = writer.create(ROOT, "log").await.unwrap().ino;
    let begun = file(writer.call(MetaOp::BeginWrite { ino }).await.unwrap());
    writer.call(MetaOp::DropInline { ino, size: WRITTEN, mtime: CHUNK_MTIME }).await.unwrap();
    let (size, blocks, mtime) = (WRITTEN, WRITTEN / 512, Some(CHUNK_MTIME));
    let end =
        MetaOp::EndWrite { ino, size, blocks, lens: Vec::new(), mtime, done: true, kill_suid_sgid: false };
    writer.call(end).await.unwrap();
    let target = TargetId(begun.layout.unwrap().groups[0].0);
    world.chunks.lens.lock().insert((target, ino.first_chunk_file()), WRITTEN);
    assert!(!file(writer.call(open_with_lease(ino, Write)).await.unwrap()).truncate_pending);
    let truncate = MetaOp::Truncate { ino, size: LEFT, kill_suid_sgid: false };
    assert!(file(writer.call(truncate).await.unwrap()).truncate_pending);
    (ino, target)
}

fn len(world: &World, (ino, target): (InodeId, TargetId)) -> u64 {
    world.chunks.lens.lock()[&(target, ino.first_chunk_file())]
}

#[test]
fn a_session_that_uses_the_file_again_learns_of_the_pending_truncation() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let (ino, target) = shortened(&world, &writer).await;
        let opened = file(writer.call(open_with_lease(ino, Write)).await.unwrap());
        assert_eq!((opened.truncate_pending, opened.attr.size), (true, LEFT));
        assert!(file(writer.call(MetaOp::Reopen { ino, above_epoch: 0 }).await.unwrap()).truncate_pending);
        assert_eq!(len(&world, (ino, target)), WRITTEN, "the session cuts it by itself");
        writer.call(MetaOp::TruncateDone { ino }).await.unwrap();
        assert!(!file(writer.call(open_with_lease(ino, Write)).await.unwrap()).truncate_pending);
    });
}

#[test]
fn after_a_recall_the_service_completes_the_truncation() {
    for keep in [None, Some(Shared)] {
        simulated(move |world| async move {
            let (writer, other) = (world.client(1).await, world.client(2).await);
            let place = shortened(&world, &writer).await;
            let op = if keep.is_none() { open_with_lease(place.0, Write) } else { getattr(place.0) };
            let waiting = Call::call(&other, op).await;
            assert!(!waiting.is_done());
            let recall = recalls(&writer, 0).await[0];
            // The acknowledgement of an earlier recall doesn't count for this one.
            let earlier = wire::Recall { number: recall.number - 1, ..recall };
            acknowledge(&writer, &earlier, true).await;
            assert_eq!(len(&world, place), WRITTEN);
            acknowledge(&writer, &recall, true).await;
            assert_eq!(len(&world, place), LEFT);
            waiting.wait().await.unwrap();
            let opened =
                file(other.call(MetaOp::Open { ino: place.0, requested_lease: None }).await.unwrap());
            assert_eq!((opened.attr.size, opened.truncate_pending), (LEFT, false));
        });
    }
}

#[test]
fn after_a_release_the_service_completes_the_truncation() {
    simulated(|world| async move {
        let (writer, other) = (world.client(1).await, world.client(2).await);
        let place = shortened(&world, &writer).await;
        writer.call(MetaOp::Release { inodes: vec![place.0], seen: 0 }).await.unwrap();
        assert_eq!(len(&world, place), LEFT);
        assert_eq!(other.grants(open_with_lease(place.0, Write)).await, [(place.0, Write)]);
    });
}

#[test]
fn the_file_is_in_quarantine_while_the_truncation_is_impossible() {
    simulated(|world| async move {
        let (writer, other) = (world.client(1).await, world.client(2).await);
        let place = shortened(&world, &writer).await;
        let heard = other.clone();
        rt::spawn(async move { while heard.call(MetaOp::NextRecalls { after: 0 }).await.is_ok() {} });
        world.chunks.down.lock().push(place.1);
        writer.call(MetaOp::Release { inodes: vec![place.0], seen: 0 }).await.unwrap();
        let opens = Call::call(&other, open_with_lease(place.0, Write)).await;
        rt::sleep(20 * SECOND).await;
        assert!(!opens.is_done());
        world.chunks.down.lock().clear();
        assert_eq!(file(opens.wait().await.unwrap()).attr.size, LEFT);
        assert_eq!(len(&world, place), LEFT);
    });
}

/// Crash reconciliation of the target skips the file, whose size recovery is pending.
#[test]
fn a_truncation_undone_by_a_power_loss_is_repeated() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let (ino, target) = shortened(&world, &writer).await;
        let slow = Arc::new(rt::sync::Event::new());
        world.chunks.slow.lock().push((target, slow.clone()));
        let meta = world.meta.clone();
        let ended = Started::new(async move { meta.end_session(SessionId(1)).await });
        rt::sleep(SECOND).await;
        assert_eq!(len(&world, (ino, target)), LEFT, "cut, and not on disk");
        world.chunks.lens.lock().insert((target, ino.first_chunk_file()), WRITTEN);
        world.chunks.power_cuts.lock().insert(target, 1);
        world.meta.reconcile_target(target, &ReconcileFiles::of([ino.first_chunk_file()])).await.unwrap();
        slow.set();
        ended.wait().await.unwrap();
        assert_eq!(len(&world, (ino, target)), LEFT);
    });
}
