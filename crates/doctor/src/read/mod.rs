//! Reads facts from the running machine.

mod disks;
mod machine;
mod network;
mod sockets;

use crate::{Facts, IoUring};
use std::net::SocketAddr;
use std::path::PathBuf;

/// What to look at, besides the machine itself.
#[derive(Clone, Debug, Default)]
pub struct Subjects {
    /// Addresses that the services of a node listen on, or will.
    pub listen: Vec<SocketAddr>,
    /// Directories of state and targets, existing or to be created.
    pub dirs: Vec<PathBuf>,
    /// `host:port` of management.
    pub management: Vec<String>,
}

/// Reads the facts. What can't be read is left out. `io_uring`: the result of trying it, which
/// needs the caller's runtime.
pub fn facts(subjects: &Subjects, io_uring: IoUring, clock: crate::Clock) -> Facts {
    Facts {
        kernel: machine::kernel(),
        fuse: machine::fuse(),
        fuse_over_uring: machine::fuse_over_uring(),
        io_uring,
        open_files: machine::open_files(),
        sysctls: machine::sysctls(),
        clock,
        memory: machine::memory(),
        ports: subjects.listen.iter().map(|address| sockets::port(*address)).collect(),
        dirs: subjects.dirs.iter().map(|dir| disks::directory(dir)).collect(),
        interfaces: network::interfaces(),
        management: subjects.management.iter().map(|address| network::contact(address)).collect(),
    }
}
