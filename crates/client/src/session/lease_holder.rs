//! What the session needs of the client's other parts. It knows nothing else of files and caches.
//!
//! [`LeaseHolder`] is the part that uses what leases cover, and gives it up. [`RequestObserver`]
//! learns from requests and answers what the client may cache.

use crate::session::leases::{Answer, Leases, RecallTerms, RequestStamp};
use std::future::Future;
use std::pin::Pin;
use types::{InodeId, Result};
use wire::{AsyncChange, AsyncCreate, MetaOp, MetaResponse, ReportedSize, SlotSequence};

/// A future of this thread.
pub(crate) type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Selects inodes, for example those of a service.
pub(crate) type Concerned<'a> = &'a dyn Fn(InodeId) -> bool;

/// Admits the operations that have waited since a lease was given up.
pub(crate) type Resume = Box<dyn FnOnce()>;

/// A lease that can be acknowledged as given back.
pub(crate) struct GivenBack {
    /// The inode is open.
    pub(crate) in_use: bool,
    /// To be called once the lease table shows that the recall has ended.
    pub(crate) resume: Resume,
}

/// Uses what leases cover, and gives it up at the session's request.
pub(crate) trait LeaseHolder: Send + Sync {
    /// Finishes the asynchronous creates and changes that a request could miss or must come after,
    /// before it is sent. `slot_sequence`: the number of the request, if it has one.
    fn finish_before<'a>(
        &'a self,
        op: &'a MetaOp,
        slot_sequence: Option<SlotSequence>,
    ) -> LocalFuture<'a, ()>;

    /// Handles a recall up to its acknowledgement: reports what only this session knows, and drops
    /// what the lease doesn't cover any more.
    fn give_back(&self, ino: InodeId, terms: RecallTerms) -> LocalFuture<'_, GivenBack>;

    /// Drops what was valid under leases that have ended with their service: those of the inodes
    /// `ended`, and of all open inodes that are `concerned`.
    fn drop_ended_leases<'a>(
        &'a self,
        ended: Vec<InodeId>,
        concerned: Concerned<'a>,
    ) -> LocalFuture<'a, Resume>;

    /// Drops everything that the ended session cached. `leased`: the inodes of its leases.
    fn drop_everything(&self, leased: Vec<InodeId>) -> LocalFuture<'_, ()>;

    /// The session has ended: wakes the tasks that wait for something to do.
    fn wake(&self);

    /// Returns the inodes in use.
    fn inodes_in_use(&self) -> Vec<InodeId>;

    /// Returns the sizes of files that this session was writing exclusively, for a service that has
    /// to recover them.
    fn take_sizes_to_report(&self) -> Vec<ReportedSize>;

    /// Seals the pending creates in the directories that are `concerned`, and returns them for a
    /// service that must execute them before it serves other sessions.
    fn seal_creates(&self, concerned: Concerned<'_>) -> Vec<AsyncCreate>;

    /// Returns the asynchronous changes in flight of the inodes that are `concerned`, for a service
    /// that must execute them before it serves other sessions.
    fn pending_changes(&self, concerned: Concerned<'_>) -> Vec<AsyncChange>;
}

/// Identifies a name that may be added by a request whose outcome isn't known yet.
pub(crate) struct PossibleName(pub(crate) u64);

/// Learns from requests and their answers.
pub(crate) trait RequestObserver: Send + Sync {
    /// Prepares for a request that is about to be sent: drops what it invalidates. Returns true if
    /// the client must finish asynchronous creates that the request could miss.
    fn prepare_request(&self, op: &MetaOp) -> bool;

    /// Records a name that a request may add, whose outcome is to be
    /// [recorded](RequestObserver::record_outcome); to be called before the request is sent.
    fn record_possible(&self, op: &MetaOp) -> Option<PossibleName>;

    /// Records the outcome of the request. Without it, the name may still be added.
    fn record_outcome(&self, possible_name: &PossibleName, outcome: &Result<Answer>);

    /// Records a name that a request may add; to be called before each time it is sent.
    fn record_request(&self, leases: &Leases, op: &MetaOp);

    /// Processes the outcome of a request, after its leases have been recorded.
    fn record_answer(&self, leases: &Leases, stamp: RequestStamp, op: &MetaOp, answer: &Result<MetaResponse>);

    /// Handles the uncertain outcome of a request that no service has answered.
    fn drop_uncertain(&self, leases: &Leases, op: &MetaOp);

    /// Records that the lease with this number is no longer held.
    fn end_lease(&self, number: InodeId);
}
