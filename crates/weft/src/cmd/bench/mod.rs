//! `weft bench`: measurements, and what is made of them.

mod ceilings;
mod characterize;
mod compare;
mod load;
mod read;
mod watch;

use crate::cli::BenchCommand;
use types::Result;

/// Measures or compares.
pub fn run(command: BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Io(args) => load::io(&args),
        BenchCommand::Meta(args) => load::meta(&args),
        BenchCommand::Storage(args) => ceilings::storage(&args),
        BenchCommand::Net(args) => ceilings::net(&args),
        BenchCommand::Cpu(args) => ceilings::cpu(&args),
        BenchCommand::Characterize(args) => characterize::run(&args),
        BenchCommand::Compare(args) => compare::run(&args),
    }
}
