//! Redundancy schemes: what the members of a group do so that content outlives the loss of a
//! target. A group (`group`) decides who its members are and admits requests, in the same way for
//! all schemes. Its scheme executes them.
//!
//! A scheme is a folder here and a line in [`of`]:
//! - `single`: one target has the content. There is no group to agree with, so requests go to the
//!   target directly.
//! - `mirror`: each member has a replica of all content of the group.

pub(crate) mod mirror;
pub(crate) mod single;

use crate::group::change::Change;
use crate::group::member_resync::{MemberResync, ResyncWork};
use crate::group::read::ReadRequest;
use crate::group::{GroupService, Replica};
use net::LocalFuture;
use rt::IoBuf;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, Result, Scheme, TargetId};
use wire::{GroupContext, RepairResult, StorageReply, StorageRequest};

/// Returns the implementation of a scheme; `None` if its groups have no primary, so that requests
/// go to the target ([`single`]).
pub(crate) fn of(scheme: Scheme) -> Option<&'static dyn RedundancyScheme> {
    match scheme {
        Scheme::Single => None,
        Scheme::Mirror(_) => Some(&mirror::Mirror),
    }
}

/// What the members of a group with a primary do with requests that the group has admitted.
///
/// `groups` is the service, and `replica` its own member. Unless stated otherwise, that member is
/// the primary.
pub(crate) trait RedundancyScheme: Sync {
    /// Answers a read-only request. The caller has locked the range against changes, and the
    /// version of the group has begun.
    ///
    /// # Errors
    /// `GroupVersionMismatch` if another version of the group must answer; `EIO` if no member has
    /// the content.
    fn read<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: &'a Replica,
        read: ReadRequest<'a>,
    ) -> LocalFuture<'a, Result<StorageReply>>;

    /// Answers a client's read-only request at a member that isn't the primary.
    ///
    /// # Errors
    /// `RedirectToPrimary` where only the primary knows; `GroupVersionMismatch` if the group has
    /// another version.
    fn read_at_member<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: &'a Replica,
        context: GroupContext,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<StorageReply>>;

    /// Executes a change or a sync on all members that receive writes. A member that fails is
    /// ejected before the change counts as done.
    ///
    /// # Errors
    /// `GroupVersionMismatch` if another version of the group must execute it; otherwise the
    /// failure of the primary's own disk, when no in-sync member has the change.
    fn change<'a>(&self, change: Change<'a>) -> LocalFuture<'a, Result<()>>;

    /// Repairs what is damaged or missing in a range of a chunk file, on all in-sync members. Runs
    /// to its end, whether or not the caller waits for it.
    fn repair<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: Arc<Replica>,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> LocalFuture<'a, Result<RepairResult>>;

    /// Makes a range of one member's chunk file what it is on another member: `from` and `to`.
    fn copy_replica<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: Arc<Replica>,
        content: (ChunkFileId, ByteRange),
        members: (TargetId, TargetId),
    ) -> LocalFuture<'a, Result<StorageReply>>;

    /// Replaces by holes what no member can deliver any more in a range of a chunk file.
    fn discard_lost<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: Arc<Replica>,
        content: (ChunkFileId, ByteRange),
    ) -> LocalFuture<'a, Result<StorageReply>>;

    /// Compares a chunk file on all in-sync members by lengths and checksums, and repairs
    /// differences. Also returns whether one of them lacked the file.
    fn compare<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: &'a Arc<Replica>,
        ino: ChunkFileId,
    ) -> LocalFuture<'a, Result<(RepairResult, bool)>>;

    /// Makes the content of a resynced member what it should be, in the ranges of the work.
    fn resync<'a>(&self, resync: &'a MemberResync<'a>, work: ResyncWork) -> LocalFuture<'a, Result<()>>;

    /// Returns digests of the content here, from which the primary finds what a resync must send.
    /// This member is the resynced one.
    fn digests<'a>(
        &self,
        replica: &'a Replica,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> LocalFuture<'a, StorageReply>;
}
