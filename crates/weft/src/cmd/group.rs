//! `weft group`: redundancy groups and the states of their members.

use super::manage::{ask, unexpected_reply};
use crate::cli::{GroupArgs, GroupCommand, GroupRebalanceArgs, GroupRecoverArgs, QueryArgs};
use crate::output::{Align, list, print_to_stderr, show, table};
use crate::size::format_size;
use types::{ClusterMap, Epoch, Errno, Error, Group, GroupId, MemberState, Result, TargetId};
use wire::mgmt::{GroupInfo, MemberReplacement, ResyncProgress};
use wire::{MgmtReply, MgmtRequest};

/// Runs the command.
pub fn run(command: GroupCommand) -> Result<()> {
    match command {
        GroupCommand::List(query) => {
            let groups = groups(&query, MgmtRequest::ListGroups)?;
            show(query.json, &groups, || groups_table(&groups))
        }
        GroupCommand::Show(args) => show_group(&args),
        GroupCommand::Create(args) => {
            let make = MgmtRequest::MakeGroups { pool: args.pool, scheme: args.scheme };
            let groups = groups(&args.query, make)?;
            if !args.query.json {
                warn_if_not_spread(&args.query, &groups)?;
            }
            show(args.query.json, &groups, || groups_table(&groups))
        }
        GroupCommand::Rebalance(args) => rebalance(&args),
        GroupCommand::Recover(args) => recover(&args),
        GroupCommand::Resync(command) => super::resync::run(command),
    }
}

fn rebalance(args: &GroupRebalanceArgs) -> Result<()> {
    let ask_for = MgmtRequest::RebalanceGroups { pool: args.pool.clone(), dry_run: args.dry_run };
    let (moves, crowded) = match ask(&args.query.dir, ask_for)? {
        MgmtReply::Moves { moves, crowded } => (moves, crowded),
        other => return Err(unexpected_reply(&other)),
    };
    if !crowded.is_empty() {
        let ids: Vec<String> = crowded.iter().map(GroupId::to_string).collect();
        print_to_stderr(&format!(
            "note: members of {} groups stay on one node or in one rack, since no target elsewhere has space for them now: {}; running moves will free \
             space, or add a target there (weft target add); then run this again\n",
            crowded.len(),
            ids.join(", ")
        ));
    }
    show(args.query.json, &moves, || {
        if moves.is_empty() {
            if !crowded.is_empty() {
                return String::new();
            }
            return "members are spread as far as possible, and targets are in about equally many groups\n"
                .into();
        }
        let row =
            |next: &MemberReplacement| [next.group.to_string(), next.from.to_string(), next.to.to_string()];
        let heading = [("GROUP", Align::Right), ("FROM TARGET", Align::Right), ("TO TARGET", Align::Right)];
        table(heading, &moves.iter().map(row).collect::<Vec<_>>())
    })
}

fn recover(args: &GroupRecoverArgs) -> Result<()> {
    let request = MgmtRequest::RecoverGroup {
        group: GroupId(args.group),
        from: TargetId(args.from),
        accept_loss: args.accept_loss,
    };
    let groups = groups(&args.query, request)?;
    show(args.query.json, &groups, || {
        format!("{}find files that lack a chunk file: weft fsck\n", groups_table(&groups))
    })
}

fn groups(query: &QueryArgs, request: MgmtRequest) -> Result<Vec<GroupInfo>> {
    match ask(&query.dir, request)? {
        MgmtReply::Groups { groups } => Ok(groups),
        other => Err(unexpected_reply(&other)),
    }
}

/// Warns if all members of a group are on one node.
fn warn_if_not_spread(query: &QueryArgs, groups: &[GroupInfo]) -> Result<()> {
    let map = match ask(&query.dir, MgmtRequest::WatchMap { after: Epoch(0) })? {
        MgmtReply::Map { map } => map,
        other => return Err(unexpected_reply(&other)),
    };
    let crowded = crowded(&map, groups);
    if crowded > 0 {
        print_to_stderr(&format!(
            "note: {crowded} of these groups have several members on one node: they survive the loss of a disk, not of that node\n"
        ));
    }
    Ok(())
}

fn crowded(map: &ClusterMap, groups: &[GroupInfo]) -> usize {
    groups
        .iter()
        .filter(|info| info.group.scheme.spans_targets() && !layout::has_distinct_nodes(map, &info.group))
        .count()
}

fn show_group(args: &GroupArgs) -> Result<()> {
    let all = groups(&args.query, MgmtRequest::ListGroups)?;
    let found = all.into_iter().find(|info| info.group.id == GroupId(args.group)).ok_or_else(|| {
        Error::new(Errno::ENOENT, format!("there is no group {}", args.group))
            .hint("weft group list shows all")
    })?;
    show(args.query.json, &found, || group_screen(&found))
}

/// Returns the name of a state, as in JSON.
fn state_word(state: MemberState) -> &'static str {
    match state {
        MemberState::InSync => "good",
        MemberState::NeedsResync => "needs-resync",
        MemberState::Resyncing => "resyncing",
        MemberState::NeedsRebuild => "bad",
        MemberState::Rebuilding => "rebuilding",
    }
}

/// Returns the state of a whole group.
fn group_word(group: &Group) -> &'static str {
    match group {
        group if group.is_lost() => "lost",
        group if group.is_degraded() => "degraded",
        _ => "good",
    }
}

fn primary_word(primary: Option<TargetId>) -> String {
    primary.map_or_else(|| "none".into(), |target| target.to_string())
}

fn rack_word(rack: &Option<String>) -> &str {
    rack.as_deref().unwrap_or("none")
}

fn groups_table(groups: &[GroupInfo]) -> String {
    let racks = |info: &GroupInfo| info.racks.iter().map(rack_word).collect::<Vec<_>>().join(",");
    let row = |info: &GroupInfo| {
        let member = |(target, state): (TargetId, MemberState)| match state {
            MemberState::InSync => target.to_string(),
            _ => format!("{target}({})", state_word(state)),
        };
        [
            info.group.id.to_string(),
            info.pool_name.clone(),
            info.group.scheme.to_string(),
            group_word(&info.group).into(),
            primary_word(info.primary),
            info.group.members_with_states().map(member).collect::<Vec<_>>().join(","),
            racks(info),
        ]
    };
    let heading = [
        ("GROUP", Align::Right),
        ("POOL", Align::Left),
        ("SCHEME", Align::Left),
        ("STATE", Align::Left),
        ("PRIMARY", Align::Right),
        ("TARGETS", Align::Left),
        // Without known racks the column is empty.
        (if groups.iter().any(|info| !info.racks.is_empty()) { "RACKS" } else { "" }, Align::Left),
    ];
    table(heading, &groups.iter().map(row).collect::<Vec<_>>())
}

fn group_screen(info: &GroupInfo) -> String {
    let group = &info.group;
    let mut rows = vec![
        ("group", group.id.to_string()),
        ("pool", info.pool_name.clone()),
        ("scheme", group.scheme.to_string()),
        ("primary", primary_word(info.primary)),
    ];
    for (at, (target, state)) in group.members_with_states().enumerate() {
        let progress = info.resyncs.iter().find(|progress| progress.target == target);
        let resync = progress.map_or_else(String::new, |progress| format!("; {}", sentence(progress)));
        let rack = info.racks.get(at).map_or_else(String::new, |rack| format!(", rack {}", rack_word(rack)));
        rows.push(("target", format!("{target} {}{rack}{resync}", state_word(state))));
    }
    if group.scheme.spans_targets() {
        rows.push(("version", group.since.to_string()));
    }
    if let Some(leaving) = group.leaving {
        rows.push(("leaving", format!("target {leaving}, when the others are good")));
    }
    if let Some(revived) = group.revived {
        rows.push((
            "recovered",
            format!("from target {revived}, which is being reconciled with the metadata"),
        ));
    }
    list(&rows)
}

/// Describes the progress of a resync.
fn sentence(progress: &ResyncProgress) -> String {
    let mut text = match (progress.files_left, progress.bytes_left) {
        (Some(files), Some(bytes)) => format!("{files} files with at most {} left", format_size(bytes)),
        (Some(files), None) => format!("{files} files left"),
        (None, Some(bytes)) => format!("at most {} left", format_size(bytes)),
        (None, None) => "counting what is missing".into(),
    };
    text +=
        &format!(", {} sent at {} a second", format_size(progress.bytes_moved), format_size(progress.rate));
    if let Some(why) = &progress.hindrance {
        text += &format!("; {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{NodeId, PoolId, Scheme};

    fn info(states: Vec<MemberState>) -> GroupInfo {
        let group = Group {
            scheme: Scheme::Mirror(2),
            members: vec![TargetId(3), TargetId(4)],
            states,
            ..Group::single(GroupId(100_001), PoolId(1), TargetId(3))
        };
        let primary = group.primary();
        GroupInfo { group, pool_name: "default".into(), primary, resyncs: vec![], racks: vec![] }
    }

    #[test]
    fn a_member_that_is_not_good_is_seen_at_a_glance() {
        let table = groups_table(&[info(vec![]), info(vec![MemberState::InSync, MemberState::NeedsRebuild])]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[1].contains("good") && lines[1].ends_with("3,4"), "{table}");
        assert!(lines[2].contains("degraded") && lines[2].ends_with("3,4(bad)"), "{table}");
        let mut lost = info(vec![]);
        lost.group.mark_lost();
        let table = groups_table(&[lost]);
        assert!(table.lines().nth(1).is_some_and(|line| line.contains("lost")), "{table}");
    }

    #[test]
    fn a_resync_says_how_far_it_is() {
        let mut info = info(vec![MemberState::InSync, MemberState::Resyncing]);
        info.resyncs.push(ResyncProgress {
            group: info.group.id,
            target: TargetId(4),
            files_left: Some(3),
            bytes_left: Some(2 << 20),
            bytes_moved: 1 << 20,
            rate: 1 << 20,
            hindrance: Some("paused".into()),
        });
        let screen = group_screen(&info);
        assert!(screen.contains("4 resyncing; 3 files with at most 2"), "{screen}");
        assert!(screen.contains("paused"), "{screen}");
    }

    #[test]
    fn racks_are_shown_where_they_are_known() {
        let known = GroupInfo { racks: vec![Some("r1".into()), None], ..info(vec![]) };
        let table = groups_table(&[known.clone(), info(vec![])]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].ends_with("RACKS") && lines[1].ends_with("3,4      r1,none"), "{table}");
        assert!(lines[2].ends_with("3,4"), "{table}");
        let screen = group_screen(&known);
        assert!(screen.contains("3 good, rack r1\n") && screen.contains("4 good, rack none\n"), "{screen}");
        assert!(!groups_table(&[info(vec![])]).contains("RACKS"));
        assert!(!group_screen(&info(vec![])).contains("rack"));
    }

    #[test]
    fn groups_within_a_node_are_counted() {
        let target = |id: u32, node: u32| types::Target {
            id: TargetId(id),
            node: NodeId(node),
            pool: PoolId(1),
            path: String::new(),
            state: types::TargetState::Online,
            capacity: 0,
            free: 0,
            class: types::CapacityClass::Normal,
            drain: false,
            used: None,
        };
        let map = |nodes: [u32; 2]| ClusterMap {
            targets: vec![target(3, nodes[0]), target(4, nodes[1])],
            ..ClusterMap::default()
        };
        assert_eq!(crowded(&map([1, 1]), &[info(vec![])]), 1);
        assert_eq!(crowded(&map([1, 2]), &[info(vec![])]), 0);
    }
}
