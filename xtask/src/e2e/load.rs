//! `weft bench` on a mount: its measurements, its end, the arguments that it refuses, and its
//! cleanup.

use super::outcome::{At, TestResult, ensure, ensure_eq};
use super::refusals::refused;
use super::rig::{Rig, RigOptions};
use super::stage::Stage;
use super::{Scope, TestCase};
use crate::{process, sys};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "bench_io_and_meta", scope: Scope::Own, minutes: 3, run: io_and_meta },
    TestCase { name: "bench_characterize", scope: Scope::Own, minutes: 5, run: characterize },
    TestCase { name: "bench_interrupted", scope: Scope::Own, minutes: 3, run: interrupted },
    TestCase { name: "bench_refuses", scope: Scope::Own, minutes: 2, run: refuses },
];

/// Deadline of one command.
const DEADLINE: Duration = Duration::from_secs(240);

/// Longest time until the second number of threads begins, after a phase of one second for the
/// first.
const BEGUN: Duration = Duration::from_secs(60);

/// Longest time until an interrupted load has ended and removed its files.
const ENDED: Duration = Duration::from_secs(30);

/// A weft, a folder on it to measure, and another folder for reports.
struct Place {
    rig: Rig,
    dir: PathBuf,
    reports: PathBuf,
}

impl Place {
    fn new(stage: &Stage, name: &str) -> TestResult<Place> {
        let rig = stage.start_rig(name, RigOptions::new(stage.transport()?))?;
        let dir = rig.mount().join("measured");
        fs::create_dir(&dir).at(dir.display())?;
        Ok(Place { rig, dir, reports: stage.scratch(&format!("{name}-reports"))? })
    }

    fn bench(&self, stage: &Stage, kind: &str, words: &[&str]) -> TestResult<Command> {
        let mut command = Command::new(stage.binary()?);
        command.args(["bench", kind]).arg(&self.dir).args(words);
        Ok(command)
    }

    /// Runs a load and returns its results; no operation may fail, and no byte may be wrong.
    fn measured(&self, stage: &Stage, kind: &str, words: &[&str]) -> TestResult<Value> {
        let mut command = self.bench(stage, kind, words)?;
        let done = process::run_ok(command.arg("--json"), DEADLINE)?;
        let results = parsed(&done.stdout)?;
        let figures = results["measured"].as_array().cloned().unwrap_or_default();
        ensure!(!figures.is_empty(), "{kind} {words:?} has measured nothing: {results}");
        for figure in &figures {
            ensure!(
                figure["generator_ns"].as_f64().is_some_and(|ns| ns > 0.0),
                "{kind} {words:?}: no time of its own: {figure}"
            );
            for run in figure["runs"].as_array().into_iter().flatten() {
                let is_good = run["operations"].as_u64().is_some_and(|count| count > 0)
                    && run["errors"] == 0
                    && run["wrong_bytes"] == 0;
                ensure!(is_good, "{kind} {words:?}: {figure}");
            }
        }
        self.ensure_empty(&format!("{kind} {words:?}"))?;
        Ok(results)
    }

    fn ensure_empty(&self, after: &str) -> TestResult {
        let left: Vec<PathBuf> =
            fs::read_dir(&self.dir).at(self.dir.display())?.flatten().map(|entry| entry.path()).collect();
        ensure!(left.is_empty(), "{after} has left {left:?}");
        Ok(())
    }

    /// Measures the ceilings of all drives and processors with small sizes, so that a
    /// characterisation doesn't have to.
    fn measure_ceilings(&self) -> TestResult {
        let dir = self.rig.dir();
        let dir = dir.to_string_lossy();
        self.rig.json(&["bench", "storage", "--size", "8MiB", "--seconds", "1", "--dir", &dir])?;
        self.rig.json(&["bench", "cpu", "--seconds", "1", "--dir", &dir]).map(drop)
    }

    fn stop(mut self) -> TestResult {
        self.rig.down()?;
        self.rig.fsck()
    }
}

fn parsed(text: &str) -> TestResult<Value> {
    Ok(serde_json::from_str(text).map_err(|error| format!("no JSON: {error}: {text}"))?)
}

fn read(file: &Path) -> TestResult<Value> {
    parsed(&fs::read_to_string(file).at(file.display())?)
}

fn notes(results: &Value) -> String {
    results["notes"].to_string()
}

fn io_and_meta(stage: &Stage) -> TestResult {
    let place = Place::new(stage, "bench-load")?;
    let forms: [&[&str]; 4] = [
        &["--threads", "1,2", "--size", "4MiB", "--verify"],
        &["--threads", "3", "--size", "2MiB", "--sharing", "segments", "--verify"],
        &["--threads", "3", "--size", "2MiB", "--sharing", "interleaved", "--record", "47008", "--verify"],
        &[
            "--threads",
            "2",
            "--size",
            "4MiB",
            "--access",
            "random",
            "--depth",
            "8",
            "--seconds",
            "1",
            "--verify",
        ],
    ];
    for words in forms {
        let results = place.measured(stage, "io", words)?;
        ensure!(notes(&results).contains("ceilings were never measured"), "no word of ceilings: {results}");
    }
    let mixed = ["--operations", "mixed", "--access", "random", "--size", "2MiB", "--seconds", "1"];
    place.measured(stage, "io", &mixed)?;
    for words in [&["--threads", "1,3", "--files", "40"][..], &["--threads", "2", "--files", "40", "--hard"]]
    {
        let results = place.measured(stage, "meta", words)?;
        let of_all = results["measured"].as_array().map_or(0, Vec::len);
        ensure_eq!(of_all % 4, 0, "operations of meta {words:?}");
    }
    // With known ceilings, each throughput figure has a utilisation.
    place.measure_ceilings()?;
    let results = place.measured(stage, "io", &["--threads", "1", "--size", "4MiB"])?;
    ensure_shares(&results, 2)?;
    place.stop()
}

/// Checks that at least `least` throughput figures have a limiting ceiling, and that each of these
/// has a utilisation.
fn ensure_shares(results: &Value, least: usize) -> TestResult {
    ensure!(results["ceilings"].as_array().is_some_and(|all| !all.is_empty()), "no ceilings: {results}");
    let figures = results["measured"].as_array().cloned().unwrap_or_default();
    let of_bytes =
        |figure: &&Value| ["write", "read", "mixed"].iter().any(|name| figure["operation"] == *name);
    let of_bytes: Vec<&Value> = figures.iter().filter(of_bytes).collect();
    ensure!(of_bytes.len() >= least, "{} figures of bytes: {results}", of_bytes.len());
    for figure in of_bytes {
        let binding = &figure["binding"];
        let is_known =
            binding["share"].as_f64().is_some_and(|share| share > 0.0) && binding["limit"].is_string();
        ensure!(is_known, "a figure without its share of the ceiling: {figure}");
    }
    Ok(())
}

fn characterize(stage: &Stage) -> TestResult {
    let place = Place::new(stage, "bench-report")?;
    let out = place.reports.join("report");
    let words = ["--scale", "0.0625", "--iterations", "1", "--out", &out.to_string_lossy()];
    // Without known ceilings, it measures them, and management stores them.
    let done = process::run_ok(&mut place.bench(stage, "characterize", &words)?, DEADLINE)?;
    ensure!(done.stdout.contains("index.html"), "where the report is: {}", done.tail());
    place.ensure_empty("characterize")?;
    let results = read(&out.join("results.json"))?;
    ensure_shares(&results, 8)?;
    ensure!(!notes(&results).contains("not measured"), "something wasn't measured: {}", notes(&results));
    let dir = place.rig.dir();
    let kept = place.rig.json(&["bench", "storage", "--last", "--dir", &dir.to_string_lossy()])?;
    ensure!(kept.as_array().is_some_and(|kept| kept.len() >= 4), "ceilings that are kept: {kept}");
    let page = fs::read_to_string(out.join("index.html")).at("the page")?;
    for part in ["<svg", " % of the ", "own overhead is", "storage-random-read"] {
        ensure!(page.contains(part), "the page lacks {part:?}");
    }
    let csv = fs::read_to_string(out.join("results.csv")).at("the table")?;
    ensure!(csv.lines().count() > 8, "the table is short: {csv}");
    let json = out.join("results.json");
    let json = json.to_string_lossy();
    let compared = place.rig.json(&["bench", "compare", &json, &json])?;
    ensure!(!compared.is_null(), "results can't be compared with themselves");
    place.stop()
}

/// Starts a load in its own process group, so that a signal reaches only it.
fn started(mut command: Command) -> TestResult<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    sys::unblock_interrupts(&mut command).spawn().at("weft bench")
}

/// Interrupts the load when its folder with this number exists. Returns the exit code.
fn interrupted_at(child: &mut Child, place: &Place, number: u32) -> TestResult<Option<i32>> {
    let folder = place.dir.join(format!("weft-bench-{}-{number}", child.id()));
    let begun = process::eventually(BEGUN, || folder.exists());
    let sent = sys::kill(child.id() as i32, libc::SIGINT);
    let ended = process::wait(child, ENDED).at("weft bench")?;
    if ended.is_none() {
        process::kill_group(child);
    }
    ensure!(begun, "{} was never there", folder.display());
    sent.at("SIGINT")?;
    let ended = ended.ok_or_else(|| format!("no end within {} s of SIGINT", ENDED.as_secs()))?;
    Ok(ended.code())
}

fn interrupted(stage: &Stage) -> TestResult {
    let place = Place::new(stage, "bench-interrupted")?;
    let out = place.reports.join("io.json");
    let random = ["--access", "random", "--threads", "1,2", "--size", "8MiB", "--seconds", "1"];
    let mut io = place.bench(stage, "io", &random)?;
    io.args(["--iterations", "1", "--out"]).arg(&out);
    // The second number of threads has a separate folder: the results of the first are complete.
    let code = interrupted_at(&mut started(io)?, &place, 1)?;
    ensure_eq!(code, Some(1), "exit code of weft bench io");
    place.ensure_empty("weft bench io and SIGINT")?;
    let results = read(&out)?;
    ensure!(
        results["measured"].as_array().is_some_and(|all| !all.is_empty()),
        "nothing is reported: {results}"
    );
    ensure!(notes(&results).contains("stopped early"), "no word of the end: {results}");

    let meta = place.bench(stage, "meta", &["--threads", "2", "--files", "1000000"])?;
    ensure_eq!(interrupted_at(&mut started(meta)?, &place, 0)?, Some(1), "exit code of weft bench meta");
    place.ensure_empty("weft bench meta and SIGINT")?;

    place.measure_ceilings()?;
    let out = place.reports.join("report");
    let words = ["--scale", "0.125", "--iterations", "1", "--out", &out.to_string_lossy()];
    let mut child = started(place.bench(stage, "characterize", &words)?)?;
    ensure_eq!(interrupted_at(&mut child, &place, 1)?, Some(1), "exit code of weft bench characterize");
    place.ensure_empty("weft bench characterize and SIGINT")?;
    let results = read(&out.join("results.json"))?;
    ensure!(notes(&results).contains("ended by a signal after"), "no word of the end: {results}");
    ensure_shares(&results, 2)?;
    let page = fs::read_to_string(out.join("index.html")).at("the page")?;
    ensure!(page.contains("ended by a signal") && page.contains("<svg"), "the page of what there was");
    place.stop()
}

fn refuses(stage: &Stage) -> TestResult {
    let place = Place::new(stage, "bench-refuses")?;
    let out = place.reports.join("none");
    let to = out.to_string_lossy();
    let later = place.reports.join("later.json");
    fs::write(&later, "{\"weft_bench\": 7}").at(later.display())?;
    let later_name = later.to_string_lossy();
    let characterize = |words: &[&str]| -> TestResult<Command> {
        let mut command = place.bench(stage, "characterize", words)?;
        command.args(["--out", &to]);
        Ok(command)
    };
    refused(characterize(&["--profile", "beegfs-nvme", "--scale", "1"])?, "--scale")?;
    refused(characterize(&["--profile", "fastest"])?, "fastest")?;
    refused(characterize(&["--beside", &later_name])?, "version 7")?;
    let mut io = place.bench(stage, "io", &["--size", "1PiB", "--threads", "1,8"])?;
    io.args(["--out", &to]);
    refused(io, "are free")?;
    // Files served by the process of their mount can't be accessed in another way.
    for kind in ["io", "meta"] {
        refused(place.bench(stage, kind, &["--through", "core", "--out", &to])?, "weft up")?;
    }
    let mut compare = Command::new(stage.binary()?);
    compare.args(["bench", "compare"]).arg(&later).arg(&later);
    refused(compare, "later.json")?;
    // Paths that aren't directories, don't exist, or aren't on weft.
    let file = place.rig.mount().join("file");
    fs::write(&file, "").at(file.display())?;
    for wrong in [&file, &place.rig.mount().join("missing")] {
        for kind in ["io", "meta", "characterize"] {
            let mut command = Command::new(stage.binary()?);
            command.args(["bench", kind]).arg(wrong).args(["--out", &to]);
            refused(command, &wrong.to_string_lossy())?;
        }
    }
    let mut elsewhere = Command::new(stage.binary()?);
    elsewhere.args(["bench", "characterize"]).arg(&place.reports).args(["--ceilings", "--out", &to]);
    refused(elsewhere, "not on a weft file system")?;
    ensure!(!out.exists(), "a refused command has made {}", out.display());
    place.ensure_empty("refused commands")?;
    place.stop()
}
