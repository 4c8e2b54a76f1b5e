//! Cleanup after a killed run: its namespaces with their processes, and its mounts.
//!
//! A live run holds the lock of a file named by its process id. The lock ends with the run in any
//! case, and another program may get the same process id without confusion. No program that a run
//! starts inherits the lock.

use super::super::mounts;
use super::super::outcome::{At, TestResult};
use super::namespace::{self, FOLDER};
use crate::sys;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Prefix of every name that a run uses.
const PREFIX: &str = "weft-e2e-";

/// Folder of the runs' locks: a reboot empties it, as it removes namespaces.
const LOCKS: &str = "/run/weft-e2e";

/// Held from the first network until the end of the process.
static OWN: Mutex<Option<File>> = Mutex::new(None);

/// Returns the name of a run's `serial`th network, unique on this machine while the run lives.
pub fn run_name(serial: u64) -> String {
    format!("{PREFIX}{}-{serial}", std::process::id())
}

/// Returns the process whose run used this name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// A folder of locks.
struct Locks(PathBuf);

impl Locks {
    fn path(&self, run: u32) -> PathBuf {
        self.0.join(run.to_string())
    }

    /// Takes the lock of a run; waits only for a concurrent check of the lock.
    fn hold(&self, run: u32) -> io::Result<File> {
        fs::create_dir_all(&self.0)?;
        let path = self.path(run);
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            sys::flock(&file, libc::LOCK_EX)?;
            // Another process may have removed the file meanwhile, and the lock of an unlinked file
            // has no effect.
            if fs::metadata(&path)
                .is_ok_and(|named| file.metadata().is_ok_and(|own| own.ino() == named.ino()))
            {
                return Ok(file);
            }
        }
    }

    /// Returns whether a run is alive; `None` if it never had a lock.
    fn is_held(&self, run: u32) -> Option<bool> {
        let file = File::open(self.path(run)).ok()?;
        Some(sys::flock(&file, libc::LOCK_SH | libc::LOCK_NB).is_err())
    }

    /// Removes the locks of runs that have ended.
    fn clear(&self) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            // Removed while locked, so that a new run with the same number notices.
            let held = File::open(entry.path())
                .and_then(|file| sys::flock(&file, libc::LOCK_EX | libc::LOCK_NB).map(|()| file));
            if held.is_ok() {
                drop(fs::remove_file(entry.path()));
            }
        }
    }

    fn is_run(&self, run: u32) -> bool {
        self.is_held(run).unwrap_or_else(|| looks_like_a_run(run))
    }
}

/// Returns whether a process without a lock is a run of an older version, which had no locks.
fn looks_like_a_run(pid: u32) -> bool {
    let program = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    program(&pid.to_string()).is_some_and(|name| Some(name) == program("self"))
}

/// Takes this run's lock if it isn't held yet, and removes the leftovers of dead runs.
pub fn remove() -> TestResult {
    let locks = Locks(PathBuf::from(LOCKS));
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_first = own.is_none();
    if is_first {
        *own = Some(locks.hold(std::process::id()).at(LOCKS)?);
    }
    // Before this run has created anything, resources with its number belong to a dead run with the
    // same number.
    let lives = |run: u32| if run == std::process::id() { !is_first } else { locks.is_run(run) };
    remove_unless(&lives);
    locks.clear();
    Ok(())
}

fn remove_unless(lives: &dyn Fn(u32) -> bool) {
    let is_left_over = |name: &str| owner(name).is_some_and(|run| !lives(run));
    let names = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let names: Vec<String> = names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| is_left_over(name))
        .collect();
    for name in names {
        println!("removing {name}, which a dead run has left");
        namespace::remove(&name);
    }
    let in_dead_run = |path: &Path| path.iter().any(|part| is_left_over(&part.to_string_lossy()));
    let dead: Vec<PathBuf> = mounts::paths().into_iter().filter(|path| in_dead_run(path)).collect();
    for path in dead.iter().rev() {
        println!("unmounting {}, which a dead run has left", path.display());
        mounts::force_unmount(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;
    use std::time::Duration;

    /// Other tests' new processes also hold each lock between their fork and their exec.
    fn soon(condition: impl FnMut() -> bool) -> bool {
        process::eventually(Duration::from_secs(10), condition)
    }

    #[test]
    fn names_tell_their_run() {
        let ours = run_name(3);
        assert_eq!(owner(&ours), Some(std::process::id()));
        assert_eq!(owner(&format!("{ours}-storage-1")), Some(std::process::id()));
        assert_eq!((owner("weft-e2e-"), owner("weft-7"), owner("eth0")), (None, None, None));
    }

    #[test]
    fn a_run_lives_as_long_as_its_lock_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let locks = Locks(folder.path().join("locks"));
        // Process 1 is alive and isn't a run.
        assert_eq!((locks.is_held(1), locks.is_run(1)), (None, false));
        let held = locks.hold(1).unwrap();
        assert!(locks.is_run(1), "whatever the program of that number is called");
        locks.clear();
        assert!(locks.is_run(1), "what is held isn't cleared away");
        drop(held);
        assert!(soon(|| locks.is_held(1) == Some(false)));
        assert!(!locks.is_run(1));
        // A run that has ended holds no lock, even if a process with its number has the same
        // program name.
        drop(locks.hold(std::process::id()).unwrap());
        assert!(soon(|| !locks.is_run(std::process::id())));
        locks.clear();
        assert_eq!(fs::read_dir(&locks.0).unwrap().count(), 0);
    }

    #[test]
    fn programs_that_a_run_has_started_do_not_keep_it_alive() {
        let folder = tempfile::tempdir().unwrap();
        let locks = Locks(folder.path().to_path_buf());
        let held = locks.hold(1).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        drop(held);
        let ended = soon(|| !locks.is_run(1));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ended);
    }
}
