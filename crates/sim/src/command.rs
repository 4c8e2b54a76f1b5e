//! The simulator's command line, and the command that replays a run.

use crate::hosts::{HostsOptions, PowerCuts};
use crate::run::RunOptions;
use clap::{Args, Parser, Subcommand};
use std::fmt;
use std::ops::Range;
use tracing_subscriber::filter::Targets;
use types::Scheme;

/// Simulates a whole cluster with crashes and power failures, determined by seeds, and compares it
/// with a naive model.
#[derive(Parser)]
pub struct Command {
    /// Number of seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Interruptions per run.
    #[arg(long, default_value_t = RunOptions::default().rounds)]
    rounds: u32,
    /// Maximum number of operations between two interruptions.
    #[arg(long, default_value_t = RunOptions::default().operations)]
    operations: u64,
    /// Disable the intent log, to verify that the checks detect its absence.
    #[arg(long)]
    no_intent_log: bool,
    /// Print the log lines of hosts and the faults, with simulated time: `info`, or `TARGET=LEVEL`
    /// for parts of the program, separated by commas.
    #[arg(long, value_name = "FILTER")]
    pub trace: Option<Targets>,
    /// Print the digest of each seed's run: two runs of one seed have the same digest.
    #[arg(long)]
    pub fingerprints: bool,
    #[command(subcommand)]
    scenario: Option<Scenario>,
}

#[derive(Subcommand)]
enum Scenario {
    /// Metadata, storage and clients on separate hosts, connected by a network that fails.
    Hosts(Hosts),
}

#[derive(Args)]
struct Hosts {
    /// Clients.
    #[arg(long, default_value_t = HostsOptions::default().clients)]
    clients: u32,
    /// Applications per client.
    #[arg(long, default_value_t = HostsOptions::default().applications)]
    programs: u32,
    /// Metadata hosts; several hosts move partitions between them and share a store on management's
    /// host.
    #[arg(long, default_value_t = HostsOptions::default().metas)]
    metas: u32,
    /// Faults per run.
    #[arg(long, default_value_t = HostsOptions::default().faults)]
    faults: u32,
    /// Let clients write each other's blocks.
    #[arg(long)]
    shared_writes: bool,
    /// Create the files as holes.
    #[arg(long)]
    holes: bool,
    /// Put the store of a single metadata host on another host.
    #[arg(long)]
    far_store: bool,
    /// Let the host of the store lose power, together with commits that no application has seen.
    #[arg(long)]
    store_power: bool,
    /// Storage hosts [default: 3; 4 with mirrored files].
    #[arg(long)]
    storages: Option<usize>,
    /// Racks, which fail as a whole; storage hosts are assigned round-robin. 0: racks are unknown.
    #[arg(long, default_value_t = HostsOptions::default().racks)]
    racks: usize,
    /// Redundancy of files: single, mirror:2 or mirror:3.
    #[arg(long, default_value_t = HostsOptions::default().scheme)]
    scheme: Scheme,
    /// Power failures of storage hosts: never, unsynced, synced, fsynced or one-at-a-time.
    #[arg(long, default_value_t = HostsOptions::default().power_cuts)]
    power_cuts: PowerCuts,
    /// Never crash a metadata service.
    #[arg(long)]
    no_meta_deaths: bool,
    /// Never crash a client.
    #[arg(long)]
    no_client_deaths: bool,
    /// Don't report which data may differ between replicas, to verify that the checks detect it.
    #[arg(long)]
    no_notes: bool,
    /// Let clients delay small writes (write-behind).
    #[arg(long)]
    write_behind: bool,
    /// Let applications append records that span several chunks.
    #[arg(long)]
    long_records: bool,
    /// Let the only in-sync member of mirrored groups lose power during a resync, followed by more
    /// faults. Requires --power-cuts: that member may lose what wasn't synced.
    #[arg(long, requires = "power_cuts")]
    strike_resyncs: bool,
    /// Crash the processes of all services at once, several times in a row.
    #[arg(long)]
    kill_all: bool,
    /// Cut off a metadata service and a client from management together, while they reach each
    /// other. The service must not answer from its caches when its lease has ended.
    #[arg(long, requires = "metas")]
    cut_off_pairs: bool,
}

/// A kind of simulation with its options. Together with a seed it determines a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Simulation {
    /// All services in one process on one machine.
    Machine(RunOptions),
    /// Services and clients on separate hosts.
    Hosts(HostsOptions),
}

impl Command {
    /// Returns the seeds to run.
    pub fn seeds(&self) -> Range<u64> {
        match self.seed {
            Some(seed) => seed..seed.saturating_add(1),
            None => self.from..self.from.saturating_add(self.seeds),
        }
    }

    /// Returns what to run with each seed.
    pub fn simulation(&self) -> Simulation {
        match &self.scenario {
            None => Simulation::Machine(RunOptions {
                rounds: self.rounds,
                operations: self.operations,
                intent_log: !self.no_intent_log,
            }),
            Some(Scenario::Hosts(hosts)) => Simulation::Hosts(hosts.options()),
        }
    }
}

impl Hosts {
    fn options(&self) -> HostsOptions {
        HostsOptions {
            clients: self.clients.max(1),
            applications: self.programs.max(1),
            metas: self.metas.max(1),
            faults: self.faults,
            shared_writes: self.shared_writes,
            holes: self.holes,
            metas_crash: !self.no_meta_deaths,
            clients_crash: !self.no_client_deaths,
            separate_store: self.far_store,
            store_power: self.store_power,
            storages: self.storages.unwrap_or(if self.scheme.has_primary() { 4 } else { 3 }).max(1),
            racks: self.racks,
            scheme: self.scheme,
            power_cuts: self.power_cuts,
            reports_differences: !self.no_notes,
            write_behind: self.write_behind,
            long_records: self.long_records,
            faults_during_resync: self.strike_resyncs,
            kill_all: self.kill_all,
            cut_off_pairs: self.cut_off_pairs,
        }
    }
}

/// The command that replays a seed; shown with a failure.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    /// The seed.
    pub seed: u64,
    /// The kind of simulation and its options.
    pub simulation: Simulation,
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cargo run -p sim -- --seed {}", self.seed)?;
        match self.simulation {
            Simulation::Machine(options) => write_machine(f, options),
            Simulation::Hosts(options) => write_hosts(f, options),
        }
    }
}

/// Prints the command that replays a run if code of the cluster panics during it. The panic message
/// doesn't contain the seed.
pub(crate) struct PrintOnPanic(pub(crate) Replay);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("panic in the run of seed {}; to replay: {}", self.0.seed, self.0);
        }
    }
}

fn write_machine(f: &mut fmt::Formatter<'_>, options: RunOptions) -> fmt::Result {
    let RunOptions { rounds, operations, intent_log } = options;
    write!(f, " --rounds {rounds} --operations {operations}")?;
    write_switches(f, &[(!intent_log, "no-intent-log")])
}

/// Destructures all options, so that the compiler reports a new one that is missing here.
fn write_hosts(f: &mut fmt::Formatter<'_>, options: HostsOptions) -> fmt::Result {
    let HostsOptions {
        clients,
        applications: programs,
        storages,
        racks,
        metas,
        faults,
        shared_writes,
        holes,
        metas_crash: meta_dies,
        clients_crash: clients_die,
        separate_store: far_store,
        power_cuts,
        store_power,
        scheme,
        reports_differences: notes,
        write_behind,
        long_records,
        faults_during_resync: strike_resyncs,
        kill_all,
        cut_off_pairs,
    } = options;
    write!(
        f,
        " hosts --clients {clients} --programs {programs} --metas {metas} --storages {storages} --racks {racks} \
         --faults {faults} --scheme {scheme} --power-cuts {power_cuts}"
    )?;
    let switches = [
        (shared_writes, "shared-writes"),
        (holes, "holes"),
        (!meta_dies, "no-meta-deaths"),
        (!clients_die, "no-client-deaths"),
        (far_store, "far-store"),
        (store_power, "store-power"),
        (!notes, "no-notes"),
        (write_behind, "write-behind"),
        (long_records, "long-records"),
        (strike_resyncs, "strike-resyncs"),
        (cut_off_pairs, "cut-off-pairs"),
        (kill_all, "kill-all"),
    ];
    write_switches(f, &switches)
}

fn write_switches(f: &mut fmt::Formatter<'_>, switches: &[(bool, &str)]) -> fmt::Result {
    switches.iter().filter(|(on, _)| *on).try_for_each(|(_, name)| write!(f, " --{name}"))
}
