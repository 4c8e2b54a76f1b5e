//! The machine that makes the load.

use crate::profiles::Host;
use crate::results::Machine;
use std::collections::BTreeMap;
use std::path::Path;

/// What the kernel drops caches by, where one may.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Settings that reports of file systems tell.
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

/// Space, memory, and whether caches can be dropped.
///
/// Errors: a place that isn't there.
pub fn host(place: &Path) -> std::io::Result<Host> {
    let free = rustix::fs::statvfs(place)?;
    Ok(Host {
        free_bytes: free.f_bavail * free.f_frsize,
        memory_bytes: memory_bytes(),
        // Opened and closed: nothing is dropped by that.
        drops_caches: std::fs::OpenOptions::new().write(true).open(DROP_CACHES).is_ok(),
    })
}

/// What a page tells of the machine.
pub fn machine(place: &Path) -> Machine {
    let settings = SETTINGS.iter().filter_map(|file| {
        let value = std::fs::read_to_string(file).ok()?;
        Some((file.rsplit('/').next()?.replace("enabled", "transparent_hugepage"), value.trim().to_string()))
    });
    let mut tuning: BTreeMap<String, String> = settings.collect();
    tuning.extend(mounted(place).map(|mount| ("mount".to_string(), mount)));
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Machine {
        cpu: model.map_or(String::new(), |(_, name)| name.trim().into()),
        cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u32),
        memory_bytes: memory_bytes(),
        kernel: kernel.trim().into(),
        clients: 1,
        tuning,
    }
}

fn memory_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    total.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Type and options of the file system that a place is on.
fn mounted(place: &Path) -> Option<String> {
    let place = place.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let of = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind, options) = (words.next()?, words.next()?, words.next()?);
        place.starts_with(point).then(|| (point.len(), format!("{kind} ({options})")))
    });
    // Later ones cover earlier ones at the same point.
    of.max_by_key(|(length, _)| *length).map(|(_, text)| text)
}
