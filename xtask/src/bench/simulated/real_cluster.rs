//! The real cluster, and the throughput of programs on it.

use super::{Case, Options};
use crate::e2e::{Cluster, Part, Rng, Stage, TestResult, Traffic};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use types::Scheme;

/// Bytes of a program's file, which the program reads or writes cyclically.
const FILE_BYTES: u64 = 16 << 20;
/// Bytes per record.
pub(super) const RECORD_BYTES: u64 = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// Time before the measurement in which connections reach their rate.
const RAMP: Duration = Duration::from_secs(3);
/// Time within which programs start one by one.
const START_WITHIN: Duration = Duration::from_secs(1);
/// Pause between two attempts of a measurement.
const RETRY_PAUSE: Duration = Duration::from_secs(3);
/// Duration of the measurement of a link's rate.
const STREAM_FOR: Duration = Duration::from_secs(3);

/// Measured results of programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Real {
    /// Total throughput in bytes per second.
    pub(super) bytes_per_s: f64,
    /// Busy fraction of the machine's cores.
    pub(super) cores: f64,
    /// The most utilised link, and its utilisation.
    pub(super) busiest: (&'static str, f64),
}

/// A running cluster with slow links.
pub(super) struct RealCluster {
    cluster: Cluster,
    pub(super) servers: u8,
    clients: u8,
    server_mbit: u64,
    client_mbit: u64,
}

impl RealCluster {
    /// Starts a cluster whose links aren't limited yet.
    pub(super) fn start(stage: &Stage, servers: u8, options: &Options) -> TestResult<RealCluster> {
        let clients = options.clients.iter().copied().max().unwrap_or(1);
        let mut cluster = Cluster::start(stage, &format!("simulated-{servers}"), servers, clients)?;
        // Storage nodes create new connections, which use it.
        cluster.network.congestion_control(&options.congestion)?;
        (0..servers.into()).try_for_each(|index| cluster.restart(Part::Storage(index)))?;
        cluster.wait_until_healthy()?;
        let (server_mbit, client_mbit) = (options.server_mbit, options.client_mbit);
        Ok(RealCluster { cluster, servers, clients, server_mbit, client_mbit })
    }

    fn storage(&self) -> impl Iterator<Item = Part> {
        (0..usize::from(self.servers)).map(Part::Storage)
    }

    /// Returns all nodes with a slow link, and its capacity in Mbit/s with headers.
    fn links(&self) -> Vec<(Part, u64)> {
        let clients = (0..usize::from(self.clients)).map(|at| (Part::Client(at), self.client_mbit));
        self.storage().map(|part| (part, self.server_mbit)).chain(clients).collect()
    }

    /// Limits the links to the capacity used for programs, divided by `slower`.
    pub(super) fn limit(&self, slower: u64) -> TestResult {
        let limit = |(part, mbit): (Part, u64)| {
            self.cluster.network.limit(self.cluster.node(part), mbit * 1_000_000 / slower)
        };
        self.links().into_iter().try_for_each(limit)
    }

    fn unlimit(&self) -> TestResult {
        self.links()
            .into_iter()
            .try_for_each(|(part, _)| self.cluster.network.unlimit(self.cluster.node(part)))
    }

    /// Creates the files of a scheme's programs over unlimited links, and then limits the links.
    /// Returns the name of the files' folder.
    pub(super) fn fill(&self, scheme: Scheme, options: &Options) -> TestResult<String> {
        self.unlimit()?;
        let name = scheme.to_string().replace(':', "-");
        let folder = &self.cluster.shared_folder(&name)?[0];
        self.cluster.set_pattern(folder, &["--scheme", &scheme.to_string(), "--inline-limit", "0"])?;
        let programs = options.programs.iter().copied().max().unwrap_or(1);
        for client in 0..self.clients {
            for program in 0..programs {
                write_file(&folder.join(file_name(client, program)), FILE_BYTES / RECORD_BYTES)?;
            }
        }
        self.limit(1)?;
        Ok(name)
    }

    /// Creates one file that is spread evenly over all groups, with the given number of records per
    /// group. Returns the members of the groups.
    pub(super) fn fill_groups(
        &self,
        scheme: Scheme,
        stripes: &str,
        records: u64,
    ) -> TestResult<Vec<Vec<u64>>> {
        let folder = &self.cluster.shared_folder("lost")?[0];
        let scheme = scheme.to_string();
        self.cluster
            .set_pattern(folder, &["--scheme", &scheme, "--inline-limit", "0", "--stripe-count", stripes])?;
        let groups = self.cluster.members_of_groups()?;
        write_file(&folder.join("file"), records * groups.len() as u64)?;
        Ok(groups)
    }

    /// Returns the throughput of a connection from the first client to the first server over its
    /// slow link, in bytes per second: content without the overhead of protection.
    pub(super) fn stream(&self) -> TestResult<f64> {
        self.limit(1)?;
        let (server, client) = (self.cluster.node(Part::Storage(0)), self.cluster.node(Part::Client(0)));
        let listener = server.inside(|| TcpListener::bind((server.address, 0)))?;
        let listener = listener.map_err(|error| format!("{server}: {error}"))?;
        let port = listener.local_addr().map_err(|error| format!("{server}: {error}"))?.port();
        let connect = || TcpStream::connect((server.address, port));
        let sender = client.inside(connect)?.map_err(|error| format!("{client} to {server}: {error}"))?;
        let receiver = listener.accept().map_err(|error| format!("{server}: {error}"))?.0;
        let rate = thread::scope(|scope| {
            scope.spawn(|| send_for(sender, RAMP + STREAM_FOR));
            received_rate(receiver)
        });
        rate.map_err(|error| format!("{client} to {server}: {error}").into())
    }

    /// Returns the number of groups of which the first server has a member.
    pub(super) fn groups_of_first(&self, groups: &[Vec<u64>]) -> TestResult<u64> {
        let (target, _) = self.cluster.target_of(0)?;
        Ok(groups.iter().filter(|members| members.contains(&target)).count() as u64)
    }

    /// Configures the cluster to replace lost members soon.
    pub(super) fn replace_soon(&self) -> TestResult {
        self.cluster.replace_after("5s")
    }

    /// Kills the first server.
    pub(super) fn kill_one(&mut self) {
        self.cluster.kill_storage(0);
    }

    /// Kills the first server, and waits until the others continue without it, including the files
    /// of a folder: their first write may have to wait for that.
    pub(super) fn lose_one(&mut self, folder: &str) -> TestResult {
        self.kill_one();
        self.cluster.wait_until_degraded(0)?;
        for client in 0..self.clients {
            let here = self.cluster.mount(client.into()).join(folder);
            for file in fs::read_dir(&here).map_err(|error| format!("{}: {error}", here.display()))? {
                let path = file.map_err(|error| format!("{}: {error}", here.display()))?.path();
                write_record(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Restarts the first server, and waits until it is in sync.
    pub(super) fn restart_lost(&mut self) -> TestResult {
        self.unlimit()?;
        self.cluster.restart_storage(0)?;
        self.cluster.wait_until_in_sync()
    }

    /// Waits until others have replaced the first server.
    pub(super) fn wait_until_replaced(&self) -> TestResult {
        let (target, _) = self.cluster.target_of(0)?;
        self.cluster.wait_until_out_of_groups(target)
    }

    /// Returns the bytes carried by the links of all servers except the first.
    pub(super) fn traffic_of_remaining(&self) -> TestResult<Vec<Traffic>> {
        self.storage().skip(1).map(|part| self.cluster.node(part).traffic()).collect()
    }

    fn traffic(&self) -> TestResult<Vec<Traffic>> {
        self.links().into_iter().map(|(part, _)| self.cluster.node(part).traffic()).collect()
    }

    /// Runs the programs of a case concurrently. Repeats the measurement if other programs keep the
    /// machine's cores busy.
    pub(super) fn measure(&self, folder: &str, case: Case, options: &Options) -> TestResult<Real> {
        let mut real = self.measure_once(folder, case, options.seconds)?;
        for _ in 0..options.tries {
            if 100.0 * real.cores <= f64::from(options.busy) {
                break;
            }
            eprintln!("{:.0} % of the cores were busy: repeating the measurement", 100.0 * real.cores);
            thread::sleep(RETRY_PAUSE);
            real = self.measure_once(folder, case, options.seconds)?;
        }
        Ok(real)
    }

    fn measure_once(&self, folder: &str, case: Case, seconds: u64) -> TestResult<Real> {
        let (begin, seconds) = (Instant::now() + RAMP, Duration::from_secs(seconds));
        let programs =
            (0..case.clients).flat_map(|client| (0..case.programs).map(move |program| (client, program)));
        let one = |(client, program): (u8, u8)| {
            let path = self.cluster.mount(client.into()).join(folder).join(file_name(client, program));
            move || {
                // Without random delays, the programs would visit the servers in lockstep.
                let mut chance = Rng::new(u64::from(client) << 8 | u64::from(program));
                thread::sleep(START_WITHIN.mul_f64(chance.below(1000) as f64 / 1000.0));
                let first = chance.below(FILE_BYTES / RECORD_BYTES);
                let rate = program_rate(&path, case.writes, first, (begin, begin + seconds));
                rate.map_err(|error| format!("{}: {error}", path.display()))
            }
        };
        thread::scope(|scope| {
            let running: Vec<_> = programs.map(|program| scope.spawn(one(program))).collect();
            thread::sleep(begin.saturating_duration_since(Instant::now()));
            let (cores, carried, watch) = (Cores::now(), self.traffic()?, Instant::now());
            thread::sleep(seconds);
            let (cores, after, took) = (Cores::now().busy_since(cores), self.traffic()?, watch.elapsed());
            let mut bytes_per_s = 0.0;
            for program in running {
                bytes_per_s += program.join().map_err(|_| "a program panicked".to_string())??;
            }
            Ok(Real { bytes_per_s, cores, busiest: self.busiest(&carried, &after, took) })
        })
    }

    /// Returns the most utilised link.
    fn busiest(&self, before: &[Traffic], after: &[Traffic], took: Duration) -> (&'static str, f64) {
        let wires = self.links();
        let shares = wires.iter().zip(before.iter().zip(after)).map(|((part, mbit), (before, after))| {
            let bytes = (after.received - before.received).max(after.sent - before.sent);
            let kind = if matches!(part, Part::Client(_)) { "client" } else { "server" };
            let capacity = *mbit as f64 * 1e6 / 8.0;
            (kind, bytes as f64 / took.as_secs_f64() / capacity)
        });
        shares.max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or(("", 0.0))
    }

    pub(super) fn stop(self) -> TestResult {
        self.unlimit()?;
        self.cluster.stop()
    }
}

fn file_name(client: u8, program: u8) -> String {
    format!("client-{client}.{program}")
}

fn write_file(path: &Path, records: u64) -> TestResult {
    let record = Rng::new(1).bytes(RECORD_BYTES as usize);
    let write = || {
        let file = File::create(path)?;
        (0..records).try_for_each(|at| file.write_all_at(&record, at * RECORD_BYTES))?;
        file.sync_all()
    };
    write().map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Rewrites the first record.
fn write_record(path: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(&Rng::new(1).bytes(RECORD_BYTES as usize), 0)?;
    file.sync_all()
}

/// Sends for the given time; the receiver sees the end of the stream.
fn send_for(mut to: TcpStream, time: Duration) {
    let (end, bytes) = (Instant::now() + time, vec![1; 64 << 10]);
    while Instant::now() < end && to.write_all(&bytes).is_ok() {}
}

/// Returns the bytes per second received after the connection has reached its rate.
fn received_rate(mut from: TcpStream) -> std::io::Result<f64> {
    let (begin, mut buf, mut bytes) = (Instant::now() + RAMP, vec![0; 64 << 10], 0);
    let (mut first, mut last) = (None, begin);
    loop {
        let count = from.read(&mut buf)?;
        let now = Instant::now();
        if count == 0 || now > begin + STREAM_FOR {
            break;
        }
        if now >= begin {
            bytes += first.map_or(0, |_| count);
            first.get_or_insert(now);
            last = now;
        }
    }
    let seconds = last.duration_since(first.unwrap_or(last)).as_secs_f64();
    Ok(bytes as f64 / seconds.max(f64::MIN_POSITIVE))
}

/// Writes or reads a file cyclically past the cache, record by record, from a given record on.
/// Returns bytes per second in the measured interval. A record that overlaps the interval's borders
/// counts by the fraction of its duration inside.
fn program_rate(
    path: &Path,
    writes: bool,
    first: u64,
    (from, to): (Instant, Instant),
) -> std::io::Result<f64> {
    let file = File::options().read(true).write(writes).custom_flags(libc::O_DIRECT).open(path)?;
    // Page-aligned: the kernel splits unaligned data into two sequential requests, and the second
    // one, of a few bytes, waits behind other programs' records.
    let mut memory = Rng::new(2).bytes(RECORD_BYTES as usize + PAGE_BYTES);
    let start = memory.as_ptr().align_offset(PAGE_BYTES);
    let record = &mut memory[start..start + RECORD_BYTES as usize];
    let mut records = 0.0;
    for at in first.. {
        let offset = at * RECORD_BYTES % FILE_BYTES;
        let begun = Instant::now();
        if begun >= to {
            break;
        }
        match writes {
            true => file.write_all_at(record, offset)?,
            false => file.read_exact_at(record, offset)?,
        }
        let ended = Instant::now();
        let inside = ended.min(to).saturating_duration_since(begun.max(from));
        records += inside.as_secs_f64() / (ended - begun).as_secs_f64().max(f64::MIN_POSITIVE);
    }
    Ok(records * RECORD_BYTES as f64 / (to - from).as_secs_f64())
}

/// Activity of the machine's cores, in ticks.
#[derive(Clone, Copy)]
struct Cores {
    busy: f64,
    all: f64,
}

impl Cores {
    fn now() -> Cores {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let first = text.lines().next().unwrap_or("");
        let ticks: Vec<f64> =
            first.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
        let all: f64 = ticks.iter().sum();
        // Low-priority programs, which yield to others, also count as idle.
        let idle: f64 = [1, 3, 4].iter().filter_map(|at| ticks.get(*at)).sum();
        Cores { busy: all - idle, all }
    }

    fn busy_since(self, before: Cores) -> f64 {
        (self.busy - before.busy) / (self.all - before.all).max(1.0)
    }
}
