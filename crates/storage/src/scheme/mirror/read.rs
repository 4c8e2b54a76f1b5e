//! Reads at the primary: from its own replica, or from another one where this one is damaged, fails
//! or is missing. Then it is repaired.

use super::repair::MAX_END;
use crate::group::member_calls::REACHABILITY_INTERVAL;
use crate::group::read::ReadRequest;
use crate::group::version_fence::version_mismatch;
use crate::group::{GroupService, Replica};
use crate::service::execute_request;
use chunkstore::{IoPath, Kind, StoreError};
use rt::IoBuf;
use std::sync::Arc;
use types::{
    BLOCK_SIZE, ByteRange, ChunkFileId, Errno, Error, Group, MemberState, Result, SessionId, TargetId,
};
use wire::{GroupContext, GroupRole, StorageOp, StorageReply, StorageRequest};

/// Answers a read-only request from the primary's replica, or from another one where this one is
/// damaged, fails or is missing; then it is repaired.
pub(super) async fn read_or_repair(
    groups: &Arc<GroupService>,
    replica: &Replica,
    read: ReadRequest<'_>,
) -> Result<StorageReply> {
    let (request, payload) = (read.request, read.payload);
    let done = execute_request(&replica.store, request, payload.clone()).await;
    let refusal = match done {
        Ok(reply) if has_file(replica, request.ino).await => {
            return match request.session {
                SessionId(0) => Box::pin(checked_length(groups, replica, &read, reply)).await,
                _ => Ok(reply),
            };
        }
        Ok(reply) if !Box::pin(exists_elsewhere(groups, replica, &read)).await? => return Ok(reply),
        Ok(_) => missing_file(replica, request.ino),
        Err(error) if is_damage(&error) => replica.failed(&error),
        Err(error) => return Err(replica.failed(&error)),
    };
    let found =
        Box::pin(read_from_others(groups, read.group, replica.target, request, payload.clone())).await;
    groups.repair_later(replica, request.ino, affected_range(request, payload));
    found.ok_or(refusal)
}

/// Answers a service's request for a length, which decides about the file, as when a migration has
/// copied all of it. Where the end is damaged here, another replica answers. If none does, a
/// plausible length is returned, but a wrong one isn't.
async fn checked_length(
    groups: &Arc<GroupService>,
    replica: &Replica,
    read: &ReadRequest<'_>,
    reply: StorageReply,
) -> Result<StorageReply> {
    let StorageReply::Stat { len, .. } = reply else { return Ok(reply) };
    let (store, ino, last) = (&replica.store, read.request.ino, len.saturating_sub(1));
    let (error, own) = match store.require_not_truncated(ino).await {
        Err(error) => (error, None),
        Ok(()) => match store.read(ino, last, &IoBuf::alloc(1), IoPath::Cached).await {
            Err(error) => (error, Some(reply)),
            Ok(()) => return Ok(reply),
        },
    };
    let refusal = replica.failed(&error);
    if !is_damage(&error) {
        return Err(refusal);
    }
    let found = Box::pin(read_from_others(groups, read.group, replica.target, read.request, None)).await;
    groups.repair_later(replica, ino, ByteRange::new(last, MAX_END));
    found.or(own).ok_or(refusal)
}

/// Whether another member has a chunk file. Requested only where none exists here: for files with
/// holes.
///
/// # Errors
/// `GroupVersionMismatch` when an in-sync member doesn't answer although its node is reachable: the
/// requester retries. Unreachable members aren't waited for.
async fn exists_elsewhere(
    groups: &Arc<GroupService>,
    replica: &Replica,
    read: &ReadRequest<'_>,
) -> Result<bool> {
    let others = read
        .group
        .members_with_states()
        .filter(|(target, state)| *target != replica.target && *state == MemberState::InSync);
    let mut all_answered = true;
    for (target, _) in others {
        let part = GroupRole::Member { sequence: 0, committed: 0 };
        let in_group = GroupContext { group: read.group.id, version: read.group.since, role: part };
        let answer = groups.call_member(target, (read.request.ino, StorageOp::Stat), in_group, None);
        let answered = match groups.is_reachable(target) {
            true => Some(answer.await),
            false => rt::timeout(REACHABILITY_INTERVAL, answer).await,
        };
        match answered {
            Some(Ok(StorageReply::Stat { len, .. })) if len > 0 => return Ok(true),
            Some(Ok(_)) => {}
            _ => all_answered &= !groups.is_reachable(target),
        }
    }
    if all_answered { Ok(false) } else { Err(version_mismatch(replica.group)) }
}

/// Asks other in-sync members for what this replica can't read. The caller holds the range here, so
/// nothing changes there either.
pub(super) async fn read_from_others(
    groups: &Arc<GroupService>,
    group: &Group,
    own: TargetId,
    request: &StorageRequest,
    payload: Option<IoBuf>,
) -> Option<StorageReply> {
    let others =
        group.members_with_states().filter(|(target, state)| *target != own && *state == MemberState::InSync);
    for (target, _) in others {
        // A separate buffer: the answer may arrive when the caller no longer waits for it.
        let buf = payload.as_ref().map(|payload| IoBuf::alloc(payload.len()));
        let part = GroupRole::Member { sequence: 0, committed: 0 };
        let in_group = GroupContext { group: group.id, version: group.since, role: part };
        let member_request = StorageRequest {
            length_bound: request.length_bound,
            group: Some(in_group),
            ..StorageRequest::new(SessionId(0), target, request.ino, request.op.clone())
        };
        if let Ok(reply) = groups.send(member_request, buf.clone()).await {
            if let (Some(payload), Some(buf)) = (&payload, &buf) {
                payload.copy_from(0, buf.as_slice());
            }
            return Some(reply);
        }
    }
    None
}

/// Whether the chunk file exists here; a request that has just read it has left it open.
pub(super) async fn has_file(replica: &Replica, ino: ChunkFileId) -> bool {
    replica.store.is_open(ino) || replica.store.stat(ino).await.is_ok_and(|stat| stat.len > 0)
}

/// The error for a read of a chunk file that other members have, when none of them answers.
fn missing_file(replica: &Replica, ino: ChunkFileId) -> Error {
    let message = format!("target {}: the chunk file of inode {ino} is missing", replica.target);
    Error::new(Errno::EIO, message).hint("start the nodes of the other members of its group: weft group list")
}

/// Whether another replica may have what this one can't read.
fn is_damage(error: &StoreError) -> bool {
    matches!(error.kind(), Kind::Io | Kind::Corrupt { .. } | Kind::Vanished)
}

/// Returns the range of the file that a read-only request is about.
fn affected_range(request: &StorageRequest, payload: &Option<IoBuf>) -> ByteRange {
    match (&request.op, payload) {
        (StorageOp::Read { offset, .. }, Some(payload)) => ByteRange::at(*offset, payload.len() as u64),
        // Existence and length are checked with any piece.
        _ => ByteRange::new(0, BLOCK_SIZE as u64),
    }
}
