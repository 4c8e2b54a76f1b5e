//! Reads of background work and file system checks, page by page.
//!
//! Every page holds what follows the given inode (or cookie); an empty page is the end.

use crate::keys::{self, Key, KeyRange};
use crate::ops::readdir;
use crate::record::{self, Inode, Orphan, Writing};
use crate::{ReadError, Reader, Writes};
use bytes::Bytes;
use types::{Attr, ChunkFileId, Error, InodeId, Layout, PartitionId, SessionId, Timestamp};
use wire::{DirEntry, WriteRecord};

/// An inode without a name that waits for its reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrphanInode {
    /// The inode.
    pub ino: InodeId,
    /// The session that removed the last name or created the inode without one.
    pub session: SessionId,
}

/// A file whose chunk files may differ from its inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnrecoveredFile {
    /// The writing session, and a pending truncation. [`wire::MetaOp::EndWrite`] and `TruncateDone`
    /// in the name of this session resolve it.
    pub record: WriteRecord,
    /// The stored inode.
    pub attr: Attr,
    /// Location of its chunk files.
    pub layout: Option<Layout>,
    /// The content is inline: the chunk files are from an unfinished move of the content, and
    /// worthless.
    pub inline: bool,
}

/// The most sessions that can have a write record of one file.
pub(crate) const MAX_WRITERS: usize = 1 << 20;

impl From<Error> for ReadError {
    fn from(error: Error) -> ReadError {
        ReadError::Store(error)
    }
}

/// Orphans of a partition above `after`, at most `limit`.
pub fn orphans(
    reader: &dyn Reader,
    partition: PartitionId,
    after: InodeId,
    limit: usize,
) -> Result<Vec<OrphanInode>, ReadError> {
    let pairs = scan(reader, &keys::orphans_after(partition, after), limit)?;
    let mut found = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        if let Some(Key::Orphan(ino)) = keys::decode_key(&key) {
            let session = record::decode::<Orphan>(&key, value)?.session_id();
            found.push(OrphanInode { ino, session });
        }
    }
    Ok(found)
}

/// Write records of a partition on inodes above `after`. A page holds all records of its last
/// inode, and so may be longer than `limit`.
pub fn unrecovered_files(
    reader: &dyn Reader,
    partition: PartitionId,
    after: InodeId,
    limit: usize,
) -> Result<Vec<UnrecoveredFile>, ReadError> {
    let mut pairs = scan(reader, &keys::writing_after(partition, after), limit)?;
    if pairs.len() >= limit
        && let Some((key, _)) = pairs.last()
    {
        let last = key.clone();
        let rest_of_last = KeyRange { from: successor(&last), to: end_of_inode(&last) };
        pairs.extend(scan(reader, &rest_of_last, MAX_WRITERS)?);
    }
    let inodes = pairs.iter().filter_map(|(key, _)| keys::inode_of_key(key));
    reader.expect(&mut inodes.map(|ino| keys::inode(ino).to_vec()))?;
    let mut found = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        if let Some(Key::Writing { ino, session }) = keys::decode_key(&key) {
            let truncate_to = record::decode::<Writing>(&key, value)?.truncate_to;
            let record = WriteRecord { ino, session, truncate_to };
            found.extend(with_inode(reader, record)?);
        }
    }
    Ok(found)
}

fn with_inode(reader: &dyn Reader, record: WriteRecord) -> Result<Option<UnrecoveredFile>, ReadError> {
    let ino = record.ino;
    let key = keys::inode(ino);
    let Some(value) = reader.get(&key)? else {
        return Ok(None);
    };
    let inode: Inode = record::decode(&key, value)?;
    let layout = inode.layout.as_ref().map(Layout::try_from).transpose()?;
    Ok(Some(UnrecoveredFile { record, attr: inode.attr(ino), layout, inline: inode.inline }))
}

/// The smallest key after a key.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// End of the key range of the write records of this record's inode.
fn end_of_inode(key: &[u8]) -> Vec<u8> {
    match keys::decode_key(key) {
        Some(Key::Writing { ino, .. }) => keys::writing_of(ino).to,
        _ => successor(key),
    }
}

/// Doomed chunk files of a partition above `after`, by their names, at most `limit`. Those of
/// deleted files have the inode's name and the slots of the layout; those of moved stripes have a
/// slot in the name.
pub fn doomed(
    reader: &dyn Reader,
    partition: PartitionId,
    after: ChunkFileId,
    limit: usize,
) -> Result<Vec<(ChunkFileId, Layout)>, ReadError> {
    let pairs = scan(reader, &keys::doomed_after(partition, after), limit)?;
    let mut found = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        if let Some(Key::Doomed(name)) = keys::decode_key(&key) {
            let layout: record::Layout = record::decode(&key, value)?;
            found.push((name, Layout::try_from(&layout)?));
        }
    }
    Ok(found)
}

/// Whether writes record chunk files as doomed.
pub fn dooms_chunk_files(writes: &Writes) -> bool {
    writes.iter().any(|(key, value)| value.is_some() && matches!(keys::decode_key(key), Some(Key::Doomed(_))))
}

/// State of the chunk files of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chunks {
    /// It has none: it doesn't exist, is no regular file, or has inline content.
    None,
    /// A session is changing them.
    Changing {
        /// Their location, if the inode has a layout.
        layout: Option<Layout>,
    },
    /// They hold a file of this size.
    Stable {
        /// Their location.
        layout: Layout,
        /// Bytes of the file.
        size: u64,
        /// 512-byte units that it occupies, as its writer reported.
        blocks: u64,
        /// Lower bounds of the lengths of its chunk files, in stripe order; empty if unknown.
        length_bounds: Vec<u64>,
        /// Time of its last change.
        changed: Timestamp,
    },
}

/// The chunk files that an inode should have.
pub fn chunks(reader: &dyn Reader, ino: InodeId) -> Result<Chunks, ReadError> {
    let is_changing = !scan(reader, &keys::writing_of(ino), 1)?.is_empty();
    let key = keys::inode(ino);
    let inode: Option<Inode> = reader.get(&key)?.map(|value| record::decode(&key, value)).transpose()?;
    if is_changing {
        let layout = inode.as_ref().and_then(|inode| inode.layout.as_ref());
        return Ok(Chunks::Changing { layout: layout.map(Layout::try_from).transpose()? });
    }
    let Some(inode) = inode else { return Ok(Chunks::None) };
    match &inode.layout {
        Some(layout) if !inode.inline => {
            let changed: Timestamp = inode.attr(ino).ctime;
            let layout = Layout::try_from(layout)?;
            let known = inode.length_bounds(&layout);
            Ok(Chunks::Stable {
                layout,
                size: inode.size,
                blocks: inode.blocks,
                length_bounds: known,
                changed,
            })
        }
        _ => Ok(Chunks::None),
    }
}

/// Entries of a directory after `cookie`, at most `limit`. Entries with equal cookies are on one
/// page, which may be longer for that.
pub fn children(
    reader: &dyn Reader,
    dir: InodeId,
    cookie: u64,
    limit: usize,
) -> Result<Vec<DirEntry>, ReadError> {
    let (entries, _end) = readdir::page(reader, dir, cookie, limit.max(1))?;
    Ok(entries)
}

/// Inodes of a partition above `after`, at most `limit`.
pub fn inodes(
    reader: &dyn Reader,
    partition: PartitionId,
    after: InodeId,
    limit: usize,
) -> Result<Vec<(InodeId, Inode)>, ReadError> {
    let pairs = scan(reader, &keys::inodes_after(partition, after), limit)?;
    let mut found = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        if let Some(Key::Inode(ino)) = keys::decode_key(&key) {
            found.push((ino, record::decode(&key, value)?));
        }
    }
    Ok(found)
}

fn scan(reader: &dyn Reader, range: &KeyRange, limit: usize) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
    reader.scan(&range.from, &range.to, limit)
}
