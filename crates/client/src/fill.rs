//! Reads whose bytes stay in the kernel's page cache, and the door that a recall closes before them.
//!
//! While the kernel is told to forget, such a read could put back what is being forgotten. So they wait. But the kernel can't forget
//! a page that a waiting read is to fill: when it takes long, those that wait are let through, and the kernel has to forget once more.
//!
//! # A read whose reply is still on its way to the kernel
//!
//! The gate of the inode is given back before the reply is handed in. That is no gap: the kernel adds a page to its cache, locked, before it
//! asks for it, and unlocks it when it has the answer. To forget waits for the lock. So a page that was asked for before the kernel was
//! told to forget is forgotten, and one that is asked for afterwards comes to the closed door. (Attributes need no lock: the kernel
//! numbers them, and drops an answer to a question that is older than the notification.)
//!
//! # Which inodes the kernel has pages of
//!
//! Pages stay when the file is closed through which they were read, until the kernel forgets the inode. So reads for the page cache are
//! counted with the inode, each when it arrives, since its page is in the cache by then; and it is noted how many had come when a
//! forgetting began that is over.
//!
//! # Who is let through
//!
//! A read that is let through fills a page behind the back of everybody who had the kernel forget before. So each pass is counted, and whoever is
//! about to do that for which the kernel had to forget (to give the lease up, to make the file longer) looks, alone at the gate, whether somebody
//! was let through meanwhile; then the kernel forgets once more. A recall lets reads through with what is loaded, or with one answer of the
//! service: nobody else can change the file before the recall is answered. A write of this session gives no such guarantee, so
//! those that it lets through get a lease first. Forgetting may take long though nobody is in its way: the threads that tell the kernel may all wait
//! for pages of other files, which a storage node that is down doesn't bring.

use parking_lot::Mutex;
use rt::sync::Event;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

/// The door of one inode.
#[derive(Default)]
pub(crate) struct Fills {
    state: Mutex<Door>,
    moved: Event,
    /// Reads so far, and how many of them the kernel surely has no page of any more.
    noted: AtomicU64,
    forgotten: AtomicU64,
}

#[derive(Default)]
struct Door {
    /// How many recalls hold it closed.
    closed: usize,
    /// How often those who waited were let through.
    passes: Passes,
    waiting: usize,
}

/// Passes so far, of each kind.
#[derive(Clone, Copy, Default)]
struct Passes {
    once: u64,
    under_lease: u64,
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
        Fills { noted: AtomicU64::new(u64::from(filled)), ..Fills::default() }
    }

    /// Notes a read for the page cache. To be called before it comes to the door.
    pub(crate) fn note(&self) {
        self.noted.fetch_add(1, Ordering::SeqCst);
    }

    /// Reads that have been noted.
    pub(crate) fn noted(&self) -> u64 {
        self.noted.load(Ordering::SeqCst)
    }

    /// The kernel has forgotten, and had been told so when this many reads had been noted.
    pub(crate) fn forgotten(&self, noted: u64) {
        self.forgotten.fetch_max(noted, Ordering::SeqCst);
    }

    /// Whether the kernel may have pages.
    pub(crate) fn is_filled(&self) -> bool {
        self.noted() > self.forgotten.load(Ordering::SeqCst)
    }

    /// Waits at the door.
    pub(crate) async fn enter(&self) -> Entry {
        let passes = {
            let mut door = self.state.lock();
            if door.closed == 0 {
                return Entry::Free;
            }
            door.waiting += 1;
            door.passes
        };
        let _counted = Waiting { fills: self };
        loop {
            let moved = self.moved.wait();
            {
                let door = self.state.lock();
                if door.closed == 0 {
                    return Entry::Free;
                }
                if door.passes.once != passes.once {
                    return Entry::LetThrough(Pass::Once);
                }
                if door.passes.under_lease != passes.under_lease {
                    return Entry::LetThrough(Pass::UnderLease);
                }
            }
            moved.await;
        }
    }

    /// What `work` comes to, or nothing when those who wait are let through without a lease before.
    pub(crate) async fn unless_let_through<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let passes = {
            let mut door = self.state.lock();
            door.waiting += 1;
            door.passes
        };
        let _counted = Waiting { fills: self };
        self.unless(work, |door| door.passes.once != passes.once).await
    }

    /// True while no recall holds reads back.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().closed == 0
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed += 1;
        self.wake();
    }

    /// What `work` comes to, or nothing when the door is closed before: a read that waits behind the door for the end of a recall must
    /// come back to it, since the recall may wait for the page that the read is to fill.
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

    /// Lets those through who wait.
    pub(crate) fn let_through(&self, pass: Pass) {
        {
            let mut door = self.state.lock();
            if door.waiting == 0 {
                return;
            }
            match pass {
                Pass::Once => door.passes.once += 1,
                Pass::UnderLease => door.passes.under_lease += 1,
            }
        }
        self.wake();
    }

    /// How often some were let through so far.
    pub(crate) fn passes(&self) -> u64 {
        let passes = self.state.lock().passes;
        passes.once + passes.under_lease
    }

    fn wake(&self) {
        self.moved.set();
        self.moved.clear();
    }
}

struct Waiting<'a> {
    fills: &'a Fills,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.fills.state.lock().waiting -= 1;
    }
}
