//! Locks: of byte ranges (`fcntl`) and of whole files (`flock`).

use super::OpenFile;
use crate::abi::{self, FileLock, LkIn, LkOut};
use crate::caller_privileges;
use crate::reply::put;
use crate::request::Request;
use crate::transport::Core;
use client::Cancel;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use types::{Errno, InodeId, Result};
use wire::{LockFamily, LockKind, LockOwner, LockRange};

/// Every present and future byte of a file.
pub(super) const WHOLE_FILE: LockRange = LockRange { start: 0, last: u64::MAX };
/// Interval between checks for pending signals of a caller that waits for a lock.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Waits of a core that are checked within that interval; with more of them, the interval grows.
const SIGNAL_CHECKS_PER_INTERVAL: u32 = 256;
/// Pauses before a non-blocking `flock` is tried again. A close drops the lock, but the kernel
/// doesn't wait until this process has received the close (RELEASE). So a process that has waited
/// for the closing process would find the lock still held.
const FLOCK_RETRY_BACKOFF: [Duration; 3] =
    [Duration::from_micros(500), Duration::from_millis(2), Duration::from_millis(8)];
/// The kernel's value for "to the end of the file".
const OFFSET_MAX: u64 = i64::MAX as u64;

const F_RDLCK: u32 = libc::F_RDLCK as u32;
const F_WRLCK: u32 = libc::F_WRLCK as u32;
const F_UNLCK: u32 = libc::F_UNLCK as u32;

pub(super) async fn test(core: &Core, rq: &Request, args: LkIn) -> Result<usize> {
    let kind = kind(args.lk.kind)?.ok_or(Errno::EINVAL)?;
    let (owner, range) = (LockOwner(args.owner), range(&args.lk)?);
    let open = core.shared.handles.get(args.fh)?;
    let found = open.file.test_lock(owner, kind, range).await?;
    let lk = match found {
        Some((kind, range, pid)) => FileLock {
            start: range.start.min(OFFSET_MAX),
            end: range.last.min(OFFSET_MAX),
            kind: if kind == LockKind::Shared { F_RDLCK } else { F_WRLCK },
            pid,
        },
        None => FileLock { kind: F_UNLCK, ..args.lk },
    };
    Ok(put(&rq.out, 0, &LkOut { lk }))
}

pub(super) async fn set(core: &Rc<Core>, rq: &Request, args: LkIn, wait: bool) -> Result<usize> {
    let open = core.shared.handles.get(args.fh)?;
    let family = if args.lk_flags & abi::LK_FLOCK != 0 { LockFamily::Flock } else { LockFamily::Posix };
    let (ino, owner, range, pid) = (rq.ino(), LockOwner(args.owner), range(&args.lk)?, args.lk.pid);
    let Some(kind) = kind(args.lk.kind)? else {
        return open.file.unlock(family, owner, range).await.map(|()| 0);
    };
    if family == LockFamily::Posix {
        record_posix_owner(core, &open, ino, owner)?;
    }
    let never_cancelled = Cancel::default();
    let try_lock = async || open.file.lock(family, owner, pid, kind, range, false, &never_cancelled).await;
    let is_conflict = |done: &Result<()>| done.as_ref().is_err_and(|error| error.errno == Errno::EAGAIN);
    let mut tried = try_lock().await;
    if family == LockFamily::Flock && !wait {
        for pause in FLOCK_RETRY_BACKOFF {
            if !is_conflict(&tried) {
                break;
            }
            rt::sleep(pause).await;
            tried = try_lock().await;
        }
    }
    match tried {
        Err(error) if error.errno == Errno::EAGAIN && wait => {
            let _blocked = core.block_worker_for_lock()?;
            let waiting = core.shared.interrupts.register(rq.header.unique);
            let wait = open.file.lock(family, owner, pid, kind, range, true, &waiting.cancel);
            wait_unless_signalled(core, rq.header.pid, &waiting.cancel, wait).await?;
        }
        done => done?,
    }
    // Again: before this lock was granted, a close of another descriptor may have removed the
    // record and the owner's locks.
    if family == LockFamily::Posix
        && let Err(error) = record_posix_owner(core, &open, ino, owner)
    {
        open.file.unlock(family, owner, range).await?;
        return Err(error);
    }
    Ok(0)
}

/// Waits for a lock and checks at intervals whether a signal is pending for the caller. The kernel
/// announces most signals by INTERRUPT. It doesn't announce one that arrives before the request is
/// taken from a queue of io_uring (Linux 6.18: `fuse_uring_prepare_send` doesn't check, unlike
/// `fuse_dev_do_read`). Without this check the caller would be stuck and couldn't even be killed.
async fn wait_unless_signalled(
    core: &Core,
    caller: u32,
    cancel: &Cancel,
    wait: impl Future<Output = Result<()>>,
) -> Result<()> {
    let mut wait = pin!(wait);
    loop {
        let pause = SIGNAL_CHECK_INTERVAL * core.lock_waits().div_ceil(SIGNAL_CHECKS_PER_INTERVAL).max(1);
        match rt::timeout(pause, wait.as_mut()).await {
            Some(done) => return done,
            None if caller_privileges::has_pending_signal(caller) => cancel.cancel(),
            None => {}
        }
    }
}

/// Records who may hold byte-range locks before the first one is requested, so that no close in
/// between misses it.
fn record_posix_owner(core: &Core, open: &OpenFile, ino: InodeId, owner: LockOwner) -> Result<()> {
    core.shared.lock_owners.add(ino, owner, open.id())?;
    let mut owners = open.owners.lock();
    if !owners.contains(&owner) {
        owners.push(owner);
    }
    Ok(())
}

/// Drops all byte-range locks of an owner on a file, if it may have any.
pub(super) async fn drop_posix_locks(core: &Core, ino: InodeId, owner: LockOwner) -> Result<()> {
    if !core.shared.lock_owners.take(ino, owner) {
        return Ok(());
    }
    core.shared.client.drop_locks(ino, owner, WHOLE_FILE).await
}

/// Returns the kind of a lock; `None` for an unlock.
fn kind(number: u32) -> Result<Option<LockKind>, Errno> {
    match number {
        F_RDLCK => Ok(Some(LockKind::Shared)),
        F_WRLCK => Ok(Some(LockKind::Exclusive)),
        F_UNLCK => Ok(None),
        _ => Err(Errno::EINVAL),
    }
}

fn range(lk: &FileLock) -> Result<LockRange, Errno> {
    if lk.start > lk.end {
        return Err(Errno::EINVAL);
    }
    Ok(LockRange { start: lk.start, last: if lk.end >= OFFSET_MAX { u64::MAX } else { lk.end } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_file_moves_with_it() {
        let lk = |start, end| FileLock { start, end, kind: F_WRLCK, pid: 1 };
        assert_eq!(range(&lk(5, OFFSET_MAX)), Ok(LockRange { start: 5, last: u64::MAX }));
        assert_eq!(range(&lk(5, 5)), Ok(LockRange { start: 5, last: 5 }));
        assert_eq!(range(&lk(5, 4)), Err(Errno::EINVAL));
    }

    #[test]
    fn strengths() {
        assert_eq!(kind(F_RDLCK), Ok(Some(LockKind::Shared)));
        assert_eq!(kind(F_WRLCK), Ok(Some(LockKind::Exclusive)));
        assert_eq!(kind(F_UNLCK), Ok(None));
        assert_eq!(kind(3), Err(Errno::EINVAL));
    }
}
