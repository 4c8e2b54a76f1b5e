//! Dispatch of requests: calls the client core for each operation. Shared by all transports.
//!
//! A handler returns the length of the body that it has written to the request's `out`, or the
//! error for the application.

mod attrs;
mod control;
mod data;
mod dirs;
mod files;
mod flags;
mod locks;
mod names;
pub(crate) mod xattrs;

pub(crate) use files::OpenFile;

use crate::abi::Opcode;
use crate::request::{Operation, Request};
use crate::transport::{Core, Outcome};
use std::rc::Rc;
use types::{Errno, Error, Result};

/// Largest error number that the kernel accepts in a reply.
const MAX_ERRNO: i32 = 511;

/// Handles one request and returns its outcome.
pub(crate) async fn handle(core: &Rc<Core>, request: &Request) -> Outcome {
    let operation = request.operation()?;
    match perform(core, request, operation).await {
        Ok(len) => Ok(len.min(request.out.len())),
        Err(error) => {
            log_failure(core, request, &error);
            if error.errno == Errno::ESTALE {
                let (client, who) = (&core.shared.client, request.credentials());
                return Err(match estale_refers_to_entry_target(&operation) {
                    true => client.errno_for_replaced(who),
                    false => client.errno_for_missing(who, request.ino()),
                });
            }
            Err(application_errno(error.errno))
        }
    }
}

/// Returns whether `ESTALE` refers to the inode behind a name, and not to the directory that
/// contains the name and that the kernel has put into the request. For a directory that is gone,
/// the metadata service returns `ENOENT`.
fn estale_refers_to_entry_target(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Lookup { .. } | Operation::Create { .. })
}

/// Returns the error number that an application sees. It hides refusals, numbers that weft's
/// services use among themselves and numbers that the kernel rejects.
fn application_errno(errno: Errno) -> Errno {
    match errno {
        Errno::EADDRINUSE
        | Errno::ECANCELED
        | Errno::EHOSTDOWN
        | Errno::ENOTCONN
        | Errno::EPROTO
        | Errno::ESHUTDOWN
        | Errno::Refusal(_) => Errno::EIO,
        Errno::Number(1..=MAX_ERRNO) => errno,
        _ => Errno::EIO,
    }
}

/// Logs why a request failed: of its error, an application sees at most a number, and one that uses
/// a mapping not even that.
fn log_failure(core: &Core, request: &Request, error: &Error) {
    let Request { header, .. } = request;
    if error.message.is_empty() {
        return;
    }
    let is_fault = matches!(application_errno(error.errno), Errno::EIO | Errno::ETIMEDOUT);
    // For a mapped page, a failed read becomes a signal, whatever the error number.
    let operation = Opcode::from_number(header.opcode);
    if (is_fault || operation == Some(Opcode::Read))
        && let Some(suppressed) = core.shared.failure_log_limit.admit(rt::monotonic_ns())
    {
        tracing::warn!(?operation, ino = header.nodeid, pid = header.pid, suppressed, %error, "request failed");
    } else {
        tracing::debug!(opcode = header.opcode, ino = header.nodeid, %error, "request failed");
    }
}

async fn perform(core: &Rc<Core>, rq: &Request, operation: Operation<'_>) -> Result<usize> {
    match operation {
        Operation::Read(args) => data::read(core, rq, args).await,
        Operation::Write(args) => data::write(core, rq, args).await,
        // In a function of its own, so that reads and writes don't carry its state: futures are
        // copied on their way to the task that polls them.
        operation => Box::pin(perform_rest(core, rq, operation)).await,
    }
}

async fn perform_rest(core: &Rc<Core>, rq: &Request, operation: Operation<'_>) -> Result<usize> {
    use Operation as Op;
    match operation {
        Op::Lookup { name } => names::lookup(core, rq, name).await,
        Op::Symlink { name, target } => names::symlink(core, rq, name, target).await,
        Op::Mknod { args, name } => names::mknod(core, rq, args, name).await,
        Op::Mkdir { args, name } => names::mkdir(core, rq, args, name).await,
        Op::Unlink { name } => names::unlink(core, rq, name).await,
        Op::Rmdir { name } => names::rmdir(core, rq, name).await,
        Op::Rename { new_parent, flags, name, new_name } => {
            names::rename(core, rq, name, new_parent, new_name, flags).await
        }
        Op::Link { ino, name } => names::link(core, rq, ino, name).await,

        Op::Getattr => attrs::getattr(core, rq).await,
        Op::Statx => attrs::statx(core, rq).await,
        Op::Setattr(args) => Box::pin(attrs::setattr(core, rq, args)).await,
        Op::Readlink => attrs::readlink(core, rq).await,

        Op::Open(args) => files::open(core, rq, args).await,
        Op::Create { args, name } => Box::pin(files::create(core, rq, args, name)).await,
        Op::Tmpfile(args) => files::tmpfile(core, rq, args).await,
        Op::Flush(args) => files::flush(core, rq, args).await,
        Op::Release(args) => files::release(core, args).await,

        Op::Read(_) | Op::Write(_) => unreachable!("they are performed apart"),
        Op::Fsync(args) => data::fsync(core, args).await,
        Op::Fallocate(args) => Box::pin(data::fallocate(core, rq, args)).await,
        Op::Lseek(args) => data::lseek(core, rq, args).await,
        Op::CopyFileRange { args, wide } => Box::pin(data::copy_file_range(core, rq, args, wide)).await,

        Op::Opendir => dirs::opendir(core, rq),
        Op::Readdir { args, plus } => dirs::readdir(core, rq, args, plus).await,
        Op::Releasedir => Ok(0),
        Op::Fsyncdir => dirs::fsyncdir(core, rq).await,

        Op::Setxattr { flags, kill_sgid, name, value } => {
            xattrs::set(core, rq, name, value, flags, kill_sgid).await
        }
        Op::Getxattr { size, name } => xattrs::get(core, rq, name, size).await,
        Op::Listxattr { size } => xattrs::list(core, rq, size).await,
        Op::Removexattr { name } => xattrs::remove(core, rq, name).await,

        Op::Getlk(args) => locks::test(core, rq, args).await,
        Op::Setlk { args, wait } => Box::pin(locks::set(core, rq, args, wait)).await,

        Op::Statfs => control::statfs(core, rq).await,
        Op::Syncfs => control::syncfs(core).await,
        Op::Destroy => Ok(0),
        Op::Ioctl(args) => Box::pin(flags::ioctl(core, rq, args)).await,
        Op::Unsupported => Err(Errno::ENOSYS.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Refusal;

    fn future_bytes<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn internal_errnos_are_hidden_from_applications() {
        let refusals = Refusal::ALL.map(Errno::Refusal);
        for internal in refusals.into_iter().chain([Errno::Number(512)]) {
            assert_eq!(application_errno(internal), Errno::EIO);
        }
        for known in [Errno::ENOENT, Errno::ENOSPC, Errno::EDQUOT, Errno::ESTALE, Errno::ETIMEDOUT] {
            assert_eq!(application_errno(known), known);
        }
    }

    #[test]
    fn a_repeatedly_replaced_name_is_looked_up_again() {
        assert!(estale_refers_to_entry_target(&Operation::Lookup { name: b"f" }));
        for in_directory in [Operation::Unlink { name: b"f" }, Operation::Rmdir { name: b"f" }] {
            assert!(!estale_refers_to_entry_target(&in_directory));
        }
    }

    #[test]
    fn futures_of_requests_are_small() {
        type Parts = (&'static Rc<Core>, &'static Request);
        // A future is copied several times before it is first polled: at 14 KiB that took 7 % of
        // the processor time of small reads.
        let handle = future_bytes(|(core, request): Parts| handle(core, request));
        assert!(handle <= 4096, "{handle} bytes");
        let rest = future_bytes(|((core, rq), op): (Parts, Operation<'static>)| perform_rest(core, rq, op));
        assert!(rest <= 5120, "{rest} bytes");
    }
}
