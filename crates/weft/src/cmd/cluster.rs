//! `weft cluster init`, `weft cluster token`, `weft node join`: how machines become members.

use super::manage::{ask, change, print_reply};
use crate::assembly::{
    LocalIdentity, ManagementAddresses, MembershipAuthority, Peers, hex_text, joining_security,
};
use crate::cli::{
    ClusterCommand, ClusterSetArgs, InitArgs, JoinArgs, Switch, TokenArgs, TokenCommand, TokenRevokeArgs,
};
use crate::discovery::NODES;
use crate::exit::{ArgumentCheck, Failure};
use crate::node_config::{NodeConfig, Protection, announced_addresses, resolve};
use crate::output::{Align, os_error, print, show, table};
use crate::progress::Progress;
use identity::{Authority, JoinToken, PendingKey};
use mgmt::{
    FIRST_NODE, StateDir, StatePaths, Superblock, check_address, check_name, check_rack, default_node_name,
    require_vacant,
};
use net::{Networks, SameHost};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use types::{Errno, Error, Result, Role, Timestamp};
use wire::mgmt::{Join, Joined, NewToken, TokenInfo};
use wire::{MgmtReply, MgmtRequest};

/// Destination for determining the machine's own address when there is no specific peer. Any
/// address beyond its own networks will do; nothing is sent there.
const ROUTE_PROBE_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 7500);

/// Time-out of the request to management.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the command.
pub fn run(command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Init(args) => init(&args),
        ClusterCommand::Token(args) => Ok(token(&args)?),
        ClusterCommand::Set(ClusterSetArgs { checksums, query }) => {
            Ok(change(&query, MgmtRequest::SetChecksums { on: checksums == Switch::On })?)
        }
    }
}

#[derive(Serialize)]
struct InitOutput {
    name: String,
    cluster: String,
    node: types::NodeId,
    dir: PathBuf,
    addresses: Vec<String>,
    token: String,
    cluster_file: PathBuf,
}

fn init(args: &InitArgs) -> Result<(), Failure> {
    check_name("cluster", &args.name).or_usage()?;
    let rack = parse_rack(args.rack.as_deref()).or_usage()?;
    let dir = absolute(&args.dir)?;
    let roles = roles(&args.roles);
    require_first_roles(&roles).or_usage()?;
    check_addresses(&args.address, &args.network).or_usage()?;
    let addresses = addresses(&args.address, &args.listen, ROUTE_PROBE_ADDRESS, &args.network)?;
    let superblock = Superblock::random(&args.name);
    let config = NodeConfig {
        cluster: superblock.uuid.clone(),
        node: FIRST_NODE,
        name: host_name().unwrap_or_else(|| default_node_name(FIRST_NODE)),
        rack,
        roles,
        listen: args.listen.clone(),
        management: addresses.clone(),
        addresses,
        networks: args.network.clone(),
        protection: args.protection,
        threads: None,
        numa: None,
        api: vec![],
        api_names: vec![],
        durability: args.durability,
        backups: None,
        targets: vec![],
    };
    let mut token = String::new();
    let state = StateDir::create_member(&dir, &superblock, |paths| {
        token = fill_first_node(paths, &superblock, &config)?;
        Ok::<_, Error>(())
    })?;
    let made = InitOutput {
        name: superblock.name,
        cluster: superblock.uuid,
        node: FIRST_NODE,
        cluster_file: state.paths.cluster_file(),
        dir,
        addresses: config.addresses,
        token,
    };
    Ok(show(args.json, &made, || next_steps(&made, args.protection))?)
}

fn require_first_roles(roles: &[Role]) -> Result<()> {
    match roles.contains(&Role::Mgmt) && roles.contains(&Role::Meta) {
        true => Ok(()),
        false => {
            let message = "the first node of a cluster must have the roles mgmt and meta";
            Err(Error::new(Errno::EOPNOTSUPP, message).hint("--roles mgmt,meta or --roles mgmt,meta,storage"))
        }
    }
}

/// Fills the directory of the first node. Returns the first token.
fn fill_first_node(paths: &StatePaths, superblock: &Superblock, config: &NodeConfig) -> Result<String> {
    let now_s = rt::now().secs;
    Authority::create(&superblock.uuid, &superblock.name, now_s)?.store(&paths.authority())?;
    let gate = MembershipAuthority::load(paths, superblock, config)?;
    gate.own_credentials(FIRST_NODE, now_s)?.store(&paths.identity())?;
    gate.cluster_file(now_s)?.write(&paths.cluster_file())?;
    config.create(paths.root(), &superblock.name)?;
    gate.node_token(&NewToken::default(), now_s)
}

fn next_steps(made: &InitOutput, protection: Protection) -> String {
    let (dir, file) = (made.dir.display(), made.cluster_file.display());
    let protection = match protection {
        Protection::Tls => String::new(),
        other => format!(" --protection {}", crate::cli::value_name(other)),
    };
    let run = run_command(&made.dir);
    let only_here = match made.addresses.iter().all(|address| is_loopback(address)) {
        true => {
            "Other machines can't reach this address: name one that they can with --address ADDR:PORT.\n\n"
        }
        false => "",
    };
    format!(
        "created cluster {} ({}); its first node is in {dir}, at {}\n\n{only_here}\
         Run it:                  {run}\n\
         Give it a disk:          weft target add /PATH --dir {dir}\n\
         Add a storage node:      weft node join TOKEN --roles storage --dir DIR{protection}\n\
         Mount, on any machine:   weft mount {file} MOUNTPOINT\n\n\
         The token, valid for one node and one day (weft cluster token --dir {dir} creates others):\n{}\n",
        made.name,
        made.cluster,
        made.addresses.join(", "),
        made.token
    )
}

/// Returns the command that runs a node in the background.
fn run_command(dir: &Path) -> String {
    const UNIT: &str = "/usr/lib/systemd/system/weft@.service";
    let has_unit = Path::new("/run/systemd/system").is_dir() && Path::new(UNIT).exists();
    let unit = if has_unit { unit_of(dir) } else { None };
    unit.map_or_else(
        || format!("weft serve --dir {} --detach", dir.display()),
        |unit| format!("systemctl enable --now {unit}"),
    )
}

/// Returns the unit of a package that runs the node in a directory.
fn unit_of(dir: &Path) -> Option<String> {
    let name = dir.strip_prefix(NODES).ok()?.to_str()?;
    check_name("node", name).ok().map(|()| format!("weft@{name}"))
}

/// Returns whether only processes of this machine can use an address.
fn is_loopback(address: &str) -> bool {
    address.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback())
        || address.rsplit_once(':').is_some_and(|(host, _)| host == "localhost")
}

fn token(args: &TokenArgs) -> Result<()> {
    match &args.command {
        None => new_token(args),
        Some(TokenCommand::List(query)) => {
            let tokens = match ask(&query.dir, MgmtRequest::ListTokens)? {
                MgmtReply::Tokens { tokens } => tokens,
                other => return Err(super::manage::unexpected_reply(&other)),
            };
            show(query.json, &tokens, || tokens_table(&tokens))
        }
        Some(TokenCommand::Revoke(TokenRevokeArgs { token, query })) => {
            change(query, MgmtRequest::RevokeToken { token: token.clone() })
        }
    }
}

fn tokens_table(tokens: &[TokenInfo]) -> String {
    let row = |token: &TokenInfo| {
        let ends = Timestamp::new(token.ends_s, 0).to_string();
        [token.id.clone(), token.roles.join(","), token.uses_left.to_string(), ends]
    };
    let heading =
        [("TOKEN", Align::Left), ("FOR", Align::Left), ("USES LEFT", Align::Right), ("ENDS", Align::Left)];
    table(heading, &tokens.iter().map(row).collect::<Vec<_>>())
}

fn new_token(args: &TokenArgs) -> Result<()> {
    let wanted = NewToken { client: args.client, uses: args.uses, expires_s: args.expires };
    let reply = ask(&args.dir, MgmtRequest::NewToken(wanted))?;
    match (args.json, reply) {
        (true, reply) => print_reply(&reply),
        (false, MgmtReply::Token { token }) => {
            print(&format!("{}\n", token.trim_end()));
            Ok(())
        }
        (false, other) => Err(super::manage::unexpected_reply(&other)),
    }
}

#[derive(Serialize)]
struct Member {
    cluster: String,
    name: String,
    node: types::NodeId,
    dir: PathBuf,
    addresses: Vec<String>,
}

/// `weft node join`.
pub fn join(args: &JoinArgs) -> Result<(), Failure> {
    let dir = absolute(&args.dir)?;
    let rack = parse_rack(args.rack.as_deref()).or_usage()?;
    args.name.as_deref().map_or(Ok(()), |name| check_name("node", name)).or_usage()?;
    check_addresses(&args.address, &args.network).or_usage()?;
    // Before the token is used up.
    crate::kernel::require_supported()?;
    require_vacant(&dir)?;
    let token: JoinToken = token_text(&args.token)?.parse().map_err(Error::from).or_usage()?;
    let management = resolve(&token.addresses)?;
    let addresses = addresses(&args.address, &args.listen, management[0], &args.network)?;
    let key = PendingKey::generate()?;
    let request = Join {
        secret: token.to_string(),
        // Without a name, management gives the node one.
        name: args.name.clone().or_else(host_name).unwrap_or_default(),
        roles: roles(&args.roles),
        addresses: addresses.clone(),
        csr: hex_text(key.request()),
        version: env!("CARGO_PKG_VERSION").into(),
        clock_s: rt::now().secs,
        rack: rack.clone(),
    };
    let joined = request_join(&token, args, request)?;
    if joined.facts.uuid != token.cluster {
        return Err(Error::new(Errno::EPROTO, "the cluster that answered is not that of the token")
            .hint("use a token of the cluster at that address")
            .into());
    }
    let superblock = Superblock::from_constants(&joined.facts)
        .ok_or_else(|| Error::new(Errno::EPROTO, "the cluster's answer is invalid"))?;
    let config = NodeConfig {
        cluster: superblock.uuid.clone(),
        node: joined.node,
        name: joined.name.clone(),
        rack,
        roles: roles(&args.roles),
        listen: args.listen.clone(),
        addresses: addresses.clone(),
        management: token.addresses.clone(),
        networks: args.network.clone(),
        protection: args.protection,
        threads: None,
        numa: None,
        api: vec![],
        api_names: vec![],
        durability: Default::default(),
        backups: None,
        targets: vec![],
    };
    StateDir::create_member(&dir, &superblock, |paths| {
        if args.protection != Protection::Plain {
            key.certified(&joined.certificate)?.store(&paths.identity())?;
        }
        config.create(paths.root(), &superblock.name)
    })?;
    let member = Member { cluster: superblock.name, name: joined.name, node: joined.node, dir, addresses };
    Ok(show(args.json, &member, || joined_text(&member))?)
}

fn joined_text(member: &Member) -> String {
    let (run, dir) = (run_command(&member.dir), member.dir.display());
    format!(
        "this machine is node {} ({}) of cluster {}, at {}\n\n\
         Run it:          {run}\n\
         Give it a disk:  weft target add /PATH --dir {dir}\n",
        member.node,
        member.name,
        member.cluster,
        member.addresses.join(", ")
    )
}

fn request_join(token: &JoinToken, args: &JoinArgs, request: Join) -> Result<Joined> {
    let oneself = LocalIdentity {
        cluster: String::new(),
        name: format!("{} (joining)", request.name),
        security: joining_security(args.protection, token)?,
        networks: Networks::parse(&args.network)?,
        same_host: SameHost::OverTcp,
    };
    let addresses = token.addresses.clone();
    let _progress = Progress::start(&format!("asking management at {}", addresses.join(", ")));
    let asked = rt::block_on(async move {
        let peers = Peers::new(oneself, ManagementAddresses::fixed(&addresses), JOIN_TIMEOUT)?;
        peers.management().call(MgmtRequest::Join(request), None).await
    });
    match asked.map_err(|e| os_error("io_uring", &e))? {
        Ok(MgmtReply::Joined(joined)) => Ok(joined),
        Ok(other) => Err(super::manage::unexpected_reply(&other)),
        Err(error) if error.errno == Errno::ETIMEDOUT => {
            let hint =
                "check that weft serve runs on the management node, and that --protection is the cluster's";
            Err(error.hint(hint))
        }
        Err(error) => Err(error),
    }
}

/// Returns the token itself, or the content of a file.
fn token_text(token: &str) -> Result<String> {
    if token.starts_with("weft-join-") || !Path::new(token).exists() {
        return Ok(token.to_string());
    }
    std::fs::read_to_string(token).map_err(|e| os_error(token, &e))
}

/// Returns the roles, sorted and without duplicates.
pub fn roles(asked: &[crate::cli::Role]) -> Vec<Role> {
    let mut roles: Vec<Role> = asked.iter().map(|role| Role::from(*role)).collect();
    roles.sort_unstable();
    roles.dedup();
    roles
}

/// Returns the rack of a new node; `none` means no rack.
fn parse_rack(asked: Option<&str>) -> Result<Option<String>> {
    match asked.filter(|rack| *rack != "none") {
        Some(rack) => check_rack(rack).map(|()| Some(rack.to_string())),
        None => Ok(None),
    }
}

fn addresses(
    given: &[String],
    listen: &[SocketAddr],
    towards: SocketAddr,
    networks: &[String],
) -> Result<Vec<String>> {
    match given.is_empty() {
        true => announced_addresses(listen, towards, &Networks::parse(networks)?),
        false => Ok(given.to_vec()),
    }
}

fn check_addresses(given: &[String], networks: &[String]) -> Result<()> {
    Networks::parse(networks)?;
    given.iter().try_for_each(|address| check_address(address))
}

/// Returns the machine's name, if it can be that of a node.
fn host_name() -> Option<String> {
    node_name_from(&rustix::system::uname().nodename().to_string_lossy())
}

/// Returns the node name that a host name gives: none for a machine without a name of its own,
/// which the kernel calls "(none)" and distributions call "localhost".
fn node_name_from(host: &str) -> Option<String> {
    let is_own = host != "localhost" && !host.starts_with("localhost.");
    (is_own && check_name("node", host).is_ok()).then(|| host.to_string())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| os_error(path.display(), &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_name_gives_its_node_none() {
        for host in ["", "(none)", "localhost", "localhost.localdomain", "-a", "two words"] {
            assert_eq!(node_name_from(host), None, "{host}");
        }
        for host in ["oss1", "oss1.example.com", "localhost1"] {
            assert_eq!(node_name_from(host).as_deref(), Some(host));
        }
        check_name("node", &default_node_name(FIRST_NODE)).unwrap();
    }

    #[test]
    fn the_unit_of_a_node_follows_from_its_directory() {
        assert_eq!(unit_of(Path::new("/var/lib/weft/main")).as_deref(), Some("weft@main"));
        for other in ["/srv/weft", "/var/lib/weft", "/var/lib/weft/a/b", "/var/lib/weft/a b"] {
            assert_eq!(unit_of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn addresses_of_one_machine_are_recognised() {
        for address in ["127.0.0.1:7500", "[::1]:7500", "localhost:7500"] {
            assert!(is_loopback(address), "{address}");
        }
        for address in ["10.0.0.1:7500", "oss1:7500", "[fd00::1]:7500"] {
            assert!(!is_loopback(address), "{address}");
        }
    }
}
