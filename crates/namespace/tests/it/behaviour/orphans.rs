use crate::support::{PARTITIONS, PartitionLocking, World, bytes};
use namespace::{doomed, forget_doomed, keys, orphans};
use types::{ChunkFileId, Errno, InodeId, PartitionId, SessionId};
use wire::{MetaOp, XattrMode};

const ROOT: InodeId = InodeId::ROOT;

fn all_orphans(world: &World) -> Vec<(InodeId, SessionId)> {
    let pages = (0..PARTITIONS).map(|p| orphans(&world.state, PartitionId(p), InodeId(0), 100).unwrap());
    pages.flatten().map(|orphan| (orphan.ino, orphan.session)).collect()
}

fn tmpfile(world: &mut World) -> InodeId {
    world.attr_of(MetaOp::Tmpfile { parent: ROOT, mode: 0o600, umask: 0 }).unwrap().ino
}

#[test]
fn only_the_expected_inode_loses_its_name() {
    let mut world = World::new(PartitionLocking::All);
    let (old, new) = (world.create(ROOT, "old"), world.create(ROOT, "new"));
    let unlink = |ino| MetaOp::Unlink { parent: ROOT, name: bytes("new"), ino: Some(ino) };
    assert_eq!(world.run(unlink(old)).unwrap_err(), Errno::ENOENT);
    world.run(unlink(new)).unwrap();
    assert_eq!(world.run(unlink(new)).unwrap_err(), Errno::ENOENT);
}

#[test]
fn an_unlinked_file_lives_until_it_is_reclaimed() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    world.session = SessionId(5);
    assert_eq!(world.unlink(ROOT, "file").unwrap().nlink, 0);
    assert_eq!(all_orphans(&world), [(file, SessionId(5))]);
    let write = MetaOp::WriteInline {
        ino: file,
        offset: 0,
        data: bytes("still here"),
        kill_suid_sgid: false,
        at_end: false,
    };
    assert_eq!(world.attr_of(write).unwrap().size, 10);
    world.check_invariants();
    world.reclaim(file);
    assert_eq!(world.getattr(file), Err(Errno::ESTALE));
    assert_eq!(all_orphans(&world), []);
    world.check_invariants();
}

#[test]
fn a_file_with_a_name_is_not_reclaimed() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    world.link(file, ROOT, "other").unwrap();
    world.unlink(ROOT, "file").unwrap();
    world.reclaim(file);
    assert_eq!(world.lookup(ROOT, "other"), Ok(file));
    world.reclaim(InodeId(999));
    world.reclaim(ROOT);
    assert_eq!(world.getattr(ROOT).unwrap().nlink, 2);
}

#[test]
fn an_orphan_gets_no_name_again_unless_it_never_had_one() {
    let mut world = World::new(PartitionLocking::All);
    let removed = world.create(ROOT, "file");
    world.unlink(ROOT, "file").unwrap();
    assert_eq!(world.link(removed, ROOT, "again"), Err(Errno::ENOENT));

    let unnamed = tmpfile(&mut world);
    assert_eq!(world.getattr(unnamed).unwrap().nlink, 0);
    assert_eq!(world.link(unnamed, ROOT, "named").unwrap().nlink, 1);
    world.unlink(ROOT, "named").unwrap();
    assert_eq!(world.link(unnamed, ROOT, "again"), Err(Errno::ENOENT));
    world.check_invariants();
}

#[test]
fn a_file_without_a_name_changes_no_directory_and_goes_when_reclaimed() {
    let mut world = World::new(PartitionLocking::All);
    let before = world.getattr(ROOT);
    let unnamed = tmpfile(&mut world);
    assert_eq!(world.getattr(ROOT), before);
    assert_eq!(all_orphans(&world), [(unnamed, SessionId(1))]);
    world.reclaim(unnamed);
    assert_eq!(world.getattr(unnamed), Err(Errno::ESTALE));
}

#[test]
fn directories_have_one_name() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    assert_eq!(world.link(dir, ROOT, "other"), Err(Errno::EPERM));
}

#[test]
fn a_reclaimed_file_leaves_its_chunks_to_be_deleted_and_nothing_else() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "file");
    let layout = world.file(MetaOp::BeginWrite { ino: file }).unwrap().layout.unwrap();
    let name = bytes("user.note");
    let xattr = MetaOp::SetXattr {
        ino: file,
        name: name.clone(),
        value: bytes("x"),
        mode: XattrMode::Any,
        kill_sgid: false,
    };
    world.run(xattr).unwrap();
    world.session = SessionId(2);
    world.run(MetaOp::BeginWrite { ino: file }).unwrap();
    world.unlink(ROOT, "file").unwrap();
    world.reclaim(file);

    assert_eq!(
        doomed(&world.state, file.partition(), ChunkFileId(0), 10),
        Ok(vec![(file.first_chunk_file(), layout)])
    );
    assert_eq!(doomed(&world.state, file.partition(), file.first_chunk_file(), 10), Ok(vec![]));
    for session in [1, 2] {
        assert!(!world.holds(keys::writing(file, SessionId(session))));
    }
    assert!(!world.holds(keys::xattr(file, &name)));
    world.check_invariants();
    let (_, left) = doomed(&world.state, file.partition(), ChunkFileId(0), 10).unwrap().remove(0);
    let fewer = left.with_moved_stripe(0, types::GroupId(99), types::ChunkSlot(0));
    assert!(
        forget_doomed(&world.state, file.first_chunk_file(), &fewer).unwrap().is_empty(),
        "there are others meanwhile"
    );
    let gone = forget_doomed(&world.state, file.first_chunk_file(), &left).unwrap();
    world.state.write(gone);
    assert_eq!(doomed(&world.state, file.partition(), ChunkFileId(0), 10), Ok(vec![]));
}
