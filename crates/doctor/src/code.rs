//! Codes of findings that aren't good.

use serde::Serialize;

types::finding_codes! {
    /// What a check found.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Code {
        KernelTooOld = "kernel-too-old",
            "The kernel is older than 5.14 and lacks interfaces that weft needs.",
            "Upgrade the kernel, or use a newer distribution.",
        KernelUntested = "kernel-untested",
            "The kernel is older than 6.1, the oldest that weft is tested with.",
            "Try your workload on this kernel first, or upgrade it.",
        IoUringIncomplete = "io-uring-incomplete",
            "io_uring lacks operations that weft needs.",
            "Upgrade the kernel.",
        IoUringForbidden = "io-uring-forbidden",
            "The kernel parameter kernel.io_uring_disabled forbids io_uring.",
            "sysctl -w kernel.io_uring_disabled=0, or weft doctor --apply.",
        IoUringUnavailable = "io-uring-unavailable",
            "No io_uring can be created, in most cases because a container forbids its system calls.",
            "Allow io_uring_setup, io_uring_enter and io_uring_register in the profile of the container.",
        FuseMissing = "fuse-missing",
            "/dev/fuse doesn't exist: mounts are impossible.",
            "modprobe fuse, or weft doctor --apply. A container needs the device: docker run --device /dev/fuse --cap-add SYS_ADMIN.",
        FuseDenied = "fuse-denied",
            "/dev/fuse can't be opened: permission denied.",
            "chmod 666 /dev/fuse. A container must allow the device: docker run --device /dev/fuse.",
        OpenFilesLow = "open-files-low",
            "The limit of open files is low: chunk files are opened again and again.",
            "ulimit -Hn 1048576, or LimitNOFILE=1048576 in the systemd unit.",
        MemoryLow = "memory-low",
            "The machine has less than 2 GiB of memory. A node of a cluster should have more.",
            "Add memory, or serve fewer targets here.",
        NumaReclaimOn = "numa-reclaim-on",
            "The kernel drops cached data of one NUMA zone while others have free memory (vm.zone_reclaim_mode).",
            "sysctl -w vm.zone_reclaim_mode=0, or weft doctor --apply.",
        ClockUnsynchronized = "clock-unsynchronized",
            "No time service synchronizes the clock. Nodes refuse members whose clock differs by more than 30 s.",
            "Install chrony, then systemctl enable --now chronyd.",
        PortInUse = "port-in-use",
            "Another program listens on an address that a service needs.",
            "Stop that program, or choose another port: listen in node.toml.",
        PortUnusable = "port-unusable",
            "An address can't be listened on, in most cases because this machine doesn't have it.",
            "ip address lists the addresses of this machine; 0.0.0.0 stands for all.",
        DirectoryUnusable = "directory-unusable",
            "A directory of state or of a target doesn't exist, or can't be read.",
            "Mount the disk, or create the directory.",
        FileSystemUnsuitable = "file-system-unsuitable",
            "The file system can't store targets: it isn't one of a local disk.",
            "Use a directory on xfs or ext4.",
        FileSystemVolatile = "file-system-volatile",
            "The file system loses its data when the machine stops.",
            "Use a directory on xfs or ext4, except for tests.",
        FileSystemOfContainer = "file-system-of-container",
            "The data of the file system is removed with the container.",
            "Mount a volume on xfs or ext4 into the container.",
        FileSystemUntested = "file-system-untested",
            "weft isn't tested on the file system.",
            "Use xfs or ext4.",
        DirectIoMissing = "direct-io-missing",
            "The file system doesn't support O_DIRECT: data is cached twice.",
            "Use xfs or ext4 on a local disk.",
        DiskReadOnly = "disk-read-only",
            "The file system is mounted read-only.",
            "dmesg shows errors of the disk. mount -o remount,rw MOUNTPOINT.",
        DiskFull = "disk-full",
            "The file system is full, or has no free inodes.",
            "Free space, or use another disk.",
        DiskNearlyFull = "disk-nearly-full",
            "Less than 5 % of the file system is free.",
            "Free space, or use another disk.",
        InterfaceDown = "interface-down",
            "No network interface besides loopback is up: other machines can't reach this one.",
            "ip link show; ip link set dev NAME up.",
        InterfaceSlow = "interface-slow",
            "A network interface is slower than 1 Gbit/s, and so slower than one disk.",
            "ethtool NAME shows the modes of the link. Check cable and switch.",
        ManagementUnreachable = "management-unreachable",
            "An address of management doesn't accept connections.",
            "Check that the management node runs and that no firewall is in between: nc -vz HOST PORT.",
    }
}

impl Code {
    /// The check that reports it; one of [`CHECKS`](crate::CHECKS).
    pub const fn check(self) -> &'static str {
        match self {
            Code::KernelTooOld | Code::KernelUntested => "kernel",
            Code::IoUringIncomplete | Code::IoUringForbidden | Code::IoUringUnavailable => "io_uring",
            Code::FuseMissing | Code::FuseDenied => "fuse",
            Code::OpenFilesLow => "open_files",
            Code::MemoryLow => "memory",
            Code::NumaReclaimOn => "numa_reclaim",
            Code::ClockUnsynchronized => "clock",
            Code::PortInUse | Code::PortUnusable => "port",
            Code::DirectoryUnusable
            | Code::FileSystemUnsuitable
            | Code::FileSystemVolatile
            | Code::FileSystemOfContainer
            | Code::FileSystemUntested
            | Code::DirectIoMissing
            | Code::DiskReadOnly
            | Code::DiskFull
            | Code::DiskNearlyFull => "disk",
            Code::InterfaceDown | Code::InterfaceSlow => "interface",
            Code::ManagementUnreachable => "management",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CHECKS;

    #[test]
    fn a_code_has_a_check_and_its_name_in_documents() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
            assert!(CHECKS.iter().any(|(check, _)| *check == code.check()), "{code:?}");
        }
    }
}
