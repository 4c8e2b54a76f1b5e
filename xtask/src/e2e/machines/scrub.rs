//! Scrub: chunk files corrupted on one node's disk behind its service's back are found, and
//! repaired from other nodes.

use super::super::netns::Role;
use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase};
use super::{Cluster, Shape};
use crate::process;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[TestCase {
    name: "mirrored_damage_is_scrubbed_and_repaired",
    scope: Scope::Own,
    minutes: 6,
    run: scrub_finds_damage,
}];

/// Number of nodes: more than a group has members, so that the damaged node is primary of some
/// groups and secondary of others.
const STORAGE: u8 = 3;
/// Number of files in the short and the long form.
const FILES: (u64, u64) = (150, 1000);
/// One in this many files isn't read before the scrub. Reads detect only some of the damage: the
/// client reads about half of the files from the other node. The service also has some chunk files
/// open, and doesn't notice that they were renamed.
const UNREAD: u64 = 5;
const FILE_BYTES: usize = 150_000;
const DEADLINE: Duration = Duration::from_secs(300);
/// Time without changes before the corruption: the intent log's notes of the writes expire in it,
/// so a later rename isn't attributed to a recent write.
const QUIET: Duration = Duration::from_secs(12);

/// Longest time until the first damage detected by reads is repaired and reported to management.
const FIRST_REPORT_WITHIN: Duration = Duration::from_secs(60);
/// Time without a further report after which all are assumed to have arrived: some heartbeats.
const REPORTS_COMPLETE_AFTER: Duration = Duration::from_secs(8);

/// Number of kinds of corruption; the last two affect two chunk files.
const CORRUPTION_KINDS: usize = 8;

fn scrub_finds_damage(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 0, storage: STORAGE, clients: 2, timeout: None };
    let cluster = Cluster::build(stage, "scrub", shape)?;
    cluster.mirror_everything(2)?;
    let folders = cluster.shared_folder("files")?;
    let files = if stage.full { FILES.1 } else { FILES.0 };
    let content = |file: u64| Rng::new(file + 1).bytes(FILE_BYTES);
    for file in 0..files {
        let path = folders[0].join(file.to_string());
        fs::write(&path, content(file)).at(path.display())?;
    }
    cluster.ensure_replicas_are_equal()?;
    std::thread::sleep(QUIET);
    let (_, target) = cluster.target_of(0)?;
    let corrupted = corrupt_all(&target.join("groups"))?;
    ensure!(corrupted > files / 4, "only {corrupted} chunk files are on this node");
    // Some files are read before the scrub reaches them, by a machine that has none of them cached.
    let read = |file: u64| {
        let path = folders[1].join(file.to_string());
        ensure!(fs::read(&path).at(path.display())? == content(file), "file {file} isn't what was written");
        TestResult::Ok(())
    };
    (0..files).filter(|file| file % UNREAD != 0).try_for_each(read)?;
    let mut on_read = scrub_totals(&cluster.scrubs()?);
    process::eventually(FIRST_REPORT_WITHIN, || {
        on_read = cluster.scrubs().map_or(on_read, |status| scrub_totals(&status));
        on_read.repaired > 0
    });
    loop {
        std::thread::sleep(REPORTS_COMPLETE_AFTER);
        let more = scrub_totals(&cluster.scrubs()?);
        if more.repaired == on_read.repaired {
            break;
        }
        on_read = more;
    }
    ensure!(on_read.repaired > 0, "no read has met any damage: {on_read:?}");
    let first = cluster.scrub_all(STORAGE)?;
    ensure!(
        on_read.repaired + first.repaired >= corrupted,
        "{corrupted} chunk files were spoilt; reads found {on_read:?}, and a search {first:?}"
    );
    println!("{corrupted} chunk files were spoilt; reads found {on_read:?}, and a search {first:?}");
    let status = cluster.health_text()?;
    ensure!(status.contains("damaged ranges"), "weft health doesn't report the findings: {status}");
    (0..files).try_for_each(read)?;
    cluster.ensure_replicas_are_equal()?;
    ensure_eq!(cluster.degraded_groups()?, 0, "groups with an ejected member");
    let second = cluster.scrub_all(STORAGE)?;
    ensure_eq!((second.damaged, second.missing), (0, 0), "findings left by the first scrub");
    cluster.wait_until_healthy()?;
    cluster.ensure_clean()?;
    cluster.stop()
}

/// Result of a scrub of all targets.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScrubTotals {
    pub(super) damaged: u64,
    pub(super) repaired: u64,
    pub(super) missing: u64,
}

fn scrub_totals(status: &Value) -> ScrubTotals {
    let sum = |field: &str| -> u64 {
        status["targets"].as_array().into_iter().flatten().filter_map(|target| target[field].as_u64()).sum()
    };
    ScrubTotals { damaged: sum("damaged"), repaired: sum("mended"), missing: sum("missing") }
}

/// Corrupts each chunk file below a folder. Returns their number.
fn corrupt_all(root: &Path) -> TestResult<u64> {
    let (mut folders, mut files) = (vec![root.to_path_buf()], Vec::<PathBuf>::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).at(folder.display())?.flatten() {
            let path = entry.path();
            match path.file_name().and_then(|name| name.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some(name) if name.len() == 16 => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    for (at, path) in files.iter().enumerate() {
        let open = || File::options().write(true).open(path).at(path.display());
        let sums = |path: &Path| path.with_extension("sum");
        match at % CORRUPTION_KINDS {
            0 => open()?.write_all_at(b"not what was written", 5000 + at as u64).at(path.display())?,
            1 => open()?.set_len(at as u64 * 100).at(path.display())?,
            2 => fs::remove_file(path).at(path.display())?,
            3 => {
                fs::remove_file(path).at(path.display())?;
                // The checksums of a file in use may not exist yet.
                let _ = fs::remove_file(sums(path));
            }
            4 | 6 if at + 1 < files.len() => {
                swap(path, &files[at + 1])?;
                let both = [sums(path), sums(&files[at + 1])];
                if at % CORRUPTION_KINDS == 6 && both.iter().all(|path| path.exists()) {
                    swap(&both[0], &both[1])?;
                }
            }
            4 | 6 => open()?.write_all_at(b"not what was written", 0).at(path.display())?,
            // It was swapped with the previous one.
            _ => {}
        }
    }
    Ok(files.len() as u64)
}

fn swap(one: &Path, other: &Path) -> TestResult {
    let between = one.with_extension("swap");
    for (from, to) in [(one, &*between), (other, one), (&*between, other)] {
        fs::rename(from, to).at(from.display())?;
    }
    Ok(())
}

impl Cluster {
    /// Scrubs all targets once. Returns the result.
    pub(super) fn scrub_all(&self, storage: u8) -> TestResult<ScrubTotals> {
        self.ask_management(|management| self.commands.scrub(management, "start"))?;
        let mut status = Value::Null;
        let has_ended = process::eventually(DEADLINE, || {
            self.scrubs().is_ok_and(|scrubs| {
                status = scrubs;
                let targets = status["targets"].as_array().map_or(&[][..], Vec::as_slice);
                let is_done =
                    |t: &Value| t["asked"] == status["settings"]["asked"] && t["is_running"] == false;
                targets.len() == usize::from(storage) && targets.iter().all(is_done)
            })
        });
        ensure!(has_ended, "the scrub doesn't end: {status}\n    {}", self.log());
        println!("a scrub found {status}");
        Ok(scrub_totals(&status))
    }

    /// Returns the progress of scrubs.
    fn scrubs(&self) -> TestResult<Value> {
        let status = self.ask_management(|management| self.commands.scrub(management, "status"))?;
        serde_json::from_str(&status).map_err(|error| format!("weft scrub status: no JSON: {error}").into())
    }

    /// Returns the output of `weft health`, whatever the verdict.
    pub fn health_text(&self) -> TestResult<String> {
        let node = self.network.node(Role::Management, 0);
        let arguments = self.commands.health(&self.folder(node)?.join("state"));
        let asked = process::run(node.command(self.commands.weft()).args(&arguments), DEADLINE)?;
        Ok(asked.stdout)
    }
}
