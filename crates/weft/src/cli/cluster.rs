//! Commands for administrators of a cluster of several machines.

use super::{DirOption, PlaceOption, QueryArgs, Transport, WatchArgs};
use crate::node_config::{DEFAULT_LISTEN, Protection};
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Default time-out of a client's operations if servers don't answer, in seconds.
pub const DEFAULT_TIMEOUT_S: u64 = 60;

/// Role of a node.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Cluster map, admission of nodes and clients
    Mgmt,
    /// Name space and inodes
    Meta,
    /// File data
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
    /// Create a cluster: this machine becomes its first node
    Init(InitArgs),
    /// Print a token for another node to join with, or a cluster file for clients
    Token(TokenArgs),
    /// Change settings of the whole cluster
    Set(ClusterSetArgs),
}

/// `weft cluster set`.
#[derive(Args, Debug)]
pub struct ClusterSetArgs {
    /// Whether data is checksummed and verified from client to disk and back. Off is only for
    /// measuring the cost: damage is neither found nor repaired, and data written meanwhile stays
    /// without checksums
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
    /// Directory of the node; empty or new [default: WEFT_DIR, or weft-data]
    #[arg(long, value_name = "DIR", default_value_os_t = crate::discovery::new_directory(), hide_default_value = true)]
    pub dir: PathBuf,
    /// Address to listen on
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_LISTEN)]
    pub listen: Vec<SocketAddr>,
    /// Address for other nodes [default: --listen, or this machine's addresses in --network, or its
    /// main one]
    #[arg(long, value_name = "ADDR:PORT")]
    pub address: Vec<String>,
    /// Network for connections, best first; A/16,B/16: equally good [default: all]
    #[arg(long, value_name = "ADDR/BITS")]
    pub network: Vec<String>,
    /// Roles of the node
    #[arg(long, value_enum, value_delimiter = ',', default_value = "mgmt,meta,storage")]
    pub roles: Vec<Role>,
    /// Rack of the node: replicas are placed in different racks [default: none]
    #[arg(long, value_name = "RACK")]
    pub rack: Option<String>,
    /// Protection of connections of the whole cluster
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
    /// Action on existing tokens
    #[command(subcommand)]
    pub command: Option<TokenCommand>,
    #[command(flatten)]
    pub dir: PlaceOption,
    /// Print a cluster file that clients share; weft client add creates one for a single client
    #[arg(long, conflicts_with_all = ["uses", "expires"])]
    pub client: bool,
    /// How many nodes may join with it [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub uses: Option<u32>,
    /// Time until it expires, like 2h or 7d [default: 1d]
    #[arg(long, value_name = "TIME", value_parser = super::group::parse_seconds)]
    pub expires: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft cluster token`, for existing tokens.
#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Show valid tokens by their ids
    List(QueryArgs),
    /// Revoke a token: no more nodes can join with it
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
    /// Show all nodes
    List(QueryArgs),
    /// Show a node
    Show(NodeArgs),
    /// Change a node
    Set(NodeSetArgs),
    /// Remove a stopped node that has no targets
    Remove(NodeArgs),
}

/// `weft node join`.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// Token from weft cluster token, or a file with it
    #[arg(value_name = "TOKEN_OR_FILE")]
    pub token: String,
    /// Roles of the node
    #[arg(long, value_enum, value_delimiter = ',', default_value = "storage")]
    pub roles: Vec<Role>,
    /// Directory of the node; empty or new [default: WEFT_DIR, or weft-data]
    #[arg(long, value_name = "DIR", default_value_os_t = crate::discovery::new_directory(), hide_default_value = true)]
    pub dir: PathBuf,
    /// Name of the node [default: this machine's]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Rack of the node: replicas are placed in different racks [default: none]
    #[arg(long, value_name = "RACK")]
    pub rack: Option<String>,
    /// Address to listen on
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_LISTEN)]
    pub listen: Vec<SocketAddr>,
    /// Address for other nodes [default: --listen, or this machine's addresses in --network, or its
    /// main one]
    #[arg(long, value_name = "ADDR:PORT")]
    pub address: Vec<String>,
    /// Network for connections, best first; A/16,B/16: equally good [default: all]
    #[arg(long, value_name = "ADDR/BITS")]
    pub network: Vec<String>,
    /// Protection of connections: must be the cluster's
    #[arg(long, value_enum, default_value_t)]
    pub protection: Protection,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A node, and the state directory to use.
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
    /// Settings to change
    #[command(flatten)]
    pub change: NodeChange,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Settings of a node that can be changed.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct NodeChange {
    /// New name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Rack, or none; move groups with weft group rebalance
    #[arg(long, value_name = "RACK")]
    pub rack: Option<String>,
    /// Roles; its node.toml must list the same
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROLES")]
    pub roles: Vec<Role>,
}

/// `weft serve`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub dir: DirOption,
    /// NUMA zone for CPUs and memory; targets of other zones are not served [default: numa in
    /// node.toml, or none]
    #[arg(long, value_name = "ZONE")]
    pub numa: Option<u32>,
    /// Return when it serves, and continue in the background until weft down --dir DIR
    #[arg(long)]
    pub detach: bool,
    /// Background process of --detach
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// `weft target`.
#[derive(Subcommand, Debug)]
pub enum TargetCommand {
    /// Make a directory of this node a target
    Add(TargetAddArgs),
    /// Show all targets
    List(WatchArgs),
    /// Show a target
    Show(TargetArgs),
    /// Change a target
    Set(TargetSetArgs),
    /// Move all data off a target while it is in use; weft target set ID --drain off cancels it
    Drain(TargetDrainArgs),
    /// Remove a drained, empty target, or an offline one with the data that only it has
    Remove(TargetRemoveArgs),
}

/// `weft target remove`.
#[derive(Args, Debug)]
#[command(
    after_help = "Files with content only on the removed offline target are lost: reading and writing them gives EIO until they are deleted. Without --accept-loss such a target is not removed. An online target must be drained first (weft target drain ID --wait). The disk of a removed target is never accepted again."
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
    /// Write all lost files to this new file on this node, one line of JSON each
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
    /// Wait until the target is empty, and show progress
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft target add`.
#[derive(Args, Debug)]
pub struct TargetAddArgs {
    /// Directory on a disk of this node; empty or new
    pub path: PathBuf,
    /// Pool of the target; created if it doesn't exist
    #[arg(long, value_name = "NAME", default_value = mgmt::DEFAULT_POOL.1)]
    pub pool: String,
    /// NUMA zone of its disk: a process bound to another zone doesn't serve it
    #[arg(long, value_name = "ZONE")]
    pub numa: Option<u32>,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// A target, and the state directory to use.
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
    /// Settings to change
    #[command(flatten)]
    pub change: TargetChange,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Settings of a target that can be changed.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct TargetChange {
    /// New pool; created if it doesn't exist
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Whether it gets no new files, and its data moves to other targets
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
    /// Spread the partitions evenly over the online services
    Rebalance(QueryArgs),
    /// Back up the metadata at one point in time, running or stopped
    Backup(BackupArgs),
    /// Restore the metadata of a stopped cluster from a backup
    Restore(RestoreArgs),
    /// Metadata backups
    #[command(subcommand)]
    Backups(BackupsCommand),
}

/// `weft meta backup`.
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// Folder or new file on the machine with the metadata [default: backups/ in its state
    /// directory]
    pub place: Option<PathBuf>,
    /// Only changes since the newest backup in that folder; everything if there is none
    #[arg(long)]
    pub incremental: bool,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft meta restore`.
#[derive(Args, Debug)]
#[command(after_help = "DIR may be empty: its other files then come from the backup.")]
pub struct RestoreArgs {
    /// Backup file; the backups that it builds on must be in the same folder
    pub file: PathBuf,
    #[command(flatten)]
    pub dir: DirOption,
    /// Only read the backup, and report whether it can be restored
    #[arg(long)]
    pub check: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft meta backups`.
#[derive(Subcommand, Debug)]
pub enum BackupsCommand {
    /// Show the backups in a folder
    List(BackupsListArgs),
}

/// `weft meta backups list`.
#[derive(Args, Debug)]
pub struct BackupsListArgs {
    /// Folder [default: backups/ in the state directory]
    pub folder: Option<PathBuf>,
    /// Read each backup completely, with those that it builds on
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft pool`.
#[derive(Subcommand, Debug)]
pub enum PoolCommand {
    /// Show all pools
    List(QueryArgs),
    /// Show a pool with its targets
    Show(PoolArgs),
    /// Change a pool
    Set(PoolSetArgs),
    /// Remove a pool without targets
    Remove(PoolArgs),
}

/// A pool, and the state directory to use.
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
    /// Settings to change
    #[command(flatten)]
    pub change: PoolChange,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Settings of a pool that can be changed.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct PoolChange {
    /// New name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Percentage of each target that new files leave free, for replacing members of mirrored
    /// groups whose targets are lost
    #[arg(long, value_name = "PERCENT")]
    pub spare: Option<u8>,
}

/// `weft session`.
#[derive(Subcommand, Debug)]
pub enum SessionCommand {
    /// Show all sessions
    List(QueryArgs),
    /// Evict a session: its client continues with a new one, and loses its open files and locks
    ///
    /// To keep a client out: weft client revoke NAME, or weft export set CLIENTS --access none
    Evict(SessionArgs),
    /// Show the session of a local mount, and the sessions that it replaced
    Show(SessionShowArgs),
}

/// A session, and the state directory to use.
#[derive(Args, Debug)]
pub struct SessionArgs {
    /// Id of the session
    pub session: u64,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// The mount whose session to show.
#[derive(Args, Debug)]
pub struct SessionShowArgs {
    /// Mount point
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
    /// Set the access rights of clients
    Set(ExportSetArgs),
    /// Remove a rule
    Remove(ExportArgs),
}

/// Clients, and the state directory to use.
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
    after_help = "The most specific rule applies: one for the client's name, then local, then the longest prefix; without one: rw, no squash."
)]
pub struct ExportSetArgs {
    /// ADDRESS/BITS, an address, local (the cluster's own nodes) or client:NAME
    pub clients: String,
    /// Access of these clients
    #[arg(long, value_enum, default_value_t)]
    pub access: Access,
    /// Users that are mapped to the anonymous user
    #[arg(long, value_enum, default_value_t)]
    pub squash: Squash,
    /// User id of the anonymous user
    #[arg(long, value_name = "UID", default_value_t = types::NOBODY)]
    pub anon_uid: u32,
    /// Group id of the anonymous user
    #[arg(long, value_name = "GID", default_value_t = types::NOBODY)]
    pub anon_gid: u32,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Access rights of clients.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Read and write
    #[default]
    Rw,
    /// Read only
    Ro,
    /// None: they can't mount
    None,
}

/// Which users are squashed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Squash {
    /// No users
    #[default]
    None,
    /// Root
    Root,
    /// All users
    All,
}

/// `weft net`.
#[derive(Subcommand, Debug)]
pub enum NetCommand {
    /// Show the connections of a node, or of a mount
    Show(NetShowArgs),
}

/// The node or mount whose connections to show.
#[derive(Args, Debug)]
pub struct NetShowArgs {
    /// Mount point [default: the node in --dir]
    pub mountpoint: Option<PathBuf>,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft mount`.
#[derive(Args, Clone, PartialEq, Debug)]
#[command(allow_missing_positional = true)]
pub struct MountArgs {
    /// Cluster file, from weft client add
    #[arg(value_name = "CLUSTER_FILE", default_value = crate::discovery::CLIENT_FILE)]
    pub cluster: PathBuf,
    /// Mount point
    pub mountpoint: PathBuf,
    /// Seconds until operations without an answer fail
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT_S,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Network for connections, best first; A/16,B/16: equally good [default: from the cluster
    /// file, or all]
    #[arg(long, value_name = "ADDR/BITS")]
    pub network: Vec<String>,
    /// Rack of this machine: reads prefer replicas there [default: from the cluster file, or of a
    /// node on this machine]
    #[arg(long)]
    pub rack: Option<String>,
    /// Mount read-only
    #[arg(long)]
    pub read_only: bool,
    /// Allow idmapped mounts, for containers (Linux 6.12)
    ///
    /// Then only the kernel of this machine checks permissions, and not the metadata service.
    #[arg(long)]
    pub idmap: bool,
    /// FUSE transport
    #[arg(long, value_enum, default_value_t)]
    pub transport: Transport,
    /// Let O_DIRECT bypass the servers' page cache, too
    #[arg(long)]
    pub no_server_cache: bool,
    /// Merge small sequential writes, for up to a second
    ///
    /// Such writes are acknowledged at once, and lost with this process until they are sent.
    /// Closing or syncing a file waits for that.
    #[arg(long)]
    pub write_behind: bool,
    /// Create and remove files synchronously
    ///
    /// The metadata service has a new file before the application gets it, and has removed a file
    /// before the application continues. Without this, the client may delay a create for up to 25
    /// ms, under a delegation of the directory; closing or syncing the file waits for it.
    #[arg(long, hide_short_help = true)]
    pub wsync: bool,
    /// Use TCP instead of shared memory to servers on this machine
    #[arg(long)]
    pub no_shared_memory: bool,
    /// Answer weft health, df, status and lists of root only
    #[arg(long)]
    pub no_public_socket: bool,
    /// Stay in the foreground, log to standard error
    #[arg(long)]
    pub foreground: bool,
    /// Log of the background process [default: /var/log/weft/MOUNTPOINT.log]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Background process
    #[arg(long, hide = true)]
    pub detached: bool,
}

impl ServeArgs {
    /// Returns the equivalent command line.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["serve".into()];
        if let Some(dir) = self.dir.named() {
            line.extend(["--dir".into(), dir.into()]);
        }
        if let Some(zone) = self.numa {
            line.extend(["--numa".into(), zone.to_string().into()]);
        }
        let flags = [("--detach", self.detach), ("--detached", self.detached)];
        line.extend(flags.iter().filter(|(_, set)| *set).map(|(name, _)| OsString::from(name)));
        line
    }
}

impl MountArgs {
    /// Returns the equivalent command line.
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
            ("--wsync", self.wsync),
            ("--no-shared-memory", self.no_shared_memory),
            ("--no-public-socket", self.no_public_socket),
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
    /// Mount point
    pub mountpoint: PathBuf,
    /// Even if it is in use, or client or servers don't answer: open files get errors
    #[arg(long)]
    pub force: bool,
    /// Only this process, which may hang in the kernel
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
        let line = "weft mount /c /m --timeout 7 --read-only --transport dev --no-shared-memory --no-public-socket --network ::/0 --network 10.0.0.0/8 --log /l --foreground";
        let Ok(Command::Mount(args)) = parse(line) else { panic!("{line}") };
        assert!(matches!(again(args.to_arguments()), Command::Mount(same) if same == args));
        let line = "weft serve --dir d --numa 1 --detach";
        let Ok(Command::Serve(args)) = parse(line) else { panic!("{line}") };
        assert!(matches!(again(args.to_arguments()), Command::Serve(same) if same == args));
    }

    #[test]
    fn a_mount_without_a_cluster_file_uses_that_of_the_machine() {
        let Ok(Command::Mount(args)) = parse("weft mount /m --read-only") else { panic!("it is refused") };
        assert_eq!((args.cluster, args.mountpoint), ("/etc/weft/client.toml".into(), "/m".into()));
        let Ok(Command::Mount(args)) = parse("weft mount /c /m") else { panic!("it is refused") };
        assert_eq!((args.cluster, args.mountpoint), ("/c".into(), "/m".into()));
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
            "weft mount",
            "weft mount /c /m --timeout 0",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
