//! The speed of a resync of a mirrored group's member to another target, and its impact on
//! applications.
//!
//! Three storage nodes and a mount run as one process each on this machine. A node is killed, and
//! its data is resynced to another one at the cluster's default throttle, while fio runs on the
//! same files. Then all bytes of one live target move to another one, three times: with fio at that
//! throttle, without fio, and without a throttle. The ceiling is the rate at which one program
//! writes to an unmirrored file: both read, checksum, send and write each byte.

use super::node::{DEADLINE, Running, free_address, log_of};
use crate::build;
use crate::e2e::is_mounted;
use crate::process;
use crate::sys;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest duration of a resync.
const REBUILD_DEADLINE: Duration = Duration::from_secs(600);

/// Bytes per write.
const WRITE_BYTES: usize = 1 << 20;

/// Number of files that contain the moved data.
const FILES: u64 = 8;

/// Time that a node is down before others replace it.
const REPLACED_AFTER: &str = "5s";

/// A rate above any hardware: no throttle.
const NO_THROTTLE: &str = "1TiB";

/// Options of `cargo xtask bench rebuild`.
#[derive(clap::Args)]
pub struct Options {
    /// The binary to measure [default: the release build]
    #[arg(long)]
    weft: Option<PathBuf>,
    /// MiB to move.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    mib: u64,
    /// Seconds of each fio measurement; the throttled resync must take longer.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(2..=60))]
    seconds: u64,
    /// Throttle per member and second in the throttled rounds, such as 100MiB [default: the
    /// cluster's default]
    #[arg(long)]
    rate: Option<String>,
    /// Protection of connections.
    #[arg(long, default_value = "plain", value_parser = ["tls", "authenticated", "plain"])]
    protection: String,
    /// Folder of the cluster's directories [default: the system's folder for temporary files]
    #[arg(long)]
    on: Option<PathBuf>,
}

/// Runs the measurement and prints JSON: rates in MiB per second. `loss` is the relative loss of
/// fio during the resync, compared with before and after.
pub fn run(options: &Options) -> Result<(), String> {
    let weft = match &options.weft {
        Some(weft) => weft.canonicalize().map_err(|error| format!("{}: {error}", weft.display()))?,
        None => build::weft(true)?,
    };
    let folder = options.on.clone().unwrap_or_else(std::env::temp_dir);
    let base = tempfile::tempdir_in(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut cluster = Cluster::start(&weft, base.path(), &options.protection)?;
    let ceiling = cluster.one_stream("single", options.mib / 4)?;
    cluster.fill(options.mib)?;
    if let Some(rate) = &options.rate {
        cluster.manage(&["group", "resync", "set", "--rate", rate])?;
    }
    cluster.add_storage("c")?;
    let whole = cluster.fio(options.seconds)?;
    let lost = cluster.fio_during_node_loss(options.seconds)?;
    let before = cluster.fio(options.seconds)?;
    let begun = cluster.move_from("3")?;
    let beside = cluster.fio_during_rebuild(options.seconds)?;
    cluster.until_moved("3", begun)?;
    let after = cluster.fio(options.seconds)?;
    // From the command until the target has left its last group, which happens after that group is
    // in sync.
    let rate = |took: Duration| options.mib as f64 / took.as_secs_f64();
    let throttled = rate(cluster.until_moved("4", cluster.move_back("3", "4")?)?);
    cluster.manage(&["group", "resync", "set", "--rate", NO_THROTTLE])?;
    let free = rate(cluster.until_moved("3", cluster.move_back("4", "3")?)?);
    let loss = |beside: f64, alone: [f64; 2]| 1.0 - 2.0 * beside / (alone[0] + alone[1]);
    let rounded = |value: f64, digits: f64| (value * digits).round() / digits;
    let all = json!({
        "mib": options.mib, "protection": options.protection, "throttle": options.rate.as_deref().unwrap_or("default"),
        "ceiling": ceiling.round(), "rebuild_throttled": throttled.round(), "rebuild": free.round(), "share": rounded(free / ceiling, 100.0),
        "fio_alone": [whole.round(), before.round(), after.round()],
        "fio_beside_replacement": lost.round(), "loss_beside_replacement": rounded(loss(lost, [whole, before]), 100.0),
        "fio_beside_move": beside.round(), "loss_beside_move": rounded(loss(beside, [before, after]), 100.0),
    });
    println!("{all:#}");
    Ok(())
}

/// A management node, storage nodes, and a mount.
struct Cluster {
    // The fields are dropped in this order.
    mount: Option<Running>,
    nodes: Vec<Running>,
    weft: PathBuf,
    base: PathBuf,
    protection: String,
}

impl Cluster {
    fn start(weft: &Path, base: &Path, protection: &str) -> Result<Cluster, String> {
        let mut cluster = Cluster {
            mount: None,
            nodes: Vec::new(),
            weft: weft.to_path_buf(),
            base: base.to_path_buf(),
            protection: protection.to_string(),
        };
        let address = free_address()?;
        cluster.at(
            "m",
            &["cluster", "init", "--name", "bench", "--listen", &address, "--protection", protection],
        )?;
        cluster.serve("m")?;
        cluster.add_storage("a")?;
        cluster.add_storage("b")?;
        let mount = base.join("mount");
        fs::create_dir(&mount).map_err(|error| format!("{}: {error}", mount.display()))?;
        let log = base.join("mount.log");
        let mut command = Command::new(weft);
        command.args(["mount", "--foreground", "--no-shared-memory"]);
        let child = Running::start(command.arg(cluster.dir("m").join("client.toml")).arg(&mount), &log)?;
        cluster.mount = Some(Running::of(child, Some(mount.clone())));
        if !process::eventually(DEADLINE, || is_mounted(&mount)) {
            return Err(format!("no mount at {}: {}", mount.display(), log_of(&log)));
        }
        cluster.folder("single", "single")?;
        cluster.folder("mirrored", "mirror:2")?;
        Ok(cluster)
    }

    fn dir(&self, node: &str) -> PathBuf {
        self.base.join(node)
    }

    fn at(&self, node: &str, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.weft);
        command.args(words).arg("--dir").arg(self.dir(node));
        Ok(process::run_ok(&mut command, DEADLINE)?.stdout)
    }

    fn manage(&self, words: &[&str]) -> Result<String, String> {
        self.at("m", words)
    }

    fn serve(&mut self, node: &str) -> Result<(), String> {
        let log = self.base.join(format!("{node}.log"));
        let child =
            Running::start(Command::new(&self.weft).arg("serve").arg("--dir").arg(self.dir(node)), &log)?;
        self.nodes.push(Running::of(child, None));
        if !process::eventually(DEADLINE, || self.at(node, &["status"]).is_ok()) {
            return Err(format!("node {node} doesn't start: {}", log_of(&log)));
        }
        Ok(())
    }

    fn add_storage(&mut self, node: &str) -> Result<(), String> {
        let token = self.manage(&["cluster", "token"])?;
        let (address, target) = (free_address()?, self.base.join(format!("target-{node}")));
        self.at(
            node,
            &[
                "node",
                "join",
                token.trim(),
                "--listen",
                &address,
                "--name",
                node,
                "--roles",
                "storage",
                "--protection",
                &self.protection,
            ],
        )?;
        self.at(node, &["target", "add", &target.to_string_lossy()])?;
        self.serve(node)
    }

    fn folder(&self, name: &str, scheme: &str) -> Result<(), String> {
        let path = self.base.join("mount").join(name);
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut command = Command::new(&self.weft);
        command.args(["entry", "set-pattern", "--scheme", scheme]).arg(&path);
        process::run_ok(&mut command, DEADLINE).map(drop)
    }

    /// Writes a file past the page cache. Returns MiB per second.
    fn one_stream(&self, name: &str, mib: u64) -> Result<f64, String> {
        let path = self.base.join("mount/single").join(name);
        let rate = write_file(&path, mib).map_err(|error| format!("{}: {error}", path.display()))?;
        fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(rate)
    }

    fn fill(&self, mib: u64) -> Result<(), String> {
        for file in 0..FILES {
            let path = self.base.join(format!("mount/mirrored/bench.{file}.0"));
            write_file(&path, mib / FILES).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// Runs random reads and writes of 64 KiB on the moved files. Returns MiB per second.
    fn fio(&self, seconds: u64) -> Result<f64, String> {
        let size = fs::metadata(self.base.join("mount/mirrored/bench.0.0"))
            .map_err(|error| error.to_string())?
            .len();
        let mut command = Command::new("fio");
        command.args([
            "--name=bench",
            "--numjobs=2",
            "--group_reporting",
            "--output-format=json",
            "--time_based",
        ]);
        command.args(["--rw=randrw", "--bs=64k", "--direct=1", "--ioengine=libaio", "--iodepth=4"]);
        command.args([
            "--filename_format=bench.$jobnum.0",
            &format!("--size={size}"),
            &format!("--runtime={seconds}"),
        ]);
        command.arg("--directory").arg(self.base.join("mount/mirrored"));
        let done = process::run_ok(&mut command, DEADLINE)?;
        let json: Value =
            serde_json::from_str(&done.stdout).map_err(|error| format!("fio printed no JSON: {error}"))?;
        let side = |side: &str| json["jobs"][0][side]["bw"].as_f64().unwrap_or(0.0) / 1024.0;
        Ok(side("read") + side("write"))
    }

    /// Runs fio during a resync, from its start to its end.
    fn fio_during_rebuild(&self, seconds: u64) -> Result<f64, String> {
        let beside = self.fio(seconds)?;
        match self.moved()? {
            Some(_) => Ok(beside),
            None => Err("the rebuild ended before fio; hint: move more data (--mib)".into()),
        }
    }

    /// Kills the node of target 2, which target 3 replaces, and adds another node with target 4.
    /// Returns fio's rate meanwhile.
    fn fio_during_node_loss(&mut self, seconds: u64) -> Result<f64, String> {
        self.manage(&["group", "resync", "set", "--replace-after", REPLACED_AFTER])?;
        // Index 0 is management, followed by the storage nodes.
        let node = self.nodes.remove(2);
        drop(sys::kill(node.child.id() as i32, libc::SIGKILL));
        drop(node);
        self.until_it_moves("2")?;
        let beside = self.fio_during_rebuild(seconds)?;
        let replaced = process::eventually(REBUILD_DEADLINE, || self.is_out_of_groups("2").unwrap_or(false));
        if !replaced {
            return Err(format!("target 2 has not been replaced after {} s", REBUILD_DEADLINE.as_secs()));
        }
        // A new node, since the old one still has its data.
        self.add_storage("d")?;
        Ok(beside)
    }

    /// Returns whether no group has the target as a member, and all members are in sync.
    fn is_out_of_groups(&self, target: &str) -> Result<bool, String> {
        let output = self.manage(&["group", "list", "--json"])?;
        let output: Value = serde_json::from_str(&output).map_err(|error| error.to_string())?;
        let has_it = |group: &Value| {
            let members = group["members"].as_array().into_iter().flatten();
            let mut states = group["states"].as_array().into_iter().flatten();
            members.map(Value::to_string).any(|member| member == target)
                || states.any(|state| state != "good")
        };
        let mirrored =
            |group: &&Value| group["scheme"].as_str().is_some_and(|scheme| scheme.starts_with("mirror"));
        let groups =
            output.as_array().ok_or_else(|| format!("weft group list: not a JSON array: {output}"))?;
        Ok(!groups.iter().filter(mirrored).any(has_it))
    }

    /// Starts to move a target's data, and waits until the move is in progress.
    fn move_from(&self, target: &str) -> Result<Instant, String> {
        let watch = Instant::now();
        self.manage(&["target", "drain", target])?;
        self.until_it_moves(target).map(|()| watch)
    }

    fn until_it_moves(&self, target: &str) -> Result<(), String> {
        let begun = process::eventually(DEADLINE, || matches!(self.moved(), Ok(Some(moved)) if moved > 0));
        if begun { Ok(()) } else { Err(format!("the data of target {target} is not being moved")) }
    }

    /// The same, after another target was emptied; that one receives the data.
    fn move_back(&self, emptied: &str, target: &str) -> Result<Instant, String> {
        self.manage(&["target", "set", emptied, "--drain", "off"])?;
        let watch = Instant::now();
        self.manage(&["target", "drain", target])?;
        Ok(watch)
    }

    /// Returns the bytes sent so far to the member under resync; `None` if there is none.
    fn moved(&self) -> Result<Option<u64>, String> {
        let output = self.manage(&["group", "resync", "status", "--json"])?;
        let output: Value = serde_json::from_str(&output).map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        numbers_called(&output, "bytes_moved", &mut found);
        Ok(found.into_iter().max())
    }

    /// Waits until a target whose drain began at `watch` is empty. Returns the time until other
    /// targets had the data of all its groups.
    fn until_moved(&self, target: &str, watch: Instant) -> Result<Duration, String> {
        let mut outcome = Ok(());
        let has_left = process::eventually(REBUILD_DEADLINE, || match self.groups_left(target) {
            Ok(left) => left == 0,
            Err(error) => {
                outcome = Err(error);
                true
            }
        });
        let took = watch.elapsed();
        outcome?;
        if !has_left {
            return Err(format!("target {target} is still in groups after {} s", REBUILD_DEADLINE.as_secs()));
        }
        // The service removes its old data periodically.
        let mut command = Command::new(&self.weft);
        command.args(["target", "drain", target, "--wait", "--dir"]).arg(self.dir("m"));
        process::run_ok(&mut command, REBUILD_DEADLINE)?;
        Ok(took)
    }

    /// Returns the number of groups that a drained target still belongs to.
    fn groups_left(&self, target: &str) -> Result<u64, String> {
        let output = self.manage(&["target", "drain", target, "--json"])?;
        let output: Value = serde_json::from_str(&output).map_err(|error| error.to_string())?;
        // The field is absent if there are none.
        Ok(output["groups_left"].as_u64().unwrap_or(0))
    }
}

/// Writes a file past the page cache. Returns MiB per second, including the sync.
fn write_file(path: &Path, mib: u64) -> std::io::Result<f64> {
    let file =
        File::options().write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT).open(path)?;
    // Aligned for direct I/O, and not uniform.
    let buffer: Vec<u8> = (0..WRITE_BYTES + 4096).map(|at| ((at * 7919) >> 5) as u8).collect();
    let start = buffer.as_ptr().align_offset(4096);
    let watch = Instant::now();
    for piece in 0..mib {
        file.write_all_at(&buffer[start..start + WRITE_BYTES], piece * WRITE_BYTES as u64)?;
    }
    file.sync_all()?;
    Ok(mib as f64 / watch.elapsed().as_secs_f64())
}

/// Collects all numbers with this key in a JSON value.
fn numbers_called(value: &Value, name: &str, found: &mut Vec<u64>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| match value.as_u64() {
            Some(number) if key == name => found.push(number),
            _ => numbers_called(value, name, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| numbers_called(item, name, found)),
        _ => {}
    }
}
