//! Findings about mirrored groups.

use super::finding;
use crate::limits::REPLACE_MEMBER_AFTER;
use crate::liveness::Liveness;
use std::collections::BTreeMap;
use types::{ClusterMap, Group, GroupId, GroupUsage, MemberState, Pool, TargetId, TargetState};
use wire::mgmt::{HealthCode, HealthFinding, ResyncProgress, Verdict};

/// Largest number of groups that a finding names; the rest is counted.
const NAMED: usize = 8;

/// All findings about mirrored groups.
pub(super) fn group_findings(map: &ClusterMap, liveness: &Liveness) -> Vec<HealthFinding> {
    let mut findings: Vec<HealthFinding> = unreachable(map).into_iter().collect();
    findings.extend(mirrored(map).filter_map(recovered));
    findings.extend(not_in_sync(map, liveness));
    findings.extend(map.pools.iter().filter_map(|pool| on_shared_nodes(map, pool)));
    findings.extend(map.pools.iter().filter_map(|pool| on_shared_racks(map, pool)));
    findings
}

fn mirrored(map: &ClusterMap) -> impl Iterator<Item = &Group> {
    map.groups.iter().filter(|group| group.scheme.spans_targets() && !group.is_lost())
}

/// Files with content in lost groups.
pub(super) fn lost_group_finding(map: &ClusterMap, usage: Option<&GroupUsage>) -> Option<HealthFinding> {
    let ids: Vec<GroupId> = map.groups.iter().filter(|group| group.is_lost()).map(|group| group.id).collect();
    let what = match usage {
        _ if ids.is_empty() => return None,
        Some(usage) if usage.files == 0 => return None,
        Some(usage) => format!(
            "{} files have content in {}, whose target was removed: that content is lost, and reads and writes of it fail",
            usage.files,
            format_groups(&ids)
        ),
        None => format!(
            "the content of {} is lost, since its target was removed; the affected files aren't counted yet",
            format_groups(&ids)
        ),
    };
    let hint = "weft fsck lists the files: delete them, or restore them from a backup".to_string();
    Some(finding(HealthCode::ContentLost, Verdict::Warning, what, hint))
}

/// Groups without a reachable member in sync.
fn unreachable(map: &ClusterMap) -> Option<HealthFinding> {
    let is_reachable = |target: TargetId| map.target(target).is_some_and(|t| t.state != TargetState::Offline);
    let in_sync = |group: &Group| -> Vec<TargetId> {
        group
            .members_with_states()
            .filter(|(_, state)| *state == MemberState::InSync)
            .map(|(id, _)| id)
            .collect()
    };
    let unreachable: Vec<&Group> =
        mirrored(map).filter(|g| !in_sync(g).into_iter().any(is_reachable)).collect();
    if unreachable.is_empty() {
        return None;
    }
    let mut in_sync_targets: Vec<TargetId> = unreachable.iter().flat_map(|group| in_sync(group)).collect();
    in_sync_targets.sort_unstable();
    in_sync_targets.dedup();
    let ids: Vec<GroupId> = unreachable.iter().map(|group| group.id).collect();
    let what = format!(
        "no member in sync of {} is reachable: files there can be neither read nor written",
        format_groups(&ids)
    );
    let hint = format!(
        "bring back one of the targets that are in sync: {}{}",
        joined(&in_sync_targets),
        recovery_hint(map, &unreachable)
    );
    Some(finding(HealthCode::GroupUnreachable, Verdict::Critical, what, hint))
}

/// Hint if all members in sync are lost for good: a reachable member that missed writes.
fn recovery_hint(map: &ClusterMap, unreachable: &[&Group]) -> String {
    let is_online = |id: TargetId| map.target(id).is_some_and(|t| t.state == TargetState::Online);
    let candidate = |group: &&Group| {
        let has_most = |state| matches!(state, MemberState::NeedsResync | MemberState::Resyncing);
        let from = group.members_with_states().find(|(id, state)| has_most(*state) && is_online(*id));
        from.map(|(from, _)| (group.id, from))
    };
    match unreachable.iter().find_map(candidate) {
        Some((group, from)) => format!(
            "; if they are lost for good: weft group recover {group} --from {from} shows what would be lost (for each group)"
        ),
        None => String::new(),
    }
}

/// A group that was recovered from a member that had missed writes.
fn recovered(group: &Group) -> Option<HealthFinding> {
    let from = group.revived?;
    let what = format!(
        "group {} was recovered from target {from}, which had missed writes: it is reconciled with the metadata before clients are admitted",
        group.id
    );
    let hint = "this needs the metadata services; run weft fsck afterwards".to_string();
    Some(finding(HealthCode::GroupRecovered, Verdict::Warning, what, hint))
}

/// One finding for each target that isn't in sync in some of its groups.
fn not_in_sync(map: &ClusterMap, liveness: &Liveness) -> Vec<HealthFinding> {
    let mut states: BTreeMap<(TargetId, bool), Vec<GroupId>> = BTreeMap::new();
    for group in mirrored(map) {
        for (target, state) in group.members_with_states().filter(|(_, state)| *state != MemberState::InSync)
        {
            let is_bad = matches!(state, MemberState::NeedsRebuild | MemberState::Rebuilding);
            states.entry((target, is_bad)).or_default().push(group.id);
        }
    }
    let finding = |((target, is_bad), groups): ((TargetId, bool), Vec<GroupId>)| {
        let mut what = match is_bad {
            true => {
                format!(
                    "target {target} has no usable content of {}, and gets a full copy",
                    format_groups(&groups)
                )
            }
            false => format!("target {target} has missed writes of {}", format_groups(&groups)),
        };
        let resyncs: Vec<&ResyncProgress> = map
            .groups
            .iter()
            .filter(|group| groups.contains(&group.id))
            .filter_map(|group| progress_of(map, liveness, group, target))
            .collect();
        if !resyncs.is_empty() {
            what += &progress(&resyncs);
        }
        let is_online = map.target(target).is_some_and(|t| t.state == TargetState::Online);
        let hint = match is_online {
            true if map.settings.resync.paused => {
                "resync is paused: weft group resync resume continues it".to_string()
            }
            true => "it is resynced automatically; weft group resync status shows the progress".to_string(),
            false => format!(
                "bring target {target} back: it is then resynced automatically; {}",
                replacement_hint(map, &groups, target)
            ),
        };
        let code = if is_bad { HealthCode::ReplicaUnusable } else { HealthCode::ReplicaOutdated };
        finding(code, Verdict::Warning, what, hint)
    };
    states.into_iter().map(finding).collect()
}

/// When a member that stays unreachable is replaced, as text.
fn replacement_hint(map: &ClusterMap, groups: &[GroupId], target: TargetId) -> String {
    let after_s = map.settings.resync.replace_after_s.unwrap_or(REPLACE_MEMBER_AFTER.as_secs());
    let is_stuck = |id: &GroupId| {
        map.group(*id).is_some_and(|group| layout::replacement_target(map, group, target).is_none())
    };
    match groups.iter().filter(|id| is_stuck(id)).count() {
        _ if after_s == 0 => "if it is lost: weft target drain replaces it by other targets".into(),
        0 => format!("other targets replace it when it has been offline for {} min", after_s.div_ceil(60)),
        count => format!(
            "no other target can replace it in {count} of these groups: add one on another node, and in another rack if nodes have racks, with enough space (weft target add)"
        ),
    }
}

/// Progress of a member's resync, as its primary reports it.
fn progress_of<'a>(
    map: &ClusterMap,
    liveness: &'a Liveness,
    group: &Group,
    target: TargetId,
) -> Option<&'a ResyncProgress> {
    let primary = map.target(group.primary()?)?;
    let seen = liveness.process(primary.node)?;
    seen.resyncs.iter().find(|progress| progress.group == group.id && progress.target == target)
}

/// Summary of several resyncs.
fn progress(resyncs: &[&ResyncProgress]) -> String {
    let bytes_left: Option<u64> = resyncs.iter().map(|p| p.bytes_left).sum();
    let files_left: Option<u64> = resyncs.iter().map(|p| p.files_left).sum();
    let rate: u64 = resyncs.iter().map(|p| p.rate).sum();
    let mut text = format!("; {} being resynced", if resyncs.len() == 1 { "one is" } else { "some are" });
    if let Some(files) = files_left {
        text += &format!(", {files} files left");
    }
    if let Some(bytes) = bytes_left {
        text += &format!(", at most {} MiB", bytes.div_ceil(1 << 20));
        if rate > 0 {
            text += &format!(", about {} s", bytes.div_ceil(rate));
        }
    }
    if let Some(hindrance) = resyncs.iter().find_map(|p| p.hindrance.as_ref()) {
        text += &format!("; {hindrance}");
    }
    text
}

/// Groups of a pool that don't survive the loss of one node.
fn on_shared_nodes(map: &ClusterMap, pool: &Pool) -> Option<HealthFinding> {
    let of_pool = || mirrored(map).filter(|group| group.pool == pool.id);
    let ids: Vec<GroupId> = of_pool().filter(|g| !layout::has_distinct_nodes(map, g)).map(|g| g.id).collect();
    let scheme = of_pool().find(|g| !layout::has_distinct_nodes(map, g))?.scheme;
    let what = format!(
        "{} of pool {} have several members on one node: they survive the loss of a disk, not of that node",
        format_groups(&ids),
        pool.name
    );
    let hint = match layout::can_use_distinct_nodes(map, pool.id, scheme) {
        true => format!("move members to other nodes: weft group rebalance --pool {}", pool.name),
        false => format!("add targets on other nodes: weft target add PATH --pool {}", pool.name),
    };
    Some(finding(HealthCode::GroupOnSharedNode, Verdict::Warning, what, hint))
}

/// Groups of a pool that don't survive the loss of one rack although they could. Groups that can't
/// span more racks are omitted: nodes may have racks even if there are few.
fn on_shared_racks(map: &ClusterMap, pool: &Pool) -> Option<HealthFinding> {
    let all = layout::Spread::of_pool(map, pool.id);
    let shares = |group: &&Group| group.pool == pool.id && layout::shares_rack(map, group, all);
    let ids: Vec<GroupId> = mirrored(map).filter(shares).map(|group| group.id).collect();
    let what = match ids.len() {
        0 => return None,
        1 => format!(
            "1 group of pool {} has several members in one rack, although it could span more: {}",
            pool.name,
            format_groups(&ids)
        ),
        count => format!(
            "{count} groups of pool {} have several members in one rack, although they could span more: {}",
            pool.name,
            format_groups(&ids)
        ),
    };
    let hint = format!("move members to other racks: weft group rebalance --pool {}", pool.name);
    Some(finding(HealthCode::GroupInSharedRack, Verdict::Warning, what, hint))
}

pub(super) fn format_groups(groups: &[GroupId]) -> String {
    match groups.len() {
        1 => format!("group {}", joined(groups)),
        count if count <= NAMED => format!("groups {}", joined(groups)),
        count => format!("{count} groups ({}, ...)", joined(&groups[..NAMED])),
    }
}

fn joined<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{CapacityClass, Epoch, NodeId, PoolId, Scheme, Target};

    fn map() -> ClusterMap {
        let target = |id: u32| Target {
            id: TargetId(id),
            node: NodeId(id),
            pool: PoolId(1),
            path: "/t".into(),
            state: TargetState::Online,
            capacity: 0,
            free: 0,
            class: CapacityClass::Normal,
            drain: false,
            used: None,
        };
        let group = Group {
            scheme: Scheme::Mirror(2),
            members: vec![TargetId(1), TargetId(2)],
            ..Group::single(GroupId(100_001), PoolId(1), TargetId(1))
        };
        ClusterMap {
            targets: vec![target(1), target(2)],
            pools: vec![Pool { id: PoolId(1), name: "default".into(), spare: 0 }],
            groups: vec![group],
            ..ClusterMap::default()
        }
    }

    fn after(change: impl FnOnce(&mut ClusterMap, &mut Liveness)) -> Vec<HealthFinding> {
        let (mut map, mut liveness) = (map(), Liveness::new(0));
        liveness.note_registration(NodeId(1), 1, 0);
        change(&mut map, &mut liveness);
        let findings = group_findings(&map, &liveness);
        assert!(findings.iter().all(|f| !f.hint.is_empty()));
        findings
    }

    #[test]
    fn a_member_not_in_sync_is_a_warning_with_progress() {
        assert_eq!(after(|_, _| ()), []);
        let resyncing =
            |map: &mut ClusterMap| map.groups[0].states = vec![MemberState::InSync, MemberState::Resyncing];
        let found = after(|map, _| resyncing(map));
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].verdict, &*found[0].what),
            (Verdict::Warning, "target 2 has missed writes of group 100001")
        );
        let progress = ResyncProgress {
            group: GroupId(100_001),
            target: TargetId(2),
            files_left: Some(3),
            bytes_left: Some(20 << 20),
            rate: 2 << 20,
            ..ResyncProgress::default()
        };
        let found = after(|map, liveness| {
            resyncing(map);
            liveness.note_map(NodeId(1), 1, Epoch(1), &[progress]);
        });
        assert!(
            found[0].what.ends_with("one is being resynced, 3 files left, at most 20 MiB, about 10 s"),
            "{found:?}"
        );
        let found =
            after(|map, _| map.groups[0].states = vec![MemberState::NeedsRebuild, MemberState::InSync]);
        assert!(
            found[0].what.contains("target 1") && found[0].what.contains("no usable content"),
            "{found:?}"
        );
    }

    #[test]
    fn an_unavailable_group_is_critical() {
        let found = after(|map, _| {
            map.groups[0].states = vec![MemberState::InSync, MemberState::NeedsResync];
            map.targets[0].state = TargetState::Offline;
        });
        assert_eq!(found[0].verdict, Verdict::Critical);
        assert!(
            found[0].what.contains("group 100001")
                && found[0]
                    .hint
                    .contains("in sync: 1; if they are lost for good: weft group recover 100001 --from 2 "),
            "{found:?}"
        );
        let found = after(|map, _| {
            map.groups[0].states = vec![MemberState::InSync, MemberState::NeedsRebuild];
            map.targets[0].state = TargetState::Offline;
        });
        assert!(found[0].hint.ends_with("in sync: 1"), "{found:?}");
        assert!(
            after(|map, _| map.targets[0].state = TargetState::Offline).is_empty(),
            "the other one serves"
        );
    }

    #[test]
    fn a_recovered_group_is_a_warning_until_reconciled() {
        let found = after(|map, _| {
            map.groups[0].states = vec![MemberState::InSync, MemberState::NeedsRebuild];
            map.groups[0].revived = Some(TargetId(1));
        });
        assert!(
            found[0].what.starts_with("group 100001 was recovered from target 1")
                && found[0].hint.contains("weft fsck"),
            "{found:?}"
        );
    }

    #[test]
    fn members_on_one_node_are_a_finding() {
        let found = after(|map, _| map.targets[1].node = NodeId(1));
        assert!(found[0].what.contains("several members on one node"), "{found:?}");
        assert!(found[0].hint.contains("weft target add"));
    }

    /// Puts two nodes in one rack and one in another, all online.
    fn in_racks(map: &mut ClusterMap, racks: &[&str]) {
        let node = |(at, rack): (usize, &&str)| types::Node {
            id: NodeId(at as u32 + 1),
            name: format!("n{at}"),
            addresses: vec![],
            roles: vec![],
            state: types::NodeState::Online,
            version: String::new(),
            rack: Some(rack.to_string()),
        };
        map.nodes = racks.iter().enumerate().map(node).collect();
        let target =
            |at: usize| Target { id: TargetId(at as u32), node: NodeId(at as u32), ..map.targets[0].clone() };
        map.targets = (1..=racks.len()).map(target).collect();
    }

    #[test]
    fn members_in_one_rack_are_a_finding_if_avoidable() {
        assert_eq!(after(|map, _| in_racks(map, &["a", "a"])), [], "there is no other");
        assert_eq!(after(|map, _| in_racks(map, &["a", "b", "a"])), [], "they are apart");
        let found = after(|map, _| in_racks(map, &["a", "a", "b"]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].what.starts_with("1 group of pool default has several members in one rack"),
            "{found:?}"
        );
        assert_eq!(found[0].hint, "move members to other racks: weft group rebalance --pool default");
        let drained = after(|map, _| {
            in_racks(map, &["a", "a", "b"]);
            map.targets[2].drain = true;
        });
        assert_eq!(drained, []);
    }
}
