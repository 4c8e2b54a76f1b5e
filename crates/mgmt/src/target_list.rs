//! `targets.toml`: directories of this node's targets.
//!
//! The cluster map lists the targets; this file lists the directories that a process must find
//! before it opens anything else, so that a missing disk or two swapped ones are refused before any
//! change.

use crate::checked_file::{self, Fault};
use crate::error::{Error, Result};
use crate::state_dir::StatePaths;
use identity::require_private_directory;
use rustix::fs::FsWord;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use types::TargetId;

/// The format this version writes, and the newest that it reads.
const FORMAT_VERSION: u64 = 1;

/// First line of every list.
const MAGIC: &str = "weft targets";

/// A file in every target.
const TARGET_SUPERBLOCK: &str = "target.toml";

/// Directories of a node's targets, which are numbered from 1 in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetList {
    root: PathBuf,
    directories: Vec<PathBuf>,
}

impl TargetList {
    /// Makes a list of directories; a relative path is below the state directory.
    ///
    /// # Errors
    /// A directory can't be two targets.
    pub fn new(paths: &StatePaths, directories: Vec<PathBuf>) -> Result<TargetList> {
        let root = paths.root().to_path_buf();
        let directories: Vec<PathBuf> = directories.into_iter().map(|d| root.join(d)).collect();
        let mut seen = BTreeSet::new();
        match directories.iter().find(|d| !seen.insert(*d)) {
            Some(twice) => Err(Error::DuplicateTarget { target: twice.clone() }),
            None => Ok(TargetList { root, directories }),
        }
    }

    /// Reads the list of a state directory; `None` before its targets were created.
    pub fn read(paths: &StatePaths) -> Result<Option<TargetList>> {
        let path = paths.target_list();
        let Some(content) = checked_file::read(&path).map_err(|e| Error::io("read", &path, e))? else {
            return Ok(None);
        };
        TargetList::parse(paths, &content).map(Some)
    }

    pub(crate) fn parse(paths: &StatePaths, content: &[u8]) -> Result<TargetList> {
        let path = paths.target_list();
        let table = checked_file::open(content, MAGIC, FORMAT_VERSION).map_err(|fault| match fault {
            Fault::Newer(found) => Error::NewerFormat { path: path.clone(), found, known: FORMAT_VERSION },
            Fault::Damaged(cause) => Error::CorruptTargetList { path: path.clone(), cause },
        })?;
        let directories = table.get("directories").and_then(toml::Value::as_array).and_then(|list| {
            list.iter().map(|d| d.as_str().map(PathBuf::from)).collect::<Option<Vec<PathBuf>>>()
        });
        match directories {
            Some(directories) if !directories.is_empty() => TargetList::new(paths, directories),
            _ => Err(Error::CorruptTargetList { path, cause: "it lists no directories".into() }),
        }
    }

    /// Writes the list, durably. The directories must be targets already.
    pub fn create(&self, paths: &StatePaths) -> Result<()> {
        let path = paths.target_list();
        checked_file::write(&path, &self.render()).map_err(|e| Error::io("write", &path, e))
    }

    /// The file's text without the checksum.
    pub(crate) fn render(&self) -> String {
        let names = self.directories.iter().map(|d| {
            // Relative to the state directory where below it, so that it may be moved.
            let name = d.strip_prefix(&self.root).unwrap_or(d);
            toml::Value::String(name.to_string_lossy().into_owned())
        });
        format!(
            "# Directories of the targets, numbered from 1.\nmagic = \"{MAGIC}\"\nformat = {FORMAT_VERSION}\ndirectories = {}\n",
            toml::Value::Array(names.collect())
        )
    }

    /// The state directory that the list belongs to.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Every target with its directory, by id.
    pub fn targets(&self) -> impl Iterator<Item = (TargetId, &Path)> {
        self.directories.iter().enumerate().map(|(at, d)| (TargetId(at as u32 + 1), d.as_path()))
    }

    /// Refuses a requested number or list of directories that differs from the existing targets.
    pub fn require(&self, count: Option<usize>, directories: &[PathBuf]) -> Result<()> {
        let (path, have) = (self.root.clone(), self.directories.len());
        if let Some(asked) = count.filter(|asked| *asked != have) {
            return Err(Error::TargetCount { path, have, asked });
        }
        match directories.iter().find(|d| !self.directories.contains(d)) {
            Some(target) => Err(Error::UnknownTarget { path, target: target.clone() }),
            None => Ok(()),
        }
    }
}

/// Refuses a directory that can't become a target and isn't one: it has other content, or isn't a
/// directory. Also one that other users may change.
pub fn require_target_or_vacant(directory: &Path) -> Result<()> {
    require_private_directory(directory)?;
    if directory.join(TARGET_SUPERBLOCK).is_file() {
        return Ok(());
    }
    require_local_file_system(directory)?;
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            return Err(Error::NotADirectory { path: directory.to_path_buf() });
        }
        Err(e) => return Err(Error::io("list", directory, e)),
    };
    for entry in entries {
        let name = entry.map_err(|e| Error::io("list", directory, e))?.file_name();
        // Remains of mkfs and of an interrupted first start.
        if !["lost+found", "chunks", "intent.0", "intent.1", "target.toml.new"]
            .iter()
            .any(|ours| name == *ours)
        {
            let (path, example) = (directory.to_path_buf(), name.to_string_lossy().into_owned());
            return Err(Error::ForeignTarget { path, example });
        }
    }
    Ok(())
}

/// Refuses a directory on a file system of another machine or of another program, which may be weft
/// itself: syncs, locks and identities of files there depend on more than a disk. A directory that
/// doesn't exist will be on the file system of its parent.
fn require_local_file_system(directory: &Path) -> Result<()> {
    let Some(existing) = directory.ancestors().find(|path| path.exists()) else { return Ok(()) };
    let found = rustix::fs::statfs(existing).map_err(|e| Error::io("measure", existing, e.into()))?;
    match unsuitable_file_system(found.f_type) {
        Some(file_system) => {
            Err(Error::UnsuitableTarget { path: directory.to_path_buf(), file_system: file_system.into() })
        }
        None => Ok(()),
    }
}

/// Returns the name of a file system that can't have targets, by its type as in statfs(2).
fn unsuitable_file_system(kind: FsWord) -> Option<&'static str> {
    match kind {
        0x6573_5546 => Some("FUSE"),
        0x6969 => Some("NFS"),
        0xff53_4d42 => Some("CIFS"),
        0xfe53_4d42 => Some("SMB"),
        0x0102_1997 => Some("9P"),
        0x00c3_6400 => Some("Ceph"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(root: &Path, directories: &[&str]) -> Result<TargetList> {
        TargetList::new(&StatePaths::new(root), directories.iter().map(PathBuf::from).collect())
    }

    #[test]
    fn a_list_follows_its_directory() {
        let base = tempfile::tempdir().unwrap();
        let (here, there) = (base.path().join("here"), base.path().join("there"));
        fs::create_dir(&here).unwrap();
        assert_eq!(TargetList::read(&StatePaths::new(&here)).unwrap(), None);
        let list = listed(&here, &["targets/t1", "/disk/\"b\""]).unwrap();
        list.create(&StatePaths::new(&here)).unwrap();
        assert_eq!(TargetList::read(&StatePaths::new(&here)).unwrap().unwrap(), list);
        fs::rename(&here, &there).unwrap();
        let moved = TargetList::read(&StatePaths::new(&there)).unwrap().unwrap();
        let targets: Vec<(TargetId, &Path)> = moved.targets().collect();
        let first = there.join("targets/t1");
        assert_eq!(targets, [(TargetId(1), first.as_path()), (TargetId(2), Path::new("/disk/\"b\""))]);
    }

    #[test]
    fn damage_is_noticed() {
        let base = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(base.path());
        listed(base.path(), &["/a"]).unwrap().create(&paths).unwrap();
        let text = fs::read_to_string(paths.target_list()).unwrap();
        for damaged in [text.replace("/a", "/b"), String::new()] {
            fs::write(paths.target_list(), damaged).unwrap();
            assert!(matches!(TargetList::read(&paths), Err(Error::CorruptTargetList { .. })));
        }
    }

    #[test]
    fn targets_are_fixed() {
        let list = listed(Path::new("/s"), &["targets/t1", "/disk/b"]).unwrap();
        assert!(list.require(None, &[]).is_ok());
        assert!(list.require(Some(2), &["/disk/b".into(), "/s/targets/t1".into()]).is_ok());
        assert!(matches!(list.require(Some(3), &[]), Err(Error::TargetCount { have: 2, asked: 3, .. })));
        assert!(matches!(list.require(None, &["/c".into()]), Err(Error::UnknownTarget { .. })));
        assert!(matches!(listed(Path::new("/s"), &["/a", "/a"]), Err(Error::DuplicateTarget { .. })));
    }

    #[test]
    fn only_vacant_directories_become_targets() {
        let base = tempfile::tempdir().unwrap();
        let allowed = |name: &str| require_target_or_vacant(&base.path().join(name)).is_ok();
        for name in ["empty", "fresh/lost+found", "foreign", "target"] {
            fs::create_dir_all(base.path().join(name)).unwrap();
        }
        fs::write(base.path().join("foreign/thesis.tex"), "years").unwrap();
        fs::write(base.path().join("target/target.toml"), "").unwrap();
        fs::write(base.path().join("file"), "").unwrap();
        assert_eq!(unsuitable_file_system(0x6573_5546), Some("FUSE"));
        assert!(allowed("absent") && allowed("empty") && allowed("fresh") && allowed("target"));
        assert!(!allowed("foreign") && !allowed("file"));
    }
}
