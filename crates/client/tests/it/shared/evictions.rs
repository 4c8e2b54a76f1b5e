//! Mounts whose session the cluster has ended, and that continue with a successor.

use super::cluster::{
    Application, CHUNK, Cluster, RDONLY, RDWR, ROOT, run_lengths, with_cluster, with_cluster_of_seed,
};
use super::kernel_caches::Kernel;
use client::{Caching, Cancel, File, Invalidate, ReadOptions, SessionFailover, WriteOptions};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{ByteRange, Errno, InodeId, Result, SetAttr};
use wire::{LockFamily, LockKind, LockOwner, LockRange};

const O_EXCL: u32 = 0o200;
const WHOLE: LockRange = LockRange { start: 0, last: u64::MAX };

async fn make(mount: &SessionFailover, name: &str) -> File {
    mount.create(ROOT, InodeId::ROOT, name.as_bytes(), 0o100_644, 0, RDWR).await.unwrap().1
}

async fn open(mount: &SessionFailover, name: &str, flags: u32) -> Result<File> {
    let found = mount.lookup(ROOT, InodeId::ROOT, name.as_bytes()).await?;
    mount.forget(found.ino, 1);
    mount.open(ROOT, found.ino, flags).await
}

async fn put(file: &File, offset: usize, len: usize, byte: u8) -> Result<usize> {
    file.write(offset as u64, IoBuf::from_slice(&vec![byte; len]), WriteOptions::default()).await
}

async fn bytes(file: &File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let buf = IoBuf::alloc(256 * 1024);
        match file.read(bytes.len() as u64, buf.clone(), ReadOptions::default()).await? {
            0 => return Ok(bytes),
            got => bytes.extend_from_slice(&buf.as_slice()[..got]),
        }
    }
}

async fn lock(file: &File, kind: LockKind, wait: bool) -> Result<()> {
    file.lock(LockFamily::Posix, LockOwner(7), 1, kind, WHOLE, wait, &Cancel::default()).await
}

#[track_caller]
fn fails<T: std::fmt::Debug>(outcome: Result<T>) {
    assert_eq!(outcome.unwrap_err().errno, Errno::EIO);
}

#[test]
fn an_evicted_mount_continues_and_its_open_files_fail() {
    with_cluster(|cluster| async move {
        let (mount, _) = cluster.mount().await;
        let other = cluster.client().await;
        let file = make(&mount, "f").await;
        put(&file, 0, 2 * CHUNK, b'x').await.unwrap();
        let dir = mount.mkdir(ROOT, InodeId::ROOT, b"dir", 0o755, 0).await.unwrap();
        let (quiet, synced) = (make(&mount, "quiet").await, make(&mount, "synced").await);
        put(&synced, 0, 10, b's').await.unwrap();
        synced.fsync(false).await.unwrap();
        let before = mount.history();
        cluster.replace_session(&mount).await;
        let lineage = mount.history();
        assert_ne!(lineage.session, before.session);
        let last = lineage.last.unwrap();
        assert_eq!((last.session, last.files, lineage.files_of_ended_sessions), (before.session, 3, 3));
        assert_eq!(lineage.missing, None);

        assert!(file.is_lost() && mount.is_open_in_ended_session(file.ino()));
        fails(bytes(&file).await);
        fails(put(&file, 0, 1, b'y').await);
        fails(file.fsync(false).await);
        fails(file.fallocate(ROOT, 0, ByteRange::at(0, 10)).await);
        fails(file.lseek(0, 3).await);
        fails(file.setattr(ROOT, SetAttr::default(), Some(0)).await);
        fails(lock(&file, LockKind::Shared, false).await);
        fails(file.copy_file_range(ROOT, 0, (&quiet, 0), 10).await);

        // Directories that the mount knows remain usable, and so do files that are opened now.
        let made = mount.create(ROOT, dir.ino, b"inside", 0o100_644, 0, RDWR).await.unwrap().1;
        put(&made, 0, 10, b'i').await.unwrap();
        fails(file.copy_file_range(ROOT, 0, (&made, 0), 10).await);
        fails(made.copy_file_range(ROOT, 0, (&file, 0), 10).await);
        let again = open(&mount, "f", RDWR).await.unwrap();
        assert_eq!(run_lengths(&bytes(&again).await.unwrap()), [(b'x', 2 * CHUNK)]);
        put(&again, 0, 10, b'z').await.unwrap();
        let elsewhere = other.open_named("f", RDONLY).await;
        assert_eq!(run_lengths(&other.read_all(&elsewhere).await), [(b'z', 10), (b'x', 2 * CHUNK - 10)]);

        // Exactly one close reports that writes may be lost, if there were any.
        fails(file.flush().await);
        file.flush().await.unwrap();
        quiet.flush().await.unwrap();
        synced.flush().await.unwrap();
        for old in [&file, &quiet, &synced] {
            old.release().await;
        }
        assert_eq!(mount.history().files_of_ended_sessions, 0);
        drop((file, quiet, synced));
        assert!(!mount.is_open_in_ended_session(again.ino()));
        again.flush().await.unwrap();
        again.release().await;
        made.release().await;
        mount.shutdown().await.unwrap();
    });
}

/// As after a power cut that took the last half second of an unsynced store.
#[test]
fn a_lost_lock_makes_the_file_fail_through_which_it_was_taken_until_it_is_closed() {
    with_cluster(|cluster| async move {
        let (mount, other) = (cluster.mount().await.0, cluster.client().await);
        let locker = make(&mount, "f").await;
        put(&locker, 0, CHUNK, b'x').await.unwrap();
        let ino = locker.ino();
        let [flocker, beside] =
            [open(&mount, "f", RDWR).await.unwrap(), open(&mount, "f", RDWR).await.unwrap()];
        let flock = async |file: &File, owner, wait| {
            let (space, kind) = (LockFamily::Flock, LockKind::Exclusive);
            file.lock(space, LockOwner(owner), 1, kind, WHOLE, wait, &Cancel::default()).await
        };
        lock(&locker, LockKind::Exclusive, false).await.unwrap();
        flock(&flocker, 8, false).await.unwrap();
        cluster.restart_metadata().await;
        lock(&locker, LockKind::Exclusive, false).await.unwrap();
        cluster.restart_metadata_without(&mount).await;
        let cancel = Cancel::default();
        for space in [LockFamily::Posix, LockFamily::Flock] {
            let (owner, kind) = (LockOwner(9), LockKind::Exclusive);
            other.lock(ino, space, owner, 2, kind, WHOLE, true, &cancel).await.unwrap();
        }
        while !locker.has_lost_lock() || !flocker.has_lost_lock() {
            rt::sleep(Duration::from_millis(1)).await;
        }
        for file in [&locker, &flocker] {
            fails(bytes(file).await);
            fails(put(file, 0, 1, b'y').await);
            fails(file.fsync(false).await);
            fails(file.fallocate(ROOT, 0, ByteRange::at(0, 10)).await);
            fails(file.setattr(ROOT, SetAttr::default(), Some(0)).await);
            fails(file.copy_file_range(ROOT, 0, (&beside, 0), 10).await);
            fails(beside.copy_file_range(ROOT, 0, (file, 0), 10).await);
            fails(lock(file, LockKind::Exclusive, false).await);
            fails(file.unlock(LockFamily::Posix, LockOwner(7), WHOLE).await);
        }
        assert_eq!(mount.history().replacements, 0);
        // Another open file of the same mount continues to work, and its writes are there.
        assert_eq!(run_lengths(&bytes(&beside).await.unwrap()), [(b'x', CHUNK)]);
        put(&beside, 0, 1, b'z').await.unwrap();
        for file in [&locker, &flocker] {
            file.flush().await.unwrap();
            mount.drop_locks(ino, LockOwner(7), WHOLE).await.unwrap();
            file.drop_locks(LockFamily::Flock, LockOwner(8), WHOLE).await.unwrap();
            file.release().await;
        }
        let again = open(&mount, "f", RDWR).await.unwrap();
        assert_eq!(lock(&again, LockKind::Exclusive, false).await.unwrap_err().errno, Errno::EAGAIN);
        other.unlock(ino, LockFamily::Posix, LockOwner(9), WHOLE).await.unwrap();
        lock(&again, LockKind::Exclusive, false).await.unwrap();
        put(&again, 0, 1, b'a').await.unwrap();
        again.release().await;
        beside.release().await;
    });
}

#[test]
fn a_cut_off_mount_recovers_and_sees_changes_of_others() {
    with_cluster(|cluster| async move {
        let (mount, way) = cluster.mount().await;
        let kernel = Arc::new(Kernel::default());
        let face: Arc<dyn Invalidate> = kernel.clone();
        mount.current().set_invalidator(Arc::downgrade(&face));
        let file = make(&mount, "f").await;
        put(&file, 0, CHUNK, b'x').await.unwrap();
        let known = mount.getattr(file.ino()).await.unwrap();
        assert!(known.cacheable);
        let other = cluster.client().await;
        way.cut();
        let theirs = other.open_named("f", RDWR).await;
        other.fill(&theirs, 0, 10, b'y').await;
        kernel.dropped.lock().clear();
        // Sent while the connection is cut, answered in the successor session.
        let sizes = Rc::new(RefCell::new(None));
        let (asking, told, ino) = (mount.clone(), sizes.clone(), file.ino());
        rt::spawn(async move {
            let asked = asking.getattr(ino).await.map(|known| known.size);
            *told.borrow_mut() = Some(asked);
        });
        rt::sleep(Duration::from_secs(1)).await;
        assert!(sizes.borrow().is_none());
        way.restore();
        while mount.history().replacements == 0 || sizes.borrow().is_none() {
            rt::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(sizes.borrow_mut().take().unwrap().unwrap(), CHUNK as u64);
        assert!(kernel.dropped.lock().iter().any(|(ino, _)| *ino == file.ino()), "the kernel forgets");
        fails(bytes(&file).await);
        let again = open(&mount, "f", RDWR).await.unwrap();
        assert_eq!(run_lengths(&bytes(&again).await.unwrap()), [(b'y', 10), (b'x', CHUNK - 10)]);
        put(&again, 0, 5, b'z').await.unwrap();
        assert_eq!(run_lengths(&other.read_all(&theirs).await)[0], (b'z', 5));
        // The successor session notifies the same kernel.
        rt::sleep(Duration::from_secs(2)).await;
        assert!(mount.getattr(InodeId::ROOT).await.unwrap().cacheable);
        kernel.dropped.lock().clear();
        other.create_file("new").await;
        assert!(kernel.dropped.lock().iter().any(|(ino, _)| *ino == InodeId::ROOT));
        again.release().await;
    });
}

#[test]
fn locks_of_the_ended_session_are_lost() {
    with_cluster(|cluster| async move {
        let (mount, _) = cluster.mount().await;
        let other = cluster.client().await;
        let file = make(&mount, "f").await;
        lock(&file, LockKind::Exclusive, false).await.unwrap();
        let theirs = other.open_named("f", RDWR).await;
        // Another file whose lock another client holds, and for which this mount waits.
        let (wanted, held) = (make(&mount, "g").await, other.open_named("g", RDWR).await);
        let take = async |ino| {
            let cancel = Cancel::default();
            let (space, kind) = (LockFamily::Posix, LockKind::Exclusive);
            other.lock(ino, space, LockOwner(9), 1, kind, WHOLE, false, &cancel).await
        };
        take(held.ino()).await.unwrap();
        let waited = Rc::new(Cell::new(None));
        let told = waited.clone();
        rt::spawn(async move {
            let outcome = lock(&wanted, LockKind::Exclusive, true).await;
            told.set(Some(outcome.map_err(|error| error.errno)));
        });
        rt::sleep(Duration::from_millis(100)).await;
        assert!(waited.get().is_none());
        cluster.replace_session(&mount).await;
        rt::sleep(Duration::from_millis(100)).await;
        assert_eq!(waited.get(), Some(Err(Errno::EIO)));

        take(theirs.ino()).await.unwrap();
        // The close of the old descriptor doesn't release a lock that another client holds by now.
        fails(file.unlock(LockFamily::Posix, LockOwner(7), WHOLE).await);
        file.drop_locks(LockFamily::Posix, LockOwner(7), WHOLE).await.unwrap();
        file.release().await;
        let again = open(&mount, "f", RDWR).await.unwrap();
        assert_eq!(lock(&again, LockKind::Shared, false).await.unwrap_err().errno, Errno::EAGAIN);
        other.unlock(theirs.ino(), LockFamily::Posix, LockOwner(9), WHOLE).await.unwrap();
        lock(&again, LockKind::Exclusive, false).await.unwrap();
        assert_eq!(take(theirs.ino()).await.unwrap_err().errno, Errno::EAGAIN);
        // After a restart, the session reclaims its current locks.
        cluster.restart_metadata().await;
        rt::sleep(Duration::from_secs(20)).await;
        assert_eq!(take(theirs.ino()).await.unwrap_err().errno, Errno::EAGAIN);
        mount.drop_locks(again.ino(), LockOwner(7), WHOLE).await.unwrap();
        take(theirs.ino()).await.unwrap();
    });
}

#[test]
fn a_refused_mount_reports_that_and_recovers() {
    with_cluster(|cluster| async move {
        let refused = Arc::new(AtomicBool::new(false));
        let (mount, _) = cluster.mount_with_refusals(refused.clone()).await;
        let file = make(&mount, "f").await;
        refused.store(true, Ordering::Relaxed);
        cluster.evict(&mount);
        rt::sleep(Duration::from_secs(5)).await;
        let before_ns = rt::monotonic_ns();
        let error = mount.getattr(file.ino()).await.unwrap_err();
        assert_eq!((error.errno, &*error.message), (Errno::EACCES, "not from this network"));
        assert_eq!(mount.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap_err().errno, Errno::EACCES);
        assert!(rt::monotonic_ns() - before_ns < 1_000_000_000, "nobody waits for what is refused");
        assert!(mount.history().missing.unwrap().contains("not from this network"));
        fails(bytes(&file).await);
        refused.store(false, Ordering::Relaxed);
        rt::sleep(Duration::from_secs(31)).await;
        assert_eq!(mount.history().replacements, 1);
        assert!(bytes(&open(&mount, "f", RDONLY).await.unwrap()).await.unwrap().is_empty());
        // Shutdown of a mount without a session.
        refused.store(true, Ordering::Relaxed);
        cluster.evict(&mount);
        rt::sleep(Duration::from_secs(1)).await;
        mount.shutdown().await.unwrap();
        assert_eq!(mount.getattr(file.ino()).await.unwrap_err().errno, Errno::ESTALE);
    });
}

#[test]
fn kernel_references_survive_a_failover() {
    with_cluster(|cluster| async move {
        let (mount, _) = cluster.mount().await;
        let other = cluster.client().await;
        let file = make(&mount, "f").await;
        let (ino, old) = (file.ino(), mount.current());
        let dir = mount.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap().ino;
        cluster.replace_session(&mount).await;
        file.release().await;
        assert_eq!(mount.errno_for_missing(ROOT, dir), Errno::ENOENT, "as in any directory that is gone");
        let removed = mount.removed_directory(dir).unwrap();
        assert_eq!((removed.ino, removed.nlink), (dir, 0), "what the session before was told");
        assert_eq!(mount.errno_for_missing(ROOT, ino), Errno::ESTALE);
        mount.forget(dir, 1);
        let again = mount.open(ROOT, ino, RDWR).await.unwrap();
        // A reference from a late answer of the old session counts as well.
        old.remember(&mount.getattr(ino).await.unwrap().attr);
        other.unlink(ROOT, InodeId::ROOT, b"f").await.unwrap();
        put(&again, 0, CHUNK, b'x').await.unwrap();
        again.release().await;
        mount.forget(ino, 1);
        old.forget(ino, 1);
        rt::sleep(Duration::from_secs(2)).await;
        assert_eq!(mount.getattr(ino).await.unwrap_err().errno, Errno::ESTALE, "nobody uses it any more");
        assert_eq!(mount.history().replacements, 1, "that an inode is gone ends no session");
        for target in 1..=3 {
            assert!(!cluster.chunk_files(target).await.iter().any(|name| name.owner() == ino));
        }
    });
}

/// See `a_file_that_is_being_changed_is_read_past_the_page_cache`.
#[test]
fn a_successor_session_knows_which_files_are_being_changed() {
    with_cluster(|cluster| async move {
        let (mount, _) = cluster.mount().await;
        let other = cluster.client().await;
        let writer = other.create_file("log").await;
        rt::sleep(Duration::from_millis(500)).await;
        let found = mount.lookup(ROOT, InodeId::ROOT, b"log").await.unwrap();
        let reader = mount.open(ROOT, found.ino, RDONLY).await.unwrap();
        assert_eq!(reader.caching(), Caching::Cached);
        other.append(&writer, b"x").await;
        reader.release().await;
        rt::sleep(Duration::from_millis(300)).await;
        cluster.replace_session(&mount).await;
        let reader = mount.open(ROOT, found.ino, RDONLY).await.unwrap();
        assert_eq!(reader.caching(), Caching::Direct, "another mount changes it");
        reader.release().await;
        rt::sleep(Duration::from_secs(2)).await;
        let reader = mount.open(ROOT, found.ino, RDONLY).await.unwrap();
        assert_eq!(reader.caching(), Caching::Cached);
    });
}

#[test]
fn repeated_evictions_lose_no_synced_data() {
    for seed in 1..=6 {
        with_cluster_of_seed(seed, |cluster| async move { evict_under_load(&cluster).await });
    }
}

/// Two threads of a mount write blocks of their own files and read them back, and create names,
/// while their session is ended again and again.
async fn evict_under_load(cluster: &Rc<Cluster>) {
    const ROUNDS: u32 = 12;
    let (mount, _) = cluster.mount().await;
    let (stop, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    for number in 0..2 {
        let (mount, stop, done) = (mount.clone(), stop.clone(), done.clone());
        rt::spawn(async move {
            let mut turns = 0;
            while !stop.get() {
                write_and_check(&mount, number, turns).await;
                turns += 1;
            }
            assert!(turns > 10, "{turns}");
            done.set(done.get() + 1);
        });
    }
    for _ in 0..ROUNDS {
        rt::sleep(Duration::from_micros(100_000 + rt::random_u64() % 200_000)).await;
        cluster.replace_session(&mount).await;
    }
    stop.set(true);
    while done.get() < 2 {
        rt::sleep(Duration::from_millis(10)).await;
    }
    // A create that is pending when its session ends fails as soon as it is sent.
    for _ in 0..100 {
        if mount.history().files_of_ended_sessions == 0 {
            break;
        }
        rt::sleep(Duration::from_millis(1)).await;
    }
    let lineage = mount.history();
    assert_eq!((lineage.replacements, lineage.files_of_ended_sessions), (u64::from(ROUNDS), 0));
    // Another client sees the same as the mount.
    let other = cluster.client().await;
    for number in 0..2 {
        let name = format!("f{number}");
        let ours = bytes(&open(&mount, &name, RDONLY).await.unwrap()).await.unwrap();
        let theirs = other.read_all(&other.open_named(&name, RDONLY).await).await;
        assert!(ours == theirs, "{:?} {:?}", run_lengths(&ours), run_lengths(&theirs));
    }
    mount.shutdown().await.unwrap();
}

/// Rewrites a file with its own byte, and checks that it can be read once it is synced.
async fn write_and_check(mount: &SessionFailover, number: u32, turn: u32) {
    let (name, byte) = (format!("f{number}"), b'a' + (turn % 26) as u8);
    let written: Result<()> = async {
        let (_, file) = mount.create(ROOT, InodeId::ROOT, name.as_bytes(), 0o100_644, 0, RDWR).await?;
        let written = async {
            put(&file, 0, 2 * CHUNK, byte).await?;
            file.fsync(false).await
        };
        let written = written.await;
        let flushed = file.flush().await;
        file.release().await;
        mount.forget(file.ino(), 1);
        written.and(flushed)
    }
    .await;
    if let Err(error) = &written {
        assert_eq!(error.errno, Errno::EIO, "{error}");
    }
    let looked: Result<Vec<u8>> = async {
        let file = open(mount, &name, RDONLY).await?;
        let bytes = bytes(&file).await;
        file.release().await;
        bytes
    }
    .await;
    match looked {
        Ok(bytes) if written.is_ok() => assert_eq!(run_lengths(&bytes), [(byte, 2 * CHUNK)]),
        // With an uncertain outcome it may be any part of it.
        Ok(bytes) => assert!(bytes.len() <= 2 * CHUNK),
        Err(error) => assert!(matches!(error.errno, Errno::EIO | Errno::ENOENT), "{error}"),
    }
    let made = mount
        .create(ROOT, InodeId::ROOT, format!("n{number}-{turn}").as_bytes(), 0o100_644, 0, O_EXCL | RDWR)
        .await;
    match made {
        Ok((known, file)) => {
            file.release().await;
            mount.forget(known.ino, 1);
        }
        // Never EEXIST: no create is executed twice.
        Err(error) => assert_eq!(error.errno, Errno::EIO, "{error}"),
    }
}
