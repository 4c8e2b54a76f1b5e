//! Requests for the repair of damage: any member may find it, and the primary repairs it.

use super::version_fence::version_mismatch;
use super::{GroupService, Replica};
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, Errno, Error, GroupId, Result, SessionId, TargetId};
use wire::{GroupContext, GroupRole, RepairResult, StorageOp, StorageReply, StorageRequest};

/// Files that are repaired at a time because requests have met damage; the scrub finds the others.
const MAX_REPAIRS_AT_ONCE: usize = 64;

impl GroupService {
    /// Requests the repair of damage that a request has met, whichever member this is. Requests
    /// that wait for the range go first.
    pub(crate) fn repair_later(self: &Arc<Self>, replica: &Replica, ino: ChunkFileId, range: ByteRange) {
        let key = (replica.group, ino);
        {
            let mut repairing = self.repairing.lock();
            if repairing.len() >= MAX_REPAIRS_AT_ONCE || !repairing.insert(key) {
                return;
            }
        }
        let (groups, group, target) = (self.clone(), replica.group, replica.target);
        let counters = replica.counters.clone();
        rt::spawn(async move {
            match groups.request_repair(target, group, ino, range).await {
                Ok(result) => counters.count_repair(&result),
                Err(error) => {
                    tracing::warn!(%group, target_id = %target, inode = %ino, %range, %error, "damage isn't repaired yet");
                }
            }
            groups.repairing.lock().remove(&key);
        });
    }

    /// Repairs the damage that the resync of a member has met here, place by place, now that the
    /// member is in sync.
    pub(crate) fn repair_all_later(
        self: &Arc<Self>,
        replica: &Replica,
        damage: Vec<(ChunkFileId, ByteRange)>,
    ) {
        let (groups, group, target) = (self.clone(), replica.group, replica.target);
        let counters = replica.counters.clone();
        rt::spawn(async move {
            for (ino, range) in damage {
                match groups.request_repair(target, group, ino, range).await {
                    Ok(result) => counters.count_repair(&result),
                    Err(error) => {
                        tracing::warn!(%group, target_id = %target, inode = %ino, %range, %error, "damage isn't repaired yet");
                    }
                }
            }
        });
    }

    /// Asks the primary to repair a range; `reporter`: the member that has found the damage.
    pub(crate) async fn request_repair(
        self: &Arc<Self>,
        reporter: TargetId,
        group: GroupId,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> Result<RepairResult> {
        let view = self.view(group);
        let known = view.group()?;
        let Some(primary) = known.primary() else { return Err(version_mismatch(group)) };
        let op = StorageOp::Repair { range };
        let in_group = GroupContext { group, version: known.since, role: GroupRole::Primary };
        let request =
            StorageRequest { group: Some(in_group), ..StorageRequest::new(SessionId(0), primary, ino, op) };
        let open = self.open_replicas();
        let own = open.iter().find(|replica| (replica.group, replica.target) == (group, primary));
        let reply = match own {
            Some(replica) => {
                StorageReply::Repaired(view.scheme()?.repair(self, replica.clone(), ino, range).await?)
            }
            None => self.peers.members.call(request, None).await?,
        };
        match reply {
            StorageReply::Repaired(result) => {
                tracing::debug!(%group, target_id = %reporter, inode = %ino, %range, ?result, "repair requested");
                Ok(result)
            }
            other => {
                Err(Error::new(Errno::EPROTO, format!("unexpected reply type from the primary: {other:?}"))
                    .hint("install the same version of weft on all machines"))
            }
        }
    }
}
