use crate::support::{PartitionLocking, World, bytes};
use bytes::Bytes;
use types::{Errno, InodeId, mode};
use wire::MetaOp;

const ROOT: InodeId = InodeId::ROOT;

fn create(parent: InodeId, name: &str, exclusive: bool) -> MetaOp {
    MetaOp::Create {
        parent,
        name: bytes(name),
        mode: 0o100666,
        umask: 0o027,
        rdev: 0,
        exclusive,
        requested_lease: None,
    }
}

#[test]
fn a_name_has_at_most_255_bytes() {
    let mut world = World::new(PartitionLocking::All);
    let (longest, too_long) = ("n".repeat(255), "n".repeat(256));
    world.create(ROOT, &longest);
    assert_eq!(world.lookup(ROOT, &too_long), Err(Errno::ENAMETOOLONG));
    assert_eq!(world.run(create(ROOT, &too_long, true)).unwrap_err(), Errno::ENAMETOOLONG);
    assert_eq!(world.unlink(ROOT, &too_long), Err(Errno::ENAMETOOLONG));
    assert_eq!(world.rmdir(ROOT, &too_long), Err(Errno::ENAMETOOLONG));
}

#[test]
fn invalid_names_are_refused() {
    let mut world = World::new(PartitionLocking::All);
    assert_eq!(world.run(create(ROOT, "", true)).unwrap_err(), Errno::ENOENT);
    assert_eq!(world.run(create(ROOT, "a/b", true)).unwrap_err(), Errno::EINVAL);
    assert_eq!(world.run(create(ROOT, "a\0b", true)).unwrap_err(), Errno::EINVAL);
    assert_eq!(world.run(create(ROOT, "..", true)).unwrap_err(), Errno::EEXIST);
    assert_eq!(world.rmdir(ROOT, "."), Err(Errno::EINVAL));
    assert_eq!(world.rmdir(ROOT, ".."), Err(Errno::ENOTEMPTY));
    assert_eq!(world.unlink(ROOT, "."), Err(Errno::EISDIR));
}

#[test]
fn dots_are_looked_up() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let outer = world.mkdir(ROOT, "outer");
    let inner = world.mkdir(outer, "inner");
    assert_eq!(world.lookup(inner, "."), Ok(inner));
    assert_eq!(world.lookup(inner, ".."), Ok(outer));
    assert_eq!(world.lookup(ROOT, ".."), Ok(ROOT));
    let file = world.create(outer, "file");
    assert_eq!(world.lookup(file, "."), Ok(file));
    assert_eq!(world.lookup(file, ".."), Err(Errno::ENOTDIR));
    assert_eq!(world.lookup(file, "x"), Err(Errno::ENOTDIR));
}

#[test]
fn locks_and_sync_are_not_for_this_state() {
    let mut world = World::new(PartitionLocking::All);
    assert_eq!(world.run(MetaOp::Sync).unwrap_err(), Errno::ENOSYS);
}

#[test]
fn an_exclusive_create_refuses_an_existing_name_and_any_other_answers_it() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    assert_eq!(world.run(create(ROOT, "file", true)).unwrap_err(), Errno::EEXIST);
    assert_eq!(world.attr_of(create(ROOT, "file", false)).unwrap().ino, file);
}

#[test]
fn the_umask_applies_to_all_but_symlinks() {
    let mut world = World::new(PartitionLocking::All);
    assert_eq!(world.attr_of(create(ROOT, "file", true)).unwrap().mode, 0o100640);
    let mkdir = MetaOp::Mkdir { parent: ROOT, name: bytes("dir"), mode: 0o1777, umask: 0o022 };
    assert_eq!(world.attr_of(mkdir).unwrap().mode, mode::S_IFDIR | 0o1755);
    let symlink = MetaOp::Symlink { parent: ROOT, name: bytes("link"), target: bytes("to/there") };
    let attr = world.attr_of(symlink).unwrap();
    assert_eq!((attr.mode, attr.size), (mode::S_IFLNK | 0o777, 8));
}

#[test]
fn a_device_keeps_its_number_and_create_makes_no_directories() {
    let mut world = World::new(PartitionLocking::All);
    let make = |mode| MetaOp::Create {
        parent: ROOT,
        name: bytes("node"),
        mode,
        umask: 0,
        rdev: 0x1234,
        exclusive: true,
        requested_lease: None,
    };
    assert_eq!(world.run(make(mode::S_IFDIR | 0o755)).unwrap_err(), Errno::EINVAL);
    assert_eq!(world.run(make(mode::S_IFLNK | 0o777)).unwrap_err(), Errno::EINVAL);
    let device = world.attr_of(make(mode::S_IFCHR | 0o600)).unwrap();
    assert_eq!((device.mode, device.rdev), (mode::S_IFCHR | 0o600, 0x1234));
}

#[test]
fn a_symlink_holds_4095_bytes() {
    let mut world = World::new(PartitionLocking::All);
    let symlink = |len: usize| MetaOp::Symlink {
        parent: ROOT,
        name: bytes("link"),
        target: Bytes::from(vec![b't'; len]),
    };
    assert_eq!(world.run(symlink(0)).unwrap_err(), Errno::ENOENT);
    assert_eq!(world.run(symlink(4096)).unwrap_err(), Errno::ENAMETOOLONG);
    assert_eq!(world.attr_of(symlink(4095)).unwrap().size, 4095);
}

#[test]
fn a_removed_directory_takes_no_entries() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let gone = world.mkdir(ROOT, "gone");
    let file = world.create(ROOT, "file");
    assert_eq!(world.rmdir(ROOT, "gone").unwrap().nlink, 0);
    assert_eq!(world.run(create(gone, "x", true)).unwrap_err(), Errno::ENOENT);
    assert_eq!(world.link(file, gone, "x"), Err(Errno::ENOENT));
    let mkdir = MetaOp::Mkdir { parent: gone, name: bytes("x"), mode: 0o755, umask: 0 };
    assert_eq!(world.run(mkdir).unwrap_err(), Errno::ENOENT);
    world.check_invariants();
}

#[test]
fn a_full_directory_stays() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    world.create(dir, "file");
    assert_eq!(world.rmdir(ROOT, "dir"), Err(Errno::ENOTEMPTY));
    world.unlink(dir, "file").unwrap();
    assert_eq!(world.rmdir(ROOT, "dir").unwrap().nlink, 0);
    assert_eq!(world.getattr(ROOT).unwrap().nlink, 2);
}

#[test]
fn directories_spread_over_partitions_and_files_stay_with_their_directory() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let mut partitions = std::collections::BTreeSet::new();
    for number in 0..32 {
        let dir = world.mkdir(ROOT, &format!("dir{number}"));
        partitions.insert(dir.partition());
        assert_eq!(world.create(dir, "file").partition(), dir.partition());
    }
    assert_eq!(partitions.len(), crate::support::PARTITIONS as usize);
}

#[test]
fn an_inode_number_is_never_handed_out_twice() {
    let mut world = World::new(PartitionLocking::All);
    let mut seen = std::collections::BTreeSet::from([ROOT]);
    for _ in 0..20 {
        let file = world.create(ROOT, "file");
        let dir = world.mkdir(ROOT, "dir");
        assert!(seen.insert(file) && seen.insert(dir));
        world.unlink(ROOT, "file").unwrap();
        world.rmdir(ROOT, "dir").unwrap();
        world.reclaim(file);
        world.reclaim(dir);
    }
}
