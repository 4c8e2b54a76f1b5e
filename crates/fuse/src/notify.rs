//! Telling the kernel to forget.
//!
//! A thread of its own does it: invalidating waits for pages that a request on some core may be filling, so that a core
//! that did it itself could wait for itself.

use crate::abi::{self, NotifyInvalInode, OutHeader, bytes_of};
use crate::sys;
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::os::fd::{AsRawFd, OwnedFd};
use types::{Errno, Error, InodeId, Result};

/// Inodes whose invalidation is waiting for the thread; each is in the queue at most once.
const MAX_PENDING: usize = 65536;

/// The queue between those who know of a change and the thread that tells the kernel.
#[derive(Default)]
pub struct Notifier {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pending: HashSet<InodeId>,
    ended: bool,
}

impl Notifier {
    /// Lets the kernel forget attributes and cached data of an inode, soon. `EAGAIN` when too many wait already.
    pub fn invalidate_inode(&self, ino: InodeId) -> Result<()> {
        let mut state = self.state.lock();
        if state.pending.len() >= MAX_PENDING && !state.pending.contains(&ino) {
            return Err(Error::new(
                Errno::EAGAIN,
                format!("{MAX_PENDING} invalidations are waiting for the kernel"),
            ));
        }
        state.pending.insert(ino);
        self.changed.notify_one();
        Ok(())
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_one();
    }

    /// The thread's work: runs until [`Notifier::end`].
    pub fn run(&self, device: &OwnedFd) {
        while let Some(batch) = self.next_batch() {
            for ino in batch {
                // ENOENT: the kernel doesn't know the inode (any more), so there is nothing to forget. Other errors mean the end of
                // the connection, which the transport notices.
                let _ = sys::write(device.as_raw_fd(), &invalidation(ino));
            }
        }
    }

    fn next_batch(&self) -> Option<HashSet<InodeId>> {
        let mut state = self.state.lock();
        while state.pending.is_empty() && !state.ended {
            self.changed.wait(&mut state);
        }
        if state.ended { None } else { Some(std::mem::take(&mut state.pending)) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_waits_once_and_the_queue_is_bounded() {
        let notifier = Notifier::default();
        for n in 0..MAX_PENDING as u64 {
            notifier.invalidate_inode(InodeId(n)).unwrap();
        }
        notifier.invalidate_inode(InodeId(7)).unwrap();
        assert_eq!(notifier.invalidate_inode(InodeId(u64::MAX)).unwrap_err().errno, Errno::EAGAIN);
        assert_eq!(notifier.next_batch().unwrap().len(), MAX_PENDING);
        notifier.invalidate_inode(InodeId(u64::MAX)).unwrap();
        notifier.end();
        assert!(notifier.next_batch().is_none());
    }

    #[test]
    fn the_message_is_what_the_kernel_wants() {
        let message = invalidation(InodeId(9));
        let header: OutHeader = abi::read(&message).unwrap();
        assert_eq!(header, OutHeader { len: 40, error: 2, unique: 0 });
        assert_eq!(abi::read(&message[16..]), Some(NotifyInvalInode { ino: 9, off: 0, len: 0 }));
    }
}
