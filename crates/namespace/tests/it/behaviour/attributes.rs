use crate::support::{PartitionLocking, World, bytes};
use types::{InodeId, SetAttr, SetTime, Timestamp};
use wire::MetaOp;

const ROOT: InodeId = InodeId::ROOT;

fn set(world: &mut World, ino: InodeId, set: SetAttr) -> types::Attr {
    world.attr_of(MetaOp::Setattr { ino, set }).unwrap()
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn owner(uid: u32) -> SetAttr {
    SetAttr { uid: Some(uid), ..SetAttr::default() }
}

#[test]
fn chmod_keeps_the_type() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    assert_eq!(set(&mut world, file, mode(0o40777)).mode, 0o100777);
}

#[test]
fn chown_drops_setuid_and_setgid_of_all_but_directories() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    let dir = world.mkdir(ROOT, "dir");
    let cases = [(file, 0o6755, 0o755), (file, 0o6745, 0o2745), (dir, 0o6755, 0o6755)];
    for (ino, before, after) in cases {
        set(&mut world, ino, mode(before));
        let attr = set(&mut world, ino, owner(9));
        assert_eq!((attr.mode & 0o7777, attr.uid), (after, 9));
    }
    let both = SetAttr { mode: Some(0o4711), uid: Some(8), ..SetAttr::default() };
    assert_eq!(set(&mut world, file, both).mode, 0o104711);
}

#[test]
fn kill_leaves_setgid_where_the_group_may_not_execute() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    for (before, after) in [(0o6755, 0o755), (0o6745, 0o2745)] {
        set(&mut world, file, mode(before));
        let write = MetaOp::WriteInline {
            ino: file,
            offset: 0,
            data: bytes("x"),
            kill_suid_sgid: true,
            at_end: false,
        };
        assert_eq!(world.attr_of(write).unwrap().mode & 0o7777, after);
        set(&mut world, file, mode(before));
        let truncate = MetaOp::Truncate { ino: file, size: 0, kill_suid_sgid: true };
        assert_eq!(world.attr_of(truncate).unwrap().mode & 0o7777, after);
    }
}

#[test]
fn times_are_set_as_asked_and_ctime_by_the_service() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    let before_1970 = Timestamp::new(-5, 999_999_999);
    let times =
        SetAttr { atime: Some(SetTime::At(before_1970)), mtime: Some(SetTime::Now), ..SetAttr::default() };
    let attr = set(&mut world, file, times);
    assert_eq!((attr.atime, attr.mtime.secs, attr.ctime.secs), (before_1970, world.now, world.now));
    assert!(attr.btime.secs < world.now);
}

#[test]
fn the_clock_of_a_client_does_not_turn_ctime_back() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    let before = set(&mut world, file, mode(0o600)).ctime;
    for secs in [7, before.secs - 1, before.secs, world.now + 1000] {
        let ctime = Some(Timestamp::new(secs, 0));
        let after = set(&mut world, file, SetAttr { ctime, ..mode(0o640) }).ctime;
        assert!(before <= after && after.secs <= world.now, "{secs}: {before:?} {after:?}");
    }
}

#[test]
fn a_setgid_directory_hands_its_group_on() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    set(&mut world, dir, SetAttr { gid: Some(55), mode: Some(0o2775), ..SetAttr::default() });
    let file = world.create(dir, "file");
    let inner = world.mkdir(dir, "inner");
    let (file, inner) = (world.getattr(file).unwrap(), world.getattr(inner).unwrap());
    assert_eq!((file.uid, file.gid, file.mode), (1000, 55, 0o100644));
    assert_eq!((inner.gid, inner.mode), (55, 0o042755));
    let outside = world.create(ROOT, "file");
    assert_eq!(world.getattr(outside).unwrap().gid, 100);
}

#[test]
fn a_directory_has_a_constant_size() {
    let mut world = World::new(PartitionLocking::All);
    let empty = world.getattr(ROOT).unwrap();
    for number in 0..10 {
        world.create(ROOT, &format!("file{number}"));
    }
    let full = world.getattr(ROOT).unwrap();
    assert_eq!((empty.size, empty.blocks), (4096, 8));
    assert_eq!((full.size, full.blocks), (4096, 8));
}
