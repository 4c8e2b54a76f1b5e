//! Progress of resyncs, for display; and rebalancing on request.

use crate::management::Management;
use crate::{refusal, replacement};
use types::{ClusterMap, Error, Group, GroupId, MemberState, Result, Target, TargetId, TargetState};
use wire::MgmtReply;
use wire::mgmt::{DrainProgress, GroupInfo, MemberReplacement, ResyncInfo, ResyncProgress};

impl Management {
    /// All members that aren't in sync.
    pub(crate) fn resyncs(&self) -> Vec<ResyncInfo> {
        let map = self.current();
        let of_group = |info: GroupInfo| {
            let group = &info.group;
            let member = |(target, state): (TargetId, MemberState)| {
                let progress = info.resyncs.iter().find(|progress| progress.target == target).cloned();
                ResyncInfo {
                    group: group.id,
                    target,
                    state,
                    remaining_s: progress.as_ref().and_then(remaining_s),
                    waits_for: progress.is_none().then(|| self.waits_for(&map, group, target)),
                    progress,
                }
            };
            group
                .members_with_states()
                .filter(|(_, state)| *state != MemberState::InSync)
                .map(member)
                .collect::<Vec<_>>()
        };
        self.groups()
            .into_iter()
            .filter(|info| info.group.scheme.spans_targets())
            .flat_map(of_group)
            .collect()
    }

    /// Moves memberships until targets of a pool have about equally many, or only computes the
    /// moves.
    pub(crate) async fn rebalance_groups(&self, pool: &str, dry_run: bool) -> Result<MgmtReply> {
        let plan = |map: &ClusterMap| {
            let id = map.pool_named(pool).ok_or_else(|| refusal::no_pool(pool))?.id;
            Ok::<_, Error>((id, layout::rebalance(map, id)))
        };
        let (id, planned) = match dry_run {
            true => plan(&self.current())?,
            false => {
                tracing::info!(pool, "administrator requests an even distribution of memberships");
                let begin = |map: &mut ClusterMap| {
                    let (id, planned) = plan(map)?;
                    planned
                        .iter()
                        .for_each(|next| replacement::start_replacement(map, next.group, next.from, next.to));
                    Ok::<_, Error>((id, planned))
                };
                let planned = self.change(|roster| begin(&mut roster.map)).await?;
                self.sync().await?;
                planned
            }
        };
        let moved =
            |next: &layout::MemberMove| MemberReplacement { group: next.group, from: next.from, to: next.to };
        let stays = |group: &GroupId| !planned.iter().any(|next| next.group == *group);
        let crowded = layout::improvable_groups(&self.current(), id).into_iter().filter(stays).collect();
        Ok(MgmtReply::Moves { moves: planned.iter().map(moved).collect(), crowded })
    }

    /// Progress of a draining target: the metadata service's report on its files, plus the mirrored
    /// groups that it is a member of.
    pub(crate) fn with_groups(&self, target: &Target, mut progress: DrainProgress) -> DrainProgress {
        let map = self.current();
        let has_it = |group: &&Group| group.scheme.spans_targets() && group.members.contains(&target.id);
        let groups: Vec<&Group> = map.groups.iter().filter(has_it).collect();
        progress.groups_left = groups.len() as u64;
        if groups.is_empty() {
            return progress;
        }
        progress.empty = false;
        let resyncs = self.resyncs();
        let moving = || {
            resyncs.iter().filter(|info| {
                groups.iter().any(|group| group.id == info.group && group.leaving == Some(target.id))
                    && info.target != target.id
            })
        };
        progress.rate += moving().filter_map(|info| Some(info.progress.as_ref()?.rate)).sum::<u64>();
        // For a group that is being copied the resync progress counts; for the others their size.
        let left = |group: &&Group| {
            let progress =
                moving().find(|info| info.group == group.id).and_then(|info| info.progress.as_ref());
            progress
                .and_then(|progress| progress.bytes_left)
                .unwrap_or_else(|| layout::member_bytes(&map, group))
        };
        let bytes_left: u64 = groups.iter().map(left).sum();
        progress.remaining_s =
            (progress.rate > 0).then(|| progress.bytes_left.max(bytes_left).div_ceil(progress.rate));
        let stuck = groups.iter().find(|group| {
            group.leaving.is_none() && layout::replacement_target(&map, group, target.id).is_none()
        });
        if let Some(group) = stuck {
            progress.remaining_s = None;
            progress.hindrance = Some(format!(
                "no other target can replace it in group {}: one is needed in its pool, on another node than the other members (and in another rack, if nodes have racks), with enough space",
                group.id
            ));
        }
        let waiting =
            moving().filter(|info| info.state == MemberState::NeedsRebuild && info.progress.is_none());
        let blocked = waiting.filter(|info| !is_online(&map, info.target) || self.failure(info).is_some());
        if let (None, Some(info)) = (stuck, blocked.into_iter().next()) {
            progress.hindrance = Some(format!(
                "target {} replaces it in group {}, but isn't in sync yet: {}",
                info.target,
                info.group,
                info.waits_for.as_deref().unwrap_or_default()
            ));
        }
        let unreachable = groups.iter().find_map(|group| {
            let mut others = group.in_sync_members().filter(|id| *id != target.id);
            Some((group.id, others.find(|id| !is_online(&map, *id))?))
        });
        if progress.hindrance.is_none()
            && let Some((group, unreachable)) = unreachable
        {
            progress.hindrance = Some(format!(
                "target {unreachable}, which has another replica of group {group}, is unreachable: this replica is needed until it is reachable or replaced"
            ));
        }
        progress
    }

    /// Why the last resync of a member failed.
    fn failure(&self, info: &ResyncInfo) -> Option<String> {
        self.members().failure(info.group, info.target).map(String::from)
    }

    /// Why no resync of a member runs now.
    fn waits_for(&self, map: &ClusterMap, group: &Group, target: TargetId) -> String {
        match group.primary() {
            _ if group.leaving == Some(target) => "it is leaving the group".into(),
            None => "no member is in sync".into(),
            Some(primary) if !is_online(map, primary) => {
                format!("target {primary}, which is in sync, is unreachable")
            }
            _ if !is_online(map, target) => "its target is unreachable".into(),
            _ if map.settings.resync.paused => "it is paused".into(),
            Some(primary) => match self.members().failure(group.id, target) {
                Some(failure) => {
                    format!("the last attempt failed, the next one starts soon: {failure}")
                }
                None => format!("target {primary} resyncs other members first"),
            },
        }
    }
}

fn is_online(map: &ClusterMap, id: TargetId) -> bool {
    map.target(id).is_some_and(|target| target.state == TargetState::Online)
}

/// Estimated remaining seconds at the recent rate.
fn remaining_s(progress: &ResyncProgress) -> Option<u64> {
    let left = progress.bytes_left.filter(|_| progress.hindrance.is_none())?;
    (progress.rate > 0).then(|| left.div_ceil(progress.rate))
}
