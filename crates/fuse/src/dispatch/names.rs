//! Directory entries: lookup, creation, rename and removal.

use crate::abi::{MkdirIn, MknodIn};
use crate::reply::{absent_entry, entry, put};
use crate::request::Request;
use crate::transport::Core;
use client::{CachedAttr, Found};
use types::{Errno, InodeId, Result};
use wire::RenameMode;

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

pub(super) async fn lookup(core: &Core, rq: &Request, name: &[u8]) -> Result<usize> {
    let may_cache = core.shared.note_entries_read(rq.ino());
    match core.shared.client.find(rq.credentials(), rq.ino(), name).await? {
        Found::Known(known) => reply(rq, may_cache, &known),
        // The kernel caches the negative dentry, until it creates the entry or receives an
        // invalidation.
        Found::Absent { cacheable: trusted } => Ok(put(&rq.out, 0, &absent_entry(trusted && may_cache))),
    }
}

pub(super) async fn symlink(core: &Core, rq: &Request, name: &[u8], target: &[u8]) -> Result<usize> {
    let may_cache = core.shared.note_entries_read(rq.ino());
    reply(rq, may_cache, &core.shared.client.symlink(rq.credentials(), rq.ino(), name, target).await?)
}

pub(super) async fn mknod(core: &Core, rq: &Request, args: MknodIn, name: &[u8]) -> Result<usize> {
    let MknodIn { mode, rdev, umask, .. } = args;
    let may_cache = core.shared.note_entries_read(rq.ino());
    reply(
        rq,
        may_cache,
        &core.shared.client.mknod(rq.credentials(), rq.ino(), name, mode, umask, rdev).await?,
    )
}

pub(super) async fn mkdir(core: &Core, rq: &Request, args: MkdirIn, name: &[u8]) -> Result<usize> {
    let may_cache = core.shared.note_entries_read(rq.ino());
    let made = core.shared.client.mkdir(rq.credentials(), rq.ino(), name, args.mode, args.umask).await?;
    reply(rq, may_cache, &made)
}

pub(super) async fn link(core: &Core, rq: &Request, ino: InodeId, name: &[u8]) -> Result<usize> {
    let may_cache = core.shared.note_entries_read(rq.ino());
    reply(rq, may_cache, &core.shared.client.link(rq.credentials(), ino, rq.ino(), name).await?)
}

pub(super) async fn unlink(core: &Core, rq: &Request, name: &[u8]) -> Result<usize> {
    core.shared.client.unlink(rq.credentials(), rq.ino(), name).await.map(|()| 0)
}

pub(super) async fn rmdir(core: &Core, rq: &Request, name: &[u8]) -> Result<usize> {
    core.shared.client.rmdir(rq.credentials(), rq.ino(), name).await.map(|()| 0)
}

pub(super) async fn rename(
    core: &Core,
    rq: &Request,
    name: &[u8],
    new_parent: InodeId,
    new_name: &[u8],
    flags: u32,
) -> Result<usize> {
    let mode = rename_mode(flags)?;
    core.shared.client.rename(rq.credentials(), rq.ino(), name, new_parent, new_name, mode).await.map(|()| 0)
}

fn rename_mode(flags: u32) -> Result<RenameMode, Errno> {
    match flags {
        0 => Ok(RenameMode::Replace),
        RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        RENAME_WHITEOUT => Ok(RenameMode::Whiteout),
        _ => Err(Errno::EINVAL),
    }
}

fn reply(rq: &Request, may_cache: bool, known: &CachedAttr) -> Result<usize> {
    let known = CachedAttr { name_cacheable: known.name_cacheable && may_cache, ..*known };
    Ok(put(&rq.out, 0, &entry(&known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_rename() {
        assert_eq!(rename_mode(0), Ok(RenameMode::Replace));
        assert_eq!(rename_mode(1), Ok(RenameMode::NoReplace));
        assert_eq!(rename_mode(2), Ok(RenameMode::Exchange));
        assert_eq!(rename_mode(4), Ok(RenameMode::Whiteout));
        for refused in [3, 5, 6, 8] {
            assert_eq!(rename_mode(refused), Err(Errno::EINVAL));
        }
    }
}
