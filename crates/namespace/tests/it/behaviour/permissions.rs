//! Permission checks by the ids of the caller.

use crate::support::{PartitionLocking, World, bytes};
use namespace::{Caller, Failure, permit};
use types::{Credentials, Errno, InodeFlags, InodeId, ProjectId, SetAttr, SetTime, Timestamp};
use wire::{MetaOp, PendingFile, RenameMode, XattrMode};

const ROOT: InodeId = InodeId::ROOT;
const OWNER: u32 = 1000;
const STRANGER: u32 = 2000;
const TEAM: u32 = 500;

fn user(uid: u32, groups: &[u32]) -> Caller<'_> {
    Caller { groups, ..Caller::of(Credentials { uid, gid: uid, pid: 1 }) }
}

fn create(parent: InodeId, name: &str) -> MetaOp {
    MetaOp::Create {
        parent,
        name: bytes(name),
        mode: 0o100_644,
        umask: 0,
        rdev: 0,
        exclusive: true,
        requested_lease: None,
    }
}

fn deliver(parent: InodeId, name: &str) -> MetaOp {
    let (name, content) = (bytes(name), bytes(""));
    let file = PendingFile {
        ino: parent,
        parent,
        name,
        mode: 0o644,
        umask: 0,
        created: types::Timestamp::default(),
        content,
        begins_write: false,
        written: None,
        set: types::SetAttr::default(),
    };
    MetaOp::CommitCreate { file: Box::new(file) }
}

fn deliver_changed(parent: InodeId, set: SetAttr) -> MetaOp {
    let MetaOp::CommitCreate { file } = deliver(parent, "new") else { unreachable!("it delivers a file") };
    MetaOp::CommitCreate { file: Box::new(PendingFile { set, ..*file }) }
}

fn set(ino: InodeId, set: SetAttr) -> MetaOp {
    MetaOp::Setattr { ino, set }
}

fn xattr(ino: InodeId, name: &str) -> MetaOp {
    let (name, value) = (bytes(name), bytes("v"));
    MetaOp::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false }
}

fn unlink(parent: InodeId, name: &str) -> MetaOp {
    MetaOp::Unlink { parent, name: bytes(name), ino: None }
}

fn rename(from: (InodeId, &str), to: (InodeId, &str), mode: RenameMode) -> MetaOp {
    let (name, new_name) = (bytes(from.1), bytes(to.1));
    MetaOp::Rename { parent: from.0, name, new_parent: to.0, new_name, mode }
}

struct Scene {
    world: World,
    /// Directories of OWNER and TEAM: 0755, 0775 and 01777.
    closed: InodeId,
    team: InodeId,
    sticky: InodeId,
    /// A file of OWNER and TEAM in each, `f`, 0664.
    files: [InodeId; 3],
}

impl Scene {
    fn new() -> Scene {
        let mut world = World::new(PartitionLocking::All);
        world.credentials = Credentials { uid: OWNER, gid: TEAM, pid: 1 };
        let mut dir = |name, mode| {
            let ino = world.mkdir(ROOT, name);
            let file = world.create(ino, "f");
            let mode_of = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
            world.run(set(ino, mode_of(mode))).unwrap();
            world.run(set(file, mode_of(0o664))).unwrap();
            (ino, file)
        };
        let [closed, team, sticky] = [dir("closed", 0o755), dir("team", 0o775), dir("sticky", 0o1777)];
        let files = [closed.1, team.1, sticky.1];
        Scene { world, closed: closed.0, team: team.0, sticky: sticky.0, files }
    }

    fn may(&self, caller: &Caller<'_>, op: MetaOp) -> Result<(), Errno> {
        match permit(&self.world.env(), &self.world.state, caller, &op) {
            Ok(()) => Ok(()),
            Err(Failure::Refused(error)) => Err(error.errno),
            Err(Failure::NeedPartition(_) | Failure::NotFetched) => panic!("everything is here and held"),
        }
    }
}

#[test]
fn only_root_creates_a_file_for_another_user() {
    let scene = Scene::new();
    let (owner, root) = (user(OWNER, &[7]), user(0, &[]));
    let given = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
    let own = SetAttr { mode: Some(0o600), mtime: Some(SetTime::Now), ..given(Some(OWNER), Some(7)) };
    assert_eq!(scene.may(&owner, deliver_changed(scene.closed, own)), Ok(()));
    for others in [given(Some(STRANGER), None), given(None, Some(4711))] {
        assert_eq!(scene.may(&owner, deliver_changed(scene.closed, others)), Err(Errno::EPERM));
        assert_eq!(scene.may(&root, deliver_changed(scene.closed, others)), Ok(()));
    }
}

#[test]
fn creating_names_needs_write_and_search_permission() {
    let scene = Scene::new();
    let (owner, stranger, member) = (user(OWNER, &[]), user(STRANGER, &[]), user(STRANGER, &[7, TEAM]));
    let makes = |parent| {
        [
            create(parent, "new"),
            MetaOp::Mkdir { parent, name: bytes("new"), mode: 0o755, umask: 0 },
            MetaOp::Symlink { parent, name: bytes("new"), target: bytes("x") },
            MetaOp::Link { ino: scene.files[0], parent, name: bytes("new") },
            MetaOp::Tmpfile { parent, mode: 0o600, umask: 0 },
            MetaOp::PreallocateInodes { dir: parent, count: 1, prefix: bytes::Bytes::new() },
            deliver(parent, "new"),
            unlink(parent, "f"),
            rename((parent, "f"), (parent, "g"), RenameMode::Replace),
        ]
    };
    for op in makes(scene.closed) {
        assert_eq!(scene.may(&owner, op.clone()), Ok(()), "{op:?}");
        assert_eq!(scene.may(&stranger, op.clone()), Err(Errno::EACCES), "{op:?}");
        assert_eq!(scene.may(&member, op.clone()), Err(Errno::EACCES), "{op:?}");
        assert_eq!(scene.may(&user(0, &[]), op.clone()), Ok(()));
        assert_eq!(scene.may(&Caller { privileged: true, ..stranger }, op), Ok(()));
    }
    for op in makes(scene.team) {
        assert_eq!(scene.may(&stranger, op.clone()), Err(Errno::EACCES), "{op:?}");
        assert_eq!(scene.may(&member, op.clone()), Ok(()), "{op:?}");
    }
    // An existing name doesn't depend on write permission.
    assert_eq!(scene.may(&stranger, create(scene.closed, "f")), Ok(()));
    assert_eq!(scene.may(&stranger, deliver(scene.closed, "f")), Ok(()));
    assert_eq!(scene.may(&stranger, unlink(scene.closed, "nothing")), Ok(()));
}

#[test]
fn a_file_that_was_there_already_is_opened_as_its_mode_says() {
    let scene = Scene::new();
    let open = |wanted| MetaOp::MayOpen { ino: scene.files[0], wanted };
    let (stranger, member) = (user(STRANGER, &[]), user(STRANGER, &[7, TEAM]));
    for (caller, wanted, answer) in [
        (&stranger, 4, Ok(())),
        (&stranger, 2, Err(Errno::EACCES)),
        (&stranger, 8 | 6, Err(Errno::EACCES)),
        (&stranger, 1, Err(Errno::EACCES)),
        (&member, 6, Ok(())),
        (&user(OWNER, &[]), 1, Err(Errno::EACCES)),
        (&user(OWNER, &[]), 8 | 1, Ok(())),
        (&Caller { privileged: true, ..stranger }, 2, Ok(())),
    ] {
        assert_eq!(scene.may(caller, open(wanted)), answer, "{caller:?} {wanted}");
    }
}

#[test]
fn in_a_sticky_directory_a_name_goes_with_its_owner() {
    let scene = Scene::new();
    let (owner, stranger) = (user(OWNER, &[]), user(STRANGER, &[TEAM]));
    assert_eq!(scene.may(&stranger, create(scene.sticky, "new")), Ok(()));
    let removals = [
        unlink(scene.sticky, "f"),
        rename((scene.sticky, "f"), (scene.sticky, "g"), RenameMode::Replace),
        rename((scene.team, "f"), (scene.sticky, "f"), RenameMode::Replace),
        rename((scene.team, "f"), (scene.sticky, "f"), RenameMode::Exchange),
    ];
    for op in removals {
        assert_eq!(scene.may(&stranger, op.clone()), Err(Errno::EPERM), "{op:?}");
        assert_eq!(scene.may(&owner, op), Ok(()));
    }
}

#[test]
fn a_directory_that_moves_elsewhere_is_written_to() {
    let mut scene = Scene::new();
    scene.world.mkdir(scene.team, "d");
    let member = user(STRANGER, &[TEAM]);
    // It is 0755 and belongs to another user.
    let within = rename((scene.team, "d"), (scene.team, "e"), RenameMode::Replace);
    assert_eq!(scene.may(&member, within), Ok(()));
    let away = rename((scene.team, "d"), (scene.sticky, "e"), RenameMode::Replace);
    assert_eq!(scene.may(&member, away.clone()), Err(Errno::EACCES));
    assert_eq!(scene.may(&user(OWNER, &[]), away), Ok(()));
    let file = rename((scene.team, "f"), (scene.sticky, "e"), RenameMode::Replace);
    assert_eq!(scene.may(&member, file), Ok(()));
}

#[test]
fn attributes_are_the_owners_to_change() {
    let scene = Scene::new();
    let ino = scene.files[0];
    let (owner, member, stranger) = (user(OWNER, &[TEAM]), user(STRANGER, &[TEAM]), user(STRANGER, &[]));
    let base = SetAttr::default;
    let mode = || set(ino, SetAttr { mode: Some(0o600), ..base() });
    let given = || set(ino, SetAttr { mtime: Some(SetTime::At(Timestamp::new(1, 0))), ..base() });
    let touch = || set(ino, SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..base() });
    let uid = |uid| set(ino, SetAttr { uid: Some(uid), ..base() });
    let gid = |gid| set(ino, SetAttr { gid: Some(gid), ..base() });
    for op in [mode(), given()] {
        assert_eq!(scene.may(&owner, op.clone()), Ok(()));
        assert_eq!(scene.may(&member, op), Err(Errno::EPERM));
    }
    assert_eq!(scene.may(&owner, touch()), Ok(()));
    assert_eq!(scene.may(&member, touch()), Ok(()));
    assert_eq!(scene.may(&stranger, touch()), Err(Errno::EACCES));
    assert_eq!(scene.may(&owner, uid(OWNER)), Ok(()));
    assert_eq!(scene.may(&owner, uid(STRANGER)), Err(Errno::EPERM));
    assert_eq!(scene.may(&stranger, uid(STRANGER)), Err(Errno::EPERM));
    assert_eq!(scene.may(&owner, gid(OWNER)), Ok(()));
    assert_eq!(scene.may(&owner, gid(TEAM)), Ok(()));
    assert_eq!(scene.may(&owner, gid(7)), Err(Errno::EPERM));
    assert_eq!(scene.may(&member, gid(TEAM)), Err(Errno::EPERM));
    // An explicit ctime doesn't circumvent any of this.
    let disguised = |ino, set_too| set(ino, SetAttr { ctime: Some(Timestamp::new(1, 0)), ..set_too });
    for with in [base(), SetAttr { mode: Some(0o4777), uid: Some(0), ..base() }] {
        assert_eq!(scene.may(&stranger, disguised(ino, with)), Err(Errno::EPERM));
    }
    assert_eq!(scene.may(&owner, disguised(ino, base())), Ok(()));
}

#[test]
fn flags_are_the_owners_to_set_and_those_that_forbid_changes_are_roots() {
    let mut scene = Scene::new();
    let ino = scene.files[0];
    let flags = |flags| set(ino, SetAttr { flags: Some(flags), ..SetAttr::default() });
    let project = set(ino, SetAttr { project: Some(ProjectId(7)), ..SetAttr::default() });
    let (owner, member) = (user(OWNER, &[TEAM]), user(STRANGER, &[TEAM]));
    for op in [flags(InodeFlags::NODUMP), project] {
        assert_eq!(scene.may(&owner, op.clone()), Ok(()));
        assert_eq!(scene.may(&member, op), Err(Errno::EPERM));
    }
    for restricting in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        assert_eq!(scene.may(&owner, flags(restricting)), Err(Errno::EPERM));
        assert_eq!(scene.may(&user(0, &[]), flags(restricting)), Ok(()));
        assert_eq!(scene.may(&Caller { privileged: true, ..owner }, flags(restricting)), Ok(()));
        scene.world.run(flags(restricting)).unwrap();
        assert_eq!(scene.may(&owner, flags(restricting | InodeFlags::NODUMP)), Ok(()));
        assert_eq!(scene.may(&owner, flags(InodeFlags::NONE)), Err(Errno::EPERM), "it would be no use");
    }
}

#[test]
fn extended_attributes_follow_their_kind() {
    let scene = Scene::new();
    let ino = scene.files[0];
    let (owner, member, stranger) = (user(OWNER, &[]), user(STRANGER, &[TEAM]), user(STRANGER, &[]));
    assert_eq!(scene.may(&member, xattr(ino, "user.a")), Ok(()));
    assert_eq!(scene.may(&stranger, xattr(ino, "user.a")), Err(Errno::EACCES));
    for name in ["trusted.a", "security.capability"] {
        assert_eq!(scene.may(&owner, xattr(ino, name)), Err(Errno::EPERM));
    }
    let acl = "system.posix_acl_access";
    assert_eq!(scene.may(&owner, xattr(ino, acl)), Ok(()));
    assert_eq!(scene.may(&member, xattr(ino, acl)), Err(Errno::EPERM));
    let removal = |name| MetaOp::RemoveXattr { ino, name: bytes(name) };
    assert_eq!(scene.may(&stranger, removal("user.a")), Err(Errno::EACCES));
    // Every write removes capabilities, by any writer.
    assert_eq!(scene.may(&owner, removal("security.capability")), Ok(()));
    assert_eq!(scene.may(&member, removal("security.capability")), Ok(()));
    assert_eq!(scene.may(&stranger, removal("security.capability")), Err(Errno::EACCES));
    assert_eq!(scene.may(&owner, removal("security.a")), Err(Errno::EPERM));
    assert_eq!(scene.may(&stranger, xattr(scene.sticky, "user.a")), Err(Errno::EPERM));
    let pattern = MetaOp::SetPattern { dir: scene.team, change: wire::PatternChange::default() };
    assert_eq!(scene.may(&owner, pattern.clone()), Ok(()));
    assert_eq!(scene.may(&member, pattern), Err(Errno::EPERM));
    let device = |mode, rdev| MetaOp::Create {
        parent: scene.team,
        name: bytes("dev"),
        mode,
        umask: 0,
        rdev,
        exclusive: true,
        requested_lease: None,
    };
    assert_eq!(scene.may(&owner, device(0o060_600, 5)), Err(Errno::EPERM));
    assert_eq!(scene.may(&owner, device(0o020_600, 5)), Err(Errno::EPERM));
    assert_eq!(scene.may(&owner, device(0o020_600, 0)), Ok(()));
    assert_eq!(scene.may(&owner, device(0o010_600, 0)), Ok(()));
    scene.world.check_invariants();
}

#[test]
fn an_access_control_list_says_more_than_the_mode() {
    let mut scene = Scene::new();
    let entries: [(u16, u16, u32); 7] = [
        (1, 7, u32::MAX),
        (2, 7, STRANGER),
        (2, 5, 2001),
        (4, 5, u32::MAX),
        (8, 7, 77),
        (16, 7, u32::MAX),
        (32, 7, u32::MAX),
    ];
    let mut value = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    let mask_at = 4 + 5 * 8 + 2;
    let acl = |value: Vec<u8>| MetaOp::SetXattr {
        ino: scene.closed,
        name: bytes("system.posix_acl_access"),
        value: value.into(),
        mode: XattrMode::Any,
        kill_sgid: false,
    };
    let (full, mut masked) = (acl(value.clone()), value);
    masked[mask_at] = 5;
    let masked = acl(masked);
    let closed = scene.closed;
    let may = |scene: &Scene, uid, groups: &[u32]| scene.may(&user(uid, groups), create(closed, "new"));
    scene.world.run(full).unwrap();
    assert_eq!(may(&scene, OWNER, &[]), Ok(()));
    assert_eq!(may(&scene, STRANGER, &[]), Ok(()));
    // A user's own entry takes precedence over those of groups and others.
    assert_eq!(may(&scene, 2001, &[77]), Err(Errno::EACCES));
    assert_eq!(may(&scene, 3000, &[TEAM]), Err(Errno::EACCES));
    assert_eq!(may(&scene, 3000, &[TEAM, 77]), Ok(()));
    assert_eq!(may(&scene, 3000, &[]), Ok(()));
    scene.world.run(masked).unwrap();
    assert_eq!(may(&scene, OWNER, &[]), Ok(()));
    assert_eq!(may(&scene, STRANGER, &[]), Err(Errno::EACCES));
    assert_eq!(may(&scene, 3000, &[77]), Err(Errno::EACCES));
    assert_eq!(may(&scene, 3000, &[]), Ok(()));
}
