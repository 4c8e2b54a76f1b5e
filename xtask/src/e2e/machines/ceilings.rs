//! Hardware ceilings, measured by the nodes themselves, and stored by the cluster.

use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::{Cluster, Part};
use crate::process;
use serde_json::Value;
use std::ffi::OsString;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] =
    &[TestCase { name: "bench_ceilings", scope: Scope::Own, minutes: 2, run: bench_ceilings }];

/// Time from the start of a measurement until its storage node, or the waiting command, is killed.
const BEGUN: Duration = Duration::from_secs(1);

/// Longest time until a service detects that no caller waits any more.
const NOTICED: Duration = Duration::from_secs(10);

/// Longest time until health reports a load: some heartbeats, and the slowness of a busy machine.
const REPORTED_WITHIN: Duration = Duration::from_secs(60);

impl Cluster {
    /// Returns the largest utilisation of the drive of both targets in `weft health`, which is the
    /// same for both, though only one was measured.
    fn most_share(&self) -> Option<f64> {
        let health: Value = serde_json::from_str(&self.health_text().ok()?).ok()?;
        let rates = health["rates"].as_array()?;
        let of = |target: u32, other: u32| {
            let rate = rates.iter().find(|rate| rate["target"] == target)?;
            (rate["one_drive_with"] == serde_json::json!([other])).then(|| rate["most"]["share"].as_f64())?
        };
        of(1, 2).filter(|share| of(2, 1) == Some(*share))
    }

    fn bench(&self, words: &[&str]) -> TestResult<Vec<Value>> {
        let said = self.ask_management(|management| bench_line(words, management))?;
        let parsed: Value = serde_json::from_str(&said).map_err(|e| format!("weft bench {words:?}: {e}"))?;
        Ok(parsed.as_array().cloned().unwrap_or_default())
    }

    /// Returns the measurements listed by `weft health`.
    fn measured(&self) -> TestResult<Vec<String>> {
        let said = self.health_text()?;
        let health: Value = serde_json::from_str(&said).map_err(|e| format!("weft health: {e}"))?;
        let places = health["ceilings"]
            .as_array()
            .ok_or_else(|| format!("weft health reports no ceilings: {said}"))?;
        let measured = places.iter().filter(|place| place["measured"].is_string());
        Ok(measured.filter_map(|place| place["place"].as_str().map(String::from)).collect())
    }

    fn bench_folder(&self, storage: usize) -> TestResult<std::path::PathBuf> {
        Ok(self.folder(self.node(Part::Storage(storage)))?.join("target/bench"))
    }
}

fn bench_line(words: &[&str], dir: &std::path::Path) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["bench".into()];
    line.extend(words.iter().map(OsString::from));
    line.extend(["--json".into(), "--dir".into(), dir.into()]);
    line
}

fn bench_ceilings(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "ceilings", 2, 1)?;
    ensure!(cluster.measured()?.is_empty(), "health says that something is measured");
    let drives = cluster.bench(&["storage", "--size", "8MiB", "--seconds", "1", "--target", "1"])?;
    ensure_eq!(drives.len(), 4, "figures of one target: {drives:?}");
    let network = cluster.bench(&["net", "--streams", "1,2", "--seconds", "1"])?;
    ensure_eq!(network.len(), 12, "two figures of each of six pairs: {network:?}");
    let cpu = cluster.bench(&["cpu", "--seconds", "1"])?;
    ensure_eq!(cpu.len(), 18, "six figures of each of three nodes: {cpu:?}");
    let all = [&drives, &network, &cpu];
    let is_rate = |c: &&Value| c["rate"].as_f64().is_some_and(|rate| rate > 0.0) && c["measured"].is_string();
    ensure!(all.into_iter().flatten().all(|c| is_rate(&c)), "figures without a rate or a date: {all:?}");
    cluster.service(Part::Management).kill();
    cluster.restart(Part::Management)?;
    cluster.wait_until_healthy()?;
    ensure_eq!(cluster.bench(&["storage", "--last"])?.len(), 4, "figures of targets after a restart");
    ensure_eq!(cluster.bench(&["net", "--last"])?.len(), 12, "figures of networks after a restart");
    load_on_a_mount(&cluster)?;
    let is_reported =
        process::eventually(REPORTED_WITHIN, || cluster.most_share().is_some_and(|share| share > 0.0));
    ensure!(is_reported, "health reports no utilisation of a ceiling: {}", cluster.health_text()?);
    let results = cluster.measured()?;
    ensure_eq!(results, ["target 1", "node 1", "node 2", "node 3"], "places that health says are measured");
    nothing_is_left(&mut cluster)?;
    cluster.ensure_clean()?;
    cluster.stop()
}

/// The process of a client's mount gets the ceilings from management, and a load there reports its
/// utilisation of them.
fn load_on_a_mount(cluster: &Cluster) -> TestResult {
    let mut line: Vec<OsString> = vec!["bench".into(), "io".into(), cluster.mount(0).into()];
    line.extend(["--threads", "1", "--size", "4MiB", "--json"].map(OsString::from));
    let said = cluster.run(cluster.node(Part::Client(0)), &line)?;
    let results: Value = serde_json::from_str(&said).map_err(|e| format!("weft bench io: {e}"))?;
    ensure_eq!(results["ceilings"].as_array().map(Vec::len), Some(34), "ceilings in the results: {results}");
    let figures = results["measured"].as_array().cloned().unwrap_or_default();
    ensure_eq!(figures.len(), 2, "a write and a read: {results}");
    let is_bound = |figure: &Value| figure["binding"]["share"].as_f64().is_some_and(|share| share > 0.0);
    ensure!(figures.iter().all(is_bound), "figures without a share of the ceiling: {results}");
    Ok(())
}

/// Checks that nothing remains when the waiting command is killed, or when the storage node is.
fn nothing_is_left(cluster: &mut Cluster) -> TestResult {
    let (target, folder) = ("1", cluster.bench_folder(0)?);
    let management = cluster.folder(cluster.node(Part::Management))?.join("state");
    let words = ["storage", "--size", "8MiB", "--seconds", "600", "--target", target];
    for kill_storage in [false, true] {
        let mut command = cluster.node(Part::Management).command(cluster.commands.weft());
        command.args(bench_line(&words, &management));
        let mut asking = command.stdout(std::process::Stdio::null()).spawn().at("weft bench")?;
        let begun = process::eventually(NOTICED, || folder.exists());
        std::thread::sleep(BEGUN);
        if kill_storage {
            cluster.kill_storage(0);
        }
        asking.kill().at("weft bench")?;
        asking.wait().at("weft bench")?;
        ensure!(begun, "no measurement has begun in {}", folder.display());
        if kill_storage {
            ensure!(folder.exists(), "a killed node can't have removed anything");
            cluster.restart(Part::Storage(0))?;
            cluster.wait_until_healthy()?;
        }
        let gone = process::eventually(NOTICED, || !folder.exists());
        ensure!(gone, "{} is left (storage node killed: {kill_storage})", folder.display());
    }
    Ok(())
}
