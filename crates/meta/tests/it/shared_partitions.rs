//! Several metadata services that share the partitions of one store.

use crate::support;
use crate::support::cluster::{Cluster, RoutingClient};
use crate::support::world::{Call, Started, chmod};
use crate::support::{CHUNK_MTIME, Client, PARTITIONS, bytes, create};
use meta::SessionKind;
use net::Handler;
use rt::sim::Machine;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use types::{Credentials, Errno, InodeId, NodeId, PartitionId, Result, SessionId, TargetId};
use wire::{LeaseMode, MetaOp, MetaReply, MetaRequest, RenameMode};

const ROOT: InodeId = InodeId::ROOT;

fn simulated<F: Future<Output = ()> + 'static>(
    seed: u64,
    nodes: u32,
    test: impl FnOnce(Rc<Cluster>) -> F + 'static,
) {
    let run = async move {
        let cluster = Cluster::new(nodes).await;
        cluster.rebalance();
        cluster.wait_until_served().await;
        test(cluster.clone()).await;
        cluster.stop();
    };
    Machine::new(seed).run(run).unwrap();
}

fn mkdir(parent: InodeId, name: &str) -> MetaOp {
    MetaOp::Mkdir { parent, name: bytes(name), mode: 0o755, umask: 0 }
}

fn lookup(parent: InodeId, name: &str) -> MetaOp {
    MetaOp::Lookup { parent, name: bytes(name) }
}

fn rename((parent, name): (InodeId, &str), (new_parent, new_name): (InodeId, &str)) -> MetaOp {
    let mode = RenameMode::Replace;
    MetaOp::Rename { parent, name: bytes(name), new_parent, new_name: bytes(new_name), mode }
}

/// A directory in the root, in a partition that this node owns.
async fn directory_at(cluster: &Cluster, client: &RoutingClient, node: u32, prefix: &str) -> InodeId {
    for i in 0.. {
        let name = format!("{prefix}{i}");
        let partition = namespace::keys::directory_partition((1, 2), PARTITIONS, ROOT, name.as_bytes());
        if cluster.map.load().partitions[partition.0 as usize] == NodeId(node) {
            return client.entry(mkdir(ROOT, &name)).await.unwrap().ino;
        }
    }
    unreachable!()
}

#[test]
fn commands_reach_across_services() {
    simulated(1, 3, async |cluster| {
        let client = RoutingClient::new(&cluster, 1);
        let [a, b, c] = [
            directory_at(&cluster, &client, 1, "a").await,
            directory_at(&cluster, &client, 2, "b").await,
            directory_at(&cluster, &client, 3, "c").await,
        ];
        let file = client.entry(create(b, "file")).await.unwrap().ino;
        // From one service to another; in the end the file's inode is at a third one.
        client.entry(rename((b, "file"), (a, "moved"))).await.unwrap();
        client.entry(rename((a, "moved"), (c, "again"))).await.unwrap();
        assert_eq!(client.entry(lookup(b, "file")).await.unwrap_err().errno, Errno::ENOENT);
        assert_eq!(client.entry(lookup(c, "again")).await.unwrap().ino, file);
        // The directory's service doesn't have the inode, and reports its location.
        let reply = client.call(lookup(c, "again")).await.unwrap();
        assert!(matches!(reply, MetaReply::Redirect { ino, .. } if ino == file), "{reply:?}");

        let link = MetaOp::Link { ino: file, parent: a, name: bytes("link") };
        assert_eq!(client.entry(link).await.unwrap().nlink, 2);
        let unlink = |parent, name: &str| MetaOp::Unlink { parent, name: bytes(name), ino: None };
        assert_eq!(client.entry(unlink(c, "again")).await.unwrap().nlink, 1);
        assert_eq!(client.entry(MetaOp::Getattr { ino: file }).await.unwrap().nlink, 1);
        // A directory can't move below itself, whichever services own its ancestors.
        client.entry(rename((ROOT, "nothing"), (a, "x"))).await.unwrap_err();
        let below = client.entry(mkdir(c, "below")).await.unwrap().ino;
        let names = client
            .call(MetaOp::Readdir {
                dir: ROOT,
                cookie: 0,
                limit: 100,
                attributes: true,
                prefix: bytes::Bytes::new(),
            })
            .await;
        let MetaReply::Directory { entries, .. } = names.unwrap() else { panic!() };
        let name_of =
            |ino| String::from_utf8(entries.iter().find(|e| e.ino == ino).unwrap().name.to_vec()).unwrap();
        let loops = client.entry(rename((ROOT, &name_of(c)), (below, "loop"))).await;
        assert_eq!(loops.unwrap_err().errno, Errno::EINVAL);
        let rmdir = |parent, name: &str| MetaOp::Rmdir { parent, name: bytes(name) };
        assert_eq!(client.entry(rmdir(ROOT, &name_of(c))).await.unwrap_err().errno, Errno::ENOTEMPTY);
        client.entry(rmdir(c, "below")).await.unwrap();
        client.entry(rmdir(ROOT, &name_of(c))).await.unwrap();
        assert_eq!(client.entry(MetaOp::Getattr { ino: ROOT }).await.unwrap().nlink, 4);
    });
}

/// Data that an application has synced at one service may depend on a commit of another one: the
/// removal of the file's previous name.
#[test]
fn a_sync_at_one_service_covers_what_others_have_committed() {
    simulated(8, 3, async |cluster| {
        let client = RoutingClient::new(&cluster, 1);
        let from = directory_at(&cluster, &client, 2, "from").await;
        let to = directory_at(&cluster, &client, 3, "to").await;
        client.entry(create(from, "file")).await.unwrap();
        rt::sleep(Duration::from_secs(2)).await;
        assert_eq!(cluster.memory.unsynced(), 0, "services put on disk by themselves what nobody has synced");
        client.entry(rename((from, "file"), (to, "file"))).await.unwrap();
        assert_ne!(cluster.memory.unsynced(), 0);
        client.call_at(NodeId(3), MetaOp::Sync).await.unwrap();
        assert_eq!(cluster.memory.unsynced(), 0);
    });
}

#[test]
fn a_lease_is_recalled_by_the_service_that_granted_it() {
    simulated(2, 2, async |cluster| {
        let (holder, other) = (RoutingClient::new(&cluster, 1), RoutingClient::new(&cluster, 2));
        let a = directory_at(&cluster, &other, 1, "a").await;
        let b = directory_at(&cluster, &other, 2, "b").await;
        let file = other.entry(create(b, "file")).await.unwrap().ino;
        rt::sleep(Duration::from_secs(2)).await;
        let grants = holder.grants(MetaOp::Open { ino: file, requested_lease: Some(LeaseMode::Read) }).await;
        assert!(grants.iter().any(|grant| grant.ino == file && grant.mode == LeaseMode::Read));
        let held = cluster.service(2);
        // A link created at the other service changes the file, so its lease is recalled.
        other.entry(MetaOp::Link { ino: file, parent: a, name: bytes("link") }).await.unwrap();
        assert_eq!(held.session_list().len(), 2);
        let stats = cluster.service(1).stats();
        assert!(stats.reruns > 1, "the command had to be run again after the recall: {stats:?}");
    });
}

#[test]
fn a_session_evicted_by_one_service_is_evicted_at_all() {
    simulated(3, 2, async |cluster| {
        let client = RoutingClient::new(&cluster, 7);
        for node in 1..=2 {
            let dir = directory_at(&cluster, &client, node, "d").await;
            client.entry(create(dir, "file")).await.unwrap();
        }
        client.stopping.set(true);
        cluster.service(1).evict_session(client.session).unwrap();
        rt::sleep(Duration::from_secs(1)).await;
        for node in 1..=2 {
            assert!(cluster.service(node).session_list().is_empty(), "at node {node}");
        }
        for partition in 0..PARTITIONS {
            let op = MetaOp::Getattr { ino: InodeId::new(PartitionId(partition), 1) };
            assert_eq!(client.call(op).await.unwrap_err().errno, Errno::ESTALE);
        }
    });
}

/// It can reach no session, and must not evict those that other services reach.
#[test]
fn a_service_outside_a_term_evicts_no_sessions() {
    simulated(9, 2, async |cluster| {
        const SECOND: Duration = Duration::from_secs(1);
        let [there, here] = [2, 1].map(|node| Client::new(&cluster.service(node), 1));
        for service in [&there, &here] {
            service
                .call(MetaOp::Register {
                    in_use: vec![],
                    pending_creates: vec![],
                    pending_changes: vec![],
                    reporting_process: 0,
                })
                .await
                .unwrap();
        }
        let partition =
            (0..PARTITIONS).map(PartitionId).find(|p| cluster.service(2).serving_partitions().contains(p));
        cluster.give(partition.unwrap(), NodeId(1));
        rt::sleep(SECOND).await;
        cluster.cut_off.lock().insert(NodeId(1));
        // The service waits for recalls before it answers that there are none.
        for _ in 0..30 {
            rt::sleep(SECOND).await;
            there.call(MetaOp::NextRecalls { after: 0 }).await.unwrap();
        }
        // Once management trusts it again, the session has its full time there.
        cluster.cut_off.lock().clear();
        rt::sleep(10 * SECOND).await;
        let news = here.call(MetaOp::NextRecalls { after: 0 }).await.unwrap();
        assert!(matches!(news, MetaReply::PartitionsTakenOver { .. }), "{news:?}");
    });
}

/// The client reports the second file as open before it reclaims the partition, and the first one
/// with the reclaim.
#[test]
fn a_file_without_a_name_survives_the_move_of_its_partition() {
    simulated(4, 2, async |cluster| {
        let (user, remover) = (RoutingClient::new(&cluster, 1), RoutingClient::new(&cluster, 2));
        let dir = directory_at(&cluster, &remover, 2, "d").await;
        let mut files = Vec::new();
        for name in ["one", "two"] {
            let file = remover.entry(create(dir, name)).await.unwrap().ino;
            user.call(MetaOp::Open { ino: file, requested_lease: None }).await.unwrap();
            user.in_use.lock().push(file);
            remover.entry(MetaOp::Unlink { parent: dir, name: bytes(name), ino: None }).await.unwrap();
            files.push(file);
        }
        assert_eq!(files[0].partition(), files[1].partition());
        cluster.give(files[0].partition(), NodeId(1));
        cluster.wait_until_served().await;
        for &file in &files {
            remover.call(MetaOp::Reclaim { ino: file, others: Vec::new() }).await.unwrap();
        }
        rt::sleep(Duration::from_secs(1)).await;
        for &file in &files {
            let found = user.entry(MetaOp::Getattr { ino: file }).await.unwrap();
            assert_eq!(found.nlink, 0, "it is still open");
        }
        user.in_use.lock().clear();
        for file in files {
            user.call(MetaOp::Release { inodes: vec![file], seen: u64::MAX }).await.unwrap();
            user.call(MetaOp::Reclaim { ino: file, others: Vec::new() }).await.unwrap();
            let gone = user.entry(MetaOp::Getattr { ino: file }).await;
            assert_eq!(gone.unwrap_err().errno, Errno::ESTALE);
        }
    });
}

/// A retransmission of the session's registration arrives late, after the session has begun to
/// report its open files in a partition that it is about to reclaim.
#[test]
fn open_files_stay_known_after_a_late_retransmission_of_the_registration() {
    simulated(4, 2, async |cluster| {
        let remover = RoutingClient::new(&cluster, 2);
        let dir = directory_at(&cluster, &remover, 2, "d").await;
        let ino = remover.entry(create(dir, "file")).await.unwrap().ino;
        let [there, here] = [2, 1].map(|node| Client::new(&cluster.service(node), 1));
        let register = || MetaOp::Register {
            in_use: vec![],
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: 0,
        };
        for service in [&there, &here] {
            service.call(register()).await.unwrap();
        }
        there.call(MetaOp::Open { ino, requested_lease: None }).await.unwrap();
        remover.entry(MetaOp::Unlink { parent: dir, name: bytes("file"), ino: None }).await.unwrap();
        let partition = ino.partition();
        cluster.give(partition, NodeId(1));
        let is_adopted = |reply: &MetaReply| matches!(reply, MetaReply::PartitionsTakenOver { partitions } if partitions.contains(&partition));
        loop {
            let news = here.call(MetaOp::NextRecalls { after: 0 }).await.unwrap();
            if is_adopted(&news) {
                break;
            }
        }
        here.call(MetaOp::ReclaimOpens { inodes: vec![ino] }).await.unwrap();
        here.call(register()).await.unwrap();
        let follow = MetaOp::Follow {
            partitions: vec![partition],
            in_use: vec![],
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: 0,
        };
        here.call(follow).await.unwrap();
        cluster.wait_until_served().await;
        remover.call(MetaOp::Reclaim { ino, others: Vec::new() }).await.unwrap();
        assert_eq!(here.getattr(ino).await.unwrap().nlink, 0, "it is still open");
    });
}

/// Size recovery waits for storage until it fails, and the session sends its reclaim again.
#[test]
fn a_late_retransmission_of_a_reclaim_revokes_no_later_grants() {
    simulated(7, 2, async |cluster| {
        const SECOND: Duration = Duration::from_secs(1);
        let other = RoutingClient::new(&cluster, 2);
        let dir = directory_at(&cluster, &other, 2, "d").await;
        let ino = other.entry(create(dir, "file")).await.unwrap().ino;
        let written = other.entry(create(dir, "written")).await.unwrap().ino;
        let [there, here] = [2, 1].map(|node| Client::new(&cluster.service(node), 1));
        for service in [&there, &here] {
            service
                .call(MetaOp::Register {
                    in_use: vec![],
                    pending_creates: vec![],
                    pending_changes: vec![],
                    reporting_process: 0,
                })
                .await
                .unwrap();
        }
        there.call(MetaOp::BeginWrite { ino: written }).await.unwrap();
        there.call(MetaOp::DropInline { ino: written, size: 512, mtime: CHUNK_MTIME }).await.unwrap();
        *cluster.chunks.stat_time.lock() = 40 * SECOND;
        cluster.chunks.down.lock().extend((1..=support::TARGETS).map(TargetId));
        let heard: Rc<RefCell<Vec<MetaReply>>> = Rc::default();
        for service in [there, here.clone()] {
            let heard = heard.clone();
            rt::spawn(async move {
                while let Ok(reply) = service.call(MetaOp::NextRecalls { after: 0 }).await {
                    heard.borrow_mut().push(reply);
                    rt::sleep(SECOND).await;
                }
            });
        }
        let partition = ino.partition();
        cluster.give(partition, NodeId(1));
        let is_adopted = |reply: &MetaReply| matches!(reply, MetaReply::PartitionsTakenOver { partitions } if partitions.contains(&partition));
        while !heard.borrow().iter().any(is_adopted) {
            rt::sleep(SECOND).await;
        }
        let follow = || MetaOp::Follow {
            partitions: vec![partition],
            in_use: vec![written],
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: 0,
        };
        let first = Call::call(&here, follow()).await;
        rt::sleep(10 * SECOND).await;
        let again = Call::call(&here, follow()).await;
        first.wait().await.unwrap();
        assert!(!here.grants(MetaOp::Open { ino, requested_lease: Some(LeaseMode::Read) }).await.is_empty());
        again.wait().await.unwrap();
        let change = Started::new(async move { other.call(chmod(ino)).await });
        rt::sleep(3 * SECOND).await;
        let is_recalled = |reply: &MetaReply| matches!(reply, MetaReply::Recalls(recalls) if recalls.iter().any(|recall| recall.ino == ino));
        assert!(heard.borrow().iter().any(is_recalled) && !change.is_done());
    });
}

#[test]
fn a_partition_lock_that_is_not_returned_is_revoked() {
    simulated(5, 2, async |cluster| {
        let client = RoutingClient::new(&cluster, 1);
        let dir = directory_at(&cluster, &client, 2, "d").await;
        let owner = cluster.service(2);
        let lock = wire::PartitionsRequest::LockPartition { partition: dir.partition(), token: 99 };
        let handler: &dyn net::Handler<wire::PartitionsRequest, wire::PartitionsReply> = &*owner;
        let locked = handler.handle(lock, None).await.unwrap();
        assert!(matches!(locked, wire::PartitionsReply::Locked { .. }));
        let began_ns = rt::monotonic_ns();
        client.entry(create(dir, "file")).await.unwrap();
        let waited_ns = rt::monotonic_ns() - began_ns;
        assert!((3..6).contains(&(waited_ns / 1_000_000_000)), "waited {waited_ns} ns");
    });
}

/// Storage takes long to report the length of a file whose writer is gone. Meanwhile the partition
/// is released, and adopted again with another such file.
#[test]
fn size_recovery_of_an_earlier_adoption_does_not_open_a_partition() {
    simulated(9, 2, async |cluster| {
        const SECOND: Duration = Duration::from_secs(1);
        let other = RoutingClient::new(&cluster, 2);
        let dir = directory_at(&cluster, &other, 2, "d").await;
        // In this order: the task that recovers the one searches for more behind it.
        let second = other.entry(create(dir, "second")).await.unwrap().ino;
        let first = other.entry(create(dir, "first")).await.unwrap().ino;
        assert!(second < first);
        let partition = dir.partition();
        let write = async |ino| {
            let service = cluster.service(2);
            // A session without a record in the store: the service doesn't wait for its return.
            service.register_session(SessionId(1), SessionKind::Local).await.unwrap();
            let writer = Client::new(&service, 1);
            writer.call(MetaOp::BeginWrite { ino }).await.unwrap();
            writer.call(MetaOp::DropInline { ino, size: 512, mtime: CHUNK_MTIME }).await.unwrap();
        };
        let begin = async |stat_time: Duration| {
            *cluster.chunks.stat_time.lock() = stat_time;
            cluster.give(partition, NodeId(1));
            rt::sleep(5 * SECOND).await;
            assert!(!cluster.service(1).serving_partitions().contains(&partition));
        };
        write(first).await;
        begin(40 * SECOND).await;
        *cluster.chunks.stat_time.lock() = Duration::ZERO;
        cluster.give(partition, NodeId(2));
        cluster.wait_until_served().await;
        write(second).await;
        begin(80 * SECOND).await;
        // The first task has the length of its file by now, the second hasn't.
        rt::sleep(50 * SECOND).await;
        assert!(!cluster.service(1).serving_partitions().contains(&partition), "a file isn't settled yet");
        cluster.wait_until_served().await;
    });
}

/// A coordinator has locked its partition and doesn't return it, until no client waits for the
/// answer any more.
#[test]
fn an_expired_cross_partition_change_is_not_executed() {
    simulated(8, 2, async |cluster| {
        let client = RoutingClient::new(&cluster, 1);
        let map = cluster.map.load();
        let of_node = |node| {
            (0..PARTITIONS).filter(|p| map.partitions[*p as usize] == NodeId(node)).collect::<Vec<_>>()
        };
        // The command finds out that it needs another service before it meets the lock.
        let (there, here) = (of_node(1)[0], *of_node(2).last().unwrap());
        assert!(there < here);
        let in_partition = async |partition, prefix: &str| {
            for i in 0.. {
                let ino = client.entry(mkdir(ROOT, &format!("{prefix}{i}"))).await.unwrap().ino;
                if ino.partition() == PartitionId(partition) {
                    return ino;
                }
            }
            unreachable!()
        };
        let (from, to) = (in_partition(here, "f").await, in_partition(there, "t").await);
        for name in ["file", "other"] {
            client.entry(create(from, name)).await.unwrap();
        }
        let owner = cluster.service(2);
        let ask = async |sequence, op, deadline| {
            let credentials = Credentials { uid: 0, gid: 0, pid: 1 };
            let request = MetaRequest {
                session: SessionId(9),
                slot_sequence: support::numbered(sequence),
                credentials,
                privileged: false,
                op,
            };
            owner.handle_with_deadline(&caller(), deadline, request, None).await
        };
        ask(
            0,
            MetaOp::Register {
                in_use: vec![],
                pending_creates: vec![],
                pending_changes: vec![],
                reporting_process: 0,
            },
            net::Deadline::NEVER,
        )
        .await
        .unwrap();
        // From now on no other session's lease conflicts.
        let before = [rename((from, "other"), (to, "other")), rename((from, "file"), (from, "kept"))];
        for (sequence, op) in (1..).zip(before) {
            ask(sequence, op, net::Deadline::NEVER).await.unwrap();
        }
        let lock = wire::PartitionsRequest::LockPartition { partition: from.partition(), token: 99 };
        let handler: &dyn net::Handler<wire::PartitionsRequest, wire::PartitionsReply> = &*owner;
        handler.handle(lock, None).await.unwrap();
        rt::sleep(Duration::from_secs(1)).await;
        // It waits for the end of the lock for the second time then, and gets the partition when
        // that is revoked.
        let deadline = net::Deadline::after(rt::monotonic_ns(), 2_500);
        let late = ask(3, rename((from, "kept"), (to, "moved")), deadline.clone()).await;
        assert!(deadline.has_passed(), "{late:?}");
        assert_eq!(late.unwrap_err().errno, Errno::ETIMEDOUT);
        client.entry(lookup(from, "kept")).await.unwrap();
    });
}

fn caller() -> net::Caller {
    net::Caller {
        name: "client".into(),
        host: String::new(),
        proof: net::Proof::NotRequired,
        holder: 9,
        address: std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 1)).into(),
        transport: net::Transport::Tcp,
        client: 9,
        core: 0,
        cluster: String::new(),
    }
}

/// What a client has created: directories with entries, by number of the directory.
#[derive(Default)]
struct Model {
    inodes: BTreeMap<usize, InodeId>,
    entries: BTreeMap<usize, BTreeMap<String, Thing>>,
    links: BTreeMap<u64, u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thing {
    Directory(usize),
    File(u64),
}

impl Model {
    fn is_below(&self, dir: usize, above: usize) -> bool {
        if dir == above {
            return true;
        }
        let children = self.entries[&above].values();
        children
            .into_iter()
            .any(|thing| matches!(thing, Thing::Directory(child) if self.is_below(dir, *child)))
    }

    fn rename(&mut self, (from, name): (usize, &str), (to, new_name): (usize, &str)) -> Result<(), Errno> {
        let moved = *self.entries[&from].get(name).ok_or(Errno::ENOENT)?;
        if let Thing::Directory(moved) = moved
            && from != to
            && self.is_below(to, moved)
        {
            return Err(Errno::EINVAL);
        }
        let target = self.entries[&to].get(new_name).copied();
        match (moved, target) {
            (moved, Some(target)) if moved == target => return Ok(()),
            (Thing::Directory(_), Some(Thing::File(_))) => return Err(Errno::ENOTDIR),
            (Thing::File(_), Some(Thing::Directory(_))) => return Err(Errno::EISDIR),
            (Thing::Directory(_), Some(Thing::Directory(old))) => {
                if !self.entries[&old].is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.entries.remove(&old);
                self.inodes.remove(&old);
            }
            (Thing::File(_), Some(Thing::File(old))) => *self.links.get_mut(&old).unwrap() -= 1,
            (_, None) => {}
        }
        self.entries.get_mut(&from).unwrap().remove(name);
        self.entries.get_mut(&to).unwrap().insert(new_name.into(), moved);
        Ok(())
    }
}

async fn random_step(client: &RoutingClient, model: &mut Model, next: &mut usize) {
    let random = |n: usize| (rt::random_u64() % n as u64) as usize;
    let dirs: Vec<usize> = model.inodes.keys().copied().collect();
    let (dir, other) = (dirs[random(dirs.len())], dirs[random(dirs.len())]);
    let (ino, other_ino) = (model.inodes[&dir], model.inodes[&other]);
    let (name, new_name) = (format!("n{}", random(4)), format!("n{}", random(4)));
    let there = model.entries[&dir].get(&name).copied();
    let errno = |result: Result<types::Attr>| {
        result.map_err(|error| {
            assert!(!error.message.contains("session"), "{}", error.message);
            error.errno
        })
    };
    match random(10) {
        0..3 => {
            let made = errno(client.entry(mkdir(ino, &name)).await);
            match there {
                Some(_) => assert_eq!(made.unwrap_err(), Errno::EEXIST),
                None => {
                    *next += 1;
                    model.inodes.insert(*next, made.unwrap().ino);
                    model.entries.insert(*next, BTreeMap::new());
                    model.entries.get_mut(&dir).unwrap().insert(name, Thing::Directory(*next));
                }
            }
        }
        3 => {
            let made = errno(client.entry(create(ino, &name)).await);
            match there {
                Some(_) => assert_eq!(made.unwrap_err(), Errno::EEXIST),
                None => {
                    let file = made.unwrap().ino.0;
                    model.links.insert(file, 1);
                    model.entries.get_mut(&dir).unwrap().insert(name, Thing::File(file));
                }
            }
        }
        4 => {
            let gone = errno(client.entry(MetaOp::Rmdir { parent: ino, name: bytes(&name) }).await);
            match there {
                None => assert_eq!(gone.unwrap_err(), Errno::ENOENT),
                Some(Thing::File(_)) => assert_eq!(gone.unwrap_err(), Errno::ENOTDIR),
                Some(Thing::Directory(child)) if !model.entries[&child].is_empty() => {
                    assert_eq!(gone.unwrap_err(), Errno::ENOTEMPTY);
                }
                Some(Thing::Directory(child)) => {
                    gone.unwrap();
                    model.entries.remove(&child);
                    model.inodes.remove(&child);
                    model.entries.get_mut(&dir).unwrap().remove(&name);
                }
            }
        }
        5 => {
            let gone =
                errno(client.entry(MetaOp::Unlink { parent: ino, name: bytes(&name), ino: None }).await);
            match there {
                None => assert_eq!(gone.unwrap_err(), Errno::ENOENT),
                Some(Thing::Directory(_)) => assert_eq!(gone.unwrap_err(), Errno::EISDIR),
                Some(Thing::File(file)) => {
                    let links = model.links.get_mut(&file).unwrap();
                    *links -= 1;
                    assert_eq!(gone.unwrap().nlink, *links);
                    model.entries.get_mut(&dir).unwrap().remove(&name);
                }
            }
        }
        6 => {
            let Some(Thing::File(file)) = there else { return };
            let link = MetaOp::Link { ino: InodeId(file), parent: other_ino, name: bytes(&new_name) };
            let made = errno(client.entry(link).await);
            match model.entries[&other].get(&new_name) {
                Some(_) => assert_eq!(made.unwrap_err(), Errno::EEXIST),
                None => {
                    let links = model.links.get_mut(&file).unwrap();
                    *links += 1;
                    assert_eq!(made.unwrap().nlink, *links);
                    model.entries.get_mut(&other).unwrap().insert(new_name, Thing::File(file));
                }
            }
        }
        7 | 8 => {
            let moved = errno(client.entry(rename((ino, &name), (other_ino, &new_name))).await).map(|_| ());
            let expected = model.rename((dir, &name), (other, &new_name));
            assert_eq!(moved, expected, "{name} of {dir} to {new_name} of {other}");
        }
        _ => compare(client, model, dir).await,
    }
}

/// Compares the entries of a directory and their types.
async fn compare(client: &RoutingClient, model: &Model, dir: usize) {
    let ino = model.inodes[&dir];
    let op =
        MetaOp::Readdir { dir: ino, cookie: 0, limit: 100, attributes: true, prefix: bytes::Bytes::new() };
    let MetaReply::Directory { entries, .. } = client.call(op).await.unwrap() else { panic!() };
    let found: BTreeSet<String> =
        entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()).collect();
    let expected: BTreeSet<String> = model.entries[&dir].keys().cloned().collect();
    assert_eq!(found, expected);
    let mut below = 0;
    for (name, thing) in &model.entries[&dir] {
        let attr = client.entry(lookup(ino, name)).await.unwrap();
        match thing {
            Thing::Directory(child) => {
                below += 1;
                assert_eq!(attr.ino, model.inodes[child]);
            }
            Thing::File(file) => assert_eq!((attr.ino.0, attr.nlink), (*file, model.links[file])),
        }
    }
    assert_eq!(client.entry(MetaOp::Getattr { ino }).await.unwrap().nlink, 2 + below);
}

/// Random steps of a client in a directory of its own, compared with a naive model.
async fn run_client(client: Rc<RoutingClient>, steps: usize) {
    let home = client.entry(mkdir(ROOT, &format!("home {}", client.session))).await.unwrap().ino;
    let mut model = Model::default();
    model.inodes.insert(0, home);
    model.entries.insert(0, BTreeMap::new());
    let mut next = 0;
    for _ in 0..steps {
        random_step(&client, &mut model, &mut next).await;
    }
    for dir in model.inodes.keys() {
        compare(&client, &model, *dir).await;
    }
}

/// Moves partitions, and kills and restarts services.
async fn inject_faults(cluster: Rc<Cluster>, deaths: bool, moves: Rc<Cell<u32>>) {
    loop {
        moves.set(moves.get() + 1);
        rt::sleep(Duration::from_millis(rt::random_u64() % 200)).await;
        let victim = NodeId(2 + (rt::random_u64() % 2) as u32);
        match rt::random_u64() % 12 {
            0 if deaths && cluster.services.lock().contains_key(&victim) => {
                cluster.kill(victim).await;
                rt::sleep(Duration::from_millis(rt::random_u64() % 3000)).await;
                cluster.start(victim);
                cluster.rebalance();
            }
            1 => cluster.rebalance(),
            _ => {
                let partition = PartitionId((rt::random_u64() % PARTITIONS as u64) as u16);
                let node = NodeId(1 + (rt::random_u64() % 3) as u32);
                cluster.give(partition, node);
            }
        }
    }
}

/// Returns how often partitions moved or services died.
fn against_the_model(seed: u64, (moves, deaths, lost): (bool, bool, Option<u64>)) -> u32 {
    let faults = Arc::new(AtomicU32::new(0));
    let shared_faults = faults.clone();
    simulated(seed, 3, async move |cluster| {
        *cluster.lost.lock() = lost;
        let moved = Rc::new(Cell::new(0));
        if moves {
            rt::spawn(inject_faults(cluster.clone(), deaths, moved.clone()));
        }
        let clients: Vec<_> = (1..=3).map(|session| RoutingClient::new(&cluster, session)).collect();
        clients.iter().for_each(|client| client.lost.set(lost));
        let steps = if deaths { 600 } else { 400 };
        rt::join_all(clients.iter().map(|client| run_client(client.clone(), steps)).collect()).await;
        clients.iter().for_each(|client| client.stopping.set(true));
        shared_faults.store(moved.get(), Ordering::Relaxed);
    });
    faults.load(Ordering::Relaxed)
}

#[test]
fn three_services_behave_like_one() {
    (10..14).for_each(|seed| _ = against_the_model(seed, (false, false, None)));
}

#[test]
fn three_services_behave_like_one_while_partitions_move() {
    let disturbances: Vec<u32> = (20..26).map(|seed| against_the_model(seed, (true, false, None))).collect();
    assert!(disturbances.iter().all(|number| *number >= 6), "{disturbances:?} are too few");
}

#[test]
fn three_services_behave_like_one_while_services_die() {
    // A death takes most of the time of a run.
    let disturbances: u32 = (30..36).map(|seed| against_the_model(seed, (true, true, None))).sum();
    assert!(disturbances >= 20, "{disturbances} are too few");
}

#[test]
fn three_services_behave_like_one_while_answers_are_lost() {
    let disturbances: u32 = (40..44).map(|seed| against_the_model(seed, (true, true, Some(20)))).sum();
    assert!(disturbances >= 12, "{disturbances} are too few");
}
