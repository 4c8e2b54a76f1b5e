//! Transports of requests between the kernel and this process.
//!
//! A transport gives every core a number of workers (`Worker`). A worker carries one request at a
//! time: it takes a request, has it handled and sends the reply. All of that happens on one core,
//! with buffers of the worker's own.

#[allow(unsafe_code)] // It gives memory back to the system; the SAFETY comment is there.
mod arena;
mod cpus;
mod dev;
#[allow(unsafe_code)] // Its commands hand buffers to the kernel; the SAFETY comment is there.
mod uring;
mod workers;

pub(crate) use arena::Arena;
pub(crate) use cpus::Cpus;
pub(crate) use workers::{Core, Outcome, announce_kernel_wait};

use crate::session::Shared;
use crate::sys;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use types::{Errno, Error};

/// How requests arrive from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// io_uring where the kernel offers it, otherwise the device.
    #[default]
    Auto,
    /// io_uring queues, one for every processor (Linux 6.14 and later).
    Uring,
    /// Reads and writes of `/dev/fuse`.
    Dev,
}

/// Default number of requests that a core carries at a time.
pub const DEFAULT_DEPTH: usize = 32;
/// Fewest workers of a core: with fewer, one slow request would delay the callers of its processor.
const MIN_DEPTH: usize = 4;
/// Payload buffers of all workers of a mount together, in bytes.
const PAYLOAD_BUDGET: usize = 512 << 20;
/// The module parameter that makes the kernel offer io_uring.
const URING_PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Returns the workers per core: the requested number, within the budget for buffers.
pub(crate) fn workers_per_core(asked: usize, cores: usize, max_io: usize) -> usize {
    asked.min(PAYLOAD_BUDGET / (max_io * cores.max(1))).max(MIN_DEPTH)
}

/// Enables the kernel's offer of io_uring, where it has the parameter. The handshake of a mount
/// shows whether it worked.
pub(crate) fn enable_uring() {
    if let Err(error) = sys::write_setting(URING_PARAMETER, "Y") {
        tracing::debug!(parameter = URING_PARAMETER, %error, "can't enable the kernel's FUSE over io_uring");
    }
}

/// Returns whether the rings of this process can send FUSE commands to the kernel.
pub(crate) fn has_ring_for_commands() -> bool {
    rt::io_uring_support().is_ok_and(|support| support.has_large_entries)
}

/// Returns the error for a mount that requires io_uring.
pub(crate) fn uring_missing() -> Error {
    Error::new(Errno::EOPNOTSUPP, "the kernel does not offer FUSE over io_uring").hint(format!(
        "it needs Linux 6.14 and `echo Y > {URING_PARAMETER}`; transport `dev` works everywhere"
    ))
}

/// Starts the threads that serve a mount after its handshake.
pub(crate) fn start(shared: &Arc<Shared>, depth: usize) -> io::Result<Vec<JoinHandle<()>>> {
    let cpus = Cpus::of_machine();
    if shared.features.uses_uring() {
        uring::start(shared, &cpus, depth)
    } else {
        dev::start(shared, &cpus, depth)
    }
}

/// Returns how many cores will serve, for counters that are created before the cores start.
pub(crate) fn cores(over_uring: bool) -> usize {
    let cpus = Cpus::of_machine();
    if over_uring { cpus.possible() } else { cpus.allowed().len() }
}

/// Returns true for an error number that means that the connection has ended.
fn is_connection_end(errno: i32) -> bool {
    matches!(errno, libc::ENOTCONN | libc::ECANCELED | libc::ENODEV | libc::ECONNABORTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_stay_within_their_budget() {
        const MIB: usize = 1 << 20;
        assert_eq!(workers_per_core(32, 2, MIB), 32);
        assert_eq!(workers_per_core(1000, 2, MIB), 256);
        assert_eq!(workers_per_core(32, 64, MIB), 8);
        assert_eq!(workers_per_core(32, 1024, MIB), MIN_DEPTH);
        assert_eq!(workers_per_core(0, 1, MIB), MIN_DEPTH);
    }
}
