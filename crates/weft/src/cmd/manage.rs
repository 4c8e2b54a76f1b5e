//! Commands that send a request to management, through the process of any node, given by its
//! directory.

use crate::cli::{
    BackupsCommand, HealthArgs, MetaCommand, NodeArgs, NodeCommand, NodeSetArgs, PoolArgs, PoolCommand,
    PoolSetArgs, QueryArgs, SessionCommand, Switch, TargetArgs, TargetCommand, TargetSetArgs,
};
use crate::control::{Control, Request};
use crate::output::{Align, format_age, list, print, print_json, show, table};
use crate::size::format_size;
use std::collections::BTreeMap;
use std::path::Path;
use types::{Errno, Error, NodeState, Result, SessionId, TargetId};
use wire::mgmt::{
    BackupsInfo, CeilingShare, Health, MeasuredPlace, MetaInfo, NodeInfo, PoolInfo, SessionInfo, TargetInfo,
    TargetRate, Verdict,
};
use wire::{MgmtReply, MgmtRequest};

/// Number of targets whose utilization `weft health` shows.
const BUSIEST_SHOWN: usize = 4;

/// Sends a request to management through the node in `dir`.
pub fn ask(dir: &Path, request: MgmtRequest) -> Result<MgmtReply> {
    Control::ask(dir, Request::Manage { request })
}

/// Returns the error for a reply of an unexpected type.
pub fn unexpected_reply(reply: &MgmtReply) -> Error {
    Error::new(Errno::EPROTO, format!("management sent an unexpected reply: {reply:?}"))
        .hint("command and running process may be of different versions")
}

/// Makes a change. Prints nothing on success, except with `--json`.
pub fn change(query: &QueryArgs, request: MgmtRequest) -> Result<()> {
    let reply = ask(&query.dir, request)?;
    if query.json { print_json(&reply) } else { Ok(()) }
}

/// `weft node`, except `join`.
pub fn node(command: NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Join(args) => super::cluster::join(&args),
        NodeCommand::List(query) => {
            let nodes = nodes(&query)?;
            show(query.json, &nodes, || nodes_table(&nodes))
        }
        NodeCommand::Show(args) => {
            let node = find_node(&args.query, &args.node)?;
            show(args.query.json, &node, || node_screen(&node))
        }
        NodeCommand::Set(args) => set_node(args),
        NodeCommand::Remove(NodeArgs { node, query }) => {
            let node = find_node(&query, &node)?.node.id;
            change(&query, MgmtRequest::RemoveNode { node })
        }
    }
}

fn set_node(args: NodeSetArgs) -> Result<()> {
    let node = find_node(&args.query, &args.node)?.node.id;
    let rack = args.change.rack.map(|rack| Some(rack).filter(|rack| !rack.is_empty() && rack != "none"));
    let roles = (!args.change.roles.is_empty()).then(|| super::cluster::roles(&args.change.roles));
    match MgmtRequest::node_change_request(node, args.change.name, rack, roles) {
        Some(request) => change(&args.query, request),
        None => Ok(()),
    }
}

fn nodes(query: &QueryArgs) -> Result<Vec<NodeInfo>> {
    match ask(&query.dir, MgmtRequest::ListNodes)? {
        MgmtReply::Nodes { nodes } => Ok(nodes),
        other => Err(unexpected_reply(&other)),
    }
}

fn find_node(query: &QueryArgs, wanted: &str) -> Result<NodeInfo> {
    let found = nodes(query)?.into_iter().find(|n| n.node.name == wanted || n.node.id.to_string() == wanted);
    found.ok_or_else(|| {
        Error::new(Errno::ENOENT, format!("there is no node {wanted}")).hint("weft node list shows all")
    })
}

fn node_state(state: NodeState) -> &'static str {
    match state {
        NodeState::Online => "online",
        NodeState::ProbablyOffline => "probably offline",
        NodeState::Offline => "offline",
    }
}

fn joined<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn role_names(node: &types::Node) -> String {
    node.roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(",")
}

fn rack_name(node: &types::Node) -> &str {
    node.rack.as_deref().unwrap_or("none")
}

fn nodes_table(nodes: &[NodeInfo]) -> String {
    let row = |n: &NodeInfo| {
        [
            n.node.id.to_string(),
            n.node.name.clone(),
            node_state(n.node.state).into(),
            role_names(&n.node),
            joined(&n.targets),
            rack_name(&n.node).into(),
            n.node.version.clone(),
            n.node.addresses.join(" "),
        ]
    };
    let heading = [
        ("NODE", Align::Right),
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("ROLES", Align::Left),
        ("TARGETS", Align::Left),
        ("RACK", Align::Left),
        ("VERSION", Align::Left),
        ("ADDRESSES", Align::Left),
    ];
    table(heading, &nodes.iter().map(row).collect::<Vec<_>>())
}

fn node_screen(info: &NodeInfo) -> String {
    let last_heartbeat =
        info.silent_s.map_or_else(|| "not since management started".into(), |s| format!("{s} s ago"));
    list(&[
        ("node", info.node.id.to_string()),
        ("name", info.node.name.clone()),
        ("state", node_state(info.node.state).into()),
        ("roles", role_names(&info.node)),
        ("targets", joined(&info.targets)),
        ("rack", rack_name(&info.node).into()),
        ("addresses", info.node.addresses.join(" ")),
        ("weft", info.node.version.clone()),
        ("last heartbeat", last_heartbeat),
    ])
}

/// `weft target`, except `add` and `list`.
pub fn target(command: TargetCommand) -> Result<()> {
    match command {
        TargetCommand::Add(args) => super::target_add::run(&args),
        TargetCommand::List(query) => super::target_list::run(&query),
        TargetCommand::Show(args) => show_target(&args),
        TargetCommand::Set(args) => set_target(&args),
        TargetCommand::Drain(args) => super::target_drain::run(&args),
        TargetCommand::Remove(args) => super::target_remove::run(&args),
    }
}

/// Returns management's information about a target.
pub fn find_target(dir: &Path, target: TargetId) -> Result<TargetInfo> {
    let targets = match ask(dir, MgmtRequest::ListTargets)? {
        MgmtReply::Targets { targets } => targets,
        other => return Err(unexpected_reply(&other)),
    };
    targets.into_iter().find(|t| t.target.id == target).ok_or_else(|| {
        Error::new(Errno::ENOENT, format!("there is no target {target}")).hint("weft target list shows all")
    })
}

fn show_target(args: &TargetArgs) -> Result<()> {
    let found = find_target(&args.query.dir, TargetId(args.target))?;
    show(args.query.json, &found, || target_screen(&found))
}

fn target_screen(info: &TargetInfo) -> String {
    let t = &info.target;
    list(&[
        ("target", t.id.to_string()),
        ("node", format!("{} ({})", t.node, info.node_name)),
        ("path", t.path.clone()),
        ("pool", info.pool_name.clone()),
        ("state", super::target_list::state_name(t.state).into()),
        ("capacity", super::target_list::class_name(t.class).into()),
        ("drain", info.progress.as_ref().map_or_else(|| "no".into(), super::target_drain::progress_text)),
        ("size", format_size(t.capacity)),
        ("free", format_size(t.free)),
    ])
}

fn set_target(args: &TargetSetArgs) -> Result<()> {
    let target = TargetId(args.target);
    if let Some(pool) = &args.change.pool {
        change(&args.query, MgmtRequest::SetPool { target, pool: pool.clone() })?;
    }
    match args.change.drain {
        Some(switch) => change(&args.query, MgmtRequest::SetDrain { target, drain: switch == Switch::On }),
        None => Ok(()),
    }
}

/// `weft meta`.
pub fn meta(command: MetaCommand) -> Result<()> {
    let (query, request) = match command {
        MetaCommand::List(query) => (query, MgmtRequest::ListMetas),
        MetaCommand::Rebalance(query) => (query, MgmtRequest::RebalanceMetas),
        MetaCommand::Backup(args) => return super::meta_backup::run(&args),
        MetaCommand::Restore(args) => return super::meta_restore::run(&args),
        MetaCommand::Backups(BackupsCommand::List(args)) => return super::meta_backups::run(&args),
    };
    let metas = match ask(&query.dir, request)? {
        MgmtReply::Metas { metas } => metas,
        other => return Err(unexpected_reply(&other)),
    };
    show(query.json, &metas, || metas_table(&metas))
}

fn metas_table(metas: &[MetaInfo]) -> String {
    let row = |m: &MetaInfo| {
        [
            m.node.id.to_string(),
            m.node.name.clone(),
            node_state(m.node.state).into(),
            m.assigned.len().to_string(),
            m.executed.as_ref().map_or_else(|| "-".into(), |executed| executed.len().to_string()),
        ]
    };
    let heading = [
        ("NODE", Align::Right),
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("PARTITIONS", Align::Right),
        ("EXECUTED", Align::Right),
    ];
    table(heading, &metas.iter().map(row).collect::<Vec<_>>())
}

/// `weft pool`, except `list`.
pub fn pool(command: PoolCommand) -> Result<()> {
    match command {
        PoolCommand::List(query) => super::pool_list::run(&query),
        PoolCommand::Show(args) => show_pool(&args),
        PoolCommand::Set(args) => set_pool(args),
        PoolCommand::Remove(PoolArgs { pool, query }) => change(&query, MgmtRequest::RemovePool { pool }),
    }
}

fn set_pool(args: PoolSetArgs) -> Result<()> {
    if let Some(percent) = args.change.spare {
        change(&args.query, MgmtRequest::SetSpare { pool: args.pool.clone(), percent })?;
    }
    match args.change.name {
        Some(name) => change(&args.query, MgmtRequest::RenamePool { pool: args.pool, name }),
        None => Ok(()),
    }
}

fn show_pool(args: &PoolArgs) -> Result<()> {
    let pools = match ask(&args.query.dir, MgmtRequest::ListPools)? {
        MgmtReply::Pools { pools } => pools,
        other => return Err(unexpected_reply(&other)),
    };
    let pool: PoolInfo = pools.into_iter().find(|p| p.name == args.pool).ok_or_else(|| {
        Error::new(Errno::ENOENT, format!("there is no pool {}", args.pool)).hint("weft pool list shows all")
    })?;
    if args.query.json {
        return print_json(&pool);
    }
    print(&list(&[
        ("pool", pool.id.to_string()),
        ("name", pool.name),
        ("targets", pool.targets.to_string()),
        ("groups", pool.groups.to_string()),
        ("size", format_size(pool.capacity)),
        ("free", format_size(pool.free)),
        ("spare", format!("{} %", pool.spare)),
    ]));
    Ok(())
}

/// `weft session`.
pub fn session(command: SessionCommand) -> Result<()> {
    match command {
        SessionCommand::List(query) => {
            let sessions = match ask(&query.dir, MgmtRequest::ListSessions)? {
                MgmtReply::Sessions { sessions } => sessions,
                other => return Err(unexpected_reply(&other)),
            };
            show(query.json, &sessions, || sessions_table(&sessions))
        }
        SessionCommand::Show(args) => super::session_show::run(&args),
        SessionCommand::Evict(args) => {
            change(&args.query, MgmtRequest::EvictSession { session: SessionId(args.session) })
        }
    }
}

/// Replaces control characters in a client's text, which could move the terminal's cursor.
fn without_control_characters(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn sessions_table(sessions: &[SessionInfo]) -> String {
    let row = |s: &SessionInfo| {
        let idle = s.idle_s.map_or_else(|| "-".into(), |s| format!("{s} s ago"));
        let count = |n: Option<u64>| n.map_or_else(|| "-".into(), |n| n.to_string());
        let (leases, in_use) = (count(s.leases), count(s.in_use));
        [
            s.session.to_string(),
            idle,
            leases,
            in_use,
            s.client.clone(),
            without_control_characters(&s.host),
            s.address.clone(),
        ]
    };
    let heading = [
        ("SESSION", Align::Right),
        ("LAST SEEN", Align::Right),
        ("LEASES", Align::Right),
        ("OPEN UNLEASED", Align::Right),
        ("CLIENT", Align::Left),
        ("HOST", Align::Left),
        ("ADDRESS", Align::Left),
    ];
    table(heading, &sessions.iter().map(row).collect::<Vec<_>>())
}

/// `weft health`: exit status 0 healthy, 1 warning, 2 critical.
pub fn health(query: &HealthArgs) -> Result<()> {
    let health = match ask(&query.dir, MgmtRequest::Health)? {
        MgmtReply::Health(health) => health,
        other => return Err(unexpected_reply(&other)),
    };
    match query.json {
        true => print_json(&health)?,
        false => print(&health_screen(&health)),
    }
    match health.verdict {
        Verdict::Healthy => Ok(()),
        Verdict::Warning => std::process::exit(1),
        Verdict::Critical => std::process::exit(2),
    }
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Healthy => "healthy",
        Verdict::Warning => "warning",
        Verdict::Critical => "critical",
    }
}

fn health_screen(health: &Health) -> String {
    let line = |f: &wire::mgmt::HealthFinding| {
        format!("{}: {}\n  hint: {}\n", verdict_name(f.verdict), f.what, f.hint)
    };
    let findings: String = health.findings.iter().map(line).collect();
    let copies = health.copies.as_ref().map(copies_line).unwrap_or_default();
    let ceilings = ceilings_lines(&health.ceilings);
    let shares = share_lines(&health.rates);
    format!("{}\n{findings}{copies}{ceilings}{shares}", verdict_name(health.verdict))
}

/// Shows the busiest drives, named by their targets, with the utilization of the limiting ceiling;
/// `--json` has all.
fn share_lines(rates: &[TargetRate]) -> String {
    let line = |what: &str, share: fn(&TargetRate) -> Option<&CeilingShare>| {
        let is_first = |rate: &&TargetRate| rate.one_drive_with.iter().all(|other| *other > rate.target);
        let mut busy: Vec<(&TargetRate, &CeilingShare)> =
            rates.iter().filter(is_first).filter_map(|rate| Some((rate, share(rate)?))).collect();
        busy.sort_by(|a, b| b.1.share.total_cmp(&a.1.share));
        let shares = busy
            .iter()
            .take(BUSIEST_SHOWN)
            .map(|(rate, of)| format!("{} {:.0} % ({})", drive_label(rate), 100.0 * of.share, of.limit));
        let shares: Vec<String> = shares.collect();
        match (busy.len(), busy.last()) {
            (0, _) | (_, None) => String::new(),
            (all, Some((_, least))) if all > BUSIEST_SHOWN => {
                let others = format!("; {} others down to {:.0} %", all - BUSIEST_SHOWN, 100.0 * least.share);
                format!("{what}: {}{others}\n", shares.join(", "))
            }
            _ => format!("{what}: {}\n", shares.join(", ")),
        }
    };
    line("utilization of the limiting resource, last 10 s", |rate| rate.now.as_ref())
        + &line("peak in any 10 s since the start", |rate| rate.most.as_ref())
}

/// Names a drive by its targets.
fn drive_label(rate: &TargetRate) -> String {
    let others: String = rate.one_drive_with.iter().map(|other| format!("+{other}")).collect();
    format!("target {}{others}", rate.target)
}

/// Shows when targets and nodes were measured, grouped by day.
fn ceilings_lines(places: &[MeasuredPlace]) -> String {
    let mut days: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
    for place in places {
        let day = place.measured.as_deref().map(|time| time.split('T').next().unwrap_or(time));
        days.entry(day).or_default().push(&place.place);
    }
    if days.keys().all(Option::is_none) {
        let is_empty = places.is_empty();
        return if is_empty {
            String::new()
        } else {
            "ceilings are not measured yet: weft bench storage\n".into()
        };
    }
    let line = |(day, places): (Option<&str>, Vec<&str>)| match day {
        Some(day) => format!("ceilings were measured on {day}: {}\n", places.join(", ")),
        None => format!("ceilings are not measured yet: {}\n", places.join(", ")),
    };
    days.into_iter().map(line).collect()
}

fn copies_line(copies: &BackupsInfo) -> String {
    match (&copies.newest, copies.age_s) {
        (Some(newest), Some(age_s)) => {
            format!("the newest metadata backup is {} old: {newest}\n", format_age(age_s as i64))
        }
        _ if copies.kept == 0 => "daily metadata backups are off (backups = 0)\n".into(),
        _ => format!("there is no metadata backup in {} yet\n", copies.folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_grouped_by_day() {
        let place = |place: &str, measured: Option<&str>| MeasuredPlace {
            place: place.into(),
            measured: measured.map(Into::into),
        };
        let never = place("target 2", None);
        assert_eq!(ceilings_lines(&[]), "");
        assert_eq!(
            ceilings_lines(std::slice::from_ref(&never)),
            "ceilings are not measured yet: weft bench storage\n"
        );
        let two = [place("target 1", Some("2026-11-23T01:00:00Z")), never];
        assert_eq!(
            ceilings_lines(&two),
            "ceilings are not measured yet: target 2\nceilings were measured on 2026-11-23: target 1\n"
        );
    }

    #[test]
    fn the_busiest_targets_come_first() {
        let rate = |target: u32, share: Option<f64>| TargetRate {
            target: types::TargetId(target),
            read_bytes: 0.0,
            written_bytes: 1e6,
            reads: 0.0,
            writes: 1.0,
            one_drive_with: Vec::new(),
            now: share.map(|share| CeilingShare { limit: "storage-write".into(), share }),
            most: None,
        };
        assert_eq!(share_lines(&[]), "");
        assert_eq!(share_lines(&[rate(1, None)]), "");
        assert_eq!(
            share_lines(&[rate(1, Some(0.124)), rate(2, None), rate(3, Some(1.0))]),
            "utilization of the limiting resource, last 10 s: target 3 100 % (storage-write), target 1 12 % (storage-write)\n"
        );
        let of_pair = |target, other| TargetRate {
            one_drive_with: vec![types::TargetId(other)],
            ..rate(target, Some(0.5))
        };
        assert_eq!(
            share_lines(&[of_pair(1, 4), of_pair(4, 1)]),
            "utilization of the limiting resource, last 10 s: target 1+4 50 % (storage-write)\n"
        );
        let many: Vec<TargetRate> = (1..=9).map(|n| rate(n, Some(f64::from(n) / 10.0))).collect();
        let shares = share_lines(&many);
        assert!(
            shares.contains(": target 9 90 %") && shares.ends_with("; 5 others down to 10 %\n"),
            "{shares}"
        );
    }

    #[test]
    fn a_verdict_comes_with_its_hints() {
        let finding = wire::mgmt::HealthFinding {
            verdict: Verdict::Critical,
            what: "node 2 (a) is offline".into(),
            hint: "start it".into(),
        };
        let health = Health {
            verdict: Verdict::Critical,
            findings: vec![finding],
            copies: None,
            store: None,
            ceilings: vec![],
            rates: vec![],
        };
        assert_eq!(health_screen(&health), "critical\ncritical: node 2 (a) is offline\n  hint: start it\n");
        let mut health = Health {
            verdict: Verdict::Healthy,
            findings: vec![],
            copies: None,
            store: None,
            ceilings: vec![],
            rates: vec![],
        };
        assert_eq!(health_screen(&health), "healthy\n");
        let copies = BackupsInfo { folder: "/b".into(), kept: 7, newest: None, age_s: None, failure: None };
        health.copies = Some(copies.clone());
        assert_eq!(health_screen(&health), "healthy\nthere is no metadata backup in /b yet\n");
        health.copies = Some(BackupsInfo { newest: Some("/b/c".into()), age_s: Some(7300), ..copies });
        assert_eq!(health_screen(&health), "healthy\nthe newest metadata backup is 2 hours old: /b/c\n");
    }
}
