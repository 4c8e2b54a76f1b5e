//! Errors of management for members of the cluster: object, cause and remedy.

use crate::limits::{MAX_ADDRESSES, MAX_CLOCK_SKEW_S, MAX_EXPORTS, MAX_NAME, MAX_NODES, MAX_TARGETS};
use std::time::Duration;
use types::{
    Errno, Error, ExportClients, GroupId, GroupUsage, MemberState, Node, NodeId, Role, Scheme, Target,
    TargetId,
};
use wire::mgmt::ResyncProgress;

pub(crate) fn removed_node(node: NodeId) -> Error {
    Error::new(Errno::ENODEV, format!("node {node} has been removed from the cluster"))
        .hint("let the machine join again with a new token, in an empty directory (weft node join)")
}

pub(crate) fn no_node(node: NodeId) -> Error {
    Error::new(Errno::ENOENT, format!("there is no node {node}")).hint("weft node list shows all")
}

pub(crate) fn no_target(target: TargetId) -> Error {
    Error::new(Errno::ENOENT, format!("there is no target {target}")).hint("weft target list shows all")
}

pub(crate) fn no_pool(name: &str) -> Error {
    Error::new(Errno::ENOENT, format!("there is no pool {name:?}")).hint("weft pool list shows all")
}

/// Another process is alive under this id.
pub(crate) fn duplicate_node(node: &Node) -> Error {
    let at = node.addresses.join(", ");
    Error::new(Errno::EEXIST, format!("node {} ({}) is already running, at {at}", node.id, node.name)).hint(
        "a node's directory must not be copied to another machine: join that one with a token of its own; \
         if the node has moved, stop the other process first",
    )
}

/// The sender isn't the registered process.
pub(crate) fn replaced(node: NodeId) -> Error {
    Error::new(Errno::ESTALE, format!("another process now serves as node {node}"))
        .hint("stop one of them; a node's directory must not be copied")
}

/// No registration since management started: the node registers again by itself.
pub(crate) fn unregistered(node: NodeId) -> Error {
    Error::new(Errno::ENOTCONN, format!("node {node} has not registered since management started"))
        .hint("it registers by itself")
}

pub(crate) fn claimed_target(target: &Target, owner: &Node, path: &str) -> Error {
    let message = format!(
        "target {} ({path}) is served by node {} ({}), which is alive",
        target.id, owner.id, owner.name
    );
    Error::new(Errno::EBUSY, message)
        .hint("one of the two directories is a copy; to move a disk, stop the node that it comes from first")
}

pub(crate) fn unknown_target(target: TargetId, path: &str) -> Error {
    Error::new(
        Errno::ENODEV,
        format!("target {target} ({path}) is not in the cluster; it may have been removed"),
    )
    .hint(format!("remove {path} from node.toml; empty the directory to use its disk again"))
}

pub(crate) fn foreign_target(target: TargetId, path: &str, theirs: &str, ours: &str) -> Error {
    let message = format!("target {target} ({path}) belongs to cluster {theirs}, not to {ours}");
    Error::new(Errno::EINVAL, message).hint(format!("remove {path} from node.toml"))
}

pub(crate) fn other_cluster(theirs: &str, ours: &str) -> Error {
    Error::new(Errno::EINVAL, format!("this is cluster {ours}, not {theirs}"))
        .hint("check the address: it may be that of another cluster now")
}

pub(crate) fn clock(who: &str, skew_s: i64) -> Error {
    let direction = if skew_s > 0 { "ahead of" } else { "behind" };
    let message = format!("the clock of {who} is {} s {direction} management's", skew_s.unsigned_abs());
    Error::new(Errno::EINVAL, message)
        .hint(format!("set both clocks by NTP (chrony): at most {MAX_CLOCK_SKEW_S} s apart"))
}

pub(crate) fn version(who: &str, theirs: &str, ours: &str) -> Error {
    let message = format!("{who} runs weft {theirs}, management runs weft {ours}: too far apart");
    Error::new(Errno::EPROTO, message)
        .hint(format!("install weft {ours} there, or a version whose second number differs by one at most"))
}

pub(crate) fn unsupported_roles(roles: &[Role]) -> Error {
    let names: Vec<&str> = roles.iter().map(|role| role.name()).collect();
    let message = format!("a node that joins can't have the roles {:?}", names.join(","));
    Error::new(Errno::EOPNOTSUPP, message)
        .hint("--roles meta,storage or one of them; mgmt runs on the node that weft cluster init created")
}

pub(crate) fn no_authority() -> Error {
    Error::new(Errno::EOPNOTSUPP, "this cluster issues no certificates")
        .hint("its protection is plain (node.toml): the HTTP interface isn't encrypted")
}

pub(crate) fn no_proven_names(clients: &ExportClients) -> Error {
    Error::new(
        Errno::EOPNOTSUPP,
        format!("a rule for {clients} would never apply: clients have no certificates here"),
    )
    .hint("the cluster's protection is plain (node.toml): write rules for networks")
}

/// The revocation of a client stays in force.
pub(crate) fn sessions_not_ended(client: &str, cause: &Error) -> Error {
    let message = format!(
        "client {client} is refused from now on, but its sessions could not be ended: {}",
        cause.message
    );
    Error::new(cause.errno, message)
        .hint(format!("weft health shows the cause; then weft client revoke {client} again ends them"))
}

pub(crate) fn foreign_name(node: &Node, name: &str) -> Error {
    let message = format!("{name:?} is not a name of node {} ({})", node.id, node.name);
    Error::new(Errno::EACCES, message)
        .hint("api_names in node.toml is for the management node; weft node set NODE --name renames a node")
}

pub(crate) fn invalid_roles(node: &Node, roles: &[Role]) -> Error {
    let names: Vec<&str> = roles.iter().map(|role| role.name()).collect();
    let message = format!("node {} ({}) can't have the roles {:?}", node.id, node.name, names.join(","));
    let hint = match node.roles.contains(&Role::Mgmt) {
        true => "--roles mgmt,meta or --roles mgmt,meta,storage: management and its metadata stay here",
        false => "--roles meta,storage or one of them; mgmt runs on the node that weft cluster init created",
    };
    Error::new(Errno::EOPNOTSUPP, message).hint(hint)
}

pub(crate) fn bad_name(what: &str, name: &str) -> Error {
    Error::new(Errno::EINVAL, format!("{name:?} can't be the name of a {what}"))
        .hint(format!("use 1 to {MAX_NAME} letters, digits, '.', '_' and '-'"))
}

pub(crate) fn no_rack_name(name: &str) -> Error {
    Error::new(Errno::EINVAL, format!("no rack can be called {name:?}: it stands for a node without a rack"))
        .hint("choose another name; weft node set NODE --rack none removes a node from its rack")
}

pub(crate) fn taken_name(what: &str, name: &str) -> Error {
    Error::new(Errno::EEXIST, format!("there is a {what} {name:?} already"))
        .hint(format!("choose another name with --name; weft {what} list shows all"))
}

pub(crate) fn bad_address(address: &str) -> Error {
    Error::new(Errno::EINVAL, format!("{address:?} is not an address that other machines can reach"))
        .hint("write ADDRESS:PORT, for example 10.0.0.2:7500 or [fd00::2]:7500")
}

pub(crate) fn bad_addresses(count: usize) -> Error {
    Error::new(Errno::EINVAL, format!("a node can't have {count} addresses"))
        .hint(format!("name 1 to {MAX_ADDRESSES} with --address"))
}

pub(crate) fn taken_address(address: &str, node: &Node) -> Error {
    Error::new(Errno::EADDRINUSE, format!("{address} is the address of node {} ({})", node.id, node.name))
        .hint("listen elsewhere with --listen; or weft node remove the other one if it is gone for good")
}

pub(crate) fn too_many_nodes() -> Error {
    Error::new(Errno::ENOSPC, format!("the cluster has {MAX_NODES} nodes, which is the limit"))
        .hint("remove those that are gone with weft node remove")
}

pub(crate) fn too_many_targets() -> Error {
    Error::new(Errno::ENOSPC, format!("the cluster has {MAX_TARGETS} targets, which is the limit"))
        .hint("combine the disks of a node into fewer, larger targets")
}

pub(crate) fn node_has_targets(node: &Node, targets: &[TargetId]) -> Error {
    let list: Vec<String> = targets.iter().map(TargetId::to_string).collect();
    Error::new(Errno::EBUSY, format!("node {} ({}) has the targets {}", node.id, node.name, list.join(", ")))
        .hint("drain and remove them first (weft target drain ID --wait, weft target remove ID)")
}

/// It is the only one that may own them.
pub(crate) fn node_has_partitions(node: &Node) -> Error {
    let message =
        format!("node {} ({}) has partitions of the metadata, and no other node is up", node.id, node.name);
    Error::new(Errno::EBUSY, message)
        .hint("start weft serve on another node with the role meta: it takes them over (weft meta list)")
}

pub(crate) fn node_serves(node: &Node) -> Error {
    Error::new(Errno::EBUSY, format!("node {} ({}) is alive", node.id, node.name))
        .hint("stop weft serve there first")
}

pub(crate) fn management_node(node: &Node) -> Error {
    Error::new(Errno::EINVAL, format!("node {} ({}) holds the cluster's metadata", node.id, node.name))
        .hint("it can't be removed")
}

pub(crate) fn not_drained(target: TargetId) -> Error {
    Error::new(Errno::EBUSY, format!("target {target} may get new files"))
        .hint(format!("weft target drain {target} --wait"))
}

pub(crate) fn holds_data(target: TargetId, example: types::InodeId) -> Error {
    Error::new(
        Errno::ENOTEMPTY,
        format!("target {target} holds data of files, for example of inode {example}"),
    )
    .hint(format!("weft target drain {target} --wait moves them to other targets"))
}

/// It is offline, and files would be lost with it.
pub(crate) fn unaccepted_removal(target: TargetId, usage: &GroupUsage) -> Error {
    let GroupUsage { files, bytes, .. } = usage;
    let message = format!(
        "target {target} is offline, and {files} files have content on no other target, at most {} MiB",
        bytes.div_ceil(1 << 20)
    );
    Error::new(Errno::ENOTEMPTY, message).hint(format!(
        "bring it back, or accept the loss: weft target remove {target} --dry-run lists the files, weft target remove {target} --accept-loss removes the target"
    ))
}

/// Its data can be moved.
pub(crate) fn needless_loss(target: TargetId) -> Error {
    Error::new(Errno::EBUSY, format!("target {target} is not offline: its data can be moved")).hint(format!(
        "weft target drain {target} --wait moves its data to others; then weft target remove {target}"
    ))
}

/// Content isn't given up while it may be available again soon.
pub(crate) fn target_may_return(target: TargetId, after: Duration) -> Error {
    let message = format!(
        "target {target} has been offline for less than {} s: it may return with its data",
        after.as_secs()
    );
    Error::new(Errno::EBUSY, message)
        .hint("bring it back, or try again later; the time starts again with management")
}

/// The target or its groups have changed since its files were counted.
pub(crate) fn state_changed(target: TargetId) -> Error {
    let message =
        format!("target {target} came back, or its groups have changed, while its files were counted");
    Error::new(Errno::EBUSY, message).hint("weft target list and weft group list show its state; try again")
}

/// Another replica exists, but is unreachable.
pub(crate) fn replicas_unreachable(target: TargetId, group: GroupId) -> Error {
    let message =
        format!("target {target} has a replica of group {group}, and no other member in sync is reachable");
    Error::new(Errno::EBUSY, message).hint(format!(
        "start the nodes of the others (weft group show {group}); with --accept-loss the target is removed nevertheless, and the group becomes available when one of them is back"
    ))
}

/// A group would be left with one replica less.
pub(crate) fn no_replacement(target: TargetId, group: GroupId) -> Error {
    Error::new(
        Errno::EBUSY,
        format!("no other target can replace target {target} in the mirrored group {group}"),
    )
    .hint("add a target in its pool, on another node than the other members, with enough space (weft target add)")
}

pub(crate) fn last_of_pool(target: TargetId, pool: &str) -> Error {
    Error::new(Errno::EBUSY, format!("target {target} is the last of pool {pool} that takes new files"))
        .hint(format!("add another one first: weft target add PATH --pool {pool}"))
}

/// The pool would be left without a target for new files, and is referred to.
pub(crate) fn pool_in_use(target: TargetId, pool: &str, example: types::InodeId) -> Error {
    let message = format!(
        "target {target} is the last of pool {pool} that takes new files, and inode {example} refers to that pool"
    );
    Error::new(Errno::EBUSY, message).hint(format!(
        "add another target first (weft target add PATH --pool {pool}), or give directories another pool (weft entry set-pattern) and remove the files that live there"
    ))
}

pub(crate) fn pool_has_targets(pool: &str, count: usize) -> Error {
    Error::new(Errno::EBUSY, format!("pool {pool} has {count} targets"))
        .hint("give them another pool (weft target set ID --pool P) or remove them first")
}

pub(crate) fn default_pool(pool: &str) -> Error {
    Error::new(Errno::EINVAL, format!("pool {pool} is the default pool; it can't be removed"))
        .hint("weft pool set renames it")
}

pub(crate) fn no_group(group: GroupId) -> Error {
    Error::new(Errno::ENOENT, format!("there is no group {group}")).hint("weft group list shows all")
}

pub(crate) fn not_mirrored(group: GroupId) -> Error {
    Error::new(Errno::EINVAL, format!("group {group} has one member, which is always in sync"))
        .hint("weft group list shows which groups are mirrored")
}

/// The caller isn't the primary of the group.
pub(crate) fn not_primary(group: GroupId, primary: Option<TargetId>) -> Error {
    let primary = primary.map_or_else(|| "no target".into(), |target| format!("target {target}"));
    Error::new(
        Errno::EACCES,
        format!("{primary} is the primary of group {group}, and this node doesn't serve it"),
    )
    .hint("only the node of the primary reports on members")
}

pub(crate) fn no_member(group: GroupId, target: TargetId) -> Error {
    Error::new(Errno::ENOENT, format!("target {target} is not a member of group {group}"))
        .hint(format!("weft group show {group} lists the members"))
}

pub(crate) fn state_name(state: MemberState) -> &'static str {
    match state {
        MemberState::InSync => "in sync",
        MemberState::NeedsResync => "not in sync",
        MemberState::Resyncing => "being resynced",
        MemberState::NeedsRebuild => "without usable content",
        MemberState::Rebuilding => "being rebuilt",
    }
}

pub(crate) fn member_state(
    group: GroupId,
    target: TargetId,
    before: MemberState,
    after: MemberState,
) -> Error {
    let (was, is) = (state_name(before), state_name(after));
    Error::new(Errno::EINVAL, format!("target {target} of group {group} is {was}: it can't be {is} next"))
        .hint("this is a bug in weft: report it with the logs of both nodes")
}

/// No member would be known to be in sync.
pub(crate) fn last_in_sync_member(group: GroupId, target: TargetId) -> Error {
    let message = format!("target {target} stays in group {group}: no other member in sync is reachable");
    Error::new(Errno::EAGAIN, message)
        .hint(format!("start the nodes of the other members (weft group show {group})"))
}

pub(crate) fn is_in_sync(group: GroupId, target: TargetId) -> Error {
    Error::new(
        Errno::EINVAL,
        format!("target {target} is in sync in group {group}: there is no need to accept a loss"),
    )
    .hint("if the group is unavailable, check that target's node: weft health")
}

/// Whole files may be missing there, and would read as zeros.
pub(crate) fn needs_full_copy(group: GroupId, target: TargetId) -> Error {
    Error::new(
        Errno::EINVAL,
        format!("target {target} may lack any part of group {group}: the group can't be recovered from it"),
    )
    .hint(format!("weft group show {group} shows members that have missed less (needs-resync, resyncing)"))
}

pub(crate) fn member_unreachable(group: GroupId, target: TargetId) -> Error {
    Error::new(
        Errno::EBUSY,
        format!("target {target}, from which group {group} is to be recovered, is unreachable"),
    )
    .hint("start weft serve on its node (weft node list)")
}

/// Content isn't given up while it may still exist.
pub(crate) fn member_may_return(group: GroupId, target: TargetId, after: Duration) -> Error {
    let message = format!(
        "target {target} is in sync in group {group}, and has been offline for less than {} s",
        after.as_secs()
    );
    Error::new(Errno::EBUSY, message).hint(
        "bring it back, or try again later if it is lost for good; the time starts again with management",
    )
}

pub(crate) fn unaccepted_loss(group: GroupId, from: TargetId, lacked: Option<&ResyncProgress>) -> Error {
    let known = match lacked.map(|progress| (progress.files_left, progress.bytes_left)) {
        Some((Some(files), Some(bytes))) => {
            let most_mib = bytes.div_ceil(1 << 20);
            format!("; at its last report it lacked data of {files} files, at most {most_mib} MiB")
        }
        _ => String::new(),
    };
    let message = format!(
        "what was written to group {group} while target {from} was not in sync would be lost, even if fsynced: files have old content or zeros there{known}"
    );
    Error::new(Errno::EPERM, message).hint(format!(
        "weft group recover {group} --from {from} --accept-loss does it; afterwards weft fsck lists files that lack a chunk file, but old content can't be detected"
    ))
}

/// A primary requests the ejection of a member that may have more content than itself.
pub(crate) fn reachability_unknown(group: GroupId, target: TargetId) -> Error {
    let message = format!(
        "it isn't known yet whether the node of target {target}, a member of group {group} that is in sync, is gone"
    );
    Error::new(Errno::EAGAIN, message)
        .hint("try again: this is known some seconds after the start of management")
}

/// The process of a member hasn't confirmed the version that ejects it.
pub(crate) fn ejection_unconfirmed(group: GroupId, target: TargetId) -> Error {
    let message = format!("the node of target {target} has not confirmed its ejection from group {group}");
    Error::new(Errno::EAGAIN, message).hint("try again; if this persists, restart weft serve on that node")
}

pub(crate) fn too_few_targets(pool: &str, scheme: Scheme, have: usize) -> Error {
    let message = format!(
        "pool {pool} has {have} targets that take new files and aren't offline, and a group of {scheme} needs {} on as \
         many nodes as the pool allows",
        scheme.members()
    );
    Error::new(Errno::ENODEV, message)
        .hint(format!("add targets first (weft target add PATH --pool {pool}), or start nodes that are down"))
}

pub(crate) fn too_many_groups() -> Error {
    let most = layout::MAX_MIRRORED;
    Error::new(
        Errno::ENOSPC,
        format!("the cluster would have more than {most} mirrored groups, which is the limit"),
    )
    .hint("use mirrored schemes in fewer pools, or combine the disks of a node into fewer, larger targets")
}

/// Its groups need it until another target has replaced it.
pub(crate) fn is_group_member(target: TargetId, group: GroupId, what: &str) -> Error {
    Error::new(
        Errno::EBUSY,
        format!("target {target} is a member of the mirrored group {group}: it can't {what}"),
    )
    .hint(format!(
        "weft target drain {target} --wait replaces it by other targets, and ends when it is in no group any more"
    ))
}

pub(crate) fn anonymous_root() -> Error {
    Error::new(Errno::EINVAL, "squashed users can't become user 0: that is root")
        .hint("name another one with --anon-uid")
}

pub(crate) fn too_many_exports() -> Error {
    Error::new(Errno::ENOSPC, format!("there are {MAX_EXPORTS} rules for clients, which is the limit"))
        .hint("one rule for a network may replace several (weft export list)")
}

pub(crate) fn no_export(clients: &ExportClients) -> Error {
    Error::new(Errno::ENOENT, format!("there is no rule for {clients}")).hint("weft export list shows all")
}

/// A rule forbids a client, or its network, to mount.
pub(crate) fn not_exported(who: &str, address: &str) -> Error {
    Error::new(Errno::EACCES, format!("{who} at {address} may not mount this file system")).hint(
        "weft export list, on a node, shows the rules for clients and networks; weft export set changes them",
    )
}

pub(crate) fn no_metadata() -> Error {
    Error::new(Errno::EAGAIN, "the metadata service is still starting").hint("try again in a moment")
}

pub(crate) fn not_allowed(who: &str) -> Error {
    Error::new(Errno::EACCES, format!("{who} is not permitted to request this from management"))
        .hint("use the weft command on a node of the cluster, as its administrator")
}

/// `pause`: the command that stops the work for a while.
pub(crate) fn low_rate(rate: u64, least: u64, pause: &str) -> Error {
    Error::new(Errno::EINVAL, format!("{rate} bytes a second is too low: it would never finish"))
        .hint(format!("give at least {} MiB/s; {pause} stops it for a while", least >> 20))
}

pub(crate) fn spare(percent: u8, most: u8) -> Error {
    Error::new(Errno::EINVAL, format!("{percent} % of a target can't be kept free")).hint(format!(
        "give 0 to {most}; one target's share of the pool is enough to replace one lost target"
    ))
}
