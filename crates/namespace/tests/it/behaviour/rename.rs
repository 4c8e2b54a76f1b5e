use crate::support::{PartitionLocking, World};
use types::{Errno, InodeId};
use wire::RenameMode::{Exchange, NoReplace, Replace, Whiteout};

const ROOT: InodeId = InodeId::ROOT;

/// `/left` and `/right` with a file, an empty directory and a non-empty one each.
struct Matrix {
    world: World,
    left: InodeId,
    right: InodeId,
}

impl Matrix {
    fn new() -> Matrix {
        let mut world = World::new(PartitionLocking::OnDemand);
        let [left, right] = ["left", "right"].map(|name| world.mkdir(ROOT, name));
        for side in [left, right] {
            world.create(side, "file");
            world.mkdir(side, "empty");
            let full = world.mkdir(side, "full");
            world.create(full, "inside");
        }
        Matrix { world, left, right }
    }

    fn replace(mut self, from: &str, to: &str) -> Result<(), Errno> {
        let (left, right) = (self.left, self.right);
        let moving = self.world.lookup(left, from).unwrap();
        let replaced = self.world.lookup(right, to);
        let (moved, other) = self.world.rename((left, from), (right, to), Replace)?;
        assert_eq!(moved.ino, moving);
        assert_eq!(self.world.lookup(right, to), Ok(moving));
        assert_eq!(self.world.lookup(left, from), Err(Errno::ENOENT));
        assert_eq!(other.map(|attr| attr.ino).ok_or(Errno::ENOENT), replaced);
        assert!(other.is_none_or(|attr| attr.nlink == 0));
        self.world.check_invariants();
        Ok(())
    }
}

#[test]
fn what_may_replace_what() {
    let matrix = [
        ("file", "file", Ok(())),
        ("file", "empty", Err(Errno::EISDIR)),
        ("file", "full", Err(Errno::EISDIR)),
        ("file", "free", Ok(())),
        ("empty", "file", Err(Errno::ENOTDIR)),
        ("empty", "empty", Ok(())),
        ("empty", "full", Err(Errno::ENOTEMPTY)),
        ("empty", "free", Ok(())),
        ("full", "file", Err(Errno::ENOTDIR)),
        ("full", "empty", Ok(())),
        ("full", "full", Err(Errno::ENOTEMPTY)),
        ("full", "free", Ok(())),
    ];
    for (from, to, expected) in matrix {
        assert_eq!(Matrix::new().replace(from, to), expected, "{from} over {to}");
    }
}

#[test]
fn everything_can_be_exchanged_with_everything() {
    for from in ["file", "empty", "full"] {
        for to in ["file", "empty", "full"] {
            let Matrix { mut world, left, right } = Matrix::new();
            let before = (world.lookup(left, from).unwrap(), world.lookup(right, to).unwrap());
            let (moved, other) = world.rename((left, from), (right, to), Exchange).unwrap();
            assert_eq!((moved.ino, other.unwrap().ino), before);
            assert_eq!((world.lookup(right, to), world.lookup(left, from)), (Ok(before.0), Ok(before.1)));
            world.check_invariants();
        }
    }
}

#[test]
fn a_whiteout_takes_the_place_of_what_moves() {
    for from in ["file", "empty", "full"] {
        for to in ["free", from] {
            let Matrix { mut world, left, right } = Matrix::new();
            let moving = world.lookup(left, from).unwrap();
            let moved = world.rename((left, from), (right, to), Whiteout);
            if (from, to) == ("full", "full") {
                assert_eq!(moved, Err(Errno::ENOTEMPTY));
                assert_eq!(world.lookup(left, from), Ok(moving), "what is refused leaves no whiteout");
                continue;
            }
            assert_eq!(moved.unwrap().0.ino, moving);
            assert_eq!(world.lookup(right, to), Ok(moving));
            let whiteout = world.lookup(left, from).unwrap();
            let attr = world.getattr(whiteout).unwrap();
            assert_eq!((attr.mode, attr.rdev, attr.nlink), (types::mode::S_IFCHR, 0, 1));
            world.check_invariants();
        }
    }
}

#[test]
fn an_exchange_needs_both_and_no_replace_needs_a_free_name() {
    let Matrix { mut world, left, right } = Matrix::new();
    assert_eq!(world.rename((left, "file"), (right, "free"), Exchange), Err(Errno::ENOENT));
    assert_eq!(world.rename((left, "file"), (right, "file"), NoReplace), Err(Errno::EEXIST));
    assert_eq!(world.rename((left, "file"), (left, "file"), NoReplace), Err(Errno::EEXIST));
    assert_eq!(world.rename((left, "nothing"), (right, "file"), Replace), Err(Errno::ENOENT));
    world.rename((left, "file"), (right, "free"), NoReplace).unwrap();
    world.check_invariants();
}

#[test]
fn a_moved_directory_takes_its_link_to_its_new_parent() {
    let Matrix { mut world, left, right } = Matrix::new();
    let full = world.lookup(left, "full").unwrap();
    let before = (world.getattr(left).unwrap().nlink, world.getattr(right).unwrap().nlink);
    world.rename((left, "full"), (right, "moved"), Replace).unwrap();
    let after = (world.getattr(left).unwrap().nlink, world.getattr(right).unwrap().nlink);
    assert_eq!(after, (before.0 - 1, before.1 + 1));
    assert_eq!(world.lookup(full, ".."), Ok(right));
}

#[test]
fn a_directory_never_moves_into_itself() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let top = world.mkdir(ROOT, "top");
    let middle = world.mkdir(top, "middle");
    let bottom = world.mkdir(middle, "bottom");
    let file = world.create(bottom, "file");
    assert_eq!(world.rename((ROOT, "top"), (top, "x"), Replace), Err(Errno::EINVAL));
    assert_eq!(world.rename((ROOT, "top"), (bottom, "x"), Replace), Err(Errno::EINVAL));
    assert_eq!(world.rename((bottom, "file"), (ROOT, "top"), Exchange), Err(Errno::EINVAL));
    assert_eq!(world.rename((middle, "bottom"), (ROOT, "top"), Replace), Err(Errno::ENOTEMPTY));
    assert_eq!(world.rename((bottom, "file"), (ROOT, "free"), Replace).unwrap().0.ino, file);
    world.check_invariants();
}

#[test]
fn two_names_of_one_inode_both_stay() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "a");
    world.link(file, ROOT, "b").unwrap();
    let before = (world.getattr(file), world.getattr(ROOT));
    for mode in [Replace, Exchange] {
        let (moved, other) = world.rename((ROOT, "a"), (ROOT, "b"), mode).unwrap();
        assert_eq!((moved.ino, moved.nlink, other), (file, 2, None));
    }
    assert_eq!((world.lookup(ROOT, "a"), world.lookup(ROOT, "b")), (Ok(file), Ok(file)));
    assert_eq!((world.getattr(file), world.getattr(ROOT)), before);
    assert_eq!(world.rename((ROOT, "a"), (ROOT, "b"), NoReplace), Err(Errno::EEXIST));
}

#[test]
fn replacing_one_of_two_names_leaves_the_other() {
    let mut world = World::new(PartitionLocking::All);
    let file = world.create(ROOT, "a");
    world.link(file, ROOT, "b").unwrap();
    world.create(ROOT, "c");
    let (_, replaced) = world.rename((ROOT, "c"), (ROOT, "a"), Replace).unwrap();
    assert_eq!(replaced.map(|attr| (attr.ino, attr.nlink)), Some((file, 1)));
    assert_eq!(world.lookup(ROOT, "b"), Ok(file));
    world.check_invariants();
}

#[test]
fn a_removed_directory_is_no_place_to_move_to() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let gone = world.mkdir(ROOT, "gone");
    world.create(ROOT, "file");
    world.rmdir(ROOT, "gone").unwrap();
    assert_eq!(world.rename((ROOT, "file"), (gone, "file"), Replace), Err(Errno::ENOENT));
    assert_eq!(world.rename((ROOT, ".."), (ROOT, "x"), Replace), Err(Errno::EBUSY));
}

#[test]
fn times_of_both_directories_and_of_what_moved_change() {
    let Matrix { mut world, left, right } = Matrix::new();
    let (moved, replaced) = world.rename((left, "file"), (right, "file"), Replace).unwrap();
    let now = world.now;
    assert_eq!((moved.ctime.secs, replaced.unwrap().ctime.secs), (now, now));
    assert!(moved.mtime.secs < now);
    for dir in [left, right] {
        let attr = world.getattr(dir).unwrap();
        assert_eq!((attr.mtime.secs, attr.ctime.secs), (now, now));
    }
}
