//! `weft bench`: measurements, and what is made of them.

mod characterize;
mod compare;
mod read;

use crate::cli::BenchCommand;
use types::Result;

/// Measures or compares.
pub fn run(command: BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Characterize(args) => characterize::run(&args),
        BenchCommand::Compare(args) => compare::run(&args),
    }
}
