//! Requests between metadata services, and from management to metadata services.

use crate::mgmt::{DrainProgress, ReconcileFiles, SessionInfo};
use bytes::Bytes;
use types::{GroupId, InodeId, PartitionId, PoolId, SessionId, TargetId};

/// Access of a command to an inode on which sessions may hold leases.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum InodeAccess {
    /// Reads its attributes.
    Read,
    /// Changes content beside other writing sessions, and reports the end of that.
    SharedWrite,
    /// Changes it.
    Write,
}

/// Requests of other services to the metadata service that owns a partition. `PartitionNotServed`
/// if it doesn't own it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartitionsRequest {
    /// Takes the partition lock for a cross-partition transaction: `Locked`, once no command is in
    /// progress there. No command runs on the partition until it is unlocked. `token`: a random
    /// number of the transaction; a repeated request gets the same answer. A lock that isn't
    /// returned in time is revoked: the owner record changes, so that a later batch of the
    /// coordinator fails.
    LockPartition { partition: PartitionId, token: u64 },
    /// The coordinator's batch is committed or abandoned; unlocks the partition: `Done`. `written`:
    /// the keys of the partition that it wrote.
    UnlockPartition { partition: PartitionId, token: u64, written: Vec<Bytes> },
    /// Recalls leases of sessions other than this one that conflict with access to these inodes.
    /// Answers `Clear` at once, or, with `wait`, when the recalls are answered. The waiting service
    /// must not hold the partition's lock.
    RecallConflicting { session: SessionId, accesses: Vec<(InodeId, InodeAccess)>, wait: bool },
    /// The session has been ended for good, and the storage services know it: `Done`.
    Ended { session: SessionId },
    /// As [`crate::MgmtRequest::Reconcile`], for files of partitions that the service owns: `Done`.
    Reconcile { target: TargetId, touched: ReconcileFiles },
    /// As [`crate::MgmtRequest::ReconcileGroup`], in the same way: `Done`.
    ReconcileGroup { group: GroupId, touched: ReconcileFiles },
    /// Finds a file of the partition that has chunks on the target: `File`.
    FileOn { target: TargetId, partition: PartitionId },
    /// Finds an inode of the partition that refers to the pool: a directory with it in its pattern,
    /// or a file that is to be moved there: `File`.
    FindPoolReference { pool: PoolId, partition: PartitionId },
    /// `Sessions`.
    Sessions,
    /// Begins the eviction of a session: `Done`; `ENOENT` if the service doesn't know it.
    Evict { session: SessionId },
    /// `Executed`.
    Executed,
    /// `Drains`.
    Drains,
}

/// Answers; [`PartitionsRequest`] names the answer of each request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum PartitionsReply {
    Done,
    /// `owner`: the owner record, which the coordinator's batch must find unchanged. `no_leases`:
    /// no session holds any lease of this service, and none gets one while the partition is locked.
    Locked {
        owner: Bytes,
        no_leases: bool,
    },
    /// Whether no lease conflicts any more.
    Clear(bool),
    File(Option<InodeId>),
    Sessions(Vec<SessionInfo>),
    /// The partitions whose requests the service answers now.
    Executed(Vec<PartitionId>),
    /// Progress of draining targets, for files of partitions that the service owns.
    Drains(Vec<(TargetId, DrainProgress)>),
}
