//! Asynchronous creates, which applications see before the service: inode preallocation, and the
//! creates themselves.

use super::attr::set_attributes;
use super::create::{NewEntry, named_file, pattern_for_children};
use super::data::{begin_first_write, inline_limit, put_inline};
use crate::flags;
use crate::keys;
use crate::record::Inode;
use crate::tx::{Outcome, Tx, check_name};
use types::{Errno, Error, InodeFlags, InodeId, SetAttr, Timestamp, mode};
use wire::{BegunWrite, MetaReply, PendingFile};

/// Inode numbers that one request gets at most: as many as an application creates in a directory
/// within a second. At one such request every second, a partition has enough for eight years, even
/// if none of them is used.
const MAX_PREALLOCATED: u32 = 4096;

/// The greatest age at which an asynchronous create keeps its times at the client: longer than
/// clients delay creates, if their clocks agree. Nanoseconds.
const MAX_AGE_NS: i128 = 100_000_000;

/// Preallocates inode numbers for files in a directory. With a prefix, the number before them
/// stands for the names with that prefix.
pub(crate) fn preallocate(tx: &mut Tx<'_>, dir: InodeId, count: u32, prefix: &[u8]) -> Outcome<MetaReply> {
    let directory = tx.live_directory(dir)?;
    if count == 0 {
        return Err(Errno::EINVAL.into());
    }
    if !prefix.is_empty() {
        check_name(prefix)?;
    }
    if directory.default_acl {
        // The client determines the mode of a new file before the service could apply the ACL.
        let message = format!("files of directory {dir} get their permissions from its default ACL");
        return Err(Error::new(Errno::EBUSY, message).hint("create them synchronously").into());
    }
    if directory.flags().intersects(InodeFlags::READ_ONLY_FLAGS) {
        // The holder of a delegation is responsible for the names that it creates.
        let message = format!("directory {dir} is immutable or append-only");
        return Err(Error::new(Errno::EBUSY, message).hint("create files there synchronously").into());
    }
    let count = count.min(MAX_PREALLOCATED);
    let ranges = u32::from(!prefix.is_empty());
    let reserved = tx.allocate_range(dir.partition(), count + ranges)?;
    let range = (ranges > 0).then_some(reserved);
    let first = InodeId(reserved.0 + u64::from(ranges));
    let inline_limit = pattern_for_children(&directory).inline_limit;
    Ok(MetaReply::Preallocated { first, count, attr: directory.attr(dir), inline_limit, prefix_lease: range })
}

/// Creates a file with all of its content. If it was created before, returns its current
/// attributes.
pub(crate) fn async_create(tx: &mut Tx<'_>, file: &PendingFile) -> Outcome<MetaReply> {
    let (ino, parent) = (file.ino, file.parent);
    if ino.partition() != parent.partition() {
        return Err(not_preallocated(ino, parent).into());
    }
    check_name(&file.name)?;
    if file.begins_write && !file.content.is_empty() {
        return Err(Errno::EINVAL.into());
    }
    let known = [
        keys::inode(parent),
        keys::partition_counters(parent.partition()),
        keys::inode(ino),
        keys::doomed(ino.first_chunk_file()),
    ];
    tx.reader.expect(&mut known.iter().map(|key| key.to_vec()).chain([tx.key_of(parent, &file.name)]))?;
    let site = NewEntry::open(tx, parent, &file.name)?;
    if !tx.is_allocated(ino)? {
        return Err(not_preallocated(ino, parent).into());
    }
    if let Some(entry) = &site.slot.entry {
        if entry.id() != ino {
            return Err(Errno::EEXIST.into());
        }
        let inode = tx.named_inode(parent, entry)?;
        return Ok(MetaReply::Entry(inode.attr(ino)));
    }
    flags::may_add_name((parent, &site.directory))?;
    refuse_reuse(tx, ino)?;
    tx.count_created(ino)?;
    let requested_mode = mode::S_IFREG | file.mode & mode::PERMISSIONS;
    let mut inode = named_file(tx, &site, ino, (requested_mode, file.umask))?;
    set_times(&mut inode, file.created, tx.env.now);
    if file.content.len() as u64 > u64::from(inline_limit(&inode)) {
        return Err(Errno::ERANGE.into());
    }
    if !file.content.is_empty() {
        inode.modify(recent_or_now(file.written, tx.env.now));
        inode.size = file.content.len() as u64;
        put_inline(tx, ino, &mut inode, file.content.clone());
    }
    if file.set != SetAttr::default() {
        let changed = recent_or_now(file.set.ctime, tx.env.now);
        set_attributes(tx, ino, &mut inode, &SetAttr { ctime: Some(changed), ..file.set })?;
    }
    let layout = if file.begins_write { begin_first_write(tx, ino, &mut inode)? } else { None };
    let begun = layout.map(|layout| Box::new(BegunWrite { layout, epoch: 0 }));
    Ok(match site.finish(tx, ino, &inode) {
        MetaReply::Created { attr, inline_limit, has_no_xattrs, .. } => {
            MetaReply::Created { attr, inline_limit, has_no_xattrs, begun }
        }
        other => other,
    })
}

fn set_times(inode: &mut Inode, created: Timestamp, now: Timestamp) {
    let created = Some(recent_or_now(Some(created), now).into());
    (inode.atime, inode.btime, inode.mtime, inode.ctime) = (created, created, created, created);
}

/// The client's time of a change, which applications may have seen, if it is recent. Otherwise the
/// client's clock isn't trusted: an application that searches for changes since some time must not
/// miss the file.
pub(super) fn recent_or_now(at_client: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let age_ns = |at: &Timestamp| {
        i128::from(now.secs - at.secs) * 1_000_000_000 + i128::from(now.nanos) - i128::from(at.nanos)
    };
    at_client.filter(|at| (0..=MAX_AGE_NS).contains(&age_ns(at))).unwrap_or(now)
}

/// Prevents the reuse of a number: while its file has another name, and while chunk files of it are
/// still to be deleted.
fn refuse_reuse(tx: &Tx<'_>, ino: InodeId) -> Outcome<()> {
    let lives = tx.get::<Inode>(&keys::inode(ino))?.is_some();
    if lives || tx.reader.get(&keys::doomed(ino.first_chunk_file()))?.is_some() {
        let message = format!("inode {ino} was created before, and has another name or none now");
        return Err(Error::new(Errno::EEXIST, message).into());
    }
    Ok(())
}

fn not_preallocated(ino: InodeId, parent: InodeId) -> Error {
    let message = format!("inode number {ino} was not reserved for a file in directory {parent}");
    Error::new(Errno::EINVAL, message).hint("reserve numbers in the directory first")
}
