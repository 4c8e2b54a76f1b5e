//! An application changes a file through a mapping while other clients want its lease: the kernel
//! fills pages, writes them back, and drops them when it is told to.
//!
//! The kernel is modelled after Linux: a drop waits for a page that is being filled or written, and
//! writes a dirty page.

use super::cluster::{Application, CHUNK, Cluster, RDWR, TARGETS, with_cluster_of_seed};
use client::{Client, Handle, Invalidate, ReadOptions, WriteOptions};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sync::Event;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{ByteRange, InodeId};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=100;
const STEPS: u8 = 100;
const PAGE: usize = 4096;
/// Pages of the mapping, which only its application changes.
const PAGES: usize = 6;
/// Where other clients write.
const ELSEWHERE: usize = 2 * CHUNK;
/// Longest time of any access while the services work, in nanoseconds. Each access waits for some
/// recalls at most, which take milliseconds.
const TIMEOUT_NS: u64 = 3_000_000_000;

#[derive(Clone, Default)]
enum Page {
    #[default]
    Absent,
    Clean(u8),
    Dirty(u8),
    /// It is being filled, or written back.
    Locked(Arc<Event>),
}

/// A file with a mapping that an application uses.
struct Mapping {
    client: Weak<Client>,
    file: Arc<Handle>,
    pages: Mutex<Vec<Page>>,
    /// How often a page had to be written before a drop.
    written_before_drop: AtomicU64,
}

impl Mapping {
    fn new(client: &Arc<Client>, file: Arc<Handle>) -> Arc<Mapping> {
        let pages = Mutex::new(vec![Page::Absent; PAGES]);
        let laundered = AtomicU64::new(0);
        Arc::new(Mapping { client: Arc::downgrade(client), file, pages, written_before_drop: laundered })
    }

    fn client(&self) -> Arc<Client> {
        self.client.upgrade().unwrap()
    }

    fn page(&self, number: usize) -> Page {
        self.pages.lock()[number].clone()
    }

    /// Keeps a page locked while `work` runs, and then sets the state that it returns.
    async fn locked(&self, number: usize, work: impl Future<Output = Page>) {
        let done = Arc::new(Event::new());
        self.pages.lock()[number] = Page::Locked(done.clone());
        let page = work.await;
        self.pages.lock()[number] = page;
        done.set();
    }

    /// Returns the application's view of a page.
    async fn fault(&self, number: usize) -> u8 {
        loop {
            match self.page(number) {
                Page::Clean(byte) | Page::Dirty(byte) => return byte,
                Page::Locked(done) => done.wait().await,
                Page::Absent => {
                    let fill = async {
                        let (buf, kept) =
                            (IoBuf::alloc(PAGE), ReadOptions { cached: true, ..ReadOptions::default() });
                        let at = (number * PAGE) as u64;
                        self.client().read(&self.file, at, buf.clone(), kept).await.unwrap();
                        let first = buf.as_slice()[0];
                        assert!(buf.as_slice().iter().all(|&byte| byte == first), "a page is torn");
                        Page::Clean(first)
                    };
                    self.locked(number, fill).await;
                }
            }
        }
    }

    async fn change(&self, number: usize, byte: u8) {
        loop {
            self.fault(number).await;
            let mut pages = self.pages.lock();
            if matches!(pages[number], Page::Clean(_) | Page::Dirty(_)) {
                pages[number] = Page::Dirty(byte);
                return;
            }
        }
    }

    async fn write_back(&self, number: usize) {
        loop {
            match self.page(number) {
                Page::Locked(done) => done.wait().await,
                Page::Dirty(byte) => {
                    let write = async {
                        let back = WriteOptions { written_back: true, ..WriteOptions::default() };
                        let (at, data) = ((number * PAGE) as u64, IoBuf::from_slice(&[byte; PAGE]));
                        self.client().write(&self.file, at, data, back).await.unwrap();
                        Page::Clean(byte)
                    };
                    self.locked(number, write).await;
                }
                Page::Absent | Page::Clean(_) => return,
            }
        }
    }

    /// Writes with a system call instead of through the mapping. The kernel writes the page back
    /// and drops it before it sends the write.
    async fn write(&self, number: usize, byte: u8) {
        self.drop_page(number).await;
        self.client().fill(&self.file, number * PAGE, PAGE, byte).await;
    }

    async fn drop_page(&self, number: usize) {
        loop {
            if matches!(self.page(number), Page::Dirty(_)) {
                self.written_before_drop.fetch_add(1, Relaxed);
            }
            self.write_back(number).await;
            let mut pages = self.pages.lock();
            if matches!(pages[number], Page::Absent | Page::Clean(_)) {
                pages[number] = Page::Absent;
                return;
            }
        }
    }

    async fn write_all_back(&self) {
        for number in 0..PAGES {
            self.write_back(number).await;
        }
    }
}

impl Invalidate for Mapping {
    fn drop_cached(&self, ino: InodeId, except: Vec<ByteRange>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        let pages = if ino == self.file.ino() { 0..PAGES } else { 0..0 };
        Box::pin(async move {
            let is_spared = |page: &usize| {
                let page = ByteRange::at((page * PAGE) as u64, PAGE as u64);
                except.iter().any(|range| range.overlaps(page))
            };
            for number in pages.filter(|page| !is_spared(page)) {
                self.drop_page(number).await;
            }
        })
    }
}

fn dice(sides: u64) -> u64 {
    rt::random_u64() % sides
}

async fn in_time(what: &str, work: impl Future<Output = ()>) {
    let begun_ns = rt::monotonic_ns();
    work.await;
    let took_ns = rt::monotonic_ns() - begun_ns;
    assert!(took_ns < TIMEOUT_NS, "{what} took {} ms", took_ns / 1_000_000);
}

/// Accesses the mapping as an application; returns the bytes that it has left in its pages.
async fn use_mapping(map: &Arc<Mapping>) -> Vec<u8> {
    let mut expected = vec![0; PAGES];
    for step in 1..=STEPS {
        let number = dice(PAGES as u64) as usize;
        match dice(10) {
            0..3 => {
                in_time("a change", map.change(number, step)).await;
                expected[number] = step;
            }
            3 => {
                in_time("a write", map.write(number, step)).await;
                expected[number] = step;
            }
            4..7 => {
                in_time("a look", async { assert_eq!(map.fault(number).await, expected[number]) }).await;
            }
            7 => in_time("to write all back", map.write_all_back()).await,
            8 => {
                // The kernel's readahead.
                let ahead = map.clone();
                rt::spawn(async move {
                    ahead.fault(number).await;
                });
            }
            _ => rt::sleep(Duration::from_millis(dice(30))).await,
        }
        if dice(2) == 0 {
            rt::sleep(Duration::from_micros(dice(5000))).await;
        }
    }
    in_time("to write all back", map.write_all_back()).await;
    expected
}

/// The kernel writes back at random times, and another application on the same machine writes
/// elsewhere in the file.
async fn write_concurrently(map: Arc<Mapping>, is_over: Rc<Cell<bool>>) {
    while !is_over.get() {
        match dice(3) {
            0 => in_time("to write elsewhere", map.client().fill(&map.file, ELSEWHERE + PAGE, PAGE, 1)).await,
            _ => in_time("to write all back", map.write_all_back()).await,
        }
        rt::sleep(Duration::from_micros(dice(10_000))).await;
    }
}

/// Another client opens the file, reads its attributes and content, and writes elsewhere in it.
async fn access_concurrently(client: Arc<Client>, is_over: Rc<Cell<bool>>) {
    let mut byte = 0;
    while !is_over.get() {
        let file = client.open_named("f", RDWR).await;
        match dice(4) {
            0 => client.fill(&file, ELSEWHERE, PAGE, byte).await,
            1 => drop(client.read_all(&file).await),
            2 => drop(client.size(file.ino()).await),
            _ => {}
        }
        client.release(file).await;
        byte = byte.wrapping_add(1);
        rt::sleep(Duration::from_millis(dice(20))).await;
    }
}

/// Migrates its chunks back and forth.
async fn migrate_chunks(cluster: Rc<Cluster>, is_over: Rc<Cell<bool>>) {
    while !is_over.get() {
        let target = 1 + dice(u64::from(TARGETS)) as u32;
        cluster.drain(target, true);
        rt::sleep(Duration::from_millis(dice(3000))).await;
        cluster.drain(target, false);
    }
}

#[test]
fn mappings_and_recalls_do_not_deadlock() {
    let laundered = Arc::new(AtomicU64::new(0));
    for seed in SEEDS {
        let laundered = laundered.clone();
        with_cluster_of_seed(seed, move |cluster| async move {
            let [one, two, three] = cluster.clients().await;
            let made = one.create_file("f").await;
            one.fill(&made, 0, 4 * CHUNK, 0).await;
            let map = Mapping::new(&one, made);
            let face: Arc<dyn Invalidate> = map.clone();
            one.set_invalidator(Arc::downgrade(&face));
            let is_over = Rc::new(Cell::new(false));
            rt::spawn(access_concurrently(two.clone(), is_over.clone()));
            rt::spawn(access_concurrently(three, is_over.clone()));
            rt::spawn(write_concurrently(map.clone(), is_over.clone()));
            rt::spawn(migrate_chunks(cluster.clone(), is_over.clone()));
            let expected = use_mapping(&map).await;
            is_over.set(true);
            assert!(!one.has_ended());
            let found = two.open_named("f", RDWR).await;
            let bytes = two.read_all(&found).await;
            let first: Vec<u8> = (0..PAGES).map(|number| bytes[number * PAGE]).collect();
            assert_eq!(first, expected, "seed {seed}");
            laundered.fetch_add(map.written_before_drop.load(Relaxed), Relaxed);
        });
    }
    assert!(laundered.load(Relaxed) > SEEDS.count() as u64, "pages are written before they are forgotten");
}
