//! Asynchronous removals: no client sees the file again, whether the service has removed it or not.

use super::async_creates::{close, lookup_or_absent, make, names};
use super::cluster::{Application, Cluster, RDWR, ROOT, with_cluster, with_cluster_of_seed};
use super::partitioned_cluster::{FIRST, PARTITIONS, SECOND, with_partitioned_cluster};
use client::{Client, Found};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use types::{Credentials, Errno, InodeFlags, InodeId, PartitionId, SetAttr};

const O_EXCL: u32 = 0o200;

/// Removes a file; returns whether that was answered at once.
async fn remove_is_async(client: &Arc<Client>, dir: InodeId, name: &str) -> bool {
    let mut removed = pin!(client.unlink(ROOT, dir, name.as_bytes()));
    let at_once = poll_fn(|context| Poll::Ready(removed.as_mut().poll(context)));
    match at_once.await {
        Poll::Ready(removed) => {
            removed.unwrap();
            true
        }
        Poll::Pending => {
            removed.await.unwrap();
            false
        }
    }
}

/// Creates and closes files in a directory.
async fn fill(client: &Arc<Client>, dir: InodeId, count: u32) {
    for n in 0..count {
        let file = make(client, dir, &format!("f{n}")).await;
        client.fill(&file, 0, 100, b'x').await;
        close(client, file).await.unwrap();
    }
}

async fn filled_directory(client: &Arc<Client>, count: u32) -> InodeId {
    let dir = client.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap().ino;
    fill(client, dir, count).await;
    dir
}

async fn is_absent(client: &Arc<Client>, dir: InodeId, name: &str) -> bool {
    matches!(client.find(ROOT, dir, name.as_bytes()).await.unwrap(), Found::Absent { .. })
}

#[test]
fn a_directory_is_emptied_without_waiting() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = filled_directory(&one, 20).await;
        for round in 0..3 {
            for n in 0..15 {
                assert!(remove_is_async(&one, dir, &format!("f{n}")).await, "{n} in round {round}");
            }
            for n in 0..15 {
                assert!(is_absent(&two, dir, &format!("f{n}")).await, "{n} in round {round}");
            }
            two.forget(dir, 1);
            // The other client has used the directory, and gives its lease back.
            rt::sleep(Duration::from_secs(70)).await;
            remove_is_async(&one, dir, "f19").await;
            rt::sleep(Duration::from_secs(70)).await;
            fill(&one, dir, 20).await;
            one.readdir(dir, 0, 1000, true).await.unwrap();
        }
    });
}

#[test]
fn the_client_does_not_see_what_it_has_removed() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let dir = filled_directory(&one, 20).await;
        let before = one.getattr(dir).await.unwrap().mtime;
        assert!(remove_is_async(&one, dir, "f0").await);
        assert!(one.getattr(dir).await.unwrap().mtime > before);
        assert!(remove_is_async(&one, dir, "f1").await);
        assert_eq!(one.unlink(ROOT, dir, b"f1").await.unwrap_err().errno, Errno::ENOENT);
        assert!(remove_is_async(&one, dir, "f2").await);
        assert_eq!(names(&one, dir).await.len(), 17);
        assert!(remove_is_async(&one, dir, "f3").await);
        let again = one.create(ROOT, dir, b"f3", 0o100_644, 0, RDWR | O_EXCL).await.unwrap().1;
        close(&one, again).await.unwrap();
        assert!(!is_absent(&one, dir, "f3").await);
        for n in 3..20 {
            remove_is_async(&one, dir, &format!("f{n}")).await;
        }
        one.rmdir(ROOT, InodeId::ROOT, b"d").await.unwrap();
        one.shutdown().await.unwrap();
    });
}

#[test]
fn an_open_file_outlives_its_removal_and_is_then_reclaimed() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let dir = filled_directory(&one, 10).await;
        let found = one.lookup(ROOT, dir, b"f1").await.unwrap();
        let file = one.open(ROOT, found.ino, RDWR).await.unwrap();
        assert!(remove_is_async(&one, dir, "f1").await);
        assert_eq!(one.read_all(&file).await, [b'x'; 100]);
        assert_eq!(one.getattr(found.ino).await.unwrap().nlink, 0);
        one.release(file).await;
        one.forget(found.ino, 2);
        rt::sleep(Duration::from_secs(2)).await;
        assert_eq!(one.getattr(found.ino).await.unwrap_err().errno, Errno::ESTALE);
    });
}

/// What the service might refuse, or what another name or client could show, isn't removed
/// asynchronously.
#[test]
fn some_removals_wait_for_the_service() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = filled_directory(&one, 20).await;
        let linked = one.lookup(ROOT, dir, b"f0").await.unwrap().ino;
        one.link(ROOT, linked, dir, b"second").await.unwrap();
        one.readdir(dir, 0, 1000, true).await.unwrap();
        assert!(!remove_is_async(&one, dir, "f0").await);
        // Listing has shown the others again, and this one has a single name now.
        assert!(remove_is_async(&one, dir, "f1").await);
        let kept = one.lookup(ROOT, dir, b"f2").await.unwrap().ino;
        let flags = SetAttr { flags: Some(InodeFlags::IMMUTABLE), ..SetAttr::default() };
        one.setattr(ROOT, kept, flags, None).await.unwrap();
        one.readdir(dir, 0, 1000, true).await.unwrap();
        assert_eq!(one.unlink(ROOT, dir, b"f2").await.unwrap_err().errno, Errno::EPERM);
        let other = Credentials { uid: 1000, gid: 1000, pid: 1 };
        assert_eq!(one.unlink(other, dir, b"f3").await.unwrap_err().errno, Errno::EACCES);
        assert_eq!(one.unlink(ROOT, InodeId::ROOT, b"d").await.unwrap_err().errno, Errno::EISDIR);
        assert_eq!(one.unlink(ROOT, dir, b"never").await.unwrap_err().errno, Errno::ENOENT);
        // Another client uses the directory.
        lookup_or_absent(&two, dir, "f4").await;
        assert!(!remove_is_async(&one, dir, "f4").await);
    });
}

#[test]
fn a_restarted_service_executes_removals_before_others_look() {
    for seed in 1..=20 {
        with_cluster_of_seed(seed, move |cluster| async move {
            let [one, two] = cluster.clients().await;
            let dir = filled_directory(&one, 40).await;
            let mut asynchronous = 0;
            for n in 0..30 {
                asynchronous += u32::from(remove_is_async(&one, dir, &format!("f{n}")).await);
            }
            if seed % 2 == 0 {
                rt::sleep(Duration::from_micros(rt::random_u64() % 300)).await;
            }
            assert!(asynchronous > 20, "{asynchronous}");
            cluster.restart_metadata().await;
            // The name belongs to another file from now on.
            for n in 0..30 {
                let name = format!("f{n}");
                let made = two.create(ROOT, dir, name.as_bytes(), 0o100_644, 0, RDWR | O_EXCL).await;
                close(&two, made.unwrap().1).await.unwrap();
            }
            rt::sleep(Duration::from_secs(10)).await;
            assert_eq!((names(&one, dir).await.len(), names(&two, dir).await.len()), (40, 40));
        });
    }
}

#[test]
fn removals_follow_a_moved_directory() {
    with_partitioned_cluster(|cluster| async move {
        let is_moved = |partition: PartitionId| partition != InodeId::ROOT.partition();
        let moved = || (0..PARTITIONS).map(PartitionId).filter(move |one| is_moved(*one));
        let (one, two) = (cluster.client().await, cluster.client().await);
        let dir = cluster.directory_in(&one, is_moved).await;
        for service in [SECOND, FIRST, SECOND] {
            rt::sleep(Duration::from_secs(70)).await;
            fill(&one, dir, 20).await;
            one.readdir(dir, 0, 1000, true).await.unwrap();
            for n in 0..20 {
                remove_is_async(&one, dir, &format!("f{n}")).await;
            }
            cluster.assign(moved(), service);
            assert_eq!(names(&two, dir).await, Vec::<String>::new());
            two.forget(dir, 1);
            cluster.wait_for_owners().await;
        }
    });
}

#[test]
fn a_lost_removal_is_reported_by_the_successor_session() {
    with_cluster(|cluster: std::rc::Rc<Cluster>| async move {
        let (mount, way) = cluster.mount().await;
        let dir = mount.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap().ino;
        for n in 0..8 {
            let name = format!("f{n}");
            let (_, file) = mount.create(ROOT, dir, name.as_bytes(), 0o100_644, 0, RDWR).await.unwrap();
            file.flush().await.unwrap();
            file.release().await;
        }
        let session = mount.current();
        way.cut();
        assert!(remove_is_async(&session, dir, "f0").await);
        cluster.evict(&mount);
        rt::sleep(Duration::from_secs(1)).await;
        way.restore();
        rt::sleep(Duration::from_secs(10)).await;
        // In the successor session, once.
        assert_eq!(mount.fsyncdir(dir).await.unwrap_err().errno, Errno::EIO);
        mount.fsyncdir(dir).await.unwrap();
        assert!(matches!(mount.find(ROOT, dir, b"f0").await.unwrap(), Found::Known(_)), "it is still there");
    });
}
