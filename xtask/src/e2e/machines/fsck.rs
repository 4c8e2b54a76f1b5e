//! The check of a cluster that is being used: what programs are doing is no damage, and damage is found.

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

pub(in super::super) const TESTS: &[TestCase] =
    &[TestCase { name: "fsck_of_a_running_cluster", scope: Scope::Own, minutes: 5, run: running_cluster }];

/// How long a check may take: a busy file is looked at a few times.
const DEADLINE: Duration = Duration::from_secs(300);

const FILE_BYTES: usize = 3 << 20;

impl Cluster {
    /// What `weft fsck` tells of the cluster, whatever that is.
    pub fn fsck(&self) -> TestResult<Value> {
        let node = self.node(Part::Management);
        let arguments = self.commands.fsck(&self.folder(node)?.join("state"));
        let done = process::run(node.command(self.commands.weft()).args(arguments), DEADLINE)?;
        let told: Value = serde_json::from_str(&done.stdout)
            .map_err(|error| Failure::Failed(format!("weft fsck: no JSON: {error}: {}", done.tail())))?;
        let expected = if told["verdict"] == "clean" { 0 } else { 4 };
        ensure_eq!(done.code(), expected, "exit status of weft fsck, which says {told}");
        Ok(told)
    }

    /// The check finds nothing.
    pub fn ensure_clean(&self) -> TestResult {
        let told = self.fsck()?;
        ensure!(told["verdict"] == "clean", "weft fsck: {told}\n    {}", self.log());
        Ok(())
    }
}

fn running_cluster(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "fsck", 2, 2)?;
    let folders = cluster.shared_folder("used")?;
    let seconds = if stage.full { 300 } else { 6 };
    let plan = LoadPlan { threads: 2, seconds, seed: u64::from(std::process::id()), mix: Mix::All };
    let load = Load::start(&folders, &stage.scratch("fsck-history")?, plan)?;
    let start = Instant::now();
    let mut checks = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        cluster.ensure_clean()?;
        checks += 1;
    }
    let (outcome, _) = load.finish(Limits::default())?;
    ensure!(outcome.calls > 1000 && checks > 0, "too little went on beside {checks} checks: {outcome:?}");
    damage_is_found(&mut cluster)?;
    cluster.stop()
}

fn damage_is_found(cluster: &mut Cluster) -> TestResult {
    let folder = &cluster.shared_folder("damaged")?[0];
    let (lost, spoilt) = (folder.join("lost"), folder.join("spoilt"));
    for path in [&lost, &spoilt] {
        let file = File::create(path).at(path.display())?;
        file.write_all_at(&Rng::new(3).bytes(FILE_BYTES), 0).at(path.display())?;
        file.sync_all().at(path.display())?;
    }
    cluster.ensure_clean()?;
    let (lost, spoilt) = (chunk_files(cluster, &lost)?, chunk_files(cluster, &spoilt)?);
    // A node that runs has its files open. One that is killed takes what it was just writing as it finds it, so they stop in good order.
    let storage = [Part::Storage(0), Part::Storage(1)];
    storage.iter().try_for_each(|part| cluster.service(*part).terminate().map(drop))?;
    fs::remove_file(&lost[0]).at(lost[0].display())?;
    let file = File::options().write(true).open(&spoilt[0]).at(spoilt[0].display())?;
    file.write_all_at(b"not what was written", 5000).and_then(|()| file.sync_all()).at("damage")?;
    storage.iter().try_for_each(|part| cluster.restart(*part))?;
    cluster.wait_until_healthy()?;
    let told = cluster.fsck()?;
    let findings: Vec<(&str, &str)> = told["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|finding| (finding["kind"].as_str().unwrap_or(""), finding["object"].as_str().unwrap_or("")))
        .collect();
    let expected = [("damaged-content", "/damaged/spoilt"), ("missing-chunk-file", "/damaged/lost")];
    for finding in expected {
        ensure!(findings.contains(&finding), "weft fsck doesn't tell of {finding:?}: {told}");
    }
    ensure_eq!(findings.len(), expected.len(), "findings of {told}");
    Ok(())
}

/// The chunk files of a file, on all targets.
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
