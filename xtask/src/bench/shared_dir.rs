//! Several clients create files concurrently: each in its own directory, and all in one.
//!
//! The cluster consists of a node in one process and a process per mount, on this machine. Both
//! cases alternate in one run, so that other activity of the machine affects both equally.

use super::node::{DEADLINE, Running, free_address, log_of};
use crate::build;
use crate::e2e::is_mounted;
use crate::process::{self, this_program};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longest duration of one measurement.
const ROUND_DEADLINE: Duration = Duration::from_secs(300);

/// Longer than the cool-down time of leases.
const SETTLING: Duration = Duration::from_millis(1500);

/// Options of `cargo xtask bench shared-dir`.
#[derive(clap::Args)]
pub struct Options {
    /// The binary to measure [default: the release build]
    #[arg(long)]
    weft: Option<PathBuf>,
    /// Mounts, each with one process that creates files.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Files per process and round.
    #[arg(long, default_value_t = 2000)]
    files: u32,
    /// Rounds; each measures both cases.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Protection of connections.
    #[arg(long, default_value = "plain", value_parser = ["tls", "authenticated", "plain"])]
    protection: String,
    /// Folder of the cluster's directories [default: the system's folder for temporary files]
    #[arg(long)]
    on: Option<PathBuf>,
    /// Let mounts use the same-host transport instead of TCP.
    #[arg(long)]
    on_host: bool,
    /// Then stay until standard input ends, to inspect the cluster.
    #[arg(long)]
    hold: bool,
}

/// Result of a round of one case.
struct Round {
    seconds: f64,
    server_cpu_s: f64,
    client_cpu_s: f64,
    /// Commands that the metadata service executed.
    commands: f64,
}

/// Runs the measurement and prints JSON for the median round of each case: rates in files per
/// second, CPU in microseconds per file, metadata commands per file. `share` is the rate in the
/// shared directory divided by the rate in separate directories.
pub fn run(options: &Options) -> Result<(), String> {
    let weft = match &options.weft {
        Some(weft) => weft.canonicalize().map_err(|error| format!("{}: {error}", weft.display()))?,
        None => build::weft(true)?,
    };
    let folder = options.on.clone().unwrap_or_else(std::env::temp_dir);
    let base = tempfile::tempdir_in(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let cluster = Cluster::start(&weft, base.path(), options)?;
    let (mut own, mut shared) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        own.push(cluster.measure(&format!("own-{round}"), options.files, |at| format!("dir-{at}"))?);
        shared.push(cluster.measure(&format!("shared-{round}"), options.files, |_| "dir".into())?);
    }
    let files = f64::from(options.files * options.clients);
    let (own, shared) = (summary(own, files), summary(shared, files));
    let share = shared["rate"].as_f64().unwrap_or(0.0) / own["rate"].as_f64().unwrap_or(f64::INFINITY);
    let all = json!({
        "clients": options.clients, "files": options.files, "rounds": options.rounds, "protection": options.protection, "on_host": options.on_host,
        "own_directories": own, "one_directory": shared, "share": (share * 1000.0).round() / 1000.0,
    });
    println!("{all:#}");
    if options.hold {
        let _ = std::io::read_to_string(std::io::stdin());
    }
    Ok(())
}

/// Returns the median of the rounds.
fn summary(mut rounds: Vec<Round>, files: f64) -> Value {
    rounds.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let rates: Vec<f64> = rounds.iter().map(|round| (files / round.seconds).round()).collect();
    let Some(middle) = rounds.get(rounds.len() / 2) else { return Value::Null };
    let us_per_file = |seconds: f64| (seconds * 1e7 / files).round() / 10.0;
    json!({
        "rate": (files / middle.seconds).round(), "rates": rates,
        "server_cpu_us": us_per_file(middle.server_cpu_s), "client_cpu_us": us_per_file(middle.client_cpu_s),
        "commands": (middle.commands * 100.0 / files).round() / 100.0,
    })
}

/// A node and its mounts.
struct Cluster {
    // The fields are dropped in this order.
    mounts: Vec<Running>,
    node: Running,
    weft: PathBuf,
    dir: PathBuf,
}

impl Cluster {
    fn start(weft: &Path, base: &Path, options: &Options) -> Result<Cluster, String> {
        let dir = base.join("node");
        let address = free_address()?;
        let command = |words: &[&str]| {
            let mut command = Command::new(weft);
            command.args(words).arg("--dir").arg(&dir);
            command
        };
        let done = |words: &[&str]| process::run_ok(&mut command(words), DEADLINE).map(drop);
        done(&[
            "cluster",
            "init",
            "--name",
            "bench",
            "--listen",
            &address,
            "--protection",
            &options.protection,
        ])?;
        done(&["target", "add", &base.join("target").to_string_lossy()])?;
        let child = Running::start(&mut command(&["serve"]), &base.join("node.log"))?;
        let node = Running::of(child, None);
        if !process::eventually(DEADLINE, || done(&["health"]).is_ok()) {
            return Err(format!("the node doesn't start: {}", log_of(&base.join("node.log"))));
        }
        let mut cluster = Cluster { mounts: Vec::new(), node, weft: weft.to_path_buf(), dir: dir.clone() };
        for at in 0..options.clients {
            let mount = base.join(format!("mount-{at}"));
            fs::create_dir(&mount).map_err(|error| format!("{}: {error}", mount.display()))?;
            let mut command = Command::new(weft);
            command.args(["mount", "--foreground"]).args((!options.on_host).then_some("--no-shared-memory"));
            command.arg(dir.join("client.toml")).arg(&mount);
            let log = base.join(format!("mount-{at}.log"));
            let child = Running::start(&mut command, &log)?;
            cluster.mounts.push(Running::of(child, Some(mount.clone())));
            if !process::eventually(DEADLINE, || is_mounted(&mount)) {
                return Err(format!("no mount at {}: {}", mount.display(), log_of(&log)));
            }
        }
        Ok(cluster)
    }

    fn mount(&self, at: usize) -> &Path {
        self.mounts[at].mount.as_deref().unwrap_or(Path::new("/"))
    }

    fn client_cpu_s(&self) -> f64 {
        self.mounts.iter().map(Running::cpu_s).sum()
    }

    fn commands(&self) -> Result<f64, String> {
        let mut command = Command::new(&self.weft);
        let done = process::run_ok(command.args(["status", "--json", "--dir"]).arg(&self.dir), DEADLINE)?;
        let status: Value = serde_json::from_str(&done.stdout).map_err(|error| error.to_string())?;
        status["counters"]["metadata_commands"].as_f64().ok_or_else(|| "status has no counters".into())
    }

    /// One process per mount creates `files` files in the directory given by `name`; all start at
    /// the same time.
    fn measure(&self, folder: &str, files: u32, name: impl Fn(usize) -> String) -> Result<Round, String> {
        let all = 0..self.mounts.len();
        let mut makers = Vec::new();
        for at in all.clone() {
            let dir = self.mount(at).join(folder).join(name(at));
            // The client that uses the directory creates it, as a job does.
            fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            let mut command = Command::new(this_program());
            command
                .args(["helper", "create", "--id", &at.to_string(), "--files", &files.to_string()])
                .arg(dir);
            let maker = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
            makers.push(maker.map_err(|error| format!("cannot start a process: {error}"))?);
        }
        // For one second, the service grants no leases on objects that several clients have just
        // changed. The parent folder isn't part of the measurement.
        thread::sleep(SETTLING);
        let before = (self.node.cpu_s(), self.client_cpu_s(), self.commands()?);
        let watch = Instant::now();
        // The end of standard input starts them.
        makers.iter_mut().for_each(|maker| drop(maker.stdin.take()));
        for maker in &mut makers {
            let ended = process::wait(maker, ROUND_DEADLINE).map_err(|error| error.to_string())?;
            if !ended.is_some_and(|status| status.success()) {
                makers.iter_mut().for_each(|maker| drop(maker.kill()));
                return Err(format!("{folder}: a process that creates files failed: {ended:?}"));
            }
        }
        let seconds = watch.elapsed().as_secs_f64();
        let (server_cpu_s, client_cpu_s) = (self.node.cpu_s() - before.0, self.client_cpu_s() - before.1);
        let commands = self.commands()? - before.2;
        for at in all {
            let dir = self.mount(at).join(folder).join(name(at));
            let made = fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?.count();
            if made == 0 {
                return Err(format!("{} is empty", dir.display()));
            }
        }
        Ok(Round { seconds, server_cpu_s, client_cpu_s, commands })
    }
}
