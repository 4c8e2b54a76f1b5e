//! `weft bench`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `weft bench ...`.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Put two results beside each other: of weft, fio (JSON), IOR or mdtest
    Compare(CompareArgs),
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
