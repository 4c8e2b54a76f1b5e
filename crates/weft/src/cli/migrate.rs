//! Migration of files to another redundancy or pool.

use clap::Args;
use std::path::PathBuf;
use types::Scheme;

/// `weft migrate`.
#[derive(Args, Debug)]
#[command(
    after_help = "Files migrate while they are open and written; files that match already are skipped, so the same command continues after it was \
                  interrupted. Without --set-pattern the patterns of directories stay: weft entry set-pattern DIR --scheme S first, \
                  then weft migrate DIR --recursive --scheme S, is the same as --set-pattern."
)]
pub struct MigrateArgs {
    /// Files on a mounted weft file system; with --recursive also directories
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// New redundancy: single, mirror:2 or mirror:3 [default: unchanged]
    #[arg(long, value_name = "SCHEME", required_unless_present = "pool")]
    pub scheme: Option<Scheme>,
    /// New pool [default: unchanged]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Migrate everything below directories
    #[arg(long, short)]
    pub recursive: bool,
    /// Also set the pattern that the directories give new files
    #[arg(long, requires = "recursive")]
    pub set_pattern: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
