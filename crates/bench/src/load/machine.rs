//! Description of the machine, and its processor time.

use crate::results::Machine;
use std::fs;
use std::path::Path;

/// Ticks per second in `/proc/stat`: constant for user space.
const TICKS_PER_S: f64 = 100.0;

/// Returns a description of this machine, as one client that uses `place`.
pub fn machine(place: &Path) -> Machine {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_string()).unwrap_or_default()
    };
    let mut tuning = std::collections::BTreeMap::new();
    if let Some(on) = mounted(place) {
        tuning.insert("file system".to_string(), on.kind);
        tuning.insert("mount options".to_string(), on.options);
    }
    Machine {
        cpu: field("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
        memory_bytes: memory_bytes(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        clients: 1,
        tuning,
    }
}

/// Returns the size of the memory in bytes; 0 if it isn't known.
pub(super) fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    number.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Returns the processor time of the whole machine since its start, in seconds.
pub(super) fn busy_s() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq; the following fields are time of other
    // machines or counted already.
    let busy =
        ticks.iter().take(7).enumerate().filter(|(index, _)| !matches!(index, 3 | 4)).map(|(_, ticks)| ticks);
    Some(busy.sum::<u64>() as f64 / TICKS_PER_S)
}

/// Returns whether a path is on a local file system of a device, so that no other machine caches
/// any of it.
pub(super) fn is_on_device(place: &Path) -> bool {
    mounted(place).is_some_and(|on| on.source.starts_with("/dev/") && !on.kind.starts_with("fuse"))
}

/// A mounted file system.
struct Mounted {
    kind: String,
    source: String,
    options: String,
}

/// Returns the file system that contains a path.
fn mounted(place: &Path) -> Option<Mounted> {
    let place = place.canonicalize().ok()?;
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounts = text.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut words = before.split(' ').skip(4);
        let (point, options) = (words.next()?, words.next()?);
        let depth = place.starts_with(point).then_some(point.len())?;
        let (kind, rest) = after.split_once(' ')?;
        let source = rest.split(' ').next()?;
        Some((depth, Mounted { kind: kind.into(), source: source.into(), options: options.into() }))
    });
    // Among equal mount points, the one mounted last is visible.
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, on)| on)
}

/// Drops the caches of this machine; returns whether that was permitted.
pub(super) fn drop_caches() -> bool {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
