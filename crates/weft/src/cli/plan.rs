//! `weft plan`.

use clap::Args;
use layout::plan::{PlannedScheme, Target};
use std::path::PathBuf;

/// `weft plan`.
#[derive(Args, Debug, Default)]
#[command(after_help = "Kinds of drives and links: weft plan --kinds. The description: docs/planning.md")]
pub struct PlanArgs {
    /// Description (TOML): servers, drives, links, clients, pool
    pub file: Option<PathBuf>,
    /// Search the fewest servers that reach it: '100 GB/s read', '3M IOPS write', '500 TiB usable',
    /// '1e-6 loss'
    #[arg(long, value_name = "TARGET")]
    pub target: Vec<Target>,
    /// Servers, of the last kind described; without a description of the only kind, as what follows
    #[arg(long, value_name = "N")]
    pub servers: Option<u32>,
    /// Drives for data in each
    #[arg(long, value_name = "N")]
    pub drives: Option<u32>,
    /// Kind of drive
    #[arg(long, value_name = "KIND")]
    pub drive: Option<String>,
    /// Links of each
    #[arg(long, value_name = "N")]
    pub links: Option<u32>,
    /// Kind of link
    #[arg(long, value_name = "KIND")]
    pub link: Option<String>,
    /// Cores of each
    #[arg(long, value_name = "N")]
    pub cores: Option<u32>,
    /// Clients, with a link of the servers' kind unless described
    #[arg(long, value_name = "N")]
    pub clients: Option<u32>,
    /// Scheme: single, mirror:N or ec:K+M
    #[arg(long, value_name = "SCHEME")]
    pub scheme: Option<PlannedScheme>,
    /// What is kept free for lost targets
    #[arg(long, value_name = "PERCENT")]
    pub spare: Option<f64>,
    /// Run the placement of files on drives and links that are numbers, too, from 3 servers to
    /// 10,000
    #[arg(long)]
    pub simulate: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Write a page with tables and figures, too
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// List kinds of drives and links
    #[arg(long, conflicts_with_all = ["file", "target", "html", "csv"])]
    pub kinds: bool,
}
