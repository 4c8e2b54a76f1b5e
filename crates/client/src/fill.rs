//! Reads whose bytes stay in the kernel's page cache, and the door that a recall closes before
//! them.
//!
//! While the kernel is told to forget, such a read could put back what is being forgotten. So they
//! wait. But the kernel can't forget a page that a waiting read is to fill, which is locked.
//! Nothing is in that page yet, and the read will fill it when the door is open again: so the
//! kernel is told to forget all but the pages of those who wait ([`Fills::look`]). Who comes
//! afterwards may be in its way: when it takes long, those are let through, and the kernel has to
//! forget once more.
//!
//! A program that reads one page after another is always about to come. If it were let through each
//! time, nobody would ever get the lease: so before it is looked who waits, reads that are inside
//! end, and programs have a moment to come with their next one ([`Fills::settle`]).
//!
//! # A read whose reply is still on its way to the kernel
//!
//! The gate of the inode is given back before the reply is handed in. That is no gap: the kernel
//! adds a page to its cache, locked, before it asks for it, and unlocks it when it has the answer.
//! To forget waits for the lock. So a page that was asked for before the kernel was told to forget
//! is forgotten, and one that is asked for afterwards comes to the closed door. (Attributes need no
//! lock: the kernel numbers them, and drops an answer to a question that is older than the
//! notification.)
//!
//! # Which inodes the kernel has pages of
//!
//! Pages stay when the file is closed through which they were read, until the kernel forgets the
//! inode. So reads for the page cache are counted with the inode, each when it arrives, since its
//! page is in the cache by then; and it is noted how many had come when a forgetting began that is
//! over.
//!
//! # Who is let through
//!
//! A read that is let through fills a page behind the back of everybody who had the kernel forget
//! before. So each pass is counted, and whoever is about to do that for which the kernel had to
//! forget (to give the lease up, to make the file longer) looks, alone at the gate, whether
//! somebody was let through meanwhile; then the kernel forgets once more. A recall lets reads
//! through with what is loaded, or with one answer of the service: nobody else can change the file
//! before the recall is answered. A write of this session gives no such guarantee, so those that it
//! lets through get a lease first. Forgetting may take long though nobody is in its way: the
//! threads that tell the kernel may all wait for pages of other files, which a storage node that is
//! down doesn't bring.

use crate::recall::within;
use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use types::{BLOCK_SIZE, ByteRange};

/// How long reads that are inside may take to end before the kernel is told to forget all the same;
/// it waits for them itself.
const SETTLING: Duration = Duration::from_millis(20);
/// What programs have to come with their next read, at first; it doubles each time the kernel has
/// to forget once more, up to `MAX_REST`.
const MIN_REST: Duration = Duration::from_millis(1);
const MAX_REST: Duration = Duration::from_millis(64);
/// Writes in a row that leave other pages alone while no read for the page cache comes. Each has
/// the kernel forget, which takes as long as a read of a page.
const MAX_SPARED: u64 = 256;

/// The door of one inode.
#[derive(Default)]
pub(crate) struct Fills {
    state: Mutex<Door>,
    moved: Event,
    /// Reads so far, how many of them have ended, and how many the kernel surely has no page of any
    /// more.
    noted: AtomicU64,
    ended: AtomicU64,
    forgotten: AtomicU64,
    /// Reads that had come when a write past the kernel's cache had it forget pages, and how many
    /// writes have left other pages alone since reads came.
    renewed: AtomicU64,
    spared: AtomicU64,
    /// Somebody wants to know when reads end.
    is_watched: AtomicBool,
}

#[derive(Default)]
struct Door {
    /// How many recalls hold it closed.
    closed: usize,
    /// How often some who waited were let through.
    passes: u64,
    /// Those who wait, in the order in which they came.
    waiting: BTreeMap<u64, Waiter>,
    /// The number of the next.
    next: u64,
}

/// A read that waits.
struct Waiter {
    /// What it is to fill, while it is outside; it may wait for its lease, and come in with that.
    outside: Option<ByteRange>,
    /// How it is let through.
    pass: Option<Pass>,
}

impl Waiter {
    /// It fills nothing before the door is opened.
    fn stays_outside(&self) -> bool {
        self.outside.is_some() && self.pass.is_none()
    }
}

/// What those find who want the kernel to forget.
pub(crate) struct Look {
    /// How often some were let through before.
    pub(crate) passes: u64,
    /// Pages of these bytes need not be forgotten: reads will fill them that wait for the door to
    /// be opened. In ascending order, and apart from each other.
    pub(crate) waiting: Vec<ByteRange>,
    noted: u64,
    next: u64,
}

impl Look {
    /// What the kernel need not forget where the pages of these bytes are to go.
    pub(crate) fn spared(&self, range: ByteRange) -> Vec<ByteRange> {
        apart(beside(range).into_iter().chain(self.waiting.iter().copied()).collect())
    }
}

/// A read for the page cache.
pub(crate) struct Noted<'a> {
    fills: &'a Fills,
}

/// How those who wait are let through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// With what is known at this moment: nobody else can change the file yet.
    Once,
    /// As soon as they have a lease.
    UnderLease,
}

/// How a read came through the door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// It was open.
    Free,
    /// It is closed, and the kernel will forget what is read.
    LetThrough(Pass),
}

impl Fills {
    /// An open door. `filled`: whether the kernel may have pages.
    pub(crate) fn new(filled: bool) -> Fills {
        let before = u64::from(filled);
        Fills { noted: AtomicU64::new(before), ended: AtomicU64::new(before), ..Fills::default() }
    }

    /// Notes a read for the page cache. To be called before it comes to the door; it ends when what
    /// is returned is dropped.
    pub(crate) fn note(&self) -> Noted<'_> {
        self.noted.fetch_add(1, Ordering::SeqCst);
        Noted { fills: self }
    }

    /// Waits until reads that are inside have ended, unless that takes long, and those that wait
    /// next are outside. `turn` counts how often the kernel has been told before.
    pub(crate) async fn settle(&self, turn: u32) {
        if turn == 0 && (self.is_open() || self.inside() == 0) {
            return;
        }
        within(SETTLING, pin!(self.all_outside())).await;
        rt::sleep(MIN_REST.saturating_mul(1 << turn.min(10)).min(MAX_REST)).await;
    }

    /// Who waits now. To be called before the kernel is told to forget.
    pub(crate) fn look(&self) -> Look {
        let noted = self.noted.load(Ordering::SeqCst);
        let door = self.state.lock();
        let outside = door.waiting.values().filter(|waiter| waiter.stays_outside());
        let waiting = apart(outside.filter_map(|waiter| waiter.outside).map(whole_pages).collect());
        Look { passes: door.passes, waiting, noted, next: door.next }
    }

    /// The kernel has forgotten the pages of these bytes, and was told to after that look.
    pub(crate) fn forgotten(&self, look: &Look, range: ByteRange) {
        // Those who wait will fill pages.
        if look.waiting.is_empty() && beside(range).iter().all(|other| other.is_empty()) {
            self.forgotten.fetch_max(look.noted, Ordering::SeqCst);
        }
    }

    /// Whether the kernel may have pages.
    pub(crate) fn is_filled(&self) -> bool {
        self.noted.load(Ordering::SeqCst) > self.forgotten.load(Ordering::SeqCst)
    }

    /// Whether a write leaves the pages alone that it doesn't change. They are of use while
    /// programs read, but a program that has mapped the file asks for none while they stay. So the
    /// first writes after a read leave them; then all pages go once, and later writes have none to
    /// forget.
    pub(crate) fn are_others_of_use(&self) -> bool {
        let noted = self.noted.load(Ordering::SeqCst);
        if self.renewed.swap(noted, Ordering::SeqCst) != noted {
            self.spared.store(0, Ordering::SeqCst);
        }
        self.spared.fetch_add(1, Ordering::SeqCst) < MAX_SPARED
    }

    /// Waits at the door with a read of these bytes.
    pub(crate) async fn enter(&self, range: ByteRange) -> Entry {
        let Some(waiting) = self.wait(Some(range)) else { return Entry::Free };
        let at = |door: &Door| match door.waiting.get(&waiting.number).and_then(|waiter| waiter.pass) {
            _ if door.closed == 0 => Some(Entry::Free),
            pass => pass.map(Entry::LetThrough),
        };
        loop {
            let moved = self.moved.wait();
            if let Some(entry) = at(&self.state.lock()) {
                return entry;
            }
            moved.await;
        }
    }

    /// What `work` comes to, or nothing when those who wait are let through without a lease before.
    pub(crate) async fn unless_let_through<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let Some(waiting) = self.wait(None) else { return Some(work.await) };
        self.unless(work, |door| {
            door.waiting.get(&waiting.number).is_some_and(|waiter| waiter.pass.is_some())
        })
        .await
    }

    /// Counts as one who waits; not outside an open door.
    fn wait(&self, outside: Option<ByteRange>) -> Option<Waiting<'_>> {
        let mut door = self.state.lock();
        if door.closed == 0 && outside.is_some() {
            return None;
        }
        let number = door.next;
        door.next += 1;
        door.waiting.insert(number, Waiter { outside, pass: None });
        drop(door);
        self.tell_watchers();
        Some(Waiting { fills: self, number })
    }

    /// Reads whose pages the kernel waits for, and that don't wait outside.
    fn inside(&self) -> u64 {
        // Whoever goes in meanwhile is counted; whoever ends may be.
        let ended = self.ended.load(Ordering::SeqCst);
        let outside = {
            let door = self.state.lock();
            door.waiting.values().filter(|waiter| waiter.stays_outside()).count() as u64
        };
        self.noted.load(Ordering::SeqCst).saturating_sub(ended).saturating_sub(outside)
    }

    async fn all_outside(&self) {
        loop {
            let moved = self.moved.wait();
            self.is_watched.store(true, Ordering::SeqCst);
            if self.inside() == 0 {
                return;
            }
            moved.await;
        }
    }

    /// Something has moved that those want to know who wait for reads to end.
    fn tell_watchers(&self) {
        if self.is_watched.load(Ordering::SeqCst) && self.is_watched.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// True while no recall holds reads back.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().closed == 0
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed += 1;
        self.wake();
    }

    /// What `work` comes to, or nothing when the door is closed before: a read that waits behind
    /// the door for the end of a recall must come back to it, since the recall may wait for the
    /// page that the read is to fill.
    pub(crate) async fn unless_closed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.unless(work, |door| door.closed > 0).await
    }

    async fn unless<T>(&self, work: impl Future<Output = T>, is_over: impl Fn(&Door) -> bool) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let mut moved = pin!(self.moved.wait());
            if is_over(&self.state.lock()) {
                return None;
            }
            let done = poll_fn(|context| match work.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending => moved.as_mut().poll(context).map(|()| None),
            });
            if let Some(output) = done.await {
                return Some(output);
            }
        }
    }

    pub(crate) fn open(&self) {
        {
            let mut door = self.state.lock();
            door.closed = door.closed.saturating_sub(1);
        }
        self.wake();
    }

    /// Lets those through who have come to wait since a look.
    pub(crate) fn let_through(&self, look: &Look, pass: Pass) {
        self.let_in(look.next, pass);
    }

    /// Lets all through who wait.
    pub(crate) fn let_all_through(&self, pass: Pass) {
        self.let_in(0, pass);
    }

    fn let_in(&self, first: u64, pass: Pass) {
        let let_in = {
            let mut door = self.state.lock();
            let mut any = false;
            for waiter in door.waiting.range_mut(first..).map(|(_, waiter)| waiter) {
                let gains = match pass {
                    Pass::Once => waiter.pass != Some(Pass::Once),
                    Pass::UnderLease => waiter.outside.is_some() && waiter.pass.is_none(),
                };
                if gains {
                    waiter.pass = Some(pass);
                    any = true;
                }
            }
            door.passes += u64::from(any);
            any
        };
        if let_in {
            self.wake();
        }
    }

    /// How often some were let through so far.
    pub(crate) fn passes(&self) -> u64 {
        self.state.lock().passes
    }

    fn wake(&self) {
        self.moved.set();
        self.moved.clear();
    }
}

struct Waiting<'a> {
    fills: &'a Fills,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.fills.state.lock().waiting.remove(&self.number);
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.fills.ended.fetch_add(1, Ordering::SeqCst);
        self.fills.tell_watchers();
    }
}

/// The pages of which there is nothing outside a range.
fn whole_pages(range: ByteRange) -> ByteRange {
    let page = BLOCK_SIZE as u64;
    let start = range.start.next_multiple_of(page);
    ByteRange { start, end: (range.end - range.end % page).max(start) }
}

/// The pages that have none of these bytes.
fn beside(range: ByteRange) -> [ByteRange; 2] {
    let page = BLOCK_SIZE as u64;
    let end = range.end.checked_next_multiple_of(page).unwrap_or(u64::MAX);
    [ByteRange::new(0, range.start - range.start % page), ByteRange::new(end, u64::MAX)]
}

/// The same bytes as ranges in ascending order that don't touch each other.
fn apart(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let touches = next.start <= range.end;
        range.end = if touches { range.end.max(next.end) } else { range.end };
        touches
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Waker};

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    fn poll<T>(work: &mut std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn only_whole_pages_are_spared() {
        assert_eq!(whole_pages(range(0, 8192)), range(0, 8192));
        assert_eq!(whole_pages(range(1, 8191)), range(4096, 4096));
        assert_eq!(whole_pages(range(100, 12300)), range(4096, 12288));
        let mixed =
            vec![range(8192, 12288), range(0, 4096), range(5, 5), range(4096, 8192), range(16384, 20480)];
        assert_eq!(apart(mixed), [range(0, 12288), range(16384, 20480)]);
        assert_eq!(beside(range(5000, 8193)), [range(0, 4096), range(12288, u64::MAX)]);
        assert!(beside(range(4095, u64::MAX)).iter().all(|other| other.is_empty()));
        assert_eq!(apart(vec![range(0, 9), range(2, 4), range(5, 6)]), [range(0, 9)]);
    }

    #[test]
    fn who_waits_is_spared_until_he_is_let_through() {
        let fills = Fills::new(false);
        fills.close();
        let noted = [fills.note(), fills.note()];
        let mut first = pin!(fills.enter(range(0, 4096)));
        assert_eq!(poll(&mut first), None);
        let look = fills.look();
        assert_eq!(look.waiting, [range(0, 4096)]);
        assert_eq!(fills.inside(), 1, "the other one has not come to the door");

        // Nobody is in the way who came before.
        fills.let_through(&look, Pass::Once);
        assert_eq!((poll(&mut first), fills.passes()), (None, 0));
        let mut second = pin!(fills.enter(range(8192, 12288)));
        assert_eq!(poll(&mut second), None);
        fills.let_through(&look, Pass::UnderLease);
        assert_eq!(fills.passes(), 1);
        assert_eq!(fills.look().waiting, [range(0, 4096)], "it is on its way in");
        assert_eq!(fills.inside(), 1);
        fills.let_through(&look, Pass::Once);
        assert_eq!((poll(&mut first), poll(&mut second)), (None, Some(Entry::LetThrough(Pass::Once))));
        fills.forgotten(&look, range(0, u64::MAX));
        drop(noted);
        assert!(fills.is_filled(), "one was spared");

        fills.open();
        assert_eq!(poll(&mut first), Some(Entry::Free));
        let look = fills.look();
        assert!(look.waiting.is_empty());
        fills.forgotten(&look, range(0, u64::MAX));
        assert!(!fills.is_filled());
        assert_eq!(fills.inside(), 0);
    }

    #[test]
    fn other_pages_stay_beside_the_first_writes_after_a_read() {
        let fills = Fills::new(false);
        let rounds: Vec<_> = (0..2)
            .map(|_| {
                drop(fills.note());
                (0..=MAX_SPARED).filter(|_| fills.are_others_of_use()).count() as u64
            })
            .collect();
        assert_eq!(rounds, [MAX_SPARED; 2]);
        let look = fills.look();
        assert_eq!(look.spared(range(4097, 4098)), [range(0, 4096), range(8192, u64::MAX)]);
        fills.forgotten(&look, range(4096, 8192));
        assert!(fills.is_filled(), "some pages stay");
        fills.forgotten(&look, range(1, u64::MAX));
        assert!(!fills.is_filled());
    }

    #[test]
    fn who_waits_for_its_lease_is_in_the_way_and_let_through_once() {
        let fills = Fills::new(false);
        fills.close();
        let _noted = fills.note();
        let mut waiting = pin!(fills.unless_let_through(std::future::pending::<()>()));
        assert_eq!(poll(&mut waiting), None);
        let look = fills.look();
        assert!(look.waiting.is_empty());
        fills.let_all_through(Pass::UnderLease);
        assert_eq!((poll(&mut waiting), fills.passes()), (None, 0));
        fills.let_all_through(Pass::Once);
        assert_eq!((poll(&mut waiting), fills.passes()), (Some(None), 1));
    }
}
