//! Placement choosers: select the groups of a new file.
//!
//! A candidate is a group of the pattern's pool and scheme without a member in capacity class
//! `Emergency`. The target of a `single` group must be online and not draining. Mirrored groups are
//! ranked:
//!
//! 1. all members are in sync, online and in different racks;
//! 2. members share a rack, the fewest first;
//! 3. several members are on one node;
//! 4. a member is on a draining target, which another target will replace;
//! 5. the group is degraded, but a member in sync is online.
//!
//! Only the best rank that exists is used. A group without a member in sync that is online is never
//! a candidate, and neither is a lost group ([`Group::is_lost`]). A pool's spare capacity
//! ([`Pool::spare`](types::Pool)) counts as used. Candidates with a target that is low on space are
//! used only if the others don't fill the stripe count, and come last. Pure: equal arguments give
//! equal results.

use crate::groups::Spread;
use crate::random::{SplitMix64, mix};
use std::collections::BTreeMap;
use types::{
    CapacityClass, Chooser, ClusterMap, Errno, Error, Group, GroupId, InodeId, MemberState, PoolId, Result,
    Scheme, StripePattern, Target, TargetState,
};

/// Unit of free space in weights, in bytes: small enough to distinguish tiny targets, large enough
/// that the sum over all groups of a cluster fits into 64 bits.
const WEIGHT_UNIT: u64 = 4096;

/// A group that may get a new file.
pub(crate) struct Candidate {
    pub(crate) id: GroupId,
    /// Fewest free bytes among its members.
    free: u64,
}

/// Candidates by capacity class, and why other groups aren't candidates.
#[derive(Default)]
pub(crate) struct Candidates {
    pub(crate) normal: Vec<Candidate>,
    pub(crate) low: Vec<Candidate>,
    others: RejectedGroups,
}

/// Number of other groups by reason.
#[derive(Clone, Copy, Default)]
struct RejectedGroups {
    full: usize,
    offline: usize,
    drained: usize,
}

/// Rank of a writable group, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum GroupRank {
    /// No deficiency; all groups of one target have this rank.
    Healthy,
    /// This many members share a rack with another one.
    SharesRack(usize),
    /// Several members are on one node.
    Crowded,
    /// A member is on a draining target.
    Draining,
    /// A member isn't in sync, or is unreachable.
    Degraded,
}

/// Chooses the groups of a new file, as [`GroupCandidates::choose`] does.
///
/// # Errors
/// As [`GroupCandidates::choose`].
pub fn choose(map: &ClusterMap, pattern: &StripePattern, ino: InodeId, seed: u64) -> Result<Vec<GroupId>> {
    GroupCandidates::find(map, pattern.pool, pattern.scheme).choose(map, pattern, ino, seed)
}

/// The candidate groups of a pool and scheme in a map, found once for many files: the time to find
/// them grows with the number of groups, that to choose doesn't.
pub struct GroupCandidates {
    normal: WeightedCandidates,
    low: WeightedCandidates,
    others: RejectedGroups,
}

impl GroupCandidates {
    /// Evaluates all groups.
    pub fn find(map: &ClusterMap, pool: PoolId, scheme: Scheme) -> GroupCandidates {
        let pattern = StripePattern { pool, scheme, ..StripePattern::default() };
        let Candidates { normal, low, others } = Candidates::find(map, &pattern);
        GroupCandidates { normal: WeightedCandidates::new(normal), low: WeightedCandidates::new(low), others }
    }

    /// Chooses the groups of a new file: distinct, in stripe order, at most `pattern.stripe_count`
    /// and at least one. The map, and the pattern's pool and scheme, are those of
    /// [`GroupCandidates::find`].
    ///
    /// - `RoundRobin`: a run of consecutive groups; consecutive inode numbers start on consecutive
    ///   groups, so that files of one chunk are distributed as evenly as large ones.
    /// - `Random`: every ordered selection is equally likely.
    /// - `CapacityWeighted`: drawn without replacement, each draw in proportion to free space.
    ///
    /// # Errors
    /// `ENODEV` if the pool is unknown, or has no group of the scheme that is online and not
    /// draining; `ENOSPC` if all such groups are full.
    pub fn choose(
        &self,
        map: &ClusterMap,
        pattern: &StripePattern,
        ino: InodeId,
        seed: u64,
    ) -> Result<Vec<GroupId>> {
        let wanted = (pattern.stripe_count as usize).max(1);
        let from_normal = wanted.min(self.normal.len());
        let from_low = (wanted - from_normal).min(self.low.len());
        if from_normal + from_low == 0 {
            let none = Candidates { others: self.others, ..Candidates::default() };
            return Err(none.refusal(map, pattern));
        }
        let mut random = SplitMix64::new(seed ^ mix(ino.0));
        let mut chosen = self.normal.pick(from_normal, pattern.chooser, ino, &mut random);
        chosen.extend(self.low.pick(from_low, pattern.chooser, ino, &mut random));
        Ok(chosen)
    }
}

impl Candidates {
    pub(crate) fn find(map: &ClusterMap, pattern: &StripePattern) -> Candidates {
        let mut found = Candidates::default();
        let mut usable = Vec::new();
        let fits = |g: &&Group| g.pool == pattern.pool && g.scheme == pattern.scheme && !g.is_lost();
        for group in map.groups.iter().filter(fits) {
            match condition(map, group) {
                Err(Unusable::Offline) => found.others.offline += 1,
                Err(Unusable::Draining) => found.others.drained += 1,
                Ok(GroupCondition { class: CapacityClass::Emergency, .. }) => found.others.full += 1,
                Ok(condition) => usable.push((condition, group.id)),
            }
        }
        let best = usable.iter().map(|(condition, _)| condition.rank).min();
        for (condition, id) in usable.into_iter().filter(|(condition, _)| Some(condition.rank) == best) {
            let candidate = Candidate { id, free: condition.free };
            match condition.class {
                CapacityClass::Low => found.low.push(candidate),
                _ => found.normal.push(candidate),
            }
        }
        found
    }

    /// The error if there is no candidate.
    pub(crate) fn refusal(&self, map: &ClusterMap, pattern: &StripePattern) -> Error {
        let Some(pool) = map.pool(pattern.pool) else {
            return Error::new(Errno::ENODEV, format!("pool {} does not exist", pattern.pool))
                .hint("give the directory another pool with weft entry set-pattern");
        };
        let name = &pool.name;
        let scheme = pattern.scheme;
        let has_scheme =
            |group: &Group| group.pool == pattern.pool && group.scheme == scheme && !group.is_lost();
        if scheme.spans_targets() && !map.groups.iter().any(has_scheme) {
            return Error::new(Errno::ENODEV, format!("pool {name} has no groups of scheme {scheme}"))
                .hint(format!("weft group create --pool {name} --scheme {scheme} creates them"));
        }
        self.others.refusal(name)
    }
}

impl RejectedGroups {
    fn refusal(self, pool: &str) -> Error {
        let RejectedGroups { full, offline, drained } = self;
        let kinds = [(full, "full"), (offline, "offline"), (drained, "draining")];
        let present: Vec<(usize, &str)> = kinds.into_iter().filter(|(count, _)| *count > 0).collect();
        let are = |&(count, what): &(usize, &str)| match count {
            1 => format!("1 group is {what}"),
            _ => format!("{count} groups are {what}"),
        };
        let groups = match &present[..] {
            [] => {
                return Error::new(Errno::ENODEV, format!("pool {pool} has no targets for new files"))
                    .hint(format!("add a target to pool {pool}"));
            }
            [one] => format!("its {}", are(one)),
            [most @ .., last] => {
                let most: Vec<String> = most.iter().map(are).collect();
                format!("{} and {}", most.join(", "), are(last))
            }
        };
        let remedies = [
            (offline, "start the nodes that are down".into()),
            (full, "remove files".into()),
            (drained, "cancel a drain (weft target set ID --drain off)".into()),
            (full + drained, format!("add a target to pool {pool}")),
        ];
        let remedies: Vec<String> = remedies
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(_, remedy): (_, String)| remedy)
            .collect();
        let hint = match &remedies[..] {
            [_] if full + drained == 0 => format!("start the nodes that serve the targets of pool {pool}"),
            [most @ .., last] if !most.is_empty() => format!("{}, or {last}", most.join(", ")),
            all => all.concat(),
        };
        let errno = if full > 0 { Errno::ENOSPC } else { Errno::ENODEV };
        Error::new(errno, format!("pool {pool} can't take new files: {groups}")).hint(hint)
    }
}

/// Properties of a writable group.
struct GroupCondition {
    rank: GroupRank,
    /// Worst class of its members.
    class: CapacityClass,
    /// Fewest free bytes among its members.
    free: u64,
}

/// Why a group can't take new files.
enum Unusable {
    /// It has no members, or too few are reachable.
    Offline,
    /// Its only target is draining: new files would have to move at once.
    Draining,
}

/// Properties of a group for new files.
fn condition(map: &ClusterMap, group: &Group) -> std::result::Result<GroupCondition, Unusable> {
    let members: Vec<(&Target, MemberState)> = group
        .members_with_states()
        .map(|(id, state)| Some((map.target(id)?, state)))
        .collect::<Option<_>>()
        .ok_or(Unusable::Offline)?;
    let serves = |(target, state): &&(&Target, MemberState)| {
        target.state == TargetState::Online && *state == MemberState::InSync
    };
    let serving = members.iter().filter(serves).count();
    let is_draining = members.iter().any(|(target, _)| target.drain);
    let rank = match group.scheme.is_redundant() {
        // A write needs all members of such a group.
        false if is_draining => return Err(Unusable::Draining),
        false if serving < members.len() => return Err(Unusable::Offline),
        false => GroupRank::Healthy,
        true if serving < members.len() => GroupRank::Degraded,
        true if is_draining => GroupRank::Draining,
        true => separation_rank(map, &members),
    };
    let worst = |class: CapacityClass, own: CapacityClass| match (class, own) {
        (CapacityClass::Emergency, _) | (_, CapacityClass::Emergency) => CapacityClass::Emergency,
        (CapacityClass::Low, _) | (_, CapacityClass::Low) => CapacityClass::Low,
        (CapacityClass::Normal, CapacityClass::Normal) => CapacityClass::Normal,
    };
    let spare = map.pool(group.pool).map_or(0, |pool| pool.spare);
    let spaces = || members.iter().map(|(target, _)| crate::capacity::space_for_new_files(target, spare));
    let class = spaces().fold(CapacityClass::Normal, |class, (_, own)| worst(class, own));
    match spaces().map(|(free, _)| free).min() {
        Some(free) if serving > 0 => Ok(GroupCondition { rank, class, free }),
        _ => Err(Unusable::Offline),
    }
}

/// Rank of a mirrored group whose members are all in sync.
fn separation_rank(map: &ClusterMap, members: &[(&Target, MemberState)]) -> GroupRank {
    let spread = Spread::of(map, members.iter().map(|(target, _)| *target));
    match members.len() {
        count if spread.nodes < count => GroupRank::Crowded,
        count if spread.racks < count => GroupRank::SharesRack(count - spread.racks),
        _ => GroupRank::Healthy,
    }
}

/// Candidates with their cumulative weights.
pub(crate) struct WeightedCandidates {
    candidates: Vec<Candidate>,
    /// Sum of the weights before each candidate, and of all.
    before: Vec<u64>,
}

impl WeightedCandidates {
    pub(crate) fn new(candidates: Vec<Candidate>) -> WeightedCandidates {
        let mut before = Vec::with_capacity(candidates.len() + 1);
        before.push(0);
        for candidate in &candidates {
            // Plus one unit, so that a group without free space can still be drawn when the others
            // are exhausted.
            before.push(before[before.len() - 1] + candidate.free / WEIGHT_UNIT + 1);
        }
        WeightedCandidates { candidates, before }
    }

    fn len(&self) -> usize {
        self.candidates.len()
    }

    /// Picks `count <= len()` of them.
    fn pick(&self, count: usize, chooser: Chooser, ino: InodeId, random: &mut SplitMix64) -> Vec<GroupId> {
        if count == 0 {
            return Vec::new();
        }
        match chooser {
            Chooser::RoundRobin => self.round_robin(count, ino),
            Chooser::Random => self.shuffled(count, random),
            Chooser::CapacityWeighted => self.weighted(count, random),
        }
    }

    fn round_robin(&self, count: usize, ino: InodeId) -> Vec<GroupId> {
        // The partition shifts the start, or the first files of all partitions would start on the
        // same group.
        let start = (ino.sequence() + ino.partition().0 as u64) % self.len() as u64;
        (0..count).map(|step| self.candidates[(start as usize + step) % self.len()].id).collect()
    }

    /// The first `count` steps of a Fisher-Yates shuffle, storing only displaced elements.
    fn shuffled(&self, count: usize, random: &mut SplitMix64) -> Vec<GroupId> {
        let mut moved: BTreeMap<usize, usize> = BTreeMap::new();
        let step = |at: usize| {
            let other = at + random.below((self.len() - at) as u64) as usize;
            let here = moved.get(&at).copied().unwrap_or(at);
            let there = moved.insert(other, here).unwrap_or(other);
            self.candidates[there].id
        };
        (0..count).map(step).collect()
    }

    /// Draws without replacement, each in proportion to free space.
    pub(crate) fn weighted(&self, count: usize, random: &mut SplitMix64) -> Vec<GroupId> {
        let weight = |at: usize| self.before[at + 1] - self.before[at];
        let mut total = self.before[self.len()];
        // In ascending order.
        let mut drawn: Vec<usize> = Vec::with_capacity(count);
        let mut chosen = Vec::with_capacity(count);
        for _ in 0..count {
            // Among the remaining ones: skips the weight of earlier drawn candidates before the
            // ticket.
            let mut ticket = random.below(total);
            for &gone in &drawn {
                if ticket < self.before[gone] {
                    break;
                }
                ticket += weight(gone);
            }
            let winner = self.before.partition_point(|before| *before <= ticket) - 1;
            total -= weight(winner);
            drawn.insert(drawn.partition_point(|gone| *gone < winner), winner);
            chosen.push(self.candidates[winner].id);
        }
        chosen
    }
}

#[cfg(test)]
pub(crate) mod tests;
