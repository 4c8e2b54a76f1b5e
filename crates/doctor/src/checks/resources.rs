//! Limits, memory and clock.

use crate::{Clock, Code, Facts, Finding, Fix, Memory, OpenFiles, Purpose};

/// Open files that a node with a few targets needs, so that chunk files in use stay open: 4,096
/// files of up to 3 descriptors each for one target, and connections.
const OPEN_FILES_OF_NODE: u64 = 16_384;
/// Open files of a client: the kernel opens the files of applications, so that only connections
/// count.
const OPEN_FILES_OF_CLIENT: u64 = 1024;
/// Memory below which caches of a node are hardly useful.
const SMALL_MEMORY: u64 = 2 << 30;

const ZONE_RECLAIM: &str = "vm.zone_reclaim_mode";

pub(super) fn open_files(limits: OpenFiles, purpose: Purpose) -> Finding {
    let needed = if purpose.is_node { OPEN_FILES_OF_NODE } else { OPEN_FILES_OF_CLIENT };
    let what = format!("limit of open files: {}", limits.hard);
    if limits.hard >= needed {
        return Finding::good("open_files", what);
    }
    let what = format!("{what}; below {needed}, chunk files are opened again and again");
    Finding::warning(
        Code::OpenFilesLow,
        what,
        "ulimit -Hn 1048576, or LimitNOFILE=1048576 in the systemd unit",
    )
}

pub(super) fn memory(memory: Memory) -> Finding {
    let gib = memory.bytes as f64 / f64::from(1 << 30);
    let what = format!("{gib:.1} GiB of memory, {} processors", memory.cpus);
    // 0: unknown.
    if memory.bytes == 0 || memory.bytes >= SMALL_MEMORY {
        return Finding::good("memory", what);
    }
    let what = format!("{what}; a node of a cluster should have 2 GiB or more");
    Finding::warning(Code::MemoryLow, what, "add memory, or serve fewer targets here")
}

pub(super) fn numa_reclaim(facts: &Facts) -> Option<Finding> {
    let sysctl = facts.sysctls.iter().find(|sysctl| sysctl.name == ZONE_RECLAIM)?;
    let what = format!("{ZONE_RECLAIM}={}", sysctl.value);
    if sysctl.value == 0 {
        return Some(Finding::good("numa_reclaim", what));
    }
    let what = format!("{what}: the kernel drops cached data of one NUMA zone while others have free memory");
    let hint = format!("sysctl -w {ZONE_RECLAIM}=0");
    Some(
        Finding::warning(Code::NumaReclaimOn, what, hint)
            .with_fix(Fix::Sysctl { name: ZONE_RECLAIM, value: 0 }),
    )
}

pub(super) fn clock(clock: Clock) -> Option<Finding> {
    match clock {
        Clock::Unknown => None,
        Clock::Synchronized => Some(Finding::good("clock", "the clock is synchronized")),
        Clock::Unsynchronized => Some(Finding::warning(
            Code::ClockUnsynchronized,
            "the clock is not synchronized: nodes refuse members whose clock differs by more than 30 s",
            "apt install chrony (or: dnf install chrony), then systemctl enable --now chronyd",
        )),
    }
}
