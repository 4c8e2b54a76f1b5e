//! Invalidation: the kernel drops what it caches.

use crate::Client;
use crate::file::inode::OpenInode;
use crate::kernel::page_cache::ALL_PAGES;
use crate::kernel::page_fill::Bypass;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{ByteRange, Credentials, InodeId};

/// How long the kernel may take to drop an inode's pages before waiting reads bypass the gate.
/// Dropping takes some microseconds, unless it waits for one of these reads.
const DROP_TIMEOUT: Duration = Duration::from_millis(20);
/// How often only new reads bypass the gate, at first; it doubles with each further drop. The
/// kernel doesn't wait for older reads, but may wait for reads that it hasn't sent yet because of
/// them.
const NEWCOMER_ROUNDS: u32 = 5;

/// The owner of caches that recalls invalidate: a kernel.
pub trait Invalidate: Send + Sync {
    /// Drops all cached state of an inode: attributes, pages, and for a directory its names and
    /// negative entries. When the future completes, none of it is used any more. It may wait for
    /// cached reads of the same inode, and for nothing else of this client.
    ///
    /// It doesn't wait for reads of `except`: pages that hold no data yet, or that may stay. The
    /// ranges are in ascending order and not adjacent. If they cover all pages, only the attributes
    /// are dropped, which waits for nothing.
    fn drop_cached(&self, ino: InodeId, except: Vec<ByteRange>) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// The session has ended, and with it all advisory locks. The successor session gets no request
    /// yet.
    fn locks_lost(&self) {}

    /// Whether reads update access times. Called rarely.
    fn updates_atime(&self) -> bool {
        false
    }

    /// Whether user ids may be mapped before requests arrive. If so, only the kernel knows the real
    /// user, and has checked its permissions.
    fn has_mapped_ids(&self) -> bool {
        false
    }

    /// Returns the privileges of a thread that waits for an answer, beyond its ids. `None` if the
    /// thread can't be found, or acts for another user. May read a file in procfs.
    fn privileges(&self, credentials: Credentials) -> Option<UserPrivileges> {
        let _ = credentials;
        None
    }
}

/// Privileges of a user that the credentials of a request don't contain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserPrivileges {
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Effective capabilities, bits of `CAP_*`: those that are valid in the user namespace of the
    /// mount.
    pub capabilities: u64,
}

/// The caches of the kernel that uses the session, if it has an owner.
#[derive(Default)]
pub(crate) struct KernelCaches {
    invalidator: Mutex<Option<Weak<dyn Invalidate>>>,
}

impl KernelCaches {
    /// Takes over the owner of another session's caches.
    pub(crate) fn take_invalidator_of(&self, other: &KernelCaches) {
        let invalidator = other.invalidator.lock().clone();
        *self.invalidator.lock() = invalidator;
    }

    /// The owner of the caches.
    pub(crate) fn invalidator(&self) -> Option<Arc<dyn Invalidate>> {
        self.invalidator.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Has the kernel drop an inode until it surely has; returns the number of bypasses by then.
    pub(crate) async fn drop_cached(&self, ino: InodeId, inode: Option<&OpenInode>, bypass: Bypass) -> u64 {
        if let Some(inode) = inode {
            return self.drop_cached_pages(inode, ALL_PAGES, bypass).await;
        }
        if let Some(invalidator) = self.invalidator() {
            invalidator.drop_cached(ino, Vec::new()).await;
        }
        0
    }

    /// Like [`KernelCaches::drop_cached`], for an inode in use and the pages of `range`.
    pub(crate) async fn drop_cached_pages(&self, inode: &OpenInode, range: ByteRange, bypass: Bypass) -> u64 {
        let Some(invalidator) = self.invalidator() else { return inode.page_gate.bypass_count() };
        for attempt in 0.. {
            inode.page_gate.drain_reads(attempt).await;
            let snapshot = inode.page_gate.snapshot();
            let mut invalidation = invalidator.drop_cached(inode.ino, snapshot.excluded_pages(range));
            let mut waited = 0;
            while rt::timeout(DROP_TIMEOUT, invalidation.as_mut()).await.is_none() {
                waited += 1;
                match waited < NEWCOMER_ROUNDS << attempt.min(10) {
                    true => inode.page_gate.bypass_newcomers(&snapshot, bypass),
                    false => inode.page_gate.bypass_all(bypass),
                }
            }
            if inode.page_gate.bypass_count() == snapshot.bypasses {
                inode.page_gate.record_drop(&snapshot, range);
                return snapshot.bypasses;
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Has the kernel drop the attributes: a change of content has changed more of them than the
    /// kernel expects.
    pub(crate) async fn drop_cached_attributes(&self, ino: InodeId) {
        if let Some(invalidator) = self.invalidator() {
            invalidator.drop_cached(ino, vec![ByteRange::new(0, u64::MAX)]).await;
        }
    }
}

impl Client {
    /// Sets the owner of the caches to invalidate. The client keeps a weak reference.
    pub fn set_invalidator(&self, invalidator: Weak<dyn Invalidate>) {
        *self.kernel.invalidator.lock() = Some(invalidator);
    }
}
