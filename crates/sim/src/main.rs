//! Runs seeds of the whole-cluster simulation.

use clap::Parser;
use sim::command::{Command, Simulation};
use sim::hosts::{HostsOptions, HostsSummary, run_hosts_seed};
use sim::{RunOptions, Summary, run_seed};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::prelude::*;

/// Log timestamp: the simulated time, and the host whose code runs.
struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        match rt::sim::current_host_and_time() {
            Some((host, clock_ns)) => write!(w, "{:10.6} {host:<12}", clock_ns as f64 / 1e9),
            None => write!(w, "{:>10} {:<12}", "-", "-"),
        }
    }
}

fn main() -> ExitCode {
    let command = Command::parse();
    if let Some(filter) = &command.trace {
        let lines = tracing_subscriber::fmt::layer().with_timer(SimulatedTime).with_ansi(false);
        tracing_subscriber::registry().with(lines.with_filter(filter.clone())).init();
    }
    match command.simulation() {
        Simulation::Machine(options) => run_machine(&command, options),
        Simulation::Hosts(options) => run_hosts(&command, options),
    }
}

fn run_machine(command: &Command, options: RunOptions) -> ExitCode {
    let mut total = Summary::default();
    let failed = run_all(command, |seed| {
        let summary = run_seed(seed, options).map_err(|violation| violation.to_string())?;
        total.operations += summary.operations;
        total.kills += summary.kills;
        total.power_cuts += summary.power_cuts;
        Ok(SeedSummary { operations: summary.operations, fingerprint: summary.fingerprint })
    });
    println!(
        "{} seeds, {} operations, {} process crashes, {} power cuts: {failed} violations",
        seed_count(command),
        total.operations,
        total.kills,
        total.power_cuts,
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_hosts(command: &Command, options: HostsOptions) -> ExitCode {
    let mut total = HostsSummary::default();
    let failed = run_all(command, |seed| {
        let summary = run_hosts_seed(seed, options).map_err(|violation| violation.to_string())?;
        total.operations += summary.operations;
        total.open += summary.open;
        total.concurrent += summary.concurrent;
        total.kills += summary.kills;
        total.replaced += summary.replaced;
        total.copies += summary.copies;
        total.lost_commits += summary.lost_commits;
        Ok(SeedSummary { operations: summary.operations, fingerprint: summary.fingerprint })
    });
    println!(
        "{} seeds, {} operations, {} of them concurrent, {} with an uncertain outcome, {} process crashes, \
         {} sessions replaced, {} commits lost, {} mirrored chunk files compared: {failed} violations",
        seed_count(command),
        total.operations,
        total.concurrent,
        total.open,
        total.kills,
        total.replaced,
        total.lost_commits,
        total.copies,
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn seed_count(command: &Command) -> u64 {
    let seeds = command.seeds();
    seeds.end - seeds.start
}

/// Summary of the run of one seed.
struct SeedSummary {
    operations: u64,
    fingerprint: u64,
}

/// Runs each seed with `run`. Returns the number of seeds that failed.
fn run_all(command: &Command, mut run: impl FnMut(u64) -> Result<SeedSummary, String>) -> usize {
    let progress = std::io::stderr().is_terminal();
    let (mut operations, mut failed) = (0, 0);
    for seed in command.seeds() {
        if progress {
            eprint!("\rseed {seed}, {operations} operations, {failed} violations ");
        }
        match run(seed) {
            Ok(ran) => {
                operations += ran.operations;
                if command.fingerprints {
                    println!(
                        "seed {seed}: {} operations, fingerprint {:016x}",
                        ran.operations, ran.fingerprint
                    );
                }
            }
            Err(violation) => {
                eprintln!("{violation}\n");
                failed += 1;
            }
        }
    }
    if progress {
        eprint!("\r\x1b[K");
    }
    failed
}
