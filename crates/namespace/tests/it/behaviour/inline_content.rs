use crate::support::{PartitionLocking, World, bytes};
use bytes::Bytes;
use namespace::keys;
use types::{Errno, InodeId, Refusal};
use wire::{FileInfo, MetaOp, PatternChange};

const ROOT: InodeId = InodeId::ROOT;
/// Inline limit of the default pattern.
const LIMIT: u64 = 4096;

fn write(world: &mut World, ino: InodeId, offset: u64, data: &[u8]) -> Result<u64, Errno> {
    let data = Bytes::copy_from_slice(data);
    let attr =
        world.attr_of(MetaOp::WriteInline { ino, offset, data, kill_suid_sgid: false, at_end: false })?;
    Ok(attr.size)
}

fn truncate(world: &mut World, ino: InodeId, size: u64) -> FileInfo {
    world.file(MetaOp::Truncate { ino, size, kill_suid_sgid: false }).unwrap()
}

fn content(world: &mut World, ino: InodeId) -> Vec<u8> {
    world.file(MetaOp::Open { ino, requested_lease: None }).unwrap().inline.unwrap().to_vec()
}

#[test]
fn an_append_goes_to_the_end_or_fails() {
    let mut world = World::new(PartitionLocking::All);
    let ino = world.create(ROOT, "file");
    let append = |offset: u64, data: &'static str| {
        let data = bytes(data);
        MetaOp::WriteInline { ino, offset, data, kill_suid_sgid: false, at_end: true }
    };
    world.run(append(0, "one")).unwrap();
    // Another client has appended meanwhile.
    assert_eq!(world.run(append(0, "two")).unwrap_err(), Refusal::EndedLease);
    assert_eq!(world.run(append(9, "two")).unwrap_err(), Refusal::EndedLease);
    world.run(append(3, "two")).unwrap();
    assert_eq!(content(&mut world, ino), b"onetwo");
}

#[test]
fn a_gap_reads_as_zeros() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    assert_eq!(content(&mut world, file), b"");
    assert_eq!(write(&mut world, file, 3, b"abc"), Ok(6));
    assert_eq!(content(&mut world, file), b"\0\0\0abc");
    assert_eq!(write(&mut world, file, 4, b"X"), Ok(6));
    assert_eq!(content(&mut world, file), b"\0\0\0aXc");
    assert_eq!(write(&mut world, file, 0, b"whole new"), Ok(9));
    assert_eq!(content(&mut world, file), b"whole new");
    assert_eq!(world.getattr(file).unwrap().blocks, 1);
}

#[test]
fn content_ends_at_the_limit() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    assert_eq!(write(&mut world, file, LIMIT - 1, b"ab"), Err(Errno::ERANGE));
    assert_eq!(write(&mut world, file, u64::MAX, b"ab"), Err(Errno::EFBIG));
    assert_eq!(write(&mut world, file, LIMIT - 1, b"a"), Ok(LIMIT));
    assert_eq!(world.getattr(file).unwrap().blocks, 8);
}

#[test]
fn cut_content_does_not_come_back_when_the_file_grows() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    write(&mut world, file, 0, b"secret").unwrap();
    let cut = truncate(&mut world, file, 2);
    assert_eq!((cut.attr.size, cut.inline.unwrap().as_ref()), (2, b"se".as_slice()));
    let grown = truncate(&mut world, file, 6);
    assert_eq!((grown.attr.size, grown.inline.unwrap().as_ref()), (6, b"se".as_slice()));
    assert_eq!(write(&mut world, file, 4, b"x"), Ok(6));
    assert_eq!(content(&mut world, file), b"se\0\0x");
    world.check_invariants();
}

#[test]
fn an_empty_file_stores_no_content() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    write(&mut world, file, 0, b"data").unwrap();
    assert!(world.holds(keys::inline(file)));
    truncate(&mut world, file, 0);
    assert!(!world.holds(keys::inline(file)));
    assert_eq!(world.getattr(file).unwrap().blocks, 0);
    assert_eq!(content(&mut world, file), b"");
}

#[test]
fn a_file_may_grow_far_beyond_the_limit_by_truncation_and_stay_inline() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    write(&mut world, file, 0, b"head").unwrap();
    truncate(&mut world, file, 1 << 40);
    assert_eq!(write(&mut world, file, 0, b"HEAD"), Ok(1 << 40));
    assert_eq!(content(&mut world, file), b"HEAD");
    let too_big = MetaOp::Truncate { ino: file, size: 1 << 63, kill_suid_sgid: false };
    assert_eq!(world.run(too_big).unwrap_err(), Errno::EFBIG);
}

#[test]
fn without_a_limit_no_file_is_inline() {
    let mut world = World::new(PartitionLocking::All);
    let change = PatternChange { inline_limit: Some(0), ..PatternChange::default() };
    world.run(MetaOp::SetPattern { dir: ROOT, change }).unwrap();
    let file = world.create(ROOT, "file");
    let info = world.file(MetaOp::Open { ino: file, requested_lease: None }).unwrap();
    assert_eq!((info.inline, info.layout, info.inline_limit), (None, None, 0));
    assert_eq!(write(&mut world, file, 0, b"x"), Err(Errno::ERANGE));
    assert_eq!(truncate(&mut world, file, 100).attr.size, 100);
}

#[test]
fn only_regular_files_have_content() {
    let mut world = World::new(PartitionLocking::All);
    let dir = world.mkdir(ROOT, "dir");
    let symlink = MetaOp::Symlink { parent: ROOT, name: bytes("link"), target: bytes("x") };
    let link = world.attr_of(symlink).unwrap().ino;
    for (ino, errno) in [(dir, Errno::EISDIR), (link, Errno::EINVAL)] {
        assert_eq!(world.run(MetaOp::Open { ino, requested_lease: None }).unwrap_err(), errno);
        assert_eq!(world.run(MetaOp::BeginWrite { ino }).unwrap_err(), errno);
        assert_eq!(write(&mut world, ino, 0, b"x"), Err(errno));
    }
}
