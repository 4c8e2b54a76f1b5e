use crate::support::{PartitionLocking, World, bytes};
use namespace::{keys, unrecovered_files};
use types::{Errno, InodeId, Refusal, SessionId, SetAttr, SetTime, Timestamp};
use wire::{FileInfo, MetaOp};

const ROOT: InodeId = InodeId::ROOT;

/// A file with 100 bytes in chunk files and without a write record.
fn chunked_file(world: &mut World) -> InodeId {
    let file = world.create(ROOT, "file");
    world.run(MetaOp::BeginWrite { ino: file }).unwrap();
    world.run(MetaOp::DropInline { ino: file, size: 100, mtime: Timestamp::new(50, 0) }).unwrap();
    end_write(world, file, 100);
    file
}

fn end_write(world: &mut World, ino: InodeId, size: u64) {
    let op = MetaOp::EndWrite {
        ino,
        size,
        blocks: 8,
        lens: Vec::new(),
        mtime: None,
        done: true,
        kill_suid_sgid: false,
    };
    world.run(op).unwrap();
}

fn report(world: &mut World, ino: InodeId, size: u64, lens: &[u64]) {
    let lens = lens.to_vec();
    let op = MetaOp::EndWrite { ino, size, blocks: 8, lens, mtime: None, done: false, kill_suid_sgid: false };
    world.run(op).unwrap();
}

fn known(world: &mut World, ino: InodeId) -> Vec<u64> {
    world.file(MetaOp::Open { ino, requested_lease: None }).unwrap().length_bounds
}

fn truncate(world: &mut World, ino: InodeId, size: u64) -> FileInfo {
    world.file(MetaOp::Truncate { ino, size, kill_suid_sgid: false }).unwrap()
}

/// Sessions with a write record of a file, and their pending truncations.
fn notes(world: &World, ino: InodeId) -> Vec<(SessionId, Option<u64>)> {
    let page = unrecovered_files(&world.state, ino.partition(), InodeId(0), 100).unwrap();
    page.into_iter().map(|found| (found.record.session, found.record.truncate_to)).collect()
}

#[test]
fn lengths_of_chunk_files_are_known_once_they_are_reported_and_until_they_are_cut() {
    const MIB: u64 = 1 << 20;
    let mut world = World::new(PartitionLocking::All);
    let file = chunked_file(&mut world);
    assert!(known(&mut world, file).is_empty());
    report(&mut world, file, 100, &[100, 0, 0, 0]);
    assert!(known(&mut world, file).is_empty(), "a session without a note has nothing to say");
    world.run(MetaOp::BeginWrite { ino: file }).unwrap();
    report(&mut world, file, 100, &[100, 0, 0, 0]);
    assert_eq!(known(&mut world, file), [100, 0, 0, 0]);
    // With a hole in the second chunk; the fourth target doesn't report.
    report(&mut world, file, 4 * MIB, &[MIB, 0, MIB, 0]);
    report(&mut world, file, 4 * MIB, &[5, 0, 0, 0]);
    assert_eq!(known(&mut world, file), [MIB, 0, MIB, 0]);
    report(&mut world, file, 4 * MIB, &[0, 0, 0, 2 * MIB]);
    assert_eq!(known(&mut world, file), [MIB, 0, MIB, MIB], "no more than the file has");
    report(&mut world, file, 4 * MIB, &[0, MIB, 0, 0]);
    assert_eq!(known(&mut world, file), [MIB; 4]);
    end_write(&mut world, file, 4 * MIB);
    // A longer file has no more content on disk.
    truncate(&mut world, file, 9 * MIB);
    assert_eq!(known(&mut world, file), [MIB; 4]);
    let cut = truncate(&mut world, file, 2 * MIB + 7);
    assert_eq!(cut.length_bounds, [MIB, MIB, 7, 0]);
    // A writer that extends the file again hasn't filled what was truncated.
    world.run(MetaOp::BeginWrite { ino: file }).unwrap();
    report(&mut world, file, 4 * MIB, &[]);
    assert_eq!(known(&mut world, file), [MIB, MIB, 7, 0]);
    end_write(&mut world, file, 4 * MIB);
    truncate(&mut world, file, 9 * MIB);
    assert_eq!(known(&mut world, file), [MIB, MIB, 7, 0]);
    assert!(truncate(&mut world, file, 0).length_bounds.is_empty());
}

#[test]
fn chunk_files_of_an_inline_file_are_ignored() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    let data = bytes("head");
    let write = MetaOp::WriteInline { ino: file, offset: 0, data, kill_suid_sgid: false, at_end: false };
    world.run(write).unwrap();
    world.run(MetaOp::BeginWrite { ino: file }).unwrap();
    report(&mut world, file, 4, &[4, 0, 0, 0]);
    assert!(known(&mut world, file).is_empty());
}

#[test]
fn the_first_writer_fixes_the_layout() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    let first = world.file(MetaOp::BeginWrite { ino: file }).unwrap().layout.unwrap();
    assert_eq!((first.chunk_size, first.groups.len()), (1 << 20, 4));
    world.session = SessionId(2);
    let second = world.file(MetaOp::BeginWrite { ino: file }).unwrap().layout.unwrap();
    assert_eq!(first, second);
    assert_eq!(notes(&world, file), [(SessionId(1), None), (SessionId(2), None)]);
}

#[test]
fn content_moves_from_inline_to_chunks() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    let early = MetaOp::DropInline { ino: file, size: 1, mtime: Timestamp::default() };
    assert_eq!(world.run(early).unwrap_err(), Errno::EINVAL);
    let write = MetaOp::WriteInline {
        ino: file,
        offset: 0,
        data: bytes("head"),
        kill_suid_sgid: false,
        at_end: false,
    };
    world.run(write.clone()).unwrap();
    let info = world.file(MetaOp::BeginWrite { ino: file }).unwrap();
    assert_eq!(info.inline, Some(bytes("head")));
    // No session may change the inline copy while it moves.
    assert_eq!(world.run(write).unwrap_err(), Errno::ERANGE);

    let mtime = Timestamp::new(77, 5);
    let attr = world.attr_of(MetaOp::DropInline { ino: file, size: 9000, mtime }).unwrap();
    assert_eq!((attr.size, attr.mtime, attr.ctime.secs), (9000, mtime, world.now));
    let info = world.file(MetaOp::Open { ino: file, requested_lease: None }).unwrap();
    assert!(info.inline.is_none() && info.layout.is_some());
    assert!(!world.holds(keys::inline(file)));
    world.check_invariants();
}

/// The request was on its way from one service to the next when the session reclaimed its state
/// there, after size recovery of the file.
#[test]
fn a_move_to_chunks_after_size_recovery_is_not_completed() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    let (data, offset) = (bytes("head"), 0);
    world.run(MetaOp::WriteInline { ino: file, offset, data, kill_suid_sgid: false, at_end: false }).unwrap();
    world.run(MetaOp::BeginWrite { ino: file }).unwrap();
    end_write(&mut world, file, 4);
    let late = MetaOp::DropInline { ino: file, size: 4, mtime: Timestamp::new(77, 5) };
    assert_eq!(world.run(late.clone()).unwrap_err(), Refusal::EndedLease);
    assert_eq!(
        world.file(MetaOp::Open { ino: file, requested_lease: None }).unwrap().inline,
        Some(bytes("head"))
    );
    // When it starts again, it is completed.
    world.run(MetaOp::BeginWrite { ino: file }).unwrap();
    world.run(late).unwrap();
    assert_eq!(world.file(MetaOp::Open { ino: file, requested_lease: None }).unwrap().inline, None);
}

#[test]
fn a_late_report_extends_no_file() {
    let mut world = World::new(PartitionLocking::All);
    let file = chunked_file(&mut world);
    let writer = world.session;
    world.session = SessionId(2);
    truncate(&mut world, file, 30);
    world.run(MetaOp::TruncateDone { ino: file }).unwrap();
    world.session = writer;
    end_write(&mut world, file, 100);
    assert_eq!(world.getattr(file).unwrap().size, 30);
}

#[test]
fn a_note_stays_until_its_writer_is_done() {
    let mut world = World::new(PartitionLocking::All);
    let file = chunked_file(&mut world);
    assert_eq!(notes(&world, file), []);
    world.run(MetaOp::BeginWrite { ino: file }).unwrap();
    let report = MetaOp::EndWrite {
        ino: file,
        size: 200,
        blocks: 16,
        lens: Vec::new(),
        mtime: Some(Timestamp::new(60, 0)),
        done: false,
        kill_suid_sgid: false,
    };
    let attr = world.attr_of(report).unwrap();
    assert_eq!((attr.size, attr.blocks, attr.mtime.secs), (200, 16, 60));
    assert_eq!(notes(&world, file), [(SessionId(1), None)]);
    end_write(&mut world, file, 200);
    assert_eq!(notes(&world, file), []);
}

/// It was in flight while another service took the partition over, and recovered the file.
#[test]
fn a_late_report_does_not_change_a_time_that_was_set_since() {
    let mut world = World::new(PartitionLocking::All);
    let file = chunked_file(&mut world);
    let mtime = Timestamp::new(1_000_000, 0);
    let set = SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
    world.run(MetaOp::Setattr { ino: file, set }).unwrap();
    let report = MetaOp::EndWrite {
        ino: file,
        size: 100,
        blocks: 8,
        lens: Vec::new(),
        mtime: Some(Timestamp::new(60, 0)),
        done: true,
        kill_suid_sgid: false,
    };
    assert_eq!(world.attr_of(report).unwrap().mtime, mtime);
}

#[test]
fn a_report_never_shrinks_a_file() {
    let mut world = World::new(PartitionLocking::All);
    let file = chunked_file(&mut world);
    let before = world.getattr(file).unwrap();
    end_write(&mut world, file, 10);
    assert_eq!(world.getattr(file).unwrap(), before);
}

#[test]
fn a_truncation_is_recorded_until_it_is_done() {
    let mut world = World::new(PartitionLocking::All);
    let file = chunked_file(&mut world);
    let cut = truncate(&mut world, file, 30);
    assert_eq!((cut.attr.size, cut.attr.mtime.secs), (30, world.now));
    assert_eq!(notes(&world, file), [(SessionId(1), Some(30))]);
    world.run(MetaOp::TruncateDone { ino: file }).unwrap();
    assert_eq!(notes(&world, file), []);
}

#[test]
fn growing_needs_no_note() {
    let mut world = World::new(PartitionLocking::All);
    let file = chunked_file(&mut world);
    assert_eq!(truncate(&mut world, file, 1000).attr.size, 1000);
    assert_eq!(notes(&world, file), []);
}

#[test]
fn the_smaller_of_two_truncations_counts() {
    let mut world = World::new(PartitionLocking::All);
    let file = chunked_file(&mut world);
    truncate(&mut world, file, 10);
    truncate(&mut world, file, 80);
    truncate(&mut world, file, 40);
    assert_eq!(notes(&world, file), [(SessionId(1), Some(10))]);
    assert_eq!(world.getattr(file).unwrap().size, 40);
}

#[test]
fn writing_and_cutting_end_independently() {
    let mut world = World::new(PartitionLocking::All);
    let file = chunked_file(&mut world);
    world.run(MetaOp::BeginWrite { ino: file }).unwrap();
    truncate(&mut world, file, 30);
    end_write(&mut world, file, 30);
    assert_eq!(notes(&world, file), [(SessionId(1), Some(30))]);
    world.run(MetaOp::BeginWrite { ino: file }).unwrap();
    world.run(MetaOp::TruncateDone { ino: file }).unwrap();
    assert_eq!(notes(&world, file), [(SessionId(1), None)]);
}

#[test]
fn a_cut_of_another_session_is_not_ended_by_this_one() {
    let mut world = World::new(PartitionLocking::All);
    let file = chunked_file(&mut world);
    truncate(&mut world, file, 30);
    world.session = SessionId(2);
    world.run(MetaOp::TruncateDone { ino: file }).unwrap();
    assert_eq!(notes(&world, file), [(SessionId(1), Some(30))]);
}

#[test]
fn a_file_that_never_had_chunks_is_cut_without_a_note() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    truncate(&mut world, file, 100);
    truncate(&mut world, file, 10);
    assert_eq!(notes(&world, file), []);
}

#[test]
fn no_room_for_chunks_changes_nothing() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    world.map.groups.clear();
    assert!(world.run(MetaOp::BeginWrite { ino: file }).is_err());
    assert_eq!(notes(&world, file), []);
    assert!(world.file(MetaOp::Open { ino: file, requested_lease: None }).unwrap().layout.is_none());
}
