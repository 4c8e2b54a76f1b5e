//! `weft bench`: measurements and their reports.

mod agent;
mod ceilings;
mod characterize;
mod cluster;
mod compare;
mod core;
mod load;
mod progress;
mod protocol;
mod read;
mod remote_clients;

use crate::cli::BenchCommand;
use crate::exit::Failure;

/// Runs a benchmark command.
pub fn run(command: BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Io(args) => load::io(&args)?,
        BenchCommand::Meta(args) => load::meta(&args)?,
        BenchCommand::Agent => agent::run()?,
        BenchCommand::Storage(args) => ceilings::storage(&args)?,
        BenchCommand::Net(args) => ceilings::net(&args)?,
        BenchCommand::Cpu(args) => ceilings::cpu(&args)?,
        BenchCommand::Characterize(args) => characterize::run(&args)?,
        BenchCommand::Compare(args) => compare::run(&args)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use bench::characterize::{figures, list_commands};
    use bench::profiles::{Host, profiles};
    use clap::Parser;

    /// Reports list the command that repeats each of their experiments.
    #[test]
    fn commands_of_reports_can_be_typed() {
        let host = Host { free_bytes: 1 << 60, memory_bytes: 1 << 40, drops_caches: true };
        let mut seen = 0;
        for profile in profiles() {
            let (scale, figures) = figures(&profile, Some(1.0), &host).unwrap();
            let text = list_commands(&profile, scale, &figures, "/mnt", 3);
            for line in text.lines().filter_map(|line| Some(&line[line.find("weft bench ")?..])) {
                if let Err(error) = Cli::try_parse_from(line.split_whitespace()) {
                    panic!("{line}: {error}");
                }
                seen += 1;
            }
        }
        assert!(seen > 50, "{seen} commands");
    }
}
