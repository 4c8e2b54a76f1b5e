//! `kill -9` of the process under load: all guarantees must hold afterwards, and nothing may hang.

use super::cleanup::{self, Resource};
use super::outcome::{At, Failure, TestResult, ensure, ensure_eq};
use super::rig::{Rig, RigOptions, Transport};
use super::stage::Stage;
use super::{Content, Rng, Scope, TestCase};
use crate::helper::{CHANGING_FILES, Guarantee, LOG_RECORD_BYTES, SLOT_BYTES, SLOTS, names};
use crate::process;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub(super) const TESTS: &[TestCase] =
    &[TestCase { name: "kill_under_load", scope: Scope::Own, minutes: 15, run: kill_under_load }];

/// Rounds in the short and the long form.
const ROUNDS: (u64, u64) = (10, 50);

/// Number of programs that change files concurrently.
const LOADERS: u64 = 2;

/// Longest time until a program notices that its file system has failed.
const END_DEADLINE: Duration = Duration::from_secs(120);

/// Time from the start of the load to the kill, in milliseconds.
const KILL_MS: std::ops::Range<u64> = 100..3000;

/// A load program whose file system is killed, and the guarantees it received.
struct Loader {
    child: Child,
    guarantees: Option<JoinHandle<Vec<Guarantee>>>,
}

impl Loader {
    fn start(dir: &Path, seed: u64) -> TestResult<Loader> {
        fs::create_dir(dir).at(dir.display())?;
        let mut command = Command::new(process::this_program());
        command.args(["helper", "load", "--seed", &seed.to_string()]).arg(dir);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.at("the loader")?;
        cleanup::register(Resource::Process(child.id() as i32));
        let mut lines = BufReader::new(child.stdout.take().expect("standard output was asked to be a pipe"));
        let guarantees = thread::spawn(move || {
            let mut guarantees = Vec::new();
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
                guarantees.extend(Guarantee::parse(&line));
                line.clear();
            }
            guarantees
        });
        Ok(Loader { child, guarantees: Some(guarantees) })
    }

    /// Waits for its end and returns the guarantees.
    fn finish(mut self) -> TestResult<Vec<Guarantee>> {
        let ended = process::wait(&mut self.child, END_DEADLINE).at("the loader")?;
        if ended.is_none() {
            let pid = self.child.id();
            return Err(
                format!("process {pid} still waits for a dead file system ({})", state_of(pid)).into()
            );
        }
        let guarantees = self.guarantees.take().expect("taken only here");
        guarantees.join().map_err(|_| Failure::Failed("the reader of guarantees panicked".to_string()))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(process::wait(&mut self.child, END_DEADLINE));
        cleanup::unregister(&Resource::Process(self.child.id() as i32));
    }
}

/// Returns the state line of a process, for messages.
fn state_of(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find(|line| line.starts_with("State")).unwrap_or("gone").to_string()
}

/// Returns processes of this run that wait in the kernel for a FUSE reply and can't be killed.
/// Processes of concurrent runs are in other network namespaces.
fn stuck_processes() -> Vec<String> {
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let ours = network("self");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    ids.filter(|pid| state_of(*pid).contains('D') && network(&pid.to_string()) == ours)
        .map(|pid| (pid, fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default()))
        .filter(|(_, place)| place.contains("fuse") || place.contains("request_wait"))
        .map(|(pid, place)| format!("{pid} in {place}"))
        .collect()
}

fn kill_under_load(stage: &Stage) -> TestResult {
    let rounds = if stage.full { ROUNDS.1 } else { ROUNDS.0 };
    let seed = u64::from(std::process::id());
    println!("kill_under_load: {rounds} rounds from seed {seed}");
    let mut rng = Rng::new(seed);
    for (transport, rounds) in [(Transport::Uring, rounds.div_ceil(2)), (Transport::Dev, rounds / 2)] {
        let name = format!("crash-{}", transport.name());
        let mut rig = stage.start_rig(&name, RigOptions::new(transport))?;
        for round in 0..rounds {
            let what =
                |failure| in_round(failure, &format!("{} round {round} of seed {seed}", transport.name()));
            crash(&mut rig, round, &mut rng).map_err(what)?;
        }
        rig.down()?;
    }
    Ok(())
}

fn in_round(failure: Failure, round: &str) -> Failure {
    match failure {
        Failure::Failed(message) => Failure::Failed(format!("{round}: {message}")),
        skipped => skipped,
    }
}

/// Runs one round: load, kill, inspection, restart, comparison with the guarantees, file system
/// check.
fn crash(rig: &mut Rig, round: u64, rng: &mut Rng) -> TestResult {
    let dirs: Vec<_> =
        (0..LOADERS).map(|loader| rig.mount().join(format!("round-{round}-{loader}"))).collect();
    let loaders: Vec<Loader> =
        dirs.iter().map(|dir| Loader::start(dir, rng.next())).collect::<TestResult<_>>()?;
    thread::sleep(Duration::from_millis(KILL_MS.start + rng.below(KILL_MS.end - KILL_MS.start)));
    rig.kill();
    let guarantees: Vec<Vec<Guarantee>> =
        loaders.into_iter().map(Loader::finish).collect::<TestResult<_>>()?;
    ensure_eq!(stuck_processes(), Vec::<String>::new(), "processes stuck after the kill");
    rig.unmount()?;
    if round % 3 == 2 {
        // A crash soon after the restart, possibly during recovery.
        let mut again =
            rig.up_command().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let again = again.as_mut().map_err(|error| format!("weft up: {error}"))?;
        cleanup::register(Resource::Process(again.id() as i32));
        thread::sleep(Duration::from_millis(rng.below(300)));
        drop(again.kill());
        drop(again.wait());
        cleanup::unregister(&Resource::Process(again.id() as i32));
        rig.unmount()?;
    }
    rig.up()?;
    let mut kept = 0;
    for (dir, guarantees) in dirs.iter().zip(&guarantees) {
        Guarantees::of(guarantees).check(dir)?;
        kept += guarantees.len();
    }
    ensure!(kept > 0, "the load printed no guarantee before the kill");
    rig.down()?;
    rig.fsck()?;
    rig.up()
}

/// Everything that must hold after the crash of one load's file system.
#[derive(Debug, Default, PartialEq, Eq)]
struct Guarantees {
    /// New files and their lengths.
    new: BTreeMap<u64, u64>,
    /// New files below this id don't exist; the one with this id may exist.
    removed: u64,
    replaced: BTreeMap<u64, u64>,
    slots: BTreeMap<u64, u64>,
    records: u64,
}

impl Guarantees {
    fn of(guarantees: &[Guarantee]) -> Guarantees {
        let mut expected = Guarantees::default();
        for guarantee in guarantees {
            match *guarantee {
                Guarantee::New { id, length } => drop(expected.new.insert(id, length)),
                Guarantee::Removed { id } => expected.removed = id + 1,
                Guarantee::Replaced { id, version } => drop(expected.replaced.insert(id, version)),
                Guarantee::Slot { id, version } => drop(expected.slots.insert(id, version)),
                Guarantee::Log { records } => expected.records = records,
            }
        }
        expected
    }

    fn check(&self, dir: &Path) -> TestResult {
        for (&id, &length) in &self.new {
            let path = dir.join(names::new_file(id));
            if id < self.removed {
                ensure!(!path.exists(), "{} was removed and is there again", path.display());
            } else if id > self.removed || path.exists() {
                let read = fs::read(&path).at(path.display())?;
                let found = Content::recognise(&read);
                let expected = Content { id, version: 0, length };
                ensure_eq!(found, Some(expected), "{} ({} bytes)", path.display(), read.len());
            }
        }
        for id in 0..CHANGING_FILES {
            let Some(&version) = self.replaced.get(&id) else { continue };
            let path = dir.join(names::replaced(id));
            let found = Content::recognise(&fs::read(&path).at(path.display())?);
            let good =
                found.is_some_and(|found| found.id == id && [version, version + 1].contains(&found.version));
            ensure!(good, "{} contains {found:?}, guaranteed version {version}", path.display());
        }
        self.check_slots(dir)?;
        self.check_log(dir)
    }

    /// The crash may have interrupted one overwrite; each of its bytes is then old or new.
    fn check_slots(&self, dir: &Path) -> TestResult {
        let path = dir.join(names::SLOTTED);
        let read = if self.slots.is_empty() { Vec::new() } else { fs::read(&path).at(path.display())? };
        let mut caught = 0;
        for id in 0..SLOTS {
            let Some(&version) = self.slots.get(&id) else { continue };
            let range = (id * SLOT_BYTES) as usize..((id + 1) * SLOT_BYTES) as usize;
            let Some(found) = read.get(range) else {
                return Err(format!("{} ends before slot {id}", path.display()).into());
            };
            let content = |version| Content { id, version, length: SLOT_BYTES }.bytes();
            let (old, new) = (content(version), content(version + 1));
            caught += u64::from(found != old);
            let mixed =
                found.iter().zip(&old).zip(&new).all(|((found, old), new)| found == old || found == new);
            ensure!(mixed, "slot {id} of {} violates a guarantee", path.display());
        }
        ensure!(caught <= 1, "{caught} slots of {} differ; one overwrite was under way", path.display());
        Ok(())
    }

    fn check_log(&self, dir: &Path) -> TestResult {
        let path = dir.join(names::LOG);
        let read = if self.records == 0 { Vec::new() } else { fs::read(&path).at(path.display())? };
        let mut records = read.chunks(LOG_RECORD_BYTES as usize);
        for id in 0..self.records {
            let found = records.next().and_then(Content::recognise);
            let expected = Content { id, version: 0, length: LOG_RECORD_BYTES };
            ensure_eq!(found, Some(expected), "record {id} of {} guaranteed ones", self.records);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: TestResult) -> String {
        match result {
            Ok(()) => "kept".to_string(),
            Err(Failure::Failed(message) | Failure::Skipped(message)) => message,
        }
    }

    /// The check must be able to fail: it detects each broken guarantee.
    #[test]
    fn broken_guarantees_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let write = |name: &str, id, version, length| {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), Content { id, version, length }.bytes()).unwrap();
        };
        let check = |guarantee| Guarantees::of(&[guarantee]).check(dir.path());

        let new = Guarantee::New { id: 5, length: 100 };
        assert!(message(check(new)).contains("No such file"));
        write(&names::new_file(5), 5, 0, 100);
        assert_eq!(message(check(new)), "kept");
        fs::write(at(&names::new_file(5)), [0; 100]).unwrap();
        assert!(message(check(new)).contains("100 bytes"));
        assert!(
            message(Guarantees::of(&[new, Guarantee::Removed { id: 5 }]).check(dir.path()))
                .contains("there again")
        );

        write(&names::replaced(1), 1, 7, 50);
        for (version, kept) in [(6, true), (7, true), (8, false)] {
            assert_eq!(message(check(Guarantee::Replaced { id: 1, version })) == "kept", kept);
        }
        write(names::SLOTTED, 0, 3, SLOT_BYTES);
        for (version, kept) in [(1, false), (2, true), (3, true), (4, false)] {
            assert_eq!(message(check(Guarantee::Slot { id: 0, version })) == "kept", kept);
        }
        assert!(message(check(Guarantee::Slot { id: 1, version: 1 })).contains("ends before"));
        write(names::LOG, 0, 0, LOG_RECORD_BYTES);
        assert_eq!(message(check(Guarantee::Log { records: 1 })), "kept");
        assert!(message(check(Guarantee::Log { records: 2 })).contains("record 1"));
    }
}
