//! Directory listings.
//!
//! Entries are in the order of the hashes of their names, and an entry's cookie is its hash. So a
//! listing can be resumed at any time, whatever else has changed: an entry that stays is returned
//! exactly once. Entries with equal hashes are never split across two pages.

use crate::keys::{self, Key};
use crate::record::{self, Entry, Inode};
use crate::tx::{Outcome, Tx};
use crate::{ReadError, Reader};
use bytes::Bytes;
use types::{Attr, Errno, Error, InodeId};
use wire::{DirEntry, MetaReply};

/// The most entries of a page, unless hashes collide at its end: with the longest names and the
/// largest attributes it still fits into the body of a frame.
const MAX_PAGE: usize = 2048;
/// The most entries with one hash that can be listed. The hash is keyed and has 63 bits: two are
/// rare, three are not seen.
const MAX_COLLISIONS: usize = 4096;

/// A page of entries after `cookie`, from `limit` of them; of those without the prefix only the
/// last one, whose cookie continues the listing.
pub(crate) fn readdir(
    tx: &Tx<'_>,
    dir: InodeId,
    (cookie, limit): (u64, u32),
    prefix: &[u8],
    attributes: bool,
) -> Outcome<MetaReply> {
    let parent = tx.directory(dir)?.parent_id();
    let limit = (limit as usize).clamp(1, MAX_PAGE);
    let (mut entries, end) = page(tx.reader, dir, cookie, limit)?;
    if !prefix.is_empty() {
        let last = entries.last().map(|entry| entry.cookie);
        entries.retain(|entry| entry.name.starts_with(prefix) || (!end && Some(entry.cookie) == last));
    }
    if attributes {
        let at_home = entries.iter().map(|entry| entry.ino).filter(|ino| ino.partition() == dir.partition());
        tx.reader.expect(&mut at_home.map(|ino| keys::inode(ino).to_vec()))?;
        for entry in &mut entries {
            entry.attr = local_attr(tx, dir, entry.ino)?;
        }
    }
    Ok(MetaReply::Directory { entries, end, parent })
}

/// Entries after `cookie`, without attributes, and whether they are the last ones.
pub(crate) fn page(
    reader: &dyn Reader,
    dir: InodeId,
    cookie: u64,
    limit: usize,
) -> Result<(Vec<DirEntry>, bool), ReadError> {
    let (pairs, end) = stored_page(reader, dir, cookie, limit)?;
    let entries = pairs.into_iter().map(|(key, value)| decode(&key, value));
    Ok((entries.collect::<Result<_, Error>>()?, end))
}

fn stored_page(
    reader: &dyn Reader,
    dir: InodeId,
    cookie: u64,
    limit: usize,
) -> Result<(Vec<(Bytes, Bytes)>, bool), ReadError> {
    // One entry more than requested shows whether this is the end, and whether the page would split
    // equal hashes.
    let range = keys::entries_after(dir, cookie);
    let mut pairs = reader.scan(&range.from, &range.to, limit.saturating_add(1))?;
    if pairs.len() <= limit {
        return Ok((pairs, true));
    }
    let last = hash_of(&pairs[limit - 1].0)?;
    if hash_of(&pairs[limit].0)? != last {
        pairs.truncate(limit);
        return Ok((pairs, false));
    }
    pairs.retain(|(key, _)| keys::entry_hash(key) != Some(last));
    let range = keys::entries_at(dir, last);
    pairs.extend(reader.scan(&range.from, &range.to, MAX_COLLISIONS)?);
    Ok((pairs, false))
}

/// The attributes of an inode in the directory's own partition. Locking other partitions isn't
/// worthwhile for a listing: the caller looks those inodes up when it needs them.
fn local_attr(tx: &Tx<'_>, dir: InodeId, ino: InodeId) -> Outcome<Option<Attr>> {
    if ino.partition() != dir.partition() {
        return Ok(None);
    }
    let inode = tx.get::<Inode>(&keys::inode(ino))?;
    Ok(inode.map(|inode| inode.attr(ino)))
}

fn hash_of(key: &[u8]) -> Result<u64, Error> {
    keys::entry_hash(key).ok_or_else(|| damaged(key))
}

fn decode(key: &Bytes, value: Bytes) -> Result<DirEntry, Error> {
    let Some(Key::Entry { hash, name, .. }) = keys::decode_key(key) else {
        return Err(damaged(key));
    };
    let entry: Entry = record::decode(key, value)?;
    Ok(DirEntry { name, ino: entry.id(), mode: entry.kind, cookie: hash, attr: None })
}

fn damaged(key: &[u8]) -> Error {
    Error::new(Errno::EIO, format!("metadata key {key:02x?} is damaged: it is no entry of a directory"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Timestamp;
    use wire::{Message, MetaResponse};

    #[test]
    fn the_longest_page_fits_into_a_frame() {
        let time = Timestamp::new(i64::MIN, 999_999_999);
        let (ino, mode) = (InodeId(u64::MAX), types::mode::S_IFSOCK | 0o7777);
        let attr = Attr {
            ino,
            mode,
            nlink: u32::MAX,
            uid: u32::MAX,
            gid: u32::MAX,
            rdev: u32::MAX,
            size: u64::MAX,
            blocks: u64::MAX,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: types::InodeFlags(u32::MAX),
            project: types::ProjectId(u32::MAX),
            has_no_xattrs: true,
        };
        let name = Bytes::from(vec![b'x'; 255]);
        let entry = DirEntry { name, ino, mode, cookie: u64::MAX, attr: Some(attr) };
        let mut body = Vec::new();
        let entries = vec![entry; MAX_PAGE];
        MetaResponse::from(MetaReply::Directory { entries, end: false, parent: ino }).encode(&mut body);
        // In addition, leases on the directory and on its entries would take 16 bytes each.
        let spare = 32 * MAX_PAGE;
        assert!(body.len() + spare <= wire::frame::MAX_BODY_BYTES as usize, "{} bytes", body.len());
        const { assert!(MAX_PAGE <= wire::MAX_ENTRIES) };
    }
}
