//! `weft bench`: measurements.

mod ceilings;

use crate::cli::BenchCommand;
use types::Result;

/// Carries out the command.
pub fn run(command: BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Storage(args) => ceilings::storage(&args),
        BenchCommand::Net(args) => ceilings::net(&args),
        BenchCommand::Cpu(args) => ceilings::cpu(&args),
    }
}
