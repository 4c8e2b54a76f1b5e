//! Opening and closing files.

use super::locks::{WHOLE_FILE, drop_posix_locks};
use crate::abi::{self, CreateIn, FlushIn, OpenIn, OpenOut, ReleaseIn, fopen};
use crate::init::NegotiatedFeatures;
use crate::locks::OpenFileId;
use crate::reply::{entry, put};
use crate::request::Request;
use crate::transport::Core;
use client::{CachedAttr, Caching, File};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use types::{Credentials, Result, SetAttr};
use wire::{LockFamily, LockOwner};

const O_TRUNC: u32 = libc::O_TRUNC as u32;
const O_ACCMODE: u32 = libc::O_ACCMODE as u32;
const O_DIRECT: u32 = libc::O_DIRECT as u32;
const O_RDONLY: u32 = libc::O_RDONLY as u32;

/// An open file of a process.
pub(crate) struct OpenFile {
    /// The client core's open file, with the session that it belongs to.
    pub(crate) file: File,
    /// Owners of byte-range locks taken through this file.
    pub(crate) owners: Mutex<Vec<LockOwner>>,
    /// Largest end of the failed direct writes beside other clients: see [`super::attrs`]. 0: none
    /// since the last check.
    pub(crate) failed_write_end: AtomicU64,
}

impl OpenFile {
    /// Returns an id that is valid as long as this value exists.
    pub(super) fn id(&self) -> OpenFileId {
        OpenFileId(std::ptr::from_ref(self).addr())
    }
}

pub(super) async fn open(core: &Core, rq: &Request, args: OpenIn) -> Result<usize> {
    // The kernel requests O_TRUNC by a SETATTR afterwards.
    let file = core.shared.client.open(rq.credentials(), rq.ino(), args.flags).await?;
    let reply = insert_open_file(core, file, args.flags).await?;
    Ok(put(&rq.out, 0, &reply))
}

pub(super) async fn create(core: &Core, rq: &Request, args: CreateIn, name: &[u8]) -> Result<usize> {
    let client = &core.shared.client;
    let CreateIn { flags, mode, umask, open_flags } = args;
    let may_cache = core.shared.note_entries_read(rq.ino());
    let (mut attr, file) =
        client.create(rq.credentials(), rq.ino(), name, mode, umask, flags & !O_TRUNC).await?;
    // Another request may have created the entry first.
    if flags & O_TRUNC != 0 && attr.size > 0 {
        match truncate(&file, rq.credentials(), open_flags).await {
            Ok(truncated) => attr = CachedAttr { name_cacheable: attr.name_cacheable, ..truncated },
            Err(error) => {
                file.release().await;
                client.forget(attr.ino, 1);
                return Err(error);
            }
        }
    }
    attr.name_cacheable &= may_cache;
    reply_created(core, rq, &attr, file, flags).await
}

pub(super) async fn tmpfile(core: &Core, rq: &Request, args: CreateIn) -> Result<usize> {
    let CreateIn { flags, mode, umask, .. } = args;
    let (attr, file) = core.shared.client.tmpfile(rq.credentials(), rq.ino(), mode, umask, flags).await?;
    reply_created(core, rq, &attr, file, flags).await
}

async fn reply_created(
    core: &Core,
    rq: &Request,
    attr: &CachedAttr,
    file: File,
    flags: u32,
) -> Result<usize> {
    match insert_open_file(core, file, flags).await {
        Ok(opened) => {
            let at = put(&rq.out, 0, &entry(attr));
            Ok(put(&rq.out, at, &opened))
        }
        Err(error) => {
            // The kernel never sees the entry, so drop the reference that it would have had.
            core.shared.client.forget(attr.ino, 1);
            Err(error)
        }
    }
}

async fn truncate(file: &File, who: Credentials, open_flags: u32) -> Result<CachedAttr> {
    let set = SetAttr { kill_suid_sgid: open_flags & abi::OPEN_KILL_SUIDGID != 0, ..Default::default() };
    file.setattr(who, set, Some(0)).await
}

/// Inserts an open file into the table.
async fn insert_open_file(core: &Core, file: File, flags: u32) -> Result<OpenOut> {
    // A mapping through a file of an ended session must not see pages of another session.
    let is_lost = core.shared.client.is_open_in_ended_session(file.ino());
    let caching = || if is_lost { Caching::Direct } else { file.caching() };
    let shared_with = core.shared.is_shared.then(caching);
    let mut open_flags = reply_flags(flags, shared_with);
    if !may_keep_pages(open_flags, is_lost, &core.shared.features) {
        open_flags &= !fopen::KEEP_CACHE;
    }
    let open = Arc::new(OpenFile { file, owners: Mutex::default(), failed_write_end: AtomicU64::new(0) });
    match core.shared.handles.insert(core.index, open.clone()) {
        Ok(fh) => Ok(OpenOut { fh, open_flags, backing_id: 0 }),
        Err(errno) => {
            open.file.release().await;
            Err(errno.into())
        }
    }
}

/// Returns the `fopen` flags of an open file. A file opened with O_DIRECT bypasses the page cache,
/// and its writes run in parallel. All files keep cached pages (`FOPEN_KEEP_CACHE`), since every
/// change is announced to the kernel. Without this flag an open that bypasses the page cache would
/// drop pages that other processes read and have mapped.
///
/// `shared_with`: `Some` where there are other clients, with the permitted caching of the file.
/// There, files opened for writing bypass the page cache too, so that several clients can write
/// them without passing leases back and forth.
///
/// Beside other clients every close sends a FLUSH, also of files open for reading (no
/// `FOPEN_NOFLUSH`): it drops the process's byte-range locks on the file. At the open it isn't
/// known whether a process will take one. Without other clients the kernel manages the locks
/// itself.
fn reply_flags(flags: u32, shared_with: Option<Caching>) -> u32 {
    let is_direct = flags & O_DIRECT != 0 || shared_with == Some(Caching::Direct);
    let direct_flags = if is_direct { fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES } else { 0 };
    let skips_flush = shared_with.is_none() && flags & O_ACCMODE == O_RDONLY;
    direct_flags | fopen::KEEP_CACHE | if skips_flush { fopen::NOFLUSH } else { 0 }
}

/// Returns whether the kernel may keep its cached pages of a file that is opened with these flags.
/// It must drop pages of a session that has ended. Older kernels write back dirty mapped pages only
/// when they drop them, which must happen before reads bypass the cache.
fn may_keep_pages(open_flags: u32, is_lost: bool, features: &NegotiatedFeatures) -> bool {
    if is_lost {
        return false;
    }
    open_flags & fopen::DIRECT_IO == 0 || features.direct_io_flushes_mappings()
}

pub(super) async fn flush(core: &Core, rq: &Request, args: FlushIn) -> Result<usize> {
    let open = core.shared.handles.get(args.fh)?;
    let flushed = open.file.flush().await;
    // A close drops all byte-range locks of the process on the file, regardless of the descriptor
    // through which it took them.
    let owner = LockOwner(args.lock_owner);
    open.owners.lock().retain(|other| *other != owner);
    drop_posix_locks(core, rq.ino(), owner).await?;
    flushed.map(|()| 0)
}

pub(super) async fn release(core: &Core, args: ReleaseIn) -> Result<usize> {
    let open = core.shared.handles.remove(args.fh)?;
    let mut unlocked = Ok(());
    if args.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0 {
        let owner = LockOwner(args.lock_owner);
        unlocked = open.file.drop_locks(LockFamily::Flock, owner, WHOLE_FILE).await;
    }
    unlocked = unlocked.and(drop_ofd_locks(core, &open).await);
    open.file.release().await;
    unlocked.map(|()| 0)
}

/// Drops the byte-range locks that belong to the open file itself (`F_OFD_SETLK`), whose end the
/// kernel reports only by RELEASE. Processes have dropped theirs by FLUSH, and may have taken new
/// ones since, through another file.
async fn drop_ofd_locks(core: &Core, open: &OpenFile) -> Result<()> {
    let (holders, ino) = (&core.shared.lock_owners, open.file.ino());
    let owners = std::mem::take(&mut *open.owners.lock());
    let mut dropped = Ok(());
    for owner in owners {
        if holders.take_last(ino, owner, open.id()) {
            dropped = dropped.and(core.shared.client.drop_locks(ino, owner, WHOLE_FILE).await);
        }
    }
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    const O_RDWR: u32 = libc::O_RDWR as u32;
    const O_WRONLY: u32 = libc::O_WRONLY as u32;

    #[test]
    fn direct_files_bypass_the_cache_and_all_keep_it() {
        let direct = reply_flags(O_RDWR | O_DIRECT, None);
        assert_eq!(direct, fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES | fopen::KEEP_CACHE);
        assert_eq!(reply_flags(O_RDWR, None), fopen::KEEP_CACHE);
    }

    #[test]
    fn pages_are_dropped_for_ended_sessions_and_old_kernels() {
        let features = |flags| NegotiatedFeatures { flags, max_io: 4096, minor: abi::MINOR_OLDEST };
        let (older, newer) = (features(0), features(abi::init::DIRECT_IO_ALLOW_MMAP));
        let (cached, direct) = (reply_flags(O_RDWR, None), reply_flags(O_RDWR | O_DIRECT, None));
        for (flags, features, keeps) in
            [(cached, older, true), (cached, newer, true), (direct, older, false), (direct, newer, true)]
        {
            assert_eq!(may_keep_pages(flags, false, &features), keeps, "{flags:#x} {features:?}");
            assert!(!may_keep_pages(flags, true, &features));
        }
    }

    #[test]
    fn only_readers_without_other_clients_skip_flush() {
        assert_ne!(reply_flags(O_RDONLY, None) & fopen::NOFLUSH, 0);
        assert_eq!(reply_flags(O_RDONLY, Some(Caching::Cached)) & fopen::NOFLUSH, 0);
        for writes in [O_WRONLY, O_RDWR] {
            assert_eq!(reply_flags(writes, None) & fopen::NOFLUSH, 0);
        }
    }

    #[test]
    fn beside_other_clients_only_leased_files_are_cached() {
        let cached = reply_flags(O_RDONLY, Some(Caching::Cached));
        assert_eq!(cached & (fopen::DIRECT_IO | fopen::KEEP_CACHE), fopen::KEEP_CACHE);
        for flags in [O_RDONLY, O_RDWR, O_WRONLY] {
            assert_ne!(reply_flags(flags, Some(Caching::Direct)) & fopen::DIRECT_IO, 0);
        }
    }
}
