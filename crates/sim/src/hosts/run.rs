//! One run: a cluster, its workload, and faults.

use super::faults::{MAX_DOWN_MS, MAX_FAULT_INTERVAL_MS, MAX_LONG_FAULT_MS, skew_clock, usual_network};
use super::load::{Application, HistoryRecorder, RecordSize, prepare};
use super::management::ManagementState;
use super::node_process::METADATA_TIMEOUT;
use super::process::{CALL_TIMEOUT, HostsCluster, RESTART_PAUSE, set_pattern};
use super::replicas::{self, Replicas};
use crate::command::{PrintOnPanic, Replay, Simulation};
use client::SessionFailover;
use history::{Event, Limits, Record, judge};
use kv::Memory;
use rt::sim::{HostId, World};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use types::{ClusterMap, Scheme, SessionId, TargetId};

/// Maximum number of sequential calls per operation; each may take its full time-out.
const CALLS_PER_OPERATION: u32 = 8;
/// Time limit of the cluster's start, and of each other inspection step.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Time for recovery after all faults are repaired.
const RECOVERY: Duration = Duration::from_secs(15);
/// Time within which each application must then make progress. A restarted metadata service waits
/// 15 s for known clients, and may have to evict missing ones before others can continue.
const PROGRESS: Duration = Duration::from_secs(40);

/// With several metadata services: number of directories over which names and files are spread,
/// more than partitions.
const DIRECTORIES: u64 = 6;
/// Time for recovery with several metadata services. A service that was counted as offline gets
/// partitions back. A service that adopts partitions waits up to 15 s for sessions, and up to 15 s
/// more to evict missing ones.
const RECOVERY_OF_SEVERAL: Duration = Duration::from_secs(60);
/// Longest time until mirrored groups are in sync without faults, and the interval of the checks.
const SYNC_LIMIT: Duration = Duration::from_secs(300);
const SYNC_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Time within which remaining background work finishes after the applications have ended.
const SETTLE_TIME: Duration = Duration::from_secs(30);
/// Longest time that a client searches for a service that executes a partition.
const SEARCH_TIME: Duration = Duration::from_secs(60);

/// Parameters of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostsOptions {
    /// Number of clients, each on its own host.
    pub clients: u32,
    /// Applications per client.
    pub applications: u32,
    /// Number of storage hosts.
    pub storages: usize,
    /// Number of racks; storage hosts and clients are assigned to them round-robin. 0: racks are
    /// unknown. Racks matter only for mirrored files.
    pub racks: usize,
    /// Number of metadata hosts. With more than one, a management host moves partitions between
    /// them and holds their shared store.
    pub metas: u32,
    /// Number of faults.
    pub faults: u32,
    /// Whether clients write each other's blocks.
    pub shared_writes: bool,
    /// Whether files are created as holes, so that their chunks are allocated while other clients
    /// have them open.
    pub holes: bool,
    /// Whether the metadata service's process also crashes.
    pub metas_crash: bool,
    /// Whether clients also crash.
    pub clients_crash: bool,
    /// Whether the store of a single metadata host is on a separate host, whose process also
    /// crashes. The store of several metadata hosts is always on a separate host.
    pub separate_store: bool,
    /// Whether and how storage hosts also lose power.
    pub power_cuts: PowerCuts,
    /// Whether the host of the store also loses power.
    pub store_power: bool,
    /// Redundancy of files. Mirrored files need a management host, as several metadata hosts do.
    pub scheme: Scheme,
    /// Whether targets report what may differ between replicas, from their intent logs. Without it,
    /// runs with mirrored files fail, which proves that the report is necessary and that the checks
    /// work.
    pub reports_differences: bool,
    /// Whether clients use write-behind: an append is certain only after a flush.
    pub write_behind: bool,
    /// Whether applications append records that span several chunks. A record whose append never
    /// returned may be found in part.
    pub long_records: bool,
    /// Whether faults target mirrored groups during a resync: the only in-sync member loses power,
    /// and further faults follow.
    pub faults_during_resync: bool,
    /// Whether the processes of all services crash at once, and again before clients have
    /// recovered. Requests then have a longer time-out.
    pub kill_all: bool,
    /// Whether a metadata service and a client are cut off from management together, for long
    /// enough that management counts the service as offline, while they reach each other.
    pub cut_off_pairs: bool,
}

/// How storage hosts lose power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PowerCuts {
    /// Never: only their processes crash.
    Never,
    /// Power failures replace process crashes, although applications don't sync. Runs then fail,
    /// which proves that the checks work.
    Unsynced,
    /// Any host at any time, or only its process crashes. Applications sync everything that they
    /// write.
    Synced,
    /// Like `Synced`, but applications call fsync after each write. They don't read unsynced data,
    /// which may disappear.
    Fsynced,
    /// Mirrored groups: one host at a time, while the others are in sync. Applications don't sync,
    /// and nothing may be lost.
    OneAtATime,
}

impl PowerCuts {
    /// All variants with their names.
    pub const ALL: [(&str, PowerCuts); 5] = [
        ("never", PowerCuts::Never),
        ("unsynced", PowerCuts::Unsynced),
        ("synced", PowerCuts::Synced),
        ("fsynced", PowerCuts::Fsynced),
        ("one-at-a-time", PowerCuts::OneAtATime),
    ];
}

impl fmt::Display for PowerCuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PowerCuts::ALL.iter().find(|(_, how)| how == self).map_or("", |(name, _)| name))
    }
}

impl FromStr for PowerCuts {
    type Err = String;

    fn from_str(text: &str) -> Result<PowerCuts, String> {
        let known = PowerCuts::ALL.iter().find(|(name, _)| *name == text);
        known.map(|(_, how)| *how).ok_or_else(|| {
            let names = PowerCuts::ALL.map(|(name, _)| name).join(", ");
            format!("{text:?} is not one of: {names}")
        })
    }
}

impl Default for HostsOptions {
    fn default() -> HostsOptions {
        HostsOptions {
            clients: 1,
            applications: 3,
            storages: 3,
            racks: 0,
            metas: 1,
            faults: 30,
            shared_writes: false,
            holes: false,
            metas_crash: true,
            clients_crash: true,
            separate_store: false,
            store_power: false,
            power_cuts: PowerCuts::Never,
            scheme: Scheme::Single,
            reports_differences: true,
            write_behind: false,
            long_records: false,
            faults_during_resync: false,
            kill_all: false,
            cut_off_pairs: false,
        }
    }
}

/// Summary of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostsSummary {
    /// Operations that returned.
    pub operations: u64,
    /// Changes with an unknown outcome.
    pub open: u64,
    /// Operations that overlapped with another one on the same object.
    pub concurrent: u64,
    /// Process crashes.
    pub kills: u64,
    /// Sessions that replaced one that the cluster had ended.
    pub replaced: u64,
    /// Network cuts and other faults.
    pub cuts: u64,
    /// Commits that the store's host lost in power failures.
    pub lost_commits: u64,
    /// Chunk files of mirrored groups whose replicas were compared.
    pub copies: u64,
    /// A digest of all decisions, messages, writes and results; identical runs have the same
    /// digest.
    pub fingerprint: u64,
}

/// A violation of the guarantees.
#[derive(Clone, Debug)]
pub struct HostsViolation {
    /// Seed of the run.
    pub seed: u64,
    /// Parameters of the run.
    pub options: HostsOptions,
    /// Number of steps that the scheduler had executed.
    pub step: u64,
    /// What was violated.
    pub cause: String,
}

impl fmt::Display for HostsViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, step {}: {}", self.seed, self.step, self.cause)?;
        write!(f, "to replay: {}", replay(self.seed, self.options))
    }
}

fn replay(seed: u64, options: HostsOptions) -> Replay {
    Replay { seed, simulation: Simulation::Hosts(options) }
}

pub(super) struct Run {
    pub(super) options: HostsOptions,
    pub(super) world: World,
    pub(super) metas: Vec<HostId>,
    pub(super) management: Option<HostId>,
    pub(super) storages: Vec<HostId>,
    pub(super) clients: Vec<HostId>,
    /// The host of the store, if it isn't the metadata host: management's host, or a host that
    /// serves nothing else.
    pub(super) store: Option<HostId>,
    pub(super) cluster: HostsCluster,
    pub(super) recorder: Rc<HistoryRecorder>,
    next_session: u64,
    /// Metadata hosts whose messages to clients are blocked until the hosts have restarted.
    pub(super) cut_off_metas: BTreeSet<usize>,
    pub(super) summary: HostsSummary,
}

/// Runs one seed.
///
/// # Errors
/// Returns the first violation.
pub fn run_hosts_seed(seed: u64, options: HostsOptions) -> Result<HostsSummary, Box<HostsViolation>> {
    let _shown = PrintOnPanic(replay(seed, options));
    let mut run = Run::new(seed, options);
    run.all().map_err(|cause| Box::new(HostsViolation { seed, options, step: run.world.steps(), cause }))
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
        let has_management = options.metas > 1 || options.scheme.has_primary();
        let management = has_management.then(|| world.add_host("management"));
        if has_management {
            let all = metas.iter().chain(&storages).chain(&clients).chain(&management);
            all.copied().collect::<Vec<_>>().into_iter().for_each(|host| skew_clock(&mut world, host));
        }
        // Added last, so that the other hosts are the same without it. With several metadata
        // services the store is on management's host.
        let store = management.or_else(|| options.separate_store.then(|| world.add_host("store")));
        let management_state =
            management.map(|host| ManagementState { ip: world.ip(host), engine: Arc::new(Memory::new()) });
        let cluster = HostsCluster {
            engine: Arc::new(Memory::new()),
            meta_ips: metas.iter().map(|host| world.ip(*host)).collect(),
            management_state,
            store_ip: store.map(|host| world.ip(host)),
            storage_ips: storages.iter().map(|host| world.ip(*host)).collect(),
            dirty_at_start: Arc::default(),
            racks: options.racks,
            scheme: options.scheme,
            reports_differences: options.reports_differences,
            write_behind: options.write_behind,
            client_timeout: if options.scheme.has_primary() || options.kill_all {
                METADATA_TIMEOUT
            } else {
                CALL_TIMEOUT
            },
            services_to_restart: Arc::default(),
            metas_with_store: Arc::default(),
            unregistered: Arc::default(),
        };
        Run {
            options,
            world,
            metas,
            management,
            storages,
            clients,
            store,
            cluster,
            recorder: Rc::default(),
            next_session: 1,
            cut_off_metas: BTreeSet::new(),
            summary: HostsSummary::default(),
        }
    }

    fn all(&mut self) -> Result<HostsSummary, String> {
        self.make_cluster()?;
        for index in 0..self.clients.len() {
            self.start_client(index);
        }
        for _ in 0..self.options.faults {
            self.advance_up_to(MAX_FAULT_INTERVAL_MS);
            self.inject_fault()?;
        }
        self.repair();
        self.ensure_progress()?;
        self.await_in_sync()?;
        self.recorder.stop.set(true);
        self.advance(CALL_TIMEOUT * CALLS_PER_OPERATION);
        self.read_everything()?;
        self.compare_replicas()?;
        self.judge()
    }

    /// Runs a future on a host to completion. Fails after [`START_LIMIT`].
    pub(super) fn run_on<T: 'static>(
        &mut self,
        host: HostId,
        what: &str,
        future: impl Future<Output = types::Result<T>> + 'static,
    ) -> Result<T, String> {
        self.run_limited(host, what, async move { rt::timeout(START_LIMIT, future).await })
    }

    /// Runs a future on a host that returns `None` when a wait exceeds [`START_LIMIT`].
    fn run_limited<T: 'static>(
        &mut self,
        host: HostId,
        what: &str,
        limited: impl Future<Output = Option<types::Result<T>>> + 'static,
    ) -> Result<T, String> {
        let ended = self.world.run(host, limited).map_err(|deadlock| format!("{what}: {deadlock}"))?;
        let result = ended.ok_or_else(|| format!("{what} takes longer than {START_LIMIT:?}"))?;
        result.map_err(|error| format!("{what}: {error}"))
    }

    fn make_cluster(&mut self) -> Result<(), String> {
        let scheme = self.options.scheme;
        for index in 0..self.storages.len() {
            if !scheme.has_primary() {
                let format = self.cluster.clone().format(index);
                self.run_on(self.storages[index], "making targets", format)?;
            }
            self.start_storage(index);
        }
        self.start_store();
        self.start_management();
        if scheme.has_primary() {
            let cluster = self.cluster.clone();
            self.run_on(self.clients[0], "making groups", async move { cluster.make_groups().await })?;
        }
        (0..self.metas.len()).for_each(|index| self.start_meta(index));
        let (cluster, session, holes) = (self.cluster.clone(), self.new_session(), self.options.holes);
        let (dirs, durable) = (self.dirs(), self.syncs_writes());
        self.run_on(self.clients[0], "making files", async move {
            let client = loop {
                match cluster.client(session).await {
                    Ok(client) => break client,
                    // The metadata services are starting.
                    Err(_) => rt::sleep(RESTART_PAUSE).await,
                }
            };
            set_pattern(&client, scheme).await?;
            prepare(&client, dirs, holes, durable).await?;
            client.shutdown().await
        })
    }

    pub(super) fn start_storage(&mut self, index: usize) {
        let serve = self.cluster.clone().serve_storage(index);
        self.cluster.mark_unregistered(index);
        self.world.spawn(self.storages[index], async move {
            let Err(error) = serve.await else { return };
            panic!("storage host {index} doesn't start: {error}");
        });
    }

    pub(super) fn start_store(&mut self) {
        let (Some(host), Some(ip), None) = (self.store, self.cluster.store_ip, self.management) else {
            return;
        };
        let serve = self.cluster.clone().serve_store(ip);
        self.world.spawn(host, async move {
            let Err(error) = serve.await else { return };
            panic!("the store's host doesn't start: {error}");
        });
    }

    pub(super) fn start_meta(&mut self, index: usize) {
        let cluster = self.cluster.clone();
        if self.management.is_none() {
            return self.world.spawn(self.metas[index], cluster.serve_meta());
        }
        self.world.spawn(self.metas[index], async move {
            let Err(error) = cluster.serve_metadata_node(index).await else { return };
            panic!("metadata host {index} doesn't start: {error}");
        });
    }

    pub(super) fn start_management(&mut self) {
        let Some(host) = self.management else { return };
        let serve = self.cluster.clone().serve_management();
        self.world.spawn(host, async move {
            let Err(error) = serve.await else { return };
            panic!("management doesn't start: {error}");
        });
    }

    /// Returns the number of directories over which names and files are spread; 0: all are in the
    /// root directory.
    fn dirs(&self) -> u64 {
        if self.management.is_some() { DIRECTORIES } else { 0 }
    }

    /// Whether applications append to logs.
    fn uses_logs(&self) -> bool {
        self.management.is_some() || self.options.long_records
    }

    fn record_size(&self) -> RecordSize {
        if self.options.long_records { RecordSize::Long } else { RecordSize::Short }
    }

    /// Whether applications sync their writes.
    fn syncs_writes(&self) -> bool {
        matches!(self.options.power_cuts, PowerCuts::Synced | PowerCuts::Fsynced)
    }

    /// Returns the number of applications that partition the blocks among them and fsync each
    /// write; 0 in the other modes.
    fn exclusive_applications(&self) -> u32 {
        let calls_fsync = self.options.power_cuts == PowerCuts::Fsynced;
        if calls_fsync { self.options.clients * self.options.applications } else { 0 }
    }

    fn new_session(&mut self) -> SessionId {
        self.next_session += 1;
        SessionId(self.next_session)
    }

    pub(super) fn start_client(&mut self, index: usize) {
        let (cluster, recorder) = (self.cluster.clone(), self.recorder.clone());
        let applications = self.options.applications;
        let writers = if self.options.shared_writes { 1 } else { self.options.clients };
        let (dirs, logs, records, durable) =
            (self.dirs(), self.uses_logs(), self.record_size(), self.syncs_writes());
        let behind = self.options.write_behind;
        let (owners, first) = (self.exclusive_applications(), index as u32 * applications);
        self.world.spawn(self.clients[index], async move {
            let mount = loop {
                match cluster.mount().await {
                    Ok(mount) => break mount,
                    // The metadata service may be down.
                    Err(_) => rt::sleep(RESTART_PAUSE).await,
                }
            };
            let application = |number| {
                let (client, recorder) = (mount.clone(), recorder.clone());
                let owns = (owners > 0).then_some((first + number, owners));
                Application {
                    client,
                    recorder,
                    host: index as u32,
                    number,
                    writers,
                    exclusive_share: owns,
                    dirs,
                    uses_logs: logs,
                    record_size: records,
                    syncs_writes: durable,
                    write_behind: behind,
                }
                .run()
            };
            rt::join_all((0..applications).map(application).collect()).await;
        });
    }

    /// Checks, after all faults are repaired, that operations return and that none has taken too
    /// long.
    fn ensure_progress(&mut self) -> Result<(), String> {
        self.recorder.long_pauses.set(self.management.is_some());
        self.advance(if self.management.is_some() { RECOVERY_OF_SEVERAL } else { RECOVERY });
        let before = self.recorder.returned.get();
        self.advance(PROGRESS);
        let returned = self.recorder.returned.get() - before;
        let applications = self.options.clients * self.options.applications;
        if returned < u64::from(applications) {
            return Err(format!(
                "only {returned} operations of {applications} applications returned within {PROGRESS:?} without faults"
            ));
        }
        Ok(())
    }

    /// Reads everything. A long run leaves many files, so the limit applies to the time without any
    /// progress.
    fn read_everything(&mut self) -> Result<(), String> {
        let (cluster, session, recorder) = (self.cluster.clone(), self.new_session(), self.recorder.clone());
        let (dirs, logs, records) = (self.dirs(), self.uses_logs(), self.record_size());
        let limited = async move {
            let client = match rt::timeout(START_LIMIT, cluster.client(session)).await? {
                Ok(client) => SessionFailover::single(client),
                Err(error) => return Some(Err(error)),
            };
            let (number, writers, durable, behind) = (u32::MAX, 1, false, false);
            let seen = recorder.clone();
            let application = Application {
                client,
                recorder,
                host: 0,
                number,
                writers,
                exclusive_share: None,
                dirs,
                uses_logs: logs,
                record_size: records,
                syncs_writes: durable,
                write_behind: behind,
            };
            let mut reading = pin!(application.read_everything());
            loop {
                let before = seen.returned.get();
                if rt::timeout(START_LIMIT, reading.as_mut()).await.is_some() {
                    return Some(Ok(()));
                }
                if seen.returned.get() == before {
                    return None;
                }
            }
        };
        self.run_limited(self.clients[0], "reading everything", limited)
    }

    /// Returns management's current map.
    pub(super) fn management_map(&mut self) -> Result<Arc<ClusterMap>, String> {
        let cluster = self.cluster.clone();
        self.run_on(self.clients[0], "asking management", cluster.map_of_management())
    }

    /// Waits until all members are in sync. No faults are active meanwhile.
    pub(super) fn await_in_sync(&mut self) -> Result<(), String> {
        if !self.options.scheme.has_primary() {
            return Ok(());
        }
        let end_ns = self.world.clock_ns() + SYNC_LIMIT.as_nanos() as u64;
        loop {
            // The map counts the members of a host as in sync until its new process has registered.
            let unregistered = self.cluster.unregistered();
            let map = self.management_map()?;
            let missing = match unregistered.first() {
                Some(index) => Some(format!("storage host {index} hasn't registered")),
                None => replicas::describe_out_of_sync(&map),
            };
            let Some(missing) = missing else { return Ok(()) };
            if self.world.clock_ns() > end_ns {
                return Err(format!(
                    "after {SYNC_LIMIT:?} in which all hosts worked, not in sync: {missing}"
                ));
            }
            self.advance(SYNC_CHECK_INTERVAL);
        }
    }

    /// Checks that no two members are in one rack, if there are enough racks.
    fn ensure_rack_separation(&self, map: &ClusterMap) -> Result<(), String> {
        if self.options.racks < self.options.scheme.members() {
            return Ok(());
        }
        for group in map.groups.iter().filter(|group| group.scheme.has_primary()) {
            let rack = |id: &TargetId| map.node(map.target(*id)?.node)?.rack.clone();
            let racks: BTreeSet<Option<String>> = group.members.iter().map(rack).collect();
            if racks.len() < group.members.len() || racks.contains(&None) {
                return Err(format!("group {} has members in the same rack: racks {racks:?}", group.id));
            }
        }
        Ok(())
    }

    /// Checks that all replicas are identical. The applications have ended.
    fn compare_replicas(&mut self) -> Result<(), String> {
        if !self.options.scheme.has_primary() {
            return Ok(());
        }
        self.advance(SETTLE_TIME);
        self.await_in_sync()?;
        let map = self.management_map()?;
        self.ensure_rack_separation(&map)?;
        let mut all: BTreeMap<TargetId, Replicas> = BTreeMap::new();
        for host in self.storages.clone() {
            let name = self.world.name(host);
            let (target, copies) = self.run_on(host, "reading copies", replicas::read_local_replicas())?;
            all.insert(target, copies);
            // The process must not run while its checksums are checked.
            self.world.kill(host);
            let wrong = self.run_on(host, "checking copies", replicas::local_checksum_mismatches())?;
            if !wrong.is_empty() {
                return Err(format!("{name}: checksums don't match: {}", wrong.join(", ")));
            }
        }
        self.summary.copies = replicas::compare(&map, &all)?;
        Ok(())
    }

    fn judge(&mut self) -> Result<HostsSummary, String> {
        let mut records = self.recorder.records.borrow().clone();
        if self.syncs_writes() || self.options.long_records {
            drop_allowed_torn_reads(&mut records);
        }
        let report = judge(&records, Limits::default());
        if !report.is_linearizable() {
            return Err(report.to_string());
        }
        let longest = Duration::from_nanos(self.recorder.longest_ns.get());
        // A paused process can't return; a pause lasts as long as other faults.
        let (call, fault_ms) = match self.management {
            None if !self.options.kill_all => (CALL_TIMEOUT, MAX_FAULT_INTERVAL_MS + MAX_DOWN_MS),
            // A request waits until a service executes its partition.
            _ => (METADATA_TIMEOUT + SEARCH_TIME, MAX_FAULT_INTERVAL_MS + MAX_LONG_FAULT_MS),
        };
        let limit = call * CALLS_PER_OPERATION + Duration::from_millis(fault_ms) * self.options.faults;
        if longest > limit {
            return Err(format!("an operation took {longest:?}, more than {limit:?}"));
        }
        self.summary.replaced = self.recorder.replaced.get();
        self.summary.operations = self.recorder.returned.get();
        self.summary.open = report.uncertain as u64;
        self.summary.concurrent = report.concurrent as u64;
        let answers = types::crc32c(format!("{records:?}").as_bytes());
        self.summary.fingerprint = self.world.fingerprint() ^ u64::from(answers);
        Ok(self.summary)
    }
}

/// Drops torn reads that are allowed. A write that never returned may be on disk in part if the
/// power failed or its client crashed.
fn drop_allowed_torn_reads(records: &mut Vec<Record>) {
    let is_open = |record: &Record, value: u64| {
        record.returned_ns.is_none()
            && matches!(record.event, Event::Write { value: v } | Event::Append { record: v } if v == value)
    };
    let open_logs: Vec<String> = records
        .iter()
        .filter(|record| record.returned_ns.is_none() && matches!(record.event, Event::Append { .. }))
        .map(|record| record.object.clone())
        .collect();
    let is_allowed_torn_read = |record: &Record| match &record.event {
        Event::TornRead { values, .. } => {
            values.iter().any(|value| records.iter().any(|other| is_open(other, *value)))
        }
        Event::TornLog { .. } => open_logs.contains(&record.object),
        _ => false,
    };
    let allowed: Vec<bool> = records.iter().map(is_allowed_torn_read).collect();
    let mut allowed = allowed.into_iter();
    records.retain(|_| !allowed.next().unwrap_or(false));
}
