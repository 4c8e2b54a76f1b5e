//! Kernel, io_uring and FUSE.

use crate::{Code, Device, Facts, Finding, Fix, FuseOverUring, IoUring, KernelVersion};

/// The oldest kernel that has all interfaces that weft needs: that of RHEL 9.
const OLDEST: KernelVersion = KernelVersion { major: 5, minor: 14 };
/// The oldest kernel that weft is tested with.
const OLDEST_TESTED: KernelVersion = KernelVersion { major: 6, minor: 1 };
/// The first kernel that sends FUSE requests over io_uring.
const FUSE_OVER_URING: KernelVersion = KernelVersion { major: 6, minor: 14 };

/// Parameter that forbids io_uring (Linux 6.6).
const IO_URING_DISABLED: &str = "kernel.io_uring_disabled";

pub(super) fn version(kernel: KernelVersion) -> Finding {
    let what = format!("Linux {kernel}");
    if kernel < OLDEST {
        let what = format!("{what} is too old: weft needs {OLDEST} or later");
        return Finding::error(Code::KernelTooOld, what, "upgrade the kernel, or use a newer distribution");
    }
    if kernel < OLDEST_TESTED {
        let what = format!("{what}: weft is tested with {OLDEST_TESTED} and later");
        return Finding::warning(
            Code::KernelUntested,
            what,
            "try your workload on this kernel first, or upgrade it",
        );
    }
    Finding::good("kernel", what)
}

pub(super) fn io_uring(facts: &Facts) -> Option<Finding> {
    let cause = match &facts.io_uring {
        IoUring::Unknown => return None,
        IoUring::Usable { fallbacks } if fallbacks.is_empty() => {
            return Some(Finding::good("io_uring", "io_uring is usable"));
        }
        IoUring::Usable { fallbacks } => {
            let what = format!("io_uring is usable; {}", fallbacks.join("; "));
            return Some(Finding::good("io_uring", what));
        }
        IoUring::Lacks { operations } => {
            let what = format!("io_uring lacks operations that weft needs: {}", operations.join(", "));
            return Some(Finding::error(Code::IoUringIncomplete, what, "upgrade the kernel"));
        }
        IoUring::Refused { cause } => cause,
    };
    let disabled = facts.sysctls.iter().find(|sysctl| sysctl.name == IO_URING_DISABLED && sysctl.value != 0);
    Some(match disabled {
        Some(sysctl) => {
            let what = format!("io_uring is forbidden by {IO_URING_DISABLED}={}: {cause}", sysctl.value);
            Finding::error(Code::IoUringForbidden, what, format!("sysctl -w {IO_URING_DISABLED}=0"))
                .with_fix(Fix::Sysctl { name: IO_URING_DISABLED, value: 0 })
        }
        None => {
            let what = format!("io_uring is not available: {cause}");
            let hint = "a container must allow its system calls: docker run --security-opt seccomp=unconfined, or a profile with io_uring_setup, io_uring_enter and io_uring_register";
            Finding::error(Code::IoUringUnavailable, what, hint)
        }
    })
}

pub(super) fn fuse(facts: &Facts) -> Finding {
    match facts.fuse {
        Device::Usable => Finding::good("fuse", "/dev/fuse is usable"),
        Device::Absent => {
            let hint = "modprobe fuse; a container needs the device: docker run --device /dev/fuse --cap-add SYS_ADMIN";
            Finding::error(Code::FuseMissing, "/dev/fuse doesn't exist: mounts are impossible", hint)
                .with_fix(Fix::Module { name: "fuse" })
        }
        Device::Denied => Finding::error(
            Code::FuseDenied,
            "/dev/fuse can't be opened: permission denied",
            "chmod 666 /dev/fuse; a container must allow the device: docker run --device /dev/fuse",
        ),
    }
}

/// Never a problem: the device does the same, slower.
pub(super) fn fuse_over_uring(facts: &Facts) -> Finding {
    let what = match facts.fuse_over_uring {
        FuseOverUring::On => "FUSE requests use io_uring".to_string(),
        FuseOverUring::Off => "FUSE requests can use io_uring: a mount by root turns it on".to_string(),
        FuseOverUring::Absent => {
            format!("FUSE requests use /dev/fuse, since io_uring needs Linux {FUSE_OVER_URING} for them")
        }
    };
    Finding::good("fuse_over_uring", what)
}
