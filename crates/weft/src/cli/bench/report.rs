//! `weft bench characterize` and `weft bench compare`.

use clap::Args;
use std::path::PathBuf;

/// `weft bench characterize`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Profiles: quick, beegfs-nvme, pixstor-nvme, fsx-persistent, weka-4corner; docs/operating/characterize.md describes them. Ctrl-C ends the run, \
                        removes its files, and writes the report of what was measured."
)]
pub struct CharacterizeArgs {
    /// Directory to measure; files go to a new subdirectory
    #[arg(value_name = "DIR")]
    pub place: PathBuf,
    /// Experiments to run
    #[arg(long, value_name = "NAME", default_value = "quick")]
    pub profile: String,
    /// Factor for the published sizes and times; 1: as published [default: the largest power of two
    /// up to 1 that fits]
    #[arg(long, value_name = "FACTOR")]
    pub scale: Option<f64>,
    /// Repetitions of each experiment
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub iterations: u32,
    /// Folder for the report: index.html, results.json, results.csv
    #[arg(long, value_name = "FOLDER", default_value = "weft-report")]
    pub out: PathBuf,
    /// Results of another system to compare with: of weft, fio (JSON), IOR or mdtest
    #[arg(long, value_name = "FILE")]
    pub beside: Vec<PathBuf>,
    /// Measure drives and processors first, even if their ceilings are known [default: if they are
    /// unknown, on a mount of weft up]
    #[arg(long)]
    pub ceilings: bool,
    /// Show what would run, without running it
    #[arg(long)]
    pub list: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft bench compare`.
#[derive(Args, Debug, Clone)]
pub struct CompareArgs {
    /// First result
    pub first: PathBuf,
    /// Second result; ratios are second to first
    pub second: PathBuf,
    /// Also write a page with figures
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
