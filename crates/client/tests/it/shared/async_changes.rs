//! Asynchronous renames and changes of attributes: no client sees the state before, whether the
//! service has executed them or not.

use super::async_creates::{close, lookup_or_absent, make, names};
use super::cluster::{Application, Cluster, RDONLY, RDWR, ROOT, with_cluster, with_cluster_of_seed};
use super::kernel_caches::Kernel;
use super::partitioned_cluster::{FIRST, PARTITIONS, SECOND, with_partitioned_cluster};
use client::{Client, Invalidate};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use types::{Attr, Credentials, Errno, InodeId, PartitionId, Result, SetAttr, SetTime, Timestamp};
use wire::RenameMode;

const OTHER: Credentials = Credentials { uid: 1000, gid: 1000, pid: 1 };

/// Executes a call; returns its result, and whether it was answered at once.
async fn at_once<T>(call: impl Future<Output = Result<T>>) -> (Result<T>, bool) {
    let mut call = pin!(call);
    match poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await {
        Poll::Ready(done) => (done, true),
        Poll::Pending => (call.await, false),
    }
}

async fn rename(client: &Arc<Client>, dir: InodeId, from: &str, to: &str) -> (Result<()>, bool) {
    at_once(client.rename(ROOT, dir, from.as_bytes(), dir, to.as_bytes(), RenameMode::Replace)).await
}

async fn set(client: &Arc<Client>, ino: InodeId, set: SetAttr) -> (Attr, bool) {
    let (attr, was_at_once) = at_once(client.setattr(ROOT, ino, set, None)).await;
    (attr.unwrap().attr, was_at_once)
}

fn permissions(bits: u32) -> SetAttr {
    SetAttr { mode: Some(bits), ..SetAttr::default() }
}

fn modified_at(secs: i64) -> SetAttr {
    let time = Some(SetTime::At(Timestamp::new(secs, 7)));
    SetAttr { atime: time, mtime: time, ..SetAttr::default() }
}

/// Creates and closes a file with content, and returns its inode.
async fn filled(client: &Arc<Client>, dir: InodeId, name: &str) -> InodeId {
    let file = make(client, dir, name).await;
    client.fill(&file, 0, 100, name.as_bytes()[0]).await;
    let ino = file.ino();
    close(client, file).await.unwrap();
    ino
}

/// A directory whose delegation the client has.
async fn own_directory(client: &Arc<Client>) -> InodeId {
    let dir = client.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap().ino;
    filled(client, dir, "first").await;
    dir
}

#[test]
fn a_program_that_replaces_files_does_not_wait() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = own_directory(&one).await;
        for round in 0..3 {
            for n in 0..10 {
                let (old, new) = (format!(".t{n}"), format!("f{n}"));
                lookup_or_absent(&one, dir, &new).await;
                let ino = filled(&one, dir, &old).await;
                let (attr, was_at_once) = set(&one, ino, modified_at(1000 + n)).await;
                assert!(was_at_once, "times of {n} in round {round}");
                assert_eq!((attr.mtime, attr.size), (Timestamp::new(1000 + n, 7), 100));
                assert!(set(&one, ino, permissions(0o640)).await.1, "permissions of {n} in round {round}");
                let (renamed, was_at_once) = rename(&one, dir, &old, &new).await;
                renamed.unwrap();
                assert!(was_at_once, "rename of {n} in round {round}");
                let found = one.lookup(ROOT, dir, new.as_bytes()).await.unwrap().attr;
                assert_eq!((found.ino, found.mode & 0o777, found.mtime.secs), (ino, 0o640, 1000 + n));
                assert_eq!(one.getattr(ino).await.unwrap().attr, found);
            }
            assert_eq!(names(&one, dir).await.len(), 11);
        }
        assert_eq!(names(&two, dir).await.len(), 11);
        for n in 0..10 {
            let found = two.lookup(ROOT, dir, format!("f{n}").as_bytes()).await.unwrap().attr;
            assert_eq!((found.mode & 0o777, found.mtime.secs, found.size), (0o640, 1000 + n, 100));
        }
        one.shutdown().await.unwrap();
    });
}

/// What the service has in the end is what the application has seen.
#[test]
fn attributes_are_those_that_the_application_has_seen() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = own_directory(&one).await;
        let ino = filled(&one, dir, "f").await;
        let owner = SetAttr { uid: Some(1000), gid: Some(100), ..SetAttr::default() };
        let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        let mut seen = None;
        for change in [permissions(0o600), owner, modified_at(77), now, permissions(0o444)] {
            let (attr, was_at_once) = set(&one, ino, change).await;
            assert!(was_at_once, "{change:?}");
            seen = Some(attr);
        }
        assert_eq!(one.getattr(ino).await.unwrap().attr, seen.unwrap());
        assert_eq!(two.getattr(ino).await.unwrap().attr, seen.unwrap());
        assert_eq!((seen.unwrap().uid, seen.unwrap().gid, seen.unwrap().mode & 0o777), (1000, 100, 0o444));
    });
}

#[test]
fn some_changes_wait_for_the_service() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = own_directory(&one).await;
        let ino = filled(&one, dir, "f").await;
        assert_eq!(one.setattr(OTHER, ino, permissions(0o777), None).await.unwrap_err().errno, Errno::EPERM);
        assert!(!set(&one, ino, permissions(0o4755)).await.1, "a special bit");
        assert!(!set(&one, ino, permissions(0o755)).await.1, "the file has had a special bit");
        let read = filled(&one, dir, "g").await;
        assert_eq!(two.getattr(read).await.unwrap().mode & 0o777, 0o644);
        assert!(!set(&one, read, permissions(0o600)).await.1, "another client has seen the file");
        assert_eq!(two.getattr(read).await.unwrap().mode & 0o777, 0o600);
        let (missing, _) = rename(&one, dir, "never", "h").await;
        assert_eq!(missing.unwrap_err().errno, Errno::ENOENT);
        let sub = one.mkdir(ROOT, dir, b"sub", 0o755, 0).await.unwrap().ino;
        let (onto_directory, _) = rename(&one, dir, "g", "sub").await;
        assert_eq!(onto_directory.unwrap_err().errno, Errno::EISDIR);
        let moved = one.rename(ROOT, dir, b"g", sub, b"g", RenameMode::Replace);
        let (moved, was_at_once) = at_once(moved).await;
        moved.unwrap();
        assert!(!was_at_once, "into another directory");
        let denied = one.rename(OTHER, dir, b"f", dir, b"mine", RenameMode::Replace).await;
        assert_eq!(denied.unwrap_err().errno, Errno::EACCES);
        assert_eq!(names(&two, dir).await, ["f", "first", "sub"]);
    });
}

/// The kernel asks for a page of a file, and the read waits for a change of the file that is lost.
/// The kernel drops that page only when it is filled.
#[test]
fn a_change_that_fails_blocks_no_read() {
    with_cluster(|cluster| async move {
        let (one, way) = cluster.client_with_cuttable_meta().await;
        let kernel = Arc::new(Kernel::default());
        let invalidator: Arc<dyn Invalidate> = kernel.clone();
        one.set_invalidator(Arc::downgrade(&invalidator));
        let dir = own_directory(&one).await;
        let ino = filled(&one, dir, "f").await;
        let file = one.open(ROOT, ino, RDONLY).await.unwrap();
        way.cut();
        assert!(set(&one, ino, permissions(0o600)).await.1);
        let filled = kernel.begin_filling(ino);
        let read = Rc::new(RefCell::new(None));
        let (client, told) = (one.clone(), read.clone());
        rt::spawn(async move {
            *told.borrow_mut() = Some(client.try_read_all(&file).await);
            filled.set();
        });
        // Until the service has ended the session, which loses the change.
        rt::sleep(Duration::from_secs(600)).await;
        way.restore();
        rt::sleep(Duration::from_secs(60)).await;
        assert!(matches!(*read.borrow(), Some(Err(_))), "{:?}", read.borrow());
    });
}

#[test]
fn changes_of_a_removed_file_show_that_it_has_no_name() {
    with_cluster(|cluster| async move {
        let one = cluster.clients::<2>().await[0].clone();
        let dir = own_directory(&one).await;
        for replaced in [false, true] {
            let file = make(&one, dir, "f").await;
            one.fill(&file, 0, 100, b'f').await;
            one.flush(&file).await.unwrap();
            let (ino, other) = (file.ino(), filled(&one, dir, "g").await);
            if replaced {
                assert!(rename(&one, dir, "g", "f").await.1);
            } else {
                assert!(at_once(one.unlink(ROOT, dir, b"f")).await.1);
            }
            assert_eq!(set(&one, ino, permissions(0o600)).await.0.nlink, 0);
            assert_eq!(set(&one, other, permissions(0o600)).await.0.nlink, 1);
            close(&one, file).await.unwrap();
            one.unlink(ROOT, dir, if replaced { b"f" } else { b"g" }).await.unwrap();
        }
    });
}

/// A write after the change of a time isn't lost, nor is the time of that write.
#[test]
fn writes_and_changes_of_attributes_keep_their_order() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = own_directory(&one).await;
        for (name, size) in [("inline", 200), ("chunks", 100_000)] {
            let ino = filled(&one, dir, name).await;
            set(&one, ino, modified_at(50)).await;
            let file = one.open(ROOT, ino, RDWR).await.unwrap();
            one.fill(&file, 0, size, b'w').await;
            let written = one.getattr(ino).await.unwrap();
            assert!(written.mtime.secs > 50 && written.size == size as u64, "{written:?}");
            set(&one, ino, modified_at(60)).await;
            close(&one, file).await.unwrap();
            let seen = two.getattr(ino).await.unwrap();
            assert_eq!((seen.mtime.secs, seen.size), (60, size as u64), "{name}");
        }
    });
}

#[test]
fn a_restarted_service_executes_changes_once_and_before_others_look() {
    for seed in 1..=20 {
        with_cluster_of_seed(seed, move |cluster| async move {
            let [one, two] = cluster.clients().await;
            let dir = own_directory(&one).await;
            let mut inodes = Vec::new();
            for n in 0..20 {
                inodes.push(filled(&one, dir, &format!(".t{n}")).await);
            }
            let mut asynchronous = 0;
            for (n, ino) in inodes.iter().enumerate() {
                asynchronous += u32::from(set(&one, *ino, permissions(0o600)).await.1);
                lookup_or_absent(&one, dir, &format!("f{n}")).await;
                let (renamed, was_at_once) = rename(&one, dir, &format!(".t{n}"), &format!("f{n}")).await;
                renamed.unwrap();
                asynchronous += u32::from(was_at_once);
            }
            if seed % 2 == 0 {
                rt::sleep(Duration::from_micros(rt::random_u64() % 300)).await;
            }
            assert!(asynchronous > 15, "{asynchronous}");
            cluster.restart_metadata().await;
            for (n, ino) in inodes.iter().enumerate() {
                let name = format!("f{n}");
                let found = two.lookup(ROOT, dir, name.as_bytes()).await.unwrap();
                assert_eq!((found.ino, found.mode & 0o777), (*ino, 0o600), "{n}");
                // Executed again, the first client's changes would undo these.
                two.setattr(ROOT, *ino, permissions(0o640), None).await.unwrap();
                let back = format!(".t{n}");
                two.rename(ROOT, dir, name.as_bytes(), dir, back.as_bytes(), RenameMode::Replace)
                    .await
                    .unwrap();
            }
            rt::sleep(Duration::from_secs(10)).await;
            for (n, ino) in inodes.iter().enumerate() {
                let found = one.lookup(ROOT, dir, format!(".t{n}").as_bytes()).await.unwrap();
                assert_eq!((found.ino, found.mode & 0o777), (*ino, 0o640), "{n}");
            }
        });
    }
}

#[test]
fn changes_follow_a_moved_directory() {
    with_partitioned_cluster(|cluster| async move {
        let is_moved = |partition: PartitionId| partition != InodeId::ROOT.partition();
        let moved = || (0..PARTITIONS).map(PartitionId).filter(move |one| is_moved(*one));
        let (one, two) = (cluster.client().await, cluster.client().await);
        let dir = cluster.directory_in(&one, is_moved).await;
        for (round, service) in [SECOND, FIRST, SECOND].into_iter().enumerate() {
            rt::sleep(Duration::from_secs(70)).await;
            let mut expected = Vec::new();
            for n in 0..20 {
                let ino = filled(&one, dir, &format!(".t{n}")).await;
                set(&one, ino, permissions(0o600)).await;
                let name = format!("r{round}-{n}");
                rename(&one, dir, &format!(".t{n}"), &name).await.0.unwrap();
                expected.push((name, ino));
            }
            cluster.assign(moved(), service);
            for (name, ino) in expected {
                let found = two.lookup(ROOT, dir, name.as_bytes()).await.unwrap();
                assert_eq!((found.ino, found.mode & 0o777), (ino, 0o600), "{name}");
                two.forget(ino, 1);
            }
            two.forget(dir, 1);
            cluster.wait_for_owners().await;
        }
    });
}

#[test]
fn a_link_in_a_directory_of_another_service_counts() {
    with_partitioned_cluster(|cluster| async move {
        let one = cluster.client().await;
        let dir = own_directory(&one).await;
        let is_elsewhere = move |partition: PartitionId| partition != dir.partition();
        let elsewhere = cluster.directory_in(&one, is_elsewhere).await;
        for service in [SECOND, FIRST] {
            cluster.assign((0..PARTITIONS).map(PartitionId).filter(|one| is_elsewhere(*one)), service);
            cluster.wait_for_owners().await;
            rt::sleep(Duration::from_secs(70)).await;
            let name = format!("f{service:?}");
            let ino = filled(&one, dir, &name).await;
            one.link(ROOT, ino, elsewhere, name.as_bytes()).await.unwrap();
            let (attr, _) = set(&one, ino, permissions(0o600)).await;
            assert_eq!(attr.nlink, 2, "{name}");
        }
    });
}

#[test]
fn lost_changes_are_reported_by_the_successor_session() {
    with_cluster(|cluster: Rc<Cluster>| async move {
        let (mount, way) = cluster.mount().await;
        let dir = mount.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap().ino;
        let mut inodes = Vec::new();
        for n in 0..8 {
            let name = format!("f{n}");
            let (attr, file) = mount.create(ROOT, dir, name.as_bytes(), 0o100_644, 0, RDWR).await.unwrap();
            inodes.push(attr.ino);
            file.flush().await.unwrap();
            file.release().await;
        }
        let session = mount.current();
        lookup_or_absent(&session, dir, "new").await;
        way.cut();
        assert!(set(&session, inodes[1], permissions(0o600)).await.1);
        assert!(rename(&session, dir, "f0", "new").await.1);
        cluster.evict(&mount);
        rt::sleep(Duration::from_secs(1)).await;
        way.restore();
        rt::sleep(Duration::from_secs(10)).await;
        // In the successor session, once.
        assert_eq!(mount.fsyncdir(dir).await.unwrap_err().errno, Errno::EIO);
        mount.fsyncdir(dir).await.unwrap();
        let again = async || mount.setattr(ROOT, inodes[1], permissions(0o600), None).await;
        assert_eq!(again().await.unwrap_err().errno, Errno::EIO);
        assert_eq!(again().await.unwrap().mode & 0o777, 0o600);
        let names = names(&mount.current(), dir).await;
        assert!(names.contains(&"f0".to_string()) && !names.contains(&"new".to_string()), "{names:?}");
    });
}
