//! Flags and projects of inodes: restrictions and inheritance.

use crate::support::{PartitionLocking, World};
use types::{Errno, InodeFlags, InodeId, ProjectId, SetAttr, SetTime, Timestamp};
use wire::MetaOp;
use wire::RenameMode::{Exchange, Replace};

const ROOT: InodeId = InodeId::ROOT;

fn set(world: &mut World, ino: InodeId, set: SetAttr) -> Result<(), Errno> {
    world.run(MetaOp::Setattr { ino, set }).map(drop)
}

fn mark(world: &mut World, ino: InodeId, flags: InodeFlags, project: u32) {
    let (flags, project) = (Some(flags), Some(ProjectId(project)));
    set(world, ino, SetAttr { flags, project, ..SetAttr::default() }).unwrap();
}

fn marks(world: &mut World, ino: InodeId) -> (InodeFlags, u32) {
    let attr = world.getattr(ino).unwrap();
    (attr.flags, attr.project.0)
}

#[test]
fn what_is_made_in_a_directory_of_a_project_belongs_to_it() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "d");
    mark(&mut world, dir, InodeFlags::NONE, 9);
    let file = world.create(dir, "before");
    assert_eq!(marks(&mut world, file), (InodeFlags::NONE, 0), "it hands nothing down");
    let handed_down = InodeFlags::NODUMP | InodeFlags::PROJECT_INHERIT;
    mark(&mut world, dir, handed_down | InodeFlags::APPEND, 9);
    let (file, below) = (world.create(dir, "file"), world.mkdir(dir, "below"));
    assert_eq!(marks(&mut world, file), (InodeFlags::NODUMP, 9));
    assert_eq!(marks(&mut world, below), (handed_down, 9));
    let deep = world.create(below, "file");
    assert_eq!(marks(&mut world, deep), (InodeFlags::NODUMP, 9));
}

#[test]
fn nothing_of_another_project_enters_a_directory_that_hands_its_own_down() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let tree = world.mkdir(ROOT, "tree");
    mark(&mut world, tree, InodeFlags::PROJECT_INHERIT, 9);
    let (outside, inside) = (world.create(ROOT, "outside"), world.create(tree, "inside"));
    let moves_in = |world: &mut World| world.rename((ROOT, "outside"), (tree, "in"), Replace).map(drop);
    assert_eq!(moves_in(&mut world), Err(Errno::EXDEV));
    assert_eq!(world.link(outside, tree, "in").map(drop), Err(Errno::EXDEV));
    for (from, to) in [((ROOT, "outside"), (tree, "inside")), ((tree, "inside"), (ROOT, "outside"))] {
        assert_eq!(world.rename(from, to, Exchange).map(drop), Err(Errno::EXDEV), "{from:?} with {to:?}");
    }
    // Within the project, and out of it.
    world.rename((tree, "inside"), (tree, "renamed"), Replace).unwrap();
    world.link(inside, ROOT, "link").unwrap();
    world.rename((tree, "renamed"), (ROOT, "left"), Replace).unwrap();
    assert_eq!(marks(&mut world, inside), (InodeFlags::NONE, 9));
    mark(&mut world, outside, InodeFlags::NONE, 9);
    moves_in(&mut world).unwrap();
    world.check_invariants();
}

#[test]
fn times_of_an_append_only_file_can_be_set_to_now_alone() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let file = world.create(ROOT, "log");
    let (now, given) = (Some(SetTime::Now), Some(SetTime::At(Timestamp::new(7, 0))));
    let touched = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
    let disguised = [
        SetAttr { atime: given, ..SetAttr::default() },
        SetAttr { mtime: given, ..SetAttr::default() },
        SetAttr { ctime: Some(Timestamp::new(7, 0)), ..SetAttr::default() },
    ];
    mark(&mut world, file, InodeFlags::APPEND, 0);
    assert_eq!(set(&mut world, file, touched), Ok(()));
    for changed in disguised {
        assert_eq!(set(&mut world, file, changed), Err(Errno::EPERM), "{changed:?}");
    }
    mark(&mut world, file, InodeFlags::IMMUTABLE, 0);
    for changed in disguised.into_iter().chain([touched]) {
        assert_eq!(set(&mut world, file, changed), Err(Errno::EPERM), "{changed:?}");
    }
    mark(&mut world, file, InodeFlags::NONE, 0);
    for changed in disguised.into_iter().chain([touched]) {
        assert_eq!(set(&mut world, file, changed), Ok(()), "{changed:?}");
    }
}
