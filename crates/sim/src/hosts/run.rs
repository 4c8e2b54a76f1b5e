//! One run: a cluster, its load, and what goes wrong.

use super::company::{NAMES_TIMEOUT, Office};
use super::load::{Journal, Program, prepare};
use super::process::{CALL_TIMEOUT, RESTART_PAUSE, Site, set_pattern};
use client::Succession;
use history::{Limits, judge};
use kv::Memory;
use rt::sim::{HostId, NetworkOptions, World};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::SessionId;

/// Calls that one operation makes one after the other, at most; each may take its time-out.
const CALLS_PER_OPERATION: u32 = 8;
/// How long a start of the cluster may take.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long everybody gets to recover when everything works again.
const RECOVERY: Duration = Duration::from_secs(15);
/// Within this, each program must do something then. A metadata service that was started anew waits 15 s
/// for clients that it knows, and those that are gone may have to be ended before others get on.
const PROGRESS: Duration = Duration::from_secs(40);
/// How long a process stays dead, at most, and how long things go wrong before something else does.
const MAX_DEAD_MS: u64 = 2_000;
const MAX_QUIET_MS: u64 = 1_000;
/// Chances in a million that a piece of a stream breaks its connection.
const RESETS_PER_MILLION: u32 = 300;
/// Of a bad network, chances in a million that something is slow, and by how much: more than others wait before they count a connection as broken.
const BAD_SLOW_PER_MILLION: u32 = 100_000;
const BAD_SLOW_NS: (u64, u64) = (10_000_000, 1_500_000_000);

/// With several metadata services: directories over which names and files are spread, more than partitions.
const DIRECTORIES: u64 = 6;
/// How long some faults last then, so that management gives partitions to others.
const MAX_LONG_MS: u64 = 30_000;
/// How long everybody gets to recover then: a service that was taken for dead gets partitions back, and whoever adopts some waits up to 15 s
/// for sessions and as long again to end those that are gone.
const RECOVERY_OF_SEVERAL: Duration = Duration::from_secs(60);
/// How long a client looks for a service that executes a partition.
const SEARCH_TIME: Duration = Duration::from_secs(60);
/// Clocks differ by so much then, and run so much faster or slower, millionths.
const MAX_AHEAD_NS: u64 = 10_000_000_000;
const MAX_DRIFT_PPM: u64 = 2_000;

/// What a run is to do.
#[derive(Clone, Copy, Debug)]
pub struct HostsOptions {
    /// Clients, each on its host.
    pub clients: u32,
    /// Programs of each client.
    pub programs: u32,
    /// Storage hosts.
    pub storages: usize,
    /// Metadata hosts. With more than one there is a host for management, which moves partitions from one to another and has the store that they
    /// share.
    pub metas: u32,
    /// Things that go wrong.
    pub faults: u32,
    /// Whether clients write each other's blocks.
    pub shared_writes: bool,
    /// Whether files begin as holes, so that their chunks are made while others have them open.
    pub holes: bool,
    /// Whether the metadata service's process dies, too.
    pub meta_dies: bool,
    /// Whether clients die, too.
    pub clients_die: bool,
    /// Whether the store of a single metadata host is on another host, whose process dies as well. That of several always is.
    pub far_store: bool,
    /// Whether storage hosts lose their power instead of their process. Programs don't sync here, so runs fail then: that shows that
    /// checks work.
    pub power_cuts: bool,
}

impl Default for HostsOptions {
    fn default() -> HostsOptions {
        HostsOptions {
            clients: 1,
            programs: 3,
            storages: 3,
            metas: 1,
            faults: 30,
            shared_writes: false,
            holes: false,
            meta_dies: true,
            clients_die: true,
            far_store: false,
            power_cuts: false,
        }
    }
}

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostsSummary {
    /// Operations that returned.
    pub operations: u64,
    /// Changes whose effect nobody knows.
    pub open: u64,
    /// Operations that overlapped with another one on the same object.
    pub concurrent: u64,
    /// Deaths of processes.
    pub kills: u64,
    /// Sessions that took the place of one that the cluster had ended.
    pub replaced: u64,
    /// Ways that were cut.
    pub cuts: u64,
    /// A digest of all decisions: equal for equal runs.
    pub fingerprint: u64,
}

/// Something that must not happen.
#[derive(Clone, Debug)]
pub struct HostsViolation {
    /// The run.
    pub seed: u64,
    /// How it was set.
    pub options: HostsOptions,
    /// Steps that the scheduler had made.
    pub step: u64,
    /// What was wrong.
    pub cause: String,
}

impl fmt::Display for HostsViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostsOptions { clients, metas, faults, shared_writes, holes, far_store, .. } = self.options;
        writeln!(f, "seed {}, step {}: {}", self.seed, self.step, self.cause)?;
        write!(
            f,
            "to replay: cargo run -p sim -- --seed {} hosts --clients {clients} --metas {metas} --faults {faults}",
            self.seed
        )?;
        let switches =
            [(shared_writes, " --shared-writes"), (holes, " --holes"), (far_store, " --far-store")];
        switches.iter().filter(|(on, _)| *on).try_for_each(|(_, switch)| f.write_str(switch))
    }
}

struct Run {
    options: HostsOptions,
    world: World,
    metas: Vec<HostId>,
    management: Option<HostId>,
    storages: Vec<HostId>,
    clients: Vec<HostId>,
    /// The host that has the store, if it isn't the metadata host: management's, or one that has nothing else.
    store: Option<HostId>,
    site: Site,
    journal: Rc<Journal>,
    next_session: u64,
    summary: HostsSummary,
}

/// Runs one seed.
///
/// # Errors
/// The first thing that must not happen.
pub fn run_hosts_seed(seed: u64, options: HostsOptions) -> Result<HostsSummary, Box<HostsViolation>> {
    let mut run = Run::new(seed, options);
    run.all().map_err(|cause| Box::new(HostsViolation { seed, options, step: run.world.steps(), cause }))
}

fn set_askew(world: &mut World, host: HostId) {
    let ahead_ns = (world.random() % MAX_AHEAD_NS) as i64;
    let drift_ppm = (world.random() % (2 * MAX_DRIFT_PPM)) as i32 - MAX_DRIFT_PPM as i32;
    world.set_clock(host, ahead_ns, drift_ppm);
}

fn usual_network() -> NetworkOptions {
    NetworkOptions { resets_per_million: RESETS_PER_MILLION, ..NetworkOptions::default() }
}

impl Run {
    fn new(seed: u64, options: HostsOptions) -> Run {
        let mut world = World::new(seed);
        world.set_network(usual_network());
        let mut metas = vec![world.add_host("metadata")];
        let storages: Vec<HostId> =
            (0..options.storages).map(|index| world.add_host(&format!("storage {index}"))).collect();
        let clients: Vec<HostId> =
            (0..options.clients).map(|index| world.add_host(&format!("client {index}"))).collect();
        metas.extend((1..options.metas).map(|index| world.add_host(&format!("metadata {index}"))));
        let management = (options.metas > 1).then(|| world.add_host("management"));
        if options.metas > 1 {
            let all = metas.iter().chain(&storages).chain(&clients).chain(&management);
            all.copied().collect::<Vec<_>>().into_iter().for_each(|host| set_askew(&mut world, host));
        }
        // Last, so that the other hosts are the same without it. Several services have it beside management.
        let store = management.or_else(|| options.far_store.then(|| world.add_host("store")));
        let office = management.map(|host| Office { ip: world.ip(host), engine: Arc::new(Memory::new()) });
        let site = Site {
            engine: Arc::new(Memory::new()),
            meta_ips: metas.iter().map(|host| world.ip(*host)).collect(),
            office,
            store_ip: store.map(|host| world.ip(host)),
            storage_ips: storages.iter().map(|host| world.ip(*host)).collect(),
            touched: Arc::default(),
        };
        Run {
            options,
            world,
            metas,
            management,
            storages,
            clients,
            store,
            site,
            journal: Rc::default(),
            next_session: 1,
            summary: HostsSummary::default(),
        }
    }

    fn all(&mut self) -> Result<HostsSummary, String> {
        self.make_cluster()?;
        for index in 0..self.clients.len() {
            self.start_client(index);
        }
        for _ in 0..self.options.faults {
            self.let_pass(MAX_QUIET_MS);
            self.disturb();
        }
        self.repair();
        self.see_progress()?;
        self.journal.stop.set(true);
        self.world.advance(CALL_TIMEOUT * CALLS_PER_OPERATION);
        self.look_at_everything()?;
        self.judge()
    }

    /// Runs something on a host to its end.
    fn run_on<T: 'static>(
        &mut self,
        host: HostId,
        what: &str,
        future: impl Future<Output = types::Result<T>> + 'static,
    ) -> Result<T, String> {
        let limited = async move { rt::timeout(START_LIMIT, future).await };
        let ended = self.world.run(host, limited).map_err(|deadlock| format!("{what}: {deadlock}"))?;
        let result = ended.ok_or_else(|| format!("{what} takes longer than {START_LIMIT:?}"))?;
        result.map_err(|error| format!("{what}: {error}"))
    }

    fn make_cluster(&mut self) -> Result<(), String> {
        for index in 0..self.storages.len() {
            let format = self.site.clone().format(index);
            self.run_on(self.storages[index], "making targets", format)?;
            self.start_storage(index);
        }
        self.start_store();
        self.start_management();
        (0..self.metas.len()).for_each(|index| self.start_meta(index));
        let (site, session, holes) = (self.site.clone(), self.new_session(), self.options.holes);
        let dirs = self.dirs();
        self.run_on(self.clients[0], "making files", async move {
            let client = loop {
                match site.client(session).await {
                    Ok(client) => break client,
                    // The metadata services are starting.
                    Err(_) => rt::sleep(RESTART_PAUSE).await,
                }
            };
            set_pattern(&client).await?;
            prepare(&client, dirs, holes).await?;
            client.shutdown().await
        })
    }

    fn start_storage(&mut self, index: usize) {
        let serve = self.site.clone().serve_storage(index);
        self.world.spawn(self.storages[index], async move {
            let Err(error) = serve.await else { return };
            panic!("storage host {index} doesn't start: {error}");
        });
    }

    fn start_store(&mut self) {
        let (Some(host), Some(ip), None) = (self.store, self.site.store_ip, self.management) else { return };
        let serve = self.site.clone().serve_store(ip);
        self.world.spawn(host, async move {
            let Err(error) = serve.await else { return };
            panic!("the store's host doesn't start: {error}");
        });
    }

    fn start_meta(&mut self, index: usize) {
        let site = self.site.clone();
        if self.metas.len() == 1 {
            return self.world.spawn(self.metas[index], site.serve_meta());
        }
        self.world.spawn(self.metas[index], async move {
            let Err(error) = site.serve_share(index).await else { return };
            panic!("metadata host {index} doesn't start: {error}");
        });
    }

    fn start_management(&mut self) {
        let Some(host) = self.management else { return };
        let serve = self.site.clone().serve_management();
        self.world.spawn(host, async move {
            let Err(error) = serve.await else { return };
            panic!("management doesn't start: {error}");
        });
    }

    /// Directories over which names and files are spread; none: all are in the root directory.
    fn dirs(&self) -> u64 {
        if self.metas.len() > 1 { DIRECTORIES } else { 0 }
    }

    /// Whether programs append to logs.
    fn logs(&self) -> bool {
        self.metas.len() > 1
    }

    fn new_session(&mut self) -> SessionId {
        self.next_session += 1;
        SessionId(self.next_session)
    }

    fn start_client(&mut self, index: usize) {
        let (site, journal) = (self.site.clone(), self.journal.clone());
        let programs = self.options.programs;
        let writers = if self.options.shared_writes { 1 } else { self.options.clients };
        let (dirs, logs) = (self.dirs(), self.logs());
        self.world.spawn(self.clients[index], async move {
            let mount = loop {
                match site.mount().await {
                    Ok(mount) => break mount,
                    // The metadata service may be away for now.
                    Err(_) => rt::sleep(RESTART_PAUSE).await,
                }
            };
            let program = |number| {
                let (client, journal) = (mount.clone(), journal.clone());
                Program { client, journal, host: index as u32, number, writers, dirs, logs }.run()
            };
            rt::join_all((0..programs).map(program).collect()).await;
        });
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.world.random() % limit
    }

    fn one_of(&mut self, hosts: &[HostId]) -> HostId {
        hosts[self.below(hosts.len() as u64) as usize]
    }

    fn let_pass(&mut self, limit_ms: u64) {
        let time = Duration::from_millis(self.below(limit_ms));
        self.world.advance(time);
    }

    fn all_hosts(&self) -> Vec<HostId> {
        let metas = self.metas.iter().take(1).chain(&self.storages).chain(&self.clients);
        metas.chain(self.metas.iter().skip(1)).chain(&self.store).copied().collect()
    }

    fn tell(&self, what: &str, host: HostId) {
        tracing::info!(clock_s = self.clock_s(), host = self.world.name(host), "{what}");
    }

    fn tell_of_two(&self, what: &str, a: HostId, b: HostId) {
        let (one, other) = (self.world.name(a), self.world.name(b));
        tracing::info!(clock_s = self.clock_s(), one, other, "{what}");
    }

    fn clock_s(&self) -> f64 {
        self.world.clock_ns() as f64 / 1e9
    }

    /// Something goes wrong, or is repaired.
    fn disturb(&mut self) {
        let hosts = self.all_hosts();
        let (a, b) = (self.one_of(&hosts), self.one_of(&hosts));
        let kinds = match (self.management, self.store) {
            (Some(_), _) => 14,
            (None, Some(_)) => 12,
            (None, None) => 10,
        };
        match self.below(kinds) {
            10 | 11 => self.kill_store(),
            12 => self.slow_down(),
            13 => {
                self.tell("its clock goes wrong", a);
                set_askew(&mut self.world, a);
            }
            0 | 1 => self.kill_storage(),
            2 if self.options.meta_dies => self.kill_meta(),
            3 if self.options.clients_die => self.kill_client(),
            4 => {
                self.tell_of_two("no way between them", a, b);
                self.world.cut(a, b);
            }
            5 => {
                self.tell_of_two("no way from one to the other", a, b);
                self.world.cut_one_way(a, b);
            }
            6 => {
                self.tell_of_two("connections between them break", a, b);
                self.world.reset_connections(a, b);
            }
            7 => {
                self.tell("stopped", a);
                self.world.stop(a);
            }
            _ => return self.repair(),
        }
        self.summary.cuts += 1;
        // Long enough for management to take a host for dead.
        if self.metas.len() > 1 && self.below(4) == 0 {
            self.journal.calm.set(true);
            self.let_pass(MAX_LONG_MS);
            self.journal.calm.set(false);
        }
    }

    fn kill_storage(&mut self) {
        let index = self.below(self.storages.len() as u64) as usize;
        self.tell("killed", self.storages[index]);
        match self.options.power_cuts {
            true => self.world.crash(self.storages[index]),
            false => self.world.kill(self.storages[index]),
        }
        self.summary.kills += 1;
        self.let_pass(MAX_DEAD_MS);
        self.tell("started", self.storages[index]);
        self.start_storage(index);
    }

    fn kill_meta(&mut self) {
        self.summary.kills += 1;
        if self.metas.len() == 1 {
            self.tell("killed", self.metas[0]);
            self.world.kill(self.metas[0]);
            self.site.engine.kill();
            self.let_pass(MAX_DEAD_MS);
            return self.start_meta(0);
        }
        let index = self.below(self.metas.len() as u64) as usize;
        let limit = [MAX_DEAD_MS, MAX_LONG_MS][self.below(2) as usize];
        self.tell("killed", self.metas[index]);
        self.world.kill(self.metas[index]);
        self.journal.calm.set(limit == MAX_LONG_MS);
        self.let_pass(limit);
        self.journal.calm.set(false);
        self.tell("started", self.metas[index]);
        self.start_meta(index);
    }

    /// Kills the process that has the store, which may be management's.
    fn kill_store(&mut self) {
        let Some(host) = self.store else { return };
        self.tell("killed", host);
        self.world.kill(host);
        self.site.engine.kill();
        self.summary.kills += 1;
        self.let_pass(MAX_DEAD_MS);
        self.tell("started", host);
        self.start_store();
        self.start_management();
    }

    /// Much is late from now on, and connections break over it.
    fn slow_down(&mut self) {
        tracing::info!(clock_s = self.clock_s(), "the network is slow");
        let (slow_per_million, slow_ns) = (BAD_SLOW_PER_MILLION, BAD_SLOW_NS);
        self.world.set_network(NetworkOptions { slow_per_million, slow_ns, ..usual_network() });
    }

    fn kill_client(&mut self) {
        let index = self.below(self.clients.len() as u64) as usize;
        self.tell("killed", self.clients[index]);
        self.world.kill(self.clients[index]);
        self.summary.kills += 1;
        self.let_pass(MAX_DEAD_MS);
        self.tell("started", self.clients[index]);
        self.start_client(index);
    }

    fn repair(&mut self) {
        tracing::info!(clock_s = self.clock_s(), "repaired");
        self.world.set_network(usual_network());
        let hosts = self.all_hosts();
        for (index, &a) in hosts.iter().enumerate() {
            self.world.resume(a);
            hosts[index..].iter().for_each(|&b| self.world.heal(a, b));
        }
    }

    /// Now that everything works, operations must return again, and none may have taken too long.
    fn see_progress(&mut self) -> Result<(), String> {
        self.journal.calm.set(self.metas.len() > 1);
        self.world.advance(if self.metas.len() > 1 { RECOVERY_OF_SEVERAL } else { RECOVERY });
        let before = self.journal.returned.get();
        self.world.advance(PROGRESS);
        let returned = self.journal.returned.get() - before;
        let programs = self.options.clients * self.options.programs;
        if returned < u64::from(programs) {
            return Err(format!(
                "{returned} operations of {programs} programs returned within {PROGRESS:?} although all hosts work"
            ));
        }
        Ok(())
    }

    fn look_at_everything(&mut self) -> Result<(), String> {
        let (site, session, journal) = (self.site.clone(), self.new_session(), self.journal.clone());
        let (host, dirs, logs) = (self.clients[0], self.dirs(), self.logs());
        self.run_on(host, "looking at everything", async move {
            let client = Succession::of_one(site.client(session).await?);
            let program = Program { client, journal, host: 0, number: u32::MAX, writers: 1, dirs, logs };
            program.look_at_everything().await;
            Ok(())
        })
    }

    fn judge(&mut self) -> Result<HostsSummary, String> {
        let report = judge(&self.journal.records.borrow(), Limits::default());
        if !report.is_linearizable() {
            return Err(report.to_string());
        }
        let longest = Duration::from_nanos(self.journal.longest_ns.get());
        // A stopped process can't return; it is stopped for as long as other faults take.
        let (call, fault_ms) = match self.metas.len() {
            1 => (CALL_TIMEOUT, MAX_QUIET_MS + MAX_DEAD_MS),
            // A request waits until somebody executes its partition.
            _ => (NAMES_TIMEOUT + SEARCH_TIME, MAX_QUIET_MS + MAX_LONG_MS),
        };
        let limit = call * CALLS_PER_OPERATION + Duration::from_millis(fault_ms) * self.options.faults;
        if longest > limit {
            return Err(format!("an operation took {longest:?}, more than {limit:?}"));
        }
        self.summary.replaced = self.journal.replaced.get();
        self.summary.operations = self.journal.returned.get();
        self.summary.open = report.open as u64;
        self.summary.concurrent = report.concurrent as u64;
        self.summary.fingerprint = self.world.fingerprint();
        Ok(self.summary)
    }
}
