//! Recovery of a group from a member that missed writes, after an administrator declares all
//! members in sync lost for good.

use crate::limits::{GIVE_UP_AFTER, REPLACE_PRIMARY_AFTER};
use crate::management::Management;
use crate::member_states::{self, ReachabilitySnapshot};
use crate::refusal;
use std::time::Duration;
use types::{ClusterMap, GroupId, MemberState, Result, TargetId, TargetState};
use wire::MgmtReply;
use wire::mgmt::ResyncProgress;

/// How long a target must be unreachable before content that only it has may be given up.
pub(crate) fn give_up_time(map: &ClusterMap) -> Duration {
    let set = map.settings.resync.replace_after_s.filter(|after_s| *after_s > 0);
    let after = set.map_or(GIVE_UP_AFTER, |set| Duration::from_secs(set).min(GIVE_UP_AFTER));
    after.max(REPLACE_PRIMARY_AFTER)
}

impl Management {
    /// Makes a member that missed writes the primary, if `accepts_loss`.
    ///
    /// # Errors
    /// `EINVAL` if the group can't be recovered from this member. `EBUSY` while it is unreachable,
    /// or a member in sync may return. `EPERM` if the loss isn't accepted, with what is known of
    /// it.
    pub(crate) async fn recover_group(
        &self,
        id: GroupId,
        from: TargetId,
        accepts_loss: bool,
    ) -> Result<MgmtReply> {
        tracing::warn!(
            group = id.0,
            target_id = from.0,
            accepts_loss,
            "an administrator gives up the members of a group that are in sync"
        );
        let lacked = self.lacked(id, from);
        self.change(|roster| {
            self.check_recovery(&roster.map, id, from)?;
            match accepts_loss {
                true => member_states::recover(&mut roster.map, id, from),
                false => Err(refusal::unaccepted_loss(id, from, lacked.as_ref())),
            }
        })
        .await?;
        self.sync().await?;
        let groups = self.groups().into_iter().filter(|info| info.group.id == id).collect();
        Ok(MgmtReply::Groups { groups })
    }

    fn check_recovery(&self, map: &ClusterMap, id: GroupId, from: TargetId) -> Result<()> {
        let group = map.group(id).ok_or_else(|| refusal::no_group(id))?;
        if !group.scheme.spans_targets() {
            return Err(refusal::not_mirrored(id));
        }
        match group.state_of(from).ok_or_else(|| refusal::no_member(id, from))? {
            MemberState::InSync => return Err(refusal::is_in_sync(id, from)),
            MemberState::NeedsRebuild | MemberState::Rebuilding => {
                return Err(refusal::needs_full_copy(id, from));
            }
            MemberState::NeedsResync | MemberState::Resyncing => {}
        }
        let presence = self.reachability_snapshot(map);
        let is_there = map.target(from).is_some_and(|target| target.state == TargetState::Online)
            && member_states::is_available(map, from, &presence);
        if !is_there {
            return Err(refusal::member_unreachable(id, from));
        }
        let after = give_up_time(map);
        match group.in_sync_members().find(|in_sync| !self.is_lost_for_good(map, &presence, *in_sync, after))
        {
            Some(in_sync) => Err(refusal::member_may_return(id, in_sync, after)),
            None => Ok(()),
        }
    }

    /// Whether a target has been unreachable long enough to count as lost, and isn't just
    /// returning.
    fn is_lost_for_good(
        &self,
        map: &ClusterMap,
        presence: &ReachabilitySnapshot,
        id: TargetId,
        after: Duration,
    ) -> bool {
        let Some(target) = map.target(id) else { return true };
        target.state == TargetState::Offline
            && !member_states::is_available(map, id, presence)
            && self.members().is_unreachable_for(id, after, rt::monotonic_ns())
    }

    /// What the member still lacked in its primary's last report.
    fn lacked(&self, id: GroupId, from: TargetId) -> Option<ResyncProgress> {
        let map = self.current();
        let primary = map.target(map.group(id)?.primary()?)?;
        let liveness = self.liveness();
        let resyncs = &liveness.process(primary.node)?.resyncs;
        resyncs.iter().find(|progress| (progress.group, progress.target) == (id, from)).cloned()
    }
}
