//! Identity of this machine.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Identifies this machine until it reboots, together with the network namespace. Processes with
/// the same value can share memory, and reach each other by abstract Unix sockets. `None` when it
/// isn't known, and on a simulated host.
pub fn host_id() -> Option<String> {
    static HOST: OnceLock<Option<String>> = OnceLock::new();
    if super::is_simulated() {
        return None;
    }
    HOST.get_or_init(|| {
        let boot = boot_id().ok()?;
        let namespace = std::fs::metadata("/proc/self/ns/net").ok()?.ino();
        Some(format!("{boot}-{namespace}"))
    })
    .clone()
}

/// Random id of the current boot of the machine.
pub(crate) fn boot_id() -> io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_string())
}

/// The user id that this process runs as, which the peer of a Unix socket sees.
pub fn user_id() -> u32 {
    // SAFETY: a plain system call that can't fail.
    unsafe { libc::geteuid() }
}
