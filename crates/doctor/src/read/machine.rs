//! Kernel, devices, limits, memory.

use crate::{Device, FuseOverUring, KernelVersion, Memory, OpenFiles, Sysctl};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The parameters that checks examine.
const SYSCTLS: [&str; 2] = ["kernel.io_uring_disabled", "vm.zone_reclaim_mode"];

const FUSE_URING_PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

pub(super) fn kernel() -> KernelVersion {
    let name = rustix::system::uname();
    KernelVersion::parse(&name.release().to_string_lossy()).unwrap_or_default()
}

pub(super) fn fuse() -> Device {
    match fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Device::Usable,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Device::Denied,
        Err(_) => Device::Absent,
    }
}

pub(super) fn fuse_over_uring() -> FuseOverUring {
    match fs::read_to_string(FUSE_URING_PARAMETER).as_deref().map(str::trim) {
        Ok("Y") => FuseOverUring::On,
        Ok(_) => FuseOverUring::Off,
        Err(_) => FuseOverUring::Absent,
    }
}

pub(super) fn open_files() -> Option<OpenFiles> {
    Some(OpenFiles { hard: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX) })
}

pub(super) fn sysctls() -> Vec<Sysctl> {
    let read = |name: &'static str| {
        let file = Path::new("/proc/sys").join(name.replace('.', "/"));
        let value = fs::read_to_string(file).ok()?.trim().parse().ok()?;
        Some(Sysctl { name, value })
    };
    SYSCTLS.into_iter().filter_map(read).collect()
}

pub(super) fn memory() -> Memory {
    let info = rustix::system::sysinfo();
    Memory {
        bytes: info.totalram as u64 * u64::from(info.mem_unit),
        cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_memory_and_limits() {
        assert!(kernel() >= KernelVersion { major: 5, minor: 0 });
        assert!(memory().bytes > 0 && memory().cpus > 0);
        assert!(open_files().unwrap().hard > 0);
        assert!(sysctls().iter().all(|sysctl| SYSCTLS.contains(&sysctl.name)));
    }
}
