//! `weft bench characterize` and `weft bench compare`.

use clap::Args;
use std::path::PathBuf;

/// `weft bench characterize`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Profiles: quick, beegfs-nvme, pixstor-nvme, fsx-persistent, weka-4corner; docs/operating/characterize.md tells what is in them. Ctrl-C ends it, \
                        removes its files, and writes the report with what there is."
)]
pub struct CharacterizeArgs {
    /// Directory to measure; everything happens in one of its own below it
    #[arg(value_name = "DIR")]
    pub place: PathBuf,
    /// Which experiments
    #[arg(long, value_name = "NAME", default_value = "quick")]
    pub profile: String,
    /// Sizes and times of the published ones times it; 1: as published [default: the largest power
    /// of two up to 1 that fits]
    #[arg(long, value_name = "FACTOR")]
    pub scale: Option<f64>,
    /// How often each experiment is run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub iterations: u32,
    /// Folder for the report: index.html, results.json, results.csv
    #[arg(long, value_name = "FOLDER", default_value = "weft-report")]
    pub out: PathBuf,
    /// Another system's results to draw beside: of weft, fio (JSON), IOR or mdtest
    #[arg(long, value_name = "FILE")]
    pub beside: Vec<PathBuf>,
    /// Measure drives and processors first, also where their ceilings are known [default: where
    /// they aren't, on a mount of weft up]
    #[arg(long)]
    pub ceilings: bool,
    /// Show what would be run, and run nothing
    #[arg(long)]
    pub list: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft bench compare`.
#[derive(Args, Debug, Clone)]
pub struct CompareArgs {
    /// The first
    pub first: PathBuf,
    /// The second; ratios are of it by the first
    pub second: PathBuf,
    /// Write a page with figures, too
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
