//! Histories of what applications observe on several mounts of one file system: recorded by a load,
//! checked by [`::history`].

mod file;
mod load;
mod objects;

use ::history::{Limits, judge};
use std::path::PathBuf;

pub use file::read;
pub use load::{LoadOptions, Outcome};
pub use objects::Mix;

/// Commands for histories.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Run many concurrent threads on the mounts and record what they observe.
    Load(LoadOptions),
    /// Check a history.
    Check {
        /// File written by `load`.
        history: PathBuf,
        /// Give up on an object after this number of steps.
        #[arg(long, default_value_t = Limits::default().max_steps)]
        max_steps: u64,
        /// Accept torn reads of a concurrent write: local file systems don't guarantee more.
        #[arg(long)]
        forgive_torn_reads: bool,
        /// The clients of the history share one mount with one page cache.
        #[arg(long)]
        one_mount: bool,
    },
}

/// Runs a command.
pub fn run(command: &Command) -> Result<(), String> {
    match command {
        Command::Load(options) => {
            let outcome = load::run(options)?;
            println!("{}", outcome.to_json());
            Ok(())
        }
        Command::Check { history, max_steps, forgive_torn_reads, one_mount } => {
            let (forgive_torn_reads, one_mount) = (*forgive_torn_reads, *one_mount);
            let limits = Limits {
                max_steps: *max_steps,
                tolerate_torn_reads: forgive_torn_reads,
                is_one_mount: one_mount,
            };
            let report = judge(&read(history)?, limits);
            println!("{report}");
            if report.is_linearizable() { Ok(()) } else { Err("the history isn't linearizable".to_string()) }
        }
    }
}

#[cfg(test)]
mod tests;
