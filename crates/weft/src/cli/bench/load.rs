//! `weft bench io` and `weft bench meta`.

use crate::size::parse_size;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `weft bench io`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Files go to a new subdirectory of DIR, which is removed afterwards. Caches are bypassed (--direct, if records allow it) or dropped before reads; \
                  each thread reads what another has written."
)]
pub struct BenchIoArgs {
    /// Directory to measure, for example a mount
    #[arg(value_name = "DIR")]
    pub place: PathBuf,
    /// Numbers of threads
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// Bytes per transfer [default: 1 MiB, random access 4 KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub record: Option<u64>,
    /// Bytes of each thread's file, or of its part of the shared file
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    pub size: u64,
    /// Order of transfers
    #[arg(long, value_enum, default_value_t)]
    pub access: AccessArg,
    /// Sharing of files: own file per thread; one file, a segment per thread; one file, interleaved
    /// records
    #[arg(long, value_enum, default_value_t)]
    pub sharing: SharingArg,
    /// Operations to measure, in this order
    #[arg(long, value_enum, value_name = "WHAT,..", value_delimiter = ',', default_value = "write,read")]
    pub operations: Vec<IoOperationArg>,
    /// Transfers in flight per thread [default: 1, random access 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: Option<u32>,
    /// Bypass the client's cache [default if records are multiples of 4096]
    #[arg(long, conflicts_with_all = ["buffered", "warm"])]
    pub direct: bool,
    /// Use the client's cache, dropped before reads
    #[arg(long, conflicts_with = "warm")]
    pub buffered: bool,
    /// Use caches as they are: results include cache hits
    #[arg(long)]
    pub warm: bool,
    /// Verify every byte that is read
    #[arg(long)]
    pub verify: bool,
    /// End each phase after this time; random phases always run that long [default of random
    /// access: 5]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    #[command(flatten)]
    pub how: BenchLoadOptions,
}

/// `weft bench meta`.
#[derive(Args, Debug, Clone)]
pub struct BenchMetaArgs {
    /// Directory to measure, for example a mount
    #[arg(value_name = "DIR")]
    pub place: PathBuf,
    /// Numbers of threads
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// Files per thread
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub files: u64,
    /// Bytes per file
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub size: u64,
    /// Directories per thread
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "shared", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub directories: u32,
    /// All threads use one directory
    #[arg(long)]
    pub shared: bool,
    /// IO500 hard variant: files of 3901 bytes in one directory
    #[arg(long, conflicts_with_all = ["size", "directories", "shared"])]
    pub hard: bool,
    /// Operations to measure, in this order; their prerequisites are created first
    #[arg(
        long,
        value_enum,
        value_name = "WHAT,..",
        value_delimiter = ',',
        default_value = "create,stat,read-file,remove"
    )]
    pub operations: Vec<MetaOperationArg>,
    #[command(flatten)]
    pub how: BenchLoadOptions,
}

/// Options of both commands.
#[derive(Args, Debug, Clone)]
pub struct BenchLoadOptions {
    /// Repetitions; the median is shown
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub iterations: u32,
    /// Path of the load: a mount, or its client core without kernel and FUSE
    #[arg(long, value_enum, default_value_t)]
    pub through: ThroughArg,
    /// Cluster file of the client core [default: the one of the mount]
    #[arg(long, value_name = "FILE", conflicts_with = "clients")]
    pub cluster: Option<PathBuf>,
    /// Generate load on these clients together, each with this many threads on the same DIR
    #[arg(long = "client", value_name = "NAME,..", value_delimiter = ',')]
    pub clients: Vec<String>,
    /// Shell command that starts weft bench agent on a client; {} is the client's name
    #[arg(long, value_name = "COMMAND", default_value = "ssh {} weft bench agent", requires = "clients")]
    pub launch: String,
    /// Write the results as JSON, for weft bench compare
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Order of transfers.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AccessArg {
    #[default]
    Seq,
    Random,
}

/// Sharing of files.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SharingArg {
    #[default]
    Own,
    Segments,
    Interleaved,
}

/// Operations on file content.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOperationArg {
    /// Write, and sync
    Write,
    /// Read
    Read,
    /// Seven reads per three writes
    Mixed,
}

/// Operations on files.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaOperationArg {
    /// Create, and write the content
    Create,
    /// Read attributes
    Stat,
    /// Open, read and close
    ReadFile,
    /// Remove
    Remove,
}

/// Path of a load.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThroughArg {
    /// System calls on DIR
    #[default]
    Mount,
    /// A session of the native client core, on the same cluster and directory
    Core,
    /// Both, one after the other, as two results per operation
    Both,
}
