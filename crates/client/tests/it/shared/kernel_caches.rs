//! Notifications to a kernel with caches, and their timing.

use super::cluster::{Application, CHUNK, RDONLY, RDWR, ROOT, run_lengths, with_cluster};
use client::{Caching, Invalidate, ReadOptions, WriteOptions};
use parking_lot::Mutex;
use rt::IoBuf;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{ByteRange, InodeId};

/// A kernel that drops inodes after a delay.
#[derive(Default)]
pub(crate) struct Kernel {
    /// Inodes that were dropped, and when.
    pub(crate) dropped: Mutex<Vec<(InodeId, u64)>>,
    /// The ranges that were excluded each time.
    excluded: Mutex<Vec<Vec<ByteRange>>>,
    /// A page of this inode that is being filled; drops of the inode wait for it.
    filling: Mutex<Option<(InodeId, Arc<rt::sync::Event>)>>,
    /// Inodes that it never drops.
    pub(crate) stuck: Mutex<BTreeSet<InodeId>>,
    /// All notifying threads wait for that page.
    is_all_busy: AtomicBool,
}

impl Kernel {
    /// Begins to fill a page of an inode, until the event is set.
    pub(crate) fn begin_filling(&self, ino: InodeId) -> Arc<rt::sync::Event> {
        let filled = Arc::new(rt::sync::Event::new());
        *self.filling.lock() = Some((ino, filled.clone()));
        filled
    }
}

impl Invalidate for Kernel {
    fn drop_cached(&self, ino: InodeId, except: Vec<ByteRange>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        self.excluded.lock().push(except);
        Box::pin(async move {
            let (filling, is_all_busy) = (self.filling.lock().clone(), self.is_all_busy.load(Relaxed));
            if let Some((_, filled)) = filling.filter(|(filling, _)| is_all_busy || *filling == ino) {
                filled.wait().await;
            }
            if self.stuck.lock().contains(&ino) {
                std::future::pending::<()>().await;
            }
            rt::sleep(Duration::from_millis(5)).await;
            self.dropped.lock().push((ino, rt::monotonic_ns()));
        })
    }
}

#[test]
fn a_change_waits_until_other_kernels_have_dropped_their_caches() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let kernel = Arc::new(Kernel::default());
        let invalidator: Arc<dyn Invalidate> = kernel.clone();
        one.set_invalidator(Arc::downgrade(&invalidator));
        let file = two.create_file("f").await;
        two.fill(&file, 0, CHUNK, b'x').await;
        two.release(file.clone()).await;
        let known = one.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap();
        assert!(!known.cacheable || known.size == CHUNK as u64);
        rt::sleep(Duration::from_secs(2)).await;
        assert!(one.getattr(file.ino()).await.unwrap().cacheable);
        kernel.dropped.lock().clear();
        two.set_size(file.ino(), 10).await;
        let done = rt::monotonic_ns();
        let forgotten = kernel.dropped.lock().clone();
        assert!(forgotten.iter().any(|&(ino, at)| ino == file.ino() && at <= done), "{forgotten:?}");
    });
}

#[test]
fn a_page_fill_bypasses_the_gate_while_the_kernel_waits_for_it() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let kernel = Arc::new(Kernel::default());
        let invalidator: Arc<dyn Invalidate> = kernel.clone();
        one.set_invalidator(Weak::clone(&Arc::downgrade(&invalidator)));
        let file = two.create_file("f").await;
        two.fill(&file, 0, CHUNK, b'x').await;
        two.release(file.clone()).await;
        let writer = two.open(ROOT, file.ino(), RDWR).await.unwrap();
        rt::sleep(Duration::from_millis(500)).await;
        let open = one.open_named("f", RDONLY).await;
        assert_eq!(open.caching(), Caching::Cached);
        let cached_read = ReadOptions { cached: true, ..ReadOptions::default() };
        one.read(&open, 0, IoBuf::alloc(4096), cached_read).await.unwrap();

        // The kernel has locked a page, and a drop waits for it; the read arrives a bit later.
        let filled = Arc::new(rt::sync::Event::new());
        *kernel.filling.lock() = Some((file.ino(), filled.clone()));
        let (reader, page) = (one.clone(), open.clone());
        rt::spawn(async move {
            rt::sleep(Duration::from_millis(10)).await;
            let buf = IoBuf::alloc(4096);
            assert_eq!(reader.read(&page, 4096, buf.clone(), cached_read).await.unwrap(), 4096);
            assert!(buf.as_slice().iter().all(|&byte| byte == b'x'));
            filled.set();
        });
        let before = kernel.dropped.lock().len();
        let started = rt::monotonic_ns();
        two.fill(&writer, 0, CHUNK, b'y').await;
        assert!(rt::monotonic_ns() - started < 2_000_000_000, "nobody was evicted");
        assert!(kernel.dropped.lock().len() >= before + 2, "what was let through is forgotten, too");
        let buf = IoBuf::alloc(4096);
        one.read(&open, 4096, buf.clone(), cached_read).await.unwrap();
        assert!(buf.as_slice().iter().all(|&byte| byte == b'y'));
    });
}

/// A page is filled while the kernel should drop it, an application changes it at once, and the
/// kernel must write it before it can drop it.
#[test]
fn a_bypassed_and_dirtied_page_is_written_back_during_a_recall() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let kernel = Arc::new(Kernel::default());
        let invalidator: Arc<dyn Invalidate> = kernel.clone();
        one.set_invalidator(Arc::downgrade(&invalidator));
        let file = two.create_file("f").await;
        two.fill(&file, 0, CHUNK, b'x').await;
        two.release(file.clone()).await;
        one.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap();
        // After a recall, the service grants no unrequested lease for a second.
        rt::sleep(Duration::from_secs(2)).await;
        assert!(one.getattr(file.ino()).await.unwrap().cacheable);
        // Under the lease that came with its attributes, so that no content is loaded yet.
        let mapped = one.open(ROOT, file.ino(), RDWR).await.unwrap();
        let page = Arc::new(rt::sync::Event::new());
        *kernel.filling.lock() = Some((file.ino(), page.clone()));
        let (program, map, done) = (one.clone(), mapped.clone(), page.clone());
        rt::spawn(async move {
            rt::sleep(Duration::from_millis(30)).await;
            let (buf, cached_read) =
                (IoBuf::alloc(4096), ReadOptions { cached: true, ..ReadOptions::default() });
            assert_eq!(program.read(&map, 4096, buf.clone(), cached_read).await.unwrap(), 4096);
            assert!(buf.as_slice().iter().all(|&byte| byte == b'x'));
            let back = WriteOptions { written_back: true, ..WriteOptions::default() };
            program.write(&map, 4096, IoBuf::from_slice(&[b'm'; 4096]), back).await.unwrap();
            done.set();
        });
        let started = rt::monotonic_ns();
        let writer = two.open(ROOT, file.ino(), RDWR).await.unwrap();
        two.fill(&writer, 0, 100, b'y').await;
        assert!(page.is_set(), "what was changed is written before others go on");
        assert!(
            rt::monotonic_ns() - started < 4_000_000_000,
            "the recall waits for the page, and the page for the recall"
        );
        assert!(!one.has_ended());
        for client in [&one, &two] {
            let open = client.open_named("f", RDONLY).await;
            let expected = [(b'y', 100), (b'x', 3996), (b'm', 4096), (b'x', CHUNK - 8192)];
            assert_eq!(run_lengths(&client.read_all(&open).await), expected);
        }
    });
}

#[test]
fn a_read_that_waits_for_the_registration_does_not_keep_the_session_from_it() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let kernel = Arc::new(Kernel::default());
        let invalidator: Arc<dyn Invalidate> = kernel.clone();
        one.set_invalidator(Arc::downgrade(&invalidator));
        let file = two.create_file("f").await;
        two.fill(&file, 0, CHUNK, b'x').await;
        two.release(file.clone()).await;
        let open = one.open_named("f", RDONLY).await;
        let cached_read = ReadOptions { cached: true, ..ReadOptions::default() };
        one.read(&open, 0, IoBuf::alloc(4096), cached_read).await.unwrap();

        // The kernel has locked a page, and the read for it arrives when the service has restarted
        // and no content is loaded any more.
        let filled = Arc::new(rt::sync::Event::new());
        *kernel.filling.lock() = Some((file.ino(), filled.clone()));
        cluster.restart_metadata().await;
        rt::sleep(Duration::from_millis(100)).await;
        let begun_ns = rt::monotonic_ns();
        let (reader, page, done) = (one.clone(), open.clone(), filled.clone());
        rt::spawn(async move {
            let buf = IoBuf::alloc(4096);
            assert_eq!(reader.read(&page, 4096, buf.clone(), cached_read).await.unwrap(), 4096);
            assert!(buf.as_slice().iter().all(|&byte| byte == b'x'));
            done.set();
        });
        rt::sleep(Duration::from_secs(8)).await;
        assert!(filled.is_set(), "the read waits for the registration, and the registration for the read");
        let forgotten = kernel.dropped.lock().clone();
        let last = forgotten.iter().rfind(|(ino, _)| *ino == file.ino());
        assert!(
            last.is_some_and(|(_, at)| *at > begun_ns),
            "the page is forgotten that was filled meanwhile"
        );
        let writer = two.open_named("f", RDWR).await;
        two.fill(&writer, 0, CHUNK, b'y').await;
        let buf = IoBuf::alloc(4096);
        one.read(&open, 4096, buf.clone(), cached_read).await.unwrap();
        assert!(!one.has_ended() && buf.as_slice().iter().all(|&byte| byte == b'y'));
    });
}

/// The session has other inodes than the one that is read, and the kernel drops none of them before
/// the read has its answer.
#[test]
fn a_slow_kernel_does_not_block_registration() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let kernel = Arc::new(Kernel::default());
        let invalidator: Arc<dyn Invalidate> = kernel.clone();
        one.set_invalidator(Arc::downgrade(&invalidator));
        for name in ["f", "other"] {
            let file = two.create_file(name).await;
            two.fill(&file, 0, CHUNK, b'x').await;
            two.release(file.clone()).await;
        }
        let open = one.open_named("f", RDONLY).await;
        let cached_read = ReadOptions { cached: true, ..ReadOptions::default() };
        one.read(&open, 0, IoBuf::alloc(4096), cached_read).await.unwrap();
        let other = one.lookup(ROOT, InodeId::ROOT, b"other").await.unwrap().ino;
        // A file whose lease was just recalled is shared for a while.
        rt::sleep(Duration::from_secs(2)).await;
        assert!(one.getattr(other).await.unwrap().cacheable);

        let filled = Arc::new(rt::sync::Event::new());
        *kernel.filling.lock() = Some((open.ino(), filled.clone()));
        kernel.is_all_busy.store(true, Relaxed);
        cluster.restart_metadata().await;
        rt::sleep(Duration::from_millis(100)).await;
        let (reader, page, done) = (one.clone(), open.clone(), filled.clone());
        rt::spawn(async move {
            reader.read(&page, 4096, IoBuf::alloc(4096), cached_read).await.unwrap();
            done.set();
        });
        rt::sleep(Duration::from_secs(12)).await;
        assert!(
            filled.is_set(),
            "the registration waits for the kernel, and the kernel for the registration"
        );
        let forgotten = kernel.dropped.lock().clone();
        assert!(forgotten.iter().any(|(ino, _)| *ino == other), "{forgotten:?}");
        two.set_size(other, 10).await;
        assert_eq!(one.size(other).await, 10);
        assert!(!one.has_ended());
    });
}

/// The page of a file stays when the file is closed, and a later append that ends in it must not
/// show zeros.
#[test]
fn pages_of_a_closed_file_are_dropped_before_a_write() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let kernel = Arc::new(Kernel::default());
        let invalidator: Arc<dyn Invalidate> = kernel.clone();
        one.set_invalidator(Arc::downgrade(&invalidator));
        let writer = one.create_file("log").await;
        one.append(&writer, &[b'x'; 100]).await;
        let cached_read = ReadOptions { cached: true, ..ReadOptions::default() };
        for (number, reopened) in [(1, false), (2, true)] {
            let reader = one.open_named("log", RDONLY).await;
            assert_eq!(one.read(&reader, 0, IoBuf::alloc(4096), cached_read).await.unwrap(), 100 * number);
            one.release(reader).await;
            kernel.dropped.lock().clear();
            if reopened {
                // The file is unused for a moment.
                one.release(writer.clone()).await;
                let writer = one.open_named("log", RDWR).await;
                one.append(&writer, &[b'x'; 100]).await;
            } else {
                one.append(&writer, &[b'x'; 100]).await;
            }
            let forgotten = kernel.dropped.lock().clone();
            assert_eq!(forgotten.iter().filter(|(ino, _)| *ino == writer.ino()).count(), 1);
        }
        kernel.dropped.lock().clear();
        let writer = one.open_named("log", RDWR).await;
        one.append(&writer, &[b'x'; 100]).await;
        assert!(kernel.dropped.lock().is_empty(), "the kernel has nothing to forget");
    });
}

/// The file is opened and read after an append has begun, before it has its lease. When the append
/// has extended the file, the page cache must not contain the old data as if it were complete.
#[test]
fn a_read_for_the_page_cache_waits_for_an_append_that_waits_for_its_lease() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let kernel = Arc::new(Kernel::default());
        let invalidator: Arc<dyn Invalidate> = kernel.clone();
        two.set_invalidator(Arc::downgrade(&invalidator));
        let writer = one.create_file("log").await;
        one.append(&writer, &[b'x'; 100]).await;
        let cached_read = ReadOptions { cached: true, ..ReadOptions::default() };
        // After a recall, the service grants no unrequested lease for a second.
        rt::sleep(Duration::from_secs(2)).await;
        let elsewhere = two.open_named("log", RDONLY).await;
        assert_eq!(two.read(&elsewhere, 0, IoBuf::alloc(4096), cached_read).await.unwrap(), 100);

        // The other kernel drops its pages slowly, and so the append waits.
        let filled = Arc::new(rt::sync::Event::new());
        *kernel.filling.lock() = Some((writer.ino(), filled.clone()));
        let read = Rc::new(Cell::new(None));
        let (client, told, release) = (one.clone(), read.clone(), filled.clone());
        rt::spawn(async move {
            rt::sleep(Duration::from_millis(100)).await;
            release.set();
        });
        let beside = async move {
            rt::sleep(Duration::from_millis(10)).await;
            let reader = client.open_named("log", RDONLY).await;
            told.set(Some(client.read(&reader, 0, IoBuf::alloc(4096), cached_read).await.unwrap()));
        };
        rt::spawn(beside);
        one.append(&writer, &[b'y'; 100]).await;
        assert!(filled.is_set(), "the append didn't wait for the other kernel");
        while read.get().is_none() {
            rt::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(read.get(), Some(200));
    });
}

/// A kernel that has just looked up a page reads the file's size afterwards, and takes the rest of
/// an old page for zeros if the size has grown.
#[test]
fn a_file_that_is_being_changed_is_read_past_the_page_cache() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let writer = one.create_file("log").await;
        let beside = one.open_named("log", RDONLY).await;
        assert_eq!(beside.caching(), Caching::Direct, "it is open for writing here");
        let reader = two.open_named("log", RDONLY).await;
        assert_eq!(reader.caching(), Caching::Direct, "it was made a moment ago, and more may come");
        two.release(reader).await;
        rt::sleep(Duration::from_millis(500)).await;
        let reader = two.open_named("log", RDONLY).await;
        assert_eq!(reader.caching(), Caching::Cached);
        two.release(reader).await;
        one.append(&writer, b"x").await;
        let reader = two.open_named("log", RDONLY).await;
        assert_eq!(reader.caching(), Caching::Direct, "it was changed elsewhere just now");
        two.release(reader).await;
        rt::sleep(Duration::from_secs(2)).await;
        assert_eq!(two.open_named("log", RDONLY).await.caching(), Caching::Cached);
        one.release(beside).await;
        one.release(writer).await;
        let beside = one.open_named("log", RDONLY).await;
        assert_eq!(beside.caching(), Caching::Direct, "it was open for writing here a moment ago");
        one.release(beside).await;
        rt::sleep(Duration::from_secs(2)).await;
        assert_eq!(one.open_named("log", RDONLY).await.caching(), Caching::Cached);
        let long = one.create_file("long").await;
        one.set_size(long.ino(), (1 << 20) + 1).await;
        one.release(long).await;
        assert_eq!(
            one.open_named("long", RDONLY).await.caching(),
            Caching::Cached,
            "it would be slow without"
        );
    });
}

/// An application that has mapped a file continues to use its pages when it, or another one on the
/// same node, writes elsewhere in it.
#[test]
fn an_exclusive_write_keeps_other_pages() {
    with_cluster(|cluster| async move {
        const SIZE: usize = 4 * CHUNK;
        let [one, two] = cluster.clients().await;
        let kernel = Arc::new(Kernel::default());
        let invalidator: Arc<dyn Invalidate> = kernel.clone();
        one.set_invalidator(Arc::downgrade(&invalidator));
        let file = one.create_file("f").await;
        one.fill(&file, 0, SIZE, b'x').await;
        let cached_read = ReadOptions { cached: true, ..ReadOptions::default() };
        one.read(&file, 0, IoBuf::alloc(CHUNK), cached_read).await.unwrap();
        let excluded = || std::mem::take(&mut *kernel.excluded.lock());
        excluded();
        one.fill(&file, 5000, 100, b'y').await;
        assert_eq!(excluded(), [[ByteRange::new(0, 4096), ByteRange::new(8192, u64::MAX)]]);
        one.append(&file, &[b'x'; 100]).await;
        assert_eq!(excluded(), [[ByteRange::new(0, SIZE as u64)]], "the last page has got longer");

        let writer = two.open_named("f", RDWR).await;
        two.fill(&writer, 0, 100, b'z').await;
        assert!(excluded().iter().any(Vec::is_empty), "everything goes with the lease");
        one.fill(&file, 5000, 100, b'y').await;
        assert!(excluded().is_empty(), "there is nothing to forget");
    });
}

/// The report of a written file takes longer than its next user takes to open it.
#[test]
fn a_large_file_is_cached_if_opened_during_its_writers_release() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        for number in 0..2 {
            let name = format!("long{number}");
            let writer = one.create_file(&name).await;
            one.fill(&writer, 0, (1 << 20) + 1, b'x').await;
            one.flush(&writer).await.unwrap();
            let closer = one.clone();
            rt::spawn(async move {
                // The kernel sends the release of a descriptor after its close has returned.
                rt::sleep(Duration::from_millis(number)).await;
                closer.release(writer).await;
            });
            let reader = one.open_named(&name, RDONLY).await;
            assert_eq!(reader.caching(), Caching::Cached, "{name}");
        }
        let writer = one.create_file("open").await;
        one.fill(&writer, 0, (1 << 20) + 1, b'x').await;
        one.flush(&writer).await.unwrap();
        let reader = one.open_named("open", RDONLY).await;
        assert_eq!(reader.caching(), Caching::Direct, "a copy of the descriptor was closed");
    });
}

/// The report of the last use may wait for a storage service that doesn't answer.
#[test]
fn a_large_file_is_cached_if_opened_before_its_writers_report() {
    with_cluster(|cluster| async move {
        for late_us in [0, 2000] {
            let (one, storage) = cluster.client_with_cuttable_storage().await;
            let writer = one.create_file(&format!("late{late_us}")).await;
            let ino = writer.ino();
            one.fill(&writer, 0, (1 << 20) + 1, b'x').await;
            one.flush(&writer).await.unwrap();
            storage.cut();
            let closer = one.clone();
            rt::spawn(async move {
                rt::sleep(Duration::from_micros(late_us)).await;
                closer.release(writer).await;
            });
            let reader = one.open(ROOT, ino, RDONLY).await.unwrap();
            assert_eq!(reader.caching(), Caching::Cached, "the last writer goes {late_us} us later");
            storage.restore();
        }
    });
}
