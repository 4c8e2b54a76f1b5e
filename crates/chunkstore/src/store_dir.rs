//! Checks that a store is still where it was opened, so that "file not found" can be believed.
//!
//! Chunk files are found by path. If the target's file system is unmounted under the store, or
//! another disk is mounted in its place, the same paths lead elsewhere: to the empty directory
//! below the mount point, or to files of another store. An `ENOENT` from there says nothing about
//! this store. So a lookup counts only if the path of the chunk folder still leads to the folder
//! that the store has held open since it was opened ([`StoreDir::confirm`]). The check follows the
//! lookup, so that it covers everything that happened before the lookup ended.

use crate::error::{Kind, Result, StoreError};
use crate::identity::{self, Owner};
use crate::paths::CHUNKS;
use rt::PathGuard;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The directory of an open store; holds its superblock and its chunk folder open.
pub(crate) struct StoreDir {
    dir: PathBuf,
    owner: Owner,
    superblock: PathGuard,
    chunks: PathGuard,
}

/// Why the directory isn't the store's any more; travels inside an [`io::Error`] until
/// [`StoreError::io`] unpacks it.
#[derive(Debug)]
pub(crate) struct Vanished(pub(crate) String);

impl fmt::Display for Vanished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Vanished {}

impl StoreDir {
    /// Holds the directory of a store whose superblock was just checked.
    ///
    /// # Errors
    /// [`Kind::Damaged`] when the chunk folder is missing, which every store has from its creation.
    pub(crate) fn hold(dir: &Path, owner: Owner) -> Result<StoreDir> {
        let target = owner.identity.target;
        let hold = |path: PathBuf| PathGuard::new(&path).map_err(|e| (path, e));
        let superblock = hold(dir.join(owner.superblock()))
            .map_err(|(path, e)| StoreError::io(target, "open", &path, e))?;
        let chunks = hold(dir.join(CHUNKS)).map_err(|(path, e)| match e.kind() {
            io::ErrorKind::NotFound => StoreError::new(
                Kind::Damaged,
                format!("target {target}: the chunk folder {} is missing", path.display()),
                "look for it in lost+found and move it back; if it is lost, so are the files in it",
            ),
            _ => StoreError::io(target, "open", &path, e),
        })?;
        Ok(StoreDir { dir: dir.to_path_buf(), owner, superblock, chunks })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Passes on the result of a lookup below the directory, if that was the store's own directory.
    /// Only "found", "not found" and "not a directory" (nothing exists below a file) need the
    /// check: any other error is one already.
    pub(crate) fn confirm<T>(&self, looked_up: io::Result<T>) -> io::Result<T> {
        match looked_up {
            Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Err(e),
            found_or_not => self.check().and(found_or_not),
        }
    }

    /// Checks that paths of chunk files lead into this store: one `stat(2)`.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.check_one(&self.chunks)
    }

    /// Checks everything that is held open.
    pub(crate) fn check_all(&self) -> io::Result<()> {
        self.check_one(&self.superblock)?;
        self.check_one(&self.chunks)
    }

    fn check_one(&self, held: &PathGuard) -> io::Result<()> {
        let cause = match held.leads_to_same_file() {
            Ok(true) => return Ok(()),
            Ok(false) => "another one is in its place".to_string(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => "it is missing".to_string(),
            Err(e) => format!("it can't be examined: {e}"),
        };
        Err(io::Error::other(Vanished(format!(
            "{} isn't the directory that was opened: {}: {cause}",
            self.dir.display(),
            held.path().display(),
        ))))
    }

    /// Verifies that this is the store: everything held open is in its place, and the superblock,
    /// read again, names this store.
    pub(crate) async fn verify(&self) -> Result<()> {
        let target = self.owner.identity.target;
        let vanished = |e| StoreError::io(target, "examine", &self.dir, e);
        self.check_all().map_err(vanished)?;
        let is_there = identity::holds_store(&self.dir, &self.owner).await;
        // Again afterwards: then the text that was read came from the held superblock.
        self.check_all().map_err(vanished)?;
        match is_there {
            Ok(true) => Ok(()),
            Ok(false) => Err(StoreError::vanished(target, &format!("{} holds no store", self.dir.display()))),
            // The file exists but can't be read now: that says nothing about its owner.
            Err(e) if e.kind() == Kind::Io => Err(e),
            Err(e) => Err(StoreError::vanished(target, e.message())),
        }
    }
}
