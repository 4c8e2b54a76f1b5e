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
//! Pages stay when the file is closed through which they were read, until the kernel forgets the inode. So it is noted with the inode that
//! some may be there: from the arrival of the first read for the page cache, since its page is in the cache by then, until nothing was
//! read between the beginning and the end of a forgetting.

use parking_lot::Mutex;
use rt::sync::Event;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

/// The door of one inode.
#[derive(Default)]
pub(crate) struct Fills {
    state: Mutex<Door>,
    moved: Event,
    /// The kernel may have pages.
    filled: AtomicBool,
}

#[derive(Default)]
struct Door {
    /// How many recalls hold it closed.
    closed: usize,
    /// How often those who waited were let through.
    passes: u64,
    waiting: usize,
}

/// How a read came through the door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// It was open.
    Free,
    /// It is closed: the lease is on its way out, and the kernel will forget what is read.
    LetThrough,
}

impl Fills {
    /// An open door. `filled`: whether the kernel may have pages.
    pub(crate) fn new(filled: bool) -> Fills {
        Fills { filled: AtomicBool::new(filled), ..Fills::default() }
    }

    /// Notes a read for the page cache. To be called before it comes to the door, and again when it has its bytes, since the kernel may have
    /// been told to forget in between.
    pub(crate) fn note(&self) {
        self.filled.store(true, Ordering::SeqCst);
    }

    /// Whether the kernel may have pages.
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::SeqCst)
    }

    /// The kernel is about to be told to forget what it has by now.
    pub(crate) fn begin_to_forget(&self) {
        self.filled.store(false, Ordering::SeqCst);
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
                if door.passes != passes {
                    return Entry::LetThrough;
                }
            }
            moved.await;
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

    /// What `work` comes to, or nothing when the door is closed before: a read that waits behind the door for the end of a recall must
    /// come back to it, since the recall may wait for the page that the read is to fill.
    pub(crate) async fn unless_closed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let mut moved = pin!(self.moved.wait());
            if !self.is_open() {
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
    pub(crate) fn let_through(&self) {
        {
            let mut door = self.state.lock();
            if door.waiting == 0 {
                return;
            }
            door.passes += 1;
        }
        self.wake();
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
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.fills.state.lock().waiting -= 1;
    }
}
