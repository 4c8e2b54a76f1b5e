//! What the kernel's io_uring offers of what this crate uses.

use crate::core_ring::{CoreRing, Form};
use io_uring::{Probe, opcode};
use std::io;

/// The operations that this crate uses on every kernel, with the version of Linux that has them.
const OPERATIONS: [(u8, &str, &str); 14] = [
    (opcode::Read::CODE, "read", "5.6"),
    (opcode::Write::CODE, "write", "5.6"),
    (opcode::OpenAt::CODE, "openat", "5.6"),
    (opcode::Fsync::CODE, "fsync", "5.1"),
    (opcode::Fallocate::CODE, "fallocate", "5.6"),
    (opcode::RenameAt::CODE, "renameat", "5.11"),
    (opcode::UnlinkAt::CODE, "unlinkat", "5.11"),
    (opcode::Accept::CODE, "accept", "5.5"),
    (opcode::Connect::CODE, "connect", "5.5"),
    (opcode::Send::CODE, "send", "5.6"),
    (opcode::Recv::CODE, "recv", "5.6"),
    (opcode::SendMsg::CODE, "sendmsg", "5.3"),
    (opcode::RecvMsg::CODE, "recvmsg", "5.3"),
    (opcode::PollAdd::CODE, "poll", "5.1"),
];
/// Cancels operations of dropped futures.
const CANCEL: (u8, &str, &str) = (opcode::AsyncCancel::CODE, "cancel", "5.5");

/// What the kernel's io_uring offers this process. [`io_uring_support`] finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoUringSupport {
    /// What the kernel lacks and weft can't do without, as `renameat (Linux 5.11)`. On a supported
    /// kernel the list is empty.
    pub missing: Vec<String>,
    /// Whether entries may have 128 bytes (Linux 5.19). Without them, weft receives requests
    /// through `/dev/fuse`.
    pub has_large_entries: bool,
    /// Whether rings are tuned for one submitting thread (Linux 6.1). Without it, completions
    /// interrupt that thread.
    pub is_tuned: bool,
}

impl IoUringSupport {
    /// Describes each fallback that is in use, with the version of Linux that ends it.
    pub fn fallbacks(&self) -> Vec<&'static str> {
        let fallbacks = [
            (
                self.has_large_entries,
                "no 128-byte entries (Linux 5.19): FUSE requests come through /dev/fuse",
            ),
            (self.is_tuned, "no deferred completions (Linux 6.1): completions interrupt the serving threads"),
        ];
        fallbacks.into_iter().filter(|(is_offered, _)| !is_offered).map(|(_, fallback)| fallback).collect()
    }

    fn new(form: Form, can_wait_with_timeout: bool, has_operation: impl Fn(u8) -> bool) -> IoUringSupport {
        let describe = |name: &str, version: &str| format!("{name} (Linux {version})");
        let operations = OPERATIONS.iter().chain([&CANCEL]).filter(|(code, ..)| !has_operation(*code));
        let mut missing: Vec<String> = operations.map(|(_, name, version)| describe(name, version)).collect();
        if !can_wait_with_timeout {
            missing.push(describe("wait with a time-out", "5.11"));
        }
        IoUringSupport { missing, has_large_entries: form != Form::Plain, is_tuned: form == Form::Tuned }
    }
}

/// Sets up a ring as each core does, and asks the kernel which operations it has.
///
/// Fails if this process can't have a ring: `ENOSYS` from kernels without io_uring, `EPERM` where
/// `kernel.io_uring_disabled` or the seccomp filter of a container forbids it.
pub fn io_uring_support() -> io::Result<IoUringSupport> {
    let (ring, form) = CoreRing::set_up()?;
    let mut probe = Probe::new();
    ring.probe(&mut probe)?;
    Ok(IoUringSupport::new(form, ring.can_wait_with_timeout(), |code| probe.is_supported(code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_everything_that_weft_needs() {
        assert_eq!(io_uring_support().unwrap().missing, Vec::<String>::new());
    }

    #[test]
    fn missing_operations_are_named_with_the_kernel_that_has_them() {
        let lacking = [opcode::RenameAt::CODE, opcode::AsyncCancel::CODE];
        let support = IoUringSupport::new(Form::Plain, false, |code| !lacking.contains(&code));
        assert_eq!(
            support.missing,
            ["renameat (Linux 5.11)", "cancel (Linux 5.5)", "wait with a time-out (Linux 5.11)"]
        );
    }

    #[test]
    fn fallbacks_are_those_of_the_ring() {
        let of = |form| IoUringSupport::new(form, true, |_| true).fallbacks().len();
        assert_eq!([Form::Tuned, Form::LargeEntries, Form::Plain].map(of), [0, 1, 2]);
    }
}
