//! `weft bench storage`, `net` and `cpu`.

use crate::cli::QueryArgs;
use crate::size::parse_size;
use clap::Args;

/// `weft bench storage`.
#[derive(Args, Debug)]
#[command(
    after_help = "Sequential transfers have 1 MiB, random ones 4 KiB; the best of several queue depths is shown. Direct I/O, in a file that is removed afterwards."
)]
pub struct BenchStorageArgs {
    /// Only this target; may be repeated [default: all]
    #[arg(long, value_name = "N")]
    pub target: Vec<u32>,
    /// Bytes of the file; drives with a cache need more than its size
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    pub size: u64,
    #[command(flatten)]
    pub how: BenchCeilingOptions,
}

/// `weft bench net`.
#[derive(Args, Debug)]
#[command(after_help = "All streams of a measurement use one core of the sending node.")]
pub struct BenchNetArgs {
    /// Numbers of connections to try; the best result counts
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: Vec<u32>,
    #[command(flatten)]
    pub how: BenchCeilingOptions,
}

/// `weft bench cpu`.
#[derive(Args, Debug)]
pub struct BenchCpuArgs {
    #[command(flatten)]
    pub how: BenchCeilingOptions,
}

/// Options of all three commands.
#[derive(Args, Debug)]
pub struct BenchCeilingOptions {
    /// Duration of each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Show the last results without measuring
    #[arg(long)]
    pub last: bool,
    #[command(flatten)]
    pub query: QueryArgs,
}
