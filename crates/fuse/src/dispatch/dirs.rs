//! Directories.

use crate::abi::{OpenOut, ReadIn, fopen};
use crate::reply::{DirWriter, ListedEntry, put};
use crate::request::Request;
use crate::transport::Core;
use client::{CachedAttr, Listing};
use types::{Attr, Errno, InodeId, Result, mode};

/// Offsets after `.` and after `..`; the cookies of real entries are larger.
const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;

/// Answers OPENDIR. Open directories have no state. A kernel that supports skipping OPENDIR
/// receives `ENOSYS`, once for the mount.
///
/// The kernel caches listings only where no other client creates entries. It validates a cached
/// listing by the directory's times. But it doesn't request them when an application rewinds the
/// directory, nor always at an open. It also caches a reply that is in flight while the listing is
/// invalidated.
pub(super) fn opendir(core: &Core, rq: &Request) -> Result<usize> {
    if core.shared.features.skips_opendir() {
        return Err(Errno::ENOSYS.into());
    }
    let open_flags = if core.shared.is_shared { 0 } else { fopen::KEEP_CACHE | fopen::CACHE_DIR };
    Ok(put(&rq.out, 0, &OpenOut { fh: 0, open_flags, backing_id: 0 }))
}

pub(super) async fn readdir(core: &Core, rq: &Request, args: ReadIn, plus: bool) -> Result<usize> {
    let client = &core.shared.client;
    let size = (args.size as usize).min(rq.out.len());
    let cookie = if args.offset <= AFTER_DOT_DOT { 0 } else { args.offset };
    let may_cache = core.shared.note_entries_read(rq.ino());
    let mut listing =
        client.readdir_for(rq.credentials(), rq.ino(), cookie, DirWriter::capacity(size, plus), plus).await?;
    listing.names_cacheable &= may_cache;
    let mut writer = DirWriter::new(&rq.out, size, plus);
    fill(&mut writer, rq.ino(), args.offset, &listing, |attr| client.remember_listed(attr, &listing));
    if writer.len() == 0 && !(listing.end && listing.entries.is_empty()) {
        // An empty reply would mean the end of the directory.
        return Err(Errno::EINVAL.into());
    }
    Ok(writer.len())
}

/// Writes as many entries as fit of a listing that starts at `offset`. Calls `remember` for each
/// inode that the kernel receives.
fn fill(
    writer: &mut DirWriter<'_>,
    dir: InodeId,
    offset: u64,
    listing: &Listing,
    mut remember: impl FnMut(&Attr),
) {
    let dots: [(u64, InodeId, &[u8]); 2] = [(AFTER_DOT, dir, b"."), (AFTER_DOT_DOT, listing.parent, b"..")];
    for (next, ino, name) in dots {
        // The kernel knows both inodes; it uses only the names.
        if offset < next && !writer.push(&ListedEntry { ino, mode: mode::S_IFDIR, name, next }, None) {
            return;
        }
    }
    for (index, entry) in listing.entries.iter().enumerate() {
        let listed = ListedEntry { ino: entry.ino, mode: entry.mode, name: &entry.name, next: entry.cookie };
        let cacheable = listing.cacheable_attributes.get(index).copied().unwrap_or(false);
        let attr =
            entry.attr.map(|attr| CachedAttr { attr, cacheable, name_cacheable: listing.names_cacheable });
        if !writer.push(&listed, attr.as_ref()) {
            return;
        }
        if let Some(attr) = attr.filter(|_| writer.includes_attributes()) {
            remember(&attr.attr);
        }
    }
}

pub(super) async fn fsyncdir(core: &Core, rq: &Request) -> Result<usize> {
    core.shared.client.fsyncdir(rq.ino()).await.map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{self, Dirent, EntryOut};
    use rt::IoBuf;
    use types::Timestamp;
    use wire::DirEntry;

    fn listing(count: u64, attributes: bool) -> Listing {
        let time = Timestamp::default();
        let entry = |n: u64| {
            let attr = types::Attr {
                ino: InodeId(100 + n),
                mode: mode::S_IFREG | 0o644,
                nlink: 1,
                uid: 0,
                gid: 0,
                rdev: 0,
                size: n,
                blocks: 0,
                atime: time,
                mtime: time,
                ctime: time,
                btime: time,
                flags: types::InodeFlags::NONE,
                project: types::ProjectId(0),
                has_no_xattrs: true,
            };
            DirEntry {
                name: format!("file-{n}").into_bytes().into(),
                ino: attr.ino,
                mode: attr.mode,
                cookie: 16 + n,
                attr: attributes.then_some(attr),
            }
        };
        Listing {
            entries: (0..count).map(entry).collect(),
            end: true,
            parent: InodeId(7),
            names_cacheable: true,
            cacheable_attributes: vec![true; count as usize],
            requested: None,
        }
    }

    /// Returns names and offsets in a reply.
    fn parse(out: &IoBuf, len: usize, plus: bool) -> Vec<(String, u64, u64)> {
        let (bytes, mut at, mut found) = (&out.as_slice()[..len], 0, Vec::new());
        while at < len {
            let head = if plus { size_of::<EntryOut>() } else { 0 };
            let dirent: Dirent = abi::read(&bytes[at + head..]).unwrap();
            let name_at = at + head + size_of::<Dirent>();
            let name = String::from_utf8(bytes[name_at..name_at + dirent.namelen as usize].to_vec()).unwrap();
            found.push((name, dirent.ino, dirent.off));
            at = (name_at + dirent.namelen as usize).next_multiple_of(8);
        }
        assert_eq!(at, len);
        found
    }

    #[test]
    fn dots_come_first_and_only_at_the_start() {
        let listing = listing(1, false);
        let read = |offset| {
            let out = IoBuf::alloc(4096);
            let mut writer = DirWriter::new(&out, 4096, false);
            fill(&mut writer, InodeId(5), offset, &listing, |_| {
                panic!("a plain listing makes no references")
            });
            parse(&out, writer.len(), false)
        };
        let file = ("file-0".to_string(), 100, 16);
        let (dot, dot_dot) = ((".".to_string(), 5, 1), ("..".to_string(), 7, 2));
        assert_eq!(read(0), [dot, dot_dot.clone(), file.clone()]);
        assert_eq!(read(1), [dot_dot, file.clone()]);
        assert_eq!(read(2), [file]);
    }

    #[test]
    fn only_entries_that_are_handed_over_are_remembered() {
        let listing = listing(20, true);
        let out = IoBuf::alloc(4096);
        let mut writer = DirWriter::new(&out, 1000, true);
        let mut remembered = Vec::new();
        fill(&mut writer, InodeId(5), 0, &listing, |attr| remembered.push(attr.ino.0));
        let listed = parse(&out, writer.len(), true);
        let files: Vec<u64> = listed.iter().skip(2).map(|(_, ino, _)| *ino).collect();
        assert!(!files.is_empty() && files.len() < 20);
        assert_eq!(remembered, files);
    }
}
