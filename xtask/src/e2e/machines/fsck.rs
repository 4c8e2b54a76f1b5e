//! The file system check of a cluster in use: it doesn't report changes in progress, and finds
//! damage.

use super::super::coherence::{Load, LoadPlan};
use super::super::outcome::{At, Failure, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase};
use super::{Cluster, Part};
use crate::history::Mix;
use crate::process;
use ::history::Limits;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "fsck_of_a_running_cluster", scope: Scope::Own, minutes: 5, run: running_cluster },
    TestCase { name: "fsck_repairs_a_running_cluster", scope: Scope::Own, minutes: 5, run: repaired_cluster },
    TestCase { name: "damage_while_shut_down", scope: Scope::Own, minutes: 5, run: damaged_while_shut_down },
];

/// Longest time of a check: it examines a busy file several times.
const DEADLINE: Duration = Duration::from_secs(300);

const FILE_BYTES: usize = 3 << 20;

/// Minimum number of calls of a mount between two checks, so that each check sees a different
/// state.
const CALLS_BETWEEN_CHECKS: usize = 200;

impl Cluster {
    /// Returns the report of `weft fsck`, whatever it is.
    pub fn fsck(&self) -> TestResult<Value> {
        self.fsck_with(&[])
    }

    /// The same with options.
    pub fn fsck_with(&self, orders: &[&str]) -> TestResult<Value> {
        let node = self.node(Part::Management);
        let arguments = self.commands.fsck(&self.folder(node)?.join("state"), orders);
        let done = process::run(node.command(self.commands.weft()).args(arguments), DEADLINE)?;
        let report: Value = serde_json::from_str(&done.stdout)
            .map_err(|error| Failure::Failed(format!("weft fsck: no JSON: {error}: {}", done.tail())))?;
        let expected = match report["verdict"].as_str() {
            Some("clean") => 0,
            Some("repaired") => 1,
            _ => 4,
        };
        ensure_eq!(done.code(), expected, "exit status of weft fsck, which says {report}");
        Ok(report)
    }

    /// Checks that there are no findings.
    pub fn ensure_clean(&self) -> TestResult {
        let report = self.fsck()?;
        ensure!(report["verdict"] == "clean", "weft fsck: {report}\n    {}", self.log());
        Ok(())
    }
}

fn running_cluster(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "fsck", 2, 2)?;
    let folders = cluster.shared_folder("used")?;
    let seconds = if stage.full { 300 } else { 6 };
    let plan = LoadPlan {
        threads: 2,
        seconds,
        seed: u64::from(std::process::id()),
        mix: Mix::All,
        sessions_end: false,
    };
    let load = Load::start(&folders, &stage.scratch("fsck-history")?, plan)?;
    let start = Instant::now();
    let mut checks = 0;
    // At least one check begins after many changes.
    while start.elapsed() < Duration::from_secs(seconds) || checks < 2 {
        cluster.ensure_clean()?;
        checks += 1;
        load.wait_for_calls(0, CALLS_BETWEEN_CHECKS)?;
    }
    load.finish(Limits::default())?;
    damage_is_found(&mut cluster)?;
    cluster.stop()
}

fn damage_is_found(cluster: &mut Cluster) -> TestResult {
    let folder = &cluster.shared_folder("damaged")?[0];
    let (lost, corrupted) = (folder.join("lost"), folder.join("spoilt"));
    for path in [&lost, &corrupted] {
        let file = File::create(path).at(path.display())?;
        file.write_all_at(&Rng::new(3).bytes(FILE_BYTES), 0).at(path.display())?;
        file.sync_all().at(path.display())?;
    }
    cluster.ensure_clean()?;
    let (lost, corrupted) = (chunk_files(cluster, &lost)?, chunk_files(cluster, &corrupted)?);
    // A running node holds its files open. After a kill, reconciliation would accept the current
    // state of files being written. So the nodes stop cleanly.
    let storage = [Part::Storage(0), Part::Storage(1)];
    storage.iter().try_for_each(|part| cluster.service(*part).terminate().map(drop))?;
    // With its checksums: its target doesn't know that it was ever there.
    fs::remove_file(&lost[0]).at(lost[0].display())?;
    let sums = lost[0].with_extension("sum");
    fs::remove_file(&sums).at(sums.display())?;
    let file = File::options().write(true).open(&corrupted[0]).at(corrupted[0].display())?;
    file.write_all_at(b"not what was written", 5000).and_then(|()| file.sync_all()).at("damage")?;
    storage.iter().try_for_each(|part| cluster.restart(*part))?;
    cluster.wait_until_healthy()?;
    let report = cluster.fsck()?;
    let findings: Vec<(&str, &str)> = report["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|finding| (finding["kind"].as_str().unwrap_or(""), finding["object"].as_str().unwrap_or("")))
        .collect();
    let expected = [("damaged-content", "/damaged/spoilt"), ("missing-chunk-file", "/damaged/lost")];
    for finding in expected {
        ensure!(findings.contains(&finding), "weft fsck doesn't report {finding:?}: {report}");
    }
    ensure_eq!(findings.len(), expected.len(), "findings of {report}");
    let scrub = cluster.scrub_all(2)?;
    ensure_eq!(scrub.missing, 1, "missing chunk files in weft scrub status");
    let health = cluster.health_text()?;
    ensure!(health.contains("1 missing chunk files"), "weft health doesn't report it: {health}");
    lost_is_given_up(cluster, folder)?;
    ensure_eq!(cluster.scrub_all(2)?.missing, 0, "missing chunk files after they were given up");
    Ok(())
}

/// Without a second replica, nothing is repaired, and data is given up only on request.
fn lost_is_given_up(cluster: &Cluster, folder: &Path) -> TestResult {
    let kept = cluster.fsck_with(&["--repair", "/damaged"])?;
    ensure_eq!(&kept["verdict"], "damaged", "a repair without a second replica: {kept}");
    let corrupted = folder.join("spoilt");
    ensure!(fs::read(&corrupted).is_err(), "{} can be read", corrupted.display());
    let list = cluster.folder(cluster.node(Part::Management))?.join("lost");
    let forgotten = cluster.fsck_with(&["--repair", "--forget", &list.to_string_lossy()])?;
    ensure_eq!(&forgotten["verdict"], "repaired", "giving up: {forgotten}");
    cluster.ensure_clean()?;
    let text = fs::read_to_string(&list).at("the list of what is lost")?;
    for name in ["lost", "spoilt"] {
        let mut expected = Rng::new(3).bytes(FILE_BYTES);
        let of_it = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        for loss in of_it.filter(|loss| loss["path"] == format!("/damaged/{name}")) {
            let at = |end: &str| loss["range"][end].as_u64().unwrap_or(0) as usize;
            expected[at("start")..at("end")].fill(0);
        }
        let path = folder.join(name);
        ensure!(expected != Rng::new(3).bytes(FILE_BYTES), "{name} isn't in the list: {text}");
        ensure!(
            fs::read(&path).at(path.display())? == expected,
            "{name} is not as it was but for what is lost"
        );
    }
    Ok(())
}

/// The members with corrupted replicas.
#[derive(Clone, Copy)]
enum Members {
    Different,
    Last,
}

/// Kinds of corruption, one per file.
const CORRUPTIONS: [&str; 5] = ["flipped", "cut", "deleted", "swapped-a", "swapped-b"];

/// Replicas corrupted behind the services' backs are found while the cluster runs, repaired from
/// the other replica, and correct afterwards.
fn repaired_cluster(stage: &Stage) -> TestResult {
    let (mut cluster, folder) = mirrored_cluster(stage, "mend")?;
    exposed(&cluster)?;
    corrupt_and_repair(&mut cluster, &folder, Members::Different, |cluster| {
        cluster.service(Part::Storage(0)).terminate()?;
        cluster.service(Part::Storage(1)).terminate().map(drop)
    })?;
    cluster.stop()
}

/// The same if all corruption is on the member that was shut down last: the only one in sync, since
/// the other one has missed writes.
fn damaged_while_shut_down(stage: &Stage) -> TestResult {
    let (mut cluster, folder) = mirrored_cluster(stage, "shut")?;
    corrupt_and_repair(&mut cluster, &folder, Members::Last, |cluster| {
        cluster.service(Part::Storage(0)).terminate()?;
        for name in CORRUPTIONS {
            let path = folder.join(name);
            let file = File::options().write(true).open(&path).at(path.display())?;
            let begin = &content(name)[..5000];
            file.write_all_at(begin, 0).and_then(|()| file.sync_all()).at(path.display())?;
        }
        cluster.wait_until_degraded(0)?;
        cluster.service(Part::Storage(1)).terminate().map(drop)
    })?;
    cluster.stop()
}

/// Creates a cluster with a file with two replicas for each kind of corruption.
fn mirrored_cluster(stage: &Stage, name: &str) -> TestResult<(Cluster, PathBuf)> {
    let cluster = Cluster::start(stage, name, 2, 1)?;
    cluster.mirror_everything(2)?;
    let folder = cluster.shared_folder("mirrored")?.remove(0);
    for name in CORRUPTIONS {
        let path = folder.join(name);
        let file = File::create(&path).at(path.display())?;
        file.write_all_at(&content(name), 0).and_then(|()| file.sync_all()).at(path.display())?;
    }
    cluster.ensure_clean()?;
    Ok((cluster, folder))
}

fn content(name: &str) -> Vec<u8> {
    Rng::new(name.len() as u64 + u64::from(name.as_bytes()[name.len() - 1])).bytes(FILE_BYTES)
}

fn corrupt_and_repair(
    cluster: &mut Cluster,
    folder: &Path,
    members: Members,
    shut_down: impl FnOnce(&mut Cluster) -> TestResult,
) -> TestResult {
    let find = |name: &&str| chunk_files(cluster, &folder.join(name));
    let files: Vec<Vec<PathBuf>> = CORRUPTIONS.iter().map(find).collect::<TestResult<_>>()?;
    shut_down(cluster)?;
    let right: Vec<_> = files.iter().map(|copies| read_all(copies)).collect();
    corrupt(&files, members)?;
    [Part::Storage(0), Part::Storage(1)].iter().try_for_each(|part| cluster.restart(*part))?;
    cluster.wait_until_in_sync()?;
    let report = cluster.fsck()?;
    for ((name, copies), right) in CORRUPTIONS.iter().zip(&files).zip(right) {
        let object = format!("/mirrored/{name}");
        let findings = report["findings"].as_array().into_iter().flatten();
        let mut of_it = findings.filter(|finding| finding["object"] == *object);
        // If a member had missed writes, its resync repaired it.
        ensure!(
            of_it.any(|finding| finding["target"].is_u64() && finding["node"].is_string())
                || read_all(copies) == right,
            "{name}: {report}\n    {}",
            cluster.log()
        );
    }
    let repaired = cluster.fsck_with(&["--repair"])?;
    for left in repaired["findings"].as_array().into_iter().flatten().filter(|left| left["repaired"] != true)
    {
        // If all replicas are too long, none shows where the file ends. The finding names the
        // remedy.
        ensure_eq!(&left["kind"], "long-chunk-file", "the repair: {repaired}\n    {}", cluster.log());
        let name = left["object"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or("");
        let (path, copy) = (folder.join(name), folder.join("copy"));
        fs::copy(&path, &copy).and_then(|_| fs::rename(&copy, &path)).at(path.display())?;
    }
    cluster.ensure_clean()?;
    cluster.ensure_replicas_are_equal()?;
    for name in CORRUPTIONS {
        let path = folder.join(name);
        ensure!(fs::read(&path).at(path.display())? == content(name), "{name} is not what was written");
    }
    Ok(())
}

/// Returns the contents of files, empty for missing ones.
fn read_all(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| fs::read(path).unwrap_or_default()).collect()
}

/// Corrupts one replica of each file: either on different members for different files, or all on
/// the last member.
fn corrupt(files: &[Vec<PathBuf>], members: Members) -> TestResult {
    let copy = |file: usize| match members {
        Members::Different if file != 1 => &files[file][0],
        _ => &files[file][files[file].len() - 1],
    };
    let open = |path: &Path| File::options().write(true).open(path).at(path.display());
    open(copy(0))?.write_all_at(b"not what was written", 5000).at("flip")?;
    open(copy(1))?.set_len(300_000).at("cut")?;
    fs::remove_file(copy(2)).at("delete")?;
    // Two chunk files of one folder of chunks change places.
    let first = copy(3);
    let store = |path: &Path| path.ancestors().nth(3).map(Path::to_path_buf);
    let second = files[4].iter().find(|path| store(path) == store(first));
    let second = second.ok_or_else(|| format!("no chunk files that could be swapped: {files:?}"))?;
    let beside = first.with_extension("beside");
    fs::rename(first, &beside).and_then(|()| fs::rename(second, first)).at("swap")?;
    fs::rename(&beside, second).at("swap")
}

/// Of files with two replicas, the loss of one target would lose nothing, and leave everything with
/// one replica.
fn exposed(cluster: &Cluster) -> TestResult {
    let report = cluster.ask_management(|management| cluster.commands.exposure(management))?;
    let report: Value = serde_json::from_str(&report).map_err(|e| format!("weft health --exposure: {e}"))?;
    let bytes = (CORRUPTIONS.len() * FILE_BYTES) as u64;
    ensure_eq!(report["all"]["bytes"].as_u64(), Some(bytes), "bytes in {report}");
    let all = report["exposed"].as_array().cloned().unwrap_or_default();
    let targets: Vec<&Value> = all.iter().filter(|one| one["domain"]["target"].is_u64()).collect();
    ensure!(targets.len() == 2 && targets.iter().all(|one| one["lost"]["bytes"] == 0), "{report}");
    ensure!(targets.iter().all(|one| one["at_risk"]["bytes"].as_u64() == Some(bytes)), "{report}");
    ensure!(targets.iter().all(|one| one["top"][0]["path"] == "/mirrored"), "{report}");
    Ok(())
}

/// Returns the chunk files of a file on all targets.
fn chunk_files(cluster: &Cluster, path: &Path) -> TestResult<Vec<PathBuf>> {
    let name = format!("{:016x}", fs::metadata(path).at(path.display())?.ino());
    let mut found = Vec::new();
    for part in cluster.servers() {
        let mut waiting = vec![cluster.folder(cluster.node(part))?.join("target")];
        while let Some(folder) = waiting.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                match entry.path() {
                    path if path.is_dir() => waiting.push(path),
                    path if path.file_name().is_some_and(|n| n.to_string_lossy() == name) => found.push(path),
                    _ => {}
                }
            }
        }
    }
    ensure!(!found.is_empty(), "no chunk file is called {name}");
    Ok(found)
}
