//! The replicas of mirrored groups on disk, read from the targets' folders independently of the
//! services.

use super::super::outcome::{At, TestResult, ensure};
use super::{Cluster, Part};
use crate::process;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest time until replicas are in sync again after everything is repaired: intent logs are
/// compared, and little is sent.
const IN_SYNC_DEADLINE: Duration = Duration::from_secs(180);
/// Longest time until deleted files are removed from all replicas.
const QUIET_DEADLINE: Duration = Duration::from_secs(60);
/// Bytes compared at a time.
const PART_BYTES: usize = 1 << 20;
/// Maximum number of differences reported.
const MAX_REPORTED: usize = 20;

/// A mirrored group as reported by management.
#[derive(Debug)]
struct Group {
    id: u64,
    members: Vec<u64>,
    /// The members that aren't in sync.
    out_of_sync: Vec<u64>,
}

/// Result of a comparison.
#[derive(Debug, Default)]
pub struct Compared {
    /// Number of chunk files that all members of their group have.
    pub files: usize,
    /// Their bytes, counted once per group.
    pub bytes: u64,
}

impl Cluster {
    /// Sets a pattern that mirrors new files in all folders.
    pub fn mirror_everything(&self, copies: u8) -> TestResult {
        let client = self.node(Part::Client(0));
        self.run(client, &self.commands.mirror(&self.mount(0), copies))?;
        ensure!(!self.groups()?.is_empty(), "no mirrored groups were made");
        Ok(())
    }

    /// Returns the members of each mirrored group.
    pub fn members_of_groups(&self) -> TestResult<Vec<Vec<u64>>> {
        Ok(self.groups()?.into_iter().map(|group| group.members).collect())
    }

    fn groups(&self) -> TestResult<Vec<Group>> {
        let output = self.ask_management(|management| self.commands.groups(management))?;
        let output: Value =
            serde_json::from_str(&output).map_err(|error| format!("weft group list: no JSON: {error}"))?;
        let all = output.as_array().ok_or_else(|| format!("weft group list: not a JSON array: {output}"))?;
        let numbers =
            |value: &Value| value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        Ok(all
            .iter()
            .filter(|group| group["scheme"].as_str().is_some_and(|scheme| scheme.starts_with("mirror")))
            .map(|group| {
                let members: Vec<u64> = numbers(&group["members"]);
                let states = group["states"].as_array().into_iter().flatten();
                let out_of_sync = members.iter().zip(states).filter(|(_, state)| *state != "good");
                let out_of_sync = out_of_sync.map(|(member, _)| *member).collect();
                Group { id: group["id"].as_u64().unwrap_or(0), members, out_of_sync }
            })
            .collect())
    }

    /// Returns the number of groups with a member that isn't in sync.
    pub fn degraded_groups(&self) -> TestResult<usize> {
        Ok(self.groups()?.iter().filter(|group| !group.out_of_sync.is_empty()).count())
    }

    /// Waits until a group continues without the target of a failed storage node.
    pub fn wait_until_degraded(&self, storage: usize) -> TestResult {
        let (target, _) = self.target_of(storage)?;
        let mut last = None;
        let is_degraded = process::eventually(
            IN_SYNC_DEADLINE,
            || matches!(last.insert(self.groups()), Ok(groups) if groups.iter().any(|group| group.out_of_sync.contains(&target))),
        );
        ensure!(is_degraded, "no group continues without target {target}: {last:?}\n    {}", self.log());
        Ok(())
    }

    /// Waits until management reports all members as in sync, without intervention.
    pub fn wait_until_in_sync(&self) -> TestResult {
        let mut last = None;
        let looked = || match self.degraded_groups()? {
            0 => self.wait_until_healthy(),
            count => {
                Err(format!("{count} groups have a member that isn't in sync\n    {}", self.log()).into())
            }
        };
        process::eventually(IN_SYNC_DEADLINE, || last.insert(looked()).is_ok());
        last.unwrap_or(Ok(()))
    }

    /// Compares all replicas on disk, byte by byte. Only pending deletions may change them
    /// meanwhile.
    pub fn ensure_replicas_are_equal(&self) -> TestResult<Compared> {
        for client in 0..self.clients.len() {
            process::run_ok(
                Command::new("sync").arg("--file-system").arg(self.mount(client)),
                QUIET_DEADLINE,
            )?;
        }
        let targets = self.target_folders()?;
        let groups = self.groups()?;
        let mut last = None;
        let equal = process::eventually(
            QUIET_DEADLINE,
            || matches!(last.insert(compare_all(&groups, &targets)), Ok((_, told)) if told.is_empty()),
        );
        let (compared, differences) =
            last.unwrap_or_else(|| Err("nothing was compared".to_string().into()))?;
        let differences = differences.into_iter().take(MAX_REPORTED).collect::<Vec<_>>().join("\n    ");
        ensure!(equal, "replicas differ on disk:\n    {differences}\n    {}", self.log());
        ensure!(compared.files > 0 && compared.bytes > 0, "there was nothing to compare: {compared:?}");
        Ok(compared)
    }

    /// Sets the time after which other targets replace missing members.
    pub fn replace_after(&self, time: &str) -> TestResult {
        self.ask_management(|management| self.commands.replace_after(management, time)).map(drop)
    }

    /// Starts to drain a target.
    pub fn drain(&self, target: u64) -> TestResult {
        self.ask_management(|management| self.commands.drain(management, target)).map(drop)
    }

    /// Removes an empty target.
    pub fn remove_target(&self, target: u64) -> TestResult {
        self.ask_management(|management| self.commands.remove_target(management, target)).map(drop)
    }

    /// Returns the target of a storage node, with its folder.
    pub fn target_of(&self, storage: usize) -> TestResult<(u64, PathBuf)> {
        let own = self.folder(self.node(Part::Storage(storage)))?;
        let found = self.target_folders()?.into_iter().find(|(_, folder)| folder.starts_with(&own));
        Ok(found.ok_or_else(|| format!("storage node {storage} has no target"))?)
    }

    /// Waits until no group has the target as a member and all groups are in sync. Other findings
    /// of management are ignored.
    pub fn wait_until_out_of_groups(&self, target: u64) -> TestResult {
        let mut last = None;
        let is_over = |groups: &Vec<Group>| {
            groups.iter().all(|group| group.out_of_sync.is_empty() && !group.members.contains(&target))
        };
        let replaced = process::eventually(
            IN_SYNC_DEADLINE,
            || matches!(last.insert(self.groups()), Ok(groups) if is_over(groups)),
        );
        let log = || format!("target {target} isn't replaced: {last:?}\n    {}", self.log());
        if replaced { Ok(()) } else { Err(log().into()) }
    }

    /// Waits until no member is being moved to another target.
    pub fn wait_until_moved(&self) -> TestResult {
        let mut last = None;
        let is_over = |groups: &Vec<Group>| {
            groups.iter().all(|group| group.out_of_sync.is_empty() && group.members.len() == 2)
        };
        let moved = process::eventually(
            IN_SYNC_DEADLINE,
            || matches!(last.insert(self.groups()), Ok(groups) if is_over(groups)),
        );
        if moved { Ok(()) } else { Err(format!("members move still: {last:?}\n    {}", self.log()).into()) }
    }

    /// Returns the folder of each target whose disk is available. A node has one target, and may
    /// have an additional spare one.
    fn target_folders(&self) -> TestResult<BTreeMap<u64, PathBuf>> {
        let mut found = BTreeMap::new();
        for index in 0..self.storage.len() {
            let node = self.folder(self.node(Part::Storage(index)))?;
            for folder in ["target", "spare"].map(|name| node.join(name)) {
                let superblock = folder.join("target.toml");
                let Ok(text) = fs::read_to_string(&superblock) else { continue };
                let number = text.lines().find_map(|line| line.strip_prefix("target = ")?.parse().ok());
                let number =
                    number.ok_or_else(|| format!("{}: no number of a target", superblock.display()))?;
                found.insert(number, folder);
            }
        }
        Ok(found)
    }
}

/// Compares the members of all groups. Returns the totals and the differences.
fn compare_all(groups: &[Group], targets: &BTreeMap<u64, PathBuf>) -> TestResult<(Compared, Vec<String>)> {
    let (mut compared, mut differences) = (Compared::default(), Vec::new());
    for group in groups {
        let folder = |member: &u64| Some(targets.get(member)?.join(format!("groups/{}/chunks", group.id)));
        let folders: Option<Vec<PathBuf>> = group.members.iter().map(folder).collect();
        let folders = folders.ok_or_else(|| format!("a member of {group:?} is on no node of the test"))?;
        let (first, others) = folders.split_first().ok_or_else(|| format!("{group:?} has no members"))?;
        let here = chunk_files(first)?;
        for other in others {
            let there = chunk_files(other)?;
            for name in here.symmetric_difference(&there) {
                let holder = if here.contains(name) { first } else { other };
                differences.push(format!(
                    "group {}: only {} has {}",
                    group.id,
                    holder.display(),
                    name.display()
                ));
            }
            for name in here.intersection(&there) {
                match first_difference(&first.join(name), &other.join(name))? {
                    None => {}
                    Some(at) => differences.push(format!(
                        "group {}: {} differs from that in {} at byte {at}",
                        group.id,
                        first.join(name).display(),
                        other.display(),
                    )),
                }
            }
        }
        compared.files += here.len();
        for name in here {
            // A file that is being deleted counts as empty.
            compared.bytes += fs::metadata(first.join(name)).map_or(0, |meta| meta.len());
        }
    }
    Ok((compared, differences))
}

/// Returns the chunk files below a folder, without their checksum files; none if the folder doesn't
/// exist.
fn chunk_files(root: &Path) -> TestResult<BTreeSet<PathBuf>> {
    let (mut found, mut waiting) = (BTreeSet::new(), vec![root.to_path_buf()]);
    while let Some(folder) = waiting.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            listed => listed.at(folder.display())?,
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_none() {
                found.insert(path.strip_prefix(root).unwrap_or(&path).to_path_buf());
            }
        }
    }
    Ok(found)
}

/// Returns the offset of the first difference between two files, including their ends; `None` if
/// they are equal, or both missing.
fn first_difference(here: &Path, there: &Path) -> TestResult<Option<u64>> {
    let open = |path: &Path| match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).at(path.display()),
    };
    let (here_file, there_file) = match (open(here)?, open(there)?) {
        (Some(here), Some(there)) => (here, there),
        (None, None) => return Ok(None),
        _ => return Ok(Some(0)),
    };
    let mut at = 0;
    loop {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        (&here_file).take(PART_BYTES as u64).read_to_end(&mut left).at(here.display())?;
        (&there_file).take(PART_BYTES as u64).read_to_end(&mut right).at(there.display())?;
        if left != right {
            let equal = left.iter().zip(&right).take_while(|(left, right)| left == right).count();
            return Ok(Some(at + equal as u64));
        }
        if left.is_empty() {
            return Ok(None);
        }
        at += left.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a group of two members, with files of these contents on each.
    fn check(here: &[(&str, &str)], there: &[(&str, &str)], expected: &[&str]) {
        let dir = tempfile::tempdir().unwrap();
        let targets: BTreeMap<u64, PathBuf> =
            [(3, "a"), (4, "b")].map(|(n, name)| (n, dir.path().join(name))).into();
        for (target, files) in [(3, here), (4, there)] {
            for (name, content) in files {
                let path = targets[&target].join("groups/9/chunks").join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
        }
        let groups = [Group { id: 9, members: vec![3, 4], out_of_sync: Vec::new() }];
        let (_, differences) = compare_all(&groups, &targets).unwrap();
        assert_eq!(differences.len(), expected.len(), "{differences:?}");
        for (said, expected) in differences.iter().zip(expected) {
            assert!(said.contains(expected), "{differences:?}");
        }
    }

    #[test]
    fn differences_are_reported() {
        check(&[], &[], &[]);
        check(&[("00/01/ab", "x")], &[("00/01/ab", "x"), ("00/01/ab.sum", "differs")], &[]);
        check(&[("00/01/ab", "xyz")], &[("00/01/ab", "xyZ")], &["at byte 2"]);
        check(&[("00/01/ab", "xyz")], &[("00/01/ab", "xyz\0")], &["at byte 3"]);
        check(&[("00/01/ab", "x"), ("00/02/cd", "")], &[("00/01/ab", "x")], &["00/02/cd"]);
    }

    #[test]
    fn what_is_compared_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let targets: BTreeMap<u64, PathBuf> = [(1, dir.path().to_path_buf())].into();
        fs::create_dir_all(dir.path().join("groups/9/chunks")).unwrap();
        fs::write(dir.path().join("groups/9/chunks/ab"), "four").unwrap();
        let groups = [Group { id: 9, members: vec![1, 1], out_of_sync: Vec::new() }];
        let (compared, _) = compare_all(&groups, &targets).unwrap();
        assert_eq!((compared.files, compared.bytes), (1, 4));
        let strange = [Group { id: 9, members: vec![1, 2], out_of_sync: Vec::new() }];
        assert!(compare_all(&strange, &targets).is_err(), "an unreadable member must not count as equal");
    }
}
