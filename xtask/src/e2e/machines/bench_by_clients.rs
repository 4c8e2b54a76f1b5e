//! A load by several clients together, each on its own mount.

use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::Cluster;
use crate::{process, sys};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] =
    &[TestCase { name: "bench_by_clients", scope: Scope::Own, minutes: 3, run: by_clients }];

/// Longest duration of one load.
const DEADLINE: Duration = Duration::from_secs(120);
/// Longest time until an interrupted load has begun, and until it has ended.
const SOON: Duration = Duration::from_secs(60);

/// Two mounts that show the same directory, and the program that measures it.
struct Place {
    weft: PathBuf,
    dirs: Vec<PathBuf>,
}

impl Place {
    /// Returns the command that starts a client: the second client sees its own mount at the path
    /// of the first one's.
    fn launch(&self, of_two: &str) -> String {
        let (one, two, weft) = (self.dirs[0].display(), self.dirs[1].display(), self.weft.display());
        let agent = format!("{weft} bench agent");
        format!(
            "if [ {{}} = one ]; then exec {agent}; else exec unshare -m sh -c 'mount --bind {two} {one} && {of_two} {agent}'; fi"
        )
    }

    fn command(&self, kind: &str, launch: &str, words: &[&str]) -> Command {
        let mut command = Command::new(&self.weft);
        command.args(["bench", kind]).arg(&self.dirs[0]).args(words);
        command.args(["--client", "one,two", "--json", "--launch", launch]);
        command
    }

    fn measured(&self, kind: &str, words: &[&str]) -> TestResult {
        let done = process::run_ok(&mut self.command(kind, &self.launch(""), words), DEADLINE)?;
        let results: Value =
            serde_json::from_str(&done.stdout).map_err(|e| format!("weft bench {kind}: {e}"))?;
        ensure_eq!(results["machine"]["clients"], 2, "clients of {kind} {words:?}");
        let figures = results["measured"].as_array().cloned().unwrap_or_default();
        ensure!(figures.len() > 1, "{kind} {words:?} has measured nothing: {results}");
        for figure in figures {
            ensure!(figure["clients"] == 2 && figure["threads"] == 4, "{kind} {words:?}: {figure}");
            let run = &figure["runs"][0];
            let is_good = run["errors"] == 0 && run["wrong_bytes"] == 0 && run["latency"].is_object();
            ensure!(is_good && run["operations"].as_u64() > Some(7), "{kind} {words:?}: {figure}");
        }
        self.ensure_empty(&format!("{kind} {words:?}"))
    }

    fn ensure_empty(&self, after: &str) -> TestResult {
        let left = |dir: &Path| -> TestResult<usize> { Ok(fs::read_dir(dir).at(dir.display())?.count()) };
        ensure_eq!(left(&self.dirs[0])?, 0, "what {after} has left");
        Ok(())
    }

    /// Checks a failing load: its message gives the reason, and no files remain.
    fn fails(&self, launch: &str, words: &[&str], why: &str) -> TestResult {
        let done = process::run(&mut self.command("io", launch, words), DEADLINE)?;
        ensure!(!done.status.success(), "io by {launch} went well");
        ensure!(done.stderr.contains(why), "no word of {why:?}: {}", done.stderr);
        self.ensure_empty(&format!("io by {launch}"))
    }
}

fn by_clients(stage: &Stage) -> TestResult {
    let cluster = Cluster::start(stage, "together", 2, 2)?;
    let place = Place { weft: stage.binary()?.to_path_buf(), dirs: cluster.shared_folder("measured")? };
    let io = ["--threads", "2", "--size", "2MiB", "--verify"];
    for sharing in ["own", "segments", "interleaved"] {
        let record = if sharing == "interleaved" { "47008" } else { "64KiB" };
        place.measured("io", &[&io[..], &["--sharing", sharing, "--record", record]].concat())?;
    }
    place.measured("meta", &["--threads", "2", "--files", "50"])?;
    place.measured("meta", &["--threads", "2", "--files", "50", "--hard", "--iterations", "2"])?;

    let long = ["--threads", "1", "--size", "8MiB", "--access", "random", "--seconds", "60"];
    place.fails(&place.launch("timeout -s KILL 3"), &long, "two")?;
    place.fails("false {}", &long, "has ended before it was ready")?;
    // Both end at once: the message names the one whose end is detected first.
    place.fails("echo hello {}", &long, "has ended before it was ready")?;
    interrupted(&place, &long)?;
    interrupted_early(&place, &stage.scratch("early")?, &long)?;
    cluster.ensure_clean()?;
    cluster.stop()
}

/// A load ended by a signal reports what was measured, and leaves no files.
fn interrupted(place: &Place, words: &[&str]) -> TestResult {
    let dir = &place.dirs[0];
    let files =
        || fs::read_dir(dir).into_iter().flatten().flatten().flat_map(|load| fs::read_dir(load.path()));
    interrupt(place, &place.launch(""), words, || files().next().is_some())
}

/// After a signal, the load doesn't wait for a client that never starts, and ends its launcher.
fn interrupted_early(place: &Place, folder: &Path, words: &[&str]) -> TestResult {
    let mark = folder.join("started");
    let launch = format!("sleep 1000 & echo $! > {}-{{}}; wait", mark.display());
    let pid = || fs::read_to_string(format!("{}-two", mark.display())).ok()?.trim().parse::<u32>().ok();
    interrupt(place, &launch, words, || pid().is_some())?;
    let pid = pid().ok_or_else(|| "no process has reported its id".to_string())?;
    let is_gone = || !fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
    ensure!(process::eventually(SOON, is_gone), "what was to start client two runs on");
    Ok(())
}

/// Sends a signal to a load once it `has_begun`, and waits for its end.
fn interrupt(place: &Place, launch: &str, words: &[&str], has_begun: impl Fn() -> bool) -> TestResult {
    let mut command = place.command("io", launch, words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = sys::unblock_interrupts(&mut command).spawn().at("weft bench")?;
    let begun = process::eventually(SOON, has_begun);
    let sent = sys::kill(child.id() as i32, libc::SIGINT);
    let ended = process::wait(&mut child, SOON).at("weft bench")?;
    if ended.is_none() {
        process::kill_group(&mut child);
    }
    ensure!(begun, "no load has begun in {}", place.dirs[0].display());
    sent.at("SIGINT")?;
    ensure_eq!(ended.and_then(|status| status.code()), Some(1), "exit code of weft bench io by clients");
    place.ensure_empty("SIGINT")
}
