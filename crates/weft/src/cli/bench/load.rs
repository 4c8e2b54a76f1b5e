//! `weft bench io` and `weft bench meta`.

use crate::size::parse_size;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `weft bench io`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Everything happens in a directory of its own below DIR, which is removed. Caches are passed by (--direct, where records allow it) or dropped before reads; \
                  each thread reads what another has written."
)]
pub struct BenchIoArgs {
    /// Directory to measure, such as a mount
    #[arg(value_name = "DIR")]
    pub place: PathBuf,
    /// Numbers of threads
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// Bytes of a transfer [default: 1 MiB, 4 KiB of random access]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub record: Option<u64>,
    /// Bytes of each thread's file, or part of the shared one
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    pub size: u64,
    /// Order of transfers
    #[arg(long, value_enum, default_value_t)]
    pub access: AccessArg,
    /// Whose files: one of each thread; one of all in segments; one of all, records by turns
    #[arg(long, value_enum, default_value_t)]
    pub sharing: SharingArg,
    /// What is measured, in this order
    #[arg(long, value_enum, value_name = "WHAT,..", value_delimiter = ',', default_value = "write,read")]
    pub operations: Vec<IoOperationArg>,
    /// Transfers that a thread has under way [default: 1, 16 of random access]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: Option<u32>,
    /// Pass the client's cache by [default where records are multiples of 4096]
    #[arg(long, conflicts_with_all = ["buffered", "warm"])]
    pub direct: bool,
    /// Use the client's cache, dropped before reads
    #[arg(long, conflicts_with = "warm")]
    pub buffered: bool,
    /// Use whatever caches have: the figures are caches'
    #[arg(long)]
    pub warm: bool,
    /// Check every byte that is read
    #[arg(long)]
    pub verify: bool,
    /// End a phase after so long; random phases go on until then [default of random access: 5]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    #[command(flatten)]
    pub how: BenchLoadHow,
}

/// `weft bench meta`.
#[derive(Args, Debug, Clone)]
pub struct BenchMetaArgs {
    /// Directory to measure, such as a mount
    #[arg(value_name = "DIR")]
    pub place: PathBuf,
    /// Numbers of threads
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// Files of each thread
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub files: u64,
    /// Bytes of each file
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub size: u64,
    /// Directories of each thread
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "shared", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub directories: u32,
    /// One directory of all threads
    #[arg(long)]
    pub shared: bool,
    /// The hard form of IO500: files of 3901 bytes in one directory
    #[arg(long, conflicts_with_all = ["size", "directories", "shared"])]
    pub hard: bool,
    /// What is measured, in this order; what is needed is made before
    #[arg(
        long,
        value_enum,
        value_name = "WHAT,..",
        value_delimiter = ',',
        default_value = "create,stat,read-file,remove"
    )]
    pub operations: Vec<MetaOperationArg>,
    #[command(flatten)]
    pub how: BenchLoadHow,
}

/// What both take.
#[derive(Args, Debug, Clone)]
pub struct BenchLoadHow {
    /// How often each is done; the middle one is shown
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub iterations: u32,
    /// Which way the load takes: a mount, or its client core without kernel and FUSE
    #[arg(long, value_enum, default_value_t)]
    pub through: ThroughArg,
    /// Cluster file of the client core [default: the one that the mount was made with]
    #[arg(long, value_name = "FILE", conflicts_with = "clients")]
    pub cluster: Option<PathBuf>,
    /// Make the load on these clients together, each with so many threads on the same DIR
    #[arg(long = "client", value_name = "NAME,..", value_delimiter = ',')]
    pub clients: Vec<String>,
    /// What starts weft bench agent on a client, by sh; {} is the client's name
    #[arg(long, value_name = "COMMAND", default_value = "ssh {} weft bench agent", requires = "clients")]
    pub launch: String,
    /// Keep the results as JSON, for weft bench compare
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

/// Whose files.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SharingArg {
    #[default]
    Own,
    Segments,
    Interleaved,
}

/// What is done with bytes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOperationArg {
    /// Write, and sync
    Write,
    /// Read
    Read,
    /// Seven reads to three writes
    Mixed,
}

/// What is done with files.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaOperationArg {
    /// Make, and write what they hold
    Create,
    /// Ask for attributes
    Stat,
    /// Open, read and close
    ReadFile,
    /// Remove
    Remove,
}

/// Which way a load takes.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThroughArg {
    /// System calls on DIR
    #[default]
    Mount,
    /// A session of the native client core, of the same cluster and directory
    Core,
    /// One after the other, as two figures of each operation
    Both,
}
