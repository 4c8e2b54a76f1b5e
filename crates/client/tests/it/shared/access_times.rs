//! Access times, as with the mount option `relatime`.

use super::cluster::{Application, CHUNK, RDONLY, ROOT, with_cluster};
use client::{Client, Handle, Invalidate, ReadOptions};
use rt::IoBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{ByteRange, InodeId, SetAttr, SetTime, Timestamp};

/// Longer than accesses wait for their report.
const REPORTED: Duration = Duration::from_secs(25);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A mount, with `noatime` or without.
struct Mount(AtomicBool);

impl Invalidate for Mount {
    fn drop_cached(&self, _: InodeId, _: Vec<ByteRange>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async {})
    }

    fn updates_atime(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn mount(client: &Client) -> Arc<Mount> {
    let mount = Arc::new(Mount(AtomicBool::new(true)));
    let face: Arc<dyn Invalidate> = mount.clone();
    client.set_invalidator(Arc::downgrade(&face));
    mount
}

async fn read(client: &Client, file: &Arc<Handle>, how: ReadOptions) {
    client.read(file, 0, IoBuf::alloc(4096), how).await.unwrap();
}

async fn atime(client: &Client, ino: InodeId) -> Timestamp {
    client.getattr(ino).await.unwrap().atime
}

#[test]
fn the_first_read_after_a_change_updates_atime_without_a_request() {
    with_cluster(|cluster| async move {
        let [one, other] = cluster.clients().await;
        let _mount = mount(&one);
        for len in [100, 2 * CHUNK] {
            let file = one.create_file(&format!("f{len}")).await;
            let ino = file.ino();
            one.fill(&file, 0, len, b'x').await;
            one.release(file).await;
            let before = one.getattr(ino).await.unwrap();
            let file = one.open(ROOT, ino, RDONLY).await.unwrap();
            rt::sleep(Duration::from_secs(1)).await;
            read(&one, &file, ReadOptions { no_atime: true, ..ReadOptions::default() }).await;
            assert_eq!(atime(&one, ino).await, before.atime, "O_NOATIME");
            let requests = cluster.requests();
            for _ in 0..100 {
                read(&one, &file, ReadOptions::default()).await;
            }
            assert_eq!(cluster.requests(), requests);
            let first = atime(&one, ino).await;
            assert!(first > before.atime, "{first:?} {before:?}");
            rt::sleep(REPORTED).await;
            read(&one, &file, ReadOptions::default()).await;
            for client in [&one, &other] {
                let now = client.getattr(ino).await.unwrap();
                assert_eq!((now.atime, now.mtime, now.ctime), (first, before.mtime, before.ctime));
            }
            if len == 100 {
                rt::sleep(DAY).await;
                read(&one, &file, ReadOptions::default()).await;
                assert!(atime(&one, ino).await > first, "a day later");
            }
            one.release(file).await;
        }
    });
}

/// The service gets the time of a read some time later, and returns the earlier one until then.
#[test]
fn a_file_that_is_opened_again_was_read_already() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let _mount = mount(&one);
        let file = one.create_file("f").await;
        let ino = file.ino();
        one.fill(&file, 0, 100, b'x').await;
        one.release(file).await;
        let open_and_read = async || {
            rt::sleep(Duration::from_secs(1)).await;
            let file = one.open(ROOT, ino, RDONLY).await.unwrap();
            read(&one, &file, ReadOptions::default()).await;
            one.release(file).await;
            atime(&one, ino).await
        };
        let first = open_and_read().await;
        for _ in 0..2 {
            assert_eq!(open_and_read().await, first);
        }
    });
}

/// Applications detect by it whether a file that they have open has new content.
#[test]
fn the_first_read_after_each_change_shows() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let _mount = mount(&one);
        let file = one.create_file("f").await;
        let mut last = Timestamp::default();
        // Inline at first, then in chunks; some of it is reported before the read.
        let changes = [(100, false), (200, false), (2 * CHUNK, false), (2 * CHUNK, true), (2 * CHUNK, false)];
        for (step, (len, is_synced)) in changes.into_iter().enumerate() {
            one.fill(&file, 0, len, b'x').await;
            if is_synced {
                one.fsync(&file, false).await.unwrap();
            }
            rt::sleep(Duration::from_secs(1)).await;
            read(&one, &file, ReadOptions::default()).await;
            let first = atime(&one, file.ino()).await;
            assert!(first > last, "change {step}");
            rt::sleep(Duration::from_millis(100)).await;
            read(&one, &file, ReadOptions::default()).await;
            last = atime(&one, file.ino()).await;
            assert_eq!(last, first, "change {step}: the second read");
        }
        one.set_size(file.ino(), 100).await;
        rt::sleep(Duration::from_secs(1)).await;
        read(&one, &file, ReadOptions::default()).await;
        assert!(atime(&one, file.ino()).await > last, "the file was cut");
        one.release(file).await;
    });
}

#[test]
fn the_first_read_after_a_change_that_was_reported_shows_again() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let _mount = mount(&one);
        for len in [100, 2 * CHUNK] {
            let file = one.create_file(&format!("f{len}")).await;
            let mut before = Timestamp::default();
            for turn in 0..3 {
                one.fill(&file, 0, len, b'x').await;
                one.fsync(&file, false).await.unwrap();
                rt::sleep(Duration::from_secs(1)).await;
                read(&one, &file, ReadOptions::default()).await;
                let now = atime(&one, file.ino()).await;
                assert!(now > before, "turn {turn} of {len} bytes");
                before = now;
                rt::sleep(Duration::from_secs(1)).await;
            }
            one.release(file).await;
        }
    });
}

#[test]
fn an_explicit_atime_is_preserved() {
    with_cluster(|cluster| async move {
        let [one, other] = cluster.clients().await;
        let _mount = mount(&one);
        let file = one.create_file("f").await;
        let ino = file.ino();
        one.fill(&file, 0, 100, b'x').await;
        let given = Timestamp::new(1000, 0);
        for (setter, name) in [(&one, "the reader"), (&other, "another client")] {
            rt::sleep(Duration::from_secs(1)).await;
            read(&one, &file, ReadOptions::default()).await;
            rt::sleep(Duration::from_secs(1)).await;
            let set = SetAttr { atime: Some(SetTime::At(given)), ..SetAttr::default() };
            setter.setattr(ROOT, ino, set, None).await.unwrap();
            assert_eq!(atime(setter, ino).await, given, "set by {name} just now");
            rt::sleep(REPORTED).await;
            assert_eq!(atime(&other, ino).await, given, "set by {name}");
            assert_eq!(atime(&one, ino).await, given, "set by {name}");
        }
        one.release(file).await;
    });
}

#[test]
fn a_mount_with_noatime_changes_none() {
    with_cluster(|cluster| async move {
        let [one, other] = cluster.clients().await;
        let mount = mount(&one);
        mount.0.store(false, Ordering::Relaxed);
        let file = one.create_file("f").await;
        one.fill(&file, 0, 100, b'x').await;
        let before = atime(&one, file.ino()).await;
        rt::sleep(Duration::from_secs(1)).await;
        read(&one, &file, ReadOptions::default()).await;
        rt::sleep(REPORTED).await;
        assert_eq!(atime(&one, file.ino()).await, before);
        assert_eq!(atime(&other, file.ino()).await, before);
        // A remount.
        mount.0.store(true, Ordering::Relaxed);
        read(&one, &file, ReadOptions::default()).await;
        assert!(atime(&one, file.ino()).await > before);
        one.release(file).await;
    });
}
