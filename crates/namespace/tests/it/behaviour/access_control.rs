use crate::support::{PartitionLocking, World, bytes};
use bytes::Bytes;
use types::{Errno, InodeId, SetAttr};
use wire::{MetaOp, MetaReply, XattrMode};

const ROOT: InodeId = InodeId::ROOT;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const NO_ID: u32 = u32::MAX;

fn acl(entries: &[(u16, u16, u32)]) -> Bytes {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value.into()
}

/// rwx for the owner and user 7, `group` for the group, `mask` for the mask, nothing for others.
fn extended(group: u16, mask: u16) -> Bytes {
    acl(&[
        (USER_OBJ, 7, NO_ID),
        (USER, 7, 7),
        (GROUP_OBJ, group, NO_ID),
        (MASK, mask, NO_ID),
        (OTHER, 0, NO_ID),
    ])
}

fn minimal(user: u16, group: u16, other: u16) -> Bytes {
    acl(&[(USER_OBJ, user, NO_ID), (GROUP_OBJ, group, NO_ID), (OTHER, other, NO_ID)])
}

fn set(world: &mut World, ino: InodeId, name: &str, value: Bytes) -> Result<u32, Errno> {
    let op = MetaOp::SetXattr { ino, name: bytes(name), value, mode: XattrMode::Any, kill_sgid: false };
    let attr = world.attr_of(op)?;
    world.check_invariants();
    Ok(attr.mode & 0o7777)
}

fn get(world: &mut World, ino: InodeId, name: &str) -> Result<Bytes, Errno> {
    match world.run(MetaOp::GetXattr { ino, name: bytes(name) })? {
        MetaReply::Bytes(value) => Ok(value),
        reply => panic!("no value: {reply:?}"),
    }
}

fn chmod(world: &mut World, ino: InodeId, mode: u32) {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    world.run(MetaOp::Setattr { ino, set }).unwrap();
}

#[test]
fn an_access_acl_shows_in_the_mode() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    assert_eq!(set(&mut world, file, ACCESS, extended(4, 6)), Ok(0o760));
    assert_eq!(get(&mut world, file, ACCESS), Ok(extended(4, 6)));
}

#[test]
fn an_acl_that_a_mode_can_say_is_not_stored() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    set(&mut world, file, ACCESS, extended(4, 6)).unwrap();
    assert_eq!(set(&mut world, file, ACCESS, minimal(6, 4, 0)), Ok(0o640));
    assert_eq!(get(&mut world, file, ACCESS), Err(Errno::ENODATA));
}

#[test]
fn chmod_changes_the_mask_and_leaves_the_group() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    set(&mut world, file, ACCESS, extended(4, 6)).unwrap();
    chmod(&mut world, file, 0o710);
    assert_eq!(get(&mut world, file, ACCESS), Ok(extended(4, 1)));
    assert_eq!(world.getattr(file).unwrap().mode, 0o100710);
}

#[test]
fn a_default_acl_replaces_the_umask() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    set(&mut world, dir, DEFAULT, extended(5, 7)).unwrap();
    let create = MetaOp::Create {
        parent: dir,
        name: bytes("file"),
        mode: 0o100666,
        umask: 0o777,
        rdev: 0,
        exclusive: true,
        requested_lease: None,
    };
    let file = world.attr_of(create).unwrap();
    assert_eq!(file.mode, 0o100660);
    let expected = acl(&[
        (USER_OBJ, 6, NO_ID),
        (USER, 7, 7),
        (GROUP_OBJ, 5, NO_ID),
        (MASK, 6, NO_ID),
        (OTHER, 0, NO_ID),
    ]);
    assert_eq!(get(&mut world, file.ino, ACCESS), Ok(expected));
    assert_eq!(get(&mut world, file.ino, DEFAULT), Err(Errno::ENODATA));
    world.check_invariants();
}

#[test]
fn a_new_directory_takes_the_default_acl_along() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    set(&mut world, dir, DEFAULT, extended(5, 7)).unwrap();
    let mkdir = MetaOp::Mkdir { parent: dir, name: bytes("inner"), mode: 0o777, umask: 0o077 };
    let inner = world.attr_of(mkdir).unwrap();
    assert_eq!(inner.mode, 0o040770);
    assert_eq!(get(&mut world, inner.ino, DEFAULT), Ok(extended(5, 7)));
    assert_eq!(get(&mut world, inner.ino, ACCESS), Ok(extended(5, 7)));
    world.check_invariants();
}

#[test]
fn a_default_acl_that_a_mode_can_say_leaves_new_files_without_an_acl() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    set(&mut world, dir, DEFAULT, minimal(7, 5, 0)).unwrap();
    let file = world.create(dir, "file");
    assert_eq!(world.getattr(file).unwrap().mode, 0o100640);
    assert_eq!(get(&mut world, file, ACCESS), Err(Errno::ENODATA));
    let unnamed = world.attr_of(MetaOp::Tmpfile { parent: dir, mode: 0o666, umask: 0o777 }).unwrap();
    assert_eq!(unnamed.mode, 0o100640);
}

#[test]
fn symlinks_inherit_no_acl_and_get_none() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    set(&mut world, dir, DEFAULT, extended(5, 7)).unwrap();
    let symlink = MetaOp::Symlink { parent: dir, name: bytes("link"), target: bytes("x") };
    let link = world.attr_of(symlink).unwrap();
    assert_eq!(link.mode, 0o120777);
    assert_eq!(get(&mut world, link.ino, ACCESS), Err(Errno::ENODATA));
    assert_eq!(set(&mut world, link.ino, ACCESS, extended(5, 7)), Err(Errno::EOPNOTSUPP));
}

#[test]
fn only_directories_have_a_default_acl() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    assert_eq!(set(&mut world, file, DEFAULT, minimal(7, 5, 0)), Err(Errno::EACCES));
}

#[test]
fn removing_an_acl_keeps_the_mode_and_may_be_repeated() {
    let mut world = World::new(PartitionLocking::All);
    let dir = world.mkdir(ROOT, "dir");
    set(&mut world, dir, ACCESS, extended(4, 6)).unwrap();
    set(&mut world, dir, DEFAULT, extended(4, 6)).unwrap();
    for _ in 0..2 {
        for name in [ACCESS, DEFAULT] {
            let attr = world.attr_of(MetaOp::RemoveXattr { ino: dir, name: bytes(name) }).unwrap();
            assert_eq!(attr.mode, 0o040760);
            assert_eq!(get(&mut world, dir, name), Err(Errno::ENODATA));
        }
    }
    world.check_invariants();
    let file = world.create(dir, "file");
    assert_eq!(world.getattr(file).unwrap().mode, 0o100644);
}

#[test]
fn an_invalid_acl_changes_nothing() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    let before = world.getattr(file);
    assert_eq!(set(&mut world, file, ACCESS, bytes("nonsense")), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(&mut world, file, ACCESS, acl(&[(OTHER, 7, NO_ID)])), Err(Errno::EINVAL));
    assert_eq!(world.getattr(file), before);
}

#[test]
fn an_outsider_who_sets_an_acl_loses_setgid() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    chmod(&mut world, file, 0o2755);
    let op = MetaOp::SetXattr {
        ino: file,
        name: bytes(ACCESS),
        value: minimal(7, 5, 5),
        mode: XattrMode::Any,
        kill_sgid: true,
    };
    assert_eq!(world.attr_of(op).unwrap().mode, 0o100755);
}
