//! Returning sessions that report the sizes of files on which they had the exclusive lease.

use crate::support::world::{ROOT, World, getattr, open_with_lease, simulated};
use crate::support::{CHUNK_MTIME, Client};
use kv::{Batch, Engine};
use namespace::keys;
use types::{InodeId, SessionId, TargetId};
use wire::{LeaseMode, MetaOp, MetaReply, ReportedSize};

/// The size that applications know, and the end of an in-flight write.
const SIZE: u64 = 5000;
const TORN: u64 = 8192;

fn size(reply: MetaReply) -> u64 {
    match reply {
        MetaReply::Attr(attr) => attr.size,
        MetaReply::File(info) => info.attr.size,
        other => panic!("{other:?}"),
    }
}

/// A file that a session writes under its lease. Its chunk file reaches beyond its end.
async fn written(world: &World, writer: &Client) -> (InodeId, TargetId) {
    let ino = writer.create(ROOT, "log").await.unwrap().ino;
    let MetaReply::File(info) = writer.call(MetaOp::BeginWrite { ino }).await.unwrap() else { panic!() };
    writer.call(MetaOp::DropInline { ino, size: 512, mtime: CHUNK_MTIME }).await.unwrap();
    assert_eq!(writer.grants(open_with_lease(ino, LeaseMode::Write)).await, [(ino, LeaseMode::Write)]);
    let target = TargetId(info.layout.unwrap().groups[0].0);
    world.chunks.lens.lock().insert((target, ino.first_chunk_file()), TORN);
    (ino, target)
}

fn report_size(ino: InodeId, size: u64) -> MetaOp {
    MetaOp::ReclaimSizes { sizes: vec![ReportedSize { ino, size }] }
}

fn register(ino: InodeId) -> MetaOp {
    MetaOp::Register {
        in_use: vec![ino],
        pending_creates: vec![],
        pending_changes: vec![],
        reporting_process: 0,
    }
}

fn len(world: &World, (ino, target): (InodeId, TargetId)) -> u64 {
    world.chunks.lens.lock()[&(target, ino.first_chunk_file())]
}

#[test]
fn content_beyond_the_reported_size_is_cut() {
    for (told_size, expected) in [(Some(SIZE), SIZE), (Some(TORN + 1), TORN), (None, TORN), (Some(0), 512)] {
        simulated(move |world| async move {
            let writer = world.client(1).await;
            let place = written(&world, &writer).await;
            let world = world.restart().await;
            let writer = Client::new(&world.meta, 1);
            if let Some(size) = told_size {
                writer.call(report_size(place.0, size)).await.unwrap();
            }
            writer.call(register(place.0)).await.unwrap();
            assert_eq!(len(&world, place), expected, "never below the size on record");
            assert_eq!(size(writer.call(getattr(place.0)).await.unwrap()), expected);
            world.meta.stop();
        });
    }
}

/// A connection breaks, and the request is retransmitted when its session has returned: other
/// clients may have extended the file.
#[test]
fn a_size_reported_late_is_ignored() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let place = written(&world, &writer).await;
        let world = world.restart().await;
        let writer = Client::new(&world.meta, 1);
        writer.call(report_size(place.0, SIZE)).await.unwrap();
        writer.call(register(place.0)).await.unwrap();
        writer.call(report_size(place.0, SIZE)).await.unwrap();
        writer.call(MetaOp::BeginWrite { ino: place.0 }).await.unwrap();
        world.chunks.lens.lock().insert((place.1, place.0.first_chunk_file()), TORN);
        writer.call(MetaOp::EndSession).await.unwrap();
        assert_eq!(len(&world, place), TORN);
        world.meta.stop();
    });
}

/// The service dies when the session has reported the size, before it answers the registration: the
/// transport retransmits that to the next process.
#[test]
fn a_registration_is_refused_if_the_size_was_reported_to_another_process() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let place = written(&world, &writer).await;
        let process = |reply| match reply {
            MetaReply::Process(number) => number,
            other => panic!("{other:?}"),
        };
        let world = world.restart().await;
        let first = process(Client::new(&world.meta, 1).call(report_size(place.0, SIZE)).await.unwrap());
        let world = world.restart().await;
        let writer = Client::new(&world.meta, 1);
        let register = |told| MetaOp::Register {
            in_use: vec![place.0],
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: told,
        };
        assert_eq!(writer.call(register(first)).await.unwrap_err().errno, types::Errno::EAGAIN);
        assert_eq!(len(&world, place), TORN, "nothing is settled yet");
        let second = process(writer.call(report_size(place.0, SIZE)).await.unwrap());
        assert_ne!(first, second);
        writer.call(register(second)).await.unwrap();
        assert_eq!(len(&world, place), SIZE);
        world.meta.stop();
    });
}

/// The session reports it at each start. At the second one, no size recovery is left to do.
#[test]
fn a_size_is_used_once() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let place = written(&world, &writer).await;
        let mut world = world.restart().await;
        for expected in [SIZE, TORN] {
            let writer = Client::new(&world.meta, 1);
            writer.call(report_size(place.0, SIZE)).await.unwrap();
            writer.call(register(place.0)).await.unwrap();
            assert_eq!(len(&world, place), expected);
            world.chunks.lens.lock().insert((place.1, place.0.first_chunk_file()), TORN);
            world = world.restart().await;
        }
        world.meta.stop();
    });
}

#[test]
fn a_size_waits_for_a_target_that_is_down() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let place = written(&world, &writer).await;
        world.chunks.down.lock().push(place.1);
        let world = world.restart().await;
        let writer = Client::new(&world.meta, 1);
        writer.call(report_size(place.0, SIZE)).await.unwrap();
        writer.call(register(place.0)).await.unwrap();
        world.chunks.down.lock().clear();
        assert_eq!(size(writer.call(getattr(place.0)).await.unwrap()), SIZE);
        assert_eq!(len(&world, place), SIZE);
        world.meta.stop();
    });
}

/// A session that wrote beside another one can't know the size.
#[test]
fn a_size_of_one_of_several_writers_does_not_count() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let place = written(&world, &writer).await;
        world.client(2).await;
        let note = (keys::writing(place.0, SessionId(2)), Some(vec![8, 1].into()));
        world.memory.apply(&[Batch { writes: vec![note], ..Batch::default() }]).unwrap();
        let world = world.restart().await;
        let [one, two] = [1, 2].map(|session| Client::new(&world.meta, session));
        one.call(report_size(place.0, SIZE)).await.unwrap();
        one.call(register(place.0)).await.unwrap();
        two.call(register(place.0)).await.unwrap();
        assert_eq!(len(&world, place), TORN);
        world.meta.stop();
    });
}

/// A client retransmits a request, with the same number, when its service restarted.
#[test]
fn an_executed_truncation_is_not_repeated_by_the_next_service() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        world.client(2).await;
        let ino = writer.create(ROOT, "log").await.unwrap().ino;
        writer.call(MetaOp::BeginWrite { ino }).await.unwrap();
        writer.call(MetaOp::DropInline { ino, size: SIZE, mtime: CHUNK_MTIME }).await.unwrap();
        let truncate = MetaOp::Truncate { ino, size: 100, kill_suid_sgid: false };
        assert_eq!(size(writer.call_in_lane(3, 7, truncate.clone()).await.unwrap()), 100);
        let world = world.restart().await;
        let [writer, other] = [1, 2].map(|session| Client::new(&world.meta, session));
        writer.call(register(ino)).await.unwrap();
        other.call(register(ino)).await.unwrap();
        other.call(MetaOp::BeginWrite { ino }).await.unwrap();
        let mtime = Some(CHUNK_MTIME);
        let end = MetaOp::EndWrite {
            ino,
            size: SIZE,
            blocks: 16,
            lens: vec![],
            mtime,
            done: true,
            kill_suid_sgid: false,
        };
        other.call(end).await.unwrap();
        assert!(matches!(writer.call_in_lane(3, 7, truncate).await, Ok(MetaReply::Unit)));
        assert_eq!(size(other.call(getattr(ino)).await.unwrap()), SIZE);
        world.meta.stop();
    });
}
