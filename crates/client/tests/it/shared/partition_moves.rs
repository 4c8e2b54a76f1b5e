//! Several metadata services, and partitions that move between them while clients hold leases.

use super::cluster::{Application, RDONLY, RDWR, ROOT};
use super::kernel_caches::Kernel;
use super::partitioned_cluster::{
    ClientWithManualMap, FIRST, PartitionedCluster, SECOND, with_partitioned_cluster,
};
use client::{Cancel, Client, Handle, Invalidate};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, InodeId, PartitionId};
use wire::{LockFamily, LockKind, LockOwner, LockRange, RenameMode};

/// The root directory's partition stays with the first service.
fn is_moved(partition: PartitionId) -> bool {
    partition != InodeId::ROOT.partition()
}

fn moved() -> impl Iterator<Item = PartitionId> {
    (0..super::partitioned_cluster::PARTITIONS).map(PartitionId).filter(|partition| is_moved(*partition))
}

async fn make(client: &Arc<Client>, dir: InodeId, name: &str) -> Arc<Handle> {
    client.create(ROOT, dir, name.as_bytes(), 0o100_644, 0, RDWR).await.unwrap().1
}

/// A client that gets maps only by hand. It has read what another one has written; both have the
/// file open.
struct Beside {
    one: ClientWithManualMap,
    two: Arc<Client>,
    file: Arc<Handle>,
    open: Arc<Handle>,
}

async fn beside(cluster: &PartitionedCluster) -> Beside {
    let one = cluster.client_with_manual_map().await;
    let two = cluster.client().await;
    let dir = cluster.directory_in(&two, is_moved).await;
    let file = make(&two, dir, "f").await;
    two.fill(&file, 0, 10, b'x').await;
    two.flush(&file).await.unwrap();
    let open = one.client.open(ROOT, file.ino(), RDONLY).await.unwrap();
    assert_eq!(one.client.read_all(&open).await, [b'x'; 10]);
    Beside { one, two, file, open }
}

#[test]
fn paths_cross_services() {
    with_partitioned_cluster(|cluster| async move {
        cluster.assign(moved(), SECOND);
        cluster.wait_for_owners().await;
        let (one, two) = (cluster.client().await, cluster.client().await);
        let dir = cluster.directory_in(&one, is_moved).await;
        let file = make(&one, dir, "f").await;
        one.fill(&file, 0, 100_000, b'x').await;
        // By name from the root, which the other service owns.
        let page = two.readdir(InodeId::ROOT, 0, 100, true).await.unwrap();
        let entry = page.entries.iter().find(|entry| entry.ino == dir).unwrap();
        let found = two.lookup(ROOT, InodeId::ROOT, &entry.name).await.unwrap();
        assert_eq!(found.ino, dir);
        assert!(found.cacheable && found.name_cacheable, "each service vouches for its own: {found:?}");
        assert_eq!(two.lookup(ROOT, dir, b"..").await.unwrap().ino, InodeId::ROOT);
        let seen = two.lookup(ROOT, dir, b"f").await.unwrap();
        assert_eq!(seen.size, 100_000, "what only another client knew");
        // From one service's partition to the other's.
        two.rename(ROOT, dir, b"f", InodeId::ROOT, b"g", RenameMode::Replace).await.unwrap();
        let renamed = one.lookup(ROOT, InodeId::ROOT, b"g").await.unwrap();
        assert_eq!((renamed.ino, renamed.size), (file.ino(), 100_000));
        one.fsync(&file, false).await.unwrap();
        one.syncfs().await.unwrap();
        one.release(file).await;
        two.unlink(ROOT, InodeId::ROOT, b"g").await.unwrap();
        assert_eq!(one.lookup(ROOT, InodeId::ROOT, b"g").await.unwrap_err().errno, Errno::ENOENT);
        one.shutdown().await.unwrap();
        two.shutdown().await.unwrap();
    });
}

#[test]
fn answers_of_the_old_owner_are_dropped() {
    with_partitioned_cluster(|cluster| async move {
        let (one, two) = (cluster.client().await, cluster.client().await);
        let kernel = Arc::new(Kernel::default());
        let face: Arc<dyn Invalidate> = kernel.clone();
        one.set_invalidator(Arc::downgrade(&face));
        let dir = cluster.directory_in(&one, is_moved).await;
        let (file, gone) = (make(&one, dir, "f").await, make(&one, dir, "gone").await);
        // Only this client knows the size.
        one.fill(&file, 0, 100_000, b'x').await;
        one.fill(&gone, 0, 100_000, b'z').await;
        one.unlink(ROOT, dir, b"gone").await.unwrap();
        kernel.dropped.lock().clear();

        cluster.assign(moved(), SECOND);
        cluster.wait_for_owners().await;
        let forgotten: Vec<InodeId> = kernel.dropped.lock().iter().map(|(ino, _)| *ino).collect();
        assert!(forgotten.contains(&file.ino()) && forgotten.contains(&dir), "{forgotten:?}");
        let seen = two.lookup(ROOT, dir, b"f").await.unwrap();
        assert_eq!(seen.size, 100_000);
        let other = two.open(ROOT, seen.ino, RDWR).await.unwrap();
        two.fill(&other, 100_000, 50_000, b'y').await;
        assert_eq!(one.read_all(&file).await.len(), 150_000);
        one.fill(&file, 0, 10, b'w').await;
        assert_eq!(two.read_all(&other).await[..11], *b"wwwwwwwwwwx");
        // An open file without a name stays.
        rt::sleep(Duration::from_secs(20)).await;
        assert_eq!(one.read_all(&gone).await.len(), 100_000);

        // And back.
        cluster.assign(moved(), FIRST);
        cluster.wait_for_owners().await;
        assert_eq!(one.read_all(&gone).await.len(), 100_000);
        two.fill(&other, 150_000, 10, b'v').await;
        assert_eq!(one.size(file.ino()).await, 150_010);
    });
}

#[test]
fn requests_go_on_at_the_service_that_takes_over_from_a_dead_one() {
    with_partitioned_cluster(|cluster| async move {
        cluster.assign(moved(), SECOND);
        cluster.wait_for_owners().await;
        let one = cluster.client_with_manual_map().await;
        let two = cluster.client().await;
        let dir = cluster.directory_in(&one.client, is_moved).await;
        let file = make(&one.client, dir, "f").await;
        one.client.fill(&file, 0, 100_000, b'x').await;
        one.cut(SECOND);
        let made = Rc::new(RefCell::new(None));
        let (client, told) = (one.client.clone(), made.clone());
        rt::spawn(async move {
            let root = client.create(ROOT, dir, b"late", 0o100_644, 0, RDWR).await;
            *told.borrow_mut() = Some(root.map(|(known, _)| known.ino));
        });
        rt::sleep(Duration::from_secs(2)).await;
        assert!(made.borrow().is_none(), "nobody answers");
        cluster.kill(SECOND);
        one.update_map(&cluster);
        cluster.wait_for_owners().await;
        while made.borrow().is_none() {
            rt::sleep(Duration::from_millis(10)).await;
        }
        let late = made.borrow_mut().take().unwrap().unwrap();
        assert_eq!(two.lookup(ROOT, dir, b"late").await.unwrap().ino, late);
        assert_eq!(two.lookup(ROOT, dir, b"f").await.unwrap().size, 100_000);
        one.client.fill(&file, 100_000, 10, b'y').await;
        assert_eq!(two.size(file.ino()).await, 100_010);
    });
}

/// The old service is alive and reports that; the client can't reach the new one, and gets no map.
#[test]
fn a_client_that_does_not_follow_is_evicted_first() {
    with_partitioned_cluster(|cluster| async move {
        let Beside { one, two, file, open } = beside(&cluster).await;
        // Its background tasks ask the second service for recalls, too.
        rt::sleep(Duration::from_secs(1)).await;
        one.cut(SECOND);
        cluster.assign(moved(), SECOND);
        let written = Rc::new(RefCell::new(false));
        let (client, done) = (two.clone(), written.clone());
        rt::spawn(async move {
            client.fill(&file, 0, 10, b'y').await;
            *done.borrow_mut() = true;
        });
        let mut last = None;
        while !*written.borrow() {
            last = Some((one.client.try_read_all(&open).await, *written.borrow()));
            rt::sleep(Duration::from_millis(100)).await;
        }
        let Some((seen, _)) = last else { panic!("it was let in at once") };
        assert!(seen.as_ref().is_err_or_x(), "before the write: {seen:?}");
        let after = one.client.try_read_all(&open).await;
        assert_eq!(after.unwrap_err().errno, Errno::ESTALE);
    });
}

/// The old service is alive and reachable, but management doesn't count on it any more: so it
/// doesn't extend leases.
#[test]
fn a_cut_off_service_extends_no_leases() {
    with_partitioned_cluster(|cluster| async move {
        let Beside { one, two, file, open } = beside(&cluster).await;
        rt::sleep(Duration::from_secs(1)).await;
        one.cut(SECOND);
        cluster.cut_off_from_management(FIRST);
        two.fill(&file, 0, 10, b'y').await;
        let seen = Rc::new(RefCell::new(None));
        let (client, told) = (one.client.clone(), seen.clone());
        rt::spawn(async move {
            let read = client.try_read_all(&open).await;
            *told.borrow_mut() = Some(read);
        });
        rt::sleep(Duration::from_secs(1)).await;
        assert!(seen.borrow().as_ref().is_none_or(Result::is_err), "{:?}", seen.borrow());
    });
}

/// The service was suspended, or cut off, for so long that another one had its partitions. It gets
/// them back before it can have noticed.
#[test]
fn a_returning_service_serves_no_stale_state() {
    with_partitioned_cluster(|cluster| async move {
        let client = cluster.client().await;
        let dir = cluster.directory_in(&client, is_moved).await;
        make(&client, dir, "f").await;
        assert!(client.lookup(ROOT, dir, b"f").await.is_ok());
        cluster.cut_off_from_management(FIRST);
        cluster.wait_for_owners().await;
        client.unlink(ROOT, dir, b"f").await.unwrap();
        make(&client, dir, "g").await;
        cluster.reconnect_to_management(FIRST);
        let found = client.lookup(ROOT, dir, b"f").await;
        assert_eq!(found.unwrap_err().errno, Errno::ENOENT);
        client.lookup(ROOT, dir, b"g").await.unwrap();
    });
}

/// A recall was in progress at the service that died.
#[test]
fn a_recall_of_a_dead_service_blocks_no_client() {
    with_partitioned_cluster(|cluster| async move {
        cluster.assign(moved(), SECOND);
        cluster.wait_for_owners().await;
        let one = cluster.client_with_manual_map().await;
        let two = cluster.client().await;
        let dir = cluster.directory_in(&two, is_moved).await;
        let file = make(&one.client, dir, "f").await;
        one.client.fill(&file, 0, 100_000, b'x').await;
        // Triggers the recall; the acknowledgement is lost.
        let (client, ino) = (two.clone(), file.ino());
        rt::spawn(async move { _ = client.getattr(ino).await });
        rt::sleep(Duration::from_millis(2)).await;
        one.cut(SECOND);
        rt::sleep(Duration::from_secs(1)).await;
        cluster.kill(SECOND);
        one.update_map(&cluster);
        cluster.wait_for_owners().await;
        assert_eq!(one.client.read_all(&file).await.len(), 100_000);
    });
}

trait Seen {
    fn is_err_or_x(&self) -> bool;
}

impl Seen for Result<&Vec<u8>, &types::Error> {
    fn is_err_or_x(&self) -> bool {
        self.is_err() || self.is_ok_and(|bytes| bytes.iter().all(|byte| *byte == b'x'))
    }
}

/// The service that takes over may get the release of a lock before the lock: many locks are
/// reclaimed by several requests.
#[test]
fn a_lock_released_during_a_partition_move_stays_released() {
    const LOCKS: u64 = 10_000;
    const GIVEN_BACK: u64 = 5_000;
    with_partitioned_cluster(|cluster| async move {
        let (one, two) = (cluster.client().await, cluster.client().await);
        let dir = cluster.directory_in(&one, is_moved).await;
        let ino = make(&one, dir, "f").await.ino();
        let byte = |number: u64| LockRange { start: number, last: number };
        let lock = async |client: &Arc<Client>, owner, number| {
            let (kind, none) = (LockKind::Exclusive, Cancel::default());
            client.lock(ino, LockFamily::Posix, LockOwner(owner), 7, kind, byte(number), false, &none).await
        };
        for number in 0..LOCKS {
            lock(&one, number, number).await.unwrap();
        }
        cluster.assign(moved(), SECOND);
        let given_back = (0..GIVEN_BACK).map(|number| {
            let (one, number) = (one.clone(), number * (LOCKS / GIVEN_BACK));
            async move {
                // About when the locks are reclaimed.
                rt::sleep(Duration::from_micros(30_000 + rt::random_u64() % 50_000)).await;
                one.unlock(ino, LockFamily::Posix, LockOwner(number), byte(number)).await.unwrap();
                number
            }
        });
        let given_back = rt::join_all(given_back.collect()).await;
        cluster.wait_for_owners().await;
        rt::sleep(Duration::from_secs(2)).await;
        for number in given_back {
            lock(&two, LOCKS, number).await.unwrap();
        }
        lock(&two, LOCKS, 1).await.unwrap_err();
    });
}
