//! What administrators of a cluster of several machines can type.

use super::{DEFAULT_DIR, QueryArgs, Transport};
use crate::node_config::{DEFAULT_LISTEN, Protection};
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Seconds until an operation of a client fails whose servers don't answer, unless it is mounted
/// with another time.
pub const DEFAULT_TIMEOUT_S: u64 = 60;

/// What a node does.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Keeps the cluster map, admits nodes and clients
    Mgmt,
    /// Names and attributes
    Meta,
    /// Data
    Storage,
}

impl From<Role> for types::Role {
    fn from(role: Role) -> types::Role {
        match role {
            Role::Mgmt => types::Role::Mgmt,
            Role::Meta => types::Role::Meta,
            Role::Storage => types::Role::Storage,
        }
    }
}

/// `weft cluster`.
#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Make a cluster: this machine becomes its first node
    Init(InitArgs),
    /// Print a token for another node to join with, or a cluster file for clients
    Token(TokenArgs),
    /// Change what holds for the whole cluster
    Set(ClusterSetArgs),
}

/// `weft cluster set`.
#[derive(Args, Debug)]
pub struct ClusterSetArgs {
    /// Whether data is summed and checked, from client to disk and back. Off is only for measuring
    /// what that costs: damage is neither found nor mended then, and what is written meanwhile
    /// stays without checksums afterwards
    #[arg(long, value_enum, required = true)]
    pub checksums: Switch,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft cluster init`.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Name of the cluster
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Directory of the node; empty, or made
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub dir: PathBuf,
    /// Where the node listens
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_LISTEN)]
    pub listen: Vec<SocketAddr>,
    /// Where others reach it [default: --listen, or this machine's addresses in --network, or its
    /// main one]
    #[arg(long, value_name = "ADDR:PORT")]
    pub address: Vec<String>,
    /// Network that its connections use, best first; A/16,B/16: equally good [default: all]
    #[arg(long, value_name = "ADDR/BITS")]
    pub network: Vec<String>,
    /// What the node does
    #[arg(long, value_enum, value_delimiter = ',', default_value = "mgmt,meta,storage")]
    pub roles: Vec<Role>,
    /// Rack that it is in: copies are put into different ones [default: none]
    #[arg(long, value_name = "RACK")]
    pub rack: Option<String>,
    /// How connections of the whole cluster are protected
    #[arg(long, value_enum, default_value_t)]
    pub protection: Protection,
    /// What an acknowledged change survives without fsync
    #[arg(long, value_enum, default_value_t)]
    pub durability: super::Durability,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft cluster token`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TokenArgs {
    /// What to do with those that there are
    #[command(subcommand)]
    pub command: Option<TokenCommand>,
    /// Directory of the management node
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub dir: PathBuf,
    /// Print a cluster file that clients share; weft client add makes one for a client of its own
    #[arg(long, conflicts_with_all = ["uses", "expires"])]
    pub client: bool,
    /// How many nodes may join with it [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub uses: Option<u32>,
    /// After how long it ends, like 2h or 7d [default: 1d]
    #[arg(long, value_name = "TIME", value_parser = super::group::parse_seconds)]
    pub expires: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft cluster token`, of those that there are.
#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Show the tokens that are in force, by their ids
    List(QueryArgs),
    /// Let no more nodes join with one
    Revoke(TokenRevokeArgs),
}

/// `weft cluster token revoke`.
#[derive(Args, Debug)]
pub struct TokenRevokeArgs {
    /// Id of the token, from weft cluster token list
    #[arg(value_name = "ID")]
    pub token: String,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft node`.
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Make this machine a node of a cluster
    Join(JoinArgs),
    /// Show all
    List(QueryArgs),
    /// Show one
    Show(NodeArgs),
    /// Change one
    Set(NodeSetArgs),
    /// Forget one that is stopped and has no targets
    Remove(NodeArgs),
}

/// `weft node join`.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// Token from weft cluster token, or a file that holds it
    #[arg(value_name = "TOKEN_OR_FILE")]
    pub token: String,
    /// What the node does
    #[arg(long, value_enum, value_delimiter = ',', default_value = "storage")]
    pub roles: Vec<Role>,
    /// Directory of the node; empty, or made
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub dir: PathBuf,
    /// Name of the node [default: this machine's]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Rack that it is in: copies are put into different ones [default: none]
    #[arg(long, value_name = "RACK")]
    pub rack: Option<String>,
    /// Where the node listens
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_LISTEN)]
    pub listen: Vec<SocketAddr>,
    /// Where others reach it [default: --listen, or this machine's addresses in --network, or its
    /// main one]
    #[arg(long, value_name = "ADDR:PORT")]
    pub address: Vec<String>,
    /// Network that its connections use, best first; A/16,B/16: equally good [default: all]
    #[arg(long, value_name = "ADDR/BITS")]
    pub network: Vec<String>,
    /// How connections are protected: as the cluster has it
    #[arg(long, value_enum, default_value_t)]
    pub protection: Protection,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A node and where to ask.
#[derive(Args, Debug)]
pub struct NodeArgs {
    /// Id or name of the node
    pub node: String,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft node set`.
#[derive(Args, Debug)]
pub struct NodeSetArgs {
    /// Id or name of the node
    pub node: String,
    /// What is to change
    #[command(flatten)]
    pub change: NodeChange,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// What can be changed of a node.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct NodeChange {
    /// Another name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Rack that it is in, or none; groups follow with weft group rebalance
    #[arg(long, value_name = "RACK")]
    pub rack: Option<String>,
    /// What it does; its node.toml has to say the same
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROLES")]
    pub roles: Vec<Role>,
}

/// `weft serve`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct ServeArgs {
    /// Directory of the node
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub dir: PathBuf,
    /// NUMA zone to take CPUs and memory from; targets of other zones are left alone [default: numa
    /// in node.toml, or none]
    #[arg(long, value_name = "ZONE")]
    pub numa: Option<u32>,
    /// Return when it serves, and go on in the background
    #[arg(long)]
    pub detach: bool,
    /// The background half of --detach
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// `weft target`.
#[derive(Subcommand, Debug)]
pub enum TargetCommand {
    /// Make a directory of this node a target
    Add(TargetAddArgs),
    /// Show all
    List(QueryArgs),
    /// Show one
    Show(TargetArgs),
    /// Change one
    Set(TargetSetArgs),
    /// Move all data off one, while it is in use; weft target set ID --drain off calls it off
    Drain(TargetDrainArgs),
    /// Forget one that is drained and holds no data, or one that is offline with what it alone has
    Remove(TargetRemoveArgs),
}

/// `weft target remove`.
#[derive(Args, Debug)]
#[command(
    after_help = "Files of which a target that is offline alone has content are lost with it: reading and writing them gives EIO until they are deleted. Without --accept-loss such a target stays. A target that is online is drained first (weft target drain ID --wait). The disk of a removed target is never taken back."
)]
pub struct TargetRemoveArgs {
    /// Id of the target
    pub target: u32,
    /// Remove it with content that no other target has, after listing the files
    #[arg(long, group = "listing")]
    pub accept_loss: bool,
    /// Only list the files that would be lost
    #[arg(long, group = "listing")]
    pub dry_run: bool,
    /// Write all files that are lost to this new file on this node, a line of JSON each
    #[arg(long, value_name = "FILE", requires = "listing")]
    pub list: Option<PathBuf>,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft target drain`.
#[derive(Args, Debug)]
pub struct TargetDrainArgs {
    /// Id of the target
    pub target: u32,
    /// Return when nothing is there any more, and tell meanwhile how far it is
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft target add`.
#[derive(Args, Debug)]
pub struct TargetAddArgs {
    /// Directory on a disk of this node; empty, or made
    pub path: PathBuf,
    /// Pool that it joins; made if it isn't there
    #[arg(long, value_name = "NAME", default_value = mgmt::DEFAULT_POOL.1)]
    pub pool: String,
    /// NUMA zone that its disk is near: a process bound to another zone doesn't serve it
    #[arg(long, value_name = "ZONE")]
    pub numa: Option<u32>,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// A target and where to ask.
#[derive(Args, Debug)]
pub struct TargetArgs {
    /// Id of the target
    pub target: u32,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft target set`.
#[derive(Args, Debug)]
pub struct TargetSetArgs {
    /// Id of the target
    pub target: u32,
    /// What is to change
    #[command(flatten)]
    pub change: TargetChange,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// What can be changed of a target.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct TargetChange {
    /// Another pool; made if it isn't there
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Whether it gets no new files, and what is there moves to others
    #[arg(long, value_enum)]
    pub drain: Option<Switch>,
}

/// On or off.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Switch {
    On,
    Off,
}

/// `weft meta`.
#[derive(Subcommand, Debug)]
pub enum MetaCommand {
    /// Show the metadata services, and how many partitions each executes
    List(QueryArgs),
    /// Spread the partitions evenly over the services that are up
    Rebalance(QueryArgs),
    /// Copy the metadata as it is at one moment, while it is used or stopped
    Backup(BackupArgs),
    /// Put a copy in the place of the metadata of a stopped cluster
    Restore(RestoreArgs),
    /// Copies of the metadata
    #[command(subcommand)]
    Backups(BackupsCommand),
}

/// `weft meta backup`.
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// Folder, or a file that isn't there yet, on the machine that has the metadata [default:
    /// backups/ in its state directory]
    pub place: Option<PathBuf>,
    /// Only what changed since the newest copy in that folder; everything if there is none
    #[arg(long)]
    pub incremental: bool,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft meta restore`.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// The copy; those that it builds on are in its folder
    pub file: PathBuf,
    /// State directory of the cluster, or an empty one: its other files come from the copy then
    #[arg(long, value_name = "DIR", default_value = super::DEFAULT_DIR)]
    pub dir: PathBuf,
    /// Only read the copy, and say whether it could be restored
    #[arg(long)]
    pub check: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft meta backups`.
#[derive(Subcommand, Debug)]
pub enum BackupsCommand {
    /// Show the copies in a folder
    List(BackupsListArgs),
}

/// `weft meta backups list`.
#[derive(Args, Debug)]
pub struct BackupsListArgs {
    /// The folder [default: backups/ in the state directory]
    pub folder: Option<PathBuf>,
    /// Read all of each copy, and of what it builds on
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft pool`.
#[derive(Subcommand, Debug)]
pub enum PoolCommand {
    /// Show all
    List(QueryArgs),
    /// Show one, with its targets
    Show(PoolArgs),
    /// Change one
    Set(PoolSetArgs),
    /// Forget one without targets
    Remove(PoolArgs),
}

/// A pool and where to ask.
#[derive(Args, Debug)]
pub struct PoolArgs {
    /// Name of the pool
    pub pool: String,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft pool set`.
#[derive(Args, Debug)]
pub struct PoolSetArgs {
    /// Name of the pool
    pub pool: String,
    /// What is to change
    #[command(flatten)]
    pub change: PoolChange,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// What can be changed of a pool.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct PoolChange {
    /// Another name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Share of each target that new files leave free, percent: room for members of mirrored groups
    /// whose targets are lost
    #[arg(long, value_name = "PERCENT")]
    pub spare: Option<u8>,
}

/// `weft session`.
#[derive(Subcommand, Debug)]
pub enum SessionCommand {
    /// Show all
    List(QueryArgs),
    /// End one by force: its client comes back with another one, and loses its open files and locks
    ///
    /// To keep a client out: weft client revoke NAME, or weft export set CLIENTS --access none
    Evict(SessionArgs),
    /// Show the session of a mount here, and what became of those before
    Show(SessionShowArgs),
}

/// A session and where to ask.
#[derive(Args, Debug)]
pub struct SessionArgs {
    /// Id of the session
    pub session: u64,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// A mount whose session to show.
#[derive(Args, Debug)]
pub struct SessionShowArgs {
    /// Where it is mounted
    pub mountpoint: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft export`.
#[derive(Subcommand, Debug)]
pub enum ExportCommand {
    /// Show all rules
    List(QueryArgs),
    /// Say what some clients may do
    Set(ExportSetArgs),
    /// Forget a rule
    Remove(ExportArgs),
}

/// Clients and where to ask.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// ADDRESS/BITS, an address, local (the cluster's own nodes) or client:NAME
    pub clients: String,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft export set`.
#[derive(Args, Debug)]
#[command(
    after_help = "The most specific rule holds: one for the client's name, then local, then the longest prefix; without one: rw, no squash."
)]
pub struct ExportSetArgs {
    /// ADDRESS/BITS, an address, local (the cluster's own nodes) or client:NAME
    pub clients: String,
    /// What they may do
    #[arg(long, value_enum, default_value_t)]
    pub access: Access,
    /// Which of their users count as the anonymous one
    #[arg(long, value_enum, default_value_t)]
    pub squash: Squash,
    /// The anonymous user
    #[arg(long, value_name = "UID", default_value_t = types::NOBODY)]
    pub anon_uid: u32,
    /// Its group
    #[arg(long, value_name = "GID", default_value_t = types::NOBODY)]
    pub anon_gid: u32,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// What clients may do.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Read and write
    #[default]
    Rw,
    /// Read
    Ro,
    /// Nothing: they can't mount
    None,
}

/// Which users are squashed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Squash {
    /// Nobody
    #[default]
    None,
    /// Root
    Root,
    /// Everybody
    All,
}

/// `weft net`.
#[derive(Subcommand, Debug)]
pub enum NetCommand {
    /// Show the connections of a node, or of a mount
    Show(NetShowArgs),
}

/// Whose connections to show.
#[derive(Args, Debug)]
pub struct NetShowArgs {
    /// Where it is mounted; without it, the node in --dir is asked
    pub mountpoint: Option<PathBuf>,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft mount`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct MountArgs {
    /// Cluster file, from weft client add or weft cluster token --client
    #[arg(value_name = "CLUSTER_FILE")]
    pub cluster: PathBuf,
    /// Where to mount
    pub mountpoint: PathBuf,
    /// Seconds until operations fail that get no answer
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT_S,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Network that connections use, best first; A/16,B/16: equally good [default: what the cluster
    /// file says, or all]
    #[arg(long, value_name = "ADDR/BITS")]
    pub network: Vec<String>,
    /// Rack that this machine is in: copies there are read first [default: what the cluster file
    /// says, or that of a node on this machine]
    #[arg(long)]
    pub rack: Option<String>,
    /// Mount read-only
    #[arg(long)]
    pub read_only: bool,
    /// Allow views with mapped ids, for containers (Linux 6.12)
    ///
    /// Permissions are checked by the kernel of this machine alone then, and not by the metadata
    /// service too.
    #[arg(long)]
    pub idmap: bool,
    /// How requests come from the kernel
    #[arg(long, value_enum, default_value_t)]
    pub transport: Transport,
    /// Let O_DIRECT reach the devices, past the servers' page cache too
    #[arg(long)]
    pub no_server_cache: bool,
    /// Send small writes in a row together, within a second
    ///
    /// They are answered at once, and lost with this process until they are sent. Closing or
    /// syncing a file waits for that.
    #[arg(long)]
    pub write_behind: bool,
    /// Reach servers on this machine over TCP, not by shared memory
    #[arg(long)]
    pub no_shared_memory: bool,
    /// Stay in the foreground, log to standard error
    #[arg(long)]
    pub foreground: bool,
    /// Log of the background process [default: /var/log/weft/MOUNTPOINT.log]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// The background half
    #[arg(long, hide = true)]
    pub detached: bool,
}

impl ServeArgs {
    /// The command line that means the same.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["serve".into(), "--dir".into(), self.dir.clone().into()];
        if let Some(zone) = self.numa {
            line.extend(["--numa".into(), zone.to_string().into()]);
        }
        let flags = [("--detach", self.detach), ("--detached", self.detached)];
        line.extend(flags.iter().filter(|(_, set)| *set).map(|(name, _)| OsString::from(name)));
        line
    }
}

impl MountArgs {
    /// The command line that means the same.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> =
            vec!["mount".into(), self.cluster.clone().into(), self.mountpoint.clone().into()];
        line.extend(["--timeout".into(), self.timeout.to_string().into()]);
        line.extend(["--transport".into(), super::value_name(self.transport).into()]);
        for network in &self.network {
            line.extend(["--network".into(), network.into()]);
        }
        if let Some(rack) = &self.rack {
            line.extend(["--rack".into(), rack.into()]);
        }
        if let Some(log) = &self.log {
            line.extend(["--log".into(), log.clone().into()]);
        }
        let flags = [
            ("--read-only", self.read_only),
            ("--idmap", self.idmap),
            ("--no-server-cache", self.no_server_cache),
            ("--write-behind", self.write_behind),
            ("--no-shared-memory", self.no_shared_memory),
            ("--foreground", self.foreground),
            ("--detached", self.detached),
        ];
        line.extend(flags.iter().filter(|(_, set)| *set).map(|(name, _)| OsString::from(name)));
        line
    }
}

/// `weft umount`.
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Where it is mounted
    pub mountpoint: PathBuf,
    /// Even if it is in use, or client or servers don't answer: open files get errors
    #[arg(long)]
    pub force: bool,
    /// The process that may have to be left behind in the kernel
    #[arg(long, hide = true)]
    pub bare: bool,
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command};
    use super::*;
    use clap::Parser;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command)
    }

    #[test]
    fn lines_are_written_as_they_were_read() {
        let again = |words: Vec<OsString>| {
            Cli::try_parse_from([OsString::from("weft")].into_iter().chain(words)).unwrap().command
        };
        let line = "weft mount /c /m --timeout 7 --read-only --transport dev --no-shared-memory --network ::/0 --network 10.0.0.0/8 --log /l --foreground";
        let Ok(Command::Mount(args)) = parse(line) else { panic!("{line}") };
        assert!(matches!(again(args.to_arguments()), Command::Mount(same) if same == args));
        let line = "weft serve --dir d --numa 1 --detach";
        let Ok(Command::Serve(args)) = parse(line) else { panic!("{line}") };
        assert!(matches!(again(args.to_arguments()), Command::Serve(same) if same == args));
    }

    #[test]
    fn what_administrators_type_is_understood() {
        for line in [
            "weft cluster init --name n --dir d --listen 127.0.0.1:7500 --roles mgmt,meta --protection plain",
            "weft cluster token --client --json",
            "weft cluster token --uses 4 --expires 2h --dir d",
            "weft cluster token list --json --dir d",
            "weft cluster token revoke 00ff --dir d",
            "weft client add login1 --expires 90d --out /etc/weft/login1.toml --dir d",
            "weft client list --json",
            "weft client revoke login1",
            "weft export set client:login1 --access ro",
            "weft node join TOKEN --roles storage,meta --dir d --listen [::]:7501 --address 10.0.0.1:7501",
            "weft node join TOKEN --rack r1",
            "weft node set 2 --name oss1",
            "weft node set oss1 --rack r1",
            "weft node set oss1 --name oss2 --rack none",
            "weft target add /disk --pool nvme --numa 1 --dir d",
            "weft target set 3 --drain on --pool p",
            "weft target drain 3 --wait",
            "weft pool set a --name b",
            "weft session evict 18446744073709551615",
            "weft export list --json",
            "weft export set 10.1.0.0/16 --access ro --squash root --anon-uid 99 --anon-gid 99",
            "weft export set local --squash all --dir d",
            "weft export remove fd00::/8",
            "weft net show --json",
            "weft net show /mnt --json",
            "weft health",
            "weft umount --force /m",
        ] {
            parse(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "weft cluster init",
            "weft cluster init --name n --listen nowhere",
            "weft node join",
            "weft node join T --roles gateway",
            "weft target set 3",
            "weft export set",
            "weft cluster token --uses 0",
            "weft cluster token --client --uses 2",
            "weft cluster token --expires 0s",
            "weft cluster token --uses 2 list",
            "weft client add",
            "weft client revoke",
            "weft export set local --access wr",
            "weft target set 3 --drain maybe",
            "weft mount /c",
            "weft mount /c /m --timeout 0",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
