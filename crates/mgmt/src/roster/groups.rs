//! The groups of a pool.

use super::Roster;
use crate::refusal;
use layout::Shortage;
use std::collections::BTreeSet;
use types::{ClusterMap, GroupId, PoolId, Result, Scheme, Target, TargetId, TargetState};

impl Roster {
    /// Makes the groups of a scheme that a pool should have and hasn't.
    pub fn make_groups(&mut self, pool: &str, scheme: Scheme) -> Result<()> {
        let id = self.map.pool_named(pool).ok_or_else(|| refusal::no_pool(pool))?.id;
        let is_made = self.map.groups.iter().any(|g| g.pool == id && g.scheme == scheme && !g.is_lost());
        match self.add_mirrored(id, scheme) {
            // What is there serves.
            Err(_) if is_made => Ok(()),
            Err(Shortage::Targets(have)) => Err(refusal::too_few_targets(pool, scheme, have)),
            Err(Shortage::Groups) => Err(refusal::too_many_groups()),
            Ok(()) => Ok(()),
        }
    }

    /// A group for each target that has none.
    pub(super) fn group_new_targets(&mut self) {
        let new = layout::single_groups(&self.map);
        self.map.groups.extend(new);
        self.map.groups.sort_by_key(|g| g.id);
        self.follow_numbers();
    }

    /// Targets that are served for the first time since `before` get their part in mirrored groups.
    /// While nothing serves a target, no group is made on it.
    pub(crate) fn group_first_served(&mut self, before: &ClusterMap) {
        let was_served = |id| before.target(id).is_some_and(|known| known.capacity > 0);
        let is_new = |t: &&Target| t.state != TargetState::Offline && t.capacity > 0 && !was_served(t.id);
        let pools: BTreeSet<PoolId> = self.map.targets.iter().filter(is_new).map(|t| t.pool).collect();
        pools.into_iter().for_each(|pool| self.top_up(pool));
    }

    /// Targets that came to a pool get their part in groups of the schemes that are in use there.
    pub(super) fn top_up(&mut self, pool: PoolId) {
        let in_use = |g: &&types::Group| g.pool == pool && g.scheme.is_mirrored();
        let schemes: BTreeSet<Scheme> = self.map.groups.iter().filter(in_use).map(|g| g.scheme).collect();
        for scheme in schemes {
            // The groups that are there serve on.
            if let Err(shortage) = self.add_mirrored(pool, scheme) {
                tracing::warn!(
                    pool = pool.0,
                    ?shortage,
                    "no more groups of {scheme} are made in pool {pool}"
                );
            }
        }
    }

    fn add_mirrored(&mut self, pool: PoolId, scheme: Scheme) -> Result<(), Shortage> {
        if !scheme.is_mirrored() {
            return Ok(());
        }
        self.follow_numbers();
        let new = layout::mirrored_groups(&self.map, pool, scheme, GroupId(self.numbers.next_group))?;
        self.map.groups.extend(new);
        self.map.groups.sort_by_key(|g| g.id);
        self.follow_numbers();
        Ok(())
    }

    /// The next number is above all that were given.
    fn follow_numbers(&mut self) {
        let above = self.map.groups.last().map_or(0, |g| g.id.0 + 1).max(layout::FIRST_MIRRORED);
        self.numbers.next_group = self.numbers.next_group.max(above);
    }

    /// Refuses what would take a member away from a mirrored group.
    pub fn require_no_member(&self, target: TargetId, what: &str) -> Result<()> {
        let has_it = |g: &&types::Group| g.scheme.is_mirrored() && g.members.contains(&target);
        match self.map.groups.iter().find(has_it) {
            Some(group) => Err(refusal::member_of(target, group.id, what)),
            None => Ok(()),
        }
    }
}
