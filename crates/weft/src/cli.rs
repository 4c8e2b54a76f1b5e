//! Definition of the command line.

mod bench;
mod client;
mod cluster;
mod demo;
mod dir;
mod doctor;
mod group;
mod log;
mod migrate;
mod plan;
mod scrub;
mod tree;
mod usage;

pub use self::bench::*;
pub use client::*;
pub use cluster::*;
pub use demo::*;
pub use dir::*;
pub use doctor::*;
pub use group::*;
pub use log::*;
pub use migrate::*;
pub use plan::*;
pub use scrub::*;
pub use tree::*;
pub use usage::{Call, DIR, EXIT_STATUS, error_format, parse};

use crate::size::parse_size;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Most targets of a cluster in one process: each keeps files open and checksums in memory.
const MAX_TARGETS: i64 = 64;

/// A parallel file system.
#[derive(Parser, Debug)]
#[command(name = "weft", version, max_term_width = 100, disable_help_subcommand = true)]
// No text above the usage, and the options and the heading of the commands on the same line, so
// that all commands fit a screen.
#[command(
    help_template = "{usage-heading} {usage}   (help COMMAND | FINDING | dir | exit-status; -V)   Commands:\n{subcommands}"
)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands, in the order in which a new user needs them.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a cluster and mount it; an empty directory becomes a new cluster
    Up(UpArgs),
    /// Stop a cluster and unmount it, or stop a node (weft serve)
    Down(DownArgs),
    /// Create a cluster of several machines
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Nodes: the machines of a cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Run the services of a node
    Serve(ServeArgs),
    /// Mount a cluster
    Mount(MountArgs),
    /// Unmount a file system
    Umount(UmountArgs),
    /// Show a running cluster
    Status(WatchArgs),
    /// Show cluster health and recommended actions
    Health(HealthArgs),
    /// Show free space
    Df(WatchArgs),
    /// Show how files are stored, and set how new ones are striped
    #[command(subcommand)]
    Entry(EntryCommand),
    /// Targets: directories that store file data
    #[command(subcommand)]
    Target(TargetCommand),
    /// Pools: named sets of targets
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Redundancy groups: targets that store replicas of the same data
    #[command(subcommand)]
    Group(GroupCommand),
    /// Metadata services, and the partitions that they execute
    #[command(subcommand)]
    Meta(MetaCommand),
    /// Clients: certificates with which machines may mount
    #[command(subcommand)]
    Client(ClientCommand),
    /// Sessions of connected clients
    #[command(subcommand)]
    Session(SessionCommand),
    /// Export rules: access rights of clients, by name or network
    #[command(subcommand)]
    Export(ExportCommand),
    /// The network between nodes
    // Not among the commands that fit a screen: hints of weft health name it.
    #[command(subcommand, hide = true)]
    Net(NetCommand),
    /// Background scrubbing of targets
    #[command(subcommand)]
    Scrub(ScrubCommand),
    /// Check a cluster, stopped or running, and repair it
    Fsck(FsckArgs),
    /// Check whether this machine can run weft, and name what to change
    Doctor(DoctorArgs),
    /// Show that a mount works: copy files, build a program, compare
    // Not among the commands that fit a screen: the README names it.
    #[command(hide = true)]
    Demo(DemoArgs),
    /// Measure: files, metadata, targets, network, reports
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Predict the performance of a configuration, or its size for given goals
    Plan(PlanArgs),
    /// Remove trees of files, faster than rm -r
    // These four aren't among the commands that fit a screen; a guide has them.
    #[command(hide = true)]
    Rm(RmArgs),
    /// Copy trees of files, faster than cp -r
    #[command(hide = true)]
    Cp(CpArgs),
    /// Show the space of trees of files, faster than du
    #[command(hide = true)]
    Du(DuArgs),
    /// List trees of files, faster than find -ls
    #[command(hide = true)]
    Find(FindArgs),
    /// Logs of running processes
    // Not among the commands that fit a screen; the reference has it.
    #[command(subcommand, hide = true)]
    Log(LogCommand),
    /// Show the help of a command
    #[command(hide = true)]
    Help(HelpArgs),
    /// Resync of mirrored groups: same as weft group resync
    #[command(subcommand, hide = true)]
    Resync(ResyncCommand),
    /// Change redundancy or pool of files while they are in use (weft entry migrate)
    #[command(hide = true)]
    Migrate(MigrateArgs),
    /// Register the file system type fuse.weft with mount(8) and fstab
    #[command(hide = true)]
    InstallHelper(InstallHelperArgs),
    /// Write man pages and shell completions, for packages
    #[command(hide = true)]
    PackageFiles(PackageFilesArgs),
    /// Helper that mount(8) calls
    #[command(hide = true)]
    MountHelper(MountHelperArgs),
    /// Companion of a mount that aborts its FUSE connection if the mount is killed
    #[command(hide = true)]
    WatchMount(WatchMountArgs),
}

/// `weft package-files`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct PackageFilesArgs {
    /// Directory for man/ and completions/
    pub dir: PathBuf,
}

/// `weft help exit-status`, `weft help dir`, `weft help target-full`; `weft help COMMAND` is
/// `weft COMMAND --help`.
#[derive(Args, Debug)]
pub struct HelpArgs {
    /// Words of a command, the code of a finding, exit-status, or dir
    pub words: Vec<String>,
}

/// `weft watch-mount`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct WatchMountArgs {
    /// Process of the mount
    #[arg(long)]
    pub pid: u32,
    /// Number of its FUSE connection in sysfs
    #[arg(long)]
    pub connection: u32,
}

/// `weft up`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct UpArgs {
    /// State directory of the cluster [default: WEFT_DIR, or weft-data]
    #[arg(long, value_name = "DIR", default_value_os_t = crate::discovery::new_directory(), hide_default_value = true)]
    pub dir: PathBuf,
    /// Mount point
    #[arg(long, value_name = "DIR")]
    pub mount: PathBuf,
    /// Number of targets of a new cluster [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_TARGETS))]
    pub targets: Option<u16>,
    /// Directory of a target of a new cluster; may be repeated
    #[arg(long, value_name = "DIR", conflicts_with = "targets")]
    pub target_dir: Vec<PathBuf>,
    /// Return when mounted, and continue in the background
    #[arg(long)]
    pub detach: bool,
    /// FUSE transport
    #[arg(long, value_enum, default_value_t)]
    pub transport: Transport,
    /// What an acknowledged change survives without fsync
    #[arg(long, value_enum, default_value_t)]
    pub durability: Durability,
    /// Let O_DIRECT bypass the servers' page cache, too
    #[arg(long)]
    pub no_server_cache: bool,
    /// Mount read-only
    #[arg(long)]
    pub read_only: bool,
    /// Allow idmapped mounts, for containers (Linux 6.12)
    #[arg(long)]
    pub idmap: bool,
    /// Answer weft health, df, status and lists of root only
    #[arg(long)]
    pub no_public_socket: bool,
    /// Daily metadata backups to retain; 0: make none
    #[arg(long, value_name = "N", default_value_t = crate::assembly::DEFAULT_RETAINED_BACKUPS)]
    pub backups: u32,
    /// Background process of --detach
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// FUSE transport.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// io_uring if the kernel supports it
    #[default]
    Auto,
    /// FUSE over io_uring
    Uring,
    /// Read and write /dev/fuse
    Dev,
}

/// Converts the option to the transport of the FUSE server.
pub fn fuse_transport(transport: Transport) -> fuse::Transport {
    match transport {
        Transport::Auto => fuse::Transport::Auto,
        Transport::Uring => fuse::Transport::Uring,
        Transport::Dev => fuse::Transport::Dev,
    }
}

/// What an acknowledged metadata change survives.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// A process crash at once, a machine crash after a second
    #[default]
    Relaxed,
    /// A machine crash
    Strict,
}

impl UpArgs {
    /// Returns the equivalent command line.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["up".into()];
        let mut option = |name: &str, value: OsString| line.extend([OsString::from(name), value]);
        option("--dir", self.dir.clone().into());
        option("--mount", self.mount.clone().into());
        if let Some(targets) = self.targets {
            option("--targets", targets.to_string().into());
        }
        for dir in &self.target_dir {
            option("--target-dir", dir.clone().into());
        }
        option("--transport", value_name(self.transport).into());
        option("--durability", value_name(self.durability).into());
        option("--backups", self.backups.to_string().into());
        let flags = [
            ("--detach", self.detach),
            ("--no-server-cache", self.no_server_cache),
            ("--read-only", self.read_only),
            ("--idmap", self.idmap),
            ("--no-public-socket", self.no_public_socket),
            ("--detached", self.detached),
        ];
        line.extend(flags.iter().filter(|(_, set)| *set).map(|(name, _)| OsString::from(name)));
        line
    }
}

/// Returns the name of a value on the command line.
pub fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is hidden").get_name().to_string()
}

/// `weft down`.
#[derive(Args, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    pub dir: DirOption,
    /// Seconds to wait for the end
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}

/// Options of commands that query a running cluster.
#[derive(Args, Debug)]
pub struct QueryArgs {
    #[command(flatten)]
    pub dir: PlaceOption,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of commands that show what changes.
#[derive(Args, Debug)]
pub struct WatchArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    #[command(flatten)]
    pub watch: WatchOption,
}

/// `--watch`.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct WatchOption {
    /// Repeat every SECONDS (2), until the output is closed; with --json a document on each line
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

/// `weft health`.
#[derive(Args, Debug)]
pub struct HealthArgs {
    #[command(flatten)]
    pub dir: PlaceOption,
    /// Show what would be lost, or left with one replica, if a target, a node or a rack failed now
    #[arg(long, conflicts_with = "watch")]
    pub exposure: bool,
    /// Only for one of them: target:N, node:N or rack:NAME
    #[arg(long, value_name = "WHICH", requires = "exposure", value_parser = crate::cmd::parse_domain)]
    pub of: Option<fsck::Domain>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub watch: WatchOption,
}

/// `weft fsck`.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 in order, 1 repaired, 4 damage is left, 8 could not check")]
pub struct FsckArgs {
    /// Check only this path and everything below it: absolute within the file system
    pub path: Option<String>,
    #[command(flatten)]
    pub dir: DirOption,
    /// Repair damage, content from an intact replica; names only while the cluster is stopped
    #[arg(long)]
    pub repair: bool,
    /// Zero content that no replica has, and list it in FILE, which must not exist yet
    #[arg(long, value_name = "FILE", requires = "repair")]
    pub forget: Option<PathBuf>,
    /// Delete orphaned chunk files and cut-off content, instead of moving them aside
    #[arg(long, requires = "repair")]
    pub delete: bool,
    /// Repair even if the metadata looks older than the chunk files: files that it lacks stay lost
    #[arg(long, requires = "repair")]
    pub accept_loss: bool,
    /// Don't check: list, restore or delete what was moved aside on this directory's targets
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with_all = ["path", "repair"])]
    pub orphans: Option<OrphansArg>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Actions on chunk files that were moved aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OrphansArg {
    /// Show them
    List,
    /// Restore chunk files of files that a newer metadata backup contains
    Restore,
    /// Delete them permanently
    Delete,
}

/// `weft entry`.
#[derive(Subcommand, Debug)]
pub enum EntryCommand {
    /// Show how a file is stored, or the stripe pattern that a directory gives new files
    Info(EntryInfoArgs),
    /// Change the stripe pattern that a directory gives new files
    SetPattern(SetPatternArgs),
    /// Change redundancy or pool of files while they are in use (also: weft migrate)
    Migrate(MigrateArgs),
}

/// `weft entry info`.
#[derive(Args, Debug)]
pub struct EntryInfoArgs {
    /// File or directory on a mounted weft file system
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft entry set-pattern`.
#[derive(Args, Debug)]
pub struct SetPatternArgs {
    /// Directory on a mounted weft file system
    pub dir: PathBuf,
    /// Parts of the pattern to change
    #[command(flatten)]
    pub change: PatternArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Parts of a stripe pattern.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct PatternArgs {
    /// Pool of new files
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Redundancy of new files: single, mirror:2 or mirror:3
    #[arg(long, value_name = "SCHEME")]
    pub scheme: Option<types::Scheme>,
    /// Consecutive bytes on one target: a power of two from 64K to 64M
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub chunk_size: Option<u64>,
    /// Number of targets that a file is striped over
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub stripe_count: Option<u16>,
    /// Files up to this size are stored with their inode: 0 (off) to 64K
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub inline_limit: Option<u64>,
    /// How targets are chosen
    #[arg(long, value_enum)]
    pub chooser: Option<Chooser>,
}

/// How the targets of a new file are chosen.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chooser {
    /// Each file starts after the last target of the previous one
    RoundRobin,
    /// Uniformly at random
    Random,
    /// At random, in proportion to free space
    CapacityWeighted,
}

/// `weft install-helper`.
#[derive(Args, Debug)]
pub struct InstallHelperArgs {
    /// Directory to use instead of the root directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub prefix: PathBuf,
}

/// `mount.fuse.weft SOURCE MOUNTPOINT [-sfnv] [-N namespace] [-t type] [-o options]`.
#[derive(Args, Debug)]
pub struct MountHelperArgs {
    /// State directory of a cluster in one process, or cluster file of a client
    pub source: PathBuf,
    /// Mount point
    pub mountpoint: PathBuf,
    /// Options, separated by commas
    #[arg(short = 'o')]
    pub options: Vec<String>,
    /// Ignore unknown options
    #[arg(short = 's')]
    pub sloppy: bool,
    /// Only check, don't mount
    #[arg(short = 'f')]
    pub fake: bool,
    /// No entry in mtab (ignored: there is none anyway)
    #[arg(short = 'n')]
    pub no_mtab: bool,
    /// Verbose (ignored)
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Mount namespace, which mount(8) has already entered
    #[arg(short = 'N', value_name = "NAMESPACE")]
    pub namespace: Option<OsString>,
    /// File system type
    #[arg(short = 't', value_name = "TYPE")]
    pub file_system: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command)
    }

    fn up(line: &str) -> UpArgs {
        match parse(line) {
            Ok(Command::Up(args)) => args,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound_and_its_help_fits_a_screen() {
        Cli::command().debug_assert();
        for name in ["", "up", "entry", "cluster", "node", "target", "mount", "serve", "meta"] {
            let mut command = Cli::command();
            let command = match name {
                "" => &mut command,
                name => command.find_subcommand_mut(name).unwrap(),
            };
            assert!(command.render_help().to_string().lines().count() <= 24, "weft {name} --help");
        }
    }

    #[test]
    fn up_has_defaults() {
        let args = up("weft up --mount m");
        assert_eq!(args.dir, PathBuf::from("weft-data"));
        assert_eq!(args.targets, None);
        assert_eq!(args.transport, Transport::Auto);
        assert_eq!(args.durability, Durability::Relaxed);
        assert!(!args.detach && !args.read_only);
    }

    #[test]
    fn up_is_written_as_it_was_read() {
        for line in [
            "weft up --dir d --mount m --targets 7 --detach --transport uring --durability strict --read-only --backups 2",
            "weft up --dir d --mount m --target-dir /a --target-dir /b --transport dev --detached",
        ] {
            let args = up(line);
            let again = Cli::try_parse_from([OsString::from("weft")].into_iter().chain(args.to_arguments()));
            assert!(matches!(again.unwrap().command, Command::Up(same) if same == args));
        }
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "weft",
            "weft up",
            "weft up --mount m --targets 0",
            "weft up --mount m --targets 65",
            "weft up --mount m --targets 2 --target-dir /a",
            "weft up --mount m --transport carrier-pigeon",
            "weft up --mount m --no-such-option",
            "weft entry set-pattern d",
            "weft entry set-pattern d --chunk-size 1X",
            "weft entry set-pattern d --stripe-count 0",
            "weft migrate f",
            "weft migrate --scheme single",
            "weft migrate f --scheme raid",
            "weft migrate f --scheme single --set-pattern",
            "weft target",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn patterns_take_sizes_with_units() {
        let line = "weft entry set-pattern d --chunk-size 1M --inline-limit 4K --chooser capacity-weighted";
        let Ok(Command::Entry(EntryCommand::SetPattern(args))) = parse(line) else { panic!("{line}") };
        assert_eq!(args.change.chunk_size, Some(1 << 20));
        assert_eq!(args.change.inline_limit, Some(4096));
        assert_eq!(args.change.chooser, Some(Chooser::CapacityWeighted));
    }

    #[test]
    fn the_helper_takes_what_mount_gives_it() {
        let line = "weft mount-helper /d /m -n -o rw,noauto -o targets=2 -t fuse.weft";
        let Ok(Command::MountHelper(args)) = parse(line) else { panic!("{line}") };
        assert_eq!(args.options, ["rw,noauto", "targets=2"]);
    }
}
