//! Runs seeds of the whole-cluster simulation.

use clap::Parser;
use sim::{RunOptions, Summary, run_seed};
use std::io::IsTerminal;
use std::process::ExitCode;

/// Simulates a whole cluster with crashes and power cuts, decided by seeds, and compares it with a naive model.
#[derive(Parser)]
struct Arguments {
    /// Number of seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run this seed alone.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Interruptions in each run.
    #[arg(long, default_value_t = RunOptions::default().rounds)]
    rounds: u32,
    /// Operations between two interruptions, at most.
    #[arg(long, default_value_t = RunOptions::default().operations)]
    operations: u64,
    /// Switch the intent log off, to see that its absence is noticed.
    #[arg(long)]
    no_intent_log: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = RunOptions {
        rounds: arguments.rounds,
        operations: arguments.operations,
        intent_log: !arguments.no_intent_log,
    };
    let seeds = match arguments.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => arguments.from..arguments.from.saturating_add(arguments.seeds),
    };
    let progress = std::io::stderr().is_terminal();
    let mut total = Summary::default();
    let mut failed = Vec::new();
    for seed in seeds.clone() {
        if progress {
            eprint!("\rseed {seed}, {} operations, {} violations ", total.operations, failed.len());
        }
        match run_seed(seed, options) {
            Ok(summary) => {
                total.operations += summary.operations;
                total.kills += summary.kills;
                total.power_cuts += summary.power_cuts;
            }
            Err(violation) => {
                eprintln!("{violation}\n");
                failed.push(seed);
            }
        }
    }
    if progress {
        eprint!("\r\x1b[K");
    }
    let count = seeds.end - seeds.start;
    println!(
        "{count} seeds, {} operations, {} deaths of the process, {} power cuts: {} violations",
        total.operations,
        total.kills,
        total.power_cuts,
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
