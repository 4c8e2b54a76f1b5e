//! Groups of pools.

use super::Roster;
use crate::refusal;
use layout::Shortage;
use std::collections::BTreeSet;
use types::{ClusterMap, GroupId, PoolId, Result, Scheme, Target, TargetId, TargetState};

impl Roster {
    /// Creates the missing groups of a scheme in a pool.
    pub fn make_groups(&mut self, pool: &str, scheme: Scheme) -> Result<()> {
        let id = self.map.pool_named(pool).ok_or_else(|| refusal::no_pool(pool))?.id;
        let is_made = self.map.groups.iter().any(|g| g.pool == id && g.scheme == scheme && !g.is_lost());
        match self.add_mirrored(id, scheme) {
            // The existing groups suffice.
            Err(_) if is_made => Ok(()),
            Err(Shortage::Targets(have)) => Err(refusal::too_few_targets(pool, scheme, have)),
            Err(Shortage::Groups) => Err(refusal::too_many_groups()),
            Ok(()) => Ok(()),
        }
    }

    /// Creates a group for each target without one.
    pub(super) fn add_single_groups(&mut self) {
        let new = layout::single_groups(&self.map);
        self.map.groups.extend(new);
        self.map.groups.sort_by_key(|g| g.id);
        self.follow_numbers();
    }

    /// Adds targets that are served for the first time since `before` to mirrored groups. No group
    /// is made on a target before it is served.
    pub(crate) fn add_first_served_targets(&mut self, before: &ClusterMap) {
        let was_served = |id| before.target(id).is_some_and(|known| known.capacity > 0);
        let is_new = |t: &&Target| t.state != TargetState::Offline && t.capacity > 0 && !was_served(t.id);
        let pools: BTreeSet<PoolId> = self.map.targets.iter().filter(is_new).map(|t| t.pool).collect();
        pools.into_iter().for_each(|pool| self.add_missing_groups(pool));
    }

    /// Adds new targets of a pool to groups of the schemes in use there.
    pub(super) fn add_missing_groups(&mut self, pool: PoolId) {
        let in_use = |g: &&types::Group| g.pool == pool && g.scheme.spans_targets();
        let schemes: BTreeSet<Scheme> = self.map.groups.iter().filter(in_use).map(|g| g.scheme).collect();
        for scheme in schemes {
            // The existing groups continue to serve.
            if let Err(shortage) = self.add_mirrored(pool, scheme) {
                tracing::warn!(
                    pool = pool.0,
                    ?shortage,
                    "no more groups of {scheme} can be created in pool {pool}"
                );
            }
        }
    }

    fn add_mirrored(&mut self, pool: PoolId, scheme: Scheme) -> Result<(), Shortage> {
        if !scheme.spans_targets() {
            return Ok(());
        }
        self.follow_numbers();
        let new = layout::mirrored_groups(&self.map, pool, scheme, GroupId(self.numbers.next_group))?;
        self.map.groups.extend(new);
        self.map.groups.sort_by_key(|g| g.id);
        self.follow_numbers();
        Ok(())
    }

    /// Raises the next number above all assigned ones.
    fn follow_numbers(&mut self) {
        let above = self.map.groups.last().map_or(0, |g| g.id.0 + 1).max(layout::FIRST_MIRRORED);
        self.numbers.next_group = self.numbers.next_group.max(above);
    }

    /// Refuses a change that would remove a member from a mirrored group.
    pub fn require_no_member(&self, target: TargetId, what: &str) -> Result<()> {
        let has_it = |g: &&types::Group| g.scheme.spans_targets() && g.members.contains(&target);
        match self.map.groups.iter().find(has_it) {
            Some(group) => Err(refusal::is_group_member(target, group.id, what)),
            None => Ok(()),
        }
    }
}
