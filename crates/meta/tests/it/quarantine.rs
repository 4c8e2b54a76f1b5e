//! Files in quarantine, since a target doesn't report the length of their chunk files.

use crate::support::world::{Call, ROOT, SECOND, World, getattr, open_with_lease, simulated};
use crate::support::{CHUNK_MTIME, Client};
use types::{InodeId, TargetId};
use wire::{LeaseMode, MetaOp, MetaReply};

/// Acknowledged bytes of the file, beyond the recorded size.
const WRITTEN: u64 = 8192;

fn size(reply: MetaReply) -> u64 {
    match reply {
        MetaReply::Attr(attr) => attr.size,
        MetaReply::File(info) => info.attr.size,
        other => panic!("{other:?}"),
    }
}

/// A file that this session writes under its lease, with a reported size below what it wrote. Its
/// target is down.
async fn written(world: &World, writer: &Client) -> InodeId {
    let ino = writer.create(ROOT, "log").await.unwrap().ino;
    let MetaReply::File(info) = writer.call(MetaOp::BeginWrite { ino }).await.unwrap() else { panic!() };
    writer.call(MetaOp::DropInline { ino, size: 512, mtime: CHUNK_MTIME }).await.unwrap();
    assert_eq!(writer.grants(open_with_lease(ino, LeaseMode::Write)).await, [(ino, LeaseMode::Write)]);
    let target = TargetId(info.layout.unwrap().groups[0].0);
    world.chunks.lens.lock().insert((target, ino.first_chunk_file()), WRITTEN);
    world.chunks.down.lock().push(target);
    ino
}

/// No client can access the file before the target is back; then everything that was written is
/// there.
async fn is_quarantined_until_the_target_is_back(world: &World, other: &Client, ino: InodeId) {
    let looks = Call::call(other, getattr(ino)).await;
    let opens = Call::call(other, open_with_lease(ino, LeaseMode::Write)).await;
    rt::sleep(90 * SECOND).await;
    assert!(!looks.is_done() && !opens.is_done(), "the size on record is less than what was acknowledged");
    world.chunks.down.lock().clear();
    assert_eq!(size(looks.wait().await.unwrap()), WRITTEN);
    assert_eq!(size(opens.wait().await.unwrap()), WRITTEN);
    // No quarantine is left.
    assert_eq!(size(other.call(getattr(ino)).await.unwrap()), WRITTEN);
    assert_eq!(world.meta.recover().await.unwrap().sizes_pending, 0);
}

/// A session that stays in contact.
async fn another(world: &World) -> Client {
    let other = world.client(2).await;
    let heard = other.clone();
    rt::spawn(async move { while heard.call(MetaOp::NextRecalls { after: 0 }).await.is_ok() {} });
    other
}

#[test]
fn files_of_an_ended_session_stay_in_quarantine_until_size_recovery() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let ino = written(&world, &writer).await;
        let other = another(&world).await;
        writer.call(MetaOp::EndSession).await.unwrap();
        is_quarantined_until_the_target_is_back(&world, &other, ino).await;
    });
}

#[test]
fn files_of_a_silent_session_stay_in_quarantine_after_a_restart() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let ino = written(&world, &writer).await;
        let world = world.restart().await;
        let other = another(&world).await;
        is_quarantined_until_the_target_is_back(&world, &other, ino).await;
        world.meta.stop();
    });
}

#[test]
fn files_of_a_returning_session_stay_in_quarantine_until_size_recovery() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let ino = written(&world, &writer).await;
        let world = world.restart().await;
        let writer = Client::new(&world.meta, 1);
        writer
            .call(MetaOp::Register {
                in_use: vec![ino],
                pending_creates: vec![],
                pending_changes: vec![],
                reporting_process: 0,
            })
            .await
            .unwrap();
        let heard = writer.clone();
        rt::spawn(async move { while heard.call(MetaOp::NextRecalls { after: 0 }).await.is_ok() {} });
        let other = another(&world).await;
        is_quarantined_until_the_target_is_back(&world, &other, ino).await;
        world.meta.stop();
    });
}

/// A connection breaks and the request is retransmitted: the original may arrive last.
#[test]
fn a_late_retransmission_of_a_registration_revokes_no_lease() {
    simulated(|world| async move {
        let writer = Client::new(&world.meta, 1);
        writer
            .call(MetaOp::Register {
                in_use: vec![],
                pending_creates: vec![],
                pending_changes: vec![],
                reporting_process: 0,
            })
            .await
            .unwrap();
        let ino = written(&world, &writer).await;
        world.chunks.down.lock().clear();
        writer
            .call(MetaOp::Register {
                in_use: vec![],
                pending_creates: vec![],
                pending_changes: vec![],
                reporting_process: 0,
            })
            .await
            .unwrap();
        let other = world.client(2).await;
        let looks = Call::call(&other, getattr(ino)).await;
        assert!(!looks.is_done(), "the writer relies on its lease");
        writer.call(MetaOp::EndSession).await.unwrap();
        assert_eq!(size(looks.wait().await.unwrap()), WRITTEN);
    });
}
