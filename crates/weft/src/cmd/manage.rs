//! Commands that send a request to management, through the process of any node or a mount.

use crate::cli::{
    BackupsCommand, MetaCommand, NodeArgs, NodeCommand, NodeSetArgs, PlaceOption, PoolArgs, PoolCommand,
    PoolSetArgs, QueryArgs, SessionCommand, Switch, TargetArgs, TargetCommand, TargetSetArgs,
};
use crate::control::Request;
use crate::exit::Failure;
use crate::output::{Align, list, print, print_json, show, table, to_json};
use crate::size::format_size;
use serde_json::Value;
use types::{Errno, Error, NodeState, Result, SessionId, TargetId};
use wire::mgmt::{MetaInfo, NodeInfo, PoolInfo, SessionInfo, TargetInfo};
use wire::{MgmtReply, MgmtRequest};

/// Sends a request to management through the node or the mount at `dir`.
pub fn ask(dir: &PlaceOption, request: MgmtRequest) -> Result<MgmtReply> {
    dir.find()?.ask(Request::Manage { request })
}

/// Returns the error for a reply of an unexpected type.
pub fn unexpected_reply(reply: &MgmtReply) -> Error {
    Error::new(Errno::EPROTO, format!("management sent an unexpected reply: {reply:?}"))
        .hint("command and running process may be of different versions")
}

/// Makes a change. Prints nothing on success, except with `--json`.
pub fn change(query: &QueryArgs, request: MgmtRequest) -> Result<()> {
    let reply = ask(&query.dir, request)?;
    if query.json { print_reply(&reply) } else { Ok(()) }
}

/// Prints management's reply as JSON, without the field that names its kind.
pub fn print_reply(reply: &MgmtReply) -> Result<()> {
    print_json(&reply_document(reply)?)
}

fn reply_document(reply: &MgmtReply) -> Result<Value> {
    let mut document = to_json(reply)?;
    if let Some(fields) = document.as_object_mut() {
        fields.remove("answer");
    }
    Ok(document)
}

/// `weft node`.
pub fn node(command: NodeCommand) -> Result<(), Failure> {
    match command {
        NodeCommand::Join(args) => super::cluster::join(&args)?,
        NodeCommand::List(query) => {
            let nodes = nodes(&query)?;
            show(query.json, &nodes, || nodes_table(&nodes))?;
        }
        NodeCommand::Show(args) => {
            let node = find_node(&args.query, &args.node)?;
            show(args.query.json, &node, || node_screen(&node))?;
        }
        NodeCommand::Set(args) => set_node(args)?,
        NodeCommand::Remove(NodeArgs { node, query }) => {
            let node = find_node(&query, &node)?.node.id;
            change(&query, MgmtRequest::RemoveNode { node })?;
        }
    }
    Ok(())
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

/// `weft target`.
pub fn target(command: TargetCommand) -> Result<(), Failure> {
    match command {
        TargetCommand::Add(args) => super::target_add::run(&args)?,
        TargetCommand::List(args) => drop(super::target_list::run(&args)?),
        TargetCommand::Show(args) => show_target(&args)?,
        TargetCommand::Set(args) => set_target(&args)?,
        TargetCommand::Drain(args) => super::target_drain::run(&args)?,
        TargetCommand::Remove(args) => super::target_remove::run(&args)?,
    }
    Ok(())
}

/// Returns management's information about a target.
pub fn find_target(dir: &PlaceOption, target: TargetId) -> Result<TargetInfo> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_printed_without_its_kind() {
        let token = MgmtReply::Token { token: "weft-join-x".into() };
        assert_eq!(reply_document(&token), Ok(serde_json::json!({ "token": "weft-join-x" })));
        assert_eq!(reply_document(&MgmtReply::Done), Ok(serde_json::json!({})));
    }
}
