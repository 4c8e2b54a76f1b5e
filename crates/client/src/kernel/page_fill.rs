//! The page-fill gate: reads that fill the kernel's page cache, and how a recall blocks them.
//!
//! While the kernel is told to drop its pages, such a read could restore what is being dropped. So
//! these reads wait at a gate. But the kernel can't drop a page that a waiting read is to fill,
//! because that page is locked. The page holds no data yet, and the read will fill it when the gate
//! opens. So the kernel is told to drop all pages except those of waiting reads
//! ([`PageFillGate::snapshot`]). Reads that arrive later may block the kernel. If that takes long,
//! they bypass the gate, and the kernel has to drop its pages once more.
//!
//! An application that reads page after page always has a next read. If each of them bypassed the
//! gate, the lease would never be given back. So before the waiting reads are determined, running
//! reads end, and applications get a moment to arrive with their next read
//! ([`PageFillGate::drain_reads`]).
//!
//! # A read whose reply is still on its way to the kernel
//!
//! The client releases the inode's I/O lock before it passes the reply to the kernel. That leaves
//! no gap. The kernel adds a page to its cache, locked, before it sends the read, and unlocks the
//! page when it has the reply. Dropping a page waits for that lock. So a page that was requested
//! before the kernel was told to drop pages is dropped, and a page that is requested afterwards
//! waits at the closed gate. (Attributes need no lock: the kernel numbers them, and ignores an
//! answer to a request that is older than the notification.)
//!
//! # Which inodes have pages in the kernel's cache
//!
//! Pages outlive the open file through which they were read, until the kernel forgets the inode. So
//! each inode counts reads for the page cache when they arrive, since their pages are in the cache
//! by then. It also records how many had arrived when the last complete drop began.
//!
//! # Bypass
//!
//! A read that bypasses the gate fills a page without the knowledge of the tasks that had the
//! kernel drop its pages. So each bypass is counted. A drop precedes giving a lease back or
//! extending the file. Before that step, the task checks under the exclusive I/O lock whether reads
//! have bypassed the gate. If so, the kernel drops its pages once more. A recall lets reads bypass
//! with the loaded content, or with one answer of the service: no other session can change the file
//! before the recall is acknowledged. A write of this session gives no such guarantee, so reads
//! that bypass its gate get a lease first. A drop may take long although no read blocks it: all
//! threads that notify the kernel may be waiting for pages of other files, from a storage node that
//! is down.

use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use types::{BLOCK_SIZE, ByteRange};

/// How long running reads may take to end before the kernel is told to drop its pages anyway; the
/// kernel then waits for them itself.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(20);
/// First pause for applications to arrive with their next read; it doubles with each further drop,
/// up to `MAX_PAUSE`.
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(64);
/// Consecutive writes that leave other pages cached while no read for the page cache arrives. Each
/// has the kernel drop pages, which takes as long as reading a page.
const MAX_PARTIAL_DROPS: u64 = 256;

/// The page-fill gate of one inode.
#[derive(Default)]
pub(crate) struct PageFillGate {
    state: Mutex<GateState>,
    changed: Event,
    /// Number of reads so far, of ended ones, and of those whose pages the kernel has surely
    /// dropped.
    arrived: AtomicU64,
    ended: AtomicU64,
    dropped: AtomicU64,
    /// Number of reads when an uncached write last had the kernel drop pages, and number of writes
    /// since then that left other pages cached.
    reads_at_drop: AtomicU64,
    partial_drops: AtomicU64,
    /// A task waits for reads to end.
    has_watcher: AtomicBool,
}

#[derive(Default)]
struct GateState {
    /// Number of recalls and writes that hold the gate closed.
    closed: usize,
    /// How often waiting reads got a bypass.
    bypasses: u64,
    /// Waiting reads, in order of arrival.
    waiting: BTreeMap<u64, WaitingRead>,
    /// Number of the next one.
    next: u64,
}

/// A waiting read.
struct WaitingRead {
    /// The bytes that it is to fill, while it waits at the gate. It may instead wait for its lease,
    /// and proceed once it has it.
    waiting_for: Option<ByteRange>,
    /// Its bypass, if granted.
    bypass: Option<Bypass>,
}

impl WaitingRead {
    /// Whether it fills no page before the gate opens.
    fn is_blocked(&self) -> bool {
        self.waiting_for.is_some() && self.bypass.is_none()
    }
}

/// State of the gate before the kernel is told to drop pages.
pub(crate) struct GateSnapshot {
    /// Number of bypasses before.
    pub(crate) bypasses: u64,
    /// Pages of these bytes need not be dropped: reads that wait for the gate to open will fill
    /// them. In ascending order, not adjacent.
    pub(crate) waiting: Vec<ByteRange>,
    arrived: u64,
    next: u64,
}

impl GateSnapshot {
    /// Returns the bytes whose pages may stay if the pages of `range` are to be dropped.
    pub(crate) fn excluded_pages(&self, range: ByteRange) -> Vec<ByteRange> {
        merged(pages_outside(range).into_iter().chain(self.waiting.iter().copied()).collect())
    }
}

/// A read for the page cache; it ends when this is dropped.
pub(crate) struct FillRead<'a> {
    gate: &'a PageFillGate,
}

/// How waiting reads may bypass the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bypass {
    /// With the content that is loaded now: no other session can change the file yet.
    Once,
    /// Once they have a lease.
    UnderLease,
}

/// How a read passed the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// The gate was open.
    Open,
    /// The gate is closed, and the kernel will drop the pages that the read fills.
    Bypassed(Bypass),
}

impl PageFillGate {
    /// Creates an open gate. `filled`: whether the kernel may have pages.
    pub(crate) fn new(may_have_pages: bool) -> PageFillGate {
        let before = u64::from(may_have_pages);
        PageFillGate {
            arrived: AtomicU64::new(before),
            ended: AtomicU64::new(before),
            ..PageFillGate::default()
        }
    }

    /// Counts a read for the page cache; to be called before it arrives at the gate. The read ends
    /// when the result is dropped.
    pub(crate) fn count_read(&self) -> FillRead<'_> {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        FillRead { gate: self }
    }

    /// Waits until running reads have ended, but not for long, and lets the next reads arrive at
    /// the gate. `turn` counts the earlier drops.
    pub(crate) async fn drain_reads(&self, attempt: u32) {
        if attempt == 0 && (self.is_open() || self.running_reads() == 0) {
            return;
        }
        rt::timeout(DRAIN_TIMEOUT, self.no_running_reads()).await;
        rt::sleep(MIN_PAUSE.saturating_mul(1 << attempt.min(10)).min(MAX_PAUSE)).await;
    }

    /// Returns the state of the gate; to be called before the kernel is told to drop pages.
    pub(crate) fn snapshot(&self) -> GateSnapshot {
        let arrived = self.arrived.load(Ordering::SeqCst);
        let state = self.state.lock();
        let blocked = state.waiting.values().filter(|waiter| waiter.is_blocked());
        let waiting = merged(blocked.filter_map(|waiter| waiter.waiting_for).map(whole_pages).collect());
        GateSnapshot { bypasses: state.bypasses, waiting, arrived, next: state.next }
    }

    /// Records that the kernel has dropped the pages of `range`, which it was told after
    /// `snapshot`.
    pub(crate) fn record_drop(&self, snapshot: &GateSnapshot, range: ByteRange) {
        // Waiting reads will fill pages.
        if snapshot.waiting.is_empty() && pages_outside(range).iter().all(|other| other.is_empty()) {
            self.dropped.fetch_max(snapshot.arrived, Ordering::SeqCst);
        }
    }

    /// Whether the kernel may have pages.
    pub(crate) fn may_have_pages(&self) -> bool {
        self.arrived.load(Ordering::SeqCst) > self.dropped.load(Ordering::SeqCst)
    }

    /// Whether a write leaves the pages cached that it doesn't change. They help while applications
    /// read. But an application that has mapped the file sends no reads while they stay. So the
    /// first writes after a read leave them. Then all pages are dropped once, and later writes have
    /// none to drop.
    pub(crate) fn count_partial_drop(&self) -> bool {
        let arrived = self.arrived.load(Ordering::SeqCst);
        if self.reads_at_drop.swap(arrived, Ordering::SeqCst) != arrived {
            self.partial_drops.store(0, Ordering::SeqCst);
        }
        self.partial_drops.fetch_add(1, Ordering::SeqCst) < MAX_PARTIAL_DROPS
    }

    /// Waits at the gate with a read of these bytes.
    pub(crate) async fn enter(&self, range: ByteRange) -> Admission {
        let Some(waiting) = self.wait(Some(range)) else { return Admission::Open };
        let at = |state: &GateState| match state.waiting.get(&waiting.number).and_then(|waiter| waiter.bypass)
        {
            _ if state.closed == 0 => Some(Admission::Open),
            pass => pass.map(Admission::Bypassed),
        };
        loop {
            let changed = self.changed.wait();
            if let Some(entry) = at(&self.state.lock()) {
                return entry;
            }
            changed.await;
        }
    }

    /// Returns the result of `work`, or `None` if waiting reads get a bypass without a lease first.
    pub(crate) async fn unless_bypassed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let Some(waiting) = self.wait(None) else { return Some(work.await) };
        self.unless(work, |state| {
            state.waiting.get(&waiting.number).is_some_and(|waiter| waiter.bypass.is_some())
        })
        .await
    }

    /// Registers a waiting read; `None` if it arrives at an open gate.
    fn wait(&self, range: Option<ByteRange>) -> Option<WaitTicket<'_>> {
        let mut state = self.state.lock();
        if state.closed == 0 && range.is_some() {
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, WaitingRead { waiting_for: range, bypass: None });
        drop(state);
        self.wake_watchers();
        Some(WaitTicket { gate: self, number })
    }

    /// Number of reads that the kernel waits for and that aren't blocked at the gate.
    fn running_reads(&self) -> u64 {
        // Loaded first: a read that arrives meanwhile is counted, and one that ends may be.
        let ended = self.ended.load(Ordering::SeqCst);
        let blocked = {
            let state = self.state.lock();
            state.waiting.values().filter(|waiter| waiter.is_blocked()).count() as u64
        };
        self.arrived.load(Ordering::SeqCst).saturating_sub(ended).saturating_sub(blocked)
    }

    async fn no_running_reads(&self) {
        loop {
            let changed = self.changed.wait();
            self.has_watcher.store(true, Ordering::SeqCst);
            if self.running_reads() == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Wakes the tasks that wait for reads to end.
    fn wake_watchers(&self) {
        if self.has_watcher.load(Ordering::SeqCst) && self.has_watcher.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Whether the gate is open.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().closed == 0
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed += 1;
        self.wake();
    }

    /// Returns the result of `work`, or `None` if the gate is closed first. A read that has passed
    /// the gate and waits for the end of a recall must return to the gate, since the recall may
    /// wait for the page that the read is to fill.
    pub(crate) async fn unless_closed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.unless(work, |state| state.closed > 0).await
    }

    async fn unless<T>(
        &self,
        work: impl Future<Output = T>,
        is_over: impl Fn(&GateState) -> bool,
    ) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let mut changed = pin!(self.changed.wait());
            if is_over(&self.state.lock()) {
                return None;
            }
            if let Some(output) = rt::select(work.as_mut(), changed.as_mut()).await.first() {
                return Some(output);
            }
        }
    }

    pub(crate) fn open(&self) {
        {
            let mut state = self.state.lock();
            state.closed = state.closed.saturating_sub(1);
        }
        self.wake();
    }

    /// Grants a bypass to the reads that have arrived since `snapshot`.
    pub(crate) fn bypass_newcomers(&self, snapshot: &GateSnapshot, bypass: Bypass) {
        self.grant_bypass(snapshot.next, bypass);
    }

    /// Grants a bypass to all waiting reads.
    pub(crate) fn bypass_all(&self, bypass: Bypass) {
        self.grant_bypass(0, bypass);
    }

    fn grant_bypass(&self, first: u64, bypass: Bypass) {
        let granted = {
            let mut state = self.state.lock();
            let mut any = false;
            for waiter in state.waiting.range_mut(first..).map(|(_, waiter)| waiter) {
                let gains = match bypass {
                    Bypass::Once => waiter.bypass != Some(Bypass::Once),
                    Bypass::UnderLease => waiter.waiting_for.is_some() && waiter.bypass.is_none(),
                };
                if gains {
                    waiter.bypass = Some(bypass);
                    any = true;
                }
            }
            state.bypasses += u64::from(any);
            any
        };
        if granted {
            self.wake();
        }
    }

    /// How often waiting reads have got a bypass.
    pub(crate) fn bypass_count(&self) -> u64 {
        self.state.lock().bypasses
    }

    fn wake(&self) {
        self.changed.set();
        self.changed.clear();
    }
}

struct WaitTicket<'a> {
    gate: &'a PageFillGate,
    number: u64,
}

impl Drop for WaitTicket<'_> {
    fn drop(&mut self) {
        self.gate.state.lock().waiting.remove(&self.number);
    }
}

impl Drop for FillRead<'_> {
    fn drop(&mut self) {
        self.gate.ended.fetch_add(1, Ordering::SeqCst);
        self.gate.wake_watchers();
    }
}

/// The pages that lie entirely within a range.
fn whole_pages(range: ByteRange) -> ByteRange {
    let page = BLOCK_SIZE as u64;
    let start = range.start.next_multiple_of(page);
    ByteRange { start, end: (range.end - range.end % page).max(start) }
}

/// The pages that don't overlap a range.
fn pages_outside(range: ByteRange) -> [ByteRange; 2] {
    let page = BLOCK_SIZE as u64;
    let end = range.end.checked_next_multiple_of(page).unwrap_or(u64::MAX);
    [ByteRange::new(0, range.start - range.start % page), ByteRange::new(end, u64::MAX)]
}

/// Merges ranges into ascending ones that don't touch each other.
fn merged(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
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
    use std::task::Poll;
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
    fn only_whole_pages_are_excluded() {
        assert_eq!(whole_pages(range(0, 8192)), range(0, 8192));
        assert_eq!(whole_pages(range(1, 8191)), range(4096, 4096));
        assert_eq!(whole_pages(range(100, 12300)), range(4096, 12288));
        let mixed =
            vec![range(8192, 12288), range(0, 4096), range(5, 5), range(4096, 8192), range(16384, 20480)];
        assert_eq!(merged(mixed), [range(0, 12288), range(16384, 20480)]);
        assert_eq!(pages_outside(range(5000, 8193)), [range(0, 4096), range(12288, u64::MAX)]);
        assert!(pages_outside(range(4095, u64::MAX)).iter().all(|other| other.is_empty()));
        assert_eq!(merged(vec![range(0, 9), range(2, 4), range(5, 6)]), [range(0, 9)]);
    }

    #[test]
    fn waiting_reads_are_excluded_until_they_bypass() {
        let gate = PageFillGate::new(false);
        gate.close();
        let noted = [gate.count_read(), gate.count_read()];
        let mut first = pin!(gate.enter(range(0, 4096)));
        assert_eq!(poll(&mut first), None);
        let snapshot = gate.snapshot();
        assert_eq!(snapshot.waiting, [range(0, 4096)]);
        assert_eq!(gate.running_reads(), 1, "the other one has not come to the door");

        // No bypass for reads from before `snapshot`.
        gate.bypass_newcomers(&snapshot, Bypass::Once);
        assert_eq!((poll(&mut first), gate.bypass_count()), (None, 0));
        let mut second = pin!(gate.enter(range(8192, 12288)));
        assert_eq!(poll(&mut second), None);
        gate.bypass_newcomers(&snapshot, Bypass::UnderLease);
        assert_eq!(gate.bypass_count(), 1);
        assert_eq!(gate.snapshot().waiting, [range(0, 4096)], "it is on its way in");
        assert_eq!(gate.running_reads(), 1);
        gate.bypass_newcomers(&snapshot, Bypass::Once);
        assert_eq!((poll(&mut first), poll(&mut second)), (None, Some(Admission::Bypassed(Bypass::Once))));
        gate.record_drop(&snapshot, range(0, u64::MAX));
        drop(noted);
        assert!(gate.may_have_pages(), "one was spared");

        gate.open();
        assert_eq!(poll(&mut first), Some(Admission::Open));
        let snapshot = gate.snapshot();
        assert!(snapshot.waiting.is_empty());
        gate.record_drop(&snapshot, range(0, u64::MAX));
        assert!(!gate.may_have_pages());
        assert_eq!(gate.running_reads(), 0);
    }

    #[test]
    fn first_writes_after_a_read_keep_other_pages() {
        let gate = PageFillGate::new(false);
        let rounds: Vec<_> = (0..2)
            .map(|_| {
                drop(gate.count_read());
                (0..=MAX_PARTIAL_DROPS).filter(|_| gate.count_partial_drop()).count() as u64
            })
            .collect();
        assert_eq!(rounds, [MAX_PARTIAL_DROPS; 2]);
        let snapshot = gate.snapshot();
        assert_eq!(snapshot.excluded_pages(range(4097, 4098)), [range(0, 4096), range(8192, u64::MAX)]);
        gate.record_drop(&snapshot, range(4096, 8192));
        assert!(gate.may_have_pages(), "some pages stay");
        gate.record_drop(&snapshot, range(1, u64::MAX));
        assert!(!gate.may_have_pages());
    }

    #[test]
    fn a_read_that_waits_for_its_lease_bypasses_once() {
        let gate = PageFillGate::new(false);
        gate.close();
        let _noted = gate.count_read();
        let mut waiting = pin!(gate.unless_bypassed(std::future::pending::<()>()));
        assert_eq!(poll(&mut waiting), None);
        let snapshot = gate.snapshot();
        assert!(snapshot.waiting.is_empty());
        gate.bypass_all(Bypass::UnderLease);
        assert_eq!((poll(&mut waiting), gate.bypass_count()), (None, 0));
        gate.bypass_all(Bypass::Once);
        assert_eq!((poll(&mut waiting), gate.bypass_count()), (Some(None), 1));
    }
}
