use crate::support::{PartitionLocking, World, bytes};
use bytes::Bytes;
use types::{Credentials, Errno, InodeId};
use wire::{MetaOp, MetaReply, XattrMode};

const ROOT: InodeId = InodeId::ROOT;

fn set(world: &mut World, name: &str, value: Bytes, mode: XattrMode) -> Result<(), Errno> {
    let op = MetaOp::SetXattr { ino: ROOT, name: bytes(name), value, mode, kill_sgid: false };
    world.run(op).map(drop)
}

fn get(world: &mut World, name: &str) -> Result<Bytes, Errno> {
    match world.run(MetaOp::GetXattr { ino: ROOT, name: bytes(name) })? {
        MetaReply::Bytes(value) => Ok(value),
        reply => panic!("no value: {reply:?}"),
    }
}

fn list(world: &mut World) -> Vec<Bytes> {
    match world.run(MetaOp::ListXattr { ino: ROOT }).unwrap() {
        MetaReply::Names(names) => names,
        reply => panic!("no names: {reply:?}"),
    }
}

#[test]
fn an_empty_value_is_a_value() {
    let mut world = World::new(PartitionLocking::All);
    set(&mut world, "user.empty", Bytes::new(), XattrMode::Any).unwrap();
    assert_eq!(get(&mut world, "user.empty"), Ok(Bytes::new()));
    assert_eq!(list(&mut world), ["user.empty"]);
    world.check_invariants();
}

#[test]
fn unknown_namespaces_are_not_supported() {
    let mut world = World::new(PartitionLocking::All);
    for name in ["system.other", "plain", "os2.x"] {
        assert_eq!(get(&mut world, name), Err(Errno::EOPNOTSUPP));
        assert_eq!(set(&mut world, name, bytes("x"), XattrMode::Any), Err(Errno::EOPNOTSUPP));
    }
    assert_eq!(get(&mut world, "user."), Err(Errno::EINVAL));
    assert_eq!(get(&mut world, &format!("user.{}", "n".repeat(251))), Err(Errno::ERANGE));
    assert_eq!(get(&mut world, &format!("user.{}", "n".repeat(250))), Err(Errno::ENODATA));
}

#[test]
fn a_value_has_at_most_64_kib() {
    let mut world = World::new(PartitionLocking::All);
    let value = Bytes::from(vec![1; 65536]);
    set(&mut world, "user.big", value.clone(), XattrMode::Any).unwrap();
    assert_eq!(get(&mut world, "user.big"), Ok(value));
    let too_big = Bytes::from(vec![1; 65537]);
    assert_eq!(set(&mut world, "user.big", too_big, XattrMode::Any), Err(Errno::E2BIG));
}

#[test]
fn the_values_of_an_inode_have_a_limit_that_replacing_and_removing_respect() {
    let mut world = World::new(PartitionLocking::All);
    let value = Bytes::from(vec![1; 65536]);
    for name in ["user.a", "user.b", "user.c", "user.d", "user.d"] {
        set(&mut world, name, value.clone(), XattrMode::Any).unwrap();
    }
    assert_eq!(set(&mut world, "user.e", bytes("x"), XattrMode::Any), Err(Errno::ENOSPC));
    world.run(MetaOp::RemoveXattr { ino: ROOT, name: bytes("user.a") }).unwrap();
    assert_eq!(set(&mut world, "user.e", bytes("x"), XattrMode::Any), Ok(()));
    world.check_invariants();
}

#[test]
fn names_fit_what_a_list_can_return() {
    let mut world = World::new(PartitionLocking::All);
    let name = |number: usize| format!("user.{number:0250}");
    // 256 bytes each, with the terminating zero.
    (0..256).for_each(|number| set(&mut world, &name(number), Bytes::new(), XattrMode::Any).unwrap());
    assert_eq!(set(&mut world, "user.x", Bytes::new(), XattrMode::Any), Err(Errno::ENOSPC));
    assert_eq!(list(&mut world).len(), 256);
}

#[test]
fn create_and_replace_mean_what_they_say() {
    let mut world = World::new(PartitionLocking::All);
    assert_eq!(set(&mut world, "user.a", bytes("1"), XattrMode::Replace), Err(Errno::ENODATA));
    assert_eq!(set(&mut world, "user.a", bytes("1"), XattrMode::Create), Ok(()));
    assert_eq!(set(&mut world, "user.a", bytes("2"), XattrMode::Create), Err(Errno::EEXIST));
    assert_eq!(set(&mut world, "user.a", bytes("2"), XattrMode::Replace), Ok(()));
    assert_eq!(get(&mut world, "user.a"), Ok(bytes("2")));
}

#[test]
fn trusted_names_are_listed_to_root() {
    let mut world = World::new(PartitionLocking::All);
    set(&mut world, "trusted.t", bytes("1"), XattrMode::Any).unwrap();
    set(&mut world, "user.u", bytes("1"), XattrMode::Any).unwrap();
    assert_eq!(list(&mut world), ["user.u"]);
    world.credentials = Credentials::default();
    assert_eq!(list(&mut world), ["trusted.t", "user.u"]);
}

#[test]
fn a_change_of_content_takes_capabilities_away_and_nothing_else() {
    const CAPABILITY: &str = "security.capability";
    for in_chunks in [false, true] {
        let mut world = World::new(PartitionLocking::All);
        let ino = world.create(ROOT, "f");
        for name in ["user.a", CAPABILITY] {
            let (name, value) = (bytes(name), bytes("value"));
            world.run(MetaOp::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false }).unwrap();
        }
        let change = match in_chunks {
            true => MetaOp::BeginWrite { ino },
            false => {
                MetaOp::WriteInline { ino, offset: 0, data: bytes("x"), kill_suid_sgid: false, at_end: false }
            }
        };
        world.run(change).unwrap();
        let left = world.run(MetaOp::ListXattr { ino }).unwrap();
        assert_eq!(left, MetaReply::Names(vec![bytes("user.a")]), "in chunks: {in_chunks}");
        world.check_invariants();
    }
}
