//! What a run that was killed has left: its namespaces with their processes, and its mounts.

use super::super::mounts;
use super::namespace::{self, FOLDER};
use std::fs;
use std::path::{Path, PathBuf};

/// Start of every name that a run gives.
const PREFIX: &str = "weft-e2e-";

/// The name of a run's `serial`th network, unique on this machine as long as the run lives.
pub fn run_name(serial: u64) -> String {
    format!("{PREFIX}{}-{serial}", std::process::id())
}

/// The process whose run gave this name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Whether this process is a run like ours: the number of a dead one may have gone to any other program.
fn is_run(pid: u32) -> bool {
    let program = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    program(&pid.to_string()).is_some_and(|name| Some(name) == program("self"))
}

fn is_left_over(name: &str) -> bool {
    owner(name).is_some_and(|pid| pid != std::process::id() && !is_run(pid))
}

/// Removes what dead runs have left.
pub fn remove() {
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

    #[test]
    fn names_tell_their_run() {
        let ours = run_name(3);
        assert_eq!(owner(&ours), Some(std::process::id()));
        assert_eq!(owner(&format!("{ours}-storage-1")), Some(std::process::id()));
        assert!(!is_left_over(&ours));
        assert_eq!((owner("weft-e2e-"), owner("weft-7"), owner("eth0")), (None, None, None));
        // Process 1 is alive and no run of ours.
        assert!(is_left_over("weft-e2e-1-0-storage-1"));
    }
}
