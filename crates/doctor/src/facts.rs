//! Facts about a machine.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What [`crate::read`] found. `None` and empty lists: it could not be read, or wasn't asked for.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Facts {
    /// Version of the running kernel.
    pub kernel: KernelVersion,
    /// `/dev/fuse`.
    pub fuse: Device,
    /// FUSE requests over io_uring (Linux 6.14).
    pub fuse_over_uring: FuseOverUring,
    /// io_uring.
    pub io_uring: IoUring,
    /// Limit of open files of this process; services inherit it unless their unit sets another.
    pub open_files: Option<OpenFiles>,
    /// Kernel parameters.
    pub sysctls: Vec<Sysctl>,
    /// Whether the kernel's clock is synchronized.
    pub clock: Clock,
    /// Memory and processors.
    pub memory: Memory,
    /// Ports that services listen on.
    pub ports: Vec<Port>,
    /// Directories of targets and of state.
    pub dirs: Vec<TargetDir>,
    /// Network interfaces other than loopback.
    pub interfaces: Vec<Interface>,
    /// Addresses of management, and whether they accept connections.
    pub management: Vec<ManagementContact>,
}

/// `major.minor` of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct KernelVersion {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
}

impl KernelVersion {
    /// Parses a release such as `6.1.0-18-amd64`.
    pub fn parse(release: &str) -> Option<KernelVersion> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut number = || numbers.next()?.parse().ok();
        Some(KernelVersion { major: number()?, minor: number()? })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A device file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Device {
    /// It doesn't exist.
    #[default]
    Absent,
    /// It exists, and this user may not open it.
    Denied,
    /// It can be opened.
    Usable,
}

/// Whether the kernel sends FUSE requests over io_uring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FuseOverUring {
    /// The kernel is too old, or built without it.
    #[default]
    Absent,
    /// The parameter of the module is off; a mount by root turns it on.
    Off,
    /// The parameter is on.
    On,
}

/// Whether programs may use io_uring.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum IoUring {
    /// It has everything that weft can't do without.
    Usable {
        /// What weft uses instead of what this kernel lacks.
        fallbacks: Vec<String>,
    },
    /// A ring can be created, but weft needs more.
    Lacks {
        /// The missing operations.
        operations: Vec<String>,
    },
    /// A ring can't be created.
    Refused {
        /// The cause, as the kernel names it.
        cause: String,
    },
    /// It wasn't tried.
    #[default]
    Unknown,
}

/// Limits of open files of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFiles {
    /// The hard limit, to which weft raises the soft limit.
    pub hard: u64,
}

/// A kernel parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sysctl {
    /// Name with dots.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
}

/// State of the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Clock {
    /// A time service keeps it synchronized.
    Synchronized,
    /// No time service has set it.
    Unsynchronized,
    /// Unknown.
    #[default]
    Unknown,
}

/// Memory and processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Memory in bytes.
    pub bytes: u64,
    /// Processors that this process may use.
    pub cpus: u32,
}

/// An address that a service listens on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// The address.
    pub address: SocketAddr,
    /// Whether it is free.
    pub used: PortUse,
}

/// Whether a port is free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortUse {
    /// Nothing listens there.
    Free,
    /// weft listens there, on this machine.
    ByWeft,
    /// Another program listens there, with its name and process id where they are visible.
    By(
        /// The program.
        Option<(String, u32)>,
    ),
    /// The address can't be used, and why: it isn't one of this machine, or the port is privileged.
    Unusable(
        /// The cause.
        String,
    ),
}

/// A directory in which weft stores data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetDir {
    /// Its path.
    pub path: PathBuf,
    /// Its file system, or why it can't be read.
    pub file_system: Result<FileSystem, String>,
}

/// The file system of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSystem {
    /// Type as in `/proc/mounts`.
    pub kind: String,
    /// Mount point.
    pub mount_point: PathBuf,
    /// Whether it is mounted read-only.
    pub is_read_only: bool,
    /// Size in bytes.
    pub size: u64,
    /// Free bytes.
    pub free: u64,
    /// Inodes and free inodes; 0: the file system has no fixed number.
    pub inodes: (u64, u64),
    /// Whether files can be opened with `O_DIRECT`; `None` if it couldn't be tried.
    pub has_direct_io: Option<bool>,
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it has a carrier.
    pub is_up: bool,
    /// Speed in Mbit/s, if the driver reports one.
    pub mbit_per_s: Option<u32>,
    /// Size of packets in bytes.
    pub mtu: u32,
}

/// An address of management.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagementContact {
    /// `host:port`.
    pub address: String,
    /// Why no connection was accepted.
    pub failure: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_parsed() {
        let version = |major, minor| Some(KernelVersion { major, minor });
        assert_eq!(KernelVersion::parse("6.1.0-18-amd64"), version(6, 1));
        assert_eq!(KernelVersion::parse("5.14.0-427.13.1.el9_4.x86_64"), version(5, 14));
        assert_eq!(KernelVersion::parse("6.18.0+"), version(6, 18));
        assert_eq!(KernelVersion::parse("6"), None);
        assert_eq!(KernelVersion::parse("generic"), None);
    }
}
