//! What management remembers of members of mirrored groups while it runs, and how a primary is answered.

use crate::consistency::{self, Presence, Word};
use crate::limits::{MAX_SETTLE, REPLACED_AFTER, SETTLE_POLL};
use crate::management::Management;
use crate::refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};
use types::{ClusterMap, Epoch, Error, Group, GroupId, NodeId, Result, Scheme, TargetId};
use wire::MgmtReply;
use wire::mgmt::{GroupInfo, ResyncProgress};

/// What isn't in the map: after a start of management less is known, and what is waited for is more.
#[derive(Default, Debug)]
pub(crate) struct Members {
    /// The versions that took members out that are out.
    out: BTreeMap<(GroupId, TargetId), Epoch>,
    /// Nodes that were started anew and are good nevertheless, since nobody else was heard of, with the version of the group. One that is heard
    /// of later knows more.
    trusted: BTreeSet<(GroupId, NodeId, Epoch)>,
}

impl Members {
    /// Takes nodes that were started anew out of groups of which another good member is heard of by now.
    pub fn settle(&mut self, map: &mut ClusterMap, presence: &Presence) {
        self.trusted.retain(|(group, _, since)| map.group(*group).is_some_and(|g| g.since == *since));
        for (group, node, _) in &self.trusted {
            let is_alone = |g: &Group| {
                !g.with_states().any(|(id, state)| {
                    let at = map.target(id).map(|t| t.node);
                    state == types::MemberState::Good
                        && at.is_some_and(|at| at != *node && presence.heard.contains(&at))
                })
            };
            if map.group(*group).is_some_and(|g| !is_alone(g)) {
                consistency::restarted_in(map, *group, *node, presence);
            }
        }
    }

    /// Remembers what a map changes.
    pub fn follow(&mut self, before: &ClusterMap, after: &ClusterMap) {
        for member in consistency::taken_out(before, after) {
            self.out.insert(member, after.epoch);
        }
        let is_out = |(group, target): &(GroupId, TargetId)| {
            let state = after.group(*group).and_then(|g| g.state_of(*target));
            state.is_some_and(|state| state != types::MemberState::Good)
        };
        self.out.retain(|member, _| is_out(member));
    }

    /// A node was started anew: it is trusted where it is good.
    pub fn trust(&mut self, map: &ClusterMap, node: NodeId) {
        for group in map.groups.iter().filter(|group| group.scheme.is_mirrored()) {
            let is_good = |(id, state): (TargetId, types::MemberState)| {
                state == types::MemberState::Good && map.target(id).is_some_and(|t| t.node == node)
            };
            if group.with_states().any(is_good) {
                self.trusted.insert((group.id, node, group.since));
            }
        }
    }

    /// The version from which on a member is out.
    fn out_since(&self, group: &Group, target: TargetId) -> Epoch {
        self.out.get(&(group.id, target)).copied().unwrap_or(group.since)
    }
}

impl Management {
    pub(crate) fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is there now. In a cluster of one process everybody is.
    pub(crate) fn presence(&self, map: &ClusterMap) -> Presence {
        match self.cluster() {
            Some(_) => self.liveness().presence(map, rt::monotonic_ns()),
            None => Presence { heard: map.targets.iter().map(|t| t.node).collect(), ..Presence::default() },
        }
    }

    /// Does what a primary asks for, and answers when that holds for everybody who counts.
    pub(crate) async fn set_member(
        &self,
        asker: Option<NodeId>,
        word: Word,
        reason: &str,
    ) -> Result<MgmtReply> {
        self.change(|roster| {
            let presence = self.presence(&roster.map);
            if roster.map.group(word.group).is_some_and(|group| group.since == word.since) {
                tracing::info!(?word, reason, "a primary speaks of a member");
            }
            consistency::set_member(&mut roster.map, asker, &word, &presence)
        })
        .await?;
        let began_ns = rt::monotonic_ns();
        // Also where nothing has changed: the question may be a repetition, whose first answer was lost.
        while let Some(target) = self.unaware(word.group) {
            if rt::monotonic_ns() - began_ns > MAX_SETTLE.as_nanos() as u64 {
                return Err(refusal::unsettled(word.group, target));
            }
            crate::service::first_of(self.heard.wait(), rt::sleep(SETTLE_POLL)).await;
        }
        Ok(MgmtReply::Map { map: self.current() })
    }

    /// A member that is out, and whose node may believe that it isn't: it has neither said that it knows, nor has it been silent for longer
    /// than it may serve, nor been started anew.
    fn unaware(&self, group: GroupId) -> Option<TargetId> {
        self.cluster()?;
        let (map, now_ns) = (self.current(), rt::monotonic_ns());
        let group = map.group(group)?;
        let (liveness, members) = (self.liveness(), self.members());
        let is_unaware = |(id, state): &(TargetId, types::MemberState)| {
            let Some(node) = map.target(*id).and_then(|target| map.node(target.node)) else { return false };
            *state != types::MemberState::Good
                && liveness.seen(node.id).is_none_or(|seen| seen.epoch < members.out_since(group, *id))
                && !liveness.is_silent_for(node.id, node.state, REPLACED_AFTER, now_ns)
        };
        group.with_states().find(is_unaware).map(|(id, _)| id)
    }

    /// Makes the groups that a pool should have of a scheme.
    pub(crate) async fn make_groups(&self, pool: &str, scheme: Scheme) -> Result<MgmtReply> {
        tracing::info!(pool, %scheme, "groups are asked for");
        let id = self
            .change(|roster| {
                roster.make_groups(pool, scheme)?;
                Ok::<_, Error>(roster.map.pool_named(pool).map(|pool| pool.id))
            })
            .await?;
        self.sync().await?;
        let is_asked = |info: &GroupInfo| Some(info.group.pool) == id && info.group.scheme == scheme;
        Ok(MgmtReply::Groups { groups: self.groups().into_iter().filter(is_asked).collect() })
    }

    /// Groups for people.
    pub(crate) fn groups(&self) -> Vec<GroupInfo> {
        let (map, liveness) = (self.current(), self.liveness());
        let info = |group: &Group| {
            let serves = group.primary().and_then(|id| map.target(id)).map(|target| target.node);
            let told =
                serves.and_then(|node| liveness.seen(node)).map(|seen| &*seen.resyncs).unwrap_or_default();
            let is_here = |progress: &&ResyncProgress| progress.group == group.id;
            GroupInfo {
                pool_name: map.pool(group.pool).map(|pool| pool.name.clone()).unwrap_or_default(),
                primary: group.primary(),
                resyncs: told.iter().filter(is_here).cloned().collect(),
                group: group.clone(),
            }
        };
        map.groups.iter().map(info).collect()
    }
}
