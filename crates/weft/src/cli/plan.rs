//! `weft plan`.

use clap::Args;
use layout::plan::{PlannedScheme, Requirement};
use std::path::PathBuf;

/// `weft plan`.
#[derive(Args, Debug, Default)]
#[command(after_help = "Kinds of drives and links: weft plan --kinds. The description: docs/planning.md")]
pub struct PlanArgs {
    /// Description (TOML): servers, drives, links, clients, pool
    pub file: Option<PathBuf>,
    /// Find the fewest servers that reach this goal: '100 GB/s read', '3M IOPS write', '500 TiB
    /// usable', '1e-6 loss'
    #[arg(long, value_name = "GOAL")]
    pub target: Vec<Requirement>,
    /// Number of servers, of the last kind described; without a description, of the kind that the
    /// next options give
    #[arg(long, value_name = "N")]
    pub servers: Option<u32>,
    /// Data drives per server
    #[arg(long, value_name = "N")]
    pub drives: Option<u32>,
    /// Kind of drive
    #[arg(long, value_name = "KIND")]
    pub drive: Option<String>,
    /// Links per server
    #[arg(long, value_name = "N")]
    pub links: Option<u32>,
    /// Kind of link
    #[arg(long, value_name = "KIND")]
    pub link: Option<String>,
    /// Cores per server
    #[arg(long, value_name = "N")]
    pub cores: Option<u32>,
    /// Clients, with a link of the servers' kind unless described
    #[arg(long, value_name = "N")]
    pub clients: Option<u32>,
    /// Scheme: single, mirror:N or ec:K+M
    #[arg(long, value_name = "SCHEME")]
    pub scheme: Option<PlannedScheme>,
    /// Space kept free for lost targets
    #[arg(long, value_name = "PERCENT")]
    pub spare: Option<f64>,
    /// Also simulate the placement of files on modelled drives and links, for 3 to 10,000 servers
    #[arg(long)]
    pub simulate: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Also write a page with tables and figures
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// List kinds of drives and links
    #[arg(long, conflicts_with_all = ["file", "target", "html", "csv"])]
    pub kinds: bool,
}
