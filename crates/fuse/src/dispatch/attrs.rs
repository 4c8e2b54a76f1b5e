//! Attributes.

use super::files::OpenFile;
use crate::abi::{SetattrIn, fattr};
use crate::reply::{attr_out, put, statx_out};
use crate::request::Request;
use crate::transport::Core;
use client::CachedAttr;
use std::sync::atomic::Ordering;
use types::{Errno, Error, InodeId, Result, SetAttr, SetTime, Timestamp, mode};

pub(super) async fn getattr(core: &Core, rq: &Request) -> Result<usize> {
    let shared = &core.shared;
    let attr = match shared.client.permissions(rq.ino()) {
        Some(known) if shared.caller_syscalls.needs_only_permissions(rq.header.pid) => known,
        _ => attributes(core, rq.ino()).await?,
    };
    Ok(put(&rq.out, 0, &attr_out(&attr)))
}

pub(super) async fn statx(core: &Core, rq: &Request) -> Result<usize> {
    let attr = attributes(core, rq.ino()).await?;
    Ok(put(&rq.out, 0, &statx_out(&attr)))
}

/// Returns the attributes of an inode. An application that has a directory open, or as its working
/// directory, sees them even after another client has removed the directory, as on a local file
/// system.
async fn attributes(core: &Core, ino: InodeId) -> Result<CachedAttr> {
    let client = &core.shared.client;
    match client.getattr(ino).await {
        Err(error) if error.errno == Errno::ESTALE => client.removed_directory(ino).ok_or(error),
        shown => shown,
    }
}

pub(super) async fn setattr(core: &Core, rq: &Request, args: SetattrIn) -> Result<usize> {
    let (set, size) = setattr_changes(&args)?;
    let attr = match size {
        // ftruncate: fails for a file whose session has ended.
        Some(size) if args.valid & fattr::FH != 0 => {
            let open = core.shared.handles.get(args.fh)?;
            refuse_truncate_after_failed_write(core, &open, size).await?;
            open.file.setattr(rq.credentials(), set, Some(size)).await?
        }
        _ => core.shared.client.setattr(rq.credentials(), rq.ino(), set, size).await?,
    };
    Ok(put(&rq.out, 0, &attr_out(&attr)))
}

/// Refuses the first truncation of an open file after a failed direct write, if it would lose data.
///
/// When an asynchronous direct write beyond the end that the kernel knows fails, the kernel
/// truncates the file to that end (`fuse_direct_IO` and `fuse_do_truncate` of Linux's
/// `fs/fuse/file.c`). It sends the same request as for `ftruncate(2)` and ignores the answer. Data
/// that others have appended meanwhile would be lost. The error tells an application that means the
/// truncation to repeat it.
async fn refuse_truncate_after_failed_write(core: &Core, open: &OpenFile, size: u64) -> Result<()> {
    if open.failed_write_end.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    if size >= open.failed_write_end.swap(0, Ordering::Relaxed) {
        return Ok(());
    }
    let now = core.shared.client.getattr(open.file.ino()).await?.size;
    if size >= now {
        return Ok(());
    }
    let message = format!(
        "inode {} was not truncated from {now} to {size} bytes: a write through this open file has just failed, and the kernel may have requested it without knowing the writes of other clients",
        open.file.ino()
    );
    Err(Error::new(Errno::EIO, message).hint("truncate it again"))
}

pub(super) async fn readlink(core: &Core, rq: &Request) -> Result<usize> {
    let target = core.shared.client.readlink(rq.ino()).await?;
    if target.len() > rq.out.len() {
        return Err(Errno::EIO.into());
    }
    rq.out.copy_from(0, &target);
    Ok(target.len())
}

/// Returns the changes of a SETATTR. The kernel sets `KILL_SUIDGID` when a change of owner or size
/// clears setuid and setgid.
fn setattr_changes(args: &SetattrIn) -> Result<(SetAttr, Option<u64>), Errno> {
    let has = |bit: u32| args.valid & bit != 0;
    let set = SetAttr {
        mode: has(fattr::MODE).then_some(args.mode & mode::PERMISSIONS),
        uid: has(fattr::UID).then_some(args.uid),
        gid: has(fattr::GID).then_some(args.gid),
        atime: time(has(fattr::ATIME), has(fattr::ATIME_NOW), args.atime, args.atimensec)?,
        mtime: time(has(fattr::MTIME), has(fattr::MTIME_NOW), args.mtime, args.mtimensec)?,
        ctime: has(fattr::CTIME).then(|| timestamp(args.ctime, args.ctimensec)).transpose()?,
        kill_suid_sgid: has(fattr::KILL_SUIDGID),
        ..SetAttr::default()
    };
    Ok((set, has(fattr::SIZE).then_some(args.size)))
}

fn time(given: bool, now: bool, secs: u64, nanos: u32) -> Result<Option<SetTime>, Errno> {
    match (given, now) {
        (_, true) => Ok(Some(SetTime::Now)),
        (true, false) => timestamp(secs, nanos).map(|t| Some(SetTime::At(t))),
        (false, false) => Ok(None),
    }
}

fn timestamp(secs: u64, nanos: u32) -> Result<Timestamp, Errno> {
    // Seconds are signed, though the protocol's field is unsigned.
    if nanos < 1_000_000_000 { Ok(Timestamp::new(secs as i64, nanos)) } else { Err(Errno::EINVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_fields_change() {
        let full = SetattrIn {
            size: 9,
            mode: 0o100644,
            uid: 1,
            gid: 2,
            atime: 3,
            mtime: 4,
            ctime: 5,
            ..Default::default()
        };
        assert_eq!(setattr_changes(&full), Ok((SetAttr::default(), None)));
        let valid = fattr::MODE | fattr::SIZE | fattr::GID | fattr::KILL_SUIDGID;
        let expected =
            SetAttr { mode: Some(0o644), gid: Some(2), kill_suid_sgid: true, ..Default::default() };
        assert_eq!(setattr_changes(&SetattrIn { valid, ..full }), Ok((expected, Some(9))));
    }

    #[test]
    fn times_are_given_or_now() {
        let valid = fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME;
        let args = SetattrIn { valid, atime: 7, mtime: -3i64 as u64, mtimensec: 8, ..Default::default() };
        let (set, _) = setattr_changes(&args).unwrap();
        assert_eq!(set.atime, Some(SetTime::Now));
        assert_eq!(set.mtime, Some(SetTime::At(Timestamp::new(-3, 8))));
        assert_eq!(setattr_changes(&SetattrIn { mtimensec: 1_000_000_000, ..args }), Err(Errno::EINVAL));
    }
}
