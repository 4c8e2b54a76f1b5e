//! Mirroring: each member of a group has a replica of all of its content. The primary sends changes
//! to the other members, and repairs and resyncs them from intact replicas.

mod block_digests;
mod change;
mod compare;
mod directed_repair;
mod member_read;
mod read;
mod repair;
mod repair_plan;
mod resync;
mod salvage;

use super::RedundancyScheme;
use crate::group::change::Change;
use crate::group::detached;
use crate::group::member_resync::{MemberResync, ResyncWork};
use crate::group::read::ReadRequest;
use crate::group::{GroupService, Replica};
use change::ReplicatedChange;
use directed_repair::DirectedRepair;
use net::LocalFuture;
use resync::ReplicaResync;
use rt::IoBuf;
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, Result, TargetId};
use wire::{GroupContext, RepairResult, StorageReply, StorageRequest};

/// Replicas on all members.
pub(super) struct Mirror;

impl RedundancyScheme for Mirror {
    fn read<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: &'a Replica,
        read: ReadRequest<'a>,
    ) -> LocalFuture<'a, Result<StorageReply>> {
        Box::pin(read::read_or_repair(groups, replica, read))
    }

    fn read_at_member<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: &'a Replica,
        context: GroupContext,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<StorageReply>> {
        Box::pin(member_read::read_at_member(groups, replica, context, request, payload))
    }

    fn change<'a>(&self, change: Change<'a>) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move { ReplicatedChange { change }.replicate().await })
    }

    fn repair<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: Arc<Replica>,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> LocalFuture<'a, Result<RepairResult>> {
        Box::pin(repair::repair(groups, replica, ino, range))
    }

    fn copy_replica<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: Arc<Replica>,
        (ino, range): (ChunkFileId, ByteRange),
        (from, to): (TargetId, TargetId),
    ) -> LocalFuture<'a, Result<StorageReply>> {
        let repair = DirectedRepair::new(groups.clone(), replica, ino);
        Box::pin(detached::run(repair.repair_from(from, to, range)))
    }

    fn discard_lost<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: Arc<Replica>,
        (ino, range): (ChunkFileId, ByteRange),
    ) -> LocalFuture<'a, Result<StorageReply>> {
        Box::pin(detached::run(DirectedRepair::new(groups.clone(), replica, ino).give_up(range)))
    }

    fn compare<'a>(
        &self,
        groups: &'a Arc<GroupService>,
        replica: &'a Arc<Replica>,
        ino: ChunkFileId,
    ) -> LocalFuture<'a, Result<(RepairResult, bool)>> {
        Box::pin(compare::compare(groups, replica, ino))
    }

    fn resync<'a>(&self, resync: &'a MemberResync<'a>, work: ResyncWork) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move { ReplicaResync { resync }.send_work(work).await })
    }

    fn digests<'a>(
        &self,
        replica: &'a Replica,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> LocalFuture<'a, StorageReply> {
        Box::pin(block_digests::member_digests(replica, ino, range))
    }
}
