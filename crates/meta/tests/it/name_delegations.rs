//! Name-prefix delegations: names of a directory that a session holds while others use the
//! directory.

use crate::support::world::{Call, ROOT, SECOND, acknowledge, chmod, getattr, recalls, simulated};
use crate::support::{Client, bytes, create, errno};
use std::time::Duration;
use types::{Attr, Credentials, Errno, InodeId};
use wire::LeaseMode::{Permissions, Read, Write};
use wire::{MetaOp, MetaReply, PendingFile, RenameMode};

fn reserve(dir: InodeId, prefix: &str) -> MetaOp {
    MetaOp::PreallocateInodes { dir, count: 16, prefix: bytes(prefix) }
}

fn lookup(parent: InodeId, name: &str) -> MetaOp {
    MetaOp::Lookup { parent, name: bytes(name) }
}

fn list(dir: InodeId, prefix: &str) -> MetaOp {
    MetaOp::Readdir { dir, cookie: 0, limit: 2048, attributes: false, prefix: bytes(prefix) }
}

fn listed(reply: MetaReply) -> Vec<String> {
    let MetaReply::Directory { entries, .. } = reply else { panic!("{reply:?}") };
    let mut names: Vec<String> =
        entries.into_iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()).collect();
    names.sort();
    names
}

/// The inode number of a name-prefix delegation, and the first preallocated one for files.
async fn range(client: &Client, dir: InodeId, prefix: &str) -> (InodeId, InodeId) {
    let answer = client.respond(0, reserve(dir, prefix)).await.unwrap();
    let MetaReply::Preallocated { first, count, prefix_lease: Some(range), .. } = answer.reply else {
        panic!()
    };
    assert_eq!((answer.grants, count), (vec![wire::LeaseGrant { ino: range, mode: Write }], 16));
    (range, first)
}

/// A new directory in the root without leases.
async fn directory(client: &Client) -> InodeId {
    let dir = client.mkdir(ROOT, "dir").await.unwrap().ino;
    client.call(MetaOp::Release { inodes: vec![ROOT, dir], seen: u64::MAX }).await.unwrap();
    dir
}

/// Whether a request waits for the session to give up a range, which it then does.
async fn waits(call: Call, holder: &Client, seen: &mut u64, range: InodeId) -> bool {
    if call.is_done() {
        call.wait().await.ok();
        return false;
    }
    let mut given_up = Vec::new();
    while !call.is_done() {
        for recall in recalls(holder, *seen).await {
            given_up.push(recall.ino);
            *seen = recall.number;
            acknowledge(holder, &recall, false).await;
        }
        rt::sleep(Duration::from_millis(1)).await;
    }
    call.wait().await.ok();
    assert!(given_up.contains(&range), "{given_up:?}");
    true
}

#[test]
fn sessions_with_name_prefixes_fill_one_directory() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let dir = directory(&one).await;
        let (of_one, of_two) = (range(&one, dir, "a.").await.0, range(&two, dir, "b.").await.0);
        assert_ne!(of_one, of_two);
        assert_eq!(range(&one, dir, "a.").await.0, of_one, "it has them already");
        for (client, prefix) in [(&one, "a."), (&two, "b."), (&one, "a."), (&two, "b.")] {
            assert_eq!(errno(client.call(lookup(dir, &format!("{prefix}x"))).await), Errno::ENOENT);
            let name = format!("{prefix}{}", rt::random_u64());
            let grants = client.grants(create(dir, &name)).await;
            assert_eq!(grants[0], (dir, Permissions), "nobody knows all names");
            let there = listed(client.call(list(dir, prefix)).await.unwrap());
            assert!(there.contains(&name) && there.iter().all(|name| name.starts_with(prefix)), "{there:?}");
        }
        assert_eq!((recalls(&one, 0).await, recalls(&two, 0).await), (vec![], vec![]));
    });
}

#[test]
fn overlapping_prefixes_are_refused() {
    simulated(|world| async move {
        let (one, two, local) = (world.client(1).await, world.client(2).await, Client::new(&world.meta, 9));
        let dir = directory(&one).await;
        range(&one, dir, "a.").await;
        for prefix in ["a.", "a", "a.b", ""] {
            let refusal = two.call(reserve(dir, prefix)).await.unwrap_err();
            assert!(refusal.errno == Errno::EBUSY && !refusal.hint.is_empty(), "{prefix}: {refusal}");
        }
        assert_eq!(errno(local.call(reserve(dir, "b.")).await), Errno::EBUSY, "a session without leases");
        assert_eq!(errno(one.call(reserve(dir, "a/")).await), Errno::EINVAL);
        assert_eq!(errno(one.call(reserve(dir, &"x".repeat(256))).await), Errno::ENAMETOOLONG);
        assert_eq!(recalls(&one, 0).await, [], "nobody is disturbed");
        // While one session holds a directory delegation, no other one gets a part of the names.
        let other = two.mkdir(ROOT, "other").await.unwrap().ino;
        let alone = two
            .respond(0, MetaOp::PreallocateInodes { dir: other, count: 1, prefix: bytes("") })
            .await
            .unwrap();
        assert_eq!(alone.grants, [wire::LeaseGrant { ino: other, mode: Write }]);
        assert_eq!(errno(one.call(reserve(other, "a.")).await), Errno::EBUSY);
        two.call(reserve(other, "a.")).await.unwrap();
    });
}

#[test]
fn only_commands_on_delegated_names_wait_for_the_holder() {
    let names = |dir, elsewhere, file| {
        let rename = |from: (InodeId, &str), to: (InodeId, &str)| {
            let (name, new_name) = (bytes(from.1), bytes(to.1));
            MetaOp::Rename { parent: from.0, name, new_parent: to.0, new_name, mode: RenameMode::Replace }
        };
        let mkdir = |name: &str| MetaOp::Mkdir { parent: dir, name: bytes(name), mode: 0o755, umask: 0 };
        let unlink = |name: &str| MetaOp::Unlink { parent: dir, name: bytes(name), ino: None };
        let link = |name: &str| MetaOp::Link { ino: file, parent: dir, name: bytes(name) };
        vec![
            (lookup(dir, "a.1"), true),
            (lookup(dir, "b"), false),
            (lookup(dir, "a"), false),
            (create(dir, "a."), true),
            (create(dir, "b"), false),
            (mkdir("a.x"), true),
            (mkdir("x"), false),
            (unlink("a.x"), true),
            (unlink("x"), false),
            (link("a.x"), true),
            (link("x"), false),
            (rename((dir, "a.x"), (elsewhere, "x")), true),
            (rename((elsewhere, "file"), (dir, "a.x")), true),
            (rename((elsewhere, "file"), (dir, "x")), false),
            (list(dir, ""), true),
            (list(dir, "a"), true),
            (list(dir, "a.7"), true),
            (list(dir, "b"), false),
            (getattr(dir), true),
            (chmod(dir), true),
            (MetaOp::Rmdir { parent: ROOT, name: bytes("dir") }, true),
            (MetaOp::Describe { ino: dir }, true),
        ]
    };
    for number in 0..names(ROOT, ROOT, ROOT).len() {
        simulated(move |world| async move {
            let (one, two) = (world.client(1).await, world.client(2).await);
            let dir = directory(&one).await;
            let elsewhere = two.mkdir(ROOT, "elsewhere").await.unwrap().ino;
            let file = two.create(elsewhere, "file").await.unwrap().ino;
            let (taken, _) = range(&one, dir, "a.").await;
            let (op, expected) = names(dir, elsewhere, file).swap_remove(number);
            let call = Call::call(&two, op.clone()).await;
            assert_eq!(waits(call, &one, &mut 0, taken).await, expected, "{op:?}");
            // Its own names don't conflict.
            if let (op @ MetaOp::Lookup { .. }, true) = (op, expected) {
                range(&one, dir, "a.").await;
                let call = Call::call(&one, op).await;
                assert!(call.is_done());
            }
        });
    }
}

#[test]
fn creates_completed_during_a_recall_are_found() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let dir = directory(&one).await;
        let (taken, first) = range(&one, dir, "a.").await;
        let call = Call::call(&two, lookup(dir, "a.1")).await;
        assert!(!call.is_done());
        let made = types::Timestamp::default();
        let (name, content) = (bytes("a.1"), bytes("content"));
        let file = PendingFile {
            ino: first,
            parent: dir,
            name,
            mode: 0o644,
            umask: 0,
            created: made,
            content,
            begins_write: false,
            written: None,
            set: types::SetAttr::default(),
        };
        one.call(MetaOp::CommitCreate { file: Box::new(file) }).await.unwrap();
        one.call(MetaOp::Release { inodes: vec![first], seen: u64::MAX }).await.unwrap();
        let recall = recalls(&one, 0).await[0];
        assert_eq!((recall.ino, recall.retain), (taken, None));
        acknowledge(&one, &recall, false).await;
        let found = call.wait().await;
        assert!(
            matches!(found, Ok(MetaReply::Entry(Attr { size: 7, ino, .. })) if ino == first),
            "{found:?}"
        );
        // The number of the delegation belongs to no file.
        assert_eq!(errno(two.call(getattr(taken)).await), Errno::ESTALE);
    });
}

#[test]
fn no_session_caches_all_names_of_a_shared_directory() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let dir = directory(&one).await;
        assert_eq!(two.grants(getattr(dir)).await, [(dir, Read)]);
        let asks = Call::call(&one, reserve(dir, "a.")).await;
        let recall = recalls(&two, 0).await[0];
        assert_eq!((recall.ino, recall.retain, asks.is_done()), (dir, Some(Permissions), false));
        acknowledge(&two, &recall, false).await;
        let MetaReply::Preallocated { prefix_lease: Some(range), .. } = asks.wait().await.unwrap() else {
            panic!()
        };
        rt::sleep(3 * SECOND).await;
        let grants = two.grants(create(dir, "b")).await;
        assert_eq!(grants[0], (dir, Permissions));
        one.call(MetaOp::Release { inodes: vec![range], seen: u64::MAX }).await.unwrap();
        let grants = two.grants(create(dir, "c")).await;
        assert_eq!(grants[0], (dir, Read));
    });
}

#[test]
fn names_are_free_after_a_release_or_the_end_of_a_session() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let dir = directory(&one).await;
        let (of_one, _) = range(&one, dir, "a.").await;
        one.call(MetaOp::Release { inodes: vec![of_one], seen: u64::MAX }).await.unwrap();
        let (of_two, _) = range(&two, dir, "a").await;
        assert_ne!(of_one, of_two);
        world.meta.end_session(types::SessionId(2)).await.unwrap();
        range(&one, dir, "a.").await;
        // A session may hold only a limited number.
        let many = async {
            let mut count = 0;
            while one.call(reserve(dir, &format!("{count}."))).await.is_ok() {
                count += 1;
            }
            count
        };
        assert!((1..1000).contains(&many.await));
        let user = Credentials { uid: 1000, gid: 1000, pid: 1 };
        let refused = one.respond_to(user, 0, reserve(dir, "x.")).await;
        assert_eq!(errno(refused), Errno::EACCES, "who may not make files there");
    });
}
