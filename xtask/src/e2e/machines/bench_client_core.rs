//! A load through the client core inside `weft bench`, compared with one through a mount.

use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::refusals::refused;
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::faults::Fault;
use super::{Cluster, Part};
use crate::{process, sys};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] =
    &[TestCase { name: "bench_through_the_core", scope: Scope::Own, minutes: 4, run: load_of_client_core }];

/// Longest duration of one load.
const DEADLINE: Duration = Duration::from_secs(120);
/// Longest time until an interrupted load has begun, and until it has ended.
const SOON: Duration = Duration::from_secs(60);
/// Time of load before a service is killed, and time that the service is down.
const MOMENT: Duration = Duration::from_secs(1);

/// A directory on a mount, and the node of that mount.
struct Place<'a> {
    cluster: &'a Cluster,
    weft: PathBuf,
    dir: PathBuf,
}

impl Place<'_> {
    fn command(&self, kind: &str, words: &[&str]) -> Command {
        let mut command = self.cluster.node(Part::Client(0)).command(&self.weft);
        command.args(["bench", kind]).arg(&self.dir).args(words);
        command
    }

    /// Runs a load. Returns the access path of each of its figures, in order.
    fn access_paths(&self, kind: &str, words: &[&str]) -> TestResult<Vec<String>> {
        let done = process::run_ok(self.command(kind, words).arg("--json"), DEADLINE)?;
        self.ensure_empty(&format!("{kind} {words:?}"))?;
        parse_access_paths(&done.stdout, &format!("{kind} {words:?}"))
    }

    fn ensure_empty(&self, after: &str) -> TestResult {
        ensure_eq!(fs::read_dir(&self.dir).at(self.dir.display())?.count(), 0, "what {after} has left");
        Ok(())
    }
}

/// Returns the access paths of the figures in a load's JSON; none may have an error or a wrong
/// byte.
fn parse_access_paths(results: &str, load: &str) -> TestResult<Vec<String>> {
    let results: Value = serde_json::from_str(results).map_err(|e| format!("weft bench {load}: {e}"))?;
    let mut ways = Vec::new();
    for figure in results["measured"].as_array().into_iter().flatten() {
        let run = &figure["runs"][0];
        let is_good = run["errors"] == 0 && run["wrong_bytes"] == 0 && run["latency"].is_object();
        ensure!(is_good && run["operations"].as_u64() > Some(0), "{load}: {figure}");
        ways.push(figure["through"].as_str().unwrap_or("-").to_string());
    }
    Ok(ways)
}

fn load_of_client_core(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "through", 2, 1)?;
    let dir = cluster.shared_folder("measured")?.remove(0);
    let place = Place { cluster: &cluster, weft: stage.binary()?.to_path_buf(), dir };
    let both = ["mount", "core", "mount", "core"];
    let io = ["--through", "both", "--threads", "3", "--size", "4MiB", "--verify"];
    for form in [
        &["--sharing", "own"][..],
        &["--sharing", "segments", "--buffered"],
        &["--sharing", "interleaved", "--record", "47008"],
        &["--access", "random", "--depth", "8", "--seconds", "1"],
    ] {
        ensure_eq!(place.access_paths("io", &[&io[..], form].concat())?, both, "ways of io {form:?}");
    }
    let large = ["--through", "core", "--threads", "1,5", "--size", "6MiB", "--record", "3MiB", "--verify"];
    ensure_eq!(place.access_paths("io", &large)?, ["core"; 4], "ways of large records");
    let mixed = ["--through", "core", "--operations", "mixed", "--access", "random", "--size", "1MiB"];
    ensure_eq!(
        place.access_paths("io", &[&mixed[..], &["--seconds", "1", "--verify"]].concat())?,
        ["core"; 2],
        "ways"
    );
    let meta = ["--through", "both", "--threads", "3", "--files", "50"];
    ensure_eq!(place.access_paths("meta", &meta)?.len(), 8, "figures of meta");
    let hard = ["--through", "core", "--threads", "3", "--files", "50", "--hard", "--iterations", "2"];
    ensure_eq!(place.access_paths("meta", &hard)?, ["core"; 4], "ways of the hard form");
    interrupted(&place)?;
    other_file(&place)?;
    killed_services(stage, &mut cluster, "measured")?;
    cluster.mirror_everything(2)?;
    cluster.shared_folder("mirrored")?;
    killed_services(stage, &mut cluster, "mirrored")?;
    cluster.ensure_clean()?;
    cluster.stop()
}

/// A load ended by a signal leaves no files.
fn interrupted(place: &Place<'_>) -> TestResult {
    for (kind, words) in [
        ("io", &["--access", "random", "--depth", "4", "--seconds", "600", "--size", "4MiB"][..]),
        ("meta", &["--files", "1000000"]),
    ] {
        let mut command = place.command(kind, &[&["--through", "core", "--threads", "2"], words].concat());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = sys::unblock_interrupts(&mut command).spawn().at("weft bench")?;
        let files = || {
            let loads = fs::read_dir(&place.dir).into_iter().flatten().flatten();
            loads.flat_map(|load| fs::read_dir(load.path())).flatten().count()
        };
        let begun = process::eventually(SOON, || files() > 0);
        let sent = sys::kill(child.id() as i32, libc::SIGINT);
        let ended = process::wait(&mut child, SOON).at("weft bench")?;
        if ended.is_none() {
            process::kill_group(&mut child);
        }
        ensure!(begun, "no load of {kind} has begun");
        sent.at("SIGINT")?;
        ensure_eq!(ended.and_then(|status| status.code()), Some(1), "exit code of weft bench {kind}");
        place.ensure_empty("SIGINT")?;
    }
    Ok(())
}

/// Services are killed and restarted during a load: it waits for them, and every byte is correct in
/// the end.
fn killed_services(stage: &Stage, cluster: &mut Cluster, folder: &str) -> TestResult {
    let out = stage.scratch("told")?.join(format!("{folder}.json"));
    let place = Place { cluster, weft: stage.binary()?.to_path_buf(), dir: cluster.mount(0).join(folder) };
    let load = ["--through", "core", "--threads", "3", "--access", "random", "--size", "8MiB", "--verify"];
    let mut command = place.command("io", &[&load[..], &["--seconds", "6"]].concat());
    command.arg("--out").arg(&out).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let dir = place.dir.clone();
    let mut child = command.spawn().at("weft bench")?;
    let mut faults = || -> TestResult {
        let is_begun = || fs::read_dir(&dir).is_ok_and(|mut loads| loads.next().is_some());
        ensure!(process::eventually(SOON, is_begun), "no load has begun in {}", dir.display());
        for part in [Part::Storage(0), Part::Management, Part::Storage(1)] {
            thread::sleep(MOMENT);
            cluster.inject(part, Fault::Killed)?;
            thread::sleep(MOMENT);
            cluster.repair(part, Fault::Killed)?;
        }
        Ok(())
    };
    let struck = faults();
    let ended = process::wait(&mut child, DEADLINE).at("weft bench")?;
    if ended.is_none() {
        process::kill_group(&mut child);
    }
    struck?;
    ensure_eq!(ended.and_then(|status| status.code()), Some(0), "exit code of weft bench in {folder}");
    let results = fs::read_to_string(&out).at(out.display())?;
    ensure_eq!(
        parse_access_paths(&results, &format!("in {folder} while services died"))?,
        ["core"; 2],
        "ways in {folder}"
    );
    cluster.wait_until_healthy()?;
    ensure_eq!(fs::read_dir(&dir).at(dir.display())?.count(), 0, "what the load in {folder} has left");
    Ok(())
}

/// A cluster file of another cluster is refused; the mount's own has the same effect as none.
fn other_file(place: &Place<'_>) -> TestResult {
    let node = place.cluster.node(Part::Client(0));
    let own = place.cluster.folder(node)?.join("cluster");
    let own_name = own.to_string_lossy().into_owned();
    let words = ["--through", "core", "--threads", "1", "--files", "5", "--cluster"];
    ensure_eq!(
        place.access_paths("meta", &[&words[..], &[&own_name]].concat())?,
        ["core"; 4],
        "with its file"
    );
    let text = fs::read_to_string(&own).at(own.display())?;
    let is_uuid = |line: &&str| line.starts_with("cluster = ");
    let uuid = text.lines().find(is_uuid).ok_or_else(|| "a cluster file without the cluster".to_string())?;
    let other = own.with_extension("other");
    let another = "cluster = \"00000000-0000-0000-0000-000000000000\"";
    // With the same permissions as the original.
    fs::copy(&own, &other).at(other.display())?;
    fs::write(&other, text.replace(uuid, another)).at(other.display())?;
    let name = other.to_string_lossy().into_owned();
    refused(place.command("meta", &[&words[..], &[&name]].concat()), "00000000-0000")?;
    place.ensure_empty("a refusal")
}
