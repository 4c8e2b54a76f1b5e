use crate::support::{PartitionLocking, World, bytes};
use bytes::Bytes;
use namespace::record::{PartitionCounters, decode};
use types::{Attr, ChunkSlot, Errno, InodeFlags, InodeId, ProjectId, SetAttr};
use wire::{MetaOp, MetaReply, PatternChange, PendingFile, XattrMode};

const ROOT: InodeId = InodeId::ROOT;

fn reserve(world: &mut World, dir: InodeId, count: u32) -> Result<(InodeId, u32, Attr, u32), Errno> {
    match world.run(MetaOp::PreallocateInodes { dir, count, prefix: Bytes::new() })? {
        MetaReply::Preallocated { first, count, attr, inline_limit, .. } => {
            Ok((first, count, attr, inline_limit))
        }
        reply => panic!("no numbers: {reply:?}"),
    }
}

fn promised(parent: InodeId, name: &str, ino: InodeId, content: &[u8]) -> PendingFile {
    let content = Bytes::copy_from_slice(content);
    PendingFile {
        ino,
        parent,
        name: bytes(name),
        mode: 0o100666,
        umask: 0o022,
        created: types::Timestamp::default(),
        content,
        begins_write: false,
        written: None,
        set: types::SetAttr::default(),
    }
}

fn deliver(world: &mut World, file: &PendingFile) -> Result<MetaReply, Errno> {
    let answer = world.run(MetaOp::CommitCreate { file: Box::new(file.clone()) });
    world.check_invariants();
    answer
}

/// Checks that the file is refused and that nothing changes.
fn refused(world: &mut World, file: &PendingFile) -> Errno {
    let before = world.state.0.clone();
    let refusal = deliver(world, file).unwrap_err();
    assert!(before == world.state.0);
    refusal
}

fn set_default_acl(world: &mut World, dir: InodeId) {
    // rwx for the owner, r-x for the group, nothing for others, and user 7 as the group.
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1u16, 7u16, u32::MAX), (2, 5, 7), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 0, u32::MAX)]
    {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    let (name, value) = (bytes("system.posix_acl_default"), value.into());
    world.run(MetaOp::SetXattr { ino: dir, name, value, mode: XattrMode::Any, kill_sgid: false }).unwrap();
}

#[test]
fn inode_numbers_are_preallocated_once() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    let known = world.getattr(dir).unwrap();
    let (first, count, attr, inline_limit) = reserve(&mut world, dir, 10).unwrap();
    assert_eq!((first.partition(), count, attr, inline_limit), (dir.partition(), 10, known, 4096));
    let made = world.create(dir, "made");
    assert_eq!(made.0, first.0 + 10);
    let (second, count, ..) = reserve(&mut world, dir, u32::MAX).unwrap();
    assert_eq!((second.0, count), (made.0 + 1, 4096), "as many as there are for one");
    assert_eq!(world.create(dir, "next").0, second.0 + 4096);
    assert_eq!(reserve(&mut world, dir, 0).unwrap_err(), Errno::EINVAL);
    assert_eq!(reserve(&mut world, made, 1).unwrap_err(), Errno::ENOTDIR);
    world.rmdir(ROOT, "dir").unwrap_err();
    for name in ["made", "next"] {
        world.unlink(dir, name).unwrap();
    }
    world.rmdir(ROOT, "dir").unwrap();
    assert_eq!(reserve(&mut world, dir, 1).unwrap_err(), Errno::ENOENT);
}

#[test]
fn no_preallocation_in_a_directory_with_a_default_acl() {
    let mut world = World::new(PartitionLocking::All);
    set_default_acl(&mut world, ROOT);
    let before = world.state.0.clone();
    assert_eq!(reserve(&mut world, ROOT, 1).unwrap_err(), Errno::EBUSY);
    assert!(before == world.state.0);
}

/// A state in which the next file of the directory gets the returned number.
fn prepared(setgid: bool, acl: bool) -> (World, InodeId, InodeId) {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    if setgid {
        world.credentials.gid = 777;
        let set = SetAttr { mode: Some(0o2777), gid: Some(55), ..SetAttr::default() };
        world.run(MetaOp::Setattr { ino: dir, set }).unwrap();
    }
    if acl {
        set_default_acl(&mut world, dir);
    }
    let next = InodeId(world.create(dir, "before").0 + 1);
    (world, dir, next)
}

#[test]
fn an_asynchronous_create_equals_a_create_and_write() {
    let longest = vec![b'x'; 4096];
    for content in [&b""[..], b"a", b"some content", &longest] {
        for (mode, umask) in [(0o666, 0o022), (0o600, 0), (0o6777, 0o077), (0o444, 0o777)] {
            for (setgid, acl) in [(false, false), (true, false), (false, true), (true, true)] {
                let (mut made, dir, ino) = prepared(setgid, acl);
                let (mut delivered, ..) = prepared(setgid, acl);
                let create = MetaOp::Create {
                    parent: dir,
                    name: bytes("file"),
                    mode,
                    umask,
                    rdev: 0,
                    exclusive: true,
                    requested_lease: None,
                };
                let reply = made.run(create).unwrap();
                let data = Bytes::copy_from_slice(content);
                made.now -= 1;
                let write =
                    MetaOp::WriteInline { ino, offset: 0, data, kill_suid_sgid: false, at_end: false };
                let attr = made.attr_of(write).unwrap();

                // The numbers were reserved before the default ACL was set: the state is that of an
                // advanced counter.
                let key = namespace::keys::partition_counters(dir.partition()).to_vec();
                let counter: PartitionCounters = decode(&key, made.state.0[&key].clone()).unwrap();
                let counter =
                    PartitionCounters { inodes: counter.inodes.map(|inodes| inodes - 1), ..counter };
                delivered.state.0.insert(key, prost::Message::encode_to_vec(&counter).into());
                let file = PendingFile { mode, umask, ..promised(dir, "file", ino, content) };
                let answer = deliver(&mut delivered, &file).unwrap();
                assert!(made.state.0 == delivered.state.0, "{file:?}, setgid {setgid}, acl {acl}");
                let MetaReply::Created { attr: told, inline_limit, has_no_xattrs: bare, .. } = answer else {
                    panic!("{answer:?}")
                };
                assert_eq!((told, inline_limit, bare), (attr, 4096, !acl));
                assert!(matches!(reply, MetaReply::Created { has_no_xattrs, .. } if has_no_xattrs != acl));
            }
        }
    }
}

#[test]
fn a_repeated_asynchronous_create_returns_the_file() {
    let mut world = World::new(PartitionLocking::All);
    let (ino, ..) = reserve(&mut world, ROOT, 2).unwrap();
    let file = promised(ROOT, "file", ino, b"content");
    deliver(&mut world, &file).unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let known = world.attr_of(MetaOp::Setattr { ino, set }).unwrap();
    let before = world.state.0.clone();
    let again = deliver(&mut world, &file).unwrap();
    assert!(matches!(again, MetaReply::Entry(attr) if attr == known), "{again:?}");
    assert!(before == world.state.0);
    assert_eq!(refused(&mut world, &promised(ROOT, "file", InodeId(ino.0 + 1), b"")), Errno::EEXIST);
    // The number belongs to another file, and stays so whatever happens to its name.
    assert_eq!(refused(&mut world, &promised(ROOT, "other", ino, b"")), Errno::EEXIST);
    world.rename((ROOT, "file"), (ROOT, "moved"), wire::RenameMode::Replace).unwrap();
    assert_eq!(refused(&mut world, &file), Errno::EEXIST);
    world.unlink(ROOT, "moved").unwrap();
    assert_eq!(refused(&mut world, &file), Errno::EEXIST);
}

#[test]
fn a_number_whose_chunks_are_still_to_be_deleted_is_not_used_again() {
    let mut world = World::new(PartitionLocking::All);
    let ino = world.create(ROOT, "file");
    world.run(MetaOp::BeginWrite { ino }).unwrap();
    world.unlink(ROOT, "file").unwrap();
    world.reclaim(ino);
    assert_eq!(refused(&mut world, &promised(ROOT, "file", ino, b"")), Errno::EEXIST);
}

#[test]
fn a_number_that_was_not_reserved_makes_no_file() {
    let mut world = World::new(PartitionLocking::All);
    let dir = world.mkdir(ROOT, "dir");
    assert_ne!(dir.partition(), ROOT.partition());
    let (first, ..) = reserve(&mut world, ROOT, 3).unwrap();
    let (elsewhere, ..) = reserve(&mut world, dir, 3).unwrap();
    let of_a_chunk_file = InodeId(first.chunk_file(ChunkSlot(1)).0);
    for ino in [InodeId(first.0 + 3), InodeId(0), elsewhere, ROOT, of_a_chunk_file] {
        assert_eq!(refused(&mut world, &promised(ROOT, "file", ino, b"")), Errno::EINVAL, "{ino}");
    }
    assert_eq!(refused(&mut world, &promised(dir, "file", first, b"")), Errno::EINVAL);
    let unborn = InodeId::new(dir.partition(), 1);
    assert_eq!(refused(&mut world, &promised(dir, "file", unborn, b"")), Errno::EINVAL);
    deliver(&mut world, &promised(ROOT, "file", InodeId(first.0 + 2), b"")).unwrap();
}

#[test]
fn content_that_is_too_long_to_be_inline_is_refused() {
    let mut world = World::new(PartitionLocking::All);
    let (ino, ..) = reserve(&mut world, ROOT, 1).unwrap();
    assert_eq!(refused(&mut world, &promised(ROOT, "file", ino, &[0; 4097])), Errno::ERANGE);
    let change = PatternChange { inline_limit: Some(0), ..PatternChange::default() };
    world.run(MetaOp::SetPattern { dir: ROOT, change }).unwrap();
    let (_, _, _, inline_limit) = reserve(&mut world, ROOT, 1).unwrap();
    assert_eq!(inline_limit, 0);
    assert_eq!(refused(&mut world, &promised(ROOT, "file", ino, b"x")), Errno::ERANGE);
    deliver(&mut world, &promised(ROOT, "file", ino, b"")).unwrap();
    assert_eq!(world.file(MetaOp::Open { ino, requested_lease: None }).unwrap().inline, None);
}

#[test]
fn asynchronous_creates_with_invalid_names_are_refused() {
    let mut world = World::new(PartitionLocking::All);
    let (ino, ..) = reserve(&mut world, ROOT, 1).unwrap();
    let long = "n".repeat(256);
    let cases =
        [("", Errno::ENOENT), ("a/b", Errno::EINVAL), (".", Errno::EEXIST), (&long, Errno::ENAMETOOLONG)];
    for (name, refusal) in cases {
        assert_eq!(refused(&mut world, &promised(ROOT, name, ino, b"")), refusal, "{name}");
    }
}

fn set_flags(world: &mut World, ino: InodeId, flags: InodeFlags, project: u32) {
    let (flags, project) = (Some(flags), Some(ProjectId(project)));
    world.run(MetaOp::Setattr { ino, set: SetAttr { flags, project, ..SetAttr::default() } }).unwrap();
}

#[test]
fn no_asynchronous_creates_in_immutable_and_append_only_directories() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "d");
    let (first, ..) = reserve(&mut world, dir, 3).unwrap();
    set_flags(&mut world, dir, InodeFlags::APPEND, 0);
    assert_eq!(reserve(&mut world, dir, 3).unwrap_err(), Errno::EBUSY);
    deliver(&mut world, &promised(dir, "f", first, b"")).unwrap();
    set_flags(&mut world, dir, InodeFlags::IMMUTABLE, 0);
    assert_eq!(reserve(&mut world, dir, 3).unwrap_err(), Errno::EBUSY);
    assert_eq!(refused(&mut world, &promised(dir, "g", InodeId(first.0 + 1), b"")), Errno::EPERM);
    // For an existing file, the answer is returned.
    deliver(&mut world, &promised(dir, "f", first, b"")).unwrap();
}

#[test]
fn an_asynchronously_created_file_belongs_to_the_project_of_its_directory() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "d");
    set_flags(&mut world, dir, InodeFlags::PROJECT_INHERIT | InodeFlags::NODUMP, 9);
    let (first, ..) = reserve(&mut world, dir, 1).unwrap();
    deliver(&mut world, &promised(dir, "f", first, b"")).unwrap();
    let attr = world.getattr(first).unwrap();
    assert_eq!((attr.flags, attr.project), (InodeFlags::NODUMP, ProjectId(9)));
}

/// An asynchronous create whose session writes the content to chunks.
fn in_chunks(parent: InodeId, name: &str, ino: InodeId) -> PendingFile {
    PendingFile { begins_write: true, ..promised(parent, name, ino, b"") }
}

fn opened(world: &mut World, ino: InodeId) -> wire::FileInfo {
    world.file(MetaOp::Open { ino, requested_lease: None }).unwrap()
}

#[test]
fn an_asynchronous_create_begins_a_write() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let dir = world.mkdir(ROOT, "dir");
    let (ino, ..) = reserve(&mut world, dir, 10).unwrap();
    let file = PendingFile { content: bytes("x"), ..in_chunks(dir, "f", ino) };
    assert_eq!(refused(&mut world, &file), Errno::EINVAL);
    let file = in_chunks(dir, "f", ino);
    let MetaReply::Created { attr, begun: Some(begun), .. } = deliver(&mut world, &file).unwrap() else {
        panic!("a write has begun")
    };
    let info = opened(&mut world, ino);
    assert_eq!((attr.size, info.layout.as_ref(), info.inline), (0, Some(&begun.layout), None));
    assert!(world.holds(namespace::keys::writing(ino, world.session)));
    assert!(!info.is_reported);
    assert_eq!(world.file(MetaOp::BeginWrite { ino }).unwrap().layout, Some(begun.layout));
    assert!(matches!(deliver(&mut world, &file).unwrap(), MetaReply::Entry(attr) if attr.ino == ino));
}

#[test]
fn a_file_is_created_where_no_target_has_room() {
    let mut world = World::new(PartitionLocking::OnDemand);
    let (ino, ..) = reserve(&mut world, ROOT, 1).unwrap();
    world.map.targets.clear();
    let made = deliver(&mut world, &in_chunks(ROOT, "f", ino)).unwrap();
    assert!(matches!(made, MetaReply::Created { begun: None, .. }), "{made:?}");
    let info = opened(&mut world, ino);
    assert_eq!((info.layout, info.inline), (None, Some(Bytes::new())));
    assert!(info.is_reported);
}
