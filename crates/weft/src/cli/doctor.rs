//! `weft doctor`.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `weft doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// State directory of a node, existing or planned: its ports, targets and management are checked
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Cluster file of a client: its management is checked
    #[arg(long, value_name = "FILE")]
    pub cluster_file: Option<PathBuf>,
    /// Address that a node will listen on; may be repeated
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Vec<SocketAddr>,
    /// Directory of a target, existing or planned; may be repeated
    #[arg(long, value_name = "DIR")]
    pub target_dir: Vec<PathBuf>,
    /// Address of management; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    pub management: Vec<String>,
    /// Make the changes that can't do harm: kernel parameters and modules, not packages
    #[arg(long)]
    pub apply: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
