//! The checks: pure functions from facts to findings.

mod disks;
mod kernel;
mod network;
mod resources;

use crate::{Facts, Finding, KernelVersion, Purpose};

/// The names of all checks, with what each examines. The documentation and `--json` use the names.
pub const CHECKS: &[(&str, &str)] = &[
    ("kernel", "version of the kernel"),
    ("io_uring", "whether programs may use io_uring, and which operations the kernel lacks"),
    ("fuse", "the device `/dev/fuse`, for mounts"),
    ("fuse_over_uring", "FUSE requests over io_uring, for mounts"),
    ("open_files", "limit of open files"),
    ("memory", "memory of the machine"),
    ("numa_reclaim", "sysctl `vm.zone_reclaim_mode`"),
    ("clock", "whether a time service synchronizes the clock"),
    ("port", "addresses that the services listen on"),
    ("disk", "file systems of state and target directories"),
    ("interface", "network interfaces"),
    ("management", "connections to management"),
];

/// Compares facts with what weft needs. Returns at least one finding per check that the purpose
/// needs and for which there are facts, in the order of [`CHECKS`].
pub fn examine(facts: &Facts, purpose: Purpose) -> Vec<Finding> {
    let mut findings = vec![kernel::version(facts.kernel)];
    findings.extend(kernel::io_uring(facts));
    if purpose.is_client {
        findings.push(kernel::fuse(facts));
        findings.push(kernel::fuse_over_uring(facts));
    }
    findings.extend(facts.open_files.map(|limits| resources::open_files(limits, purpose)));
    if purpose.is_node {
        findings.push(resources::memory(facts.memory));
        findings.extend(resources::numa_reclaim(facts));
    }
    findings.extend(resources::clock(facts.clock));
    findings.extend(facts.ports.iter().map(network::port));
    findings.extend(facts.dirs.iter().flat_map(disks::directory));
    findings.extend(network::interfaces(&facts.interfaces));
    findings.extend(facts.management.iter().map(network::management));
    findings
}

/// Returns what the check `kernel` finds for a version.
pub fn kernel_finding(kernel: KernelVersion) -> Finding {
    kernel::version(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;
    use std::path::PathBuf;

    /// A machine on which every check succeeds.
    fn good_machine() -> Facts {
        Facts {
            kernel: KernelVersion { major: 6, minor: 18 },
            fuse: Device::Usable,
            fuse_over_uring: FuseOverUring::On,
            io_uring: IoUring::Usable { fallbacks: Vec::new() },
            open_files: Some(OpenFiles { hard: 1 << 20 }),
            sysctls: vec![Sysctl { name: "vm.zone_reclaim_mode", value: 0 }],
            clock: Clock::Synchronized,
            memory: Memory { bytes: 64 << 30, cpus: 16 },
            ports: vec![Port { address: "0.0.0.0:7500".parse().unwrap(), used: PortUse::Free }],
            dirs: vec![dir("xfs")],
            interfaces: vec![Interface {
                name: "eth0".into(),
                is_up: true,
                mbit_per_s: Some(25_000),
                mtu: 9000,
            }],
            management: vec![ManagementContact { address: "mgmt1:7500".into(), failure: None }],
        }
    }

    fn dir(kind: &str) -> TargetDir {
        let file_system = FileSystem {
            kind: kind.into(),
            mount_point: "/srv".into(),
            is_read_only: false,
            size: 1 << 40,
            free: 1 << 39,
            inodes: (1 << 20, 1 << 19),
            has_direct_io: Some(true),
        };
        TargetDir { path: PathBuf::from("/srv/t1"), file_system: Ok(file_system) }
    }

    /// Returns the findings that aren't good.
    fn bad(facts: &Facts) -> Vec<Finding> {
        examine(facts, Purpose::ALL).into_iter().filter(|finding| finding.state != State::Good).collect()
    }

    fn check_one(facts: &Facts, check: &str, state: State, words: &str) -> Finding {
        let found = bad(facts);
        let [finding] = &found[..] else { panic!("{found:?}") };
        assert_eq!((finding.check, finding.state), (check, state), "{finding:?}");
        assert!(finding.what.contains(words), "{finding:?}");
        assert!(!finding.hint.is_empty(), "{finding:?}");
        finding.clone()
    }

    #[test]
    fn a_good_machine_passes_every_check_in_order() {
        let findings = examine(&good_machine(), Purpose::ALL);
        let names: Vec<&str> = findings.iter().map(|finding| finding.check).collect();
        assert_eq!(names, CHECKS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        assert!(findings.iter().all(|finding| finding.state == State::Good), "{findings:?}");
    }

    #[test]
    fn a_client_needs_no_checks_of_nodes() {
        let facts = Facts { memory: Memory { bytes: 1, cpus: 1 }, ..good_machine() };
        let client = Purpose { is_node: false, is_client: true };
        assert!(examine(&facts, client).iter().all(|finding| finding.state == State::Good));
        let node = Purpose { is_node: true, is_client: false };
        let facts = Facts { fuse: Device::Absent, ..good_machine() };
        assert!(examine(&facts, node).iter().all(|finding| finding.state == State::Good));
    }

    #[test]
    fn kernels_are_old_untested_or_good() {
        let on = |major, minor| Facts { kernel: KernelVersion { major, minor }, ..good_machine() };
        check_one(&on(4, 18), "kernel", State::Error, "4.18");
        check_one(&on(5, 13), "kernel", State::Error, "5.13");
        check_one(&on(5, 14), "kernel", State::Warning, "5.14");
        assert!(bad(&on(6, 1)).is_empty());
    }

    #[test]
    fn a_missing_fuse_device_is_fixed_by_its_module() {
        let facts = Facts { fuse: Device::Absent, fuse_over_uring: FuseOverUring::Absent, ..good_machine() };
        let finding = bad(&facts).into_iter().find(|finding| finding.check == "fuse").unwrap();
        assert_eq!((finding.state, finding.fix), (State::Error, Some(Fix::Module { name: "fuse" })));
        let facts = Facts { fuse: Device::Denied, ..good_machine() };
        assert_eq!(check_one(&facts, "fuse", State::Error, "/dev/fuse").fix, None);
    }

    #[test]
    fn refused_io_uring_is_fixed_where_a_sysctl_is_the_cause() {
        let refused = IoUring::Refused { cause: "operation not permitted".into() };
        let mut facts = Facts { io_uring: refused, ..good_machine() };
        assert_eq!(check_one(&facts, "io_uring", State::Error, "not permitted").fix, None);
        facts.sysctls.push(Sysctl { name: "kernel.io_uring_disabled", value: 2 });
        let fix = Fix::Sysctl { name: "kernel.io_uring_disabled", value: 0 };
        assert_eq!(check_one(&facts, "io_uring", State::Error, "kernel.io_uring_disabled").fix, Some(fix));
    }

    #[test]
    fn fallbacks_are_named_and_missing_operations_are_errors() {
        let with = |io_uring| Facts { io_uring, ..good_machine() };
        let fallbacks = IoUring::Usable { fallbacks: vec!["no deferred completions".into()] };
        let findings = examine(&with(fallbacks), Purpose::ALL);
        assert!(findings.iter().any(|finding| finding.what.contains("no deferred completions")));
        assert!(findings.iter().all(|finding| finding.state == State::Good));
        let lacks = IoUring::Lacks { operations: vec!["renameat (Linux 5.11)".into()] };
        check_one(&with(lacks), "io_uring", State::Error, "renameat");
    }

    #[test]
    fn resources_that_are_small_are_warnings() {
        let facts = Facts { open_files: Some(OpenFiles { hard: 1024 }), ..good_machine() };
        check_one(&facts, "open_files", State::Warning, "1024");
        let facts = Facts { memory: Memory { bytes: 1 << 30, cpus: 1 }, ..good_machine() };
        check_one(&facts, "memory", State::Warning, "1.0 GiB");
        let facts = Facts { clock: Clock::Unsynchronized, ..good_machine() };
        check_one(&facts, "clock", State::Warning, "synchronized");
        let facts =
            Facts { sysctls: vec![Sysctl { name: "vm.zone_reclaim_mode", value: 1 }], ..good_machine() };
        let fix = Fix::Sysctl { name: "vm.zone_reclaim_mode", value: 0 };
        assert_eq!(check_one(&facts, "numa_reclaim", State::Warning, "vm.zone_reclaim_mode").fix, Some(fix));
    }

    #[test]
    fn ports_name_the_program_that_uses_them() {
        let with = |used| Facts {
            ports: vec![Port { address: "0.0.0.0:7500".parse().unwrap(), used }],
            ..good_machine()
        };
        check_one(&with(PortUse::By(Some(("nginx".into(), 17)))), "port", State::Error, "nginx");
        check_one(&with(PortUse::By(None)), "port", State::Error, "0.0.0.0:7500");
        check_one(&with(PortUse::Unusable("permission denied".into())), "port", State::Error, "denied");
        assert!(bad(&with(PortUse::ByWeft)).is_empty());
    }

    #[test]
    fn file_systems_that_lose_data_are_errors() {
        let with = |dir| Facts { dirs: vec![dir], ..good_machine() };
        check_one(&with(dir("nfs4")), "disk", State::Error, "nfs4");
        check_one(&with(dir("fuse.sshfs")), "disk", State::Error, "fuse.sshfs");
        check_one(&with(dir("overlay")), "disk", State::Warning, "container");
        check_one(&with(dir("tmpfs")), "disk", State::Warning, "tmpfs");
        check_one(&with(dir("zfs")), "disk", State::Warning, "zfs");
        for tested in ["xfs", "ext4"] {
            assert!(bad(&with(dir(tested))).is_empty());
        }
        let unreadable = TargetDir { path: "/none".into(), file_system: Err("no such directory".into()) };
        check_one(&with(unreadable), "disk", State::Error, "/none");
    }

    #[test]
    fn file_systems_that_are_full_or_read_only_are_reported() {
        let with = |change: fn(&mut FileSystem)| {
            let mut dir = dir("xfs");
            dir.file_system.iter_mut().for_each(change);
            Facts { dirs: vec![dir], ..good_machine() }
        };
        check_one(&with(|fs| fs.free = 0), "disk", State::Error, "full");
        check_one(&with(|fs| fs.free = fs.size / 100), "disk", State::Warning, "1 %");
        check_one(&with(|fs| fs.inodes = (100, 0)), "disk", State::Error, "inodes");
        check_one(&with(|fs| fs.is_read_only = true), "disk", State::Error, "read-only");
        check_one(&with(|fs| fs.has_direct_io = Some(false)), "disk", State::Warning, "O_DIRECT");
        assert!(bad(&with(|fs| fs.inodes = (0, 0))).is_empty());
    }

    #[test]
    fn networks_that_are_down_or_slow_are_reported() {
        let with = |is_up, mbit_per_s, mtu| Facts {
            interfaces: vec![Interface { name: "eth0".into(), is_up, mbit_per_s, mtu }],
            ..good_machine()
        };
        check_one(&with(false, None, 1500), "interface", State::Warning, "no network interface");
        check_one(&with(true, Some(100), 1500), "interface", State::Warning, "100 Mbit/s");
        assert!(bad(&with(true, Some(100_000), 1500)).is_empty());
        assert!(bad(&with(true, None, 1500)).is_empty());
        let lost = ManagementContact { address: "m:7500".into(), failure: Some("timed out".into()) };
        let facts = Facts { management: vec![lost], ..good_machine() };
        check_one(&facts, "management", State::Error, "m:7500");
    }

    #[test]
    fn an_empty_machine_gives_no_findings_about_unknown_facts() {
        let facts = Facts { kernel: KernelVersion { major: 6, minor: 18 }, ..Facts::default() };
        let node = Purpose { is_node: true, is_client: false };
        let names: Vec<&str> = examine(&facts, node).iter().map(|finding| finding.check).collect();
        assert_eq!(names, ["kernel", "memory"]);
    }
}
