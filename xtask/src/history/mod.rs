//! Histories of what programs see on several mounts of one file system: recorded by a load, judged
//! by [`::history`].

mod file;
mod load;
mod objects;

use ::history::{Limits, judge};
use std::path::PathBuf;

pub use file::read;
pub use load::{LoadOptions, Outcome};
pub use objects::Mix;

/// What can be done with histories.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Work on the mounts with many threads at once and write down what they see.
    Load(LoadOptions),
    /// Judge a history.
    Check {
        /// What `load` has written.
        history: PathBuf,
        /// Give up on an object after so many steps.
        #[arg(long, default_value_t = Limits::default().max_steps)]
        max_steps: u64,
        /// Accept reads that catch a write half done: a local file system promises no more.
        #[arg(long)]
        forgive_torn_reads: bool,
        /// The clients of the history are one mount, with one page cache.
        #[arg(long)]
        one_mount: bool,
    },
}

/// Does it.
pub fn run(command: &Command) -> Result<(), String> {
    match command {
        Command::Load(options) => {
            let outcome = load::run(options)?;
            println!("{}", outcome.to_json());
            Ok(())
        }
        Command::Check { history, max_steps, forgive_torn_reads, one_mount } => {
            let (forgive_torn_reads, one_mount) = (*forgive_torn_reads, *one_mount);
            let limits = Limits { max_steps: *max_steps, forgive_torn_reads, one_mount };
            let report = judge(&read(history)?, limits);
            println!("{report}");
            if report.is_linearizable() { Ok(()) } else { Err("the history isn't linearizable".to_string()) }
        }
    }
}

#[cfg(test)]
mod tests;
