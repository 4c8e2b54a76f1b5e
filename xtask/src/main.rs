//! The project's build tool: every command behind `make`, in Rust instead of shell.
//!
//! `cargo xtask help` lists the commands. The end-to-end suite is in [`e2e`]; the small programs
//! that it runs on the file system under test are in [`helper`].

mod bench;
mod build;
mod check;
mod deb;
mod deny;
mod docs;
mod e2e;
mod flaky;
mod helper;
mod history;
mod interrupt;
mod package;
mod pool;
mod process;
mod references;
mod rpm;
mod sim;
mod summary;
mod sys;
mod test;
mod tidy;
mod timing;
mod units;
mod words;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Build, check and test weft.
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Format, clippy, tidy and the fast tests: before every commit.
    Check,
    /// Check the project's own rules on its sources.
    Tidy,
    /// Run all tests: `cargo test`, then the end-to-end suite. The last line has the totals.
    Test(test::Options),
    /// Run the end-to-end suite, or the given tests.
    E2e(e2e::Options),
    /// Run the whole-cluster simulation over many seeds.
    Sim(sim::Options),
    /// Compare the file system's performance with ceilings and other systems.
    Bench(bench::Options),
    /// Build Debian packages: the release binary with units, man pages and guide; its symbols.
    Deb(package::Options),
    /// Build RPM packages with the same files.
    Rpm(package::Options),
    /// Check licenses, sources, versions and known vulnerabilities of the dependencies.
    Deny,
    /// Write the generated pages of docs/reference.
    Docs,
    /// Record what applications observe on several mounts of one file system, and check its
    /// coherence.
    #[command(subcommand)]
    History(history::Command),
    /// Programs that the end-to-end suite runs.
    #[command(subcommand, hide = true)]
    Helper(helper::Helper),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Check => check::run(),
        Command::Tidy => tidy::run(),
        Command::Test(options) => test::run(&options),
        Command::E2e(options) => e2e::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Deb(options) => deb::run(&options),
        Command::Rpm(options) => rpm::run(&options),
        Command::Deny => deny::run(),
        Command::Docs => docs::run(),
        Command::History(command) => history::run(&command),
        Command::Helper(helper) => helper::run(&helper),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
