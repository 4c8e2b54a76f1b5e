//! The simulator's command line, and the command that replays a run.

use crate::hosts::{HostsOptions, PowerCuts};
use crate::run::RunOptions;
use clap::{Args, Parser, Subcommand};
use std::fmt;
use std::ops::Range;
use tracing_subscriber::filter::Targets;
use types::Scheme;

/// Simulates a whole cluster with crashes and power cuts, decided by seeds, and compares it with a
/// naive model.
#[derive(Parser)]
pub struct Command {
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
    /// Print what hosts say and what happens to them, with the time of the world: `info`, or
    /// `TARGET=LEVEL` for parts of the program, separated by commas.
    #[arg(long, value_name = "FILTER")]
    pub trace: Option<Targets>,
    /// Print the digest of each seed's run: two runs of one seed have the same.
    #[arg(long)]
    pub fingerprints: bool,
    #[command(subcommand)]
    scenario: Option<Scenario>,
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
    /// Programs of each client.
    #[arg(long, default_value_t = HostsOptions::default().programs)]
    programs: u32,
    /// Metadata hosts; with several, partitions move from one to another, and the store that they
    /// share is on management's host.
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
    /// Let the host that has the store lose its power, and commits of which no program has been
    /// told.
    #[arg(long)]
    store_power: bool,
    /// Storage hosts [default: 3; 4 where files are mirrored].
    #[arg(long)]
    storages: Option<usize>,
    /// Racks that the storage hosts are in, in turn, and that fail as a whole; none: nothing is
    /// known of racks.
    #[arg(long, default_value_t = HostsOptions::default().racks)]
    racks: usize,
    /// How files are kept: single, mirror:2 or mirror:3.
    #[arg(long, default_value_t = HostsOptions::default().scheme)]
    scheme: Scheme,
    /// How storage hosts lose their power: never, unsynced, synced, fsynced or one-at-a-time.
    #[arg(long, default_value_t = HostsOptions::default().power_cuts)]
    power_cuts: PowerCuts,
    /// Let no process of a metadata service die.
    #[arg(long)]
    no_meta_deaths: bool,
    /// Let no client die.
    #[arg(long)]
    no_client_deaths: bool,
    /// Let nobody know what may differ between copies, to see that it is noticed.
    #[arg(long)]
    no_notes: bool,
    /// Let clients keep small writes for a moment.
    #[arg(long)]
    write_behind: bool,
    /// Let programs append records that lie in several chunks.
    #[arg(long)]
    long_records: bool,
    /// Let the only member in sync of mirrored groups lose its power while another one is brought
    /// in sync, and more go wrong then.
    #[arg(long)]
    strike_resyncs: bool,
    /// Let the processes of all services die at once, several times in a row.
    #[arg(long)]
    kill_all: bool,
}

/// A form of the simulation with its options: together with a seed it decides a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// All services in one process of one machine.
    Machine(RunOptions),
    /// Services and clients on hosts of their own.
    Hosts(HostsOptions),
}

impl Command {
    /// The seeds to run.
    pub fn seeds(&self) -> Range<u64> {
        match self.seed {
            Some(seed) => seed..seed.saturating_add(1),
            None => self.from..self.from.saturating_add(self.seeds),
        }
    }

    /// What to run with each seed.
    pub fn form(&self) -> Form {
        match &self.scenario {
            None => Form::Machine(RunOptions {
                rounds: self.rounds,
                operations: self.operations,
                intent_log: !self.no_intent_log,
            }),
            Some(Scenario::Hosts(hosts)) => Form::Hosts(hosts.options()),
        }
    }
}

impl Hosts {
    fn options(&self) -> HostsOptions {
        HostsOptions {
            clients: self.clients.max(1),
            programs: self.programs.max(1),
            metas: self.metas.max(1),
            faults: self.faults,
            shared_writes: self.shared_writes,
            holes: self.holes,
            meta_dies: !self.no_meta_deaths,
            clients_die: !self.no_client_deaths,
            far_store: self.far_store,
            store_power: self.store_power,
            storages: self.storages.unwrap_or(if self.scheme.is_mirrored() { 4 } else { 3 }).max(1),
            racks: self.racks,
            scheme: self.scheme,
            power_cuts: self.power_cuts,
            notes: !self.no_notes,
            write_behind: self.write_behind,
            long_records: self.long_records,
            strike_resyncs: self.strike_resyncs,
            kill_all: self.kill_all,
        }
    }
}

/// The command that runs a seed again; it is shown with a failure.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    /// The seed.
    pub seed: u64,
    /// How the simulation is set.
    pub form: Form,
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cargo run -p sim -- --seed {}", self.seed)?;
        match self.form {
            Form::Machine(options) => write_machine(f, options),
            Form::Hosts(options) => write_hosts(f, options),
        }
    }
}

/// Shows the command that replays a run if code of the cluster panics in it: the message of a panic
/// doesn't know of seeds.
pub(crate) struct ShownOnPanic(pub(crate) Replay);

impl Drop for ShownOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("a panic in the run of seed {}; to replay: {}", self.0.seed, self.0);
        }
    }
}

fn write_machine(f: &mut fmt::Formatter<'_>, options: RunOptions) -> fmt::Result {
    let RunOptions { rounds, operations, intent_log } = options;
    write!(f, " --rounds {rounds} --operations {operations}")?;
    write_switches(f, &[(!intent_log, "no-intent-log")])
}

/// Takes all options apart, so that a new one isn't forgotten here.
fn write_hosts(f: &mut fmt::Formatter<'_>, options: HostsOptions) -> fmt::Result {
    let HostsOptions {
        clients,
        programs,
        storages,
        racks,
        metas,
        faults,
        shared_writes,
        holes,
        meta_dies,
        clients_die,
        far_store,
        power_cuts,
        store_power,
        scheme,
        notes,
        write_behind,
        long_records,
        strike_resyncs,
        kill_all,
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
        (kill_all, "kill-all"),
    ];
    write_switches(f, &switches)
}

fn write_switches(f: &mut fmt::Formatter<'_>, switches: &[(bool, &str)]) -> fmt::Result {
    switches.iter().filter(|(on, _)| *on).try_for_each(|(_, name)| write!(f, " --{name}"))
}
