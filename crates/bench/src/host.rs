//! The machine that generates the load.

use crate::profiles::Host;
use std::collections::BTreeMap;
use std::path::Path;

/// File that drops the kernel's caches, if writable.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Settings that reports list.
const SETTINGS: [&str; 8] = [
    "/proc/sys/vm/dirty_background_ratio",
    "/proc/sys/vm/dirty_ratio",
    "/proc/sys/vm/min_free_kbytes",
    "/proc/sys/vm/vfs_cache_pressure",
    "/proc/sys/vm/zone_reclaim_mode",
    "/proc/sys/vm/swappiness",
    "/proc/sys/kernel/numa_balancing",
    "/sys/kernel/mm/transparent_hugepage/enabled",
];

/// Returns the free space of a directory and whether caches can be dropped, with the given memory
/// size.
///
/// Errors: a path that doesn't exist.
pub fn host(place: &Path, memory_bytes: u64) -> std::io::Result<Host> {
    let free = rustix::fs::statvfs(place)?;
    Ok(Host {
        free_bytes: free.f_bavail * free.f_frsize,
        memory_bytes,
        // Opening and closing it drops nothing.
        drops_caches: std::fs::OpenOptions::new().write(true).open(DROP_CACHES).is_ok(),
    })
}

/// Returns the kernel settings for reports, by name.
pub fn settings() -> BTreeMap<String, String> {
    let setting = |file: &&str| {
        let value = std::fs::read_to_string(file).ok()?;
        Some((file.rsplit('/').next()?.replace("enabled", "transparent_hugepage"), value.trim().to_string()))
    };
    SETTINGS.iter().filter_map(setting).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_room_and_a_missing_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let found = host(folder.path(), 7).unwrap();
        assert!(found.free_bytes > 0 && found.memory_bytes == 7);
        assert!(host(&folder.path().join("none"), 7).is_err());
        assert!(settings().contains_key("dirty_ratio"));
    }
}
