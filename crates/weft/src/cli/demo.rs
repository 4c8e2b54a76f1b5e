//! `weft demo`.

use clap::Args;
use std::path::PathBuf;

/// `weft demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Folder on a mount [default: the only mount of this machine]
    #[arg(value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Tree to copy, at most 400 MB of it; without one, 5,000 files are generated
    #[arg(long, value_name = "DIR")]
    pub source: Option<PathBuf>,
    /// Keep the files
    #[arg(long)]
    pub keep: bool,
}
