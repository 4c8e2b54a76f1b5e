//! Telling the kernel to forget.
//!
//! Threads of their own do it: invalidating waits for pages that a request on some core may be filling, so that a core that did it itself
//! could wait for itself.
//!
//! # Names
//!
//! The kernel can be told to forget one name at a time, but that takes the lock of the directory, which a change under way in it holds
//! until it is answered; and two clients that change one directory would wait for each other's changes. So names are forgotten all at once: the
//! kernel stamps every name with the number of an epoch, read before it asks for the name, and a notification begins the next one. That takes
//! no lock, and an answer that is still on its way can't bring back a name that is out of date. The price is one question for
//! each name that is used afterwards, which is why [`Names`] notes in which epoch a directory's names were last handed out: most recalls of
//! directories need no notification. Kernels without epochs (before Linux 6.16) get no name to keep where other clients may change it.

use crate::abi::{self, NotifyInvalInode, OutHeader, bytes_of};
use crate::sys;
use parking_lot::{Condvar, Mutex};
use rt::sync::Event;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use types::InodeId;

/// Threads that tell the kernel where it has to be told often: one inode whose pages are busy doesn't hold up the others.
pub const THREADS: usize = 4;
/// Directories that are remembered with their epoch. Beyond it all count as handed out in the last epoch.
const MAX_DIRECTORIES: usize = 65536;

/// The queue between those who know of a change and the threads that tell the kernel. Those who wait bound it.
#[derive(Default)]
pub struct Notifier {
    state: Mutex<State>,
    changed: Condvar,
    names: Names,
}

#[derive(Default)]
struct State {
    pending: VecDeque<Job>,
    ended: bool,
}

struct Job {
    ino: InodeId,
    done: Arc<Event>,
}

impl Notifier {
    /// Lets the kernel forget attributes, cached data and, of a directory, names. What is returned is set when it has.
    pub fn forget(&self, ino: InodeId) -> Arc<Event> {
        let done = Arc::new(Event::new());
        let mut state = self.state.lock();
        if state.ended {
            // Nobody uses the mount any more.
            done.set();
        } else {
            state.pending.push_back(Job { ino, done: done.clone() });
            self.changed.notify_one();
        }
        done
    }

    /// Names of a directory are about to be asked for, and handed to the kernel to keep.
    pub fn hand_out_names(&self, dir: InodeId) {
        self.names.hand_out(dir);
    }

    /// Ends the threads, and every wait for them.
    pub fn end(&self) {
        let pending = {
            let mut state = self.state.lock();
            state.ended = true;
            std::mem::take(&mut state.pending)
        };
        self.changed.notify_all();
        pending.into_iter().for_each(|job| job.done.set());
    }

    /// A thread's work: runs until [`Notifier::end`].
    pub fn run(&self, device: &OwnedFd) {
        while let Some(job) = self.next() {
            if self.names.begin_epoch_without(job.ino) {
                // EINVAL from a kernel without epochs, which was given no names to keep.
                let _ = sys::write(device.as_raw_fd(), bytes_of(&next_epoch()));
            }
            // ENOENT: the kernel doesn't know the inode (any more), so there is nothing to forget. Other errors mean the end of
            // the connection, which the transport notices.
            let _ = sys::write(device.as_raw_fd(), &invalidation(job.ino));
            job.done.set();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        while state.pending.is_empty() && !state.ended {
            self.changed.wait(&mut state);
        }
        if state.ended { None } else { state.pending.pop_front() }
    }
}

/// In which epoch each directory's names were last handed out.
#[derive(Default)]
struct Names {
    epochs: Mutex<Epochs>,
}

#[derive(Default)]
struct Epochs {
    now: u64,
    handed_out: HashMap<InodeId, u64>,
    /// Directories that are not remembered count as handed out then, if at all.
    forgotten: Option<u64>,
}

impl Names {
    /// To be noted before the lease is looked at under which the names are handed out: a recall that comes in between finds the note.
    fn hand_out(&self, dir: InodeId) {
        let mut epochs = self.epochs.lock();
        let now = epochs.now;
        if epochs.handed_out.len() >= MAX_DIRECTORIES && !epochs.handed_out.contains_key(&dir) {
            epochs.handed_out.clear();
            epochs.forgotten = Some(now);
        }
        epochs.handed_out.insert(dir, now);
    }

    /// True when the kernel may have names of the directory in this epoch, which then is over: the kernel is to be told.
    ///
    /// The count goes first: names that are asked for before the kernel knows count to the new epoch, and are forgotten once too often.
    fn begin_epoch_without(&self, dir: InodeId) -> bool {
        let mut epochs = self.epochs.lock();
        let last = epochs.handed_out.remove(&dir).max(epochs.forgotten);
        let has_names = last == Some(epochs.now);
        epochs.now += u64::from(has_names);
        has_names
    }
}

/// The message: no request (`unique` 0), the code in place of the error, the whole range.
fn invalidation(ino: InodeId) -> [u8; size_of::<OutHeader>() + size_of::<NotifyInvalInode>()] {
    let mut message = [0; size_of::<OutHeader>() + size_of::<NotifyInvalInode>()];
    let header = OutHeader { len: message.len() as u32, error: abi::NOTIFY_INVAL_INODE, unique: 0 };
    let (head, body) = message.split_at_mut(size_of::<OutHeader>());
    head.copy_from_slice(bytes_of(&header));
    body.copy_from_slice(bytes_of(&NotifyInvalInode { ino: ino.0, off: 0, len: 0 }));
    message
}

/// The message that begins the next epoch of names.
fn next_epoch() -> OutHeader {
    OutHeader { len: size_of::<OutHeader>() as u32, error: abi::NOTIFY_INC_EPOCH, unique: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeId = InodeId(5);

    #[test]
    fn the_message_is_what_the_kernel_wants() {
        let message = invalidation(InodeId(9));
        let header: OutHeader = abi::read(&message).unwrap();
        assert_eq!(header, OutHeader { len: 40, error: 2, unique: 0 });
        assert_eq!(abi::read(&message[16..]), Some(NotifyInvalInode { ino: 9, off: 0, len: 0 }));
        assert_eq!(bytes_of(&next_epoch()).len(), 16);
    }

    #[test]
    fn an_epoch_ends_only_for_names_that_were_handed_out_in_it() {
        let names = Names::default();
        assert!(!names.begin_epoch_without(DIR), "nothing was handed out");
        names.hand_out(DIR);
        names.hand_out(InodeId(6));
        assert!(names.begin_epoch_without(DIR));
        assert!(!names.begin_epoch_without(InodeId(6)), "its names went with the epoch");
        names.hand_out(InodeId(6));
        assert!(names.begin_epoch_without(InodeId(6)));
    }

    #[test]
    fn directories_beyond_the_limit_count_as_handed_out() {
        let names = Names::default();
        for n in 0..=MAX_DIRECTORIES as u64 {
            names.hand_out(InodeId(1000 + n));
        }
        assert!(names.epochs.lock().handed_out.len() <= MAX_DIRECTORIES);
        assert!(names.begin_epoch_without(InodeId(1000)));
        assert!(!names.begin_epoch_without(InodeId(1001)));
    }

    #[test]
    fn nobody_waits_after_the_end() {
        let notifier = Notifier::default();
        let before = notifier.forget(DIR);
        notifier.end();
        assert!(before.is_set() && notifier.forget(DIR).is_set());
        assert!(notifier.next().is_none());
    }
}
