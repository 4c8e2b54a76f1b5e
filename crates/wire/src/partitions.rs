//! What metadata services ask each other, and what management asks all of them.

use crate::mgmt::{DrainProgress, SessionInfo, Touched};
use bytes::Bytes;
use types::{GroupId, InodeId, PartitionId, PoolId, SessionId, TargetId};

/// What a command does to an inode that sessions may rely on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// Looks at its attributes.
    Look,
    /// Changes content beside other sessions that do, and reports its end.
    Share,
    /// Changes it.
    Change,
}

/// What is asked of the metadata service that executes a partition, by other services. `EREMOTE`
/// where it doesn't execute it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartitionsRequest {
    /// Nothing is run on the partition until it is returned: `Lent`, once nothing is under way
    /// there. `token`: a random number of the loan; asked again with the same one, the answer is
    /// the same. A loan that isn't returned in time is called in: the owner's record changes, so
    /// that a batch of the borrower that comes after that is lost.
    Borrow { partition: PartitionId, token: u64 },
    /// The borrower's batch is in, or nothing comes of it: `Done`. `written`: the keys of the
    /// partition that it wrote.
    Return { partition: PartitionId, token: u64, written: Vec<Bytes> },
    /// Recalls what sessions other than this one hold in the way of a change of these inodes:
    /// `Clear`, at once; or, with `wait`, when the recalls are answered (the partition must not be
    /// lent to the one who waits).
    MakeWay { session: SessionId, accesses: Vec<(InodeId, Access)>, wait: bool },
    /// The session has been ended for good, and the storage services know: `Done`.
    Ended { session: SessionId },
    /// As [`crate::MgmtRequest::Tidy`], for files of partitions that the service executes: `Done`.
    Tidy { target: TargetId, touched: Touched },
    /// As [`crate::MgmtRequest::TidyGroup`], in the same way: `Done`.
    TidyGroup { group: GroupId, touched: Touched },
    /// A file of the partition that has chunks on the target: `File`.
    FileOn { target: TargetId, partition: PartitionId },
    /// An inode of the partition that hands the pool to new files, or is to live there itself:
    /// `File`.
    NamesPool { pool: PoolId, partition: PartitionId },
    /// `Sessions`.
    Sessions,
    /// Begins to end a session by force: `Done`; `ENOENT` if the service doesn't know it.
    Evict { session: SessionId },
    /// `Executed`.
    Executed,
    /// `Drains`.
    Drains,
}

/// The answers; which one belongs to which request is said there.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum PartitionsReply {
    Done,
    /// The owner's record, which the borrower's batch has to find unchanged. `quiet`: no session
    /// holds any lease of this service, and none gets one while the partition is lent.
    Lent {
        owner: Bytes,
        quiet: bool,
    },
    /// Whether nothing is in the way any more.
    Clear(bool),
    File(Option<InodeId>),
    Sessions(Vec<SessionInfo>),
    /// The partitions whose requests the service answers now.
    Executed(Vec<PartitionId>),
    /// How far targets are that are drained, as to files of partitions that the service executes.
    Drains(Vec<(TargetId, DrainProgress)>),
}
