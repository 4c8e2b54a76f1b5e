//! Work on whole trees of files.

use clap::Args;
use std::path::PathBuf;

/// `weft rm`.
#[derive(Args, Debug)]
#[command(
    after_help = "Does the work of rm -r with many requests in flight, on any file system. It asks no questions, never enters a mount point, and \
                  continues after a failure; the exit status is 1 if something could not be removed. Ctrl-C ends it between two \
                  files, and the same command removes the rest."
)]
pub struct RmArgs {
    /// Files, and with --recursive directories
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Remove directories and everything below them
    #[arg(long, short, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Ignore paths that don't exist
    #[arg(long, short)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft du`.
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "Does the work of du with many requests in flight, on any file system. The numbers are those of GNU du; the order of directories \
                  differs, but each follows those below it. A file with names in several directories counts in the one that is read first."
)]
pub struct DuArgs {
    /// Files and directories
    #[arg(value_name = "PATH", default_value = ".")]
    pub paths: Vec<PathBuf>,
    /// Show only the sum of each PATH
    #[arg(long, short, conflicts_with_all = ["max_depth", "all"])]
    pub summarize: bool,
    /// Show sizes like 1.5K, 20M, 3.1G, rounded up [default: in KiB]
    #[arg(long, short)]
    pub human_readable: bool,
    /// Show lengths of files in bytes
    #[arg(long, short)]
    pub bytes: bool,
    /// Show lengths of files instead of allocated space
    #[arg(long)]
    pub apparent_size: bool,
    /// Show only N levels below each PATH
    #[arg(long, short = 'd', value_name = "N")]
    pub max_depth: Option<usize>,
    /// Also show files
    #[arg(long, short)]
    pub all: bool,
    /// Also show the sum of all PATHs
    #[arg(long, short = 'c')]
    pub total: bool,
    /// Count a file as often as it has names
    #[arg(long, short = 'l')]
    pub count_links: bool,
    /// Skip directories on other file systems
    #[arg(long, short = 'x')]
    pub one_file_system: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

/// `weft find`.
#[derive(Args, Debug)]
#[command(
    after_help = "Words of EXPRESSION, all of which must hold: -name PATTERN, -type f|d|l|b|c|p|s, -size [+-]N[cwbkMG], -newer FILE; \
                  options -maxdepth N, -xdev; and at most one of -print, -print0 and -ls. They mean what they mean in find(1). The order of lines \
                  differs from that of find, but a directory precedes what is in it."
)]
pub struct FindArgs {
    /// Files and directories [default: .], then words that begin with a dash
    #[arg(value_name = "PATH|EXPRESSION", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<std::ffi::OsString>,
}

/// `weft cp`.
#[derive(Args, Debug)]
#[command(
    after_help = "Does the work of cp -r and cp -a with many requests in flight, from and to any file system; weft copies its own files without moving \
                  the data through the kernel, and holes stay holes. If TO is a directory, the copies get the names of the sources in it. It never \
                  writes through a symlink below TO. Ctrl-C leaves complete files, and the same command copies all of them again."
)]
pub struct CpArgs {
    /// Files, and with --recursive directories, then the destination
    #[arg(required = true, num_args = 2.., value_names = ["FROM", "TO"])]
    pub paths: Vec<PathBuf>,
    /// Copy directories and everything below them
    #[arg(long, short, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Also keep owner, mode, times, extended attributes, ACLs and hard links; includes --recursive
    #[arg(long, short)]
    pub archive: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
