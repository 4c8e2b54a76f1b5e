//! Files whose redundancy changes while applications use them and services crash.

use super::super::outcome::{At, Failure, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase, suites};
use super::faults::Fault;
use super::two_mounts::differences;
use super::{Cluster, Part, Shape};
use crate::process;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] =
    &[TestCase { name: "migrate_files_in_use", scope: Scope::Own, minutes: 10, run: files_in_use }];

/// Longest time until all files have moved once.
const DEADLINE: Duration = Duration::from_secs(240);
/// Files that don't change meanwhile, and their size: several chunks on each target.
const FILES: usize = 12;
const FILE_BYTES: usize = 6 << 20;

impl Cluster {
    /// Returns the command that migrates all files below a folder.
    fn migrate(&self, folder: &Path, scheme: &str) -> Command {
        self.migrate_by(&[], folder, scheme)
    }

    /// The same, started through another program.
    fn migrate_by(&self, starter: &[&str], folder: &Path, scheme: &str) -> Command {
        let node = self.node(Part::Client(1));
        let mut command = match starter {
            [] => node.command(self.commands.weft()),
            [program, args @ ..] => {
                let mut command = node.command(*program);
                command.args(args).arg(self.commands.weft());
                command
            }
        };
        command.args(["migrate", "--recursive", "--json", "--scheme", scheme]).arg(folder);
        command
    }

    /// Checks that all groups of all files have this scheme.
    fn ensure_all_are(&self, folder: &Path, scheme: &str) -> TestResult {
        for entry in fs::read_dir(folder).at(folder.display())?.flatten() {
            let mut command = self.node(Part::Client(0)).command(self.commands.weft());
            command.args(["entry", "info", "--json"]).arg(entry.path());
            let said = process::run_ok(&mut command, DEADLINE)?.stdout;
            let said: Value =
                serde_json::from_str(&said).map_err(|error| format!("weft entry info: {error}"))?;
            let groups = said["layout"]["groups"].as_array();
            let are = groups.is_some_and(|groups| groups.iter().all(|group| group["scheme"] == scheme));
            ensure!(are, "{} isn't all {scheme}: {said}", entry.path().display());
        }
        Ok(())
    }
}

/// Repeated migrations while fsx and fio use some of the files; then while a metadata service and a
/// storage node crash.
fn files_in_use(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 1, storage: 4, clients: 2, timeout: None };
    let mut cluster = Cluster::build(stage, "migrate", shape)?;
    let folders = cluster.shared_folder("files")?;
    for name in ["still", "fsx", "fio"] {
        fs::create_dir(folders[0].join(name)).at(name)?;
    }
    let contents: Vec<Vec<u8>> = (0..FILES).map(|file| Rng::new(file as u64 + 1).bytes(FILE_BYTES)).collect();
    let still = |mount: usize| folders[mount].join("still");
    for (file, content) in contents.iter().enumerate() {
        fs::write(still(0).join(file.to_string()), content).at("a file")?;
    }
    migrate_in_use(stage, &cluster, &folders)?;
    ensure_contents(&still(0), &contents)?;
    for (scheme, part) in
        [("mirror:2", Part::Metadata(0)), ("single", Part::Storage(1)), ("mirror:2", Part::Management)]
    {
        let mut command = cluster.migrate(&folders[1], scheme);
        let moved = thread::scope(|scope| {
            let moving = scope.spawn(move || carry_out(&mut command));
            // By then the migration has begun, but hasn't come far.
            thread::sleep(Duration::from_millis(700));
            cluster.inject(part, Fault::Killed)?;
            cluster.repair(part, Fault::Killed)?;
            moving.join().map_err(|_| Failure::Failed("the thread panicked".into()))?
        })?;
        println!("{moved} files moved to {scheme} although {part:?} was killed meanwhile");
        cluster.wait_until_healthy()?;
        cluster.ensure_all_are(&still(0), scheme)?;
        ensure_contents(&still(0), &contents)?;
    }
    for (scheme, signal) in [("single", "INT"), ("mirror:2", "KILL")] {
        interrupt(&cluster, &folders[1], scheme, signal)?;
        carry_out(&mut cluster.migrate(&folders[1], scheme))?;
        cluster.ensure_all_are(&still(0), scheme)?;
        ensure_contents(&still(0), &contents)?;
    }
    cluster.wait_until_in_sync()?;
    cluster.ensure_replicas_are_equal()?;
    ensure_eq!(differences(&folders[0], &folders[1]).at("comparing")?, Vec::<String>::new(), "two mounts");
    cluster.ensure_clean()?;
    cluster.stop()
}

/// Interrupts the command unless it has finished; it reports that if it can.
fn interrupt(cluster: &Cluster, folder: &Path, scheme: &str, signal: &str) -> TestResult {
    let starter = ["timeout", "--preserve-status", "-s", signal, "0.15"];
    let cut = process::run(&mut cluster.migrate_by(&starter, folder, scheme), DEADLINE)?;
    if cut.code() == 0 {
        println!("weft migrate was done before SIG{signal}");
    } else if signal == "INT" {
        let said: Value = serde_json::from_str(&cut.stdout)
            .map_err(|error| format!("weft migrate: no JSON: {error}: {}", cut.tail()))?;
        ensure_eq!(said["interrupted"], true, "whether it says that it was interrupted");
        println!("weft migrate was interrupted with {} files under way", said["under_way"]);
    }
    Ok(())
}

/// Runs the command to its end. Returns the number of migrated files.
fn carry_out(command: &mut Command) -> TestResult<u64> {
    let said = process::run_ok(command, DEADLINE)?.stdout;
    let said: Value =
        serde_json::from_str(&said).map_err(|error| format!("weft migrate: no JSON: {error}: {said}"))?;
    ensure_eq!(said["failed"], 0, "files that could not be moved");
    Ok(said["files_moved"].as_u64().unwrap_or(0))
}

fn ensure_contents(folder: &Path, contents: &[Vec<u8>]) -> TestResult {
    for (file, content) in contents.iter().enumerate() {
        let path = folder.join(file.to_string());
        let found = fs::read(&path).at(path.display())?;
        ensure_eq!(found.len(), content.len(), "length of {}", path.display());
        let wrong: Vec<usize> = (0..content.len()).filter(|&at| found[at] != content[at]).collect();
        if let (Some(first), Some(last)) = (wrong.first(), wrong.last()) {
            let zeros = wrong.iter().filter(|&&at| found[at] == 0).count();
            let (count, path) = (wrong.len(), path.display());
            return Err(Failure::Failed(format!(
                "{path} isn't what was written: {count} bytes between {first} and {last} differ, {zeros} of them are zero"
            )));
        }
    }
    Ok(())
}

/// Migrates all files repeatedly until the programs have ended.
fn migrate_in_use(stage: &Stage, cluster: &Cluster, folders: &[std::path::PathBuf]) -> TestResult {
    let operations = if stage.full { 30_000 } else { 2_000 };
    let fsx_file = folders[0].join("fsx/file");
    let mut fsx = suites::fsx_command(stage, &fsx_file, suites::FSX_SEEDS[0], operations)?;
    let fio = [folders[0].join("fio"), folders[1].join("fio")];
    let (is_over, root) = (AtomicBool::new(false), &folders[1]);
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            let done = process::run_ok(&mut fsx, Duration::from_secs(600));
            let verified = suites::fio_write_and_verify(stage, &fio[0], &fio[1]);
            is_over.store(true, Ordering::Relaxed);
            verified?;
            Ok::<_, Failure>(done?)
        });
        let (mut moved, mut rounds) = (0, 0);
        while rounds < 2 || !is_over.load(Ordering::Relaxed) {
            for scheme in ["mirror:2", "single"] {
                moved += carry_out(&mut cluster.migrate(root, scheme))?;
                rounds += 1;
            }
        }
        let done = working.join().map_err(|_| Failure::Failed("the programs' thread panicked".into()))??;
        let said = format!("{}{}", done.stdout, done.stderr);
        ensure!(said.contains("A-OK"), "fsx doesn't say that all is well: {}", done.tail());
        println!("{moved} files moved in {rounds} rounds while fsx and fio worked on them");
        ensure!(moved as usize > 2 * FILES, "hardly anything moved");
        TestResult::Ok(())
    })
}
