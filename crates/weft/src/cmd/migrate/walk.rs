//! Walks the files below some paths, each once.

use crate::output::os_error;
use std::fs::{self, Metadata, ReadDir};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use types::{Errno, Error, HashSet, Result};

/// An item of the walk.
pub enum Found {
    /// A regular file, under the first of its names.
    File { path: PathBuf, bytes: u64 },
    /// A directory, before its entries.
    Directory(PathBuf),
    /// Another name (hard link) of an earlier file.
    HardLink,
    /// A symlink, a socket or a device: it has no data of its own.
    NotRegular,
    /// A mount point of another file system.
    MountPoint,
    /// A path that can't be read.
    Failed { path: PathBuf, error: Error },
}

/// A walk. It keeps one open directory per level, and the inode of each file that has several
/// names.
pub struct Walk<'a> {
    paths: std::slice::Iter<'a, PathBuf>,
    is_recursive: bool,
    open: Vec<(PathBuf, u64, ReadDir)>,
    hard_linked: HashSet<(u64, u64)>,
}

impl<'a> Walk<'a> {
    pub fn new(paths: &'a [PathBuf], is_recursive: bool) -> Walk<'a> {
        Walk { paths: paths.iter(), is_recursive, open: Vec::new(), hard_linked: HashSet::default() }
    }

    fn classify(&mut self, path: PathBuf, metadata: &Metadata) -> Found {
        if metadata.is_dir() {
            return self.enter(path, metadata.dev());
        }
        if !metadata.is_file() {
            return Found::NotRegular;
        }
        if metadata.nlink() > 1 && !self.hard_linked.insert((metadata.dev(), metadata.ino())) {
            return Found::HardLink;
        }
        Found::File { path, bytes: metadata.blocks() * 512 }
    }

    fn enter(&mut self, path: PathBuf, device: u64) -> Found {
        match fs::read_dir(&path) {
            Ok(entries) => {
                self.open.push((path.clone(), device, entries));
                Found::Directory(path)
            }
            Err(error) => failed(path, &error),
        }
    }

    /// Handles a path of the command line. A symlink stands for its target.
    fn named(&mut self, path: PathBuf) -> Found {
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() && !self.is_recursive => {
                let message = format!("{} is a directory", path.display());
                let error =
                    Error::new(Errno::EISDIR, message).hint("--recursive migrates the files below it");
                Found::Failed { path, error }
            }
            Ok(metadata) => self.classify(path, &metadata),
            Err(error) => failed(path, &error),
        }
    }

    fn below(&mut self, path: PathBuf, device: u64) -> Option<Found> {
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.dev() != device => Some(Found::MountPoint),
            Ok(metadata) => Some(self.classify(path, &metadata)),
            // It was just deleted.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => Some(failed(path, &error)),
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            let Some((dir, device, entries)) = self.open.last_mut() else {
                let path = self.paths.next()?.clone();
                return Some(self.named(path));
            };
            match entries.next() {
                None => drop(self.open.pop()),
                Some(Ok(entry)) => {
                    let (path, device) = (entry.path(), *device);
                    if let Some(found) = self.below(path, device) {
                        return Some(found);
                    }
                }
                Some(Err(error)) => {
                    let path = dir.clone();
                    self.open.pop();
                    return Some(failed(path, &error));
                }
            }
        }
    }
}

fn failed(path: PathBuf, error: &std::io::Error) -> Found {
    let error = os_error(path.display(), error);
    Found::Failed { path, error }
}

/// Returns the number of files and their bytes, as far as they are readable; ends early when
/// `is_over`.
pub fn count(paths: &[PathBuf], is_recursive: bool, is_over: impl Fn() -> bool) -> (u64, u64) {
    let walk = Walk::new(paths, is_recursive).take_while(|_| !is_over());
    walk.fold((0, 0), |(files, all), found| match found {
        Found::File { bytes, .. } => (files + 1, all + bytes),
        _ => (files, all),
    })
}

/// Refuses a path that isn't on a weft file system, before anything is done.
pub fn check(path: &Path) -> Result<()> {
    crate::cmd::entry_info::read_entry_info(path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_file_is_found_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/one"), b"1").unwrap();
        fs::write(at("a/b/two"), b"2").unwrap();
        fs::hard_link(at("a/one"), at("a/b/same")).unwrap();
        symlink(at("a/one"), at("a/link")).unwrap();
        symlink(at("a"), at("a/b/loop")).unwrap();
        let found: Vec<Found> = Walk::new(&[dir.path().to_path_buf()], true).collect();
        let number = |is: fn(&Found) -> bool| found.iter().filter(|found| is(found)).count();
        assert_eq!(number(|found| matches!(found, Found::File { .. })), 2);
        assert_eq!(number(|found| matches!(found, Found::HardLink)), 1);
        assert_eq!(number(|found| matches!(found, Found::NotRegular)), 2);
        assert_eq!(number(|found| matches!(found, Found::Directory(_))), 3);
        assert_eq!(number(|found| matches!(found, Found::Failed { .. })), 0);
        assert_eq!(count(&[dir.path().to_path_buf()], true, || false).0, 2);
        // A named link stands for its target; a directory needs --recursive; a missing path is
        // reported.
        let named = [at("a/link"), at("a"), at("gone")];
        let found: Vec<Found> = Walk::new(&named, false).collect();
        assert!(matches!(&found[0], Found::File { .. }));
        assert!(matches!(&found[1], Found::Failed { error, .. } if error.errno == Errno::EISDIR));
        assert!(matches!(&found[2], Found::Failed { error, .. } if error.errno == Errno::ENOENT));
    }
}
