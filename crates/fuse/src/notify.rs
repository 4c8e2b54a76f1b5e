//! Invalidation of the kernel's caches.
//!
//! Separate threads send the notifications: an invalidation waits for pages that a request on some
//! core may be filling, so a core that sent it could wait for itself.
//!
//! # Names
//!
//! The kernel can invalidate one dentry at a time. But that takes the lock of the directory, which
//! a change in progress holds until it is answered. So two clients that change one directory would
//! wait for each other's changes.
//!
//! Therefore all dentries are invalidated at once. The kernel stamps every dentry with the number
//! of an epoch, read before it requests the entry, and a notification begins the next epoch. That
//! takes no lock, and a reply in flight can't restore an outdated dentry. The price is one lookup
//! for each dentry that is used afterwards. So [`DentryEpochs`] records in which epoch entries of a
//! directory were last handed out: most recalls of directories need no notification. Kernels
//! without epochs (before Linux 6.16) get no dentries to cache where other clients may change them.

use crate::abi::{self, NotifyInvalInode, OutHeader, bytes_of};
use crate::sys;
use parking_lot::{Condvar, Mutex};
use rt::sync::Event;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use types::{ByteRange, HashMap, InodeId};

/// Threads that always send notifications: one inode with busy pages doesn't delay the others.
pub const THREADS: usize = 4;
/// Most additional threads while all regular ones wait for pages. Reads may wait for a service
/// until the kernel has invalidated other inodes, and there are as many of them as applications
/// read. Each thread costs some KiB.
const MAX_HELPERS: usize = 256;
/// Time without progress after which another thread starts: an invalidation takes microseconds,
/// unless it waits for a page.
const STALL_TIMEOUT: Duration = Duration::from_millis(20);
/// Time after which an idle additional thread ends.
const HELPER_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Directories recorded with their epoch. Beyond it all count as handed out in the last epoch.
const MAX_DIRECTORIES: usize = 65536;

/// The queue between tasks that know of a change and the threads that notify the kernel. The
/// waiting tasks bound its length.
#[derive(Default)]
pub struct Notifier {
    state: Mutex<State>,
    changed: Condvar,
    /// All threads are busy.
    behind: Condvar,
    dentry_epochs: DentryEpochs,
}

#[derive(Default)]
struct State {
    pending: VecDeque<Job>,
    ended: bool,
    /// Threads that wait for a job.
    idle: usize,
    helpers: usize,
    /// Jobs that threads have begun so far.
    begun: u64,
    /// A thread watches whether another job begins in time.
    is_watched: bool,
}

struct Job {
    what: CacheInvalidation,
    done: Arc<Event>,
}

/// What the kernel invalidates.
struct CacheInvalidation {
    ino: InodeId,
    /// Except these pages: ascending and disjoint.
    except: Vec<ByteRange>,
}

impl Notifier {
    /// Has the kernel invalidate attributes, cached data except some pages (ascending and disjoint)
    /// and, for a directory, dentries. The returned event is set when that is done.
    pub fn invalidate(&self, ino: InodeId, except: Vec<ByteRange>) -> Arc<Event> {
        let done = Arc::new(Event::new());
        let mut state = self.state.lock();
        if state.ended {
            // The mount is not in use any more.
            done.set();
        } else {
            state.pending.push_back(Job { what: CacheInvalidation { ino, except }, done: done.clone() });
            self.changed.notify_one();
            self.wake_if_behind(&state);
        }
        done
    }

    /// Records that entries of a directory are about to be read and handed to the kernel for
    /// caching.
    pub fn note_cached_entries(&self, dir: InodeId) {
        self.dentry_epochs.note_cached(dir);
    }

    /// Ends the threads and every wait for them.
    pub fn end(&self) {
        let pending = {
            let mut state = self.state.lock();
            state.ended = true;
            std::mem::take(&mut state.pending)
        };
        self.changed.notify_all();
        self.behind.notify_all();
        pending.into_iter().for_each(|job| job.done.set());
    }

    /// Runs a regular thread until [`Notifier::end`].
    pub fn run(&self, device: &OwnedFd) {
        self.run_jobs(&|what| self.notify_kernel(device, what), None);
    }

    /// Runs the thread that starts additional threads when all wait for pages, until
    /// [`Notifier::end`].
    pub fn run_supervisor(&self, device: &OwnedFd) {
        self.supervise(&|what| self.notify_kernel(device, what));
    }

    fn notify_kernel(&self, device: &OwnedFd, invalidation: &CacheInvalidation) {
        if self.dentry_epochs.end_epoch_if_cached(invalidation.ino) {
            // EINVAL from a kernel without epochs, which was given no dentries to cache.
            let _ = sys::write(device.as_raw_fd(), bytes_of(&next_epoch()));
        }
        // ENOENT: the kernel doesn't know the inode (any more), so there is nothing to invalidate.
        // Other errors mean the end of the connection, which the transport notices.
        for message in invalidations(invalidation) {
            let _ = sys::write(device.as_raw_fd(), &message);
        }
    }

    fn run_jobs(&self, notify: &(impl Fn(&CacheInvalidation) + Sync), idle_timeout: Option<Duration>) {
        while let Some(job) = self.next(idle_timeout) {
            notify(&job.what);
            job.done.set();
        }
    }

    fn supervise(&self, notify: &(impl Fn(&CacheInvalidation) + Sync)) {
        std::thread::scope(|threads| {
            while self.wait_until_behind() {
                let helper = std::thread::Builder::new().name("fuse-notify-more".into());
                let started = helper.spawn_scoped(threads, || {
                    self.run_jobs(notify, Some(HELPER_IDLE_TIMEOUT));
                    self.state.lock().helpers -= 1;
                });
                if let Err(error) = started {
                    tracing::warn!(%error, "can't start another thread to invalidate the kernel's caches");
                    self.state.lock().helpers -= 1;
                }
            }
        });
    }

    /// Waits until a queued job isn't begun in time, and counts an additional thread. Returns false
    /// at the end.
    fn wait_until_behind(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            while !(state.ended || state.is_behind() && state.helpers < MAX_HELPERS) {
                self.behind.wait(&mut state);
            }
            if state.ended {
                return false;
            }
            let begun = state.begun;
            state.is_watched = true;
            self.behind.wait_for(&mut state, STALL_TIMEOUT);
            state.is_watched = false;
            if !state.ended && state.is_behind() && state.begun == begun {
                state.helpers += 1;
                return true;
            }
        }
    }

    fn wake_if_behind(&self, state: &State) {
        if state.is_behind() && !state.is_watched {
            self.behind.notify_one();
        }
    }

    fn next(&self, idle_timeout: Option<Duration>) -> Option<Job> {
        let mut state = self.state.lock();
        while state.pending.is_empty() && !state.ended {
            state.idle += 1;
            let is_over = match idle_timeout {
                Some(idle_timeout) => self.changed.wait_for(&mut state, idle_timeout).timed_out(),
                None => {
                    self.changed.wait(&mut state);
                    false
                }
            };
            state.idle -= 1;
            if is_over && state.pending.is_empty() {
                return None;
            }
        }
        let job = if state.ended { None } else { state.pending.pop_front() };
        state.begun += 1;
        self.wake_if_behind(&state);
        job
    }
}

impl State {
    /// Returns true if jobs are queued and no thread is idle.
    fn is_behind(&self) -> bool {
        self.idle == 0 && !self.pending.is_empty()
    }
}

/// The epoch in which each directory's entries were last handed out.
#[derive(Default)]
struct DentryEpochs {
    epochs: Mutex<Epochs>,
}

#[derive(Default)]
struct Epochs {
    now: u64,
    cached_in: HashMap<InodeId, u64>,
    /// Epoch that counts for directories that aren't recorded, if any.
    untracked_epoch: Option<u64>,
}

impl DentryEpochs {
    /// Call this before checking the lease under which the entries are handed out: a recall that
    /// arrives in between finds the record.
    fn note_cached(&self, dir: InodeId) {
        let mut epochs = self.epochs.lock();
        let now = epochs.now;
        if epochs.cached_in.len() >= MAX_DIRECTORIES && !epochs.cached_in.contains_key(&dir) {
            epochs.cached_in.clear();
            epochs.untracked_epoch = Some(now);
        }
        epochs.cached_in.insert(dir, now);
    }

    /// Returns true when the kernel may have dentries of the directory from this epoch. It then
    /// ends the epoch, and the caller must notify the kernel.
    ///
    /// The count increases first: entries that are requested before the kernel knows the new epoch
    /// count to it, and are invalidated once too often.
    fn end_epoch_if_cached(&self, dir: InodeId) -> bool {
        let mut epochs = self.epochs.lock();
        let last = epochs.cached_in.remove(&dir).max(epochs.untracked_epoch);
        let has_dentries = last == Some(epochs.now);
        epochs.now += u64::from(has_dentries);
        has_dentries
    }
}

/// Returns the messages, one for each range between the excepted pages: no request (`unique` 0),
/// the code in place of the error. The last message covers the rest of the file, which is length 0.
/// Each also invalidates the attributes. If all pages are excepted, one message invalidates only
/// the attributes, which is a negative offset.
fn invalidations(invalidation: &CacheInvalidation) -> impl Iterator<Item = Invalidation> {
    let is_whole = invalidation.except.iter().any(|range| range.start == 0 && range.end == u64::MAX);
    let attributes =
        is_whole.then(|| invalidate_inode(NotifyInvalInode { ino: invalidation.ino.0, off: -1, len: 0 }));
    let begins = std::iter::once(0).chain(invalidation.except.iter().map(|range| range.end));
    let ends = invalidation.except.iter().map(|range| range.start).chain([u64::MAX]);
    let pages = begins.zip(ends).filter(|(begin, end)| begin < end).map(|(begin, end)| {
        let len = if end == u64::MAX { 0 } else { end - begin };
        invalidate_inode(NotifyInvalInode { ino: invalidation.ino.0, off: begin as i64, len: len as i64 })
    });
    pages.chain(attributes)
}

type Invalidation = [u8; size_of::<OutHeader>() + size_of::<NotifyInvalInode>()];

fn invalidate_inode(what: NotifyInvalInode) -> Invalidation {
    let mut message = [0; size_of::<Invalidation>()];
    let header = OutHeader { len: message.len() as u32, error: abi::NOTIFY_INVAL_INODE, unique: 0 };
    let (head, body) = message.split_at_mut(size_of::<OutHeader>());
    head.copy_from_slice(bytes_of(&header));
    body.copy_from_slice(bytes_of(&what));
    message
}

/// Returns the message that begins the next epoch of dentries.
fn next_epoch() -> OutHeader {
    OutHeader { len: size_of::<OutHeader>() as u32, error: abi::NOTIFY_INC_EPOCH, unique: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeId = InodeId(5);

    #[test]
    fn invalidation_messages_have_the_kernel_format() {
        let messages_for = |except: &[(u64, u64)]| {
            let except = except.iter().map(|&(start, end)| ByteRange { start, end }).collect();
            let what = CacheInvalidation { ino: InodeId(9), except };
            let messages = invalidations(&what).map(|message| {
                let header: OutHeader = abi::read(&message).unwrap();
                assert_eq!(header, OutHeader { len: 40, error: 2, unique: 0 });
                let NotifyInvalInode { ino, off, len } = abi::read(&message[16..]).unwrap();
                assert_eq!(ino, 9);
                (off, len)
            });
            messages.collect::<Vec<_>>()
        };
        assert_eq!(messages_for(&[]), [(0, 0)]);
        assert_eq!(messages_for(&[(0, 4096)]), [(4096, 0)]);
        assert_eq!(messages_for(&[(0, u64::MAX)]), [(-1, 0)]);
        assert_eq!(messages_for(&[(4096, 12288), (16384, 20480)]), [(0, 4096), (12288, 4096), (20480, 0)]);
        assert_eq!(bytes_of(&next_epoch()).len(), 16);
    }

    #[test]
    fn an_epoch_ends_only_for_names_that_were_handed_out_in_it() {
        let names = DentryEpochs::default();
        assert!(!names.end_epoch_if_cached(DIR), "nothing was handed out");
        names.note_cached(DIR);
        names.note_cached(InodeId(6));
        assert!(names.end_epoch_if_cached(DIR));
        assert!(!names.end_epoch_if_cached(InodeId(6)), "its names went with the epoch");
        names.note_cached(InodeId(6));
        assert!(names.end_epoch_if_cached(InodeId(6)));
    }

    #[test]
    fn directories_beyond_the_limit_count_as_handed_out() {
        let names = DentryEpochs::default();
        for n in 0..=MAX_DIRECTORIES as u64 {
            names.note_cached(InodeId(1000 + n));
        }
        assert!(names.epochs.lock().cached_in.len() <= MAX_DIRECTORIES);
        assert!(names.end_epoch_if_cached(InodeId(1000)));
        assert!(!names.end_epoch_if_cached(InodeId(1001)));
    }

    #[test]
    fn no_wait_remains_after_the_end() {
        let notifier = Notifier::default();
        let before = notifier.invalidate(DIR, Vec::new());
        notifier.end();
        assert!(before.is_set() && notifier.invalidate(DIR, Vec::new()).is_set());
        assert!(notifier.next(None).is_none());
    }

    #[test]
    fn busy_pages_of_some_files_do_not_delay_other_invalidations() {
        let notifier = Notifier::default();
        let (filled, page) = (Mutex::new(false), Condvar::new());
        let busy = InodeId(1000);
        let notify = |what: &CacheInvalidation| {
            let mut filled = filled.lock();
            while what.ino < busy && !*filled {
                page.wait(&mut filled);
            }
        };
        std::thread::scope(|threads| {
            for _ in 0..THREADS {
                threads.spawn(|| notifier.run_jobs(&notify, None));
            }
            threads.spawn(|| notifier.supervise(&notify));
            let waiting: Vec<_> = (0..3 * THREADS as u64)
                .map(|number| notifier.invalidate(InodeId(number), Vec::new()))
                .collect();
            let other = notifier.invalidate(busy, Vec::new());
            let mut polls = 0;
            while !other.is_set() && polls < 3000 {
                std::thread::sleep(Duration::from_millis(10));
                polls += 1;
            }
            let outcome = (other.is_set(), waiting.iter().any(|done| done.is_set()));
            *filled.lock() = true;
            page.notify_all();
            while !waiting.iter().all(|done| done.is_set()) {
                std::thread::sleep(Duration::from_millis(10));
            }
            notifier.end();
            assert_eq!(outcome, (true, false), "others are forgotten, and none of the busy ones");
        });
        assert_eq!(notifier.state.lock().helpers, 0);
    }
}
