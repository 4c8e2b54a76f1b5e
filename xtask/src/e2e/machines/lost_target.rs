//! A storage node fails permanently, and with it the only replicas of files: its target is removed
//! with its data. These files return errors, other and new files are intact, and no trace remains
//! after the lost files are deleted.

use super::super::outcome::{At, Failure, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase};
use super::faults::Fault;
use super::{Cluster, Part};
use crate::process;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[TestCase {
    name: "target_removed_with_only_copies",
    scope: Scope::Own,
    minutes: 6,
    run: removed_with_only_copies,
}];

/// Number of storage nodes, and the failed one.
const STORAGE: u8 = 3;
const LOST_NODE: usize = 0;
/// Number of files, so that each node has some, and their size: several chunks.
const FILES: usize = 24;
const FILE_BYTES: usize = 3 << 20;
/// Time that a target must be missing before its sole replicas may be given up; management enforces
/// a minimum.
const GIVEN_UP_AFTER: &str = "5s";
const DEADLINE: Duration = Duration::from_secs(180);

/// Contents of files by name.
type Contents = BTreeMap<String, Vec<u8>>;

impl Cluster {
    /// Returns exit status and output of a command on the management node, whatever they are.
    fn output_of(&self, words: &[&str]) -> TestResult<(i32, String)> {
        let node = self.node(Part::Management);
        let dir = self.folder(node)?.join("state");
        let mut command = node.command(self.commands.weft());
        command.args(words).arg("--dir").arg(dir);
        let done = process::run(&mut command, DEADLINE)?;
        Ok((done.code(), format!("{}{}", done.stdout, done.stderr)))
    }

    /// Waits until a command on the management node exits with `code` and prints `text`. Returns
    /// its output.
    fn wait_for_output(&self, words: &[&str], code: i32, text: &str) -> TestResult<String> {
        let mut last = None;
        let is_it = |outcome: &TestResult<(i32, String)>| matches!(outcome, Ok((is, said)) if *is == code && said.contains(text));
        let is_met = process::eventually(DEADLINE, || is_it(last.insert(self.output_of(words))));
        match (is_met, last) {
            (true, Some(Ok((_, said)))) => Ok(said),
            (_, last) => Err(Failure::Failed(format!(
                "weft {words:?} doesn't end with {code} and {text:?}: {last:?}\n    {}",
                self.log()
            ))),
        }
    }

    /// Checks that all findings are of one kind. Returns their objects.
    fn only_findings(&self, kind: &str) -> TestResult<BTreeSet<String>> {
        let output = self.fsck()?;
        let mut objects = BTreeSet::new();
        for finding in output["findings"].as_array().into_iter().flatten() {
            ensure_eq!(finding["kind"].as_str(), Some(kind), "kind of a finding of {output}");
            objects.extend(finding["object"].as_str().map(str::to_string));
        }
        Ok(objects)
    }
}

fn write_files(folder: &Path, first: usize) -> TestResult<Contents> {
    let mut contents = Contents::new();
    for file in first..first + FILES {
        let (name, content) = (file.to_string(), Rng::new(file as u64 + 1).bytes(FILE_BYTES));
        let path = folder.join(&name);
        let mut file = fs::File::create(&path).at(path.display())?;
        file.write_all(&content).and_then(|()| file.sync_all()).at(path.display())?;
        contents.insert(name, content);
    }
    Ok(contents)
}

/// Returns the inodes with chunk files on a target's disk.
fn inodes_on(target: &Path) -> TestResult<BTreeSet<u64>> {
    let (mut found, mut waiting) = (BTreeSet::new(), vec![target.join("chunks")]);
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).at(folder.display())?.flatten() {
            let path = entry.path();
            match path.file_name().and_then(|name| name.to_str()) {
                Some(name) if !path.is_dir() => found.extend(u64::from_str_radix(name, 16)),
                _ => waiting.push(path),
            }
        }
    }
    Ok(found)
}

fn removed_with_only_copies(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "removed", STORAGE, 2)?;
    cluster.replace_after(GIVEN_UP_AFTER)?;
    let folders = cluster.shared_folder("files")?;
    cluster.set_pattern(&folders[0], &["--inline-limit", "0", "--stripe-count", "1"])?;
    let contents = write_files(&folders[0], 0)?;
    let (target, place) = cluster.target_of(LOST_NODE)?;
    let (id, there) = (target.to_string(), inodes_on(&place)?);
    let is_there = |name: &String| -> TestResult<bool> {
        let path = folders[0].join(name);
        Ok(there.contains(&fs::metadata(&path).at(path.display())?.ino()))
    };
    let mut lost = BTreeSet::new();
    for name in contents.keys() {
        if is_there(name)? {
            lost.insert(name.clone());
        }
    }
    ensure!(!lost.is_empty() && lost.len() < FILES, "node {LOST_NODE} has {} of {FILES} files", lost.len());

    cluster.wait_for_output(&["target", "remove", &id, "--accept-loss"], 1, "not offline")?;
    cluster.inject(Part::Storage(LOST_NODE), Fault::Killed)?;
    refused_and_listed(&cluster, &id, &lost)?;
    cluster.wait_for_output(&["target", "remove", &id, "--accept-loss"], 0, "on no other target")?;

    let paths: BTreeSet<String> = lost.iter().map(|name| format!("/files/{name}")).collect();
    ensure_eq!(cluster.only_findings("lost-group")?, paths, "files that weft fsck names");
    cluster.wait_for_output(&["health"], 1, &format!("{} files have content in group", lost.len()))?;
    ensure_fails_only(&folders[1], &contents, &lost)?;

    let new = write_files(&folders[0], FILES)?;
    ensure_fails_only(&folders[1], &new, &BTreeSet::new())?;
    ensure_eq!(cluster.only_findings("lost-group")?, paths, "files that weft fsck names beside new ones");

    for name in &lost {
        fs::remove_file(folders[0].join(name)).at(name)?;
    }
    nothing_is_left(&cluster, target)?;
    let left: Contents = contents.into_iter().filter(|(name, _)| !lost.contains(name)).collect();
    ensure_fails_only(&folders[1], &left, &BTreeSet::new())?;
    ensure_not_served_again(&mut cluster, &id)?;
    cluster.stop()
}

/// Without the option that accepts the loss, nothing is removed, a drain reports that it can't
/// finish, and the data that would be lost is listed.
fn refused_and_listed(cluster: &Cluster, id: &str, lost: &BTreeSet<String>) -> TestResult {
    let count = format!("{} files have content on no other target", lost.len());
    cluster.wait_for_output(&["target", "remove", id], 1, &count)?;
    cluster.wait_for_output(&["target", "drain", id, "--wait"], 1, "can't be moved")?;
    cluster.wait_for_output(&["target", "remove", id], 1, &count)?;
    let list = cluster.folder(cluster.node(Part::Management))?.join("lost.jsonl");
    let words = ["target", "remove", id, "--dry-run", "--list", &list.to_string_lossy()];
    let said = cluster.wait_for_output(&words, 0, "on no other target")?;
    ensure!(said.contains("/files/"), "no file is named: {said}");
    let text = fs::read_to_string(&list).at(list.display())?;
    let mut listed = BTreeSet::new();
    for line in text.lines() {
        let file: Value = serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
        ensure_eq!(file["lost"].as_u64(), Some(FILE_BYTES as u64), "what is lost of {file}");
        listed.extend(file["path"].as_str().map(str::to_string));
    }
    let expected: BTreeSet<String> = lost.iter().map(|name| format!("/files/{name}")).collect();
    ensure_eq!(listed, expected, "files in {}", list.display());
    Ok(())
}

/// Checks that lost files return `EIO` for all operations, and that all others have their content.
fn ensure_fails_only(folder: &Path, contents: &Contents, lost: &BTreeSet<String>) -> TestResult {
    for (name, content) in contents {
        let path = folder.join(name);
        let read = || -> std::io::Result<Vec<u8>> {
            let mut seen = Vec::new();
            fs::File::open(&path)?.read_to_end(&mut seen)?;
            Ok(seen)
        };
        if !lost.contains(name) {
            ensure!(read().at(path.display())? == *content, "{} isn't what was written", path.display());
            continue;
        }
        let write = |mode: &mut OpenOptions| -> std::io::Result<()> {
            let mut file = mode.open(&path)?;
            file.write_all(b"new")?;
            file.sync_all()
        };
        let tried = [
            ("read", read().map(drop)),
            ("written", write(OpenOptions::new().write(true))),
            ("cut", write(OpenOptions::new().write(true).truncate(true))),
        ];
        for (what, outcome) in tried {
            let errno = outcome.as_ref().err().and_then(std::io::Error::raw_os_error);
            ensure_eq!(errno, Some(libc::EIO), "{} is {what}: {outcome:?}", path.display());
        }
        let size = fs::metadata(&path).at(path.display())?.len();
        ensure_eq!(size, content.len() as u64, "size of {}", path.display());
    }
    Ok(())
}

/// Checks that no file and no group refers to the target any more.
fn nothing_is_left(cluster: &Cluster, target: u64) -> TestResult {
    let has_group = || -> TestResult<bool> {
        let (_, output) = cluster.output_of(&["group", "list", "--json"])?;
        let output: Value = serde_json::from_str(&output).map_err(|error| format!("{output}: {error}"))?;
        Ok(output.as_array().into_iter().flatten().any(|group| group["id"].as_u64() == Some(target)))
    };
    let mut last = None;
    let gone = process::eventually(DEADLINE, || matches!(last.insert(has_group()), Ok(false)));
    ensure!(gone, "group {target} is there yet: {last:?}\n    {}", cluster.log());
    cluster.ensure_clean()
}

/// The node returns with its disk: it runs, but doesn't serve the removed target.
fn ensure_not_served_again(cluster: &mut Cluster, id: &str) -> TestResult {
    cluster.restart(Part::Storage(LOST_NODE))?;
    let node = cluster.node(Part::Storage(LOST_NODE));
    let dir: PathBuf = cluster.folder(node)?.join("state");
    let mut status = node.command(cluster.commands.weft());
    let output = process::run_ok(status.args(["status", "--json", "--dir"]).arg(dir), DEADLINE)?.stdout;
    let output: Value = serde_json::from_str(&output).map_err(|error| format!("{output}: {error}"))?;
    let cause = output["unserved"][0]["cause"].as_str().unwrap_or_default().to_string();
    ensure!(cause.contains(&format!("target {id}")) && cause.contains("removed"), "the node says: {output}");
    cluster.wait_until_healthy()?;
    cluster.ensure_clean()
}
