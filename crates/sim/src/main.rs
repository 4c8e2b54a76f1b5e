//! Runs seeds of the whole-cluster simulation.

use clap::{Args, Parser, Subcommand};
use sim::hosts::{HostsOptions, HostsSummary, PowerCuts, run_hosts_seed};
use sim::{RunOptions, Summary, run_seed};
use std::io::IsTerminal;
use std::ops::Range;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use types::Scheme;

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
    /// Print what hosts say and what happens to them, with the time of the world: `info`, or another filter in the syntax of `tracing_subscriber::EnvFilter`.
    #[arg(long, value_name = "FILTER")]
    trace: Option<String>,
    #[command(subcommand)]
    scenario: Option<Scenario>,
}

/// The time of the simulated world, and the host whose code runs.
struct Whereabouts;

impl FormatTime for Whereabouts {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        match rt::sim::whereabouts() {
            Some((host, clock_ns)) => write!(w, "{:10.6} {host:<12}", clock_ns as f64 / 1e9),
            None => write!(w, "{:>10} {:<12}", "-", "-"),
        }
    }
}

#[derive(Subcommand)]
enum Scenario {
    /// Metadata, storage and clients on hosts of their own, with a network between them that fails.
    Hosts(Hosts),
}

#[derive(Args)]
struct Hosts {
    /// Clients.
    #[arg(long, default_value_t = HostsOptions::default().clients)]
    clients: u32,
    /// Metadata hosts; with several, partitions move from one to another, and the store that they share is on management's host.
    #[arg(long, default_value_t = HostsOptions::default().metas)]
    metas: u32,
    /// Things that go wrong in each run.
    #[arg(long, default_value_t = HostsOptions::default().faults)]
    faults: u32,
    /// Let clients write each other's blocks.
    #[arg(long)]
    shared_writes: bool,
    /// Let files begin as holes.
    #[arg(long)]
    holes: bool,
    /// Put the store of a single metadata host on another host.
    #[arg(long)]
    far_store: bool,
    /// Let the host that has the store lose its power, and commits of which no program has been told.
    #[arg(long)]
    store_power: bool,
    /// Storage hosts [default: 3; 4 where files are mirrored].
    #[arg(long)]
    storages: Option<usize>,
    /// Racks that the storage hosts are in, in turn, and that fail as a whole; none: nothing is known of racks.
    #[arg(long, default_value_t = HostsOptions::default().racks)]
    racks: usize,
    /// How files are kept: single, mirror:2 or mirror:3.
    #[arg(long, default_value_t = HostsOptions::default().scheme)]
    scheme: Scheme,
    /// How storage hosts lose their power: never, unsynced, synced, fsynced or one-at-a-time.
    #[arg(long, default_value_t = HostsOptions::default().power_cuts)]
    power_cuts: PowerCuts,
    /// Let nobody know what may differ between copies, to see that it is noticed.
    #[arg(long)]
    no_notes: bool,
    /// Let clients keep small writes for a moment.
    #[arg(long)]
    write_behind: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(filter) = &arguments.trace {
        let filter = EnvFilter::new(filter);
        tracing_subscriber::fmt().with_env_filter(filter).with_timer(Whereabouts).with_ansi(false).init();
    }
    let seeds = match arguments.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => arguments.from..arguments.from.saturating_add(arguments.seeds),
    };
    match &arguments.scenario {
        None => run_machine(&arguments, seeds),
        Some(Scenario::Hosts(hosts)) => run_hosts(hosts, seeds),
    }
}

fn run_machine(arguments: &Arguments, seeds: Range<u64>) -> ExitCode {
    let options = RunOptions {
        rounds: arguments.rounds,
        operations: arguments.operations,
        intent_log: !arguments.no_intent_log,
    };
    let mut total = Summary::default();
    let failed = run_all(seeds.clone(), |seed| {
        let summary = run_seed(seed, options).map_err(|violation| violation.to_string())?;
        total.operations += summary.operations;
        total.kills += summary.kills;
        total.power_cuts += summary.power_cuts;
        Ok(total.operations)
    });
    println!(
        "{} seeds, {} operations, {} deaths of the process, {} power cuts: {failed} violations",
        seeds.end - seeds.start,
        total.operations,
        total.kills,
        total.power_cuts,
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_hosts(hosts: &Hosts, seeds: Range<u64>) -> ExitCode {
    let options = HostsOptions {
        clients: hosts.clients.max(1),
        metas: hosts.metas.max(1),
        faults: hosts.faults,
        shared_writes: hosts.shared_writes,
        holes: hosts.holes,
        far_store: hosts.far_store,
        store_power: hosts.store_power,
        storages: hosts.storages.unwrap_or(if hosts.scheme.is_mirrored() { 4 } else { 3 }).max(1),
        racks: hosts.racks,
        scheme: hosts.scheme,
        power_cuts: hosts.power_cuts,
        notes: !hosts.no_notes,
        write_behind: hosts.write_behind,
        ..HostsOptions::default()
    };
    let mut total = HostsSummary::default();
    let failed = run_all(seeds.clone(), |seed| {
        let summary = run_hosts_seed(seed, options).map_err(|violation| violation.to_string())?;
        total.operations += summary.operations;
        total.open += summary.open;
        total.concurrent += summary.concurrent;
        total.kills += summary.kills;
        total.replaced += summary.replaced;
        total.copies += summary.copies;
        total.lost_commits += summary.lost_commits;
        Ok(total.operations)
    });
    println!(
        "{} seeds, {} operations, {} of them concurrent, {} with an open effect, {} deaths of processes, \
         {} sessions replaced, {} commits lost, {} mirrored chunk files compared: {failed} violations",
        seeds.end - seeds.start,
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

/// Runs each seed by `run`, which tells how many operations there were in all; gives how many seeds failed.
fn run_all(seeds: Range<u64>, mut run: impl FnMut(u64) -> Result<u64, String>) -> usize {
    let progress = std::io::stderr().is_terminal();
    let (mut operations, mut failed) = (0, 0);
    for seed in seeds {
        if progress {
            eprint!("\rseed {seed}, {operations} operations, {failed} violations ");
        }
        match run(seed) {
            Ok(so_far) => operations = so_far,
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
