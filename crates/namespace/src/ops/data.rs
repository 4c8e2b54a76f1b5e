//! Content: inline content, and the metadata of content in chunk files.

use crate::Failure;
use crate::attributes::{self, CAPABILITY};
use crate::flags;
use crate::keys;
use crate::record::{Inline, Inode, Writing};
use crate::tx::{Outcome, Tx};
use bytes::Bytes;
use types::{Errno, Error, InodeId, Layout, Refusal, StripePattern, Timestamp};
use wire::{FileInfo, MetaReply};

/// The largest size of a file: file offsets are signed.
const MAX_FILE_SIZE: u64 = i64::MAX as u64;
/// Bytes in a unit of `st_blocks`.
const BLOCK_UNIT: u64 = 512;

/// A session's report on a file whose chunk files it changed.
pub(crate) struct Report<'a> {
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Lengths of the chunk files in stripe order, 0 for those that the session couldn't ask; or
    /// empty.
    pub lens: &'a [u64],
    pub mtime: Option<Timestamp>,
    /// The session has completed the change that `BeginWrite` began.
    pub done: bool,
    pub kill_suid_sgid: bool,
}

/// Returns everything needed to read a file. `for_one_use`: also whether all sizes and times are
/// reported.
pub(crate) fn open(tx: &Tx<'_>, ino: InodeId, for_one_use: bool) -> Outcome<MetaReply> {
    let inode = tx.regular(ino)?;
    let is_reported = for_one_use && tx.scan(&keys::writing_of(ino), 1)?.is_empty();
    Ok(MetaReply::File(FileInfo { is_reported, ..file_info(tx, ino, &inode)? }))
}

/// Position of a write into inline content.
#[derive(Clone, Copy)]
pub(crate) struct InlinePosition {
    pub offset: u64,
    /// The offset must be the end of the file.
    pub at_end: bool,
}

/// Writes into inline content; `ERANGE` if the file isn't inline or wouldn't be any more.
pub(crate) fn write_inline(
    tx: &mut Tx<'_>,
    ino: InodeId,
    data: &Bytes,
    InlinePosition { offset, at_end }: InlinePosition,
    kill_suid_sgid: bool,
) -> Outcome<MetaReply> {
    let mut inode = tx.regular(ino)?;
    if at_end && offset != inode.size {
        return Err(ended_lease_error(ino));
    }
    let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
    // With a layout, a session is moving the content to chunk files: a write here would be lost.
    if !inode.inline || inode.layout.is_some() || end > inline_limit(&inode) as u64 {
        return Err(Errno::ERANGE.into());
    }
    if data.is_empty() {
        return Ok(MetaReply::Attr(inode.attr(ino)));
    }
    let replaces_all = offset == 0 && end >= inode.size;
    let content = if replaces_all {
        data.clone()
    } else {
        overwrite(&inline_content(tx, ino, &inode)?, offset as usize, data)
    };
    inode.size = inode.size.max(end);
    put_inline(tx, ino, &mut inode, content);
    attributes::discard(tx, ino, &mut inode, CAPABILITY)?;
    inode.modify(tx.env.now);
    if kill_suid_sgid {
        inode.kill_suid_sgid();
    }
    tx.put_inode(ino, &inode);
    Ok(MetaReply::Attr(inode.attr(ino)))
}

/// Overwrites `old` with `data` from `offset` on, with zeros in any gap between them.
fn overwrite(old: &[u8], offset: usize, data: &[u8]) -> Bytes {
    let end = offset + data.len();
    let mut content = Vec::with_capacity(old.len().max(end));
    content.extend_from_slice(old);
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(data);
    content.into()
}

/// Records that the session changes the file's chunk files, and chooses its layout if it has none
/// yet.
///
/// Removes the file's capabilities, as Linux does with every write: a kernel requests that only
/// where it caches the write.
pub(crate) fn begin_write(tx: &mut Tx<'_>, ino: InodeId) -> Outcome<MetaReply> {
    let mut inode = tx.regular(ino)?;
    if inode.xattr_names > 0 {
        attributes::discard(tx, ino, &mut inode, CAPABILITY)?;
        tx.put_inode(ino, &inode);
    }
    if inode.layout.is_none() {
        inode.layout = Some((&new_layout(tx, ino, &inode)?).into());
        tx.put_inode(ino, &inode);
    }
    let record = own_write_record(tx, ino)?;
    if !record.writing {
        put_own_write_record(tx, ino, Writing { writing: true, ..record });
    }
    Ok(MetaReply::File(file_info(tx, ino, &inode)?))
}

/// The same for an empty file that is being created, which has no inline content from then on. The
/// caller stores the inode. Returns the layout; `None`, without a change, if there is none that has
/// room: the file can be created nevertheless.
pub(super) fn begin_first_write(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode) -> Outcome<Option<Layout>> {
    let layout = match new_layout(tx, ino, inode) {
        Err(Failure::Refused(_)) => return Ok(None),
        layout => layout?,
    };
    (inode.layout, inode.inline) = (Some((&layout).into()), false);
    put_own_write_record(tx, ino, Writing { writing: true, truncate_to: None });
    Ok(Some(layout))
}

fn new_layout(tx: &Tx<'_>, ino: InodeId, inode: &Inode) -> Outcome<Layout> {
    let pattern = pattern_of(inode)?;
    Ok(Layout {
        chunk_size: pattern.chunk_size,
        pool: pattern.pool,
        scheme: pattern.scheme,
        groups: layout::choose(tx.env.map, &pattern, ino, tx.env.seed)?,
        slots: Vec::new(),
    })
}

/// Deletes the inline copy: the content is in the chunk files. A repeated call changes only size
/// and times.
///
/// A session without a write record has lost its lease since it filled the chunk files, and they
/// were deleted as those of an abandoned move. This happens if its request had to move from one
/// service to the next.
pub(crate) fn drop_inline(tx: &mut Tx<'_>, ino: InodeId, size: u64, mtime: Timestamp) -> Outcome<MetaReply> {
    let mut inode = tx.regular(ino)?;
    if inode.layout.is_none() {
        return Err(Errno::EINVAL.into());
    }
    if !own_write_record(tx, ino)?.writing {
        return Err(ended_lease_error(ino));
    }
    if inode.inline {
        inode.inline = false;
        tx.delete(keys::inline(ino));
    }
    inode.size = inode.size.max(check_size(size)?);
    inode.touch(tx.env.now);
    inode.mtime = Some(mtime.into());
    tx.put_inode(ino, &inode);
    Ok(MetaReply::Attr(inode.attr(ino)))
}

/// Records size, allocation and mtime as a session reports them. The file only grows: several
/// sessions may write, and each knows its own end. The report of a session without a write record
/// doesn't change size and mtime: size recovery has covered its writes. An application may have set
/// the time since, and other sessions may have truncated the file.
pub(crate) fn end_write(tx: &mut Tx<'_>, ino: InodeId, report: Report<'_>) -> Outcome<MetaReply> {
    let mut inode = tx.regular(ino)?;
    let record = own_write_record(tx, ino)?;
    let has_write_record = record != Writing::default();
    let reported_size = if has_write_record { check_size(report.size)? } else { 0 };
    let size = inode.size.max(reported_size);
    let grown = size != inode.size;
    inode.size = size;
    if has_write_record && let Some(layout) = chunk_layout(&inode)? {
        let known = layout::length_bounds::raised(&layout, &inode.length_bounds(&layout), report.lens, size);
        inode.set_length_bounds(&layout, known);
    }
    if !inode.inline {
        inode.blocks = report.blocks;
    }
    if let Some(mtime) = report.mtime.filter(|_| has_write_record) {
        inode.mtime = Some(mtime.into());
        // The change happened then, not at the time of the report: an application may have seen
        // this time already.
        if inode.attr(ino).ctime < mtime {
            inode.touch(mtime);
        }
    } else if grown || report.kill_suid_sgid {
        inode.touch(tx.env.now);
    }
    if report.kill_suid_sgid {
        inode.kill_suid_sgid();
    }
    tx.put_inode(ino, &inode);
    if report.done && record.writing {
        put_own_write_record(tx, ino, Writing { writing: false, ..record });
    }
    Ok(MetaReply::Attr(inode.attr(ino)))
}

/// Sets the size. A truncation of chunk files is recorded until the session reports that it is
/// done.
///
/// "Smaller" refers to the recorded size: a session that has written beyond it reports its size
/// first.
pub(crate) fn truncate(tx: &mut Tx<'_>, ino: InodeId, size: u64, kill_suid_sgid: bool) -> Outcome<MetaReply> {
    let mut inode = tx.regular(ino)?;
    flags::may_change((ino, &inode))?;
    let shrinks = check_size(size)? < inode.size;
    if inode.inline && shrinks {
        let content = inline_content(tx, ino, &inode)?;
        let kept = content.len().min(size as usize);
        put_inline(tx, ino, &mut inode, content.slice(..kept));
    }
    // While the content is inline, chunk files belong to an unfinished move of the content, which
    // will start again.
    if inode.layout.is_some() && !inode.inline && shrinks {
        let record = own_write_record(tx, ino)?;
        // Of two pending truncations, the smaller size covers both.
        let truncate_to = Some(record.truncate_to.map_or(size, |earlier| earlier.min(size)));
        put_own_write_record(tx, ino, Writing { truncate_to, ..record });
    }
    if let Some(layout) = chunk_layout(&inode)? {
        // In the commit that changes the size: what is truncated here must not count as missing
        // later.
        let known = layout::length_bounds::truncated(&layout, &inode.length_bounds(&layout), size);
        inode.set_length_bounds(&layout, known);
    }
    inode.size = size;
    inode.modify(tx.env.now);
    if kill_suid_sgid {
        inode.kill_suid_sgid();
    }
    tx.put_inode(ino, &inode);
    Ok(MetaReply::File(file_info(tx, ino, &inode)?))
}

/// Records that the session has cut the chunk files.
pub(crate) fn truncate_done(tx: &mut Tx<'_>, ino: InodeId) -> Outcome<MetaReply> {
    let record = own_write_record(tx, ino)?;
    if record.truncate_to.is_some() {
        put_own_write_record(tx, ino, Writing { truncate_to: None, ..record });
    }
    Ok(MetaReply::Unit)
}

/// The description of a file for a client.
fn file_info(tx: &Tx<'_>, ino: InodeId, inode: &Inode) -> Outcome<FileInfo> {
    let layout = inode.layout.as_ref().map(Layout::try_from).transpose()?;
    let inline = if inode.inline { Some(inline_content(tx, ino, inode)?) } else { None };
    let (attr, inline_limit) = (inode.attr(ino), inline_limit(inode));
    let known = layout.as_ref().map_or(Vec::new(), |layout| inode.length_bounds(layout));
    Ok(FileInfo {
        attr,
        layout,
        length_bounds: known,
        inline,
        inline_limit,
        epoch: 0,
        truncate_pending: false,
        is_reported: false,
    })
}

/// The layout of a file whose content is in chunk files.
fn chunk_layout(inode: &Inode) -> Outcome<Option<Layout>> {
    let stored = inode.layout.as_ref().filter(|_| !inode.inline);
    Ok(stored.map(Layout::try_from).transpose()?)
}

/// The stripe pattern of a file or directory; the default one for other inodes.
pub(super) fn pattern_of(inode: &Inode) -> Outcome<StripePattern> {
    match &inode.pattern {
        Some(pattern) => Ok(pattern.try_into()?),
        None => Ok(StripePattern::default()),
    }
}

pub(super) fn inline_limit(inode: &Inode) -> u32 {
    inode.pattern.map_or(0, |pattern| pattern.inline_limit)
}

/// Inline content of a file that may have some.
pub(super) fn inline_content(tx: &Tx<'_>, ino: InodeId, inode: &Inode) -> Outcome<Bytes> {
    if inode.size == 0 {
        return Ok(Bytes::new());
    }
    let stored = tx.get::<Inline>(&keys::inline(ino))?;
    Ok(stored.map(|inline| inline.content).unwrap_or_default())
}

/// Stores inline content; the caller stores the inode.
pub(super) fn put_inline(tx: &mut Tx<'_>, ino: InodeId, inode: &mut Inode, content: Bytes) {
    inode.blocks = (content.len() as u64).div_ceil(BLOCK_UNIT);
    if content.is_empty() {
        tx.delete(keys::inline(ino));
    } else {
        tx.put(keys::inline(ino), &Inline { content });
    }
}

/// This session's write record of a file; empty if there is none.
fn own_write_record(tx: &Tx<'_>, ino: InodeId) -> Outcome<Writing> {
    Ok(tx.get(&keys::writing(ino, tx.env.session))?.unwrap_or_default())
}

/// Stores this session's write record of a file; deletes an empty one.
fn put_own_write_record(tx: &mut Tx<'_>, ino: InodeId, record: Writing) {
    let key = keys::writing(ino, tx.env.session);
    if record == Writing::default() {
        tx.delete(key);
    } else {
        tx.put(key, &record);
    }
}

/// The error for a request under a lease that the session doesn't have any more.
fn ended_lease_error(ino: InodeId) -> Failure {
    let message = format!("the lease for this change of inode {ino} has ended");
    Failure::Refused(Error::new(Refusal::EndedLease, message).hint("acquire the lease and start again"))
}

fn check_size(size: u64) -> Outcome<u64> {
    if size > MAX_FILE_SIZE { Err(Errno::EFBIG.into()) } else { Ok(size) }
}
