//! Asynchronous creates: files that applications have before the service, under a directory
//! delegation.

use crate::support;
use crate::support::cluster::{Cluster, RoutingClient};
use crate::support::world::{
    Call, ROOT, SECOND, acknowledge, chmod, getattr, open_with_lease, recalls, simulated,
};
use crate::support::{Client, PARTITIONS, bytes, create, errno};
use bytes::Bytes;
use rt::sim::Machine;
use std::rc::Rc;
use types::{Attr, Credentials, Errno, InodeId, NodeId, Result};
use wire::LeaseMode::{Permissions, Read, Write};
use wire::{AsyncCreate, MetaOp, MetaReply, PendingFile, RenameMode, XattrMode};

const AS_ROOT: Credentials = Credentials { uid: 0, gid: 0, pid: 1 };

fn reserve(dir: InodeId) -> MetaOp {
    MetaOp::PreallocateInodes { dir, count: 16, prefix: Bytes::new() }
}

/// Inode numbers in a directory on which the session holds a delegation from now on.
async fn acquire_directory_delegation(client: &Client, dir: InodeId) -> InodeId {
    let answer = client.respond(0, reserve(dir)).await.unwrap();
    assert_eq!(answer.grants, [wire::LeaseGrant { ino: dir, mode: Write }]);
    let MetaReply::Preallocated { first, count, attr, inline_limit, .. } = answer.reply else { panic!() };
    assert_eq!((count, attr.ino, inline_limit), (16, dir, 4096));
    first
}

fn file(parent: InodeId, name: &str, ino: InodeId, content: &str) -> PendingFile {
    PendingFile {
        ino,
        parent,
        name: bytes(name),
        mode: 0o644,
        umask: 0,
        created: types::Timestamp::default(),
        content: bytes(content),
        begins_write: false,
        written: None,
        set: types::SetAttr::default(),
    }
}

fn deliver(parent: InodeId, name: &str, ino: InodeId, content: &str) -> MetaOp {
    MetaOp::CommitCreate { file: Box::new(file(parent, name, ino, content)) }
}

fn lookup(parent: InodeId, name: &str) -> MetaOp {
    MetaOp::Lookup { parent, name: bytes(name) }
}

fn unlink(parent: InodeId, name: &str) -> MetaOp {
    MetaOp::Unlink { parent, name: bytes(name), ino: None }
}

fn release(ino: InodeId) -> MetaOp {
    MetaOp::Release { inodes: vec![ino], seen: u64::MAX }
}

/// Content of a file, read without a lease.
async fn content(client: &Client, ino: InodeId) -> Bytes {
    match client.call(MetaOp::Open { ino, requested_lease: None }).await.unwrap() {
        MetaReply::File(info) => info.inline.unwrap(),
        other => panic!("{other:?}"),
    }
}

/// A new directory in the root without leases.
async fn directory(client: &Client) -> InodeId {
    let dir = client.mkdir(ROOT, "dir").await.unwrap().ino;
    client.call(MetaOp::Release { inodes: vec![ROOT, dir], seen: u64::MAX }).await.unwrap();
    dir
}

async fn set_default_acl(client: &Client, dir: InodeId) {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions) in [(1u16, 7u16), (4, 5), (32, 0)] {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(u32::MAX.to_le_bytes());
    }
    let (name, value) = (bytes("system.posix_acl_default"), value.into());
    let op = MetaOp::SetXattr { ino: dir, name, value, mode: XattrMode::Any, kill_sgid: false };
    client.call(op).await.unwrap();
}

#[test]
fn a_directory_delegation_is_exclusive_and_lasts() {
    simulated(|world| async move {
        let one = world.client(1).await;
        let dir = directory(&one).await;
        let first = acquire_directory_delegation(&one, dir).await;
        assert_eq!(acquire_directory_delegation(&one, dir).await.0, first.0 + 16);
        assert_eq!(errno(one.call(lookup(dir, "a")).await), Errno::ENOENT);
        let made = one.grants(create(dir, "a")).await;
        assert_eq!(made[0], (dir, Write));
        let delivered = one.grants(deliver(dir, "b", first, "content")).await;
        assert_eq!(delivered, [(dir, Write), (first, Write)]);
        one.rename(dir, "a", dir, "c").await.unwrap();
        one.unlink(dir, "c").await.unwrap();
        assert_eq!(one.list(dir).await, ["b"]);
        assert_eq!(one.grants(getattr(dir)).await, [(dir, Write)]);
        assert_eq!(recalls(&one, 0).await, [], "a session is in its own way");
    });
}

#[test]
fn a_directory_delegation_recalls_leases_of_other_sessions() {
    simulated(|world| async move {
        let (one, two, local) = (world.client(1).await, world.client(2).await, Client::new(&world.meta, 9));
        let dir = directory(&one).await;
        let before = one.create(dir, "before").await.unwrap().ino;
        two.call(getattr(dir)).await.unwrap();
        assert_eq!(errno(local.call(reserve(dir)).await), Errno::EBUSY, "a session without leases");
        assert_eq!(recalls(&two, 0).await, [], "nobody is disturbed");
        let asks = Call::call(&one, reserve(dir)).await;
        let recall = recalls(&two, 0).await[0];
        assert_eq!((recall.ino, recall.retain), (dir, None));
        acknowledge(&two, &recall, false).await;
        let MetaReply::Preallocated { first, .. } = asks.wait().await.unwrap() else {
            panic!("not reserved")
        };
        assert_eq!(first.0, before.0 + 1);
    });
}

#[test]
fn no_recall_for_a_delegation_during_cool_down() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let dir = directory(&one).await;
        acquire_directory_delegation(&one, dir).await;
        let looks = Call::call(&two, lookup(dir, "a")).await;
        assert_eq!(errno(one.call(reserve(dir)).await), Errno::EBUSY, "it has a recall to answer");
        acknowledge(&one, &recalls(&one, 0).await[0], false).await;
        assert_eq!(errno(looks.wait().await), Errno::ENOENT);
        let grants = two.grants(getattr(dir)).await;
        assert_eq!(grants, [(dir, Permissions)]);
        let refusal = one.call(reserve(dir)).await.unwrap_err();
        assert!(refusal.errno == Errno::EBUSY && !refusal.hint.is_empty(), "{refusal}");
        assert_eq!(recalls(&two, 0).await, [], "nobody is disturbed");
        let grants = one.grants(create(dir, "last")).await;
        assert_ne!(grants[0], (dir, Write));
        two.call(release(dir)).await.unwrap();
        acquire_directory_delegation(&one, dir).await;
    });
}

#[test]
fn no_delegation_on_a_directory_with_a_default_acl() {
    simulated(|world| async move {
        let one = world.client(1).await;
        let dir = directory(&one).await;
        set_default_acl(&one, dir).await;
        assert_eq!(errno(one.call(reserve(dir)).await), Errno::EBUSY);
        assert_eq!(one.grants(getattr(dir)).await, [(dir, Read)]);
    });
}

/// Checks the outcome of a request.
type Expect = fn(Result<MetaReply>);

/// Requests of other sessions in a directory under delegation, with their outcomes once the file
/// "promised" exists.
fn conflicting_requests(dir: InodeId, elsewhere: InodeId, file: InodeId) -> Vec<(MetaOp, Expect)> {
    fn is_there(reply: Result<MetaReply>) {
        assert!(matches!(reply, Ok(MetaReply::Entry(Attr { size: 7, .. }))), "{reply:?}");
    }
    fn exists(reply: Result<MetaReply>) {
        assert_eq!(errno(reply), Errno::EEXIST);
    }
    fn is_missing(reply: Result<MetaReply>) {
        assert_eq!(errno(reply), Errno::ENOENT);
    }
    let name = bytes("promised");
    let rename = |from: (InodeId, &str), to: (InodeId, &str), mode| {
        let (name, new_name) = (bytes(from.1), bytes(to.1));
        MetaOp::Rename { parent: from.0, name, new_parent: to.0, new_name, mode }
    };
    vec![
        (lookup(dir, "promised"), is_there),
        (lookup(dir, "absent"), is_missing),
        (unlink(dir, "promised"), is_there),
        (unlink(dir, "absent"), is_missing),
        (MetaOp::Rmdir { parent: dir, name: bytes("absent") }, is_missing),
        (create(dir, "promised"), exists),
        (MetaOp::Mkdir { parent: dir, name: name.clone(), mode: 0o755, umask: 0 }, exists),
        (MetaOp::Symlink { parent: dir, name: name.clone(), target: bytes("x") }, exists),
        (MetaOp::Link { ino: file, parent: dir, name: name.clone() }, exists),
        (rename((dir, "promised"), (elsewhere, "moved"), RenameMode::Replace), |reply| drop(reply.unwrap())),
        (rename((elsewhere, "file"), (dir, "promised"), RenameMode::NoReplace), exists),
        (rename((elsewhere, "file"), (dir, "promised"), RenameMode::Exchange), |reply| drop(reply.unwrap())),
        (MetaOp::Readdir { dir, cookie: 0, limit: 9, attributes: false, prefix: Bytes::new() }, |reply| {
            let Ok(MetaReply::Directory { entries, .. }) = reply else { panic!("{reply:?}") };
            assert!(entries.iter().any(|entry| entry.name == "promised"));
        }),
        (getattr(dir), |reply| {
            let Ok(MetaReply::Attr(attr)) = reply else { panic!("{reply:?}") };
            assert!(attr.mtime >= attr.btime.max(attr.atime) && attr.mtime > attr.btime, "{attr:?}");
        }),
    ]
}

#[test]
fn a_lookup_waits_for_asynchronous_creates() {
    for is_local in [false, true] {
        for number in 0..conflicting_requests(ROOT, ROOT, ROOT).len() {
            simulated(move |world| async move {
                let (one, local) = (world.client(1).await, Client::new(&world.meta, 9));
                let two = if is_local { local } else { world.client(2).await };
                let dir = directory(&one).await;
                let elsewhere = two.mkdir(ROOT, "elsewhere").await.unwrap().ino;
                let file = two.create(elsewhere, "file").await.unwrap().ino;
                let first = acquire_directory_delegation(&one, dir).await;
                let (op, expect) = conflicting_requests(dir, elsewhere, file).swap_remove(number);
                let call = Call::call(&two, op.clone()).await;
                rt::sleep(SECOND / 2).await;
                assert!(!call.is_done(), "{op:?} waits for nobody");
                let recalled = recalls(&one, 0).await;
                let recall = recalled.iter().find(|recall| recall.ino == dir).unwrap();
                assert_eq!(recall.retain, Some(Permissions), "{op:?}");
                // It is sent while the recall is pending, and grants no lease on the directory any
                // more.
                let delivered = one.grants(deliver(dir, "promised", first, "content")).await;
                assert_eq!(delivered, [(first, Write)]);
                one.call(release(first)).await.unwrap();
                for recall in &recalled {
                    acknowledge(&one, recall, false).await;
                }
                // The other leases that the command needs are given up, too.
                let mut seen = recalled.last().unwrap().number;
                while !call.is_done() {
                    for recall in recalls(&one, seen).await {
                        acknowledge(&one, &recall, false).await;
                        seen = recall.number;
                    }
                }
                expect(call.wait().await);
            });
        }
    }
}

#[test]
fn a_directory_with_pending_asynchronous_creates_is_not_removed() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let dir = directory(&one).await;
        let first = acquire_directory_delegation(&one, dir).await;
        let call = Call::call(&two, MetaOp::Rmdir { parent: ROOT, name: bytes("dir") }).await;
        assert!(!call.is_done());
        one.call(deliver(dir, "promised", first, "content")).await.unwrap();
        let recall = recalls(&one, 0).await[0];
        assert_eq!((recall.ino, recall.retain), (dir, None));
        acknowledge(&one, &recall, false).await;
        assert_eq!(errno(call.wait().await), Errno::ENOTEMPTY);
    });
}

#[test]
fn a_change_of_a_directory_recalls_its_delegation() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let dir = directory(&one).await;
        acquire_directory_delegation(&one, dir).await;
        let call = Call::call(&two, chmod(dir)).await;
        let recall = recalls(&one, 0).await[0];
        assert_eq!((recall.ino, recall.retain, call.is_done()), (dir, None, false));
        acknowledge(&one, &recall, false).await;
        call.wait().await.unwrap();
    });
}

#[test]
fn an_asynchronous_create_is_visible_to_all() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let dir = directory(&one).await;
        let first = acquire_directory_delegation(&one, dir).await;
        let next = InodeId(first.0 + 1);
        let made = one.respond(1, deliver(dir, "a", first, "content")).await.unwrap();
        assert!(matches!(made.reply, MetaReply::Created { attr, inline_limit: 4096, .. } if attr.size == 7));
        assert_eq!(made.directories.iter().map(|state| state.attr.ino).collect::<Vec<_>>(), [dir]);
        // The retransmission, and another request for the same file.
        let again = one.respond(1, deliver(dir, "a", first, "content")).await.unwrap();
        assert_eq!((again.reply, again.grants), (made.reply, vec![]));
        let again = one.call(deliver(dir, "a", first, "content")).await.unwrap();
        assert!(matches!(again, MetaReply::Entry(attr) if attr.ino == first && attr.size == 7), "{again:?}");
        assert_eq!(errno(one.call(deliver(dir, "a", next, "")).await), Errno::EEXIST);
        assert_eq!(errno(one.call(deliver(dir, "b", InodeId(first.0 + 16), "")).await), Errno::EINVAL);
        assert_eq!(errno(one.call(deliver(dir, "b", next, &"x".repeat(4097))).await), Errno::ERANGE);
        let list = one.list(dir).await;
        assert_eq!(list, ["a"], "what was refused is not there");
        one.call(MetaOp::Release { inodes: vec![dir, first], seen: 0 }).await.unwrap();
        assert_eq!(two.lookup(dir, "a").await.unwrap().ino, first);
        assert_eq!(two.grants(open_with_lease(first, Read)).await, [(first, Read)]);
        assert_eq!(content(&two, first).await, "content");
    });
}

fn async_create(file: PendingFile) -> AsyncCreate {
    AsyncCreate { credentials: AS_ROOT, file }
}

fn register(promised: Vec<AsyncCreate>) -> MetaOp {
    MetaOp::Register {
        in_use: vec![],
        pending_creates: promised,
        pending_changes: vec![],
        reporting_process: 0,
    }
}

#[test]
fn asynchronous_creates_are_executed_before_access_after_a_restart() {
    simulated(|world| async move {
        let one = world.client(1).await;
        let dir = directory(&one).await;
        let first = acquire_directory_delegation(&one, dir).await;
        let world = world.restart().await;
        let [one, two] = [1, 2].map(|session| Client::new(&world.meta, session));
        two.call(register(vec![])).await.unwrap();
        let call = Call::call(&two, create(dir, "a")).await;
        let user = Credentials { uid: 1000, gid: 100, pid: 5 };
        let promised = vec![
            // Not one of its numbers: the others are created all the same.
            async_create(file(dir, "b", InodeId(first.0 + 99), "")),
            async_create(file(dir, "a", first, "content")),
            // Its group may write there, which the service doesn't know yet.
            AsyncCreate { credentials: user, file: file(dir, "c", InodeId(first.0 + 1), "of a user") },
        ];
        assert!(!call.is_done());
        one.call(register(promised)).await.unwrap();
        assert_eq!(errno(call.wait().await), Errno::EEXIST);
        assert_eq!(two.list(dir).await, ["a", "c"]);
        assert_eq!(content(&two, first).await, "content");
        let theirs = two.getattr(InodeId(first.0 + 1)).await.unwrap();
        assert_eq!((theirs.uid, theirs.gid, theirs.size), (1000, 100, 9));
        // Needs no recall: the create granted no lease.
        let begun = rt::monotonic_ns();
        assert_eq!(two.grants(open_with_lease(first, Write)).await, [(first, Write)]);
        two.call(chmod(dir)).await.unwrap();
        assert!(rt::monotonic_ns() - begun < SECOND.as_nanos() as u64);
        world.meta.stop();
    });
}

/// It is removed by the time at which the session asks for the outcome.
#[test]
fn a_replayed_and_removed_file_is_not_created_again() {
    simulated(|world| async move {
        let one = world.client(1).await;
        let dir = directory(&one).await;
        let first = acquire_directory_delegation(&one, dir).await;
        let world = world.restart().await;
        let [one, two] = [1, 2].map(|session| Client::new(&world.meta, session));
        two.call(register(vec![])).await.unwrap();
        one.call(register(vec![async_create(file(dir, "a", first, "content"))])).await.unwrap();
        two.unlink(dir, "a").await.unwrap();
        two.call(MetaOp::Reclaim { ino: first, others: Vec::new() }).await.unwrap();
        let again = one.call(deliver(dir, "a", first, "content")).await.unwrap();
        assert!(matches!(again, MetaReply::Entry(attr) if attr.ino == first), "{again:?}");
        assert_eq!(two.list(dir).await, Vec::<String>::new());
        world.meta.stop();
    });
}

#[test]
fn only_returning_sessions_have_asynchronous_creates() {
    simulated(|world| async move {
        let one = world.client(1).await;
        let dir = directory(&one).await;
        let first = acquire_directory_delegation(&one, dir).await;
        let promised = |name: &str| register(vec![async_create(file(dir, name, first, ""))]);
        one.call(promised("a")).await.unwrap();
        Client::new(&world.meta, 2).call(promised("b")).await.unwrap();
        let world = world.restart().await;
        let [one, two, three] = [1, 2, 3].map(|session| Client::new(&world.meta, session));
        three.call(promised("c")).await.unwrap();
        one.call(register(vec![])).await.unwrap();
        // A late retransmission of the request.
        one.call(promised("d")).await.unwrap();
        two.call(register(vec![])).await.unwrap();
        assert_eq!(three.list(dir).await, Vec::<String>::new());
        world.meta.stop();
    });
}

fn in_cluster<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<Cluster>) -> F + 'static) {
    let run = async move {
        let cluster = Cluster::new(2).await;
        cluster.rebalance();
        cluster.wait_until_served().await;
        test(cluster.clone()).await;
        cluster.stop();
    };
    Machine::new(1).run(run).unwrap();
}

/// A directory in the root, in a partition that this node owns.
async fn directory_at(cluster: &Cluster, client: &RoutingClient, node: u32) -> InodeId {
    for i in 0.. {
        let name = format!("at{node}-{i}");
        let partition = namespace::keys::directory_partition((1, 2), PARTITIONS, ROOT, name.as_bytes());
        if cluster.map.load().partitions[partition.0 as usize] == NodeId(node) {
            let op = MetaOp::Mkdir { parent: ROOT, name: bytes(&name), mode: 0o755, umask: 0 };
            return client.entry(op).await.unwrap().ino;
        }
    }
    unreachable!()
}

#[test]
fn asynchronous_creates_are_executed_before_access_after_a_partition_moved() {
    in_cluster(async |cluster| {
        let other = RoutingClient::new(&cluster, 2);
        let dir = directory_at(&cluster, &other, 2).await;
        let kept = directory_at(&cluster, &other, 1).await;
        other.call(release(dir)).await.unwrap();
        other.call(release(kept)).await.unwrap();
        let [there, here] = [2, 1].map(|node| Client::new(&cluster.service(node), 1));
        for service in [&there, &here] {
            service.call(register(vec![])).await.unwrap();
        }
        rt::sleep(2 * SECOND).await;
        let (first, own) = (
            acquire_directory_delegation(&there, dir).await,
            acquire_directory_delegation(&here, kept).await,
        );
        cluster.give(dir.partition(), NodeId(1));
        let partitions = loop {
            if let MetaReply::PartitionsTakenOver { partitions } =
                here.call(MetaOp::NextRecalls { after: 0 }).await.unwrap()
            {
                break partitions;
            }
        };
        let asks = other.clone();
        let call = support::world::Started::new(async move { asks.call(create(dir, "a")).await });
        rt::sleep(SECOND).await;
        assert!(!call.is_done());
        // A create in a partition that hasn't moved is not included: its delegation is still valid.
        let promised = vec![
            async_create(file(dir, "a", first, "content")),
            async_create(file(kept, "b", own, "content")),
        ];
        here.call(MetaOp::Follow {
            partitions,
            in_use: vec![],
            pending_creates: promised,
            pending_changes: vec![],
            reporting_process: 0,
        })
        .await
        .unwrap();
        assert_eq!(errno(call.wait().await), Errno::EEXIST);
        assert_eq!(content(&here, first).await, "content");
        assert_eq!(errno(here.call(lookup(kept, "b")).await), Errno::ENOENT);
    });
}

#[test]
fn an_exchange_waits_for_an_asynchronous_create_at_another_service() {
    in_cluster(async |cluster| {
        let other = RoutingClient::new(&cluster, 2);
        let [dir, elsewhere] =
            [directory_at(&cluster, &other, 2).await, directory_at(&cluster, &other, 1).await];
        other.call(create(elsewhere, "file")).await.unwrap();
        other.call(release(dir)).await.unwrap();
        let one = Client::new(&cluster.service(2), 1);
        one.call(register(vec![])).await.unwrap();
        rt::sleep(2 * SECOND).await;
        let first = acquire_directory_delegation(&one, dir).await;
        let (name, new_name, mode) = (bytes("file"), bytes("promised"), RenameMode::Exchange);
        let op = MetaOp::Rename { parent: elsewhere, name, new_parent: dir, new_name, mode };
        let call = support::world::Started::new(async move { other.call(op).await });
        let recall = recalls(&one, 0).await[0];
        assert_eq!(recall.ino, dir);
        assert!(!call.is_done());
        one.call(deliver(dir, "promised", first, "content")).await.unwrap();
        one.call(release(first)).await.unwrap();
        acknowledge(&one, &recall, false).await;
        let MetaReply::Renamed { other: Some(exchanged), .. } = call.wait().await.unwrap() else { panic!() };
        assert_eq!(exchanged.ino, first);
    });
}
