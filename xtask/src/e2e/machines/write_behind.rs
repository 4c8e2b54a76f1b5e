//! Mounts with write-behind: other mounts see delayed writes, and closed or synced data survives a
//! crash of the mount.

use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::faults::Fault;
use super::kills::killed_once;
use super::{Cluster, Part, Shape};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase {
        name: "write_behind_while_services_crash",
        scope: Scope::Own,
        minutes: 5,
        run: killed_services,
    },
    TestCase { name: "write_behind_of_a_killed_mount", scope: Scope::Own, minutes: 3, run: killed_mount },
];

const OPTIONS: &[&str] = &["--write-behind"];
/// Crashes per service, and of the mount, in the short and the long form.
const ROUNDS: (u64, u64) = (1, 20);
/// Bytes of a small write, and number of such writes per file: several times the amount that is
/// sent together.
const PIECE: usize = 1000;
const PIECES: usize = 2_000;
/// Longest time that a write is delayed, including its write-back.
const WRITE_BEHIND_DEADLINE: Duration = Duration::from_secs(5);

/// Each kind of service crashes in turn; the history is linearizable, and no application gets an
/// error.
fn killed_services(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 1, storage: 2, clients: 2, timeout: None };
    let mut cluster = Cluster::build_mounted(stage, "behind", shape, OPTIONS)?;
    for round in stage.rounds(ROUNDS) {
        for part in [Part::Management, Part::Metadata(0), Part::Storage(round as usize % 2)] {
            killed_once(stage, &mut cluster, part, round)?;
        }
    }
    cluster.stop()
}

fn piece(number: usize) -> Vec<u8> {
    format!("{number:0width$}", width = PIECE).into_bytes()
}

/// Writes consecutive pieces.
fn write_pieces(path: &Path, pieces: std::ops::Range<usize>) -> TestResult<File> {
    let mut file = File::options().create(true).append(true).open(path).at(path.display())?;
    for number in pieces {
        file.write_all(&piece(number)).at(path.display())?;
    }
    Ok(file)
}

/// Returns the number of pieces in a file, which must be a prefix of all pieces.
fn pieces_of(path: &Path) -> TestResult<usize> {
    let found = fs::read(path).at(path.display())?;
    let expected: Vec<u8> = (0..=found.len() / PIECE).flat_map(piece).take(found.len()).collect();
    ensure!(found == expected, "{} isn't what was written first", path.display());
    Ok(found.len() / PIECE)
}

fn killed_mount(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 0, storage: 2, clients: 2, timeout: None };
    let mut cluster = Cluster::build_mounted(stage, "behind-dies", shape, OPTIONS)?;
    for round in stage.rounds(ROUNDS) {
        let folders = cluster.shared_folder(&format!("round-{round}"))?;
        let [closed, synced, kept, recent] =
            ["closed", "synced", "kept", "recent"].map(|name| folders[0].join(name));
        let mut open = vec![write_pieces(&kept, 0..PIECES)?];
        let since = Instant::now();
        // Another mount sees the data while it is delayed here.
        ensure_eq!(pieces_of(&folders[1].join("kept"))?, PIECES, "pieces that the other mount finds");
        open.push(write_pieces(&kept, PIECES..PIECES + 1)?);
        thread::sleep(WRITE_BEHIND_DEADLINE.saturating_sub(since.elapsed()));
        drop(write_pieces(&closed, 0..PIECES)?);
        let file = write_pieces(&synced, 0..PIECES)?;
        file.sync_all().at(synced.display())?;
        open.push(file);
        open.push(write_pieces(&recent, 0..PIECES)?);
        cluster.inject(Part::Client(0), Fault::Killed)?;
        drop(open);
        // Answered when the cluster has ended the dead mount's session.
        for (name, pieces) in [("closed", PIECES), ("synced", PIECES), ("kept", PIECES + 1)] {
            ensure_eq!(pieces_of(&folders[1].join(name))?, pieces, "pieces of {name}");
        }
        let left = pieces_of(&folders[1].join("recent"))?;
        ensure!(left <= PIECES, "{left} pieces are left of {PIECES}");
        cluster.repair(Part::Client(0), Fault::Killed)?;
        cluster.ensure_clean()?;
    }
    cluster.stop()
}
